"""What does dropout do to the losses on the training and on the validation text?

The models, the text and the training are those of `parts`, with 720 steps: two blocks
of 128 features. The models without dropout that they are compared with are stored
there ("full", 720 steps). About 4 minutes on one core.
"""

import json

import torch

from assets.studies import rounded, variants, versions
from assets.studies.parts import baselines
from utils.data import Corpus, python_docs
from utils.models import CausalLM
from utils.positions import Rotary
from utils.training import train

SEEDS, DROPOUTS, STEPS, RATE = range(3), (0.2,), 720, 5e-3
KEY = ("dropout",)
MARGIN = {"from the bigram": 0.1}  # nats


def run(dropout: float, seed: int, corpus: Corpus) -> dict:
    """Train one model; return what is stored of it."""
    torch.manual_seed(seed)
    sizes = variants.EMBED_DIM, variants.HEADS, variants.LAYERS
    position = Rotary(variants.EMBED_DIM // variants.HEADS)
    options = {"position": position, "dropout": dropout, "embedding_std": None}
    model = CausalLM(len(corpus.vocab), *sizes, **options)

    def both_losses(model):
        parts = ("train", "validation")
        return rounded([variants.losses(model, corpus, x).mean() for x in parts])

    history = train(
        model,
        variants.make_batch("pre", corpus),
        STEPS,
        seed=seed,
        learning_rate=RATE,
        warmup=20,
        evaluate=both_losses,
        every=40,
        progress=False,
    )
    taken, losses = zip(*history.evaluations)
    training, validation = zip(*losses)
    stored = {"dropout": dropout, "steps": STEPS, "learning_rate": RATE, "seed": seed}
    return stored | {"at": taken, "training": training, "validation": validation}


def study() -> dict:
    """Run everything; return what is stored."""
    corpus, runs = python_docs(), []
    for seed in SEEDS:
        for dropout in DROPOUTS:
            runs.append(run(dropout, seed, corpus))
            print(json.dumps(runs[-1]), flush=True)
    return {
        "study": "what does dropout do to the two losses?",
        "versions": versions(),
        "text": variants.sizes(corpus),
        "baselines": baselines(corpus),
        "runs": runs,
    }


def from_bigram(run: dict, bigram: float) -> dict:
    """Return the last loss less the bigram's: another Python has another text."""
    gap = run["validation"][-1] - bigram
    return {"dropout": run["dropout"], "from the bigram": gap}


def comparable(stored: dict) -> list[dict]:
    bigram = stored["baselines"]["bigram"]
    return [from_bigram(run, bigram) for run in stored["runs"]]


def again(stored: dict) -> list[dict]:
    """Repeat one run."""
    corpus = python_docs()
    bigram = baselines(corpus)["bigram"]
    return [from_bigram(run(DROPOUTS[0], 0, corpus), bigram)]
