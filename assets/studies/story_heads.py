"""Which head of a story model carries the colour? Sixteen seeds, every head.

After "the", a story may say the colour of its thing again. The first half of the
held-out stories chooses the head that gives most weight to the earlier colours. All
that is stored of it is measured on the second half, beside the other seven heads.
About fifteen minutes on one core.
"""

from itertools import combinations

import torch
from torch import Tensor

from assets.studies import rounded, told
from assets.studies._heads import giving, named, place
from assets.studies.story_models import SEEDS, STORED, trained
from utils.heads import on_keys, record_attention
from utils.masks import causal_mask
from utils.pretrained import load_story_model
from utils.recording import ablate, by_layer, recorded
from utils.stories import (
    KINDS,
    LOOKS,
    NUMBER,
    THINGS,
    encode,
    next_tokens,
    write_stories,
)

HEADS = named(range(2), 4)
COLOURS = torch.tensor([NUMBER[f" {look}"] for look in LOOKS])
SETTINGS = {
    "stories": 400,
    "seed": 2,
    "pairs": 100,
    "distances": [5, 60],
    "heads": HEADS,
    "looks": LOOKS,
}
KEY = ("seed",)
MARGIN = {"chosen": 0, "weight": 0.01, "restored": 0.02, "second word": 0.02}
MARGIN |= {"colour": 0.02, "colour without": 0.02}
MARGIN |= {"wrong without": 0.02, "things without": 0.02}
MARGIN |= {"colours sought": 0.5, "colours copied": 0.5}


def halves() -> tuple[list[str], list[str]]:
    """Return the held-out stories that choose a head, and those that report."""
    texts = write_stories(SETTINGS["stories"], SETTINGS["seed"])
    return texts[:200], texts[200:]


def said_again(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return (stories, places): where a colour stands that was said before."""
    colour = torch.isin(ids, COLOURS)
    return (colour & (colour.cumsum(dim=1) > 1)).nonzero(as_tuple=True)


def on_colours(weights: Tensor, ids: Tensor) -> Tensor:
    """Return the weight (stories, heads) on earlier colours, where one comes again."""
    story, place = said_again(ids)
    queries = torch.zeros_like(ids, dtype=torch.bool)
    queries[story, place - 1] = True
    marks = {"mask": causal_mask(ids.shape[1]), "queries": queries}
    return on_keys(weights, torch.isin(ids, COLOURS), **marks)


def pattern(model, ids: Tensor) -> Tensor:
    """Return the mean weight of each head on the earlier colours: (8,)."""
    maps = record_attention(model, ids)
    return torch.cat([on_colours(w, ids).nanmean(0) for w in maps])


@torch.no_grad()
def right(model, ids: Tensor) -> float:
    """Return for which part of the colours that are said again the model is right."""
    story, place = said_again(ids)
    predicted = model(ids)[story, place - 1].argmax(dim=-1)
    return (predicted == ids[story, place]).float().mean().item()


def right_without(model, ids: Tensor, head: str, mean_from: Tensor) -> float:
    """Return the same without a head, its mean in its place."""
    with ablate(model, by_layer([head]), mode="mean", mean_from=mean_from):
        return right(model, ids)


@torch.no_grad()
def wrong_without(model, ids: Tensor, mean_from: Tensor) -> dict[str, list[float]]:
    """Return for each kind of word which part is wrong without each head.

    Of the tokens that the whole model predicts with a probability above 0.9, rightly.
    """
    inputs, truth = next_tokens(ids)
    p, best = model(inputs).softmax(dim=-1).max(dim=-1)
    sure = (p > 0.9) & (best == truth)
    numbers = {
        kind: [NUMBER[t] for word in words for t in (word, f" {word}") if t in NUMBER]
        for kind, words in KINDS.items()
    }
    each = {
        kind: sure & torch.isin(truth, torch.tensor(x)) for kind, x in numbers.items()
    }
    each["other"] = sure & ~torch.stack([*each.values()]).any(dim=0)
    found: dict[str, list[float]] = {kind: [] for kind in each}
    for head in HEADS:
        with ablate(model, by_layer([head]), mode="mean", mean_from=mean_from):
            wrong = model(inputs).argmax(dim=-1) != truth
        for kind, places in each.items():
            found[kind].append(wrong[places].double().mean().item())
    return found


@torch.no_grad()
def things_without(model, ids: Tensor, mean_from: Tensor) -> dict[str, float]:
    """Return which part of the things is right without one or two heads of block 0.

    Of the things that were named before.
    """
    inputs, truth = next_tokens(ids)
    things = torch.tensor([NUMBER[f" {thing}"] for thing in THINGS])
    named = torch.isin(inputs, things).cumsum(dim=1) > 0
    there, found = torch.isin(truth, things) & named, {}
    for gone in (*combinations(range(4), 1), *combinations(range(4), 2)):
        with ablate(model, {0: list(gone)}, mode="mean", mean_from=mean_from):
            right = (model(inputs).argmax(dim=-1) == truth)[there]
        name = ", ".join(f"0.{head}" for head in gone)
        found[name] = right.double().mean().item()
    return found


def pairs(texts: list[str]) -> list[tuple[Tensor, Tensor, int, int]]:
    """Return (clean, corrupted, right, wrong): two stories that differ in a colour.

    Both end where the colour must be said for the second time. The wrong colour is the
    next one of the list.
    """
    found = []
    for text in texts:
        look = next(word for word in text.split() if word in LOOKS)
        other = LOOKS[(LOOKS.index(look) + 1) % len(LOOKS)]
        both = encode([text, text.replace(f" {look} ", f" {other} ")])
        places = (both[0] == NUMBER[f" {look}"]).nonzero()[:, 0]
        if len(places) > 1:
            clean, corrupted = both[:, : places[1]].split(1)
            found.append((clean, corrupted, NUMBER[f" {look}"], NUMBER[f" {other}"]))
    return found


@torch.no_grad()
def restored(model, texts: list[str]) -> Tensor:
    """Return (pairs, 8): how much of the logit difference each head brings back."""
    rows = []
    for clean, corrupted, yes, no in pairs(texts)[: SETTINGS["pairs"]]:
        with recorded(model, "blocks.*.attention.heads") as kept:
            best = difference(model(clean), yes, no)
        worst, row = difference(model(corrupted), yes, no), []
        for name in HEADS:
            block, head = place(name)
            given = kept[f"blocks.{block}.attention.heads"][:, head, -1]
            with giving(model, name, given, at=-1):
                patched = difference(model(corrupted), yes, no)
            row.append((patched - worst) / (best - worst))
        rows.append(row)
    return torch.tensor(rows)


def difference(logits: Tensor, yes: int, no: int) -> float:
    """Return the logit difference at the last position."""
    return (logits[0, -1, yes] - logits[0, -1, no]).item()


@torch.no_grad()
def sought(model, token: str = " the") -> list[int]:
    """Return how many of the 12 keys that fit " the" best are colours, by head.

    Of the first block, from weights alone: the score of a query and a key, in the mean
    over distances.
    """
    attention = model.blocks[0].attention
    x = model.blocks[0].attention_norm(model.embedding.weight)  # (tokens, 128)
    low, high = SETTINGS["distances"]
    query = attention.query_proj(x[NUMBER[token]]).view(1, 4, 1, 32)
    keys = attention.key_proj(x).view(-1, 4, 1, 32)  # (tokens, heads, 1, 32)
    scores = 0
    for distance in range(low, high + 1):
        rotated, _ = attention.position.rotate(query, query, offset=distance)
        _, kept = attention.position.rotate(keys, keys, offset=0)
        scores = scores + (rotated * kept).sum(-1)[..., 0]  # (tokens, heads)
    best = scores[1:].topk(12, dim=0).indices + 1  # token 0 is none
    return torch.isin(best, COLOURS).sum(0).tolist()


@torch.no_grad()
def copied(model) -> list[int]:
    """Return for how many of the 12 colours each head writes that same colour most.

    Of the first block, from weights alone: the colour that gains the highest logit.
    """
    attention = model.blocks[0].attention
    x = model.blocks[0].attention_norm(model.embedding.weight[COLOURS])  # (12, 128)
    found = []
    for head in range(4):
        part = slice(32 * head, 32 * head + 32)
        written = x @ attention.value_proj.weight[part].T
        written = written @ attention.out_proj.weight[:, part].T  # (12, 128)
        table = logits_of(model, written)[:, COLOURS]  # (12, 12)
        found.append(int((table.argmax(dim=1) == torch.arange(12)).sum()))
    return found


def logits_of(model, written: Tensor) -> Tensor:
    """Return the logits that a part of the residual stream gives, up to the norm."""
    written = written - written.mean(dim=-1, keepdim=True)
    return written @ (model.head.weight * model.norm.weight).T


@torch.no_grad()
def with_word(model, texts: list[str], word) -> dict[str, float]:
    """Return what happens if another word describes the second child.

    word(other) -> the word, e.g. another colour; None: nothing is said. "right": the
    part of the stories in which the colour is right, when it is said for the second
    time.
    """
    found = []
    for text in texts:
        look = next(each for each in text.split() if each in LOOKS)
        other = LOOKS[(LOOKS.index(look) + 1) % len(LOOKS)]
        # the first child comes before letter 20: "There was a girl named Kim."
        at = max(text.find("a girl named", 20), text.find("a boy named", 20))
        new = word(other)
        changed = f"{text[: at + 2]}{new} {text[at + 2 :]}" if new else text
        ids = encode([changed])
        places = (ids[0] == NUMBER[f" {look}"]).nonzero()[:, 0]
        if len(places) > 1:
            best = model(ids[:, : places[1]])[0, -1].argmax().item()
            found.append(best == NUMBER[f" {look}"])
    return {"right": sum(found) / len(found)}


def measured(model, seed: int) -> dict:
    """Return all that is stored of one model."""
    first, second = halves()
    choose, report = encode(first), encode(second)
    best = HEADS[int(pattern(model, choose).argmax())]
    words = {"none": lambda other: None, "colour": lambda other: other}
    words["happy"] = lambda other: "happy"
    found = {
        "seed": seed,
        "chosen": best,
        "weight": pattern(model, report),
        "colour": right(model, report),
        "colour without": [right_without(model, report, h, choose) for h in HEADS],
        "wrong without": wrong_without(model, report, choose),
        "things without": things_without(model, report, choose),
        "restored": restored(model, second).mean(0),
        "colours sought": sought(model),
        "colours copied": copied(model),
        "second word": {
            name: with_word(model, second[:100], word) for name, word in words.items()
        },
    }
    return rounded(found)


def study() -> dict:
    """Train and measure every seed; return what is stored."""
    return {"runs": told(measured(trained(seed), seed) for seed in SEEDS)}


def again(stored: dict) -> list[dict]:
    """Measure the stored model, which `story_models` trains again."""
    return [measured(load_story_model(), STORED)]
