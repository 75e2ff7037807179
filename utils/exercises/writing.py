"""The text of an answer: its own source, and that of all it uses from the notebook.

A notebook's names live in one dict of globals, and IPython keeps the cells that were
run in its list `In`. A function has its own source; for anything else that can be
called (a lambda, a partial, a decorated function, an instance), the last statement that
gave it its name is its text. Whether the text does what the object did is not known
here: the caller runs it and marks it.
"""

import ast
import inspect
import linecache
import math
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, FunctionType, ModuleType

from utils.exercises.kept import NotKept


def written(function: Callable, caller: FrameType, imports: str) -> str:
    """Return text that defines the function, and all that it uses, as ANSWER.

    caller: the frame that called check; imports: the import lines of the lesson.
    """
    writer = _Writer(imports)
    names = {**caller.f_globals, **caller.f_locals}
    expression = _own_name(function) or _argument(caller) or _name_in(names, function)
    if expression is None:
        raise NotKept("its source cannot be found")
    if _own_name(function):
        writer.add(expression, function, function.__globals__)
    else:
        writer.add_all(expression, names)
    return "\n\n\n".join([*writer.texts(), f"ANSWER = {expression}"])


class _Writer:
    """Collects statements, each after those that it needs."""

    def __init__(self, imports: str):
        self.imports = imports
        self.values: dict[str, object] = {}
        self.found: list[str] = []
        self.statements: dict[int, dict[str, str]] = {}  # by the id of their namespace

    def texts(self) -> list[str]:
        """Return the import lines as one text, then each definition as its own."""
        starts = ("import ", "from ")
        lines = [text for text in self.found if text.startswith(starts)]
        rest = [text for text in self.found if not text.startswith(starts)]
        return ["\n".join(sorted(lines)), *rest] if lines else rest

    def add_all(self, text: str, names: dict) -> None:
        for name in sorted(_globals_of(text) & names.keys()):
            self.add(name, names[name], names)

    def add(self, name: str, value: object, names: dict) -> None:
        """Add what gives `name` its value, and before it all that this text needs."""
        if name in self.values:
            if self.values[name] is not value:
                raise NotKept(f"it uses two different things called `{name}`")
            return
        self.values[name] = value
        if _own_name(value) not in (None, name) and not _import(name, value):
            self.add(value.__name__, value, value.__globals__)
            text = f"{name} = {value.__name__}"
        else:
            text = self._text(name, value, names)
            home = value.__globals__ if _own_name(value) else names
            self.add_all(text, home)
        if text not in self.found:
            self.found.append(text)

    def _text(self, name: str, value: object, names: dict) -> str:
        if literal := _literal(value):
            return f"{name} = {literal}"
        if id(names) not in self.statements:
            self.statements[id(names)] = _statements(self.imports, names)
        statement = self.statements[id(names)].get(name, "")
        if statement.startswith(("import ", "from ")):
            return statement
        text = _import(name, value) or (_own_name(value) and _source(value))
        ours = callable(value) or type(value).__module__ == names.get("__name__")
        if text or (statement and ours):  # other objects may be slow to make again
            return text or statement
        if callable(value):
            raise NotKept(f"the source of `{name}` cannot be found")
        raise NotKept(
            f"it uses `{name}` of this notebook, a {type(value).__name__} that cannot "
            "be written as text; make it inside your function"
        )


def _own_name(value: object) -> str | None:
    """Return the name of a function that its own source defines whole, else None."""
    if not isinstance(value, FunctionType) or not value.__name__.isidentifier():
        return None
    if value.__closure__ or hasattr(value, "__wrapped__"):  # made by another function
        return None
    return value.__name__ if _import("", value) or _source(value) else None


def _source(function: FunctionType) -> str | None:
    """Return the text of a function, if it is the text of one `def` of its name."""
    try:
        text = textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError, SyntaxError):
        return None
    names = [getattr(statement, "name", None) for statement in _parsed(text)]
    return text if names == [function.__name__] else None


def _literal(value: object) -> str | None:
    """Return a constant, or a small collection of constants, as Python writes it."""
    if type(value) is float and not math.isfinite(value):
        return f'float("{value}")'
    try:
        text = repr(value)
        same = len(text) < 10_000 and ast.literal_eval(text) == value
    except Exception:  # whatever the __repr__ and __eq__ of a learner's class do
        return None
    return text if same is True else None


def _import(name: str, value: object) -> str | None:
    """Return the line that imports a module, or what is public in one, as `name`."""
    if isinstance(value, ModuleType):
        path, line = value.__name__, f"import {value.__name__}"
        return None if path == "__main__" else line + f" as {name}" * (path != name)
    path, own = getattr(value, "__module__", 0), getattr(value, "__qualname__", 0)
    if not isinstance(path, str) or not isinstance(own, str) or path == "__main__":
        return None
    if any(part.startswith("_") for part in path.split(".")):
        return None
    if getattr(sys.modules.get(path), own, None) is not value:
        return None
    return f"from {path} import {own}" + f" as {name}" * (own != name)


def _statements(imports: str, names: dict) -> dict[str, str]:
    """Return {name: the last statement, of all that were run, that bound it}."""
    found = {}
    for cell in (imports, *_cells(names)):
        for statement in _parsed(cell):
            found.update(_bound(statement, cell))
    return found


def _cells(names: dict) -> Iterable[str]:
    """Yield the cells that were run, and what stood under a `%%magic`, or the file."""
    run = names.get("In")
    for cell in run if type(run) is list else []:
        if isinstance(cell, str):
            yield cell
            for node in _parsed(cell):
                match node:
                    case ast.Expr(
                        ast.Call(ast.Attribute(attr="run_cell_magic"), [*_, last])
                    ):
                        yield str(getattr(last, "value", ""))
    yield "".join(linecache.getlines(str(names.get("__file__", ""))))


def _parsed(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _bound(statement: ast.stmt, cell: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each name that a statement binds."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            one = ast.Import([alias])
            if isinstance(statement, ast.ImportFrom):
                one = ast.ImportFrom(statement.module, [alias], statement.level)
            yield alias.asname or alias.name.split(".")[0], ast.unparse(one)
    elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
        first = min([statement.lineno, *(d.lineno for d in statement.decorator_list)])
        lines = cell.splitlines()[first - 1 : statement.end_lineno]
        yield statement.name, "\n".join(lines)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = getattr(statement, "targets", None) or [statement.target]
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id, ast.get_source_segment(cell, statement)


def _globals_of(text: str) -> set[str]:
    """Return the names that a text takes from outside; its local ones do not count."""
    top = symtable.symtable(text, "<answer>", "exec")
    tables, names = [top], set()
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table is top):
                names.add(symbol.get_name())
    return names


def _argument(caller: FrameType) -> str | None:
    """Return what stands as the second argument in the call of check."""
    cell = "".join(linecache.getlines(caller.f_code.co_filename))
    for node in ast.walk(ast.Module(_parsed(cell), [])):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            called = getattr(node.func, "id", getattr(node.func, "attr", None))
            if called == "check" and node.lineno <= caller.f_lineno <= node.end_lineno:
                text = ast.get_source_segment(cell, node.args[1])
                return f"({text})" if "\n" in text else text
    return None


def _name_in(names: dict, value: object) -> str | None:
    return next((n for n, v in names.items() if v is value and n[0] != "_"), None)
