"""Grades an answer: says in words what it did otherwise than the printed solution."""

import dis
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

from torch import Tensor

from .catalogue import Exercise
from .compare import DIFFER, difference, unlike
from .naming import name_of
from .running import run, silence, surroundings_kept

SOLVED, NOT_YET, UNTOUCHED = "solved", "not yet", "not attempted yet"


@dataclass(frozen=True)
class Verdict:
    """How an answer fared; mistake: the name of a known one, or None."""

    status: str
    message: str
    mistake: str | None = None
    picture: tuple[Tensor, Tensor] | None = None  # expected, yours

    @property
    def solved(self) -> bool:
        return self.status == SOLVED


@surroundings_kept()
def grade(exercise: Exercise, function: Callable) -> Verdict:
    """Return the verdict on one answer; prints what it prints, draws nothing."""
    if is_untouched(function):
        return Verdict(UNTOUCHED, "Replace the ... and run the cell again.")
    trials, how = exercise.trials(), exercise.gradients
    did = []
    for seed, trial in enumerate(trials):  # no two draw the same random numbers
        did.append(run(function, trial, how, seed))
        if "never ends" in did[-1]:
            break
    should = [
        run(exercise.reference, t, how, i) for i, t in enumerate(trials[: len(did)])
    ]
    said = [difference(a, b) for a, b in zip(should, did)]
    wrong = [i for i, words in enumerate(said) if words]
    with silence():
        for i in wrong[:1] * 2 or range(len(did)):
            if not (said[i] or DIFFER).startswith(DIFFER):
                continue  # what cannot be compared with the solution, nor with itself
            if difference(did[i], run(function, trials[i], how, i)):
                return Verdict(NOT_YET, f"{AGAIN}\n  {tried_with(trials[i])}")
        if not wrong:
            return Verdict(SOLVED, f"Equal to the reference on {len(trials)} inputs.")
        first = wrong[0]
        message = sentence(said[first], should[first], trials[first])
        if "never ends" in did[-1]:
            return Verdict(NOT_YET, message)
        mistake, why = name_of(exercise, trials, should, did)
    if mistake:
        message = f"{why}\n  {message}" if why else message
    elif len(wrong) < len(did):
        message += f"\n  Right on {len(did) - len(wrong)} of {len(did)} inputs."
    return Verdict(NOT_YET, message, mistake, _picture(should[first], did[first]))


AGAIN = (
    "Called again with the same inputs, your function does something else. Does it "
    "keep something from one call to the next, in a global, a default argument or an "
    "attribute?"
)


def is_untouched(function: Callable) -> bool:
    """Return whether a function's body is still nothing but `...` (or `pass`)."""
    for _ in range(100):  # a decorator could wrap itself
        function = getattr(function, "__wrapped__", getattr(function, "func", function))
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    trivial = {"RESUME", "NOP", "CACHE", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    constants = {None, Ellipsis, function.__doc__}
    return all(
        each.opname in trivial
        and (not each.opname.endswith("_CONST") or each.argval in constants)
        for each in dis.get_instructions(code)
    )


# --- words and pictures -----------------------------------------------------------


def sentence(said: str, should: dict, trial: dict) -> str:
    """Return what was wrong on one trial, and on which."""
    functions = [described(x) for x in trial.values() if callable(x)]
    if functions:
        if isinstance(should.get("returns"), bool):
            said = said.replace("your function returned", "your test said")
            said = said.replace("your function", "your test")
        said = f"for {', '.join(functions)} {said}"
    said = said[0].upper() + said[1:]
    alone = len(functions) == len(trial)
    return said if alone else f"{said}\n  {tried_with(trial)}"


def tried_with(trial: dict) -> str:
    said = ", ".join(f"{name} {described(x)}" for name, x in trial.items())
    return f"Tried with {said}."


def described(x) -> str:
    """Return in words what an argument is."""
    if isinstance(x, Tensor):
        said = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
        finite = x[x.isfinite()].abs() if x.is_floating_point() else x[:0].flatten()
        largest = float(finite.max()) if finite.numel() else 0.0
        return f"{said} up to ±{largest:.3g}" if largest > 30 else said
    if callable(x):
        inner = getattr(x, "func", x)  # of a functools.partial
        return f"`{getattr(inner, '__name__', type(inner).__name__)}`"
    text = repr(x)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _picture(should: dict, did: dict) -> tuple[Tensor, Tensor] | None:
    """Return two matrices to draw, where values differ: those that differ most."""
    a, b = should.get("returns"), did.get("returns")
    if "changes its argument" in did or not isinstance(a, Tensor) or not a.dim():
        return None
    if not unlike(a, b).startswith(DIFFER):
        return None
    a, b = (x.detach().double() for x in (a, b))
    a, b = (x[None] if x.dim() == 1 else x.reshape(-1, *x.shape[-2:]) for x in (a, b))
    if a.dim() == 2:
        return a, b
    worst = (a - b).abs().nan_to_num(1e300).flatten(1).amax(1).argmax()
    return a[worst], b[worst]
