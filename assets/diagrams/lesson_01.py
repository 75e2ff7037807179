"""Draws lesson 01 with its numbers: the projections, one query, then all queries."""

from assets.diagrams.drawing import *

EMBEDDINGS = [[1, *[0] * 7], [0, 1, 1, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 1, 0]]
EMBEDDINGS += [[0, 0, 0, 0, 1, 0, 0, 0], EMBEDDINGS[0], [0, 1, 0, 0, 1, 0, 0, 1]]
W_Q = [[3, 1, 0, 0], [0, 0, 4, 0], [0] * 4, [2, 2, 0, 0], [1, 0, 0, 2]] + 3 * [[0] * 4]
QUERIES = (np.array(EMBEDDINGS) @ np.array(W_Q)).tolist()
KEYS, VALUES = [e[1:5] for e in EMBEDDINGS], [e[5:] for e in EMBEDDINGS]
FEATURES = "article noun alive verb place cat sit mat".split()
KINDS = FEATURES[1:5]  # the columns of queries and keys
CAT, SAT, VERB, SIT = 1, 2, 3, 6  # rows of tokens and of features


def query_key_value():
    """Draw how embeddings become queries, keys and values."""
    ax, x, cell, top = ground(3.4), 0.65, 0.24, 2.2
    names(ax, 0.6, top, TOKENS, cell, [SAT])
    names(ax, 3.37, top, FEATURES, cell, [VERB, SIT])
    row(ax, top - 3 * cell, {2.71: r"$\times$", 4.55: "="}, 13)
    for name, rows, colour, features, framed, gap in (
        ("embeddings $x$", EMBEDDINGS, "white", FEATURES, [SAT], 0.85),
        ("$W_q$", W_Q, QUIET, KINDS, [VERB, SIT], 0.34),
        ("queries $q$", QUERIES, QUERY, KINDS, [SAT], 0.7),
        ("keys $k$", KEYS, KEY, KINDS, [SAT], 0.5),
        ("values $v$", VALUES, VALUE, FEATURES[5:], [SAT], 0),
    ):
        end = numbered(ax, x, top, rows, colour, cell, framed=framed)
        column_names(ax, x, top + 0.06, features, cell, va="bottom")
        write(ax, (x + end) / 2, 3.2, name, 10, **BOLD)
        write(ax, (x + end) / 2, 3.0, rf"${len(rows)} \times {len(rows[0])}$", 8)
        x = end + gap
    row(ax, 0.56, {5.2: r"$x\,W_q$", 6.86: r"$x\,W_k$", 8.2: r"$x\,W_v$"}, 10)
    meanings = {5.2: "what it looks for", 6.86: "how it is found"}
    row(ax, 0.36, meanings | {8.2: "what it passes on"})


# --- one query: the first section ---

CELL, TOP, MIDDLE = 0.26, 2.12, 1.22
HEIGHTS = [TOP - 0.3 * (row + 0.5) for row in range(6)]


def one_query(steps=3):
    """Draw these steps of the query of sat, each picture as wide as the last."""
    ax, scores = ground(2.72), np.array(KEYS) @ QUERIES[SAT]
    _scores(ax, SAT, scores, "1 scores", r"$q \cdot k$", MARK if steps == 1 else INK)
    if steps == 1:  # how each score is computed, where the next steps will stand
        _head(ax, 5.3, "dot product", "multiply entry by entry, and add up")
        for y, key, score in zip(HEIGHTS, KEYS, scores):
            terms = " + ".join(f"{q} · {k}" for q, k in zip(QUERIES[SAT], key))
            write(ax, 5.3, y, f"=  {terms}", 10, color=INK if score else "#707070")
        return
    _weights(ax, 4.4, scores, "2 weights", MARK if steps == 2 else INK)
    if steps < 3:
        return
    _head(ax, 7.05, "values", "cat, sit, mat")
    _head(ax, 8.33, "3 output", "of sat", MARK)
    for y, value, weight in zip(HEIGHTS, VALUES, softmax(scores)):
        write(ax, 6.5, y, r"$\times$", 10)
        _vector(ax, 6.66, y, value, VALUE)
        arrow(ax, (7.44, y), (7.84, MIDDLE), head=False, width=0.5 + 6 * weight)
    _vector(ax, 7.84, MIDDLE, (softmax(scores) @ VALUES).round(2), VALUE, 0.33)


def one_query_masked():
    """Draw the query of cat under the causal mask."""
    ax, scores = ground(2.72), np.array(KEYS) @ QUERIES[CAT] / 2  # the root of 4
    masked = np.where(np.arange(6) <= CAT, scores, -np.inf)
    _scores(ax, CAT, scores, "scores", r"$q \cdot k\; /\, \sqrt{d_k}$")
    _head(ax, 4.95, "masked", "−∞ if hidden", MARK)
    for y, score in zip(HEIGHTS, masked):
        arrows(ax, y, (3.75, 4.58), (5.32, 6.05), width=0.8)
        hidden = np.isinf(score)
        matrix(ax, 4.65, y - CELL / 2, [[None if hidden else "white"]], 0.6, LINE, CELL)
        if hidden:
            box(ax, 4.79, y - 0.09, 0.32, 0.18, "", PALE, PALE)
        write(ax, 4.95, y, "−∞" if hidden else f"{score:g}", 10)
    _weights(ax, 6.45, masked, "weights")


def _scores(ax, token, scores, name, below, colour=INK):
    """Draw the query of a token, the keys, and the scores."""
    _head(ax, 0.72, "query", f"of {TOKENS[token]}")
    _vector(ax, 0.2, MIDDLE, QUERIES[token], QUERY)
    _head(ax, 2.52, "keys", "")
    _head(ax, 3.55, name, below, colour)
    for token, y, key, score in zip(TOKENS, HEIGHTS, KEYS, scores):
        arrow(ax, (1.24, MIDDLE), (1.6, y), head=False, width=0.8)
        write(ax, 1.94, y, token, ha="right")
        _vector(ax, 2.0, y, key, KEY)
        arrow(ax, (3.1, y), (3.36, y), width=0.8)
        write(ax, 3.55, y, f"{score:g}", 10, **BOLD if score == max(scores) else {})


def _weights(ax, x, scores, name, colour=INK):
    """Draw the exponentials, in the column at x, and the weights."""
    weights = softmax(scores)
    _head(ax, x, "$e^s$", "")
    _head(ax, x + 1.1, name, "÷ their sum", colour)
    for y, score, weight in zip(HEIGHTS, scores, weights):
        if x < 5:  # no column stands between the scores and this one
            arrow(ax, (3.75, y), (4.05, y), width=0.8)
        write(ax, x + 0.2, y, f"{np.exp(score):.1f}", ha="right")
        arrow(ax, (x + 0.32, y), (x + 0.58, y), width=0.8)
        if weight:
            box(ax, x + 0.66, y - 0.09, max(weight, 0.03), 0.18, "", MARKED)
        font = BOLD if weight == max(weights) else {}
        write(ax, x + 0.72 + weight, y, f"{weight:.2f}", 10, ha="left", **font)
    write(ax, x + 0.2, 0.2, f"sum {np.exp(scores).sum():.1f}", 8, ha="right")


def _head(ax, x, name, below, colour=INK):
    """Write what a column is; the name of a new one has its colour."""
    write(ax, x, 2.46, name, 10, color=colour, **BOLD)
    write(ax, x, 2.26, below, 8)


def _vector(ax, x, y, numbers, colour, cell=CELL):
    """Draw a vector with its numbers, y its middle."""
    numbered(ax, x, y + CELL / 2, [numbers], colour, cell, CELL)


# --- the promise: one head of a trained model ---

SENTENCE = "[CLS] the animal did not cross the street because it was too tired . [SEP]"
OF_IT = [0.10, 0.04, 0.69, 0, 0, 0.01, 0, 0.05, 0, 0.06, 0, 0, 0.02, 0, 0.01]


def arcs_of_it():
    """Draw how much weight the token it gives to each token of its sentence."""
    ax, words = ground(1.5), SENTENCE.split()
    places = np.linspace(0.5, 8.5, len(words))
    it = words.index("it")
    for word, x, weight in zip(words, places, OF_IT):
        turn = np.linspace(0, np.pi, 40)
        across = (x + places[it]) / 2 + (x - places[it]) / 2 * np.cos(turn)
        up = 0.5 + 0.16 * abs(x - places[it]) * np.sin(turn)
        ax.plot(across, up, color=MARK, lw=10 * weight, solid_capstyle="butt")
        edge = MARK if word == "it" else LINE
        box(ax, x - 0.275, 0.26, 0.55, 0.22, word, tint("#cc78bc", weight), edge, 8.5)
        write(ax, x, 0.14, f"{weight:.2f}", 8, **(BOLD if weight > 0.5 else {}))


# --- masks ---


def three_masks():
    """Draw the causal mask, a padding mask, and what both allow."""
    ax, tokens = ground(1.95), ["[PAD]", "The", "cat", "sat"]
    causal, padding = np.tri(4, dtype=int), np.array([[0, 1, 1, 1]])
    wide, tall, top, x = 0.42, 0.26, 1.37, 0.8
    names(ax, x - 0.06, top, tokens, tall)
    for name, mask, sign, size in (
        ("causal", causal, "&", r"$L \times S$"),
        ("padding", padding, "=", r"$1 \times S$"),
        ("causal & padding", causal & padding, "", r"$L \times S$"),
    ):
        end = numbered(ax, x, top, mask, np.where(mask, MARKED, QUIET), wide, tall)
        write(ax, (x + end) / 2, 1.74, name, 10, **BOLD)
        row(ax, 1.47, {x + (i + 0.5) * wide: token for i, token in enumerate(tokens)})
        write(ax, (x + end) / 2, top - len(mask) * tall - 0.14, size, 8)
        write(ax, end + 0.45, top - 2 * tall, sign, 13)
        x = end + 0.9
    frame = {"fc": "none", "ec": MARK, "lw": 2}
    ax.add_patch(Rectangle((end - 4 * wide, top - tall), 4 * wide, tall, **frame))
    write(ax, end + 0.12, top - tall / 2, "empty row", ha="left", color=MARK, **BOLD)


def mask_after():
    """Draw the row of cat with the mask after the softmax."""
    ax, scores = ground(2.72), np.array(KEYS) @ QUERIES[CAT] / 2
    _scores(ax, CAT, scores, "scores", r"$q \cdot k\; /\, \sqrt{d_k}$")
    _weights(ax, 4.4, scores, "weights")
    _head(ax, 7.1, "mask", "")
    _head(ax, 8.1, "rest", "× mask", MARK)
    left = softmax(scores) * (np.arange(6) <= CAT)
    for i, (y, weight) in enumerate(zip(HEIGHTS, left)):
        write(ax, 7.1, y, f"× {int(i <= CAT)}", 10)
        arrow(ax, (7.36, y), (7.7, y), width=0.8)
        write(ax, 8.1, y, f"{weight:.2f}" if weight else "0", 10)
    write(ax, 8.1, 0.2, f"sum {left.sum():.2f}", 8, color=MARK, **BOLD)


# --- a model that learns to attend ---

THINGS, HUES = "cat dog hat cup hen sun".split(), "red green blue".split()
ASKED, NAMED = (
    ("cat", "hat", "cup", "dog"),
    ("green cup", "red cat", "blue dog", "blue hat"),
)
ANSWERS = ("red", "blue", "green", "blue")


def lookup():
    """Draw how the model answers four questions about four things."""
    ax, cell, upper, lower = ground(3.0), 0.2, 2.5, 0.98  # upper edges
    for top, name, rows, columns in (
        (upper, "questions", [f"{thing}?" for thing in ASKED], THINGS),
        (lower, "text", NAMED, THINGS + HUES),
    ):
        ones = [[int(x in row.rstrip("?").split()) for x in columns] for row in rows]
        names(ax, 1.05, top, rows, cell)
        end = numbered(ax, 1.1, top, ones, "white", cell)
        column_names(ax, 1.1, top + 0.06, columns, cell, va="bottom")
        write(ax, 0.98, top + 0.2, name, 10, ha="right", **BOLD)
        size = rf"${len(rows)} \times {len(columns)}$"
        write(ax, end + 0.07, top + 0.2, size, 8, ha="left")
    for y, start, matrices in ((2.1, 2.4, "$W_q$"), (0.58, 3.0, "$W_k,\\ W_v$")):
        arrow(ax, (start, y), (3.85, y))
        write(ax, (start + 3.85) / 2, y + 0.14, rf"$\times$ {matrices}")
    for x, y, fill, columns, name in (
        (3.95, 2.1, QUERY, 8, "$Q$"),
        (3.95, 0.58, KEY, 8, "$K$"),
        (5.3, 0.58, VALUE, 3, "$V$"),
    ):
        named(ax, x, y, [[fill] * columns] * 4, 0.14, name, rf"$4 \times {columns}$")
    box(ax, 6.1, 1.0, 1.0, 0.68, "attention\n(section 3)", MARKED, MARK)
    arrow(ax, (5.17, 2.1), (6.6, 2.1), (6.6, 1.72))
    arrow(ax, (5.82, 0.58), (6.6, 0.58), (6.6, 0.96))
    arrow(ax, (7.1, 1.34), (7.42, 1.34))
    best = [
        [MARKED if hue == answer else "white" for hue in HUES] for answer in ANSWERS
    ]
    matrix(ax, 7.5, 0.94, best, cell, LINE)
    column_names(ax, 7.5, 1.8, HUES, cell, va="bottom")
    write(ax, 7.8, 2.42, "outputs", 10, **BOLD)
    write(ax, 7.8, 0.78, r"$4 \times 3$", 8)
    for i, (thing, answer) in enumerate(zip(ASKED, ANSWERS)):
        write(ax, 8.16, 1.64 - i * cell, f"{thing}? {answer}", 8, ha="left")


# --- how the loss moves a score ---


def loss_moves_scores():
    """Draw how the loss moves the output, with two things and two colours."""
    ax, size, left, low = ground(2.72), 1.75, 1.25, 0.5

    def at(red, blue):  # a place in the plane of both numbers
        return left + red * size, low + blue * size

    arrow(ax, at(0, 0), at(1.14, 0), width=0.8)
    arrow(ax, at(0, 0), at(0, 1.14), width=0.8)
    write(ax, left + size / 2, 0.26, "logit of red", 8)
    write(ax, left - 0.25, low + size / 2, "logit of blue", 8, rotation=90)
    arrow(ax, at(0, 1), at(1, 0), head=False, width=0.8)
    arrow(ax, at(0.5, 0.5), at(0.33, 0.67), **FLOW)
    for name, (red, blue), fill in (
        ("value of blue hat", (0, 1), VALUE),
        ("value of red cat", (1, 0), VALUE),
        ("output before", (0.5, 0.5), "white"),
        ("output after", (0.3, 0.7), MARKED),
    ):
        x, y = at(red, blue)
        ax.add_patch(plt.Circle((x, y), 0.07, fc=fill, ec=LINE, zorder=3))
        write(ax, x + 0.14, y + 0.12, name, ha="left")
    row(ax, 2.25, {5.85: "before", 7.0: "after"}, 10, **BOLD)
    outputs = np.array([[0.5, 0.5], [0.3, 0.7]])  # before and after, (red, blue)
    losses = np.log(np.exp(outputs).sum(axis=1)) - outputs[:, 1]  # cross-entropy
    for y, name, pair in (
        (1.85, "weight of blue hat", ["0.5", "0.7"]),
        (1.5, "weight of red cat", ["0.5", "0.3"]),
        (1.15, "output: logits (red, blue)", [f"({x:g}, {y:g})" for x, y in outputs]),
        (0.8, "loss", [f"{loss:.2f}" for loss in losses]),
    ):
        write(ax, 5.25, y, name, ha="right")
        row(ax, y, dict(zip((5.85, 7.0), pair)), 10)
        arrow(ax, (6.25, y), (6.6, y), width=0.8)
    write(ax, 6.1, 0.26, 'question "hat?", right colour: blue', 8)


# --- all queries: the recap ---

SMALL, UPPER, LOWER = 0.23, 4.08, 2.06  # upper edges of both rows of matrices


def recap_01():
    """Draw attention in matrices, with the numbers of the sentence."""
    ax, scores = ground(4.6), np.array(QUERIES) @ np.array(KEYS).T
    weights = softmax(scores / 2)
    wide, x = 0.31, 1.0
    names(ax, 0.95, UPPER, TOKENS, SMALL, [SAT])
    arrow(ax, (2.99, UPPER - 3 * SMALL), (4.19, UPPER - 3 * SMALL))
    write(ax, 3.59, UPPER - 3 * SMALL + 0.14, r"$\times\ W_q,\ W_k,\ W_v$")
    for name, rows, fill, shape, gap in (
        ("embeddings $x$", EMBEDDINGS, "white", "L × E", 1.6),
        (r"$Q = x\,W_q$", QUERIES, QUERY, "L × d_k", 0.55),
        (r"$K = x\,W_k$", KEYS, KEY, "S × d_k", 0.55),
        (r"$V = x\,W_v$", VALUES, VALUE, "S × d_v", 0),
    ):
        x = _shaped(ax, x, UPPER, rows, fill, name, shape) + gap
    names(ax, 0.6, LOWER, TOKENS, SMALL, [SAT])
    grey, pale = (colours("Greys", scores / n) for n in (8, 16))  # one scale
    pink = colours("RdPu", weights / 1.7)
    x = 0.65
    for name, rows, fill, cell, shape, then in (
        (r"scores $QK^\top$", scores, grey, SMALL, "L × S", "÷ √4"),
        ("scaled scores", scores / 2, pale, SMALL, "L × S", "softmax"),
        ("weights", weights, pink, wide, "L × S", "×"),
        ("$V$", VALUES, VALUE, SMALL, "S × d_v", "="),
        ("output", weights @ np.array(VALUES), VALUE, wide, "L × d_v", ""),
    ):
        x = _shaped(ax, x, LOWER, rows, fill, name, shape, cell)
        if len(then) > 1:
            arrow(ax, (x + 0.06, LOWER - 3 * SMALL), (x + 0.56, LOWER - 3 * SMALL))
            write(ax, x + 0.31, LOWER - 3 * SMALL + 0.14, then, 8)
        else:
            write(ax, x + 0.14, LOWER - 3 * SMALL, then, 13)
        x += 0.64 if len(then) > 1 else 0.28
    note = "with a mask, each hidden score becomes −∞ before the softmax"
    write(ax, 4.5, 0.17, note, 8)


def _shaped(ax, x, top, rows, fill, name, shape, cell=SMALL) -> float:
    """Draw a matrix with its numbers, its name and its size; return its right edge."""
    end = numbered(ax, x, top, rows, fill, cell, SMALL, [SAT])
    write(ax, (x + end) / 2, top + 0.18, name, 10, **BOLD)
    size = f"${shape}$".replace("×", r"\times") + f"  =  6 × {len(rows[0])}"
    write(ax, (x + end) / 2, top - 6 * SMALL - 0.17, size, 8)
    return end
