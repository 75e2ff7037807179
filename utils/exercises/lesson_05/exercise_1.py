"""Exercise 5.1: ALiBi for any number of heads, and with a cache."""

import torch
from torch import Tensor

from utils.exercises.engine import Exercise
from utils.positions import alibi_slopes, relative_positions


def alibi(num_heads: int, queries: int, keys: int) -> Tensor:
    """The reference: minus slope times distance; the last query is at the last key."""
    ahead = relative_positions(queries, keys).clamp(max=0)
    return alibi_slopes(num_heads)[:, None, None] * ahead


def alibi_inputs(dtype):
    sizes = [(4, 5, 5), (6, 4, 4), (12, 3, 7), (3, 1, 9), (5, 6, 6), (8, 1, 1)]
    sizes += [(1, 4, 6), (7, 7, 7), (4, 4, 4), (20, 2, 5)]
    for num_heads, queries, keys in sizes if dtype == torch.float32 else ():
        yield {"num_heads": num_heads, "queries": queries, "keys": keys}


def _geometric(count: int) -> list[float]:
    return [2.0 ** (-8 * i / count) for i in range(1, count + 1)]


def _below(num_heads: int) -> int:
    return 2 ** (num_heads.bit_length() - 1)


def _with(slopes, queries, keys, ahead=None):
    ahead = relative_positions(queries, keys).clamp(max=0) if ahead is None else ahead
    return torch.tensor(slopes)[:, None, None] * ahead


def alibi_paper(num_heads, queries, keys):
    """That is the formula of the paper's text; the authors' code takes the slopes of
    the next lower power of two first, then every other one of its double."""
    return _with(_geometric(num_heads), queries, keys)


def alibi_sorted(num_heads, queries, keys):
    """The slopes are not sorted: those of the lower power of two come first."""
    slopes = alibi_slopes(num_heads).sort(descending=True).values.tolist()
    return _with(slopes, queries, keys)


def alibi_not_every_other(num_heads, queries, keys):
    """Of the double take every other slope: the first, the third, the fifth, ..."""
    power = _below(num_heads)
    slopes = _geometric(power) + _geometric(2 * power)[: num_heads - power]
    return _with(slopes, queries, keys)


def alibi_second_of_each(num_heads, queries, keys):
    """The second, fourth, ... slope of the double are those that are there already."""
    power = _below(num_heads)
    slopes = _geometric(power) + _geometric(2 * power)[1::2]
    return _with(slopes[:num_heads], queries, keys)


def alibi_higher_power(num_heads, queries, keys):
    """These are the first slopes of the next higher power of two."""
    power = 2 ** (num_heads - 1).bit_length()
    return _with(_geometric(power)[:num_heads], queries, keys)


def alibi_halving(num_heads, queries, keys):
    """Slopes that halve from head to head are those of eight heads."""
    return _with([2.0**-i for i in range(1, num_heads + 1)], queries, keys)


def alibi_from_one(num_heads, queries, keys):
    """The first slope is the ratio 2^(-8/n), not 1."""
    power = _below(num_heads)

    def from_one(n):
        return [2.0 ** (-8 * i / n) for i in range(n)]

    slopes = from_one(power) + from_one(2 * power)[::2]
    return _with(slopes[:num_heads], queries, keys)


def alibi_rewards(num_heads, queries, keys):
    """The farther, the better: the bias must fall with the distance."""
    return -alibi(num_heads, queries, keys)


def alibi_queries_first(num_heads, queries, keys):
    """The queries stand at the END of the keys: the last one has distance 0 to the last
    key, however many keys came before."""
    ahead = torch.arange(keys) - torch.arange(queries)[:, None]
    return _with(alibi_slopes(num_heads).tolist(), queries, keys, ahead.clamp(max=0))


def alibi_symmetric(num_heads, queries, keys):
    """A key in the future gets 0 here; the causal mask hides it."""
    ahead = -relative_positions(queries, keys).abs()
    return _with(alibi_slopes(num_heads).tolist(), queries, keys, ahead)


def alibi_not_clamped(num_heads, queries, keys):
    ahead = relative_positions(queries, keys)
    return _with(alibi_slopes(num_heads).tolist(), queries, keys, ahead)


def alibi_masked(num_heads, queries, keys):
    """To hide the future is the causal mask's work; leave 0 there."""
    hidden = relative_positions(queries, keys) > 0
    return alibi(num_heads, queries, keys).masked_fill(hidden, -torch.inf)


def alibi_from_distance_1(num_heads, queries, keys):
    """A token is 0 away from itself. (The softmax would not notice; add nothing.)"""
    ahead = relative_positions(queries, keys).clamp(max=0) - 1
    return _with(alibi_slopes(num_heads).tolist(), queries, keys, ahead)


def alibi_keys_backwards(num_heads, queries, keys):
    """The nearest key is the last one, not the first."""
    return alibi(num_heads, queries, keys).flip(-1)


def alibi_square(num_heads, queries, keys):
    """There may be more keys than queries: a column for each key, a row per query."""
    return alibi(num_heads, queries, queries)


def alibi_all_keys(num_heads, queries, keys):
    return alibi(num_heads, keys, keys)


def alibi_of_the_page(num_heads, queries, keys):
    return alibi_paper(num_heads, queries, queries)


def alibi_one_slope(num_heads, queries, keys):
    """Every head has a slope of its own."""
    ahead = relative_positions(queries, keys).clamp(max=0)
    return (ahead * alibi_slopes(num_heads)[0]).expand(num_heads, -1, -1)


EXERCISE = Exercise(
    "5.1",
    "ALiBi for any number of heads",
    alibi,
    alibi_inputs,
    {
        "slopes of the paper's text": alibi_paper,
        "slopes sorted": alibi_sorted,
        "the first slopes of the double": alibi_not_every_other,
        "slopes taken twice": alibi_second_of_each,
        "slopes of the higher power of two": alibi_higher_power,
        "slopes that always halve": alibi_halving,
        "slopes from 1": alibi_from_one,
        "distance rewarded": alibi_rewards,
        "queries at the start of the keys": alibi_queries_first,
        "a bias in the future": (alibi_symmetric, alibi_not_clamped),
        "-inf in the future": alibi_masked,
        "distances from 1": alibi_from_distance_1,
        "keys backwards": alibi_keys_backwards,
        "as many queries as keys": (alibi_square, alibi_all_keys, alibi_of_the_page),
        "one slope for all": alibi_one_slope,
    },
    gradients=False,
)
