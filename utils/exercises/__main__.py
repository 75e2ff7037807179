"""The command `python -m utils.exercises mark SUBMISSION…`, its tables and CSV file."""

import argparse
import csv
import glob
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pandas as pd

from utils.exercises import EXERCISES
from utils.exercises.mark import mark

NARROW = 48  # characters of what was wrong, in the table; the CSV file has all
FIRST, LAST = "submission", ["solved", "seconds", "problem"]  # columns of the file


def main(arguments: list[str] | None = None) -> None:
    """Mark the submissions that a command line names."""
    for stream in (sys.stdout, sys.stderr):  # a console may lack some of the signs
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    parser, given = understood(arguments)
    if given.one:
        submissions, others = [given.one], []
        print(json.dumps(mark(submissions, shown=False)[0]))
    else:
        submissions, others = found(parser, given.submissions)
        before = read(parser, given.csv) if given.csv else None
        begun = time.monotonic()
        rows = mark(submissions, given.jobs)
        if given.csv:  # before anything is printed
            write(given.csv, before, rows)
        print(table(rows))
        print(f"{len(rows)} marked in {time.monotonic() - begun:.1f} seconds.")
    if others:
        names = ", ".join(map(repr, others))
        print(f"Not marked, because the name does not end in .ipynb: {names}.")
    missing = [each for each in submissions if not os.path.exists(each)]
    if missing:
        parser.exit(1, f"There is no file {', '.join(map(repr, missing))}.\n")


def understood(arguments: list[str] | None):
    """Return the parser, which can refuse, and what a command line says."""
    parser = argparse.ArgumentParser("python -m utils.exercises")
    commands = parser.add_subparsers(required=True, metavar="mark")
    command = commands.add_parser("mark", help="mark submitted notebooks")
    what = "a notebook, a folder with notebooks, or a pattern"
    command.add_argument("submissions", nargs="*", metavar="SUBMISSION", help=what)
    command.add_argument("--jobs", type=int, default=1, help="how many run at once")
    into = "write the rows there; rows of other notebooks stay"
    command.add_argument("--csv", type=Path, help=into)
    command.add_argument("--one", metavar="FILE", help="print one line of JSON")
    given = parser.parse_args(arguments)
    if bool(given.submissions) == bool(given.one):
        command.error("give notebooks to mark, or else one after --one")
    if given.one and given.csv:
        command.error("--one prints its row, so leave out --csv")
    if given.jobs < 1:
        command.error(f"--jobs is {given.jobs}; it must be at least 1")
    return command, given


def found(parser, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the notebooks that are meant, each once, and what else lies there.

    Nothing hidden: neither .ipynb_checkpoints nor the ._01.ipynb of a Mac's archive.
    """
    notebooks, others = {}, []
    for argument in arguments:
        paths, files = [Path(argument)], []
        if not paths[0].exists() and any(sign in argument for sign in "*?["):
            paths = [Path(each) for each in sorted(glob.glob(argument, recursive=True))]
        for path in paths:
            below = sorted(path.rglob("*")) if path.is_dir() else [path]
            parts = [(each, each.relative_to(path).parts) for each in below]
            files += [
                x for x, p in parts if not x.is_dir() and "." not in [n[0] for n in p]
            ]
        named = [x for x in files if x.suffix == ".ipynb" or str(x) == argument]
        if not named:
            parser.error(f"{argument!r}: there is no notebook (.ipynb)")
        others += [str(x) for x in files if x not in named and x.suffix != ".csv"]
        for each in named:
            notebooks.setdefault(place(each), str(each))
    return list(notebooks.values()), others


def place(submission: str | Path) -> str:
    """Return what is the same for two ways to write the path of one notebook."""
    return os.path.normcase(os.path.abspath(submission))


# --- the CSV file -----------------------------------------------------------------


def read(parser, path: Path) -> pd.DataFrame | None:
    """Return the table in a CSV file, None if it is new; refuse any other file."""
    if path.suffix != ".csv":
        parser.error(f"--csv is {str(path)!r}; its name must end in .csv")
    try:
        path.open("a").close()
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file, strict=True) if line]
    except OSError as error:
        parser.error(f"--csv is {str(path)!r}: {error.strerror}")
    except (csv.Error, UnicodeDecodeError):
        lines = [[]]
    if not lines:
        return None
    columns = lines[0]
    same = all(len(line) == len(set(columns)) for line in lines)
    if columns[:1] != [FIRST] or not same or set(LAST) - set(columns):
        parser.error(
            f"--csv is {str(path)!r}, which is no table of `mark` (UTF-8, commas, a "
            "column for each exercise); it stays as it is. Choose another name"
        )
    return pd.DataFrame(lines[1:], columns=columns)


def write(path: Path, old: pd.DataFrame | None, rows: list[dict]) -> None:
    """Write the CSV file, where rows replace those of the same notebook.

    Columns that it has already stay where they are, also those that are not ours.
    """
    old = pd.DataFrame(columns=[FIRST, *LAST]) if old is None else old
    at = list(old).index(LAST[0])
    names = [
        n for n in EXERCISES if n not in old and any(n in r["exercises"] for r in rows)
    ]
    columns = [*old.columns[:at], *names, *old.columns[at:]]
    old = old.reindex(columns=columns, fill_value="")
    lines = {place(line[FIRST]): line for line in old.to_dict("records")}
    for row in rows:
        said = {n: words(v) for n, v in row["exercises"].items()}
        gone = dict.fromkeys([n for n in EXERCISES if n in old], "")
        solved = sum(v["status"] == "solved" for v in row["exercises"].values())
        ends = zip(LAST, (solved, row["seconds"], row["problem"] or ""))
        ours = {FIRST: row["submission"], **gone, **said, **dict(ends)}
        lines[place(row["submission"])] = lines.get(place(row["submission"]), {}) | ours
    new = pd.DataFrame(list(lines.values()), columns=old.columns)
    new.to_csv(path, index=False, encoding="utf-8-sig")  # Excel asks for this mark


# --- what is said -----------------------------------------------------------------


def words(verdict: dict) -> str:
    """Return the verdict on an exercise in a few words."""
    why = verdict["mistake"] or verdict["message"]
    return f"wrong: {why}" if verdict["status"] == "wrong" else verdict["status"]


def table(rows: list[dict]) -> str:
    """Return a line for each submission, and one for each exercise, with its counts."""
    lines, width = [], max(len(row["submission"]) for row in rows)
    for row in rows:
        said = [f"{n} {words(v)[:NARROW]}" for n, v in row["exercises"].items()]
        said = "  ".join([*(each.ljust(14) for each in said), row["problem"] or ""])
        lines.append(
            f"{row['submission']:{width}} {row['seconds']:6.1f} s  {said.rstrip()}"
        )
    for name in EXERCISES:
        said = [row["exercises"][name] for row in rows if name in row["exercises"]]
        counts = Counter(each["status"] for each in said)
        wrong = Counter(each["mistake"] for each in said if each["status"] == "wrong")
        others = wrong.pop(None, 0)  # their messages differ in numbers and shapes
        named = [*wrong.most_common(), *[("others", others)][: bool(others)]]
        why = f" ({', '.join(f'{mistake} {n}' for mistake, n in named)})" * bool(named)
        line = f"{name}: {counts['solved']} solved, {counts['wrong']} wrong{why}, "
        line += f"{counts['untouched']} untouched"
        line += f", {counts['unmarked']} unmarked" * bool(counts["unmarked"])
        lines += [line] * bool(said)
    return "\n".join(lines)


if __name__ == "__main__":  # a process that is spawned reads this file, too
    main()
