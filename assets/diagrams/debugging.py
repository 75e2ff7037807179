"""Draws what lesson 12 is about, and what closes it."""

from assets.diagrams.drawing import *

WORDS = "The old cat sat on the warm mat".split()
CHANGED = 2  # cat
CAUSAL = np.tri(8, dtype=bool)
# Its own token shows through the query, if there are several weights to choose from.
LATER = ~CAUSAL | np.diag((~CAUSAL).sum(1) > 1)


def who_sees_whom(ax):
    """Draw which outputs move if a token is changed, in a right and a wrong layer.

    Which of the two is wrong is the question of the lesson's first section.
    """
    box(ax, 0.12, 3.16, 5.41, 0.4)
    changed = "cat → dog"
    texts = [changed if i == CHANGED else word for i, word in enumerate(WORDS)]
    widths = [1.06 if t == changed else 0.265 + 0.08 * len(t) for t in texts]
    words(ax, 0.19, 3.36, texts, widths, 0.092, changed, tall=0.28)
    for x, name, sees in ((0.12, "A", CAUSAL), (2.88, "B", LATER)):
        box(ax, x, 0.42, 2.65, 2.6, "", "white")
        for at in (0.12, 1.68):
            box(ax, x + at, 2.68, 0.7, 0.22, "2 × 8 × 64", size=8)
        box(ax, x + 1.04, 2.65, 0.42, 0.28, name, MARKED, MARK, 10, **BOLD)
        arrow(ax, (x + 0.47, 3.16), (x + 0.47, 2.9))
        arrows(ax, 2.79, (x + 0.82, x + 1.04), (x + 1.46, x + 1.68))
        write(ax, x + 2.49, 2.79, "✓", 10, **BOLD)
        _grid(ax, x + 0.78, 0.72, sees)
        write(ax, x + 1.32, 0.56, f"{name} is meant to be causal. Is it?", **BOLD)
    matrix(ax, 0.9, 0.155, [[MARKED]], 0.14)
    rule = "the output of the row moves when the token of the column is changed"
    write(ax, 1.12, 0.225, rule, 8, ha="left")


def _grid(ax, x, y, sees):
    """Draw who sees whom, a row for each output, a column for each token."""
    cell = 0.19
    top = y + 8 * cell
    matrix(ax, x, y, np.where(sees, MARKED, "#f0f0f0"), cell)
    names(ax, x - 0.05, top, WORDS, cell)
    column_names(ax, x, top + 0.05, WORDS, cell, va="bottom")
    box(ax, x + CHANGED * cell, y, cell, 8 * cell, "", "none", MARK)


# --- what closes the lesson ---

CELL, ROW = 0.2, 0.6
INPUT, OUTPUT, SAYS, BLIND = 2.4, 4.7, 6.2, 7.4  # x of the columns
TOKENS = [*HEADS[:3], QUERY, VALUE, KEY]  # a colour for each
STILL, ONE = [QUIET] * 6, TOKENS[:1]
FROM, ONLY = [QUIET] * 2 + [MARKED] * 4, [QUIET] * 2 + [MARKED] + [QUIET] * 3
LARGE = signed(np.array([[0.3, -0.6, 1.4, 0.1, -1.2, 0.6]]))[0]
ORDERS = [TOKENS, [TOKENS[i] for i in (3, 0, 5, 1, 4, 2)]]

TESTS = [  # name, what is done, must come out, cannot see, rows of tokens, of outputs
    ("sees", "one token is changed",
     "no mask:\nall move", "wrong numbers", [ONLY], [[MARKED] * 6]),
    ("no leak", "one token is changed",
     "causal: earlier\nones stay", "earlier tokens\nignored", [ONLY], [FROM]),
    ("order", "tokens are shuffled",
     "shuffled the\nsame way", "faults\nof a mask", ORDERS, ORDERS),
    ("equal tokens", "one alone, and many of it",
     "all give\nthe same", "a leak", [ONE, ONE * 6], [ONE, ONE * 6]),
    ("padding", "a hidden token is changed",
     "the others\nstay", "too much\nhidden", [ONLY], [ONLY]),
    ("batch", "a text alone, in a batch",
     "the same\nnumbers", "what is wrong\nin both", [], []),
    ("large scores", "very large inputs",
     "finite,\nno NaN", "wrong numbers", [LARGE], [TOKENS]),
    ("same numbers", "same weights in a right layer",
     "equal to the\nright layer's", "inputs\nnot tried", [], [TOKENS] * 2),
]  # fmt: skip


def recap_12():
    """Draw eight tests of attention, and what each cannot see."""
    ax = ground(5.85)
    left = {"ha": "left", "va": "baseline"}
    heads = {0.27: "test", INPUT: "input", OUTPUT: "must come out"}
    row(ax, 5.5, heads | {BLIND + 0.1: "cannot see"}, 10, **BOLD, **left)
    row(ax, 5.5, {INPUT + 0.92: "token", SAYS + 0.28: "its output"}, 9, **left)
    _cells(ax, INPUT + 0.66, 5.55, [QUIET])
    _dots(ax, SAYS + 0.02, 5.55, [QUIET])
    for i, (name, does, says, blind, inputs, outputs) in enumerate(TESTS):
        low = 5.34 - (i + 1) * ROW
        y = low + ROW / 2 - 0.03
        box(ax, 0.15, low, BLIND - 0.25, ROW - 0.06, "", "white")
        fill = tint(MARK, 0.25)
        box(ax, BLIND, low, 8.85 - BLIND, ROW - 0.06, blind, fill, size=9.5)
        write(ax, 0.27, y + 0.06, name, 10, **BOLD, **left)
        write(ax, 0.27, y - 0.17, does, 9, **left)
        arrow(ax, (OUTPUT - 0.4, y), (OUTPUT - 0.1, y))
        write(ax, SAYS, y, says, 9, ha="left")
        for x, draw, rows in ((INPUT, _cells, inputs), (OUTPUT, _dots, outputs)):
            lifts = (0.125, -0.125) if len(rows) == 2 else (0,)
            for lift, colours in zip(lifts, rows):
                draw(ax, x, y + lift, colours)
    # what only one test has: a hidden token, a batch of 3 texts, weights
    hidden = {"fc": "none", "ec": "#606060", "hatch": "/////", "lw": 0}
    ax.add_patch(Rectangle((INPUT + 2 * CELL, 2.51), CELL, CELL, **hidden))
    for x, draw in ((INPUT, _cells), (OUTPUT, _dots)):
        draw(ax, x, 2.01, TOKENS, 0.1)
        for y, colours in ((2.16, STILL), (2.01, TOKENS), (1.86, STILL)):
            draw(ax, x + 0.75, y, colours, 0.1)
    for i, (colour, name) in enumerate(zip((QUERY, KEY, VALUE, QUIET), "qkvo")):
        box(ax, INPUT + 0.34 * i, 0.67, 0.28, 0.28, f"$W_{name}$", colour)
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
