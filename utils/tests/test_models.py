"""Blocks and models against PyTorch's and `transformers`', on random weights.

The small BERT and the small Llama are compared in double precision, so that every
detail shows. So are your own functions inside them.
"""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from utils.attention import causal_mask, scaled_dot_product_attention
from utils.baselines import untrained_copy
from utils.exercises import EXERCISES
from utils.masks import padding_mask
from utils.models import Block, CausalLM, Encoder, GatedMLP
from utils.own import OwnAttention, OwnRotary, with_own_functions
from utils.positions import Rotary
from utils.pretrained import bert, llama
from utils.recording import ablate
from utils.tests.helpers import (
    SCHEMES,
    SIZES,
    drawn,
    gradients,
    guards,
    lm,
    normal,
    results,
    text,
    their_results,
)

B, L, E, H, V = SIZES
PADDED = padding_mask([L, 1, 4])


# --- blocks; that they equal PyTorch's is compared in deeper 06 ---


def test_a_block_of_attention_only_without_norms_and_what_it_drops():
    x = normal(B, L, E)
    block, with_mlp = Block(E, H, mlp_dim=0, norm=None), Block(E, H, norm=None)
    assert torch.equal(block(x), x + block.attention(x)[0]) and block.mlp is None
    assert {name.split(".")[0] for name, _ in block.named_parameters()} == {"attention"}
    y = x + with_mlp.attention(x)[0]
    assert torch.equal(with_mlp(x), y + with_mlp.mlp(y))
    assert with_mlp.mlp[0].out_features == 4 * E
    dropped = Block(E, H, dropout=1.0)  # of what is added, all: nothing happens
    nn.init.normal_(dropped.attention.out_proj.bias)
    assert torch.equal(dropped(x), x) and dropped.mlp[1][1].p == 1.0
    mlp = GatedMLP(E, 7, dropout=1.0)  # dropped inside, all of it
    assert torch.equal(mlp(x), mlp.down.bias.expand(x.shape))


def test_every_option_of_the_model_reaches_its_blocks():
    given = {
        "norm": "post", "norm_eps": 0.5, "activation": "relu", "mlp_dim": 5,
        "bias": False, "dropout": 0.25, "num_kv_heads": 2, "position": Rotary(4),
        "norm_kind": "rms",
    }  # fmt: skip
    model, plain = CausalLM(V, E, H, 2, **given), CausalLM(V, E, H, 1)
    for block in model.blocks:
        assert repr(block) == repr(Block(E, H, **given))
        assert block.attention.num_kv_heads == 2 and block.attention.dropout == 0.25
        assert block.attention.position is given["position"]
    assert model.dropout.p == 0.25 and model.head.bias is None
    assert repr([plain.blocks[0], plain.norm]) == repr([Block(E, H), nn.LayerNorm(E)])
    norms = [type(CausalLM(V, E, H, 1, norm=n).norm) for n in ("pre", "post", None)]
    assert norms == [nn.LayerNorm, nn.Identity, nn.Identity]
    tied = [CausalLM(V, E, H, 1, tied=tied) for tied in (True, False)]
    assert [m.head.weight is m.embedding.weight for m in (*tied, plain)] == [1, 0, 0]
    wanted = Block(E, H, mlp_dim=5, norm="post", norm_eps=1e-12)
    assert repr(Encoder(V, E, H, 2, 5, L).blocks[1]) == repr(wanted)


def test_weights_as_drawn():
    """The language model's embeddings as in GPT-2, or by `nn.Embedding`; BERT's all."""
    torch.manual_seed(0)  # 128 numbers have another spread by chance
    for std in (0.02, 0.5, None):
        model = CausalLM(500, E, H, 1, tied=True, embedding_std=std)
        for each in (model, untrained_copy(model, 1)):
            found = each.embedding.weight.std().item()
            assert found == pytest.approx(std or 1.0, rel=0.05)
            assert each.head.weight is each.embedding.weight
    assert CausalLM(500, E, H, 1).embedding.weight.std() < 0.025
    for name, parameter in Encoder(50, 64, 4, 2, 256, 100).named_parameters():
        wanted = 1.0 if "norm.weight" in name else 0.0
        assert abs(parameter.mean() - wanted) < 5e-3, name
        spread = 0.02 if parameter.dim() == 2 else 0.0
        assert abs(parameter.std() - spread) <= 0.15 * spread, name


# --- the language model, its cache, and what it writes ---


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
@torch.no_grad()
def test_the_model_is_its_parts_sees_no_future_and_a_cache_changes_nothing(scheme):
    """Written out once more; the position scheme is asked where it should be."""
    model, ids, other, cache = lm(scheme), text(), text(), {}
    x = model.embedding(ids)
    x = x if model.position is None else model.position.embed(x)
    for block in model.blocks:
        assert block.attention.position is model.position
        x = block(x, causal_mask(L))
    logits = model(ids)
    assert_close(logits, model.head(model.norm(x)))
    tables = {id(p) for name, p in model.named_parameters() if "position" in name}
    assert len(tables) == (scheme in ("learned", "t5"))  # one, shared by all blocks
    other[:, 4] = (ids[:, 4] + 1) % V
    changed = (logits - model(other)).abs().amax(dim=(0, 2))
    assert (changed[:4] == 0).all() and (changed[4:] > 1e-4).all()
    parts = [model(part, cache=cache) for part in ids.split([3, 1, 3], dim=1)]
    assert_close(torch.cat(parts, dim=1), logits, atol=1e-5, rtol=1e-5)
    nn.init.zeros_(model.head.bias)  # with it, one token is the best everywhere
    ids = model.generate(ids[:, :3], 4, temperature=0)
    best = model(ids).argmax(-1)  # without a cache
    assert torch.equal(ids[:, 3:], best[:, 2:-1]) and len(best.unique()) > 2


def test_a_refused_call_leaves_the_cache_as_it_was():
    model, ids, cache = lm(), text(), {}
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
    model, ids, before = lm(dropout=0.5).train(), text(), torch.get_rng_state()
    seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    one, two, other = (model.generate(ids, 5, generator=g) for g in seeds)
    assert torch.equal(one, two) and model.training and not one.requires_grad
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(one, other) and torch.equal(one[:, :L], ids)
    model.generate(ids, 1, generator=seeds[0])
    assert not torch.equal(model(ids), model(ids))  # dropout is on again


# --- a small BERT and a small Llama against `transformers` ---


GGUF = {  # names of `transformers` -> those in the file
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "gate_proj": "ffn_gate",
    "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


def as_gguf(theirs):
    """Return the weights of a Llama of `transformers` as a GGUF file stores them.

    Its layout is "interleaved": the two halves of each head's rows of queries and keys
    alternate.
    """
    sizes, stored = theirs.config, {}
    half_dim = sizes.hidden_size // sizes.num_attention_heads // 2
    for name, weight in theirs.model.state_dict().items():
        *_, part, _ = steps = name.split(".")
        if part in ("q_proj", "k_proj"):
            pairs = weight.unflatten(0, (-1, 2, half_dim))
            weight = pairs.transpose(1, 2).flatten(0, 2)
        block = f"blk.{steps[1]}." if steps[0] == "layers" else ""
        stored[f"{block}{GGUF[part]}.weight"] = weight.clone()
    return stored


@functools.cache
def small(kind):
    """Return a random model of `transformers`, and ours with its weights."""
    if kind == "bert":
        sizes = {
            "vocab_size": V, "hidden_size": 8, "num_attention_heads": 2,
            "num_hidden_layers": 2, "intermediate_size": 12, "layer_norm_eps": 0.01,
            "max_position_embeddings": L, "attn_implementation": "eager",
            "pad_token_id": None,
        }  # fmt: skip
        theirs = drawn(BertModel(BertConfig(**sizes)))
        return theirs.double(), bert(sizes, dict(theirs.named_parameters()))
    sizes = {
        "attention.head_count": 6, "attention.head_count_kv": 3, "block_count": 2,
        "embedding_length": 24, "feed_forward_length": 20, "vocab_size": V,
        "rope.freq_base": 50.0, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    config = LlamaConfig(
        vocab_size=V, hidden_size=24, num_attention_heads=6, num_key_value_heads=3,
        num_hidden_layers=2, intermediate_size=20, rope_theta=50.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    theirs = drawn(LlamaForCausalLM(config), std=0.5)
    fields = {f"llama.{name}": size for name, size in sizes.items()}
    ours = llama(fields, as_gguf(theirs))
    return theirs.double(), ours.double()


def assert_equals(kind, ours):
    """Results, states and attention weights; a gradient; and with a cache."""
    theirs, ids = small(kind)[0], text()
    ours = ours.double()
    masks = [None, PADDED] if kind == "bert" else [None]
    # rotary angles are in single precision
    exact = dict.fromkeys(("atol", "rtol"), 1e-10 if kind == "bert" else 1e-6)
    for mask in masks:
        found, wanted = results(ours, ids, mask), their_results(theirs, ids, mask)
        assert_close(found, wanted, **exact)
        tables = ours.embedding.weight, theirs.get_input_embeddings().weight
        slopes = [
            torch.autograd.grad(result[0].square().sum(), table)
            for result, table in zip((found, wanted), tables)
        ]
        assert_close(*slopes, atol=1e-4, rtol=1e-6)
    if kind == "llama":
        cache, cuts = {}, ((0, 4), (4, 5), (5, L))
        parts = [ours(ids[:, a:b], cache=cache) for a, b in cuts]
        assert_close(torch.cat(parts, dim=1), found[0], **exact)


@torch.no_grad()
def test_a_sentence_has_the_vector_that_it_has_alone():
    """Without a mask, in a padded batch, and among 70, computed in three parts."""
    model, generator = copy.deepcopy(small("bert")[1]), torch.Generator().manual_seed(1)
    lengths = torch.randint(1, L + 1, (70,), generator=generator)
    ids = torch.randint(V, (70, L), generator=generator)
    for n in (5, 70):
        vectors = model.sentence_embedding(ids[:n], padding_mask(lengths[:n], L))
        for vector, one, length in zip(vectors, ids, lengths):
            states = model(one[None, :length])[0].mean(dim=0)
            assert_close(vector, states / states.norm())
            alone = model.sentence_embedding(one[None, :length])[0]
            assert_close(vector, alone)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_compiles_whole(kind):
    """That it can be exported, too, is compared for the layer."""
    torch.compiler.reset()
    model = copy.deepcopy(small(kind)[1]).float()
    model.blocks = model.blocks[:1]  # each block takes seconds
    inputs = (text(), PADDED) if kind == "bert" else (text(),)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    wanted, found = model(*inputs), compiled(*inputs)
    close = {"atol": 1e-3, "rtol": 1e-3}
    assert_close(found, wanted, **close)
    both = [gradients(x.square().mean(), model) for x in (found, wanted)]
    assert_close(*both, **close)
    if kind == "llama":
        compiled, cache = torch.compile(model, fullgraph=True, backend="eager"), {}
        parts = [compiled(part, cache=cache) for part in text().split([4, 3], dim=1)]
        assert_close(torch.cat(parts, dim=1), wanted, **close)


# --- your own functions in their place ---


MINE = {"attention": "1.2", "layer": "2.2", "turn": "5.2"}  # the printed solutions
MINE = {name: EXERCISES[number].reference for name, number in MINE.items()}
my_attention, my_layer, my_turn = MINE.values()


def watched(names, calls):
    """Return functions of mine that write down their names when they are called."""

    def watch(name, *given):
        if name == "attention":  # its mask has an entry for each score
            query, key, _, mask = given
            assert mask.shape == (*query.shape[:-1], key.shape[-2])
        calls.append(name)
        return MINE[name](*given)

    return {name: functools.partial(watch, name) for name in names}


def encoder():
    return copy.deepcopy(small("bert")[1]).float()


@pytest.mark.parametrize("case", [
    "bert", "bert attention", "bert layer", "bert attention layer",
    "llama", "llama attention", "llama turn", "llama attention turn",
])  # fmt: skip
def test_small_model_equals_transformers_with_its_functions_and_with_yours(case):
    """They are really called; the weights are shared; the model stays as it was."""
    kind, *given = case.split()
    model, calls = copy.deepcopy(small(kind)[1]), []
    mine = with_own_functions(model, **watched(given, calls))
    calls.clear()
    assert_equals(kind, mine)
    assert {*calls} == {*given}
    assert not any(module.training for module in mine.modules())
    shared = [p is q for p, q in zip(mine.parameters(), model.parameters())]
    assert all(shared) and len(shared) == (37 if kind == "bert" else 20)
    assert kind == "bert" or mine.head.weight is model.embedding.weight
    assert not any(isinstance(m, OwnAttention | OwnRotary) for m in model.modules())


@pytest.mark.parametrize("given", ["attention", "layer", "attention layer"])
def test_which_of_your_functions_a_layer_calls(given):
    """What is not given is the course's; heads are ablated as in the original."""
    model, x, calls = encoder(), normal(B, L, 8), []
    mine = with_own_functions(model, **watched(given.split(), calls))
    layer, original = mine.blocks[0].attention, model.blocks[0].attention
    for options, wanted in (
        ({}, ["layer"] if "layer" in given else ["attention"]),
        ({"need_weights": True}, ["attention"] * 2),
        ({"mask": PADDED}, ["attention"]),
        ({"mask": causal_mask(L)}, ["attention"]),
    ):
        calls.clear()
        assert_close(layer(x, **options), original(x, **options))
        assert calls == [name for name in wanted if name in given]
        with ablate(original, {0: [1]}), ablate(layer, {0: [1]}):
            assert_close(layer(x, **options), original(x, **options))


def test_your_turn_takes_the_other_layout_too():
    rotary, q, k = Rotary(8, base=50.0), normal(2, 3, 2, 8), normal(2, 3, 5, 8, seed=1)
    found = OwnRotary(rotary, my_turn).rotate(q, k, 4)
    assert_close(found, rotary.rotate(q, k, 4))


WRONG = {
    "unscaled": {"attention": lambda q, k, v, m: my_attention(3 * q, k, v, m)},
    "a little more": {"attention": lambda *x: 1.001 * my_attention(*x)},
    "deaf": {"attention": lambda q, k, v, m: scaled_dot_product_attention(q, k, v)[0]},
    "NaN": {"attention": lambda q, k, v, m: q * torch.nan},
    "one head": {"layer": lambda *x: my_layer(*x[:-1], 1)},
    "still": {"turn": lambda x, p, base: x},
    "one late": {"turn": lambda x, p, base: my_turn(x, p + 1, base)},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_function_is_refused(case):
    kind = "llama" if "turn" in WRONG[case] else "bert"
    with pytest.raises(ValueError, match="<lambda> does not give"):
        with_own_functions(copy.deepcopy(small(kind)[1]).float(), **WRONG[case])


# --- what would run and mean something else ---

PAIRS, NAN = causal_mask(L)[None, None], float("nan")
OWN = {"attention": my_attention}

REFUSED = """
norm is 'first'; give 'pre' | Block(E, H, norm="first")
mlp_dim is -1 | Block(E, H, mlp_dim=-1)
norm_eps is nan | lm(norm_eps=NAN)
num_layers is -1 | CausalLM(V, E, H, -1)
num_layers is -2 | Encoder(V, E, H, -2, E, L)
temperature is nan | lm().generate(text(), 1, temperature=NAN)
steps is -3 | lm().generate(text(), -3)
mask is shaped like ids | encoder()(text(), PADDED[:, 0, 0])
hides every token | encoder()(text(), ~PADDED)
which tokens count | encoder().sentence_embedding(text(), PAIRS)
take bool as a mask | with_own_functions(encoder(), **OWN)(text(), torch.zeros(L, L))
"""

test_what_would_mean_something_else_is_refused = guards(REFUSED, globals())
