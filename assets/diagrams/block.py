"""Draws the transformer block: with its code's names, and in its two forms."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *

NORM, ATTENTION, MLP, ADD = "layer norm", "multi-head attention", "MLP", "+"
HEIGHTS = {NORM: 0.28, ATTENTION: 0.36, MLP: 0.36, ADD: 0.24}
GAP = 0.24
STREAM = 0.9  # height of the residual stream in block_code
NAME = {"family": "monospace", "weight": "bold", "size": 9}


def block_code():
    """The block, with the names of its code. Follow the grey arrow from left to right:
    x enters, something is added to it twice, and it leaves with the same shape. Below
    the arrow stand the 3 lines of forward, each under its part of the picture.
    """
    ax = ground(2.78)
    arrow(ax, (1.3, STREAM), (7.72, STREAM), width=4, colour=STREAM_GREY)
    for x, name in ((0.72, "x"), (8.3, "output")):
        write(ax, x, STREAM + 0.12, name, **NAME)
        write(ax, x, STREAM - 0.2, "(batch, length,\nembed_dim)", 8)
    _adds(ax, 1.7, "attention_norm", "attention", ["MultiHeadAttention"])
    _adds(ax, 4.75, "mlp_norm", "mlp", ["Linear", "GELU", "Linear"])
    write(ax, 1.7, 0.52, "attended, _ = self.attention(…)", ha="left", **CODE)
    write(ax, 1.7, 0.28, "x = x + attended", ha="left", **CODE)
    write(ax, 4.75, 0.52, "return x + self.mlp(…)", ha="left", **CODE)


def _adds(ax, x, norm, name, parts):
    """Draw a norm and what it feeds, whose output is added to the stream."""
    box(ax, x, 1.82, 2.5, 0.8, "", MARKED, MARK)
    write(ax, x + 0.12, 2.45, name, ha="left", **NAME)
    width = (2.5 - 0.12 * (len(parts) + 1)) / len(parts)
    for i, part in enumerate(parts):
        left = x + 0.12 + (width + 0.12) * i
        box(ax, left, 1.94, width, 0.32, part, "white", size=8)
        if i:
            arrow(ax, (left - 0.12, 2.1), (left, 2.1))
    arrow(ax, (x + 0.7, STREAM), (x + 0.7, 1.27))
    box(ax, x, 1.27, 1.4, 0.3, norm, "white", **CODE)
    arrow(ax, (x + 0.7, 1.57), (x + 0.7, 1.82))
    arrow(ax, (x + 2.1, 1.82), (x + 2.1, STREAM + 0.12))
    plus(ax, x + 2.1, STREAM, MARKED, MARK, 0.12)


def block():
    """The transformer block in 2 forms. Pre-norm: each layer norm stands before
    attention or the MLP, and on the residual stream there are only additions.
    Post-norm: each layer norm stands on the residual stream, after the addition.
    """
    ax = canvas(7, 4.2)
    _form(ax, 0.03, "pre-norm", [NORM, ATTENTION, ADD, NORM, MLP, ADD], ADD)
    _form(ax, 3.57, "post-norm", [ATTENTION, ADD, NORM, MLP, ADD, NORM], NORM)


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
