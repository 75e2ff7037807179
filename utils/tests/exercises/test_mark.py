"""Submissions are marked each on its own, whatever one of them does."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from utils.exercises import mark
from utils.tests.exercises.helpers import solved

ROOT = Path(__file__).parents[3]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="its limits are Linux's")
COMMAND = """
from utils.exercises import mark
if __name__ == "__main__":
    mark.SECONDS = 10
    mark.main()
"""
SOFTMAX = "def softmax(scores):\n    BODY\n    return scores.softmax(-1)\n\n"
CALL = "check('1.4', softmax)\n"


def soft(body: str = "pass", call: str = CALL) -> str:
    """Return an answer cell for 1.4 whose function begins with this body."""
    return SOFTMAX.replace("BODY", body.replace("\n", "\n    ")) + call


def notebook(*cells: str) -> str:
    """Return a notebook whose stored outputs say that all is solved."""
    said = [{"output_type": "stream", "name": "stdout", "text": "1.4: solved."}]
    parts = [{"cell_type": "code", "outputs": said, "source": cell} for cell in cells]
    for part in parts:
        part["metadata"] = {"shows_broken": 0} if "shows" in part["source"] else None
        if part["source"].startswith("###"):
            part["cell_type"] = "markdown"
    return json.dumps({"nbformat": 4, "cells": parts})


NEVER = "import signal, time\nold = signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
PATCH = "import utils.exercises.compare as x\nx.unlike = lambda *_: ''\n"
NO_SCALE = " / query.shape[-1] ** 0.5", ""
HELPER = "when its cell is run alone, it raises NameError: name 'helper' is not def"
SUBMISSIONS = {  # name: (cells, what is said of 1.4, of 1.1, of the whole)
    "right": (["raise SystemError", soft(), solved("1.1")], "solved", "solved", ""),
    "wrong": ([solved("1.1", NO_SCALE)], "", "wrong: no scale", ""),
    "best": ([soft("return 1"), soft(), soft("return 1")], "solved", "", ""),
    "untouched": (
        ["def f(scores):\n    ...\ncheck('1.4', f)"], "untouched", "", ""),
    "magics": ([f"%%time\n%matplotlib inline\n{soft()}"], "solved", "", ""),
    "kernel": (
        [soft(call="for n in ['1.4']:\n    display(n)\n    check(n, softmax)\n"
                   "if get_ipython():\n    get_ipython().run_line_magic('time', '')")],
        "solved", "", ""),
    "helper": (["other = torch.softmax", "check('1.4', helper)"],
               f"wrong: {HELPER}", "", ""),
    "helpers": (
        ["import torch as t\ndef own(x):\n    return t.softmax(x, -1)\nx = 1 / 0",
         "check('1.4', own)", "def f(q, k, v, T=1):\n    return own(q @ k.mT / "
         "q.shape[-1] ** 0.5 / T) @ v\ncheck('1.1', f)"], "solved", "solved", ""),
    "crash": ([f"x = 1 / 0\n{soft()}", solved("1.1"), "def f(:\ncheck('1.2', f)"],
              "wrong: when its cell is run alone, it raises ZeroDivisionError",
              "solved", ""),
    "memory": ([soft("bytes(2**32)"), solved("1.1")],
               "wrong: Your function raised MemoryError", "solved", ""),
    "replaced": ([f"{soft(call='')}\ncheck = print\n{CALL}", solved("1.1")],
                 "wrong: its cell gives no function to check", "solved", ""),
    "patched": ([solved("1.1"), f"{PATCH}{soft()}", solved("1.2")], "unmarked",
                "unmarked", "it replaces `check`, or what `check` is made of, while "
                "marking 1.4"),
    "exit": ([soft("import os\nos._exit(0)")], "unmarked", "",
             "its process ended: exit code 0, while marking 1.4"),
    "abort": ([solved("1.1"), soft("import os\nos.abort()")], "unmarked", "solved",
              "its process ended: Aborted, while marking 1.4"),
    "network": ([soft("import socket\nsocket.create_connection(('127.0.0.1', 9))"),
                 "import os\nx = os.system('true')\n" + solved("1.1")],
                "wrong: Your function raised PermissionError: a submission may",
                "wrong: when its cell is run alone, it raises PermissionError", ""),
    "silent": ([f"# the course shows a mistake\n{soft()}"], "", "",
               'no cell calls check("N.M", ...)'),
    "own": (["check('1.4', answer('1.4'))", "check('1.1', answer('1.1'))"],
            "wrong: it calls answer(", "wrong: it calls answer(", ""),
    "twice": ([soft(call=f"{CALL}check('1.4', lambda x: x)"), "OFF = -1",
               "own = lambda x: x.softmax(OFF)", "def f(q, k, v, T=1):\n"
               "    return own(q @ k.mT / q.shape[-1] ** 0.5 / T) @ v\n"
               "%time check ('1.1', f)"], "solved", "solved", ""),
    "stars": (["from torch import *\nfrom utils.exercises import *\nK = {}",
               "K['d'] = -1\nEXERCISES['1.4']",
               "def f(x):\n    return softmax(x, K['d'])\ncheck('1.4', f)",
               "from utils.exercises import check as c", "def g(q, k, v, T=1):\n"
               "    return softmax(q @ k.mT / q.shape[-1] ** 0.5 / T, K['d']) @ v\n"
               "c('1.1', g)"], "solved", "solved", ""),
    "modules": (["import utils.exercises as ex", f"{soft(call='')}ex.{CALL}",
                 solved("1.1").replace("check", "ex.check")], "solved", "solved", ""),
    "interrupt": ([solved("1.1"), soft("raise KeyboardInterrupt")], "unmarked",
                  "solved", "its process ended: exit code 1, while marking 1.4"),
    "a loop": ([solved("1.1"), f"{NEVER}while True: time.sleep(1)\n{soft()}"],
              "unmarked", "solved", "it was stopped after 10 seconds, while marking"),
}  # fmt: skip


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """Mark all submissions with one call, as on a console that lacks some signs."""
    folder = tmp_path_factory.mktemp("Abgaben und mehr")
    for name, (cells, *_) in SUBMISSIONS.items():
        text = notebook(*cells)
        (folder / f"{name} Σ.ipynb").write_text(text, encoding="utf-8")
    (folder / "text.ipynb").write_text("[1, 2")
    (folder / "01.ipynb.txt").write_text("{}")
    (folder / "older.csv").touch()
    (folder / "._right.ipynb").touch()
    script = folder.parent / "command.py"  # which a fork server can read
    script.write_text(COMMAND)
    own = {"COURSE_PROGRESS_DIR": str(folder / "kept"), "PYTHONIOENCODING": "cp1252"}
    own |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, script, "mark", folder]
    command += ["--jobs", "2", "--csv", folder / "all.csv"]
    shown = {k: v for k, v in os.environ.items() if k != "TQDM_DISABLE"} | own
    done = subprocess.run(command, cwd=ROOT, env=shown, capture_output=True)
    assert not (folder / "kept").exists(), "the marker's own folder has an answer"
    with (folder / "all.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = {Path(row["submission"]).stem: row for row in csv.DictReader(file)}
    return rows, done


@LINUX
@pytest.mark.parametrize("name", SUBMISSIONS)
def test_what_is_said_of_a_submission(name, marked):
    _, *said = SUBMISSIONS[name]
    row = marked[0][f"{name} Σ"]
    for column, begins in zip(("1.4", "1.1", "problem"), said):
        assert row[column].startswith(begins) and bool(row[column]) == bool(begins), row
    assert int(row["solved"]) == said.count("solved")


@LINUX
def test_the_table_the_bar_and_what_was_left_out(marked):
    rows, done = marked
    out, err = done.stdout.decode("cp1252"), done.stderr.decode("cp1252")
    assert done.returncode == 0
    assert rows["text"]["problem"].startswith("it is no notebook of format 4")
    assert "1.1 wrong: no scale" in out and f"{len(rows)}/{len(rows)}" in err
    assert "1.1: 11 solved, 2 wrong: others, 1 unmarked, 1 wrong: no scale." in out
    assert "Not marked, because the name does not end in .ipynb, or begins" in out
    *_, last = out.splitlines()
    names = [Path(each).name for each in last.rstrip(".").split(": ")[1].split(", ")]
    assert names == ["._right.ipynb", "01.ipynb.txt", "older.csv"]


def test_an_old_number_is_known_by_its_title(tmp_path, monkeypatch):
    moved = {"1.1 Attention once": "1.4", "1.4 Softmax once": "1.1"}
    monkeypatch.setattr("utils.exercises.catalogue.renumbered", lambda: moved)
    path = tmp_path / "old.ipynb"
    headings = "### Exercise 1.1 · Attention once", "### Exercise 1.2 · New"
    path.write_text(notebook(*headings, "check('1.1', f)", "check('1.2', g)"))
    assert [name for name, *_ in mark.answer_cells(path)] == ["1.4", "1.2"]


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Return a folder with submissions, and a list of which `mark` was asked for."""
    monkeypatch.chdir(tmp_path)
    names = "class/b.ipynb class/a.ipynb class/a/deeper/a.ipynb class/a/._a.ipynb "
    names += "class/.ipynb_checkpoints/a.ipynb other/[1].ipynb empty/a.txt"
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    asked = []

    def fake(submissions, jobs):
        asked.extend(each.as_posix() for each in submissions)
        return [row_of(each.as_posix()) for each in submissions]

    monkeypatch.setattr(mark, "mark", fake)
    return tmp_path, asked


def row_of(submission: str) -> dict:
    verdicts = {"1.4": ("solved",) * 2, "1.5": ("wrong: its message", "wrong: others")}
    row = {"submission": submission, "exercises": verdicts}
    return row | {"seconds": 1.6, "problem": None}


FOUND = [
    ("class", "a.ipynb a/deeper/a.ipynb b.ipynb"),
    ("./class/b.ipynb class/a.ipynb class/b.ipynb", "b.ipynb a.ipynb"),
    ("other", "../other/[1].ipynb"),
]


@pytest.mark.parametrize(("arguments", "notebooks"), FOUND)
def test_a_folder_means_its_notebooks(arguments, notebooks, course):
    mark.main(["mark", *arguments.split()])
    found = [os.path.normpath(f"class/{each}") for each in notebooks.split()]
    assert sorted(course[1]) == sorted(Path(each).as_posix() for each in found)


BEFORE = """\
submission,1.2,points,1.4,solved,seconds,problem\r
other.ipynb,solved,7,wrong: √d_k,1,0.5,by hand\r
class/a.ipynb,solved,9,wrong,1,0.5,it was stopped\r
"""
AFTER = """\
submission,1.2,points,1.4,solved,seconds,problem,1.5
other.ipynb,solved,7,wrong: √d_k,1,0.5,by hand,
class/a.ipynb,,9,solved,1,1.6,,wrong: its message
class/b.ipynb,,,solved,1,1.6,,wrong: its message
"""


def test_rows_of_other_notebooks_stay_in_the_file(course):
    file = course[0] / "marks.csv"
    file.write_bytes(BEFORE.encode())  # without a mark for Excel, as an editor saves it
    for _ in range(2):
        mark.main(["mark", *"class/a.ipynb class/b.ipynb --csv marks.csv".split()])
        text = file.read_bytes().decode("utf-8-sig").replace("\r", "")
        assert text.replace("\\", "/") == AFTER
    assert file.read_bytes().startswith(b"\xef\xbb\xbf")
    mark.main(["mark", "class/b.ipynb", "--csv", "new.csv"])
    columns, *rest = (course[0] / "new.csv").read_text("utf-8-sig").splitlines()
    assert columns == "submission,1.4,1.5,solved,seconds,problem" and len(rest) == 1


NO_TABLE = {
    "a notebook": notebook(soft()).encode(),
    "other names": b"student,1.4,solved,seconds,problem\n",
    "semicolons": b"submission;1.4;solved;seconds;problem\n",
    "not UTF-8": b"submission,solved,seconds,problem\nZo\xeb.ipynb,1,0.5,\n",
}


@pytest.mark.parametrize("kind", NO_TABLE)
def test_a_file_that_is_no_table_is_not_overwritten(kind, course):
    file = course[0] / "marks.csv"
    file.write_bytes(NO_TABLE[kind])
    with pytest.raises((SystemExit, UnicodeDecodeError), match="no table|utf-8"):
        mark.main(["mark", "class", "--csv", "marks.csv"])
    assert not course[1] and file.read_bytes() == NO_TABLE[kind]


MISUSE = [
    ("", "the following arguments are required: submissions"),
    ("none.ipynb .", "there is no none.ipynb"),
    (".", "there is no notebook (.ipynb)"),
]


@pytest.mark.parametrize(("arguments", "says"), MISUSE)
def test_misuse_is_explained(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        mark.main(["mark", *arguments.split()])
    assert says in capsys.readouterr().err
