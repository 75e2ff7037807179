"""Exercise 1.3: attention under a mask."""

import math

import torch
from torch import Tensor

from utils.exercises.engine import WITHOUT_NAN, Exercise, randn
from utils.exercises.lesson_01.exercise_1 import softmax_not_normalised
from utils.exercises.lesson_01.exercise_2 import qkv, scaled_by, score, transposed


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The reference: True = may be read; a query with nothing to read gets zeros."""
    empty = ~mask.any(dim=-1, keepdim=True)
    scores = hide(query, key, mask).masked_fill(empty, 0.0)
    return scores.softmax(dim=-1).masked_fill(empty, 0.0) @ value


def masked_trials(dtype):
    yield qkv((), 3, 3, 4, 4, 0, dtype) | {"mask": past_mask(3, 3)}
    some = randn(4, 6, seed=3, dtype=torch.float64) > -0.3
    some[0], some[:, 0] = True, True
    yield qkv((2,), 4, 6, 9, 5, 1, dtype) | {"mask": some}
    nothing = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    nothing[0, :, 2] = False  # the third query of the first sentence may read nothing
    nothing[1, :, :, 3:] = False
    yield qkv((2, 3), 5, 5, 16, 8, 2, dtype) | {"mask": nothing}
    yield every_score_zero(dtype) | {"mask": past_mask(4, 4)}
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[:3, -1] = False
    yield tall_last_key(dtype) | {"mask": mask}
    yield _two_lowest(dtype, 3e4)
    if dtype == torch.float64:  # single precision would round the gradients visibly
        yield _two_lowest(dtype, 3e10)
    lengths = torch.arange(6) < torch.tensor([4, 0])[:, None, None]  # (2, 1, 6)
    yield qkv((2,), 3, 6, 4, 4, 7, dtype) | {"mask": lengths}
    rows = torch.tensor([[True], [False], [True], [True]])  # (4, 1): all keys or none
    yield qkv((), 4, 6, 4, 4, 8, dtype) | {"mask": rows}
    one = torch.tensor([[False, True, True]])
    yield qkv((2,), 1, 3, 4, 4, 9, dtype) | {"mask": one}  # one query
    yield transposed(qkv((3, 2), 4, 5, 16, 6, 5, dtype)) | {"mask": past_mask(4, 5)}
    yield qkv((), 3, 3, 4, 4, 6, dtype) | {
        "mask": past_mask(3, 3)
    }  # a shape seen before


def past_mask(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def every_score_zero(dtype):
    return qkv((), 4, 4, 9, 6, 5, dtype) | {"query": torch.zeros(4, 9, dtype=dtype)}


def tall_last_key(dtype):
    """Four words; the last key has a score of 200 with every query."""
    trial = qkv((), 4, 4, 4, 4, 4, dtype)
    trial["query"][:, 0] = 1.0
    trial["key"][-1] = torch.tensor([400.0, 0.0, 0.0, 0.0], dtype=dtype)
    return trial


def _two_lowest(dtype, size):
    """Scores of about `size`, of which only the two lowest may be read."""
    trial = qkv((), 3, 5, 4, 4, 6, dtype)
    for name in ("query", "key"):  # in equal parts: rounding would tell answers apart
        trial[name] = trial[name] * size**0.5
    scores = trial["query"].double() @ trial["key"].double().mT
    return trial | {"mask": scores <= scores.sort(dim=-1).values[:, 1:2]}


def hide(query, key, mask, hidden=-math.inf):
    return score(query, key).masked_fill(~mask, hidden)


def additive(query, mask, hidden=-math.inf):
    """The mask as a float to add: 0 where True, `hidden` elsewhere."""
    zeros = torch.zeros(mask.shape, dtype=query.dtype)
    return zeros.masked_fill(~mask, hidden)


def masked_no_guard(query, key, value, mask):
    """A query with nothing to read becomes NaN; it should get zeros."""
    return hide(query, key, mask).softmax(dim=-1) @ value


def masked_added_no_guard(query, key, value, mask):
    return (score(query, key) + additive(query, mask)).softmax(dim=-1) @ value


def masked_big_number(query, key, value, mask):
    """That query averages all it must not see; it should get zeros."""
    return hide(query, key, mask, -1e9).softmax(dim=-1) @ value


def masked_big_number_added(query, key, value, mask):
    return (score(query, key) + additive(query, mask, -1e9)).softmax(dim=-1) @ value


def masked_lowest_number(query, key, value, mask):
    lowest = torch.finfo(query.dtype).min
    return hide(query, key, mask, lowest).softmax(dim=-1) @ value


def masked_small_number(query, key, value, mask):
    """A number hides nothing from scores that are lower still, be it -100 or -1e9:
    fill with -inf."""
    return hide(query, key, mask, -1e4).softmax(dim=-1) @ value


def masked_small_number_added(query, key, value, mask):
    return (score(query, key) + additive(query, mask, -1e4)).softmax(dim=-1) @ value


def masked_small_number_guarded(query, key, value, mask):
    weights = hide(query, key, mask, -1e4).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True) @ value


def masked_small_number_times_mask(query, key, value, mask):
    return hide(query, key, mask, -1e4).softmax(dim=-1) * mask @ value


def masked_small_number_added_guarded(query, key, value, mask):
    weights = (score(query, key) + additive(query, mask, -1e4)).softmax(dim=-1)
    return weights * _any(mask) @ value


def masked_big_number_guarded(query, key, value, mask):
    weights = hide(query, key, mask, -1e9).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True) @ value


def masked_big_number_times_mask(query, key, value, mask):
    return hide(query, key, mask, -1e9).softmax(dim=-1) * mask @ value


def masked_big_number_renormalised(query, key, value, mask):
    weights = hide(query, key, mask, -1e9).softmax(dim=-1) * mask
    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-9) @ value


def masked_inverted(query, key, value, mask):
    """True says what MAY be read."""
    return masked_attention(query, key, value, ~mask)


def masked_inverted_inf(query, key, value, mask):
    return masked_no_guard(query, key, value, ~mask)


def masked_inverted_big(query, key, value, mask):
    return masked_big_number(query, key, value, ~mask)


def masked_inverted_added(query, key, value, mask):
    return masked_added_no_guard(query, key, value, ~mask)


def masked_inverted_after(query, key, value, mask):
    return masked_after_softmax(query, key, value, ~mask)


def _hide_then_zero(query, key, value, hidden, zeroed):
    """Hide some keys, and set the weights of some queries to 0."""
    scores = score(query, key).masked_fill(hidden, -math.inf)
    return scores.softmax(dim=-1).masked_fill(zeroed, 0.0) @ value


def _any(mask):
    return mask.any(dim=-1, keepdim=True)


def masked_inverted_guarded(query, key, value, mask):
    return _hide_then_zero(query, key, value, mask & _any(mask), ~_any(mask))


def masked_inverted_or_empty(query, key, value, mask):
    return _hide_then_zero(query, key, value, mask | ~_any(mask), ~_any(mask))


def masked_not_emptied(query, key, value, mask):
    """A query with nothing to read now reads every key: set its weights to 0, too."""
    return hide(query, key, mask | ~_any(mask)).softmax(dim=-1) @ value


def masked_all(query, key, value, mask):
    """mask.all says which queries may read EVERY key; ask which may read ANY."""
    every = mask.all(dim=-1, keepdim=True)
    return _hide_then_zero(query, key, value, ~mask & every, ~every)


def masked_guard_turned(query, key, value, mask):
    """The rows that may read are emptied, or hidden, not those that may not."""
    return _hide_then_zero(query, key, value, ~mask & _any(mask), _any(mask))


def masked_guard_turned_and(query, key, value, mask):
    return _hide_then_zero(query, key, value, ~mask & ~_any(mask), ~_any(mask))


def masked_after_softmax(query, key, value, mask):
    """The hidden keys have already taken their share; rows no longer sum to 1."""
    return (score(query, key).softmax(dim=-1) * mask) @ value


def masked_renormalised(query, key, value, mask):
    """A tall hidden score rounds all others to 0, and nothing is left to share out:
    hide before the softmax."""
    weights = score(query, key).softmax(dim=-1) * mask
    return weights / weights.sum(dim=-1, keepdim=True) @ value


def masked_renormalised_with_epsilon(query, key, value, mask):
    weights = score(query, key).softmax(dim=-1) * mask
    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-9) @ value


def masked_renormalised_clamped(query, key, value, mask):
    weights = score(query, key).softmax(dim=-1) * mask
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-9) @ value


def masked_renormalised_nan_to_num(query, key, value, mask):
    weights = score(query, key).softmax(dim=-1) * mask
    return (weights / weights.sum(dim=-1, keepdim=True)).nan_to_num() @ value


def masked_renormalised_guarded(query, key, value, mask):
    weights = score(query, key).softmax(dim=-1) * mask
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(~_any(mask), 1.0) @ value


def masked_renormalised_without_0(query, key, value, mask):
    weights = score(query, key).softmax(dim=-1) * mask
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0) @ value


def masked_exps(query, key, value, mask):
    exps = score(query, key).exp() * mask
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def masked_exps_with_epsilon(query, key, value, mask):
    exps = score(query, key).exp() * mask
    return exps / (exps.sum(dim=-1, keepdim=True) + 1e-9) @ value


def masked_safe_exps(query, key, value, mask):
    exps = softmax_not_normalised(score(query, key)) * mask
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def masked_safe_exps_with_epsilon(query, key, value, mask):
    exps = softmax_not_normalised(score(query, key)) * mask
    return exps / (exps.sum(dim=-1, keepdim=True) + 1e-9) @ value


def masked_by_product(query, key, value, mask):
    """A score of 0 is not hidden: exp(0) is 1."""
    return (score(query, key) * mask).softmax(dim=-1) @ value


def masked_by_product_guarded(query, key, value, mask):
    weights = (score(query, key) * mask).softmax(dim=-1)
    return weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0) @ value


def masked_added_as_ones(query, key, value, mask):
    """Adding 1 to what may be read hides nothing: add -inf to what may not."""
    return (score(query, key) + mask.to(query.dtype)).softmax(dim=-1) @ value


def masked_zero_times_inf(query, key, value, mask):
    """0 times -inf is NaN: build the mask with masked_fill or torch.where."""
    blocked = (~mask).to(query.dtype) * -math.inf
    return (score(query, key) + blocked).softmax(dim=-1) @ value


def masked_zero_times_inf_painted(query, key, value, mask):
    blocked = (~mask).to(query.dtype) * -math.inf
    return (score(query, key) + blocked).softmax(dim=-1).nan_to_num() @ value


def masked_zero_times_inf_guarded(query, key, value, mask):
    blocked = (~mask & _any(mask)).to(query.dtype) * -math.inf
    weights = (score(query, key) + blocked).softmax(dim=-1)
    return weights.masked_fill(~_any(mask), 0.0) @ value


def masked_zero_is_hidden(query, key, value, mask):
    """A score that is allowed, and happens to be 0, is hidden as well."""
    scores = score(query, key) * mask
    return scores.masked_fill(scores == 0, -1e9).softmax(dim=-1) * mask @ value


def masked_zero_is_inf(query, key, value, mask):
    scores = score(query, key) * mask
    return scores.masked_fill(scores == 0, -math.inf).softmax(dim=-1) @ value


def masked_zero_is_inf_painted(query, key, value, mask):
    scores = score(query, key) * mask
    weights = scores.masked_fill(scores == 0, -math.inf).softmax(dim=-1)
    return weights.nan_to_num() @ value


def masked_nan_gradient(query, key, value, mask):
    """The output is right, but a NaN arose, and only luck may keep it out of the
    gradients: repair the scores before the softmax; painting over a NaN is late."""
    scores = score(query, key) + additive(query, mask)
    return scores.softmax(dim=-1).nan_to_num() @ value


def masked_nan_filled(query, key, value, mask):
    return hide(query, key, mask).softmax(dim=-1).nan_to_num() @ value


def masked_nan_filled_twice(query, key, value, mask):
    weights = hide(query, key, mask).softmax(dim=-1)
    return weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0) @ value


def masked_nan_output(query, key, value, mask):
    return masked_no_guard(query, key, value, mask).nan_to_num()


def masked_nan_output_added(query, key, value, mask):
    return masked_added_no_guard(query, key, value, mask).nan_to_num()


def masked_nan_output_where(query, key, value, mask):
    read = masked_no_guard(query, key, value, mask)
    return torch.where(mask.any(dim=-1, keepdim=True), read, 0.0)


def masked_nan_in_place(query, key, value, mask):
    """w[w.isnan()] = 0 overwrites what the backward pass needs. Keep the NaN from
    arising: give such a row scores that are finite, then empty its weights."""
    weights = hide(query, key, mask).softmax(dim=-1)
    weights[weights.isnan()] = 0.0
    return weights @ value


def masked_nan_in_place_added(query, key, value, mask):
    weights = (score(query, key) + additive(query, mask)).softmax(dim=-1)
    weights[weights.isnan()] = 0.0
    return weights @ value


def masked_by_index(query, key, value, mask):
    """scores[~mask] does not broadcast: the axes of the mask must be the first axes of
    the scores. masked_fill(~mask, -inf) does, and leaves the old scores alone."""
    scores = score(query, key)
    scores[~mask] = -math.inf
    return scores.softmax(dim=-1) @ value


def masked_by_index_big(query, key, value, mask):
    scores = score(query, key)
    scores[~mask] = -1e9
    return scores.softmax(dim=-1) @ value


def masked_by_index_painted(query, key, value, mask):
    scores = score(query, key)
    scores[~mask] = -math.inf
    return scores.softmax(dim=-1).nan_to_num() @ value


def masked_any_without_keepdim(query, key, value, mask):
    """any(dim=-1) drops the axis of the keys: write keepdim=True."""
    empty = ~mask.any(dim=-1)
    weights = hide(query, key, mask | empty).softmax(dim=-1)
    return weights.masked_fill(empty, 0.0) @ value


def masked_any_of_the_queries(query, key, value, mask):
    """any(dim=-2) asks which keys are read by anybody; ask which queries may read."""
    empty = ~mask.any(dim=-2, keepdim=True)
    weights = hide(query, key, mask | empty).softmax(dim=-1)
    return weights.masked_fill(empty, 0.0) @ value


def masked_not_at_all(query, key, value, mask):
    """Every key is read."""
    return scaled_by(query, key, value)


def masked_not_at_all_guarded(query, key, value, mask):
    return scaled_by(query, key, value) * _any(mask)


def masked_no_scale(query, key, value, mask):
    """The scores are not divided by √d_k."""
    return masked_attention(query * query.shape[-1] ** 0.5, key, value, mask)


EXERCISE = Exercise(
    "1.3",
    "Attention under a mask",
    masked_attention,
    masked_trials,
    {
        "inverted mask": (
            masked_inverted,
            masked_inverted_inf,
            masked_inverted_big,
            masked_inverted_added,
            masked_inverted_after,
            masked_inverted_guarded,
            masked_inverted_or_empty,
        ),
        "weights not emptied": masked_not_emptied,
        "all instead of any": masked_all,
        "the guard turned round": masked_guard_turned,
        "mask after softmax": masked_after_softmax,
        "renormalised after the softmax": (
            masked_renormalised,
            masked_renormalised_with_epsilon,
            masked_renormalised_clamped,
            masked_renormalised_nan_to_num,
            masked_renormalised_guarded,
            masked_renormalised_without_0,
            masked_exps,
            masked_exps_with_epsilon,
            masked_safe_exps,
            masked_safe_exps_with_epsilon,
        ),
        "scores times mask": (masked_by_product, masked_by_product_guarded),
        "−1e9 where nothing may be read": (
            masked_big_number,
            masked_big_number_added,
            masked_lowest_number,
        ),
        "a fill that is not low enough": (
            masked_small_number,
            masked_small_number_added,
            masked_small_number_guarded,
            masked_small_number_times_mask,
            masked_small_number_added_guarded,
            masked_big_number_guarded,
            masked_big_number_times_mask,
            masked_big_number_renormalised,
        ),
        "-inf where nothing may be read": (masked_no_guard, masked_added_no_guard),
        "NaN painted over": (
            masked_nan_gradient,
            masked_nan_filled,
            masked_nan_filled_twice,
            masked_nan_output,
            masked_nan_output_added,
            masked_nan_output_where,
        ),
        "NaN overwritten in place": (
            masked_nan_in_place,
            masked_nan_in_place_added,
        ),
        "scores indexed with the mask": (
            masked_by_index,
            masked_by_index_big,
            masked_by_index_painted,
        ),
        "keepdim forgotten": masked_any_without_keepdim,
        "any over the wrong axis": masked_any_of_the_queries,
        "mask added as ones": masked_added_as_ones,
        "0 times -inf": (
            masked_zero_times_inf,
            masked_zero_times_inf_painted,
            masked_zero_times_inf_guarded,
        ),
        "0 read as hidden": (
            masked_zero_is_hidden,
            masked_zero_is_inf,
            masked_zero_is_inf_painted,
        ),
        "no mask": (
            masked_not_at_all,
            masked_not_at_all_guarded,
            masked_guard_turned_and,
        ),
        "no scale": masked_no_scale,
    },
    gradients=WITHOUT_NAN,
)
