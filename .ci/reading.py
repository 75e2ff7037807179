"""What a page asks of its reader, counted: code cells, words, figures and minutes."""

import re

# A core lesson at most; `minutes` counts 20 s a visible code cell, 200 words a minute
# and twice the minutes that the cards of the exercises state.
BUDGET = {"visible": 45, "figures": 8, "exercises": 3, "minutes": 80}
RUN = 2  # visible code cells without a sentence between them


def text(source):
    """Notebook files hold a text as one string or as a list of lines."""
    return "".join(source) if isinstance(source, list) else source or ""


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


def runs(cells):
    """Yield (visible code cell, how many of them stand since the last text)."""
    run = 0
    for cell in cells:
        if cell["cell_type"] == "markdown":
            run = 0
        elif not is_folded(cell):
            run += 1
            yield cell, run


def asks(cells):
    """Return {what: how much} that these cells ask of their reader."""
    texts = [text(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    code = [c for c in cells if c["cell_type"] == "code"]
    cards = [int(m) for s in texts for m in re.findall(r"·\s*(\d+) minutes", s)]
    stated = re.findall(r"(\d+) minutes", "\n".join(texts))
    counted = {
        "visible": sum(not is_folded(cell) for cell in code),
        "words": sum(map(words, texts)),
        "figures": sum(
            "image/png" in o.get("data", {}) for c in code for o in c["outputs"]
        ),
        "exercises": len(cards),
    }
    minutes = counted["visible"] / 3 + counted["words"] / 200 + 2 * sum(cards)
    return counted | {
        "minutes": round(minutes),
        "stated": int(stated[0]) if stated else 0,
    }
