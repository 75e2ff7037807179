"""Draws what closes lesson 06: the language model, its matrices with their sizes."""

import numpy as np

from assets.diagrams.drawing import (
    HEADS,
    MARK,
    MARKED,
    QUIET,
    arrow,
    beside,
    box,
    ground,
    matrix,
    plus,
    signed,
    softmax,
    stack,
    viridis,
    write,
)
from assets.diagrams.recaps import GREY

STREAM = 1.12  # height of the residual stream in recap_06
START = ["⏎", "There", "was", "a", "girl", "named"]  # how each story begins


def recap_06():
    """The language model in matrices. The ids of 6 tokens choose rows of the embedding
    table (V × 128): the residual stream (6 × 128). In each of 2 blocks, a norm and
    attention with 4 heads (weights 4 × 6 × 6) add to the stream, then a norm and an MLP
    (128 to 512 to 128). After the last norm, the head (128 × V) gives the logits
    (6 × V). The softmax of the last row gives the probabilities of the next token.
    """
    ax, cell = ground(3.3), 0.045
    _embedded(ax, cell)
    box(ax, 2.6, 0.62, 4.2, 2.5, "", "white", MARK)
    write(ax, 2.75, 2.98, "block  × 2", 10, ha="left", weight="bold")
    arrow(ax, (2.38, STREAM), (6.95, STREAM), width=4, colour="#b0b0b0")
    write(ax, 4.7, 0.78, "residual stream:  6 × 128", 9)
    _adds(ax, 2.75, 1.55, "attention, 4 heads")
    random = np.random.default_rng(3)
    scores = np.where(np.tri(6), random.normal(0, 1.3, (4, 6, 6)), -np.inf)
    maps = [viridis(weights, np.tri(6, dtype=bool)) for weights in softmax(scores)]
    stack(ax, 2.87, 2.14, maps, 0.043, 0.035)
    write(ax, 3.09, 2.0, "4 × 6 × 6", 8)
    arrow(ax, (3.37, 2.33), (3.6, 2.33))
    merged = [colour for colour in HEADS for _ in range(2)]
    matrix(ax, 3.65, 2.2, [merged] * 6, cell)
    write(ax, 3.83, 2.0, "6 × 128", 8)
    _adds(ax, 4.47, 2.18, "MLP")
    matrix(ax, 4.57, 2.2, [[MARKED] * 32] * 6, cell)
    write(ax, 5.29, 2.0, "6 × 512", 8)
    arrow(ax, (6.04, 2.33), (6.18, 2.33))
    matrix(ax, 6.2, 2.2, [[GREY] * 8] * 6, cell)
    write(ax, 6.33, 2.0, "6 × 128", 8)
    _predicted(ax, cell)
    note = "6 tokens   ·   V tokens in the vocabulary   ·   embed_dim 128  =  4 heads "
    note += "× head_dim 32   ·   MLP: × (128 × 512), GELU, × (512 × 128)"
    write(ax, 4.5, 0.24, note, 8)
    return ax.figure


def _embedded(ax, cell):
    """Draw the ids, the table that they choose rows of, and these rows."""
    tall = 0.16
    for row, (token, id_) in enumerate(zip(START, (1, 27, 105, 31, 56, 76))):
        y = STREAM + (2.5 - row) * tall
        write(ax, 0.6, y, token, 8, ha="right")
        box(ax, 0.66, y - tall / 2, 0.34, tall, str(id_), "white", size=8)
    beside(ax, 0.83, STREAM - 3 * tall, 6 * tall, "ids", "6")
    arrow(ax, (1.02, STREAM), (1.24, STREAM))
    rows = [[MARKED if row in (0, 4, 5, 9, 12, 17) else QUIET] * 8 for row in range(22)]
    matrix(ax, 1.28, STREAM - 11 * cell, rows, cell)
    beside(ax, 1.46, STREAM - 11 * cell, 22 * cell, "embeddings", "V × 128")
    arrow(ax, (1.67, STREAM), (1.97, STREAM))
    matrix(ax, 2.0, STREAM - 3 * cell, [[MARKED] * 8] * 6, cell)
    beside(ax, 2.18, STREAM - 3 * cell, 6 * cell, "input", "6 × 128")


def _adds(ax, x, width, name):
    """Draw a part that takes the normed stream, and adds its output to the stream."""
    box(ax, x, 1.88, width, 0.96, "", QUIET)
    write(ax, x + 0.1, 2.7, name, ha="left", weight="bold")
    arrow(ax, (x + 0.35, STREAM), (x + 0.35, 1.45))
    box(ax, x + 0.08, 1.45, 0.54, 0.22, "norm", "white", size=8)
    arrow(ax, (x + 0.35, 1.67), (x + 0.35, 1.88))
    arrow(ax, (x + width - 0.2, 1.88), (x + width - 0.2, STREAM + 0.1))
    plus(ax, x + width - 0.2, STREAM, MARKED, MARK, 0.11)
    write(ax, x + width - 0.28, 1.55, "adds", 8, ha="right")


def _predicted(ax, cell):
    """Draw the last norm, the head, the logits, and what the last row of them says."""
    box(ax, 6.95, STREAM - 0.11, 0.46, 0.22, "norm", "white", size=8)
    write(ax, 7.5, STREAM, "×", 11)
    matrix(ax, 7.6, STREAM - 4 * cell, [[GREY] * 12] * 8, cell)
    beside(ax, 7.87, STREAM - 4 * cell, 8 * cell, "head", "128 × V")
    write(ax, 8.23, STREAM, "=", 11)
    logits = np.random.default_rng(0).normal(0, 1, (6, 12)) / 1.5
    matrix(ax, 8.33, STREAM - 3 * cell, signed(logits), cell)
    beside(ax, 8.6, STREAM - 3 * cell, 6 * cell, "logits", "6 × V")
    arrow(ax, (8.6, 1.52), (8.6, 1.84))
    write(ax, 8.52, 1.68, "last row", 8, ha="right")
    box(ax, 8.25, 1.86, 0.66, 0.24, "softmax", "white", size=8)
    arrow(ax, (8.6, 2.1), (8.6, 2.42))
    box(ax, 8.25, 2.44, 0.66, 0.28, "Kim", MARKED, MARK)
    write(ax, 8.55, 2.9, "next token", 9)
