"""Does attention rollout say which tokens matter? A trained and 16 untrained encoders.

For each encoder and sentence the tokens are ranked by attention rollout, by the plain
mean of all attention weights, and by the encoder's *own* ablation: hide one token from
all attention, how much do the other outputs change? Stored are the rank correlations
with the ablation, means over 51 sentences. The encoders: MiniLM, eight copies with new
random weights, and these copies with the entropies of MiniLM's heads. About six minutes
on one core.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from assets.studies import FOLDER, rounded, told
from assets.studies._untrained import sharp_copies
from utils.baselines import untrained_copy
from utils.pretrained import load_minilm
from utils.recording import record_attention
from utils.syntax import read_conllu

SEEDS = range(8)
KINDS = ("untrained", "entropy-matched")
KEY = ("encoder", "seed")
MARGIN = dict.fromkeys(
    ("rollout", "mean", "rollout, words alone", "mean, words alone"), 0.05
)


def sentences() -> list[str]:
    """Return every fourth of the annotated sentences."""
    found = read_conllu(FOLDER.parent / "annotated_sentences.conllu")
    return [sentence.text for sentence in found[::4]]


def rollout(layers: list[Tensor]) -> Tensor:
    """Return the part of each input token in each output token: (queries, keys)."""
    total = torch.eye(layers[0].shape[-1])
    for weights in layers:  # (1, heads, queries, keys)
        mixed = (weights[0].mean(dim=0) + torch.eye(len(total))) / 2
        total = mixed @ total
    return total


def plain_mean(layers: list[Tensor]) -> Tensor:
    """Return the mean of all weights over heads and layers: (queries, keys)."""
    return torch.cat(layers).mean(dim=(0, 1))


def given(matrix: Tensor) -> Tensor:
    """Return what each key gives to the other queries, on average: (keys,)."""
    others = 1 - torch.eye(len(matrix))
    return (matrix * others).sum(dim=0) / others.sum(dim=0)


def words_alone(layers: list[Tensor]) -> list[Tensor]:
    """Return the weights without [CLS] and [SEP]; each row sums to 1 again."""
    inner = [weights[..., 1:-1, 1:-1] for weights in layers]
    return [each / each.sum(dim=-1, keepdim=True) for each in inner]


def ablation(encoder: nn.Module, ids: Tensor) -> Tensor:
    """Return how much the other outputs change if a token is hidden: (tokens,)."""
    n = ids.shape[1]
    visible = (~torch.eye(n, dtype=torch.bool))[:, None, None]  # text k hides token k
    before, after = encoder(ids), encoder(ids.expand(n, -1), visible)
    change = (after - before).norm(dim=-1) / before.norm(dim=-1)  # (hidden, outputs)
    return given(change.T)


def agreement(values: Tensor, others: Tensor) -> float:
    """Return the rank correlation of two lists of numbers, of the words alone."""
    both = torch.stack([x.argsort().argsort().double() for x in (values, others)])
    return torch.corrcoef(both)[0, 1].item()


def agreements(encoder: nn.Module, tokenizer, texts: list[str]) -> dict:
    """Return {way to rank the words: its mean agreement with the ablation}."""
    found: dict = {name: [] for name in MARGIN}
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        layers, effect = record_attention(encoder, ids), ablation(encoder, ids)[1:-1]
        inner = words_alone(layers)
        ways = {
            "rollout": given(rollout(layers))[1:-1],
            "mean": given(plain_mean(layers))[1:-1],
            "rollout, words alone": given(rollout(inner)),
            "mean, words alone": given(plain_mean(inner)),
        }
        for name, values in ways.items():
            found[name].append(agreement(values, effect))
    return rounded({name: sum(each) / len(each) for name, each in found.items()})


def trained() -> dict:
    """Return the run of MiniLM itself."""
    minilm = load_minilm()
    encoder = minilm.model.requires_grad_(False)
    found = agreements(encoder, minilm.tokenizer, sentences())
    return {"encoder": "trained", "seed": None} | found


def untrained() -> Iterator[dict]:
    """Yield the runs of the copies of MiniLM."""
    minilm, texts = load_minilm(), sentences()
    encoder = minilm.model.requires_grad_(False)
    batch = minilm.tokenizer(texts, return_tensors="pt", padding=True)
    is_token = batch.attention_mask.bool()
    mask = is_token[:, None, None]
    inputs, which = (batch.input_ids, mask), {"mask": mask, "queries": is_token}
    copies = sharp_copies(encoder, inputs, SEEDS, **which)
    for seed, matched in zip(SEEDS, copies):
        for kind, copy in zip(KINDS, (untrained_copy(encoder, seed), matched)):
            found = agreements(copy, minilm.tokenizer, texts)
            yield {"encoder": kind, "seed": seed} | found


def study() -> dict:
    """Run everything; return what is stored."""
    return {"sentences": len(sentences()), "runs": [trained(), *told(untrained())]}


def again(stored: dict) -> list[dict]:
    """Repeat the run of the trained encoder."""
    return [trained()]
