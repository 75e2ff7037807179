"""scaled_dot_product_attention against PyTorch's kernels, and what it refuses."""

import math

import pytest
import torch
from torch.testing import assert_close

from utils.attention import merge_heads, scaled_dot_product_attention, split_heads
from utils.masks import padding_mask
from utils.tests.helpers import SIZES, normal

B, H, L, S, D, E = SIZES


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


def test_dropout_only_when_asked_and_never_in_the_weights():
    q = normal(2, 6, D)
    output, weights = scaled_dot_product_attention(q, q, q)
    again, _ = scaled_dot_product_attention(q, q, q)
    dropped, kept_weights = scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert_close(output, again, atol=0, rtol=0)
    assert_close(kept_weights, weights, atol=0, rtol=0)
    assert (dropped - output).abs().max() > 0.1
    assert (scaled_dot_product_attention(q, q, q, dropout_p=1.0)[0] == 0).all()


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
