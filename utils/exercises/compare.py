"""Says in words what one call did otherwise than another."""

import math
import re

import numpy as np
import torch
from torch import Tensor

from .catalogue import slips
from .running import WHERE

DIFFER = "the values differ: "


def difference(should: dict, did: dict) -> str:
    """Return in words the first thing that was done otherwise, or ""."""
    for what in dict.fromkeys([*did, *should]):
        if what == WHERE:
            continue
        if what not in should and isinstance(did[what], str):
            return _done_in_vain(what, did)
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


CUT_OFF = (
    "none arrives. Does a .detach(), .item(), torch.tensor(), torch.no_grad() or "
    "load_state_dict() (it copies) cut it off?"
)
IN_PART = " Does a .detach() or .data cut a part of it off?"
EDITS = "your function edits its argument "
NO_RETURN = "Is a `return` missing?"


def _done_in_vain(what: str, did: dict) -> str:
    """Return in words what was done that should not be: an error, an edit."""
    line = f"\n  In {did[WHERE]}" if did.get(WHERE) else ""
    if what == "never ends":
        return (
            f"your function had not finished after {did[what]} and was stopped.{line}"
        )
    if what == "changes its argument":
        names = ", ".join(f"`{name}`" for name in did[what].split(", "))
        return (
            f"{EDITS}{names} in place; the caller still needs it. Build a new tensor "
            "(x = x - 1 instead of x -= 1), or change a copy: keys = keys.clone(). A "
            "second name or a slice is no copy."
        )
    hint = f"\n  {known_error(did[what])[1]}".rstrip()
    if what == "raises":
        return f"your function raised {did[what]}{hint}{line}"
    return f"the values are right, but {what}: {did[what]}.{hint}{line}"


def known_error(said: str) -> tuple[str, str]:
    """Return (what was done, what the error means), or two empty texts."""
    known = slips()["errors"][0]
    for each in known:
        if any(re.search(words, said) for _, words in each.lines):
            return each.name, each.why
    return "", ""


def unlike(wanted, found, where: str = "your output") -> str:
    """Return in words how two values differ, or ""; NaN equals NaN."""
    if isinstance(wanted, Tensor):
        return _unlike_tensors(wanted, found, where)
    returned = "your function returned" if where == "your output" else f"{where} is"
    missing = f" {NO_RETURN}" if found is None else ""
    if isinstance(wanted, list | tuple | dict):
        kind = dict if isinstance(wanted, dict) else (list, tuple)
        if not isinstance(found, kind) or len(found) != len(wanted):
            given = _short(found)
            expected = f"a {type(wanted).__name__} of {len(wanted)}"
            return f"{returned} {given}; expected {expected}.{missing}"
        if isinstance(wanted, dict) and set(wanted) != set(found):
            return f"{returned} the keys {_short([*found])}; expected {[*wanted]}."
        for key in wanted if isinstance(wanted, dict) else range(len(wanted)):
            named = repr(key) if isinstance(wanted, dict) else key + 1
            part = f"part {named} of {where}"
            if words := unlike(wanted[key], found[key], part):
                return f"in {part} {words}" if words.startswith(DIFFER) else words
        return ""
    if isinstance(wanted, bool | int | float) and hasattr(found, "item"):
        found = found.item() if math.prod(found.shape) == 1 else found
    if isinstance(wanted, float) and type(found) in (int, float):
        close = math.isclose(wanted, found, rel_tol=1e-4, abs_tol=1e-6)
        same = close or (math.isnan(wanted) and math.isnan(found))
    else:  # True is not 1, and 1.0 is not 1
        same = type(found) is type(wanted) and found == wanted
    said = f"{returned} {_short(found)}; expected {_short(wanted)}.{missing}"
    return "" if same else said


def _short(value) -> str:
    """Return a value as a sentence can hold it."""
    if isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    try:
        text = repr(value)
    except Exception:  # of a class of the learner's, or of a huge int
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unlike_tensors(wanted: Tensor, found, where: str) -> str:
    if type(found) not in (Tensor, torch.nn.Parameter):
        returned = "your function returned" if where == "your output" else f"{where} is"
        more = f" {NO_RETURN}" if found is None else ""
        return f"{returned} {_short(found)}, not a tensor.{more}"
    if found.layout != torch.strided or found.is_nested:
        return f"{where} is a sparse or nested tensor; return an ordinary one."
    for what in ("shape", "device", "dtype"):
        a, b = getattr(wanted, what), getattr(found, what)
        if a != b:
            a, b = (tuple(x) if what == "shape" else x for x in (a, b))
            return f"{where} has {what} {b}; expected {a}."
    return "" if same(wanted, found) else f"{DIFFER}{_where(wanted, found)}"


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
    equal = (found == wanted) | (found.isnan() & wanted.isnan())  # inf - inf is NaN
    gap = (found.double() - wanted.double()).abs().nan_to_num(math.inf)
    gap = gap.masked_fill(equal, 0.0)
    at = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    a, b = wanted[at].item(), found[at].item()
    digits = ".3f" if f"{a:.3f}" != f"{b:.3f}" else ".7g"
    a, b = (f"{x:{'' if isinstance(x, int) else digits}}" for x in (a, b))
    return f"at {list(at)} expected {a}, yours {b}."
