"""The attention weights of every layer of a model, taken by hooks from outside."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature

import torch
from torch import Tensor, nn

from utils.attention import MultiHeadAttention

__all__ = ["attention_layers", "looking", "record_attention", "recorded"]

KINDS = (MultiHeadAttention, nn.MultiheadAttention)


def record_attention(model: nn.Module, *inputs, **named) -> list[Tensor]:
    """Return the weights (batch, heads, queries, keys) of each attention in a model.

    One tensor per call of an attention, in the order of the calls of
    `model(*inputs, **named)`. Any model will do that holds `MultiHeadAttention`,
    `nn.MultiheadAttention` (so `nn.TransformerEncoder`, too), or a module of your own
    that takes need_weights and returns (output, weights).
    The weights are those of eval mode, never averaged over heads, never dropped out.
    Afterwards the model is as it was, also after an error.
    """
    return [weights for _, weights in recorded(model, inputs, named)]


def recorded(
    model: nn.Module, inputs: tuple, named: dict, *, before: Callable | None = None
) -> list[tuple[nn.Module, Tensor]]:
    """Return (the attention, its weights) for each call: see `record_attention`.

    before: before(layer, weights_now), called before each call; weights_now() returns
        what the layer's weights would be, if it were called as it is now.
    """
    found: list[tuple[nn.Module, Tensor]] = []
    layers = attention_layers(model)
    with looking(model), ExitStack() as hooks:
        for layer in layers:
            _hook(layer, found, before, hooks)
        model(*inputs, **named)
    if not found:
        name = type(model).__name__
        raise ValueError(f"{name} called no attention, no module with need_weights.")
    return found


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """Return the attentions inside a model (perhaps itself), in their order in it."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; give an nn.Module.")
    return [module for module in model.modules() if _is_attention(module)]


@contextmanager
def looking(model: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients, and no fast path of PyTorch's, for a `with` block.

    On the fast path `nn.TransformerEncoder` never calls its attention (lesson 03).
    """
    modes = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, training in modes:
            module.training = training


def _is_attention(module: nn.Module) -> bool:
    """Return whether a module is an attention: a known one, or innermost of its kind.

    A block may take need_weights, too, in order to hand it on to the attention in it.
    """
    takes = [
        isinstance(inner, KINDS)
        or "need_weights" in signature(inner.forward).parameters
        for inner in module.modules()  # itself first
    ]
    return isinstance(module, KINDS) or (takes[0] and not any(takes[1:]))


def _hook(layer: nn.Module, found: list, before: Callable | None, hooks: ExitStack):
    """Hook a layer twice: to ask for its weights, and to put them into `found`.

    Whoever calls the layer still gets what they asked for.
    """
    torchs = isinstance(layer, nn.MultiheadAttention)
    every_head = {"need_weights": True}
    every_head |= {"average_attn_weights": False} if torchs else {}
    parameters = list(signature(layer.forward).parameters)
    asked = {}

    def ask(layer, inputs, named):
        if "need_weights" in parameters:  # given by position? Then name it
            n = parameters.index("need_weights")
            inputs, named = inputs[:n], dict(zip(parameters[n:], inputs[n:])) | named
        asked["weights"] = named.pop("need_weights", torchs)
        asked["average"] = torchs and named.pop("average_attn_weights", True)
        named |= every_head
        if before is not None:
            before(layer, lambda: _weights(layer, layer.forward(*inputs, **named)))
        return inputs, named

    def keep(layer, inputs, result):
        found.append((layer, _weights(layer, result)))
        output, weights = result
        if not asked["weights"]:
            return output, None
        return output, weights.mean(dim=-3) if asked["average"] else weights

    hooks.enter_context(layer.register_forward_pre_hook(ask, with_kwargs=True))
    hooks.enter_context(layer.register_forward_hook(keep, prepend=True))


def _weights(layer: nn.Module, result) -> Tensor:
    """Return the weights (batch, heads, queries, keys) that an attention returned."""
    weights = result[1] if isinstance(result, tuple) and len(result) == 2 else None
    if not isinstance(weights, Tensor) or weights.dim() not in (3, 4):
        name = type(layer).__name__
        raise ValueError(f"{name} must return (output, weights): weights of four axes.")
    return weights if weights.dim() == 4 else weights[None]  # of PyTorch, without batch
