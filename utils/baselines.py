"""Baselines: what a head without the skill scores, and how far chance could go.

A baseline is attention weights of the same shape as those that were found, of a model
that has learned nothing, scored by the same metric. It may do whatever the finding was
allowed to do: attend as sharply, and be chosen as the best of as many heads.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.special import entr

from utils.heads import checked, normalised_entropy
from utils.masks import visible_keys
from utils.recording import attention_layers, looking, record_attention, recorded


def uniform_attention(shape: Sequence[int], mask: Tensor | None = None) -> Tensor:
    """Return attention weights that are equal for all keys visible to a query.

    shape: (batch, heads, queries, keys), or only its last axes, e.g. (queries, keys):
        those that are missing in front become 1.
    mask: as in `heads.py`. A query without a visible key has zeros.

    >>> uniform_attention((2, 2), torch.tensor([[True, False], [True, True]]))
    tensor([[[[1.0000, 0.0000],
              [0.5000, 0.5000]]]])
    """
    visible = visible_keys(mask, (1,) * (4 - len(shape)) + tuple(shape))
    return visible / visible.sum(-1, keepdim=True).clamp(min=1)


def untrained_copy(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a model whose weights are drawn anew, as before any training.

    seed: of the new weights. Every module draws its own, by its `reset_parameters()`,
        the outer modules last. Your own random state does not change.
    ValueError if a module has weights and no such method.
    """
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        for name, module in reversed(list(fresh.named_modules())):
            # nn.MultiheadAttention spells it with an underscore
            names = ("reset_parameters", "_reset_parameters")
            if reset := [getattr(module, x) for x in names if hasattr(module, x)]:
                reset[0]()
            elif [*module.parameters(recurse=False)]:
                kind = f"{name or 'the model'} ({type(module).__name__})"
                raise ValueError(f"{kind} has weights and no reset_parameters().")
    return fresh


def entropy_matched_copy(
    untrained: nn.Module, inputs, entropies, *, mask=None, queries=None
) -> nn.Module:
    """Return a copy of an untrained model whose heads attend as sharply as asked.

    An untrained head attends to all keys nearly alike, a trained one to few: it could
    win by its sharpness alone. Against such a copy it cannot. The query weights and
    bias of each head, and with them its scores, are multiplied by one number.
    untrained: e.g. `untrained_copy(model, seed)`; it stays as it is.
    inputs: of the model, a tensor, or a tuple of its arguments.
    entropies: for each layer, in the order of their calls, a tensor (heads,) from 0
        (one key) to 1 (all alike): `normalised_entropy(weights, ...).nanmean(0)` of the
        trained model's weights on these inputs.
    mask, queries: of `normalised_entropy`; the model is not given them.
    ValueError if a head misses its entropy by more than 0.01.

    >>> layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(4, 6, 8)
    >>> matched = entropy_matched_copy(layer, (x, x, x), [torch.tensor([0.3, 0.6])])
    >>> normalised_entropy(*record_attention(matched, x, x, x)).mean(0).tolist()
    [0.3, 0.6]
    """
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    matched = copy.deepcopy(untrained)
    heads = [weights.shape[1] for weights in record_attention(matched, *inputs)]
    targets = [torch.as_tensor(each) for each in entropies]
    if [tuple(each.shape) for each in targets] != [(n,) for n in heads]:
        shapes = f"entropies have shapes {[tuple(each.shape) for each in targets]}"
        raise ValueError(f"{shapes}; it needs one number per head, {heads} heads.")
    remaining, hooks = iter(targets), {}

    def match(layer: nn.Module, inputs: tuple, named: dict) -> None:
        hooks.pop(layer).remove()  # the layer is called in here
        target, (once,) = next(remaining), record_attention(layer, *inputs, **named)
        _scale_queries(layer, torch.full_like(target, 2.0))
        (twice,) = record_attention(layer, *inputs, **named)
        factors = _factors(once, twice, target, mask, queries)
        _scale_queries(layer, factors / 2)

    with looking(matched), recorded(matched):  # each layer, before the next is called
        for layer in attention_layers(matched).values():
            hooks[layer] = layer.register_forward_pre_hook(match, with_kwargs=True)
        matched(*inputs)
    for hook in hooks.values():  # of layers that are not called
        hook.remove()
    for i, weights in enumerate(record_attention(matched, *inputs)):
        found = normalised_entropy(weights, mask=mask, queries=queries).nanmean(0)
        if not ((found - targets[i]).abs() <= 0.01).all():
            why = "Are keys equal, a layer called twice, or entropies not from 0 to 1?"
            raise ValueError(f"layer {i}: entropies became {found.tolist()}. {why}")
    return matched


def best_of(scores: Tensor) -> Tensor:
    """Return the scores (batch,) of the head that is best in the mean over sequences.

    scores: (batch, heads); further axes, e.g. (batch, offsets, heads), are further
        choices. If the finding is the best of many heads, so must its baseline be.

    >>> best_of(torch.tensor([[0.1, 0.2], [0.1, 0.4]]))
    tensor([0.2000, 0.4000])
    """
    choices = scores.flatten(1)  # (batch, choices)
    return choices[:, choices.nanmean(0).nan_to_num(-torch.inf).argmax()]


def bootstrap(values: Tensor, group: Tensor, groups: int, draws: int = 1000) -> Tensor:
    """Return the 95 % interval of the mean of each column: (2, columns), low and high.

    values (rows, columns): the measurements. group (rows,): the number of the group,
        e.g. the sentence, that a row belongs to, from 0 to groups - 1.
    Rows of one group are alike. So `draws` times as many groups as there are are drawn
    with replacement, each with all its rows; 95 % of the means lie in the interval.
    Source: Efron and Tibshirani 1993, chapter 13 (percentile interval).
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(groups, (draws, groups), generator=generator)
    times = values.new_zeros(drawn.shape)  # how often each group is drawn
    times.scatter_add_(1, drawn, torch.ones_like(times))
    sums = values.new_zeros(groups, values.shape[1]).index_add(0, group, values)
    counts = torch.bincount(group, minlength=groups).to(values)
    means = (times @ sums) / (times @ counts)[:, None]  # NaN: a draw without any row
    return means.nanquantile(torch.tensor([0.025, 0.975]).to(values), dim=0)


def sign_flip(values: Tensor, group: Tensor, groups: int) -> float:
    """Return the two-sided p-value of "these differences have the mean 0".

    values (rows,): each the difference of two measurements. group, groups: as in
        `bootstrap`.
    If nothing tells the two measurements apart, a group could as well have the opposite
    sign. So each of 10,000 draws gives every group a random sign, with all its rows,
    and p is the share of draws whose sum is as far from 0 as the sum that was found. It
    is at least 1 / 10,001.
    Source: Good 2005, "Permutation, Parametric and Bootstrap Tests", section 3.2.
    """
    generator = torch.Generator().manual_seed(0)
    sums = torch.zeros(groups, dtype=torch.double)
    sums = sums.index_add(0, group, values.double())
    sums = sums[sums != 0]
    signs = torch.randint(2, (10_000, len(sums)), generator=generator) * 2 - 1
    as_far = (signs.double() @ sums).abs() >= sums.sum().abs() - 1e-9
    return (as_far.sum().item() + 1) / 10_001


def holm(p_values: Sequence[float]) -> list[bool]:
    """Return for each p-value whether its null hypothesis is rejected, as Holm does.

    The probability that one or more true ones are rejected is at most 5 %, however many
    there are. The smallest of n p-values is compared with 0.05 / n, the next with
    0.05 / (n - 1), and so on; after the first that is too large no other is rejected.
    This holds however the p-values depend on each other.
    Source: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".

    >>> holm([0.04, 0.01, 0.03])
    [False, True, False]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > 0.05 / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


def _factors(once: Tensor, twice: Tensor, target: Tensor, mask, queries) -> Tensor:
    """Return the numbers (heads,) by which queries must grow for the wanted entropy.

    once, twice: the weights, and those with queries twice as long. Their logarithms
    differ by the scores that grow with the query; masks and position biases cancel.
    """
    once, visible, counted = checked(once, mask, queries)  # at least single precision
    twice, target = twice.to(once), target.to(once)
    choices = visible.sum(-1)[:, 0]  # (batch, queries)
    rows = counted & (choices > 1)
    # what a row's entropy counts in the mean of `normalised_entropy` over sequences
    share = 1 / (choices.to(once.dtype).log() * rows.sum(-1, keepdim=True))
    share = share[rows][:, None] / rows.any(-1).sum()
    # only the rows that count: (rows, heads, keys)
    once, twice = once.transpose(1, 2)[rows], twice.transpose(1, 2)[rows]
    both = (once > 0) & (twice > 0)
    grown = (twice.log() - once.log()).where(both, 0)
    start = once.log().where(both, -torch.inf)
    low, high = torch.full_like(target, -10.0), torch.full_like(target, 20.0)
    for _ in range(18):  # halve the range of the exponent: 30 becomes 0.0001
        middle = (low + high) / 2
        weights = (start + (2**middle - 1)[:, None] * grown).softmax(-1)
        flat = (entr(weights).sum(-1) * share).sum(0) > target
        low, high = middle.where(flat, low), high.where(flat, middle)
    return 2**high


@torch.no_grad()
def _scale_queries(layer: nn.Module, factors: Tensor) -> None:
    """Multiply the query weights and bias of each head, in place."""
    if not isinstance(layer, nn.MultiheadAttention):
        weight, bias = layer.query_proj.weight, layer.query_proj.bias
    else:
        weight, bias = layer.in_proj_weight, layer.in_proj_bias
    for tensor in (weight, bias):
        if tensor is not None:  # queries come first where keys and values follow
            rows = tensor[: layer.embed_dim].view(layer.num_heads, -1)
            rows.mul_(factors.to(rows)[:, None])
