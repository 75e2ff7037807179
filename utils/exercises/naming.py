"""Finds which known mistake a wrong answer is.

A name is a claim, so it has to be earned: a known mistake did exactly the same on every
input; or the difference itself says it; or the numbers are right but for their form; or
on most inputs that are wrong, the first among them, one mistake alone returns the same.
"""

import itertools
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from .catalogue import Exercise
from .compare import (
    CUT_OFF,
    DIFFER,
    EDITS,
    IN_PART,
    NO_RETURN,
    difference,
    known_error,
    same,
    unlike,
)
from .running import run, tensors

EVIDENT = {  # words of every difference -> what was done
    CUT_OFF: "a gradient cut off",
    IN_PART: "a part of a gradient cut off",
    NO_RETURN: "no return",
    EDITS: "an argument edited in place",
}
FORMS = {  # name -> (what to say, right outputs that this could be made of)
    "more returned than was asked for": (
        "Its first part is right: return only that.",
        lambda x, y: x[:1] if isinstance(x, tuple) else []),
    "another dtype": (
        "Your numbers are right, but not their type.",
        lambda x, y: [y] if x.dtype != y.dtype and _roughly(x, y, 1e-2) else []),
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
        lambda x, y: [y] if y.dtype == torch.float64 and _roughly(x, y, 1e-4) else []),
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
    evident = {_evident(said[i], did[i]) for i in wrong}
    if len(evident) == 1 and any(evident):
        return evident.pop(), ""
    for name, (claim, change) in FORMS.items():
        if all(_becomes(change, should[i], did[i]) for i in wrong):
            return name, claim
    return _nearest(exercise, known, wrong, should, did)


def _evident(said: str, did: dict) -> str:
    """Return what was done, where the difference or the error says it itself."""
    error = did.get("raises") or did.get("in the backward pass") or ""
    names = (name for words, name in EVIDENT.items() if words in said)
    return next(names, known_error(error)[0])


def _nearest(
    exercise: Exercise, known: Callable, wrong: list[int], should, did
) -> tuple[str | None, str]:
    """Return the one mistake whose outputs are the answer's on most wrong inputs."""
    votes = {}
    if not any(True for each in should for _ in tensors(each.get("returns"))):
        return None, ""  # to say yes to the same function proves no mistake
    for form, each in enumerate(exercise.forms):
        if not _same_output(known(form, wrong[0]), did[wrong[0]]):
            continue  # nearly, but not on the input that is shown
        if not all(difference(should[i], known(form, i)) for i in wrong):
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
    except (LookupError, AttributeError, RuntimeError, TypeError, ValueError):
        return False


def _roughly(x: Tensor, y: Tensor, tolerance: float) -> bool:
    if y.dtype == torch.bool:
        return False
    return torch.allclose(x.to(y.dtype), y, tolerance, tolerance, equal_nan=True)


def _same_output(one: dict, other: dict) -> bool:
    """Whether both return the same numbers, NaN left out."""
    if "returns" not in one or "returns" not in other:
        return False
    a, b = one["returns"], other["returns"]
    said = unlike(a, b)
    if not isinstance(a, Tensor) or (said and not said.startswith(DIFFER)):
        return not said
    number = ~(a.isnan() | b.isnan())
    return bool(2 * number.sum() > a.numel()) and same(a[number], b[number])
