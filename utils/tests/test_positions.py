"""Position schemes: equal to `transformers`, and what they refuse.

That they equal their definitions, written out once more, is compared in lessons 04 and
05.
"""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from utils.attention import MultiHeadAttention, causal_mask
from utils.positions import (
    ALiBi,
    DynamicNTK,
    Learned,
    Rotary,
    Sinusoidal,
    T5Bias,
    YaRN,
    alibi_slopes,
    rotary_angles,
    rotate_pairs,
    sinusoidal,
    t5_bucket,
)
from utils.tests.helpers import SCHEMES, guards, normal, scheme_of

B, L, E, H = 3, 7, 16, 4  # batch, length, embed_dim, heads
D = E // H


# --- transformers ---


def scaling(rope_type, **options):
    """Return the options of `LlamaConfig` for a rotary scheme that is scaled."""
    given = {"rope_type": rope_type, "rope_theta": 10000.0, **options}
    return {"rope_scaling": given}


YARN = {"original_max_position_embeddings": 64, "factor": 4.0}
DYNAMIC = {"max_position_embeddings": 64} | scaling("dynamic", factor=3.0)


@pytest.mark.parametrize(
    "ours, length, options",
    [
        (Rotary(16), 1009, {}),
        (Rotary(16, scale=1 / 4), 9, scaling("linear", factor=4.0)),
        (DynamicNTK(16, 64, factor=3.0), 60, DYNAMIC),  # nothing changes
        (DynamicNTK(16, 64, factor=3.0), 64, DYNAMIC),
        (DynamicNTK(16, 64, factor=3.0), 65, DYNAMIC),
        (DynamicNTK(16, 64, factor=3.0), 256, DYNAMIC),
        (YaRN(16, 64, 4.0), 256, scaling("yarn", **YARN)),
        (YaRN(16, 4096, 2.0), 256, scaling(
            "yarn", original_max_position_embeddings=4096, factor=2.0)),
    ],
)  # fmt: skip
def test_rotary_half_equals_llama(ours, length, options):
    query, key = normal(2, 4, 7, 16), normal(2, 2, 9, 16, seed=1)
    config = LlamaConfig(hidden_size=2 * 16, num_attention_heads=2, **options)
    rotary = modeling_llama.LlamaRotaryEmbedding(config=config)
    cos, sin = rotary(torch.zeros(1), torch.arange(length - 9, length)[None])
    theirs = (
        modeling_llama.apply_rotary_pos_emb(query, query, cos[:, 2:], sin[:, 2:])[0],
        modeling_llama.apply_rotary_pos_emb(key, key, cos, sin)[1],
    )  # the last query stands at the last key
    found = ours.rotate(query, key, length - 9)
    atol = 2e-4 if length > 1000 else 1e-5  # an angle is rounded at its own size
    assert_close(found, theirs, atol=atol, rtol=0)


def test_rotary_interleaved_equals_gptj():
    query, key = normal(2, 4, 9, 16), normal(2, 2, 9, 16, seed=1)
    table = modeling_gptj.create_sinusoidal_positions(7 + 9, 16)[7:]
    sin, cos = table[None].chunk(2, dim=-1)  # sines first
    ours = Rotary(16, layout="interleaved").rotate(query, key, 7)
    for found, x in zip(ours, (query, key), strict=True):
        theirs = modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos)
        assert_close(found, theirs.transpose(1, 2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("buckets, most", [(32, 128), (16, 16), (8, 32), (64, 512)])
def test_t5_equals_t5(buckets, most):
    relative = torch.arange(-3 * most, 3 * most + 1)
    sizes = {"num_buckets": buckets, "max_distance": most}
    theirs = T5Attention._relative_position_bucket(relative, False, **sizes)
    assert torch.equal(t5_bucket(relative, **sizes), theirs)
    scheme = T5Bias(3, **sizes)
    nn.init.normal_(scheme.table)  # it starts at 0, equal for all distances
    wanted = scheme.table[
        theirs
    ].T  # (heads, distances), the own position in the middle
    last = scheme.bias(2, 3 * most + 1)[0, :, 1]  # (heads, keys), of the last query
    assert_close(last, wanted[:, : 3 * most + 1])
    assert_close(scheme.bias(2, 9)[0, :, 0], wanted[:, 3 * most - 7 : 3 * most + 2])


@pytest.mark.parametrize("num_heads", [1, 3, 4, 12, 16, 20])
def test_alibi_equals_bloom_and_mpt(num_heads):
    ours = ALiBi(num_heads).bias(L, L)[0]
    mpt = build_mpt_alibi_tensor(num_heads, L)[:, 0]  # the last query's row
    assert_close(ours[:, -1], mpt, atol=0, rtol=1e-6)
    assert_close(ALiBi(num_heads).bias(2, L)[0], ours[:, -2:])
    bloom = build_alibi_tensor(torch.ones(1, L), num_heads, torch.float32)
    scores, hidden = normal(num_heads, L, L), ~causal_mask(L)
    weights = [  # Bloom's is slope * key position: equal after the softmax
        (scores + bias).masked_fill(hidden, -math.inf).softmax(-1)
        for bias in (ours, bloom)
    ]
    assert_close(*weights, atol=1e-6, rtol=0)
    assert (ours * hidden == 0).all()  # later keys have none


def test_what_is_added_to_the_embeddings():
    x, learned = normal(B, L, E), Learned(L + 3, E)
    before, waves = x.clone(), sinusoidal(L + 3, E)
    for offset in (0, 3):
        rows = slice(offset, offset + L)
        assert_close(Sinusoidal(E).embed(x, offset), x + waves[rows])
        assert_close(learned.embed(x, offset), x + learned.table[rows])
    assert torch.equal(x, before)


def test_a_bias_is_added_where_nothing_is_masked():
    """All else of a scheme in a layer: test_recording, with a cache test_models."""
    layer, x = MultiHeadAttention(E, H, position=ALiBi(H)), normal(B, L, E)
    found = [layer(x, need_weights=asked)[0] for asked in (False, True)]
    layer.position = None
    assert_close(found, [layer(x, mask=ALiBi(H).bias(L, L))[0]] * 2)


# --- what is kept, and in which precision ---


def test_scale_and_base_are_those_of_the_moment():
    """So that a trained model can be stretched to longer texts."""
    rotary, x = Rotary(D), normal(1, 1, 4 * L, D)
    rotary.scale = 0.25  # position 4 t takes the angles of t
    squeezed = rotary.rotate(x, x)[0][:, :, ::4]
    assert_close(squeezed, rotate_pairs(x[:, :, ::4], rotary_angles(L, D)))
    rotary.scale, rotary.base = 1.0, 50.0
    assert_close(rotary.rotate(x, x)[0], Rotary(D, base=50.0).rotate(x, x)[0])


@pytest.mark.parametrize("name", SCHEMES)
def test_only_tables_are_saved(name):
    tables = {"table"} if name in ("learned", "t5") else set()
    assert set(scheme_of(name).state_dict()) == tables


def test_tables_as_drawn():
    torch.manual_seed(0)
    learned, t5 = Learned(100, 64), T5Bias(H)
    assert learned.table.shape == (100, 64) and t5.table.shape == (32, H)
    for _ in range(2):
        assert 0.019 < learned.table.std() < 0.021 and abs(learned.table.mean()) < 0.002
        assert (t5.table == 0).all()
        for scheme in (t5, learned):
            nn.init.ones_(scheme.table)
            scheme.reset_parameters()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_positions_are_never_computed_in_half(dtype):
    for layout in ("half", "interleaved"):
        scheme, q = Rotary(D, layout=layout), normal(1, H, L, D).to(dtype)
        exact = scheme.rotate(q.float(), q.float(), offset=4097)
        for ours, each in zip(scheme.rotate(q, q, offset=4097), exact, strict=True):
            assert_close(ours, each.to(dtype), atol=0, rtol=0)  # rounded once
    waves = Sinusoidal(E).embed(torch.zeros(1, L, E, dtype=dtype), offset=4097)
    assert_close(waves[0], sinusoidal(L, E, offset=4097).to(dtype), atol=0, rtol=0)
    scheme = ALiBi(12)
    far = scheme.bias(1, 5000)
    assert torch.equal(scheme.to(dtype).bias(1, 5000), far)
    assert torch.equal(scheme.slopes, alibi_slopes(12))
    assert scheme.to("meta").bias(2, 3).device.type == "meta"


# --- what would run and mean something else ---

X, Q = torch.zeros(2, 5, E), torch.zeros(2, H, 5, D)
REFUSED = r"""
angles \(5, 1\) | Rotary(2).rotate(Q, Q)
\(1, 2\); give | rotate_pairs(Q, rotary_angles(1, D))
angles \(2,\) | rotate_pairs(Q, torch.zeros(2))
x is torch.int64 | Rotary(4).rotate(Q.long(), Q)
position 6 is not in the table: max_length=6 | Learned(6, E).embed(X, 2)
offset is -6 | Learned(9, E).embed(X, -6)
embed_dim=1 | Sinusoidal(1).embed(X)
\(16, 16\); give floats | Learned(E, E).embed(torch.eye(E))
x is torch.int64 | Sinusoidal(E).embed(X.long())
16; .* go up to 16 | T5Bias(4, max_distance=16)
layout='halves'; give | Rotary(4, layout="halves")
scale=-1; give | Rotary(4, scale=-1)
scale=0; give | Rotary(4, scale=0)
factor=-1; give | DynamicNTK(16, 64, factor=-1)
factor=0.5; give | YaRN(16, 64, 0.5)
trained_length=-5; give 1 | DynamicNTK(16, -5, 2.0)
trained_length=6; give 7 | YaRN(64, 6, 4.0)
"""

test_what_would_mean_something_else_is_refused = guards(REFUSED, globals())
