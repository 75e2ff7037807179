"""The solutions that the notebooks print, extracted from their folds and marked."""

import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from utils import attention
from utils.exercises import EXERCISES
from utils.exercises.engine import UNTOUCHED, grade

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))
FOLD = re.compile(
    r"<details><summary>Solution (\S+)</summary>\n\n```python\n(.*?)```\n\n</details>",
    re.DOTALL,
)
CHECK = re.compile(r'^check\("(\S+)", (my_\w+|softmax)\)$', re.MULTILINE)


def cells(kind):
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == kind:
                yield "".join(cell["source"])


SOLUTIONS = dict(found for text in cells("markdown") for found in FOLD.findall(text))
STUBS = {
    name: (function, source)
    for source in cells("code")
    for name, function in CHECK.findall(source)
}


def defined(source, function):
    """Run a cell without its call of check; return the function that it defines."""
    names = {name: getattr(attention, name) for name in dir(attention)}
    names |= {"torch": torch, "F": F}
    exec(CHECK.sub("", source), names)
    return names[function]


def test_every_exercise_has_a_stub_and_a_solution():
    assert set(SOLUTIONS) == set(STUBS) == set(EXERCISES)


@pytest.mark.parametrize("name", EXERCISES)
def test_the_printed_solution_is_right(name):
    verdict = grade(EXERCISES[name], defined(SOLUTIONS[name], STUBS[name][0]))
    assert verdict.solved, verdict.message


@pytest.mark.parametrize("name", EXERCISES)
def test_the_stub_is_untouched_and_takes_the_same_arguments(name):
    function, source = STUBS[name]
    stub, solution = defined(source, function), defined(SOLUTIONS[name], function)
    assert grade(EXERCISES[name], stub).status == UNTOUCHED
    for other in (solution, EXERCISES[name].reference):
        arguments = other.__code__.co_varnames[: other.__code__.co_argcount]
        assert stub.__code__.co_varnames[: stub.__code__.co_argcount] == arguments
