"""Exercises of notebook 08: two heads by hand, an impostor, backups, importance."""

from utils.exercises.lesson_08 import (
    exercise_1,
    exercise_2,
    exercise_3,
    exercise_4,
    exercise_5,
)

IMPORTS = """\
import torch
import torch.nn.functional as F
from utils.attention import causal_mask
from utils.data import repeated_tokens
from utils.heads import induction, previous_token
"""

EXERCISES = tuple(
    module.EXERCISE
    for module in (exercise_1, exercise_2, exercise_3, exercise_4, exercise_5)
)
