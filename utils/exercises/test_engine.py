"""The engine on exercises made up here: arguments, outputs and what is said of them."""

import functools
import math

import pytest
import torch

from utils.exercises.engine import Exercise, Verdict, grade, randn


def an_exercise(reference, *trials, mistakes=None, gradients=True) -> Exercise:
    """Return an exercise whose inputs are the same in both precisions."""
    return Exercise(
        "0.0", "Made up", reference, lambda dtype: trials, mistakes or {}, gradients
    )


def said_of(reference, answer, *trials) -> str:
    """Return what is said of an answer, without what it was tried with."""
    verdict = grade(an_exercise(reference, *trials or ({"x": 1},)), answer)
    return "solved" if verdict.solved else verdict.message.split("\n")[0]


# --- an exercise whose answer is a test -------------------------------------------


def double(x):
    return 2 * x


def double_wrong(x):
    return x**2


def double_of_wrong_shape(x):
    return (2 * x)[..., None]


def recognises_double(function) -> bool:
    """The reference: is f(x) = 2 x, values and shape?"""
    x = torch.arange(4.0)
    return torch.equal(function(x).squeeze(), 2 * x) and function(x).shape == x.shape


def believes_everything(function):
    """A test that cannot fail proves nothing."""
    return True


def compares_shapes(function):
    """A wrong function may return the right shape."""
    return function(torch.arange(4.0)).shape == (4,)


WRITE_THE_TEST = an_exercise(
    recognises_double,
    {"function": double},
    {"function": double_wrong},
    {"function": functools.partial(double_of_wrong_shape)},
    mistakes={"always True": believes_everything, "shapes only": compares_shapes},
)


def test_an_answer_that_is_a_test_is_judged_on_right_and_wrong_functions():
    assert grade(WRITE_THE_TEST, recognises_double).solved

    def as_a_tensor(function):
        y, x = function(torch.arange(4.0)), torch.arange(4.0)
        return (y == 2 * x).all() if y.shape == x.shape else torch.tensor(False)

    assert grade(WRITE_THE_TEST, as_a_tensor).solved


def test_the_mistakes_of_a_test_are_named():
    for mistake, why, function in WRITE_THE_TEST.forms():
        verdict = grade(WRITE_THE_TEST, function)
        assert verdict.mistake == mistake and why in verdict.message
    message = grade(WRITE_THE_TEST, believes_everything).message
    assert "For `double_wrong` your test said True; expected False." in message
    assert "Tried with" not in message
    partly = grade(WRITE_THE_TEST, lambda f: f is not double_wrong).message
    assert partly == "For `double_of_wrong_shape` your test said True; expected False."


@pytest.mark.parametrize(
    "answer, says",
    [
        (
            lambda f: [][:].append(f),
            "For `double` your test said None; expected True. Is a `retu",
        ),
        (lambda f: 1, "For `double` your test said 1; expected True."),
        (lambda f: 1 / 0, "For `double` your test raised ZeroDivisionError: division"),
    ],
)
def test_what_a_test_did_wrong_is_said(answer, says):
    assert grade(WRITE_THE_TEST, answer).message.startswith(says)


# --- outputs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected, answer",
    [
        (True, torch.tensor(True)),
        (3, 3.0),
        (0.1, 0.1 + 1e-9),
        (0.1, torch.tensor([0.1])),
        (math.nan, math.nan),
        (math.inf, math.inf),
        ("yes", "yes"),
        (None, None),
        ((1, "a"), [1, "a"]),
        ({"a": [1, None]}, {"a": (1, None)}),
        ((torch.ones(2), 3), (torch.ones(2), 3)),
    ],
)
def test_outputs_are_compared_by_value(expected, answer):
    assert said_of(lambda x: expected, lambda x: answer) == "solved"


@pytest.mark.parametrize(
    "expected, answer, says",
    [
        (True, False, "Your function returned False; expected True."),
        (3, True, "Your function returned True; expected 3."),
        (3, 4, "Your function returned 4; expected 3."),
        (0.1, 0.101, "Your function returned 0.101; expected 0.1."),
        (0.1, math.nan, "Your function returned nan; expected 0.1."),
        (0.1, "0.1", "Your function returned '0.1'; expected 0.1."),
        ("a", "b", "Your function returned 'b'; expected 'a'."),
        ("a", None, "returned None; expected 'a'. Is a `return` missing?"),
        (None, 0, "Your function returned 0; expected None."),
        (2.0, torch.ones(3), "returned a tensor of shape (3,); expected 2.0."),
        ((1, 2), 1, "Your function returned int; expected a tuple."),
        ((1, 2), (1, 2, 3), "Your function returned 3 parts; expected 2."),
        ((1, 2), (1, 3), "Part 1 of your output is 3; expected 2."),
        ({"a": 1}, {"b": 1}, "returned the keys ['b']; expected ['a']."),
        ({"a": [1, 2]}, {"a": [1, 0]}, "Part 1 of part 'a' of your output is 0; exp"),
        ((torch.ones(2),), (1.0,), "Part 0 of your output is float, not a tensor."),
        ((torch.ones(2),), (torch.ones(3),), "Part 0 of your output has shape (3,)"),
        (
            (torch.ones(2),),
            (torch.zeros(2),),
            "In part 0 of your output the values differ: at [0] expected 1.000, yours",
        ),
    ],
)
def test_another_value_is_said(expected, answer, says):
    assert says in said_of(lambda x: expected, lambda x: answer)


def test_gradients_of_every_part_are_compared():
    trial = {"x": randn(3, seed=0, dtype=torch.float32)}
    said = said_of(lambda x: (x, x * 2), lambda x: (x, x.detach() * 2), trial)
    assert said.startswith("The values are right, but the gradient of `x` is not")


def test_a_picture_is_for_one_tensor():
    trial = {"x": torch.ones(2, 2)}
    verdict = grade(an_exercise(lambda x: (x, 1), trial), lambda x: (x + 1, 1))
    assert isinstance(verdict, Verdict) and verdict.picture is None
