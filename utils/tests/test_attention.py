"""Attention, its layer and masks: equal to the definition and to PyTorch's.

One oracle: the definition, query by query, in double precision; autograd gives its
gradients. The inputs are drawn (`PROPERTY_EXAMPLES=5000` draws as many).
"""

import copy
import functools
import io
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.testing import assert_close

from utils.attention import (
    MultiHeadAttention,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from utils.masks import causal_mask, padding_mask
from utils.positions import ALiBi, Rotary  # noqa: F401, a row uses Rotary
from utils.tests import helpers
from utils.tests.helpers import guards, mask_of

many = helpers.examples(60)
SIZES, SEEDS, FLAGS = st.integers(1, 5), st.integers(0, 999), st.booleans()
KINDS = st.sampled_from(["none", "causal", "padding", "any", "added", "learned"])
normal = functools.partial(helpers.normal, dtype=torch.float64)


def defined(q, k, v, mask=None, scale=None):
    """The oracle: return (output, weights) by the definition; an empty row is 0."""
    scores = torch.einsum("...qd,...kd->...qk", q, k)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    mask = torch.zeros(1) if mask is None else mask
    hidden = ~mask if mask.dtype == torch.bool else mask == -math.inf
    added = torch.zeros(1) if mask.dtype == torch.bool else mask.masked_fill(hidden, 0)
    visible = ~hidden.expand(scores.shape)
    largest = scores.abs().amax().detach() + added.abs().amax()
    exps = (scores + added - largest).exp() * visible
    weights = exps / exps.sum(-1, keepdim=True).where(visible.any(-1, keepdim=True), 1)
    return torch.einsum("...qk,...kd->...qd", weights, v), weights


def slopes(output, inputs):
    """Return the gradients of some number that depends on every output."""
    loss = (output * normal(*output.shape, seed=7).to(output.dtype)).sum()
    return torch.autograd.grad(loss, inputs, materialize_grads=True)


@many
@given(SIZES, SIZES, SIZES, SIZES, SIZES, KINDS, SEEDS, FLAGS, FLAGS)
def test_attention_equals_its_definition(b, h, n, m, d, kind, seed, double, no_grad):
    dtype, tol = (torch.float64, 1e-10) if double else (torch.float32, 1e-4)
    inputs = [normal(b, h, x, d, seed=seed + i) for i, x in enumerate((n, m, m))]
    given = [x.to(dtype).requires_grad_(not no_grad) for x in inputs]
    inputs = [x.requires_grad_() for x in inputs]
    mask = mask_of(kind, b, h, n, m, seed)
    options = {"scale": 0.3} if seed % 2 else {}
    before = [x.detach().clone() for x in given]
    with torch.set_grad_enabled(not no_grad):  # without, the scores are written over
        found = scaled_dot_product_attention(*given, mask, **options)
    wanted = defined(*inputs, mask, **options)
    assert_close([x.double() for x in found], list(wanted), atol=tol, rtol=tol)
    if mask is not None and mask.dtype != torch.bool:  # a bias does what a mask does
        with torch.set_grad_enabled(not no_grad):
            biased = scaled_dot_product_attention(*given, bias=mask, **options)
        assert_close(biased, found)
    if not no_grad:
        with torch.autograd.detect_anomaly():  # no NaN, not even one that is replaced
            ours = slopes(found[0], given)
        theirs = list(slopes(wanted[0], inputs))
        assert_close([x.double() for x in ours], theirs, atol=tol, rtol=tol)
    assert all(map(torch.equal, given, before))


@many
@given(SIZES, SIZES, SIZES, KINDS, SEEDS, FLAGS, FLAGS, FLAGS)
def test_layer_equals_torchs(b, n, m, kind, seed, biased, need_weights, itself):
    """Values and gradients; empty rows get the bias of out_proj, by both kernels."""
    torch.manual_seed(seed)
    theirs = nn.MultiheadAttention(8, 4, bias=biased, batch_first=True).double()
    for name, x in theirs.named_parameters():
        if "bias" in name:
            nn.init.normal_(x)
    ours, m = MultiHeadAttention.from_torch(theirs), n if itself else m
    back = ours.to_torch().state_dict()
    assert all(torch.equal(x, back[name]) for name, x in theirs.state_dict().items())
    x, y = (normal(b, size, 8, seed=seed + size).requires_grad_() for size in (n, m))
    y = x if itself else y
    mask = mask_of(kind, b, 4, n, m, seed)
    found, weights = ours(x, y, mask=mask, need_weights=need_weights)
    projections = list(ours.children())[:3]
    q, k, v = (split_heads(p(z), 4) for p, z in zip(projections, (x, y, y)))
    heads, by_hand = defined(q, k, v, mask)
    wanted = ours.out_proj(merge_heads(heads))
    assert_close(found, wanted, atol=1e-10, rtol=1e-8)
    assert weights is None or torch.allclose(weights, by_hand, atol=1e-10)
    inputs = [x, ours.query_proj.weight, ours.value_proj.weight, ours.out_proj.weight]
    assert_close(slopes(found, inputs), slopes(wanted, inputs), atol=1e-9, rtol=1e-7)
    if kind in ("none", "causal") and (kind == "none" or n <= m):  # no empty row there
        blocked = None if mask is None else ~mask
        same, _ = theirs(x, y, y, attn_mask=blocked, need_weights=need_weights)
        assert_close(found, same, atol=1e-10, rtol=1e-8)


@many
@given(SIZES, st.sampled_from([1, 2, 4]), SEEDS, FLAGS)
def test_groups_and_cache(b, kv_heads, seed, need_weights):
    """Grouped heads are neighbours; a text in parts gives what it gives whole."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(8, 4, num_kv_heads=kv_heads).double()
    x, mask = normal(b, 6, 8, seed=seed), causal_mask(6)
    whole, _ = layer(x, mask=mask, need_weights=need_weights)
    q, k, v = (p(x).unflatten(-1, (-1, 2)) for p in list(layer.children())[:3])
    parts = [h // (4 // kv_heads) for h in range(4)]
    read = [(q[:, :, h], k[:, :, g], v[:, :, g]) for h, g in enumerate(parts)]
    heads = [defined(*each, mask)[0] for each in read]
    assert_close(whole, layer.out_proj(torch.cat(heads, -1)), atol=1e-10, rtol=1e-8)
    cache, outputs, seen = {}, [], 0
    for part in x.split([3, 0, 1, 2], dim=1):
        seen += part.shape[1]
        outputs += [layer(part, mask=causal_mask(part.shape[1], seen), cache=cache)[0]]
    assert_close(torch.cat(outputs, 1), whole, atol=1e-10, rtol=1e-8)
    assert_close(layer(x[0], mask=mask)[0], whole[0])  # a sentence without a batch


X = normal(3, 5, 32, dtype=torch.float32)
MASKS = {"none": None, "causal": causal_mask(5), "padding": padding_mask([5, 0, 3])}
MASKS["added"] = torch.zeros(5, 5).masked_fill(~causal_mask(5), -math.inf)
both_paths = pytest.mark.parametrize("need_weights", [False, True])
ours = functools.partial(MultiHeadAttention, 32, 4)
torchs = functools.partial(nn.MultiheadAttention, 32, 4, batch_first=True)


def test_a_cache_holds_two_tensors():
    layer, cache = MultiHeadAttention(32, 4, num_kv_heads=2), {}
    layer(X, cache=cache)
    assert set(cache) == {"key", "value"}
    assert cache["key"].shape == cache["value"].shape == (3, 2, 5, 8)
    assert_close(copy.deepcopy(layer)(X), layer(X))
    with pytest.raises(ValueError, match="mask has shape"):
        layer(X, mask=causal_mask(5, 7), cache=cache)
    with pytest.raises(ValueError, match="self-attention"):
        layer(X, X, cache=cache)
    assert cache["key"].shape[-2] == 5  # a call that was refused changes nothing
    torch.save({name: x.detach() for name, x in cache.items()}, file := io.BytesIO())
    assert file.tell() < 3 * 2 * 2 * 5 * 8 * 4 + 3000


@pytest.mark.parametrize(
    "mask, need_weights",
    [("none", False), ("padding", False), ("padding", True), ("added", True)],
)
def test_one_graph_and_many_models(mask, need_weights):
    """Compiles whole, exports, runs many models at once, and forward mode."""
    torch.manual_seed(0)
    build = {"num_kv_heads": 2, "position": ALiBi(4)}
    layers = [MultiHeadAttention(32, 4, **build) for _ in range(2)]
    options = {"mask": MASKS[mask], "need_weights": need_weights}
    wanted, (stack, _) = layers[1](X, **options), stack_module_state(layers)
    for graded in (True, False):
        torch.compiler.reset()
        compiled = torch.compile(layers[1], fullgraph=True, backend="aot_eager")
        with torch.set_grad_enabled(graded):
            assert_close(compiled(X, **options), wanted)
    program = torch.export.export(layers[1], (X,), options)
    assert_close(program.module()(X, **options), wanted)

    def both(weights, x=X):
        found = functional_call(layers[0], weights, (x,), options)
        return found if need_weights else found[:1]

    along = normal(3, 5, 32, dtype=torch.float32)
    with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for the other kernels
        for graded in (True, False):
            with torch.set_grad_enabled(graded):
                found = [x[1] for x in vmap(both)(stack)]
                assert_close(found, list(wanted[: 1 + need_weights]))
                slope = jvp(lambda x: both({}, x)[0], (X,), (along,))[1]
        slopes = vmap(grad(lambda weights: both(weights)[0].sum()))(stack)
    (alone,) = torch.autograd.grad(wanted[0].sum(), layers[1].query_proj.weight)
    assert_close(slopes["query_proj.weight"][1], alone, atol=1e-4, rtol=1e-4)
    ahead, behind = (layers[0](X + e * along, **options)[0] for e in (1e-2, -1e-2))
    assert_close(slope, (ahead - behind) / 2e-2, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("no_grad", [False, True])
def test_vmap_over_masks(no_grad):
    """Then the scores belong to all masks, and must not be written over."""
    q, k, v = (normal(2, 5, 4, seed=i) for i in range(3))
    masks = torch.stack([causal_mask(5), torch.zeros(5, 5).bool(), ~causal_mask(5)])
    with torch.set_grad_enabled(not no_grad):
        found = vmap(lambda mask: scaled_dot_product_attention(q, k, v, mask))(masks)
    for i, mask in enumerate(masks):
        assert_close([x[i] for x in found], list(defined(q, k, v, mask)))


@both_paths
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype, need_weights):
    """Also what is added: here numbers that half precision would round to one."""
    torch.manual_seed(0)
    layer, added = MultiHeadAttention(32, 4), normal(5, 5, dtype=torch.float32) - 300
    added = added.masked_fill(~causal_mask(5), -math.inf)
    exact = layer(X, mask=added, need_weights=True)
    half = copy.deepcopy(layer).to(dtype)
    with torch.no_grad():
        found = [half(X.to(dtype), mask=added, need_weights=need_weights)]
    for no_grad in (True, False):
        with torch.set_grad_enabled(not no_grad), torch.autocast("cpu", dtype):
            found += [layer(X, mask=added, need_weights=need_weights)]
    for each in found:
        assert_close(each[0].float(), exact[0], atol=2e-2, rtol=0)
        assert each[1] is None or (each[1].float() - exact[1]).abs().max() < 2e-2
    big = 200 * normal(2, 9, 64).to(dtype)  # scores of 1e6, beyond float16
    assert scaled_dot_product_attention(big, big, big)[0].isfinite().all()


HUGE = [1e19, 1e20, 1e30, 1e38, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", MASKS)
def test_scores_that_are_not_finite_give_nan_or_zeros(dtype, kind):
    """And no number that looks right; queries with finite scores keep theirs."""
    layer, mask, lost = MultiHeadAttention(8, 2), MASKS[kind], 0
    visible = mask == 0 if kind == "added" else torch.ones(5, 5).bool()
    visible = mask if kind in ("causal", "padding") else visible
    for size, where, keys in itertools.product(HUGE, ["q", "k", "qk"], [1, 5]):
        q, k, v = (normal(3, 2, 5, 8, seed=i).to(dtype) for i in range(3))
        for x in [{"q": q, "k": k}[name] for name in where]:
            x[0, :, :keys] *= size
        exact = [x.double() for x in (q, k, v)]
        scores = exact[0] @ exact[1].mT / 8**0.5
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1).nan_to_num()
        finite = (exact[0].abs() @ exact[1].abs().mT <= 1e37).all(-1)
        for need_weights in (False, True):
            found = layer.attend(q, k, v, mask, None, need_weights)[0].double()
            right = torch.isclose(found, weights @ exact[2], 1e-2, 1e-2).all(-1)
            nan, zeros = found.isnan().all(-1), (found == 0).all(-1)
            assert (right | ~finite).all() and (right | nan | zeros).all()
            assert (right | nan).all() or not need_weights
            lost += int((~right).sum())
    assert lost > 50


def test_masks_dropout_and_the_kernel(monkeypatch):
    assert causal_mask(3, 1).tolist() == [[False], [False], [True]]
    rows = [[True, True, False], [False] * 3]
    for lengths in ([2, 0], torch.tensor([2, 0])):
        assert padding_mask(lengths, 3).squeeze().tolist() == rows
    assert padding_mask([2, 1]).shape == (2, 1, 1, 2)
    assert padding_mask([]).shape == (0, 1, 1, 0)
    found = vmap(lambda lengths: padding_mask(lengths, 3))(torch.tensor([[2, 0]] * 2))
    assert found[1].squeeze().tolist() == rows
    layer = MultiHeadAttention(32, 4, dropout=0.5)
    output, weights = layer(X, need_weights=True)
    for again in (layer(X), layer(X, need_weights=True)):  # both kernels drop out
        assert (output - again[0]).abs().max() > 0.01
    assert_close(weights.sum(-1), torch.ones(3, 4, 5))  # weights are never dropped out
    assert_close(layer.eval()(X)[0], layer(X, need_weights=True)[0])
    assert_close(layer(X, need_weights=True)[1], weights)
    for options in ({}, {"need_weights": True}):  # no key, no sentence, no query
        nothing = layer(X, X[:, :0], **options)[0]
        assert_close(nothing, layer.out_proj.bias.expand(3, 5, 32))
        assert layer(X[:0], **options)[0].shape == (0, 5, 32)
        assert layer(X[:, :0], X, **options)[0].shape == (3, 0, 32)
    drawn = MultiHeadAttention.from_torch(nn.MultiheadAttention(256, 4))
    for mine, theirs in zip(MultiHeadAttention(256, 4).children(), drawn.children()):
        assert_close(mine.weight.std(), theirs.weight.std(), atol=1e-3, rtol=0)
        assert_close(mine.bias, theirs.bias)
    kernel = "torch.nn.functional.scaled_dot_product_attention"
    monkeypatch.setattr(kernel, lambda *args, **options: 1 / 0)
    layer(X, need_weights=True)
    for mask in MASKS.values():  # the fused one, where no weights are asked
        with pytest.raises(ZeroDivisionError):
            layer(X, mask=mask)


def empty_rows(device):
    """Return output and gradient of a layer in which a sentence is all padding."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 4).to(device)
    x, mask = X.to(device).requires_grad_(), MASKS["padding"].to(device)
    output, _ = layer(x, mask=mask)
    return output, torch.autograd.grad(output.square().sum(), x)[0]


def test_another_devices_kernel_gets_no_empty_row():
    """On the device "meta" there are no numbers, but every line is run."""
    output, slope = empty_rows("meta")
    assert output.shape == slope.shape == X.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_empty_rows_on_a_gpu():
    for found, wanted in zip(empty_rows("cuda"), empty_rows("cpu")):
        assert_close(found.cpu(), wanted, atol=1e-4, rtol=1e-3)
        assert found.isfinite().all()


# --- from PyTorch's layer and back ---

WAYS = {
    "plain": lambda module, name: None,
    "pruned": functools.partial(prune.l1_unstructured, amount=0.5),
    "weight norm": weight_norm,
    "spectral norm": spectral_norm,
    "new weight norm": parametrizations.weight_norm,
    "new spectral norm": parametrizations.spectral_norm,
}
PLACES = [("torch", "in_proj_weight"), ("torch", "out_proj.weight")]
PLACES += [("ours", f"{name}_proj.weight") for name in ("query", "value", "out")]


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("trained", [False, True])  # since the weight was computed
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("whose", "place"), PLACES)
def test_pruned_and_normed_layers_come_out_right(whose, place, way, trained):
    """In both directions: what is copied is what the layer itself computes with."""
    torch.manual_seed(0)
    layer = torchs() if whose == "torch" else ours()
    layer.eval()  # in training a spectral norm is another one at every look
    path, _, name = place.rpartition(".")
    WAYS[way](layer.get_submodule(path), name=name)
    for parameter in layer.parameters() if trained else ():
        parameter.data.mul_(1.5)
    if whose == "torch":
        copied = MultiHeadAttention.from_torch(layer)
        pair = copied(X)[0], layer(X, X, X)[0]
    else:
        copied = layer.to_torch()
        pair = layer(X)[0], copied(X, X, X)[0]
    assert_close(*pair, atol=1e-4, rtol=1e-4)
    assert all(x.requires_grad and x.is_leaf for x in copied.parameters())


# --- what would run and mean something else ---


class OwnAttend(MultiHeadAttention):
    attend = None  # whatever it would be


class OwnForward(nn.Linear):
    forward = None


class Strange(nn.MultiheadAttention):
    pass


def hooked(module):
    module.out_proj.register_forward_hook(lambda module, inputs, output: 2 * output)
    return module


FLAG, FLAGS_OF_3 = causal_mask(5), causal_mask(5).expand(3, 5, 5)
layer, inside = ours(), ours()
inside.value_proj = OwnForward(32, 32)
asked = functools.partial(layer, need_weights=True)
OF_A_LAYER = r"""
mask\[:, None, None, :\] | layer(X, mask=FLAG[:3])
one per sequence .* mask\[:, None\] | layer(X, mask=FLAGS_OF_3)
the scores have shape \(3, 4, 5, 5\) | layer(X, mask=FLAG[0])
has shape \(5, 6\) | layer(X, mask=causal_mask(5, 6))
give bool, True = may be attended to | layer(X, mask=FLAG.int())
mask is torch.complex64 | layer(X, mask=FLAG + 0j)
5 keys but 4 values | layer(X, X, X[:, :4])
"""
OTHERS = r"""
give floating point | scaled_dot_product_attention(*[FLAG.int()] * 3)
num_heads=3 must divide | MultiHeadAttention(8, 3)
divided by num_kv_heads=3 | ours(num_kv_heads=3)
position has num_heads=1, the layer | ours(position=ALiBi(1))
position has head_dim=4 | ours(position=Rotary(4))
between 0 and max_length=4 | padding_mask([5, 1], 4)
lengths are \[3, -1\] | padding_mask(torch.tensor([3, -1]))
give whole numbers | padding_mask([True, False])
float32; give whole numbers | padding_mask([1.5], 4)
num_kv_heads=1.*no such option | ours(num_kv_heads=1).to_torch()
position=Rotary.*no such option | ours(position=Rotary(8)).to_torch()
OwnAttend has a.* attend of its own | OwnAttend(32, 4).to_torch()
OwnForward has a.* forward of its own | inside.to_torch()
module is a .*Strange | MultiHeadAttention.from_torch(Strange(32, 4))
add_bias_kv | MultiHeadAttention.from_torch(torchs(add_bias_kv=True))
add_zero_attn | MultiHeadAttention.from_torch(torchs(add_zero_attn=True))
forward hooks | MultiHeadAttention.from_torch(hooked(torchs()))
forward hooks | hooked(ours()).to_torch()
kdim | MultiHeadAttention.from_torch(torchs(kdim=8))
vdim | MultiHeadAttention.from_torch(torchs(vdim=8))
"""
REFUSED = OF_A_LAYER + OF_A_LAYER.replace("layer(", "asked(") + OTHERS
test_what_would_mean_something_else_is_refused = guards(REFUSED, globals())
