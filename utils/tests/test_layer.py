"""The multi-head layer against nn.MultiheadAttention, its cache and its errors."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils.attention import MultiHeadAttention
from utils.masks import causal_mask, padding_mask
from utils.positions import Rotary
from utils.tests.helpers import SIZES, masks, normal

B, H, L, S, D, E = SIZES

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
X = normal(B, L, E)
both_paths = pytest.mark.parametrize("need_weights", [True, False])


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
@both_paths
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
            normal(B, n, size, seed=n + size, dtype=dtype, grad=True)
            for n, size in ((L, E), (S, theirs.kdim), (S, theirs.vdim))
        ]
        if layer is theirs:
            first = [x if theirs.batch_first else x.transpose(0, 1) for x in inputs]
            kwargs = {"attn_mask": blocked, "average_attn_weights": False}
            output, weights = layer(*first, need_weights=need_weights, **kwargs)
            output = output if theirs.batch_first else output.transpose(0, 1)
        else:
            output, weights = layer(*inputs, mask=keep, need_weights=need_weights)
        (output * normal(*output.shape, seed=4, dtype=dtype)).sum().backward()
        results.append([output, *[x.grad for x in inputs]])
        results[-1] += [weights] if need_weights else []
        results[-1].append(layer.out_proj.weight.grad)
    assert (results[1][4] is not None) or not need_weights
    for theirs_value, ours_value in zip(*results, strict=True):
        assert_close(ours_value, theirs_value, atol=tol, rtol=10 * tol)


@pytest.mark.parametrize("variant", VARIANTS)
def test_to_torch_and_back_is_exact(variant):
    module = torch_layer(**VARIANTS[variant]).eval()
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    layer = MultiHeadAttention.from_torch(module)
    back = layer.to_torch()
    assert back.dropout == module.dropout == layer.dropout and back.batch_first
    assert back.training is layer.training is False
    for name, weight in before.items():
        assert torch.equal(module.state_dict()[name], weight), name
        assert torch.equal(back.state_dict()[name], weight), name
        assert back.state_dict()[name].dtype == weight.dtype
    assert all(p.requires_grad for p in [*layer.parameters(), *back.parameters()])


@pytest.mark.parametrize("mask_name", [n for n in masks() if n != "bias"])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("no_grad", [True, False])
def test_fused_path_gives_the_same_values(mask_name, num_kv_heads, no_grad):
    layer = MultiHeadAttention(E, H, num_kv_heads=num_kv_heads)
    memory, mask = normal(B, S, E, seed=1), masks()[mask_name]
    with torch.set_grad_enabled(not no_grad):
        slow, weights = layer(X, memory, mask=mask, need_weights=True)
        fast, none = layer(X, memory, mask=mask)
    assert none is None and weights.shape == (B, H, L, S)
    assert_close(fast, slow, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "mask, dtype",
    [
        (None, torch.float32),
        (torch.zeros(L, L), torch.float32),
        (causal_mask(L), torch.bfloat16),
    ],
)
def test_the_fused_kernel_is_called_unless_weights_are_asked_for(
    mask, dtype, monkeypatch
):
    called, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def counted(*args, **kwargs):
        called.append(1)
        return kernel(*args, **kwargs)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", counted)
    layer, x = MultiHeadAttention(E, H).to(dtype), X.to(dtype)
    layer(x, mask=mask, need_weights=True)
    assert called == []
    layer(x, mask=mask)
    assert called == [1]


@both_paths
def test_with_nothing_to_read_only_the_bias_is_left(need_weights):
    layer, x = MultiHeadAttention(E, H), normal(B, L, E, grad=True)
    nn.init.normal_(layer.out_proj.bias)
    bias = layer.out_proj.bias.expand(B, L, E)
    options = {"need_weights": need_weights}
    output, _ = layer(x, mask=padding_mask([L, 0, 2], L), **options)
    assert_close(output[1], bias[1])
    (grad,) = torch.autograd.grad(output.square().sum(), x)
    assert grad.isfinite().all() and (grad[1] == 0).all()
    with pytest.raises(TypeError, match="mask is torch.int64"):
        layer(x, x[:, :0], mask=torch.ones(9, 3).long(), **options)
    assert_close(layer(x, x[:, :0], **options)[0], bias)
    assert layer(x[:0], **options)[0].shape == (0, L, E)
    assert layer(x[:, :0], **options)[0].shape == (B, 0, E)


def test_grouped_heads_are_neighbours():
    layer = MultiHeadAttention(E, H, num_kv_heads=2)
    q, k, v = layer.query_proj(X), layer.key_proj(X), layer.value_proj(X)
    heads = []
    for h in range(H):  # heads 0, 1 attend by group 0; heads 2, 3 by group 1
        group = slice((h // 2) * D, (h // 2 + 1) * D)
        scores = q[..., h * D : (h + 1) * D] @ k[..., group].mT / math.sqrt(D)
        heads.append(scores.softmax(-1) @ v[..., group])
    expected = layer.out_proj(torch.cat(heads, -1))
    assert_close(layer(X)[0], expected, atol=1e-6, rtol=1e-5)
    assert layer.key_proj.weight.shape == (2 * D, E)


@both_paths
def test_dropout_in_training_only_and_never_in_the_weights(need_weights):
    layer = MultiHeadAttention(E, H, dropout=0.5)
    first, weights = layer(X, need_weights=need_weights)
    assert (first - layer(X, need_weights=need_weights)[0]).abs().max() > 0.01
    if need_weights:
        assert_close(weights.sum(-1), torch.ones(B, H, L))
    calm = layer.eval()(X, need_weights=need_weights)[0]
    layer.dropout = 0.0
    assert_close(calm, layer.train()(X, need_weights=need_weights)[0], atol=0, rtol=0)


def test_a_refused_call_leaves_the_cache_as_it_was():
    layer, x, cache = MultiHeadAttention(E, H), normal(B, 6, E), {}
    layer(x[:, :4], cache=cache)
    for error, says, call in (
        (ValueError, "mask has shape", lambda: layer(x, mask=FLAG, cache=cache)),
        (RuntimeError, "must match", lambda: layer(x[:1], cache=cache)),
        (ValueError, "another layer", lambda: MultiHeadAttention(E, H)(x, cache=cache)),
        (ValueError, "cache is for self-attention", lambda: layer(x, x, cache=cache)),
    ):
        with pytest.raises(error, match=says):
            call()
        assert cache["key"].shape[-2] == cache["value"].shape[-2] == 4


@pytest.mark.parametrize("sizes", [{}, {"kdim": 64}, {"vdim": 64}])
def test_initialised_as_torch(sizes):
    ours = MultiHeadAttention(256, 4, **sizes)
    theirs = MultiHeadAttention.from_torch(nn.MultiheadAttention(256, 4, **sizes))
    for mine, drawn in zip(ours.children(), theirs.children(), strict=True):
        assert (mine.bias == 0).all()
        for measure in (lambda x: x.abs().max(), torch.std):
            expected = measure(drawn.weight)
            assert_close(measure(mine.weight), expected, atol=1e-3, rtol=0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.fill_(7.0)
    ours.reset_parameters()
    assert all((parameter != 7.0).all() for parameter in ours.parameters())


@both_paths
@pytest.mark.parametrize("mask", [None, torch.ones(L, S) > 0, torch.zeros(L, S)])
def test_nan_stays_in_its_own_sentence_and_query(need_weights, mask):
    layer, query, memory = MultiHeadAttention(E, H), X.clone(), normal(B, S, E, seed=1)
    query[0, 1, 2], memory[2, 3, 4] = math.nan, math.nan
    output, _ = layer(query, memory, mask=mask, need_weights=need_weights)
    expected = torch.zeros(B, L, dtype=torch.bool)
    expected[0, 1] = expected[2] = True
    assert_close(output.isnan().all(-1), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [300.0, 1e5])
def test_half_precision_does_not_round_what_is_added(dtype, size):
    added = normal(L, L) - size  # all alike, but for what half precision would round
    layer = MultiHeadAttention(E, H).to(dtype)
    slow, _ = layer(X.to(dtype), mask=added, need_weights=True)
    assert_close(layer(X.to(dtype), mask=added)[0], slow, atol=1e-2, rtol=0)


@both_paths
@pytest.mark.parametrize("no_grad", [True, False])
def test_under_autocast(need_weights, no_grad):
    layer = MultiHeadAttention(E, H)
    mask = normal(L, L) - 300  # half precision would round it
    mask = mask.masked_fill(~causal_mask(L), -math.inf)
    exact = layer(X, mask=mask, need_weights=True)
    with torch.set_grad_enabled(not no_grad), torch.autocast("cpu", torch.bfloat16):
        output, weights = layer(X, mask=mask, need_weights=need_weights)
    assert_close(output.float(), exact[0], atol=2e-2, rtol=0)
    if need_weights:
        assert_close(weights.float(), exact[1], atol=2e-2, rtol=0)
        assert (weights.triu(1) == 0).all()


class Shrinks(Rotary):
    """A position scheme with a bug: it returns half of the keys' features."""

    def rotate(self, query, key, offset=0):
        return query, key[..., ::2]


FLAG = torch.ones(L, L, dtype=torch.bool)
FLAGS = FLAG.expand(B, L, L)


@both_paths
@pytest.mark.parametrize(
    ("error", "says", "inputs", "options"),
    [
        (ValueError, "query has 6 features .* embed_dim=32", (X[..., :6],), {}),
        (ValueError, "key has 6 features .* kdim=32", (X, X[..., :6]), {}),
        (ValueError, "value has 5 .* vdim=32", (X, X, X[..., :5]), {}),
        (ValueError, "key has 32 features .* kdim=6", (X,), {"kdim": 6}),
        (ValueError, "value has 32 features .* vdim=6", (X,), {"vdim": 6}),
        (ValueError, r"query has shape \(5, 32\).* x\[None\]", (X[0],), {}),
        (ValueError, r"key has shape \(5, 5\)", (X, FLAG), {}),  # meant as a mask
        (ValueError, "leading dimensions", (X, X[:1]), {}),
        (ValueError, "keys, any", (X, X, X[:, :4]), {}),
        (TypeError, "query is a ndarray", (X.numpy(),), {}),
        (TypeError, "take the first", ((X, None),), {}),
        (RuntimeError, "same dtype", (X.double(),), {}),
        (RuntimeError, "dtype", (X.long(),), {}),
        (ValueError, r"mask\[:, None, None, :\]", (X, X, X, FLAG[:B]), {}),
        (ValueError, r"mask\[:, None\]", (X, X, X, FLAGS), {}),
        (TypeError, "mask is torch.int64", (X, X, X, FLAG.long()), {}),
        (ValueError, "contains NaN", (X, X, X, FLAG * math.nan), {}),
        (ValueError, "must keep the shapes", (X,), {"position": Shrinks(D)}),
    ],
)
def test_layer_says_what_is_wrong(error, says, inputs, options, need_weights):
    layer = MultiHeadAttention(E, H, **options)
    with pytest.raises(error, match=says):
        layer(*inputs, need_weights=need_weights)


@pytest.mark.parametrize(
    ("error", "says", "options"),
    [
        (ValueError, "num_heads=3 must divide embed_dim", {"num_heads": 3}),
        (ValueError, "num_heads is 0", {"num_heads": 0}),
        (ValueError, "kdim is -1", {"kdim": -1}),
        (ValueError, "be divided by num_kv_heads=3", {"num_kv_heads": 3}),
        (ValueError, "dropout is -1", {"dropout": -1}),
        (TypeError, "dropout is a str", {"dropout": "0.5"}),
        (TypeError, "embed_dim is 12.0", {"embed_dim": 12.0}),
        (TypeError, "num_heads is True", {"num_heads": True}),
        (TypeError, "position is 'rope'; give an object", {"position": "rope"}),
        (TypeError, "position is <class .*give an object", {"position": Rotary}),
        (ValueError, "head_dim=4, the layer head_dim=8", {"position": Rotary(4)}),
    ],
)
def test_layer_refuses_impossible_options(error, says, options):
    with pytest.raises(error, match=says):
        MultiHeadAttention(**{"embed_dim": E, "num_heads": H} | options)


@pytest.mark.parametrize(
    ("error", "says", "call"),
    [
        (ValueError, "add_bias_kv", lambda: torch_layer(add_bias_kv=True)),
        (ValueError, "add_zero_attn", lambda: torch_layer(add_zero_attn=True)),
        (TypeError, "nn.MultiheadAttention", lambda: nn.Linear(2, 2)),
    ],
)
def test_what_torch_has_and_we_have_not_is_refused(error, says, call):
    with pytest.raises(error, match=says):
        MultiHeadAttention.from_torch(call())


@pytest.mark.parametrize("option", [{"num_kv_heads": 2}, {"position": Rotary(D)}])
def test_what_we_have_and_torch_has_not_is_refused(option):
    with pytest.raises(ValueError, match=f"{[*option][0]}=.*no such option"):
        MultiHeadAttention(E, H, **option).to_torch()
