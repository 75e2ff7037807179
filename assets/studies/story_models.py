"""The story models of lessons 06 to 08: sixteen seeds of one recipe.

What each seed reaches: its loss, and what it forgets when the output of one head is
replaced by its mean. trained/stories.safetensors holds the
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
    encode,
    next_tokens,
    write_stories,
)
from utils.training import cross_entropy, train

SEEDS = range(16)
TRAINING = {"steps": 900, "learning_rate": 2e-3, "warmup": 50, "progress": False}
HEADS = [(layer, head) for layer in range(2) for head in range(4)]
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
MARGIN = {"loss": 0.02}


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


def trained(seed: int) -> CausalLM:
    """Return the story model of a seed."""
    torch.manual_seed(seed)
    model = make_model()
    train(model, make_batch, seed=seed, **TRAINING)
    return model


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


def run(seed: int, model: CausalLM) -> dict:
    """Return the loss of a trained model, and what it forgets without each head."""
    held_out = rows()[1]
    ids, others = held_out[:200], held_out[200:]
    without = {"none": accuracies(model, ids)}
    for layer, head in HEADS:
        with ablate(model, {layer: [head]}, mode="mean", mean_from=others):
            without[f"{layer}.{head}"] = accuracies(model, ids)
    return {"seed": seed} | rounded({"loss": held_out_loss(model), "without": without})


def study() -> dict:
    """Train all models; store the weights of one, and return what else is stored."""
    runs, digest = [], ""
    for seed in SEEDS:
        model = trained(seed)
        if seed == STORED:
            path = FOLDER / "trained" / "stories.safetensors"
            save_file({name: x.half() for name, x in model.state_dict().items()}, path)
            digest = sha256(path.read_bytes()).hexdigest()
        runs.append(run(seed, model))
        print(seed, runs[-1]["loss"], flush=True)
    return {
        "study": "the story models: what single heads carry",
        "versions": versions(),
        "stored": STORED,
        "sha256": digest,
        "runs": runs,
    }


def again(stored: dict) -> list[dict]:
    """Train the stored seed once more."""
    return [run(STORED, trained(STORED))]
