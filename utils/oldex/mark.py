"""Marks submitted notebooks, each in a process of its own (__main__.py is the command).

Of a submission only its answer cells count, which are those that call
`check("N.M", ...)`. Each is run alone, as when it is kept, and graded by the engine;
what the notebook stores or prints is ignored. Its process has a limit of time and of
memory, opens no socket and starts no program. It says which exercises it will grade
before it runs any of them, and each verdict as soon as it is known: if it crashes or is
stopped, the verdicts that came before stay, and the rest is unmarked.

This keeps accidents apart. It does not stop somebody who sets out to deceive: an answer
runs in the process that grades it, and may read and write files.
"""

import builtins
import contextlib
import json
import multiprocessing
import os
import re
import signal
import symtable
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import torch
from IPython.core.inputtransformer2 import TransformerManager
from tqdm import tqdm

from utils.checks import check_size
from utils.oldex import EXERCISES, IMPORTS, kept
from utils.oldex.engine import NOT_YET, SOLVED, UNTOUCHED, grade
from utils.oldex.kept import NotKept

SECONDS = 120.0  # that one submission may take
MEMORY = 2 * 2**30  # bytes that it may take, beside PyTorch and the course
LONGEST = 200  # characters of a message
MESSAGE = 2**14  # bytes in which a process says one thing

STATUS = {UNTOUCHED: "untouched", NOT_YET: "wrong", SOLVED: "solved"}
PARTS = "status", "mistake", "message"  # what is said of an exercise
UNMARKED = dict(zip(PARTS, ("unmarked", None, "")))
# of several answers to an exercise the best one counts; an unmarked one might be right
RANKS = ["untouched", "wrong", "unmarked", "solved"]
CHECK = re.compile(r"""^[^#\n]*\bcheck\(\s*["'](\d+\.\d+)["']""", re.MULTILINE)
NOT_ITS_OWN = r"\blesson_\d|\bEXERCISES\b|\.reference\b|\banswer\(\s*[\"']{name}[\"']"
CLOSED = "socket. subprocess. os.system os.kill os.fork os.exec os.spawn os.posix_spawn"
# a fork has PyTorch loaded already; elsewhere than on Linux it is not safe
START = "fork" if sys.platform == "linux" else "spawn"
CONTEXT = multiprocessing.get_context(START)


# --- in the process of one submission ---------------------------------------------


class NotMarked(Exception):
    """Says in words why nothing of a submission counts."""


def _work(path: Path, folder: str, caller: Connection) -> None:
    """Mark one submission: send the list of its exercises, then verdict by verdict.

    Each is one line of JSON. A text in the place of one says why nothing counts.
    """

    def send(said: list | dict | str) -> None:
        caller.send_bytes(json.dumps(said).encode())

    _close_off(folder)
    try:
        cells = _answer_cells(path)
        send([name for name, _ in cells])
        for verdict in _verdicts(cells):
            send(verdict)
    except NotMarked as error:
        send(str(error))
    os._exit(0)  # whatever threads the submission left behind


def _close_off(folder: str) -> None:
    """Leave this process no output, no network, no other program, little memory."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(folder)
    os.environ["COURSE_PROGRESS_DIR"] = folder  # nothing is solved there
    kept.marking = True
    matplotlib.use("Agg")
    torch.set_num_threads(1)
    _limit_memory()
    sys.addaudithook(_refuse)


def _refuse(event: str, _) -> None:
    """Refuse an audit event of Python that begins as one of CLOSED does."""
    if event.startswith(tuple(CLOSED.split())):
        raise PermissionError(f"a submission may not use {event}")


def _limit_memory() -> None:
    """Let this process take MEMORY more than it has, where the system can say so."""
    # not on Windows and macOS; a ValueError where a lower limit holds already
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        soft = pages * resource.getpagesize() + MEMORY
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _answer_cells(path: Path) -> list[tuple[str, str]]:
    """Return (exercise, text) of each answer cell; NotMarked if there is none."""
    try:
        texts = [
            "".join(cell["source"])  # of code, unless the course shows a mistake
            for cell in json.loads(path.read_bytes())["cells"]
            if cell["cell_type"] == "code" and "shows_broken" not in cell["metadata"]
        ]
    except OSError as error:
        raise NotMarked(f"it cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, RecursionError, MemoryError):
        raise NotMarked("it is no notebook of format 4; save it in Jupyter") from None
    found = [(n, t) for t in texts for n in CHECK.findall(t) if n in EXERCISES]
    if not found:
        raise NotMarked('no cell calls check("N.M", ...) for an exercise of the course')
    return found


def _verdicts(cells: Iterable[tuple[str, str]]) -> Iterator[dict]:
    """Yield what is said of each answer, graded by what the course was before."""
    course = _course()
    for name, text in cells:
        verdict = _mark_cell(name, text)
        if any(vars(owner).get(key) is not value for owner, key, value in course):
            raise NotMarked("it replaces `check`, or what `check` is made of")
        yield verdict


def _mark_cell(name: str, text: str) -> dict:
    try:
        text = re.sub(r"\A\s*%%.*\n", "", text)  # %%time
        text = TransformerManager().transform_cell(text)
        _demand_own(name, text)
        function = kept.load(name, text, IMPORTS[name])
        if function is EXERCISES[name].reference:
            raise NotKept("it is the course's own function")
    except (NotKept, SyntaxError) as error:
        return dict(zip(PARTS, ("wrong", None, _short(error))))
    verdict = grade(EXERCISES[name], function)
    message = "" if verdict.solved else _short(verdict.message.split("\n")[0])
    return dict(zip(PARTS, (STATUS[verdict.status], verdict.mistake, message)))


def _demand_own(name: str, text: str) -> None:
    """Refuse a cell that replaces `check`, or that names the course's own answer."""
    symbols = symtable.symtable(text, f"<answer {name}>", "exec").get_symbols()
    if any(each.get_name() == "check" and each.is_assigned() for each in symbols):
        raise NotKept("its cell replaces `check`")
    if found := re.search(NOT_ITS_OWN.format(name=re.escape(name)), text):
        raise NotKept(f"it reads the course's own answer: {found[0]}")


def _course() -> list[tuple[object, str, object]]:
    """Return (owner, name, value) of all that answers are graded with."""
    modules = [m for n, m in sys.modules.items() if n.startswith("utils.")]
    classes = [c for m in modules for c in vars(m).values() if isinstance(c, type)]
    owners = [*modules, *classes, builtins, torch, torch.Tensor]
    found = [(owner, *item) for owner in owners for item in vars(owner).items()]
    return [each for each in found if callable(each[2]) or type(each[2]) is property]


def _short(text: object) -> str | None:
    """Return a text on one line, without what a terminal would obey; None stays."""
    short = "".join(c if c.isprintable() else " " for c in str(text)[:LONGEST])
    return None if text is None else short


# --- in the process that was called -----------------------------------------------


class Marking:
    """The process that marks one submission, and the row that it fills."""

    def __init__(self, submission: str):
        self.row = {"submission": submission, "exercises": {}, "problem": None}
        self.folder = TemporaryDirectory(ignore_cleanup_errors=True)
        self.answer, caller = multiprocessing.Pipe(duplex=False)
        given = Path(submission).absolute(), self.folder.name, caller
        self.process = CONTEXT.Process(target=_work, args=given)
        self.begun = time.monotonic()
        self.process.start()
        caller.close()

    def left(self) -> float:
        """Return the seconds that it may still take."""
        return self.begun + SECONDS - time.monotonic()

    def close(self) -> dict:
        """End the process, and return the row."""
        self.row["seconds"] = round(time.monotonic() - self.begun, 1)
        late = self.process.is_alive()
        self.process.kill()
        self.process.join()
        names, verdicts, problem = _received(self.answer)
        left = names[len(verdicts) :]
        if problem:
            verdicts = []
        elif late:
            problem = f"it was stopped after {SECONDS:g} seconds"
        elif code := self.process.exitcode:
            how = signal.strsignal(-code) if code < 0 else f"exit code {code}"
            problem = f"its process ended: {how}"
        elif left or not names:
            problem = "its process ended before its answers were marked"
        if problem and left:
            problem = f"{problem}, while marking {left[0]}"
        self.row.update(exercises=_best(names, verdicts), problem=problem)
        self.answer.close()
        self.folder.cleanup()
        return self.row


def _received(answer: Connection) -> tuple[list[str], list[dict], str | None]:
    """Return what a process that has ended said: exercises, verdicts, a problem.

    It is not trusted: what has another form than `_work` gives it is a problem.
    """
    said = []
    with contextlib.suppress(EOFError, OSError):
        while True:
            said.append(answer.recv_bytes(MESSAGE))
    try:
        said = [json.loads(each) for each in said]
        problem = _short(said.pop()) if said and isinstance(said[-1], str) else None
        names, *verdicts = said or [[]]
        verdicts = [{part: _short(each[part]) for part in PARTS} for each in verdicts]
        known = all(each["status"] in STATUS.values() for each in verdicts)
        if not known or not isinstance(names, list) or set(names) - set(EXERCISES):
            raise ValueError("there is no such verdict, or no such exercise")
        if len(verdicts) > len(names):
            raise ValueError("there are more verdicts than exercises")
        return names, verdicts, problem
    except (ValueError, LookupError, TypeError, RecursionError):
        return [], [], "its process said something else than verdicts"


def _best(names: list[str], verdicts: list[dict]) -> dict[str, dict]:
    """Return the best verdict on each exercise; the last ones may be missing."""
    best = {}
    for name, verdict in zip_longest(names, verdicts, fillvalue=UNMARKED):
        least = RANKS.index(best.get(name, verdict)["status"])
        if RANKS.index(verdict["status"]) >= least:
            best[name] = verdict
    return {name: best[name] for name in EXERCISES if name in best}


def mark(submissions: list[str], jobs: int = 1, shown: bool = True) -> list[dict]:
    """Return one row for each submission, in their order; `jobs` run at once."""
    check_size("jobs", jobs, least=1)
    waiting, running, rows = list(enumerate(submissions))[::-1], {}, {}
    hidden = {} if shown else {"disable": True}  # without it TQDM_DISABLE rules
    tqdm.monitor_interval = 0  # the bar needs no thread, which a fork could not copy
    try:
        with tqdm(total=len(submissions), unit="submission", **hidden) as bar:
            while waiting or running:
                while waiting and len(running) < jobs:
                    place, submission = waiting.pop()
                    running[place] = Marking(submission)
                soonest = max(0, min(each.left() for each in running.values()))
                wait([each.process.sentinel for each in running.values()], soonest)
                for place, each in list(running.items()):
                    if each.left() <= 0 or not each.process.is_alive():
                        rows[place] = running.pop(place).close()
                        bar.update()
    finally:
        for each in running.values():  # after Ctrl-C
            each.close()
    return [rows[place] for place in range(len(submissions))]
