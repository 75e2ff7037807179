"""Exercise 4.3: right tests are solved, however they measure; gaps are named."""

import pytest
import torch

from utils.oldex import EXERCISES
from utils.oldex.engine import grade


def a_test(is_apart, length=40, atol=1e-4):
    """Return a right answer to 4.3, but for what the arguments change."""

    def answer(add_positions):
        x = torch.randn(3, length, 24)
        before = x.clone()
        added = add_positions(x) - before
        short = torch.randn(2, 15, 24)
        less = add_positions(short.clone()) - short
        same = torch.allclose(added, added[:1].expand_as(added), atol=atol)
        same = same and torch.allclose(less, added[:2, :15], atol=atol)
        return same and x.equal(before) and is_apart(added[0])

    return answer


def by_norm(rows, gap=0.01):
    distances = (rows[:, None] - rows).norm(dim=-1)
    return bool((distances + torch.eye(len(rows))).min() > gap)


def by_pairs(rows):
    return bool(torch.pdist(rows).min() > 0.05)


def by_largest_difference(rows):
    differences = (rows[:, None] - rows).abs().amax(dim=-1)
    return int((differences < 1e-4).sum()) == len(rows)


def by_product(rows):
    return bool((torch.cdist(rows, rows) + torch.eye(len(rows))).min() > 0.01)


@pytest.mark.parametrize("is_apart", [by_norm, by_pairs, by_largest_difference])
def test_distances_may_be_measured_in_several_ways(is_apart):
    verdict = grade(EXERCISES["4.3"], a_test(is_apart))
    assert verdict.solved, verdict.message


GAPS = {
    "distances by a matrix product": a_test(by_product),
    "distant positions not compared": a_test(by_norm, length=39),
    "gap too wide": a_test(lambda rows: by_norm(rows, gap=0.06)),
    "tolerance too wide": a_test(by_norm, atol=1e-2),
    "a number instead of a truth": lambda embed: int(a_test(by_norm)(embed)),
}


@pytest.mark.parametrize("mistake", GAPS)
def test_a_test_with_a_gap_is_refused_by_its_name(mistake):
    verdict = grade(EXERCISES["4.3"], GAPS[mistake])
    assert not verdict.solved and verdict.mistake == mistake, verdict.message
