"""Draws what closes lessons 06, 10 and 11: language models, in matrices with sizes."""

from assets.diagrams.drawing import *

STREAM = 1.12  # height of the residual stream in recap_06
IDS = {"⏎": 1, "There": 27, "was": 105, "a": 31, "girl": 56, "named": 76}
PIECES = {"cold": 4011, "morning": 5738, ",": 28, "Z": 1777, "orb": 4434, "ul": 336}


def recap_06():
    """Draw the language model in matrices."""
    ax, cell = ground(3.3), 0.045
    names(ax, 0.6, STREAM + 0.48, IDS, 0.16)
    for i, number in enumerate(IDS.values()):
        low = STREAM + 0.16 * (2 - i)
        box(ax, 0.66, low, 0.34, 0.16, str(number), "white", size=8)
    beside(ax, 0.83, STREAM - 0.48, 0.96, "ids", "6")
    arrows(ax, STREAM, (1.02, 1.24), (1.67, 1.97))
    chosen = (0, 4, 5, 9, 12, 17)
    rows = [[MARKED if i in chosen else QUIET] * 8 for i in range(22)]
    named(ax, 1.28, STREAM, rows, cell, "embeddings", "V × 128")
    named(ax, 2.0, STREAM, [[MARKED] * 8] * 6, cell, "input", "6 × 128")
    titled(ax, 2.6, 0.62, 4.2, 2.5, "block  × 2", (0.15, 0.14), size=10)
    arrow(ax, (2.38, STREAM), (6.95, STREAM), width=4, colour=STREAM_GREY)
    write(ax, 4.7, 0.78, "residual stream:  6 × 128")
    for x, width, name in ((2.75, 1.55, "attention, 4 heads"), (4.47, 2.18, "MLP")):
        titled(ax, x, 1.88, width, 0.96, name, (0.1, 0.14), QUIET, LINE)
        norm, out = (x + 0.08, 1.45, 0.54, 0.22), x + width - 0.2
        sublayer(ax, STREAM, norm, 1.88, out, gap=0.1, radius=0.11)
        write(ax, out - 0.08, 1.55, "adds", 8, ha="right")
    scores = np.random.default_rng(3).normal(0, 1.3, (4, 6, 6))
    stack(ax, 2.87, 2.14, causal_maps(scores), 0.043, 0.035)
    merged = np.repeat(HEADS, 2)
    for x, colours in ((3.65, merged), (4.57, [MARKED] * 32), (6.2, [GREY] * 8)):
        matrix(ax, x, 2.2, [colours] * 6, cell)
    arrows(ax, 2.33, (3.37, 3.6), (6.04, 6.18))
    sizes = {3.09: "4 × 6 × 6", 3.83: "6 × 128", 5.29: "6 × 512", 6.33: "6 × 128"}
    row(ax, 2.0, sizes)
    box(ax, 6.95, STREAM - 0.11, 0.46, 0.22, "norm", "white", size=8)
    row(ax, STREAM, {7.5: "×", 8.23: "="}, 11)
    named(ax, 7.6, STREAM, [[GREY] * 12] * 8, cell, "head", "128 × V")
    logits = signed(np.random.default_rng(0).normal(0, 1, (6, 12)) / 1.5)
    named(ax, 8.33, STREAM, logits, cell, "logits", "6 × V")
    arrow(ax, (8.6, 1.52), (8.6, 1.84))
    write(ax, 8.52, 1.68, "last row", 8, ha="right")
    box(ax, 8.25, 1.86, 0.66, 0.24, "softmax", "white", size=8)
    arrow(ax, (8.6, 2.1), (8.6, 2.42))
    box(ax, 8.25, 2.44, 0.66, 0.28, "Kim", MARKED, MARK)
    write(ax, 8.55, 2.9, "next token")
    note = "6 tokens   ·   V tokens in the vocabulary   ·   embed_dim 128  =  4 heads "
    note += "× head_dim 32   ·   MLP: × (128 × 512), GELU, × (512 × 128)"
    write(ax, 4.5, 0.24, note, 8)


# SmolLM2: 576 features are 18 columns, 2 for each head, and 3 heads share a colour
FINE = 0.03
PARTS = np.repeat(HEADS[:3], 6).tolist()


def recap_10():
    """Draw one layer of SmolLM2 with a KV cache: prefill and decode."""
    ax = ground(3.58)
    box(ax, 0.15, 1.95, 8.7, 1.49, "", "white")
    box(ax, 0.15, 0.36, 8.7, 1.49, "", "white", MARK)
    titles = {3.28: "prefill: 10 tokens at once", 1.69: "decode: 1 token a step"}
    column(ax, 0.27, titles, 10, ha="left", **BOLD)
    _cached(ax, 2.62, 10)
    _cached(ax, 1.03, 1)
    arrow(ax, (2.74, 2.0), (2.74, 1.58), **FLOW)
    note = "one of 30 layers   ·   3 query heads share 1 KV head   ·   cache: "
    note += "2 × 3 × 64 numbers per token and layer, 11,520 per token in 30 layers"
    write(ax, 4.5, 0.19, note, 8)


def _cached(ax, y, new):
    """Draw the attention of the new tokens, 10 or 1, with a cache; y is the middle."""
    cell, half = 0.036, new * 0.018
    fill, length = (GREY, 10) if new == 10 else (MARKED, 11)
    for x, features in ((0.32, [fill] * 18), (6.36, PARTS), (8.06, [fill] * 18)):
        matrix(ax, x, y - half, [features] * new, cell)
    arrows(ax, y, (1.0, 1.4), (3.95, 4.5), (5.92, 6.3))
    arrow(ax, (1.14, y), (1.14, y - 0.35), (3.73, y - 0.35), (3.73, y - 0.27))
    arrow(ax, (1.96, y), (2.3, y), **FLOW)
    row(ax, y + 0.13, {2.12: "kept" if new == 10 else "added", 6.1: "merge"})
    column(ax, 4.22, {y + 0.14: r"$q\,k^\top\!/\sqrt{64}$", y - 0.12: "softmax"})
    box(ax, 2.33, y - 0.25, 0.82, 0.52)
    for at, into, colour in ((1.46, 2.48, KEY), (1.76, 2.86, VALUE)):
        _sheets(ax, at, y, [[[colour] * 2] * new] * 3, cell)
        rows = [[colour] * 2] * 10 + [[MARK] * 2] * (length - 10)
        _sheets(ax, into, y, [rows] * 3, cell)
    _sheets(ax, 3.63, y, [[[QUERY] * 2] * new] * 9, cell)
    scores = np.random.default_rng(new).normal(0, 1.5, (9, new, length))
    _sheets(ax, 4.6, y, causal_maps(scores), cell, plain=QUIET)
    _sheets(ax, 5.58, y, [[[colour] * 2] * new for colour in PARTS[::2]], cell)
    _out_proj(ax, 7.2, y, cell)
    write(ax, 5.3, y, r"$\times\,v$ =")
    row(ax, y, {7.1: "×", 7.95: "="}, 11)
    for x, name, size in (
        (0.64, "$x$", f"{new} × 576"),
        (1.64, r"$k,\ v$", f"3 × {new} × 64 each"),
        (2.74, "cache", f"3 × {length} × 64 each"),
        (3.73, "$q$", f"9 × {new} × 64"),
        (4.86, "weights", f"9 × {new} × {length}"),
        (5.72, "outputs", f"9 × {new} × 64"),
        (6.68, "merged", f"{new} × 576"),
        (7.52, "$W_o$", "576 × 576"),
        (8.38, "output", f"{new} × 576"),
    ):
        beside(ax, x, y - 0.35, 0.65, name, size)


def _sheets(ax, x, y, matrices, cell, plain=None):
    """Draw the matrices of heads, one behind the other, or below it if of 1 row."""
    if len(matrices[0]) > 1:
        tall, wide = cell * len(matrices[0]), cell * len(matrices[0][0])
        low = y - (tall + 0.02 * (len(matrices) - 1)) / 2
        for i in range(len(matrices) - 1, 0, -1):  # the front shows its cells
            at, fill = (x + 0.02 * i, low + 0.02 * i), plain or matrices[i][0][0]
            ax.add_patch(Rectangle(at, wide, tall, fc=fill, ec=LINE, lw=0.6))
        return matrix(ax, x, low, matrices[0], cell)
    for i, colours in enumerate(matrices):  # 3 query heads beside 1 KV head
        group = i // 3 if len(matrices) == 9 else i
        lift = (1 - group) * 0.19 + (1 - i % 3) * 1.3 * cell * (len(matrices) == 9)
        matrix(ax, x, y + lift - cell / 2, colours, cell)


def _out_proj(ax, x, y, cell=FINE):
    """Draw W_o, with the rows of each group of heads in its colour; y is the middle."""
    rows, size = [[colour] for colour in PARTS], 18 * cell
    matrix(ax, x, y - size / 2, rows, size, tall=cell)


def recap_11():
    """Draw SmolLM2 in matrices, a change of one head, and an OV circuit."""
    ax = ground(4.2)
    _real_model(ax, 2.48)
    for x, name in ((0.15, "A"), (4.55, "B")):
        box(ax, x, 0.36, 4.3, 1.42, "", "white", MARK)
        letter(ax, x + 0.22, 1.6, name)
    titles = {0.55: "change one head's output", 4.95: "the OV circuit of one head"}
    row(ax, 1.6, titles, 10, ha="left", **BOLD)
    _changed(ax)
    _ov_path(ax, 1.02)
    note = "n tokens   ·   49,152 in the vocabulary   ·   576 features = 9 heads × 64"
    note += "   ·   30 × 9 = 270 heads   ·   B: norms left out"
    write(ax, 4.5, 0.19, note, 8)


def _real_model(ax, y):
    """Draw the whole model, from ids to logits; y is the height of its stream."""
    names(ax, 0.66, y + 0.435, PIECES, 0.145)
    for i, number in enumerate(PIECES.values()):
        low = y + 0.145 * (2.5 - i) - 0.072
        box(ax, 0.7, low, 0.36, 0.145, str(number), "white", size=8)
    beside(ax, 0.88, y - 0.435, 0.87, "ids", "n")
    arrows(ax, y, (1.09, 1.38), (1.72, 1.9))
    rows = [[MARKED if i % 4 == 1 else QUIET] * 9 for i in range(24)]
    matrix(ax, 1.42, y - 12 * FINE, rows, FINE)
    beside(ax, 1.56, y - 12 * FINE, 24 * FINE, "embeddings", "49,152 × 576")
    matrix(ax, 1.93, y - 3 * FINE, [[MARKED] * 18] * 6, FINE)
    titled(ax, 2.62, 2.02, 4.1, 2.05, "block × 30", (0.12, 1.9), size=10)
    write(ax, 4.84, 2.17, "residual stream:  n × 576")
    arrow(ax, (2.5, y), (6.86, y), width=4, colour=STREAM_GREY)
    _in_block(ax, y)
    box(ax, 6.86, y - 0.11, 0.42, 0.22, "norm", "white", size=8)
    row(ax, y, {7.38: "×", 8.05: "="}, 11)
    matrix(ax, 7.48, y - 9 * FINE, [[GREY] * 15] * 18, FINE)
    beside(ax, 7.71, y - 9 * FINE, 18 * FINE, "output layer", "576 × 49,152")
    logits = np.random.default_rng(0).normal(0, 0.7, (6, 15))
    matrix(ax, 8.19, y - 3 * FINE, signed(logits), FINE)
    row(ax, y + 0.22, {2.2: "input", 8.66: "logits"}, 9)
    row(ax, y - 0.22, {2.2: "n × 576", 8.43: "n × 49,152"})
    arrow(ax, (8.42, y + 0.12), (8.42, y + 0.56))
    box(ax, 8.09, y + 0.58, 0.66, 0.24, "softmax", "white", size=8)
    arrow(ax, (8.42, y + 0.82), (8.42, y + 1.06))
    box(ax, 8.09, y + 1.08, 0.66, 0.28, "ax", MARKED, MARK)
    write(ax, 8.02, y + 1.22, "next token", ha="right")


def _in_block(ax, y):
    """Draw attention and the MLP, which read from the stream and add to it."""
    middle = y + 0.93
    for x, width, name in ((2.74, 2.86, "attention"), (5.7, 0.92, "MLP")):
        titled(ax, x, y + 0.46, width, 1.03, name, (0.1, 0.14), QUIET, LINE)
        norm, out = (x + 0.05, y + 0.15, 0.44, 0.2), x + width - 0.2
        sublayer(ax, y, norm, y + 0.46, out, gap=0.1, radius=0.1)
    scores = np.random.default_rng(3).normal(0, 1.4, (9, 6, 6))
    _sheets(ax, 2.9, middle, causal_maps(scores), 0.036, plain=QUIET)
    arrows(ax, middle, (3.32, 3.54), (3.9, 4.12))
    _sheets(ax, 3.6, middle, [[[colour] * 2] * 6 for colour in PARTS[::2]], 0.036)
    matrix(ax, 4.16, middle - 3 * FINE, [PARTS] * 6, FINE)
    write(ax, 4.81, middle, "×", 11)
    _out_proj(ax, 4.92, middle)
    matrix(ax, 5.8, middle - 3 * FINE, [[MARKED] * 24] * 6, FINE)
    letter(ax, 3.74, y + 1.36, "A")
    letter(ax, 5.19, y + 1.36, "B")
    sizes = {3.07: "9 × n × n", 3.74: "9 × n × 64", 4.43: "n × 576"}
    row(ax, y + 0.56, sizes | {5.19: "576 × 576", 6.16: "n × 1,536"})


def _changed(ax):
    """Draw the merged outputs as they are, without a head, and with another run's."""
    for y, name, colours in (
        (1.31, "as it is", PARTS[8:10]),
        (1.02, "ablation: zeros", ["white"] * 2),
        (0.73, "patching: another run's", [MARK] * 2),
    ):
        write(ax, 1.62, y, name, 8, ha="right")
        matrix(ax, 1.7, y - 3 * FINE, [PARTS[:8] + colours + PARTS[10:]] * 6, FINE)
        box(ax, 1.7 + 8 * FINE, y - 3 * FINE, 2 * FINE, 6 * FINE, "", "none", MARK)
        arrow(ax, (2.27, y), (2.38, y), (2.38, 1.02), (2.52, 1.02), head=y == 1.02)
    write(ax, 1.98, 0.47, "one head: n × 64 of n × 576", 8)
    write(ax, 2.6, 1.02, "×", 11)
    _out_proj(ax, 2.72, 1.02)
    beside(ax, 2.99, 0.78, 0.49, "$W_o$", "576 × 576")
    arrow(ax, (3.75, 0.5), (3.75, 1.62), width=4, colour=STREAM_GREY)
    arrow(ax, (3.3, 1.02), (3.64, 1.02))
    plus(ax, 3.75, 1.02, MARKED, MARK, 0.1)
    column(ax, 3.9, {1.02: "stream", 1.5: "logits"}, ha="left")


def _ov_path(ax, y):
    """Draw what a head adds to the logits if it attends to a token."""
    own = np.random.default_rng(7).normal(0, 0.25, 15)
    own[9] = 1.5  # the logit of the token that is attended to
    x = 4.72
    for colours, name, size, sign in (
        ([[GREY] * 18], "token", "1 × 576", "×"),
        ([[VALUE] * 2] * 18, "$W_v$", "576 × 64", "×"),
        ([[PARTS[8]] * 18] * 2, "$W_o$", "64 × 576", "×"),
        ([[GREY] * 15] * 18, "output layer", "576 × 49,152", "="),
        (signed(own[None]), "logits", "1 × 49,152", ""),
    ):
        wide, room = FINE * len(colours[0]), max(0.5, FINE * len(colours[0]))
        tall = FINE if len(colours) > 1 else 0.08
        low = y - len(colours) * tall / 2
        matrix(ax, x + (room - wide) / 2, low, colours, FINE, tall=tall)
        beside(ax, x + room / 2, y - 0.21, 0.45, name, size)
        write(ax, x + room + 0.17, y, sign, 11)
        x += room + 0.34
    write(ax, 6.7, 0.47, "does the head raise the logit of this token, or lower it?", 8)
