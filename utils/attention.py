"""Scaled dot-product attention, and the multi-head layer built on it.

A layer takes (batch, length, embed_dim); inside it, heads are (batch, heads, length,
head_dim). `masks.py` says what a mask means. A query with nothing to attend to gets
zeros, and passes back zero gradients.

Scores must be finite. If a score is NaN or infinite, because an input is NaN or because
query · key overflows (in float32 from inputs of about 1e19), then the output of this
query means nothing. It is NaN wherever the weights are computed, and so are they. The
fused kernel does not show its scores; there the output is NaN or zeros, and never
another number.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from utils.masks import as_added
from utils.masks import causal_mask as causal_mask  # offered here, too


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return (..., length, embed) as (..., heads, length, embed / heads).

    Head h takes the h-th block of neighbouring features of every token.

    >>> split_heads(torch.zeros(2, 5, 12), num_heads=3).shape
    torch.Size([2, 3, 5, 4])
    """
    x = x.unflatten(-1, (num_heads, -1))  # (..., length, heads, head_dim)
    return x.transpose(-3, -2)  # (..., heads, length, head_dim)


def merge_heads(x: Tensor) -> Tensor:
    """Return (..., heads, length, head_dim) as (..., length, embed)."""
    return x.transpose(-3, -2).flatten(-2)  # (..., length, heads * head_dim)


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
    """Return the output for every query, and the weights that it gave to the keys.

    query (..., queries, head_dim), key (..., keys, head_dim), value (..., keys, any).
    mask: bool (True = may be attended to) or floating (added): see `masks.py`.
    bias: floating, shaped like a mask, added to the scaled scores.
    dropout_p: probability of dropping a weight; returned weights are never dropped out.
    scale: factor of the scores; default 1 / sqrt(head_dim).

    Returns output (..., queries, any) and weights (..., queries, keys). Half precision
    is computed in single.
    Source: Vaswani et al. 2017, equation (1).

    >>> one_key, one_value = torch.ones(1, 4), torch.tensor([[5.0, 7.0]])
    >>> output, weights = scaled_dot_product_attention(one_key, one_key, one_value)
    >>> output.tolist(), weights.tolist()
    ([[5.0, 7.0]], [[1.0]])
    """
    if not query.is_floating_point():  # the result would be cut to whole numbers
        raise TypeError(f"query is {query.dtype}; give floating point: query.float().")
    if query.dtype.itemsize < 4:
        options = {"bias": bias, "dropout_p": dropout_p, "scale": scale}
        single = (x.float() for x in (query, key, value))
        found = scaled_dot_product_attention(*single, mask, **options)
        return tuple(x.to(query.dtype) for x in found)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    added = as_added(mask, bias, (*query.shape[:-1], key.shape[-2]), query.dtype)
    weights = _weights(query * scale, key, added)
    kept = F.dropout(weights, dropout_p) if dropout_p else weights
    return kept @ value, weights  # (..., queries, any), (..., queries, keys)


def _weights(query: Tensor, key: Tensor, added: Tensor | None) -> Tensor:
    """Return the softmax over the keys of query · key + added, 0 in empty rows.

    Where no gradient is needed, the softmax is written over the scores, because for
    large maps new memory takes more time than the computation.
    """
    scores = query @ key.mT  # (..., queries, keys)
    gradients = torch.is_grad_enabled() or torch.compiler.is_compiling()
    if not gradients and scores.dtype == query.dtype:  # autocast changes the dtype
        try:
            return _written_over(scores, added)
        except RuntimeError:  # vmap and forward-mode derivatives know no `out`
            scores = query @ key.mT  # again: they may be written over in part
    if added is None:
        return torch.softmax(scores, dim=-1)
    empty = _empty(added)  # they get finite scores, so that their gradient is finite
    scores = scores + added.masked_fill(empty, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)


def _written_over(scores: Tensor, added: Tensor | None) -> Tensor:
    """Return the softmax of scores + added, 0 in empty rows, in the scores' memory."""
    if added is not None:
        scores += added
    weights = torch.softmax(scores, dim=-1, out=scores)
    return weights if added is None else weights.masked_fill_(_empty(added), 0.0)


def _empty(added: Tensor) -> Tensor:
    """Return which queries have nothing to attend to, (..., queries, 1)."""
    return added.isneginf().all(dim=-1, keepdim=True)


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own slice of the features.

    num_kv_heads: of keys and values (default num_heads); each serves
        num_heads / num_kv_heads neighbouring query heads (Ainslie et al. 2023).
    dropout: probability with which a weight is dropped in training.
    position: a scheme of `positions.py`, asked at every call; or None.
    Source: Vaswani et al. 2017, section 3.2.2; initialised as `nn.MultiheadAttention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        position=None,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if embed_dim % num_heads or num_heads % num_kv_heads:
            raise ValueError(
                f"{num_heads=} must divide {embed_dim=}, and be divided by "
                f"{num_kv_heads=}."
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_kv_heads, self.head_dim = num_kv_heads, embed_dim // num_heads
        self.dropout, self.position = dropout, position
        # another size could be broadcast in silence
        for name in ("num_heads", "head_dim"):
            given, size = getattr(position, name, None), getattr(self, name)
            if given not in (None, size):
                raise ValueError(f"position has {name}={given}, the layer {size}.")
        kv_dim = num_kv_heads * self.head_dim
        self.query_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key_proj = nn.Linear(embed_dim, kv_dim, bias=bias)
        self.value_proj = nn.Linear(embed_dim, kv_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as `nn.MultiheadAttention` does; biases are 0."""
        for proj in (self.query_proj, self.key_proj, self.value_proj):
            # PyTorch draws q, k, v as one (3E, E) matrix: the bound shrinks by sqrt 2
            nn.init.xavier_uniform_(proj.weight, gain=0.5**0.5)
        self.out_proj.reset_parameters()
        for proj in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            if proj.bias is not None:
                nn.init.zeros_(proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        need_weights: bool = False,
        cache: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (output, weights): output (batch, queries, embed_dim).

        query (batch, queries, embed_dim); key (batch, keys, embed_dim), default: query;
        value: default: key. mask: see `masks.py`.
        need_weights: return the weights (batch, heads, queries, keys), never averaged
            and never dropped out. False: None in their place.
        cache: a dict of this layer alone, empty at first, in which the keys and values
            of earlier calls are kept; the new queries then attend to old and new
            positions, under a mask such as `causal_mask(new, past + new)`.
        """
        if cache is not None and key is not None:  # key would be cached at every call
            raise ValueError("cache is for self-attention; call it without key, value.")
        key = query if key is None else key
        value = key if value is None else value
        q = split_heads(self.query_proj(query), self.num_heads)
        k = split_heads(self.key_proj(key), self.num_kv_heads)
        v = split_heads(self.value_proj(value), self.num_kv_heads)
        # q (batch, heads, queries, head_dim); k, v (batch, kv_heads, keys, head_dim)

        past = cache["key"].shape[-2] if cache else 0
        bias = None
        if self.position is not None:
            q, k = self.position.rotate(q, k, offset=past)
            bias = self.position.bias(q.shape[-2], past + k.shape[-2])  # like a mask
        if cache:
            k = torch.cat([cache["key"], k], dim=-2)  # (..., past + keys, head_dim)
            v = torch.cat([cache["value"], v], dim=-2)
        kept = {"key": k, "value": v}
        if (group := self.num_heads // self.num_kv_heads) > 1:
            k, v = (x.repeat_interleave(group, dim=-3) for x in (k, v))
        # k, v (batch, heads, keys, head_dim): query head h has group h // group

        heads, weights = self.attend(q, k, v, mask, bias, need_weights)
        # heads (batch, heads, queries, head_dim)
        if cache is not None:  # only now: a call that was refused leaves it as it was
            cache.update(kept)
        return self.out_proj(merge_heads(heads)), weights

    def attend(self, q, k, v, mask, bias, need_weights: bool):
        """Return the outputs of all heads and the weights or None; made to be replaced.

        q (batch, heads, queries, head_dim); k, v (batch, heads, keys, head_dim); mask
        and bias: of the scores (batch, heads, queries, keys), or None.
        """
        if k.shape[-2] != v.shape[-2]:  # PyTorch's kernel would read beyond the end
            raise ValueError(f"there are {k.shape[-2]} keys but {v.shape[-2]} values.")
        dropout_p = self.dropout if self.training else 0.0
        floating = bias is not None or (mask is not None and mask.is_floating_point())
        # the kernel would round a floating mask to half precision
        if need_weights or (floating and q.dtype.itemsize < 4):
            options = {"bias": bias, "dropout_p": dropout_p}
            heads, weights = scaled_dot_product_attention(q, k, v, mask, **options)
            return heads, weights if need_weights else None
        added = as_added(mask, bias, (*q.shape[:-1], k.shape[-2]), q.dtype)
        kernel = F.scaled_dot_product_attention
        # the kernel of the CPU gives zeros in empty rows
        if added is None or q.device.type == "cpu":
            return kernel(q, k, v, attn_mask=added, dropout_p=dropout_p), None
        finite = added.masked_fill(empty := _empty(added), 0.0)
        heads = kernel(q, k, v, attn_mask=finite, dropout_p=dropout_p)
        return heads.masked_fill(empty, 0.0), None

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a layer that computes what `module` computes, with copied weights.

        Pruned or normed weights are copied as they are now. Device, dtype and mode
        carry over; the layer is batch first, also where `module` is not.
        """
        kind = type_before_parametrizations(module)
        if kind is not nn.MultiheadAttention:
            given = f"module is a {kind.__module__}.{kind.__qualname__}"
            raise TypeError(f"{given}; give nn.MultiheadAttention, no subclass of it.")
        _refuse_hooks(module, module.out_proj)
        special = module.bias_k is not None or module.add_zero_attn
        if special or module.in_proj_weight is None:
            options = "add_bias_kv, add_zero_attn, kdim or vdim"
            raise ValueError(f"module was built with {options}: no layer has that.")
        weights = _weights_of_torch(module)
        options = {"bias": "query_proj.bias" in weights, "dropout": module.dropout}
        layer = cls(module.embed_dim, module.num_heads, **options)
        layer = layer.to(module.out_proj.weight).train(module.training)
        layer.load_state_dict(weights)
        return layer

    def to_torch(self) -> nn.MultiheadAttention:
        """Return an `nn.MultiheadAttention(batch_first=True)` that computes the same.

        Weights are copied as in `from_torch`. Mind its masks: there True means blocked.
        """
        if self.num_kv_heads != self.num_heads or self.position is not None:
            given = f"num_kv_heads={self.num_kv_heads}, position={self.position}"
            raise ValueError(f"{given}: nn.MultiheadAttention has no such option.")
        _refuse_own(self, MultiHeadAttention, "forward", "attend")
        projections = [getattr(self, name) for name in PROJECTIONS]
        for projection in projections:
            _refuse_own(projection, nn.Linear, "forward")
        _refuse_hooks(self, *projections)
        weights = _weights_for_torch(self)
        options = {"bias": "in_proj_bias" in weights, "dropout": self.dropout}
        options["batch_first"] = True
        module = nn.MultiheadAttention(self.embed_dim, self.num_heads, **options)
        module = module.to(self.out_proj.weight).train(self.training)
        module.load_state_dict(weights)
        return module


PROJECTIONS = ("query_proj", "key_proj", "value_proj", "out_proj")


@torch.no_grad()
def _weights_of_torch(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """Return the weights with which the module computes, by our names."""
    x = module.out_proj.weight.new_empty(0, 1, module.embed_dim)
    module(x, x, x)  # an empty batch, so that hooks that compute weights (pruning) run
    found = {}
    for kind in ("weight", "bias"):
        stacked = getattr(module, f"in_proj_{kind}")  # queries, keys, values
        if stacked is not None:
            parts = [*stacked.chunk(3), getattr(module.out_proj, kind)]
            found |= {f"{name}.{kind}": x for name, x in zip(PROJECTIONS, parts)}
    return found


@torch.no_grad()
def _weights_for_torch(layer: MultiHeadAttention) -> dict[str, Tensor]:
    """Return the weights with which the layer computes, by the names of PyTorch."""
    layer(layer.out_proj.weight.new_empty(0, 1, layer.embed_dim))  # as above
    found = {}
    for kind in ("weight", "bias"):
        *parts, last = (getattr(getattr(layer, x), kind) for x in PROJECTIONS)
        if last is not None:
            found |= {f"in_proj_{kind}": torch.cat(parts), f"out_proj.{kind}": last}
    return found


def _refuse_own(module: nn.Module, kind: type, *names: str) -> None:
    """Refuse a module in which one of these methods is not that of `kind`."""
    for name in names:
        if getattr(getattr(module, name), "__func__", None) is not getattr(kind, name):
            own = f"{type(module).__qualname__} has a {name} of its own"
            raise TypeError(f"{own}; nn.MultiheadAttention would leave it out.")


def _refuse_hooks(*modules: nn.Module) -> None:
    """Refuse modules with forward hooks, which may change what comes out."""
    if any(module._forward_hooks for module in modules):
        raise TypeError("it has forward hooks, which a copy would lack: remove them.")
