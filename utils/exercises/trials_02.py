"""Trials of lesson 02: what its exercises are tried with."""

import torch
from torch import Tensor

from .catalogue import trials
from .draws import drawn, randn, strided
from .trials_12 import CUT, GLUED, made

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
    x = randn(2, 5, 12, seed=9, dtype=dtype).transpose(0, 1)
    for function in (mean_so_far, times_its_number, times_random):
        yield {"function": function, "x": x, "num_heads": 3}


# batch, length, heads, head_dim, features, out; in double precision head_dim is a
# square, so that its root is exact in every precision
SIZES = [(2, 6, 3, 4, 12, 12), (3, 4, 2, 9, 18, 18), (2, 5, 4, 4, 16, 16)]
SIZES += [(2, 5, 3, 4, 7, 9), (1, 1, 2, 4, 8, 8), (4, 4, 4, 4, 16, 16)]
NO_SQUARES = [(2, 5, 2, 6, 12, 12), (2, 5, 4, 3, 12, 12)]


@trials("2.2")
def whole_layer(dtype):
    sizes = SIZES + NO_SQUARES * (dtype == torch.float32)
    layers = [layer(*size, seed, dtype) for seed, size in enumerate(sizes)]
    yield from layers
    first, second = layers[:2]
    yield first | {"x": strided(first["x"], 0, 1)}
    silent = first["x"].clone()
    silent[0, 1] = 0  # a token whose scores are exactly 0, among others
    yield first | {"x": silent}
    yield second | {"w_q": torch.zeros_like(second["w_q"])}  # all scores 0
    if dtype == torch.float64:  # precise enough for scores whose exp overflows
        yield first | {"w_q": first["w_q"] * 1000}


def layer(batch, length, heads, head_dim, features, out, seed, dtype):
    embed = heads * head_dim
    of_inputs = dict.fromkeys(("w_q", "w_k", "w_v"), (embed, features))
    weights = drawn(seed + 10, dtype, **of_inputs, w_o=(out, embed))
    weights = {name: w / w.shape[1] ** 0.5 * 2 for name, w in weights.items()}
    x = randn(batch, length, features, seed=seed, dtype=dtype)
    return {"x": x} | weights | {"num_heads": heads}


# --- 2.3: layers that cannot be looked into ---------------------------------------

KINDS = [  # with rounding errors near 1e-7
    made("a right layer", as_given=True),
    made("a layer with the split wrong", as_given=True, **CUT),
    made("a layer with the merge wrong", as_given=True, **GLUED),
    made("a layer with both wrong", as_given=True, **CUT, **GLUED),
]
LARGER = made("a right layer with larger outputs", as_given=True)
EXACT = made("a right layer without rounding errors")  # torch.equal may accept it alone


@trials("2.3", gradients=False)
def layers():
    # seed, size of the outputs, sharpness of the weights
    options = [(0, 0.02, 1.0), (100, 1.0, 0.5), (200, 1.0, 3.0)]
    options += [(400, 0.02, 1.0), (401, 0.02, 0.5), (402, 0.02, 1.0)]
    found = [kind(*each) for each in options for kind in KINDS]
    for layer in (*found, *(LARGER(seed, 4.0) for seed in (500, 501, 502)), EXACT(300)):
        yield {"layer": layer}


@trials("2.4", gradients=False)
def parameters(dtype):
    orders = [(4, [2, 0, 1]), (3, [1, 3, 0, 2]), (2, [1, 0]), (3, [1, 2, 0])]
    orders += [(1, [2, 3, 1, 0]), (4, [0])]
    for seed, (dim, order) in enumerate(orders):
        embed = dim * len(order)
        shapes = {"w_in": (3, embed, embed), "b_in": (3, embed)}
        shapes |= {"w_out": (embed, embed), "b_out": (embed,)}
        trial = drawn(seed, dtype, **shapes) | {"order": order}
        yield trial
        if seed == 0:
            w_in = strided(trial["w_in"], 0, 1)
            yield trial | {"w_in": w_in, "w_out": trial["w_out"].mT}


@trials("2.5", gradients=False)
def rows_by_head(dtype):
    sizes = [(3, 4), (2, 6), (4, 4), (2, 3), (1, 4), (3, 1), (5, 2)]
    for seed, (heads, dim) in enumerate(sizes):
        rows = 3 * heads * dim
        weight = randn(rows, heads * dim, seed=seed, dtype=dtype)
        yield {"parameter": weight, "num_heads": heads}
        bias = randn(rows, seed=seed + 10, dtype=dtype)
        yield {"parameter": bias, "num_heads": heads}
    yield {"parameter": randn(8, 24, seed=20, dtype=dtype).mT, "num_heads": 4}
