"""Exercise 3.4: a null that is as sharp."""

import math

import torch
from torch import Tensor

from utils.exercises.engine import Exercise, randn


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy of each row of weights, in nats: 0 = sees one key only."""
    return torch.special.entr(weights).sum(dim=-1)


def sharpened(scores: Tensor, target: float) -> Tensor:
    """The reference: weights softmax(gain * scores), one gain for each head.

    scores (heads, L, L); the gain of a head is the number above 0 for which the entropy
    of its weights, averaged over the queries, is `target`.
    """
    return _searched(scores, lambda w: entropy(w).mean(dim=-1)[:, None, None], target)


def _searched(scores, measure, target, log_range=20.0):
    """Halve an interval of log gains: the larger the gain, the smaller the entropy."""
    low = torch.full_like(measure(scores.softmax(dim=-1)), -log_range)
    high = -low
    for _ in range(32):
        middle = (low + high) / 2
        too_flat = measure((middle.exp() * scores).softmax(dim=-1)) > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return (middle.exp() * scores).softmax(dim=-1)


def sharpened_inputs(dtype):
    """Scores in single precision: a search need not be better than five digits."""
    if dtype != torch.float32:
        return
    sizes = [(3, 5, 1.0, 1), (2, 4, 1.3, 3), (1, 6, 0.3, 0.5), (4, 8, 1.9, 400)]
    for seed, (heads, length, target, factor) in enumerate(sizes):
        scores = randn(heads, length, length, seed=seed, dtype=torch.float32) * factor
        yield {"scores": scores, "target": target}
    turned = randn(3, 7, 7, seed=4, dtype=torch.float32).mT
    yield {"scores": turned + 100, "target": 0.8}  # neither contiguous nor near 0
    # as on the page: close ties, so gains up to a million, and most weights exactly 0
    small = randn(4, 13, 13, seed=5, dtype=torch.float32) * 3e-4
    yield {"scores": small, "target": 0.0023}


def _mean_entropy(weights):
    return entropy(weights).mean(dim=-1)[:, None, None]


def sharpened_one_gain(scores, target):
    """Every head is to have this entropy, not only their mean: one gain for each."""
    return _searched(scores, lambda w: entropy(w).mean().view(1, 1, 1), target)


def sharpened_by_query(scores, target):
    """That is one gain for each query; a head has one, and its queries differ."""
    return _searched(scores, lambda w: entropy(w)[..., None], target)


def sharpened_bits(scores, target):
    """The target is in nats: use the natural logarithm."""
    return _searched(scores, _mean_entropy, target * math.log(2))


def sharpened_sum(scores, target):
    """The entropy is averaged over the queries, not added up."""
    return _searched(scores, lambda w: _mean_entropy(w) * w.shape[-1], target)


def sharpened_of_mean_row(scores, target):
    """Average the entropies of the rows; the average row is flatter than they are."""
    return _searched(scores, lambda w: entropy(w.mean(dim=-2))[:, None, None], target)


def sharpened_over_queries(scores, target):
    """Each row (the last axis) sums to 1; here the columns do."""
    return _searched(scores.mT, _mean_entropy, target).mT


def sharpened_nan(scores, target):
    """0 · ln 0 is NaN, no comparison with NaN is true, and the search goes astray."""

    def measure(w):
        return (w * w.log()).sum(dim=-1).mean(dim=-1)[:, None, None]

    low = torch.full_like(scores[:, :1, :1], -20.0)
    high = -low
    for _ in range(32):
        middle = (low + high) / 2
        too_sharp = -measure((middle.exp() * scores).softmax(dim=-1)) < target
        low, high = low.where(too_sharp, middle), middle.where(too_sharp, high)
    return (middle.exp() * scores).softmax(dim=-1)


def sharpened_nan_downwards(scores, target):
    low = torch.full_like(scores[:, :1, :1], -20.0)
    high = -low
    for _ in range(40):
        middle = (low + high) / 2
        weights = (middle.exp() * scores).softmax(dim=-1)
        entropies = -(weights * weights.log()).sum(dim=-1)
        too_flat = entropies.mean(dim=-1)[:, None, None] > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return weights


def _up_to(largest, scores, target):
    low = torch.zeros_like(scores[:, :1, :1])
    high = low + largest
    for _ in range(60):
        middle = (low + high) / 2
        too_flat = _mean_entropy((middle * scores).softmax(dim=-1)) > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return (middle * scores).softmax(dim=-1)


def sharpened_up_to_100(scores, target):
    """Some gains lie beyond your interval: search the logarithm, from -20 to 20."""
    return _up_to(100.0, scores, target)


def sharpened_up_to_20(scores, target):
    return _up_to(20.0, scores, target)


def sharpened_up_to_1000(scores, target):
    return _up_to(1000.0, scores, target)


def sharpened_up_to_10_000(scores, target):
    return _up_to(10_000.0, scores, target)


def _from(smallest, scores, target):
    low = torch.full_like(scores[:, :1, :1], math.log(smallest))
    high = torch.full_like(low, 20.0)
    for _ in range(40):
        middle = (low + high) / 2
        too_flat = _mean_entropy((middle.exp() * scores).softmax(dim=-1)) > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return (middle.exp() * scores).softmax(dim=-1)


def sharpened_from_a_tenth(scores, target):
    return _from(0.1, scores, target)


def sharpened_from_a_hundredth(scores, target):
    return _from(0.01, scores, target)


def sharpened_short_logs(scores, target):
    return _searched(scores, _mean_entropy, target, log_range=10.0)


def sharpened_shorter_logs(scores, target):
    return _searched(scores, _mean_entropy, target, log_range=5.0)


def _wrong_half(scores, target, log_range):
    low = torch.full_like(scores[:, :1, :1], -log_range)
    high = -low
    for _ in range(40):
        middle = (low + high) / 2
        too_flat = _mean_entropy((middle.exp() * scores).softmax(dim=-1)) > target
        low, high = low.where(too_flat, middle), middle.where(too_flat, high)
    return (middle.exp() * scores).softmax(dim=-1)


def sharpened_wrong_half(scores, target):
    """Weights that are too flat need a larger gain: keep the upper half."""
    return _wrong_half(scores, target, 20.0)


def sharpened_wrong_half_short(scores, target):
    return _wrong_half(scores, target, 10.0)


def sharpened_never_flattened(scores, target):
    """A head may have to become flatter: the gain may be below 1."""
    right, plain = sharpened(scores, target), scores.softmax(dim=-1)
    return right.where(_mean_entropy(plain) > target, plain)


def sharpened_not_at_all(scores, target):
    """Nothing changed; a number *added* to all scores changes nothing. Multiply."""
    return scores.softmax(dim=-1)


def sharpened_by_target(scores, target):
    """The target is an entropy, not a gain: search the gain that leads to it."""
    return (scores * target).softmax(dim=-1)


def sharpened_by_inverse_target(scores, target):
    return (scores / target).softmax(dim=-1)


def sharpened_by_ratio(scores, target):
    """Entropy is not proportional to the gain: search, and compare."""
    weights = scores.softmax(dim=-1)
    return (scores * _mean_entropy(weights) / target).softmax(dim=-1)


def sharpened_all_at_once(scores, target):
    """`any` and `all` move every head alike; each needs its own half: use where."""
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        weights = (math.exp(middle) * scores).softmax(dim=-1)
        too_flat = (_mean_entropy(weights) > target).all()
        low, high = (middle, high) if too_flat else (low, middle)
    return weights


def sharpened_any_at_once(scores, target):
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        weights = (math.exp(middle) * scores).softmax(dim=-1)
        too_flat = (_mean_entropy(weights) > target).any()
        low, high = (middle, high) if too_flat else (low, middle)
    return weights


def sharpened_weights_again(scores, target):
    """The gain multiplies the scores; here it multiplied weights, before a softmax."""
    return sharpened(scores.softmax(dim=-1), target)


def _gain(scores, target):
    """Return the gain of each head, (heads,)."""
    low = torch.full_like(scores[:, :1, :1], -20.0)
    high = -low
    for _ in range(40):
        middle = (low + high) / 2
        too_flat = _mean_entropy((middle.exp() * scores).softmax(dim=-1)) > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return middle.exp().flatten()


def sharpened_gain(scores, target):
    """Those are the gains; return softmax(gain * scores)."""
    return _gain(scores, target)


def sharpened_gain_with_axes(scores, target):
    return _gain(scores, target)[:, None, None]


def sharpened_scores(scores, target):
    """Those are the scores; take their softmax."""
    return scores * _gain(scores, target)[:, None, None]


def sharpened_weights_times_gain(scores, target):
    """Multiply the scores, before the softmax: such rows do not sum to 1."""
    return scores.softmax(dim=-1) * _gain(scores, target)[:, None, None]


def sharpened_power(scores, target):
    """Powers of weights must be divided by their sum: rows sum to 1."""
    return scores.softmax(dim=-1) ** _gain(scores, target)[:, None, None]


EXERCISE = Exercise(
    "3.4",
    "A null that is as sharp",
    sharpened,
    sharpened_inputs,
    {
        "one gain for all heads": sharpened_one_gain,
        "one gain per query": sharpened_by_query,
        "bits": sharpened_bits,
        "entropies added up": sharpened_sum,
        "entropy of the mean row": sharpened_of_mean_row,
        "softmax over the queries": sharpened_over_queries,
        "0 · ln 0": (
            sharpened_nan,
            sharpened_nan_downwards,
        ),
        "all heads moved alike": (sharpened_all_at_once, sharpened_any_at_once),
        "the search ends too soon": (
            sharpened_up_to_100,
            sharpened_up_to_20,
            sharpened_up_to_1000,
            sharpened_up_to_10_000,
            sharpened_from_a_tenth,
            sharpened_from_a_hundredth,
            sharpened_short_logs,
            sharpened_shorter_logs,
        ),
        "the wrong half kept": (sharpened_wrong_half, sharpened_wrong_half_short),
        "gain never below 1": sharpened_never_flattened,
        "softmax of the scores": sharpened_not_at_all,
        "target as gain": (sharpened_by_target, sharpened_by_inverse_target),
        "gain by rule of three": sharpened_by_ratio,
        "the gains": (sharpened_gain, sharpened_gain_with_axes),
        "scores instead of weights": sharpened_scores,
        "weights sharpened again": sharpened_weights_again,
        "weights multiplied": sharpened_weights_times_gain,
        "powers not normalised": sharpened_power,
    },
    gradients=False,
)
