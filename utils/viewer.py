"""The head viewer: one piece of HTML that needs no network, no kernel and no widgets.

Where scripts may run, `viewer.js` builds the interactive view in a shadow root. Where
they may not, as in a notebook that is not trusted, plain tables stand in its place.
"""

import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from utils.checks import check_tokens, checked_layers, checked_mask
from utils.plotting import ROUNDING, printed
from utils.words import isolated, legible, names, visible

MOST_BYTES = 2_000_000
MOST_TABLES = 4  # heads that are written as tables, too
WIDEST_TABLE = 16  # tokens; of longer texts the tables name the strongest keys only
STRONGEST = 3
SUM_TOLERANCE = 0.02  # what bfloat16 makes of a sum of 1
BLUE = (0, 114, 178)
SPECIAL = "[CLS] [SEP] [PAD] <s> </s> <pad> <bos> <eos> <|endoftext|>".split()

# One or two letters for each thousandth from 0 to 1000: small weights, nearly all of
# them, take one. None of the letters means anything to HTML, to JSON or to MathJax.
DIGITS = "".join(chr(c) for c in range(33, 127) if chr(c) not in "\"$&'<>\\`")
SHORT = 74  # weights below 0.074 take one letter
CODES = list(DIGITS[:SHORT]) + [
    DIGITS[SHORT + rest // len(DIGITS)] + DIGITS[rest % len(DIGITS)]
    for rest in range(1001 - SHORT)
]

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{title}</title>
</head>
<body style="font-family: system-ui, sans-serif; margin: 1.5em">
{view}
</body>
</html>
"""


class View:
    """An interactive view of heads: display it in a notebook, or `save` it."""

    def __init__(self, markup: str, title: str, summary: str):
        self._markup, self._title, self._summary = markup, title, summary

    def _repr_html_(self) -> str:
        return self._markup

    def __repr__(self) -> str:
        return f"<{self._title}: {self._summary}>"

    def save(self, path) -> Path:
        """Write the view as a page of its own; return its path."""
        page = PAGE.format(title=html.escape(self._title), view=self._markup)
        path = Path(path)
        path.write_text(page, encoding="utf-8", newline="\n")
        return path


def view_heads(
    weights: Tensor | Sequence[Tensor],
    tokens: list[str],
    *,
    key_tokens: list[str] | None = None,
    mask: Tensor | None = None,
    labels: Mapping[tuple[int, int], str] | None = None,
    layers: Sequence[int] | None = None,
    start: tuple[int, int] | None = None,
    features: Mapping[tuple[int, int], tuple[Tensor, Tensor]] | None = None,
    roles: Mapping[str, Tensor] | None = None,
    title: str = "Attention heads",
) -> View:
    """Return an interactive view of the attention of one sentence, all heads.

    weights: a list with (heads, queries, keys) or (1, heads, queries, keys) for each
        layer, as `record_attention` returns; or one such tensor, for one layer.
    tokens: the words of the queries, and of the keys unless `key_tokens` is given.
    mask: bool, True = may be read, broadcast to (queries, keys). It decides what is
        drawn as hidden, and the baseline: uniform attention to what may be read.
    labels: a few words on some heads, by (layer, head).
    layers: the numbers of the layers, where they are not 0, 1, …: of `weights[4:]` in
        a model of six layers, [4, 5].
    start: (layer, head), the head shown first; otherwise the first that has a label.
    features: queries (queries, head_dim) and keys (keys, head_dim) of some heads, by
        (layer, head), as they meet in the scores: after a rotation, before the division
        by √head_dim. For these heads the view also shows how one weight arises.
    roles: scores (layers, heads) by the name of a role, such as {"induction": scores}:
        the view lists the heads sorted by the score of the role that is chosen.
    Weights are stored to 0.001. Raises ValueError for what is not a softmax of one
    sentence, and for a view of more than two megabytes.
    """
    matrices = checked_layers(weights)
    rows, columns = matrices[0].shape[1:]
    square = key_tokens is None
    key_tokens = tokens if square else key_tokens
    check_tokens("queries", tokens, rows)
    check_tokens("keys", key_tokens, columns)
    mask = checked_mask(mask, rows, columns)
    _check_softmax(matrices, mask)
    numbers = _checked_numbers(layers, len(matrices))
    places = [(n, h) for n, layer in zip(numbers, matrices) for h in range(len(layer))]
    by_place = dict(zip(places, chain(*matrices)))
    labels = _checked_labels(labels or {}, places)
    start = _checked_start(start, labels, places)
    title = isolated(legible(title))
    size = f"{len(matrices)} layers, {len(places)} heads"
    size += f", {rows} queries × {columns} keys"
    _check_size(len(places) * rows * columns, size)
    called = names(tokens, rows), names(key_tokens, columns)
    data = {
        "title": title,
        "square": square,
        "queries": list(zip(map(visible, tokens), called[0])),  # label, and name
        "keys": list(zip(map(visible, key_tokens), called[1])),
        "mask": None if mask.all() else mask.int().tolist(),
        "hide": _hideable(tokens, key_tokens, square),
        "special": _special(tokens, key_tokens),
        "layers": numbers,
        "features": [
            _features(place, pair, by_place, mask, numbers)
            for place, pair in (features or {}).items()
        ],
        "roles": _checked_roles(roles or {}, matrices),
        "start": [numbers.index(start[0]), start[1]],
        "labels": [
            [labels.get((number, head), "") for head in range(len(layer))]
            for number, layer in zip(numbers, matrices)
        ],
        "digits": DIGITS,
        "short": SHORT,
        "weights": [[_encoded(head) for head in layer] for layer in matrices],
    }
    first = sorted(places, key=lambda place: (place != start, place not in labels))
    shown = {place: by_place[place] for place in first[:MOST_TABLES]}
    markup = _markup(data, _tables(shown, len(places), mask, called, labels, title))
    count = len(markup.encode())
    _check_size(count, size)
    return View(markup, title, f"{size}, {count / 1e6:.2f} MB")


def _check_softmax(layers: list[Tensor], mask: Tensor) -> None:
    """Refuse what softmax under this mask cannot have made."""
    for number, layer in enumerate(layers):
        if not ((layer >= -ROUNDING) & (layer <= 1 + SUM_TOLERANCE)).all():
            outside = f"layer {number} contains NaN or values outside 0 to 1"
            raise ValueError(f"{outside}: give attention after the softmax.")
        sums = layer.sum(dim=-1)
        wrong = ((sums - 1).abs() > SUM_TOLERANCE) & (sums.abs() > ROUNDING)
        if wrong.any():
            raise ValueError(
                f"in layer {number} a query's weights sum to {sums[wrong][0]:.3f}, not "
                "to 1: is dropout on, or are queries and keys swapped?"
            )
        if (layer * ~mask > ROUNDING).any():
            where = f"layer {number} has weights where mask says that nothing is read"
            raise ValueError(f"{where}: in mask, True = may be read.")


def _checked_numbers(layers, count: int) -> list[int]:
    numbers = list(range(count) if layers is None else layers)
    whole = all(isinstance(n, int) and n >= 0 for n in numbers)
    if len(numbers) != count or not whole or len(set(numbers)) < count:
        given = f"layers={layers!r} for {count} layers of weights"
        raise ValueError(f"{given}; give a number for each, such as [4, 5].")
    return numbers


def _checked_labels(labels, places) -> dict[tuple[int, int], str]:
    for place, text in labels.items():
        if place not in places or not isinstance(text, str):
            given = f"labels hold {place!r}: {text!r}"
            raise ValueError(f"{given}; give (layer, head): words, counted from 0.")
    return {place: isolated(legible(text)) for place, text in labels.items()}


def _checked_start(start, labels, places) -> tuple[int, int]:
    if start is None:
        return next((place for place in places if place in labels), places[0])
    if start not in places:
        raise ValueError(f"start={start!r}; give (layer, head) of a head that is here.")
    return start


def _checked_roles(roles, matrices: list[Tensor]) -> list[dict]:
    """Return names and scores, (layers, heads) each, rounded for the script."""
    shape = len(matrices), len(matrices[0])
    if roles and any(len(layer) != shape[1] for layer in matrices):
        raise ValueError("roles need layers with the same number of heads.")
    for name, scores in roles.items():
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"roles hold {name!r}; give a name for each role.")
        if not isinstance(scores, Tensor) or scores.shape != shape:
            given = getattr(scores, "shape", type(scores).__name__)
            given = f"the scores of {name!r} are {given}"
            raise ValueError(f"{given}; give a tensor (layers, heads), here {shape}.")
        if not scores.isfinite().all():
            raise ValueError(f"some scores of {name!r} are NaN or infinite.")
    named = [(isolated(legible(name)), x.tolist()) for name, x in roles.items()]
    return [
        {"name": name, "scores": [[round(x, 4) for x in row] for row in scores]}
        for name, scores in named
    ]


def _check_size(count: int, size: str) -> None:
    if count > MOST_BYTES:
        large = f"a view of {size} takes {count / 1e6:.1f} MB or more"
        raise ValueError(f"{large}: give fewer layers or heads, or a shorter text.")


def _hideable(queries: list[str], keys: list[str], square: bool) -> list[dict]:
    """Return what can be hidden: special tokens, and a first token that is none."""
    groups = []
    if keys[0] not in SPECIAL:
        groups = [{"name": "first token", "queries": [0][:square], "keys": [0]}]
    for special in SPECIAL:
        in_queries = [i for i, token in enumerate(queries) if token == special]
        in_keys = [i for i, token in enumerate(keys) if token == special]
        if in_keys:
            groups.append({"name": special, "queries": in_queries, "keys": in_keys})
    return groups


def _special(queries: list[str], keys: list[str]) -> dict[str, list[int]]:
    """Return where special tokens stand: the view does not open on them."""
    axes = {"queries": queries, "keys": keys}.items()
    return {axis: [i for i, t in enumerate(ts) if t in SPECIAL] for axis, ts in axes}


def _features(place, pair, heads: dict, mask, numbers: list[int]) -> dict:
    """Return a head's queries and keys for the script; they must give its weights."""
    if place not in heads:
        raise ValueError(f"features hold {place!r}; give (layer, head) that is here.")
    query, key = (x.detach().double() for x in pair)
    head = heads[place]
    dim = query.shape[-1]
    if query.shape != (len(head), dim) or key.shape != (head.shape[1], dim):
        given = f"features of {place} have shapes {tuple(query.shape)}, "
        given += f"{tuple(key.shape)}, but its weights {tuple(head.shape)}"
        raise ValueError(f"{given}; give (queries, head_dim), (keys, head_dim).")
    scores = (query @ key.mT / dim**0.5).masked_fill(~mask, -torch.inf)
    wrong = (scores.softmax(dim=-1).nan_to_num() - head).abs().max().item()
    if wrong > SUM_TOLERANCE:
        raise ValueError(
            f"the features of {place} give weights that differ by {wrong:.2f} from its "
            "own: give them after a rotation; a bias on the scores cannot be shown."
        )
    most = [max(x.abs().max().item(), 1e-9) for x in (query, key)]
    coded = [_encoded((x / m + 1) / 2) for x, m in zip((query, key), most)]
    layer, number = place
    return {
        "place": [numbers.index(layer), number],
        "dim": dim,
        "most": [round(m, 6) for m in most],
        "q": coded[0],
        "k": coded[1],
    }


def _encoded(head: Tensor) -> str:
    """The weights of a head, row by row, in thousandths."""
    # like the captions: 0.0125 is 0.013, also on a CPU that makes it 0.01249999
    thousandths = (head.double().clamp(0, 1) * 1000 + 0.5 + 1000 * ROUNDING).floor()
    return "".join(CODES[x] for x in thousandths.int().flatten().tolist())


def _markup(data: dict, tables: str) -> str:
    """The tables, and the script that puts the interactive view in their place."""
    data = data | {"css": Path(__file__).with_name("viewer.css").read_text("utf-8")}
    payload = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for letter in "<>&":
        payload = payload.replace(letter, f"\\u{ord(letter):04x}")
    script = Path(__file__).with_name("viewer.js").read_text(encoding="utf-8")
    script = re.sub(r"\s*// .*|^\s+", "", script, flags=re.M)  # for those who read it
    # the same view has the same name, so that its bytes are the same in every run
    name = hashlib.sha1((script + payload).encode()).hexdigest()[:12]
    return (
        f'<div data-attn-view="{name}">\n{tables}</div>\n'
        f'<script>(() => {{\n{script}viewHeads("{name}", {payload});\n}})();</script>'
    )


def _tables(heads: dict, count: int, mask, called, labels, title) -> str:
    """What a reader sees where no script runs: some of `count` heads as tables."""
    rows, columns = mask.shape
    short = max(rows, columns) <= WIDEST_TABLE
    write = _grid if short else _strongest_keys
    parts = [
        f"<p><strong>{_text(title)}</strong><br>As tables: {len(heads)} of "
        f"{count} heads. Run the cell, or trust the notebook, to explore all.</p>"
    ]
    for number, ((layer, head), matrix) in enumerate(heads.items()):
        label = labels.get((layer, head), "")
        name = f"layer {layer}, head {head}" + (f": {label}" if label else "")
        details = "<details open>" if short and number == 0 else "<details>"
        parts.append(
            f"{details}<summary>{_text(name)}</summary>"
            f"{write(matrix, mask, *called)}</details>"
        )
    return "\n".join(parts) + "\n"


def _grid(head: Tensor, mask: Tensor, queries: list[str], keys: list[str]) -> str:
    """Return all weights of a short text, one row for each query."""
    lines = ["<tr><td></td>" + "".join(_heading("col", key) for key in keys) + "</tr>"]
    for query, row, may in zip(queries, printed(head).tolist(), mask.tolist()):
        hidden = '<td style="background-color:#ddd;color:#555">–</td>'
        cells = [
            f'<td style="{_colours(weight)}">{weight:.2f}</td>' if seen else hidden
            for weight, seen in zip(row, may)
        ]
        lines.append(f"<tr>{_heading('row', query)}{''.join(cells)}</tr>")
    return _table("Each row is a query: its weights sum to 1.", lines)


def _strongest_keys(head: Tensor, mask: Tensor, queries: list[str], keys) -> str:
    """Return the strongest keys of each query of a longer text."""
    keys = list(map(isolated, keys))  # three stand in one line
    lines = ["<tr><th>query</th><th>strongest keys</th><th>uniform</th></tr>"]
    for query, row, may in zip(queries, printed(head), mask):
        best = sorted(may.nonzero().flatten().tolist(), key=lambda j: -row[j].item())
        strongest = best[:STRONGEST]  # of equals the first
        found = [f"<code>{_text(keys[j])}</code> {row[j]:.2f}" for j in strongest]
        uniform = f"{1 / len(best):.2f}" if best else "–"
        lines.append(
            f"<tr>{_heading('row', query)}<td>{', '.join(found) or 'nothing'}</td>"
            f"<td>{uniform}</td></tr>"
        )
    return _table(f"The {STRONGEST} strongest keys of each query.", lines)


def _table(caption: str, lines: list[str]) -> str:
    return f"<table><caption>{caption}</caption>{''.join(lines)}</table>"


def _heading(scope: str, token: str) -> str:
    return f'<th scope="{scope}"><code>{_text(token)}</code></th>'


def _colours(weight: float) -> str:
    """White to blue, and letters that can be read on it, on every page."""
    mixed = (round(255 + (c - 255) * weight) for c in BLUE)
    letters = "#fff" if weight > 0.6 else "#000"
    return f"background-color:#{''.join(f'{c:02x}' for c in mixed)};color:{letters}"


def _text(words: str) -> str:
    """Words as HTML that a page shows letter by letter."""
    text = (
        html.escape(words).replace("\u2068", "&#x2068;").replace("\u2069", "&#x2069;")
    )
    # MathJax looks for $...$ and \\(...\\) in an unbroken text only
    return re.sub(r"[$\\]", r"<span>\g<0></span>", text)
