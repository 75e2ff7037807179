"""Draws all diagrams, SVG and PNG: `python -m assets.diagrams`.

diagrams.json has the alt text of each, which is its caption on a page. A function of
the same name draws it, and `transformer` the maps of all lessons.
"""

import json
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt

from assets.diagrams import lesson_01, parts, recaps, recaps_heads, recaps_model
from assets.diagrams.debugging import recap_12
from assets.diagrams.drawing import save
from assets.diagrams.transformer import LESSONS, transformer

FOLDER = Path(__file__).parent


def main() -> None:
    """Draw each, with its alt text."""
    alts = json.loads((FOLDER / "diagrams.json").read_text(encoding="utf-8"))
    draws = {f"transformer_{n:02}": partial(transformer, n) for n in LESSONS}
    draws |= {f"one_query_step_{n}": partial(lesson_01.one_query, n) for n in (1, 2)}
    draws["recap_12"] = recap_12
    for module in (lesson_01, parts, recaps, recaps_heads, recaps_model):
        draws |= vars(module)
    with plt.style.context("default"):  # whatever the reader's settings are
        plt.rcParams["figure.max_open_warning"] = 0  # a test leaves them all open
        for name, alt in alts.items():
            draws[name]()
            save(plt.gcf(), FOLDER, name, alt)


if __name__ == "__main__":
    main()
