"""The engine on exercises made up here: what an answer did is seen, said, and named."""

import functools
import math
import random
import signal
import threading
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from utils.exercises import engine, running
from utils.exercises.draws import randn
from utils.exercises.engine import UNTOUCHED, Verdict, grade, is_untouched
from utils.tests.exercises.helpers import Notebook, made_up, written

ONE, X = {"x": 1}, {"x": randn(3, 4, seed=0, dtype=torch.float32)}
alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM here")


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


class Odd:
    def __repr__(self):
        raise ValueError


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ctx.error


# --- outputs ----------------------------------------------------------------------

OUTPUTS = [  # what the solution returns, what the answer returns, what is said if wrong
    ("True", "T(True)", ""), ("0.1", "0.1 + 1e-9", ""), ("0.1", "T([0.1])", ""),
    ("math.nan", "math.nan", ""), ("{'a': [1, None]}", "{'a': (1, None)}", ""),
    ("(T([1.]), 'a')", "[T([1.]), 'a']", ""), ("T([math.nan])", "T([math.nan])", ""),
    ("True", "False", "Your function returned False; expected True."),
    ("3", "True", "Your function returned True; expected 3."),
    ("3", "3.0", "Your function returned 3.0; expected 3."),
    ("1", "'y' * 59", f"Your function returned '{'y' * 56}...; expected 1."),
    ("0.1", "math.nan", "Your function returned nan; expected 0.1."),
    ("0.1", "0.1002", "Your function returned 0.1002; expected 0.1."),
    ("1 / 3", "print", "returned <built-in function print>; expected 0.333"),
    ("1.0", "lambda: x", "Your function returned a function; expected 1.0."),
    ("T([-0.0])", "T([1.])", "at [0] expected 0, yours 1."),
    ("1", "exec('raise OSError')", "raised OSError\n"),
    ("'a'", "print()", "returned None; expected 'a'.\n  Is a `return` missing?"),
    ("x * 1", "print()", "expected a Tensor of shape (3, 4).\n  Is a `return` miss"),
    ("2.0", "T([1, 1, 1])", "returned a Tensor of shape (3,); expected 2.0."),
    ("(1, 2)", "1", "Your function returned 1; expected a tuple of 2."),
    ("{'a': x * 1}", "{'a': x, 'b': x}", "returned a dict of 2; expected a dict of 1."),
    ("T([1.0]).double()", "T([1.0]).double() + 5e-8", "1, yours 1.00000005."),
    ("(1, 2)", "(1, 3)", "Part 2 of your output is 3; expected 2."),
    ("{'a': 1}", "{'b': 1}", "Your output has the keys ['b']; expected ['a']."),
    ("{'a': [1, 2]}", "{'a': [1, 0]}", "Part 2 of part 'a' of your output is 0"),
    ("(T([1.]),)", "(T([0.]),)", "In part 1 of your output the values differ: at [0]"),
    ("T([1., 1])", "[1, 1]", "Your function returned [1, 1]; expected a Tensor of"),
    ("T([[1.], [2]])", "T([[1], [2.0004]])", "at [1, 0] expected 2, yours 2.0004."),
    ("T([1., 2])", "T([1, math.inf])", "1 of 2 are NaN or infinite."),
    ("T([1., math.inf])", "T([2, math.inf])", "at [0] expected 1, yours 2."),
    ("T([1., math.nan])", "T([1., 2.])", "at [1] expected nan, yours 2."),
    ("T([True, False])", "T([False, False])", "at [0] expected True, yours False."),
    ("T([1, 300000])", "T([1, 4])", "at [1] expected 300000, yours 4."),
    # what PyTorch cannot compare
    ("x * 1", "torch.masked.masked_tensor(x, x > 0)", "MaskedTensor"),
    ("x * 1", "x.to(torch.float8_e4m3fn)", "dtype torch.float8_e4m3fn; expected torch"),
    ("x * 1", "x.to_sparse()", "is a sparse or nested tensor; return an ordin"),
    ("x * 1", "x + 0j", "has dtype torch.complex64"), ("x * 1", "x[:0]", "has shape ("),
    ("x * 1", "x.detach().to('meta')", "has device meta; expected cpu"),
    ("x * 1", "10**5000", "a int; expected"), ("x * 1", "Odd()", "a Odd; expected"),
    ("x * 1", "exit()", "raised SystemExit"), ("1", "[][1]", "raised IndexError: list"),
    ("x * 1", "x @ torch.ones(10, 8)", "cannot be multiplied (3x4 and 10x8)"),
    ("x * 1", "F.pad(x, 'no')", "\n  In line 2: return F.pad(x, 'no')\n"),
    ("1 / 0", "1", "did not do what it should: raises ZeroDivisionError: division"),
    ("1 / 0", "2 / 0", ""),
    ("x * 2", "Fails.apply(x, KeyError(1))", "in the backward pass: KeyError: 1."),
    ("x * 2", "Fails.apply(x, SystemExit(1))", "in the backward pass: SystemExit: 1."),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "answer", "says"), OUTPUTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_outputs_are_compared_by_value(expected, answer, says):
    function = written(f"return {answer}")
    function.__globals__.update(Fails=Fails, Odd=Odd)
    verdict = grade(made_up(f"return {expected}", X), function)
    assert verdict.solved is (says == "") and says in verdict.message, verdict.message
    assert ("missing?" in verdict.message) is (answer == "print()")


# --- names ------------------------------------------------------------------------

STABLE = "e = (x - x.amax(dim=-1, keepdim=True)).exp()\n"


def softmax_inputs(dtype):
    yield {"x": randn(3, 5, seed=0, dtype=dtype)}
    yield {"x": randn(2, 3, 3, seed=1, dtype=dtype)}
    yield {"x": randn(2, 4, seed=2, dtype=dtype) * 1000}


S = made_up(  # a softmax
    f"{STABLE}return e / e.sum(dim=-1, keepdim=True)",
    softmax_inputs,
    wrong={
        "no maximum": "return x.exp() / x.exp().sum(dim=-1, keepdim=True)",
        "logarithms": "return x.log_softmax(dim=-1)",
    },
)
TEST = made_up(  # whether a function doubles
    "return torch.equal(function(torch.ones(2)), 2 * torch.ones(2))",
    *({"function": f} for f in (double, triple, functools.partial(torch.add, 1))),
    wrong={"says yes to all": "return True"},
    gradients=False,
)
ROWS = made_up(
    "return x * 1",
    {"x": randn(3, 3, seed=0, dtype=torch.float32)},
    {"x": torch.zeros(2, 3)},
    wrong={"by length": "return x / len(x)", "by width": "return x / x.shape[-1]"},
)
THIRDS = made_up("return x / 3", {"x": torch.tensor([1.0, 2.0, 4.0])})
TWO = made_up("return x.softmax(-1), len(x)", softmax_inputs)


def once_larger(dtype):
    yield {"x": randn(2, 2, seed=0, dtype=dtype)}
    if dtype == torch.float32:
        yield {"x": randn(3, 3, seed=0, dtype=dtype)}


POWER = made_up("return x * 1", once_larger, wrong={"a power": "return x ** len(x)"})
NAMES = [  # exercise, answer, its name, what else is said
    (S, "return x.log_softmax(dim=-1)", "logarithms",
     "Your answer equals a known mistake, 'logarithms'. Why logarithms.\n  The values"),
    (S, f"{STABLE}return e / e.sum(dim=-1)", "keepdim=True forgotten", "known mi"),
    (S, "return F.softmax(x, 0)", "another axis than the last", "(dim=-1)"),
    (S, "return x.softmax(-1).detach()", "a gradient cut off", "Does a .detach()"),
    (S, f"{STABLE}return e / e.sum(-1, keepdim=True).detach()",
     "a part of a gradient cut off", "cut a part of it off?"),
    (S, "return x.log_softmax(-1) if x.abs().max() < 30 else x", "logarithms",
     "On 4 of the 6 inputs on which it is wrong, its output is that of a known"),
    (S, "return x.log_softmax(-1).detach()", "logarithms", "On 6 of the 6 inputs"),
    (S, "return x.softmax(-1), x", "more returned than was asked for", "first p"),
    (S, "return x.softmax(-1).half()", "another dtype", "but not their type"),
    (S, "return x.softmax(-1).mT", "axes in another order", "Your numbers are r"),
    (S, "return x.softmax(-1)[None]", "right numbers in another shape", "(1, 3,"),
    (S, "return x.copy_(x.softmax(-1))", "an argument edited in place",
     "Your function edits its argument `x` in place.\n  The caller still needs it."),
    (TWO, "return x.float().softmax(-1).to(x.dtype), len(x)",
     "right in single precision only", "In part 1 of your output the values differ"),
    (TWO, "return x.softmax(-1).mT, len(x) + 0.5", None, ""),
    (THIRDS, "return x / 2", "right but for a factor", "the same factor"),
    (THIRDS, "return (x / 3).half().float()", None, ""),
    (POWER, "return x ** len(x)", "a power", "equals a known mistake"),
    (POWER, "return x ** 3 if len(x) == 3 else x * 1", None, "Right on 2 of 3"),
    (S, "w = x.softmax(-1); w /= 1; return w",
     "a tensor overwritten that the gradient needs", "Build a new one"),
    (S, "print(x)", "no return", "Is a `return` missing?"),
    (S, "return (x, x).exp()", "a tuple taken for a tensor", "several things"),
    (S, "return list(x)[:, None]", "a list taken for a tensor", "torch.arange(.."),
    (S, "return x >= 0 and x < 2", "many truths where one is needed", "(a >= 0)"),
    (S, "return x.mT.view(len(x), -1)", "view of transposed memory", "reshape co"),
    (S, "return ~x", "a mask of numbers", "dtype=torch.bool"),
    # what cannot be claimed is not named
    (S, "return x * math.nan", None, "are NaN"), (S, "return x[:0]", None, ""),
    (S, "return x.sigmoid() + 1", None, ""),
    (made_up("return T([50000])", X), "return T([50001])", None, "yours 50001."),
    (S, "return x.softmax(-1) if x.abs().max() < 30 else x.sigmoid()", None,
     "Right on 4 of 6 inputs."),
    (ROWS, "return (x / 3, x) if len(x) == 2 else x.detach() / 3", None, ""),
    # answers that are tests
    (TEST, "return True", "says yes to all", "'says yes to all'. Why says yes to "
     "all.\n  For `triple` your test said True; expected False."),
    (TEST, "print()", "no return", "For `double` your test said None; expected Tr"),
    (TEST, "return 1 / 0", None, "For `double` your test raised ZeroDivisionError"),
    (TEST, "return 'double' not in str(function)", "says yes to all", "said True;"),
]  # fmt: skip


@pytest.mark.parametrize(("exercise", "body", "name", "also"), NAMES)
def test_what_was_done_is_named(exercise, body, name, also):
    arguments = "function" if exercise is TEST else "x"
    verdict = grade(exercise, written(body, arguments))
    assert not verdict.solved and verdict.mistake == name, verdict.message
    assert also in verdict.message, verdict.message
    assert name or "known mistake" not in verdict.message
    assert grade(TEST, lambda function: function(1) == 2).solved


# --- what is recorded -------------------------------------------------------------

NUMBERS = torch.tensor([[1.0, math.nan], [3.0, 4.0]])
LAYER = torch.nn.Linear(1, 1)
EDITS = [  # an argument, a right answer that edits it, the same without the edit
    (NUMBERS, "x.data -= 1; return x * 2 + 2", "return x * 2"),
    (NUMBERS, "y = x * 2; x.detach().numpy()[0, 0] = 1.01; return y", "return x * 2"),
    (NUMBERS, "y = x * 2; x.data = x.data[:1]; return y", "return x * 2"),
    ([NUMBERS], "x.append(1); return x[0] * 2", "return x[0] * 2"),
    ([NUMBERS], "y = x[0] * 2; x[0] = None; return y", "return x[0] * 2"),
    ({"a": [NUMBERS]}, "y = x['a'][0] * 2; x['a'][0].zero_(); return y",
     "return x['a'][0] * 2"),
    ([3, 1, 2], "x.sort(); return x[-1]", "return max(x)"),
    ([LAYER], "x[0].bias.data.zero_(); return 1", "return 1"),
    ([LAYER], "x[0].eval(); return 1", "x[0].eval(); x[0].train(); return 1"),
    ([LAYER], "x[0].register_forward_hook(print); return 1",
     "x[0].register_forward_hook(print).remove(); return 1"),
    ([LAYER], "x[0].requires_grad_(False); return 1", "return 1"),
    ([LAYER], "x[0].forward = print; return 1",
     "old = x[0].forward; x[0].forward = print; x[0].forward = old; return 1"),
    ([LAYER], "x.pop(); return 1", "x[0](torch.ones(1)); return 1"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "edits", "does_not"), EDITS)
def test_an_edit_is_seen_however_it_is_made(x, edits, does_not):
    exercise = made_up(does_not, {"x": x})
    verdict = grade(exercise, written(edits))
    of_layer = isinstance(x, list) and LAYER in x[:1]
    said = "does not leave `x` as it was" if of_layer else "edits its argument `x` in"
    assert said in verdict.message and not verdict.solved
    assert verdict.picture is None and grade(exercise, written(does_not)).solved


def test_an_input_arrives_as_it_lies_in_memory():
    strides, x = [], X["x"].T

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


def test_a_module_is_a_fresh_one_in_every_call_and_no_function_tells_its_name():
    class Counts(torch.nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    layer = Counts(2, 2)
    exercise = made_up("return f(2)", {"f": layer})
    assert grade(exercise, lambda f: f(2)).solved and layer.calls == 0
    assert not grade(exercise, lambda f: f.weight).solved  # a function, nothing more


def test_a_message_describes_every_argument():
    trial = {
        "query": torch.tensor([[-900.0, math.inf]], dtype=torch.float64),
        "mask": torch.ones(3, dtype=torch.bool),
        "num_heads": 4,
        "words": ["the cat sat on the mat"] * 5,
        "norm": double,
    }
    verdict = grade(made_up("return 1", trial), lambda *args: 2)
    assert verdict.message == (
        "For `double` your function returned 2; expected 1.\n"
        "  Tried with query float64 (1, 2) up to ±900, mask bool (3,), num_heads 4, "
        "words ['the cat sat on the mat', 'the cat s..., norm `double`."
    )


PICTURES = [  # what the solution returns, the answer, the matrices that are drawn
    ("x * 1", lambda x: x + 1, lambda x: (x, x + 1)),
    ("x[0] * 1", lambda x: x[0] + 1, lambda x: (x[:1], x[:1] + 1)),
    ("torch.stack([x, x, x])", lambda x: torch.stack([x + 1, x + 2, x]),
     lambda x: (x, x + 2)),
    ("x * 1", lambda x: x[:1], None), ("(x, 1)", lambda x: (x + 1, 1), None),
    ("x.sum()", lambda x: x.sum() + 1, None),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "answer", "drawn"), PICTURES)
def test_a_picture_is_for_one_tensor_whose_values_differ(expected, answer, drawn):
    picture = grade(made_up(f"return {expected}", X), answer).picture
    assert (picture is None) is (drawn is None)
    torch.testing.assert_close(picture, drawn and drawn(X["x"].double()))


def test_the_caption_of_a_picture_does_not_call_nan_equal(monkeypatch):
    said = []
    monkeypatch.setattr(engine, "show", lambda figure, caption: said.append(caption))
    x = torch.tensor([[1.0, 2.0]])
    engine.draw(x, x + 0.5)
    engine.draw(x, torch.tensor([[1.0, math.nan]]))
    assert said[0] == "Expected and your output differ by at most 0.5."
    assert said[1].startswith("Hatched: NaN or infinite.") and " 0." in said[1]
    plt.close("all")


# --- called again, endless, untouched ---------------------------------------------

AGAIN = "Called again with the same inputs, your function does something else."
REPEATS = [  # what the solution returns, what an answer whose calls are counted returns
    ("x * 1", "x * (1 if len(calls) <= 2 else 2)"),
    ("x * 1", "x + len(calls)"),
    ("x * 1", "x * (5 if len(calls) % 2 else 1)"),
    ("(x * 1, x * 0)", "(x * 1, x * len(calls))"),
    ("(x * 1, 0.5)", "(x * 1, 1.0 * len(calls))"),
]


@pytest.mark.parametrize(("expected", "found"), REPEATS)
def test_a_second_call_that_differs_is_noticed(expected, found, capsys):
    answer = written(f"print('seen'); calls.append(1); return {found}")
    answer.__globals__["calls"] = []
    exercise = made_up(f"return {expected}", lambda dtype: [{"x": X["x"].to(dtype)}])
    assert AGAIN in grade(exercise, answer).message
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
        while True: abs(x)
    except Exception: continue"""
ONCE = "try:\n    while True: abs(x)\nexcept: pass\nwhile True: abs(x)"


@alarm
@pytest.mark.parametrize("body", [ENDLESS, DEAF, ONCE])
def test_an_endless_answer_is_stopped_and_shows_its_line(monkeypatch, body):
    monkeypatch.setattr(running, "LIMIT", 0.2)
    calls, endless = [], written(body)

    def ends_once(x):
        calls.append(x)
        return x if len(calls) == 1 else endless(x)

    exercise = made_up("return x", {"x": 1}, {"x": 2}, {"x": 3})
    message = grade(exercise, ends_once).message
    assert "had not finished after 0.2 seconds and was stopped.\n  In line" in message
    assert calls == [1, 2] and "Right on" not in message
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@alarm
def test_the_stop_button_works_and_somebody_elses_alarm_is_left_alone():
    # a process that was started in the background may ignore the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    exercise = made_up("return 1", ONE)
    try:
        with pytest.raises(KeyboardInterrupt):
            grade(exercise, lambda x: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        assert grade(exercise, lambda x: 1).solved
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_another_thread_can_check():
    found, exercise = [], made_up("return 1", ONE)
    thread = threading.Thread(
        target=lambda: found.extend(grade(exercise, lambda x, i=i: i) for i in (1, 2))
    )
    thread.start()
    thread.join()
    assert [each.solved for each in found] == [True, False]


def stub(x, y=1):
    """A stub."""
    ...


def test_untouched_is_seen_through_decorators():
    verdict = grade(made_up("return 1", ONE), stub)
    assert verdict == Verdict(UNTOUCHED, "Replace the ... and run the cell again.")
    wrapped = functools.wraps(stub)(lambda *args: stub(*args))
    again = functools.lru_cache(stub), torch.no_grad()(stub)
    assert all(map(is_untouched, (stub, wrapped, *again)))
    touched = double, len, torch.nn.Softmax(-1), lambda x: "", lambda x: x
    assert not any(map(is_untouched, touched))


# --- nothing stays ----------------------------------------------------------------


def sets_everything(x):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_printoptions(precision=9, sci_mode=True)
    torch.autograd.set_detect_anomaly(True)
    torch.set_grad_enabled(False)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    warnings.simplefilter("error")
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
        "inference": torch.is_inference_mode_enabled(),
        "printed": str(torch.tensor([1 / 3], device="cpu")),
        "anomaly": torch.is_anomaly_enabled(),
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "warnings": list(warnings.filters),
        "plots": plt.rcParams.copy(),
        "errors": np.geterr(),
        "arrays": np.get_printoptions(),
    }


@pytest.mark.parametrize("plus", [0, 1])
def test_what_an_answer_sets_is_set_back_and_not_held_against_it(plus):
    before, seen = settings(), []

    def answer(x):
        seen.append({k: v for k, v in settings().items() if k in ("dtype", "grad")})
        y = x * 2 + plus
        sets_everything(x)
        return y

    assert grade(made_up("return x * 2", X), answer).solved is (plus == 0)
    after = settings()
    assert [k for k in before if before[k] != after[k]] == []
    assert all(each == seen[0] for each in seen)


def test_what_the_notebook_has_set_does_not_matter_and_stays():
    given = {"x": torch.tensor([math.nan, 1.0])}
    body = "import numpy as np; np.nanmax([np.nan]); return x + torch.zeros(2)"
    exercise, before = made_up("return x + torch.zeros(2)", given), settings()
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        try:
            own = settings()
            assert grade(exercise, written(body)).solved
            answer = written(body.replace("x +", "x.detach() +"))
            assert not grade(exercise, answer).solved
            assert settings() == own
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
    assert settings() == before


def test_without_source_no_line_is_invented():
    names = Notebook().names
    exec("def answer(x):\n    return 1 / 0", names)
    for answer in (names["answer"], len):
        assert "In line" not in grade(made_up("return 1", ONE), answer).message


def test_the_line_is_the_answers_own_and_not_one_of_another_cell():
    notebook = Notebook().run("\n\ndef helper(x):\n    return x / 0")
    notebook.run("def answer(x):\n    return helper(x)")
    message = grade(made_up("return 1", ONE), notebook.names["answer"]).message
    assert "\n  In line 2: return helper(x)\n" in message


def test_a_default_device_that_stays_is_not_set_again(monkeypatch):
    """After a reset, PyTorch 2.6 cannot say which it is, and transformers asks."""
    asked = []
    monkeypatch.setattr(torch, "set_default_device", asked.append)
    exercise = made_up("return x + 1", {"x": torch.ones(2)})
    assert grade(exercise, written("return x + 1")).solved and not asked
