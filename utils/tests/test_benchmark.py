"""The stop-watch: nothing wrong is timed, ratios are ratios, threads are put back."""

import time

import pytest
import torch

from utils.benchmark import time_ratios


def sleeper(seconds):
    def function(x):
        time.sleep(seconds)
        return x * 2

    return function


def test_the_ratio_is_the_ratio():
    ratios = time_ratios(
        {"short": sleeper(0.01), "long": sleeper(0.03)}, (torch.ones(2),), rounds=3
    )
    assert ratios["short"] == 1.0 and 2.0 < ratios["long"] < 4.0


@pytest.mark.parametrize("wrong", [lambda x: x * 2.01, lambda x: (x * 2)[None]])
def test_a_different_output_is_not_timed(wrong):
    calls = []

    def right(x):
        calls.append(1)
        return x * 2

    with pytest.raises(ValueError, match="wrong is not equal to right"):
        time_ratios({"right": right, "wrong": wrong}, (torch.ones(2),))
    assert len(calls) == 1  # compared once, never timed


@pytest.mark.parametrize(
    "says, function",
    [
        ("wrong is not equal to right", lambda x: (x * 2).detach() + 0 * x),
        ("changes its inputs", lambda x: x.data.add_(1) * 2),
    ],
)
def test_other_gradients_or_changed_inputs_are_not_timed(says, function):
    x = torch.ones(2, requires_grad=True)
    contest = {"right": lambda x: x * 2, "wrong": function}
    with pytest.raises(ValueError, match=says):
        time_ratios(contest, (x,), backward=True)
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("option", ["rounds", "calls", "threads"])
def test_a_median_needs_a_round_a_call_and_a_thread(option):
    with pytest.raises(ValueError, match=f"{option}=0"):
        time_ratios({"f": lambda x: x}, (torch.ones(2),), **{option: 0})


def test_it_says_how_it_was_measured():
    double = {"twice": lambda x: x * 2, "sum": lambda x: x + x}
    ratios = time_ratios(double, (torch.ones(2),), rounds=3, calls=5, threads=1)
    assert ratios.threads == 1 and ratios.rounds == 3 and list(ratios) == [*double]
    first, second, last = str(ratios).splitlines()
    assert first.split() == ["twice", "1.00", "×"] and second.startswith("sum ")
    assert last == "(times of twice; 1 thread, median of 3)"
    two = time_ratios(double, (torch.ones(2),), rounds=1, threads=2)
    assert two.threads == 2 and "2 threads" in str(two)


def test_many_calls_make_one_measurement():
    count = []
    contest = {"f": lambda x: count.append(1) or x}
    time_ratios(contest, (torch.ones(2),), rounds=2, calls=7)
    assert len(count) == 1 + 2 * (1 + 7)  # compared once; each round warms up once


def test_gradients_and_threads():
    seen = []
    x = torch.ones(2, requires_grad=True)

    def function(x):
        seen.append((torch.is_grad_enabled(), torch.get_num_threads()))
        return x * 2

    before = torch.get_num_threads()
    time_ratios({"f": function}, (x,), rounds=1, threads=2)
    assert x.grad is None and (False, 2) in seen
    time_ratios({"f": function}, (x,), rounds=1, threads=1, backward=True)
    assert x.grad.tolist() == [4.0, 4.0] and (True, 1) in seen
    assert torch.get_num_threads() == before
