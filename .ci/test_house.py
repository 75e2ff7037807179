"""Tests of the house rules: each fails on the notebooks that break it, and only it."""

import json
import re
from html import escape

import house
import pytest

FIRST = """# 01 A title

[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/OWNER/NAME/blob/main/notebooks/01_good.ipynb)

*You will be able to* read [the end](#What-you-now-know) and [itself](01_good.ipynb).
"""
LAST = "## What you now know\n\nMuch.\n\n## Check yourself\n\n![a cat](cat.png)\n"
CAPTION = "Head 2 puts 1.00 of its weight on <pad> & → the previous token; null 0.06."


FOLDED = {**house.FOLDED, "tags": [house.FOLDED_TAG]}


def markdown(name, source):
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def code(number, source, *outputs, **metadata):
    cell = {"cell_type": "code", "id": f"code-{number}", "execution_count": number}
    return cell | {"metadata": metadata, "outputs": list(outputs), "source": source}


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def display(**data):
    data = {mime.replace("_", "/", 1): value for mime, value in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def shown(caption, png="iVBO"):
    """The outputs of a figure: the picture and, under it, its caption."""
    html = f'<p style="opacity: 0.8">{escape(caption).replace(" →", "&nbsp;→")}</p>'
    return [display(image_png=png), display(text_html=html, text_plain=caption)]


def good():
    """A notebook that breaks no rule."""
    cells = [
        markdown("first", f"{FIRST}\n{house.SETUP_LINE}"),
        code(1, house.SETUP_CELL, **FOLDED),
        code(2, "print(shares)", stream("0.125 and 1e-05\n")),
        code(3, "show(figure)", *shown(CAPTION)),
        markdown("last", LAST),
    ]
    kind = {"metadata": house.METADATA, "nbformat": 4, "nbformat_minor": 5}
    return {"cells": cells, **kind}


def findings(folder, book, name="01_good.ipynb"):
    (folder / "cat.png").touch()
    (folder / name).write_text(json.dumps(book), encoding="utf-8")
    return house.findings(folder / name)


# What breaks the good notebook: each returns a function that changes it.


def puts(index, key, value):
    return lambda nb: nb["cells"][index].update({key: value})


def replaces(index, old, new):
    def breaks(nb):
        source = nb["cells"][index]["source"]
        assert old in source
        nb["cells"][index]["source"] = source.replace(old, new)

    return breaks


def appends(index, line):
    def breaks(nb):
        nb["cells"][index]["source"] += "\n" + line

    return breaks


def says(text, **mimes):
    """The second code cell's output is another."""
    return puts(2, "outputs", [display(**mimes) if mimes else stream(text)])


def tagged(*tags):
    return puts(2, "metadata", {"tags": list(tags)})


def figure(*outputs):
    return puts(3, "outputs", list(outputs))


ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
WIDGET = "application_vnd.jupyter.widget-view+json"
LONG = "x = " + "1 + " * 30 + "1"
BREAKERS = [  # the rule, and a change of the good notebook that breaks it
    ("file_format", lambda nb: nb.update(nbformat_minor=4)),
    ("file_format", figure(*shown(CAPTION, png="A" * 10**6))),
    ("metadata", lambda nb: nb.update(metadata={})),
    ("metadata", puts(2, "metadata", {"execution": {}})),
    ("metadata", lambda nb: nb["cells"][3]["outputs"][0].update(metadata={"a": 1})),
    ("ids", puts(2, "id", "first")),
    ("ids", lambda nb: nb["cells"][2].pop("id")),
    ("executed_in_order", puts(2, "execution_count", None)),
    ("executed_in_order", puts(2, "execution_count", 7)),
    ("executed_in_order", puts(2, "source", " ")),
    ("progress_is_not_stored", puts(2, "source", "progress()")),
    ("progress_is_not_stored", appends(2, "progress()")),
    ("progress_is_not_stored", appends(2, "total = utils.progress()")),
    ("no_error", puts(2, "outputs", [ERROR])),
    ("no_stderr", lambda nb: nb["cells"][2]["outputs"][0].update(name="stderr")),
    ("no_fragile_mime_type", says("", **{"image_svg+xml": "<svg>"})),
    ("no_fragile_mime_type", says("", **{WIDGET: {}})),
    ("nothing_of_this_machine", says("<Line2D at 0x7f12ab34cd>")),
    ("nothing_of_this_machine", says("read /usr/share/file.txt")),
    ("nothing_of_this_machine", says("C:\\Users\\me")),
    ("nothing_of_this_machine", says("", text_html="<p>~/course/utils/a.py</p>")),
    ("digits", says("0.123456")),
    ("digits", says("5.96e-08")),
    ("digits", says("6e-08")),
    ("caption", figure(shown(CAPTION)[0])),
    ("caption", figure(*shown(CAPTION)[::-1])),
    ("caption", figure(shown(CAPTION)[0], display(text_plain=CAPTION))),
    ("caption", figure(shown(CAPTION)[0], stream(CAPTION))),
    ("caption", figure(display(image_png="", text_plain="<Fig>"), shown(CAPTION)[1])),
    ("caption", figure(shown(CAPTION)[0], *shown(CAPTION))),
    ("caption", figure(*shown("Head 2"))),
    ("caption", figure(*shown("Which head does what is here without any number"))),
    ("alt_text", appends(4, "![](cat.png)")),
    ("alt_text", appends(4, '<img src="cat.png">')),
    ("compared_by_nbval", tagged("nbval-ignore-output")),
    ("compared_by_nbval", tagged("nbval-skip")),
    ("compared_by_nbval", appends(2, "# NBVAL_IGNORE_OUTPUT")),
    ("set_up_cell", appends(1, "import math")),
    ("set_up_cell", replaces(1, "COURSE_REPO_URL", "FORCE_REPO_URL")),
    ("folding", puts(1, "metadata", {})),
    ("folding", puts(1, "metadata", house.FOLDED)),
    ("folding", puts(1, "metadata", {**FOLDED, "jupyter": {}})),
    ("folding", puts(2, "metadata", FOLDED)),
    ("folding", puts(2, "metadata", {"cellView": "form"})),
    ("set_up_cell", puts(0, "source", FIRST)),
    ("set_up_cell", appends(0, "More.")),
    ("size_of_cells", puts(2, "source", "pass\n" * 26)),
    ("size_of_cells", puts(2, "source", LONG)),
    ("frame", replaces(0, "# 01", "# 02")),
    ("frame", puts(4, "source", "## What you now know\n")),
    ("links", appends(4, "[next](02_none.ipynb)")),
    ("links", appends(4, "[up](#No-such-heading)")),
    ("links", appends(4, "[up](01_good.ipynb#what-you-now-know)")),
    ("links", appends(4, "[root](/cat.png)")),
    ("links", appends(4, '<a href="none.png">x</a>')),
    ("links", appends(4, "[ref]: none.md")),
    ("colab_badge", replaces(0, "blob/main/notebooks/01", "blob/main/01")),
    ("colab_badge", replaces(0, "OWNER", "other")),
]


def test_good_notebook(tmp_path):
    assert findings(tmp_path, good()) == []


@pytest.mark.parametrize("name, breaks", BREAKERS)
def test_rule_fails(tmp_path, name, breaks):
    book = good()
    breaks(book)
    found = findings(tmp_path, book)
    assert found and all(message.endswith(f"[{name}]") for message in found), found


CORE = """
*After this lesson you can* read. *If you remember one thing:* read. *Time* 10 minutes.
[deeper](deeper/01_good.ipynb)
"""
LAST_OF_CORE = LAST + "\n## Words of this lesson\n"
FIRST_OF_DEEPER = FIRST.replace("books/01", "books/deeper/01").replace("(01", "(../01")


def core():
    """A core that breaks no rule: it has a deeper notebook, and asks for 10 minutes."""
    book = good()
    book["cells"][0]["source"] = f"{FIRST}{CORE}\n{house.SETUP_LINE}"
    book["cells"][4]["source"] = (
        LAST_OF_CORE + "*1 · 4 minutes · Because.*\n" + "a " * 240
    )
    return book


def deeper():
    """A deeper notebook that breaks no rule."""
    book = good()
    asks = "*Time* 1 minutes."
    book["cells"][0]["source"] = f"{FIRST_OF_DEEPER}\n{asks}\n{house.SETUP_LINE}"
    return book


def inserts(index, *cells):
    def breaks(nb):
        nb["cells"][index:index] = map(dict, cells)
        numbered = (cell for cell in nb["cells"] if cell["cell_type"] == "code")
        for number, cell in enumerate(numbered, start=1):
            cell.update(execution_count=number, id=f"code-{number}")

    return breaks


SO = markdown("so", "So.")
IGNORED = code(0, "train()", tags=["nbval-ignore-output"])
CHECK = code(0, "# @title Check: it learns\nassert loss < 1", **FOLDED)
DRAW = code(0, "# @title Draw: the loss\nshow(figure)", **FOLDED)
MANY = [markdown(f"text-{n}", "So.") if n % 2 == 0 else code(0, "1") for n in range(90)]
BREAKERS_OF_CORE = [
    ("frame", replaces(0, "remember one thing", "remember")),
    ("frame", replaces(0, "[deeper](deeper/01_good.ipynb)", "deeper")),
    ("frame", replaces(4, "Words of this lesson", "Words")),
    ("text_between", inserts(3, code(0, "1"))),
    ("budget", replaces(0, "10 minutes", "11 minutes")),
    ("budget", replaces(0, "*Time* 10 minutes.", "")),
    ("budget", appends(4, "word " * 2300)),
    ("budget", appends(4, "*1 · 40 minutes · Because.*")),
    ("budget", inserts(4, *MANY)),
    ("compared_by_nbval", inserts(3, *20 * [CHECK], SO, IGNORED)),
    (
        "compared_by_nbval",
        inserts(3, *20 * [CHECK], SO, IGNORED, DRAW),
    ),
]


def findings_of_core(folder, book):
    (folder / "deeper").mkdir()
    (folder / "deeper" / "01_good.ipynb").write_text(json.dumps(deeper()))
    return findings(folder, book)


def test_good_core_and_deeper_notebook(tmp_path):
    assert findings_of_core(tmp_path, core()) == []
    assert findings(tmp_path / "deeper", deeper()) == []


@pytest.mark.parametrize("name, breaks", BREAKERS_OF_CORE)
def test_rule_fails_on_a_core(tmp_path, name, breaks):
    book = core()
    breaks(book)
    found = findings_of_core(tmp_path, book)
    assert found and all(message.endswith(f"[{name}]") for message in found), found


def test_allowed_in_a_core(tmp_path):
    book = core()
    inserts(3, *20 * [CHECK], SO, IGNORED, CHECK)(book)
    assert findings_of_core(tmp_path, book) == []


def test_a_deeper_notebook_states_its_minutes(tmp_path):
    findings_of_core(tmp_path, core())
    book = deeper()
    replaces(0, "1 minutes", "2 minutes")(book)
    (found,) = findings(tmp_path / "deeper", book)
    assert found.endswith("states 2 minutes, but asks 1 [budget]")


def test_a_deeper_notebook_has_a_core(tmp_path):
    (tmp_path / "deeper").mkdir()
    found = findings(tmp_path / "deeper", deeper(), "01_lost.ipynb")
    assert any("no ../01_lost.ipynb" in message for message in found)
    assert any("no '](../01_lost.ipynb)'" in message for message in found)


def test_every_rule_is_tested():
    tested = {name for name, _ in BREAKERS + BREAKERS_OF_CORE}
    assert {check.__name__ for check in house.RULES} == tested


def test_set_up_cells_name_one_address(tmp_path):
    findings(tmp_path, good())
    book = json.loads(json.dumps(good()).replace("01_good", "02_too"))
    book["cells"][0]["source"] = book["cells"][0]["source"].replace("# 01", "# 02")
    assert findings(tmp_path, book, "02_too.ipynb") == []
    for index in (0, 1):
        replaces(index, "OWNER/NAME", "ada/attention")(book)
    (found,) = findings(tmp_path, book, "02_too.ipynb")
    assert "cell 1 (id code-1)" in found and found.endswith("[set_up_cell]")


def test_allowed(tmp_path):
    book = good()
    progress = {"source": "progress()", "metadata": {"tags": ["nbval-ignore-output"]}}
    book["cells"].append(code(4, "") | progress)
    puts(2, "outputs", [ERROR])(book)
    tagged("raises-exception")(book)
    says_much = "https://a.org/b/c 1/2/3 12.3456 0.0001 loss / step"
    book["cells"][3]["outputs"].append(stream(says_much))
    coded = "<b>read</b> <script>view('x /T./1 1.234567')</script>"  # a viewer
    book["cells"][3]["outputs"].append(display(text_html=coded))
    appends(4, "```\n[a](none)\n```\n`[b](none)` and $f[i](x)$")(book)
    assert findings(tmp_path, book) == []


def test_links_of_readme(tmp_path):
    assert house.page_findings(house.ROOT / "README.md") == []
    page = tmp_path / "README.md"
    page.write_text("# A title, or two\n[a](#a-title-or-two) [b](none) ![](README.md)")
    assert len(house.page_findings(page)) == 2


def test_the_minutes_of_readme():
    page = (house.ROOT / "README.md").read_text(encoding="utf-8")
    books = [*map(house.Notebook, house.notebooks())]
    assert [*house.minutes_findings(page, books)] == []
    core, deeper = re.search(r"^\| \[01 .*\| (\d+) \| \[(\d+)\]", page, re.M).groups()
    for right, wrong in (
        (f"| {core} | [{deeper}]", f"| 9{core} | [{deeper}]"),
        (f"[{deeper}](notebooks/deeper/01", "[9](notebooks/deeper/01"),
    ):
        (found,) = house.minutes_findings(page.replace(right, wrong), books)
        assert found.endswith(f"{core} minutes; deeper, {deeper}")


def test_the_set_up_cell_is_short():
    title, *lines = house.SETUP_CELL.splitlines()
    assert title.startswith("# @title ")
    assert len(list(filter(str.strip, lines))) <= 21  # of which 5 say what is wrong
    assert all(len(line) <= 88 for line in lines)


def test_lessons_install_in_colab_what_the_requirements_say():
    """Lesson 11 its reader of files, each lesson with annotated sentences conllu."""
    requirements = (house.ROOT / "requirements.txt").read_text("utf-8")
    installing = {"gguf": 0, "conllu": 0}
    for path in house.notebooks():
        source = "".join(house.text(c["source"]) for c in house.Notebook(path).code)
        for package, needed in {
            "gguf": path.name.startswith("11"),
            "conllu": "utils.syntax" in source,
        }.items():
            wanted = re.search(f"^{package}\\S+,<\\S+", requirements, re.M)[0]
            found = re.findall(rf'"({package}[<>=][^"]+)"', source)
            assert found == [wanted] * needed, (path.name, package)
            installing[package] += needed
    assert installing == {"gguf": 2, "conllu": 5}
