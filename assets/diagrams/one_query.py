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
COMING = ((4.05, 2.3, "step 2"), (6.55, 2.28, "step 3"))  # x, width, and name


def one_query_1():
    """Step 1 of 3. The query of "sat" is compared with each of the 6 keys. Their dot
    products are the scores. The key of "cat" has the largest one, 4.
    """
    return _until(1)


def one_query_2():
    """Step 2 of 3. The softmax turns the scores into weights: each exponential is
    divided by the sum of all, 66.0. The weight of "cat" is 54.6 / 66.0 = 0.83.
    """
    return _until(2)


def one_query_3():
    """Step 3 of 3. Each value is multiplied by its weight, and the results are added
    up. The output of "sat" is mostly the value of "cat", because its weight is 0.83.
    """
    return _until(3)


def _until(step):
    ax = ground(2.72)
    _scores(ax, step == 1)
    for draw, number in ((_weights, 2), (_output, 3)):
        if number <= step:
            draw(ax, step == number)
    for x, width, name in COMING[step - 1 :]:  # not computed yet
        box(ax, x, 0.14, width, 2.44, name, QUIET, "#d6d6d6", 10, color="#707070")
    return ax.figure


def _scores(ax, new):
    _head(ax, 0.72, "query", "of sat")
    _numbers(ax, 0.2, MIDDLE, QUERIES[2], QUERY)
    _head(ax, 2.52, "keys", "")
    _head(ax, 3.55, "1 scores", r"$q \cdot k$", new)
    for token, y, key, score in zip(TOKENS, HEIGHTS, KEYS, SCORES):
        arrow(ax, (1.24, MIDDLE), (1.6, y), head=False, width=0.8)
        write(ax, 1.94, y, token, ha="right")
        _numbers(ax, 2.0, y, key, KEY)
        arrow(ax, (3.1, y), (3.36, y), width=0.8)
        write(ax, 3.55, y, f"{score:g}", 10, weight="bold" if score == 4 else "normal")


def _weights(ax, new):
    _head(ax, 4.4, "$e^s$", "")
    _head(ax, 5.5, "2 weights", "÷ their sum", new)
    for y, score, weight in zip(HEIGHTS, SCORES, WEIGHTS):
        arrow(ax, (3.75, y), (4.05, y), width=0.8)
        write(ax, 4.6, y, f"{np.exp(score):.1f}", ha="right")
        arrow(ax, (4.72, y), (4.98, y), width=0.8)
        box(ax, 5.06, y - 0.09, max(weight, 0.03), 0.18, "", MARKED)
        bold = "bold" if score == 4 else "normal"
        write(ax, 5.12 + weight, y, f"{weight:.2f}", 10, ha="left", weight=bold)
    write(ax, 4.6, 0.2, f"sum {np.exp(SCORES).sum():.1f}", 8, ha="right")


def _output(ax, new):
    _head(ax, 7.05, "values", "cat, sit, mat")
    _head(ax, 8.33, "3 output", "of sat", new)
    for y, value, weight in zip(HEIGHTS, VALUES, WEIGHTS):
        write(ax, 6.5, y, r"$\times$", 10)
        _numbers(ax, 6.66, y, value, VALUE)
        arrow(ax, (7.44, y), (7.84, MIDDLE), head=False, width=0.5 + 6 * weight)
    _numbers(ax, 7.84, MIDDLE, OUTPUT.round(2), VALUE, 0.33)


def _head(ax, x, name, below, new=False):
    """Write what a column is; a new one is marked."""
    write(ax, x, 2.46, name, 10, weight="bold", color=MARK if new else INK)
    write(ax, x, 2.26, below, 8)


def _numbers(ax, x, y, numbers, colour, cell=CELL):
    """Draw a vector with its numbers, y its middle."""
    matrix(ax, x, y - CELL / 2, [[colour] * len(numbers)], cell, "#d6d6d6", CELL)
    for j, number in enumerate(numbers):
        ink = INK if number else "#707070"
        write(ax, x + (j + 0.5) * cell, y, f"{number:g}", 8, color=ink)
