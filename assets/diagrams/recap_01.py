"""Draws what closes lesson 01: attention as matrices with their sizes."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

import numpy as np

from assets.diagrams.drawing import *

LENGTH, DIM_K, DIM_V, CELL = 6, 4, 3, 0.17
MIDDLE = 1.37  # of the matrices


def recap_01():
    """Attention in matrices, for 6 queries and 6 keys. Q (6 × 4) times K transposed
    (4 × 6) gives scores (6 × 6). They are divided by √4 and masked, and the softmax
    makes each row sum to 1. The weights (6 × 6) times V (6 × 3) give the output
    (6 × 3).
    """
    ax = ground(2.55)
    q, k = np.random.default_rng(1).normal(0, 1, (2, LENGTH, DIM_K))
    products, mask = q @ k.T, np.tri(LENGTH, dtype=bool)
    scores = products / np.sqrt(DIM_K)
    weights = softmax(np.where(mask, scores, -np.inf))
    values = [[VALUE] * DIM_V] * LENGTH
    x = 0.5
    for name, shape, colours, then in (
        ("$Q$", "L × d_k", [[QUERY] * DIM_K] * LENGTH, "×"),
        (r"$K^\top$", "d_k × S", [[KEY] * LENGTH] * DIM_K, "="),
        ("scores", "L × S", signed(products / 2.5), "÷ $\\sqrt{d_k}$,\nmask"),
        ("masked", "L × S", signed(scores / 2.5, mask), "softmax"),
        ("weights", "L × S", viridis(weights, mask), "×"),
        ("$V$", "S × d_v", values, "="),
        ("output", "L × d_v", values, ""),
    ):
        rows, columns = len(colours), len(colours[0])
        width = columns * CELL
        matrix(ax, x, MIDDLE - rows * CELL / 2, colours, CELL)
        write(ax, x + width / 2, 2.2, name, 10, weight="bold")
        write(ax, x + width / 2, 0.62, f"${shape}$".replace("×", r"\times"))
        write(ax, x + width / 2, 0.43, f"{rows} × {columns}")
        if name == "weights":
            write(ax, x + width / 2, 0.21, "each row sums to 1", 8)
        x += width + _then(ax, x + width, then)
    write(ax, 0.38, MIDDLE, "6 queries", 8, rotation=90, va="center")
    write(ax, 1.99, 1.81, "6 keys", 8)
    return ax.figure


def _then(ax, x, step) -> float:
    """Write the sign or step between two matrices; return the room that it takes."""
    if len(step) < 2:
        write(ax, x + 0.14, MIDDLE, step, 13)
        return 0.28
    arrow(ax, (x + 0.07, MIDDLE), (x + 0.57, MIDDLE))
    write(ax, x + 0.32, MIDDLE + (0.25 if "\n" in step else 0.14), step, 8)
    return 0.64
