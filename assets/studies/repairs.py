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

from dataclasses import dataclass
from functools import partial

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
    "batch": 16,
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


def repaired(repair: str, head_dim: int, trained_length: int, factor: int) -> Rotary:
    """Return the rotary scheme for texts `factor` times as long as in training."""
    return {
        "none": lambda: Rotary(head_dim, base=BASE),
        "interpolation": lambda: Rotary(head_dim, base=BASE, scale=1 / factor),
        "NTK": lambda: Rotary(
            head_dim, base=BASE * factor ** (head_dim / (head_dim - 2))
        ),
        "YaRN": lambda: YaRN(head_dim, trained_length, factor, base=BASE),
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


def batch_of(task: length.Task, longer: int):
    """Return make_batch(generator) of texts that are `longer` times as long."""
    size, draw = longer * task.length, SETTINGS["batch"]
    if task.name == "characters":
        return lambda g: CORPUS.batch(g, draw, size)
    of_task = {"3 back": partial(length.tokens_back, back=length.BACK)}
    make = of_task.get(task.name, length.copy_first_token)
    return lambda g: make(g, draw, size, length.VOCAB)


CORPUS = python_docs("characters")


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
    train(model, batch_of(task, 1), kind.steps, seed=seed, learning_rate=rate)
    return model


def tested(model, kind: Kind, task: length.Task, seed: int, repairs=None):
    """Yield what is stored of one trained model, of all repairs or of these."""
    which = {"task": kind.task, "head_dim": kind.head_dim, "steps": kind.steps}
    how = {"learning_rate": SETTINGS["further learning_rate"]}
    how |= {"warmup": SETTINGS["further warmup"]}
    for factor, repair, further in kind.changes:
        if repairs and repair not in repairs:
            continue
        scheme = repaired(repair, kind.head_dim, task.length, factor)
        changed = with_position(model, scheme)
        if further:
            train(changed, batch_of(task, factor), further, seed=100 + seed, **how)
        run = which | {"factor": factor, "repair": repair, "further": further}
        yield run | {"seed": seed, "parts": by_part(changed, task, factor)}


# --- a pretrained model, within its trained length ---

PRETRAINED = {"length": 8192, "tokens": 1024, "texts": 4, "factors": [2, 4]}


@torch.no_grad()
def of_smollm2() -> list[dict]:
    """Return SmolLM2's mean loss on texts that are far shorter than it was trained on.

    Nothing in them is beyond the trained length, so a repair can only cost something.
    """
    model, tokenizer = load_smollm2()
    size, texts = PRETRAINED["tokens"], PRETRAINED["texts"]
    text = CORPUS.decode(CORPUS.validation[: 12 * texts * size])
    ids = torch.tensor(tokenizer(text)["input_ids"])[: texts * size].view(texts, size)
    old, rows = model.position, []
    options = {"base": old.base, "layout": old.layout}
    dim, longest = old.head_dim, PRETRAINED["length"]
    tried = {("none", 1): old}
    for factor in PRETRAINED["factors"]:
        base = old.base * factor ** (dim / (dim - 2))
        tried |= {
            ("interpolation", factor): Rotary(dim, scale=1 / factor, **options),
            ("NTK", factor): Rotary(dim, base=base, layout=old.layout),
            ("YaRN", factor): YaRN(dim, longest, factor, **options),
        }
    for (repair, factor), scheme in tried.items():
        model.position = scheme
        for block in model.blocks:
            block.attention.position = scheme
        losses = [F.cross_entropy(model(x[None, :-1])[0], x[1:]) for x in ids]
        row = {"repair": repair, "factor": factor}
        rows.append(row | {"losses": rounded(torch.stack(losses), 3)})
        print(rows[-1], flush=True)
    return rows


def runs_of(kind: Kind, seed: int, repairs=None):
    """Yield what is stored of a model that is trained now."""
    task = length.TASKS[kind.task]()
    yield from tested(trained(kind, task, seed), kind, task, seed, repairs)


def study() -> dict:
    """Run everything; return what is stored."""
    runs = (run for kind in KINDS for seed in SEEDS for run in runs_of(kind, seed))
    return {
        "SmolLM2": PRETRAINED | {"rows": of_smollm2()},
        "runs": told(runs),
    }


def again(stored: dict) -> list[dict]:
    """Repeat a model that recalls the first token, without a repair and with one."""
    return [*runs_of(KINDS[3], 0, ("none", "YaRN"))]
