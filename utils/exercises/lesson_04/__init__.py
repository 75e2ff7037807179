"""Exercises of notebook 04: sines, the shift, a test of encodings, parts of scores."""

from utils.exercises.lesson_04 import exercise_1, exercise_2, exercise_3, exercise_4

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
"""

EXERCISES = tuple(
    module.EXERCISE for module in (exercise_1, exercise_2, exercise_3, exercise_4)
)
