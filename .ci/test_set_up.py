"""The set-up cell beside other people's files: it finds the course, or says why not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import house
import pytest

CELL = house.Notebook(house.notebooks()[0]).setup[1]
COURSE = ("notebooks/01_scaled_dot_product_attention.ipynb", "utils/viewer.js")
FOREIGN = ("utils/attention.py", "utils/__init__.py", "notebooks/train.ipynb")
FETCHED, UTILS = "attention-head-by-head", "utils/__init__.py"
GIT = ["git", "-c", "user.name=ci", "-c", "user.email=ci@localhost"]
IMPORTS = "import sys; sys.path.insert(0, {!r}); import utils\n"
SHOW = "\nimport utils; print(os.getcwd(), utils.__file__, sep='\\n')"
LOST = "is not the whole course"


def write(folder, *names):
    """Empty files in a folder; returns the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def published(tmp_path):
    """A repository with the files by which the set-up cell knows the course."""
    folder = write(tmp_path / "published", *COURSE, UTILS)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "the course"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


def run(folder, before="", url="https://github.com/OWNER/NAME", **env):
    """Run the set-up cell in a folder; return the course's folder, and the last line.

    The last line is what the cell says, or the file of `utils` if it has found it.
    """
    env = os.environ | {"COURSE_REPO_URL": str(url), "PYTHONPATH": ""} | env
    done = subprocess.run(
        [sys.executable, "-c", before + CELL + SHOW],
        **{"cwd": folder, "env": env, "capture_output": True, "text": True},
    )
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1]
    notebooks, utils = done.stdout.splitlines()
    return Path(notebooks).parent, utils


def test_the_course_is_found_from_each_of_its_folders_and_twice():
    found = house.ROOT, str(house.ROOT / UTILS)
    for place in (".", "notebooks", "notebooks/deeper", "utils"):
        assert run(house.ROOT / place) == found
    assert run(house.ROOT / "notebooks", CELL + "\n") == found


@pytest.mark.parametrize(
    "beside", [FOREIGN, (*FOREIGN, COURSE[0]), ("utils.py",), FOREIGN[:1], ()], ids=str
)
def test_the_course_is_fetched_beside_what_is_not_the_course(
    tmp_path, published, beside
):
    here = write(tmp_path / "a project", *beside, "work/x")
    for place in (here, here / "work"):
        for _ in range(2):  # fetched, then found
            root, utils = run(place, url=published)
            assert root == place / FETCHED and utils == str(root / UTILS)


@pytest.mark.parametrize(
    "there", [FOREIGN, COURSE[:1], COURSE[1:], ("x",), None], ids=str
)
def test_something_else_of_the_name_is_in_the_way(tmp_path, published, there):
    if there:
        write(tmp_path / FETCHED, *there)
    else:
        write(tmp_path, FETCHED)
    said = run(tmp_path, url=published)[1]
    assert f"{tmp_path / FETCHED} {LOST}" in said


def test_an_address_that_does_not_help_is_said(tmp_path, published):
    assert "set COURSE_REPO_URL" in run(tmp_path)[1]
    failed = "git could not fetch the course"
    said = run(tmp_path, url=tmp_path / "nowhere")[1]
    assert failed in said and "nowhere" in said
    said = run(tmp_path, url=published, PATH=str(tmp_path))[1]
    assert failed in said and "not found" in said
    shutil.rmtree(published / "utils")
    subprocess.run([*GIT, "commit", "-qam", "no course"], cwd=published, check=True)
    assert LOST in run(tmp_path, url=published)[1]


@pytest.mark.parametrize("there", [UTILS, "utils.py", "utils/a.py"], ids=str)
def test_another_utils_in_use_is_said(tmp_path, published, there):
    path = str(write(tmp_path, there))
    said = run(house.ROOT / "notebooks", IMPORTS.format(path))[1]
    assert "another utils is in use" in said and "restart" in said
    assert there.partition("/")[0] in said
    utils = run(house.ROOT, PYTHONPATH=path)[1]
    assert utils == str(house.ROOT / UTILS)
    before = IMPORTS.format(str(published))  # of a second course
    assert f"{published}" in run(house.ROOT / "notebooks", before)[1]
