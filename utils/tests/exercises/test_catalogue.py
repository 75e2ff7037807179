"""Pages, tables and trials fit: solutions pass, known mistakes get their names."""

import ast
import json
import re
from itertools import groupby

import pytest

from utils.exercises import EXERCISES
from utils.exercises.catalogue import NOTEBOOKS, PYTHON, RIGHT, defined, edited, table
from utils.exercises.engine import grade
from utils.exercises.running import silence

ALL = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
TABLES = sorted((NOTEBOOKS / "exercises").glob("[0-9]*.txt"))


@ALL
def test_every_line_of_the_table_fits_the_printed_solution(exercise):
    """`edited` says which edit stands how often, in which line of which table."""
    for mistake in exercise.known:
        if mistake.name != PYTHON:
            ast.parse(edited(exercise.solution, mistake.form))


@ALL
def test_what_is_right_is_solved(exercise):
    """The printed solution, and the edits of it that change nothing."""
    for code in (exercise.solution, *exercise.right):
        verdict = grade(exercise, defined(code, exercise.space))
        assert verdict.solved, f"{code}\n{verdict.message}"


@ALL
def test_every_form_is_refused_by_name_and_no_slip_passes(exercise):
    """A slip may be called by a name of the table; one that passes is a hole in the
    trials, or stands in the table under `right`."""
    problems, listed = [], {each.name for each in exercise.known}
    for form in exercise.forms:
        with silence():
            verdict = grade(exercise, form.function)
        named = verdict.mistake == form.name or form.name not in listed
        if verdict.solved or not named:
            said = "accepted" if verdict.solved else verdict.mistake
            problems.append(f"{form.name!r}: {said!r}\n{form.form}")
    assert not problems, "\n".join(problems)


def test_tables_name_exercises_and_each_mistake_has_forms():
    for path in TABLES:
        text = re.sub("^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)
        for name in re.findall(r"^([^#\s].*\n)(?! {4,5}\S)", text, re.M):
            pytest.fail(f"{path.name}: no form of {name}")
        for name, mistakes in table(path).items():
            assert name in EXERCISES, (path.name, name)
            names = [name for name, _ in groupby(each.name for each in mistakes)]
            names = [each for each in names if each not in (RIGHT, PYTHON)]
            assert len(set(names)) == len(names), name


def test_what_a_page_shows_to_be_broken_is_a_known_mistake():
    shown = 0
    for path in sorted(NOTEBOOKS.rglob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for name, mistakes in cell["metadata"].get("shows_broken", {}).items():
                for mistake in mistakes:
                    shown += 1
                    names = {form.name for form in EXERCISES[name].forms}
                    assert mistake in names, (path.name, mistake)
    assert shown
