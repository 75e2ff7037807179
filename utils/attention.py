"""Scaled dot-product attention, its masks, and the multi-head layer built on it.

Shapes: a layer takes (batch, length, embed_dim); inside it, heads are
(batch, heads, length, head_dim).

Masks: one convention everywhere. A boolean mask says True where a key MAY BE READ;
a floating mask is added to the scores (0 = read, -inf = do not read). A query that may
read nothing gets zeros, and passes back zero gradients.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
    _check_size("query_length", query_length)
    _check_size("key_length", key_length)
    every_pair = torch.ones(query_length, key_length, dtype=torch.bool, device=device)
    return every_pair.tril(key_length - query_length)


def padding_mask(lengths, max_length: int | None = None) -> Tensor:
    """Return the mask that hides the padding behind sentences of different lengths.

    lengths: integers (batch,), a list or a tensor; max_length: the padded length
    (default: the longest).
    Returns bool (batch, 1, 1, max_length), True = a real token. It broadcasts over
    heads and queries; combine it with a causal mask by `&`.

    >>> padding_mask([3, 1]).int()[:, 0, 0].tolist()
    [[1, 1, 1], [1, 0, 0]]
    """
    if lengths is None or isinstance(lengths, int | float):
        raise TypeError(f"lengths is {lengths!r}; give one whole number per sentence.")
    lengths = torch.as_tensor(lengths)
    lengths = lengths.long() if lengths.numel() == 0 else lengths
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(
            f"lengths are {lengths.dtype}; give one whole number per sentence."
        )
    if lengths.dim() != 1:
        raise ValueError(f"lengths have shape {_shape(lengths)}; give (batch,).")
    longest = int(lengths.max()) if len(lengths) else 0
    max_length = longest if max_length is None else max_length
    _check_size("max_length", max_length)
    if len(lengths) and (int(lengths.min()) < 0 or longest > max_length):
        raise ValueError(
            f"lengths {lengths.tolist()} do not fit: each must be between 0 and "
            f"max_length={max_length}."
        )
    positions = torch.arange(max_length, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return (batch, length, embed) as (batch, heads, length, embed / heads).

    Head h takes the h-th block of neighbouring features of every token.

    >>> split_heads(torch.zeros(2, 5, 12), num_heads=3).shape
    torch.Size([2, 3, 5, 4])
    """
    _check_layout("x", x, "(batch, length, embed)", 3)
    _check_size("num_heads", num_heads)
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
    _check_layout("x", x, "(batch, heads, length, head_dim)", 4)
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
    _check_inputs(query, key, value)
    scale = _checked_scale(scale, query.shape[-1])
    _check_probability("dropout_p", dropout_p)
    additive, unreadable = _additive_mask(mask, bias, query, key)

    dtype = _computed_in(query)
    scores = (query.to(dtype) * scale) @ key.to(dtype).mT  # (..., queries, keys)
    if additive is not None:
        scores += additive
    # Without gradients nobody needs the scores again: softmax is written over them,
    # which spares the page faults of a second tensor of this size.
    into = None if torch.is_grad_enabled() or scores.dtype != dtype else scores
    weights = torch.softmax(scores, dim=-1, dtype=dtype, out=into)
    if unreadable is not None:
        weights = weights.masked_fill(unreadable, 0.0)
    kept = F.dropout(weights, dropout_p) if dropout_p > 0 else weights
    output = kept @ value.to(dtype)  # (..., queries, any)
    return output.to(query.dtype), weights.to(query.dtype)


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
        for name in ("embed_dim", "num_heads", "num_kv_heads", "kdim", "vdim"):
            _check_size(name, getattr(self, name), least=1)
        if embed_dim % num_heads:
            raise ValueError(
                f"embed_dim={embed_dim} cannot be shared by num_heads={num_heads}: "
                "num_heads must divide embed_dim."
            )
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={num_kv_heads} cannot serve num_heads={num_heads}: "
                "it must divide num_heads."
            )
        if position is not None and not hasattr(position, "rotate"):
            raise TypeError(
                f"position is {position!r}; give an object with rotate() and bias()."
            )
        _check_probability("dropout", dropout)
        self.head_dim = embed_dim // num_heads
        self.dropout, self.position = dropout, position

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
        stacked = self.kdim == self.vdim == self.embed_dim
        for proj in self._projections()[:3]:
            nn.init.xavier_uniform_(proj.weight, gain=0.5**0.5 if stacked else 1.0)
        self.out_proj.reset_parameters()
        for proj in self._projections():
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
        if cache is not None and not (key is None and value is None):
            raise ValueError("cache is for self-attention; call it without key, value.")
        if key is None and value is not None:
            raise ValueError("value was given without key; give both, or neither.")
        if isinstance(key, Tensor) and key.dtype == torch.bool:
            raise TypeError("key is boolean: is it a mask? Then write mask=...")
        key = query if key is None else key
        value = key if value is None else value
        self._check_layer_inputs(query, key, value)

        # q (batch, heads, queries, head_dim); k, v (batch, kv_heads, keys, head_dim)
        q = split_heads(self.query_proj(query), self.num_heads)
        k = split_heads(self.key_proj(key), self.num_kv_heads)
        v = split_heads(self.value_proj(value), self.num_kv_heads)
        past = self._past(cache, k)  # keys and values of earlier calls, or None
        if self.position is not None:
            offset = 0 if past is None else past[0].shape[-2]
            q, k = self.position.rotate(q, k, offset=offset)
            _check_inputs(q[:, :1], k[:, :1], v[:, :1])
        if past is not None:
            k, v = torch.cat([past[0], k], dim=-2), torch.cat([past[1], v], dim=-2)
        kept = {"layer": id(self), "key": k, "value": v}
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
        if self.head_gate.requires_grad or (self.head_gate != 1).any():
            heads = heads * self.head_gate[:, None, None]  # open gates cost nothing
        return self.out_proj(merge_heads(heads)), weights

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a layer that computes what `module` computes, with copied weights.

        Device, dtype, dropout and train/eval mode carry over; the copies are trainable.
        The new layer is batch first, whatever `module.batch_first` says: that option is
        not in the weights.
        Raises ValueError for `add_bias_kv` and `add_zero_attn`, which have no
        equivalent here.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise TypeError(
                f"from_torch takes an nn.MultiheadAttention, not {type(module)}."
            )
        for option, used in (
            ("add_bias_kv", module.bias_k is not None),
            ("add_zero_attn", module.add_zero_attn),
        ):
            if used:
                raise ValueError(
                    f"module was built with {option}=True, which adds a key that is "
                    f"not in the input; build it with {option}=False."
                )
        layer = cls(
            module.embed_dim,
            module.num_heads,
            kdim=module.kdim,
            vdim=module.vdim,
            bias=module.in_proj_bias is not None,
            dropout=module.dropout,
        )
        if module.in_proj_weight is None:  # kdim or vdim differ: three matrices
            weights = (
                module.q_proj_weight,
                module.k_proj_weight,
                module.v_proj_weight,
            )
        else:  # one (3 * embed_dim, embed_dim) matrix: q, k, v stacked
            weights = module.in_proj_weight.chunk(3)
        weights = (*weights, module.out_proj.weight)
        biases = (None,) * 4
        if module.in_proj_bias is not None:
            biases = (*module.in_proj_bias.chunk(3), module.out_proj.bias)
        layer = layer.to(module.out_proj.weight).train(module.training)
        with torch.no_grad():
            for proj, weight, bias in zip(
                layer._projections(), weights, biases, strict=True
            ):
                proj.weight.copy_(weight)
                if bias is not None:
                    proj.bias.copy_(bias)
        return layer

    def to_torch(self) -> nn.MultiheadAttention:
        """Return an `nn.MultiheadAttention(batch_first=True)` with copied weights.

        It computes what this layer computes; a closed `head_gate` is folded into
        `out_proj`. Mind its masks: there True means blocked.
        Raises ValueError for `num_kv_heads` and `position`, which it does not have.
        """
        if self.num_kv_heads != self.num_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} has no equivalent in "
                f"nn.MultiheadAttention; build with num_kv_heads={self.num_heads}."
            )
        if self.position is not None:
            raise ValueError(
                "position has no equivalent in nn.MultiheadAttention; "
                "build with position=None."
            )
        like = {"device": self.head_gate.device, "dtype": self.head_gate.dtype}
        module = nn.MultiheadAttention(
            self.embed_dim,
            self.num_heads,
            dropout=self.dropout,
            bias=self.query_proj.bias is not None,
            kdim=self.kdim,
            vdim=self.vdim,
            batch_first=True,
            **like,
        ).train(self.training)
        in_projections = self._projections()[:3]
        with torch.no_grad():
            if module.in_proj_weight is None:
                module.q_proj_weight.copy_(self.query_proj.weight)
                module.k_proj_weight.copy_(self.key_proj.weight)
                module.v_proj_weight.copy_(self.value_proj.weight)
            else:
                stacked = torch.cat([proj.weight for proj in in_projections])
                module.in_proj_weight.copy_(stacked)
            gate = self.head_gate.repeat_interleave(self.head_dim)  # (embed_dim,)
            module.out_proj.weight.copy_(self.out_proj.weight * gate)
            if module.in_proj_bias is not None:
                module.in_proj_bias.copy_(
                    torch.cat([proj.bias for proj in in_projections])
                )
                module.out_proj.bias.copy_(self.out_proj.bias)
        return module

    def _projections(self) -> tuple[nn.Linear, ...]:
        return self.query_proj, self.key_proj, self.value_proj, self.out_proj

    def _past(self, cache: dict | None, key: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the cached (key, value), each (batch, kv_heads, past, head_dim)."""
        if cache is None or cache == {}:
            return None
        if not isinstance(cache, dict) or cache.get("layer") != id(self):
            raise ValueError(
                "cache was not filled by this layer; give each layer an empty dict of "
                "its own, and the same dict at every further call."
            )
        if cache["key"].shape[0] != key.shape[0]:
            raise ValueError(
                f"cache holds {cache['key'].shape[0]} sentences but the query "
                f"{key.shape[0]}; start a new batch with an empty dict."
            )
        return cache["key"], cache["value"]

    def _check_layer_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        weight = self.query_proj.weight
        for name, x, size, option in (
            ("query", query, self.embed_dim, "embed_dim"),
            ("key", key, self.kdim, "kdim"),
            ("value", value, self.vdim, "vdim"),
        ):
            _check_tensor(name, x)
            if x.dim() != 3:
                raise ValueError(
                    f"{name} has shape {_shape(x)}; the layer takes "
                    "(batch, length, features). For one sentence add x[None]."
                )
            if x.shape[-1] != size:
                raise ValueError(
                    f"{name} has {x.shape[-1]} features but the layer was built with "
                    f"{option}={size}."
                )
            if x.device != weight.device:
                raise ValueError(
                    f"{name} is on {x.device} but the layer is on {weight.device}; "
                    f"move one of them with .to()."
                )
            if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
                raise TypeError(
                    f"{name} is {x.dtype} but the layer is {weight.dtype}; "
                    f"convert one of them with .to()."
                )
        if self.head_gate.shape != (self.num_heads,):
            raise ValueError(
                f"head_gate has shape {_shape(self.head_gate)}; it must be "
                f"({self.num_heads},), one number per head."
            )
        if not query.shape[0] == key.shape[0] == value.shape[0]:
            raise ValueError(
                f"batch sizes differ: query {_shape(query)}, key {_shape(key)}, "
                f"value {_shape(value)}."
            )
        if key.shape[1] != value.shape[1]:
            raise ValueError(
                f"there are {key.shape[1]} keys but {value.shape[1]} values; "
                "each key needs one value."
            )


# --- behind the scenes: the fused kernel, masks, checks of what was given ---------


def _fused_attention(query, key, value, mask, *, bias, dropout_p):
    """Return (output, None): the same values, from PyTorch's fused kernel."""
    additive, unreadable = _additive_mask(mask, bias, query, key)
    if not _kernel_agrees(query, key, additive):
        output, _ = scaled_dot_product_attention(
            query, key, value, mask, bias=bias, dropout_p=dropout_p
        )
        return output, None
    if additive is not None:
        additive = additive.to(query.dtype)
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=additive, dropout_p=dropout_p
    )
    if unreadable is not None:
        output = output.masked_fill(unreadable, 0.0)
    return output, None


def _kernel_agrees(query, key, additive) -> bool:
    """Return whether the fused kernel would give the values of the readable code.

    It does not without keys; where half precision cannot hold the mask; and on a CPU
    for NaN, which it takes for an unreadable row and turns into zeros.
    """
    if key.shape[-2] == 0:
        return False
    if additive is not None:
        return bool((additive.to(query.dtype) == additive).all())
    with torch.no_grad():
        return query.device.type != "cpu" or bool((query.sum() + key.sum()).isfinite())


def _computed_in(query: Tensor) -> torch.dtype:
    """Return the dtype of scores and weights: at least single precision."""
    return torch.promote_types(query.dtype, torch.float32)


def _additive_mask(mask, bias, query, key) -> tuple[Tensor | None, Tensor | None]:
    """Return (what is added to the scores, which queries may read nothing), or Nones.

    The rows of unreadable queries are set to 0, so that their softmax is finite and so
    is its gradient; the caller zeroes what they read.
    """
    if mask is None and bias is None:
        return None, None
    shape = (*query.shape[:-1], key.shape[-2])  # of the scores
    dtype, additive = _computed_in(query), 0.0
    if mask is not None:
        _check_mask("mask", mask, shape, query.device)
        _check_not_ambiguous(mask, shape)
        additive = _as_additive(mask, dtype)
    if bias is not None:
        _check_mask("bias", bias, shape, query.device)
        additive = additive + bias.to(dtype)
    if not (additive < math.inf).all():
        given = " and ".join(
            name for name, x in (("mask", mask), ("bias", bias)) if x is not None
        )
        raise ValueError(
            f"{given} contains NaN or +inf (in {dtype}); what is added to the scores "
            "must be finite or -inf."
        )
    unreadable = (additive == -math.inf).all(dim=-1, keepdim=True)  # (..., queries, 1)
    if not unreadable.any():
        return additive, None
    return additive.masked_fill(unreadable, 0.0), unreadable


def _as_additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask in the form that is added: 0 = read, -inf = do not read."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, -math.inf)


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _check_size(name: str, size, least: int = 0) -> None:
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{name} is {size!r}; it must be an int.")
    if size < least:
        raise ValueError(f"{name} is {size}; it must be at least {least}.")


def _check_layout(name: str, x, axes: str, dims: int) -> None:
    if isinstance(x, tuple):
        raise TypeError(
            f"{name} is a tuple; of attention's (output, weights) take the first."
        )
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; give a torch.Tensor.")
    if x.dim() != dims:
        raise ValueError(f"{name} has shape {_shape(x)}; give {axes}.")


def _check_tensor(name: str, x) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; give a torch.Tensor.")
    if not x.is_floating_point():
        raise TypeError(
            f"{name} is {x.dtype}; give floating point, e.g. {name}.float()."
        )


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        _check_tensor(name, x)
        if x.dim() < 2:
            raise ValueError(
                f"{name} has shape {_shape(x)}; give (..., length, features)."
            )
    shapes = f"query {_shape(query)}, key {_shape(key)}, value {_shape(value)}"
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"dtypes differ: query {query.dtype}, key {key.dtype}, "
            f"value {value.dtype}; convert them to one with .to()."
        )
    if not query.device == key.device == value.device:
        raise ValueError(
            f"devices differ: query {query.device}, key {key.device}, "
            f"value {value.device}; move them to one with .to()."
        )
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"query and key must have the same number of features: {shapes}."
        )
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"each key needs one value: {shapes}.")
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(
            f"leading dimensions differ: {shapes}; nothing is broadcast here, "
            "so .expand() or .repeat_interleave() the smaller one."
        )


def _check_mask(name: str, mask, shape: tuple[int, ...], device) -> None:
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
        size in (1, full) for size, full in zip(mask.shape, shape, strict=True)
    )
    if not fits and _shape(mask) != shape[-2:]:
        raise ValueError(
            f"{name} has shape {_shape(mask)} but the scores have shape {shape}. Give "
            f"(queries, keys) = {shape[-2:]}, or one size per axis of the scores, with "
            "1 for 'the same for all'. For scores (batch, heads, queries, keys): write "
            f"a padding mask (batch, keys) as {name}[:, None, None, :], a mask per "
            f"sample (batch, queries, keys) as {name}[:, None], and one per head "
            f"(heads, queries, keys) as {name}[None]."
        )


def _check_not_ambiguous(mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a 2-D mask that could be (queries, keys) or (batch, keys): B == L.

    It is let through where both readings agree, and where it is the causal mask.
    """
    queries, keys = shape[-2:]
    if mask.dim() > 2 or len(shape) == 2 or shape[0] != queries:
        return
    both_agree = (mask == mask[:1]).all()
    causal = _as_additive(causal_mask(queries, keys, device=mask.device), torch.float32)
    if both_agree or torch.equal(_as_additive(mask, torch.float32), causal):
        return
    raise ValueError(
        f"mask has shape {_shape(mask)} and the batch is as large as the number of "
        f"queries ({queries}), so it could be (queries, keys) or (batch, keys). Say "
        "which: mask[None, None] for (queries, keys) and mask[:, None, None, :] for "
        "(batch, keys), one axis for each of the scores'."
    )


def _checked_scale(scale: float | None, head_dim: int) -> float:
    if scale is None:
        if head_dim == 0:
            raise ValueError("query has 0 features; attention needs at least one.")
        return head_dim**-0.5
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise TypeError(f"scale is a {type(scale).__name__}; give a float.")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; give a finite number.")
    return scale


def _check_probability(name: str, p: float) -> None:
    if isinstance(p, bool) or not isinstance(p, int | float):
        raise TypeError(f"{name} is a {type(p).__name__}; give a float from 0 to 1.")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{name} is {p}; it must lie between 0 and 1.")
