"""What an answer did is seen, whatever it did; and nothing of it stays."""

import functools
import linecache
import os
import random
import signal
import threading
import warnings

import numpy as np
import pytest
import torch

from utils.exercises import running
from utils.exercises.engine import WITHOUT_NAN, Exercise, grade, is_untouched, randn
from utils.exercises.running import default_device

X = {"x": randn(3, 4, seed=0, dtype=torch.float32)}


def verdict(reference, answer, *trials, gradients=True):
    """Return the verdict on an answer, on the same inputs in both precisions."""
    inputs = trials or (X,)
    exercise = Exercise("0.0", "", reference, lambda dtype: inputs, {}, gradients)
    return grade(exercise, answer)


def cell(source: str):
    """Return the `answer` that a notebook's cell defines, with its lines on record."""
    file = "/tmp/ipykernel_0/cell.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {"torch": torch}
    exec(compile(source, file, "exec"), names)
    return names["answer"]


# --- edits ------------------------------------------------------------------------


def edits_data(x):
    x.data -= 1
    return x * 2 + 2


def edits_a_little(x):
    x.data *= 1.001
    return x * 2 / 1.001


def edits_numpy(x):
    x.detach().numpy()[0] = 0
    return x * 2


def edits_back_and_forth(x):
    return x.mul_(2).div_(2) * 2


def edits_a_list(xs):
    xs.append(1)
    return xs[0] * 2


def edits_in_a_dict(xs):
    xs["a"].zero_()
    return 2.0


@pytest.mark.parametrize(
    "answer", [edits_data, edits_a_little, edits_numpy, edits_back_and_forth]
)
def test_an_edit_is_seen_however_it_is_made(answer):
    found = verdict(lambda x: x * 2, answer)
    assert "edits its argument `x` in place" in found.message and not found.solved


def test_an_edit_inside_a_list_or_dict_is_seen():
    found = verdict(lambda xs: xs[0] * 2, edits_a_list, {"xs": [X["x"]]})
    assert "edits its argument `xs`" in found.message
    found = verdict(lambda xs: 2.0, edits_in_a_dict, {"xs": {"a": X["x"].clone()}})
    assert "edits its argument `xs`" in found.message
    found = verdict(max, lambda xs: xs.sort() or xs[-1], {"xs": [3, 1, 2]})
    assert "edits its argument `xs`" in found.message
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

    def answer(x):
        strides.append(x.stride())
        return x**2

    assert verdict(lambda x: x * x, answer, {"x": x}).solved
    assert set(strides) == {x.stride()}
    found = verdict(lambda x: x * x, lambda x: x.detach() ** 2, {"x": x})
    assert found.mistake == "a gradient cut off"


# --- gradients --------------------------------------------------------------------


def softmax(x):
    return x.softmax(-1)


def detached(x):
    return x.softmax(-1).detach()


def first_row_detached(x):
    x = x.softmax(-1)
    return torch.cat([x[:1].detach(), x[1:]])


def one_entry_detached(x):
    y = x.softmax(-1).flatten()
    return torch.cat([y[:4], y[4:5].detach(), y[5:]]).view(x.shape)


def zeros(x):
    return x * 0


def zeros_painted(x):
    """Of negative numbers a softmax of -inf: NaN, thrown away in both directions."""
    return x.masked_fill(x < 0, -torch.inf).softmax(dim=-1).nan_to_num()


def test_a_nan_that_is_thrown_away_counts_where_none_may_arise():
    trial = {"x": torch.tensor([-1.0, -2.0, -4.0])}
    assert verdict(zeros, zeros_painted, trial).solved
    found = verdict(zeros, zeros_painted, trial, gradients=WITHOUT_NAN)
    assert "right, but a NaN arises in the backward pass." in found.message
    assert verdict(zeros, zeros, trial, gradients=WITHOUT_NAN).solved
    assert not torch.is_anomaly_enabled()


def test_no_part_of_a_gradient_is_overlooked():
    """A softmax sums to 1: the gradient of its sum is 0, detached or not."""
    x = {"x": randn(3, 3, seed=0, dtype=torch.float32)}
    assert "`x` is not: none arrives" in verdict(softmax, detached, x).message
    for answer in (first_row_detached, one_entry_detached):
        found = verdict(softmax, answer, x)
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


def overwrites(x):
    return x.softmax(-1).exp_().log_()


def test_overwritten_is_said_where_the_error_says_so():
    found = verdict(softmax, overwrites)
    assert "a tensor was overwritten" in found.message
    for line in ("w[w < 0] = 0", "w /= 1", "w.clamp_(0)", "y = w.mul_(1)"):
        one = cell(f"def answer(x):\n    w = x.softmax(-1)\n    {line}\n    return w")
        assert f"In line 3: {line}\n" in verdict(softmax, one).message
    two = cell(
        "def answer(x):\n    w = x.softmax(-1)\n    w /= 1\n    w /= 1\n    return w"
    )
    assert "In line" not in verdict(softmax, two).message


# --- outputs that PyTorch cannot compare ------------------------------------------


@pytest.mark.parametrize(
    "answer, says",
    [
        (
            lambda x: torch.masked.masked_tensor(x, x > 0),
            "is a MaskedTensor; return an",
        ),
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
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_odd_answers_are_judged_not_thrown(answer, says):
    found = verdict(lambda x: x, answer)
    assert says in found.message and not found.solved, found.message


# --- the learner's own line -------------------------------------------------------


def test_an_error_shows_the_learners_own_line():
    lines = "def helper(x):", "    return x.view(7, 7)", "answer = helper"
    found = verdict(softmax, cell("\n".join(lines)))
    assert "\n  In line 2: return x.view(7, 7)\n" in found.message
    called = cell("def answer(x):\n    y = x\n    return torch.cat(y, 5)")
    assert "\n  In line 3: return torch.cat(y, 5)\n" in verdict(softmax, called).message


def test_without_source_no_line_is_invented():
    names = {}
    exec("def answer(x):\n    return 1 / 0", names)
    assert "In line" not in verdict(softmax, names["answer"]).message
    assert (
        "In line" not in verdict(softmax, len).message + verdict(softmax, exec).message
    )


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


def counts():
    calls = []

    def answer(x):
        calls.append(1)
        return x * (1 if len(calls) <= 2 else 2)

    return answer


def wrong_and_counts():
    calls = []

    def answer(x):
        calls.append(1)
        return x + len(calls)

    return answer


def remembers_the_second_input():
    seen = []

    def answer(x):
        again = x.dtype == torch.float64 and any(y is torch.float64 for y in seen)
        seen.append(x.dtype)
        return x + 1 if again else x * 1

    return answer


@pytest.mark.parametrize("make", [counts, wrong_and_counts, remembers_the_second_input])
def test_a_second_call_that_differs_is_noticed(make):
    trials = [{"x": X["x"].to(dtype)} for dtype in (torch.float32, torch.float64)]
    exercise = Exercise(
        "0.0",
        "",
        lambda x: x * 1,
        lambda d: [t for t in trials if t["x"].dtype == d],
        {},
    )
    found = grade(exercise, make())
    assert "Called again with the same inputs" in found.message and not found.solved


def test_the_second_round_prints_nothing(capsys):
    assert verdict(lambda x: x * 2, lambda x: print("seen") or x * 2).solved
    assert capsys.readouterr().out == "seen\n" * 2  # once in each precision


def test_random_numbers_are_the_same_in_every_round():
    assert verdict(
        lambda x: torch.rand(2) + 0 * x[0, :2], lambda x: torch.rand(2) + 0 * x[0, :2]
    ).solved


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


def endless(x):
    while True:
        pass


def endless_and_deaf(x):
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


@alarm
@pytest.mark.parametrize("answer", [endless, endless_and_deaf])
def test_an_endless_answer_is_stopped(monkeypatch, answer):
    monkeypatch.setattr(running, "LIMIT", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    found = verdict(softmax, answer)
    assert "had not finished after 0.2 seconds" in found.message and not found.solved
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@alarm
def test_an_endless_answer_shows_its_line(monkeypatch):
    monkeypatch.setattr(running, "LIMIT", 0.2)
    found = verdict(softmax, cell("def answer(x):\n    while True:\n        x = x"))
    assert "In line 2: while True:" in found.message or "In line 3:" in found.message


@alarm
def test_an_endless_backward_is_stopped(monkeypatch):
    class Endless(Fails):
        @staticmethod
        def backward(ctx, grad):
            endless(grad)

    monkeypatch.setattr(running, "LIMIT", 0.2)
    found = verdict(lambda x: x * 2, lambda x: Endless.apply(x, None))
    assert "the backward pass had not finished after 0.2 seconds" in found.message


def test_the_stop_button_works():
    def interrupted(x):
        os.kill(os.getpid(), signal.SIGINT)
        endless(x)

    with pytest.raises(KeyboardInterrupt):
        verdict(softmax, interrupted)
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
    thread = threading.Thread(target=lambda: found.append(verdict(softmax, softmax)))
    thread.start()
    thread.join()
    assert found[0].solved


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
        softmax,
        functools.partial(softmax),
        decorated(softmax),
        len,
        torch.nn.Softmax(-1),
        lambda x: "",
        functools.lru_cache(softmax),
    ]
    assert not any(map(is_untouched, touched))
