"""The exercises of the course: `check(name, your_function)` and `progress()`.

engine.py       runs an answer and compares what it did with what it should have done
lesson_NN.py    the exercises of notebook NN as data: reference, inputs, known mistakes
"""

from collections.abc import Callable

from utils.exercises import lesson_01, lesson_02, lesson_03
from utils.exercises.engine import Exercise, Verdict, draw, grade

LESSONS = (lesson_01, lesson_02, lesson_03)
EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise for lesson in LESSONS for exercise in lesson.EXERCISES
}
_verdicts: dict[
    str, Verdict
] = {}  # what progress() reports; lives as long as the kernel


def check(name: str, function: Callable) -> None:
    """Try your function on the inputs of exercise `name` and say how it went.

    An untouched stub is "not attempted yet". A wrong answer is told which known mistake
    it equals, or else what differs first; where the shapes agree, expected and yours
    are drawn side by side.
    """
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}; there are {list(EXERCISES)}.")
    if not callable(function):
        raise TypeError(
            f"check takes the function itself, not {type(function).__name__}: write "
            f'check("{name}", {EXERCISES[name].reference.__name__}).'
        )
    verdict = grade(EXERCISES[name], function)
    _verdicts[name] = verdict
    print(f"{name} {EXERCISES[name].title}: {verdict.status}. {verdict.message}")
    if verdict.picture is not None:
        draw(*verdict.picture)


def progress() -> None:
    """Print how far you are in every lesson whose exercises you have checked."""
    lessons = {name.split(".")[0] for name in _verdicts}
    shown = [e for e in EXERCISES.values() if e.name.split(".")[0] in lessons]
    if not shown:
        print("No exercise checked yet.")
        return
    for exercise in shown:
        verdict = _verdicts.get(exercise.name)
        status = verdict.status if verdict else "not attempted yet"
        print(f"{exercise.name}  {exercise.title + ' ':.<44} {status}")
    solved = sum(e.name in _verdicts and _verdicts[e.name].solved for e in shown)
    print(f"{solved} of {len(shown)} solved.")
