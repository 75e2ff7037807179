"""The models of `specialisation` and their texts, which start again after a while."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.data import IGNORED, repeated_tokens
from utils.masks import causal_mask
from utils.models import CausalLM
from utils.positions import Learned
from utils.training import train

VOCAB, LENGTH, DIM, HEADS, ROWS = 64, 64, 64, 4, 128  # rows: texts in the tests
PERIODS, FIXED = (8, 31), (20, 20)  # trained on
TESTED = (4, 6, 8, 12, 16, 20, 24, 28, 31, 32, 36, 40, 44)  # periods in the tests
SETTINGS = {
    "vocab_size": VOCAB,
    "length": LENGTH,
    "embed_dim": DIM,
    "num_heads": HEADS,
    "periods": PERIODS,
    "fixed period": FIXED,
    "tested periods": TESTED,
    "batch": 32,
    "steps": 800,
    "learning_rate": 3e-3,
    "rows": ROWS,
    "every": 20,
}
MASK = causal_mask(LENGTH)


class Smeared(Learned):
    """Each head's key is mixed with the key before it, in a share that is learned.

    Source: Olsson et al. 2022, argument 2, "smeared keys".
    """

    def __init__(self, max_length, embed_dim, num_heads):
        super().__init__(max_length, embed_dim)
        self.share = nn.Parameter(torch.zeros(num_heads, 1, 1))

    def rotate(self, query, key, offset=0):
        before = F.pad(key, (0, 0, 1, 0))[..., :-1, :]
        share = self.share.sigmoid()
        return query, (1 - share) * key + share * before


@dataclass(frozen=True)
class Kind:
    """A kind of model, and the periods that it is trained on."""

    layers: int
    periods: tuple[int, int]
    position: Callable = lambda: Learned(LENGTH, DIM)

    def make(self) -> CausalLM:
        """Return a new model: attention only, words drawn as in GPT-2."""
        position = self.position()
        return CausalLM(VOCAB, DIM, HEADS, self.layers, position=position, mlp_dim=0)

    def batch(self, generator) -> tuple[Tensor, Tensor]:
        return draw(generator, SETTINGS["batch"], self.periods)


KINDS = {
    "two layers": Kind(2, PERIODS),
    "one layer": Kind(1, PERIODS),
    "smeared": Kind(1, PERIODS, lambda: Smeared(LENGTH, DIM, HEADS)),
    "fixed": Kind(1, FIXED),
}


def draw(generator, rows: int, periods: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return texts that repeat with some period, and what follows each token."""
    return repeated_tokens(
        generator, rows, LENGTH, VOCAB, periods=periods, distinct=True
    )


def unseen(periods: tuple[int, int], rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Return texts for tests: never those of a training."""
    return draw(torch.Generator().manual_seed(10_000), rows, periods)


@torch.no_grad()
def accuracy(model: CausalLM, texts: tuple[Tensor, Tensor]) -> float:
    """Return the share of the asked tokens whose next token is guessed."""
    ids, targets = texts
    right = model(ids).argmax(-1) == targets
    return right[targets != IGNORED].float().mean().item()


def trained(kind: Kind, seed: int) -> tuple[CausalLM, list]:
    """Train one model; return it, and its accuracy at every 20th step."""
    texts = unseen(kind.periods, 32)
    torch.manual_seed(seed)
    model = kind.make()
    history = train(
        model,
        kind.batch,
        SETTINGS["steps"],
        seed=seed,
        learning_rate=SETTINGS["learning_rate"],
        evaluate=lambda model: round(accuracy(model, texts), 4),
        every=SETTINGS["every"],
    )
    return model, history.evaluations
