"""Exercises of notebook 03: PyTorch's weights, its masks, a head's score, its null."""

import math

import torch
from torch import Tensor, nn

from utils.attention import (
    causal_mask,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from utils.exercises.engine import Exercise, randn
from utils.exercises.lesson_02 import merge_without_transpose, split_without_transpose

IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import (
    MultiHeadAttention,
    causal_mask,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
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
    # several and one sentence, one word, one head, head_dim = num_heads
    sizes = [(2, 6, 3, 4), (3, 4, 2, 6), (1, 5, 4, 4), (2, 1, 2, 3), (2, 4, 1, 6)]
    for seed, (batch, length, heads, dim) in enumerate(sizes):
        embed = heads * dim
        yield {
            # laid out length first in memory: .view() would not do
            "x": randn(length, batch, embed, seed=seed, dtype=dtype).transpose(0, 1),
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


def packed_scaled_twice(x, w, b, out_w, out_b, num_heads):
    """scaled_dot_product_attention divides by √d_k itself: once is enough."""
    return _packed(x, w, b, out_w, out_b, num_heads, scale=num_heads / x.shape[-1])


def packed_chunk_of_batch(x, w, b, out_w, out_b, num_heads):
    """chunk(3) cuts axis 0, the sentences; cut the features: chunk(3, dim=-1)."""
    q, k, v = (x @ w.mT + b).chunk(3)
    q, k, v = (split_heads(part, num_heads) for part in (q, k, v))
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ out_w.mT + out_b


def packed_chunk_of_batch_linear(x, w, b, out_w, out_b, num_heads):
    q, k, v = nn.functional.linear(x, w, b).chunk(3)
    q, k, v = (split_heads(part, num_heads) for part in (q, k, v))
    read = scaled_dot_product_attention(q, k, v)[0]
    return nn.functional.linear(merge_heads(read), out_w, out_b)


def packed_sqrt_embed_dim(x, *args):
    """A head has only head_dim features, so d_k is head_dim."""
    return _packed(x, *args, scale=x.shape[-1] ** -0.5)


def packed_split_without_transpose(*args):
    """Such heads are pieces of the sentence: each sees only a few tokens."""
    return _packed(*args, split=split_without_transpose)


def packed_merge_without_transpose(*args):
    """Features of different tokens end up in one row."""
    return _packed(*args, merge=merge_without_transpose)


def packed_both_without_transpose(*args):
    """The second undoes the first, but each head saw only a part of the words."""
    return _packed(*args, split=split_without_transpose, merge=merge_without_transpose)


def packed_sqrt_heads(x, w, b, out_w, out_b, num_heads):
    """The scores are divided by √d_k, the root of a head's features."""
    return _packed(x, w, b, out_w, out_b, num_heads, scale=num_heads**-0.5)


def _loaded(x, w, b, out_w, out_b, num_heads):
    layer = nn.MultiheadAttention(
        x.shape[-1], num_heads, batch_first=True, dtype=x.dtype
    )
    names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
    layer.load_state_dict(dict(zip(names, (w, b, out_w, out_b), strict=True)))
    return layer


def packed_module(x, *args):
    """load_state_dict copies numbers, so no gradient arrives at the weights you got."""
    return _loaded(x, *args)(x, x, x)[0]


def packed_module_no_grad(x, *args):
    with torch.no_grad():
        return _loaded(x, *args).eval()(x, x, x)[0]


def packed_module_single(x, w, b, out_w, out_b, num_heads):
    layer = nn.MultiheadAttention(x.shape[-1], num_heads, batch_first=True)
    names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
    layer.load_state_dict(dict(zip(names, (w, b, out_w, out_b), strict=True)))
    return layer(x, x, x)[0]


def packed_module_length_first(x, w, b, out_w, out_b, num_heads):
    """batch_first=False is the default, and load_state_dict copies: no gradient."""
    layer = nn.MultiheadAttention(x.shape[-1], num_heads, dtype=x.dtype)
    names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
    layer.load_state_dict(dict(zip(names, (w, b, out_w, out_b), strict=True)))
    return layer(x, x, x)[0]


def packed_split_before_projecting(x, w, b, out_w, out_b, num_heads):
    """Each head must see all features of x; the projection decides what it keeps."""
    n, dim = x.shape[-1], x.shape[-1] // num_heads
    parts = []
    for which in range(3):
        rows = w[which * n : (which + 1) * n].unflatten(0, (num_heads, dim))
        blocks = torch.stack(
            [rows[h, :, h * dim : (h + 1) * dim] for h in range(num_heads)]
        )
        bias = b[which * n : (which + 1) * n].view(num_heads, 1, dim)
        parts.append(split_heads(x, num_heads) @ blocks.mT + bias)
    read = scaled_dot_product_attention(*parts)[0]
    return merge_heads(read) @ out_w.mT + out_b


def packed_in_not_transposed(x, w, b, out_w, out_b, num_heads):
    """Stacked means one third below the other: cut the rows, axis 0."""
    n = x.shape[-1]
    third = w.view(n, 3 * n).chunk(3, dim=1)
    parts = (x @ m.mT + c for m, c in zip(third, b.chunk(3), strict=True))
    q, k, v = (split_heads(part, num_heads) for part in parts)
    read = scaled_dot_product_attention(q, k, v)[0]
    return merge_heads(read) @ out_w.mT + out_b


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


def packed_in_as_in_out(x, w, b, out_w, out_b, num_heads):
    """nn.Linear stores (out, in): write x @ in_proj_weight.T."""
    q, k, v = (split_heads(part, num_heads) for part in (x @ w + b).chunk(3, dim=-1))
    read = scaled_dot_product_attention(q, k, v)[0]
    return merge_heads(read) @ out_w.mT + out_b


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


def torch_mask(attention_mask: Tensor, num_heads: int) -> Tensor:
    """The reference: words (batch, L) and causal, as blocked (batch * heads, L, L)."""
    words = attention_mask.bool()[:, None, :]  # (batch, 1, keys), True = may be read
    keep = words & causal_mask(attention_mask.shape[-1], device=attention_mask.device)
    return ~keep.repeat_interleave(num_heads, dim=0)


def mask_inputs(dtype):
    """Sentences with padding on the right, on the left, in all places and in none."""
    rows = [[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 0]]
    some = torch.tensor(rows)
    yield {"attention_mask": some[:2], "num_heads": 3}
    yield {"attention_mask": some[1:].T.contiguous().T, "num_heads": 2}
    yield {"attention_mask": torch.tensor([[0, 0, 0], [1, 1, 0]]), "num_heads": 2}
    yield {"attention_mask": some[:, :2], "num_heads": 4}  # as many heads as sentences
    yield {"attention_mask": some[:1], "num_heads": 1}
    yield {"attention_mask": torch.ones(1, 1, dtype=torch.long), "num_heads": 2}
    yield {"attention_mask": torch.ones(5, 5, dtype=torch.long), "num_heads": 2}


def _mask(
    attention_mask, num_heads, *,
    words=lambda m: m.bool()[:, None, :],
    causal=causal_mask,
    combined=torch.logical_and,
    flipped=torch.logical_not,
):  # fmt: skip
    """Every mistake below replaces one step of this."""
    keep = combined(words(attention_mask), causal(attention_mask.shape[-1]))
    return flipped(keep).repeat_interleave(num_heads, dim=0)


def _later(length):
    return ~causal_mask(length)


def _same(mask):
    return mask


def _infinite(keep):
    return torch.zeros(keep.shape).masked_fill(~keep, -math.inf)


def mask_bool_alone(attention_mask, num_heads):
    """1 is a word, and True means blocked: the words got weight 0, not the padding."""
    return _mask(
        attention_mask, num_heads,
        causal=_later, combined=torch.logical_or, flipped=_same,
    )  # fmt: skip


def mask_bool_alone_not_causal(attention_mask, num_heads):
    length = attention_mask.shape[-1]
    words = attention_mask.bool()[:, None].expand(-1, length, -1)
    return words.repeat_interleave(num_heads, dim=0)


def mask_not_flipped(attention_mask, num_heads):
    """There True means blocked; here it means may be read."""
    return _mask(attention_mask, num_heads, flipped=_same)


def mask_causal_not_flipped(attention_mask, num_heads):
    """The padding is blocked, but so is the past: causal_mask says what may be read."""
    return _mask(attention_mask, num_heads, causal=_later)


def mask_only_where_both(attention_mask, num_heads):
    """A key is blocked if it is padding *or* later: of blocked masks take |, not &."""
    return _mask(attention_mask, num_heads, combined=torch.logical_or)


def mask_tilde_on_integers(attention_mask, num_heads):
    """~1 is -2 and ~0 is -1: of integers, both are True. Make it boolean first."""
    return _mask(attention_mask, num_heads, words=lambda m: ~(~m).bool()[:, None, :])


def mask_tilde_left_integer(attention_mask, num_heads):
    later = ~causal_mask(attention_mask.shape[-1])
    return (~attention_mask[:, None] | later).repeat_interleave(num_heads, dim=0)


def mask_no_query_axis(attention_mask, num_heads):
    """(batch, L) needs an axis for the queries: attention_mask[:, None, :]."""
    later = ~causal_mask(attention_mask.shape[-1])
    return ((attention_mask == 0) | later).repeat_interleave(num_heads, dim=0)


def mask_no_query_axis_of_keep(attention_mask, num_heads):
    keep = attention_mask.bool() & causal_mask(attention_mask.shape[-1])
    return ~keep.repeat_interleave(num_heads, dim=0)


def mask_of_queries(attention_mask, num_heads):
    """Padding is hidden as a *key*: its column is blocked, not its row."""
    return _mask(attention_mask, num_heads, words=lambda m: m.bool()[:, :, None])


def mask_both_axes(attention_mask, num_heads):
    """Padding is hidden as a key. As a query, too, and its row becomes NaN."""
    return _mask(
        attention_mask, num_heads, words=lambda m: (m[:, None] * m[:, :, None]).bool()
    )


def mask_not_causal(attention_mask, num_heads):
    """Every word still reads the words after it."""
    return _mask(
        attention_mask, num_heads,
        causal=lambda n: torch.ones(n, n, dtype=torch.bool),
    )  # fmt: skip


def mask_no_padding(attention_mask, num_heads):
    """The padding is still read: nothing came from attention_mask."""
    return _mask(attention_mask, num_heads, words=lambda m: m[:, None, :] == m[:, None])


def mask_empty_rows_opened(attention_mask, num_heads):
    """A row with nothing to read stays all blocked; only its loss is left out later."""
    blocked = torch_mask(attention_mask, num_heads)
    return blocked & ~blocked.all(dim=-1, keepdim=True)


def mask_empty_rows_read_themselves(attention_mask, num_heads):
    blocked = torch_mask(attention_mask, num_heads)
    itself = torch.eye(attention_mask.shape[-1], dtype=torch.bool)
    return blocked & ~(blocked.all(dim=-1, keepdim=True) & itself)


def mask_without_diagonal(attention_mask, num_heads):
    """A word may read itself: block from the first diagonal above, triu(1)."""
    return _mask(
        attention_mask, num_heads,
        causal=lambda n: torch.ones(n, n, dtype=torch.bool).tril(-1),
    )  # fmt: skip


def mask_head_major(attention_mask, num_heads):
    """Row n * heads + h must belong to sentence n: use repeat_interleave."""
    return _mask(attention_mask, 1).repeat(num_heads, 1, 1)


def mask_not_repeated(attention_mask, num_heads):
    """PyTorch wants one per sentence and head."""
    return _mask(attention_mask, 1)


def mask_four_axes(attention_mask, num_heads):
    """PyTorch wants (batch * heads, L, L)."""
    return _mask(attention_mask, 1)[:, None].repeat(1, num_heads, 1, 1)


def mask_float_of_ones(attention_mask, num_heads):
    """A float mask is added to the scores: 1.0 hides nothing. Return bool."""
    return _mask(attention_mask, num_heads).float()


def mask_float_of_keep(attention_mask, num_heads):
    return _mask(attention_mask, num_heads, flipped=_same).float()


def mask_integer(attention_mask, num_heads):
    """PyTorch refuses integer masks: return bool."""
    return _mask(attention_mask, num_heads).int()


def mask_integer_long(attention_mask, num_heads):
    return _mask(attention_mask, num_heads).long()


def mask_additive(attention_mask, num_heads):
    """It would do the same, but boolean is asked: True = blocked."""
    return _mask(attention_mask, num_heads, flipped=_infinite)


def mask_additive_finite(attention_mask, num_heads):
    return _mask(attention_mask, num_heads, flipped=_infinite).clamp(min=-1e9)


def mask_only_padding(attention_mask, num_heads):
    """That is a key_padding_mask; asked is attn_mask, with the causal one in it."""
    return attention_mask == 0


def mask_only_padding_repeated(attention_mask, num_heads):
    return (attention_mask == 0).repeat_interleave(num_heads, dim=0)


def mask_unchanged(attention_mask, num_heads):
    """It must be flipped, joined with the causal mask, repeated for every head."""
    return attention_mask


# --- 3.3 a head's score -----------------------------------------------------------


def previous_token_score(weights: Tensor) -> Tensor:
    """The reference: weights (heads, L, L) -> (heads,), mean of weights[h, q, q - 1].

    The first query has no previous token and is left out.
    """
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def score_inputs(dtype):
    sizes = [(3, 5), (4, 4), (2, 8), (1, 6), (5, 2)]
    for seed, (heads, length) in enumerate(sizes):
        weights = randn(heads, length, length, seed=seed, dtype=dtype).softmax(dim=-1)
        yield {"weights": weights}
    sharp = (50 * randn(3, 5, 5, seed=5, dtype=dtype)).softmax(dim=-1)
    yield {"weights": sharp.transpose(0, 1).contiguous().transpose(0, 1)}


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


def _hits(weights):
    """Whether the favourite key of each query but the first is the one before it."""
    before = torch.arange(weights.shape[-1] - 1)
    return (weights.argmax(dim=-1)[:, 1:] == before).to(weights.dtype)


def score_share_of_favourites(weights):
    """How often it is the favourite says nothing of how much: take the mean weight."""
    return _hits(weights).mean(dim=-1)


def score_share_of_favourites_single(weights):
    return score_share_of_favourites(weights).float()


def score_count_of_favourites(weights):
    return _hits(weights).sum(dim=-1)


def score_count_of_favourites_whole(weights):
    return _hits(weights).long().sum(dim=-1)


def score_share_over_all_queries(weights):
    return _hits(weights).sum(dim=-1) / weights.shape[-1]


def score_best_query(weights):
    """The largest weight on the previous token is that of one query: take the mean."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).amax(dim=-1)


def score_heads_as_queries(weights):
    """Those are heads and queries."""
    return weights.diagonal(offset=-1, dim1=0, dim2=1).mean(dim=-1)


# --- 3.4 a null that is as sharp --------------------------------------------------


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy of each row of weights, in nats: 0 = sees one key only."""
    return torch.special.entr(weights).sum(dim=-1)


def sharpened(scores: Tensor, target: float) -> Tensor:
    """The reference: weights softmax(gain * scores), one gain for each head.

    scores (heads, L, L); the gain of a head is the number above 0 for which the entropy
    of its weights, averaged over the queries, is `target`.
    """
    return _searched(scores, lambda w: entropy(w).mean(dim=-1)[:, None, None], target)


def _searched(scores, measure, target, log_range=20.0):
    """Halve an interval of log gains: the larger the gain, the smaller the entropy."""
    low = torch.full_like(measure(scores.softmax(dim=-1)), -log_range)
    high = -low
    for _ in range(32):
        middle = (low + high) / 2
        too_flat = measure((middle.exp() * scores).softmax(dim=-1)) > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return (middle.exp() * scores).softmax(dim=-1)


def sharpened_inputs(dtype):
    """Scores in single precision: a search need not be better than five digits."""
    if dtype != torch.float32:
        return
    sizes = [(3, 5, 1.0, 1), (2, 4, 1.3, 3), (1, 6, 0.3, 0.5), (4, 8, 1.9, 40)]
    for seed, (heads, length, target, factor) in enumerate(sizes):
        scores = randn(heads, length, length, seed=seed, dtype=torch.float32) * factor
        yield {"scores": scores, "target": target}
    turned = randn(3, 7, 7, seed=4, dtype=torch.float32).mT
    yield {"scores": turned + 100, "target": 0.8}  # neither contiguous nor near 0
    # as on the page: close ties, so gains above 100,000, and most weights exactly 0
    small = randn(4, 13, 13, seed=5, dtype=torch.float32) * 3e-4
    yield {"scores": small, "target": 0.0023}


def _mean_entropy(weights):
    return entropy(weights).mean(dim=-1)[:, None, None]


def sharpened_one_gain(scores, target):
    """Every head is to have this entropy, not only their mean: one gain for each."""
    return _searched(scores, lambda w: entropy(w).mean().view(1, 1, 1), target)


def sharpened_by_query(scores, target):
    """That is one gain for each query; a head has one, and its queries differ."""
    return _searched(scores, lambda w: entropy(w)[..., None], target)


def sharpened_bits(scores, target):
    """The target is in nats: use the natural logarithm."""
    return _searched(scores, _mean_entropy, target * math.log(2))


def sharpened_sum(scores, target):
    """The entropy is averaged over the queries, not added up."""
    return _searched(scores, lambda w: _mean_entropy(w) * w.shape[-1], target)


def sharpened_of_mean_row(scores, target):
    """Average the entropies of the rows; the average row is flatter than they are."""
    return _searched(scores, lambda w: entropy(w.mean(dim=-2))[:, None, None], target)


def sharpened_over_queries(scores, target):
    """Each row (the last axis) sums to 1; here the columns do."""
    return _searched(scores.mT, _mean_entropy, target).mT


def sharpened_nan(scores, target):
    """0 · ln 0 is NaN, no comparison with NaN is true, and the search goes astray."""

    def measure(w):
        return (w * w.log()).sum(dim=-1).mean(dim=-1)[:, None, None]

    low = torch.full_like(scores[:, :1, :1], -20.0)
    high = -low
    for _ in range(32):
        middle = (low + high) / 2
        too_sharp = -measure((middle.exp() * scores).softmax(dim=-1)) < target
        low, high = low.where(too_sharp, middle), middle.where(too_sharp, high)
    return (middle.exp() * scores).softmax(dim=-1)


def sharpened_nan_downwards(scores, target):
    low = torch.full_like(scores[:, :1, :1], -20.0)
    high = -low
    for _ in range(40):
        middle = (low + high) / 2
        weights = (middle.exp() * scores).softmax(dim=-1)
        entropies = -(weights * weights.log()).sum(dim=-1)
        too_flat = entropies.mean(dim=-1)[:, None, None] > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return weights


def sharpened_one_hot(scores, target):
    favourite = scores.argmax(dim=-1, keepdim=True)
    return torch.zeros_like(scores).scatter(-1, favourite, 1.0)


def _up_to(largest, scores, target):
    low = torch.zeros_like(scores[:, :1, :1])
    high = low + largest
    for _ in range(60):
        middle = (low + high) / 2
        too_flat = _mean_entropy((middle * scores).softmax(dim=-1)) > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return (middle * scores).softmax(dim=-1)


def sharpened_up_to_100(scores, target):
    """Some gains lie beyond your interval: search the logarithm, from -20 to 20."""
    return _up_to(100.0, scores, target)


def sharpened_up_to_20(scores, target):
    return _up_to(20.0, scores, target)


def sharpened_up_to_1000(scores, target):
    return _up_to(1000.0, scores, target)


def sharpened_up_to_10_000(scores, target):
    return _up_to(10_000.0, scores, target)


def sharpened_short_logs(scores, target):
    return _searched(scores, _mean_entropy, target, log_range=10.0)


def sharpened_shorter_logs(scores, target):
    return _searched(scores, _mean_entropy, target, log_range=5.0)


def _wrong_half(scores, target, log_range):
    low = torch.full_like(scores[:, :1, :1], -log_range)
    high = -low
    for _ in range(40):
        middle = (low + high) / 2
        too_flat = _mean_entropy((middle.exp() * scores).softmax(dim=-1)) > target
        low, high = low.where(too_flat, middle), middle.where(too_flat, high)
    return (middle.exp() * scores).softmax(dim=-1)


def sharpened_wrong_half(scores, target):
    """Weights that are too flat need a larger gain: keep the upper half."""
    return _wrong_half(scores, target, 20.0)


def sharpened_wrong_half_short(scores, target):
    return _wrong_half(scores, target, 10.0)


def sharpened_never_flattened(scores, target):
    """A head may have to become flatter: the gain may be below 1."""
    right, plain = sharpened(scores, target), scores.softmax(dim=-1)
    return right.where(_mean_entropy(plain) > target, plain)


def sharpened_not_at_all(scores, target):
    """Nothing changed; a number *added* to all scores changes nothing. Multiply."""
    return scores.softmax(dim=-1)


def sharpened_by_target(scores, target):
    """The target is an entropy, not a gain: search the gain that leads to it."""
    return (scores * target).softmax(dim=-1)


def sharpened_by_inverse_target(scores, target):
    return (scores / target).softmax(dim=-1)


def sharpened_by_ratio(scores, target):
    """Entropy is not proportional to the gain: search, and compare."""
    weights = scores.softmax(dim=-1)
    return (scores * _mean_entropy(weights) / target).softmax(dim=-1)


def _gain(scores, target):
    weights = sharpened(scores, target).double().clamp_min(1e-30).log()
    spread = scores.double() - scores.double().mean(dim=-1, keepdim=True)
    centred = weights - weights.mean(dim=-1, keepdim=True)
    return ((centred * spread).sum((-1, -2)) / (spread**2).sum((-1, -2))).float()


def sharpened_gain(scores, target):
    """Those are the gains; return softmax(gain * scores)."""
    return _gain(scores, target)


def sharpened_scores(scores, target):
    """Those are the scores; take their softmax."""
    return scores * _gain(scores, target)[:, None, None]


def sharpened_weights_times_gain(scores, target):
    """Multiply the scores, before the softmax: such rows do not sum to 1."""
    return scores.softmax(dim=-1) * _gain(scores, target)[:, None, None]


def sharpened_power(scores, target):
    """Powers of weights must be divided by their sum: rows sum to 1."""
    return scores.softmax(dim=-1) ** _gain(scores, target)[:, None, None]


SHOWN = {  # what the page shows to be broken -> the exercise and the mistake
    "attn_mask=keep, average_attn_weights=False": ("3.2", "inverted mask"),
    "attn_mask=keep.float()": ("3.2", "float mask of ones"),
    "attn_mask=keep.int()": ("3.2", "integer mask"),
    "(3, 2, 5, 5)": ("3.2", "four axes"),
    "(3, 5, 5)": ("3.2", "one mask per sentence"),
    "`.bool()` alone": ("3.2", ".bool() alone"),
    "`~attention_mask` on integers": ("3.2", "~ on integers"),
    "`&` between two *blocked* masks": ("3.2", "and instead of or"),
    "`repeat` puts": ("3.2", "repeat instead of repeat_interleave"),
    '`.float()` turns "blocked"': ("3.2", "float mask of ones"),
    "*Split into heads first": ("3.1", "stacked read as interleaved"),
    "*The biases forgotten*": ("3.1", "no bias at all"),
    "*A module built inside": ("3.1", "a module built inside and loaded"),
    "length_first = nn.MultiheadAttention(8, 2)": ("3.1", "length before batch"),
    "favourite == torch.arange(12)": ("3.3", "share of favourites"),
    "*One gain for all heads*": ("3.4", "one gain for all heads"),
    "*One gain per query*": ("3.4", "one gain per query"),
    "`-(w * w.log()).sum(-1)`": ("3.4", "0 · ln 0"),
    "*Never below 1*": ("3.4", "gain never below 1"),
}

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
            "in_proj cut along the wrong axis": packed_in_not_transposed,
            "in_proj_weight used as (in, out)": packed_in_as_in_out,
            "one head over all features": packed_one_head,
            "split before projecting": packed_split_before_projecting,
            "length before batch": packed_length_first,
            "keys and values swapped": packed_swapped,
            "read as key, value, query": packed_key_value_query,
            "no scale": packed_no_scale,
            "scaled twice": packed_scaled_twice,
            "sentences cut instead of features": (
                packed_chunk_of_batch,
                packed_chunk_of_batch_linear,
            ),
            "√embed_dim": packed_sqrt_embed_dim,
            "√num_heads": packed_sqrt_heads,
            "reshape without transpose": packed_split_without_transpose,
            "merge without transpose": packed_merge_without_transpose,
            "both reshapes without transpose": packed_both_without_transpose,
            "a module built inside and loaded": (
                packed_module,
                packed_module_no_grad,
                packed_module_single,
            ),
            "a module built inside, length first": packed_module_length_first,
            "no out_proj": (packed_no_output, packed_only_out_bias),
            "x as it came": packed_unchanged,
        },
    ),
    Exercise(
        "3.2",
        "A tokenizer's mask for nn.MultiheadAttention",
        torch_mask,
        mask_inputs,
        {
            ".bool() alone": (mask_bool_alone, mask_bool_alone_not_causal),
            "inverted mask": mask_not_flipped,
            "causal mask not flipped": mask_causal_not_flipped,
            "and instead of or": mask_only_where_both,
            "~ on integers": (mask_tilde_on_integers, mask_tilde_left_integer),
            "no axis for the queries": (
                mask_no_query_axis,
                mask_no_query_axis_of_keep,
            ),
            "queries hidden instead of keys": mask_of_queries,
            "queries hidden, too": mask_both_axes,
            "not causal": mask_not_causal,
            "padding not hidden": mask_no_padding,
            "empty rows opened": (
                mask_empty_rows_opened,
                mask_empty_rows_read_themselves,
            ),
            "without the diagonal": mask_without_diagonal,
            "repeat instead of repeat_interleave": mask_head_major,
            "one mask per sentence": mask_not_repeated,
            "four axes": mask_four_axes,
            "float mask of ones": (mask_float_of_ones, mask_float_of_keep),
            "integer mask": (mask_integer, mask_integer_long),
            "additive mask": (mask_additive, mask_additive_finite),
            "only the padding": (mask_only_padding, mask_only_padding_repeated),
            "attention_mask as it came": mask_unchanged,
        },
        gradients=False,
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
            "share of favourites": (
                score_share_of_favourites,
                score_share_of_favourites_single,
                score_count_of_favourites,
                score_count_of_favourites_whole,
                score_share_over_all_queries,
            ),
            "the best query": score_best_query,
            "averaged heads": score_averaged,
            "averaged maps": score_averaged_maps,
            "one number per query": score_per_query,
            "diagonal of the first two axes": score_heads_as_queries,
        },
        gradients=False,
    ),
    Exercise(
        "3.4",
        "A null that is as sharp",
        sharpened,
        sharpened_inputs,
        {
            "one gain for all heads": sharpened_one_gain,
            "one gain per query": sharpened_by_query,
            "bits": sharpened_bits,
            "entropies added up": sharpened_sum,
            "entropy of the mean row": sharpened_of_mean_row,
            "softmax over the queries": sharpened_over_queries,
            "0 · ln 0": (
                sharpened_nan,
                sharpened_nan_downwards,
                sharpened_one_hot,
            ),
            "the search ends too soon": (
                sharpened_up_to_100,
                sharpened_up_to_20,
                sharpened_up_to_1000,
                sharpened_up_to_10_000,
                sharpened_short_logs,
                sharpened_shorter_logs,
            ),
            "the wrong half kept": (sharpened_wrong_half, sharpened_wrong_half_short),
            "gain never below 1": sharpened_never_flattened,
            "softmax of the scores": sharpened_not_at_all,
            "target as gain": (sharpened_by_target, sharpened_by_inverse_target),
            "gain by rule of three": sharpened_by_ratio,
            "the gains": sharpened_gain,
            "scores instead of weights": sharpened_scores,
            "weights multiplied": sharpened_weights_times_gain,
            "powers not normalised": sharpened_power,
        },
        gradients=False,
    ),
)
