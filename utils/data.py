"""Data of the course: small tasks with a known answer, and the text inside Python.

A task returns (ids, targets), int64, both (batch, length): the inputs, from 0 to
vocab_size - 1, and what to predict at each position; -100 (`F.cross_entropy`'s
ignore_index) = this target does not count. Only whole numbers are drawn, from a
`torch.Generator`: its seed gives the same data on every machine.
"""

import re
from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
UNKNOWN = "<unknown>"
SPLIT = {  # text -> tokens; joined, they are the text
    # a word or a run of signs, with the space before it; or white space
    "words": re.compile(r" ?\w+| ?[^\w\s]+|\s+").findall,
    "characters": list,
}


def repeated_tokens(
    generator, batch: int, length: int, vocab_size, *, periods=(8, 24), distinct=False
) -> tuple[Tensor, Tensor]:
    """Return random tokens that start again after a while, and their next tokens.

    periods: (shortest, longest), both included. After how many tokens it starts again
        is drawn for each row: with one period for all, a model could attend a fixed
        number of positions back without using the tokens.
    distinct: no token occurs twice in a period, so that a token determines the next.
    Targets count from the first repetition on; if distinct, from its second token on.
    Source: Olsson et al. 2022, "repeated random tokens".

    >>> ids, _ = repeated_tokens(torch.Generator(), 1, 6, 10, periods=(3, 3))
    >>> bool((ids[:, 3:] == ids[:, :3]).all())
    True
    """
    shortest, longest = periods
    if distinct:
        if longest > vocab_size:
            raise ValueError(f"{longest} distinct tokens, but {vocab_size=}.")
        rows = [torch.randperm(vocab_size, generator=generator) for _ in range(batch)]
        tokens = torch.stack(rows)
    else:
        size = batch, max(longest, length + 1)
        tokens = torch.randint(vocab_size, size, generator=generator)
    period = torch.randint(shortest, longest + 1, (batch, 1), generator=generator)
    positions = torch.arange(length + 1).expand(batch, -1)
    rows = tokens.gather(1, positions % period)  # (batch, length + 1)
    known = positions[:, :-1] + (0 if distinct else 1) >= period
    return rows[:, :-1], rows[:, 1:].where(known, IGNORED)


def tokens_back(generator, batch: int, length: int, vocab_size: int, *, back: int):
    """Return random tokens, and at each position the token `back` positions earlier.

    The first `back` positions have none: their targets do not count.
    """
    ids = torch.randint(vocab_size, (batch, length), generator=generator)
    return ids, F.pad(ids, (back, 0), value=IGNORED)[:, :length]


def copy_first_token(generator, batch: int, length: int, vocab_size: int):
    """Return random tokens, and at each position the first token of the row."""
    ids = torch.randint(vocab_size, (batch, length), generator=generator)
    return ids, ids[:, :1].repeat(1, length)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as ids (tokens,), in two parts; `vocab[i]` is the token with id i.

    The vocabulary is that of the training part; other tokens are `UNKNOWN` (id 0).
    """

    unit: str
    vocab: list[str]
    train: Tensor
    validation: Tensor

    def encode(self, text: str) -> Tensor:
        """Return the ids (tokens,) of a text."""
        number = {token: i for i, token in enumerate(self.vocab)}
        ids = [number.get(token, 0) for token in SPLIT[self.unit](text)]
        return torch.tensor(ids, dtype=torch.int64)

    def decode(self, ids) -> str:
        """Return the text of some ids (tokens,), white space and all."""
        ids = torch.as_tensor(ids).tolist()
        if min(ids, default=0) < 0:  # Python would count from the end
            raise ValueError(f"ids are as small as {min(ids)}; give 0 or more.")
        return "".join(self.vocab[i] for i in ids)

    def batch(self, generator, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Return random windows (batch, length) of `train`, and their next tokens."""
        last = len(self.train) - length
        starts = torch.randint(last, (batch, 1), generator=generator)
        windows = self.train[starts + torch.arange(length + 1)]  # (batch, length + 1)
        return windows[:, :-1], windows[:, 1:]

    def windows(self, length: int, part: str = "validation") -> tuple[Tensor, Tensor]:
        """Return all windows (windows, length) of a part, and their next tokens.

        part: "train" or "validation". It is cut from its start, without overlap; what
            is left at its end is left out.
        """
        windows = getattr(self, part).unfold(0, length + 1, length)
        return windows[:, :-1], windows[:, 1:]


def python_docs(unit: str = "words") -> Corpus:
    """Return Python's own documentation (`pydoc_data.topics`) as a Corpus.

    unit: "words" (with the space before them) or "characters".
    The text differs between versions of Python.
    The last tenth is the validation part; no paragraph is in both parts.
    """
    from pydoc_data.topics import topics

    return _corpus(*_split([topics[name] for name in sorted(topics)]), unit)


def _corpus(train: str, validation: str, unit: str = "words") -> Corpus:
    """Return a Corpus of two texts; its vocabulary is what the first has twice or more.

    >>> corpus = _corpus("a cat, a dog, a cat", " a bird", "words")
    >>> corpus.vocab
    ['<unknown>', ' a', ' cat', ',']
    >>> corpus.decode(corpus.validation)
    ' a<unknown>'
    """
    count = Counter(SPLIT[unit](train))
    vocab = [UNKNOWN, *sorted(token for token in count if count[token] >= 2)]
    encode = Corpus(unit, vocab, torch.empty(0), torch.empty(0)).encode
    return Corpus(unit, vocab, encode(train), encode(validation))


def _split(texts: list[str]) -> tuple[str, str]:
    """Return (training text, validation text): the last tenth is validation.

    A paragraph that occurs several times, in whatever indentation, is kept once, so
    that none is in both.
    """
    once = {}
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(texts)):
        once.setdefault(" ".join(paragraph.split()), paragraph)
    paragraphs = [*once.values()]
    cut, size = 0, sum(map(len, paragraphs)) * 0.9
    while size > 0:
        cut, size = cut + 1, size - len(paragraphs[cut])
    return "\n\n".join(paragraphs[:cut]), "\n\n".join(paragraphs[cut:])
