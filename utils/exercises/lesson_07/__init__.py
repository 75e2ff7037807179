"""Exercises of notebook 07: a figure that lies, a null, an honest best, words."""

from utils.exercises.lesson_07 import exercise_1, exercise_2, exercise_3, exercise_4

IMPORTS = """\
import math
import torch
from utils.attention import causal_mask
"""

EXERCISES = tuple(
    module.EXERCISE for module in (exercise_1, exercise_2, exercise_3, exercise_4)
)
