"""Attention, its layer and masks on drawn inputs: equal to an oracle, or refused.

Each property says by itself which inputs must be refused, and by which errors; another
error fails, and so does an answer. RuntimeError: there PyTorch's own words are enough.
"""

import copy
import math

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from utils.attention import (
    MultiHeadAttention,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from utils.masks import causal_mask, padding_mask
from utils.tests.draws import (
    BATCHES,
    DOUBLE,
    FLAGS,
    FLOATING,
    NO_NUMBERS,
    SEEDS,
    SIZES,
    WHOLE,
    Drawing,
    largest,
    many,
    mask_errors,
    number_errors,
    precision,
    sum_of,
    tried,
    unless,
)
from utils.tests.helpers import scheme_of

ANY = [*FLOATING, torch.int64, *NO_NUMBERS]

# --- attention ---


@given(st.data())
def test_split_and_merge_heads(data):
    draw = Drawing(data, one_in=3)
    heads, sizes = draw(SIZES), [draw(SIZES) for _ in range(3)]
    sizes[2] *= draw.mostly(heads, 1)
    shape = draw.mostly(sizes, sizes[1:], sizes[:1] + sizes, [])
    x = draw.tensor(shape, draw.one_of(*ANY))
    errors = unless(len(shape) == 3, ValueError)
    if not errors:  # "don't multiply up to the size"
        errors = unless(heads > 0 and sizes[2] % heads == 0, RuntimeError)
    found = tried(errors, split_heads, x, heads)
    if not errors:
        size = sizes[2] // heads
        each = [x[:, :, h * size : (h + 1) * size] for h in range(heads)]
        assert torch.equal(found, torch.stack(each, dim=1))
        assert torch.equal(merge_heads(found), x)
    tried(unless(len(shape) == 4, ValueError), merge_heads, x)


def torchs_attention(q, k, v, added, scale):
    """Return [output, weights] of PyTorch's formula, 0 where nothing can be read."""
    scores = *q.shape[:-1], k.shape[-2]
    added = added.double().expand(scores)
    empty = (added == -math.inf).all(-1, keepdim=True)
    options = {"attn_mask": added.masked_fill(empty, 0), "scale": scale}
    each = torch.eye(scores[-1], dtype=DOUBLE).expand(*k.shape[:-1], -1)
    with sdpa_kernel(SDPBackend.MATH):  # with a value of its own for each key: weights
        found = [F.scaled_dot_product_attention(q, k, x, **options) for x in (v, each)]
    return [x.masked_fill(empty, 0) for x in found]


@many
@given(st.data())
def test_attention(data):
    draw = Drawing(data)
    leading = draw(st.lists(BATCHES, max_size=3))
    queries, keys, dim, any_dim = (draw(SIZES) for _ in range(4))
    dtype, size = draw.one_of(*FLOATING), draw.one_of(1, 1e4)
    q_type, k_type, v_type = (draw.mostly(dtype, *ANY) for _ in range(3))
    q = draw.tensor([*leading, queries, dim], q_type, size)
    wrong = [keys, dim], [*leading, keys, dim + 1], [1, *leading, keys, dim], [dim]
    k = draw.tensor(draw.mostly([*leading, keys, dim], *wrong), k_type)
    wrong = [*leading, keys + 1, any_dim], [1, *leading, keys, any_dim], [keys]
    v = draw.tensor(draw.mostly([*leading, keys, any_dim], *wrong), v_type)
    scores = *leading, queries, keys
    terms = {n: draw.mask(scores, n) for n in ("mask", "bias") if draw(FLAGS)}
    scale = draw.mostly(draw.one_of(None, 0, 0.3, 2.0), -1, math.nan, math.inf, "1")
    dropout_p = draw.mostly(draw.one_of(0.0, 0, 1.0), -0.1, 1.5, math.nan, True, "0.5")

    errors = number_errors(dropout_p, 0, 1) | number_errors(scale or 0.0, 0)
    errors |= unless({q.dtype, k.dtype, v.dtype} <= {*FLOATING}, TypeError)
    fits = q.dtype == k.dtype == v.dtype and dim > 0
    fits = fits and [*k.shape] == [*leading, keys, dim]
    errors |= unless(fits and [*v.shape] == [*leading, keys, any_dim], ValueError)
    for name, x in terms.items():
        errors |= mask_errors(name, x, scores)
    dtype = q.dtype
    if not errors:
        added = sum_of(terms.values(), torch.promote_types(dtype, torch.float32))
        errors = unless((added < math.inf).all(), ValueError)
    call, options = {"query": q, "key": k, "value": v} | terms, {"dropout_p": dropout_p}
    options |= {"scale": scale}
    with torch.no_grad():
        found = tried(errors, scaled_dot_product_attention, **call, **options)
    if errors:
        return

    learned = [name for name, x in call.items() if x.dtype in FLOATING]
    ours = call | {name: call[name].detach().requires_grad_() for name in learned}
    again = scaled_dot_product_attention(**ours, **options)
    theirs = {name: ours[name].detach().double().requires_grad_() for name in learned}
    q, k, v, *terms = (call | theirs).values()
    output, weights = torchs_attention(q, k, v, sum_of(terms, DOUBLE), scale)
    output = output * (1 - dropout_p)  # which is 0 or 1 here
    # A score is wrong by some roundings of its largest term, and the softmax makes of
    # that a relative error of a weight. Only the results are rounded to the dtype.
    once, eps = precision(dtype)
    factor = dim**-0.5 if scale is None else scale
    largest_term = factor * largest(q.abs() @ k.abs().mT) + largest(added)
    error = 8 * eps * (1 + largest_term)
    for one, other in (found, again):
        assert one.dtype == other.dtype == dtype
        assert_close(other.double(), weights, atol=error, rtol=once)
        atol = error * (1 + largest(v))
        assert_close(one.double(), output, atol=atol, rtol=once)
    if size == 1:
        slopes = draw.normal(output.shape, dtype)
        loss, ours = (again[0] * slopes).sum(), [ours[name] for name in learned]
        found = grad(loss, ours, materialize_grads=True)  # 0 without a key or a query
        loss, theirs = (output * slopes.double()).sum(), [*theirs.values()]
        wanted = grad(loss, theirs, materialize_grads=True)
        atol = error * math.prod(1 + largest(x) for x in (q, k, v, slopes))
        for name, one, other in zip(learned, found, wanted):
            summed = weights.numel() if name in ("mask", "bias") else 1
            options = {"atol": atol * summed, "rtol": torch.finfo(one.dtype).eps}
            assert_close(one.double(), other, **options)


# --- the layer ---


def torchs_layer(layer):
    """Return PyTorch's layer; keys and values of a group are repeated for its heads."""
    layer = copy.deepcopy(layer)
    group, layer.num_kv_heads = layer.num_heads // layer.num_kv_heads, layer.num_heads
    for proj in (layer.key_proj, layer.value_proj):
        for name, x in [*proj.named_parameters()]:
            x = x.detach().unflatten(0, (-1, layer.head_dim))
            x = x.repeat_interleave(group, dim=0).flatten(0, 1)
            setattr(proj, name, nn.Parameter(x))
    return layer.to_torch()


@many
@given(st.data())
def test_layer(data):
    draw = Drawing(data)
    kv_heads, group, head_dim = (draw(st.integers(1, n)) for n in (4, 3, 6))
    heads, embed = kv_heads * group, kv_heads * group * head_dim
    kdim, vdim = (draw.one_of(embed, embed, 1, 5) for _ in range(2))
    dtype, options = draw.one_of(DOUBLE, *FLOATING), {"dropout": draw.one_of(0.0, 0.3)}
    options |= {"num_kv_heads": kv_heads, "kdim": kdim, "vdim": vdim}
    torch.manual_seed(draw(SEEDS))
    layer = MultiHeadAttention(embed, heads, bias=draw(FLAGS), **options)
    for parameter in layer.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    layer = layer.to(dtype).train(draw(FLAGS))
    theirs = torchs_layer(layer)
    back = MultiHeadAttention.from_torch(theirs).to_torch()
    assert_close(back.state_dict(), theirs.state_dict(), atol=0, rtol=0)
    for name in ("dropout", "training", "batch_first"):
        assert getattr(back, name) == getattr(theirs, name)

    batch, queries, keys = draw(BATCHES), draw(SIZES), draw(SIZES)
    wrong = [batch, queries, embed + 1], [4, embed]
    shape = draw.mostly([batch, queries, embed], *wrong)
    given = [draw.tensor(shape, draw.mostly(dtype, *ANY))]
    if draw(FLAGS):
        given += [draw.tensor([draw.mostly(batch, 1), keys, kdim], dtype)]
    if len(given) == 2 and draw(FLAGS):
        given += [draw.tensor([batch, draw.mostly(keys, 4), vdim], dtype)]
    query, key, value = (given + given[-1:] * 2)[:3]
    scores = batch, heads, queries, key.shape[-2]
    masks = [draw.mask(scores)] if draw(FLAGS) else []
    options = {"need_weights": draw(FLAGS)} | ({"mask": masks[0]} if masks else {})

    errors = set().union(*(mask_errors("mask", mask, scores) for mask in masks))
    for x, size in zip((query, key, value), (embed, kdim, vdim)):
        fits = x.dim() == 3 and x.shape[-1] == size and len(x) == batch
        errors |= unless(fits, ValueError)
        errors |= unless(x.dtype == dtype, RuntimeError)  # "must have the same dtype"
    errors |= unless(key.shape[1] == value.shape[1], ValueError)
    if not errors:
        added = sum_of(masks, torch.promote_types(dtype, torch.float32))
        errors = unless((added < math.inf).all(), ValueError)
    with torch.no_grad():
        found = tried(errors, layer.eval(), *given, **options)
    if errors:
        return

    ours, given = (
        [x.detach().to(to).requires_grad_() for x in (query, key, value)]
        for to in (dtype, DOUBLE)
    )
    again, theirs = layer(*ours, **options), theirs.double().eval()
    blocked = added.double().expand(scores).flatten(0, 1)
    blocked = {"attn_mask": blocked if blocked.numel() else None}
    with sdpa_kernel(SDPBackend.MATH):  # where nothing can be read, this says 0,
        output = theirs(*given, need_weights=False, **blocked)[0]
    weights = theirs(*given, average_attn_weights=False, **blocked)[1]  # and this NaN
    slopes = draw.normal(output.shape, DOUBLE)
    results = [(found[0], output), (again[0], output)]
    if options["need_weights"]:
        results += [(each, weights.nan_to_num(0)) for each in (found[1], again[1])]
    else:
        assert found[1] is again[1] is None
    results += zip(
        grad((again[0] * slopes.to(dtype)).sum(), [*ours, layer.out_proj.weight]),
        grad((output * slopes).sum(), [*given, theirs.out_proj.weight]),
    )
    # Four products in a row, each a sum of up to embed rounded terms; what is added to
    # a score is rounded with it, at its own size.
    once, eps = precision(dtype)
    for one, other in results:
        assert one.dtype == dtype
        atol = 4 * (embed + 8) * (once + eps * largest(added)) * (1 + largest(other))
        assert_close(one.double(), other, atol=atol, rtol=0)


@given(st.data())
def test_cache(data):
    """Queries in pieces, of which some are empty, as the whole."""
    draw = Drawing(data)
    names = "nope", "rotary half", "rotary interleaved", "alibi", "t5"
    position = scheme_of(draw.one_of(*names), draw(SEEDS))
    kv_heads = draw.one_of(4, 2, 1)
    layer = MultiHeadAttention(16, 4, num_kv_heads=kv_heads, position=position)
    sizes = draw(st.lists(BATCHES, min_size=1, max_size=6))
    x, cache, outputs, seen = draw.tensor([draw(BATCHES), sum(sizes), 16]), {}, [], 0
    for piece in x.split(sizes, dim=1):
        seen += piece.shape[1]
        options = {"mask": causal_mask(piece.shape[1], seen), "cache": cache}
        options["need_weights"] = draw(FLAGS)
        outputs.append(tried(set(), layer, piece, **options)[0])
    whole, _ = layer(x, mask=causal_mask(seen))
    assert_close(torch.cat(outputs, dim=1), whole, atol=1e-5, rtol=0)


# --- masks ---


@given(st.data())
def test_causal_mask(data):
    draw = Drawing(data, one_in=2)
    queries = draw.mostly(draw(SIZES), -1, 2.0)
    given = draw.mostly(draw.one_of([queries, draw(SIZES)], [queries]), [queries, -1])
    keys = given[-1]
    errors = unless(type(queries) is int, TypeError)
    errors |= unless(min(given) >= 0, RuntimeError)  # "negative dimension"
    found = tried(errors, causal_mask, *given)
    if not errors:
        rows = [[j <= i + keys - queries for j in range(keys)] for i in range(queries)]
        assert found.tolist() == rows and found.shape == (queries, keys)


@given(st.data())
def test_padding_mask(data):
    draw = Drawing(data, one_in=3)
    lengths = draw(st.lists(st.integers(0, 6), max_size=3)) + draw.mostly([], [-1])
    wrong = [*FLOATING, *NO_NUMBERS] if lengths else FLOATING  # [] has no whole number
    x = torch.tensor(lengths).to(draw.mostly(draw.one_of(*WHOLE), *wrong))
    lengths = x.tolist() if x.dtype in WHOLE else lengths  # -1 is 255 in uint8
    longest = max([0, *lengths])
    given = draw.mostly(draw.one_of(longest, 6, 300), longest - 1, 3.5, True)
    given = draw.one_of(given, None)
    most = longest if given is None else given
    errors = unless(type(most) is int and (x.dtype in WHOLE or not lengths), TypeError)
    if not errors:
        fits = most >= 0 and all(0 <= n <= most for n in lengths)
        errors = unless(fits, ValueError)
    found = tried(errors, padding_mask, draw.one_of(x, x.tolist()), given)
    if not errors:
        rows = [[j < n for j in range(most)] for n in lengths]
        assert found.flatten(1).tolist() == rows
        assert found.shape == (len(lengths), 1, 1, most)
