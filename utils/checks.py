"""The errors that speak: what was given, what was expected, what to do.

Checks look at types and shapes, which costs next to nothing; `holds` is for the few
that must look at values.
"""

import math

import torch
from torch import Tensor

# as tuples: torch 2.6 cannot compile `int | float`
WHOLE, NUMBER = (int, torch.SymInt), (int, float)


def holds(condition: Tensor) -> bool:
    """Return whether a boolean tensor is true everywhere, as far as one can look now.

    While a graph is traced, and under `torch.func.vmap`, there is no single value to
    look at: there a guard must not stop anybody, so the answer is True.
    """
    if torch.compiler.is_compiling():
        return True
    try:
        return bool(condition.all())
    except RuntimeError:  # vmap
        return True


def is_wrapped(x: Tensor) -> bool:
    """Return whether x stands for many tensors or for a derivative (`torch.func`)."""
    try:
        x.data_ptr()
    except RuntimeError:  # it has no memory of its own
        return True
    return False


def shape_of(x: Tensor) -> tuple[int, ...]:
    """Return the shape as it reads best in a message."""
    return tuple(x.shape)


def check_size(name: str, size, least: int = 0) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(size, bool) or not isinstance(size, WHOLE):
        raise TypeError(f"{name} is {size!r}; it must be an int.")
    if size < least:
        raise ValueError(f"{name} is {size}; it must be at least {least}.")


def check_probability(name: str, p) -> None:
    """Refuse what is not a number from 0 to 1."""
    if isinstance(p, bool) or not isinstance(p, NUMBER):
        raise TypeError(f"{name} is a {type(p).__name__}; give a float from 0 to 1.")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"{name} is {p}; it must lie between 0 and 1.")


def check_positive(name: str, x) -> None:
    """Refuse what is not a finite number above 0."""
    if isinstance(x, bool) or not isinstance(x, NUMBER):
        raise TypeError(f"{name} is a {type(x).__name__}; give a float above 0.")
    if not 0.0 < x < math.inf:
        raise ValueError(f"{name} is {x}; it must be finite and above 0.")


def checked_scale(scale, head_dim: int) -> float:
    """Return the factor of the scores: `scale`, or 1 / sqrt(head_dim) for None."""
    if scale is None:
        if head_dim == 0:
            raise ValueError("query has 0 features; attention needs at least one.")
        return head_dim**-0.5
    if isinstance(scale, bool) or not isinstance(scale, NUMBER):
        raise TypeError(f"scale is a {type(scale).__name__}; give a float.")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; give a finite number.")
    return scale


def check_layout(name: str, x, axes: str, dims: int) -> None:
    """Refuse what is not a tensor with as many axes as `axes` names."""
    if isinstance(x, tuple):
        raise TypeError(
            f"{name} is a tuple; of attention's (output, weights) take the first."
        )
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; give a torch.Tensor.")
    if x.dim() != dims:
        raise ValueError(f"{name} has shape {shape_of(x)}; give {axes}.")


def check_floating(name: str, x) -> None:
    """Refuse what is not a tensor of floating point."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; give a torch.Tensor.")
    if not x.is_floating_point():
        raise TypeError(
            f"{name} is {x.dtype}; give floating point, e.g. {name}.float()."
        )


def check_attention_inputs(query, key, value) -> None:
    """Refuse a query, key and value that do not fit together."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_floating(name, x)
        if x.dim() < 2:
            raise ValueError(
                f"{name} has shape {shape_of(x)}; give (..., length, features)."
            )
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
    q, k, v = query.shape, key.shape, value.shape
    if q[-1] == k[-1] and k[-2] == v[-2] and q[:-2] == k[:-2] == v[:-2]:
        return
    shapes = f"query {tuple(q)}, key {tuple(k)}, value {tuple(v)}"
    if q[-1] != k[-1]:
        raise ValueError(
            f"query and key must have the same number of features: {shapes}."
        )
    if k[-2] != v[-2]:
        raise ValueError(f"each key needs one value: {shapes}.")
    raise ValueError(
        f"leading dimensions differ: {shapes}; nothing is broadcast here, "
        "so .expand() or .repeat_interleave() the smaller one."
    )


def check_heads(layer) -> None:
    """Refuse sizes of a multi-head layer that cannot be shared out among its heads."""
    for name in ("embed_dim", "num_heads", "num_kv_heads", "kdim", "vdim"):
        check_size(name, getattr(layer, name), least=1)
    if layer.embed_dim % layer.num_heads:
        raise ValueError(
            f"embed_dim={layer.embed_dim} cannot be shared by "
            f"num_heads={layer.num_heads}: num_heads must divide embed_dim."
        )
    if layer.num_heads % layer.num_kv_heads:
        raise ValueError(
            f"num_kv_heads={layer.num_kv_heads} cannot serve "
            f"num_heads={layer.num_heads}: it must divide num_heads."
        )
    if layer.position is not None and not hasattr(layer.position, "rotate"):
        raise TypeError(
            f"position is {layer.position!r}; give an object with rotate() and bias()."
        )
    head_dim = layer.embed_dim // layer.num_heads
    for name, size in (("num_heads", layer.num_heads), ("head_dim", head_dim)):
        given = getattr(layer.position, name, size)
        if given != size:
            raise ValueError(
                f"position was built with {name}={given} but the layer has "
                f"{name}={size}."
            )
    check_probability("dropout", layer.dropout)


def check_roles(key, value, cache) -> None:
    """Refuse a call of a layer whose key and value cannot be meant as they are."""
    if cache is not None and not (key is None and value is None):
        raise ValueError("cache is for self-attention; call it without key, value.")
    if key is None and value is not None:
        raise ValueError("value was given without key; give both, or neither.")
    if isinstance(key, Tensor) and key.dtype == torch.bool:
        raise TypeError("key is boolean: is it a mask? Then write mask=...")


def check_layer_inputs(layer, query, key, value) -> None:
    """Refuse inputs of a multi-head layer that do not fit it, or each other."""
    check_features(layer, "query", query, "embed_dim")
    if key is not query or layer.kdim != layer.embed_dim:
        check_features(layer, "key", key, "kdim")
    if value is not key or layer.vdim != layer.kdim:
        check_features(layer, "value", value, "vdim")
    if layer.head_gate.shape != (layer.num_heads,):
        raise ValueError(
            f"head_gate has shape {shape_of(layer.head_gate)}; it must be "
            f"({layer.num_heads},), one number per head."
        )
    if key is query and value is query:
        return
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(
            f"batch sizes differ: query {shape_of(query)}, key {shape_of(key)}, "
            f"value {shape_of(value)}."
        )
    if key.shape[1] != value.shape[1]:
        raise ValueError(
            f"there are {key.shape[1]} keys but {value.shape[1]} values; "
            "each key needs one value."
        )


def check_features(layer, name: str, x, option: str) -> None:
    """Refuse one input of a layer: layout, features, device, dtype."""
    check_floating(name, x)
    if x.dim() != 3:
        raise ValueError(
            f"{name} has shape {shape_of(x)}; the layer takes "
            "(batch, length, features). For one sentence add x[None]."
        )
    if x.shape[-1] != getattr(layer, option):
        raise ValueError(
            f"{name} has {x.shape[-1]} features but the layer was built with "
            f"{option}={getattr(layer, option)}."
        )
    weight = layer.query_proj.weight
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


def check_rotated(before, after) -> None:
    """Refuse what a position scheme's rotate() made of (query, key)."""
    for x, rotated in zip(before, after):
        given, wanted = (
            (shape_of(t), t.dtype, t.device) if isinstance(t, Tensor) else type(t)
            for t in (rotated, x)
        )
        if given != wanted:
            raise ValueError(
                "position.rotate() must keep shape, dtype and device: it was given "
                f"{wanted} and returned {given}."
            )


def check_cache(cache, layer, key: Tensor) -> None:
    """Refuse a cache that another layer, or another batch, has filled."""
    if isinstance(cache, dict) and not cache:
        return
    filled_here = isinstance(cache, dict) and cache.get("layer", layer) is layer
    if not filled_here or "key" not in cache or "value" not in cache:
        raise ValueError(
            "cache was not filled by this layer; give each layer an empty dict of "
            "its own, and the same dict at every further call."
        )
    past = cache["key"]
    if past.shape[0] != key.shape[0]:
        raise ValueError(
            f"cache holds {past.shape[0]} sentences but the query {key.shape[0]}; "
            "start a new batch with an empty dict."
        )


def check_choice(name: str, given, known) -> None:
    """Refuse what is not one of the known values."""
    if given not in known:
        raise ValueError(
            f"{name} is {given!r}; give one of {', '.join(map(repr, known))}."
        )


def check_not_negative(name: str, x) -> None:
    """Refuse what is not a finite number of at least 0."""
    if isinstance(x, bool) or not isinstance(x, NUMBER):
        raise TypeError(f"{name} is a {type(x).__name__}; give a number.")
    if not 0 <= x < math.inf:
        raise ValueError(f"{name} is {x}; it must be at least 0, and finite.")


def check_ids(ids, vocab_size: int, least: int = 0) -> None:
    """Refuse what are not ids (batch, length) of a vocabulary of this size."""
    check_layout("ids", ids, "(batch, length)", 2)
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"ids are {ids.dtype}; give whole numbers, e.g. ids.long().")
    if ids.shape[1] < least:
        raise ValueError(f"ids have shape {shape_of(ids)}; give at least {least} each.")
    if not holds((ids >= 0) & (ids < vocab_size)):
        raise ValueError(
            f"ids go from {ids.min()} to {ids.max()}, but vocab_size={vocab_size}: "
            f"they must lie between 0 and {vocab_size - 1}."
        )


def checked_layers(weights) -> list[Tensor]:
    """Return one tensor (heads, queries, keys) for each layer, on the CPU."""
    one = isinstance(weights, Tensor) or not isinstance(weights, (list, tuple))
    layers = [weights] if one else list(weights)
    if not layers:
        raise ValueError("there are no weights: give one tensor for each layer.")
    if any(layer is None for layer in layers):
        raise ValueError("weights are None: ask the layer for them, need_weights=True.")
    layers = [torch.as_tensor(layer).detach().cpu().float() for layer in layers]
    layers = [x[0] if x.dim() == 4 and len(x) == 1 else x for x in layers]
    for layer in layers:
        if layer.dim() != 3 or 0 in layer.shape:
            raise ValueError(
                f"weights have shape {shape_of(layer)}; give (heads, queries, keys) "
                "of one sentence for each layer, e.g. weights[0] of a batch, or "
                "list(weights) if its first axis is that of the layers."
            )
        if layer.shape[1:] != layers[0].shape[1:]:
            raise ValueError(
                f"the layers have different lengths: {shape_of(layers[0])} and "
                f"{shape_of(layer)}."
            )
    return layers


def checked_mask(mask, rows: int, columns: int) -> Tensor:
    """Return the mask (queries, keys) on the CPU; None: every key may be read.

    It may have further axes of size 1 in front, and 1 for "the same for all".
    """
    if mask is None:
        return torch.ones(rows, columns, dtype=torch.bool)
    mask = torch.as_tensor(mask).cpu()
    if mask.dtype != torch.bool:
        raise TypeError(f"mask is {mask.dtype}; give bool, True = may be read.")
    try:
        shape = (1,) * max(mask.dim() - 2, 0) + (rows, columns)
        return mask.expand(shape).reshape(rows, columns)
    except RuntimeError:
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} but the matrix {(rows, columns)}; "
            "give one sentence, one mask for all heads."
        ) from None


def check_tokens(name: str, tokens, size: int) -> None:
    """Refuse what is not a list of words, one for each query or key."""
    words = isinstance(tokens, (list, tuple)) and all(
        isinstance(t, str) for t in tokens
    )
    if not words:
        raise TypeError(f"{name}: {tokens!r:.60}; give a list of words (str).")
    if len(tokens) != size:
        raise ValueError(
            f"there are {len(tokens)} words for {size} {name}; if the keys are other "
            "tokens than the queries, give both."
        )
