"""Exercises of notebook 10: a cache, grouped heads, an online softmax, a window."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.attention import causal_mask, scaled_dot_product_attention
from utils.oldex.engine import Exercise, randn
from utils.positions import frequencies, rotate_pairs

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
from utils.attention import causal_mask, scaled_dot_product_attention
"""


def attend(query, key, value, mask=None):
    return scaled_dot_product_attention(query, key, value, mask)[0]


def _overflowing(query, key, value, mask=None):
    exps = (query @ key.mT / query.shape[-1] ** 0.5).exp()
    exps = exps if mask is None else exps.masked_fill(~mask, 0.0)
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def _in_order(function, *order):
    """Return an answer whose results come in another order."""
    return lambda *args: tuple(function(*args)[i] for i in order)


def _split(x):
    """Return a tensor that lies in memory as `split_heads` leaves it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


OVERFLOWS = (
    "a softmax that overflows",
    "exp of a large score is inf, and inf / inf is NaN. Use softmax, which subtracts "
    "the largest score first (exercise 1.1).",
)
NO_SCALE = "no scale", "Divide the scores by the square root of head_dim."


# --- 10.1 A cache of fixed size ---------------------------------------------------


def cached_step(
    turn: Callable,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    length: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The reference: the new tokens are written behind the `length` old ones."""
    return _cached()(turn, query, key, value, keys, values, length)


def _lower_right(new, end):
    return causal_mask(new, end)


def _cached(
    queries_at=0, keys_at=0, *, old_at=None, values_at=None, place=0, mask=_lower_right,
    capacity=False, attention=attend,
):  # fmt: skip
    """Return the reference with a part done otherwise.

    queries_at, keys_at: how far from the right positions they are turned; "zero":
        from 0; None: not at all. old_at: positions by which old keys are turned again.
    place: how far from the right place the new ones are written.
    capacity: whether the whole tensors are attended to, empty places, too.
    """

    def answer(turn, query, key, value, keys, values, length):
        new = query.shape[-2]
        end = length + new
        at = torch.arange(length, end)

        def turned(x, by):
            if by is None:
                return x
            return turn(x, torch.arange(new) if by == "zero" else at + by)

        keys, values = keys.clone(), values.clone()
        if old_at is not None:
            old = torch.arange(length) + old_at
            keys[..., :length, :] = turn(keys[..., :length, :], old)
        start = place(length, new, keys.shape[-2]) if callable(place) else length
        keys[..., start : start + new, :] = turned(key, keys_at)
        values[..., start : start + new, :] = turned(value, values_at)
        seen = keys.shape[-2] if capacity else end
        shown = mask(new, seen)
        read = keys[..., :seen, :], values[..., :seen, :]
        return attention(turned(query, queries_at), *read, shown), keys, values

    return answer


def halves(x, positions, layout="half"):
    turns = frequencies(x.shape[-1], dtype=torch.float64)  # for positions of any type
    return rotate_pairs(x, positions[:, None] * turns, layout=layout)


def neighbours(x, positions):
    return halves(x, positions, "interleaved")


def cache_trials(dtype):
    # new tokens, old tokens, room for tokens
    sizes = [(2, 3, 8), (1, 5, 9), (4, 0, 7), (3, 4, 12), (1, 1, 4), (2, 6, 10)]
    sizes += [(3, 5, 8)]  # full afterwards
    sizes += [(2, 4, 9), (3, 2, 8)]
    for seed, (new, length, capacity) in enumerate(sizes):
        trial = {"turn": neighbours if seed % 2 else halves}
        batch, heads, head_dim = (2, 3, 8) if seed % 2 else (1, 2, 4)
        names = ("query", "key", "value", "keys", "values")
        for at, name in enumerate(names):
            shape = batch, heads, capacity if name in names[3:] else new, head_dim
            x = randn(*shape, seed=10 * at + seed, dtype=dtype)
            trial[name] = _split(x) if seed == 7 and at < 3 else x
        if seed == 8:  # exp of such a score overflows
            trial["query"] *= 60
        yield trial | {"length": length}


cache = Exercise(
    "10.1", "A cache of fixed size", cached_step, cache_trials, gradients=False
)

for name, by in {
    "positions restart at 0": "zero",
    "positions one too far": 1,
    "positions one too near": -1,
}.items():
    why = "The new tokens stand at the positions length, length + 1, ..."
    cache.wrong(name, why, _cached(by, by))

for name, places in {
    "new keys restart at 0": (0, "zero"),
    "queries restart at 0": ("zero", 0),
    "new keys not turned": (0, None),
    "queries not turned": (None, 0),
    "nothing turned": (None, None),
}.items():
    why = "New queries and new keys are turned alike, by the same positions."
    cache.wrong(name, why, _cached(*places))

cache.wrong(
    "old keys turned again",
    "The keys in the cache were turned when they were new; do not turn them again.",
    _cached(old_at=0),
    _cached("zero", "zero", old_at=0),
    _cached(old_at=1),
)


def _turned_on_reading(when_written, upto, kept):
    """Return the answer that turns the keys when it reads them.

    when_written: whether new ones are turned then, too. upto: 0: only the old ones are
    turned when read, 1: the new ones, too, 2: the empty places, too.
    kept: whether this is what it returns.
    """

    def answer(turn, query, *rest):
        length, end = rest[-1], rest[-1] + query.shape[-2]
        writes = turn if when_written else lambda x, positions: x
        _, keys, values = cached_step(writes, query, *rest)
        stop = (length, end, keys.shape[-2])[upto]
        read = keys.clone()
        read[..., :stop, :] = turn(read[..., :stop, :], torch.arange(stop))
        query, mask = turn(query, torch.arange(length, end)), causal_mask(end)[length:]
        output = attend(query, read[..., :end, :], values[..., :end, :], mask)
        return output, read if kept else keys, values

    return answer


for options in [
    (False, 1, False), (True, 1, False), (True, 1, True), (True, 0, False),
    (False, 2, True),
]:  # fmt: skip
    cache.wrong("old keys turned again", _turned_on_reading(*options))

cache.wrong("values turned", "Positions change scores, so values are never turned.",
            _cached(values_at=0))  # fmt: skip

for name, place in {
    "written one place too early": lambda length, new, size: max(length - 1, 0),
    "written one place too late": lambda length, new, size: min(length + 1, size - new),
    "written at the end of the buffer": lambda length, new, size: size - new,
    "written at the start of the buffer": lambda length, new, size: 0,
}.items():
    why = "The old tokens fill the places 0 to length - 1; write right behind them."
    cache.wrong(name, why, *(_cached(place=place, capacity=c) for c in (False, True)))


def _upper_left(new, end):
    return torch.ones(new, end, dtype=torch.bool).tril()


for name, functions in {
    "empty places attended to": [
        _cached(capacity=True),
        _cached(capacity=True, mask=lambda new, size: None),
    ],
    "mask in the upper corner": [
        _cached(mask=_upper_left),
        _cached(mask=_upper_left, capacity=True),
        _cached(mask=lambda new, end: _upper_left(new, end) if new > 1 else None),
    ],
    "one key too many": [
        _cached(mask=lambda new, end: causal_mask(new, end + 1)[:, :-1])
    ],
    "no mask among the new": [_cached(mask=lambda new, end: None)],
    "a new token does not see itself": [
        _cached(mask=lambda new, end: causal_mask(new, end).roll(-1, 1).tril(end - new))
    ],
    "old tokens not seen": [
        _cached(mask=lambda new, end: causal_mask(new, end).triu(end - new))
    ],
}.items():
    why = "New token i stands at position length + i: it sees the places up to there."
    cache.wrong(name, why, *functions)


cache.wrong(*OVERFLOWS, _cached(attention=_overflowing))
cache.wrong(
    *NO_SCALE,
    _cached(attention=lambda query, *x: attend(query * query.shape[-1] ** 0.5, *x)),
)
cache.wrong(
    "the output last",
    "Return the output first, then the keys and the values.",
    _in_order(cached_step, 1, 2, 0),
)
cache.wrong(
    "values before keys",
    "Return the output, then the keys, then the values.",
    _in_order(cached_step, 0, 2, 1),
    _in_order(cached_step, 2, 1, 0),
)


@cache.wrong(
    "one position for all new tokens",
    "Each new token has a position of its own: torch.arange(length, length + new).",
)
def _(turn, query, key, value, keys, values, length):
    def one(x, positions):
        return turn(x, torch.full_like(positions, length))

    return cached_step(one, query, key, value, keys, values, length)


@cache.wrong(
    "unrotated keys kept",
    "Keep the rotated keys: those in the cache are rotated already.",
)
def _(turn, query, key, value, keys, values, length):
    output, _, values = cached_step(turn, query, key, value, keys, values, length)
    kept = keys.clone()
    kept[..., length : length + key.shape[-2], :] = key
    return output, kept, values


@cache.wrong(
    "empty places set to 0",
    "Change only the places of the new tokens; the others stay as they are.",
)
def _(turn, query, key, value, keys, values, length):
    end = length + query.shape[-2]
    output, *kept = cached_step(turn, query, key, value, keys, values, length)
    for x in kept:
        x[..., end:, :] = 0
    return output, *kept


@cache.wrong("only the filled part returned", "Return all places, also the empty ones.")
def _(turn, query, key, value, keys, values, length):
    end = length + query.shape[-2]
    output, *kept = cached_step(turn, query, key, value, keys, values, length)
    return output, *(x[..., :end, :] for x in kept)


@cache.wrong("the buffers left as they were", "Return them with the new tokens.")
def _(turn, query, key, value, keys, values, length):
    output, *_ = cached_step(turn, query, key, value, keys, values, length)
    return output, keys, values


# --- 10.2 Grouped heads -----------------------------------------------------------


def grouped_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The reference: each key and value head serves a block of query heads."""
    group = query.shape[1] // key.shape[1]
    return attend(query, *(x.repeat_interleave(group, dim=1) for x in (key, value)))


def group_trials(dtype):
    # batch, query heads, key heads, queries, keys, features
    sizes = [(1, 4, 2, 3, 5, 4), (2, 6, 3, 4, 4, 8), (2, 6, 2, 1, 6, 4)]
    sizes += [(1, 8, 2, 5, 5, 2), (1, 4, 1, 2, 3, 6), (2, 3, 3, 3, 3, 4)]
    sizes += [(2, 12, 4, 2, 5, 4), (1, 4, 2, 3, 5, 4), (2, 6, 3, 3, 5, 4)]
    for seed, (batch, heads, kv_heads, queries, keys, dim) in enumerate(sizes):
        trial = {
            "query": randn(batch, heads, queries, dim, seed=seed, dtype=dtype),
            "key": randn(batch, kv_heads, keys, dim, seed=50 + seed, dtype=dtype),
            "value": randn(batch, kv_heads, keys, dim, seed=90 + seed, dtype=dtype),
        }
        if seed == 7:  # exp of such a score overflows
            trial["query"] *= 60
        yield {n: _split(x) for n, x in trial.items()} if seed == 8 else trial


groups = Exercise("10.2", "Grouped heads", grouped_attention, group_trials)


def _spread(of_key, of_value=None):
    """Return an answer in which query head h uses the key head of_key(h, ...)."""

    def answer(query, key, value):
        heads, kv_heads = query.shape[1], key.shape[1]
        k, v = (
            x[:, [of(h, heads, kv_heads) for h in range(heads)]]
            for x, of in ((key, of_key), (value, of_value or of_key))
        )
        return attend(query, k, v)

    return answer


def _block(h, heads, kv_heads):
    return h // (heads // kv_heads)


def _turns(h, heads, kv_heads):
    return h % kv_heads


groups.wrong(
    "groups interleaved",
    "Neighbouring query heads share a key head: with four over two, 0 0 1 1, and not "
    "0 1 0 1. `repeat` gives the second, `repeat_interleave` the first.",
    _spread(_turns),
)
for name, function in {
    "keys in blocks, values interleaved": _spread(_block, _turns),
    "keys interleaved, values in blocks": _spread(_turns, _block),
}.items():
    why = "Query head h uses the key head and the value head h // group, both alike."
    groups.wrong(name, why, function)

for name, of in {
    "groups backwards": lambda h, heads, kv_heads: (
        kv_heads - 1 - _block(h, heads, kv_heads)
    ),
    "only the first key head": lambda h, heads, kv_heads: 0,
    "only the last key head": lambda h, heads, kv_heads: kv_heads - 1,
    "size and number of groups confused": lambda h, heads, kv_heads: min(
        h // kv_heads, kv_heads - 1
    ),
}.items():
    why = "A group has heads / kv_heads query heads; head h uses key head h // group."
    groups.wrong(name, why, _spread(of))


def _repeated(count, attention=attend):
    """Return an answer in which each key head is repeated count(query, key) times."""

    def answer(query, key, value):
        times = count(query, key)
        k, v = (x.repeat_interleave(times, dim=1) for x in (key, value))
        return attention(query, k, v)

    return answer


for attention in (attend, F.scaled_dot_product_attention):  # each has its own error
    groups.wrong("size and number of groups confused",
                 _repeated(lambda query, key: key.shape[1], attention))  # fmt: skip

groups.wrong(
    "merged in another order",
    "Query head h is output head h: flatten (key heads, group), in this order.",
    lambda query, key, value: (
        grouped_attention(query, key, value)
        .unflatten(1, (key.shape[1], -1)).transpose(1, 2).flatten(1, 2)
    ),
)  # fmt: skip
groups.wrong(
    *OVERFLOWS,
    _repeated(lambda query, key: query.shape[1] // key.shape[1], _overflowing),
)


@groups.wrong("key heads averaged", "Each query head uses one key head, not all.")
def _(query, key, value):
    k, v = (x.mean(1, keepdim=True).expand(-1, query.shape[1], -1, -1)
            for x in (key, value))  # fmt: skip
    return attend(query, k, v)


@groups.wrong(
    "queries averaged",
    "Only keys and values are shared: every query head keeps its own queries.",
)
def _(query, key, value):
    mean = query.unflatten(1, (key.shape[1], -1)).mean(2)
    return grouped_attention(mean.repeat_interleave(
        query.shape[1] // key.shape[1], dim=1), key, value)  # fmt: skip


@groups.wrong(
    "one softmax over all groups",
    "Each query head has a softmax of its own, over the keys of its own group.",
)
def _(query, key, value):
    k, v = (x.flatten(1, 2)[:, None].expand(-1, query.shape[1], -1, -1)
            for x in (key, value))  # fmt: skip
    return attend(query, k, v)


@groups.wrong(*NO_SCALE)
def _(query, key, value):
    return grouped_attention(query * query.shape[-1] ** 0.5, key, value)


# --- 10.3 One step of the online softmax ------------------------------------------


def online_step(
    scores: Tensor, values: Tensor, top: Tensor, total: Tensor, output: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The reference: what was summed so far is rescaled to the new largest score."""
    return _online()(scores, values, top, total, output)


def _finite(top):
    return top.masked_fill(top == -math.inf, 0.0)


def _exp(x, shift):
    return (x - shift).exp()


def _quotient(x, shift):
    return x.exp() / shift.exp()


def _as_it_is(top):
    return top


def _online(
    new_top=torch.maximum, *, old_sum=True, old_output=True, factor=_exp, exp=_exp,
    guard=_finite,
):  # fmt: skip
    """Return the reference with a part done otherwise.

    guard(new top) is subtracted; factor(old top, it) and exp(scores, it) do that.
    """

    def answer(scores, values, top, total, output):
        new = new_top(top, scores.amax(dim=-1, keepdim=True))
        shift = guard(new)
        old, exps = factor(top, shift), exp(scores, shift)
        total = total * (old if old_sum else 1) + exps.sum(dim=-1, keepdim=True)
        output = output * (old if old_output else 1) + exps @ values
        return new, total, output

    return answer


def online_trials(dtype):
    """Yield the steps of some attentions, one after the other."""
    sizes = [(4, 9, 3, 2), (3, 8, 4, 5), (2, 5, 2, 1), (1, 6, 1, 3)]
    for seed, (queries, keys, block, dim) in enumerate(sizes):
        scores = 3 * randn(queries, keys, seed=seed, dtype=dtype)
        if seed == 0:
            scores -= 1000  # exp(-1000) is 0: the first maximum is not 0
        values = randn(keys, dim, seed=20 + seed, dtype=dtype)
        if seed == 1:  # the first block is hidden from all, a later one from some
            scores[:, :block] = -math.inf
            scores[0, block:] = -math.inf
        if seed == 2:
            scores[:, block : 2 * block] = -math.inf
        if seed == 3:
            scores += 1000  # nothing may overflow
        state = (
            torch.full((queries, 1), -math.inf, dtype=dtype),
            torch.zeros(queries, 1, dtype=dtype),
            torch.zeros(queries, dim, dtype=dtype),
        )
        for part, shown in zip(scores.split(block, dim=-1), values.split(block)):
            names = ("scores", "values", "top", "total", "output")
            yield dict(zip(names, (part, shown, *state)))
            state = online_step(part, shown, *state)


online = Exercise(
    "10.3", "One step of the online softmax", online_step, online_trials,
    gradients=False,
)  # fmt: skip

for name, options in {
    "old sum not rescaled": {"old_sum": False},
    "old output not rescaled": {"old_output": False},
    "nothing rescaled": {"old_sum": False, "old_output": False},
}.items():
    online.wrong(
        name,
        "What was summed before was divided by exp(old maximum): multiply the old "
        "total and the old output by exp(old maximum - new maximum).",
        _online(**options),
    )

online.wrong(
    "rescaled upside down",
    "The factor is exp(old maximum - new maximum), which is at most 1.",
    _online(factor=lambda top, new: _exp(top, new).reciprocal().nan_to_num(posinf=0.0)),
    _online(factor=lambda top, new: _exp(top, new).reciprocal()),
)
online.wrong(
    "NaN where nothing is visible",
    "Where all scores so far are -inf, the maximum is -inf, and -inf - (-inf) is NaN: "
    "subtract 0 there. Then every exp is 0, and the state stays as it was.",
    _online(guard=_as_it_is),
)


online.wrong(
    "the first maximum taken for 0",
    "At first the old total and the old output are 0. Subtract 0 only where no score "
    "has been seen; elsewhere subtract the new maximum, however small it is.",
    _online(factor=lambda top, shift: _exp(_finite(top), shift)),
    _online(guard=lambda new: new.clamp(min=0)),
    lambda scores, values, top, *state: _online(guard=_as_it_is)(
        scores, values, _finite(top), *state
    ),
)
online.wrong(
    "a quotient of two exponentials",
    "Far from 0, exp(old) / exp(new) is 0 / 0 or inf / inf: take exp(old - new).",
    _online(factor=_quotient),
    _online(factor=_quotient, exp=_quotient),
)


def _nan_first(x, shift):
    return (x - shift).nan_to_num(0.0).exp()


online.wrong(
    "NaN replaced before exp",
    "exp(0) is 1, so each hidden key counts. Subtract 0 where the maximum is -inf.",
    _online(guard=_as_it_is, factor=_nan_first, exp=_nan_first),
)


@online.wrong("NaN where nothing is visible")
def _(scores, values, top, total, output):  # only a block hidden from all is skipped
    if (scores == -math.inf).all():
        return top, total, output
    return _online(guard=_as_it_is)(scores, values, top, total, output)


@online.wrong(
    "no maximum at all",
    "exp of a large score overflows: subtract the largest score so far.",
)
def _(scores, values, top, total, output):
    new = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
    exps = scores.exp()
    return new, total + exps.sum(dim=-1, keepdim=True), output + exps @ values


online.wrong(
    "maximum not updated",
    "A larger score becomes the new maximum: take the larger of the two.",
    _online(lambda top, here: top),
    _online(lambda top, here: top.where(top > -math.inf, here)),
)
online.wrong(
    "maximum of the block alone",
    "The maximum is the largest score of all blocks so far, so it never falls.",
    _online(lambda top, here: here),
    _online(exp=lambda scores, _: _exp(scores, _finite(scores.amax(-1, keepdim=True)))),
)
online.wrong(
    "one maximum for all queries",
    "Each query has its own maximum: amax(dim=-1, keepdim=True).",
    _online(lambda top, here: torch.maximum(top, here).amax().expand_as(top)),
)


def _changed(change):
    return lambda *args: change(*online_step(*args), *args)


online.wrong(
    "already divided",
    "Divide by the total only after the last block: here output stays a sum.",
    _changed(lambda top, total, output, *_: (top, total, output / total)),
    _changed(
        lambda top, total, output, *_: (top, total, (output / total).nan_to_num())
    ),
    lambda *args: _divided(*args),
    lambda *args: tuple(x.nan_to_num(neginf=-math.inf) for x in _divided(*args)),
)


def _divided(scores, values, top, total, output):
    top, new, output = online_step(scores, values, top, total, total * output)
    return top, new, output / new


online.wrong(
    "softmax of the block",
    "The weights are exp(score - maximum), not yet divided by their sum.",
    lambda scores, values, *state: (
        *online_step(scores, values, *state)[:2],
        online_step(scores, 0 * values, *state)[2]
        + scores.softmax(dim=-1).nan_to_num() @ values,
    ),
)
online.wrong(
    "in another order",
    "Return the maximum, the total and the output, in this order.",
    *(_in_order(online_step, *at) for at in [(1, 0, 2), (2, 1, 0), (0, 2, 1)]),
)


def _zero_if_hidden(x, scores):
    return x.masked_fill((scores == -math.inf).all(dim=-1, keepdim=True), 0.0)


online.wrong(
    "the state lost where a block is hidden",
    "A query that sees nothing of this block keeps what it had.",
    _changed(
        lambda top, total, output, scores, *_: (
            top, _zero_if_hidden(total, scores), _zero_if_hidden(output, scores))
    ),
)  # fmt: skip
online.wrong(
    "the old maximum returned",
    "Return the new maximum: the next step needs it.",
    _changed(lambda top, total, output, *args: (args[2], total, output)),
)
online.wrong(
    "a finite number for nothing",
    "While a query has seen no key, its maximum stays -inf.",
    lambda scores, *args: online_step(scores.clamp(min=-1e9), *args),
    _changed(
        lambda top, total, output, *_: (
            top.clamp(min=torch.finfo(top.dtype).min), total, output)
    ),
    _changed(
        lambda top, total, output, *_: (
            top.masked_fill(top == -math.inf, 0.0), total, output)
    ),
)  # fmt: skip
online.wrong(
    "this block alone",
    "Add what the earlier blocks gave: old total and old output, both rescaled.",
    lambda scores, values, top, total, output: online_step(
        scores, values, top, 0 * total, 0 * output
    ),
    lambda scores, values, top, total, output: online_step(
        scores, values, torch.full_like(top, -math.inf), 0 * total, 0 * output
    ),
)
online.wrong(
    "values not weighted",
    "The output is a weighted sum of the values: exps @ values.",
    lambda scores, values, top, total, output: (
        *online_step(scores, values, top, total, output)[:2],
        output + values.sum(dim=0),
    ),
)


# --- 10.4 A sliding window --------------------------------------------------------


def window_mask(queries: int, keys: int, window: int) -> Tensor:
    """The reference: each query sees itself and the window - 1 positions before it."""
    return _window(lambda back, window: (back >= 0) & (back < window))(
        queries, keys, window
    )


def _window(rule, aligned=lambda queries, keys: keys - queries):
    """Return the mask of a rule on how many positions the key lies behind."""

    def answer(queries, keys, window):
        at = torch.arange(queries)[:, None] + aligned(queries, keys)
        return rule(at - torch.arange(keys), window)

    return answer


def window_trials(dtype):
    sizes = [(5, 5, 2), (6, 6, 3), (3, 8, 4), (1, 9, 3), (7, 7, 1), (4, 4, 9)]
    sizes += [(2, 6, 5), (8, 8, 4)]
    for queries, keys, window in sizes if dtype == torch.float32 else ():
        yield {"queries": queries, "keys": keys, "window": window}


windows = Exercise(
    "10.4", "A sliding window", window_mask, window_trials, gradients=False
)


def _inside(back, window):
    return (back >= 0) & (back < window)


for name, rules in {
    "one too many": [lambda back, window: (back >= 0) & (back <= window)],
    "one too few": [
        lambda back, window: (back >= 0) & (back < window - 1),
        lambda back, window: (back > 0) & (back < window),
    ],
    "itself hidden": [lambda back, window: (back > 0) & (back <= window)],
}.items():
    why = "A query sees `window` positions: itself, and window - 1 before it."
    windows.wrong(name, why, *map(_window, rules))

for name, rules in {
    "a window in both directions": [
        lambda back, window: back.abs() < window,
        lambda back, window: back.abs() <= window // 2,
        lambda back, window: back.abs() <= window,
    ],
    "a window into the future": [
        lambda back, window: (back <= 0) & (back > -window)
    ],
    "the future visible": [lambda back, window: back < window],
}.items():  # fmt: skip
    why = "No query sees a later position: the window lies behind it."
    windows.wrong(name, why, *map(_window, rules))

windows.wrong(
    "queries at the start of the keys",
    "The last query stands at the last key: with 3 queries and 8 keys, the first "
    "query stands at position 5.",
    _window(_inside, lambda queries, keys: 0),
    lambda queries, keys, window: causal_mask(queries, keys).triu(1 - window),
    _window(_inside, lambda queries, keys: queries - keys),
    lambda queries, keys, window: _upper_left(queries, keys).triu(
        keys - queries - window + 1
    ),
)
windows.wrong(
    "one position too far",
    "Query 0 stands at position keys - queries, and the last query at keys - 1.",
    _window(_inside, lambda queries, keys: keys - queries + 1),
)
for name, function in {
    "no window": lambda queries, keys, window: causal_mask(queries, keys),
    "the last keys for every query": lambda queries, keys, window: (
        causal_mask(queries, keys) & (torch.arange(keys) >= keys - window)
    ),
    "blocks instead of a window": lambda queries, keys, window: (
        causal_mask(queries, keys)
        & (
            (torch.arange(queries)[:, None] + keys - queries) // window
            == torch.arange(keys) // window
        )
    ),
}.items():
    why = "The window moves with the query: it always ends at the query's own position."
    windows.wrong(name, why, function)


@windows.wrong(
    "a slice that starts before 0",
    "A slice that starts at a negative number counts from the end: take "
    "max(0, end - window).",
)
def _(queries, keys, window):
    mask = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        end = keys - queries + i + 1
        mask[i, end - window : end] = True
    return mask


windows.wrong(
    "True where hidden",
    "True means that the key may be attended to.",
    lambda *args: ~window_mask(*args),
)


EXERCISES = (cache, groups, online, windows)
