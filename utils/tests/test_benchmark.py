"""Ratios of times: nothing wrong is timed, and what is computed from the clock."""

import pytest
import torch

from utils import benchmark
from utils.benchmark import time_ratios

ONES = torch.ones(2)


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when a function says so."""
    now = [0.0]
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: now[0])
    return now


def taking(clock, *seconds):
    """Return a function whose calls take so many seconds, one after the other."""
    left = list(seconds)

    def function(x):
        clock[0] += left.pop(0)
        return x * 2

    return function


def test_the_ratio_is_the_median_of_each_round_against_the_first(clock):
    compared, untimed = 50.0, 70.0  # neither may count
    first = taking(clock, compared, *[untimed, 1, untimed, 10, untimed, 2])
    other = taking(clock, compared, *[untimed, 3, untimed, 90, untimed, 8])
    found = time_ratios({"first": first, "other": other}, (ONES,), rounds=3)
    assert found == {"first": 1.0, "other": 4.0}  # of 3, 9 and 4


def test_many_calls_make_one_measurement(clock):
    calls = [50.0, 70.0, 1, 2, 3]
    once, twice = taking(clock, *calls), taking(clock, *[2 * x for x in calls])
    options = {"rounds": 1, "calls": 3}
    assert time_ratios({"once": once, "twice": twice}, (ONES,), **options) == {
        "once": 1.0,
        "twice": 2.0,
    }


@pytest.mark.parametrize(
    ("says", "wrong", "backward"),
    [
        ("wrong is not equal to right", lambda x: x * 2.01, False),
        ("wrong is not equal to right", lambda x: (x * 2)[None], False),
        ("wrong is not equal to right", lambda x: (x * 2).detach() + 0 * x, True),
        ("changes its inputs", lambda x: x.data.add_(1) * 2, True),
    ],
)
def test_what_does_something_else_is_not_timed(says, wrong, backward):
    x, calls = torch.ones(2, requires_grad=backward), []

    def right(x):
        calls.append(1)
        return x * 2

    with pytest.raises(ValueError, match=says):
        time_ratios({"right": right, "wrong": wrong}, (x,), backward=backward)
    assert len(calls) == 1 and x.tolist() == [1.0, 1.0]  # compared once, never timed


@pytest.mark.parametrize("option", ["rounds", "calls", "threads"])
def test_a_median_needs_a_round_a_call_and_a_thread(option):
    with pytest.raises(ValueError, match=f"{option}=0"):
        time_ratios({"f": lambda x: x}, (ONES,), **{option: 0})


def test_gradients_and_threads():
    seen, x = [], torch.ones(2, requires_grad=True)

    def function(x):
        seen.append((torch.is_grad_enabled(), torch.get_num_threads()))
        return x * 2

    before = torch.get_num_threads()
    time_ratios({"f": function}, (x,), rounds=1, threads=2)
    assert x.grad is None and (False, 2) in seen
    time_ratios({"f": function}, (x,), rounds=1, threads=1, backward=True)
    assert x.grad.tolist() == [4.0, 4.0] and (True, 1) in seen
    assert torch.get_num_threads() == before
