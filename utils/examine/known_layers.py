"""The matrices of any layer, and the known ways to compute attention from them.

`readings` finds the matrices in the layouts that people use; `reference` computes
attention from them; `known_mistakes` are those of exercises 1.3 (of one head) and 2.2
(of a whole layer), read from their tables, as functions of the same matrices.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from utils.attention import (
    causal_mask,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from utils.exercises import catalogue

NAMES = r"(^|[._])w?_?{0}([._]|$)|{1}"
ROLES = [NAMES.format(*pair) for pair in (("q", "quer"), ("k", "key"), ("v", "value"))]


class Matrix(NamedTuple):
    """A matrix (out, in) of a layer, and its bias (out,), zeros if it has none."""

    name: str
    w: Tensor
    b: Tensor


class Reading(NamedTuple):
    """A way to read a layer's matrices as those of queries, keys, values and outputs.

    likely: this is their order, or their names say so. ok, but: what there is to say if
    the layer is equal to the reference: True, or None (a note).
    """

    layout: str
    matrices: tuple[Matrix, ...]
    likely: bool = True
    ok: bool | None = True
    but: str = ""


def reference(x: Tensor, each: Reading, num_heads: int, mask: Tensor | None) -> Tensor:
    """Return attention of x (batch, length, embed_dim), under mask (queries, keys)."""
    *inputs, out = each.matrices
    q, k, v = (x @ m.w.mT + m.b for m in inputs)
    groups = k.shape[-1] * num_heads // q.shape[-1]  # key and value heads
    q, k, v = split_heads(q, num_heads), split_heads(k, groups), split_heads(v, groups)
    k, v = (y.repeat_interleave(num_heads // groups, dim=1) for y in (k, v))
    heads, _ = scaled_dot_product_attention(q, k, v, mask)
    return merge_heads(heads) @ out.w.mT + out.b


# --- the matrices ---


def readings(layer: nn.Module, embed_dim: int, num_heads: int) -> Iterator[Reading]:
    """Yield the ways to read the layer's matrices, also with heads that take turns."""
    for each in in_blocks(layer, embed_dim, num_heads):
        yield each
        groups = len(each.matrices[1].w) * num_heads // embed_dim
        if 1 < groups < num_heads:
            yield in_turns(each, num_heads, groups)


def in_turns(each: Reading, num_heads: int, groups: int) -> Reading:
    """Return a reading in which head i has the keys and values of group i % groups.

    In `reference` neighbouring heads share a group, so the heads are put in its order.
    """
    q, k, v, out = each.matrices
    heads = torch.arange(num_heads).view(-1, groups).T.flatten()
    w, b = (y.unflatten(0, (num_heads, -1))[heads].flatten(0, 1) for y in (q.w, q.b))
    merged = out.w.unflatten(1, (num_heads, -1))[:, heads].flatten(1)
    matrices = Matrix(q.name, w, b), k, v, Matrix(out.name, merged, out.b)
    but = f"; but head i has the keys of group i % {groups}: is it meant?"
    return Reading(each.layout, matrices, each.likely, None, but)


def in_blocks(layer: nn.Module, embed_dim: int, num_heads: int) -> Iterator[Reading]:
    """Yield the readings in which heads that share keys and values are neighbours."""
    eye = torch.eye(embed_dim, dtype=torch.float64)
    nothing = Matrix("no output projection", eye, torch.zeros_like(eye[0]))
    ways = matrices(layer, True), matrices(layer, False)
    differ = any(a.w is not b.w for a, b in zip(*ways))
    for found in ways[: 1 + differ]:
        squares = [m for m in found if m.w.shape == (embed_dim, embed_dim)]
        outs = squares or [nothing]
        whole = *stacked(found, embed_dim, num_heads), *listed(found, num_heads)
        for (layout, parts), order, out in product(whole, permutations(range(3)), outs):
            ordered = [parts[i] for i in order]
            if len(ordered[0].w) == embed_dim:  # keys and values may have fewer heads
                yield Reading(layout, (*ordered, out), order == (0, 1, 2))
        yield from separate(found, squares, nothing, num_heads)
        if len(squares) < 2:  # x itself is query, key and value
            for out in outs:
                parts = nothing, nothing, nothing, out
                yield Reading("no projections", parts, likely=not whole)


def stacked(found: list[Matrix], size: int, num_heads: int) -> Iterator[tuple]:
    """Yield (layout, parts) of each matrix that holds queries, keys and values."""
    head_dim = size // num_heads
    for name, w, b in found:
        groups = (len(w) / head_dim - num_heads) / 2  # key and value heads
        if w.shape[1] != size or groups < 1 or groups % 1 or num_heads % groups:
            continue
        rows = [size, int(groups) * head_dim, int(groups) * head_dim]
        parts = zip(w.split(rows), b.split(rows))
        yield "one stacked projection", [Matrix(name, *part) for part in parts]
        if groups == num_heads:
            w, b = w.view(num_heads, 3, head_dim, -1), b.view(num_heads, 3, head_dim)
            parts = zip(w.transpose(0, 1).flatten(1, 2), b.transpose(0, 1).flatten(1))
            layout = "one projection, interleaved per head"
            yield layout, [Matrix(name, *part) for part in parts]


def listed(found: list[Matrix], num_heads: int) -> Iterator[tuple]:
    """Yield (layout, parts) of three small matrices for each head."""
    small = [m for m in found if len(m.w) * num_heads == m.w.shape[1]]
    if num_heads == 1 or len(small) != 3 * num_heads:
        return
    by_head = [small[i::3] for i in range(3)]  # head after head
    by_role = [small[i * num_heads :][:num_heads] for i in range(3)]
    for roles in (by_head, by_role):
        parts = [zip(*heads) for heads in roles]
        joined = [Matrix(n[0], torch.cat(w), torch.cat(b)) for n, w, b in parts]
        yield "a list of heads", by_role_names(joined) or joined


def separate(found, squares: list, nothing: Matrix, num_heads: int) -> Iterator:
    """Yield the readings of a matrix each, first by their names."""
    size, layout = len(nothing.w), "separate projections"
    by_name = by_role_names([m for m in found if m.w.shape[1] == size])
    q, k, v = (len(m.w) for m in by_name) if by_name else (0, 1, 1)
    groups = k * num_heads / size  # key and value heads
    whole = groups % 1 == 0 < groups and num_heads % groups == 0
    known = q == size and k == v and whole
    orders = [by_name] if known else []
    if 3 <= len(squares) <= 5:
        orders += permutations(squares, 3)
    for number, parts in enumerate(orders):
        rest = [m for m in squares if all(m is not part for part in parts)]
        ok, but = True, ""
        if known and number > 0:
            ok, but = None, "; but the matrices have other roles than their names"
        for out in rest or [nothing]:
            yield Reading(layout, (*parts, out), number == 0, ok, but)


def by_role_names(found: list[Matrix]) -> list[Matrix]:
    """Return those that are named query, key and value; [] if names do not say it."""
    named = [[m for m in found if re.search(role, m.name.lower())] for role in ROLES]
    distinct = {each[0].name for each in named if len(each) == 1}
    return [m for (m,) in named] if len(distinct) == 3 else []


def matrices(layer: nn.Module, turned: bool) -> list[Matrix]:
    """Return each matrix of a layer, in its order.

    turned: plain parameters are (in, out). Those with three axes have a head each.
    """
    found, modules = [], dict(layer.named_modules())
    for name, w in layer.named_parameters():
        place, _, last = name.rpartition(".")
        module = modules[place]
        if w.dim() not in (2, 3) or isinstance(module, nn.Embedding):
            continue
        w = w.double()
        bias = getattr(module, last.replace("weight", "bias"), None)
        if w.dim() == 3:  # (heads, in, head_dim), or (heads, head_dim, out)
            into = len(w) * w.shape[2] == w.shape[1]
            w = w.mT.flatten(0, 1) if into else w.flatten(0, 1).mT
        elif "weight" not in last:
            w = w.mT if turned else w
        elif type(module).__name__ == "Conv1D":  # of GPT-2: (in, out)
            w = w.mT
        known = isinstance(bias, Tensor) and bias.shape == w.shape[:1]
        b = bias.double() if known else w.new_zeros(len(w))
        found.append(Matrix(name, w, b))
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
        *three, out = (m.w for m in each.matrices)
        size = len(three[0]) // num_heads
        try:
            heads = [w.unflatten(0, (-1, size)) for w in three]  # keys may have fewer
            heads = [w.repeat_interleave(num_heads // len(w), dim=0) for w in heads]
            whole = [w.flatten(0, 1) for w in heads]
            if not self.of_head:
                return self.function(mask)(x, *whole, out, num_heads)
            function = self.function(None)
            outputs = [
                function(x, *(w.mT for w in head), mask)[0] for head in zip(*heads)
            ]
            return torch.cat(outputs, dim=-1) @ out.mT
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
    python = "".join(m.form for m in table if m.name == catalogue.PYTHON)
    special = catalogue.PYTHON, catalogue.RIGHT
    known = [each for each in table if each.name not in special]
    return [
        KnownMistake(each.name, each.why, each.form, python, exercise == "1.3")
        for each in catalogue.made(solution, known)
    ]
