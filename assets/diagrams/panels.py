"""Draws what a lesson is about, enlarged; a panel's docstring is its alt text.

The panels of lessons 06 to 09 are in panels_heads.py, those of lessons 10 and 11 in
panels_model.py, and that of lesson 12 is in debugging.py.
"""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

import numpy as np

from assets.diagrams.drawing import *


def one_head(ax):
    """Map of the transformer, lesson 01. Left: a whole transformer as a stack of boxes,
    in which the box of attention is marked. Right: inside one attention. The query of
    "sat" asks who sat, and is compared with 6 keys. The 6 scores are divided by √d_k,
    which is 2 here. The softmax turns the results into weights that sum to 1. The
    output is the weighted mean of the 6 values: mostly that of "cat", whose score 4
    becomes 2, and then the weight 0.52.
    """
    scores = np.array([0.0, 4.0, 0.0, 0.0, 0.0, 2.0])  # as in lesson 01, with d_k = 4
    weights = softmax(scores / 2)
    rows = 3.1 - 0.4 * np.arange(6)
    middle = rows.mean()
    titles = {1.45: "keys", 2.02: "scores", 2.58: r"÷ $\sqrt{d_k}$"}
    row(ax, 3.52, titles | {3.26: "weights", 4.17: "values"}, 9, **BOLD)
    row(ax, 3.34, {2.58: "here ÷ 2", 3.26: "softmax"})
    row(ax, middle + 0.34, {0.45: "who sat?", 5.08: "mostly cat"})
    box(ax, 0.14, middle - 0.24, 0.62, 0.48, "query\nof sat", QUERY)
    for y, token, score, weight in zip(rows, TOKENS, scores, weights):
        arrow(ax, (0.76, middle), (1.16, y), head=False, width=0.8)
        box(ax, 1.16, y - 0.14, 0.58, 0.28, token, KEY)
        row(ax, y, {2.06: f"{score:.0f}", 2.6: f"{score / 2:.0f}"}, 9, ha="right")
        arrow(ax, (2.17, y), (2.43, y), width=0.8)
        box(ax, 2.91, y - 0.09, weight, 0.18, "", MARKED)
        write(ax, 2.97 + weight, y, f"{weight:.2f}", ha="left")
        arrow(ax, (4.46, y), (4.72, middle), width=0.5 + 6 * weight, head=False)
        box(ax, 3.88, y - 0.14, 0.58, 0.28, token, VALUE)
    box(ax, 4.72, middle - 0.24, 0.72, 0.48, "output\nof sat", VALUE)
    formula = r"$\mathrm{softmax}\left(\,q\,K^\top /\, \sqrt{d_k}\,\right) V$"
    box(ax, 1.16, 0.22, 3.3, 0.44, formula, "white", size=11)


def several_heads(ax):
    """Map of the transformer, lesson 02: multi-head attention. 3 heads, each with
    queries, keys and values of its own, attend side by side. Their outputs are merged,
    and the output projection adds them up.
    """
    cell, middle = 0.09, 1.82
    matrix(ax, 0.12, middle - 0.18, [[GREY] * 6] * 4, cell)
    first, previous, own = np.eye(4)[[0] * 4], np.eye(4)[[0, 0, 1, 2]], np.eye(4)
    for head, (y, pattern) in enumerate(zip((2.9, 1.82, 0.74), (previous, first, own))):
        box(ax, 0.98, y - 0.44, 2.36, 0.88, "", "white")
        write(ax, 1.08, y + 0.27, f"head {head}", ha="left", **BOLD)
        arrow(ax, (0.66, middle), (0.98, y))
        for x, letter, colour in zip((1.08, 1.36, 1.64), "qkv", (QUERY, KEY, VALUE)):
            box(ax, x, y - 0.27, 0.24, 0.3, letter, colour)
        arrows(ax, y - 0.1, (1.92, 2.12), (2.66, 2.9))
        matrix(ax, 2.14, y - 0.32, viridis(0.84 * pattern + 0.04), 0.12)
        matrix(ax, 2.93, y - 0.28, [[HEADS[head]] * 2] * 4, cell)
        row(ax, y + 0.3, {2.38: "weights", 3.02: "output"})
        arrow(ax, (3.34, y), (3.62, middle))
    merged = [colour for colour in HEADS[:3] for _ in range(2)]
    matrix(ax, 3.64, middle - 0.18, [merged] * 4, cell)
    matrix(ax, 4.98, middle - 0.18, [[GREY] * 6] * 4, cell)
    row(ax, middle - 0.32, {0.39: "input", 3.91: "merged", 5.25: "output"}, 9)
    arrows(ax, middle, (4.18, 4.34), (4.8, 4.97))
    box(ax, 4.34, middle - 0.4, 0.46, 0.8)
    write(ax, 4.57, middle, "output\nprojection", 8, rotation=90, va="center")


def pytorch(ax):
    """Map of the transformer, lesson 03: the course's MultiHeadAttention and PyTorch's
    nn.MultiheadAttention. The weights and biases of 4 projections are copied from one
    to the other, and both then give the same output.
    """
    for x, whose, name in (
        (0.2, "the course's layer", "MultiHeadAttention"),
        (3.2, "PyTorch's layer", "nn.MultiheadAttention"),
    ):
        box(ax, x, 1.05, 2.25, 2.25, "", "white")
        write(ax, x + 1.125, 3.48, whose, **BOLD)
        write(ax, x + 1.125, 3.12, name, **CODE)
    for y, ours, theirs, colour in (
        (2.6, "query_proj", "in_proj_weight[:E]", QUERY),
        (2.15, "key_proj", "in_proj_weight[E:2*E]", KEY),
        (1.7, "value_proj", "in_proj_weight[2*E:]", VALUE),
        (1.2, "out_proj", "out_proj", QUIET),
    ):
        box(ax, 0.42, y, 1.8, 0.34, ours, colour, **CODE)
        box(ax, 3.43, y, 1.8, 0.34, theirs, colour, **CODE)
        arrows(ax, y + 0.17, (2.8, 3.43), (2.9, 2.22))
    box(ax, 0.6, 0.3, 4.45, 0.42, "same input → same output, same attention weights")


def encodings(ax):
    """Map of the transformer, lesson 04: positional encodings. To the embedding of each
    of 3 tokens, "dog bites man", the encoding of its position, 0, 1 or 2, is added.
    Below, the encodings of 30 positions: the first features change fast, the last
    slowly.
    """
    tokens, positions = np.random.default_rng(0).normal(0, 0.5, (3, 8)), sinusoidal(30)
    row(ax, 3.42, {1.34: "embedding", 3.18: "encoding", 4.9: "sum"}, 9, **BOLD)
    for i, (token, numbers) in enumerate(zip("dog bites man".split(), tokens)):
        y = 3.0 - 0.42 * i
        box(ax, 0.1, y, 0.55, 0.26, token)
        plus(ax, 2.1, y + 0.13, MARKED, MARK)
        box(ax, 2.3, y, 0.24, 0.26, str(i), MARKED)
        write(ax, 4.04, y + 0.13, "=", 12)
        added = {0.78: numbers, 2.62: positions[i], 4.34: numbers + positions[i]}
        for x, vector in added.items():
            matrix(ax, x, y + 0.06, signed(vector[None]), 0.14)
    write(ax, 2.88, 1.83, "encodings of 30 positions", **BOLD)
    matrix(ax, 0.78, 0.43, signed(positions.T), 0.157)
    write(ax, 3.1, 0.27, "position")
    write(ax, 0.62, 1.05, "feature", rotation=90, va="center")


def three_places(ax):
    """Map of the transformer, lesson 05: the 3 places where positions enter. They are
    added to the embeddings (learned, sinusoidal), rotate queries and keys (RoPE), or
    are added to the scores (ALiBi, T5).
    """
    flow = 3.3
    for x, width, text in (
        (0.1, 1.0, "embeddings"),
        (1.72, 1.05, "queries, keys"),
        (3.42, 0.6, "scores"),
        (4.72, 0.8, "softmax"),
    ):
        box(ax, x, flow - 0.16, width, 0.32, text)
    arrows(ax, flow, (1.1, 1.72), (2.77, 3.42), (4.02, 4.72))
    for place, x, title, methods in (
        (1.41, 1.0, "1  added to the\nembeddings", "sinusoidal, learned"),
        (3.09, 2.83, "2  rotate queries\nand keys", "RoPE"),
        (4.37, 4.66, "3  added to\nthe scores", "ALiBi, T5"),
    ):
        arrow(ax, (x, 2.62), (place, flow - 0.12), colour=MARK, head=False)
        box(ax, x - 0.86, 0.2, 1.72, 2.42, "", "white", MARK)
        write(ax, x, 2.33, title, **BOLD)
        write(ax, x, 0.4, methods)
        box(ax, place - 0.13, flow - 0.13, 0.26, 0.26, title[0], MARKED, MARK)
    matrix(ax, 0.52, 0.8, signed(sinusoidal(8)), 0.12)
    centre = np.array([2.83, 1.3])  # of a query and a key, turned by their positions
    circle(ax, *centre, 0.52)
    for degrees, colour, letter in ((70, QUERY, "q"), (20, KEY, "k")):
        way = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
        arrow(ax, centre, centre + 0.52 * way)
        box(ax, *(centre + 0.66 * way - 0.11), 0.22, 0.22, letter, colour)
    distance = np.arange(6)[:, None] - np.arange(6)
    matrix(ax, 4.18, 0.8, signed(-distance / 4, distance >= 0), 0.16)


def sinusoidal(length, dim=8, base=10000) -> np.ndarray:
    """Return the sinusoidal encodings, (length, dim), of Vaswani et al. 2017."""
    angles = np.arange(length)[:, None] / base ** (np.arange(0, dim, 2) / dim)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, dim)
