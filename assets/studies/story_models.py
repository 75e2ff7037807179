"""The story models of lessons 06 to 08: sixteen seeds of one recipe.

Stored of each seed: the loss on the held-out stories. trained/stories.safetensors holds
the weights of one seed in half precision. About twenty minutes on one core.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256

import torch
from safetensors.torch import save_file
from torch import Tensor

from assets.studies import FOLDER, rounded
from utils.models import CausalLM
from utils.positions import Rotary
from utils.stories import VOCAB, encode, next_tokens, write_stories
from utils.training import cross_entropy, train

SEEDS = range(16)
TRAINING = {"steps": 900, "learning_rate": 2e-3, "warmup": 50, "progress": False}
STORED = 1  # this seed's weights: three of its heads carry one kind of fact each
KEY = ("seed",)
MARGIN = {"loss": 0.02}


@cache
def rows() -> tuple[Tensor, Tensor]:
    """Return the training stories and the held-out ones: ids (stories, length)."""
    return encode(write_stories(4000, seed=1)), encode(write_stories(400, seed=2))


def make_model(num_layers=2, **options) -> CausalLM:
    """Return the model, untrained: 2 blocks of 4 heads, 128 features."""
    return CausalLM(len(VOCAB), 128, 4, num_layers, position=Rotary(32), **options)


def make_batch(generator):
    """Return eight training stories, and their next tokens."""
    chosen = torch.randint(len(rows()[0]), (8,), generator=generator)
    return next_tokens(rows()[0][chosen])


@torch.no_grad()
def held_out_loss(model) -> float:
    """Return the mean loss of the tokens of the held-out stories."""
    inputs, targets = next_tokens(rows()[1])
    return cross_entropy(model(inputs), targets).item()


def trained(seed: int, make: Callable = make_model, **options) -> CausalLM:
    """Return the story model of a seed; or another model, trained as it is."""
    torch.manual_seed(seed)
    model = make()
    train(model, make_batch, seed=seed, **TRAINING | options)
    return model


def study() -> dict:
    """Train all models; store the weights of one, and return what else is stored."""
    runs, digest = [], ""
    for seed in SEEDS:
        model = trained(seed)
        if seed == STORED:
            path = FOLDER / "trained" / "stories.safetensors"
            save_file({name: x.half() for name, x in model.state_dict().items()}, path)
            digest = sha256(path.read_bytes()).hexdigest()
        runs.append({"seed": seed, "loss": rounded(held_out_loss(model))})
        print(seed, runs[-1]["loss"], flush=True)
    return {"stored": STORED, "sha256": digest, "runs": runs}


def again(stored: dict) -> list[dict]:
    """Train the stored seed once more."""
    return [{"seed": STORED, "loss": held_out_loss(trained(STORED))}]
