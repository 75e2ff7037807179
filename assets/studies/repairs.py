"""Rotary embeddings beyond the trained length, repaired: without training, and with it.

A model is trained on texts of L tokens, and gets one of four rotary schemes for texts
that are `factor` times as long: as it was ("none"), position interpolation, a base for
NTK-aware scaling, or YaRN. It is tested as it is, and after a few further steps on the
long texts. Eight seeds of four kinds of models, and the pretrained SmolLM2, whose loss
within its trained length is measured without any training. The models of the core also
tell how much of the damage comes from one pair: they are tested with this pair alone
slowed down. The whole study takes about half an hour on one core; lesson 05 plots what
is stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F

from assets.studies import length, rounded, told
from assets.studies.length import with_position
from utils.data import python_docs
from utils.models import CausalLM
from utils.positions import Rotary, YaRN
from utils.pretrained import load_smollm2
from utils.training import train

BASE, SEEDS = 10_000, range(8)
SETTINGS = {
    "base": BASE,
    "num_layers": 2,
    "batch": length.BATCH,
    "learning_rate": 3e-3,
    "further learning_rate": 1e-3,
    "further warmup": 5,
    "rows": 128,
    "length": length.SETTINGS["length"],
    "part": 4,  # L has so many parts
}
KEY = ("task", "head_dim", "steps", "factor", "repair", "further")
MARGIN = {"parts": 0.2}
REPAIRS = ("none", "interpolation", "NTK", "YaRN")
ALONE = "pair 3 alone"  # the pair that rotates farthest into new angles


class OneSlower(Rotary):
    """Rotary of which one pair rotates `factor` times slower."""

    def __init__(self, head_dim: int, pair: int, factor: int):
        super().__init__(head_dim, base=BASE)
        self.pair, self.factor = pair, factor

    def frequencies(self, length: int, **options) -> torch.Tensor:
        turns = super().frequencies(length, **options)
        turns[self.pair] /= self.factor
        return turns


def repaired(
    repair: str, head_dim: int, trained_length: int, factor: int, **options
) -> Rotary:
    """Return the rotary scheme for texts `factor` times as long as in training.

    options: the base of the trained scheme, if it is not BASE, and its layout.
    """
    options = {"base": BASE} | options
    larger = options["base"] * factor ** (head_dim / (head_dim - 2))
    return {
        "none": lambda: Rotary(head_dim, **options),
        "interpolation": lambda: Rotary(head_dim, scale=1 / factor, **options),
        "NTK": lambda: Rotary(head_dim, **options | {"base": larger}),
        "YaRN": lambda: YaRN(head_dim, trained_length, factor, **options),
        ALONE: lambda: OneSlower(head_dim, 3, factor),
    }[repair]()


@dataclass(frozen=True)
class Kind:
    """A model, its training, and how it is tested: {factor: further steps}."""

    task: str
    embed_dim: int
    num_heads: int
    steps: int
    tests: dict[int, tuple[int, ...]]
    alone: tuple[int, ...] = ()  # the factors that also slow down one pair alone

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def changes(self) -> list[tuple[int, str, int]]:
        """Return each factor, repair and number of further steps that is tested."""
        of_repairs = [
            (factor, repair, further)
            for factor, counts in self.tests.items()
            for repair in REPAIRS
            for further in counts
        ]
        return of_repairs + [(factor, ALONE, 0) for factor in self.alone]


KINDS = [
    Kind("characters", 64, 4, 600, {4: (0, 30), 2: (0, 30)}, alone=(4,)),
    Kind("characters", 128, 2, 600, {2: (0, 30)}),  # heads of 64 features
    Kind("3 back", 64, 4, 400, {4: (0, 20)}),
    Kind("first", 64, 4, 400, {4: (0, 20)}),
]


def make_model(kind: Kind, vocab_size: int) -> CausalLM:
    """Return a model; those of random tokens draw theirs as the study `length` does."""
    std = 0.02 if kind.task == "characters" else None
    options = {"position": Rotary(kind.head_dim, base=BASE), "embedding_std": std}
    layers = SETTINGS["num_layers"]
    return CausalLM(vocab_size, kind.embed_dim, kind.num_heads, layers, **options)


def by_part(model: CausalLM, task: length.Task, factor: int) -> list[float]:
    """Return a number for each L / 4 positions: accuracy; of "characters" the loss."""
    size = factor * task.length
    test = [x[: SETTINGS["rows"], :size] for x in task.test]
    return rounded(length.by_part(model, task, test, SETTINGS["part"] * factor), 3)


def trained(kind: Kind, task: length.Task, seed: int) -> CausalLM:
    """Return a model of this kind, trained on texts of L tokens."""
    torch.manual_seed(seed)
    model = make_model(kind, task.vocab_size)
    rate = SETTINGS["learning_rate"]
    train(model, task.batch, kind.steps, seed=seed, learning_rate=rate)
    return model


def runs_of(kind: Kind, seed: int, repairs=(*REPAIRS, ALONE)) -> Iterator[dict]:
    """Train a model; yield what is stored of it, of all repairs or of these."""
    task = length.TASKS[kind.task]()
    model = trained(kind, task, seed)
    which = {"task": kind.task, "head_dim": kind.head_dim, "steps": kind.steps}
    how = {"learning_rate": SETTINGS["further learning_rate"]}
    how |= {"warmup": SETTINGS["further warmup"]}
    for factor, repair, further in kind.changes:
        if repair not in repairs:
            continue
        scheme = repaired(repair, kind.head_dim, task.length, factor)
        changed = with_position(model, scheme)
        if further:
            batch = partial(task.batch, longer=factor)
            train(changed, batch, further, seed=100 + seed, **how)
        run = which | {"factor": factor, "repair": repair, "further": further}
        yield run | {"seed": seed, "parts": by_part(changed, task, factor)}


# --- a pretrained model, within its trained length ---

PRETRAINED = {"length": 8192, "tokens": 1024, "texts": 4, "factors": [2, 4]}


@torch.no_grad()
def of_smollm2() -> Iterator[dict]:
    """Yield SmolLM2's mean loss on texts that are far shorter than it was trained on.

    Nothing in them is beyond the trained length, so a repair can only cost something.
    """
    model, tokenizer = load_smollm2()
    size, texts = PRETRAINED["tokens"], PRETRAINED["texts"]
    corpus = python_docs("characters")
    text = corpus.decode(corpus.validation[: 12 * texts * size])
    ids = torch.tensor(tokenizer(text)["input_ids"])[: texts * size].view(texts, size)
    old = model.position
    options = {"base": old.base, "layout": old.layout}
    tried = [(1, "none"), *product(PRETRAINED["factors"], REPAIRS[1:])]
    for factor, repair in tried:
        sizes = old.head_dim, PRETRAINED["length"], factor
        changed = with_position(model, repaired(repair, *sizes, **options))
        losses = [F.cross_entropy(changed(x[None, :-1])[0], x[1:]) for x in ids]
        row = {"repair": repair, "factor": factor}
        yield row | {"losses": rounded(torch.stack(losses), 3)}


def study() -> dict:
    """Run everything; return what is stored."""
    runs = (run for kind in KINDS for seed in SEEDS for run in runs_of(kind, seed))
    rows = told(of_smollm2())
    return {"SmolLM2": PRETRAINED | {"rows": rows}, "runs": told(runs)}


def again(stored: dict) -> list[dict]:
    """Repeat a model that recalls the first token, without a repair and with one."""
    return [*runs_of(KINDS[3], 0, ("none", "YaRN"))]
