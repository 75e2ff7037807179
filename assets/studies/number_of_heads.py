"""At equal parameters, how many heads answer four questions best?

The models have one attention layer with 16 features. There are 15 tokens, each with a
name and a random number, and each needs the numbers of four tokens, whose names are
drawn once for each seed. Queries and keys are made from names alone, and values from
numbers alone: h heads cannot get below an error of 1 - h / 4. The last kinds are layers
with wider heads and more parameters: are many heads bad, or narrow ones? A quarter of
an hour on one core.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.studies import rounded, told
from assets.studies._together import train_together
from utils.attention import merge_heads, scaled_dot_product_attention, split_heads

TOKENS, QUESTIONS, FEATURES, BATCH = 15, 4, 16, 32
SETTINGS = {"learning_rate": 5e-3, "last": 50}
KEY = ("heads", "head_dim", "steps")
MARGIN = {"error": 0.05}
SEEDS = range(8)
EQUAL = [(heads, FEATURES // heads) for heads in (1, 2, 4, 8, 16)]
KINDS = [(*sizes, 1000) for sizes in EQUAL]  # (heads, head_dim, steps)
KINDS += [(8, 4, 1000), (16, 4, 1000)]  # more parameters
KINDS += [(*sizes, 5000) for sizes in EQUAL[2:]]
CHECKED = (16, 1, 1000), 1  # --check repeats this run


class Asker(nn.Module):
    """An attention layer, and a linear layer that gives four answers to each token."""

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.heads, inner = heads, heads * head_dim
        self.query_proj = nn.Linear(FEATURES, inner)
        self.key_proj = nn.Linear(FEATURES, inner)
        self.value_proj = nn.Linear(FEATURES, inner)
        self.out_proj = nn.Linear(inner, FEATURES)
        self.output_layer = nn.Linear(FEATURES, QUESTIONS)

    def forward(self, name: Tensor, number: Tensor) -> Tensor:
        q = split_heads(self.query_proj(name), self.heads)
        k = split_heads(self.key_proj(name), self.heads)
        v = split_heads(self.value_proj(number), self.heads)
        outputs, _ = scaled_dot_product_attention(q, k, v)
        return self.output_layer(self.out_proj(merge_heads(outputs)))


def draw_asked(seed: int) -> Tensor:
    """Return whom each token asks: four different tokens, (15, 4)."""
    generator = torch.Generator().manual_seed(500 + seed)
    return torch.rand(TOKENS, TOKENS, generator=generator).argsort()[:, :QUESTIONS]


def draw_batch(
    asked: Tensor, generator: torch.Generator, size: int = BATCH
) -> tuple[Tensor, Tensor]:
    """Return numbers, in the last of 16 features, and targets (size, 15, 4)."""
    number = torch.randn(size, TOKENS, 1, generator=generator)
    return F.pad(number, (FEATURES - 1, 0)), number[:, asked, 0]


def runs_of_kind(heads: int, head_dim: int, steps: int, seeds) -> list[dict]:
    """Train models of one kind; return their errors: mean losses of the last steps."""
    _, losses = train_together(
        partial(Asker, heads, head_dim),
        {seed: partial(draw_batch, draw_asked(seed)) for seed in seeds},
        steps,
        SETTINGS["learning_rate"],
        given=(torch.eye(TOKENS, FEATURES)[None],),  # names, (1, 15, 16)
    )
    kind = {"heads": heads, "head_dim": head_dim, "steps": steps}
    errors = losses[-SETTINGS["last"] :].mean(dim=0)
    return [kind | {"seed": s, "error": rounded(x)} for s, x in zip(seeds, errors)]


def study() -> dict:
    """Run everything; return what is stored."""
    return {"runs": told(x for kind in KINDS for x in runs_of_kind(*kind, SEEDS))}


def again(stored: dict) -> list[dict]:
    kind, seed = CHECKED
    return runs_of_kind(*kind, [seed])
