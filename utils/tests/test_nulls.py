"""Nulls: exact where arithmetic knows them, fresh where they are drawn, as sharp."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils import heads
from utils.attention import MultiHeadAttention
from utils.heads import entropy, record_attention
from utils.masks import causal_mask, padding_mask
from utils.models import CausalLM
from utils.nulls import best_of, entropy_matched_copy, uniform_attention, untrained_copy
from utils.positions import ALiBi, Learned, NoPE, Rotary, Sinusoidal, T5Bias

B, L, E, H, V = 3, 7, 16, 4, 23
SCHEMES = {
    "NoPE": NoPE,
    "Learned": lambda: Learned(L, E),
    "Sinusoidal": lambda: Sinusoidal(E),
    "Rotary": lambda: Rotary(E // H),
    "ALiBi": lambda: ALiBi(H),
    "T5Bias": lambda: T5Bias(H, num_buckets=8, max_distance=6),
}
PADDING = padding_mask([L, 3, 5], L)
X = torch.randn(B, L, E, generator=torch.Generator().manual_seed(0))
IDS = torch.stack(
    [
        torch.randperm(V, generator=torch.Generator().manual_seed(b))[:L]
        for b in range(B)
    ]
)


@pytest.mark.parametrize("mask", [causal_mask(L), PADDING, causal_mask(L) & PADDING])
def test_even_spread_is_one_over_how_many_may_be_read(mask):
    shape = (B, 2, L, L)
    found = uniform_attention(shape, mask)
    assert found.shape == shape
    full = torch.ones(shape, dtype=torch.bool) & mask
    for row, may in zip(found.flatten(0, 2), full.flatten(0, 2)):
        n = int(may.sum())
        assert row.tolist() == pytest.approx([1 / n if x else 0 for x in may.tolist()])
    assert_close(uniform_attention(mask).expand(shape), found)
    assert_close(entropy(found, mask=mask), torch.ones(B, 2))


def test_even_spread_of_shapes_and_of_nothing():
    assert uniform_attention((2, 3, 4, 5)).unique().tolist() == pytest.approx([0.2])
    mask = torch.tensor([[True, True], [False, False]])
    assert uniform_attention(mask).tolist() == [[[[0.5, 0.5], [0, 0]]]]
    for wrong in (torch.ones(L, L), torch.ones(L, dtype=torch.bool)):
        with pytest.raises(ValueError, match="give bool"):
            uniform_attention(wrong)
    with pytest.raises(ValueError, match="does not fit"):
        uniform_attention((B, 2, L, L), causal_mask(L - 1))
    with pytest.raises(TypeError, match="a shape first"):
        uniform_attention(causal_mask(L), causal_mask(L))


def lm(scheme="Learned", seed=0):
    torch.manual_seed(seed)
    return CausalLM(V, E, H, 2, position=SCHEMES[scheme]())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_untrained_twin_is_fresh_and_leaves_the_model_and_the_dice_alone(scheme):
    model = lm(scheme)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
        model.blocks[0].attention.head_gate[1] = 0
    before = copy.deepcopy(model.state_dict())
    dice = torch.random.get_rng_state()
    twin, same, other = (untrained_copy(model, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), dice)
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert_close(twin.state_dict(), same.state_dict(), rtol=0, atol=0)
    for name, weight in twin.named_parameters():
        assert (weight != 7).all(), name
        if weight.dim() == 2 and scheme != "T5Bias":
            assert not torch.equal(weight, other.get_parameter(name)), name
    built = dict(lm(scheme).named_parameters())  # as the classes draw them
    for name, weight in twin.named_parameters():
        assert weight.std().item() == pytest.approx(built[name].std().item(), rel=0.4)
    for block in twin.blocks:
        assert (block.attention.query_proj.bias == 0).all()
        assert (block.attention.head_gate == 1).all()
        bound = 0.5**0.5 * math.sqrt(6 / (2 * E))
        assert 0.9 * bound < block.attention.query_proj.weight.abs().max() <= bound


def test_untrained_twin_of_torch_layers_and_of_what_cannot_be_redrawn():
    module = nn.MultiheadAttention(E, H)
    with torch.no_grad():
        module.out_proj.bias.fill_(1.0)
    twin = untrained_copy(module, 0)
    assert (twin.out_proj.bias == 0).all()
    assert not torch.equal(twin.in_proj_weight, module.in_proj_weight)
    module.extra = nn.Module()
    module.extra.weight = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"extra \(Module\) has weights"):
        untrained_copy(module, 0)
    with pytest.raises(TypeError, match="seed"):
        untrained_copy(module, 0.5)


def mean_entropies(model, inputs, mask):
    return [entropy(a, mask=mask).nanmean(0) for a in record_attention(model, *inputs)]


def wanted(layers, num_heads=H):
    """Return entropies from nearly flat to sharp, others for each layer."""
    g = torch.Generator().manual_seed(3)
    return [0.05 + 0.85 * torch.rand(num_heads, generator=g) for _ in range(layers)]


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Padded(nn.Module):
    """PyTorch's encoder with the course's mask."""

    def __init__(self):
        super().__init__()
        self.encoder = encoder()

    def forward(self, x, mask):
        return self.encoder(x, src_key_padding_mask=~mask[:, 0, 0])


CASES = {
    **{name: (lambda name=name: lm(name), (IDS,), causal_mask(L)) for name in SCHEMES},
    "layer": (lambda: MultiHeadAttention(E, H, bias=False), (X,), None),
    "grouped": (lambda: MultiHeadAttention(E, H, num_kv_heads=2), (X,), None),
    "torch": (Padded, (X, PADDING), PADDING),
    "kdim": (
        lambda: nn.MultiheadAttention(E, H, kdim=5, batch_first=True),
        (X, X[..., :5], X),
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_sharpened_twin_has_the_entropies_of_the_heads_found(case):
    make, inputs, mask = CASES[case]
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.normal_(std=0.2)
    before = copy.deepcopy(model.state_dict())
    flat = mean_entropies(model, inputs, mask)
    targets = wanted(len(flat))
    twin = entropy_matched_copy(model, inputs, targets, mask=mask, tolerance=1e-3)
    assert_close(mean_entropies(twin, inputs, mask), targets, atol=1e-3, rtol=0)
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    changed = {k for k, x in twin.state_dict().items() if not torch.equal(x, before[k])}
    queries = ("query_proj.", "in_proj_", "q_proj_weight")
    assert changed and all(any(q in name for q in queries) for name in changed)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("torchs", [True, False])
def test_only_the_queries_of_a_head_grow_by_one_factor(torchs, bias):
    torch.manual_seed(0)
    model = MultiHeadAttention(E, H, bias=bias)
    if bias:
        nn.init.normal_(model.query_proj.bias)
    targets = wanted(1)
    twin = entropy_matched_copy(
        model.to_torch() if torchs else model, (X, X, X), targets
    )
    twin = MultiHeadAttention.from_torch(twin) if torchs else twin
    assert_close(twin.key_proj.weight, model.key_proj.weight)
    assert_close(twin.value_proj.weight, model.value_proj.weight)
    ratio = (twin.query_proj.weight / model.query_proj.weight).unflatten(0, (H, -1))
    factors = ratio.flatten(1).mean(1)
    assert_close(ratio, factors[:, None, None].expand_as(ratio), rtol=1e-3, atol=0)
    assert len(factors.unique()) == H
    if bias:
        grown = (twin.query_proj.bias / model.query_proj.bias).unflatten(0, (H, -1))
        assert_close(grown, factors[:, None].expand_as(grown), rtol=1e-3, atol=0)


def test_the_chosen_queries_and_tensors_of_entropies():
    model = MultiHeadAttention(E, H)
    queries = torch.arange(L).expand(B, L) > 3
    targets = torch.stack(wanted(1))
    twin = entropy_matched_copy(model, X, targets, queries=queries)
    (found,) = record_attention(twin, X)
    assert_close(entropy(found, queries=queries).mean(0), targets[0], atol=0.01, rtol=0)


def test_a_sharp_null_beats_a_flat_one():
    model = MultiHeadAttention(E, H)
    twin = entropy_matched_copy(model, X, [torch.full((H,), 0.1)])
    flat, sharp = (
        best_of(heads.previous_token(record_attention(m, X)[0])).mean()
        for m in (model, twin)
    )
    assert sharp > flat + 0.05


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = MultiHeadAttention(E, H)

    def forward(self, x):
        return self.layer(self.layer(x)[0])


class Mine(nn.Module):
    def forward(self, query, *, need_weights=False):
        weights = uniform_attention((*query.shape[:1], 1, L, L))
        return query, weights


def test_what_cannot_be_sharpened_is_refused():
    model, same = MultiHeadAttention(E, H), X[:, :1].expand(B, L, E)
    with pytest.raises(ValueError, match="layer 0.*read alike"):
        entropy_matched_copy(model, same, [torch.full((H,), 0.5)])
    entropy_matched_copy(model, same, [torch.full((H,), 0.5)], tolerance=1)
    with pytest.raises(ValueError, match="more than once"):
        entropy_matched_copy(Twice(), X, wanted(2))
    with pytest.raises(TypeError, match="Mine"):
        entropy_matched_copy(Mine(), X, wanted(1, 1))
    for wrong in (wanted(2), wanted(1, 3), torch.ones(H)):
        with pytest.raises(ValueError, match="give|needs"):
            entropy_matched_copy(model, X, wrong)
    with pytest.raises(ValueError, match="0 to 1"):
        entropy_matched_copy(model, X, [torch.full((H,), 1.5)])


def test_best_of_chooses_by_the_mean_and_not_sequence_by_sequence():
    first = torch.tensor([[0.9, 0.5], [0.0, 0.5], [0.0, 0.5]])
    second = torch.tensor([[[0.4], [0.6]], [[0.4], [0.6]], [[0.4], [0.0]]])
    assert best_of(first).tolist() == [0.5, 0.5, 0.5]
    assert best_of(first, second).tolist() == [0.5, 0.5, 0.5]
    assert best_of(second).tolist() == pytest.approx([0.4, 0.4, 0.4])
    holes = torch.tensor([[math.nan, 0.2], [math.nan, math.nan]])
    assert best_of(holes)[0].item() == pytest.approx(0.2)
    for wrong in ((), (first[:, 0],), (first, first[:2])):
        with pytest.raises(ValueError, match="scores"):
            best_of(*wrong)
