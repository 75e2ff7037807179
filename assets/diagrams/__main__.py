"""Draws all diagrams, SVG and PNG: `python -m assets.diagrams`.

It also writes diagrams.json, their alt texts, which are their captions on a page.
"""

import json
from inspect import getdoc
from itertools import chain
from pathlib import Path

import matplotlib.pyplot as plt

from assets.diagrams.block import block, block_code
from assets.diagrams.circuits import composition, name_circuit
from assets.diagrams.debugging import recap_12
from assets.diagrams.drawing import save
from assets.diagrams.one_query import one_query, one_query_masked
from assets.diagrams.query_key_value import query_key_value
from assets.diagrams.recap_01 import recap_01
from assets.diagrams.recaps import recap_02, recap_03, recap_04, recap_05
from assets.diagrams.recaps_heads import recap_07, recap_08, recap_09
from assets.diagrams.recaps_model import recap_06, recap_10, recap_11
from assets.diagrams.split_heads import split_heads
from assets.diagrams.transformer import LESSONS, transformer

ALONE = [query_key_value, one_query, one_query_masked, recap_01]
ALONE += [split_heads, block, block_code, composition]
ALONE += [name_circuit, recap_02, recap_03, recap_04, recap_05]
ALONE += [recap_06, recap_07, recap_08, recap_09]
ALONE += [recap_10, recap_11, recap_12]


def main(folder: Path = Path(__file__).parent) -> None:
    """Draw into the folder; the docstring of what draws a picture is its alt text."""
    alts = {f"transformer_{n:02}": getdoc(LESSONS[n].enlarged) for n in LESSONS}
    alts |= {draw.__name__: getdoc(draw) for draw in ALONE}
    alts = {name: " ".join(alt.split()) for name, alt in alts.items()}
    with plt.style.context("default"):  # whatever the reader's settings are
        plt.rcParams["figure.max_open_warning"] = 0  # a test leaves them all open
        figures = chain(map(transformer, LESSONS), (draw() for draw in ALONE))
        for figure, (name, alt) in zip(figures, alts.items()):
            save(figure, folder, name, alt)
    text = json.dumps(alts, indent=1, ensure_ascii=False) + "\n"
    (folder / "diagrams.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
