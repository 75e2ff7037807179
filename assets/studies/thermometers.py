"""How many heads does a difference need, and what does a wrong reshape learn?

The models are those of lesson 02's deeper notebook: one causal attention layer and a
linear layer. At each hour they return, for each of eight thermometers, the temperature
one hour back less the one two hours back. They have one head, two heads, or two heads
whose split or merge is wrong. Of two heads there are 64 further runs, to see how often
training fails. About three minutes on one core.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from assets.studies import rounded, told
from assets.studies._together import train_together
from utils.attention import scaled_dot_product_attention
from utils.masks import causal_mask

HOURS, EMBED_DIM, BATCH = 12, 32, 64
SETTINGS = {"steps": 600, "learning_rate": 5e-3, "last": 50, "mean of": 20, "every": 5}
KEY = ("kind",)
MARGIN = {"error": 0.1}
FURTHER = *range(16, 48), *range(100, 132)  # seeds
CHECKED = "2 heads", 1  # --check repeats this run


class MultiHead(nn.Module):
    """Multi-head self-attention with a split and a merge that can be replaced."""

    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.query_proj = nn.Linear(embed_dim, embed_dim)
        self.key_proj = nn.Linear(embed_dim, embed_dim)
        self.value_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        q = self.split(self.query_proj(x))  # (batch, heads, length, head_dim)
        k, v = self.split(self.key_proj(x)), self.split(self.value_proj(x))
        outputs, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(self.merge(outputs)), weights


class WrongSplit(MultiHead):
    def split(self, x):
        return x.reshape(x.shape[0], self.num_heads, x.shape[1], -1)


class WrongMerge(MultiHead):
    def merge(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


class BothWrong(WrongSplit, WrongMerge):
    """Both at once."""


class Subtracter(nn.Module):
    """A layer and a linear output layer, from the third hour on."""

    def __init__(self, layer: MultiHead):
        super().__init__()
        self.layer, self.output_layer = layer, nn.Linear(EMBED_DIM, 8)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.layer(x, causal_mask(HOURS))
        return self.output_layer(output)[:, 2:]


@dataclass(frozen=True)
class Kind:
    """A kind of layer, its number of heads, and the seeds of its runs."""

    layer: type[MultiHead]
    heads: int
    seeds: Sequence[int]

    def make(self) -> Subtracter:
        return Subtracter(self.layer(EMBED_DIM, self.heads))


KINDS = {
    "1 head": Kind(MultiHead, 1, range(8)),
    "2 heads": Kind(MultiHead, 2, range(16)),
    "split wrong": Kind(WrongSplit, 2, range(8)),
    "merge wrong": Kind(WrongMerge, 2, range(8)),
    "both wrong": Kind(BothWrong, 2, range(8)),
    "2 heads, further seeds": Kind(MultiHead, 2, FURTHER),
}


def hours() -> Tensor:
    """Return each hour as sines and cosines, (12, 24)."""
    angles = torch.arange(HOURS)[:, None] / 10_000 ** (torch.arange(0, 24, 2) / 24)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def draw_batch(generator: torch.Generator, size: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return inputs (size, 12, 32) and targets (size, 10, 8) from the third hour on."""
    temperature = torch.randn(size, HOURS, 8, generator=generator)
    x = torch.cat([temperature, hours().expand(size, -1, -1)], dim=-1)
    return x, temperature[:, 1:-1] - temperature[:, :-2]


@torch.no_grad()
def weight_back(model: Subtracter) -> Tensor:
    """Return each head's mean weight one and two hours back, (heads, 2)."""
    x, _ = draw_batch(torch.Generator().manual_seed(99), size=500)
    mean = model.layer(x, causal_mask(HOURS))[1].mean(dim=0)  # (heads, 12, 12)
    one, two = (mean.diagonal(-n, 1, 2)[:, 2 - n :].mean(dim=-1) for n in (1, 2))
    return torch.stack([one, two], dim=-1)


@torch.no_grad()
def factors(model: Subtracter) -> Tensor:
    """Return by how much each of two heads multiplies a temperature, (2,)."""
    values = model.layer.value_proj.weight.split(16)  # each (16, 32)
    slices = model.layer.out_proj.weight.split(16, dim=1)  # each (32, 16)
    last = model.output_layer.weight  # (8, 32)
    through = [last @ s @ v for s, v in zip(slices, values)]  # each (8, 32)
    return torch.stack([t[:, :8].diagonal().mean() for t in through])


def runs_of_kind(name: str, seeds) -> list[dict]:
    """Train models of one kind; return what is stored of them.

    error: the mean loss of the last steps; curve: means of 20 steps, every 5 steps,
    but of no further seeds.
    """
    draws, runs = dict.fromkeys(seeds, draw_batch), []
    how = SETTINGS["steps"], SETTINGS["learning_rate"]
    models, losses = train_together(KINDS[name].make, draws, *how)
    for seed, model, curve in zip(seeds, models, losses.T):
        run = {"error": curve[-SETTINGS["last"] :].mean()}
        if "further" not in name:
            steps = curve.unfold(0, SETTINGS["mean of"], SETTINGS["every"])
            run["curve"] = steps.mean(-1)
        if name.startswith("2 heads"):
            run["weight back"] = weight_back(model)
        if name == "2 heads":
            run["factors"] = factors(model)
        runs.append({"kind": name, "seed": seed} | rounded(run))
    return runs


def study() -> dict:
    """Run everything; return what is stored."""
    return {
        "runs": told(
            run for name in KINDS for run in runs_of_kind(name, KINDS[name].seeds)
        ),
    }


def again(stored: dict) -> list[dict]:
    name, seed = CHECKED
    return runs_of_kind(name, [seed])
