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

# What the page shows to be broken -> the exercise and the mistake that reject it.
SHOWN = {
    "raw / raw.sum()": ("1.1", "no exponential"),
    "return scores.exp() / scores.exp().sum(": ("1.1", "no maximum subtracted"),
    "one maximum for the whole tensor": ("1.1", "one maximum for all rows"),
    "`scores -= …` writes": ("1.1", "in-place edit of the scores"),
    "so the axis is gone": ("1.1", "keepdim forgotten"),
    "F.one_hot(best, ": ("1.2", "argmax instead of softmax"),
    "`key.T` turns *all* axes": ("1.2", "other axes of key swapped"),
    "`softmax(dim=1)` is": ("1.2", "softmax over the wrong axis"),
    "`len(query)` is": ("1.2", "len() as d_k"),
    "is not $\\sqrt{d_k}\\,T$": ("1.2", "the temperature under the root"),
    "dividing the *weights* by $T$": ("1.2", "temperature after the softmax"),
    "softmax(dim=-1) * causal": ("1.4", "mask after softmax"),
    "after / after.sum(": ("1.4", "renormalised after the softmax"),
    "tall.softmax(dim=-1) * seen": ("1.3", "mask after softmax"),
    "late / late.sum()": ("1.3", "renormalised after the softmax"),
    "Adding a little to the sum": ("1.3", "renormalised after the softmax"),
    "scaled_scores(query, key) + causal.float()": ("1.4", "mask added as ones"),
    "a float mask of zeros and ones, *added*": ("1.3", "mask added as ones"),
    "def fill_inf": ("1.3", "-inf where nothing may be read"),
    "def fill_billion": ("1.3", "−1e9 where nothing may be read"),
    "*A large number instead of −inf*": ("1.3", "a fill that is not low enough"),
    "def paint_output": ("1.3", "NaN painted over"),
    "def paint_added": ("1.3", "NaN painted over"),
    "def paint_filled": ("1.3", "NaN painted over"),
    "`masked_fill(mask, -inf)` hides": ("1.3", "inverted mask"),
    "`scores[~mask] = -inf` does not": ("1.3", "scores indexed with the mask"),
    "is_causal=True": ("1.4", "upper-left alignment"),
    "`tril()` without `S - L`": ("1.4", "upper-left alignment"),
    "`torch.triu(scores, 1).bool()`": ("1.4", "zero scores used as a mask"),
    "*Only the values are changed*": ("1.5", "the keys not changed"),
    "*Only the last word is changed*": ("1.5", "only one place changed"),
    "*The words after t are shuffled*": ("1.5", "the future only shuffled"),
    "*The later words are cut off*": ("1.5", "later words cut off"),
}
