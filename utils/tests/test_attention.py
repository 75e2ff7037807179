"""scaled_dot_product_attention against PyTorch's kernels, and what it refuses."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from utils.attention import merge_heads, scaled_dot_product_attention, split_heads
from utils.masks import causal_mask, padding_mask
from utils.tests.helpers import SIZES, masks, normal

B, H, L, S, D, E = SIZES


def test_split_heads_keeps_the_features_of_a_token_together():
    x = torch.arange(B * L * E).view(B, L, E)
    heads = split_heads(x, H)
    for h in range(H):
        assert_close(heads[:, h], x[..., h * D : (h + 1) * D])
    assert_close(merge_heads(heads), x)
    assert_close(merge_heads(heads), torch.cat(list(heads.unbind(1)), -1))


@pytest.mark.parametrize(
    ("error", "says", "call"),
    [
        (RuntimeError, r"\[5, -1\] don't multiply", lambda: split_heads(Q4[0], 5)),
        (ValueError, "give .batch, length, embed", lambda: split_heads(Q4[0, 0], 2)),
        (ValueError, "give .batch, length, embed", lambda: split_heads(Q4, 2)),
        (ValueError, "give .batch, heads, length, head_dim",
         lambda: merge_heads(Q4[0])),
        (TypeError, "take the first", lambda: merge_heads((Q4, None))),
    ],
)  # fmt: skip
def test_heads_of_the_wrong_shape(error, says, call):
    with pytest.raises(error, match=says):
        call()


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
        q = normal(B, H, L, D, seed=1, dtype=dtype, grad=True)
        k = normal(B, H, S, D, seed=2, dtype=dtype, grad=True)
        v = normal(B, H, S, 6, seed=3, dtype=dtype, grad=True)
        output = attention(q, k, v, mask, scale=scale)
        (output * normal(*output.shape, seed=4, dtype=dtype)).sum().backward()
        with torch.no_grad():  # then the weights are written over the scores
            again = attention(q, k, v, mask, scale=scale)
        results.append((output.detach(), again, q.grad, k.grad, v.grad))
    for theirs, ours in zip(*results, strict=True):
        assert_close(ours, theirs, atol=atol, rtol=atol)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3), (2, 1, 3, 2)])
def test_any_leading_dimensions(leading):
    q, k, v = (normal(*leading, n, D, seed=n) for n in (L, S, S))
    output, weights = scaled_dot_product_attention(q, k, v, causal_mask(L, S))
    assert_close(output, oracle(q, k, v, causal_mask(L, S)), atol=1e-6, rtol=1e-6)
    assert_close(weights.sum(-1), torch.ones(*leading, L))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("no_grad", [False, True])
@pytest.mark.parametrize("form", ["boolean", "-inf", "bias"])
def test_nothing_to_read_gives_zeros_and_finite_gradients(form, no_grad):
    keep = padding_mask([S, 0, 2], S).expand(B, 1, L, S)
    additive = torch.zeros(keep.shape).masked_fill(~keep, -math.inf)
    given = {"boolean": {"mask": keep}, "-inf": {"mask": additive}}
    q, k, v = (normal(B, H, n, D, seed=n, grad=True) for n in (L, S, S))
    with torch.set_grad_enabled(not no_grad):
        kwargs = given.get(form, {"bias": additive})
        output, weights = scaled_dot_product_attention(q, k, v, **kwargs)
    assert (output[1] == 0).all() and (weights[1] == 0).all()
    assert (weights[2, ..., 2:] == 0).all()
    if not no_grad:
        with torch.autograd.detect_anomaly(check_nan=True):
            grads = torch.autograd.grad(output.square().sum(), (q, k, v))
        assert all(grad.isfinite().all() for grad in grads)
        assert all((grad[1] == 0).all() and (grad[0] != 0).any() for grad in grads)


@pytest.mark.parametrize("dtype, atol", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_is_computed_in_single(dtype, atol):
    q, k, v = (normal(2, 2, 300, 64, seed=n, dtype=dtype) for n in range(3))
    exact, _ = scaled_dot_product_attention(q.double(), k.double(), v.double())
    output, weights = scaled_dot_product_attention(q, k, v)
    assert output.dtype == weights.dtype == dtype
    assert_close(output.double(), exact, atol=atol, rtol=0)
    big = q * 200  # fp16 scores of 1e6 would overflow to inf
    assert scaled_dot_product_attention(big, big, v)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [300.0, 1e5])
@pytest.mark.parametrize("name", ["bias", "mask"])
def test_half_precision_does_not_round_what_is_added(dtype, size, name):
    added = normal(L, S) - size  # all alike, but for what half precision would round
    q, k, v = (normal(B, H, n, D, seed=n, dtype=dtype) for n in (L, S, S))
    exact = scaled_dot_product_attention(
        q.double(), k.double(), v.double(), **{name: added.double()}
    )
    ours = scaled_dot_product_attention(q, k, v, **{name: added})
    for one, other in zip(ours, exact, strict=True):
        assert_close(one.double(), other, atol=2e-2, rtol=0)


def test_dropout_only_when_asked_and_never_in_the_weights():
    q = normal(2, 6, D)
    output, weights = scaled_dot_product_attention(q, q, q)
    again, _ = scaled_dot_product_attention(q, q, q)
    dropped, kept_weights = scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert_close(output, again, atol=0, rtol=0)
    assert_close(kept_weights, weights, atol=0, rtol=0)
    assert (dropped - output).abs().max() > 0.1
    assert (scaled_dot_product_attention(q, q, q, dropout_p=1.0)[0] == 0).all()


def test_arguments_are_not_edited_and_no_keys_are_no_reading():
    q, mask = normal(2, 5, D), torch.zeros(1, 5, 5)
    before = q.clone(), mask.clone()
    with torch.no_grad():
        scaled_dot_product_attention(q, q, q, mask)
    assert torch.equal(q, before[0]) and torch.equal(mask, before[1])
    nothing = normal(2, 0, D)
    output, weights = scaled_dot_product_attention(q, nothing, nothing)
    assert (output == 0).all() and weights.shape == (2, 5, 0)
    assert torch.equal(
        scaled_dot_product_attention(*[torch.ones(1, 1)] * 3)[0], torch.ones(1, 1)
    )


Q4, K4 = torch.zeros(B, H, L, D), torch.zeros(B, H, S, D)


@pytest.mark.parametrize(
    ("error", "says", "call"),
    [
        (ValueError, "torch.float64 and value", {"key": K4.double()}),
        (TypeError, "query is torch.int64; give floating point", {"query": Q4.long()}),
        (TypeError, "value is a ndarray", {"value": K4.numpy()}),
        (ValueError, "features", {"key": K4[..., :5]}),
        (ValueError, "keys, any", {"value": K4[..., :3, :]}),
        (ValueError, "nothing is broadcast", {"key": K4[:, :1], "value": K4[:, :1]}),
        (ValueError, "nothing is broadcast", {"query": Q4[0]}),
        (ValueError, "do not fit", {"query": Q4[0, 0, 0]}),
        (
            ValueError,
            "do not fit",
            dict.fromkeys(["query", "key", "value"], K4[0, 0, 0]),
        ),
        (ValueError, "do not fit", {"query": Q4[..., :0], "key": K4[..., :0]}),
        (ValueError, "scale is nan", {"scale": math.nan}),
        (ValueError, "scale is -1", {"scale": -1}),
        (TypeError, "scale is a str", {"scale": "1"}),
        (ValueError, "dropout_p is 1.5", {"dropout_p": 1.5}),
        (ValueError, "dropout_p is nan", {"dropout_p": math.nan}),
        (TypeError, "dropout_p is a str", {"dropout_p": "0.5"}),
        (TypeError, "dropout_p is a bool", {"dropout_p": True}),
    ],
)
def test_bad_input_says_what_to_do(error, says, call):
    with pytest.raises(error, match=says):
        scaled_dot_product_attention(**{"query": Q4, "key": K4, "value": K4} | call)
