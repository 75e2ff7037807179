"""Answers that were written by hand: right ones are solved, wrong ones are not.

answers/NN.txt holds them: `#### N.M right: …`, `#### N.M wrong: …`, or, where the name
of the mistake is asserted, `#### N.M wrong, 'its name': …` ('' if none may be named);
below it stands the code.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from utils.exercises import EXERCISES
from utils.exercises.catalogue import defined
from utils.exercises.engine import grade
from utils.exercises.running import silence

HEAD = re.compile(r"^#### ([\d.]+) (right|wrong)(?:, '(.*?)')?: (.*)$", re.M)


def answers() -> Iterator:
    """Yield (exercise, right or wrong, mistake or None, code) of each answer."""
    for path in sorted((Path(__file__).parent / "answers").glob("*.txt")):
        _, *parts = HEAD.split(path.read_text(encoding="utf-8"))
        for name, kind, mistake, title, code in zip(*[iter(parts)] * 5, strict=True):
            yield pytest.param(name, kind, mistake, code, id=f"{name} {kind}: {title}")


@pytest.mark.parametrize(("name", "kind", "mistake", "code"), [*answers()])
def test_an_answer_gets_its_verdict(name, kind, mistake, code):
    exercise = EXERCISES[name]
    with silence():
        verdict = grade(exercise, defined(code, exercise.space))
    assert verdict.solved == (kind == "right"), verdict.message
    assert mistake in (None, verdict.mistake or ""), verdict.message
