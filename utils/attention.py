"""Scaled dot-product attention, and the multi-head layer built on it.

A layer takes (batch, length, embed_dim); inside it, heads are (batch, heads, length,
head_dim). `masks.py` says how a mask is read. A query with nothing to attend to gets
zeros, and passes back zero gradients.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils import checks
from utils.masks import as_added
from utils.masks import causal_mask as causal_mask  # offered here, too
from utils.masks import padding_mask as padding_mask


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return (batch, length, embed) as (batch, heads, length, embed / heads).

    Head h takes the h-th block of neighbouring features of every token.

    >>> split_heads(torch.zeros(2, 5, 12), num_heads=3).shape
    torch.Size([2, 3, 5, 4])
    """
    checks.check_layout("x", x, "(batch, length, embed)", 3)
    x = x.unflatten(-1, (num_heads, -1))  # (batch, length, heads, head_dim)
    return x.transpose(1, 2)  # (batch, heads, length, head_dim)


def merge_heads(x: Tensor) -> Tensor:
    """Return (batch, heads, length, head_dim) as (batch, length, embed)."""
    checks.check_layout("x", x, "(batch, heads, length, head_dim)", 4)
    return x.transpose(1, 2).flatten(2)  # (batch, length, heads * head_dim)


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

    query (..., queries, head_dim), key (..., keys, head_dim), value (..., keys, any),
    with the same leading dimensions.
    mask: (queries, keys), or one size per axis of the scores (..., queries, keys) with
        1 for "the same for all"; bool (True = may be read) or floating (added).
    bias: floating, shaped like a mask, added to the scaled scores.
    dropout_p: probability with which a weight is dropped; the returned weights are
        never dropped out.
    scale: factor of the scores; default 1 / sqrt(head_dim).

    Returns output (..., queries, any) and weights (..., queries, keys). A query with
    nothing to attend to gets zeros in both. Half precision is computed in single.
    Source: Vaswani et al. 2017, equation (1).

    >>> one_key, one_value = torch.ones(1, 4), torch.tensor([[5.0, 7.0]])
    >>> output, weights = scaled_dot_product_attention(one_key, one_key, one_value)
    >>> output.tolist(), weights.tolist()
    ([[5.0, 7.0]], [[1.0]])
    """
    _check_fit(query, key, value, dropout_p, scale)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.promote_types(query.dtype, torch.float32)
    added, empty = as_added(mask, bias, query, key, dtype)
    # added: mask and bias as numbers; empty: the queries with nothing to attend to

    scores = (query.to(dtype) * scale) @ key.to(dtype).mT  # (..., queries, keys)
    weights = _softmax(scores, added, empty, dtype)  # (..., queries, keys)
    kept = F.dropout(weights, dropout_p)  # the same weights where dropout_p is 0
    output = kept @ value.to(dtype)  # (..., queries, any)
    return output.to(query.dtype), weights.to(query.dtype)


def _softmax(scores, added, empty, dtype: torch.dtype) -> Tensor:
    """Return the softmax of scores + added over the keys, with 0 in empty rows."""
    needed = torch.is_grad_enabled() or torch.compiler.is_compiling()
    if needed or scores.dtype != dtype or checks.is_wrapped(scores, added):
        scores = scores if added is None else scores + added
        weights = torch.softmax(scores, dim=-1, dtype=dtype)
        return weights if empty is None else weights.masked_fill(empty, 0.0)
    scores = scores if added is None else scores.add_(added)  # the same, in place:
    weights = torch.softmax(scores, dim=-1, out=scores)  # without another big tensor
    return weights if empty is None else weights.masked_fill_(empty, 0.0)


def _fused_attention(query, key, value, mask, *, bias, dropout_p):
    """Return (output, None): the same output, from PyTorch's fused kernel.

    The weights are computed after all where there is no key, where half precision
    would round what is added, and under `vmap`, for which the kernel has no rule.
    """
    boolean = bias is None and (mask is None or mask.dtype == torch.bool)
    rounded = query.dtype.itemsize < 4 and not boolean
    wrapped = checks.is_wrapped(query, key, value, mask, bias)
    if key.shape[-2] == 0 or rounded or wrapped:
        options = {"bias": bias, "dropout_p": dropout_p}
        return scaled_dot_product_attention(query, key, value, mask, **options)[0], None
    _check_fit(query, key, value)
    added, empty = as_added(mask, bias, query, key, query.dtype)
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=added, dropout_p=dropout_p
    )
    if added is None and query.device.type == "cpu":
        # Without a mask, the CPU's kernel takes a row of NaN for a row that reads
        # nothing, and returns zeros. Adding 0 times what it has read keeps NaN.
        output = output.add(query + key.mean(dim=-2, keepdim=True), alpha=0)
    return output if empty is None else output.masked_fill(empty, 0.0), None


def _check_fit(query, key, value, dropout_p=0.0, scale=None) -> None:
    """Refuse a query, key and value that do not fit together, and other options."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        checks.check_floating(name, x)
    checks.check_probability("dropout_p", dropout_p)
    if scale is not None:
        checks.check_not_negative("scale", scale)
    q, k, v = query.shape, key.shape, value.shape
    fits = query.dtype == key.dtype == value.dtype and min(len(q), len(k), len(v)) > 1
    fits = fits and q[:-2] == k[:-2] == v[:-2] and q[-1] == k[-1] > 0 and k[-2] == v[-2]
    if not fits:
        raise ValueError(
            f"query {tuple(q)} {query.dtype}, key {tuple(k)} {key.dtype} and value "
            f"{tuple(v)} {value.dtype} do not fit. Give (..., queries, features), "
            "(..., keys, features) and (..., keys, any) of one dtype, with the same "
            "leading dimensions; nothing is broadcast here."
        )


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each in its own slice of the features.

    num_kv_heads: number of key and value heads (default num_heads); each serves
        num_heads / num_kv_heads neighbouring query heads (Ainslie et al. 2023).
    kdim, vdim: features of the key and value inputs (default embed_dim).
    dropout: probability with which a weight is dropped in training.
    position: an object with `rotate(query, key, offset)` and
        `bias(query_length, key_length)`, asked at every call; or None.
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
        _check_options(self)
        self.head_dim = embed_dim // num_heads

        kv_dim = self.num_kv_heads * self.head_dim
        self.query_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key_proj = nn.Linear(self.kdim, kv_dim, bias=bias)
        self.value_proj = nn.Linear(self.vdim, kv_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as `nn.MultiheadAttention` does; biases are 0."""
        # PyTorch draws q, k, v as one (3E, E) matrix: Xavier's bound shrinks by sqrt 2.
        gain = 0.5**0.5 if self.kdim == self.vdim == self.embed_dim else 1.0
        for proj in (self.query_proj, self.key_proj, self.value_proj):
            nn.init.xavier_uniform_(proj.weight, gain=gain)
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
        cache: dict | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (output, weights): output (batch, queries, embed_dim).

        query (batch, queries, embed_dim); key (batch, keys, kdim), default: query;
        value (batch, keys, vdim), default: key.
        mask: (queries, keys), or (batch, heads, queries, keys) with 1 for "all".
        need_weights: return the weights (batch, heads, queries, keys), never averaged
            and never dropped out; False takes the fused kernel and returns None.
        cache: a dict, empty at first, in which the keys and values of earlier calls
            are kept; the new queries then attend to old and new positions, under a
            mask (new, past + new) such as `causal_mask(new, past + new)`.
        """
        _check_inputs(self, query, key, value, cache)
        key = query if key is None else key
        value = key if value is None else value

        q = split_heads(self.query_proj(query), self.num_heads)
        k = split_heads(self.key_proj(key), self.num_kv_heads)
        v = split_heads(self.value_proj(value), self.num_kv_heads)
        # q (batch, heads, queries, head_dim); k, v (batch, kv_heads, keys, head_dim)

        past = cache["key"].shape[-2] if cache else 0  # keys of earlier calls
        q, k, bias = _positioned(self.position, q, k, past)  # bias: like a mask
        if cache:
            k = torch.cat([cache["key"], k], dim=-2)  # ... past + keys, head_dim)
            v = torch.cat([cache["value"], v], dim=-2)
        seen = {"layer": self, "key": k, "value": v}  # by which a wrong cache is known

        group = self.num_heads // self.num_kv_heads  # head h reads k, v of h // group
        if group > 1:
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        # k, v (batch, heads, keys, head_dim)

        heads, weights = self._attend(q, k, v, mask, bias, need_weights)
        # heads (batch, heads, queries, head_dim)

        if cache is not None:  # only now: a call that was refused leaves it as it was
            cache.update(seen)
        return self.out_proj(merge_heads(heads)), weights

    def _attend(self, q, k, v, mask, bias, need_weights: bool):
        """Return the outputs of all heads and the weights; `own.py` overrides this."""
        attend = scaled_dot_product_attention if need_weights else _fused_attention
        dropout_p = self.dropout if self.training else 0.0
        return attend(q, k, v, mask, bias=bias, dropout_p=dropout_p)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a layer that computes what `module` computes, with copied weights.

        Device, dtype and mode carry over. The layer is batch first, also where
        `module.batch_first` is False: that option is not in the weights.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(f"give an nn.MultiheadAttention, not {type(module)}.")
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError(
                "module was built with add_bias_kv or add_zero_attn: no layer has that."
            )
        options = {name: getattr(module, name) for name in OPTIONS}
        layer = cls(**options, bias=module.in_proj_bias is not None)
        layer = layer.to(module.out_proj.weight).train(module.training)
        with torch.no_grad():
            for ours, theirs in _pairs(layer, module):
                ours.copy_(theirs)
        return layer

    def to_torch(self) -> nn.MultiheadAttention:
        """Return an `nn.MultiheadAttention(batch_first=True)` with copied weights.

        It computes what this layer computes. Mind its masks: there True means blocked.
        """
        if self.num_kv_heads != self.num_heads or self.position is not None:
            given = f"num_kv_heads={self.num_kv_heads}, position={self.position}"
            raise ValueError(f"{given}: nn.MultiheadAttention has no such option.")
        options = {name: getattr(self, name) for name in OPTIONS}
        options["bias"] = self.query_proj.bias is not None
        module = nn.MultiheadAttention(**options, batch_first=True)
        module = module.to(self.out_proj.weight).train(self.training)
        with torch.no_grad():
            for ours, theirs in _pairs(self, module):
                theirs.copy_(ours)
        return module


OPTIONS = ("embed_dim", "num_heads", "kdim", "vdim", "dropout")  # both layers have them


def _pairs(layer: MultiHeadAttention, module: nn.MultiheadAttention):
    """Yield (a parameter of the layer, the same of the module), or parts of them.

    The module keeps q, k, v stacked in one (3 * embed_dim, embed_dim) matrix, or in
    three where kdim or vdim differ; their biases are stacked in both cases.
    """
    weights = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    projections = layer.query_proj, layer.key_proj, layer.value_proj
    yield from zip((proj.weight for proj in projections), weights)
    if module.in_proj_bias is not None:
        yield from zip((p.bias for p in projections), module.in_proj_bias.chunk(3))
    yield from zip(layer.out_proj.parameters(), module.out_proj.parameters())


def _positioned(position, q: Tensor, k: Tensor, past: int):
    """Return (q, k, bias): turned by the position scheme, and what it adds."""
    if position is None:
        return q, k, None
    turned_q, turned_k = position.rotate(q, k, offset=past)
    if turned_q.shape != q.shape or turned_k.shape != k.shape:
        raise ValueError(f"{position}: rotate() must keep the shapes of query and key.")
    return turned_q, turned_k, position.bias(q.shape[-2], past + k.shape[-2])


def _check_options(layer: MultiHeadAttention) -> None:
    """Refuse sizes that cannot be shared out among the heads, and other options."""
    for name in ("embed_dim", "num_heads", "num_kv_heads", "kdim", "vdim"):
        checks.check_size(name, getattr(layer, name), least=1)
    checks.check_probability("dropout", layer.dropout)
    if layer.embed_dim % layer.num_heads or layer.num_heads % layer.num_kv_heads:
        raise ValueError(
            f"num_heads={layer.num_heads} must divide embed_dim={layer.embed_dim}, and "
            f"be divided by num_kv_heads={layer.num_kv_heads}."
        )
    position, head_dim = layer.position, layer.embed_dim // layer.num_heads
    if position is None:
        return
    if isinstance(position, type) or not hasattr(position, "rotate"):
        raise TypeError(f"position is {position!r}; give an object with rotate().")
    for name, size in (("num_heads", layer.num_heads), ("head_dim", head_dim)):
        given = getattr(position, name, size)
        if given != size:
            raise ValueError(f"position has {name}={given}, the layer {name}={size}.")


def _check_inputs(layer, query, key=None, value=None, cache=None) -> None:
    """Refuse inputs of a multi-head layer that cannot have been meant for it."""
    if cache is not None and key is not None:
        raise ValueError("cache is for self-attention; call it without key, value.")
    key = query if key is None else key
    value = key if value is None else value
    options = {"query": "embed_dim", "key": "kdim", "value": "vdim"}
    for (name, option), x in zip(options.items(), (query, key, value)):
        checks.check_layout(name, x, "(batch, length, features), e.g. by x[None]", 3)
        size = getattr(layer, option)
        if x.shape[-1] != size:
            raise ValueError(
                f"{name} has {x.shape[-1]} features but the layer was built with "
                f"{option}={size}."
            )
    if cache and cache.get("layer", layer) is not layer:
        raise ValueError("cache is another layer's; give each layer a dict of its own.")
