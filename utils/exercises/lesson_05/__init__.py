"""Exercises of notebook 05: ALiBi, T5's buckets, a rotation, its test, its cache."""

from utils.exercises.lesson_05 import (
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
from utils.attention import causal_mask, scaled_dot_product_attention
"""

EXERCISES = tuple(
    module.EXERCISE
    for module in (exercise_1, exercise_2, exercise_3, exercise_4, exercise_5)
)

SHOWN = {  # broken on the page -> the exercise that rejects it, by this name
    '"sign flipped": -ALiBi(8).bias(16, 16)': ("5.1", "distance rewarded"),
    "*The formula $2^{-8h/n}$ for every $n$*": ("5.1", "slopes of the paper's text"),
    "*Sorted slopes*": ("5.1", "slopes sorted"),
    "*Queries from 0*": ("5.1", "queries at the start of the keys"),
    "*Query minus key*": ("5.2", "the sign swapped"),
    "*Rounded to the nearest*": ("5.2", "rounded to the nearest"),
    "*No cap*": ("5.2", "no last bucket"),
    "*Turned backwards*": ("5.3", "turned backwards"),
    "*Half the exponent*": ("5.3", "half the exponent"),
    "*Positions from 0*": ("5.3", "positions from 0"),
    "def mixed(x, positions)": ("5.3", "two layouts mixed"),
    "*Lengths are kept*": ("5.4", "lengths only"),
    "*Moved together only*": ("5.4", "moved together only"),
    "*Moved a little*": ("5.4", "moved too little"),
    "def broken_step(": ("5.5", "positions restart at 0"),
    "`kept_keys.shape[-2] + torch.arange(…)`": (
        "5.5",
        "positions from the keys kept",
    ),
    "*All new words at `seen`*": ("5.5", "all new tokens at one place"),
    "*Only the queries go on counting*": ("5.5", "new keys restart at 0"),
    "*The kept keys turned again*": ("5.5", "kept keys turned again"),
}
