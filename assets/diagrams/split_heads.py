"""Draws how a matrix of features is split into heads, and merged again."""

from drawing import HEADS, PALE, TOKENS, arrow, box, canvas, matrix, write

LENGTH, HEAD_DIM, CELL = 4, 4, 0.19
SIDE = HEAD_DIM * CELL
LOW = 1.57  # y of the matrices in the row


def split_heads():
    """Splitting 12 features into 3 heads. A matrix of 4 tokens × 12 features is viewed
    as 4 × 3 × 4 and transposed to 3 × 4 × 4: one matrix of 4 tokens × 4 features for
    each head. Merging goes the same way back.
    """
    ax = canvas(9, 3.9)
    box(ax, 0.03, 0.03, 8.94, 3.84, "", PALE)
    _tokens(ax, 0.55, LOW)
    _tokens(ax, 3.93, LOW)
    for head, colour in enumerate(HEADS[:3]):
        features = [[colour] * HEAD_DIM] * LENGTH
        matrix(ax, 0.62 + head * SIDE, LOW, features, CELL)
        x, y = 4.0 + head * (SIDE + 0.1), 2.52 - head * 0.98
        matrix(ax, x, LOW, features, CELL)
        write(ax, x + SIDE / 2, LOW - 0.13, f"head {head}", 8)
        matrix(ax, 7.9, y, features, CELL)
        _tokens(ax, 7.83, y)
        write(ax, 8.28, y - 0.11, f"head {head}", 8)
    above = LOW + SIDE + 0.22
    _shape(ax, 1.76, above, "length × embed_dim", "(4, 12)")
    _shape(ax, 5.24, above, "length × heads × head_dim", "(4, 3, 4)")
    _shape(ax, 7.86, 3.44, "heads × length × head_dim", "(3, 4, 4)")
    for start, end, step in ((2.98, 3.58, "view"), (6.6, 7.4, "transpose")):
        arrow(ax, (start, LOW + SIDE / 2), (end, LOW + SIDE / 2))
        write(ax, (start + end) / 2, LOW + SIDE / 2 + 0.13, step)
    arrow(
        ax, (8.66, 0.94), (8.82, 0.94), (8.82, 0.25), (1.76, 0.25), (1.76, LOW - 0.05)
    )
    box(ax, 3.65, 0.11, 3.2, 0.28, "merge: transpose back, reshape to (4, 12)", "white")
    return ax.figure


def _shape(ax, x, y, names, sizes):
    """Write a shape in names and in numbers, above its matrix."""
    write(ax, x, y + 0.2, names, 8)
    write(ax, x, y, sizes, weight="bold")


def _tokens(ax, x, y):
    """Write the tokens of the rows, at the left of a matrix."""
    for row, token in enumerate(TOKENS[:LENGTH]):
        write(ax, x, y + (LENGTH - row - 0.5) * CELL, token, 8, ha="right")
