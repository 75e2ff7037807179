"""Where solved answers stay: one file of Python text an exercise, in the user's folder.

Nothing is kept inside the repository, and a file that the course did not write is
neither run, nor overwritten, nor deleted.
"""

import contextlib
import linecache
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import ModuleType
from zlib import crc32

FOLDER = "attention-head-by-head"
LIMIT = 64 * 1024  # bytes; an answer is a page of text
HEADER = """\
# Attention, Head by Head: exercise {name}, {title}
# solved {time}
# answer("{name}") reads this file and checks it again; forget("{name}") deletes it.
"""


class NotKept(Exception):
    """Says in words why an answer cannot be kept, or not be used again."""


def folder() -> Path:
    """Return the folder of the solved answers, whether or not it exists yet.

    It is COURSE_PROGRESS_DIR where that is set, else a folder of the course among the
    user's data, where the platform keeps them.
    """
    try:
        if chosen := os.environ.get("COURSE_PROGRESS_DIR"):
            return Path(chosen).expanduser()
        return _data_home() / FOLDER
    except RuntimeError:  # from Path.home()
        raise NotKept("you have no home folder; set COURSE_PROGRESS_DIR") from None


def _data_home() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    chosen = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(chosen):  # the specification: a relative one is ignored
        return Path(chosen)
    return Path.home() / ".local" / "share"


def is_kept(name: str) -> bool:
    """Return whether an answer to exercise `name` is kept; NotKept says why not."""
    path = folder() / f"{name}.py"
    with _said(path):
        try:
            regular = stat.S_ISREG(path.stat().st_mode)
        except FileNotFoundError:
            return False
        if not regular:  # a folder, or a pipe that never ends
            raise NotKept(f"{path.name} in your folder is not a file")
        with path.open("rb") as file:
            start = file.read(200).removeprefix(b"\xef\xbb\xbf")
    if start and not start.startswith(_mark(name)):
        raise NotKept(f"{path.name} in your folder was not written by this course")
    return bool(start)  # an empty file is what a crash may leave


def read(name: str) -> str | None:
    """Return the text kept for exercise `name`, or None; NotKept says why not."""
    if not is_kept(name):
        return None
    path = folder() / f"{name}.py"
    with _said(path), path.open("rb") as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise NotKept(f"{path.name} is larger than {LIMIT // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotKept(f"{path.name} is damaged: it is not UTF-8 text") from None


def write(name: str, title: str, text: str) -> None:
    """Keep the text of an answer, whole or not at all; NotKept says why not."""
    time = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z").strip()
    header = HEADER.format(name=name, title=title, time=time)
    try:
        data = f"{header}\n\n{text}\n".encode()
    except UnicodeEncodeError:
        raise NotKept("it holds characters that UTF-8 cannot write") from None
    if len(data) > LIMIT:
        raise NotKept(f"its source is longer than {LIMIT // 1024} KiB")
    is_kept(name)  # refuses to replace a foreign file
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
    if not is_kept(name):
        return False
    path = folder() / f"{name}.py"
    with _said(path):
        path.unlink(missing_ok=True)
    return True


def load(name: str, text: str, imports: str) -> Callable:
    """Return the function that a kept text defines; NotKept says what it raised."""
    module = ModuleType(f"answer_{name.replace('.', '_')}")
    module.__file__ = f"<your answer {name}, {crc32(text.encode()):x}>"
    # where tracebacks and inspect.getsource look for the lines of a file
    lines = text.splitlines(keepends=True)
    linecache.cache[module.__file__] = (len(text), None, lines, module.__file__)
    try:
        exec(imports, module.__dict__)
        exec(compile(text, module.__file__, "exec"), module.__dict__)
        function = module.__dict__["ANSWER"]
    except (Exception, SystemExit) as error:
        line = (str(error).splitlines() or [""])[0]
        raise NotKept(f"its source raises {type(error).__name__}: {line}") from None
    if not callable(function):
        raise NotKept("its source defines no function")
    return function


def _mark(name: str) -> bytes:
    """Return how each file of the course begins."""
    return HEADER.split("{title}")[0].format(name=name).encode()


@contextlib.contextmanager
def _said(path: Path):
    """Turn what the file system refuses into a sentence without a path."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise NotKept(f"{path.name} in your folder: {why}") from None
