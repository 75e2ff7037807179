"""What lesson 03 says of PyTorch: its table row by row, each with inputs of its own.

Checked on torch 2.13, on a CPU. PyTorch is changing some of it (rows 7 to 10): a test
that fails here says which row of the page needs a new reading.
"""

import copy
import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, causal_mask, split_heads

sdpa = F.scaled_dot_product_attention
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def pair(embed_dim=8, num_heads=2, **options):
    """Return an nn.MultiheadAttention with random biases, and ours with its weights."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(embed_dim, num_heads, **options)
    for name, parameter in theirs.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return theirs, MultiHeadAttention.from_torch(theirs)


def frozen(layer):
    return copy.deepcopy(layer).eval().requires_grad_(False)


def text(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def layers():
    return pair(batch_first=True)


@pytest.fixture
def theirs(layers):
    return layers[0]


@pytest.fixture
def ours(layers):
    return layers[1]


@pytest.fixture
def x():
    return text(3, 5, 8)


def close(a, b):
    assert_close(a, b, atol=1e-6, rtol=1e-5, equal_nan=True)


# --- masks ---


def test_row_1_true_means_blocked_or_may_be_read(theirs, ours, x):
    keep = causal_mask(5)
    close(theirs(x, x, x, attn_mask=~keep)[0], ours(x, mask=keep)[0])
    close(sdpa(x, x, x, attn_mask=keep), sdpa(x, x, x, is_causal=True))


def test_row_2_floats_are_added(theirs, ours, x):
    bias = text(5, 5, seed=2)
    close(theirs(x, x, x, attn_mask=bias)[0], ours(x, mask=bias)[0])
    by_hand = (x @ x.mT / 8**0.5 + bias).softmax(-1) @ x
    close(sdpa(x, x, x, attn_mask=bias), by_hand)


@pytest.mark.filterwarnings("error")
def test_row_3_a_float_key_padding_mask_is_added_without_a_warning(theirs, ours, x):
    words = torch.tensor([[1.0, 1, 0, 0, 0]] * 3)
    output, _ = theirs(x, x, x, key_padding_mask=words)
    close(output, ours(x, mask=words[:, None, None])[0])
    # beside a boolean mask it is deprecated
    square = nn.Transformer.generate_square_subsequent_mask(5)
    hidden = torch.tensor([[False] * 4 + [True]] * 3)
    with pytest.warns(UserWarning, match="deprecated"):
        mixed, _ = theirs(x, x, x, attn_mask=square, key_padding_mask=hidden)
    both = {"attn_mask": ~causal_mask(5), "key_padding_mask": hidden}
    close(mixed, theirs(x, x, x, **both)[0])
    with pytest.warns(UserWarning, match="deprecated"):
        theirs(x, x, x, attn_mask=~causal_mask(5), key_padding_mask=words)


def test_row_4_integer_masks_are_refused(theirs, ours, x):
    mask = causal_mask(5).int()
    with pytest.raises(AssertionError):
        theirs(x, x, x, attn_mask=mask)
    with pytest.raises(AssertionError):
        theirs(x, x, x, key_padding_mask=torch.ones(3, 5).int())
    with pytest.raises(RuntimeError):
        sdpa(x, x, x, attn_mask=mask)
    with pytest.raises(TypeError):
        ours(x, mask=mask)


def test_row_5_a_mask_per_head(theirs, ours, x):
    keep = text(3, 2, 5, 5, seed=3) > 0
    keep[..., 0] = True
    close(theirs(x, x, x, attn_mask=~keep.flatten(0, 1))[0], ours(x, mask=keep)[0])
    heads = split_heads(x, 2)
    close(sdpa(heads, heads, heads, keep)[1, 1], sdpa(*[heads[1, 1]] * 3, keep[1, 1]))
    with pytest.raises(AssertionError):
        theirs(x, x, x, attn_mask=~keep)


def test_row_6_as_many_sentences_as_words(theirs, ours):
    x, keep = text(5, 5, 8), torch.arange(5) < torch.tensor([[5], [4], [3], [2], [5]])
    for_queries = ours(x, mask=keep[None, None])[0]
    for_batch = ours(x, mask=keep[:, None, None])[0]
    assert not torch.allclose(for_queries, for_batch, atol=1e-2)
    close(theirs(x, x, x, attn_mask=~keep)[0], for_queries)
    close(ours(x, mask=keep)[0], for_queries)
    heads = split_heads(x, 2)
    close(sdpa(heads, heads, heads, keep), sdpa(heads, heads, heads, keep[None, None]))


def asked_causal(layer, x, mask, need_weights, **options):
    """Return 'causal', 'FULL' or 'error': what is_causal=True does with this mask."""
    options |= {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
    changed = x.clone()
    changed[:, -1] += 1
    if not layer.batch_first:
        x, changed = x.transpose(0, 1), changed.transpose(0, 1)
    try:
        before, after = (layer(t, t, t, **options)[0] for t in (x, changed))
    except RuntimeError:
        return "error"
    first = (slice(None), 0) if layer.batch_first else 0
    same = torch.allclose(before[first], after[first], atol=1e-6)
    return "causal" if same else "FULL"


NO, FREE, LATER = None, torch.zeros(5, 5).bool(), torch.ones(5, 5).triu(1).bool()
ELIGIBLE = {
    (NO, "training"): ["error", "error"],
    (NO, "frozen"): ["FULL", "FULL"],
    (FREE, "training"): ["FULL", "causal"],
    (FREE, "frozen"): ["FULL", "FULL"],
    (LATER, "training"): ["causal", "causal"],
    (LATER, "frozen"): ["causal", "causal"],
}


@pytest.mark.parametrize("switched_off", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"batch_first": True}, {}, {"batch_first": True, "bias": False}],
    ids=["eligible", "length first", "no bias"],
)
def test_row_7_is_causal_is_a_promise(options, switched_off, x, request):
    theirs = pair(**options)[0]
    fast = options == {"batch_first": True} and not switched_off
    request.addfinalizer(lambda: torch.backends.mha.set_fastpath_enabled(True))
    torch.backends.mha.set_fastpath_enabled(not switched_off)
    for (mask, mode), expected in ELIGIBLE.items():
        layer = theirs if mode == "training" else frozen(theirs)
        if mode == "frozen" and not fast:  # then the mode does not matter
            expected = ELIGIBLE[mask, "training"]
        found = [asked_causal(layer, x, mask, w) for w in (True, False)]
        assert found == expected, (mode, mask)


def test_row_7_elsewhere():
    q, k, v = torch.zeros(2, 4), torch.zeros(5, 4), torch.eye(5)
    upper_left = torch.ones(2, 5).tril().bool()
    assert torch.equal(sdpa(q, k, v, is_causal=True) > 0, upper_left)
    assert not torch.equal(causal_mask(2, 5), upper_left)
    with pytest.raises(TypeError):
        pair()[1](text(3, 5, 8), is_causal=True)


def test_row_8_with_padding_the_promise_is_dropped(theirs, x):
    none = torch.zeros(3, 5, dtype=torch.bool)
    for layer, w in product((theirs, frozen(theirs)), (True, False)):
        for mask, expected in ((FREE, "FULL"), (LATER, "causal")):
            assert asked_causal(layer, x, mask, w, key_padding_mask=none) == expected


def nothing_to_read():
    return torch.tensor([[False] * 5, [True] * 5, [False] * 5])


@pytest.mark.parametrize("need_weights", [True, False])
def test_row_9_nothing_to_read(theirs, ours, x, need_weights):
    options = {"key_padding_mask": nothing_to_read(), "need_weights": need_weights}
    trained = theirs(x, x, x, **options)[0][1]
    bias = theirs.out_proj.bias.expand(5, 8)
    assert trained.isnan().all() if need_weights else torch.allclose(trained, bias)
    assert frozen(theirs)(x, x, x, **options)[0][1].isnan().all()
    keep = ~nothing_to_read()[:, None, None]
    for layer in (ours, frozen(ours)):
        close(layer(x, mask=keep, need_weights=need_weights)[0][1], bias)
    heads = split_heads(x, 2)
    assert (sdpa(heads, heads, heads, keep)[1] == 0).all()


class WithoutWeights(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, hidden):
        options = {"key_padding_mask": hidden, "need_weights": False}
        return self.layer(x, x, x, **options)[0]


def test_row_10_exported_code_skips_the_fast_path(theirs, ours, x):
    model, hidden = WithoutWeights(frozen(theirs)), nothing_to_read()
    exported = torch.export.export(model, (x, hidden)).module()
    assert model(x, hidden)[1].isnan().all()
    bias = theirs.out_proj.bias.detach().expand(5, 8)
    close(exported(x, hidden)[1], bias)
    options = {"mask": ~hidden[:, None, None]}
    exported = torch.export.export(ours, (x,), options).module()
    close(exported(x, **options)[0][1], bias)


def test_row_10_compiled_code_skips_the_fast_path(theirs, ours, x):
    """torch 2.6 does not; 2.11 and 2.13 do. Ours says the same."""
    torch.compiler.reset()
    traced = torch.compile(ours, backend="eager")
    keep = ~nothing_to_read()[:, None, None]
    close(traced(x, mask=keep)[0][1], ours.out_proj.bias.expand(5, 8))
    traced = torch.compile(WithoutWeights(frozen(theirs)), backend="eager")
    found = traced(x, nothing_to_read())[1]
    if VERSION == (2, 6):
        assert found.isnan().all()
    elif VERSION >= (2, 11):  # which version changed it has not been looked up
        close(found, theirs.out_proj.bias.detach().expand(5, 8))


# --- the layer ---


def test_row_11_the_first_axis(x):
    theirs, ours = pair()
    turned = x.transpose(0, 1)
    close(theirs(turned, turned, turned)[0].transpose(0, 1), ours(x)[0])
    assert theirs(turned, turned, turned)[1].shape == (3, 5, 5)  # weights: batch first


def test_row_12_weights_are_averaged(theirs, ours, x):
    weights = ours(x, need_weights=True)[1]
    assert weights.shape == (3, 2, 5, 5)
    close(theirs(x, x, x)[1], weights.mean(1))
    close(theirs(x, x, x, average_attn_weights=False)[1], weights)


def test_row_13_weights_are_computed_unless_refused(theirs, ours, x):
    assert theirs(x, x, x)[1] is not None
    assert theirs(x, x, x, need_weights=False)[1] is ours(x)[1] is None


def test_row_14_returned_weights_were_dropped_out(x):
    theirs, ours = pair(dropout=0.5, batch_first=True)
    weights = theirs(x, x, x, average_attn_weights=False)[1]
    assert 0.2 < (weights == 0).float().mean() < 0.8
    close(ours(x, need_weights=True)[1].sum(-1), torch.ones(3, 2, 5))
    assert not torch.equal(ours(x)[0], ours(x)[0])  # it does drop


def test_row_15_the_number_of_heads_is_not_in_the_file(theirs, ours, x):
    for two, four in zip((theirs, ours), pair(num_heads=4, batch_first=True)):
        four.load_state_dict(two.state_dict())
        assert not torch.allclose(four(x, x, x)[0], two(x, x, x)[0], atol=1e-2)


def test_row_16_out_proj_is_never_called(theirs, ours, x):
    for layer in (theirs, frozen(theirs), ours):
        layer.out_proj.forward = torch.zeros_like
        assert layer(x, x, x)[0].any() == (layer is not ours)


def test_row_17_a_parametrized_weight_is_used(layers, x):
    for layer in layers:
        zero = nn.Threshold(math.inf, 0.0)
        nn.utils.parametrize.register_parametrization(layer.out_proj, "weight", zero)
        for each in (layer, frozen(layer)):
            close(each(x, x, x)[0], each.out_proj.bias.expand(3, 5, 8))


def test_row_18_apply_misses_the_packed_weight(layers):
    def zero_linear(module):
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)

    theirs, ours = (layer.apply(zero_linear) for layer in layers)
    assert theirs.in_proj_weight.any() and not theirs.out_proj.weight.any()
    assert not any(p.any() for name, p in ours.named_parameters() if "weight" in name)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_row_19_extra_keys(option, x):
    special = nn.MultiheadAttention(8, 2, batch_first=True, **{option: True})
    assert special(x, x, x)[1].shape == (3, 5, 6)
    with pytest.raises(ValueError, match=option):
        MultiHeadAttention.from_torch(special)


def test_a_key_bias_changes_nothing(ours, x):
    ours.requires_grad_(False)
    output = ours(x)[0]
    ours.key_proj.bias.add_(text(8, seed=4))
    close(ours(x)[0], output)
    ours.query_proj.bias.add_(text(8, seed=4))
    assert not torch.allclose(ours(x)[0], output, atol=1e-2)
