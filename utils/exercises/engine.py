"""Runs an answer to an exercise, and names the mistake that it equals.

An answer is judged by everything it did: what it returned or raised, which arguments it
edited, and the gradients it passes back. A mistake is recognised when a known-wrong
function did exactly the same on every input.

running.py    runs a function on a trial and records what it did
compare.py    says what one run did otherwise than another
drawing.py    draws two outputs side by side, describes a trial
"""

import dis
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from utils.exercises.compare import alike, difference
from utils.exercises.drawing import describe, draw, functions_of, picture
from utils.exercises.running import Run, TooLong, run

__all__ = ["Exercise", "Verdict", "draw", "grade", "is_untouched", "randn"]

SOLVED, NOT_YET, UNTOUCHED = "solved", "not yet", "not attempted yet"


@dataclass(frozen=True)
class Exercise:
    """One exercise, as data.

    reference: the right answer. It returns a tensor, a bool, a number, a string, None,
        or tuples, lists and dicts of these, which are compared by value.
    inputs(dtype): yields the arguments of each trial, as dicts by parameter name.
        Arguments are copied for every call; functions are passed through, and
        messages call them by their `__name__`.
    mistakes: what the learner did -> a function that does it, and whose docstring says
        why it is wrong; or several functions, where one mistake has several forms.
    gradients: whether an answer must pass gradients on.
    """

    name: str
    title: str
    reference: Callable
    inputs: Callable[[torch.dtype], Iterable[dict]]
    mistakes: dict[str, Callable | tuple[Callable, ...]]
    gradients: bool = True

    def forms(self) -> Iterable[tuple[str, str, Callable]]:
        """Yield (mistake, why it is wrong, function), for each form of each mistake."""
        for mistake, functions in self.mistakes.items():
            functions = functions if isinstance(functions, tuple) else (functions,)
            for function in functions:
                yield mistake, functions[0].__doc__, function


@dataclass(frozen=True)
class Verdict:
    """How an answer fared; `mistake` is a key of Exercise.mistakes, or None."""

    status: str
    message: str
    mistake: str | None = None
    picture: tuple[Tensor, Tensor] | None = None  # expected, yours

    @property
    def solved(self) -> bool:
        return self.status == SOLVED


def randn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Return normal random numbers for a trial, the same ones in every precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def grade(exercise: Exercise, function: Callable) -> Verdict:
    """Return the verdict on one answer; prints and draws nothing."""
    if is_untouched(function):
        return Verdict(UNTOUCHED, "Replace the ... and run the cell again.")
    trials = [t for d in (torch.float32, torch.float64) for t in exercise.inputs(d)]
    gradients = exercise.gradients
    expected = [run(exercise.reference, trial, gradients) for trial in trials]
    yours = _runs(function, trials, gradients)
    pairs = list(zip(trials, expected, yours))  # fewer, if an answer had no end
    wrong = [pair for pair in pairs if difference(*pair[1:]) is not None]
    if not wrong:
        return Verdict(SOLVED, f"Equal to the reference on {len(trials)} inputs.")

    message, drawn = _sentence(*wrong[0]), picture(*wrong[0][1:])
    if isinstance(yours[-1].error, TooLong):
        return Verdict(NOT_YET, message)
    for mistake, why, mistaken in exercise.forms():
        if all(alike(run(mistaken, t, gradients), did) for t, _, did in pairs):
            named = f"Your answer equals a known mistake, {mistake!r}. {why}"
            return Verdict(NOT_YET, f"{named}\n  {message}", mistake, drawn)
    return Verdict(NOT_YET, message, None, drawn)


def _runs(function: Callable, trials: list[dict], gradients: bool) -> list[Run]:
    """Return what the answer did on each trial, up to one that it never finished."""
    done = []
    for trial in trials:
        done.append(run(function, trial, gradients))
        if isinstance(done[-1].error, TooLong):
            break
    return done


def _sentence(trial: dict, expected: Run, yours: Run) -> str:
    """Return what was wrong on one trial, and on which."""
    said, functions = difference(expected, yours), functions_of(trial)
    if functions:
        if isinstance(expected.output, bool):
            said = said.replace("your function returned", "your test said")
            said = said.replace("your function", "your test")
        said = f"for {', '.join(functions)} {said}"
    said = f"{said[0].upper()}{said[1:]}"
    if len(functions) == len(trial):
        return said
    return f"{said}\n  Tried with {describe(trial)}."


def is_untouched(function: Callable) -> bool:
    """Return whether a function's body is still nothing but `...` (or `pass`)."""
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        partial = isinstance(function, functools.partial)
        function = function.func if partial else inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    trivial = {"RESUME", "NOP", "CACHE", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    constants = {None, Ellipsis, function.__doc__}
    instructions = list(dis.get_instructions(code))
    return all(i.opname in trivial for i in instructions) and all(
        i.argval in constants for i in instructions if i.opname.endswith("_CONST")
    )
