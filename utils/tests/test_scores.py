"""Tables of scores: value, nulls, lift, and intervals that mean what they say."""

import math

import pytest
import torch
from torch.testing import assert_close

from utils.heads import at_offset, induction, previous_token
from utils.masks import causal_mask, padding_mask
from utils.nulls import best_of, uniform_attention
from utils.scores import Table, compare, score_table

B, H, L = 6, 3, 8
MASK = causal_mask(L) & padding_mask([8, 7, 6, 5, 8, 4], L)


def attention(seed, sharp=1.0):
    g = torch.Generator().manual_seed(seed)
    scores = sharp * torch.randn(B, H, L, L, generator=g)
    return scores.masked_fill(~MASK, -math.inf).softmax(-1)


LAYERS = [attention(0, 3), attention(1, 3)]
NULLS = {"even": uniform_attention(MASK), "untrained": [attention(4), attention(3)]}


def test_a_row_per_head_with_the_same_metric_of_every_null():
    table = score_table(previous_token, LAYERS, NULLS, mask=MASK)
    names = [row.name for row in table]
    assert names == ["L0 H0", "L0 H1", "L0 H2", "L1 H0", "L1 H1", "L1 H2"]
    for row in table:
        layer, head = int(row.name[1]), int(row.name[4])
        value = previous_token(LAYERS[layer], mask=MASK)[:, head]
        even = previous_token(NULLS["even"].expand(B, 1, L, L), mask=MASK)[:, 0]
        fresh = previous_token(NULLS["untrained"][layer], mask=MASK)[:, head]
        assert row.value == pytest.approx(value.mean().item())
        assert row.nulls == pytest.approx(
            {"even": even.mean().item(), "untrained": fresh.mean().item()}
        )
        hardest = max(even, fresh, key=torch.mean)
        assert row.lift == pytest.approx((value - hardest).mean().item(), abs=1e-6)
        assert row.interval[0] <= row.value <= row.interval[1]
        assert row.lift_interval[0] <= row.lift <= row.lift_interval[1]
        assert row.sequences == B


def test_the_null_has_the_mask_of_the_finding():
    """A head that spreads evenly has no lift over the even spread of its own mask."""
    even = uniform_attention((B, 1, L, L), MASK)
    (row,) = score_table(
        previous_token, even, {"even": uniform_attention(MASK)}, mask=MASK
    )
    assert row.name == "head 0" and row.lift == 0 and row.lift_interval == (0, 0)
    with pytest.raises(ValueError, match="may not read"):
        nulls = {"even": uniform_attention(causal_mask(L))}  # it reads padding
        score_table(previous_token, even, nulls, mask=MASK)


def test_whoever_chooses_the_best_lets_the_nulls_choose():
    (row,) = score_table(previous_token, LAYERS, NULLS, best=True, mask=MASK)
    each = score_table(previous_token, LAYERS, NULLS, mask=MASK)
    best = max(each, key=lambda row: row.value)
    assert (row.name, row.value) == (f"best: {best.name}", best.value)
    assert row.nulls["untrained"] == max(row.nulls["untrained"] for row in each)
    assert row.lift < best.lift  # this head's own twin is not the best of the twins


def test_a_null_may_choose_its_offset():
    def of(layers):
        return best_of(
            *[at_offset(a, o, mask=MASK) for a in layers for o in (-1, -2, -3)]
        )

    row = compare(of(LAYERS), {"untrained": of(NULLS["untrained"])}, "best offset")
    own = at_offset(NULLS["untrained"][0], -1, mask=MASK).mean(0)
    assert row.nulls["untrained"] >= own.max().item() - 1e-6


def test_sequences_in_which_a_score_is_not_defined_are_left_out():
    ids = torch.arange(L).repeat(B, 1)
    ids[:2, 3] = 0  # only here a token comes back
    even = uniform_attention(causal_mask(L)).expand(B, H, L, L)
    table = score_table(induction, even, {"even": even}, mask=causal_mask(L), ids=ids)
    assert {row.sequences for row in table} == {2}
    assert table[0].value == pytest.approx(1 / 4)
    with pytest.raises(ValueError, match="defined in no sequence"):
        compare(torch.full((3,), math.nan), {})


def test_the_interval_is_that_of_the_mean():
    g = torch.Generator().manual_seed(0)
    values = torch.randn(400, generator=g) + 5
    row = compare(values, {"zero": torch.zeros(400)})
    half = 1.96 * values.std().item() / 20
    assert row.interval == pytest.approx((row.value - half, row.value + half), abs=0.03)
    assert compare(values, {}) == compare(values, {})
    assert compare(values, {}, seed=1).interval != compare(values, {}).interval
    # sequence by sequence: what score and null share is no doubt about the lift
    row = compare(values, {"close": values - 1})
    assert row.lift_interval == pytest.approx((1, 1), abs=1e-5)


def test_one_sequence_has_no_interval():
    row = compare(torch.ones(1), {"null": torch.zeros(1)})
    assert all(math.isnan(x) for x in (*row.interval, *row.lift_interval))


def test_the_table_prints_few_digits():
    row = compare(
        torch.tensor([0.5, 0.75]), {"even": torch.tensor([0.125, 0.125])}, "a"
    )
    assert str(Table([row])).splitlines() == [
        "   value          95 %  even   lift            95 %  n",
        "a   0.62  [0.50, 0.75]  0.12  +0.50  [+0.38, +0.62]  2",
    ]
    assert str(Table()) == "no rows"


def test_no_input_is_changed():
    before = [a.clone() for a in LAYERS]
    score_table(previous_token, LAYERS, NULLS, mask=MASK)
    assert_close(LAYERS, before, rtol=0, atol=0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="'x' has 1 layers"):
        score_table(previous_token, LAYERS, {"x": [LAYERS[0]]}, mask=MASK)
    with pytest.raises(ValueError, match="the same shape"):
        score_table(previous_token, LAYERS, {"x": LAYERS[0][:, :, 1:]}, mask=MASK)
    with pytest.raises(ValueError, match="empty list"):
        score_table(previous_token, [], {})
    with pytest.raises(ValueError, match="2 sequences"):
        compare(torch.ones(3), {"x": torch.ones(2)})
