"""The layer compiled whole, exported, under vmap and forward-mode derivatives."""

import contextlib

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, jvp, stack_module_state, vmap
from torch.testing import assert_close

from utils.attention import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)

B, L, E, H = 3, 5, 16, 4
MASKS = {
    "none": None,
    "causal": causal_mask(L),
    "padding": padding_mask([5, 0, 3]),  # the second sentence may read nothing
    "added": torch.zeros(L, L).masked_fill(~causal_mask(L), -torch.inf),
}


class Wave:
    """A position scheme with all that one can do: it turns q and k, and adds a bias."""

    def rotate(self, query, key, offset=0):
        angles = offset + torch.arange(query.shape[-2]).to(query)[:, None]
        return query * angles.cos(), key * angles.cos()

    def bias(self, query_length, key_length):
        keys = torch.arange(key_length)
        return -(keys[-query_length:, None] - keys).abs().float()


LAYERS = {
    "plain": {},
    "grouped heads": {"num_kv_heads": 2},
    "positions": {"position": Wave()},
}


def seeded(seed, **options):
    torch.manual_seed(seed)
    return MultiHeadAttention(E, H, **options)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("no_grad", [False, True])
def test_compiles_whole(name, mask, need_weights, no_grad):
    layer, x = seeded(0, **LAYERS[name]), randn(B, L, E)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad() if no_grad else contextlib.nullcontext():
        expected = layer(x, mask=MASKS[mask], need_weights=need_weights)
        got = compiled(x, mask=MASKS[mask], need_weights=need_weights)
    assert_close(got, expected)
    if not no_grad:
        wanted = torch.autograd.grad(expected[0].square().sum(), [*layer.parameters()])
        grads = torch.autograd.grad(got[0].square().sum(), [*layer.parameters()])
        assert_close(grads, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("need_weights", [False, True])
def test_compiled_gate_is_multiplied(need_weights):
    layer, x = seeded(0), randn(B, L, E)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    compiled(x, need_weights=need_weights)  # with open gates
    layer.head_gate[1] = 0.0
    expected = layer(x, need_weights=need_weights)[0]
    assert_close(compiled(x, need_weights=need_weights)[0], expected)
    layer.head_gate[1] = 1.0
    assert not torch.allclose(layer(x, need_weights=need_weights)[0], expected)


@pytest.mark.parametrize("name", LAYERS)
def test_compiles_whole_with_a_cache(name):
    layer, x = seeded(0, **LAYERS[name]), randn(B, L, E)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    cache = {}
    with torch.no_grad():
        parts = [
            compiled(part, mask=causal_mask(part.shape[1], seen), cache=cache)[0]
            for part, seen in ((x[:, :3], 3), (x[:, 3:4], 4), (x[:, 4:], 5))
        ]
        whole = layer(x, mask=causal_mask(L))[0]
    assert_close(torch.cat(parts, dim=1), whole)


def test_compiled_causal_mask_of_a_varying_length():
    def masked(x):
        return layer(x, mask=causal_mask(x.shape[1]))[0]

    layer = seeded(0)
    compiled = torch.compile(masked, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (2, 5, 7):
        x = randn(B, length, E)
        assert_close(compiled(x), masked(x))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_exports(mask, need_weights, strict):
    layer, x = seeded(0).eval(), randn(B, L, E)
    options = {"mask": MASKS[mask], "need_weights": need_weights}
    program = torch.export.export(layer, (x,), options, strict=strict)
    assert_close(program.module()(x, **options), layer(x, **options))


class Decoder(nn.Module):
    """One step of decoding with past keys and values as tensors, as exports need it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, key, value):
        cache = {"key": key, "value": value}
        output, _ = self.layer(x, cache=cache)
        return output, cache["key"], cache["value"]


@pytest.mark.parametrize("strict", [False, True])
def test_exports_a_step_with_a_cache(strict):
    layer, x = seeded(0).eval(), randn(B, L, E)
    cache = {}
    with torch.no_grad():
        layer(x[:, :4], cache=cache)
        inputs = x[:, 4:], cache["key"], cache["value"]
        step = torch.export.export(Decoder(layer), inputs, strict=strict).module()
        output, key, value = step(*inputs)
        expected, _ = layer(x[:, 4:], cache=cache)
    assert_close((output, key, value), (expected, cache["key"], cache["value"]))


def stacked(layers):
    """Return (call(params, buffers, x, ...), params, buffers) of layers in a stack."""
    params, buffers = stack_module_state(layers)

    def call(params, buffers, *args, **options):
        return functional_call(layers[0], (params, buffers), args, options)

    return call, params, buffers


@pytest.mark.parametrize("no_grad", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_over_weights(name, mask, need_weights, no_grad):
    layers = [seeded(seed, **LAYERS[name]) for seed in range(4)]
    call, params, buffers = stacked(layers)
    x = randn(B, L, E)

    def outputs(params, buffers):
        found = call(params, buffers, x, mask=MASKS[mask], need_weights=need_weights)
        return found if need_weights else found[0]

    with torch.no_grad() if no_grad else contextlib.nullcontext():
        found = vmap(outputs)(params, buffers)
        for i, layer in enumerate(layers):
            expected = layer(x, mask=MASKS[mask], need_weights=need_weights)
            if need_weights:
                assert_close((found[0][i], found[1][i]), expected)
            else:
                assert_close(found[i], expected[0])


@pytest.mark.parametrize("need_weights", [False, True])
def test_vmap_over_gates(need_weights):
    """Each head silenced in turn, in one call."""
    layer, x = seeded(0), randn(B, L, E)
    gates = 1 - torch.eye(H)
    with torch.no_grad():
        found = vmap(
            lambda gate: functional_call(
                layer, {"head_gate": gate}, (x,), {"need_weights": need_weights}
            )[0]
        )(gates)
        for head in range(H):
            layer.head_gate.copy_(gates[head])
            assert_close(found[head], layer(x)[0])


@pytest.mark.parametrize("no_grad", [False, True])
def test_vmap_over_masks(no_grad):
    q, k, v = (randn(B, H, L, 4, seed=seed) for seed in range(3))
    masks = torch.stack([causal_mask(L), torch.zeros(L, L).bool(), ~causal_mask(L)])
    with torch.no_grad() if no_grad else contextlib.nullcontext():
        found = vmap(lambda m: scaled_dot_product_attention(q, k, v, m))(masks)
        for i, mask in enumerate(masks):
            expected = scaled_dot_product_attention(q, k, v, mask)
            assert_close((found[0][i], found[1][i]), expected)


def train_alone(layer, x, target, steps):
    for _ in range(steps):
        loss = (layer(x, mask=causal_mask(L))[0] - target).square().mean()
        grads = torch.autograd.grad(loss, [*layer.parameters()])
        with torch.no_grad():
            for parameter, grad in zip(layer.parameters(), grads):
                parameter -= 0.1 * grad
    return dict(layer.named_parameters())


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_eight_seeds_trained_at_once_equal_eight_trained_alone():
    layers = [seeded(seed) for seed in range(8)]
    x, target = randn(B, L, E, seed=1), randn(B, L, E, seed=2)
    call, params, buffers = stacked(layers)

    def loss(params, buffers):
        output, _ = call(params, buffers, x, mask=causal_mask(L))
        return (output - target).square().mean()

    for _ in range(10):
        grads = vmap(torch.func.grad(loss))(params, buffers)
        params = {name: p.detach() - 0.1 * grads[name] for name, p in params.items()}
    for seed, layer in enumerate(layers):
        alone = train_alone(layer, x, target, 10)
        together = {name: p[seed] for name, p in params.items()}
        assert_close(together, alone, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(
        params["out_proj.weight"][0], params["out_proj.weight"][1]
    )


@pytest.mark.parametrize("no_grad", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_forward_mode_where_weights_are_asked_for(mask, no_grad):
    layer = seeded(0).double()
    x, along = randn(B, L, E).double(), randn(B, L, E, seed=1).double()
    mask = MASKS[mask]
    if mask is not None and mask.is_floating_point():
        mask = mask.double()

    def both(x):
        return layer(x, mask=mask, need_weights=True)

    with torch.no_grad() if no_grad else contextlib.nullcontext():
        _, by_jvp = jvp(both, (x,), (along,))
        with forward_ad.dual_level():
            duals = both(forward_ad.make_dual(x, along))
            by_duals = [forward_ad.unpack_dual(dual).tangent for dual in duals]
    ahead, behind = both(x + 1e-6 * along), both(x - 1e-6 * along)
    for part in (0, 1):  # the output, the weights
        slope = (ahead[part] - behind[part]) / 2e-6
        assert_close(by_jvp[part], slope, atol=1e-7, rtol=1e-6)
        assert_close(by_duals[part], by_jvp[part])


def test_forward_mode_through_open_gates():
    layer, x = seeded(0), randn(B, L, E)
    gate, along = layer.head_gate.clone(), torch.tensor([0.0, 1.0, 0.0, 0.0])

    def output(gate):
        options = {"need_weights": True}
        return functional_call(layer, {"head_gate": gate}, (x,), options)[0]

    with torch.no_grad():
        _, slope = jvp(output, (gate,), (along,))
        expected = output(gate + along) - output(gate)  # linear in the gate
    assert_close(slope, expected)


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_guards_speak_in_eager_mode_and_step_aside_elsewhere():
    layer, x = seeded(0), randn(B, L, E)
    spoiled = torch.full((L, L), torch.nan)
    with pytest.raises(ValueError, match="contains NaN"):
        layer(x, mask=spoiled)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert compiled(x, mask=spoiled)[0].isnan().all()
    masks = torch.stack([spoiled, torch.zeros(L, L)])
    found = vmap(lambda mask: layer(x, mask=mask)[0])(masks)
    assert found[0].isnan().all() and found[1].isfinite().all()
