"""What trials are drawn from."""

from collections.abc import Callable, Iterator

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


def integers(high: int, *shape: int, seed: int) -> Tensor:
    """Return whole numbers from 0 to high - 1."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def strided(x: Tensor, first: int = -2, second: int = -1) -> Tensor:
    """Return the same numbers, which lie in memory with two axes exchanged."""
    return x.transpose(first, second).contiguous().transpose(first, second)


class Named:
    """A function that cannot be looked into; messages call it by its name."""

    def __init__(self, name: str, function: Callable):
        self.__name__, self.function = name, function


def each(argument: str, kind: type[Named], functions: dict) -> Callable[[], Iterator]:
    """Return inputs() with a trial for each function, by its name."""
    return lambda: ({argument: kind(name, f)} for name, f in functions.items())
