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
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from inspect import signature
from pathlib import Path

import torch

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parents[1] / "notebooks"
HEADING = re.compile(r"^### Exercise ([\d.]+) · (.*?) *$", re.M)
SOLUTION = re.compile(
    r"<summary>Solution ([\d.]+)</summary>\s*```python\n(.*?)```", re.S
)
ALWAYS = [  # what an answer that is run alone may use on every page
    "import math",
    "import torch",
    "import torch.nn.functional as F",
    "from torch import nn",
    "from utils.models import Block",  # the page of lesson 06 writes it
]
SLOW = "transformers", "gguf"  # imports of a page that no answer needs
RIGHT, PYTHON = "right", "```python"


@dataclass(frozen=True)
class Mistake:
    """One form of a known mistake: its name, why it is wrong, and how it is made.

    form: a line of edits of the solution, or all the code that they make, which is
    defined beside the names in `space`. A table also has edits that change nothing, as
    the mistake RIGHT, and the Python that bodies share, as PYTHON.
    """

    name: str
    why: str
    form: str
    space: dict = field(default_factory=dict)

    @cached_property
    def function(self) -> Callable:
        return defined(self.form, self.space)


@dataclass(frozen=True)
class Exercise:
    """One exercise, as its page, its table and its trials give it.

    imports: what its page imports, for answers that are run alone.
    inputs(dtype), or inputs() where nothing depends on a precision: yields the
        arguments of each trial, as dicts by parameter name.
    gradients: False, True, or "without nan": none may arise on the way either.
    through: through(answer, *arguments) uses an answer that is not simply called, such
        as a class of modules; or None.
    done: what the reference and known mistakes did on trial i, if tried yet.
    """

    name: str
    title: str
    page: Path
    solution: str
    imports: list[str]
    inputs: Callable[..., Iterable[dict]]
    gradients: bool | str
    through: Callable | None
    known: list[Mistake]
    done: dict[tuple[Callable, int], dict] = field(default_factory=dict)

    @cached_property
    def space(self) -> dict:
        """Return the names that the page's imports give, where they are installed."""
        space = {}
        for line in self.imports:
            with suppress(ImportError):
                exec(line, space)
        return space

    @cached_property
    def reference(self) -> Callable:
        return defined(self.solution, self.space)

    @cached_property
    def right(self) -> list[str]:
        """Return the edited solutions that are listed as right."""
        known = [each for each in self.known if each.name == RIGHT]
        return [each.form for each in made(self.solution, known)]

    @cached_property
    def forms(self) -> list[Mistake]:
        """Return the code of each form of each known mistake, then of each slip."""
        space, right = dict(self.space), {self.solution, *self.right}
        exec("".join(each.form for each in self.known if each.name == PYTHON), space)
        known = [each for each in self.known if each.name not in (RIGHT, PYTHON)]
        found = [*made(self.solution, known)]
        for slip in slips()["every exercise"]:
            codes = slipped(self.solution, slip.form)
            found += [replace(slip, form=code) for code in codes if code not in right]
        return [replace(each, space=space) for each in found]

    def trials(self) -> list[dict]:
        """Return the arguments of each trial, in single and in double precision."""
        if not signature(self.inputs).parameters:  # nothing depends on a precision
            return [*self.inputs()]
        return [t for d in (torch.float32, torch.float64) for t in self.inputs(d)]


INPUTS = {}  # exercise -> what is tried: its inputs, gradients and through


def trials(
    name: str, gradients: bool | str = True, through: Callable | None = None
) -> Callable:
    """Mark inputs(dtype) or inputs() as those of exercise `name`."""

    def mark(inputs: Callable) -> Callable:
        INPUTS[name] = inputs, gradients, through
        return inputs

    return mark


def exercises() -> dict[str, Exercise]:
    """Return all exercises by number; what a page has lost is left out."""
    pages, known = {}, {}
    for path in sorted(NOTEBOOKS.glob("**/[0-9]*.ipynb")):  # 01-Copy1 before 01
        if ".ipynb_checkpoints" not in path.parts:
            pages |= read_page(path)
    for path in HERE.glob("trials_*.py"):
        import_module(f"{__package__}.{path.stem}")
    for path in (NOTEBOOKS / "exercises").glob("[0-9]*.txt"):
        known |= table(path)
    names = sorted(INPUTS.keys() & pages, key=lambda n: [*map(int, n.split("."))])
    return {n: Exercise(n, *pages[n], *INPUTS[n], known.get(n, [])) for n in names}


# --- pages ------------------------------------------------------------------------


def cells_of(path: Path) -> list[tuple[str, str, dict]]:
    """Return (type, text, metadata) of each cell; ValueError: this is no notebook."""
    try:
        cells = json.loads(path.read_bytes())["cells"]
        return [
            (each["cell_type"], "".join(each["source"]), each.get("metadata") or {})
            for each in cells
        ]
    except (ValueError, LookupError, TypeError) as error:
        why = "it is no notebook of format 4; save it in Jupyter"
        raise ValueError(why) from error


def read_page(path: Path) -> dict[str, tuple[str, Path, str, list[str]]]:
    """Return (title, page, solution, imports) of each exercise of a notebook."""
    try:
        cells = cells_of(path)
    except (ValueError, OSError):
        return {}  # the other pages still work
    whole = "\n".join(text for _, text, _ in cells)
    titles, solutions = dict(HEADING.findall(whole)), dict(SOLUTION.findall(whole))
    found = [x for kind, text, _ in cells if kind == "code" for x in imports_of(text)]
    names = titles.keys() & solutions
    return {n: (titles[n], path, solutions[n], ALWAYS + found) for n in names}


def imports_of(text: str) -> list[str]:
    """Return the import statements of a cell, without those that no answer needs."""
    try:
        body = ast.parse(text).body
    except SyntaxError:  # %magic, or half written
        return []
    found = [ast.unparse(x) for x in body if isinstance(x, ast.Import | ast.ImportFrom)]
    return [x for x in found if not any(slow in x for slow in SLOW)]


def defined(code: str, space: dict) -> Callable:
    """Return the last function or class of a text, beside the names in `space`."""
    space = dict(space)
    exec(compile(code, "<a solution>", "exec"), space)
    return space[re.findall(r"^(?:def|class) (\w+)", code, re.M)[-1]]


# --- tables -----------------------------------------------------------------------


def table(path: Path) -> dict[str, list[Mistake]]:
    """Return the known mistakes of each exercise in a table, form by form."""
    found, python = {}, False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            forms = found[line[3:].strip()] = []
        elif line.startswith("```"):
            python = not python
            forms += [[PYTHON, "", ""]] * python
        elif python:
            forms[-1][-1] += f"{line}\n"
        elif line[:1] not in ("", " ", "#"):
            name, why = line.split(": ", 1)
        elif line.startswith("      "):  # goes on with a body
            forms[-1][-1] += f"\n{line[4:]}"
        elif line.startswith("    "):
            forms.append([name, why, line.strip()])
    return {n: [Mistake(*form) for form in forms] for n, forms in found.items()}


@cache
def slips() -> dict[str, list[Mistake]]:
    """Return what is the same in every exercise: slips, and what errors mean."""
    return table(NOTEBOOKS / "exercises/slips.txt")


def made(solution: str, mistakes: Iterable[Mistake]) -> Iterator[Mistake]:
    """Yield the code of each mistake whose edits fit the solution.

    All fit the solution that the course prints, which a test asserts; on a page that
    its reader has edited some may not.
    """
    for each in mistakes:
        with suppress(ValueError):
            yield replace(each, form=edited(solution, each.form))


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


def slipped(solution: str, slip: str) -> Iterator[str]:
    """Yield the solution with a slip at each place where it can be made, and at all.

    A comment is no such place.
    """
    old, new = old_and_new(slip)
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
