"""Draws what lesson 12 is about, and what closes it; a docstring is its alt text."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

import numpy as np

from assets.diagrams.drawing import *

WORDS = "The old cat sat on the warm mat".split()
CHANGED = 2  # cat
CAUSAL = np.tri(8, dtype=bool)
# Its own token shows through the query, if there are several weights to choose from.
LATER = ~CAUSAL | np.diag((~CAUSAL).sum(1) > 1)


def who_sees_whom(ax):
    """Map of the transformer, lesson 12: right shapes prove nothing. Layers A and B
    both turn 2 × 8 × 64 into 2 × 8 × 64. Then one token at a time is changed, here cat
    into dog: which outputs move? In A, the outputs of dog and of later tokens move: A
    is causal. B has a fault that stood for two years in a public benchmark: each token
    attends only to later tokens. Each output also depends on its own token, through the
    query. In B, this is not so for the last two tokens: warm can attend only to mat,
    so the weight is 1, whatever the query of warm is. And mat can attend to nothing.
    """
    _changed(ax)
    for x, name, sees, verdict in (
        (0.12, "A", CAUSAL, "sees no later token: causal ✓"),
        (2.88, "B", LATER, "sees no earlier token: wrong ✗"),
    ):
        box(ax, x, 0.42, 2.65, 2.6, "", "white", MARK if name == "B" else LINE)
        for at in (0.12, 1.68):
            box(ax, x + at, 2.68, 0.7, 0.22, "2 × 8 × 64", size=8)
        box(ax, x + 1.04, 2.65, 0.42, 0.28, name, MARKED, MARK, 10, **BOLD)
        arrow(ax, (x + 0.47, 3.16), (x + 0.47, 2.9))
        arrow(ax, (x + 0.82, 2.79), (x + 1.04, 2.79))
        arrow(ax, (x + 1.46, 2.79), (x + 1.68, 2.79))
        write(ax, x + 2.49, 2.79, "✓", 10, **BOLD)
        _grid(ax, x + 0.78, 0.72, sees)
        write(ax, x + 1.32, 0.56, verdict, **BOLD)
    matrix(ax, 0.9, 0.155, [[MARKED]], 0.14)
    words = "the output of the row moves when the token of the column is changed"
    write(ax, 1.12, 0.225, words, 8, ha="left")


def _changed(ax):
    """Draw the tokens, of which one is changed."""
    box(ax, 0.12, 3.16, 5.41, 0.4)
    x = 0.19
    for i, word in enumerate(WORDS):
        changed = i == CHANGED
        width = 1.06 if changed else 0.265 + 0.08 * len(word)
        look = (MARKED, MARK) if changed else ("white",)
        box(ax, x, 3.22, width, 0.28, "cat → dog" if changed else word, *look)
        x += width + 0.092


def _grid(ax, x, y, sees):
    """Draw who sees whom, a row for each output, a column for each token."""
    cell = 0.19
    matrix(ax, x, y, np.where(sees, MARKED, "#f0f0f0"), cell)
    for i, word in enumerate(WORDS):
        at = (i + 0.5) * cell
        write(ax, x - 0.05, y + 8 * cell - at, word, 8, ha="right")
        write(ax, x + at, y + 8 * cell + 0.05, word, 8, rotation=90, va="bottom")
    box(ax, x + CHANGED * cell, y, cell, 8 * cell, "", "none", MARK)
    if not sees[-1].any():
        write(ax, x + 5.5 * cell, y + cell / 2, "sees nothing", 8)


# --- what closes the lesson ---

CELL, ROW = 0.2, 0.6
INPUT, OUTPUT, SAYS, BLIND = 2.4, 4.7, 6.2, 7.4  # x of the columns
TOKENS = [*HEADS[:3], QUERY, VALUE, KEY]  # a colour for each
STILL = [QUIET] * 6
FROM, ONLY = [QUIET] * 2 + [MARKED] * 4, [QUIET] * 2 + [MARKED] + [QUIET] * 3
SHUFFLED = [TOKENS[i] for i in (3, 0, 5, 1, 4, 2)]


def recap_12():
    """Eight tests of attention, and what each cannot see. Sees: if a token is changed
    and no mask is given, all outputs move (not seen: wrong numbers). No leak: if a
    token is changed under the causal mask, only its output and later ones move (not
    seen: earlier tokens that are ignored). Order: shuffled tokens give shuffled outputs
    (not seen: faults of a mask). Equal tokens give what one alone gives (not seen: a
    leak). Padding: if a hidden token is changed, the outputs of the others stay (not
    seen: too much hidden). Batch: a text gives the same alone and in a batch (not seen:
    what is wrong in both). Large scores: with very large inputs, the output is finite
    (not seen: wrong numbers). Same numbers: with the same weights, a right layer gives
    the same numbers (not seen: inputs not tried). These tests can accuse a right layer.
    Sees and order do so if the layer has a mask inside, order also if it has positions.
    Equal tokens does so if positions are added inside, or a key that comes from no
    token. No leak and padding do so if True hides in the layer's mask. Same numbers
    does so if the weights have another layout, and batch if x is (length, batch,
    features). Large scores does so in float16, whose largest number is 65,504.
    """
    ax = ground(5.85)
    heads = ("test", "input", "must come out", "cannot see")
    for x, name in zip((0.27, INPUT, OUTPUT, BLIND + 0.1), heads):
        write(ax, x, 5.5, name, 10, ha="left", va="baseline", **BOLD)
    _cells(ax, INPUT + 0.66, 5.55, [QUIET])
    write(ax, INPUT + 0.92, 5.5, "token", ha="left", va="baseline")
    _dots(ax, SAYS + 0.02, 5.55, [QUIET])
    write(ax, SAYS + 0.28, 5.5, "its output", ha="left", va="baseline")
    for row, (name, does, draw, says, blind) in enumerate(TESTS):
        low = 5.34 - (row + 1) * ROW
        y = low + ROW / 2 - 0.03
        box(ax, 0.15, low, BLIND - 0.25, ROW - 0.06, "", "white")
        fill = tint(MARK, 0.25)
        box(ax, BLIND, low, 8.85 - BLIND, ROW - 0.06, blind, fill, size=9.5)
        write(ax, 0.27, y + 0.06, name, 10, ha="left", va="baseline", **BOLD)
        write(ax, 0.27, y - 0.17, does, 9, ha="left", va="baseline")
        arrow(ax, (OUTPUT - 0.4, y), (OUTPUT - 0.1, y))
        write(ax, SAYS, y, says, 9, ha="left")
        draw(ax, y)
    lines = (
        "A test can accuse a right layer: “sees” and “order” if it has a mask inside, "
        "“order” also if it has positions.",
        "“Equal tokens” does so for added positions or a key from no token, "
        "“no leak” and “padding” if True hides,",
        "“same numbers” for another layout, “batch” if x is (length, batch, features), "
        "“large scores” in float16.",
    )
    write(ax, 4.5, 0.28, "\n".join(lines), 8.5)


def _cells(ax, x, y, colours, cell=CELL):
    """Draw tokens, y their middle."""
    matrix(ax, x, y - cell / 2, [colours], cell)


def _dots(ax, x, y, colours, cell=CELL):
    """Draw the outputs of tokens, y their middle."""
    for i, colour in enumerate(colours):
        circle(ax, x + (i + 0.5) * cell, y, 0.44 * cell, colour)


def _moves(ax, y):
    _cells(ax, INPUT, y, ONLY)
    _dots(ax, OUTPUT, y, [MARKED] * 6)


def _changes(ax, y):
    _cells(ax, INPUT, y, ONLY)
    _dots(ax, OUTPUT, y, FROM)


def _shuffles(ax, y):
    for up, colours in ((0.125, TOKENS), (-0.125, SHUFFLED)):
        _cells(ax, INPUT, y + up, colours)
        _dots(ax, OUTPUT, y + up, colours)


def _repeats(ax, y):
    for up, count in ((0.125, 1), (-0.125, 6)):
        _cells(ax, INPUT, y + up, TOKENS[:1] * count)
        _dots(ax, OUTPUT, y + up, TOKENS[:1] * count)


def _hides(ax, y):
    _cells(ax, INPUT, y, ONLY)
    at, hidden = (INPUT + 2 * CELL, y - CELL / 2), {"fc": "none", "ec": "#606060"}
    ax.add_patch(Rectangle(at, CELL, CELL, hatch="/////", lw=0, **hidden))
    _dots(ax, OUTPUT, y, ONLY)


def _batches(ax, y):
    for x, draw in ((INPUT, _cells), (OUTPUT, _dots)):
        draw(ax, x, y, TOKENS, 0.1)
        for up in (0.15, 0, -0.15):
            draw(ax, x + 0.75, y + up, STILL if up else TOKENS, 0.1)


def _enlarges(ax, y):
    _cells(ax, INPUT, y, signed(np.array([[0.3, -0.6, 1.4, 0.1, -1.2, 0.6]]))[0])
    _dots(ax, OUTPUT, y, TOKENS)


def _compares(ax, y):
    for i, (colour, letter) in enumerate(zip((QUERY, KEY, VALUE, QUIET), "qkvo")):
        box(ax, INPUT + 0.34 * i, y - 0.14, 0.28, 0.28, f"$W_{letter}$", colour)
    for up in (0.125, -0.125):
        _dots(ax, OUTPUT, y + up, TOKENS)


TESTS = [  # name, what is done, its picture, what must come out, what it cannot see
    ("sees", "one token is changed", _moves,
     "no mask:\nall move", "wrong numbers"),
    ("no leak", "one token is changed", _changes,
     "causal: only its\nown, later ones", "earlier tokens\nignored"),
    ("order", "tokens are shuffled", _shuffles,
     "shuffled\nalike", "faults\nof a mask"),
    ("equal tokens", "one alone, and many of it", _repeats,
     "all give\nthe same", "a leak"),
    ("padding", "a hidden token is changed", _hides,
     "the others\nstay", "too much\nhidden"),
    ("batch", "a text alone, in a batch", _batches,
     "the same\nnumbers", "what is wrong\nin both"),
    ("large scores", "very large inputs", _enlarges,
     "finite,\nno NaN", "wrong numbers"),
    ("same numbers", "same weights in a right layer", _compares,
     "equal to the\nright layer's", "inputs\nnot tried"),
]  # fmt: skip
