"""Draws the expected output and the learner's own, side by side."""

import matplotlib.pyplot as plt
from torch import Tensor

from utils.oldex.compare import VALUES_DIFFER, output_difference
from utils.oldex.running import Run
from utils.plotting import heatmap, show


def draw(expected: Tensor, yours: Tensor) -> None:
    """Draw the two outputs and their difference; what is not finite is hatched."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.4))
    panels = {"expected": expected, "yours": yours, "difference": yours - expected}
    largest = min(max(map(_largest, panels.values())), 1e9)
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


def picture(expected: Run, yours: Run) -> tuple[Tensor, Tensor] | None:
    """Return two matrices to draw, where the shapes agree and the values do not."""
    a, b = expected.output, yours.output
    if yours.error is not None or yours.edited or not isinstance(a, Tensor):
        return None
    said = output_difference(a, b)
    if said is None or not said.startswith(VALUES_DIFFER) or a.dim() == 0:
        return None
    a, b = a.detach().double(), b.detach().double()
    if a.dim() == 1:
        return a[None], b[None]
    if a.dim() > 2:  # of several matrices, the one that differs most
        a, b = a.flatten(0, -3), b.flatten(0, -3)
        worst = int((a - b).abs().nan_to_num(1e300).amax(dim=(1, 2)).argmax())
        a, b = a[worst], b[worst]
    return a, b


def describe(trial: dict) -> str:
    """Return in words what an answer was tried with."""
    return ", ".join(f"{name} {_described(arg)}" for name, arg in trial.items())


def functions_of(trial: dict) -> list[str]:
    """Return the names of the functions among the arguments."""
    return [_described(a) for a in trial.values() if _is_function(a)]


def _is_function(arg) -> bool:
    return callable(arg) and not isinstance(arg, Tensor)


def _described(arg) -> str:
    if isinstance(arg, Tensor):
        said = f"{str(arg.dtype).removeprefix('torch.')} {tuple(arg.shape)}"
        largest = _largest(arg) if arg.is_floating_point() else 0.0
        return f"{said} up to ±{largest:.3g}" if largest > 30 else said
    if _is_function(arg):
        inner = getattr(arg, "func", arg)  # of a functools.partial
        return f"`{getattr(inner, '__name__', type(inner).__name__)}`"
    text = repr(arg)
    return text if len(text) <= 40 else f"{text[:37]}..."
