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
from assets.studies._heads import giving, named, place
from assets.studies._smollm2 import ABOUT, twice
from utils.heads import induction
from utils.pretrained import load_smollm2
from utils.recording import ablate, by_layer, recorded

TOKENS = 400
EARLY = ["17.3", "17.4", "17.5", "18.6", "18.7"]
LATE = ["23.2", "23.7"]  # induction heads that copy by their weights
CHECKED = ["0.0", "17.4", "18.6", "23.2"]
KEY = ("part", "head", "gone", "what")
MARGIN = {"rank": 20, "own norm": 2, "by writer": 2, "induction": 0.01}


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
        layer, number = place(head)
        block = self.model.blocks[layer]
        # the head's rows of `value_proj`, (64, 576): three heads share them
        value = block.attention.value_proj.weight.unflatten(0, (3, 64))[number // 3]
        out = block.attention.out_proj.weight.unflatten(1, (9, 64))[:, number]
        return block.attention_norm(self.x) @ value.T @ out.T

    def copying(self, head: str) -> dict:
        """Return a row: does the head write what it attends to?"""
        gain, rows = self.model.norm.weight, self.model.head.weight
        logits = (self.written(head) * gain) @ rows.T  # (tokens, 49152)
        ranks = (logits > logits.gather(1, self.ids[:, None])).sum(1).float()
        return {"part": "copying", "head": head, "rank": median(ranks)}

    def found(self, reader: str, query, key):
        """Return the rank (tokens,) of each token's own key among those of all."""
        layer, number = place(reader)
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


def median(x) -> int:
    """Return the median as a whole number."""
    return round(x.median().item())


def on_texts(model) -> list[dict]:
    """Return the rows of random tokens that are repeated.

    With the early heads, without them, and with parts of the late heads put back.
    """
    ids = twice(16, seed=0)[8:]  # (8, 64)
    parts, numbers = ("query", "key", "value", "weights"), by_layer(LATE)[23]
    names = {part: f"blocks.23.attention.{part}" for part in parts}

    def run(*changes) -> tuple[dict, dict]:
        """Return what is seen of layer 23 in a run with changes, and the scores."""
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change)
            seen = stack.enter_context(recorded(model, *names.values()))
            model(ids)
        scores = induction(seen[names["weights"]], ids).mean(0)[numbers]
        return seen, {"induction": rounded(scores, 3)}

    def gone():
        return ablate(model, by_layer(EARLY))

    whole, with_all = run()
    without = {"gone": "both layers"}
    rows = [
        {"part": "gone", "gone": "nothing"} | with_all,
        {"part": "gone"} | without | run(gone())[1],
    ]
    for part in parts[:3]:
        x, heads = whole[names[part]], zip(LATE, numbers)  # x: (texts, 9, 64, 64)
        back = [giving(model, name, x[:, i], part=part) for name, i in heads]
        row = {"part": "put back"} | without | {"what": part}
        rows.append(row | run(gone(), *back)[1])
    return rows


@torch.no_grad()
def rows_of(copying: list[str], matching: list[str]) -> list[dict]:
    """Return the rows of some heads by their weights, and all of runs on texts."""
    model, _ = load_smollm2()
    weights = Weights(model)
    rows = [weights.copying(head) for head in copying]
    rows += [weights.matching(head) for head in matching]
    return [*rows, weights.asking(LATE[0]), *on_texts(model)]


def study() -> dict:
    """Return the study."""
    rows = rows_of(named(range(30)), named(range(17, 30)))
    return {**ABOUT, "scored": LATE, "runs": rows}


def again(stored: dict) -> list[dict]:
    """Repeat some heads, and all runs on texts."""
    return rows_of(CHECKED, ["18.7"])
