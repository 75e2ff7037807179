"""What the studies of SmolLM2 share: their texts, and sets of heads."""

import random
import re
from pydoc_data.topics import topics

import torch

from assets.studies import FOLDER
from assets.studies._heads import named
from utils.pretrained import SMOLLM2_SHA256
from utils.recording import by_layer

INDUCTION = "18.6 17.4 17.3 17.5 18.7 23.2 23.7 20.6".split()  # of lesson 11's core
TOPICS = 8  # texts of Python's help()
ABOUT = {"model": {"sha256": SMOLLM2_SHA256}}  # what a study says of the model


def help_texts(tokenizer, length: int, start: int = 0) -> dict[str, str]:
    """Return {topic: `length` tokens from `start` on}, of topics chosen by their order.

    Their topics are longer. Another Python has other texts, so studies store them.
    """
    encoded = {name: tokenizer.encode(text) for name, text in sorted(topics.items())}
    long = [name for name, ids in encoded.items() if len(ids) > start + length]
    chosen = long[:: len(long) // TOPICS][:TOPICS]
    return {n: tokenizer.decode(encoded[n][start : start + length]) for n in chosen}


def prose() -> dict[str, str]:
    """Return {title: text} of the stories and dialogues written for the course."""
    page = (FOLDER.parent / "ordinary_text.txt").read_text(encoding="utf-8")
    parts = re.split(r"^= (.+)\n", page, flags=re.M)[1:]
    return dict(zip(parts[::2], map(str.strip, parts[1::2])))


def random_like(heads: list[str], draw: random.Random) -> list[str]:
    """Return as many other heads of the same layers, drawn at random."""
    found = []
    for layer, members in by_layer(heads).items():
        others = [name for name in named([layer]) if name not in heads]
        found += sorted(draw.sample(others, min(len(members), len(others))))
    return found


def twice(texts: int, seed: int) -> torch.Tensor:
    """Return (texts, 64): 32 random tokens, then the same again."""
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(1000, 40000, (texts, 32), generator=generator)
    return torch.cat([once, once], dim=1)
