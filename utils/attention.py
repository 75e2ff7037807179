"""Scaled dot-product attention, and the multi-head layer built on it.

Shapes: a layer takes (batch, length, embed_dim); inside it, heads are
(batch, heads, length, head_dim).

Masks (`masks.py`): a boolean mask says True where a key MAY BE READ; a floating mask is
added to the scores. A query that may read nothing gets zeros, and passes back zero
gradients. Errors are in `checks.py`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from utils import checks, exchange
from utils.masks import as_added, causal_mask, padding_mask

__all__ = [
    "MultiHeadAttention",
    "causal_mask",
    "merge_heads",
    "padding_mask",
    "scaled_dot_product_attention",
    "split_heads",
]


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return (batch, length, embed) as (batch, heads, length, embed / heads).

    Head h takes the h-th block of neighbouring features of every token.

    >>> split_heads(torch.zeros(2, 5, 12), num_heads=3).shape
    torch.Size([2, 3, 5, 4])
    """
    checks.check_layout("x", x, "(batch, length, embed)", 3)
    checks.check_size("num_heads", num_heads)
    if num_heads == 0 or x.shape[-1] % num_heads:
        raise ValueError(
            f"{x.shape[-1]} features cannot be split into {num_heads} equal heads; "
            "choose a number of heads that divides them."
        )
    # (batch, length, heads, head_dim) -> (batch, heads, length, head_dim)
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Return (batch, heads, length, head_dim) as (batch, length, heads * head_dim).

    The inverse of `split_heads`: each token's heads are laid side by side again.

    >>> x = torch.randn(2, 5, 12)
    >>> bool((merge_heads(split_heads(x, 3)) == x).all())
    True
    """
    checks.check_layout("x", x, "(batch, heads, length, head_dim)", 4)
    # (batch, length, heads, head_dim) -> (batch, length, heads * head_dim)
    return x.transpose(1, 2).flatten(2)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what every query reads, and the weights with which it reads.

    query (..., queries, head_dim), key (..., keys, head_dim), value (..., keys, any),
    with the same leading dimensions.
    mask: (queries, keys), or one size per axis of the scores (..., queries, keys) with
        1 for "the same for all"; bool (True = may be read) or floating (added).
    bias: floating, shaped like a mask, added to the scaled scores.
    dropout_p: share of the weights dropped before the values are read; the returned
        weights are never dropped out.
    scale: factor of the scores; default 1 / sqrt(head_dim).

    Returns output (..., queries, any) and weights (..., queries, keys). A query that
    may read nothing gets zeros in both. Half precision is computed in single.
    Raises TypeError and ValueError for inputs that do not fit; nothing is broadcast
    that was not written with a 1.
    Source: Vaswani et al. 2017, equation (1).

    >>> one_key, one_value = torch.ones(1, 4), torch.tensor([[5.0, 7.0]])
    >>> output, weights = scaled_dot_product_attention(one_key, one_key, one_value)
    >>> output.tolist(), weights.tolist()
    ([[5.0, 7.0]], [[1.0]])
    """
    checks.check_attention_inputs(query, key, value)
    checks.check_probability("dropout_p", dropout_p)
    scale = checks.checked_scale(scale, query.shape[-1])
    dtype = torch.promote_types(query.dtype, torch.float32)
    shape = (*query.shape[:-1], key.shape[-2])  # (..., queries, keys)
    added, unreadable = as_added(mask, bias, shape, dtype, query.device)

    scores = (query.to(dtype) * scale) @ key.to(dtype).mT
    weights = _softmax(scores, added, unreadable, dtype)
    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
    output = kept @ value.to(dtype)  # (..., queries, any)
    return output.to(query.dtype), weights.to(query.dtype)


def _softmax(scores, added, unreadable, dtype: torch.dtype) -> Tensor:
    """Return the softmax of (scores + added), with zeros in the unreadable rows.

    Without gradients nobody needs the scores again: the weights are written over them,
    which spares the page faults of a second tensor of this size.
    """
    scores = scores if added is None else _add(scores, added)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        weights = torch.softmax(scores, dim=-1, dtype=dtype)
        return weights if unreadable is None else weights.masked_fill(unreadable, 0)
    try:
        weights = torch.softmax(scores, dim=-1, dtype=dtype, out=scores)
    except RuntimeError:  # vmap, forward-mode derivatives, scores of autocast
        weights = torch.softmax(scores, dim=-1, dtype=dtype)
    return weights if unreadable is None else weights.masked_fill_(unreadable, 0)


def _add(scores: Tensor, added: Tensor) -> Tensor:
    """Return the sum, written over the scores where that is possible."""
    try:
        return scores.add_(added)
    except RuntimeError:  # vmap over masks: one matrix of scores cannot hold them all
        return scores + added


def _fused_attention(query, key, value, mask, *, bias, dropout_p):
    """Return (output, None): the same values, from PyTorch's fused kernel."""
    if not _kernel_fits(query, key, value, mask, bias):
        options = {"bias": bias, "dropout_p": dropout_p}
        return scaled_dot_product_attention(query, key, value, mask, **options)[0], None
    shape = (*query.shape[:-1], key.shape[-2])  # of the scores
    added, unreadable = as_added(mask, bias, shape, query.dtype, query.device)
    if added is None and query.device.type == "cpu":
        # With nothing to add, the CPU's kernel takes a row of NaN for a row that reads
        # nothing, and returns zeros. With a 0 to add, NaN stays NaN.
        added = query.new_zeros(1, 1, 1, 1)
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=added, dropout_p=dropout_p
    )
    return output if unreadable is None else output.masked_fill(unreadable, 0.0), None


def _kernel_fits(query, key, value, mask, bias) -> bool:
    """Return whether the fused kernel takes such inputs, and loses nothing of them.

    It needs a key; half precision cannot hold every number that is added; and under
    `vmap` it has no rule and would run copy by copy, with a warning.
    """
    boolean = bias is None and (mask is None or mask.dtype == torch.bool)
    if key.shape[-2] == 0 or not (boolean or query.dtype.itemsize >= 4):
        return False
    return torch.compiler.is_compiling() or not any(
        x is not None and checks.is_wrapped(x) for x in (query, key, value, mask, bias)
    )


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own slice of the features.

    num_kv_heads: number of key and value heads (default num_heads); each serves
        num_heads / num_kv_heads neighbouring query heads (Ainslie et al. 2023).
    kdim, vdim: features of the key and value inputs (default embed_dim).
    dropout: share of the weights dropped in training.
    position: an object with `rotate(query, key, offset)` and
        `bias(query_length, key_length)`, asked at every call; or None.

    `head_gate` (heads,) is multiplied into each head's output: set an entry to 0 to
    silence that head.
    Source: Vaswani et al. 2017, section 3.2.2; initialised as `nn.MultiheadAttention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        position=None,
    ):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout, self.position = dropout, position
        checks.check_heads(self)
        self.head_dim = embed_dim // num_heads

        kv_dim = self.num_kv_heads * self.head_dim
        self.query_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key_proj = nn.Linear(self.kdim, kv_dim, bias=bias)
        self.value_proj = nn.Linear(self.vdim, kv_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.register_buffer("head_gate", torch.ones(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as `nn.MultiheadAttention` does; biases 0, gates 1."""
        # PyTorch draws q, k, v as one (3E, E) matrix: Xavier's bound shrinks by sqrt 2.
        gain = 0.5**0.5 if self.kdim == self.vdim == self.embed_dim else 1.0
        for proj in (self.query_proj, self.key_proj, self.value_proj):
            nn.init.xavier_uniform_(proj.weight, gain=gain)
        self.out_proj.reset_parameters()
        for proj in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)
        nn.init.ones_(self.head_gate)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        need_weights: bool = False,
        cache: dict | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (output, weights): output (batch, queries, embed_dim).

        query (batch, queries, embed_dim); key (batch, keys, kdim), default: query;
        value (batch, keys, vdim), default: key.
        mask: (queries, keys), or (batch, heads, queries, keys) with 1 for "all".
        need_weights: return the weights (batch, heads, queries, keys), never averaged
            and never dropped out; False takes the fused kernel and returns None.
        cache: a dict, empty at first, in which the keys and values of earlier calls
            are kept; the new queries then read old and new positions.
        """
        checks.check_roles(key, value, cache)
        key = query if key is None else key
        value = key if value is None else value
        checks.check_layer_inputs(self, query, key, value)

        # q (batch, heads, queries, head_dim); k, v (batch, kv_heads, keys, head_dim)
        q = split_heads(self.query_proj(query), self.num_heads)
        k = split_heads(self.key_proj(key), self.num_kv_heads)
        v = split_heads(self.value_proj(value), self.num_kv_heads)
        if cache is not None:
            checks.check_cache(cache, self, k)
        past = cache["key"].shape[-2] if cache else 0
        if self.position is not None:
            unrotated = q, k
            q, k = self.position.rotate(q, k, offset=past)
            checks.check_rotated(unrotated, (q, k))
        if cache:
            k = torch.cat([cache["key"], k], dim=-2)
            v = torch.cat([cache["value"], v], dim=-2)
        kept = {"layer": self, "key": k, "value": v}
        bias = None
        if self.position is not None:
            bias = self.position.bias(q.shape[-2], k.shape[-2])
        if self.num_kv_heads != self.num_heads:  # head h reads group h // group size
            group = self.num_heads // self.num_kv_heads
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)

        attend = scaled_dot_product_attention if need_weights else _fused_attention
        dropout_p = self.dropout if self.training else 0.0
        heads, weights = attend(q, k, v, mask, bias=bias, dropout_p=dropout_p)
        if cache is not None:  # only now: a call that was refused leaves it as it was
            cache.update(kept)
        if not self._gates_are_open():
            heads = heads * self.head_gate[:, None, None]
        return self.out_proj(merge_heads(heads)), weights

    def _gates_are_open(self) -> bool:
        """Return whether all gates are seen to be 1: then nothing need be multiplied.

        Where one cannot look for free, or a derivative passes the gates, it is False.
        """
        gate = self.head_gate
        if torch.compiler.is_compiling() or gate.device.type != "cpu":
            return False
        if gate.requires_grad or forward_ad.unpack_dual(gate).tangent is not None:
            return False
        try:
            return gate.tolist() == [1.0] * self.num_heads
        except RuntimeError:  # vmap: as many gates as copies
            return False

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a layer that computes what `module` computes; see `exchange.py`."""
        return exchange.from_torch(cls, module)

    def to_torch(self) -> nn.MultiheadAttention:
        """Return `nn.MultiheadAttention` with copied weights; see `exchange.py`."""
        return exchange.to_torch(self)
