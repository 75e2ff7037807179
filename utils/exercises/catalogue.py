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
from functools import cache, cached_property
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
RIGHT = "right"  # the name in a table under which edits stand that change nothing


@dataclass(frozen=True)
class Mistake:
    """A known mistake: its name, why it is wrong, and the edits that make it.

    lines: one form of the mistake each, as (where it stands, edits).
    """

    name: str
    why: str
    lines: list[tuple[str, str]]


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
    """One exercise.

    imports: what its page imports, for answers that are run alone.
    inputs(dtype): yields the arguments of each trial, as dicts by parameter name.
    gradients: False, True, or "without nan": none may arise on the way either.
    known, helpers: its mistakes, and the Python that bodies in them share.
    """

    name: str
    title: str
    page: Path
    solution: str
    imports: str
    inputs: Callable[[torch.dtype], Iterable[dict]]
    gradients: bool | str
    known: list[Mistake]
    helpers: str

    @cached_property
    def space(self) -> dict:
        """Return the names that the page's imports give."""
        return imported(self.imports)

    @cached_property
    def reference(self) -> Callable:
        return defined(self.solution, self.space)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """Return each form of each known mistake, then of each slip."""
        space = dict(self.space)
        exec(self.helpers, space)
        right = {self.solution, *self.right}
        listed = [
            Form(mistake.name, mistake.why, code, space)
            for mistake in self.known
            if mistake.name != RIGHT
            for code in edits(self.solution, mistake)
        ]
        everywhere = [
            Form(slip.name, slip.why, code, space)
            for slip in slips()["every exercise"][0]
            for code in slipped(self.solution, slip)
            if code not in right
        ]
        return (*listed, *everywhere)

    @cached_property
    def right(self) -> tuple[str, ...]:
        """Return the edited solutions that are listed as right."""
        lists = (edits(self.solution, each) for each in self.known)
        found = [codes for each, codes in zip(self.known, lists) if each.name == RIGHT]
        return tuple(code for codes in found for code in codes)

    def names(self) -> list[str]:
        """Return the names of the known mistakes, each once, slips last."""
        return list(dict.fromkeys(form.name for form in self.forms))

    def trials(self) -> list[dict]:
        """Return the arguments of each trial, in single and in double precision."""
        return [t for d in (torch.float32, torch.float64) for t in self.inputs(d)]


def trials(name: str, gradients: bool | str = True) -> Callable:
    """Mark inputs(dtype) -> dicts of arguments as those of exercise `name`."""

    def mark(inputs: Callable) -> Callable:
        inputs.exercise, inputs.gradients = name, gradients
        return inputs

    return mark


@cache
def exercises() -> dict[str, Exercise]:
    """Return all exercises by number; what a page has lost is left out."""
    pages, inputs, known = {}, {}, {}
    for path in sorted(NOTEBOOKS.glob("**/[0-9]*.ipynb"), key=lambda p: len(p.name)):
        if ".ipynb_checkpoints" not in path.parts:  # copies have longer names
            pages = read_page(path) | pages
    for path in sorted(HERE.glob("trials_*.py")):
        module = import_module(f"{__package__}.{path.stem}")
        found = [x for x in vars(module).values() if hasattr(x, "exercise")]
        inputs |= {each.exercise: each for each in found}
    for path in (NOTEBOOKS / "exercises").glob("[0-9]*.txt"):
        known |= table(path)
    return {
        name: Exercise(
            name,
            *pages[name],
            inputs[name],
            inputs[name].gradients,
            *known.get(name, ([], "")),
        )
        for name in sorted(inputs, key=lambda n: [int(x) for x in n.split(".")])
        if name in pages
    }


# --- pages ------------------------------------------------------------------------


def read_page(path: Path) -> dict[str, tuple[str, Path, str, str]]:
    """Return (title, page, solution, imports) of each exercise of a notebook."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells]
    except (ValueError, LookupError, TypeError, OSError):
        return {}  # the other pages still work
    whole = "\n".join(texts)
    titles, solutions = dict(HEADING.findall(whole)), dict(SOLUTION.findall(whole))
    imports = ALWAYS + "\n".join(
        imports_of("".join(c["source"])) for c in cells if c["cell_type"] == "code"
    )
    return {
        name: (titles[name], path, solutions[name], imports)
        for name in titles
        if name in solutions
    }


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
    """Return the last function that a text defines, beside the names in `space`."""
    space = dict(space)
    exec(compile(code, "<a solution>", "exec"), space)
    return space[re.findall(r"^def (\w+)", code, re.M)[-1]]


# --- tables -----------------------------------------------------------------------


def table(path: Path) -> dict[str, tuple[list[Mistake], str]]:
    """Return per exercise its known mistakes, and the Python that they share."""
    found, python = {}, False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path.name}, line {number}"
        if line.startswith("## "):
            name = line[3:].strip()
            found[name] = mistakes, helpers = [], ""
        elif line.startswith("```"):
            python = not python
        elif python:
            helpers += f"{line}\n"
            found[name] = mistakes, helpers
        elif line.startswith("      ") and mistakes:  # deeper: goes on with a body
            where, text = mistakes[-1].lines.pop()
            mistakes[-1].lines.append((where, f"{text}\n{line[4:]}"))
        elif line.startswith("    "):
            mistakes[-1].lines.append((where, line.strip()))
        elif line.strip() and not line.startswith("#"):
            name_of_it, colon, why = line.partition(": ")
            if not colon:
                raise ValueError(f"{where}: write 'name: why it is wrong'.")
            mistakes.append(Mistake(name_of_it, why, []))
    return found


@cache
def slips() -> dict[str, tuple[list[Mistake], str]]:
    """Return what is the same in every exercise: slips, and what errors mean."""
    return table(NOTEBOOKS / "exercises/slips.txt")


def edits(solution: str, mistake: Mistake) -> Iterator[str]:
    """Yield the solution with the edits of each line that fits it.

    All lines fit the solution that the course prints, which a test asserts; on a page
    that its reader has edited some may not.
    """
    for where, line in mistake.lines:
        try:
            yield edited(solution, line, where)
        except ValueError:
            continue


def edited(solution: str, line: str, where: str = "an edit") -> str:
    """Return a solution with the edits of a line; each must fit exactly once."""
    if line.startswith("* →"):  # another body
        head = re.match(r"(.*\n)*?def [^\n]*?(\n    [^\n]*)*?:\n", f"{solution}\n")[0]
        body = line.removeprefix("* →").lstrip(" ")
        return (
            f"{head.rstrip()}{body if body[0] == chr(10) else f'{chr(10)}    {body}'}\n"
        )
    for edit in re.split(r"; (?=[^;]*→)", line):
        old, arrow, new = (part.strip() for part in edit.partition("→"))
        old, new = (unquoted(part).replace("\\n", "\n") for part in (old, new))
        if not arrow or solution.count(old) != 1:
            count = solution.count(old) if arrow else "without an arrow"
            raise ValueError(f"{where}: {old!r} stands {count} times in\n{solution}")
        solution = solution.replace(old, new)
    return solution


def unquoted(part: str) -> str:
    """Return what stands between backticks, which keep its blanks; or the part."""
    return part[1:-1] if len(part) > 1 and part[0] == part[-1] == "`" else part


def slipped(solution: str, slip: Mistake) -> Iterator[str]:
    """Yield the solution with a slip at each place where it can be made, and at all.

    A comment is no such place.
    """
    for _, line in slip.lines:
        old, new = (unquoted(part.strip()) for part in line.split("→"))
        places = [m.start() for m in re.finditer(re.escape(old), solution)]
        places = [at for at in places if "#" not in solution[:at].split("\n")[-1]]
        for at in places:
            yield solution[:at] + new + solution[at + len(old) :]
        if len(places) > 1:
            yield solution.replace(old, new)


# --- numbers ----------------------------------------------------------------------


@cache
def renumbered() -> dict[str, str]:
    """Return today's number of each exercise whose number or title has changed.

    The keys are the number and the title that it had, as in its old heading.
    """
    path = NOTEBOOKS / "exercises/renumbered.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(" → ") for line in lines if "→" in line and line[0] != "#")
    return {old.strip(): new.strip() for old, _, new in pairs}


def number_of(number: str, title: str) -> str:
    """Return today's number of the exercise that once had this number and title."""
    return renumbered().get(f"{number} {title}", number)
