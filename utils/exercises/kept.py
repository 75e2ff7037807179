"""Keeps solved answers: one file of Python text an exercise, in the user's folder.

What is kept is the cell that called `check`, as it stands. Nothing is kept inside the
repository, and a file that the course did not write is neither run, nor overwritten,
nor deleted.
"""

import ast
import contextlib
import linecache
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from datetime import datetime
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType

from platformdirs import user_data_dir

from utils.exercises.running import (
    LIMIT,
    TooLong,
    settings_kept,
    surroundings_kept,
    time_limit,
)

FOLDER = "attention-head-by-head"
LARGEST = 64 * 1024  # bytes; an answer is a page of text
HEADER = """\
# Attention, Head by Head: exercise {name}, {title}
# solved {time}
# answer("{name}") reads this file and checks it again; forget("{name}") deletes it.
"""
NAMES_AN_ANSWER = re.compile(r"^ANSWER = |\bcheck\(", re.MULTILINE)
PLAIN = bool, int, float, str, type(None)

_given: dict[str, Callable | None] = {}  # of cells that are being run: what check got


class NotKept(Exception):
    """Says in words why an answer cannot be kept, or not be used again."""


# --- files ------------------------------------------------------------------------


def folder() -> Path:
    """Return the folder of the solved answers, whether or not it exists yet.

    It is COURSE_PROGRESS_DIR where that is set, else a folder of the course among the
    user's data, where the platform keeps them.
    """
    chosen = os.environ.get("COURSE_PROGRESS_DIR")
    try:
        return Path(chosen or user_data_dir(FOLDER, appauthor=False)).expanduser()
    except RuntimeError:  # there is no home folder
        raise NotKept("you have no home folder; set COURSE_PROGRESS_DIR") from None


def read(name: str) -> str | None:
    """Return the text kept for exercise `name`, or None; NotKept says why not.

    A file that ends before its answer, as a crash may leave it, keeps nothing.
    """
    data = _data(name) or b""
    if len(data) > LARGEST:
        raise NotKept(f"{name}.py is larger than {LARGEST // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotKept(f"{name}.py is damaged: it is not UTF-8 text") from None
    return text if NAMES_AN_ANSWER.search(text) else None


def write(name: str, title: str, text: str) -> None:
    """Keep the text of an answer, whole or not at all; NotKept says why not."""
    time = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z").strip()
    header = HEADER.format(name=name, title=title, time=time)
    data = f"{header}\n\n{text.strip()}\n".encode()
    if len(data) > LARGEST:
        raise NotKept(f"its cell is longer than {LARGEST // 1024} KiB")
    _data(name)  # refuses to replace a foreign file
    path = folder() / f"{name}.py"
    with _said(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(".tmp", f".{name}-", path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)  # several kernels at once: the last one wins
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def remove(name: str) -> bool:
    """Delete what is kept of exercise `name`; return whether there was anything."""
    there = _data(name) is not None
    path = folder() / f"{name}.py"
    with _said(path):
        path.unlink(missing_ok=True)
    return there


def _data(name: str) -> bytes | None:
    """Return what the course wrote for exercise `name`, up to LARGEST and a byte."""
    path = folder() / f"{name}.py"
    with _said(path):
        try:
            regular = stat.S_ISREG(path.stat().st_mode)
        except FileNotFoundError:
            return None
        if not regular:  # a folder, or a pipe that never ends
            raise NotKept(f"{path.name} in your folder is not a file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    start = data.removeprefix(b"\xef\xbb\xbf")  # what some editors put first
    mark = HEADER.split("{title}")[0].format(name=name).encode()
    if start[: len(mark)] != mark[: len(start)]:  # a crash may have cut the mark off
        raise NotKept(f"{path.name} in your folder was not written by this course")
    return data


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into a sentence without a path."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise NotKept(f"{path.name} in your folder: {why}") from None


# --- cells ------------------------------------------------------------------------


def cell_of(caller: FrameType) -> str:
    """Return the text of the cell (of the file, in a script) that runs in a frame."""
    text = "".join(linecache.getlines(caller.f_code.co_filename))
    if not text:
        raise NotKept("the text of its cell cannot be found")
    return text


def load(name: str, text: str, imports: str) -> Callable:
    """Return the function that a cell gives to `check`, or that it calls ANSWER.

    The cell is run in a module of its own, in silence. NotKept says what it raised.
    """
    module = ModuleType(f"answer_{name.replace('.', '_')}")
    file = module.__file__ = f"<your answer {name}, {hash(text):x}>"
    # where tracebacks and inspect.getsource look for the lines of a file
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(f"from utils.exercises import answer, check\n{imports}", module.__dict__)
    _given[name] = None
    try:
        with (
            surroundings_kept(),
            settings_kept(),
            redirect_stdout(StringIO()),
            time_limit(LIMIT),
        ):
            exec(compile(_definitions(text), file, "exec"), module.__dict__)
        function = _given[name] or module.__dict__.get("ANSWER")
    except NotKept:
        raise
    except TooLong as error:
        raise NotKept(f"its cell had not finished after {error}") from None
    except KeyboardInterrupt:
        raise NotKept("its cell was interrupted") from None
    except (Exception, SystemExit) as error:
        line = (str(error).splitlines() or [""])[0]
        raise not_alone(f"it raises {type(error).__name__}: {line}") from None
    finally:
        del _given[name]
    if not callable(function):
        raise NotKept("its cell gives no function to check")
    return function


def not_alone(said: str) -> NotKept:
    """Return what to raise if a cell fails alone: it may need a name of another one."""
    missing = re.search(r"name '(\w+)' is not defined", said)
    if missing:
        said = f"it uses `{missing[1]}` from another cell; put it into the same cell"
        return NotKept(said)
    return NotKept(f"when its cell is run alone, {said}")


def is_loading(name: str) -> bool:
    """Return whether the kept cell of exercise `name` is being run."""
    return name in _given


def note(name: str, function: Callable) -> bool:
    """Note what a cell gives to check; return whether one is being run by `load`."""
    if name in _given:
        _given[name] = function
    return bool(_given)


def _definitions(text: str) -> ast.Module:
    """Return what a cell defines, and its calls of check.

    A print or a picture below the function may use what stands in other cells.
    """
    tree = ast.parse(text)
    tree.body = [
        statement
        for statement in tree.body
        if not isinstance(statement, ast.Expr) or "check(" in ast.unparse(statement)
    ]
    return tree


def made_of(function: Callable) -> object:
    """Return what is equal for two functions only if they must do the same.

    A function is made of its code, its defaults and the values of all global names in
    it; of the functions among these, what they are made of counts. Anything else, such
    as an instance or what a decorator returns, is equal to nothing but itself.
    """
    space = getattr(function, "__globals__", None)
    begun = []

    def parts(value: object) -> object:
        if isinstance(value, PLAIN):
            return type(value), value
        if not isinstance(value, FunctionType) or value.__closure__:
            return id(value)
        if value.__globals__ is not space or value in begun:
            return value.__name__ if value in begun else id(value)
        begun.append(value)
        codes = [value.__code__]
        for code in codes:  # which grows by the functions inside
            codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        names = sorted({name for code in codes for name in code.co_names})
        used = [*map(space.get, names), *(value.__defaults__ or ())]
        used += (value.__kwdefaults__ or {}).values()
        return value.__code__, *map(parts, used)

    return parts(function)
