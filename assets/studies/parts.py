"""Why is each part of a transformer block there? Language models without one of them.

The models, the text and the training are those of `variants`, which has the whole model
and the one without attention. Here are models without norms, without MLPs, and without
residual connections (all, or those around one of the two sublayers); the whole model
and the one without residual connections also with six blocks; the whole model trained
three times as long, also with dropout, with its losses on both parts of the text. The
last groups answer what the deeper notebook asks then: smaller and more steps, and
embeddings that begin with a standard deviation of 0.02. About an hour on one core.
"""

import torch

from assets.studies import rounded, told, variants
from utils.data import python_docs
from utils.models import Block, CausalLM
from utils.training import train

RATE, STEPS, LONGER = 5e-3, 240, 720
GROUPS = [  # model, blocks, steps, learning rate, seeds
    ("no residual", 2, STEPS, RATE, range(8)),
    ("no norms", 2, STEPS, RATE, range(8)),
    ("no MLP", 2, STEPS, RATE, range(8)),
    ("full", 6, STEPS, RATE, range(3)),
    ("no residual", 6, STEPS, RATE, range(3)),
    ("full", 2, LONGER, RATE, range(3)),
    ("dropout 0.2", 2, LONGER, RATE, range(3)),
    ("no residual around attention", 2, STEPS, RATE, range(3)),
    ("no residual around the MLP", 2, STEPS, RATE, range(3)),
    ("no residual around the MLP", 6, STEPS, RATE, range(3)),
    ("no attention, no residual", 6, STEPS, RATE, range(3)),
    ("no attention, no residual", 6, 2 * STEPS, 1e-3, range(3)),
    ("no residual", 6, 4 * STEPS, 1e-3, range(3)),
    ("full", 2, 4 * STEPS, 1e-3, range(3)),
    ("no residual", 2, 4 * STEPS, 1e-3, range(3)),
    ("no residual around attention", 2, 4 * STEPS, 1e-3, range(3)),
    ("full, small embeddings", 2, STEPS, RATE, range(3)),
    ("no MLP, small embeddings", 2, STEPS, RATE, range(3)),
]
CHECKED = ("no residual", 2, STEPS, RATE, 0)  # --check repeats this run
KEY = ("model", "blocks", "steps", "learning_rate")
MARGIN = {"from the bigram": 0.1}  # nats


class Bare(Block):
    """A block in which some sublayers replace their input instead of adding to it."""

    replacing = ("attention", "MLP")

    def forward(self, x, mask=None, *, cache=None):
        y, _ = self.attention(self.attention_norm(x), mask=mask, cache=cache)
        x = y if "attention" in self.replacing else x + y
        y = self.mlp(self.mlp_norm(x))
        return y if "MLP" in self.replacing else x + y


REPLACING = {
    "no residual": ("attention", "MLP"),
    "no residual around attention": ("attention",),
    "no residual around the MLP": ("MLP",),
    "no attention, no residual": ("MLP",),
}


def make_model(name: str, blocks: int, vocab_size: int, seed: int = 0) -> CausalLM:
    """Return an untrained model."""
    name, _, small = name.partition(", small")
    model = variants.make_model(name, vocab_size, seed, blocks)
    if small:
        torch.nn.init.normal_(model.embedding.weight, std=0.02)
    for i in range(blocks) if name in REPLACING else ():
        sizes = variants.EMBED_DIM, variants.HEADS
        model.blocks[i] = Bare(*sizes, position=model.position)
        model.blocks[i].replacing = REPLACING[name]
        if "no attention" in name:
            model.blocks[i].attention = variants.Silent()
    return model


def run(name: str, blocks: int, steps: int, rate: float, seed: int) -> dict:
    """Train one model; return what is stored of it: at some steps both losses."""
    corpus = python_docs()
    model = make_model(name, blocks, len(corpus.vocab), seed)

    def looked_at(model):
        parts = ("train", "validation")
        return rounded([variants.losses(model, corpus, x).mean() for x in parts])

    how = {"seed": seed, "learning_rate": rate, "warmup": 20, "progress": False}
    how |= {"evaluate": looked_at, "every": 40 if steps == LONGER else steps}
    history = train(model, variants.make_batch(corpus), steps, **how)
    at, losses = zip(*history.evaluations)
    training, validation = zip(*losses)
    found = dict(zip(KEY, (name, blocks, steps, rate))) | {"seed": seed, "at": at}
    return found | {"training": training, "validation": validation}


def study() -> dict:
    """Run everything; return what is stored."""
    corpus = python_docs()
    runs = [
        (*setting, seed)
        for seed in range(8)
        for *setting, seeds in GROUPS
        if seed in seeds
    ]
    return {
        "text": variants.sizes(corpus),
        "baselines": variants.baselines(corpus),
        "runs": told(run(*each) for each in runs),
    }


comparable = variants.comparable


def again(stored: dict) -> list[dict]:
    bigram = variants.baselines(python_docs())["bigram"]
    return [variants.from_bigram(run(*CHECKED), bigram)]
