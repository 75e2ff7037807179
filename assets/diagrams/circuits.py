"""Draws the induction circuit of a small model and of SmolLM2: two heads, two steps."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *


def composition():
    """The induction circuit in 2 steps, on the tokens A B C D A. Layer 0: the
    previous-token head attends from B to A, and writes "after A" into the residual
    stream of B. Layer 1: the query of the second A looks for "after A", and matches the
    key of B, which is made of what the first head wrote: K-composition. So the
    induction head attends to B and copies it, and the model predicts B.
    """
    a, b, c, d, again = 1.85, 3.5, 5.3, 6.2, 7.8  # places of the tokens
    tokens, first, second, third, last = 0.72, 1.35, 2.15, 2.63, 3.36  # heights
    ax = ground(3.75)
    for x, token in ((a, "A"), (b, "B"), (c, "C"), (d, "D"), (again, "A")):
        arrow(ax, (x, tokens), (x, last - 0.15), width=4, colour=STREAM_GREY)
        _held(ax, x, tokens, 0.25, token, "white")
    write(ax, 0.7, tokens, "tokens")
    for y, head in (
        (first, "layer 0:\nprevious-\ntoken head"),
        ((second + third) / 2, "layer 1:\ninduction\nhead"),
    ):
        box(ax, 0.2, y - 0.32, 1.0, 0.64, head, "white", MARK, 8)
    _held(ax, a, first, 0.4, "value: A", VALUE)
    arrow(ax, (a + 0.4, first), (b - 0.43, first), **FLOW)
    _held(ax, b, first, 0.42, "after A", MARKED, MARK)
    write(ax, b + 0.5, first, "written into\nthe stream of B", 8, ha="left")
    _held(ax, b, second, 0.52, "key: after A", KEY)
    _held(ax, again, second, 0.62, "query: after A?", QUERY)
    _match(ax, b + 0.53, again - 0.63, second)
    write(ax, 4.62, second + 0.12, "they match", 8)
    _held(ax, b, third, 0.4, "value: B", VALUE)
    arrow(ax, (b + 0.4, third), (again - 0.03, third), **FLOW)
    write(ax, 4.62, third + 0.12, "so B is copied", 8)
    _held(ax, again, last, 0.25, "B", MARKED, MARK)
    write(ax, again - 0.35, last, "predicted", ha="right")
    note = "K-composition: score of the second A for B  =  "
    note += r"$(A\,W_q^{(1)}) \cdot (A\,W_v^{(0)} W_o^{(0)} W_k^{(1)})$"
    write(ax, 4.5, 0.28, f"{note},  both made of the token A; norms left out", 9)


def name_circuit():
    """How the second ul can find ax: an earlier head has written at ax which token came
    before. First look at the arrow with the weight 0.89: at ax, head 16.0 attends to
    ul, and writes "after ul" into the stream of ax. Then look at the arrow with the
    weight 0.99: at the second ul, the query of head 18.6 looks for "after ul" and finds
    the key of ax. So the value of ax goes into the stream of the second ul, and with
    the help of later layers the model predicts ax.
    """
    ul, at, again = 2.25, 4.0, 7.75  # places of ul, of ax, and of the second ul
    tokens = {1.55: "orb", ul: "ul", at: "ax", 4.7: ",", 6.45: "Z", 7.1: "orb"}
    tokens[again] = "ul"
    bottom, before, match, copy, later, top = 0.6, 1.25, 1.95, 2.43, 2.95, 3.5
    ax = ground(3.85)
    for x, token in tokens.items():
        if x in (ul, at, again):
            arrow(ax, (x, bottom), (x, top - 0.15), width=4, colour=STREAM_GREY)
        marks = (MARKED, MARK) if x in (ul, at) else ("white",)
        _held(ax, x, bottom, 0.25, token, *marks)
    write(ax, 5.55, bottom, "… wizard. One …", 8)
    for y, step, what in (
        (bottom, "1", "earlier copy"),
        (before, "2", "16.0: previous-\ntoken head"),
        (match, "3", "18.6: induction\nhead finds ax"),
        ((copy + later) / 2, "4", "and passes\non its value"),
    ):
        box(ax, 0.12, y - 0.1, 0.2, 0.2, step, MARKED, MARK, 8, weight="bold")
        write(ax, 0.38, y, what, 8, ha="left")
    _held(ax, ul, before, 0.42, "value: ul", VALUE)
    arrow(ax, (ul + 0.43, before), (at - 0.46, before), **FLOW)
    write(ax, (ul + at) / 2, before + 0.12, "weight 0.89", 8)
    _held(ax, at, before, 0.45, "after ul", MARKED, MARK)
    write(ax, at + 0.53, before, "written into\nthe stream of ax", 8, ha="left")
    _held(ax, at, match, 0.55, "key: after ul", KEY)
    _held(ax, again, match, 0.65, "query: after ul?", QUERY)
    _match(ax, at + 0.56, again - 0.66, match)
    write(ax, 5.8, match + 0.12, "they match: weight 0.99", 8)
    _held(ax, at, copy, 0.42, "value: ax", VALUE)
    arrow(ax, (at + 0.43, copy), (again - 0.03, copy), **FLOW)
    write(ax, 5.8, copy + 0.12, "added to the stream", 8)
    box(ax, again - 0.65, later - 0.13, 1.3, 0.26, "later layers", "white")
    _held(ax, again, top, 0.25, "ax", MARKED, MARK)
    write(ax, again - 0.35, top, "predicted, probability 1.00", 8, ha="right")


def _held(ax, x, y, half, text, *look):
    """Draw what a position holds, half its width to each side of x."""
    box(ax, x - half, y - 0.15, 2 * half, 0.3, text, *look)


def _match(ax, key, query, y):
    """Draw that a key and a query fit: an arrow to each of them."""
    arrow(ax, (key, y), (query, y))
    arrow(ax, (query, y), (key, y))
