"""Exercise 9.2: write the test that tells an honest report from one that has peeked."""

import copy
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from utils.exercises.engine import Exercise

_PROCEDURES: WeakKeyDictionary = WeakKeyDictionary()  # of a report, kept outside it


class Report:
    """A function report(first, other). Nothing in it says which procedure it is."""

    __slots__ = ("__weakref__",)
    __name__ = "report"

    def __call__(self, first: Tensor, other: Tensor) -> float:
        for part in (first, other):
            if not (isinstance(part, Tensor) and part.dim() == 2 and part.numel()):
                raise ValueError(
                    "report takes two tensors (arcs, heads), with one arc at least."
                )
        if first.shape[1] != other.shape[1]:
            raise ValueError(
                f"the tables have {first.shape[1]} and {other.shape[1]} heads; the "
                "heads of both are the same."
            )
        return _PROCEDURES[self](first.double(), other.double()).item()


class _Named(torch.nn.Module):
    """A procedure under the name that messages give it.

    Modules are copied for every call of an answer. The copy is a Report without the
    name, and what a procedure remembers begins anew.
    """

    def __init__(self, name: str, procedure: Callable):
        super().__init__()
        self.__name__, self.procedure = name, procedure

    def __deepcopy__(self, memo: dict) -> Report:
        report = Report()
        _PROCEDURES[report] = copy.deepcopy(self.procedure)
        return report


def _accuracy(table):
    return table.mean(dim=0)  # (heads,)


def _honest(first, other):
    return _accuracy(other)[_accuracy(first).argmax()]


def _honest_by_count(first, other):
    """Written another way."""
    best = max(range(first.shape[1]), key=lambda head: first[:, head].sum().item())
    return other[:, best].sum() / len(other)


def _honest_in_single(first, other):
    return _honest(first, other).float()


def _chosen_on_other(first, other):
    return _accuracy(other).max()


def _chosen_on_both(first, other):
    return _accuracy(other)[_accuracy(torch.cat([first, other])).argmax()]


def _chosen_on_the_mean(first, other):
    """Both parts weigh alike, however many arcs they have."""
    return _accuracy(other)[(_accuracy(first) + _accuracy(other)).argmax()]


def _honest_last_of_equals(first, other):
    """Of heads that are equally good in the first part, the last."""
    return _accuracy(other)[-1 - _accuracy(first).flip(0).argmax()]


def _reported_on_first(first, other):
    return _accuracy(first).max()


def _reported_on_both(first, other):
    return _accuracy(torch.cat([first, other]))[_accuracy(first).argmax()]


def _better_of_two(first, other):
    head = _accuracy(first).argmax()
    return torch.maximum(_accuracy(first)[head], _accuracy(other)[head])


def _never_chosen(first, other):
    return _accuracy(other)[0]


def _always(head):
    """Return a report of the same head whatever the tables (of the last, if fewer)."""

    def same_head(first, other):
        return _accuracy(other)[min(head, other.shape[1] - 1)]

    return same_head


def _last_head(first, other):
    return _accuracy(other)[-1]


def _middle_head(first, other):
    return _accuracy(other)[other.shape[1] // 2]


class _FirstChoice:
    """Chooses once, and keeps that head (the last, if fewer) whatever comes."""

    head = None

    def __call__(self, first, other):
        if self.head is None:
            self.head = _accuracy(first).argmax().item()
        return _always(self.head)(first, other)


def _mean_of_heads(first, other):
    return other.mean()


def _exchanged(first, other):
    return _honest(other, first)


def _best_of_two_choices(first, other):
    """Of the two best heads of the first part, the one that is better here."""
    best = _accuracy(first).topk(min(2, first.shape[1])).indices
    return _accuracy(other)[best].max()


def _best_of_each(first, other):
    return (_accuracy(first).max() + _accuracy(other).max()) / 2


REPORTS = (
    _Named("an honest one", _honest),
    _Named("one that chooses on the other part", _chosen_on_other),
    _Named("one that chooses on both parts", _chosen_on_both),
    _Named("an honest one, written otherwise", _honest_by_count),
    _Named("one that reports on the first part", _reported_on_first),
    _Named("one that reports on both parts", _reported_on_both),
    _Named("one that reports the better of two numbers", _better_of_two),
    _Named("one that takes head 0", _never_chosen),
    *(_Named(f"one that takes head {head}", _always(head)) for head in (1, 2, 3)),
    _Named("one that takes the last head", _last_head),
    _Named("one that takes the head in the middle", _middle_head),
    _Named("one that keeps the head it chose at its first call", _FirstChoice()),
    _Named("one that takes the mean of the heads", _mean_of_heads),
    _Named("one that exchanges the parts", _exchanged),
    _Named("one that lets the other part decide between two", _best_of_two_choices),
    _Named("one that takes the best of each part, and their mean", _best_of_each),
    _Named("an honest one in single precision", _honest_in_single),
    _Named("one that chooses by the mean of both accuracies", _chosen_on_the_mean),
    _Named("an honest one that takes the last of equals", _honest_last_of_equals),
)


def _table(*hits, arcs=10):
    """Return a table (arcs, heads) in which head i is right on hits[i] arcs."""
    right = torch.arange(arcs)[:, None] < torch.tensor(hits)
    return right.double()


def honest_test(report) -> bool:
    """The reference: in two tables every other procedure gives another number."""
    first, other = _table(3, 7, 6, 1), _table(4, 2, 5, 9)
    twice = abs(report(first, other) - 0.2) < 1e-6
    far = _table(1, 2, 9, 8), _table(3, 9, 2, 4)
    return twice and abs(report(*far) - 0.2) < 1e-6


def reports(dtype):
    for report in REPORTS if dtype == torch.float32 else ():
        yield {"report": report}


def _near(x, y):
    return abs(x - y) < 1e-6


def _pair(heads, place, *hits):
    """Return two tables with the right head at a place, the others behind it.

    hits: of the right head and then of others, how often (in first, in other).
    """
    columns = (*hits, *[(1, 0)] * heads)[:heads]
    columns = (*columns[-place:], *columns[:-place])
    return tuple(_table(*part) for part in zip(*columns))


def _finds(report, places, *hits):
    """Return whether the report is honest on such pairs, one for each place."""
    right = hits[0][1] / 10
    return all(_near(report(*_pair(*place, *hits)), right) for place in places)


def _at(places, *hits):
    """Return the same mistake with the right head in other places."""

    def test(report):
        return _finds(report, places, *hits)

    return test


def _in_one_place(*hits):
    return tuple(_at(places, *hits) for places in ONE_PLACE)


# (heads, place of the right one): who never chooses is right on one of them, too
ONE_PLACE = [[(3, 0)], [(3, 1)], [(3, 2)], [(4, 1)], [(4, 2)], [(4, 3)]]
TWO_PLACES = [(4, 2), (4, 1)]
LARGER = [[(5, 3)], [(5, 4)], [(6, 3)], [(9, 4)], [(9, 6)]]
LAST, IN_THE_MIDDLE = [(3, 2), (5, 4)], [(3, 1), (5, 2)]


def tests_share(report):
    """All of them pass: each returns a share between 0 and 1. Make tables in which you
    know the right one."""
    return 0 <= report(_table(3, 7), _table(4, 2)) <= 1


def tests_all(report):
    return True


def tests_nothing(report):
    """Honest ones fail, too. Make tables by hand in which you know the one right
    number, and compare with it."""
    return False


def tests_inverted(report):
    """Turn it round: True for honest ones, False for others."""
    return not honest_test(report)


def tests_exactly(report):
    """An honest number is rounded, in single precision most of all: allow 1e-6."""
    first, other = _table(3, 7, 6, 1), _table(4, 2, 5, 9)
    far = _table(1, 2, 9, 8), _table(3, 9, 2, 4)
    return report(first, other) == 0.2 and report(*far) == 0.2


def tests_exchanged(report):
    """The first table is the one on which a head is chosen; you expect the number of an
    honest report with the two tables exchanged."""
    return _near(report(_table(4, 2, 5, 9), _table(3, 7, 6, 1)), 0.7)


def tests_equal_parts(report):
    """Two equal parts give one number, whoever chose on which: they must differ."""
    return _finds(report, TWO_PLACES, (7, 7), (6, 6), (3, 3))


def tests_same_head(report):
    """The same head is best in both parts: who chooses on the wrong one finds it, too.
    Let another head win in the other part."""
    return _finds(report, TWO_PLACES, (7, 5), (6, 4), (3, 2))


def tests_same_size(report):
    """The right head is as good in both parts: who reports on the first one finds that
    number, too. Let them differ."""
    return _finds(report, TWO_PLACES, (6, 6), (5, 8))


def tests_not_above(report):
    """By chance an honest number may be above that of the first part; and one that has
    peeked may be below. Compare with the one right number."""
    first, other = _table(3, 7, 6), _table(4, 2, 5)
    return report(first, other) < 0.7


def tests_not_above_the_first(report):
    first, other = _table(3, 7, 6, 1), _table(4, 2, 5, 9)
    return report(first, other) < 0.7 + 1e-6


def tests_one_number(report):
    """That excludes one way of peeking, and there are many: an honest report has one
    number, so ask whether this is it."""
    return _is_none_of(report, 0.9)


def tests_two_numbers(report):
    return _is_none_of(report, 0.9, 0.7)


def tests_three_numbers(report):
    return _is_none_of(report, 0.9, 0.7, 0.5)


def tests_one_number_twice(report):
    far = report(_table(1, 2, 9, 8), _table(3, 9, 2, 4))
    return _is_none_of(report, 0.9) and not _near(far, 0.9)


def _is_none_of(report, *numbers):
    found = report(_table(3, 7, 6, 1), _table(4, 2, 5, 9))
    return not any(_near(found, number) for number in numbers)


def tests_one_place(report):
    """The right head stands in one place in all your tables, and who never chooses may
    take it, too. Make a second pair in which it stands elsewhere."""
    return _finds(report, [(4, 1)], (7, 2), (6, 9))


def tests_far_apart(report):
    """No head that was nearly as good in the first part is better in the other: who
    lets the other part decide between the two best is not found. Make one."""
    return _finds(report, TWO_PLACES, (6, 3), (2, 1), (1, 9))


def tests_few_first(report):
    """In the two parts together the same head wins. Let a head be so much better in the
    other part that it wins in both together."""
    return _finds(report, TWO_PLACES, (9, 3), (6, 5))


EXERCISE = Exercise(
    "9.2",
    "Write the test",
    honest_test,
    reports,
    {
        "lets all pass, as a share does": (tests_share, tests_all),
        "lets nothing pass": tests_nothing,
        "True and False exchanged": tests_inverted,
        "no tolerance": tests_exactly,
        "the tables exchanged": tests_exchanged,
        "equal parts": (tests_equal_parts, *_in_one_place((7, 7), (6, 6), (3, 3))),
        "one head best in both": (
            tests_same_head,
            *_in_one_place((7, 5), (6, 4), (3, 2)),
            *_in_one_place((7, 9), (6, 5), (4, 2)),
        ),
        "as good in both parts": (tests_same_size, *_in_one_place((6, 6), (5, 8))),
        "not above the first": (tests_not_above, tests_not_above_the_first),
        "the right head in one place": (
            tests_one_place,
            *(
                _at(places, (7, 2), (6, 9))
                for places in (*ONE_PLACE, *LARGER, LAST, IN_THE_MIDDLE)
            ),
        ),
        "compares one number": (
            tests_one_number,
            tests_two_numbers,
            tests_three_numbers,
            tests_one_number_twice,
        ),
        "no close second that is better in the other": (
            tests_far_apart,
            *_in_one_place((6, 3), (2, 1), (1, 9)),
            # nor one that is best in both together
            _at(TWO_PLACES, (9, 4), (4, 2), (1, 5)),
            *_in_one_place((9, 4), (4, 2), (1, 5)),
        ),
        "the choice of both is the choice of the first": (
            tests_few_first,
            *_in_one_place((9, 3), (6, 5)),
        ),
    },
    gradients=False,
)
