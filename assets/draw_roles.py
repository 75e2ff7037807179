"""Draws the roles of heads, for the atlas of the site: `python -m assets.draw_roles`.

One picture for each model: a cell for each head, with the letter of its role and its
score in that role; heads without a role have their highest score, without a letter.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.patches import Patch, Rectangle

from assets.studies import runs_of, stored_of

FILES = {"encoder": "roles_minilm.png", "language model": "roles_smollm2.png"}
NO_ROLE, GREY, PALETTE = "0.95", (0.75,) * 3, sns.color_palette("colorblind")
ROLES = {  # letter and colour: colour-blind readers can tell them apart
    "previous token": ("p", PALETTE[0]),
    "next token": ("n", PALETTE[8]),
    "current token": ("c", PALETTE[4]),
    "same token": ("s", PALETTE[2]),
    "induction": ("i", PALETTE[1]),
    "punctuation": ("!", PALETTE[9]),
    "[CLS]": ("f", GREY),
    "first token": ("f", GREY),
}


def draw(rows: list[dict], path: Path) -> None:
    """Draw the heads of one model: a row for each layer, a column for each head."""
    places = np.array([row["head"].split(".") for row in rows], dtype=int)
    layers, heads = places.max(axis=0) + 1
    figure, ax = plt.subplots(figsize=(6.4, 0.9 + 0.27 * layers))
    for (layer, head), row in zip(places, rows):
        if role := row["role"]:
            letter, colour = ROLES[role]
            text = f"{letter} {row['scores'][role]:.2f}"
            ink = "white" if np.dot((0.3, 0.59, 0.11), colour) < 0.5 else "black"
        else:
            colour, ink, text = NO_ROLE, "0.3", f"{max(row['scores'].values()):.2f}"
        ax.add_patch(Rectangle((head, layer), 1, 1, fc=colour, ec="white"))
        middle = {"ha": "center", "va": "center", "fontsize": 8}
        ax.text(head + 0.5, layer + 0.5, text, color=ink, **middle)
    ax.set(xlim=(0, heads), ylim=(layers, 0), xlabel="head", ylabel="layer")
    ax.set_xticks(np.arange(heads) + 0.5, range(heads), fontsize=8)
    ax.set_yticks(np.arange(layers) + 0.5, range(layers), fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    roles = {row["role"] for row in rows}
    used = {role: look for role, look in ROLES.items() if role in roles}
    legend = [Patch(color=c, label=f"{letter}  {r}") for r, (letter, c) in used.items()]
    legend.append(Patch(color=NO_ROLE, label="no role found"))
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 4}
    ax.legend(handles=legend, fontsize=8, frameon=False, **place)
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Draw the stored roles of both models."""
    for model, name in FILES.items():
        rows = runs_of(stored_of("roles"), model=model)
        draw(rows, Path(__file__).with_name(name))


if __name__ == "__main__":
    main()
