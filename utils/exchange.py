"""The exchange with `nn.MultiheadAttention`: weights copied from it, and to it."""

import torch
from torch import Tensor, nn


def from_torch(layer_class, module: nn.MultiheadAttention):
    """Return a `layer_class` that computes what `module` computes, weights copied.

    Device, dtype, dropout and train/eval mode carry over; the copies are trainable.
    The new layer is batch first, whatever `module.batch_first` says: that option is
    not in the weights.
    Raises ValueError for `add_bias_kv` and `add_zero_attn`, which have no equivalent.
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
    layer = layer_class(
        module.embed_dim,
        module.num_heads,
        kdim=module.kdim,
        vdim=module.vdim,
        bias=module.in_proj_bias is not None,
        dropout=module.dropout,
    )
    layer = layer.to(module.out_proj.weight).train(module.training)
    with torch.no_grad():
        for mine, theirs in _pairs(layer, module):
            mine.copy_(theirs)
    return layer


def to_torch(layer) -> nn.MultiheadAttention:
    """Return an `nn.MultiheadAttention(batch_first=True)` with copied weights.

    It computes what `layer` computes; a closed `head_gate` is folded into `out_proj`.
    Mind its masks: there True means blocked.
    Raises ValueError for `num_kv_heads` and `position`, which it does not have.
    """
    if layer.num_kv_heads != layer.num_heads:
        raise ValueError(
            f"num_kv_heads={layer.num_kv_heads} has no equivalent in "
            f"nn.MultiheadAttention; build with num_kv_heads={layer.num_heads}."
        )
    if layer.position is not None:
        raise ValueError(
            "position has no equivalent in nn.MultiheadAttention; "
            "build with position=None."
        )
    module = nn.MultiheadAttention(
        layer.embed_dim,
        layer.num_heads,
        dropout=layer.dropout,
        bias=layer.query_proj.bias is not None,
        kdim=layer.kdim,
        vdim=layer.vdim,
        batch_first=True,
        device=layer.head_gate.device,
        dtype=layer.head_gate.dtype,
    ).train(layer.training)
    with torch.no_grad():
        for mine, theirs in _pairs(layer, module):
            theirs.copy_(mine)
        gate = layer.head_gate.repeat_interleave(layer.head_dim)  # (embed_dim,)
        module.out_proj.weight.mul_(gate)
    return module


def _pairs(layer, module: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters that correspond, (the layer's, the module's or its part).

    The module keeps q, k, v stacked in one (3 * embed_dim, embed_dim) matrix, or in
    three where kdim or vdim differ; their biases are stacked in both cases.
    """
    if module.in_proj_weight is None:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        weights = module.in_proj_weight.chunk(3)
    mine = [layer.query_proj, layer.key_proj, layer.value_proj, layer.out_proj]
    pairs = [(m.weight, w) for m, w in zip(mine, [*weights, module.out_proj.weight])]
    if module.in_proj_bias is not None:
        biases = [*module.in_proj_bias.chunk(3), module.out_proj.bias]
        pairs += [(m.bias, b) for m, b in zip(mine, biases)]
    return pairs
