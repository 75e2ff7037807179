"""What lesson 03 says of PyTorch, as far as no cell of its notebooks compares it.

Checked on torch 2.13, on a CPU; the numbers are the rows of the table in the deeper
notebook. A test that fails here says which row of the page needs a new reading.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, causal_mask, split_heads

sdpa = F.scaled_dot_product_attention
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def text(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = text(3, 5, 8)
HEADS = split_heads(X, 2)  # (3, 2, 5, 4)
NOTHING = torch.tensor([[True] * 5, [False] * 5, [True] * 5])  # to attend to, in row 1


def pair(**options):
    """Return an nn.MultiheadAttention with random biases, and ours with its weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, **options)
    for name, parameter in theirs.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return theirs, MultiHeadAttention.from_torch(theirs)


theirs, ours = pair(batch_first=True)


def close(a, b):
    assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_row_2_floats_are_added():
    bias = text(5, 5, seed=2)
    close(theirs(X, X, X, attn_mask=bias)[0], ours(X, mask=bias)[0])
    by_hand = (HEADS @ HEADS.mT / 2 + bias).softmax(-1) @ HEADS
    close(sdpa(HEADS, HEADS, HEADS, attn_mask=bias), by_hand)


def test_row_3_beside_a_boolean_mask_a_float_padding_mask_is_deprecated():
    words = torch.tensor([[1.0, 1, 0, 0, 0]] * 3)
    with pytest.warns(UserWarning, match="deprecated"):
        theirs(X, X, X, attn_mask=~causal_mask(5), key_padding_mask=words)


def test_row_5_a_mask_per_head():
    keep = text(3, 2, 5, 5, seed=3) > 0
    keep[..., 0] = True
    close(theirs(X, X, X, attn_mask=~keep.flatten(0, 1))[0], ours(X, mask=keep)[0])
    alone = sdpa(*[HEADS[1, 1]] * 3, keep[1, 1])
    close(sdpa(HEADS, HEADS, HEADS, keep)[1, 1], alone)


def test_row_6_as_many_sentences_as_words():
    x, keep = text(5, 5, 8), torch.arange(5) < torch.tensor([[5], [4], [3], [2], [5]])
    for_queries = ours(x, mask=keep[None, None])[0]
    assert not torch.allclose(for_queries, ours(x, mask=keep[:, None, None])[0], 0.01)
    close(theirs(x, x, x, attn_mask=~keep)[0], for_queries)
    close(ours(x, mask=keep)[0], for_queries)


def test_row_7_sdpa_aligns_its_causal_mask_at_the_upper_left():
    q, k, v = torch.zeros(2, 4), torch.zeros(5, 4), torch.eye(5)
    assert torch.equal(sdpa(q, k, v, is_causal=True) > 0, torch.ones(2, 5).tril() > 0)
    close(sdpa(HEADS, HEADS, HEADS, causal_mask(5)), sdpa(*[HEADS] * 3, is_causal=True))
    with pytest.raises(TypeError):
        ours(X, is_causal=True)


def test_rows_9_and_10_nothing_to_attend_to():
    """Compiled code of torch 2.6 takes the fast path, of 2.11 and 2.13 not."""
    keep, bias = NOTHING[:, None, None], theirs.out_proj.bias.detach().expand(5, 8)
    assert (sdpa(HEADS, HEADS, HEADS, keep)[1] == 0).all()
    exported = torch.export.export(ours, (X,), {"mask": keep}).module()
    torch.compiler.reset()
    for layer in (exported, torch.compile(ours, backend="eager")):
        close(layer(X, mask=keep)[0][1], bias)
    frozen = copy.deepcopy(theirs).eval().requires_grad_(False)  # takes the fast path
    options = {"key_padding_mask": ~NOTHING, "need_weights": False}
    found = torch.compile(frozen, backend="eager")(X, X, X, **options)[0][1]
    if VERSION == (2, 6):
        assert found.isnan().all()
    elif VERSION >= (2, 11):  # which version changed it has not been looked up
        close(found, bias)


def test_row_11_the_first_axis():
    theirs, ours = pair()
    turned = X.transpose(0, 1)
    close(theirs(turned, turned, turned)[0].transpose(0, 1), ours(X)[0])
    assert theirs(turned, turned, turned)[1].shape == (3, 5, 5)  # weights: batch first


@pytest.mark.parametrize("of", [0, 1])
def test_row_17_a_parametrized_weight_is_used_in_evaluation_too(of):
    layer, zero = pair(batch_first=True)[of], nn.Threshold(torch.inf, 0.0)
    nn.utils.parametrize.register_parametrization(layer.out_proj, "weight", zero)
    layer.eval().requires_grad_(False)
    close(layer(X, X, X)[0], layer.out_proj.bias.expand(3, 5, 8))


def test_row_19_extra_keys():
    special = nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True)
    assert special(X, X, X)[1].shape == (3, 5, 6)
    with pytest.raises(ValueError, match="add_zero_attn"):
        MultiHeadAttention.from_torch(special)


def test_a_key_bias_changes_nothing():
    layer = copy.deepcopy(ours).requires_grad_(False)
    layer.key_proj.bias.add_(text(8, seed=4))
    close(layer(X)[0], ours(X)[0])
    layer.query_proj.bias.add_(text(8, seed=4))
    assert not torch.allclose(layer(X)[0], ours(X)[0], atol=1e-2)
