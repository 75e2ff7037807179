"""Masks: which keys a query may attend to, and how a mask is read.

One convention everywhere. A boolean mask says True where a key MAY BE ATTENDED TO; a
floating mask is added to the scores (0 = attend, -inf = do not). A mask has two axes,
(queries, keys), or one for each axis of the scores, such as (batch, heads, queries,
keys), with 1 for "the same for all".
"""

import math

import torch
from torch import Tensor


def causal_mask(query_length: int, key_length=None, *, device=None) -> Tensor:
    """Return the mask under which each query sees its own position and earlier ones.

    Lower-right aligned: the last query sees every key, as it must when the queries are
    the newest part of a longer text. (`F.scaled_dot_product_attention(is_causal=True)`
    aligns upper-left.) With more queries than keys the first queries see nothing.

    Returns bool (query_length, key_length), by default key_length = query_length.
    Source: Vaswani et al. 2017, section 3.2.3.

    >>> causal_mask(2, 4).int().tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    key_length = query_length if key_length is None else key_length
    every_pair = torch.ones(query_length, key_length, dtype=torch.bool, device=device)
    return every_pair.tril(key_length - query_length)


def relative_positions(query_length: int, key_length: int, *, device=None) -> Tensor:
    """Return key position - query position, int64 (queries, keys).

    Negative: the key is earlier. The last query stands at the last key.

    >>> relative_positions(2, 4).tolist()
    [[-2, -1, 0, 1], [-3, -2, -1, 0]]
    """
    keys = torch.arange(key_length, device=device)
    queries = torch.arange(query_length, device=device) + (key_length - query_length)
    return keys - queries[:, None]


def padding_mask(lengths, max_length: int | None = None) -> Tensor:
    """Return the mask that hides the padding behind sequences of different lengths.

    lengths: whole numbers (batch,), a list or a tensor; max_length: the padded length
    (default: the longest; under `torch.compile` and `vmap` it must be given).
    Returns bool (batch, 1, 1, max_length), True = a real token;
    combine it with a causal mask by `&`.

    >>> padding_mask([3, 1]).int()[:, 0, 0].tolist()
    [[1, 1, 1], [1, 0, 0]]
    """
    lengths = torch.as_tensor(lengths)
    whole = lengths.dtype != torch.bool and not lengths.is_floating_point()
    if len(lengths) and not whole:  # a mask in the place of lengths would run, too
        raise TypeError(f"lengths: {lengths.dtype}; give whole numbers.")
    if max_length is None:
        max_length = max([0, *lengths.tolist()])
    if not holds((lengths >= 0) & (lengths <= max_length)):
        given = f"lengths are {lengths.tolist()}"
        raise ValueError(f"{given}; each must be between 0 and {max_length=}.")
    positions = torch.arange(max_length, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def as_added(mask: Tensor | None, bias: Tensor | None, scores: tuple, dtype):
    """Return mask and bias as one tensor that is added to the scores, or None.

    scores: their shape, (..., queries, keys). Boolean masks become 0 and -inf.
    """
    added = None
    for x in (mask, bias):
        if x is None:
            continue
        _check_fit(x, scores)
        x = torch.where(x, 0.0, -math.inf) if x.dtype == torch.bool else x
        added = x.to(dtype) if added is None else added + x.to(dtype)
    return added


def visible_keys(mask: Tensor | None, scores: tuple, *, device=None) -> Tensor:
    """Return a boolean mask in the full shape of the scores, True = visible.

    scores: their shape, (..., queries, keys). mask: boolean; None = every key is.

    >>> visible_keys(torch.tensor([[True, False]]), (2, 2))
    tensor([[ True, False],
            [ True, False]])
    """
    if mask is None:
        return torch.ones(scores, dtype=torch.bool, device=device)
    _check_fit(mask, scores)
    if mask.dtype != torch.bool:
        example = "e.g. mask > -math.inf, True = may be attended to"
        raise TypeError(f"mask is {mask.dtype}; give bool, {example}.")
    return mask.expand(scores)


def _check_fit(mask: Tensor, scores: tuple) -> None:
    """Refuse a mask that would be broadcast to the scores in another sense."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"mask is {mask.dtype}; give bool, True = may be attended to.")
    fits = all(size in (1, full) for size, full in zip(mask.shape[::-1], scores[::-1]))
    if mask.dim() not in (2, len(scores)) or not fits:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} but the scores have shape "
            f"{tuple(scores)}. Give (queries, keys), or one size per axis of them, "
            "with 1 for 'the same for all': a padding mask (batch, keys) is written as "
            "mask[:, None, None, :], one per sequence (batch, queries, keys) as "
            "mask[:, None], one per head (heads, queries, keys) as mask[None]."
        )


def holds(condition: Tensor) -> bool:
    """Return whether a boolean tensor is true everywhere, as far as one can look now.

    While a graph is traced, and under vmap, one cannot look: the answer is True.
    """
    if torch.compiler.is_compiling():
        return True
    try:
        return bool(condition.all())
    except RuntimeError:  # vmap
        return True
