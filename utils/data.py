"""Data of the course: small tasks with a known answer, and the text inside Python.

A task returns (ids, targets), both (batch, length): the inputs, and what to predict at
each position; -100 (`F.cross_entropy`'s ignore_index) = this target does not count.
Only whole numbers are drawn: a generator's seed gives the same data on every machine.
"""

import re
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from utils.checks import check_choice, check_size

IGNORED = -100
UNKNOWN = "<unknown>"
# a word or a run of signs, with the space before it; or white space
WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


def repeated_tokens(
    generator, batch: int, length: int, vocab_size, *, periods=(8, 24), distinct=False
) -> tuple[Tensor, Tensor]:
    """Return random tokens that start again after a while, and their next tokens.

    Each row has a period of its own, drawn from periods (both ends included): with a
    fixed one, a model could attend a fixed number of positions back without using the
    tokens. Targets count where they can be known: from the first repetition on.
    distinct: no token occurs twice in a period, so that a token determines the next
        one; targets count only from the second token of a repetition on.
    Source: Olsson et al. 2022, "repeated random tokens".

    >>> ids, _ = repeated_tokens(torch.Generator(), 1, 6, 10, periods=(3, 3))
    >>> bool((ids[:, 3:] == ids[:, :3]).all())
    True
    """
    shortest, longest = periods
    check_size("shortest period", shortest, least=1)
    check_size("longest period", longest, least=shortest)
    size = longest if distinct else max(longest, length + 1)
    draw = _distinct_tokens if distinct else _random_tokens
    tokens = draw(generator, batch, size, vocab_size)
    period = torch.randint(shortest, longest + 1, (batch, 1), generator=generator)
    positions = torch.arange(length + 1).expand(batch, -1)
    rows = tokens.gather(1, positions % period)  # (batch, length + 1)
    known = positions[:, :-1] + (0 if distinct else 1) >= period
    return rows[:, :-1], rows[:, 1:].where(known, IGNORED)


def tokens_back(
    generator: torch.Generator, batch: int, length: int, vocab_size: int, *, back: int
) -> tuple[Tensor, Tensor]:
    """Return random tokens, and at each position the token `back` positions earlier.

    The first `back` positions have none: their targets do not count.
    """
    check_size("back", back)
    ids = _random_tokens(generator, batch, length, vocab_size)
    targets = torch.full_like(ids, IGNORED)
    targets[:, back:] = ids[:, : max(length - back, 0)]
    return ids, targets


def copy_first_token(
    generator: torch.Generator, batch: int, length: int, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Return random tokens, and at each position the first token of the row."""
    ids = _random_tokens(generator, batch, length, vocab_size)
    return ids, ids[:, :1].repeat(1, length)


def _random_tokens(generator, batch: int, length: int, vocab_size: int) -> Tensor:
    """Return whole numbers (batch, length), each of vocab_size equally likely."""
    check_size("vocab_size", vocab_size, least=1)
    return torch.randint(vocab_size, (batch, length), generator=generator)


def _distinct_tokens(generator, batch: int, length: int, vocab_size: int) -> Tensor:
    """Return whole numbers (batch, length), in no row the same one twice."""
    if length > vocab_size:
        raise ValueError(f"{length} distinct tokens, but vocab_size is {vocab_size}.")
    rows = [torch.randperm(vocab_size, generator=generator) for _ in range(batch)]
    return torch.stack(rows)[:, :length]


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as ids, in two parts; `vocab[i]` is the token with id i.

    The vocabulary is that of the training part; other tokens of the validation part
    are `UNKNOWN` (id 0).
    """

    unit: str  # "words" or "characters"
    vocab: list[str]
    train: Tensor  # (tokens,)
    validation: Tensor  # (tokens,)

    def encode(self, text: str) -> Tensor:
        """Return the ids (tokens,) of a text; tokens that are not known are id 0."""
        number = {token: i for i, token in enumerate(self.vocab)}
        ids = [number.get(token, 0) for token in split_tokens(text, self.unit)]
        return torch.tensor(ids, dtype=torch.int64)

    def decode(self, ids) -> str:
        """Return the text of some ids (tokens,), white space and all."""
        ids, last = torch.as_tensor(ids).tolist(), len(self.vocab) - 1
        if ids and not 0 <= min(ids) <= max(ids) <= last:
            raise ValueError(f"ids are {min(ids)} to {max(ids)}; give 0 to {last}.")
        return "".join(self.vocab[i] for i in ids)

    def batch(self, generator, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Return random windows of the training part, and their next tokens."""
        ids = self._part("train", length)
        starts = torch.randint(len(ids) - length, (batch, 1), generator=generator)
        windows = ids[starts + torch.arange(length + 1)]  # (batch, length + 1)
        return windows[:, :-1], windows[:, 1:]

    def windows(self, length: int, part: str = "validation") -> tuple[Tensor, Tensor]:
        """Return a part cut in windows that do not overlap, and their next tokens."""
        windows = self._part(part, length).unfold(0, length + 1, length)
        return windows[:, :-1], windows[:, 1:]  # (windows, length) each

    def _part(self, part: str, length: int) -> Tensor:
        """Return the ids of a part in which a window and its next token fit."""
        check_choice("part", part, ("train", "validation"))
        check_size("length", length, least=1)
        ids = getattr(self, part)
        if len(ids) <= length:
            raise ValueError(f"windows of {length=} do not fit in {len(ids)} tokens.")
        return ids


def python_docs(unit: str = "words") -> Corpus:
    """Return Python's own documentation (`pydoc_data.topics`) as a Corpus.

    unit: "words" (with the space before them) or "characters".
    The text differs between versions of Python. A paragraph of several topics is kept
    once, so that no text of the validation part occurs in the training part.
    """
    from pydoc_data.topics import topics

    train, validation = split_text([topics[name] for name in sorted(topics)])
    return make_corpus(train, validation, unit)


def make_corpus(train: str, validation: str, unit: str = "words") -> Corpus:
    """Return a Corpus of two texts; its vocabulary is what the first has twice or more.

    >>> corpus = make_corpus("a cat, a dog, a cat", " a bird", "words")
    >>> corpus.vocab
    ['<unknown>', ' a', ' cat', ',']
    >>> corpus.decode(corpus.validation)
    ' a<unknown>'
    """
    count = Counter(split_tokens(train, unit))
    vocab = [UNKNOWN, *sorted(token for token in count if count[token] >= 2)]
    corpus = Corpus(unit, vocab, torch.empty(0), torch.empty(0))
    return Corpus(unit, vocab, corpus.encode(train), corpus.encode(validation))


def split_tokens(text: str, unit: str) -> list[str]:
    """Return the tokens of a text; joined, they are the text."""
    check_choice("unit", unit, ("words", "characters"))
    return WORD.findall(text) if unit == "words" else list(text)


def split_text(texts: list[str]) -> tuple[str, str]:
    """Return (training text, validation text): the last tenth is validation.

    A paragraph that occurs several times, in whatever indentation, is kept once.
    """
    once = {}
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(texts)):
        once.setdefault(" ".join(paragraph.split()), paragraph)
    paragraphs = [*once.values()]
    cut, size = 0, sum(map(len, paragraphs)) * 0.9
    while size > 0:
        cut, size = cut + 1, size - len(paragraphs[cut])
    return "\n\n".join(paragraphs[:cut]), "\n\n".join(paragraphs[cut:])
