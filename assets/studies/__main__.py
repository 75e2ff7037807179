"""Runs a study and stores it, or repeats a part of it and compares.

python -m assets.studies NAME            all runs, into assets/studies/NAME.json
python -m assets.studies NAME --check    some runs again: are they as stored?
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module
from inspect import signature

import torch

from assets.studies import FOLDER, STUDIES, as_json, misfits, stored_of, whole


def main(arguments: list[str]) -> int:
    """Do what the command line says; return the exit code."""
    parser = ArgumentParser(
        "python -m assets.studies",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=STUDIES)
    parser.add_argument("files", nargs="*", help="of `treebank`: DEV TEST, in CoNLL-U")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_intermixed_args(arguments)
    script = import_module(f"assets.studies.{given.name}")
    if len(given.files) != len(signature(script.study).parameters):
        parser.error(f"these files do not fit.\n\n{given.name}: {script.__doc__}")
    if not given.check:
        text = as_json(whole(script, *given.files))
        (FOLDER / f"{given.name}.json").write_text(text, encoding="utf-8")
        return 0
    stored = stored_of(given.name)
    said = misfits(script, stored, script.again(stored, *given.files))
    print("\n".join(said) or "What was repeated is as stored.")
    return int(bool(said))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
