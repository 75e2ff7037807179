"""Draws what a lesson is about, enlarged: lessons 01 to 09.

The panels of lessons 10 and 11 are in panels_model.py, that of lesson 12 is in
debugging.py.
"""

from assets.diagrams.drawing import *


def one_head(ax):
    """Draw one attention: the query of sat, its scores, weights and output."""
    scores = np.array([0.0, 4.0, 0.0, 0.0, 0.0, 2.0])  # as in lesson 01, with d_k = 4
    weights = softmax(scores / 2)
    rows = 3.1 - 0.4 * np.arange(6)
    middle = rows.mean()
    titles = {1.45: "keys", 2.02: "scores", 2.58: r"÷ $\sqrt{d_k}$"}
    row(ax, 3.52, titles | {3.26: "weights", 4.17: "values"}, 9, **BOLD)
    row(ax, 3.34, {2.02: "$q · k$", 2.58: "here ÷ 2", 3.26: "softmax"})
    row(ax, middle - 0.34, {5.08: "weighted"}, **BOLD)  # below the box of the output
    row(ax, middle - 0.48, {5.08: "mean"}, **BOLD)
    row(ax, middle + 0.34, {0.45: "who sat?", 5.08: "mostly cat"})
    box(ax, 0.14, middle - 0.24, 0.62, 0.48, "query\nof sat", QUERY)
    for y, token, score, weight in zip(rows, TOKENS, scores, weights):
        arrow(ax, (0.76, middle), (1.16, y), head=False, width=0.8)
        box(ax, 1.16, y - 0.14, 0.58, 0.28, token, KEY)
        row(ax, y, {2.06: f"{score:.0f}", 2.6: f"{score / 2:.0f}"}, 9, ha="right")
        arrow(ax, (2.17, y), (2.43, y), width=0.8)
        box(ax, 2.91, y - 0.09, weight, 0.18, "", MARKED)
        write(ax, 2.97 + weight, y, f"{weight:.2f}", ha="left")
        arrow(ax, (4.46, y), (4.72, middle), width=0.5 + 6 * weight, head=False)
        box(ax, 3.88, y - 0.14, 0.58, 0.28, token, VALUE)
    box(ax, 4.72, middle - 0.24, 0.72, 0.48, "output\nof sat", VALUE)
    formula = r"$\mathrm{softmax}\left(\,q\,K^\top /\, \sqrt{d_k}\,\right) V$"
    box(ax, 1.16, 0.22, 3.3, 0.44, formula, "white", size=11)


def several_heads(ax):
    """Draw three heads side by side, merged and projected."""
    cell, middle = 0.09, 1.82
    matrix(ax, 0.12, middle - 0.18, [[GREY] * 6] * 4, cell)
    first, previous, own = np.eye(4)[[0] * 4], np.eye(4)[[0, 0, 1, 2]], np.eye(4)
    for head, (y, pattern) in enumerate(zip((2.9, 1.82, 0.74), (previous, first, own))):
        titled(ax, 0.98, y - 0.44, 2.36, 0.88, f"head {head}", (0.1, 0.17), edge=LINE)
        arrow(ax, (0.66, middle), (0.98, y))
        for x, letter, colour in zip((1.08, 1.36, 1.64), "qkv", (QUERY, KEY, VALUE)):
            box(ax, x, y - 0.27, 0.24, 0.3, letter, colour)
        arrows(ax, y - 0.1, (1.92, 2.12), (2.66, 2.9))
        matrix(ax, 2.14, y - 0.32, viridis(0.84 * pattern + 0.04), 0.12)
        matrix(ax, 2.93, y - 0.28, [[HEADS[head]] * 2] * 4, cell)
        row(ax, y + 0.3, {2.38: "weights", 3.02: "output"})
        arrow(ax, (3.34, y), (3.62, middle))
    matrix(ax, 3.64, middle - 0.18, [np.repeat(HEADS[:3], 2)] * 4, cell)
    row(ax, middle - 0.32, {0.39: "input", 3.91: "merged", 5.25: "output"}, 9)
    arrow(ax, (4.18, middle), (4.34, middle))
    box(ax, 4.34, middle - 0.4, 0.46, 0.8)
    arrow(ax, (4.8, middle), (4.97, middle))
    write(ax, 4.57, middle, "output\nprojection", 8, rotation=90, va="center")
    matrix(ax, 4.98, middle - 0.18, [[GREY] * 6] * 4, cell)


def pytorch(ax):
    """Draw whose weights are copied into which of PyTorch's."""
    for x, whose, name in (
        (0.2, "the course's layer", "MultiHeadAttention"),
        (3.2, "PyTorch's layer", "nn.MultiheadAttention"),
    ):
        box(ax, x, 1.05, 2.25, 2.25, "", "white")
        write(ax, x + 1.125, 3.48, whose, **BOLD)
        write(ax, x + 1.125, 3.12, name, **CODE)
    for y, ours, theirs, colour in (
        (2.6, "query_proj", "in_proj_weight[:E]", QUERY),
        (2.15, "key_proj", "in_proj_weight[E:2*E]", KEY),
        (1.7, "value_proj", "in_proj_weight[2*E:]", VALUE),
        (1.2, "out_proj", "out_proj", QUIET),
    ):
        box(ax, 0.42, y, 1.8, 0.34, ours, colour, **CODE)
        box(ax, 3.43, y, 1.8, 0.34, theirs, colour, **CODE)
        arrows(ax, y + 0.17, (2.8, 3.43), (2.9, 2.22))
    box(ax, 0.6, 0.3, 4.45, 0.42, "same input → same output, same attention weights")


def encodings(ax):
    """Draw how embeddings and positional encodings are added."""
    tokens, positions = np.random.default_rng(0).normal(0, 0.5, (3, 8)), sinusoidal(30)
    row(ax, 3.42, {1.34: "embedding", 3.18: "encoding", 4.9: "sum"}, 9, **BOLD)
    for i, (token, numbers) in enumerate(zip("dog bites man".split(), tokens)):
        y = 3.0 - 0.42 * i
        box(ax, 0.1, y, 0.55, 0.26, token)
        plus(ax, 2.1, y + 0.13, MARKED, MARK)
        box(ax, 2.3, y, 0.24, 0.26, str(i), MARKED)
        write(ax, 4.04, y + 0.13, "=", 12)
        added = {0.78: numbers, 2.62: positions[i], 4.34: numbers + positions[i]}
        for x, vector in added.items():
            matrix(ax, x, y + 0.06, signed(vector[None]), 0.14)
    write(ax, 2.88, 1.83, "encodings of 30 positions", **BOLD)
    matrix(ax, 0.78, 0.43, signed(positions.T), 0.157)
    write(ax, 3.1, 0.27, "position")
    write(ax, 0.62, 1.05, "feature", rotation=90, va="center")


def three_places(ax):
    """Draw the three places where positions enter."""
    flow = 3.3
    for x, width, text in (
        (0.1, 1.0, "embeddings"),
        (1.72, 1.05, "queries, keys"),
        (3.42, 0.6, "scores"),
        (4.72, 0.8, "softmax"),
    ):
        box(ax, x, flow - 0.16, width, 0.32, text)
    arrows(ax, flow, (1.1, 1.72), (2.77, 3.42), (4.02, 4.72))
    for place, x, title, methods in (
        (1.41, 1.0, "1  added to the\nembeddings", "sinusoidal, learned"),
        (3.09, 2.83, "2  rotate queries\nand keys", "RoPE"),
        (4.37, 4.66, "3  added to\nthe scores", "ALiBi, T5"),
    ):
        arrow(ax, (x, 2.62), (place, flow - 0.12), colour=MARK, head=False)
        titled(ax, x - 0.86, 0.2, 1.72, 2.42, title, (0.86, 0.29), ha="center")
        write(ax, x, 0.4, methods)
        box(ax, place - 0.13, flow - 0.13, 0.26, 0.26, title[0], MARKED, MARK)
    matrix(ax, 0.52, 0.8, signed(sinusoidal(8)), 0.12)
    centre = np.array([2.83, 1.3])  # of a query and a key, turned by their positions
    circle(ax, *centre, 0.52)
    for degrees, colour, letter in ((70, QUERY, "q"), (20, KEY, "k")):
        way = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
        arrow(ax, centre, centre + 0.52 * way)
        box(ax, *(centre + 0.66 * way - 0.11), 0.22, 0.22, letter, colour)
    distance = np.arange(6)[:, None] - np.arange(6)
    matrix(ax, 4.18, 0.8, signed(-distance / 4, distance >= 0), 0.16)


def sinusoidal(length, base=10000) -> np.ndarray:
    """Return the sinusoidal encodings, (length, 8), of Vaswani et al. 2017."""
    angles = np.arange(length)[:, None] / base ** (np.arange(0, 8, 2) / 8)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, 8)


# --- lessons 06 to 09; the weights and results are those of the story model ---

STORY = "⏎ There was a girl named Kim . She had a red kite . She lost the".split()
# weights of head 0.0 on it in tenths, rounded down, a word for each query
TENTHS = """9 09 207 3123 00008 000009 01151 09 012000021 001101102 11011000001 501
0001100001 09 00000001000011 0100022 000000000009"""
# heads 0 to 3 of layer 1, and below them of layer 0
ON_COLOUR = [[0.03, 0.03, 0.04, 0.04], [0.94, 0.06, 0.02, 0.15]]  # weight
RIGHT = [[1, 1, 1, 1], [0.21, 1, 1, 1]]  # colours, without this head
# logit difference
PATCHED = [[-14.0, -13.8, -13.8, -13.9], [12.4, -13.8, -13.7, -13.9]]


def block(ax):
    """Draw a model of 2 blocks that writes stories."""
    stream = 0.82
    titled(ax, 0.1, 0.2, 4.62, 2.36, "block × 2", (0.12, 0.16))
    up = (0.1, stream), (5.15, stream), (5.15, 1.5)
    for ends in zip(up, up[1:]):
        arrow(ax, *ends, width=5, colour=STREAM_GREY, head=False)
    for x, name, steps, does in (
        (0.22, "multi-head attention", ("q, k, v", "heads", "project"), "mixes tokens"),
        (2.5, "MLP", ("linear", "GELU", "linear"), "each token by itself"),
    ):
        arrow(ax, (x + 0.4, stream), (x + 0.4, 1.02))
        box(ax, x, 1.02, 0.8, 0.24, "layer norm", size=8)
        arrow(ax, (x + 0.4, 1.26), (x + 0.4, 1.42))
        titled(ax, x, 1.42, 2.1, 0.86, name, (1.05, 0.15), MARKED, ha="center")
        write(ax, x + 1.05, 1.55, does, 8)
        for left, step in zip((x + 0.08, x + 0.76, x + 1.44), steps):
            box(ax, left, 1.71, 0.58, 0.26, step, "white", size=8)
        arrows(ax, 1.84, (x + 0.66, x + 0.76), (x + 1.34, x + 1.44))
        arrow(ax, (x + 1.8, 1.42), (x + 1.8, stream + 0.12))
        plus(ax, x + 1.8, stream, MARKED, MARK, 0.12)
    write(ax, 2.4, 0.42, "residual stream: one vector of 128 numbers per token", 8)
    box(ax, 4.82, 1.5, 0.7, 0.62, "norm,\noutput\nlayer", MARKED, MARK, 8)
    arrow(ax, (5.15, 2.12), (5.15, 2.78), **FLOW)
    box(ax, 0.1, 2.68, 4.62, 0.84, "", "white")
    story = {3.33: "There was a girl named Kim. She had a yellow kite."}
    story |= {3.1: "She had a friend, a girl named Nicky. …"}
    column(ax, 0.22, story | {2.87: "When the moon came up, Kim had the"}, 9, ha="left")
    box(ax, 4.82, 2.78, 0.7, 0.28, "yellow", MARKED, MARK)
    write(ax, 5.17, 3.2, "next token", 8)
    arrow(ax, (4.82, 2.89), (2.95, 2.89), **FLOW)


def seen(ax):
    """Draw the weights of head 0.0, and its mean weight on colours."""
    cell, x, y = 0.143, 0.88, 0.92
    top = y + 17 * cell
    rows = [list(map(int, row)) + [0] * (17 - len(row)) for row in TENTHS.split()]
    weights = (np.array(rows) + 0.5) / 10
    matrix(ax, x, y, viridis(weights, np.tri(17, dtype=bool)), cell)
    names(ax, x - 0.06, top, STORY, cell)
    column_names(ax, x, y - 0.06, STORY, cell, va="top")
    box(ax, x + 11 * cell, y, cell, cell, "", "none", MARK)
    scale = viridis(np.linspace(1, 0, 60)[:, None])
    matrix(ax, 3.42, y, scale, 17 * cell / 60, edge="none")
    column(ax, 3.44, {y - 0.11: "0", top + 0.1: "1"})
    row(ax, 3.5, {x + 1.2: "weights of head 0.0", 4.64: "weight on colours"}, 9, **BOLD)
    write(ax, x + 1.2, 0.3, "key", **BOLD)
    write(ax, 0.2, y + 1.2, "query", rotation=90, va="center", **BOLD)
    lengths = {"head 0.0": 0.94, "uniform attention": 0.04}
    lengths |= {"untrained model": 0.04, "entropy-matched copy": 0.16}
    for i, (name, length) in enumerate(lengths.items()):
        low = 3.0 - 0.52 * i
        write(ax, 3.82, low + 0.2, name, 8, ha="left")
        bar(ax, 3.82, low, 1.68 * length, "", i == 0)
    arrow(ax, (3.82 + 1.68 * 0.16, 0.98), (3.82 + 1.68 * 0.94, 0.98), **FLOW)
    write(ax, 4.7, 0.8, "lift", color=MARK, **BOLD)


def specialised(ax):
    """Draw three kinds of evidence on a head: pattern, ablation, patching."""
    line = 3.05
    tokens = "She had a", "red", "kite.", "…", "Kim had", "the"
    widths = 0.85, 0.42, 0.45, 0.25, 0.72, 0.4
    x = words(ax, 0.42, line, tokens, widths, 0.1, "red")
    end = x - 0.3
    arrow(ax, (end, line + 0.15), (end, 3.4), (1.58, 3.4), (1.58, line + 0.15), **FLOW)
    write(ax, 2.8, 3.5, "attends to", 8)
    arrow(ax, (x - 0.1, line), (x + 0.25, line))
    box(ax, x + 0.25, line - 0.15, 0.45, 0.3, "red", MARKED, MARK)
    write(ax, x + 0.48, line - 0.28, "predicted", 8)
    x, patched = 0.12, signed(np.array(PATCHED) / 14)
    for title, colours, what in (
        ("1  pattern", viridis(ON_COLOUR), "weight on the colour\n(yellow: 1)"),
        ("2  ablation", viridis(RIGHT), "colours right without\nit (yellow: all)"),
        ("3  patching", patched, "prediction with this head\ncarried over (red, blue)"),
    ):
        titled(ax, x, 0.2, 1.74, 2.3, title, (0.87, 0.2), ha="center")
        _heads(ax, x + 0.32, 1.25, colours)
        write(ax, x + 0.87, 0.5, what, 8)
        x += 1.84


def _heads(ax, x, y, colours):
    """Draw a colour for each of 2 × 4 heads, and a frame around head 0.0."""
    cell = 0.32
    matrix(ax, x, y, colours, cell)
    box(ax, x, y, cell, cell, "", "none", MARK)
    row(ax, y - 0.13, {x + (head + 0.5) * cell: str(head) for head in range(4)})
    column(ax, x - 0.09, {y + 0.5 * cell: "0", y + 1.5 * cell: "1"})
    write(ax, x + 2 * cell, y - 0.3, "head", 8)
    write(ax, x - 0.22, y + cell, "layer", 8, rotation=90, va="center")


def encoder(ax):
    """Draw a head that finds verbs, and a search by similarity."""
    tokens = "She watched the stars with a small telescope".split()
    widths = 0.42, 0.78, 0.38, 0.54, 0.45, 0.25, 0.55, 0.88
    words(ax, 0.14, 2.87, tokens, widths, 0.16, "stars")
    arrow(ax, (2.31, 3.02), (2.31, 3.33), (1.11, 3.33), (1.11, 3.02), **FLOW)
    write(ax, 1.71, 3.46, "object → verb", 8)
    cell = 0.13
    table = [[QUIET] * 12 for _ in range(6)]
    table[3][0] = MARKED
    matrix(ax, 0.62, 1.55, table, cell)
    box(ax, 0.62, 1.55 + 2 * cell, cell, cell, "", MARKED, MARK)
    layers = {1.55 + cell / 2: "layer 0", 1.55 + 5.5 * cell: "layer 5"}
    column(ax, 0.56, layers, ha="right")
    write(ax, 0.62 + 6 * cell, 1.43, "12 heads in each of 6 layers", 8)
    for y, name, value in ((2.17, "head 2.0", 0.74), (1.8, "best fixed offset", 0.35)):
        bar(ax, 3.82, y, 1.6 * value, name, name == "head 2.0", 0.2, 0.07)
        write(ax, 3.9 + 1.6 * value, y, f"{value:.2f}", ha="left")
    write(ax, 4.42, 2.46, "finds the verb of an object", 8)
    box(ax, 0.12, 0.15, 5.4, 1.1, "", "white")
    box(ax, 0.24, 0.3, 1.5, 0.62, "The weather is\nlovely today.", MARKED, MARK, 8)
    arrow(ax, (1.74, 0.61), (2.0, 0.61))
    vector = np.random.default_rng(4).normal(0, 0.7, (8, 1))
    matrix(ax, 2.03, 0.29, signed(vector), 0.08)
    write(ax, 3.98, 1.1, "similarity", 8, ha="left")
    for y, sentence, similarity, fill in (
        (0.84, "It’s so sunny outside!", 0.67, MARKED),
        (0.4, "He drove to the stadium.", 0.10, QUIET),
    ):
        arrow(ax, (2.14, 0.61), (2.3, y))
        write(ax, 2.34, y, sentence, 8, ha="left")
        box(ax, 3.98, y - 0.09, similarity, 0.18, "", fill)
        write(ax, 4.04 + similarity, y, f"{similarity:.2f}", ha="left")
