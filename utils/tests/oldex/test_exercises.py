"""The checkers: the reference passes, every mistake is named, nonsense is refused."""

import functools
import json
import math
from pathlib import Path

import pytest
import torch

from utils import oldex as exercises
from utils.oldex import EXERCISES, check
from utils.oldex.compare import alike, difference
from utils.oldex.engine import grade, is_untouched
from utils.oldex.naming import Known, Trial
from utils.oldex.running import run

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"

ALL = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)


@ALL
def test_the_reference_is_solved(exercise):
    verdict = grade(exercise, exercise.reference)
    assert verdict.solved and verdict.picture is None and verdict.mistake is None


@ALL
def test_every_form_of_a_mistake_is_wrong_and_gets_its_own_name(exercise):
    """Each form is run on the inputs that tell it from the right answer and others."""
    trials, gradients = exercise.trials(), exercise.gradients
    should = [run(exercise.reference, t, gradients, i) for i, t in enumerate(trials)]
    tried = [Trial(*each) for each in zip(trials, should, should, range(len(trials)))]
    known, places = Known(exercise.forms(), tried, gradients), range(len(trials))
    for form, mistake in enumerate(exercise.known):
        did = functools.partial(known.run, form)
        wrong = next((at for at in places if difference(should[at], did(at))), None)
        label = f"{mistake.name}, form {form}"
        assert wrong is not None, f"{label} is right"
        order = [wrong, *places]  # what is wrong tells two forms apart soonest
        first = next(  # its own form is found at the latest
            each
            for each in range(form + 1)
            if each == form or all(alike(known.run(each, at), did(at)) for at in order)
        )
        assert exercise.known[first].name == mistake.name, label
        again = run(mistake.function, trials[wrong], gradients, wrong)
        assert alike(did(wrong), again), f"{label} is another one when called again"


@ALL
def test_a_mistake_is_rejected_with_its_name_and_reason(exercise):
    for mistake in (exercise.known[0], exercise.known[-1]):
        verdict = grade(exercise, mistake.function)
        assert not verdict.solved and verdict.mistake == mistake.name
        assert f"a known mistake, {mistake.name!r}. {mistake.why}" in verdict.message


def shown_to_be_broken():
    """Yield (notebook, exercise, mistake) from the metadata of all cells."""
    for path in sorted(NOTEBOOKS.rglob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for name, mistakes in cell["metadata"].get("shows_broken", {}).items():
                yield from ((path.name, name, mistake) for mistake in mistakes)


def test_what_a_page_shows_to_be_broken_is_a_known_mistake():
    shown = list(shown_to_be_broken())
    assert shown
    for path, name, mistake in shown:
        assert mistake in EXERCISES[name].names(), (path, name, mistake)


NONSENSE = {
    "zeros": lambda reference: lambda *args: torch.zeros_like(reference(*args)),
    "last argument": lambda reference: lambda *args: args[-1],
    "first argument": lambda reference: lambda *args: args[0],
    "nothing": lambda reference: lambda *args: [][:].append(1),
    "a list": lambda reference: lambda *args: reference(*args).tolist(),
    "half precision": lambda reference: lambda *args: reference(*args).half(),
    "another device": lambda reference: lambda *args: reference(*args).to("meta"),
    "an error": lambda reference: lambda *args: 1 / 0,
    "too many arguments": lambda reference: lambda: None if reference else 1,
    "one axis too many": lambda reference: lambda *args: reference(*args)[None],
}


# their answers are a tensor with gradients, a test of a function, and a tuple
@pytest.mark.parametrize("exercise", ["1.2", "1.5", "7.3"])
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_with_a_sentence(exercise, name):
    exercise = EXERCISES[exercise]
    verdict = grade(exercise, NONSENSE[name](exercise.reference))
    assert not verdict.solved and len(verdict.message.split()) > 5, verdict


def test_gradients_are_compared():
    exercise = EXERCISES["1.2"]
    verdict = grade(exercise, lambda *args: exercise.reference(*args).detach())
    assert "gradient of `query` is not: none arrives" in verdict.message
    part = grade(exercise, lambda q, k, *v: exercise.reference(q, k.detach(), *v))
    assert "gradient of `key`" in part.message and not part.solved


def test_right_answers_written_differently_are_right():
    def with_tensor_scale(q, k, v, t=1.0):
        return (q @ k.mT / t / torch.sqrt(torch.tensor(q.shape[-1]))).softmax(-1) @ v

    def with_sharper_queries(q, k, v, t=1.0):
        return sdpa(q / t, k, v)

    def with_epsilon(q, k, v, m):
        lowest = torch.finfo(q.dtype).min
        w = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~m, lowest).softmax(-1) * m
        return w / (w.sum(-1, keepdim=True) + 1e-9) @ v

    def by_hand(q, k, v, m):
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~m, -math.inf)
        top = scores.amax(-1, keepdim=True).detach()
        exps = (scores - top.masked_fill(top.isinf(), 0.0)).exp()
        total = exps.sum(-1, keepdim=True)
        return exps @ v / total.masked_fill(total == 0, 1.0)

    def by_logsumexp(scores):
        return (scores - scores.logsumexp(-1, keepdim=True)).exp()

    sdpa = torch.nn.functional.scaled_dot_product_attention
    for name, function in (
        ("1.1", by_logsumexp),
        ("1.1", torch.nn.Softmax(-1)),
        ("1.2", with_tensor_scale),
        ("1.2", with_sharper_queries),
        ("1.3", sdpa),
        ("1.3", with_epsilon),
        ("1.3", by_hand),
        ("3.3", lambda w: torch.tensor([x.diagonal(-1).mean() for x in w]).to(w.dtype)),
    ):
        verdict = grade(EXERCISES[name], function)
        assert verdict.solved, (name, verdict.message)


def test_the_mode_of_the_notebook_does_not_matter():
    exercise = EXERCISES["1.2"]
    with torch.inference_mode():
        assert not grade(exercise, lambda *a: exercise.reference(*a).detach()).solved

    def switches_off(*args):
        torch.set_grad_enabled(False)
        return exercise.reference(*args)

    grade(exercise, switches_off)
    assert torch.is_grad_enabled()


def untouched_stub(query, key, value):
    """A stub, with its docstring."""
    ...


def half_done(query, key, value):
    scores = query @ key.mT  # noqa: F841  (a learner who has not returned anything yet)


def test_untouched_is_not_wrong(capsys):
    assert is_untouched(untouched_stub) and not is_untouched(half_done)
    assert is_untouched(lambda x: ...) and not is_untouched(lambda x: 1)
    check("1.2", untouched_stub)
    assert "not attempted yet" in capsys.readouterr().out
    check("1.2", half_done)
    assert "Is a `return` missing?" in capsys.readouterr().out


def test_arguments_are_copies():
    trial = next(iter(EXERCISES["1.1"].inputs(torch.float32)))
    before = trial["scores"].clone()
    grade(EXERCISES["1.1"], lambda scores: scores.detach().zero_())
    assert torch.equal(trial["scores"], before)


def test_drawn_only_where_values_differ(monkeypatch, capsys):
    drawn, attention = [], EXERCISES["1.2"].reference
    monkeypatch.setattr(exercises, "draw", lambda *pair: drawn.append(pair))
    for answer in (attention, lambda *args: attention(*args)[..., :1]):
        check("1.2", answer)
    assert drawn == []
    check("1.2", lambda *args: attention(*args) + 1)
    ((expected, yours),) = drawn
    torch.testing.assert_close(yours, expected + 1)
