"""What the studies share: how a script is run and checked, and its results written.

A study is NAME.py, which writes NAME.json with every run in it.
"""

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent


def script_of(name: str) -> ModuleType:
    """Return the script of a study, as a module: assets/studies/NAME.py.

    Raises FileNotFoundError where there is none.
    """
    path, search = FOLDER / f"{name}.py", list(sys.path)
    spec = importlib.util.spec_from_file_location(f"study_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
        sys.path[:] = search  # the script puts the project in front
    return module


def as_json(study: dict, rows: str = "runs") -> str:
    """Return a study as JSON text, with a line for each of study[rows].

    >>> print(as_json({"seeds": 2, "runs": [[1, 2], [3]]}), end="")
    {
     "seeds": 2,
     "runs": [
    [1, 2],
    [3]
    ]}
    """
    head = {name: value for name, value in study.items() if name != rows}
    lines = ",\n".join(json.dumps(row) for row in study[rows])
    return f'{json.dumps(head, indent=1)[:-2]},\n "{rows}": [\n{lines}\n]}}\n'


def command_line(
    arguments: Sequence[str],
    stored: Path,
    usage: str,
    study: Callable[[], dict],
    misfits: Callable[[dict], list[str]],
) -> int:
    """Run a study's script; return its exit code.

    Without arguments the study is written to `stored`. With --check, misfits(what is
    stored) repeats some of it and returns a sentence for each number that differs.
    """
    if arguments == ["--check"]:
        said = misfits(json.loads(stored.read_text(encoding="utf-8")))
        print("\n".join(said) or "What was repeated is as stored.")
        return int(bool(said))
    if arguments:
        print(usage)
        return 2
    stored.write_text(as_json(study()), encoding="utf-8")
    return 0
