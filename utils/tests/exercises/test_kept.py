"""What is solved stays: the cell of an answer goes to a file, and comes back."""

import copy
import os
import re
import signal
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

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
from utils.tests.exercises.helpers import solved
from utils.tests.exercises.test_engine import alarm, sets_everything, settings

posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
SOFT = EXERCISES["1.4"]
HEAD = f"{kept.MARK}1.4, {SOFT.title}\n"
SOFTMAX = """
# Größe: Σ = 1
def softmax(scores):
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


check("1.4", softmax)
"""
WRONG = SOFTMAX.replace("scores.amax(dim=-1, keepdim=True)", "0")


@pytest.fixture
def said(capsys):
    """Return a function that calls one, and returns what it prints."""

    def call(function, *arguments) -> str:
        capsys.readouterr()
        function(*arguments)
        return capsys.readouterr().out

    return call


@pytest.fixture
def put(progress_folder):
    """Return a function that writes a file into the folder, as its reader's own."""

    def write(text: str, name: str = "1.4.py", mode: int = 0o600) -> Path:
        progress_folder.mkdir(exist_ok=True)
        path = progress_folder / name
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(mode)
        return path

    return write


def comes_back(said) -> bool:
    """Whether answer("1.4") is the learner's own, which solves the exercise."""
    function, line = answer("1.4"), said(answer, "1.4")
    own = function is not SOFT.reference
    whose = "your own, checked again." if own else "the reference; "
    assert line.startswith(f'answer("1.4"): {whose}')
    return own and grade(SOFT, function).solved


def test_the_cell_is_kept_as_it_stands(notebook, progress_folder, said):
    line = said(notebook.run, SOFTMAX)
    assert line.endswith("Kept for later lessons.\n")
    assert str(progress_folder) not in line
    (path,) = progress_folder.iterdir()
    assert path.name == "1.4-A-softmax-that-cannot-overflow.py"
    assert path.read_text(encoding="utf-8") == f"{HEAD}\n\n{SOFTMAX.strip()}\n"
    assert os.name != "posix" or path.stat().st_mode & 0o077 == 0
    assert comes_back(said)
    line = said(notebook.run, WRONG)
    assert "The answer that you solved earlier stays." in line and comes_back(said)
    assert "1.4 solved" in said(progress)
    assert said(forget, "1.4") == "Forgotten: 1.4.\n" and not comes_back(said)
    assert not list(progress_folder.iterdir())
    assert said(forget) == "Nothing was deleted.\n"


CELLS = [  # ways to write an answer, each kept and used again
    "from torch import nn\nclass S(nn.Module):\n    def forward(self, x):\n"
    "        return x.softmax(-1)\ncheck('1.4', S())",
    "%%time\n%matplotlib inline\nsoft = lambda x: x.softmax(-1)\ncheck('1.4', soft)",
    "soft = lambda x: x.softmax(-1)\n%time check('1.4', soft)",
    "def soft(x):\n    return x.softmax(-1)\nfor n in ['1.4']:\n    display(n)\n"
    "    check(n, soft)\nprint(of_another_cell)",
    "def soft(x):\n    return x.softmax(-1)\nif __name__ == '__main__':\n"
    "    get_ipython()\n    check('1.4', soft)",
    "plt.figure()\nprint(1 / 0)\ncheck('1.4', lambda x: F.softmax(x, -1))",
    "check('1.4', lambda x: x)\ncheck('1.4', lambda x: F.softmax(x, -1))",
    "d = {}\nd.update(dim=-1)\ncheck('1.4', lambda x: x.softmax(**d))",
    "def main():\n    check('1.4', lambda x: x.softmax(-1))\nmain()",
]


@pytest.mark.parametrize("cell", CELLS)
def test_written_in_many_ways(cell, said):
    kept.write(SOFT, cell)
    assert comes_back(said) and not plt.get_fignums()


NOT_KEPT = {  # cells that are solved and not kept, and why
    "check('1.4', lambda s: helper(s, -1))":
        "when its cell is run alone, it is not right (Your function raised NameError: ",
    "x = 1 / 0 if 'helper' not in globals() else 0\ncheck('1.4', own)\nown = 1":
        "when its cell is run alone, it raises ZeroDivisionError: division by zero.",
    "x = exit() if 'helper' not in globals() else 0\ncheck('1.4', own)":
        "when its cell is run alone, it raises SystemExit: ",
    "x = EXERCISES['1.4'].reference\ncheck('1.4', x)":
        "when its cell is run alone, it raises NameError: name 'EXERCISES' is not",
    "check('1.4', own)\ndef own(s): return s.softmax(-1)":
        "when its cell is run alone, it raises NameError: name 'own' is not defined."
        " What it uses must stand in this cell.",
}  # fmt: skip


@pytest.mark.parametrize("cell", NOT_KEPT, ids=range(len(NOT_KEPT)))
def test_what_cannot_be_kept_is_solved_all_the_same(cell, notebook, said):
    notebook.run("helper = torch.softmax\nfrom utils.exercises import EXERCISES")
    notebook.run("own = lambda s: s.softmax(-1)")
    assert f"on 24 inputs. It is not kept: {NOT_KEPT[cell]}" in said(notebook.run, cell)
    assert "1.4 solved" in said(progress)
    assert said(answer, "1.4").endswith("the reference; 1.4 is not solved yet.\n")


ALONE = "the reference; when its cell is run alone, it"
BAD = {  # what stands in the file, and why it is not used
    f"{HEAD}{WRONG}": f"{ALONE} is not right (Your answer equals a kno",
    f"{HEAD}raise OSError('no')": f"{ALONE} raises OSError: no.",
    f"{HEAD}def f(:": f"{ALONE} raises SyntaxError: ",
    f"{HEAD}x = 1": "the reference; its cell gives no function to check",
    f"{HEAD}f = answer('1.4')\ncheck('1.4', f)": 'it calls answer("1.4") itself',
    f"{HEAD}\udcff": f"{ALONE} raises SyntaxError: ",
    f"{kept.MARK}9.9, Another\n{SOFTMAX}": "1.4 is not solved yet",
    f"# mine\n{SOFTMAX}": "1.4 is not solved yet",
    "": "1.4 is not solved yet",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_file_costs_a_sentence_and_is_not_ours_to_delete(
    text, put, notebook, said
):
    path = put(text)
    assert not comes_back(said) and BAD[text] in said(answer, "1.4")
    notebook.run(SOFTMAX)
    assert comes_back(said)
    forget()
    assert path.exists() is (HEAD not in text)


OLDER = f"""\ufeff{HEAD}# This file is code, and answer("1.4") runs it: `check` signed
# signature {"0" * 64}
# solved 2026-01-01 12:00 +0100
# answer("1.4") reads this file and checks it again; forget("1.4") deletes it.

def softmax(s):\r
    return s.softmax(-1)\r


ANSWER = softmax
"""


def test_a_file_of_the_older_kind_comes_back(progress_folder, put, said):
    put(OLDER)
    assert comes_back(said)
    forget()
    assert not list(progress_folder.iterdir())


def test_an_answer_is_found_after_the_exercises_were_numbered_anew(
    notebook, progress_folder, put, monkeypatch
):
    """1.4 and 1.1 change places, after both were solved, one in an older file."""
    notebook.run(SOFTMAX)
    two = EXERCISES["1.1"]
    put(f"{kept.MARK}1.1, {two.title}\n{two.solution}\ncheck('1.1', f)", "1.1.py")
    moved = {f"1.4 {SOFT.title}": "1.1", f"1.1 {two.title}": "1.4"}
    monkeypatch.setattr(catalogue, "renumbered", lambda: moved)
    titles = two.title, SOFT.title
    for exercise, title in zip((SOFT, two), titles):
        monkeypatch.setitem(exercise.__dict__, "title", title)
    assert "my_attention" in kept.read(SOFT) and "softmax" in kept.read(two)
    kept.write(two, "new")
    assert kept.read(two).endswith("new\n") and "my_attention" in kept.read(SOFT)
    forget()
    assert not list(progress_folder.iterdir())


@posix
@pytest.mark.parametrize("kind", [0o620, 0o602, 0o666, "another owner"])
def test_what_others_may_write_or_own_is_not_run(kind, put, monkeypatch, said):
    owner, mode = os.getuid(), kind if isinstance(kind, int) else 0o600
    put(f"{HEAD}open('ran', 'w').close()\n{SOFTMAX}", mode=mode)
    monkeypatch.setattr(os, "getuid", lambda: owner + isinstance(kind, str))
    assert not comes_back(said) and not Path("ran").exists()
    assert "or others may write it, so it is not run" in said(answer, "1.4")
    assert "1.4 –" in said(progress)


@pytest.mark.parametrize("kind", ["a file", "read only"])
def test_a_folder_that_cannot_be_used(
    kind, progress_folder, notebook, monkeypatch, said
):
    if kind == "a file":
        progress_folder.write_text("")
    else:
        monkeypatch.setattr(Path, "replace", lambda *_: os.mkdir("/"))
    line = said(notebook.run, SOFTMAX)
    assert "solved" in line and "It is not kept: " in line
    assert not list(progress_folder.glob("*.py")), "half a file is left"
    assert "1.4 solved" in said(progress)
    forget()


@alarm
def test_running_a_kept_cell_leaves_nothing_behind_and_ends(monkeypatch, said):
    monkeypatch.setattr(running, "sets_everything", sets_everything, raising=False)
    begins = "from utils.exercises import running\nx = running.sets_everything(1)\n"
    before = settings()
    kept.write(SOFT, f"{begins}{SOFTMAX}\ny = print('seen')")
    assert comes_back(said) and "seen" not in said(answer, "1.4")
    after = settings()
    assert [k for k in before if before[k] != after[k]] == []
    monkeypatch.setattr(running, "LIMIT", 0.3)
    kept.write(SOFT, f"while True: pass\n{SOFTMAX}")
    assert "its cell had not finished after 0.3 seconds" in said(answer, "1.4")
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_progress_and_misuse(notebook, said):
    notebook.run("check('1.1', lambda query, key, value: value * 1)")
    first, *_, last = said(progress).splitlines()
    assert first.startswith("Lesson 1  1.1 not yet") and first.endswith("–")
    core, deeper = first.split("|")  # counted apart
    assert "1.2 –" in core and "1.5 –" in deeper
    counts = re.fullmatch(
        r"0 of (\d+) solved in the cores. 0 of (\d+) solved in the deeper notebooks. "
        "Next: 1.1 Attention at .*",
        last,
    )
    many = sum(each.page.parent.name == "deeper" for each in EXERCISES.values())
    assert [*map(int, counts.groups())] == [len(EXERCISES) - many, many]
    assert last.endswith("in notebooks/01_scaled_dot_product_attention.ipynb.")
    for error, call, says in (
        (ValueError, lambda: check(1.4, len), "no exercise 1.4; there are ['1"),
        (ValueError, lambda: check("1.9", len), "there is no exercise '1.9'"),
        (TypeError, lambda: check("1.4", 1), 'itself: check("1.4", softmax)'),
        (ValueError, lambda: answer(""), "there is no exercise ''"),
        (ValueError, lambda: forget("1.9"), "there is no exercise '1.9'"),
    ):
        with pytest.raises(error, match=re.escape(says)):
            call()


def test_a_class_is_an_answer_too(notebook, capsys):
    """A stub is untouched; what is solved is kept, and its models can be copied."""
    notebook.run("\n".join(EXERCISES["6.1"].imports))
    begins, _, rest = solved("6.1").partition("        mask = ")
    notebook.run(f"{begins}        ...\n{rest[rest.index('check') :]}")
    assert "not attempted yet" in capsys.readouterr().out
    notebook.run(solved("6.1"))
    assert "Kept for later lessons." in capsys.readouterr().out
    model = copy.deepcopy(answer("6.1")(7, 8, 2, 1))
    assert "your own, checked again" in capsys.readouterr().out
    assert model(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 7)
