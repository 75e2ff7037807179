"""Masks: who may read whom, and how a mask is read.

One convention everywhere. A boolean mask says True where a key MAY BE READ; a floating
mask is added to the scores (0 = read, -inf = do not read).
"""

import math

import torch
from torch import Tensor

from utils.checks import NUMBER, check_size, holds, shape_of


def causal_mask(
    query_length: int, key_length: int | None = None, *, device=None
) -> Tensor:
    """Return the mask under which each query reads its own position and earlier ones.

    Lower-right aligned: the last query reads every key, as it must when the queries are
    the newest part of a longer text. (`F.scaled_dot_product_attention(is_causal=True)`
    aligns upper-left.) With more queries than keys the first queries read nothing.

    Returns bool (query_length, key_length), True = may be read.
    Source: Vaswani et al. 2017, section 3.2.3.

    >>> causal_mask(2, 4).int().tolist()
    [[1, 1, 1, 0], [1, 1, 1, 1]]
    """
    key_length = query_length if key_length is None else key_length
    check_size("query_length", query_length)
    check_size("key_length", key_length)
    every_pair = torch.ones(query_length, key_length, dtype=torch.bool, device=device)
    return every_pair.tril(key_length - query_length)


def padding_mask(lengths, max_length: int | None = None) -> Tensor:
    """Return the mask that hides the padding behind sentences of different lengths.

    lengths: integers (batch,), a list or a tensor; max_length: the padded length
    (default: the longest; under `torch.compile` and `vmap` it must be given).
    Returns bool (batch, 1, 1, max_length), True = a real token. It broadcasts over
    heads and queries; combine it with a causal mask by `&`.

    >>> padding_mask([3, 1]).int()[:, 0, 0].tolist()
    [[1, 1, 1], [1, 0, 0]]
    """
    if lengths is None or isinstance(lengths, NUMBER):
        raise TypeError(f"lengths is {lengths!r}; give one whole number per sentence.")
    lengths = torch.as_tensor(lengths)
    lengths = lengths.long() if lengths.numel() == 0 else lengths
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(
            f"lengths are {lengths.dtype}; give one whole number per sentence."
        )
    if lengths.dim() != 1:
        raise ValueError(f"lengths have shape {shape_of(lengths)}; give (batch,).")
    if max_length is None:
        max_length = int(lengths.max()) if len(lengths) else 0
        max_length = max(max_length, 0)
    check_size("max_length", max_length)
    if not holds((lengths >= 0) & (lengths <= max_length)):
        raise ValueError(
            f"lengths {lengths.tolist()} do not fit: each must be between 0 and "
            f"max_length={max_length}."
        )
    positions = torch.arange(max_length, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def as_added(
    mask: Tensor | None,
    bias: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor | None, Tensor | None]:
    """Return (what is added to scores of this shape, which queries read nothing).

    Both are None without mask and bias. The rows of queries with nothing to read are
    added as 0, so that their softmax and its gradient are finite; the caller zeroes
    what they read.
    Raises TypeError and ValueError for what does not fit or could be misread.
    """
    if mask is None and bias is None:
        return None, None
    added = None
    if mask is not None:
        check_mask("mask", mask, shape, device)
        check_not_ambiguous(mask, shape)
        added = _as_floating(mask, dtype)
    if bias is not None:
        check_mask("bias", bias, shape, device)
        added = bias.to(dtype) if added is None else added + bias.to(dtype)
    if (bias is not None or mask.dtype != torch.bool) and not holds(added < math.inf):
        given = " and ".join(
            name for name, x in (("mask", mask), ("bias", bias)) if x is not None
        )
        raise ValueError(
            f"{given} contains NaN or +inf (in {dtype}); what is added to the scores "
            "must be finite or -inf."
        )
    unreadable = (added == -math.inf).all(dim=-1, keepdim=True)  # (..., queries, 1)
    return added.masked_fill(unreadable, 0.0), unreadable


def check_mask(name: str, mask, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuse a mask or bias that does not fit scores of this shape."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} is a {type(mask).__name__}; give a torch.Tensor.")
    if mask.dtype == torch.bool and name == "bias":
        raise TypeError("bias is boolean; give it as mask=, or as floating point.")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name} is {mask.dtype}; give bool (True = may be read), "
            f"e.g. {name}.bool(), or floating point that is added to the scores."
        )
    if mask.device != device:
        raise ValueError(
            f"{name} is on {mask.device} but the query is on {device}; "
            "move it with .to()."
        )
    fits = mask.dim() == len(shape) and all(
        size == 1 or size == full for size, full in zip(mask.shape, shape, strict=True)
    )
    if not fits and shape_of(mask) != shape[-2:]:
        raise ValueError(
            f"{name} has shape {shape_of(mask)} but the scores have shape {shape}. "
            f"Give (queries, keys) = {shape[-2:]}, or one size per axis of the scores, "
            "with 1 for 'the same for all'. For scores (batch, heads, queries, keys): "
            f"write a padding mask (batch, keys) as {name}[:, None, None, :], a mask "
            f"per sample (batch, queries, keys) as {name}[:, None], and one per head "
            f"(heads, queries, keys) as {name}[None]."
        )


def check_not_ambiguous(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a 2-D mask that could be (queries, keys) or (batch, keys): B == L.

    It is let through where both readings agree, and where it is the causal mask.
    """
    queries, keys = shape[-2:]
    if mask.dim() > 2 or len(shape) == 2 or shape[0] != queries:
        return
    causal = _as_floating(causal_mask(queries, keys, device=mask.device), torch.float32)
    both_agree = (mask == mask[:1]).all()
    is_causal = (_as_floating(mask, torch.float32) == causal).all()
    if not holds(both_agree | is_causal):
        raise ValueError(
            f"mask has shape {shape_of(mask)} and the batch is as large as the number "
            f"of queries ({queries}), so it could be (queries, keys) or (batch, keys). "
            "Say which: mask[None, None] for (queries, keys) and "
            "mask[:, None, None, :] for (batch, keys), one axis for each of the "
            "scores'."
        )


def _as_floating(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask in the form that is added: 0 = read, -inf = do not read."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, -math.inf)
