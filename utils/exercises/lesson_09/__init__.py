"""Exercises of notebook 09: words from pieces, a choice tested, an interval, others."""

from utils.exercises.lesson_09 import exercise_1, exercise_2, exercise_3, exercise_4

IMPORTS = """\
import torch
import torch.nn.functional as F
"""

EXERCISES = tuple(
    module.EXERCISE for module in (exercise_1, exercise_2, exercise_3, exercise_4)
)
