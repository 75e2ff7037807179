"""Nulls: what a head scores that does nothing of the kind.

A null is an attention (batch, heads, queries, keys) like the one that was found, and
its score is the same metric of it. A null may do whatever the finding was allowed to
do: be as sharp, and choose the best of as many heads.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from utils.attention import MultiHeadAttention
from utils.checks import check_size, holds, shape_of
from utils.counting import AXES
from utils.heads import entropy
from utils.recording import attention_layers, recorded

__all__ = [
    "best_of",
    "uniform_attention",
    "entropy_matched_copy",
    "untrained_copy",
]

RESET = (
    "reset_parameters",
    "_reset_parameters",
)  # the second is nn.MultiheadAttention's


def uniform_attention(mask_or_shape, mask: Tensor | None = None) -> Tensor:
    """Return the attention that reads all that may be read, all alike.

    uniform_attention(mask): mask (queries, keys), or with more axes in front, bool, True =
    may be read. uniform_attention(shape) or uniform_attention(shape, mask): a shape (batch, heads,
    queries, keys), so that it can stand beside an attention of that shape.
    A query that may read nothing has zeros. At least four axes come back.

    >>> from utils.attention import causal_mask
    >>> uniform_attention(causal_mask(2))
    tensor([[[[1.0000, 0.0000],
              [0.5000, 0.5000]]]])
    """
    if isinstance(mask_or_shape, Tensor):
        if mask is not None:
            raise TypeError(
                "with a mask give a shape first: uniform_attention(a.shape, mask)."
            )
        mask, shape = mask_or_shape, mask_or_shape.shape
    else:
        shape = tuple(mask_or_shape)
        for size in shape:
            check_size("a size of the shape", size, least=1)
        mask = torch.ones(shape[-2:], dtype=torch.bool) if mask is None else mask
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() < 2:
        given = f"{mask.dtype} {shape_of(mask)}" if isinstance(mask, Tensor) else mask
        raise ValueError(
            f"mask is {given}; give bool (..., queries, keys), True = may be read. For "
            "an attention give its shape."
        )
    shape = (1,) * (4 - len(shape)) + tuple(shape)
    try:
        mask = mask.expand(shape)
    except RuntimeError:
        message = f"a mask of shape {shape_of(mask)} does not fit {AXES} = {shape}."
        raise ValueError(message) from None
    return mask / mask.sum(-1, keepdim=True).clamp(min=1)


def untrained_copy(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a model with fresh weights, as its modules draw them.

    Every module's reset_parameters() is called, the outer ones last, after
    torch.manual_seed(seed); your own random numbers go on as if nothing was.

    >>> layer = MultiHeadAttention(embed_dim=8, num_heads=2)
    >>> twin = untrained_copy(layer, seed=0)
    >>> bool((twin.query_proj.weight == layer.query_proj.weight).any())
    False
    """
    check_size("seed", seed)
    attention_layers(model)  # speaks, if this is no model
    twin = copy.deepcopy(model)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        for name, module in reversed(list(twin.named_modules())):
            reset = next(
                (getattr(module, r) for r in RESET if hasattr(module, r)), None
            )
            if reset is not None:
                reset()
            elif next(module.parameters(recurse=False), None) is not None:
                raise ValueError(
                    f"{name or 'the model'} ({type(module).__name__}) has weights and "
                    "no reset_parameters(); write one, or build the twin with the "
                    "function that built the model."
                )
    return twin


def entropy_matched_copy(
    untrained: nn.Module,
    inputs,
    entropies: Sequence[Tensor],
    *,
    mask: Tensor | None = None,
    queries: Tensor | None = None,
    tolerance: float = 0.01,
) -> nn.Module:
    """Return a copy of an untrained model whose heads are as sharp as those found.

    An untrained softmax is flat, and loses to everything that is sharp, whatever it
    reads. Here each head's query weights and bias are multiplied by one number, so that
    its mean entropy on these inputs becomes the given one; layer by layer, as each
    reads what those before it write.
    inputs: of the model, a tensor or a tuple of them. entropies: per layer, in the
    order of the calls, (heads,): `entropy(...).nanmean(0)` of the heads found, with
    the same mask and queries.
    Raises ValueError if a head misses its entropy by more than `tolerance`: equal keys
    are read alike however large the queries are, and biases of positions stay.

    >>> layer, x = MultiHeadAttention(embed_dim=8, num_heads=2), torch.randn(4, 6, 8)
    >>> twin = entropy_matched_copy(layer, x, [torch.tensor([0.3, 0.6])])
    >>> entropy(twin(x, need_weights=True)[1]).mean(0).tolist()
    [0.3, 0.6]
    """
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    twin = copy.deepcopy(untrained)
    layers = _layers_called(twin, inputs)
    targets = _checked_targets(entropies, layers)

    target_of = dict(zip(map(id, layers), targets))

    def mean_entropy(weights: Tensor) -> Tensor:
        return entropy(weights, mask=mask, queries=queries).nanmean(0)  # (heads,)

    def sharpen(layer: nn.Module, weights_now) -> None:
        target = target_of[id(layer)]
        once = weights_now()
        _scale_queries(layer, torch.full_like(target, 2.0))
        factors = _factors(once, weights_now(), target, mean_entropy)
        _scale_queries(layer, factors / 2)

    recorded(twin, inputs, {}, before=sharpen)  # each, before the next reads it
    found = [mean_entropy(weights) for _, weights in recorded(twin, inputs, {})]
    _check_sharp(found, targets, tolerance)
    return twin


def best_of(*scores: Tensor) -> Tensor:
    """Return the scores (batch,) of the best choice: the one with the highest mean.

    scores: (batch, choices), or with more axes, e.g. of the heads of each layer, or of
    the same heads at each of several offsets. The null of a best head is a best head.

    >>> first, second = (
    ...     torch.tensor([[0.1, 0.2], [0.1, 0.4]]),
    ...     torch.tensor([[1.0], [0]]),
    ... )
    >>> best_of(first, second)
    tensor([1., 0.])
    """
    for x in scores:
        if not isinstance(x, Tensor) or x.dim() < 2 or len(x) != len(scores[0]):
            given = [shape_of(x) if isinstance(x, Tensor) else x for x in scores]
            raise ValueError(
                f"scores are {given}; give tensors (batch, choices) of one batch."
            )
    if not scores:
        raise ValueError("there are no scores to choose from.")
    every = torch.cat([x.flatten(1) for x in scores], dim=1)  # (batch, choices)
    return every[:, every.nanmean(0).nan_to_num(-torch.inf).argmax()]


def _layers_called(model: nn.Module, inputs) -> list[nn.Module]:
    """Return the attentions in the order of their calls, each called once."""
    layers = [layer for layer, _ in recorded(model, inputs, {})]
    if len({id(layer) for layer in layers}) < len(layers):
        raise ValueError(
            "an attention is called more than once, so its query weights serve several "
            "layers; a twin can be sharpened only where each layer has its own."
        )
    for layer in layers:
        if not isinstance(layer, (MultiHeadAttention, nn.MultiheadAttention)):
            raise TypeError(
                f"{type(layer).__name__} is an attention whose query weights are not "
                "known here; MultiHeadAttention and nn.MultiheadAttention can be "
                "sharpened."
            )
    return layers


def _checked_targets(entropies, layers) -> list[Tensor]:
    """Return the entropies (heads,) of each layer, or refuse what does not fit."""
    if isinstance(entropies, Tensor) and entropies.dim() != 2:
        raise ValueError(f"entropies are {shape_of(entropies)}; give (layers, heads).")
    targets = [torch.as_tensor(each) for each in entropies]
    expected = [(layer.num_heads,) for layer in layers]
    given = [shape_of(each) for each in targets]
    if given != expected:
        raise ValueError(
            f"entropies have shapes {given}; this model needs one number per head, "
            f"{expected}: entropy(...).nanmean(0) of each layer."
        )
    for each in targets:
        if not holds((each >= 0) & (each <= 1)):
            raise ValueError(f"entropies are {each.tolist()}; give shares, 0 to 1.")
    return targets


def _factors(once: Tensor, twice: Tensor, target: Tensor, mean_entropy) -> Tensor:
    """Return by how much the queries (heads,) must grow for the wanted entropy.

    once, twice: the weights, and those with queries twice as long. The logarithms of
    the two differ by the scores that grow with the query: what a mask or a bias of
    positions adds is in both.
    """
    target = target.to(once)
    read = (once > 0) & (twice > 0)
    grown = (twice.log() - once.log()).where(read, 0)
    start = once.log().where(read, -torch.inf)
    low, high = torch.full_like(target, -10.0), torch.full_like(target, 20.0)
    for _ in range(18):  # halve the range of the exponent: 30 becomes 0.0001
        middle = (low + high) / 2
        weights = (start + (2**middle - 1)[:, None, None] * grown).softmax(-1)
        flat = mean_entropy(weights) > target
        low, high = middle.where(flat, low), high.where(flat, middle)
    return 2**high


@torch.no_grad()
def _scale_queries(layer: nn.Module, factors: Tensor) -> None:
    """Multiply the query weights and bias of each head, in place."""
    if isinstance(layer, MultiHeadAttention):
        owned = [layer.query_proj.weight, layer.query_proj.bias]
    elif layer.in_proj_weight is None:
        owned = [layer.q_proj_weight, layer.in_proj_bias]
    else:
        owned = [layer.in_proj_weight, layer.in_proj_bias]
    each = factors.repeat_interleave(layer.embed_dim // layer.num_heads)
    for tensor in owned:
        if tensor is not None:  # queries come first where keys and values follow
            rows = tensor[: layer.embed_dim]
            rows.mul_(each.to(rows).view(-1, *[1] * (rows.dim() - 1)))


def _check_sharp(found: list[Tensor], targets: list[Tensor], tolerance: float) -> None:
    """Refuse a twin that is not as sharp as it should be."""
    for i, (reached, wanted) in enumerate(zip(found, targets)):
        if not holds((reached - wanted).abs() <= tolerance):
            raise ValueError(
                f"layer {i}: the heads' entropies became "
                f"{[round(x, 3) for x in reached.tolist()]}, wanted were "
                f"{[round(x, 3) for x in wanted.tolist()]}. Equal keys are read alike "
                "however large the queries are, and a bias of positions stays; take "
                "other inputs, or allow it by tolerance=."
            )
