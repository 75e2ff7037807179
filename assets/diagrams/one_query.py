"""Draws how one query attends, in three steps: the numbers of lesson 01, section 1."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *
from assets.diagrams.query_key_value import EMBEDDINGS, QUERIES

CELL, TOP, ROWS = 0.26, 2.12, 6
KEYS, VALUES = [e[1:5] for e in EMBEDDINGS], [e[5:] for e in EMBEDDINGS]
SCORES = np.array(KEYS) @ QUERIES[2]  # of sat
WEIGHTS = softmax(SCORES)
OUTPUT = WEIGHTS @ np.array(VALUES)
HEIGHTS = [TOP - 0.3 * (row + 0.5) for row in range(ROWS)]
MIDDLE = TOP - 0.15 * ROWS


def one_query():
    """All 3 steps. Step 1: the dot products of the query of "sat" with the 6 keys are
    the scores; that of "cat" is the largest, 4. Step 2: the softmax turns the scores
    into weights. Each exponential is divided by the sum of all, 66.0, so the weight of
    "cat" is 54.6 / 66.0 = 0.83. Step 3: each value is multiplied by its weight, and the
    results are added up. The output of "sat" is mostly the value of "cat".
    """
    ax = ground(2.72)
    _scores(ax, 2, SCORES, "1 scores", True)
    _weights(ax, 4.4, SCORES, "2 weights", True)
    _output(ax, True)
    return ax.figure


def one_query_masked():
    """One row under the causal mask, for the query of "cat". The 4 keys after "cat" are
    hidden: each of their scores is replaced by −∞. So their exponentials are 0, and
    their weights, too, although "sat" had the highest score. The 2 visible keys have
    equal scores, and get 0.50 each.
    """
    ax = ground(2.72)
    scores = np.array(KEYS) @ QUERIES[1] / 2  # of cat, divided by the root of 4
    masked = np.where(np.arange(ROWS) < 2, scores, -np.inf)
    _scores(ax, 1, scores, "scores", below=r"$q \cdot k\; /\, \sqrt{d_k}$")
    _head(ax, 4.95, "masked", "−∞ if hidden", True)
    for y, score in zip(HEIGHTS, masked):
        arrow(ax, (3.75, y), (4.58, y), width=0.8)
        hidden = np.isinf(score)
        matrix(ax, 4.65, y - CELL / 2, [[None if hidden else "white"]], 0.6, LINE, CELL)
        if hidden:
            box(ax, 4.79, y - 0.09, 0.32, 0.18, "", PALE, PALE)
        write(ax, 4.95, y, "−∞" if hidden else f"{score:g}", 10)
        arrow(ax, (5.32, y), (6.05, y), width=0.8)
    _weights(ax, 6.45, masked, "weights")
    return ax.figure


def _scores(ax, token, scores, name, new=False, below=r"$q \cdot k$"):
    """Draw the query of a token, the keys, and the scores."""
    _head(ax, 0.72, "query", f"of {TOKENS[token]}")
    _numbers(ax, 0.2, MIDDLE, QUERIES[token], QUERY)
    _head(ax, 2.52, "keys", "")
    _head(ax, 3.55, name, below, new)
    for token, y, key, score in zip(TOKENS, HEIGHTS, KEYS, scores):
        arrow(ax, (1.24, MIDDLE), (1.6, y), head=False, width=0.8)
        write(ax, 1.94, y, token, ha="right")
        _numbers(ax, 2.0, y, key, KEY)
        arrow(ax, (3.1, y), (3.36, y), width=0.8)
        write(ax, 3.55, y, f"{score:g}", 10, **_bold(score, scores))


def _weights(ax, x, scores, name, new=False):
    """Draw the exponentials, in the column at x, and the weights."""
    weights = softmax(scores)
    _head(ax, x, "$e^s$", "")
    _head(ax, x + 1.1, name, "÷ their sum", new)
    for y, score, weight in zip(HEIGHTS, scores, weights):
        if x < 5:  # no column stands between the scores and this one
            arrow(ax, (3.75, y), (4.05, y), width=0.8)
        write(ax, x + 0.2, y, f"{np.exp(score):.1f}", ha="right")
        arrow(ax, (x + 0.32, y), (x + 0.58, y), width=0.8)
        if weight:
            box(ax, x + 0.66, y - 0.09, max(weight, 0.03), 0.18, "", MARKED)
        place = x + 0.72 + weight, y, f"{weight:.2f}", 10
        write(ax, *place, ha="left", **_bold(weight, weights))
    write(ax, x + 0.2, 0.2, f"sum {np.exp(scores).sum():.1f}", 8, ha="right")


def _output(ax, new):
    _head(ax, 7.05, "values", "cat, sit, mat")
    _head(ax, 8.33, "3 output", "of sat", new)
    for y, value, weight in zip(HEIGHTS, VALUES, WEIGHTS):
        write(ax, 6.5, y, r"$\times$", 10)
        _numbers(ax, 6.66, y, value, VALUE)
        arrow(ax, (7.44, y), (7.84, MIDDLE), head=False, width=0.5 + 6 * weight)
    _numbers(ax, 7.84, MIDDLE, OUTPUT.round(2), VALUE, 0.33)


def _bold(number, numbers):
    """Return the weight of the font: bold for the largest number."""
    return {"weight": "bold" if number == max(numbers) else "normal"}


def _head(ax, x, name, below, new=False):
    """Write what a column is; a new one is marked."""
    write(ax, x, 2.46, name, 10, weight="bold", color=MARK if new else INK)
    write(ax, x, 2.26, below, 8)


def _numbers(ax, x, y, numbers, colour, cell=CELL):
    """Draw a vector with its numbers, y its middle."""
    numbered(ax, x, y + CELL / 2, [numbers], colour, cell, CELL)
