"""Lesson 05: what is rounded is refused; an empty cache; what a test has not found."""

import math

import pytest
import torch
import torch.nn.functional as F

from utils.oldex import EXERCISES
from utils.oldex.engine import grade

TURNED = torch.arange(8)


def alibi_of_rounded_distances(num_heads, queries, keys):
    behind = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    one = EXERCISES["5.1"].reference(num_heads, 2, 2)[:, 1, 0]  # minus the slopes
    return one[:, None, None] * behind.clamp(min=0).bfloat16().float()


def bucket_with_logarithms_in(kind):
    def answer(relative, exact, wide, max_distance):
        distance = (-relative).clamp(min=0)
        logarithm = (distance.clamp(min=1) / exact).to(kind).log().float()
        k = (logarithm / math.log(max_distance / exact) * wide).floor().long()
        far = (exact + k).clamp(max=exact + wide - 1)
        return torch.where(distance < exact, distance, far)

    return answer


def step_from_0_if_nothing_is_kept(turn, query, key, value, keys, values, seen):
    seen = seen if keys.shape[-2] else 0
    return EXERCISES["5.5"].reference(turn, query, key, value, keys, values, seen)


@pytest.mark.parametrize(
    ("name", "wrong", "mistake"),
    [
        ("5.1", alibi_of_rounded_distances, "distances rounded"),
        ("5.2", bucket_with_logarithms_in(torch.float16), "logarithms rounded"),
        ("5.2", bucket_with_logarithms_in(torch.bfloat16), "logarithms rounded"),
        ("5.5", step_from_0_if_nothing_is_kept, "restart when all keys were dropped"),
    ],
)
def test_it_is_refused_by_its_name(name, wrong, mistake):
    verdict = grade(EXERCISES[name], wrong)
    assert not verdict.solved and verdict.mistake == mistake, verdict.message


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_no_rounding_decides_in_which_bucket_a_distance_is(kind):
    assert grade(EXERCISES["5.2"], bucket_with_logarithms_in(kind)).solved
    for trial in EXERCISES["5.2"].inputs(torch.float32):
        exact, wide, end = (trial[n] for n in ("exact", "wide", "max_distance"))
        distance = (-trial["relative"]).clamp(min=0)
        beyond = distance[distance > exact].double()
        k = wide * (beyond / exact).log() / math.log(end / exact)
        assert ((k - k.round()).abs() > 1e-4).all()


def test_of_the_sines_only_the_signs_are_wrong():
    def backwards(x, positions, base):
        return EXERCISES["5.3"].reference(x, -positions, base)

    verdict = grade(EXERCISES["5.3"], backwards)
    assert verdict.mistake == "turned backwards" and "signs" in verdict.message
    assert "bfloat16" not in verdict.message


def asks(vectors, compared=lambda scores: scores, atol=1e-2):
    """Return a test that compares something of the scores of some vectors."""

    def test(turn):
        def seen(positions):
            query, key = vectors()
            return compared(turn(query, positions) @ turn(key, positions).mT)

        far, here = seen(TURNED + 1001), seen(TURNED)
        apart = torch.allclose(seen(2 * TURNED), here, atol=atol)
        return torch.allclose(far, here, atol=atol) and not apart

    return test


def drawn():
    """Return queries and keys; with them, the mean of all scores hides rounding."""
    return torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(2))


def first_features():
    return F.one_hot(torch.zeros(2, 8, dtype=torch.long), 16).float()


@pytest.mark.parametrize(
    "wrong", [asks(drawn, torch.mean), asks(first_features), asks(drawn, atol=1.0)]
)
def test_what_does_not_find_rounded_angles_is_told_so(wrong):
    verdict = grade(EXERCISES["5.4"], wrong)
    assert not verdict.solved and verdict.mistake == "float16 angles not found"
    assert "all scores of random vectors" in verdict.message


def test_a_test_that_counts_from_0_itself_is_told_what_it_misses():
    def diagonals(turn):
        query, key = (x[:1].expand(1100, 16) for x in drawn())
        scores = turn(query, torch.arange(1100)) @ turn(key, torch.arange(1100)).mT
        lines = [scores.diagonal(-d) for d in (0, 1, 2, 10, 100)]
        return all(bool(x.max() - x.min() <= 0.01) for x in lines) and bool(
            (scores[0] - scores[0, 0]).abs().max() > 0.01
        )

    verdict = grade(EXERCISES["5.4"], diagonals)
    assert not verdict.solved and "takes 0, 1, 2, ... instead" in verdict.message
