"""What trials are drawn from."""

import torch
from torch import Tensor


def randn(*shape: int, seed: int, dtype=torch.float64) -> Tensor:
    """Return normal random numbers, the same ones in every precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def qkv(leading, queries, keys, dim, value_dim, seed, dtype) -> dict[str, Tensor]:
    """Return query, key and value, (*leading, queries or keys, dim or value_dim)."""
    sizes = {"query": (queries, dim), "key": (keys, dim), "value": (keys, value_dim)}
    return {
        name: randn(*leading, *size, seed=10 * seed + i, dtype=dtype)
        for i, (name, size) in enumerate(sizes.items())
    }
