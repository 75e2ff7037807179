"""`.ci/refresh` stores a notebook when its words change, not when its timings do."""

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
    return json.dumps({"cells": [cell]})


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
