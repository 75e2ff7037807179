"""The set-up cell beside other people's files: it finds the course, or says why not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import house
import pytest

COURSE = ("notebooks/01_scaled_dot_product_attention.ipynb", "utils/viewer.js")
FOREIGN = ("utils/attention.py", "utils/__init__.py", "notebooks/train.ipynb")
FETCHED = "attention-head-by-head"
GIT = ["git", "-c", "user.name=ci", "-c", "user.email=ci@localhost"]
IMPORTS = "import sys; sys.path.insert(0, {!r}); import utils\n"
SHOW = "\nimport utils; print(os.getcwd(), utils.__file__, sep='\\n')"


def write(folder, *names):
    """Empty files in a folder; returns the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def published(tmp_path):
    """A repository with the files by which the set-up cell knows the course."""
    folder = write(tmp_path / "published", *COURSE, "utils/__init__.py")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "the course"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


def run(folder, before="", url="https://github.com/OWNER/NAME", **env):
    """Run the set-up cell in a folder; return the course's folder, and the last line.

    The last line is what the cell says, or the file of `utils` if it has found it.
    """
    env = os.environ | {"COURSE_REPO_URL": str(url), "PYTHONPATH": ""} | env
    done = subprocess.run(
        [sys.executable, "-c", before + house.SETUP_CELL + SHOW],
        **{"cwd": folder, "env": env, "capture_output": True, "text": True},
    )
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1]
    notebooks, utils = done.stdout.splitlines()
    return Path(notebooks).parent, utils


def test_the_course_is_found_from_each_of_its_folders():
    for place in (".", "notebooks", "notebooks/deeper", "utils"):
        root, utils = run(house.ROOT / place)
        assert root == house.ROOT and utils == str(house.ROOT / "utils/__init__.py")


@pytest.mark.parametrize(
    "beside",
    [FOREIGN, (*FOREIGN, COURSE[0]), ("utils.py",), ("utils/attention.py",), ()],
    ids=["package", "with a lesson", "module", "namespace", "nothing"],
)
def test_the_course_is_fetched_beside_what_is_not_the_course(
    tmp_path, published, beside
):
    here = write(tmp_path / "a project", *beside, "work/x")
    for place in (here, here / "work"):
        for _ in range(2):  # fetched, then found
            root, utils = run(place, url=published)
            assert root == place / FETCHED and utils == str(root / "utils/__init__.py")


@pytest.mark.parametrize(
    "there", [FOREIGN, (COURSE[0],), (COURSE[1],), ("x",)], ids=str
)
def test_another_folder_of_the_name_is_in_the_way(tmp_path, published, there):
    write(tmp_path / FETCHED, *there)
    _, said = run(tmp_path, url=published)
    assert f"{tmp_path / FETCHED} is not the whole course" in said


def test_a_file_of_the_name_is_in_the_way(tmp_path, published):
    write(tmp_path, FETCHED)
    assert "is not the whole course" in run(tmp_path, url=published)[1]


def test_an_address_of_something_else_is_said(tmp_path, published):
    shutil.rmtree(published / "utils")
    subprocess.run([*GIT, "commit", "-qam", "no course"], cwd=published, check=True)
    assert "is not the whole course" in run(tmp_path, url=published)[1]


def test_a_clone_that_fails_is_said(tmp_path):
    _, said = run(tmp_path, url=tmp_path / "nowhere")
    assert "git could not fetch the course" in said and "nowhere" in said
    _, said = run(tmp_path, url="https://github.com/OWNER/NAME")
    assert "set COURSE_REPO_URL" in said


def test_a_missing_git_is_said(tmp_path):
    _, said = run(tmp_path, url=tmp_path, PATH=str(tmp_path))
    assert "git could not fetch the course" in said and "not found" in said


@pytest.mark.parametrize(
    "there", ["utils/__init__.py", "utils.py", "utils/a.py"], ids=str
)
def test_another_utils_in_use_is_said(tmp_path, there):
    path = str(write(tmp_path, there))
    _, said = run(house.ROOT / "notebooks", IMPORTS.format(path))
    assert "another utils is in use" in said and "restart" in said
    assert there.partition("/")[0] in said
    _, utils = run(house.ROOT, PYTHONPATH=path)
    assert utils == str(house.ROOT / "utils/__init__.py")


def test_a_second_course_in_use_is_said(tmp_path, published):
    before = IMPORTS.format(str(published))
    assert f"{published}" in run(house.ROOT / "notebooks", before)[1]


def test_the_set_up_cell_runs_twice():
    root, _ = run(house.ROOT / "notebooks", house.SETUP_CELL + "\n")
    assert root == house.ROOT
