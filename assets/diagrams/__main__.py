"""Draws all diagrams, SVG and PNG: `python -m assets.diagrams`.

It also writes diagrams.json, their alt texts, which are their captions on a page.
"""

import json
from functools import partial
from inspect import getdoc
from pathlib import Path

import matplotlib.pyplot as plt

from assets.diagrams.block import block, block_code
from assets.diagrams.circuits import composition, name_circuit
from assets.diagrams.debugging import recap_12
from assets.diagrams.drawing import save
from assets.diagrams.lesson_01 import (
    one_query,
    one_query_masked,
    query_key_value,
    recap_01,
)
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
    draws = [partial(transformer, n) for n in LESSONS] + ALONE
    with plt.style.context("default"):  # whatever the reader's settings are
        plt.rcParams["figure.max_open_warning"] = 0  # a test leaves them all open
        for draw, (name, alt) in zip(draws, alts.items()):
            draw()
            save(plt.gcf(), folder, name, alt)
    text = json.dumps(alts, indent=1, ensure_ascii=False) + "\n"
    (folder / "diagrams.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
