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
from transformers.models.marian.modeling_marian import (
    MarianSinusoidalPositionalEmbedding,
)
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from utils.attention import MultiHeadAttention, causal_mask, split_heads
from utils.positions import (
    ALiBi,
    Learned,
    NoPE,
    Rotary,
    T5Bias,
    alibi_slopes,
    frequencies,
    relative_positions,
    rotary_angles,
    rotate_pairs,
    sinusoidal,
    t5_bucket,
    t5_first_distances,
)

DOUBLE = torch.float64
SEEDS = range(6)
T5_SIZES = [(32, 128), (16, 64), (16, 16), (8, 32), (32, 256), (64, 512)]


def randn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def sizes(seed):
    """Return (length, an even dim, offset), drawn by chance."""
    chance = random.Random(seed)
    return chance.randint(2, 40), 2 * chance.randint(1, 24), chance.randint(0, 300)


# --- transformers -------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 7, 16, 33])
def test_sinusoidal_equals_marian(dim):
    """Marian stores all sines, then all cosines."""
    theirs = MarianSinusoidalPositionalEmbedding(50, dim)
    if hasattr(theirs, "create_weight"):  # transformers 5
        theirs = theirs.create_weight()
    else:
        again = theirs._init_weight  # 4.x: a static method first, then an ordinary one
        filled = again() if "self" in _names(again) else again(theirs.weight)
        theirs = (theirs.weight if filled is None else filled).detach()
    ours = sinusoidal(50, dim)
    by_kind = torch.cat([ours[:, 0::2], ours[:, 1::2]], dim=1)
    assert_close(by_kind, theirs, atol=5e-6, rtol=0)


def _names(function):
    return getattr(function, "__func__", function).__code__.co_varnames


def test_sinusoidal_equals_gptj():
    ours = sinusoidal(50, 16)
    by_kind = torch.cat([ours[:, 0::2], ours[:, 1::2]], dim=1)
    theirs = modeling_gptj.create_sinusoidal_positions(50, 16)
    assert_close(by_kind, theirs, atol=5e-6, rtol=0)


def llama_angles(positions, dim, **options):
    config = LlamaConfig(hidden_size=2 * dim, num_attention_heads=2, **options)
    rotary = modeling_llama.LlamaRotaryEmbedding(config=config)
    return rotary(torch.zeros(1), torch.tensor(positions)[None])  # cos, sin


@pytest.mark.parametrize("model", [modeling_llama, modeling_gpt_neox])
@pytest.mark.parametrize("offset", [0, 7, 1000])
def test_rotary_half_equals_llama_and_gpt_neox(model, offset):
    query, key = randn(2, 4, 9, 16), randn(2, 2, 9, 16, seed=1)
    cos, sin = llama_angles(range(offset, offset + 9), 16)
    theirs = model.apply_rotary_pos_emb(query, key, cos, sin)
    assert_close(Rotary(16).rotate(query, key, offset), theirs, atol=2e-6, rtol=0)


def test_rotary_scale_equals_linear_scaling_of_llama():
    query = randn(2, 4, 9, 16)
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    cos, sin = llama_angles(range(9), 16, rope_scaling=scaling)
    theirs = modeling_llama.apply_rotary_pos_emb(query, query, cos, sin)
    ours = Rotary(16, scale=1 / 4).rotate(query, query)
    assert_close(ours, theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("offset", [0, 7, 1000])
def test_rotary_interleaved_equals_gptj(offset):
    query, key = randn(2, 4, 9, 16), randn(2, 2, 9, 16, seed=1)
    table = modeling_gptj.create_sinusoidal_positions(offset + 9, 16)[offset:]
    sin, cos = table[None].chunk(2, dim=-1)  # sines first
    theirs = [
        modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)
        for x in (query, key)
    ]
    ours = Rotary(16, layout="interleaved").rotate(query, key, offset)
    assert_close(list(ours), theirs, atol=2e-4 if offset > 9 else 1e-5, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", T5_SIZES)
def test_t5_buckets_equal_t5(num_buckets, max_distance, causal):
    relative = torch.arange(-3 * max_distance, 3 * max_distance + 1)
    ours = t5_bucket(
        relative, num_buckets=num_buckets, max_distance=max_distance, causal=causal
    )
    theirs = T5Attention._relative_position_bucket(
        relative, not causal, num_buckets, max_distance
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_alibi_equals_bloom_and_mpt(num_heads):
    length, slopes = 7, alibi_slopes(num_heads)
    ours = ALiBi(num_heads).bias(length, length)[0]
    mpt = build_mpt_alibi_tensor(num_heads, length)[:, 0]  # the last query's row
    assert_close(ours[:, -1], mpt, atol=0, rtol=1e-6)
    ones = torch.ones(1, length)
    bloom = build_alibi_tensor(ones, num_heads, torch.float32)  # slope * key position
    rising = slopes[:, None] * torch.arange(length)
    assert_close(bloom[:, 0], rising, atol=0, rtol=1e-6)
    hidden = ~causal_mask(length)
    weights = [
        (randn(num_heads, length, length) + bias).masked_fill(hidden, -math.inf)
        for bias in (ours, bloom)
    ]
    assert_close(weights[0].softmax(-1), weights[1].softmax(-1), atol=1e-6, rtol=0)


# --- other forms of the same formula ------------------------------------------------


def rotation(angles, layout):
    """Return the block-diagonal matrix of equation (15), entry by entry."""
    pairs = len(angles)
    matrix = torch.zeros(2 * pairs, 2 * pairs, dtype=DOUBLE)
    for i, angle in enumerate(angles.tolist()):
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        matrix[a, a] = matrix[b, b] = math.cos(angle)
        matrix[a, b], matrix[b, a] = -math.sin(angle), math.sin(angle)
    return matrix


def turn(position, dim, layout="half", base=10000.0):
    """Return the rotation of one position, from the paper's formula."""
    angles = [position * base ** (-2 * (i - 1) / dim) for i in range(1, dim // 2 + 1)]
    return rotation(torch.tensor(angles, dtype=DOUBLE), layout)


@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rotary_equals_rotation_matrices(seed, layout, base):
    length, dim, offset = sizes(seed)
    query = randn(1, 2, length, dim, seed=seed, dtype=DOUBLE)
    key = randn(1, 1, length, dim, seed=seed + 99, dtype=DOUBLE)
    ours = Rotary(dim, layout=layout, base=base).rotate(query, key, offset)
    for x, turned in zip((query, key), ours, strict=True):
        for t in range(length):
            matrix = turn(offset + t, dim, layout, base)
            expected = x[:, :, t] @ matrix.T
            assert_close(turned[:, :, t], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rotary_equals_complex_multiplication(seed, layout):
    length, dim, offset = sizes(seed)
    x = randn(2, 3, length, dim, seed=seed, dtype=DOUBLE)
    angles = rotary_angles(length, dim, offset=offset, dtype=DOUBLE)
    pairs = (
        x.unflatten(-1, (-1, 2))
        if layout == "interleaved"
        else (x.unflatten(-1, (2, -1)).mT)
    )
    turned = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles)
    turned = torch.view_as_real(turned)
    expected = (turned if layout == "interleaved" else turned.mT).flatten(-2)
    assert_close(rotate_pairs(x, angles, layout=layout), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_sinusoidal_by_the_formula_of_the_paper(seed):
    length, even, offset = sizes(seed)
    for dim in (even, even + 1):
        table = sinusoidal(length, dim, offset=offset, dtype=DOUBLE)
        assert table.shape == (length, dim)
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
    causal, num_buckets = seed % 2 == 0, 2 * chance.randint(2, 12)
    each = num_buckets if causal else num_buckets // 2
    exact = each // 2
    max_distance = chance.randint(exact + 1, 90)
    for relative in range(-max_distance - 3, max_distance + 4):
        distance = max(-relative, 0) if causal else abs(relative)
        expected = bucket_of(distance, exact, each - exact, max_distance)
        expected += each if relative > 0 and not causal else 0
        found = t5_bucket(
            torch.tensor(relative),
            num_buckets=num_buckets,
            max_distance=max_distance,
            causal=causal,
        )
        assert found.item() == expected, (relative, num_buckets, max_distance, causal)


def by_hand(layer, x, score_of):
    """Return the layer's (output, weights), one score_of(h, i, j, q, k) at a time."""
    q, k, v = (
        split_heads(proj(x), layer.num_heads)[0]
        for proj in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    heads, length, _ = q.shape
    scores = torch.full((heads, length, length), -math.inf, dtype=x.dtype)
    for h in range(heads):
        for i in range(length):
            for j in range(i + 1):
                scores[h, i, j] = score_of(h, i, j, q[h, i], k[h, j])
    weights = scores.softmax(-1)
    return layer.out_proj((weights @ v).transpose(0, 1).flatten(1)), weights


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("name", ["half", "interleaved", "alibi", "t5"])
def test_the_layer_by_hand(name, need_weights):
    torch.manual_seed(0)
    heads, dim, length = 2, 4, 22
    table = randn(8, heads, dtype=DOUBLE)
    t5 = T5Bias(heads, num_buckets=8, max_distance=20).double()
    t5.table.data.copy_(table)
    scheme, score_of = {
        "half": (
            Rotary(dim),  # R(m)ᵀ R(n) = R(n - m); values are not turned
            lambda h, i, j, q, k: q @ turn(j - i, dim) @ k / dim**0.5,
        ),
        "interleaved": (
            Rotary(dim, layout="interleaved"),
            lambda h, i, j, q, k: q @ turn(j - i, dim, "interleaved") @ k / dim**0.5,
        ),
        "alibi": (  # added after the scaling
            ALiBi(heads),
            lambda h, i, j, q, k: q @ k / dim**0.5 - (i - j) / 16 ** (h + 1),
        ),
        "t5": (
            t5,
            lambda h, i, j, q, k: (
                q @ k / dim**0.5 + table[bucket_of(i - j, 4, 4, 20), h]
            ),
        ),
    }[name]
    layer = MultiHeadAttention(heads * dim, heads, position=scheme).double()
    x = randn(1, length, heads * dim, dtype=DOUBLE)
    with torch.no_grad():
        output, weights = layer(x, mask=causal_mask(length), need_weights=need_weights)
        expected, expected_weights = by_hand(layer, x, score_of)
    assert_close(output[0], expected, atol=1e-9, rtol=0)
    if need_weights:
        assert_close(weights[0], expected_weights, atol=1e-9, rtol=0)


# --- what must hold for every size --------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_sinusoidal_lengths_and_dot_products(seed):
    length, dim, offset = sizes(seed)
    table = sinusoidal(length, dim, offset=offset, dtype=DOUBLE)
    squares = table.square().sum(-1)
    assert_close(squares, torch.full_like(squares, dim / 2))
    gram = table @ table.T  # depends on the distance only: no direction
    for k in range(length):
        along = gram.diagonal(k)
        assert_close(along, along[:1].expand_as(along), atol=1e-9, rtol=0)
        assert_close(along, gram.diagonal(-k), atol=1e-9, rtol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_sinusoidal_shift_is_a_rotation(seed):
    length, dim, offset = sizes(seed)
    table = sinusoidal(length, dim, dtype=DOUBLE)
    # (sin, cos) of a + b: the rotation by -b of the pair
    shift = turn(-offset, dim, "interleaved")
    moved = sinusoidal(length, dim, offset=offset, dtype=DOUBLE)
    assert_close(table @ shift.T, moved, atol=1e-9, rtol=0)
    assert_close(shift.T @ shift, torch.eye(dim, dtype=DOUBLE), atol=1e-9, rtol=0)


@pytest.mark.parametrize("dim", [2, 8, 64, 512])
def test_longest_wavelength(dim):
    longest = 2 * math.pi / frequencies(dim, dtype=DOUBLE)[-1].item()
    assert math.isclose(longest, 2 * math.pi * 10000 ** ((dim - 2) / dim))
    if dim == 512:
        assert round(longest) == 60611  # not 10000 * 2 pi = 62832


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rotary_is_a_group_of_rotations(seed, layout):
    length, dim, offset = sizes(seed)
    eye = torch.eye(dim, dtype=DOUBLE)

    def matrix(position):
        angles = rotary_angles(1, dim, offset=position, dtype=DOUBLE)
        return rotate_pairs(eye[:, None], angles, layout=layout)[:, 0].T

    m, n = matrix(offset), matrix(offset + length)
    assert_close(m.T @ m, eye, atol=1e-12, rtol=0)
    assert_close(m.det().item(), 1.0)
    assert_close(m.T @ n, matrix(length), atol=1e-11, rtol=0)
    assert_close(matrix(0), eye, atol=0, rtol=0)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rotary_scores_know_the_offset_only(seed, layout):
    length, dim, offset = sizes(seed)
    rotary = Rotary(dim, layout=layout)
    query, key = (randn(1, 1, 1, dim, seed=s, dtype=DOUBLE) for s in (seed, seed + 99))
    everywhere = [x.expand(-1, -1, length, -1) for x in (query, key)]
    turned = rotary.rotate(*everywhere)
    assert_close(turned[0].norm(dim=-1), everywhere[0].norm(dim=-1))
    assert torch.equal(turned[0][:, :, 0], query[:, :, 0])  # position 0 stays
    scores = (turned[0] @ turned[1].mT)[0, 0]
    for k in range(-length + 1, length):
        along = scores.diagonal(k)
        assert_close(along, along[:1].expand_as(along), atol=1e-10, rtol=0)
    assert (scores - scores.T).abs().max() > 1e-3  # before and after differ
    later = rotary.rotate(*everywhere, offset)
    assert_close((later[0] @ later[1].mT)[0, 0], scores, atol=1e-10, rtol=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_rotary_layouts_differ_by_a_permutation(seed):
    length, dim, offset = sizes(seed)
    dim += 2  # with one pair the layouts are the same
    halves = [*range(0, dim, 2), *range(1, dim, 2)]
    query, key = (randn(1, 2, length, dim, seed=s) for s in (seed, seed + 99))
    one = Rotary(dim, layout="interleaved").rotate(query, key, offset)
    two = Rotary(dim).rotate(query[..., halves], key[..., halves], offset)
    for interleaved, half in zip(one, two, strict=True):
        assert_close(interleaved[..., halves], half, atol=0, rtol=0)
    mixed = Rotary(dim).rotate(query, key, offset)
    scores, wrong = one[0] @ one[1].mT, mixed[0] @ mixed[1].mT
    assert_close(scores, two[0] @ two[1].mT, atol=1e-4, rtol=0)
    assert (scores - wrong).abs().max() > 1e-2


def test_rotary_layouts_differ_by_a_permutation_of_the_weights():
    """What converts the weights of the paper's layout into those of Llama's."""
    torch.manual_seed(0)
    heads, dim, embed = 4, 8, 32
    layers = [
        MultiHeadAttention(embed, heads, position=Rotary(dim, layout=layout))
        for layout in ("interleaved", "half")
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    for proj in (layers[1].query_proj, layers[1].key_proj):
        pairs = proj.weight.data.view(heads, dim // 2, 2, embed)
        proj.weight.data = pairs.transpose(1, 2).reshape(embed, embed)
    x = randn(2, 11, embed)
    assert_close(layers[1](x)[0], layers[0](x)[0], atol=1e-6, rtol=1e-5)


def test_alibi_slopes_of_known_heads():
    eight = [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(8).tolist() == alibi_slopes(8, "paper").tolist() == eight
    assert alibi_slopes(1).tolist() == [1 / 256]
    assert alibi_slopes(6).tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    more = torch.tensor([0.7071, 0.3536, 0.1768, 0.0884])
    assert_close(
        alibi_slopes(12), torch.cat([alibi_slopes(8), more]), atol=1e-4, rtol=0
    )
    paper = torch.tensor([2 ** (-8 * i / 12) for i in range(1, 13)])
    assert_close(alibi_slopes(12, "paper"), paper)
    assert_close(paper[:2], torch.tensor([0.630, 0.397]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("num_heads", range(1, 34))
def test_alibi_slopes_of_any_number_of_heads(num_heads):
    for formula in ("official", "paper"):
        slopes = alibi_slopes(num_heads, formula)
        assert slopes.shape == (num_heads,) and len(set(slopes.tolist())) == num_heads
        assert (slopes > 0).all() and (slopes < 1).all()
        if formula == "paper" or num_heads & (num_heads - 1) == 0:
            assert_close(slopes[-1].item(), 2.0**-8)
            assert_close(slopes[1:] / slopes[:-1], slopes[:1].expand(num_heads - 1))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_alibi_is_a_penalty_by_distance(seed, causal):
    chance = random.Random(seed)
    heads, queries = chance.randint(1, 12), chance.randint(1, 20)
    keys = queries + chance.randint(0, 9)
    scheme = ALiBi(heads, causal=causal)
    bias = scheme.bias(queries, keys)
    assert bias.shape == (1, heads, queries, keys)
    for i in range(queries):
        here = i + keys - queries
        assert (bias[0, :, i, here] == 0).all()
        past = bias[0, :, i, : here + 1].flip(-1)  # by distance
        steps = past - past[:, :1]
        expected = -scheme.slopes[:, None] * torch.arange(here + 1)
        assert_close(steps, expected, atol=0, rtol=0)
        future = torch.arange(keys - here) * (0 if causal else -1)
        expected = scheme.slopes[:, None] * future
        assert_close(bias[0, :, i, here:], expected, atol=0, rtol=0)


def test_t5_first_distances_of_the_paper():
    wide = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert t5_first_distances(32, 128) == [*range(16), *wide]
    wide = [8, 12, 16, 23, 32, 46, 64, 91]
    assert t5_first_distances(32, 128, causal=False) == [*range(8), *wide]


@pytest.mark.parametrize("causal, last, start", [(True, 31, 113), (False, 15, 91)])
def test_t5_last_bucket(causal, last, start):
    past = -torch.arange(400)
    assert torch.equal(t5_bucket(past, causal=causal) == last, past <= -start)
    future = t5_bucket(torch.arange(1, 400), causal=causal)
    if causal:
        assert (future == 0).all()
    else:  # bucket 16 would be a future key at distance 0
        assert future.min() == 17 and future.max() == 31
        assert torch.equal(future == 31, torch.arange(1, 400) >= start)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_t5_buckets_never_fall_with_distance(seed, causal):
    chance = random.Random(seed)
    num_buckets = 2 * chance.randint(2, 30)
    options = {"num_buckets": num_buckets, "max_distance": chance.randint(31, 900)}
    relative = relative_positions(chance.randint(1, 60), chance.randint(1, 60))
    buckets = t5_bucket(relative, **options, causal=causal)
    assert buckets.shape == relative.shape and buckets.dtype == torch.int64
    assert (buckets >= 0).all() and (buckets < num_buckets).all()
    past = t5_bucket(-torch.arange(1000), **options, causal=causal)
    assert (past.diff() >= 0).all() and (past.diff() <= 1).all()
    used = num_buckets if causal else num_buckets // 2
    assert past.unique().numel() == used


# --- what a layer can know of positions ---------------------------------------------


def layers(scheme, count=1, embed=16, heads=4):
    torch.manual_seed(0)
    stack = [MultiHeadAttention(embed, heads, position=scheme) for _ in range(count)]
    return [layer.double().requires_grad_(False) for layer in stack]


def run(stack, x, mask=None):
    for layer in stack:
        x = x + 3 * layer(x, mask=mask)[0]
    return x


@pytest.mark.parametrize("seed", SEEDS)
def test_without_positions_a_layer_is_equivariant(seed):
    x = randn(2, 9, 16, seed=seed, dtype=DOUBLE)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    stack = layers(NoPE(), 2)
    assert_close(run(stack, x[:, order]), run(stack, x)[:, order], atol=1e-12, rtol=0)


@pytest.mark.parametrize("count, knows", [(1, False), (2, True)])
def test_causal_order_of_the_prefix_is_known_from_the_second_layer_on(count, knows):
    x, mask = randn(2, 9, 16, dtype=DOUBLE), causal_mask(9)
    shuffled = x[:, [4, 2, 7, 0, 1, 6, 5, 3, 8]]
    stack = layers(NoPE(), count)
    moved = (run(stack, x, mask) - run(stack, shuffled, mask))[:, -1].abs().max()
    assert moved > 1e-3 if knows else moved < 1e-12


def test_identical_tokens_count_only_from_a_different_first_one():
    mask, stack = causal_mask(12), layers(NoPE())
    same = randn(1, 1, 16, dtype=DOUBLE).expand(1, 12, 16)
    output = run(stack, same, mask)
    assert_close(output, output[:, :1].expand_as(output), atol=1e-12, rtol=0)
    marked = torch.cat([randn(1, 1, 16, seed=1, dtype=DOUBLE), same[:, 1:]], dim=1)
    only = layers(NoPE(), embed=16, heads=1)  # one head: one weight on the first token
    away = (run(only, marked, mask) - run(only, same, mask))[0, 1:].norm(dim=-1)
    inverse = 1 / away  # (t - 1 + c) / constant: a straight line
    assert_close(inverse.diff(), inverse.diff()[:1].expand(10), atol=1e-9, rtol=1e-9)
    assert (away.diff() < 0).all()


@pytest.mark.parametrize("name", ["alibi", "rotary", "t5"])
def test_which_schemes_tell_left_from_right(name):
    t5 = T5Bias(4, causal=False)
    torch.nn.init.normal_(t5.table)
    scheme = {"alibi": ALiBi(4, causal=False), "rotary": Rotary(4), "t5": t5}[name]
    x, stack = randn(2, 9, 16, dtype=DOUBLE), layers(scheme)
    moved = (run(stack, x.flip(1)).flip(1) - run(stack, x)).abs().max()
    assert moved < 1e-12 if name == "alibi" else moved > 1e-3


def test_rows_of_a_table_beyond_the_trained_length_stay_as_drawn():
    learned = Learned(12, 8)
    learned.embed(randn(2, 7, 8)).square().sum().backward()
    assert (learned.table.grad[7:] == 0).all()
    assert (learned.table.grad[:7] != 0).any(dim=-1).all()
