"""Every position scheme in the layer: kernels, groups, lengths, cache and vmap."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, causal_mask
from utils.positions import (
    ALiBi,
    Learned,
    NoPE,
    PositionScheme,
    Rotary,
    Sinusoidal,
    T5Bias,
    alibi_slopes,
    rotary_angles,
    rotate_pairs,
    sinusoidal,
    t5_bucket,
    t5_first_distances,
)
from utils.tests.helpers import SCHEMES, gradients, normal, scheme_of

B, L, E, H = 3, 7, 16, 4  # batch, length, embed_dim, heads
D = E // H
every_scheme = pytest.mark.parametrize("name", SCHEMES)
both_layouts = pytest.mark.parametrize("layout", ["half", "interleaved"])
low_precision = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


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


METHODS = {Learned: "embed", Sinusoidal: "embed", Rotary: "rotate"}
METHODS |= {ALiBi: "bias", T5Bias: "bias"}


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
    for queries in (1, 2, L):
        parts, mask = (placed[:, -queries:], placed), causal_mask(queries, L)
        for need_weights in (False, True):
            part = reader.attention(*parts, mask=mask, need_weights=need_weights)
            assert_close(part[0], whole[:, -queries:], atol=1e-5, rtol=1e-5)
        assert_close(part[1], weights[:, :, -queries:], atol=1e-5, rtol=1e-5)
    for sizes in ([1] * L, [2, 1, 4], [L]):
        cache, parts, seen = {}, [], 0
        for part in x.split(sizes, dim=1):
            seen += part.shape[1]
            mask = causal_mask(part.shape[1], seen)
            parts.append(reader(part, mask, cache=cache)[0])
        assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-5)
        assert cache["key"].shape == (B, num_kv_heads, L, D)  # kept once for a group


@every_scheme
def test_more_queries_than_keys(name):
    """The first queries then stand before the first key, wherever that is."""
    scheme, more = scheme_of(name), 3
    q, k = normal(B, H, L, D), normal(B, H, L, D, seed=1)
    whole, part = scheme.rotate(q, k, 7), scheme.rotate(q, k[:, :, more:], 7 + more)
    assert_close(part, (whole[0], whole[1][:, :, more:]))
    far = scheme.rotate(q[:, :, :1], k[:, :, :0], 1)[0]  # at position 0
    if "rotary" in name:
        assert_close(far, q[:, :, :1])
    if METHODS.get(type(scheme)) == "bias":
        assert_close(scheme.bias(L, L - more), scheme.bias(L, L)[..., more:])


@every_scheme
def test_positions_matter_where_they_should(name):
    """A scheme that was forgotten on the way would pass the tests of equality."""
    reader, x = Reader(name), normal(1, L, E)
    order = torch.tensor([3, 1, 5, 0, 6, 2, 4])
    moved = (reader(x[:, order])[0] - reader(x)[0][:, order]).abs().max()
    assert moved < 1e-5 if name == "nope" else moved > 1e-3


# --- the methods ---


@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
@pytest.mark.parametrize(
    "batch, length, offset", [(3, 3, 0), (2, L, 3), (0, L, 0), (2, 0, 1), (1, 1, 9)]
)
def test_embed_adds_along_the_length_from_the_offset_on(name, batch, length, offset):
    scheme, x = scheme_of(name), normal(batch, length, E)
    table = scheme.table if name == "learned" else sinusoidal(L + 3, E)
    expected = x + table[offset : offset + length].expand(batch, -1, -1)
    assert_close(scheme.embed(x, offset), expected, atol=1e-6, rtol=0)
    assert torch.equal(x, normal(batch, length, E))  # not edited


def test_scale_and_base_are_read_at_every_call():
    """So that a trained model can be stretched to longer texts."""
    rotary, x = Rotary(D), normal(1, 1, 4 * L, D)
    plain = rotary.rotate(x, x)[0]
    rotary.scale = 0.25  # position 4 t takes the angles of t
    squeezed = rotary.rotate(x, x)[0][:, :, ::4]
    assert_close(squeezed, rotate_pairs(x[:, :, ::4], rotary_angles(L, D)))
    rotary.scale, rotary.base = 1.0, 50.0
    assert_close(rotary.rotate(x, x)[0], Rotary(D, base=50.0).rotate(x, x)[0])
    assert (rotary.rotate(x, x)[0] - plain).abs().max() > 0.1
    x = torch.zeros(1, L, E)
    assert_close(Sinusoidal(E, base=50.0).embed(x)[0], sinusoidal(L, E, base=50.0))
    assert (sinusoidal(L, E, base=50.0) - sinusoidal(L, E)).abs().max() > 0.1


@pytest.mark.parametrize("queries, keys", [(1, 1), (2, 5), (5, 2), (0, 3), (3, 0)])
def test_bias_is_shaped_for_the_scores(queries, keys):
    """And T5's is the row of the table that the bucket names."""
    t5 = scheme_of("t5")
    for bias in (ALiBi(H).bias(queries, keys), t5.bias(queries, keys)):
        assert bias.shape == (1, H, queries, keys) and bias.dtype == torch.float32
    buckets = {"num_buckets": len(t5.table), "max_distance": 5}
    for i in range(queries):
        for j in range(keys):
            bucket = t5_bucket(torch.tensor(j - (i + keys - queries)), **buckets)
            assert torch.equal(bias[0, :, i, j], t5.table[bucket])


def test_tables_as_drawn():
    torch.manual_seed(0)
    learned, t5 = Learned(100, 64), T5Bias(H)
    assert learned.table.shape == (100, 64) and t5.table.shape == (32, H)
    assert t5.first == t5_first_distances(32, 128) and t5_first_distances(2, 9) == [
        0,
        1,
    ]
    for _ in range(2):
        assert 0.019 < learned.table.std() < 0.021 and abs(learned.table.mean()) < 0.002
        assert (t5.table == 0).all()
        for scheme in (t5, learned):
            nn.init.ones_(scheme.table)
            scheme.reset_parameters()


@every_scheme
def test_only_tables_are_saved_and_copies_are_equal(name):
    reader, x = Reader(name), normal(B, L, E)
    tables = {"table"} if name[:2] in ("le", "t5") else set()
    assert set(reader.position.state_dict()) == tables
    other = Reader(name, seed=1)
    other.load_state_dict(reader.state_dict())
    for twin in (other, copy.deepcopy(reader)):
        assert_close(twin(x)[0], reader(x)[0], atol=0, rtol=0)


# --- precision ---


@low_precision
@both_layouts
def test_positions_are_never_computed_in_half(layout, dtype):
    scheme, q = Rotary(D, layout=layout), normal(1, H, L, D).to(dtype)
    found = scheme.rotate(q, q, offset=4097)
    expected = scheme.rotate(q.float(), q.float(), offset=4097)
    for ours, exact in zip(found, expected, strict=True):  # rounded once, at the end
        assert_close(ours, exact.to(dtype), atol=0, rtol=0)
    waves = Sinusoidal(E).embed(torch.zeros(1, L, E, dtype=dtype), offset=4097)
    assert_close(waves[0], sinusoidal(L, E, offset=4097).to(dtype), atol=0, rtol=0)


@low_precision
def test_alibi_in_half_precision(dtype):
    scheme = ALiBi(12)
    exact = scheme.bias(1, 5000)
    assert torch.equal(scheme.to(dtype).bias(1, 5000), exact)
    assert torch.equal(scheme.slopes, alibi_slopes(12))
    assert exact[0, 0, 0, :9].unique().numel() == 9  # far away, still told apart
    assert scheme.to("meta").bias(2, 3).device.type == "meta"


@pytest.mark.parametrize("need_weights", [False, True])
@every_scheme
def test_in_half_precision_and_under_autocast(name, need_weights):
    reader, x, mask = Reader(name), normal(B, L, E), causal_mask(L)
    half, options = copy.deepcopy(reader).bfloat16(), {"need_weights": need_weights}
    with torch.no_grad():
        exact, low = reader(x, mask)[0], half(x.bfloat16(), mask, **options)[0]
        with torch.autocast("cpu", torch.bfloat16):
            mixed = reader(x, mask, **options)[0]
    assert low.dtype == torch.bfloat16
    assert_close([mixed.float(), low.float()], [exact] * 2, atol=6e-2, rtol=0)


# --- copies ---


@pytest.mark.parametrize("need_weights", [False, True])
@every_scheme
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_over_weights_tables_and_gradients(name, need_weights):
    readers = [Reader(name, seed, num_kv_heads=2) for seed in range(3)]
    params, buffers = stack_module_state(readers)
    x, mask = normal(3, B, L, E), causal_mask(L)  # each copy reads its own text

    def output(params, buffers, x):
        # Without tied weights, because the scheme is ONE module under two names:
        # functional_call would exchange its table twice, and not put the first back.
        state, options = (params, buffers), {"need_weights": need_weights}
        call = functional_call(readers[0], state, (x, mask), options, tie_weights=False)
        return call[0]

    def loss(*args):
        return output(*args).square().sum()

    with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the other kernels
        with torch.no_grad():
            outputs = vmap(output)(params, buffers, x)
        grads = vmap(grad(loss))(params, buffers, x)
    for i, reader in enumerate(readers):
        alone = reader(x[i], mask)[0]
        assert_close(outputs[i], alone, atol=1e-5, rtol=1e-5)
        together = [grads[name][i] for name, _ in reader.named_parameters()]
        expected = list(gradients(alone.square().sum(), reader))
        assert_close(together, expected, atol=1e-4, rtol=1e-4)


# --- errors ---

X = torch.zeros(2, 5, E)
Q = torch.zeros(2, H, 5, D)
NAN = float("nan")
WRONG_VALUES = [
    ("head_dim is 5; .* even", lambda: Rotary(5)),
    ("head_dim is 0; .* at least 2", lambda: Rotary(0)),
    ("layout is 'neox'; give one of 'half', 'in", lambda: Rotary(4, layout="neox")),
    ("layout is None", lambda: rotate_pairs(Q, rotary_angles(5, D), layout=None)),
    *[(f"base is {base}", lambda scheme=scheme, base=base: scheme(4, base=base))
      for base in (0, -1.0, NAN) for scheme in (Rotary, Sinusoidal)],
    *[(f"scale is {scale}", lambda scale=scale: Rotary(4, scale=scale))
      for scale in (-1, NAN, float("inf"))],
    (r"x has shape .*\(5, 4\); give", lambda: Rotary(8).rotate(Q, Q)),
    (r"x .*\(2, 4, 5, 4\), the angles \(6, 2\)",
     lambda: rotate_pairs(Q, rotary_angles(6, D))),
    (r"angles \(5, 3\)", lambda: rotate_pairs(Q, rotary_angles(5, 6))),
    (r"angles \(2,\)", lambda: rotate_pairs(Q, torch.zeros(2))),
    ("position 6, .*max_length=6", lambda: Learned(6, E).embed(X, 2)),
    ("offset is -1", lambda: Learned(9, E).embed(X, -1)),
    ("embed_dim=8", lambda: Learned(9, 8).embed(X)),
    ("embed_dim=8", lambda: Sinusoidal(8).embed(X)),
    (r"x .* \(5, 16\); give \(batch, length, e", lambda: Sinusoidal(E).embed(X[0])),
    ("num_heads is 0", lambda: ALiBi(0)),
    ("formula is 'code'; give one of 'official', 'p", lambda: ALiBi(4, formula="code")),
    ("num_buckets is 1", lambda: T5Bias(4, num_buckets=1)),

    ("max_distance is 16, .* reach up to 16", lambda: T5Bias(4, max_distance=16)),
    *[(f"position has {what}, the layer", lambda scheme=scheme:
       MultiHeadAttention(E, H, position=scheme))
      for what, scheme in [("num_heads=8", ALiBi(8)), ("num_heads=1", T5Bias(1)),
                           ("head_dim=16", Rotary(E))]],
]  # fmt: skip
WRONG_TYPES = [
    ("head_dim is 4.0", lambda: Rotary(4.0)),
    ("base is a str", lambda: Rotary(4, base="10000")),
    ("scale is a bool", lambda: Rotary(4, scale=True)),
    ("x is torch.int64", lambda: Rotary(4).rotate(Q.long(), Q)),
    ("x is torch.int64", lambda: Sinusoidal(E).embed(X.long())),
    ("offset is True", lambda: Sinusoidal(E).embed(X, True)),
    ("num_heads is 4.0", lambda: ALiBi(4.0)),
    ("max_distance is 128.0", lambda: t5_first_distances(32, 128.0)),
]


@pytest.mark.parametrize(
    "error, says, call",
    [(ValueError, *case) for case in WRONG_VALUES]
    + [(TypeError, *case) for case in WRONG_TYPES],
)
def test_what_does_not_fit_is_refused(error, says, call):
    with pytest.raises(error, match=says):
        call()
