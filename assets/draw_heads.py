"""Draws heads.png, the picture in README.md: `python -m assets.draw_heads`.

Four heads of layer 0 of all-MiniLM-L6-v2, run by utils.attention.MultiHeadAttention.
"""

from pathlib import Path

from utils.plotting import plot_heads, style
from utils.pretrained import load_minilm
from utils.recording import record_attention

SENTENCE = "The cat sat on the mat."
HEADS = [2, 5, 0, 8]


def main() -> None:
    minilm = load_minilm()
    ids = minilm.tokenizer(SENTENCE, return_tensors="pt").input_ids  # (1, 9)
    weights = record_attention(minilm.model, ids)[0][0]  # (12, 9, 9), of layer 0

    style()
    tokens = minilm.tokenizer.convert_ids_to_tokens(ids[0])
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
