"""The house rules: each is broken by a change of lesson 01, and says so in words."""

import json
import re
from functools import partial
from html import escape
from pathlib import Path

import house
import links
import pytest
import reading
from nbformat.v4 import new_code_cell as code
from nbformat.v4 import new_markdown_cell as markdown
from nbformat.v4 import new_output

CORE, SECOND = house.notebooks()[:2]
DEEPER = CORE.parent / "deeper" / CORE.name
(ALONE,) = CORE.parent.glob("12_*.ipynb")  # a core without a deeper notebook
CAPTION = "Head 2 puts 1.00 of its weight on <pad> & → the previous token; null 0.06."
FOLDED = {**house.FOLDED, "tags": [house.FOLDED_TAG]}


def changed(path, *changes):
    """The findings in a stored notebook that was changed."""
    stored = house.loaded(path.read_text(encoding="utf-8"))
    for change in changes:
        change(stored)
    return house.findings(path, json.dumps(stored, ensure_ascii=False))


def number_of(fits):
    cells = house.Notebook(CORE).cells
    return next(n for n, cell in enumerate(cells) if fits(cell))


def kinds(cell):
    return [key for o in cell.get("outputs", []) for key in o.get("data", o)]


FIRST, LAST = 0, -1  # texts
SETUP = number_of(lambda cell: "outputs" in cell)
VISIBLE = number_of(lambda cell: "outputs" in cell and not cell["metadata"])
PRINTS = number_of(lambda cell: "name" in kinds(cell) and not cell["metadata"])
DRAWING = house.ATTACHED.search(house.Notebook(CORE).cells[FIRST]["source"])[0]
FIGURE = number_of(lambda cell: "image/png" in kinds(cell))
# the cell after a text, so that one more visible cell is no third in a row
THERE = number_of(lambda cell: house.tags(cell) == {"nbval-ignore-output"})


# --- changes ---


def change(edit):
    """Make edit(notebook, *how) a function of `how` that returns the change."""
    return lambda *how: lambda nb: edit(nb, *how)


@change
def puts(nb, index, key, value):
    nb["cells"][index][key] = value


@change
def replaces(nb, index, old, new):
    source = nb["cells"][index]["source"]
    assert old in source
    nb["cells"][index]["source"] = source.replace(old, new)


@change
def appends(nb, index, line):
    nb["cells"][index]["source"] += f"\n{line}"


@change
def inserts(nb, *cells):
    """Puts cells into the middle, and numbers all anew."""
    nb["cells"][THERE:THERE] = map(dict, cells)
    for number, cell in enumerate(nb["cells"]):
        cell["id"] = f"cell-{number}"
    for number, cell in enumerate(c for c in nb["cells"] if "outputs" in c):
        cell["execution_count"] = number + 1


@change
def everywhere(nb, old, new):
    nb |= json.loads(json.dumps(nb).replace(old, new))


@change
def shows(nb, source, attached):
    appends(LAST, source)(nb)
    if attached:
        nb["cells"][LAST]["attachments"] = attached


def begins_with_no_picture(nb):
    replaces(FIRST, DRAWING, "")(nb)
    del nb["cells"][FIRST]["attachments"]


stream, display = partial(new_output, "stream"), partial(new_output, "display_data")


def outputs(*given):
    return puts(PRINTS, "outputs", list(given))


def says(text):
    return outputs(stream(text=text))


def figure(*given):
    return puts(FIGURE, "outputs", list(given))


def below(caption):
    html = f'<p style="opacity: 0.8">{escape(caption).replace(" →", "&nbsp;→")}</p>'
    return display({"text/html": html, "text/plain": caption})


# --- rule, change, words ---

PICTURE, BELOW = display({"image/png": "iVBO"}), below(CAPTION)
ID = house.Notebook(CORE).cells[LAST]["id"]
ERROR = new_output("error", ename="E", evalue="", traceback=[])
SO, ONE = markdown("So."), code("1")
IGNORED = code("train()", metadata={"tags": ["nbval-ignore-output"]})
CHECK = code("# @title Check: it learns\nassert loss < 1", metadata=FOLDED)
TITLED = code("# @title Break: a map", metadata={**FOLDED, "tags": ["hide-input", "x"]})
DRAW = code("# @title Draw: the loss\nshow(figure)", metadata=FOLDED)
SHOWN, DRAWN = house.pictured(markdown("![](attachment:block.png)"))
PATH, BARE = "prints the address or path", "a picture without a caption"
NAMED = display({"image/png": "", "text/plain": "<Fig>"})
IN_HTML, SKIPPED = display({"text/html": "<p>~/a/b.py</p>"}), {"tags": ["nbval-skip"]}
BREAKERS = [
    ("refreshed", lambda nb: nb.update(nbformat_minor=4), "nbformat_minor"),
    ("size_of_file", figure(display({"image/png": "A" * 10**6}), BELOW), "1 MB"),
    ("refreshed", lambda nb: nb.update(metadata={}), "ipynb: metadata"),
    ("refreshed", puts(PRINTS, "metadata", {"execution": {}}), "metadata"),
    ("refreshed", figure(PICTURE | {"metadata": {"a": 1}}, BELOW), "outputs"),
    ("ids", puts(SETUP, "id", ID), "are ids of several cells"),
    ("refreshed", lambda nb: nb["cells"][SETUP].pop("id"), ": id not as"),
    ("ids", puts(SETUP, "id", "a b"), "['a b'] are no ids"),
    ("executed_in_order", puts(SETUP, "execution_count", 7), "count 7, not 1"),
    ("executed_in_order", puts(PRINTS, "source", " "), "an empty code cell"),
    ("refreshed", puts(PRINTS, "source", "progress()"), "outputs not"),
    ("progress_is_not_stored", appends(PRINTS, "a = progress()"), "stands alone"),
    ("no_error", outputs(ERROR), "stores E"),
    ("no_stderr", outputs(stream(text="oh", name="stderr")), "stderr 'oh'"),
    ("no_fragile_mime_type", outputs(display({"image/svg+xml": "<svg>"})), "svg"),
    ("no_fragile_mime_type", outputs(display({"application/widget": "w"})), "widget"),
    ("nothing_of_this_machine", says("<Line2D at 0x7f12ab34cd>"), PATH),
    ("nothing_of_this_machine", says("in /usr/share/file.txt"), PATH),
    ("nothing_of_this_machine", says("C:\\Users\\me"), PATH),
    ("nothing_of_this_machine", outputs(IN_HTML), PATH),
    ("digits", says("0.123456"), "0.123456"),
    ("digits", says("5.96e-08"), "5.96e-08"),
    ("digits", says("6e-08"), "6e-08"),
    ("caption", figure(PICTURE), BARE),
    ("caption", figure(BELOW, PICTURE), BARE),
    ("caption", figure(PICTURE, display({"text/plain": CAPTION})), BARE),
    ("caption", figure(PICTURE, stream(text=CAPTION)), BARE),
    ("caption", figure(NAMED, BELOW), BARE),
    ("caption", figure(PICTURE, PICTURE, BELOW), BARE),
    ("caption", figure(PICTURE, below("Head 2")), "40+ letters"),
    ("caption", figure(PICTURE, below("no number " * 5)), "with numbers"),
    ("alt_text", appends(LAST, f"![ ]({CORE.name})"), "without alt text"),
    ("alt_text", appends(LAST, f'<img src="{CORE.name}">'), "without alt text"),
    ("refreshed", shows(SHOWN, {}), "attachments not"),
    ("refreshed", shows(SHOWN, {"block.png": {"image/png": "iVBO"}}), "attach"),
    ("refreshed", shows("", DRAWN), "attachments not"),
    ("refreshed", shows("![Map](attachment:block.png)", DRAWN), "source not"),
    ("attachments", shows("![Map](attachment:no.png)", {}), "['no.png'] are no"),
    ("attachments", shows('<img alt="A" src="attachment:block.png">', {}), "are no"),
    ("compared_by_nbval", inserts(*9 * [SO, IGNORED, CHECK]), "outputs ignored"),
    ("compared_by_nbval", puts(PRINTS, "metadata", SKIPPED), "nbval-skip"),
    ("compared_by_nbval", appends(PRINTS, "# NBVAL_IGNORE_OUTPUT"), "nbval comment"),
    ("compared_by_nbval", inserts(IGNORED), "no folded cell"),
    ("compared_by_nbval", inserts(IGNORED, DRAW), "no folded cell"),
    ("set_up_cell", appends(SETUP, "import math"), "not as in"),
    ("set_up_cell", appends(SETUP - 1, "# More"), "not as in"),
    ("refreshed", puts(SETUP, "metadata", {**FOLDED, "tags": []}), "metadata"),
    ("refreshed", puts(SETUP, "metadata", {**FOLDED, "jupyter": {}}), "metadata"),
    ("folding", puts(PRINTS, "metadata", house.FOLDED), "without a title"),
    ("folding", puts(PRINTS, "metadata", {"tags": ["hide-input"]}), "without a title"),
    ("folding", puts(PRINTS, "metadata", {"cellView": "form"}), "without a title"),
    ("folding", appends(LAST, "<details><summary>Why?</summary>"), "without its end"),
    ("text_between", inserts(ONE, ONE), "three visible code cells"),
    ("budget", replaces(FIRST, " minutes", "0 minutes"), "minutes, but asks"),
    ("budget", replaces(FIRST, " minutes", " moments"), "minutes, but asks"),
    ("budget", inserts(*46 * [SO, ONE, SO]), "visible, 45 at most"),
    ("budget", inserts(*9 * [DRAW | {"outputs": [PICTURE, BELOW]}]), "figures, 8 at"),
    ("budget", inserts(markdown("*1 · 1 minutes")), "4 exercises, 3 at most"),
    ("budget", appends(LAST, "\n## 7 Seven"), "sections, 6 at most"),
    ("budget", inserts(markdown("*1 · 90 minutes")), "minutes, 100 at most"),
    ("size_of_cells", puts(PRINTS, "source", "pass\n" * 26), "26 lines of code"),
    ("size_of_cells", puts(PRINTS, "source", "1 + " * 30 + "1"), "88 characters"),
    ("frame", replaces(FIRST, "# 01", "# 02"), "begins not with '# 01 Title'"),
    ("frame", begins_with_no_picture, "0 drawings attached"),
    ("frame", replaces(FIRST, DRAWING, 2 * DRAWING), "2 drawings attached"),
    ("frame", replaces(FIRST, "remember one thing", "see"), "no 'If you remember one"),
    ("frame", everywhere('"## 2 ', '"## Two '), "number them from 1 on"),
    ("frame", everywhere("](deeper/", "](./deeper/"), "no '](deeper/"),
    ("links", appends(LAST, "[next](02_none.ipynb)"), "no such file"),
    ("links", appends(LAST, "[up](#No-such-heading)"), "no such heading"),
    ("links", appends(LAST, f"[up]({CORE.name}#check-yourself)"), "no such heading"),
    ("links", appends(LAST, "[root](/cat.png)"), "no such file"),
    ("links", appends(LAST, '<a href="none.png">x</a>'), "no such file"),
    ("links", appends(LAST, "[ref]: none.md"), "no such file"),
    ("colab_badge", replaces(FIRST, "blob/main/notebooks/01", "blob/main/01"), "one"),
    ("colab_badge", replaces(FIRST, "com/github/", "com/github/x"), "different rep"),
]  # fmt: skip


@pytest.mark.parametrize("name, change, words", BREAKERS)
def test_a_rule_is_broken(monkeypatch, name, change, words):
    if name != "budget":  # a page may stand at its last minute
        monkeypatch.setattr(house, "of_reader", text_between)
    path = SECOND if name == "set_up_cell" else CORE
    found = changed(path, change)
    assert any(words in message for message in found), found
    assert all(message.endswith(f"[{name}]") for message in found), found


def text_between(book, of_reader=house.of_reader):
    """A changed page asks for another time."""
    return (wrong for wrong in of_reader(book) if wrong[0] != "budget")


def test_every_rule_is_broken_once():
    source = Path(house.__file__).read_text(encoding="utf-8")
    rules = set(re.findall(r'(?:yield|name =) \(?"(\w+)"', source))
    assert rules == {name for name, *_ in BREAKERS}


def test_what_is_allowed(monkeypatch):
    assert [changed(path) for path in (CORE, DEEPER, SECOND, ALONE)] == [[]] * 4
    monkeypatch.setattr(house, "of_reader", text_between)
    says_much = "https://a.org/b/c 1/2/3 12.3456 0.0001 loss / step"
    coded = "<b>read</b> <script>view('x /T./1 1.234567')</script>"  # a viewer
    error = puts(VISIBLE, "outputs", [ERROR])
    raises = puts(VISIBLE, "metadata", {"tags": ["raises-exception"]})
    for change in (
        inserts(IGNORED | {"outputs": [stream(text="0.123456")]}, CHECK),
        inserts(SO, IGNORED | {"source": "progress()"}),
        outputs(stream(text=says_much), display({"text/html": coded})),
        inserts(TITLED),
        shows(SHOWN, DRAWN),
        appends(LAST, "```\n[a](none)\n```\n`[b](none)` and $f[i](x)$"),
    ):
        assert changed(CORE, change) == []
    assert changed(CORE, error, raises) == []


@pytest.mark.parametrize("path", [DEEPER, ALONE])
def test_a_page_of_either_kind_states_its_minutes(path):
    (found,) = changed(path, replaces(FIRST, "**Time** ", "**Time** 1"))
    assert "minutes, but asks" in found and found.endswith("[budget]")


def test_a_deeper_notebook_has_a_core():
    stored = DEEPER.read_text(encoding="utf-8")
    found = house.findings(DEEPER.with_name("01_lost.ipynb"), stored)
    assert any("no ../01_lost.ipynb" in message for message in found)
    assert any("no '](../01_lost.ipynb)'" in message for message in found)


def test_the_clock():
    card = "*1 · 10 minutes* Time 7 minutes\n## 1 One\n$x$ `y` [one](z)\n| table |\n"
    text = markdown(card + "<details>fold</details>\n" + "word " * 250)
    questions = markdown("## Check yourself\n1. Why?\n<details><summary>2. How?")
    asked = reading.asks([text, ONE, DRAW, ONE, questions])
    assert asked["words"] == 250 + 7 + 3 + 4 and asked["sections"] == 1
    assert asked["visible"] == 2 and asked["exercises"] == 1
    assert asked["minutes"] == round(10 + 2 * 0.5 + asked["words"] / 130 + 2 * 2)
    assert asked["stated"] == 10


def test_links_of_pages(tmp_path):
    assert house.ROOT / "README.md" in house.pages()
    assert sum(map(links.page_findings, house.pages()), []) == []
    page = tmp_path / "README.md"
    page.write_text("# A title, or two\n[a](#a-title-or-two) [b](none) ![](README.md)")
    assert len(links.page_findings(page)) == 2


def test_the_minutes_of_readme():
    page = (house.ROOT / "README.md").read_text(encoding="utf-8")
    books = [*map(house.Notebook, house.notebooks())]
    assert [*house.minutes_findings(page, books)] == []
    core, deep = re.search(r"^\| \[01 .*\| (\d+) \| \[(\d+)\]", page, re.M).groups()
    link = "](notebooks/deeper/01"
    for right, wrong in (
        (f"| {core} | [{deep}{link}", f"| 9 | [{deep}{link}"),
        (f"[{deep}{link}", f"[9{link}"),
    ):
        (found,) = house.minutes_findings(page.replace(right, wrong), books)
        assert found.endswith(f"{core} minutes; deeper, {deep}")
    (found,) = house.minutes_findings("", [house.Notebook(ALONE)])
    assert ALONE.name in found


@pytest.mark.parametrize(
    "package, used, lessons",
    [("gguf", "load_smollm2", 4), ("conllu", "utils.syntax", 5)],
)
def test_lessons_install_in_colab_what_the_requirements_say(package, used, lessons):
    """A lesson with SmolLM2 its reader of files, one with sentences conllu."""
    requirements = (house.ROOT / "requirements.txt").read_text("utf-8")
    wanted = re.search(f"^{package}\\S+,<\\S+", requirements, re.M)[0]
    installing = 0
    for book in map(house.Notebook, house.notebooks()):
        source = "".join(cell["source"] for cell in book.code)
        found = re.findall(rf'"({package}[<>=][^"]+)"', source)
        assert found == [wanted] * (used in source), book.name
        installing += len(found)
    assert installing == lessons
