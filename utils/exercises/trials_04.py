"""Trials of lesson 04: what its exercises are tried with."""

import torch

from .catalogue import trials
from .draws import randn


@trials("4.1", gradients=False)
def positions_of_sines(dtype):
    count = torch.arange(20).to(dtype)
    mixed = torch.tensor([-4, 9, 0.5, 9], dtype=dtype)
    random = 10 * randn(6, 2, seed=0, dtype=dtype)[:, 0]  # not side by side in memory
    for positions, embed_dim, base in (
        (count[:6], 8, 10000.0),
        (count[:5] + 3, 6, 100.0),
        (count[:7], 5, 10000.0),  # odd
        (count[::3], 12, 50.5),
        (count[5:11], 8, 10000.0),  # as the first
        (count[2:3], 4, 10000.0),
        (count[1:4], 1, 10000.0),
        (count[1:4], 2, 20.0),
        (mixed, 7, 1000.0),
        (random, 10, 300.0),
    ):
        yield {"positions": positions, "embed_dim": embed_dim, "base": base}


@trials("4.2", gradients=False)
def shifts(dtype):
    for seed, (pairs, steps) in enumerate([(3, 2), (4, 1), (2, 7), (5, -3), (1, 2)]):
        random = randn(pairs, 2, seed=seed, dtype=dtype).abs()
        yield {"frequencies": random[:, 0], "steps": steps}
    yield {"frequencies": torch.tensor([0.7, -0.3], dtype=dtype), "steps": 2}
    usual = torch.tensor([1.0, 0.1, 0.01], dtype=dtype)
    for steps in (3, 0, 100, -1):
        yield {"frequencies": usual, "steps": steps}
    yield {"frequencies": usual / 10, "steps": 5}  # small angles
