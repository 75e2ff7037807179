"""Marks submitted notebooks, each in a process of its own (__main__.py is the command).

Of a submission only the cells that call `check` count, each run alone; what it stores
or prints is ignored. Its process has a limit of time and of memory, opens no socket and
starts no program. It says which exercises it will grade before it runs any of them, and
each verdict as soon as it is known: if it crashes or is stopped, the verdicts that came
before stay, and the rest is unmarked. This keeps accidents apart, not attacks.
"""

import ast
import builtins
import contextlib
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from itertools import zip_longest
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import torch
from tqdm import tqdm

from utils.exercises import EXERCISES, kept
from utils.exercises.catalogue import HEADING, number_of
from utils.exercises.engine import NOT_YET, SOLVED, UNTOUCHED, grade
from utils.exercises.kept import NotKept

SECONDS = 120.0  # that one submission may take
MEMORY = 2 * 2**30  # bytes that it may take, beside PyTorch and the course
LONGEST = 200  # characters of a message
STATUS = {UNTOUCHED: "untouched", NOT_YET: "wrong", SOLVED: "solved"}
PARTS = "status", "mistake", "message"  # what is said of an exercise
UNMARKED = dict(zip(PARTS, ("unmarked", None, "")))
# of several answers to an exercise the best one counts; an unmarked one might be right
RANKS = ["untouched", "wrong", "unmarked", "solved"]
NOT_ITS_OWN = r"\bEXERCISES\b|\.reference\b|\banswer\(\s*[\"']{name}[\"']"
CLOSED = "socket. subprocess. os.system os.kill os.fork os.exec os.spawn os.posix_spawn"
# a fork has PyTorch loaded already; elsewhere than on Linux it is not safe
CONTEXT = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


# --- in the process of one submission ---------------------------------------------


class NotMarked(Exception):
    """Says in words why nothing of a submission counts."""


def work(path: Path, folder: str, caller: Connection) -> None:
    """Send the list of a submission's exercises, then verdict by verdict, as JSON.

    A text in the place of one says why nothing counts.
    """

    def send(said: list | dict | str) -> None:
        caller.send_bytes(json.dumps(said).encode())

    _close_off(folder)
    try:
        cells = answer_cells(path)
        send([name for name, _ in cells])
        course = _course()
        for name, text in cells:
            verdict = mark_cell(name, text)
            if any(vars(owner).get(key) is not x for owner, key, x in course):
                raise NotMarked("it replaces `check`, or what `check` is made of")
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
    os.environ["COURSE_PROGRESS_DIR"] = folder  # nothing is solved or kept there
    matplotlib.use("Agg")
    torch.set_num_threads(1)
    # not on Windows and macOS; a ValueError where a lower limit holds already
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        soft = pages * resource.getpagesize() + MEMORY
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    sys.addaudithook(_refuse)


def _refuse(event: str, _) -> None:
    """Refuse an audit event of Python that begins as one of CLOSED does."""
    if event.startswith(tuple(CLOSED.split())):
        raise PermissionError(f"a submission may not use {event}")


def answer_cells(path: Path) -> list[tuple[str, str]]:
    """Return (exercise, text) of each answer in a notebook; NotMarked if there is none.

    An exercise that the notebook calls by an old number is called by today's.
    """
    try:
        cells = json.loads(path.read_bytes())["cells"]
        texts = [(c["cell_type"], "".join(c["source"]), c["metadata"]) for c in cells]
    except OSError as error:
        raise NotMarked(f"it cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, RecursionError, MemoryError):
        raise NotMarked("it is no notebook of format 4; save it in Jupyter") from None
    found, titles = [], {}
    for kind, text, metadata in texts:
        if kind == "markdown":
            titles |= dict(HEADING.findall(text))
        elif kind == "code" and "shows_broken" not in metadata:
            for name in checked_in(text):
                found.append((number_of(name, titles.get(name, "")), text))
    found = [(name, text) for name, text in found if name in EXERCISES]
    if not found:
        raise NotMarked('no cell calls check("N.M", ...) for an exercise of the course')
    return found


def checked_in(text: str) -> list[str]:
    """Return the exercises for which a cell calls `check`, also in a loop over them."""
    try:
        calls = [x for x in ast.walk(kept.parsed(text)) if isinstance(x, ast.Call)]
    except (SyntaxError, ValueError):  # half written: it is wrong, and it is there
        return re.findall(r"""^[^#\n]*\bcheck\(\s*["'](\d+\.\d+)["']""", text, re.M)
    called = {ast.unparse(each.func).split(".")[-1] for each in calls}
    if "check" not in called:
        return []
    others = [
        x for each in calls if "answer" in ast.unparse(each.func) for x in each.args
    ]
    texts = [
        x.value
        for x in ast.walk(kept.parsed(text))
        if isinstance(x, ast.Constant) and ast.dump(x) not in map(ast.dump, others)
    ]
    return [x for x in dict.fromkeys(texts) if re.fullmatch(r"\d+\.\d+", str(x))]


def mark_cell(name: str, text: str) -> dict:
    """Return what is said of the answer to an exercise that a cell holds."""
    try:
        if found := re.search(NOT_ITS_OWN.format(name=re.escape(name)), text):
            raise NotKept(f"it reads the course's own answer: {found[0]}")
        function = kept.load(EXERCISES[name], text)
        if function is EXERCISES[name].reference:
            raise NotKept("it is the course's own function")
    except NotKept as error:
        return dict(zip(PARTS, ("wrong", None, _short(error))))
    verdict = grade(EXERCISES[name], function)
    message = "" if verdict.solved else _short(verdict.message.split("\n")[0])
    return dict(zip(PARTS, (STATUS[verdict.status], verdict.mistake, message)))


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
        self.answer, caller = CONTEXT.Pipe(duplex=False)
        given = Path(submission).absolute(), self.folder.name, caller
        self.process = CONTEXT.Process(target=work, args=given)
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
        names, verdicts, problem = received(self.answer)
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
        self.row.update(exercises=best(names, verdicts), problem=problem)
        self.answer.close()
        self.folder.cleanup()
        return self.row


def received(answer: Connection) -> tuple[list[str], list[dict], str | None]:
    """Return what a process that has ended said: exercises, verdicts, a problem.

    It is not trusted: what has another form than `work` gives it is a problem.
    """
    said = []
    with contextlib.suppress(EOFError, OSError):
        while True:
            said.append(answer.recv_bytes(2**14))
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


def best(names: list[str], verdicts: list[dict]) -> dict[str, dict]:
    """Return the best verdict on each exercise; the last ones may be missing."""
    found = {}
    for name, verdict in zip_longest(names, verdicts, fillvalue=UNMARKED):
        least = RANKS.index(found.get(name, verdict)["status"])
        if RANKS.index(verdict["status"]) >= least:
            found[name] = verdict
    return {name: found[name] for name in EXERCISES if name in found}


def mark(submissions: list[str], jobs: int = 1, shown: bool = True) -> list[dict]:
    """Return one row for each submission, in their order; `jobs` run at once."""
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
