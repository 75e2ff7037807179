"""Exercise 1.3: attention under a mask."""

import math

import torch
from torch import Tensor

from utils.exercises.engine import WITHOUT_NAN, Exercise, randn
from utils.exercises.lesson_01.exercise_1 import softmax_not_normalised
from utils.exercises.lesson_01.exercise_2 import qkv, scaled_by, score, transposed
from utils.exercises.lesson_01.mending import (
    SHARES_MENDED,
    add,
    add_ones,
    add_product,
    add_product_guarded,
    additive,
    attend,
    because,
    empty,
    fill,
    fill_lowest,
    fill_zeros,
    index,
    inverted,
    leave,
    multiply,
    overwrite,
    paint,
    reads_any,
    share,
    share_epsilon,
    share_exps,
)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The reference: True = may be read; a query with nothing to read gets zeros."""
    empty_row = ~mask.any(dim=-1, keepdim=True)
    scores = hide(query, key, mask).masked_fill(empty_row, 0.0)
    return scores.softmax(dim=-1).masked_fill(empty_row, 0.0) @ value


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
    again = qkv((), 3, 3, 4, 4, 6, dtype)  # a shape seen before
    yield again | {"mask": past_mask(3, 3)}


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


# --- single mistakes; those in many forms are put together in mending.py ------------


def masked_not_emptied(query, key, value, mask):
    """A query with nothing to read now reads every key: set its weights to 0, too."""
    return hide(query, key, mask | ~reads_any(mask)).softmax(dim=-1) @ value


def _hide_then_zero(query, key, value, hidden, zeroed):
    """Hide some keys, and set the weights of some queries to 0."""
    scores = score(query, key).masked_fill(hidden, -math.inf)
    return scores.softmax(dim=-1).masked_fill(zeroed, 0.0) @ value


def masked_inverted_guarded(query, key, value, mask):
    able = reads_any(mask)
    return _hide_then_zero(query, key, value, mask & able, ~able)


def masked_inverted_or_empty(query, key, value, mask):
    able = reads_any(mask)
    return _hide_then_zero(query, key, value, mask | ~able, ~able)


def masked_all(query, key, value, mask):
    """mask.all says which queries may read EVERY key; ask which may read ANY."""
    every = mask.all(dim=-1, keepdim=True)
    return _hide_then_zero(query, key, value, ~mask & every, ~every)


def masked_guard_turned(query, key, value, mask):
    """The rows that may read are emptied, or hidden, not those that may not."""
    able = reads_any(mask)
    return _hide_then_zero(query, key, value, ~mask & able, able)


def masked_guard_turned_and(query, key, value, mask):
    able = reads_any(mask)
    return _hide_then_zero(query, key, value, ~mask & ~able, ~able)


def masked_any_without_keepdim(query, key, value, mask):
    """any(dim=-1) drops the axis of the keys: write keepdim=True."""
    able = mask.any(dim=-1)
    return _hide_then_zero(query, key, value, ~mask & able, ~able)


def masked_any_of_the_queries(query, key, value, mask):
    """any(dim=-2) asks which keys are read by anybody; ask which queries may read."""
    able = mask.any(dim=-2, keepdim=True)
    return _hide_then_zero(query, key, value, ~mask & able, ~able)


def masked_nan_output(query, key, value, mask):
    return (hide(query, key, mask).softmax(dim=-1) @ value).nan_to_num()


def masked_nan_output_added(query, key, value, mask):
    scores = score(query, key) + additive(query, mask)
    return (scores.softmax(dim=-1) @ value).nan_to_num()


def masked_nan_output_where(query, key, value, mask):
    read = hide(query, key, mask).softmax(dim=-1) @ value
    return torch.where(reads_any(mask), read, 0.0)


def masked_not_at_all(query, key, value, mask):
    """Every key is read."""
    return scaled_by(query, key, value)


def masked_not_at_all_guarded(query, key, value, mask):
    return scaled_by(query, key, value) * reads_any(mask)


def masked_no_scale(query, key, value, mask):
    """The scores are not divided by √d_k."""
    return masked_attention(query * query.shape[-1] ** 0.5, key, value, mask)


EXERCISE = Exercise(
    "1.3",
    "Attention under a mask",
    masked_attention,
    masked_trials,
    {
        "inverted mask": because(
            "True says what MAY be read.",
            inverted(masked_attention),
            inverted(attend(fill(-math.inf), leave)),
            inverted(attend(fill(-1e9), leave)),
            inverted(attend(add(-math.inf), leave)),
            inverted(attend(leave, multiply)),
            masked_inverted_guarded,
            masked_inverted_or_empty,
        ),
        "weights not emptied": masked_not_emptied,
        "all instead of any": masked_all,
        "the guard turned round": masked_guard_turned,
        "mask after softmax": because(
            "The hidden keys have already taken their share; rows no longer sum to 1.",
            attend(leave, multiply),
        ),
        "renormalised after the softmax": because(
            "A tall hidden score rounds all others to 0, and nothing is left to share "
            "out: hide before the softmax.",
            *(attend(leave, mend) for mend in (share, *SHARES_MENDED)),
            *(share_exps(torch.exp, mend) for mend in (share, share_epsilon)),
            share_exps(softmax_not_normalised, share),
            share_exps(softmax_not_normalised, share_epsilon),
        ),
        "scores times mask": because(
            "A score of 0 is not hidden: exp(0) is 1.",
            attend(multiply, leave),
            attend(multiply, empty),
        ),
        "−1e9 where nothing may be read": because(
            "That query averages all it must not see; it should get zeros.",
            attend(fill(-1e9), leave),
            attend(add(-1e9), leave),
            attend(fill_lowest, leave),
        ),
        "a fill that is not low enough": because(
            "A number hides nothing from scores that are lower still, be it -100 or "
            "-1e9: fill with -inf.",
            attend(fill(-1e4), leave),
            attend(add(-1e4), leave),
            *(
                attend(how(number), mend)
                for number in (-1e4, -1e9)
                for how in (fill, add)
                for mend in (empty, multiply)
            ),
            attend(fill(-1e9), share_epsilon),
        ),
        "-inf where nothing may be read": because(
            "A query with nothing to read becomes NaN; it should get zeros.",
            attend(fill(-math.inf), leave),
            attend(add(-math.inf), leave),
        ),
        "NaN painted over": because(
            "The output is right, but a NaN arose, and only luck may keep it out of "
            "the gradients: repair the scores before the softmax; painting over a NaN "
            "is late.",
            attend(add(-math.inf), paint),
            attend(fill(-math.inf), paint),
            attend(fill(-math.inf), empty),
            masked_nan_output,
            masked_nan_output_added,
            masked_nan_output_where,
        ),
        "NaN overwritten in place": because(
            "w[w.isnan()] = 0 overwrites what the backward pass needs. Keep the NaN "
            "from arising: give such a row scores that are finite, then empty its "
            "weights.",
            attend(fill(-math.inf), overwrite),
            attend(add(-math.inf), overwrite),
        ),
        "scores indexed with the mask": because(
            "scores[~mask] does not broadcast: the axes of the mask must be the first "
            "axes of the scores. masked_fill(~mask, -inf) does, and leaves the old "
            "scores alone.",
            attend(index(-math.inf), leave),
            attend(index(-1e9), leave),
            attend(index(-math.inf), paint),
        ),
        "keepdim forgotten": masked_any_without_keepdim,
        "any over the wrong axis": masked_any_of_the_queries,
        "mask added as ones": because(
            "Adding 1 to what may be read hides nothing: add -inf to what may not.",
            attend(add_ones, leave),
        ),
        "0 times -inf": because(
            "0 times -inf is NaN: build the mask with masked_fill or torch.where.",
            attend(add_product, leave),
            attend(add_product, paint),
            attend(add_product_guarded, empty),
        ),
        "0 read as hidden": because(
            "A score that is allowed, and happens to be 0, is hidden as well.",
            attend(fill_zeros(-1e9), multiply),
            attend(fill_zeros(-math.inf), leave),
            attend(fill_zeros(-math.inf), paint),
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
