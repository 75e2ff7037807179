"""Checks each notebook, two at a time, and says of each how it went and how long."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import house


def told(name, check):
    """Run a check that raises what is wrong; say how it went; return if it failed."""
    start = time.perf_counter()
    print(f"          begins {name}", flush=True)
    try:
        check()
        result, failed = "passed", False
    except Exception as error:
        result, failed = f"FAILED: {type(error).__name__}: {error}", True
    print(f"{time.perf_counter() - start:7.1f} s {name} {result}", flush=True)
    return failed


def check_each(check, names):
    """Return whether `check(path)` failed for one of the named notebooks.

    Without names, all notebooks of the course.
    """
    paths = [Path(name).resolve() for name in names] or house.notebooks()
    labels = [f"{path.parent.name}/{path.name}" for path in paths]
    with ThreadPoolExecutor(2) as workers:
        checks = [partial(check, path) for path in paths]
        return any(list(workers.map(told, labels, checks)))
