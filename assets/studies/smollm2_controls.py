"""Controls of `smollm2`: its questions, asked in another way.

On the 24 sentences of `smollm2`: the most needed heads replaced by a mean instead of
zeros; the weight of 17.4 without 16.0 at one position; which terms of the logit
difference change without 23.0. On texts: what is lost without each of eight needed
heads, and without the induction heads and the heads that write most, each of these two
sets beside random heads of the same layers. With a gap in the positions: copied tokens
and the loss on a text, for further texts. With interpolation in one head, one layer, or
all others: copied tokens.
"""

import random
from contextlib import contextmanager
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F

from assets.studies import by_layer, rounded, runs_of
from assets.studies.smollm2 import Names, heads_of, means
from utils.positions import Rotary, frequencies, rotate_pairs
from utils.pretrained import SMOLLM2_SHA256, load_smollm2
from utils.recording import ablate, record_attention, recorded, replaced

NEEDED = "23.3 0.0 1.3 1.5 20.0 29.1 17.4 16.0 1.4 17.0 18.0 19.2".split()
INDUCTION = "18.6 17.4 17.3 17.5 18.7 23.2 23.7 20.6".split()  # of the core
STORY = (
    "When the rain had stopped, the old woman opened the door of her small house and "
    "looked at the garden. The roses had lost half of their leaves, but the apple "
    "tree stood as it had stood for forty years."
)
WENT, GIVER = 4, 9  # positions of the sentences
TOPICS = 8  # texts of Python's help(), of so many tokens each:
LENGTH = 160
RANDOM_SETS = 16
DRAWS = range(1, 6)
SCHEMES = {"as trained": {}, "interpolation": {"scale": 0.5}}
SCHEMES["larger base"] = {"base": 500_000}
GAPS = [("as trained", gap) for gap in (0, 1024, 4096, 7168, 8192)]
GAPS += [("interpolation", 0), ("larger base", 0), ("larger base", 16384)]
WHERE = "layer 16", "the other layers", "16.0 alone", "layer 16 without 16.0"
KEY = ("control", "head", "set", "heads", "gap", "scheme", "where")
NUMBERS = (
    "overall, by position, whole, less, others, change, everywhere, lost, most, "
    "copied, losses, told by a copy"
)
MARGIN = dict.fromkeys(NUMBERS.split(", "), 0.02)


# --- the sentences ---


@contextmanager
def giving(model, head: str, values, at=slice(None)):
    """Replace the output of a head, at some positions, for a `with` block."""
    ((layer, (number,)),) = by_layer([head]).items()

    def change(x):  # (batch, 9, length, 64)
        x = x.clone()
        x[:, number, at] = values
        return x

    with replaced(model, {heads_of(layer): change}):
        yield


def mean_ablation(names: Names, head: str) -> dict:
    """Return the change of the logit difference with a mean in the head's place."""
    ((layer, (number,)),) = by_layer([head]).items()
    gave = names.outputs[layer][:, number]  # (24, 14, 64)
    row = {"control": "mean ablation", "head": head}
    for kind, values in ("overall", gave.mean((0, 1))), ("by position", gave.mean(0)):
        x = names.states[layer]
        with giving(names.model, head, values):
            for block in names.model.blocks[layer:]:
                x = block(x, names.mask)
        row[kind] = means(names.difference(x) - names.whole, 3)
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
        x = names.states[16]
        with giving(names.model, "16.0", 0.0, at=at):
            for block in names.model.blocks[16:]:
                x = block(x, names.mask)
        change = (names.difference(x) - names.whole)[::2].mean()
        row[kind] = round(change.item(), 3)
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


def help_texts(encode, decode) -> list[str]:
    """Return the beginnings, without the title, of topics chosen by their order."""
    long = [t for name, t in sorted(topics.items()) if len(encode(t)) > LENGTH + 40]
    chosen = long[:: len(long) // TOPICS][:TOPICS]
    return [decode(encode(text)[40 : 40 + LENGTH]) for text in chosen]


def losses(model, ids: list[int]) -> tuple[float, float | None]:
    """Return the mean loss of the next token, of all and of those that a copy tells."""
    x = torch.tensor([ids])
    found = F.cross_entropy(model(x)[0, :-1], x[0, 1:], reduction="none")
    told = told_by_a_copy(ids)
    copies = round(found[told].mean().item(), 3) if told else None
    return round(found.mean().item(), 3), copies


def told_by_a_copy(ids: list[int]) -> list[int]:
    """Return the positions whose token and next token stood together before."""
    pairs = list(zip(ids, ids[1:]))
    return [at for at, pair in enumerate(pairs) if pair in pairs[:at]]


def twice(seed: int) -> torch.Tensor:
    """Return four texts (4, 64): 32 random tokens, then the same again."""
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(1000, 40000, (4, 32), generator=generator)
    return torch.cat([once, once], dim=1)


def copied(model, ids: torch.Tensor) -> float:
    """Return the share of the second copy that the model predicts."""
    best = model(ids)[:, 32:-1].argmax(dim=-1)
    return (best == ids[:, 33:]).float().mean().item()


def by_length(model, ids: torch.Tensor) -> list[str]:
    """Return the heads without the induction heads, the one that writes most first."""
    with recorded(model, "blocks.*.attention.heads") as seen:
        model(ids)
    lengths = []
    for block, gave in zip(model.blocks, seen.values()):
        columns = block.attention.out_proj.weight.unflatten(1, (9, 64))
        wrote = torch.einsum("bhqd,ehd->bqhe", gave[:, :, 32:], columns)
        lengths.append(wrote.norm(dim=-1).mean(dim=(0, 1)))
    order = torch.stack(lengths).flatten().argsort(descending=True).tolist()
    return [name for i in order if (name := f"{i // 9}.{i % 9}") not in INDUCTION]


def random_like(heads: list[str], seed: int) -> list[str]:
    """Return as many other heads of the same layers, drawn at random."""
    draw, found = random.Random(seed), []
    for layer, members in by_layer(heads).items():
        others = [h for h in range(9) if f"{layer}.{h}" not in heads]
        count = min(len(members), len(others))
        found += [f"{layer}.{h}" for h in sorted(draw.sample(others, count))]
    return found


def sets(model, ids: torch.Tensor) -> dict[str, list[str]]:
    """Return the sets of heads that are left out, by name."""
    most = by_length(model, ids)[:8]
    found = {"none": [], "induction heads": INDUCTION, "write most": most}
    found |= {f"{head} alone": [head] for head in NEEDED[:8]}
    for seed in range(RANDOM_SETS):
        found[f"like induction heads {seed}"] = random_like(INDUCTION, seed)
        found[f"like write most {seed}"] = random_like(most, seed)
    return found


def left_out(model, encoded: list[list[int]], label: str, heads: list[str]) -> dict:
    """Return what the model copies and the loss on each text without these heads."""
    with ablate(model, by_layer(heads)):
        values, copies = zip(*(losses(model, ids) for ids in encoded))
        share = round(copied(model, twice(1)), 3)
    row = {"control": "left out", "set": label, "heads": heads, "copied": share}
    # of the story, then of the help() texts
    return row | {"losses": list(values), "told by a copy": list(copies)}


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
        shares = rounded([copied(model, twice(seed)) for seed in DRAWS], 3)
    return {"control": "gap", "scheme": scheme, "gap": gap, "copied": shares}


def interpolated(model, where: str) -> dict:
    """Return the copied tokens of five draws, with interpolation somewhere.

    where: "layer 16", "the other layers", "16.0 alone" or "layer 16 without 16.0".
    """
    layers = [16] if "layer 16" in where else []
    layers = [x for x in range(30) if x != 16] if "other" in where else layers
    scale, shares = SCHEMES["interpolation"], []
    for seed in DRAWS:
        ids = twice(seed)
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
    ((layer, (number,)),) = by_layer([head]).items()
    with recorded(model, heads_of(layer)) as seen:
        model(ids)
    return seen[heads_of(layer)][:, number]


def after_text(model, texts: list[list[int]], story: list[int], scheme, gap) -> dict:
    """Return the loss of the story after 32 tokens of each text, and a gap."""
    values = []
    for text in texts:
        x = torch.tensor([text[:32] + story])
        with positions(model, gap, **SCHEMES[scheme]):
            values.append(F.cross_entropy(model(x)[0, 32:-1], x[0, 33:]).item())
    row = {"control": "story after a gap", "scheme": scheme, "gap": gap}
    return row | {"losses": rounded(values, 3)}


# --- the study ---


@torch.no_grad()
def study() -> dict:
    """Return the study."""
    names = Names()
    model, tokenizer = load_smollm2()
    texts = help_texts(tokenizer.encode, tokenizer.decode)
    encoded = [tokenizer.encode(text) for text in [STORY, *texts]]
    rows = [mean_ablation(names, head) for head in NEEDED]
    rows += [without_16_0(names), repair(names)]
    chosen = sets(model, twice(1))
    rows += [left_out(model, encoded, *each) for each in chosen.items()]
    rows += [far(model, *each) for each in GAPS]
    rows += [interpolated(model, where) for where in WHERE]
    rows += [
        after_text(model, encoded[1:], encoded[0], scheme, gap)
        for scheme in SCHEMES
        for gap in (0, 8192, 16384)
    ]
    found = {
        "torch": torch.__version__.split("+")[0],
        "model": {"sha256": SMOLLM2_SHA256},
    }
    return {**found, "texts": texts, "runs": rows}


def comparable(stored: dict) -> list[dict]:
    """Return the rows, of the texts the first ones only: so few are repeated."""
    rows = []
    for row in stored["runs"]:
        count = 3 if "set" in row else 2
        cut = {
            name: row[name][:count]
            for name in ("losses", "told by a copy")
            if name in row
        }
        rows.append(row | cut)
    return rows


@torch.no_grad()
def again(stored: dict) -> list[dict]:
    """Repeat some rows, with the first texts only."""
    names, (model, tokenizer) = Names(), load_smollm2()
    story, *texts = (tokenizer.encode(x) for x in [STORY, *stored["texts"][:2]])
    rows = [mean_ablation(names, "1.3"), without_16_0(names), repair(names)]
    for label in ("1.5 alone", "induction heads", "like write most 3"):
        (row,) = runs_of(stored, set=label)
        rows.append(left_out(model, [story, *texts], label, row["heads"]))
    return [
        *rows,
        far(model, "as trained", 7168),
        interpolated(model, "16.0 alone"),
        after_text(model, texts, story, "interpolation", 16384),
    ]
