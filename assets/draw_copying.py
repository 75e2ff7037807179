"""Draws copying.png, a picture in README.md: `python -m assets.draw_copying`.

SmolLM2-135M on the course's layers: its best induction head on one text of random
tokens, and what it still copies without such heads. Lesson 11 explains both.
"""

import random
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from assets.studies._smollm2 import named, twice
from utils.heads import induction
from utils.masks import causal_mask
from utils.plotting import heatmap, style
from utils.pretrained import load_smollm2
from utils.recording import ablate, by_layer, record_attention

START = "Once upon a time, there was a"


@torch.no_grad()
def main() -> None:
    model, tokenizer = load_smollm2()
    ids = torch.tensor([tokenizer.encode(START)])  # (1, 8)
    print(tokenizer.decode(model.generate(ids, 24, temperature=0)[0]))

    texts, mask = twice(16, seed=0), causal_mask(64)  # (16, 64)
    maps = record_attention(model, texts[:8])
    scores = torch.stack([induction(layer, texts[:8], mask=mask) for layer in maps])
    order = scores.mean(dim=1).flatten().argsort(descending=True).tolist()
    best = [f"{index // 9}.{index % 9}" for index in order[:8]]  # layer.head
    rng, sizes = random.Random(0), (0, 1, 2, 4, 8)

    def copied(heads):
        """Return the share of the other texts' second copies that is predicted."""
        with ablate(model, by_layer(heads)):
            guesses = model(texts[8:])[:, 32:-1].argmax(dim=-1)
        return (guesses == texts[8:, 33:]).float().mean().item()

    def others(heads):
        """Return as many heads of the same layers, drawn from all but the best."""
        drawn = []
        for layer in (head.split(".")[0] for head in heads):
            free = [head for head in named([layer]) if head not in best + drawn]
            drawn.append(rng.choice(free))
        return drawn

    without = [copied(best[:size]) for size in sizes]
    at_random = {n: [copied(others(best[:n])) for _ in range(5)] for n in sizes[1:]}

    style()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), width_ratios=(1, 1.3))
    layer, head = map(int, best[0].split("."))
    title = f"layer {layer}, head {head}: random tokens, twice"
    heatmap(maps[layer][0, head], axes[0], mask=mask, vmax=1, annotate=False)
    axes[0].set_title(title, fontsize=10)
    axes[1].plot(sizes, without, "o-", color="C1", label="the best induction heads")
    for size, drawn in at_random.items():
        label = "other heads of the same layers, at random" if size == 1 else None
        axes[1].scatter([size] * 5, drawn, color="C0", alpha=0.6, label=label)
    axes[1].set(xlabel="heads without which the model runs", ylabel="copied tokens")
    axes[1].set(ylim=(-0.03, 1), xticks=sizes)
    axes[1].legend(loc="upper right", fontsize=9)
    path = Path(__file__).with_name("copying.png")
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    print(f"score {scores.mean(dim=1).max():.2f}, with all heads {without[0]:.2f}")
    for size, value in zip(sizes[1:], without[1:]):
        spread = f"{min(at_random[size]):.2f} to {max(at_random[size]):.2f}"
        print(f"without the best {size}: {value:.2f}; {size} others: {spread}")


if __name__ == "__main__":
    main()
