"""Draws the block, the encoder and the language model."""

import numpy as np
from drawing import (
    MARK,
    MARKED,
    PALE,
    TOKENS,
    arrow,
    box,
    matrix,
    plus,
    write,
)


def block(ax):
    """Map of the transformer, lesson 06: the transformer block. The residual stream is
    the grey arrow. Attention and the MLP, each after a layer norm, read from the stream
    and add their outputs to it. (The model of this lesson has no positional encodings
    at the bottom: its positions enter inside attention.)
    """
    stream = 0.95
    arrow(ax, (0.1, stream), (5.55, stream), width=5, colour="#b0b0b0")
    for x, name, steps, does in (
        (0.3, "multi-head attention", ("q, k, v", "heads", "project"), "mixes tokens"),
        (3.0, "MLP", ("linear", "GELU", "linear"), "each token by itself"),
    ):
        arrow(ax, (x + 0.4, stream), (x + 0.4, 1.4))
        box(ax, x, 1.4, 0.8, 0.28, "layer norm", size=8)
        arrow(ax, (x + 0.4, 1.68), (x + 0.4, 2.1))
        box(ax, x, 2.1, 2.34, 1.25, "", MARKED, MARK)
        write(ax, x + 1.17, 3.15, name, weight="bold")
        for i, step in enumerate(steps):
            box(ax, x + 0.1 + 0.76 * i, 2.58, 0.62, 0.3, step, "white")
            if i:
                arrow(ax, (x + 0.76 * i - 0.04, 2.73), (x + 0.1 + 0.76 * i, 2.73))
        write(ax, x + 1.17, 2.3, does)
        arrow(ax, (x + 1.93, 2.1), (x + 1.93, stream + 0.13))
        plus(ax, x + 1.93, stream, MARKED, MARK, 0.13)
    write(ax, 2.8, 0.45, "residual stream: one vector of embed_dim numbers per token")


def encoder(ax):
    """Map of the transformer, lesson 09: a pretrained encoder of 6 layers with 12 heads
    each. Which of its 72 attention heads connect words that grammar connects?
    """
    places = 0.52 + 0.92 * np.arange(6)
    for x, token in zip(places, TOKENS):
        box(ax, x - 0.32, 2.2, 0.64, 0.3, token, "white")
    for start, end, top, relation in (  # from the word to its head
        (places[0], places[1] - 0.12, 2.82, "det"),
        (places[1] + 0.12, places[2] - 0.12, 2.82, "nsubj"),
        (places[4], places[5] - 0.2, 2.82, "det"),
        (places[3], places[5] - 0.04, 3.16, "case"),
        (places[5] + 0.14, places[2] + 0.12, 3.5, "obl"),
    ):
        arrow(ax, (start, 2.5), (start, top), (end, top), (end, 2.5))
        width = 0.08 + 0.068 * len(relation)
        box(
            ax,
            (start + end - width) / 2,
            top - 0.1,
            width,
            0.2,
            relation,
            PALE,
            PALE,
            8,
        )
    matrix(ax, 0.95, 0.4, [[MARKED] * 12] * 6, 0.25)
    write(ax, 0.6, 0.53, "layer 0")
    write(ax, 0.6, 1.78, "layer 5")
    write(ax, 2.45, 0.26, "12 heads in each of 6 layers")
    box(
        ax,
        4.15,
        0.7,
        1.35,
        0.9,
        "Which of the\n72 attention heads\nfollow an arc?",
        "white",
    )


def language_model(ax):
    """Map of the transformer, lesson 11: a language model of 30 layers with 9 heads
    each. It predicts the next token of a text; a token is sampled from the
    probabilities and put at the end of the text, and the model predicts again. (Here
    the most probable token is taken, the norms are RMSNorm, and positions enter inside
    attention, so the grey box at the bottom is not used.)
    """
    for i, token in enumerate(TOKENS):
        new = {"fill": MARKED, "edge": MARK} if i == 5 else {"fill": "white"}
        box(ax, 0.5 + 0.78 * i, 0.35, 0.66, 0.32, token, **new)
    arrow(ax, (2.39, 0.67), (2.39, 1.15))
    box(ax, 0.5, 1.15, 3.78, 0.5, "30 layers × 9 heads")
    arrow(ax, (2.39, 1.65), (2.39, 2.02))
    write(ax, 2.39, 3.45, "next-token probabilities", weight="bold")
    words = ("mat", 0.9), ("floor", 0.6), ("bed", 0.45), ("sofa", 0.3)
    for i, (word, length) in enumerate(words):
        y = 3.07 - 0.28 * i
        write(ax, 1.4, y, word, ha="right")
        new = {"fill": MARKED, "edge": MARK} if i == 0 else {}
        box(ax, 1.5, y - 0.09, 2 * length, 0.18, "", **new)
    arrow(ax, (3.3, 3.07), (4.73, 3.07), (4.73, 0.67), colour=MARK, width=1.8)
    box(ax, 4.38, 2.0, 0.7, 0.3, "sample", MARKED, MARK)
