"""Heads and grammar: words from subword tokens, arcs, and what is held out."""

import functools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils.baselines import bootstrap
from utils.pretrained import load_minilm
from utils.recording import record_attention
from utils.syntax import (
    Arcs,
    Reading,
    accuracies,
    arcs_of,
    as_good,
    best_offset,
    held_out,
    most_read,
    offsets,
    permuted,
    read_words,
    word_maps,
    word_pieces,
)
from utils.tests.helpers import tree_of

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
SHORT = tree_of("Dogs bark", [2, 0], "nsubj root")
ONE = tree_of("Why", [0], "root")


# --- from subword tokens to words ---

PIECES = torch.tensor(  # [CLS] a b1 b2 c [SEP]; the rows of [CLS] and [SEP] are no word
    [
        [9.00, 9.00, 9.00, 9.00, 9.00, 9.00],
        [0.05, 0.05, 0.20, 0.15, 0.25, 0.30],
        [0.10, 0.30, 0.05, 0.05, 0.10, 0.40],
        [0.00, 0.20, 0.10, 0.00, 0.60, 0.10],
        [0.00, 0.05, 0.02, 0.03, 0.10, 0.80],
        [9.00, 9.00, 9.00, 9.00, 9.00, 9.00],
    ]
)[None, None]
WORD_OF = torch.tensor([[-1, 0, 1, 1, 2, -1]])
WORDS = torch.tensor(
    [
        [0.05, 0.35, 0.25],  # on b the sum of its tokens: more than on c
        [0.25, 0.10, 0.35],  # of b the mean of its tokens
        [0.05, 0.05, 0.10],  # [SEP] has 0.8; what is left decides
    ]
)


def test_weights_between_words():
    maps = word_maps(PIECES, WORD_OF, 3)
    assert_close(maps, WORDS[None, None])
    # a attends to c's only token more than to either token of b, and most to b
    assert most_read(maps, torch.tensor([[1, 2, 1]])).tolist() == [[[1, 2, 0]]]


def test_maps_of_a_batch_are_those_of_each():
    weights = torch.rand(2, 3, 7, 7, generator=torch.Generator().manual_seed(0))
    word_of = torch.tensor([[-1, 0, 0, 1, 2, 2, -1], [-1, 0, 1, 1, -1, -1, -1]])
    maps = word_maps(weights, word_of, 3)
    assert maps.shape == (2, 3, 3, 3)
    assert_close(maps[:1], word_maps(weights[:1], word_of[:1], 3))
    alone = word_maps(weights[1:, :, :5, :5], word_of[1:, :5], 2)
    assert_close(maps[1:, :, :2, :2], alone)
    assert not maps[1, :, 2].any() and not maps[1, :, :, 2].any()
    short = weights[..., :5], weights[:, :, :5]
    cases = (
        (weights, word_of[:1]),
        (weights, word_of[:, :5]),
        *[(x, word_of) for x in short],
    )
    for wrong in cases:
        with pytest.raises(ValueError, match="word_of has shape"):
            word_maps(*wrong, 3)
    with pytest.raises(ValueError, match="give .batch, heads"):
        word_maps(weights[0], word_of[0], 3)


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [([1, 1, 1], [1, 2, 1]), ([1, 0, 1], [2, -1, 0]), ([1, 0, 0], [-1, -1, -1])],
)
def test_most_read_leaves_out_the_word_itself_and_words_without_tokens(pieces, wanted):
    maps = torch.tensor([[0.9, 0.0, 0.0], [0.1, 0.6, 0.3], [0.2, 0.5, 0.0]])
    assert most_read(maps[None, None], torch.tensor([pieces])).tolist() == [[wanted]]


def test_pieces_of_words():
    words = ("Do", "n't", "embarrass", "\ufe0f", "me")
    ids, word_of = word_pieces(minilm().tokenizer, words)
    tokens = minilm().tokenizer.convert_ids_to_tokens(ids)
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
    assert tokens[1:5] == ["do", "n", "'", "t"]
    assert word_of[0] == word_of[-1] == -1 and word_of[1:5] == [0, 1, 1, 1]
    assert set(word_of) == {-1, 0, 1, 2, 4}  # the sign without a shape has no token
    with pytest.raises(TypeError, match="give a list"):
        word_pieces(minilm().tokenizer, "Do not")


# --- reading ---


class Known(nn.Module):
    """A layer whose heads are known; each puts 0.6 on [SEP] and 0.4 on a word.

    targets: for each head a function of the sentence and a word.
    """

    def __init__(self, sentences, targets):
        super().__init__()
        split = [word_pieces(minilm().tokenizer, s.words) for s in sentences]
        self.known = {tuple(ids): (s, of) for s, (ids, of) in zip(sentences, split)}
        self.targets = targets

    def forward(self, ids, mask, need_weights=True):
        size = ids.shape[1]
        weights = torch.zeros(len(ids), len(self.targets), size, size)
        for row, (each, keep) in enumerate(zip(ids, mask[:, 0, 0])):
            s, word_of = self.known[tuple(each[keep].tolist())]
            for query, word in enumerate(word_of):
                weights[row, :, query, len(word_of) - 1] = 0.6
                for head, target in enumerate(self.targets if word >= 0 else []):
                    there = [k for k, w in enumerate(word_of) if w == target(s, word)]
                    weights[row, head, query, there] += 0.4 / len(there)
        return ids, weights


class Gold(nn.Module):
    """Head 0.0 attends to the word's head in the tree (the root to the first word), 0.1
    to the word after that, head 1.0 to the next word."""

    def __init__(self, sentences):
        super().__init__()
        tree = [lambda s, i: max(0, s.heads[i] - 1)]
        tree.append(lambda s, i: max(1, s.heads[i]) % len(s.words))
        after = [lambda s, i: (i + 1) % len(s.words)]
        self.layers = nn.ModuleList(Known(sentences, x) for x in (tree, after))
        self.batches = []

    def forward(self, ids, mask):
        assert mask.shape == (len(ids), 1, 1, ids.shape[1])
        self.batches.append(ids.shape)
        for layer in self.layers:
            layer(ids, mask)


def gold_reading(sentences, **options):
    return read_words(Gold(sentences), minilm().tokenizer, sentences, **options)


ALL = [CAT, LONG, SHORT, ONE, CAT]


@pytest.mark.parametrize(("batch_tokens", "batches"), [(1, 5), (20, 3), (2048, 1)])
def test_a_head_that_attends_to_the_tree_is_right_everywhere(batch_tokens, batches):
    model, tokenizer = Gold(ALL), minilm().tokenizer
    reading = read_words(model, tokenizer, ALL, batch_tokens=batch_tokens)
    assert len(model.batches) == batches
    assert all(n * length <= max(20, batch_tokens) for n, length in model.batches)
    assert reading.names == ("0.0", "0.1", "1.0")
    assert reading.most.shape == (5, 11, 3) and reading.too_long() == []
    arcs = arcs_of(reading, "to head")
    assert len(arcs.word) == 6 + 10 + 1 + 6
    assert accuracies(reading, arcs)[0] == 1
    assert accuracies(reading, arcs)[1] < 0.1  # an arc that points at the next word
    assert reading.most[1, :, 0].tolist() == [max(0, head - 1) for head in LONG.heads]
    assert reading.most[2].tolist()[:3] == [[1] * 3, [0] * 3, [-1] * 3]
    assert (reading.most[3] == -1).all()  # the only word has no other


def test_too_long_sentences_are_named_and_left_out():
    reading, whole = gold_reading(ALL, max_length=10), gold_reading(ALL)
    assert reading.too_long() == [1]
    assert (reading.most[1] == -1).all() and (reading.pieces[1] == 0).all()
    assert 1 not in arcs_of(reading, "to head").sentence
    rest = torch.tensor([0, 2, 3, 4])
    for rows in (rest, tuple(rest.tolist()), torch.arange(5) != 1):
        part = reading.part(rows)
        assert part.sentences == (CAT, SHORT, ONE, CAT)
        assert torch.equal(part.most, whole.most[rest])
        assert torch.equal(part.pieces, whole.pieces[rest])
    long = [
        tree_of("a " * n, [0] + [1] * (n - 1), "root" + " dep" * (n - 1))
        for n in (510, 511)  # and two tokens more
    ]
    assert gold_reading([SHORT, *long]).too_long() == [2]
    for size, says in ((1, "all sentences are longer than max_"), (0, "max_length is")):
        with pytest.raises(ValueError, match=f"{says}.*{size}"):
            gold_reading(ALL, max_length=size)


def test_batches_of_minilm_are_as_sentence_by_sentence():
    encoder, tokenizer = minilm().model, minilm().tokenizer
    together = read_words(encoder, tokenizer, ALL)
    alone = read_words(encoder, tokenizer, ALL, batch_tokens=1)
    assert len(together.names) == 72 and together.names[19] == "1.7"
    assert torch.equal(together.most, alone.most)
    assert torch.equal(together.pieces, alone.pieces)
    ids, word_of = (torch.tensor([x]) for x in word_pieces(tokenizer, LONG.words))
    maps = word_maps(record_attention(encoder, ids)[1][:, 7:8], word_of, 11)
    found = most_read(maps, together.pieces[1:2])
    assert torch.equal(found[0, 0], together.most[1, :, 19].long())


# --- arcs ---


def pairs(arcs):
    return list(zip(arcs.relation, arcs.word.tolist(), arcs.partner.tolist()))


def test_arcs_point_at_the_words_of_the_tree():
    reading = gold_reading([CAT])
    names = "det amod nsubj:pass aux:pass case obl".split()
    to_head = list(zip(names, [0, 1, 2, 3, 5, 6], [2, 2, 4, 4, 6, 4]))
    arcs = arcs_of(reading, "to head")
    assert pairs(arcs) == to_head
    assert pairs(arcs_of(reading, "to dependent")) == [(r, b, a) for r, a, b in to_head]
    assert offsets(arcs).tolist() == [2, 1, 2, 1, 1, -2]
    second = torch.arange(6) == 1
    assert pairs(arcs.where(second)) == to_head[1:2]
    with pytest.raises(TypeError, match="give bool"):
        arcs.where(second.long())
    with pytest.raises(ValueError, match="'to dependent'"):
        arcs_of(reading, "down")


def test_a_relation_is_not_its_subtype_and_words_without_tokens_have_no_arcs():
    reading = gold_reading([CAT, LONG])
    arcs = arcs_of(reading, "to head")
    assert pairs(arcs.of("nsubj")) == [("nsubj", 2, 3)]
    assert pairs(arcs.of("nsubj:pass")) == [("nsubj:pass", 2, 4)]
    assert len(arcs.of("iobj").word) == 0
    reading.pieces[0, 2] = 0  # the dog
    some = arcs_of(reading, "to head")
    assert [r for r, *_ in pairs(some)][:3] == ["aux:pass", "case", "obl"]
    none = arcs_of(reading.part([]), "to head")
    assert none.word.shape == none.partner.shape == (0,) and none.relation == ()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([1, 1, -3, 1], (1, 0.75)), ([-7, -7, 1, -7], (-7, 0.75)), ([-2, 1], (1, 0.5))],
)
def test_best_offset_is_the_most_frequent(values, wanted):
    word = torch.full((len(values),), 9)
    arcs = Arcs(word * 0, word, word + torch.tensor(values), ("x",) * len(values))
    assert best_offset(arcs) == wanted


# --- chosen on one part, reported on the other ---


def made(rows):
    """Return a Reading of relations det from word 0, with two known heads.

    rows: for each sentence (where the partner of word 0 stands, what each head names).
    """
    sentences, most = [], []
    for partner, named in rows:
        heads = [0 if i == partner else partner + 1 for i in range(4)]
        relations = "det dep dep dep".split()
        relations[partner] = "root"
        sentences.append(tree_of("a b c d", heads, " ".join(relations)))
        most.append([list(named)] + [[-1, -1]] * 3)
    pieces = torch.ones(len(rows), 4, dtype=torch.int16)
    return Reading(tuple(sentences), torch.tensor(most), pieces, ("0.0", "0.1"))


# head 0 is right on the first sentences, head 1 on the others; the partner stands 1
# word on in most of the first sentences, 2 in most of the others
FIRST = made([(1, (1, 3)), (1, (1, 2)), (1, (1, 1)), (2, (2, 3))])
OTHER = made([(2, (3, 2)), (2, (1, 2)), (2, (2, 2)), (1, (2, 1))])


def test_head_and_offset_are_chosen_on_one_part_and_reported_on_the_other():
    found = held_out(FIRST, OTHER, "det", "to head")
    assert (found.relation, found.direction) == ("det", "to head")
    assert (found.head, found.chosen, found.accuracy) == ("0.0", 1.0, 0.25)
    assert (found.offset, found.offset_chosen) == (1, 0.75)
    assert (found.offset_accuracy, found.lift) == (0.25, 0.0)
    assert found.elsewhere == pytest.approx(1 / 3)
    assert (found.distance, found.arcs, found.arcs_chosen) == (7 / 4, 4, 4)
    back = held_out(OTHER, FIRST, "det", "to head")
    assert (back.head, back.chosen, back.accuracy) == ("0.1", 1.0, 0.25)
    assert (back.offset, back.offset_chosen, back.offset_accuracy) == (2, 0.75, 0.25)
    with pytest.raises(ValueError, match="cop occurs 0 times in the first sentences"):
        held_out(FIRST, OTHER, "cop", "to head")
    for parts in ((FIRST, gold_reading([SHORT])), (gold_reading([SHORT]), FIRST)):
        with pytest.raises(ValueError, match="dep occurs .*0 .*others"):
            held_out(*parts, "dep", "to head")


def test_intervals_are_of_the_reported_part_and_over_sentences_not_arcs():
    found = held_out(FIRST, OTHER, "dep", "to head")
    arcs = arcs_of(OTHER, "to head").of("dep")
    assert len(arcs.word) == 8  # two in each sentence
    right = (offsets(arcs) == found.offset).float()[:, None]
    ends = bootstrap(right, arcs.sentence, 4).flatten().tolist()
    assert found.offset_interval == tuple(ends)
    assert ends != bootstrap(right, torch.arange(8), 8).flatten().tolist()
    found = held_out(FIRST, OTHER, "det", "to head")
    assert found.interval[0] < found.accuracy == 0.25 < found.interval[1]
    # head and offset hit different arcs, so their difference is less certain than each
    assert found.lift_interval[0] < 0 < found.lift_interval[1]
    assert found == held_out(FIRST, OTHER, "det", "to head")
    perfect = held_out(FIRST, FIRST, "det", "to head")
    assert perfect.interval == (1.0, 1.0) and perfect.lift == 0.25


def test_baselines_choose_as_the_finding_did():
    finding = held_out(FIRST, OTHER, "det", "to head")
    baselines = [
        (torch.tensor([0.1, 0.3]), torch.tensor([0.9, 0.2])),
        (torch.tensor([0.4, 0.3]), torch.tensor([0.25, 0.8])),
    ]
    share, best = as_good(finding, baselines)
    assert share == 3 / 4  # of all heads 0.9, 0.25 and 0.8 reach 0.25
    assert best == pytest.approx([0.2, 0.25])  # chosen on the first, not the best here


def test_permuted_arcs_keep_their_sentence_word_and_relation():
    sentence = torch.tensor([0, 1, 0, 1, 0, 2, 3, 3])
    word = torch.tensor([0, 0, 1, 1, 2, 5, 3, 4])
    partner = torch.tensor([7, 8, 7, 9, 6, 5 + 1, 4, 3])
    arcs, seen = Arcs(sentence, word, partner, tuple("abcdefgh")), set()
    rows = set(zip(sentence.tolist(), word.tolist(), arcs.relation))
    for seed in range(60):
        dealt = permuted(arcs, torch.Generator().manual_seed(seed))
        assert set(zip(*(x.tolist() for x in dealt[:2]), dealt.relation)) <= rows
        by_sentence = [dealt.partner[dealt.sentence == i].tolist() for i in range(4)]
        assert [sorted(x) for x in by_sentence[:3]] == [[6, 7, 7], [8, 9], [6]]
        assert by_sentence[3] in ([], [4, 3])  # no word is its own partner
        seen.add(str(by_sentence))
    assert len(seen) == 12  # 3 orders of (6, 7, 7), 2 of (8, 9), 2 of the last
