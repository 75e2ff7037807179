"""Can a trained model be given fewer key and value heads?

The story models of lesson 06 (2 blocks, 4 query heads with 4 key and value heads) get 2
or 1 key and value heads. A new head is the mean of the heads of its group, as in
Ainslie et al. 2023, section 2.1; beside it the first head of the group ("first"), and
a new random head ("random"). Then the whole model is trained on for 1, 5 or 10 % of its
900 steps: each time anew, on other batches, the learning rate up in a line and down
along a cosine. "trained" are models that had so many heads from the start; they are
trained on in the same way. Stored of each seed: the loss on the held-out stories after
0, 9, 45 and 90 further steps, and how many of 100 stories that the model writes are
without any error, after 0 and 90. About 30 minutes on one core.
"""

from copy import deepcopy

import torch

from assets.studies import rounded, story_models
from assets.studies.story_models import (
    STORED,
    TRAINING,
    held_out_loss,
    make_batch,
    make_model,
)
from assets.studies.story_variants import errors
from utils.models import CausalLM
from utils.pretrained import load_story_model
from utils.training import train

SEEDS = range(8)
HEADS, HEAD_DIM = 4, 32
WAYS = {"trained": (4, 2, 1), "mean": (2, 1), "first": (2, 1), "random": (1,)}
FURTHER = 0, 9, 45, 90  # steps: 0, 1, 5 and 10 % of the training
RATE = 2e-3  # the highest, as in the training
BATCHES = 100  # added to the seed: further training sees other batches
KEY = ("way", "kv heads", "seed")
MARGIN = {"losses": 0.05, "right": 15}


def trained(kv_heads: int, seed: int) -> CausalLM:
    """Return a model that had so many key and value heads from the start."""
    return story_models.trained(seed, lambda: make_model(num_kv_heads=kv_heads))


def converted(model: CausalLM, kv_heads: int, way: str, seed: int) -> CausalLM:
    """Return a copy with fewer key and value heads, each made of a group of heads."""
    torch.manual_seed(seed)
    new = make_model(num_kv_heads=kv_heads).eval()
    drawn, weights = new.state_dict(), dict(model.state_dict())
    for name, x in weights.items():
        if "key_proj" in name or "value_proj" in name:
            heads = x.unflatten(0, (kv_heads, HEADS // kv_heads, HEAD_DIM))
            # (groups, heads of a group, head_dim), and the weights' inputs
            made = {"mean": heads.mean(dim=1), "first": heads[:, 0]}
            made["random"] = drawn[name].unflatten(0, (kv_heads, HEAD_DIM))
            weights[name] = made[way].flatten(0, 1)
    new.load_state_dict(weights)
    return new


def trained_on(model: CausalLM, steps: int, seed: int) -> CausalLM:
    """Return a copy that was trained for some more steps."""
    copy = deepcopy(model)
    if steps:
        how = {"learning_rate": RATE, "warmup": max(1, steps // 10)}
        train(copy, make_batch, steps, seed=BATCHES + seed, progress=False, **how)
    return copy


def run(model: CausalLM, way: str, kv_heads: int, seed: int) -> dict:
    """Return what is stored of a way; it begins with a trained model."""
    if way != "trained":
        model = converted(model, kv_heads, way, seed)
    found = {"way": way, "kv heads": kv_heads, "seed": seed, "losses": [], "right": []}
    for steps in FURTHER:
        copy = trained_on(model, steps, seed)
        found["losses"].append(held_out_loss(copy))
        if steps in (FURTHER[0], FURTHER[-1]):
            found["right"].append(errors(copy, seed)["none"])
    return rounded(found)


def runs_of_seed(seed: int) -> list[dict]:
    """Train the models of a seed, and convert the one with four heads."""
    models, runs = {n: trained(n, seed) for n in WAYS["trained"]}, []
    for way, numbers in WAYS.items():
        for n in numbers:
            model = models[n if way == "trained" else HEADS]
            runs.append(run(model, way, n, seed))
    return runs


def study() -> dict:
    """Run everything; return what is stored."""
    return {
        "steps": TRAINING["steps"],
        "further steps": FURTHER,
        "learning rate": RATE,
        "stories": 100,
        "runs": [x for seed in SEEDS for x in runs_of_seed(seed)],
    }


def again(stored: dict) -> list[dict]:
    """Give the stored model, which `story_models` trains again, one key head."""
    return [run(load_story_model(), "mean", 1, STORED)]
