"""record_attention on every kind of model; nothing is changed by looking."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.masks import causal_mask, padding_mask
from utils.models import Block, CausalLM
from utils.positions import ALiBi, Learned, NoPE, Rotary, Sinusoidal, T5Bias
from utils.recording import attention_layers, record_attention

B, L, E, H, V = 3, 7, 16, 4, 11
SCHEMES = {
    "None": lambda: None,
    "NoPE": NoPE,
    "Learned": lambda: Learned(L, E),
    "Sinusoidal": lambda: Sinusoidal(E),
    "Rotary": lambda: Rotary(E // H),
    "ALiBi": lambda: ALiBi(H),
    "T5Bias": lambda: T5Bias(H, num_buckets=8, max_distance=6),
}
X = torch.randn(B, L, E, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(V, (B, L), generator=torch.Generator().manual_seed(0))


def state_of(model):
    """Return all that looking might change."""
    return {
        "modes": [module.training for module in model.modules()],
        "forwards": ["forward" in vars(module) for module in model.modules()],
        "gradients": [x.requires_grad for x in model.parameters()],
        "fast": torch.backends.mha.get_fastpath_enabled(),
        "grad": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("num_kv_heads", [None, 2])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_language_model_with_every_position_scheme(scheme, num_kv_heads):
    torch.manual_seed(0)
    options = {"position": SCHEMES[scheme](), "num_kv_heads": num_kv_heads}
    model = CausalLM(V, E, H, 2, dropout=0.5, **options)
    model.blocks[1].eval()  # a mixture of modes
    state = state_of(model)
    found = record_attention(model, IDS)
    assert state_of(model) == state
    expected = model.eval()(IDS, need_weights=True)[1]
    assert len(found) == 2
    for got, wanted in zip(found, expected):
        assert got.shape == (B, H, L, L) and not got.requires_grad
        assert torch.equal(got, wanted)
        assert_close(got.sum(-1), torch.ones(B, H, L))  # dropout was off


def test_layer_and_block_with_their_inputs():
    layer, mask = MultiHeadAttention(E, H, dropout=0.5), padding_mask([L, 2, 5], L)
    (found,) = record_attention(layer, X, X[:, :4], mask=mask[..., :4])
    (same,) = [layer.eval()(X, X[:, :4], mask=mask[..., :4], need_weights=True)[1]]
    assert torch.equal(found, same) and found.shape == (B, H, L, 4)
    block = Block(E, H)
    (found,) = record_attention(block, X, causal_mask(L), need_weights=False)
    assert torch.equal(found, block(X, causal_mask(L), need_weights=True)[1])


def per_head(module, x, **masks):
    return module(x, x, x, average_attn_weights=False, **masks)[1]


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_layer(batch_first):
    module = nn.MultiheadAttention(E, H, dropout=0.5, batch_first=batch_first)
    hidden = ~padding_mask([L, 2, 5], L)[:, 0, 0]
    x = X if batch_first else X.transpose(0, 1)
    (found,) = record_attention(module, x, x, x, key_padding_mask=hidden)
    assert found.shape == (B, H, L, L)
    assert torch.equal(found, per_head(module.eval(), x, key_padding_mask=hidden))
    (positional,) = record_attention(module, x, x, x, hidden, False, None, False)
    assert torch.equal(positional, found)
    (single,) = record_attention(module, X[0], X[0], X[0])
    assert single.shape == (1, H, L, L)


class Asks(nn.Module):
    """A model that itself looks at the weights, in each of PyTorch's ways."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(E, H, batch_first=True)

    def forward(self, x):
        answers = [self.inner(x, x, x), self.inner(x, x, x, need_weights=False)]
        answers.append(self.inner(x, x, x, average_attn_weights=False))
        self.seen = [weights for _, weights in answers]
        return answers[0][0]


def test_the_model_sees_what_it_asked_for():
    model = Asks().eval()
    found = record_attention(model, X)
    average, nothing, each = model.seen
    assert len(found) == 3 and nothing is None
    assert torch.equal(each, found[0])
    assert_close(average, found[0].mean(1))


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 32, batch_first=True, **options)
    nested = not options["norm_first"]
    return layer, nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)


@pytest.mark.parametrize("hidden", [None, ~padding_mask([L, 2, 5], L)[:, 0, 0]])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoder_although_its_fast_path_calls_no_attention(norm_first, hidden):
    layer, model = encoder(norm_first=norm_first)
    model.eval()
    state = state_of(model)
    found = record_attention(model, X, src_key_padding_mask=hidden)
    assert state_of(model) == state and len(found) == 2
    x = X
    for block, weights in zip(model.layers, found):
        read = block.norm1(x) if norm_first else x
        expected = per_head(block.self_attn, read, key_padding_mask=hidden)
        assert_close(weights, expected)
        x = block(x, src_key_padding_mask=hidden)
    (alone,) = record_attention(layer, X, src_key_padding_mask=hidden)
    assert_close(alone, found[0])
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    (causal,) = record_attention(layer, X, src_mask=causal, is_causal=True)
    assert (causal.triu(1) == 0).all()


def test_torch_decoder_layer_reads_itself_and_the_other_text():
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


def test_attention_of_ones_own():
    model = CausalLM(V, E, H, 2)
    model.blocks[0].attention, model.blocks[1].attention = Mine(), Smeared(E, H)
    assert attention_layers(model) == [block.attention for block in model.blocks]
    first, second = record_attention(model, IDS)
    assert first.shape == (B, 1, L, L) and second.shape == (B, H, L, L)
    assert torch.equal(second, model(IDS, need_weights=True)[1][1])


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = MultiHeadAttention(E, H), Smeared(E, H)

    def forward(self, x):
        self.first(x)
        raise KeyboardInterrupt


def test_everything_is_restored_after_an_exception():
    model = Breaks()
    mine = model.second.forward = copy.copy(model.second.forward)  # patched before
    state = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        record_attention(model, X)
    assert state_of(model) == state
    assert model.second.forward is mine
    assert model.training and model.first(X)[1] is None


class Silent(nn.Module):
    """It has attention, and does not use it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x


class Plain(nn.Module):
    def forward(self, x, need_weights=False):
        return x


def test_what_cannot_be_recorded_is_refused():
    with pytest.raises(ValueError, match="Linear holds no attention"):
        record_attention(nn.Linear(E, E), X)
    with pytest.raises(ValueError, match="called none"):
        record_attention(Silent(MultiHeadAttention(E, H)), X)
    with pytest.raises(TypeError, match=r"give an nn\.Module"):
        record_attention(lambda x: x, X)
    with pytest.raises(ValueError, match="must return"):
        record_attention(Plain(), X[:2])
