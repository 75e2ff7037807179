"""Draws positional encodings, and the three places where positions enter."""

import matplotlib.pyplot as plt
import numpy as np
from drawing import (
    KEY,
    LINE,
    MARK,
    MARKED,
    QUERY,
    arrow,
    box,
    matrix,
    plus,
    signed,
    write,
)


def sinusoidal(length, dim=8) -> np.ndarray:
    """Return the sinusoidal encodings, (length, dim), of Vaswani et al. 2017."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, dim, 2) / dim)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, dim)


def encodings(ax):
    """Map of the transformer, lesson 04: positional encodings. To the embedding of each
    of 3 tokens, "dog bites man", the encoding of its position, 0, 1 or 2, is added.
    Below, the encodings of 30 positions: the first features change fast, the last
    slowly.
    """
    tokens, positions = np.random.default_rng(0).normal(0, 0.5, (3, 8)), sinusoidal(30)
    titles = (1.34, "embedding"), (3.18, "encoding"), (4.9, "sum")
    for x, title in titles:
        write(ax, x, 3.42, title, weight="bold")
    for row, token in enumerate("dog bites man".split()):
        y = 3.0 - 0.42 * row
        box(ax, 0.1, y, 0.55, 0.26, token)
        matrix(ax, 0.78, y + 0.06, signed(tokens[[row]]), 0.14)
        plus(ax, 2.1, y + 0.13, MARKED, MARK)
        box(ax, 2.3, y, 0.24, 0.26, str(row), MARKED)
        matrix(ax, 2.62, y + 0.06, signed(positions[[row]]), 0.14)
        write(ax, 4.04, y + 0.13, "=", 12)
        matrix(ax, 4.34, y + 0.06, signed(tokens[[row]] + positions[[row]]), 0.14)
    write(ax, 2.88, 1.83, "encodings of 30 positions", weight="bold")
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
    for start, end in ((1.1, 1.72), (2.77, 3.42), (4.02, 4.72)):
        arrow(ax, (start, flow), (end, flow))
    parts = (
        (1.41, 1.0, "1  added to the\nembeddings", "sinusoidal, learned"),
        (3.09, 2.83, "2  rotate queries\nand keys", "RoPE"),
        (4.37, 4.66, "3  added to\nthe scores", "ALiBi, T5"),
    )
    for place, x, title, names in parts:
        arrow(ax, (x, 2.62), (place, flow - 0.12), colour=MARK, head=False)
        box(ax, x - 0.86, 0.2, 1.72, 2.42, "", "white", MARK)
        write(ax, x, 2.33, title, weight="bold")
        write(ax, x, 0.4, names)
        box(ax, place - 0.13, flow - 0.13, 0.26, 0.26, title[0], MARKED, MARK)
    matrix(ax, 0.52, 0.8, signed(sinusoidal(8)), 0.12)
    _rotation(ax, 2.83, 1.3)
    distance = np.arange(6)[:, None] - np.arange(6)
    bias = signed(-distance / 4, distance >= 0)
    matrix(ax, 4.18, 0.8, bias, 0.16)


def _rotation(ax, x, y):
    """Draw a query and a key that have been turned by the angles of their positions."""
    ax.add_patch(plt.Circle((x, y), 0.52, fc="none", ec=LINE, lw=0.8))
    for degrees, colour, letter in ((70, QUERY, "q"), (20, KEY, "k")):
        way = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
        arrow(ax, (x, y), (x, y) + 0.52 * way)
        box(ax, *((x, y) + 0.66 * way - 0.11), 0.22, 0.22, letter, colour)
