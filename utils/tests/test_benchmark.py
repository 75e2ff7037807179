"""Ratios of times: nothing wrong is timed; what the clock gives; the layer's own.

Never seconds, which are those of a machine.
"""

import pytest
import torch
from torch import nn

from utils import benchmark
from utils.attention import MultiHeadAttention
from utils.benchmark import time_ratios


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

    before, leaf = torch.get_num_threads(), torch.ones(2, requires_grad=True)
    for threads, options in ((1, {"threads": 1}), (2, {})):
        # compared, and then untimed, timed, untimed, …
        functions = {"first": taking("first", 50, *[70, 1, 70, 10, 70, 2])}
        functions["other"] = taking("other", 50, *[70, 3, 70, 90, 70, 8])
        found = time_ratios(functions, (leaf,), rounds=3, **options)
        assert found == {"first": 1.0, "other": 4.0}  # of 3, 9 and 4
        assert {*seen} == {(False, threads)} and torch.get_num_threads() == before
        seen.clear()


@pytest.mark.parametrize(
    "wrong", [lambda x: 2.01 * x, lambda x: 2 * x[None], lambda x: 2 * x.add_(1) - 2]
)
def test_what_does_something_else_is_not_timed(wrong, monkeypatch):
    monkeypatch.setattr(benchmark, "_seconds", None)
    x, before = torch.ones(2), torch.get_num_threads()
    with pytest.raises(AssertionError, match="wrong is not equal to the first, or ch"):
        time_ratios({"right": lambda x: 2 * x, "wrong": wrong}, (x,))
    assert x.tolist() == [1.0, 1.0] and torch.get_num_threads() == before


def repeated(layer, calls, backward):
    """Return a function that calls a layer several times, as microseconds need."""

    def function(x):
        for _ in range(calls):
            with torch.set_grad_enabled(backward):
                output = layer(x, x, x, need_weights=False)[0]
                if backward:
                    output.sum().backward()
        return output.detach()

    return function


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
    both = {"theirs": theirs, "ours": ours}
    both = {name: repeated(each, calls, backward) for name, each in both.items()}
    ratios = (time_ratios(both, (x,), rounds=15, threads=1) for _ in range(3))
    assert any(ratio["ours"] < bar for ratio in ratios)  # a machine may be busy
