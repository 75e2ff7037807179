"""SmolLM2 with a sliding window: what is lost, and what the first token gives back.

Each query attends to at most 128 keys: the last 128; or fewer of them and the first
token, or eight other early tokens (4 to 11). The losses are those of the
tokens after 200, of eight texts of Python's help(), 600 tokens each, which are stored
here, and of the eight stories and dialogues of `ordinary_text`, 512 tokens each. About
five minutes on one core.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from assets.studies import rounded
from assets.studies._smollm2 import about, help_texts, prose
from utils.pretrained import load_smollm2

LENGTH = {"help": 600, "prose": 512}  # tokens of each text
AFTER = 200  # the losses are of later tokens
MASKS = {  # name: (last tokens, first of the others that stay, end of these)
    "all": (600, 0, 0),
    "last 128": (128, 0, 0),
    "first and last 127": (127, 0, 1),
    "tokens 4 to 11 and last 120": (120, 4, 12),
}
KEY = ("what", "texts", "keys")
MARGIN = {"losses": 0.02}


def window(length: int, last: int, start: int, end: int) -> Tensor:
    """Return a causal mask (queries, keys): the last tokens, and some others."""
    query, key = torch.arange(length)[:, None], torch.arange(length)
    near, kept = query - key < last, (start <= key) & (key < end)
    return (key <= query) & (near | kept)


@torch.no_grad()
def loss_under(model, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the mean loss of the late tokens of ids (length,) under a mask."""
    x = model.embedding(ids[None])  # (1, length, embed_dim)
    for block in model.blocks:
        x = block(x, mask)
    logits = model.head(model.norm(x[0, AFTER - 1 : -1]))
    return F.cross_entropy(logits, ids[AFTER:])


def masked(model, texts: dict[str, Tensor], kind: str, keys: str) -> dict:
    """Return the losses of the texts of a kind under a mask."""
    mask = window(LENGTH[kind], *MASKS[keys])
    losses = torch.stack([loss_under(model, x, mask) for x in texts[kind]])
    row = {"what": "mask", "texts": kind, "keys": keys}
    return row | rounded({"losses": losses}, 3)


def ids_of(tokenizer, texts: list[str]) -> dict[str, Tensor]:
    """Return {kind: ids (texts, length)} of some help() texts, and of as much prose."""
    found = {"help": texts, "prose": [*prose().values()][: len(texts)]}
    return {
        kind: torch.tensor([tokenizer.encode(x)[: LENGTH[kind]] for x in some])
        for kind, some in found.items()
    }


def study() -> dict:
    """Return the study."""
    model, tokenizer = load_smollm2()
    texts = [*help_texts(tokenizer, LENGTH["help"]).values()]
    ids = ids_of(tokenizer, texts)
    rows = [masked(model, ids, kind, keys) for kind in LENGTH for keys in MASKS]
    return {**about(), "texts": texts, "runs": rows}


def comparable(stored: dict) -> list[dict]:
    """Return the rows with the first text of a kind only: so few are repeated."""
    return [row | {"losses": row["losses"][:1]} for row in stored["runs"]]


def again(stored: dict) -> list[dict]:
    """Repeat a mask, with the first text of each kind."""
    model, tokenizer = load_smollm2()
    ids = ids_of(tokenizer, stored["texts"][:1])
    return [masked(model, ids, kind, "last 128") for kind in LENGTH]
