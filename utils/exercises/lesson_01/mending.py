"""Masked attention gone wrong, put together of two parts.

One part does something to the scores, before the softmax; the other to the weights,
after it: `attend(fill(-1e9), multiply)` fills with -1e9 and multiplies by the mask."""

import math

import torch

from utils.exercises.lesson_01.exercise_2 import score


def attend(mend_scores, mend_weights):
    """Return the answer that does both: to (scores, mask), then to (weights, mask)."""

    def attempt(query, key, value, mask):
        weights = mend_scores(score(query, key), mask).softmax(dim=-1)
        return mend_weights(weights, mask) @ value

    attempt.__name__ = f"{mend_scores.__name__} {mend_weights.__name__}"
    return attempt


def share_exps(exp, mend_weights):
    """Return the answer that masks the exponentials, and shares out what is left."""

    def attempt(query, key, value, mask):
        return mend_weights(exp(score(query, key)), mask) @ value

    attempt.__name__ = f"{exp.__name__} {mend_weights.__name__}"
    return attempt


def inverted(attempt):
    """Return the answer with its mask the wrong way round."""

    def inverse(query, key, value, mask):
        return attempt(query, key, value, ~mask)

    inverse.__name__ = f"inverted {attempt.__name__}"
    return inverse


def because(why, first, *others):
    """Return the forms of one mistake; the first says what the learner reads."""
    first.__doc__ = why
    return first, *others


def reads_any(mask):
    return mask.any(dim=-1, keepdim=True)


# --- before the softmax -----------------------------------------------------------


def leave(numbers, mask):
    return numbers


def multiply(numbers, mask):
    return numbers * mask


def fill(number):
    def filled(scores, mask):
        return scores.masked_fill(~mask, number)

    filled.__name__ = f"fill({number})"
    return filled


def fill_lowest(scores, mask):
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def fill_zeros(number):
    def filled(scores, mask):
        scores = scores * mask
        return scores.masked_fill(scores == 0, number)

    filled.__name__ = f"fill_zeros({number})"
    return filled


def index(number):
    def indexed(scores, mask):
        scores[~mask] = number
        return scores

    indexed.__name__ = f"index({number})"
    return indexed


def additive(query, mask, hidden=-math.inf):
    """Return the mask as a float to add: 0 where True, `hidden` elsewhere."""
    zeros = torch.zeros(mask.shape, dtype=query.dtype)
    return zeros.masked_fill(~mask, hidden)


def add(number):
    def added(scores, mask):
        return scores + additive(scores, mask, number)

    added.__name__ = f"add({number})"
    return added


def add_ones(scores, mask):
    return scores + mask.to(scores.dtype)


def add_product(scores, mask):
    return scores + (~mask).to(scores.dtype) * -math.inf


def add_product_guarded(scores, mask):
    return add_product(scores, mask | ~reads_any(mask))


# --- after it ---------------------------------------------------------------------


def empty(weights, mask):
    return weights.masked_fill(~reads_any(mask), 0.0)


def paint(weights, mask):
    return weights.nan_to_num()


def overwrite(weights, mask):
    weights[weights.isnan()] = 0.0
    return weights


def _total(weights):
    return weights.sum(dim=-1, keepdim=True)


def share(weights, mask):
    """Return what the mask leaves, divided by its sum."""
    weights = weights * mask
    return weights / _total(weights)


def share_epsilon(weights, mask):
    weights = weights * mask
    return weights / (_total(weights) + 1e-9)


def share_clamped(weights, mask):
    weights = weights * mask
    return weights / _total(weights).clamp_min(1e-9)


def share_and_paint(weights, mask):
    return share(weights, mask).nan_to_num()


def share_guarded(weights, mask):
    weights = weights * mask
    return weights / _total(weights).masked_fill(~reads_any(mask), 1.0)


def share_unless_0(weights, mask):
    weights = weights * mask
    total = _total(weights)
    return weights / total.masked_fill(total == 0, 1.0)


SHARES_MENDED = (
    share_epsilon,
    share_clamped,
    share_and_paint,
    share_guarded,
    share_unless_0,
)
