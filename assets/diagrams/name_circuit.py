"""Draws how SmolLM2 repeats a name: the induction circuit of lesson 11."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *

UL, AX, AGAIN = 2.25, 4.0, 7.75  # places of the tokens that matter
TOKENS = {1.55: "orb", UL: "ul", AX: "ax", 4.7: ",", 6.45: "Z", 7.1: "orb", AGAIN: "ul"}
BOTTOM, BEFORE, MATCH, COPY, LATER, TOP = 0.6, 1.25, 1.95, 2.43, 2.95, 3.5  # heights


def name_circuit():
    """How SmolLM2 goes on after Zorbul, in 4 steps. Step 1: the pair ul, ax stands
    earlier in the text. Step 2: at ax, the previous-token head 16.0 gives a weight of
    0.89 to ul, and writes "after ul" into the residual stream of ax. Step 3: at the
    second ul, the query of the induction head 18.6 looks for "after ul" and matches the
    key of ax, with a weight of 0.99. Step 4: the value of ax goes into the stream of
    the second ul, and with the help of later layers the model predicts ax.
    """
    ax = ground(3.85)
    for x, token in TOKENS.items():
        if x in (UL, AX, AGAIN):
            arrow(ax, (x, BOTTOM), (x, TOP - 0.15), width=4, colour=STREAM_GREY)
        marks = (MARKED, MARK) if x in (UL, AX) else ("white",)
        box(ax, x - 0.25, BOTTOM - 0.15, 0.5, 0.3, token, *marks)
    write(ax, 5.55, BOTTOM, "… wizard. One …", 8)
    for y, step, what in (
        (BOTTOM, "1", "earlier copy"),
        (BEFORE, "2", "16.0: previous-\ntoken head"),
        (MATCH, "3", "18.6: induction\nhead finds ax"),
        ((COPY + LATER) / 2, "4", "and passes\non its value"),
    ):
        box(ax, 0.12, y - 0.1, 0.2, 0.2, step, MARKED, MARK, 8, weight="bold")
        write(ax, 0.38, y, what, 8, ha="left")
    _before(ax)
    _found(ax)
    return ax.figure


def _before(ax):
    """Draw how the position of ax is told which token is before it."""
    box(ax, UL - 0.42, BEFORE - 0.15, 0.84, 0.3, "value: ul", VALUE)
    arrow(ax, (UL + 0.43, BEFORE), (AX - 0.46, BEFORE), **FLOW)
    write(ax, (UL + AX) / 2, BEFORE + 0.12, "weight 0.89", 8)
    box(ax, AX - 0.45, BEFORE - 0.15, 0.9, 0.3, "after ul", MARKED, MARK)
    write(ax, AX + 0.53, BEFORE, "written into\nthe stream of ax", 8, ha="left")


def _found(ax):
    """Draw how the second ul finds ax, and what becomes of it."""
    box(ax, AX - 0.55, MATCH - 0.15, 1.1, 0.3, "key: after ul", KEY)
    box(ax, AGAIN - 0.65, MATCH - 0.15, 1.3, 0.3, "query: after ul?", QUERY)
    ends = (AX + 0.56, MATCH), (AGAIN - 0.66, MATCH)
    arrow(ax, *ends)
    arrow(ax, *ends[::-1])
    write(ax, 5.8, MATCH + 0.12, "they match: weight 0.99", 8)
    box(ax, AX - 0.42, COPY - 0.15, 0.84, 0.3, "value: ax", VALUE)
    arrow(ax, (AX + 0.43, COPY), (AGAIN - 0.03, COPY), **FLOW)
    write(ax, 5.8, COPY + 0.12, "added to the stream", 8)
    box(ax, AGAIN - 0.65, LATER - 0.13, 1.3, 0.26, "later layers", "white")
    box(ax, AGAIN - 0.25, TOP - 0.15, 0.5, 0.3, "ax", MARKED, MARK)
    write(ax, AGAIN - 0.35, TOP, "predicted, probability 1.00", 8, ha="right")
