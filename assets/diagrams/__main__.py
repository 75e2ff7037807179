"""Draws all diagrams, SVG and PNG: `python -m assets.diagrams`.

It also writes diagrams.json, their alt texts, which are their captions on a page.
"""

import json
from inspect import getdoc
from pathlib import Path

import matplotlib.pyplot as plt

from assets.diagrams.attention_shapes import attention_shapes
from assets.diagrams.block import block
from assets.diagrams.drawing import save
from assets.diagrams.query_key_value import query_key_value
from assets.diagrams.recaps import recap_02, recap_03, recap_04, recap_05
from assets.diagrams.split_heads import split_heads
from assets.diagrams.transformer import LESSONS, transformer

ALONE = [query_key_value, attention_shapes, split_heads, block]
ALONE += [recap_02, recap_03, recap_04, recap_05]


def main(folder: Path = Path(__file__).parent) -> None:
    """Draw into the folder; the docstring of what draws a picture is its alt text."""
    alts = {f"transformer_{n:02}": getdoc(LESSONS[n].enlarged) for n in LESSONS}
    alts |= {draw.__name__: getdoc(draw) for draw in ALONE}
    alts = {name: " ".join(alt.split()) for name, alt in alts.items()}
    with plt.style.context("default"):  # whatever the reader's settings are
        figures = [*map(transformer, LESSONS), *(draw() for draw in ALONE)]
        for figure, (name, alt) in zip(figures, alts.items()):
            save(figure, folder, name, alt)
    text = json.dumps(alts, indent=1, ensure_ascii=False) + "\n"
    (folder / "diagrams.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
