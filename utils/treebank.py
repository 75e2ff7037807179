"""Treebanks in CoNLL-U, the format of Universal Dependencies: read and checked.

Ten columns for each word, an empty line after each sentence. Source: de Marneffe et al.
2021, "Universal Dependencies"; https://universaldependencies.org/format.html
"""

import re
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple

UPOS = """
    ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X
""".split()
# the 37 of Universal Dependencies 2; a language may add subtypes, as in nmod:poss
RELATIONS = """
    acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det
    discourse dislocated expl fixed flat goeswith iobj list mark nmod nsubj nummod obj
    obl orphan parataxis punct reparandum root vocative xcomp
""".split()
Row = namedtuple("Row", "id form lemma upos xpos feats head relation deps misc line")


class Sentence(NamedTuple):
    """A sentence and its tree; `words[i]` depends on `words[heads[i] - 1]`.

    The words are the syntactic ones: "don't" is "do" and "n't". Words that an analysis
    adds to the text (empty nodes) are counted and left out.
    """

    id: str
    text: str
    words: tuple[str, ...]
    upos: tuple[str, ...]
    heads: tuple[int, ...]  # from 1, as in the file; 0 for the root
    relations: tuple[str, ...]
    multiword_tokens: int
    empty_nodes: int


def read_conllu(path) -> list[Sentence]:
    """Return the sentences of a CoNLL-U file; raise ValueError with the line if wrong.

    Checked: encoding, columns, ids, heads (one root, no cycle), the names of relations
    and parts of speech, and that the words are those of the text.
    """
    data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8; save it so.") from None
    return parse_conllu(text, str(path))


def parse_conllu(text: str, file: str = "text") -> list[Sentence]:
    """Return the sentences of a text in CoNLL-U; `file` is its name in the errors."""
    sentences, block, lines = [], [], text.split("\n")  # not at other line separators
    try:
        for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
            if line := line.removesuffix("\r"):
                block.append((number, line))
            elif block:
                sentences.append(_sentence(block))
                block = []
        if block:
            raise _error(number, "the last sentence must end with an empty line.")
        if not sentences:
            raise _error(1, "there is no sentence.")
    except ValueError as error:
        raise ValueError(f"{file}, {error}") from None
    return sentences


def _error(line: int, problem: str) -> ValueError:
    return ValueError(f"line {line}: {problem}")


def _sentence(block: list[tuple[int, str]]) -> Sentence:
    """Return the sentence that stands in some numbered lines."""
    comments, rows = {}, []
    for line, content in block:
        columns = content.split("\t")
        if content.startswith("#"):
            name, equals, value = content[1:].partition("=")
            if rows:
                raise _error(line, "a comment after a word; is an empty line missing?")
            if equals:
                comments.setdefault(name.strip(" "), value.strip(" "))
        elif len(columns) != 10 or "" in columns:
            problem = f"{len(columns)} columns, or an empty one"
            raise _error(line, f"{problem}; give 10 with tabs between, _ for none.")
        else:
            rows.append(Row(*columns, line))
    words = [row for row in rows if row.id.isdecimal()]
    if not words:
        raise _error(line, "a sentence without a word; is there an empty line in it?")
    tokens = _tokens(rows, len(words))
    _check_tree(words)
    return Sentence(
        id=comments.get("sent_id") or f"line {rows[0].line}",
        text=_text(comments.get("text"), tokens),
        words=tuple(row.form for row in words),
        upos=tuple(row.upos for row in words),
        heads=tuple(int(row.head) for row in words),
        relations=tuple(row.relation for row in words),
        multiword_tokens=sum("-" in row.id for row in rows),
        empty_nodes=sum("." in row.id for row in rows),
    )


def _tokens(rows: list[Row], words: int) -> list[Row]:
    """Return what the text consists of; refuse ids that do not count up from 1."""
    tokens, word, empty, until = [], 0, 0, 0  # until: last word of a multi-word token
    for row in rows:
        first, dash, last = row.id.partition("-")
        if row.id == f"{word}.{empty + 1}":
            empty += 1
            continue
        ends = range(word + 2, words + 1) if word >= until else ()
        if first != str(word + 1) or (dash and last not in map(str, ends)):
            missing = " (is an empty line missing?)" if row.id == "1" else ""
            problem = f"id {row.id} where {word + 1} should follow{missing}."
            raise _error(row.line, problem)
        if word >= until:
            tokens.append(row)
        if dash:
            until = int(last)
        else:
            word, empty = word + 1, 0
    return tokens


def _check_tree(words: list[Row]) -> None:
    """Refuse words that are not a tree: one root, no cycle, known names."""
    roots = [row.line for row in words if row.head == "0"]
    places = {str(place) for place in range(len(words) + 1)}
    for row in words:
        kind, subtype = (row.relation.split(":", 1) + ["none"])[:2]
        if row.head not in places:
            problem = f"head {row.head} does not exist; give 0 to {len(words)}."
        elif kind not in RELATIONS or not re.fullmatch("[a-z]+", subtype):
            problem = f"unknown relation {row.relation!r}."
        elif row.upos not in UPOS:
            problem = f"unknown part of speech {row.upos!r}."
        elif (row.head == "0") != (kind == "root"):
            problem = f"relation {row.relation} with head {row.head}; root goes with 0."
        elif row.line in roots[1:]:
            problem = f"a second root; the first is in line {roots[0]}."
        else:
            continue
        raise _error(row.line, problem)
    heads = [0, *(int(row.head) for row in words)]
    for start, row in enumerate(words, 1):
        path = [start]
        while (head := heads[path[-1]]) not in (0, *path):
            path.append(head)
        if head == start:
            cycle = " -> ".join(map(str, [*path, start]))
            raise _error(row.line, f"a cycle: {cycle}; no root above.")


def _text(text: str | None, tokens: list[Row]) -> str:
    """Return the text of a sentence; refuse tokens that do not spell it."""
    ends = ["" if "SpaceAfter=No" in row.misc.split("|") else " " for row in tokens]
    spelled = [row.form + end for row, end in zip(tokens, ends)]
    if text is None:
        return "".join(spelled).rstrip(" ")
    plain, at = re.sub(r"\s", " ", text + " "), 0  # a space that does not break, too
    for row, form in zip(tokens, spelled):
        if not plain.startswith(re.sub(r"\s", " ", form), at):
            found = plain[at : at + len(form)]
            raise _error(row.line, f"{form!r} is not in the text here, but {found!r}.")
        at += len(form)
    if plain[at:].strip():
        raise _error(row.line, f"the text goes on after its last word: {plain[at:]!r}.")
    return text
