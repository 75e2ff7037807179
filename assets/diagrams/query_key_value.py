"""Draws how embeddings become queries, keys and values: the numbers of lesson 01."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *

CELL = 0.24
EMBEDDINGS = [[1, *[0] * 7], [0, 1, 1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 1, 0]]
EMBEDDINGS += [[0, 0, 0, 0, 1, 0, 0, 0], EMBEDDINGS[0], [0, 1, 0, 0, 1, 0, 0, 1]]
W_Q = [[3, 1, 0, 0], [0, 0, 4, 0], [0] * 4, [2, 2, 0, 0], [1, 0, 0, 2]] + 3 * [[0] * 4]
QUERIES = (np.array(EMBEDDINGS) @ np.array(W_Q)).tolist()
FEATURES = "article noun alive verb place cat sit mat".split()
KINDS = FEATURES[1:5]  # the columns of queries and keys
TOP, SAT, VERB, SIT = 2.2, 2, 3, 6  # the upper edge, and the marked rows


def query_key_value():
    """From embeddings to queries, keys and values. Left: the 6 embeddings (6 × 8) times
    W_q (8 × 4) are the queries (6 × 4). Look at the marked rows: the embedding of "sat"
    has a 1 at "verb" and at "sit", so its query is the sum of these two rows of W_q.
    The row "sit" is zero, so the query is the row "verb", (2, 2, 0, 0). Right: in the
    same way, the keys (6 × 4) and the values (6 × 3). The key of "sat" is (0, 0, 1, 0),
    and its value is (0, 1, 0).
    """
    ax = ground(3.4)
    for row, token in enumerate(TOKENS):
        _label(ax, 0.6, row, token, row == SAT)
    x = _numbers(ax, 0.65, EMBEDDINGS, "white", "embeddings $x$", FEATURES, [SAT])
    write(ax, x + 0.14, TOP - 3 * CELL, r"$\times$", 13)
    for row, feature in enumerate(FEATURES):
        _label(ax, x + 0.8, row, feature, row in (VERB, SIT))
    x = _numbers(ax, x + 0.85, W_Q, QUIET, "$W_q$", KINDS, [VERB, SIT])
    write(ax, x + 0.17, TOP - 3 * CELL, "=", 13)
    keys, values = ([e[1:5] for e in EMBEDDINGS], [e[5:] for e in EMBEDDINGS])
    for gap, name, rows, colour, columns, below in (
        (0.34, "queries $q$", QUERIES, QUERY, KINDS, "what it looks for"),
        (0.7, "keys $k$", keys, KEY, KINDS, "how it is found"),
        (0.5, "values $v$", values, VALUE, FEATURES[5:], "what it passes on"),
    ):
        x = _numbers(ax, x + gap, rows, colour, name, columns, [SAT])
        letter = name[-2]
        middle = x - len(rows[0]) * CELL / 2
        write(ax, middle, TOP - 6 * CELL - 0.2, rf"$x\,W_{letter}$", 10)
        write(ax, middle, TOP - 6 * CELL - 0.4, below, 8)
    return ax.figure


def _label(ax, x, row, text, marked):
    """Write what a row is, on its left."""
    weight = "bold" if marked else "normal"
    write(ax, x, TOP - (row + 0.5) * CELL, text, 8, ha="right", weight=weight)


def _numbers(ax, x, rows, colour, name, names, marked) -> float:
    """Draw a matrix with its numbers, the names of its columns, and frames.

    Return its right edge.
    """
    end = numbered(ax, x, TOP, rows, colour, CELL, framed=marked)
    for j, text in enumerate(names):
        at = x + (j + 0.5) * CELL, TOP + 0.06
        write(ax, *at, text, 8, rotation=90, va="bottom")
    write(ax, (x + end) / 2, 3.2, name, 10, weight="bold")
    write(ax, (x + end) / 2, 3.0, rf"${len(rows)} \times {len(rows[0])}$", 8)
    return end
