"""Says in words what one call did otherwise than another."""

import math
import re

import numpy as np
import torch
from torch import Tensor

from .catalogue import slips
from .running import WHERE

OUTPUT = "your output"
DIFFER = "the values differ: "
CUT_OFF = (
    "none arrives. Does a .detach(), .item(), torch.tensor(), torch.no_grad() or "
    "load_state_dict() (it copies) cut it off?"
)
IN_PART = " Does a .detach() or .data cut a part of it off?"
EDITS = "your function edits its argument "
NO_RETURN = "Is a `return` missing?"
EVIDENT = {  # words of a difference -> what was done
    CUT_OFF: "a gradient cut off",
    IN_PART: "a part of a gradient cut off",
    NO_RETURN: "no return",
    EDITS: "an argument edited in place",
}
UNWANTED = {  # what should not be done -> what to say; {} stands for what was done
    "never ends": "your function had not finished after {} and was stopped.",
    "changes its argument": EDITS + "{} in place; the caller still needs it. Build a "
    "new tensor (x = x - 1 instead of x -= 1), or change a copy: keys = keys.clone(). "
    "A second name or a slice is no copy.",
    "raises": "your function raised {}",
    "in the backward pass": "the values are right, but in the backward pass: {}.",
}


def difference(should: dict, did: dict) -> str:
    """Return in words the first thing that was done otherwise, or ""."""
    for what in dict.fromkeys([*did, *should]):
        if what == WHERE:
            continue
        if what in UNWANTED and what not in should:
            line = f"In {did[WHERE]}" if did.get(WHERE) else ""
            said = UNWANTED[what].format(did[what]), known_error(did[what])[1], line
            return "\n  ".join(filter(None, said))
        if what not in should or what not in did:
            other = next(what for what in should if what not in did)
            return f"your function did not do what it should: {other} {should[other]}."
        words = unlike(should[what], did[what])
        if words and what.startswith("gradient"):
            if not did[what].any():
                words = CUT_OFF
            elif words.startswith(f"{DIFFER}at"):  # it is finite
                words += IN_PART
            return f"the values are right, but the {what} is not: {words}"
        if words:
            return words
    return ""


def known_error(said: str) -> tuple[str, str]:
    """Return (what was done, what the error means), or two empty texts."""
    for each in slips()["errors"]:
        if any(re.search(words, said) for words in each.lines):
            return each.name, each.why
    return "", ""


def evident(said: str, did: dict) -> str:
    """Return what was done where the difference or the error says it itself, or ""."""
    error = did.get("raises") or did.get("in the backward pass") or ""
    names = (name for words, name in EVIDENT.items() if words in said)
    return next(names, known_error(error)[0])


def unlike(wanted, found, where: str = OUTPUT) -> str:
    """Return in words how two values differ, or ""; NaN equals NaN."""

    def other(expected: str) -> str:
        returned = "your function returned" if where == OUTPUT else f"{where} is"
        missing = f" {NO_RETURN}" if found is None else ""
        return f"{returned} {_short(found)}{expected}.{missing}"

    if isinstance(wanted, Tensor):
        if type(found) not in (Tensor, torch.nn.Parameter):
            return other(", not a tensor")
        if found.layout != torch.strided or found.is_nested:
            return f"{where} is a sparse or nested tensor; return an ordinary one."
        for what in ("shape", "device", "dtype"):
            a, b = getattr(wanted, what), getattr(found, what)
            if a != b:
                a, b = (tuple(x) if what == "shape" else x for x in (a, b))
                return f"{where} has {what} {b}; expected {a}."
        return "" if same(wanted, found) else f"{DIFFER}{_where(wanted, found)}"
    if isinstance(wanted, list | tuple | dict):
        kind = dict if isinstance(wanted, dict) else (list, tuple)
        if not isinstance(found, kind) or len(found) != len(wanted):
            return other(f"; expected a {type(wanted).__name__} of {len(wanted)}")
        a, b = (x if kind is dict else dict(enumerate(x, 1)) for x in (wanted, found))
        if a.keys() != b.keys():
            return f"{where} has the keys {_short([*b])}; expected {[*a]}."
        for key in a:
            part = f"part {key!r} of {where}"
            if words := unlike(a[key], b[key], part):
                return f"in {part} {words}" if words.startswith(DIFFER) else words
        return ""
    if isinstance(wanted, bool | int | float) and hasattr(found, "item"):
        found = found.item() if math.prod(found.shape) == 1 else found
    if isinstance(wanted, float) and type(found) in (int, float):
        close = math.isclose(wanted, found, rel_tol=1e-4, abs_tol=1e-6)
        alike = close or (math.isnan(wanted) and math.isnan(found))
    else:  # True is not 1, and 1.0 is not 1
        alike = type(found) is type(wanted) and found == wanted
    return "" if alike else other(f"; expected {_short(wanted)}")


def _short(value) -> str:
    """Return a value as a sentence can hold it."""
    if isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    try:
        text = repr(value)
    except Exception:  # of a class of the learner's, or of a huge int
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one kind are equal up to rounding; NaN equals NaN."""
    tolerance = 1e-4 if a.dtype == torch.float32 else 1e-8  # single is off by 1e-7
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _where(wanted: Tensor, found: Tensor) -> str:
    """Return where two tensors of one shape differ most, in words."""
    if lost := int((found.isnan() & ~wanted.isnan()).sum()):
        return f"{lost} of {found.numel()} are NaN."
    if wanted.dtype == torch.bool:
        return f"{int((wanted != found).sum())} of {found.numel()} are flipped."
    if found.isinf().any() and not wanted.isinf().any():
        return f"{int(found.isinf().sum())} of {found.numel()} are infinite."
    gap = (found.double() - wanted.double()).abs().nan_to_num(math.inf)
    gap = gap.where(~torch.isclose(found, wanted, 0, 0, equal_nan=True), 0)
    at = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    a, b = wanted[at].item(), found[at].item()
    digits = ".3f" if f"{a:.3f}" != f"{b:.3f}" else ".7g"
    a, b = (f"{x:{'' if isinstance(x, int) else digits}}" for x in (a, b))
    return f"at {list(at)} expected {a}, yours {b}."
