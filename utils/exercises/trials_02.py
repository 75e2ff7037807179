"""Trials of lesson 02: what its exercises are tried with."""

import torch
from torch import Tensor

from .catalogue import trials
from .draws import randn

# --- 2.1: functions of (batch * num_heads, length, head_dim) ----------------------


def mean_so_far(x: Tensor) -> Tensor:
    """Mix each token with those before it."""
    return of_heads(x).cumsum(dim=1) / torch.arange(1, x.shape[1] + 1)[:, None]


def times_its_number(x: Tensor) -> Tensor:
    """Multiply the first head by 1, the second by 2, ..."""
    return of_heads(x) * torch.arange(1, len(x) + 1)[:, None, None]


def sums_of_features(x: Tensor) -> Tensor:
    """Mix the features inside each head."""
    return of_heads(x).cumsum(dim=2)


def times_random(x: Tensor) -> Tensor:
    """Multiply by random numbers; a second call gets others."""
    return x * torch.rand(of_heads(x).shape).to(x.dtype)


def of_heads(x) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() != 3:
        given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"takes (batch * num_heads, length, head_dim), not {given}.")
    return x


@trials("2.1")
def there_and_back(dtype):
    sizes = [(6, 2, 3, 4), (4, 3, 2, 6), (5, 1, 4, 4), (1, 2, 2, 3), (3, 3, 3, 3)]
    for seed, (length, batch, heads, dim) in enumerate(sizes):
        x = randn(length, batch, heads * dim, seed=seed, dtype=dtype)
        for function in (mean_so_far, times_its_number, sums_of_features):
            yield {"function": function, "x": x, "num_heads": heads}
    strided = randn(2, 5, 12, seed=9, dtype=dtype).transpose(0, 1)
    for function in (mean_so_far, times_its_number, times_random):
        yield {"function": function, "x": strided, "num_heads": 3}


# --- 2.2 --------------------------------------------------------------------------

# batch, length, heads, head_dim, features, out; in double precision head_dim is a
# square, so that its root is exact in every precision
SIZES = [
    (2, 6, 3, 4, 12, 12),
    (3, 4, 2, 9, 18, 18),
    (2, 5, 4, 4, 16, 16),
    (2, 5, 3, 4, 7, 9),
    (1, 1, 2, 4, 8, 8),
    (4, 4, 4, 4, 16, 16),
]
NO_SQUARES = [(2, 5, 2, 6, 12, 12), (2, 5, 4, 3, 12, 12)]


@trials("2.2")
def whole_layer(dtype):
    sizes = SIZES + NO_SQUARES * (dtype == torch.float32)
    layers = [layer(*size, seed, dtype) for seed, size in enumerate(sizes)]
    yield from layers
    first, second = layers[:2]
    yield first | {"x": first["x"].transpose(0, 1).contiguous().transpose(0, 1)}
    silent = first["x"].clone()
    silent[0, 1] = 0  # a token whose scores are exactly 0, among others
    yield first | {"x": silent}
    yield second | {"w_q": torch.zeros_like(second["w_q"])}  # all scores 0
    if dtype == torch.float64:  # precise enough for scores whose exp overflows
        yield first | {"w_q": first["w_q"] * 1000}


def layer(batch, length, heads, head_dim, features, out, seed, dtype):
    def weight(rows, columns, at):
        return randn(rows, columns, seed=seed + at, dtype=dtype) / columns**0.5 * 2

    embed = heads * head_dim
    return {
        "x": randn(batch, length, features, seed=seed, dtype=dtype),
        "w_q": weight(embed, features, 10),
        "w_k": weight(embed, features, 20),
        "w_v": weight(embed, features, 30),
        "w_o": weight(out, embed, 40),
        "num_heads": heads,
    }


# --- 2.3: layers that cannot be looked into, with four heads of six features ------


class Layer:
    """A function layer(x); split, merge: whether they move the axes, as they should."""

    def __init__(self, name, split, merge, seed=0, sharp=1.0, size=1.0, exact=False):
        self.__name__, self.split, self.merge, self.exact = name, split, merge, exact
        w_q, w_k, w_v, w_o = randn(4, 24, 24, seed=seed) / 24**0.5
        self.weights = w_q * sharp, w_k, w_v, w_o * size

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[-1] != 24:
            raise ValueError(f"x has shape {tuple(x.shape)}; give (batch, length, 24).")
        given = x if x.is_floating_point() else x.float()
        x = given.double() if self.exact else given
        w_q, w_k, w_v, w_o = (weight.to(x.dtype) for weight in self.weights)
        q, k, v = (self.heads(x @ weight.mT) for weight in (w_q, w_k, w_v))
        found = (q @ k.mT / 6**0.5).softmax(dim=-1) @ v
        found = found.transpose(1, 2) if self.merge else found
        return (found.reshape(x.shape) @ w_o.mT).to(given.dtype)

    def heads(self, x: Tensor) -> Tensor:
        if self.split:
            return x.unflatten(-1, (4, 6)).transpose(1, 2)
        return x.reshape(len(x), 4, x.shape[1], 6)


KINDS = {
    "a right layer": (True, True),
    "a layer with the split wrong": (False, True),
    "a layer with the merge wrong": (True, False),
    "a layer with both wrong": (False, False),
}
SMALL = [(0, 1.0, 0.02), (400, 1.0, 0.02), (401, 0.5, 0.02), (402, 1.0, 0.02)]
LAYERS = [
    Layer(name, *kind, seed, sharp, size)
    for seed, sharp, size in (*SMALL[:1], (100, 0.5, 1.0), (200, 3.0, 1.0), *SMALL[1:])
    for name, kind in KINDS.items()
]
# rounding errors near 1e-7
LAYERS += [
    Layer("a right layer with larger outputs", True, True, seed, 1.0, 4.0)
    for seed in (500, 501, 502)
]
# the only one that torch.equal may accept
LAYERS += [Layer("a right layer without rounding errors", True, True, 300, exact=True)]


@trials("2.3", gradients=False)
def layers(dtype):
    for layer in LAYERS if dtype == torch.float32 else ():
        yield {"layer": layer}


# --- 2.4 and 2.5 ------------------------------------------------------------------


@trials("2.4", gradients=False)
def parameters(dtype):
    orders = [(4, [2, 0, 1]), (3, [1, 3, 0, 2]), (2, [1, 0]), (3, [1, 2, 0])]
    orders += [(1, [2, 3, 1, 0]), (4, [0])]
    for seed, (dim, order) in enumerate(orders):
        embed = dim * len(order)
        yield {
            "w_in": randn(3, embed, embed, seed=seed, dtype=dtype),
            "b_in": randn(3, embed, seed=seed + 10, dtype=dtype),
            "w_out": randn(embed, embed, seed=seed + 20, dtype=dtype),
            "b_out": randn(embed, seed=seed + 30, dtype=dtype),
            "order": order,
        }
    yield {
        "w_in": randn(6, 3, 6, seed=40, dtype=dtype).transpose(0, 1),  # strided
        "b_in": randn(3, 6, seed=41, dtype=dtype),
        "w_out": randn(6, 6, seed=43, dtype=dtype).mT,
        "b_out": randn(6, seed=42, dtype=dtype),
        "order": [1, 2, 0],
    }


@trials("2.5", gradients=False)
def rows_by_head(dtype):
    sizes = [(3, 4), (2, 6), (4, 4), (2, 3), (1, 4), (3, 1), (5, 2)]
    for seed, (heads, dim) in enumerate(sizes):
        rows = 3 * heads * dim
        weight = randn(rows, heads * dim, seed=seed, dtype=dtype)
        yield {"parameter": weight, "num_heads": heads}
        bias = randn(rows, seed=seed + 10, dtype=dtype)
        yield {"parameter": bias, "num_heads": heads}
    strided = randn(8, 24, seed=20, dtype=dtype).mT
    yield {"parameter": strided, "num_heads": 4}
