"""The exercises of the course: `check(name, your_function)`, `progress()`, `answer()`.

lesson_NN    the exercises of notebook NN as data: reference, inputs, known mistakes
engine.py    runs an answer and compares what it did with what it should have done
kept.py      the folder in which solved answers stay, one signed text file each;
             `forget()` deletes them, `trust()` accepts what came from elsewhere
mark.py      marks submitted notebooks: `python -m utils.oldex mark` (__main__.py)
"""

import pkgutil
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType

from utils.oldex import kept
from utils.oldex.engine import SOLVED, UNTOUCHED, Exercise, Verdict, draw, grade
from utils.oldex.kept import Foreign, NotKept, folder
from utils.oldex.running import silence

__all__ = ["answer", "check", "folder", "forget", "progress", "trust"]

WAITING = "waiting"  # for trust: what is kept did not come from this installation

LESSONS = tuple(
    import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
    if re.fullmatch(r"lesson_\d+", module.name)
)
EXERCISES: dict[str, Exercise] = {e.name: e for x in LESSONS for e in x.EXERCISES}
IMPORTS = {e.name: lesson.IMPORTS for lesson in LESSONS for e in lesson.EXERCISES}
_verdicts: dict[str, Verdict] = {}  # of this kernel; what is solved is kept in files
_not_kept: set[str] = set()  # what was solved in this kernel, and could not be kept


def check(name: str, function: Callable) -> None:
    """Try your function on the inputs of exercise `name` and say how it went.

    An untouched stub is "not attempted yet". A wrong answer is told which known mistake
    it equals, or else what differs first; where the shapes agree, expected and yours
    are drawn side by side. The cell of a solved answer is kept for later lessons, in
    the folder that `utils.oldex.folder()` names; a wrong one never replaces it.
    """
    exercise = _exercise(name)
    if not callable(function):
        raise TypeError(
            f"check takes the function itself, not {type(function).__name__}: write "
            f'check("{name}", {exercise.reference.__name__}).'
        )
    if kept.note(name, function):  # a kept cell is run, not the learner's
        return
    verdict = _verdicts[name] = grade(exercise, function)
    said = _keep(exercise, function, sys._getframe(1)) if verdict.solved else ""
    if (not verdict.solved or name in _not_kept) and _is_kept(name):
        said += " The answer that you solved earlier stays."
    print(f"{name} {exercise.title}: {verdict.status}. {verdict.message}{said}")
    if verdict.picture is not None:
        draw(*verdict.picture)


def answer(name: str) -> Callable:
    """Return your own solved answer to exercise `name`, else the reference.

    Yours is run from its kept cell and checked again; one line says which it is. A text
    that did not come from `check` on this computer is shown, and not run: see `trust`.
    """
    exercise = _exercise(name)
    if kept.is_loading(name):  # what is kept would call itself without end
        raise NotKept(f'it calls answer("{name}") itself')
    try:
        text = kept.read(name)
        if text is not None:
            function = kept.load(name, text, IMPORTS[name])
            _demand_solved(exercise, function)
            whose = "the one you solved earlier" if name in _not_kept else "your own"
            print(f'answer("{name}"): {whose}, checked again.')
            return function
        why = "was not kept" if name in _not_kept else "is not solved yet"
        why = f"{name} {why}"
    except Foreign as error:
        print(f"{name}.py in your folder says:\n{kept.shown(error.text)}")
        why = f"{error}. Read it above; to run it from now on, {_accept(name)}"
    except NotKept as error:
        why = f"yours cannot be used: {error}"
    print(f'answer("{name}"): the reference; {why}.')
    return exercise.reference


def progress() -> None:
    """Print how far you are in the whole course; a dash is not attempted yet."""
    problems: list[str] = []
    status = {name: _status(name, problems) for name in EXERCISES}
    for lesson in LESSONS:
        names = [exercise.name for exercise in lesson.EXERCISES]
        cells = [f"{name} {status[name]}".ljust(12) for name in names]
        number = names[0].split(".")[0]
        print(" ".join([f"Lesson {number}".ljust(9), *cells]).rstrip())
    left = [e for e in EXERCISES.values() if status[e.name] != SOLVED]
    print(f"{len(EXERCISES) - len(left)} of {len(EXERCISES)} solved.", end="")
    print(*(f" Next: {e.name} {e.title}{_place(e.name)}." for e in left[:1]))
    if WAITING in status.values():
        print(
            f"{WAITING}: kept, but not by `check` on this computer, or edited since; "
            f"`answer` shows it. To run it, {_accept()}."
        )
    if problems:
        more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
        print(f"What is kept cannot be read: {problems[0]}{more}.")


def _place(name: str) -> str:
    """Return in which notebook of the course an exercise stands, in words, or ""."""
    notebooks = Path(__file__).parents[2] / "notebooks"
    for lessons in (notebooks, notebooks / "deeper"):
        for path in lessons.glob(f"{name.split('.')[0]:0>2}_*.ipynb"):
            if f"### Exercise {name} " in path.read_text(encoding="utf-8"):
                return f", in {path.relative_to(notebooks.parent).as_posix()}"
    return ""


def forget(name: str | None = None) -> None:
    """Delete the kept answer to exercise `name`; without a name, all of them."""
    names = EXERCISES if name is None else [_exercise(name).name]
    gone = []
    for each in names:
        _verdicts.pop(each, None)
        _not_kept.discard(each)
        try:
            gone += [each] * kept.remove(each)
        except NotKept as error:
            print(f"{each} is not forgotten: {error}.")
    print(f"Forgotten: {', '.join(gone)}." if gone else "Nothing was deleted.")


def trust(name: str | None = None) -> None:
    """Accept what is kept of exercise `name`, or of all, whoever wrote it; show it.

    The text that is shown gets this installation's signature: `answer` will run it.
    Only what `progress` calls waiting changes. Read it with `answer(name)` before.
    """
    names = EXERCISES if name is None else [_exercise(name).name]
    signed = []
    for each in names:
        try:
            text = kept.trust(each)
        except NotKept as error:
            print(f"{each} is not trusted: {error}.")
            continue
        if text is not None:
            print(f"{each}.py in your folder says:\n{kept.shown(text)}")
            signed.append(each)
    said = (
        f"Trusted: {', '.join(signed)}. From now on `answer` runs what you see above."
    )
    print(said if signed else "Nothing was waiting for trust.")


def _exercise(name: str) -> Exercise:
    if not isinstance(name, str):
        text = f'"{name}"' if isinstance(name, int | float) else '"1.1"'
        raise TypeError(f"the name of an exercise is text: {text}, not {name!r}.")
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}; there are {list(EXERCISES)}.")
    return EXERCISES[name]


def _keep(exercise: Exercise, function: Callable, caller: FrameType) -> str:
    """Keep the cell of a solved answer, if it solves alone; return what to say."""
    name = exercise.name
    _not_kept.add(name)
    try:
        if function is exercise.reference:
            raise NotKept("it is the course's own function")
        cell = kept.cell_of(caller)
        alone = kept.load(name, cell, IMPORTS[name])
        if kept.made_of(alone) != kept.made_of(function):
            _demand_solved(exercise, alone)
        kept.write(name, exercise.title, cell)
    except NotKept as error:
        return f" It is not kept: {error}."
    _not_kept.remove(name)
    return " Kept for later lessons."


def _demand_solved(exercise: Exercise, function: Callable) -> None:
    """Raise NotKept unless what a cell defines alone solves the exercise, too."""
    try:
        with silence():
            verdict = grade(exercise, function)
    except BaseException as error:  # KeyboardInterrupt, too: Run All goes on
        raise NotKept(f"it was stopped by {type(error).__name__}") from None
    if not verdict.solved:
        line = verdict.message.splitlines()[0].rstrip(".")
        raise kept.not_alone(f"it is not right ({line})")


def _accept(name: str = "") -> str:
    """Return how to accept one text, or all; the lessons do not import trust."""
    one = f'`trust("{name}")`, or ' * bool(name)
    return f"`from utils.oldex import trust` and call {one}`trust()` for all"


def _is_kept(name: str) -> bool:
    try:
        return kept.read(name) is not None
    except NotKept:
        return False


def _status(name: str, problems: list[str]) -> str:
    """Return one of solved, waiting, not yet, and a dash for not attempted."""
    try:
        if kept.read(name) is not None:
            return SOLVED
    except Foreign:
        if name not in _not_kept:
            return WAITING
    except NotKept as error:
        problems.append(str(error))
    verdict = _verdicts.get(name)
    return "–" if verdict is None or verdict.status == UNTOUCHED else verdict.status
