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
    with all heads, and without the early induction heads.
put back: without these, but the queries, keys or values of the late heads are those of
    the whole model. induction: scores of the late heads, `scored`.

Ablated heads give zeros. Keys and values are shared by three query heads; here they are
replaced for 23.2 and 23.7 alone.
"""

from contextlib import ExitStack

import torch

from assets.studies import rounded
from assets.studies._smollm2 import about, named, twice
from utils.heads import induction
from utils.masks import causal_mask
from utils.pretrained import load_smollm2
from utils.recording import ablate, by_layer, recorded, replaced

TOKENS = 400
EARLY = ["17.3", "17.4", "17.5", "18.6", "18.7"]
LATE = ["23.2", "23.7"]  # induction heads that copy by their weights
FROM = 16  # below this block nothing is changed
CHECKED = ["0.0", "17.4", "18.6", "23.2"]
KEY = ("part", "head", "gone", "what")
MARGIN = {"rank": 20, "own norm": 2, "by writer": 2, "induction": 0.01}


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
        if head in EARLY:
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


def late(name: str) -> str:
    """Return the recorder's name of a part of the attention of the late heads."""
    return f"blocks.23.attention.{name}"


class Texts:
    """The model on texts of random tokens that are repeated."""

    def __init__(self, model):
        self.model, self.ids = model, twice(16, seed=0)[8:]  # (8, 64)
        self.mask, self.x = causal_mask(64, 64), model.embedding(self.ids)
        for block in model.blocks[:FROM]:
            self.x = block(self.x, self.mask)
        self.kept = [late(name) for name in ("query", "key", "value", "weights")]
        self.whole = self.run()

    def run(self, *changes) -> dict:
        """Return what is seen of the late heads' layer in a run with changes."""
        x = self.x
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change)
            seen = stack.enter_context(recorded(self.model, *self.kept))
            for block in self.model.blocks[FROM:24]:
                x = block(x, self.mask)
        return seen

    def given(self, name: str):
        """Replace the late heads' queries, keys or values by those of the whole run."""
        where, numbers = late(name), by_layer(LATE)[23]

        def change(x):
            x = x.clone()
            x[:, numbers] = self.whole[where][:, numbers]
            return x

        return replaced(self.model, {where: change})

    def row(self, name: str, *changes, **which) -> dict:
        """Return a row of the study."""
        found = induction(self.run(*changes)[late("weights")], self.ids).mean(0)
        scores = [found[pair(head)[1]] for head in LATE]
        return {"part": name, **which, "induction": rounded(torch.stack(scores), 3)}

    def rows(self) -> list[dict]:
        """Return the rows: with the early heads, without, and with parts put back."""

        def gone():
            return ablate(self.model, by_layer(EARLY))

        without = {"gone": "both layers"}
        return [
            self.row("gone", gone="nothing"),
            self.row("gone", gone(), **without),
            *(
                self.row("put back", gone(), self.given(name), **without, what=name)
                for name in ("query", "key", "value")
            ),
        ]


@torch.no_grad()
def study() -> dict:
    """Return the study."""
    model, _ = load_smollm2()
    weights, texts = Weights(model), Texts(model)
    rows = [weights.copying(head) for head in named(range(30))]
    rows += [weights.matching(head) for head in named(range(17, 30))]
    rows += [weights.asking(LATE[0]), *texts.rows()]
    return {**about(), "scored": LATE, "runs": rows}


@torch.no_grad()
def again(stored: dict) -> list[dict]:
    """Repeat some heads, and all runs on texts."""
    model, _ = load_smollm2()
    weights, texts = Weights(model), Texts(model)
    rows = [weights.copying(head) for head in CHECKED]
    return [*rows, weights.matching("18.7"), weights.asking(LATE[0]), *texts.rows()]
