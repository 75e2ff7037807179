"""The house rules of the notebooks, read from their JSON alone: nothing is run.

usage: python .ci/house.py [NOTEBOOK...]      default: all, and README.md

Each rule is a function that yields (cell or None, what is wrong and what to do).
"""

import json
import re
import sys
from functools import cached_property
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import reading
from reading import is_folded, text

ROOT = Path(__file__).resolve().parents[1]

METADATA = {  # all that a notebook says about itself; .ci/refresh writes it
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}
CELL_METADATA = {
    "tags",
    "jupyter",
    "cellView",
    "jp-MarkdownHeadingCollapsed",
    "shows_broken",  # {exercise: [mistakes]}: what the cell shows, its checker rejects
}
# A folded cell shows its title, not its source: in JupyterLab, Colab and on the site.
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}
FOLDED_TAG, TITLE = "hide-input", "# @title "

# The set-up cell of every notebook, folded, and the line of Markdown right above it.
# .ci/publish writes the repository's own address in the place of OWNER/NAME.
SETUP_LINE = (
    "The next cell finds the course's files, or fetches them if this notebook was "
    "opened alone, as in Colab. It installs nothing."
)
SETUP_CELL = """\
# @title Set-up: find the course's files, or fetch them once
import os
import subprocess
import sys
from pathlib import Path

REPO_URL = os.environ.get("COURSE_REPO_URL", "https://github.com/OWNER/NAME")


def is_course(folder):  # a folder of downloaded lessons has no utils
    lesson = folder / "notebooks" / "01_scaled_dot_product_attention.ipynb"
    return lesson.is_file() and (folder / "utils" / "viewer.js").is_file()


places = [Path.cwd(), *Path.cwd().parents, Path("attention-head-by-head").resolve()]
root = next(filter(is_course, places), places[-1])
if not root.exists():  # opened alone: fetch the course
    assert "/OWNER/" not in REPO_URL, "set COURSE_REPO_URL to the course's address"
    git = f'git clone -q --depth=1 "{REPO_URL}" {root.name}'
    failed, words = subprocess.getstatusoutput(git)
    assert not failed, f"git could not fetch the course: {words}"
assert is_course(root), f"{root} is not the whole course: rename it and run this again"
os.chdir(root / "notebooks")
sys.path.insert(0, str(root))
import utils

said = f"another utils is in use, {utils}: restart the kernel and run this cell first"
assert getattr(utils, "__file__", "") == str(root / "utils" / "__init__.py"), said"""
SETUP_ADDRESS = re.compile(r'(?<="COURSE_REPO_URL", "https://github\.com/)[^"]+')
REFRESH = "run .ci/refresh on it"
# Prints a total that changes with every new exercise: it is run, and never stored.
PROGRESS = "progress()"

ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")
PATH = re.compile(r"(?<![\w:/.<])(?:~?/[\w.-]+/[\w./-]+|[A-Za-z]:\\\w+)|ipykernel_\d+")
# 1e-05 is let through: a mantissa of exactly 1 is a setting, not a measurement
DIGITS = re.compile(r"\d*\.\d{5,}|(?:\d+\.\d+|(?<![\d.])[02-9])e-\d\d")

RULES = []


def rule(function):
    RULES.append(function)
    return function


class Notebook:
    """A stored notebook and what the rules ask of it."""

    def __init__(self, path):
        self.path = Path(path).resolve()
        self.json = json.loads(self.path.read_text(encoding="utf-8"))
        self.cells = self.json["cells"]

    @cached_property
    def code(self):
        return [c for c in self.cells if c["cell_type"] == "code"]

    @cached_property
    def markdown(self):
        return [c for c in self.cells if c["cell_type"] == "markdown"]

    @property
    def outputs(self):
        return [(c, o) for c in self.code for o in c["outputs"]]

    @property
    def deeper(self):
        """Whether it is the second reading of a lesson."""
        return self.path.parent.name == "deeper"

    @property
    def core(self):
        """Whether it is the first reading of a lesson that has a second one."""
        return (self.path.parent / "deeper" / self.path.name).exists()

    @property
    def folder(self):
        """The folder of the cores."""
        return self.path.parent.parent if self.deeper else self.path.parent

    @property
    def setup(self):
        return text(self.code[0]["source"]) if self.code else ""


def tags(cell):
    return set(cell["metadata"].get("tags", []))


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


def prose(markdown):
    """A Markdown text without its code and formulas."""
    return re.sub(
        r"```.*?```|~~~.*?~~~|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$",
        "",
        markdown,
        flags=re.S,
    )


def code_lines(cell):
    return [line for line in text(cell["source"]).splitlines() if line.strip()]


# --- the file -----------------------------------------------------------------------


@rule
def file_format(book):
    version = book.json.get("nbformat"), book.json.get("nbformat_minor")
    if version != (4, 5):
        yield None, f"nbformat {version}, not (4, 5): {REFRESH}"
    if book.path.stat().st_size >= 1_000_000:
        yield None, "1 MB or more: make figures smaller or fewer"


@rule
def metadata(book):
    if book.json.get("metadata") != METADATA:
        yield None, f"notebook metadata not as in .ci/house.py: {REFRESH}"
    for cell in book.cells:
        if extra := set(cell["metadata"]) - CELL_METADATA:
            yield cell, f"metadata {sorted(extra)}: {REFRESH}"
    for cell, output in book.outputs:
        if output.get("metadata"):
            yield cell, f"an output with metadata: {REFRESH}"


@rule
def ids(book):
    seen = set()
    for cell in book.cells:
        if not re.fullmatch(r"[\w-]{1,64}", cell.get("id", "")):
            yield cell, f"no valid id: {REFRESH}"
        elif cell["id"] in seen:
            yield cell, "the id of an earlier cell: give it one of its own"
        seen.add(cell.get("id"))


# --- execution and outputs ----------------------------------------------------------


@rule
def executed_in_order(book):
    for number, cell in enumerate(book.code, start=1):
        if not text(cell["source"]).strip():
            yield cell, "an empty code cell: remove it"
        if (count := cell.get("execution_count")) != number:
            yield cell, f"execution count {count}, not {number}: {REFRESH}"


@rule
def progress_is_not_stored(book):
    for cell in book.code:
        if not re.search(r"\bprogress\(", source := text(cell["source"])):
            continue
        if source != PROGRESS:
            yield cell, f"calls progress among other things: {PROGRESS} stands alone"
        elif cell["outputs"]:
            yield cell, f"stores a total that changes with every exercise: {REFRESH}"


@rule
def no_error(book):
    for cell, output in book.outputs:
        if output["output_type"] == "error" and "raises-exception" not in tags(cell):
            yield cell, f"stores {output['ename']}: repair it, or tag raises-exception"


@rule
def no_stderr(book):
    for cell, output in book.outputs:
        if output.get("name") == "stderr":
            yield cell, f"stderr {text(output['text'])[:60]!r}: silence its cause"


@rule
def no_fragile_mime_type(book):
    for cell, output in book.outputs:
        for mime in output.get("data", {}):
            if mime == "image/svg+xml":
                yield cell, "SVG output, not shown in an untrusted notebook: use PNG"
            if "widget" in mime:
                yield cell, "a stored widget, dead when opened: print or plot instead"


@rule
def nothing_of_this_machine(book):
    for cell, output in book.outputs:
        if found := ADDRESS.search(said(output)) or PATH.search(said(output)):
            yield cell, f"prints the address or path {found[0]!r}: do not print it"


@rule
def digits(book):
    for cell, output in book.outputs:
        found = DIGITS.findall(said(output))
        if found and "nbval-ignore-output" not in tags(cell):
            yield cell, f"{found[:3]}: more digits than CPUs agree on: round to 3"


@rule
def caption(book):
    for cell in book.code:
        data = [output.get("data", {}) for output in cell["outputs"]]
        for picture, below in zip(data, [*data[1:], {}]):
            if not picture.keys() & {"image/png", "image/jpeg"}:
                continue
            words = text(below.get("text/plain"))
            if "text/plain" in picture or read(below.get("text/html")) != words:
                yield cell, "a picture without a caption under it: show(figure)"
            elif len(words) < 40 or not re.search(r"\d", words):
                yield cell, f"caption {words[:40]!r}: 40+ letters, and with numbers"


@rule
def alt_text(book):
    for cell in book.markdown:
        yield from ((cell, message) for message in images_without_alt(cell["source"]))


@rule
def compared_by_nbval(book):
    ignored = [
        cell
        for cell in book.code
        if "nbval-ignore-output" in tags(cell) and text(cell["source"]) != PROGRESS
    ]
    if len(ignored) * 10 > len(book.code):
        yield (
            ignored[-1],
            f"{len(ignored)} of {len(book.code)} outputs ignored: 1 in 10",
        )
    if book.core or book.deeper:
        for cell in ignored:
            after = book.code[book.code.index(cell) + 1 :][:1]
            if not (
                after and is_folded(after[0]) and "assert" in text(after[0]["source"])
            ):
                yield cell, "ignored, and no folded cell with an assertion follows it"
    for cell in book.code:
        if "nbval-skip" in tags(cell):
            yield cell, "tagged nbval-skip: every cell is run"
        if re.search("NBVAL_|PYTEST_VALIDATE", text(cell["source"])):
            yield cell, "an nbval comment: use the cell tag instead"


# --- sources ------------------------------------------------------------------------


@rule
def set_up_cell(book):
    if not book.code or SETUP_ADDRESS.sub("OWNER/NAME", book.setup) != SETUP_CELL:
        yield None, "the first code cell is not SETUP_CELL of .ci/house.py: copy it"
        return
    setup = book.code[0]
    first = Notebook(min(book.folder.glob("*.ipynb"), default=book.path))
    if book.setup != first.setup:
        yield setup, f"names another address than {first.path.name}: run .ci/publish"
    above = text(book.cells[max(book.cells.index(setup) - 1, 0)]["source"])
    if above.rpartition("\n")[2] != SETUP_LINE:
        yield setup, "the line above it is not SETUP_LINE of .ci/house.py: copy it"


@rule
def folding(book):
    for cell in book.code:
        titled = text(cell["source"]).startswith(TITLE)
        kept = {key: cell["metadata"].get(key) for key in FOLDED}
        marks = [kept == FOLDED, FOLDED_TAG in tags(cell)]
        if titled and not all(marks):
            yield cell, f"has a title, but is not folded everywhere: {REFRESH}"
        elif not titled and (any(marks) or any(kept.values())):
            yield cell, f"folded without a title: begin with {TITLE!r}, or unfold it"


@rule
def text_between(book):
    for cell, run in reading.runs(book.cells) if book.core or book.deeper else ():
        if run == reading.RUN + 1:
            yield (
                cell,
                f"visible code cell {run} without a sentence since the last text",
            )


@rule
def budget(book):
    if not (book.core or book.deeper):
        return
    asked = reading.asks(book.cells)
    for what, most in reading.BUDGET.items() if book.core else ():
        if asked[what] > most:
            yield (
                None,
                f"{asked[what]} {what}, {most} at most: the rest goes to deeper/",
            )
    if asked["stated"] != asked["minutes"]:
        yield None, f"states {asked['stated']} minutes, but asks {asked['minutes']}"


@rule
def size_of_cells(book):
    for cell in book.code:
        if len(lines := code_lines(cell)) > 25:
            yield cell, f"{len(lines)} lines of code: 25 at most, split it"
        if any(len(line) > 88 for line in lines):
            yield cell, "a line of more than 88 characters: run `ruff format`"


PARTS = {  # that every lesson of its kind has
    "core": (
        "After this lesson you can",
        "If you remember one thing",
        "What you now know",
        "Check yourself",
        "Words of this lesson",
        "](deeper/{name})",
    ),
    "deeper": ("What you now know", "](../{name})"),
    "whole": ("You will be able to", "What you now know", "Check yourself"),
}


@rule
def frame(book):
    number = book.path.name[:2]
    begin = text(book.cells[0]["source"]) if book.cells else ""
    if not re.match(rf"# {re.escape(number)} \S", begin):
        yield None, f"does not begin with '# {number} Title': number it as its file"
    whole = "\n".join(text(cell["source"]) for cell in book.markdown).lower()
    kind = "deeper" if book.deeper else "core" if book.core else "whole"
    for part in PARTS[kind]:
        part = part.format(name=book.path.name)
        if part.lower() not in whole:
            yield None, f"has no '{part}': every lesson has the same frame"
    if book.deeper and not (book.folder / book.path.name).exists():
        yield None, f"is the deeper notebook of no lesson: no ../{book.path.name}"


@rule
def links(book):
    for cell in book.markdown:
        for message in dead_links(text(cell["source"]), book.path):
            yield cell, message


@rule
def colab_badge(book):
    first = text(book.cells[0]["source"]) if book.cells else ""
    host = r"https://colab\.research\.google\.com/github/"
    badges = re.findall(host + r"([^/\s]+/[^/\s]+)/blob/main/([^\s)]+)", first)
    here = f"notebooks/{book.path.relative_to(book.folder).as_posix()}"
    if [path for _, path in badges] != [here]:
        yield None, f"first cell needs one Colab badge, to {here}"
    elif f'https://github.com/{badges[0][0]}"' not in book.setup:
        yield None, "badge and set-up cell name different repositories: .ci/publish"


# --- links and pictures in Markdown -------------------------------------------------


def images_without_alt(markdown):
    page = prose(text(markdown))
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)", page):
        if not alt.strip():
            yield f"picture {target[:40]!r} without alt text: ![what it shows](file)"
    for image in re.findall(r"<img\b[^>]*>", page):
        if not re.search(r'\balt="[^"]+"', image):
            yield f'{image[:40]!r} without alt text: add alt="what it shows"'


def dead_links(markdown, here):
    """What is wrong with the links in the Markdown of the file `here`."""
    page = prose(markdown)
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)", page)
    targets += re.findall(r"^\[[^\]]+\]:\s*(\S+)", page, flags=re.M)
    targets += re.findall(r'<(?:a|img)\b[^>]*?\b(?:href|src)="([^"]+)"', page)
    for target in targets:
        if re.match(r"[a-zA-Z][a-zA-Z+.-]*:", target):
            continue
        name, _, anchor = map(unquote, target.partition("#"))
        file = here.parent / name if name else here
        if name.startswith("/") or not file.exists():
            yield f"dead link {target!r}: no such file from here"
        elif (
            anchor and file.suffix in (".ipynb", ".md") and anchor not in anchors(file)
        ):
            yield f"dead link {target!r}: {file.name} has no such heading"


def anchors(path):
    """Anchors that JupyterLab (.ipynb) or GitHub (.md) makes of the headings."""
    if path.suffix == ".ipynb":
        sources = [text(cell["source"]) for cell in Notebook(path).markdown]
    else:
        sources = [path.read_text(encoding="utf-8")]
    found = set()
    for source in sources:
        source = re.sub(r"```.*?```|~~~.*?~~~", "", source, flags=re.S)
        for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", source, flags=re.M):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
            if path.suffix == ".md":
                heading = re.sub(r"[^\w\- ]", "", heading.lower())
            found.add(heading.replace(" ", "-"))
    return found


# --- the whole ----------------------------------------------------------------------


def findings(path):
    """Every breach of a rule in one notebook, as a list of sentences."""
    book = Notebook(path)
    found = []
    for check in RULES:
        for cell, message in check(book):
            place = book.path.name
            if cell is not None:
                index = next(i for i, c in enumerate(book.cells) if c is cell)
                place += f" cell {index} (id {cell.get('id')})"
            found.append(f"{place}: {message} [{check.__name__}]")
    return found


def page_findings(path):
    """Dead links and pictures without alt text in one Markdown page."""
    page = path.read_text(encoding="utf-8")
    found = [*dead_links(page, path), *images_without_alt(page)]
    return [f"{path.name}: {message}" for message in found]


def minutes_findings(page, books):
    """Lessons whose notebooks and minutes the table of README does not give."""
    for book in (book for book in books if book.core):
        name = book.path.name
        core, deeper = (
            reading.asks(Notebook(path).cells)["minutes"]
            for path in (book.path, book.folder / "deeper" / name)
        )
        row = rf"\| \[{name[:2]} .*\]\(notebooks/{name}\) \|.*"
        row += rf"\| {core} \| \[{deeper}\]\(notebooks/deeper/{name}\) \|"
        if not re.search(rf"^{row}$", page, re.M):
            yield f"README.md: no row has {name}, {core} minutes; deeper, {deeper}"


def notebooks():
    """The paths of all notebooks: the cores, and then the deeper ones."""
    folder = ROOT / "notebooks"
    return [*sorted(folder.glob("*.ipynb")), *sorted(folder.glob("deeper/*.ipynb"))]


def main(names):
    books = list(map(Path, names)) or notebooks()
    found = [message for book in books for message in findings(book)]
    if not names:
        readme = ROOT / "README.md"
        found += page_findings(readme)
        found += minutes_findings(readme.read_text("utf-8"), map(Notebook, books))
    for book in map(Notebook, books):
        if book.core:
            asked = ", ".join(
                f"{n} {what}" for what, n in reading.asks(book.cells).items()
            )
            print(f"{book.path.name}: {asked}")
    print("\n".join(found) or f"house rules: {len(books)} notebooks, nothing to say")
    return bool(found) or not books


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
