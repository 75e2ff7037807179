"""What trials are drawn from."""

import torch
from torch import Tensor


def randn(*shape: int, seed: int, dtype=torch.float64) -> Tensor:
    """Return normal random numbers, the same ones in every precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def drawn(seed: int, dtype, **shapes: tuple) -> dict[str, Tensor]:
    """Return normal random numbers of these shapes, by name."""
    return {
        name: randn(*shape, seed=10 * seed + i, dtype=dtype)
        for i, (name, shape) in enumerate(shapes.items())
    }


def qkv(leading, queries, keys, dim, value_dim, seed, dtype) -> dict[str, Tensor]:
    """Return query, key and value, (*leading, queries or keys, dim or value_dim)."""
    query, key, value = (queries, dim), (keys, dim), (keys, value_dim)
    shapes = {"query": query, "key": key, "value": value}
    return drawn(seed, dtype, **{n: (*leading, *x) for n, x in shapes.items()})
