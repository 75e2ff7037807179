"""Runs an answer on one trial, writes down what it did, and leaves nothing behind.

What a call does is a dict: what it returns or raises, which arguments it changes, the
gradients that it passes back. Two calls did the same if their dicts agree. A key in
brackets says where something happened; it is not compared.
"""

import copy
import inspect
import linecache
import os
import random
import re
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from torch import Tensor

LIMIT = 10.0  # seconds that one call may take
WHERE = "(in)"  # the learner's own line in which an error arose
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


def run(function: Callable, trial: dict, gradients: bool | str, seed: int) -> dict:
    """Return what a function does with copies of the arguments.

    gradients: False, True, or "without nan": none may arise on the way either.
    seed: of the random numbers that the function may draw.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaves = {name: copied(x) for name, x in trial.items()}
        for x in leaves.values():
            if isinstance(x, Tensor):
                x.requires_grad_(bool(gradients) and x.is_floating_point())
        given = {name: copied(x) for name, x in leaves.items()}
        try:
            with seeded(seed), time_limit(LIMIT):
                output = function(*given.values())
        except (Exception, SystemExit, TooLong) as error:  # told, not thrown
            return _raised("raises", error)
        changed = [name for name in given if not _equal(given[name], leaves[name])]
        if changed:
            return {"changes its argument": ", ".join(changed), "returns": output}
        found = {"returns": output}
        if gradients:
            found |= _gradients(function, output, leaves, gradients == "without nan")
        return found


def _raised(what: str, error: BaseException) -> dict:
    """Return what an error says, without addresses, and in which line it arose."""
    line = _own_line(error)
    error.__traceback__ = None  # it holds on to every tensor of the call
    if isinstance(error, TooLong):
        return {"never ends": str(error), WHERE: line}
    text = first_line(error)
    text = re.sub(r"\b0x[0-9a-f]+", "…", text)[:200]
    return {what: f"{type(error).__name__}: {text}", WHERE: line}


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, if it can say anything."""
    try:
        return (str(error).strip().splitlines() or [""])[0]
    except Exception:
        return ""


# --- arguments --------------------------------------------------------------------


def copied(x):
    """Return a copy that can be edited without harm.

    A tensor's copy lies in memory as the tensor does; gradients pass through it.
    """
    if isinstance(x, Tensor):
        repeated = [step == 0 for step in x.stride()]  # by expand
        once = x[tuple(slice(0, 1) if each else slice(None) for each in repeated)]
        kept = torch.empty_strided(once.shape, once.stride(), dtype=x.dtype)
        return kept.copy_(once).expand(x.shape)
    if type(x) in (list, tuple):
        return type(x)(map(copied, x))
    if type(x) is dict:
        return {key: copied(value) for key, value in x.items()}
    if callable(x):  # what it remembers begins anew, and its name is not given away
        hidden = copy.deepcopy(x)
        return lambda *args, **named: hidden(*args, **named)
    return x


def _equal(x, before) -> bool:
    """Whether an argument still holds exactly what it held; NaN equals NaN."""
    if isinstance(before, Tensor):
        if x.shape != before.shape or x.dtype != before.dtype:
            return False
        both_nan = x.isnan() & before.isnan()
        return bool(((x == before) | both_nan).all())
    if isinstance(before, list | tuple):
        return len(x) == len(before) and all(map(_equal, x, before))
    if type(before) is dict:
        return x.keys() == before.keys() and all(_equal(x[k], before[k]) for k in x)
    return callable(before) or (type(x) is type(before) and x == before) or x != x


# --- gradients --------------------------------------------------------------------


def tensors(output) -> Iterator[Tensor]:
    """Yield the tensors in an output, however deep."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, list | tuple | dict):
        for part in output.values() if isinstance(output, dict) else output:
            yield from tensors(part)


def _gradients(function: Callable, output, leaves: dict, watch: bool) -> dict:
    """Return the gradients of the inputs; zeros where none arrives."""
    inputs = {
        name: x
        for name, x in leaves.items()
        if isinstance(x, Tensor) and x.requires_grad
    }
    found = [None] * len(inputs)
    try:
        alive = [x for x in tensors(output) if type(x) is Tensor and x.requires_grad]
        if inputs and alive:
            with seeded(), silence(), time_limit(LIMIT):
                loss = sum((x * _probe(x, i)).sum() for i, x in enumerate(alive))
                with torch.autograd.set_detect_anomaly(watch):
                    found = torch.autograd.grad(
                        loss, [*inputs.values()], allow_unused=True
                    )
    except (Exception, SystemExit, TooLong) as error:
        if watch and "returned nan" in str(error):
            return {"in the backward pass": "a NaN arises"}
        done = _raised("in the backward pass", error)
        if "inplace operation" in str(error):
            done[WHERE] = _overwriting_line(function)
        return done
    return {
        f"gradient of `{name}`": torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(inputs.items(), found)
    }


def _probe(x: Tensor, seed: int) -> Tensor:
    """Return the upstream gradient: no two numbers alike, and none near 0."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return (noise + noise.sign() / 2).to(x.dtype)


# --- the whole program ------------------------------------------------------------


@contextmanager
def surroundings_kept() -> Iterator[None]:
    """Set back what answers may change: folder, plots, NumPy, threads, printing."""
    folder, randoms, numpys = os.getcwd(), random.getstate(), np.random.get_state()
    threads, device = torch.get_num_threads(), default_device()
    exact = torch.are_deterministic_algorithms_enabled()
    if device.type != "cpu":  # where the trials are
        torch.set_default_device(None)
    try:
        with (
            rc_context(),
            np.errstate(),
            np.printoptions(),
            torch._tensor_str.printoptions(),
        ):
            yield
    finally:
        os.chdir(folder)
        random.setstate(randoms)
        np.random.set_state(numpys)
        torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled() != exact:  # the call is slow
            torch.use_deterministic_algorithms(exact)
        if device.type != "cpu":
            torch.set_default_device(device)


def default_device() -> torch.device:
    """Return where new tensors go; torch 2.6 cannot say so once that was set back."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Set the random seeds, and set back what an answer sets for the next call."""
    dtype, device = torch.get_default_dtype(), default_device()
    anomaly = torch.is_anomaly_enabled()
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(devices),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")  # none is an error here
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            yield
    finally:
        torch.set_default_dtype(dtype)
        if default_device() != device:  # a mode that slows down every call
            torch.set_default_device(None if device.type == "cpu" else device)
        torch.autograd.set_detect_anomaly(anomaly)


@contextmanager
def silence() -> Iterator[None]:
    """Let prints and warnings go nowhere, and take no memory, however long."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),  # where warnings go
    ):
        yield


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

    def stop(*_) -> None:
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
    said = [f"line {start + i}: {lines[i].strip()}" for i in found]
    return said[0] if len(said) == 1 else ""
