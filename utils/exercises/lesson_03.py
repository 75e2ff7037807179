"""Exercises of notebook 03: PyTorch's packed weights, its masks, a head's score."""

import torch
from torch import Tensor

from utils.attention import merge_heads, scaled_dot_product_attention, split_heads
from utils.exercises.engine import Exercise, randn
from utils.exercises.lesson_02 import merge_without_transpose, split_without_transpose

IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn
"""

# --- 3.1 the packed weights -------------------------------------------------------


def torch_attention(
    x: Tensor,
    in_proj_weight: Tensor,
    in_proj_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    num_heads: int,
) -> Tensor:
    """The reference: what nn.MultiheadAttention(batch_first=True) computes from x."""
    q, k, v = (x @ in_proj_weight.mT + in_proj_bias).chunk(3, dim=-1)
    q, k, v = (split_heads(part, num_heads) for part in (q, k, v))
    heads, _ = scaled_dot_product_attention(q, k, v)
    return merge_heads(heads) @ out_weight.mT + out_bias


def packed_inputs(dtype):
    for seed, (batch, length, heads, dim) in enumerate([(2, 6, 3, 4), (3, 4, 2, 6)]):
        embed = heads * dim
        yield {
            "x": randn(batch, length, embed, seed=seed, dtype=dtype),
            "in_proj_weight": randn(3 * embed, embed, seed=seed + 10, dtype=dtype) / 2,
            "in_proj_bias": randn(3 * embed, seed=seed + 20, dtype=dtype),
            "out_weight": randn(embed, embed, seed=seed + 30, dtype=dtype) / 2,
            "out_bias": randn(embed, seed=seed + 40, dtype=dtype),
            "num_heads": heads,
        }


def _packed(
    x, w, b, out_w, out_b, num_heads, *, order=(0, 1, 2), scale=None,
    split=split_heads, merge=merge_heads,
):  # fmt: skip
    parts = (x @ w.mT + b).chunk(3, dim=-1)
    q, k, v = (split(parts[i], num_heads) for i in order)
    heads, _ = scaled_dot_product_attention(q, k, v, scale=scale)
    return merge(heads) @ out_w.mT + out_b


def packed_read_per_head(x, w, b, out_w, out_b, num_heads):
    """The rows are all queries, then all keys, then all values."""
    q, k, v = split_heads(x @ w.mT + b, num_heads).chunk(3, dim=-1)
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ out_w.mT + out_b


def packed_no_in_bias(x, w, b, out_w, out_b, num_heads):
    """Queries, keys and values each have a bias."""
    return _packed(x, w, torch.zeros_like(b), out_w, out_b, num_heads)


def packed_no_out_bias(x, w, b, out_w, out_b, num_heads):
    """It is added after the heads are mixed."""
    return _packed(x, w, b, out_w, torch.zeros_like(out_b), num_heads)


def packed_swapped(*args):
    """The order is query, key, value."""
    return _packed(*args, order=(0, 2, 1))


def packed_key_value_query(*args):
    """The order is query, key, value."""
    return _packed(*args, order=(1, 2, 0))


def packed_no_scale(*args):
    """The scores are not divided by √d_k."""
    return _packed(*args, scale=1.0)


def packed_sqrt_embed_dim(x, *args):
    """A head has only head_dim features, so d_k is head_dim."""
    return _packed(x, *args, scale=x.shape[-1] ** -0.5)


def packed_split_without_transpose(*args):
    """Such heads are pieces of the sentence: each sees only a few tokens."""
    return _packed(*args, split=split_without_transpose)


def packed_merge_without_transpose(*args):
    """Features of different tokens end up in one row."""
    return _packed(*args, merge=merge_without_transpose)


def packed_no_output(x, w, b, out_w, out_b, num_heads):
    """out_proj mixes what the heads have read."""
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return _packed(x, w, b, eye, torch.zeros_like(out_b), num_heads)


def packed_no_bias(x, w, b, out_w, out_b, num_heads):
    """in_proj_bias and the bias of out_proj are both part of the layer."""
    nothing = torch.zeros_like(b), torch.zeros_like(out_b)
    return _packed(x, w, nothing[0], out_w, nothing[1], num_heads)


def packed_only_out_bias(x, w, b, out_w, out_b, num_heads):
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return _packed(x, w, b, eye, out_b, num_heads)


def packed_out_not_transposed(x, w, b, out_w, out_b, num_heads):
    """nn.Linear stores (out, in): write x @ weight.T."""
    return _packed(x, w, b, out_w.mT, out_b, num_heads)


def packed_one_head(x, w, b, out_w, out_b, num_heads):
    """Each head has its own slice of the features: num_heads is not used."""
    return _packed(x, w, b, out_w, out_b, 1)


def packed_length_first(x, *args):
    """x is (batch, length, embed): words read words of the same sentence."""
    return torch_attention(x.transpose(0, 1), *args).transpose(0, 1)


def packed_unchanged(x, *args):
    """No word has read any other."""
    return x


# --- 3.2 masks --------------------------------------------------------------------


def torch_mask(keep: Tensor, num_heads: int) -> Tensor:
    """The reference: keep (batch, L, S) as blocked (batch * heads, L, S)."""
    return ~keep.repeat_interleave(num_heads, dim=0)


def mask_inputs(dtype):
    for seed, (batch, queries, keys, heads) in enumerate(
        [(2, 3, 4, 3), (3, 3, 3, 2), (1, 2, 5, 4)]
    ):
        keep = randn(batch, queries, keys, seed=seed, dtype=dtype) > 0
        yield {"keep": keep, "num_heads": heads}


def mask_not_flipped(keep, num_heads):
    """There True means blocked; here it means may be read."""
    return keep.repeat_interleave(num_heads, dim=0)


def mask_head_major(keep, num_heads):
    """Row n * heads + h must belong to sentence n."""
    return ~keep.repeat(num_heads, 1, 1)


def mask_not_repeated(keep, num_heads):
    """PyTorch wants one per sentence and head."""
    return ~keep


def mask_four_axes(keep, num_heads):
    """PyTorch wants (batch * heads, L, S)."""
    return ~keep[:, None].repeat(1, num_heads, 1, 1)


def mask_float_of_ones(keep, num_heads):
    """A float mask is added to the scores: 1.0 hides nothing."""
    return (~keep).repeat_interleave(num_heads, dim=0).float()


def mask_head_major_not_flipped(keep, num_heads):
    return keep.repeat(num_heads, 1, 1)


def mask_float_of_keep(keep, num_heads):
    return keep.repeat_interleave(num_heads, dim=0).float()


def mask_integer(keep, num_heads):
    """PyTorch refuses integer masks: return bool."""
    return (~keep).repeat_interleave(num_heads, dim=0).int()


def mask_unchanged(keep, num_heads):
    """It must be flipped, and repeated for every head."""
    return keep


# --- 3.3 a head's score -----------------------------------------------------------


def previous_token_score(weights: Tensor) -> Tensor:
    """The reference: weights (heads, L, L) -> (heads,), mean of weights[h, q, q - 1].

    The first query has no previous token and is left out.
    """
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def score_inputs(dtype):
    for seed, (heads, length) in enumerate([(3, 5), (4, 4), (2, 8)]):
        weights = randn(heads, length, length, seed=seed, dtype=dtype).softmax(dim=-1)
        yield {"weights": weights}


def score_next(weights):
    """Queries are rows: the previous token lies below the diagonal."""
    return weights.diagonal(offset=1, dim1=-2, dim2=-1).mean(dim=-1)


def score_self(weights):
    """That is the diagonal; the previous token lies below it."""
    return weights.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def score_all_queries(weights):
    """The first query has no previous token: divide by one less."""
    diagonal = weights.diagonal(offset=-1, dim1=-2, dim2=-1)
    return diagonal.sum(dim=-1) / weights.shape[-1]


def score_averaged(weights):
    """One number for all; each head has its own."""
    return previous_token_score(weights).mean()


def score_averaged_maps(weights):
    """The heads were mixed before they were measured."""
    return previous_token_score(weights.mean(dim=0, keepdim=True))


def score_per_query(weights):
    """Take the mean over the queries."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1)


def score_sum(weights):
    """A sum grows with the sentence: take the mean over the queries."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).sum(dim=-1)


def score_two_back(weights):
    """offset=-2 is the token before the previous one."""
    return weights.diagonal(offset=-2, dim1=-2, dim2=-1).mean(dim=-1)


def score_all_before(weights):
    """That is the weight on all earlier tokens, not on the one before."""
    return weights.tril(-1).sum(dim=-1)[:, 1:].mean(dim=-1)


def score_wraps_round(weights):
    """For q = 0 the index q - 1 is -1, the last key: start at the second query."""
    queries = torch.arange(weights.shape[-1])
    return weights[:, queries, queries - 1].mean(dim=-1)


def score_heads_as_queries(weights):
    """Those are heads and queries."""
    return weights.diagonal(offset=-1, dim1=0, dim2=1).mean(dim=-1)


EXERCISES = (
    Exercise(
        "3.1",
        "nn.MultiheadAttention from its weights",
        torch_attention,
        packed_inputs,
        {
            "stacked read as interleaved": packed_read_per_head,
            "no in_proj_bias": packed_no_in_bias,
            "no bias of out_proj": packed_no_out_bias,
            "no bias at all": packed_no_bias,
            "out_weight used as (in, out)": packed_out_not_transposed,
            "one head over all features": packed_one_head,
            "length before batch": packed_length_first,
            "keys and values swapped": packed_swapped,
            "read as key, value, query": packed_key_value_query,
            "no scale": packed_no_scale,
            "√embed_dim": packed_sqrt_embed_dim,
            "reshape without transpose": packed_split_without_transpose,
            "merge without transpose": packed_merge_without_transpose,
            "no out_proj": (packed_no_output, packed_only_out_bias),
            "x as it came": packed_unchanged,
        },
    ),
    Exercise(
        "3.2",
        "A mask for nn.MultiheadAttention",
        torch_mask,
        mask_inputs,
        {
            "inverted mask": (mask_not_flipped, mask_head_major_not_flipped),
            "repeat instead of repeat_interleave": mask_head_major,
            "one mask per sentence": mask_not_repeated,
            "four axes": mask_four_axes,
            "float mask of ones": (mask_float_of_ones, mask_float_of_keep),
            "integer mask": mask_integer,
            "keep as it came": mask_unchanged,
        },
    ),
    Exercise(
        "3.3",
        "How much does a head read the previous token?",
        previous_token_score,
        score_inputs,
        {
            "the next token": score_next,
            "two tokens back": score_two_back,
            "all earlier tokens": score_all_before,
            "the first query wraps round": score_wraps_round,
            "a sum instead of a mean": score_sum,
            "the token itself": score_self,
            "mean over all queries": score_all_queries,
            "averaged heads": score_averaged,
            "averaged maps": score_averaged_maps,
            "one number per query": score_per_query,
            "diagonal of the first two axes": score_heads_as_queries,
        },
        gradients=False,
    ),
)
