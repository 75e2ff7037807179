"""SmolLM2 with a sliding window: what is lost, and what the first token gives back.

Masks: each query attends to at most 128 keys: the last 128; or fewer of them and the
first token, the first four, or as many others (tokens 4 to 11). The losses are those of
the tokens after 200, of eight texts of Python's help(), 600 tokens each, which are
stored here, and of the eight stories and dialogues of `ordinary_text`, 512 tokens each.

The *rolling cache* (Xiao et al. 2024, section 3.2) keeps 128 keys and values: of the
first token and the last 127. Keys are kept as they are before rotation, and rotated by
their place in the cache. Its losses are of the same texts. (Without the first token it
has the losses of the mask "last 128": rotary attention depends on distances alone.)

Then four texts are written, which go on from one beginning: with that cache, with one
that keeps the last 128, and with one that keeps all. The model with all tokens in view
tells how surprising the text is that was written. About 20 minutes on one core.
"""

from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor

from assets.studies import rounded, runs_of
from assets.studies.ordinary_text import prose
from assets.studies.smollm2_controls import STORY
from utils.attention import merge_heads, split_heads
from utils.pretrained import SMOLLM2_SHA256, load_smollm2

TOPICS = 8
LENGTH = {"help": 600, "prose": 512}  # tokens of each text
AFTER, BIN = 200, 40  # the losses are of later tokens; "by place": means of 40 tokens
SIZE = 128  # keys that a query attends to
MASKS = {  # name: (last tokens, first of the others that stay, end of these)
    "all": (600, 0, 0),
    "last 128": (128, 0, 0),
    "first and last 127": (127, 0, 1),
    "first four and last 124": (124, 0, 4),
    "tokens 4 to 11 and last 120": (120, 4, 12),
}
ROLLING = "first and last 127"
WRITERS = {"last 128": 0, "all": None, "first and last 127": 1}  # first tokens kept
STEPS = {"last 128": 2000, "all": 500, "first and last 127": 2000}  # tokens written
PIECE, TEXTS = 250, 4
TEMPERATURE, SPECIAL = 0.7, 17  # the ids of special tokens come first
KEY = ("what", "texts", "keys")
MARGIN = {"losses": 0.02, "cache bytes": 1}


# --- masks ---


def window(length: int, last: int, start: int, end: int) -> Tensor:
    """Return a causal mask (queries, keys): the last tokens, and some others."""
    query, key = torch.arange(length)[:, None], torch.arange(length)
    near, kept = query - key < last, (start <= key) & (key < end)
    return (key <= query) & (near | kept)


def with_mask(model, ids: Tensor, mask: Tensor) -> Tensor:
    """Return logits (batch, length, vocab_size) of a language model under a mask."""
    x = model.embedding(ids)  # (batch, length, embed_dim)
    for block in model.blocks:
        x = block(x, mask)  # (batch, length, embed_dim)
    return model.head(model.norm(x))


# --- the rolling cache ---


def without(place: int, x: Tensor) -> Tensor:
    """Return x (..., length, head_dim) without the token at this place."""
    return torch.cat([x[..., :place, :], x[..., place + 1 :, :]], dim=-2)


def rolling_step(
    model, ids: Tensor, cache: dict, first: int, size: int | None
) -> Tensor:
    """Return logits (batch, vocab_size) after one more token, ids (batch, 1).

    cache: {layer: (keys, values)}, empty at first; it keeps the `first` tokens of the
        text and the last ones, at most `size` (None: all). Keys are kept unrotated.
    """
    x = model.embedding(ids)  # (batch, 1, embed_dim)
    for layer, block in enumerate(model.blocks):
        attention = block.attention
        y = block.attention_norm(x)
        q = split_heads(attention.query_proj(y), attention.num_heads)
        new = attention.key_proj(y), attention.value_proj(y)
        kept = [split_heads(part, attention.num_kv_heads) for part in new]
        if layer in cache:
            kept = [torch.cat(pair, dim=-2) for pair in zip(cache[layer], kept)]
        if size is not None and kept[0].shape[-2] > size:  # one token leaves
            kept = [without(first, part) for part in kept]
        cache[layer] = kept  # each (batch, kv_heads, at most size, head_dim)
        k, v = kept
        q, k = attention.position.rotate(q, k)  # places in the cache: 0, 1, 2, ...
        heads = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + attention.out_proj(merge_heads(heads))  # (batch, 1, embed_dim)
        x = x + block.mlp(block.mlp_norm(x))
    return model.head(model.norm(x))[:, -1]


def bytes_of(cache: dict) -> int:
    """Return the bytes of all keys and values of one text."""
    return sum(x[0].nbytes for kept in cache.values() for x in kept)


def rolling_losses(model, ids: Tensor, first: int) -> tuple[Tensor, int]:
    """Return the loss of each next token, by a rolling cache; and the cache's bytes."""
    cache, found = {}, []
    for at in range(ids.shape[1] - 1):
        logits = rolling_step(model, ids[:, at : at + 1], cache, first, SIZE)
        found.append(F.cross_entropy(logits, ids[:, at + 1], reduction="none"))
    return torch.stack(found, dim=1), bytes_of(cache)


def write(
    model, ids: Tensor, steps: int, first: int | None
) -> tuple[Tensor, list[int]]:
    """Return ids (batch, length + steps), and the bytes of the cache along the way.

    first: first tokens that a rolling cache keeps; None: the cache keeps all tokens. No
    text ends: special tokens are never drawn. bytes: at the end of each piece.
    """
    size = None if first is None else SIZE
    cache, sizes = {}, []
    for new in ids.split(1, dim=1):
        logits = rolling_step(model, new, cache, first, size)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, steps + 1):
        logits[:, :SPECIAL] = -torch.inf
        p = (logits / TEMPERATURE).softmax(dim=-1)
        new = torch.multinomial(p, 1, generator=generator)  # (batch, 1)
        ids = torch.cat([ids, new], dim=1)
        logits = rolling_step(model, new, cache, first, size)
        if step % PIECE == 0:
            sizes.append(bytes_of(cache))
    return ids, sizes


# --- the study ---


def help_texts(tokenizer) -> list[str]:
    """Return the beginnings of long topics, chosen by their order."""
    encoded = [tokenizer.encode(text) for _, text in sorted(topics.items())]
    long = [ids for ids in encoded if len(ids) > LENGTH["help"]]
    chosen = long[:: len(long) // TOPICS][:TOPICS]
    return [tokenizer.decode(ids[: LENGTH["help"]]) for ids in chosen]


def losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the loss of each next token (batch, length - 1)."""
    return F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")


def summary(each: Tensor) -> dict:
    """Return what is stored of the losses of some texts (texts, length - 1)."""
    late = each[:, AFTER - 1 :].mean(dim=1)
    places = torch.stack([x.mean() for x in each.split(BIN, dim=1)])
    return rounded({"losses": late, "by place": places}, 3)


def masked(model, texts: dict[str, Tensor], kind: str, keys: str) -> dict:
    """Return the losses of the texts of a kind under a mask."""
    mask = window(LENGTH[kind], *MASKS[keys])
    each = [losses(with_mask(model, x[None], mask), x[None]) for x in texts[kind]]
    row = {"what": "mask", "texts": kind, "keys": keys}
    return row | summary(torch.cat(each))


def rolled(model, texts: dict[str, Tensor], kind: str) -> dict:
    """Return the losses of the texts of a kind by a rolling cache, and its bytes."""
    each, size = rolling_losses(model, texts[kind], WRITERS[ROLLING])
    row = {"what": "rolling cache", "texts": kind, "keys": ROLLING}
    return row | summary(each) | {"cache bytes": size}


def excess(model, ids: Tensor) -> Tensor:
    """Return how much more surprising each token of a text is than it should be.

    ids (length,). It is the loss of the token by the model that sees all tokens before
    it, minus the loss that it expects (the entropy), both at the temperature of the
    writing. For a text that this model wrote itself the mean is about 0.
    """
    logits = model(ids[None])[0, :-1]
    logits[:, :SPECIAL] = -torch.inf
    log_p = (logits / TEMPERATURE).log_softmax(dim=-1)  # (length - 1, vocab_size)
    entropy = torch.distributions.Categorical(logits=log_p).entropy()
    return -log_p.gather(1, ids[1:, None])[:, 0] - entropy  # (length - 1,)


def written(model, tokenizer, keys: str) -> dict:
    """Return how four texts go on that are written with a cache.

    For each text, of each piece of 250 tokens: the mean excess, and the share of
    distinct tokens. The bytes of the cache after each piece; the last tokens of each
    text.
    """
    beginning = tokenizer.encode(STORY)
    start = torch.tensor([beginning] * TEXTS)
    ids, sizes = write(model, start, STEPS[keys], WRITERS[keys])
    row = {"what": "written", "keys": keys, "excess": [], "distinct": []}
    for x in ids:
        more = excess(model, x)[len(beginning) - 1 :]
        row["excess"].append([piece.mean().item() for piece in more.split(PIECE)])
        parts = x[len(beginning) :].split(PIECE)
        row["distinct"].append([len(set(part.tolist())) / PIECE for part in parts])
    row["bytes of pieces"] = sizes
    row["ends"] = [tokenizer.decode(x[-60:]) for x in ids]
    return rounded(row, 3)


def ids_of(tokenizer, texts: list[str]) -> dict[str, Tensor]:
    """Return {kind: ids (texts, length)} of some help() texts, and of as much prose."""
    found = {"help": texts, "prose": [*prose().values()][: len(texts)]}
    return {
        kind: torch.tensor([tokenizer.encode(x)[: LENGTH[kind]] for x in some])
        for kind, some in found.items()
    }


@torch.no_grad()
def study() -> dict:
    """Return the study."""
    model, tokenizer = load_smollm2()
    texts = help_texts(tokenizer)
    ids = ids_of(tokenizer, texts)
    rows = [masked(model, ids, kind, keys) for kind in LENGTH for keys in MASKS]
    rows += [rolled(model, ids, kind) for kind in LENGTH]
    rows += [written(model, tokenizer, keys) for keys in WRITERS]
    found = {
        "torch": torch.__version__.split("+")[0],
        "model": {"sha256": SMOLLM2_SHA256},
    }
    return {**found, "texts": texts, "runs": rows}


def comparable(stored: dict) -> list[dict]:
    """Return the rows with losses, of the first text only: so few are repeated."""
    rows = runs_of(stored, what="mask") + runs_of(stored, what="rolling cache")
    return [row | {"losses": row["losses"][:1]} for row in rows]


@torch.no_grad()
def again(stored: dict) -> list[dict]:
    """Repeat some rows, with the first text of a kind."""
    model, tokenizer = load_smollm2()
    ids = ids_of(tokenizer, stored["texts"][:1])
    rows = [masked(model, ids, kind, "last 128") for kind in LENGTH]
    return [*rows, rolled(model, ids, "prose")]
