"""Lesson 06 says that its visible cells, copied into a file, are a training script."""

import re
import runpy
from pathlib import Path

import pytest

from utils.exercises import EXERCISES
from utils.exercises.catalogue import cells_of

PAGE = Path(__file__).parents[2] / "notebooks" / "06_transformer_block.ipynb"


def visible_cells(begins: str, ends: str) -> list[str]:
    """Return the unfolded code between two headings of the page."""
    cells = list(cells_of(PAGE))
    first, last = (
        next(i for i, (_, text, _) in enumerate(cells) if f"\n{heading}" in f"\n{text}")
        for heading in (begins, ends)
    )
    return [
        text
        for kind, text, metadata in cells[first:last]
        if kind == "code" and not metadata.get("jupyter", {}).get("source_hidden")
    ]


@pytest.fixture
def script() -> str:
    """Return the script, made as the page tells it, with both exercises solved."""
    code = "\n\n".join(
        cell
        for cell in visible_cells("## 3 The language model", "## 5 Does the model see")
        if "baselines = {" not in cell
    )
    code, checks = re.subn(r"^check\(.*\)$", "", code, flags=re.M)
    assert checks == 2
    for name, number in (("CausalLM", "6.1"), ("next_token_loss", "6.2")):
        solution = EXERCISES[number].solution
        (mine,) = re.findall(r"^(?:class|def) (\w+)", solution, re.M)
        line = f'{name} = answer("{number}")'
        assert code.count(line) == 1
        code = code.replace(line, f"{solution}\n\n{name} = {mine}")
    return code


def test_the_visible_cells_of_the_page_train_a_model(script, tmp_path, capsys):
    few = script.replace("steps=900", "steps=3")
    assert few != script
    path = tmp_path / "mine.py"
    path.write_text(few, encoding="utf-8")
    names = runpy.run_path(str(path))  # nothing but its own imports
    assert len(names["losses"]) == 3
    assert names["losses"][0] > names["losses"][-1]
    assert set(names["held_out_losses"]) == {0}
