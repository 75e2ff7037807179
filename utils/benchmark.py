"""Speed as a ratio, measured side by side, after an equality check."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor


class Ratios(dict[str, float]):
    """Name -> multiple of the first one's time; printed, says how it was measured."""

    def __init__(self, ratios: dict[str, float], threads: int, rounds: int):
        super().__init__(ratios)
        self.threads, self.rounds = threads, rounds

    def __str__(self) -> str:
        lines = [f"{name:30s} {ratio:5.2f} ×" for name, ratio in self.items()]
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        said = f"(times of {next(iter(self))}; {threads}, median of {self.rounds})"
        return "\n".join([*lines, said])


def time_ratios(
    functions: dict[str, Callable[..., Tensor]],
    inputs: tuple,
    *,
    backward: bool = False,
    rounds: int = 9,
    calls: int = 1,
    threads: int = 2,
    atol: float = 1e-5,
) -> Ratios:
    """Return how long each function takes, as a multiple of the first one's time.

    functions: name -> function(*inputs) that returns one tensor; all of them must
        return what the first returns, up to `atol`, or nothing is timed.
    inputs: tensors; with backward, those that require gradients are part of the
        comparison.
    backward: also time the gradients of the output's sum; otherwise no gradients.
    calls: how many calls are timed together; a call of microseconds needs hundreds.
    The functions take turns, round by round, on `threads` threads. Timed calls follow
    an untimed one of the same function, so that none inherits another's memory. The
    ratio is the median over rounds: a busy machine slows a whole round.
    Returns a dict that also knows `threads` and `rounds`, and prints them.
    Raises ValueError for a function that gives another output or other gradients, or
    that changes its inputs.

    >>> double, wrong = lambda x: 2 * x, lambda x: 3 * x
    >>> time_ratios({"2x": double}, (torch.ones(3),))
    {'2x': 1.0}
    >>> time_ratios({"2x": double, "3x": wrong}, (torch.ones(3),))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 3x is not equal to 2x, so it is not timed: ...
    """
    if min(rounds, calls, threads) < 1:
        raise ValueError(
            f"rounds={rounds}, calls={calls}, threads={threads}: each is at least 1."
        )
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
            [_seconds(functions[name], inputs, backward, calls) for name in names]
            for _ in range(rounds)
        ]
        threads = torch.get_num_threads()  # the number that was really used
    finally:
        torch.set_num_threads(threads_before)
    ratios = {
        name: statistics.median(row[i] / row[0] for row in seconds)
        for i, name in enumerate(names)
    }
    return Ratios(ratios, threads, rounds)


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
