"""Interventions on heads, on drawn inputs: equal to an oracle, or refused.

Each property says by itself what must be refused.
"""

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from utils.attention import MultiHeadAttention
from utils.interventions import ablate, head_importance, least_important_first
from utils.tests.draws import (
    BATCHES,
    DOUBLE,
    SEEDS,
    SIZES,
    Drawing,
    size_errors,
    tried,
    unless,
)


class Stack(nn.Module):
    """Attention layers with residual connections; each has its number of heads."""

    def __init__(self, counts):
        super().__init__()
        self.layers = nn.ModuleList(MultiHeadAttention(12, n) for n in counts)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)[0]
        return x


def without(model, chosen, others):
    """Return a copy whose out_proj has no weights for the chosen heads.

    Its bias has, instead, what they hand on in the mean over `others`, if given.
    """
    model, seen = copy.deepcopy(model).requires_grad_(False), []
    for layer in model.layers:
        layer.out_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(others if others is not None else torch.zeros(1, 1, 12, dtype=DOUBLE))
    for index, each in chosen.items():
        out, size = model.layers[index].out_proj, model.layers[index].head_dim
        for head in set(each):
            part = slice(head * size, (head + 1) * size)
            if others is not None:
                mean = seen[index][..., part].flatten(0, 1).mean(0)
                out.bias += out.weight[:, part] @ mean
            out.weight[:, part] = 0
    return model


def ablated(model, chosen, x, **options):
    with ablate(model, chosen, **options) as same:
        assert same is model
        return model(x)


@given(st.data())
def test_ablate(data):
    draw = Drawing(data, one_in=6)
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    torch.manual_seed(draw(SEEDS))
    model, chosen, errors = Stack(counts).double(), {}, set()
    for index in draw(st.lists(st.integers(0, len(counts) - 1), unique=True)):
        count = counts[index]
        each = draw(st.lists(st.integers(0, count - 1), max_size=4))
        each += draw.mostly([], [count], [-1], [True], [1.0])
        for head in each:
            errors |= size_errors(head) or unless(head < count, ValueError)
        chosen[index] = draw.mostly(draw.one_of(each, tuple(each)), 0, {0})
        errors |= unless(isinstance(chosen[index], (list, tuple)), TypeError)
    for layer in draw.mostly([], [len(counts)], [-1], ["0"], [1.5]):
        chosen[layer] = [0]
        errors |= size_errors(layer) or {ValueError}
    x, others = (
        draw.tensor([draw(BATCHES), draw(SIZES), 12], DOUBLE) for _ in range(2)
    )
    mode = draw.mostly(draw.one_of("zero", "mean"), "noise")
    others = others if draw.mostly(mode == "mean", mode != "mean") else None
    errors |= unless(mode == ("zero" if others is None else "mean"), ValueError)
    if others is not None and chosen:
        errors |= unless(others.numel() > 0, ValueError)  # no token to average
    options, before = {"mode": mode, "mean_from": others}, model(x)
    found = tried(errors, ablated, model, chosen, x, **options)
    assert torch.equal(model(x), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    if not errors:
        wanted = without(model, chosen, others)(x)
        assert_close(found, wanted, atol=1e-10, rtol=0)


@given(st.data())
def test_head_importance(data):
    draw = Drawing(data, one_in=4)
    count, layers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    counts = [count] * layers + draw.mostly([], [6])
    torch.manual_seed(draw(SEEDS))
    examples = draw.mostly(draw(st.integers(1, 3)), 0)
    model = Stack(counts).double()
    x = draw.tensor([examples, draw(st.integers(1, 6)), 12], DOUBLE)
    y = draw.tensor([draw.mostly(examples, 4), 1, 12], DOUBLE)
    whole = draw.mostly(True, False)

    def loss(model, x, y):
        error = (model(x) - y).square()
        return error.sum() if whole else error

    errors = unless(len(counts) == layers and whole, ValueError)
    errors |= unless(examples == len(y) > 0, ValueError)
    found = tried(errors, head_importance, model, loss, x, y)
    if errors:
        return
    # A gate is a factor of the head's columns W of out_proj: d loss / d gate = W . dW.
    wanted = torch.zeros(layers, count, dtype=DOUBLE)
    parameters = [layer.out_proj.weight for layer in model.layers]
    for i in range(examples):
        value = loss(model, x[i : i + 1], y[i : i + 1])
        for index, slope in enumerate(torch.autograd.grad(value, parameters)):
            terms = (parameters[index].detach() * slope).unflatten(1, (count, -1))
            wanted[index] += terms.sum((0, 2)).abs() / examples
    assert_close(found, wanted, atol=1e-9, rtol=1e-9)
    order = [divmod(i, count) for i in range(layers * count)]
    order.sort(key=lambda place: found[place].item())
    assert least_important_first(found) == order
