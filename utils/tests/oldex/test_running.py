"""What an answer did is seen, whatever it did; and nothing of it stays."""

import os
import random
import re
import signal
import threading
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from utils.oldex import running
from utils.oldex.engine import WITHOUT_NAN, grade, randn
from utils.oldex.running import default_device
from utils.tests.helpers import made_up, written

X = {"x": randn(3, 4, seed=0, dtype=torch.float32)}


def verdict(reference, answer, *trials, gradients=True):
    """Return the verdict on an answer, on the same inputs in both precisions."""
    return grade(made_up(reference, *trials or (X,), gradients=gradients), answer)


# --- edits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "x.data -= 1; return x * 2 + 2",
        "x.data *= 1.001; return x * 2 / 1.001",
        "x.detach().numpy()[0] = 0; return x * 2",
        "return x.mul_(2).div_(2) * 2",
        "x.data = x.data[:1]; return x * 2",
    ],
)
def test_an_edit_is_seen_however_it_is_made(body):
    found = verdict(lambda x: x * 2, written(body))
    assert "edits its argument `x` in place" in found.message and not found.solved


def test_an_edit_inside_a_list_or_dict_is_seen():
    for reference, body, x in (
        (lambda x: x[0] * 2, "x.append(1); return x[0] * 2", [X["x"]]),
        (lambda x: 2.0, "x['a'].zero_(); return 2.0", {"a": X["x"].clone()}),
        (max, "x.sort(); return x[-1]", [3, 1, 2]),
    ):
        found = verdict(reference, written(body), {"x": x})
        assert "edits its argument `x`" in found.message
    assert verdict(len, lambda xs: len(xs), {"xs": [3, float("nan")]}).solved


def test_an_input_that_holds_nan_is_not_edited_by_looking_at_it():
    trial = {"x": torch.tensor([1.0, float("nan")])}
    assert verdict(lambda x: x * 2, lambda x: x + x, trial).solved
    found = verdict(lambda x: x * 2, lambda x: x.detach() + x, trial)
    assert "the gradient of `x` is not" in found.message


@pytest.mark.parametrize(
    "x", [X["x"].T, X["x"][:, ::2], X["x"][:, :1].expand(3, 4), X["x"].T[1:]]
)
def test_an_input_arrives_as_it_lies_in_memory(x):
    strides = []

    def answer(y):
        assert y.shape == x.shape
        strides.append(y.stride())
        return y**2

    assert verdict(lambda x: x * x, answer, {"x": x}).solved
    assert set(strides) == {x.stride()}
    found = verdict(lambda x: x * x, lambda x: x.detach() ** 2, {"x": x})
    assert found.mistake == "a gradient cut off"


# --- gradients --------------------------------------------------------------------


def softmax(x):
    return x.softmax(-1)


def zeros(x):
    return x * 0


def zeros_painted(x):
    """Of negative numbers a softmax of -inf: NaN, thrown away in both directions."""
    return x.masked_fill(x < 0, -torch.inf).softmax(dim=-1).nan_to_num()


def test_a_nan_that_is_thrown_away_counts_where_none_may_arise():
    trial = {"x": torch.tensor([-1.0, -2.0, -4.0])}
    assert verdict(zeros, zeros_painted, trial).solved
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of PyTorch, on what it raises, too
        found = verdict(zeros, zeros_painted, trial, gradients=WITHOUT_NAN)
    assert "right, but a NaN arises in the backward pass." in found.message
    found = verdict(
        zeros,
        lambda x: Fails.apply(x, RuntimeError("no")) * 0,
        trial,
        gradients=WITHOUT_NAN,
    )
    assert "the backward pass raised RuntimeError: no" in found.message
    assert verdict(zeros, zeros, trial, gradients=WITHOUT_NAN).solved
    assert not torch.is_anomaly_enabled()


def test_no_part_of_a_gradient_is_overlooked():
    """A softmax sums to 1: the gradient of its sum is 0, detached or not."""
    x = {"x": randn(3, 3, seed=0, dtype=torch.float32)}
    found = verdict(softmax, lambda x: softmax(x).detach(), x)
    assert "`x` is not: none arrives" in found.message
    for body in (
        "x = x.softmax(-1); return torch.cat([x[:1].detach(), x[1:]])",
        "y = x.softmax(-1).flatten()\n"
        "return torch.cat([y[:4], y[4:5].detach(), y[5:]]).view(x.shape)",
    ):
        found = verdict(softmax, written(body), x)
        assert "the gradient of `x` is not: at [" in found.message, found.message


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ctx.error


@pytest.mark.parametrize(
    "error", [KeyError("lost"), ValueError("no"), AssertionError(), SystemExit(1)]
)
def test_a_backward_that_raises_is_judged(error):
    found = verdict(lambda x: x * 2, lambda x: Fails.apply(x, error))
    kind = type(error).__name__
    assert f"the backward pass raised {kind}" in found.message and not found.solved
    assert "overwritten" not in found.message
    answer = written("w = x * 1; w /= 1; return fails(w, error) * 2")
    answer.__globals__.update(fails=Fails.apply, error=error)
    assert "In line" not in verdict(lambda x: x * 4, answer).message


def test_overwritten_is_said_where_the_error_says_so():
    found = verdict(softmax, lambda x: x.softmax(-1).exp_().log_())
    assert "a tensor was overwritten" in found.message
    for line in ("w[w < 0] = 0", "w /= 1", "w.clamp_(0)", "y = w.mul_(1)"):
        one = written(f"w = x.softmax(-1); {line}; return w")
        assert f"In line 3: {line}\n" in verdict(softmax, one).message
    two = written("w = x.softmax(-1); w /= 1; w /= 1; return w")
    assert "In line" not in verdict(softmax, two).message


# --- outputs that PyTorch cannot compare ------------------------------------------


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda x: torch.masked.masked_tensor(x, x > 0),
         "is a MaskedTensor; return an"),
        (lambda x: x.to(torch.float8_e4m3fn), "is torch.float8_e4m3fn; expected torch"),
        (lambda x: x.to_sparse(), "is a sparse or nested tensor"),
        (lambda x: torch.nested.nested_tensor([x, x]), "is a sparse or nested tensor"),
        (lambda x: x.to("meta"), "is on meta"),
        (lambda x: x + 0j, "is torch.complex64"),
        (lambda x: x.half(), "is torch.float16"),
        (lambda x: torch.empty(0), "has shape (0,)"),
        (lambda x: (x, x), "Its first part is right: return only that."),
        (lambda x: object, "returned type, not a tensor"),
        (lambda x: exit(), "raised SystemExit"),
        (lambda x: [][1], "raised IndexError: list index out of range"),
        (lambda x: (_ for _ in ()).throw(KeyError), "raised KeyError."),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_odd_answers_are_judged_not_thrown(answer, says):
    found = verdict(lambda x: x, answer)
    assert says in found.message and not found.solved, found.message


# --- the learner's own line -------------------------------------------------------


def test_an_error_shows_the_learners_own_line():
    found = verdict(softmax, written("return x.view(7, 7)"))
    assert "\n  In line 2: return x.view(7, 7)\n" in found.message
    called = written("y = x; return torch.cat(y, 5)")
    assert "\n  In line 3: return torch.cat(y, 5)\n" in verdict(softmax, called).message
    # and no line of a library that it called, nor of the course
    called = written("import textwrap; return textwrap.indent(x, '')")
    assert "\n  In line 3: return textwrap" in verdict(softmax, called).message
    called = written("import numpy as np; return np.pad(x.detach(), 'no')")
    assert "\n  In line 3: return np.pad" in verdict(softmax, called).message
    called = written("from utils.masks import causal_mask; return causal_mask('no')")
    assert "\n  In line 3: return causal_mask" in verdict(softmax, called).message


def test_an_error_that_is_told_holds_no_tensor_of_the_call():
    trial = {"x": randn(2, seed=0, dtype=torch.float32)}
    for answer in (written("return 1 / 0"), lambda x: Fails.apply(x, KeyError())):
        found = running.run(answer, trial, True, 0)
        assert (found.error or found.backward_error).__traceback__ is None


def test_without_source_no_line_is_invented():
    names = {}
    exec("def answer(x):\n    return 1 / 0", names)
    assert "In line" not in verdict(softmax, names["answer"]).message
    for other in (len, exec):
        assert "In line" not in verdict(softmax, other).message


# --- nothing stays ----------------------------------------------------------------


def sets_everything(x):
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_grad_enabled(False)
    torch.set_printoptions(precision=9, sci_mode=True)
    torch.autograd.set_detect_anomaly(True)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    warnings.simplefilter("error")
    os.chdir("/")
    plt.rcParams["lines.linewidth"] = 9
    np.seterr(all="raise")
    np.set_printoptions(precision=1)
    torch.set_grad_enabled(True)
    return x.softmax(-1)


def settings():
    return {
        "dtype": torch.get_default_dtype(),
        "device": default_device(),
        "modes": torch._C._len_torch_function_stack(),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "printed": str(torch.tensor([1 / 3])),
        "anomaly": torch.is_anomaly_enabled(),
        "torch": torch.get_rng_state().sum().item(),
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "warnings": list(warnings.filters),
        "folder": os.getcwd(),
        "plots": plt.rcParams.copy(),
        "errors": np.geterr(),
        "arrays": np.get_printoptions(),
    }


@pytest.mark.parametrize("wrong", [False, True])
def test_what_an_answer_sets_is_set_back_and_not_held_against_it(wrong):
    def answer(x):
        y = sets_everything(x)
        torch.set_grad_enabled(not wrong)
        return y + 1 if wrong else y

    torch.manual_seed(0)
    before = settings()
    assert verdict(softmax, answer).solved is not wrong
    after = settings()
    assert [k for k in before if before[k] != after[k]] == []


def test_the_notebooks_default_dtype_does_not_matter():
    torch.set_default_dtype(torch.float64)
    try:
        found = verdict(lambda x: torch.zeros(2), lambda x: torch.zeros(2))
        assert found.solved and torch.get_default_dtype() == torch.float64
        assert verdict(lambda x: x.new_zeros(2), lambda x: torch.zeros(2)).solved
    finally:
        torch.set_default_dtype(torch.float32)


# --- hidden state -----------------------------------------------------------------


COUNTS = "calls.append(x.dtype); return x * (1 if len(calls) <= 2 else 2)"
WRONG_AND_COUNTS = "calls.append(1); return x + len(calls)"
REMEMBERS = """
again = x.dtype == torch.float64 and torch.float64 in calls
calls.append(x.dtype)
return x + 1 if again else x * 1"""


@pytest.mark.parametrize("body", [COUNTS, WRONG_AND_COUNTS, REMEMBERS])
def test_a_second_call_that_differs_is_noticed(body):
    answer = written(body)
    answer.__globals__["calls"] = []
    exercise = made_up(lambda x: x * 1, lambda dtype: [{"x": X["x"].to(dtype)}])
    found = grade(exercise, answer)
    assert "Called again with the same inputs" in found.message and not found.solved


def test_the_second_round_prints_nothing(capsys):
    assert verdict(lambda x: x * 2, lambda x: print("seen") or x * 2).solved
    assert capsys.readouterr().out == "seen\n" * 2  # once in each precision


def test_random_numbers_are_the_same_in_every_round():
    first, second = (lambda x: torch.rand(2) + 0 * x[0, :2] for _ in range(2))
    assert verdict(first, second).solved


def test_no_two_inputs_get_the_same_random_numbers():
    drawn = []

    def answer(x):
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))
        return x * 2

    assert verdict(lambda x: x * 2, answer, X, X).solved
    first, second = drawn[:4], drawn[4:]  # each input in both precisions, then again
    assert [len(set(kind)) for kind in zip(*first, strict=True)] == [4, 4, 4]
    assert second == first


# --- endless answers --------------------------------------------------------------

alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM here")


ENDLESS = "while True: x = x"
DEAF = """
while True:
    try:
        while True: pass
    except Exception:
        continue"""


@alarm
@pytest.mark.parametrize("body", [ENDLESS, DEAF])
def test_an_endless_answer_is_stopped_and_shows_its_line(monkeypatch, body):
    monkeypatch.setattr(running, "LIMIT", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    found = verdict(softmax, written(body))
    assert "had not finished after 0.2 seconds" in found.message and not found.solved
    assert re.search(r"In line \d: while True:|In line 7: continue", found.message)
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@alarm
def test_an_endless_backward_is_stopped(monkeypatch):
    class Endless(Fails):
        @staticmethod
        def backward(ctx, grad):
            written(ENDLESS)(grad)

    monkeypatch.setattr(running, "LIMIT", 0.2)
    found = verdict(lambda x: x * 2, lambda x: Endless.apply(x, None))
    assert "the backward pass had not finished after 0.2 seconds" in found.message


def test_the_stop_button_works():
    def interrupted(x):
        signal.raise_signal(signal.SIGINT)
        written(ENDLESS)(x)

    # a process that was started in the background may ignore the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            verdict(softmax, interrupted)
    finally:
        signal.signal(signal.SIGINT, before)
    if hasattr(signal, "SIGALRM"):
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@alarm
def test_somebody_elses_alarm_is_left_alone():
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        assert verdict(softmax, softmax).solved
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_another_thread_can_check():
    found = []

    def both():
        found.extend(verdict(softmax, answer).solved for answer in (softmax, zeros))

    thread = threading.Thread(target=both)
    thread.start()
    thread.join()
    assert found == [True, False]
