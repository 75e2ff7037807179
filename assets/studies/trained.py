"""The trained models of lessons 05, 07 and 08, which their deeper notebooks load.

The cores train theirs live. The deeper notebooks need the same models, and one more of
lesson 05, seven more of lesson 07 and two more of lesson 08. trained.json says what
each model reaches, and trained/MODEL_SEED.safetensors holds its weights in half
precision. All that is measured is measured with these weights. Less than two minutes on
one core.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from assets.studies import FOLDER, _repeating, adversary, length, repairs, rounded
from assets.studies._repeating import KINDS, unseen
from utils.models import CausalLM
from utils.training import cross_entropy, train

KEY = ("model", "seed")
MARGIN = {"accuracy": 0.05, "loss": 0.1}
CHECKED = ("seeing heads", 1)  # --check trains it again


def seeing_heads(seed: int) -> CausalLM:
    """Return a model of lesson 07."""
    torch.manual_seed(seed)
    model = adversary.make_model()
    how = adversary.TRAINING | {"seed": seed, "progress": False}
    train(model, adversary.make_batch, **how)
    return model


@dataclass(frozen=True)
class Recipe:
    """How models are made and trained, and the texts (ids, targets) of their tests."""

    make: Callable[[], CausalLM]
    trained: Callable[[int], CausalLM]
    texts: tuple[Tensor, Tensor]
    seeds: range = range(1)


def of_lesson_05(num_heads: int) -> Recipe:
    """Return the recipe of a model of the study `repairs`, with so many heads."""
    kind, task = repairs.Kind("characters", 64, num_heads, 600, {}), length.characters()
    return Recipe(
        lambda: repairs.make_model(kind, task.vocab_size),
        lambda seed: repairs.trained(kind, task, seed),
        tuple(x[:, : task.length] for x in task.test),
    )


def of_lesson_08(name: str) -> Recipe:
    """Return the recipe of one kind of model of the study `specialisation`."""
    kind = KINDS[name]
    return Recipe(
        kind.make,
        lambda seed: _repeating.trained(kind, seed)[0],
        unseen(kind.periods),
    )


RECIPES = {
    "seeing heads": Recipe(
        adversary.make_model,
        seeing_heads,
        (adversary.TEST, adversary.ANSWERS),
        range(8),
    )
}
RECIPES |= {name: of_lesson_08(name) for name in ("two layers", "one layer", "fixed")}
RECIPES |= {f"heads of {64 // number}": of_lesson_05(number) for number in (4, 8)}


def path_of(name: str, seed: int) -> Path:
    """Return where the weights of a model are stored."""
    return FOLDER / "trained" / f"{name.replace(' ', '_')}_{seed}.safetensors"


@torch.no_grad()
def measured(name: str, seed: int, weights: dict[str, Tensor]) -> dict:
    """Return which model it is, and what it reaches with these weights."""
    model = RECIPES[name].make()
    model.load_state_dict(weights)
    ids, targets = RECIPES[name].texts
    reached = {
        "accuracy": _repeating.accuracy(model.eval(), (ids, targets)),
        "loss": cross_entropy(model(ids), targets),
    }
    return dict(zip(KEY, (name, seed))) | rounded(reached)


def trained(name: str, seed: int) -> dict[str, Tensor]:
    """Train one model; return its weights in half precision."""
    weights = RECIPES[name].trained(seed).state_dict()
    return {key: x.half() for key, x in weights.items()}


def study() -> dict:
    """Train all models; store their weights, and return what else is stored."""
    runs = []
    for name, recipe in RECIPES.items():
        for seed in recipe.seeds:
            path = path_of(name, seed)
            path.parent.mkdir(exist_ok=True)
            save_file(trained(name, seed), path)
            digest = sha256(path.read_bytes()).hexdigest()
            run = measured(name, seed, load_file(path))
            runs.append(run | {"sha256": digest})
            print(run, flush=True)
    return {"runs": runs}


def again(stored: dict) -> list[dict]:
    """Train a model of lesson 07; two other studies train as those of 05 and 08."""
    return [measured(*CHECKED, trained(*CHECKED))]
