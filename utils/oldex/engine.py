"""Grades an answer to an exercise, and names the mistake that it equals.

An answer is judged by everything it did: what it returned or raised, which arguments it
edited, the gradients it passes back, and whether it does the same a second time.

running.py    runs a function on a trial and records what it did
compare.py    says what one run did otherwise than another
naming.py     finds the known mistake
slips.py      edits of an answer that prove what was forgotten
drawing.py    draws two outputs side by side, describes a trial
unnamed.py    a function in a trial whose name only messages know
"""

import dis
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from utils.oldex.compare import VALUES_DIFFER, alike
from utils.oldex.drawing import describe, draw, functions_of, picture
from utils.oldex.naming import Trial, name_of
from utils.oldex.running import (
    WITHOUT_NAN,
    Run,
    TooLong,
    run,
    silence,
    surroundings_kept,
)

__all__ = ["WITHOUT_NAN", "Exercise", "Verdict", "draw", "grade", "randn"]

SOLVED, NOT_YET, UNTOUCHED = "solved", "not yet", "not attempted yet"


@dataclass(frozen=True)
class Mistake:
    """A known mistake: its name, why it is wrong, and a function that makes it."""

    name: str
    why: str
    function: Callable


@dataclass(frozen=True)
class Exercise:
    """One exercise, as data; its known mistakes are added by `wrong`.

    reference: the right answer. It returns a tensor, a bool, a number, a string, None,
        or tuples, lists and dicts of these, which are compared by value.
    inputs(dtype): yields the arguments of each trial, as dicts by parameter name.
        Arguments are copied for every call; functions are passed through, and
        messages call them by their `__name__`.
    gradients: whether an answer must pass gradients on; WITHOUT_NAN: and let no NaN
        arise on the way to them, even one that is thrown away.
    """

    name: str
    title: str
    reference: Callable
    inputs: Callable[[torch.dtype], Iterable[dict]]
    gradients: bool | str = True
    known: list[Mistake] = field(default_factory=list)

    def wrong(self, name: str, why: str = "", *functions: Callable) -> Callable:
        """Note a known mistake; a decorator, unless its functions are given.

            @exercise.wrong("no scale", "Divide the scores by the root of d_k.")
            def _(query, key, value): ...

            exercise.wrong("no scale", lambda query, key, value: ...)  # another form

        The name says what was done, `why` what is wrong with it; a further form of the
        same mistake needs no `why` (see the second call: the function comes first).
        """
        if callable(why):
            why, functions = "", (why, *functions)
        why = why or next((m.why for m in self.known if m.name == name), "")
        if not why:
            raise ValueError(f"{self.name} {name!r}: say why it is wrong.")

        def note(function: Callable) -> Callable:
            self.known.append(Mistake(name, why, function))
            return function

        for function in functions:
            note(function)
        return note

    def names(self) -> list[str]:
        """Return the names of the known mistakes, each once, in their order."""
        return list(dict.fromkeys(mistake.name for mistake in self.known))

    def forms(self) -> Iterable[tuple[str, str, Callable]]:
        """Yield (mistake, why it is wrong, function), for each form of each mistake."""
        for mistake in self.known:
            yield mistake.name, mistake.why, mistake.function

    def trials(self) -> list[dict]:
        """Return the arguments of each trial, in single and in double precision."""
        return [t for d in (torch.float32, torch.float64) for t in self.inputs(d)]


@dataclass(frozen=True)
class Verdict:
    """How an answer fared.

    mistake: the name of a known one, the name of a slip that is the same in every
        exercise (naming.py, slips.py), or None.
    """

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


@surroundings_kept()
def grade(exercise: Exercise, function: Callable) -> Verdict:
    """Return the verdict on one answer; prints and draws nothing."""
    if is_untouched(function):
        return Verdict(UNTOUCHED, "Replace the ... and run the cell again.")
    trials, gradients = exercise.trials(), exercise.gradients
    should = _runs(exercise.reference, trials, gradients)
    did = _runs(function, trials, gradients)  # fewer, if an answer had no end
    tried = [Trial(*each) for each in zip(trials, should, did, range(len(did)))]
    wrong = [trial for trial in tried if trial.said is not None]
    again = _second_thoughts(function, wrong[:1] * 2 or tried, gradients)
    if again:
        return Verdict(NOT_YET, again)
    if not wrong:
        return Verdict(SOLVED, f"Equal to the reference on {len(trials)} inputs.")

    message, drawn = _sentence(wrong[0]), picture(wrong[0].should, wrong[0].did)
    if isinstance(did[-1].error, TooLong):
        return Verdict(NOT_YET, message)
    named = name_of(function, tried, exercise.forms(), gradients, exercise.reference)
    if named is None:
        if len(wrong) < len(tried):
            message += "\n  " if "\n  In " in message else " "  # after a line of code
            message += f"Right on {len(tried) - len(wrong)} of {len(tried)} inputs."
        return Verdict(NOT_YET, message, None, drawn)
    message = f"{named.sentence}\n  {message}" if named.sentence else message
    return Verdict(NOT_YET, message, named.mistake, drawn)


def _runs(function: Callable, trials: list[dict], gradients: bool | str) -> list[Run]:
    """Return what the answer did on each trial, up to one that it never finished."""
    done = []
    for seed, trial in enumerate(trials):  # no two draw the same random numbers
        done.append(run(function, trial, gradients, seed))
        if isinstance(done[-1].error, TooLong):
            break
    return done


def _second_thoughts(
    function: Callable, tried: list[Trial], gradients: bool | str
) -> str:
    """Return what a second round on the same inputs did otherwise, or ""."""
    with silence():
        for trial in tried:
            if not (trial.said or VALUES_DIFFER).startswith(VALUES_DIFFER):
                continue  # what cannot be compared with the reference, nor with itself
            again = run(function, trial.inputs, gradients, trial.seed)
            if not alike(trial.did, again):
                return (
                    "Called again with the same inputs, your function does something "
                    "else. Does it keep something from one call to the next, in a "
                    f"global, a default argument or an attribute?\n  {_tried(trial)}"
                )
    return ""


def _tried(trial: Trial) -> str:
    return f"Tried with {describe(trial.inputs)}."


def _sentence(trial: Trial) -> str:
    """Return what was wrong on one trial, and on which."""
    said, functions = trial.said, functions_of(trial.inputs)
    if functions:
        if isinstance(trial.should.output, bool):
            said = said.replace("your function returned", "your test said")
            said = said.replace("your function", "your test")
        said = f"for {', '.join(functions)} {said}"
    said = f"{said[0].upper()}{said[1:]}"
    if len(functions) == len(trial.inputs):
        return said
    return f"{said}\n  {_tried(trial)}"


def is_untouched(function: Callable) -> bool:
    """Return whether a function's body is still nothing but `...` (or `pass`)."""
    function = _innermost(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    trivial = {"RESUME", "NOP", "CACHE", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    constants = {None, Ellipsis, function.__doc__}
    instructions = list(dis.get_instructions(code))
    return all(i.opname in trivial for i in instructions) and all(
        i.argval in constants for i in instructions if i.opname.endswith("_CONST")
    )


def _innermost(function: Callable) -> Callable:
    """Return the function that the learner wrote, without partial and decorators."""
    for _ in range(100):  # a decorator could wrap itself
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, torch.nn.Module):
            function = type(function).forward
    return function
