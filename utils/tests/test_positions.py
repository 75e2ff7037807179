"""Position schemes: by their definitions, against `transformers`, and in the layer."""

import copy
import math
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
    NoPE,
    PositionScheme,
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
from utils.tests.helpers import SCHEMES, examples, gradients, normal, scheme_of

B, L, E, H = 3, 7, 16, 4  # batch, length, embed_dim, heads
D = E // H
every_scheme = pytest.mark.parametrize("name", SCHEMES)
DOUBLE, SIZES = torch.float64, st.integers(0, 6)
BASES = st.sampled_from([1e4, 500])
DTYPES = st.sampled_from([torch.float32, DOUBLE, torch.bfloat16, torch.float16])
METHODS = {Learned: "embed", Sinusoidal: "embed", Rotary: "rotate"}
METHODS |= {ALiBi: "bias", T5Bias: "bias"}


# --- by their definitions ---


def turn(position, dim, layout, base):
    """Return the block-diagonal matrix of equation (15), entry by entry."""
    matrix, pairs = torch.zeros(dim, dim, dtype=DOUBLE), dim // 2
    for i in range(pairs):
        angle = position * base ** (-2 * i / dim)
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + pairs)
        matrix[a, a] = matrix[b, b] = math.cos(angle)
        matrix[a, b], matrix[b, a] = -math.sin(angle), math.sin(angle)
    return matrix


def exact(dtype):
    """Return eps of the dtype in which positions are computed: single at least."""
    return torch.finfo(torch.promote_types(dtype, torch.float32)).eps


@examples(50)
@given(
    st.sampled_from([2, 4, 6]),
    st.sampled_from(["half", "interleaved"]),
    BASES,
    st.sampled_from([1, 0.25, 2]),
    SIZES,
    SIZES,
    st.integers(0, 300),
    DTYPES,
)
def test_rotary_equals_rotation_matrices(
    dim, layout, base, scale, queries, keys, offset, dtype
):  # fmt: skip
    """The last query stands at the last key; the numbers of heads may differ."""
    xs = [normal(2, h, n, dim, dtype=dtype) for h, n in ((2, queries), (1, keys))]
    scheme = Rotary(dim, base=base, layout=layout, scale=scale)
    firsts = offset + keys - queries, offset
    for x, ours, first in zip(xs, scheme.rotate(*xs, offset), firsts, strict=True):
        wanted = x.to(DOUBLE, copy=True)
        for t in range(x.shape[-2]):
            wanted[..., t, :] @= turn((first + t) * scale, dim, layout, base).mT
        # an angle is rounded at its own size
        atol = 40 * exact(dtype) * (10 + scale * (offset + 6))
        assert ours.dtype == dtype
        assert_close(ours.double(), wanted, atol=atol, rtol=torch.finfo(dtype).eps)


@examples(50)
@given(st.integers(1, 7), BASES, SIZES, SIZES, st.booleans(), DTYPES)
def test_what_is_added_to_the_embeddings(dim, base, length, offset, learned, dtype):
    scheme = Learned(length + offset, dim) if learned else Sinusoidal(dim, base)
    x = normal(2, length, dim, dtype=dtype)
    before, wanted = x.clone(), x.to(DOUBLE, copy=True)
    for t, j in product(range(length), range(dim)):
        angle = (offset + t) / base ** (2 * (j // 2) / dim)
        wave = math.cos(angle) if j % 2 else math.sin(angle)
        wanted[:, t, j] += scheme.table[offset + t, j].item() if learned else wave
    found, once = scheme.embed(x, offset), torch.finfo(dtype).eps
    assert found.dtype == dtype and torch.equal(x, before)
    atol = 2 * once + 100 * exact(dtype)  # what is added is rounded, and the sum
    assert_close(found.double(), wanted, atol=atol, rtol=once)


def bucket_of(distance, buckets, most):
    """Return the bucket of one distance, by comparing whole fractions only."""
    exact, wide = buckets // 2, buckets - buckets // 2
    if distance < exact:
        return max(distance, 0)
    grown, full = Fraction(distance, exact), Fraction(most, exact)
    return exact + max(k for k in range(wide) if grown**wide >= full**k)


def slopes_of(n):
    """Return the slopes as the authors write them down."""
    power = 2 ** (len(bin(n)) - 3)
    if power == n:
        return [2 ** (-8 * i / n) for i in range(1, n + 1)]
    return slopes_of(power) + slopes_of(2 * power)[::2][: n - power]


@examples(50)
@given(st.integers(1, 40), st.integers(2, 24), st.integers(1, 80), SIZES, SIZES)
def test_biases(heads, buckets, beyond, queries, keys):
    most = buckets // 2 + beyond
    t5 = T5Bias(3, num_buckets=buckets, max_distance=most)
    nn.init.normal_(t5.table)  # it starts at 0, equal for all distances
    slopes = -torch.tensor(slopes_of(heads))
    relative = torch.arange(-100, 3)
    found = t5_bucket(relative, num_buckets=buckets, max_distance=most)
    assert found.tolist() == [bucket_of(-r, buckets, most) for r in relative.tolist()]
    for scheme in (ALiBi(heads), t5):
        found = scheme.bias(queries, keys)
        assert found.shape == (1, scheme.num_heads, queries, keys)
        for i, j in product(range(queries), range(keys)):
            back = max(i + keys - queries - j, 0)
            row = t5.table[bucket_of(back, buckets, most)]
            wanted = row if scheme is t5 else slopes * back
            assert_close(found[0, :, i, j], wanted, atol=0, rtol=1e-6)


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
        (YaRN(16, 64, 4.0, fast=8, slow=2), 256,
         scaling("yarn", beta_fast=8, beta_slow=2, **YARN)),
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


def test_a_fixed_ntk_base_is_dynamic_only_at_one_length():
    """With factor=1 at `factor` times the length, and at no other."""
    dynamic, fixed = DynamicNTK(16, 64), Rotary(16, base=10000 * 4 ** (16 / 14))
    assert_close(dynamic.frequencies(256), fixed.frequencies(256))
    assert torch.equal(dynamic.frequencies(64), Rotary(16).frequencies(64))
    assert (dynamic.frequencies(128) > 1.1 * fixed.frequencies(128))[1:].all()
    growing = DynamicNTK(16, 64, factor=4.0)  # 4 * 4 - 3, not 4
    base = 10000 * 13 ** (16 / 14)
    assert_close(growing.frequencies(256), Rotary(16, base=base).frequencies(256))


def test_yarn_keeps_the_fast_pairs_and_interpolates_the_slow_ones():
    """By the turns in training; a ramp between; the scores are multiplied, too."""
    plain, yarn = Rotary(64).frequencies(1), YaRN(64, 512, 4.0).frequencies(1)
    turns, kept = 512 * plain / (2 * math.pi), yarn / plain
    assert_close(kept[turns >= 32], torch.ones(int((turns >= 32).sum())))
    assert_close(kept[turns <= 0.7], torch.full((int((turns <= 0.7).sum()),), 0.25))
    assert (kept.diff() <= 0).all() and len(kept.unique()) > 8
    x = normal(1, 1, 5, 64)
    factor = YaRN(64, 512, 4.0).rotate(x, x)[0].norm() / x.norm()
    assert factor.item() == pytest.approx(0.1 * math.log(4) + 1)
    assert_close(YaRN(64, 512, 1.0).rotate(x, x), Rotary(64).rotate(x, x))


def test_rotary_interleaved_equals_gptj():
    query, key = normal(2, 4, 9, 16), normal(2, 2, 9, 16, seed=1)
    table = modeling_gptj.create_sinusoidal_positions(7 + 9, 16)[7:]
    sin, cos = table[None].chunk(2, dim=-1)  # sines first
    ours = Rotary(16, layout="interleaved").rotate(query, key, 7)
    for found, x in zip(ours, (query, key), strict=True):
        theirs = modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos)
        assert_close(found, theirs.transpose(1, 2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("buckets, most", [(32, 128), (16, 16), (8, 32), (64, 512)])
def test_t5_buckets_equal_t5(buckets, most):
    relative = torch.arange(-3 * most, 3 * most + 1)
    sizes = {"num_buckets": buckets, "max_distance": most}
    theirs = T5Attention._relative_position_bucket(relative, False, **sizes)
    assert torch.equal(t5_bucket(relative, **sizes), theirs)


@pytest.mark.parametrize("num_heads", [1, 3, 4, 12, 16, 20])
def test_alibi_equals_bloom_and_mpt(num_heads):
    ours = ALiBi(num_heads).bias(L, L)[0]
    mpt = build_mpt_alibi_tensor(num_heads, L)[:, 0]  # the last query's row
    assert_close(ours[:, -1], mpt, atol=0, rtol=1e-6)
    bloom = build_alibi_tensor(torch.ones(1, L), num_heads, torch.float32)
    scores, hidden = normal(num_heads, L, L), ~causal_mask(L)
    weights = [  # Bloom's is slope * key position: equal after the softmax
        (scores + bias).masked_fill(hidden, -math.inf).softmax(-1)
        for bias in (ours, bloom)
    ]
    assert_close(*weights, atol=1e-6, rtol=0)


# --- in the layer ---


class Reader(nn.Module):
    """One scheme in all its places: added to the input, and inside the layer."""

    def __init__(self, name, seed=0, **options):
        super().__init__()
        self.position = scheme_of(name, seed)
        self.attention = MultiHeadAttention(E, H, position=self.position, **options)

    def forward(self, x, mask=None, *, need_weights=False, cache=None):
        past = cache["key"].shape[-2] if cache else 0
        x = self.position.embed(x, offset=past)
        return self.attention(x, mask=mask, need_weights=need_weights, cache=cache)


def test_every_scheme_overrides_exactly_one_method():
    assert NoPE is PositionScheme
    for scheme, method in METHODS.items():
        assert {"embed", "rotate", "bias"} & set(vars(scheme)) == {method}
        assert issubclass(scheme, PositionScheme)
    x, q, k, scheme = normal(B, L, E), normal(B, H, L, D), normal(B, 2, L, D), NoPE()
    assert scheme.embed(x, 3) is x
    assert scheme.rotate(q, k, 3) == (q, k) and scheme.bias(2, 5) is None


@pytest.mark.parametrize("num_kv_heads", [H, 2, 1])
@every_scheme
def test_in_the_layer(name, num_kv_heads):
    """Both kernels and their gradients; the last queries alone; a cache."""
    reader, x = Reader(name, num_kv_heads=num_kv_heads), normal(B, L, E)
    for mask in (None, causal_mask(L)):
        results = []
        for need_weights in (False, True):
            output, weights = reader(x, mask, need_weights=need_weights)
            loss = (output * normal(B, L, E, seed=1)).sum()
            results.append([output, *gradients(loss, reader)])
        assert_close(*results, atol=2e-5, rtol=1e-4)
    whole, placed = output, reader.position.embed(x)
    for queries in (1, 2):
        parts, mask = (placed[:, -queries:], placed), causal_mask(queries, L)
        part = reader.attention(*parts, mask=mask, need_weights=True)
        assert_close(part[0], whole[:, -queries:], atol=1e-5, rtol=1e-5)
        assert_close(part[1], weights[:, :, -queries:], atol=1e-5, rtol=1e-5)
    for sizes in ([1] * L, [2, 1, 4]):
        cache, parts, seen = {}, [], 0
        for part in x.split(sizes, dim=1):
            seen += part.shape[1]
            mask = causal_mask(part.shape[1], seen)
            parts.append(reader(part, mask, cache=cache)[0])
        assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-5)
        assert cache["key"].shape == (B, num_kv_heads, L, D)  # kept once for a group


# --- what is kept, and in which precision ---


def test_scale_and_base_are_those_of_the_moment():
    """So that a trained model can be stretched to longer texts."""
    rotary, x = Rotary(D), normal(1, 1, 4 * L, D)
    rotary.scale = 0.25  # position 4 t takes the angles of t
    squeezed = rotary.rotate(x, x)[0][:, :, ::4]
    assert_close(squeezed, rotate_pairs(x[:, :, ::4], rotary_angles(L, D)))
    rotary.scale, rotary.base = 1.0, 50.0
    assert_close(rotary.rotate(x, x)[0], Rotary(D, base=50.0).rotate(x, x)[0])


@every_scheme
def test_only_tables_are_saved_and_copies_are_equal(name):
    reader, x = Reader(name), normal(B, L, E)
    tables = {"table"} if name in ("learned", "t5") else set()
    assert set(reader.position.state_dict()) == tables
    other = Reader(name, seed=1)
    other.load_state_dict(reader.state_dict())
    for twin in (other, copy.deepcopy(reader)):
        assert_close(twin(x)[0], reader(x)[0], atol=0, rtol=0)


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
REFUSED = [
    (ValueError, r"angles \(5, 1\)", lambda: Rotary(2).rotate(Q, Q)),
    (ValueError, r"\(1, 2\); give", lambda: rotate_pairs(Q, rotary_angles(1, D))),
    (ValueError, r"angles \(2,\)", lambda: rotate_pairs(Q, torch.zeros(2))),
    (TypeError, "x is torch.int64", lambda: Rotary(4).rotate(Q.long(), Q)),
    (ValueError, "position 6, but.*max_length=6", lambda: Learned(6, E).embed(X, 2)),
    (ValueError, "offset is -6", lambda: Learned(9, E).embed(X, -6)),
    (ValueError, "embed_dim=1", lambda: Sinusoidal(1).embed(X)),
    (ValueError, r"\(16, 16\); give floats", lambda: Learned(E, E).embed(torch.eye(E))),
    (ValueError, "x is torch.int64", lambda: Sinusoidal(E).embed(X.long())),
    (ValueError, "16, .* reach up to 16", lambda: T5Bias(4, max_distance=16)),
    (ValueError, "layout='halves'; give", lambda: Rotary(4, layout="halves")),
    (ValueError, "scale=-1; give", lambda: Rotary(4, scale=-1)),
    (ValueError, "scale=0; give", lambda: Rotary(4, scale=0)),
    (ValueError, "factor=-1; give", lambda: DynamicNTK(16, 64, factor=-1)),
    (ValueError, "factor=0.5; give", lambda: YaRN(16, 64, 0.5)),
    (ValueError, "trained_length=-5; give 1 ", lambda: DynamicNTK(16, -5)),
    (ValueError, "trained_length=3; give 7 ", lambda: YaRN(64, 3, 4.0)),
    (ValueError, "trained_length=7; give 13 ", lambda: YaRN(64, 7, 4.0, slow=2)),
    (ValueError, "fast=1, slow=32; give", lambda: YaRN(64, 999, 4.0, fast=1, slow=32)),
    *[(ValueError, f"position has {what}, the layer",
       lambda scheme=scheme: MultiHeadAttention(E, H, position=scheme))
      for what, scheme in [("num_heads=8", ALiBi(8)), ("num_heads=1", T5Bias(1)),
                           ("head_dim=16", Rotary(E))]],
]  # fmt: skip


@pytest.mark.parametrize("error, says, call", REFUSED)
def test_what_does_not_fit_is_refused(error, says, call):
    with pytest.raises(error, match=says):
        call()
