"""Draws how a matrix of features is split into heads, and merged again."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *

LENGTH, HEAD_DIM, CELL = 6, 4, 0.18
WIDTH, HEIGHT = HEAD_DIM * CELL, LENGTH * CELL  # of one head
LOW = 1.65  # y of the matrices in the row


def split_heads():
    """Splitting 8 features into 2 heads. A matrix of 6 tokens × 8 features is cut into
    6 × 2 × 4 (tokens × heads × head_dim) and transposed to 2 × 6 × 4: one matrix of 6
    tokens × 4 features for each head. Merging goes the same way back.
    """
    ax = ground(4.4)
    _tokens(ax, 0.55, LOW)
    _tokens(ax, 4.13, LOW)
    for head, colour in enumerate(HEADS[:2]):
        features = [[colour] * HEAD_DIM] * LENGTH
        matrix(ax, 0.62 + head * WIDTH, LOW, features, CELL)
        x, y = 4.2 + head * (WIDTH + 0.1), 2.5 - head * 1.55
        matrix(ax, x, LOW, features, CELL)
        write(ax, x + WIDTH / 2, LOW - 0.13, f"head {head}", 8)
        matrix(ax, 7.9, y, features, CELL)
        _tokens(ax, 7.83, y)
        write(ax, 7.9 + WIDTH / 2, y - 0.11, f"head {head}", 8)
    above = LOW + HEIGHT + 0.22
    _shape(ax, 1.34, above, "length × embed_dim", "(6, 8)")
    _shape(ax, 5.18, above, "length × heads × head_dim", "(6, 2, 4)")
    _shape(ax, 7.86, 3.98, "heads × length × head_dim", "(2, 6, 4)")
    for start, end, step in ((2.98, 3.58, "unflatten"), (6.6, 7.4, "transpose")):
        arrow(ax, (start, LOW + HEIGHT / 2), (end, LOW + HEIGHT / 2))
        write(ax, (start + end) / 2, LOW + HEIGHT / 2 + 0.13, step)
    arrow(ax, (8.66, 1.49), (8.82, 1.49), head=False)  # both heads go back
    arrow(
        ax, (8.66, 3.04), (8.82, 3.04), (8.82, 0.25), (1.34, 0.25), (1.34, LOW - 0.05)
    )
    box(ax, 3.65, 0.11, 3.2, 0.28, "merge: transpose back, flatten to (6, 8)", "white")


def _shape(ax, x, y, names, sizes):
    """Write a shape in names and in numbers, above its matrix."""
    write(ax, x, y + 0.2, names, 8)
    write(ax, x, y, sizes, weight="bold")


def _tokens(ax, x, y):
    """Write the tokens of the rows, at the left of a matrix."""
    for row, token in enumerate(TOKENS[:LENGTH]):
        write(ax, x, y + (LENGTH - row - 0.5) * CELL, token, 8, ha="right")
