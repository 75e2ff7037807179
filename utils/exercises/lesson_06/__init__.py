"""Exercises of notebook 06: a block, a baseline, a test for leaks, a loss to repair."""

from utils.exercises.lesson_06 import exercise_1, exercise_2, exercise_3, exercise_4

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import MultiHeadAttention, causal_mask, merge_heads, split_heads
from utils.models import Block, CausalLM
"""

EXERCISES = tuple(
    module.EXERCISE for module in (exercise_1, exercise_2, exercise_3, exercise_4)
)
