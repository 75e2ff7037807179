"""Lesson 11, deeper: right answers in other styles are right."""

import pytest
import torch

from utils.oldex import EXERCISES
from utils.oldex.engine import grade


def by_gather(logits, answer, other):
    pair = torch.stack([answer, other], dim=1)  # (batch, 2)
    found = logits[:, -1].gather(1, pair)
    return found[:, 0] - found[:, 1]


def by_log_probabilities(logits, answer, other):
    found = logits.log_softmax(dim=-1)[:, -1]
    rows = range(len(found))
    return found[rows, answer] - found[rows, other]


def by_where(into, source, head, position, num_heads):
    batch, length, dim = into.shape
    mine = torch.arange(dim) // (dim // num_heads) == head
    here = torch.arange(length) == position % length
    return torch.where(here[:, None] & mine, source, into)


def by_unflatten(into, source, head, position, num_heads):
    patched = into.unflatten(-1, (num_heads, -1)).clone()
    given = source.unflatten(-1, (num_heads, -1))
    patched[:, position, head] = given[:, position, head]
    return patched.flatten(-2)


def head_by_head(heads, w_o, gain, rms, direction):
    size, found = heads.shape[-1], []
    for h in range(heads.shape[1]):
        added = heads[:, h] @ w_o[:, h * size : (h + 1) * size].T
        found.append((added / rms[:, None] * gain * direction).sum(dim=-1))
    return torch.stack(found, dim=1)


def backwards(heads, w_o, gain, rms, direction):
    """The direction goes back through the norm and w_o; then one dot product a head."""
    back = (direction * gain / rms[:, None]) @ w_o  # (batch, all features)
    return (back.view_as(heads) * heads).sum(dim=-1)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("11.4", by_gather),
        ("11.4", by_log_probabilities),
        ("11.5", by_where),
        ("11.5", by_unflatten),
        ("11.6", head_by_head),
        ("11.6", backwards),
    ],
)
def test_right_answers_in_other_styles_are_right(name, function):
    verdict = grade(EXERCISES[name], function)
    assert verdict.solved, verdict.message


def by_log(logits, answer, other):
    last, rows = logits[:, -1].softmax(dim=-1), torch.arange(len(logits))
    return (last[rows, answer] / last[rows, other]).log()


def without_the_texts(into, source, head, position, num_heads):
    mine = torch.arange(into.shape[-1]).chunk(num_heads)[head]
    patched = into.clone()
    patched[position, mine[0] : mine[-1] + 1] = source[position, mine[0] : mine[-1] + 1]
    return patched


def by_the_root(heads, w_o, gain, rms, direction):
    return head_by_head(heads, w_o, gain, rms.sqrt(), direction)


@pytest.mark.parametrize(
    ("name", "mistake", "function"),
    [
        ("11.4", "logarithms of probabilities that are 0", by_log),
        ("11.5", "the axis of the texts forgotten", without_the_texts),
        ("11.6", "divided by the root of the rms", by_the_root),
    ],
)
def test_a_mistake_in_another_style_gets_its_name(name, mistake, function):
    assert grade(EXERCISES[name], function).mistake == mistake


def test_the_stream_may_be_narrower_than_the_heads_together():
    def by_the_heads(heads, w_o, *rest):
        _, count, size = heads.shape
        return head_by_head(heads, w_o.T.reshape(-1, count * size).T, *rest)

    assert not grade(EXERCISES["11.6"], by_the_heads).solved
