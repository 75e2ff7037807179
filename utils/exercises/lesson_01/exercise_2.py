"""Exercise 1.2: attention at a temperature."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.exercises.engine import Exercise, randn
from utils.exercises.lesson_01.exercise_1 import (
    softmax_all_overflowing,
    softmax_argmax,
    softmax_not_normalised,
    softmax_one_sum,
    softmax_overflowing,
    softmax_without_dim,
    softmax_without_exp,
)


def attention(
    query: Tensor, key: Tensor, value: Tensor, temperature: float = 1.0
) -> Tensor:
    """The reference: softmax(query keyᵀ / (√d_k T)) value, for any leading axes."""
    return (score(query, key) / temperature).softmax(dim=-1) @ value


def score(query, key):
    return query @ key.mT / math.sqrt(query.shape[-1])


def qkv(leading, queries, keys, dim, value_dim, seed, dtype):
    """Return a trial. dim: a square, so that its root is exact in every precision."""
    return {
        "query": randn(*leading, queries, dim, seed=seed, dtype=dtype),
        "key": randn(*leading, keys, dim, seed=seed + 10, dtype=dtype),
        "value": randn(*leading, keys, value_dim, seed=seed + 20, dtype=dtype),
    }


def transposed(trial):
    """The trial with its first two axes swapped: every tensor is strided."""
    return {name: arg.transpose(0, 1) for name, arg in trial.items()}


def attention_trials(dtype):
    small = qkv((), 3, 3, 4, 4, 0, dtype)
    yield small  # without a temperature it is 1
    yield qkv((2,), 4, 6, 9, 5, 1, dtype) | {"temperature": 0.5}
    yield qkv((2, 3), 5, 5, 16, 8, 2, dtype) | {"temperature": 3.0}
    yield small | {"query": small["query"] * 300}  # exp of such scores overflows
    yield qkv((1,), 1, 3, 4, 4, 3, dtype)  # one query
    yield qkv((2,), 3, 1, 4, 2, 4, dtype)  # one key
    strided = transposed(qkv((3, 2), 4, 5, 16, 6, 5, dtype))
    yield strided | {"temperature": 0.25}
    silent = qkv((), 3, 4, 4, 4, 6, dtype)
    silent["query"][1] = 0.0  # a query that asks for nothing: equal shares
    yield silent | {"query": silent["query"] * 3}
    yield qkv((2,), 4, 6, 9, 5, 7, dtype)  # a shape seen before
    if dtype == torch.float32:  # no square: the whole part of the root is no root
        yield qkv((), 3, 4, 8, 5, 8, dtype)


def at_any_temperature(mistake):
    """Return the mistake with its scores divided by a temperature, as they should."""

    @functools.wraps(mistake)
    def warm(query, key, value, temperature=1.0):
        return mistake(query / temperature, key, value)

    return warm


def scaled_by(query, key, value, factor=None, dim=-1):
    factor = query.shape[-1] ** -0.5 if factor is None else factor
    return (query @ key.mT * factor).softmax(dim=dim) @ value


@at_any_temperature
def attention_no_scale(query, key, value):
    """The scores are not divided by √d_k."""
    return scaled_by(query, key, value, 1.0)


@at_any_temperature
def attention_d_k(query, key, value):
    """The scores are divided by d_k: too much, all weights become alike."""
    return scaled_by(query, key, value, 1 / query.shape[-1])


@at_any_temperature
def attention_multiplied(query, key, value):
    """The scores are multiplied where they should be divided."""
    return scaled_by(query, key, value, query.shape[-1] ** 0.5)


@at_any_temperature
def attention_number_of_keys(query, key, value):
    """The scale depends on the features, not on the length of the text."""
    return scaled_by(query, key, value, key.shape[-2] ** -0.5)


@at_any_temperature
def attention_len(query, key, value):
    """len counts the first axis; d_k is the last, query.shape[-1]."""
    return scaled_by(query, key, value, len(query) ** -0.5)


@at_any_temperature
def attention_len_of_key(query, key, value):
    return scaled_by(query, key, value, len(key) ** -0.5)


@at_any_temperature
def attention_second_axis(query, key, value):
    """shape[1] is d_k only where nothing stands in front: write query.shape[-1]."""
    return scaled_by(query, key, value, query.shape[1] ** -0.5)


@at_any_temperature
def attention_value_size(query, key, value):
    """The scale depends on the features of query and key, not on those of value."""
    return scaled_by(query, key, value, value.shape[-1] ** -0.5)


@at_any_temperature
def attention_wrong_axis(query, key, value):
    """Each query (a row) shares out 1 among the keys: softmax(dim=-1)."""
    return scaled_by(query, key, value, dim=-2)


@at_any_temperature
def attention_first_axis(query, key, value):
    return scaled_by(query, key, value, dim=0)


@at_any_temperature
def attention_axis_from_the_front(query, key, value):
    return scaled_by(query, key, value, dim=1)


@at_any_temperature
def attention_without_dim(query, key, value):
    """Without dim, F.softmax chooses an axis by their number: write dim=-1."""
    return softmax_without_dim(score(query, key)) @ value


@at_any_temperature
def attention_all_axes_turned(query, key, value):
    """key.mT swaps the last two axes, however many stand in front of them."""
    turned = key.permute(*reversed(range(key.dim())))  # what key.T does
    return _softmax_read(query @ turned, query, value)


@at_any_temperature
def attention_first_axes_turned(query, key, value):
    return _softmax_read(query @ key.transpose(0, 1), query, value)


@at_any_temperature
def attention_second_axes_turned(query, key, value):
    return _softmax_read(query @ key.transpose(1, 2), query, value)


def _softmax_read(products, query, value):
    return (products / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


@at_any_temperature
def attention_overflowing(query, key, value):
    """exp of a large score is inf: use softmax, or subtract each row's maximum."""
    return softmax_overflowing(score(query, key)) @ value


@at_any_temperature
def attention_not_normalised(query, key, value):
    """The weights of a query must sum to 1: divide by the sum of the row."""
    return softmax_not_normalised(score(query, key)) @ value


@at_any_temperature
def attention_one_sum(query, key, value):
    """exps.sum() adds up every row: write .sum(dim=-1, keepdim=True)."""
    return softmax_one_sum(score(query, key)) @ value


@at_any_temperature
def attention_one_sum_overflowing(query, key, value):
    return softmax_all_overflowing(score(query, key)) @ value


@at_any_temperature
def attention_reads_keys(query, key, value):
    """Keys are compared; what is read, and mixed, are the values."""
    return scaled_by(query, key, key)


@at_any_temperature
def attention_roles_swapped(query, key, value):
    """Rows are queries: query @ key.mT, not key @ query.mT."""
    return score(key, query).softmax(dim=-1) @ value


@at_any_temperature
def attention_weights(query, key, value):
    """Multiply the weights by the values: return what is read."""
    return score(query, key).softmax(dim=-1)


@at_any_temperature
def attention_hard(query, key, value):
    """The best key takes everything, and no gradient reaches the scores."""
    return softmax_argmax(query @ key.mT) @ value


@at_any_temperature
def attention_scale_after(query, key, value):
    """The weights no longer sum to 1: scale the scores."""
    return (query @ key.mT).softmax(dim=-1) / query.shape[-1] ** 0.5 @ value


@at_any_temperature
def attention_without_softmax(query, key, value):
    """Bare scores may be negative and do not sum to 1."""
    return score(query, key) @ value


@at_any_temperature
def attention_without_exp(query, key, value):
    """Scores may be negative or sum to 0: a share needs softmax."""
    return softmax_without_exp(score(query, key)) @ value


@at_any_temperature
def attention_return_value(query, key, value):
    """Nothing is attended to: every query must mix all values."""
    return value


@at_any_temperature
def attention_mean(query, key, value):
    """Every key gets the same weight, whatever the query asks."""
    return scaled_by(query, key, value, 0.0)


def attention_in_place(query, key, value, temperature=1.0):
    """/= writes into the caller's tensor; build a new one."""
    query /= query.shape[-1] ** 0.5
    return scaled_by(query, key, value, 1 / temperature)


@at_any_temperature
def attention_fixed_number(query, key, value):
    """d_k is not always 4: read it from the query, query.shape[-1]."""
    return scaled_by(query, key, value, 0.5)


@at_any_temperature
def attention_weights_turned(query, key, value):
    """A row of the weights belongs to a query: weights @ value, nothing turned."""
    return score(query, key).softmax(dim=-1).mT @ value


@at_any_temperature
def attention_number_of_queries(query, key, value):
    return scaled_by(query, key, value, query.shape[-2] ** -0.5)


@at_any_temperature
def attention_half(query, key, value):
    """** binds tighter than /: d ** 1 / 2 is d / 2. Write d ** 0.5."""
    return scaled_by(query, key, value, 2 / query.shape[-1])


@at_any_temperature
def attention_minus_half(query, key, value):  # d ** -1 / 2
    return scaled_by(query, key, value, 0.5 / query.shape[-1])


@at_any_temperature
def attention_key_not_turned(query, key, value):
    """query @ key pairs features with words: swap the last two axes of key, key.mT."""
    return _softmax_read(query @ key, query, value)


@at_any_temperature
def attention_key_reshaped(query, key, value):
    """reshape and view deal the numbers out anew; key.mT swaps the axes."""
    turned = key.reshape(*key.shape[:-2], key.shape[-1], key.shape[-2])
    return _softmax_read(query @ turned, query, value)


@at_any_temperature
def attention_causal(query, key, value):
    """Nothing was to be hidden: every query reads every key."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@at_any_temperature
def attention_scores(query, key, value):
    return score(query, key)


@at_any_temperature
def attention_key_and_value_swapped(query, key, value):
    """The query is compared with the keys, and what is read are the values."""
    return score(query, value).softmax(dim=-1) @ key


@at_any_temperature
def attention_softmax_twice(query, key, value):
    """One softmax is enough: a second one flattens the weights."""
    return score(query, key).softmax(dim=-1).softmax(dim=-1) @ value


def attention_without_temperature(query, key, value, temperature=1.0):
    """The temperature is accepted, and changes nothing: divide the scores by it."""
    return scaled_by(query, key, value)


def attention_times_temperature(query, key, value, temperature=1.0):
    """Multiplied by T the scores grow, and the weights get colder: divide by it."""
    return scaled_by(query * temperature, key, value)


def attention_temperature_in_the_root(query, key, value, temperature=1.0):
    """The root belongs to d_k alone: √(d_k · T) is too small a change."""
    return scaled_by(query / temperature**0.5, key, value)


def attention_temperature_added(query, key, value, temperature=1.0):
    """Divide by √d_k and by T, not by their sum."""
    return scaled_by(query, key, value, 1 / (query.shape[-1] ** 0.5 + temperature))


def attention_temperature_late(query, key, value, temperature=1.0):
    """After the softmax T changes all weights alike: divide the scores by it."""
    return scaled_by(query, key, value) / temperature


EXERCISE = Exercise(
    "1.2",
    "Attention at a temperature",
    attention,
    attention_trials,
    {
        "no scale": attention_no_scale,
        "d_k instead of √d_k": attention_d_k,
        "multiplied by √d_k": attention_multiplied,
        "√(number of words) instead of √d_k": (
            attention_number_of_keys,
            attention_number_of_queries,
        ),
        "** 1 / 2 is not a root": (attention_half, attention_minus_half),
        "key not transposed": attention_key_not_turned,
        "key reshaped, not transposed": attention_key_reshaped,
        "a causal mask": attention_causal,
        "key and value swapped": attention_key_and_value_swapped,
        "softmax twice": attention_softmax_twice,
        "temperature forgotten": attention_without_temperature,
        "multiplied by the temperature": attention_times_temperature,
        "the temperature under the root": attention_temperature_in_the_root,
        "the temperature added": attention_temperature_added,
        "temperature after the softmax": attention_temperature_late,
        "a fixed number instead of √d_k": attention_fixed_number,
        "weights turned round": attention_weights_turned,
        "softmax over the wrong axis": (
            attention_wrong_axis,
            attention_first_axis,
            attention_axis_from_the_front,
        ),
        "softmax without dim": attention_without_dim,
        "len() as d_k": (attention_len, attention_len_of_key),
        "query.shape[1] as d_k": attention_second_axis,
        "√d_v instead of √d_k": attention_value_size,
        "other axes of key swapped": (
            attention_all_axes_turned,
            attention_first_axes_turned,
            attention_second_axes_turned,
        ),
        "softmax that overflows": attention_overflowing,
        "no division by the sum": attention_not_normalised,
        "one sum for all rows": (attention_one_sum, attention_one_sum_overflowing),
        "keys read instead of values": attention_reads_keys,
        "query and key swapped": attention_roles_swapped,
        "weights returned": (attention_weights, attention_scores),
        "argmax instead of softmax": attention_hard,
        "scale after softmax": attention_scale_after,
        "no softmax": attention_without_softmax,
        "no exponential": attention_without_exp,
        "return value": attention_return_value,
        "mean of the values": attention_mean,
        "in-place edit of the query": attention_in_place,
    },
)
