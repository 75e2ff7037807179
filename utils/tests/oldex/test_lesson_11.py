"""Lesson 11: right answers in other styles; the checkers know what the course knows."""

import pytest
import torch

from utils.oldex import EXERCISES
from utils.oldex.engine import grade
from utils.heads import induction


def tokens_by_sorting(logits, k):
    ordered = torch.softmax(logits, dim=-1)[:, -1, :].sort(dim=-1, descending=True)
    return ordered.values[:, :k], ordered.indices[:, :k]


def tokens_by_hand(logits, k):
    last = logits[:, logits.shape[1] - 1]
    exp = (last - last.amax(dim=-1, keepdim=True)).exp()
    ids = last.argsort(dim=-1, descending=True)[:, :k]
    return [(exp / exp.sum(dim=-1, keepdim=True)).gather(-1, ids), ids]


def score_of_diagonal(weights, period):
    return weights.diagonal(1 - period, dim1=-2, dim2=-1)[:, 1:].mean(dim=-1)


def score_by_loops(weights, period):
    length, found = weights.shape[-1], []
    for head in weights:
        each = [head[q, q - period + 1] for q in range(period, length)]
        found.append(sum(each) / (length - period))
    return torch.stack(found)


def score_of_the_course(weights, period):
    length = weights.shape[-1]
    ids = torch.arange(period).repeat(2)[None, :length]
    return induction(weights[None], ids)[0]


def choice_unravelled(scores, k):
    half = scores.shape[0] // 2
    first, second = scores[:half].mean(0), scores[half:].mean(0)
    order = first.flatten().argsort(descending=True)[:k]
    layer, head = torch.unravel_index(order, first.shape)
    return torch.stack([layer, head], dim=-1), second[layer, head]


def choice_by_loops(scores, k):
    texts, layers, heads = scores.shape
    first, second = scores.split([texts // 2, texts - texts // 2])
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    every.sort(key=lambda at: first[:, at[0], at[1]].mean().item(), reverse=True)
    means = [second[:, layer, head].mean() for layer, head in every[:k]]
    return torch.tensor(every[:k]), torch.stack(means)


@pytest.mark.parametrize(
    "name, function",
    [
        ("11.1", tokens_by_sorting),
        ("11.1", tokens_by_hand),
        ("11.2", score_of_diagonal),
        ("11.2", score_by_loops),
        ("11.2", score_of_the_course),
        ("11.3", choice_unravelled),
        ("11.3", choice_by_loops),
    ],
)
def test_right_in_another_style(name, function):
    verdict = grade(EXERCISES[name], function)
    assert verdict.solved, verdict.message


def score_of_the_whole_diagonal(weights, period):
    return weights.diagonal(1 - period, dim1=-2, dim2=-1).mean(dim=-1)


def choice_without_other_texts(scores, k):
    mean = scores.mean(dim=0)
    values, order = mean.flatten().topk(k)
    return torch.stack(torch.unravel_index(order, mean.shape), dim=1), values


def tokens_by_exp(logits, k):
    exp = torch.exp(logits)[:, -1]
    values, ids = (exp / exp.sum(dim=-1, keepdim=True)).topk(k)
    return values, ids


def worst_first(scores, k):
    pairs, means = choice_by_loops(scores, k)
    return pairs.flip(0), means.flip(0)


def choice_by_true_division(scores, k):
    half, heads = len(scores) // 2, scores.shape[2]
    chosen = scores[:half].mean(0).flatten().argsort(descending=True)[:k]
    pairs = torch.stack([chosen / heads, chosen % heads], dim=1)
    return pairs, scores[half:].mean(0).flatten()[chosen]


def test_zeros_are_not_taken_for_rows_and_columns_exchanged():
    verdict = grade(EXERCISES["11.2"], lambda w, p: w.new_zeros(len(w)))
    assert not verdict.solved
    assert verdict.mistake != "rows and columns exchanged"


@pytest.mark.parametrize(
    "name, function, mistake",
    [
        ("11.1", lambda x, k: x[:, 0].softmax(-1).topk(k)[:], "the first position"),
        ("11.1", tokens_by_exp, "a softmax that overflows"),
        ("11.2", score_of_the_whole_diagonal, "a query of the first copy"),
        ("11.2", lambda w, p: w.diagonal(1, 1, 2).mean(-1), "the key after the query"),
        ("11.3", choice_without_other_texts, "chosen on all texts"),
        ("11.3", lambda s, k: choice_by_loops(s, k)[::-1], "the means first"),
        ("11.3", worst_first, "the worst of them first"),
        ("11.3", choice_by_true_division, "divided without rounding down"),
        ("11.1", lambda x, k: x[-1].softmax(-1).topk(k)[:], "the last text alone"),
        ("11.1", lambda x, k: x[:, -1:].softmax(-1).topk(k)[:], "an axis too many"),
    ],
)
def test_mistake_is_named(name, function, mistake):
    assert grade(EXERCISES[name], function).mistake == mistake


def test_a_text_may_have_a_single_token_more_than_its_period():
    trials = EXERCISES["11.2"].trials()
    assert any(t["weights"].shape[-1] == t["period"] + 1 for t in trials)


def test_no_rounding_decides_the_order():
    for trial in EXERCISES["11.1"].inputs(torch.float64):
        ordered = trial["logits"][:, -1].sort(dim=-1).values
        assert ordered.diff().min() > 1e-4
    for trial in EXERCISES["11.3"].inputs(torch.float64):
        half = len(trial["scores"]) // 2
        ordered = trial["scores"][:half].mean(dim=0).flatten().sort().values
        assert ordered.diff().min() > 1e-5
