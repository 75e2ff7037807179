"""The story models of lessons 06 to 08: sixteen seeds of one recipe.

What each seed reaches: its losses, the stories that it writes, and what it forgets when
the output of one head is replaced by its mean. trained/stories.safetensors holds the
weights of one seed in half precision. About twenty minutes on one core.
"""

from functools import cache
from hashlib import sha256

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from assets.studies import FOLDER, rounded, versions
from utils.models import CausalLM
from utils.positions import Rotary
from utils.recording import ablate
from utils.stories import (
    BOXES,
    FIRST,
    LOOKS,
    NUMBER,
    PLACES,
    SECOND,
    THINGS,
    VOCAB,
    check_story,
    decode,
    encode,
    is_right,
    next_tokens,
    surprise,
    write_stories,
)
from utils.training import History, cross_entropy, train

SEEDS = range(16)
TRAINING = {"steps": 900, "learning_rate": 2e-3, "warmup": 50, "every": 100}
HEADS = [(layer, head) for layer in range(2) for head in range(4)]
TEMPERATURES = (0.7, 1.0)
WRITTEN = 200  # stories of each model at each temperature
STORED = 1  # this seed's weights: three of its heads carry one kind of fact each
WORDS = {  # kind of fact: its words
    "colour": LOOKS,
    "thing": THINGS,
    "place": PLACES,
    "box": BOXES,
    "pronoun": ["She", "He"],
    "object": ["her", "him"],
    "keeper": FIRST + SECOND,  # who has the thing at night
}
KEY = ("seed",)
MARGIN = {"loss": 0.02, "right": 0.15}


@cache
def rows() -> tuple[Tensor, Tensor]:
    """Return the training stories and the held-out ones: ids (stories, length)."""
    return encode(write_stories(4000, seed=1)), encode(write_stories(400, seed=2))


def make_model() -> CausalLM:
    """Return the model, untrained: 2 blocks of 4 heads, 128 features."""
    return CausalLM(len(VOCAB), 128, 4, 2, position=Rotary(32))


def make_batch(generator):
    """Return eight training stories, and their next tokens."""
    chosen = torch.randint(len(rows()[0]), (8,), generator=generator)
    return next_tokens(rows()[0][chosen])


@torch.no_grad()
def held_out_loss(model) -> float:
    """Return the mean loss of the tokens of the held-out stories."""
    inputs, targets = next_tokens(rows()[1])
    return cross_entropy(model(inputs), targets).item()


def trained(seed: int) -> tuple[CausalLM, History]:
    """Return the story model of a seed, and its history."""
    torch.manual_seed(seed)
    model = make_model()
    how = TRAINING | {"evaluate": held_out_loss, "seed": seed, "progress": False}
    return model, train(model, make_batch, **how)


def written(model: CausalLM, temperature: float, count: int = WRITTEN) -> list[str]:
    """Return the stories that a model writes."""
    start = torch.full((count, 1), NUMBER["\n"])
    generator = torch.Generator().manual_seed(0)
    how = {"temperature": temperature, "generator": generator}
    ids = model.generate(start, 99, **how)
    return [_first_line(row) for row in ids]


def _first_line(row: Tensor) -> str:
    """Return the first story of a row; what follows it is another one."""
    ends = (row[1:] == NUMBER["\n"]).nonzero()
    return decode(row[: int(ends[0]) + 1] if len(ends) else row)


def shares(texts: list[str]) -> dict[str, float]:
    """Return the share of right statements of each kind, and of stories without error.

    "copied": stories of the training text.
    """
    sums: dict[str, list[int]] = {}
    for text in texts:
        for kind, (right, count) in check_story(text).items():
            r, n = sums.get(kind, (0, 0))
            sums[kind] = [r + right, n + count]
    found = {kind: r / n for kind, (r, n) in sorted(sums.items())}
    known = set(write_stories(4000, seed=1))
    found["whole"] = sum(map(is_right, texts)) / len(texts)
    return found | {"copied": sum(text in known for text in texts) / len(texts)}


def places_of_facts(ids: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return {kind of fact: (words (words,), where (stories, length))} of some ids.

    words: the ids of its words. where: which tokens are such words, and follow from
    what was told: a colour, thing, place or box only from the second time on.
    """
    again = (ids[:, :, None] == ids[:, None]).tril(-1).any(dim=-1)
    after_comma = F.pad(ids == NUMBER[","], (1, 0))[:, :-1]  # "At night, Kim had …"
    follows = dict.fromkeys(("colour", "thing", "place", "box"), again)
    follows["keeper"] = after_comma
    found = {}
    for kind, names in WORDS.items():
        words = torch.tensor([NUMBER[f" {name}"] for name in names])
        where = torch.isin(ids, words)
        found[kind] = words, where & follows[kind] if kind in follows else where
    return found


@torch.no_grad()
def accuracies(model: CausalLM, ids: Tensor) -> dict[str, float]:
    """Return for each kind of fact how often the right word has the highest logit.

    Among the words of this kind only: was it this colour, given that it is a colour?
    """
    logits, found = model(ids[:, :-1]), {}
    for kind, (words, where) in places_of_facts(ids).items():
        at = where[:, 1:]
        best = words[logits[at][:, words].argmax(dim=-1)]
        found[kind] = (best == ids[:, 1:][at]).double().mean().item()
    return found


def measured(model: CausalLM) -> dict:
    """Return what a trained model writes, and what it forgets without each head."""
    held_out = rows()[1]
    ids, others = held_out[:200], held_out[200:]
    without = {"none": accuracies(model, ids)}
    for layer, head in HEADS:
        with ablate(model, {layer: [head]}, mode="mean", mean_from=others):
            without[f"{layer}.{head}"] = accuracies(model, ids)
    stories = {f"{t}": shares(written(model, t)) for t in TEMPERATURES}
    right = stories["0.7"]["whole"]
    found = {"loss": held_out_loss(model), "right": right, "stories": stories}
    return rounded(found | {"without": without})


def entropy() -> float:
    """Return the loss of the grammar itself on the held-out stories: the lowest."""
    _, targets = next_tokens(rows()[1])
    total = sum(surprise(text) for text in write_stories(400, seed=2))
    return total / (targets >= 0).sum().item()


def run_of(seed: int, model: CausalLM, history: History) -> dict:
    """Return what is stored of one seed."""
    losses = rounded(history.evaluations)
    return {"seed": seed} | measured(model) | {"losses": losses}


def study() -> dict:
    """Train all models; store the weights of one, and return what else is stored."""
    runs, digest = [], ""
    for seed in SEEDS:
        model, history = trained(seed)
        if seed == STORED:
            path = FOLDER / "trained" / "stories.safetensors"
            save_file({name: x.half() for name, x in model.state_dict().items()}, path)
            digest = sha256(path.read_bytes()).hexdigest()
        runs.append(run_of(seed, model, history))
        print(runs[-1]["seed"], runs[-1]["loss"], runs[-1]["right"], flush=True)
    return {
        "study": "the story models: what they write, and what single heads carry",
        "versions": versions(),
        "entropy": rounded(entropy()),
        "stored": STORED,
        "sha256": digest,
        "runs": runs,
    }


def again(stored: dict) -> list[dict]:
    """Train the stored seed once more."""
    return [run_of(STORED, *trained(STORED))]
