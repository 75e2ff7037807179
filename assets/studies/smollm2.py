"""The language model of lesson 11 without each of its heads.

Of 24 sentences such as "When Mary and John went to the store, John gave a drink to",
12 of each kind: the logit of the name that should follow, less that of the other name.
For each of the 270 heads: by how much the mean changes if the head is ablated, with
zeros or with its mean output over eight stories and dialogues; and how much of it comes
back if, in the same sentence with the other giver, the head gives what it gives in this
one.
"""

import torch

from assets.studies import rounded
from assets.studies._smollm2 import about, heads_of, named, prose
from utils.masks import causal_mask
from utils.pretrained import load_smollm2
from utils.recording import ablate, recorded, replaced

TEMPLATES = {  # the names: pairs that are told apart by who gives
    "When {} and {} went to the store, {} gave a drink to": (
        "Mary John, Anna Peter, Tom Lisa, David Sarah, Paul Emma, James Kate"
    ),
    "When {} and {} went to the park, {} threw the ball to": (
        "Mark Laura, Michael Alice, Robert Julia, George Helen, Simon Rose, Martin Jane"
    ),
}
CHECKED = ("16.0", "23.3")
KEY = ("head",)
MARGIN = {"ablated": 0.02, "averaged": 0.02, "patched": 0.005}


def sentences() -> list[tuple[str, str, str]]:
    """Return (sentence, the name that should follow, the giver) of all 24."""
    found = []
    for template, pairs in TEMPLATES.items():
        for pair in pairs.split(", "):
            first, second = pair.split()
            for giver, other in ((second, first), (first, second)):
                text = template.format(first, second, giver)
                found.append((text, other, giver))
    return found


class Names:
    """The model, and what happens in it when it is given the sentences."""

    @torch.no_grad()
    def __init__(self):
        self.model, self.tokenizer = load_smollm2()
        encode = self.tokenizer.encode
        texts, answers, givers = zip(*sentences())
        self.ids = torch.tensor([encode(text) for text in texts])
        ids = [torch.tensor([encode(f" {n}")[0] for n in x]) for x in (answers, givers)]
        self.answers, self.givers = ids
        self.partner = torch.arange(len(texts)) ^ 1  # the same with the other giver
        self.first = int((self.ids[0] != self.ids[1]).nonzero()[0])  # where they part
        self.mask = causal_mask(self.ids.shape[1], self.ids.shape[1])
        kept = "dropout", "blocks.*", "blocks.*.attention.heads"
        with recorded(self.model, *kept) as seen:
            self.model(self.ids)
        # what each block is given, and the final norm, (24, 14, 576)
        self.states = [seen["dropout"], *(seen[f"blocks.{i}"] for i in range(30))]
        self.outputs = [seen[heads_of(i)] for i in range(30)]  # (24, 9, 14, 64)
        self.cache = {}
        self.model(self.ids[:, : self.first], cache=self.cache)
        self.whole = self.difference(self.states[-1])
        texts = torch.tensor([encode(text)[:128] for text in prose().values()])
        with recorded(self.model, "blocks.*.attention.heads") as seen:
            self.model(texts)
        self.means = [x.mean(dim=(0, 2)) for x in seen.values()]  # (9, 64) each

    def difference(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logit differences (sentences,) of what the final norm is given."""
        rows = self.model.head.weight
        direction = rows[self.answers] - rows[self.givers]
        return (self.model.norm(x[:, -1]) * direction).sum(dim=-1)

    @torch.no_grad()
    def change(self, layer: int) -> torch.Tensor:
        """Return by how much the differences change if the model runs from a layer on.

        Called where something is replaced in this layer.
        """
        x = self.states[layer]
        for block in self.model.blocks[layer:]:
            x = block(x, self.mask)
        return self.difference(x) - self.whole

    def ablated(self, layer: int, head: int) -> list[float]:
        """Return by how much the mean differences change without a head."""
        with ablate(self.model, {layer: [head]}):
            return means(self.change(layer))

    def averaged(self, layer: int, head: int) -> list[float]:
        """Return by how much they change with the head's mean in its place."""

        def mean(x):  # (24, 9, 14, 64)
            x = x.clone()
            x[:, head] = self.means[layer][head]
            return x

        with replaced(self.model, {heads_of(layer): mean}):
            return means(self.change(layer))

    @torch.no_grad()
    def patched(self, layer: int, head: int) -> list[float]:
        """Return how much comes back, of the runs with the other giver, by a head.

        Before the giver both runs are equal: what follows is computed anew.
        """

        def change(x):  # (24, 9, positions from the giver on, 64)
            x = x.clone()
            x[:, head] = self.outputs[layer][:, head, self.first :]
            return x

        x = self.states[layer][self.partner, self.first :]
        with replaced(self.model, {heads_of(layer): change}):
            for i in range(layer, 30):
                mask = self.mask[self.first :]
                x = self.model.blocks[i](x, mask, cache=dict(self.cache[i]))
        other = -self.whole[self.partner]  # of the same names, in the other run
        back, lost = self.difference(x) - other, self.whole - other
        return [b / n for b, n in zip(means(back, 9), means(lost, 9))]

    def row(self, name: str) -> dict:
        """Return a row of the study."""
        head = tuple(map(int, name.split(".")))
        found = {"ablated": self.ablated(*head), "averaged": self.averaged(*head)}
        found["patched"] = self.patched(*head)
        return {"head": name} | rounded(found)


def means(x: torch.Tensor, digits: int = 4) -> list[float]:
    """Return the means over the sentences of each kind."""
    return rounded([part.mean() for part in x.chunk(2)], digits)


def study() -> dict:
    """Return the study."""
    names = Names()
    return {
        **about(),
        "sentences": sentences(),
        "difference": means(names.whole),
        "runs": [names.row(head) for head in named(range(30))],
    }


def again(stored: dict) -> list[dict]:
    names = Names()
    return [names.row(head) for head in CHECKED]
