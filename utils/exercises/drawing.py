"""Draws the expected output and the learner's own, side by side."""

import matplotlib.pyplot as plt
from torch import Tensor

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
