"""The language model of lesson 11 without each of its heads, and with noise.

Of 24 sentences such as "When Mary and John went to the store, John gave a drink to",
12 of each kind: the logit of the name that should follow, less that of the other name.
For each of the 270 heads: by how much the mean changes if the head is ablated; and how
much of it comes back if, in the same sentence with the other giver, the head gives what
it gives in this one. Then the same model with noise that is as large as the rounding
of its weights: this mean, the loss on a text, and how random tokens are copied.
"""

import gguf
import torch
import torch.nn.functional as F

from assets.studies import rounded
from utils.data import python_docs
from utils.heads import induction
from utils.masks import causal_mask
from utils.pretrained import SMOLLM2_SHA256, find_smollm2, load_smollm2, our_name
from utils.recording import ablate, record_attention, recorded, replaced

TEMPLATES = {  # the names: pairs that are told apart by who gives
    "When {} and {} went to the store, {} gave a drink to": (
        "Mary John, Anna Peter, Tom Lisa, David Sarah, Paul Emma, James Kate"
    ),
    "When {} and {} went to the park, {} threw the ball to": (
        "Mark Laura, Michael Alice, Robert Julia, George Helen, Simon Rose, Martin Jane"
    ),
}
NOISE_SEEDS = range(4)
CHECKED = ("16.0", "23.3")
KEY = ("head",)
MARGIN = {"ablated": 0.02, "patched": 0.005}


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


def heads_of(layer: int) -> str:
    """Return the name of the outputs of a layer's heads, (batch, 9, length, 64)."""
    return f"blocks.{layer}.attention.heads"


class Names:
    """The model, and what happens in it when it is given the sentences."""

    @torch.no_grad()
    def __init__(self):
        self.model, tokenizer = load_smollm2()
        self.encode = encode = tokenizer.encode
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

    def difference(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logit differences (sentences,) of what the final norm is given."""
        rows = self.model.head.weight
        direction = rows[self.answers] - rows[self.givers]
        return (self.model.norm(x[:, -1]) * direction).sum(dim=-1)

    @torch.no_grad()
    def ablated(self, layer: int, head: int) -> list[float]:
        """Return by how much the mean differences change without a head."""
        x = self.states[layer]
        with ablate(self.model, {layer: [head]}):
            for block in self.model.blocks[layer:]:
                x = block(x, self.mask)
        return means(self.difference(x) - self.whole)

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

    def row(self, layer: int, head: int) -> dict:
        """Return a row of the study."""
        found = {"head": f"{layer}.{head}"}
        for name in MARGIN:
            found[name] = rounded(getattr(self, name)(layer, head))
        return found


def means(x: torch.Tensor, digits: int = 4) -> list[float]:
    """Return the means over the sentences of each kind."""
    return rounded([part.mean() for part in x.chunk(2)], digits)


def blocks_of(tensor) -> torch.Tensor | None:
    """Return the step (rows, blocks) of each block of 32 weights; None if exact.

    In Q4_1 and Q8_0 a block begins with its step, a number of 16 bits.
    """
    size = {"Q4_1": 20, "Q8_0": 34}.get(tensor.tensor_type.name)
    if size is None:
        return None
    data = torch.tensor(tensor.data).unflatten(-1, (-1, size))[..., :2]
    return data.contiguous().view(torch.float16)[..., 0].float()


@torch.no_grad()
def add_noise(model, seed: int) -> None:
    """Add noise to the weights of a model: uniform, between -1/2 and 1/2 step."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in gguf.GGUFReader(find_smollm2()).tensors:
        steps = blocks_of(tensor)
        if steps is not None:
            weight = model.get_parameter(our_name(tensor.name))
            noise = torch.rand(weight.shape, generator=generator) - 0.5
            noise = noise.unflatten(-1, (-1, 32)) * steps.abs()[..., None]
            weight += noise.flatten(-2)


@torch.no_grad()
def scores(names: Names, seed: int | None) -> dict:
    """Return what the model does with names, a text, and random tokens."""
    model, generator = names.model, torch.Generator().manual_seed(1)
    once = torch.randint(1000, 40000, (8, 32), generator=generator)
    twice = torch.cat([once, once], dim=1)
    copied = model(twice)[:, 32:-1].argmax(dim=-1) == twice[:, 33:]
    weights = record_attention(model, twice)
    found = torch.stack([induction(w, twice).mean(0) for w in weights]).flatten()
    corpus = python_docs()
    text = names.encode(corpus.decode(corpus.validation[:400]))[:128]
    ids, rows = torch.tensor([text]), torch.arange(len(names.ids))
    logits = model(names.ids)[:, -1]
    difference = logits[rows, names.answers] - logits[rows, names.givers]
    values = {
        "copied": copied.float().mean(),
        "loss": F.cross_entropy(model(ids)[0, :-1], ids[0, 1:]),
        "difference": difference.mean(),
    }
    best = found.topk(8).indices.tolist()
    return {
        "seed": seed,
        **rounded(values, 3),
        "best": [f"{i // 9}.{i % 9}" for i in best],
        "scores": rounded(found[best], 3),
    }


def noisy(seed: int | None) -> dict:
    """Return the scores of the model with noise, or without if the seed is None."""
    names = Names()
    if seed is not None:
        add_noise(names.model, seed)
    return scores(names, seed)


def study() -> dict:
    """Return the study."""
    names = Names()
    rows = [names.row(layer, head) for layer in range(30) for head in range(9)]
    return {
        "torch": torch.__version__.split("+")[0],
        "model": {"sha256": SMOLLM2_SHA256},
        "sentences": sentences(),
        "difference": means(names.whole),
        "noise": [noisy(seed) for seed in (None, *NOISE_SEEDS)],
        "runs": rows,
    }


def again(stored: dict) -> list[dict]:
    names = Names()
    return [names.row(*map(int, head.split("."))) for head in CHECKED]
