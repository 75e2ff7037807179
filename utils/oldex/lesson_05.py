"""Exercises of notebook 05: ALiBi, T5's buckets, a rotation, its test, its cache."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from utils.attention import causal_mask, scaled_dot_product_attention
from utils.oldex.engine import Exercise, randn
from utils.positions import alibi_slopes, frequencies, relative_positions, rotate_pairs

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
from utils.attention import causal_mask, scaled_dot_product_attention
"""


# --- 5.1 ALiBi for any number of heads --------------------------------------------


def alibi(num_heads: int, queries: int, keys: int) -> Tensor:
    """The reference: minus slope times distance; the last query is at the last key."""
    behind = relative_positions(queries, keys).clamp(max=0)  # minus the distance
    return alibi_slopes(num_heads)[:, None, None] * behind


def alibi_trials(dtype):
    sizes = [(4, 5, 5), (6, 4, 4), (12, 3, 7), (3, 1, 9), (5, 6, 6), (8, 1, 1)]
    sizes += [(1, 4, 6), (7, 7, 7), (4, 4, 4), (20, 2, 5)]
    sizes += [(2, 2, 300)]  # bfloat16 holds whole numbers up to 256
    for num_heads, queries, keys in sizes if dtype == torch.float32 else ():
        yield {"num_heads": num_heads, "queries": queries, "keys": keys}


biases = Exercise(
    "5.1", "ALiBi for any number of heads", alibi, alibi_trials, gradients=False
)


def _alibi(
    slopes=lambda num_heads: alibi_slopes(num_heads).tolist(),
    distance=lambda ahead: -ahead.clamp(max=0),
):
    """Return the reference with other slopes or distances."""

    def answer(num_heads, queries, keys):
        slope = torch.tensor(slopes(num_heads)[:num_heads])[:, None, None]
        return -slope * distance(relative_positions(queries, keys).float())

    return answer


def _slopes(count):
    return [2.0 ** (-8 * i / count) for i in range(1, count + 1)]


def _two(num_heads):
    """Return the slopes of the next lower power of two, and those of its double."""
    power = 2 ** (num_heads.bit_length() - 1)
    return _slopes(power), _slopes(2 * power)


for name, slopes in {
    "slopes of the paper's text": _slopes,
    "slopes sorted": lambda n: sorted(alibi_slopes(n).tolist(), reverse=True),
    "the first slopes of the double": lambda n: _two(n)[0] + _two(n)[1],
    "slopes taken twice": lambda n: _two(n)[0] + _two(n)[1][1::2],
    "slopes of the higher power of two": lambda n: _slopes(1 << (n - 1).bit_length()),
    "slopes that always halve": lambda n: [2.0**-i for i in range(1, n + 1)],
    "slopes from 1": lambda n: [2.0 ** (-8 * i / n) for i in range(n)],
    "slopes backwards": lambda n: alibi_slopes(n).tolist()[::-1],
    "one slope for all": lambda n: [alibi_slopes(n)[0]] * n,
}.items():
    biases.wrong(
        name,
        "Take the slopes of the next lower power of two, p, from 2^(-8/p) down; then "
        "the first, third, fifth, ... of 2p heads, unsorted, until there are enough.",
        _alibi(slopes),
    )

for name, distance in {
    "a bias in the future": lambda ahead: -ahead,
    "a bias in both directions": torch.abs,
    "distances from 1": lambda ahead: 1 - ahead.clamp(max=0),
    "distance rewarded": lambda ahead: ahead.clamp(max=0),
    "distance squared": lambda ahead: ahead.clamp(max=0) ** 2,
    "distances rounded": lambda ahead: -ahead.clamp(max=0).bfloat16().float(),
    "keys backwards": lambda ahead: -ahead.clamp(max=0).flip(-1),
    "-inf in the future": lambda ahead: -ahead.masked_fill(ahead > 0, -math.inf),
}.items():
    why = "Minus slope times distance: 0 for the token itself and all in the future."
    biases.wrong(name, why, _alibi(distance=distance))

for name, function in {
    "queries at the start of the keys": lambda n, q, k: alibi(n, k, k)[:, :q],
    "as many keys as queries": lambda n, q, k: alibi(n, q, q),
    "as many queries as keys": lambda n, q, k: alibi(n, k, k),
}.items():
    why = "A row for each query, a column for each key; both END at the same place."
    biases.wrong(name, why, function)


# --- 5.2 The bucket of a distance -------------------------------------------------


def bucket(relative: Tensor, exact: int, wide: int, max_distance: int) -> Tensor:
    """The reference: a bucket per short distance, wider and wider ones beyond."""
    return _bucket(relative, exact, wide, max_distance)


def _past(relative):
    return (-relative).clamp(min=0)


def _bucket(
    relative, exact, wide, max_distance, *, distance=_past, whole=torch.floor,
    begin=lambda exact, most: (exact, most / exact), last=1, kind=torch.float32,
):  # fmt: skip
    """Return exact + k beyond `exact`, k = wide · log(distance / at) / log(full)."""
    distance, (at, full) = distance(relative), begin(exact, max_distance)
    k = wide * (distance.clamp(min=1) / at).to(kind).log().float() / math.log(full)
    beyond = (exact + whole(k).long()).clamp(max=exact + wide - last)
    return torch.where(distance < exact, distance, beyond)


def bucket_trials(dtype):
    # no distance but `exact` is where a bucket begins: there rounding would decide
    settings = [(16, 16, 128), (8, 8, 130), (2, 6, 41), (3, 5, 40), (5, 3, 60)]
    for exact, wide, max_distance in settings if dtype == torch.float32 else ():
        distances = torch.arange(200)
        distances = distances[distances != max_distance]
        for relative in (
            -distances,
            torch.arange(9) - torch.arange(9)[:, None],
            -distances[:150].flip(0)[None],
            torch.tensor([[-999, -1, 0], [7, -127, -61], [1, -100_000, -20_000]]),
        ):
            yield _relative(relative, exact, wide, max_distance)
    if dtype == torch.float32:  # narrow buckets of large distances
        yield _relative(-torch.arange(1000, 9900, 68), 16, 100, 20_000)


def _relative(*values):
    return dict(zip(("relative", "exact", "wide", "max_distance"), values))


buckets = Exercise(
    "5.2", "The bucket of a distance", bucket, bucket_trials, gradients=False
)


def _buckets(**options):
    """Return the reference with one part of the formula replaced."""
    return lambda *args: _bucket(*args, **options)


for name, distances in {
    "the sign swapped": [lambda relative: relative.clamp(min=0)],
    "the future counted": [torch.abs, torch.neg],
}.items():
    why = "relative is key minus query: minus the distance, and above 0 in the future."
    buckets.wrong(name, why, *[_buckets(distance=each) for each in distances])

for name, roundings in {
    "rounded to the nearest": [torch.round],
    "the next bucket": [
        torch.ceil,
        lambda k: k.floor() + 1,
        lambda k: (k.floor() + 1) * (k > 0),  # with <= instead of <
    ],
}.items():
    why = "A distance is in the last bucket that begins at or before it: round down."
    buckets.wrong(name, why, *[_buckets(whole=whole) for whole in roundings])

buckets.wrong(
    "logarithms rounded",
    "A logarithm in float16 or bfloat16 is too rough for narrow buckets: take float32.",
    _buckets(kind=torch.float16),
    _buckets(kind=torch.bfloat16),
)
for name, last in {
    "no last bucket": -999,
    "a bucket too many": 0,
    "a bucket too few": 2,
}.items():
    why = "There are exact + wide buckets; the last, exact + wide - 1, has no end."
    buckets.wrong(name, why, _buckets(last=last))

for name, functions in {
    "not divided by exact": [_buckets(begin=lambda e, m: (1, m))],
    "only max_distance divided": [_buckets(begin=lambda e, m: (1, m / e))],
    "max_distance not divided": [_buckets(begin=lambda e, m: (e, m))],
    "wide - 1 steps": [lambda r, e, w, m: _bucket(r, e, w - 1, m, last=0)],
    "exact not added": [lambda r, e, w, m: bucket(r, e, w, m) - e * (_past(r) >= e)],
    "wide buckets of one width": [
        lambda r, e, w, m: (
            _past(r).clamp(max=e)
            + ((_past(r) - e).clamp(min=0) * w // (m - e)).clamp(max=w - 1)
        )
    ],
    "every distance a bucket": [
        lambda r, e, w, m: _past(r).clamp(max=e + w - 1),
        lambda r, e, w, m: _past(r).clamp(max=m),
        lambda r, *rest: _past(r),
    ],
    "no exact buckets": [
        lambda r, e, w, m: _bucket(r, 0, e + w, m, begin=lambda *_: (1, m))
    ],
    "numbered from 1": [lambda *args: bucket(*args) + 1],
    "buckets for the future": [
        lambda r, e, w, m: bucket(-r.abs(), e, w, m) + (e + w) * (r > 0)
    ],
}.items():
    buckets.wrong(
        name,
        "Distances below `exact`, 0 first, have a bucket each; bucket exact + k begins "
        "at exact · (max_distance / exact)^(k / wide). The future has bucket 0.",
        *functions,
    )


# --- 5.3 Turn the pairs -----------------------------------------------------------


def turn(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """The reference: features i and i + head_dim / 2 turned by position * frequency."""
    return rotate_pairs(x, _angles(x, positions, base), layout="half")


def _angles(x, positions, base):
    return positions[:, None] * frequencies(x.shape[-1], base=base)  # (length, pairs)


def turn_trials(dtype):
    if dtype != torch.float32:  # angles may be computed in single precision
        return
    counted = torch.arange(60)
    trials = [
        ((2, 3, 5, 8), counted[:5], 10000.0),
        ((2, 3, 5, 8), counted[7:12], 10000.0),
        ((1, 4, 4, 6), torch.tensor([0, 9, 2, 40]), 100.0),
        ((3, 1, 2), counted[3:4], 10000.0),
        ((6, 4), counted[:6], 500.0),
        ((2, 8, 8, 8), counted[1:9], 10000.0),
        ((2, 3, 5, 4), counted[:5], 50.0),
        # frequencies 1 and 0.01: angles this large are still exact enough
        ((2, 3, 4), torch.tensor([4097, 0, 257]), 10000.0),
    ]
    for seed, (shape, positions, base) in enumerate(trials):
        x = randn(*shape, seed=seed, dtype=dtype)
        x = x.mT.contiguous().mT if seed % 2 else x
        yield {"x": x, "positions": positions, "base": base}


turned = Exercise("5.3", "Turn the pairs", turn, turn_trials)


def _neighbours(x, positions, base):
    return rotate_pairs(x, _angles(x, positions, base), layout="interleaved")


def mixed_layouts(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Return the pairs of the half layout, turned by the angles of the other."""
    angles = _angles(x, positions, base).repeat_interleave(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-b, a], dim=-1) * angles.sin()


def mixed_otherwise(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Return the pairs of the interleaved layout, turned by the angles of the half."""
    angles = _angles(x, positions, base).repeat(1, 2)
    other = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * angles.cos() + other * angles.sin()


turned.wrong(
    "two layouts mixed",
    "The pairs are those of one layout, the angles those of the other. Then the two "
    "members of a pair turn differently, and lengths are not kept.",
    mixed_layouts,
    mixed_otherwise,
)
for name, turned_pair in {
    "sine and cosine swapped": lambda a, b, c, s: (a * s - b * c, a * c + b * s),
    "two plus signs": lambda a, b, c, s: (a * c + b * s, a * s + b * c),
    "first overwritten": lambda a, b, c, s: (
        a * c - b * s,
        (a * c - b * s) * s + b * c,
    ),
    "one member of each pair": lambda a, b, c, s: (a * c - b * s, b),
    "members exchanged": lambda a, b, c, s: (a * s + b * c, a * c - b * s),
}.items():

    @turned.wrong(
        name, "(a, b) becomes (a cos - b sin, a sin + b cos), with the old a and b."
    )
    def _(x, positions, base, turned_pair=turned_pair):
        angles, (a, b) = _angles(x, positions, base), x.chunk(2, dim=-1)
        return torch.cat(turned_pair(a, b, angles.cos(), angles.sin()), dim=-1)


def _moved(change):
    return lambda x, positions, base: turn(x, change(positions), base)


for name, changes in {
    "positions from 0": [lambda p: torch.arange(len(p))],
    "positions from 1": [lambda p: p + 1],
    "positions less the first": [lambda p: p - p[0]],
    "positions rounded": [Tensor.bfloat16, Tensor.half],
    "positions cut off": [lambda p: p.clamp(max=127), lambda p: p.clamp(max=511)],
    "positions that begin again": [lambda p: p.to(torch.int8), lambda p: p % 256],
}.items():
    turned.wrong(
        name,
        "Turn by the positions as they are: whole numbers in any order, of any size. "
        "bfloat16 holds them up to 256, float16 up to 2048.",
        *[_moved(change) for change in changes],
    )


turned.wrong(
    "turned backwards",
    "(a, b) becomes (a cos - b sin, a sin + b cos): the signs of your sines are the "
    "other way round.",
    _moved(torch.neg),
)


def _faster(exponent):
    def answer(x, positions, base):
        dim = x.shape[-1]
        turns = base ** exponent(torch.arange(dim // 2), dim)
        return rotate_pairs(x, positions[:, None] * turns)

    return answer


def _as_pairs(x, sizes):
    return x.unflatten(-1, sizes).mT.flatten(-2)


for name, functions in {
    "half the exponent": [_faster(lambda i, dim: -i / dim)],
    "twice the exponent": [_faster(lambda i, dim: -4 * i / dim)],
    "not divided by head_dim": [
        _faster(lambda i, dim: -2.0 * i),
        _faster(lambda i, dim: -1.0 * i),
    ],
    "divided by head_dim - 2": [_faster(lambda i, dim: -2 * i / max(dim - 2, 1))],
    "pairs from 1": [_faster(lambda i, dim: -2 * (i + 1) / dim)],
    "faster and faster": [_faster(lambda i, dim: 2 * i / dim)],
    "one frequency": [_faster(lambda i, dim: 0.0 * i)],
    "base not used": [lambda x, positions, base: turn(x, positions, 10000.0)],
}.items():
    why = "Pair i turns by position · base^(-2i / head_dim), with i from 0."
    turned.wrong(name, why, *functions)

for name, function in {
    "the interleaved layout": _neighbours,
    "halves in, neighbours out": lambda *args: _as_pairs(turn(*args), (2, -1)),
    "neighbours in, halves out": lambda *args: _as_pairs(_neighbours(*args), (-1, 2)),
    "nothing turned": lambda x, *rest: x * 1,
}.items():
    why = "A pair is i and i + head_dim / 2, before and after; not 2i and 2i + 1."
    turned.wrong(name, why, function)


# --- 5.4 Write the test -----------------------------------------------------------

DIM, LAYOUTS, ZERO = 16, ("half", "interleaved"), torch.tensor([0])


class _Black:
    """A function turn(x, positions) that cannot be looked into."""

    def __init__(self, name, turn):
        self.__name__, self.turn = name, turn

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        fits = x.dim() >= 2 and x.shape[-2:] == (len(positions), DIM)
        if not fits or positions.is_floating_point():
            raise ValueError(
                f"x has shape {tuple(x.shape)}, positions {tuple(positions.shape)}; "
                f"give (..., length, {DIM}) and whole numbers (length,)."
            )
        return self.turn(x, positions).to(x.dtype)


def _turning(layout="half", base=10000.0, of=Tensor.double, rounded=Tensor.double):
    """Return a rotation with something done to its positions or angles."""

    def turn(x, positions):
        turns = frequencies(DIM, base=base, dtype=torch.float64)
        angles = rounded(of(positions)[:, None] * turns).double()
        return rotate_pairs(x.double(), angles, layout=layout)

    return turn


TURNS = {
    "a right one, halves": _turning(),
    "layouts mixed": mixed_layouts,
    "a right one, interleaved": _turning("interleaved"),
    "layouts mixed the other way": mixed_otherwise,
    "right, in single precision": lambda x, positions: halves(x.float(), positions),
    "one that turns by the square of the position": _turning(of=torch.square),
    "a right one, base 500": _turning(base=500.0),
    "one whose positions are rounded to bfloat16": _turning(of=Tensor.bfloat16),
    "one whose angles are rounded to float16": _turning(rounded=Tensor.half),
    "one that takes 0, 1, 2, ... instead of the positions": _turning(
        of=lambda positions: torch.arange(len(positions))
    ),
    "one that turns nothing": lambda x, positions: x * 1,
    "one that adds its waves": lambda x, p: x + _turning()(torch.ones_like(x), p),
}


def rotary_test(turn) -> bool:
    """The reference: moved together, equal scores; moved apart, other scores."""
    return _asking()(turn)


def _asking(far=(1, 7, 300, 1001), atol=1e-2, rtol=1e-5, together=True, apart=True):
    """Return the reference with some of its questions changed."""

    def test(turn):
        x, positions = _text(), torch.arange(12)
        here, other = _scores(turn, x, positions), _scores(turn, x, 2 * positions)
        moved = [_scores(turn, x, positions + by) for by in far if together]
        equal = all(torch.allclose(each, here, atol=atol, rtol=rtol) for each in moved)
        changed = not torch.allclose(other, here, atol=atol, rtol=rtol)
        return equal and (changed or not apart)

    return test


def _scores(turn, x, positions):
    """Return the scores of the first half of x against the second."""
    first, second = turn(x, positions).chunk(2)
    return first @ second.mT


def _text(length=12):
    return randn(length, DIM, seed=1, dtype=torch.float32)


def pair_trials(dtype):
    for name, turn in TURNS.items() if dtype == torch.float32 else ():
        yield {"turn": _Black(name, turn)}


rotations = Exercise("5.4", "Write the test", rotary_test, pair_trials, gradients=False)


def _lengths_kept(far):
    def test(turn):
        lengths = turn(_text(), torch.arange(12) + far).norm(dim=-1)
        return torch.allclose(lengths, _text().norm(dim=-1), atol=1e-3)

    return test


def _compared(*layouts, far=0, also=None):
    """Return a test that asks for the numbers of base 10000 in these layouts."""

    def test(turn):
        x, positions = _text(), torch.arange(12) + far
        known = [_turning(layout)(x, positions).float() for layout in layouts]
        equal = any(torch.allclose(turn(x, positions), k, atol=1e-3) for k in known)
        return equal and (also is None or also(turn))

    return test


for name, functions in {
    "says yes to all": [lambda turn: turn(_text(1), ZERO).shape == (1, DIM)],
    "moved together only": [_asking(apart=False)],
    "moved apart only": [
        _asking(together=False),
        lambda turn: not torch.allclose(turn(_text(), torch.arange(12)), _text()),
    ],
    "position 0 only": [lambda turn: torch.allclose(turn(_text(1), ZERO), _text(1))],
    "upside down": [lambda turn: not rotary_test(turn)],
}.items():
    rotations.wrong(
        name,
        "Return True where scores stay equal when all tokens move together, and change "
        "when they move apart (a function that ignores positions passes the first).",
        *functions,
    )

rotations.wrong(
    "refuses right ones",
    "Right ones fail, too: sines are rounded, so compare with torch.allclose, and let "
    "every layout and base pass.",
    lambda turn: False,
    _asking(far=[300], atol=0, rtol=0, apart=False),
)
rotations.wrong(
    "lengths only",
    "Every rotation keeps lengths, by whatever angle: that finds mixed layouts, and no "
    "wrong angle.",
    _lengths_kept(5),
    _lengths_kept(1000),
)
rotations.wrong(
    "moved too little",
    "Rounded positions or angles pass here: bfloat16 holds whole numbers up to 256. "
    "Move far, too, and let scores differ by no more than atol=1e-2.",
    _asking(far=[7]),
    _asking(far=[1], apart=False),
    _asking(far=[1, 100]),
)
rotations.wrong(
    "float16 angles not found",  # by a wide tolerance, by means, by vectors of one pair
    "The angles rounded to float16 pass your test: compare all scores of random "
    "vectors, with atol=1e-2.",
    _asking(far=[1001], atol=1.0),
)
for name, tests in {
    "tolerance too wide": [_asking(far=[300], atol=20.0, apart=False)],
    "tolerance too narrow": [_asking(far=[1001], atol=1e-6)],
}.items():
    why = "Rounding moves scores by at most 1e-3, wrong angles by 0.1: atol=1e-2."
    rotations.wrong(name, why, *tests)

rotations.wrong(
    "one layout or base only",
    "The interleaved layout is right as well, and so is another base than 10000.",
    *[_compared(*both, far=far) for far in (0, 1001) for both in (["half"], LAYOUTS)],
    _compared(*LAYOUTS, also=rotary_test),
    _compared("half", also=rotary_test),
)


# --- 5.5 Repair the cache ---------------------------------------------------------


def step(
    turn: Callable,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kept_keys: Tensor,
    kept_values: Tensor,
    seen: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The reference: the new tokens stand where the seen ones end."""
    positions = seen + torch.arange(key.shape[-2])
    keys = torch.cat([kept_keys, turn(key, positions)], dim=-2)
    values = torch.cat([kept_values, value], dim=-2)
    return _attend(turn(query, positions), keys, values), keys, values


def _attend(query, keys, values, mask=causal_mask):
    shown = mask(query.shape[-2], keys.shape[-2])
    return scaled_dot_product_attention(query, keys, values, shown)[0]


def halves(x, positions):
    return rotate_pairs(x, positions[:, None] * frequencies(x.shape[-1]))


def neighbours(x, positions):
    return _neighbours(x, positions, 10000.0)


def step_trials(dtype):
    # new tokens, keys kept, tokens seen: a window keeps fewer than were seen
    sizes = [(4, 0, 0), (1, 5, 5), (3, 5, 5), (1, 6, 11), (2, 3, 40), (3, 3, 3)]
    sizes += [(2, 0, 7)]  # all keys kept so far were dropped
    for seed, (new, kept, seen) in enumerate(sizes):
        trial = {"turn": neighbours if seed % 2 else halves}
        batch, heads, head_dim = (2, 3, 8) if seed % 2 else (1, 2, 4)
        for at, name in enumerate(
            ("query", "key", "value", "kept_keys", "kept_values")
        ):
            shape = batch, heads, kept if "kept" in name else new, head_dim
            trial[name] = randn(*shape, seed=10 * at + seed, dtype=dtype)
        yield trial | {"seen": seen}


cache = Exercise("5.5", "Repair the cache", step, step_trials)


RIGHT, FROM_0, BY_KEPT, ITS_OWN = (
    lambda seen, kept, count: seen + count,
    lambda seen, kept, count: count,
    lambda seen, kept, count: kept + count,
    lambda seen, kept, count: seen - kept + count,  # of the kept keys
)


def _step(
    queries_at=RIGHT, keys_at=RIGHT, kept_at=None, values_at=None, *, order=1,
    mask=causal_mask, swapped=False,
):  # fmt: skip
    """Return the reference with a part replaced; what stands at None is not turned."""

    def answer(turn, query, key, value, kept_keys, kept_values, seen):
        kept, count = kept_keys.shape[-2], torch.arange(key.shape[-2])

        def turned(x, place, count=count):
            return x if place is None else turn(x, place(seen, kept, count))

        old = turned(kept_keys, kept_at, torch.arange(kept))
        keys = torch.cat([old, turned(key, keys_at)][::order], dim=-2)
        values = torch.cat([kept_values, turned(value, values_at)][::order], dim=-2)
        read = (values, keys) if swapped else (keys, values)
        return _attend(turned(query, queries_at), *read, mask), keys, values

    return answer


def _keeping(answer, keys_at=None):
    """Return the answer, but with the kept keys as they were, and the new ones."""

    def changed(*args):
        output, _, values = answer(*args)
        return output, _step(RIGHT, keys_at)(*args)[1], values

    return changed


for name, place in {
    "positions restart at 0": FROM_0,
    "positions from the keys kept": BY_KEPT,
    "the new tokens counted, too": lambda seen, kept, count: seen + len(count) + count,
    "restart when all keys were dropped": lambda seen, kept, count: (
        (seen if kept else 0) + count
    ),
    "one too far": lambda seen, kept, count: seen + 1 + count,
    "one too near": lambda seen, kept, count: seen - 1 + count,
    "all new tokens at one place": lambda seen, kept, count: seen + 0 * count,
}.items():
    why = "New tokens stand at seen, seen + 1, ..., even if old keys were dropped."
    cache.wrong(name, why, _step(place, place))

for name, places in {
    "new keys restart at 0": (RIGHT, FROM_0),
    "queries restart at 0": (FROM_0, RIGHT),
    "queries not turned": (None, RIGHT),
    "nothing turned": (None, None),
}.items():
    why = "New queries and new keys are turned alike, by the same positions."
    cache.wrong(name, why, _step(*places))

cache.wrong(
    "kept keys turned again",
    "The kept keys were turned when they were new; do not turn them again.",
    _step(kept_at=FROM_0),
    _step(BY_KEPT, BY_KEPT, FROM_0),
    _step(RIGHT, BY_KEPT, FROM_0),
    _step(kept_at=ITS_OWN),
    _keeping(_step(kept_at=FROM_0), RIGHT),
    _keeping(_step(kept_at=ITS_OWN)),
)
for name, answers in {
    "new keys kept unturned": [_keeping(step), _step(keys_at=None)],
    "values turned": [_step(values_at=RIGHT)],
    "keys and values swapped": [
        lambda *args: (step(*args)[0], *step(*args)[:0:-1]),
        _step(swapped=True),
    ],
}.items():
    why = "Keys are kept turned, values never: keys give weights, values the output."
    cache.wrong(name, why, *answers)

for name, mask in {
    "no mask among the new": lambda q, k: torch.ones_like(causal_mask(q, k)),
    "mask in the upper corner": lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(),
}.items():
    why = "New tokens stand at the END of the keys, and must not attend to later ones."
    cache.wrong(name, why, _step(mask=mask))

for name, answer in {
    "new before kept": _step(order=-1),
    "kept tokens not read": lambda turn, q, k, v, kept, kept_values, seen: step(
        turn, q, k, v, kept[..., :0, :], kept_values[..., :0, :], seen
    ),
    "only the new returned": lambda turn, q, *rest: tuple(
        part[..., -q.shape[-2] :, :] for part in step(turn, q, *rest)
    ),
}.items():
    why = "The kept keys and values come first, the new ones behind them; all are used."
    cache.wrong(name, why, answer)


EXERCISES = (biases, buckets, turned, rotations, cache)
