"""Keeps solved answers: one file of Python text an exercise, in the user's folder.

What is kept is the cell that called `check`, as it stands. Nothing is kept inside the
repository, and a file that the course did not write is neither run, nor overwritten,
nor deleted.

A kept file is code, and its folder may be shared or synchronised. So each file is
signed with a key of this installation, and `read` returns no other text: what somebody
else wrote or edited is run only after the user has seen it and called `trust`.
"""

import ast
import contextlib
import hmac
import linecache
import os
import re
import secrets
import stat
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType

from platformdirs import user_data_dir

from utils.oldex.running import (
    LIMIT,
    TooLong,
    settings_kept,
    silence,
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
SEAL = """\
# This file is code, and answer("{name}") runs it: `{by}` signed it for one computer.
# On another one, or once edited, it is not run until you call trust("{name}").
# signature {code}
"""  # stands below the first line
SEALED = re.compile(
    r"\A(?P<first>.*\n)# This file is code, .*: `(?P<by>\w+)` .*\n"
    r"# .*\n# signature [0-9a-f]{64}\n"
)
KEY, KEY_SIZE = "the key of this installation", 32  # bytes
NAMES_AN_ANSWER = re.compile(r"^ANSWER = |\bcheck\(", re.MULTILINE)
PLAIN = bool, int, float, str, type(None)

marking = False  # `mark` sets it: nothing of a submission is kept or signed
_given: dict[str, Callable | None] = {}  # of cells that are being run: what check got


class NotKept(Exception):
    """Says in words why an answer cannot be kept, or not be used again."""


class Foreign(NotKept):
    """Holds the text of a file that this installation has not signed."""

    def __init__(self, name: str, text: str):
        super().__init__(
            f"{name}.py in your folder did not come from `check` on this computer, or "
            "was edited since"
        )
        self.text = text


# --- files ------------------------------------------------------------------------


def folder() -> Path:
    """Return the folder of the solved answers, whether or not it exists yet.

    It is COURSE_PROGRESS_DIR where that is set, else a folder of the course among the
    user's data, where the platform keeps them.
    """
    chosen = "COURSE_PROGRESS_DIR"
    return _expanded(os.environ.get(chosen) or _own_folder(), otherwise=chosen)


def read(name: str) -> str | None:
    """Return the text kept for exercise `name`, or None; NotKept says why not.

    Foreign, which holds the text, is raised where this installation did not sign it. A
    file that ends before its answer, as a crash may leave it, keeps nothing.
    """
    data = _data(name) or b""
    if len(data) > LARGEST:
        raise NotKept(f"{name}.py is larger than {LARGEST // 1024} KiB")
    try:
        text = _lines(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise NotKept(f"{name}.py is damaged: it is not UTF-8 text") from None
    if not NAMES_AN_ANSWER.search(text):
        return None
    if not _is_signed(name, text):
        raise Foreign(name, text)
    return text


def write(name: str, title: str, text: str) -> None:
    """Keep the text of an answer, whole or not at all; NotKept says why not."""
    time = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z").strip()
    header = HEADER.format(name=name, title=title, time=time)
    _sign(name, "check", f"{header}\n\n{_lines(text).strip()}\n")


def trust(name: str) -> str | None:
    """Sign what `read` calls Foreign, and return it; None if there is no such text."""
    try:
        read(name)
    except Foreign as error:  # exactly this text is signed, not what the file holds now
        _sign(name, "trust", SEALED.sub(r"\g<first>", error.text))
        return error.text
    return None


def remove(name: str) -> bool:
    """Delete what is kept of exercise `name`; return whether there was anything."""
    there = _data(name) is not None
    path = folder() / f"{name}.py"
    with _said(f"{path.name} in your folder"):
        path.unlink(missing_ok=True)
    return there


def shown(text: str) -> str:
    """Return a text as it is shown before it may be run.

    A bar stands before each line, so that none can look like a word of the course, and
    characters that could hide others, such as a carriage return, are written out.
    """
    plain = [c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text]
    return textwrap.indent("".join(plain).rstrip("\n"), "| ", lambda line: True)


def _data(name: str) -> bytes | None:
    """Return what the course wrote for exercise `name`, up to LARGEST and a byte."""
    what = f"{name}.py in your folder"
    data = _bytes(folder() / f"{name}.py", what)
    start = (data or b"").removeprefix(b"\xef\xbb\xbf")  # what some editors put first
    mark = HEADER.split("{title}")[0].format(name=name).encode()
    if start[: len(mark)] != mark[: len(start)]:  # a crash may have cut the mark off
        raise NotKept(f"{what} was not written by this course")
    return data


def _bytes(path: Path, what: str) -> bytes | None:
    """Return the bytes of a file, up to LARGEST and a byte; None if there is none."""
    with _said(what):
        try:
            regular = stat.S_ISREG(path.stat().st_mode)
        except FileNotFoundError:
            return None
        if not regular:  # a folder, or a pipe that never ends
            raise NotKept(f"{what} is not a file")
        with path.open("rb") as file:
            return file.read(LARGEST + 1)


def _replace(path: Path, data: bytes, what: str) -> None:
    """Write a file that the user alone can read, whole or not at all."""
    with _said(what):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(".tmp", f".{path.stem}-", path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)  # several kernels at once: the last one wins
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _own_folder() -> str:
    return user_data_dir(FOLDER, appauthor=False)


def _expanded(path: str, otherwise: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no home folder
        raise NotKept(f"you have no home folder; set {otherwise}") from None


def _lines(text: str) -> str:
    """Return a text with the line ends that Python sees, whichever system wrote it."""
    return re.sub(r"\r\n?", "\n", text)


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """Turn what the file system refuses into a sentence without a path."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise NotKept(f"{what}: {why}") from None


# --- signatures -------------------------------------------------------------------


def _key_file() -> Path:
    """Return where the key is, or will be: beside the user's own folder of answers.

    It is never in the folder of answers itself. Whoever has the key can sign, and that
    folder may be shared or copied. For the same reason no setting puts the key on a
    Drive: a session of Colab is a new computer, and there a learner reads and trusts
    the answers once a session.
    """
    path = _expanded(f"{_own_folder()}.key", otherwise="HOME")
    if Path(os.path.realpath(folder())) in Path(os.path.realpath(path)).parents:
        raise NotKept(f"{KEY} must not lie in COURSE_PROGRESS_DIR; choose another")
    return path


def _key() -> bytes | None:
    """Return the key, or None if there is none yet, or half a one."""
    key = _bytes(_key_file(), KEY)
    return key if key and len(key) == KEY_SIZE else None


def _sign(name: str, by: str, text: str) -> None:
    """Keep a text that has no seal with one; the first call makes the key."""
    if marking:
        raise NotKept("a submission is marked")
    key = _key()
    if key is None:
        key = secrets.token_bytes(KEY_SIZE)
        _replace(_key_file(), key, KEY)
    data = _sealed(name, by, text, key).encode()
    if len(data) > LARGEST:
        raise NotKept(f"its cell is longer than {LARGEST // 1024} KiB")
    _data(name)  # refuses to replace a foreign file
    _replace(folder() / f"{name}.py", data, f"{name}.py in your folder")


def _sealed(name: str, by: str, text: str, key: bytes) -> str:
    """Return a text with its seal, which depends on every character of it."""
    code = hmac.new(key, f"{name}\n{by}\n{text}".encode(), "sha256").hexdigest()
    first, _, rest = text.partition("\n")
    return f"{first}\n{SEAL.format(name=name, by=by, code=code)}{rest}"


def _is_signed(name: str, text: str) -> bool:
    """Return whether sealing a text again, with this installation's key, gives it."""
    key, seal = _key(), SEALED.match(text)
    if key is None or seal is None:
        return False
    again = _sealed(name, seal["by"], SEALED.sub(r"\g<first>", text), key)
    return hmac.compare_digest(again.encode(), text.encode())


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
    exec(f"from utils.oldex import answer, check\n{imports}", module.__dict__)
    _given[name] = None
    try:
        with (
            surroundings_kept(),
            settings_kept(),
            silence(),
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
    except BaseException as error:  # SystemExit, and whatever it makes up
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
