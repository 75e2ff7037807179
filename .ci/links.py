"""Links and pictures in Markdown: dead ones, and pictures without alt text."""

import re
from urllib.parse import unquote

from reading import loaded, whole

FENCED = r"```.*?```|~~~.*?~~~"
CODE = rf"{FENCED}|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$"  # and formulas
SCHEME = re.compile(r"[a-zA-Z][a-zA-Z+.-]*:")  # of a link that leads elsewhere


def prose(markdown):
    """A Markdown text without its code and formulas."""
    return re.sub(CODE, "", markdown, flags=re.S)


def images_without_alt(markdown):
    page = prose(markdown)
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
        if SCHEME.match(target):
            continue
        name, _, anchor = map(unquote, target.partition("#"))
        file = here.parent / name if name else here
        has_headings = file.suffix in (".ipynb", ".md")
        if name.startswith("/") or not file.exists():
            yield f"dead link {target!r}: no such file from here"
        elif anchor and has_headings and anchor not in anchors(file):
            yield f"dead link {target!r}: {file.name} has no such heading"


def anchors(path):
    """Anchors that JupyterLab (.ipynb) or GitHub (.md) makes of the headings."""
    page = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        page = whole(loaded(page)["cells"])
    page = re.sub(FENCED, "", page, flags=re.S)
    found = set()
    for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", page, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        if path.suffix == ".md":
            heading = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(heading.replace(" ", "-"))
    return found


def page_findings(path):
    """Dead links and pictures without alt text in one Markdown page."""
    page = path.read_text(encoding="utf-8")
    found = [*dead_links(page, path), *images_without_alt(page)]
    return [f"{path.name}: {message}" for message in found]
