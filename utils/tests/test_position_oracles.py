"""Position schemes against `transformers`, against other forms of the same formula, and
against what must hold for every size."""

import math
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
    Learned,
    NoPE,
    Rotary,
    Sinusoidal,
    T5Bias,
    frequencies,
    sinusoidal,
    t5_bucket,
)
from utils.tests.draws import (
    BATCHES,
    DOUBLE,
    FLOATING,
    NO_NUMBERS,
    SIZES,
    WHOLE,
    Drawing,
    largest,
    many,
    number_errors,
    precision,
    size_errors,
    tried,
    unless,
)
from utils.tests.helpers import normal

TINY = math.ulp(0)

T5_SIZES = [(32, 128), (16, 64), (16, 16), (8, 32), (32, 256), (64, 512)]


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


def base_or_scale(draw, *good):
    """Return a finite number above 0; sometimes another one."""
    return draw.mostly(draw.one_of(*good), 0, -1.0, math.nan, math.inf, "1", True)


@given(st.data())
def test_rotary_equals_rotation_matrices(data):
    draw = Drawing(data, one_in=6)
    dim = draw.mostly(2 * draw(st.integers(1, 3)), 0, 3, 2.0)
    layout = draw.mostly(draw.one_of("half", "interleaved"), "neox", None)
    base, scale = base_or_scale(draw, 10000.0, 500), base_or_scale(draw, 1, 0.25, 2)
    errors = size_errors(dim, 2) | unless(dim % 2 == 0, ValueError)
    errors |= number_errors(base, TINY) | number_errors(scale, TINY)
    errors |= unless(layout in ("half", "interleaved"), ValueError)
    scheme = tried(errors, Rotary, dim, base=base, layout=layout, scale=scale)
    if errors:
        return
    queries, keys, offset = draw(SIZES), draw(SIZES), draw(st.integers(0, 300))
    dtype = draw.mostly(draw.one_of(*FLOATING), *WHOLE, *NO_NUMBERS)
    shapes = [[*draw(st.lists(BATCHES, max_size=2)), n, dim] for n in (queries, keys)]
    shapes[1][-1] += draw.mostly(0, 2)
    xs = [draw.tensor(shape, dtype) for shape in shapes]
    errors = unless(dtype in FLOATING, TypeError) | unless(
        shapes[1][-1] == dim, ValueError
    )
    found = tried(errors, scheme.rotate, *xs, offset)
    for x, ours, first in zip(xs, found or (), (offset + keys - queries, offset)):
        places = [t * scale for t in range(first, first + x.shape[-2])]
        turns = torch.zeros(len(places), dim, dim, dtype=DOUBLE)
        for t, place in enumerate(places):
            turns[t] = turn(place, dim, layout, base)
        wanted = (turns @ x.double()[..., None])[..., 0]
        once, eps = precision(dtype)  # an angle is rounded at its own size
        atol = 8 * eps * (10 + scale * (offset + 6)) * largest(x)
        assert ours.dtype == dtype
        assert_close(ours.double(), wanted, atol=atol, rtol=once)


@given(st.data())
def test_what_is_added_to_the_embeddings(data):
    draw = Drawing(data, one_in=6)
    dim, base = (
        draw.mostly(draw(st.integers(1, 7)), 0, 2.5),
        base_or_scale(draw, 1e4, 500),
    )
    errors = size_errors(dim, 1) | number_errors(base, TINY)
    scheme = tried(errors, Sinusoidal, dim, base)
    length = draw.mostly(draw(SIZES), -1, 2.5, True)
    tried(errors, frequencies, dim, base=base)
    tried(errors | size_errors(length), sinusoidal, length, dim, base=base)
    if errors or size_errors(length):
        return
    most, offset = draw(st.integers(1, 12)), draw.mostly(draw(SIZES), -1, 1.5, True)
    scheme = draw.one_of(scheme, Learned(most, dim))
    shape = [draw(BATCHES), length, dim]
    given = draw.mostly(shape, shape[1:], [2, length, dim + 1])
    x = draw.tensor(given, draw.mostly(draw.one_of(*FLOATING), *WHOLE, *NO_NUMBERS))
    errors = size_errors(offset) | unless(x.dtype in FLOATING, TypeError)
    errors |= unless(given == shape, ValueError)
    if isinstance(scheme, Learned):
        errors |= unless(offset + length <= most, ValueError)
    found = tried(errors, scheme.embed, x, offset)
    if errors:
        return
    wanted = x.to(DOUBLE, copy=True, memory_format=torch.contiguous_format)
    for t, j in product(range(length), range(dim)):
        angle = (offset + t) / base ** (2 * (j // 2) / dim)
        wave = math.cos(angle) if j % 2 else math.sin(angle)
        learned = isinstance(scheme, Learned)
        wanted[:, t, j] += scheme.table[offset + t, j].item() if learned else wave
    once, eps = precision(x.dtype)  # what is added is rounded, and the sum
    assert found.dtype == x.dtype
    assert_close(found.double(), wanted, atol=2 * once + 100 * eps, rtol=once)


def bucket_of(distance, exact, wide, max_distance):
    """Return the bucket of one distance, by comparing whole fractions only."""
    if distance < exact:
        return distance
    grown, full = Fraction(distance, exact), Fraction(max_distance, exact)
    return exact + max(k for k in range(wide) if grown**wide >= full**k)


def slopes_by(formula, n):
    """Return the slopes as the authors write them down, and as their text does."""
    power = 2 ** (len(bin(n)) - 3)
    if formula == "paper" or power == n:
        return [2 ** (-8 * i / n) for i in range(1, n + 1)]
    half = slopes_by(formula, 2 * power)[::2]
    return slopes_by(formula, power) + half[: n - power]


@many
@given(st.data())
def test_biases(data):
    draw = Drawing(data, one_in=3)
    heads = draw.mostly(draw(st.integers(1, 40)), 0, -1, 2.0, True)
    formula = draw.mostly(draw.one_of("official", "paper"), "code", None)
    errors = size_errors(heads, 1) | unless(
        formula in ("official", "paper"), ValueError
    )
    alibi = tried(errors, ALiBi, heads, formula=formula)
    slopes = None if errors else -torch.tensor(slopes_by(formula, heads))
    buckets = draw.mostly(draw(st.integers(2, 24)), 1, 0, 4.0, True)
    most = draw.mostly(draw(st.integers(1, 90)), 0, 90.0)
    errors = size_errors(buckets, 2) | size_errors(most)
    errors |= unless(most > buckets // 2, ValueError)
    options = {"num_buckets": buckets, "max_distance": most}
    t5 = tried(errors, T5Bias, draw(st.integers(1, 4)), **options)
    if t5:
        torch.nn.init.normal_(t5.table)  # it starts at 0, equal for all distances
    sizes = buckets // 2, buckets - buckets // 2, most

    dtype = draw.mostly(draw.one_of(*WHOLE), *FLOATING, *NO_NUMBERS)
    relative = draw(st.lists(st.integers(0 if dtype == torch.uint8 else -128, 127)))
    x = torch.tensor(relative, dtype=torch.int64).to(dtype)
    errors |= unless(dtype in WHOLE, TypeError)
    found = tried(errors, t5_bucket, x, **options)
    if not errors:
        assert found.tolist() == [bucket_of(max(-r, 0), *sizes) for r in relative]

    queries, keys = (draw.mostly(draw(SIZES), -1, 2.5) for _ in range(2))
    errors = size_errors(queries) | size_errors(keys)
    for scheme in filter(None, (alibi, t5)):
        found = tried(errors, scheme.bias, queries, keys)
        if errors:
            continue
        assert found.shape == (1, scheme.num_heads, queries, keys)
        for i, j in product(range(queries), range(keys)):
            back = max(i + keys - queries - j, 0)
            wanted = (
                slopes * back if scheme is alibi else t5.table[bucket_of(back, *sizes)]
            )
            assert_close(found[0, :, i, j], wanted, atol=0, rtol=1e-6)


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
