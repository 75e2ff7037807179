"""The page of labs: its sections, exercises and claims, read from the notebooks."""

import re
import sys

import house
import reading

LENGTH, QUESTIONS = 90, 5  # minutes: of a lab, and at least for questions in it
PART = re.compile(r"\{(?:(\d\d) §(\d+)|(\d+\.\d+))\}")  # {01 §5}, or exercise {1.2}
CARD = r"^### Exercise {} · (.+)\n+\*Difficulty \d · (\d+) minutes"
CLAIM = re.compile(r"^\| (.+) \| (.+) \| (\d[\d, ]*) \|$", re.M)
CLAIMS = "| what it shows | how we know, and under which conditions | section |\n"


def page(source, lessons):
    """The Markdown of the page, from its source and {path: JSON of the notebook}."""
    made = []
    for lab in re.split(r"^(?=## )", source, flags=re.M):
        if lab.startswith("## Lab "):
            given = hand_in(lab, lessons) + "\n\n"
            lab = timetable(lab, lessons) + given + claims(lab, lessons) + "\n"
        made.append(PART.sub(lambda match: part(match, lessons)[0], lab))
    return "".join(made)


def timetable(lab, lessons):
    """A lab with the minutes of each row of its table, and a last row for questions."""
    clock, last, lines = 0, 0, []
    for line in lab.split("\n"):
        if line.startswith("| what |"):
            line = f"| minutes {line}"
        elif line.startswith("|---"):
            line = f"|---{line}"
        elif line.startswith("| {"):
            _, what, in_class = line.split("|", 2)
            links, minutes = zip(
                *(part(found, lessons) for found in PART.finditer(what))
            )
            begin, clock = clock, clock + sum(minutes)
            what, last = "<br>".join(links), len(lines) + 1
            line = f"| {begin:.0f}–{clock:.0f} | {what} |{in_class}"
        lines.append(line)
    if LENGTH - clock < QUESTIONS:
        sys.exit(f"{lines[0]}: {clock:.0f} minutes, and no time for questions")
    lines.insert(last, f"| {clock:.0f}–{LENGTH} | | Questions, and what is for home. |")
    return "\n".join(lines)


def hand_in(lab, lessons):
    """The line that says what students hand in, its points, and the minutes at home."""
    names, points, home = set(), set(), 0
    _, _, for_home = lab.partition("**For home.**")
    for found in PART.finditer(lab):
        if exercise := found[3]:
            points.add(exercise)
            names.add(exercise.partition(".")[0].zfill(2))
    for found in PART.finditer(for_home):
        home += part(found, lessons)[1]
    notebooks = ", ".join(f"[{n}]({path_of(n, lessons)})" for n in sorted(names))
    at_home = f" For home: {home:.0f} minutes." if home else ""
    return f"**Hand in.** {notebooks}. Points: {len(points)}.{at_home}"


def claims(lab, lessons):
    """The table of what the sections in a lab's timetable show."""
    rows = re.findall(r"^\| \{.*?\|", lab, flags=re.M)
    done = {found.groups()[:2] for found in PART.finditer("\n".join(rows))}
    table = CLAIMS + "|---|---|---|\n"
    for path, book in lessons.items():
        _, _, known = prose(book["cells"]).partition("\n## What you now know\n")
        for claim, how, where in CLAIM.findall(known.partition("\n## ")[0]):
            if {(number_of(path), section) for section in where.split(", ")} <= done:
                table += f"| {claim} | {how} | [{number_of(path)}]({path}) §{where} |\n"
    return table


def part(found, lessons):
    """The link to a section or an exercise, and the minutes that a class needs."""
    lesson, section, exercise = found.groups()
    lesson = lesson or exercise.partition(".")[0].zfill(2)
    path = path_of(lesson, lessons)
    cells = lessons[path]["cells"] if path else []
    if exercise:
        card = re.search(CARD.format(re.escape(exercise)), prose(cells), flags=re.M)
        if card:
            heading = f"Exercise {exercise} · {card[1]}"
            name, minutes = f"exercise {exercise} · {card[1]}", 2 * int(card[2])
    else:
        card = sections(cells).get(section)
        if card:
            heading, inside = card
            asked = reading.asks(inside)
            minutes = 2 * (asked["visible"] / 3 + asked["words"] / 200)
            name = f"{lesson} §{heading}"
    if not card:
        sys.exit(f"labs.md: {found[0]} is in no lesson")
    return f"[{name}]({path}#{heading.replace(' ', '-')})", minutes


def path_of(lesson, lessons):
    """The path of a lesson's notebook from its number; None if there is none."""
    return next((path for path in lessons if number_of(path) == lesson), None)


def sections(cells):
    """The numbered sections of a notebook: {number: (heading, its cells)}."""
    found, current = {}, []
    for cell in cells:
        pieces = [cell]
        if cell["cell_type"] == "markdown":
            pieces = re.split(r"^(?=## )", house.text(cell["source"]), flags=re.M)
            pieces = [cell | {"source": piece} for piece in pieces]
        for piece in pieces:
            if heading := re.match(r"## ((\d*).*)", house.text(piece["source"])):
                found[heading[2]] = heading[1], (current := [])
            current.append(piece)
    return found


def prose(cells):
    """The Markdown of a notebook."""
    texts = (house.text(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return "\n\n".join(texts)


def number_of(path):
    """The number of a lesson, from the path of its notebook: two digits."""
    return path.rpartition("/")[2][:2]
