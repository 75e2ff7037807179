"""Is an attention pattern the explanation of an answer? Adversaries of eight models.

The models are those of lesson 07: two layers of four heads that continue a repeated
sequence. An adversary goes on training from such a model. It must still give the right
answers, but layer 1 must not attend to what followed an earlier copy of the query's
token. The strength of this demand grows from 3 to 100 during 1,200 of 3,000 steps. As a
control, two models train as long without the demand. As a baseline, models of the same
size are trained from the start while each head of layer 1 attends uniformly. About ten
minutes on one core.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.studies import _repeating, rounded
from utils.data import repeated_tokens
from utils.heads import induction
from utils.masks import causal_mask
from utils.models import CausalLM
from utils.positions import Rotary
from utils.recording import record_attention
from utils.training import cross_entropy, train_many

WORDS, LENGTH = 32, 32
SEEDS = list(range(8))
TRAINING = {"steps": 225, "learning_rate": 8e-3}
VOCABULARY = (
    "the a cat dog mat hat sat ran on by and but it he she was tired slept ate saw "
    "big old red blue in at fish bird tree house man boy"
).split()
TEXT = "the cat sat on the mat and slept".split() * 2  # whose patterns are stored
KEY = ("search", "seed")
MARGIN = dict.fromkeys(("accuracy", "forbidden", "reader", "elsewhere"), 0.1)


@dataclass(frozen=True)
class Search:
    """How an adversary is trained: the strength grows from `first` to `last`."""

    first: float
    last: float
    seeds: range = range(8)

    def strength(self, step: int) -> float:
        if not self.first:
            return 0.0
        return self.first * (self.last / self.first) ** min(1.0, step / GROWS)


SEARCHES = {"slow": Search(3, 100), "no demand": Search(0, 0, seeds=range(2))}
STEPS, GROWS = 3000, 1200  # of a search, and of those in which the strength grows
CHECKED = ("slow", 1)  # --check repeats this run
EVERY = 250  # steps: how often an adversary is looked at
UNIFORM = 225, 1125  # steps of the models of which layer 1 attends uniformly


def sequences(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Return random sequences that repeat after 5 to 14 tokens, and the next tokens."""
    return repeated_tokens(generator, count, LENGTH, WORDS, periods=(5, 14))


def make_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return sequences(generator, 16)


TEST, ANSWERS = sequences(torch.Generator().manual_seed(10_000), 32)
FIT, FIT_ANSWERS = sequences(torch.Generator().manual_seed(20_000), 256)
MASK = causal_mask(LENGTH)


def make_model() -> CausalLM:
    """Return an untrained model of lesson 07, in double precision."""
    options = {"position": Rotary(16), "mlp_dim": 0, "embedding_std": None}
    return CausalLM(WORDS, 64, 4, 2, **options).double()


# --- the adversary ---


class Adversary(nn.Module):
    """A copy of a model that also says how much layer 1 does what it must not do."""

    def __init__(self, model: CausalLM):
        super().__init__()
        self.model = deepcopy(model)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and the mean weight on what followed an earlier copy."""
        x = self.model.embedding(ids)
        for block in self.model.blocks:  # each is attention alone, without an MLP
            y = block.attention_norm(x)
            y, weights = block.attention(y, mask=MASK, need_weights=True)
            x = x + y
        logits = self.model.head(self.model.norm(x))
        return logits, induction(weights, ids, mask=MASK).nanmean()


class GrowingLoss:
    """The loss of a search; it counts its calls, because the strength grows."""

    def __init__(self, search: Search):
        self.search, self.step = search, 0

    def __call__(self, outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        logits, forbidden = outputs
        strength = self.search.strength(self.step)
        self.step += 1
        return cross_entropy(logits, targets) + strength * forbidden


def adversaries(models: list, search: Search, seeds) -> tuple[list, list]:
    """Return the adversaries of some models, and what `look` saw on the way."""
    ready = iter(models)
    found, histories = train_many(
        lambda: Adversary(next(ready)),  # called once for each seed, in order
        make_batch,
        STEPS,
        [50 + seed for seed in seeds],
        learning_rate=4e-3,
        warmup=50,
        loss=GrowingLoss(search),
        evaluate=lambda adversary: look(adversary.model),
        every=EVERY,
        progress=False,
    )
    return [each.model for each in found], [each.evaluations for each in histories]


# --- what is measured ---


def accuracy(model: CausalLM) -> float:
    """Return how often the most likely next token is right, where it can be known."""
    return _repeating.accuracy(model, (TEST, ANSWERS))


def layer_1(model: CausalLM, ids: Tensor) -> Tensor:
    """Return the weights of layer 1, (texts, heads, queries, keys)."""
    return record_attention(model, ids)[1]


def after_copy(weights: Tensor, ids: Tensor, places: int) -> Tensor:
    """Return each head's weight on the keys `places` after earlier copies: (heads,).

    With one place it is the induction score.
    """
    copies = (ids[:, :, None] == ids[:, None]).tril(-1)  # (texts, queries, keys)
    marks = F.pad(copies, (places, -places)) & MASK
    found = (weights * marks[:, None]).sum(dim=-1)  # (texts, heads, queries)
    return found.transpose(1, 2)[marks.any(dim=-1)].mean(dim=0)


def look(model: CausalLM) -> tuple[float, float]:
    """Return the accuracy, and the largest weight of a head on what it must not see."""
    return accuracy(model), after_copy(layer_1(model, TEST), TEST, 1).max().item()


def handed_over(weights: Tensor, ids: Tensor, back: int) -> Tensor:
    """Return how much of each word each head attends to: (texts, queries, heads * 32).

    back: 0 for the words of the keys, 1 for the words just before them.
    """
    words = F.one_hot(ids, WORDS).double()
    words = F.pad(words, (0, 0, back, -back))[:, None]  # (texts, 1, keys, words)
    return (weights @ words).transpose(1, 2).flatten(2)


def reader(model: CausalLM, back: int = 0) -> float:
    """Return the accuracy of a linear model that is given these patterns alone."""
    asked = FIT_ANSWERS >= 0
    given = handed_over(layer_1(model, FIT), FIT, back)[asked]
    wanted = F.one_hot(FIT_ANSWERS[asked], WORDS).double()
    ridge = torch.eye(given.shape[1])
    solution = torch.linalg.solve(given.mT @ given + ridge, given.mT @ wanted)
    given = handed_over(layer_1(model, TEST), TEST, back)
    right = (given @ solution).argmax(dim=-1) == ANSWERS
    return right[ANSWERS >= 0].double().mean().item()


def elsewhere(one: CausalLM, other: CausalLM) -> float:
    """Return the share of its weight that layer 1, its heads averaged, moved."""
    there, here = (layer_1(m, TEST).mean(dim=1)[ANSWERS >= 0] for m in (one, other))
    return (there - here).abs().sum(dim=-1).mean().item() / 2


def patterns(model: CausalLM) -> list:
    """Return the weights of layer 1 for TEXT, in hundredths: (heads, queries, keys)."""
    ids = torch.tensor([[VOCABULARY.index(word) for word in TEXT]])
    return (100 * layer_1(model, ids)[0]).round().int().tolist()


def run(search: str, seed: int, model, original, evaluations: list) -> dict:
    """Return what is stored of one adversary, or of one model as it was trained."""
    weights = layer_1(model, TEST)
    at, seen = zip(*evaluations)
    right, forbidden = zip(*seen)
    values = {
        "accuracy": right,
        "forbidden": forbidden,
        "after 2": after_copy(weights, TEST, 2),
        "reader": reader(model),
        "reader of the word before": reader(model, back=1),
        "elsewhere": elsewhere(original, model),
    }
    stored = {"search": search, "seed": seed, "at": at} | rounded(values)
    if seed == 1 and search in ("trained", "slow"):
        stored["patterns"] = patterns(model)
    return stored


# --- models whose layer 1 attends uniformly ---


class Uniform(nn.Module):
    """A model of which each head of layer 1 attends uniformly, also in training."""

    def __init__(self, model: CausalLM):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits."""
        first, second = self.model.blocks
        x = first(self.model.embedding(ids), mask=MASK)
        values = second.attention.value_proj(second.attention_norm(x))
        weights = MASK / MASK.sum(dim=-1, keepdim=True)  # the same in all heads
        x = x + second.attention.out_proj(weights.to(x) @ values)
        return self.model.head(self.model.norm(x))


# --- all of it ---


def trained(seeds, make: Callable = make_model, **options) -> list[nn.Module]:
    """Return the models of lesson 07; or other models, trained as they are."""
    how = TRAINING | {"progress": False} | options
    return train_many(make, make_batch, seeds=seeds, **how)[0]


def accuracies_of_uniform(steps: int) -> list[float]:
    """Return the accuracies of models whose layer 1 attends uniformly from step 0."""
    found = trained(SEEDS, lambda: Uniform(make_model()), steps=steps)
    return rounded([accuracy(each) for each in found])


def study() -> dict:
    """Run everything; return what is stored."""
    models = trained(SEEDS)
    steps = TRAINING["steps"]
    runs = [
        run("trained", seed, model, model, [(steps, look(model))])
        for seed, model in zip(SEEDS, models)
    ]
    for name, search in SEARCHES.items():
        found = adversaries([models[s] for s in search.seeds], search, search.seeds)
        for seed, adversary, evaluations in zip(search.seeds, *found):
            runs.append(run(name, seed, adversary, models[seed], evaluations))
        print(name, flush=True)
    return {
        "training": TRAINING,
        "uniform": {str(steps): accuracies_of_uniform(steps) for steps in UNIFORM},
        "runs": runs,
    }


def at_the_end(run: dict) -> dict:
    """Return a run with its last values only: on the way they jump."""
    return run | {name: run[name][-1] for name in ("accuracy", "forbidden")}


def comparable(stored: dict) -> list[dict]:
    return [at_the_end(run) for run in stored["runs"]]


def again(stored: dict) -> list[dict]:
    """Repeat the checked run, alone."""
    name, seed = CHECKED
    (model,) = trained([seed])
    (adversary,), (evaluations,) = adversaries([model], SEARCHES[name], [seed])
    return [at_the_end(run(name, seed, adversary, model, evaluations))]
