"""Right answers that lessons put into a model: what `check` accepts, they accept.

Every right answer of `answers` (test_answers has `check` accept it) does what the
lessons do with it, at the sizes of MiniLM and of SmolLM2, whose layers have outputs of
more than 200.
"""

import functools
from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from utils.attention import (
    MultiHeadAttention,
    causal_mask,
    merge_heads,
    split_heads,
)
from utils.exercises import EXERCISES
from utils.exercises.catalogue import defined
from utils.models import CausalLM, Encoder
from utils.own import with_own_functions
from utils.positions import Rotary
from utils.pretrained import load_minilm, load_smollm2, load_story_model
from utils.recording import ablate, recorded, replaced
from utils.stories import VOCAB, encode, write_stories
from utils.tests.exercises.test_answers import answers
from utils.tests.helpers import need_smollm2, normal


@functools.cache
def minilm() -> Encoder:
    return load_minilm().model


@functools.cache
def like_smollm2() -> CausalLM:
    """Two blocks of its sizes, in which attention has outputs of more than 200."""
    torch.manual_seed(0)
    options = {"norm_kind": "rms", "activation": "swiglu", "bias": False, "mlp_dim": 8}
    options["position"] = Rotary(64, base=1e5, layout="interleaved")
    model = CausalLM(50, 576, 9, 2, num_kv_heads=3, **options).eval()
    for block in model.blocks:
        for name, size in (("query", 6), ("value", 20), ("out", 20)):
            getattr(block.attention, f"{name}_proj").weight.data *= size
    assert model.blocks[0].attention(normal(1, 5, 576))[0].abs().max() > 200
    return model


def in_smollm2(**own):
    mine, ids = with_own_functions(like_smollm2(), **own), torch.arange(40)[None]
    assert_close(mine(ids), like_smollm2()(ids), atol=1e-3, rtol=1e-3)


def in_minilm(**own):
    ids, mine = torch.arange(1000, 1012).view(2, 6), with_own_functions(minilm(), **own)
    for given in ((ids,), (ids, causal_mask(6))):
        assert_close(mine(*given), minilm()(*given), atol=1e-4, rtol=1e-4)


def as_whole_layer(function):
    """As in 03 and 12: the layer's matrices are handed over."""
    plain, x = MultiHeadAttention(8, 2, bias=False), normal(3, 5, 8)
    mine = function(x, *plain.parameters(), 2)
    assert_close(mine, plain(x)[0], atol=1e-6, rtol=1e-5)
    in_minilm(layer=function)


def as_torchs_layer(function):
    """As in 03: the parameters of a real nn.MultiheadAttention."""
    layer = minilm().blocks[0].attention.to_torch()
    x = minilm().hidden_states(torch.arange(1000, 1010)[None])[0]
    mine = function(x, *(x for _, x in layer.named_parameters()), 12)
    assert_close(mine, layer(x, x, x)[0], atol=1e-5, rtol=1e-5)


@functools.cache
def story_model() -> CausalLM:
    return load_story_model().requires_grad_(False)


STORIES = encode(write_stories(6, seed=3))[:, :60]  # without padding


def as_the_story_model(kind):
    """As in 06: with the weights of the course's model it gives the same logits."""
    mine, course = kind(len(VOCAB), 128, 4, 2), story_model()
    mine.load_state_dict(course.state_dict(), strict=False)  # a mask may be a buffer
    assert_close(mine(STORIES), course(STORIES), atol=1e-4, rtol=1e-4)


def as_ablation(function):
    """As in 07 and 08."""
    model, name = story_model(), "blocks.0.attention.heads"
    with recorded(model, name) as outputs:
        model(STORIES)
    layer = model.blocks[0].attention
    with ablate(model, {0: [2]}, mode="mean", mean_from=STORIES):
        wanted = model(STORIES)
    found = function(lambda: model(STORIES), layer, 2, outputs[name])
    assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def as_patch(function):
    """As in 08."""

    def run(ids, change=lambda heads: heads):
        with replaced(story_model(), {"blocks.0.attention.heads": change}):
            return story_model()(ids)[0, -1]

    given = run, STORIES[:1], STORIES[1:2], 1, 30
    assert_close(function(*given), EXERCISES["8.1"].reference(*given))


def as_search(function):
    """As in 09: sentences of two lengths."""
    ids, mask = torch.arange(1000, 1012).view(2, 6), torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = False
    hidden = minilm().hidden_states(ids, mask[:, None, None])[-1]
    given = hidden, mask
    assert_close(function(*given), EXERCISES["9.3"].reference(*given))


def as_cached_attention(function):
    """As in 10: a text in parts gets the outputs of one call."""
    layer, x = story_model().blocks[0].attention, normal(2, 7, 128)
    cache, outputs = {}, []
    for part in x.split((3, 1, 1, 2), dim=1):
        named = (layer.query_proj, layer.key_proj, layer.value_proj)
        q, k, v = (split_heads(proj(part), layer.num_heads) for proj in named)
        outputs.append(function(q, k, v, cache, layer.position.rotate))
    found = layer.out_proj(merge_heads(torch.cat(outputs, dim=2)))
    assert_close(found, layer(x, mask=causal_mask(7))[0], atol=1e-5, rtol=1e-5)


def as_writer(function):
    """As in 10 and 11: the tokens that the course's function writes."""
    start = STORIES[:, :9]
    wanted = story_model().generate(start, 25, temperature=0)
    assert torch.equal(function(story_model(), start, 25), wanted)


USES = {
    "1.2": lambda own: (in_smollm2(attention=own), in_minilm(attention=own)),
    "2.2": as_whole_layer,
    "3.1": as_torchs_layer,
    "5.2": lambda own: in_smollm2(turn=own),
    "6.1": as_the_story_model,
    "7.3": as_ablation,
    "8.1": as_patch,
    "9.3": as_search,
    "10.1": as_cached_attention,
    "10.2": as_writer,
}
RIGHT = [x for x in answers() if x.values[0] in USES and x.values[1] == "right"]


@torch.no_grad()
@pytest.mark.parametrize(("name", "kind", "mistake", "code"), RIGHT)
def test_the_lessons_accept_it(name, kind, mistake, code):
    USES[name](defined(code, EXERCISES[name].space))


def test_there_are_three_answers_to_each():
    count = Counter(case.values[0] for case in RIGHT)
    assert count.keys() == USES.keys() and min(count.values()) >= 3


@torch.no_grad()
def test_right_answers_in_smollm2_itself():
    need_smollm2()
    model, tokenizer = load_smollm2()
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    kinds = {"1.2": [], "5.2": []}
    for name, _, _, code in (case.values for case in RIGHT):
        kinds.get(name, []).append(defined(code, EXERCISES[name].space))
    for attention, turn in zip(kinds["1.2"], kinds["5.2"]):
        mine = with_own_functions(model, attention=attention, turn=turn)
        assert_close(mine(ids), model(ids), atol=1e-3, rtol=1e-3)
