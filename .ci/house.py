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
from pathlib import Path

import reading
from links import dead_links, images_without_alt, page_findings
from reading import is_folded, text

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
        self.size, self.json = len(stored.encode()), json.loads(stored)
        self.cells = self.json["cells"]
        self.code = [c for c in self.cells if c["cell_type"] == "code"]
        self.texts = [text(c["source"]) for c in self.cells if c not in self.code]
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
        line = text(above["source"]).rpartition("\n")[2]
        return line, text(self.code[0]["source"])


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


def read(html):
    """The words that a page shows of a piece of HTML."""
    return unescape(re.sub(r"<[^>]*>", "", text(html))).replace("\xa0", " ")


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

    return ATTACHED.sub(shown, text(cell["source"])), attached


# --- the rules: (name, what is wrong and what to do) --------------------------------


def of_file(book):
    version = book.json.get("nbformat"), book.json.get("nbformat_minor")
    if version != (4, 5):
        yield "file_format", f"nbformat {version}, not (4, 5): {REFRESH}"
    if book.size >= 1_000_000:
        yield "file_format", "1 MB or more: make figures smaller or fewer"
    if book.json.get("metadata") != METADATA:
        yield "metadata", f"notebook metadata not as in .ci/house.py: {REFRESH}"
    names = [cell.get("id", "") for cell in book.cells]
    if bad := [n for n in names if not re.fullmatch(r"[\w-]{1,64}", n)]:
        yield "ids", f"{bad} are no ids of cells: {REFRESH}"
    if twice := {name for name in names if names.count(name) > 1}:
        yield "ids", f"{twice} are ids of several cells: give each its own"
    first = Notebook(min(book.folder.glob("*.ipynb"), default=book.path))
    if not book.code or book.setup != first.setup:
        words = "the first code cell and the line above it are not as in"
        yield "set_up_cell", f"{words} {first.name}: copy them, or run .ci/publish"

    begin = text(book.cells[0]["source"]) if book.cells else ""
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
    whole = "\n".join(book.texts).lower()
    parts = [part.format(name=name) for part in PARTS[book.kind]]
    if (book.folder / "deeper" / name).exists() and book.kind == "core":
        parts.append(f"](deeper/{name})")
    for part in parts:
        if part.lower() not in whole:
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
    numbers = re.findall(r"^## (\d+) ", "\n".join(book.texts), flags=re.M)
    if numbers != [str(i + 1) for i in range(len(numbers))]:
        yield "frame", f"sections {', '.join(numbers)}: number them from 1 on"
    if asked["stated"] != asked["minutes"]:
        words = f"states {asked['stated']} minutes, but asks {asked['minutes']}"
        yield "budget", words
    seen = [
        "T" if c not in book.code else "" if is_folded(c) else "c" for c in book.cells
    ]
    if "ccc" in "".join(seen):
        yield "text_between", "three visible code cells without a sentence between them"


def of_text(book, cell):
    for wrong in dead_links(text(cell["source"]), book.path):
        yield "links", wrong
    for wrong in images_without_alt(text(cell["source"])):
        yield "alt_text", wrong
    source, attached = pictured(cell)
    if lost := {*re.findall(r"attachment:([^\s)\"'>]+)", source)} - {*attached}:
        yield "attachments", f"{sorted(lost)} are no drawings of assets/diagrams"
    if source != text(cell["source"]):
        yield "attachments", f"an alt text not as in diagrams.json: {REFRESH}"
    stored = cell.get("attachments", {}).items()
    stored = {name: {m: text(png) for m, png in data.items()} for name, data in stored}
    if stored != attached:
        words = "pictures missing, not as in assets/diagrams, or not named"
        yield "attachments", f"{words}: {REFRESH}"


def of_code(book, cell):
    source, number = text(cell["source"]), book.code.index(cell) + 1
    if not source.strip():
        yield "executed_in_order", "an empty code cell: remove it"
    if (count := cell.get("execution_count")) != number:
        yield "executed_in_order", f"execution count {count}, not {number}: {REFRESH}"
    if re.search(r"\bprogress\(", source):
        if source != PROGRESS:
            yield "progress_is_not_stored", f"{PROGRESS} stands alone in its cell"
        elif cell["outputs"]:
            yield "progress_is_not_stored", f"stores a total that changes: {REFRESH}"

    lines = [line for line in source.splitlines() if line.strip()]
    if len(lines) > 25:
        yield "size_of_cells", f"{len(lines)} lines of code: 25 at most, split it"
    if any(len(line) > 88 for line in lines):
        yield "size_of_cells", "a line of more than 88 characters: run `ruff format`"
    titled = source.startswith(TITLE)
    kept = {key: cell["metadata"].get(key) for key in FOLDED}
    marks = [kept == FOLDED, FOLDED_TAG in tags(cell)]
    if titled and not all(marks):
        yield "folding", f"has a title, but is not folded everywhere: {REFRESH}"
    elif not titled and (any(marks) or any(kept.values())):
        yield "folding", f"folded without a title: begin with {TITLE!r}, or unfold it"

    data = [output.get("data", {}) for output in cell["outputs"]]
    for picture, below in zip(data, [*data[1:], {}]):
        if not picture.keys() & {"image/png", "image/jpeg"}:
            continue
        words = text(below.get("text/plain"))
        alone = not words or "text/plain" in picture
        if alone or read(below.get("text/html")) != words:
            says = "a picture without a caption under it: show(figure, caption)"
            yield "caption", says
        elif len(words) < 40 or not re.search(r"\d", words):
            yield "caption", f"caption {words[:40]!r}: 40+ letters, and with numbers"


def compared_by_nbval(book, cell):
    name = "compared_by_nbval"
    if "nbval-skip" in tags(cell):
        yield name, "tagged nbval-skip: every cell is run"
    if re.search("NBVAL_|PYTEST_VALIDATE", text(cell["source"])):
        yield name, "an nbval comment: use the cell tag instead"
    unread = [c for c in book.code if ignored(c) and text(c["source"]) != PROGRESS]
    if cell not in unread:
        return
    if len(unread) * 10 > len(book.code):
        yield name, f"{len(unread)} of {len(book.code)} outputs ignored: 1 in 10"
    after = book.code[book.code.index(cell) + 1 :][:1]
    asserts = any(is_folded(c) and "assert" in text(c["source"]) for c in after)
    if not asserts:
        yield name, "ignored, and no folded cell with an assertion follows it"


def of_output(cell, output):
    if output.get("metadata"):
        yield "metadata", f"an output with metadata: {REFRESH}"
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


def breaches(book):
    """Yield (cell or None, (name of a rule, what is wrong)) of a notebook."""
    yield from ((None, wrong) for wrong in of_file(book))
    yield from ((None, wrong) for wrong in of_reader(book))
    for cell in book.cells:
        rules = [of_code, compared_by_nbval] if cell in book.code else [of_text]
        yield from ((cell, wrong) for rule in rules for wrong in rule(book, cell))
        for output in cell.get("outputs", []):
            yield from ((cell, wrong) for wrong in of_output(cell, output))
        if extra := set(cell["metadata"]) - CELL_METADATA:
            yield cell, ("metadata", f"metadata {sorted(extra)}: {REFRESH}")


def findings(path, stored=None):
    """Every breach of a rule in one notebook, as a list of sentences.

    The text `stored` may stand in the place of what the file holds.
    """
    book, found = Notebook(path, stored), []
    for cell, (name, message) in breaches(book):
        place = book.path.name
        if cell is not None:
            place += f" cell {book.cells.index(cell)} (id {cell.get('id')})"
        found.append(f"{place}: {message} [{name}]")
    return found


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
