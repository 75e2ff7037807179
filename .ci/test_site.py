"""Tests of .ci/site that need no Sphinx: sources, words, links, outside requests."""

import json
import runpy
from types import SimpleNamespace

import house
import pytest

SITE = SimpleNamespace(**runpy.run_path(str(house.ROOT / ".ci" / "site")))
COLAB = (
    "https://colab.research.google.com/github/ada/heads/blob/main/notebooks/01_a.ipynb"
)
GITHUB = "https://github.com/ada/heads"


def markdown(source):
    return {"cell_type": "markdown", "id": "m", "metadata": {}, "source": source}


def code(source, **metadata):
    cell = {"cell_type": "code", "id": "c", "outputs": [], "execution_count": 1}
    return cell | {"metadata": metadata, "source": source}


@pytest.fixture
def course(tmp_path):
    """A repository of two lessons, one of them with a deeper notebook."""

    def write(name, *cells):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"cells": cells, "metadata": {}}), encoding="utf-8")

    badge = f"[![Open In Colab](https://colab.research.google.com/b.svg)]({COLAB})"
    terms = "## Words of this lesson\n\n- **query**: what it *looks for*.\n"
    terms += (
        "- **`key`**: how it is found ([code](../utils/a.py)).\n\n### References\n\n"
    )
    write(
        "notebooks/01_a.ipynb",
        markdown(f"# 01 A\n\n{badge} [next](02_b.ipynb#The-d_k,-once)"),
        code("# @title Draw: a map\ndraw()", tags=["x"], cellView="form"),
        code("draw()  # @title no\n"),
        markdown(terms + "- **Ada**: a paper"),
    )
    write("notebooks/02_b.ipynb", markdown("# 02 B"))
    write("notebooks/deeper/01_a.ipynb", markdown("# 01 A: deeper"))
    (tmp_path / "README.md").write_text(f"# Course\n[Colab]({COLAB})\n")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "map.png").write_bytes(b"png")
    (tmp_path / "assets" / "map.py").touch()
    (tmp_path / "utils").mkdir()
    return tmp_path


@pytest.fixture
def source(course):
    SITE.stage(course, course / "source")
    return course / "source"


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def test_stage(source):
    files = {p.relative_to(source).as_posix() for p in source.rglob("*.*")}
    notebooks = {f"notebooks/{name}.ipynb" for name in ("01_a", "02_b", "deeper/01_a")}
    assert files == notebooks | {"index.md", "words.md", "assets/map.png"}
    index = (source / "index.md").read_text(encoding="utf-8")
    assert "\nnotebooks/01_a\nnotebooks/02_b\n```" in index
    first, fold, open_cell, _, below = cells(source / "notebooks/01_a.ipynb")
    assert (
        f"[Open in Colab]({COLAB}) [next](02_b.ipynb#the-d_k-once)" in first["source"]
    )
    assert set(fold["metadata"]["tags"]) == {"x", "hide-input"}
    assert set(fold["metadata"]["mystnb"].values()) == {"Draw: a map"}
    assert fold["source"] == "draw()"
    assert open_cell == code("draw()  # @title no\n")
    assert "\ndeeper/01_a\n```" in below["source"]
    assert len(cells(source / "notebooks/02_b.ipynb")) == 1
    assert len(cells(source / "notebooks/deeper/01_a.ipynb")) == 1


def test_words(source, course):
    intro, page = (source / "words.md").read_text(encoding="utf-8").split("\n\n## K")
    assert intro.startswith("# Words\n") and "##" not in intro
    lesson = "[Lesson 01](notebooks/01_a.ipynb)"
    code = f"[code]({GITHUB}/blob/main/utils/a.py)"
    assert (
        page
        == f"""

- **`key`**: how it is found ({code}). {lesson}

## Q

- **query**: what it *looks for*. {lesson}
"""
    )
    assert "yet" in SITE.words({}, course, "ada/heads")
    wrong = {"cells": [markdown("## Words of this lesson\n- **key** how it is found")]}
    with pytest.raises(SystemExit, match="notebooks/03_c.ipynb.*one line"):
        SITE.words({"notebooks/03_c.ipynb": wrong}, course, "ada/heads")


def test_the_words_of_every_lesson_of_the_course_are_found():
    paths = sorted((house.ROOT / "notebooks").glob("*.ipynb"))
    lessons = {
        f"notebooks/{path.name}": json.loads(path.read_text(encoding="utf-8"))
        for path in paths
    }
    page = SITE.words(lessons, house.ROOT, "ada/heads")
    assert all(f"]({path})" in page for path in lessons)


@pytest.mark.parametrize(
    "link, on_the_site",
    [
        ("https://x.org/a.py", "https://x.org/a.py"),
        ("../02_b.ipynb", "../02_b.ipynb"),
        ("#What-now%3F", "#what-now"),
        ("../../README.md#the-package", "../../index.md#the-package"),
        ("../../assets/map.png", "../../assets/map.png"),
        ("../../assets/map.py", f"{GITHUB}/blob/main/assets/map.py"),
        ("../../utils/", f"{GITHUB}/tree/main/utils"),
    ],
)
def test_links(course, link, on_the_site):
    here = "notebooks/deeper/01_a.ipynb"
    for before in ("[a]", "![a `b`]", "$x$ [a]"):
        found = SITE.relinked(f"{before}({link})", here, here, course, "ada/heads")
        assert found == f"{before}({on_the_site})"
    for untouched in (f"`[a]({link})`", f"```\n[a]({link})\n```", f"$f[a]({link})$"):
        assert SITE.relinked(untouched, here, here, course, "ada/heads") == untouched


@pytest.mark.parametrize(
    "page, outside",
    [
        ('<script defer src="https://cdn.org/a.js"></script>', True),
        ('<img alt="a" src="//cdn.org/a.png">', True),
        ('<link rel="stylesheet" href="https://cdn.org/a.css">', True),
        ('<link href="https://cdn.org/a.css" rel="stylesheet">', True),
        ("a { background: url('https://cdn.org/a.woff') }", True),
        ("@import 'https://cdn.org/a.css';", True),
        ('<a href="https://cdn.org/a.js">src="https://cdn.org"</a>', False),
        ('<script src="_static/a.js"></script><img src="data:image/png;a//b">', False),
        ('<link rel="next" href="https://a.org/b.html">', False),
    ],
)
def test_outside(tmp_path, page, outside):
    (tmp_path / "index.html").write_text(page)
    assert bool(SITE.loaded_from_outside(tmp_path)) == outside
