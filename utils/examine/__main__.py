"""The command: python -m utils.examine FILE.py:NAME --embed-dim 64 --heads 4."""

import argparse
import inspect
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

from torch import nn

from . import examine


def of_file(path: Path, name: str):
    """Return what a Python file calls `name`; the file is run for that.

    Its imports find what its project has. A file in a folder with an __init__.py, or
    with relative imports, is a module of a package. A project may have its own `utils`:
    the course's is forgotten, and then found only if there is no other.
    """
    folder, module = path.parent, path.stem
    dots = re.findall(r"^\s*from\s+(\.+)", path.read_text(encoding="utf-8"), re.M)
    depth = max(map(len, dots), default=0)
    while depth > 0 or (folder / "__init__.py").is_file():
        folder, module, depth = folder.parent, f"{folder.name}.{module}", depth - 1
    for ours in [x for x in sys.modules if x.split(".")[0] == "utils"]:
        del sys.modules[ours]
    course = Path(__file__).parents[2]
    others = [x for x in sys.path if Path(x).resolve() != course]
    places = [*map(str, [folder, *others, *path.parents])]
    if not any(Path(x, "utils").is_dir() for x in places):
        places.append(str(course))  # a package wins over a folder without __init__.py
    sys.path[:] = places
    alone = module == path.stem  # no part of a package
    space = runpy.run_path(str(path)) if alone else vars(import_module(module))
    if name not in space:
        raise AttributeError(f"{path} has no {name}.")
    return space[name]


def built(made, embed_dim: int, num_heads: int):
    """Return a layer, or what its class or function returns."""
    if isinstance(made, nn.Module):
        return made
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads}
    for args, options in (((embed_dim, num_heads), {}), ((), sizes), ((), {})):
        try:
            inspect.signature(made).bind(*args, **options)
        except TypeError:
            continue
        return made(*args, **options)
    ways = f"({embed_dim}, {num_heads}), nor with nothing"
    text = f"{made!r} is no layer, and cannot be called with {ways}"
    raise TypeError(f"{text}: name a function that can.")


def main(arguments: list[str] | None = None) -> int:
    """Examine the layer of a file, print the report, and return the exit status."""
    parser = argparse.ArgumentParser("python -m utils.examine")
    parser.add_argument("place", metavar="FILE.py:NAME")
    parser.add_argument("--embed-dim", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True)
    given = parser.parse_args(arguments)
    sizes = given.embed_dim, given.heads
    path, colon, name = given.place.rpartition(":")
    if not colon:
        parser.error(f"{given.place} is no FILE.py:NAME")
    try:
        made = of_file(Path(path).resolve(), name)
        report = examine(built(made, *sizes), *sizes)
    except (Exception, SystemExit) as error:  # the file may raise anything
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
