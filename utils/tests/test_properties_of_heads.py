"""Scores of heads on drawn inputs: equal to an oracle, or refused.

Each property says by itself what must be refused.
"""

import math
from itertools import product

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from utils import heads
from utils.attention import MultiHeadAttention
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
    many,
    tried,
    unless,
)

# --- scores ---

# for each score: the keys of query q that it asks for, in ids or marks of a sequence
KEYS = {
    "at_offset": lambda q, offset: {q + offset},
    "previous_token": lambda q, _: {q - 1},
    "current_token": lambda q, _: {q},
    "first_token": lambda q, _: {0},
    "on_keys": lambda q, marks: {k for k, marked in enumerate(marks) if marked},
    "duplicate_token": lambda q, ids: {k for k in range(q) if ids[k] == ids[q]},
    "induction": lambda q, ids: {k + 1 for k in range(q) if ids[k] == ids[q]},
}
SCORES = [*KEYS, "entropy", "normalised_entropy", "js_divergence"]
MARKS = {"on_keys": [torch.bool], "duplicate_token": WHOLE, "induction": WHOLE}
SQUARE = [*KEYS][:3] + [*KEYS][5:]  # they compare positions


def nats(row):
    return -sum(x * math.log(x) for x in row if x)


def worth(name, row, visible, q, extra):
    """Return what the row of one query is worth; None = this query does not count."""
    if name == "entropy":
        return nats(row)
    if name in ("normalised_entropy", "first_token") and len(visible) < 2:
        return None
    if name == "normalised_entropy":
        return nats(row) / math.log(len(visible))
    keys = KEYS[name](q, extra) & visible
    return sum(row[k] for k in keys) if keys else None


def counting(visible, queries):
    """Return {query: its visible keys} of the queries of a sequence that count."""
    rows = [{k for k, there in enumerate(row) if there} for row in visible.tolist()]
    chosen = range(len(rows))
    if queries is not None:
        chosen = queries.nonzero().flatten().tolist()
    elif visible.shape[0] == visible.shape[1]:  # what nobody can see is padding
        chosen = set().union(*rows)
    return {q: rows[q] for q in chosen if rows[q]}


def measured(name, weights, visible, queries, extra):
    """Return a score by its definition: loops over sequences, heads and queries."""
    batch, count, *_ = weights.shape
    counted = [
        counting(visible[b, 0], None if queries is None else queries[b])
        for b in range(batch)
    ]
    if name == "js_divergence":
        total, some = torch.zeros(count, count), sum(map(bool, counted))
        for b, i, j in product(range(batch), range(count), range(count)):
            for q in counted[b]:
                one, other = weights[b, i, q].tolist(), weights[b, j, q].tolist()
                middle = nats((x + y) / 2 for x, y in zip(one, other))
                divergence = middle - (nats(one) + nats(other)) / 2
                total[i, j] += divergence / len(counted[b]) / some
        return total, some
    result = torch.full((batch, count), math.nan)
    for b, h in product(range(batch), range(count)):
        given = extra[b].tolist() if isinstance(extra, torch.Tensor) else extra
        rows = weights[b, h].tolist()
        each = [worth(name, rows[q], keys, q, given) for q, keys in counted[b].items()]
        each = [x for x in each if x is not None]
        result[b, h] = sum(each) / len(each) if each else math.nan
    return result, not result.isnan().all()


@many
@given(st.data())
def test_scores(data):
    draw = Drawing(data)
    sizes = [draw.mostly(draw(st.integers(1, n)), 0) for n in (3, 3, 6)]
    batch, count, queries = sizes
    keys = draw.one_of(queries, draw(SIZES))
    errors, options = set(), {}
    visible = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    if draw(FLAGS):
        axes = tuple(draw.one_of(n, 1) for n in visible.shape)
        size = draw.mostly(draw.one_of(axes, (queries, keys)), (9, keys), (batch, 7))
        share = draw.mostly(draw.one_of(0, 1, 9), -9)
        mask = draw.laid_out(draw.normal(size) < share)
        fits = size in (axes, (queries, keys))
        visible = mask.expand(visible.shape) if fits else visible
        options["mask"] = mask.to(draw.mostly(torch.bool, *FLOATING, *WHOLE))
        errors |= unless(fits, ValueError)
        errors |= unless(options["mask"].dtype == torch.bool, TypeError)
    if draw(FLAGS):
        size = draw.mostly((batch, queries), (batch, queries + 1), (queries,))
        chosen = draw.normal(size) < draw.one_of(0, 1)
        options["queries"] = chosen.to(draw.mostly(torch.bool, *FLOATING, *WHOLE))
        fits = options["queries"].dtype == torch.bool and size == (batch, queries)
        errors |= unless(fits, ValueError)

    scores = 2 * draw.normal((*sizes, keys), DOUBLE)
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    asked = visible.any(-1).expand(sizes)  # rows of other queries may hold anything
    weights = weights.where(asked[..., None], draw.one_of(0.0, math.nan, -7.0))
    damage = draw.mostly(0, 0.3, -1.5, math.nan, "another key")
    if damage == "another key":
        weights = weights.roll(1, -1)
    elif weights.numel():
        weights[0, 0, 0, 0] += damage
    dtype = draw.mostly(draw.one_of(*FLOATING), *WHOLE, *NO_NUMBERS)
    weights = draw.laid_out(weights.to(dtype))
    errors |= unless(dtype in FLOATING, TypeError)
    if dtype in FLOATING:  # what is wrong is wrong by much more than roundings
        rows = weights.double()[asked]
        seen = (rows * visible.expand(weights.shape)[asked]).sum(-1)
        fine = (rows >= 0).all() and (rows.sum(-1) - 1).abs().lt(0.05).all()
        fine = fine and (seen > 0.95).all() and weights.numel() > 0
        errors |= unless(fine, ValueError)

    offset = draw.mostly(draw(st.integers(-keys, keys)), 1.0, "1")
    extras = {"at_offset": (offset, unless(type(offset) is int, TypeError))}
    for name, dtypes in MARKS.items():
        size = draw.mostly((batch, keys), (batch, keys + 1), (keys,))
        dtype = draw.mostly(draw.one_of(*dtypes), *FLOATING, torch.complex64)
        x = torch.randint(3, size, generator=torch.Generator().manual_seed(draw(SEEDS)))
        refused = unless(size == (batch, keys), ValueError)
        wrong_type = ValueError if name == "on_keys" else TypeError
        refused |= unless(dtype in dtypes, wrong_type)
        extras[name] = draw.laid_out(x.to(dtype)), refused
    for name in SCORES:
        *extra, refused = extras.get(name, [set()])
        refused = errors | refused
        refused |= unless(name not in SQUARE or queries == keys, ValueError)
        if not refused:
            given = options.get("queries"), *(extra or [None])
            wanted, some = measured(name, weights, visible, *given)
            refused = unless(some, ValueError)  # no query counts
        found = tried(refused, getattr(heads, name), weights, *extra, **options)
        if not refused:
            assert found.dtype == torch.promote_types(weights.dtype, torch.float32)
            assert_close(found.float(), wanted, atol=1e-5, rtol=0, equal_nan=True)


@given(st.data())
def test_weighted_values(data):
    draw = Drawing(data, one_in=4)
    kv_heads, group, size = (draw(st.integers(1, n)) for n in (3, 2, 3))
    count = kv_heads * group
    options = {"num_kv_heads": kv_heads, "bias": draw(FLAGS)}
    torch.manual_seed(draw(SEEDS))
    layer = MultiHeadAttention(count * size, count, **options)
    fitting = [draw(BATCHES), count, draw(SIZES), draw(SIZES)]
    batch, _, queries, keys = fitting
    shape = draw.mostly(fitting, fitting[1:], [batch, count + 1, queries, keys])
    weights = draw.tensor(shape).abs()
    values = draw.tensor([batch, keys, draw.mostly(count * size, count * size + 1)])
    errors = unless(shape == fitting, ValueError)
    errors |= unless(values.shape[-1] == count * size, RuntimeError)
    given = layer.to_torch() if group == 1 and draw(FLAGS) else layer
    found = tried(errors, heads.weighted_values, given, values, weights)
    if not errors:
        v, out = layer.value_proj(values), layer.out_proj.weight
        wanted = torch.zeros(fitting)
        for b, h, k in product(range(batch), range(count), range(keys)):
            own, its = h * size, h // group * size
            handed = out[:, own : own + size] @ v[b, k, its : its + size]
            for q in range(queries):
                wanted[b, h, q, k] = (handed * weights[b, h, q, k]).norm().item()
        assert_close(found, wanted, atol=1e-5, rtol=1e-5)
