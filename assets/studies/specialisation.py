"""What do heads specialise in? Four kinds of models, sixteen seeds each, every head.

All models are given random tokens that start again after a while, and learn to continue
them. The whole study takes about half an hour on one core; lesson 08 plots what is
stored.
"""

from collections.abc import Callable
from functools import partial

import torch
from safetensors.torch import load_file
from torch import Tensor

from assets.studies import FOLDER, _repeating, rounded, told
from assets.studies._repeating import (
    HEADS,
    KINDS,
    LENGTH,
    MASK,
    PERIODS,
    TESTED,
    accuracy,
    trained,
    unseen,
)
from utils.heads import (
    at_offset,
    current_token,
    induction,
    previous_token,
    record_attention,
)
from utils.recording import ablate, head_importance, recorded, replaced
from utils.training import cross_entropy

SEEDS = range(16)
SETTINGS = _repeating.SETTINGS
CHECKED = ("smeared", 0)  # --check repeats this run
KEY = ("kind",)
MARGIN = {"accuracy": 0.05, "jump": 40, "cut": 0.02}


# --- what is measured of a model ------------------------------------------------------


def by_head(model, texts: Tensor, metric: Callable, **options) -> Tensor:
    """Return a metric's mean over texts: (layers, heads)."""
    maps = record_attention(model, texts)
    return torch.stack([metric(x, mask=MASK, **options).nanmean(0) for x in maps])


def subsets(model, texts) -> list[float]:
    """Return the accuracy without each set of heads.

    Bit i of the place in the list says whether head i % 4 of layer i // 4 is removed.
    """
    heads, found = len(model.blocks) * HEADS, []
    for bits in range(2**heads):
        gone = {
            layer: [h for h in range(HEADS) if bits >> (layer * HEADS + h) & 1]
            for layer in range(len(model.blocks))
        }
        with ablate(model, gone):
            found.append(accuracy(model, texts))
    return found


def loss_of(model, ids: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(ids), targets)


def short(x: float) -> float:
    """Return x with four significant digits: some are so small that `round` ties."""
    return float(f"{x:.4g}")


def importance(model, texts) -> list[list[float]]:
    """Return Michel's importance of each head, from 64 texts."""
    found = head_importance(model, loss_of, *(x[:64] for x in texts))
    return [list(map(short, layer)) for layer in found.tolist()]


@torch.no_grad()
def loss_without(model, texts) -> list[float]:
    """Return the loss without each head, of the same 64 texts."""
    found = []
    for head in range(len(model.blocks) * HEADS):
        with ablate(model, {head // HEADS: [head % HEADS]}):
            found.append(short(loss_of(model, *(x[:64] for x in texts)).item()))
    return found


@torch.no_grad()
def hidden_from(model, part: str, ids: Tensor, measure: Callable, **how) -> list[float]:
    """Return measure(model) for each head of layer 0, hidden from a part of layer 1.

    The part, such as "key", comes from a run without the head; all else sees what the
    head wrote. how: other options of `ablate`.
    """
    name, found = f"blocks.1.attention.{part}", []
    for head in range(HEADS):
        with ablate(model, {0: [head]}, **how), recorded(model, name) as without:
            model(ids)
        with replaced(model, without):
            found.append(measure(model))
    return found


def cut(model, texts) -> dict[str, list[float]]:
    """Return the induction score of the second layer, the mean of its heads.

    "whole": as it is. "query" and "key", for each first-layer head: only this part of
    the second layer comes from a run without the head. The first 64 texts are
    measured, the others give the mean in the head's place.
    """
    ids, others = texts[0].split(64)

    def score(model) -> float:
        weights = record_attention(model, ids)[1]
        return induction(weights, ids, mask=MASK).nanmean().item()

    how = {"mode": "mean", "mean_from": others}
    parts = {x: hidden_from(model, x, ids, score, **how) for x in ("query", "key")}
    return {"whole": [score(model)]} | parts


@torch.no_grad()
def composition(model) -> Tensor:
    """Return (first, second): do second-layer heads find what first-layer heads wrote?

    From weights alone. The query of each token meets what a first-layer head writes
    that has read each token: the share of tokens that find their own best.
    """
    first, second = (block.attention for block in model.blocks)
    words, norm = model.embedding.weight, model.blocks[1].attention_norm
    value, query, key = (  # each (heads, head_dim, embed_dim)
        p.weight.unflatten(0, (HEADS, -1))
        for p in (first.value_proj, second.query_proj, second.key_proj)
    )
    out = first.out_proj.weight.unflatten(1, (HEADS, -1)).transpose(0, 1)
    written = out @ (value @ model.blocks[0].attention_norm(words).T)
    keys = norm(written.mT)[:, None] @ key.mT  # (first, second, tokens, head_dim)
    queries = norm(words) @ query.mT  # (second, tokens, head_dim)
    found = (keys @ queries.mT).argmax(-2)  # (first, second, tokens)
    return (found == torch.arange(len(words))).float().mean(-1)


def jump(curve: list) -> int | None:
    """Return the first step at which half of the tokens were guessed."""
    return next((step for step, share in curve if share >= 0.5), None)


def accuracies(model, texts) -> dict[str, float]:
    """Return the accuracy on these texts, and on texts of other periods."""
    return {
        "as trained": accuracy(model, texts),
        **{str(p): accuracy(model, unseen((p, p))) for p in TESTED},
    }


def measured(name: str, seed: int, model, curve: list) -> dict:
    """Return all that is stored of a trained model."""
    kind = KINDS[name]
    texts = unseen(kind.periods)
    few = tuple(x[:32] for x in texts)
    ids = texts[0]
    # the positions that a first copy can have, (texts, queries)
    early = (torch.arange(LENGTH) <= PERIODS[1]).expand(len(ids), -1)
    found = {
        "kind": name,
        "seed": seed,
        "curve": [share for _, share in curve],
        "jump": jump(curve),
        "accuracy": accuracies(model, texts),
        "scores": {
            "trained": {
                "previous, positions 1 to 31": by_head(
                    model, ids, previous_token, queries=early
                ),
                "current": by_head(model, ids, current_token),
            }
        },
    }
    if name in ("two layers", "fixed"):
        at = {period: unseen((period, period))[0] for period in TESTED}
        found |= {
            "induction at period": {
                str(p): by_head(model, x, induction, ids=x) for p, x in at.items()
            },
            # the usual score: the weight on the key period - 1 back
            "fixed offset at period": {
                str(p): by_head(model, x, at_offset, offset=1 - p)
                for p, x in at.items()
            },
        }
    small = {}
    if kind.layers == 2:
        torch.manual_seed(seed)
        untrained = kind.make().eval()
        half = tuple(x[:64] for x in texts)
        right = partial(accuracy, texts=half)
        small["importance"] = importance(model, texts)
        small["loss without"] = loss_without(model, texts)
        found |= {
            "without": subsets(model, few),
            "current by place": {
                "up to 31": by_head(model, ids, current_token, queries=early)[0]
            },
            "hidden from keys": hidden_from(model, "key", half[0], right),
            "hidden from values": hidden_from(model, "value", half[0], right),
            "cut": cut(model, texts),
            "composition": composition(model),
            "composition, untrained": composition(untrained),
        }
    return rounded(found) | small


def study() -> dict:
    """Run everything; return what is stored."""
    return {
        "runs": told(
            measured(name, seed, *trained(kind, seed))
            for name, kind in KINDS.items()
            for seed in SEEDS
        )
    }


def comparable(stored: dict) -> list[dict]:
    """Return kind, accuracies by period and jump of each run; and one run's cuts."""
    periods = list(map(str, TESTED))
    cuts = [run["cut"] for run in stored["runs"] if "cut" in run][:1]  # of seed 0
    return [{"kind": "weights of two_layers_0", "cut": x} for x in cuts] + [
        {name: run[name] for name in ("kind", "jump")}
        | {"accuracy": {period: run["accuracy"][period] for period in periods}}
        for run in stored["runs"]
    ]


def again(stored: dict) -> list[dict]:
    """Train one run, and say how often it is right; cut the paths of a stored model."""
    name, seed = CHECKED
    model, curve = trained(KINDS[name], seed)
    run = {"kind": name, "jump": jump(curve)}
    (run,) = comparable(
        {"runs": [run | {"accuracy": accuracies(model, unseen(PERIODS))}]}
    )
    two_layers = KINDS["two layers"].make().eval()
    weights = load_file(FOLDER / "trained" / "two_layers_0.safetensors")
    two_layers.load_state_dict(weights)
    found = rounded(cut(two_layers, unseen(PERIODS)))
    return [run, {"kind": "weights of two_layers_0", "cut": found}]
