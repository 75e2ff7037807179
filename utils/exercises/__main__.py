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
    one = given.one is not None
    submissions, others = ([given.one], []) if one else found(parser, given.submissions)
    old = read(parser, given.csv) if given.csv else None
    begun = time.monotonic()
    rows = mark(submissions, given.jobs, shown=not one)
    if given.csv:  # before anything is printed
        write(given.csv, *old, rows)
    if one:
        print(json.dumps(rows[0]))
    else:
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
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("submissions", nargs="*", default=[], help=what)
    which.add_argument("--one", metavar="FILE", help="print one line of JSON")
    command.add_argument("--jobs", type=int, default=1, help="how many run at once")
    into = "write the rows there; rows of other notebooks stay"
    command.add_argument("--csv", type=Path, help=into)
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        command.error(f"--jobs is {given.jobs}; it must be at least 1")
    return command, given


def found(parser, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the notebooks that are meant, each once, and what else lies there.

    Nothing hidden: neither .ipynb_checkpoints nor the ._01.ipynb of a Mac's archive.
    """
    notebooks, others = {}, []
    for argument in arguments:
        literal = os.path.exists(argument) or not glob.has_magic(argument)
        paths = [argument] if literal else sorted(glob.glob(argument, recursive=True))
        files = []
        for path in paths:
            below = glob.glob(f"{glob.escape(path)}/**", recursive=True)
            files += sorted(below) if os.path.isdir(path) else [path]
        files = [os.path.normpath(x) for x in files if not os.path.isdir(x)]
        named = [x for x in files if x.endswith(".ipynb") or [x] == files == paths]
        if not named:
            parser.error(f"{argument!r}: there is no notebook (.ipynb)")
        others += [x for x in files if x not in named and not x.endswith(".csv")]
        notebooks |= {place(x): x for x in named if place(x) not in notebooks}
    return list(notebooks.values()), others


def place(submission: str | Path) -> str:
    """Return what is the same for two ways to write the path of one notebook."""
    return os.path.normcase(os.path.abspath(submission))


# --- the CSV file -----------------------------------------------------------------


def read(parser, path: Path) -> tuple[list[str], list[dict]]:
    """Return columns and rows of a CSV file, also of a new one; refuse any other."""
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
    columns, *rows = lines or [[FIRST, *LAST]]
    same = all(len(line) == len(set(columns)) for line in lines)
    if columns[:1] != [FIRST] or not same or set(LAST) - set(columns):
        parser.error(
            f"--csv is {str(path)!r}, which is no table of `mark` (UTF-8, commas, a "
            "column for each exercise); it stays as it is. Choose another name"
        )
    return columns, [dict(zip(columns, row)) for row in rows]


def write(path: Path, columns: list[str], old: list[dict], rows: list[dict]) -> None:
    """Write the CSV file, where rows replace those of the same notebook.

    Columns that it has already stay where they are, also those that are not ours.
    """
    at, marked = columns.index(LAST[0]), {n for row in rows for n in row["exercises"]}
    new = [n for n in EXERCISES if n in marked and n not in columns]
    lines = {place(line[FIRST]): line for line in old}
    for row in rows:
        said = {n: words(v) for n, v in row["exercises"].items()}
        solved = sum(v["status"] == "solved" for v in row["exercises"].values())
        ours = dict.fromkeys(EXERCISES, "") | said | {"solved": solved}
        ours |= {n: row[n] for n in ("submission", "seconds", "problem")}
        lines[place(row[FIRST])] = lines.get(place(row[FIRST]), {}) | ours
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # for Excel
        columns = [*columns[:at], *new, *columns[at:]]
        writer = csv.DictWriter(file, columns, "", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines.values())


# --- what is said -----------------------------------------------------------------


def words(verdict: dict) -> str:
    """Return the verdict on an exercise in a few words."""
    why = verdict["mistake"] or verdict["message"]
    return f"wrong: {why}" if verdict["status"] == "wrong" else verdict["status"]


def table(rows: list[dict]) -> str:
    """Return a line for each submission, and one for each exercise, with its counts."""
    lines, width = [], max(len(row["submission"]) for row in rows)
    for row in rows:
        said = [f"{n} {words(v)[:NARROW]:10}" for n, v in row["exercises"].items()]
        said = "  ".join([*said, row["problem"] or ""]).rstrip()
        lines.append(f"{row['submission']:{width}} {row['seconds']:6.1f} s  {said}")
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
