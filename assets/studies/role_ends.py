"""Up to which position do heads attend to the previous token?

The models of `specialisation` (two layers, a learned table of positions) are trained on
three other ranges of periods. A counted query needs the position after the first copy
of its token, and no other; `last_needed` is the last of these positions. If the role
ends there, then it ends at position 20, 31 and 24, and not at the longest period. A
quarter of an hour on one core.
"""

import torch

from assets.studies import _repeating as task
from assets.studies import rounded, versions
from assets.studies._repeating import LENGTH, Kind, accuracy, trained, unseen
from utils.models import CausalLM
from utils.recording import record_attention

NAMES = "batch", "steps", "learning_rate", "rows"
SETTINGS = {name: task.SETTINGS[name] for name in NAMES}
RANGES = (8, 20), (33, 48), (40, 48)
KEY = ("periods",)
MARGIN = {"accuracy": 0.05, "up to there": 0.1, "after it": 0.1}
SEEDS = range(8)
CHECKED = (8, 20), 0  # --check repeats this run


def last_needed(periods: tuple[int, int]) -> int:
    """Return the last position that a counted query needs, whatever the period.

    With period p, query q >= p finds the first copy of its token at q - p, or earlier,
    and needs the position after it. The last query is LENGTH - 1.

    >>> [last_needed(periods) for periods in RANGES]
    [20, 31, 24]
    """
    return max(min(p, LENGTH - p) for p in range(periods[0], periods[1] + 1))


@torch.no_grad()
def measured(model: CausalLM, periods: tuple[int, int], seed: int) -> dict:
    """Return the weight on the previous token at each position.

    It is that of the head that has most there: heads may divide the positions.
    """
    ids, targets = unseen(periods)
    weights = record_attention(model, ids)[0]  # (rows, heads, queries, keys)
    on_previous = weights.diagonal(-1, -2, -1).mean(0)  # (heads, positions 1 to 63)
    last, highest = last_needed(periods), on_previous.amax(0)
    found = {
        "accuracy": accuracy(model, (ids, targets)),
        "up to there": highest[:last].mean(),
        "after it": highest[last:].mean(),
        "by position": highest,
    }
    kind = {"periods": list(periods), "seed": seed, "last needed": last}
    return kind | rounded(found, 3)


def study() -> dict:
    """Run everything; return what is stored."""
    runs = []
    for periods in RANGES:
        for seed in SEEDS:
            model, _ = trained(Kind(2, periods), seed)
            runs.append(measured(model, periods, seed))
            said = {name: runs[-1][name] for name in MARGIN}
            print(periods, seed, said, flush=True)
    return {
        "study": "up to which position a head attends to the previous token",
        "versions": versions(),
        "settings": SETTINGS,
        "runs": runs,
    }


def again(stored: dict) -> list[dict]:
    periods, seed = CHECKED
    return [measured(trained(Kind(2, periods), seed)[0], periods, seed)]
