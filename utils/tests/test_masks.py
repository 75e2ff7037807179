"""Masks: what they say, how they are read, and what is refused."""

import math

import pytest
import torch
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.masks import causal_mask, padding_mask
from utils.tests.helpers import SIZES, normal

B, H, L, S, D, E = SIZES

Q, K = normal(B, H, L, D), normal(B, H, S, D, seed=1)
FLAG = torch.ones(L, S, dtype=torch.bool)


@pytest.mark.parametrize(
    ("error", "says", "lengths", "max_length"),
    [
        (ValueError, "between 0 and max_length=4", [5], 4),
        (ValueError, "between 0 and max_length=4", [3, -1, 4], 4),
        (ValueError, "each must be between 0 and", [3, -1, 4], None),
        (ValueError, "each must be between 0 and", [-2, 0], None),
        (TypeError, "whole numbers", [1.5], None),
        (TypeError, "whole numbers", [True, False], None),
        (ValueError, r"give \(batch,\)", [[1, 2]], None),
        (ValueError, "max_length is -1", [], -1),
        (TypeError, "max_length is 3.5; it must be an int", [2], 3.5),
        (ValueError, r"give \(batch,\)", 3, None),
    ],
)
def test_lengths_that_are_none(error, says, lengths, max_length):
    with pytest.raises(error, match=says):
        padding_mask(lengths, max_length)


@pytest.mark.parametrize("need_weights", [True, False])
def test_two_axes_are_queries_and_keys_also_where_the_batch_is_as_large(need_weights):
    layer, x = MultiHeadAttention(E, H), normal(L, L, E)  # batch == length
    padding = padding_mask([5, 2, 1, 5, 3])
    window = causal_mask(L) & ~causal_mask(L).tril(-2)
    for two_axes in (padding[:, 0, 0], causal_mask(L), window, FLAG[:, :L]):
        output, weights = layer(x, mask=two_axes, need_weights=need_weights)
        expected, _ = layer(x, mask=two_axes[None, None])
        assert_close(output, expected)
        if need_weights:
            assert_close(weights > 0, two_axes.expand(L, H, L, L))
    for mask in (padding, padding.expand(L, 1, L, L)):
        weights = layer(x, mask=mask, need_weights=True)[1]
        assert_close(weights > 0, padding.expand(L, H, L, L))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_one_bad_number_in_a_finite_mask_is_refused(name, bad):
    added = torch.zeros(L, S)
    added[2, 3] = bad
    with pytest.raises(ValueError, match="mask or bias contains NaN or .inf"):
        scaled_dot_product_attention(Q, K, K, **{name: added})


@pytest.mark.parametrize(
    ("error", "says", "given"),
    [
        (TypeError, "mask is torch.int64.*True = may be read", {"mask": FLAG.long()}),
        (TypeError, "mask is torch.uint8; give bool", {"mask": FLAG.byte()}),
        (TypeError, "mask is a list", {"mask": [[True]]}),
        (TypeError, "bias is torch.bool; give floating", {"bias": FLAG}),
        (ValueError, r"\(batch, keys\) .* as mask\[:, None, None", {"mask": FLAG[:B]}),
        (ValueError, "one per sequence", {"mask": FLAG.expand(B, L, S)}),
        (ValueError, "one per head", {"mask": FLAG.expand(H, L, S)}),
        (ValueError, "1 for 'the same for all'", {"mask": FLAG[:1]}),
        (ValueError, "mask has shape", {"mask": FLAG[0]}),
        (ValueError, "bias has shape", {"bias": FLAG[0].float()}),
        (ValueError, "mask is on meta", {"mask": FLAG.to("meta")}),
        (ValueError, "NaN or .inf", dict.fromkeys(["mask", "bias"], FLAG * 3e38)),
    ],
)
def test_masks_that_do_not_fit(error, says, given):
    with pytest.raises(error, match=says):
        scaled_dot_product_attention(Q, K, K, **given)
