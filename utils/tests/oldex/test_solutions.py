"""The solutions that the notebooks print, extracted from their folds and marked."""

import json
import re
from pathlib import Path

import pytest

from utils.oldex import EXERCISES, IMPORTS, answer
from utils.oldex.engine import UNTOUCHED, grade
from utils.tests.helpers import Notebook

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").rglob("*.ipynb"))
CELLS = [
    (cell["cell_type"], cell["metadata"], "".join(cell["source"]))
    for path in NOTEBOOKS
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
]
FOLD = re.compile(
    r"<details><summary>Solution (\S+)</summary>\n\n```python\n(.*?)```\n\n</details>",
    re.DOTALL,
)
CHECK = re.compile(r'^check\("(\S+)", (\w+)\)$', re.MULTILINE)
SOLUTIONS = dict(
    found
    for kind, _, text in CELLS
    if kind == "markdown"
    for found in FOLD.findall(text)
)
STUBS = {
    name: (function, text)
    for kind, metadata, text in CELLS
    if kind == "code" and "shows_broken" not in metadata
    for name, function in CHECK.findall(text)
}


def defined(source, function, imports="from utils.attention import *"):
    """Run a cell without its call of check; return the function that it defines."""
    names = Notebook().run(imports).run(CHECK.sub("", source)).names
    return names[function]


def test_every_exercise_has_a_stub_and_a_solution():
    assert set(SOLUTIONS) == set(STUBS) == set(EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
def test_the_printed_solution_is_right_is_kept_and_comes_back(name, capsys):
    function, source = STUBS[name]
    call = CHECK.search(source)[0]
    Notebook().run(IMPORTS[name]).run(f"{SOLUTIONS[name]}\n\n{call}")
    said = capsys.readouterr().out
    assert ": solved. " in said and said.endswith("Kept for later lessons.\n"), said
    mine = answer(name)
    assert capsys.readouterr().out == f'answer("{name}"): your own, checked again.\n'
    assert mine is not EXERCISES[name].reference and mine.__name__ == function


@pytest.mark.parametrize("name", EXERCISES)
def test_the_stub_is_untouched_and_takes_the_same_arguments(name):
    function, source = STUBS[name]
    stub, solution = defined(source, function), defined(SOLUTIONS[name], function)
    assert grade(EXERCISES[name], stub).status == UNTOUCHED
    for other in (solution, EXERCISES[name].reference):
        arguments = other.__code__.co_varnames[: other.__code__.co_argcount]
        assert stub.__code__.co_varnames[: stub.__code__.co_argcount] == arguments
