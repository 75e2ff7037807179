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

All of this is done by forward hooks: in a `with` block, a part goes through a module of
its own that returns what it is given. Compiled code and PyTorch's fast path would not
call the hooks, so both are off in the block. Of two blocks that change the same
activation, the one that was entered later gets what the earlier one left. Afterwards
the model is as it was, also after an error.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
KINDS = (MultiHeadAttention, nn.MultiheadAttention)
Changes = Mapping[str, Tensor | Callable[[Tensor], Tensor]]
Heads = Mapping[int, Sequence[int]]  # {layer: [heads]}, both from 0


@contextmanager
def recorded(model: nn.Module, *names: str, every_call=False) -> Iterator[dict]:
    """Give {name: tensor} for a `with` block, filled when the model runs in it.

    names: see the top of this file; a pattern gives an entry for each name that it
        fits. What is not called has no entry.
    every_call: a list with a tensor for each call, instead of the tensor of the last.
    The tensors are those with which the model goes on, so gradients with respect to
    them can be asked for (but not for the weights of other attentions than the
    course's). Where none is needed, use `torch.no_grad()`; choose eval mode.

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
def replaced(model: nn.Module, changes: Changes) -> Iterator[nn.Module]:
    """Replace activations of a model for a `with` block.

    changes: {name: a tensor of the same shape, or a function of what is there, called
        each time}; names: see the top of this file.
    Gradients pass through a function. Replaced weights are dropped out in training, as
    others are. A cache keeps the keys and values that were there.

    >>> layer, x = MultiHeadAttention(embed_dim=8, num_heads=2), torch.randn(1, 5, 8)
    >>> with replaced(layer, {"heads": torch.zeros_like}):
    ...     output, _ = layer(x)
    >>> bool((output == layer.out_proj.bias).all())
    True
    """
    never = set(changes)

    def put(pattern, name, x):
        never.discard(pattern)
        new = changes[pattern](x) if callable(changes[pattern]) else changes[pattern]
        if getattr(new, "shape", None) != x.shape:  # it might be broadcast
            given = getattr(new, "shape", type(new).__name__)
            raise ValueError(f"{name} has {x.shape}; in its place is {given}.")
        return new.view_as(x)  # never x itself, also if the function wrote into it

    with ExitStack() as undo:
        for pattern in changes:
            undo.enter_context(_attached(model, [pattern], partial(put, pattern)))
        yield model
    if never:
        raise RuntimeError(f"{sorted(never)} was not called, so nothing was replaced.")


def record_attention(model: nn.Module, *inputs, **named) -> list[Tensor]:
    """Return the weights (batch, heads, queries, keys) of each attention in a model.

    One tensor per call of an attention, in the order of the calls of
    `model(*inputs, **named)`, in eval mode and without gradients.
    An attention is `MultiHeadAttention`, `nn.MultiheadAttention` (as in
    `nn.TransformerEncoder`), or the innermost module that takes need_weights, or whose
    class is called ...Attention (as in `transformers`), and that returns a tuple with
    the weights last.
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
        named = type(x).__name__.endswith("Attention") or isinstance(x, KINDS)
        return named or "need_weights" in signature(type(x).forward).parameters

    def innermost(x):  # a block may take need_weights only to hand it on
        return takes(x) and not any(takes(y) for y in x.modules() if y is not x)

    found = _modules(model).items()
    return {path: x for path, x in found if isinstance(x, KINDS) or innermost(x)}


@contextmanager
def ablate(model: nn.Module, heads: Heads, *, mode: str = "zero", mean_from=None):
    """Ablate heads of a model for a `with` block.

    heads: {layer: [heads]}, both from 0; layers are the model's `MultiHeadAttention`s
        in their order in it.
    mode: what takes the place of their outputs. "zero": zeros. "mean": their mean over
        all positions of mean_from, inputs of the model (a tensor, or a tuple of them).
    Copies that run through this model by `functional_call` and `vmap`, as in
    `train_many`, are ablated, too, but not by a mean, which is one model's.
    Source: Michel et al. 2019, section 3 ("zero").
    """
    layers = [*_course_layers(model).items()]
    counts = {i: layer.num_heads for i, (_, layer) in enumerate(layers)}
    heads = {i: [*chosen] for i, chosen in heads.items()}
    if any(set(x) - set(range(counts.get(i, 0))) for i, x in heads.items()):
        raise ValueError(f"heads is {heads}; of each layer there are: {counts}.")
    if mode not in ("zero", "mean") or (mode == "mean") != (mean_from is not None):
        given = f"mode is {mode!r} and mean_from is {type(mean_from).__name__}"
        raise ValueError(f"{given}; give 'zero' alone, or 'mean' with mean_from.")
    named = {layers[i][0]: chosen for i, chosen in heads.items()}
    means = _means(model, named, mean_from) if mode == "mean" else {}

    def without(name, x):  # (batch, heads, queries, head_dim)
        ablated = torch.zeros(x.shape[1], 1, 1, dtype=torch.bool, device=x.device)
        ablated[named[name]] = True
        if mode == "zero":
            return x.masked_fill(ablated, 0.0)
        try:
            x.data_ptr()
        except RuntimeError:  # the copies under `vmap` have no memory
            why = "a mean is one model's: ablate the copies one by one."
            raise RuntimeError(why) from None
        return torch.where(ablated, means[name].to(x), x)

    with replaced(model, {name: partial(without, name) for name in named}):
        yield model


def head_importance(model: nn.Module, loss: Callable, *examples: Tensor) -> Tensor:
    """Return how much the loss depends on each head: (layers, heads), at least 0.

    The mean over examples of |d loss / d gate|, where the gate is a number, 1, that is
    multiplied into the head's output. The absolute value is taken for each example: a
    head that helps here and harms there matters.
    loss: loss(model, *example) -> a tensor with one number, for a batch of one example.
    examples: tensors whose first axis is the examples, e.g. ids, targets.
    Michel et al. then divide by the norm of each layer: F.normalize(importance, dim=1).
    Source: Michel et al. 2019, section 4.1.
    """
    sizes = {len(x) for x in examples}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"examples have first axes {sizes}; give as many in each.")
    gates = {  # (heads, 1, 1)
        name: x.out_proj.weight.new_ones(x.num_heads, 1, 1, requires_grad=True)
        for name, x in _course_layers(model).items()
    }
    total, ones = 0, [*gates.values()]

    def gate(name, x):  # (batch, heads, queries, head_dim)
        return x * gates[name].to(x)

    with looking(model), torch.enable_grad(), _attached(model, gates, gate):
        for example in zip(*(x.split(1) for x in examples)):
            value = loss(model, *example)
            # 0 for a layer that was not called
            slopes = torch.autograd.grad(value, ones, materialize_grads=True)
            total = total + torch.stack(slopes).abs()
    return total[..., 0, 0] / sizes.pop()


def _course_layers(model: nn.Module) -> dict[str, MultiHeadAttention]:
    """Return {name of its heads: layer}; all must be of the course's kind."""
    layers = attention_layers(model)
    own = {path: x for path, x in layers.items() if isinstance(x, MultiHeadAttention)}
    if not own or own != layers:
        kinds = [type(layer).__name__ for layer in layers.values()]
        how = "replace each: MultiHeadAttention.from_torch(layer)"
        raise TypeError(f"the attention layers are {kinds}; {how}.")
    return {f"{path}.heads".lstrip("."): layer for path, layer in own.items()}


def _means(model: nn.Module, names: Iterable[str], mean_from) -> dict[str, Tensor]:
    """Return {name: the mean (heads, 1, head_dim) of the outputs of the heads}."""
    inputs = mean_from if isinstance(mean_from, tuple) else (mean_from,)
    with looking(model), recorded(model, *names, every_call=True) as seen:
        model(*inputs)
    means = {}
    for name in names:  # (tokens, heads, head_dim)
        outputs = torch.cat([x.transpose(1, 2).flatten(0, 1) for x in seen[name]])
        if len(outputs) == 0:
            raise ValueError("mean_from holds no token: there is nothing to average.")
        means[name] = outputs.mean(0)[:, None]
    return means


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return {path: module}, without what `torch.compile` has put around modules."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; give an nn.Module.")
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
    """Put function(name, x) in the place of each activation x, unless it is None."""
    known = _activations(model)
    names = dict.fromkeys(name for each in patterns for name in _fitting(each, known))
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.compiler.set_stance("force_eager"), ExitStack() as undo:
        undo.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        for name in names:
            module, part = known[name]
            if part:
                module = undo.enter_context(_way_of(module, part))
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


# --- inside an attention layer ---


@contextmanager
def _way_of(layer: nn.Module, part: str) -> Iterator[nn.Module]:
    """Give the module that a part of an attention layer goes through meanwhile."""
    with ExitStack() as undo:
        if "_parts" not in vars(layer):
            layer._parts = _Parts(layer, undo)
            undo.callback(delattr, layer, "_parts")
        parts = layer._parts
        parts.wanted.append(part)
        undo.callback(parts.wanted.remove, part)
        yield parts.modules[part]


class _Parts:
    """An attention layer whose parts go through modules, one for each part.

    Such a module returns what it is given: hooks see and change it as any output.
    """

    def __init__(self, layer: nn.Module, undo: ExitStack):
        self.layer, self.modules = layer, {part: nn.Identity() for part in PARTS}
        self.wanted, self.gone = [], set()  # parts that hooks are on; that went through
        self.call, self.attend = layer.forward, getattr(layer, "attend", None)
        undo.enter_context(patch.object(layer, "forward", self.asked))
        undo.enter_context(layer.register_forward_hook(self.check))
        if isinstance(layer, MultiHeadAttention):
            undo.enter_context(patch.object(layer, "attend", self.attended))
            undo.enter_context(layer.out_proj.register_forward_pre_hook(self.merged))

    def through(self, part: str, x):
        self.gone.add(part)
        return self.modules[part](x)

    def attended(self, q, k, v, *options):
        """Stand in the place of the layer's `attend`."""
        q, k, v = map(self.through, PARTS, (q, k, v))
        heads, weights = self.attend(q, k, v, *options)
        new = self.through("weights", weights)
        if new is not weights:
            kept = F.dropout(new, self.layer.dropout, self.layer.training)
            heads = kept.to(v.dtype) @ v  # (batch, heads, queries, head_dim)
        return heads, new

    def merged(self, out_proj, inputs):
        """Stand before `out_proj`, which gets the heads side by side."""
        heads = split_heads(inputs[0], self.layer.num_heads)
        return merge_heads(self.through("heads", heads))

    def asked(self, *inputs, **named):
        """Stand in the place of `forward`; the caller gets what it asked for."""
        if "weights" not in self.wanted:
            return self.call(*inputs, **named)
        names, shown, mean = list(signature(self.call).parameters), True, False
        torchs = isinstance(self.layer, nn.MultiheadAttention)
        if "need_weights" in names:  # given by position? Then name it
            n = names.index("need_weights")
            inputs, named = inputs[:n], dict(zip(names[n:], inputs[n:])) | named
        if "need_weights" in names or isinstance(self.layer, KINDS):
            shown, named["need_weights"] = named.get("need_weights", torchs), True
        if torchs:
            mean = named.get("average_attn_weights", True)
            named["average_attn_weights"] = False
        *outputs, weights = self.with_weights(self.call(*inputs, **named))
        weights = weights.mean(dim=-3) if mean else weights
        return (*outputs, weights if shown else None)

    def with_weights(self, result) -> tuple:
        """Return what a layer put out, the weights last, after a look at them."""
        weights = result[-1] if isinstance(result, tuple) else None
        kind = type(self.layer).__name__
        if not isinstance(weights, Tensor) or weights.dim() not in (3, 4):
            returns = f"{kind} must return (output, weights), weights of 4 axes"
            how = 'a model of `transformers` with attn_implementation="eager"'
            raise ValueError(f"{returns}; {how}.")
        if not isinstance(self.layer, MultiHeadAttention):
            each = weights if weights.dim() == 4 else weights[None]  # one sequence
            if self.through("weights", each) is not each:
                raise ValueError(f"weights of {kind} are only recorded.")
        return result

    def check(self, layer, inputs, result):
        """Stand behind the layer: refuse a call that went round what is wanted."""
        missing, self.gone = set(self.wanted) - self.gone, set()
        if missing:
            where = "out_proj" if missing == {"heads"} else "attend"
            raise RuntimeError(f"{type(layer).__name__} must call its {where}.")
