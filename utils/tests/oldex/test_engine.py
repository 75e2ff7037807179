"""The engine on exercises made up here: arguments, outputs and what is said of them."""

import dataclasses
import functools
import itertools
import math
import re

import pytest
import torch

from utils.oldex import running
from utils.oldex.compare import alike
from utils.oldex.engine import UNTOUCHED, Verdict, grade, is_untouched, randn
from utils.oldex.running import Run
from utils.tests.helpers import made_up, written


def said_of(reference, answer, *trials) -> str:
    """Return what is said of an answer, without what it was tried with."""
    verdict = grade(made_up(reference, *trials or ({"x": 1},)), answer)
    return "solved" if verdict.solved else verdict.message.split("\n")[0]


# --- an exercise whose answer is a test -------------------------------------------


def double(x):
    return 2 * x


def double_wrong(x):
    return x**2


def squared(x):
    """A square is no double."""
    return x * x


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


WRITE_THE_TEST = made_up(
    recognises_double,
    {"function": double},
    {"function": double_wrong},
    {"function": functools.partial(double_of_wrong_shape)},
    wrong={"always True": believes_everything, "shapes only": compares_shapes},
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
    assert partly == (
        "For `double_of_wrong_shape` your test said True; expected False. "
        "Right on 4 of 6 inputs."
    )


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda f: [][:].append(f),
         "For `double` your test said None; expected True. Is a `retu"),
        (lambda f: 1, "For `double` your test said 1; expected True."),
        (lambda f: 1 / 0, "For `double` your test raised ZeroDivisionError: division"),
    ],
)  # fmt: skip
def test_what_a_test_did_wrong_is_said(answer, says):
    assert grade(WRITE_THE_TEST, answer).message.startswith(says)


# --- outputs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected, answer",
    [
        (True, torch.tensor(True)),
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
        (3, 3.0, "Your function returned 3.0; expected 3."),
        (1, True, "Your function returned True; expected 1."),
        (1.0, True, "Your function returned True; expected 1.0."),
        (1, "y" * 58, f"Your function returned '{'y' * 58}'; expected 1."),
        (1, "y" * 59, f"Your function returned '{'y' * 56}...; expected 1."),
        (3, 4, "Your function returned 4; expected 3."),
        (0.1, 0.101, "Your function returned 0.101; expected 0.1."),
        (0.1, math.nan, "Your function returned nan; expected 0.1."),
        (0.1, "0.1", "Your function returned '0.1'; expected 0.1."),
        ("a", "b", "Your function returned 'b'; expected 'a'."),
        ("a", None, "returned None; expected 'a'. Is a `return` missing?"),
        (None, 0, "Your function returned 0; expected None."),
        (2.0, torch.ones(3), "returned a tensor of shape (3,); expected 2.0."),
        ("a", torch.ones(1), "returned a tensor of shape (1,); expected 'a'."),
        (torch.ones(2), torch.ones(2, device="meta"), "Your output is on meta; the in"),
        ((1, 2), 1, "Your function returned int; expected a tuple."),
        ((1, 2), None, "returned NoneType; expected a tuple. Is a `return` missing?"),
        ((1, 2), (1, 2, 3), "Your function returned 3 parts; expected 2."),
        ((1, 2), (1, 3), "Part 2 (of 2) of your output is 3; expected 2."),
        ({"a": 1}, {"b": 1}, "returned the keys ['b']; expected ['a']."),
        ({"a": [1, 2]}, {"a": [1, 0]}, "Part 2 (of 2) of part 'a' of your output is 0"),
        (torch.ones(2), [1, 1], "list, not a tensor. Return one tensor; this holds 2."),
        ((torch.ones(2),), (1.0,), "Part 1 (of 1) of your output is float, not a t"),
        ((torch.ones(2),), (torch.ones(3),), "Part 1 (of 1) of your output has shape"),
        ((torch.ones(2),), (torch.zeros(2),),
         "In part 1 (of 1) of your output the values differ: at [0] expected 1.000,"),
    ],
)  # fmt: skip
def test_another_value_is_said(expected, answer, says):
    said = said_of(lambda x: expected, lambda x: answer)
    assert says in said and ("missing?" in said) == (answer is None)


def refuses(x):
    raise ValueError(f"x is {x}")


def refuses_otherwise(x):
    raise ValueError("something else")


def test_an_error_may_be_what_was_asked_for():
    assert said_of(refuses, refuses_otherwise) == "solved"
    said = said_of(refuses, lambda x: 1)
    assert said == "Your function raised no error; expected a ValueError."
    said = said_of(refuses, lambda x: x.y)
    assert said.startswith("Your function raised AttributeError: 'int' object has no")


def test_an_error_outside_of_the_answer_has_no_line():
    message = grade(made_up(lambda x: 1, {"x": 1}), len).message
    assert "TypeError: object of type 'int' has no len()" in message
    assert "In " not in message


def test_a_mistake_says_why_once_and_may_have_several_forms():
    exercise = made_up(lambda x: x, {"x": 1})
    with pytest.raises(ValueError, match="0.0 'doubled': say why it is wrong"):
        exercise.wrong("doubled")
    assert exercise.wrong("doubled", "Once is enough.")(double) is double
    exercise.wrong("doubled", double_wrong)
    forms = [("doubled", "Once is enough.", f) for f in (double, double_wrong)]
    assert list(exercise.forms()) == forms and exercise.names() == ["doubled"]


def test_an_answer_cannot_change_its_exercise_or_its_verdict():
    exercise = made_up(lambda x: x, {"x": 1}, wrong={"doubled": squared})
    verdict = grade(exercise, lambda x: ...)
    for thing, name in (
        (exercise, "reference"),
        (exercise.known[0], "why"),
        (verdict, "status"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, "solved")


def test_what_is_told_of_an_untouched_answer_and_of_an_error_on_some_inputs():
    exercise = made_up(lambda x: 1 / x if x else 0, {"x": 1}, {"x": 0})
    verdict = grade(exercise, lambda x: ...)
    assert verdict == Verdict(UNTOUCHED, "Replace the ... and run the cell again.")
    message = grade(exercise, written("return 1 / x")).message
    assert "\n  In line 2: return 1 / x" in message
    assert message.endswith("\n  Right on 2 of 4 inputs.")
    message = grade(exercise, lambda x: 1 / x if x else 5).message
    assert message.endswith("Tried with x 0. Right on 2 of 4 inputs.")


def test_an_answer_that_alternates_is_found_out():
    calls = itertools.count()
    exercise = made_up(double, {"x": torch.ones(2)}, {"x": torch.zeros(2) + 3})
    said = grade(exercise, lambda x: 2 * x if next(calls) % 2 else 5 * x).message
    assert "Called again with the same inputs, your function does something" in said


def test_after_an_answer_without_end_nothing_else_is_tried(monkeypatch):
    monkeypatch.setattr(running, "LIMIT", 0.2)
    calls = []

    def ends_once(x):
        calls.append(x)
        while len(calls) > 1:
            pass
        return x

    trials = {"x": 1}, {"x": 2}, {"x": 3}
    message = grade(made_up(lambda x: x, *trials), ends_once).message
    assert "had not finished after 0.2 seconds" in message and calls == [1, 2]
    assert "Right on" not in message


def test_an_address_in_an_error_is_no_difference():
    kept = []

    def asks(x):
        """There is nothing to ask."""
        kept.append(object())
        raise ValueError(f"what is {kept[-1]}?")

    exercise = made_up(lambda x: 1, {"x": 1}, wrong={"asks": asks})
    assert grade(exercise, asks).mistake == "asks"


@pytest.mark.parametrize("field", ["error", "backward_error"])
def test_runs_are_alike_if_their_errors_are_equal_word_for_word(field):
    one, same, other = (Run(**{field: ValueError(x)}) for x in ("one", "one", "other"))
    assert alike(one, same) and not alike(one, other)
    assert not alike(one, Run()) and not alike(Run(), one)


def test_gradients_of_every_part_are_compared():
    trial = {"x": randn(3, seed=0, dtype=torch.float32)}
    said = said_of(
        lambda x: (x, x * 2), lambda x: (x, torch.tensor(x.tolist()) * 2), trial
    )
    assert said.startswith("The values are right, but the gradient of `x` is not: at")


def test_a_picture_is_for_one_tensor():
    trial = {"x": torch.ones(2, 2)}
    verdict = grade(made_up(lambda x: (x, 1), trial), lambda x: (x + 1, 1))
    assert isinstance(verdict, Verdict) and verdict.picture is None


# --- where the values differ ------------------------------------------------------


@pytest.mark.parametrize(
    "expected, answer, says",
    [
        ([1.0, 2.0, 3.0], [1.0, 2.5, 3.1], "at [1] expected 2.000, yours 2.500."),
        ([[1.0], [2.0]], [[1.0], [2.0004]], "at [1, 0] expected 2, yours 2.0004."),
        ([1.0, 2.0, 3.0, 4.0], [1.0, math.inf, 3.0, 4.0], "1 of 4 are infinite."),
        ([1.0, 2.0, 3.0, 4.0], [1.0, -math.inf, 3.0, 9.0], "1 of 4 are infinite."),
        ([1.0, 2.0, 3.0], [math.nan, math.inf, math.nan], "2 of 3 are NaN."),
        ([1.0, math.inf], [2.0, math.inf], "at [0] expected 1.000, yours 2.000."),
        ([1.0, math.nan], [2.0, math.nan], "at [0] expected 1.000, yours 2.000."),
        ([1.0, math.nan], [1.0, 2.0], "at [1] expected nan, yours 2.000."),
        ([True, False, True], [True, True, False], "2 of 3 are flipped."),
        ([1, 2, 300000], [1, 2, 4], "at [2] expected 300000, yours 4."),
    ],
)
def test_the_place_and_the_values_are_said(expected, answer, says):
    expected, answer = torch.tensor(expected), torch.tensor(answer)
    said = grade(made_up(lambda x: expected, {"x": 1}), lambda x: answer).message
    assert f"The values differ: {says}\n" in said, said


def test_a_partly_wrong_gradient_names_a_place():
    trial = {"x": torch.tensor([1.0, 2.0, 3.0])}
    twice_in_the_middle = torch.tensor([1.0, 2.0, 1.0])

    def answer(x):
        return x.detach() + (x - x.detach()) * twice_in_the_middle

    said = grade(made_up(lambda x: x * 1, trial), answer).message
    at, numbers = said.split("the gradient of `x` is not: at ")[1].split("] expected ")
    expected, yours = map(float, re.findall(r"-?\d+\.\d+", numbers))
    assert at == "[1" and yours == pytest.approx(2 * expected, abs=2e-3)


# --- what a message describes -----------------------------------------------------


def test_a_message_describes_every_argument():
    trial = {
        "query": torch.full((2, 3), -900.0, dtype=torch.float64),
        "mask": torch.ones(3, dtype=torch.bool),
        "num_heads": 4,
        "words": ["the cat sat on the mat"] * 5,
        "norm": functools.partial(double),
        "layer": torch.nn.Linear(2, 2),
    }
    verdict = grade(made_up(lambda *args: 1, trial), lambda *args: 2)
    assert verdict.message == (
        "For `double`, `Linear` your function returned 2; expected 1.\n"
        "  Tried with query float64 (2, 3) up to ±900, mask bool (3,), num_heads 4, "
        "words ['the cat sat on the mat', 'the cat s..., norm `double`, "
        "layer `Linear`."
    )


def test_it_is_the_first_wrong_input_that_is_described():
    trials = {"x": torch.zeros(2)}, {"x": torch.arange(3.0)}, {"x": torch.ones(4)}
    exercise = made_up(lambda x: x * 3, *trials, gradients=False)
    verdict = grade(exercise, lambda x: x**2)
    assert "Tried with x float32 (3,). Right on 2 of 6 inputs." in verdict.message


def test_a_module_among_the_arguments_is_a_fresh_one_in_every_call():
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.clone()

    def answer(layer):
        layer.weight.data.zero_()
        return 1

    assert grade(made_up(lambda layer: 1, {"layer": layer}), answer).solved
    assert torch.equal(layer.weight, before)


# --- untouched --------------------------------------------------------------------


def stub(x, y=1):
    """A stub."""
    ...


def decorated(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


class Layer(torch.nn.Module):
    def forward(self, x): ...


def test_untouched_is_seen_through_partial_and_decorators():
    stubs = [
        stub,
        functools.partial(stub, y=2),
        functools.partial(functools.partial(stub), 1),
        decorated(stub),
        decorated(functools.partial(decorated(stub))),
        functools.lru_cache(stub),
        torch.no_grad()(stub),
        Layer(),
    ]
    assert all(map(is_untouched, stubs))
    touched = [
        double,
        functools.partial(double),
        decorated(double),
        len,
        torch.nn.Softmax(-1),
        lambda x: "",
        functools.lru_cache(double),
    ]
    assert not any(map(is_untouched, touched))
