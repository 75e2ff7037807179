"""What does dropout do to the losses on the training and on the validation text?

The models, the text and the training are those of `parts`, with 720 steps: two blocks
of 128 features. The models without dropout that they are compared with are stored
there ("full", 720 steps). About 4 minutes on one core.
"""

import torch

from assets.studies import told, variants
from assets.studies.parts import baselines, both_losses
from utils.data import Corpus, python_docs
from utils.models import CausalLM
from utils.positions import Rotary

SEEDS, DROPOUTS, STEPS, RATE = range(3), (0.2,), 720, 5e-3
KEY = ("dropout",)
MARGIN = {"from the bigram": 0.1}  # nats


def run(dropout: float, seed: int, corpus: Corpus, every: int = 40) -> dict:
    """Train one model; return what is stored of it."""
    torch.manual_seed(seed)
    sizes = variants.EMBED_DIM, variants.HEADS, variants.LAYERS
    position = Rotary(variants.EMBED_DIM // variants.HEADS)
    options = {"position": position, "dropout": dropout, "embedding_std": None}
    model = CausalLM(len(corpus.vocab), *sizes, **options)
    stored = {"dropout": dropout, "steps": STEPS, "learning_rate": RATE, "seed": seed}
    how = {"seed": seed, "learning_rate": RATE}
    return stored | both_losses(model, corpus, STEPS, every, **how)


def study() -> dict:
    """Run everything; return what is stored."""
    corpus = python_docs()
    return {
        "text": variants.sizes(corpus),
        "baselines": baselines(corpus),
        "runs": told(run(x, seed, corpus) for seed in SEEDS for x in DROPOUTS),
    }


comparable = variants.comparable


def again(stored: dict) -> list[dict]:
    """Repeat one run, with no look at the losses on the way."""
    corpus = python_docs()
    bigram = baselines(corpus)["bigram"]
    return [variants.from_bigram(run(DROPOUTS[0], 0, corpus, every=STEPS), bigram)]
