"""Runs an answer on one trial, writes down what it did, and leaves nothing behind.

What a call does is a dict: what it returns or raises, which arguments it changes, the
gradients that it passes back. Two calls did the same if their dicts agree. A key in
brackets says where something happened; it is not compared.
"""

import copy
import os
import random
import re
import signal
import textwrap
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
from torch.nn import Module

from .compare import WHERE, unlike

LIMIT = 10.0  # seconds that one call may take
NOT_THE_LEARNERS = tuple(  # folders: the standard library, packages, the course
    f"{Path(each).parent}{os.sep}"
    for each in (os.__file__, torch.__path__[0], Path(__file__).parent)
)


class TooLong(BaseException):
    """Raised in an endless answer; no `except Exception` of its own can stop it."""


def run(function: Callable, trial: dict, gradients: bool | str, seed: int) -> dict:
    """Return what a function does with copies of the arguments.

    gradients: False, True, or "without nan": none may arise on the way either.
    seed: of the random numbers that the function may draw.
    """
    inputs = {
        name: x.clone().requires_grad_()
        for name, x in trial.items()
        if gradients and isinstance(x, Tensor) and x.is_floating_point()
    }
    memo = {}  # what two arguments share, their copies share
    given = {name: copied(inputs.get(name, x), memo) for name, x in trial.items()}
    what, done = "raises", {}
    try:
        begin(seed)
        with time_limit():
            output = done["returns"] = function(*given.values())
        begin()
        data = {name: x for name, x in given.items() if not callable(x)}
        if changed := [n for n, x in data.items() if unlike(trial[n], x)]:
            each = trial[changed[0]]
            each = each[0] if isinstance(each, list) and each else each
            # the layer of exercise 7.3 is no module: it cannot be called
            layer = isinstance(each, Module) or hasattr(each, "out_proj")
            what = "leaves a layer changed" if layer else "changes its argument"
            return {what: ", ".join(f"`{n}`" for n in changed)} | done
        what = "in the backward pass"
        return done | _gradients(output, inputs, gradients == "without nan")
    except (Exception, SystemExit, TooLong) as error:  # told, not thrown
        begin()
        line = _own_line(error)
        error.__traceback__ = None  # it holds on to every tensor of the call
        if isinstance(error, TooLong):
            return {"never ends": str(error), WHERE: line}
        said = f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")
        if "returned nan" in said:  # on the way, whatever the gradient is
            said = "a NaN arises"
        said = re.sub(r"\b0x[0-9a-f]+", "…", said)
        said = textwrap.shorten(said, 200, placeholder=" …")
        return done | {what: said, WHERE: line}


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _own_line(error: BaseException) -> str:
    """Return the answer's last line in a traceback, with its number, or "".

    A notebook's cells are files: the answer's is the first that is the learner's.
    """
    lines = traceback.extract_tb(error.__traceback__)
    found = [x for x in lines if x.line and not x.filename.startswith(NOT_THE_LEARNERS)]
    own = [x for x in found if x.filename == found[0].filename]
    return f"line {own[-1].lineno}: {own[-1].line}" if own else ""


def copied(x, memo: dict):
    """Return a copy that can be edited without harm; gradients pass through a tensor's.

    A transposed tensor stays one in memory. What a module remembers begins anew, and
    its name is hidden. memo: of copy.deepcopy.
    """
    if isinstance(x, Tensor):
        return x.clone()
    new = copy.deepcopy(x, memo)
    return (lambda *args, **named: new(*args, **named)) if callable(x) else new


def _gradients(output, inputs: dict[str, Tensor], watch: bool) -> dict:
    """Return the gradients of the inputs, zeros where none arrives.

    watch: whether a NaN that arises on the way is an error.
    """
    outputs = [x for x in tensors_in(output) if x.requires_grad]
    found = [None] * len(inputs)
    if inputs and outputs:
        with time_limit(), silence(), torch.autograd.set_detect_anomaly(watch):
            loss = sum((x * _probe(x, i)).sum() for i, x in enumerate(outputs))
            found = torch.autograd.grad(loss, [*inputs.values()], allow_unused=True)
    return {
        f"gradient of `{name}`": torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(inputs.items(), found)
    }


def tensors_in(x) -> list[Tensor]:
    """Return the tensors in an output, however deep."""
    x = [*x.values()] if isinstance(x, dict) else x
    if isinstance(x, list | tuple):
        return [tensor for each in x for tensor in tensors_in(each)]
    return [x] if type(x) is Tensor else []


def _probe(x: Tensor, seed: int) -> Tensor:
    """Return the upstream gradient: no two numbers alike, and none near 0."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return (noise + noise.sign() / 2).to(x.dtype)


# --- the whole program ------------------------------------------------------------

SETTINGS = [  # what answers may change: how to ask for it, and how to set it back
    (np.random.get_state, np.random.set_state),
    (random.getstate, random.setstate),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (lambda: torch.empty(0).device, lambda x: set_device(x)),
]


@contextmanager
def surroundings() -> Iterator[None]:
    """Set back what is changed within: SETTINGS, modes, seeds, plots, printing."""
    before = [ask() for ask, _ in SETTINGS]
    try:
        with (
            rc_context(),
            np.errstate(),
            np.printoptions(),
            torch._tensor_str.printoptions(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autograd.set_detect_anomaly(False),
            torch.random.fork_rng([]),
            warnings.catch_warnings(),
        ):
            begin()
            yield
    finally:
        for (_, set_back), x in zip(SETTINGS, before):
            set_back(x)


def set_device(device: torch.device) -> None:
    """Set the default device, but only where it is another one.

    Once set, a device slows down all calls, also if it is the CPU. And after a reset,
    PyTorch 2.6 cannot say which device it is, which `transformers` asks.
    """
    if torch.empty(0).device != device:
        torch.set_default_device(device if device.type != "cpu" else None)


def begin(seed: int = 0) -> None:
    """Set what every call finds, whatever the notebook or the last call has set."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    set_device(torch.device("cpu"))  # where the trials are
    torch.autograd.set_detect_anomaly(False)
    warnings.simplefilter("default")  # none is an error
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise TooLong if what is within does not end.

    This needs SIGALRM, the main thread, and that nobody else uses the alarm; elsewhere
    there is no limit. Ctrl-C and the stop button work as ever.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "SIGALRM") or any(signal.getitimer(0)):
        yield
        return
    running = True

    def stop(*_) -> None:
        if running:  # a late alarm must not hit what follows
            raise TooLong(f"{LIMIT:g} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    # again and again, in case the answer catches everything
    signal.setitimer(signal.ITIMER_REAL, LIMIT, LIMIT / 10)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def silence() -> Iterator[None]:
    """Let prints and warnings go nowhere, and take no memory, however long."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),  # where warnings go
    ):
        yield
