"""Marks submitted notebooks, each in a process of its own (__main__.py is the command).

Of a submission only the cells that call `check` count, each run alone, after those
statements of the cells above it that define what it uses; what it stores or prints is
ignored. Its process has a limit of time and of memory, opens no socket and starts no
program. Before and after each cell it writes down what is known: if it crashes or is
stopped, the verdicts that came before stay, and the rest is unmarked. This keeps
accidents apart, not attacks.
"""

import ast
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
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import torch
from tqdm import tqdm

from utils.exercises import EXERCISES, kept
from utils.exercises.catalogue import HEADING, number_of
from utils.exercises.engine import NOT_YET, SOLVED, UNTOUCHED
from utils.exercises.kept import NotKept

SECONDS = 120.0  # that one submission may take
MEMORY = 2 * 2**30  # bytes that it may take, beside PyTorch and the course
LONGEST = 200  # characters of a message
STATUS = {UNTOUCHED: "untouched", NOT_YET: "wrong", SOLVED: "solved"}
# of several answers to an exercise the best one counts; an unmarked one might be right
RANKS = ["untouched", "wrong", "unmarked", "solved"]
NOT_ITS_OWN = "EXERCISES", "reference"  # names that an answer does not need
CLOSED = "socket. subprocess. os.system os.kill os.fork os.exec os.spawn os.posix_spawn"


# --- in the process of one submission ---------------------------------------------


def work(path: Path, folder: str, memory: int) -> None:
    """Write to `folder`/said, as lines of JSON, what is known from cell to cell."""
    with open(f"{folder}/said", "w", encoding="utf-8") as file:
        os.mkdir(f"{folder}/here")
        _close_off(f"{folder}/here", memory)
        for verdicts, problem, now in _known(path):
            known = {"exercises": best(verdicts), "problem": problem, "now": now}
            print(json.dumps(known), file=file, flush=True)
    os._exit(0)  # whatever threads the submission left behind


def _known(path: Path) -> Iterator[tuple[list, str | None, str | None]]:
    """Yield (verdicts so far, why it ended or None, the exercise at work or None)."""
    try:
        cells = answer_cells(path)
    except ValueError as error:
        yield [], str(error), None
        return
    modules = [m for n, m in sys.modules.items() if n.startswith("utils.")]
    classes = [c for m in modules for c in vars(m).values() if isinstance(c, type)]
    owners = [*modules, *classes, builtins, torch, torch.Tensor]
    course = [(owner, *item) for owner in owners for item in vars(owner).items()]
    # torch.compile wraps manual_seed
    course = [x for x in course if x[1] != "manual_seed"]
    course = [x for x in course if callable(x[2]) or type(x[2]) is property]
    unmarked = verdicts = [(name, said("unmarked")) for name, *_ in cells]
    for i, (name, *cell) in enumerate(cells):
        yield verdicts, None, name
        verdicts = [*verdicts[:i], (name, mark_cell(name, *cell)), *unmarked[i + 1 :]]
        if any(vars(owner).get(key) is not x for owner, key, x in course):
            yield unmarked, "it replaces `check`, or what `check` is made of", name
            return
    yield verdicts, None, None


def best(verdicts: list[tuple[str, dict]]) -> dict[str, dict]:
    """Return the best verdict on each exercise, the last of several."""
    verdicts = sorted(verdicts, key=lambda x: RANKS.index(x[1]["status"]))
    return {name: dict(verdicts)[name] for name in EXERCISES if name in dict(verdicts)}


def said(status: str, mistake: str | None = None, message: str = "") -> dict:
    """Return what is said of an exercise, without what a terminal would obey."""
    message = "".join(c if c.isprintable() else " " for c in message[:LONGEST])
    return {"status": status, "mistake": mistake, "message": message}


def _close_off(folder: str, memory: int) -> None:
    """Leave this process no output, no network, no other program, little memory."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(folder)
    os.environ["COURSE_PROGRESS_DIR"] = f"{folder}/none"  # nothing is solved there
    matplotlib.use("Agg")
    torch.set_num_threads(1)
    # not on Windows and macOS; a ValueError where a lower limit holds already
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    sys.addaudithook(_refuse)


def _refuse(event: str, _) -> None:
    """Refuse an audit event of Python that begins as one of CLOSED does."""
    if event.startswith(tuple(CLOSED.split())):
        raise PermissionError(f"a submission may not use {event}")


def answer_cells(path: Path) -> list[tuple[str, str, list[ast.stmt]]]:
    """Return (exercise, cell, earlier statements) of each answer in a notebook.

    An exercise that the notebook calls by an old number is called by today's. A
    ValueError says why there is no answer.
    """
    found, titles, before = [], {}, []
    try:
        for cell in json.loads(path.read_bytes())["cells"]:
            text = "".join(cell.get("source", ""))
            if cell["cell_type"] == "markdown":
                titles |= dict(HEADING.findall(text))
            elif cell["cell_type"] == "code":
                shown = "shows_broken" in (cell.get("metadata") or {})
                names = [] if shown else checked_in(text)
                names = [number_of(n, titles.get(n, "")) for n in names]
                found += [(n, text, before[:]) for n in names if n in EXERCISES]
                with contextlib.suppress(SyntaxError):
                    before += kept.parsed(text).body
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        said = "it is no notebook of format 4; save it in Jupyter"
        raise ValueError(said) from None
    if not found:
        said = 'no cell calls check("N.M", ...) for an exercise of the course'
        raise ValueError(said)
    return found


def checked_in(text: str) -> list[str]:
    """Return the exercises for which a cell calls `check`, also in a loop over them."""
    try:
        nodes = list(ast.walk(kept.parsed(text)))
    except SyntaxError:  # half written: it is wrong, and it is there
        return re.findall(r"""^[^#\n]*\bcheck\(\s*["'](\d+\.\d+)["']""", text, re.M)
    calls = [x for x in nodes if isinstance(x, ast.Call) and x.args]
    first = [x.args[0] for x in calls if re.search(r"\bcheck$", ast.unparse(x.func))]
    if not all(isinstance(each, ast.Constant) for each in first):  # a loop over them
        first = [x for x in nodes if isinstance(x, ast.Constant)]
    texts = dict.fromkeys(str(x.value) for x in first)
    return [x for x in texts if re.fullmatch(r"\d+\.\d+", x)]


def mark_cell(name: str, text: str, before: list[ast.stmt]) -> dict:
    """Return what is said of the answer to an exercise that a cell holds.

    before: the statements above it, of which it gets those that it cannot do without.
    """
    try:
        nodes = ast.walk(kept.parsed(text))
        if any(getattr(x, "id", getattr(x, "attr", "")) in NOT_ITS_OWN for x in nodes):
            raise NotKept("it reads the course's own answer")
        kept.own(EXERCISES[name], text)
        return said("solved")
    except SyntaxError as error:
        return said("wrong", None, f"SyntaxError: {error}")
    except NotKept as error:
        why, verdict = str(error), error.verdict
    missing = re.search(r"it uses `(\w+)` from another cell", why)
    for line in map(ast.unparse, reversed(before) if missing else ()):
        if missing[1] in defined_by(line) and line not in text:
            return mark_cell(name, f"{line}\n{text}", before)
    if verdict is None:
        return said("wrong", None, why)
    first = verdict.message.split("\n")[0]
    return said(STATUS[verdict.status], verdict.mistake, first)


def defined_by(statement: str) -> set[str]:
    """Return the names that a statement defines."""
    table = symtable.symtable(statement, "", "exec")
    found = (x for x in table.get_symbols() if x.is_assigned() or x.is_imported())
    return {x.get_name() for x in found}


# --- in the process that was called -----------------------------------------------


def mark(
    submissions: list[str], jobs=1, *, seconds=SECONDS, memory=MEMORY, shown=True
) -> list[dict]:
    """Return one row for each submission, in their order; `jobs` run at once.

    seconds, memory (bytes): what each may take; shown: whether a bar shows how far.
    """
    kinds = multiprocessing.get_all_start_methods()  # Windows has no forkserver, whose
    kind = "forkserver" if "forkserver" in kinds else "spawn"  # children are loaded
    context = multiprocessing.get_context(kind)
    if kind == "forkserver":
        context.set_forkserver_preload(["__main__", "utils.exercises.mark"])
    hidden = {} if shown else {"disable": True}  # without it TQDM_DISABLE rules
    with ThreadPool(jobs) as pool:
        rows = pool.imap(lambda x: _row(context, x, seconds, memory), submissions)
        return list(tqdm(rows, total=len(submissions), unit="submission", **hidden))


def _row(context, submission: str, seconds: float, memory: int) -> dict:
    """Mark one submission; return its exercises, a problem or None, and the seconds."""
    begun = time.monotonic()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given = Path(submission).absolute(), folder, memory
        process = context.Process(target=work, args=given)
        process.start()
        process.join(seconds)
        late = process.is_alive()
        process.kill()
        process.join()
        path = Path(folder, "said")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {"exercises": {}, "problem": None, "now": None}
    with contextlib.suppress(ValueError):  # a last line that was cut off
        for line in lines:
            known = json.loads(line)
    problem, code = known["problem"], process.exitcode
    if not problem and (late or code or known["now"] or not lines):
        how = signal.strsignal(-code) if code < 0 else f"exit code {code}"
        problem = f"its process ended: {how}"
        problem = f"it was stopped after {seconds:g} seconds" if late else problem
    if known["now"]:
        problem += f", while marking {known['now']}"
    seconds = round(time.monotonic() - begun, 1)
    row = {"submission": submission, "exercises": known["exercises"]}
    return row | {"problem": problem, "seconds": seconds}
