"""utils/attention.py against independent oracles: PyTorch's kernels, layers, loops."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from utils.attention import (
    MultiHeadAttention,
    causal_mask,
    merge_heads,
    padding_mask,
    scaled_dot_product_attention,
    split_heads,
)

B, H, L, S, D, E = 3, 4, 5, 7, 8, 32


def randn(*shape, seed=0, dtype=torch.float32, grad=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(grad)


def masks():
    causal = causal_mask(L, S)
    padding = padding_mask([7, 4, 2], S)
    additive = torch.zeros(B, 1, L, S).masked_fill(~(causal & padding), -math.inf)
    return {
        "none": None,
        "causal": causal,
        "padding": padding,
        "both": causal & padding,
        "per head": randn(1, H, L, S, seed=9) > -1,
        "additive": additive,
        "bias": randn(B, H, L, S, seed=8),
    }


# --- masks and heads --------------------------------------------------------------


def test_causal_mask_is_lower_right_aligned():
    assert causal_mask(2, 5).tolist() == [[True] * 4 + [False], [True] * 5]
    assert causal_mask(3, 1).tolist() == [[False], [False], [True]]
    assert causal_mask(0).shape == (0, 0) and causal_mask(2, 0).shape == (2, 0)


def test_padding_mask():
    assert padding_mask([2, 0], 3).squeeze().tolist() == [
        [True, True, False],
        [False, False, False],
    ]
    assert padding_mask(torch.tensor([4, 2])).shape == (2, 1, 1, 4)
    assert padding_mask([]).shape == (0, 1, 1, 0)
    for wrong in ([5], [-1]):
        with pytest.raises(ValueError, match="between 0 and max_length=4"):
            padding_mask(wrong, 4)
    with pytest.raises(TypeError, match="whole number"):
        padding_mask([1.5])
    with pytest.raises(ValueError, match=r"give \(batch,\)"):
        padding_mask([[1, 2]])


def test_split_heads_keeps_the_features_of_a_token_together():
    x = torch.arange(B * L * E).view(B, L, E)
    heads = split_heads(x, H)
    for h in range(H):
        assert_close(heads[:, h], x[..., h * D : (h + 1) * D])
    assert_close(merge_heads(heads), x)
    assert_close(merge_heads(heads), torch.cat(list(heads.unbind(1)), -1))
    with pytest.raises(ValueError, match="32 features cannot be split into 5"):
        split_heads(x, 5)


# --- scaled dot-product attention -------------------------------------------------


def oracle(q, k, v, mask, scale=None):
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("scale", [None, 0.3])
def test_equals_torch_in_values_and_gradients(dtype, atol, name, scale):
    mask, results = masks()[name], []
    for attention in (oracle, lambda *a, **k: scaled_dot_product_attention(*a, **k)[0]):
        q = randn(B, H, L, D, seed=1, dtype=dtype, grad=True)
        k = randn(B, H, S, D, seed=2, dtype=dtype, grad=True)
        v = randn(B, H, S, 6, seed=3, dtype=dtype, grad=True)
        output = attention(q, k, v, mask, scale=scale)
        (output * randn(*output.shape, seed=4, dtype=dtype)).sum().backward()
        results.append((output.detach(), q.grad, k.grad, v.grad))
    for theirs, ours in zip(*results, strict=True):
        assert_close(ours, theirs, atol=atol, rtol=atol)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 1, 3, 2)])
def test_any_leading_dimensions(leading):
    q, k, v = (randn(*leading, n, D, seed=n) for n in (L, S, S))
    output, weights = scaled_dot_product_attention(q, k, v, causal_mask(L, S))
    assert_close(output, oracle(q, k, v, causal_mask(L, S)), atol=1e-6, rtol=1e-6)
    assert_close(weights.sum(-1), torch.ones(*leading, L))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("no_grad", [False, True])
@pytest.mark.parametrize("form", ["boolean", "-inf", "bias"])
def test_nothing_to_read_gives_zeros_and_finite_gradients(form, no_grad):
    keep = padding_mask([S, 0, 2], S).expand(B, 1, L, S)
    additive = torch.zeros(keep.shape).masked_fill(~keep, -math.inf)
    q, k, v = (randn(B, H, n, D, seed=n, grad=True) for n in (L, S, S))
    kwargs = {"bias": additive} if form == "bias" else {}
    mask = {"boolean": keep, "-inf": additive, "bias": None}[form]
    with torch.set_grad_enabled(not no_grad):
        output, weights = scaled_dot_product_attention(q, k, v, mask, **kwargs)
    assert (output[1] == 0).all() and (weights[1] == 0).all()
    assert (weights[2, ..., 2:] == 0).all()
    if not no_grad:
        with torch.autograd.detect_anomaly(check_nan=True):
            grads = torch.autograd.grad(output.square().sum(), (q, k, v))
        assert all(grad.isfinite().all() for grad in grads)
        assert all((grad[1] == 0).all() and (grad[0] != 0).any() for grad in grads)


@pytest.mark.parametrize("dtype, atol", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_is_computed_in_single(dtype, atol):
    q, k, v = (randn(2, 2, 300, 64, seed=n, dtype=dtype) for n in range(3))
    exact, _ = scaled_dot_product_attention(q.double(), k.double(), v.double())
    output, weights = scaled_dot_product_attention(q, k, v)
    assert output.dtype == weights.dtype == dtype
    assert_close(output.double(), exact, atol=atol, rtol=0)
    big = q * 200  # fp16 scores of 1e6 would overflow to inf
    assert scaled_dot_product_attention(big, big, v)[0].isfinite().all()


def test_dropout_only_when_asked_and_never_in_the_weights():
    q = randn(2, 6, D)
    output, weights = scaled_dot_product_attention(q, q, q)
    again, _ = scaled_dot_product_attention(q, q, q)
    dropped, kept_weights = scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert_close(output, again, atol=0, rtol=0)
    assert_close(kept_weights, weights, atol=0, rtol=0)
    assert (dropped - output).abs().max() > 0.1
    assert (scaled_dot_product_attention(q, q, q, dropout_p=1.0)[0] == 0).all()


def test_arguments_are_not_edited_and_no_keys_are_no_reading():
    q, mask = randn(2, 5, D), torch.zeros(1, 5, 5)
    before = q.clone(), mask.clone()
    with torch.no_grad():
        scaled_dot_product_attention(q, q, q, mask)
    assert torch.equal(q, before[0]) and torch.equal(mask, before[1])
    nothing = randn(2, 0, D)
    output, weights = scaled_dot_product_attention(q, nothing, nothing)
    assert (output == 0).all() and weights.shape == (2, 5, 0)


Q4, K4 = torch.zeros(B, H, L, D), torch.zeros(B, H, S, D)
FLAG = torch.ones(L, S, dtype=torch.bool)


@pytest.mark.parametrize(
    "error, says, call",
    [
        (TypeError, "mask is torch.int64.*True = may be read", {"mask": FLAG.long()}),
        (TypeError, "mask is torch.uint8", {"mask": FLAG.byte()}),
        (TypeError, "mask is a list", {"mask": [[True]]}),
        (TypeError, "bias is boolean", {"bias": FLAG}),
        (ValueError, "mask contains NaN", {"mask": torch.full((L, S), math.nan)}),
        (ValueError, "mask contains NaN", {"mask": torch.full((L, S), math.inf)}),
        (ValueError, r"\(batch, keys\) as mask\[:, None, None", {"mask": FLAG[:B]}),
        (ValueError, "per sample", {"mask": FLAG.expand(B, L, S)}),
        (ValueError, "per head", {"mask": FLAG.expand(H, L, S)}),
        (ValueError, "1 for 'the same for all'", {"mask": FLAG[:1]}),
        (ValueError, "mask has shape", {"mask": FLAG[0]}),
        (ValueError, "mask is on meta", {"mask": FLAG.to("meta")}),
        (TypeError, "key torch.float64", {"key": K4.double()}),
        (TypeError, "query is torch.int64; give floating point", {"query": Q4.long()}),
        (TypeError, "value is a ndarray", {"value": K4.numpy()}),
        (ValueError, "devices differ", {"key": K4.to("meta")}),
        (ValueError, "same number of features", {"key": K4[..., :5]}),
        (ValueError, "each key needs one value", {"value": K4[..., :3, :]}),
        (
            ValueError,
            "nothing is broadcast here",
            {"key": K4[:, :1], "value": K4[:, :1]},
        ),
        (ValueError, "nothing is broadcast here", {"query": Q4[0]}),
        (ValueError, r"give \(\.\.\., length, features\)", {"query": Q4[0, 0, 0]}),
        (ValueError, "0 features", {"query": Q4[..., :0], "key": K4[..., :0]}),
        (ValueError, "scale is nan", {"scale": math.nan}),
        (TypeError, "scale is a str", {"scale": "1"}),
        (ValueError, "dropout_p is 1.5", {"dropout_p": 1.5}),
    ],
)
def test_bad_input_says_what_to_do(error, says, call):
    with pytest.raises(error, match=says):
        scaled_dot_product_attention(**{"query": Q4, "key": K4, "value": K4} | call)


def test_a_mask_that_could_be_two_things_is_refused():
    layer, x = MultiHeadAttention(E, H), randn(L, L, E)  # batch == length
    padding = padding_mask([5, 2, 1, 5, 3])
    with pytest.raises(ValueError, match=r"could be \(queries, keys\) or \(batch, k"):
        layer(x, mask=padding[:, 0, 0])
    for mask in (padding, padding.expand(L, 1, L, L)):
        assert_close(
            layer(x, mask=mask, need_weights=True)[1] > 0,
            padding.expand(L, H, L, L),
        )
    expected = layer(x, mask=causal_mask(L)[None, None])[0]
    assert_close(layer(x, mask=causal_mask(L))[0], expected)
    same_for_all = FLAG[:, :L]
    assert_close(layer(x, mask=same_for_all)[0], layer(x)[0])


# --- the layer --------------------------------------------------------------------

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
    added = -size * torch.rand(L, S, generator=torch.Generator().manual_seed(0))
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


def test_mask_and_bias_must_stay_finite_together():
    huge = torch.full((L, S), 3e38)
    with pytest.raises(ValueError, match="mask and bias contains NaN or .inf"):
        scaled_dot_product_attention(Q4, K4, K4, huge, bias=huge)


def test_heads_of_a_tuple_or_of_no_number():
    with pytest.raises(TypeError, match=r"\(output, weights\) take the first"):
        merge_heads(scaled_dot_product_attention(Q4, K4, K4))
    with pytest.raises(TypeError, match="num_heads is 3.0"):
        split_heads(torch.zeros(2, 5, 12), 3.0)
    with pytest.raises(TypeError, match="lengths is None"):
        padding_mask(None)
    with pytest.raises(ValueError, match="max_length is -1"):
        padding_mask([], -1)


def test_reset_parameters_resets_everything():
    layer = MultiHeadAttention(E, H)
    with torch.no_grad():
        for parameter in (*layer.parameters(), layer.head_gate):
            parameter.fill_(7.0)
    layer.reset_parameters()
    assert all((parameter != 7.0).all() for parameter in layer.parameters())
    assert (layer.head_gate == 1).all()
