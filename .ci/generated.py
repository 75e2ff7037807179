"""The parts of the site's pages that are made: of words, of the labs, of the atlas."""

import re
import sys
from collections import Counter
from itertools import groupby

import reading
from reading import whole

# --- the words of all lessons -------------------------------------------------------

SECTION = re.compile(r"^## Words of this lesson\n(.*?)(?=^#|\Z)", re.M | re.S)
WORD = re.compile(r"[-*] \*\*(.+?)\*\*: (.+)")


def words(lessons, moved):
    """The Markdown of the page of all terms.

    lessons: {path: JSON of the notebook}. moved: function of a line and the path of its
        file that leads the links of the line from that file to the page.
    """
    found = []
    for path, book in lessons.items():
        for section in SECTION.findall(whole(book["cells"])):
            for item in re.findall(r"^[-*] .*", section, flags=re.M):
                if not (word := WORD.fullmatch(item.strip())):
                    sys.exit(f"{path}: write '- **term**: one line.', not {item!r}")
                term, line = word.groups()
                letters = re.sub(r"[^\w ]|_", "", term).casefold()
                line = f"- **{term}**: {moved(line, path)}"
                found.append((letters, f"{line} [Lesson {number_of(path)}]({path})\n"))
    page = "# Words\n\nThe terms of all lessons, "
    page += "each with the lesson that explains it.\n"
    found.sort(key=lambda word: word[0])
    for letter, group in groupby(found, key=lambda word: word[0][:1]):
        page += f"\n## {letter.upper()}\n\n" + "".join(line for _, line in group)
    return page


# --- the labs: sections, exercises and claims, read from the notebooks --------------

LENGTH, QUESTIONS = 90, 5  # minutes: of a lab, and at least for questions in it
# As many times the minutes that one reader needs: a class runs, predicts and talks.
# The cards of lessons that were not rewritten yet say less than readers needed.
OF_A_SECTION = 4 / 3
PART = re.compile(r"\{(\d\d §\d+|\d+\.\d+)\}")  # {01 §5}, or exercise {1.2}
CARD = re.compile(r"^### (Exercise (\S+) · .+)\n+\*Difficulty \d · (\d+) minutes", re.M)
CLAIM = re.compile(r"^\| (.+) \| (.+) \| (\d[\d, ]*) \|$", re.M)
CLAIMS = "| what it shows | how we know, and under which conditions | section |\n"


def labs(page, lessons):
    """The Markdown of the page of labs, from its source and {path: JSON}."""
    parts, paths = {}, {number_of(path): path for path in lessons}
    for path, book in lessons.items():
        parts |= parts_of(path, book["cells"])
    if lost := [name for name in PART.findall(page) if name not in parts]:
        sys.exit(f"labs.md: {lost} are in no lesson")
    made = []
    for lab in re.split(r"^(?=## )", page, flags=re.M):
        if lab.startswith("## Lab "):
            given = hand_in(lab, parts, paths)
            known = claims(lab, lessons)
            lab = f"{timetable(lab, parts)}{given}\n\n{known}\n"
        made.append(PART.sub(lambda found: parts[found[1]][0], lab))
    return "".join(made)


def parts_of(path, cells):
    """{"01 §5" or "1.2": (its link, the minutes that a class needs)} of one lesson."""
    sections = [("", [])]
    for cell in cells:
        before, *after = [cell["source"]]
        if cell["cell_type"] == "markdown":
            before, *after = re.split(r"^## ", before, flags=re.M)
        sections[-1][1].append(cell | {"source": before})
        for piece in after:
            section = cell | {"source": f"## {piece}"}
            sections.append((piece.partition("\n")[0], [section]))

    def link(name, heading):
        return f"[{name}](../../{path}#{heading.replace(' ', '-')})"

    parts, lesson = {}, number_of(path)
    for heading, inside in sections:
        minutes = OF_A_SECTION * reading.to_read(reading.asks(inside))
        if number := re.match(r"\d+", heading):
            linked = link(f"{lesson} §{heading}", heading)
            parts[f"{lesson} §{number[0]}"] = linked, minutes
        for heading, exercise, card in CARD.findall(whole(inside)):
            name = heading[0].lower() + heading[1:]
            parts[exercise] = link(name, heading), OF_A_SECTION * int(card)
    return parts


def timetable(lab, parts):
    """A lab with the minutes of each row of its table, and a last row for questions."""
    clock, last, lines = 0, 0, []
    for line in lab.split("\n"):
        if line.startswith("| what |"):
            line = f"| minutes {line}"
        elif line.startswith("|---"):
            line = f"|---{line}"
        elif line.startswith("| {"):
            _, what, in_class = line.split("|", 2)
            links, minutes = zip(*(parts[name] for name in PART.findall(what)))
            begin, clock, last = clock, clock + sum(minutes), len(lines) + 1
            line = f"| {begin:.0f}–{clock:.0f} | {'<br>'.join(links)} |{in_class}"
        lines.append(line)
    if LENGTH - clock < QUESTIONS:
        sys.exit(f"{lines[0]}: {clock:.0f} minutes, and no time for questions")
    lines.insert(last, f"| {clock:.0f}–{LENGTH} | | Questions, and what is for home. |")
    return "\n".join(lines)


def hand_in(lab, parts, paths):
    """The line that says what students hand in, its points, and the minutes at home."""
    points = {name for name in PART.findall(lab) if "." in name}
    numbers = sorted({name.partition(".")[0].zfill(2) for name in points})
    notebooks = ", ".join(f"[{n}](../../{paths[n]})" for n in numbers)
    home = sum(parts[n][1] for n in PART.findall(lab.partition("**For home.**")[2]))
    at_home = f" For home: {home:.0f} minutes." if home else ""
    return f"**Hand in.** {notebooks}. Points: {len(points)}.{at_home}"


def claims(lab, lessons):
    """The table of what the sections in a lab's timetable show."""
    rows = "\n".join(re.findall(r"^\| \{.*?\|", lab, flags=re.M))
    done, table = set(PART.findall(rows)), CLAIMS + "|---|---|---|\n"
    for path, book in lessons.items():
        number = number_of(path)
        known = whole(book["cells"]).partition("\n## What you now know\n")[2]
        for claim, how, where in CLAIM.findall(known.partition("\n## ")[0]):
            if {f"{number} §{section}" for section in where.split(", ")} <= done:
                table += f"| {claim} | {how} | [{number}](../../{path}) §{where} |\n"
    return table


def number_of(path):
    """The number of a lesson, from the path of its notebook: two digits."""
    return path.rpartition("/")[2][:2]


# --- the atlas, from the stored study -----------------------------------------------

NONE = "no role found"


def atlas(page, study):
    """The Markdown of the page of the atlas, from its source and the study's JSON."""
    runs = study["runs"]
    heads = {f"{row['model']} {row['head']}": row["scores"] for row in runs}
    rests = [row["scores"]["first token"] for row in runs if row["role"] == "induction"]
    counts, tables = {}, {}
    for model, about in study["models"].items():
        rows = [row for row in runs if row["model"] == model]
        roles = Counter(row["role"] or NONE for row in rows)
        named = sorted(roles, key=lambda role: (role == NONE, -roles[role]))
        count = ", ".join(f"{role} {roles[role]}" for role in named)
        counts[model] = f"Of {len(rows)} heads: {count}"
        tables[model] = table(rows, about["baselines"])
    resting = f"{min(rests):.2f} to {max(rests):.2f}"
    made = {"heads": heads, "counts": counts, "tables": tables, "resting": resting}
    return page.format(**study, **made)


def table(rows, baselines):
    """The table of the heads of one model, below its baselines."""
    lines = [["head", *baselines, "entropy"], ["---"] * (len(baselines) + 2)]
    for i, name in enumerate(("uniform", "untrained")):
        lines.append([f"*{name}*", *(f"{b[i]:.2f}" for b in baselines.values()), ""])
    for row in rows:
        bold = {row["role"]: "**"}
        scores = ((bold.get(role, ""), row["scores"][role]) for role in baselines)
        scores = [f"{mark}{score:.2f}{mark}" for mark, score in scores]
        lines.append([row["head"], *scores, f"{row['entropy']:.2f}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
