"""What is each part of the block worth to the model that writes stories?

The models of lesson 06 ("whole", the same as in `story_models`), and models without
attention, without MLPs, or without norms (in the blocks and before the head), these
also with embeddings from N(0, 1) instead of N(0, 0.02²). All are trained as in the
lesson. Stored of each seed: the loss on the held-out stories, and how many of 100
stories that it writes are without any error; of the whole model also the logit lens,
the mean probability of the right token after the embedding and after each block, for
colours that were told before and for the child who has the thing at night. About 25
minutes on one core.
"""

import torch

from assets.studies import rounded, versions
from assets.studies.variants import Silent
from utils.models import CausalLM
from utils.positions import Rotary
from utils.recording import recorded
from utils.stories import (
    FIRST,
    LOOKS,
    NUMBER,
    SECOND,
    VOCAB,
    decode,
    encode,
    is_right,
    next_tokens,
    write_stories,
)
from utils.training import cross_entropy, train

STEPS, RATE = 900, 2e-3
SEEDS = range(8)
VARIANTS = (
    "whole",
    "no MLP",
    "no norms, large embeddings",
    "no norms",
    "no attention",
)
STORIES, TEMPERATURE, LONGEST = 100, 0.7, 110
NAMES = FIRST + SECOND
KEY = ("variant",)
MARGIN = {"loss": 0.05}


def make_model(variant: str, seed: int) -> CausalLM:
    """Return an untrained model without one part; "whole" has them all."""
    torch.manual_seed(seed)
    position = Rotary(32)
    options = {
        "no MLP": {"mlp_dim": 0},
        "no norms": {"norm": None},
        "no norms, large embeddings": {"norm": None, "embedding_std": None},
    }.get(variant, {})
    model = CausalLM(len(VOCAB), 128, 4, 2, position=position, **options)
    for block in model.blocks:
        if variant == "no attention":
            block.attention = Silent()
    return model


def trained(variant: str, seed: int, rows: torch.Tensor, **how) -> CausalLM:
    """Return a model that was trained on stories, as in the lesson."""

    def make_batch(generator):
        drawn = torch.randint(len(rows), (8,), generator=generator)
        return next_tokens(rows[drawn])

    model = make_model(variant, seed)
    options = {"learning_rate": RATE, "warmup": 50, "progress": False} | how
    train(model, make_batch, STEPS, seed=seed, **options)
    return model


@torch.no_grad()
def right_stories(model: CausalLM, seed: int) -> int:
    """Return how many of 100 stories that a model writes are without any error."""
    start = torch.full((STORIES, 1), VOCAB.index("\n"))
    generator = torch.Generator().manual_seed(seed)
    how = {"temperature": TEMPERATURE, "generator": generator}
    ids = model.generate(start, LONGEST, **how)
    return sum(is_right(decode(row).split("\n")[0]) for row in ids)


@torch.no_grad()
def lens(model: CausalLM, held_out: torch.Tensor) -> dict[str, list[float]]:
    """Return the mean probability of the right token after the embedding and blocks."""
    inputs, targets = next_tokens(held_out)
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


@torch.no_grad()
def measured(variant: str, seed: int, model: CausalLM, held_out: torch.Tensor) -> dict:
    """Return what is stored of a model."""
    inputs, targets = next_tokens(held_out)
    loss = cross_entropy(model(inputs), targets).item()
    found = {"variant": variant, "seed": seed, "loss": loss}
    found |= {"right": right_stories(model, seed)}
    return rounded(found | (lens(model, held_out) if variant == "whole" else {}))


def run(variant: str, seed: int, rows: torch.Tensor, held_out: torch.Tensor) -> dict:
    """Train one model; return what is stored of it."""
    return measured(variant, seed, trained(variant, seed, rows), held_out)


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training stories and the held-out ones, as ids."""
    return encode(write_stories(4000, seed=1)), encode(write_stories(400, seed=2))


def study() -> dict:
    """Run everything; return what is stored."""
    rows, held_out = texts()
    runs = []
    for variant in VARIANTS:
        for seed in SEEDS:
            runs.append(run(variant, seed, rows, held_out))
            print(runs[-1], flush=True)
    return {
        "study": "what is each part of the block worth to the story model?",
        "versions": versions(),
        "steps": STEPS,
        "learning rate": RATE,
        "stories": STORIES,
        "runs": runs,
    }


def again(stored: dict) -> list[dict]:
    return [run("no attention", 0, *texts())]
