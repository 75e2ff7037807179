"""Position schemes against `transformers`, against other forms of the same formula, and
against what must hold for every size."""

import math
import random
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from utils.attention import MultiHeadAttention, causal_mask, split_heads
from utils.positions import (
    ALiBi,
    NoPE,
    Rotary,
    Sinusoidal,
    T5Bias,
    alibi_slopes,
    t5_bucket,
)
from utils.tests.helpers import normal

DOUBLE = torch.float64
every_seed = pytest.mark.parametrize("seed", range(6))
both_layouts = pytest.mark.parametrize("layout", ["half", "interleaved"])

T5_SIZES = [(32, 128), (16, 64), (16, 16), (8, 32), (32, 256), (64, 512)]


def sizes(seed):
    """Return (length, an even dim, offset), drawn by chance."""
    chance = random.Random(seed)
    return chance.randint(2, 40), 2 * chance.randint(1, 24), chance.randint(0, 300)


# --- transformers ---


def test_sinusoidal_equals_gptj():
    """Which stores all sines, then all cosines."""
    ours = Sinusoidal(16).embed(torch.zeros(1, 50, 16))[0]
    theirs = modeling_gptj.create_sinusoidal_positions(50, 16)
    by_kind = torch.cat([ours[:, 0::2], ours[:, 1::2]], dim=1)
    assert_close(by_kind, theirs, atol=5e-6, rtol=0)


LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}


@pytest.mark.parametrize("model", [modeling_llama, modeling_gpt_neox])
@pytest.mark.parametrize(
    "offset, scale, options",
    [(0, 1, {}), (7, 1, {}), (1000, 1, {}), (0, 1 / 4, {"rope_scaling": LINEAR})],
)
def test_rotary_half_equals_llama_and_gpt_neox(model, offset, scale, options):
    query, key = normal(2, 4, 9, 16), normal(2, 2, 9, 16, seed=1)
    config = LlamaConfig(hidden_size=2 * 16, num_attention_heads=2, **options)
    rotary = modeling_llama.LlamaRotaryEmbedding(config=config)
    cos, sin = rotary(torch.zeros(1), torch.arange(offset, offset + 9)[None])
    theirs = model.apply_rotary_pos_emb(query, key, cos, sin)
    ours = Rotary(16, scale=scale).rotate(query, key, offset)
    assert_close(ours, theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("offset", [0, 7, 1000])
def test_rotary_interleaved_equals_gptj(offset):
    query, key = normal(2, 4, 9, 16), normal(2, 2, 9, 16, seed=1)
    table = modeling_gptj.create_sinusoidal_positions(offset + 9, 16)[offset:]
    sin, cos = table[None].chunk(2, dim=-1)  # sines first
    ours = Rotary(16, layout="interleaved").rotate(query, key, offset)
    for found, x in zip(ours, (query, key), strict=True):
        theirs = modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos)
        atol = 2e-4 if offset > 9 else 1e-5
        assert_close(found, theirs.transpose(1, 2), atol=atol, rtol=0)


@pytest.mark.parametrize("num_buckets, max_distance", T5_SIZES)
def test_t5_buckets_equal_t5(num_buckets, max_distance):
    relative = torch.arange(-3 * max_distance, 3 * max_distance + 1)
    sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
    theirs = T5Attention._relative_position_bucket(relative, False, **sizes)
    assert torch.equal(t5_bucket(relative, **sizes), theirs)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_alibi_equals_bloom_and_mpt(num_heads):
    length = 7
    ours = ALiBi(num_heads).bias(length, length)[0]
    mpt = build_mpt_alibi_tensor(num_heads, length)[:, 0]  # the last query's row
    assert_close(ours[:, -1], mpt, atol=0, rtol=1e-6)
    ones = torch.ones(1, length)
    bloom = build_alibi_tensor(ones, num_heads, torch.float32)  # slope * key position
    scores, hidden = normal(num_heads, length, length), ~causal_mask(length)
    weights = [
        (scores + bias).masked_fill(hidden, -math.inf).softmax(-1)
        for bias in (ours, bloom)
    ]
    assert_close(*weights, atol=1e-6, rtol=0)


# --- other forms of the same formula ---


def turn(position, dim, layout="half", base=10000.0):
    """Return the block-diagonal matrix of equation (15), entry by entry."""
    matrix, pairs = torch.zeros(dim, dim, dtype=DOUBLE), dim // 2
    for i in range(pairs):
        angle = position * base ** (-2 * i / dim)
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        matrix[a, a] = matrix[b, b] = math.cos(angle)
        matrix[a, b], matrix[b, a] = -math.sin(angle), math.sin(angle)
    return matrix


@pytest.mark.parametrize("base", [10000.0, 500.0])
@both_layouts
@every_seed
def test_rotary_equals_rotation_matrices(seed, layout, base):
    length, dim, offset = sizes(seed)
    query = normal(1, 2, length, dim, seed=seed, dtype=DOUBLE)
    key = normal(1, 1, length, dim, seed=seed + 99, dtype=DOUBLE)
    ours = Rotary(dim, layout=layout, base=base).rotate(query, key, offset)
    for x, turned in zip((query, key), ours, strict=True):
        for t in range(length):
            expected = x[:, :, t] @ turn(offset + t, dim, layout, base).T
            assert_close(turned[:, :, t], expected, atol=1e-10, rtol=0)


@every_seed
def test_sinusoidal_by_the_formula_of_the_paper(seed):
    length, even, offset = sizes(seed)
    for dim in (even, even + 1):
        x = torch.zeros(1, length, dim, dtype=DOUBLE)
        table = Sinusoidal(dim).embed(x, offset)[0]
        for t in range(length):
            for j in range(dim):
                angle = (offset + t) / 10000 ** (2 * (j // 2) / dim)
                wave = math.cos(angle) if j % 2 else math.sin(angle)
                assert abs(table[t, j].item() - wave) < 1e-10


def bucket_of(distance, exact, wide, max_distance):
    """Return the bucket of one distance, by comparing whole fractions only."""
    if distance < exact:
        return distance
    grown, full = Fraction(distance, exact), Fraction(max_distance, exact)
    return exact + max(k for k in range(wide) if grown**wide >= full**k)


@pytest.mark.parametrize("seed", range(12))
def test_t5_buckets_by_whole_fractions(seed):
    chance = random.Random(seed)
    num_buckets = chance.randint(2, 24)
    exact = num_buckets // 2
    max_distance = chance.randint(exact + 1, 90)
    sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
    for relative in range(-max_distance - 3, 4):
        distance = max(-relative, 0)
        expected = bucket_of(distance, exact, num_buckets - exact, max_distance)
        found = t5_bucket(torch.tensor(relative), **sizes)
        assert found.item() == expected, (relative, sizes)


def slopes_by(formula, n):
    """Return the slopes as the authors write them down, and as their text does."""
    power = 2 ** (len(bin(n)) - 3)
    if formula == "paper" or power == n:
        return [2 ** (-8 * i / n) for i in range(1, n + 1)]
    half = slopes_by(formula, 2 * power)[::2]
    return slopes_by(formula, power) + half[: n - power]


@pytest.mark.parametrize("formula", ["official", "paper"])
@pytest.mark.parametrize("num_heads", [*range(1, 14), 31, 32, 33])
def test_alibi_by_its_formula(num_heads, formula):
    slopes, (queries, keys) = slopes_by(formula, num_heads), (4, 6)
    assert_close(alibi_slopes(num_heads, formula), torch.tensor(slopes))
    bias = ALiBi(num_heads, formula=formula).bias(queries, keys)[0]
    for i in range(queries):
        back = [max(i + keys - queries - j, 0) for j in range(keys)]
        assert_close(bias[:, i], -torch.tensor(slopes)[:, None] * torch.tensor(back))


def by_hand(layer, x, score_of):
    """Return the layer's (output, weights), one score_of(h, i, j, q, k) at a time."""
    q, k, v = (
        split_heads(proj(x), layer.num_heads)[0]
        for proj in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    heads, length, dim = q.shape
    scores = torch.full((heads, length, length), -math.inf, dtype=x.dtype)
    for h in range(heads):
        for i in range(length):
            for j in range(i + 1):
                scores[h, i, j] = score_of(h, i, j, q[h, i], k[h, j]) / dim**0.5
    weights = scores.softmax(-1)
    return layer.out_proj((weights @ v).transpose(0, 1).flatten(1)), weights


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["half", "interleaved", "alibi", "t5"])
def test_the_layer_by_hand(name, need_weights):
    torch.manual_seed(0)
    heads, dim, length = 2, 4, 22
    t5 = T5Bias(heads, num_buckets=8, max_distance=20).double()
    torch.nn.init.normal_(t5.table)

    def turned(layout):  # R(m)ᵀ R(n) = R(n - m); values are not turned
        return lambda h, i, j, q, k: q @ turn(j - i, dim, layout) @ k

    scheme, score_of = {  # times sqrt(dim): a bias is added after the scaling
        "half": (Rotary(dim), turned("half")),
        "interleaved": (Rotary(dim, layout="interleaved"), turned("interleaved")),
        "alibi": (
            ALiBi(heads),
            lambda h, i, j, q, k: q @ k - dim**0.5 * (i - j) / 16 ** (h + 1),
        ),
        "t5": (
            t5,
            lambda h, i, j, q, k: (
                q @ k + dim**0.5 * t5.table[bucket_of(i - j, 4, 4, 20), h]
            ),
        ),
    }[name]
    layer = MultiHeadAttention(heads * dim, heads, position=scheme).double()
    x = normal(1, length, heads * dim, dtype=DOUBLE)
    with torch.no_grad():
        output, weights = layer(x, mask=causal_mask(length), need_weights=need_weights)
        expected, expected_weights = by_hand(layer, x, score_of)
    assert_close(output[0], expected, atol=1e-9, rtol=0)
    if need_weights:
        assert_close(weights[0], expected_weights, atol=1e-9, rtol=0)


@pytest.mark.parametrize("count, knows", [(1, False), (2, True)])
def test_causal_order_of_the_prefix_is_known_from_the_second_layer_on(count, knows):
    torch.manual_seed(0)
    stack = [MultiHeadAttention(16, 4, position=NoPE()).double() for _ in range(count)]
    x = y = normal(2, 9, 16, dtype=DOUBLE)
    y = y[:, [4, 2, 7, 0, 1, 6, 5, 3, 8]]
    for layer in stack:
        x, y = (z + 3 * layer(z, mask=causal_mask(9))[0] for z in (x, y))
    moved = (x - y)[:, -1].abs().max()
    assert moved > 1e-3 if knows else moved < 1e-12
