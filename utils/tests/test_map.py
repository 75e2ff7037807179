"""The maps in utils/__init__.py and utils/examine/__init__.py are what the files say.

`python -m utils.tests.test_map` prints them, to be put there.
"""

import ast
import re
from pathlib import Path

import pytest

import utils
import utils.examine

PACKAGES = {"utils": utils, "utils.examine": utils.examine}
ENTRY = re.compile(r"^  (\w+)\.py(?: <- (.*))?$", re.M)


def imported(file: Path, package: str) -> set[str]:
    """Return the files of the package, or its packages, that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            inside = "utils.examine." if node.level else ""
            name = f"{inside}{node.module or ''}".rstrip(".")
            if name == package:
                names |= {alias.name for alias in node.names}
            elif name.startswith(f"{package}."):
                names.add(name.removeprefix(f"{package}.").split(".")[0])
    return names


def entry(file: Path, package: str) -> str:
    """Return the lines of the map for one file: its imports, and its first line."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    others = imported(file, package)
    arrow = f" <- {', '.join(sorted(others))}" if others else ""
    return f"  {file.name}{arrow}\n      {ast.get_docstring(tree).splitlines()[0]}\n"


def printed(package: str) -> str:
    """Return the map of a package, in the order in which it stands there."""
    folder = Path(PACKAGES[package].__file__).parent
    names = [name for name, _ in ENTRY.findall(PACKAGES[package].__doc__)]
    assert sorted(names) == sorted(
        x.stem for x in folder.glob("*.py") if not x.stem.startswith("_")
    )
    return "".join(entry(folder / f"{name}.py", package) for name in names)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_map_is_what_the_files_say(package):
    assert printed(package) in PACKAGES[package].__doc__


@pytest.mark.parametrize("package", PACKAGES)
def test_each_file_imports_only_what_stands_above_it(package):
    above: set[str] = set()
    for name, imports in ENTRY.findall(PACKAGES[package].__doc__):
        assert set(filter(None, imports.split(", "))) <= above, name
        above.add(name)


if __name__ == "__main__":
    print(*map(printed, PACKAGES), sep="\n")
