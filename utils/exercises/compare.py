"""Says in words what one call did otherwise than another."""

import math
import re

import numpy as np
import torch
from torch import Tensor

from .catalogue import slips

WHERE = "(in)"  # the learner's own line in which an error arose
OUTPUT = "your output"
DIFFER = "the values differ: "
UNWANTED = {  # what should not be done -> what to say; {} stands for what was done
    "never ends": "your function had not finished after {} and was stopped.",
    "changes its argument": "your function edits its argument {} in place.",
    "leaves a layer changed": "your function does not leave {} as it was.",
    "raises": "your function raised {}",
    "in the backward pass": "the values are right, but in the backward pass: {}.",
}


def difference(should: dict, did: dict) -> str:
    """Return in words the first thing that was done otherwise, or ""."""
    for what in dict.fromkeys([*did, *should]):
        if what == WHERE:
            continue
        if what in UNWANTED and what not in should:
            line = f"\n  In {did[WHERE]}" if did.get(WHERE) else ""
            return UNWANTED[what].format(did[what]) + line
        if what not in should or what not in did:
            other = next(what for what in should if what not in did)
            return f"your function did not do what it should: {other} {should[other]}."
        words = unlike(should[what], did[what])
        if words and what.startswith("gradient"):
            words = words if did[what].any() else "none arrives."
            return f"the values are right, but the {what} is not: {words}"
        if words:
            return words
    return ""


def meaning(said: str) -> tuple[str, str]:
    """Return (the mistake, what it means) if a difference says it, or empty texts."""
    for each in slips()["what is said"]:
        if re.search(each.form, said):
            return each.name, each.why
    return "", ""


def unlike(wanted, found, where: str = OUTPUT) -> str:
    """Return in words how two values differ, or ""; NaN equals NaN."""
    if isinstance(wanted, bool | int | float) and hasattr(found, "item"):
        found = found.item() if math.prod(found.shape) == 1 else found
    expected, alike = "", False
    if isinstance(wanted, Tensor):
        if type(found) in (Tensor, torch.nn.Parameter):
            return _unlike_tensors(wanted, found, where)
    elif isinstance(wanted, list | tuple | dict):
        kind = dict if isinstance(wanted, dict) else (list, tuple)
        if isinstance(found, kind) and len(found) == len(wanted):
            return _unlike_parts(wanted, found, where)
        expected = f"a {type(wanted).__name__} of {len(wanted)}"
    elif isinstance(wanted, torch.nn.Module) and type(found) is type(wanted):
        return unlike(_inside(wanted), _inside(found), where)
    elif isinstance(wanted, float) and type(found) in (int, float):
        close = math.isclose(wanted, found, rel_tol=1e-4, abs_tol=1e-6)
        alike = close or (math.isnan(wanted) and math.isnan(found))
    else:  # True is not 1, and 1.0 is not 1
        alike = type(found) is type(wanted) and found == wanted
    if alike:
        return ""
    returned = "your function returned" if where == OUTPUT else f"{where} is"
    if isinstance(wanted, float) and type(found) is float:
        expected, found = told_apart(wanted, found)
        return f"{returned} {found}; expected {expected}."
    return f"{returned} {_short(found)}; expected {expected or _short(wanted)}."


def _inside(module: torch.nn.Module) -> list:
    """Return a module's weights and settings, its hooks, and what it does if called."""
    settings = [
        (part.training, getattr(part.forward, "__func__", part.forward))
        + (type(part), len(part._forward_pre_hooks), len(part._forward_hooks))
        for part in module.modules()
    ]
    settings += [x.requires_grad for x in module.parameters()]
    return [settings, module.state_dict()]


def _unlike_parts(wanted, found, where: str) -> str:
    """Return how two dicts, or two sequences of one length, differ, or ""."""
    if not isinstance(wanted, dict):
        wanted, found = dict(enumerate(wanted, 1)), dict(enumerate(found, 1))
    if wanted.keys() != found.keys():
        return f"{where} has the keys {_short([*found])}; expected {[*wanted]}."
    for key in wanted:
        part = f"part {key!r} of {where}"
        if words := unlike(wanted[key], found[key], part):
            return f"in {part} {words}" if words.startswith(DIFFER) else words
    return ""


def _unlike_tensors(wanted: Tensor, found: Tensor, where: str) -> str:
    """Return how two tensors differ, and where most, or ""."""
    if found.layout != torch.strided or found.is_nested:
        return f"{where} is a sparse or nested tensor; return an ordinary one."
    for what in ("shape", "device", "dtype"):
        a, b = getattr(wanted, what), getattr(found, what)
        if a != b:
            a, b = (tuple(x) if what == "shape" else x for x in (a, b))
            return f"{where} has {what} {b}; expected {a}."
    if same(wanted, found):
        return ""
    if lost := int((wanted.isfinite() & ~found.isfinite()).sum()):
        return f"{DIFFER}{lost} of {found.numel()} are NaN or infinite."
    gap = (found.double() - wanted.double()).abs().nan_to_num(math.inf)
    gap = gap.where(~torch.isclose(found, wanted, 0, 0, equal_nan=True), 0)
    at = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    a, b = wanted[at].item(), found[at].item()
    if isinstance(a, float):
        a, b = told_apart(a, b)
    return f"{DIFFER}at {list(at)} expected {a}, yours {b}."


def told_apart(a: float, b: float) -> tuple[str, str]:
    """Return two numbers with as many digits as tell them apart; -0 is 0."""
    a, b = a + 0.0, b + 0.0
    digits = next(n for n in (4, 7, 10, 17) if f"{a:.{n}g}" != f"{b:.{n}g}")
    return f"{a:.{digits}g}", f"{b:.{digits}g}"


def same(a: Tensor, b: Tensor, tolerance: float | None = None) -> bool:
    """Whether two tensors are equal, by default up to rounding; NaN equals NaN.

    Small numbers beside large ones are differences of such, rounded as they were: the
    tolerance grows with the largest number from 1 to 30. (Scores of 1e10 hide no 1.)
    """
    if tolerance is None:
        tolerance = 1e-4 if a.dtype == torch.float32 else 1e-8  # single: off by 1e-7
    size = 1.0
    if a.is_floating_point() and (finite := a.detach()[a.isfinite()].abs()).numel():
        size = finite.amax().clamp(1, 30).item()
    return torch.allclose(a, b, tolerance, tolerance * size, equal_nan=True)


def _short(value) -> str:
    """Return a value as a sentence can hold it."""
    if isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    try:
        text = repr(value)
    except Exception:  # of a class of the learner's, or of a huge int
        text = f"a {type(value).__name__}"
    if isinstance(value, list | tuple | dict) and "tensor(" in text:
        text = f"a {type(value).__name__} of {len(value)}"
    elif " at 0x" in text:  # a function that was not called, a generator
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
