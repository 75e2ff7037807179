"""Exercises of notebook 03: PyTorch's weights, its masks, a head's score, its null."""

from utils.exercises.lesson_03 import exercise_1, exercise_2, exercise_3, exercise_4

IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import (
    MultiHeadAttention,
    causal_mask,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
"""

EXERCISES = tuple(
    module.EXERCISE for module in (exercise_1, exercise_2, exercise_3, exercise_4)
)
