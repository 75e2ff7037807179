"""Which heads of the story models attend to the earlier colour, thing, place or name?

For each of the sixteen story models of `story_models.py`: the score of each head, and
the threshold of lesson 07, the highest score of a head in 19 entropy-matched untrained
copies. About twenty seconds a model on one core, and a minute to train it.
"""

import torch
from torch import Tensor, nn

from assets.studies import rounded, told
from assets.studies._untrained import sharp_copies
from assets.studies.story_models import SEEDS, STORED, rows, trained
from utils.heads import on_keys
from utils.masks import causal_mask
from utils.pretrained import load_story_model
from utils.recording import record_attention
from utils.stories import BOXES, FIRST, LOOKS, PLACES, SECOND, THINGS, VOCAB

SETTINGS = {"stories": 100, "copies": 19, "entropies from": 32}
KINDS = {
    "colour": LOOKS,
    "thing": THINGS,
    "place": PLACES + BOXES,
    "name": FIRST + SECOND,
}
KEY = ("seed",)
MARGIN = {"scores": 0.01}


def of_kind(kind: str, ids: Tensor) -> Tensor:
    """Return where the tokens of a kind stand: bool, as ids."""
    wanted = [i for i, token in enumerate(VOCAB) if token.strip() in KINDS[kind]]
    return torch.isin(ids, torch.tensor(wanted))


def scores(weights, ids: Tensor, following: Tensor) -> dict[str, Tensor]:
    """Return the weight on earlier tokens of a kind, before the next: {kind: (heads,)}.

    weights: of each layer. following: the token after each of ids.
    """
    every, mask = torch.cat(list(weights), dim=1), causal_mask(ids.shape[1])
    found = {}
    for kind in KINDS:
        options = {"mask": mask, "queries": of_kind(kind, following)}
        found[kind] = on_keys(every, of_kind(kind, ids), **options).nanmean(0)
    return found


def thresholds(model, ids: Tensor, following: Tensor) -> dict[str, float]:
    """Return the highest score of a head in the entropy-matched copies, by kind."""
    few, mask = ids[: SETTINGS["entropies from"]], causal_mask(ids.shape[1])
    found, seeds = dict.fromkeys(KINDS, 0.0), range(100, 100 + SETTINGS["copies"])
    for copy in sharp_copies(model, (few,), seeds, mask=mask, queries=few > 0):
        theirs = scores(record_attention(copy, ids), ids, following)
        found = {kind: max(found[kind], theirs[kind].max().item()) for kind in KINDS}
    return found


def stories() -> tuple[Tensor, Tensor]:
    """Return the tokens of some held-out stories, and the token after each."""
    chosen = rows()[1][: SETTINGS["stories"]]
    return chosen[:, :-1], chosen[:, 1:]


def scores_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the scores of one model; head 5 is head 1 of layer 1."""
    ids, following = stories()
    return scores(record_attention(model, ids), ids, following)


def run(model: nn.Module, seed: int) -> dict:
    """Return the thresholds and the scores of one model."""
    found = {"threshold": thresholds(model, *stories()), "scores": scores_of(model)}
    return {"seed": seed} | rounded(found)


def study() -> dict:
    """Return the runs of all seeds."""
    return {"runs": told(run(trained(seed), seed) for seed in SEEDS)}


def again(stored: dict) -> list[dict]:
    """Measure the stored model once more, without the threshold."""
    found = rounded(scores_of(load_story_model()))
    return [{"seed": STORED, "scores": found}]
