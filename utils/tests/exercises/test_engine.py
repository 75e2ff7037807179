"""The engine on exercises made up here: what an answer did is seen, said, and named."""

import functools
import itertools
import math
import os
import random
import signal
import threading
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from utils.exercises import running
from utils.exercises.draws import randn
from utils.exercises.engine import UNTOUCHED, Verdict, grade, is_untouched
from utils.tests.exercises.helpers import Notebook, made_up, written

ONE, X = {"x": 1}, {"x": randn(3, 4, seed=0, dtype=torch.float32)}
alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM here")


# --- outputs ----------------------------------------------------------------------

SAME = [
    ("True", "torch.tensor(True)"), ("0.1", "0.1 + 1e-9"),
    ("0.1", "torch.tensor([0.1])"), ("math.nan", "math.nan"), ("'yes'", "'yes'"),
    ("math.inf", "math.inf"), ("(1, 'a')", "[1, 'a']"),
    ("{'a': [1, None]}", "{'a': (1, None)}"),
    ("(torch.ones(2), 3)", "(torch.ones(2), 3)"),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "answer"), SAME)
def test_outputs_are_compared_by_value(expected, answer):
    verdict = grade(made_up(f"return {expected}", ONE), written(f"return {answer}"))
    assert verdict.solved, verdict.message


OTHER = [  # the expected value, another one, and what is said
    ("True", "False", "Your function returned False; expected True."),
    ("3", "True", "Your function returned True; expected 3."),
    ("3", "3.0", "Your function returned 3.0; expected 3."),
    ("1.0", "True", "Your function returned True; expected 1.0."),
    ("1", "'y' * 59", f"Your function returned '{'y' * 56}...; expected 1."),
    ("0.1", "math.nan", "Your function returned nan; expected 0.1."),
    ("'a'", "print()", "returned None; expected 'a'. Is a `return` missing?"),
    ("2.0", "torch.ones(3)", "returned a Tensor of shape (3,); expected 2.0."),
    ("torch.ones(2)", "torch.ones(2, device='meta')", "has device meta; expected cpu"),
    ("(1, 2)", "1", "Your function returned 1; expected a tuple of 2."),
    ("(1, 2)", "(1, 3)", "Part 2 of your output is 3; expected 2."),
    ("{'a': 1}", "{'b': 1}", "has the keys ['b']; expected ['a']."),
    ("{'a': [1, 2]}", "{'a': [1, 0]}", "Part 2 of part 'a' of your output is 0"),
    ("torch.ones(2)", "[1, 1]", "Your function returned [1, 1], not a tensor."),
    ("(torch.ones(2),)", "(torch.ones(3),)", "Part 1 of your output has shape (3,)"),
    ("(torch.ones(2),)", "(torch.zeros(2),)", "In part 1 of your output the values d"),
    ("[1., 2.]", "[1., 2.5]", "The values differ: at [1] expected 2.000, yours 2.500."),
    ("[[1.], [2.]]", "[[1.], [2.0004]]", "at [1, 0] expected 2, yours 2.0004."),
    ("[1., 2.]", "[1., math.inf]", "1 of 2 are infinite."),
    ("[1., 2.]", "[math.nan, 2.]", "1 of 2 are NaN."),
    ("[1., math.inf]", "[2., math.inf]", "at [0] expected 1.000, yours 2.000."),
    ("[1., math.nan]", "[1., 2.]", "at [1] expected nan, yours 2.000."),
    ("[True, False]", "[False, False]", "1 of 2 are flipped."),
    ("[1, 300000]", "[1, 4]", "at [1] expected 300000, yours 4."),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "answer", "says"), OTHER)
def test_another_value_is_said(expected, answer, says):
    if "differ" in says or says[0].islower() or says[0].isdigit():  # lists of numbers
        expected, answer = (
            f"torch.tensor({x})" if x[0] == "[" else x for x in (expected, answer)
        )
    exercise = made_up(f"return {expected}", ONE, gradients=False)
    said = grade(exercise, written(f"return {answer}")).message
    assert says in said and ("missing?" in said) == ("print()" in answer), said


ODD = {  # answers that PyTorch cannot compare, and what is said
    "torch.masked.masked_tensor(x, x > 0)": "MaskedTensor",
    "x.to(torch.float8_e4m3fn)": "has dtype torch.float8_e4m3fn; expected torch",
    "x.to_sparse()": "is a sparse or nested tensor",
    "torch.nested.nested_tensor([x, x])": "is a sparse or nested tensor",
    "x + 0j": "has dtype torch.complex64", "torch.empty(0)": "has shape (0,)",
    "(x, x)": "Its first part is right: return only that.", "object": "not a tensor",
    "x.to('meta')": "has device meta; expected cpu", "10**5000": "a int, not a tensor",
    "Odd()": "a Odd, not a tensor", "knot()": "not a tensor", "fails()": "raised Odd",
    "exit()": "raised SystemExit", "[][1]": "raised IndexError: list index out of",
    "x @ torch.ones(10, 8)": "cannot be multiplied (3x4 and 10x8)",
    "x.view(7, 7)": "\n  In line 2: return x.view(7, 7)\n",
    "F.pad(x, 'no')": "\n  In line 2: return F.pad(x, 'no')\n",
}  # fmt: skip


class Odd(Exception):
    def __repr__(self):
        raise ValueError

    __str__ = __repr__

    def __getattr__(self, name):
        return self


def knot():
    found = []
    return found.append(found) or found


def fails():
    raise Odd


@pytest.mark.parametrize("answer", ODD)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_odd_answers_are_judged_not_thrown(answer):
    function = written(f"return {answer}")
    function.__globals__.update(Odd=Odd, knot=knot, fails=fails)
    verdict = grade(made_up("return x * 1", X), function)
    assert ODD[answer] in verdict.message and not verdict.solved, verdict.message


# --- names ------------------------------------------------------------------------

STABLE = "e = (x - x.amax(dim=-1, keepdim=True)).exp()\n"


def softmax_inputs(dtype):
    yield {"x": randn(3, 5, seed=0, dtype=dtype)}
    yield {"x": randn(2, 3, 3, seed=1, dtype=dtype)}
    yield {"x": randn(2, 4, seed=2, dtype=dtype) * 1000}


SOFTMAX = made_up(
    f"{STABLE}return e / e.sum(dim=-1, keepdim=True)",
    softmax_inputs,
    wrong={
        "no maximum": "return x.exp() / x.exp().sum(dim=-1, keepdim=True)",
        "logarithms": "return x.log_softmax(dim=-1)",
    },
)
NAMES = [  # an answer, its name, what else is said
    ("return x.log_softmax(dim=-1)", "logarithms", "known mistake, 'logarithms'. Why"),
    (f"{STABLE}return e / e.sum(dim=-1)", "keepdim=True forgotten", "a known mistake"),
    ("return F.softmax(x, 0)", "another axis than the last", "(dim=-1)"),
    ("return x.softmax(-1).detach()", "a gradient cut off", "Does a .detach()"),
    (f"{STABLE}return e / e.sum(-1, keepdim=True).detach()",
     "a part of a gradient cut off", "cut a part of it off?"),
    ("return x.log_softmax(-1) if x.abs().max() < 30 else x", "logarithms",
     "On 4 of the 6 inputs on which it is wrong, its output is that of a known"),
    ("return x.log_softmax(-1).detach()", "logarithms", "On 6 of the 6 inputs"),
    ("return x.softmax(-1), x", "more returned than was asked for", "first part"),
    ("return x.softmax(-1).half()", "another dtype", "Your numbers are right"),
    ("return x.softmax(-1) / 4", "right but for a factor", "the same factor"),
    ("return x.softmax(-1).mT", "axes in another order", "Your numbers are right"),
    ("return x.softmax(-1)[None]", "right numbers in another shape", "(1, 3, 5)"),
    ("return x.copy_(x.softmax(-1))", "an argument edited in place", "`x` in place"),
    ("return x.float().softmax(-1).to(x.dtype)", "right in single precision only", "("),
    ("w = x.softmax(-1); w /= 1; return w",
     "a tensor overwritten that the gradient needs", "In line 3: w /= 1"),
    ("print(x)", "no return", "Is a `return` missing?"),
    ("return (x, x).exp()", "a tuple taken for a tensor", "several things"),
    ("return list(x)[:, None]", "a list taken for a tensor", "torch.arange(...)"),
    ("return x >= 0 and x < 2", "many truths where one is needed", "(a >= 0) &"),
    ("return x @ torch.ones(x.shape[-1], 3).double()", None, ""),
    ("return x.mT.view(len(x), -1)", "view of transposed memory", "reshape copies"),
    ("return ~x", "a mask of numbers", "dtype=torch.bool"),
    # what cannot be claimed is not named
    ("return x * math.nan", None, "are NaN"), ("return x / 0", None, "are infinite"),
    ("return x.sigmoid() + 1", None, ""), ("return x[:0]", None, ""),
    ("return x.softmax(-1) if x.abs().max() < 30 else x.sigmoid()", None,
     "Right on 4 of 6 inputs."),
]  # fmt: skip


@pytest.mark.parametrize(("body", "name", "also"), NAMES)
def test_what_was_done_is_named(body, name, also):
    verdict = grade(SOFTMAX, written(body))
    assert not verdict.solved and verdict.mistake == name, verdict.message
    assert also in verdict.message, verdict.message
    assert name or "known mistake" not in verdict.message


def test_of_two_mistakes_that_come_equally_close_none_is_the_name():
    trials = {"x": randn(3, 3, seed=0, dtype=torch.float32)}, {"x": torch.zeros(2, 3)}
    wrong = {"by length": "return x / len(x)", "by width": "return x / x.shape[-1]"}
    exercise = made_up("return x * 1", *trials, wrong=wrong)
    answer = written("return (x / 3, x) if len(x) == 2 else x.detach() / 3")
    assert grade(exercise, answer).mistake is None


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


IS_DOUBLE = made_up(
    "return torch.equal(function(torch.ones(2)), 2 * torch.ones(2))",
    *({"function": f} for f in (double, triple, functools.partial(torch.add, 1))),
    wrong={"says yes to all": "return True"},
    gradients=False,
)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return True", "a known mistake, 'says yes to all'. Why says yes to all.\n  "
         "For `triple` your test said True; expected False."),
        ("print()", "For `double` your test said None; expected True. Is a `return` m"),
        ("return 1 / 0", "For `double` your test raised ZeroDivisionError: division"),
        ("return function(1) == 2", ""),
        ("return 'double' not in str(function)", "said True; expected False."),
    ],
)  # fmt: skip
def test_an_answer_that_is_a_test_is_judged_on_functions(body, says):
    verdict = grade(IS_DOUBLE, written(body, "function"))
    assert verdict.solved is (says == "") and says in verdict.message, verdict.message


# --- what is recorded -------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    ["x.data -= 1; return x * 2 + 2", "x.data *= 1.001; return x * 2 / 1.001",
     "x.detach().numpy()[0] = 0; return x * 2", "x.data = x.data[:1]; return x * 2"],
)  # fmt: skip
def test_an_edit_is_seen_however_it_is_made(body):
    verdict = grade(made_up("return x * 2", X), written(body))
    assert "edits its argument `x` in place" in verdict.message and not verdict.solved


def test_an_edit_inside_a_list_or_dict_is_seen():
    for solution, body, x in (
        ("return x[0] * 2", "x.append(1); return x[0] * 2", [X["x"]]),
        ("return 2.0", "x['a'].zero_(); return 2.0", {"a": X["x"].clone()}),
        ("return max(x)", "x.sort(); return x[-1]", [3, 1, 2]),
    ):
        verdict = grade(made_up(solution, {"x": x}), written(body))
        assert "edits its argument `x`" in verdict.message
    holds_nan = {"x": torch.tensor([1.0, math.nan])}
    assert grade(made_up("return x * 2", holds_nan), written("return x + x")).solved


@pytest.mark.parametrize(
    "x", [X["x"].T, X["x"][:, ::2], X["x"][:, :1].expand(3, 4), X["x"].T[1:]]
)
def test_an_input_arrives_as_it_lies_in_memory(x):
    strides = []

    def answer(y):
        strides.append(y.stride())
        return y**2

    assert grade(made_up("return x * x", {"x": x}), answer).solved
    assert set(strides) == {x.stride()}
    verdict = grade(made_up("return x * x", {"x": x}), lambda y: y.detach() ** 2)
    assert verdict.mistake == "a gradient cut off"


def test_a_nan_that_is_thrown_away_counts_where_none_may_arise():
    trial = {"x": torch.tensor([-1.0, -2.0, -4.0])}
    painted = written("return x.masked_fill(x < 0, -math.inf).softmax(-1).nan_to_num()")
    assert grade(made_up("return x * 0", trial), painted).solved
    strict = made_up("return x * 0", trial, gradients="without nan")
    assert "but in the backward pass: a NaN arises." in grade(strict, painted).message
    assert grade(strict, written("return 0 * x")).solved
    assert not torch.is_anomaly_enabled()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ctx.error


@pytest.mark.parametrize("error", [KeyError("lost"), AssertionError(), SystemExit(1)])
def test_a_backward_that_raises_is_judged(error):
    verdict = grade(made_up("return x * 2", X), lambda x: Fails.apply(x, error))
    assert f"backward pass: {type(error).__name__}" in verdict.message


def test_a_module_is_a_fresh_one_in_every_call_and_no_function_tells_its_name():
    layer, before = torch.nn.Linear(2, 2), None
    before = layer.weight.clone()
    exercise = made_up("return 1", {"layer": layer})
    assert not grade(exercise, lambda f: f.weight).solved  # a function, nothing more

    def counts(x, calls=[]):  # noqa: B006
        calls.append(x)
        return len(calls)

    class Counts:
        calls = 0

        def __call__(self):
            self.calls += 1
            return self.calls

    exercise = made_up("return f()", {"f": Counts()})
    assert grade(exercise, lambda f: f()).solved and torch.equal(layer.weight, before)


def test_a_message_describes_every_argument():
    trial = {
        "query": torch.full((2, 3), -900.0, dtype=torch.float64),
        "mask": torch.ones(3, dtype=torch.bool),
        "num_heads": 4,
        "words": ["the cat sat on the mat"] * 5,
        "norm": functools.partial(double),
    }
    verdict = grade(made_up("return 1", trial), lambda *args: 2)
    assert verdict.message == (
        "For `double` your function returned 2; expected 1.\n"
        "  Tried with query float64 (2, 3) up to ±900, mask bool (3,), num_heads 4, "
        "words ['the cat sat on the mat', 'the cat s..., norm `double`."
    )


def test_a_picture_is_for_one_tensor_whose_values_differ():
    exercise = made_up("return x * 1", X)
    expected, yours = grade(exercise, lambda x: x + 1).picture
    torch.testing.assert_close(yours, expected + 1)
    assert grade(exercise, lambda x: x[:1]).picture is None
    pair = made_up("return x, 1", X)
    assert grade(pair, lambda x: (x + 1, 1)).picture is None


# --- called again, endless, untouched ---------------------------------------------

COUNTS = "calls.append(x.dtype); return x * (1 if len(calls) <= 2 else 2)"
WRONG_AND_COUNTS = "calls.append(1); return x + len(calls)"


@pytest.mark.parametrize("body", [COUNTS, WRONG_AND_COUNTS])
def test_a_second_call_that_differs_is_noticed(body, capsys):
    answer = written(f"print('seen'); {body}")
    answer.__globals__["calls"] = []
    exercise = made_up("return x * 1", lambda dtype: [{"x": X["x"].to(dtype)}])
    verdict = grade(exercise, answer)
    assert "Called again with the same inputs" in verdict.message
    assert capsys.readouterr().out == "seen\n" * 2  # once in each precision


def test_random_numbers_are_the_same_in_every_round_and_differ_between_inputs():
    drawn = []

    def answer(x):
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))
        return x * 2

    assert grade(made_up("return x * 2", X, X), answer).solved
    assert [len(set(kind)) for kind in zip(*drawn[:4])] == [4, 4, 4]
    assert drawn[4:] == drawn[:4]


ENDLESS = "while True: x = x"
DEAF = """
while True:
    try:
        while True: pass
    except Exception: continue"""


@alarm
@pytest.mark.parametrize("body", [ENDLESS, DEAF])
def test_an_endless_answer_is_stopped_and_shows_its_line(monkeypatch, body):
    monkeypatch.setattr(running, "LIMIT", 0.2)
    calls = []

    def ends_once(x):
        calls.append(x)
        return x if len(calls) == 1 else written(body)(x)

    exercise = made_up("return x", {"x": 1}, {"x": 2}, {"x": 3})
    message = grade(exercise, ends_once).message
    assert "had not finished after 0.2 seconds and was stopped.\n  In line" in message
    assert calls == [1, 2] and "Right on" not in message
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@alarm
def test_the_stop_button_works_and_somebody_elses_alarm_is_left_alone():
    # a process that was started in the background may ignore the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            grade(
                made_up("return 1", ONE), lambda x: signal.raise_signal(signal.SIGINT)
            )
    finally:
        signal.signal(signal.SIGINT, before)
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        assert grade(made_up("return 1", ONE), lambda x: 1).solved
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_another_thread_can_check():
    found = []
    answers = (lambda x: 1), (lambda x: 2)
    exercise = made_up("return 1", ONE)
    thread = threading.Thread(
        target=lambda: found.extend(grade(exercise, a).solved for a in answers)
    )
    thread.start()
    thread.join()
    assert found == [True, False]


def stub(x, y=1):
    """A stub."""
    ...


def test_untouched_is_seen_through_partial_and_decorators():
    verdict = grade(made_up("return 1", ONE), stub)
    assert verdict == Verdict(UNTOUCHED, "Replace the ... and run the cell again.")
    wrapped = functools.wraps(stub)(lambda *args: stub(*args))
    again = functools.partial(functools.partial(stub), 1), torch.no_grad()(stub)
    assert all(map(is_untouched, (stub, wrapped, functools.lru_cache(stub), *again)))
    touched = double, len, torch.nn.Softmax(-1), lambda x: "", lambda x: x
    assert not any(map(is_untouched, touched))


# --- nothing stays ----------------------------------------------------------------


def sets_everything(x):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_printoptions(precision=9, sci_mode=True)
    torch.autograd.set_detect_anomaly(True)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    warnings.simplefilter("error")
    os.chdir("/")
    torch.use_deterministic_algorithms(True)
    plt.rcParams["lines.linewidth"] = 9
    np.seterr(all="raise")
    np.set_printoptions(precision=1)
    return x * 2


def settings() -> dict:
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.empty(0).device,
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "printed": str(torch.tensor([1 / 3])),
        "anomaly": torch.is_anomaly_enabled(),
        "torch": torch.get_rng_state().sum().item(),
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "warnings": list(warnings.filters),
        "folder": os.getcwd(),
        "exact": torch.are_deterministic_algorithms_enabled(),
        "plots": plt.rcParams.copy(),
        "errors": np.geterr(),
        "arrays": np.get_printoptions(),
    }


@pytest.mark.parametrize("wrong", [False, True])
def test_what_an_answer_sets_is_set_back_and_not_held_against_it(wrong):
    def answer(x):
        y = sets_everything(x)
        torch.set_grad_enabled(not wrong)
        return y + wrong

    torch.manual_seed(0)
    before = settings()
    assert grade(made_up("return x * 2", X), answer).solved is not wrong
    after = settings()
    assert [k for k in before if before[k] != after[k]] == []


def test_a_default_device_does_not_matter():
    torch.set_default_device("meta")
    try:
        exercise = made_up("return x + torch.zeros(4)", X)
        assert grade(exercise, lambda x: x + torch.zeros(4)).solved
        assert torch.empty(1).device.type == "meta"
    finally:
        torch.set_default_device(None)


def test_a_warning_is_no_error_whatever_the_notebook_has_set():
    exercise = made_up("return x * 1", {"x": torch.tensor([math.nan, 1.0])})
    answer = written("import numpy as np; np.nanmax([np.nan]); return 1 * x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert grade(exercise, answer).solved


def test_the_notebooks_modes_do_not_matter():
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            exercise = made_up("return x + torch.zeros(4)", X)
            assert grade(exercise, lambda x: x + torch.zeros(4)).solved
            assert not grade(exercise, lambda x: x.detach() + torch.zeros(4)).solved
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_answer_that_alternates_is_found_out():
    calls = itertools.count()
    exercise = made_up("return 2 * x", X)
    said = grade(exercise, lambda x: 2 * x if next(calls) % 2 else 5 * x).message
    assert "Called again with the same inputs, your function does something" in said


def test_without_source_no_line_is_invented():
    names = Notebook().names
    exec("def answer(x):\n    return 1 / 0", names)
    for answer in (names["answer"], len):
        assert "In line" not in grade(made_up("return 1", ONE), answer).message
