"""The check of equal tokens: do the weights of each query sum to one?"""

import math
from collections.abc import Iterator
from itertools import product, takewhile

import torch
from torch import Tensor, nn

from .known_layers import readings
from .outside import pattern
from .probe import Probe, copied, meant


def equal_tokens(p: Probe):
    """Test whether equal tokens give what one of them gives.

    They do if the weights of each query sum to 1, and nothing else is mixed. A token
    that the layer passes on as it is (CaiT) is left out.
    """
    token = p.text(1, 1)
    outputs = of_equal(p, token)
    if len(outputs) < 3:
        return None
    outputs[1:] = [y.where(y != token, outputs[0]) for y in outputs[1:]]
    if all(p.same(y, outputs[0].expand_as(y)) for y in outputs):
        if over_queries(p):
            return False, "the weights of a key sum to 1, and not those of a query"
        return True, "they give what one gives: weights always have the same sum"
    ends = torch.stack([y[0, -1] for y in outputs])  # of 1, 2, 4, … tokens
    steps = ends.diff(dim=0).abs().amax(dim=-1)
    last, largest = steps[-1], steps.max()
    inside = outputs[-1][0, len(outputs[-1][0]) // 4 : -len(outputs[-1][0]) // 4]
    alike = p.same(inside, inside[:1].expand_as(inside))
    usual = pattern(p.sees)[0] and (alike or p.shuffles is not False)
    if usual and last < largest / 2:  # a part falls like 1 / length, or faster
        who = "a sink, an extra key, a decay or a shift of tokens"
        return meant("they differ less in longer texts", who, "padding that is seen")
    constant = differ_by_a_constant(p)
    if constant is None:
        text = "and their size hardly counts: positions after a norm, or tokens mixed?"
        return None, f"they differ, {text}"
    if constant:
        return None, "they differ by something that is added, such as positions"
    if fault := mixed_up(p):
        return False, f"they do not give what one gives: {fault}"
    if last == largest > p.exact:
        return None, "their output grows: the weights do not sum to 1. Is it meant?"
    who, fault = (
        "a sink, or other tokens of its own,",
        "a wrong split, merge or softmax",
    )
    return meant("they do not give what one gives", who, fault)


def of_equal(p: Probe, token: Tensor, layer=None, texts: int = 9) -> list[Tensor]:
    """Return the outputs for 1, 2, 4, … equal tokens, as far as they go."""
    texts = (token.repeat(1, 2**n, 1) for n in range(texts))
    outputs = (p.tried(x, layer=layer) for x in texts)
    return [*takewhile(lambda y: y is not None, outputs)]


def mixed_up(p: Probe) -> str | None:
    """Return the fault that alone gives such outputs for equal tokens, or None.

    Then each head gives a multiple of its own value, whatever positions there are. If
    the softmax is over heads or queries, the multiples sum to the number of tokens. If
    weights are hidden after it, the multiples for tiny tokens, whose scores are equal,
    are fractions of this number. A wrong split or merge gives sums of several values
    (of huge tokens, beside which positions that are added are nothing).
    """
    tokens = p.text(8, 1)
    sizes = (multiples(p, tokens * size) for size in (1.0, 1e-3, 1e6))
    for (c, own, mixed), (tiny, *_), (huge, still_own, still_mixed) in zip(*sizes):
        if (mixed and not own) or (still_mixed and not still_own):
            return "heads or tokens are mixed up"
        n = c.shape[1]
        if not own or (c - 1).abs().max() < 1e-4:
            continue
        sums = [(torch.stack([c, huge]).sum(dim) - n).abs().max() for dim in (2, 3)]
        if min(sums) < 1e-4 * n:
            return "the softmax is over another axis"
        seen = n * tiny
        if (
            seen.min() > 0.9
            and seen.max() < n + 0.1
            and (seen - seen.round()).abs().max() < 1e-3
        ):
            return "weights are hidden after the softmax"
    return None


def multiples(p: Probe, tokens: Tensor) -> Iterator[tuple[Tensor, bool, bool]]:
    """Yield, for each reading, how much each head gives of the value of equal tokens.

    (texts, length, heads); whether it gives nothing else, and whether it gives sums of
    the values of all heads.
    """
    y = of_equal(p, tokens, unnormed(p.bare), 6)[-1]  # 32 tokens are enough
    for given, values in heads_and_values(p, tokens.expand_as(y), y):
        own, values = values, values[:, 0]  # (texts, heads, head_dim)
        c = (given * own).sum(dim=-1) / own.square().sum(dim=-1)
        exact = 1e-4 * own.abs().max()
        alone = (given - c[..., None] * own).abs().max() < exact
        sums = given.flatten(1, 2).mT  # (texts, head_dim, ...)
        left = values.mT @ torch.linalg.lstsq(values.mT, sums).solution - sums
        mixed = values.shape[2] > values.shape[1] and left.abs().max() < exact
        yield c, bool(alone), bool(mixed)


def over_queries(p: Probe) -> bool:
    """Whether the softmax is over the queries.

    A head gives sums of its values, so for fewer tokens than features we know with
    which weights. Those of a query must sum to 1.
    """
    x = p.text(4, min(4, p.embed_dim // p.num_heads - 1))
    y = p.tried(x, layer=unnormed(p.bare)) if x.shape[1] > 1 else None
    for given, values in () if y is None else heads_and_values(p, x, y):
        v, o = (each.transpose(1, 2).mT for each in (values, given))
        weights = torch.linalg.lstsq(v, o).solution  # (texts, heads, keys, queries)
        if (v @ weights - o).abs().max() < 1e-6 * v.abs().max():
            of_query, of_key = ((weights.sum(dim) - 1).abs().max() for dim in (2, 3))
            return bool(of_key < 1e-4 < 1e-2 < of_query)
    return False


def heads_and_values(p: Probe, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each reading, what heads give and their values.

    Each (texts, length, heads, head_dim), of outputs y for x, without biases.
    """
    size, solved = p.embed_dim // p.num_heads, {}
    ways = [*readings(p.bare, p.embed_dim, p.num_heads)] if y.isfinite().all() else []
    for each, rest in product(ways, (0, x)):  # a residual goes
        *_, v, out = each.matrices
        key = id(out.w), rest is x  # many readings have the same output projection
        if key not in solved:
            targets = (y - rest).flatten(0, 1).mT
            solved[key] = torch.linalg.lstsq(out.w, targets).solution.mT.view_as(y)
        given = solved[key].unflatten(-1, (-1, size))
        values = (x @ v.w.mT).unflatten(-1, (-1, size))
        groups = p.num_heads // values.shape[2]
        yield given, values.repeat_interleave(groups, dim=2)


def differ_by_a_constant(p: Probe) -> bool | None:
    """Whether huge equal tokens give what one gives, but for a rest.

    What is added to tokens or values has its own size. A wrong weight grows with the
    tokens, if norms are left out. None: what attention gives does not grow, so that
    huge tokens say nothing.
    """
    token = 1e6 * p.text(8, 1)  # of eight texts: one may agree by chance
    one, *more = of_equal(p, token, unnormed(p.layer)) or [token]
    rest = max((float((y - one).abs().max()) for y in more[1:]), default=math.inf)
    of_attention = min((one - y).abs().max() for y in (0, token))  # a residual goes
    if of_attention < 1e-3 * token.abs().max():
        return None
    return rest < 1e-3 * float(one.abs().max())


def unnormed(layer: nn.Module) -> nn.Module:
    """Return a copy whose norms give what they get."""
    layer = copied(layer)
    for module in layer.modules():
        leaf = not [*module.children()]
        if leaf and "norm" in type(module).__name__.lower():
            module.forward = lambda x, *_: x
    return layer
