"""`.ci/refresh` stores a notebook when its words change, not when its timings do.

Unless it is forced; and a report stores nothing.
"""

import json
import os
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def refresh():
    environment = dict(os.environ)
    loader = SourceFileLoader("refresh", str(Path(__file__).with_name("refresh")))
    module = module_from_spec(spec_from_loader("refresh", loader))
    loader.exec_module(module)
    os.environ.update(environment)
    return module


def notebook(output, *tags):
    """Return the text of a notebook with one cell and this output."""
    cell = {"cell_type": "code", "metadata": {"tags": list(tags)}, "outputs": [output]}
    return json.dumps({"cells": [cell | {"id": "train", "source": ""}]})


def printed(text):
    return {"output_type": "stream", "text": text}


def shown(html):
    return {"output_type": "display_data", "data": {"text/html": [html]}}


IGNORED = "nbval-ignore-output"


@pytest.mark.parametrize(
    "before, after",
    [
        (printed("3.2 s, 1e-05"), printed("-14 s, 2.5e+03")),
        (shown("<b>0.31</b>"), shown("<b>.7</b>")),
    ],
)
def test_numbers_of_an_ignored_output_are_no_change(refresh, before, after):
    old, new = notebook(before, IGNORED), notebook(after, IGNORED)
    assert refresh.strict_part(old) == refresh.strict_part(new)
    assert refresh.strict_part(notebook(before)) != refresh.strict_part(notebook(after))


@pytest.mark.parametrize(
    "before, after",
    [
        (printed("3.2 seconds"), printed("3.2 s")),
        (shown("<b>0.31</b>"), shown("<i>0.31</i>")),
        (printed("3"), {"output_type": "display_data", "data": {"image/png": "A"}}),
    ],
)
def test_words_of_an_ignored_output_are_a_change(refresh, before, after):
    old, new = notebook(before, IGNORED), notebook(after, IGNORED)
    assert refresh.strict_part(old) != refresh.strict_part(new)


@pytest.fixture
def refreshed(refresh, tmp_path, monkeypatch):
    """Returns what happens to a notebook, and the text that it has afterwards."""

    def after(stored, fresh, option=None):
        path = tmp_path / "01_a.ipynb"
        path.write_text(stored, encoding="utf-8")
        monkeypatch.setattr(refresh, "run", lambda stored, folder: fresh)
        return refresh.refresh(path, option), path.read_text(encoding="utf-8")

    return after


OLD, NEW = (notebook(printed(text), IGNORED) for text in ("3.2 s", "9.9 s"))


def test_forced_it_stores_the_numbers_too(refreshed):
    assert refreshed(OLD, NEW) == ("unchanged", OLD)
    assert refreshed(OLD, NEW, "--force") == ("written", NEW)
    assert refreshed(OLD, OLD, "--force") == ("unchanged", OLD)


def test_a_report_names_the_cell_and_stores_nothing(refreshed):
    said = "differs\n  cell train: 3.2 is now 9.9, of 1 numbers"
    assert refreshed(OLD, NEW, "--report") == (said, OLD)
    assert refreshed(OLD, OLD, "--report") == ("within the margins", OLD)


@pytest.mark.parametrize("options", [["--all"], ["--force", "--report"]])
def test_an_unknown_option_is_refused(refresh, options):
    with pytest.raises(SystemExit, match="usage"):
        refresh.main(options)


def test_what_progress_prints_is_not_kept(refresh):
    book = json.loads(notebook(printed("0 of 39 solved."), IGNORED))
    book["cells"][0] |= {"source": ["progress()"], "execution_count": 7}
    (cell,) = refresh.normalised(book)["cells"]
    assert (cell["outputs"], cell["execution_count"]) == ([], 7)
    book["cells"][0] |= {"source": ["train()"], "outputs": [printed("0.5")]}
    assert refresh.normalised(book)["cells"][0]["outputs"]
