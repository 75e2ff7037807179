"""Tests of .ci/publish: it changes addresses, and nothing else."""

import json
import runpy
import subprocess
from functools import partial

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
<https://OWNER.github.io/NAME/> https://OWNER.github.io/NAMELESS/
"""


@pytest.fixture
def course(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": FIRST.splitlines(keepends=True)},
        {"cell_type": "code", "source": SETUP.splitlines(keepends=True)},
        {"cell_type": "code", "source": "", "outputs": [{"text": FIRST + "!"}]},
    ]
    stored = json.dumps({"cells": cells}, indent=1, ensure_ascii=False) + "\n"
    (tmp_path / "notebooks" / "deeper").mkdir(parents=True)
    (tmp_path / "notebooks" / "01_a.ipynb").write_bytes(stored.encode())
    (tmp_path / "README.md").write_bytes(README.encode())
    return tmp_path


def files(course):
    return [p.read_bytes().decode() for p in sorted(course.rglob("*.*")) if p.is_file()]


def test_publish(course):
    publish, before = partial(PUBLISH["publish"], course), files(course)
    assert publish("ada/attention", check=True)
    assert files(course) == before
    assert publish("ada/attention") == ["01_a.ipynb", "README.md"]
    assert publish("ada/attention") == []
    page, notebook = once = files(course)
    expected = before[0]
    for old, new in (
        ("OWNER/NAME", "ada/attention"),
        ("OWNER.github.io/NAME", "ada.github.io/attention"),
        ("ada/attentionLESS", "OWNER/NAMELESS"),
        ("ada.github.io/attentionLESS", "OWNER.github.io/NAMELESS"),
    ):
        expected = expected.replace(old, new)
    assert page == expected
    # in the notebook: the default address and the badge, not the sentinel, not outputs
    assert notebook == before[1].replace("OWNER/NAME", "ada/attention", 2)
    assert r"\"/OWNER/\"" in notebook
    publish("Bob-2/a.b_c")
    assert "ada" not in "".join(files(course))
    publish("ada/attention")
    assert files(course) == once


def test_origin(tmp_path):
    git = ["git", "-C", tmp_path]
    subprocess.run([*git, "init", "-q"], check=True)
    with pytest.raises(SystemExit, match="OWNER/NAME"):
        PUBLISH["origin"](tmp_path)
    subprocess.run([*git, "remote", "add", "origin", "none"], check=True)
    for url in (
        "https://github.com/ada/attention",
        "https://token@github.com/ada/attention.git/",
        "git@github.com:ada/attention.git",
        "ssh://git@github.com/ada/attention.git",
    ):
        subprocess.run([*git, "remote", "set-url", "origin", url], check=True)
        assert PUBLISH["valid"](PUBLISH["origin"](tmp_path)) == "ada/attention"


@pytest.mark.parametrize("address", ["", "a", "a/b/c", "-a/b", "a/..", 'a/b"', "a b/c"])
def test_invalid(address):
    with pytest.raises(SystemExit, match="OWNER/NAME"):
        PUBLISH["valid"](address)
