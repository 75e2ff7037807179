"""Draws how embeddings become queries, keys and values: the numbers of lesson 01."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *

CELL, ROWS = 0.26, 6
EMBEDDINGS = [[1, *[0] * 7], [0, 1, 1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 1, 0]]
EMBEDDINGS += [[0, 0, 0, 0, 1, 0, 0, 0], EMBEDDINGS[0], [0, 1, 0, 0, 1, 0, 0, 1]]
QUERIES = [[3, 1, 0, 0], [0, 0, 4, 0], [2, 2, 0, 0], [1, 0, 0, 2], [3, 1, 0, 0]]
QUERIES += [[1, 0, 4, 2]]


def query_key_value():
    """From embeddings to queries, keys and values. The 6 embeddings, with 8 features
    each, are multiplied by 3 matrices. Look at the marked row of "sat": its embedding
    becomes the query (2, 2, 0, 0), the key (0, 0, 1, 0) and the value (0, 1, 0).
    """
    ax = ground(3.15)
    y, trunk = 0.82, 0.3
    _numbers(ax, 0.75, y, EMBEDDINGS, "white", "embeddings $x$", "")
    for row, token in enumerate(TOKENS):
        weight = "bold" if row == 2 else "normal"
        at = y + (ROWS - row - 0.5) * CELL
        write(ax, 0.67, at, token, 9, ha="right", weight=weight)
    start = 0.75 + 4 * CELL
    arrow(ax, (start, y), (start, trunk), head=False)
    x = 4.1
    for letter, name, question, rows, colour in (
        ("q", "queries", "what it looks for", QUERIES, QUERY),
        ("k", "keys", "how it is found", [e[1:5] for e in EMBEDDINGS], KEY),
        ("v", "values", "what it passes on", [e[5:] for e in EMBEDDINGS], VALUE),
    ):
        columns = len(rows[0])
        middle = x + columns * CELL / 2
        _numbers(ax, x, y, rows, colour, f"{name} ${letter}$", question)
        arrow(ax, (start, trunk), (middle, trunk), (middle, y - 0.04))
        write(ax, middle + 0.08, 0.52, rf"$\times\,W_{letter}$", 10, ha="left")
        x += columns * CELL + 0.75
    return ax.figure


def _numbers(ax, x, y, rows, colour, name, question):
    """Draw a matrix with its numbers; the row of "sat" has a frame."""
    columns = len(rows[0])
    matrix(ax, x, y, [[colour] * columns] * ROWS, CELL, edge="#d6d6d6")
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            at = (x + (j + 0.5) * CELL, y + (ROWS - i - 0.5) * CELL)
            write(ax, *at, f"{number:g}", 8, color=INK if number else "#707070")
    frame = {"fc": "none", "ec": MARK, "lw": 2}
    ax.add_patch(Rectangle((x, y + 3 * CELL), columns * CELL, CELL, **frame))
    middle = x + columns * CELL / 2
    write(ax, middle, 2.86, name, 10, weight="bold")
    write(ax, middle, 2.66, question, 8)
    write(ax, middle, 2.49, rf"$6 \times {columns}$", 8)
