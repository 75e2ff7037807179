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

SHOWN = {  # what the page shows to be broken -> the exercise and the mistake
    "attn_mask=keep, average_attn_weights=False": ("3.2", "inverted mask"),
    "attn_mask=keep.float()": ("3.2", "float mask of ones"),
    "attn_mask=keep.int()": ("3.2", "integer mask"),
    "(3, 2, 5, 5)": ("3.2", "four axes"),
    "(3, 5, 5)": ("3.2", "one mask per sentence"),
    "`.bool()` alone": ("3.2", ".bool() alone"),
    "`~attention_mask` on integers": ("3.2", "~ on integers"),
    "`&` between two *blocked* masks": ("3.2", "and instead of or"),
    "`repeat` puts": ("3.2", "repeat instead of repeat_interleave"),
    '`.float()` turns "blocked"': ("3.2", "float mask of ones"),
    "*Split into heads first": ("3.1", "stacked read as interleaved"),
    "*The biases forgotten*": ("3.1", "no bias at all"),
    "*A module built inside": ("3.1", "a module built inside and loaded"),
    "length_first = nn.MultiheadAttention(8, 2)": ("3.1", "length before batch"),
    "favourite == torch.arange(12)": ("3.3", "share of favourites"),
    "*One gain for all heads*": ("3.4", "one gain for all heads"),
    "*One gain per query*": ("3.4", "one gain per query"),
    "`-(w * w.log()).sum(-1)`": ("3.4", "0 · ln 0"),
    "*Never below 1*": ("3.4", "gain never below 1"),
}
