"""Exercises of notebook 08: two heads by hand, an impostor, backups, importance."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate, combinations, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.attention import causal_mask
from utils.data import repeated_tokens
from utils.oldex.engine import Exercise, randn
from utils.oldex.unnamed import Unnamed

IMPORTS = """\
import torch
import torch.nn.functional as F
from utils.attention import causal_mask
from utils.data import repeated_tokens
from utils.heads import induction, previous_token
"""

# --- 8.1 and 8.2: two heads by hand, on texts whose tokens are one-hot ---------------


def _texts(vocab: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return ids (4, length) and x (4, length, 3 * vocab + length), one-hot.

    Texts begin with token 0, which stands nowhere else; two tables are still empty.
    """
    generator = torch.Generator().manual_seed(seed)
    size, periods = (4, length - 1, vocab - 1), (3, min(vocab - 1, max(3, length // 2)))
    ids, _ = repeated_tokens(generator, *size, periods=periods, distinct=True)
    ids = F.pad(ids + 1, (1, 0))
    positions = torch.eye(length).expand(4, -1, -1)
    x = torch.cat([F.one_hot(ids, vocab).float(), positions], dim=-1)
    return ids, F.pad(x, (0, 2 * vocab))


def _same(ids: Tensor) -> Tensor:
    """Return (…, queries, keys): where the query's token stood earlier."""
    return (ids[..., :, None] == ids[..., None, :]).tril(-1)


def _head_on(x: Tensor, asked: Tensor) -> Callable:
    """Return head(query, key, value): the text that such a head leaves behind.

    x (batch, length, features); what is not asked (batch, length) comes back as zeros.
    """
    size = x.shape[-1]

    def head(query, key, value):
        for name, matrix in (("query", query), ("key", key), ("value", value)):
            shape = tuple(getattr(matrix, "shape", ()))
            if shape != (size, size):
                raise ValueError(
                    f"{name} must be a matrix ({size}, {size}), one row and one column "
                    f"for each feature; its shape is {shape}."
                )
        scores = (x @ query.float()) @ (x @ key.float()).mT
        scores = scores.masked_fill(~causal_mask(x.shape[1]), -torch.inf)
        after = x + scores.softmax(dim=-1) @ (x @ value.float())
        return after.round(decimals=1).where(asked[..., None], 0)

    return head


def _by_hand(
    head, vocab, length, ask, hold, to, say="token", back=0, lead=20.0, write=1.0,
    widths=None, eye=torch.eye,
):  # fmt: skip
    """Call head on matrices that compare two tables and copy a third one.

    ask, hold: the tables of the query and of the key `back` places before it that are
    compared, with a score of `lead`; say, to: the table that is copied, and where to,
    `write` times as large. widths: of the four tables; eye: makes the identities.
    """
    ends = accumulate(widths or (vocab, length, vocab, vocab), initial=0)
    tables = [slice(*pair) for pair in pairwise(ends)]
    at = dict(zip(("token", "position", "previous", "guess"), tables))
    size = 3 * vocab + length
    query, key, value = torch.zeros(3, size, size)
    compared = eye(at[hold].stop - at[hold].start)
    query[at[ask], at[hold]] = lead * compared.roll(-back, dims=1)
    key[at[hold], at[hold]] = compared
    value[at[say], at[to]] = write * eye(at[say].stop - at[say].start)
    return head(query, key, value)


def previous_head(head: Callable, vocab: int, length: int, **wrong):
    """The reference: queries ask for the position before, values carry the token.

    wrong: what a mistake does otherwise, see `_by_hand`.
    """
    right = {"ask": "position", "hold": "position", "back": 1, "to": "previous"}
    return _by_hand(head, vocab, length, **right | wrong)


def induction_head(head: Callable, vocab: int, length: int, **wrong):
    """The reference: look for places whose previous token is mine; say their token."""
    right = {"ask": "token", "hold": "previous", "to": "guess"}
    return _by_hand(head, vocab, length, **right | wrong)


SIZES = (6, 12), (9, 6), (5, 5), (12, 30), (4, 12), (8, 16), (65, 65)


def first_texts(dtype):
    for seed, (vocab, length) in enumerate(SIZES if dtype == torch.float32 else ()):
        ids, x = _texts(vocab, length, seed)
        head = _head_on(x, torch.ones_like(ids, dtype=torch.bool))
        yield {"head": head, "vocab": vocab, "length": length}


def second_texts(dtype):
    """Yield what the first head leaves behind; asked is where a token stood before."""
    for seed, trial in enumerate(first_texts(dtype)):
        ids, _ = _texts(trial["vocab"], trial["length"], seed)
        stood_before = _same(ids).any(-1)
        yield trial | {"head": _head_on(previous_head(**trial), stood_before)}


previous = Exercise(
    "8.1", "A previous-token head by hand", previous_head, first_texts, gradients=False
)
induction = Exercise(
    "8.2", "An induction head by hand", induction_head, second_texts, gradients=False
)


def both_heads(exercise: Exercise, written: str, others: tuple[str, str]) -> None:
    """Note the mistakes that are made in both heads."""
    right = exercise.reference
    for lead in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0):
        exercise.wrong(
            "not sharp",
            "The score of the right key is too close to the others, so the softmax "
            "mixes the keys: multiply the queries, by 20 for example. There may be 65 "
            "keys.",
            lambda *sizes, lead=lead: right(*sizes, lead=lead),
        )
    exercise.wrong(
        "pushes away",
        "The right key has the lowest score: the sign is wrong.",
        lambda *sizes: right(*sizes, lead=-20.0),
    )
    exercise.wrong(
        "writes nothing",
        "It attends to the right key and writes nothing: the value matrix is empty, or "
        "takes features that are.",
        lambda *sizes: right(*sizes, write=0.0),
    )
    exercise.wrong(
        "writes too loud",
        "The token arrives many times as large: the factor belongs to the query, not "
        "to the value.",
        lambda *sizes: right(*sizes, write=20.0),
    )
    exercise.wrong(
        "writes over other features",
        f"These features hold something else, or are kept for it: the {written} has a "
        "table of its own.",
        lambda *sizes: right(*sizes, to=others[0]),
        lambda *sizes: right(*sizes, to=others[1]),
    )
    for other in others:  # beside the right table
        exercise.wrong(
            "writes into two tables",
            f"The token arrives in the table of the {written}, and in another table, "
            "too: each of the tables must keep what it held.",
            lambda head, *sizes, other=other: right(
                lambda q, k, v: right(
                    lambda q2, k2, v2: head(q, k, torch.maximum(v, v2)),
                    *sizes,
                    to=other,
                ),
                *sizes,
            ),
        )
    for lead in (20.0, 1.0, 10.0, 30.0, 50.0, 100.0):
        exercise.wrong(
            "returns the matrices",
            "Your function returned the three matrices. Give them to `head`, and "
            "return what it returns: return head(query, key, value).",
            lambda head, *sizes, lead=lead: right(
                lambda *matrices: matrices, *sizes, lead=lead
            ),
            lambda head, *sizes, lead=lead: right(
                lambda *matrices: list(matrices), *sizes, lead=lead
            ),
        )
    for beside in (0, 1):  # instead of what is asked for, or beside it
        exercise.wrong(
            "hands over everything",
            "The value matrix copies every feature into its own column; it must take "
            f"the token and write it into the features of the {written}.",
            lambda head, *sizes, beside=beside: right(
                lambda q, k, v: head(q, k, beside * v + torch.eye(len(v))), *sizes
            ),
        )

    for confused in (
        lambda vocab, length: {"widths": (vocab, vocab, vocab, vocab)},
        lambda vocab, length: {"widths": (length, vocab, length, length)},
        lambda vocab, length: {"eye": lambda size: torch.eye(length)},
    ):
        exercise.wrong(
            "vocab and length confused",
            "The table of positions has `length` features and the others have `vocab`, "
            "and so have the identities that you write there. The two may differ.",
            lambda head, vocab, length, confused=confused: right(
                head, vocab, length, **confused(vocab, length)
            ),
            lambda head, vocab, length: right(head, length, vocab),
        )


previous.wrong(
    "reads the next token",
    "All visible keys get the same score: the queries ask for the position after, "
    "which the mask hides, or for features that no key has. Row i of the query matrix "
    "must ask for position i - 1.",
    lambda *sizes: previous_head(*sizes, back=-1),
    lambda head, *sizes: previous_head(  # the last one asks for nothing
        lambda q, k, v: head(q.triu(), k, v), *sizes, back=-1
    ),
)
previous.wrong(
    "reads itself",
    "Every position asks for itself, or for tokens that equal its own: compare "
    "positions, and shift them by one.",
    lambda *sizes: previous_head(*sizes, back=0),
    lambda *sizes: previous_head(*sizes, ask="token", hold="token", back=0),
)
previous.wrong(
    "reads two back",
    "Shifted twice: once in the queries and once in the keys, perhaps.",
    lambda *sizes: previous_head(*sizes, back=2),
)


def _all_before(head, vocab, length):
    def wider(query, key, value):
        place = slice(vocab, vocab + length)
        query[place, place] = 20 * torch.ones(length, length).tril(-1)
        return head(query, key, value)

    return previous_head(wider, vocab, length)


previous.wrong(
    "all earlier positions",
    "Every position asks for all positions before it: row i of the query matrix must "
    "ask for position i - 1 alone.",
    _all_before,
)
both_heads(previous, "previous token", others=("token", "guess"))
previous.wrong(
    "vocab and length confused",
    lambda head, vocab, length: previous_head(
        head, vocab, length, eye=lambda size: torch.eye(vocab)
    ),
)
previous.wrong(
    "writes nothing", lambda *sizes: previous_head(*sizes, say="previous", to="token")
)

induction.wrong(
    "says its own token",
    "It predicts the current token: it finds itself and its earlier copies (a "
    "duplicate-token head), or attends to the right key and copies that key's PREVIOUS "
    "token. The current token must meet the previous token of a key, whose own token "
    "is the prediction.",
    lambda *sizes: induction_head(*sizes, hold="token"),
    lambda *sizes: induction_head(*sizes, ask="previous"),
    lambda *sizes: induction_head(*sizes, say="previous"),
)
induction.wrong(
    "says the token before",
    "It predicts the token before the current one: query and key are exchanged, "
    "perhaps. The current token must meet the previous token of a key.",
    lambda *sizes: induction_head(*sizes, ask="previous", hold="token"),
    lambda *sizes: previous_head(*sizes, to="guess"),
)
induction.wrong(
    "a fixed number back",
    "It attends a fixed number of positions back: this is right for one period and its "
    "divisors only. Compare tokens.",
    lambda *sizes: previous_head(*sizes, back=2, to="guess"),
)
induction.wrong(
    "query and key never meet",
    "Every key gets the same score, so all get the same weight: the current token of a "
    "query and the previous token of a key must be written into the same features.",
    lambda *sizes: induction_head(*sizes, lead=0.0),
)
both_heads(induction, "guess", others=("token", "previous"))
induction.wrong("writes nothing", lambda *sizes: induction_head(*sizes, say="guess"))


def _met_in_the_first_table(head, vocab, length):
    """Return the matrices if query and key are compared in the table of tokens."""
    shift = -(vocab + length)  # from the third table to the first
    return induction_head(
        lambda q, k, v: (q.roll(shift, 1), k.roll(shift, 1), v), vocab, length
    )


induction.wrong(
    "returns the matrices",
    _met_in_the_first_table,
    lambda *given: list(_met_in_the_first_table(*given)),
)


# --- 8.3: find the impostor. Heads return weights (length, length) of ids (length,) ---


def _matches(ids: Tensor) -> Tensor:
    """Return (queries, keys): where what followed the query's token earlier stands."""
    return F.pad(_same(ids), (1, -1))


def _spread(wanted: Tensor, rest: Tensor | None = None) -> Tensor:
    """Return weights: alike on the wanted keys; where there are none, on the rest."""
    mask = causal_mask(len(wanted))
    rest = mask if rest is None else rest
    some = (wanted & mask).any(-1, keepdim=True)
    chosen = torch.where(some, wanted & mask, rest).float()
    return chosen / chosen.sum(-1, keepdim=True)


def _back(ids: Tensor, *offsets: int) -> Tensor:
    """Return (queries, keys): the keys that are so many positions back."""
    position = torch.arange(len(ids))
    return torch.isin(position[:, None] - position, torch.tensor(offsets))


def _copies(ids: Tensor, rest: Callable | None = None) -> Tensor:
    return _spread(_matches(ids), rest and rest(ids))


def _nearest_copy(ids):
    found = _matches(ids)
    return _spread(found & (found.flip(-1).cumsum(-1).flip(-1) == 1))


def _first_copy(ids):
    found = _matches(ids)
    return _spread(found & (found.cumsum(-1) == 1))


def _first_token(ids):
    return F.one_hot(torch.zeros_like(ids), len(ids)).float()


def _evenly(ids):
    return _spread(causal_mask(len(ids)))


def _mixture(part: float, rest: Callable) -> Callable:
    """Return a head with this part of its weight on all copies."""
    return lambda ids: part * _copies(ids) + (1 - part) * rest(ids)


def _near(ids, far: Callable):
    """Return weights on all copies if one is at most 15 positions back, else `far`."""
    found = _matches(ids) & ~causal_mask(len(ids)).tril(-16)
    return torch.where(found.any(-1, keepdim=True), _spread(found), far(ids))


def _far(ids):
    """Return weights on all copies if none is at most 15 back, else even ones."""
    near = _matches(ids) & ~causal_mask(len(ids)).tril(-16)
    return torch.where(near.any(-1, keepdim=True), _evenly(ids), _copies(ids))


def _two_queries_of_three(ids):
    every_third = torch.arange(len(ids))[:, None] % 3 == 0
    return torch.where(every_third, _first_token(ids), _mixture(0.6, _first_token)(ids))


def _distances(ids):
    """Return how many positions back each query's matches lie, all in one list."""
    query, key = _matches(ids).nonzero(as_tuple=True)
    return query - key


class _FixedNumberBack:
    """Looks a number back that is right in all texts so far, as far as one can be."""

    def __init__(self):
        self.right = torch.ones(64)  # at each number, the share of the worst text

    def __call__(self, ids):
        asked = _matches(ids).any(-1).sum()
        right = torch.bincount(_distances(ids), minlength=64) / asked
        self.right = torch.fmin(self.right, right)  # NaN: nothing was asked
        return _spread(_back(ids, int(self.right[1:].argmax()) + 1))


class _OnePeriod:
    """Knows one period alone, that of the first text."""

    known = None

    def __call__(self, ids):
        nearest = min(_distances(ids).tolist(), default=None)
        self.known = self.known or nearest
        if nearest is None or nearest != self.known:
            return _evenly(ids)
        rounds = range(nearest, len(ids), nearest + 1)
        return _spread(_matches(ids) & _back(ids, *rounds))


INDUCTION_HEADS = {
    "a head that attends to all copies": _copies,
    "a head that attends to the nearest copy": _nearest_copy,
    "a head that attends to the first copy": _first_copy,
    "a head that rests on the first token": partial(_copies, rest=_first_token),
    "a head with 0.8 on the copies": _mixture(0.8, _evenly),
    "a head with 0.53 on the copies": _mixture(0.53, _first_token),
}
IMPOSTORS = {
    "a head that looks 19 back": lambda ids: _spread(_back(ids, 19)),
    "a head that looks 19 and 39 back": lambda ids: _spread(_back(ids, 19, 39)),
    "a head that looks back by a number that fits your texts": _FixedNumberBack(),
    "a head that knows the first of your periods alone": _OnePeriod(),
    "a head that looks at most 15 back": partial(_near, far=_evenly),
    "a head with 0.45 on far copies": partial(_near, far=_mixture(0.45, _first_token)),
    "a head that finds far copies only": _far,
    "a head that looks for its token + 1": lambda ids: _spread(ids[:, None] + 1 == ids),
    "a previous-token head": lambda ids: _spread(_back(ids, 1)),
    "a duplicate-token head": lambda ids: _spread(_same(ids)),
    "a head that is one token late": lambda ids: _spread(F.pad(_matches(ids), (1, -1))),
    "a head that attends to the first token": _first_token,
    "a head that attends evenly": _evenly,
    "a head with 0.3 on the copies": _mixture(0.3, _evenly),
    "a head with 0.47 on the copies": _mixture(0.47, _first_token),
    "a head that finds copies at the end alone": lambda ids: torch.cat(
        [_evenly(ids)[:-2], _copies(ids)[-2:]]
    ),
    "a head that finds copies in two queries of three": _two_queries_of_three,
}


def _weights(head: Callable, ids: Tensor) -> Tensor:
    """Return the head's weights of a text, if its model knows such texts."""
    known = isinstance(ids, Tensor) and ids.dim() == 1 and not ids.is_floating_point()
    if not known or not 1 <= len(ids) <= 64 or ids.min() < 0 or ids.max() > 63:
        raise ValueError(
            "head takes the tokens of one text, an int64 tensor (length,): at most 64, "
            "each from 0 to 63."
        )
    return head(ids.long())


def heads(dtype):
    all_heads = INDUCTION_HEADS | IMPOSTORS if dtype == torch.float32 else {}
    for name, head in all_heads.items():
        yield {"head": Unnamed(name, partial(_weights, head))}


def _random(period: int) -> Tensor:
    """Return a text of distinct random tokens that starts again after a period."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(period))
    return order[:period].repeat(60)[:60]


def _counting(period: int) -> Tensor:
    return torch.arange(period).repeat(60)[:60]


def _share(head: Callable, ids: Tensor, marks: Callable = _matches) -> Tensor:
    """Return the weight on the marked keys, (queries that have one)."""
    found = marks(ids)
    return (head(ids) * found).sum(-1)[found.any(-1)]


SEVERAL = (7, 11, 13, 17)


def _asks(
    periods=SEVERAL, more_than=0.5, text=_random, share=_share, over=torch.min
) -> Callable:
    """Return a test: is the mean share large enough, over all of these periods?"""

    def test(head):
        shares = [share(head, text(period)).mean() for period in periods]
        return bool(over(torch.stack(shares)) > more_than)

    return test


def impostor_test(head: Callable) -> bool:
    """The reference: high at every one of several periods that share no multiple."""
    return _asks()(head)


impostor = Exercise("8.3", "Find the impostor", impostor_test, heads, gradients=False)

impostor.wrong(
    "says yes to all",
    "Sums of weights, a shape, a largest weight: impostors have them, too.",
    lambda head: bool((head(_random(9)).sum(-1) - 1).abs().max() < 1e-3),
)
impostor.wrong(
    "refuses real ones",
    "It refuses induction heads. Queries whose token did not occur before have nothing "
    "to find: leave them out of the mean. Rows are queries, columns are keys.",
    lambda head: False,
)
impostor.wrong(
    "refuses a bare majority",
    "It refuses a head with just more than half of its weight on what followed. Is the "
    "limit too high? Or does the mean include queries whose token did not occur "
    "before? They have nothing to find: leave them out.",
    *(_asks(more_than=limit) for limit in (0.55, 0.7, 0.95)),
    _asks(share=lambda head, ids: (head(ids) * _matches(ids)).sum(-1)),
)
impostor.wrong(
    "too lenient",
    "More than half of the weight, says the statement; here less is enough.",
    *(_asks(more_than=limit) for limit in (0.2, 0.3, 0.4, 0.46)),
)
for period in (2, 3, 7, 10, 20, 30, 58):  # others pass the same heads as one of these
    impostor.wrong(
        "one period is enough",
        "At one period, a head that attends a fixed number of positions back has the "
        "same score as an induction head: test several periods (a piece that returns "
        "once is one period, too), and ask for a high score at every one of them.",
        _asks([period]),
        _asks([period], text=_counting),
        _asks([period, 11, 13], over=torch.max),
    )
impostor.wrong(
    "periods with a common multiple",
    "Some number back is right at all of your periods, as 19 is at 4, 5, 10 and 20. "
    "Take periods whose smallest common multiple is longer than a text.",
    *(_asks(p) for p in ([2, 4, 8], [5, 10], [4, 5, 10, 20], [9, 18])),
)
impostor.wrong(
    "far copies not asked for",
    "A head passes that looks at most 15 positions back, or gives less of its weight "
    "to copies that are further. Try a period of 17 or more, too, and ask at every one "
    "by itself: a mean hides the period at which a head fails.",
    _asks([2, 3, 4, 5, 6]),
    _asks(over=torch.mean),
)
impostor.wrong(
    "near copies not asked for",
    "A head passes that finds a copy only if it is more than 15 positions away. Try a "
    "short period, too.",
    _asks([20, 31]),
    _asks([17, 23, 29, 31]),
)
impostor.wrong(
    "tokens in order",
    "In your sequences, what followed a token is its number + 1, and a head that looks "
    "for that number passes: draw the tokens at random.",
    _asks(text=_counting),
)
impostor.wrong(
    "the nearest copy only",
    "A head may spread its weight over all the copies, or take the first one: sum over "
    "all earlier matches.",
    lambda head: all(head(_random(p)).diagonal(1 - p).mean() > 0.5 for p in SEVERAL),
)
impostor.wrong(
    "the strongest key only",
    "The strongest key can be right where most of the weight lies elsewhere: sum the "
    "weights.",
    lambda head: impostor_test(lambda x: F.one_hot(head(x).argmax(-1), len(x)).float()),
)
impostor.wrong(
    "one query only",
    "One query is not the average: take the mean over all queries that have a match.",
    _asks(share=lambda head, ids: _share(head, ids)[-1]),
    _asks(share=lambda head, ids: _share(head, ids).amax()),
    _asks(share=lambda head, ids: _share(head, ids).median()),
)
impostor.wrong(
    "the copy itself",
    "That is the position of the earlier copy itself; an induction head attends to the "
    "position AFTER it.",
    _asks(share=partial(_share, marks=_same)),
)
impostor.wrong(
    "upside down",
    "True means that it is a real one.",
    lambda head: not impostor_test(head),
)


# --- 8.4: heads that stand in for each other ------------------------------------------


def backup_pairs(accuracy_without: Callable, heads: int) -> list[tuple[int, int]]:
    """The reference: either of the two may go, both may not."""
    pairs = _pairs(lambda a, b, both, full: max(a, b) < 0.05 and both > 0.3)
    return pairs(accuracy_without, heads)


def _pairs(chosen: Callable) -> Callable:
    """Return an answer that takes a pair by chosen(a, b, both, full).

    By how much the accuracy falls without either head and without both; and the
    accuracy of the full model.
    """

    def answer(accuracy_without, heads):
        full = accuracy_without([])
        fall = [full - accuracy_without([head]) for head in range(heads)]
        return [
            (a, b)
            for a, b in combinations(range(heads), 2)
            if chosen(fall[a], fall[b], full - accuracy_without([a, b]), full)
        ]

    return answer


MODELS = (  # heads, accuracy, {heads: what it costs if all of them are gone}
    (4, 1.0, {(1, 3): 0.6, (0,): 0.01}),
    (4, 0.98, {(2,): 0.7, (0, 1): 0.5}),
    (3, 0.9, {(0,): 0.2, (1,): 0.02}),
    (5, 0.66, {(0, 4): 0.4, (1, 2): 0.2, (3,): 0.1}),
    (4, 1.0, {(0, 1, 2): 0.8}),
    (6, 0.95, {(0, 5): 0.5, (5, 2): 0.4, (1,): 0.35, (3, 4): 0.1}),
    (4, 1.0, {(0,): 0.04, (1,): 0.04, (2, 3): 0.31}),
    (5, 0.97, {(0,): 0.2, (1,): 0.2, (2, 4): 0.45, (0, 3): 0.4}),
    (4, 1.0, {(0,): 0.04, (1,): 0.04, (0, 1): 0.25}),
    (3, 0.8, {(0,): -0.1, (0, 2): 0.45}),
    (4, 0.9, {(0,): 0.015, (1,): 0.015, (0, 1): 0.28}),
    (3, 0.9, {(0,): 0.07, (1,): 0.06, (0, 1): 0.3}),
    (6, 0.6, {(0,): 0.07, (0, 1): 0.4, (2, 3): 0.27, (4,): 0.04, (4, 5): 0.4}),
    (4, 1.0, {(0, 3): 0.5, (1, 2): 0.5}),  # in order of their first heads
    (2, 0.3, {(0, 1): 0.3}),  # 0.3 is not more than 0.3
)


def _accuracy(heads: int, full: float, costs: dict, removed: list[int]) -> float:
    gone = set(removed)
    if not gone <= set(range(heads)):
        raise ValueError(f"there is no head {max(gone)}: there are {heads}, from 0.")
    cost = sum(cost for group, cost in costs.items() if gone >= set(group))
    return max(0.0, round(full - cost, 6))


def models(dtype):
    for heads, full, costs in MODELS if dtype == torch.float32 else ():
        without = (f"{cost:g} without {set(gone)}" for gone, cost in costs.items())
        name = f"{full:g}, less {', less '.join(without)}"
        accuracy = partial(_accuracy, heads, full, costs)
        yield {"accuracy_without": Unnamed(name, accuracy), "heads": heads}


backups = Exercise(
    "8.4", "Who stands in for whom?", backup_pairs, models, gradients=False
)

backups.wrong(
    "a needed head in the pair",
    "A pair is also bad if one of the two is needed by itself: then nobody stands in "
    "for it.",
    _pairs(lambda a, b, both, full: both > 0.3),
)
backups.wrong(
    "one of two dispensable",
    "BOTH must be dispensable alone.",
    _pairs(lambda a, b, both, full: min(a, b) < 0.05 and both > 0.3),
)
backups.wrong(
    "only single heads removed",
    "Two heads that are dispensable alone need not stand in for each other: remove "
    "them together.",
    _pairs(lambda a, b, both, full: max(a, b) < 0.05),
)
backups.wrong(
    "single falls added",
    "The falls of two single heads are no measure of the pair: remove them together.",
    _pairs(lambda a, b, both, full: a + b > 0.3),
)
backups.wrong(
    "compared with 1",
    "The accuracy falls from that of the whole model, accuracy_without([]), which need "
    "not be 1.",
    _pairs(lambda a, b, both, full: max(a, b) < full - 0.95 and both > full - 0.7),
    _pairs(lambda a, b, both, full: max(a, b) < 0.05 and both > full - 0.7),
)
backups.wrong(
    "every pair twice, or turned",
    "Every pair once, the smaller number first.",
    lambda *model: sorted(
        pair for a, b in backup_pairs(*model) for pair in ((a, b), (b, a))
    ),
    lambda *model: [(b, a) for a, b in backup_pairs(*model)],
)
backups.wrong(
    "ordered by the second head",
    "The pairs are right, but in another order: by their first heads, and of these by "
    "the second.",
    lambda *model: sorted(backup_pairs(*model), key=lambda pair: pair[1]),
)
backups.wrong(
    "size of the fall",
    "A head without which the accuracy rises is dispensable, too: take the fall, not "
    "its size.",
    _pairs(lambda a, b, both, full: max(abs(a), abs(b)) < 0.05 and both > 0.3),
)
backups.wrong(
    "fall beyond the singles",
    "The fall of the pair counts from the whole model; nothing is taken off it.",
    _pairs(lambda a, b, both, full: max(a, b) < 0.05 and both - a - b > 0.3),
)
backups.wrong(
    "a ratio",
    "A fall is a difference of two accuracies, not their ratio.",
    _pairs(lambda a, b, both, full: max(a, b) < 0.05 * full and both > 0.3 * full),
    _pairs(lambda a, b, both, full: max(a, b) < 0.05 and both > 0.3 * full),
)
backups.wrong(
    "exactly 0.3 counts",
    "The accuracy must fall by MORE than 0.3: one that falls by 0.3 does not count.",
    _pairs(lambda a, b, both, full: max(a, b) < 0.05 and both >= 0.3),
)
backups.wrong(
    "without the last head",
    "The last head takes part, too: range(heads) ends before heads.",
    lambda accuracy_without, heads: backup_pairs(accuracy_without, heads - 1),
)

# --- 8.5: the importance of a head, by one gradient per example -----------------------


def head_importance(loss: Callable, examples: Tensor, heads: int) -> Tensor:
    """The reference: |d loss / d gate| at gates of 1, per example; then the mean."""
    return _slopes(loss, examples, heads).abs().mean(0)


def _slopes(loss, examples, heads, at=1.0) -> Tensor:
    """Return d loss / d gate, (examples, heads)."""
    found = []
    for example in examples:
        gates = torch.full((heads,), at, dtype=examples.dtype, requires_grad=True)
        found.append(torch.autograd.grad(loss(gates, example), gates)[0])
    return torch.stack(found)


def squares(gates, example):
    return (gates * example[: len(gates)]).sum().sub(1).square()


def crossing(gates, example):
    """Head 0 helps in one half of the examples as much as it harms in the other."""
    return (gates * example[: len(gates)].sin()).sum() + gates[-1].pow(3) * example[-1]


def unequal(gates, example):
    sizes = 10.0 ** torch.arange(len(gates), dtype=gates.dtype)
    return (gates * sizes * example[: len(gates)]).sum().sigmoid() * example.norm()


def loss_trials(dtype):
    sizes = {(5, 4): squares, (8, 3): crossing, (1, 4): squares, (12, 6): unequal}
    sizes |= {(6, 1): crossing, (7, 8): squares}
    for seed, ((count, heads), loss) in enumerate(sizes.items()):
        examples = randn(count, heads + 2, seed=seed, dtype=dtype)
        yield {"loss": loss, "examples": examples, "heads": heads}


importance = Exercise(
    "8.5", "One gradient per example", head_importance, loss_trials, gradients=False
)

importance.wrong(
    "absolute value after the mean",
    "The absolute value of the mean: a head that helps here and harms there gets 0. "
    "Take it for each example, before the mean.",
    lambda *given: _slopes(*given).mean(0).abs(),
)
importance.wrong(
    "no absolute value",
    "Without the absolute value help and harm cancel.",
    lambda *given: _slopes(*given).mean(0),
    lambda *given: -_slopes(*given).mean(0),
)
importance.wrong(
    "added, not averaged",
    "That is the sum over the examples; the mean is asked for.",
    lambda *given: _slopes(*given).abs().sum(0),
)
importance.wrong(
    "squared",
    "That is the mean square of the gradient; the mean absolute value is asked for.",
    lambda *given: _slopes(*given).square().mean(0),
)
importance.wrong(
    "the root mean square",
    "That is the root of the mean square of the gradient; the mean absolute value is "
    "asked for.",
    lambda *given: _slopes(*given).square().mean(0).sqrt(),
)
importance.wrong(
    "gates not at 1",
    "The gradient is asked for at gates of 1, where all heads work as in the model.",
    lambda *given: _slopes(*given, at=0.0).abs().mean(0),
    lambda *given: _slopes(*given, at=0.5).abs().mean(0),
)


def _changes(loss, examples, heads):
    """Return by how much the loss changes without each head, (examples, heads)."""
    ones = torch.ones(heads, dtype=examples.dtype)
    without = ones - torch.eye(heads, dtype=examples.dtype)
    changes = [[loss(g, x) - loss(ones, x) for g in without] for x in examples]
    return torch.stack([torch.stack(change) for change in changes])


importance.wrong(
    "ablation",
    "That is ablation, the change of the loss when a gate goes to 0; the gradient says "
    "how it changes where the gate is 1.",
    lambda *given: _changes(*given).abs().mean(0),
    lambda *given: _changes(*given).mean(0),
)
importance.wrong(
    "normalised",
    "Not normalised here: that is another step, layer by layer.",
    lambda *given: F.normalize(head_importance(*given), dim=0),
    lambda *given: F.normalize(head_importance(*given), p=1, dim=0),
)
importance.wrong(
    "one example only",
    "All examples count, not the last alone, nor the first: is something overwritten?",
    lambda *given: _slopes(*given)[-1].abs(),
    lambda *given: _slopes(*given)[0].abs(),
)
importance.wrong(
    "gradients accumulate",
    "`.backward()` ADDS to `.grad`, so each gradient contains those before it: take "
    "new gates for each example, or `torch.autograd.grad`.",
    lambda *given: _slopes(*given).cumsum(0).abs().mean(0),
)
importance.wrong(
    "no mean",
    "That is one row per example; take their mean.",
    lambda *given: _slopes(*given).abs(),
)

EXERCISES = (previous, induction, impostor, backups, importance)
