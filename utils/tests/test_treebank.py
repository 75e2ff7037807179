"""A treebank is read whole; what is no tree of its text is refused, with its line."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.tests.draws import (
    FLAGS,
    Drawing,
    tried,
    unless,
)
from utils.tests.helpers import tree_of
from utils.treebank import RELATIONS, UPOS, Sentence, parse_conllu, read_conllu

GOOD = """\
# sent_id = a
# text = The cat don't mind, dogs do.
1|The|the|DET|_|_|2|det|_|_
2|cat|cat|NOUN|_|_|5|nsubj|_|_
3-4|don't|_|_|_|_|_|_|_|_
3|do|do|AUX|_|_|5|aux|_|_
4|n't|not|PART|_|_|5|advmod|_|_
5|mind|mind|VERB|_|_|0|root|_|SpaceAfter=No
5.1|it|it|PRON|_|_|_|_|5:obj|_
6|,|,|PUNCT|_|_|8|punct|_|_
7|dogs|dog|NOUN|_|_|8|nsubj|_|_
8|do|do|VERB|_|_|5|parataxis|_|SpaceAfter=No
8.1|so|so|ADV|_|_|_|_|8:advmod|_
9|.|.|PUNCT|_|_|5|punct|_|_

# sent_id = b
# text = Wait!
1|Wait|wait|VERB|_|_|0|root|_|SpaceAfter=No
2|!|!|PUNCT|_|_|1|punct|_|_

""".replace("|", "\t")
TREES = parse_conllu(GOOD)


def test_what_a_sentence_holds():
    first, second = TREES
    assert first.id == "a" and first.text == "The cat don't mind, dogs do."
    assert first.words == tuple("The cat do n't mind , dogs do .".split())
    assert first.heads == (2, 5, 5, 5, 0, 8, 8, 5, 5)
    assert first.relations[:3] == ("det", "nsubj", "aux")
    assert first.upos[-2:] == ("VERB", "PUNCT")
    assert (first.multiword_tokens, first.empty_nodes) == (1, 2)
    assert (second.multiword_tokens, second.empty_nodes) == (0, 0)


def test_without_its_text_a_sentence_is_its_words():
    lines = [line for line in GOOD.split("\n") if not line.startswith("#")]
    first, second = parse_conllu("\n".join(lines))
    assert first.text == "The cat don't mind, dogs do." and second.text == "Wait!"
    assert (first.id, second.id) == ("line 1", "line 14")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n\n", "\n\n\n"),  # more empty lines
        ("dogs", "do\u2028gs"),  # a line separator in a word
        ("cat don't", "cat\u00a0don't"),  # a space that does not break
        ("don't", "don’t"),  # a token that its words do not spell, as in German
    ],
)
def test_what_does_no_harm(old, new):
    found = parse_conllu(GOOD.replace(old, new))
    assert [s.heads for s in found] == [s.heads for s in TREES]


def test_files_of_windows_and_another_encoding_is_named_with_its_line(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_bytes("\ufeff".encode() + GOOD.replace("\n", "\r\n").encode())
    assert read_conllu(path) == read_conllu(str(path)) == TREES
    for encoding, line in ("latin-1", 2), ("utf-16", 1):
        path.write_bytes(GOOD.replace("dogs", "dögs").encode(encoding))
        with pytest.raises(ValueError, match=rf"a\.conllu, line {line}: not UTF-8"):
            read_conllu(path)


# what ~ old ~ new ~ line ~ words of the message; | is a tab, / a line end
WRONG = """
nine columns ~ 5|aux|_|_ ~ 5|aux|_ ~ 6 ~ 9 columns
eleven columns ~ 5|aux|_|_ ~ 5|aux|_|_|_ ~ 6 ~ 11 columns
spaces for tabs ~ 1|Wait|wait ~ 1 Wait wait ~ 18 ~ 8 columns
white space only ~ //# sent_id = b ~ / /# sent_id = b ~ 15 ~ 1 columns
no form ~ 7|dogs|dog ~ 7||dog ~ 11 ~ an empty one
id skipped ~ 7|dogs ~ 8|dogs ~ 11 ~ id 8 where 7
id with a zero ~ 7|dogs ~ 07|dogs ~ 11 ~ id 07 where 7
id of another script ~ 7|dogs ~ ٧|dogs ~ 11 ~ where 7
no empty line ~ _//# sent_id = b/# text = Wait! ~ _ ~ 15 ~ id 1 where 10 should
a comment in between ~ _//# sent_id = b ~ _/# sent_id = b ~ 15 ~ comment
comments alone ~ # text = Wait! ~ # text = Wait!/ ~ 17 ~ without a word
empty node out of place ~ 5.1|it ~ 4.1|it ~ 9 ~ id 4.1 where 6
empty node not counted up ~ 5.1|it ~ 5.2|it ~ 9 ~ id 5.2 where 6
token of one word ~ 3-4|don't ~ 3-3|don't ~ 5 ~ id 3-3 where 3
token out of place ~ 3-4|don't ~ 4-5|don't ~ 5 ~ id 4-5 where 3
token in a token ~ 4|n't|not ~ 4-5|n't|not ~ 7 ~ id 4-5 where 4
token without its end ~ 3-4|don't ~ 3-99|don't ~ 5 ~ id 3-99 where 3
token that ends nowhere ~ 3-4|don't ~ 3-x|don't ~ 5 ~ id 3-x where 3
head too far ~ 8|nsubj ~ 10|nsubj ~ 11 ~ head 10 does not exist
head below zero ~ 8|nsubj ~ -1|nsubj ~ 11 ~ head -1 does not exist
head left out ~ 8|nsubj ~ _|nsubj ~ 11 ~ head _ does not exist
head with a point ~ 8|nsubj ~ 5.1|nsubj ~ 11 ~ head 5.1 does not exist
head of 5,000 digits ~ 8|nsubj ~ NINES|nsubj ~ 11 ~ does not exist
two roots ~ 5|parataxis ~ 0|root ~ 12 ~ a second root; the first is in line 8
no root ~ 0|root|_|SpaceAfter=No/2 ~ 2|dep|_|SpaceAfter=No/2 ~ 18 ~ no root
its own head ~ 8|nsubj ~ 7|nsubj ~ 11 ~ cycle: 7 -> 7
two in a circle ~ 5|parataxis ~ 7|parataxis ~ 11 ~ cycle: 7 -> 8 -> 7
root below a word ~ 5|parataxis ~ 5|root ~ 12 ~ relation root with head 5
head 0, no root ~ 0|root|_|SpaceAfter=No/5 ~ 0|dep|_|_/5 ~ 8 ~ dep with
unknown relation ~ 8|nsubj ~ 8|subj ~ 11 ~ unknown relation 'subj'
unknown with subtype ~ 8|nsubj ~ 8|subj:pass ~ 11 ~ 'subj:pass'
subtype left out ~ 8|nsubj ~ 8|nsubj: ~ 11 ~ 'nsubj:'
capitals ~ 8|nsubj ~ 8|NSUBJ ~ 11 ~ 'NSUBJ'
unknown tag ~ dog|NOUN ~ dog|NN ~ 11 ~ part of speech 'NN'
another word ~ 7|dogs|dog ~ 7|Dogs|dog ~ 11 ~ 'Dogs ' is not in the text here, but 'dogs
text goes on ~ # text = Wait! ~ # text = Wait! No. ~ 19 ~ goes on
text ends ~ dogs do./ ~ dogs do/ ~ 14 ~ '. ' is not in the text
no space after ~ 5|parataxis|_|SpaceAfter=No ~ 5|parataxis|_|_ ~ 12 ~ but 'do.'
a space too many ~ mind, dogs ~ mind , dogs ~ 10 ~ but ' ,'
""".strip().split("\n")


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.split(" ~ ")[0])
def test_errors_say_where(case):
    case = case.replace("|", "\t").replace("/", "\n").replace("NINES", "9" * 5000)
    _, old, new, line, message = case.split(" ~ ")
    assert GOOD.count(old) == 1
    with pytest.raises(ValueError) as error:
        parse_conllu(GOOD.replace(old, new), "a file")
    assert str(error.value).startswith(f"a file, line {line}: "), error.value
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "no sentence"),
        ("\n\n", 1, "no sentence"),
        ("0.1\tso\tso\tADV\t_\t_\t_\t_\t0:root\t_\n\n", 1, "without a word"),
        (GOOD[:-1], 19, "must end with an empty line"),
        (GOOD[:-2], 19, "must end with an empty line"),
    ],
)
def test_ends_of_the_file(text, line, message):
    with pytest.raises(ValueError, match=f"^text, line {line}: .*{message}"):
        parse_conllu(text)


def test_every_cycle_is_found():
    """Random heads: refused exactly if not every word leads to the root."""
    draw, refused = random.Random(0), 0
    for _ in range(300):
        n = draw.randint(2, 6)
        heads = [draw.randint(1, n) for _ in range(n)]
        heads[draw.randrange(n)] = 0
        lead = {heads.index(0) + 1}
        for _ in heads:
            lead |= {i for i, head in enumerate(heads, 1) if head in lead}
        relations = " ".join("dep" if head else "root" for head in heads)
        if len(lead) == n:
            tree = tree_of("x " * n, heads, relations)
            assert tree.heads == tuple(heads)
        else:
            refused += 1
            with pytest.raises(ValueError, match="cycle"):
                tree_of("x " * n, heads, relations)
    assert 50 < refused < 250


# --- drawn sentences ---

# no tab and no line end; what else a word may hold is up to Unicode
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r")
FORMS = st.text(LETTERS, min_size=1, max_size=4).filter(lambda x: x == x.strip(" "))
KINDS = [kind for kind in RELATIONS if kind != "root"]
ROW = "{}\t{}\t_\t{}\t_\t_\t{}\t{}\t_\t{}".format
WRONG_ROWS = [
    lambda row: row[: row.rindex("\t")],  # a column lost
    lambda row: row + "\t_",
    lambda row: row.replace("\t_\t", "\t\t", 1),
    lambda row: row.replace("\t", " "),
    lambda row: row.replace("\t", "0\t", 1),  # another id
    lambda row: row + "\n# late = a comment",
]


def is_tree(parents):
    """Return whether every word leads to the one root."""
    if parents.count(0) != 1 or not set(parents) <= {*range(len(parents) + 1)}:
        return False
    places = range(1, len(parents) + 1)
    for _ in parents:  # one step up
        places = [place and parents[place - 1] for place in places]
    return not any(places)


def drawn_sentence(draw, line):
    """Return (its lines, the sentence that they hold, or None if they are wrong).

    line: the number of its first line.
    """
    count = draw(st.integers(1, 6))
    order, parents = draw(st.permutations(range(1, count + 1))), [0] * count
    for i, word in enumerate(order[1:], 1):  # the first is the root
        parents[word - 1] = order[draw(st.integers(0, i - 1))]
    other = draw.mostly(None, *range(count))
    if other is not None:
        parents[other] = draw(st.integers(0, count + 1))
    relations = [
        draw(st.sampled_from(KINDS)) if parent else "root" for parent in parents
    ]
    subtype = draw.one_of("", ":pass") if parents[0] else ""
    relations[0] += draw.mostly(subtype, ":", ":PASS", "s")
    relations[-1] = draw.mostly(relations[-1], "root", "dep")
    upos = [draw(st.sampled_from(UPOS)) for _ in parents]
    upos[-1] = draw.mostly(upos[-1], "NN", "_")
    names = [name.removesuffix(":pass") for name in relations]
    fine = is_tree(parents) and set(names) <= set(RELATIONS) and upos[-1] in UPOS
    fine = fine and all((p == 0) == (n == "root") for p, n in zip(parents, names))

    rows = draw.one_of([], [ROW("0.1", "x", "X", "_", "_", "_")])
    words, spelled, multiword, empty = [], "", 0, len(rows)
    while len(words) < count:
        size = min(draw.one_of(1, 1, 1, 2, 3), count - len(words))
        form, place = draw(FORMS), len(words) + 1
        misc = draw.one_of(
            "_", "SpaceAfter=No", "Gloss=a|SpaceAfter=No", "SpaceAfter=N"
        )
        spelled += form + ("" if "SpaceAfter=No" in misc.split("|") else " ")
        if size > 1:
            multiword += 1
            rows.append(ROW(f"{place}-{place + size - 1}", form, "_", "_", "_", misc))
        for i in range(place - 1, place + size - 1):
            words.append(form if size == 1 else draw(FORMS))
            rows.append(ROW(i + 1, words[i], upos[i], parents[i], relations[i], misc))
            for number in range(draw.one_of(0, 0, 0, 1, 2)):
                empty += 1
                rows.append(ROW(f"{i + 1}.{number + 1}", "x", "X", "_", "_", "_"))
    name = draw.one_of(None, "a-1", "ä = b")
    text = draw.mostly(draw.one_of(spelled.rstrip(" "), None), spelled + "?")
    comments = ["# newpar", f"# text = {text}"] if text is not None else []
    comments += [f"# sent_id = {name}"] if name else []
    wrong = draw.mostly(None, *WRONG_ROWS)
    if wrong is not None:
        row = draw(st.integers(0, len(rows) - 1))
        rows[row] = wrong(rows[row])
    if not fine or wrong is not None or text == spelled + "?":
        return comments + rows, None
    return comments + rows, Sentence(
        id=name or f"line {line + len(comments)}",
        text=spelled.rstrip(" "),
        words=tuple(words),
        upos=tuple(upos),
        heads=tuple(parents),
        relations=tuple(relations),
        multiword_tokens=multiword,
        empty_nodes=empty,
    )


@given(data=st.data())
def test_conllu(tmp_path_factory, data):
    draw = Drawing(data)
    lines, wanted = [""] * draw(st.integers(0, 2)), []
    for _ in range(draw(st.integers(0, 3))):
        rows, sentence = drawn_sentence(draw, len(lines) + 1)
        lines += [*rows, "", *[""] * draw.one_of(0, 1)]
        wanted.append(sentence)
    end = draw.one_of("\n", "\r\n")
    text = end.join([*lines, ""])
    ends = draw.mostly(True, False)
    text = text if ends else text.rstrip("\r\n")
    errors = unless(wanted and None not in wanted and ends, ValueError)
    path = tmp_path_factory.getbasetemp() / "drawn.conllu"
    path.write_bytes((draw(FLAGS) * "\ufeff" + text).encode())
    for found in tried(errors, parse_conllu, text), tried(errors, read_conllu, path):
        assert errors or found == wanted
