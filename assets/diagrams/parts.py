"""Draws parts alone: the splitting of heads, the block, the induction circuit."""

from assets.diagrams.drawing import *


def split_heads():
    """Draw how 8 features are split into 2 heads, and merged again."""
    ax, cell, low = ground(4.4), 0.18, 1.65  # low: of the matrices in the row
    wide, tall = 4 * cell, 6 * cell  # of one head
    for head, colour in enumerate(HEADS[:2]):
        cut, own = 4.2 + head * (wide + 0.1), 2.5 - head * 1.55
        for x, y in ((0.62 + head * wide, low), (cut, low), (7.9, own)):
            matrix(ax, x, y, [[colour] * 4] * 6, cell)
        write(ax, cut + wide / 2, low - 0.13, f"head {head}", 8)
        write(ax, 7.9 + wide / 2, own - 0.11, f"head {head}", 8)
    for x, y in ((0.55, low), (4.13, low), (7.83, 2.5), (7.83, 0.95)):
        names(ax, x, y + tall, TOKENS, cell)
    above = low + tall + 0.22
    shapes = {1.34: "length × embed_dim", 5.18: "length × heads × head_dim"}
    row(ax, above + 0.2, shapes)
    row(ax, above, {1.34: "(6, 8)", 5.18: "(6, 2, 4)"}, 9, **BOLD)
    write(ax, 7.86, 4.18, "heads × length × head_dim", 8)
    write(ax, 7.86, 3.98, "(2, 6, 4)", **BOLD)
    arrows(ax, low + tall / 2, (2.98, 3.58), (6.6, 7.4))
    row(ax, low + tall / 2 + 0.13, {3.28: "unflatten", 7.0: "transpose"}, 9)
    arrow(ax, (8.66, 1.49), (8.82, 1.49), head=False)  # both heads go back
    back = (8.82, 3.04), (8.82, 0.25), (1.34, 0.25), (1.34, low - 0.05)
    arrow(ax, (8.66, 3.04), *back)
    box(ax, 3.65, 0.11, 3.2, 0.28, "merge: transpose back, flatten to (6, 8)", "white")


# --- the transformer block ---

NORM, ATTENTION, MLP, ADD = "layer norm", "multi-head attention", "MLP", "+"
HEIGHTS = {NORM: 0.28, ATTENTION: 0.36, MLP: 0.36, ADD: 0.24}


def block():
    """Draw the block in its 2 forms: pre-norm and post-norm."""
    ax = canvas(7, 4.2)
    _form(ax, 0.03, "pre-norm", [NORM, ATTENTION, ADD, NORM, MLP, ADD], ADD)
    _form(ax, 3.57, "post-norm", [ATTENTION, ADD, NORM, MLP, ADD, NORM], NORM)


def _form(ax, x, title, steps, before):
    """Draw the steps from the input up; each `before` is followed by a sublayer."""
    look = {"fill": PALE, "edge": LINE, "ha": "center", "size": 10}
    titled(ax, x, 0.03, 3.4, 4.14, title, (0.6, 0.22), **look)
    middle, skip, y, gap = x + 1.5, x + 2.85, 0.3, 0.24
    write(ax, middle, 0.18, "input")
    branch = y + 0.09
    for step in steps:
        arrow(ax, (middle, y), (middle, y + gap))
        y, height = y + gap, HEIGHTS[step]
        if step == ADD:
            top = y + height / 2
            around = (skip, branch), (skip, top), (middle + 0.12, top)
            arrow(ax, (middle, branch), *around, width=2.4)
            plus(ax, middle, top, "white", radius=0.12)
        else:
            box(ax, middle - 0.9, y, 1.8, height, step, **marked(step == NORM))
        y += height
        if step == before:
            branch = y + 0.09
    arrow(ax, (middle, y), (middle, y + gap))
    write(ax, middle, y + gap + 0.1, "output")


def block_code():
    """Draw the block with the names of its code."""
    ax, stream = ground(2.78), 0.9
    arrow(ax, (1.3, stream), (7.72, stream), width=4, colour=STREAM_GREY)
    name = CODE | BOLD | {"size": 9}
    row(ax, stream + 0.12, {0.72: "x", 8.3: "output"}, **name)
    shape = "(batch, length,\nembed_dim)"
    row(ax, stream - 0.2, {0.72: shape, 8.3: shape})
    for x, norm, layer, steps in (
        (1.7, "attention_norm", "attention", ["MultiHeadAttention"]),
        (4.75, "mlp_norm", "mlp", ["Linear", "GELU", "Linear"]),
    ):
        titled(ax, x, 1.82, 2.5, 0.8, layer, (0.12, 0.17), MARKED, **name)
        width = (2.5 - 0.12 * (len(steps) + 1)) / len(steps)
        for i, step in enumerate(steps):
            left = x + 0.12 + (width + 0.12) * i
            box(ax, left, 1.94, width, 0.32, step, "white", size=8)
            if i:
                arrow(ax, (left - 0.12, 2.1), (left, 2.1))
        sublayer(ax, stream, (x, 1.27, 1.4, 0.3), 1.82, x + 2.1, norm, **CODE)
    lines = {1.7: "attended, _ = self.attention(…)", 4.75: "return x + self.mlp(…)"}
    row(ax, 0.52, lines, ha="left", **CODE)
    write(ax, 1.7, 0.28, "x = x + attended", ha="left", **CODE)


# --- the induction circuit of a small model, and of SmolLM2 ---


def composition():
    """Draw how two heads compose, on the tokens A B C D A."""
    a, b, again = places = 1.85, 3.5, 7.8  # x of the tokens
    first, match, copy, top = heights = 1.35, 2.15, 2.63, 3.36
    ax = ground(3.75)
    tokens = {a: "A", b: "B", 5.3: "C", 6.2: "D", again: "A"}
    _streams(ax, 0.72, 3.21, tokens, tokens)
    write(ax, 0.7, 0.72, "tokens")
    _circuit(ax, places, heights, "A", "B")
    for y, head in (
        (first, "layer 0:\nprevious-\ntoken head"),
        ((match + copy) / 2, "layer 1:\ninduction\nhead"),
    ):
        box(ax, 0.2, y - 0.32, 1.0, 0.64, head, "white", MARK, 8)
    write(ax, b + 0.5, first, "written into\nthe stream of B", 8, ha="left")
    column(ax, 4.62, {match + 0.12: "they match", copy + 0.12: "so B is copied"})
    write(ax, again - 0.35, top, "predicted", ha="right")
    note = "K-composition: score of the second A for B  =  "
    note += r"$(A\,W_q^{(1)}) \cdot (A\,W_v^{(0)} W_o^{(0)} W_k^{(1)})$"
    write(ax, 4.5, 0.28, f"{note},  both made of the token A; norms left out", 9)


def name_circuit():
    """Draw how SmolLM2 finds ax at the second ul."""
    ul, at, again = places = 2.25, 4.0, 7.75  # x of ul, of ax, and of the second ul
    before, match, copy, top = heights = 1.25, 1.95, 2.43, 3.5
    bottom, later = 0.6, 2.95
    ax = ground(3.85)
    tokens = {1.55: "orb", ul: "ul", at: "ax", 4.7: ",", 6.45: "Z", 7.1: "orb"}
    _streams(ax, bottom, 3.35, tokens | {again: "ul"}, places, (ul, at))
    write(ax, 5.55, bottom, "… wizard. One …", 8)
    _circuit(ax, places, heights, "ul", "ax", 0.03)
    steps = {bottom: "earlier copy", before: "16.0: previous-\ntoken head"}
    steps |= {match: "18.6: induction\nhead finds ax"}
    steps |= {(copy + later) / 2: "and passes\non its value"}
    column(ax, 0.38, steps, ha="left")
    for number, y in enumerate(steps, 1):
        letter(ax, 0.22, y, str(number))
    write(ax, (ul + at) / 2, before + 0.12, "weight 0.89", 8)
    write(ax, at + 0.53, before, "written into\nthe stream of ax", 8, ha="left")
    what = {match + 0.12: "they match: weight 0.99", copy + 0.12: "added to the stream"}
    column(ax, 5.8, what)
    box(ax, again - 0.65, later - 0.13, 1.3, 0.26, "later layers", "white")
    write(ax, again - 0.35, top, "predicted, probability 1.00", 8, ha="right")


def giver_circuit():
    """Draw the heads of SmolLM2 that we met in the sentence of Mary and John."""
    mary, went, again, last = 2.15, 4.0, 5.5, 7.15  # x of the tokens with a stream
    bottom, finds, marks, raises, lowers = 0.6, 1.22, 1.82, 2.47, 2.95
    against, top = 3.43, 4.05
    ax = ground(4.4)
    streams = {mary: "Mary", 3.3: "John", went: "went", again: "John", last: "to"}
    row(ax, bottom, {1.6: "When", 2.72: "and", 4.75: "…", 6.3: "gave a drink"}, 8)
    _streams(ax, bottom, 3.88, streams, (mary, went, again, last), (mary,))
    for y, x, to, value, weight in (
        (finds, went, again, "went", "0.82"),
        (marks, again, last, "John", "0.78"),
        (raises, mary, last, "Mary", "0.69"),
        (lowers, again, last, "John", "0.74"),
        (against, mary, last, "Mary", "0.81"),
    ):
        _held(ax, x, y, 0.45, f"value: {value}", VALUE)
        arrow(ax, (x + 0.45, y), (to - 0.03, y), **FLOW)
        write(ax, to - 0.6, y + 0.11, weight, 8)
    arrow(ax, (last + 0.2, marks + 0.05), (last + 0.2, raises - 0.05), colour=MARK)
    query = "20.0 changes the\nquery of 23.0, which\nattends less to John"
    changes = {raises: "adds 1.54 to Mary", lowers: "lowers John by 2.94"}
    changes |= {against: "lowers Mary by 1.40", (marks + raises) / 2: query}
    column(ax, last + 0.3, changes, ha="left")
    heads = {bottom: "tokens", finds: "17.4: attends to\nwhat followed John"}
    heads |= {marks: "20.0: attends to\nthe repeated name"}
    heads |= {raises: "23.0: name mover", lowers: "23.3: attends to\nthe repeated name"}
    heads |= {against: "24.4: negative\nname mover"}
    column(ax, 0.38, heads, ha="left")
    for number, y in enumerate(heads, 1):
        letter(ax, 0.22, y, str(number))
    write(ax, again + 0.12, finds, "(which head reads\nthis: not tested)", 8, ha="left")
    _held(ax, last, top, 0.3, "Mary", MARKED, MARK)
    write(ax, last + 0.4, top, "probability 0.92", 8, ha="left")


def _streams(ax, y, top, tokens, places, subject=()):
    """Draw tokens, and the residual streams of some of them."""
    for x, token in tokens.items():
        if x in places:
            arrow(ax, (x, y), (x, top), width=4, colour=STREAM_GREY)
        _held(ax, x, y, 0.25, token, **marked(x in subject, "white"))


def _circuit(ax, places, heights, token, next_token, wider=0.0):
    """Draw what two heads write at a token, at the next one, and at the first again."""
    (x, after, again), (first, match, copy, top) = places, heights
    value = 0.4 + wider * 2 / 3  # its text is shorter
    _held(ax, x, first, value, f"value: {token}", VALUE)
    arrow(ax, (x + 0.4 + wider, first), (after - 0.43 - wider, first), **FLOW)
    _held(ax, after, first, 0.42 + wider, f"after {token}", MARKED, MARK)
    _held(ax, after, match, 0.52 + wider, f"key: after {token}", KEY)
    _held(ax, again, match, 0.62 + wider, f"query: after {token}?", QUERY)
    key, query = after + 0.53 + wider, again - 0.63 - wider
    arrows(ax, match, (key, query), (query, key))
    _held(ax, after, copy, value, f"value: {next_token}", VALUE)
    arrow(ax, (after + 0.4 + wider, copy), (again - 0.03, copy), **FLOW)
    _held(ax, again, top, 0.25, next_token, MARKED, MARK)


def _held(ax, x, y, half, text, fill, edge=LINE):
    """Draw what a position holds, half its width to each side of x."""
    box(ax, x - half, y - 0.15, 2 * half, 0.3, text, fill, edge)
