"""The command `python -m utils.exercises mark SUBMISSION.ipynb…`, its table and CSV."""

import argparse
import csv
import json
import time
from pathlib import Path

from utils.exercises import EXERCISES
from utils.exercises.mark import mark

NARROW = 48  # characters of what was wrong, in the table; the CSV file has all


def main(arguments: list[str] | None = None) -> None:
    """Mark the submissions that a command line names."""
    parser, given = _understood(arguments)
    if given.one:
        print(json.dumps(mark([given.one], shown=False)[0]))
        return
    if given.csv:
        _demand_csv(parser, given.csv)
    begun = time.monotonic()
    rows = mark(given.submissions, given.jobs)
    _print_table(rows)
    print(f"{len(rows)} marked in {time.monotonic() - begun:.1f} seconds.")
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(_columns(rows))


def _understood(arguments: list[str] | None):
    """Return the parser, which can refuse, and what a command line says."""
    parser = argparse.ArgumentParser("python -m utils.exercises")
    commands = parser.add_subparsers(required=True, metavar="mark")
    command = commands.add_parser("mark", help="mark submitted notebooks")
    command.add_argument("submissions", nargs="*", metavar="SUBMISSION.ipynb")
    command.add_argument("--jobs", type=int, default=1, help="how many run at once")
    command.add_argument("--csv", type=Path, help="write the table there, too")
    command.add_argument("--one", metavar="FILE", help="print one line of JSON")
    given = parser.parse_args(arguments)
    if bool(given.submissions) == bool(given.one):
        command.error("give notebooks to mark, or else one after --one")
    if given.jobs < 1:
        command.error(f"--jobs is {given.jobs}; it must be at least 1")
    return command, given


def _demand_csv(parser: argparse.ArgumentParser, path: Path) -> None:
    """Refuse what cannot be written, before the marking, and what is a notebook."""
    if path.suffix != ".csv":
        parser.error(f"--csv is {str(path)!r}; its name must end in .csv")
    try:
        path.open("a").close()
    except OSError as error:
        parser.error(f"--csv is {str(path)!r}: {error.strerror}")


def _columns(rows: list[dict]) -> list[list]:
    """Return the rows of the CSV file: a column for each exercise that occurs."""
    names = [n for n in EXERCISES if any(n in row["exercises"] for row in rows)]
    table = [["submission", *names, "solved", "seconds", "problem"]]
    for row in rows:
        said = [_said(row["exercises"].get(name)) for name in names]
        ends = said.count("solved"), row["seconds"], row["problem"]
        table.append([row["submission"], *said, *ends])
    return table


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


if __name__ == "__main__":  # a process that is spawned reads this file, too
    main()
