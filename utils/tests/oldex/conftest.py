"""Each test here starts with nothing solved, whatever its developer solved at home."""

import contextlib

import pytest
import torch

from utils import oldex as exercises
from utils.oldex import kept
from utils.tests.helpers import Notebook

torch.set_num_threads(1)  # answers are tried on small tensors: slower on two


@pytest.fixture(autouse=True)
def progress_folder(tmp_path, monkeypatch):
    """Return an empty folder for solved answers, with a name that is hard to handle.

    The user's other data, and with them the key, are elsewhere.
    """
    path = tmp_path / "Lösungen und mehr"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COURSE_PROGRESS_DIR", str(path))
    monkeypatch.setattr(exercises, "_verdicts", {})
    monkeypatch.setattr(exercises, "_not_kept", set())
    return path


@pytest.fixture
def notebook():
    return Notebook()


@pytest.fixture
def key_file(tmp_path):
    """Return where the key of this installation is, if a test may do harm to it."""
    path = kept._key_file()
    if tmp_path not in path.parents:
        pytest.skip("this platform does not read XDG_DATA_HOME")
    return path


@pytest.fixture
def put(progress_folder):
    """Put something into the folder as the answer to 1.1, and trust it, if asked to.

    Returns its path.
    """

    def written(content: str | bytes, trusted: bool = True):
        progress_folder.mkdir(parents=True, exist_ok=True)
        path = progress_folder / "1.1.py"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if trusted:
            with contextlib.suppress(kept.NotKept):
                kept.trust("1.1")
        return path

    return written
