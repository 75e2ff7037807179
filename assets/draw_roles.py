"""Draws the roles of heads, for the atlas of the site: `python -m assets.draw_roles`.

One picture for each model: a cell for each head, with the letter of its role and its
score in that role; heads without a role have their highest score, without a letter.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.patches import Patch, Rectangle

from assets.studies import runs_of, stored_of

FILES = {"encoder": "roles_minilm.png", "language model": "roles_smollm2.png"}
LETTERS = {
    "previous token": "p",
    "next token": "n",
    "current token": "c",
    "same token": "s",
    "induction": "i",
    "punctuation": "!",
    "[CLS]": "f",
    "first token": "f",
}
NO_ROLE = "0.95"


def colours() -> dict[str, tuple]:
    """Return a colour for each role that colour-blind readers can tell apart."""
    palette = sns.color_palette("colorblind")
    order = dict(zip(LETTERS, [palette[i] for i in (0, 8, 4, 2, 1, 9)]))
    return order | {"[CLS]": (0.75,) * 3, "first token": (0.75,) * 3}


def draw(rows: list[dict], path: Path) -> None:
    """Draw the heads of one model: a row for each layer, a column for each head."""
    places = [tuple(map(int, row["head"].split("."))) for row in rows]
    layers, heads = (max(place[axis] for place in places) + 1 for axis in (0, 1))
    figure, ax = plt.subplots(figsize=(6.4, 0.9 + 0.27 * layers))
    fill = colours()
    for (layer, head), row in zip(places, rows):
        role = row["role"]
        value = row["scores"][role] if role else max(row["scores"].values())
        colour = fill[role] if role else NO_ROLE
        ax.add_patch(
            Rectangle((head, layer), 1, 1, facecolor=colour, edgecolor="white")
        )
        dark = role and sum(w * c for w, c in zip((0.3, 0.59, 0.11), colour)) < 0.5
        ax.text(
            head + 0.5,
            layer + 0.5,
            f"{LETTERS[role]} {value:.2f}" if role else f"{value:.2f}",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if dark else "black" if role else "0.3",
        )
    ax.set(xlim=(0, heads), ylim=(layers, 0), xlabel="head", ylabel="layer")
    ax.set_xticks([head + 0.5 for head in range(heads)], range(heads), fontsize=8)
    ax.set_yticks([layer + 0.5 for layer in range(layers)], range(layers), fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    used = [role for role in LETTERS if any(row["role"] == role for row in rows)]
    legend = [Patch(color=fill[r], label=f"{LETTERS[r]}  {r}") for r in used]
    legend.append(Patch(color=NO_ROLE, label="no role found"))
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 4}
    ax.legend(handles=legend, fontsize=8, frameon=False, **place)
    options = {"dpi": 110, "bbox_inches": "tight", "metadata": {"Software": None}}
    figure.savefig(path, **options)
    plt.close(figure)


def main() -> None:
    """Draw the stored roles of both models."""
    for model, name in FILES.items():
        rows = runs_of(stored_of("roles"), model=model)
        draw(rows, Path(__file__).with_name(name))


if __name__ == "__main__":
    main()
