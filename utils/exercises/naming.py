"""Finds which known mistake a wrong answer is.

A name is a claim, so it has to be earned: a known mistake did exactly the same on every
input; or the difference itself says it; or the numbers are right but for their form; or
on most inputs that are wrong, the first among them, one mistake alone returns the same.
"""

import itertools
import re
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from .catalogue import Exercise
from .compare import CUT_OFF, EDITS, NO_RETURN, difference, same, unlike
from .running import run

EVIDENT = {  # words of every difference -> what was done
    re.escape(CUT_OFF): "a gradient cut off",
    re.escape(NO_RETURN): "no return",
    EDITS: "an argument edited in place",
    "A tensor was overwritten": "a tensor overwritten that the gradient needs",
    r"x\[mask\] = ... does not": "assignment under a mask that should broadcast",
    "dtype=x.dtype of|with dtype=x.dtype": "two precisions mixed",
    "~ turns True": "a mask of numbers",
    "take .values, or amax": "values and places taken for a tensor",
    "need one True or False": "many truths where one is needed",
    "assert_close raises": "an assertion where an answer is wanted",
    "A list cannot be indexed": "a list taken for a tensor",
    "/ gives a float": "a size or an index that is no whole number",
    "A method is called": "a method without its brackets",
    "returns several things": "a tuple taken for a tensor",
    "view does not": "view of transposed memory",
}
FORMS = {  # name -> (what to say, right outputs that this could be made of)
    "more returned than was asked for": (
        "Its first part is right: return only that.",
        lambda x, y: x[:1] if isinstance(x, tuple) else []),
    "another dtype": (
        "Your numbers are right, but not their type.",
        lambda x, y: [x.to(y.dtype)] if y.dtype != torch.bool else []),
    "axes in another order": (
        "Your numbers are right, but their axes stand in another order.",
        lambda x, y: (x.permute(p) for p in itertools.permutations(range(x.dim())))
        if x.dim() <= 4 else []),
    "right numbers in another shape": (
        "Your numbers are right, and their order, but not their shape.",
        lambda x, y: [x.reshape(y.shape)]),
    "True and False exchanged": (
        "True stands where False should.",
        lambda x, y: [~x] if x.dtype == torch.bool else []),
    "right but for a factor": (
        "Every number is the expected one times the same factor.",
        lambda x, y: [x * ((x * y).sum() / (x * x).sum())] if x.numel() > 1 else []),
    "right in single precision only": (
        "In double precision only the first digits are right. Is something done in "
        "single precision (.float(), a new tensor without dtype=...), or a small "
        "number added?",
        lambda x, y: [y] if _nearly(x, y) else []),
}  # fmt: skip


def name_of(
    exercise: Exercise, trials: list[dict], should: list[dict], did: list[dict]
) -> tuple[str | None, str]:
    """Return (the mistake, the sentence that claims it), or (None, "")."""

    @cache
    def known(form: int, i: int) -> dict:
        function = exercise.forms[form].function
        return run(function, trials[i], exercise.gradients, i)

    said = [difference(a, b) for a, b in zip(should, did)]
    wrong = [i for i, words in enumerate(said) if words]
    order = sorted(range(len(did)), key=lambda i: not said[i])  # wrong: soonest told
    for form, each in enumerate(exercise.forms):
        if not any(difference(known(form, i), did[i]) for i in order):
            claim = f"Your answer equals a known mistake, {each.name!r}."
            return each.name, f"{claim} {each.why}"
    for words, name in EVIDENT.items():
        if all(re.search(words, said[i]) for i in wrong):
            return name, ""
    for name, (claim, change) in FORMS.items():
        if all(_becomes(change, should[i], did[i]) for i in wrong):
            return name, claim
    return _nearest(exercise, known, wrong, should, did)


def _nearest(
    exercise: Exercise, known: Callable, wrong: list[int], should, did
) -> tuple[str | None, str]:
    """Return the one mistake whose outputs are the answer's on most wrong inputs."""
    votes = {}
    for form, each in enumerate(exercise.forms):
        if not _same_output(known(form, wrong[0]), did[wrong[0]]):
            continue  # nearly, but not on the input that is shown
        if any(_same_output(should[i], known(form, i)) for i in wrong):
            continue  # right where the answer is wrong
        agree = sum(_same_output(known(form, i), did[i]) for i in wrong)
        votes[each.name] = max((agree, each.why), votes.get(each.name, (0, "")))
    most = max(votes.values(), default=(0, ""))[0]
    best = [name for name in votes if votes[name][0] == most]
    if len(best) != 1 or 2 * most < len(wrong):
        return None, ""
    claim = f"On {most} of the {len(wrong)} inputs on which it is wrong, its output is "
    return best[0], f"{claim}that of a known mistake, {best[0]!r}. {votes[best[0]][1]}"


def _becomes(change: Callable, should: dict, did: dict) -> bool:
    """Whether a wrong output becomes right by the change."""
    try:
        x, y = did["returns"], should["returns"]
        return bool(unlike(y, x)) and any(not unlike(y, each) for each in change(x, y))
    except (KeyError, AttributeError, RuntimeError, TypeError):
        return False


def _nearly(x: Tensor, y: Tensor) -> bool:
    single = x.dtype == y.dtype == torch.float64
    return single and torch.allclose(x, y, rtol=1e-4, atol=1e-4)


def _same_output(one: dict, other: dict) -> bool:
    """Whether both return the same numbers, NaN left out."""
    if "returns" not in one or "returns" not in other:
        return False
    a, b = one["returns"], other["returns"]
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return not unlike(a, b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    number = ~(a.isnan() | b.isnan())
    return bool(2 * number.sum() > a.numel()) and same(a[number], b[number])
