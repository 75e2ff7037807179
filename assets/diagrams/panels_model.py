"""Draws what lessons 10 and 11 are about, enlarged; a docstring is its alt text.

The marked tokens and heads of lesson 11 are those of SmolLM2.
"""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

from assets.diagrams.drawing import *

CELL = 0.1  # of a position, in lesson 10
# tokens of lesson 11, and how much loss each gains without the 8 heads (in nats)
LINES = [
    "In a tower lived Z orb ul ax , a w izard .".split(),
    "One cold morning , Z orb ul ax lost his hat .".split(),
]
GAINS = {(1, 5): 1.04, (1, 6): 6.68, (1, 7): 8.80}  # the others: below 0.8
INSIDE = {"orb", "ul", "ax", ",", "izard", "."}  # tokens without a space before them
EIGHT = {(17, 3), (17, 4), (17, 5), (18, 6), (18, 7), (20, 6), (23, 2), (23, 7)}
FOUND = "#0173b2"  # of these heads (layer, head)


def cache(ax):
    """Map of the transformer, lesson 10: writing text. The model writes 100 tokens
    after a prompt of 10. Left, without a cache: each step computes all positions again,
    10 + 11 + … + 109 = 5,950, and only 100 of them give a new token. Right, with a KV
    cache: the prefill computes the prompt at once, and then each decode step computes
    1 position. Below, a decode step: the query of the new token is compared with the
    kept keys and its own, and the output is a weighted mean of all 6 values.
    """
    for x, title in ((0.12, "without a cache"), (2.88, "with a KV cache")):
        box(ax, x, 1.62, 2.65, 1.98, "", "white", MARK if x > 2 else LINE)
        write(ax, x + 1.32, 3.43, title, **BOLD)
    for step in range(7):
        y = 3.12 - 0.12 * step - 0.16 * (step == 6)
        name = f"step {step + 1 if step < 6 else 100}"
        write(ax, 0.7, y + CELL / 2, name if step in (0, 1, 6) else "", 8, ha="right")
        name = {0: "prefill", 1: "decode", 6: "decode"}.get(step, "")
        write(ax, 3.37, y + CELL / 2, name, 8, ha="right")
        _step(ax, 0.76, y, step, kept=False)
        _step(ax, 3.43, y, step, kept=step > 0)
    for x in (0.52, 3.2):
        write(ax, x, 2.47, "⋮", 10)
    write(ax, 1.44, 2.0, "10 + 11 + … + 109 = 5,950 positions", 9)
    _key(ax, 0.3, 1.76, MARKED, "100 of them give a new token")
    write(ax, 4.2, 2.0, "10 positions at once, then 1 a step", 9)
    _kept(ax, 3.55, 1.76 - CELL / 2)
    write(ax, 3.72, 1.76, "kept: key and value", 8, ha="left")
    _decode(ax)


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
            colour = MARKED if i == length - 1 else GREY
            matrix(ax, at, y, [[colour]], CELL)


def _kept(ax, x, y):
    """Draw a position whose key and value are kept."""
    matrix(ax, x, y, [[KEY], [VALUE]], CELL, tall=CELL / 2)


def _key(ax, x, y, colour, text):
    """Draw what a colour means."""
    matrix(ax, x, y - CELL / 2, [[colour]], CELL)
    write(ax, x + 0.17, y, text, 8, ha="left")


def _decode(ax):
    """Draw one step with the cache: one query, all keys and values."""
    box(ax, 0.12, 0.12, 5.41, 1.4, "", "white", MARK)
    write(ax, 0.24, 1.35, "a decode step", ha="left", **BOLD)
    box(ax, 1.55, 0.21, 2.55, 0.86, "")
    write(ax, 2.82, 1.21, "kept in the cache", 8)
    for y, name, colour in ((0.71, "keys", KEY), (0.27, "values", VALUE)):
        write(ax, 1.5, y + 0.15, name, 8, ha="right")
        for column, token in enumerate(TOKENS):
            x = 1.6 + 0.5 * column + 0.07 * (column == 5)
            box(ax, x, y, 0.45, 0.3, token, colour, MARK if column == 5 else LINE)
    write(ax, 4.4, 1.21, "new", 8)
    box(ax, 0.24, 0.71, 0.5, 0.3, "mat", QUERY, MARK)
    write(ax, 0.49, 0.58, "query", 8)
    arrow(ax, (0.74, 0.86), (1.14, 0.86))
    arrow(ax, (4.62, 0.42), (4.85, 0.42))
    box(ax, 4.85, 0.22, 0.62, 0.4, "weighted\nmean", VALUE, size=8)
    write(ax, 5.16, 0.74, "output", 8)


def language_model(ax):
    """Map of the transformer, lesson 11: a real language model, with 135 million
    parameters and 30 layers of 9 heads, runs on the learner's attention. Zorbulax is an
    invented name, said twice. Without 8 of the 270 heads, the loss rises at tokens that
    end a pair of tokens which the text already contained (pink). The name consists of
    Z, orb, ul and ax. At the second ul, each of the 8 heads gives more than half of its
    weight to ax, the token after the first ul. Without the 8, ax has nearly no
    probability. (The norms are RMSNorm, and positions enter inside attention, so the
    grey box at the bottom is not used.)
    """
    write(ax, 0.2, 3.47, "where does the loss rise without 8 heads?", ha="left", **BOLD)
    places = [_line(ax, row, y) for row, y in enumerate((2.98, 2.29))]
    query, key = places[1][6], places[0][7]
    arrow(ax, (query, 2.59), (query, 2.77), (key, 2.77), (key, 2.98), **FLOW)
    write(ax, key + 0.2, 2.77, "attends to", 8, ha="left")
    write(ax, 0.2, 2.0, "loss:", 8, ha="left")
    for x, text, gain in ((0.6, "as before", 0), (1.6, "much higher", 8)):
        box(ax, x, 1.92, 0.16, 0.16, "", _pink(gain), MARK if gain else LINE)
        write(ax, x + 0.23, 2.0, text, 8, ha="left")
    box(ax, 0.12, 0.12, 5.41, 1.66, "", "white", MARK)
    write(ax, 0.24, 1.6, "30 layers × 9 heads on your attention", ha="left", **BOLD)
    _heads(ax, 0.52, 0.48)
    write(ax, 4.66, 1.6, "probability of ax", **BOLD)
    for y, name, length in ((1.32, "all heads", 1), (1.07, "without 8", 0.02)):
        write(ax, 4.4, y, name, 8, ha="right")
        box(ax, 4.46, y - 0.08, 0.96, 0.16, "", "white")
        box(ax, 4.46, y - 0.08, 0.96 * length, 0.16, "", MARKED, MARK)
    _key(ax, 3.92, 0.6, FOUND, "the 8 attend to ax")


def _heads(ax, x, y):
    """Draw all heads, a column for each layer, and the 8 that are marked."""
    colours = [["#e6e6e6"] * 30 for _ in range(9)]
    for layer, head in EIGHT:
        colours[head][layer] = FOUND
    matrix(ax, x, y, colours, CELL)
    for layer in (0, 10, 20, 29):
        write(ax, x + (layer + 0.5) * CELL, y - 0.1, str(layer), 8)
    for head in (0, 8):
        write(ax, x - 0.08, y + (8.5 - head) * CELL, str(head), 8)
    write(ax, x + 15 * CELL, y - 0.24, "layer", 8)
    write(ax, x - 0.22, y + 4.5 * CELL, "head", 8, rotation=90, va="center")


def _pink(gain):
    """Return the colour of a token that gained so much loss."""
    return tint(MARK, min(gain, 8) / 8 * 0.6)


def _line(ax, row, y):
    """Draw the tokens of a line, and return the middle of each."""
    x, middles = 0.14, []
    for i, token in enumerate(LINES[row]):
        x += 0.02 if token in INSIDE else 0.08
        width = 0.13 + 0.078 * len(token)
        gain = GAINS.get((row, i), 0)
        box(ax, x, y, width, 0.3, token, _pink(gain), MARK if gain else LINE)
        middles.append(x + width / 2)
        x += width
    return middles
