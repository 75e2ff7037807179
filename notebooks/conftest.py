"""Makes plain `pytest` strict on notebooks, and sets the one environment they run in.

`.ci/refresh` imports this module for the same environment, so what is stored and what
is tested are produced alike.
"""

import logging
import os
import shutil
import tempfile

import house
import matplotlib
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models are slower on more threads
os.environ.update(
    TQDM_DISABLE="1",  # progress bars are for the reader, not for stored outputs
    HF_HUB_OFFLINE="1",  # whatever a notebook needs must already be here
    TRANSFORMERS_OFFLINE="1",
    PYTHONHASHSEED="0",
)
os.environ.pop("MPLBACKEND", None)  # kernels then choose the inline backend

# What the developer solved at home must not show: every notebook finds nothing solved.
PROGRESS = tempfile.TemporaryDirectory(prefix="course-progress-")
os.environ["COURSE_PROGRESS_DIR"] = os.path.join(PROGRESS.name, "progress")


def forget_progress():
    """Empty the folder of the solved answers, before a kernel starts."""
    shutil.rmtree(os.environ["COURSE_PROGRESS_DIR"], ignore_errors=True)


# Build matplotlib's font cache here, or the first kernel would announce it on stderr.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
import matplotlib.font_manager  # noqa: E402

matplotlib.use("Agg")  # in this process only: plain tests open no window


NOTEBOOK = pytest.StashKey()  # the one whose cells are running


class HouseRules(pytest.File):
    """One test a notebook: nbval alone would pass a notebook without any output."""

    def collect(self):
        yield HouseRule.from_parent(self, name="house rules")


class HouseRule(pytest.Item):
    def runtest(self):
        if found := house.findings(self.path):
            pytest.fail("\n".join(found), pytrace=False)

    def reportinfo(self):
        return self.path, 0, f"{self.path.name}: house rules"


def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".ipynb":
        return HouseRules.from_parent(parent, path=file_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Runs before nbval starts the kernel of a notebook's first cell."""
    first = item.config.stash.get(NOTEBOOK, None) != item.path
    item.config.stash[NOTEBOOK] = item.path
    if first:
        forget_progress()


def pytest_itemcollected(item):
    if hasattr(item, "output_timeout"):  # nbval waits only 5 s for a cell's output
        item.output_timeout = 300
        if item.path.name.startswith(("10_", "11_")):  # they need the model
            from utils.tests.helpers import missing_smollm2

            if missing := missing_smollm2():
                item.add_marker(pytest.mark.skip(reason=missing))
