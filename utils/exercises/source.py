"""Finds the learner's own lines: where an error arose, what overwrites a tensor."""

import ast
import inspect
import linecache
import os
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

NOT_THE_LEARNERS = tuple(  # what stands here was not written by the learner
    str(folder) + os.sep
    for folder in (
        Path(os.__file__).parent,
        Path(torch.__file__).parents[1],
        Path(__file__).parents[1],
    )
)


def own_line(error: BaseException) -> str:
    """Return the learner's last line in a traceback, with its number, or ""."""
    found = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        text = linecache.getline(file, number, frame.f_globals).strip()
        if text and not file.startswith(NOT_THE_LEARNERS):
            found = f"line {number}: {text}"
    return found


def overwriting_line(function: Callable) -> str:
    """Return the line that overwrites a tensor; "" if there is not exactly one."""
    try:
        lines, start = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ""
    numbers = {node.lineno for node in _overwriting(tree)}
    if len(numbers) != 1:
        return ""
    number = numbers.pop()
    return f"line {start + number - 1}: {lines[number - 1].strip()}"


def _overwriting(tree: ast.AST) -> Iterator[ast.stmt | ast.expr]:
    """Yield `x /= y`, `x[i] = y` and `x.add_(y)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            yield node
        elif isinstance(node, ast.Assign):
            if any(isinstance(target, ast.Subscript) for target in node.targets):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.endswith("_") and not name.startswith("_"):
                yield node
