"""What .ci/refresh calls a change, and what its report calls beyond the margins."""

import base64
import io
import json
import os
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

IGNORED = "nbval-ignore-output"
TEXT = {"cell_type": "markdown", "metadata": {}, "source": "So."}


@pytest.fixture(scope="module")
def refresh():
    environment = dict(os.environ)
    loader = SourceFileLoader("refresh", str(Path(__file__).with_name("refresh")))
    module = module_from_spec(spec_from_loader("refresh", loader))
    loader.exec_module(module)
    os.environ.update(environment)
    return module


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
    (
        shown(text_html="<b>0.31</b>"),
        shown(text_html="<b>.7</b>"),
        False,
        "0.31 is now",
    ),
    (shown(text_html="<b>1</b>"), shown(text_html="<i>1</i>"), True, "other words"),
    (shown(text_plain="2.0 s"), shown(text_plain="4.0 s"), False, "2.0 is now 4.0"),
    (picture(100), picture(101), False, None),
    (picture(100), picture(105), False, "a picture differs by 0.020"),
    (picture(100), picture(100, width=7), False, "other pictures"),
    (picture(0, mode="RGBA"), picture(255), False, None),  # transparent is white
    ("3", picture(1), True, "other pictures"),
]


@pytest.mark.parametrize("old, new, words, reported", TABLE)
def test_what_is_a_change_and_what_is_reported(refresh, old, new, words, reported):
    old, new = (printed(o) if isinstance(o, str) else o for o in (old, new))
    before, after = notebook(old), notebook(new)
    assert (refresh.strict_part(before) != refresh.strict_part(after)) == words
    said = refresh.report(before, after)
    expected = (
        f"differs\n  cell train: {reported}" if reported else "within the margins"
    )
    assert said.startswith(expected) and (reported or said == expected)
    compared = [notebook(output, tags=()) for output in (old, new)]  # by nbval
    changed = refresh.strict_part(compared[0]) != refresh.strict_part(compared[1])
    assert changed == (old != new)
    said = refresh.report(*compared)
    assert (said != "within the margins") == ("picture" in (reported or ""))


def test_what_happens_to_the_file(refresh, tmp_path, monkeypatch):
    old, new = notebook(printed("3.2 s")), notebook(printed("9.9 s"))
    path = tmp_path / "01_a.ipynb"

    def after(fresh, option=None):
        path.write_text(old, encoding="utf-8")
        monkeypatch.setattr(refresh, "run", lambda stored, folder: fresh)
        return refresh.refresh(path, option), path.read_text(encoding="utf-8")

    assert after(new) == ("unchanged", old)
    assert after(new, "--force") == ("written", new)
    assert after(old, "--force") == ("unchanged", old)
    assert after(new, "--report") == ("differs\n  cell train: 3.2 is now 9.9", old)
    assert after(notebook(printed("3.2 min")))[0] == "written"
    for options in (["--all"], ["--force", "--report"]):
        with pytest.raises(SystemExit, match="usage"):
            refresh.main(options)


def test_what_is_normalised(refresh):
    book = json.loads(notebook(printed("0 of 39 solved."), source=["progress()"]))
    assert refresh.normalised(book)["cells"][1]["outputs"] == []
    book = json.loads(notebook(printed("0.5"), source="# @title Draw: a map\ndraw()"))
    book["cells"][1]["metadata"]["execution"] = {"started": "now"}
    text, cell = refresh.normalised(book | {"metadata": {"a": 1}})["cells"]
    assert (text["id"], cell["execution_count"]) == ("cell-00", 7)
    assert cell["outputs"] and cell["metadata"] == {
        **refresh.house.FOLDED,
        "tags": ["hide-input", IGNORED],
    }


def test_a_picture_is_attached_as_it_is_drawn_and_no_other_stays(refresh):
    """The stored notebook is written for this alone."""
    before = json.loads(notebook())
    text = before["cells"][0]
    text["attachments"] = {"block.png": {"image/png": "old"}, "gone.png": {}}
    text["source"] = ["So.\n", "![Old](attachment:block.png) ![](attachment:no.png)"]
    after = refresh.normalised(json.loads(json.dumps(before)))
    drawings = refresh.house.DIAGRAMS
    alt = json.loads((drawings / "diagrams.json").read_text("utf-8"))["block"]
    source = f"So.\n![{alt}](attachment:block.png) ![](attachment:no.png)"
    (name, data), *others = after["cells"][0]["attachments"].items()
    assert after["cells"][0]["source"] == source and not others
    assert base64.b64decode(data["image/png"]) == (drawings / name).read_bytes()
    before, after = map(refresh.strict_part, map(json.dumps, (before, after)))
    assert before != after
    assert "attachments" not in after["cells"][1]
    before["cells"][0] |= {"attachments": {"gone.png": {}}, "source": "So."}
    assert "attachments" not in refresh.normalised(before)["cells"][0]
