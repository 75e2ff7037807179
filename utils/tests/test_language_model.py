"""Models built as Llama is equal `transformers`, on random weights and on SmolLM2's.

Without the package of the weights the tests that need them are skipped, or fail where
the environment says COURSE_MODEL_TESTS=required.
"""

import copy
import functools
import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

from utils import language_model
from utils.attention import MultiHeadAttention
from utils.baselines import untrained_copy
from utils.interventions import ablate
from utils.language_model import find_smollm2, load_smollm2, read_gguf
from utils.models import Block, CausalLM, GatedMLP
from utils.own import OwnAttention, OwnRotary, with_own_functions
from utils.positions import Rotary
from utils.recording import record_attention
from utils.tests.helpers import gradients

BLOCK = {  # our names -> those of `transformers`, in model.layers.L
    "attention.query_proj": "self_attn.q_proj",
    "attention.key_proj": "self_attn.k_proj",
    "attention.value_proj": "self_attn.v_proj",
    "attention.out_proj": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "mlp_norm": "post_attention_layernorm",
}
OUTER = {"embedding": "embed_tokens", "norm": "norm"}


def their_name(name):
    """Return the name in `transformers` of one of our parameters."""
    name = name.removesuffix(".weight")
    if name in OUTER:
        return f"model.{OUTER[name]}.weight"
    _, layer, part = name.split(".", 2)
    return f"model.layers.{layer}.{BLOCK[part]}.weight"


def llama(**options):
    config = LlamaConfig(
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        attn_implementation="eager",
        **options,
    )
    return LlamaForCausalLM(config).eval()


# --- a small model in which every detail shows ---

V, E, H, KV, L = 13, 24, 6, 3, 9  # vocabulary, embed_dim, heads, key heads, length
IDS = torch.randint(V, (2, L), generator=torch.Generator().manual_seed(0))


@functools.cache
def small():
    """Return a random Llama of `transformers`, and our copy of it."""
    torch.manual_seed(0)
    theirs = llama(
        vocab_size=V, hidden_size=E, num_attention_heads=H, num_key_value_heads=KV,
        num_hidden_layers=2, intermediate_size=20, rope_theta=50.0,
    )  # fmt: skip
    for parameter in theirs.parameters():  # nothing is hidden by a 0 or a 1
        nn.init.normal_(parameter, std=0.5)
    ours = CausalLM(
        V, E, H, 2, position=Rotary(E // H, base=50.0), mlp_dim=20, norm_kind="rms",
        activation="swiglu", bias=False, num_kv_heads=KV, tied=True,
    )  # fmt: skip
    stored = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(stored.pop(their_name(name)))
    assert not stored
    return theirs, ours.eval()


def assert_equals_llama(ours):
    """Logits, attention weights and gradients; and the cache changes nothing."""
    theirs = small()[0]
    wanted, found = theirs(IDS, output_attentions=True), ours(IDS)
    assert_close(found, wanted.logits, atol=1e-4, rtol=1e-4)
    weights = record_attention(ours, IDS)
    assert_close(weights, list(wanted.attentions), atol=1e-5, rtol=0)
    named = dict(theirs.named_parameters())
    slopes = torch.autograd.grad(wanted.logits.square().mean(), named.values())
    slopes = dict(zip(named, slopes))
    own = dict(ours.named_parameters())
    for name, slope in zip(own, gradients(found.square().mean(), ours)):
        assert_close(slope, slopes[their_name(name)], atol=1e-3, rtol=1e-3, msg=name)
    cache, parts = {}, ((0, 4), (4, 5), (5, L))
    parts = [ours(IDS[:, a:b], cache=cache) for a, b in parts]
    assert_close(torch.cat(parts, dim=1), found, atol=1e-4, rtol=1e-4)


def test_equals_transformers_with_gradients():
    assert_equals_llama(small()[1])


def interleaved_groups(x, repeats, dim):
    return x.repeat(1, repeats, 1, 1)  # head h reads key head h % KV


def swap(model):
    for block in model.blocks:
        block.mlp.gate, block.mlp.up = block.mlp.up, block.mlp.gate


def centre(model):
    for block in model.blocks:
        norm = nn.LayerNorm(block.mlp_norm.normalized_shape, bias=False)
        norm.weight, block.mlp_norm = block.mlp_norm.weight, norm


FAULTS = {
    "wrong layout": lambda model, _: setattr(model.position, "layout", "interleaved"),
    "wrong base": lambda model, _: setattr(model.position, "base", 55.0),
    "gate and up swapped": lambda model, _: swap(model),
    "a norm with a mean": lambda model, _: centre(model),
    "wrong epsilon": lambda model, _: setattr(model.norm, "eps", 1e-2),
    "head not tied": lambda model, _: setattr(
        model.head, "weight", nn.Parameter(model.head.weight.detach().clone())
    ),
    "cache offset by one": lambda _, patch: patch.setattr(
        Rotary, "rotate", off_by_one(Rotary.rotate)
    ),
    "groups interleaved": lambda _, patch: patch.setattr(
        torch.Tensor, "repeat_interleave", interleaved_groups
    ),
}


def off_by_one(rotate):
    return lambda self, q, k, offset=0: rotate(self, q, k, offset + (offset > 0))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_shows(fault, monkeypatch):
    model = copy.deepcopy(small()[1])
    FAULTS[fault](model, monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        assert_equals_llama(model)


def test_compiles_whole_exports_and_runs_many_at_once():
    torch.compiler.reset()
    model = small()[1]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    wanted, found = model(IDS), compiled(IDS)
    assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    both = [gradients(x.square().mean(), model) for x in (found, wanted)]
    assert_close(*both, atol=1e-3, rtol=1e-3)
    exported = torch.export.export(model, (IDS,), strict=False).module()
    assert_close(exported(IDS), wanted, atol=1e-4, rtol=1e-4)
    many, _ = stack_module_state([model, model])
    run = vmap(lambda weights: functional_call(model, weights, (IDS,)))
    assert_close(run(many), torch.stack([wanted, wanted]), atol=1e-4, rtol=1e-4)


def test_what_the_options_build():
    """All by name; the defaults are what they were."""
    block = Block(E, H, norm="post", norm_kind="rms", norm_eps=0.5, activation="swiglu")
    norms = [m for m in block.modules() if isinstance(m, nn.RMSNorm)]
    assert [norm.eps for norm in norms] == [0.5, 0.5]
    assert isinstance(block.mlp, GatedMLP) and block.mlp.up.out_features == 4 * E
    plain = Block(E, H)
    assert {type(plain.attention_norm), type(plain.mlp_norm)} == {nn.LayerNorm}
    mlp, x = GatedMLP(E, 7, dropout=1.0), torch.randn(2, E)
    assert torch.equal(mlp(x), mlp.down.bias.expand(2, E))  # dropped inside, all of it
    model = CausalLM(V, E, H, 1, tied=True, activation="swiglu", norm_kind="rms")
    assert model.head.weight is model.embedding.weight and model.head.bias is not None
    assert isinstance(model.norm, nn.RMSNorm)
    fresh = untrained_copy(model, seed=0)
    assert fresh.head.weight is fresh.embedding.weight
    assert fresh.head.weight.std() < 0.03
    for given in ({"norm_kind": "batch"}, {"activation": "silu"}):
        with pytest.raises(ValueError, match="give one of"):
            Block(E, H, **given)


# --- the learner's own functions ---


def my_attention(query, key, value, mask):
    assert mask.shape == (*query.shape[:-1], key.shape[-2])
    scores = query @ key.mT / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return weights.nan_to_num() @ value


def my_turn(x, positions, base):
    pairs = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-torch.arange(pairs) / pairs)
    a, b, cos, sin = *x.chunk(2, dim=-1), angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


@pytest.mark.parametrize(
    "given", [(), ("attention",), ("turn",), ("attention", "turn")]
)
def test_your_own_functions_equal_transformers(given):
    """With a cache, grouped heads and weights; and they are really called."""
    calls, functions = set(), {"attention": my_attention, "turn": my_turn}

    def watched(name):
        return lambda *args: (calls.add(name), functions[name](*args))[1]

    model = small()[1]
    mine = with_own_functions(model, **{name: watched(name) for name in given})
    calls.clear()
    assert_equals_llama(mine)
    assert calls == set(given) and not mine.training
    shared = [p is q for p, q in zip(mine.parameters(), model.parameters())]
    assert shared == [True] * 20 and mine.head.weight is model.embedding.weight
    assert not any(isinstance(m, OwnAttention | OwnRotary) for m in model.modules())


def test_your_own_functions_take_both_layouts_and_a_scale():
    for layout in ("half", "interleaved"):
        for scale in (1.0, 0.25):
            rotary = Rotary(8, base=50.0, layout=layout, scale=scale)
            q, k = torch.randn(2, 3, 2, 8), torch.randn(2, 3, 5, 8)
            found = OwnRotary(rotary, my_turn).rotate(q, k, 4)
            assert_close(found, rotary.rotate(q, k, 4))


@torch.no_grad()
def test_heads_of_your_own_functions_can_be_ablated():
    model = small()[1]
    mine = with_own_functions(model, attention=my_attention)
    with ablate(model, {1: [0, 4]}):
        wanted = model(IDS)
    with ablate(mine, {1: [0, 4]}):
        assert_close(mine(IDS), wanted, atol=1e-4, rtol=1e-4)
    assert (mine(IDS) - wanted).abs().max() > 0.1


@pytest.mark.parametrize(
    "error, says, given",
    [
        (ValueError, "<lambda> does not give", {"turn": lambda x, *rest: x}),
        (ValueError, "does not give", {"turn": lambda x, p, b: my_turn(x, p + 1, b)}),
        (ValueError, "does not give", {"attention": lambda q, k, v, mask: v}),
        (ValueError, "num_kv_heads=3, .* attention instead", {"layer": my_attention}),
    ],
)
def test_wrong_functions_are_refused(error, says, given):
    with pytest.raises(error, match=says):
        with_own_functions(small()[1], **given)


def test_only_a_rotary_scheme_can_be_yours():
    with pytest.raises(TypeError, match="position is None"):
        with_own_functions(CausalLM(V, E, H, 1), turn=my_turn)
