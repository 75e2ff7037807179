"""The language model of lesson 11 on ordinary text, without its induction heads.

Sixteen texts, of each the first 512 tokens: eight of Python's help(), which are stored
here, and eight stories and dialogues, which were written for this course. The loss of
each token is a mean over three kinds: *pair*, which completes a pair of tokens that
stood before in this text; *token*, which stood before, but not after this token; *new*.
It is also a mean over places in the text. Left out are: nothing; the eight induction
heads of the lesson; the best four of them; 16.0 alone; the eight and 16.0; sixteen
draws of eight other heads, as many of each layer; and three heads of the first layers.
For the eight and for four of the draws, the mean of a head's outputs in all texts of a
kind also takes their place, instead of zeros.
"""

import re
from functools import partial
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F

from assets.studies import FOLDER, by_layer, rounded
from assets.studies.smollm2_controls import INDUCTION, heads_of, random_like
from utils.masks import causal_mask
from utils.pretrained import SMOLLM2_SHA256, load_smollm2
from utils.recording import recorded, replaced

PROSE = FOLDER.parent / "ordinary_text.txt"
TOPICS = 8
LENGTH, BIN = 512, 32
DRAWS, MEAN_DRAWS = 16, 4
KINDS = "pair", "token", "new"
EARLY, LATE = slice(40, 81), slice(400, LENGTH)  # positions, counted from 0
LEFT_OUT = {
    "nothing": [],
    "the eight": INDUCTION,
    "the best four": INDUCTION[:4],
    "16.0": ["16.0"],
    "the eight and 16.0": [*INDUCTION, "16.0"],
    **{f"random {i}": random_like(INDUCTION, i) for i in range(DRAWS)},
    **{head: [head] for head in ("0.0", "1.3", "1.5")},
}
BY_MEAN = ["the eight", *(f"random {i}" for i in range(MEAN_DRAWS))]
STATES = {0: "dropout", 1: "blocks.0", 16: "blocks.15", 17: "blocks.16"}  # before layer
KEY = ("text", "without", "instead")
NUMBERS = "all", *KINDS, "early", "late", "at 50 and 500", "by place"
MARGIN = dict.fromkeys(NUMBERS, 0.02)


# --- the texts ---


def help_texts(tokenizer) -> dict[str, str]:
    """Return {topic: the beginning}, of long topics chosen by their order."""
    encoded = {name: tokenizer.encode(text) for name, text in sorted(topics.items())}
    long = [name for name, ids in encoded.items() if len(ids) > LENGTH]
    chosen = long[:: len(long) // TOPICS][:TOPICS]
    return {name: tokenizer.decode(encoded[name][:LENGTH]) for name in chosen}


def prose() -> dict[str, str]:
    """Return {title: text} of the stories and dialogues."""
    parts = re.split(r"^= (.+)\n", PROSE.read_text(encoding="utf-8"), flags=re.M)[1:]
    return dict(zip(parts[::2], map(str.strip, parts[1::2])))


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


def counts_of(texts: list[list[int]]) -> dict[str, dict[str, list[int]]]:
    """Return {"all", "early" or "late": {kind: how many there are in each text}}."""
    places = {"all": slice(1, LENGTH), "early": EARLY, "late": LATE}
    every = [["", *kinds_of(ids)] for ids in texts]  # by position
    return {
        place: {kind: [one[at].count(kind) for one in every] for kind in KINDS}
        for place, at in places.items()
    }


# --- the model without some heads ---


class Reader:
    """The model, and what the texts of one kind become in it."""

    @torch.no_grad()
    def __init__(self, model, encoded: list[list[int]]):
        self.model, self.mask = model, causal_mask(LENGTH, LENGTH)
        self.texts = torch.tensor(encoded)  # (texts, 512)
        self.states, outputs = [], []
        layers = sorted(by_layer(INDUCTION))
        for ids in self.texts:
            with recorded(model, *STATES.values(), *map(heads_of, layers)) as seen:
                model(ids[None])
            self.states.append({at: seen[name] for at, name in STATES.items()})
            outputs.append(torch.stack([seen[heads_of(i)][0] for i in layers]))
        means = torch.stack(outputs).mean((0, 3))  # (layers, 9, 64)
        self.means = dict(zip(map(heads_of, layers), means))

    def without(self, heads: list[str], instead: str):
        """Put zeros, or means, in the place of what the heads give: see `replaced`."""

        def change(name, numbers, x):  # (1, 9, 512, 64)
            x = x.clone()
            x[:, numbers] = self.means[name][numbers, None] if instead == "mean" else 0
            return x

        changes = {
            heads_of(layer): partial(change, heads_of(layer), numbers)
            for layer, numbers in by_layer(heads).items()
        }
        return replaced(self.model, changes)

    @torch.no_grad()
    def losses(self, heads: list[str], instead: str = "zero") -> torch.Tensor:
        """Return the loss (texts, 511) of each token but the first."""
        first = min(by_layer(heads), default=17)
        first = max(at for at in STATES if at <= first)
        found = []
        for ids, states in zip(self.texts, self.states):
            x = states[first]
            with self.without(heads, instead):
                for block in self.model.blocks[first:]:
                    x = block(x, self.mask)
            logits = self.model.head(self.model.norm(x))[0, :-1]
            found.append(F.cross_entropy(logits, ids[1:], reduction="none"))
        return torch.stack(found)


def row(reader: Reader, text: str, without: str, instead: str = "zero") -> dict:
    """Return a row of the study: for each text, mean losses of kinds and of places."""
    heads, ids = LEFT_OUT[without], reader.texts.tolist()
    losses = reader.losses(heads, instead)  # (texts, 511)
    at = F.pad(losses, (1, 0), value=torch.nan)  # (texts, 512): by their position
    found = {"text": text, "without": without, "instead": instead, "heads": heads}
    found["all"] = losses.mean(1)
    for kind in KINDS:
        chosen = [[each == kind for each in kinds_of(one)] for one in ids]
        pairs = zip(losses, torch.tensor(chosen))
        found[kind] = torch.stack([loss[where].mean() for loss, where in pairs])
    found |= {"early": at[:, EARLY].mean(1), "late": at[:, LATE].mean(1)}
    found["at 50 and 500"] = at[:, [50, 500]]
    found["by place"] = at.unflatten(1, (-1, BIN)).nanmean(2)  # (texts, 16)
    return rounded(found, 3)


# --- the study ---


def study() -> dict:
    """Return the study."""
    model, tokenizer = load_smollm2()
    texts = {"help": help_texts(tokenizer), "prose": prose()}
    counts, rows = {}, []
    for text, each in texts.items():
        reader = Reader(model, [tokenizer.encode(x)[:LENGTH] for x in each.values()])
        counts[text] = counts_of(reader.texts.tolist())
        rows += [row(reader, text, without) for without in LEFT_OUT]
        rows += [row(reader, text, without, "mean") for without in BY_MEAN]
    return {
        "torch": torch.__version__.split("+")[0],
        "model": {"sha256": SMOLLM2_SHA256},
        "counts": counts,
        "help": texts["help"],
        "runs": rows,
    }


def comparable(stored: dict) -> list[dict]:
    """Return the rows with the first text only, for that is repeated."""
    return [
        {name: x[:1] if name in MARGIN else x for name, x in run.items()}
        for run in stored["runs"]
    ]


def again(stored: dict) -> list[dict]:
    """Repeat three rows of each kind of text, with the first text only."""
    (model, tokenizer), rows = load_smollm2(), []
    for text, each in texts_of(stored).items():
        first = next(iter(each.values()))
        reader = Reader(model, [tokenizer.encode(first)[:LENGTH]])
        for without in ("nothing", "the eight", "random 0"):
            rows.append(row(reader, text, without))
    return rows
