"""SmolLM2 with a sliding window: what is lost, and what the first token gives back.

Each query attends to at most 128 keys: the last 128; or fewer of them and the first
token, or eight other early tokens (4 to 11). The losses are those of the
tokens after 200, of eight texts of Python's help(), 600 tokens each, which are stored
here, and of the eight stories and dialogues of `ordinary_text`, 512 tokens each.

The same texts with a rolling cache: it has room for 64 tokens, and what it keeps stands
at positions counted in the cache. The oldest token is forgotten, or the oldest but the
first. The losses are those of the 120 tokens after the first 64, and the comparison is
a cache that grows. About seven minutes on one core.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from assets.studies import rounded
from assets.studies._smollm2 import ABOUT, help_texts, prose
from utils.attention import merge_heads, split_heads
from utils.masks import causal_mask
from utils.pretrained import load_smollm2

LENGTH = {"help": 600, "prose": 512}  # tokens of each text
AFTER = 200  # the losses are of later tokens
MASKS = {  # name: (last tokens, first of the others that stay, end of these)
    "all": (600, 0, 0),
    "last 128": (128, 0, 0),
    "first and last 127": (127, 0, 1),
    "tokens 4 to 11 and last 120": (120, 4, 12),
}
ROOM, STEPS = 64, 120  # tokens in a rolling cache, and tokens with a loss
CACHES = {  # name: how many tokens at the beginning are never forgotten
    "all so far": None,  # nothing is forgotten
    "first and last 63": 1,
    "last 64": 0,
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


def next_logits(model, ids: Tensor, caches: list[dict], first: int | None) -> Tensor:
    """Return the logits after ids (texts, new); caches keep the first and the last."""
    x = model.embedding(ids)
    for block, cache in zip(model.blocks, caches):
        layer, y = block.attention, block.attention_norm(x)
        q = split_heads(layer.query_proj(y), layer.num_heads)
        new = {"key": layer.key_proj(y), "value": layer.value_proj(y)}
        for name, z in new.items():
            z = split_heads(z, layer.num_kv_heads)  # (texts, kv_heads, new, head_dim)
            z = torch.cat([cache[name], z], dim=-2) if name in cache else z
            if first is not None and z.shape[-2] > ROOM:
                z = torch.cat([z[..., :first, :], z[..., first + 1 :, :]], dim=-2)
            cache[name] = z
        q, k = layer.position.rotate(q, cache["key"])  # at their places in the cache
        mask = causal_mask(q.shape[-2], k.shape[-2])
        kv = k, cache["value"]
        heads = F.scaled_dot_product_attention(q, *kv, mask, enable_gqa=True)
        x = x + layer.out_proj(merge_heads(heads))
        x = x + block.mlp(block.mlp_norm(x))
    return model.head(model.norm(x[:, -1]))


@torch.no_grad()
def rolled(model, texts: dict[str, Tensor], kind: str, keys: str) -> dict:
    """Return the mean losses of the texts of a kind with a cache of this kind."""
    ids, caches, found = texts[kind], [{} for _ in model.blocks], []
    logits = next_logits(model, ids[:, :ROOM], caches, CACHES[keys])
    for token in ids[:, ROOM : ROOM + STEPS].T:  # (texts,)
        found.append(F.cross_entropy(logits, token, reduction="none"))
        logits = next_logits(model, token[:, None], caches, CACHES[keys])
    row = {"what": "rolling cache", "texts": kind, "keys": keys}
    return row | rounded({"losses": torch.stack(found).mean(dim=0)}, 3)


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
    rows += [rolled(model, ids, kind, keys) for kind in LENGTH for keys in CACHES]
    return {**ABOUT, "texts": texts, "runs": rows}


def comparable(stored: dict) -> list[dict]:
    """Return the rows with the first text of a kind only: so few are repeated."""
    return [row | {"losses": row["losses"][:1]} for row in stored["runs"]]


def again(stored: dict) -> list[dict]:
    """Repeat a mask and a rolling cache, with the first text of each kind."""
    model, tokenizer = load_smollm2()
    ids = ids_of(tokenizer, stored["texts"][:1])
    rows = [masked(model, ids, kind, "last 128") for kind in LENGTH]
    caches = "first and last 63", "last 64"
    return rows + [rolled(model, ids, kind, keys) for kind in LENGTH for keys in caches]
