"""What is each part of the block worth to the model that writes stories?

The models of lesson 06 ("whole", the same as in `story_models`), and models without
attention, without MLPs, without norms (in the blocks and before the head), these also
with embeddings from N(0, 1) instead of N(0, 0.02²), or with one block. All are trained
as in the lesson; the whole one and that without norms with larger steps, too, and the
whole one without a warm-up. Stored of each seed: the loss on the held-out stories, and
how many of 100 stories that it writes are without any error; of the whole model and of
one block also the logit lens, the mean probability of the right token after the
embedding and after each block, for colours that were told before and for the child who
has the thing at night; of the whole model, too, the kind of the first error in 100
stories that it writes after 100, 300 and 900 steps. About 45 minutes on one core.
"""

from collections import Counter
from functools import partial

import torch

from assets.studies import rounded, told
from assets.studies.story_models import (
    TRAINING,
    held_out_loss,
    make_model,
    rows,
    trained,
)
from assets.studies.variants import Silent
from utils.models import CausalLM
from utils.recording import recorded
from utils.stories import (
    FIRST,
    KINDS,
    LOOKS,
    NUMBER,
    SECOND,
    VOCAB,
    decode,
    first_error,
    next_tokens,
)

SEEDS = range(8)
LARGER_STEPS = 1e-2  # the learning rate; that of the lesson is 2e-3
VARIANTS = {  # name: (options of the model, other options of the training)
    "whole": ({}, {}),
    "no MLP": ({"mlp_dim": 0}, {}),
    "no norms, large embeddings": ({"norm": None, "embedding_std": None}, {}),
    "no norms": ({"norm": None}, {}),
    "no attention": ({}, {}),
    "whole, larger steps": ({}, {"learning_rate": LARGER_STEPS}),
    "no norms, larger steps": ({"norm": None}, {"learning_rate": LARGER_STEPS}),
    "whole, no warm-up": ({}, {"warmup": 1}),
    "one block": ({"num_layers": 1}, {}),
}
STORIES, TEMPERATURE, LONGEST = 100, 0.7, 110
WRITES_AFTER = (100, 300, 900)  # steps, the whole model
NAMES = FIRST + SECOND
KEY = ("variant",)
MARGIN = {"loss": 0.05, "errors": 15}


def without(variant: str) -> CausalLM:
    """Return an untrained model without one part; "whole" has them all."""
    model = make_model(**VARIANTS[variant][0])
    for block in model.blocks:
        if variant == "no attention":
            block.attention = Silent()
    return model


@torch.no_grad()
def errors(model: CausalLM, seed: int) -> dict[str, int]:
    """Return of 100 stories that a model writes how many have a first error of a kind.

    "none": how many are without any error.
    """
    start = torch.full((STORIES, 1), VOCAB.index("\n"))
    generator = torch.Generator().manual_seed(seed)
    how = {"temperature": TEMPERATURE, "generator": generator}
    ids = model.generate(start, LONGEST, **how)
    found = Counter(first_error(decode(row).split("\n")[0]) or "none" for row in ids)
    return {kind: found[kind] for kind in ("none", "start", *KINDS, "night", "other")}


@torch.no_grad()
def lens(model: CausalLM) -> dict[str, list[float]]:
    """Return the mean probability of the right token after the embedding and blocks."""
    inputs, targets = next_tokens(rows()[1])
    with recorded(model, "embedding", "blocks.*") as seen:
        model(inputs)
    found: dict[str, list[float]] = {"colour": [], "keeper": []}
    for stream in seen.values():
        p = model.head(model.norm(stream)).softmax(dim=-1)
        p = p.gather(-1, targets.clamp(min=0)[..., None])[..., 0]  # of the right token
        for kind, before, words in (("colour", " the", LOOKS), ("keeper", ",", NAMES)):
            chosen = torch.tensor([NUMBER[f" {word}"] for word in words])
            there = (inputs == NUMBER[before]) & torch.isin(targets, chosen)
            found[kind].append(p[there].mean().item())
    return found


def run(variant: str, seed: int) -> dict:
    """Train one model; return what is stored of it."""
    on_the_way, steps = {}, iter(range(0, TRAINING["steps"] + 1, 100))

    def look(model) -> None:
        if (step := next(steps)) in WRITES_AFTER:
            on_the_way[str(step)] = errors(model, seed)

    options = VARIANTS[variant][1]
    if variant == "whole":
        options = {"evaluate": look, "every": 100}
    model = trained(seed, partial(without, variant), **options)
    found = {"variant": variant, "seed": seed, "loss": held_out_loss(model)}
    found["right"] = errors(model, seed)["none"]
    if variant in ("whole", "one block"):
        found |= lens(model)
    if variant == "whole":
        found["errors"] = on_the_way
    return rounded(found)


def study() -> dict:
    """Run everything; return what is stored."""
    return {
        "steps": TRAINING["steps"],
        "learning rate": TRAINING["learning_rate"],
        "of larger steps": LARGER_STEPS,
        "stories": STORIES,
        "runs": told(run(kind, seed) for kind in VARIANTS for seed in SEEDS),
    }


def again(stored: dict) -> list[dict]:
    return [run("no attention", 0), run("whole", 0)]
