"""Each test here starts with nothing solved, whatever its developer solved at home."""

import pytest
import torch

from utils import exercises
from utils.tests.exercises.helpers import Notebook

torch.set_num_threads(1)  # answers are tried on small tensors: slower on two


@pytest.fixture(autouse=True)
def progress_folder(tmp_path, monkeypatch):
    """Return an empty folder for solved answers, with a name that is hard to handle."""
    path = tmp_path / "Lösungen und mehr"
    monkeypatch.setenv("COURSE_PROGRESS_DIR", str(path))
    monkeypatch.setattr(exercises, "_status", {})
    return path


@pytest.fixture
def notebook():
    return Notebook()
