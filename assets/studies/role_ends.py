"""Up to which position do heads attend to the previous token?

The models of `specialisation` (two layers, a learned table of positions) are trained on
three other ranges of periods. A counted query needs the position after the first copy
of its token, and no other: with period p, query q finds this copy at q - p or earlier.
So the last of these positions is 20, 31 and 24. Does the role end there, or at the
longest period? A quarter of an hour on one core.
"""

import torch

from assets.studies import _repeating as task
from assets.studies import rounded, told, versions
from assets.studies._repeating import Kind, accuracy, trained, unseen
from utils.recording import record_attention

NAMES = "batch", "steps", "learning_rate", "rows"
SETTINGS = {name: task.SETTINGS[name] for name in NAMES}
RANGES = (8, 20), (33, 48), (40, 48)
KEY = ("periods",)
MARGIN = {"accuracy": 0.05, "by position": 0.1}
SEEDS = range(8)
CHECKED = (8, 20), 0  # --check repeats this run


@torch.no_grad()
def run(periods: tuple[int, int], seed: int) -> dict:
    """Train a model; return the weight on the previous token at each position.

    It is that of the head that has most there: heads may divide the positions.
    """
    model, _ = trained(Kind(2, periods), seed)
    ids, targets = unseen(periods)
    weights = record_attention(model, ids)[0]  # (rows, heads, queries, keys)
    on_previous = weights.diagonal(-1, -2, -1).mean(0)  # (heads, positions 1 to 63)
    found = {
        "accuracy": accuracy(model, (ids, targets)),
        "by position": on_previous.amax(0),
    }
    return {"periods": list(periods), "seed": seed} | rounded(found, 3)


def study() -> dict:
    """Run everything; return what is stored."""
    return {
        "study": "up to which position a head attends to the previous token",
        "versions": versions(),
        "settings": SETTINGS,
        "runs": told(run(periods, seed) for periods in RANGES for seed in SEEDS),
    }


def again(stored: dict) -> list[dict]:
    return [run(*CHECKED)]
