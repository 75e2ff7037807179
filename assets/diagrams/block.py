"""Draws the transformer block: by lessons, with its code's names, in its two forms."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *

NORM, ATTENTION, MLP, ADD = "layer norm", "multi-head attention", "MLP", "+"
HEIGHTS = {NORM: 0.28, ATTENTION: 0.36, MLP: 0.36, ADD: 0.24}
GAP = 0.24
STREAM = 0.9  # height of the residual stream in block_code
MIDDLE_X = 2.0  # of the column of boxes in block_lessons
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
    return ax.figure


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


def block_lessons():
    """Where attention stands: one transformer block, from the bottom to the top. The
    marked boxes are several attentions, each like that of lesson 01. What is around
    them comes in lessons 02, 04 and 06. Only in attention do tokens exchange
    information.
    """
    ax = ground(4.0)
    box(ax, 0.62, 0.98, 2.5, 2.72, "", "white")
    write(ax, 0.82, 3.56, "block", ha="left", weight="bold")
    stops = [0.38, 0.59, 0.77, 1.12, 1.36, 1.6, 2.26, 2.34, 2.52, 2.68, 2.92, 3.04]
    stops += [3.3, 3.38, 3.56, 3.9]
    for low, high in zip(stops[::2], stops[1::2]):
        arrow(ax, (MIDDLE_X, low), (MIDDLE_X, high))
    for low, high in ((1.05, 2.43), (2.6, 3.47)):  # the residual connections
        points = (MIDDLE_X, low), (0.78, low), (0.78, high), (MIDDLE_X - 0.09, high)
        arrow(ax, *points)
    arrow(ax, (0.95, 0.68), (MIDDLE_X - 0.09, 0.68))
    box(ax, 0.14, 0.5, 0.81, 0.36, "positional\nencodings", size=8)
    for y, height, text in (
        (0.14, 0.24, "token embeddings"),
        (1.12, 0.24, "layer norm"),
        (1.6, 0.66, ""),
        (2.68, 0.24, "layer norm"),
        (3.04, 0.26, "MLP"),
    ):
        box(ax, 1.0, y, 2.0, height, text)
    write(ax, MIDDLE_X, 2.13, "multi-head attention")
    for x in (1.06, 1.71, 2.36):
        box(ax, x, 1.66, 0.58, 0.34, "attention", MARKED, MARK, 8)
    for y in (0.68, 2.43, 3.47):
        plus(ax, MIDDLE_X, y, "white", radius=0.09)
    for start, y, name, does, lesson in (
        (
            2.09,
            3.47,
            "residual connection",
            "adds the input of 2 boxes to their output",
            "06",
        ),
        (3.0, 3.17, "MLP", "computes on each token alone", "06"),
        (3.0, 2.8, "layer norm", "brings all vectors to a similar size", "06"),
        (3.0, 2.13, "multi-head attention", "several attentions side by side", "02"),
        (2.94, 1.78, "attention", "decides which other tokens a token uses", "01"),
        (2.09, 0.68, "positional encodings", "say where each token stands", "04"),
    ):
        here = lesson == "01"
        arrow(ax, (start, y), (3.3, y), head=False, width=0.8)
        write(ax, 3.36, y, name, ha="left", weight="bold", color=MARK if here else INK)
        write(ax, 4.92, y, does, ha="left")
        look = {"fill": MARKED, "edge": MARK} if here else {}
        box(ax, 8.1, y - 0.13, 0.76, 0.26, f"lesson {lesson}", size=8, **look)
    return ax.figure


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
