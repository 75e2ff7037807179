"""Exercises of lesson 09: words from tokens, a choice tested, an interval, others."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.oldex.engine import Exercise, randn
from utils.oldex.unnamed import Unnamed

IMPORTS = """\
import torch
import torch.nn.functional as F
"""

# --- 9.1: weights between words, from weights between pieces --------------------------


def _table(how: str, word_of: Tensor, words: int, dtype: torch.dtype) -> Tensor:
    """Return how much of a piece goes to a word, (pieces, words).

    how: "sum": all of it; "mean": its share; "first", "last": all of one piece.
    """
    belongs = F.one_hot(word_of + 1, words + 1)[:, 1:].to(dtype)
    if how == "mean":
        return belongs / belongs.sum(dim=0).clamp(min=1)
    if how == "first":
        return belongs * (belongs.cumsum(dim=0) == 1)
    if how == "last":
        return belongs * (belongs.flip(0).cumsum(dim=0).flip(0) == 1)
    return belongs


def _mapped(attention, word_of, words, reads, read) -> Tensor:
    left, right = (_table(h, word_of, words, attention.dtype) for h in (reads, read))
    return left.mT @ attention @ right


def word_map(attention: Tensor, word_of: Tensor, words: int) -> Tensor:
    """The reference: the sum over the pieces read, the mean over those that read."""
    return _mapped(attention, word_of, words, "mean", "sum")


def maps(dtype):
    cases = [
        (3, [-1, 0, 0, 1, -1], 2),
        (2, [-1, 0, 1, 1, 1, 2, 3, 3, -1], 4),
        (1, [-1, 0, 1, 2, -1], 3),
        (4, [-1, 0, 0, 0, -1], 1),
        (2, [-1, 0, 2, 2, 3, -1], 4),  # word 1 has no piece
        (5, [-1, 0, 1, 1, 2, 2, 2, 4, -1, -1, -1], 6),  # padding; two without pieces
        (2, [-1, 0, 0, 0, 0, 1, -1], 2),
        (3, [0, 1, 1, 2], 3),  # no [CLS], no [SEP]
        (2, [-1, 0, 1, 0, -1], 2),  # word 0 stands on both sides of word 1
    ]
    for seed, (heads, word_of, words) in enumerate(cases):
        scores = randn(heads, len(word_of), len(word_of), seed=seed, dtype=dtype) * 2
        attention = scores.softmax(dim=-1)
        if seed == 1:  # not contiguous
            attention = attention.mT.contiguous().mT
        yield {"attention": attention, "word_of": torch.tensor(word_of), "words": words}


pieces = Exercise(
    "9.1", "From subword tokens to words", word_map, maps, gradients=False
)

pieces.wrong(
    "the mean of what is read",
    "The weight on any token of a word is weight on the word: take the sum.",
    lambda *given: _mapped(*given, "mean", "mean"),
)
pieces.wrong(
    "the sum of what reads",
    "As a query, a word takes the mean over its tokens, or rows sum to more than 1.",
    lambda *given: _mapped(*given, "sum", "sum"),
)
pieces.wrong(
    "mean and sum exchanged",
    "The mean belongs to the queries (rows), the sum to the keys (columns).",
    lambda *given: _mapped(*given, "sum", "mean"),
)
for one in ("first", "last"):
    pieces.wrong(
        "one piece for the word",
        "All tokens of a word count, as query and as key; here one stands for it.",
        lambda *given, one=one: _mapped(*given, one, "sum"),
        lambda *given, one=one: _mapped(*given, one, one),
        lambda *given, one=one: _mapped(*given, "mean", one),
    )


pieces.wrong(
    "[CLS] and [SEP] in the first word",
    "-1 is no word; clamp makes it the first one, which now has [CLS] and [SEP].",
    lambda a, word_of, words: word_map(a, word_of.clamp(min=0), words),
)
pieces.wrong(
    "[CLS] and [SEP] counted",
    "-1 is no word; as an index it is the last one, which now has [CLS] and [SEP].",
    lambda a, word_of, words: word_map(a, word_of % words, words),
)
for by_number in (True, False):  # divided by how often -1 occurs, or by the word's own

    @pieces.wrong("[CLS] and [SEP] counted")
    def _(attention, word_of, words, by_number=by_number):
        count = _table("sum", word_of, words, attention.dtype).sum(dim=0).clamp(min=1)
        if by_number:
            count = (word_of[:, None] == word_of).sum(dim=1, keepdim=True)
        belongs = _table("sum", word_of % words, words, attention.dtype)
        return (belongs / count).mT @ attention @ belongs


pieces.wrong(
    "[CLS] and [SEP] as a word",
    "The first column of one_hot(word_of + 1, words + 1) is for -1: drop it alone.",
    lambda a, word_of, words: word_map(a, word_of + 1, words + 1),
    lambda a, word_of, words: word_map(a, word_of + 1, words + 1)[:, :-1, :-1],
)
pieces.wrong(
    "first and last piece cut off",
    "-1 says what belongs to no word: there may be padding at the end, or no [CLS].",
    lambda a, word_of, words: word_map(a[:, 1:-1, 1:-1], word_of[1:-1], words),
)
pieces.wrong(
    "words without pieces left out",
    "A word without tokens keeps its place in the map, with zeros.",
    lambda a, word_of, words: word_map(a, word_of, int(word_of.max()) + 1),
)


pieces.wrong(
    "shared out anew",
    "What is missing to 1 went to [CLS] and [SEP]: leave it missing, or a head that "
    "attends to them alone would look like any other.",
    lambda *given: F.normalize(word_map(*given), p=1, dim=-1),
    lambda attention, word_of, words: word_map(
        F.normalize(attention * (word_of >= 0), p=1, dim=-1), word_of, words
    ),
)
pieces.wrong(
    "rows and columns exchanged",
    "Rows are the queries, columns the keys.",
    lambda *given: word_map(*given).mT,
    lambda attention, *words: word_map(attention.mT, *words),
)
pieces.wrong(
    "the diagonal removed",
    "The weight of a word on itself stays in the map.",
    lambda a, *words: word_map(a, *words) * (1 - torch.eye(words[1], dtype=a.dtype)),
)
pieces.wrong(
    "divided by no pieces",
    "A word without tokens is divided by 0 and becomes NaN; its row is zeros.",
    lambda a, word_of, words: word_map(a, word_of, words).masked_fill(
        ~torch.isin(torch.arange(words), word_of)[:, None], torch.nan
    ),
)


for axes in ((2, 1), (1, 2)):

    @pieces.wrong(
        "-1 given to index_add",
        "index_add takes no -1: it does not count from the end. Leave out the tokens "
        "of no word first, in rows and in columns: attention[:, keep][:, :, keep].",
    )
    def _(attention, word_of, words, axes=axes):
        found = attention
        for axis in axes:
            shape = list(found.shape)
            shape[axis] = words
            found = found.new_zeros(shape).index_add(axis, word_of, found)
        return found


# --- 9.2: the test that tells an honest report from one that has peeked ---------------


def _reported(procedure: Callable, first: Tensor, other: Tensor) -> float:
    parts = (first, other)
    tables = all(isinstance(x, Tensor) and x.dim() == 2 and x.numel() for x in parts)
    if not tables or first.shape[1] != other.shape[1]:
        raise ValueError(
            "report takes two tensors (arcs, heads), each with one arc at least and "
            "with the same heads."
        )
    both = torch.cat(parts)
    return float(procedure(*(table.double().mean(dim=0) for table in (*parts, both))))


class _FirstCall:
    """Repeats what `how` takes of its first call: the head, or the honest number."""

    first = None

    def __init__(self, how: Callable):
        self.how = how

    def __call__(self, a, b, both):
        self.first = self.first or (a.argmax().item(), b[a.argmax()])
        return self.how(b, *self.first)


REPORTS = {  # of the accuracies (heads,): on the first part, the other, and on both
    "an honest one": lambda a, b, both: b[a.argmax()],
    "one that chooses on the other part": lambda a, b, both: b.max(),
    "one that chooses on both parts": lambda a, b, both: b[both.argmax()],
    "one that reports on the first part": lambda a, b, both: a.max(),
    "one that reports on both parts": lambda a, b, both: both[a.argmax()],
    "one that reports the better number": lambda a, b, both: max(
        a.max(), b[a.argmax()]
    ),
    "one that takes head 0": lambda a, b, both: b[0],
    "one that takes the last head": lambda a, b, both: b[-1],
    "one that takes the head in the middle": lambda a, b, both: b[len(b) // 2],
    "one that takes the worst head of the other part": lambda a, b, both: b.min(),
    "one that keeps the head it chose at its first call": _FirstCall(
        lambda b, head, number: b[min(head, len(b) - 1)]
    ),
    "one that returns the number of its first call again": _FirstCall(
        lambda b, head, number: number
    ),
    "one that takes the mean of the heads": lambda a, b, both: b.mean(),
    "one that exchanges the parts": lambda a, b, both: a[b.argmax()],
    "one that lets the other part decide between two": lambda a, b, both: b[
        a.topk(min(2, len(a))).indices
    ].max(),
    "one that takes the mean of both best": lambda a, b, both: (a.max() + b.max()) / 2,
    "an honest one in single precision": lambda a, b, both: b[a.argmax()].float(),
    "one that chooses by the mean of both": lambda a, b, both: b[(a + b).argmax()],
    "an honest one that takes the last of equals": lambda a, b, both: b[
        -1 - a.flip(0).argmax()
    ],
}


def reports(dtype):
    for name, procedure in REPORTS.items() if dtype == torch.float32 else ():
        yield {"report": Unnamed(name, partial(_reported, procedure))}


def _tables(first: tuple, other: tuple) -> tuple[Tensor, Tensor]:
    """Return two tables of 10 arcs in which head i is right on first[i], other[i]."""
    arcs = torch.arange(10)[:, None]
    return tuple((arcs < torch.tensor(hits)).double() for hits in (first, other))


def _near(x: float, y: float) -> bool:
    return abs(x - y) < 1e-6


ONE, TWO = ((3, 7, 6, 1), (2, 4, 6, 9)), ((1, 2, 9, 8), (2, 9, 3, 6))


def honest_test(report: Callable) -> bool:
    """The reference: on two pairs of tables no other procedure is right."""
    return _near(report(*_tables(*ONE)), 0.4) and _near(report(*_tables(*TWO)), 0.3)


peeking = Exercise("9.2", "Write the test", honest_test, reports, gradients=False)

peeking.wrong(
    "lets all pass, as a share does",
    "Each returns a share between 0 and 1. Make tables with a known right one.",
    lambda report: 0 <= report(*_tables(*ONE)) <= 1,
)
peeking.wrong(
    "lets nothing pass",
    "Honest ones fail, too. Make tables for which you know the one right number.",
    lambda report: False,
)
peeking.wrong(
    "True and False exchanged",
    "Turn it round: True for honest ones, False for others.",
    lambda report: not honest_test(report),
)
peeking.wrong(
    "no tolerance",
    "An honest number is rounded, in single precision most of all: allow 1e-6.",
    lambda report: report(*_tables(*ONE)) == 0.4 and report(*_tables(*TWO)) == 0.3,
)
peeking.wrong(
    "the tables exchanged",
    "A head is chosen on the first table, and its accuracy on the second one returned.",
    lambda report: _near(report(*_tables(*ONE[::-1])), 0.7),
    lambda report: _near(report(*_tables(*ONE[::-1])), 0.4),
)
PAGE = torch.tensor([[0.0, 1.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])

peeking.wrong(
    "not above the first",
    "By chance an honest number may be above that of the first part; and one that has "
    "peeked may be below. Compare with the one right number.",
    lambda report: report(*_tables(*ONE)) < 0.7,
    lambda report: report(*_tables(*ONE)) < 0.7 + 1e-6,
    lambda report: report(*_tables(*ONE)) < report(*_tables(ONE[0], ONE[0])),
    lambda report: report(*PAGE) < report(PAGE[0], PAGE[0]),
)
for wrong in ([0.9], [0.9, 0.7], [0.9, 0.7, 0.6]):
    peeking.wrong(
        "compares one number",
        "That excludes one way of peeking, and there are many: an honest report has "
        "one number, so ask whether this is it.",
        lambda report, wrong=wrong: (
            not any(_near(report(*_tables(*ONE)), number) for number in wrong)
        ),
    )


def _asks(*pairs: tuple[int, tuple]) -> Callable:
    """Return a test that knows the right number of some pairs of tables.

    pairs: the place of the right head, and hits: how often it is right in both parts,
    then those of the heads behind it.
    """

    def test(report):
        return all(
            _near(report(*_tables(*zip(*hits[-at:], *hits[:-at]))), hits[0][1] / 10)
            for at, hits in pairs
        )

    return test


DEFICIENT = {
    "equal parts": (
        "Two equal parts give one number, whoever chose on which: they must differ.",
        ((7, 7), (5, 5), (3, 3)),
    ),
    "one head best in both": (
        "Who chooses on the wrong part finds the same head: let another one win there.",
        ((7, 5), (6, 3), (3, 2)),
        ((7, 9), (6, 5), (4, 2)),
    ),
    "as good in both parts": (
        "Who reports on the first part finds the same number: let the two differ.",
        ((6, 6), (4, 9), (1, 0)),
    ),
    "no close second that is better in the other": (
        "Who lets the other part decide between the two best of the first is not "
        "found: make one nearly as good in the first and better in the other.",
        ((6, 3), (2, 1), (1, 9)),
        ((9, 4), (4, 2), (1, 5)),  # nor is another one best in both together
    ),
    "the choice of both is the choice of the first": (
        "Let another head be so much better in the other part that it wins in both.",
        ((9, 4), (5, 6), (1, 0)),
    ),
}
for name, (why, *tables) in DEFICIENT.items():
    for hits in tables:
        (in_first, in_other), *others = hits
        lower = ((in_first - (in_first == in_other), in_other - 1), *others)
        peeking.wrong(
            name,
            why,
            *(_asks((at, hits)) for at in (0, 1, 2)),
            _asks((1, (*hits, (1, 0)))),
            _asks((0, hits), (1, hits)),
            _asks((0, hits), (1, lower)),
        )

TIES = {  # pairs of tables in which two heads are equally good on the first
    ((7, 4), (7, 9), (3, 2)): 0.4,
    ((7, 4), (7, 2), (3, 9)): 0.4,
    ((7, 9), (7, 4), (3, 2)): 0.9,
    ((7, 5), (7, 3)): 0.5,
    ((1, 0), (1, 1)): 0.0,
    ((10, 4), (10, 9), (3, 2)): 0.4,
}
for hits, number in TIES.items():
    peeking.wrong(
        "two heads equally good on the first",
        "An honest report may choose any of the heads that are equally good on the "
        "first table, so the right number is not one. Give them different accuracies.",
        lambda report, hits=hits, number=number: _near(
            report(*_tables(*zip(*hits))), number
        ),
        lambda report, hits=hits, number=number: (
            honest_test(report) and _near(report(*_tables(*zip(*hits))), number)
        ),
    )

peeking.wrong(
    "the example of the page alone",
    "The example of the page finds some, not all: who takes the last head, or the "
    "worst one, returns 0.5, too. Make two pairs of larger tables.",
    lambda report: _near(report(*PAGE), 0.5),
)

SOUND, OTHER = ((7, 2), (6, 9)), ((8, 4), (7, 9))
for more in ((), ((1, 0), (1, 0))):
    one, two = SOUND + more, OTHER + more
    peeking.wrong(
        "the right head in one place",
        "Who never chooses, or keeps the head of the first call, may take this head, "
        "too: make a pair with another one.",
        *(_asks((at, one)) for at in range(len(one))),
        *(_asks((at, one), (at, two)) for at in range(len(one))),
    )
peeking.wrong(
    "a constant, or the worst head, would do",
    "Let the right numbers differ, and none of them be the lowest of its table.",
    _asks((0, (*SOUND, (1, 0))), (1, (*SOUND, (1, 0)))),
    _asks((0, SOUND), (1, SOUND)),
    _asks((0, SOUND), (1, OTHER)),
)

# --- 9.3: an interval of sentences, not of arcs ---------------------------------------

ENDS = (0.025, 0.975)


def _ends(accuracies: Tensor, ends=ENDS, empty=torch.nan, how="linear") -> Tensor:
    """Return the quantiles; empty: the accuracy of a draw without any arc."""
    ends = torch.tensor(ends, dtype=accuracies.dtype)
    return accuracies.nan_to_num(empty).nanquantile(ends, interpolation=how).float()


def _by_sentence(accuracies: Callable, ends: Callable = _ends) -> Callable:
    """Return an answer: the ends of accuracies(hits, arcs, drawn), one for each draw.

    hits, arcs: of each sentence, the arcs that are right, and all of them.
    """

    def answer(right, sentence, drawn):
        hits, arcs = torch.zeros(2, drawn.shape[1], dtype=torch.float64)
        hits.index_add_(0, sentence, right.double())
        arcs.index_add_(0, sentence, torch.ones(len(right), dtype=torch.float64))
        return ends(accuracies(hits, arcs, drawn))

    return answer


def _accuracies(hits, arcs, drawn):
    return hits[drawn].sum(dim=1) / arcs[drawn].sum(dim=1)  # NaN: no arc


def interval(right: Tensor, sentence: Tensor, drawn: Tensor) -> Tensor:
    """The reference: with a sentence all its arcs are drawn, as often as it is."""
    return _by_sentence(_accuracies)(right, sentence, drawn)


def draws(dtype):
    if dtype != torch.float32:  # whole numbers and bools: the same in both
        return
    shapes = [(12, 40, 50), (30, 25, 80), (5, 60, 40), (4, 3, 60), (60, 200, 100)]
    for seed, (sentences, arcs, count) in enumerate(shapes):
        generator = torch.Generator().manual_seed(seed)
        sentence = torch.randint(sentences, (arcs,), generator=generator)
        if seed != 2:
            sentence = sentence.sort().values
        easy = torch.rand(sentences, generator=generator)[sentence]
        right = torch.rand(arcs, generator=generator) < easy
        drawn = torch.randint(sentences, (count, sentences), generator=generator)
        yield {"right": right, "sentence": sentence, "drawn": drawn}
    few = torch.randint(6, (40, 6), generator=torch.Generator().manual_seed(9))
    fewer = torch.tensor([0, 0, 1, 1] + [2] * 96)[:, None].expand(-1, 3).clone()
    two = torch.tensor([[0, 1, 1, 4, 2, 3, 3], [4, 4, 2, 5, 6, 0, 1]])
    for right, sentence, drawn in (
        ([1, 1, 0, 0, 1], [0, 0, 0, 3, 3], few),  # some draws have no arc
        ([1, 1, 1, 0], [0, 0, 0, 1], fewer),  # nearly all have none
        ([1, 1, 1, 0], [0, 1, 1, 4], two),  # fewer draws than sentences
    ):
        right = torch.tensor(right).bool()
        yield {"right": right, "sentence": torch.tensor(sentence), "drawn": drawn}


repair = Exercise("9.3", "Repair the interval", interval, draws, gradients=False)

repair.wrong(
    "arcs drawn",
    "This draws arcs, as if those of one sentence were independent; they succeed and "
    "fail together, and the interval becomes too narrow. Draw sentences.",
    lambda right, sentence, drawn: _ends(right.double()[drawn % len(right)].mean(1)),
)
repair.wrong(
    "each sentence weighs alike",
    "One with ten arcs counts ten times as much: add up hits and arcs, then divide.",
    _by_sentence(lambda hits, arcs, drawn: (hits / arcs)[drawn].nanmean(1)),
    _by_sentence(lambda hits, arcs, drawn: (hits / arcs.clamp(1))[drawn].mean(1)),
    _by_sentence(lambda hits, arcs, drawn: (hits / arcs)[drawn].mean(1)),
)
for of_both in (False, True):

    @repair.wrong(
        "one arc of each sentence",
        "`x[sentence] += right` keeps one arc of each sentence: repeated places are "
        "added once. `index_add` and `bincount` add them all.",
    )
    def _(right, sentence, drawn, of_both=of_both):
        hits, arcs = torch.zeros(2, drawn.shape[1], dtype=torch.float64)
        hits[sentence] += right
        arcs[sentence] += 1
        if not of_both:
            arcs = torch.bincount(sentence, minlength=len(arcs))
        return _ends(_accuracies(hits, arcs, drawn))


repair.wrong(
    "drawn twice, counted once",
    "A sentence that is drawn twice brings its arcs twice.",
    _by_sentence(
        lambda hits, arcs, drawn: torch.stack(
            [hits[row.unique()].sum() / arcs[row.unique()].sum() for row in drawn]
        )
    ),
)
repair.wrong(
    "an empty draw counts",
    "A draw without any arc has no accuracy: leave it out, give it no number.",
    *(_by_sentence(_accuracies, partial(_ends, empty=x)) for x in (0.0, 0.5, 1.0)),
    _by_sentence(_accuracies, lambda x: x.float().quantile(torch.tensor(ENDS))),
)
repair.wrong(
    "divided by another number",
    "The accuracy of a draw is its hits, divided by its own arcs: neither by all arcs "
    "nor by sentences.",
    _by_sentence(lambda hits, arcs, drawn: hits[drawn].sum(1) / arcs.sum()),
    _by_sentence(lambda hits, arcs, drawn: hits[drawn].mean(1)),
)
for ends in ((0.05, 0.95), (0.0, 0.95), (0.0, 1.0)):
    repair.wrong(
        "other ends",
        "95 % of the draws lie between the quantiles 0.025 and 0.975.",
        _by_sentence(_accuracies, partial(_ends, ends=ends)),
    )


def _sorted(accuracies):
    found = accuracies[~accuracies.isnan()].sort().values
    return torch.stack([found[int(end * len(found))] for end in ENDS]).float()


repair.wrong(
    "no interpolation",
    "The ends may lie between two draws: interpolate, as torch.quantile does.",
    _by_sentence(_accuracies, _sorted),
    *(_by_sentence(_accuracies, partial(_ends, how=x)) for x in ("nearest", "lower")),
)


def _normal(accuracies):
    found = accuracies[~accuracies.isnan()]
    return (found.mean() + 1.96 * found.std() * torch.tensor([-1, 1])).float()


repair.wrong(
    "a normal distribution supposed",
    "Mean ± 1.96 standard deviations supposes one: take the quantiles of the draws.",
    _by_sentence(_accuracies, _normal),
)
repair.wrong(
    "ends exchanged",
    "The lower end comes first.",
    lambda *given: interval(*given).flip(0),
)

# --- 9.4: how many of a sentence's neighbours stay ------------------------------------


def _cosines(x: Tensor, y: Tensor | None = None) -> Tensor:
    return F.normalize(x, dim=-1) @ F.normalize(x if y is None else y, dim=-1).mT


def _others(similar: Tensor, itself: float = -torch.inf) -> Tensor:
    return similar.fill_diagonal_(itself)


def _nearest(similar: Tensor, k: int) -> Tensor:
    return similar.topk(k, dim=-1).indices  # (sentences, k)


def _in_both(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, None] == b[:, None, :]).any(dim=-1)


def _stay(before, after, k, similar, then=None, nearest=_nearest, same=_in_both):
    """Return the share of the nearest before that are the same ones after.

    similar, then: how similar sentences are before, and after, if otherwise.
    """
    a, b = nearest(similar(before), k), nearest((then or similar)(after), k)
    return same(a, b).float().mean(dim=-1)


def _right(x: Tensor) -> Tensor:
    return _others(_cosines(x))


def kept(before: Tensor, after: Tensor, k: int) -> Tensor:
    """The reference: for each sentence, the share of its k nearest that stay."""
    return _stay(before, after, k, _right)


def vectors(dtype):
    """Yield trials in which no rounding decides who is the k-th nearest."""
    if dtype != torch.float32:
        return
    sizes = [(12, 6, 3, 0.3), (60, 8, 5, 0.5), (8, 4, 1, 0.3), (20, 16, 4, 1.5)]
    sizes += [(6, 3, 5, 0.5), (25, 5, 7, 0.2)]
    sizes += [
        (12, 6, 3, 0.3)
    ]  # half precision would exchange two that are nearly equal
    for seed, (count, dim, k, noise) in zip((0, 50, 2, 3, 4, 298, 1365), sizes):
        lengths = 0.3 + torch.arange(count)[:, None] % 4  # not of length 1
        before = randn(count, dim, seed=seed, dtype=dtype) + 0.4
        after = before + noise * randn(count, dim, seed=50 + seed, dtype=dtype)
        if seed == 50:  # nothing may be added to a length
            lengths[::3] = 0.01
        if seed == 3:  # neither contiguous
            before, after = before.mT.contiguous().mT, after.mT.contiguous().mT
        yield {"before": before * lengths, "after": after * lengths.flip(0), "k": k}
    # two that point exactly the same way, until they part
    before = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    after = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
    yield {"before": before, "after": after, "k": 1}
    # nearly opposite: a neighbour all the same, as there are but two others
    before = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.0, 1.0]])
    after = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    yield {"before": before, "after": after, "k": 2}


stay = Exercise("9.4", "Which neighbours stay?", kept, vectors, gradients=False)


def _with_itself(x: Tensor) -> Tensor:
    return _others(_cosines(x), 2.0)


def _one_more(before, after, k):
    return _stay(before, after, min(k + 1, len(before)), _cosines)


stay.wrong(
    "itself among its neighbours",
    "Each sentence is its own nearest neighbour, before and after: leave it out.",
    lambda *given: _stay(*given, _cosines),
    lambda *given: _stay(*given, _with_itself),
    lambda *given: _stay(*given, _with_itself, _right),
    lambda *given: _stay(*given, _right, _with_itself),
    _one_more,
    lambda before, after, k: _one_more(before, after, k) * min(k + 1, len(before)) / k,
)
stay.wrong(
    "the first of the list left out",
    "It is not always the sentence itself: another may point the same way. Put -inf "
    "on the diagonal.",
    lambda *given: _stay(
        *given, _cosines, nearest=lambda x, k: x.topk(k + 1).indices[:, 1:]
    ),
    lambda *given: _stay(
        *given, _cosines, nearest=lambda x, k: x.argsort(descending=True)[:, 1 : k + 1]
    ),
)
stay.wrong(
    "zeros on the diagonal",
    "A cosine of 0 is not the smallest: many are below. Put -inf on the diagonal.",
    lambda *given: _stay(*given, lambda x: _others(_cosines(x), 0.0)),
)


def _dots(x: Tensor) -> Tensor:
    return _others(x @ x.mT)


stay.wrong(
    "dot products",
    "Long vectors win every dot product: divide each by its own length, along the "
    "last axis.",
    lambda *given: _stay(*given, _dots),
    lambda *given: _stay(*given, _dots, _right),
    lambda *given: _stay(*given, _right, _dots),
    lambda *given: _stay(*given, lambda x: _dots(F.normalize(x, dim=0))),
)
stay.wrong(
    "another measure",
    "The cosine alone, with its sign: subtract no mean, and measure no distance "
    "between vectors of any length.",
    lambda *given: _stay(*given, lambda x: _others(_cosines(x).abs())),
    lambda *given: _stay(*given, lambda x: _right(x - x.mean(dim=0))),
    lambda *given: _stay(*given, lambda x: _right(x - x.mean(dim=-1, keepdim=True))),
    lambda *given: _stay(*given, lambda x: _others(-torch.cdist(x, x))),
)
stay.wrong(
    "the order counted",
    "Two neighbours that change places are still both neighbours: compare sets.",
    lambda *given: _stay(*given, _right, same=torch.eq),
)
stay.wrong(
    "the neighbours of all",
    "`isin` looks for a number in *all* rows: compare row by row.",
    lambda *given: _stay(*given, _right, same=torch.isin),
)
stay.wrong(
    "the farthest",
    "Those are the least similar ones; neighbours are the most similar.",
    lambda *given: _stay(*given, lambda x: _others(-_cosines(x))),
    lambda *given: _stay(*given, lambda x: -_right(x)),
)


stay.wrong(
    "two models mixed",
    "Compare before with before, and after with after.",
    lambda x, y, k: _stay(x, y, k, _right, lambda z: _others(_cosines(x, z))),
    lambda x, y, k: _stay(x, y, k, _right, lambda z: _others(_cosines(z, x))),
)
stay.wrong(
    "the share of the union",
    "That is the share of all that were neighbours before or after; take that of the k "
    "before.",
    lambda *given: kept(*given) / (2 - kept(*given)),
)
stay.wrong(
    "the share that left",
    "Count the neighbours that stay.",
    lambda *given: 1 - kept(*given),
)
stay.wrong(
    "yes or no",
    "A share is asked for: how many stay, not whether one does, or all do.",
    lambda *given: (kept(*given) > 0).float(),
    lambda *given: (kept(*given) == 1).float(),
)
stay.wrong(
    "the mean of all",
    "One number for each sentence; take the mean later.",
    lambda *given: kept(*given).mean(),
)
for divisor in (
    lambda before, k: k + 1,
    lambda before, k: 1,
    lambda before, k: len(before),
    lambda before, k: len(before) - 1,
):
    stay.wrong(
        "divided by another number",
        "A sentence has k neighbours: divide by k, not by k + 1, 1 or all sentences.",
        lambda before, after, k, divisor=divisor: (
            kept(before, after, k) * k / divisor(before, k)
        ),
    )
stay.wrong(
    "too few neighbours",
    "After the sentence itself is left out, k neighbours must remain.",
    lambda before, after, k: kept(before, after, max(k - 1, 1)),
    lambda before, after, k: kept(before, after, 1),
)

EXERCISES = (pieces, peeking, repair, stay)
