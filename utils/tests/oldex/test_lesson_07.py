"""Lesson 07: the mistakes that its readers made, and what kind of number is right."""

import pytest
import torch

from utils.oldex import EXERCISES
from utils.oldex.engine import grade


@pytest.mark.parametrize("low", [-1e4, -2e4, -1e5])
def test_a_finite_number_does_not_hide(low):
    def answer(scores, mask):
        weights = scores.masked_fill(~mask, low).softmax(dim=-1)
        return weights.masked_fill(~mask, torch.nan)

    assert not grade(EXERCISES["7.1"], answer).solved


def causal_of_its_own(marks, mask):
    visible = torch.arange(1, mask.shape[1] + 1)
    marked = (marks & mask).sum(dim=-1)
    return (marked / visible).sum(dim=-1) / (marked > 0).sum(dim=-1)


def without_the_first(marks, mask):
    shares = (marks & mask).sum(dim=-1) / mask.sum(dim=-1)
    return shares[:, 1:].mean(dim=-1)


def the_same_for_all(marks, mask):
    marked = (marks & mask).sum(dim=-1)
    shares = marked / mask.sum(dim=-1).clamp(min=1)
    return (shares.sum() / (marked > 0).sum()).expand(len(marks))


@pytest.mark.parametrize(
    "answer, said",
    [
        (causal_of_its_own, "not every mask is causal"),
        (without_the_first, "which queries count"),
        (the_same_for_all, "one number for each text"),
    ],
)
def test_the_mistake_is_named(answer, said):
    graded = grade(EXERCISES["7.2"], answer)
    assert not graded.solved and said in str(graded)


def test_the_head_is_a_whole_number_however_it_is_held():
    exercise = EXERCISES["7.3"]

    def solved(kind):
        def answer(found, copies):
            head, *numbers = exercise.reference(found, copies)
            return kind(head), *numbers

        return grade(exercise, answer).solved

    assert solved(int) and solved(torch.tensor)
    assert not solved(float) and not solved(str)
