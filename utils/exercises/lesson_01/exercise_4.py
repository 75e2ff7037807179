"""Exercise 1.4: the newest words of a longer text."""

import math

import torch
from torch import Tensor

from utils.exercises.engine import Exercise
from utils.exercises.lesson_01.exercise_1 import softmax_not_normalised
from utils.exercises.lesson_01.exercise_2 import qkv, scaled_by, score, transposed
from utils.exercises.lesson_01.exercise_3 import (
    every_score_zero,
    hide,
    masked_attention,
    past_mask,
    tall_last_key,
)
from utils.exercises.lesson_01.mending import additive


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The reference: the last query reads every key, the one before it one less."""
    return masked_attention(
        query, key, value, past_mask(query.shape[-2], key.shape[-2])
    )


def causal_trials(dtype):
    yield qkv((), 4, 4, 16, 6, 0, dtype)
    yield qkv((2,), 3, 5, 9, 6, 1, dtype)
    yield every_score_zero(dtype)
    yield tall_last_key(dtype)
    large = qkv((), 3, 4, 16, 6, 31, dtype)  # first query: below -37,000
    yield large | {name: large[name] * 170 for name in ("query", "key")}
    yield qkv((2, 3), 1, 5, 4, 4, 3, dtype)  # the newest word alone
    yield qkv((), 1, 1, 4, 4, 4, dtype)
    yield transposed(qkv((3, 2), 4, 6, 16, 6, 5, dtype))
    yield qkv((2,), 3, 5, 9, 6, 6, dtype)  # a shape seen before
    yield qkv((), 2, 20, 4, 4, 8, dtype)  # long


def causal(query, key, value, mask, hidden=-math.inf):
    return hide(query, key, mask, hidden).softmax(dim=-1) @ value


def _ones(query, key):
    return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)


def _offset(query, key):
    return key.shape[-2] - query.shape[-2]


def causal_by_scores(query, key, value):
    """A future score that is exactly 0 is not hidden: build it from ones."""
    future = score(query, key).triu(_offset(query, key) + 1).bool()
    return causal(query, key, value, ~future)


def causal_by_scores_square(query, key, value):
    return causal(query, key, value, ~score(query, key).triu(1).bool())


def causal_by_zero_scores(query, key, value):
    past = score(query, key).tril(_offset(query, key))
    return past.masked_fill(past == 0, -math.inf).softmax(dim=-1) @ value


def causal_upper_left(query, key, value):
    """With more keys than queries the last query must see all keys: tril(S - L)."""
    return causal(query, key, value, _ones(query, key).tril())


def causal_offset_turned(query, key, value):
    """tril(L - S) hides more the more keys there are: it is S - L."""
    return causal(query, key, value, _ones(query, key).tril(-_offset(query, key)))


def causal_offset_turned_big(query, key, value):
    mask = _ones(query, key).tril(-_offset(query, key))
    return causal(query, key, value, mask, -1e9)


def causal_offset_turned_guarded(query, key, value):
    mask = _ones(query, key).tril(-_offset(query, key))
    return masked_attention(query, key, value, mask)


def causal_square(query, key, value):
    """A mask of (L, L) or (S, S) fits only where there are as many keys as queries."""
    mask = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).tril()
    return causal(query, key, value, mask)


def causal_square_of_keys(query, key, value):
    mask = torch.ones(key.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    return causal(query, key, value, mask)


def causal_last_keys(query, key, value):
    """The newest words read all older ones, too, not the last L keys alone."""
    newest = slice(-query.shape[-2], None)
    return causal_attention(query, key[..., newest, :], value[..., newest, :])


def causal_inverted(query, key, value):
    """The queries read only what comes later."""
    mask = ~_ones(query, key).tril(_offset(query, key))
    return masked_attention(query, key, value, mask)


def causal_inverted_inf(query, key, value):
    return causal(query, key, value, ~_ones(query, key).tril(_offset(query, key)))


def causal_inverted_big(query, key, value):
    mask = ~_ones(query, key).tril(_offset(query, key))
    return causal(query, key, value, mask, -1e9)


def causal_future(query, key, value):
    """triu where tril is meant: the past is hidden, the future read."""
    return causal(query, key, value, _ones(query, key).triu(_offset(query, key)))


def causal_future_square(query, key, value):
    return causal(query, key, value, _ones(query, key).triu())


def causal_without_self(query, key, value):
    """The diagonal belongs to what may be read."""
    mask = _ones(query, key).tril(_offset(query, key) - 1)
    return masked_attention(query, key, value, mask)


def causal_without_self_inf(query, key, value):
    return causal(query, key, value, _ones(query, key).tril(_offset(query, key) - 1))


def causal_without_self_big(query, key, value):
    mask = _ones(query, key).tril(_offset(query, key) - 1)
    return causal(query, key, value, mask, -1e9)


def causal_sees_next(query, key, value):
    """tril(S - L + 1) lets every query read the token after it."""
    return causal(query, key, value, _ones(query, key).tril(_offset(query, key) + 1))


def causal_after_softmax(query, key, value):
    """The future has already taken its share; the rows no longer sum to 1."""
    return score(query, key).softmax(dim=-1).tril(_offset(query, key)) @ value


def causal_renormalised(query, key, value):
    """A tall score of the future rounds the past to 0, and nothing is left to share
    out: hide before the softmax."""
    weights = score(query, key).softmax(dim=-1).tril(_offset(query, key))
    return weights / weights.sum(dim=-1, keepdim=True) @ value


def causal_renormalised_with_epsilon(query, key, value):
    weights = score(query, key).softmax(dim=-1).tril(_offset(query, key))
    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-9) @ value


def causal_exps(query, key, value):
    exps = score(query, key).exp().tril(_offset(query, key))
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def causal_safe_exps(query, key, value):
    exps = softmax_not_normalised(score(query, key)).tril(_offset(query, key))
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def causal_added_as_ones(query, key, value):
    """Adding 1, or True, hides nothing: add -inf to the future."""
    past = _ones(query, key).tril(_offset(query, key))
    return (score(query, key) + past.to(query.dtype)).softmax(dim=-1) @ value


def causal_future_added(query, key, value):
    future = ~past_mask(query.shape[-2], key.shape[-2])
    return (score(query, key) + future).softmax(dim=-1) @ value


def causal_zero_times_inf(query, key, value):
    """0 times -inf is NaN: build the mask with masked_fill or torch.where."""
    blocked = (~past_mask(query.shape[-2], key.shape[-2])).to(query.dtype) * -math.inf
    return (score(query, key) + blocked).softmax(dim=-1) @ value


def causal_zeroed_scores(query, key, value):
    """exp(0) is 1: hidden scores must be -inf."""
    return score(query, key).tril(_offset(query, key)).softmax(dim=-1) @ value


def causal_zeroed_scores_square(query, key, value):
    return score(query, key).tril().softmax(dim=-1) @ value


def causal_small_number(query, key, value):
    """A number hides nothing from scores that are lower still, be it -100 or -10,000:
    fill with -inf."""
    return causal(query, key, value, past_mask(query.shape[-2], key.shape[-2]), -1e4)


def causal_small_number_added(query, key, value):
    block = additive(query, past_mask(query.shape[-2], key.shape[-2]), -1e4)
    return (score(query, key) + block).softmax(dim=-1) @ value


def causal_by_index(query, key, value):
    """scores[~mask] does not broadcast: the axes of the mask must be the first axes of
    the scores. masked_fill(~mask, -inf) does, and leaves the old scores alone."""
    scores = score(query, key)
    scores[~past_mask(query.shape[-2], key.shape[-2])] = -math.inf
    return scores.softmax(dim=-1) @ value


def causal_by_index_square(query, key, value):
    scores = score(query, key)
    scores[~_ones(query, key).tril()] = -math.inf
    return scores.softmax(dim=-1) @ value


def causal_first_axes(query, key, value):
    """len and shape[0], shape[1] count from the front; L and S are shape[-2]."""
    mask = torch.ones(len(query), len(key), dtype=torch.bool)
    return causal(query, key, value, mask.tril(len(key) - len(query)))


def causal_second_axes(query, key, value):
    queries, keys = query.shape[1], key.shape[1]
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return causal(query, key, value, mask)


def causal_no_scale(query, key, value):
    """The scores are not divided by √d_k."""
    return causal_attention(query * query.shape[-1] ** 0.5, key, value)


def causal_no_mask(query, key, value):
    """Every query reads the future."""
    return scaled_by(query, key, value)


EXERCISE = Exercise(
    "1.4",
    "The newest words of a longer text",
    causal_attention,
    causal_trials,
    {
        "zero scores used as a mask": (
            causal_by_scores,
            causal_by_scores_square,
            causal_by_zero_scores,
        ),
        "upper-left alignment": causal_upper_left,
        "the offset turned round": (
            causal_offset_turned,
            causal_offset_turned_big,
            causal_offset_turned_guarded,
        ),
        "only the last L keys read": causal_last_keys,
        "a square mask": (causal_square, causal_square_of_keys),
        "inverted mask": (
            causal_inverted,
            causal_inverted_inf,
            causal_inverted_big,
        ),
        "the future instead of the past": (causal_future, causal_future_square),
        "a token may not read itself": (
            causal_without_self,
            causal_without_self_inf,
            causal_without_self_big,
        ),
        "the next token is visible": causal_sees_next,
        "mask after softmax": causal_after_softmax,
        "renormalised after the softmax": (
            causal_renormalised,
            causal_renormalised_with_epsilon,
            causal_exps,
            causal_safe_exps,
        ),
        "mask added as ones": (causal_added_as_ones, causal_future_added),
        "0 times -inf": causal_zero_times_inf,
        "a fill that is not low enough": (
            causal_small_number,
            causal_small_number_added,
        ),
        "scores indexed with the mask": (causal_by_index, causal_by_index_square),
        "lengths counted from the front": (causal_first_axes, causal_second_axes),
        "no scale": causal_no_scale,
        "future scores set to 0": (
            causal_zeroed_scores,
            causal_zeroed_scores_square,
        ),
        "no mask": causal_no_mask,
    },
)
