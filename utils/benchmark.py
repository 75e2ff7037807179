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
    backward: also time the gradients of the output's sum; otherwise no gradients.
    The functions take turns, round by round, on `threads` threads; the first round is
    a warm-up. The ratio is the median over rounds: a busy machine slows a whole round.
    Raises ValueError for a function that gives another output.

    >>> double, wrong = lambda x: 2 * x, lambda x: 3 * x
    >>> time_ratios({"2x": double}, (torch.ones(3),))
    {'2x': 1.0}
    >>> time_ratios({"2x": double, "3x": wrong}, (torch.ones(3),))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 3x is not equal to 2x, so it is not timed: ...
    """
    names = list(functions)
    with torch.no_grad():
        outputs = {name: functions[name](*inputs) for name in names}
    for name in names[1:]:
        try:
            torch.testing.assert_close(
                outputs[name], outputs[names[0]], atol=atol, rtol=atol
            )
        except AssertionError as error:
            raise ValueError(
                f"{name} is not equal to {names[0]}, so it is not timed: {error}"
            ) from None
    del outputs
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seconds = [
            [_seconds(functions[name], inputs, backward) for name in names]
            for _ in range(rounds + 1)
        ]
    finally:
        torch.set_num_threads(threads_before)
    return {
        name: statistics.median(row[i] / row[0] for row in seconds[1:])
        for i, name in enumerate(names)
    }


def _seconds(function: Callable[..., Tensor], inputs: tuple, backward: bool) -> float:
    start = time.perf_counter()
    with torch.set_grad_enabled(backward):
        output = function(*inputs)
        if backward:
            output.sum().backward()
    return time.perf_counter() - start
