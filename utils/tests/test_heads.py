"""Every score against slow loops written from its definition; what must be refused."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils import heads
from utils.attention import MultiHeadAttention
from utils.masks import causal_mask, padding_mask
from utils.tests.helpers import attention_under

B, H, L = 3, 2, 9
PADDING = padding_mask([L, 4, 6], L)
MASKS = {
    "none": None,
    "causal": causal_mask(L),
    "padding": PADDING,
    "one query": torch.ones(B, 1, L, L).bool(),
    "causal and padding": causal_mask(L) & PADDING,
    "a sequence hidden": torch.tensor([True, False, True]).view(B, 1, 1, 1),
    "odd": torch.rand(B, 1, L, L, generator=torch.Generator().manual_seed(5)) < 0.6,
}
MASKS["one query"][1, 0, torch.arange(L) != 4] = False  # counts in this sequence
MASKS["odd"][1, 0, 3] = False  # a query without a visible key
MASKS["odd"][2, 0, :, 2] = False  # a key that is visible to no query
IDS = torch.tensor([[4, 4, 2, 4, 1, 2, 4, 4, 1], [3, 1, 3, 1] + [0] * 5, [5, 6, 5] * 3])
MARKED = (IDS == 1) | (IDS == 5)
CHOSEN = torch.rand(B, L, generator=torch.Generator().manual_seed(1)) < 0.5


def random_weights(mask=None, **sizes):
    return attention_under(mask, **{"batch": B, "heads": H, "length": L, **sizes})


def copies(q, b):
    return {k for k in range(q) if IDS[b, k] == IDS[b, q]}


# for each score: its other arguments, and the keys of query q that it asks for
SCORES = {
    "previous_token": ((), lambda q, b: {q - 1}),
    "current_token": ((), lambda q, b: {q}),
    "at_offset": ((-3,), lambda q, b: {q - 3}),
    "at_offset ahead": ((2,), lambda q, b: {q + 2}),
    "first_token": ((), lambda q, b: {0}),
    "on_keys": ((MARKED,), lambda q, b: {k for k in range(L) if MARKED[b, k]}),
    "duplicate_token": ((IDS,), copies),
    "induction": ((IDS,), lambda q, b: {k + 1 for k in copies(q, b)}),
    "entropy": ((), None),
    "normalised_entropy": ((), None),
}


def score(name, weights, **options):
    return getattr(heads, name.split()[0])(weights, *SCORES[name][0], **options)


def worth(name, row, visible, q, b):
    """Return what the row of one query is worth; None = this query does not count."""
    if name == "entropy":
        return nats(row)
    if name in ("normalised_entropy", "first_token") and len(visible) < 2:
        return None
    if name == "normalised_entropy":
        return nats(row) / math.log(len(visible))
    keys = SCORES[name][1](q, b) & visible
    return sum(row[k] for k in keys) if keys else None


def nats(row):
    return -sum(x * math.log(x) for x in row if x)


def counting(mask, queries=None):
    """Return (query, its visible keys) of all queries that count, per sequence."""
    full = torch.ones(B, 1, L, L).bool() & (True if mask is None else mask)
    for b, each in enumerate(full[:, 0]):
        rows = [set(row.nonzero()[:, 0].tolist()) for row in each]
        seen = set().union(*rows) if queries is None else queries[b].nonzero()[:, 0]
        yield [(q, visible) for q, visible in enumerate(rows) if visible and q in seen]


@pytest.mark.parametrize("queries", [None, CHOSEN], ids=["all", "chosen"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SCORES)
def test_score_equals_its_definition(name, mask, queries):
    nothing_ahead, mask = name.endswith("ahead") and "causal" in mask, MASKS[mask]
    weights = random_weights(mask)
    before = weights.clone()
    if nothing_ahead:
        with pytest.raises(ValueError, match="no query counts"):
            score(name, weights, mask=mask)
        return
    wanted = torch.full((B, H), math.nan)
    for b, counted in enumerate(counting(mask, queries)):
        for h in range(H):
            rows = weights[b, h].tolist()
            each = [worth(name, rows[q], visible, q, b) for q, visible in counted]
            each = [x for x in each if x is not None]
            wanted[b, h] = sum(each) / len(each) if each else math.nan
    found = score(name, weights, mask=mask, queries=queries)
    assert_close(found, wanted, equal_nan=True)
    assert torch.equal(weights, before)


@pytest.mark.parametrize("name", SCORES)
def test_what_padding_attends_to_changes_nothing(name):
    """Rows of padding, and of queries without a visible key, may hold anything."""
    mask = PADDING.mT & PADDING  # padding is neither query nor key
    weights = random_weights(mask)
    found = score(name, weights, mask=mask)
    assert_close(found, score(name, random_weights(PADDING), mask=PADDING))
    nonsense = weights.masked_fill(~PADDING.mT, math.nan)
    assert_close(found, score(name, nonsense, mask=mask))


@pytest.mark.parametrize("mask", MASKS)
def test_js_divergence_equals_its_definition(mask):
    mask = MASKS[mask]
    weights = random_weights(mask).double()
    weights = torch.cat([weights, weights[:, :1]], dim=1)  # head 2 is head 0
    wanted, sequences = torch.zeros(3, 3), [*counting(mask)]
    some = sum(map(bool, sequences))
    for b, counted in enumerate(sequences):
        for i, j, (q, _) in itertools.product(range(3), range(3), counted):
            p, r = weights[b, i, q].tolist(), weights[b, j, q].tolist()
            mean = nats((x + y) / 2 for x, y in zip(p, r))
            wanted[i, j] += (mean - (nats(p) + nats(r)) / 2) / len(counted) / some
    found = heads.js_divergence(weights, mask=mask)
    assert_close(found.float(), wanted, atol=1e-6, rtol=1e-5)
    assert max(found[0, 2].abs(), found.diagonal().abs().max()) < 1e-12


def test_a_mask_of_two_axes_is_queries_and_keys_in_a_batch_of_any_size():
    window = causal_mask(L) & ~causal_mask(L).tril(-3)
    weights = random_weights(window, batch=L)
    found = heads.entropy(weights, mask=window)
    assert_close(found, heads.entropy(weights, mask=window[None, None]))


@pytest.mark.parametrize("name", SCORES)
def test_many_models_at_once(name):
    """Under vmap, as where a score is part of a loss (lesson 07)."""
    several = torch.stack([random_weights(PADDING, seed=seed) for seed in range(2)])
    found = torch.func.vmap(lambda weights: score(name, weights, mask=PADDING))(several)
    wanted = [score(name, weights, mask=PADDING) for weights in several]
    assert_close(found, torch.stack(wanted), equal_nan=True)


IDS_OF_5 = IDS[:2, :5]
SQUARE = [(heads.previous_token,), (heads.current_token,)]
SQUARE += [(heads.duplicate_token, IDS_OF_5), (heads.induction, IDS_OF_5)]


def test_rectangular_weights():
    mask = padding_mask([5, 3], 5)
    weights = random_weights(mask, batch=2, length=2, keys=5)
    assert heads.normalised_entropy(weights, mask=mask).shape == (2, H)
    assert_close(heads.first_token(weights, mask=mask), weights[..., 0].mean(-1))
    assert heads.js_divergence(weights, mask=mask).shape == (H, H)
    queries = torch.tensor([[True, False]] * 2)
    found = heads.first_token(weights, mask=mask, queries=queries)
    assert_close(found, weights[:, :, 0, 0])
    for metric, *of in SQUARE:
        with pytest.raises(ValueError, match="2 queries and 5 keys"):
            metric(weights, *of)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions(dtype):
    mask = MASKS["causal"]
    for name in SCORES.keys() - {"at_offset ahead"}:
        found = score(name, random_weights(mask).to(dtype), mask=mask)
        assert found.dtype == (dtype if dtype == torch.float64 else torch.float32)
        wanted = score(name, random_weights(mask), mask=mask)
        assert_close(found.float(), wanted, atol=0.02, rtol=0.02)


FINE = random_weights()
BROKEN = {
    "no tensor": (TypeError, "give a torch.Tensor", {"weights": [[1.0]]}),
    "whole numbers": (TypeError, "floating", {"weights": FINE.int()}),
    "one matrix": (ValueError, r"give \(batch, heads,", {"weights": FINE[0, 0]}),
    "empty": (ValueError, "empty", {"weights": FINE[:, :0]}),
    "scores": (ValueError, "negative", {"weights": FINE.log()}),
    "NaN": (ValueError, "NaN", {"weights": FINE * math.nan}),
    "dropout": (ValueError, r"model\.eval\(\)", {"weights": 1.4 * FINE}),
    "nearly 1": (ValueError, "sum to", {"weights": 1.001 * FINE}),
    "nearly 1, half": (ValueError, "sum to", {"weights": (1.1 * FINE).half()}),
    "no mask": (ValueError, "mask=", {"weights": random_weights(MASKS["odd"])}),
    "columns": (ValueError, "swapped", {"weights": FINE.mT}),
    "another mask": (ValueError, "mask= hides", {"mask": MASKS["causal"]}),
    "mask too long": (ValueError, "mask has shape", {"mask": causal_mask(L + 1)}),
    "mask per head": (ValueError, "mask has shape", {"mask": FINE > 0}),
    "floating mask": (TypeError, "give bool", {"mask": torch.zeros(L, L)}),
    "queries too long": (ValueError, "queries", {"queries": CHOSEN.repeat(1, 2)}),
    "queries as a list": (TypeError, "give a torch.Tensor", {"queries": [[True]]}),
    "queries not bool": (ValueError, "bool", {"queries": CHOSEN.float()}),
    "no query": (ValueError, "no query counts", {"queries": CHOSEN & ~CHOSEN}),
}


@pytest.mark.parametrize("why", BROKEN)
@pytest.mark.parametrize("name", ["current_token", "entropy", "js_divergence"])
def test_what_cannot_be_measured_is_refused(name, why):
    error, words, change = BROKEN[why]
    with pytest.raises(error, match=words):
        getattr(heads, name)(**{"weights": FINE, **change})


@pytest.mark.parametrize(
    ("words", "metric", "argument"),
    [
        (r"give \(batch, length\) = \(3, 9\)", heads.induction, IDS[:, 1:]),
        (r"give \(batch, length\) = \(3, 9\)", heads.duplicate_token, IDS[:2]),
        ("whole numbers", heads.induction, IDS.float()),
        ("give a torch.Tensor", heads.induction, IDS.tolist()),
        ("no query counts", heads.at_offset, -L),
        ("keys", heads.on_keys, MARKED[:1]),
    ],
)
def test_arguments_that_are_refused(words, metric, argument):
    with pytest.raises((TypeError, ValueError), match=words):
        metric(FINE, argument)


@pytest.mark.parametrize(
    ("options", "torchs"),
    [({}, False), ({}, True), ({"num_kv_heads": 2}, False), ({"bias": False}, True)],
)
def test_weighted_values_are_the_lengths_of_what_is_handed_on(options, torchs):
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 4, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x, values = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    _, weights = layer(x, x, values, need_weights=True)
    given = layer.to_torch() if torchs else layer
    found = heads.weighted_values(given, values, weights)
    v, group = layer.value_proj(values), 4 // layer.num_kv_heads
    for b, h, q, k in torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist():
        of_head = v[b, k, 2 * (h // group) : 2 * (h // group) + 2]
        handed = layer.out_proj.weight[:, 2 * h : 2 * h + 2] @ of_head
        assert_close(found[b, h, q, k], (handed * weights[b, h, q, k]).norm().detach())
    for wrong in (torch.ones(2, 3, 5, 5), weights[0, 0]):
        with pytest.raises(ValueError, match="weights ha(ve|s) shape"):
            heads.weighted_values(given, values, wrong)
