"""Ablation against surgery on the weights; importance against finite differences."""

import copy
from itertools import product

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from utils.attention import MultiHeadAttention
from utils.interventions import ablate, head_importance, least_important_first
from utils.models import CausalLM
from utils.positions import Rotary
from utils.recording import record_attention
from utils.training import cross_entropy

B, L, E, H, V = 3, 7, 16, 4, 11
IDS = torch.randint(V, (B, L), generator=torch.Generator().manual_seed(0))
MEAN = {"mode": "mean", "mean_from": IDS}
SETS = [{0: [1]}, {1: [0, 3]}, {0: [0, 1, 2, 3], 1: [2]}, {0: (2,), 1: []}, {}]


def lm(seed=0, **options):
    torch.manual_seed(seed)
    model = CausalLM(V, E, H, 2, position=Rotary(E // H), **options)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # biases: nothing is hidden by a zero
            nn.init.normal_(parameter)
    return model.eval()


def without(model, heads, means=None):
    """Return a copy in which out_proj itself no longer hears these heads.

    means[layer] (embed_dim,): what it hears instead, always.
    """
    model, size = copy.deepcopy(model), E // H
    for index, chosen in heads.items():
        out = model.blocks[index].attention.out_proj
        for head in chosen:
            part = slice(head * size, (head + 1) * size)
            with torch.no_grad():
                if means is not None:
                    out.bias += out.weight[:, part] @ means[index][part]
                out.weight[:, part] = 0
    return model


def heard(model, ids):
    """Return what each out_proj is given, (batch, length, embed_dim)."""
    seen, model = [], copy.deepcopy(model)
    for block in model.blocks:
        block.attention.out_proj.register_forward_pre_hook(
            lambda module, inputs: seen.append(inputs[0].detach())
        )
    model(ids)
    return seen


def hooked(model):
    return any(x._forward_pre_hooks or x._forward_hooks for x in model.modules())


@pytest.mark.parametrize("num_kv_heads", [None, 2])
@pytest.mark.parametrize("heads", SETS)
def test_zero_is_a_head_that_out_proj_does_not_hear(heads, num_kv_heads):
    model = lm(num_kv_heads=num_kv_heads)
    whole, logits = model(IDS), []
    with ablate(model, heads) as same:
        assert same is model
        with model.register_forward_hook(lambda *call: logits.append(call[2])):
            model(IDS)
            record_attention(model, IDS)  # there the weights are written out
    assert_close(logits, [without(model, heads)(IDS)] * 2)
    assert torch.equal(model(IDS), whole) and not hooked(model)
    assert torch.equal(logits[0], whole) == (not any(heads.values()))


@pytest.mark.parametrize("heads", SETS)
def test_mean_is_what_the_head_hands_on_on_average(heads):
    model = lm()
    others = torch.randint(V, (B, L), generator=torch.Generator().manual_seed(1))
    means = [x.flatten(0, 1).mean(0) for x in heard(model, others)]
    with ablate(model, heads, mode="mean", mean_from=others):
        found = model(IDS)
    assert_close(found, without(model, heads, means)(IDS))
    model = lm(dropout=0.5).train()  # the mean is taken without dropout
    with ablate(model, heads, mode="mean", mean_from=(others,)):
        assert model.training
        assert torch.equal(model.eval()(IDS), found)
    assert not hooked(model)


def test_the_model_is_restored_after_an_exception():
    model = lm().train()
    for options in ({}, MEAN):
        with pytest.raises(KeyboardInterrupt), ablate(model, {0: [1]}, **options):
            raise KeyboardInterrupt
        assert not hooked(model)
    wrong = {"mode": "mean", "mean_from": IDS.float()}
    with pytest.raises(RuntimeError), ablate(model, {0: [1]}, **wrong):
        pass
    assert not hooked(model) and model.training


class Bypass(MultiHeadAttention):
    """It multiplies by the weights of out_proj without calling it."""

    def forward(self, query, mask=None, *, need_weights=False, cache=None):
        return query @ self.out_proj.weight.mT + self.out_proj.bias, None


def test_a_layer_that_cannot_be_silenced_is_no_silent_success():
    model = lm()
    with ablate(model, {1: [1]}), pytest.raises(RuntimeError, match="out_proj"):
        model(IDS)  # and only the second call goes round it
        model.blocks[1].attention.forward = lambda query, **named: (query, None)
        model(IDS)
    model.blocks[1].attention = Bypass(E, H)
    with ablate(model, {0: [1]}):
        model(IDS)
    with ablate(model, {1: [1]}), pytest.raises(RuntimeError, match="out_proj"):
        model(IDS)
    with pytest.raises(ValueError, match="layer 1"), ablate(model, {1: [1]}, **MEAN):
        pass
    assert not hooked(model)


def test_ablations_may_be_nested():
    model = lm()
    with ablate(model, {0: [1]}):
        with ablate(model, {0: [2], 1: [0]}):
            both = model(IDS)
        one = model(IDS)
    assert_close(both, without(model, {0: [1, 2], 1: [0]})(IDS))
    assert_close(one, without(model, {0: [1]})(IDS))


def test_stacked_seeds_under_vmap():
    models = [lm(seed) for seed in range(3)]
    stack = stack_module_state(models)

    def logits(weights, buffers):
        return functional_call(models[0], (weights, buffers), (IDS,))

    with ablate(models[0], {0: [1], 1: [2, 3]}), sdpa_kernel(SDPBackend.MATH):
        found = vmap(logits)(*stack)
    for each, model in zip(found, models):
        assert_close(each, without(model, {0: [1], 1: [2, 3]})(IDS))
    one_by_one = pytest.raises(RuntimeError, match="one by one")
    with ablate(models[0], {0: [1]}, **MEAN), one_by_one:
        vmap(logits)(*stack)


def test_gradients_pass_the_heads_that_are_left():
    model = lm()
    with ablate(model, {0: [1]}):
        model(IDS).sum().backward()
    slope = model.blocks[0].attention.value_proj.weight.grad.unflatten(0, (H, -1))
    assert slope[1].abs().max() == 0 and slope[0].abs().max() > 0


@pytest.mark.parametrize(
    ("words", "heads", "options"),
    [
        ("no layer 2", {2: [0]}, {}),
        ("layer 1 has no head 4 of 4", {1: [4]}, {}),
        ("at least 0", {0: [-1]}, {}),
        ("layer is -1", {-1: [0]}, {}),
        ("give a list", {0: 1}, {}),
        ("layer: ", [(0, 1)], {}),
        ("'zero', 'mean'", {0: [1]}, {"mode": "noise"}),
        ("mean_from", {0: [1]}, {"mode": "mean"}),
        ("mean_from", {0: [1]}, {"mean_from": IDS}),
        ("no token", {0: [1]}, {"mode": "mean", "mean_from": IDS[:, :0]}),
    ],
)
def test_heads_that_there_are_not(words, heads, options):
    model, refused = lm(), pytest.raises((TypeError, ValueError), match=words)
    with refused, ablate(model, heads, **options):
        pass
    assert not hooked(model)


@pytest.mark.parametrize("model", [nn.TransformerEncoderLayer(E, H), nn.Linear(E, E)])
def test_other_models_are_refused_in_words(model):
    with pytest.raises(TypeError, match="from_torch"), ablate(model, {0: [1]}):
        pass
    with pytest.raises(TypeError, match="from_torch"):
        head_importance(model, lambda m, x: x.sum(), torch.ones(2, 1))


def loss(model, ids, targets):
    return cross_entropy(model(ids), targets)


def test_importance_is_the_mean_size_of_a_slope_per_example():
    model, step = lm(dropout=0.1).double().train(), 1e-6
    targets = IDS.roll(1, 1)
    found = head_importance(model, loss, IDS, targets)
    assert model.training and all(p.grad is None for p in model.parameters())
    assert not hooked(model)
    model.eval()
    slopes = torch.zeros(B, 2, H, dtype=torch.float64)
    for b, i, h in product(range(B), range(2), range(H)):
        sides = []
        for gate in (1 + step, 1 - step):
            gated = copy.deepcopy(model)
            with torch.no_grad():
                out_proj = gated.blocks[i].attention.out_proj
                out_proj.weight.unflatten(1, (H, -1))[:, h].mul_(gate)
            sides.append(loss(gated, IDS[b : b + 1], targets[b : b + 1]).item())
        slopes[b, i, h] = (sides[0] - sides[1]) / (2 * step)
    assert_close(found, slopes.abs().mean(0), atol=1e-7, rtol=1e-5)
    # heads that help in one sentence and harm in another must be among these
    assert (slopes.mean(0).abs() < 0.8 * slopes.abs().mean(0)).any()
    assert (slopes.mean(0) < 0).any()


def test_importance_of_a_layer_that_is_not_called_is_zero():
    model = lm()
    model.spare = MultiHeadAttention(E, H)
    found = head_importance(model, lambda m, ids: loss(m, ids, ids), IDS)
    assert found.shape == (3, H)
    assert (found[2] == 0).all() and (found[:2] > 0).all()


@pytest.mark.parametrize(
    ("words", "use", "examples"),
    [
        ("one number", lambda m, ids: m(ids), (IDS,)),
        ("depends on the heads", lambda m, ids: m(ids).mean().detach(), (IDS,)),
        ("mine", lambda m, ids: {}["mine"], (IDS,)),
        ("first axes", loss, ()),
        ("first axes", loss, (IDS, IDS[:1])),
        ("first axes", loss, (IDS[:0],)),
    ],
)
def test_importance_refuses_what_it_cannot_use_and_restores(words, use, examples):
    model = lm().train()
    with pytest.raises((ValueError, KeyError), match=words):
        head_importance(model, use, *examples)
    assert not hooked(model) and model.training


def test_importance_needs_as_many_heads_in_each_layer():
    model = nn.ModuleList([MultiHeadAttention(E, H), MultiHeadAttention(E, 2)])
    with pytest.raises(ValueError, match="one table"):
        head_importance(model, loss, IDS, IDS)


def test_least_important_first():
    order = least_important_first(torch.tensor([[3.0, 0.5, 2, 9], [4, 1, 7, 0.1]]))
    assert order[:4] == [(1, 3), (0, 1), (1, 1), (0, 2)] and len(set(order)) == 8
    with pytest.raises(ValueError, match="layers, heads"):
        least_important_first(torch.ones(3))
