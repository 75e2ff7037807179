"""Exercises that are made up, answers of one line, and cells that are run."""

import linecache
import textwrap
from pathlib import Path

from utils.exercises import EXERCISES
from utils.exercises.catalogue import Exercise, Mistake

IMPORTS = ["import math", "import torch", "import torch.nn.functional as F"]
IMPORTS += ["from torch import tensor as T"]


class Notebook:
    """Runs cells as IPython does: one dict of names, and lines to look up."""

    def __init__(self):
        self.names = {"__name__": "__main__"}
        self.run("\n".join(IMPORTS))
        self.run("from utils.exercises import answer, check, forget, progress")

    def run(self, cell: str) -> "Notebook":
        cell = textwrap.dedent(cell)
        file = f"<cell {hash(cell)} of {id(self)}>"
        linecache.cache[file] = len(cell), None, cell.splitlines(True), file
        exec(compile(cell, file, "exec"), self.names)
        return self


def written(body: str, arguments: str = "x"):
    """Return the function with this body, from a cell of its own."""
    body = body.replace("; ", "\n").replace("\n", "\n    ")
    return Notebook().run(f"def f({arguments}):\n    {body}\n").names["f"]


def made_up(body: str, *trials, wrong=(), gradients=True) -> Exercise:
    """Return an exercise with these trials in both precisions, or with inputs(dtype).

    body: of the solution; wrong: bodies of its known mistakes, by name.
    """
    inputs = trials[0] if callable(trials[0]) else lambda dtype: trials
    arguments = ", ".join(next(iter(inputs(None))))
    body = textwrap.indent(body, "    ")
    known = [Mistake(n, f"Why {n}.", f"* → {x}") for n, x in dict(wrong).items()]
    return Exercise(
        "0.0", "Made up", Path(), f"def solution({arguments}):\n{body}\n", IMPORTS,
        inputs, gradients, None, known,
    )  # fmt: skip


def solved(name: str, change=("", "")) -> str:
    """Return an answer cell with the printed solution, or with an edit of it."""
    exercise = EXERCISES[name]
    code = exercise.solution.replace(*change)
    return f"{code}\n\ncheck({name!r}, {exercise.reference.__name__})\n"
