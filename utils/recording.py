"""One recorder: look at, or replace, any activation of any model, from outside.

A name is the path of a module, as in `model.named_modules()`, and means what that puts
out: "blocks.1", "blocks.0.mlp" (of several outputs the first). `*` stands for one step:
"blocks.*.mlp". An attention layer has parts: "blocks.0.attention.weights" are weights
(batch, heads, queries, keys), not averaged. The course's own layer has five parts:
`query` (batch, heads, queries, head_dim), after its rotation; `key` (rotated) and
`value` (batch, heads, keys, head_dim), with those of a cache, and repeated for groups
of heads; `weights`, not dropped out; `heads` (batch, heads, queries, head_dim), the
outputs of the heads before `out_proj`. Of any other attention there are the weights
that it returns: they can only be recorded, and in training they are dropped out.

All of this stands on forward hooks: in a `with` block, a layer's `attend` is wrapped,
and a part goes through a module that returns what it is given. Compiled code and
PyTorch's fast path would not call the hooks, so both are off in the block. Of two
blocks that change the same activation, the one that was entered later gets what the
earlier one left. Afterwards the model is as it was, also after an error.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from inspect import signature
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.attention import MultiHeadAttention, merge_heads, split_heads

PARTS = ("query", "key", "value", "weights", "heads")


@contextmanager
def recorded(model: nn.Module, *names: str, every_call=False) -> Iterator[dict]:
    """Give {name: tensor} for a `with` block, filled when the model runs in it.

    names: see the top of this file; a pattern gives an entry for each name that it
        fits. What is not called has no entry.
    every_call: a list with a tensor for each call, instead of the tensor of the last.
    The tensors are those with which the model goes on, so gradients with respect to
    them can be asked for (but not for the weights of other attentions than the
    course's). Eval mode and `torch.no_grad()` are yours to choose.

    >>> layer, x = MultiHeadAttention(embed_dim=8, num_heads=2), torch.randn(1, 5, 8)
    >>> with recorded(layer, "weights", "heads") as seen:
    ...     output, _ = layer(x)
    >>> {name: tuple(each.shape) for name, each in seen.items()}
    {'weights': (1, 2, 5, 5), 'heads': (1, 2, 5, 4)}
    """
    seen: dict = {}

    def keep(name, x):
        seen[name] = [*seen.get(name, ()), x] if every_call else x

    with _attached(model, names, keep):
        yield seen


@contextmanager
def replaced(model: nn.Module, changes: Mapping) -> Iterator[nn.Module]:
    """Replace activations of a model for a `with` block.

    changes: {name: a tensor of the same shape, or a function of what is there, called
        each time}; names: see the top of this file.
    Gradients pass through a function. Replaced weights are dropped out in training, as
    others are. A cache keeps the keys and values that were there.
    RuntimeError, after the block, if one of them was not called.

    >>> layer, x = MultiHeadAttention(embed_dim=8, num_heads=2), torch.randn(1, 5, 8)
    >>> with replaced(layer, {"heads": torch.zeros_like}):
    ...     output, _ = layer(x)
    >>> bool((output == layer.out_proj.bias).all())
    True
    """
    unmet = set(changes)

    def put(pattern, name, x):
        unmet.discard(pattern)
        new = changes[pattern](x) if callable(changes[pattern]) else changes[pattern]
        if getattr(new, "shape", None) != x.shape:  # it might be broadcast
            given = getattr(new, "shape", type(new).__name__)
            raise ValueError(f"{name} has {x.shape}; in its place is {given}.")
        return new.view_as(x)  # never x itself, also if the function wrote into it

    with ExitStack() as undo:
        for pattern in changes:
            undo.enter_context(_attached(model, [pattern], partial(put, pattern)))
        yield model
    if unmet:
        raise RuntimeError(f"{sorted(unmet)} was not called, so nothing was replaced.")


def record_attention(model: nn.Module, *inputs, **named) -> list[Tensor]:
    """Return the weights (batch, heads, queries, keys) of each attention in a model.

    One tensor per call of an attention, in the order of the calls of
    `model(*inputs, **named)`, in eval mode and without gradients. An attention is
    `MultiHeadAttention`, `nn.MultiheadAttention` (as in `nn.TransformerEncoder`), or
    the innermost module that takes need_weights, or whose class is called ...Attention
    (as in `transformers`), and that returns a tuple with the weights last.
    """
    found: list[Tensor] = []
    names = [f"{path}.weights".lstrip(".") for path in attention_layers(model)]
    with looking(model), _attached(model, names, lambda _, x: found.append(x)):
        model(*inputs, **named)
    if not found:
        name = type(model).__name__
        raise ValueError(f"{name} called no attention, no module with need_weights.")
    return found


@contextmanager
def looking(model: nn.Module) -> Iterator[nn.Module]:
    """Eval mode and no gradients for a `with` block; afterwards it is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            yield model.eval()
    finally:
        for module, training in modes:
            module.training = training


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return {path: attention} of a model (perhaps itself): see `record_attention`."""

    def takes(x):
        named = type(x).__name__.endswith("Attention")
        asked = "need_weights" in signature(type(x).forward).parameters
        return named or asked or isinstance(x, MultiHeadAttention)

    def innermost(x):  # a block may take need_weights only to hand it on
        return takes(x) and not any(takes(y) for y in x.modules() if y is not x)

    return {path: x for path, x in _modules(model).items() if innermost(x)}


def by_layer(names: Iterable[str]) -> dict[int, list[int]]:
    """Return {layer: [heads]}, as `ablate` takes them, of heads named "layer.head".

    >>> by_layer(["2.8", "0.3", "2.10"])
    {2: [8, 10], 0: [3]}
    """
    places = [tuple(map(int, name.split("."))) for name in names]
    return {layer: [head for at, head in places if at == layer] for layer, _ in places}


@contextmanager
def ablate(model: nn.Module, heads: Mapping, *, mode: str = "zero", mean_from=None):
    """Ablate heads of a model for a `with` block.

    heads: {layer: [heads]}, both from 0; layers are the model's `MultiHeadAttention`s
        in their order in it.
    mode: what takes the place of their outputs. "zero": zeros. "mean": their mean over
        all positions of mean_from, inputs of the model (a tensor, or a tuple of them).
    Source: Michel et al. 2019, section 3 ("zero").
    """
    layers = _course_layers(model)
    counts = {i: layer.num_heads for i, layer in enumerate(layers.values())}
    heads = {i: [*chosen] for i, chosen in heads.items()}
    if any(set(x) - set(range(counts.get(i, 0))) for i, x in heads.items()):
        raise ValueError(f"heads is {heads}; of each layer there are: {counts}.")
    if mode not in ("zero", "mean") or (mode == "mean") != (mean_from is not None):
        given = f"mode is {mode!r} and mean_from is {type(mean_from).__name__}"
        raise ValueError(f"{given}; give 'zero' alone, or 'mean' with mean_from.")
    named = {[*layers][i]: chosen for i, chosen in heads.items()}
    means = _means(model, named, mean_from) if mode == "mean" else {}

    def without(name, x):  # (batch, heads, queries, head_dim)
        ablated = torch.zeros(x.shape[1], 1, 1, dtype=torch.bool, device=x.device)
        ablated[named[name]] = True
        return torch.where(ablated, means.get(name, x.new_zeros(())), x)

    with replaced(model, {name: partial(without, name) for name in named}):
        yield model


def _means(model: nn.Module, names: Iterable[str], mean_from) -> dict[str, Tensor]:
    """Return {name: the mean (heads, 1, head_dim) of the outputs of the heads}."""
    inputs = mean_from if isinstance(mean_from, tuple) else (mean_from,)
    with looking(model), recorded(model, *names, every_call=True) as seen:
        model(*inputs)
    means = {}
    for name in names:  # (heads, tokens, head_dim) of each call
        calls = [x.transpose(0, 1).flatten(1, 2) for x in seen[name]]
        means[name] = torch.cat(calls, dim=1).mean(dim=1, keepdim=True)
    return means


def head_importance(model: nn.Module, loss: Callable, *examples: Tensor) -> Tensor:
    """Return how much the loss depends on each head: (layers, heads), at least 0.

    The mean over examples of |d loss / d gate|, where the gate is a number, 1, that is
    multiplied into the head's output: a head that helps here and harms there matters.
    loss: loss(model, *example) -> a tensor with one number, for a batch of one example.
    examples: tensors whose first axis is the examples, e.g. ids, targets.
    Michel et al. then divide by the norm of each layer: F.normalize(importance, dim=1).
    Source: Michel et al. 2019, section 4.1.
    """
    gates, sizes = {}, []
    for name, layer in _course_layers(model).items():
        ones = layer.out_proj.weight.new_ones(layer.num_heads, 1, 1)
        gates[name] = ones.requires_grad_()

    def gate(name, x):  # (batch, heads, queries, head_dim)
        return x * gates[name].to(x)

    with looking(model), torch.enable_grad(), _attached(model, gates, gate):
        for example in zip(*(x.split(1) for x in examples), strict=True):
            value, each = loss(model, *example), [*gates.values()]
            # 0 for a layer that was not called
            slopes = torch.autograd.grad(value, each, materialize_grads=True)
            sizes.append(torch.stack(slopes).abs())
    return torch.stack(sizes).mean(0)[..., 0, 0]


def _course_layers(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Return {name of its heads: layer}; all must be of the course's kind."""
    layers = attention_layers(model)
    ours = [isinstance(x, MultiHeadAttention) for x in layers.values()]
    if not (ours and all(ours)):
        kinds = [type(x).__name__ for x in layers.values()]
        how = "replace each: MultiHeadAttention.from_torch(layer)"
        raise TypeError(f"the attention layers are {kinds}; {how}.")
    return {f"{path}.heads".lstrip("."): layer for path, layer in layers.items()}


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return {path: module}, without what `torch.compile` has put around modules."""
    return {
        ".".join(step for step in path.split(".") if step != "_orig_mod"): module
        for path, module in model.named_modules()
    }


def _activations(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return {name: (module, part)}; the part "" is what the module puts out."""
    known = {path: (x, "") for path, x in _modules(model).items() if path}
    for path, layer in attention_layers(model).items():
        for part in PARTS if isinstance(layer, MultiHeadAttention) else ["weights"]:
            known.setdefault(f"{path}.{part}".lstrip("."), (layer, part))
    return known


def _fitting(pattern: str, known: Iterable[str]) -> list[str]:
    """Return the names that a pattern fits."""
    steps = pattern.count(".")
    found = [x for x in known if fnmatchcase(x, pattern) and x.count(".") == steps]
    if not found:
        near = get_close_matches(pattern, known, 5, cutoff=0.3) or [*known][:5]
        raise ValueError(f"the model has no {pattern!r}, but it has, e.g., {near}.")
    return found


@contextmanager
def _attached(model: nn.Module, patterns: Iterable[str], function: Callable):
    """Put function(name, x), unless it is None, in the place of each activation x."""
    known = _activations(model)
    names = dict.fromkeys(name for each in patterns for name in _fitting(each, known))
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.compiler.set_stance("force_eager"), ExitStack() as undo:
        undo.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        for name in names:
            module, part = known[name]
            if part:
                module = _gate(module, part, undo)
            hook = partial(_output, partial(function, name))
            undo.enter_context(module.register_forward_hook(hook))
        yield


def _output(function, module, inputs, output):
    """Be a forward hook: change the output of a module, or the first of several."""
    if isinstance(output, Tensor):
        return function(output)
    first = next(iter(output)) if isinstance(output, Mapping) else 0
    new = function(output[first])
    if new is None:
        return None
    if isinstance(output, tuple):
        return (new, *output[1:])
    output = copy.copy(output)  # of `transformers`
    output[first] = new
    return output


def _gate(layer: nn.Module, part: str, undo: ExitStack) -> nn.Module:
    """Return the module that a part of a layer goes through until this is undone."""
    if "_gates" not in vars(layer):
        layer._gates = {}
        undo.callback(delattr, layer, "_gates")
        if isinstance(layer, MultiHeadAttention):
            attend = partial(_attend, layer, layer.attend)
            undo.enter_context(patch.object(layer, "attend", attend))
            merged = partial(_merged, layer)
            undo.enter_context(layer.out_proj.register_forward_pre_hook(merged))
    if part not in layer._gates:
        layer._gates[part] = nn.Identity()
        undo.callback(layer._gates.pop, part)
        if part == "weights":
            forward = partial(_asked, layer, layer.forward)
            undo.enter_context(patch.object(layer, "forward", forward))
    return layer._gates[part]


def _through(layer, part: str, x):
    return layer._gates[part](x) if part in layer._gates else x


def _attend(layer, attend, q, k, v, mask, bias, need_weights: bool):
    """Stand in the place of the `attend` of a `MultiHeadAttention`."""
    q, k, v = (_through(layer, part, x) for part, x in zip(PARTS, (q, k, v)))
    asked = need_weights or "weights" in layer._gates
    heads, weights = attend(q, k, v, mask, bias, asked)
    new = _through(layer, "weights", weights)
    if new is not weights:
        kept = F.dropout(new, layer.dropout, layer.training)
        heads = kept.to(v.dtype) @ v  # (batch, heads, queries, head_dim)
    return heads, new if need_weights else None


def _merged(layer, out_proj, inputs):
    """Stand before `out_proj`, which gets the heads side by side."""
    heads = split_heads(inputs[0], layer.num_heads)
    return merge_heads(_through(layer, "heads", heads))


def _asked(layer, forward, *inputs, **named):
    """Stand in the place of `forward`; the caller gets what it asked for."""
    call = signature(forward).bind(*inputs, **named)
    call.apply_defaults()
    shown = call.arguments.get("need_weights", True)
    mean = call.arguments.get("average_attn_weights", False)
    for option, value in ("need_weights", True), ("average_attn_weights", False):
        if option in call.arguments:
            call.arguments[option] = value
    result = forward(*call.args, **call.kwargs)
    weights = result[-1] if isinstance(result, tuple) and len(result) > 1 else None
    if not isinstance(layer, MultiHeadAttention):
        _look(layer, weights)
    weights = weights.mean(dim=-3) if mean else weights
    return (*result[:-1], weights if shown else None)


def _look(layer: nn.Module, weights) -> None:
    """Let the weights that an attention returns go through their gate."""
    kind = type(layer).__name__
    if not isinstance(weights, Tensor) or weights.dim() not in (3, 4):
        returns = f"{kind} must return (output, weights), weights of 4 axes"
        how = '`transformers`: attn_implementation="eager" or output_attentions=True'
        raise ValueError(f"{returns}; {how}.")
    each = weights if weights.dim() == 4 else weights[None]  # one sequence
    if _through(layer, "weights", each) is not each:
        raise ValueError(f"weights of {kind} are only recorded.")
