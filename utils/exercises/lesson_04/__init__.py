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

SHOWN = {  # what the page shows to be broken -> the exercise and the mistake
    "(2 * feature / 32)": ("4.1", "a frequency for every feature"),
    "[:, 1::2] = torch.randn(50, 4).cos()": ("4.1", "cosines do not fit an odd size"),
    "`table[:, 1::2] = angles.cos()`": ("4.1", "cosines do not fit an odd size"),
    "return number(length, dim) / length": ("4.1", "divided by the length"),
    "*Two halves*": ("4.1", "in two halves"),
    "*The exponent doubled twice*": ("4.1", "exponent doubled twice"),
    "*The minus at the other sine*": ("4.2", "the other way"),
    "*A diagonal of cosines*": ("4.2", "cosines alone"),
    "`my_shift(f, 1) * steps`": ("4.2", "steps times one step"),
    "class WrongAxis(PositionScheme)": ("4.3", "one sentence only"),
    "*One sentence*": ("4.3", "one sentence only"),
    "*Zeros for x*": ("4.3", "zeros only"),
    "*`torch.equal`* refuses": ("4.3", "refuses right ones"),
    "*Neighbours only*": ("4.3", "distant places not compared"),
    "*The bias in every part*": ("4.4", "the bias in every part"),
    "*Softmax of every part*": ("4.4", "softmax of every part"),
}
