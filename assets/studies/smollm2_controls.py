"""Controls of `smollm2`: its questions, asked in another way.

On the 24 sentences of `smollm2`: the most needed heads replaced by a mean instead of
zeros; the weight of 17.4 without 16.0 at one position; which terms of the logit
difference change without 23.0. On texts: what is lost without each of the needed heads.
With a gap in the positions: copied tokens, and the loss on a text, for further texts.
With interpolation in one head, one layer, or all others: copied tokens.
"""

from contextlib import contextmanager

import torch
import torch.nn.functional as F

from assets.studies import by_layer, rounded
from assets.studies._smollm2 import about, heads_of, help_texts, twice
from assets.studies.smollm2 import Names, means
from utils.positions import Rotary, frequencies, rotate_pairs
from utils.recording import ablate, record_attention, recorded, replaced

NEEDED = "23.3 0.0 1.3 1.5 20.0 29.1 17.4 16.0".split()
STORY = (
    "When the rain had stopped, the old woman opened the door of her small house and "
    "looked at the garden. The roses had lost half of their leaves, but the apple "
    "tree stood as it had stood for forty years."
)
WENT, GIVER = 4, 9  # positions of the sentences
TITLE, LENGTH = 40, 160  # tokens of a help() text: those left out, those read
DRAWS = range(1, 6)
SCHEMES = {"as trained": {}, "interpolation": {"scale": 0.5}}
SCHEMES["larger base"] = {"base": 500_000}
GAPS = [("as trained", gap) for gap in (0, 1024, 4096, 7168, 8192)]
GAPS += [("interpolation", 0), ("larger base", 0), ("larger base", 16384)]
STORY_GAPS = [(scheme, gap) for scheme in [*SCHEMES][:2] for gap in (0, 8192)]
WHERE = "layer 16", "the other layers", "16.0 alone", "layer 16 without 16.0"
KEY = ("control", "head", "set", "gap", "scheme", "where")
NUMBERS = (
    "overall, by position, whole, less, others, change, everywhere, lost, most, "
    "copied, losses"
)
MARGIN = dict.fromkeys(NUMBERS.split(", "), 0.02)


# --- the sentences ---


def place(head: str) -> tuple[int, int]:
    """Return layer and number of a head."""
    layer, number = head.split(".")
    return int(layer), int(number)


@contextmanager
def giving(model, head: str, values, at=slice(None)):
    """Replace the output of a head, at some positions, for a `with` block."""
    layer, number = place(head)

    def change(x):  # (batch, 9, length, 64)
        x = x.clone()
        x[:, number, at] = values
        return x

    with replaced(model, {heads_of(layer): change}):
        yield


def mean_ablation(names: Names, head: str) -> dict:
    """Return the change of the logit difference with a mean in the head's place."""
    layer, number = place(head)
    gave = names.outputs[layer][:, number]  # (24, 14, 64)
    row = {"control": "mean ablation", "head": head}
    for kind, values in ("overall", gave.mean((0, 1))), ("by position", gave.mean(0)):
        with giving(names.model, head, values):
            row[kind] = means(names.change(layer), 3)
    return row


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


def loss(model, ids: list[int], start: int = 0) -> float:
    """Return the mean loss of the next tokens of a text, from a position on."""
    x = torch.tensor([ids])
    return F.cross_entropy(model(x)[0, start:-1], x[0, start + 1 :]).item()


def copied(model, ids: torch.Tensor) -> float:
    """Return the share of the second copy that the model predicts."""
    best = model(ids)[:, 32:-1].argmax(dim=-1)
    return (best == ids[:, 33:]).float().mean().item()


def left_out(model, encoded: list[list[int]], label: str) -> dict:
    """Return the loss on each text, the story first: "none", or "16.0 alone"."""
    with ablate(model, by_layer([] if label == "none" else [label.split()[0]])):
        losses = [loss(model, ids) for ids in encoded]
    return {"control": "left out", "set": label, "losses": rounded(losses, 3)}


# --- a gap in the positions ---


class Gap(Rotary):
    """Rotary positions in which positions from 32 on are moved by a gap."""

    gap = 0

    def _rotated(self, x, first):
        positions = torch.arange(first, first + x.shape[-2])
        moved = positions + self.gap * (positions >= 32)
        angles = (moved * self.scale)[:, None] * frequencies(64, base=self.base)
        return rotate_pairs(x, angles, layout=self.layout)


@contextmanager
def positions(model, gap: int, layers=range(30), **options):
    """The model with other positions in some layers, for a `with` block."""
    old = model.position
    new = Gap(64, layout="interleaved", **{"base": 100_000} | options)
    new.gap = gap
    modules = [model.blocks[layer].attention for layer in layers]
    for module in modules:
        module.position = new
    try:
        yield
    finally:
        for module in modules:
            module.position = old


def far(model, scheme: str, gap: int) -> dict:
    """Return the copied tokens of five draws, with a gap between the two copies."""
    with positions(model, gap, **SCHEMES[scheme]):
        shares = rounded([copied(model, twice(4, seed)) for seed in DRAWS], 3)
    return {"control": "gap", "scheme": scheme, "gap": gap, "copied": shares}


def interpolated(model, where: str) -> dict:
    """Return the copied tokens of five draws, with interpolation somewhere.

    where: "layer 16", "the other layers", "16.0 alone" or "layer 16 without 16.0".
    """
    layers = [16] if "layer 16" in where else []
    layers = [x for x in range(30) if x != 16] if "other" in where else layers
    scale, shares = SCHEMES["interpolation"], []
    for seed in DRAWS:
        ids = twice(4, seed)
        with positions(model, 0, layers, **scale):
            if "16.0" not in where:
                shares.append(copied(model, ids))
                continue
        # 16.0 with interpolation, or without it; below layer 16 nothing is changed
        with positions(model, 0, [16] if "alone" in where else [], **scale):
            kept = out_of(model, "16.0", ids)
        with positions(model, 0, layers, **scale), giving(model, "16.0", kept):
            shares.append(copied(model, ids))
    return {"control": "interpolated", "where": where, "copied": rounded(shares, 3)}


def out_of(model, head: str, ids: torch.Tensor) -> torch.Tensor:
    """Return the output of a head (batch, length, 64)."""
    layer, number = place(head)
    with recorded(model, heads_of(layer)) as seen:
        model(ids)
    return seen[heads_of(layer)][:, number]


def after_text(model, texts: list[list[int]], story: list[int], scheme, gap) -> dict:
    """Return the loss of the story after 32 tokens of each text, and a gap."""
    with positions(model, gap, **SCHEMES[scheme]):
        values = [loss(model, text[:32] + story, start=32) for text in texts]
    row = {"control": "story after a gap", "scheme": scheme, "gap": gap}
    return row | {"losses": rounded(values, 3)}


# --- the study ---


@torch.no_grad()
def study() -> dict:
    """Return the study."""
    names = Names()
    model, tokenizer = names.model, names.tokenizer
    texts = [*help_texts(tokenizer, LENGTH, TITLE).values()]
    story, *encoded = (tokenizer.encode(text) for text in [STORY, *texts])
    rows = [mean_ablation(names, head) for head in NEEDED]
    rows += [without_16_0(names), repair(names)]
    for label in ["none", *(f"{head} alone" for head in NEEDED)]:
        rows.append(left_out(model, [story, *encoded], label))
    rows += [far(model, *each) for each in GAPS]
    rows += [interpolated(model, where) for where in WHERE]
    rows += [after_text(model, encoded, story, *each) for each in STORY_GAPS]
    return {**about(), "texts": texts, "runs": rows}


def comparable(stored: dict) -> list[dict]:
    """Return the rows, of the texts the first ones only: so few are repeated."""
    return [
        row | {"losses": row["losses"][: 3 if "set" in row else 2]}
        if "losses" in row
        else row
        for row in stored["runs"]
    ]


@torch.no_grad()
def again(stored: dict) -> list[dict]:
    """Repeat some rows, with the first texts only."""
    names = Names()
    model, tokenizer = names.model, names.tokenizer
    story, *texts = (tokenizer.encode(x) for x in [STORY, *stored["texts"][:2]])
    return [
        mean_ablation(names, "1.3"),
        without_16_0(names),
        repair(names),
        left_out(model, [story, *texts], "1.5 alone"),
        far(model, "as trained", 7168),
        interpolated(model, "16.0 alone"),
        after_text(model, texts, story, "interpolation", 8192),
    ]
