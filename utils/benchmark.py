"""Speed as a ratio, measured side by side, after an equality check."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.testing import assert_close


def time_ratios(
    functions: dict[str, Callable[..., Tensor]],
    inputs: tuple,
    *,
    backward: bool = False,
    rounds: int = 9,
    calls: int = 1,
    threads: int = 2,
    atol: float = 1e-5,
) -> dict[str, float]:
    """Return how long each function takes, as a multiple of the first one's time.

    functions: {name: function}; function(*inputs) returns one tensor. AssertionError
        unless all return what the first returns, up to `atol`, and leave inputs alone.
    backward: also time the gradients of the output's sum; those of the inputs are part
        of the comparison.
    calls: how many calls are timed together; a call of microseconds needs hundreds.
    The functions take turns, round by round, on `threads` threads. Timed calls follow
    an untimed one of the same function, so that none inherits another's memory. The
    ratio is the median over rounds: a busy machine slows a whole round.

    >>> time_ratios({"2x": lambda x: 2 * x}, (torch.ones(3),))
    {'2x': 1.0}
    """
    first, *_ = functions
    done = {name: _outcome(f, inputs, backward) for name, f in functions.items()}
    for name, outcome in done.items():
        says = (
            f"{name} is not equal to {first}, or changes its inputs: it is not timed."
        )
        assert_close(outcome, done[first], atol=atol, rtol=atol, msg=says)
        assert_close(outcome[0], list(inputs), atol=0, rtol=0, msg=says)
    del done, outcome
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seconds = [
            {n: _seconds(f, inputs, backward, calls) for n, f in functions.items()}
            for _ in range(rounds)
        ]
    finally:
        torch.set_num_threads(threads_before)
    return {
        name: statistics.median(each[name] / each[first] for each in seconds)
        for name in functions
    }


def _outcome(function, inputs: tuple, backward: bool) -> tuple:
    """Return the inputs after a call, the output, and the gradients of the inputs."""
    copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    leaves = [x for x in copies if x.requires_grad] if backward else []
    with torch.set_grad_enabled(backward):
        output = function(*copies)
    grads = torch.autograd.grad(output.sum(), leaves) if leaves else ()
    return copies, output.detach(), grads


def _seconds(function, inputs: tuple, backward: bool, calls: int) -> float:
    """Return the seconds that `calls` calls take, after an untimed one."""
    with torch.set_grad_enabled(backward):
        for timed in (1, calls):
            start = time.perf_counter()
            for _ in range(timed):
                output = function(*inputs)
                if backward:
                    output.sum().backward()
                del output
    return time.perf_counter() - start
