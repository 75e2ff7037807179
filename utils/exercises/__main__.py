"""The command `python -m utils.exercises mark SUBMISSION…`, its tables and CSV file."""

import argparse
import csv
import glob
import io
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

from utils.exercises import EXERCISES
from utils.exercises.mark import mark

NARROW = 48  # characters of what was wrong, in the table; the CSV file has all
FIRST, LAST = ["submission"], ["solved", "seconds", "problem"]  # columns of the file


def main(arguments: list[str] | None = None) -> None:
    """Mark the submissions that a command line names."""
    for stream in (sys.stdout, sys.stderr):  # a console without some of the signs
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    parser, given = _understood(arguments)
    if given.one:
        submissions, left_out = [given.one], []
        print(json.dumps(mark(submissions, shown=False)[0]))
    else:
        submissions, left_out = _found(parser, given.submissions)
        table = _read(parser, given.csv) if given.csv else []
        begun = time.monotonic()
        rows = mark(submissions, given.jobs)
        if given.csv:  # before anything is printed
            given.csv.write_bytes(_written(table, rows))
        _print_table(rows)
        _print_counts(rows)
        print(f"{len(rows)} marked in {time.monotonic() - begun:.1f} seconds.")
    if left_out:
        names = ", ".join(map(repr, left_out))
        print(f"Not marked, because the name does not end in .ipynb: {names}.")
    missing = [each for each in submissions if not os.path.exists(each)]
    if missing:
        parser.exit(1, f"There is no file {', '.join(map(repr, missing))}.\n")


# --- what is asked for ------------------------------------------------------------


def _understood(arguments: list[str] | None):
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


def _found(parser, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the notebooks that are meant, each once, and what else lies there.

    Nothing hidden: neither .ipynb_checkpoints nor the ._01.ipynb of a Mac's archive.
    """
    found, left_out = {}, []
    for argument in arguments:
        paths, named = [Path(argument)], not any(sign in argument for sign in "*?[")
        if not paths[0].exists() and not named:
            paths = map(Path, glob.glob(argument, recursive=True))
        files = [(path, path) for path in paths if not path.is_dir()]
        files += [(p, p.relative_to(f)) for f in map(Path, paths) for p in f.rglob("*")]
        seen = [p for p, short in files if not any(x[0] == "." for x in short.parts)]
        notebooks = sorted(str(p) for p in seen if p.suffix == ".ipynb")
        if not notebooks:
            parser.error(f"{argument!r}: there is no notebook (.ipynb)")
        left_out += sorted(str(p) for p in seen if p.suffix != ".ipynb" and p.is_file())
        for each in notebooks:
            found.setdefault(_place(each), each)
    return list(found.values()), left_out


def _place(submission: str) -> str:
    """Return what is the same for two ways to write the path of one notebook."""
    return os.path.normcase(os.path.abspath(submission))


# --- the CSV file -----------------------------------------------------------------


def _read(parser, path: Path) -> list[list[str]]:
    """Return the lines of the CSV file, none if it is new; refuse any other file."""
    if path.suffix != ".csv":
        parser.error(f"--csv is {str(path)!r}; its name must end in .csv")
    try:
        path.open("a").close()
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = [line for line in csv.reader(file, strict=True) if line]
    except OSError as error:
        parser.error(f"--csv is {str(path)!r}: {error.strerror}")
    except (csv.Error, UnicodeDecodeError):
        table = [[]]
    if table:
        columns, *lines = table
        same = all(len(line) == len(set(columns)) for line in table)
        if columns[:1] != FIRST or not same or set(LAST) - set(columns):
            parser.error(
                f"--csv is {str(path)!r}, which is no table of `mark` (UTF-8, commas, "
                "a column for each exercise); it stays as it is. Choose another name"
            )
    return table


def _written(table: list[list[str]], rows: list[dict]) -> bytes:
    """Return the CSV file, where rows replace those of the same notebook.

    Columns that it has already stay where they are, also those that are not ours.
    """
    columns, *lines = table or [FIRST + LAST]
    names = {name for row in rows for name in row["exercises"]} - set(columns)
    at = columns.index(LAST[0])
    wider = [*columns[:at], *(n for n in EXERCISES if n in names), *columns[at:]]
    new = {_place(row["submission"]): _line(row, wider) for row in rows}
    merged = [dict(zip(columns, line)) for line in lines]
    merged = [old | new.pop(_place(old[FIRST[0]]), {}) for old in merged]
    file = io.StringIO()
    writer = csv.DictWriter(file, wider, restval="")
    writer.writeheader()
    writer.writerows([*merged, *new.values()])
    return file.getvalue().encode("utf-8-sig")  # for Excel, which else asks nobody


def _line(row: dict, columns: list[str]) -> dict:
    """Return the line of a submission: its text in each column that is ours."""
    exercises = row["exercises"]
    said = {name: _said(exercises.get(name)) for name in columns if name in EXERCISES}
    solved = sum(each["status"] == "solved" for each in exercises.values())
    ends = zip(LAST, (solved, row["seconds"], row["problem"]))
    return {FIRST[0]: row["submission"], **said, **dict(ends)}


# --- what is said -----------------------------------------------------------------


def _said(verdict: dict | None) -> str:
    """Return the verdict on an exercise in a few words; none if it was not there."""
    if verdict is None:
        return ""
    why = verdict["mistake"] or verdict["message"]
    return f"wrong: {why}" if verdict["status"] == "wrong" else verdict["status"]


def _print_table(rows: list[dict]) -> None:
    """Print one line for each submission, with the exercises that it has."""
    width = max(len(row["submission"]) for row in rows)
    for row in rows:
        verdicts = row["exercises"].items()
        said = [f"{name} {_said(verdict)[:NARROW]}" for name, verdict in verdicts]
        words = "  ".join([*(each.ljust(14) for each in said), row["problem"] or ""])
        print(f"{row['submission']:{width}} {row['seconds']:6.1f} s  {words.rstrip()}")


def _print_counts(rows: list[dict]) -> None:
    """Print one line for each exercise: how many solved it, and what was wrong."""
    for name in EXERCISES:
        said = [row["exercises"][name] for row in rows if name in row["exercises"]]
        counts = Counter(each["status"] for each in said)
        wrong = [each["mistake"] for each in said if each["status"] == "wrong"]
        named = Counter(mistake for mistake in wrong if mistake).most_common()
        if others := wrong.count(None):  # their messages differ in numbers and shapes
            named.append(("others", others))
        why = f" ({', '.join(f'{mistake} {n}' for mistake, n in named)})" * bool(named)
        line = f"{name}: {counts['solved']} solved, {counts['wrong']} wrong{why}, "
        line += f"{counts['untouched']} untouched"
        if counts["unmarked"]:
            line += f", {counts['unmarked']} unmarked"
        if said:
            print(line)


if __name__ == "__main__":  # a process that is spawned reads this file, too
    main()
