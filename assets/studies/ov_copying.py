"""Which heads of SmolLM2 copy by their weights, and what early heads do for late ones.

copying: by the weights alone, what a head writes when it attends to a token. Each of
    400 tokens is alone in block 0; then come `attention_norm`, `value_proj`, the head's
    columns of `out_proj`, the gain of the final norm, and the head of the model. (The
    scale of the final norm is one positive number for all logits: no rank depends on
    it.) rank: the median rank of the token itself among 49,152 logits, 0 = raised most.
matching: does a head's query of a token find the key that the previous-token head 16.0
    makes of the same token? Query input: the token after block 0; key input: what 16.0
    writes when it attends to the token. Both go through the reader's own norm, and the
    query stands 31 positions after the keys. own norm: the median rank of the token's
    own key among 400; first: for how many tokens it is the first; by writer: the median
    rank with each head of layers 0 to 16 in the place of 16.0.
asking: the same, but the *query* is made of what a head of layer 17 or 18 writes when
    it attends to the token, and the key of the token after block 0.
gone: the held-out texts of lesson 11 (eight, of 32 random tokens and the same again),
    without early induction heads, or random heads of the same layers.
put back: without early heads, but what is named is that of the whole model.
taken: the whole model, but what is named is that of the run without early heads.
    induction: scores of the heads in `scored`. right: how many of 31 tokens of each
    text are predicted.

Ablated heads give zeros. Keys and values are shared by three query heads; here they are
replaced for 23.2 and 23.7 alone.
"""

import random
from contextlib import ExitStack

import torch

from assets.studies import by_layer, rounded
from assets.studies._smollm2 import about, named, random_like, twice
from utils.attention import split_heads
from utils.heads import induction
from utils.masks import causal_mask
from utils.pretrained import load_smollm2
from utils.recording import ablate, recorded, replaced

TOKENS = 400
EARLY = {
    "layer 17": ["17.3", "17.4", "17.5"],
    "layer 18": ["18.6", "18.7"],
    "both layers": ["17.3", "17.4", "17.5", "18.6", "18.7"],
}
LATE = ["23.2", "23.7"]  # induction heads that copy by their weights
COPIERS = ["23.2", "23.0", "24.5", "23.7", "23.1", "22.7", "23.5", "22.8"]
SCORED = ["18.6", "18.7", "20.6", *LATE]
READERS = ["17.3", "17.4", "17.5", "18.6", "18.7", "20.6", *LATE]
DRAWS = 8
FROM = 16  # below this block nothing is changed
CHECKED = ["0.0", "17.4", "18.6", "23.2"]
KEY = ("part", "head", "gone", "draw", "what")
MARGIN = {"rank": 20, "own norm": 2, "by writer": 2, "induction": 0.01, "right": 1}


def pair(head: str) -> tuple[int, int]:
    """Return (layer, head) of a name."""
    layer, number = head.split(".")
    return int(layer), int(number)


class Weights:
    """What can be said by the weights of the model alone."""

    def __init__(self, model):
        self.model, generator = model, torch.Generator().manual_seed(0)
        self.ids = 1000 + torch.randperm(39000, generator=generator)[:TOKENS]
        # what block 0 makes of each token if it is alone, (tokens, 576)
        visible, alone = torch.ones(1, 1, dtype=torch.bool), model.embedding(self.ids)
        self.x = model.blocks[0](alone[:, None], visible)[:, 0]

    def written(self, head: str):
        """Return what the head writes when it attends to each token, (tokens, 576)."""
        layer, number = pair(head)
        block = self.model.blocks[layer]
        # the head's rows of `value_proj`, (64, 576): three heads share them
        value = block.attention.value_proj.weight.unflatten(0, (3, 64))[number // 3]
        return block.attention_norm(self.x) @ value.T @ out_of(self.model, head).T

    def copying(self, head: str) -> dict:
        """Return a row: does the head write what it attends to?"""
        gain, rows = self.model.norm.weight, self.model.head.weight
        logits = (self.written(head) * gain) @ rows.T  # (tokens, 49152)
        ranks = (logits > logits.gather(1, self.ids[:, None])).sum(1).float()
        return {"part": "copying", "head": head, "rank": median(ranks)}

    def found(self, reader: str, query, key):
        """Return the rank (tokens,) of each token's own key among those of all."""
        layer, number = pair(reader)
        block, rotate = self.model.blocks[layer], self.model.position.rotate
        query, key = block.attention_norm(query), block.attention_norm(key)
        q = block.attention.query_proj(query).unflatten(-1, (9, 64))[:, number]
        k = block.attention.key_proj(key).unflatten(-1, (3, 64))[:, number // 3]
        # all keys stand at position 0, all queries 31 positions later
        q, k = q[:, None, None], k[:, None, None]
        q, k = rotate(q, q, 31)[0][:, 0, 0], rotate(k, k)[0][:, 0, 0]
        scores = q @ k.T  # (queries, keys)
        return (scores > scores.diagonal()[:, None]).sum(1).float()

    def matching(self, head: str) -> dict:
        """Return a row: does the head find a token by what 16.0 wrote of it?"""
        own = self.found(head, self.x, self.written("16.0"))
        row = {"part": "matching", "head": head, "own norm": median(own)}
        row["first"] = rounded((own == 0).float().mean(), 3)
        if head in READERS:
            keys = (self.written(writer) for writer in named(range(17)))
            row["by writer"] = [median(self.found(head, self.x, key)) for key in keys]
        return row

    def asking(self, head: str) -> dict:
        """Return a row: does the head find a token if an early head asks for it?

        by writer: of the heads of layers 17 and 18.
        """
        queries = (self.written(writer) for writer in named((17, 18)))
        ranks = [median(self.found(head, query, self.x)) for query in queries]
        own = median(self.found(head, self.x, self.x))
        return {"part": "asking", "head": head, "of itself": own, "by writer": ranks}


def out_of(model, head: str):
    """Return the head's columns of `out_proj`, (576, 64)."""
    layer, number = pair(head)
    weight = model.blocks[layer].attention.out_proj.weight
    return weight.unflatten(1, (9, 64))[:, number]


def median(x) -> int:
    """Return the median as a whole number."""
    return round(x.median().item())


def part(head_or_layer, name: str) -> str:
    """Return the recorder's name of a part of the attention of a layer."""
    return f"blocks.{str(head_or_layer).split('.')[0]}.attention.{name}"


class Texts:
    """The model on texts of random tokens that are repeated."""

    def __init__(self, model):
        self.model, self.ids = model, twice(16, seed=0)[8:]  # (8, 64)
        self.right, self.mask = self.ids[:, 33:], causal_mask(64, 64)
        self.x = model.embedding(self.ids)
        for block in model.blocks[:FROM]:
            self.x = block(self.x, self.mask)
        heads = [part(layer, "heads") for layer in range(FROM, 30)]
        asked = [part(23, name) for name in ("query", "key", "value")]
        mlps = [f"blocks.{layer}.mlp" for layer in range(FROM, 30)]
        self.kept = [*heads, *asked, *mlps, "blocks.22"]
        self.whole = self.run()
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
        of_head = run[part(head, "heads")][:, pair(head)[1]]
        return of_head @ out_of(self.model, head).T

    def measured(self, seen: dict) -> dict:
        """Return what is stored of a run."""
        scores = []
        for head in SCORED:
            found = induction(seen[part(head, "weights")], self.ids)  # (8, 9)
            scores.append(found[:, pair(head)[1]].mean())
        logits = self.model.head(self.model.norm(seen["end"][:, 32:-1]))
        return {
            "induction": rounded(torch.stack(scores), 3),
            "right": (logits.argmax(-1) == self.right).sum(1).tolist(),
        }

    def row(self, name: str, changes=(), **which) -> dict:
        """Return a row of the study."""
        return {"part": name, **which, **self.measured(self.run(*changes))}


def draws(chosen: list[str]) -> list[list[str]]:
    """Return different sets of as many other heads of the same layers, at random."""
    draw, found = random.Random(0), []
    while len(found) < DRAWS:
        drawn = random_like(chosen, draw)
        if drawn not in found:
            found.append(drawn)
    return found


def gone(texts: Texts, random_too: bool = True):
    """Yield the rows of runs without heads: none, early heads, random ones."""
    yield texts.row("gone", gone="nothing")
    for name, heads in EARLY.items():
        yield {"part": "gone", "gone": name} | texts.measured(texts.without[name])
        for draw, drawn in enumerate(draws(heads) if random_too else ()):
            which = {"gone": f"like {name}", "draw": draw, "heads": drawn}
            yield texts.row("gone", [ablate(texts.model, by_layer(drawn))], **which)


def patched(texts: Texts, few: bool = False):
    """Yield the rows of runs that are put together of two: whole, and without heads.

    put back: without the early heads; what is named is as in the whole model.
    taken: the whole model; what is named is as in the run without the early heads.
    """
    name = "both layers"
    lacking, whole = texts.without[name], texts.whole

    def both(what, replacing, **more):
        early = ablate(texts.model, by_layer(EARLY[name]))
        which = {"gone": name, "what": what, **more}
        yield texts.row("put back", [early, replacing(whole)], **which)
        yield texts.row("taken", [replacing(lacking)], **which)

    def of(heads, what="heads"):
        return lambda run: texts.given(heads, run, what)

    for asked in ("query", "key", "value"):
        yield from both(asked, of(LATE, asked))
    if few:
        return
    yield from both("outputs of eight that copy", of(COPIERS))
    for draw, drawn in enumerate(draws(COPIERS)):
        yield from both("outputs of seven others", of(drawn), draw=draw, heads=drawn)
    all_late = of(named(range(19, 30)))
    yield from both("outputs of all heads from layer 19 on", all_late)
    yield from both("all MLPs from layer 17 on", texts.mlps)
    asked = "what early heads write themselves into the query"
    yield from both(asked, texts.asked_directly)


@torch.no_grad()
def study() -> dict:
    """Return the study."""
    model, _ = load_smollm2()
    weights, texts = Weights(model), Texts(model)
    rows = [weights.copying(head) for head in named(range(30))]
    rows += [weights.matching(head) for head in named(range(17, 30))]
    rows += [weights.asking(LATE[0]), *gone(texts), *patched(texts)]
    return {**about(), "scored": SCORED, "runs": rows}


@torch.no_grad()
def again(stored: dict) -> list[dict]:
    """Repeat some heads, and some runs without early heads."""
    model, _ = load_smollm2()
    weights, texts = Weights(model), Texts(model)
    rows = [weights.copying(head) for head in CHECKED]
    rows += [weights.matching("18.7"), weights.asking(LATE[0])]
    return [*rows, *gone(texts, random_too=False), *patched(texts, few=True)]
