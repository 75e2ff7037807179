"""Which heads of SmolLM2 copy by their weights, and what early heads do for late ones.

copying: by the weights alone, what a head writes when it attends to a token. Each of
    400 tokens is alone in block 0; then come `attention_norm`, `value_proj`, the head's
    columns of `out_proj`, the gain of the final norm, and the head of the model. (The
    scale of the final norm is one positive number for all logits: no rank depends on
    it.) rank: the median rank of the token itself among 49,152 logits, 0 = raised most.
    top ten: for how many tokens it is among the first ten. For comparison, the median
    rank of another of the tokens (other); with the columns of `out_proj` of another
    head of the layer (mismatched); without the gain of the final norm (no gain); of the
    embedding instead of what block 0 makes of it (embedding).
    eigenvalues: of the map from all tokens to all logits, the sum of the real parts
    divided by that of the sizes (1: all are positive; Elhage et al. 2021).
matching: does a head's query of a token find the key that the previous-token head 16.0
    makes of the same token? Query input: the token after block 0; key input: what 16.0
    writes when it attends to the token. Both go through the reader's own norm, and the
    query stands 31 positions after the keys. own norm: the median rank of the token's
    own key among 400; first: for how many tokens it is the first; by writer: the median
    rank with each head of layers 0 to 16 in the place of 16.0.
asking: the same, but the *query* is made of what a head of layer 17 or 18 writes when
    it attends to the token, and the key of the token after block 0.
gone: the held-out texts of lesson 11 (eight, of 32 random tokens and the same again),
    without early induction heads, random heads of the same layers, or others.
put back: without early heads, but what is named is that of the whole model.
taken: the whole model, but what is named is that of the run without early heads.
    induction: scores of the heads in `scored`. direct: what each of them adds to the
    logit of the right token, less its mean over all tokens, with the scale of the final
    norm of the whole model. right: how many of 31 tokens of each text are predicted.
    logit: that of the right token, less the mean of all.

Ablated heads give zeros. Keys and values are shared by three query heads; here they are
replaced for 23.2 and 23.7 alone.
"""

import random
from contextlib import ExitStack
from itertools import combinations

import torch

from assets.studies import by_layer, rounded
from utils.attention import split_heads
from utils.heads import induction
from utils.masks import causal_mask
from utils.pretrained import SMOLLM2_SHA256, load_smollm2
from utils.recording import ablate, recorded, replaced

TOKENS = 400
FEW = 50  # of them, for `mismatched`, `no gain` and `embedding`
EARLY = {
    "layer 17": ["17.3", "17.4", "17.5"],
    "layer 18": ["18.6", "18.7"],
    "both layers": ["17.3", "17.4", "17.5", "18.6", "18.7"],
}
LATE = ["23.2", "23.7"]  # induction heads that copy by their weights
COPIERS = ["23.2", "23.0", "24.5", "23.7", "23.1", "22.7", "23.5", "22.8"]
SCORED = ["18.6", "18.7", "20.6", *LATE]
READERS = ["17.3", "17.4", "17.5", "18.6", "18.7", "20.6", *LATE]
ASKED = ["20.6", "22.7", "23.0", "23.1", *LATE, "24.4"]
ALONE = ["16.0", "20.6", "+".join(LATE)]
DRAWS = 8
FROM = 16  # below this block nothing is changed
CHECKED = ["0.0", "17.4", "18.6", "23.2"]
KEY = ("part", "head", "gone", "draw", "what")
MARGIN = {
    "rank": 20,
    "top ten": 0.01,
    "other": 100,
    "eigenvalues": 0.01,
    "own norm": 2,
    "induction": 0.01,
    "direct": 0.02,
    "right": 1,
    "logit": 0.05,
}


def pair(head: str) -> tuple[int, int]:
    """Return (layer, head) of a name."""
    layer, number = head.split(".")
    return int(layer), int(number)


def named(layers) -> list[str]:
    """Return the names of all heads of these layers."""
    return [f"{layer}.{head}" for layer in layers for head in range(9)]


class Weights:
    """What can be said by the weights of the model alone."""

    def __init__(self, model):
        self.model, generator = model, torch.Generator().manual_seed(0)
        self.ids = 1000 + torch.randperm(39000, generator=generator)[:TOKENS]
        self.x = self.alone(self.ids)  # (tokens, 576)

    def alone(self, ids):
        """Return what block 0 makes of each token if it is alone, (tokens, 576)."""
        visible = torch.ones(1, 1, dtype=torch.bool)
        x = [self.model.embedding(some)[:, None] for some in ids.split(1024)]
        return torch.cat([self.model.blocks[0](some, visible)[:, 0] for some in x])

    def value(self, head: str):
        """Return the head's rows of `value_proj`, (64, 576): of its group of three."""
        layer, number = pair(head)
        weight = self.model.blocks[layer].attention.value_proj.weight
        return weight.unflatten(0, (3, 64))[number // 3]

    def out(self, head: str):
        """Return the head's columns of `out_proj`, (576, 64)."""
        layer, number = pair(head)
        weight = self.model.blocks[layer].attention.out_proj.weight
        return weight.unflatten(1, (9, 64))[:, number]

    def written(self, head: str, x, out_of: str | None = None):
        """Return what the head writes when it attends to x (tokens, 576)."""
        y = self.model.blocks[pair(head)[0]].attention_norm(x)
        return y @ self.value(head).T @ self.out(out_of or head).T

    def ranks(self, written, gain, *shifts: int):
        """Return the rank of each token among the logits of what is written for it.

        shifts: for each, the rank of another token, so many places before (0: its own).
        """
        logits = (written * gain) @ self.model.head.weight.T  # (tokens, 49152)
        found = []
        for shift in shifts or (0,):
            ids = self.ids.roll(shift)[: len(written), None]
            found.append((logits > logits.gather(1, ids)).sum(1).float())
        return found if shifts else found[0]

    def copying(self, head: str) -> dict:
        """Return a row: does the head write what it attends to?"""
        gain, few = self.model.norm.weight, self.x[:FEW]
        layer, number = pair(head)
        other = f"{layer}.{(number + 3) % 9}"  # of another group
        own, another = self.ranks(self.written(head, self.x), gain, 0, 1)
        wrote = self.written(head, few)
        embedded = self.model.embedding(self.ids[:FEW])
        return {
            "part": "copying",
            "head": head,
            "rank": median(own),
            "top ten": rounded((own < 10).float().mean(), 3),
            "other": median(another),
            "mismatched": median(self.ranks(self.written(head, few, other), gain)),
            "no gain": median(self.ranks(wrote, torch.ones_like(gain))),
            "embedding": median(self.ranks(self.written(head, embedded), gain)),
        }

    def eigenvalues(self, heads: list[str]) -> list[float]:
        """Return, of each head, the sum of eigenvalues divided by that of their sizes.

        The map from tokens to logits, (49152, 49152), has the same eigenvalues as this
        one of 64 features, and zeros.
        """
        unembed = self.model.head.weight  # (49152, 576)
        x, found, between = self.alone(torch.arange(len(unembed))), [], {}
        for head in heads:
            layer, _ = pair(head)
            if layer not in between:
                y = self.model.blocks[layer].attention_norm(x)
                between = {layer: y.T @ unembed * self.model.norm.weight}  # (576, 576)
            small = self.value(head) @ between[layer] @ self.out(head)  # (64, 64)
            values = torch.linalg.eigvals(small.double())
            found.append(rounded((values.real.sum() / values.abs().sum()).item(), 3))
        return found

    def found(self, reader: str, query, key, norm=True, distance=0):
        """Return the rank (tokens,) of each token's own key among those of all."""
        layer, number = pair(reader)
        block, rotate = self.model.blocks[layer], self.model.position.rotate
        if norm:
            query, key = block.attention_norm(query), block.attention_norm(key)
        else:
            gain = block.attention_norm.weight
            query, key = query * gain, key * gain
        q = block.attention.query_proj(query).unflatten(-1, (9, 64))[:, number]
        k = block.attention.key_proj(key).unflatten(-1, (3, 64))[:, number // 3]
        # all keys stand at position 0, all queries at `distance`
        q, k = q[:, None, None], k[:, None, None]
        q, k = rotate(q, q, distance)[0][:, 0, 0], rotate(k, k)[0][:, 0, 0]
        scores = q @ k.T  # (queries, keys)
        return (scores > scores.diagonal()[:, None]).sum(1).float()

    def matching(self, head: str) -> dict:
        """Return a row: does the head find a token by what 16.0 wrote of it?"""
        key = self.written("16.0", self.x)
        own = self.found(head, self.x, key, distance=31)
        row = {"part": "matching", "head": head, "own norm": median(own)}
        row["first"] = rounded((own == 0).float().mean(), 3)
        row["not rotated"] = median(self.found(head, self.x, key))
        row["gain alone"] = median(self.found(head, self.x, key, False, 31))
        if head in READERS:  # of all writers of layers 0 to 16
            keys = (self.written(writer, self.x) for writer in named(range(17)))
            found = [self.found(head, self.x, key, distance=31) for key in keys]
            row["by writer"] = [median(ranks) for ranks in found]
        return row

    def asking(self, head: str) -> dict:
        """Return a row: does the head find a token if an early head asks for it?

        by writer: of the heads of layers 17 and 18.
        """
        queries = [self.written(writer, self.x) for writer in named((17, 18))]
        found = [self.found(head, query, self.x, distance=31) for query in queries]
        ranks = [median(x) for x in found]
        own = median(self.found(head, self.x, self.x, distance=31))
        return {"part": "asking", "head": head, "of itself": own, "by writer": ranks}


def median(x) -> int:
    """Return the median as a whole number."""
    return round(x.median().item())


def part(head_or_layer, name: str) -> str:
    """Return the recorder's name of a part of the attention of a layer."""
    return f"blocks.{str(head_or_layer).split('.')[0]}.attention.{name}"


class Texts:
    """The model on texts of random tokens that are repeated."""

    def __init__(self, model):
        self.model, generator = model, torch.Generator().manual_seed(0)
        once = torch.randint(1000, 40000, (16, 32), generator=generator)[8:]
        self.ids = torch.cat([once, once], dim=1)  # (8, 64)
        self.right, self.mask = self.ids[:, 33:], causal_mask(64, 64)
        self.x = model.embedding(self.ids)
        for block in model.blocks[:FROM]:
            self.x = block(self.x, self.mask)
        heads = [part(layer, "heads") for layer in range(FROM, 30)]
        asked = [part(23, name) for name in ("query", "key", "value")]
        mlps = [f"blocks.{layer}.mlp" for layer in range(FROM, 30)]
        self.kept = [*heads, *asked, *mlps, "blocks.22"]
        self.whole = self.run()
        end = self.whole["end"][:, 32:-1]
        scale = (end.pow(2).mean(-1, keepdim=True) + model.norm.eps).rsqrt()
        rows = model.head.weight
        onto = rows[self.right] - rows.mean(0)
        self.onto = onto * model.norm.weight * scale  # (8, 31, 576)
        self.without = {
            name: self.run(ablate(model, by_layer(heads)))
            for name, heads in EARLY.items()
        }

    def run(self, *changes) -> dict:
        """Return what is seen in a run with changes (contexts)."""
        weights = sorted({part(head, "weights") for head in SCORED})
        x = self.x
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change)
            seen = stack.enter_context(recorded(self.model, *self.kept, *weights))
            for block in self.model.blocks[FROM:]:
                x = block(x, self.mask)
        return {**seen, "end": x}

    def gone(self, heads: list[str]):
        """Ablate heads, for a `with` block."""
        return ablate(self.model, by_layer(heads))

    def given(self, heads: list[str], run: dict, name: str = "heads"):
        """Replace a part of heads by that of another run, for a `with` block."""
        changes = {}
        for layer, numbers in by_layer(heads).items():
            where = part(layer, name)

            def change(x, numbers=numbers, new=run[where]):
                x = x.clone()
                x[:, numbers] = new[:, numbers]
                return x

            changes[where] = change
        return replaced(self.model, changes)

    def mlps(self, run: dict):
        """Replace what the MLPs after layer 17 add by that of another run."""
        where = [f"blocks.{layer}.mlp" for layer in range(17, 30)]
        return replaced(self.model, {name: run[name] for name in where})

    def asked_directly(self, run: dict):
        """Replace the queries of LATE as far as the early heads themselves write them.

        run: the whole one; then what they write there is added to the stream before
        block 23 of the run without them. Or that run; then it is taken away.
        """
        lacking = self.without["both layers"]
        x = (lacking if run is self.whole else self.whole)["blocks.22"]
        for head in EARLY["both layers"]:
            wrote = self.wrote(self.whole, head)
            x = x + wrote if run is self.whole else x - wrote
        block = self.model.blocks[23]
        q = split_heads(block.attention.query_proj(block.attention_norm(x)), 9)
        new = {part(23, "query"): self.model.position.rotate(q, q)[0]}
        return self.given(LATE, new, "query")

    def wrote(self, run: dict, head: str):
        """Return what a head adds to the stream, (8, 64, 576)."""
        layer, number = pair(head)
        weight = self.model.blocks[layer].attention.out_proj.weight
        out = weight.unflatten(1, (9, 64))[:, number]
        return run[part(head, "heads")][:, number] @ out.T

    def measured(self, seen: dict) -> dict:
        """Return what is stored of a run."""
        scores, direct = [], []
        for head in SCORED:
            found = induction(seen[part(head, "weights")], self.ids)  # (8, 9)
            scores.append(found[:, pair(head)[1]].mean())
            wrote = self.wrote(seen, head)[:, 32:-1]  # (8, 31, 576)
            direct.append((wrote * self.onto).sum(-1).mean())
        logits = self.model.head(self.model.norm(seen["end"][:, 32:-1]))
        logit = logits.gather(-1, self.right[..., None])[..., 0]  # (8, 31)
        return {
            "induction": rounded(torch.stack(scores), 3),
            "direct": rounded(torch.stack(direct), 3),
            "right": (logits.argmax(-1) == self.right).sum(1).tolist(),
            "logit": rounded((logit - logits.mean(-1)).mean().item(), 3),
        }

    def row(self, name: str, changes=(), **which) -> dict:
        """Return a row of the study."""
        return {"part": name, **which, **self.measured(self.run(*changes))}


def draws(chosen: list[str]) -> list[list[str]]:
    """Return different sets of as many other heads of the same layers, at random."""
    draw, found = random.Random(0), []
    while len(found) < DRAWS:
        drawn = []
        for layer, members in by_layer(chosen).items():
            others = [h for h in named([layer]) if h not in chosen]
            drawn += sorted(draw.sample(others, min(len(members), len(others))))
        if drawn not in found:
            found.append(drawn)
    return found


def pairs() -> list[tuple[str, str]]:
    """Return pairs of other heads of layer 23."""
    others = [h for h in named([23]) if h not in LATE]
    return sorted(random.Random(0).sample([*combinations(others, 2)], DRAWS))


def without(texts: Texts, few: bool = False):
    """Yield the rows of runs without heads: early heads, random ones, others."""
    yield texts.row("gone", gone="nothing")
    for name, heads in EARLY.items():
        yield {"part": "gone", "gone": name} | texts.measured(texts.without[name])
        for draw, drawn in enumerate(draws(heads)):
            if not few:
                change = texts.gone(drawn)
                label = f"like {name}"
                yield texts.row("gone", [change], gone=label, draw=draw, heads=drawn)
    for name in ALONE:
        if not few:
            yield texts.row("gone", [texts.gone(name.split("+"))], gone=name)


def patched(texts: Texts, name: str, few: bool = False):
    """Yield the rows of runs that are put together of two: whole, and without heads.

    put back: without the early heads; what is named is as in the whole model.
    taken: the whole model; what is named is as in the run without the early heads.
    """
    lacking, whole = texts.without[name], texts.whole

    def both(what, chosen, of="heads", **more):
        gone, which = texts.gone(EARLY[name]), {"gone": name, "what": what, **more}
        back, taken = (texts.given(chosen, run, of) for run in (whole, lacking))
        yield texts.row("put back", [gone, back], **which)
        yield texts.row("taken", [taken], **which)

    yield from both("outputs", LATE)
    for asked in ("query", "key", "value"):
        yield from both(asked, LATE, asked)
    if name != "both layers" or few:
        return
    for draw, drawn in enumerate(pairs()):
        yield from both("outputs of two others", drawn, draw=draw, heads=drawn)
    yield from both("outputs of eight that copy", COPIERS)
    for draw, drawn in enumerate(draws(COPIERS)):
        yield from both("outputs of seven others", drawn, draw=draw, heads=drawn)
    yield from both("outputs of all heads from layer 19 on", named(range(19, 30)))
    for what, replacing in (
        ("all MLPs from layer 17 on", texts.mlps),
        ("what early heads write themselves into the query", texts.asked_directly),
    ):
        gone, which = texts.gone(EARLY[name]), {"gone": name, "what": what}
        yield texts.row("put back", [gone, replacing(whole)], **which)
        yield texts.row("taken", [replacing(lacking)], **which)


@torch.no_grad()
def study() -> dict:
    """Return the study."""
    model, _ = load_smollm2()
    weights = Weights(model)
    rows = [weights.copying(head) for head in named(range(30))]
    values = weights.eigenvalues(named(range(30)))
    rows = [row | {"eigenvalues": value} for row, value in zip(rows, values)]
    rows += [weights.matching(head) for head in named(range(17, 30))]
    rows += [weights.asking(head) for head in ASKED]
    texts = Texts(model)
    rows += [*without(texts)]
    for name in EARLY:
        rows += [*patched(texts, name)]
    return {
        "torch": torch.__version__.split("+")[0],
        "model": {"sha256": SMOLLM2_SHA256},
        "scored": SCORED,
        "runs": rows,
    }


@torch.no_grad()
def again(stored: dict) -> list[dict]:
    """Repeat some heads, and some runs without early heads."""
    model, _ = load_smollm2()
    weights = Weights(model)
    rows = [weights.copying(head) for head in CHECKED]
    values = weights.eigenvalues(CHECKED)
    rows = [row | {"eigenvalues": value} for row, value in zip(rows, values)]
    rows += [weights.matching(head) for head in ("18.7", "23.2")]
    texts = Texts(model)
    return [*rows, *without(texts, True), *patched(texts, "both layers", True)]
