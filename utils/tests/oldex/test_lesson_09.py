"""Lesson 09: right answers in other styles; no rounding decides; what a report is."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from utils.oldex import EXERCISES
from utils.oldex.engine import grade

KEPT = list(EXERCISES["9.4"].inputs(torch.float32))


@pytest.mark.parametrize("trial", KEPT, ids=lambda t: str(tuple(t["before"].shape)))
def test_no_rounding_decides_who_is_the_kth_nearest(trial):
    k = trial["k"]
    for name in ("before", "after"):
        x = F.normalize(trial[name].double(), dim=-1)
        cosines = (x @ x.mT).fill_diagonal_(-torch.inf).sort(descending=True).values
        gaps = cosines[:, k - 1] - cosines[:, k]  # infinite where k are all others
        assert gaps.min() > 1e-5


def unit(x):
    return F.normalize(x, dim=-1)


def kept(before, after, k, of=unit, similar=None, nearest=None):
    """Return the answer to 9.4 with one step done otherwise."""
    similar = similar or (lambda x: x @ x.mT)
    nearest = nearest or (lambda cosines: cosines.topk(k).indices)
    a, b = (nearest(similar(of(x)).fill_diagonal_(-torch.inf)) for x in (before, after))
    return (a[:, :, None] == b[:, None, :]).any(dim=-1).float().mean(dim=-1)


def kept_by_argsort(before, after, k):
    return kept(before, after, k, nearest=lambda x: x.argsort(descending=True)[:, :k])


def kept_by_cosine_similarity(before, after, k):
    def cosines(x):
        return F.cosine_similarity(x[:, None], x, dim=-1)

    return kept(before, after, k, of=lambda x: x, similar=cosines)


def kept_in_numpy(before, after, k):
    found = []
    for z in (before.numpy(), after.numpy()):
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
        similar = z @ z.T
        np.fill_diagonal(similar, -np.inf)
        found.append(np.argsort(-similar, axis=1)[:, :k])
    stay = [len(set(a) & set(b)) / k for a, b in zip(*found)]
    return torch.tensor(stay, dtype=torch.float32)


def map_in_numpy(attention, word_of, words):
    weights, word_of = attention.numpy(), word_of.numpy()
    found = np.zeros((len(weights), words, words), weights.dtype)
    for i in set(word_of) - {-1}:
        for j in range(words):
            block = weights[:, word_of == i][:, :, word_of == j]
            found[:, i, j] = block.sum(axis=-1).mean(axis=-1)
    return torch.from_numpy(found)


@pytest.mark.parametrize(
    "name, function",
    [
        ("9.1", map_in_numpy),
        ("9.4", lambda *given: kept(*given, of=lambda x: unit(x.double()))),
        ("9.4", kept_by_argsort),
        (
            "9.4",
            lambda *given: kept(
                *given, similar=lambda x: F.cosine_similarity(x[:, None], x, dim=-1)
            ),
        ),
        ("9.4", kept_in_numpy),
    ],
)
def test_right_answers_in_other_styles_are_right(name, function):
    verdict = grade(EXERCISES[name], function)
    assert verdict.solved, verdict.message


@pytest.mark.parametrize(
    "of",
    [
        lambda x: unit(x).bfloat16().float(),
        lambda x: unit(x).half().float(),
        lambda x: unit(x.half().float()),
        lambda x: x / (x.norm(dim=-1, keepdim=True) + 0.001),
    ],
)
def test_cosines_that_are_not_exact_are_refused(of):
    assert not grade(EXERCISES["9.4"], lambda *given: kept(*given, of=of)).solved


def map_of_three_pieces(attention, word_of, words):
    belongs = F.one_hot(word_of + 1, words + 1)[:, 1:].to(attention.dtype)
    belongs = belongs * (belongs.cumsum(dim=0) <= 3)
    return (belongs / belongs.sum(dim=0).clamp(min=1)).mT @ attention @ belongs


def test_words_may_have_four_pieces():
    assert not grade(EXERCISES["9.1"], map_of_three_pieces).solved


def test_a_report_that_remembers_begins_anew_with_every_call_of_an_answer():
    (named,) = [
        trial["report"]
        for trial in EXERCISES["9.2"].inputs(torch.float32)
        if "keeps the head" in trial["report"].__name__
    ]
    first, other = torch.eye(2)[:1], torch.eye(2)[1:]  # head 0 is right, and head 1
    report, again = copy.deepcopy(named), copy.deepcopy(named)
    assert report(first, other) == 0 and report(other, first) == 1  # still head 0
    assert again(other, first) == 0


def table(*hits, arcs=10):
    return (torch.arange(arcs)[:, None] < torch.tensor(hits)).double()


def asks(*cases):
    """Return a test of a report: the hits in both parts, and the honest number."""
    return lambda report: all(
        abs(report(table(*first), table(*other)) - number) < 1e-6
        for first, other, number in cases
    )


def rolled(columns, by):
    return (*columns[-by:], *columns[:-by])


def never_weighs_the_parts_alike(report):
    """One who chooses by the mean of both accuracies is right on all of these pairs."""
    first, other = (4, 3, 1, 2, 0), (20, 30, 90, 50, 10)
    pairs = [
        (table(*rolled(first, by), arcs=4), table(*rolled(other, by), arcs=100))
        for by in range(5)
    ]
    unlike = abs(report(table(9, 8, 1), table(5, 6, 0)) - 0.5) < 1e-6
    return unlike and all(abs(report(*pair) - 0.2) < 1e-6 for pair in pairs)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (never_weighs_the_parts_alike, "the mean of both"),
        (
            asks(((7, 7, 3, 1), (2, 9, 5, 1), 0.2), ((1, 3, 7, 7), (1, 2, 3, 9), 0.3)),
            "the last of equals",
        ),
        (
            asks(((7, 6, 1), (2, 9, 1), 0.2), ((1, 6, 7), (1, 9, 2), 0.2)),
            "first call again",
        ),
        (asks(((7, 6), (2, 9), 0.2), ((6, 7), (9, 4), 0.4)), "the worst head"),
    ],
)
def test_only_one_procedure_sees_these_tests(wrong, said):
    verdict = grade(EXERCISES["9.2"], wrong)
    assert not verdict.solved and said in verdict.message


PAGE = torch.tensor([[0.0, 1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda report: report(*PAGE) == 0.5, "example of the page"),
        (
            lambda report: report(*PAGE) < report(PAGE[0], PAGE[0]),
            "above that of the first",
        ),
    ],
)
def test_the_example_of_the_page_is_not_enough(wrong, said):
    verdict = grade(EXERCISES["9.2"], wrong)
    assert not verdict.solved and said in verdict.message, verdict.message


@pytest.mark.parametrize("table", [[[0, 1], [1, 1]], np.ones((2, 2))])
def test_a_report_says_that_it_takes_tensors(table):
    verdict = grade(EXERCISES["9.2"], lambda report: report(table, table) > 0.5)
    assert "report takes two tensors (arcs, heads)" in verdict.message
