"""The layer compiled whole, exported, under vmap and forward-mode derivatives."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.masks import causal_mask, padding_mask
from utils.tests.helpers import SIZES, normal

B, H, L, S, D, E = SIZES

X = normal(B, L, E)
MASKS = {
    "none": None,
    "causal": causal_mask(L),
    "padding": padding_mask([5, 0, 3]),  # the second sequence has nothing to attend to
    "added": torch.zeros(L, L).masked_fill(~causal_mask(L), -torch.inf),
}
both_paths = pytest.mark.parametrize("need_weights", [False, True])
each_mask = pytest.mark.parametrize("mask", MASKS)
with_or_without_grad = pytest.mark.parametrize("grad_on", [True, False])


class Wave:
    """A position scheme with all that one can do: it turns q and k, and adds a bias."""

    def rotate(self, query, key, offset=0):
        angles = offset + torch.arange(query.shape[-2]).to(query)[:, None]
        return query * angles.cos(), key * angles.cos()

    def bias(self, query_length, key_length):
        keys = torch.arange(key_length)
        return -(keys[-query_length:, None] - keys).abs().float()


def seeded(seed, plain=False):
    """Return a layer; unless plain, it has grouped heads and positions with a bias."""
    torch.manual_seed(seed)
    options = {} if plain else {"num_kv_heads": 2, "position": Wave()}
    return MultiHeadAttention(E, H, **options)


def whole_graph(function):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize(
    ("mask", "need_weights", "grad_on", "plain"),
    [
        ("added", True, True, False),
        ("padding", True, False, True),
        ("padding", False, True, False),
        ("none", False, False, True),
    ],
)
def test_compiles_whole(mask, need_weights, grad_on, plain):
    layer, options = seeded(0, plain), {"mask": MASKS[mask]}
    options["need_weights"] = need_weights
    with torch.set_grad_enabled(grad_on):
        expected, got = layer(X, **options), whole_graph(layer)(X, **options)
    assert_close(got, expected)
    if grad_on:
        wanted, grads = (
            torch.autograd.grad(each[0].square().sum(), [*layer.parameters()])
            for each in (expected, got)
        )
        assert_close(grads, wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_compiles_whole_for_any_length():
    layer = seeded(0)

    def masked(x):
        return layer(x, mask=causal_mask(x.shape[1]))[0]

    torch.compiler.reset()
    compiled = torch.compile(masked, fullgraph=True, dynamic=True, backend="eager")
    for length in (2, 5, 7):
        x = normal(B, length, E)
        assert_close(compiled(x), masked(x))


@pytest.mark.parametrize("strict", [False, True])
@both_paths
def test_exports(need_weights, strict):
    layer = seeded(0).eval()
    for mask in MASKS.values() if not strict else [MASKS["padding"]]:
        options = {"mask": mask, "need_weights": need_weights}
        program = torch.export.export(layer, (X,), options, strict=strict)
        assert_close(program.module()(X, **options), layer(X, **options))


@with_or_without_grad
@both_paths
@each_mask
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_over_weights(plain, mask, need_weights, grad_on):
    layers = [seeded(seed, plain) for seed in range(4)]
    options = {"mask": MASKS[mask], "need_weights": need_weights}

    def attention(layer, stack):
        output, weights = functional_call(layer, stack, (X,), options)
        return (output, weights) if need_weights else (output,)

    def loss(stack, layer=layers[0]):
        return attention(layer, stack)[0].square().sum()

    stack, _ = stack_module_state(layers)
    with torch.set_grad_enabled(grad_on):
        found = vmap(lambda stack: attention(layers[0], stack))(stack)
        for i, layer in enumerate(layers):
            expected = attention(layer, dict(layer.named_parameters()))
            assert_close(tuple(x[i] for x in found), expected)
    if grad_on:
        slopes = vmap(grad(loss))(stack)
        for i, layer in enumerate(layers):
            expected = grad(loss)(dict(layer.named_parameters()))
            found = {name: slope[i] for name, slope in slopes.items()}
            assert_close(found, expected, atol=1e-4, rtol=1e-4)


@with_or_without_grad
def test_vmap_over_masks(grad_on):
    q, k, v = (normal(B, H, L, 4, seed=seed) for seed in range(3))
    masks = torch.stack([causal_mask(L), torch.zeros(L, L).bool(), ~causal_mask(L)])
    with torch.set_grad_enabled(grad_on):
        found = vmap(lambda m: scaled_dot_product_attention(q, k, v, m))(masks)
        for i, mask in enumerate(masks):
            expected = scaled_dot_product_attention(q, k, v, mask)
            assert_close((found[0][i], found[1][i]), expected)


@with_or_without_grad
@both_paths
@each_mask
def test_forward_mode(mask, need_weights, grad_on):
    layer, x, along = seeded(0).double(), X.double(), normal(B, L, E, seed=1).double()

    def attention(x):
        output, weights = layer(x, mask=MASKS[mask], need_weights=need_weights)
        return (output, weights) if need_weights else (output,)

    with torch.set_grad_enabled(grad_on):
        _, by_jvp = jvp(attention, (x,), (along,))
        with forward_ad.dual_level():
            duals = attention(forward_ad.make_dual(x, along))
            by_duals = [forward_ad.unpack_dual(dual).tangent for dual in duals]
    ahead, behind = attention(x + 1e-6 * along), attention(x - 1e-6 * along)
    for part in range(len(ahead)):
        slope = (ahead[part] - behind[part]) / 2e-6
        assert_close(by_jvp[part], slope, atol=1e-7, rtol=1e-6)
        assert_close(by_duals[part], by_jvp[part])


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_guards_speak_in_eager_mode_and_step_aside_elsewhere():
    layer, spoiled = seeded(0), torch.full((L, L), torch.nan)
    with pytest.raises(ValueError, match="contains NaN"):
        layer(X, mask=spoiled)
    assert whole_graph(layer)(X, mask=spoiled)[0].isnan().all()
    masks = torch.stack([spoiled, torch.zeros(L, L)])
    found = vmap(lambda mask: layer(X, mask=mask)[0])(masks)
    assert found[0].isnan().all() and found[1].isfinite().all()
