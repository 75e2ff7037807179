"""Masks: which keys a query may attend to, and how a mask is read.

One convention everywhere. A boolean mask says True where a key MAY BE READ; a floating
mask is added to the scores (0 = read, -inf = do not read). A mask with two axes is
always (queries, keys), as in PyTorch.
"""

import math

import torch
from torch import Tensor

from utils.checks import check_size, check_tensor, check_whole, holds, shape_of


def causal_mask(
    query_length: int, key_length: int | None = None, *, device=None
) -> Tensor:
    """Return the mask under which each query sees its own position and earlier ones.

    Lower-right aligned: the last query sees every key, as it must when the queries are
    the newest part of a longer text. (`F.scaled_dot_product_attention(is_causal=True)`
    aligns upper-left.) With more queries than keys the first queries see nothing.

    Returns bool (query_length, key_length), True = may be read.
    Source: Vaswani et al. 2017, section 3.2.3.

    >>> causal_mask(2, 4).int().tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    key_length = query_length if key_length is None else key_length
    every_pair = torch.ones(query_length, key_length, dtype=torch.bool, device=device)
    return every_pair.tril(key_length - query_length)


def padding_mask(lengths, max_length: int | None = None) -> Tensor:
    """Return the mask that hides the padding behind sequences of different lengths.

    lengths: whole numbers (batch,), a list or a tensor; max_length: the padded length
    (default: the longest; under `torch.compile` and `vmap` it must be given).
    Returns bool (batch, 1, 1, max_length), True = a real token. It broadcasts over
    heads and queries; combine it with a causal mask by `&`.

    >>> padding_mask([3, 1]).int()[:, 0, 0].tolist()
    [[1, 1, 1], [1, 0, 0]]
    """
    lengths = torch.as_tensor(lengths)
    if lengths.dim() != 1:
        raise ValueError(f"lengths have shape {shape_of(lengths)}; give (batch,).")
    if len(lengths):
        check_whole("lengths", lengths)
    if max_length is None:
        max_length = max([0, *lengths.tolist()])
    check_size("max_length", max_length)
    if not holds((lengths >= 0) & (lengths <= max_length)):
        raise ValueError(
            f"lengths are {lengths.tolist()}; each must be between 0 and {max_length=}."
        )
    positions = torch.arange(max_length, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def as_added(mask, bias, query: Tensor, key: Tensor, dtype: torch.dtype):
    """Return (what is added to the scores, which queries have nothing to attend to).

    Both are None without mask and bias. To the scores of such an empty row 0 is added,
    so that its softmax and its gradient are finite; the caller sets its weights to 0.
    """
    if mask is None and bias is None:
        return None, None
    shape = (*query.shape[:-1], key.shape[-2])  # of the scores: (..., queries, keys)
    terms = []
    for name, x in (("mask", mask), ("bias", bias)):
        if x is not None:
            check_mask(name, x, shape, query.device)
            x = torch.where(x, 0.0, -math.inf) if x.dtype == torch.bool else x
            terms.append(x.to(dtype))
    added = sum(terms[1:], start=terms[0])
    if (bias is not None or mask.dtype != torch.bool) and not holds(added < math.inf):
        raise ValueError(f"mask or bias contains NaN or +inf (in {dtype}).")
    empty = (added == -math.inf).all(dim=-1, keepdim=True)  # (..., queries, 1)
    return added.masked_fill(empty, 0.0), empty


def check_mask(name: str, mask, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuse a mask or bias that does not fit scores of this shape."""
    check_tensor(name, mask)
    boolean = mask.dtype == torch.bool and name != "bias"
    if not boolean and not mask.is_floating_point():
        kinds = "" if name == "bias" else "bool (True = may be read), e.g. .bool(), or "
        raise TypeError(f"{name} is {mask.dtype}; give {kinds}floating point (added).")
    if mask.device != device:
        raise ValueError(f"{name} is on {mask.device} but the query is on {device}.")
    axes = list(zip(mask.shape, shape))
    fits = mask.dim() == len(shape) and all(size in (1, full) for size, full in axes)
    if not fits and shape_of(mask) != shape[-2:]:
        raise ValueError(
            f"{name} has shape {shape_of(mask)} but the scores have shape {shape}. "
            f"Give (queries, keys) = {shape[-2:]}, or one size per axis of the scores, "
            "with 1 for 'the same for all': a padding mask (batch, keys) is written as "
            f"{name}[:, None, None, :], one per sequence (batch, queries, keys) as "
            f"{name}[:, None], one per head (heads, queries, keys) as {name}[None]."
        )
