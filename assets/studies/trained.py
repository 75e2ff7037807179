"""The trained models of lessons 07 and 08, which their deeper notebooks load.

The cores train theirs live. The deeper notebooks need the same models, and seven more
of lesson 07 and two more of lesson 08. trained.json says what each model reaches, and
trained/MODEL_SEED.safetensors holds its weights in half precision. All that is measured
is measured with these weights. About a minute on one core.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from assets.studies import FOLDER, _repeating, adversary, rounded, versions
from assets.studies._repeating import KINDS, unseen
from utils.heads import induction, previous_token
from utils.models import CausalLM
from utils.recording import record_attention
from utils.training import cross_entropy, train

KEY = ("model", "seed")
MARGIN = {"accuracy": 0.05, "loss": 0.1}
CHECKED = ("seeing heads", 1), ("two layers", 0)  # --check trains these again
EVERY = 5  # steps: how often the scores of a model of lesson 07 are kept


def best_scores(model: CausalLM) -> list[float]:
    """Return the scores of the best previous-token and of the best induction head.

    The first is sought in layer 0, the second in layer 1.
    """
    texts, mask = adversary.TEST, adversary.MASK
    first, second = record_attention(model, texts)
    scores = previous_token(first, mask=mask), induction(second, texts, mask=mask)
    return rounded([each.mean(dim=0).max() for each in scores])


def seeing_heads(seed: int) -> tuple[CausalLM, dict]:
    """Return a model of lesson 07, and its best scores on the way."""
    torch.manual_seed(seed)
    model = adversary.make_model()
    how = adversary.TRAINING | {"every": EVERY, "evaluate": best_scores}
    history = train(model, adversary.make_batch, seed=seed, progress=False, **how)
    return model, {"scores": [scores for _, scores in history.evaluations]}


@dataclass(frozen=True)
class Recipe:
    """How models are made and trained, and the texts (ids, targets) of their tests."""

    make: Callable[[], CausalLM]
    trained: Callable[[int], tuple[CausalLM, dict]]
    texts: tuple[Tensor, Tensor]
    seeds: range = range(1)


def of_lesson_08(name: str) -> Recipe:
    """Return the recipe of one kind of model of the study `specialisation`."""
    kind = KINDS[name]
    return Recipe(
        kind.make,
        lambda seed: (_repeating.trained(kind, seed)[0], {}),
        unseen(kind.periods),
    )


RECIPES = {
    "seeing heads": Recipe(
        adversary.make_model,
        seeing_heads,
        (adversary.TEST, adversary.ANSWERS),
        range(8),
    )
} | {name: of_lesson_08(name) for name in ("two layers", "one layer", "fixed")}


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


def trained(name: str, seed: int) -> tuple[dict[str, Tensor], dict]:
    """Train one model; return its weights in half precision, and its scores."""
    model, scores = RECIPES[name].trained(seed)
    return {key: x.half() for key, x in model.state_dict().items()}, scores


def study() -> dict:
    """Train all models; store their weights, and return what else is stored."""
    runs = []
    for name, recipe in RECIPES.items():
        for seed in recipe.seeds:
            weights, scores = trained(name, seed)
            path = path_of(name, seed)
            path.parent.mkdir(exist_ok=True)
            save_file(weights, path)
            digest = sha256(path.read_bytes()).hexdigest()
            run = measured(name, seed, load_file(path))
            runs.append(run | {"sha256": digest} | scores)
            print(run, flush=True)
    return {
        "study": "the trained models that deeper notebooks load",
        "versions": versions(),
        "every": EVERY,
        "runs": runs,
    }


def again(stored: dict) -> list[dict]:
    return [measured(*which, trained(*which)[0]) for which in CHECKED]
