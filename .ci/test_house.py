"""The house rules: each is broken by a change of lesson 01, and says so in words."""

import json
import re
from html import escape
from pathlib import Path

import house
import links
import pytest
import reading

CORE, SECOND = house.notebooks()[:2]
DEEPER = CORE.parent / "deeper" / CORE.name
CAPTION = "Head 2 puts 1.00 of its weight on <pad> & → the previous token; null 0.06."
FOLDED = {**house.FOLDED, "tags": [house.FOLDED_TAG]}


def changed(path, *changes):
    """The findings in a stored notebook that was changed."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    for change in changes:
        change(stored)
    return house.findings(path, json.dumps(stored, ensure_ascii=False))


def number_of(fits):
    cells = house.Notebook(CORE).cells
    return next(n for n, cell in enumerate(cells) if fits(cell))


def outputs(cell):
    return [key for o in cell.get("outputs", []) for key in o.get("data", o)]


FIRST, LAST = 0, -1  # texts
SETUP = number_of(lambda cell: "outputs" in cell)
VISIBLE = number_of(lambda cell: "outputs" in cell and not cell["metadata"])
PRINTS = number_of(lambda cell: "name" in outputs(cell) and not cell["metadata"])
FIGURE = number_of(lambda cell: "image/png" in outputs(cell))
# the cell after a text, so that one more visible cell is no third in a row
THERE = number_of(lambda cell: house.tags(cell) == {"nbval-ignore-output"})


# --- changes ---


def puts(index, key, value):
    return lambda nb: nb["cells"][index].update({key: value})


def replaces(index, old, new):
    def change(nb):
        source = house.text(nb["cells"][index]["source"])
        assert old in source
        nb["cells"][index]["source"] = source.replace(old, new)

    return change


def appends(index, line):
    def change(nb):
        source = house.text(nb["cells"][index]["source"])
        nb["cells"][index]["source"] = f"{source}\n{line}"

    return change


def inserts(*cells):
    """Puts cells into the middle, and numbers all anew."""

    def change(nb):
        nb["cells"][THERE:THERE] = map(dict, cells)
        for number, cell in enumerate(nb["cells"]):
            cell["id"] = f"cell-{number}"
        for number, cell in enumerate(c for c in nb["cells"] if "outputs" in c):
            cell["execution_count"] = number + 1

    return change


def everywhere(old, new):
    return lambda nb: nb.update(json.loads(json.dumps(nb).replace(old, new)))


def shows(source, attached):
    def change(nb):
        appends(LAST, source)(nb)
        nb["cells"][LAST]["attachments"] = attached

    return change


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def display(**data):
    data = {mime.replace("_", "/", 1): value for mime, value in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def says(*outputs, **mimes):
    given = [display(**mimes)] if mimes else map(stream, outputs)
    return puts(PRINTS, "outputs", list(given))


def tagged(*tags):
    return puts(PRINTS, "metadata", {"tags": list(tags)})


def figure(*outputs):
    return puts(FIGURE, "outputs", list(outputs))


def below(caption):
    html = f'<p style="opacity: 0.8">{escape(caption).replace(" →", "&nbsp;→")}</p>'
    return display(text_html=html, text_plain=caption)


def markdown(source):
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source, **metadata):
    cell = {"cell_type": "code", "metadata": metadata, "outputs": []}
    return cell | {"source": source}


# --- rule, change, words ---

PICTURE, BELOW = display(image_png="iVBO"), below(CAPTION)
ID = house.Notebook(CORE).cells[LAST]["id"]
ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
SO, ONE = markdown("So."), code("1")
IGNORED = code("train()", tags=["nbval-ignore-output"])
CHECK = code("# @title Check: it learns\nassert loss < 1", **FOLDED)
DRAW = code("# @title Draw: the loss\nshow(figure)", **FOLDED)
SHOWN, DRAWN = house.pictured(markdown("![](attachment:block.png)"))
PATH, BARE = "prints the address or path", "a picture without a caption"
BREAKERS = [
    ("file_format", lambda nb: nb.update(nbformat_minor=4), "nbformat"),
    ("file_format", figure(display(image_png="A" * 10**6), BELOW), "1 MB or more"),
    ("metadata", lambda nb: nb.update(metadata={}), "notebook metadata"),
    ("metadata", puts(PRINTS, "metadata", {"execution": {}}), "['execution']"),
    ("metadata", figure(PICTURE | {"metadata": {"a": 1}}, BELOW), "an output with"),
    ("ids", puts(SETUP, "id", ID), "are ids of several cells"),
    ("ids", lambda nb: nb["cells"][SETUP].pop("id"), "[''] are no ids"),
    ("executed_in_order", puts(SETUP, "execution_count", 7), "count 7, not 1"),
    ("executed_in_order", puts(PRINTS, "source", " "), "an empty code cell"),
    ("progress_is_not_stored", puts(PRINTS, "source", "progress()"), "a total that"),
    ("progress_is_not_stored", appends(PRINTS, "a = progress()"), "stands alone"),
    ("no_error", puts(PRINTS, "outputs", [ERROR]), "stores E"),
    ("no_stderr", puts(PRINTS, "outputs", [stream("oh", "stderr")]), "stderr 'oh'"),
    ("no_fragile_mime_type", says(**{"image_svg+xml": "<svg>"}), "svg"),
    ("no_fragile_mime_type", says(application_widget={}), "widget"),
    ("nothing_of_this_machine", says("<Line2D at 0x7f12ab34cd>"), PATH),
    ("nothing_of_this_machine", says("in /usr/share/file.txt"), PATH),
    ("nothing_of_this_machine", says("C:\\Users\\me"), PATH),
    ("nothing_of_this_machine", says(text_html="<p>~/a/b.py</p>"), PATH),
    ("digits", says("0.123456"), "0.123456"),
    ("digits", says("5.96e-08"), "5.96e-08"),
    ("digits", says("6e-08"), "6e-08"),
    ("caption", figure(PICTURE), BARE),
    ("caption", figure(BELOW, PICTURE), BARE),
    ("caption", figure(PICTURE, display(text_plain=CAPTION)), BARE),
    ("caption", figure(PICTURE, stream(CAPTION)), BARE),
    ("caption", figure(display(image_png="", text_plain="<Fig>"), BELOW), BARE),
    ("caption", figure(PICTURE, PICTURE, BELOW), BARE),
    ("caption", figure(PICTURE, below("Head 2")), "40+ letters"),
    ("caption", figure(PICTURE, below("no number " * 5)), "with numbers"),
    ("alt_text", appends(LAST, f"![ ]({CORE.name})"), "without alt text"),
    ("alt_text", appends(LAST, f'<img src="{CORE.name}">'), "without alt text"),
    ("attachments", shows(SHOWN, {}), "pictures missing"),
    ("attachments", shows(SHOWN, {"block.png": {"image/png": "iVBO"}}), "not as in"),
    ("attachments", shows("", DRAWN), "or not named"),
    ("attachments", shows("![Map](attachment:block.png)", DRAWN), "an alt text"),
    ("attachments", shows("![Map](attachment:no.png)", {}), "['no.png'] are no"),
    ("attachments", shows('<img alt="A" src="attachment:block.png">', {}), "are no"),
    ("compared_by_nbval", inserts(*9 * [SO, IGNORED, CHECK]), "outputs ignored"),
    ("compared_by_nbval", tagged("nbval-skip"), "nbval-skip"),
    ("compared_by_nbval", appends(PRINTS, "# NBVAL_IGNORE_OUTPUT"), "nbval comment"),
    ("compared_by_nbval", inserts(IGNORED), "no folded cell"),
    ("compared_by_nbval", inserts(IGNORED, DRAW), "no folded cell"),
    ("set_up_cell", appends(SETUP, "import math"), "not as in"),
    ("set_up_cell", appends(SETUP - 1, "# More"), "not as in"),
    ("folding", puts(SETUP, "metadata", house.FOLDED), "not folded everywhere"),
    ("folding", puts(SETUP, "metadata", {**FOLDED, "jupyter": {}}), "not folded"),
    ("folding", puts(PRINTS, "metadata", FOLDED), "without a title"),
    ("folding", puts(PRINTS, "metadata", {"cellView": "form"}), "without a title"),
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
    rules = set(re.findall(r'(?:yield|name =|yield cell,) \(?"(\w+)"', source))
    assert rules == {name for name, *_ in BREAKERS}


def test_what_is_allowed(monkeypatch):
    assert changed(CORE) == changed(DEEPER) == changed(SECOND) == []
    monkeypatch.setattr(house, "of_reader", text_between)
    says_much = "https://a.org/b/c 1/2/3 12.3456 0.0001 loss / step"
    coded = "<b>read</b> <script>view('x /T./1 1.234567')</script>"  # a viewer
    error = puts(VISIBLE, "outputs", [ERROR])
    raises = puts(VISIBLE, "metadata", {"tags": ["raises-exception"]})
    for change in (
        inserts(IGNORED | {"outputs": [stream("0.123456")]}, CHECK),
        inserts(SO, code("progress()", tags=["nbval-ignore-output"])),
        puts(PRINTS, "outputs", [stream(says_much), display(text_html=coded)]),
        shows(SHOWN, DRAWN),
        appends(LAST, "```\n[a](none)\n```\n`[b](none)` and $f[i](x)$"),
    ):
        assert changed(CORE, change) == []
    assert changed(CORE, error, raises) == []


def test_a_deeper_notebook_has_a_core_and_states_its_minutes():
    (found,) = changed(DEEPER, replaces(FIRST, "**Time** ", "**Time** 1"))
    assert "minutes, but asks" in found and found.endswith("[budget]")
    stored = DEEPER.read_text(encoding="utf-8")
    found = house.findings(DEEPER.with_name("01_lost.ipynb"), stored)
    assert any("no ../01_lost.ipynb" in message for message in found)
    assert any("no '](../01_lost.ipynb)'" in message for message in found)


def test_a_core_without_a_deeper_notebook_is_counted_all_the_same():
    (alone,) = [x for x in house.notebooks() if x.name.startswith("12_")]
    assert house.Notebook(alone).kind == "core" and changed(alone) == []
    (found,) = changed(alone, replaces(FIRST, "**Time** ", "**Time** 1"))
    assert "minutes, but asks" in found and found.endswith("[budget]")
    (found,) = house.minutes_findings("", [house.Notebook(alone)])
    assert alone.name in found


@pytest.mark.parametrize("number", [0, 2])
def test_a_core_begins_with_one_picture(number):
    def begins(nb):
        begin = house.ATTACHED.sub("", house.text(nb["cells"][FIRST]["source"]))
        begin = begin.replace("\n", f"\n{SHOWN}" * number + "\n", 1)
        nb["cells"][FIRST] |= {"source": begin, "attachments": DRAWN if number else {}}

    (found,) = changed(CORE, begins)
    assert f"{number} drawings attached" in found


def test_the_clock():
    card = "*1 · 10 minutes* Time 7 minutes\n## 1 One\n$x$ `y` [one](z)\n| table |\n"
    text = markdown(card + "<details>fold</details>\n" + "word " * 250)
    questions = markdown("## Check yourself\n1. Why?\n<details><summary>2. How?")
    asked = reading.asks([text, ONE, DRAW, ONE, questions])
    assert asked["words"] == 250 + 7 + 3 + 4 and asked["sections"] == 1
    assert asked["visible"] == 2 and asked["exercises"] == 1
    assert asked["minutes"] == round(10 + 2 * 0.5 + asked["words"] / 130 + 2 * 2)
    assert asked["stated"] == 10


def test_the_pages_of_the_site():
    assert [
        found for page in house.pages() for found in links.page_findings(page)
    ] == []
    assert house.ROOT / "README.md" in house.pages()


def test_links_of_a_page(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("# A title, or two\n[a](#a-title-or-two) [b](none) ![](README.md)")
    assert len(links.page_findings(page)) == 2


def test_the_minutes_of_readme():
    page = (house.ROOT / "README.md").read_text(encoding="utf-8")
    books = [*map(house.Notebook, house.notebooks())]
    assert [*house.minutes_findings(page, books)] == []
    core, deep = re.search(r"^\| \[01 .*\| (\d+) \| \[(\d+)\]", page, re.M).groups()
    for right, wrong in (
        (
            f"| {core} | [{deep}](notebooks/deeper/01",
            f"| 9 | [{deep}](notebooks/deeper/01",
        ),
        (f"[{deep}](notebooks/deeper/01", "[9](notebooks/deeper/01"),
    ):
        (found,) = house.minutes_findings(page.replace(right, wrong), books)
        assert found.endswith(f"{core} minutes; deeper, {deep}")


def test_lessons_install_in_colab_what_the_requirements_say():
    """A lesson with SmolLM2 its reader of files, one with sentences conllu."""
    requirements = (house.ROOT / "requirements.txt").read_text("utf-8")
    installing = {"gguf": 0, "conllu": 0}
    for path in house.notebooks():
        source = "".join(house.text(c["source"]) for c in house.Notebook(path).code)
        for package, needed in {
            "gguf": "load_smollm2" in source,
            "conllu": "utils.syntax" in source,
        }.items():
            wanted = re.search(f"^{package}\\S+,<\\S+", requirements, re.M)[0]
            found = re.findall(rf'"({package}[<>=][^"]+)"', source)
            assert found == [wanted] * needed, (path.name, package)
            installing[package] += needed
    assert installing == {"gguf": 4, "conllu": 5}
