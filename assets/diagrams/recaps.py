"""Draws what closes a lesson: its matrices with their sizes, one figure a lesson."""

# ruff: noqa: F403, F405 (drawing is the vocabulary)

import numpy as np

from assets.diagrams.drawing import *
from assets.diagrams.panels import sinusoidal

HEIGHT = 2.75
MIDDLE, TITLE, SIZE, NOTE = 1.45, 2.52, 0.46, 0.2  # heights in a row of matrices


def recap_02():
    """Multi-head attention in matrices. The input x (6 × 12) times 3 matrices gives
    queries, keys and values (6 × 12 each). Each is split into 3 heads (3 × 6 × 4).
    Each head has its own attention weights (3 × 6 × 6) and its own output (3 × 6 × 4).
    The outputs are merged (6 × 12) and multiplied by the output projection (12 × 12),
    which gives the output (6 × 12).
    """
    ax, cell = ground(HEIGHT), 0.068
    narrow, half = 4 * cell, 3 * cell
    rows = MIDDLE + 0.6 * np.array([1, 0, -1])
    x = _named(ax, 0.22, [[GREY] * 12] * 6, cell, "input $x$")
    q, head0 = x + 0.62, x + 2.1  # x of queries, keys and values, and of the heads
    for y, letter, colour in zip(rows, "qkv", (QUERY, KEY, VALUE)):
        arrow(ax, (x, MIDDLE), (x + 0.1, MIDDLE), (x + 0.1, y), (q - 0.03, y))
        write(ax, x + 0.36, y + 0.12, rf"$\times\,W_{letter}$")
        matrix(ax, q, y - half, [[colour] * 12] * 6, cell)
        for line in (q + narrow, q + 2 * narrow):
            ax.plot([line, line], [y - half, y + half], color=LINE, lw=1.2)
    write(ax, x + 0.34, SIZE, "12 × 12")
    _under(ax, q + 1.5 * narrow, r"$q,\ k,\ v$", "6 × 12")
    previous, first, own = np.eye(6, k=-1), np.eye(6)[[0] * 6], np.eye(6)
    random = np.random.default_rng(3)
    for head, (y, pattern) in enumerate(zip(rows, (previous, first, own))):
        low = y - half
        box(ax, head0 - 0.25, y - 0.27, 2.5, 0.54, "", "white")
        write(ax, head0 - 0.13, y, f"head {head}", 8, rotation=90, va="center")
        weights = softmax(random.normal(2.2 * pattern, 0.8))
        for at, colours, then in (
            (0, [[QUERY] * 4] * 6, ""),
            (0.33, [[KEY] * 4] * 6, ""),
            (0.87, viridis(weights), "×"),
            (1.48, [[VALUE] * 4] * 6, "="),
            (1.93, [[HEADS[head]] * 4] * 6, ""),
        ):
            matrix(ax, head0 + at, low, colours, cell)
            write(ax, head0 + at + len(colours[0]) * cell + 0.1, y, then, 11)
        arrow(ax, (head0 + 0.63, y), (head0 + 0.85, y))
    for at, name in ((0.14, "$q$"), (0.47, "$k$"), (1.62, "$v$")):
        write(ax, head0 + at, TITLE, name, 10)
    _under(ax, head0 + 1.07, "weights", "3 × 6 × 6")
    write(ax, head0 + 0.3, SIZE, "3 × 6 × 4")
    write(ax, head0 + 1.84, SIZE, "3 × 6 × 4")
    write(ax, head0 + 2.06, TITLE, "outputs", 10, weight="bold")
    for x, step in ((q + 3 * narrow, "split"), (head0 + 2.25, "merge")):
        arrow(ax, (x + 0.03, MIDDLE), (x + 0.39, MIDDLE))
        write(ax, x + 0.2, MIDDLE + 0.13, step, 8)
    x += 0.2
    merged = [colour for colour in HEADS[:3] for _ in range(4)]
    for name, colours, then in (
        ("merged", [merged] * 6, "×"),
        ("$W_o$", [[colour] * 12 for colour in merged], "="),
        ("output", [[GREY] * 12] * 6, ""),
    ):
        x = _named(ax, x + 0.22, colours, cell, name)
        write(ax, x + 0.11, MIDDLE, then, 11)
    note = r"6 tokens   ·   embed_dim 12  =  3 heads × head_dim 4   ·   "
    note += r"in each head: weights = softmax$(q\,k^\top / \sqrt{4}\,)$"
    write(ax, 4.5, NOTE, note, 8)


def recap_03():
    """nn.MultiheadAttention in matrices. Left: in_proj stacks the course's query_proj,
    key_proj and value_proj, each with a matrix E × E and a bias of E numbers. Both
    layers have the same out_proj. Middle: query and output have the shape (N, L, E).
    The weights have the shape (N, L, S), averaged over the heads, or (N, H, L, S).
    Right: purple is True. In PyTorch's key_padding_mask (N, S) and attn_mask (L, S), it
    means blocked. In the course's masks, it means: may be attended to. Drawn for N = 2,
    L = S = 6, E = 8, H = 2.
    """
    ax = ground(HEIGHT)
    panel(ax, 0.15, 3.75, "parameters")
    panel(ax, 4.0, 2.48, "tensors")
    panel(ax, 6.58, 2.27, "masks")
    _parameters(ax)
    _tensors(ax)
    _masks(ax)
    note = "N = 2 sequences   ·   L = 6 queries   ·   S = 6 keys   ·   "
    note += "E = 8 features   ·   H = 2 heads   ·   batch_first=True"
    write(ax, 4.5, 0.19, note, 8)


def _parameters(ax):
    """Draw the projections of both layers; each bias is a column beside its weight."""
    cell = 0.047
    size = 8 * cell
    write(ax, 1.28, 2.28, "the course", 8)
    write(ax, 2.42, 2.28, "PyTorch", 8)
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
    for y, name, shape in (
        (1.82, "in_proj_weight", "3E × E  =  24 × 8"),
        (1.42, "in_proj_bias", "3E  =  24"),
        (0.98, "out_proj.weight", "E × E  =  8 × 8"),
        (0.62, "out_proj.bias", "E  =  8"),
    ):
        write(ax, 2.75, y, name, ha="left", **CODE)
        write(ax, 2.75, y - 0.15, shape, 8, ha="left")


def _tensors(ax):
    """Draw what goes into the layer, and what comes out."""
    random = np.random.default_rng(2)
    heads = softmax(random.normal(0, 1.2, (2, 2, 6, 6)))
    by_default, every = heads.mean(1), heads.reshape(4, 6, 6)
    for y, name, shape, matrices in (
        (1.98, "query", "(N, L, E)", [[[QUERY] * 8] * 6] * 2),
        (1.62, "key, value", "(N, S, E)", [[[KEY] * 8] * 6] * 2),
        (1.26, "output", "(N, L, E)", [[[GREY] * 8] * 6] * 2),
        (0.9, "weights", "(N, L, S)", [*map(viridis, by_default)]),
        (0.42, "weights", "(N, H, L, S)", [*map(viridis, every)]),
    ):
        stack(ax, 4.12, y, matrices, 0.04)
        lift = 0.22 if name == "weights" else 0.15
        write(ax, 4.64, y + lift, f"{name}  {shape}", 8, ha="left")
    write(ax, 4.64, 0.96, "mean of the heads: the default", 8, ha="left")
    write(ax, 4.64, 0.48, "average_attn_weights=False", ha="left", **CODE)


def _masks(ax):
    """Draw the masks of both layers, and what True means there."""
    box(ax, 8.3, 2.41, 0.1, 0.1, "", MARK)
    write(ax, 8.44, 2.46, "True", 8, ha="left")
    for y, whose, x, means in (
        (2.22, "PyTorch:", 7.3, "True = blocked"),
        (1.08, "course:", 7.24, "True = may be attended to"),
    ):
        write(ax, 6.7, y, whose, 8, ha="left", weight="bold")
        write(ax, x, y, means, 8, ha="left")
    padding = np.arange(6) >= np.array([[6], [4]])
    later = np.triu(np.ones((6, 6), bool), 1)
    for y, mask, name, shape in (
        (1.86, padding, "key_padding_mask", "(N, S)"),
        (1.27, later, "attn_mask", "(L, S)  or  (N·H, L, S)"),
        (0.46, ~later, "mask", "(L, S)  or  (N, H, L, S)"),
    ):
        colours = [[MARK if true else "white" for true in row] for row in mask]
        matrix(ax, 6.7, y, colours, 0.075, edge="#d6d6d6")
        middle = y + len(mask) * 0.0375
        write(ax, 7.24, middle + 0.08, name, ha="left", **CODE)
        write(ax, 7.24, middle - 0.08, shape, 8, ha="left")


def recap_04():
    """Positions in matrices. Token embeddings (6 × 8) plus positional encodings (6 × 8)
    are the input (6 × 8). A pair of features at position p is a point on a circle, and
    a rotation matrix (2 × 2) leads from p to p + k. The scores of a head (6 × 6) are
    the sum of 4 terms (6 × 6 each): token × token, token × position, position × token,
    and position × position, here the only one with a diagonal.
    """
    ax, cell = ground(HEIGHT), 0.12
    tokens = np.random.default_rng(6).normal(0, 0.4, (6, 8))
    positions = sinusoidal(6, base=100)
    x = 0.5
    for row, token in enumerate(TOKENS):
        write(ax, x - 0.05, MIDDLE + (2.5 - row) * cell, token, 8, ha="right")
    for name, colours, then in (
        ("embeddings", tokens, "+"),
        ("encodings", positions, "="),
        ("input $x$", tokens + positions, ""),
    ):
        x = _named(ax, x, signed(colours), cell, name)
        write(ax, x + 0.11, MIDDLE, then, 11)
        x += 0.22
    write(ax, 2.2, NOTE, "in each row: token + position", 8)
    _shift(ax, 4.75)
    size = 6 * 0.105
    left, right = 6.3, 6.3 + size + 0.24
    high, low = MIDDLE + 0.12, MIDDLE - 0.12 - size
    ahead = np.arange(6)[:, None] - np.arange(6) - 1  # 0: the previous token
    turns = ahead[..., None] / 100 ** (np.arange(0, 8, 2) / 8)
    nearby = np.cos(turns) @ [1, 0.9, 0, -0.3]  # a weight for each pair
    random = np.random.default_rng(4)
    terms = [*random.normal(0, 0.2, (3, 6, 6)), nearby]
    places = [(left, high), (right, high), (left, low), (right, low)]
    for at, term in zip(places, terms):
        matrix(ax, *at, signed(term / 1.5), 0.105)
    for x, y in ((right, high), (left, low), (right, low)):
        write(ax, x - 0.12, y + size / 2, "+", 11)
    for x, y, part in ((left, high, "token"), (right, low, "position")):
        write(ax, x + size / 2, high + size + 0.1, part, 8)
        write(ax, left - 0.3, y + size / 2, part, 8, rotation=90, va="center")
    middle = (left + right + size) / 2
    _under(ax, middle, "key", "6 × 6 each")
    write(ax, left - 0.5, MIDDLE, "query", 10, rotation=90, va="center", weight="bold")
    write(ax, right + size + 0.13, MIDDLE, "=", 11)
    matrix(ax, 8.2, MIDDLE - size / 2, signed(sum(terms) / 1.5), 0.105)
    _under(ax, 8.2 + size / 2, "scores", "6 × 6")
    note = r"query part × key part: 4 terms of $x\,W_q W_k^\top x^\top$"
    write(ax, 7.45, NOTE, note, 8)


def _shift(ax, x):
    """Draw a pair of features at 2 positions, and the rotation between them."""
    across, down = 0.6, 0.24
    turn(ax, x, 1.74, 0.42, 20, 80)
    write(ax, x + 0.49, 1.9, "$p$", 8)
    write(ax, x + 0.1, 2.27, "$p+k$", 8)
    cos, sin = r"$\cos\,\omega_i k$", r"$\sin\,\omega_i k$"
    for i, row in enumerate(((cos, f"$-${sin}"), (sin, cos))):
        for j, entry in enumerate(row):
            at = x + across * (j - 1), 0.91 - down * i
            ax.add_patch(Rectangle(at, across, down, fc=MARKED, ec=LINE, lw=0.8))
            write(ax, at[0] + across / 2, at[1] + down / 2, entry, 8)
    _under(ax, x, "pair $i$", "2 × 2")
    write(ax, x, NOTE, "a shift by $k$: one rotation for all $p$", 8)


def recap_05():
    """Three places for positions, in matrices. Place 1: rows of a table (6 × 8) are
    added to the embeddings (6 × 8). Place 2: queries and keys (2 heads × 6 × 4) are
    rotated, with an angle for each position and pair (6 × 2). Place 3: a bias
    (1 × 2 × 6 × 6) is added to the scores (2 × 6 × 6). T5 learns it in a table (32
    buckets × 2 heads); ALiBi computes it from 2 slopes, one for each head.
    """
    ax, random = ground(HEIGHT), np.random.default_rng(5)
    panel(ax, 0.15, 2.35, "1  embeddings", "embed")
    panel(ax, 2.6, 2.75, "2  queries, keys", "rotate")
    panel(ax, 5.45, 3.4, "3  scores", "bias")
    _added(ax, random)
    _rotated(ax)
    _biased(ax, random)
    note = "6 tokens   ·   embed_dim 8  =  2 heads × head_dim 4   ·   "
    write(ax, 4.5, 0.19, f"{note}places 2 and 3: in every layer", 8)


CELL, LOW, TALL = 0.075, 1.22, 6 * 0.075  # of the small matrices of recap_05


def _added(ax, random):
    """Draw place 1: encodings are added to the embeddings."""
    tokens, table = random.normal(0, 0.5, (6, 8)), sinusoidal(6, base=100)
    for x, name, colours, then in (
        (0.27, "tokens", tokens, "+"),
        (1.03, "table", table, "="),
        (1.79, "input", tokens + table, ""),
    ):
        matrix(ax, x, LOW, signed(colours), CELL)
        beside(ax, x + 4 * CELL, LOW, TALL, name, "6 × 8")
        write(ax, x + 8 * CELL + 0.08, LOW + TALL / 2, then, 11)
    write(ax, 1.325, 0.74, "sinusoidal: computed", 8)
    write(ax, 1.325, 0.54, "learned: 6 rows of max_length × 8", 8)


def _rotated(ax):
    """Draw place 2: queries and keys are rotated, pair by pair."""
    middle = LOW + TALL / 2
    for y, name, colour in ((1.6, "$q$", QUERY), (0.82, "$k$", KEY)):
        for x in (2.9, 4.75):
            stack(ax, x, y, [[[colour] * 4] * 6] * 2, CELL)
        y += TALL / 2
        write(ax, 2.78, y, name, 10)
        arrow(ax, (3.29, y), (3.36, y), (3.36, middle), (3.52, middle))
        arrow(ax, (4.5, middle), (4.6, middle), (4.6, y), (4.73, y))
    write(ax, 4.92, 2.22, "rotated", 9)
    write(ax, 4.0, 0.54, "values: as they are", 8)
    for x, size in ((3.08, "2 × 6 × 4"), (4.93, "2 × 6 × 4")):
        write(ax, x, 0.54, size, 8)
    angles = np.arange(6)[:, None] * [0.16, 0.016]
    matrix(ax, 3.63 - CELL, LOW, viridis(angles), CELL)
    beside(ax, 3.63, LOW, TALL, "angles", "6 × 2")
    turn(ax, 4.16, middle, 0.3, 15, 75)


def _biased(ax, random):
    """Draw place 3: a bias, of T5 or of ALiBi, is added to the scores."""
    middle = LOW + TALL / 2
    distance = np.arange(6)[:, None] - np.arange(6)
    scores = random.normal(0, 0.8, (2, 6, 6))
    bias = [-distance * slope for slope in (0.4, 0.1)]
    for x, name, numbers, size, then in (
        (5.6, "scores", scores, "2 × 6 × 6", "+"),
        (6.45, "bias", bias, "1 × 2 × 6 × 6", ""),
    ):
        stack(ax, x, LOW, [signed(n, distance >= 0) for n in numbers], CELL)
        beside(ax, x + 0.25, LOW, TALL + 0.05, name, size)
        write(ax, x + 0.68, middle, then, 11)
    arrow(ax, (7.4, middle), (7.02, middle))
    fine = 0.034
    learned = random.normal(0, 0.6, (32, 2)) + np.linspace(1, -1, 32)[:, None]
    matrix(ax, 7.6 - fine, middle - 16 * fine, signed(learned), fine, edge="none")
    beside(ax, 7.6, middle - 16 * fine, 32 * fine, "T5 table", "32 × 2")
    write(ax, 7.6, 0.54, "one row for each bucket", 8)
    write(ax, 8.0, middle, "or", 9)
    matrix(ax, 8.3, middle - 0.12, signed([[-0.8], [-0.2]]), 0.12)
    beside(ax, 8.36, middle - 0.12, 0.24, "ALiBi slopes", "2")
    write(ax, 8.36, 0.9, "× −distance", 8)
    write(ax, 6.25, 0.54, "then mask, softmax", 8)


def _named(ax, x, colours, cell, name):
    """Draw a matrix in the middle, with its name above and its size below."""
    matrix(ax, x, MIDDLE - len(colours) * cell / 2, colours, cell)
    size = f"{len(colours)} × {len(colours[0])}"
    _under(ax, x + len(colours[0]) * cell / 2, name, size)
    return x + len(colours[0]) * cell


def _under(ax, x, name, size):
    """Write the name above a column of matrices, and their size below."""
    write(ax, x, TITLE, name, 10, weight="bold")
    write(ax, x, SIZE, size)
