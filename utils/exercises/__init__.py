"""The exercises of the course: `check(name, your_function)`, `progress()`, `answer()`.

catalogue.py   reads the exercises from the pages, the tables of mistakes, the trials
engine.py      grades an answer; running.py runs it, compare.py says what differs
kept.py        the folder in which solved answers stay, one text file each
__main__.py    `python -m utils.exercises mark`: marks submitted notebooks
"""

import linecache
import sys
from collections.abc import Callable

from . import kept
from .catalogue import NOTEBOOKS, Exercise, exercises
from .engine import SOLVED, UNTOUCHED, draw, grade
from .kept import NotKept, folder

__all__ = ["EXERCISES", "answer", "check", "folder", "forget", "progress"]

EXERCISES: dict[str, Exercise] = exercises()
_status: dict[str, str] = {}  # of this kernel; what is solved is kept in files
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
    if kept.given:  # a kept cell is run, not the learner's
        return kept.given.get(name, []).append(function)
    verdict = grade(exercise, function)
    _status[name], said = verdict.status, ""
    if verdict.solved:
        said = _keep(exercise, function, sys._getframe(1).f_code.co_filename)
    if (not verdict.solved or name in _not_kept) and _kept(exercise)[0]:
        said += " The answer that you solved earlier stays."
    print(f"{name} {exercise.title}: {verdict.status}. {verdict.message}{said}")
    if verdict.picture is not None:
        draw(*verdict.picture)


def answer(name: str) -> Callable:
    """Return your own solved answer to exercise `name`, else the reference.

    Yours is run from its kept cell and checked again; one line says which it is.
    """
    exercise = _exercise(name)
    if name in kept.given:  # what is kept would call itself without end
        raise NotKept(f'it calls answer("{name}") itself')
    text, why = _kept(exercise)
    try:
        if text:
            function = kept.own(exercise, text)
            whose = "the one you solved earlier" if name in _not_kept else "your own"
            print(f'answer("{name}"): {whose}, checked again.')
            return function
    except NotKept as error:
        why = str(error)
    why = f"yours cannot be used: {why}" if why else f"{name} is not solved yet"
    if not text and name in _not_kept:
        why = f"{name} was not kept"
    print(f'answer("{name}"): the reference; {why}.')
    return exercise.reference


def progress() -> None:
    """Print how far you are in the whole course; a dash is not attempted yet.

    The exercises of the deeper notebooks stand behind a bar and are counted apart.
    """
    status, problems = {}, {}
    for name, exercise in EXERCISES.items():
        text, why = _kept(exercise)
        problems.setdefault(why, name)
        status[name] = SOLVED if text else _status.get(name, UNTOUCHED)
    both, lessons = ([], []), {}  # of the cores, of the deeper notebooks
    for each in EXERCISES.values():
        deeper = each.page.parent.name == "deeper"
        both[deeper].append(each)
        lines = lessons.setdefault(each.name.split(".")[0], ["", ""])
        shown = status[each.name].replace(UNTOUCHED, "–")
        lines[deeper] += f" {f'{each.name} {shown}':12}"
    for lesson, (core, deeper) in lessons.items():
        print(f"{f'Lesson {lesson}':9}{core:40}|{deeper}".rstrip(" |"))
    for some, where in zip(both, ("in the cores", "in the deeper notebooks")):
        done = sum(status[each.name] == SOLVED for each in some)
        print(f"{done} of {len(some)} solved {where}.", end=" ")
    left = [each for some in both for each in some if status[each.name] != SOLVED]
    for each in left[:1]:
        page = each.page.relative_to(NOTEBOOKS.parent).as_posix()
        print(f"Next: {each.name} {each.title}, in {page}.", end="")
    print()
    for why, name in problems.items():
        if why:
            print(f"What is kept of {name} is not used: {why}.")


def forget(name: str | None = None) -> None:
    """Delete the kept answer to exercise `name`; without a name, all of them."""
    gone = []
    for each in EXERCISES.values() if name is None else [_exercise(name)]:
        _status.pop(each.name, None)
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


def _keep(exercise: Exercise, function: Callable, file: str) -> str:
    """Keep the cell of a solved answer, if it solves alone; return what to say."""
    cell = "".join(linecache.getlines(file))
    _not_kept.add(exercise.name)
    try:
        if function is exercise.reference:
            raise NotKept("it is the course's own function")
        if not cell:
            raise NotKept("the text of its cell cannot be found")
        kept.own(exercise, cell)
        kept.write(exercise, cell)
    except NotKept as error:
        return f" It is not kept: {error}."
    _not_kept.remove(exercise.name)
    return " Kept for later lessons."


def _kept(exercise: Exercise) -> tuple[str | None, str]:
    """Return (the text kept of an exercise or None, why it is not used or "")."""
    try:
        return kept.read(exercise), ""
    except NotKept as error:
        return None, str(error)
