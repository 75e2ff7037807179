"""Trials of lesson 03: what its exercises are tried with."""

from itertools import product

import torch
from torch import nn

from .catalogue import trials
from .draws import randn, strided


@trials("3.1")
def parameters(dtype):
    # some sequences and one, one token, one head, head_dim = num_heads; head_dim is a
    # square, so that its root is exact in every precision
    sizes = [(2, 6, 3, 4), (3, 4, 2, 9), (1, 5, 4, 4), (2, 1, 2, 4), (2, 4, 1, 9)]
    if dtype == torch.float32:
        sizes += [(2, 6, 2, 6)]  # a root that is no whole number
    for seed, (batch, length, heads, head_dim) in enumerate(sizes):
        embed = heads * head_dim
        trial = {
            # laid out length first in memory: .view() would not do
            "x": randn(length, batch, embed, seed=seed, dtype=dtype).transpose(0, 1),
            "in_proj_weight": randn(3 * embed, embed, seed=seed + 10, dtype=dtype) / 2,
            "in_proj_bias": randn(3 * embed, seed=seed + 20, dtype=dtype),
            "out_weight": randn(embed, embed, seed=seed + 30, dtype=dtype) / 2,
            "out_bias": randn(embed, seed=seed + 40, dtype=dtype),
            "num_heads": heads,
        }
        yield trial
        if seed == 0:
            # biases of 0, as in a new layer: where x is 0, scores are 0, and not masked
            no_bias = torch.zeros_like(trial["in_proj_bias"])
            some_zeros = trial["x"] * (torch.arange(length) > 1).to(dtype)[:, None]
            yield trial | {"x": some_zeros, "in_proj_bias": no_bias}
    if dtype == torch.float64:
        # one number of one sequence is NaN: its outputs are NaN, and no others
        one_nan = trial["x"].clone()
        one_nan[0, 1, 2] = torch.nan
        yield trial | {"x": one_nan}
        # a key bias adds the same to all scores of a query: softmax does not care, exp
        # does (in single precision right answers would differ by their rounding)
        of_keys = torch.arange(3 * embed) // embed == 1
        yield trial | {"in_proj_bias": trial["in_proj_bias"] + 600 * of_keys}


@trials("3.2", gradients=False)
def tokens(dtype):
    """Padding on the right, on the left, in all places and in none."""
    some = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 0]])
    ones = torch.ones(5, 5, dtype=torch.long)
    yield {"attention_mask": some[:2], "num_heads": 3}
    yield {"attention_mask": some[1:], "num_heads": 2}
    yield {"attention_mask": torch.tensor([[0, 0, 0], [1, 1, 0]]), "num_heads": 2}
    yield {"attention_mask": some[:, :2], "num_heads": 4}  # as many heads as sequences
    yield {"attention_mask": some[:1], "num_heads": 1}
    yield {"attention_mask": ones[:1, :1], "num_heads": 2}
    yield {"attention_mask": 0 * ones[:1, :1], "num_heads": 1}  # one token, of padding
    yield {"attention_mask": ones, "num_heads": 2}
    every = torch.tensor([*product((0, 1), repeat=5)])  # with gaps: [1, 0, 1, 1, 0]
    yield {"attention_mask": every, "num_heads": 2}


@trials("3.3", gradients=False)
def weights(dtype):
    sizes = [(3, 5), (4, 4), (2, 8), (1, 6), (5, 2)]
    for seed, (heads, length) in enumerate(sizes):
        scores = randn(heads, length, length, seed=seed, dtype=dtype)
        yield {"weights": scores.softmax(dim=-1)}
    sharp = (50 * randn(3, 5, 5, seed=5, dtype=dtype)).softmax(dim=-1)
    yield {"weights": strided(sharp, 0, 1)}
    # as a layer returns them in training: dropped out, so rows need not sum to 1
    kept = randn(3, 6, 6, seed=7, dtype=dtype) > 0
    yield {"weights": 2 * kept * (4 * randn(3, 6, 6, seed=6, dtype=dtype)).softmax(-1)}


@trials("3.4", gradients=False)
def scores():
    dtype = torch.float32  # a search need not be better than four digits
    sizes = [(3, 5, 1.0, 1), (2, 4, 1.3, 3), (1, 6, 0.3, 0.5), (4, 8, 1.9, 400)]
    for seed, (heads, length, target, factor) in enumerate(sizes):
        scores = randn(heads, length, length, seed=seed, dtype=dtype) * factor
        yield {"scores": scores, "target": target}
    turned = randn(3, 7, 7, seed=4, dtype=dtype).mT
    yield {"scores": turned + 100, "target": 0.8}  # neither contiguous nor near 0
    # as on the page: close ties, so gains up to a million, and most weights exactly 0
    small = randn(4, 13, 13, seed=5, dtype=dtype) * 3e-4
    yield {"scores": small, "target": 0.0023}
    # half of the weight on one key of 48: it changes most with the gain
    peaked = torch.eye(48) + randn(12, 48, 48, seed=6, dtype=dtype) / 50
    yield {"scores": peaked * torch.linspace(1, 3, 12)[:, None, None], "target": 2.6}


@trials("3.5", gradients=False)
def blocks(dtype):
    """Blocks with other numbers of heads, other norms, and one that stands twice."""
    made = {"dtype": dtype, "dropout": 0.0, "batch_first": True}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        post, pre, four, other = (
            nn.TransformerEncoderLayer(8, heads, 16, norm_first=first, **made).eval()
            for heads, first in ((2, False), (2, True), (4, False), (1, True))
        )
    lists = [[post], [post, four], [pre, other], [pre, four, pre], [post, post]]
    for seed, each in enumerate(lists):
        yield {"blocks": each, "x": randn(2, 3 + seed, 8, seed=seed, dtype=dtype)}
    yield {"blocks": [other, post, other], "x": randn(1, 4, 8, seed=9, dtype=dtype)}
