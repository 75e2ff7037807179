"""The matrices of any layer, and the known ways to compute attention from them.

`readings` finds the matrices in the layouts that people use; `reference` computes
attention from them; `known_mistakes` are those of exercises 1.3 (of one head) and 2.2
(of a whole layer), read from their tables, as functions of the same matrices.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from utils.attention import (
    causal_mask,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)

from . import catalogue

NAMES = r"(^|[._]){0}([._]|$)|^w?_?{0}(_|$)|[._]w?_?{0}(_|[.]|$)|{1}"
WORDS = {"q": "quer", "k": "key", "v": "value"}
ROLES = {role: NAMES.format(role, word) for role, word in WORDS.items()}
NO_OUTPUT = "no output projection"
ORDERS = [*itertools.permutations(range(3))]


@dataclass(frozen=True)
class Reading:
    """A way to read a layer's matrices as those of queries, keys, values and outputs.

    matrices: w_q, w_k, w_v, w_o (out, in); biases: one for each. likely: this is their
    order, or their names say so. unused: names of square matrices that stand beside
    them. exchanged: the names say other roles.
    """

    layout: str
    matrices: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    likely: bool
    unused: tuple[str, ...] = ()
    exchanged: bool = False

    def without_biases(self) -> "Reading":
        """Return the same matrices, with biases of 0."""
        return replace(self, biases=tuple(torch.zeros_like(b) for b in self.biases))

    def verdict(self, num_heads: int, pattern: str) -> tuple[bool | None, str]:
        """Return (ok, text) of a layer that is equal to the reference."""
        equal = f"{self.layout}, {num_heads} heads{pattern}: softmax(QKᵀ/√d)V"
        if self.unused:
            return False, f"{equal}; but {', '.join(self.unused)} is never used"
        if self.exchanged:
            return None, f"{equal}; but the matrices have other roles than their names"
        return True, equal


def reference(x: Tensor, each: Reading, num_heads: int, mask: Tensor | None) -> Tensor:
    """Return attention of x (batch, length, embed_dim) with these matrices."""
    q, k, v = (x @ w.mT + b for w, b in zip(each.matrices[:3], each.biases))
    groups = k.shape[-1] * num_heads // q.shape[-1]  # key and value heads
    q, k, v = split_heads(q, num_heads), split_heads(k, groups), split_heads(v, groups)
    k, v = (y.repeat_interleave(num_heads // groups, dim=1) for y in (k, v))
    heads, _ = scaled_dot_product_attention(q, k, v, mask)
    return merge_heads(heads) @ each.matrices[3].mT + each.biases[3]


# --- the matrices ---


def readings(layer: nn.Module, embed_dim: int, num_heads: int) -> Iterator[Reading]:
    """Yield the ways to read the layer's matrices."""
    ways = matrices(layer, True), matrices(layer, False)
    differ = any(a is not b for (_, a, _), (_, b, _) in zip(*ways))
    for found in ways[: 1 + differ]:
        squares = [m for m in found if m[1].shape == (embed_dim, embed_dim)]
        eye = torch.eye(embed_dim, dtype=torch.float64)
        nothing = (NO_OUTPUT, eye, torch.zeros_like(eye[0]))
        yield from stacked(found, [*squares, nothing], embed_dim, num_heads)
        yield from listed(found, [*squares, nothing], embed_dim, num_heads)
        yield from separate(found, squares, nothing, embed_dim, num_heads)
        if len(squares) < 2:  # x itself is query, key and value
            for out in [*squares, nothing]:
                yield reading("no projections", *[nothing] * 3, out, likely=True)


def stacked(found: list, outs: list, size: int, num_heads: int) -> Iterator[Reading]:
    """Yield the readings of one matrix as queries, keys and values."""
    head_dim = size // num_heads
    for name, w, b in found:
        groups = (len(w) // head_dim - num_heads) / 2  # key and value heads
        if w.shape[1] != size or groups < 1 or groups % 1 or num_heads % groups:
            continue
        rows = [size, int(groups) * head_dim, int(groups) * head_dim]
        layouts = {"one stacked projection": (w.split(rows), b.split(rows))}
        if groups == num_heads:
            w, b = w.view(num_heads, 3, head_dim, -1), b.view(num_heads, 3, head_dim)
            parts = [[y[:, i].flatten(0, 1) for i in range(3)] for y in (w, b)]
            layouts["one projection, interleaved per head"] = parts
        for layout, (ws, bs) in layouts.items():
            orders = ORDERS if groups == num_heads else ORDERS[:1]
            for order, out in itertools.product(orders, outs):
                parts = [(name, ws[i], bs[i]) for i in order]
                yield reading(layout, *parts, out, likely=order == ORDERS[0])


def listed(found: list, outs: list, size: int, num_heads: int) -> Iterator[Reading]:
    """Yield the readings of three small matrices for each head."""
    small = [m for m in found if m[1].shape == (size // num_heads, size)]
    if num_heads == 1 or len(small) != 3 * num_heads:
        return
    by_head = [small[i::3] for i in range(3)]  # head after head
    by_role = [small[i * num_heads :][:num_heads] for i in range(3)]
    for heads, order in itertools.product((by_head, by_role), ORDERS):
        parts = []
        for i in order:
            names, ws, bs = zip(*heads[i])
            parts.append((names[0], torch.cat(ws), torch.cat(bs)))
        for out in outs:
            yield reading("a list of heads", *parts, out, likely=order == ORDERS[0])


def separate(found, squares: list, nothing, size: int, num_heads: int) -> Iterator:
    """Yield the readings of a matrix each, first by their names."""
    head_dim, layout = size // num_heads, "separate projections"
    wide = [m for m in found if m[1].shape[1] == size and len(m[1]) % head_dim == 0]
    named = {
        r: [m for m in wide if re.search(p, m[0].lower())] for r, p in ROLES.items()
    }
    by_name = all(len(each) == 1 for each in named.values())
    orders = [[named[role][0] for role in "qkv"]] if by_name else []
    if 3 <= len(squares) <= 5:
        orders += [list(order) for order in itertools.permutations(squares, 3)]
    for number, parts in enumerate(orders):
        rest = [m for m in squares if all(m[0] != part[0] for part in parts)]
        for out in [*rest, nothing]:
            unused = tuple(m[0] for m in rest if out is nothing)
            each = reading(layout, *parts, out, likely=number == 0, unused=unused)
            yield replace(each, exchanged=by_name and number > 0)


def reading(layout: str, *parts, likely: bool, unused: tuple = ()) -> Reading:
    """Return the reading of parts (name, matrix, bias): queries, keys, values, out."""
    _, ws, bs = zip(*parts)
    unused = tuple(name.removesuffix(".weight").lstrip(".") for name in unused)
    return Reading(layout, ws, bs, likely, unused)


def matrices(layer: nn.Module, turned: bool) -> list[tuple[str, Tensor, Tensor]]:
    """Return (name, matrix (out, in), bias) of each matrix, in the layer's order.

    turned: plain parameters are (in, out). Those with three axes have a head each.
    """
    found, modules = [], dict(layer.named_modules())
    for name, w in layer.named_parameters():
        place, _, last = name.rpartition(".")
        module = modules[place]
        if w.dim() not in (2, 3) or isinstance(module, nn.Embedding):
            continue
        bias = getattr(module, last.replace("weight", "bias"), None)
        if w.dim() == 3:  # (heads, in, head_dim), or (heads, head_dim, out)
            into = len(w) * w.shape[2] == w.shape[1]
            w = w.mT.flatten(0, 1) if into else w.flatten(0, 1).mT
        elif "weight" not in last:
            w = w.mT if turned else w
        elif type(module).__name__ == "Conv1D":  # of GPT-2: (in, out)
            w = w.mT
        known = isinstance(bias, Tensor) and bias is not w and bias.shape == w.shape[:1]
        found.append((name, w, bias if known else w.new_zeros(len(w))))
    return found


# --- the mistakes ---


@dataclass(frozen=True)
class KnownMistake:
    """A mistake of an exercise: its name, why it is wrong, and its code.

    python: what the code needs beside it. of_head: it is of one head alone.
    """

    name: str
    why: str
    code: str
    python: str
    of_head: bool

    def gives(self, x: Tensor, each: Reading, num_heads: int, mask) -> Tensor | None:
        """Return a layer's output with this mistake; None: it cannot be made here."""
        size = len(each.matrices[0]) // num_heads
        ws = [w.split(size) for w in each.matrices[:3]]  # of the heads
        # each key and value head serves a group of query heads
        ws = [[w for w in role for _ in range(num_heads // len(role))] for role in ws]
        try:
            if not self.of_head:
                whole = [torch.cat(each_role) for each_role in ws]
                return self.function(mask)(x, *whole, each.matrices[3], num_heads)
            function = self.function(None)
            heads = [function(x, *(w.mT for w in three), mask)[0] for three in zip(*ws)]
            return torch.cat(heads, dim=-1) @ each.matrices[3].mT
        except Exception:  # such as sizes that do not fit
            return None

    def function(self, mask: Tensor | None) -> Callable:
        """Return the exercise's function, which attends only where mask is True."""

        def attend(q, k, v, own=None, **options):
            mask_ = mask if own is None else own
            return scaled_dot_product_attention(q, k, v, mask_, **options)

        def weighed(weigh, q, k, v):  # as in the table, with a mask
            scores = q @ k.mT / q.shape[-1] ** 0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            return weigh(scores) @ v

        space = {"torch": torch, "math": math, "nn": nn, "causal_mask": causal_mask}
        space["scaled_dot_product_attention"] = attend
        exec(self.python, space)
        space["weighed"] = weighed
        return catalogue.defined(self.code, space)


@cache
def known_mistakes() -> list[KnownMistake]:
    """Return the mistakes of a whole layer, then those of a head."""
    return [*mistakes_of("2.2"), *mistakes_of("1.3")]


def mistakes_of(exercise: str) -> list[KnownMistake]:
    """Return the mistakes of an exercise, from its page and its table."""
    lesson = f"{int(exercise[0]):02d}"
    (page,) = catalogue.NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    solution = catalogue.read_page(page)[exercise][2]
    table = catalogue.table(page.parent / f"exercises/{lesson}.txt")[exercise]
    python = "".join(m.lines[0] for m in table if m.name == catalogue.PYTHON)
    special = catalogue.PYTHON, catalogue.RIGHT
    return [
        KnownMistake(each.name, each.why, code, python, exercise == "1.3")
        for each in table
        if each.name not in special
        for code in catalogue.edits(solution, each)
    ]
