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
    arrow(ax, (0.1, stream), (5.15, stream), width=5, colour=STREAM_GREY, head=False)
    for x, name, steps, does in (
        (0.22, "multi-head attention", ("q, k, v", "heads", "project"), "mixes tokens"),
        (2.5, "MLP", ("linear", "GELU", "linear"), "each token by itself"),
    ):
        arrow(ax, (x + 0.4, stream), (x + 0.4, 1.02))
        box(ax, x, 1.02, 0.8, 0.24, "layer norm", size=8)
        arrow(ax, (x + 0.4, 1.26), (x + 0.4, 1.42))
        box(ax, x, 1.42, 2.1, 0.86, "", MARKED, MARK)
        write(ax, x + 1.05, 2.13, name, **BOLD)
        for i, step in enumerate(steps):
            box(ax, x + 0.08 + 0.68 * i, 1.71, 0.58, 0.26, step, "white", size=8)
            if i:
                arrow(ax, (x + 0.68 * i - 0.02, 1.84), (x + 0.08 + 0.68 * i, 1.84))
        write(ax, x + 1.05, 1.55, does, 8)
        arrow(ax, (x + 1.8, 1.42), (x + 1.8, stream + 0.12))
        plus(ax, x + 1.8, stream, MARKED, MARK, 0.12)
    write(ax, 2.4, 0.42, "residual stream: one vector of 128 numbers per token", 8)
    arrow(ax, (5.15, stream), (5.15, 1.5), width=5, colour=STREAM_GREY, head=False)
    box(ax, 4.82, 1.5, 0.7, 0.62, "norm,\noutput\nlayer", MARKED, MARK, 8)
    arrow(ax, (5.15, 2.12), (5.15, 2.78), **FLOW)
    box(ax, 0.1, 2.68, 4.62, 0.84, "", "white")
    for y, line in (
        (3.33, "There was a girl named Kim. She had a yellow kite."),
        (3.1, "She had a friend, a girl named Nicky. …"),
        (2.87, "When the moon came up, Kim had the"),
    ):
        write(ax, 0.22, y, line, ha="left")
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
    rows = [list(map(int, row)) + [0] * (17 - len(row)) for row in TENTHS.split()]
    weights = (np.array(rows) + 0.5) / 10
    matrix(ax, x, y, viridis(weights, np.tri(17, dtype=bool)), cell)
    for i, token in enumerate(STORY):
        write(ax, x - 0.06, y + (16.5 - i) * cell, token, 8, ha="right")
        at = x + (i + 0.5) * cell, y - 0.06
        write(ax, *at, token, 8, rotation=90, ha="center", va="top")
    box(ax, x + 11 * cell, y, cell, cell, "", "none", MARK)
    bar = viridis(np.linspace(1, 0, 60)[:, None])
    matrix(ax, 3.42, y, bar, 17 * cell / 60, edge="none")
    write(ax, 3.44, y - 0.11, "0", 8)
    write(ax, 3.44, y + 17 * cell + 0.1, "1", 8)
    write(ax, x + 1.2, 3.5, "weights of head 0.0", **BOLD)
    write(ax, x + 1.2, 0.3, "key", **BOLD)
    write(ax, 0.2, y + 1.2, "query", rotation=90, va="center", **BOLD)
    write(ax, 4.64, 3.5, "weight on colours", **BOLD)
    names = "head 0.0", "uniform attention", "untrained model", "entropy-matched copy"
    for row, (name, length) in enumerate(zip(names, (0.94, 0.04, 0.05, 0.09))):
        low = 3.0 - 0.52 * row
        write(ax, 3.82, low + 0.2, name, 8, ha="left")
        look = (MARKED, MARK) if row == 0 else (QUIET, LINE)
        box(ax, 3.82, low - 0.09, 1.68 * length, 0.18, "", *look)
    arrow(ax, (3.82 + 1.68 * 0.09, 0.98), (3.82 + 1.68 * 0.94, 0.98), **FLOW)
    write(ax, 4.7, 0.8, "lift", color=MARK, **BOLD)


def specialised(ax):
    """Map of the transformer, lesson 08: 3 kinds of evidence on a head of the story
    model. At "Kim had the", the model predicts the colour of the kite, red. One of its
    8 heads stands out 3 times: it attends to the colour (pattern); without it, most of
    the colours are wrong (ablation); and its output, carried from a story with red to
    the same story with blue, makes the model predict red (patching).
    """
    line, x = 3.05, 0.42
    tokens = "She had a", "red", "kite.", "…", "Kim had", "the"
    for token, width in zip(tokens, (0.85, 0.42, 0.45, 0.25, 0.72, 0.4)):
        look = {"fill": MARKED, "edge": MARK} if token == "red" else {"fill": "white"}
        box(ax, x, line - 0.15, width, 0.3, token, **look)
        x += width + 0.1
    end = x - 0.3
    arrow(ax, (end, line + 0.15), (end, 3.4), (1.58, 3.4), (1.58, line + 0.15), **FLOW)
    write(ax, 2.8, 3.5, "attends to", 8)
    arrow(ax, (x - 0.1, line), (x + 0.25, line))
    box(ax, x + 0.25, line - 0.15, 0.45, 0.3, "red", MARKED, MARK)
    write(ax, x + 0.48, line - 0.28, "predicted", 8)
    patched = signed(np.array(PATCHED) / 14)
    evidence = (
        ("1  pattern", viridis(ON_COLOUR), "weight on the colour\n(yellow: 1)"),
        ("2  ablation", viridis(RIGHT), "colours right without\nit (yellow: all)"),
        ("3  patching", patched, "prediction with this head\ncarried over (red, blue)"),
    )
    for i, (title, colours, what) in enumerate(evidence):
        left = 0.12 + 1.84 * i
        box(ax, left, 0.2, 1.74, 2.3, "", "white", MARK)
        write(ax, left + 0.87, 2.3, title, **BOLD)
        _heads(ax, left + 0.32, 1.25, colours)
        write(ax, left + 0.87, 0.5, what, 8)


def _heads(ax, x, y, colours):
    """Draw a colour for each of 2 × 4 heads, and a frame around head 0.0."""
    cell = 0.32
    matrix(ax, x, y, colours, cell)
    box(ax, x, y, cell, cell, "", "none", MARK)
    for head in range(4):
        write(ax, x + (head + 0.5) * cell, y - 0.13, str(head), 8)
    write(ax, x + 2 * cell, y - 0.3, "head", 8)
    for layer in range(2):
        write(ax, x - 0.09, y + (layer + 0.5) * cell, str(layer), 8)
    write(ax, x - 0.22, y + cell, "layer", 8, rotation=90, va="center")


def encoder(ax):
    """Map of the transformer, lesson 09: a pretrained encoder of 6 layers with 12 heads
    each. Head 2.0 attends from an object to its verb, here from stars to watched: it is
    right for 0.74 of the objects, and the best fixed offset for 0.35. Below, the mean
    of a sentence's token vectors finds the sentences with a similar meaning.
    """
    x = 0.14
    words = "She watched the stars with a small telescope".split()
    widths = 0.42, 0.78, 0.38, 0.54, 0.45, 0.25, 0.55, 0.88
    for word, width in zip(words, widths):
        look = {"fill": MARKED, "edge": MARK} if word == "stars" else {"fill": "white"}
        box(ax, x, 2.72, width, 0.3, word, **look)
        x += width + 0.16
    arrow(ax, (2.31, 3.02), (2.31, 3.33), (1.11, 3.33), (1.11, 3.02), **FLOW)
    write(ax, 1.71, 3.46, "object → verb", 8)
    cell = 0.13
    table = [[QUIET] * 12 for _ in range(6)]
    table[3][0] = MARKED
    matrix(ax, 0.62, 1.55, table, cell)
    box(ax, 0.62, 1.55 + 2 * cell, cell, cell, "", MARKED, MARK)
    write(ax, 0.56, 1.55 + cell / 2, "layer 0", 8, ha="right")
    write(ax, 0.56, 1.55 + 5.5 * cell, "layer 5", 8, ha="right")
    write(ax, 0.62 + 6 * cell, 1.43, "12 heads in each of 6 layers", 8)
    for y, name, value in ((2.17, "head 2.0", 0.74), (1.8, "best fixed offset", 0.35)):
        look = (MARKED, MARK) if value > 0.5 else (QUIET, LINE)
        write(ax, 3.75, y, name, 8, ha="right")
        box(ax, 3.82, y - 0.1, 1.6 * value, 0.2, "", *look)
        write(ax, 3.9 + 1.6 * value, y, f"{value:.2f}", ha="left")
    write(ax, 4.42, 2.46, "finds the verb of an object", 8)
    box(ax, 0.12, 0.15, 5.4, 1.1, "", "white")
    _search(ax)


def _search(ax):
    """Draw a sentence, and how similar 2 others are to it."""
    box(ax, 0.24, 0.3, 1.5, 0.62, "The weather is\nlovely today.", MARKED, MARK, 8)
    arrow(ax, (1.74, 0.61), (2.0, 0.61))
    vector = np.random.default_rng(4).normal(0, 0.7, (8, 1))
    matrix(ax, 2.03, 0.29, signed(vector), 0.08)
    write(ax, 3.98, 1.1, "similarity", 8, ha="left")
    for y, sentence, similarity in (
        (0.84, "It’s so sunny outside!", 0.67),
        (0.4, "He drove to the stadium.", 0.10),
    ):
        arrow(ax, (2.14, 0.61), (2.3, y))
        write(ax, 2.34, y, sentence, 8, ha="left")
        box(ax, 3.98, y - 0.09, similarity, 0.18, "", MARKED if y > 0.5 else QUIET)
        write(ax, 4.04 + similarity, y, f"{similarity:.2f}", ha="left")
