"""The tasks ask what they say; the text's two parts share nothing but words."""

import re
from functools import partial

import pytest
import torch

from utils import data
from utils.data import IGNORED, UNKNOWN, Corpus, python_docs, repeated_tokens

WORDS, CHARACTERS = python_docs("words"), python_docs("characters")
TASKS = {
    "repeated": partial(repeated_tokens, vocab_size=30, periods=(3, 9)),
    "distinct": partial(repeated_tokens, vocab_size=30, periods=(3, 9), distinct=True),
    "tokens back": partial(data.tokens_back, vocab_size=30, back=3),
    "first token": partial(data.copy_first_token, vocab_size=30),
    "words": WORDS.batch,
    "characters": CHARACTERS.batch,
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_its_seed(task):
    before = torch.get_rng_state()
    (ids, targets), again, other = (
        TASKS[task](generator(s), 16, 20) for s in (0, 0, 1)
    )
    assert ids.shape == targets.shape == (16, 20)
    assert ids.dtype == targets.dtype == torch.int64
    assert torch.equal(ids, again[0]) and torch.equal(targets, again[1])
    assert not torch.equal(ids, other[0])
    assert torch.equal(torch.get_rng_state(), before)


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
    ids, targets = repeated_tokens(generator(), 4, 5, 9, periods=(8, 8))  # too short
    assert ids.shape == (4, 5) and (targets == IGNORED).all()
    with pytest.raises(ValueError, match="10 distinct tokens, but vocab_size=9"):
        repeated_tokens(generator(), 2, 9, 9, periods=(3, 10), distinct=True)


@pytest.mark.parametrize("back", [0, 1, 3, 30])
def test_an_earlier_token_and_the_first(back):
    ids, targets = data.tokens_back(generator(), 4, 10, 9, back=back)
    for i in range(10):
        wanted = ids[:, i - back] if i >= back else torch.full((4,), IGNORED)
        assert torch.equal(targets[:, i], wanted)
    ids, targets = data.copy_first_token(generator(), 4, 10, 9)
    assert all(torch.equal(targets[:, i], ids[:, 0]) for i in range(10))


@pytest.mark.parametrize("corpus", [WORDS, CHARACTERS], ids=lambda c: c.unit)
def test_the_parts_of_a_corpus_are_two_texts_that_share_no_paragraph(corpus):
    from pydoc_data.topics import topics

    texts = data._split([topics[name] for name in sorted(topics)])
    once = [[" ".join(p.split()) for p in re.split(r"\n\s*\n", x)] for x in texts]
    assert len({*once[0], *once[1]}) == len(once[0]) + len(once[1])
    assert 0.08 < len(texts[1]) / len("".join(texts)) < 0.12
    assert len("".join(texts)) > 250_000
    known = {*corpus.vocab}
    for text, ids in zip(texts, (corpus.train, corpus.validation)):
        tokens = data.SPLIT[corpus.unit](text)
        assert "".join(tokens) == text
        expected = [t if t in known else UNKNOWN for t in tokens]
        assert [corpus.vocab[i] for i in ids.tolist()] == expected
        assert corpus.decode(ids[:50]) == "".join(expected[:50])


def test_the_vocabulary_does_not_know_what_only_validation_says():
    corpus = data._corpus(" two one two one four", " three three three")
    assert corpus.vocab == [UNKNOWN, " one", " two"]  # and not " four", once
    assert corpus.validation.tolist() == [0, 0, 0]
    assert corpus.encode(" two three").tolist() == [2, 0]
    assert corpus.encode("").shape == (0,) and corpus.decode([]) == ""
    with pytest.raises(ValueError, match="as small as -100; give 0"):
        corpus.decode(torch.tensor([1, IGNORED]))
    assert (WORDS.train == 0).sum() > 100
    assert (WORDS.validation == 0).float().mean() > 0.01


def test_a_batch_is_of_runs_of_the_training_part():
    corpus = Corpus("words", [], torch.arange(600), torch.arange(1000, 1600))
    inputs, targets = corpus.batch(generator(), 20_000, 8)
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(8))
    assert torch.equal(targets, inputs + 1)
    assert inputs[:, 0].unique().tolist() == [*range(592)]  # all can be drawn


@pytest.mark.parametrize("size, rows", [(23, 4), (21, 4), (20, 3), (6, 1)])
def test_windows_cover_the_part_once(size, rows):
    train, validation = torch.arange(size), torch.arange(100, 100 + size)
    corpus = Corpus("words", [], train, validation)
    for part, (inputs, targets) in (
        (train, corpus.windows(5, "train")),
        (validation, corpus.windows(5)),  # unless said otherwise
    ):
        assert torch.equal(inputs.flatten(), part[: 5 * rows])
        assert torch.equal(targets.flatten(), part[1 : 5 * rows + 1])
