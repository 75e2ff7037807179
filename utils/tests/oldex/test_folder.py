"""The folder of what is solved, progress and forget, and several kernels at once."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import platformdirs
import pytest
import torch
from nbclient import NotebookClient
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from utils import oldex as exercises
from utils.oldex import EXERCISES, answer, check, forget, kept, progress
from utils.tests.oldex.test_kept import (
    HEAD,
    HEADER,
    SOFTMAX,
    assert_own,
    is_reference,
)

ROOT = Path(__file__).parents[3]


# --- what the folder may be -------------------------------------------------------


def denied(*args, **kwargs):
    raise PermissionError(13, "Permission denied", "/home/somebody")


@pytest.mark.parametrize("where", ["mkdir", "mkstemp", "replace"])
def test_a_folder_that_cannot_be_written(
    where, notebook, progress_folder, monkeypatch, capsys
):
    kept.write("1.2", "title", "ANSWER = len")  # makes the key and the folder
    owner = {"mkdir": Path, "mkstemp": kept.tempfile, "replace": kept.os}[where]
    monkeypatch.setattr(owner, where, denied)
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert "It is not kept: 1.1.py in your folder: Permission denied." in said
    left = [path.name for path in progress_folder.iterdir()]
    assert left == ["1.2.py"], "half a file stays behind"


def test_a_file_where_the_folder_should_be(progress_folder, notebook, capsys):
    progress_folder.write_text("a file")
    notebook.run(SOFTMAX)
    assert "It is not kept: 1.1.py in your folder: Not a dir" in capsys.readouterr().out
    assert is_reference("1.1", capsys)[0]
    forget()
    progress()
    assert "What is kept cannot be read" in capsys.readouterr().out


def test_a_folder_in_the_place_of_a_file(progress_folder, capsys):
    (progress_folder / "1.1.py").mkdir(parents=True)
    reference, said = is_reference("1.1", capsys)
    assert reference and "1.1.py in your folder is not a file" in said


@pytest.mark.parametrize("platform", [Unix, MacOS])
def test_the_folder_of_each_platform(platform, monkeypatch, tmp_path):
    monkeypatch.setattr(platformdirs, "PlatformDirs", platform)
    for name in ("COURSE_PROGRESS_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    home = {Unix: ".local/share", MacOS: "Library/Application Support"}[platform]
    assert exercises.folder() == tmp_path / home / "attention-head-by-head"
    monkeypatch.setenv("COURSE_PROGRESS_DIR", "~/my course")
    assert exercises.folder() == tmp_path / "my course"


def test_no_home(monkeypatch, tmp_path, notebook, capsys):
    monkeypatch.setenv("COURSE_PROGRESS_DIR", "~nobody-of-this-name/course")
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert "It is not kept: you have no home folder; set COURSE_PROGRESS_DIR." in said
    assert is_reference("1.1", capsys)[0]
    monkeypatch.setenv("COURSE_PROGRESS_DIR", str(tmp_path))
    monkeypatch.setattr(kept, "user_data_dir", lambda *_, **__: "~nobody-of-this-name/")
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert "It is not kept: you have no home folder; set HOME." in said


# --- progress and forget ----------------------------------------------------------


def test_progress_shows_the_whole_course(notebook, monkeypatch, capsys):
    progress()
    said = capsys.readouterr().out.splitlines()
    titles = {name: e.title for name, e in EXERCISES.items()}
    first = exercises.LESSONS[0].EXERCISES
    assert len(said) == len(exercises.LESSONS) + 1 and said[0].count("–") == len(first)
    place = "in notebooks/01_scaled_dot_product_attention.ipynb."
    next_one = f"Next: 1.1 {titles['1.1']}, {place}"
    assert said[-1] == f"0 of {len(EXERCISES)} solved. {next_one}"
    monkeypatch.setattr(exercises, "draw", lambda *_: None)
    notebook.run(SOFTMAX).run("check('1.2', lambda q, k, v: v)")
    notebook.run("check('1.3', lambda q, k, v, m: ...)")
    capsys.readouterr()
    progress()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Lesson 1  1.1 solved   1.2 not yet  1.3 –        1.")
    next_one = f"Next: 1.2 {titles['1.2']}, {place}"
    assert said[-1] == f"1 of {len(EXERCISES)} solved. {next_one}"
    deeper = [name for name in EXERCISES if "/deeper/" in exercises._place(name)]
    assert deeper[:2] == ["1.4", "1.5"] and all(map(exercises._place, EXERCISES))
    assert exercises._place("1.9") == ""  # as where the notebooks are not there
    exercises._verdicts.clear()  # another day, another kernel
    progress()
    assert "1.1 solved   1.2 –" in capsys.readouterr().out


def test_progress_when_all_is_solved(monkeypatch, capsys):
    monkeypatch.setattr(kept, "read", lambda name: "check(")
    progress()
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"{len(EXERCISES)} of {len(EXERCISES)} solved."
    assert max(map(len, said)) <= 88


def test_forget_removes_one_or_all_and_only_ours(notebook, progress_folder, capsys):
    notebook.run(SOFTMAX).run("check('1.3', F.scaled_dot_product_attention)")
    other = progress_folder / "notes.py"
    other.write_text(HEAD)
    forget("1.3")
    assert capsys.readouterr().out.endswith("Forgotten: 1.3.\n")
    assert {path.name for path in progress_folder.iterdir()} == {"1.1.py", "notes.py"}
    forget()
    assert capsys.readouterr().out == "Forgotten: 1.1.\n"
    assert list(progress_folder.iterdir()) == [other]
    assert is_reference("1.1", capsys)[0]
    progress()
    assert "0 of" in capsys.readouterr().out
    forget()
    assert capsys.readouterr().out == "Nothing was deleted.\n"


def test_misuse_is_explained():
    for function in (answer, forget):
        with pytest.raises(ValueError, match="no exercise '../../x'"):
            function("../../x")
        with pytest.raises(TypeError, match='is text: "7.1", not 7.1'):
            function(7.1)
    with pytest.raises(ValueError, match="no exercise '9.9'"):
        check("9.9", len)
    with pytest.raises(TypeError, match='is text: "7.1", not 7.1'):
        check(7.1, len)
    with pytest.raises(TypeError, match=r'write check\("1.1", softmax\)'):
        check("1.1", torch.zeros(2))


# --- several at once --------------------------------------------------------------

WRITER = """
from utils.oldex.kept import write
for _ in range(100):
    write("1.1", "softmax", "ANSWER = abs  # " + "x" * 9999 * {})
"""


def test_several_kernels_write_and_read_at_once(progress_folder):
    kept.write("1.2", "title", "ANSWER = len")  # makes the key
    commands = [[sys.executable, "-c", WRITER.format(n)] for n in (1, 2)]
    running = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    sizes = set()
    while any(process.poll() is None for process in running):
        if text := kept.read("1.1"):
            ast.parse(text)
            sizes.add(len(text))
            assert text.startswith(HEADER) and text.endswith("x\n"), "half a file"
    assert [process.returncode for process in running] == [0, 0] and len(sizes) == 2
    assert {path.name for path in progress_folder.iterdir()} == {"1.1.py", "1.2.py"}


def test_what_a_kernel_solves_another_process_uses(capsys):
    start = "import torch\nfrom utils.oldex import check, progress"
    helper = "def rows(x):\n    return x.sum(-1, keepdim=True)"
    cell = SOFTMAX.replace("weights.sum(dim=-1, keepdim=True)", "rows(weights)")
    said = kernel([start, helper, cell, f"%time\n{helper}\n{cell}", "progress()"])
    assert "It is not kept: it uses `rows` from another cell;" in said[2]
    assert said[3].endswith("Kept for later lessons.\n")
    assert said[4].startswith("Lesson 1  1.1 solved   1.2 –")
    assert_own("1.1", capsys)
    assert "def rows(x):" in kept.read("1.1")


def kernel(cells):
    """Return what the cells print in a kernel of their own."""
    book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    resources = {"metadata": {"path": str(ROOT)}}
    NotebookClient(book, timeout=120, resources=resources).execute()
    return ["".join(o.get("text", "") for o in cell.outputs) for cell in book.cells]


ALONE = """
import os, pathlib
folder = pathlib.Path(os.environ["COURSE_PROGRESS_DIR"])
print(folder.exists())
folder.mkdir()
"""


def test_every_notebook_is_tested_with_an_empty_folder(tmp_path, put):
    cell = nbformat.v4.new_code_cell(ALONE, execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="False\n")]
    for name in "ab":  # what the first one leaves, the second must not see
        book = nbformat.v4.new_notebook(cells=[cell])
        nbformat.write(book, tmp_path / f"{name}.ipynb")
    shutil.copy(ROOT / "notebooks" / "conftest.py", tmp_path)
    path = put(HEAD)  # what the developer solved
    options = ["--nbval", "--nbval-current-env", "-kCell", "-q", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".ci")}
    done = subprocess.run(
        [*command, "a.ipynb", "b.ipynb"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert path.exists()
