"""Interventions: what a model does without some of its heads.

Heads are named as in {layer: [heads]}, both from 0; layers are the model's
`MultiHeadAttention`s in their order in it. The layer itself knows nothing of this: all
is done by hooks on its out_proj, which is given the outputs of the heads side by side.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from utils.attention import MultiHeadAttention
from utils.checks import check_choice, check_layout, check_size
from utils.recording import attention_layers, looking

__all__ = ["ablate", "head_importance", "least_important_first"]

Heads = Mapping[int, Sequence[int]]


@contextmanager
def ablate(
    model: nn.Module, heads: Heads, *, mode: str = "zero", mean_from=None
) -> Iterator[nn.Module]:
    """Ablate heads of a model for a `with` block; afterwards it is as it was.

    heads: {layer: [heads]}. mode: what stands in the place of their outputs. "zero":
        zeros. "mean": their mean over all positions of mean_from, the inputs of the
        model (a tensor, or a tuple of them).
    Copies that run through this model by `functional_call` and `vmap` are ablated, too
    (`vmap` knows attention under `sdpa_kernel(SDPBackend.MATH)` only, as `train_many`).
    (The mean is that of one model: under `vmap` it is refused.)
    Source: Michel et al. 2019, section 3 ("zero").

    >>> layer, x = MultiHeadAttention(embed_dim=8, num_heads=2), torch.randn(1, 5, 8)
    >>> with ablate(layer, {0: [0, 1]}):
    ...     output, _ = layer(x)
    >>> bool((output == layer.out_proj.bias).all())
    True
    """
    layers = _checked_layers(model, heads)
    check_choice("mode", mode, ("zero", "mean"))
    if (mode == "mean") != (mean_from is not None):
        given = f"mode is {mode!r} and mean_from is {type(mean_from).__name__}"
        raise ValueError(f'{given}; "mean" needs inputs of the model, "zero" none.')
    means = _mean_outputs(model, layers, heads, mean_from) if mode == "mean" else {}
    with ExitStack() as hooks:
        for index, chosen in heads.items():
            _ablate(layers[index], chosen, means.get(index), hooks)
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
    layers = _course_layers(model)
    heads, sizes = [x.num_heads for x in layers], [len(x) for x in examples]
    if len(set(heads)) > 1:
        raise ValueError(f"{heads} heads do not fit in one table: ask part by part.")
    if len(set(sizes)) != 1 or 0 in sizes:
        raise ValueError(f"examples have first axes {sizes}; give as many in each.")
    gates = [x.out_proj.weight.new_ones(x.num_heads).requires_grad_() for x in layers]
    total = torch.zeros_like(torch.stack(gates))
    with looking(model), torch.enable_grad(), ExitStack() as hooks:
        for layer, gate in zip(layers, gates):
            hooks.enter_context(_changed(layer, partial(_times, gate)))
        for i in range(sizes[0]):
            value = loss(model, *(x[i : i + 1] for x in examples))
            if value.numel() != 1 or not value.requires_grad:
                raise ValueError("loss must be one number that depends on the heads.")
            # 0 for a layer that was not called
            slopes = torch.autograd.grad(value, gates, materialize_grads=True)
            total += torch.stack(slopes).abs()
    return total / sizes[0]


def least_important_first(importance: Tensor) -> list[tuple[int, int]]:
    """Return (layer, head) of all heads, ordered by importance (layers, heads).

    >>> least_important_first(torch.tensor([[3.0, 1.0], [2.0, 4.0]]))
    [(0, 1), (1, 0), (0, 0), (1, 1)]
    """
    check_layout("importance", importance, "(layers, heads)", 2)
    order = importance.flatten().argsort(stable=True).tolist()
    return [divmod(place, importance.shape[1]) for place in order]


def _changed(layer: MultiHeadAttention, change: Callable[[Tensor], Tensor]):
    """Return a hook that changes what the heads of a layer hand to its out_proj.

    change: x (batch, queries, embed_dim), the heads side by side -> the same shape.
    """
    hook = layer.out_proj.register_forward_pre_hook
    return hook(lambda _, inputs: (change(inputs[0]),))


def _times(gate: Tensor, x: Tensor) -> Tensor:
    """Return the outputs of the heads, each multiplied by its gate (heads,)."""
    return (x.unflatten(-1, (len(gate), -1)) * gate[:, None].to(x)).flatten(-2)


def _ablate(layer, heads: Sequence[int], mean: Tensor | None, hooks: ExitStack):
    """Hook a layer so that these heads hand `mean` (embed_dim,) on, or zeros if None.

    A second hook sees, after each call of the layer, that out_proj was asked.
    """
    ablated = torch.zeros(layer.num_heads, layer.head_dim, dtype=torch.bool)
    ablated[list(heads)] = True
    asked: list[bool] = []

    def change(x):
        asked.append(True)
        if mean is not None:
            _refuse_copies(x)
        instead = x.new_zeros(()) if mean is None else mean.to(x)
        return torch.where(ablated.flatten().to(x.device), instead, x)

    def check(layer, inputs, outputs):
        if not asked:
            name = type(layer).__name__
            raise RuntimeError(f"{name} must call its out_proj: self.out_proj(...).")
        asked.clear()

    hooks.enter_context(_changed(layer, change))
    hooks.enter_context(layer.register_forward_hook(check))


def _refuse_copies(x: Tensor) -> None:
    """Refuse the outputs of many copies at once: under `vmap` they have no memory."""
    try:
        torch.compiler.is_compiling() or x.data_ptr()
    except RuntimeError:
        why = "a mean is one model's: ablate the copies one by one."
        raise RuntimeError(why) from None


def _mean_outputs(model: nn.Module, layers, heads: Heads, mean_from) -> dict:
    """Return {layer: the mean (embed_dim,) of what its out_proj is given}."""
    seen: dict[int, list[Tensor]] = {index: [] for index in heads}
    inputs = mean_from if isinstance(mean_from, tuple) else (mean_from,)
    with looking(model), ExitStack() as hooks:
        for index, outputs in seen.items():

            def keep(x, outputs=outputs):
                outputs.append(x.flatten(0, 1))  # (tokens, embed_dim)
                return x

            hooks.enter_context(_changed(layers[index], keep))
        model(*inputs)
    for index, outputs in seen.items():
        if sum(map(len, outputs)) == 0:
            why = "mean_from holds no token, or its out_proj is not called"
            raise ValueError(f"layer {index} has no output to average: {why}.")
    return {index: torch.cat(outputs).mean(0) for index, outputs in seen.items()}


def _checked_layers(model: nn.Module, heads: Heads) -> list[MultiHeadAttention]:
    """Return the layers of a model, or refuse heads that it does not have."""
    layers = _course_layers(model)
    if not isinstance(heads, Mapping):
        raise TypeError(f"heads is {heads!r}; give {{layer: [heads]}}.")
    for index, chosen in heads.items():
        check_size("layer", index)
        if index >= len(layers):
            raise ValueError(f"there is no layer {index} of {len(layers)}, from 0.")
        if not isinstance(chosen, Sequence):
            raise TypeError(f"heads of layer {index} are {chosen!r}; give a list.")
        many = layers[index].num_heads
        for head in chosen:
            check_size("head", head)
            if head >= many:
                raise ValueError(f"layer {index} has no head {head} of {many}, from 0.")
    return layers


def _course_layers(model: nn.Module) -> list[MultiHeadAttention]:
    """Return the attention layers of a model, which must be the course's own."""
    layers = attention_layers(model)
    if not layers or not all(isinstance(x, MultiHeadAttention) for x in layers):
        kinds = f"the attention layers are {[type(x).__name__ for x in layers]}"
        raise TypeError(f"{kinds}; replace each: MultiHeadAttention.from_torch(layer).")
    return layers
