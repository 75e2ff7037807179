"""The long studies: NAME.py is the experiment, NAME.json is every run of it.

The module of a study has

    study(): returns all runs, and what is to be known about them
    again(stored): returns some runs, made once more
    comparable(stored): returns the stored runs in the form of those that `again` made;
        left out where this is stored["runs"]
    KEY: the fields that say which run it is
    MARGIN: {field: margin} of the fields that are compared; a number may lie outside
        what the stored runs of its key span by so much
    SETTINGS: stored and compared, too; left out where the runs say all

Runs of the same key are runs with several seeds. Other CPUs round otherwise, and
training makes more of it: this is what margins are for.
"""

import json
import math
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import torch

FOLDER = Path(__file__).parent
STUDIES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def stored_of(name: str) -> dict:
    """Return what is stored of a study."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def runs_of(stored: dict, **which) -> list[dict]:
    """Return the stored runs that have these entries."""
    return [run for run in stored["runs"] if which.items() <= run.items()]


def told(runs: Iterable[dict]) -> list[dict]:
    """Return the runs as a list, and print each as soon as it is there."""
    found = []
    for run in runs:
        found.append(run)
        print(json.dumps(run), flush=True)
    return found


def as_json(study: dict) -> str:
    """Return a study as JSON text, with a line for each of its runs (or rows).

    >>> print(as_json({"seeds": 2, "runs": [[1, 2], [3]]}), end="")
    {
     "seeds": 2,
     "runs": [
    [1, 2],
    [3]
    ]}
    """
    rows = "runs" if "runs" in study else "rows"
    head = {name: value for name, value in study.items() if name != rows}
    lines = ",\n".join(json.dumps(row) for row in study[rows])
    return f'{json.dumps(head, indent=1)[:-2]},\n "{rows}": [\n{lines}\n]}}\n'


def versions() -> dict[str, str]:
    """Return what may make numbers differ: of Python, torch and the machine."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "machine": platform.machine(),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
    }


def whole(script: ModuleType, *files: str) -> dict:
    """Run a study; return what is stored of it."""
    settings = {"settings": script.SETTINGS} if hasattr(script, "SETTINGS") else {}
    return {"versions": versions()} | settings | script.study(*files)


def rounded(x, digits: int = 4):
    """Return x with its numbers rounded, tensors as lists, None for what is not finite.

    >>> rounded({"loss": torch.tensor([0.12345, torch.nan]), "steps": 7})
    {'loss': [0.1235, None], 'steps': 7}
    """
    if isinstance(x, torch.Tensor):
        x = x.tolist()
    if isinstance(x, float):
        return round(x, digits) if math.isfinite(x) else None
    if isinstance(x, dict):
        return {name: rounded(value, digits) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [rounded(value, digits) for value in x]
    return x


def comparable(script: ModuleType, stored: dict) -> list[dict]:
    """Return the stored runs in the form of those that `again` makes."""
    return getattr(script, "comparable", lambda stored: stored["runs"])(stored)


def misfits(script: ModuleType, stored: dict, again: list[dict]) -> list[str]:
    """Return a sentence for each number of the repeated runs that is not as stored."""
    again, said = json.loads(json.dumps(again)), []  # tuples become lists
    known = comparable(script, stored)
    if "settings" in stored:
        now = json.loads(json.dumps(script.SETTINGS))
        said += differences("settings", now, [stored["settings"]], 0)
    for run in again:
        which = [run.get(field) for field in script.KEY]
        same = [old for old in known if [old.get(f) for f in script.KEY] == which]
        name = ", ".join(str(value) for value in which if value is not None)
        if not same:
            said.append(f"{name}: no such run is stored")
            continue
        for field, margin in script.MARGIN.items():
            if field in run or any(field in old for old in same):
                olds = [old.get(field) for old in same]
                said += differences(f"{name}: {field}", run.get(field), olds, margin)
    return said


def differences(what: str, new, olds: list, margin: float) -> list[str]:
    """Return a sentence for each value in `new` that is not as in the old ones.

    A number may lie outside what the old ones span by the margin; lists and dicts are
    compared value by value; all else is equal to each of the old ones.
    """
    parts, old_parts = parts_of(new), [parts_of(old) for old in olds]
    if parts and all(old.keys() == parts.keys() for old in old_parts):
        said = []
        for name, part in parts.items():
            same = [old[name] for old in old_parts]
            said += differences(f"{what}, {name}", part, same, margin)
        return said
    if new is None and None in olds:  # such as a training that breaks in some seeds
        return []
    stored, olds = str(olds[0]), [old for old in olds if old is not None] or olds
    if all(isinstance(x, (int, float)) for x in (new, *olds)):
        low, high = min(olds), max(olds)
        fits, stored = low - margin <= new <= high + margin, f"{low} to {high}"
    else:
        fits = all(old == new for old in olds)
    return [] if fits else [f"{what} is {new}; stored: {stored}"]


def parts_of(value) -> dict:
    """Return the values in a dict, or in a list by their place; all else has none."""
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else {}
