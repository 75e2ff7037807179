"""Ratios of times: nothing wrong is timed; what the clock gives; the layer's own.

Never seconds, which are those of a machine.
"""

import pytest
import torch
from torch import nn

from utils import benchmark
from utils.attention import MultiHeadAttention
from utils.benchmark import time_ratios

CALLS = (50.0, 70.0, 1, 2, 3)  # compared, untimed, then what is measured


def test_the_ratio_is_the_median_of_each_round_against_the_first(monkeypatch):
    now, left, seen = [0.0], {}, []  # a clock that moves only while a function runs
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: now[0])

    def taking(name, *seconds):
        left[name] = list(seconds)

        def function(x):
            seen.append((torch.is_grad_enabled(), torch.get_num_threads()))
            now[0] += left[name].pop(0)
            return x * 2

        return function

    leaf, before = torch.ones(2, requires_grad=True), torch.get_num_threads()
    functions = {"first": taking("first", 50, *[70, 1, 70, 10, 70, 2])}
    functions["other"] = taking("other", 50, *[70, 3, 70, 90, 70, 8])
    found = time_ratios(functions, (leaf,), rounds=3)
    assert found == {"first": 1.0, "other": 4.0}  # of 3, 9 and 4
    assert leaf.grad is None and {*seen} == {(False, before), (False, 2)}
    assert torch.get_num_threads() == before  # which may be 1 or 2: two calls
    seen.clear()
    functions = {"once": taking("once", *CALLS)}
    functions["twice"] = taking("twice", *[2 * x for x in CALLS])
    how = {"rounds": 1, "calls": 3, "threads": 1, "backward": True}
    assert time_ratios(functions, (leaf,), **how) == {"once": 1.0, "twice": 2.0}
    assert leaf.grad.tolist() == [16.0, 16.0]  # of four calls each
    assert seen[-1] == (True, 1) and torch.get_num_threads() == before


@pytest.mark.parametrize(
    "wrong, backward",
    [
        (lambda x: x * 2.01, False),
        (lambda x: (x * 2)[None], False),
        (lambda x: (x * 2).detach() + 0 * x, True),
        (lambda x: x.data.add_(1) * 2 - 2, False),
    ],
)
def test_what_does_something_else_is_not_timed(wrong, backward):
    x, calls = torch.ones(2, requires_grad=True), []

    def right(x):
        calls.append(1)
        return x * 2

    with pytest.raises(AssertionError, match="wrong is not equal to right, or changes"):
        time_ratios({"right": right, "wrong": wrong}, (x,), backward=backward)
    assert len(calls) == 1 and x.tolist() == [1.0, 1.0]  # compared once, never timed
    with pytest.raises(AssertionError, match="alone is .* changes its inputs"):
        time_ratios({"alone": lambda x: x.data.add_(1) * 2}, (x,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "backward", "calls", "bar"),
    [
        ((1, 16, 64, 4), False, 200, 1.25),
        ((1, 16, 64, 4), True, 100, 1.25),
        ((8, 256, 256, 8), True, 1, 1.1),
    ],
)
def test_the_layer_is_about_as_fast_as_torchs(size, backward, calls, bar):
    """Of the same weights, on one thread."""
    batch, length, embed, heads = size
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(embed, heads, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(batch, length, embed, requires_grad=backward)
    both = {
        "theirs": lambda x: theirs(x, x, x, need_weights=False)[0],
        "ours": lambda x: ours(x)[0],
    }
    options = {"backward": backward, "calls": calls, "rounds": 15, "threads": 1}
    ratio = time_ratios(both, (x,), **options)["ours"]
    assert ratio < bar
