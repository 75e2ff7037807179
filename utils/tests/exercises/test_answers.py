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


WORDS = [
    (
        "10.2",
        "def f(model, ids, steps, *_): return torch.cat([ids, ids[:, :1]], dim=1)",
        "never calls the `model`",
    ),
    (
        "7.3",
        "def f(run, layer, *_, **__): layer.register_forward_pre_hook(print)",
        "on layer.out_proj, not on the layer",
    ),
    (
        "7.3",
        """def f(run, layer, head, outputs=None):
            layer.out_proj.register_forward_pre_hook(lambda m, x, options: None)
            return run()""",
        "A pre-hook gets (module, inputs)",
    ),
    (
        "7.3",
        """def f(run, layer, head, outputs=None):
            layer.out_proj.register_forward_pre_hook(lambda *_: None)
            return run()""",
        "does not leave `layer` as it was",
    ),
    ("12.1", "def f(layers): return [*layers.values()][:1]", "is a layer; expected '"),
]


@pytest.mark.parametrize(("name", "code", "words"), WORDS)
def test_an_error_says_what_to_do(name, code, words):
    with silence():
        verdict = grade(EXERCISES[name], defined(code, EXERCISES[name].space))
    assert not verdict.solved and words in verdict.message
