"""Speed as a ratio, measured side by side, after an equality check."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor


def time_ratios(
    functions: dict[str, Callable[..., Tensor]],
    inputs: tuple,
    *,
    backward: bool = False,
    rounds: int = 9,
    threads: int = 2,
    atol: float = 1e-5,
) -> dict[str, float]:
    """Return how long each function takes, as a multiple of the first one's time.

    functions: name -> function(*inputs) that returns one tensor; all of them must
        return what the first returns, up to `atol`, or nothing is timed.
    inputs: tensors; with backward, those that require gradients are part of the
        comparison.
    backward: also time the gradients of the output's sum; otherwise no gradients.
    The functions take turns, round by round, on `threads` threads. Each timed call
    follows an untimed one of its own, so that none inherits another's memory. The ratio
    is the median over rounds: a busy machine slows a whole round.
    Raises ValueError for a function that gives another output or other gradients, or
    that changes its inputs.

    >>> double, wrong = lambda x: 2 * x, lambda x: 3 * x
    >>> time_ratios({"2x": double}, (torch.ones(3),))
    {'2x': 1.0}
    >>> time_ratios({"2x": double, "3x": wrong}, (torch.ones(3),))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 3x is not equal to 2x, so it is not timed: ...
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; a median needs at least 1.")
    names = list(functions)
    done = {name: _outcome(functions[name], inputs, backward) for name in names}
    for name in names:
        try:
            torch.testing.assert_close(done[name], done[names[0]], atol=atol, rtol=atol)
        except AssertionError as error:
            raise ValueError(
                f"{name} is not equal to {names[0]}, so it is not timed: {error}"
            ) from None
    del done
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seconds = [
            [_seconds(functions[name], inputs, backward) for name in names]
            for _ in range(rounds)
        ]
    finally:
        torch.set_num_threads(threads_before)
    return {
        name: statistics.median(row[i] / row[0] for row in seconds)
        for i, name in enumerate(names)
    }


def _outcome(function, inputs: tuple, backward: bool) -> list[Tensor]:
    """Return the output, the gradients of the inputs, and the inputs afterwards."""
    copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    leaves = [x for x in copies if x.requires_grad] if backward else []
    with torch.set_grad_enabled(backward):
        output = function(*copies)
    for before, after in zip(inputs, copies, strict=True):
        if not torch.equal(before, after):
            raise ValueError("a function changes its inputs, so none is timed.")
    grads = torch.autograd.grad(output.sum(), leaves) if leaves else []
    return [output.detach(), *grads]


def _seconds(function, inputs: tuple, backward: bool) -> float:
    """Return the seconds of the second of two calls."""
    for _ in range(2):
        start = time.perf_counter()
        with torch.set_grad_enabled(backward):
            output = function(*inputs)
            if backward:
                output.sum().backward()
        del output
    return time.perf_counter() - start
