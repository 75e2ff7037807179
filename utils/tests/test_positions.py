"""Every position scheme in the layer: kernels, groups, lengths, cache, graphs, vmap."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
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
    relative_positions,
    rotary_angles,
    rotate_pairs,
    sinusoidal,
    t5_bucket,
    t5_first_distances,
)

B, L, E, H, D = 3, 6, 16, 4, 4
SCHEMES = {
    "nope": NoPE,
    "learned": lambda: Learned(L + 3, E),
    "sinusoidal": lambda: Sinusoidal(E),
    "rotary half": lambda: Rotary(D),
    "rotary interleaved": lambda: Rotary(D, layout="interleaved", scale=0.5),
    "alibi": lambda: ALiBi(H),
    "alibi symmetric": lambda: ALiBi(H, causal=False, slopes="paper"),
    "t5": lambda: T5Bias(H, num_buckets=4, max_distance=5),
    "t5 symmetric": lambda: T5Bias(H, num_buckets=8, max_distance=5, causal=False),
}
every_scheme = pytest.mark.parametrize("name", SCHEMES)


def randn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


class Reader(nn.Module):
    """One scheme in all its places: added to what is read, and inside the layer."""

    def __init__(self, name, seed=0, **options):
        super().__init__()
        torch.manual_seed(seed)
        self.position = SCHEMES[name]()
        for table in self.position.parameters():
            nn.init.normal_(table)
        self.attention = MultiHeadAttention(E, H, position=self.position, **options)

    def forward(self, x, mask=None, *, need_weights=False, cache=None):
        past = cache["key"].shape[-2] if cache else 0
        x = self.position.embed(x, offset=past)
        return self.attention(x, mask=mask, need_weights=need_weights, cache=cache)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


def hooks_of(scheme):
    return {"embed", "rotate", "bias"} & set(vars(scheme))


def test_every_scheme_overrides_exactly_one_hook():
    assert NoPE is PositionScheme
    expected = {
        Learned: {"embed"},
        Sinusoidal: {"embed"},
        Rotary: {"rotate"},
        ALiBi: {"bias"},
        T5Bias: {"bias"},
    }
    for scheme, hooks in expected.items():
        assert hooks_of(scheme) == hooks and scheme.__bases__ == (PositionScheme,)


def test_nope_does_nothing():
    x, q, k = randn(B, L, E), randn(B, H, L, D), randn(B, 2, L, D)
    scheme = NoPE()
    assert scheme.embed(x, 3) is x
    assert scheme.rotate(q, k, 3) == (q, k) and scheme.bias(2, 5) is None


@pytest.mark.parametrize("num_kv_heads", [H, 2, 1])
@pytest.mark.parametrize("mask", [None, causal_mask(L)])
@every_scheme
def test_fused_equals_written_out_with_gradients(name, mask, num_kv_heads):
    reader, x = Reader(name, num_kv_heads=num_kv_heads), randn(B, L, E)
    results = []
    for need_weights in (False, True):
        x = x.detach().requires_grad_()
        output, _ = reader(x, mask, need_weights=need_weights)
        loss = (output * randn(B, L, E, seed=1)).sum()
        wanted = [x, *reader.parameters()]
        results.append([output, *torch.autograd.grad(loss, wanted)])
    assert_close(*results, atol=2e-5, rtol=1e-4)
    for table in reader.position.parameters():
        assert table.requires_grad
    grads = dict(zip([n for n, _ in reader.named_parameters()], results[0][2:]))
    if "position.table" in grads:
        assert (grads["position.table"] != 0).any()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("num_kv_heads", [H, 2])
@every_scheme
def test_the_last_queries_of_more_keys(name, num_kv_heads, need_weights):
    reader = Reader(name, num_kv_heads=num_kv_heads)
    x = reader.position.embed(randn(B, L, E))
    whole, weights = reader.attention(x, mask=causal_mask(L), need_weights=True)
    for queries in (1, 2, L):
        part = reader.attention(
            x[:, -queries:],
            x,
            mask=causal_mask(queries, L),
            need_weights=need_weights,
        )
        assert_close(part[0], whole[:, -queries:], atol=1e-5, rtol=1e-5)
        if need_weights:
            assert_close(part[1], weights[:, :, -queries:], atol=1e-5, rtol=1e-5)


@every_scheme
def test_more_queries_than_keys(name):
    """The first queries then stand before the first key, wherever that is."""
    scheme, more = Reader(name).position, 3
    q, k = randn(B, H, L, D), randn(B, H, L, D, seed=1)
    whole, part = scheme.rotate(q, k, 7), scheme.rotate(q, k[:, :, more:], 7 + more)
    assert_close(part[0], whole[0])
    assert_close(part[1], whole[1][:, :, more:])
    far = scheme.rotate(q[:, :, :1], k[:, :, :0], 1)[0]  # at position 0
    if "rotary" in name:
        assert_close(far, q[:, :, :1])
    if hooks_of(type(scheme)) == {"bias"}:
        assert_close(scheme.bias(L, L - more), scheme.bias(L, L)[..., more:])


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("num_kv_heads", [H, 2])
@every_scheme
def test_with_a_cache_equals_without(name, num_kv_heads, need_weights):
    reader, x = Reader(name, num_kv_heads=num_kv_heads), randn(B, L, E)
    whole, _ = reader(x, causal_mask(L))
    for sizes in ([1] * L, [2, 1, 3], [L]):
        cache, parts, seen = {}, [], 0
        for part in x.split(sizes, dim=1):
            seen += part.shape[1]
            mask = causal_mask(part.shape[1], seen)[None, None]
            parts.append(reader(part, mask, need_weights=need_weights, cache=cache)[0])
        assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-5)


@every_scheme
def test_positions_matter_where_they_should(name):
    """A scheme that was forgotten on the way would pass the tests of equality."""
    reader, x = Reader(name), randn(1, L, E)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    moved = (reader(x[:, order])[0] - reader(x)[0][:, order]).abs().max()
    assert moved < 1e-5 if name == "nope" else moved > 1e-3


# --- the hooks ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
def test_embed_adds_along_the_length_from_the_offset_on(name):
    scheme = Reader(name).position
    table = scheme.table if name == "learned" else sinusoidal(L + 3, E)
    for batch, length, offset in (
        (3, 3, 0),
        (2, L, 3),
        (0, L, 0),
        (2, 0, 1),
        (1, 1, 8),
    ):
        x = randn(batch, length, E)
        expected = x + table[offset : offset + length].expand(batch, -1, -1)
        assert_close(scheme.embed(x, offset), expected, atol=1e-6, rtol=0)
        assert torch.equal(x, randn(batch, length, E))  # not edited


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotate_of_two_parts_is_that_of_the_whole(layout):
    scheme, q, k = Rotary(D, layout=layout), randn(B, H, L, D), randn(B, 2, L, D)
    whole = scheme.rotate(q, k, offset=5)
    first = scheme.rotate(q[:, :, :2], k[:, :, :2], offset=5)
    second = scheme.rotate(q[:, :, 2:], k[:, :, 2:], offset=7)
    for i in (0, 1):
        assert_close(torch.cat([first[i], second[i]], dim=2), whole[i])
    assert (scheme.rotate(q, k)[0] - whole[0]).abs().max() > 0.1
    assert torch.equal(q, randn(B, H, L, D)) and torch.equal(k, randn(B, 2, L, D))


def test_scale_and_base_are_read_at_every_call():
    """So that a trained model can be stretched to longer texts."""
    rotary, x = Rotary(D), randn(1, 1, 4 * L, D)
    plain = rotary.rotate(x, x)[0]
    rotary.scale = 0.25  # position 4 t takes the angles of t
    squeezed = rotary.rotate(x, x)[0]
    angles = rotary_angles(L, D)
    assert_close(squeezed[:, :, ::4], rotate_pairs(x[:, :, ::4], angles))
    rotary.scale, rotary.base = 1.0, 50.0
    assert_close(rotary.rotate(x, x)[0], Rotary(D, base=50.0).rotate(x, x)[0])
    assert (rotary.rotate(x, x)[0] - plain).abs().max() > 0.1


def test_sinusoidal_takes_its_base():
    x = torch.zeros(1, L, E)
    assert_close(Sinusoidal(E, base=50.0).embed(x)[0], sinusoidal(L, E, base=50.0))
    assert (sinusoidal(L, E, base=50.0) - sinusoidal(L, E)).abs().max() > 0.1


def test_bias_is_shaped_for_the_scores():
    for scheme in (ALiBi(H), T5Bias(H)):
        for queries, keys in ((1, 1), (2, 5), (5, 2), (0, 3), (3, 0)):
            bias = scheme.bias(queries, keys)
            assert bias.shape == (1, H, queries, keys) and bias.dtype == torch.float32


def test_t5_takes_the_row_of_its_bucket():
    scheme = Reader("t5 symmetric").position
    bias = scheme.bias(3, 5)
    for i in range(3):
        for j in range(5):
            ahead = torch.tensor(j - (i + 2))
            bucket = t5_bucket(ahead, num_buckets=8, max_distance=5, causal=False)
            assert torch.equal(bias[0, :, i, j], scheme.table[bucket])


def test_one_t5_table_in_two_layers():
    scheme = Reader("t5").position
    layers = [MultiHeadAttention(E, H, position=scheme) for _ in range(2)]
    x, together = randn(B, L, E), []
    for layer in layers:
        (one,) = torch.autograd.grad(layer(x)[0].square().sum(), scheme.table)
        together.append(one)
    loss = sum(layer(x)[0].square().sum() for layer in layers)
    (both,) = torch.autograd.grad(loss, scheme.table)
    assert_close(both, together[0] + together[1], atol=1e-5, rtol=1e-4)
    assert len(list(nn.ModuleList(layers).parameters())) == 2 * 8 + 1


def test_tables_as_drawn():
    torch.manual_seed(0)
    learned, t5 = Learned(100, 64), T5Bias(H)
    assert learned.table.shape == (100, 64) and t5.table.shape == (32, H)
    assert 0.019 < learned.table.std() < 0.021 and abs(learned.table.mean()) < 0.002
    assert (t5.table == 0).all() and t5.first == t5_first_distances(32, 128)
    nn.init.ones_(t5.table)
    nn.init.ones_(learned.table)
    t5.reset_parameters()
    learned.reset_parameters()
    assert (t5.table == 0).all() and (learned.table != 1).all()


@every_scheme
def test_only_tables_are_saved_and_copies_are_equal(name):
    reader, x = Reader(name), randn(B, L, E)
    saved = set(reader.position.state_dict())
    assert saved == ({"table"} if name[:2] in ("le", "t5") else set())
    other = Reader(name, seed=1)
    other.load_state_dict(reader.state_dict())
    for twin in (other, copy.deepcopy(reader)):
        assert_close(twin(x)[0], reader(x)[0], atol=0, rtol=0)


# --- precision ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_angles_are_never_half(dtype, layout):
    scheme = Rotary(D, layout=layout)
    q = randn(1, H, L, D).to(dtype)
    found = scheme.rotate(q, q, offset=4097)
    expected = scheme.rotate(q.float(), q.float(), offset=4097)
    for ours, exact in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        assert_close(ours, exact.to(dtype), atol=0, rtol=0)  # rounded once, at the end


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sinusoids_are_never_computed_in_half(dtype):
    x = torch.zeros(1, L, E, dtype=dtype)
    found = Sinusoidal(E).embed(x, offset=4097)
    assert found.dtype == dtype
    assert_close(found[0], sinusoidal(L, E, offset=4097).to(dtype), atol=0, rtol=0)


def test_double_is_kept():
    rotary, x = Rotary(D), randn(1, 1, L, D, dtype=torch.float64)
    scores = [q @ k.mT for q, k in (rotary.rotate(x, x, n) for n in (0, 100000))]
    assert_close(*scores, atol=1e-9, rtol=0)
    waves = Sinusoidal(E).embed(torch.zeros(1, L, E, dtype=torch.float64), 1000)
    assert waves.dtype == torch.float64
    assert_close(waves.square().sum(-1), torch.full_like(waves[..., 0], E / 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
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
    reader, x = Reader(name), randn(B, L, E)
    with torch.no_grad():
        exact = reader(x, causal_mask(L))[0]
        with torch.autocast("cpu", torch.bfloat16):
            mixed = reader(x, causal_mask(L), need_weights=need_weights)[0]
        half = copy.deepcopy(reader).to(torch.bfloat16)
        low = half(x.bfloat16(), causal_mask(L), need_weights=need_weights)[0]
    assert low.dtype == torch.bfloat16
    assert_close(mixed.float(), exact, atol=6e-2, rtol=0)
    assert_close(low.float(), exact, atol=6e-2, rtol=0)


# --- graphs and copies --------------------------------------------------------------


@every_scheme
def test_compiles_whole(name):
    reader, x = Reader(name, num_kv_heads=2), randn(B, L, E)
    compiled = torch.compile(reader, fullgraph=True, backend="aot_eager")
    results = []
    for call in (reader, compiled):
        output, _ = call(x, causal_mask(L))
        grads = torch.autograd.grad(output.square().sum(), [*reader.parameters()])
        results.append([output, *grads])
    assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["learned", "rotary half", "t5"])
def test_compiles_whole_with_a_cache(name):
    reader, x = Reader(name), randn(B, L, E)
    compiled = torch.compile(reader, fullgraph=True, backend="aot_eager")
    cache, seen, parts = {}, 0, []
    with torch.no_grad():
        for part in x.split([4, 1, 1], dim=1):
            seen += part.shape[1]
            parts.append(compiled(part, causal_mask(part.shape[1], seen), cache=cache))
        whole = reader(x, causal_mask(L))[0]
    assert_close(torch.cat([p[0] for p in parts], dim=1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["rotary half", "t5"])
def test_compiles_once_for_varying_lengths(name):
    reader, graphs = Reader(name), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(reader, fullgraph=True, backend=count, dynamic=True)
    with torch.no_grad():
        for length in (3, 5, 8):
            x = randn(B + 1, length, E)
            assert_close(compiled(x)[0], reader(x)[0])
    assert len(graphs) == 1


@every_scheme
def test_exports(name):
    reader, x = Reader(name).eval(), randn(B, L, E)
    strict = name in ("learned", "rotary half", "t5")  # slower: through the compiler
    program = torch.export.export(reader, (x, causal_mask(L)), strict=strict)
    assert_close(program.module()(x, causal_mask(L))[0], reader(x, causal_mask(L))[0])


def stacked(readers):
    """Return (call(params, buffers, x, …), params, buffers) of readers in a stack."""
    params, buffers = stack_module_state(readers)

    def call(params, buffers, *args, **options):
        # The scheme is ONE module under two names. With tied weights, functional_call
        # would exchange its table twice, and not put the first one back.
        return functional_call(
            readers[0], (params, buffers), args, options, tie_weights=False
        )

    return call, params, buffers


@pytest.mark.parametrize("no_grad", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@every_scheme
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_over_weights_and_tables(name, need_weights, no_grad):
    readers = [Reader(name, seed, num_kv_heads=2) for seed in range(3)]
    call, params, buffers = stacked(readers)
    x, mask = randn(3, B, L, E), causal_mask(L)  # each copy reads its own text

    def output(params, buffers, x):
        return call(params, buffers, x, mask, need_weights=need_weights)[0]

    with torch.no_grad() if no_grad else contextlib.nullcontext():
        found = vmap(output)(params, buffers, x)
        for i, reader in enumerate(readers):
            expected = reader(x[i], mask, need_weights=need_weights)[0]
            assert_close(found[i], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
@every_scheme
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_over_gradients(name, need_weights):
    readers = [Reader(name, seed) for seed in range(3)]
    call, params, buffers = stacked(readers)
    x, mask = randn(B, L, E), causal_mask(L)

    def loss(params, buffers):
        return (
            call(params, buffers, x, mask, need_weights=need_weights)[0].square().sum()
        )

    found = vmap(grad(loss))(params, buffers)
    for i, reader in enumerate(readers):
        names, weights = zip(*reader.named_parameters(), strict=True)
        alone = reader(x, mask)[0].square().sum()
        grads = torch.autograd.grad(alone, weights)
        together = [found[name][i] for name in names]
        assert_close(together, list(grads), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_gradients_of_a_rotation_are_right(layout):
    scheme = Rotary(D, layout=layout)
    q = randn(1, 1, 3, D, dtype=torch.float64).requires_grad_()
    k = randn(1, 1, 2, D, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: scheme.rotate(q, k, 3), (q, k))


# --- errors -------------------------------------------------------------------------

X = torch.zeros(2, 5, E)
Q = torch.zeros(2, H, 5, D)
ANGLES = rotary_angles(5, D)


@pytest.mark.parametrize(
    "error, says, call",
    [
        (ValueError, "head_dim is 5; .* even", lambda: Rotary(5)),
        (ValueError, "head_dim is 0; .* at least 2", lambda: Rotary(0)),
        (TypeError, "head_dim is 4.0", lambda: Rotary(4.0)),
        (ValueError, "layout is 'neox'; give one of 'half', 'interleaved'",
         lambda: Rotary(4, layout="neox")),
        (ValueError, "layout is None", lambda: rotate_pairs(Q, ANGLES, layout=None)),
        (ValueError, "base is 0", lambda: Rotary(4, base=0)),
        (TypeError, "base is a str", lambda: Rotary(4, base="10000")),
        (ValueError, "scale is -1", lambda: Rotary(4, scale=-1)),
        (ValueError, "scale is inf", lambda: Rotary(4, scale=float("inf"))),
        (TypeError, "scale is a bool", lambda: Rotary(4, scale=True)),
        (ValueError, "head_dim is 3", lambda: rotary_angles(5, 3)),
        (ValueError, r"query has shape .*head_dim=8", lambda: Rotary(8).rotate(Q, Q)),
        (ValueError, r"key has shape .*head_dim=4", lambda: Rotary(4).rotate(Q, X)),
        (TypeError, "query is torch.int64", lambda: Rotary(4).rotate(Q.long(), Q)),
        (TypeError, "key is a list", lambda: Rotary(4).rotate(Q, [1.0])),
        (ValueError, "offset is -1", lambda: Rotary(4).rotate(Q, Q, -1)),
        (TypeError, "offset is 1.5", lambda: Rotary(4).rotate(Q, Q, 1.5)),
        (ValueError, r"x has shape \(2, 4, 5, 4\), the angles \(6, 2\)",
         lambda: rotate_pairs(Q, rotary_angles(6, D))),
        (ValueError, r"angles \(5, 3\)", lambda: rotate_pairs(Q, rotary_angles(5, 6))),
        (ValueError, r"angles \(2,\)", lambda: rotate_pairs(Q, ANGLES[0])),
        (ValueError, "max_length is 0", lambda: Learned(0, E)),
        (TypeError, "embed_dim is '16'", lambda: Learned(5, "16")),
        (ValueError, "positions up to 4 are .* .length 5, offset 0.*max_length=4",
         lambda: Learned(4, E).embed(X)),
        (ValueError, "positions up to 6 .*offset 2.*max_length=6",
         lambda: Learned(6, E).embed(X, 2)),
        (ValueError, "offset is -1", lambda: Learned(9, E).embed(X, -1)),
        (ValueError, "x has 16 features .*=8", lambda: Learned(9, 8).embed(X)),
        (ValueError, "x has 16 features .*=8", lambda: Sinusoidal(8).embed(X)),
        (ValueError, r"x has shape \(5, 16\); give \(batch, length, embed_dim=16\)",
         lambda: Sinusoidal(E).embed(X[0])),
        (TypeError, "x is torch.int64", lambda: Sinusoidal(E).embed(X.long())),
        (TypeError, "offset is True", lambda: Sinusoidal(E).embed(X, True)),
        (ValueError, "embed_dim is 0", lambda: Sinusoidal(0)),
        (ValueError, "base is nan", lambda: Sinusoidal(E, base=float("nan"))),
        (ValueError, "length is -1", lambda: sinusoidal(-1, 4)),
        (ValueError, "num_heads is 0", lambda: ALiBi(0)),
        (TypeError, "num_heads is 4.0", lambda: ALiBi(4.0)),
        (ValueError, "slopes is 'code'; give one of 'official', 'paper'",
         lambda: ALiBi(4, slopes="code")),
        (ValueError, "key_length is -1", lambda: ALiBi(4).bias(2, -1)),
        (TypeError, "query_length is 2.0", lambda: T5Bias(4).bias(2.0, 2)),
        (ValueError, "num_heads is 0", lambda: T5Bias(0)),
        (ValueError, "num_buckets is 1", lambda: T5Bias(4, num_buckets=1)),
        (ValueError, "num_buckets is 2; .* at least 4",
         lambda: T5Bias(4, num_buckets=2, causal=False)),
        (ValueError, "num_buckets is 9; .* even",
         lambda: T5Bias(4, num_buckets=9, causal=False)),
        (ValueError, "max_distance is 16, .* reach up to 16",
         lambda: T5Bias(4, max_distance=16)),
        (TypeError, "max_distance is 128.0", lambda: t5_first_distances(32, 128.0)),
        (TypeError, "whole numbers", lambda: t5_bucket(torch.tensor([1.0]))),
        (TypeError, "whole numbers", lambda: t5_bucket(5)),
        (ValueError, "query_length is -2", lambda: relative_positions(-2, 2)),
        (ValueError, "position was built with num_heads=8 but .* num_heads=4",
         lambda: MultiHeadAttention(E, H, position=ALiBi(8))),
        (ValueError, "position was built with num_heads=1 but .* num_heads=4",
         lambda: MultiHeadAttention(E, H, position=T5Bias(1))),
        (ValueError, "position was built with head_dim=16 but .* head_dim=4",
         lambda: MultiHeadAttention(E, H, position=Rotary(E))),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(error, says, call):
    with pytest.raises(error, match=says):
        call()


def test_a_text_that_outgrows_its_table_in_a_cache_is_refused():
    reader, cache = Reader("learned"), {}
    reader(randn(B, L, E), cache=cache)
    reader(randn(B, 3, E), cache=cache)
    with pytest.raises(ValueError, match="positions up to 9 .*max_length=9"):
        reader(randn(B, 1, E), cache=cache)
