"""Draws what lessons 06 to 09 are about, enlarged; a docstring is its alt text.

The weights and results of lessons 07 and 08 are those of the story model.
"""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

import numpy as np

from assets.diagrams.drawing import *

STORY = "⏎ There was a girl named Kim . She had a red kite . She lost the".split()
# weights of head 0.0 on it in tenths, rounded down, a word for each query
TENTHS = """9 09 207 3123 00008 000009 01151 09 012000021 001101102 11011000001 501
0001100001 09 00000001000011 0100022 000000000009"""
# heads 0 to 3 of layer 1, and below them of layer 0
ON_COLOUR = [[0.03, 0.03, 0.04, 0.04], [0.94, 0.06, 0.02, 0.15]]  # weight
RIGHT = [[1, 1, 1, 1], [0.21, 1, 1, 1]]  # colours, without this head
# logit difference
PATCHED = [[-14.0, -13.8, -13.8, -13.9], [12.4, -13.8, -13.7, -13.9]]


def block(ax):
    """Map of the transformer, lesson 06: a language model of 2 blocks that writes
    stories. The residual stream is the grey arrow. Attention and the MLP, each after a
    layer norm, read from the stream and add their outputs to it. At the end, the output
    layer predicts the next token, here yellow, which is then put at the end of the
    story. (Positions enter inside attention: the grey box at the bottom is not used.)
    """
    stream = 0.82
    box(ax, 0.1, 0.2, 4.62, 2.36, "", "white", MARK)
    write(ax, 0.22, 2.4, "block × 2", ha="left", **BOLD)
    up = (0.1, stream), (5.15, stream), (5.15, 1.5)
    for ends in zip(up, up[1:]):
        arrow(ax, *ends, width=5, colour=STREAM_GREY, head=False)
    for x, name, steps, does in (
        (0.22, "multi-head attention", ("q, k, v", "heads", "project"), "mixes tokens"),
        (2.5, "MLP", ("linear", "GELU", "linear"), "each token by itself"),
    ):
        arrow(ax, (x + 0.4, stream), (x + 0.4, 1.02))
        box(ax, x, 1.02, 0.8, 0.24, "layer norm", size=8)
        arrow(ax, (x + 0.4, 1.26), (x + 0.4, 1.42))
        box(ax, x, 1.42, 2.1, 0.86, "", MARKED, MARK)
        write(ax, x + 1.05, 2.13, name, **BOLD)
        write(ax, x + 1.05, 1.55, does, 8)
        for left, step in zip((x + 0.08, x + 0.76, x + 1.44), steps):
            box(ax, left, 1.71, 0.58, 0.26, step, "white", size=8)
        arrows(ax, 1.84, (x + 0.66, x + 0.76), (x + 1.34, x + 1.44))
        arrow(ax, (x + 1.8, 1.42), (x + 1.8, stream + 0.12))
        plus(ax, x + 1.8, stream, MARKED, MARK, 0.12)
    write(ax, 2.4, 0.42, "residual stream: one vector of 128 numbers per token", 8)
    box(ax, 4.82, 1.5, 0.7, 0.62, "norm,\noutput\nlayer", MARKED, MARK, 8)
    arrow(ax, (5.15, 2.12), (5.15, 2.78), **FLOW)
    box(ax, 0.1, 2.68, 4.62, 0.84, "", "white")
    story = {3.33: "There was a girl named Kim. She had a yellow kite."}
    story |= {3.1: "She had a friend, a girl named Nicky. …"}
    story |= {2.87: "When the moon came up, Kim had the"}
    column(ax, 0.22, story, 9, ha="left")
    box(ax, 4.82, 2.78, 0.7, 0.28, "yellow", MARKED, MARK)
    write(ax, 5.17, 3.2, "next token", 8)
    arrow(ax, (4.82, 2.89), (2.95, 2.89), **FLOW)


def seen(ax):
    """Map of the transformer, lesson 07: a head, recorded and judged. Left, the
    attention weights of head 0.0 of the story model on 17 tokens, with a row for each
    query and a column for each key: in the last row, "the" attends to "red". Right, its
    mean weight on colours, where a colour comes next, beside 3 baselines: uniform
    attention, an untrained model, and an entropy-matched untrained copy.
    """
    cell, x, y = 0.143, 0.88, 0.92
    top = y + 17 * cell
    rows = [list(map(int, row)) + [0] * (17 - len(row)) for row in TENTHS.split()]
    weights = (np.array(rows) + 0.5) / 10
    matrix(ax, x, y, viridis(weights, np.tri(17, dtype=bool)), cell)
    names(ax, x - 0.06, top, STORY, cell)
    for i, token in enumerate(STORY):
        write(ax, x + (i + 0.5) * cell, y - 0.06, token, 8, rotation=90, va="top")
    box(ax, x + 11 * cell, y, cell, cell, "", "none", MARK)
    scale = viridis(np.linspace(1, 0, 60)[:, None])
    matrix(ax, 3.42, y, scale, 17 * cell / 60, edge="none")
    column(ax, 3.44, {y - 0.11: "0", top + 0.1: "1"})
    row(ax, 3.5, {x + 1.2: "weights of head 0.0", 4.64: "weight on colours"}, 9, **BOLD)
    write(ax, x + 1.2, 0.3, "key", **BOLD)
    write(ax, 0.2, y + 1.2, "query", rotation=90, va="center", **BOLD)
    lengths = {"head 0.0": 0.94, "uniform attention": 0.04}
    lengths |= {"untrained model": 0.05, "entropy-matched copy": 0.09}
    for i, (name, length) in enumerate(lengths.items()):
        low = 3.0 - 0.52 * i
        write(ax, 3.82, low + 0.2, name, 8, ha="left")
        bar(ax, 3.82, low, 1.68 * length, "", i == 0)
    arrow(ax, (3.82 + 1.68 * 0.09, 0.98), (3.82 + 1.68 * 0.94, 0.98), **FLOW)
    write(ax, 4.7, 0.8, "lift", color=MARK, **BOLD)


def specialised(ax):
    """Map of the transformer, lesson 08: 3 kinds of evidence on a head of the story
    model. At "Kim had the", the model predicts the colour of the kite, red. One of its
    8 heads stands out 3 times: it attends to the colour (pattern); without it, most of
    the colours are wrong (ablation); and its output, carried from a story with red to
    the same story with blue, makes the model predict red (patching).
    """
    line = 3.05
    tokens = "She had a", "red", "kite.", "…", "Kim had", "the"
    widths = 0.85, 0.42, 0.45, 0.25, 0.72, 0.4
    x = words(ax, 0.42, line, tokens, widths, 0.1, "red")
    end = x - 0.3
    arrow(ax, (end, line + 0.15), (end, 3.4), (1.58, 3.4), (1.58, line + 0.15), **FLOW)
    write(ax, 2.8, 3.5, "attends to", 8)
    arrow(ax, (x - 0.1, line), (x + 0.25, line))
    box(ax, x + 0.25, line - 0.15, 0.45, 0.3, "red", MARKED, MARK)
    write(ax, x + 0.48, line - 0.28, "predicted", 8)
    patched = signed(np.array(PATCHED) / 14)
    for x, title, colours, what in (
        (0.12, "1  pattern", viridis(ON_COLOUR), "weight on the colour\n(yellow: 1)"),
        (
            1.96,
            "2  ablation",
            viridis(RIGHT),
            "colours right without\nit (yellow: all)",
        ),
        (
            3.8,
            "3  patching",
            patched,
            "prediction with this head\ncarried over (red, blue)",
        ),
    ):
        box(ax, x, 0.2, 1.74, 2.3, "", "white", MARK)
        write(ax, x + 0.87, 2.3, title, **BOLD)
        _heads(ax, x + 0.32, 1.25, colours)
        write(ax, x + 0.87, 0.5, what, 8)


def _heads(ax, x, y, colours):
    """Draw a colour for each of 2 × 4 heads, and a frame around head 0.0."""
    cell = 0.32
    matrix(ax, x, y, colours, cell)
    box(ax, x, y, cell, cell, "", "none", MARK)
    row(ax, y - 0.13, {x + (head + 0.5) * cell: str(head) for head in range(4)})
    column(ax, x - 0.09, {y + 0.5 * cell: "0", y + 1.5 * cell: "1"})
    write(ax, x + 2 * cell, y - 0.3, "head", 8)
    write(ax, x - 0.22, y + cell, "layer", 8, rotation=90, va="center")


def encoder(ax):
    """Map of the transformer, lesson 09: a pretrained encoder of 6 layers with 12 heads
    each. Head 2.0 attends from an object to its verb, here from stars to watched: it is
    right for 0.74 of the objects, and the best fixed offset for 0.35. Below, the mean
    of a sentence's token vectors finds the sentences with a similar meaning.
    """
    tokens = "She watched the stars with a small telescope".split()
    widths = 0.42, 0.78, 0.38, 0.54, 0.45, 0.25, 0.55, 0.88
    words(ax, 0.14, 2.87, tokens, widths, 0.16, "stars")
    arrow(ax, (2.31, 3.02), (2.31, 3.33), (1.11, 3.33), (1.11, 3.02), **FLOW)
    write(ax, 1.71, 3.46, "object → verb", 8)
    cell = 0.13
    table = [[QUIET] * 12 for _ in range(6)]
    table[3][0] = MARKED
    matrix(ax, 0.62, 1.55, table, cell)
    box(ax, 0.62, 1.55 + 2 * cell, cell, cell, "", MARKED, MARK)
    layers = {1.55 + cell / 2: "layer 0", 1.55 + 5.5 * cell: "layer 5"}
    column(ax, 0.56, layers, ha="right")
    write(ax, 0.62 + 6 * cell, 1.43, "12 heads in each of 6 layers", 8)
    for y, name, value in ((2.17, "head 2.0", 0.74), (1.8, "best fixed offset", 0.35)):
        bar(ax, 3.82, y, 1.6 * value, name, name == "head 2.0", 0.2, 0.07)
        write(ax, 3.9 + 1.6 * value, y, f"{value:.2f}", ha="left")
    write(ax, 4.42, 2.46, "finds the verb of an object", 8)
    box(ax, 0.12, 0.15, 5.4, 1.1, "", "white")
    box(ax, 0.24, 0.3, 1.5, 0.62, "The weather is\nlovely today.", MARKED, MARK, 8)
    arrow(ax, (1.74, 0.61), (2.0, 0.61))
    vector = np.random.default_rng(4).normal(0, 0.7, (8, 1))
    matrix(ax, 2.03, 0.29, signed(vector), 0.08)
    write(ax, 3.98, 1.1, "similarity", 8, ha="left")
    for y, sentence, similarity, fill in (
        (0.84, "It’s so sunny outside!", 0.67, MARKED),
        (0.4, "He drove to the stadium.", 0.10, QUIET),
    ):
        arrow(ax, (2.14, 0.61), (2.3, y))
        write(ax, 2.34, y, sentence, 8, ha="left")
        box(ax, 3.98, y - 0.09, similarity, 0.18, "", fill)
        write(ax, 4.04 + similarity, y, f"{similarity:.2f}", ha="left")
