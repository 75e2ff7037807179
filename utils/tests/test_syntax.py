"""Heads and grammar: words from pieces, arcs, and what is chosen on other sentences."""

import functools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from utils.encoder import Encoder
from utils.pretrained import load_minilm
from utils.recording import record_attention
from utils.syntax import (
    DIRECTIONS,
    Arcs,
    Finding,
    Reading,
    accuracies,
    arcs_of,
    as_good,
    best_offset,
    bootstrap,
    chance,
    even,
    held_out,
    hits,
    most_read,
    offsets,
    permuted,
    reachable,
    read_words,
    word_maps,
    word_pieces,
)
from utils.treebank import parse_conllu


@functools.cache
def minilm():
    return load_minilm()


def sentence(words, heads, relations):
    """Return a sentence; words and relations separated by spaces, heads from 1."""
    rows = zip(words.split(), heads, relations.split())
    text = "".join(
        f"{i}\t{word}\t_\tX\t_\t_\t{head}\t{relation}\t_\t_\n"
        for i, (word, head, relation) in enumerate(rows, 1)
    )
    return parse_conllu(text + "\n")[0]


CAT = sentence(
    "The embarrassed dog was seen by cats .",
    [3, 3, 5, 5, 0, 7, 5, 5],
    "det amod nsubj:pass aux:pass root case obl punct",
)
LONG = sentence(
    "My old aunt reads novels and unputdownable plays to the neighbourhood",
    [3, 3, 4, 0, 4, 8, 8, 5, 11, 11, 4],
    "nmod:poss amod nsubj root obj cc amod conj case det obl",
)
SHORT = sentence("Dogs bark", [2, 0], "nsubj root")
ONE = sentence("Why", [0], "root")


# --- from word pieces to words ---

PIECES = torch.tensor(  # [CLS] a b1 b2 c [SEP]
    [
        [0.50, 0.10, 0.10, 0.10, 0.10, 0.10],
        [0.05, 0.05, 0.20, 0.15, 0.25, 0.30],
        [0.10, 0.30, 0.05, 0.05, 0.10, 0.40],
        [0.00, 0.20, 0.10, 0.00, 0.60, 0.10],
        [0.00, 0.05, 0.02, 0.03, 0.10, 0.80],
        [0.00, 0.00, 1.00, 0.00, 0.00, 0.00],
    ]
)
WORD_OF = torch.tensor([-1, 0, 1, 1, 2, -1])
WORDS = torch.tensor(
    [
        [0.05, 0.35, 0.25],  # a reads b by the sum of its pieces: more than c
        [0.25, 0.10, 0.35],  # b reads as the mean of its pieces
        [0.05, 0.05, 0.10],
    ]
)


def test_a_word_is_read_by_the_sum_and_reads_by_the_mean_of_its_pieces():
    assert_close(PIECES.sum(dim=-1), torch.ones(6))
    maps = word_maps(PIECES[None, None], WORD_OF[None], 3)
    assert_close(maps, WORDS[None, None])
    # a reads c's only piece more than either piece of b, and b most
    assert most_read(maps, torch.tensor([[1, 2, 1]])).tolist() == [[[1, 2, 0]]]


def test_special_tokens_belong_to_no_word():
    """[SEP] takes 0.8 of the last word; what is left decides."""
    maps = word_maps(PIECES[None, None], WORD_OF[None], 3)
    assert_close(maps.sum(dim=-1)[0, 0], torch.tensor([0.65, 0.70, 0.20]))
    more = PIECES.clone()
    more[[0, -1]] = torch.rand(2, 6)  # what they read, is no word's
    more[:, [0, -1]] = torch.rand(6, 2)
    assert_close(word_maps(more[None, None], WORD_OF[None], 3), maps)


def test_maps_of_a_batch_are_those_of_each():
    g = torch.Generator().manual_seed(0)
    attention = torch.rand(2, 3, 7, 7, generator=g).softmax(dim=-1)
    word_of = torch.tensor([[-1, 0, 0, 1, 2, 2, -1], [-1, 0, 1, 1, -1, -1, -1]])
    maps = word_maps(attention, word_of, 3)
    assert maps.shape == (2, 3, 3, 3)
    assert_close(maps[:1], word_maps(attention[:1], word_of[:1], 3))
    alone = word_maps(attention[1:, :, :5, :5], word_of[1:, :5], 2)
    assert_close(maps[1:, :, :2, :2], alone)
    assert (maps[1, :, 2] == 0).all() and (maps[1, :, :, 2] == 0).all()
    for wrong in (word_of[:1], word_of[:, :5]):
        with pytest.raises(ValueError, match="word_of has shape"):
            word_maps(attention, wrong, 3)


def test_most_read_leaves_out_the_word_itself_and_words_without_pieces():
    maps = torch.tensor([[0.9, 0.0, 0.0], [0.1, 0.6, 0.3], [0.2, 0.5, 0.0]])[None, None]
    for pieces, wanted in (
        ([1, 1, 1], [1, 2, 1]),
        ([1, 0, 1], [2, -1, 0]),
        ([1, 0, 0], [-1, -1, -1]),
    ):
        assert most_read(maps, torch.tensor([pieces])).tolist() == [[wanted]]


def test_pieces_of_words():
    words = ("Do", "n't", "embarrass", "\ufe0f", "me")
    ids, word_of = word_pieces(minilm().tokenizer, words)
    tokens = minilm().tokenizer.convert_ids_to_tokens(ids)
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
    assert tokens[1:5] == ["do", "n", "'", "t"]
    assert word_of[0] == word_of[-1] == -1 and word_of[1:5] == [0, 1, 1, 1]
    assert set(word_of) == {-1, 0, 1, 2, 4}  # the sign without a shape has no piece


# --- reading ---


class Gold(nn.Module):
    """A model of two layers, whose heads are known.

    Head 0.0 reads the word's head in the tree, 0.1 the word after that; both put 0.6 on
    [SEP] first. Head 1.0 reads the next word. The root reads the first word.
    """

    def __init__(self, sentences):
        super().__init__()
        split = [word_pieces(minilm().tokenizer, s.words) for s in sentences]
        self.known = {
            tuple(ids): (s, word_of) for s, (ids, word_of) in zip(sentences, split)
        }
        self.batches = []

    def record(self, model, ids, mask):
        assert model is self and mask.shape == (len(ids), 1, 1, ids.shape[1])
        self.batches.append(tuple(ids.shape))
        layers = torch.zeros(2, len(ids), 2, ids.shape[1], ids.shape[1])
        for row, (each, keep) in enumerate(zip(ids, mask[:, 0, 0])):
            s, word_of = self.known[tuple(each[keep].tolist())]
            for piece, word in enumerate(word_of):
                layers[:, row, :, piece, len(word_of) - 1] = 0.6
                if word < 0:
                    continue
                head = max(0, s.heads[word] - 1)
                for where, target in (
                    ((0, row, 0), head),
                    ((0, row, 1), (head + 1) % len(s.words)),
                    ((1, row, 0), (word + 1) % len(s.words)),
                ):
                    there = [i for i, w in enumerate(word_of) if w == target]
                    for i in there:
                        layers[(*where, piece, i)] += 0.4 / len(there)
        return list(layers)


def gold_reading(sentences, **options):
    model = Gold(sentences)
    reading = read_words(
        model, minilm().tokenizer, sentences, record=model.record, **options
    )
    return reading, model


ALL = [CAT, LONG, SHORT, ONE, CAT]


@pytest.mark.parametrize("batch_tokens", [1, 20, 2048])
def test_a_head_that_reads_the_tree_is_right_everywhere(batch_tokens):
    reading, model = gold_reading(ALL, batch_tokens=batch_tokens)
    assert reading.names == ("0.0", "0.1", "1.0", "1.1")
    assert len(model.batches) == {1: 5, 20: 3, 2048: 1}[batch_tokens]
    assert reading.most.shape == (5, 11, 4) and reading.too_long() == []
    arcs = arcs_of(reading, "to head")
    assert len(arcs.word) == 6 + 10 + 1 + 6
    assert accuracies(reading, arcs)[0] == 1
    assert accuracies(reading, arcs)[1] < 0.1  # an arc that points at the next word
    for i, word in enumerate(LONG.heads):
        if word > 0:
            assert reading.most[1, i, 0] == word - 1
    assert reading.most[2].tolist()[:3] == [[1] * 4, [0] * 4, [-1] * 4]
    assert (reading.most[3] == -1).all()  # one word has nobody to read


def test_only_the_first_dependent_is_missed_the_other_way_round():
    """A head names one word; read backwards, the tree wants several."""
    reading, _ = gold_reading([LONG])
    back = arcs_of(reading, "to dependent")
    first = hits(reading, back)[:, 0]
    assert first.float().mean() < 1 and len(back.word) == 10
    assert reachable(back) == 5 / 10  # aunt, reads, novels, plays, neighbourhood


def test_too_long_sentences_are_named_and_not_read():
    reading, _ = gold_reading(ALL, max_length=12)
    assert reading.too_long() == [1]
    assert (reading.most[1] == -1).all() and (reading.pieces[1] == 0).all()
    assert 1 not in arcs_of(reading, "to head").sentence
    whole, _ = gold_reading(ALL)
    rest = [0, 2, 3, 4]
    assert torch.equal(reading.part(rest).most, whole.part(rest).most)
    with pytest.raises(ValueError, match="all sentences are longer than max_length=2"):
        gold_reading(ALL, max_length=2)


def test_batches_of_minilm_read_as_sentence_by_sentence():
    encoder, tokenizer = Encoder.from_minilm(minilm()), minilm().tokenizer
    together = read_words(encoder, tokenizer, ALL)
    alone = read_words(encoder, tokenizer, ALL, batch_tokens=1)
    assert len(together.names) == 72 and together.names[19] == "1.7"
    assert torch.equal(together.most, alone.most)
    assert torch.equal(together.pieces, alone.pieces)
    ids = torch.tensor([word_pieces(tokenizer, LONG.words)[0]])
    word_of = torch.tensor([word_pieces(tokenizer, LONG.words)[1]])
    weights = record_attention(encoder, ids)[1][:, 7:8]
    found = most_read(word_maps(weights, word_of, 11), together.pieces[1:2])
    assert torch.equal(found[0, 0], together.most[1, :, 19].long())


# --- arcs ---


def pairs(arcs):
    return list(zip(arcs.relation, arcs.word.tolist(), arcs.partner.tolist()))


def test_arcs_point_at_the_words_of_the_tree():
    reading, _ = gold_reading([CAT])
    to_head = [
        ("det", 0, 2),
        ("amod", 1, 2),
        ("nsubj:pass", 2, 4),
        ("aux:pass", 3, 4),
        ("case", 5, 6),
        ("obl", 6, 4),
    ]
    assert pairs(arcs_of(reading, "to head")) == to_head
    assert pairs(arcs_of(reading, "to dependent")) == [(r, b, a) for r, a, b in to_head]
    assert CAT.words[0] == "The" and CAT.words[2] == "dog"
    assert offsets(arcs_of(reading, "to head")).tolist() == [2, 1, 2, 1, 1, -2]
    with pytest.raises(ValueError, match="'to dependent'"):
        arcs_of(reading, "down")


def test_a_relation_is_not_its_subtype_and_unread_words_have_no_arcs():
    reading, _ = gold_reading([CAT, LONG])
    arcs = arcs_of(reading, "to head")
    assert pairs(arcs.of("nsubj")) == [("nsubj", 2, 3)]
    assert pairs(arcs.of("nsubj:pass")) == [("nsubj:pass", 2, 4)]
    assert len(arcs.of("iobj").word) == 0
    pieces = reading.pieces.clone()
    pieces[0, 2] = 0  # the dog
    some = arcs_of(reading._replace(pieces=pieces), "to head")
    assert [r for r, *_ in pairs(some)][:3] == ["aux:pass", "case", "obl"]
    none = arcs_of(reading.part([]), "to head")
    assert none.word.shape == none.partner.shape == (0,) and none.relation == ()


def test_yardsticks():
    reading, _ = gold_reading([CAT])
    assert reading.pieces[0].tolist() == [1, 1, 1, 1, 1, 1, 1, 1]
    pieces = torch.tensor([[1, 2, 1, 0, 3, 2, 1, 1]])
    reading = reading._replace(pieces=pieces)
    arcs = arcs_of(reading, "to head")
    assert pairs(arcs)[2] == ("nsubj:pass", 2, 4)
    # det, amod, nsubj:pass, case, obl; seven words were read
    assert chance(reading, arcs) == pytest.approx(1 / 6)
    assert even(reading, arcs) == pytest.approx(2 / 5)  # the verb has the most pieces
    back = arcs_of(reading, "to dependent")
    assert even(reading, back.of("nsubj:pass")) == 0  # but the verb cannot read itself
    pieces = torch.tensor([[1, 2, 2, 1, 2, 1, 1, 1]])
    reading = reading._replace(pieces=pieces)
    for relation, wanted in (("det", 1 / 3), ("amod", 1 / 2), ("case", 0)):
        arcs = arcs_of(reading, "to head").of(relation)
        assert even(reading, arcs) == pytest.approx(wanted), relation


def test_best_offset_is_the_most_frequent():
    def arcs(*values):
        word = torch.full((len(values),), 9)
        return Arcs(word * 0, word, word + torch.tensor(values), ("x",) * len(values))

    assert best_offset(arcs(1, 1, -3, 1)) == (1, 0.75)
    assert best_offset(arcs(-7, -7, 1)) == (-7, pytest.approx(2 / 3))
    assert best_offset(arcs(-2, 1, 1, -2)) == (1, 0.5)


# --- chosen on one part, reported on the other ---


def made(head_of, rows):
    """Return a Reading of two-word relations det with two known heads.

    rows: for each sentence (where the partner of word 0 stands, what each head reads).
    """
    sentences, most = [], []
    for partner, read in rows:
        heads = [0 if i == partner else partner + 1 for i in range(4)]
        relations = ["det"] + ["dep"] * 3
        relations[partner] = "root"
        sentences.append(sentence("a b c d", heads, " ".join(relations)))
        most.append([list(read)] + [[-1] * len(read)] * 3)
    names = tuple(f"{head_of}.{i}" for i in range(len(rows[0][1])))
    pieces = torch.ones(len(rows), 4, dtype=torch.int16)
    return Reading(tuple(sentences), torch.tensor(most), pieces, names)


# head 0 is right on the first sentences, head 1 on the others; the partner stands 1
# word on in most of the first sentences, 2 in most of the others
FIRST = made(0, [(1, (1, 3)), (1, (1, 2)), (1, (1, 1)), (2, (2, 3))])
OTHER = made(0, [(2, (3, 2)), (2, (1, 2)), (2, (2, 2)), (1, (2, 1))])


def test_head_and_offset_are_chosen_on_one_part_and_reported_on_the_other():
    found = held_out(FIRST, OTHER, "det", "to head")
    assert (found.head, found.chosen, found.accuracy) == ("0.0", 1.0, 0.25)
    assert (found.offset, found.offset_chosen) == (1, 0.75)
    assert (found.offset_accuracy, found.lift) == (0.25, 0.0)
    assert found.elsewhere == pytest.approx(1 / 3)
    assert found.distance == 7 / 4
    assert (found.arcs, found.arcs_chosen) == (4, 4)
    assert (found.relation, found.direction) == ("det", "to head")
    back = held_out(OTHER, FIRST, "det", "to head")
    assert (back.head, back.chosen, back.accuracy) == ("0.1", 1.0, 0.25)
    assert (back.offset, back.offset_chosen, back.offset_accuracy) == (2, 0.75, 0.25)
    assert found.chance == pytest.approx(1 / 3) and found.reachable == 1


def test_the_interval_is_of_the_reported_part():
    found = held_out(FIRST, OTHER, "det", "to head")
    arcs = arcs_of(OTHER, "to head").of("det")
    right = hits(OTHER, arcs)[:, :1].float()
    low, high = bootstrap(right, arcs.sentence, 4).flatten().tolist()
    assert found.interval == (low, high) and low <= found.accuracy <= high
    assert low < 0.25 < high
    # head and offset hit different arcs, so their difference is less certain than each
    assert found.lift_interval[0] < 0 < found.lift_interval[1]
    assert found == held_out(FIRST, OTHER, "det", "to head")
    perfect = held_out(FIRST, FIRST, "det", "to head")
    assert perfect.interval == (1.0, 1.0) and perfect.lift == 0.25


def test_the_interval_is_over_sentences_not_arcs():
    found = held_out(FIRST, OTHER, "dep", "to head")
    arcs = arcs_of(OTHER, "to head").of("dep")
    assert len(arcs.word) == 8  # two in each sentence
    right = (offsets(arcs) == found.offset).float()[:, None]
    wanted = bootstrap(right, arcs.sentence, 4).flatten().tolist()
    assert found.offset_interval == tuple(wanted)
    assert wanted != bootstrap(right, torch.arange(8), 8).flatten().tolist()


def test_a_relation_that_does_not_occur_speaks():
    with pytest.raises(ValueError, match="cop occurs 0 times in the first sentences"):
        held_out(FIRST, OTHER, "cop", "to head")


def test_bootstrap_draws_sentences():
    g = torch.Generator().manual_seed(0)
    sentence = torch.arange(40).repeat_interleave(5)
    same = (torch.rand(40, 1, generator=g) < 0.5).float().repeat_interleave(5, dim=0)
    mixed = (torch.rand(200, 1, generator=g) < 0.5).float()
    low, high = bootstrap(torch.cat([same, mixed], dim=1), sentence, 40)
    width = (high - low).tolist()
    # five equal rows of a sentence are no five findings: sqrt(5) times as wide
    assert 1.7 < width[0] / width[1] < 2.8
    expected = 2 * 1.96 * (0.25 / 40) ** 0.5
    assert width[0] == pytest.approx(expected, rel=0.15)
    again = bootstrap(mixed, sentence, 40)
    assert_close(again[:, 0], torch.stack([low[1], high[1]]))
    assert not torch.equal(again, bootstrap(mixed, sentence, 40, seed=1))


def test_permuted_arcs_stay_in_their_sentence():
    reading, _ = gold_reading([CAT, LONG, SHORT] * 20)
    generator = torch.Generator().manual_seed(0)
    for direction in DIRECTIONS:
        arcs = arcs_of(reading, direction)
        dealt = permuted(arcs, generator)
        assert (dealt.word != dealt.partner).all()
        assert len(dealt.relation) == len(dealt.word) < len(arcs.word)
        partners = [set() for _ in reading.sentences]
        for s, partner in zip(arcs.sentence.tolist(), arcs.partner.tolist()):
            partners[s].add(partner)
        for s, partner in zip(dealt.sentence.tolist(), dealt.partner.tolist()):
            assert partner in partners[s]
        known = set(zip(*(x.tolist() for x in arcs[:2]), arcs.relation))
        assert set(zip(*(x.tolist() for x in dealt[:2]), dealt.relation)) <= known
        kept = set(zip(*(x.tolist() for x in arcs[:3])))
        stayed = [t in kept for t in zip(*(x.tolist() for x in dealt[:3]))]
        assert 0.05 < sum(stayed) / len(stayed) < 0.6
        alone = dealt.sentence % 3 == 2  # the only arc of SHORT has nobody to swap with
        assert alone.sum() == 20


def test_permuted_keeps_what_is_wanted_how_often():
    arcs = Arcs(
        torch.tensor([0, 1, 0, 1, 0]),
        torch.tensor([0, 0, 1, 1, 2]),
        torch.tensor([7, 8, 7, 9, 6]),
        tuple("abcde"),
    )
    seen = set()
    for seed in range(20):
        dealt = permuted(arcs, torch.Generator().manual_seed(seed))
        assert torch.equal(dealt.sentence, arcs.sentence)
        assert torch.equal(dealt.word, arcs.word) and dealt.relation == arcs.relation
        assert sorted(dealt.partner[arcs.sentence == 0].tolist()) == [6, 7, 7]
        assert sorted(dealt.partner[arcs.sentence == 1].tolist()) == [8, 9]
        seen.add(tuple(dealt.partner.tolist()))
    assert len(seen) == 6  # 3 orders of (6, 7, 7) times 2 of (8, 9)


def test_nulls_choose_as_the_finding_did():
    finding = held_out(FIRST, OTHER, "det", "to head")
    assert isinstance(finding, Finding)
    nulls = [
        (torch.tensor([0.1, 0.3]), torch.tensor([0.9, 0.2])),
        (torch.tensor([0.4, 0.3]), torch.tensor([0.25, 0.8])),
    ]
    share, best = as_good(finding, nulls)
    assert share == 3 / 4  # of all heads 0.9, 0.25 and 0.8 reach 0.25
    assert best == pytest.approx([0.2, 0.25])  # chosen on the first, not the best here
