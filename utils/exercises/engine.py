"""Runs an answer to an exercise, and names the mistake that it equals.

An answer is judged by everything it did: what it returned or raised, which arguments it
edited, and the gradients it passes back. A mistake is recognised when a known-wrong
function did exactly the same on every input.
"""

import dis
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from utils.plotting import heatmap, show

SOLVED, NOT_YET, UNTOUCHED = "solved", "not yet", "not attempted yet"


@dataclass(frozen=True)
class Exercise:
    """One exercise, as data.

    inputs(dtype): yields the arguments of each trial, as dicts by parameter name.
    mistakes: what the learner did -> a function that does it, and whose docstring says
        why it is wrong.
    """

    name: str
    title: str
    reference: Callable
    inputs: Callable[[torch.dtype], Iterable[dict]]
    mistakes: dict[str, Callable]


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


@dataclass
class Run:
    """Everything one call did."""

    output: object = None
    error: Exception | None = None
    edited: list[str] = field(default_factory=list)
    grads: dict[str, Tensor | None] = field(default_factory=dict)


def grade(exercise: Exercise, function: Callable) -> Verdict:
    """Return the verdict on one answer; prints and draws nothing."""
    if is_untouched(function):
        return Verdict(UNTOUCHED, "Replace the ... and run the cell again.")
    trials = [t for d in (torch.float32, torch.float64) for t in exercise.inputs(d)]
    expected = [run(exercise.reference, trial) for trial in trials]
    yours = [run(function, trial) for trial in trials]
    pairs = list(zip(expected, yours, strict=True))
    wrong = [i for i, (e, y) in enumerate(pairs) if difference(e, y) is not None]
    if not wrong:
        return Verdict(SOLVED, f"Equal to the reference on {len(trials)} inputs.")

    said = difference(*pairs[wrong[0]])
    message = (
        f"{said[0].upper()}{said[1:]}\n  Tried with {_describe(trials[wrong[0]])}."
    )
    picture = _picture(*pairs[wrong[0]])
    for mistake, mistaken in exercise.mistakes.items():
        if all(
            difference(run(mistaken, trial), y) is None
            for trial, y in zip(trials, yours, strict=True)
        ):
            named = (
                f"Your answer equals a known mistake, {mistake!r}. {mistaken.__doc__}"
            )
            return Verdict(NOT_YET, f"{named}\n  {message}", mistake, picture)
    return Verdict(NOT_YET, message, None, picture)


def run(function: Callable, trial: dict) -> Run:
    """Call the function on copies of the trial's arguments; record what it did."""
    leaves = {
        name: arg.detach().clone().requires_grad_(arg.is_floating_point())
        for name, arg in trial.items()
        if isinstance(arg, Tensor)
    }
    args = {
        name: leaves[name].clone() if name in leaves else trial[name] for name in trial
    }
    done = Run()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            done.output = function(*args.values())
    except Exception as error:  # whatever a learner's code raises is shown, not thrown
        done.error = error
    done.edited = [name for name in leaves if not _same(args[name], leaves[name])]
    output = done.output
    inputs = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    if (
        isinstance(output, Tensor)
        and output.requires_grad
        and not done.edited
        and all(leaf.device == output.device for leaf in inputs.values())
    ):
        probe = torch.linspace(-1, 1, output.numel(), dtype=output.dtype)
        try:
            loss = (output * probe.view(output.shape)).sum()
            grads = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
            done.grads = dict(zip(inputs, grads, strict=True))
        except (RuntimeError, NotImplementedError) as error:
            done.error = error
    return done


def difference(expected: Run, yours: Run) -> str | None:
    """Return in words the first thing that yours did otherwise, or None."""
    if yours.error is not None or expected.error is not None:
        if type(yours.error) is type(expected.error):
            return None
        return f"your function raised {type(yours.error).__name__}: {yours.error}"
    if yours.edited != expected.edited:
        names = ", ".join(f"`{name}`" for name in yours.edited)
        return (
            f"your function edits its argument {names} in place; the caller still "
            "needs it. Build a new tensor (x = x - 1 instead of x -= 1)."
        )
    output, target = yours.output, expected.output
    if not isinstance(output, Tensor):
        if type(output) is type(target):
            return None
        forgot = " Is a `return` missing?" if output is None else ""
        return f"your function returned {type(output).__name__}, not a tensor.{forgot}"
    if not isinstance(target, Tensor):
        return "your function returned a tensor."
    if output.shape != target.shape:
        return (
            f"your output has shape {tuple(output.shape)}; "
            f"expected {tuple(target.shape)}."
        )
    if output.device != target.device:
        return f"your output is on {output.device}; the inputs are on {target.device}."
    if output.dtype != target.dtype:
        return f"your output is {output.dtype}; expected {target.dtype}."
    if not _same(output, target):
        return f"the values differ: {_where(target, output)}"
    for name, target_grad in expected.grads.items():
        grad = yours.grads.get(name)
        if grad is None or target_grad is None:
            if grad is target_grad:
                continue
            return (
                f"the values are right, but the gradient of `{name}` is not: "
                f"{_no_grad(grad)}"
            )
        if not _same(grad, target_grad):
            return (
                f"the values are right, but the gradient of `{name}` is not: "
                f"{_where(target_grad, grad)}"
            )
    return None


def is_untouched(function: Callable) -> bool:
    """Return whether a function's body is still nothing but `...` (or `pass`)."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    trivial = {"RESUME", "NOP", "CACHE", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    constants = {None, Ellipsis, function.__doc__}
    instructions = list(dis.get_instructions(code))
    return all(i.opname in trivial for i in instructions) and all(
        i.argval in constants for i in instructions if i.opname.endswith("_CONST")
    )


def draw(expected: Tensor, yours: Tensor) -> None:
    """Draw the two outputs and their difference side by side."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.4))
    panels = {"expected": expected, "yours": yours, "difference": yours - expected}
    largest = float(torch.stack([expected, yours]).abs().max()) or 1.0
    for ax, (title, matrix) in zip(axes, panels.items(), strict=True):
        heatmap(matrix, ax, signed=True, vmax=largest, title=title)
        ax.set(xlabel="", ylabel="")
    gap = float((yours - expected).abs().max())
    show(figure, f"Expected and your output differ by at most {gap:.3f}.")


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding; NaN equals NaN, as one of the things an answer can do."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.device.type == "meta":
        return True
    tolerance = 1e-5 if a.dtype == torch.float32 else 1e-9
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _where(expected: Tensor, yours: Tensor) -> str:
    if yours.isnan().any() and not expected.isnan().any():
        return f"{int(yours.isnan().sum())} of {yours.numel()} are NaN."
    if expected.dtype == torch.bool:
        return f"{int((expected != yours).sum())} of {yours.numel()} are flipped."
    gap = (yours - expected).abs()
    at = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    return f"at {list(at)} expected {expected[at]:.3f}, yours {yours[at]:.3f}."


def _no_grad(grad) -> str:
    if grad is None:
        return "none arrives. Does a .detach(), .item(), torch.tensor() cut it off?"
    return "one arrives where there should be none."


def _describe(trial: dict) -> str:
    parts = []
    for name, arg in trial.items():
        said = f"{arg.dtype} {tuple(arg.shape)}" if isinstance(arg, Tensor) else arg
        parts.append(f"{name} {said}".replace("torch.", ""))
    return ", ".join(parts)


def _picture(expected: Run, yours: Run) -> tuple[Tensor, Tensor] | None:
    """Return two matrices to draw, where the shapes agree and the values do not."""
    a, b = expected.output, yours.output
    if yours.error is not None or not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return None
    if a.shape != b.shape or a.dim() < 1 or a.device != b.device or a.numel() == 0:
        return None
    if a.dtype != b.dtype or _same(a, b):
        return None
    a, b = (x.detach().double().nan_to_num() for x in (a, b))
    if a.dim() == 1:
        return a[None], b[None]
    if a.dim() > 2:  # of several matrices, the one that differs most
        a, b = a.flatten(0, -3), b.flatten(0, -3)
        worst = int((a - b).abs().amax(dim=(1, 2)).argmax())
        a, b = a[worst], b[worst]
    return a, b
