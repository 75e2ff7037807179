"""Solved answers: one file of Python text an exercise, in the user's own data folder.

A file that the user does not own, or that others may write, is not run (Windows has no
such modes: there nothing is asked). What is kept is graded again whenever it is used,
with the time limit of `check`. The first line of a file has the number and the title
that the exercise had then: it is found after the exercises were numbered anew.
"""

import ast
import linecache
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import MagicMock

import matplotlib.pyplot as plt
from IPython.core.inputtransformer2 import TransformerManager
from IPython.utils.capture import capture_output
from platformdirs import user_data_dir

from .catalogue import Exercise, number_of
from .engine import Verdict, grade
from .running import TooLong, first_line, surroundings, time_limit

MARK = "# Attention, Head by Head: exercise "
KERNEL = {  # what a notebook's kernel offers; magics do nothing
    "__name__": "__main__",
    "display": lambda *shown, **how: None,
    "get_ipython": MagicMock(),
}
given: dict[str, list[Callable]] = {}  # of cells that are being run: what check got


class NotKept(Exception):
    """Says in words why an answer cannot be kept, or not be used."""


def folder() -> Path:
    """Return the folder of the solved answers, whether or not it exists yet.

    It is COURSE_PROGRESS_DIR where that is set, else a folder of the course among the
    user's data, where the platform keeps them.
    """
    own = user_data_dir("attention-head-by-head", appauthor=False)
    return Path(os.environ.get("COURSE_PROGRESS_DIR") or own).expanduser()


# --- files ------------------------------------------------------------------------


def find(exercise: Exercise) -> Path | None:
    """Return the file that holds the answer to an exercise, the newest of several."""
    files = [x for x in folder().glob("*.py") if number_in(x) == exercise.name]
    return max(files, key=os.path.getmtime, default=None)


def number_in(path: Path) -> str:
    """Return today's number of the exercise of which a file of the course is, or ""."""
    with suppress(OSError), path.open(encoding="utf-8-sig", errors="replace") as file:
        line = file.readline().strip()
        if line.startswith(MARK):
            number, _, title = line.removeprefix(MARK).partition(", ")
            return number_of(number, title)
    return ""


def read(exercise: Exercise) -> str:
    """Return the text kept of an exercise; NotKept says why there is none."""
    path = find(exercise)
    if path is None:
        raise NotKept(f"{exercise.name} is not solved yet")
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        seen = os.fstat(file.fileno())  # of what is read, not of what stands there now
        if os.name == "posix" and (seen.st_uid != os.getuid() or seen.st_mode & 0o022):
            raise NotKept(
                f"{path.name} belongs to somebody else, or others may write it, so it "
                "is not run; read it, and if it is yours: `chmod go-w` it"
            )
        return file.read()


def write(exercise: Exercise, cell: str) -> None:
    """Keep the text of an answer, whole or not at all; NotKept says why not."""
    head = f"{exercise.name} {exercise.title}"
    path = folder() / f"{re.sub(r'[^.0-9A-Za-z]+', '-', head)}.py"
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch(0o600)
        text = f"{MARK}{exercise.name}, {exercise.title}\n\n\n{cell.strip()}\n"
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise NotKept(f"{path.name} in your folder: {error.strerror}") from None


def remove(exercise: Exercise) -> bool:
    """Delete what is kept of an exercise; return whether there was anything."""
    found = False
    while path := find(exercise):
        path.unlink()
        found = True
    return found


# --- cells ------------------------------------------------------------------------


def own(exercise: Exercise, cell: str) -> Callable:
    """Return the right answer of a cell that is run alone; NotKept says why not."""
    function, verdict = load(exercise, cell)
    if not verdict.solved:
        said = verdict.message.splitlines()[0].rstrip(".")
        raise NotKept(f"when its cell is run alone, it is not right ({said})")
    return function


def load(exercise: Exercise, cell: str) -> tuple[Callable, Verdict]:
    """Return what a cell, run alone, gives to check, and the verdict on it.

    Of several functions it is the first right one, or else the last.
    """
    given[exercise.name], figures = [], plt.get_fignums()
    try:
        with surroundings(), capture_output():
            names = run_alone(exercise, cell)
            functions = given[exercise.name][:] or [names.get("ANSWER")]
            if not all(map(callable, functions)):
                raise NotKept("its cell gives no function to check")
            for function in functions:
                verdict = grade(exercise, function)
                if verdict.solved:
                    break
            return function, verdict
    finally:
        del given[exercise.name]
        for number in {*plt.get_fignums()} - {*figures}:
            plt.close(number)


def run_alone(exercise: Exercise, cell: str) -> dict:
    """Return the names of a cell that was run as a kernel would run it.

    Before it come the imports of its page. A line that only shows something may fail:
    it may use what other cells define.
    """
    file = f"<your answer {exercise.name}, {hash(cell):x}>"
    names = exercise.space | KERNEL
    exec(f"from {__package__} import answer, check, progress", names)
    # where tracebacks and inspect.getsource look for the lines of a file
    linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
    try:
        with time_limit():
            for each in parsed(cell).body:
                try:
                    exec(compile(ast.Module([each], []), file, "exec"), names)
                except (Exception, SystemExit, TooLong):
                    if not isinstance(each, ast.Expr) or "check(" in ast.unparse(each):
                        raise
        return names
    except NotKept:
        raise
    except TooLong as error:
        raise NotKept(f"its cell had not finished after {error}") from None
    except (Exception, SystemExit) as error:
        said = f"it raises {type(error).__name__}: {first_line(error)}"
        raise NotKept(f"when its cell is run alone, {said}") from None


def parsed(text: str) -> ast.Module:
    """Return a cell as a kernel reads it; SyntaxError says what is wrong with it."""
    text = re.sub(r"\A\s*%%.*\n", "", text)  # %%time
    text = re.sub(r"^(\s*)%time(it)? ", r"\1", text, flags=re.M)
    return ast.parse(TransformerManager().transform_cell(text))
