"""Exercises of notebook 02: heads there and back, the whole layer, a test, layouts."""

from utils.exercises.lesson_02 import (
    exercise_1,
    exercise_2,
    exercise_3,
    exercise_4,
    exercise_5,
)

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
from utils.attention import causal_mask, padding_mask, scaled_dot_product_attention
"""

EXERCISES = tuple(
    module.EXERCISE
    for module in (exercise_1, exercise_2, exercise_3, exercise_4, exercise_5)
)

SHOWN = {  # broken on the page -> the exercise that rejects it, by this name
    "class WrongSplit(MultiHead)": ("2.2", "reshape without transpose"),
    "class WrongMerge(MultiHead)": ("2.2", "merge without transpose"),
    "class BothWrong(WrongSplit, WrongMerge)": (
        "2.2",
        "split and merge without transpose",
    ),
    "`x.reshape(batch * num_heads, length, -1)`": ("2.1", "reshape without transpose"),
    "`.view` usually refuses": ("2.1", "view of transposed memory"),
    "`x.split(num_heads, dim=-1)`": ("2.1", "number and size of the heads swapped"),
    "*Scaled by √embed_dim*": ("2.2", "√embed_dim"),
    "*One head over all features*": ("2.2", "one head over all features"),
    "*Heads cut before projecting*": ("2.2", "heads cut before projecting"),
    "def leak(layer, text, word)": ("2.3", "says no to all"),
    '"neighbours": torch.tensor([1, 0, 3, 2, 5, 4, 7, 6])': (
        "2.3",
        "a shuffle that keeps the pieces",
    ),
    '"pairs": torch.tensor([2, 3, 0, 1, 6, 7, 4, 5])': (
        "2.3",
        "a shuffle that keeps the pieces",
    ),
    "`layer(x).shape == x.shape`": ("2.3", "says yes to all"),
    "`torch.equal` asks": ("2.3", "exact equality"),
    "Forget the biases": ("2.4", "biases not moved"),
    "Its rows, and `b_out`": ("2.4", "rows of w_out moved"),
    "`order` and its inverse": ("2.4", "the inverse order"),
    "misread = read_stacked(batched, x, interleaved)": ("2.5", "rows not moved"),
    "`unflatten(0, (3, num_heads, -1))`": ("2.5", "the other direction"),
    "`.view(num_heads, 3, head_dim, embed)`": ("2.5", "only for matrices"),
}
