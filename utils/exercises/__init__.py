"""The exercises of the course: `check(name, your_function)`, `progress()`, `answer()`.

catalogue.py   reads the exercises from the pages, the tables of mistakes, the trials
engine.py      grades an answer; running.py runs it, naming.py names its mistake
kept.py        the folder in which solved answers stay, one text file each
__main__.py    `python -m utils.exercises mark`: marks submitted notebooks
"""

import linecache
import sys
from collections.abc import Callable

from . import kept
from .catalogue import NOTEBOOKS, Exercise, exercises
from .drawing import draw
from .engine import SOLVED, UNTOUCHED, Verdict, grade
from .kept import NotKept, folder
from .running import silence

__all__ = ["EXERCISES", "answer", "check", "folder", "forget", "progress"]

EXERCISES: dict[str, Exercise] = exercises()
_verdicts: dict[str, Verdict] = {}  # of this kernel; what is solved is kept in files
_not_kept: set[str] = set()  # what was solved in this kernel, and could not be kept


def check(name: str, function: Callable) -> None:
    """Try your function on the inputs of exercise `name` and say how it went.

    An untouched stub is "not attempted yet". A wrong answer is told which known mistake
    it equals, or else what differs first; where the shapes agree, expected and yours
    are drawn side by side. The cell of a solved answer is kept for later lessons, in
    the folder that `utils.exercises.folder()` names; a wrong one never replaces it.
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
    if (not verdict.solved or name in _not_kept) and _is_kept(exercise):
        said += " The answer that you solved earlier stays."
    print(f"{name} {exercise.title}: {verdict.status}. {verdict.message}{said}")
    if verdict.picture is not None:
        draw(*verdict.picture)


def answer(name: str) -> Callable:
    """Return your own solved answer to exercise `name`, else the reference.

    Yours is run from its kept cell and checked again; one line says which it is.
    """
    exercise = _exercise(name)
    if kept.is_loading(name):  # what is kept would call itself without end
        raise NotKept(f'it calls answer("{name}") itself')
    why = f"{name} is not solved yet"
    try:
        if text := kept.read(exercise):
            function = own(exercise, text)
            whose = "the one you solved earlier" if name in _not_kept else "your own"
            print(f'answer("{name}"): {whose}, checked again.')
            return function
        if name in _not_kept:
            why = f"{name} was not kept"
    except NotKept as error:
        why = f"yours cannot be used: {error}"
    print(f'answer("{name}"): the reference; {why}.')
    return exercise.reference


def progress() -> None:
    """Print how far you are in the whole course; a dash is not attempted yet."""
    status = {name: _status(name) for name in EXERCISES}
    for lesson in dict.fromkeys(name.split(".")[0] for name in status):
        cells = [f"{n} {s}" for n, s in status.items() if n.split(".")[0] == lesson]
        line = "".join(f" {cell:12}" for cell in cells)
        print(f"{f'Lesson {lesson}':9}{line}".rstrip())
    left = [e for e in EXERCISES.values() if status[e.name] != SOLVED]
    print(f"{len(EXERCISES) - len(left)} of {len(EXERCISES)} solved.", end="")
    for each in left[:1]:
        page = each.page.relative_to(NOTEBOOKS.parent).as_posix()
        print(f" Next: {each.name} {each.title}, in {page}.", end="")
    print()
    problems = {}
    for name in EXERCISES:
        try:
            kept.read(EXERCISES[name])
        except NotKept as error:
            problems.setdefault(str(error), name)
    for said, name in problems.items():
        print(f"What is kept of {name} is not used: {said}.")


def forget(name: str | None = None) -> None:
    """Delete the kept answer to exercise `name`; without a name, all of them."""
    gone = []
    for each in EXERCISES.values() if name is None else [_exercise(name)]:
        _verdicts.pop(each.name, None)
        _not_kept.discard(each.name)
        try:
            gone += [each.name] * kept.remove(each)
        except NotKept as error:
            print(f"{each.name} is not forgotten: {error}.")
    print(f"Forgotten: {', '.join(gone)}." if gone else "Nothing was deleted.")


def _exercise(name: str) -> Exercise:
    if not isinstance(name, str):
        text = f'"{name}"' if isinstance(name, int | float) else '"1.1"'
        raise TypeError(f"the name of an exercise is text: {text}, not {name!r}.")
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}; there are {[*EXERCISES]}.")
    return EXERCISES[name]


def _keep(exercise: Exercise, function: Callable, caller) -> str:
    """Keep the cell of a solved answer, if it solves alone; return what to say."""
    _not_kept.add(exercise.name)
    try:
        if function is exercise.reference:
            raise NotKept("it is the course's own function")
        cell = "".join(linecache.getlines(caller.f_code.co_filename))
        if not cell:
            raise NotKept("the text of its cell cannot be found")
        own(exercise, cell)
        kept.write(exercise, cell)
    except NotKept as error:
        return f" It is not kept: {error}."
    _not_kept.remove(exercise.name)
    return " Kept for later lessons."


def own(exercise: Exercise, cell: str) -> Callable:
    """Return what a cell, run alone, gives to check and is right, or say why not."""
    problem = None
    for tree in kept.readings(cell):
        try:
            functions = kept.load(exercise, tree, cell)
            verdicts = [verdict_on(exercise, function) for function in functions]
            for function, verdict in zip(functions, verdicts):
                if verdict.solved:
                    return function
            line = verdicts[-1].message.splitlines()[0].rstrip(".")
            wrong = kept.not_alone(f"it is not right ({line})")
            wrong.verdict = verdicts[-1]
            raise wrong
        except NotKept as error:
            problem = problem or error
    raise problem


def verdict_on(exercise: Exercise, function: Callable) -> Verdict:
    try:
        with silence():
            return grade(exercise, function)
    except BaseException as error:  # KeyboardInterrupt, too: Run All goes on
        raise NotKept(f"it was stopped by {type(error).__name__}") from None


def _is_kept(exercise: Exercise) -> bool:
    try:
        return kept.read(exercise) is not None
    except NotKept:
        return False


def _status(name: str) -> str:
    """Return one of solved, not yet, and a dash for not attempted."""
    if _is_kept(EXERCISES[name]):
        return SOLVED
    verdict = _verdicts.get(name)
    return "–" if verdict is None or verdict.status == UNTOUCHED else verdict.status
