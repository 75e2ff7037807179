"""Draws heads.png, the picture in README.md: `python -m assets.draw_heads`.

Four heads of layer 0 of all-MiniLM-L6-v2, run by utils.attention.MultiHeadAttention.
"""

from pathlib import Path

import torch
import torch.nn.functional as F

from utils.attention import MultiHeadAttention
from utils.plotting import plot_heads, style
from utils.pretrained import load_minilm

SENTENCE = "The cat sat on the mat."
HEADS = [2, 5, 0, 8]


def main() -> None:
    _, tokenizer, config, state = load_minilm()
    ids = tokenizer(SENTENCE, return_tensors="pt").input_ids  # (1, 13)
    x = (
        state["embeddings.word_embeddings.weight"][ids]
        + state["embeddings.position_embeddings.weight"][: ids.shape[1]]
        + state["embeddings.token_type_embeddings.weight"][0]
    )
    norm = [state[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias")]
    x = F.layer_norm(x, x.shape[-1:], *norm, eps=config["layer_norm_eps"])

    layer = MultiHeadAttention(x.shape[-1], config["num_attention_heads"])
    at = "encoder.layer.0.attention"
    for ours, theirs in (
        (layer.query_proj, f"{at}.self.query"),
        (layer.key_proj, f"{at}.self.key"),
        (layer.value_proj, f"{at}.self.value"),
        (layer.out_proj, f"{at}.output.dense"),
    ):
        ours.load_state_dict({p: state[f"{theirs}.{p}"] for p in ("weight", "bias")})
    with torch.no_grad():
        weights = layer(x, need_weights=True)[1][0]  # (12, 13, 13)

    style()
    tokens = tokenizer.convert_ids_to_tokens(ids[0])
    titles = [f"layer 0, head {head}" for head in HEADS]
    figure = plot_heads(weights[HEADS], tokens, titles=titles)
    figure.set_size_inches(7.6, 1.7)  # README's front is one screen
    path = Path(__file__).with_name("heads.png")
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Software": None})
    previous = weights.diagonal(-1, 1, 2).mean(-1)[HEADS]
    for head, score in zip(HEADS, previous.tolist(), strict=True):
        print(f"head {head}: {score:.2f} of the weight on the previous token")


if __name__ == "__main__":
    main()
