"""Train short, test long: three tasks, six position schemes, eight seeds each.

Every model is trained on texts of L tokens and tested on texts of 4 L, in sixteen parts
of L / 4 positions. `ALL` also asks whether a finding is one of these settings only:
with other steps, rates and seeds. The whole study takes about 45 minutes on one core;
lesson 05 plots what is stored.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assets.studies import rounded, told
from utils.data import copy_first_token, python_docs, tokens_back
from utils.models import CausalLM
from utils.positions import (
    ALiBi,
    Learned,
    NoPE,
    Rotary,
    Sinusoidal,
    T5Bias,
    relative_positions,
    rotary_angles,
    rotate_pairs,
)
from utils.training import train_many

VOCAB, BACK = 32, 3  # of the two tasks with random tokens
DIM, HEADS, LAYERS, BATCH, STEPS = 64, 4, 2, 16, 400
LONGER, PARTS = 4, 16  # tested on texts LONGER times as long, in so many parts
ROWS = 256  # texts in a test
SETTINGS = {
    "vocab_size": VOCAB,
    "back": BACK,
    "embed_dim": DIM,
    "num_heads": HEADS,
    "num_layers": LAYERS,
    "batch": BATCH,
    "steps": STEPS,
    "learning_rate": 3e-3,
    "length": {"3 back": 32, "first": 32, "characters": 64},
    "longer": LONGER,
    "parts": PARTS,
    "rows": ROWS,
}
KEY = ("task", "scheme", "tested", "steps", "learning_rate")
MARGIN = {"parts": 0.1}


@dataclass(frozen=True)
class Task:
    """What is learned: texts of `length` to train on, and a score of each part."""

    name: str
    length: int
    vocab_size: int
    batch: Callable  # batch(generator, longer=1) -> (ids, targets)
    test: tuple[Tensor, Tensor]  # ids, targets (rows, LONGER * length)


def token_task(name: str, draw: Callable) -> Task:
    """Return a task with random tokens; draw(generator, batch, length, vocab_size)."""
    length = SETTINGS["length"][name]
    unseen = draw(torch.Generator().manual_seed(10_000), ROWS, LONGER * length, VOCAB)

    def batch(generator, longer=1):
        return draw(generator, BATCH, longer * length, VOCAB)

    return Task(name, length, VOCAB, batch, unseen)


def characters() -> Task:
    """Next characters of Python's documentation.

    A test window begins every `length` characters, so that the same characters are met
    again `length` positions later: what changes from 0-L to L-2L is the position alone.
    """
    length, corpus = SETTINGS["length"]["characters"], python_docs("characters")
    windows = corpus.validation.unfold(0, LONGER * length + 1, length)[:ROWS]

    def batch(generator, longer=1):
        return corpus.batch(generator, BATCH, longer * length)

    test = windows[:, :-1], windows[:, 1:]
    return Task("characters", length, len(corpus.vocab), batch, test)


TASKS = {
    "3 back": lambda: token_task("3 back", partial(tokens_back, back=BACK)),
    "first": lambda: token_task("first", copy_first_token),
    "characters": characters,
}


class Windowed(Rotary):
    """Rotary positions, and no key is read that is `window` back or farther."""

    def __init__(self, head_dim, window):
        super().__init__(head_dim)
        self.window = window

    def bias(self, query_length, key_length):
        far = relative_positions(query_length, key_length) <= -self.window
        return torch.zeros(far.shape).masked_fill(far, -torch.inf)[None, None]


class Clamped(Rotary):
    """Rotary positions; every distance of `length` or more counts as `length` - 1."""

    def __init__(self, head_dim, length):
        super().__init__(head_dim)
        self.length = length

    def rotate(self, query, key, offset=0):
        turned = super().rotate(query, key, offset)
        last = rotary_angles(self.length, self.head_dim)[-1]  # (head_dim / 2,)
        angles = last.expand(query.shape[-2], -1)
        clamped = rotate_pairs(query, angles, layout=self.layout) @ key.mT
        far = relative_positions(query.shape[-2], key.shape[-2]) <= -self.length
        too_far = clamped - turned[0] @ turned[1].mT  # (batch, heads, queries, keys)
        self.correction = too_far.where(far, 0) / self.head_dim**0.5
        return turned

    def bias(self, query_length, key_length):
        return self.correction  # of the scores that `rotate` has just prepared


SCHEMES = {  # name -> scheme for a training length
    "learned, small": lambda length: Learned(LONGER * length, DIM),
    "sinusoidal": lambda length: Sinusoidal(DIM),
    "none": lambda length: NoPE(),
    "rotary": lambda length: Rotary(DIM // HEADS),
    "ALiBi": lambda length: ALiBi(HEADS),
    "T5": lambda length: T5Bias(HEADS),
}


@dataclass(frozen=True)
class Runs:
    """Schemes that learn one task, and how they are trained."""

    task: str
    schemes: tuple[str, ...]
    seeds: Sequence[int] = range(8)
    steps: int = STEPS
    learning_rate: float = SETTINGS["learning_rate"]

    @property
    def other_training(self) -> dict:
        """Steps and learning rate if they are not those of SETTINGS: stored, then."""
        how = {name: getattr(self, name) for name in ("steps", "learning_rate")}
        return {} if all(SETTINGS[name] == how[name] for name in how) else how


ALL = [
    Runs("3 back", tuple(SCHEMES)),
    Runs("first", tuple(SCHEMES)),
    Runs("characters", tuple(SCHEMES)),
    # whether a finding is one of these settings only
    Runs("3 back", ("ALiBi", "rotary", "none", "T5"), steps=2000, learning_rate=1e-2),
    Runs("first", ("rotary",), seeds=range(8, 16)),
    # what the longer training changed at once: the learning rate alone, the steps alone
    Runs("3 back", ("ALiBi", "rotary"), learning_rate=1e-2),
    Runs("3 back", ("ALiBi", "rotary"), steps=2000),
]


def changed_after_training(scheme: nn.Module, length: int) -> dict[str, nn.Module]:
    """Return other schemes under which the same weights are tested, too."""
    if not isinstance(scheme, Rotary):
        return {}
    dim = DIM // HEADS
    return {
        "interpolated": Rotary(dim, scale=1 / LONGER),
        "NTK": Rotary(dim, base=10000 * LONGER ** (dim / (dim - 2))),
        "clamped L": Clamped(dim, length),
        "clamped 3L/4": Clamped(dim, 3 * length // 4),
        "window L": Windowed(dim, length),
    }


def with_position(model: CausalLM, scheme: nn.Module) -> CausalLM:
    """Return a copy of the model that asks another scheme for its positions."""
    model = copy.deepcopy(model)
    model.position = scheme
    for block in model.blocks:
        block.attention.position = scheme
    return model


def make_model(task: Task, scheme: Callable) -> CausalLM:
    options = {"position": scheme(task.length), "embedding_std": None}  # words: N(0, 1)
    return CausalLM(task.vocab_size, DIM, HEADS, LAYERS, **options)


@torch.no_grad()
def by_part(model: CausalLM, task: Task, test=None, parts: int = PARTS) -> Tensor:
    """Return a number per part of the test: accuracy; of "characters" the loss."""
    found, size = [], 32  # texts at once
    for ids, targets in zip(*(x.split(size) for x in test or task.test)):
        logits = model(ids).mT  # (rows, vocab, length)
        if task.name == "characters":
            found.append(F.cross_entropy(logits, targets, reduction="none"))
        else:
            right = (logits.argmax(dim=1) == targets).float()
            found.append(right.where(targets >= 0, torch.nan))
    by_position = torch.cat(found).unflatten(1, (parts, -1))
    return by_position.nanmean(dim=(0, 2))  # (parts,)


def runs_of(task: Task, name: str, how: Runs) -> Iterator[dict]:
    """Yield what is stored of one scheme on one task: all seeds, all tests."""
    models, _ = train_many(
        lambda: make_model(task, SCHEMES[name]),
        task.batch,
        how.steps,
        how.seeds,
        learning_rate=how.learning_rate,
    )
    for seed, model in zip(how.seeds, models):
        run = {"task": task.name, "scheme": name, "seed": seed} | how.other_training
        schemes = {"as trained": model.position}
        schemes |= changed_after_training(model.position, task.length)
        for tested, scheme in schemes.items():
            parts = rounded(by_part(with_position(model, scheme), task))
            yield run | {"tested": tested, "parts": parts}


def yardsticks() -> dict[str, list[float]]:
    """Return the loss of counts of character pairs, on the test's parts: on the text
    that the curves are of, not on all of the validation text."""
    corpus, (ids, targets) = python_docs("characters"), characters().test
    size, text = len(corpus.vocab), corpus.train
    pair = torch.bincount(text[:-1] * size + text[1:], minlength=size**2) + 0.1
    pair = pair.view(size, size)
    loss = -(pair / pair.sum(dim=1, keepdim=True)).log()[ids, targets]
    return {"pairs": rounded(loss.unflatten(1, (PARTS, -1)).mean((0, 2)))}


def study() -> dict:
    """Run everything; return what is stored."""
    runs = (
        run
        for how in ALL
        for name in how.schemes
        for run in runs_of(TASKS[how.task](), name, how)
    )
    return {"yardsticks": yardsticks(), "runs": told(runs)}


def again(stored: dict) -> list[dict]:
    """Train one of the stored models, alone."""
    how = replace(ALL[0], seeds=[0])
    return [*runs_of(TASKS[how.task](), "T5", how)]
