"""The stored studies can be repeated, and read back as they were written."""

import json
import os
import subprocess
import sys

import pytest
from studies import FOLDER, as_json, command_line, script_of


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["length", "language_model", "specialisation", "without_heads"]
)
def test_one_run_again_is_as_stored(name):
    """The treebank's texts are not in the repository: its test has a tiny one."""
    command = [sys.executable, FOLDER / f"{name}.py", "--check"]
    quiet = os.environ | {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stored" in done.stdout


def test_the_command_line_writes_checks_and_explains(tmp_path, capsys):
    path, found = tmp_path / "study.json", {"seeds": 1, "runs": [[1]]}

    def run(*arguments, misfits=lambda stored: []):
        return command_line(list(arguments), path, "usage: …", lambda: found, misfits)

    assert run("more") == run("--check", "more") == 2 and not path.exists()
    assert "usage" in capsys.readouterr().out
    assert run() == 0 and json.loads(path.read_text("utf-8")) == found
    assert run("--check", misfits=lambda stored: [f"{stored['seeds']} seed"]) == 1
    assert capsys.readouterr().out == "1 seed\n"
    assert run("--check") == 0 and "as stored" in capsys.readouterr().out


def test_a_script_leaves_nothing_behind():
    before = list(sys.path)
    assert script_of("length").STORED == FOLDER / "length.json"
    with pytest.raises(FileNotFoundError):
        script_of("nonsense")
    assert "study_length" not in sys.modules and sys.path == before
    assert "study_nonsense" not in sys.modules


def test_every_study_has_its_script():
    assert {p.stem for p in FOLDER.glob("*.json")} == {
        p.stem for p in FOLDER.glob("*.py") if p.stem != "studies"
    }


def test_a_study_is_written_whole_with_a_line_for_each_row():
    study = {"a": {"b": [1, 2.5]}, "rows": [{"x": 1}, {"y": None}]}
    text = as_json(study, "rows")
    assert json.loads(text) == study
    assert {'{"x": 1},', '{"y": null}'} <= set(text.splitlines())


@pytest.mark.parametrize(
    "name, rows",
    [
        ("length", "runs"),
        ("language_model", "runs"),
        ("specialisation", "runs"),
        ("treebank", "rows"),
        ("without_heads", "runs"),
    ],
)
def test_the_stored_bytes_are_those_that_are_written(name, rows):
    stored = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert as_json(json.loads(stored), rows) == stored
