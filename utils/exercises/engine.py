"""Runs an answer to an exercise, and names the mistake that it equals.

An answer is judged by everything it did: what it returned or raised, which arguments it
edited, and the gradients it passes back. A mistake is recognised when a known-wrong
function did exactly the same on every input.
"""

import dis
import re
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


@dataclass
class Run:
    """Everything one call did."""

    output: object = None
    error: BaseException | None = None
    edited: list[str] = field(default_factory=list)
    grads: dict[str, Tensor] = field(default_factory=dict)
    backward_error: Exception | None = None


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
    yours = [run(function, trial, gradients) for trial in trials]
    pairs = list(zip(trials, expected, yours, strict=True))
    wrong = [pair for pair in pairs if difference(*pair[1:]) is not None]
    if not wrong:
        return Verdict(SOLVED, f"Equal to the reference on {len(trials)} inputs.")

    trial, should, did = wrong[0]
    said = difference(should, did)
    message = f"{said[0].upper()}{said[1:]}\n  Tried with {_describe(trial)}."
    picture = _picture(should, did)
    for mistake, why, mistaken in exercise.forms():
        if all(
            difference(run(mistaken, trial, gradients), did) is None
            for trial, _, did in pairs
        ):
            named = f"Your answer equals a known mistake, {mistake!r}. {why}"
            return Verdict(NOT_YET, f"{named}\n  {message}", mistake, picture)
    return Verdict(NOT_YET, message, None, picture)


def run(function: Callable, trial: dict, gradients: bool = True) -> Run:
    """Call the function on copies of the trial's arguments; record what it did."""
    done = Run()
    with torch.inference_mode(False), torch.enable_grad():  # whatever the notebook set
        leaves = {
            name: arg.clone().requires_grad_(gradients and arg.is_floating_point())
            for name, arg in trial.items()
            if isinstance(arg, Tensor)
        }
        args = {name: leaves.get(name, arg) for name, arg in trial.items()}
        args = {k: v.clone() if isinstance(v, Tensor) else v for k, v in args.items()}
        try:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                done.output = function(*args.values())
        except (Exception, SystemExit) as error:  # shown to the learner, not thrown
            done.error = error
        done.edited = [name for name in leaves if args[name]._version > 0]
        if not done.edited:
            _record_gradients(done, leaves)
    return done


def _record_gradients(done: Run, leaves: dict[str, Tensor]) -> None:
    """Add the gradients of the inputs; where none arrives, zeros."""
    output = done.output
    inputs = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    if not (isinstance(output, Tensor) and output.layout == torch.strided and inputs):
        return
    if any(leaf.device != output.device for leaf in inputs.values()):
        return
    grads: Iterable[Tensor | None] = [None] * len(inputs)
    if output.requires_grad:
        probe = torch.linspace(-1, 1, output.numel(), dtype=output.dtype)
        try:
            loss = (output * probe.view(output.shape)).sum()
            grads = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            done.backward_error = error
            return
    done.grads = {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(inputs.items(), grads, strict=True)
    }


def difference(expected: Run, yours: Run) -> str | None:
    """Return in words the first thing that yours did otherwise, or None."""
    if yours.error is not None or expected.error is not None:
        if _kind(yours.error) == _kind(expected.error):
            return None
        if yours.error is None:
            return "your function raised no error."
        return f"your function raised {type(yours.error).__name__}: {yours.error}"
    if yours.edited != expected.edited:
        names = ", ".join(f"`{name}`" for name in yours.edited)
        return (
            f"your function edits its argument {names} in place; the caller still "
            "needs it. Build a new tensor (x = x - 1 instead of x -= 1)."
        )
    said = _output_difference(expected.output, yours.output)
    return said or _gradient_difference(expected, yours)


def _output_difference(target, output) -> str | None:
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        if type(output) is type(target):
            return None
        hint = ""
        if output is None:
            hint = " Is a `return` missing?"
        elif isinstance(output, tuple) and _first_is_right(target, output):
            hint = " Its first part is right: return only that."
        return f"your function returned {type(output).__name__}, not a tensor.{hint}"
    if output.layout != torch.strided or output.is_nested:
        return "your output is a sparse or nested tensor; return an ordinary one."
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
    return None


def _first_is_right(target: Tensor, output: tuple) -> bool:
    return bool(output) and _output_difference(target, output[0]) is None


def _gradient_difference(expected: Run, yours: Run) -> str | None:
    if yours.backward_error is not None or expected.backward_error is not None:
        if _kind(yours.backward_error) == _kind(expected.backward_error):
            return None
        return (
            "the values are right, but no gradient can be computed: a tensor was "
            "overwritten that the backward pass needs. Write w = w / s instead of "
            f"w /= s. ({str(yours.backward_error).split(':')[0]})"
        )
    for name, target in expected.grads.items():
        grad = yours.grads.get(name, torch.zeros_like(target))
        if _same(grad, target):
            continue
        said = _where(target, grad)
        if (grad == 0).all():
            said = "none arrives. Does a .detach(), .item(), torch.tensor() cut it off?"
        return f"the values are right, but the gradient of `{name}` is not: {said}"
    return None


def _kind(error: BaseException | None) -> tuple:
    """Return what makes two errors the same: type, and text without its numbers."""
    return type(error), re.sub(r"[-\d]+", "", str(error))


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
    """Draw the two outputs and their difference; what is not finite is hatched."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.4))
    panels = {"expected": expected, "yours": yours, "difference": yours - expected}
    largest = min(max(map(_largest, panels.values())), 1e9) or 1.0
    for ax, (title, matrix) in zip(axes, panels.items(), strict=True):
        finite = matrix.isfinite()
        drawn = matrix.where(finite, 0.0).clamp(-largest, largest)
        heatmap(drawn, ax, signed=True, vmax=largest, mask=finite, title=title)
        ax.set(xlabel="", ylabel="")
    lost, gap = int((~yours.isfinite()).sum()), _largest(yours - expected)
    said = f"Expected and your output differ by at most {gap:.3g}."
    if lost:
        said += f" {lost} of your {yours.numel()} values are NaN or infinite."
    show(figure, said)


def _largest(matrix: Tensor) -> float:
    """Return the largest size among the finite entries."""
    finite = matrix[matrix.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding; NaN equals NaN, as one of the things an answer can do."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.device.type == "meta":
        return True
    tolerance = 1e-4 if a.dtype == torch.float32 else 1e-6
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _where(expected: Tensor, yours: Tensor) -> str:
    if yours.isnan().any() and not expected.isnan().any():
        return f"{int(yours.isnan().sum())} of {yours.numel()} are NaN."
    if expected.dtype == torch.bool:
        return f"{int((expected != yours).sum())} of {yours.numel()} are flipped."
    if yours.isinf().any() and not expected.isinf().any():
        return f"{int(yours.isinf().sum())} of {yours.numel()} are infinite."
    gap = (yours - expected).abs()
    at = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    a, b = f"{expected[at]:.3f}", f"{yours[at]:.3f}"
    if a == b:
        a, b = f"{expected[at]:.7g}", f"{yours[at]:.7g}"
    return f"at {list(at)} expected {a}, yours {b}."


def _describe(trial: dict) -> str:
    parts = []
    for name, arg in trial.items():
        said = f"{arg.dtype} {tuple(arg.shape)}" if isinstance(arg, Tensor) else arg
        parts.append(f"{name} {said}".replace("torch.", ""))
    return ", ".join(parts)


def _picture(expected: Run, yours: Run) -> tuple[Tensor, Tensor] | None:
    """Return two matrices to draw, where the shapes agree and the values do not."""
    a, b = expected.output, yours.output
    said = _output_difference(a, b) if isinstance(a, Tensor) else None
    if said is None or not said.startswith("the values differ") or a.dim() == 0:
        return None
    a, b = a.detach().double(), b.detach().double()
    if a.dim() == 1:
        return a[None], b[None]
    if a.dim() > 2:  # of several matrices, the one that differs most
        a, b = a.flatten(0, -3), b.flatten(0, -3)
        worst = int((a - b).abs().nan_to_num(1e300).amax(dim=(1, 2)).argmax())
        a, b = a[worst], b[worst]
    return a, b
