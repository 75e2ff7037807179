"""Draws the two-step induction circuit: what one head writes, another one finds."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *

A, B, C, D, AGAIN = 1.85, 3.5, 5.3, 6.2, 7.8  # places of the tokens
TOKENS, FIRST, SECOND, THIRD, LAST = 0.72, 1.35, 2.15, 2.63, 3.36  # heights


def composition():
    """The induction circuit in 2 steps, on the tokens A B C D A. Layer 0: the
    previous-token head attends from B to A, and writes "after A" into the residual
    stream of B. Layer 1: the query of the second A looks for "after A", and matches the
    key of B, which is made of what the first head wrote: K-composition. So the
    induction head attends to B and copies it, and the model predicts B.
    """
    ax = ground(3.75)
    for x, token in ((A, "A"), (B, "B"), (C, "C"), (D, "D"), (AGAIN, "A")):
        arrow(ax, (x, TOKENS), (x, LAST - 0.15), width=4, colour=STREAM_GREY)
        box(ax, x - 0.25, TOKENS - 0.15, 0.5, 0.3, token, "white")
    write(ax, 0.7, TOKENS, "tokens")
    for y, head in (
        (FIRST, "layer 0:\nprevious-\ntoken head"),
        ((SECOND + THIRD) / 2, "layer 1:\ninduction\nhead"),
    ):
        box(ax, 0.2, y - 0.32, 1.0, 0.64, head, "white", MARK, 8)
    _written(ax)
    _found(ax)
    note = "K-composition: score of the second A for B  =  "
    note += r"$(A\,W_q^{(1)}) \cdot (A\,W_v^{(0)} W_o^{(0)} W_k^{(1)})$"
    write(ax, 4.5, 0.28, f"{note},  both made of the token A; norms left out", 9)
    return ax.figure


def _written(ax):
    """Draw how the position of B is told which token is before it."""
    box(ax, A - 0.4, FIRST - 0.15, 0.8, 0.3, "value: A", VALUE)
    arrow(ax, (A + 0.4, FIRST), (B - 0.43, FIRST), **FLOW)
    box(ax, B - 0.42, FIRST - 0.15, 0.84, 0.3, "after A", MARKED, MARK)
    write(ax, B + 0.5, FIRST, "written into\nthe stream of B", 8, ha="left")


def _found(ax):
    """Draw how the second A finds B, and what is copied from there."""
    box(ax, B - 0.52, SECOND - 0.15, 1.04, 0.3, "key: after A", KEY)
    box(ax, AGAIN - 0.62, SECOND - 0.15, 1.24, 0.3, "query: after A?", QUERY)
    ends = (B + 0.53, SECOND), (AGAIN - 0.63, SECOND)
    arrow(ax, *ends)
    arrow(ax, *ends[::-1])
    write(ax, 4.62, SECOND + 0.12, "they match", 8)
    box(ax, B - 0.4, THIRD - 0.15, 0.8, 0.3, "value: B", VALUE)
    arrow(ax, (B + 0.4, THIRD), (AGAIN - 0.03, THIRD), **FLOW)
    write(ax, 4.62, THIRD + 0.12, "so B is copied", 8)
    box(ax, AGAIN - 0.25, LAST - 0.15, 0.5, 0.3, "B", MARKED, MARK)
    write(ax, AGAIN - 0.35, LAST, "predicted", ha="right")
