"""The block against nn.TransformerEncoderLayer; the language model and its cache."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, causal_mask, padding_mask
from utils.baselines import untrained_copy
from utils.models import Block, CausalLM, GatedMLP
from utils.positions import Rotary
from utils.recording import record_attention
from utils.tests.helpers import SCHEMES, gradients, normal, scheme_of

B, L, E, H, V = 3, 7, 16, 4, 11  # batch, length, embed_dim, heads, vocabulary
EVERY = pytest.mark.parametrize("scheme", [None, *SCHEMES])
MASKS = {
    "none": None,
    "causal": causal_mask(L),
    "padding": padding_mask([L, 2, 4], L),
    "causal and padding": causal_mask(L) & padding_mask([L, 2, 4], L),
}


def lm(scheme="rotary half", seed=0, **options):
    position = None if scheme is None else scheme_of(scheme)
    torch.manual_seed(seed)
    options = {"embedding_std": None, **options}
    model = CausalLM(V, E, H, 2, position=position, **options)
    for name, parameter in model.named_parameters():
        if "bias" in name:  # nothing is hidden by a zero
            nn.init.normal_(parameter)
    return model


def text(seed=0, length=L):
    return torch.randint(V, (B, length), generator=torch.Generator().manual_seed(seed))


def block_of(layer, **options):
    """Return a Block with the weights of PyTorch's layer, and its parts by that."""
    embed_dim, mlp_dim = layer.linear1.in_features, layer.linear1.out_features
    options = {"norm": "pre" if layer.norm_first else "post", **options}
    block = Block(embed_dim, layer.self_attn.num_heads, mlp_dim=mlp_dim, **options)
    layer = copy.deepcopy(layer)
    block.attention = MultiHeadAttention.from_torch(layer.self_attn)
    block.attention_norm, block.mlp_norm = layer.norm1, layer.norm2
    block.mlp[0], block.mlp[3] = layer.linear1, layer.linear2
    return block


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_equals_torch_with_gradients(norm, activation, mask):
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        E, H, 3 * E, 0.0, activation, batch_first=True, norm_first=norm == "pre"
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours, keep = block_of(theirs, activation=activation), MASKS[mask]
    blocked = None if keep is None else ~keep.expand(B, H, L, L).reshape(B * H, L, L)
    found = []
    for output, parts in (
        (lambda x: theirs(x, src_mask=blocked), (theirs.linear1, theirs.norm1)),
        (lambda x: ours(x, keep), (ours.mlp[0], ours.attention_norm)),
    ):
        x = normal(B, L, E).requires_grad_()
        loss = (output(x) * normal(B, L, E, seed=1)).sum()
        wanted = [x, *(part.weight for part in parts)]
        found.append([output(x), *torch.autograd.grad(loss, wanted)])
    assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_is_built_like_torchs(norm):
    """The same parameters, with and without biases, and dropout in the same places."""
    for bias in (True, False):
        options = {"bias": bias, "dropout": 0.5}
        theirs = nn.TransformerEncoderLayer(E, H, 4 * E, batch_first=True, **options)
        blocks = block_of(theirs), Block(E, H, norm=norm, **options)
        sizes = [sorted(p.numel() for p in block.parameters()) for block in blocks]
        assert sizes[0] == sizes[1]
        assert repr(blocks[1].attention_norm) == repr(theirs.norm1)
    block, x = Block(E, H, norm=norm, dropout=0.5), normal(B, L, E)
    assert block.attention.dropout == block.dropout.p == block.mlp[2].p == 0.5
    assert not torch.equal(block(x), block(x))
    assert torch.equal(block.eval()(x), block(x))
    dropped = Block(E, H, dropout=1.0)  # of what is added, all: nothing happens
    nn.init.normal_(dropped.attention.out_proj.bias)
    assert torch.equal(dropped(x), x)


def test_attention_only_and_no_norm():
    x = normal(B, L, E)
    block, with_mlp = Block(E, H, mlp_dim=0, norm=None), Block(E, H, norm=None)
    assert torch.equal(block(x), x + block.attention(x)[0]) and block.mlp is None
    assert {name.split(".")[0] for name, _ in block.named_parameters()} == {"attention"}
    assert Block(E, H, mlp_dim=1).mlp[0].out_features == 1
    y = x + with_mlp.attention(x)[0]
    assert torch.equal(with_mlp(x), y + with_mlp.mlp(y))


def test_every_option_of_the_model_reaches_its_blocks():
    given = {
        "norm": "post", "norm_eps": 0.5, "activation": "relu", "mlp_dim": 5,
        "bias": False, "dropout": 0.25, "num_kv_heads": 2, "position": Rotary(4),
    }  # fmt: skip
    model = CausalLM(V, E, H, 2, **given)
    for block in model.blocks:
        assert repr(block) == repr(Block(E, H, **given))
        assert block.attention.num_kv_heads == 2 and block.attention.dropout == 0.25
        assert block.attention.position is given["position"]
    assert model.dropout.p == 0.25 and model.head.bias is None
    tied = [
        CausalLM(V, E, H, 1, **how) for how in ({"tied": True}, {"tied": False}, {})
    ]
    assert [m.head.weight is m.embedding.weight for m in tied] == [True, False, False]
    plain = CausalLM(V, E, H, 1)
    assert repr([plain.blocks[0], plain.norm]) == repr([Block(E, H), nn.LayerNorm(E)])
    norms = [type(CausalLM(V, E, H, 1, norm=n).norm) for n in ("pre", "post", None)]
    assert norms == [nn.LayerNorm, nn.Identity, nn.Identity]


def test_embeddings_as_drawn():
    """As in GPT-2, or as `nn.Embedding` does; all other weights are the same."""
    models = []
    for std in (0.02, 0.5, None):
        torch.manual_seed(0)
        options = {} if std == 0.02 else {"embedding_std": std}
        models.append(CausalLM(500, E, H, 1, **options))
        for model in (models[-1], untrained_copy(models[-1], 1)):
            found = model.embedding.weight.std().item()
            assert found == pytest.approx(std or 1.0, rel=0.05)
    first, *others = (model.blocks.state_dict() for model in models)
    assert_close(others, [first, first], atol=0, rtol=0)
    torch.manual_seed(0)
    assert torch.equal(models[2].embedding.weight, nn.Embedding(500, E).weight)


class Plain(nn.Module):
    """Attention that a learner may have written: no fused kernel, no cache."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, query, mask=None, **options):
        return self.layer(query, mask=mask, need_weights=True)[0], None


def test_attention_may_be_replaced():
    model, ids = lm(), text()
    expected, weights = model(ids), record_attention(model, ids)
    for block in model.blocks:
        block.attention = Plain(block.attention)
    assert_close(model(ids), expected)
    assert_close(record_attention(model, ids), weights)
    assert model.generate(ids, 2, use_cache=False).shape == (B, L + 2)


@EVERY
def test_the_model_is_its_parts(scheme):
    """Written out once more; the position scheme is asked where it should be."""
    model, ids = lm(scheme), text()
    x = model.embedding(ids)
    x = x if model.position is None else model.position.embed(x)
    for block in model.blocks:
        assert block.attention.position is model.position
        x = block(x, causal_mask(L))
    assert_close(model(ids), model.head(model.norm(x)))
    assert [w.shape for w in record_attention(model, ids)] == 2 * [(B, H, L, L)]


def test_a_shared_table_is_one_parameter():
    model, both = lm("t5"), lm("t5")
    assert sum("position" in name for name, _ in model.named_parameters()) == 1
    both.blocks[1].attention.position = copy.deepcopy(both.position)
    for each in (model, both):
        each(text()).square().sum().backward()
    other = both.blocks[1].attention.position.table.grad
    assert_close(model.position.table.grad, both.position.table.grad + other)


@pytest.mark.parametrize("training", [False, True])
@EVERY
def test_no_token_sees_the_future(scheme, training):
    model = lm(scheme).train(training)
    ids, other = text(), text()
    other[:, 4] = (ids[:, 4] + 1) % V
    changed = (model(ids) - model(other)).abs().amax(dim=(0, 2))
    assert (changed[:4] == 0).all() and (changed[4:] > 1e-4).all()


@EVERY
def test_cache_changes_nothing(scheme):
    model, ids, cache = lm(scheme).eval(), text(), {}
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, L))]
        assert_close(torch.cat(parts, dim=1), model(ids), atol=1e-5, rtol=1e-5)
    assert cache["length"] == L
    ids, expected = ids[:, :3], ids[:, :3]
    greedy = [model.generate(ids, 4, temperature=0, use_cache=c) for c in (True, False)]
    for _ in range(4):
        best = model(expected)[:, -1].argmax(-1, keepdim=True)
        expected = torch.cat([expected, best], dim=1)
    assert torch.equal(greedy[0], expected) and torch.equal(greedy[1], expected)


def test_a_refused_call_leaves_the_cache_as_it_was():
    model, ids, cache = lm().eval(), text(), {}
    model(ids[:, :3], cache=cache)
    model.blocks[1].attention.out_proj = None
    with pytest.raises(TypeError):
        model(ids[:, 3:], cache=cache)
    assert cache["length"] == 3 and cache[0]["key"].shape[2] == 3


def test_sampling_follows_the_probabilities():
    model, wanted = CausalLM(4, E, H, 0), torch.tensor([0.1, 0.2, 0.3, 0.4])
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(wanted.log())
    ids, generator = torch.zeros(20_000, 1).long(), torch.Generator().manual_seed(0)
    for options in ({}, {"temperature": 0.5}):
        drawn = model.generate(ids, 1, generator=generator, **options)[:, 1]
        share = drawn.bincount(minlength=4) / 20_000
        sharp = wanted ** (1 / options.get("temperature", 1.0))
        assert_close(share, sharp / sharp.sum(), atol=0.01, rtol=0)


def test_generation_is_repeatable_and_leaves_the_mode_alone():
    model, ids, before = lm(dropout=0.5), text(), torch.get_rng_state()
    seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    one, two, other = (model.generate(ids, 5, generator=g) for g in seeds)
    assert torch.equal(one, two) and model.training and not one.requires_grad
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(one, other) and torch.equal(one[:, :L], ids)


def test_a_gated_mlp_drops_nothing_unless_told():
    mlp, x = GatedMLP(E, 12), normal(2, E)
    assert torch.equal(mlp(x), copy.deepcopy(mlp).eval()(x)) and mlp(x).std() > 0.01


@pytest.mark.parametrize(
    "error, says, call",
    [
        (ValueError, "norm is 'first'; give one of 'pre', 'post', N",
         lambda: Block(E, H, norm="first")),
        (ValueError, "num_layers is -1", lambda: CausalLM(V, E, H, -1)),
        (ValueError, "activation is 'swish'", lambda: lm(activation="swish")),
        (ValueError, "mlp_dim is -1", lambda: Block(E, H, mlp_dim=-1)),
        (ValueError, "norm_eps is -1", lambda: Block(E, H, norm_eps=-1e-5)),
        (ValueError, "norm_eps is nan", lambda: lm(norm_eps=float("nan"))),
        (IndexError, "out of range", lambda: lm()(text()[0])),
        (RuntimeError, "Long, Int", lambda: lm()(text().float())),
        (IndexError, "out of range", lambda: lm()(text() + V)),
        (IndexError, "out of range", lambda: lm()(text() * 0 - 1)),
        (ValueError, "temperature is -1",
         lambda: lm().generate(text(), 1, temperature=-1.0)),
        (ValueError, "temperature is nan",
         lambda: lm().generate(text(), 1, temperature=float("nan"))),
        (ValueError, "steps is -3", lambda: lm().generate(text(), -3)),
        (TypeError, "steps is 2.0", lambda: lm().generate(text(), 2.0)),
        (ValueError, "give at least one", lambda: lm().generate(text()[:, :0], 1)),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(error, says, call):
    assert lm()(text()[:, :0]).shape == (B, 0, V)
    assert CausalLM(1, E, H, 0)(text() * 0).shape == (B, L, 1)
    assert torch.equal(lm().generate(text(), 0), text())
    with pytest.raises(error, match=says):
        call()


class Step(nn.Module):
    """One step of decoding, with past keys and values as tensors, as exports need."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, past, *kept):
        cache = {"length": past.shape[0]}
        for i in range(2):
            cache[i] = {"key": kept[2 * i], "value": kept[2 * i + 1]}
        return self.model(ids, cache=cache), cache[1]["key"]


def test_compiles_whole_and_exports_with_a_cache():
    torch.compiler.reset()
    model, ids, cache = lm(), text(), {}
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    losses = [each(ids).square().sum() for each in (model, compiled)]
    assert_close(gradients(losses[1], model), gradients(losses[0], model))
    model.eval()
    with torch.no_grad():
        parts = [compiled(ids[:, a:b], cache=cache) for a, b in ((0, 4), (4, L))]
        assert_close(torch.cat(parts, dim=1), model(ids), atol=1e-5, rtol=1e-5)
        kept = [cache[i][name][:, :, :-1] for i in (0, 1) for name in ("key", "value")]
        inputs = (ids[:, -1:], torch.empty(L - 1), *kept)
        step = torch.export.export(Step(model), inputs, strict=False).module()
        logits, keys = step(*inputs)
    assert_close(logits, model(ids)[:, -1:], atol=1e-5, rtol=1e-5)
    assert_close(keys, cache[1]["key"])
