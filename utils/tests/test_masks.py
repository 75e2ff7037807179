"""Masks: what they say, how they are read, and what is refused."""

import math

import pytest
import torch
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.masks import causal_mask, padding_mask
from utils.tests.test_attention import FLAG, B, E, H, L, S, randn


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_one_bad_number_in_a_finite_mask_is_refused(name, bad):
    added = torch.zeros(L, S)
    added[2, 3] = bad
    q, k = randn(B, H, L, 8), randn(B, H, S, 8)
    with pytest.raises(ValueError, match=f"{name} contains NaN or .inf"):
        scaled_dot_product_attention(q, k, k, **{name: added})


def test_unbatched_and_three_axes():
    """A 2-D mask is (queries, keys) without a batch; with one it may be two things."""
    q, k = randn(L, 8), randn(L, 8, seed=1)
    mask = randn(L, L, seed=2) > 0
    mask[:, 0] = True
    _, weights = scaled_dot_product_attention(q, k, k, mask)
    assert_close(weights > 0, mask)
    with pytest.raises(ValueError, match="could be"):
        scaled_dot_product_attention(q.expand(L, L, 8), *[k.expand(L, L, 8)] * 2, mask)
    _, weights = scaled_dot_product_attention(
        q.expand(L, L, 8), *[k.expand(L, L, 8)] * 2, mask[None]
    )
    assert_close(weights > 0, mask.expand(L, L, L))


@pytest.mark.parametrize("lengths", [[3, -1, 4], [-2, 0]])
def test_a_negative_length_among_good_ones_is_refused(lengths):
    for max_length in (4, None):
        with pytest.raises(ValueError, match="each must be between 0 and"):
            padding_mask(lengths, max_length)
