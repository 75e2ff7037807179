"""Exercises of notebook 01: softmax, attention, a mask, the newest words, a test.

Each exercise is a reference, its trials and its known mistakes. A mistake's docstring
is what the learner reads; where one mistake has several forms, the first one speaks."""

from utils.exercises.lesson_01 import (
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
"""

EXERCISES = tuple(
    module.EXERCISE
    for module in (exercise_1, exercise_2, exercise_3, exercise_4, exercise_5)
)
