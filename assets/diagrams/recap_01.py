"""Draws what closes lesson 01: attention in matrices, with numbers."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *
from assets.diagrams.one_query import KEYS, VALUES
from assets.diagrams.query_key_value import EMBEDDINGS, QUERIES

CELL, ROWS, SAT = 0.23, 6, 2
UPPER, LOWER = 2.7, 0.68  # the lower edges of both rows of matrices


def recap_01():
    """Attention in matrices, with the numbers of the sentence; the row of "sat" has a
    frame. Above: the embeddings x (6 × 8) times W_q, W_k and W_v give Q (6 × 4), K
    (6 × 4) and V (6 × 3). Below: Q times K transposed gives the scores (6 × 6), for
    "sat" 4 at "cat" and 2 at "mat". They are divided by √4, and the softmax makes each
    row sum to 1: "sat" gives 0.52 to "cat" and 0.19 to "mat". The weights (6 × 6) times
    V (6 × 3) give the output (6 × 3). With a mask, each hidden score becomes −∞ before
    the softmax.
    """
    ax = ground(4.6)
    _words(ax, 0.95, UPPER)
    x = _numbers(ax, 1.0, UPPER, EMBEDDINGS, "white", "embeddings $x$", "L × E")
    middle = UPPER + 0.5 * ROWS * CELL
    arrow(ax, (x + 0.15, middle), (x + 1.35, middle))
    write(ax, x + 0.75, middle + 0.14, r"$\times\ W_q,\ W_k,\ W_v$")
    x += 1.6
    for name, rows, colour, shape in (
        (r"$Q = x\,W_q$", QUERIES, QUERY, "L × d_k"),
        (r"$K = x\,W_k$", KEYS, KEY, "S × d_k"),
        (r"$V = x\,W_v$", VALUES, VALUE, "S × d_v"),
    ):
        x = 0.55 + _numbers(ax, x, UPPER, rows, colour, name, shape)
    _lower(ax)
    note = "with a mask, each hidden score becomes −∞ before the softmax"
    write(ax, 4.5, 0.17, note, 8)
    return ax.figure


def _lower(ax):
    """Draw how the scores become weights, and the weights outputs."""
    scores = np.array(QUERIES) @ np.array(KEYS).T
    weights = softmax(scores / 2)
    middle = LOWER + 0.5 * ROWS * CELL
    _words(ax, 0.6, LOWER)
    x = 0.65
    for name, rows, fill, cell, shape, then in (
        (r"scores $QK^\top$", scores, viridis(scores / 4), CELL, "L × S", "÷ √4"),
        ("scaled scores", scores / 2, viridis(scores / 8), CELL, "L × S", "softmax"),
        ("weights", weights, viridis(weights), 0.31, "L × S", "×"),
        ("$V$", VALUES, VALUE, CELL, "S × d_v", "="),
        ("output", weights @ np.array(VALUES), VALUE, 0.31, "L × d_v", ""),
    ):
        x = _numbers(ax, x, LOWER, rows, fill, name, shape, cell)
        if len(then) > 1:
            arrow(ax, (x + 0.06, middle), (x + 0.56, middle))
            write(ax, x + 0.31, middle + 0.14, then, 8)
            x += 0.64
        else:
            write(ax, x + 0.14, middle, then, 13)
            x += 0.28


def _words(ax, x, y):
    """Write the tokens beside a matrix."""
    for row, token in enumerate(TOKENS):
        weight = "bold" if row == SAT else "normal"
        at = y + (ROWS - row - 0.5) * CELL
        write(ax, x, at, token, 8, ha="right", weight=weight)


def _numbers(ax, x, y, rows, fill, name, shape, cell=CELL) -> float:
    """Draw a matrix with its numbers, its name and its size; return its right edge."""
    columns, top = len(rows[0]), y + ROWS * CELL
    end = numbered(ax, x, top, rows, fill, cell, CELL, [SAT])
    write(ax, (x + end) / 2, top + 0.18, name, 10, weight="bold")
    shape = f"${shape}$".replace("×", r"\times")
    write(ax, (x + end) / 2, y - 0.17, f"{shape}  =  {ROWS} × {columns}", 8)
    return end
