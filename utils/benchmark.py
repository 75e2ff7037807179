"""Speed as a ratio, measured side by side, after an equality check."""

import statistics
import time
from collections.abc import Callable

import torch
from torch.testing import assert_close


def time_ratios(
    functions: dict[str, Callable], inputs: tuple, *, rounds: int = 9, threads: int = 2
) -> dict[str, float]:
    """Return how long each function takes, as a multiple of the first one's time.

    functions: {name: function}; function(*inputs) returns one tensor, without
        gradients. AssertionError unless all return what the first returns, up to 1e-5,
        and leave inputs alone.
    The functions take turns, round by round, on `threads` threads. A timed call follows
    an untimed one of the same function, so that none inherits another's memory. The
    ratio is the median over rounds: a busy machine slows a whole round.

    >>> time_ratios({"2x": lambda x: 2 * x}, (torch.ones(3),))
    {'2x': 1.0}
    """
    first, *_ = functions
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            _check_equal(functions, inputs)
            seconds = [
                {name: _seconds(f, inputs) for name, f in functions.items()}
                for _ in range(rounds)
            ]
    finally:
        torch.set_num_threads(threads_before)
    return {
        name: statistics.median(each[name] / each[first] for each in seconds)
        for name in functions
    }


def _check_equal(functions: dict[str, Callable], inputs: tuple) -> None:
    """Refuse a function that gives something else, or changes its inputs."""
    wanted = None
    for name, function in functions.items():
        copies = tuple(x.clone() for x in inputs)
        output = function(*copies)
        wanted = output if wanted is None else wanted
        says = f"{name} is not equal to the first, or changes its inputs: not timed."
        assert_close(output, wanted, atol=1e-5, rtol=1e-5, msg=says)
        assert_close(copies, inputs, atol=0, rtol=0, msg=says)


def _seconds(function, inputs: tuple) -> float:
    """Return the seconds that a call takes, after an untimed one."""
    function(*inputs)
    start = time.perf_counter()
    function(*inputs)
    return time.perf_counter() - start
