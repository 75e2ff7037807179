"""The tasks ask what they say; the text's two parts share nothing but words."""

import re

import pytest
import torch

from utils import data
from utils.data import IGNORED, copy_first_token, python_docs, repeated_tokens


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


TASKS = {
    "repeated_tokens": lambda g: repeated_tokens(g, 16, 20, 30, periods=(3, 9)),
    "distinct": lambda g: repeated_tokens(g, 16, 20, 30, periods=(3, 9), distinct=True),
    "tokens_back": lambda g: data.tokens_back(g, 16, 20, 30, back=3),
    "copy_first_token": lambda g: copy_first_token(g, 16, 20, 30),
    "words": lambda g: WORDS.batch(g, 16, 20),
    "characters": lambda g: CHARACTERS.batch(g, 16, 20),
}
EMPTY = data.Corpus("words", [data.UNKNOWN], torch.arange(0), torch.arange(0))
WORDS, CHARACTERS = python_docs("words"), python_docs("characters")
BOTH = pytest.mark.parametrize("corpus", [WORDS, CHARACTERS], ids=lambda c: c.unit)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_its_seed(task):
    before = torch.get_rng_state()
    (ids, targets), again, other = (TASKS[task](generator(s)) for s in (0, 0, 1))
    assert ids.shape == targets.shape == (16, 20)
    assert ids.dtype == targets.dtype == torch.int64
    assert torch.equal(ids, again[0]) and torch.equal(targets, again[1])
    assert not torch.equal(ids, other[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_numbers_on_every_machine():
    """Whole numbers from a generator do not depend on the processor."""
    ids, _ = copy_first_token(generator(), 1, 8, 100)
    assert ids.tolist() == [[44, 39, 33, 60, 63, 79, 27, 3]]
    ids, _ = repeated_tokens(generator(), 1, 8, 100, periods=(2, 5))
    assert ids.tolist() == [[44, 39, 33, 60, 63, 44, 39, 33]]


@pytest.mark.parametrize("distinct", [False, True])
def test_repeated_tokens_repeat(distinct):
    """Asked from the first repetition on, or from its second token on."""
    given = {"periods": (4, 9), "distinct": distinct}
    ids, targets = repeated_tokens(generator(), 200, 24, 9, **given)
    periods = set()
    for row, wanted in zip(ids.tolist(), targets.tolist()):
        unknown = wanted.count(IGNORED)
        period = unknown if distinct else unknown + 1
        assert row[period:] == row[:-period] and wanted[-1] == row[24 - period]
        assert wanted[:-1] == [IGNORED] * unknown + row[unknown + 1 :]
        assert len(set(row[:period])) == period or not distinct
        periods.add(period)
    assert periods == {4, 5, 6, 7, 8, 9}
    first = ids[:, :4].flatten()  # all tokens are drawn, and equally often
    assert first.bincount(minlength=9).min() > 60 and first.bincount().max() < 120


def test_rows_too_short_to_repeat_ask_nothing():
    ids, targets = repeated_tokens(generator(), 4, 5, 9, periods=(8, 8))
    assert ids.shape == (4, 5) and (targets == IGNORED).all()


@pytest.mark.parametrize("back", [0, 1, 3, 30])
def test_tokens_back(back):
    ids, targets = data.tokens_back(generator(), 4, 10, 9, back=back)
    for i in range(10):
        wanted = ids[:, i - back] if i >= back else torch.full((4,), IGNORED)
        assert torch.equal(targets[:, i], wanted)


def test_copy_first_token():
    ids, targets = copy_first_token(generator(), 4, 10, 9)
    assert all(torch.equal(targets[:, i], ids[:, 0]) for i in range(10))


@pytest.mark.parametrize(
    "error, says, call",
    [
        (ValueError, "vocab_size is 0", lambda: copy_first_token(generator(), 1, 2, 0)),
        (ValueError, "back is -1", lambda: data.tokens_back(None, 1, 2, 3, back=-1)),
        (ValueError, "longest period is 3; it must be at least 4",
         lambda: repeated_tokens(generator(), 1, 2, 3, periods=(4, 3))),
        (ValueError, "10 distinct tokens, but vocab_size is 9",
         lambda: repeated_tokens(generator(), 2, 9, 9, periods=(3, 10), distinct=1)),
        (ValueError, "unit is 'letters'", lambda: python_docs("letters")),
        (ValueError, "part is 'test'", lambda: WORDS.windows(8, "test")),
        (ValueError, "length is 0", lambda: WORDS.windows(0)),
        (ValueError, "do not fit", lambda: WORDS.batch(generator(), 1, 10**6)),
        (ValueError, "ids are -1 to -1; give 0 to", lambda: WORDS.decode([-1])),
        (ValueError, "ids are 0 to 9; give 0 to 0", lambda: EMPTY.decode([0, 9])),
        (ValueError, "ids are 9 to 9", lambda: EMPTY.decode(torch.tensor([9]))),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(error, says, call):
    with pytest.raises(error, match=says):
        call()


def parts():
    """Return the two texts that the corpus is made of."""
    from pydoc_data.topics import topics

    return data.split_text([topics[name] for name in sorted(topics)])


def paragraphs(text):
    return {" ".join(p.split()) for p in re.split(r"\n\s*\n", text)}


def test_no_paragraph_is_in_both_parts_or_twice():
    train, validation = parts()
    assert not paragraphs(train) & paragraphs(validation)
    for text in (train, validation):
        assert len(paragraphs(text)) == len(re.split(r"\n\s*\n", text))
    assert 0.08 < len(validation) / len(train + validation) < 0.12
    assert len(train + validation) > 250_000


@BOTH
def test_the_parts_of_a_corpus_are_these_texts(corpus):
    """Joined tokens give the text back, but for the unknown ones."""
    for text, ids in zip(parts(), (corpus.train, corpus.validation)):
        tokens = data.split_tokens(text, corpus.unit)
        assert "".join(tokens) == text and len(tokens) == len(ids)
        known = set(corpus.vocab)
        expected = [t if t in known else data.UNKNOWN for t in tokens]
        assert [corpus.vocab[i] for i in ids.tolist()] == expected
        assert corpus.decode(ids[:50]) == "".join(expected[:50])


def test_the_unknown_word_is_trained_and_met_in_validation():
    assert (WORDS.train == 0).sum() > 100
    assert (WORDS.validation == 0).float().mean() > 0.01


def test_the_vocabulary_does_not_know_what_only_validation_says():
    corpus = data.make_corpus(" two one two one four", " three three three")
    assert corpus.vocab == [data.UNKNOWN, " one", " two"]  # and not " four", once
    assert corpus.validation.tolist() == [0, 0, 0]
    assert corpus.encode(" two three").tolist() == [2, 0]
    assert corpus.encode("").shape == (0,) and corpus.decode([]) == ""


def rows_of(ids):
    return {tuple(row) for row in ids.tolist()}


def corpus_of(train, validation):
    return data.Corpus("words", [], train, validation)


def test_no_window_leaves_its_part():
    """Every window is a run of its part, next token included; so none crosses."""
    corpus = corpus_of(torch.arange(600), torch.arange(1000, 1600))
    drawn = corpus.batch(generator(), 20_000, 8)
    for part, (inputs, targets) in (
        ("train", drawn),
        ("train", corpus.windows(8, "train")),
        ("validation", corpus.windows(8)),  # unless said otherwise
    ):
        rows = torch.cat([inputs, targets[:, -1:]], dim=1)
        assert rows_of(rows) <= rows_of(getattr(corpus, part).unfold(0, 9, 1))
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    every = corpus.train[:-1].unfold(0, 8, 1)
    assert rows_of(drawn[0]) == rows_of(every)  # every window can be drawn


@pytest.mark.parametrize("size, rows", [(23, 4), (21, 4), (20, 3), (6, 1)])
def test_windows_cover_the_part_once(size, rows):
    inputs, targets = corpus_of(torch.arange(3), torch.arange(size)).windows(5)
    assert inputs.flatten().tolist() == list(range(5 * rows))
    assert targets.flatten().tolist() == list(range(1, 5 * rows + 1))
