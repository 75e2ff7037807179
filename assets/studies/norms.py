"""What do layer norms buy? Language models with and without them, three seeds each.

The text and the loop are those of `parts`; the models are smaller or deeper: 2 and 12
blocks of 64 features, 12 of 128, and batches of 4 windows. "without" has no norm at
all, none before the head either. The first groups vary the learning rate. The others
change one thing of the model with 12 blocks of 64 features: no clipping of the gradient
(at two learning rates), three times as many steps, bfloat16 (autocast), or initial
weights of the linear layers that are three times as large. Stored are the last losses
on both parts of the text; or, if a training loss is not finite, the step of it, and
null. About 19 minutes on one core.
"""

import math
from unittest.mock import patch

import torch
from torch import nn

from assets.studies import rounded, told, variants
from assets.studies.variants import baselines
from utils import training
from utils.data import Corpus, python_docs
from utils.models import CausalLM
from utils.positions import Rotary

SEEDS, RATES, STEPS, WARMUP, BATCH = range(3), (5e-3, 1e-2, 3e-2), 240, 20, 4
SIZES = [(2, 64), (12, 64), (12, 128)]  # blocks, features
PLAIN = {"clipped": True, "steps": STEPS, "precision": "float32", "weights": 1}
CHANGED = [  # what is changed for 12 blocks of 64 features
    {"clipped": False},
    {"precision": "bfloat16"},
    {"weights": 3},
    {"steps": 3 * STEPS},
]
KEY = ("norms", "blocks", "features", "rate", *PLAIN)
MARGIN = {"from the bigram": 0.1}  # nats


def settings() -> list[dict]:
    """Return the settings of all runs, without norms and with them."""
    found = []
    for blocks, features in SIZES:
        size = {"blocks": blocks, "features": features}
        found += [size | {"rate": rate} | PLAIN for rate in RATES]
    plain = {"blocks": 12, "features": 64, "rate": RATES[0]} | PLAIN
    found += [plain | changed for changed in CHANGED]
    found.append(plain | {"rate": RATES[1], "clipped": False})
    return [{"norms": norms} | x for x in found for norms in ("without", "pre")]


class InBfloat16(nn.Module):
    """A model whose matrix products are computed in bfloat16, its logits returned."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids):
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(ids).float()


def make_model(setting: dict, vocab_size: int, seed: int) -> CausalLM:
    """Return an untrained model."""
    torch.manual_seed(seed)
    features = setting["features"]
    model = CausalLM(
        vocab_size,
        features,
        features // 32,
        setting["blocks"],
        position=Rotary(32),
        norm=None if setting["norms"] == "without" else "pre",
        embedding_std=None,
    )
    with torch.no_grad():
        for layer in model.blocks.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(setting["weights"])
    return model


def run(setting: dict, seed: int, corpus: Corpus) -> dict:
    """Train one model; return what is stored of it."""
    model = make_model(setting, len(corpus.vocab), seed)
    trained = InBfloat16(model) if setting["precision"] == "bfloat16" else model
    stored = setting | {"seed": seed, "broke_at": None}
    losses = []

    def finite_loss(logits, targets):
        loss = training.cross_entropy(logits, targets)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise FloatingPointError
        return loss

    longest = training.LONGEST if setting["clipped"] else math.inf
    try:
        with patch.object(training, "LONGEST", longest):
            training.train(
                trained,
                lambda generator: corpus.batch(generator, BATCH, variants.LENGTH),
                setting["steps"],
                seed=seed,
                loss=finite_loss,
                learning_rate=setting["rate"],
                warmup=WARMUP,
                progress=False,
            )
    except FloatingPointError:
        stored["broke_at"] = len(losses) - 1
        return stored | {"training": None, "validation": None}
    stored["training"] = variants.losses(trained, corpus, "train").mean()
    stored["validation"] = variants.losses(trained, corpus).mean()
    return rounded(stored)


def study() -> dict:
    """Run everything; return what is stored."""
    corpus = python_docs()
    return {
        "text": variants.sizes(corpus),
        "training": {"batch": BATCH, "length": variants.LENGTH, "warmup": WARMUP},
        "baselines": baselines(corpus),
        "runs": told(run(x, seed, corpus) for seed in SEEDS for x in settings()),
    }


comparable = variants.comparable


def again(stored: dict) -> list[dict]:
    """Repeat two blocks of 64 features without norms, at a learning rate of 5e-3."""
    corpus = python_docs()
    runs = [run(settings()[0], 0, corpus)]
    return comparable({"baselines": baselines(corpus), "runs": runs})
