"""What several test files share."""

import linecache
import textwrap

from utils.exercises.engine import Exercise

# --- attention and its layer ---


# --- models, positions, training ---


# --- heads and their baselines ---


# --- pictures and the viewer ---


# --- exercises ---


class Notebook:
    """Runs cells as IPython does: one dict of names, and lines to look up."""

    def __init__(self):
        self.names = {"__name__": "__main__"}
        self.run("import math, torch\nimport torch.nn.functional as F")
        self.run("from utils.exercises import answer, check, forget, progress")

    def run(self, cell: str) -> "Notebook":
        cell = textwrap.dedent(cell)
        file = f"<cell {hash(cell)} of {id(self)}>"
        linecache.cache[file] = len(cell), None, cell.splitlines(True), file
        exec(compile(cell, file, "exec"), self.names)
        return self


def written(body: str):
    """Return the function of x with this body, from a cell of its own."""
    body = body.replace("; ", "\n").replace("\n", "\n    ")
    return Notebook().run(f"def answer(x):\n    {body}\n").names["answer"]


def made_up(reference, *trials, wrong=(), gradients=True) -> Exercise:
    """Return an exercise with these trials in both precisions, or with inputs(dtype).

    wrong: the known mistakes, by name; their docstrings say why.
    """
    inputs = trials[0] if callable(trials[0]) else lambda dtype: trials
    exercise = Exercise("0.0", "Made up", reference, inputs, gradients=gradients)
    for name, function in dict(wrong).items():
        exercise.wrong(name, function.__doc__, function)
    return exercise
