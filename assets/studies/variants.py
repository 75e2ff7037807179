"""Four kinds of small language models on Python's documentation, eight seeds each.

The models of lesson 06's deeper notebook. Stored of each run: the loss on the
validation text as training goes on, and that on the training text at the end. Beside
the model of the lesson ("pre"), three others: "post" (norms after the additions), "no
attention" (blocks of MLPs alone), and "short" (a quarter of the steps; --check repeats
one of these).
"""

from collections import Counter
from math import log

import torch
import torch.nn.functional as F
from torch import nn

from assets.studies import rounded, told
from utils.data import Corpus, python_docs
from utils.models import CausalLM
from utils.positions import Rotary
from utils.training import train

SEEDS = range(8)
EMBED_DIM, HEADS, LAYERS, LENGTH, BATCH, STEPS = 128, 4, 2, 64, 16, 240
OPTIONS = {"learning_rate": 5e-3, "warmup": 20, "every": 40, "progress": False}
VARIANTS = ("pre", "post", "no attention", "short")
DISCOUNTS = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9)
KEY = ("variant",)
MARGIN = {"from the bigram": 0.1}  # nats


class Silent(nn.Module):
    """In the place of attention: no token attends to another."""

    def forward(self, x, mask=None, **options):
        return torch.zeros_like(x), None


MODELS = {  # other than the lesson's
    "post": {"norm": "post"},
    "no norms": {"norm": None},
    "no MLP": {"mlp_dim": 0},
    "dropout 0.2": {"dropout": 0.2},
}


def make_model(name: str, vocab_size: int, seed: int, blocks: int = LAYERS) -> CausalLM:
    """Return an untrained model, one of this study or of `parts`."""
    torch.manual_seed(seed)
    options = {"position": Rotary(EMBED_DIM // HEADS), "embedding_std": None}
    options |= MODELS.get(name, {})
    model = CausalLM(vocab_size, EMBED_DIM, HEADS, blocks, **options)
    for block in model.blocks:
        if name == "no attention":
            block.attention = Silent()
    return model


@torch.no_grad()
def losses(model: nn.Module, corpus: Corpus, part: str = "validation") -> torch.Tensor:
    """Return the loss (windows, LENGTH) at every token of a part's first windows."""
    ids, targets = (x[:150] for x in corpus.windows(LENGTH, part))
    found = [
        F.cross_entropy(model(some).mT, wanted, reduction="none")
        for some, wanted in zip(ids.split(64), targets.split(64))
    ]
    return torch.cat(found)


def make_batch(corpus: Corpus):
    """Return what draws a batch of windows."""
    return lambda generator: corpus.batch(generator, BATCH, LENGTH)


def run(variant: str, seed: int, corpus: Corpus) -> dict:
    """Train one model; return all that is stored of it."""
    model = make_model(variant, len(corpus.vocab), seed)
    history = train(
        model,
        make_batch(corpus),
        STEPS // 4 if variant == "short" else STEPS,
        seed=seed,
        evaluate=lambda model: losses(model, corpus).mean().item(),
        **OPTIONS,
    )
    stored = {
        "variant": variant,
        "seed": seed,
        "validation": history.evaluations,
        "training": losses(model, corpus, "train").mean(),
    }
    return rounded(stored)


def kneser_ney(corpus: Corpus, order: int, discount: float) -> list[float]:
    """Return the probability of each validation token but the first order - 1.

    By counting `order` tokens at a time (Kneser and Ney 1995), interpolated, as in Chen
    and Goodman 1999; below the highest order what is counted is in how many contexts a
    token stands.
    """
    text, asked = corpus.train.tolist(), corpus.validation.tolist()
    counts = Counter(zip(*(text[i:] for i in range(order))))
    levels = [counts]
    for _ in range(order - 1):
        levels.append(Counter(gram[1:] for gram in levels[-1]))
    totals, kinds = [], []
    for level in levels:
        total, kind = Counter(), Counter()
        for gram, count in level.items():
            total[gram[:-1]] += count
            kind[gram[:-1]] += 1
        totals.append(total)
        kinds.append(kind)

    def probability(gram: tuple, level: int) -> float:
        if level == order:
            return 1 / len(corpus.vocab)
        context, lower = gram[:-1], probability(gram[1:], level + 1)
        if not totals[level][context]:
            return lower
        kept = max(levels[level][gram] - discount, 0)
        share = discount * kinds[level][context]
        return (kept + share * lower) / totals[level][context]

    return [probability(gram, 0) for gram in zip(*(asked[i:] for i in range(order)))]


def mean_loss(found: list[float]) -> float:
    """Return the mean of -ln p, in nats per token."""
    return round(sum(-log(p) for p in found) / len(found), 4)


def with_cache(corpus: Corpus, order: int, discount: float) -> float:
    """Return the loss of counting, if it also counts in the window (lesson 06, deeper).

    Of the next token's probability, 0.05 is its frequency in the window so far, and 0.2
    that after earlier copies of the last token, if there are any.
    """
    ids, targets = corpus.windows(LENGTH, "validation")
    # the first tokens have no context of this order: they get an equal share
    known = [1 / len(corpus.vocab)] * (order - 2) + kneser_ney(corpus, order, discount)
    found, by_counting = [], iter(known)
    for row, wanted in zip(ids.tolist(), targets.tolist()):
        for t, (token, p) in enumerate(zip(wanted, by_counting)):
            seen = row[: t + 1]
            mixed = 0.95 * p + 0.05 * seen.count(token) / len(seen)
            came_next = [b for a, b in zip(seen, seen[1:]) if a == seen[-1]]
            if came_next:
                mixed += 0.2 * (came_next.count(token) / len(came_next) - p)
            found.append(mixed)
    return mean_loss(found)


def baselines(corpus: Corpus) -> dict[str, float]:
    """Return the losses of the unigram and the bigram model of lesson 06's core."""
    size, text = len(corpus.vocab), corpus.train
    counts = torch.bincount(text, minlength=size) + 1.0
    single = counts / counts.sum()
    pairs = torch.bincount(text[:-1] * size + text[1:], minlength=size**2)
    pairs = pairs.view(size, size)
    before, after = corpus.validation[:-1], corpus.validation[1:]
    seen = pairs[before, after] / pairs.sum(dim=1)[before]
    mixed = 0.6 * seen + 0.4 * single[after]
    losses = {"unigram": -single[after].log(), "bigram": -mixed.log()}
    return rounded({name: loss.mean() for name, loss in losses.items()})


def best_n_grams(corpus: Corpus) -> dict[int, float]:
    """Return what counting 2 to 5 tokens at a time reaches, in nats per token."""
    return {  # of the discounts, the one that suits the validation text: it helps them
        order: min(mean_loss(kneser_ney(corpus, order, d)) for d in DISCOUNTS)
        for order in (2, 3, 4, 5)
    }


def sizes(corpus: Corpus) -> dict:
    """Return what tells one text from another."""
    parts = {"train": len(corpus.train), "validation": len(corpus.validation)}
    return {"vocabulary": len(corpus.vocab), **parts}


def study() -> dict:
    """Run everything; return what is stored."""
    corpus = python_docs()
    return {
        "text": sizes(corpus),
        "model": {"embed_dim": EMBED_DIM, "heads": HEADS, "layers": LAYERS},
        "training": {"length": LENGTH, "batch": BATCH, "steps": STEPS, **OPTIONS},
        "baselines": baselines(corpus)
        | {"kneser_ney": best_n_grams(corpus)}
        | {"five tokens with a cache": with_cache(corpus, 5, 0.75)},
        "runs": told(run(kind, seed, corpus) for seed in SEEDS for kind in VARIANTS),
    }


def from_bigram(run: dict, bigram: float) -> dict:
    """Return a run with its last loss less the bigram's: Pythons have other texts."""
    loss = run["validation"]
    while isinstance(loss, (list, tuple)):
        loss = loss[-1]
    return run | {"from the bigram": None if loss is None else loss - bigram}


def comparable(stored: dict) -> list[dict]:
    bigram = stored["baselines"]["bigram"]
    return [from_bigram(run, bigram) for run in stored["runs"]]


def again(stored: dict) -> list[dict]:
    corpus = python_docs()
    runs = [run("short", 0, corpus)]
    return comparable({"baselines": baselines(corpus), "runs": runs})
