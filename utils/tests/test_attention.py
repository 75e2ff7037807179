"""utils/attention.py against independent oracles: PyTorch's kernels, layers, loops."""

import math

import pytest
import torch
import torch.nn.functional as F
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


def test_split_heads_keeps_the_features_of_a_token_together():
    x = torch.arange(B * L * E).view(B, L, E)
    heads = split_heads(x, H)
    for h in range(H):
        assert_close(heads[:, h], x[..., h * D : (h + 1) * D])
    assert_close(merge_heads(heads), x)
    assert_close(merge_heads(heads), torch.cat(list(heads.unbind(1)), -1))
    with pytest.raises(ValueError, match="32 features cannot be split into 5"):
        split_heads(x, 5)


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


@pytest.mark.parametrize("wrong", ["0.5", True])
def test_dropout_is_a_number(wrong):
    with pytest.raises(TypeError, match=f"dropout_p is a {type(wrong).__name__}"):
        scaled_dot_product_attention(Q4, K4, K4, dropout_p=wrong)
    with pytest.raises(TypeError, match=f"dropout is a {type(wrong).__name__}"):
        MultiHeadAttention(E, H, dropout=wrong)


@pytest.mark.parametrize("wrong", [torch.zeros(5, 12), torch.zeros(2, 3, 5, 12)])
def test_heads_of_the_wrong_rank(wrong):
    with pytest.raises(ValueError, match=r"give \(batch, length, embed\)"):
        split_heads(wrong, 3)
    with pytest.raises(ValueError, match=r"give \(batch, heads, length, head_dim\)"):
        merge_heads(wrong[0])


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
