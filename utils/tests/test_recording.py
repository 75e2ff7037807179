"""record_attention on every kind of model; nothing is changed by looking."""

import copy
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.masks import causal_mask, padding_mask
from utils.models import Block, CausalLM
from utils.positions import ALiBi, Learned, Rotary, T5Bias
from utils.recording import attention_layers, record_attention
from utils.tests.helpers import normal

B, L, E, H, V = 3, 7, 16, 4, 11
POSITIONS = {
    "none": lambda: None,
    "learned": lambda: Learned(L, E),
    "rotary": lambda: Rotary(E // H),
    "ALiBi": lambda: ALiBi(H),
    "T5": lambda: T5Bias(H, num_buckets=8, max_distance=6),
}
X = normal(B, L, E)
IDS = torch.randint(V, (B, L), generator=torch.Generator().manual_seed(0))
HIDDEN = ~padding_mask([L, 2, 5], L)[:, 0, 0]  # as PyTorch wants it: True = padding


def state_of(model):
    """Return all that looking might change."""
    modules = [
        (m.training, vars(m).get("forward"), *m._forward_pre_hooks, *m._forward_hooks)
        for m in model.modules()
    ]
    fast = torch.backends.mha.get_fastpath_enabled()
    gradients = [x.requires_grad for x in model.parameters()]
    return modules, gradients, fast, torch.is_grad_enabled()


def asked_directly(model, *inputs):
    """Return the weights of each attention, called again as the model calls it."""
    found = []

    def ask(layer, inputs, named):
        found.append(layer.forward(*inputs, **named | {"need_weights": True})[1])

    with ExitStack() as hooks:
        for layer in attention_layers(model):
            hooks.enter_context(layer.register_forward_pre_hook(ask, with_kwargs=True))
        model.eval()(*inputs)
    return found


@pytest.mark.parametrize("num_kv_heads", [None, 2])
@pytest.mark.parametrize("scheme", POSITIONS)
def test_language_model_with_every_position_scheme(scheme, num_kv_heads):
    torch.manual_seed(0)
    options = {"position": POSITIONS[scheme](), "num_kv_heads": num_kv_heads}
    model = CausalLM(V, E, H, 2, dropout=0.5, **options)
    model.blocks[1].eval()  # a mixture of modes
    state = state_of(model)
    found = record_attention(model, IDS)
    assert state_of(model) == state and len(found) == 2
    for got, wanted in zip(found, asked_directly(model, IDS), strict=True):
        assert got.shape == (B, H, L, L) and not got.requires_grad
        assert_close(got, wanted)
        assert_close(got.sum(-1), torch.ones(B, H, L))  # dropout was off


def test_layer_and_block_with_their_inputs():
    layer, mask = MultiHeadAttention(E, H, dropout=0.5), padding_mask([L, 2, 5], L)
    (found,) = record_attention(layer, X, X[:, :4], mask=mask[..., :4])
    (same,) = [layer.eval()(X, X[:, :4], mask=mask[..., :4], need_weights=True)[1]]
    assert torch.equal(found, same) and found.shape == (B, H, L, 4)
    block = Block(E, H)
    (found,) = record_attention(block, X, causal_mask(L))
    assert torch.equal(found, asked_directly(block, X, causal_mask(L))[0])


def per_head(module, x, **masks):
    return module(x, x, x, average_attn_weights=False, **masks)[1]


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_layer(batch_first):
    module = nn.MultiheadAttention(E, H, dropout=0.5, batch_first=batch_first)
    x = X if batch_first else X.transpose(0, 1)
    (found,) = record_attention(module, x, x, x, key_padding_mask=HIDDEN)
    assert found.shape == (B, H, L, L)
    assert torch.equal(found, per_head(module.eval(), x, key_padding_mask=HIDDEN))
    (positional,) = record_attention(module, x, x, x, HIDDEN, False, None, False)
    assert torch.equal(positional, found)


class Asks(nn.Module):
    """A model that itself looks at the weights, in each of PyTorch's ways."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(E, H, batch_first=True)

    def forward(self, x):
        self.seen = [
            self.inner(x, x, x)[1],
            self.inner(x, x, x, need_weights=False)[1],
            self.inner(x, x, x, average_attn_weights=False)[1],
        ]


@pytest.mark.parametrize("x", [X, X[0]], ids=["batch", "one sequence alone"])
def test_the_model_sees_what_it_asked_for(x):
    model = Asks().eval()
    found = record_attention(model, x)
    assert [each.shape[:2] for each in found] == [(len(X) if x is X else 1, H)] * 3
    seen = model.seen
    model(x)
    assert seen[1] is model.seen[1] is None
    assert_close((seen[0], seen[2]), (model.seen[0], model.seen[2]))


@pytest.mark.parametrize("hidden", [None, HIDDEN])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoder_although_its_fast_path_calls_no_attention(norm_first, hidden):
    options = {"batch_first": True, "norm_first": norm_first}
    layer = nn.TransformerEncoderLayer(E, H, 32, **options)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    state = state_of(model)
    found = record_attention(model, X, src_key_padding_mask=hidden)
    assert state_of(model) == state and len(found) == 2
    x = X
    for block, weights in zip(model.layers, found):
        given = block.norm1(x) if norm_first else x
        expected = per_head(block.self_attn, given, key_padding_mask=hidden)
        assert_close(weights, expected)
        x = block(x, src_key_padding_mask=hidden)
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    (causal,) = record_attention(layer, X, src_mask=causal, is_causal=True)
    assert (causal.triu(1) == 0).all()


def test_torch_decoder_layer_attends_to_itself_and_the_other_text():
    layer = nn.TransformerDecoderLayer(E, H, 32, batch_first=True)
    own, cross = record_attention(layer, X, X[:, :4])
    assert own.shape == (B, H, L, L) and cross.shape == (B, H, L, 4)


class Mine(nn.Module):
    """An attention of one's own: no class of the course's, called in the same way."""

    def forward(self, query, mask=None, *, need_weights=False, cache=None):
        heads = query[:, None]
        output, weights = scaled_dot_product_attention(heads, heads, heads, mask)
        return output[:, 0], weights if need_weights else None


class Smeared(MultiHeadAttention):
    """A variant that hides the options behind **named."""

    def forward(self, *inputs, **named):
        return super().forward(*inputs, **named)


class HandsOn(nn.Module):
    """A block that takes need_weights only to hand it on to the attention in it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, query, need_weights=False, **options):
        return self.inner(query, need_weights=need_weights, **options)


def test_attention_of_ones_own():
    model = CausalLM(V, E, H, 3)
    mine = Mine(), Smeared(E, H), MultiHeadAttention(E, H)
    wrapped = HandsOn(mine[0]), mine[1], HandsOn(mine[2])
    for block, attention in zip(model.blocks, wrapped):
        block.attention = attention
    assert attention_layers(model) == [*mine]
    found = record_attention(model, IDS)
    assert [len(each[0]) for each in found] == [1, H, H]
    assert_close(found, asked_directly(model, IDS))


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = MultiHeadAttention(E, H), Smeared(E, H)

    def forward(self, x):
        self.first(x)
        raise KeyboardInterrupt


def test_everything_is_restored_after_an_exception():
    model = Breaks()
    model.second.forward = copy.copy(model.second.forward)  # patched before
    state = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        record_attention(model, X)
    assert state_of(model) == state
    assert model.training and model.first(X)[1] is None


class Silent(HandsOn):
    """It has attention, and does not use it."""

    def forward(self, x):
        return x


class Plain(nn.Module):
    def forward(self, x, need_weights=False):
        return x


@pytest.mark.parametrize(
    ("error", "says", "model"),
    [
        (ValueError, "Linear called no attention", nn.Linear(E, E)),
        (ValueError, "called no attention", Silent(MultiHeadAttention(E, H))),
        (TypeError, r"give an nn\.Module", lambda x: x),
        (ValueError, "must return .output, weights", Plain()),
    ],
)
def test_what_cannot_be_recorded_is_refused(error, says, model):
    with pytest.raises(error, match=says):
        record_attention(model, X[:2])
