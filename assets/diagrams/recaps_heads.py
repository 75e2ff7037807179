"""Draws what closes lessons 07 to 09: what we do with a head, in matrices."""

from assets.diagrams.drawing import *
from assets.diagrams.recaps import HEIGHT


def recap_07():
    """Draw how a head's scores and an intervention become a statement."""
    ax = ground(HEIGHT)
    panel(ax, 0.15, 5.35, "what does it attend to?", _scored)
    panel(ax, 5.6, 3.25, "what is it needed for?", _replaced)
    note = "choose a head on some texts, report its score on others"
    row(ax, 0.19, {2.83: note, 7.22: "the mean is over texts and positions"})


def _scored(ax):
    """Draw the weights of 8 heads, their scores, and how much the first one lifts."""
    random = np.random.default_rng(5)
    scores = random.normal(0, 1, (8, 6, 6))
    scores[0] += 4 * np.eye(6)[[0, 1, 1, 1, 4, 4]]  # attends to a few keys
    box(ax, 0.28, 1.52, 0.38, 0.38, "", MARKED, MARK)
    for head, weights in enumerate(causal_maps(scores)):
        x, y = 0.32 + 0.37 * (head % 4), 1.56 - 0.42 * (head // 4)
        matrix(ax, x, y, weights, 0.05)
    write(ax, 1.04, 2.06, "weights", **BOLD)
    column(ax, 1.04, {0.94: "2 × 4 heads,", 0.76: "each queries × keys"})
    scores = random.uniform(0, 0.35, (12, 8)) + 0.65 * (np.arange(8) == 0)
    matrix(ax, 2.12, 1.02, viridis(scores), 0.08)
    write(ax, 2.44, 2.14, "scores", **BOLD)
    write(ax, 2.44, 0.87, "texts × 8", 8)
    box(ax, 2.1, 1.0, 0.12, 1.0, "", "none", MARK)
    arrows(ax, 1.5, (1.82, 2.08), (2.82, 3.2))
    write(ax, 3.02, 1.63, "mean", 8)
    zero, highest, score = 4.18, 4.34, 5.12  # of the bars, and what the lift is between
    lengths = {"the head": 0.94, "uniform": 0.04, "untrained": 0.04}  # of the page
    lengths["entropy-matched"] = 0.16
    for i, (name, length) in enumerate(lengths.items()):
        bar(ax, zero, 1.98 - 0.31 * i, length, name, i == 0)
    arrow(ax, (zero, 0.86), (zero, 2.14), head=False)
    for x, low in ((highest, 0.96), (score, 1.89)):
        ax.plot([x, x], [0.7, low], color=MARK, lw=0.8, ls=":")
    arrow(ax, (highest, 0.78), (score, 0.78), **FLOW)
    write(ax, zero + 0.68, 0.55, "lift", color=MARK, **BOLD)
    formula = "score − a baseline, here the highest  ="
    write(ax, zero - 0.06, 0.55, formula, 8, ha="right")


def _replaced(ax):
    """Draw a head's output, its mean in its place, and what is still answered."""
    output = np.random.default_rng(1).normal([0.7, -1, 0.9, -0.5], 0.8, (6, 4))
    for y, numbers, name, length in (
        (1.72, output, "with it", 0.56),  # all are right
        (0.98, np.tile(output.mean(0), (6, 1)), "without it", 0.04),  # 0.07 of 0.56
    ):
        matrix(ax, 5.82, y - 0.21, signed(numbers), 0.07)
        matrix(ax, 6.44, y - 0.135, signed(numbers), 0.045)
        for x in (6.62, 6.8, 6.98):
            matrix(ax, x, y - 0.135, [[GREY] * 4] * 6, 0.045)
        box(ax, 6.43, y - 0.145, 0.2, 0.29, "", "none", MARK)
        arrows(ax, y, (6.16, 6.4), (7.2, 7.44), (7.92, 8.12))
        write(ax, 8.18, y + 0.19, name, 8, ha="left")
        box(ax, 8.18, y - 0.08, 0.56, 0.16, "", "white")
        box(ax, 8.18, y - 0.08, length, 0.16, "", MARKED, MARK)
    arrow(ax, (5.96, 1.48), (5.96, 1.22))
    write(ax, 6.02, 1.35, "mean", 8, ha="left")
    box(ax, 7.46, 0.74, 0.46, 1.22, "rest\nof the\nmodel", QUIET, size=8)
    row(ax, 2.14, {6.02: "output", 6.8: "4 heads", 8.35: "right words"}, 9, **BOLD)
    row(ax, 0.55, {6.02: "6 × 32", 6.8: "6 × 128", 8.44: "share"})


def recap_08():
    """Draw activation patching, and the circuits of a head."""
    ax = ground(HEIGHT)
    panel(ax, 0.15, 4.2, "activation patching", _patched)
    panel(ax, 4.45, 4.4, "a head's circuits, from its weights", _circuits)
    note = "E: embeddings after the first norm, U: output layer; "
    note += "QK at one distance (RoPE)"
    row(ax, 0.19, {6.72: note, 2.32: "the same model, the same story except one word"})


def _patched(ax):
    """Draw one head's output, carried from a run to another, and what it moves."""
    red, blue = HEADS[2], QUERY
    for y, word, fill, bars in (
        (2.0, "red", red, (0.62, 0.1)),
        (1.34, "blue", blue, (0.5, 0.18)),
    ):
        row(ax, y, {0.3: "a", 0.86: "kite … had the"}, 9, ha="left")
        box(ax, 0.42, y - 0.11, 0.38, 0.22, word, fill)
        arrows(ax, y, (1.86, 2.06), (2.96, 3.2))
        for head in range(8):
            at = 2.1 + 0.21 * (head % 4), y - 0.2 + 0.21 * (head // 4)
            box(ax, *at, 0.18, 0.18, "", **marked(head == 0))
        column(ax, 3.54, {y + 0.1: "red", y - 0.1: "blue"}, ha="right")
        for low, colour, length in zip((0.03, -0.17), (red, blue), bars):
            box(ax, 3.6, y + low, length, 0.14, "", colour)
    arrow(ax, (2.19, 1.8), (2.19, 1.33), **FLOW)
    write(ax, 2.52, 1.67, "its output here: 1 × 32", 8, ha="left")
    write(ax, 2.51, 2.33, "2 × 4 heads", 8)
    y, zero, blue, patched = 0.78, 2.0, 0.85, 3.79  # of the axis of logit differences
    arrow(ax, (0.35, y), (4.3, y))
    arrow(ax, (zero, y - 0.07), (zero, y + 0.07), head=False)
    for x in (blue, patched, 3.95):
        circle(ax, x, y, 0.06, **marked(x == patched, "white"))
    row(ax, y - 0.16, {blue: "blue run", zero: "0"})
    write(ax, 3.82, y - 0.16, "patched", 8, ha="right")
    write(ax, 3.89, y - 0.16, "red run", 8, ha="left")
    up = (blue, y + 0.06), (blue, y + 0.17)
    arrow(ax, *up, (patched, y + 0.17), (patched, y + 0.06), **FLOW)
    write(ax, 2.32, 0.45, "logit difference:  red − blue", 8)


def _circuits(ax):
    """Draw both circuits of a head, with what they make of pairs of tokens."""
    match, copy = np.zeros((12, 12)), np.eye(12)
    match[7:9, 2:6] = 1  # some queries match some keys
    noise = np.random.default_rng(2).normal(0, 0.3, (2, 12, 12))
    _circuit(ax, 1.72, "QK", (QUERY, KEY), 1.3 * match + noise[0])
    _circuit(ax, 0.83, "OV", (VALUE, VALUE), 1.3 * copy + noise[1])


def _circuit(ax, y, name, colours, table):
    """Draw a product of 4 matrices, the middle ones of one head, and their product."""
    write(ax, 4.57, y, name, ha="left", **BOLD)
    qk, cell = name == "QK", 0.04
    for x, letter, rows, columns, size, colour in (
        (5.15, "$E$", 12, 8, "V × 128", GREY),
        (5.88, "$W_q$" if qk else "$W_v$", 8, 2, "128 × 32", colours[0]),
        (6.61, r"$W_k^\top$" if qk else "$W_o$", 2, 8, "32 × 128", colours[1]),
        (7.34, r"$E^\top$" if qk else "$U$", 8, 12, "128 × V", GREY),
    ):
        at = x - columns * cell / 2, y - rows * cell / 2
        matrix(ax, *at, [[colour] * columns] * rows, cell)
        beside(ax, x, y - 0.2, 0.4, letter, size)
    row(ax, y, {5.51: "×", 6.24: "×", 6.97: "×", 7.7: "="}, 10)
    matrix(ax, 8.06, y - 0.24, signed(table), cell)
    of_row, of_column = ("query", "key") if qk else ("attended", "logit")
    write(ax, 7.96, y, of_row, 8, va="center", rotation=90)
    column(ax, 8.3, {y + 0.33: of_column, y - 0.35: "V × V"})


def recap_09():
    """Draw how weights between tokens become statements on words and sentences."""
    ax = ground(HEIGHT)
    panel(ax, 0.15, 3.5, "tokens → words", _joined)
    panel(ax, 3.75, 2.4, "words → grammar", _parsed)
    panel(ax, 6.25, 2.6, "tokens → sentence", _averaged)
    note = "6 layers × 12 heads = 72 heads   ·   384 features = 12 heads × 32   ·   "
    write(ax, 4.5, 0.19, f"{note}no causal mask: each token attends to all", 8)


def _joined(ax):
    """Draw how weights between subword tokens become weights between words."""
    scores = np.random.default_rng(8).normal(0, 1, (6, 6)) + 2 * np.eye(6, k=1)
    tokens = softmax(scores)
    added = np.stack([tokens[:, :4].sum(1), tokens[:, 4], tokens[:, 5]], 1)
    averaged = np.stack([added[:4].mean(0), added[4], added[5]])
    cell, middle = 0.16, 1.42
    names(ax, 0.75, middle + 3 * cell, "em ##bed ##ding ##s help .".split(), cell)
    for x, weights in ((0.8, tokens), (1.96, added), (2.98, averaged)):
        matrix(ax, x, middle - len(weights) * cell / 2, viridis(weights), cell)
    box(ax, 0.8, middle - cell, 6 * cell, 4 * cell, "", "none", MARK)
    row(ax, 0.74, {1.28: "6 × 6", 2.2: "6 × 3", 3.22: "3 × 3"})
    row(ax, 2.16, {1.86: "columns\nadded", 2.72: "rows\naveraged"})
    arrows(ax, middle, (1.78, 1.94), (2.46, 2.96))


def _parsed(ax):
    """Draw the word that each row names, beside the tree, and the baseline."""
    weights = np.array([[1, 5, 2, 2], [3, 3, 1, 3], [1, 5, 1, 3], [0.3, 9, 0.4, 0.3]])
    cell, left, middle = 0.18, 4.36, 1.5
    matrix(ax, left, middle - 2 * cell, viridis(weights / 10), cell)
    names(ax, left - 0.05, middle + 2 * cell, "She watched the stars".split(), cell)
    row(ax, 2.06, {left + 2 * cell: "4 × 4", 5.41: "largest", 5.91: "tree"})
    for i, tree in enumerate(("✓", "root", "✗", "✓")):
        y = middle + (1.5 - i) * cell
        write(ax, 5.91, y, tree, 8)
        if tree != "root":
            write(ax, 5.41, y, "watched", 8)
            box(ax, left + cell, y - cell / 2, cell, cell, "", "none", MARK)
    bar(ax, 5.02, 0.82, 0.85, "best head", True, 0.16, 0.07)
    bar(ax, 5.02, 0.56, 0.4, "best fixed offset", False, 0.16, 0.07)


def _averaged(ax):
    """Draw the mean of hidden states, and the similarity of two sentences."""
    random, cell = np.random.default_rng(4), 0.06
    same = random.normal(0, 0.6, 12)
    for y, sentence, length, end in (
        (1.65, "The weather is lovely today.", 8, 1.32),
        (0.72, "It’s so sunny outside!", 9, 1.04),
    ):
        states = same + random.normal(0, 0.9, (length, 12))
        write(ax, 6.4, y + 0.42, sentence, 8, ha="left")
        matrix(ax, 6.4, y - length * cell / 2, signed(states), cell)
        write(ax, 7.2, y + 0.17, f"{length} × 384", 8, ha="left")
        arrow(ax, (7.18, y), (7.46, y))
        matrix(ax, 7.5, y - cell / 2, signed(states.mean(0)[None]), cell)
        write(ax, 7.86, y - 0.15, "384", 8)
        arrow(ax, (8.26, y), (8.5, y), (8.5, end))
    write(ax, 8.45, 1.19, "cosine 0.67")
