"""The multi-head layer against nn.MultiheadAttention, its cache, gate and errors."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils.attention import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from utils.tests.test_attention import FLAG, B, D, E, H, L, S, masks, randn

VARIANTS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "kdim": {"kdim": 6},
    "kdim vdim": {"kdim": 6, "vdim": 10},
    "kdim vdim no bias": {"kdim": 6, "vdim": 10, "bias": False},
    "dropout": {"dropout": 0.4},
    "double": {"dtype": torch.float64},
}


def torch_layer(**kwargs):
    """An nn.MultiheadAttention whose biases are not zero."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(E, H, **kwargs)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "bias" in name:
                parameter.normal_()
    return module


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mask_name", ["none", "causal", "both", "per head"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_from_torch_equals_torch_with_gradients(variant, mask_name, need_weights):
    theirs = torch_layer(**VARIANTS[variant]).train()
    theirs.dropout = 0.0  # compared in training mode, on the path with gradients
    ours = MultiHeadAttention.from_torch(theirs)
    dtype = theirs.out_proj.weight.dtype
    keep, tol = masks()[mask_name], 1e-12 if dtype == torch.float64 else 2e-6
    blocked = None
    if keep is not None:
        keep = keep.expand(B, H, L, S)
        blocked = ~keep.reshape(B * H, L, S)
    results = []
    for layer in (theirs, ours):
        inputs = [
            randn(B, n, size, seed=n + size, dtype=dtype, grad=True)
            for n, size in ((L, E), (S, theirs.kdim), (S, theirs.vdim))
        ]
        if layer is theirs:
            first = [x if theirs.batch_first else x.transpose(0, 1) for x in inputs]
            kwargs = {"attn_mask": blocked, "average_attn_weights": False}
            output, weights = layer(*first, need_weights=need_weights, **kwargs)
            output = output if theirs.batch_first else output.transpose(0, 1)
        else:
            output, weights = layer(*inputs, mask=keep, need_weights=need_weights)
        (output * randn(*output.shape, seed=4, dtype=dtype)).sum().backward()
        results.append([output, *[x.grad for x in inputs]])
        results[-1] += [weights] if need_weights else []
        results[-1].append(layer.out_proj.weight.grad)
    assert (results[1][4] is not None) or not need_weights
    for theirs_value, ours_value in zip(*results, strict=True):
        assert_close(ours_value, theirs_value, atol=tol, rtol=10 * tol)


@pytest.mark.parametrize("variant", VARIANTS)
def test_to_torch_and_back_is_exact(variant):
    module = torch_layer(**VARIANTS[variant]).eval()
    layer = MultiHeadAttention.from_torch(module)
    back = layer.to_torch()
    assert back.dropout == module.dropout == layer.dropout
    assert back.training is layer.training is False
    for name, weight in module.state_dict().items():
        assert torch.equal(back.state_dict()[name], weight), name
        assert back.state_dict()[name].dtype == weight.dtype
    layer.head_gate[1] = 0.0
    q, k, v = (randn(B, n, d, dtype=module.out_proj.weight.dtype)
               for n, d in ((L, E), (S, layer.kdim), (S, layer.vdim)))  # fmt: skip
    assert_close(layer.to_torch()(q, k, v)[0], layer(q, k, v)[0])


def test_what_has_no_equivalent_is_refused_by_name():
    for option in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(ValueError, match=f"{option}=True"):
            MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, **{option: True}))
    with pytest.raises(TypeError, match="takes an nn.MultiheadAttention"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="num_kv_heads=2 has no equivalent"):
        MultiHeadAttention(E, H, num_kv_heads=2).to_torch()
    with pytest.raises(ValueError, match="position has no equivalent"):
        MultiHeadAttention(E, H, position=ShiftByOffset()).to_torch()


@pytest.mark.parametrize("mask_name", [n for n in masks() if n != "bias"])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("no_grad", [True, False])
def test_fused_path_gives_the_same_values(mask_name, num_kv_heads, no_grad):
    layer = MultiHeadAttention(E, H, num_kv_heads=num_kv_heads)
    x, memory, mask = randn(B, L, E), randn(B, S, E, seed=1), masks()[mask_name]
    with torch.set_grad_enabled(not no_grad):
        slow, weights = layer(x, memory, mask=mask, need_weights=True)
        fast, none = layer(x, memory, mask=mask)
    assert none is None and weights.shape == (B, H, L, S)
    assert_close(fast, slow, atol=1e-6, rtol=1e-5)


def test_fused_path_with_nothing_to_read():
    layer = MultiHeadAttention(E, H)
    nn.init.normal_(layer.out_proj.bias)
    x = randn(B, L, E, grad=True)
    for need_weights in (True, False):
        mask = padding_mask([L, 0, 2], L)
        output, _ = layer(x, mask=mask, need_weights=need_weights)
        assert_close(output[1], layer.out_proj.bias.expand(L, E))
        (grad,) = torch.autograd.grad(output.square().sum(), x)
        assert grad.isfinite().all() and (grad[1] == 0).all()
        with pytest.raises(TypeError, match="mask is torch.int64"):
            layer(x, x[:, :0], mask=torch.ones(9, 3).long(), need_weights=need_weights)
        empty = layer(x, x[:, :0], need_weights=need_weights)[0]
        assert_close(empty, layer.out_proj.bias.expand(B, L, E))
    assert layer(x[:0])[0].shape == (0, L, E)
    assert layer(x[:, :0])[0].shape == (B, 0, E)


def test_grouped_heads_are_neighbours():
    layer, x = MultiHeadAttention(E, H, num_kv_heads=2), randn(B, L, E)
    q, k, v = layer.query_proj(x), layer.key_proj(x), layer.value_proj(x)
    heads = []
    for h in range(H):  # heads 0, 1 read group 0; heads 2, 3 read group 1
        group = slice((h // 2) * D, (h // 2 + 1) * D)
        scores = q[..., h * D : (h + 1) * D] @ k[..., group].mT / math.sqrt(D)
        heads.append(scores.softmax(-1) @ v[..., group])
    expected = layer.out_proj(torch.cat(heads, -1))
    assert_close(layer(x)[0], expected, atol=1e-6, rtol=1e-5)
    assert layer.key_proj.weight.shape == (2 * D, E)


def test_head_gate_silences_a_head():
    layer, x = MultiHeadAttention(E, H), randn(B, L, E)
    cut = MultiHeadAttention(E, H)
    cut.load_state_dict(layer.state_dict())
    layer.head_gate[2] = 0.0
    with torch.no_grad():
        cut.out_proj.weight[:, 2 * D : 3 * D] = 0.0
    for need_weights in (True, False):
        assert_close(layer(x, need_weights=need_weights)[0], cut(x)[0])
    layer.head_gate = torch.ones(H, requires_grad=True)
    layer(x)[0].sum().backward()
    assert (layer.head_gate.grad != 0).all()


def test_dropout_in_training_only_and_never_in_the_weights():
    layer, x = MultiHeadAttention(E, H, dropout=0.5), randn(B, L, E)
    for need_weights in (True, False):
        first, weights = layer(x, need_weights=need_weights)
        assert (first - layer(x, need_weights=need_weights)[0]).abs().max() > 0.01
        if need_weights:
            assert_close(weights.sum(-1), torch.ones(B, H, L))
    layer.eval()
    assert_close(layer(x)[0], layer(x)[0], atol=0, rtol=0)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_causal_layer_cannot_see_the_future(need_weights):
    layer, x = MultiHeadAttention(E, H).eval(), randn(B, L, E)
    changed = x.clone()
    changed[:, 3] += 1.0
    for no_grad in (True, False):
        with torch.set_grad_enabled(not no_grad):
            one, two = (
                layer(y, mask=causal_mask(L), need_weights=need_weights)[0]
                for y in (x, changed)
            )
        assert_close(one[:, :3], two[:, :3], atol=0, rtol=0)
        assert (one[:, 3:] - two[:, 3:]).abs().amin(dim=(0, 2)).min() > 1e-4


class ShiftByOffset:
    """A position scheme for the tests: keys and queries learn where they stand."""

    def rotate(self, query, key, offset=0):
        steps = torch.arange(offset, offset + query.shape[-2]) / 10
        return query + steps[:, None], key - steps[:, None]

    def bias(self, query_length, key_length):
        distance = torch.arange(key_length) - torch.arange(query_length)[:, None]
        return -(distance - (key_length - query_length)).abs() / 4.0


@pytest.mark.parametrize("position", [None, ShiftByOffset()])
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_cache_equals_no_cache(position, num_kv_heads):
    layer = MultiHeadAttention(E, H, num_kv_heads=num_kv_heads, position=position)
    x, cache = randn(B, 6, E), {}
    whole, _ = layer(x, mask=causal_mask(6)[None, None])
    parts = []
    for part in x.split([3, 1, 2], dim=1):
        seen = (cache["key"].shape[-2] if cache else 0) + part.shape[1]
        mask = causal_mask(part.shape[1], seen)[None, None]
        parts.append(layer(part, mask=mask, cache=cache)[0])
    assert_close(torch.cat(parts, 1), whole, atol=1e-6, rtol=1e-5)
    assert cache["key"].shape == (B, num_kv_heads, 6, D)


def test_a_refused_call_leaves_the_cache_as_it_was():
    layer, x, cache = MultiHeadAttention(E, H), randn(B, 6, E), {}
    layer(x[:, :4], cache=cache)
    with pytest.raises(ValueError, match="mask has shape"):
        layer(x[:, 4:], mask=causal_mask(9), cache=cache)
    assert cache["key"].shape[-2] == cache["value"].shape[-2] == 4
    with pytest.raises(ValueError, match="cache was not filled by this layer"):
        MultiHeadAttention(E, H)(x, cache=cache)
    with pytest.raises(ValueError, match="cache was not filled by this layer"):
        layer(x, cache=[])
    with pytest.raises(ValueError, match="cache holds 3 sentences but the query 1"):
        layer(x[:1], cache=cache)
    with pytest.raises(ValueError, match="cache is for self-attention"):
        layer(x, x, cache={})


def test_initialised_as_torch():
    ours, theirs = MultiHeadAttention(256, 4), nn.MultiheadAttention(256, 4)
    bound = theirs.in_proj_weight.abs().max()
    for proj in (ours.query_proj, ours.key_proj, ours.value_proj):
        assert_close(proj.weight.abs().max(), bound, atol=1e-3, rtol=0)
        assert (proj.bias == 0).all()
    assert_close(
        ours.out_proj.weight.std(), theirs.out_proj.weight.std(), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("sizes", [{"kdim": 64}, {"vdim": 64}])
def test_initialised_as_torch_where_sizes_differ(sizes):
    ours = MultiHeadAttention(256, 4, **sizes)
    theirs = nn.MultiheadAttention(256, 4, **sizes)
    for proj, name in ((ours.query_proj, "q"), (ours.key_proj, "k")):
        bound = getattr(theirs, f"{name}_proj_weight").abs().max()
        assert_close(proj.weight.abs().max(), bound, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "error, says, call",
    [
        (
            ValueError,
            "query has 6 features .* embed_dim=32",
            lambda m, x: m(x[..., :6]),
        ),
        (ValueError, "key has 6 features .* kdim=32", lambda m, x: m(x, x[..., :6])),
        (ValueError, "value has 5 .* vdim=32", lambda m, x: m(x, x, x[..., :5])),
        (ValueError, r"add x\[None\]", lambda m, x: m(x[0])),
        (ValueError, "batch sizes differ", lambda m, x: m(x, x[:1])),
        (ValueError, "5 keys but 4 values", lambda m, x: m(x, x, x[:, :4])),
        (ValueError, "value was given without key", lambda m, x: m(x, value=x)),
        (TypeError, "query is torch.float64", lambda m, x: m(x.double())),
        (TypeError, "query is torch.int64", lambda m, x: m(x.long())),
        (TypeError, "query is a ndarray", lambda m, x: m(x.numpy())),
        (TypeError, "is it a mask", lambda m, x: m(x, causal_mask(L))),
        (ValueError, "query is on meta", lambda m, x: m(x.to("meta"))),
        (ValueError, r"mask\[:, None, None, :\]", lambda m, x: m(x, mask=FLAG[:B, :L])),
        (TypeError, "mask is torch.int64", lambda m, x: m(x, mask=FLAG[:, :L].long())),
        (
            ValueError,
            "contains NaN",
            lambda m, x: m(x, mask=torch.full((L, L), math.nan)),
        ),
    ],
)
def test_layer_says_what_is_wrong(error, says, call):
    with pytest.raises(error, match=says):
        call(MultiHeadAttention(E, H), randn(B, L, E))


@pytest.mark.parametrize("option", ["kdim", "vdim"])
def test_self_attention_of_a_layer_built_for_another_memory_says_so(option):
    layer = MultiHeadAttention(E, H, **{option: 6})
    with pytest.raises(ValueError, match=f"has 32 features .* {option}=6"):
        layer(randn(B, L, E))


@pytest.mark.parametrize(
    "says, kwargs",
    [
        ("num_heads=3", {"num_heads": 3}),
        ("num_heads is 0", {"num_heads": 0}),
        ("kdim is -1", {"num_heads": 4, "kdim": -1}),
        ("num_kv_heads=3 cannot serve", {"num_heads": 4, "num_kv_heads": 3}),
        ("dropout is -1", {"num_heads": 4, "dropout": -1}),
    ],
)
def test_layer_refuses_impossible_sizes(says, kwargs):
    with pytest.raises(ValueError, match=says):
        MultiHeadAttention(E, **kwargs)


def test_layer_refuses_impossible_types():
    with pytest.raises(TypeError, match="embed_dim is 12.0"):
        MultiHeadAttention(12.0, 4)
    with pytest.raises(TypeError, match="num_heads is True"):
        MultiHeadAttention(12, True)
    with pytest.raises(TypeError, match="position is 'rope'"):
        MultiHeadAttention(12, 4, position="rope")
    layer = MultiHeadAttention(E, H)
    layer.head_gate = torch.ones(1)
    with pytest.raises(ValueError, match=r"head_gate has shape \(1,\)"):
        layer(randn(B, L, E))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", [None, causal_mask(L)])
def test_nan_is_not_hidden(need_weights, mask):
    layer = MultiHeadAttention(E, H)
    with torch.no_grad():
        layer.key_proj.weight[0, 0] = math.nan
        assert (
            layer(randn(B, L, E), mask=mask, need_weights=need_weights)[0].isnan().any()
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [300.0, 1e5])
@pytest.mark.parametrize("name", ["bias", "mask"])
def test_half_precision_does_not_round_what_is_added(dtype, size, name):
    added = randn(L, S) - size  # all alike, but for what half precision would round
    q, k, v = (randn(B, H, n, D, seed=n, dtype=dtype) for n in (L, S, S))
    exact = scaled_dot_product_attention(
        q.double(), k.double(), v.double(), **{name: added.double()}
    )
    ours = scaled_dot_product_attention(q, k, v, **{name: added})
    for one, other in zip(ours, exact, strict=True):
        assert_close(one.double(), other, atol=2e-2, rtol=0)
    layer, x = MultiHeadAttention(E, H).to(dtype), randn(B, L, E, dtype=dtype)
    slow, fast = (
        layer(x, mask=added[:, :L], need_weights=need_weights)[0]
        for need_weights in (True, False)
    )
    assert_close(fast, slow, atol=1e-2, rtol=0)


def test_reset_parameters_resets_everything():
    layer = MultiHeadAttention(E, H)
    with torch.no_grad():
        for parameter in (*layer.parameters(), layer.head_gate):
            parameter.fill_(7.0)
    layer.reset_parameters()
    assert all((parameter != 7.0).all() for parameter in layer.parameters())
    assert (layer.head_gate == 1).all()


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_gate_of_two_doubles_a_head(need_weights):
    layer, x = MultiHeadAttention(E, H), randn(B, L, E)
    closed, doubled = torch.ones(H), torch.ones(H)
    closed[1], doubled[1] = 0.0, 2.0
    outputs = []
    for gate in (closed, torch.ones(H), doubled):
        layer.head_gate.data.copy_(gate)  # `.data` leaves no trace of the edit
        outputs.append(layer(x, need_weights=need_weights)[0])
    assert_close(outputs[2] - outputs[1], outputs[1] - outputs[0])
    assert not torch.allclose(outputs[2], outputs[1])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("no_grad", [True, False])
def test_under_autocast(need_weights, no_grad):
    layer, x = MultiHeadAttention(E, H), randn(B, L, E)
    exact = layer(x, mask=causal_mask(L), need_weights=True)
    with torch.set_grad_enabled(not no_grad), torch.autocast("cpu", torch.bfloat16):
        output, weights = layer(x, mask=causal_mask(L), need_weights=need_weights)
    assert_close(output.float(), exact[0], atol=2e-2, rtol=0)
    if need_weights:
        assert_close(weights.float(), exact[1], atol=2e-2, rtol=0)
        assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize("mask", [None, causal_mask(L)])
def test_the_fused_kernel_is_called_unless_weights_are_asked_for(mask, monkeypatch):
    called, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def counted(*args, **kwargs):
        called.append(1)
        return kernel(*args, **kwargs)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", counted)
    layer, x = MultiHeadAttention(E, H), randn(B, L, E)
    layer(x, mask=mask, need_weights=True)
    assert called == []
    layer(x, mask=mask)
    assert called == [1]


@pytest.mark.parametrize("need_weights", [True, False])
def test_nan_stays_in_its_own_sentence_and_query(need_weights):
    layer = MultiHeadAttention(E, H)
    query, memory = randn(B, L, E), randn(B, S, E, seed=1)
    query[0, 1, 2], memory[2, 3, 4] = math.nan, math.nan
    lost = layer(query, memory, need_weights=need_weights)[0].isnan().all(-1)
    expected = torch.zeros(B, L, dtype=torch.bool)
    expected[0, 1] = expected[2] = True
    assert_close(lost, expected)


class Shrinks:
    """A position scheme with a bug: it returns half of the features."""

    def rotate(self, query, key, offset=0):
        return query[..., ::2], key[..., ::2]

    def bias(self, query_length, key_length):
        return None


def test_a_scheme_that_changes_shapes_is_refused():
    layer = MultiHeadAttention(E, H, position=Shrinks())
    with pytest.raises(ValueError, match=r"rotate\(\) must keep shape"):
        layer(randn(B, L, E))


@pytest.mark.parametrize("wrong", [{"layer": None}, {"key": 1}, [], "cache"])
def test_what_is_no_cache_of_this_layer_is_refused(wrong):
    with pytest.raises(ValueError, match="not filled by this layer"):
        MultiHeadAttention(E, H)(randn(B, L, E), cache=wrong)
