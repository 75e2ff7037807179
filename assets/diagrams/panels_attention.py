"""Draws attention: one head, several heads, PyTorch's layer, the cache."""

import numpy as np
from drawing import (
    HEADS,
    KEY,
    MARK,
    MARKED,
    QUERY,
    QUIET,
    TOKENS,
    VALUE,
    arrow,
    box,
    matrix,
    softmax,
    viridis,
    write,
)

CODE = {"family": "monospace", "size": 8}


def one_head(ax):
    """Map of the transformer, lesson 01: inside one attention. The query of "sat" is
    compared with 6 keys. The 6 scores are divided by √d_k, the softmax turns them into
    weights that sum to 1, and the output is the weighted mean of the 6 values.
    """
    scores = np.array([0.0, 4.0, 0.0, 0.0, 0.0, 2.0])  # as in lesson 01, with d_k = 4
    weights = softmax(scores / 2)
    rows = 3.1 - 0.4 * np.arange(6)
    middle = rows.mean()
    titles = (1.45, "keys"), (2.08, "scores"), (3.2, "weights"), (4.17, "values")
    for x, title in titles:
        write(ax, x, 3.52, title, weight="bold")
    box(ax, 0.14, middle - 0.24, 0.62, 0.48, "query\nof sat", QUERY)
    for y, token, score, weight in zip(rows, TOKENS, scores, weights):
        arrow(ax, (0.76, middle), (1.16, y), head=False, width=0.8)
        box(ax, 1.16, y - 0.14, 0.58, 0.28, token, KEY)
        write(ax, 2.25, y, f"{score:.0f}", ha="right")
        box(ax, 2.91, y - 0.09, weight, 0.18, "", MARKED)
        write(ax, 2.97 + weight, y, f"{weight:.2f}", ha="left")
        arrow(ax, (4.46, y), (4.72, middle), width=0.5 + 6 * weight, head=False)
        box(ax, 3.88, y - 0.14, 0.58, 0.28, token, VALUE)
    arrow(ax, (2.4, middle), (2.78, middle))
    box(ax, 4.72, middle - 0.24, 0.72, 0.48, "output\nfor sat", VALUE)
    write(ax, 2.59, middle + 0.24, "÷ √d$_k$,\nsoftmax", 8)
    formula = r"$\mathrm{softmax}\left(\,q\,K^\top /\, \sqrt{d_k}\,\right) V$"
    box(ax, 1.16, 0.22, 3.3, 0.44, formula, "white", size=11)


def several_heads(ax):
    """Map of the transformer, lesson 02: multi-head attention. 3 heads, each with
    queries, keys and values of its own, attend side by side. Their outputs are merged,
    and the output projection adds them up.
    """
    cell, middle = 0.09, 1.82
    matrix(ax, 0.12, middle - 0.18, [["#c9c9c9"] * 6] * 4, cell)
    write(ax, 0.39, middle - 0.32, "input")
    first, previous, own = np.eye(4)[[0] * 4], np.eye(4)[[0, 0, 1, 2]], np.eye(4)
    for head, (y, pattern) in enumerate(zip((2.9, 1.82, 0.74), (previous, first, own))):
        box(ax, 0.98, y - 0.44, 2.36, 0.88, "", "white")
        write(ax, 1.08, y + 0.27, f"head {head}", ha="left", weight="bold")
        arrow(ax, (0.66, middle), (0.98, y))
        for x, letter, colour in zip((1.08, 1.36, 1.64), "qkv", (QUERY, KEY, VALUE)):
            box(ax, x, y - 0.27, 0.24, 0.3, letter, colour)
        arrow(ax, (1.92, y - 0.1), (2.12, y - 0.1))
        matrix(ax, 2.14, y - 0.32, viridis(0.84 * pattern + 0.04), 0.12)
        write(ax, 2.38, y + 0.3, "weights", 8)
        arrow(ax, (2.66, y - 0.1), (2.9, y - 0.1))
        matrix(ax, 2.93, y - 0.28, [[HEADS[head]] * 2] * 4, cell)
        write(ax, 3.02, y + 0.3, "output", 8)
        arrow(ax, (3.34, y), (3.62, middle))
    merged = [colour for colour in HEADS[:3] for _ in range(2)]
    matrix(ax, 3.64, middle - 0.18, [merged] * 4, cell)
    write(ax, 3.91, middle - 0.32, "merged")
    arrow(ax, (4.18, middle), (4.34, middle))
    box(ax, 4.34, middle - 0.4, 0.46, 0.8, "")
    write(ax, 4.57, middle, "output\nprojection", 8, rotation=90, va="center")
    arrow(ax, (4.8, middle), (4.97, middle))
    matrix(ax, 4.98, middle - 0.18, [["#c9c9c9"] * 6] * 4, cell)
    write(ax, 5.25, middle - 0.32, "output")


def pytorch(ax):
    """Map of the transformer, lesson 03: the course's MultiHeadAttention and PyTorch's
    nn.MultiheadAttention. The values of 4 projections are copied from one to the other,
    and both then give the same output.
    """
    for x, whose, name in (
        (0.2, "the course's layer", "MultiHeadAttention"),
        (3.2, "PyTorch's layer", "nn.MultiheadAttention"),
    ):
        box(ax, x, 1.05, 2.25, 2.25, "", "white")
        write(ax, x + 1.125, 3.48, whose, weight="bold")
        write(ax, x + 1.125, 3.12, name, **CODE)
    for y, ours, theirs, colour in (
        (2.6, "query_proj", "in_proj_weight[:d]", QUERY),
        (2.15, "key_proj", "in_proj_weight[d:2*d]", KEY),
        (1.7, "value_proj", "in_proj_weight[2*d:]", VALUE),
        (1.2, "out_proj", "out_proj", QUIET),
    ):
        box(ax, 0.42, y, 1.8, 0.34, ours, colour, **CODE)
        box(ax, 3.43, y, 1.8, 0.34, theirs, colour, **CODE)
        arrow(ax, (2.8, y + 0.17), (3.43, y + 0.17))
        arrow(ax, (2.9, y + 0.17), (2.22, y + 0.17))
    box(ax, 0.6, 0.3, 4.45, 0.42, "same input → same output, same attention weights")


def cache(ax):
    """Map of the transformer, lesson 10: fast attention. The keys and values of 5
    earlier tokens are kept in a cache, so that a new token computes 1 query, 1 key and
    1 value. Below, the score matrix is computed in tiles (grey: done, pink: now, white:
    still to come) and never stored as a whole.
    """
    box(ax, 0.75, 2.05, 3.42, 0.86, "", "white")
    box(ax, 4.3, 2.05, 0.74, 1.26, "", "white", MARK)
    write(ax, 2.46, 3.1, "the cache: 5 earlier tokens", weight="bold")
    write(ax, 4.67, 3.45, "new token", weight="bold")
    for y, name, colour in (
        (2.93, "", QUERY),
        (2.53, "keys", KEY),
        (2.13, "values", VALUE),
    ):
        write(ax, 0.41, y + 0.15, name)
        for column, token in enumerate(TOKENS):
            if name or column == 5:
                x = 0.83 + 0.66 * column + 0.24 * (column == 5)
                box(ax, x, y, 0.6, 0.3, token, colour)
    write(ax, 5.32, 3.08, "query")
    done, now = "#d6d6d6", MARKED
    tiles = [[done] * 8] * 2 + [[done] * 2 + [now] * 2 + ["white"] * 4] * 2
    matrix(ax, 0.75, 0.22, tiles + [["white"] * 8] * 4, 0.175, edge="#d6d6d6")
    for at in (0.35, 0.7, 1.05):
        arrow(ax, (0.75 + at, 0.22), (0.75 + at, 1.62), head=False, width=1)
        arrow(ax, (0.75, 0.22 + at), (2.15, 0.22 + at), head=False, width=1)
    write(ax, 1.45, 1.76, "scores, tile by tile", weight="bold")
    write(ax, 1.45, 0.11, "keys", 8)
    write(ax, 0.62, 0.92, "queries", 8, rotation=90, va="center")
    arrow(ax, (2.15, 1.1), (2.65, 1.1))
    kept = ["largest score,", "sum of exponentials,", "weighted sum of values"]
    box(ax, 2.65, 0.62, 2.39, 0.96, "\n".join(["for each query, so far:", *kept]))
