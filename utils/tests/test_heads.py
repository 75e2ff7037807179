"""Every score of a head, on drawn inputs, against slow loops from its definition.

`PROPERTY_EXAMPLES=5000` draws as many. One table says what is refused.
"""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from utils import heads
from utils.attention import MultiHeadAttention
from utils.masks import causal_mask, padding_mask
from utils.tests.helpers import examples, guards, mask_of, normal
from utils.tests.helpers import heads as weights_of

many = examples(40)
FLAGS, SEEDS = st.booleans(), st.integers(0, 999)
UP_TO_3, UP_TO_6 = st.integers(1, 3), st.integers(1, 6)
FLOATING = st.sampled_from([torch.float32, torch.float64, torch.float16])

# for each score: the keys of query q that it asks for, in ids or marks of a sequence
KEYS = {
    "at_offset": lambda q, offset: {q + offset},
    "previous_token": lambda q, _: {q - 1},
    "current_token": lambda q, _: {q},
    "duplicate_token": lambda q, ids: {k for k in range(q) if ids[k] == ids[q]},
    "induction": lambda q, ids: {k + 1 for k in range(q) if ids[k] == ids[q]},
    "first_token": lambda q, _: {0},
    "on_keys": lambda q, marks: {k for k, marked in enumerate(marks) if marked},
}
SQUARE = [*KEYS][:5]  # they compare positions
SCORES = [*KEYS, "entropy", "normalised_entropy", "js_divergence"]


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
    """The oracle: a score by its definition, loops over sequences, heads, queries."""
    batch, count, *_ = weights.shape
    chosen = [None] * batch if queries is None else queries
    counted = [counting(visible[b, 0], chosen[b]) for b in range(batch)]
    if name == "js_divergence":
        some = sum(map(bool, counted))
        total = torch.full((count, count), 0.0 if some else math.nan)
        for b, i, j in product(range(batch), range(count), range(count)):
            for q in counted[b]:
                one, other = weights[b, i, q].tolist(), weights[b, j, q].tolist()
                middle = nats((x + y) / 2 for x, y in zip(one, other))
                divergence = middle - (nats(one) + nats(other)) / 2
                total[i, j] += divergence / len(counted[b]) / some
        return total
    result = torch.full((batch, count), math.nan)
    for b, h in product(range(batch), range(count)):
        given = extra[b].tolist() if isinstance(extra, torch.Tensor) else extra
        rows = weights[b, h].tolist()
        each = [worth(name, rows[q], keys, q, given) for q, keys in counted[b].items()]
        each = [x for x in each if x is not None]
        result[b, h] = sum(each) / len(each) if each else math.nan
    return result


@pytest.mark.parametrize("kind", ["none", "two axes", "padding", "both", "any"])
@many
@given(st.data(), UP_TO_3, UP_TO_3, UP_TO_6, SEEDS, FLOATING)
def test_a_score_equals_its_definition(kind, data, batch, count, queries, seed, dtype):
    keys = data.draw(st.sampled_from([queries, queries, queries % 4 + 2]))
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of(kind, batch, 1, queries, keys, seed)
    visible = torch.ones(batch, 1, queries, keys).bool()
    visible = visible if mask is None else visible & mask
    options = {"mask": mask}
    if data.draw(FLAGS):
        options["queries"] = torch.rand(batch, queries, generator=generator) < 0.6
    scores = 2 * torch.randn(batch, count, queries, keys, generator=generator)
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1).to(dtype)
    # the rows of queries without a visible key may hold anything
    anything = data.draw(st.sampled_from([0.0, math.nan, -7.0]))
    weights = weights.where(visible.any(-1, keepdim=True), anything)
    ids = torch.randint(3, (batch, keys), generator=generator)
    offset = data.draw(st.integers(-keys, keys))
    extras = {"at_offset": offset, "on_keys": ids > 1}
    extras |= {"duplicate_token": ids, "induction": ids}
    before = weights.clone()
    for name in SCORES:
        if name in SQUARE and queries != keys:
            with pytest.raises(ValueError, match="needs self-attention"):
                getattr(heads, name)(weights, *[extras.get(name)] * (name in extras))
            continue
        extra = [extras[name]] if name in extras else []
        found = getattr(heads, name)(weights, *extra, **options)
        asked = options.get("queries"), extras.get(name)
        wanted = measured(name, weights, visible, *asked)
        assert found.dtype == torch.promote_types(dtype, torch.float32)
        assert_close(found.float(), wanted, atol=1e-5, rtol=0, equal_nan=True)
    assert torch.equal(weights.nan_to_num(9), before.nan_to_num(9))


def test_equal_heads_do_not_diverge_by_a_rounding():
    weights = weights_of(3, 2, 9, 9).double()
    found = heads.js_divergence(torch.cat([weights, weights], dim=1))
    assert (found >= 0).all() and found[0, 2] < 1e-12 and found.diagonal().max() == 0


def test_the_gradient_of_a_score_that_is_part_of_a_loss():
    mask = padding_mask([9, 4, 6], 9)
    leaf = weights_of(3, 2, 9, 9, mask=mask).requires_grad_()
    (slope,) = torch.autograd.grad(heads.current_token(leaf, mask=mask).sum(), leaf)
    each = torch.eye(9) / torch.tensor([9, 4, 6])[:, None, None]
    assert_close(slope[:, 0], each * mask[:, 0].mT)  # padding has none


def test_many_models_at_once_as_where_a_score_is_part_of_a_loss():
    """Under vmap, where a guard can see no value."""
    mask, ids = padding_mask([9, 4, 6], 9), torch.arange(27).view(3, 9) % 4
    several = [weights_of(3, 2, 9, 9, mask=mask, seed=seed) for seed in range(2)]

    def score(weights):
        return heads.induction(weights, ids, mask=mask)

    found = torch.func.vmap(score)(torch.stack(several))
    assert_close(found, torch.stack([score(x) for x in several]), equal_nan=True)


B, L = 3, 9
FINE = weights_of(B, 2, L, L)
CAUSAL, EVERY = causal_mask(L), torch.ones(B, L).bool()
IDS = torch.zeros(B, L).long()
NO_KEY = weights_of(B, 2, L, L, mask=CAUSAL.tril(-1))
OF_ANY_SCORE = r"""
negative numbers or NaN | score(FINE.log())
negative numbers or NaN | score(2 * FINE - FINE.flip(-1))
say so by mask= | score(FINE * math.nan)
model\.eval\(\) | score(1.4 * FINE)
sum to between | score(1.001 * FINE)
sum to between | score((1.05 * FINE).half())
Is mask= missing | score(NO_KEY)
columns swapped | score(FINE.mT)
weight on keys that mask= hides | score(FINE, mask=CAUSAL)
mask has shape | score(FINE, mask=causal_mask(L + 1))
mask has shape | score(FINE, mask=FINE > 0)
give bool, e.g. mask > -math.inf | score(FINE, mask=torch.zeros(L, L))
queries is .* give bool | score(FINE, queries=EVERY[:1])
queries is .* give bool | score(FINE, queries=EVERY.float())
"""
REFUSED = r"""
as an integer | heads.at_offset(FINE, -0.5)
give \(batch, length\) = \(3, 9\) | heads.induction(FINE, IDS[:1])
give \(batch, length\) = \(3, 9\) | heads.duplicate_token(FINE, IDS[:1])
give bool \(batch, keys\) = \(3, 9\) | heads.on_keys(FINE, EVERY[:1])
give bool \(batch, keys\) = \(3, 9\) | heads.on_keys(FINE, IDS)
"""
for name in ("current_token", "entropy", "js_divergence"):
    REFUSED += OF_ANY_SCORE.replace("score(", f"heads.{name}(")
test_what_cannot_be_measured_is_refused = guards(REFUSED, globals())


@given(SEEDS, UP_TO_3, st.integers(1, 2), UP_TO_3, UP_TO_3, UP_TO_6, UP_TO_6, FLAGS)
@many
def test_weighted_values_are_the_lengths_of_what_is_handed_on(
    seed, kv_heads, group, size, batch, queries, keys, bias
):
    torch.manual_seed(seed)
    count = kv_heads * group
    layer = MultiHeadAttention(count * size, count, num_kv_heads=kv_heads, bias=bias)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    values = torch.randn(batch, keys, count * size)
    weights = normal(batch, count, queries, keys, seed=seed).softmax(-1)
    v, out = layer.value_proj(values), layer.out_proj.weight
    wanted = torch.zeros(weights.shape)
    for b, h, k in product(range(batch), range(count), range(keys)):
        own, its = h * size, h // group * size
        handed = out[:, own : own + size] @ v[b, k, its : its + size]
        wanted[b, h, :, k] = weights[b, h, :, k] * handed.norm().item()
    found = heads.weighted_values(layer, values, weights)
    assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert not found.requires_grad
    for averaged in [weights.mean(1)] + [weights[:, :1]] * (count > 1):
        with pytest.raises(ValueError, match="weights have shape"):
            heads.weighted_values(layer, values, averaged)
