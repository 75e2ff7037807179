"""A language model in one file, with PyTorch alone: train it on a text, let it write.

python one_file.py TEXT.txt     learns the characters of a file, and writes some more

The model is that of lesson 06, and the cache is that of lesson 10. Nothing is imported
from the course: copy this file, and change it.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


def rotated(x, first):
    """Return x (..., tokens, d) with its pairs (i, i + d / 2) rotated (RoPE).

    first: the position of the first token.
    """
    tokens, d = x.shape[-2:]
    frequencies = 10_000 ** (-torch.arange(0, d, 2, device=x.device) / d)  # (d / 2,)
    positions = torch.arange(first, first + tokens, device=x.device)
    angles = positions[:, None] * frequencies  # (tokens, d / 2)
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Attention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query_proj = nn.Linear(width, width)
        self.key_proj = nn.Linear(width, width)
        self.value_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def split(self, y):  # to (batch, heads, new, head_dim)
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x, kept):  # x: new tokens (batch, new, width); kept: a dict
        old = kept["key"].shape[-2] if kept else 0  # cache: tokens that it has
        query = rotated(self.split(self.query_proj(x)), old)
        key = rotated(self.split(self.key_proj(x)), old)
        value = self.split(self.value_proj(x))
        if kept:  # cache: the old keys and values come first
            key = torch.cat([kept["key"], key], dim=-2)
            value = torch.cat([kept["value"], value], dim=-2)
        kept.update(key=key, value=value)  # cache: for the next call
        mask = torch.ones(x.shape[1], key.shape[-2], dtype=torch.bool, device=x.device)
        mask = mask.tril(old)  # cache: the first new token sees all old ones
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).flatten(2))  # (batch, new, width)


class Block(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x, kept):
        x = x + self.attention(self.attention_norm(x), kept)
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    def __init__(self, vocab_size, width=128, num_heads=4, num_blocks=2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        blocks = [Block(width, num_heads) for _ in range(num_blocks)]
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size)

    def forward(self, ids, cache=None):
        """Return logits (batch, new, vocab_size) of new tokens ids (batch, new).

        cache: what an earlier call for the same text has filled: [{}, {}, ...] at
            first, a dict for each block. Without it, ids are the whole text.
        """
        if cache is None:
            cache = [{} for _ in self.blocks]
        x = self.embedding(ids)
        for block, kept in zip(self.blocks, cache, strict=True):
            x = block(x, kept)
        return self.head(self.norm(x))


def train(model, ids, steps, length, batch=32, learning_rate=2e-3):
    """Train on random pieces of a text ids (tokens,), and print each 100th loss.

    It begins near ln(vocab_size). width / num_heads of the model must be even (RoPE).
    """
    adam = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    warm = torch.optim.lr_scheduler.LinearLR(adam, 0.02, total_iters=50)
    for step in range(1, steps + 1):
        starts = torch.randint(len(ids) - length, (batch,)).tolist()
        rows = torch.stack([ids[i : i + length + 1] for i in starts])
        logits = model(rows[:, :-1])  # (batch, length, vocab_size)
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        warm.step()
        if step == 1 or step % 100 == 0 or step == steps:
            print(f"step {step}: loss {loss.item():.2f}", flush=True)


@torch.no_grad()
def write(model, ids, steps, temperature=0.7):
    """Return ids (batch, length + steps): prompts ids (batch, length), continued."""
    cache, new = [{} for _ in model.blocks], ids  # cache: a dict for each block
    for _ in range(steps):
        logits = model(new, cache)[:, -1]  # cache: only the new tokens are given
        if temperature == 0:
            new = logits.argmax(dim=-1, keepdim=True)  # (batch, 1)
        else:
            new = torch.multinomial((logits / temperature).softmax(dim=-1), 1)
        ids = torch.cat([ids, new], dim=1)
    return ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="a text file, in UTF-8")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--length", type=int, default=128, help="of a piece of text")
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8-sig")
    if not 10 < options.length < len(text):
        asked = f"--length {options.length} must lie between 10 and that"
        parser.error(f"{options.text} has {len(text)} characters: {asked}.")
    torch.manual_seed(0)
    vocab = sorted(set(text))
    number = {character: i for i, character in enumerate(vocab)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ids = torch.tensor([number[character] for character in text], device=device)
    model = LanguageModel(len(vocab)).to(device)
    train(model, ids, options.steps, options.length)
    # a longer text would have distances that it has never seen (lesson 05)
    written = write(model, ids[None, :10], options.length - 10)[0]
    told, terminal = "".join(vocab[i] for i in written), sys.stdout.encoding or "utf-8"
    print(told.encode(terminal, "replace").decode(terminal))


if __name__ == "__main__":
    main()
