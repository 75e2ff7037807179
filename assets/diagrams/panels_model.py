"""Draws what lessons 10 and 11 are about, enlarged.

The marked tokens and heads of lesson 11 are those of SmolLM2.
"""

from assets.diagrams.drawing import *

CELL = 0.1  # of a position, in lesson 10
# tokens of lesson 11, and how much loss some gain without the 8 heads (in nats)
TWICE = "tower lived Z orb ul ax … cold morning , Z orb ul".split()
SECOND = "One cold morning , Z orb ul ax lost his hat .".split()
GAINS = {5: 1.04, 6: 6.68, 7: 8.80}  # the others: below 0.8
INSIDE = {"orb", "ul", "ax", ",", "."}  # tokens without a space before them
EIGHT = {(17, 3), (17, 4), (17, 5), (18, 6), (18, 7), (20, 6), (23, 2), (23, 7)}
FOUND = "#0173b2"  # of these heads (layer, head)


def cache(ax):
    """Draw what is computed without a KV cache, and with one."""
    for x, title in ((0.12, "without a cache"), (2.88, "with a KV cache")):
        box(ax, x, 1.62, 2.65, 1.98, "", "white", MARK if x > 2 else LINE)
        write(ax, x + 1.32, 3.43, title, **BOLD)
    for step in range(7):
        y = 3.12 - 0.12 * step - 0.16 * (step == 6)
        _step(ax, 0.76, y, step, kept=False)
        _step(ax, 3.43, y, step, kept=step > 0)
    column(ax, 0.7, {3.17: "step 1", 3.05: "step 2", 2.29: "step 100"}, ha="right")
    column(ax, 3.37, {3.17: "prefill", 3.05: "decode", 2.29: "decode"}, ha="right")
    row(ax, 2.47, {0.52: "⋮", 3.2: "⋮"}, 10)
    write(ax, 1.44, 2.0, "10 + 11 + … + 109 = 5,950 positions")
    write(ax, 4.2, 2.0, "10 positions at once, then 1 a step")
    matrix(ax, 0.3, 1.71, [[MARKED]], CELL)
    _kept(ax, 3.55, 1.71)
    meanings = {0.47: "100 of them give a new token", 3.72: "kept: key and value"}
    row(ax, 1.76, meanings, ha="left")
    titled(ax, 0.12, 0.12, 5.41, 1.4, "a decode step", (0.12, 0.17))
    box(ax, 1.55, 0.17, 2.55, 0.9)
    box(ax, 1.57, 0.23, 3.1, 0.38)  # all values: the mean is of all of them
    for y, name, colour in ((0.71, "keys", KEY), (0.27, "values", VALUE)):
        write(ax, 1.5, y + 0.15, name, 8, ha="right")
        for i, token in enumerate(TOKENS):
            new = i == 5
            edge = MARK if new else LINE
            box(ax, 1.6 + 0.5 * i + 0.07 * new, y, 0.45, 0.3, token, colour, edge)
    row(ax, 1.21, {2.82: "kept in the cache", 4.4: "new"})
    box(ax, 0.24, 0.71, 0.5, 0.3, "mat", QUERY, MARK)
    write(ax, 0.49, 0.58, "query", 8)
    arrow(ax, (0.74, 0.86), (1.14, 0.86))
    arrow(ax, (4.67, 0.42), (4.85, 0.42))
    box(ax, 4.85, 0.22, 0.62, 0.4, "weighted\nmean", VALUE, size=8)
    write(ax, 5.16, 0.74, "output", 8)


def _step(ax, x, y, step, kept):
    """Draw the positions of a step: kept, computed, and the one that gives a token."""
    length = 10 + step if step < 6 else 18
    for i in range(length):
        at = x + i * CELL
        if step == 6 and i == 13:
            write(ax, at + CELL / 2, y + CELL / 2, "⋯", 8)
        elif kept and i < length - 1:
            _kept(ax, at, y)
        else:
            matrix(ax, at, y, [[MARKED if i == length - 1 else GREY]], CELL)


def _kept(ax, x, y):
    """Draw a position whose key and value are kept."""
    matrix(ax, x, y, [[KEY], [VALUE]], CELL, tall=CELL / 2)


def language_model(ax):
    """Draw an induction head, where 8 of them are, and what they are for."""
    for y, height, title in (
        (2.72, 0.92, "1  an induction head finds what followed the first ul"),
        (1.1, 1.54, "2  8 of the 270 heads do this"),
        (0.12, 0.9, "3  without these 8, the loss rises where the name comes back"),
    ):
        titled(ax, 0.12, y, 5.41, height, title, (0.12, 0.15))
    places = _line(ax, TWICE, 2.79, {5: KEY, 12: QUERY})
    query, key = places[12], places[5]
    arrow(ax, (query, 3.09), (query, 3.29), (key, 3.29), (key, 3.09), **FLOW)
    write(ax, (query + key) / 2, 3.2, "attends to", 8)
    x, y = 0.62, 1.43  # of the map of the heads
    heads = [["#e6e6e6"] * 30 for _ in range(9)]
    for layer, head in EIGHT:
        heads[head][layer] = FOUND
    matrix(ax, x, y, heads, CELL)
    row(ax, y - 0.1, {x + (n + 0.5) * CELL: str(n) for n in (0, 10, 20, 29)})
    column(ax, x - 0.08, {y + (8.5 - n) * CELL: str(n) for n in (0, 8)})
    write(ax, x + 15 * CELL, y - 0.22, "layer", 8)
    write(ax, x - 0.22, y + 4.5 * CELL, "head", 8, rotation=90, va="center")
    matrix(ax, 3.85, 1.78, [[FOUND]], CELL)
    write(ax, 4.02, 1.83, "weight on ax > 0.5", 8, ha="left")
    _line(ax, SECOND, 0.42, {i: _pink(gain) for i, gain in GAINS.items()})
    box(ax, 0.24, 0.19, 0.16, 0.16, "", _pink(0))
    box(ax, 1.72, 0.19, 0.16, 0.16, "", _pink(8), MARK)
    gained = {0.47: "by less than 0.8", 1.95: "orb 1.0, ul 6.7, ax 8.8"}
    row(ax, 0.27, gained, ha="left")


def _pink(gain):
    """Return the colour of a token that gained so much loss."""
    return tint(MARK, min(gain, 8) / 8 * 0.6)


def _line(ax, tokens, y, colours):
    """Draw tokens, some of them in colours, and return the middle of each."""
    x, middles = 0.14, []
    for i, token in enumerate(tokens):
        x += 0.02 if token in INSIDE else 0.08
        width = 0.13 + 0.078 * len(token)
        edge = MARK if i in colours else LINE
        box(ax, x, y, width, 0.3, token, colours.get(i, "white"), edge)
        middles.append(x + width / 2)
        x += width
    return middles
