"""Scores of attention heads: each is a function of the attention weights alone.

weights (batch, heads, queries, keys): the attention weights of one layer, as
    `record_attention` returns them. The row of each query sums to 1.
mask: the boolean mask that the model had, True = this key is visible to this query:
    (queries, keys), or one size per axis of (batch, 1, queries, keys), 1 for "the same
    for all". None = every key is visible.
queries: (batch, queries) bool, which queries count. By default every query counts that
    has a visible key and is not padding; in self-attention a position that is visible
    to no query is padding.

A score returns (batch, heads): for each sequence and head the mean over the queries
that count and for which it is defined. (The first token has no previous token.) It is
NaN in a sequence without such a query, so `.nanmean(0)` is the mean over sequences.
Most scores are weights, from 0 to 1. Scores that compare positions need self-attention:
query i and key i are the same token.
"""

import operator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.special import entr

from utils.attention import split_heads
from utils.masks import holds, relative_positions, visible_keys
from utils.recording import record_attention as record_attention  # offered here, too


def at_offset(weights: Tensor, offset: int, *, mask=None, queries=None) -> Tensor:
    """Return the weight (batch, heads) on the key `offset` positions after the query.

    Queries count for which this key exists and is visible.
    Source: Clark et al. 2019, section 3.1; Olsson et al. 2022, "previous token score".

    >>> at_offset(torch.eye(4)[None, None], 0)
    tensor([[1.]])
    """
    ahead = relative_positions(*weights.shape[-2:], device=weights.device)
    here = ahead == operator.index(offset)
    return _weight_on(here, weights, mask, queries, square=True)


def previous_token(weights: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return the weight (batch, heads) on the key before the query: see `at_offset`."""
    return at_offset(weights, -1, mask=mask, queries=queries)


def current_token(weights: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return the weight (batch, heads) on the query's own token: see `at_offset`."""
    return at_offset(weights, 0, mask=mask, queries=queries)


def first_token(weights: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return the weight (batch, heads) on the first token.

    Queries count that can attend to the first token and to another one. So under a
    causal mask query 0 does not count: its weight on itself is always 1.
    Source: Xiao et al. 2024, "attention sink"; Gu et al. 2025.

    >>> causal = torch.tensor([[True, False], [True, True]])
    >>> first_token(torch.tensor([[1.0, 0], [0.7, 0.3]])[None, None], mask=causal)
    tensor([[0.7000]])
    """
    weights, visible, counted = checked(weights, mask, queries)
    choice = visible[..., 0] & (visible.sum(-1) > 1)  # (batch, 1, queries)
    return _mean(weights[..., 0], counted & choice[:, 0])


def on_keys(weights: Tensor, keys: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return how much of its weight a query gives to some keys of your choice.

    keys: (batch, keys) bool, e.g. `ids == separator`, to find heads that attend to
        separators. Their weights are added up.
    Queries count that can attend to at least one of them. Returns (batch, heads).
    Source: Clark et al. 2019, section 3.2 ([CLS], [SEP], full stops).

    >>> marked = torch.tensor([[True, False, False, True]])
    >>> on_keys(torch.full((1, 1, 4, 4), 1 / 4), marked)
    tensor([[0.5000]])
    """
    _check_marks("keys", keys, (len(weights), weights.shape[-1]))
    return _weight_on(keys[:, None, None], weights, mask, queries)


def duplicate_token(weights: Tensor, ids: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return the weight (batch, heads) on earlier copies of the query's token.

    ids: (batch, length). The weights on all earlier copies are added up. Queries count
    whose token stands earlier, on a visible key.
    Source: Wang et al. 2023, "duplicate token heads".
    """
    copies = _earlier_copies(ids, weights)
    return _weight_on(copies, weights, mask, queries, square=True)


def induction(weights: Tensor, ids: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return the weight (batch, heads) on what followed earlier copies of the token.

    ids: (batch, length). The weights on all keys right after an earlier copy of the
    query's token are added up: a head that divides its weight among three of them does
    as much induction as one that attends to one alone.
    Queries count whose token stands earlier, with a visible key after it.
    Source: Olsson et al. 2022, appendix, "prefix matching".

    >>> weights = torch.eye(4).roll(-2, 1)[None, None]
    >>> induction(weights, torch.tensor([[5, 6, 7, 5]]))  # 6 followed the first 5
    tensor([[1.]])
    """
    after = F.pad(_earlier_copies(ids, weights), (1, -1))  # one key further on
    return _weight_on(after, weights, mask, queries, square=True)


def entropy(weights: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return the entropy (batch, heads) of the rows, in nats.

    It is 0 where one key has all the weight, log n where n keys share it equally.
    Source: Clark et al. 2019, section 3.3.

    >>> entropy(torch.full((1, 1, 4, 4), 1 / 4))  # log 4
    tensor([[1.3863]])
    """
    weights, _, counted = checked(weights, mask, queries)
    return _mean(entr(weights).sum(-1), counted)


def normalised_entropy(weights: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return the entropy (batch, heads) of the rows, divided by its largest value.

    That is the logarithm of the number of visible keys: the result is 1 where all of
    them have the same weight. Queries count that have at least two visible keys.
    """
    weights, visible, counted = checked(weights, mask, queries)
    choices = visible.sum(-1)  # (batch, 1, queries)
    largest = choices.to(weights.dtype).log()
    return _mean(entr(weights).sum(-1) / largest, counted & (choices > 1)[:, 0])


def js_divergence(weights: Tensor, *, mask=None, queries=None) -> Tensor:
    """Return the Jensen-Shannon divergence of each pair of heads, in nats.

    It is 0 where the two heads' rows are equal, log 2 where they have no key in common.
    The result (heads, heads) is its mean over the queries of a sequence, and then over
    sequences. For all layers give torch.cat(record_attention(...), dim=1).
    Source: Clark et al. 2019, section 6 (their code sums where this takes the mean).

    >>> js_divergence(torch.stack([torch.eye(2), torch.eye(2).flip(0)])[None])
    tensor([[0.0000, 0.6931],
            [0.6931, 0.0000]])
    """
    weights, _, counted = checked(weights, mask, queries)
    total = weights.new_zeros(weights.shape[1], weights.shape[1])
    for each, which in zip(weights, counted):  # all pairs at once would not fit a cache
        rows = each[:, which].flatten(1)  # (heads, queries * keys)
        own = entr(rows).sum(-1)  # (heads,)
        for i in range(len(rows)):
            middle = entr((rows[i] + rows[i + 1 :]) / 2).sum(-1)
            divergence = middle - (own[i] + own[i + 1 :]) / 2
            total[i, i + 1 :] += divergence / which.sum().clamp(min=1)
    return (total + total.mT).clamp(min=0) / counted.any(-1).sum()


def weighted_values(layer, value_input: Tensor, weights: Tensor) -> Tensor:
    """Return the length of the vector that each key adds to each query's output.

    A weight says how much a head attends to a key, not how much this key contributes.
    Its contribution is weight * value, after the head's part of out_proj.
    layer: a `MultiHeadAttention`.
    value_input (batch, keys, embed_dim): what the layer was given as value. weights
    (batch, heads, queries, keys): as it returned them; the result has their shape.
    Source: Kobayashi et al. 2020, "norm-based analysis".
    """
    batch, keys, _ = value_input.shape
    expected = (batch, layer.num_heads, weights.shape[-2], keys)
    if weights.shape != expected:
        given = f"weights have shape {tuple(weights.shape)}"
        raise ValueError(f"{given}; for layer and value_input it must be {expected}.")
    with torch.no_grad():
        values = split_heads(layer.value_proj(value_input), layer.num_kv_heads)
        values = values.repeat_interleave(layer.num_heads // layer.num_kv_heads, dim=1)
        out = layer.out_proj.weight.unflatten(1, (layer.num_heads, -1))
        # (batch, heads, keys, head_dim) @ (heads, head_dim, embed_dim)
        lengths = (values @ out.permute(1, 2, 0)).norm(dim=-1)  # (batch, heads, keys)
        return weights * lengths[:, :, None]


def checked(weights, mask, queries, *, square: bool = False):
    """Return (weights, visible (batch, 1, queries, keys), counted (batch, queries))."""
    batch, _, rows, columns = weights.shape
    if square and rows != columns:
        sizes = f"{rows} queries and {columns} keys"
        raise ValueError(f"weights have {sizes}; this score needs self-attention.")
    visible = visible_keys(mask, (batch, 1, rows, columns), device=weights.device)
    tolerance = 1e-4 if weights.dtype.itemsize >= 4 else 1e-2
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    _check_rows(weights, visible, tolerance)
    counted = visible.any(-1)[:, 0]  # (batch, queries): all that have a visible key
    if queries is not None:
        _check_marks("queries", queries, (batch, rows))
        counted = counted & queries
    elif rows == columns:
        counted = counted & visible.any(-2)[:, 0]  # the others are padding
    return weights, visible, counted


def _check_rows(weights: Tensor, visible: Tensor, tolerance: float) -> None:
    """Refuse rows that are not attention weights under this mask."""
    asked = visible.any(-1)  # (batch, 1, queries)
    if not holds((weights >= 0).all(-1) | ~asked):  # under vmap nothing is refused
        why = "If a query has no visible key, say so by mask=."
        raise ValueError(f"weights contain negative numbers or NaN. {why}")
    sums = weights.sum(-1).where(asked, 1)
    if not holds((sums - 1).abs() <= tolerance):
        found = f"between {sums.min():.3f} and {sums.max():.3f}, and not to 1"
        why = "Call model.eval()? Are rows and columns swapped? Is mask= missing?"
        raise ValueError(f"rows of weights sum to {found}. {why}")
    hidden = sums - weights.mul(visible).sum(-1).where(asked, 1)
    if not holds(hidden <= tolerance):
        found = f"a query has {hidden.max():.3f} of its weight on keys that mask= hides"
        raise ValueError(f"{found}; give the model's mask (True = a visible key).")


def _check_marks(name: str, marks: Tensor, expected: tuple[int, int]) -> None:
    """Refuse marks of queries or keys that would be broadcast, or are not bool."""
    if marks.dtype != torch.bool or marks.shape != expected:
        given = f"{name} is {marks.dtype} of shape {tuple(marks.shape)}"
        raise ValueError(f"{given}; give bool (batch, {name}) = {expected}.")


def _earlier_copies(ids: Tensor, weights: Tensor) -> Tensor:
    """Return where the key is an earlier copy of the query's token."""
    expected = (len(weights), weights.shape[-1])
    if ids.shape != expected:  # ids of one sequence would be broadcast
        wanted = f"give (batch, length) = {expected}"
        raise ValueError(f"ids have shape {tuple(ids.shape)}; {wanted}.")
    same = ids[:, None, :, None] == ids[:, None, None]  # (batch, 1, queries, keys)
    return same.tril(-1)


def _weight_on(keys: Tensor, weights, mask, queries, *, square=False) -> Tensor:
    """Return the mean weight on keys (batch, 1, queries, keys), of queries with any."""
    weights, visible, counted = checked(weights, mask, queries, square=square)
    keys = keys & visible
    return _mean(weights.mul(keys).sum(-1), counted & keys.any(-1)[:, 0])


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean (batch, heads) of values (batch, heads, queries) that count."""
    return values.where(counted[:, None], 0).sum(-1) / counted.sum(-1)[:, None]
