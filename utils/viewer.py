"""The head viewer: one piece of HTML that needs no network, no kernel, no widgets.

Where scripts may run, `viewer.js` builds the interactive view in a shadow root. Where
they may not, as in a notebook that is not trusted, a line says how to get it, and of
texts of at most 24 tokens a plain table shows one head.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from utils.masks import visible_keys
from utils.plotting import MOST_LABELS, ROUNDING, as_text, checked_layers, printed
from utils.words import isolated, legible, names, visible

MOST_WEIGHTS = 2_000_000  # most of them take one byte
SUM_TOLERANCE = 0.02  # what bfloat16 makes of a sum of 1
BLUE = (0, 114, 178)
SPECIAL = "[CLS] [SEP] [PAD] <s> </s> <pad> <bos> <eos> <|endoftext|>".split()

# One letter for each thousandth below 0.074, as nearly all weights are, and two for the
# others. None of the letters means anything to HTML, to JSON or to MathJax.
DIGITS = "".join(chr(c) for c in range(33, 127) if chr(c) not in "\"$&'<>\\`")
SHORT = 74
CODES = [*DIGITS[:SHORT], *(a + b for a in DIGITS[SHORT:] for b in DIGITS)][:1001]

NOTE = "Run the cell, or trust the notebook, to explore all heads."
Place = tuple[int, int]  # (layer, head)


class View:
    """An interactive view of heads: display it in a notebook, or `save` it."""

    def __init__(self, markup: str, title: str, summary: str):
        self._markup, self._title, self._summary = markup, title, summary

    def _repr_html_(self) -> str:
        return self._markup

    def __repr__(self) -> str:
        return f"<{self._title}: {self._summary}>"

    def save(self, path: str | Path) -> None:
        """Write the view as an HTML page, which any browser opens without Python."""
        head = '<!doctype html><meta charset="utf-8">'
        page = f"{head}<title>{_text(self._title)}</title>\n{self._markup}\n"
        Path(path).write_text(page, encoding="utf-8")


def view_heads(
    weights: Tensor | Sequence[Tensor],
    tokens: list[str],
    *,
    mask: Tensor | None = None,
    labels: Mapping[Place, str] | None = None,
    layers: Sequence[int] | None = None,
    features: Mapping[Place, tuple[Tensor, Tensor]] | None = None,
    title: str = "Attention heads",
) -> View:
    """Return an interactive view of the attention of one sentence to itself, all heads.

    weights: a list with (heads, tokens, tokens) or (1, heads, tokens, tokens) for each
        layer, as `record_attention` returns, and models of `transformers` as their
        `attentions`; or one such tensor, for one layer. They are stored to 0.001.
    tokens: the words of the sentence.
    mask: as in `heatmap`. It decides what is drawn as hidden, and the baseline: uniform
        attention to what is not.
    labels: a few words on some heads, by (layer, head); the first that has a label is
        shown first.
    layers: the numbers of the layers, where they are not 0, 1, …: of `weights[4:]` in
        a model of six layers, [4, 5]. Every (layer, head) then has these numbers.
    features: queries (tokens, head_dim) and keys (tokens, head_dim) of some heads, by
        (layer, head), as they meet in the scores: after a rotation, before the division
        by √head_dim. For these heads the view also shows how one weight arises.
    ValueError for what is not a softmax of one sentence, and above two million weights.
    """
    matrices = checked_layers(weights)
    shape = tuple(matrices[0].shape[1:])
    if shape != (len(tokens), len(tokens)):
        given = f"there are {len(tokens)} words for weights {shape}"
        raise ValueError(f"{given}; give a word for each query, which is also a key.")
    mask = visible_keys(mask, (1, 1, *shape))[0, 0].cpu()
    _check_softmax(matrices, mask)
    numbers = list(range(len(matrices)) if layers is None else layers)
    heads = _by_place(matrices, numbers)
    labels, features = labels or {}, features or {}
    for place in [*labels, *features]:
        if place not in heads:
            raise ValueError(f"{place!r} is no (layer, head) of these weights.")
    size = f"{len(matrices)} layer" + "s" * (len(matrices) > 1)
    size += f", {len(heads)} heads, {len(tokens)} tokens"
    if sum(map(torch.numel, matrices)) > MOST_WEIGHTS:
        large = f"a view of {size} takes more than {MOST_WEIGHTS / 1e6:.0f} MB"
        raise ValueError(f"{large}: give fewer layers or heads, or a shorter text.")
    start = next((place for place in heads if place in labels), next(iter(heads)))
    labels = {place: isolated(legible(text)) for place, text in labels.items()}
    title = isolated(legible(title))
    called = names(tokens)
    data = {
        "title": title,
        "tokens": list(zip(map(visible, tokens), called)),  # label, and name
        "mask": None if mask.all() else mask.int().tolist(),
        "hide": _hideable(tokens),
        "special": [i for i, token in enumerate(tokens) if token in SPECIAL],
        "layers": numbers,
        "features": [
            _features(place, heads[place], mask, *pair)
            | {"place": [numbers.index(place[0]), place[1]]}
            for place, pair in features.items()
        ],
        "start": [numbers.index(start[0]), start[1]],
        "labels": [
            [labels.get((number, head), "") for head in range(len(layer))]
            for number, layer in zip(numbers, matrices)
        ],
        "digits": DIGITS,
        "short": SHORT,
        "weights": [[_encoded(head) for head in layer] for layer in matrices],
    }
    plain = f"<p><strong>{_text(title)}</strong><br>{size}. {NOTE}</p>\n"
    if len(tokens) <= MOST_LABELS:
        name = f"layer {start[0]}, head {start[1]}"
        name += f": {labels[start]}" if start in labels else ""
        plain += _table(heads[start], mask, called, name)
    markup = _markup(data, plain)
    return View(markup, title, f"{size}, {len(markup.encode()) / 1e6:.2f} MB")


def _by_place(matrices: list[Tensor], numbers: list[int]) -> dict[Place, Tensor]:
    """Return every head (queries, keys) by its (layer, head)."""
    if len(numbers) != len(matrices) or len(set(numbers)) < len(numbers):
        given = f"layers={numbers} for {len(matrices)} layers of weights"
        raise ValueError(f"{given}; give a number for each, such as [4, 5].")
    pairs = zip(numbers, matrices)
    return {(n, h): head for n, layer in pairs for h, head in enumerate(layer)}


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
            where = f"layer {number} has weights where the mask hides the key"
            raise ValueError(f"{where}: in mask, True = may be attended to.")


def _hideable(tokens: list[str]) -> list[dict]:
    """Return what can be hidden: special tokens, and a first token that is none."""
    groups = {} if tokens[0] in SPECIAL else {"first token": [0]}
    for special in SPECIAL:
        groups[special] = [i for i, token in enumerate(tokens) if token == special]
    return [{"name": name, "at": at} for name, at in groups.items() if at]


def _features(place, head: Tensor, mask: Tensor, query: Tensor, key: Tensor) -> dict:
    """Return a head's queries and keys for the script; they must give its weights."""
    query, key = query.detach().double(), key.detach().double()
    dim = query.shape[-1]
    scores = (query @ key.mT / dim**0.5).masked_fill(~mask, -torch.inf)
    wrong = (scores.softmax(dim=-1).nan_to_num() - head).abs().max().item()
    if wrong > SUM_TOLERANCE:
        raise ValueError(
            f"the features of {place} give weights that differ by {wrong:.2f} from its "
            "own: give them after a rotation; a bias on the scores cannot be shown."
        )
    most = [max(x.abs().max().item(), 1e-9) for x in (query, key)]
    q, k = (_encoded((x / m + 1) / 2) for x, m in zip((query, key), most))
    return {"dim": dim, "most": [round(m, 6) for m in most], "q": q, "k": k}


def _encoded(head: Tensor) -> str:
    """The weights of a head, row by row, in thousandths, rounded as in `printed`."""
    thousandths = (head.double().clamp(0, 1) * 1000 + 0.5 + 1000 * ROUNDING).floor()
    return "".join(CODES[x] for x in thousandths.int().flatten().tolist())


def _markup(data: dict, plain: str) -> str:
    """Return what is read without scripts, and the script that takes its place."""
    data = data | {"css": Path(__file__).with_name("viewer.css").read_text("utf-8")}
    payload = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for letter in "<>&":
        payload = payload.replace(letter, f"\\u{ord(letter):04x}")
    script = Path(__file__).with_name("viewer.js").read_text(encoding="utf-8")
    script = re.sub(r"\s*// .*|^\s+", "", script, flags=re.M)  # for those who read it
    # the same view has the same name, so that its bytes are the same in every run
    name = hashlib.sha1((script + payload).encode()).hexdigest()[:12]
    return (
        f'<div data-attn-view="{name}">\n{plain}</div>\n'
        f'<script>(() => {{\n{script}viewHeads("{name}", {payload});\n}})();</script>'
    )


def _table(head: Tensor, mask: Tensor, tokens: list[str], name: str) -> str:
    """Return the weights of one head, a row for each query."""
    heading = '<th scope="{}"><code>{}</code></th>'.format
    hidden = '<td style="background-color:#ddd;color:#555">–</td>'
    words = [_text(token) for token in tokens]
    lines = ["<td></td>" + "".join(heading("col", key) for key in words)]
    for query, row, may in zip(words, printed(head).tolist(), mask.tolist()):
        cells = [
            f'<td style="{_colours(weight)}">{weight:.2f}</td>' if seen else hidden
            for weight, seen in zip(row, may)
        ]
        lines.append(heading("row", query) + "".join(cells))
    caption = f"{_text(name)}. Each row is a query: its weights sum to 1."
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{caption}</caption>{rows}</table>\n"


def _colours(weight: float) -> str:
    """White to blue, and letters that can be read on it, on every page."""
    mixed = (round(255 + (c - 255) * weight) for c in BLUE)
    letters = "#fff" if weight > 0.6 else "#000"
    return f"background-color:#{''.join(f'{c:02x}' for c in mixed)};color:{letters}"


def _text(words: str) -> str:
    """Words as HTML; what isolates right-to-left words is written out."""
    return as_text(words).replace("\u2068", "&#x2068;").replace("\u2069", "&#x2069;")
