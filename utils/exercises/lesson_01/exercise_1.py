"""Exercise 1.1: a softmax that cannot overflow."""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.exercises.engine import Exercise, randn


def softmax(scores: Tensor) -> Tensor:
    """The reference: exp of the distance to the largest score, made to sum to 1."""
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def softmax_inputs(dtype):
    yield {"scores": randn(4, seed=0, dtype=dtype)}
    yield {"scores": randn(3, 5, seed=1, dtype=dtype)}
    yield {"scores": randn(2, 3, 3, seed=2, dtype=dtype) * 3}
    far_apart = torch.tensor([[1000.0, 1001.0, 999.0], [-2000.0, -2000.0, -2001.0]])
    yield {"scores": far_apart.to(dtype)}
    lonely = torch.tensor([[0.0, 2000.0, 0.0], [0.0, -2000.0, 0.0], [3.0, 1.0, 2.0]])
    yield {"scores": lonely.to(dtype)}  # mean and minimum are far from the maximum
    yield {"scores": randn(2, 1, 2, 1, seed=3, dtype=dtype)}  # one key: weight 1
    strided = randn(3, 2, 3, seed=4, dtype=dtype).transpose(0, 1)
    yield {"scores": strided + 500}
    yield {"scores": randn(3, 5, seed=5, dtype=dtype)}  # a shape seen before
    yield {"scores": torch.zeros(2, 4, dtype=dtype)}
    limit = math.log(torch.finfo(dtype).max)
    yield {"scores": torch.full((3,), limit - 0.5, dtype=dtype)}  # too large in sum
    yield {"scores": torch.full((2, 3), -1.3 * limit, dtype=dtype)}  # exp rounds to 0
    yield {"scores": torch.tensor([[2e4, 1.5e4, 0], [-1.5e4, -2e4, -2e4]], dtype=dtype)}


def softmax_overflowing(scores):
    """exp(1000) is inf, and inf / inf is NaN: subtract each row's maximum first."""
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def softmax_with_epsilon(scores):
    exps = scores.exp()
    return exps / (exps.sum(dim=-1, keepdim=True) + 1e-9)


def softmax_painted(scores):
    """What overflowed is lost, and painting over the NaN brings nothing back: subtract
    each row's maximum first."""
    return softmax_overflowing(scores).nan_to_num()


def softmax_turned(scores):
    """The largest score must get the largest weight: scores minus maximum, not maximum
    minus scores."""
    return softmax_overflowing(scores.amax(dim=-1, keepdim=True) - scores)


def softmax_below_only(scores):
    """Numerator and denominator must lose the same: only then does it cancel."""
    return scores.exp() / softmax_not_normalised(scores).sum(dim=-1, keepdim=True)


def softmax_above_only(scores):
    return softmax_not_normalised(scores) / scores.exp().sum(dim=-1, keepdim=True)


def softmax_maximum_added(scores):
    """The maximum is added where it should be subtracted: everything grows."""
    return softmax_overflowing(scores + scores.amax(dim=-1, keepdim=True))


def softmax_divided_by_maximum(scores):
    """Division changes the differences between the scores: subtract the maximum."""
    return softmax_overflowing(scores / scores.amax(dim=-1, keepdim=True))


def softmax_wrong_axis(scores):
    """Each row (the last axis) must sum to 1; here another axis does."""
    return scores.softmax(dim=0 if scores.dim() == 1 else -2)


def softmax_first_axis(scores):
    return scores.softmax(dim=0)


def softmax_second_axis(scores):
    return scores.softmax(dim=1)


def softmax_without_dim(scores):
    """Without dim, F.softmax chooses an axis by their number: write dim=-1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return F.softmax(scores)


def softmax_everything(scores):
    """Each row is a distribution of its own."""
    return scores.flatten().softmax(0).view(scores.shape)


def softmax_all_overflowing(scores):
    return scores.exp() / scores.exp().sum()


def softmax_one_sum(scores):
    """exps.sum() adds up every row: write .sum(dim=-1, keepdim=True)."""
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum()


def softmax_keepdim_of_the_maximum(scores):
    """Without keepdim=True the axis is gone, and the rest is paired with wrong rows."""
    weights = (scores - scores.amax(dim=-1)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def softmax_keepdim_of_the_sum(scores):
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1)


def softmax_keepdim_of_both(scores):
    weights = (scores - scores.amax(dim=-1)).exp()
    return weights / weights.sum(dim=-1)


def softmax_mean(scores):
    """exp still overflows above the mean: subtract each row's maximum."""
    return softmax_overflowing(scores - scores.mean(dim=-1, keepdim=True))


def softmax_minimum(scores):
    return softmax_overflowing(scores - scores.amin(dim=-1, keepdim=True))


def softmax_largest_size(scores):
    """-2000 has the size 2000, but below 0 the largest score is the smallest in size:
    subtract the maximum itself, without abs."""
    return softmax_overflowing(scores - scores.abs().amax(dim=-1, keepdim=True))


def softmax_clamped(scores):
    """Above the limit all scores become equal: subtract the maximum, cut nothing."""
    return softmax_overflowing(scores.clamp(max=80.0))


def softmax_clamped_on_both_sides(scores):
    return softmax_overflowing(scores.clamp(-80.0, 80.0))


def softmax_log(scores):
    """Those are logarithms; the weights are their exponentials."""
    return scores.log_softmax(dim=-1)


def softmax_argmax(scores):
    """The winner takes everything; a softmax gives every key a share."""
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)


def softmax_global_max(scores):
    """Rows far below it underflow to 0 / 0: each row subtracts its own."""
    return softmax_overflowing(scores - scores.max())


def softmax_global_amax(scores):  # its gradient of a NaN is NaN everywhere
    return softmax_overflowing(scores - scores.amax())


def softmax_in_place(scores):
    """-= and its friends write into the caller's tensor; build a new one."""
    scores -= scores.amax(dim=-1, keepdim=True)
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def softmax_not_normalised(scores):
    """The rows must sum to 1."""
    return (scores - scores.amax(dim=-1, keepdim=True)).exp()


def softmax_without_exp(scores):
    """Scores may be negative or sum to 0: a share needs their exponentials."""
    return scores / scores.sum(dim=-1, keepdim=True)


def softmax_distance_without_exp(scores):
    return softmax_without_exp(scores - scores.amax(dim=-1, keepdim=True))


EXERCISE = Exercise(
    "1.1",
    "A softmax that cannot overflow",
    softmax,
    softmax_inputs,
    {
        "no maximum subtracted": (softmax_overflowing, softmax_with_epsilon),
        "NaN painted over": softmax_painted,
        "subtracted the wrong way round": softmax_turned,
        "subtracted in one place only": (softmax_below_only, softmax_above_only),
        "the maximum added": softmax_maximum_added,
        "divided by the maximum": softmax_divided_by_maximum,
        "softmax over the wrong axis": (
            softmax_wrong_axis,
            softmax_first_axis,
            softmax_second_axis,
        ),
        "softmax without dim": softmax_without_dim,
        "one softmax over all scores": (
            softmax_everything,
            softmax_all_overflowing,
        ),
        "one sum for all rows": softmax_one_sum,
        "keepdim forgotten": (
            softmax_keepdim_of_the_maximum,
            softmax_keepdim_of_the_sum,
            softmax_keepdim_of_both,
        ),
        "mean or minimum instead of the maximum": (softmax_mean, softmax_minimum),
        "the largest size instead of the maximum": softmax_largest_size,
        "scores cut off": (softmax_clamped, softmax_clamped_on_both_sides),
        "the logarithm of softmax": softmax_log,
        "argmax instead of softmax": softmax_argmax,
        "one maximum for all rows": (softmax_global_max, softmax_global_amax),
        "in-place edit of the scores": softmax_in_place,
        "no division by the sum": softmax_not_normalised,
        "no exponential": (softmax_without_exp, softmax_distance_without_exp),
    },
)
