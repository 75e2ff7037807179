"""Draws the two forms of the transformer block: pre-norm and post-norm."""

from assets.diagrams.drawing import MARK, MARKED, PALE, arrow, box, canvas, plus, write

NORM, ATTENTION, MLP, ADD = "layer norm", "multi-head attention", "MLP", "+"
HEIGHTS = {NORM: 0.28, ATTENTION: 0.36, MLP: 0.36, ADD: 0.24}
GAP = 0.24


def block():
    """The transformer block in 2 forms. Pre-norm: each layer norm stands before
    attention or the MLP, and on the residual stream there are only additions.
    Post-norm: each layer norm stands on the residual stream, after the addition.
    """
    ax = canvas(7, 4.2)
    _form(ax, 0.03, "pre-norm", [NORM, ATTENTION, ADD, NORM, MLP, ADD], ADD)
    _form(ax, 3.57, "post-norm", [ATTENTION, ADD, NORM, MLP, ADD, NORM], NORM)
    return ax.figure


def _form(ax, x, title, steps, before):
    """Draw the steps from the input up; each `before` is followed by a sublayer."""
    box(ax, x, 0.03, 3.4, 4.14, "", PALE)
    write(ax, x + 0.6, 3.95, title, 10, weight="bold")
    middle, skip, y = x + 1.5, x + 2.85, 0.3
    write(ax, middle, 0.18, "input")
    branch = y + 0.09
    for step in steps:
        arrow(ax, (middle, y), (middle, y + GAP))
        y, height = y + GAP, HEIGHTS[step]
        if step == ADD:
            top = y + height / 2
            corners = (
                (middle, branch),
                (skip, branch),
                (skip, top),
                (middle + 0.12, top),
            )
            arrow(ax, *corners, width=2.4)
            plus(ax, middle, top, "white", radius=0.12)
        else:
            norm = {"fill": MARKED, "edge": MARK} if step == NORM else {}
            box(ax, middle - 0.9, y, 1.8, height, step, **norm)
        y += height
        if step == before:
            branch = y + 0.09
    arrow(ax, (middle, y), (middle, y + GAP))
    write(ax, middle, y + GAP + 0.1, "output")
