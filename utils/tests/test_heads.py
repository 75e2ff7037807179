"""Every metric against slow loops written from its definition; what must be refused."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils import heads
from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.masks import causal_mask, padding_mask

B, H, L = 3, 2, 9
PADDING = padding_mask([L, 4, 6], L)
MASKS = {
    "none": None,
    "causal": causal_mask(L),
    "padding": PADDING,
    "causal and padding": causal_mask(L) & PADDING,
    "full": (causal_mask(L) & PADDING).expand(B, 1, L, L).clone(),
    "odd": torch.rand(B, 1, L, L, generator=torch.Generator().manual_seed(5)) < 0.6,
}
MASKS["odd"][1, 0, 3] = False  # a query that may read nothing
MASKS["odd"][2, 0, :, 2] = False  # a key that nobody may read
IDS = torch.tensor(
    [
        [4, 4, 2, 4, 1, 2, 4, 4, 1],
        [3, 1, 3, 1, 0, 0, 0, 0, 0],
        [5, 6, 5, 5, 6, 5, 1, 1, 1],
    ]
)
MARKED = (IDS == 1) | (IDS == 5)


def attention_under(mask, batch=B, num_heads=H, length=L, seed=0, keys=L):
    """Return sharp random attention: what a head gives that keeps to the mask."""
    g = torch.Generator().manual_seed(seed)
    q = 2 * torch.randn(batch, num_heads, length, 4, generator=g)
    k = torch.randn(batch, num_heads, keys, 4, generator=g)
    return scaled_dot_product_attention(q, k, k, mask)[1]


# What the row of one query is worth; None = this query does not count. `row` are its
# weights, `may` the keys that it may read, `same` the ids, `marked` the marked keys.


def offset_row(offset):
    def worth(q, row, may, same, marked):
        return row[q + offset] if q + offset in may else None

    return worth


def first_row(q, row, may, same, marked):
    return row[0] if 0 in may else None


def marked_row(q, row, may, same, marked):
    there = [k for k in may if marked[k]]
    return sum(row[k] for k in there) if there else None


def within_row(q, row, may, same, marked):
    return sum(row[k] for k in may if q - 2 <= k <= q + 2)


def distance_row(q, row, may, same, marked):
    return sum(row[k] * abs(q - k) for k in may)


def entropy_row(q, row, may, same, marked):
    if len(may) < 2:
        return None
    return sum(-row[k] * math.log(row[k]) for k in may if row[k]) / math.log(len(may))


def confidence_row(q, row, may, same, marked):
    return max(row[k] for k in may)


def duplicate_row(q, row, may, same, marked):
    there = [k for k in range(q) if same[k] == same[q] and k in may]
    return sum(row[k] for k in there) if there else None


def induction_row(q, row, may, same, marked):
    there = [k + 1 for k in range(q) if same[k] == same[q] and k + 1 in may]
    return sum(row[k] for k in there) if there else None


METRICS = {
    "previous_token": (heads.previous_token, (), offset_row(-1)),
    "next_token": (heads.next_token, (), offset_row(+1)),
    "current_token": (heads.current_token, (), offset_row(0)),
    "at_offset -3": (heads.at_offset, (-3,), offset_row(-3)),
    "at_offset 2": (heads.at_offset, (2,), offset_row(2)),
    "first_token": (heads.first_token, (), first_row),
    "on_keys": (heads.on_keys, (MARKED,), marked_row),
    "within": (heads.within, (2,), within_row),
    "distance": (heads.distance, (), distance_row),
    "entropy": (heads.entropy, (), entropy_row),
    "confidence": (heads.confidence, (), confidence_row),
    "duplicate_token": (heads.duplicate_token, (IDS,), duplicate_row),
    "induction": (heads.induction, (IDS,), induction_row),
}
AHEAD = {"next_token", "at_offset 2"}  # nobody may look there under a causal mask


def allowed(mask):
    """Return who may be read, as lists: allowed[b][q] = keys."""
    full = torch.ones(B, 1, L, L, dtype=torch.bool)
    full = full if mask is None else full & mask
    return [[row.nonzero()[:, 0].tolist() for row in one[0]] for one in full]


def counting(may, queries):
    """Return the queries that count, per sequence: padding and the blind do not."""
    read = [set().union(*rows) for rows in may]  # the keys that somebody may read
    return [
        [
            q
            for q in range(L)
            if may[b][q] and (q in read[b] if queries is None else queries[b, q])
        ]
        for b in range(B)
    ]


def slow(worth, attention, mask, queries=None):
    """Return (batch, heads), one weight at a time."""
    may = allowed(mask)
    found = torch.empty(B, H)
    for b, chosen in enumerate(counting(may, queries)):
        for h in range(H):
            rows = attention[b, h].tolist()
            same, marked = IDS[b].tolist(), MARKED[b].tolist()
            each = [worth(q, rows[q], may[b][q], same, marked) for q in chosen]
            each = [x for x in each if x is not None]
            found[b, h] = sum(each) / len(each) if each else math.nan
    return found


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", METRICS)
def test_metric_equals_its_definition(name, mask):
    metric, arguments, worth = METRICS[name]
    if name in AHEAD and "causal" in mask or name in AHEAD and mask == "full":
        with pytest.raises(ValueError, match="no query counts"):
            metric(attention_under(MASKS[mask]), *arguments, mask=MASKS[mask])
        return
    attention = attention_under(MASKS[mask])
    before = attention.clone()
    found = metric(attention, *arguments, mask=MASKS[mask])
    assert found.shape == (B, H)
    assert_close(found, slow(worth, attention, MASKS[mask]), equal_nan=True)
    assert torch.equal(attention, before)


@pytest.mark.parametrize("name", METRICS)
def test_only_the_chosen_queries_count(name):
    metric, arguments, worth = METRICS[name]
    queries = torch.rand(B, L, generator=torch.Generator().manual_seed(1)) < 0.5
    attention = attention_under(PADDING)
    found = metric(attention, *arguments, mask=PADDING, queries=queries)
    assert_close(found, slow(worth, attention, PADDING, queries), equal_nan=True)


@pytest.mark.parametrize("name", METRICS)
def test_what_padding_reads_changes_nothing(name):
    """Rows of padding, and of queries that may read nothing, may hold anything."""
    metric, arguments, _ = METRICS[name]
    mask = PADDING.mT & PADDING  # padding reads nothing, and is not read
    attention = attention_under(mask)
    found = metric(attention, *arguments, mask=mask)
    assert_close(found, metric(attention_under(PADDING), *arguments, mask=PADDING))
    nonsense = attention.masked_fill(~PADDING.mT, math.nan)
    assert_close(found, metric(nonsense, *arguments, mask=mask))


@pytest.mark.parametrize("mask", ["none", "causal", "padding", "odd"])
def test_pairs_of_heads_equal_their_definition(mask):
    mask = MASKS[mask]
    attention = attention_under(mask, num_heads=H).double()
    attention = torch.cat([attention, attention[:, :1]], dim=1)  # head 2 is head 0
    divergence, cosine = torch.zeros(3, 3), torch.zeros(3, 3)
    chosen = counting(allowed(mask), None)
    for i in range(3):
        for j in range(3):
            for b, queries in enumerate(chosen):
                for q in queries:
                    p, r = attention[b, i, q].tolist(), attention[b, j, q].tolist()
                    middle = [(x + y) / 2 for x, y in zip(p, r)]
                    kl = sum(x * math.log(x / m) for x, m in zip(p, middle) if x)
                    kl += sum(y * math.log(y / m) for y, m in zip(r, middle) if y)
                    dot = sum(x * y for x, y in zip(p, r))
                    divergence[i, j] += kl / 2 / len(queries) / B
                    cosine[i, j] += (
                        dot / math.hypot(*p) / math.hypot(*r) / len(queries) / B
                    )
    found = heads.js_divergence(attention, mask=mask)
    assert_close(found.float(), divergence)
    assert max(found[0, 2].abs(), found.diagonal().abs().max()) < 1e-12
    assert_close(heads.head_similarity(attention, mask=mask).float(), cosine)


def test_a_sequence_in_which_nothing_counts_is_nan_and_changes_no_other():
    ids = IDS.clone()
    ids[1] = torch.arange(L)  # no token twice
    attention = attention_under(None)
    found = heads.induction(attention, ids)
    assert found[1].isnan().all() and not found[[0, 2]].isnan().any()
    mask = torch.ones(B, 1, L, L, dtype=torch.bool)
    mask[1] = False
    both = heads.js_divergence(attention_under(mask), mask=mask)
    alone = heads.js_divergence(attention_under(mask)[[0, 2]])
    assert_close(both, alone)


def test_the_even_causal_head_scores_what_arithmetic_says():
    even = causal_mask(6).float() / torch.arange(1, 7)[:, None]
    even, mask = even[None, None], causal_mask(6)
    harmonic = [sum(1 / n for n in range(first, 7)) for first in (1, 2)]
    assert_close(heads.first_token(even, mask=mask).item(), harmonic[0] / 6)
    assert_close(heads.current_token(even, mask=mask).item(), harmonic[0] / 6)
    assert_close(heads.previous_token(even, mask=mask).item(), harmonic[1] / 5)
    assert_close(heads.distance(even, mask=mask).item(), 5 / 4)  # (T - 1) / 4
    assert heads.entropy(even, mask=mask).item() == pytest.approx(1)
    assert heads.entropy(even).item() < 0.75  # as if the future could be read


def test_induction_sums_over_all_earlier_matches():
    """A B A C A D A: the last A spreads over B, C and D, and does induction whole."""
    ids = torch.tensor([[0, 1, 0, 2, 0, 3, 0]])
    attention = torch.eye(7)
    attention[6] = torch.tensor([0, 0.4, 0, 0.35, 0, 0.25, 0])
    last = torch.arange(7)[None] == 6
    assert heads.induction(attention[None, None], ids, queries=last).item() == 1


def test_queries_are_rows():
    """Query 2 reads key 0: two back. Turned over, it is key 2 that query 0 reads."""
    attention = torch.eye(4)
    attention[2] = torch.tensor([1.0, 0, 0, 0])
    attention = attention[None, None]
    query = torch.tensor([[False, False, True, False]])
    assert heads.at_offset(attention, -2, queries=query).item() == 1
    assert heads.at_offset(attention, 1, queries=query).item() == 0
    keys = torch.tensor([[True, False, False, False]])
    assert heads.on_keys(attention, keys).item() == 0.5  # queries 0 and 2 of four


def test_rectangular_attention():
    mask = padding_mask([5, 3], 5)
    attention = attention_under(mask, batch=2, length=2, keys=5)
    assert heads.entropy(attention, mask=mask).shape == (2, H)
    assert_close(heads.first_token(attention, mask=mask), attention[..., 0].mean(-1))
    assert heads.js_divergence(attention, mask=mask).shape == (H, H)
    for metric in (heads.previous_token, heads.distance):
        with pytest.raises(ValueError, match="2 queries and 5 keys"):
            metric(attention)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions(dtype):
    attention, mask = attention_under(MASKS["causal"]), MASKS["causal"]
    for name in METRICS.keys() - AHEAD:
        metric, arguments, _ = METRICS[name]
        found = metric(attention.to(dtype), *arguments, mask=mask)
        assert found.dtype == (dtype if dtype == torch.float64 else torch.float32)
        expected = metric(attention, *arguments, mask=mask)
        assert_close(found.float(), expected, atol=0.02, rtol=0.02)


def broken(**change):
    """Return what a metric is given, with one thing changed."""
    given = {"attention": attention_under(None), "mask": None, "queries": None}
    return {**given, **change}


BROKEN = {
    "no tensor": (TypeError, "give a torch.Tensor", {"attention": [[1.0]]}),
    "whole numbers": (
        TypeError,
        "floating point",
        {"attention": torch.eye(L).int()[None, None]},
    ),
    "one matrix": (
        ValueError,
        r"\(batch, heads, queries, keys\)",
        {"attention": torch.eye(L)},
    ),
    "empty": (ValueError, "empty", {"attention": torch.zeros(B, 0, L, L)}),
    "scores": (ValueError, "negative", {"attention": torch.randn(B, H, L, L)}),
    "NaN": (ValueError, "NaN", {"attention": attention_under(None) * math.nan}),
    "dropout": (
        ValueError,
        r"model\.eval\(\)",
        {"attention": 1.4 * attention_under(None)},
    ),
    "a blind query, no mask": (
        ValueError,
        "mask=",
        {"attention": attention_under(MASKS["odd"])},
    ),
    "columns": (ValueError, "swapped", {"attention": attention_under(None).mT}),
    "another mask": (ValueError, "may not read", {"mask": MASKS["causal"]}),
    "mask of another length": (
        ValueError,
        "mask has shape",
        {"mask": causal_mask(L + 1)},
    ),
    "mask per head": (
        ValueError,
        "mask has shape",
        {"mask": torch.ones(B, H, L, L, dtype=torch.bool)},
    ),
    "floating mask": (TypeError, "who may be read", {"mask": torch.zeros(L, L)}),
    "queries of another length": (
        ValueError,
        "queries",
        {"queries": torch.ones(B, L + 1, dtype=torch.bool)},
    ),
    "queries not bool": (ValueError, "bool", {"queries": torch.ones(B, L)}),
    "no query": (
        ValueError,
        "no query counts",
        {"queries": torch.zeros(B, L, dtype=torch.bool)},
    ),
}


@pytest.mark.parametrize("why", BROKEN)
@pytest.mark.parametrize(
    "metric", [heads.current_token, heads.entropy, heads.js_divergence]
)
def test_what_cannot_be_measured_is_refused(metric, why):
    error, words, change = BROKEN[why]
    with pytest.raises(error, match=words):
        metric(**broken(**change))


def test_arguments_that_are_refused():
    attention = attention_under(None)
    for metric in (heads.induction, heads.duplicate_token):
        with pytest.raises(ValueError, match=r"give \(batch, length\) = \(3, 9\)"):
            metric(attention, IDS[:, 1:])
        with pytest.raises(TypeError, match="whole numbers"):
            metric(attention, IDS.float())
    with pytest.raises(ValueError, match="between -8 and 8"):
        heads.at_offset(attention, -L)
    with pytest.raises(TypeError, match="offset"):
        heads.at_offset(attention, 1.0)
    with pytest.raises(ValueError, match="at least 0"):
        heads.within(attention, -1)
    with pytest.raises(ValueError, match="keys"):
        heads.on_keys(attention, MARKED[:1])


def layer_with(**options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 4, vdim=6, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"bias": False}])
def test_weighted_values_are_the_lengths_of_what_is_handed_on(options):
    layer, x = layer_with(**options), torch.randn(2, 5, 8)
    values = torch.randn(2, 5, 6)
    layer.head_gate[1] = 0.5
    _, weights = layer(x, x, values, need_weights=True)
    found = heads.weighted_values(layer, values, weights)
    v = layer.value_proj(values)
    group = 4 // layer.num_kv_heads
    for b, h, q, k in torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist():
        of_head = v[b, k, 2 * (h // group) : 2 * (h // group) + 2]
        handed = layer.out_proj.weight[:, 2 * h : 2 * h + 2] @ of_head
        handed = handed * weights[b, h, q, k] * layer.head_gate[h]
        assert_close(found[b, h, q, k], handed.norm().detach())


def test_one_head_and_one_key_hand_on_the_whole_output():
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(6, 1, batch_first=True), torch.randn(2, 1, 6)
    output, weights = layer(x, x, x, average_attn_weights=False)
    found = heads.weighted_values(layer, x, weights)
    assert_close(found[:, 0, 0, 0], (output - layer.out_proj.bias)[:, 0].norm(dim=-1))
    with pytest.raises(ValueError, match="weights must be"):
        heads.weighted_values(layer, x, torch.ones(2, 3, 1, 1))
    with pytest.raises(TypeError, match="Linear"):
        heads.weighted_values(nn.Linear(6, 6), x, weights)
