"""Trees are read or refused; heads are scored against them; the course's own trees."""

import functools
import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils import syntax
from utils.attention import MultiHeadAttention
from utils.baselines import bootstrap
from utils.pretrained import load_minilm
from utils.recording import record_attention
from utils.syntax import Arcs, Reading, arcs_of, held_out, parse_conllu, read_conllu
from utils.tests.helpers import guards

# --- sentences with their trees: | is a tab, + is |, / is a line end ---


def rows(text):
    return text.replace("|", "\t").replace("+", "|").replace("/", "\n")


GOOD = rows("""\
# newdoc
# sent_id = a
# text = The cat don't mind,  dogs do.
1|The|the|DET|_|_|2|det|_|_
2|cat|cat|NOUN|_|_|5|nsubj|_|_
3-4|don't|_|_|_|_|_|_|_|_
3|do|do|AUX|_|_|5|aux|_|_
4|n't|not|PART|_|_|5|advmod|_|_
5|mind|mind|VERB|_|_|0|root|_|SpaceAfter=No
5.1|it|it|PRON|_|_|_|_|5:obj|_
6|,|,|PUNCT|_|_|8|punct|_|SpaceAfter=Not+Gloss=x
7|dogs|dog|NOUN|_|_|8|nsubj:x|_|_
8|do|do|VERB|_|_|5|parataxis|_|SpaceAfter=No
8.1|so|so|ADV|_|_|_|_|8:advmod|_
9|.|.|PUNCT|_|_|5|punct|_|_

# text = Wait!
1|Wait|wait|VERB|_|_|0|root|_|Gloss=y+SpaceAfter=No
2|!|!|PUNCT|_|_|1|punct|_|_

""")
FIRST = (
    "a",
    "The cat don't mind,  dogs do.",
    tuple("The cat do n't mind , dogs do .".split()),
    tuple("DET NOUN AUX PART VERB PUNCT NOUN VERB PUNCT".split()),
    (2, 5, 5, 5, 0, 8, 8, 5, 5),
    tuple("det nsubj aux advmod root punct nsubj:x parataxis punct".split()),
    2,  # empty nodes
)
SECOND = "2", "Wait!", ("Wait", "!"), ("VERB", "PUNCT"), (0, 1), ("root", "punct"), 0


def test_what_a_sentence_holds(tmp_path):
    assert parse_conllu(GOOD) == [FIRST, SECOND] and parse_conllu("") == []
    path = tmp_path / "a.conllu"
    path.write_bytes(("\ufeff" + GOOD.replace("\n", "\r\n")).encode())
    assert read_conllu(path) == read_conllu(str(path)) == [FIRST, SECOND]
    lines = [line for line in GOOD.splitlines() if not line.startswith("#")]
    bare = [("1", " ".join(FIRST[2]), *FIRST[2:]), ("2", "Wait !", *SECOND[2:])]
    assert parse_conllu("\n".join(lines)) == bare


# what ~ in the sample ~ in its place
READ = """
two empty lines ~ 5|punct|_|_// ~ 5|punct|_|_///
no line end ~ 1|punct|_|_// ~ 1|punct|_|_
a line separator in a word ~ = Wait!/1|Wait ~ = Wa\u2028it!/1|Wa\u2028it
a token of one word ~ 9|. ~ 9-9|.|_|_|_|_|_|_|_|_/9|.
a root of some kind ~ 0|root|_|S ~ 0|root:x|_|S
"""
# what ~ in the sample ~ in its place ~ what the message says
REFUSED = """
spaces for tabs ~ 1|Wait|wait|VERB|_|_|0|root|_|Gloss=y+ ~ 1 Wait ~ sentence 2
an id left out ~ 7|dogs ~ 8|dogs ~ counted [1, 2, 3, 4, 5, 6, 8, 8, 9], not 1, 2, 3
an empty line too few ~ 5|punct|_|_//# ~ 5|punct|_|_/# ~ an empty line too few
an empty line too many ~ # text = Wait! ~ # text = Wait!/ ~ counted [], not 1, 2, 3
a head below zero ~ 8|nsubj ~ -1|nsubj ~ words [7] do not hang on the root
a head left out ~ 8|nsubj ~ _|nsubj ~ words [7] do not hang on the root
a head that is no word ~ 8|nsubj ~ 5.1|nsubj ~ '5.1' is not
a second root ~ 5|parataxis ~ 0|root ~ words [5, 8] have head 0
no root ~ 0|root|_|Gloss ~ 2|dep|_|Gloss ~ words [] have head 0
its own head ~ 8|nsubj ~ 7|nsubj ~ words [7] do not hang on the root
a cycle ~ 5|parataxis ~ 7|parataxis ~ words [6, 7, 8] do not hang on the root
a root below a word ~ 5|parataxis ~ 5|root ~ words [5, 8] the relation root
"""
CASES = [*READ.strip().split("\n"), *REFUSED.strip().split("\n")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.split(" ~ ")[0])
def test_what_is_read_and_what_is_refused(case):
    old, new, *says = map(rows, case.split(" ~ ")[1:])
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new)
    if not says:
        assert [s.heads for s in parse_conllu(text)] == [FIRST[4], SECOND[4]]
        return
    with pytest.raises(ValueError) as error:
        parse_conllu(text, "b.conllu")
    assert says[0] in str(error.value)


def tree_of(words, heads, relations):
    """Return a sentence; words and relations separated by spaces, heads from 1."""
    each = enumerate(zip(words.split(), heads, relations.split()), 1)
    lines = ["{}|{}|_|X|_|_|{}|{}|_|_/".format(i, *row) for i, row in each]
    return parse_conllu(rows("".join(lines)))[0]


# --- the course's own trees ---

SENTENCES = read_conllu(Path(__file__).parents[2] / "assets/annotated_sentences.conllu")
# Who changes a tree reads it again, and lets the validator of Universal Dependencies
# read it: what is digested was read arc by arc.
DIGEST = "b73564f57b015eab"


def test_the_course_s_trees_are_as_they_were_read():
    assert len({s.id for s in SENTENCES}) == len(SENTENCES) == 203
    assert hashlib.sha256(repr(SENTENCES).encode()).hexdigest()[:16] == DIGEST


# --- from subword tokens to words ---

minilm = functools.cache(load_minilm)
CAT = tree_of(
    "The embarrassed dog was seen by cats .",
    [3, 3, 5, 5, 0, 7, 5, 5],
    "det amod nsubj:pass aux:pass root case obl punct",
)
LONG = tree_of(
    "My old aunt reads novels and unputdownable plays to the neighbourhood",
    [3, 3, 4, 0, 4, 8, 8, 5, 11, 11, 4],
    "nmod:poss amod nsubj root obj cc amod conj case det obl",
)
SHORT = tree_of("Do n't \ufe0f", [0, 1, 1], "root advmod obj")  # a word of no token
ALL = [CAT, LONG, SHORT, tree_of("Why", [0], "root"), CAT]


def by_definition(weights, word_of, words):
    """Return weights between words, and the other word with most, of one head."""
    pieces = [[i for i, w in enumerate(word_of) if w == word] for word in range(words)]
    maps, most = torch.zeros(words, words), [-1] * words
    there = [word for word in range(words) if pieces[word]]
    for query in there:
        for key in there:
            maps[query, key] = weights[pieces[query]][:, pieces[key]].sum(-1).mean()
        others = [key for key in there if key != query]
        most[query] = max(others, key=maps[query].tolist().__getitem__, default=-1)
    return maps, most


class Small(nn.Module):
    """An untrained model of two layers with two heads each; it notes its inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(minilm().tokenizer.vocab_size, 8)
        self.layers = nn.ModuleList(MultiHeadAttention(8, 2) for _ in range(2))
        self.shapes = []

    def forward(self, ids, mask):
        self.shapes.append(tuple(ids.shape))
        assert mask is None or torch.equal(mask, (ids != 0)[:, None, None])
        x = 5 * self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x, mask=mask)[0]


@pytest.mark.parametrize(("batch_tokens", "batches"), [(1, 5), (20, 3), (2048, 1)])
def test_words_of_a_batch_are_those_of_each_sentence(batch_tokens, batches):
    model, tokenizer = Small(), minilm().tokenizer
    reading = syntax.read_words(model, tokenizer, ALL, batch_tokens=batch_tokens)
    assert len(model.shapes) == batches
    assert all(n * length <= max(20, batch_tokens) for n, length in model.shapes)
    assert reading.names == ("0.0", "0.1", "1.0", "1.1")
    assert reading.most.shape == (5, 11, 4) and reading.too_long() == []
    for row, sentence in enumerate(ALL):
        words = len(sentence.words)
        ids, word_of = syntax.word_pieces(tokenizer, sentence.words)
        special = tokenizer("").input_ids  # [CLS], [SEP]
        alone = [tokenizer(word).input_ids[1:-1] for word in sentence.words]
        assert ids == special[:1] + sum(alone, []) + special[1:]
        assert word_of == [-1, *(i for i, each in enumerate(alone) for _ in each), -1]
        layers = record_attention(model, torch.tensor([ids]), None)
        weights = torch.cat(layers, dim=1)[0]  # (heads, tokens, tokens)
        maps, most = zip(*(by_definition(head, word_of, words) for head in weights))
        assert reading.most[row, :words].mT.tolist() == [*most]
        found = syntax.word_maps(weights[None], torch.tensor([word_of]), words)
        assert_close(found[0], torch.stack(maps))
        assert (reading.most[row, words:] == -1).all()
        assert reading.pieces[row].tolist() == [*map(word_of.count, range(11))]


def read_all(**options):
    return syntax.read_words(Small(), minilm().tokenizer, ALL, **options)


def test_too_long_sentences_are_left_out_and_parts_are_rows():
    whole = read_all()
    longest = int(whole.pieces[1].sum()) + 2
    assert read_all(max_length=longest).too_long() == []
    reading = read_all(max_length=longest - 1)
    assert reading.too_long() == [1] and (reading.most[1] == -1).all()
    assert 1 not in arcs_of(reading, "to head").sentence
    for rest in ([0, 2, 3, 4], range(2, 5), torch.arange(5) != 1):
        part, chosen = reading.part(rest), torch.arange(5)[rest]
        assert part.sentences == tuple(ALL[i] for i in chosen)
        assert torch.equal(part.most, whole.most[chosen])
        assert torch.equal(part.pieces, whole.pieces[chosen])


# --- arcs ---


def known(sentences, most):
    """Return a Reading of words of one token each; most: for two heads."""
    most = torch.tensor(most)  # (sentences, words, heads)
    return Reading(tuple(sentences), most, torch.ones(most.shape[:2]), ("0.0", "0.1"))


def pairs(arcs):
    return list(zip(arcs.relation, arcs.word.tolist(), arcs.partner.tolist()))


def test_arcs_point_at_the_words_of_the_tree():
    most = [[2, 1], [2, 0], [4, 1], [4, 4], [1, 1], [6, 6], [4, 2], [0, 0]]
    reading = known([CAT], [most])
    names = "det amod nsubj:pass aux:pass case obl".split()
    to_head = list(zip(names, [0, 1, 2, 3, 5, 6], [2, 2, 4, 4, 6, 4]))
    arcs = arcs_of(reading, "to head")
    assert pairs(arcs) == to_head
    assert pairs(arcs_of(reading, "to dependent")) == [(r, b, a) for r, a, b in to_head]
    assert syntax.offsets(arcs).tolist() == [2, 1, 2, 1, 1, -2]
    assert syntax.accuracies(reading, arcs).tolist() == pytest.approx([1, 1 / 3])
    assert pairs(arcs.of("nsubj")) == []  # is not its subtype
    assert pairs(arcs.of("nsubj:pass")) == to_head[2:3]
    reading.pieces[0, 2] = 0  # the dog has no token, and so no arcs
    assert [r for r, *_ in pairs(arcs_of(reading, "to head"))] == names[3:]
    none = arcs_of(reading.part([]), "to head")
    assert none.word.shape == none.partner.shape == (0,) and none.relation == ()


def arcs(sentence, word, partner):
    columns = (torch.tensor(x) for x in (sentence, word, partner))
    return Arcs(*columns, tuple("abcdefgh")[: len(word)])


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([1, 1, -3, 1], (1, 0.75)), ([-7, -7, 1, -7], (-7, 0.75)), ([-2, 1], (1, 0.5))],
)
def test_best_offset_is_the_most_frequent_and_of_equals_the_nearest(values, wanted):
    size = len(values)
    found = arcs([0] * size, [9] * size, [9 + value for value in values])
    assert syntax.best_offset(found) == wanted


def test_permuted_arcs_keep_their_sentence_word_and_relation():
    words, partners = [0, 0, 1, 1, 2, 5, 3, 4], [7, 8, 7, 9, 6, 6, 4, 3]
    given = arcs([0, 1, 0, 1, 0, 2, 3, 3], words, partners)
    kept = set(zip(given.sentence.tolist(), given.word.tolist(), given.relation))
    seen = set()
    for seed in range(60):
        dealt = syntax.permuted(given, torch.Generator().manual_seed(seed))
        sentence, word, _ = (x.tolist() for x in dealt[:3])
        assert set(zip(sentence, word, dealt.relation)) <= kept
        by_sentence = [dealt.partner[dealt.sentence == i].tolist() for i in range(4)]
        assert [sorted(x) for x in by_sentence[:3]] == [[6, 7, 7], [8, 9], [6]]
        assert by_sentence[3] in ([], [4, 3])  # no word is its own partner
        seen.add(str(by_sentence))
    assert len(seen) == 12  # 3 orders of (6, 7, 7), 2 of (8, 9), 2 of the last


# --- chosen on one part, reported on the other ---


def made(*rows_):
    """Return a Reading of relations det from word 0, with two known heads.

    rows_: for each sentence (where the partner of word 0 stands, what each head names).
    """
    sentences = []
    for partner, _ in rows_:
        heads = [0 if i == partner else partner + 1 for i in range(4)]
        names = ["root" if i == partner else "dep" if i else "det" for i in range(4)]
        sentences.append(tree_of("a b c d", heads, " ".join(names)))
    return known(sentences, [[named] + [(-1, -1)] * 3 for _, named in rows_])


# head 0 is right on the first sentences, head 1 on the others; the partner stands 1
# word on in most of the first sentences, 2 in most of the others
OLD = made((1, (1, 3)), (1, (1, 2)), (1, (1, 1)), (2, (2, 3)))
NEW = made((2, (3, 2)), (2, (1, 2)), (2, (2, 2)), (1, (2, 1)))


def test_head_and_offset_are_chosen_on_one_part_and_reported_on_the_other():
    found = held_out(OLD, NEW, "det", "to head")
    assert found == found._replace(
        relation="det", direction="to head", head="0.0", chosen=1.0, accuracy=0.25,
        offset=1, offset_chosen=0.75, offset_accuracy=0.25, lift=0.0,
        elsewhere=pytest.approx(1 / 3), distance=7 / 4, arcs=4, arcs_chosen=4,
    )  # fmt: skip
    assert held_out(OLD, NEW, "det", "to dependent").distance == 7 / 4
    back = held_out(NEW, OLD, "det", "to head")
    assert (back.head, back.chosen, back.accuracy) == ("0.1", 1.0, 0.25)
    assert (back.offset, back.offset_chosen, back.offset_accuracy) == (2, 0.75, 0.25)


def test_intervals_are_of_the_reported_part_and_over_sentences_not_arcs():
    found, new = held_out(OLD, NEW, "dep", "to head"), arcs_of(NEW, "to head").of("dep")
    assert len(new.word) == 8  # two in each sentence
    right = (syntax.offsets(new) == found.offset).float()[:, None]
    assert found.offset_interval == tuple(bootstrap(right, new.sentence, 4).flatten())
    found = held_out(OLD, NEW, "det", "to head")
    assert found.interval[0] < found.accuracy == 0.25 < found.interval[1]
    # head and offset hit different arcs, so their difference is less certain than each
    assert found.lift_interval[0] < 0 < found.lift_interval[1]
    perfect = held_out(OLD, OLD, "det", "to head")
    assert perfect.interval == (1.0, 1.0) and perfect.lift == 0.25


FEW = known([SHORT], torch.zeros(1, 3, 2).tolist())
MAPS, WORD_OF = torch.ones(2, 3, 7, 7), torch.ones(3, 7, dtype=torch.long)
GUARDS = """
give a list | syntax.word_pieces(None, "Do not")
word_of .1, 7.; give 4 axes | syntax.word_maps(MAPS, WORD_OF[:1], 2)
.3, 7, 7., word_of .3, 7.; give 4 axes | syntax.word_maps(MAPS[0], WORD_OF, 2)
'to dependent' | arcs_of(OLD, "down")
occurs 0 times in the first .*, 0 times | held_out(OLD, NEW, "cop", "to head")
dep occurs 8 .* 0 times in the others | held_out(OLD, FEW, "dep", "to head")
dep occurs 0 .* 8 times in the others | held_out(FEW, OLD, "dep", "to head")
all .* longer than max_length=2 | read_all(max_length=2)
"""
test_guards = guards(GUARDS, globals())
