"""Draws all diagrams, SVG and PNG: `python -m assets.diagrams`.

diagrams.json has the alt text of each, which is its caption on a page.
"""

import json
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt

from assets.diagrams import lesson_01, parts, recaps, recaps_heads, recaps_model
from assets.diagrams.debugging import recap_12
from assets.diagrams.drawing import save
from assets.diagrams.transformer import LESSONS, transformer

ALONE = [lesson_01.query_key_value, lesson_01.one_query_step_1]
ALONE += [lesson_01.one_query_step_2, lesson_01.one_query, lesson_01.one_query_masked]
ALONE += [lesson_01.loss_moves_scores]
ALONE += [lesson_01.recap_01, parts.split_heads, parts.block, parts.block_code]
ALONE += [parts.composition, parts.name_circuit, parts.giver_circuit]
ALONE += [recaps.recap_02, recaps.recap_03]
ALONE += [recaps.recap_04, recaps.recap_05, recaps_model.recap_06]
ALONE += [recaps_heads.recap_07, recaps_heads.recap_08, recaps_heads.recap_09]
ALONE += [recaps_model.recap_10, recaps_model.recap_11, recap_12]
FOLDER = Path(__file__).parent


def main(folder: Path = FOLDER) -> None:
    """Draw into the folder, each with its alt text."""
    alts = json.loads((FOLDER / "diagrams.json").read_text(encoding="utf-8"))
    draws = {f"transformer_{n:02}": partial(transformer, n) for n in LESSONS}
    draws |= {draw.__name__: draw for draw in ALONE}
    with plt.style.context("default"):  # whatever the reader's settings are
        plt.rcParams["figure.max_open_warning"] = 0  # a test leaves them all open
        for name, draw in draws.items():
            draw()
            save(plt.gcf(), folder, name, alts[name])


if __name__ == "__main__":
    main()
