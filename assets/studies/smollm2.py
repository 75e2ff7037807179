"""The language model of lesson 11 without each of its heads.

Of 24 sentences such as "When Mary and John went to the store, John gave a drink to",
12 of each kind: the logit of the name that should follow, less that of the other name.
For each of the 270 heads: by how much the mean changes if the head is ablated, with
zeros or with its mean output over eight stories and dialogues; and how much of it comes
back if, in the same sentence with the other giver, the head gives what it gives in this
one.
"""

import torch
from torch import nn

from assets.studies import rounded
from assets.studies._heads import giving, named, place
from assets.studies._smollm2 import ABOUT, prose
from utils.pretrained import load_smollm2
from utils.recording import recorded

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
        self.ids = torch.tensor([encode(text) for text in texts])  # (24, 14)
        self.partner = torch.arange(len(texts)) ^ 1  # the same with the other giver
        answers, givers = ([encode(f" {n}")[0] for n in x] for x in (answers, givers))
        rows = self.model.head.weight
        self.direction = rows[answers] - rows[givers]  # (24, 576)
        self.model.head = nn.Identity()  # no other logits are needed
        with recorded(self.model, "blocks.*.attention.heads") as seen:
            self.whole = self.differences(self.ids)
        self.outputs = [*seen.values()]  # (24, 9, 14, 64) each
        texts = torch.tensor([encode(text)[:128] for text in prose().values()])
        with recorded(self.model, "blocks.*.attention.heads") as seen:
            self.model(texts)
        self.means = [x.mean(dim=(0, 2)) for x in seen.values()]  # (9, 64) each

    @torch.no_grad()
    def differences(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logit differences (24,) after ids: of the sentences' own names."""
        return (self.model(ids)[:, -1] * self.direction).sum(dim=-1)

    def changes(self) -> torch.Tensor:
        """Return by how much they change where something is replaced in the model."""
        return self.differences(self.ids) - self.whole

    def patched(self, name: str) -> list[float]:
        """Return how much comes back, of the runs with the other giver, by a head."""
        layer, head = place(name)
        with giving(self.model, name, self.outputs[layer][:, head]):
            found = self.differences(self.ids[self.partner])
        other = -self.whole[self.partner]  # of the same names, in the other run
        back, lost = found - other, self.whole - other
        return [b / n for b, n in zip(means(back, 9), means(lost, 9))]

    def row(self, name: str) -> dict:
        """Return a row of the study."""
        layer, head = place(name)
        found = {"head": name}
        for kind, values in ("ablated", 0.0), ("averaged", self.means[layer][head]):
            with giving(self.model, name, values):
                found[kind] = means(self.changes())
        return rounded(found | {"patched": self.patched(name)})


def means(x: torch.Tensor, digits: int = 4) -> list[float]:
    """Return the means over the sentences of each kind."""
    return rounded([part.mean() for part in x.chunk(2)], digits)


def study() -> dict:
    """Return the study."""
    names = Names()
    return {
        **ABOUT,
        "sentences": sentences(),
        "difference": means(names.whole),
        "runs": [names.row(head) for head in named(range(30))],
    }


def again(stored: dict) -> list[dict]:
    names = Names()
    return [names.row(head) for head in CHECKED]
