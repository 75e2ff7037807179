"""The language model of lesson 11 on ordinary text, without its induction heads.

Sixteen texts, of each the first 512 tokens: eight of Python's help(), which are stored
here, and eight stories and dialogues, which were written for this course. The loss of
each token is a mean over three kinds: *pair*, which completes a pair of tokens that
stood before in this text; *token*, which stood before, but not after this token; *new*.
It is also a mean over places in the text. *short* is the loss of the late tokens if the
text begins only at token 360. Left out are: nothing; the eight induction
heads of the lesson; and sixteen draws of eight other heads, as many of each layer.
"""

import random

import torch
import torch.nn.functional as F

from assets.studies import rounded
from assets.studies._smollm2 import ABOUT, INDUCTION, help_texts, prose, random_like
from utils.pretrained import load_smollm2
from utils.recording import ablate, by_layer

LENGTH, TEXTS, BIN, DRAWS = 512, 8, 32, 16
KINDS = "pair", "token", "new"
EARLY, LATE = slice(40, 81), slice(400, LENGTH)  # positions, counted from 0
CUT = 360  # where the short text begins
LEFT_OUT = {
    "nothing": [],
    "the eight": INDUCTION,
    **{f"random {i}": random_like(INDUCTION, random.Random(i)) for i in range(DRAWS)},
}
KEY = ("text", "without", "instead")
MARGIN = dict.fromkeys((*KINDS, "early", "late", "short", "by place"), 0.02)


def texts_of(stored: dict) -> dict[str, dict[str, str]]:
    """Return {"help" or "prose": {title: text}}, each of 512 tokens or more."""
    return {"help": stored["help"], "prose": prose()}


def kinds_of(ids: list[int]) -> list[str]:
    """Return the kind of each token but the first: "pair", "token" or "new".

    >>> kinds_of([5, 6, 5, 6, 7, 6])  # 5 6 stood before; 6 stood before, not after 7
    ['new', 'token', 'pair', 'new', 'token']
    """
    pairs, tokens, found = set(), {ids[0]}, []
    for pair in zip(ids, ids[1:]):
        kind = "pair" if pair in pairs else "token" if pair[1] in tokens else "new"
        found.append(kind)
        pairs.add(pair)
        tokens.add(pair[1])
    return found


@torch.no_grad()
def losses_without(model, heads: list[str], texts: torch.Tensor) -> torch.Tensor:
    """Return the loss (texts, length - 1) of each token but the first."""
    found = []
    with ablate(model, by_layer(heads)):
        for ids in texts:
            logits = model(ids[None])[0, :-1]
            found.append(F.cross_entropy(logits, ids[1:], reduction="none"))
    return torch.stack(found)


def row(model, texts: torch.Tensor, text: str, without: str) -> dict:
    """Return a row of the study: for each text, mean losses of kinds and of places."""
    heads = LEFT_OUT[without]
    losses = losses_without(model, heads, texts)  # (texts, 511)
    found = {"text": text, "without": without, "instead": "zero", "heads": heads}
    kinds = [kinds_of(ids) for ids in texts.tolist()]
    for kind in KINDS:
        chosen = torch.tensor([[each == kind for each in one] for one in kinds])
        pairs = zip(losses, chosen)
        found[kind] = torch.stack([loss[where].mean() for loss, where in pairs])
    at = F.pad(losses, (1, 0), value=torch.nan)  # (texts, 512): by their position
    found |= {"early": at[:, EARLY].mean(1), "late": at[:, LATE].mean(1)}
    late = LATE.stop - LATE.start  # the number of these tokens
    short = losses_without(model, heads, texts[:, CUT:])
    found["short"] = short[:, -late:].mean(1)
    found["by place"] = at.unflatten(1, (-1, BIN)).nanmean(2)  # (texts, 16)
    return rounded(found, 3)


def rows_of(model, tokenizer, stored: dict, texts: int, left_out) -> list[dict]:
    """Return the rows of the first texts of each kind, without some heads."""
    rows = []
    for text, each in texts_of(stored).items():
        some = [*each.values()][:texts]
        ids = torch.tensor([tokenizer.encode(x)[:LENGTH] for x in some])
        rows += [row(model, ids, text, without) for without in left_out]
    return rows


def study() -> dict:
    """Return the study."""
    model, tokenizer = load_smollm2()
    stored = {"help": help_texts(tokenizer, LENGTH)}
    rows = rows_of(model, tokenizer, stored, TEXTS, LEFT_OUT)
    return {**ABOUT, **stored, "runs": rows}


def comparable(stored: dict) -> list[dict]:
    """Return the rows with the first text only, for that is repeated."""
    return [
        {name: x[:1] if name in MARGIN else x for name, x in run.items()}
        for run in stored["runs"]
    ]


def again(stored: dict) -> list[dict]:
    """Repeat a row of each kind of text, with the first text only."""
    return rows_of(*load_smollm2(), stored, 1, ["the eight"])
