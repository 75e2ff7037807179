"""Draws what closes lessons 07 to 09: what we do with a head, in matrices."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

import numpy as np

from assets.diagrams.drawing import *
from assets.diagrams.recaps import HEIGHT


def recap_07():
    """From a head to a statement. Left: the weights of 8 heads (2 layers × 4 heads,
    each queries × keys) become a score for each head on each text (texts × 8). The mean
    score of a head stands beside its baselines: uniform attention, an untrained model,
    and an entropy-matched untrained copy. The lift is the score minus a baseline,
    here the highest one. Right: the intervention. A head's output (here 6 tokens ×
    32 features) is replaced by its mean over texts and positions, the same 32 numbers
    for each token, and we count how often the model is still right.
    """
    ax = ground(HEIGHT)
    panel(ax, 0.15, 5.35, "what does it attend to?")
    panel(ax, 5.6, 3.25, "what is it needed for?")
    _scored(ax)
    _compared(ax)
    _replaced(ax)
    note = "choose a head on some texts, report its score on others"
    write(ax, 2.83, 0.19, note, 8)
    write(ax, 7.22, 0.19, "the mean is over texts and positions", 8)


CHOSEN = 0  # the head that is marked in recap_07, of 8


def _scored(ax):
    """Draw the weights of 8 heads, and their scores on many texts."""
    random, mask = np.random.default_rng(5), np.tri(6, dtype=bool)
    same = np.eye(6)[[0, 1, 1, 1, 4, 4]]  # attends to a few keys
    for head in range(8):
        scores = random.normal(0, 1, (6, 6)) + 4 * same * (head == CHOSEN)
        weights = softmax(np.where(mask, scores, -np.inf))
        x, y = 0.32 + 0.37 * (head % 4), 1.56 - 0.42 * (head // 4)
        if head == CHOSEN:
            box(ax, x - 0.04, y - 0.04, 0.38, 0.38, "", MARKED, MARK)
        matrix(ax, x, y, viridis(weights, mask), 0.05)
    write(ax, 1.04, 2.06, "weights", **BOLD)
    write(ax, 1.04, 0.94, "2 × 4 heads,", 8)
    write(ax, 1.04, 0.76, "each queries × keys", 8)
    arrow(ax, (1.82, 1.5), (2.08, 1.5))
    scores = random.uniform(0, 0.35, (12, 8)) + 0.65 * (np.arange(8) == CHOSEN)
    matrix(ax, 2.12, 1.02, viridis(scores), 0.08)
    write(ax, 2.44, 2.14, "scores", **BOLD)
    write(ax, 2.44, 0.87, "texts × 8", 8)
    x = 2.12 + 0.08 * CHOSEN
    box(ax, x - 0.02, 1.0, 0.12, 1.0, "", "none", MARK)
    arrow(ax, (2.82, 1.5), (3.2, 1.5))
    write(ax, 3.02, 1.63, "mean", 8)


def _compared(ax):
    """Draw a head's mean score beside its baselines, and the lift."""
    zero = 4.18
    names = "the head", "uniform", "untrained", "entropy-matched"
    for row, (name, length) in enumerate(zip(names, (0.95, 0.24, 0.28, 0.42))):
        fill, edge = (MARKED, MARK) if row == 0 else (QUIET, LINE)
        y = 1.98 - 0.31 * row
        write(ax, zero - 0.06, y, name, 8, ha="right")
        box(ax, zero, y - 0.09, length, 0.18, "", fill, edge)
    arrow(ax, (zero, 0.86), (zero, 2.14), head=False)
    ends = (zero + 0.42, 0.78), (zero + 0.95, 0.78)
    for x, low in ((zero + 0.42, 0.96), (zero + 0.95, 1.89)):
        ax.plot([x, x], [0.7, low], color=MARK, lw=0.8, ls=":")
    arrow(ax, *ends, **FLOW)
    write(ax, zero + 0.68, 0.55, "lift", color=MARK, **BOLD)
    words = "score − a baseline, here the highest  ="
    write(ax, zero - 0.06, 0.55, words, 8, ha="right")


def _replaced(ax):
    """Draw a head's output, its mean in its place, and what is still answered."""
    output = np.random.default_rng(1).normal([0.7, -1, 0.9, -0.5], 0.8, (6, 4))
    for y, numbers, name, length in (
        (1.72, output, "with", 0.55),
        (0.98, np.tile(output.mean(0), (6, 1)), "without", 0.17),
    ):
        colours, other = signed(numbers), [[GREY] * 4] * 6
        matrix(ax, 5.82, y - 0.21, colours, 0.07)
        arrow(ax, (6.16, y), (6.4, y))
        for i, part in enumerate((colours, other, other, other)):
            matrix(ax, 6.44 + 0.18 * i, y - 0.135, part, 0.045)
        box(ax, 6.43, y - 0.145, 0.2, 0.29, "", "none", MARK)
        arrow(ax, (7.2, y), (7.44, y))
        arrow(ax, (7.92, y), (8.12, y))
        write(ax, 8.18, y + 0.19, f"{name} it", 8, ha="left")
        box(ax, 8.18, y - 0.08, 0.56, 0.16, "", "white")
        box(ax, 8.18, y - 0.08, length, 0.16, "", MARKED, MARK)
    arrow(ax, (5.96, 1.48), (5.96, 1.22))
    write(ax, 6.02, 1.35, "mean", 8, ha="left")
    box(ax, 7.46, 0.74, 0.46, 1.22, "rest\nof the\nmodel", QUIET, size=8)
    for x, name, size in (
        (6.02, "output", "6 × 32"),
        (6.8, "4 heads", "6 × 128"),
        (8.44, "right", "of words"),
    ):
        write(ax, x, 2.14, name, **BOLD)
        write(ax, x, 0.55, size, 8)


def recap_08():
    """Activation patching, and the circuits of a head. Left: two runs of one model on a
    story with red and on the same story with blue. The output of one head is carried
    over from the red run; the logit difference, red − blue, moves from below 0 nearly
    to the red run. Right: the QK circuit, E W_q W_kᵀ Eᵀ (V × 128, 128 × 32, 32 × 128,
    128 × V), scores each pair of tokens (V × V). The OV circuit, E W_v W_o U, says
    which logits a head raises if it attends to a token (V × V).
    """
    ax = ground(HEIGHT)
    panel(ax, 0.15, 4.2, "activation patching")
    panel(ax, 4.45, 4.4, "a head's circuits, from its weights")
    _patched(ax)
    _difference(ax)
    random, match, copy = np.random.default_rng(2), np.zeros((12, 12)), np.eye(12)
    match[7:9, 2:6] = 1  # some queries match some keys
    noise = random.normal(0, 0.3, (2, 12, 12))
    letters = "$E$", "$W_q$", r"$W_k^\top$", r"$E^\top$"
    _circuit(ax, 1.72, "QK", letters, (QUERY, KEY), 1.3 * match + noise[0])
    letters = "$E$", "$W_v$", "$W_o$", "$U$"
    _circuit(ax, 0.83, "OV", letters, (VALUE, VALUE), 1.3 * copy + noise[1])
    note = "E: embeddings, U: output layer; norms left out, QK at one distance (RoPE)"
    write(ax, 6.72, 0.19, note, 8)
    write(ax, 2.32, 0.19, "the same model, the same story but for one word", 8)


RED, BLUE = HEADS[2], QUERY  # of the words red and blue


def _patched(ax):
    """Draw two runs, and one head's output that is carried from one to the other."""
    for y, word, fill, bars in (
        (2.0, "red", RED, (0.62, 0.1)),
        (1.34, "blue", BLUE, (0.5, 0.18)),
    ):
        write(ax, 0.3, y, "a", 9, ha="left")
        box(ax, 0.42, y - 0.11, 0.38, 0.22, word, fill)
        write(ax, 0.86, y, "kite … had the", 9, ha="left")
        arrow(ax, (1.86, y), (2.06, y))
        for head in range(8):
            at = 2.1 + 0.21 * (head % 4), y - 0.2 + 0.21 * (head // 4)
            look = (MARKED, MARK) if head == 0 else (QUIET,)
            box(ax, *at, 0.18, 0.18, "", *look)
        arrow(ax, (2.96, y), (3.2, y))
        for lift, name, colour, length in zip(
            (0.1, -0.1), ("red", "blue"), (RED, BLUE), bars
        ):
            write(ax, 3.54, y + lift, name, 8, ha="right")
            box(ax, 3.6, y + lift - 0.07, length, 0.14, "", colour)
    arrow(ax, (2.19, 1.8), (2.19, 1.33), **FLOW)
    write(ax, 2.52, 1.67, "its output here: 1 × 32", 8, ha="left")
    write(ax, 2.51, 2.33, "2 × 4 heads", 8)


def _difference(ax):
    """Draw how the logit difference moves."""
    y, zero = 0.78, 2.0
    arrow(ax, (0.35, y), (4.3, y))
    arrow(ax, (zero, y - 0.07), (zero, y + 0.07), head=False)
    write(ax, zero, y - 0.16, "0", 8)
    for x, name, side, shift in (
        (0.85, "blue run", "center", 0),
        (3.79, "patched", "right", 0.03),
        (3.95, "red run", "left", -0.06),
    ):
        fill, edge = (MARKED, MARK) if name == "patched" else ("white", LINE)
        circle(ax, x, y, 0.06, fill, edge)
        write(ax, x + shift, y - 0.16, name, 8, ha=side)
    start, end = (0.85, y + 0.06), (3.79, y + 0.06)
    arrow(ax, start, (0.85, y + 0.17), (3.79, y + 0.17), end, **FLOW)
    write(ax, 2.32, 0.45, "logit difference:  red − blue", 8)


def _circuit(ax, y, name, letters, colours, table):
    """Draw a product of 4 matrices, the middle ones of one head, and their product."""
    write(ax, 4.57, y, name, 9, ha="left", weight="bold")
    x, cell = 5.15, 0.04
    for letter, (rows, columns), size, colour, sign in zip(
        letters,
        ((12, 8), (8, 2), (2, 8), (8, 12)),
        ("V × 128", "128 × 32", "32 × 128", "128 × V"),
        (GREY, *colours, GREY),
        "×××=",
    ):
        at = x - columns * cell / 2, y - rows * cell / 2
        matrix(ax, *at, [[colour] * columns] * rows, cell)
        write(ax, x, y + 0.34, letter, 9)
        write(ax, x, y - 0.35, size, 8)
        write(ax, x + 0.36, y, sign, 10)
        x += 0.73
    row, column = ("query", "key") if name == "QK" else ("attended", "logit")
    matrix(ax, 8.06, y - 0.24, signed(table), cell)
    write(ax, 7.96, y, row, 8, va="center", rotation=90)
    write(ax, 8.3, y + 0.33, column, 8)
    write(ax, 8.3, y - 0.35, "V × V", 8)


def recap_09():
    """An encoder of 6 layers × 12 heads in matrices. Left: the weights of a head
    between 6 subword tokens (6 × 6) become weights between 3 words (3 × 3): columns are
    added, rows averaged. Middle: the largest weight of each row names a word, which is
    compared with the grammatical head in the tree ("watched" is the root and has none);
    the baseline is the best fixed offset. Right: the mean of a sentence's hidden states
    (8 × 384) is one vector (384), and the cosine of two such vectors is the similarity
    of their sentences.
    """
    ax = ground(HEIGHT)
    panel(ax, 0.15, 3.5, "tokens → words")
    panel(ax, 3.75, 2.4, "words → grammar")
    panel(ax, 6.25, 2.6, "tokens → sentence")
    _joined(ax)
    _parsed(ax)
    _averaged(ax)
    note = "6 layers × 12 heads = 72 heads   ·   384 features = 12 heads × 32   ·   "
    write(ax, 4.5, 0.19, f"{note}no causal mask: each token attends to all", 8)


PIECES = ["em", "##bed", "##ding", "##s", "help", "."]


def _joined(ax):
    """Draw how weights between subword tokens become weights between words."""
    random = np.random.default_rng(8)
    tokens = softmax(random.normal(0, 1, (6, 6)) + 2 * np.eye(6, k=1))
    added = np.stack([tokens[:, :4].sum(1), tokens[:, 4], tokens[:, 5]], 1)
    words = np.stack([added[:4].mean(0), added[4], added[5]])
    cell, middle = 0.16, 1.42
    for row, piece in enumerate(PIECES):
        write(ax, 0.75, middle + (2.5 - row) * cell, piece, 8, ha="right")
    for x, weights, size in (
        (0.8, tokens, "6 × 6"),
        (1.96, added, "6 × 3"),
        (2.98, words, "3 × 3"),
    ):
        high, wide = cell * len(weights), cell * len(weights[0])
        matrix(ax, x, middle - high / 2, viridis(weights), cell)
        write(ax, x + wide / 2, 0.74, size, 8)
    box(ax, 0.8, middle - cell, 6 * cell, 4 * cell, "", "none", MARK)
    for x, does in ((1.86, "columns\nadded"), (2.72, "rows\naveraged")):
        write(ax, x, 2.16, does, 8)
    arrow(ax, (1.78, middle), (1.94, middle))
    arrow(ax, (2.46, middle), (2.96, middle))


def _parsed(ax):
    """Draw the word that each row names, beside the tree, and the baseline."""
    words = "She watched the stars".split()
    weights = np.array([[1, 5, 2, 2], [3, 3, 1, 3], [1, 5, 1, 3], [0.3, 9, 0.4, 0.3]])
    cell, left, middle = 0.18, 4.36, 1.5
    matrix(ax, left, middle - 2 * cell, viridis(weights / 10), cell)
    write(ax, left + 2 * cell, 2.06, "4 × 4", 8)
    write(ax, 5.41, 2.06, "largest", 8)
    write(ax, 5.91, 2.06, "tree", 8)
    for row, (word, found, tree) in enumerate(
        zip(words, ("watched", "", "watched", "watched"), ("✓", "root", "✗", "✓"))
    ):
        y = middle + (1.5 - row) * cell
        write(ax, left - 0.05, y, word, 8, ha="right")
        write(ax, 5.41, y, found, 8)
        write(ax, 5.91, y, tree, 8)
        if found:
            box(ax, left + cell, y - cell / 2, cell, cell, "", "none", MARK)
    for y, name, length in (
        (0.82, "best head", 0.85),
        (0.56, "best fixed offset", 0.4),
    ):
        fill, edge = (MARKED, MARK) if name == "best head" else (QUIET, LINE)
        write(ax, 4.95, y, name, 8, ha="right")
        box(ax, 5.02, y - 0.08, length, 0.16, "", fill, edge)


def _averaged(ax):
    """Draw the mean of hidden states, and the similarity of two sentences."""
    random, cell = np.random.default_rng(4), 0.06
    same = random.normal(0, 0.6, 12)
    for y, sentence, length in (
        (1.65, "The weather is lovely today.", 8),
        (0.72, "It’s so sunny outside!", 9),
    ):
        states = same + random.normal(0, 0.9, (length, 12))
        write(ax, 6.4, y + 0.42, sentence, 8, ha="left")
        matrix(ax, 6.4, y - length * cell / 2, signed(states), cell)
        write(ax, 7.2, y + 0.17, f"{length} × 384", 8, ha="left")
        arrow(ax, (7.18, y), (7.46, y))
        matrix(ax, 7.5, y - cell / 2, signed(states.mean(0)[None]), cell)
        write(ax, 7.86, y - 0.15, "384", 8)
    for y in (1.65, 0.72):
        arrow(ax, (8.26, y), (8.5, y), (8.5, 1.18 + (0.14 if y > 1 else -0.14)))
    write(ax, 8.45, 1.19, "cosine 0.67", 9)
