"""Lessons 06 and 07 say that some of their cells, copied into a file, are a script."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from utils.exercises import EXERCISES
from utils.exercises.catalogue import cells_of
from utils.pretrained import load_story_model
from utils.stories import NUMBER, VOCAB, encode, write_stories

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAGE = NOTEBOOKS / "06_transformer_block.ipynb"


def visible_cells(begins: str, ends: str, page: Path = PAGE) -> list[str]:
    """Return the unfolded code between two headings of the page."""
    cells = list(cells_of(page))
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
    cells = visible_cells("## 3 The language model", "## 5 Does the model see")
    (block,) = visible_cells("### Norm, compute, add", "### Which parts connect")
    imports, *rest = (cell for cell in cells if "surprise" not in cell)
    assert "import torch" in imports and block.startswith("class Block(")
    code = "\n\n".join([imports, block, *rest])
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


def test_the_script_for_a_model_of_your_own_needs_no_file_of_the_course(tmp_path):
    page = NOTEBOOKS / "07_seeing_heads.ipynb"
    known = {
        "model": load_story_model().double(),
        "inputs": encode(write_stories(2, seed=2)),
    }
    known |= {"torch": torch, "assert_close": assert_close, "Path": Path}
    known |= {"VOCAB": VOCAB, "NUMBER": NUMBER, "write_stories": write_stories}
    for _, text, _ in cells_of(page):  # our model and its tokenizer go into a folder
        if text.startswith("# @title Set: ") and "neox" in text:
            exec(text, known)
    script = visible_cells("## At work", "## What you now know", page)
    path = tmp_path / "mine.py"
    path.write_text("\n".join([f"folder = {known['folder']!r}", *script]), "utf-8")
    command = [sys.executable, "-I", str(path)]  # -I: without the course's folder
    said = subprocess.run(command, capture_output=True, text=True).stdout
    assert "no head removed: right 1.00" in said
    assert "head 0.0: weight 0.94, without it: right 0.07" in said
    assert said.count("without it: right 1.00") == 7
