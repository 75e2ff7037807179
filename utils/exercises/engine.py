"""Grades an answer, says what is wrong with it, and names the mistake that it is.

A name is a claim, so it has to be earned: a known mistake did exactly the same on every
input; or the difference itself says it; or the numbers are right but for their form; or
one mistake alone returns the same as the answer on the first input on which the answer
is wrong, and on at least half of all such inputs, and on two.
"""

import dis
import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from utils.plotting import heatmap, show

from .catalogue import Exercise
from .compare import DIFFER, difference, meaning, same, unlike
from .running import run, silence, surroundings, tensors_in

SOLVED, NOT_YET, UNTOUCHED = "solved", "not yet", "not attempted yet"
AGAIN = (
    "Called again with the same inputs, your function does something else. Does it "
    "keep something from one call to the next, in a global, a default argument or an "
    "attribute?"
)


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


@surroundings()
def grade(exercise: Exercise, function: Callable) -> Verdict:
    """Return the verdict on an answer, whose prints are seen; nothing is drawn."""
    if is_untouched(function):
        return Verdict(UNTOUCHED, "Replace the ... and run the cell again.")
    trials, did = exercise.trials(), []

    def tried(function: Callable, i: int) -> dict:
        called = partial(exercise.through, function) if exercise.through else function
        return run(called, trials[i], exercise.gradients, seed=i)

    def known(one: Callable, i: int) -> dict:
        """What the reference or a known mistake does: each is tried once."""
        if (one, i) not in exercise.done:
            exercise.done[one, i] = did[i] if one is function else tried(one, i)
        return exercise.done[one, i]

    for i, trial in enumerate(trials):
        did.append(tried(function, i))
        if "never ends" in did[i]:
            return Verdict(NOT_YET, sentence(difference({}, did[i]), {}, trial))
    should = [known(exercise.reference, i) for i in range(len(trials))]
    said = [*map(difference, should, did)]
    wrong = [i for i, words in enumerate(said) if words]
    with silence():
        # Once more: all inputs if all were right, else twice the first that was wrong
        for i in wrong[:1] * 2 or range(len(did)):
            # outputs of another kind cannot be compared, not even with themselves
            comparable = not said[i] or said[i].startswith(("in part", "part", DIFFER))
            if not comparable:
                continue
            again = tried(function, i)
            # wrong in the same words is no memory: layers returned in place of names
            if difference(did[i], again) and difference(should[i], again) != said[i]:
                return Verdict(NOT_YET, f"{AGAIN}\n  {tried_with(trials[i])}")
        if not wrong:
            return Verdict(SOLVED, f"Equal to the reference on {len(trials)} inputs.")
        mistake, claim = name_of(exercise, known, should, did, said)
    first = wrong[0]
    message = sentence(said[first], should[first], trials[first])
    if claim:
        message = f"{claim}\n  {message}"
    if not mistake and len(wrong) < len(did):
        message += f"\n  Right on {len(did) - len(wrong)} of {len(did)} inputs."
    picture = None
    if said[first].startswith(DIFFER):  # in one tensor
        picture = _picture(should[first]["returns"], did[first]["returns"])
    return Verdict(NOT_YET, message, mistake, picture)


def is_untouched(function: Callable) -> bool:
    """Return whether a function's body is still nothing but `...` (or `pass`).

    Of a class: whether this is so of all its own methods but __init__, if it has any.
    """
    if isinstance(function, type):
        own = {n: x for n, x in vars(function).items() if isinstance(x, FunctionType)}
        own.pop("__init__", None)
        return bool(own) and all(map(is_untouched, own.values()))  # or it inherits
    code = getattr(inspect.unwrap(function), "__code__", None)
    return inspect.iscode(code) and all(
        each.opname == "RESUME" or each.argval in (None, ...)
        for each in dis.get_instructions(code)
    )


# --- names ------------------------------------------------------------------------

DISGUISES = {  # name -> (what to say, f(yours, expected): yours without it)
    "more returned than was asked for": (
        "Its first part is right: return only that.",
        lambda x, y: x[:1] if isinstance(x, tuple) else []),
    "another dtype": (
        "Your numbers are right, but not their type.",
        lambda x, y: [y] if x.dtype != y.dtype != torch.bool
        and same(x.to(y.dtype), y, 1e-2) else []),
    "axes in another order": (
        "Your numbers are right, but their axes stand in another order.",
        lambda x, y: (x.permute(p) for p in itertools.permutations(range(x.dim())))
        if x.dim() <= 4 else []),
    "right numbers in another shape": (
        "Your numbers are right, and their order, but not their shape.",
        lambda x, y: [x.reshape(y.shape)]),
    "right but for a factor": (
        "Every number of a tensor is the expected one times the same factor.",
        lambda x, y: [x * f] if x.numel() > 1
        and abs((f := (x * y).sum() / (x * x).sum()) - 1) > 1e-3 else []),
    "right in single precision only": (
        "In double precision only the first digits are right. Is something done in "
        "single precision (.float(), a new tensor without dtype=...), or a small "
        "number added?",
        lambda x, y: [y] if y.dtype == torch.float64 and same(x, y, 1e-4) else []),
}  # fmt: skip


def name_of(
    exercise: Exercise, known: Callable, should: list, did: list, said: list[str]
) -> tuple[str | None, str]:
    """Return (the mistake, the sentence that claims it), or (None, "").

    The sentence is "" where the difference itself names the mistake.

    known(function, i): what a known mistake does on trial i. should, did, said: on each
    trial what the reference did, the answer did, and how they differ.
    """
    wrong = [i for i, words in enumerate(said) if words]
    # the wrong ones first: they tell forms apart soonest
    order = sorted(range(len(did)), key=lambda i: not said[i])
    for form in exercise.forms:
        if not any(difference(known(form.function, i), did[i]) for i in order):
            claim = f"Your answer equals a known mistake, {form.name!r}."
            return form.name, f"{claim} {form.why}"
    names = {meaning(said[i])[0] for i in wrong}
    if len(names) == 1 and any(names):
        return names.pop(), ""
    outputs = [(y.get("returns"), x.get("returns")) for y, x in zip(should, did)]
    for name, (claim, change) in DISGUISES.items():
        if all(_becomes(change, *outputs[i]) for i in wrong):
            return name, claim
    if not any(tensors_in(each.get("returns")) for each in should):
        return None, ""  # the answer is a test: the same yes or no proves no mistake
    votes = []  # on how many inputs a form has the output of the answer
    for form in exercise.forms:
        if not _same_output(known(form.function, wrong[0]), did[wrong[0]]):
            continue  # nearly, but not on the input that is shown
        gave = [known(form.function, i) for i in wrong]
        if all(difference(should[i], each) for i, each in zip(wrong, gave)):
            agree = sum(
                _same_output(each, did[i]) and not _same_output(should[i], did[i])
                for i, each in zip(wrong, gave)  # what is right is no mistake
            )
            votes.append((agree, form.name, form.why))
    most = max(votes, default=(0,))[0]
    best = {name: why for agree, name, why in votes if agree == most}
    if len(best) != 1 or most < max(2, len(wrong) / 2):  # one may be chance
        return None, ""
    ((name, why),) = best.items()
    claim = f"On {most} of the {len(wrong)} inputs on which it is wrong, its output is "
    return name, f"{claim}that of a known mistake, {name!r}. {why}"


def _becomes(change: Callable, y, x) -> bool:
    """Whether a wrong output x, or what is wrong in it, becomes y by the change."""
    if isinstance(y, dict) and isinstance(x, dict) and y.keys() == x.keys():
        y, x = tuple(y.values()), tuple(x[key] for key in y)
    if isinstance(y, tuple) and isinstance(x, tuple) and len(y) == len(x):
        wrong = [parts for parts in zip(y, x) if unlike(*parts)]
        return bool(wrong) and all(_becomes(change, *parts) for parts in wrong)
    try:
        return bool(unlike(y, x)) and any(not unlike(y, each) for each in change(x, y))
    except (LookupError, AttributeError, RuntimeError, TypeError, ValueError):
        return False


def _same_output(one: dict, other: dict) -> bool:
    """Whether both return the same, whatever else they do."""
    both = "returns" in one and "returns" in other
    return both and not unlike(one["returns"], other["returns"])


# --- words and pictures -----------------------------------------------------------


def sentence(said: str, should: dict, trial: dict) -> str:
    """Return what was wrong on one trial, and on which."""
    hint = meaning(said)[1]
    functions = ", ".join(described(x) for x in trial.values() if callable(x))
    if functions and isinstance(should.get("returns"), bool):  # the answer tests them
        said = said.replace("your function returned", "your test said")
        said = said.replace("your function", "your test")
    said = f"for {functions} {said}" if functions else said
    lines = said[0].upper() + said[1:], hint, tried_with(trial)
    return "\n  ".join(filter(None, lines))


def tried_with(trial: dict) -> str:
    said = ", ".join(f"{name} {described(x)}" for name, x in trial.items())
    return f"Tried with {said}."


def described(x) -> str:
    """Return in words what an argument is."""
    if isinstance(x, Tensor):
        said = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
        largest = _largest(x) if x.is_floating_point() else 0
        return f"{said} up to ±{largest:.3g}" if largest > 30 else said
    if callable(x):
        return f"`{getattr(x, '__name__', type(x).__name__)}`"
    text = repr(x)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _largest(x: Tensor) -> float:
    """Return the largest magnitude among the finite numbers."""
    finite = x[x.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _picture(expected: Tensor, yours: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return both as matrices, of a stack the pair that differs most; None: numbers."""
    if not expected.dim():
        return None
    both = expected.detach().double(), yours.detach().double()
    a, b = (x.reshape(-1, *x[None].shape[-2:]) for x in both)  # (matrices, rows, …)
    worst = (a - b).abs().nan_to_num(1e300).flatten(1).amax(1).argmax()
    return a[worst], b[worst]


def draw(expected: Tensor, yours: Tensor) -> None:
    """Draw the two outputs and their difference; what is not finite is hatched."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.4))
    panels = {"expected": expected, "yours": yours, "difference": yours - expected}
    largest = min(max(map(_largest, panels.values())), 1e9)
    for ax, (title, matrix) in zip(axes, panels.items()):
        finite = matrix.isfinite()
        drawn = matrix.where(finite, 0.0).clamp(-largest, largest)
        heatmap(drawn, ax, signed=True, vmax=largest, mask=finite, title=title)
        ax.set(xlabel="", ylabel="")
    most = f"differ by at most {_largest(yours - expected):.3g}."
    finite = (yours - expected).isfinite().all()
    hatched = "Hatched: NaN or infinite. The other numbers of expected and yours "
    show(figure, (f"Expected and your output {most}" if finite else hatched + most))
