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
NOT_THE_LEARNERS = tuple(  # folders: the standard library, packages, the course
    f"{Path(each).parent}{os.sep}"
    for each in (os.__file__, torch.__path__[0], Path(__file__).parent)
)
OVERWRITES = re.compile(r"[-+*/]=|\]\s*=[^=]|\.[a-z]\w*_\(")  # x /= y, x[i] = y, x.y_()


class TooLong(BaseException):
    """Raised in an endless answer; no `except Exception` of its own can stop it."""


def run(function: Callable, trial: dict, gradients: bool | str, seed: int) -> dict:
    """Return what a function does with copies of the arguments.

    gradients: False, True, or "without nan": none may arise on the way either.
    seed: of the random numbers that the function may draw.
    """
    inputs = {
        name: copied(x).requires_grad_()
        for name, x in trial.items()
        if gradients and isinstance(x, Tensor) and x.is_floating_point()
    }
    given = {name: copied(inputs.get(name, x)) for name, x in trial.items()}
    what, done = "raises", {}
    try:
        with afresh(seed):
            output = function(*given.values())
        done["returns"] = output
        changed = [f"`{n}`" for n, x in given.items() if not _equal(x, trial[n])]
        if changed:
            return {"changes its argument": ", ".join(changed)} | done
        what = "in the backward pass"
        return done | _gradients(output, inputs, watch=gradients == "without nan")
    except (Exception, SystemExit, TooLong) as error:  # told, not thrown
        line = _own_line(error)
        error.__traceback__ = None  # it holds on to every tensor of the call
        if isinstance(error, TooLong):
            return done | {"never ends": str(error), WHERE: line}
        said = f"{type(error).__name__}: {first_line(error)}"
        if "inplace operation" in said:
            line = _overwriting_line(function)
        elif "returned nan" in said:  # on the way, whatever the gradient is
            said = "a NaN arises"
        return done | {what: re.sub(r"\b0x[0-9a-f]+", "…", said)[:200], WHERE: line}


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, if it can say anything."""
    try:
        return (str(error).strip().splitlines() or [""])[0]
    except Exception:
        return ""


# --- arguments and gradients ------------------------------------------------------


def copied(x):
    """Return a copy that can be edited without harm.

    A tensor's copy lies in memory as the tensor does; gradients pass through it.
    """
    if isinstance(x, Tensor):
        once = x[tuple(slice(None if step else 1) for step in x.stride())]  # no expand
        kept = torch.empty_strided(once.shape, once.stride(), dtype=x.dtype)
        return kept.copy_(once).expand(x.shape)
    new = copy.deepcopy(x)  # what a module remembers begins anew; its name is hidden
    return (lambda *args, **named: new(*args, **named)) if callable(x) else new


def parts(x) -> Iterator:
    """Yield what a list, tuple or dict holds, however deep, and how much; else x."""
    if isinstance(x, list | tuple | dict):
        yield len(x)
        for each in x.items() if isinstance(x, dict) else x:
            yield from parts(each)
    else:
        yield x


def _equal(x, before) -> bool:
    """Whether an argument still holds exactly what it held; NaN equals NaN."""
    if isinstance(before, list | tuple | dict):
        return all(map(_equal, parts(x), parts(before)))
    if not isinstance(before, Tensor) or type(x) is not type(before):
        return callable(before) or x is before or x == before
    alike = (x.shape, x.dtype) == (before.shape, before.dtype)
    return alike and torch.allclose(x, before, rtol=0, atol=0, equal_nan=True)


def _gradients(output, inputs: dict[str, Tensor], watch: bool) -> dict:
    """Return the gradients of the inputs, zeros where none arrives.

    watch: whether a NaN that arises on the way is an error.
    """
    alive = [x for x in parts(output) if type(x) is Tensor and x.requires_grad]
    found = [None] * len(inputs)
    if inputs and alive:
        with afresh(), silence():
            loss = sum((x * _probe(x, i)).sum() for i, x in enumerate(alive))
            torch.autograd.set_detect_anomaly(watch)
            found = torch.autograd.grad(loss, [*inputs.values()], allow_unused=True)
    return {
        f"gradient of `{name}`": torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(inputs.items(), found)
    }


def _probe(x: Tensor, seed: int) -> Tensor:
    """Return the upstream gradient: no two numbers alike, and none near 0."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return (noise + noise.sign() / 2).to(x.dtype)


# --- the whole program ------------------------------------------------------------

SETTINGS = [  # what answers may change: how to ask for it, and how to set it back
    (os.getcwd, os.chdir),
    (random.getstate, random.setstate),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    # once set, a device slows down all calls, also if it is the CPU
    (lambda: torch.empty(0).device,
     lambda x: torch.set_default_device(x if x.type != "cpu" else None)),
]  # fmt: skip


@contextmanager
def surroundings_kept() -> Iterator[None]:
    """Set back what answers may change: SETTINGS, modes, seeds, plots, printing."""
    before, numpys = [ask() for ask, _ in SETTINGS], np.random.get_state()
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    try:
        with (
            rc_context(),
            np.errstate(),
            np.printoptions(),
            torch._tensor_str.printoptions(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(devices),
            warnings.catch_warnings(),
        ):
            _begin()
            yield
    finally:
        np.random.set_state(numpys)
        for (ask, set_back), x in zip(SETTINGS, before):
            if ask() != x:  # some of these calls are slow
                set_back(x)


def _begin(seed: int = 0) -> None:
    """Set what every call finds, whatever the notebook or the last call has set."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.autograd.set_detect_anomaly(False)
    if torch.empty(0).device.type != "cpu":  # where the trials are
        torch.set_default_device(None)
    warnings.simplefilter("default")  # none is an error
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def afresh(seed: int = 0) -> Iterator[None]:
    """Hide from a call what others have set, and raise TooLong if it does not end.

    It has a limit of time where the platform can: with SIGALRM, in the main thread, and
    when nobody else uses the alarm. Ctrl-C and the stop button work as ever. Its place
    is within `surroundings_kept`.
    """
    main = threading.current_thread() is threading.main_thread()
    limited = main and hasattr(signal, "SIGALRM") and not any(signal.getitimer(0))
    running = True

    def stop(*_) -> None:
        if running:  # a late alarm must not hit what follows
            raise TooLong(f"{LIMIT:g} seconds")

    before = signal.signal(signal.SIGALRM, stop) if limited else None
    _begin(seed)
    try:
        if limited:  # again and again, in case the answer catches everything
            signal.setitimer(signal.ITIMER_REAL, LIMIT, LIMIT / 10)
        yield
    finally:
        running = False
        if limited:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        _begin()


@contextmanager
def silence() -> Iterator[None]:
    """Let prints and warnings go nowhere, and take no memory, however long."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),  # where warnings go
    ):
        yield


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
