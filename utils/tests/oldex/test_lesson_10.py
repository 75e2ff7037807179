"""Lesson 10: right answers in other styles; what the page compares would find a bug."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from utils.oldex import EXERCISES
from utils.oldex.engine import grade
from utils.tests.helpers import Notebook

PAGE = Path(__file__).parents[3] / "notebooks" / "10_fast_attention.ipynb"

# --- 10.1 ---


def cached_by_cat(turn, query, key, value, keys, values, length):
    new, room = query.shape[-2], keys.shape[-2]
    at = length + torch.arange(new)
    kept = []
    for buffer, x in ((keys, turn(key, at)), (values, value)):
        after = buffer[..., length + new :, :]
        kept.append(torch.cat([buffer[..., :length, :], x, after], dim=-2))
    mask = torch.arange(room) <= at[:, None]  # all places, also the empty ones
    return F.scaled_dot_product_attention(turn(query, at), *kept, mask), *kept


def cached_one_by_one(turn, query, key, value, keys, values, length):
    keys, values, outputs = keys.clone(), values.clone(), []
    for i in range(query.shape[-2]):
        at = torch.tensor([length + i])
        keys = keys.index_copy(-2, at, turn(key[..., i : i + 1, :], at))
        values = values.index_copy(-2, at, value[..., i : i + 1, :])
        q = turn(query[..., i : i + 1, :], at)
        scores = q @ keys[..., : length + i + 1, :].mT / q.shape[-1] ** 0.5
        outputs.append(scores.softmax(-1) @ values[..., : length + i + 1, :])
    return torch.cat(outputs, dim=-2), keys, values


@torch.no_grad()
def cached_without_gradients(*args):
    return cached_by_cat(*args)


def cached_in_floats(turn, query, *rest):
    """Positions are numbers of the type of the queries."""
    return cached_by_cat(lambda x, at: turn(x, at.to(query.dtype)), query, *rest)


# --- 10.2 ---


def grouped_by_pytorch(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def grouped_by_expand(query, key, value):
    groups = query.unflatten(1, (key.shape[1], -1))  # (batch, groups, heads, ...)
    scores = groups @ key[:, :, None].mT / query.shape[-1] ** 0.5
    return (scores.softmax(dim=-1) @ value[:, :, None]).flatten(1, 2)


def grouped_by_einsum(query, key, value):
    q = query.unflatten(1, (key.shape[1], -1))
    scores = torch.einsum("bghqd,bgkd->bghqk", q, key) * query.shape[-1] ** -0.5
    return torch.einsum("bghqk,bgkd->bghqd", scores.softmax(-1), value).flatten(1, 2)


def grouped_head_by_head(query, key, value):
    group, heads = query.shape[1] // key.shape[1], []
    for h in range(query.shape[1]):
        scores = query[:, h] @ key[:, h // group].mT / math.sqrt(query.shape[-1])
        heads.append(scores.softmax(-1) @ value[:, h // group])
    return torch.stack(heads, dim=1)


# --- 10.3 ---


def online_by_where(scores, values, top, total, output):
    new = torch.maximum(top, scores.max(dim=-1, keepdim=True).values)
    seen = new > -math.inf
    old = torch.where(seen, (top - new).exp(), 1.0)
    exps = torch.where(seen, (scores - new).exp(), 0.0)
    return new, old * total + exps.sum(-1, keepdim=True), old * output + exps @ values


def online_by_nan_to_num(scores, values, top, total, output):
    new = torch.maximum(top, scores.amax(-1, keepdim=True))
    old, exps = (top - new).exp().nan_to_num(), (scores - new).exp().nan_to_num()
    return new, total * old + exps.sum(-1, keepdim=True), output * old + exps @ values


def online_key_by_key(scores, values, top, total, output):
    rows = []
    for s, m, n, o in zip(scores, top, total, output):
        for each, value in zip(s, values):
            if each > -math.inf:
                new = torch.maximum(m, each)
                old, now = (m - new).exp(), (each - new).exp()
                m, n, o = new, n * old + now, o * old + now * value
        rows.append((m, n, o))
    return tuple(map(torch.stack, zip(*rows)))


def online_by_cat(scores, values, top, total, output):
    both = torch.cat([top, scores], dim=-1)  # what was summed is one more key
    new = both.amax(dim=-1, keepdim=True)
    weights = (both - new.clamp(min=-1e30)).exp()
    old, exps = weights[:, :1], weights[:, 1:]
    return new, old * total + exps.sum(-1, keepdim=True), old * output + exps @ values


# --- 10.4 ---


def window_by_triangles(queries, keys, window):
    pairs = torch.ones(queries, keys, dtype=torch.bool)
    last = keys - queries
    return pairs.tril(last) & pairs.triu(last - window + 1)


def window_by_loops(queries, keys, window):
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        end = keys - queries + i + 1
        mask[i, max(end - window, 0) : end] = True
    return mask


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("10.1", cached_by_cat),
        ("10.1", cached_one_by_one),
        ("10.1", cached_without_gradients),
        ("10.1", cached_in_floats),
        ("10.2", grouped_by_pytorch),
        ("10.2", grouped_by_expand),
        ("10.2", grouped_by_einsum),
        ("10.2", grouped_head_by_head),
        ("10.3", online_by_where),
        ("10.3", online_by_nan_to_num),
        ("10.3", online_key_by_key),
        ("10.3", online_by_cat),
        ("10.4", window_by_triangles),
        ("10.4", window_by_loops),
    ],
)
def test_right_answers_in_another_style_are_right(name, function):
    verdict = grade(EXERCISES[name], function)
    assert verdict.solved, verdict.message


def test_the_given_buffers_must_not_be_changed():
    def in_place(turn, query, key, value, keys, values, length):
        at = torch.arange(length, length + query.shape[-2])
        keys[..., at, :], values[..., at, :] = turn(key, at), value
        return cached_by_cat(turn, query, key, value, keys, values, length)

    verdict = grade(EXERCISES["10.1"], in_place)
    assert not verdict.solved and "`keys`, `values` in place" in verdict.message


def mistakes():
    """Yield (exercise, mistake, function): mistakes as a learner writes them."""

    def interleaved(query, key, value):
        group = query.shape[1] // key.shape[1]
        return F.scaled_dot_product_attention(
            query, key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)
        )

    def without_guard(scores, values, top, total, output):
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        old, e = (top - new).exp(), (scores - new).exp()
        return new, total * old + e.sum(-1, keepdim=True), output * old + e @ values

    def by_is_causal(turn, query, key, value, keys, values, length):
        end = length + query.shape[-2]
        at = torch.arange(length, end)
        _, keys, values = cached_by_cat(turn, query, key, value, keys, values, length)
        seen = keys[..., :end, :], values[..., :end, :]
        attend = F.scaled_dot_product_attention
        return attend(turn(query, at), *seen, is_causal=True), keys, values

    def one_too_many(queries, keys, window):
        return window_by_triangles(queries, keys, window + 1)

    def first_maximum_0(scores, values, top, total, output):
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        shift = torch.where(new > -math.inf, new, 0.0)
        factor = (torch.where(top > -math.inf, top, 0.0) - shift).exp()
        exps = (scores - shift).exp()
        total = total * factor + exps.sum(-1, keepdim=True)
        return new, total, output * factor + exps @ values

    def negative_start(queries, keys, window):
        rows = []
        for end in range(keys - queries + 1, keys + 1):
            row = torch.zeros(keys, dtype=torch.bool)
            row[end - window : end] = True
            rows.append(row)
        return torch.stack(rows)

    def all_turned_when_read(turn, query, key, value, keys, values, length):
        end = length + query.shape[-2]
        keys, values = keys.clone(), values.clone()
        keys[..., length:end, :], values[..., length:end, :] = key, value
        query = turn(query, torch.arange(length, end))
        read = turn(keys[..., :end, :], torch.arange(end)), values[..., :end, :]
        mask = torch.ones(end, end).tril()[length:].bool()
        return F.scaled_dot_product_attention(query, *read, mask), keys, values

    def cached_by_exp(*args):
        length, new = args[-1], args[1].shape[-2]
        _, keys, values = cached_by_cat(*args)
        query = args[0](args[1], torch.arange(length, length + new))
        scores = query @ keys.mT / query.shape[-1] ** 0.5
        seen = torch.arange(keys.shape[-2]) <= torch.arange(new)[:, None] + length
        exps = scores.masked_fill(~seen, -math.inf).exp()
        return exps @ values / exps.sum(-1, keepdim=True), keys, values

    def cached_by_view(turn, query, *rest):
        def flat(x, at):
            return turn(x.view(-1, *x.shape[-2:]), at).view(x.shape)

        return cached_by_cat(flat, query, *rest)

    def grouped_by_exp(query, key, value):
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        exps = (query @ key.mT / query.shape[-1] ** 0.5).exp()
        return exps @ value / exps.sum(dim=-1, keepdim=True)

    def grouped_by_view(query, key, value):
        groups = query.view(len(query), key.shape[1], -1, query.shape[-1])
        return F.scaled_dot_product_attention(groups, key, value).view(query.shape)

    def repeated_by_their_number(query, key, value):
        times = key.shape[1]
        key, value = (x.repeat_interleave(times, dim=1) for x in (key, value))
        return F.scaled_dot_product_attention(query, key, value)

    def hidden_counted(scores, values, top, total, output):
        new = torch.maximum(top, scores.max(-1, keepdim=True).values)
        old, e = (x.sub(new).nan_to_num(0).exp() for x in (top, scores))
        return new, total * old + e.sum(-1, keepdim=True), output * old + e @ values

    yield "10.1", "old keys turned again", all_turned_when_read
    yield "10.1", "a softmax that overflows", cached_by_exp
    yield "10.1", "view of transposed memory", cached_by_view
    yield "10.2", "a softmax that overflows", grouped_by_exp
    yield "10.2", "view of transposed memory", grouped_by_view
    yield "10.2", "size and number of groups confused", repeated_by_their_number
    yield "10.3", "NaN replaced before exp", hidden_counted
    yield "10.3", "the first maximum taken for 0", first_maximum_0
    yield "10.4", "a slice that starts before 0", negative_start
    yield "10.2", "groups interleaved", interleaved
    yield "10.3", "NaN where nothing is visible", without_guard
    yield "10.1", "mask in the upper corner", by_is_causal
    yield "10.4", "one too many", one_too_many


@pytest.mark.parametrize(("name", "mistake", "function"), list(mistakes()))
def test_a_mistake_in_another_style_gets_its_name(name, mistake, function):
    assert grade(EXERCISES[name], function).mistake == mistake


def test_no_state_of_the_online_softmax_is_larger_than_its_scores_allow():
    """Nothing overflows in the reference, and hidden queries keep their state."""
    for trial in EXERCISES["10.3"].inputs(torch.float32):
        top, total, output = EXERCISES["10.3"].reference(**trial)
        assert total.isfinite().all() and output.isfinite().all()
        hidden = (trial["scores"] == -math.inf).all(dim=-1)
        for new, old in zip((top, total, output), list(trial.values())[2:]):
            assert torch.equal(new[hidden], old[hidden])


# --- the page ---


def cell(name):
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    return "".join(next(c["source"] for c in cells if c["id"] == name))


def compared(flash):
    """Run the page's comparison of a tiled attention with the reference."""
    page = Notebook().run("import math, torch").run("from utils.attention import *")
    page.run("from torch.testing import assert_close")
    page.run("attention = lambda *x, mask: scaled_dot_product_attention(*x, mask)[0]")
    page.run(flash).run("torch.manual_seed(0)").run(cell("n10-flash-equal"))


def test_the_tiled_attention_of_the_page_is_right(capsys):
    compared(cell("n10-flash"))
    assert capsys.readouterr().out.count("equal to 1e-12") == 4


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("new_top.masked_fill(new_top == -math.inf, 0.0)", "new_top"),
        ("total = rescale * total +", "total = total +"),
        ("out = rescale * out +", "out = out +"),
        ("torch.maximum(top, scores.amax(dim=-1, keepdim=True))", "top.clamp(min=0)"),
        ("out / total.clamp(min=1)", "out / total"),
        ("j in torch.arange(key.shape[-2])", "j in torch.arange(key.shape[-2] - 1)"),
        ("if not visible.any():", "if not visible.all():"),
        ("rule(i[:, None], j)", "rule(j, i[:, None])"),
    ],
)
def test_the_comparison_of_the_page_finds_a_wrong_tile(right, wrong):
    source = cell("n10-flash")
    assert source.count(right) == 1
    with pytest.raises(AssertionError):
        compared(source.replace(right, wrong))
