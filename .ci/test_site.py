"""Tests of .ci/site that need no Sphinx: sources, words, links, outside requests."""

import json
import re
import runpy
from types import SimpleNamespace
from xml.etree import ElementTree

import atlas
import house
import labs
import pytest

SITE = SimpleNamespace(**runpy.run_path(str(house.ROOT / ".ci" / "site")))
COLAB = (
    "https://colab.research.google.com/github/ada/heads/blob/main/notebooks/01_a.ipynb"
)
GITHUB = "https://github.com/ada/heads"


LESSONS = {
    f"notebooks/{path.name}": json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((house.ROOT / "notebooks").glob("*.ipynb"))
}
ATLAS = (house.ROOT / "assets/studies/roles.json").read_text(encoding="utf-8")
LABS = """# Labs

## Lab 1

| what | in class |
|---|---|
| {01 §1} | Talk. |
| {01 §2} {1.7} | Write. |

**For home.** {1.7}

## The end
"""


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
    known = "## What you now know\n\n| claim | how | section |\n|---|---|---|\n"
    known += "| A holds | proved | 1, 2 |\n| B holds | checked | 2, 3 |\n\n"
    terms = "## Words of this lesson\n\n- **query**: what it *looks for*.\n"
    terms += (
        "- **`key`**: how it is found ([code](../utils/a.py)).\n\n### References\n\n"
    )
    write(
        "notebooks/01_a.ipynb",
        markdown(f"# 01 A\n\n{badge} [next](02_b.ipynb#The-d_k,-once)"),
        code("# @title Draw: a map\ndraw()", tags=["x"], cellView="form"),
        code("draw()  # @title no\n"),
        markdown(f"A\n\n## 1 The one\n\n{'a ' * 400}"),
        markdown(
            "## 2 The $x$ two\n\n### Exercise 1.7 · Do\n\n*Difficulty 1 · 8 minutes"
        ),
        markdown(known + terms + "- **Ada**: a paper"),
    )
    (tmp_path / "assets" / "studies").mkdir(parents=True)
    (tmp_path / "assets" / "studies" / "roles.json").write_text(ATLAS)
    (tmp_path / ".ci" / "site_conf").mkdir(parents=True)
    (tmp_path / ".ci" / "site_conf" / "labs.md").write_text(LABS)
    (tmp_path / ".ci" / "site_conf" / "atlas.md").write_text("{encoder_table}")
    write("notebooks/02_b.ipynb", markdown("# 02 B"))
    write("notebooks/deeper/01_a.ipynb", markdown("# 01 A: deeper"))
    (tmp_path / "README.md").write_text(f"# Course\n[Colab]({COLAB})\n")
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
    pages = {"index.md", "words.md", "labs.md", "atlas.md"}
    assert files == notebooks | pages | {"assets/map.png"}
    index = (source / "index.md").read_text(encoding="utf-8")
    assert "\nnotebooks/01_a\nnotebooks/02_b\n```" in index
    first, fold, open_cell, *_, below = cells(source / "notebooks/01_a.ipynb")
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
    page = SITE.words(LESSONS, house.ROOT, "ada/heads")
    assert all(f"]({path})" in page for path in LESSONS)


def test_atlas(source):
    """The page has a row for each head, and its sentences fit the stored numbers."""
    table = (source / "atlas.md").read_text(encoding="utf-8").splitlines()
    assert len(table) == 2 + 2 + 72 and len({line.count("|") for line in table}) == 1
    assert table[2].startswith("| *uniform* | 0.07 |")
    assert "| 0.2 | **1.00** | 0.00 |" in table[6]
    plan = (house.ROOT / ".ci/site_conf/atlas.md").read_text(encoding="utf-8")
    page = atlas.page(plan, json.loads(ATLAS))
    assert page.count("\n| ") == 2 * 4 + 72 + 270 and "{" not in page
    assert "Of 72 heads: [CLS] 52, previous token 4," in page
    assert "Of 270 heads: first token 173, punctuation 13, induction 12," in page


def test_labs(source):
    page = (source / "labs.md").read_text(encoding="utf-8")
    path = "notebooks/01_a.ipynb"
    exercise = f"[exercise 1.7 · Do]({path}#exercise-17--do)"
    assert (
        page
        == f"""# Labs

## Lab 1

| minutes | what | in class |
|---|---|---|
| 0–4 | [01 §1 The one]({path}#1-the-one) | Talk. |
| 4–20 | [01 §2 The $x$ two]({path}#2-the--two)<br>{exercise} | Write. |
| 20–90 | | Questions, and what is for home. |

**For home.** {exercise}

**Hand in.** [01]({path}). Points: 1. For home: 16 minutes.

| what it shows | how we know, and under which conditions | section |
|---|---|---|
| A holds | proved | [01]({path}) §1, 2 |

## The end
"""
    )


PLAN = (house.ROOT / ".ci/site_conf/labs.md").read_text(encoding="utf-8")


def test_the_labs_name_what_the_lessons_have():
    _, *six = labs.page(PLAN, LESSONS).split("\n## Lab ")
    assert len(six) == 6
    points = [int(lab.split(" Points: ")[1].split(".")[0]) for lab in six]
    assert points == [3, 6, 6, 3, 5, 3]
    both = r"\*\*Hand in\.\*\* \[02\]\(notebooks/02_\w+\.ipynb\), \[03\]\(notebooks/03_"
    assert re.search(both, six[1])
    for lab in six:
        assert "–90 | | Questions" in lab and lab.split(labs.CLAIMS)[1].count("\n") > 4


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("{01 §5}", "{01 §11}", "{01 §11} is in no lesson"),
        ("{1.2}", "{1.9}", "{1.9} is in no lesson"),
        ("{02 §7} {2.2}", "{02 §7} {2.2} {2.4} {2.1}", "Lab 2.*no time for questions"),
    ],
)
def test_a_lab_that_the_lessons_do_not_have(old, new, message):
    assert old in PLAN
    with pytest.raises(SystemExit, match=message):
        labs.page(PLAN.replace(old, new, 1), LESSONS)


@pytest.mark.parametrize(
    "link, on_the_site",
    [
        ("https://x.org/a.py", "https://x.org/a.py"),
        ("../02_b.ipynb", "../02_b.ipynb"),
        ("#What-now%3F", "#what-now"),
        (r"#5-By-$\sqrt{d}$-now", "#5-by--now"),
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


ICON = '<link rel="icon" href="_static/icon.svg">'


@pytest.mark.parametrize(
    "page, missing",
    [
        (ICON, []),
        ("", ["index.html has no icon, so that browsers ask for /favicon.ico"]),
        (f'{ICON}<img src="a%20b.png?v=1"><a href="#top"><a href="sub/">', []),
        (f'{ICON}<img alt="" src="b.png">', ["index.html asks for b.png"]),
        (f'{ICON}<a href="sub/none.html#top">', ["index.html asks for sub/none.html"]),
        (f'{ICON}<a href="https://a.org/b"><img src="data:image/png;a//b">', []),
        (f'{ICON}<a href="mailto:a@b.org"><img src="//a.org/b.png">', []),
        (f"{ICON}<style>a {{ background: url('b.png') }}</style>", ["asks for b.png"]),
    ],
)
def test_what_the_site_asks_of_itself_is_there(tmp_path, page, missing):
    (tmp_path / "_static" / "sub").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / "_static" / "icon.svg").touch()
    (tmp_path / "_static" / "macros.html").touch()  # a theme's template, no page
    (tmp_path / "_static" / "a.css").write_text("a { background: url(icon.svg) }")
    (tmp_path / "a b.png").touch()
    (tmp_path / "index.html").write_text(page)
    found = SITE.not_there(tmp_path)
    assert len(found) == len(missing)
    assert all(end in said for said, end in zip(found, missing))


def test_what_a_style_asks_for_is_there(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "a.css").write_text("a { background: url(icon.svg) }")
    (said,) = SITE.not_there(tmp_path)
    assert said == "_static/a.css asks for icon.svg, which is not there"


def test_the_site_has_an_icon():
    folder = house.ROOT / ".ci/site_conf"
    conf = runpy.run_path(str(folder / "conf.py"))
    ElementTree.parse(folder / conf["html_favicon"])
