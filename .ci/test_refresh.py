"""What .ci/refresh calls a change, and what its report calls beyond the margins."""

import base64
import io
import json
import os
import runpy
from types import SimpleNamespace
from unittest.mock import patch

import house
import numpy as np
import pytest
from PIL import Image

with patch.dict(os.environ):  # it sets those of its kernels
    REFRESH = SimpleNamespace(**runpy.run_path(str(house.ROOT / ".ci" / "refresh")))

IGNORED = "nbval-ignore-output"
TEXT = {"cell_type": "markdown", "metadata": {}, "source": "So."}


def notebook(*outputs, tags=(IGNORED,), source="train()"):
    """Return the text of a notebook with one code cell and these outputs."""
    cell = {"cell_type": "code", "id": "train", "metadata": {"tags": list(tags)}}
    cell |= {"outputs": list(outputs), "source": source, "execution_count": 7}
    return json.dumps({"cells": [TEXT, cell]})


def printed(text):
    return {"output_type": "stream", "text": [text]}


def shown(**data):
    data = {mime.replace("_", "/"): value for mime, value in data.items()}
    return {"output_type": "display_data", "data": data}


def picture(value, height=4, width=6, mode="RGB"):
    """The output of a picture of one colour, from 0 (black) to 255 (white)."""
    shape = (height, width, len(mode))
    image = Image.fromarray(np.full(shape, value, dtype=np.uint8), mode)
    image.save(file := io.BytesIO(), format="png")
    return shown(image_png=base64.b64encode(file.getvalue()).decode())


TABLE = [  # the outputs before and after, whether words changed, what is reported
    ("0.50 s", "0.54 s", False, None),  # within a tenth
    ("0.01", "0.02", False, None),  # one in the last digit
    ("0.3", "0.39", False, None),
    ("5e-07", "6e-07", False, None),
    ("about 16,384 bytes.", "about 17,000 bytes.", False, None),
    ("from -3.2 to +0.4", "from -3.1 to +0.5", False, None),
    ("lesson 01, 1.5", "lesson 01, 1.5", False, None),
    ("0.50 s", "0.57 s", False, "0.50 is now 0.57"),
    ("0.50, 1", "0.44, 3", False, "0.50 is now 0.44 and 1 more"),
    ("16,384", "1,638", False, "16,384 is now 1,638"),
    ("+0.30", "-0.30", False, "+0.30 is now -0.30"),
    ("5e-07", "5e-06", False, "5e-07 is now 5e-06"),
    ("0.5 s", "0.5 min", True, "other words"),
    ("0.5", "0.5 0.5", True, "other words"),
    (shown(text_html="<b>0.3</b>"), shown(text_html="<b>.7</b>"), False, "0.3 is now"),
    (shown(text_html="<b>1</b>"), shown(text_html="<i>1</i>"), True, "other words"),
    (shown(text_plain="2.0 s"), shown(text_plain="4.0 s"), False, "2.0 is now 4.0"),
    (picture(100), picture(101), False, None),
    (picture(100), picture(105), False, "a picture differs by 0.020"),
    (picture(100), picture(100, width=7), False, "other pictures"),
    (picture(0, mode="RGBA"), picture(255), False, None),  # transparent is white
    ("3", picture(1), True, "other pictures"),
]


@pytest.mark.parametrize("old, new, words, reported", TABLE)
def test_what_is_a_change_and_what_is_reported(old, new, words, reported):
    old, new = (printed(o) if isinstance(o, str) else o for o in (old, new))
    said, changed = looked_at(notebook(old), notebook(new))
    assert changed == words
    if reported:
        assert said.startswith(f"differs\n  cell train: {reported}")
    else:
        assert said == "within the margins"
    said, changed = looked_at(notebook(old, tags=()), notebook(new, tags=()))
    assert changed == (old != new)  # nbval compares it
    assert (said != "within the margins") == ("picture" in (reported or ""))


def looked_at(old, new):
    """What the report says, and whether it is a change."""
    before, after = map(REFRESH.strict_part, (old, new))
    return REFRESH.report(old, new), before != after


def test_what_happens_to_the_file(tmp_path):
    old, new = notebook(printed("3.2 s")), notebook(printed("9.9 s"))
    path = tmp_path / "01_a.ipynb"

    def after(fresh, option=None):
        path.write_text(old, encoding="utf-8")
        fresh_one = {"run": lambda stored, folder: fresh}
        with patch.dict(REFRESH.refresh.__globals__, fresh_one):
            done = REFRESH.refresh(path, option)
        return done, path.read_text(encoding="utf-8")

    assert after(new) == ("unchanged", old)
    assert after(new, "--force") == ("written", new)
    assert after(old, "--force") == ("unchanged", old)
    assert after(new, "--report") == ("differs\n  cell train: 3.2 is now 9.9", old)
    assert after(notebook(printed("3.2 min")))[0] == "written"
    for options in (["--all"], ["--force", "--report"]):
        with pytest.raises(SystemExit, match="usage"):
            REFRESH.main(options)
