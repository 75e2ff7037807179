"""The block against nn.TransformerEncoderLayer; the language model and its cache."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, causal_mask, padding_mask
from utils.models import Block, CausalLM
from utils.positions import ALiBi, Learned, NoPE, Rotary, Sinusoidal, T5Bias

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


def block_of(layer: nn.TransformerEncoderLayer, **options) -> Block:
    """Return a Block with copies of the weights of PyTorch's layer."""
    layer = copy.deepcopy(layer)
    embed_dim, mlp_dim = layer.linear1.in_features, layer.linear1.out_features
    options = {"norm": "pre" if layer.norm_first else "post", **options}
    block = Block(embed_dim, layer.self_attn.num_heads, mlp_dim=mlp_dim, **options)
    block.attention = MultiHeadAttention.from_torch(layer.self_attn)
    block.attention_norm, block.mlp_norm = layer.norm1, layer.norm2
    block.mlp[0], block.mlp[3] = layer.linear1, layer.linear2
    return block.train(layer.training)


def lm(scheme="Rotary", seed=0, **options):
    torch.manual_seed(seed)
    model = CausalLM(V, E, H, 2, position=SCHEMES[scheme](), **options)
    for name, parameter in model.named_parameters():
        if "bias" in name or "table" in name:  # nothing is hidden by a zero
            nn.init.normal_(parameter)
    return model


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def text(seed=0, length=L):
    return torch.randint(V, (B, length), generator=torch.Generator().manual_seed(seed))


MASKS = {
    "none": None,
    "causal": causal_mask(L),
    "padding": padding_mask([L, 2, 4], L),
    "causal and padding": causal_mask(L) & padding_mask([L, 2, 4], L),
}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_equals_torch_with_gradients(norm, activation, mask, need_weights):
    torch.manual_seed(0)
    options = {"norm_first": norm == "pre", "activation": activation}
    theirs = nn.TransformerEncoderLayer(
        E, H, 3 * E, dropout=0.0, batch_first=True, **options
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = block_of(theirs, activation=activation)
    keep, found = MASKS[mask], []
    for module in (theirs, ours):
        x = randn(B, L, E).requires_grad_()
        if module is theirs:
            blocked = None
            if keep is not None:
                blocked = ~keep.expand(B, H, L, L).reshape(B * H, L, L)
            y = module(x, src_mask=blocked)
        else:
            y, weights = module(x, keep, need_weights=need_weights)
            assert (weights is not None) == need_weights
        (y * randn(B, L, E, seed=1)).sum().backward()
        found.append([y, x.grad, module.linear1.weight.grad, module.norm1.weight.grad]
                     if module is theirs else
                     [y, x.grad, module.mlp[0].weight.grad,
                      module.attention_norm.weight.grad])  # fmt: skip
    assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_is_built_like_torchs(norm):
    """The same parameters, with and without biases, and dropout in the same places."""
    for bias in (True, False):
        options = {"bias": bias, "dropout": 0.5}
        theirs = nn.TransformerEncoderLayer(E, H, 4 * E, batch_first=True, **options)
        sizes = [
            sorted(p.numel() for p in block.parameters())
            for block in (block_of(theirs), Block(E, H, norm=norm, **options))
        ]
        assert sizes[0] == sizes[1]
    block, x = Block(E, H, norm=norm, dropout=0.5), randn(B, L, E)
    assert block.attention.dropout == block.dropout.p == block.mlp[2].p == 0.5
    assert not torch.equal(block(x)[0], block(x)[0])
    assert torch.equal(block.eval()(x)[0], block(x)[0])


def test_dropout_acts_on_what_is_added():
    """With all of it dropped, a pre-norm block is the identity."""
    block, x = Block(E, H, dropout=1.0), randn(B, L, E)
    nn.init.normal_(block.attention.out_proj.bias)
    assert torch.equal(block(x)[0], x)


def test_attention_only_and_no_norm():
    x = randn(B, L, E)
    block = Block(E, H, mlp_dim=0, norm=None)
    expected = x + block.attention(x)[0]
    assert torch.equal(block(x)[0], expected) and block.mlp is None
    names = {name.split(".")[0] for name, _ in block.named_parameters()}
    assert names == {"attention"}
    with_mlp = Block(E, H, norm=None)
    y = x + with_mlp.attention(x)[0]
    assert torch.equal(with_mlp(x)[0], y + with_mlp.mlp(y))


@pytest.mark.parametrize(
    "error, says, options",
    [
        (
            ValueError,
            "norm is 'first'; give one of 'pre', 'post', N",
            {"norm": "first"},
        ),
        (ValueError, "activation is 'swish'", {"activation": "swish"}),
        (ValueError, "mlp_dim is -1", {"mlp_dim": -1}),
        (ValueError, "dropout is 2", {"dropout": 2.0}),
        (ValueError, "num_heads must divide", {"num_heads": 3}),
    ],
)
def test_options_that_cannot_be_are_refused(error, says, options):
    with pytest.raises(error, match=says):
        Block(**{"embed_dim": E, "num_heads": H, **options})


class Plain(nn.Module):
    """Attention that a learner may have written: no fused kernel, no cache."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, query, key=None, value=None, mask=None, **options):
        weights = {"need_weights": options.get("need_weights", False)}
        return self.layer(query, key, value, mask, **weights)


def test_attention_may_be_replaced():
    model, ids = lm(), text()
    expected, weights = model(ids, need_weights=True)
    for block in model.blocks:
        block.attention = Plain(block.attention)
    logits, read = model(ids, need_weights=True)
    assert_close((logits, read), (expected, weights))
    assert model.generate(ids, 2, use_cache=False).shape == (B, L + 2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_model_is_its_parts(scheme):
    """Written out once more; the position scheme is asked where it should be."""
    model, ids = lm(scheme), text()
    x = model.embedding(ids)
    x = x if model.position is None else model.position.embed(x)
    for block in model.blocks:
        assert block.attention.position is model.position
        x, _ = block(x, causal_mask(L))
    expected = model.head(model.norm(x))
    logits, weights = model(ids, need_weights=True)
    assert_close(model(ids), expected)
    assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    assert [w.shape for w in weights] == 2 * [(B, H, L, L)]


def test_a_last_norm_where_blocks_leave_a_sum():
    norms = [type(CausalLM(V, E, H, 1, norm=n).norm) for n in ("pre", "post", None)]
    assert norms == [nn.LayerNorm, nn.Identity, nn.Identity]


def test_a_shared_table_is_one_parameter():
    model = lm("T5Bias")
    tables = [n for n, _ in model.named_parameters() if "position" in n]
    assert len(tables) == 1
    model(text()).square().sum().backward()
    first, both = model.position, lm("T5Bias")
    both.blocks[1].attention.position = copy.deepcopy(both.position)
    both(text()).square().sum().backward()
    (shared,), (one,) = list(first.parameters()), list(both.position.parameters())
    (other,) = both.blocks[1].attention.position.parameters()
    assert_close(shared.grad, one.grad + other.grad)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_token_sees_the_future(scheme, training):
    model = lm(scheme).train(training)
    ids, other = text(), text()
    other[:, 4] = (ids[:, 4] + 1) % V
    changed = (model(ids) - model(other)).abs().amax(dim=(0, 2))
    assert (changed[:4] == 0).all() and (changed[4:] > 1e-4).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cache_changes_nothing(scheme):
    model, ids, cache = lm(scheme).eval(), text(), {}
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, L))]
        assert_close(torch.cat(parts, dim=1), model(ids), atol=1e-5, rtol=1e-5)
    assert cache["length"] == L


def test_a_refused_call_leaves_the_cache_as_it_was():
    model, ids, cache = lm().eval(), text(), {}
    model(ids[:, :3], cache=cache)
    model.blocks[1].attention.out_proj = None
    with pytest.raises(TypeError):
        model(ids[:, 3:], cache=cache)
    assert cache["length"] == 3 and cache[0]["key"].shape[2] == 3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_generation_with_and_without_a_cache(scheme):
    model, ids = lm(scheme), text(length=3)
    greedy = [model.generate(ids, 4, temperature=0, use_cache=c) for c in (True, False)]
    assert torch.equal(*greedy) and greedy[0].shape == (B, 7)
    expected = ids
    for _ in range(4):
        best = model.eval()(expected)[:, -1].argmax(-1, keepdim=True)
        expected = torch.cat([expected, best], dim=1)
    assert torch.equal(greedy[0], expected)


def test_sampling_follows_the_probabilities():
    torch.manual_seed(0)
    model = CausalLM(4, E, H, 0)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]).log())
    ids, generator = torch.zeros(20_000, 1).long(), torch.Generator().manual_seed(0)
    for temperature in (1.0, 0.5):
        options = {"temperature": temperature, "generator": generator}
        drawn = model.generate(ids, 1, **options)[:, 1]
        wanted = torch.tensor([0.1, 0.2, 0.3, 0.4]) ** (1 / temperature)
        share = drawn.bincount(minlength=4) / 20_000
        assert_close(share, wanted / wanted.sum(), atol=0.01, rtol=0)


def test_generation_is_repeatable_and_leaves_the_mode_alone():
    model, ids = lm(dropout=0.5), text()
    before = torch.get_rng_state()
    one, two = (
        model.generate(ids, 5, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert torch.equal(one, two) and model.training and not one.requires_grad
    assert torch.equal(torch.get_rng_state(), before)
    other = model.generate(ids, 5, generator=torch.Generator().manual_seed(2))
    assert not torch.equal(one, other) and torch.equal(one[:, :L], ids)


@pytest.mark.parametrize(
    "error, says, ids",
    [
        (ValueError, r"ids has shape \(7,\); give \(batch, length\)", text()[0]),
        (TypeError, "ids are torch.float32", text().float()),
        (ValueError, "vocab_size=11: they must lie between 0 and 10", text() + V),
        (ValueError, "from -1 to", text() * 0 - 1),
    ],
)
def test_ids_that_cannot_be_are_refused(error, says, ids):
    with pytest.raises(error, match=says):
        lm()(ids)


def test_other_errors_speak():
    with pytest.raises(TypeError, match="give a PositionScheme"):
        CausalLM(V, E, H, 1, position=lambda x: x)
    with pytest.raises(ValueError, match="temperature is -1"):
        lm().generate(text(), 1, temperature=-1.0)
    with pytest.raises(ValueError, match="give at least 1 each"):
        lm().generate(text()[:, :0], 1)
    assert lm()(text()[:, :0]).shape == (B, 0, V)


@pytest.mark.parametrize(
    "scheme, options",
    [("Sinusoidal", {"norm": "post", "activation": "relu"}), ("T5Bias", {})],
)
def test_compiles_whole(scheme, options):
    torch.compiler.reset()
    model, ids = lm(scheme, **options), text()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected, got = model(ids), compiled(ids)
    assert_close(got, expected)
    grads = [
        torch.autograd.grad(y.sum(), [model.embedding.weight]) for y in (expected, got)
    ]
    assert_close(*grads)


def test_compiles_whole_with_a_cache():
    torch.compiler.reset()
    model, ids, cache = lm().eval(), text(), {}
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        parts = [compiled(ids[:, a:b], cache=cache) for a, b in ((0, 4), (4, L))]
        assert_close(torch.cat(parts, dim=1), model(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheme", ["Learned", "Rotary", "ALiBi"])
def test_exports(scheme):
    model, ids = lm(scheme).eval(), text()
    program = torch.export.export(model, (ids,), strict=False)
    assert_close(program.module()(ids), model(ids))


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("need_weights", [False, True])
def test_blocks_vmap(need_weights):
    blocks = [Block(E, H, num_kv_heads=2, position=Rotary(E // H)) for _ in range(3)]
    x, mask = randn(B, L, E), causal_mask(L)

    def output(weights, buffers):
        options = {"need_weights": need_weights}
        return functional_call(blocks[0], (weights, buffers), (x, mask), options)[0]

    together = vmap(output)(*stack_module_state(blocks))
    for block, found in zip(blocks, together):
        assert_close(found, block(x, mask)[0], atol=1e-5, rtol=1e-5)
