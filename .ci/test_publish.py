"""Tests of .ci/publish: it changes addresses, and nothing else."""

import json
import runpy

import house
import pytest

PUBLISH = runpy.run_path(str(house.ROOT / ".ci" / "publish"))
HOST = "https://colab.research.google.com/github/"
SETUP = """import os
REPO_URL = os.environ.get("COURSE_REPO_URL", "https://github.com/OWNER/NAME")
assert "/OWNER/" not in REPO_URL
# pip install https://OWNER.github.io/NAME/head_by_head-1.0-py3-none-any.whl"""
FIRST = f"é [![Colab]({HOST}OWNER/NAME/blob/main/notebooks/01_a.ipynb)]"
PAGE = f"""git clone https://github.com/OWNER/NAME.git
[Colab]({HOST}OWNER/NAME/blob/main/notebooks/01_a.ipynb)
https://mybinder.org/v2/gh/OWNER/NAME/HEAD https://github.com/OWNER/NAME
https://github.com/pytorch/pytorch https://github.com/OWNER/NAMELESS
<https://OWNER.github.io/NAME/> https://OWNER.github.io/NAMELESS/
"""


def test_publish(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": FIRST.splitlines(keepends=True)},
        {"cell_type": "code", "source": SETUP.splitlines(keepends=True)},
    ]
    names = ["README.md", "assets/pages/class.md", "notebooks/01_a.ipynb"]
    stored = json.dumps({"cells": cells}, indent=1, ensure_ascii=False) + "\n"
    paths = [tmp_path / name for name in names]
    for path, text in zip(paths, (PAGE, PAGE, stored)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())

    def publish(address, **options):
        changed = PUBLISH["publish"](tmp_path, address, **options)
        return sorted(changed), [path.read_bytes().decode() for path in paths]

    before, all_of_them = [PAGE, PAGE, stored], ["01_a.ipynb", "README.md", "class.md"]
    assert publish("ada/attention", check=True) == (all_of_them, before)
    changed, once = publish("ada/attention")
    assert changed == all_of_them and publish("ada/attention") == ([], once)
    expected = PAGE
    for old, new in (
        ("OWNER/NAME", "ada/attention"),
        ("OWNER.github.io/NAME", "ada.github.io/attention"),
        ("ada/attentionLESS", "OWNER/NAMELESS"),
        ("ada.github.io/attentionLESS", "OWNER.github.io/NAMELESS"),
    ):
        expected = expected.replace(old, new)
    # in the notebook: the default address and the badge, not the sentinel
    notebook = stored.replace("OWNER/NAME", "ada/attention")
    notebook = notebook.replace("OWNER.github.io/NAME", "ada.github.io/attention")
    assert once == [expected, expected, notebook] and r"\"/OWNER/\"" in notebook
    assert "ada" not in "".join(publish("Bob-2/a.b_c")[1])
    assert publish("ada/attention")[1] == once


@pytest.mark.parametrize("address", ["", "a", "a/b/c", "-a/b", "a/..", 'a/b"', "a b/c"])
def test_invalid(address):
    with pytest.raises(SystemExit, match="OWNER/NAME"):
        PUBLISH["valid"](address)


def test_a_clone_address_names_the_repository():
    assert PUBLISH["valid"]("ada/attention.git") == "ada/attention"
