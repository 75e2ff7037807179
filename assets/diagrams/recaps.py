"""Draws what closes a lesson: its matrices with their sizes, one figure a lesson."""

from itertools import product

from assets.diagrams.drawing import *
from assets.diagrams.panels import sinusoidal

HEIGHT = 2.75
MIDDLE, TITLE, SIZE, NOTE = 1.45, 2.52, 0.46, 0.2  # heights in a row of matrices


def recap_02():
    """Draw multi-head attention in matrices."""
    ax, cell = ground(HEIGHT), 0.068
    rows, half = MIDDLE + 0.6 * np.array([1, 0, -1]), 3 * cell
    x = _named(ax, 0.22, [[GREY] * 12] * 6, cell, "input $x$")
    q, head0 = x + 0.62, x + 2.1  # x of queries, keys and values, and of the heads
    for y, letter, colour in zip(rows, "qkv", (QUERY, KEY, VALUE)):
        arrow(ax, (x, MIDDLE), (x + 0.1, MIDDLE), (x + 0.1, y), (q - 0.03, y))
        write(ax, x + 0.36, y + 0.12, rf"$\times\,W_{letter}$")
        matrix(ax, q, y - half, [[colour] * 12] * 6, cell)
        for line in (q + 4 * cell, q + 8 * cell):
            ax.plot([line, line], [y - half, y + half], color=LINE, lw=1.2)
    previous, first, own = np.eye(6, k=-1), np.eye(6)[[0] * 6], np.eye(6)
    random = np.random.default_rng(3)
    for head, (y, pattern) in enumerate(zip(rows, (previous, first, own))):
        box(ax, head0 - 0.25, y - 0.27, 2.5, 0.54, "", "white")
        write(ax, head0 - 0.13, y, f"head {head}", 8, rotation=90, va="center")
        weights = softmax(random.normal(2.2 * pattern, 0.8))
        matrix(ax, head0 + 0.87, y - half, viridis(weights), cell)
        for at, colour in ((0, QUERY), (0.33, KEY), (1.48, VALUE), (1.93, HEADS[head])):
            matrix(ax, head0 + at, y - half, [[colour] * 4] * 6, cell)
        row(ax, y, {head0 + 1.378: "×", head0 + 1.852: "="}, 11)
        arrow(ax, (head0 + 0.63, y), (head0 + 0.85, y))
    letters = {head0 + 0.14: "$q$", head0 + 0.47: "$k$", head0 + 1.62: "$v$"}
    row(ax, TITLE, letters, 10)
    row(ax, TITLE, {q + 6 * cell: r"$q,\ k,\ v$", head0 + 1.07: "weights"}, 10, **BOLD)
    write(ax, head0 + 2.06, TITLE, "outputs", 10, **BOLD)
    sizes = {x + 0.34: "12 × 12", q + 6 * cell: "6 × 12", head0 + 0.3: "3 × 6 × 4"}
    row(ax, SIZE, sizes | {head0 + 1.07: "3 × 6 × 6", head0 + 1.84: "3 × 6 × 4"}, 9)
    split, merge = q + 12 * cell, head0 + 2.25
    arrows(ax, MIDDLE, (split + 0.03, split + 0.39), (merge + 0.03, merge + 0.39))
    row(ax, MIDDLE + 0.13, {split + 0.2: "split", merge + 0.2: "merge"})
    merged, x = np.repeat(HEADS[:3], 4), merge + 0.42
    for name, colours, then in (
        ("merged", [merged] * 6, "×"),
        ("$W_o$", [[colour] * 12 for colour in merged], "="),
        ("output", [[GREY] * 12] * 6, ""),
    ):
        x = _named(ax, x, colours, cell, name, then) + 0.22
    note = r"6 tokens   ·   embed_dim 12  =  3 heads × head_dim 4   ·   "
    note += r"in each head: weights = softmax$(q\,k^\top / \sqrt{4}\,)$"
    write(ax, 4.5, NOTE, note, 8)


def recap_03():
    """Draw the parameters, tensors and masks of nn.MultiheadAttention."""
    ax = ground(HEIGHT)
    panel(ax, 0.15, 3.75, "parameters", _parameters)
    panel(ax, 4.0, 2.48, "tensors", _tensors)
    panel(ax, 6.58, 2.27, "masks", _masks)
    note = "N = 2 sequences   ·   L = 6 queries   ·   S = 6 keys   ·   "
    note += "E = 8 features   ·   H = 2 heads   ·   batch_first=True"
    write(ax, 4.5, 0.19, note, 8)


def _parameters(ax):
    """Draw the projections of both layers; each bias is a column beside its weight."""
    cell = 0.047
    size = 8 * cell
    row(ax, 2.28, {1.28: "the course", 2.42: "PyTorch"})
    for y, theirs, name, colour in (
        (1.79, 1.05 + 2 * size, "query_proj", QUERY),
        (1.35, 1.05 + size, "key_proj", KEY),
        (0.91, 1.05, "value_proj", VALUE),
        (0.43, 0.43, "out_proj", GREY),
    ):
        write(ax, 1.0, y + size / 2, name, ha="right", **CODE)
        for x, low in ((1.06, y), (2.2, theirs)):
            matrix(ax, x, low, [[colour] * 8] * 8, cell)
            matrix(ax, x + size + 0.05, low, [[colour]] * 8, cell)
        ends = (1.56, y + size / 2), (2.15, theirs + size / 2)
        arrow(ax, *ends)
        arrow(ax, *ends[::-1])
    theirs = {1.82: "in_proj_weight", 1.42: "in_proj_bias"}
    theirs |= {0.98: "out_proj.weight", 0.62: "out_proj.bias"}
    column(ax, 2.75, theirs, ha="left", **CODE)
    sizes = {1.67: "3E × E  =  24 × 8", 1.27: "3E  =  24"}
    column(ax, 2.75, sizes | {0.83: "E × E  =  8 × 8", 0.47: "E  =  8"}, ha="left")


def _tensors(ax):
    """Draw what goes into the layer, and what comes out."""
    heads = softmax(np.random.default_rng(2).normal(0, 1.2, (2, 2, 6, 6)))
    for y, colour in ((1.98, QUERY), (1.62, KEY), (1.26, GREY)):
        stack(ax, 4.12, y, [[[colour] * 8] * 6] * 2, 0.04)
    for y, weights in ((0.9, heads.mean(1)), (0.42, heads.reshape(4, 6, 6))):
        stack(ax, 4.12, y, [*map(viridis, weights)], 0.04)
    shapes = {2.13: "query  (N, L, E)", 1.77: "key, value  (N, S, E)"}
    shapes |= {1.41: "output  (N, L, E)", 1.12: "weights  (N, L, S)"}
    shapes |= {0.96: "mean of the heads: the default", 0.64: "weights  (N, H, L, S)"}
    column(ax, 4.64, shapes, ha="left")
    write(ax, 4.64, 0.48, "average_attn_weights=False", ha="left", **CODE)


def _masks(ax):
    """Draw the masks of both layers, and what True means there."""
    box(ax, 8.3, 2.41, 0.1, 0.1, "", MARK)
    write(ax, 8.44, 2.46, "True", 8, ha="left")
    column(ax, 6.7, {2.22: "PyTorch:", 1.08: "course:"}, ha="left", **BOLD)
    write(ax, 7.3, 2.22, "True = blocked", 8, ha="left")
    write(ax, 7.24, 1.08, "True = may be attended to", 8, ha="left")
    padding = np.arange(6) >= np.array([[6], [4]])
    later = np.triu(np.ones((6, 6), bool), 1)
    for y, mask, name, shape in (
        (1.86, padding, "key_padding_mask", "(N, S)"),
        (1.27, later, "attn_mask", "(L, S)  or  (N·H, L, S)"),
        (0.46, ~later, "mask", "(L, S)  or  (N, H, L, S)"),
    ):
        matrix(ax, 6.7, y, np.where(mask, MARK, "white"), 0.075, edge="#d6d6d6")
        middle = y + len(mask) * 0.0375
        write(ax, 7.24, middle + 0.08, name, ha="left", **CODE)
        write(ax, 7.24, middle - 0.08, shape, 8, ha="left")


def recap_04():
    """Draw positions in matrices: the sum, a shift, the four terms of a score."""
    ax, cell = ground(HEIGHT), 0.12
    tokens = np.random.default_rng(6).normal(0, 0.4, (6, 8))
    positions, x = sinusoidal(6, base=100), 0.5
    names(ax, 0.45, MIDDLE + 3 * cell, TOKENS, cell)
    for name, colours, then in (
        ("embeddings", tokens, "+"),
        ("encodings", positions, "="),
        ("input $x$", tokens + positions, ""),
    ):
        x = _named(ax, x, signed(colours), cell, name, then) + 0.22
    write(ax, 2.2, NOTE, "in each row: token + position", 8)
    x = 4.75  # of a pair of features at 2 positions, and the rotation between them
    turn(ax, x, 1.74, 0.42, 20, 80)
    write(ax, x + 0.49, 1.9, "$p$", 8)
    write(ax, x + 0.1, 2.27, "$p+k$", 8)
    cos, sin = r"$\cos\,\omega_i k$", r"$\sin\,\omega_i k$"
    for y, entries in ((0.91, (cos, f"$-${sin}")), (0.67, (sin, cos))):
        for left, entry in zip((x - 0.6, x), entries):
            ax.add_patch(Rectangle((left, y), 0.6, 0.24, fc=MARKED, ec=LINE, lw=0.8))
            write(ax, left + 0.3, y + 0.12, entry, 8)
    _under(ax, x, "pair $i$", "2 × 2")
    write(ax, x, NOTE, "a shift by $k$: one rotation for all $p$", 8)
    size = 6 * 0.105
    left, right = 6.3, 6.3 + size + 0.24
    high, low = MIDDLE + 0.12, MIDDLE - 0.12 - size
    ahead = np.arange(6)[:, None] - np.arange(6) - 1  # 0: the previous token
    turns = ahead[..., None] / 100 ** (np.arange(0, 8, 2) / 8)
    nearby = np.cos(turns) @ [1, 0.9, 0, -0.3]  # a weight for each pair
    terms = [*np.random.default_rng(4).normal(0, 0.2, (3, 6, 6)), nearby]
    for at, term in zip(product((high, low), (left, right)), terms):
        matrix(ax, *at[::-1], signed(term / 1.5), 0.105)
    matrix(ax, 8.2, MIDDLE - size / 2, signed(sum(terms) / 1.5), 0.105)
    write(ax, right - 0.12, high + size / 2, "+", 11)
    row(ax, low + size / 2, {left - 0.12: "+", right - 0.12: "+"}, 11)
    write(ax, right + size + 0.13, MIDDLE, "=", 11)
    for x, y, part in ((left, high, "token"), (right, low, "position")):
        write(ax, x + size / 2, high + size + 0.1, part, 8)
        write(ax, left - 0.3, y + size / 2, part, 8, rotation=90, va="center")
    write(ax, left - 0.5, MIDDLE, "query", 10, rotation=90, va="center", **BOLD)
    _under(ax, (left + right + size) / 2, "key", "6 × 6 each")
    _under(ax, 8.2 + size / 2, "scores", "6 × 6")
    note = r"query part × key part: 4 terms of $x\,W_q W_k^\top x^\top$"
    write(ax, 7.45, NOTE, note, 8)


def recap_05():
    """Draw the three places for positions, in matrices."""
    ax = ground(HEIGHT)
    panel(ax, 0.15, 2.35, "1  embeddings", _added, "embed")
    panel(ax, 2.6, 2.75, "2  queries, keys", _rotated, "rotate")
    panel(ax, 5.45, 3.4, "3  scores", _biased, "bias")
    note = "6 tokens   ·   embed_dim 8  =  2 heads × head_dim 4   ·   "
    write(ax, 4.5, 0.19, f"{note}places 2 and 3: in every layer", 8)


CELL, PLACE, TALL = 0.075, 1.445, 6 * 0.075  # matrices of recap_05, their middle
NUMBERS = np.random.default_rng(5).normal(size=184)


def _added(ax):
    """Draw place 1: encodings are added to the embeddings."""
    table, tokens = sinusoidal(6, base=100), 0.5 * NUMBERS[:48].reshape(6, 8)
    for x, name, colours in (
        (0.27, "tokens", tokens),
        (1.03, "table", table),
        (1.79, "input", tokens + table),
    ):
        named(ax, x, PLACE, signed(colours), CELL, name, "6 × 8")
    row(ax, PLACE, {0.95: "+", 1.71: "="}, 11)
    write(ax, 1.325, 0.74, "sinusoidal: computed", 8)
    write(ax, 1.325, 0.54, "learned: 6 of max_length rows", 8)


def _rotated(ax):
    """Draw place 2: queries and keys are rotated, pair by pair."""
    for y, name, colour in ((1.825, "$q$", QUERY), (1.045, "$k$", KEY)):
        for x in (2.9, 4.75):
            stack(ax, x, y - TALL / 2, [[[colour] * 4] * 6] * 2, CELL)
        write(ax, 2.78, y, name, 10)
        arrow(ax, (3.29, y), (3.36, y), (3.36, PLACE), (3.52, PLACE))
        arrow(ax, (4.5, PLACE), (4.6, PLACE), (4.6, y), (4.73, y))
    write(ax, 4.92, 2.22, "rotated")
    row(ax, 0.54, {3.08: "2 × 6 × 4", 4.0: "values: as they are", 4.93: "2 × 6 × 4"})
    angles = viridis(np.arange(6)[:, None] * [0.16, 0.016])
    named(ax, 3.63 - CELL, PLACE, angles, CELL, "angles", "6 × 2")
    turn(ax, 4.16, PLACE, 0.3, 15, 75)


def _biased(ax):
    """Draw place 3: a bias, of T5 or of ALiBi, is added to the scores."""
    distance = np.arange(6)[:, None] - np.arange(6)
    scores = 0.8 * NUMBERS[48:120].reshape(2, 6, 6)
    bias = [-distance * slope for slope in (0.4, 0.1)]
    for x, name, numbers, size in (
        (5.6, "scores", scores, "2 × 6 × 6"),
        (6.45, "bias", bias, "1 × 2 × 6 × 6"),
    ):
        low, sheets = PLACE - TALL / 2, [signed(n, distance >= 0) for n in numbers]
        stack(ax, x, low, sheets, CELL)
        beside(ax, x + 0.25, low, TALL + 0.05, name, size)
    write(ax, 6.28, PLACE, "+", 11)
    arrow(ax, (7.4, PLACE), (7.02, PLACE))
    learned = 0.6 * NUMBERS[120:].reshape(32, 2) + np.linspace(1, -1, 32)[:, None]
    named(ax, 7.566, PLACE, signed(learned), 0.034, "T5 table", "32 × 2", "none")
    write(ax, 8.0, PLACE, "or")
    named(ax, 8.3, PLACE, signed([[-0.8], [-0.2]]), 0.12, "ALiBi slopes", "2")
    write(ax, 8.36, 0.9, "× −distance", 8)
    row(ax, 0.54, {6.25: "then mask, softmax", 7.6: "one row for each bucket"})


def _named(ax, x, colours, cell, name, then="") -> float:
    """Draw a matrix in the middle, its name above, its size below, a sign after it."""
    columns = len(colours[0])
    matrix(ax, x, MIDDLE - len(colours) * cell / 2, colours, cell)
    _under(ax, x + columns * cell / 2, name, f"{len(colours)} × {columns}")
    write(ax, x + columns * cell + 0.11, MIDDLE, then, 11)
    return x + columns * cell


def _under(ax, x, name, size):
    """Write the name above a column of matrices, and their size below."""
    write(ax, x, TITLE, name, 10, **BOLD)
    write(ax, x, SIZE, size)
