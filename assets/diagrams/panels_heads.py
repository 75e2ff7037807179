"""Draws what a head attends to, and heads with roles."""

import numpy as np
from drawing import (
    MARK,
    MARKED,
    TOKENS,
    arrow,
    box,
    matrix,
    softmax,
    viridis,
    write,
)

CAUSAL = np.tri(6, dtype=bool)


def example(offset: int, first: float, noise: int) -> np.ndarray:
    """Return the weights of a causal head that prefers an offset, or the first key."""
    scores = np.random.default_rng(noise).normal(0, 0.5, (6, 6))
    scores += 3 * np.eye(6, k=-offset)
    scores[:, 0] += first
    return softmax(np.where(CAUSAL, scores, -np.inf))


def seen(ax):
    """Map of the transformer, lesson 07: seeing heads. The attention weights of 1 head
    as a heat map, with a row for each query and a column for each key, and 3 more heads
    of its layer on the same scale from 0 to 1. Masked cells are hatched.
    """
    heads = example(1, 0, 0), example(0, 0, 1), example(9, 3, 2), example(9, 0, 3)
    cell, x, y = 0.4, 0.95, 0.72
    write(ax, x + 1.2, 3.38, "head 0", weight="bold")
    matrix(ax, x, y, viridis(heads[0], CAUSAL), cell)
    for i, token in enumerate(TOKENS):
        write(ax, x + (i + 0.5) * cell, y - 0.12, token)
        write(ax, x - 0.08, y + (5.5 - i) * cell, token, ha="right")
    write(ax, x + 1.2, y - 0.38, "key", weight="bold")
    write(ax, 0.3, y + 1.2, "query", weight="bold", rotation=90, va="center")
    for head in (1, 2, 3):
        low = 3.62 - 1.1 * head
        matrix(ax, 3.85, low, viridis(heads[head], CAUSAL), 0.125)
        write(ax, 4.22, low + 0.86, f"head {head}", weight="bold")
    matrix(ax, 5.1, 0.72, viridis(np.linspace(1, 0, 60)[:, None]), 0.04, edge="none")
    write(ax, 5.12, 0.6, "0")
    write(ax, 5.12, 3.24, "1")


def specialised(ax):
    """Map of the transformer, lesson 08: head specialisation. In 2 layers of 4 heads, 2
    heads are marked: one of layer 0 attends to the previous token, and one of layer 1,
    the induction head, to the token after the earlier A.
    """
    chosen = {(0, 3): np.eye(5, k=-1), (1, 3): np.zeros((5, 5))}
    chosen[0, 3][0, 0] = chosen[1, 3][4, 1] = 1
    chosen[1, 3][:4, 0] = 1  # nothing to repeat yet: the first token
    mask, random = np.tri(5, dtype=bool), np.random.default_rng(0)
    for layer, low in ((0, 1.78), (1, 2.74)):
        write(ax, 0.5, low + 0.35, f"layer {layer}")
        for head in range(4):
            x, scores = 0.95 + 0.88 * head, random.normal(0, 1, (5, 5))
            weights = softmax(np.where(mask, scores, -np.inf))
            if (layer, head) in chosen:
                weights = chosen[layer, head]
                box(ax, x - 0.08, low - 0.08, 0.86, 0.86, "", MARKED, MARK)
            matrix(ax, x, low, viridis(weights, mask), 0.14)
    box(ax, 4.5, 2.81, 1.0, 0.56, "induction\nhead", "white", MARK)
    box(ax, 4.5, 1.85, 1.0, 0.56, "previous-\ntoken head", "white", MARK, 8)
    for i, letter in enumerate("ABCDAB"):
        new = {"fill": "white"} if i < 5 else {"fill": "none", "edge": MARK}
        box(ax, 0.95 + 0.7 * i, 0.55, 0.5, 0.3, letter, **new)
    arrow(ax, (4.0, 0.85), (4.0, 1.2), (1.9, 1.2), (1.9, 0.85), colour=MARK, width=1.8)
    arrow(
        ax, (1.9, 0.55), (1.9, 0.32), (1.2, 0.32), (1.2, 0.55), colour=MARK, width=1.8
    )
    arrow(ax, (4.25, 0.7), (4.45, 0.7))
    write(ax, 2.95, 1.36, "attends to the token after the earlier A", 8)
    write(ax, 2.0, 0.32, "attends to the previous token", 8, ha="left")
    write(ax, 4.7, 0.4, "predicted", 8)
