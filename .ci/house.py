"""The house rules of the notebooks, read from their JSON alone: nothing is run.

usage: python .ci/house.py [NOTEBOOK...]   default: all, and the links of all pages

A rule yields its name and what is wrong and what to do; the rules of a file, of a text,
of a code cell and of an output stand together.
"""

import json
import re
import sys
from base64 import b64encode
from html import unescape
from itertools import pairwise
from pathlib import Path

import reading
from links import dead_links, images_without_alt, page_findings
from reading import is_folded, loaded, text, whole

ROOT = Path(__file__).resolve().parents[1]
DIAGRAMS = ROOT / "assets" / "diagrams"

METADATA = {  # all that a notebook says about itself; .ci/refresh writes it
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}
# The last is {exercise: [mistakes]}: what the cell shows, its checker rejects.
CELL_METADATA = {"tags", "jupyter", "cellView", "jp-MarkdownHeadingCollapsed"}
CELL_METADATA |= {"shows_broken"}
# A folded cell shows its title, not its source: in JupyterLab, Colab and on the site.
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}
FOLDED_TAG, TITLE = "hide-input", "# @title "
REFRESH = "run .ci/refresh on it"
# Prints a total that changes with every new exercise: it is run, and never stored.
PROGRESS = "progress()"

ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")
PATH = re.compile(r"(?<![\w:/.<])(?:~?/[\w.-]+/[\w./-]+|[A-Za-z]:\\\w+)|ipykernel_\d+")
# 1e-05 is let through: a mantissa of exactly 1 is a setting, not a measurement
DIGITS = re.compile(r"\d*\.\d{5,}|(?:\d+\.\d+|(?<![\d.])[02-9])e-\d\d")
BADGE = re.compile(r"colab\.research\.google\.com/github/(\S+?)/blob/main/([^\s)]+)")
ATTACHED = re.compile(r"!\[[^\]]*\]\(attachment:(\w+)\.png\)")
PARTS = {  # that every lesson of its kind has
    "core": [
        *("After this lesson you will be able to", "If you remember one thing"),
        *("What you now know", "Check yourself", "Words of this lesson"),
    ],
    "deeper": ["What you now know", "](../{name})"],
}


class Notebook:
    """A stored notebook and what the rules ask of it."""

    def __init__(self, path, stored=None):
        self.path = Path(path).resolve()
        stored = stored or self.path.read_text(encoding="utf-8")
        self.size, self.json = len(stored.encode()), loaded(stored)
        self.refreshed = normalised(loaded(stored))
        self.cells = self.json["cells"]
        self.code = [c for c in self.cells if c["cell_type"] == "code"]
        self.text = whole(self.cells)
        # A lesson has a first reading, its core, and a second one, deeper/.
        deeper = self.path.parent.name == "deeper"
        self.kind = "deeper" if deeper else "core"
        self.folder = self.path.parents[1 if deeper else 0]  # that of the cores
        self.name = self.path.relative_to(self.folder).as_posix()

    @property
    def setup(self):
        """The line of text right above the first code cell, and its source."""
        if not self.code:
            return "", ""
        above = self.cells[max(self.cells.index(self.code[0]) - 1, 0)]
        return above["source"].rpartition("\n")[2], self.code[0]["source"]


def tags(cell):
    return set(cell["metadata"].get("tags", []))


def ignored(cell):
    return "nbval-ignore-output" in tags(cell)


def said(output):
    """All that an output says in words."""
    data = output.get("data", {})
    parts = [text(output.get("text")), output.get("evalue", "")]
    parts += [text(data[mime]) for mime in data if mime.startswith("text/")]
    parts += output.get("traceback", [])
    unsaid = r"\x1b\[[\d;]*m|base64,[\w+/=]+|<script>.*?</script>"
    return re.sub(unsaid, "", "\n".join(parts), flags=re.S)


def pictured(cell):
    """A text's source and attachments, as the drawings that it names would have them.

    A drawing is named as ![](attachment:NAME.png); its alt text is in diagrams.json.
    """
    alts = json.loads((DIAGRAMS / "diagrams.json").read_text(encoding="utf-8"))
    attached = {}

    def shown(match):
        if (name := match[1]) not in alts:
            return match[0]
        png = b64encode((DIAGRAMS / f"{name}.png").read_bytes()).decode()
        attached[f"{name}.png"] = {"image/png": png}
        return f"![{alts[name]}](attachment:{name}.png)"

    return ATTACHED.sub(shown, cell["source"]), attached


def normalised(nb):
    """The notebook without what depends on who edited it, and when: .ci/refresh's."""
    nb["metadata"] = METADATA
    nb["nbformat"], nb["nbformat_minor"] = 4, 5
    for index, cell in enumerate(nb["cells"]):
        cell.setdefault("id", f"cell-{index:02d}")
        kept = {k: v for k, v in cell["metadata"].items() if k in CELL_METADATA}
        if cell["cell_type"] == "code" and cell["source"].startswith(TITLE):
            kept |= {**FOLDED, "tags": sorted({*kept.get("tags", []), FOLDED_TAG})}
        cell["metadata"] = kept
        if cell["cell_type"] == "markdown":
            cell["source"], attached = pictured(cell)
            cell.pop("attachments", None)
            if attached:
                cell["attachments"] = attached
        if cell["source"] == PROGRESS:
            cell["outputs"] = []
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output["metadata"] = {}
    return nb


# --- the rules: (name, what is wrong and what to do) --------------------------------


def as_refreshed(stored, refreshed):
    """Of the JSON of a notebook or of a cell."""
    for key in sorted({*stored, *refreshed} - {"cells"}):
        if stored.get(key) != refreshed.get(key):
            yield "refreshed", f"{key} not as .ci/refresh writes it: {REFRESH}"


def of_file(book):
    yield from as_refreshed(book.json, book.refreshed)
    if book.size >= 1_000_000:
        yield "size_of_file", "1 MB or more: make figures smaller or fewer"
    names = [cell["id"] for cell in book.cells if "id" in cell]
    if bad := [n for n in names if not re.fullmatch(r"[\w-]{1,64}", n)]:
        yield "ids", f"{bad} are no ids of cells: {REFRESH}"
    if twice := {name for name in names if names.count(name) > 1}:
        yield "ids", f"{twice} are ids of several cells: give each its own"
    first = Notebook(min(book.folder.glob("*.ipynb"), default=book.path))
    if not book.code or book.setup != first.setup:
        words = "the first code cell and the line above it are not as in"
        yield "set_up_cell", f"{words} {first.name}: copy them, or run .ci/publish"

    begin = book.cells[0]["source"] if book.cells else ""
    if [path for _, path in BADGE.findall(begin)] != [f"notebooks/{book.name}"]:
        yield "colab_badge", f"first cell needs one Colab badge, to {book.name}"
    elif f'//github.com/{BADGE.search(begin)[1]}"' not in book.setup[1]:
        yield "colab_badge", "badge and set-up cell name different repositories"
    name = book.path.name
    if not re.match(rf"# {re.escape(name[:2])} \S", begin):
        yield "frame", f"begins not with '# {name[:2]} Title': number it as its file"
    pictures = len(ATTACHED.findall(begin))
    if book.kind == "core" and pictures != 1:
        yield "frame", f"{pictures} drawings attached to the first cell, not one"
    parts = [part.format(name=name) for part in PARTS[book.kind]]
    if (book.folder / "deeper" / name).exists() and book.kind == "core":
        parts.append(f"](deeper/{name})")
    for part in parts:
        if part.lower() not in book.text.lower():
            yield "frame", f"has no '{part}': every lesson has the same frame"
    if book.kind == "deeper" and not (book.folder / name).exists():
        yield "frame", f"is the deeper notebook of no lesson: no ../{name}"


def of_reader(book):
    """How much a page asks of its reader."""
    asked, most = reading.asks(book.cells), {"minutes": reading.MINUTES}
    if book.kind == "core":
        most |= reading.CORE
    for what, limit in most.items():
        if asked[what] > limit:
            yield "budget", f"{asked[what]} {what}, {limit} at most"
    numbers = re.findall(r"^## (\d+) ", book.text, flags=re.M)
    if numbers != [str(i + 1) for i in range(len(numbers))]:
        yield "frame", f"sections {', '.join(numbers)}: number them from 1 on"
    stated, minutes = asked["stated"], asked["minutes"]
    if stated != minutes:
        yield "budget", f"states {stated} minutes, but asks {minutes}"
    shown = [cell for cell in book.cells if not is_folded(cell)]
    if "ccc" in "".join(cell["cell_type"][0] for cell in shown):
        yield "text_between", "three visible code cells without a sentence between them"


def of_text(book, cell):
    for wrong in dead_links(cell["source"], book.path):
        yield "links", wrong
    for wrong in images_without_alt(cell["source"]):
        yield "alt_text", wrong
    if cell["source"].count("<details>") != cell["source"].count("</details>"):
        yield "folding", "a <details> without its end hides the rest of the page"
    named = {*re.findall(r"attachment:([^\s)\"'>]+)", cell["source"])}
    if lost := named - pictured(cell)[1].keys():
        yield "attachments", f"{sorted(lost)} are no drawings of assets/diagrams"


def of_code(book, cell):
    source, number = cell["source"], book.code.index(cell) + 1
    if not source.strip():
        yield "executed_in_order", "an empty code cell: remove it"
    if (count := cell.get("execution_count")) != number:
        yield "executed_in_order", f"execution count {count}, not {number}: {REFRESH}"
    if re.search(r"\bprogress\(", source) and source != PROGRESS:
        yield "progress_is_not_stored", f"{PROGRESS} stands alone in its cell"

    lines = [line for line in source.splitlines() if line.strip()]
    if len(lines) > 25:
        yield "size_of_cells", f"{len(lines)} lines of code: 25 at most, split it"
    if any(len(line) > 88 for line in lines):
        yield "size_of_cells", "a line of more than 88 characters: run `ruff format`"
    folded = FOLDED_TAG in tags(cell) or any(map(cell["metadata"].get, FOLDED))
    if folded and not source.startswith(TITLE):
        yield "folding", f"folded without a title: begin with {TITLE!r}, or unfold it"

    data = [output.get("data", {}) for output in cell["outputs"]]
    for picture, below in pairwise([*data, {}]):
        if not picture.keys() & {"image/png", "image/jpeg"}:
            continue
        words = text(below.get("text/plain"))
        html = re.sub(r"<[^>]*>", "", text(below.get("text/html")))
        shown = unescape(html).replace("\xa0", " ")
        if not words or "text/plain" in picture or shown != words:
            says = "a picture without a caption under it: show(figure, caption)"
            yield "caption", says
        elif len(words) < 40 or not re.search(r"\d", words):
            yield "caption", f"caption {words[:40]!r}: 40+ letters, and with numbers"


def compared_by_nbval(book, cell):
    name = "compared_by_nbval"
    if "nbval-skip" in tags(cell):
        yield name, "tagged nbval-skip: every cell is run"
    if re.search("NBVAL_|PYTEST_VALIDATE", cell["source"]):
        yield name, "an nbval comment: use the cell tag instead"
    unread = [c for c in book.code if ignored(c) and c["source"] != PROGRESS]
    if cell not in unread:
        return
    if len(unread) * 10 > len(book.code):
        yield name, f"{len(unread)} of {len(book.code)} outputs ignored: 1 in 10"
    after = book.code[book.code.index(cell) + 1 :][:1]
    if not any(is_folded(c) and "assert" in c["source"] for c in after):
        yield name, "ignored, and no folded cell with an assertion follows it"


def of_output(cell, output):
    if output["output_type"] == "error" and "raises-exception" not in tags(cell):
        words = f"stores {output['ename']}: repair it, or tag raises-exception"
        yield "no_error", words
    if output.get("name") == "stderr":
        yield "no_stderr", f"stderr {text(output['text'])[:60]!r}: silence its cause"
    for mime in output.get("data", {}):
        if mime == "image/svg+xml" or "widget" in mime:
            words = f"{mime} is not shown in an untrusted notebook: PNG, or print it"
            yield "no_fragile_mime_type", words
    if found := ADDRESS.search(said(output)) or PATH.search(said(output)):
        words = f"prints the address or path {found[0]!r}: do not print it"
        yield "nothing_of_this_machine", words
    if (found := DIGITS.findall(said(output))) and not ignored(cell):
        yield "digits", f"{found[:3]}: more digits than CPUs agree on: round to 3"


def of_cell(book, cell):
    for rule in (of_code, compared_by_nbval) if cell in book.code else (of_text,):
        yield from rule(book, cell)
    for output in cell.get("outputs", []):
        yield from of_output(cell, output)


def findings(path, stored=None):
    """Every breach of a rule in one notebook, as a list of sentences.

    The text `stored` may stand in the place of what the file holds.
    """
    book = Notebook(path, stored)
    place = book.path.name
    found = [(place, wrong) for wrong in (*of_file(book), *of_reader(book))]
    for number, (cell, refreshed) in enumerate(
        zip(book.cells, book.refreshed["cells"])
    ):
        here = f"{place} cell {number} (id {cell.get('id')})"
        wrongs = *as_refreshed(cell, refreshed), *of_cell(book, cell)
        found += [(here, wrong) for wrong in wrongs]
    return [f"{place}: {message} [{name}]" for place, (name, message) in found]


# --- the whole ----------------------------------------------------------------------


def minutes_findings(page, books):
    """Lessons whose notebooks and minutes the table of README does not give."""
    minutes = {book.name: reading.asks(book.cells)["minutes"] for book in books}
    for name in (book.name for book in books if book.kind == "core"):
        core, deeper = minutes[name], minutes.get(f"deeper/{name}")
        link = rf" \[{deeper}\]\(notebooks/deeper/{name}\)" if deeper else ""
        row = rf"\| \[{name[:2]} .*\]\(notebooks/{name}\) \|.*"
        row += rf"\| {core} \|{link} \|"
        if not re.search(rf"^{row}$", page, re.M):
            yield f"README.md: no row has {name}, {core} minutes; deeper, {deeper}"


def notebooks(root=ROOT):
    """The paths of all notebooks: the cores, and then the deeper ones."""
    folder = root / "notebooks"
    return [*sorted(folder.glob("*.ipynb")), *sorted(folder.glob("deeper/*.ipynb"))]


def pages(root=ROOT):
    """The paths of all Markdown pages that the web site shows."""
    there = [root / "README.md", root / ".github" / "CONTRIBUTING.md"]
    there += sorted((root / "assets" / "pages").glob("*.md"))
    return [page for page in there if page.exists()]


def main(names):
    paths = list(map(Path, names)) or notebooks()
    found = [message for path in paths for message in findings(path)]
    books = list(map(Notebook, paths))
    if not names:
        found += [message for page in pages() for message in page_findings(page)]
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        found += minutes_findings(readme, books)
    for book in books:
        asked = reading.asks(book.cells)
        print(f"{book.name}:", ", ".join(f"{n} {what}" for what, n in asked.items()))
    print("\n".join(found) or f"house rules: {len(books)} notebooks, nothing to say")
    return bool(found) or not books


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
