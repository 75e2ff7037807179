"""Solved answers: one file of Python text an exercise, in the user's own data folder.

A file that the user does not own, or that others may write, is not run (Windows has no
such modes: there nothing is asked). What is kept is graded again whenever it is used,
with the time limit of `check`. The name of a file is the number and the title that the
exercise had then, so that it is found after the exercises were numbered anew.
"""

import ast
import linecache
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import MagicMock

from IPython import get_ipython
from IPython.core.inputtransformer2 import TransformerManager
from platformdirs import user_data_dir

from .catalogue import Exercise, imported, number_of, renumbered
from .engine import grade
from .running import TooLong, afresh, first_line, silence, surroundings_kept

MARK = "# Attention, Head by Head: exercise "
LARGEST = 64 * 1024  # bytes; an answer is a page of text
given: dict[str, list[Callable]] = {}  # of cells that are being run: what check got


class NotKept(Exception):
    """Says in words why an answer cannot be kept, or not be used.

    verdict: on an answer that is not right when its cell is run alone.
    """

    verdict = None


def folder() -> Path:
    """Return the folder of the solved answers, whether or not it exists yet.

    It is COURSE_PROGRESS_DIR where that is set, else a folder of the course among the
    user's data, where the platform keeps them.
    """
    own = user_data_dir("attention-head-by-head", appauthor=False)
    try:
        return Path(os.environ.get("COURSE_PROGRESS_DIR") or own).expanduser()
    except RuntimeError:  # there is no such home
        said = "the folder of your answers cannot be found; COURSE_PROGRESS_DIR names"
        raise NotKept(f"{said} it") from None


# --- files ------------------------------------------------------------------------


def place(exercise: Exercise) -> Path:
    """Return the file in which the answer to an exercise is kept."""
    head = f"{exercise.name} {exercise.title}"
    return folder() / f"{re.sub(r'[^.0-9A-Za-z]+', '-', head)}.py"


def find(exercise: Exercise) -> Path | None:
    """Return the file that holds the answer to an exercise, whatever its number was."""
    moved = (
        old.split()[0] for old, new in renumbered().items() if new == exercise.name
    )
    files = [x for n in (exercise.name, *moved) for x in folder().glob(f"{n}[-.]*py")]
    files = [x for x in files if number_in(x) == exercise.name]
    return max(files, key=lambda path: path == place(exercise), default=None)


def number_in(path: Path) -> str:
    """Return today's number of the exercise of which a file of the course is, or ""."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            line = file.readline(1000).strip()
    except OSError:
        return ""
    number, _, title = line.removeprefix(MARK).partition(", ")
    return number_of(number, title) if line.startswith(MARK) else ""


def read(exercise: Exercise) -> str | None:
    """Return the text kept of an exercise, or None; NotKept says why it is not used."""
    path = find(exercise)
    if path is None:
        return None
    try:
        with path.open(encoding="utf-8-sig") as file:
            seen = os.fstat(file.fileno())
            foreign = os.name == "posix" and seen.st_uid != os.getuid()
            if foreign or (os.name == "posix" and seen.st_mode & 0o022):
                raise NotKept(
                    f"{path.name} belongs to somebody else, or others may write it, so "
                    "it is not run; read it, and if it is yours: `chmod go-w` it"
                )
            if seen.st_size > LARGEST:
                raise NotKept(f"{path.name} is larger than {LARGEST // 1024} KiB")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise NotKept(f"{path.name} cannot be read ({type(error).__name__})") from None


def write(exercise: Exercise, cell: str) -> None:
    """Keep the text of an answer, whole or not at all; NotKept says why not."""
    path = place(exercise)
    text = f"{MARK}{exercise.name}, {exercise.title}\n\n\n{cell.strip()}\n"
    if len(text.encode()) > LARGEST:
        raise NotKept(f"its cell is longer than {LARGEST // 1024} KiB")
    if path.exists() and not number_in(path):
        raise NotKept(f"{path.name} in your folder was not written by this course")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(".tmp", ".answer-", path.parent)  # ours alone
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(part, path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise NotKept(f"{path.name} in your folder: {error.strerror}") from None


def remove(exercise: Exercise) -> bool:
    """Delete what is kept of an exercise; return whether there was anything."""
    found = False
    while path := find(exercise):
        try:
            path.unlink()
        except OSError as error:
            raise NotKept(f"{path.name} in your folder: {error.strerror}") from None
        found = True
    return found


# --- cells ------------------------------------------------------------------------


def own(exercise: Exercise, cell: str) -> Callable:
    """Return what a cell, run alone, gives to check and is right, or say why not.

    It is run without its prints and pictures, which may use what other cells define;
    if that does not do, it is run whole.
    """
    try:
        whole, short = parsed(cell), parsed(cell)
    except SyntaxError as error:
        raise not_alone(f"it raises SyntaxError: {first_line(error)}") from None
    short.body = [
        each
        for each in short.body
        if not isinstance(each, ast.Expr) or "check(" in ast.unparse(each)
    ]
    try:
        return alone(exercise, short, cell)
    except NotKept:
        if len(short.body) < len(whole.body):
            with suppress(NotKept):
                return alone(exercise, whole, cell)
        raise


def alone(exercise: Exercise, tree: ast.Module, text: str) -> Callable:
    """Return the first right function of those that a cell gives to check.

    tree, text: of the cell. It is run as a kernel would run it, in silence, after the
    imports of its page.
    """
    name, file = exercise.name, f"<your answer {exercise.name}, {hash(text):x}>"
    course = f"from {__package__} import answer, check, progress"
    space = imported(f"{exercise.imports}\n{course}") | KERNEL
    given[name] = []
    # where tracebacks and inspect.getsource look for the lines of a file
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    try:
        with surroundings_kept(), silence():
            with afresh():
                exec(compile(tree, file, "exec"), space)
            found = given[name][:] or [space.get("ANSWER")]  # as it was called once
            if not all(map(callable, found)):
                raise NotKept("its cell gives no function to check")
            for function in found:
                verdict = grade(exercise, function)
                if verdict.solved:
                    return function
    except NotKept:
        raise
    except TooLong as error:
        raise NotKept(f"its cell had not finished after {error}") from None
    except BaseException as error:  # SystemExit, KeyboardInterrupt: Run All goes on
        said = f"it raises {type(error).__name__}: {first_line(error)}"
        raise not_alone(said) from None
    finally:
        del given[name]
    said = verdict.message.splitlines()[0].rstrip(".")
    wrong = not_alone(f"it is not right ({said})")
    wrong.verdict = verdict
    raise wrong


KERNEL = {  # what a notebook's kernel offers
    "__name__": "__main__",
    "display": lambda *shown, **how: None,
    "get_ipython": lambda: get_ipython() or MagicMock(),
}


def not_alone(said: str) -> NotKept:
    """Return what to raise if a cell fails alone: it may need a name of another one."""
    if missing := re.search(r"name '(\w+)' is not defined", said):
        said = f"it uses `{missing[1]}` from another cell; put it into the same cell"
        return NotKept(said)
    return NotKept(f"when its cell is run alone, {said}")


def parsed(text: str) -> ast.Module:
    """Return a cell as a kernel reads it; SyntaxError says what is wrong with it."""
    text = re.sub(r"\A\s*%%.*\n", "", text)  # %%time
    text = re.sub(r"^(\s*)%time(it)? ", r"\1", text, flags=re.M)
    try:
        return ast.parse(TransformerManager().transform_cell(text))
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(first_line(error)) from None
