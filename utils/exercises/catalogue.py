"""The exercises, read from where people write them.

The page (`notebooks/`) has the title and the printed solution, which is the reference.
The table `notebooks/exercises/NN.txt` has the known mistakes as edits of that solution;
`slips.txt` has edits that are tried on every solution. `trials_NN.py` has the inputs.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path

import torch

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parents[1] / "notebooks"
HEADING = re.compile(r"^### Exercise ([\d.]+) · (.*?) *$", re.M)
SOLUTION = re.compile(
    r"<summary>Solution ([\d.]+)</summary>\s*```python\n(.*?)```", re.S
)
ALWAYS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
"""  # what an answer that is run alone may use on every page
SLOW = "transformers", "gguf"  # imports of a page that no answer needs
RIGHT, PYTHON = "right", "```python"


@dataclass(frozen=True)
class Mistake:
    """A known mistake: its name, why it is wrong, and its forms, a line of edits each.

    A table also has edits that change nothing, as the mistake RIGHT, and the Python
    that bodies share, as the line of PYTHON.
    """

    name: str
    why: str
    lines: list[str]


@dataclass(frozen=True)
class Form:
    """One way to make a known mistake: its name, why it is wrong, and the code."""

    name: str
    why: str
    code: str
    space: dict

    @cached_property
    def function(self) -> Callable:
        return defined(self.code, self.space)


@dataclass(frozen=True)
class Exercise:
    """One exercise, as its page, its table and its trials give it.

    imports: what its page imports, for answers that are run alone.
    inputs(dtype): yields the arguments of each trial, as dicts by parameter name.
    gradients: False, True, or "without nan": none may arise on the way either.
    through: through(answer, *arguments) uses an answer that is not simply called, such
        as a class of modules; or None.
    """

    name: str
    title: str
    page: Path
    solution: str
    imports: str
    inputs: Callable[[torch.dtype], Iterable[dict]]
    gradients: bool | str
    through: Callable | None
    known: list[Mistake]

    @cached_property
    def space(self) -> dict:
        """Return the names that the page's imports give."""
        return imported(self.imports)

    @cached_property
    def reference(self) -> Callable:
        return defined(self.solution, self.space)

    @cached_property
    def forms(self) -> list[Form]:
        """Return each form of each known mistake, then of each slip."""
        space, right, found = dict(self.space), {self.solution, *self.right}, []
        for each in self.known:
            if each.name == PYTHON:
                exec(each.lines[0], space)
            elif each.name != RIGHT:
                found += [(each, code) for code in edits(self.solution, each)]
        for slip in slips()["every exercise"]:
            codes = slipped(self.solution, slip)
            found += [(slip, code) for code in codes if code not in right]
        return [Form(each.name, each.why, code, space) for each, code in found]

    @cached_property
    def right(self) -> list[str]:
        """Return the edited solutions that are listed as right."""
        known = [each for each in self.known if each.name == RIGHT]
        return [code for each in known for code in edits(self.solution, each)]

    @cached_property
    def done(self) -> dict[tuple[Callable, int], dict]:
        """Return what the reference and known mistakes did on trial i, if tried yet."""
        return {}

    def trials(self) -> list[dict]:
        """Return the arguments of each trial, in single and in double precision."""
        return [t for d in (torch.float32, torch.float64) for t in self.inputs(d)]

    def called(self, answer: Callable) -> Callable:
        """Return the function that is called with the arguments of a trial."""
        return partial(self.through, answer) if self.through else answer


def trials(
    name: str, gradients: bool | str = True, through: Callable | None = None
) -> Callable:
    """Mark inputs(dtype) -> dicts of arguments as those of exercise `name`."""

    def mark(inputs: Callable) -> Callable:
        inputs.trials_of = name, (inputs, gradients, through)
        return inputs

    return mark


def exercises() -> dict[str, Exercise]:
    """Return all exercises by number; what a page has lost is left out."""
    pages, inputs, known = {}, {}, {}
    for path in sorted(NOTEBOOKS.glob("**/[0-9]*.ipynb")):  # 01-Copy1 before 01
        if ".ipynb_checkpoints" not in path.parts:
            pages |= read_page(path)
    for path in HERE.glob("trials_*.py"):
        module = import_module(f"{__package__}.{path.stem}")
        found = [x for x in vars(module).values() if hasattr(x, "trials_of")]
        inputs |= dict(each.trials_of for each in found)
    for path in (NOTEBOOKS / "exercises").glob("[0-9]*.txt"):
        known |= table(path)
    names = sorted(inputs.keys() & pages, key=lambda n: [*map(int, n.split("."))])
    return {n: Exercise(n, *pages[n], *inputs[n], known.get(n, [])) for n in names}


# --- pages ------------------------------------------------------------------------


def read_page(path: Path) -> dict[str, tuple[str, Path, str, str]]:
    """Return (title, page, solution, imports) of each exercise of a notebook."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = [("".join(cell["source"]), cell["cell_type"]) for cell in cells]
    except (ValueError, LookupError, TypeError, OSError):
        return {}  # the other pages still work
    whole = "\n".join(text for text, _ in texts)
    titles, solutions = dict(HEADING.findall(whole)), dict(SOLUTION.findall(whole))
    found = "\n".join(imports_of(text) for text, kind in texts if kind == "code")
    names = titles.keys() & solutions
    return {n: (titles[n], path, solutions[n], ALWAYS + found) for n in names}


def imports_of(text: str) -> str:
    """Return the import statements of a cell, without those that no answer needs."""
    try:
        body = ast.parse(text).body
    except SyntaxError:  # %magic, or half written
        return ""
    found = [ast.unparse(x) for x in body if isinstance(x, ast.Import | ast.ImportFrom)]
    return "\n".join(x for x in found if not any(slow in x for slow in SLOW))


def imported(imports: str) -> dict:
    """Return the names that imports give; what is not installed is missing."""
    space = {}
    for line in dict.fromkeys(imports.splitlines()):
        with suppress(ImportError):
            exec(line, space)
    return space


def defined(code: str, space: dict) -> Callable:
    """Return the last function or class of a text, beside the names in `space`."""
    space = dict(space)
    exec(compile(code, "<a solution>", "exec"), space)
    return space[re.findall(r"^(?:def|class) (\w+)", code, re.M)[-1]]


# --- tables -----------------------------------------------------------------------


def table(path: Path) -> dict[str, list[Mistake]]:
    """Return the known mistakes of each exercise in a table."""
    found, python = {}, False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            mistakes = found[line[3:].strip()] = []
        elif line.startswith("```"):
            python = not python
            mistakes += [Mistake(PYTHON, "", [""])] * python
        elif python:
            mistakes[-1].lines[0] += f"{line}\n"
        elif line.startswith("      "):  # goes on with a body
            mistakes[-1].lines[-1] += f"\n{line[4:]}"
        elif line.startswith("    "):
            mistakes[-1].lines.append(line.strip())
        elif line.strip() and not line.startswith("#"):
            name, why = line.split(": ", 1)
            mistakes.append(Mistake(name, why, []))
    return found


@cache
def slips() -> dict[str, list[Mistake]]:
    """Return what is the same in every exercise: slips, and what errors mean."""
    return table(NOTEBOOKS / "exercises/slips.txt")


def edits(solution: str, mistake: Mistake) -> Iterator[str]:
    """Yield the solution with the edits of each line that fits it.

    All lines fit the solution that the course prints, which a test asserts; on a page
    that its reader has edited some may not.
    """
    for line in mistake.lines:
        with suppress(ValueError):
            yield edited(solution, line)


def edited(solution: str, line: str) -> str:
    """Return a solution with the edits of a line; each must fit exactly once."""
    if line.startswith("* →"):  # another body
        head = re.match(r"(.*\n)*?def [^\n]*?(\n    [^\n]*)*?:\n", f"{solution}\n")[0]
        body = line.removeprefix("* →").strip(" ")
        return f"{head.rstrip()}\n    {body.lstrip()}\n"
    for edit in re.split(r"; (?=[^;]*→)", line):
        old, new = (part.replace("\\n", "\n") for part in old_and_new(edit))
        if (count := solution.count(old)) != 1:
            raise ValueError(f"{old!r} stands {count} times in\n{solution}")
        solution = solution.replace(old, new)
    return solution


def old_and_new(edit: str) -> list[str]:
    """Return both sides of the arrow; backticks around a side keep its blanks."""
    old, new = (side.strip() for side in edit.split("→"))
    return [re.sub(r"^`(.*)`$", r"\1", side, flags=re.S) for side in (old, new)]


def slipped(solution: str, slip: Mistake) -> Iterator[str]:
    """Yield the solution with a slip at each place where it can be made, and at all.

    A comment is no such place.
    """
    for old, new in map(old_and_new, slip.lines):
        places = [m.start() for m in re.finditer(re.escape(old), solution)]
        places = [at for at in places if "#" not in solution[:at].split("\n")[-1]]
        for at in places:
            yield solution[:at] + new + solution[at + len(old) :]
        if len(places) > 1:
            yield solution.replace(old, new)


# --- numbers ----------------------------------------------------------------------


@cache
def renumbered() -> dict[str, str]:
    """Return today's number of each exercise that had another number or title.

    The keys are the number and the title that it had, as in its old heading.
    """
    path = NOTEBOOKS / "exercises/renumbered.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(x.split(" → ") for x in lines if "→" in x and x[0] != "#")


def number_of(number: str, title: str) -> str:
    """Return today's number of the exercise that once had this number and title."""
    return renumbered().get(f"{number} {title}", number)
