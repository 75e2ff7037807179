"""The map in utils/__init__.py says what the files and their imports say.

`python -m utils.tests.test_map` prints the map, to be put there.
"""

import ast
import re
from pathlib import Path

import utils

FOLDER = Path(utils.__file__).parent


def entry(name: str) -> str:
    """Return the lines of the map for one file: its imports, and its first line."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "utils":
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("utils."):
            imported.add(node.module.split(".")[1])
    arrow = f" <- {', '.join(sorted(imported))}" if imported else ""
    return f"  {name}.py{arrow}\n      {ast.get_docstring(tree).splitlines()[0]}\n"


def test_the_map_is_what_the_files_say():
    order = re.findall(r"^  (\w+)\.py", utils.__doc__, re.M)
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert sorted(order) == sorted(files)
    assert "".join(map(entry, order)) in utils.__doc__


def test_each_file_imports_only_what_stands_above_it():
    """So imports run one way; of the exercises, only examine.py knows."""
    above: set[str] = set()
    for name, imports in re.findall(r"^  (\w+)\.py(?: <- (.*))?$", utils.__doc__, re.M):
        known = above | {"exercises"} if name == "examine" else above
        assert set(filter(None, imports.split(", "))) <= known, name
        above.add(name)


if __name__ == "__main__":
    names = re.findall(r"^  (\w+)\.py", utils.__doc__, re.M)
    print("".join(map(entry, names)))
