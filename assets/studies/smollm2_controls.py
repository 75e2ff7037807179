"""Controls of `smollm2`: its questions, asked in another way.

On the 24 sentences of `smollm2`: the weight of 17.4 without 16.0 at one position; which
terms of the logit difference change without 23.0. On texts: the loss without each of
the eight most needed heads.
"""

from contextlib import contextmanager

import torch
import torch.nn.functional as F

from assets.studies import by_layer, rounded
from assets.studies._smollm2 import about, heads_of, help_texts
from assets.studies.smollm2 import Names
from utils.recording import ablate, record_attention, recorded, replaced

NEEDED = "23.3 0.0 1.3 1.5 20.0 29.1 17.4 16.0".split()
STORY = (
    "When the rain had stopped, the old woman opened the door of her small house and "
    "looked at the garden. The roses had lost half of their leaves, but the apple "
    "tree stood as it had stood for forty years."
)
WENT, GIVER = 4, 9  # positions of the sentences
TITLE, LENGTH = 40, 160  # tokens of a help() text: those left out, those read
KEY = ("control", "set")
NUMBERS = "whole, less, others, change, everywhere, lost, most, losses"
MARGIN = dict.fromkeys(NUMBERS.split(", "), 0.02)


# --- the sentences ---


@contextmanager
def giving(model, head: str, values, at=slice(None)):
    """Replace the output of a head, at some positions, for a `with` block."""
    layer, number = map(int, head.split("."))

    def change(x):  # (batch, 9, length, 64)
        x = x.clone()
        x[:, number, at] = values
        return x

    with replaced(model, {heads_of(layer): change}):
        yield


def without_16_0(names: Names) -> dict:
    """Return what 16.0 at "went" does to 17.4, and to the logit difference.

    In the sentences in which the second person gives: "went" follows its first mention.
    whole, less: the weight of 17.4 from the giver on "went", with 16.0 and without it.
    others: the same weight without each other head of layer 16, at the same position.
    change, everywhere: of the difference, without 16.0 at "went" or at all positions.
    """
    ids = names.ids[::2]  # "When Mary and John went ..., John gave a drink to"

    def weight():
        layer = record_attention(names.model, ids)[17]
        return round(layer[:, 4, GIVER, WENT].mean().item(), 3)

    whole, without = weight(), []
    for head in range(9):
        with giving(names.model, f"16.{head}", 0.0, at=WENT):
            without.append(weight())
    less, *others = without
    row = {"control": "16.0 at went", "whole": whole, "less": less}
    row["others"] = [min(others), max(others)]
    for kind, at in ("change", WENT), ("everywhere", slice(None)):
        with giving(names.model, "16.0", 0.0, at=at):
            row[kind] = round(names.change(16)[::2].mean().item(), 3)
    return row


def terms(names: Names) -> dict[str, float]:
    """Return the terms of the mean logit difference: of each head and each MLP."""
    model, found = names.model, {}
    rows = model.head.weight
    direction = (rows[names.answers] - rows[names.givers]) * model.norm.weight
    with recorded(
        model, "blocks.*", "blocks.*.attention.heads", "blocks.*.mlp"
    ) as seen:
        model(names.ids)
    stream = seen["blocks.29"][:, -1]
    rms = (stream.pow(2).mean(-1, keepdim=True) + model.norm.eps).sqrt()
    onto = direction / rms  # (24, 576)
    for layer, block in enumerate(model.blocks):
        w_o = block.attention.out_proj.weight.unflatten(1, (9, 64))
        wrote = torch.einsum("bhd,ehd->bhe", seen[heads_of(layer)][:, :, -1], w_o)
        effect = (wrote * onto[:, None]).sum(-1).mean(0).tolist()
        found |= {f"{layer}.{head}": value for head, value in enumerate(effect)}
        added = seen[f"blocks.{layer}.mlp"][:, -1]
        found[f"MLP {layer}"] = (added * onto).sum(-1).mean().item()
    return found


def repair(names: Names) -> dict:
    """Return the four terms that change most without head 23.0, and all others."""
    before = terms(names)
    with giving(names.model, "23.0", 0.0):
        after = terms(names)
    change = {name: after[name] - before[name] for name in before if name != "23.0"}
    most = sorted(change, key=lambda name: -abs(change[name]))[:4]
    return {
        "control": "without 23.0",
        "lost": round(before["23.0"], 3),
        "others": round(sum(change.values()), 3),
        "most": rounded({name: change[name] for name in most}, 3),
    }


# --- texts ---


def loss(model, ids: list[int]) -> float:
    """Return the mean loss of the next tokens of a text."""
    x = torch.tensor([ids])
    return F.cross_entropy(model(x)[0, :-1], x[0, 1:]).item()


def left_out(model, encoded: list[list[int]], label: str) -> dict:
    """Return the loss on each text, the story first: "none", or "16.0 alone"."""
    with ablate(model, by_layer([] if label == "none" else [label.split()[0]])):
        losses = [loss(model, ids) for ids in encoded]
    return {"control": "left out", "set": label, "losses": rounded(losses, 3)}


# --- the study ---


@torch.no_grad()
def study() -> dict:
    """Return the study."""
    names = Names()
    model, tokenizer = names.model, names.tokenizer
    texts = [*help_texts(tokenizer, LENGTH, TITLE).values()]
    story, *encoded = (tokenizer.encode(text) for text in [STORY, *texts])
    rows = [without_16_0(names), repair(names)]
    for label in ["none", *(f"{head} alone" for head in NEEDED)]:
        rows.append(left_out(model, [story, *encoded], label))
    return {**about(), "texts": texts, "runs": rows}


def comparable(stored: dict) -> list[dict]:
    """Return the rows, of the texts the first ones only: so few are repeated."""
    return [
        row | {"losses": row["losses"][:3]} if "losses" in row else row
        for row in stored["runs"]
    ]


@torch.no_grad()
def again(stored: dict) -> list[dict]:
    """Repeat some rows, with the first texts only."""
    names = Names()
    model, tokenizer = names.model, names.tokenizer
    story, *texts = (tokenizer.encode(x) for x in [STORY, *stored["texts"][:2]])
    return [
        without_16_0(names),
        repair(names),
        left_out(model, [story, *texts], "1.5 alone"),
    ]
