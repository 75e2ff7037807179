"""What is solved stays: the cell of an answer goes to a file, and comes back."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from utils import exercises
from utils.exercises import (
    EXERCISES,
    answer,
    catalogue,
    check,
    forget,
    kept,
    progress,
    running,
)
from utils.exercises.engine import grade
from utils.tests.exercises.helpers import Notebook
from utils.tests.exercises.test_engine import alarm, sets_everything, settings

ROOT = Path(__file__).parents[3]
HEAD = f"{kept.MARK}1.1, {EXERCISES['1.1'].title}\n"
SOFTMAX = """
# Größe: Σ = 1
def softmax(scores):
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


check("1.1", softmax)
"""
WRONG = SOFTMAX.replace("scores.amax(dim=-1, keepdim=True)", "0")
REFERENCE = 'answer("1.1"): the reference; '


def comes_back(capsys) -> bool:
    """Whether answer("1.1") is the learner's own, which solves the exercise."""
    capsys.readouterr()
    function, said = answer("1.1"), capsys.readouterr().out
    own = function is not EXERCISES["1.1"].reference
    assert said.startswith(
        'answer("1.1"): your own, checked again.' if own else REFERENCE
    )
    return own and grade(EXERCISES["1.1"], function).solved


def test_the_cell_is_kept_as_it_stands(notebook, progress_folder, capsys):
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert (
        said.endswith("Kept for later lessons.\n") and str(progress_folder) not in said
    )
    (path,) = progress_folder.iterdir()
    assert path.name == "1.1-A-softmax-that-cannot-overflow.py"
    assert path.read_text(encoding="utf-8") == f"{HEAD}\n\n{SOFTMAX.strip()}\n"
    assert os.name != "posix" or path.stat().st_mode & 0o077 == 0
    assert comes_back(capsys)
    notebook.run(WRONG)
    assert "The answer that you solved earlier stays." in capsys.readouterr().out
    assert comes_back(capsys)
    progress()
    assert "1.1 solved" in capsys.readouterr().out
    forget("1.1")
    assert capsys.readouterr().out == "Forgotten: 1.1.\n" and not comes_back(capsys)
    assert not list(progress_folder.iterdir())


CELLS = [  # ways to write an answer, each kept and used again
    "from torch import nn\nclass S(nn.Module):\n    def forward(self, x):\n"
    "        return x.softmax(-1)\ncheck('1.1', S())",
    "%%time\n%matplotlib inline\nsoft = lambda x: x.softmax(-1)\ncheck('1.1', soft)",
    "def soft(x):\n    return x.softmax(-1)\nfor n in ['1.1']:\n    display(n)\n"
    "    check(n, soft)\nprint(of_another_cell)",
    "def soft(x):\n    return x.softmax(-1)\nif __name__ == '__main__':\n"
    "    get_ipython()\n    check('1.1', soft)",
    "plt.figure()\nx = plt.close()\ncheck('1.1', lambda x: F.softmax(x, -1))",
]


@pytest.mark.parametrize("cell", CELLS)
def test_written_in_many_ways(cell, capsys):
    kept.write(EXERCISES["1.1"], cell)
    assert comes_back(capsys)


NOT_KEPT = {  # cells that are solved and not kept, and why
    "helper = torch.softmax": "it uses `helper` from another cell; put it into the sa",
    "1 / 0": "when its cell is run alone, it raises ZeroDivisionError: division by ze",
    "exit()": "when its cell is run alone, it raises SystemExit",
}


@pytest.mark.parametrize("before", NOT_KEPT)
def test_what_cannot_be_kept_is_solved_all_the_same(before, notebook, capsys):
    cell = "f = helper if 'helper' in dir() else lambda s, _: s.softmax(-1)\n"
    notebook.run("helper = torch.softmax")
    cell = "check('1.1', lambda s: helper(s, -1))"
    if "helper" not in before:
        cell = f"x = {before} if alone else 0\ncheck('1.1', lambda s: s.softmax(-1))"
        notebook.names["alone"] = False
        cell = f"alone = 'alone' not in globals()\n{cell}"
    notebook.run(cell)
    said = capsys.readouterr().out
    assert f"on 24 inputs. It is not kept: {NOT_KEPT[before]}" in said
    progress()
    assert "1.1 solved" in capsys.readouterr().out
    assert not comes_back(capsys)


BAD = {  # what stands in the file, and why it is not used
    f"{HEAD}{WRONG}": "cannot be used: when its cell is run alone, it is not right",
    f"{HEAD}raise OSError('no')": "cannot be used: when its cell is run alone, it rais",
    f"{HEAD}def f(:": "cannot be used: when its cell is run alone, it raises Synta",
    f"{HEAD}x = 1": "yours cannot be used: its cell gives no function to check",
    f"{HEAD}f = answer('1.1')\ncheck('1.1', f)": 'it calls answer("1.1") itself',
    f"{HEAD}{'#' * 70000}": "yours cannot be used: 1.1.py is larger than 64 KiB",
    f"{HEAD}\udcff": "yours cannot be used: 1.1.py cannot be read (UnicodeDecodeError)",
    f"{kept.MARK}9.9, Another\n{SOFTMAX}": "1.1 is not solved yet",
    f"# mine\n{SOFTMAX}": "1.1 is not solved yet",
    "": "1.1 is not solved yet",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_file_costs_a_sentence_and_is_not_ours_to_delete(
    text, progress_folder, notebook, capsys
):
    progress_folder.mkdir()
    path = progress_folder / "1.1.py"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    path.chmod(0o600)
    assert not comes_back(capsys)
    answer("1.1")
    assert BAD[text] in capsys.readouterr().out
    notebook.run(SOFTMAX)
    assert comes_back(capsys)
    forget()
    assert path.exists() is (HEAD not in text)


def test_a_file_that_is_not_ours_stays(notebook, progress_folder, capsys):
    progress_folder.mkdir()
    kept.place(EXERCISES["1.1"]).write_text("mine")
    notebook.run(SOFTMAX)
    assert "was not written by this course" in capsys.readouterr().out
    kept.place(EXERCISES["1.1"]).unlink()
    kept.place(EXERCISES["1.1"]).mkdir()
    notebook.run(SOFTMAX)
    assert "It is not kept: " in capsys.readouterr().out
    assert len(list(progress_folder.iterdir())) == 1, "half a file is left"


OLDER = f"""{HEAD}# This file is code, and answer("1.1") runs it: `check` signed it
# signature {"0" * 64}
# solved 2026-01-01 12:00 +0100
# answer("1.1") reads this file and checks it again; forget("1.1") deletes it.

def softmax(s):\r
    return s.softmax(-1)\r


ANSWER = softmax
"""


def test_a_file_of_the_older_kind_comes_back(progress_folder, capsys):
    progress_folder.mkdir()
    (progress_folder / "1.1.py").write_bytes(b"\xef\xbb\xbf" + OLDER.encode())
    (progress_folder / "1.1.py").chmod(0o600)
    assert comes_back(capsys)
    forget()
    assert not list(progress_folder.iterdir())


def test_an_answer_is_found_after_the_exercises_were_numbered_anew(
    notebook, progress_folder, monkeypatch, capsys
):
    """1.1 and 1.2 change places, after both were solved, one in an older file."""
    notebook.run(SOFTMAX)
    old = f"{kept.MARK}1.2, {EXERCISES['1.2'].title}\n{EXERCISES['1.2'].solution}"
    (progress_folder / "1.2.py").write_text(f"{old}\ncheck('1.2', my_attention)")
    (progress_folder / "1.2.py").chmod(0o600)
    titles = {name: EXERCISES[name].title for name in ("1.1", "1.2")}
    moved = {f"1.1 {titles['1.1']}": "1.2", f"1.2 {titles['1.2']}": "1.1"}
    for module in (kept, catalogue):
        monkeypatch.setattr(module, "renumbered", lambda: moved)
    one, two = EXERCISES["1.1"], EXERCISES["1.2"]
    for exercise, was in ((one, "1.2"), (two, "1.1")):
        monkeypatch.setitem(exercise.__dict__, "title", titles[was])
    assert "my_attention" in kept.read(one) and "softmax" in kept.read(two)
    kept.write(two, "new")
    assert kept.read(two).endswith("new\n") and "my_attention" in kept.read(one)
    forget()
    assert not list(progress_folder.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_may_write_is_not_run(mode, notebook, progress_folder, capsys):
    notebook.run(SOFTMAX)
    (path,) = progress_folder.iterdir()
    path.write_text(f"{HEAD}open('ran', 'w').close()\n{SOFTMAX}")
    path.chmod(mode)
    assert not comes_back(capsys) and not Path("ran").exists()
    answer("1.1")
    assert "or others may write it, so it is not run" in capsys.readouterr().out
    progress()
    said = capsys.readouterr().out
    assert "What is kept of 1.1 is not used: 1.1-A-softmax" in said


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such owner")
def test_what_the_user_does_not_own_is_not_run(notebook, monkeypatch, capsys):
    notebook.run(SOFTMAX)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert not comes_back(capsys)


@pytest.mark.parametrize("kind", ["a file", "read only", "no home"])
def test_a_folder_that_cannot_be_used(
    kind, progress_folder, notebook, monkeypatch, capsys
):
    if kind == "a file":
        progress_folder.write_text("")
    elif kind == "read only":
        monkeypatch.setattr(kept.tempfile, "mkstemp", lambda *_: os.mkdir("/"))
    else:
        monkeypatch.setenv("COURSE_PROGRESS_DIR", "~nobody_at_all/kept")
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert "solved" in said and "It is not kept: " in said
    progress()
    forget()
    assert "1.1 solved" in capsys.readouterr().out


@alarm
def test_running_a_kept_cell_leaves_nothing_behind_and_ends(monkeypatch, capsys):
    monkeypatch.setattr(running, "LIMIT", 0.3)
    monkeypatch.setattr(running, "sets_everything", sets_everything, raising=False)
    begins = "from utils.exercises import running\nx = running.sets_everything(1)\n"
    before = settings()
    kept.write(EXERCISES["1.1"], f"{begins}{SOFTMAX}\nprint('seen')")
    assert comes_back(capsys) and "seen" not in capsys.readouterr().out
    after = settings()
    assert [k for k in before if before[k] != after[k]] == []
    kept.write(EXERCISES["1.1"], f"while True: pass\n{SOFTMAX}")
    assert not comes_back(capsys)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_progress_and_misuse(notebook, capsys):
    notebook.run("check('1.1', lambda x: x * 1)")
    capsys.readouterr()
    progress()
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("Lesson 1  1.1 not yet") and first.endswith("–")
    assert last.startswith(f"0 of {len(EXERCISES)} solved. Next: 1.1 A softmax")
    assert last.endswith("in notebooks/01_scaled_dot_product_attention.ipynb.")
    for error, call, says in (
        (TypeError, lambda: check(1.1, len), 'is text: "1.1", not 1.1'),
        (ValueError, lambda: check("1.9", len), "there is no exercise '1.9'"),
        (TypeError, lambda: check("1.1", 1), 'write check("1.1", softmax)'),
        (ValueError, lambda: answer(""), "there is no exercise ''"),
        (TypeError, lambda: forget(3), "is text"),
    ):
        with pytest.raises(error, match=says.replace("(", r"\(").replace(")", r"\)")):
            call()
    check("1.1", EXERCISES["1.1"].reference)
    assert "It is not kept: it is the course's own function." in capsys.readouterr().out


def test_what_a_kernel_solves_another_process_uses(capsys):
    Notebook().run(SOFTMAX)
    code = "from utils.exercises import answer; answer('1.1')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == 'answer("1.1"): your own, checked again.\n', done.stderr
    assert exercises.folder() == kept.folder()
