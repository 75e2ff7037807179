"""Draws all diagrams, SVG and PNG: `python -m assets.diagrams`.

It also writes diagrams.json, their alt texts, which are their captions on a page.
"""

import json
from functools import partial
from inspect import getdoc
from pathlib import Path

import matplotlib.pyplot as plt

from assets.diagrams import lesson_01, parts, recaps, recaps_heads, recaps_model
from assets.diagrams.debugging import recap_12
from assets.diagrams.drawing import save
from assets.diagrams.transformer import LESSONS, transformer

ALONE = [lesson_01.query_key_value, lesson_01.one_query, lesson_01.one_query_masked]
ALONE += [lesson_01.recap_01, parts.split_heads, parts.block, parts.block_code]
ALONE += [parts.composition, parts.name_circuit, recaps.recap_02, recaps.recap_03]
ALONE += [recaps.recap_04, recaps.recap_05, recaps_model.recap_06]
ALONE += [recaps_heads.recap_07, recaps_heads.recap_08, recaps_heads.recap_09]
ALONE += [recaps_model.recap_10, recaps_model.recap_11, recap_12]


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
