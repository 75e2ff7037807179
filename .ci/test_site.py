"""The web site without Sphinx: sources, links, words, labs, atlas, requests."""

import json
import re
import runpy
from types import SimpleNamespace
from xml.etree import ElementTree

import generated
import house
import pytest

SITE = SimpleNamespace(**runpy.run_path(str(house.ROOT / ".ci" / "site")))
GITHUB = SITE.repository()
CORES = {
    path.relative_to(house.ROOT).as_posix(): house.loaded(path.read_bytes())
    for path in house.notebooks()
    if path.parent.name != "deeper"
}
LABS = (house.ROOT / "assets/pages/labs.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    SITE.stage(folder)
    return folder


def test_every_page_and_notebook_is_staged_and_in_the_contents(source):
    files = {p.relative_to(source).as_posix() for p in source.rglob("*.*")}
    notebooks = {p.relative_to(house.ROOT).as_posix() for p in house.notebooks()}
    written = {p.relative_to(house.ROOT).as_posix() for p in house.pages()}
    pages = {"index.md", "words.md", *map(SITE.page_of, written)}
    assert {"labs.md", "atlas.md"} < pages
    assert {f for f in files if f.endswith((".md", ".ipynb"))} == notebooks | pages
    assert "assets/heads.png" in files
    deeper = {name for name in notebooks if "/deeper/" in name}
    index = (source / "index.md").read_text(encoding="utf-8")
    assert ":hidden:\n:caption: Lessons\n\nnotebooks/01_" in index
    shown = set(re.findall(r"^[\w/]+$", index, flags=re.M))
    listed = pages - {"index.md"} | notebooks - deeper
    assert shown == {re.sub(r"\.\w+$", "", name) for name in listed}
    for name in deeper:
        core = json.loads((source / name.replace("deeper/", "")).read_bytes())
        assert f"\ndeeper/{name[17:-6]}\n```" in core["cells"][-1]["source"]


def test_a_titled_cell_is_folded_and_the_badge_is_a_word(source):
    first, setup, *_ = json.loads((source / next(iter(CORES))).read_bytes())["cells"]
    assert "[Open in Colab](https://colab.research.google.com/" in first["source"]
    assert house.FOLDED_TAG in setup["metadata"]["tags"]
    (prompt,) = set(setup["metadata"]["mystnb"].values())
    assert prompt.startswith("Set-up: ") and setup["source"].startswith("import os")


HERE = "notebooks/deeper/01_a.ipynb"


@pytest.mark.parametrize(
    "link, on_the_site",
    [
        ("https://x.org/a.py", "https://x.org/a.py"),
        ("../02_b.ipynb#The-d_k,-once", "../02_b.ipynb#the-d_k-once"),
        ("#What-now%3F", "#what-now"),
        (r"#5-By-$\sqrt{d}$-now", "#5-by--now"),
        ("../../README.md#the-package", "../../index.md#the-package"),
        ("../../.github/CONTRIBUTING.md", "../../contributing.md"),
        ("../../assets/pages/labs.md", "../../labs.md"),
        ("../../assets/map.png", "../../assets/map.png"),
        ("../../assets/draw_heads.py", f"{GITHUB}/blob/main/assets/draw_heads.py"),
        ("../../utils/", f"{GITHUB}/tree/main/utils"),
    ],
)
def test_links(link, on_the_site):
    def moved(markdown):
        return SITE.relinked(markdown, HERE, HERE)

    for before in ("[a]", "![a `b`]", "$x$ [a]"):
        assert moved(f"{before}({link})") == f"{before}({on_the_site})"
    for untouched in (f"`[a]({link})`", f"```\n[a]({link})\n```", f"$f[a]({link})$"):
        assert moved(untouched) == untouched


def book(*texts):
    cells = [{"cell_type": "markdown", "metadata": {}, "source": s} for s in texts]
    return {"cells": cells}


def test_an_attached_picture_is_that_of_the_drawings():
    """MyST-NB shows no attachments."""
    made = book("![A map](attachment:block.png)", "`](attachment:`")
    made["cells"][0]["attachments"] = {"block.png": {}}
    text, other = SITE.staged(made, HERE, [])["cells"]
    assert text["source"] == "![A map](../../assets/diagrams/block.png)"
    assert "attachments" not in text and other["source"] == "`](attachment:`"


def test_words(source):
    two = "## Words of this lesson\n\n- **query**: it *looks*.\n- **`key`**: is found."
    lesson = {"notebooks/01_a.ipynb": book(two, "- **Ada**: a paper")}
    later = {"notebooks/02_b.ipynb": book(two.partition("\n- **`")[0])}
    later = json.loads(json.dumps(later).replace("it *looks*", "again"))
    made = generated.words(lesson | later, lambda line, path: f"{line} in {path[-10:]}")
    link = "in 01_a.ipynb [Lesson 01](notebooks/01_a.ipynb)\n"
    keys = f"\n## K\n\n- **`key`**: is found. {link}"
    again = f"- **query**: again. {link.replace('01', '02').replace('_a', '_b')}"
    assert made.endswith(f"{keys}\n## Q\n\n- **query**: it *looks*. {link}{again}")
    with pytest.raises(SystemExit, match="notebooks/03_c.ipynb.*one line"):
        wrong = book("## Words of this lesson\n- **key** is found")
        generated.words({"notebooks/03_c.ipynb": wrong}, None)
    page = (source / "words.md").read_text(encoding="utf-8")
    assert all(f"]({path})" in page for path in CORES)


LAB = """# Labs

## Lab 1

| what | in class |
|---|---|
| {01 §1} | Talk. |
| {01 §2} {1.7} | Write. |

**For home.** {1.7}

## The end
"""


def test_a_lab():
    known = "| A holds | proved | 1, 2 |\n| B holds | checked | 2, 3 |\n"
    lesson = book(
        f"A\n\n## 1 The one\n\n{'a ' * 390}",
        "## 2 The $x$ two\n\n### Exercise 1.7 · Do\n\n*Difficulty 1 · 8 minutes",
        f"## What you now know\n\n| claim | how | section |\n|---|---|---|\n{known}",
    )
    path = "notebooks/01_a.ipynb"
    exercise = f"[exercise 1.7 · Do](../../{path}#Exercise-1.7-·-Do)"
    made = f"""# Labs

## Lab 1

| minutes | what | in class |
|---|---|---|
| 0–4 | [01 §1 The one](../../{path}#1-The-one) | Talk. |
| 4–15 | [01 §2 The $x$ two](../../{path}#2-The-$x$-two)<br>{exercise} | Write. |
| 15–90 | | Questions, and what is for home. |

**For home.** {exercise}

**Hand in.** [01](../../{path}). Points: 1. For home: 11 minutes.

| what it shows | how we know, and under which conditions | section |
|---|---|---|
| A holds | proved | [01](../../{path}) §1, 2 |

## The end
"""
    assert generated.labs(LAB, {path: lesson}) == made

    def longer(minutes):
        words = "a " * int(minutes * 97.5)  # in a class
        lesson["cells"][0]["source"] = f"## 1 The one\n\n{words}"
        return generated.labs(LAB, {path: lesson})

    assert "| 84–90 | | Questions" in longer(73.3)  # 10.7 are of the exercise
    with pytest.raises(SystemExit, match="86 minutes, and no time for questions"):
        longer(75.3)


def test_the_labs_name_what_the_lessons_have():
    _, *six = generated.labs(LABS, CORES).split("\n## Lab ")
    points = [int(lab.split(" Points: ")[1].split(".")[0]) for lab in six]
    assert points == [3, 5, 6, 3, 6, 2]
    for lab in six:
        assert "–90 | | Questions" in lab and lab.split(generated.CLAIMS)[1]
    for old, new, message in (
        ("{01 §5}", "{01 §11}", "'01 §11'. are in no lesson"),
        ("{1.1}", "{1.9}", "'1.9'. are in no lesson"),
        ("{02 §5}", "{02 §5} {2.2} {2.1}", "Lab 2.*no time for questions"),
    ):
        assert old in LABS
        with pytest.raises(SystemExit, match=message):
            generated.labs(LABS.replace(old, new, 1), CORES)


def test_the_atlas_has_a_row_for_each_head_and_the_stored_numbers(source):
    page = (source / "atlas.md").read_text(encoding="utf-8")
    assert page.count("\n| ") == 2 * 4 + 72 + 270 and "{" not in page
    assert "Of 72 heads: [CLS] 52, previous token 4," in page
    assert "Of 270 heads: first token 173, punctuation 13, induction 12," in page
    assert "\n| *uniform* | 0.07 |" in page and "| 0.2 | **1.00** | 0.00 |" in page


ICON = '<link rel="icon" href="_static/icon.svg">'


@pytest.mark.parametrize(
    "page, wrong",
    [
        ('<script defer src="https://cdn.org/a.js"></script>', "fetches https://cdn"),
        ('<img alt="a" src="//cdn.org/a.png">', "fetches //cdn.org/a.png"),
        ('<link rel="stylesheet" href="https://cdn.org/a.css">', "fetches https://cdn"),
        ("a { background: url('https://cdn.org/a.woff') }", "fetches https://cdn"),
        ("@import 'https://cdn.org/a.css';", "fetches https://cdn"),
        ('<img alt="" src="b.png">', "asks for b.png"),
        ('<a href="sub/none.html#top">', "asks for sub/none.html"),
        ("<style>a { background: url('b.png') }</style>", "asks for b.png"),
        ('<a href="https://cdn.org/a.js">src="https://cdn.org"</a>', None),
        ('<script src="_static/a.css"></script><img src="data:image/png;a//b">', None),
        ('<link rel="next" href="https://a.org/b.html">', None),
        ('<img src="a%20b.png?v=1"><a href="#top"><a href="sub/">', None),
        ('<a href="mailto:a@b.org">', None),
    ],
)
def test_what_a_page_asks_for_is_in_the_site(tmp_path, page, wrong):
    (tmp_path / "_static").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / "_static" / "icon.svg").touch()
    (tmp_path / "_static" / "macros.html").touch()  # a theme's template, no page
    (tmp_path / "_static" / "a.css").write_text("a { background: url(icon.svg) }")
    (tmp_path / "a b.png").touch()
    (tmp_path / "index.html").write_text(ICON + page)
    found = list(SITE.faults(tmp_path))
    assert wrong in "".join(found) if wrong else not found
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "_static" / "icon.svg").unlink()
    found = "\n".join(SITE.faults(tmp_path))
    assert "index.html has no icon, so that browsers ask" in found
    assert "_static/a.css asks for icon.svg, which is not there" in found


def test_the_site_has_an_icon():
    folder = house.ROOT / ".ci/site_conf"
    conf = runpy.run_path(str(folder / "conf.py"))
    ElementTree.parse(folder / conf["html_favicon"])
