"""Is a position better added to its word, or put beside it in half of the features?

The models are those of lesson 04's deeper notebook: one attention head without a mask
that returns the token two positions earlier. The sinusoidal encoding is added, or takes
the place of the second half of the features. About a minute on one core.
"""

from itertools import product

import torch
from torch import Tensor, nn

from assets.studies import rounded, versions
from utils.attention import MultiHeadAttention
from utils.data import tokens_back
from utils.positions import PositionScheme, sinusoidal
from utils.training import train_many

TOKENS, LENGTH, BATCH, BACK = 16, 32, 16, 2
RATE, SEEDS = 2e-2, range(8)
FEATURES, STEPS = (8, 16, 32), 250
LONGER = 8, 600  # these features also with so many steps
KEY = ("way", "features", "steps")
MARGIN = {"near": 0.1, "far": 0.1}
CHECKED = ("concatenated", 16, STEPS), ("added", *LONGER)  # --check: seed 0 of these


class Added(PositionScheme):
    """The sinusoidal encoding, added."""

    def embed(self, x, offset=0):
        return x + sinusoidal(x.shape[1], x.shape[2])


class Concatenated(PositionScheme):
    """The sinusoidal encoding in the place of the second half of the features."""

    def embed(self, x, offset=0):
        half = x.shape[2] // 2
        encoding = sinusoidal(x.shape[1], x.shape[2] - half)
        return torch.cat([x[..., :half], encoding.expand(len(x), -1, -1)], dim=-1)


WAYS = {"added": Added, "concatenated": Concatenated}
SETS = [*product(WAYS, FEATURES, [STEPS]), *((way, *LONGER) for way in WAYS)]


class OneHead(nn.Module):
    """Tokens, positions, one head without a mask, and a linear output layer."""

    def __init__(self, position: PositionScheme, embed_dim: int):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, embed_dim)
        self.position = position
        self.attention = MultiHeadAttention(embed_dim, num_heads=1)
        self.output = nn.Linear(embed_dim, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.position.embed(self.tokens(ids))  # (batch, length, embed_dim)
        return self.output(self.attention(x)[0])


def two_back(generator, batch: int = BATCH, length: int = LENGTH):
    """Return random tokens, and at each position the token two positions earlier."""
    return tokens_back(generator, batch, length, TOKENS, back=BACK)


@torch.no_grad()
def accuracy(model: OneHead, length: int) -> Tensor:
    """Return the accuracy at positions 2, 3, ... of 256 new texts, (length - 2,)."""
    ids, targets = two_back(torch.Generator().manual_seed(1_000_000), 256, length)
    right = model(ids).argmax(dim=-1) == targets
    return right.float().mean(dim=0)[BACK:]


def runs_of(way: str, features: int, steps: int, seeds) -> list[dict]:
    """Train models of one set; return what is stored of them.

    near: the mean accuracy up to position 31, in texts as long as those of training;
    far: from position 32 on, in texts that are twice as long.
    """
    models, _ = train_many(
        lambda: OneHead(WAYS[way](), features),
        two_back,
        steps,
        seeds,
        learning_rate=RATE,
        progress=False,
    )
    which, runs = dict(zip(KEY, (way, features, steps))), []
    for seed, model in zip(seeds, models):
        near = accuracy(model, LENGTH).mean()
        far = accuracy(model, 2 * LENGTH)[LENGTH - BACK :].mean()
        runs.append(which | {"seed": seed} | rounded({"near": near, "far": far}))
    return runs


def study() -> dict:
    """Run everything; return what is stored."""
    return {
        "study": "are positions better added or concatenated?",
        "versions": versions(),
        "learning_rate": RATE,
        "runs": [run for which in SETS for run in runs_of(*which, SEEDS)],
    }


def again(stored: dict) -> list[dict]:
    return [run for which in CHECKED for run in runs_of(*which, [0])]
