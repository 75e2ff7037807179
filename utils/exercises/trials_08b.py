"""Trials of lesson 08: what its exercises are tried with."""

import torch

from .catalogue import trials
from .draws import randn

MODELS = (  # heads, accuracy, {heads: what it costs if all of them are gone}
    (4, 1.0, {(1, 3): 0.6, (0,): 0.01}),
    (4, 0.98, {(2,): 0.7, (0, 1): 0.5}),
    (3, 0.9, {(0,): 0.2, (1,): 0.02}),
    (5, 0.66, {(0, 4): 0.4, (1, 2): 0.2, (3,): 0.1}),
    (4, 1.0, {(0, 1, 2): 0.8}),
    (6, 0.95, {(0, 5): 0.5, (5, 2): 0.4, (1,): 0.35, (3, 4): 0.1}),
    (4, 1.0, {(0,): 0.04, (1,): 0.04, (2, 3): 0.31}),
    (5, 0.97, {(0,): 0.2, (1,): 0.2, (2, 4): 0.45, (0, 3): 0.4}),
    (4, 1.0, {(0,): 0.04, (1,): 0.04, (0, 1): 0.25}),
    (3, 0.8, {(0,): -0.1, (0, 2): 0.45}),
    (4, 0.9, {(0,): 0.015, (1,): 0.015, (0, 1): 0.28}),
    (3, 0.9, {(0,): 0.07, (1,): 0.06, (0, 1): 0.3}),
    (6, 0.6, {(0,): 0.07, (0, 1): 0.4, (2, 3): 0.27, (4,): 0.04, (4, 5): 0.4}),
    (4, 1.0, {(0, 3): 0.5, (1, 2): 0.5}),  # in order of their first heads
    (2, 0.3, {(0, 1): 0.3}),  # 0.3 - 0 is 0.3 without rounding, and not more
)


@trials("8.4", gradients=False)
def models(dtype):
    """Yield models; no rounding decides: all falls but the last keep off the limits."""
    for heads, full, costs in MODELS if dtype == torch.float32 else ():

        def accuracy(removed, heads=heads, full=full, costs=costs):
            gone = {int(head) for head in removed}
            if not gone <= set(range(heads)):
                raise ValueError(f"the model has the heads 0 to {heads - 1}: {gone}")
            lost = sum(cost for group, cost in costs.items() if gone >= set(group))
            return max(0.0, round(full - lost, 6))

        without = (f"{cost:g} without {set(gone)}" for gone, cost in costs.items())
        accuracy.__name__ = f"{full:g}, less {', less '.join(without)}"
        yield {"accuracy_without": accuracy, "heads": heads}


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
