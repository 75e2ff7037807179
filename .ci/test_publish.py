"""Tests of .ci/publish: it changes addresses, and nothing else."""

import json
import runpy
import subprocess

import house
import pytest

PUBLISH = runpy.run_path(str(house.ROOT / ".ci" / "publish"))
HOST = "https://colab.research.google.com/github/"
SETUP = """import os
REPO_URL = os.environ.get("COURSE_REPO_URL", "https://github.com/OWNER/NAME")
assert "/OWNER/" not in REPO_URL"""
FIRST = f"é [![Colab]({HOST}OWNER/NAME/blob/main/notebooks/01_a.ipynb)]"
README = f"""git clone https://github.com/OWNER/NAME.git
[Colab]({HOST}OWNER/NAME/blob/main/notebooks/01_a.ipynb)
https://mybinder.org/v2/gh/OWNER/NAME/HEAD https://github.com/OWNER/NAME
https://github.com/pytorch/pytorch https://github.com/OWNER/NAMELESS
"""


@pytest.fixture
def course(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": FIRST.splitlines(keepends=True)},
        {"cell_type": "code", "source": SETUP.splitlines(keepends=True)},
        {"cell_type": "code", "source": "", "outputs": [{"text": FIRST + "!"}]},
    ]
    stored = json.dumps({"cells": cells}, indent=1, ensure_ascii=False) + "\n"
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_a.ipynb").write_bytes(stored.encode())
    (tmp_path / "README.md").write_bytes(README.encode())
    return tmp_path


def files(course):
    return [p.read_bytes().decode() for p in sorted(course.rglob("*.*")) if p.is_file()]


def test_publish(course):
    before = files(course)
    assert PUBLISH["publish"](course, "ada/attention", check=True)
    assert files(course) == before
    assert PUBLISH["publish"](course, "ada/attention") == ["01_a.ipynb", "README.md"]
    page, notebook = files(course)
    assert page == before[0].replace("OWNER/NAME", "ada/attention").replace(
        "ada/attentionLESS", "OWNER/NAMELESS"
    )
    # in the notebook: the default address and the badge, not the sentinel, not outputs
    assert notebook == before[1].replace("OWNER/NAME", "ada/attention", 2)
    assert r"\"/OWNER/\"" in notebook


def test_idempotent_and_repeatable(course):
    PUBLISH["publish"](course, "ada/attention")
    assert PUBLISH["publish"](course, "ada/attention") == []
    once = files(course)
    PUBLISH["publish"](course, "Bob-2/a.b_c")
    assert "ada" not in "".join(files(course))
    PUBLISH["publish"](course, "ada/attention")
    assert files(course) == once


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/ada/attention",
        "https://github.com/ada/attention.git",
        "https://token@github.com/ada/attention/",
        "git@github.com:ada/attention.git",
        "ssh://git@github.com/ada/attention.git",
    ],
)
def test_origin(tmp_path, url):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "remote", "add", "origin", url], check=True)
    assert PUBLISH["valid"](PUBLISH["origin"](tmp_path)) == "ada/attention"


def test_no_origin(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    with pytest.raises(SystemExit, match="OWNER/NAME"):
        PUBLISH["origin"](tmp_path)


@pytest.mark.parametrize("address", ["", "a", "a/b/c", "-a/b", "a/..", 'a/b"', "a b/c"])
def test_invalid(address):
    with pytest.raises(SystemExit, match="OWNER/NAME"):
        PUBLISH["valid"](address)
