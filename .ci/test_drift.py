"""Tests of what is reported of a run: what is beyond the margins, and nothing else."""

import base64
import io

import drift
import numpy as np
import pytest
from PIL import Image

IGNORED = {"tags": ["nbval-ignore-output"]}


def notebook(*outputs, **metadata):
    cell = {"cell_type": "code", "metadata": metadata, "outputs": list(outputs)}
    return {"cells": [{"cell_type": "markdown"}, cell]}


def printed(text):
    return {"output_type": "stream", "text": [text]}


def picture(value, height=4, width=6, mode="RGB"):
    """The output of a picture of one colour, from 0 (black) to 255 (white)."""
    shape = (height, width, len(mode))
    image = Image.fromarray(np.full(shape, value, dtype=np.uint8), mode)
    image.save(file := io.BytesIO(), format="png")
    png = base64.b64encode(file.getvalue()).decode()
    return {"output_type": "display_data", "data": {"image/png": png}}


def found(old, new, **metadata):
    both = notebook(*old, **metadata), notebook(*new, **metadata)
    return [said for _, said in drift.drifts(*both)]


@pytest.mark.parametrize(
    "old, new",
    [
        ("0.50 s", "0.54 s"),  # within a tenth
        ("0.01", "0.02"),  # one in the last digit
        ("5e-07", "6e-07"),
        ("about 16,384 bytes.", "about 17,000 bytes."),
        ("from -3.2 to +0.4", "from -3.1 to +0.5"),
        ("lesson 01, 1.5", "lesson 01, 1.5"),
    ],
)
def test_numbers_within_the_margin(old, new):
    assert found([printed(old)], [printed(new)], **IGNORED) == []


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("0.50 s", "0.57 s", "0.50 is now 0.57, of 1 numbers"),
        ("0.50, 1", "0.44, 3", "0.50 is now 0.44 and 1 more, of 2 numbers"),
        ("16,384", "1,638", "16,384 is now 1,638, of 1 numbers"),
        ("+0.30", "-0.30", "+0.30 is now -0.30, of 1 numbers"),
        ("5e-07", "5e-06", "5e-07 is now 5e-06, of 1 numbers"),
        ("0.5 s", "0.5 min", "other words"),
        ("0.5", "0.5 0.5", "other words"),
    ],
)
def test_numbers_beyond_the_margin(old, new, said):
    assert found([printed(old)], [printed(new)], **IGNORED) == [said]
    assert found([printed(old)], [printed(new)]) == []  # nbval compares it


def test_the_caption_of_a_picture_is_read():
    old, new = (
        [{"output_type": "display_data", "data": {"text/plain": text}}]
        for text in ("takes 2.0 s", "takes 4.0 s")
    )
    assert found(old, new, **IGNORED) == ["2.0 is now 4.0, of 1 numbers"]


@pytest.mark.parametrize(
    "new, said",
    [
        ([picture(101)], []),
        ([picture(105)], ["a picture differs by 0.020"]),
        ([picture(100, width=7)], ["a picture of (4, 6) pixels has now (4, 7)"]),
        ([], ["1 pictures are now 0"]),
    ],
)
def test_pictures_of_every_cell(new, said):
    assert found([picture(100)], new) == said
    assert found([picture(100)], new, **IGNORED) == said


def test_what_is_transparent_is_white():
    assert found([picture(0, mode="RGBA")], [picture(255)]) == []
