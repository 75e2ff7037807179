"""What a page asks of its reader, counted: the one clock of pages, README and rules."""

import json
import re

# At most: of a core lesson, and of any page.
CORE = {"visible": 45, "figures": 8, "exercises": 3, "sections": 6}
MINUTES = 100
# A visible code cell takes half a minute, and a question of "Check yourself" two; the
# cards of the exercises state the minutes that a reader needs.
A_CELL, WORDS_A_MINUTE, A_QUESTION = 0.5, 130, 2


def text(source):
    """Notebook files hold a text as one string or as a list of lines."""
    return "".join(source) if isinstance(source, list) else source or ""


def loaded(stored):
    """The JSON of a notebook's file, with each source as one string."""
    nb = json.loads(stored)
    for cell in nb["cells"]:
        cell["source"] = text(cell["source"])
    return nb


def texts(cells):
    """The Markdown of each cell that is text."""
    return [c["source"] for c in cells if c["cell_type"] == "markdown"]


def whole(cells):
    """The Markdown of a notebook, as one text."""
    return "\n\n".join(texts(cells))


def is_folded(cell):
    """Whether the reader sees only a title instead of the source of this cell."""
    return bool(cell["metadata"].get("jupyter", {}).get("source_hidden"))


def words(markdown):
    """The number of words of a text without folds, tables, headings and formulas."""
    for left_out in (r"<details>.*?</details>", r"```.*?```", r"\$\$.*?\$\$"):
        markdown = re.sub(left_out, " ", markdown, flags=re.S)
    unread = ("|", "#", "[![", "![")
    lines = [s for s in markdown.split("\n") if not s.lstrip().startswith(unread)]
    markdown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines))
    return len(re.sub(r"\$[^$]*\$|`[^`]*`", "x", markdown).split())


def questions(markdown):
    """The number of questions under "Check yourself", each in a fold or plain."""
    asked = re.findall(r"^(?:<details><summary>)?\d+\. ", markdown, flags=re.M)
    return len(asked) if "Check yourself" in markdown else 0


def asks(cells):
    """Return {what: how much} that these cells ask of their reader."""
    pages = texts(cells)
    code = [c for c in cells if c["cell_type"] == "code"]
    pictures = ["image/png" in o.get("data", {}) for c in code for o in c["outputs"]]
    cards = [int(m) for s in pages for m in re.findall(r"·\s*(\d+) minutes", s)]
    stated = re.search(r"(\d+) minutes", whole(cells))
    counted = {
        "visible": sum(not is_folded(cell) for cell in code),
        "words": sum(map(words, pages)),
        "figures": sum(pictures),
        "exercises": len(cards),
        "sections": sum(len(re.findall(r"^## \d", s, flags=re.M)) for s in pages),
    }
    answering = sum(cards) + A_QUESTION * sum(map(questions, pages))
    counted["minutes"] = round(to_read(counted) + answering)
    return counted | {"stated": int(stated[1]) if stated else 0}


def to_read(counted):
    """The minutes of the words and the visible cells."""
    return A_CELL * counted["visible"] + counted["words"] / WORDS_A_MINUTE
