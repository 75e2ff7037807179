"""Trials of lesson 08: what its exercises are tried with."""

import torch

from .catalogue import trials
from .draws import randn


def squares(gates, example):
    return (gates * example[: len(gates)]).sum().sub(1).square()


def crossing(gates, example):
    """Each head helps in one half of the examples, and harms in the other."""
    return (gates * example[: len(gates)].sin()).sum() + gates[-1].pow(3) * example[-1]


def unequal(gates, example):
    """The last heads count for very little."""
    sizes = 0.1 ** torch.arange(len(gates), dtype=gates.dtype)
    return (gates * sizes * example[: len(gates)]).sum().sigmoid() * example.norm()


@trials("8.5", gradients=False)
def losses(dtype):
    # examples, heads
    sizes = {(5, 4): squares, (8, 3): crossing, (1, 4): squares, (12, 6): unequal}
    sizes |= {(6, 1): crossing, (7, 8): squares}
    for seed, ((count, heads), loss) in enumerate(sizes.items()):
        examples = randn(count, heads + 2, seed=seed, dtype=dtype)
        yield {"loss": loss, "examples": examples, "heads": heads}
