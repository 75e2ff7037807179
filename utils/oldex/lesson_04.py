"""Exercises of notebook 04: sines, the shift, a test of encodings, parts of scores."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.oldex.engine import Exercise, randn
from utils.positions import sinusoidal

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
"""


# --- 4.1 The sines ----------------------------------------------------------------


def sinusoids(positions: Tensor, embed_dim: int, base: float) -> Tensor:
    """The reference: (length, embed_dim), sine and cosine of each angle in turn."""
    return _in_turn(_angles(positions, embed_dim, base))[:, :embed_dim]


def _angles(positions, embed_dim, base):
    even = torch.arange(0, embed_dim, 2).to(positions.dtype)  # (pairs,)
    return positions[:, None] / base ** (even / embed_dim)  # (length, pairs)


def _in_turn(angles):
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def sinusoids_trials(dtype):
    count = torch.arange(20).to(dtype)
    mixed = torch.tensor([-4, 9, 0.5, 9], dtype=dtype)
    random = 10 * randn(6, 2, seed=0, dtype=dtype)[:, 0]
    for positions, embed_dim, base in (
        (count[:6], 8, 10000.0),
        (count[:5] + 3, 6, 100.0),
        (count[:7], 5, 10000.0),  # odd
        (count[::3], 12, 50.5),
        (count[5:11], 8, 10000.0),  # as the first
        (count[2:3], 4, 10000.0),
        (count[4:8], 4, 10.0),
        (count[1:4], 1, 10000.0),
        (count[1:4], 2, 20.0),
        (mixed, 7, 1000.0),
        (random, 10, 300.0),
    ):
        yield {"positions": positions, "embed_dim": embed_dim, "base": base}


sines = Exercise("4.1", "The sines", sinusoids, sinusoids_trials, gradients=False)


def _sines(
    exponents=lambda even, size: even / size,
    angles=lambda positions, powers: positions[:, None] / powers,
    waves=_in_turn,
):
    """Return the reference with a step replaced."""

    def answer(positions, embed_dim, base):
        even = torch.arange(0, embed_dim, 2).to(positions.dtype)
        powers = base ** exponents(even, embed_dim)
        return waves(angles(positions, powers))[:, :embed_dim]

    return answer


for name, exponents in {
    "exponent doubled twice": lambda even, size: 2 * even / size,
    "exponent not doubled": lambda even, size: even / 2 / size,
    "slowest frequency 1 / base": lambda even, size: even / max(2 * len(even) - 2, 1),
    "odd size rounded up": lambda even, size: even / (size + size % 2),
    "odd size rounded down": lambda even, size: even / max(size - size % 2, 1),
}.items():
    why = "Divide by base^(2i / embed_dim): 2i is 0, 2, 4, ..., embed_dim may be odd."
    sines.wrong(name, why, _sines(exponents))

for name, waves in {
    "cosines first": lambda a: torch.stack([a.cos(), a.sin()], dim=-1).flatten(1),
    "only sines": lambda a: a.sin().repeat_interleave(2, dim=1),
    "in two halves": lambda a: torch.cat([a.sin(), a.cos()], dim=1),
}.items():
    why = "The sine and the cosine of one angle stand side by side, the sine first."
    sines.wrong(name, why, _sines(waves=waves))


def _moved(change, base=None):
    """Return the reference at other positions."""
    return lambda p, size, given: sinusoids(change(p), size, base or given)


for name, change in {
    "positions counted anew": lambda p: torch.arange(len(p)).to(p.dtype),
    "positions from 1": lambda p: p + 1,
    "divided by the length": lambda p: p / len(p),
    "whole positions only": lambda p: p.long().to(p.dtype),
    "degrees": torch.deg2rad,
    "a 2π too many": lambda p: 2 * math.pi * p,
}.items():
    why = "Take the positions as they are given; the angles are in radians already."
    sines.wrong(name, why, _moved(change))

sines.wrong(
    "multiplied instead of divided",
    "The position is divided by base^(2i / embed_dim): later pairs turn more slowly.",
    _sines(angles=lambda positions, powers: positions[:, None] * powers),
)
for name, change in {
    "base ignored": lambda p: p,
    "positions and base of its own": lambda p: torch.arange(len(p)).to(p.dtype),
}.items():
    why = "Use the arguments `positions` and `base`, not constants."
    sines.wrong(name, why, _moved(change, base=10000.0))

sines.wrong(
    "divided after the power",
    "2i / embed_dim is the exponent as a whole: put it in brackets.",
    lambda p, size, base: _sines(lambda even, _: even)(p * size, size, base),
)


def _of_every_feature(twice):
    def answer(positions, embed_dim, base):
        feature = torch.arange(embed_dim).to(positions.dtype)
        angles = positions[:, None] / base ** (twice * feature / embed_dim)
        return torch.where(feature % 2 == 0, angles.sin(), angles.cos())

    return answer


sines.wrong(
    "a frequency for every feature",
    "Sine and cosine of a pair share a frequency; 2i is the even feature's number.",
    _of_every_feature(twice=1),
    _of_every_feature(twice=2),
)


def _filled(positions, embed_dim, base):
    angles = _angles(positions, embed_dim, base)
    table = positions.new_zeros(len(positions), embed_dim)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


for name, function in {
    "last sine lost": lambda *args: sinusoids(*args)[:, : args[1] // 2 * 2],
    "one cosine too many": lambda *args: _in_turn(_angles(*args)),
    "cosines do not fit an odd size": _filled,
}.items():
    why = "With an odd embed_dim the last sine has no cosine: cut one cosine off."
    sines.wrong(name, why, function)


def _single(even, size):
    return torch.arange(0, size, 2) / size


sines.wrong(
    "exponents in single precision",
    "torch.arange(0, embed_dim, 2) / embed_dim is float32, whatever the positions are: "
    "write torch.arange(0, embed_dim, 2).to(positions.dtype) / embed_dim.",
    _sines(_single),
    _sines(_single, angles=lambda positions, powers: positions[:, None] * (1 / powers)),
)


# --- 4.2 The shift ----------------------------------------------------------------


def shift(frequencies: Tensor, steps: int) -> Tensor:
    """The reference: (2 pairs, 2 pairs), one rotation per pair on the diagonal."""
    return torch.block_diag(*_blocks(frequencies * steps))


def _block(cos, sin):
    return cos, sin, -sin, cos


def _blocks(angles, entries=_block):
    """Return (pairs, 2, 2)."""
    return torch.stack(entries(angles.cos(), angles.sin()), -1).unflatten(-1, (2, 2))


def shift_trials(dtype):
    for seed, (pairs, steps) in enumerate([(3, 2), (4, 1), (2, 7), (5, -3), (1, 2)]):
        random = randn(pairs, 2, seed=seed, dtype=dtype).abs()
        yield {"frequencies": random[:, 0], "steps": steps}
    yield {"frequencies": torch.tensor([0.7, -0.3], dtype=dtype), "steps": 2}
    usual = torch.tensor([1.0, 0.1, 0.01], dtype=dtype)
    for steps in (3, 0, 100, -1):
        yield {"frequencies": usual, "steps": steps}
    yield {"frequencies": usual / 10, "steps": 5}  # small angles


shifts = Exercise("4.2", "The shift", shift, shift_trials, gradients=False)

shifts.wrong(
    "the other way",
    "That steps back: sin(a + b) = sin a cos b + cos a sin b, with a plus. Or it is "
    "meant for rows, x @ M; wanted is M @ x.",
    lambda frequencies, steps: shift(frequencies, -steps),
)


def _of_blocks(entries):
    return lambda f, steps: torch.block_diag(*_blocks(f * steps, entries))


for name, entries in {
    "no minus": [lambda cos, sin: (cos, sin, sin, cos)],
    "cosines alone": [lambda cos, sin: (cos, 0 * sin, 0 * sin, cos)],
    "sines on the diagonal": [
        lambda cos, sin: (sin, cos, cos, -sin),
        lambda cos, sin: (sin, cos, -cos, sin),
    ],
}.items():
    why = "A block is [[cos, sin], [-sin, cos]]: sin(a + b) needs sin a and cos a."
    shifts.wrong(name, why, *map(_of_blocks, entries))

for name, function in {
    "one frequency for all": lambda f, steps: shift(f[:1].expand(len(f)), steps),
    "frequencies reversed": lambda f, steps: shift(f.flip(0), steps),
    "divided by the frequency": lambda f, steps: shift(1 / f, steps),
    "a 2π too many": lambda f, steps: shift(2 * math.pi * f, steps),
    "one step only": lambda f, steps: shift(f, 1),
    "no step back": lambda f, steps: shift(f, max(steps, 0)),
    "steps without their sign": lambda f, steps: shift(f, abs(steps)),
}.items():
    why = "Pair i turns by the angle steps · frequencies[i], in radians, with its sign."
    shifts.wrong(name, why, function)

for name, function in {
    "steps times one step": lambda f, steps: shift(f, 1) * steps,
    "a power of every entry": lambda f, steps: shift(f, 1) ** steps,
}.items():
    why = "Several steps are rotations in turn: M @ M, not 2 * M and not M ** 2."
    shifts.wrong(name, why, function)


def _halves(angles):
    cos, sin = angles.cos().diag(), angles.sin().diag()
    return torch.cat([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)])


def _across_pairs(angles):
    cos, sin = (wave.repeat_interleave(2) for wave in (angles.cos(), angles.sin()))
    return cos.diag() + sin[:-1].diag(1) - sin[:-1].diag(-1)


for name, functions in {
    "in two halves": [lambda f, s: _halves(f * s), lambda f, s: _halves(-f * s)],
    "neighbouring pairs mixed": [lambda f, s: _across_pairs(f * s)],
    "blocks of several pairs": [
        lambda f, s: torch.block_diag(*_blocks(f * s).flatten(1).mT.reshape(-1, 2, 2))
    ],
    "blocks not folded": [lambda f, s: torch.block_diag(*_blocks(f * s).flatten(1))],
    "the star forgotten": [lambda f, s: torch.block_diag(_blocks(f * s))],
    "the blocks apart": [lambda f, s: _blocks(f * s)],
    "waves instead of a matrix": [lambda f, s: _in_turn((f * s)[None]).flatten()],
}.items():
    why = "Each pair is a 2 × 2 block on a matrix's diagonal: block_diag(*blocks)."
    shifts.wrong(name, why, *functions)


# --- 4.3 Write the test -----------------------------------------------------------

LONGEST, EMBED_DIM = 40, 24


class _Encoding:
    """A function that cannot be looked into, (batch, length, 24) -> the same shape."""

    def __init__(self, name, encode):
        self.__name__, self.encode = name, encode

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[-1] != EMBED_DIM or x.shape[1] > LONGEST:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; give (batch, length, 24), length at "
                "most 40."
            )
        x = x if x.is_floating_point() else x.float()
        return self.encode(x).to(x.dtype)


def _encodings() -> list[_Encoding]:
    """Right ones and wrong ones."""
    place = torch.arange(10 * LONGEST)
    waves = sinusoidal(len(place), EMBED_DIM)
    both_ways = waves[(place - 35).abs()]
    learned = randn(len(place), EMBED_DIM, seed=1, dtype=torch.float32)
    small = randn(len(place), EMBED_DIM, seed=2, dtype=torch.float32) / 50
    up_and_down = waves * (1 - 2 * (place % 2))[:, None]
    numbers = 4 + place[:, None] / 4 * (torch.arange(EMBED_DIM) > 0)
    neighbours = (waves[1] - waves[0]).norm()  # no two are closer
    close = waves * 0.052 / neighbours

    def add(x, table=waves):
        return x + table[: x.shape[1]]

    def of_the_first(x, sentences, table=waves):
        return torch.cat([add(x[:sentences], table), x[sentences:]])

    def last_by_sentence(x):
        return torch.cat(
            [add(x)[..., :-1], x[..., -1:] + waves[: len(x), :1, None]], -1
        )

    def by_batch(x):
        return add(x, waves / len(x))

    def on_and_on(x):
        return x + waves[: len(x) * x.shape[1]].view(x.shape)

    def by_share(x):
        return x + waves[torch.arange(x.shape[1]) * len(waves) // x.shape[1]]

    def from_the_end(x, table=waves):
        return x + table[: x.shape[1]].flip(0)

    encodings = {
        "an encoding of sines": add,
        "an encoding whose neighbours lie far apart": lambda x: add(x, up_and_down),
        "a learned encoding": lambda x: add(x, learned),
        "a learned encoding, small": lambda x: add(x, small),
        "an encoding of numbers, but for one feature": lambda x: add(x, numbers),
        "an encoding whose neighbours lie close together": lambda x: add(x, close),
        "an encoding of large vectors, close together": lambda x: add(x, close + 30),
        "an encoding of the sentence, not the position": lambda x: (
            x + waves[: len(x), None]
        ),
        "an encoding with one vector for all positions": lambda x: x + waves[0],
        "an encoding that depends on the length": by_share,
        "an encoding that counts from the end": from_the_end,
        "an encoding that begins anew every 8 tokens": lambda x: add(
            x, waves[place % 8]
        ),
        "an encoding whose last position repeats the one before": lambda x: add(
            x, waves[place.clamp(max=LONGEST - 2)]
        ),
        "an encoding that differs a little between sentences": lambda x: (
            add(x) + 0.005 * (torch.arange(len(x)) > 0)[:, None, None]
        ),
        "an encoding of the first sentence alone": lambda x: of_the_first(x, 1),
        "an encoding of the first two sentences alone": lambda x: of_the_first(x, 2),
        "an encoding that counts on into the next sentence": on_and_on,
        "an encoding whose last feature depends on the sentence": last_by_sentence,
        "an encoding that is multiplied": lambda x: x * waves[: x.shape[1]],
        "an encoding that changes words": lambda x: add(F.layer_norm(x, x.shape[-1:])),
        "an encoding that edits its input": lambda x: x.add_(waves[: x.shape[1]]),
        "an encoding that scales its input, too": lambda x: add(x.mul_(EMBED_DIM**0.5)),
        "an encoding that counts both ways from token 35": lambda x: add(x, both_ways),
        "a small encoding that counts from the end": lambda x: from_the_end(x, small),
        "an encoding that depends on the size of the batch": by_batch,
        "an encoding that is centred over the batch": lambda x: add(x - x.mean(dim=0)),
        "a large encoding of the first sentence alone": lambda x: of_the_first(
            x, 1, 10 * learned
        ),
    }
    return [_Encoding(name, encode) for name, encode in encodings.items()]


def encoding_test(add_positions) -> bool:
    """The reference: the same for all texts, and another vector per position?"""
    return _verdict(add_positions)


def _apart(rows, gap=1e-2):
    return _far((rows[:, None] - rows).norm(dim=-1), gap)


def _far(distances, gap=1e-2):
    return bool((distances + 1e3 * torch.eye(len(distances))).min() > gap)


def _text(batch=3, length=LONGEST):
    return randn(batch, length, EMBED_DIM, seed=3, dtype=torch.float32)


def _verdict(
    embed, x=None, short=None, *, atol=1e-4, apart=_apart,
    sentences=slice(None), features=slice(None),
):  # fmt: skip
    """Compare what is added to x and to `short`, as far as the options let it."""
    x = _text() if x is None else x.clone()
    short = _text(2, 15) * 2 if short is None else short
    before = x.clone()
    added = embed(x) - before
    if not torch.equal(x, before):
        return False
    for more in (added, embed(short.clone()) - short):
        known = added[:1, : more.shape[1]].expand_as(more)
        parts = (part[sentences, :, features] for part in (more, known))
        if not torch.allclose(*parts, atol=atol):
            return False
    return apart(added[0])


def encoding_trials(dtype):
    for embed in _encodings() if dtype == torch.float32 else ():
        yield {"add_positions": embed}


encodings = Exercise(
    "4.3", "Write the test", encoding_test, encoding_trials, gradients=False
)


def _asks(*texts, **options):
    """Return the reference on other texts, or with a part of its questions changed."""
    return lambda embed: _verdict(embed, *texts, **options)


def _on_a_copy(test):
    return lambda embed: test(lambda x: embed(x.clone()))


def _added(embed, x):
    return embed(x.clone()) - x


def _are_sines(rows):
    return torch.allclose(rows, sinusoidal(LONGEST, EMBED_DIM), atol=1e-4)


for name, functions in {
    "says yes to all": [lambda embed: embed(_text()).shape == _text().shape],
    "upside down": [lambda embed: not encoding_test(embed)],
    "a shuffle": [
        lambda embed: (
            not _added(embed, _text(1)).allclose(
                _added(embed, _text(1).flip(1)).flip(1), atol=1e-4
            )
        )
    ],
    "compared with the sines": [
        _asks(apart=_are_sines),
        _on_a_copy(_asks(apart=_are_sines)),
    ],
    "sentences not compared": [
        lambda embed: _apart(_added(embed, _text())[0]),
        _asks(sentences=slice(1)),
    ],
}.items():
    encodings.wrong(
        name,
        "True means: at each position the same vector is added in all sentences, "
        "whatever it is, and no two positions get the same one.",
        *functions,
    )

encodings.wrong(
    "refuses right ones",
    "Right ones fail, too. Perhaps a position is compared with itself: that distance "
    "is 0. If you compare exactly: (x + p) - x is p only up to rounding, so take "
    "torch.allclose with atol=1e-4.",
    lambda embed: False,
)
encodings.wrong(
    "allclose without atol",
    "(x + p) - x is p only up to rounding, 1e-6, and torch.allclose allows 1e-8 where "
    "p is near 0: give it atol=1e-4.",
    _asks(atol=1e-8),
    _asks(_text().sigmoid(), _text().sigmoid(), atol=1e-8),  # one length, too
    _on_a_copy(_asks(_text().sigmoid(), _text().sigmoid(), atol=1e-8)),
)
encodings.wrong(
    "tolerance too wide",
    "A wide tolerance hides small vectors and differences: try atol=1e-4.",
    _asks(atol=1.0),
    _asks(atol=0.3),
    _asks(atol=1e-2),
)
for name, tests in {
    "one sentence only": [_asks(_text(1), _text(1, 15) * 2)],
    "two sentences only": [
        _asks(sentences=slice(2)),
        _asks(_text(2), _text(1, 15) * 2),
    ],
    "one batch size": [_asks(short=_text(3, 15) * 2)],
    "zeros only": [_asks(_text() * 0, _text(2, 15) * 0)],
    "one text for all": [
        _asks(_text(1).repeat(3, 1, 1), _text(1)[:, :15].repeat(2, 1, 1)),
        _asks(_text() * 0 + 1, _text(2, 15) * 0 + 1),
    ],
    "the same words twice": [_asks(_text(), _text()[:, :15])],
    "one length only": [
        _asks(short=_text(2) * 2),
        _asks(_text(length=7), _text(2, 7) * 2),
        _asks(short=_text()),
        _asks(short=_text()[:1], sentences=slice(1)),
    ],
}.items():
    encodings.wrong(
        name,
        "Compare all sentences of two inputs with each other: three long ones, and one "
        "or two short ones, all of different random words.",
        *tests,
        *map(_on_a_copy, tests),
    )


for name, tests in {
    "positions not compared": [
        _asks(apart=lambda rows: True),
        lambda embed: torch.allclose(*_added(embed, _text(2)), atol=1e-4),
    ],
    "distant positions not compared": [
        _asks(_text(length=8), _text(2, 5) * 2),
        _asks(_text(length=LONGEST - 1)),
        _asks(apart=lambda rows: bool((rows[1:] - rows[:-1]).norm(dim=1).min() > 1e-2)),
        _asks(apart=lambda rows: bool((rows[1:] - rows[0]).norm(dim=1).min() > 1e-2)),
        _asks(apart=lambda rows: len(rows.unique(dim=0)) == LONGEST),  # not rounded
    ],
    "single features compared": [
        _asks(features=slice(1)),
        _asks(apart=lambda rows: _apart(rows[:, :1], 1e-4)),
    ],
    "directions compared": [_asks(apart=lambda rows: _apart(F.normalize(rows)))],
    "gap too wide": [
        _asks(apart=lambda rows: _apart(rows, 0.5)),
        _asks(apart=lambda rows: _apart(rows, 0.06)),
    ],
}.items():
    encodings.wrong(
        name,
        "Compare each of 40 positions with every other, by the distance of whole "
        "vectors, which is more than 0.05 if the encoding is right.",
        *tests,
    )

encodings.wrong(
    "distances by a matrix product",
    "torch.cdist uses a matrix product for more than 25 rows, which loses small "
    "distances between large vectors: write (a[:, None] - a).norm(dim=-1).",
    _asks(apart=lambda rows: _far(torch.cdist(rows, rows))),
)
encodings.wrong(
    "a number instead of a truth",
    "Return True or False: write bool(...) around your result.",
    lambda embed: int(encoding_test(embed)),
)


def _without_a_copy(embed):
    x, short = _text(), _text(2, 15) * 2
    added, less = embed(x) - x, embed(short) - short
    near = torch.allclose(less, added[:2, :15], atol=1e-4)
    return near and torch.allclose(added, added[:1], atol=1e-4) and _apart(added[0])


for name, test in {
    "x not looked at afterwards": _on_a_copy(encoding_test),
    "no copy made before": _without_a_copy,
}.items():
    why = "add_positions may edit x, which the caller still needs: compare with a copy."
    encodings.wrong(name, why, test)


# --- 4.4 The parts of a score -----------------------------------------------------


def score_parts(
    parts: Tensor, w_q: Tensor, b_q: Tensor, w_k: Tensor, b_k: Tensor
) -> Tensor:
    """The reference: (n + 1, n + 1, L, L), the last part of each axis is the bias."""
    q, k = _with_bias(parts @ w_q.mT, b_q), _with_bias(parts @ w_k.mT, b_k)
    return q[:, None] @ k.mT / len(w_q) ** 0.5


def _with_bias(projected, bias):
    return torch.cat([projected, bias.expand(1, *projected.shape[1:])])


def parts_trials(dtype):
    sizes = [(2, 5, 8, 3), (3, 4, 6, 4), (1, 6, 5, 2), (2, 1, 4, 4), (3, 3, 3, 3)]
    for at, (n, length, features, head_dim) in enumerate(sizes):
        trial = {
            "parts": randn(n, length, features, seed=10 * at, dtype=dtype),
            "w_q": randn(head_dim, features, seed=10 * at + 1, dtype=dtype),
            "b_q": randn(head_dim, seed=10 * at + 2, dtype=dtype),
            "w_k": randn(head_dim, features, seed=10 * at + 3, dtype=dtype),
            "b_k": randn(head_dim, seed=10 * at + 4, dtype=dtype),
        }
        yield trial
    parts = trial["parts"].transpose(0, 1).contiguous().transpose(0, 1)
    yield trial | {"parts": parts, "w_q": 30 * trial["w_q"], "b_q": 0 * trial["b_q"]}


score_terms = Exercise("4.4", "The parts of a score", score_parts, parts_trials)


def _terms(join=_with_bias, scale=lambda parts, w_q: len(w_q) ** 0.5):
    """Return the reference with a step replaced."""

    def answer(parts, w_q, b_q, w_k, b_k):
        q, k = join(parts @ w_q.mT, b_q), join(parts @ w_k.mT, b_k)
        return q[:, None] @ k.mT / scale(parts, w_q)

    return answer


for name, scales in {
    "no scale": [lambda parts, w_q: 1],
    "divided by head_dim": [lambda parts, w_q: len(w_q)],
    "scaled by the features": [lambda parts, w_q: parts.shape[-1] ** 0.5],
    "scaled by the number of parts": [
        lambda parts, w_q: len(parts) ** 0.5,
        lambda parts, w_q: (len(parts) + 1) ** 0.5,
    ],
    "root rounded": [lambda parts, w_q: math.isqrt(len(w_q))],
}.items():
    why = "Divide by √head_dim, once: by the root of the number of rows of w_q."
    score_terms.wrong(name, why, *[_terms(scale=scale) for scale in scales])

for name, joins in {
    "the bias in every part": [lambda q, bias: q + bias],
    "the bias in every part, and alone": [lambda q, bias: _with_bias(q + bias, bias)],
    "the bias shared out": [lambda q, bias: q + bias / len(q)],
    "no bias": [lambda q, bias: q],
    "zeros for the bias": [lambda q, bias: _with_bias(q, 0 * bias)],
    "the bias first": [lambda q, bias: _with_bias(q, bias).roll(1, 0)],
    "no part for the bias": [
        lambda q, bias: torch.cat([q[:1] + bias, q[1:]]),
        lambda q, bias: torch.cat([q[:-1], q[-1:] + bias]),
    ],
}.items():
    why = "The biases are a part of their own, the last one; the others have none."
    score_terms.wrong(name, why, *[_terms(join) for join in joins])


score_terms.wrong(
    "the bias not scaled",
    "What the biases contribute is divided by √head_dim, too: it is part of the score.",
    lambda p, w_q, b_q, *rest: score_parts(p, w_q, b_q * len(w_q) ** 0.5, *rest),
)
for name, functions in {
    "the query's map for the key": [
        lambda p, w_q, b_q, w_k, b_k: score_parts(p, w_q, b_q, w_q, b_q),
        lambda p, w_q, b_q, w_k, b_k: score_parts(p, w_q, b_q, w_k, b_q),
        lambda p, w_q, b_q, w_k, b_k: score_parts(p, w_q, b_q, w_q, b_k),
    ],
    "maps swapped": [lambda p, *maps: score_parts(p, *maps[2:], *maps[:2])],
    "maps not transposed": [
        lambda p, w_q, b_q, w_k, b_k: score_parts(p, w_q.mT, b_q, w_k.mT, b_k)
    ],
}.items():
    why = "w_q, b_q make the queries, w_k, b_k the keys; both are stored (out, in)."
    score_terms.wrong(name, why, *functions)


def _turned(scores, *which):
    """Return the scores with queries and keys exchanged in the terms of a bias."""
    scores = scores.clone()
    for of_bias in which:
        scores[of_bias] = scores[of_bias].mT.clone()
    return scores


def _then(change):
    return lambda *args: change(score_parts(*args))


KEY, QUERY = (slice(None), -1), (-1,)
for name, function in {
    "parts of query and key exchanged": lambda scores: scores.transpose(0, 1),
    "keys in rows": lambda scores: scores.mT,
    "axes folded in another order": lambda s: s.transpose(1, 2).reshape(s.shape),
    "the key's bias along the wrong axis": lambda scores: _turned(scores, KEY),
    "the query's bias along the wrong axis": lambda scores: _turned(scores, QUERY),
    "both biases along the wrong axis": lambda scores: _turned(scores, KEY, QUERY),
    "each part with itself only": lambda s: s.diagonal().permute(2, 0, 1),
    "softmax of every part": lambda scores: scores.softmax(dim=-1),
    "summed again": lambda scores: scores.sum((0, 1)),
}.items():
    score_terms.wrong(
        name,
        "Entry [i, j] holds the scores of query part i and key part j, a row for each "
        "query: q @ b_k is a number for each query, k @ b_q one for each key.",
        _then(function),
    )


EXERCISES = (sines, shifts, encodings, score_terms)
