"""The exercises of the course: `check(name, your_function)`, `progress()`, `answer()`.

catalogue.py   reads the exercises from the pages, the tables of mistakes, the trials
engine.py      grades an answer; running.py runs it, compare.py says what differs
kept.py        the folder in which solved answers stay, one text file each
mark.py        `python -m utils.exercises mark`: marks submitted notebooks
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


def check(name: str, function: Callable) -> None:
    """Try your function on the inputs of exercise `name` and say how it went.

    An untouched stub is "not attempted yet". A wrong answer is told which known mistake
    it equals, or else what differs first; where the shapes agree, expected and yours
    are drawn side by side. The cell of a solved answer is kept for later lessons, in
    the folder that `utils.exercises.folder()` names; a wrong one never replaces it.
    """
    exercise = _exercise(name)
    if not callable(function):
        own = exercise.reference.__name__
        raise TypeError(f'check takes the function itself: check("{name}", {own}).')
    if kept.given:  # a kept cell is run, not the learner's
        return kept.given.get(name, []).append(function)
    verdict = grade(exercise, function)
    _status[name], said = verdict.status, verdict.message
    if verdict.solved:
        said += _keep(exercise, sys._getframe(1).f_code.co_filename)
    elif kept.find(exercise):
        said += " The answer that you solved earlier stays."
    print(f"{name} {exercise.title}: {verdict.status}. {said}")
    if verdict.picture is not None:
        draw(*verdict.picture)


def answer(name: str) -> Callable:
    """Return your own solved answer to exercise `name`, else the reference.

    Yours is run from its kept cell and checked again; one line says which it is.
    """
    exercise = _exercise(name)
    if name in kept.given:  # what is kept would call itself without end
        raise NotKept(f'it calls answer("{name}") itself')
    try:
        function = kept.own(exercise, kept.read(exercise))
        print(f'answer("{name}"): your own, checked again.')
        return function
    except NotKept as error:
        print(f'answer("{name}"): the reference; {error}.')
        return exercise.reference


def progress() -> None:
    """Print how far you are in the whole course; a dash is not attempted yet.

    The exercises of the deeper notebooks stand behind a bar and are counted apart.
    """
    status = {name: _status_of(each) for name, each in EXERCISES.items()}
    both, lessons = ([], []), {}  # of the cores, of the deeper notebooks
    for name, each in EXERCISES.items():
        deeper = each.page.parent.name == "deeper"
        both[deeper].append(name)
        lines = lessons.setdefault(name.split(".")[0], ["", ""])
        lines[deeper] += f" {f'{name} {status[name]}':12}"
    for lesson, (core, deeper) in lessons.items():
        print(f"{f'Lesson {lesson}':9}{core:40}|{deeper}".rstrip(" |"))
    for names, where in zip(both, ("in the cores", "in the deeper notebooks")):
        done = sum(status[name] == SOLVED for name in names)
        print(f"{done} of {len(names)} solved {where}.", end=" ")
    left = [EXERCISES[n] for names in both for n in names if status[n] != SOLVED]
    for each in left[:1]:
        page = each.page.relative_to(NOTEBOOKS.parent).as_posix()
        print(f"Next: {each.name} {each.title}, in {page}.", end="")
    print()


def forget(name: str | None = None) -> None:
    """Delete the kept answer to exercise `name`; without a name, all of them."""
    names = EXERCISES if name is None else [_exercise(name).name]
    gone = [each for each in names if kept.remove(EXERCISES[each])]
    for each in names:
        _status.pop(each, None)
    print(f"Forgotten: {', '.join(gone)}." if gone else "Nothing was deleted.")


def _exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}; there are {[*EXERCISES]}.")
    return EXERCISES[name]


def _status_of(exercise: Exercise) -> str:
    try:
        kept.read(exercise)
        return SOLVED
    except NotKept:
        return _status.get(exercise.name, UNTOUCHED).replace(UNTOUCHED, "–")


def _keep(exercise: Exercise, file: str) -> str:
    """Keep the cell that a file holds, if it solves alone; return what to say."""
    cell = "".join(linecache.getlines(file))
    try:
        kept.own(exercise, cell)
        kept.write(exercise, cell)
    except NotKept as error:
        hint = " What it uses must stand in this cell." * ("NameError" in str(error))
        return f" It is not kept: {error}.{hint}"
    return " Kept for later lessons."
