"""Why is each part of a transformer block there? Language models without one of them.

usage: python assets/studies/parts.py            every run, into parts.json
       python assets/studies/parts.py --check    one run again: is it as stored?

The models, the text and the training are those of language_model.py, whose file has
the whole model and the one without attention. Here are models without norms, without
MLPs, and without residual connections (all, or those around one of the two sublayers);
the whole model and the one without residual connections also with six blocks; the whole
model trained three times as long, with its losses on both parts of the text; and models
without residual connections that get more chances to learn: a lower learning rate, and
three times as many steps. The last three groups answer what the deeper notebook asks
then. About 45 minutes on one core.
"""

import json
import platform
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from studies import command_line, script_of  # noqa: E402

from utils.data import Corpus, python_docs  # noqa: E402
from utils.models import Block, CausalLM  # noqa: E402
from utils.positions import Rotary  # noqa: E402
from utils.training import train  # noqa: E402

STORED = Path(__file__).with_suffix(".json")
model_of_lesson = script_of("language_model")
RATE, STEPS, LONGER = 5e-3, 240, 720
GROUPS = [  # model, blocks, steps, learning rate, seeds
    ("no residual", 2, STEPS, RATE, range(8)),
    ("no norms", 2, STEPS, RATE, range(8)),
    ("no MLP", 2, STEPS, RATE, range(8)),
    ("full", 6, STEPS, RATE, range(3)),
    ("no residual", 6, STEPS, RATE, range(3)),
    ("full", 2, LONGER, RATE, range(3)),
    ("no residual around attention", 2, STEPS, RATE, range(3)),
    ("no residual around the MLP", 2, STEPS, RATE, range(3)),
    ("no residual", 2, LONGER, RATE / 5, range(2)),
    ("no residual", 6, LONGER, RATE / 5, range(2)),
    ("no residual around the MLP", 6, STEPS, RATE, range(3)),
    ("no attention, no residual", 6, STEPS, RATE, range(3)),
    ("no attention", 2, LONGER, RATE / 5, range(2)),
]
CHECKED = ("no residual", 2, STEPS, RATE, 0)  # --check repeats this run
FIELDS = ("model", "blocks", "steps", "learning_rate")
MARGIN = 0.1  # nats: another CPU rounds otherwise, and training makes more of it


class WithoutResidual(Block):
    """A block in which sublayers replace their input instead of adding to it."""

    without = ("attention", "MLP")

    def forward(self, x, mask=None, *, cache=None):
        y, _ = self.attention(self.attention_norm(x), mask=mask, cache=cache)
        x = y if "attention" in self.without else x + y
        y = self.mlp(self.mlp_norm(x))
        return y if "MLP" in self.without else x + y


class WithoutFirst(WithoutResidual):
    without = ("attention",)


class WithoutSecond(WithoutResidual):
    without = ("MLP",)


class OnlyMLP(Block):
    """A block that replaces its input by the output of its MLP."""

    def forward(self, x, mask=None, *, cache=None):
        return self.mlp(self.mlp_norm(x))


class WithoutAttention(Block):
    """A block without attention, with its residual connection."""

    def forward(self, x, mask=None, *, cache=None):
        return x + self.mlp(self.mlp_norm(x))


OPTIONS = {"no norms": {"norm": None}, "no MLP": {"mlp_dim": 0}}
BLOCKS = {
    "no residual": WithoutResidual,
    "no residual around attention": WithoutFirst,
    "no residual around the MLP": WithoutSecond,
    "no attention, no residual": OnlyMLP,
    "no attention": WithoutAttention,
}


def make_model(name: str, blocks: int, vocab_size: int) -> CausalLM:
    """Return an untrained model."""
    embed_dim, heads = model_of_lesson.EMBED_DIM, model_of_lesson.HEADS
    position = Rotary(embed_dim // heads)
    options = {"position": position, "embedding_std": None, **OPTIONS.get(name, {})}
    model = CausalLM(vocab_size, embed_dim, heads, blocks, **options)
    if name in BLOCKS:
        for i in range(blocks):
            model.blocks[i] = BLOCKS[name](embed_dim, heads, position=position)
    return model


def run(name: str, blocks: int, steps: int, rate: float, seed: int) -> dict:
    """Train one model; return what is stored of it."""
    corpus = python_docs()
    torch.manual_seed(seed)
    model = make_model(name, blocks, len(corpus.vocab))

    def both_losses(model):
        return [
            round(model_of_lesson.losses(model, corpus, part).mean().item(), 4)
            for part in ("train", "validation")
        ]

    history = train(
        model,
        lambda generator: corpus.batch(
            generator, model_of_lesson.BATCH, model_of_lesson.LENGTH
        ),
        steps,
        seed=seed,
        learning_rate=rate,
        warmup=20,
        evaluate=both_losses,
        every=40 if (name, steps) == ("full", LONGER) else steps,
        progress=False,
    )
    taken, losses = zip(*history.evaluations)
    training, validation = zip(*losses)
    stored = dict(zip(FIELDS, (name, blocks, steps, rate))) | {"seed": seed}
    return stored | {"at": taken, "training": training, "validation": validation}


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
    return {name: round(loss.mean().item(), 4) for name, loss in losses.items()}


def study() -> dict:
    """Run everything; return what is stored."""
    corpus, runs = python_docs(), []
    for seed in range(8):
        for *setting, seeds in GROUPS:
            if seed in seeds:
                start = time.process_time()
                runs.append(run(*setting, seed))
                spent = time.process_time() - start
                print(json.dumps(runs[-1]), f"{spent:.0f} s", flush=True)
    return {
        "study": "why is each part of a block there?",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "text": model_of_lesson.sizes(corpus),
        "margin": MARGIN,
        "baselines": baselines(corpus),
        "runs": runs,
    }


def above_bigram(run: dict, baselines: dict) -> float:
    """Return by how much the last validation loss of a run exceeds the bigram's."""
    return run["validation"][-1] - baselines["bigram"]


def misfits(stored: dict, again: dict, now: dict) -> list[str]:
    """Return what of a repeated run is not as stored, in words.

    now: the baselines of the text of this Python, which may be another text.
    """
    *setting, _ = CHECKED
    same = [run for run in stored["runs"] if [run[f] for f in FIELDS] == setting]
    if len(same) != 8:
        return [f"{len(same)} runs of {CHECKED[0]} are stored, not 8."]
    gaps = [above_bigram(run, stored["baselines"]) for run in same]
    low, high = min(gaps) - MARGIN, max(gaps) + MARGIN
    found = above_bigram(again, now)
    if low <= found <= high:
        return []
    return [f"from the bigram {found:.3f} nats; stored {low:.3f} to {high:.3f}."]


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    return command_line(
        arguments,
        STORED,
        __doc__,
        study,
        lambda stored: misfits(stored, run(*CHECKED), baselines(python_docs())),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
