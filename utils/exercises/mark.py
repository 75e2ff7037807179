"""Marks submitted notebooks, each in a process of its own.

Of a submission only the cells that call `check` count, each run alone, after those
statements of the cells above it that define what it uses; what it stores or prints is
ignored. Its process has a limit of time and of memory, opens no socket and starts no
program. Before and after each cell it writes down what is known: if it crashes or is
stopped, the verdicts that came before stay, and the rest is unmarked. This keeps
accidents apart, not attacks.
"""

import argparse
import ast
import contextlib
import csv
import importlib
import json
import multiprocessing
import os
import re
import signal
import symtable
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import torch
from tqdm import tqdm

from utils.exercises import EXERCISES, kept
from utils.exercises.catalogue import HEADING, cells_of, number_of
from utils.exercises.engine import NOT_YET, SOLVED, UNTOUCHED

SECONDS = 120.0  # that one submission may take
MEMORY = 3 * 2**30  # bytes that it may take
LONGEST = 200  # characters of a message
NARROW = 48  # of them in the table; the CSV file has all
STATUS = {UNTOUCHED: "untouched", NOT_YET: "wrong", SOLVED: "solved"}
# of several answers to an exercise the best one counts; an unmarked one might be right
RANKS = ["untouched", "wrong", "unmarked", "solved"]
UNMARKED = "unmarked", "unmarked"
CLOSED = "socket. subprocess. os.system os.kill os.fork os.exec os.spawn os.posix_spawn"


# --- in the process of one submission ---------------------------------------------


def work(path: Path, folder: str) -> None:
    """Write to `folder`/said, as lines of JSON, what is known from cell to cell."""
    with open(f"{folder}/said", "w", encoding="utf-8") as file:
        os.mkdir(f"{folder}/here")
        close_off(f"{folder}/here")
        for known in known_of(path):
            print(json.dumps(known), file=file, flush=True)
    os._exit(0)  # whatever threads the submission left behind


def close_off(folder: str) -> None:
    """Leave this process no output, no network, no other program, little memory."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(folder)
    os.environ["COURSE_PROGRESS_DIR"] = f"{folder}/none"  # nothing is solved there
    matplotlib.use("Agg")
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    sys.addaudithook(refuse)


def refuse(event: str, _) -> None:
    """Refuse an audit event of Python that begins as one of CLOSED does."""
    if event.startswith(tuple(CLOSED.split())):
        raise PermissionError(f"a submission may not use {event}")


def known_of(path: Path) -> Iterator[tuple[list, str | None, str | None]]:
    """Yield (verdicts so far, why it ended or None, the exercise at work or None)."""
    try:
        cells = answer_cells(path)
    except ValueError as error:
        yield [], str(error), None
        return
    modules = [m for n, m in sys.modules.items() if n.startswith("utils.exercises")]
    course = [(vars(each), dict(vars(each))) for each in modules]
    verdicts = [(name, UNMARKED) for name, *_ in cells]
    for i, (name, *cell) in enumerate(cells):
        yield verdicts, None, name
        verdicts[i] = name, verdict_on(name, *cell)
        if any(now.get(n) is not x for now, old in course for n, x in old.items()):
            unmarked = [(name, UNMARKED) for name, _ in verdicts]
            yield unmarked, "it replaces `check`, or what `check` is made of", name
            return
    yield verdicts, None, None


def answer_cells(path: Path) -> list[tuple[str, str, list[ast.stmt]]]:
    """Return (exercise, cell, earlier statements) of each answer in a notebook.

    An exercise that the notebook calls by an old number is called by today's. A
    ValueError says why there is no answer.
    """
    found, titles, before, called = [], {}, [], ["check"]
    for kind, text, metadata in cells_of(path):
        if kind == "markdown":
            titles |= dict(HEADING.findall(text))
        elif kind == "code":
            called += re.findall(r"\bcheck\s+as\s+(\w+)", text)
            text = re.sub(rf"(?<![.\w])({'|'.join(called)})(?=\s*\()", "check", text)
            names = [] if "shows_broken" in metadata else checked_in(text)
            names = [number_of(n, titles.get(n, "")) for n in names]
            found += [(n, text, before[:]) for n in names if n in EXERCISES]
            with contextlib.suppress(SyntaxError):
                before += kept.parsed(text).body
    if not found:
        raise ValueError('no cell calls check("N.M", ...) for one of the exercises')
    return found


def checked_in(text: str) -> list[str]:
    """Return the exercises for which a cell calls `check`, also in a loop over them."""
    text = re.sub("#.*", "", text)
    names = re.findall(r"""\bcheck\s*\(\s*["'](\d+\.\d+)["']""", text)
    if not names and re.search(r"\bcheck\s*\(", text):
        names = re.findall(r"""["'](\d+\.\d+)["']""", text)
    return [*dict.fromkeys(names)]


def verdict_on(name: str, text: str, before: list[ast.stmt]) -> tuple[str, str]:
    """Return what is said of the answer that a cell holds, and as what it counts.

    before: the statements above it, of which it gets those that it cannot do without.
    """
    status, mistake = "wrong", None
    try:
        _, verdict = kept.load(EXERCISES[name], text)
        status, mistake = STATUS[verdict.status], verdict.mistake
        why = verdict.message.split("\n")[0]
    except kept.NotKept as error:
        why = str(error)
    missing = re.search(r"name '(\w+)' is not defined", why)
    changes = []  # such as K["d"] = 1, which stand after K = {}
    for line in map(ast.unparse, reversed(before) if missing else ()):
        if missing[1] in defined_by(line) and line not in text:
            lines = "\n".join([line, *reversed(changes), text])
            return verdict_on(name, lines, before)
        if re.match(rf"{missing[1]}[\[.]", line) and "check(" not in line:
            changes.append(line)
    if status != "wrong":
        return status, status
    why = "".join(c if c.isprintable() else " " for c in why[:LONGEST])
    return f"wrong: {mistake or why}", f"wrong: {mistake or 'others'}"


def defined_by(line: str) -> list[str]:
    """Return the names that a statement defines, also those of `from x import *`."""
    if star := re.fullmatch(r"from ([\w.]+) import \*", line):
        with contextlib.suppress(Exception):  # whatever the module does
            module = importlib.import_module(star[1])
            return [*getattr(module, "__all__", vars(module))]
        return []
    symbols = symtable.symtable(line, "", "exec").get_symbols()
    return [x.get_name() for x in symbols if x.is_assigned() or x.is_imported()]


# --- in the process that was called -----------------------------------------------


def mark(submissions: list[Path], jobs: int = 1) -> list[dict]:
    """Return one row for each submission, in their order; `jobs` run at once."""
    kind = "forkserver" if hasattr(os, "fork") else "spawn"  # Windows cannot fork
    context = multiprocessing.get_context(kind)
    if kind == "forkserver":  # whose children have PyTorch and the course loaded
        context.set_forkserver_preload([__name__])
    with ThreadPool(jobs) as pool:
        rows = pool.imap(lambda path: row_of(context, path), submissions)
        return list(tqdm(rows, total=len(submissions), unit="submission"))


def row_of(context, path: Path) -> dict:
    """Mark one submission; return its exercises, a problem or None, and the seconds."""
    begun, known = time.monotonic(), ([], None, "its first answer")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = context.Process(target=work, args=(path.absolute(), folder))
        process.start()
        process.join(SECONDS)
        late = process.is_alive()
        process.kill()
        process.join()
        with contextlib.suppress(OSError, ValueError):  # a last line that was cut off
            for line in Path(folder, "said").read_text(encoding="utf-8").splitlines():
                known = json.loads(line)
    verdicts, problem, now = known
    if now:
        code = process.exitcode
        how = signal.strsignal(-code) if code < 0 else f"exit code {code}"
        late = f"it was stopped after {SECONDS:g} seconds" if late else ""
        ended = problem or late or f"its process ended: {how}"
        problem = f"{ended}, while marking {now}"
    seconds = round(time.monotonic() - begun, 1)
    row = {"submission": path.as_posix(), "exercises": best(verdicts)}
    return row | {"seconds": seconds, "problem": problem}


def best(verdicts: list[tuple[str, tuple[str, str]]]) -> dict[str, tuple[str, str]]:
    """Return the best verdict on each exercise, the last of several."""
    by_rank = sorted(verdicts, key=lambda x: RANKS.index(x[1][0].split(":")[0]))
    ranked = dict(by_rank)
    return {name: ranked[name] for name in EXERCISES if name in ranked}


def files(arguments: list[Path]) -> list[Path]:
    """Return the files that are meant, each once, also those in folders.

    Nothing of a hidden folder, such as .ipynb_checkpoints.
    """
    found = {}  # in their order
    for path in arguments:
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            folders = each.relative_to(path).parts[:-1]
            hidden = any(part.startswith(".") for part in folders)
            found |= {each: None} if each.is_file() and not hidden else {}
    return list(found)


def main(arguments: list[str] | None = None) -> None:
    """Mark the submissions that a command line names."""
    for stream in (sys.stdout, sys.stderr):  # a console may lack some of the signs
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    parser = argparse.ArgumentParser("python -m utils.exercises")
    parser.add_argument("mark", choices=["mark"])
    what = "a notebook, or a folder with notebooks"
    parser.add_argument("submissions", nargs="+", type=Path, help=what)
    parser.add_argument("--jobs", type=int, default=1, help="how many run at once")
    into = "write the rows there; rows of other notebooks stay"
    parser.add_argument("--csv", type=Path, help=into)
    given = parser.parse_args(arguments)
    if missing := [str(x) for x in given.submissions if not x.exists()]:
        parser.error(f"there is no {', '.join(missing)}")
    found = files(given.submissions)
    # not the ._01.ipynb of a Mac's archive, if it was not named
    named = {*given.submissions}
    marked = [x for x in found if x in named or not x.name.startswith(".")]
    submissions = [x for x in marked if x.suffix == ".ipynb"]
    own = given.csv and given.csv.resolve()
    left = [x for x in found if x not in submissions and x.resolve() != own]
    if not submissions:
        parser.error("there is no notebook (.ipynb)")
    columns, old = read(given.csv) if given.csv else ([], [])
    rows = mark(submissions, given.jobs)
    if given.csv:  # before anything is printed
        write(given.csv, columns, old, rows)
    print(table(rows))
    if left:
        why = "because the name does not end in .ipynb, or begins with a dot"
        print(f"Not marked, {why}: {', '.join(x.as_posix() for x in left)}.")


# --- the CSV file and the table ---------------------------------------------------


def read(path: Path) -> tuple[list[str], list[dict]]:
    """Return columns and rows of a CSV file, also of a new one; refuse any other."""
    path.open("a").close()  # whether it can be written is known before it takes time
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), reader.fieldnames or []
    if columns and columns[0] != "submission":
        sys.exit(f"{path} is no table of `mark`, and stays as it is: name another file")
    return columns, rows


def write(path: Path, columns: list[str], old: list[dict], rows: list[dict]) -> None:
    """Write the CSV file, where rows replace those of the same notebook.

    Columns that it has already stay where they are, also those that are not ours.
    """
    names = [n for n in EXERCISES if any(n in row["exercises"] for row in rows)]
    ours = ["submission", *names, "solved", "seconds", "problem"]
    lines = {line["submission"]: line for line in old}
    for row in rows:
        line = lines.get(row["submission"], {}) | dict.fromkeys(EXERCISES, "") | row
        verdicts = {n: said for n, (said, _) in row["exercises"].items()}
        solved = [*verdicts.values()].count("solved")
        lines[row["submission"]] = line | verdicts | {"solved": solved}
    columns = [*dict.fromkeys([*columns, *ours])]
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # for Excel
        writer = csv.DictWriter(file, columns, "", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines.values())


def table(rows: list[dict]) -> str:
    """Return a line for each submission, and one for each exercise, with its counts."""
    lines, width = [], max(len(row["submission"]) for row in rows)
    for row in rows:
        said = [f"{n} {v[:NARROW]:10}" for n, (v, _) in row["exercises"].items()]
        said = "  ".join([*said, row["problem"] or ""]).rstrip()
        lines.append(f"{row['submission']:{width}} {row['seconds']:6.1f} s  {said}")
    for name in EXERCISES:
        counts = Counter(
            row["exercises"][name][1] for row in rows if name in row["exercises"]
        )
        said = ", ".join(f"{n} {what}" for what, n in counts.most_common())
        lines += [f"{name}: {said}."] if said else []
    return "\n".join(lines)
