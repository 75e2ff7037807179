"""Baselines are what they claim to be, and intervals and tests mean what they say."""

import copy
import itertools
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils import heads
from utils.attention import MultiHeadAttention
from utils.baselines import (
    best_of,
    bootstrap,
    entropy_matched_copy,
    holm,
    sign_flip,
    uniform_attention,
    untrained_copy,
)
from utils.masks import causal_mask, padding_mask
from utils.models import CausalLM
from utils.recording import record_attention
from utils.tests.helpers import SCHEMES, guards

B, L, E, H, V = 3, 7, 16, 4, 23
PADDING = padding_mask([L, 3, 5], L)
X = torch.randn(B, L, E, generator=torch.Generator().manual_seed(0))
IDS = torch.stack([torch.arange(L) + 5 * i for i in range(B)])

# --- uniform attention, untrained copies ---


@pytest.mark.parametrize("mask", [causal_mask(L), PADDING, causal_mask(L) & PADDING])
def test_uniform_attention_is_one_over_the_number_of_visible_keys(mask):
    found = uniform_attention((B, 2, L, L), mask)
    full = torch.ones(B, 2, L, L).bool() & mask
    for row, visible in zip(found.flatten(0, 2), full.flatten(0, 2)):
        n = int(visible.sum())
        assert row.tolist() == pytest.approx([x / n for x in visible.tolist()])
    assert_close(heads.normalised_entropy(found, mask=mask), torch.ones(B, 2))
    assert_close(uniform_attention(mask.shape, mask).expand_as(found), found)
    assert uniform_attention((2, 3, 4, 5)).unique().tolist() == pytest.approx([0.2])
    mask = torch.tensor([[True, True], [False, False]])
    assert uniform_attention((2, 2), mask).tolist() == [[[[0.5, 0.5], [0, 0]]]]


def lm(scheme):
    torch.manual_seed(0)
    return CausalLM(V, E, H, 2, position=SCHEMES[scheme]())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_untrained_copy_is_fresh_and_leaves_model_and_random_state_alone(scheme):
    model, built = lm(scheme), dict(lm(scheme).named_parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    before = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    fresh, same, other = (untrained_copy(model, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert_close(fresh.state_dict(), same.state_dict(), rtol=0, atol=0)
    for name, weight in fresh.named_parameters():
        assert (weight != 7).all(), name
        assert weight.std().item() == pytest.approx(built[name].std().item(), rel=0.4)
        if weight.dim() == 2 and not scheme.startswith("t5"):
            assert not torch.equal(weight, other.get_parameter(name)), name


def test_an_untrained_copy_of_torch_layers_and_of_what_cannot_be_redrawn():
    module = nn.MultiheadAttention(E, H)
    nn.init.ones_(module.out_proj.bias)
    fresh = untrained_copy(module, 0)
    assert (fresh.out_proj.bias == 0).all()
    assert not torch.equal(fresh.in_proj_weight, module.in_proj_weight)
    module.extra = nn.Module()
    module.extra.weight = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"extra \(Module\) has weights"):
        untrained_copy(module, 0)


# --- entropy-matched copies ---


def mean_entropies(model, inputs, mask=None):
    weights = record_attention(model, *inputs)
    return [heads.normalised_entropy(x, mask=mask).nanmean(0) for x in weights]


def wanted(layers, num_heads=H):
    """Return entropies from nearly uniform to sharp, others for each layer."""
    generator = torch.Generator().manual_seed(3)
    return [*0.05 + 0.85 * torch.rand(layers, num_heads, generator=generator)]


def encoder():
    layer = nn.TransformerEncoderLayer(E, H, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


CASES = {
    **{name: (partial(lm, name), (IDS,), causal_mask(L)) for name in SCHEMES},
    "layer": (partial(MultiHeadAttention, E, H, bias=False), (X,), None),
    "grouped": (partial(MultiHeadAttention, E, H, num_kv_heads=2), (X,), None),
    "torch": (encoder, (X, None, ~PADDING[:, 0, 0]), PADDING),
}


@pytest.mark.parametrize("case", CASES)
def test_a_matched_copy_has_the_entropies_of_the_heads_found(case):
    """And of all its weights only the queries differ, in each head by one factor."""
    make, inputs, mask = CASES[case]
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.normal_(std=0.2)
            elif "embedding" in name:
                parameter.normal_()  # far enough apart for every entropy
    before = copy.deepcopy(model.state_dict())
    targets = wanted(len(mean_entropies(model, inputs, mask)))
    found = entropy_matched_copy(model, inputs, targets, mask=mask)
    assert_close(mean_entropies(found, inputs, mask), targets, atol=1e-3, rtol=0)
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    factors = {}
    for name, after in found.state_dict().items():
        if not any(q in name for q in ("query_proj.", "in_proj_")):
            assert torch.equal(after, before[name]), name
            continue
        assert torch.equal(after[E:], before[name][E:])  # where keys, values follow
        ratio = (after[:E] / before[name][:E]).view(H, -1)
        layer = name.rpartition(".")[0].removesuffix(".query_proj")
        factor = factors.setdefault(layer, ratio.median(dim=1).values[:, None])
        assert_close(ratio, factor.expand_as(ratio), rtol=1e-3, atol=0)
        assert len(factor.unique()) == H
    assert len(factors) == len(targets)


@pytest.mark.parametrize("queries", [None, torch.arange(L).expand(B, L) > 3])
def test_of_the_chosen_queries_a_sharp_baseline_beats_a_flat_one(queries):
    torch.manual_seed(0)
    model, target = MultiHeadAttention(E, 16), torch.full((1, 16), 0.1)
    sharp = entropy_matched_copy(model, X, target, queries=queries)
    (flat,), (found,) = (record_attention(each, X) for each in (model, sharp))
    entropies = heads.normalised_entropy(found, queries=queries)
    assert_close(entropies.mean(0), target[0], atol=0.01, rtol=0)
    scores = [heads.previous_token(each, queries=queries) for each in (flat, found)]
    assert best_of(scores[1]).mean() > best_of(scores[0]).mean() + 0.05


TWICE = nn.Sequential(*[nn.TransformerEncoderLayer(E, H, 32, batch_first=True)] * 2)


LAYER, LIKE, NATS = MultiHeadAttention(E, H), X[:, :1].expand(B, L, E), [[1.5] * H]
# the last two: of other layers, of other heads
REFUSED = """
layer 0.*Are keys equal | entropy_matched_copy(LAYER, LIKE, wanted(1))
0 to 1 | entropy_matched_copy(LAYER, X, NATS)
called twice | entropy_matched_copy(TWICE, X, wanted(2))
it needs one | entropy_matched_copy(LAYER, X, wanted(2))
it needs one | entropy_matched_copy(LAYER, X, wanted(1, 3))
"""
test_what_cannot_be_matched_is_refused = guards(REFUSED, globals())


# --- choosing and chance ---


def test_best_of_chooses_by_the_mean_and_not_sequence_by_sequence():
    scores = torch.tensor([[0.9, 0.5], [0.0, 0.5], [0.0, 0.5]])
    assert best_of(scores).tolist() == [0.5] * 3
    assert best_of(scores[:, :, None]).tolist() == [0.5] * 3
    holes = torch.tensor([[math.nan, 0.2], [math.nan, math.nan]])
    assert best_of(holes)[0].item() == pytest.approx(0.2)
    assert best_of(torch.tensor([[0.9, 0.5], [math.nan, 0.5]]))[0].item() > 0.8


def test_holm_is_the_step_down_procedure():
    """Deeper 09 writes it out once more."""
    assert holm([]) == [] and holm([0.05]) == [True] and holm([0.04, 0.03]) == [0, 0]
    assert holm([0.026, 0.001, 0.026]) == [0, 1, 0]  # the second is too large
    assert holm([0.049, 0.001, 0.02]) == [True, True, True]


def test_sign_flip_equals_all_signs_and_flips_groups():
    values = torch.tensor([1.0, 1, 1, -1, 1, 1])
    signs = torch.tensor(list(itertools.product((-1, 1), repeat=6))).double()
    exact = ((signs @ values.double()).abs() >= 4).double().mean().item()
    assert abs(sign_flip(values, torch.arange(6), 6) - exact) < 0.015
    told = sign_flip(values, torch.arange(6), 6)
    assert sign_flip(values / 8, torch.arange(6), 6) == told
    one = torch.zeros(6, dtype=torch.long)  # all rows in one of three groups
    assert sign_flip(values, one, 3) == sign_flip(values * 0, one, 3) == 1.0
    many = torch.ones(40)
    for all_alike in (many, -many):
        assert sign_flip(all_alike, torch.arange(40), 40) == 1 / 10_001


def test_bootstrap_draws_groups():
    """With all their rows, one to five: five equal ones are no five findings."""
    rows = torch.arange(200)
    kept = rows % 5 <= rows // 5 % 5
    values = torch.rand(200, 2, generator=torch.Generator().manual_seed(1))[kept]
    group = (rows // 5)[kept]
    drawn = torch.randint(40, (1000, 40), generator=torch.Generator().manual_seed(0))
    own = [values[group == i] for i in range(40)]
    means = [torch.cat([own[i] for i in each]).mean(0) for each in drawn.tolist()]
    ends = torch.stack(means).quantile(torch.tensor([0.025, 0.975]), dim=0)
    assert_close(bootstrap(values, group, 40), ends)
