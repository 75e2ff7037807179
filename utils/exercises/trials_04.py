"""Trials of lesson 04: what its exercises are tried with."""

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.positions import sinusoidal

from .catalogue import trials
from .draws import Named, drawn, each, randn, strided


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
    if dtype == torch.float64:  # single precision rounds such large angles
        far = torch.tensor([128, 5000, 40_000.5], dtype=dtype)
        yield {"positions": far, "embed_dim": 6, "base": 10000.0}


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


class Encoding(Named):
    """A function add_positions(x) that refuses other shapes."""

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[1] > 40 or x.shape[2] != 24:
            said = f"x has shape {tuple(x.shape)}"
            raise ValueError(f"{said}; give (batch, length, 24), length at most 40.")
        x = x if x.is_floating_point() else x.float()
        return self.function(x).to(x.dtype)


def adds(table):
    return lambda x: x + table[: x.shape[1]]


def of_the_first(sentences, table):
    return lambda x: torch.cat([adds(table)(x[:sentences]), x[sentences:]])


def from_the_end(table):
    return lambda x: x + table[: x.shape[1]].flip(0)


PLACE = torch.arange(400)
WAVES = sinusoidal(400, 24)
LEARNED = randn(400, 24, seed=1, dtype=torch.float32)
SMALL = randn(400, 24, seed=2, dtype=torch.float32) / 50
CLOSE = WAVES * 0.052 / (WAVES[1] - WAVES[0]).norm()  # no two are closer than 0.052
ENCODINGS = {
    "an encoding of sines": adds(WAVES),
    "a learned encoding": adds(LEARNED),
    "a learned encoding, small": adds(SMALL),
    "a learned encoding, large": adds(LEARNED * 30),
    "an encoding whose neighbours lie close together": adds(CLOSE),
    "an encoding of larger vectors, close together": adds(CLOSE + 5),
    "an encoding of the sentence, not the position": lambda x: (
        x + WAVES[torch.arange(len(x)) % 400, None]
    ),
    "an encoding with one vector for all positions": lambda x: x + WAVES[0],
    "an encoding that depends on the length": lambda x: (
        x + WAVES[torch.arange(x.shape[1]) * 400 // x.shape[1]]
    ),
    "an encoding that counts from the end": from_the_end(WAVES),
    "a small encoding that counts from the end": from_the_end(SMALL),
    "an encoding that begins anew every 8 tokens": adds(WAVES[PLACE % 8]),
    "an encoding whose last position repeats the one before": adds(
        WAVES[PLACE.clamp(max=38)]
    ),
    "an encoding that counts both ways from token 35": adds(WAVES[(PLACE - 35).abs()]),
    "an encoding that differs a little between sentences": lambda x: (
        adds(WAVES)(x) + 0.005 * (torch.arange(len(x)) > 0)[:, None, None]
    ),
    "an encoding of the first sentence alone": of_the_first(1, WAVES),
    "an encoding of the first two sentences alone": of_the_first(2, WAVES),
    "an encoding that depends on the size of the batch": lambda x: adds(WAVES / len(x))(
        x
    ),
    "an encoding that is centred over the batch": lambda x: adds(WAVES)(x - x.mean(0)),
    "an encoding that is multiplied": lambda x: x * WAVES[: x.shape[1]],
    "an encoding that changes words": lambda x: adds(WAVES)(F.layer_norm(x, (24,))),
    "an encoding that cuts off large words": lambda x: adds(WAVES)(x.clamp(-0.5, 0.5)),
    "an encoding that edits its input": lambda x: x.add_(WAVES[: x.shape[1]]),
    "an encoding that scales its input, too": lambda x: adds(WAVES)(x.mul_(24**0.5)),
}


trials("4.4", gradients=False)(each("add_positions", Encoding, ENCODINGS))


@trials("4.3")
def parts_of_an_input(dtype):
    sizes = [(5, 8, 3), (4, 6, 4), (6, 5, 2), (1, 4, 4), (3, 3, 3)]
    for seed, (length, features, head_dim) in enumerate(sizes):
        x, w, b = (length, features), (head_dim, features), (head_dim,)
        trial = drawn(seed, dtype, token=x, position=x, w_q=w, b_q=b, w_k=w, b_k=b)
        yield trial
    token = strided(trial["token"])
    yield trial | {"token": token, "w_q": 30 * trial["w_q"], "b_q": 0 * trial["b_q"]}
