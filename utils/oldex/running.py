"""Runs an answer on one trial, records everything it did, and leaves nothing behind."""

import copy
import inspect
import io
import linecache
import os
import random
import re
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from matplotlib import rc_context
from torch import Tensor
from torch._tensor_str import get_printoptions
from torch.random import fork_rng

LIMIT = 10.0  # seconds that one call may take
WITHOUT_NAN = "without NaN"  # gradients, and on the way to them no NaN either
NOT_THE_LEARNERS = tuple(  # what stands here was not written by the learner
    f"{folder}{os.sep}"
    for folder in (
        Path(os.__file__).parent,
        Path(torch.__file__).parents[1],
        Path(__file__).parents[1],
    )
)
OVERWRITES = re.compile(r"[-+*/]=|\]\s*=[^=]|\.[a-z]\w*_\(")  # x /= y, x[i] = y, x.y_()


class TooLong(BaseException):
    """Raised in an endless answer; no `except Exception` of its own can stop it."""


class NaNOnTheWay(RuntimeError):
    """A NaN arose in the backward pass, even if none is left in the gradients."""


@dataclass
class Run:
    """Everything one call did."""

    output: object = None
    error: BaseException | None = None
    edited: list[str] = field(default_factory=list)
    grads: dict[str, Tensor] = field(default_factory=dict)
    backward_error: BaseException | None = None
    line: str = ""  # the learner's own line in which an error arose, if known


def run(function: Callable, trial: dict, gradients: bool | str, seed: int) -> Run:
    """Call the function on copies of the trial's arguments; record what it did.

    gradients: whether to compute them too; WITHOUT_NAN stops at the first NaN.
    seed: of the random numbers that the function may draw.
    """
    done = Run()
    with torch.inference_mode(False), torch.enable_grad():
        leaves = {name: _copied(arg) for name, arg in trial.items()}
        for leaf in leaves.values():
            if isinstance(leaf, Tensor):
                leaf.requires_grad_(bool(gradients) and leaf.is_floating_point())
        args = {name: _copied(leaf) for name, leaf in leaves.items()}
        versions = {n: a._version for n, a in args.items() if isinstance(a, Tensor)}
        try:
            with settings_kept(seed), time_limit(LIMIT):
                done.output = function(*args.values())
        except (Exception, SystemExit, TooLong) as error:  # told, not thrown
            done.error, done.line = error, _own_line(error)
            error.__traceback__ = None  # it holds on to every tensor of the call
        done.edited = [
            name
            for name, arg in args.items()
            if (name in versions and arg._version > versions[name])
            or not _untouched(arg, leaves[name])
        ]
        if done.error is None and not done.edited:
            _record_gradients(done, leaves, watch=gradients == WITHOUT_NAN)
            if "inplace operation" in str(done.backward_error):
                done.line = _overwriting_line(function)
    return done


# --- arguments --------------------------------------------------------------------


def _copied(arg):
    """Return a copy that can be edited without harm; functions are passed through."""
    if isinstance(arg, Tensor):
        return _tensor_copied(arg)
    if type(arg) in (list, tuple):
        return type(arg)(map(_copied, arg))
    if type(arg) is dict:
        return {key: _copied(value) for key, value in arg.items()}
    return copy.deepcopy(arg) if isinstance(arg, torch.nn.Module) else arg


def _tensor_copied(tensor: Tensor) -> Tensor:
    """Return a copy that lies in memory as the tensor does; gradients pass through."""
    repeated = [step == 0 for step in tensor.stride()]  # by expand
    once = tensor[tuple(slice(0, 1) if each else slice(None) for each in repeated)]
    kept = torch.empty_strided(once.shape, once.stride(), dtype=tensor.dtype)
    kept.copy_(once)
    return kept.expand(tensor.shape) if any(repeated) else kept


def _untouched(arg, before) -> bool:
    """Whether an argument still holds what it held (an edit may leave no version)."""
    if isinstance(before, Tensor):
        if arg.shape != before.shape or arg.dtype != before.dtype:
            return False
        return torch.equal(arg, before) or torch.allclose(
            arg.double(), before.double(), rtol=0, atol=0, equal_nan=True
        )
    if isinstance(before, (list, tuple)):
        return len(arg) == len(before) and all(map(_untouched, arg, before))
    if type(before) is dict:
        same_keys = list(arg) == list(before)
        return same_keys and all(_untouched(arg[key], before[key]) for key in before)
    if isinstance(before, (bool, int, float, str)):  # as parts of a list or dict
        return type(arg) is type(before) and (arg == before or before != before)
    return True


# --- gradients --------------------------------------------------------------------


def tensors(output) -> Iterable[Tensor]:
    """Yield the tensors in an output, however deep."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (list, tuple, dict)):
        for part in output.values() if isinstance(output, dict) else output:
            yield from tensors(part)


def _record_gradients(done: Run, leaves: dict, watch: bool) -> None:
    """Add the gradients of the inputs; where none arrives, zeros.

    watch: stop where a NaN arises, which is an error then.
    """
    inputs = {
        name: leaf
        for name, leaf in leaves.items()
        if isinstance(leaf, Tensor) and leaf.requires_grad
    }
    grads: Iterable[Tensor | None] = [None] * len(inputs)
    try:
        alive = [part for part in tensors(done.output) if part.requires_grad]
        if inputs and alive:
            loss = sum((part * _probe(part, i)).sum() for i, part in enumerate(alive))
            with settings_kept(), _watched(watch), time_limit(LIMIT):
                grads = torch.autograd.grad(
                    loss, list(inputs.values()), allow_unused=True
                )
    except (Exception, SystemExit, TooLong) as error:
        done.backward_error, done.line = error, _own_line(error)
        error.__traceback__ = None
        return
    done.grads = {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(inputs.items(), grads, strict=True)
    }


@contextmanager
def _watched(watch: bool) -> Iterator[None]:
    """Raise NaNOnTheWay where a NaN arises in the backward pass, if asked to."""
    if not watch:
        yield
        return
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")  # it warns of what it raises
        try:
            yield
        except RuntimeError as error:
            if "returned nan" not in str(error):
                raise
            raise NaNOnTheWay("a NaN arises in the backward pass") from None


def _probe(part: Tensor, seed: int) -> Tensor:
    """Return the upstream gradient: no two numbers alike, and none near 0."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(part.shape, generator=generator)
    return (noise + noise.sign() / 2).to(part.dtype)


# --- the whole program ------------------------------------------------------------


def default_device() -> torch.device:
    """Return where new tensors go; torch 2.6 cannot say so once that was set back."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


@contextmanager
def surroundings_kept() -> Iterator[None]:
    """Set back what an answer may change outside PyTorch: folder, plots, NumPy."""
    folder, randoms, numpys = os.getcwd(), random.getstate(), np.random.get_state()
    try:
        with rc_context(), np.errstate(), np.printoptions():
            yield
    finally:
        os.chdir(folder)
        random.setstate(randoms)
        np.random.set_state(numpys)


@contextmanager
def settings_kept(seed: int = 0) -> Iterator[None]:
    """Set the random seeds, and set back what an answer sets for the next call.

    NumPy's random state takes longer to keep than a small answer to run: it and
    Python's are set back once, by `surroundings_kept`.
    """
    dtype, device = torch.get_default_dtype(), default_device()
    threads, printing = torch.get_num_threads(), get_printoptions()
    filters, anomaly = warnings.filters[:], torch.is_anomaly_enabled()
    devices = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            fork_rng(devices=range(devices)),
        ):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            yield
    finally:
        torch.set_default_dtype(dtype)
        if default_device() != device:
            # "cpu" as a default would leave a mode behind that slows down every call
            torch.set_default_device(None if device == torch.device("cpu") else device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_printoptions(**printing)
        warnings.filters[:] = filters
        torch.autograd.set_detect_anomaly(anomaly)


class Nowhere(io.TextIOBase):
    """A text file that keeps nothing of what is written to it."""

    def write(self, text: str) -> int:
        return len(text)


def silence() -> redirect_stdout:
    """Return a context in which prints go nowhere, and take no memory, however long."""
    return redirect_stdout(Nowhere())


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in a call that does not end.

    Only where the platform can: with SIGALRM, in the main thread, and when nobody else
    uses the alarm. Ctrl-C and the stop button work as ever.
    """
    if (
        not hasattr(signal, "SIGALRM")
        or threading.current_thread() is not threading.main_thread()
        or signal.getitimer(signal.ITIMER_REAL)[0]
    ):
        yield
        return

    running = True

    def stop(signal_number: int, frame: FrameType | None) -> None:
        if running:
            raise TooLong(f"{seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        try:
            # again and again, in case the answer catches everything
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds / 10)
            yield
        finally:
            running = False  # a late alarm must not hit what follows
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- the learner's own lines ------------------------------------------------------


def _own_line(error: BaseException) -> str:
    """Return the learner's last line in a traceback, with its number, or ""."""
    found = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        text = linecache.getline(file, number, frame.f_globals).strip()
        if text and not file.startswith(NOT_THE_LEARNERS):
            found = f"line {number}: {text}"
    return found


def _overwriting_line(function: Callable) -> str:
    """Return the line that overwrites a tensor; "" if there is not exactly one."""
    try:
        lines, start = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return ""
    found = [i for i, line in enumerate(lines) if OVERWRITES.search(line)]
    if len(found) != 1:
        return ""
    return f"line {start + found[0]}: {lines[found[0]].strip()}"
