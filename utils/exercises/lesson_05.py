"""Exercises of notebook 05: ALiBi, T5's buckets, a rotation, its test, its cache."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from utils.attention import causal_mask, scaled_dot_product_attention
from utils.exercises.engine import Exercise, randn
from utils.positions import (
    alibi_slopes,
    frequencies,
    relative_positions,
    rotate_pairs,
)

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
    return alibi_slopes(num_heads)[:, None, None] * _behind(queries, keys)


def _behind(queries, keys):
    return relative_positions(queries, keys).clamp(max=0)  # minus the distance


def alibi_trials(dtype):
    sizes = [(4, 5, 5), (6, 4, 4), (12, 3, 7), (3, 1, 9), (5, 6, 6), (8, 1, 1)]
    sizes += [(1, 4, 6), (7, 7, 7), (4, 4, 4), (20, 2, 5)]
    for num_heads, queries, keys in sizes if dtype == torch.float32 else ():
        yield {"num_heads": num_heads, "queries": queries, "keys": keys}


biases = Exercise(
    "5.1", "ALiBi for any number of heads", alibi, alibi_trials, gradients=False
)


def _slopes_of(count):
    return [2.0 ** (-8 * i / count) for i in range(1, count + 1)]


def _double(num_heads):
    """Return the next lower power of two, its slopes, and those of its double."""
    power = 2 ** (num_heads.bit_length() - 1)
    return power, _slopes_of(power), _slopes_of(2 * power)


def _slopes_from_one(num_heads):
    power, own, double = _double(num_heads)
    first = [slope * 2 ** (8 / power) for slope in own]
    return first + [slope * 2 ** (4 / power) for slope in double[::2]]


for name, slopes in {
    "slopes of the paper's text": _slopes_of,
    "slopes sorted": lambda n: sorted(alibi_slopes(n).tolist(), reverse=True),
    "the first slopes of the double": lambda n: _double(n)[1] + _double(n)[2],
    "slopes taken twice": lambda n: _double(n)[1] + _double(n)[2][1::2],
    "slopes of the higher power of two": lambda n: _slopes_of(
        1 << (n - 1).bit_length()
    ),
    "slopes that always halve": lambda n: [2.0**-i for i in range(1, n + 1)],
    "slopes from 1": _slopes_from_one,
    "one slope for all": lambda n: [alibi_slopes(n)[0]] * n,
}.items():

    @biases.wrong(
        name,
        "Take the slopes of the next lower power of two, p, from 2^(-8/p) down; then "
        "the first, third, fifth, ... of 2p heads, unsorted, until there are enough.",
    )
    def _(num_heads, queries, keys, slopes=slopes):
        slope = torch.tensor(slopes(num_heads)[:num_heads])[:, None, None]
        return slope * _behind(queries, keys)


for name, ahead in {
    "a bias in the future": lambda ahead: ahead,
    "a bias in both directions": lambda ahead: -ahead.abs(),
    "distances from 1": lambda ahead: ahead.clamp(max=0) - 1,
    "distance rewarded": lambda ahead: -ahead.clamp(max=0),
    "keys backwards": lambda ahead: ahead.clamp(max=0).flip(-1),
    "-inf in the future": lambda ahead: ahead.masked_fill(ahead > 0, -math.inf),
}.items():

    @biases.wrong(
        name,
        "The bias is minus the slope times the distance: 0 for the token itself, and 0 "
        "for keys in the future, which the causal mask hides.",
    )
    def _(num_heads, queries, keys, ahead=ahead):
        changed = ahead(relative_positions(queries, keys).float())
        return alibi_slopes(num_heads)[:, None, None] * changed


for name, function in {
    "queries at the start of the keys": lambda n, q, k: alibi(n, k, k)[:, :q],
    "as many keys as queries": lambda n, q, k: alibi(n, q, q),
    "as many queries as keys": lambda n, q, k: alibi(n, k, k),
}.items():
    why = (
        "A row for each query; they stand at the END of the keys, the last at the last."
    )
    biases.wrong(name, why, function)


# --- 5.2 The bucket of a distance -------------------------------------------------


def bucket(relative: Tensor, exact: int, wide: int, max_distance: int) -> Tensor:
    """The reference: a bucket per short distance, wider and wider ones beyond."""
    return _bucket(relative, exact, wide, max_distance)


def _past(relative):
    return (-relative).clamp(min=0)


def _bucket(
    relative, exact, wide, max_distance, *, distance=_past, whole=torch.floor,
    begin=lambda exact, max_distance: (exact, max_distance / exact), last=1,
):  # fmt: skip
    """Return exact + k beyond `exact`, k = wide · log(distance / at) / log(full)."""
    distance, (at, full) = distance(relative), begin(exact, max_distance)
    k = wide * (distance.clamp(min=1) / at).log() / math.log(full)
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
            torch.tensor([[-999, -1, 0], [7, -127, -61]]),
            torch.tensor([-100_000, -20_000]),
        ):
            yield {
                "relative": relative,
                "exact": exact,
                "wide": wide,
                "max_distance": max_distance,
            }


buckets = Exercise(
    "5.2", "The bucket of a distance", bucket, bucket_trials, gradients=False
)


def _buckets(**options):
    """Return the reference with one part of the formula replaced."""
    return lambda *args: _bucket(*args, **options)


def _beyond(change):
    """Return the reference with something done to the buckets from `exact` on."""

    def answer(relative, exact, wide, max_distance):
        right = bucket(relative, exact, wide, max_distance)
        return torch.where(_past(relative) < exact, right, change(right, exact, wide))

    return answer


buckets.wrong(
    "the sign swapped",
    "relative is key minus query: the past is negative. Read the other way, all of the "
    "past falls into bucket 0.",
    lambda relative, *rest: bucket(-relative, *rest),
)
buckets.wrong(
    "the future counted",
    "A key in the future has bucket 0 here, as the token itself has.",
    _buckets(distance=torch.abs),
    _buckets(distance=torch.neg),
)
buckets.wrong(
    "buckets for the future",
    "Only models that read both ways have buckets for the future.",
    lambda relative, exact, wide, most: (
        bucket(-relative.abs(), exact, wide, most) + (exact + wide) * (relative > 0)
    ),
)
buckets.wrong(
    "rounded to the nearest",
    "A bucket begins at its first distance: round down, not to the nearest.",
    _buckets(whole=torch.round),
)
buckets.wrong(
    "the next bucket",
    "A distance belongs to the last bucket that begins at or before it: round k down, "
    "or count the beginnings up to the distance and take one off.",
    _buckets(whole=torch.ceil),
    _buckets(whole=lambda k: k.floor() + 1),
    lambda relative, exact, *rest: torch.where(
        _past(relative) == exact,
        exact,
        _bucket(relative, exact, *rest, whole=lambda k: k.floor() + 1),
    ),
)
buckets.wrong(
    "no last bucket",
    "All that is farther than max_distance belongs to the last bucket.",
    _buckets(last=-1000),
)
buckets.wrong(
    "a bucket too many",
    "There are exact + wide buckets: the last one has the number exact + wide - 1.",
    _buckets(last=0),
)
buckets.wrong(
    "a bucket too few",
    "The last bucket has the number exact + wide - 1; here it is never used.",
    _buckets(last=2),
)
for name, begin in {
    "not divided by exact": lambda exact, most: (1, most),
    "only max_distance divided": lambda exact, most: (1, most / exact),
    "max_distance not divided": lambda exact, most: (exact, most),
}.items():
    why = "Distances count from `exact`: log(distance/exact) / log(max_distance/exact)."
    buckets.wrong(name, why, _buckets(begin=begin))

buckets.wrong(
    "wide - 1 steps",
    "There are `wide` steps from `exact` to max_distance: the exponent is k / wide.",
    lambda relative, exact, wide, most: _bucket(
        relative, exact, wide - 1, most, last=0
    ),
)
buckets.wrong(
    "exact not added",
    "The wide buckets come after the exact ones: add `exact`.",
    _beyond(lambda right, exact, wide: right - exact),
)
buckets.wrong(
    "wide buckets of one width",
    "The wide buckets grow with the distance: equal steps of its logarithm.",
    lambda relative, exact, wide, most: torch.where(
        _past(relative) < exact,
        _past(relative),
        exact
        + ((_past(relative) - exact) * wide // (most - exact)).clamp(max=wide - 1),
    ),
)
buckets.wrong(
    "every distance a bucket",
    "Every bucket holds one distance here; the wide ones hold more and more.",
    lambda relative, exact, wide, most: _past(relative).clamp(max=exact + wide - 1),
    lambda relative, exact, wide, most: _past(relative).clamp(max=most),
    lambda relative, *rest: _past(relative),
)
buckets.wrong(
    "no exact buckets",
    "Distances below `exact` have a bucket each.",
    lambda relative, exact, wide, most: _bucket(
        relative, 0, exact + wide, most, begin=lambda *_: (1, most)
    ),
)
buckets.wrong(
    "numbered from 1", "Distance 0 has bucket 0.", lambda *args: bucket(*args) + 1
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
    for seed, (shape, positions, base) in enumerate(
        (
            ((2, 3, 5, 8), counted[:5], 10000.0),
            ((2, 3, 5, 8), counted[7:12], 10000.0),
            ((1, 4, 4, 6), torch.tensor([0, 9, 2, 40]), 100.0),
            ((3, 1, 2), counted[3:4], 10000.0),
            ((6, 4), counted[:6], 500.0),
            ((2, 8, 8, 8), counted[1:9], 10000.0),
            # frequencies 1 and 0.01: angles this large are still exact enough
            ((2, 3, 4), torch.tensor([4097, 0, 257]), 10000.0),
        )
    ):
        x = randn(*shape, seed=seed, dtype=dtype)
        yield {"x": x, "positions": positions, "base": base}
    strided = randn(2, 5, 3, 4, seed=7, dtype=dtype).transpose(1, 2)
    yield {"x": strided, "positions": counted[:5], "base": 50.0}


turned = Exercise("5.3", "Turn the pairs", turn, turn_trials)


def _neighbours(x, positions, base):
    return rotate_pairs(x, _angles(x, positions, base), layout="interleaved")


turned.wrong(
    "the interleaved layout",
    "The pairs 2i and 2i + 1 are the layout of the page; asked are the pairs i and "
    "i + head_dim / 2.",
    _neighbours,
)


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
turned.wrong(
    "turned backwards",
    "Turned the other way. Scores would still depend on the distance alone, but no "
    "model trained with rotary positions could be loaded.",
    lambda x, positions, base: turn(x, -positions, base),
)
for name, entries in {
    "sine and cosine swapped": lambda a, b, cos, sin: (
        a * sin - b * cos,
        a * cos + b * sin,
    ),
    "two plus signs": lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos),
    "first half overwritten": lambda a, b, cos, sin: (
        a * cos - b * sin,
        (a * cos - b * sin) * sin + b * cos,
    ),
    "one member of each pair": lambda a, b, cos, sin: (a * cos - b * sin, b),
    "members exchanged": lambda a, b, cos, sin: (a * sin + b * cos, a * cos - b * sin),
}.items():

    @turned.wrong(
        name,
        "(a, b) becomes (a cos - b sin, a sin + b cos), both from the old a and b.",
    )
    def _(x, positions, base, entries=entries):
        angles = _angles(x, positions, base)
        return torch.cat(
            entries(*x.chunk(2, dim=-1), angles.cos(), angles.sin()), dim=-1
        )


for name, changes in {
    "positions from 0": [lambda p: torch.arange(len(p))],
    "positions from 1": [lambda p: p + 1],
    "positions less the first": [lambda p: p - p[0]],
    "positions rounded": [Tensor.bfloat16, Tensor.half],
    "positions cut off": [lambda p: p.clamp(max=127), lambda p: p.clamp(max=511)],
    "positions that begin again": [lambda p: p.to(torch.int8), lambda p: p % 256],
}.items():
    for change in changes:

        @turned.wrong(
            name,
            "Take the positions as they are given: whole numbers in any order and of any "
            "size. bfloat16 holds them up to 256, float16 up to 2048.",
        )
        def _(x, positions, base, change=change):
            return turn(x, change(positions), base)


for name, exponents in {
    "half the exponent": [lambda i, dim: -i / dim],
    "twice the exponent": [lambda i, dim: -4 * i / dim],
    "not divided by head_dim": [lambda i, dim: -2.0 * i, lambda i, dim: -1.0 * i],
    "divided by head_dim - 2": [lambda i, dim: -2 * i / max(dim - 2, 1)],
    "pairs from 1": [lambda i, dim: -2 * (i + 1) / dim],
    "faster and faster": [lambda i, dim: 2 * i / dim],
    "one frequency": [lambda i, dim: 0.0 * i],
}.items():
    for exponent in exponents:

        @turned.wrong(
            name, "Pair i turns by position · base^(-2i / head_dim), i from 0."
        )
        def _(x, positions, base, exponent=exponent):
            dim = x.shape[-1]
            turns = base ** exponent(torch.arange(dim // 2), dim)
            return rotate_pairs(x, positions[:, None] * turns, layout="half")


turned.wrong(
    "base not used",
    "The base is given; here it is always 10000.",
    lambda x, positions, base: turn(x, positions, 10000.0),
)
turned.wrong(
    "pairs written side by side",
    "Both members of a pair go back to their own places, i and i + head_dim / 2.",
    lambda *args: turn(*args).unflatten(-1, (2, -1)).mT.flatten(-2),
)
turned.wrong(
    "neighbours in, halves out",
    "Pairs of neighbours, 2i and 2i + 1, are taken; they are put back as i and "
    "i + head_dim / 2.",
    lambda *args: _neighbours(*args).unflatten(-1, (-1, 2)).mT.flatten(-2),
)
turned.wrong(
    "nothing turned",
    "Queries and keys come back as they were: nothing is turned.",
    lambda x, *rest: x * 1,
)


# --- 5.4 Write the test -----------------------------------------------------------

DIM, LAYOUTS = 16, ("half", "interleaved")


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


def _turning(layout="half", base=10000.0, of=Tensor.double):
    """Return a rotation whose angles are a function of the positions."""

    def turn(x, positions):
        turns = frequencies(DIM, base=base, dtype=torch.float64)
        angles = of(positions)[:, None] * turns
        return rotate_pairs(x.double(), angles, layout=layout)

    return turn


def _adding(x, positions):
    angles = positions[:, None] * frequencies(DIM)
    return x + torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)


def _single(x, positions):
    return rotate_pairs(x.float(), positions[:, None] * frequencies(DIM))


def _eleven_bits(x, positions):
    """300 later, scores have moved by 0.1."""
    angles = (positions[:, None] * frequencies(DIM)).half()
    return rotate_pairs(x.double(), angles.double())


TURNS = {
    "a right one, halves": _turning(),
    "layouts mixed": mixed_layouts,
    "a right one, interleaved": _turning("interleaved"),
    "layouts mixed the other way": mixed_otherwise,
    "a right one, in single precision": _single,
    "one that turns by the square of the position": _turning(of=torch.square),
    "a right one, base 500": _turning(base=500.0),
    "one whose positions are rounded to bfloat16": _turning(of=Tensor.bfloat16),
    "one whose angles are rounded to float16": _eleven_bits,
    "one that does not look at the positions": _turning(
        of=lambda p: torch.arange(len(p))
    ),
    "one that turns nothing": lambda x, positions: x * 1,
    "one that adds its waves": _adding,
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
        return equal and not (
            apart and torch.allclose(other, here, atol=atol, rtol=rtol)
        )

    return test


def _scores(turn, x, positions):
    """Return the scores of the first half of x against the second."""
    first, second = turn(x, positions).chunk(2)
    return first @ second.mT


def _text(length=12):
    return randn(length, DIM, seed=1, dtype=torch.float32)


def rotary_trials(dtype):
    for name, turn in TURNS.items() if dtype == torch.float32 else ():
        yield {"turn": _Black(name, turn)}


rotations = Exercise(
    "5.4", "Write the test", rotary_test, rotary_trials, gradients=False
)


def _lengths_kept(far):
    def test(turn):
        x = _text()
        lengths = turn(x, torch.arange(12) + far).norm(dim=-1)
        return torch.allclose(lengths, x.norm(dim=-1), atol=1e-3)

    return test


def _compared(*layouts, far=0, also=None):
    """Return a test that asks for the numbers of base 10000 in these layouts."""

    def test(turn):
        x, positions = _text(), torch.arange(12) + far
        known = [_turning(layout)(x, positions).float() for layout in layouts]
        equal = any(torch.allclose(turn(x, positions), k, atol=1e-3) for k in known)
        return equal and (also is None or also(turn))

    return test


rotations.wrong(
    "says yes to all",
    "A shape, or a mean that is finite: all pass. Compare scores.",
    lambda turn: turn(_text(), torch.arange(12)).shape == _text().shape,
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
    "Lengths stay the same in every rotation, by whatever angle: that finds mixed "
    "layouts, and no wrong angle.",
    _lengths_kept(5),
    _lengths_kept(1000),
)
rotations.wrong(
    "moved together only",
    "Who never looks at the positions gives equal scores, too, when all move together. "
    "Move them apart as well: then scores must change.",
    _asking(apart=False),
)
rotations.wrong(
    "moved apart only",
    "That something changes with the positions is true of wrong ones, too. Move all "
    "tokens together, and nothing must change.",
    _asking(together=False),
    lambda turn: (
        not torch.allclose(turn(_text(), torch.arange(12)), _text(), atol=1e-2)
    ),
)
rotations.wrong(
    "moved too little",
    "Rounded positions or angles pass here. Whole numbers up to 256 are exact even in "
    "bfloat16: move far, too, and let scores differ by no more than atol=1e-2.",
    _asking(far=[7]),
    _asking(far=[1], apart=False),
    _asking(far=[1, 100]),
)
rotations.wrong(
    "position 0 only",
    "At position 0 nothing turns, in most of the wrong ones either.",
    lambda turn: torch.allclose(turn(_text(1), torch.tensor([0])), _text(1), atol=1e-4),
)
rotations.wrong(
    "tolerance too wide",
    "Of scores of size 4 some wrong ones move by less than 1: try atol=1e-2.",
    _asking(far=[300], atol=20.0, apart=False),
    _asking(far=[1001], atol=1.0),
)
rotations.wrong(
    "tolerance too narrow",
    "In single precision an angle of 1000 radians is off by 1e-5: try atol=1e-2.",
    _asking(far=[1001], atol=1e-6),
)
rotations.wrong(
    "one layout or base only",
    "The interleaved layout is right as well, and so is another base than 10000.",
    *[_compared(*both, far=far) for far in (0, 1001) for both in (["half"], LAYOUTS)],
    _compared(*LAYOUTS, also=rotary_test),
    _compared("half", also=rotary_test),
)
rotations.wrong(
    "upside down",
    "True means that it is right.",
    lambda turn: not rotary_test(turn),
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


def _attend(query, keys, values):
    mask = causal_mask(query.shape[-2], keys.shape[-2])
    return scaled_dot_product_attention(query, keys, values, mask)[0]


def halves(x, positions):
    return rotate_pairs(x, positions[:, None] * frequencies(x.shape[-1]))


def neighbours(x, positions):
    return _neighbours(x, positions, 10000.0)


def step_trials(dtype):
    # new tokens, keys kept, tokens seen: a window keeps fewer than were seen
    sizes = [(4, 0, 0), (1, 5, 5), (3, 5, 5), (1, 6, 11), (2, 3, 40), (3, 3, 3)]
    for seed, (new, kept, seen) in enumerate(sizes):
        batch, heads, head_dim = (2, 3, 8) if seed % 2 else (1, 2, 4)
        new, old = (batch, heads, new, head_dim), (batch, heads, kept, head_dim)
        yield {
            "turn": neighbours if seed % 2 else halves,
            "query": randn(*new, seed=seed, dtype=dtype),
            "key": randn(*new, seed=seed + 10, dtype=dtype),
            "value": randn(*new, seed=seed + 20, dtype=dtype),
            "kept_keys": randn(*old, seed=seed + 30, dtype=dtype),
            "kept_values": randn(*old, seed=seed + 40, dtype=dtype),
            "seen": seen,
        }


cache = Exercise("5.5", "Repair the cache", step, step_trials)


def _right(seen, kept, count):
    return seen + count


def _from_0(seen, kept, count):
    return count


def _by_kept(seen, kept, count):
    return kept + count


def _step(
    queries_at=_right, keys_at=_right, kept_at=None, values_at=None, *, order=1,
    attend=_attend,
):  # fmt: skip
    """Return the reference with a part replaced; what stands at None is not turned."""

    def answer(turn, query, key, value, kept_keys, kept_values, seen):
        kept, count = kept_keys.shape[-2], torch.arange(key.shape[-2])

        def turned(x, place, count=count):
            return x if place is None else turn(x, place(seen, kept, count))

        old = turned(kept_keys, kept_at, torch.arange(kept))
        keys = torch.cat([old, turned(key, keys_at)][::order], dim=-2)
        values = torch.cat([kept_values, turned(value, values_at)][::order], dim=-2)
        return attend(turned(query, queries_at), keys, values), keys, values

    return answer


def _keeping(answer, keys_at=None):
    """Return the answer, but with the kept keys as they were, and the new ones."""

    def changed(*args):
        output, _, values = answer(*args)
        return output, _step(_right, keys_at)(*args)[1], values

    return changed


for name, place in {
    "positions restart at 0": _from_0,
    "positions from the keys kept": _by_kept,
    "the new tokens counted, too": lambda seen, kept, count: seen + len(count) + count,
    "one too far": lambda seen, kept, count: seen + 1 + count,
    "one too near": lambda seen, kept, count: seen - 1 + count,
    "all new tokens at one place": lambda seen, kept, count: seen + 0 * count,
}.items():
    why = "The new tokens stand at seen, seen + 1, ...: a window may have dropped old keys."
    cache.wrong(name, why, _step(place, place))

for name, places in {
    "new keys restart at 0": (_right, _from_0),
    "queries restart at 0": (_from_0, _right),
    "queries not turned": (None, _right),
    "nothing turned": (None, None),
}.items():
    why = "New queries and new keys are turned alike, by the same positions."
    cache.wrong(name, why, _step(*places))

cache.wrong(
    "kept keys turned again",
    "The kept keys were turned when they were new; here they are turned again.",
    *[_step(at, at, _from_0) for at in (_right, _by_kept)],
    _step(_right, _by_kept, _from_0),
    _step(kept_at=lambda seen, kept, count: seen - kept + count),
    _keeping(_step(kept_at=_from_0), _right),
    _keeping(_step(kept_at=lambda seen, kept, count: seen - kept + count)),
)
cache.wrong(
    "new keys kept unturned",
    "Keys are kept turned; the new ones are returned as they came.",
    _keeping(step),
    _step(keys_at=None),
)
cache.wrong(
    "values turned",
    "Values are not turned: the output would depend on where they stand.",
    _step(values_at=_right),
)
cache.wrong(
    "keys and values swapped",
    "Weights come from the keys; what is averaged, and kept second, are the values.",
    lambda *args: (step(*args)[0], *step(*args)[:0:-1]),
    _step(attend=lambda query, keys, values: _attend(query, values, keys)),
)
for name, shown in {
    "no mask among the new": torch.ones_like,
    "mask in the upper corner": lambda mask: torch.ones_like(mask).tril(),
}.items():

    def attend(query, keys, values, shown=shown):
        mask = shown(causal_mask(query.shape[-2], keys.shape[-2]))
        return scaled_dot_product_attention(query, keys, values, mask)[0]

    why = "New tokens stand at the END of the keys, and must not attend to later ones."
    cache.wrong(name, why, _step(attend=attend))

cache.wrong(
    "new before kept",
    "The kept keys and values come first, the new ones behind them.",
    _step(order=-1),
)


@cache.wrong("kept tokens not read", "The new tokens attend to the kept ones, too.")
def _(turn, query, key, value, kept_keys, kept_values, seen):
    none = kept_keys[..., :0, :], kept_values[..., :0, :]
    return step(turn, query, key, value, *none, seen)


@cache.wrong("only the new returned", "The next step needs the kept ones, too.")
def _(turn, query, key, value, kept_keys, *rest):
    output, *both = step(turn, query, key, value, kept_keys, *rest)
    return output, *(x[..., kept_keys.shape[-2] :, :] for x in both)


EXERCISES = (biases, buckets, turned, rotations, cache)
