"""Exercises of notebook 01: softmax, attention, a mask, the causal mask."""

import math

import torch
from torch import Tensor

from utils.attention import causal_mask
from utils.attention import scaled_dot_product_attention as reference_attention
from utils.exercises.engine import Exercise, randn

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
"""

# --- 1.1 softmax ------------------------------------------------------------------


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


def softmax_overflowing(scores):
    """exp(1000) is inf, and inf / inf is NaN: subtract each row's maximum first."""
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def softmax_wrong_axis(scores):
    """Each row (the last axis) must sum to 1; here the columns do."""
    return scores.softmax(dim=0 if scores.dim() == 1 else -2)


def softmax_everything(scores):
    """Each row is a distribution of its own."""
    return scores.flatten().softmax(0).view(scores.shape)


def softmax_first_axis(scores):
    return scores.softmax(dim=0)


def softmax_all_overflowing(scores):
    return scores.exp() / scores.exp().sum()


def softmax_mean(scores):
    """exp still overflows above the mean: subtract each row's maximum."""
    weights = (scores - scores.mean(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def softmax_minimum(scores):
    return softmax_overflowing(scores - scores.amin(dim=-1, keepdim=True))


def softmax_log(scores):
    """Those are logarithms; the weights are their exponentials."""
    return scores.log_softmax(dim=-1)


def softmax_argmax(scores):
    """The winner takes everything; a softmax gives every key a share."""
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)


def softmax_global_max(scores):
    """Rows far below it underflow to 0 / 0: each row subtracts its own."""
    weights = (scores - scores.max()).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def softmax_in_place(scores):
    """-= and its friends write into the caller's tensor; build a new one."""
    scores -= scores.amax(dim=-1, keepdim=True)
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def softmax_not_normalised(scores):
    """The rows must sum to 1."""
    return (scores - scores.amax(dim=-1, keepdim=True)).exp()


# --- 1.2 attention ----------------------------------------------------------------


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The reference: softmax(query keyᵀ / √d_k) value, for any leading dimensions."""
    weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(dim=-1)
    return weights @ value


def attention_inputs(dtype):
    for seed, (leading, queries, keys, dim, value_dim) in enumerate(
        [((), 3, 3, 4, 4), ((2,), 4, 6, 9, 5), ((2, 3), 5, 5, 8, 8)]
    ):
        yield {
            "query": randn(*leading, queries, dim, seed=seed, dtype=dtype),
            "key": randn(*leading, keys, dim, seed=seed + 10, dtype=dtype),
            "value": randn(*leading, keys, value_dim, seed=seed + 20, dtype=dtype),
        }


def attention_trials(dtype):
    yield from attention_inputs(dtype)
    large = next(iter(attention_inputs(dtype)))
    yield large | {"query": large["query"] * 300}  # exp of such scores overflows


def _attention(query, key, value, factor=None, dim=-1):
    factor = query.shape[-1] ** -0.5 if factor is None else factor
    return (query @ key.mT * factor).softmax(dim=dim) @ value


def attention_axis_from_the_front(query, key, value):
    return _attention(query, key, value, dim=1)


def attention_len(query, key, value):
    """len(query) is the first axis; d_k is the last, query.shape[-1]."""
    return _attention(query, key, value, len(query) ** -0.5)


def attention_value_size(query, key, value):
    """The scale depends on the features of query and key, not on those of value."""
    return _attention(query, key, value, value.shape[-1] ** -0.5)


def attention_overflowing(query, key, value):
    """exp of a large score is inf: use softmax, or subtract each row's maximum."""
    return softmax_overflowing(_scores(query, key)) @ value


def attention_not_normalised(query, key, value):
    """The weights of a query must sum to 1: divide by the sum of the row."""
    return softmax_not_normalised(_scores(query, key)) @ value


def attention_reads_keys(query, key, value):
    """Keys are compared; what is read, and mixed, are the values."""
    return _attention(query, key, key)


def attention_weights(query, key, value):
    """Multiply the weights by the values: return what is read."""
    return _scores(query, key).softmax(dim=-1)


def attention_hard(query, key, value):
    """The best key takes everything, and no gradient reaches the scores."""
    return softmax_argmax(query @ key.mT) @ value


def attention_scale_after(query, key, value):
    """The weights no longer sum to 1: scale the scores."""
    return (query @ key.mT).softmax(dim=-1) / query.shape[-1] ** 0.5 @ value


def attention_without_softmax(query, key, value):
    """Bare scores may be negative and do not sum to 1."""
    return query @ key.mT / query.shape[-1] ** 0.5 @ value


def attention_in_place(query, key, value):
    """/= writes into the caller's tensor; build a new one."""
    query /= query.shape[-1] ** 0.5
    return _attention(query, key, value, 1.0)


def attention_no_scale(query, key, value):
    """The scores are not divided by √d_k."""
    return _attention(query, key, value, 1.0)


def attention_d_k(query, key, value):
    """The scores are divided by d_k: too much, all weights become alike."""
    return _attention(query, key, value, 1 / query.shape[-1])


def attention_multiplied(query, key, value):
    """The scores are multiplied where they should be divided."""
    return _attention(query, key, value, query.shape[-1] ** 0.5)


def attention_number_of_keys(query, key, value):
    """The scale depends on the features, not on the length of the text."""
    return _attention(query, key, value, key.shape[-2] ** -0.5)


def attention_wrong_axis(query, key, value):
    """Each query (a row) shares out 1 among the keys."""
    return _attention(query, key, value, dim=-2)


def attention_return_value(query, key, value):
    """Nothing is attended to: every query must mix all values."""
    return value


def attention_mean(query, key, value):
    """Every key gets the same weight, whatever the query asks."""
    return _attention(query, key, value, 0.0)


# --- 1.3 attention under a mask ---------------------------------------------------


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The reference: True = may be read; a query with nothing to read gets zeros."""
    return reference_attention(query, key, value, mask)[0]


def masked_inputs(dtype):
    trials = list(attention_inputs(dtype))
    some = randn(4, 6, seed=3, dtype=dtype) > -0.3
    some[0], some[:, 0] = True, True
    yield trials[0] | {"mask": causal_mask(3)}
    yield trials[1] | {"mask": some}
    nothing = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    nothing[0, :, 2] = False  # the third query of the first sentence may read nothing
    nothing[1, :, :, 3:] = False
    yield trials[2] | {"mask": nothing}
    zeros = torch.zeros(4, 8, dtype=dtype)  # every score is exactly 0
    yield {
        "query": zeros,
        "key": randn(4, 8, seed=5, dtype=dtype),
        "value": randn(4, 6, seed=6, dtype=dtype),
        "mask": causal_mask(4),
    }


def _scores(query, key):
    return query @ key.mT / query.shape[-1] ** 0.5


def masked_inverted(query, key, value, mask):
    """True says what MAY be read."""
    return masked_attention(query, key, value, ~mask)


def masked_inverted_inf(query, key, value, mask):
    return masked_no_guard(query, key, value, ~mask)


def masked_inverted_big(query, key, value, mask):
    return masked_big_number(query, key, value, ~mask)


def masked_after_softmax(query, key, value, mask):
    """The hidden keys have already taken their share; rows no longer sum to 1."""
    return (_scores(query, key).softmax(dim=-1) * mask) @ value


def masked_by_product(query, key, value, mask):
    """A score of 0 is not hidden: exp(0) is 1."""
    return (_scores(query, key) * mask).softmax(dim=-1) @ value


def masked_big_number(query, key, value, mask):
    """That query averages all it must not see; it should get zeros."""
    return _scores(query, key).masked_fill(~mask, -1e9).softmax(dim=-1) @ value


def masked_big_number_added(query, key, value, mask):
    blocked = (~mask).to(query.dtype) * -1e9
    return (_scores(query, key) + blocked).softmax(dim=-1) @ value


def masked_renormalised(query, key, value, mask):
    """Where nothing may be read the sum is 0, and 0 / 0 is NaN: it should get zeros."""
    weights = _scores(query, key).softmax(dim=-1) * mask
    return weights / weights.sum(dim=-1, keepdim=True) @ value


def masked_added_as_ones(query, key, value, mask):
    """Adding 1 to what may be read hides nothing: add -inf to what may not."""
    return (_scores(query, key) + mask.to(query.dtype)).softmax(dim=-1) @ value


def masked_zero_times_inf(query, key, value, mask):
    """0 times -inf is NaN: build the mask with masked_fill or torch.where."""
    blocked = (~mask).to(query.dtype) * -math.inf
    return (_scores(query, key) + blocked).softmax(dim=-1) @ value


def masked_zero_is_hidden(query, key, value, mask):
    """A score that is allowed, and happens to be 0, is hidden as well."""
    scores = _scores(query, key) * mask
    weights = scores.masked_fill(scores == 0, -1e9).softmax(dim=-1) * mask
    return weights @ value


def masked_no_guard(query, key, value, mask):
    """A query with nothing to read becomes NaN; it should get zeros."""
    return _scores(query, key).masked_fill(~mask, -math.inf).softmax(dim=-1) @ value


def masked_nan_gradient(query, key, value, mask):
    """The output is right, the gradient is NaN: repair the scores first."""
    blocked = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -math.inf)
    return (_scores(query, key) + blocked).softmax(dim=-1).nan_to_num() @ value


def masked_nan_output(query, key, value, mask):
    return masked_no_guard(query, key, value, mask).nan_to_num()


def masked_not_at_all(query, key, value, mask):
    """Every key is read."""
    return _attention(query, key, value)


def masked_no_scale(query, key, value, mask):
    """The scores are not divided by √d_k."""
    return reference_attention(query, key, value, mask, scale=1.0)[0]


# --- 1.4 causal attention ---------------------------------------------------------


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The reference: the last query reads every key, the one before it one less."""
    mask = causal_mask(query.shape[-2], key.shape[-2])
    return reference_attention(query, key, value, mask)[0]


def causal_inputs(dtype):
    for seed, (leading, queries, keys) in enumerate([((), 4, 4), ((2,), 3, 5)]):
        yield {
            "query": randn(*leading, queries, 8, seed=seed, dtype=dtype),
            "key": randn(*leading, keys, 8, seed=seed + 10, dtype=dtype),
            "value": randn(*leading, keys, 6, seed=seed + 20, dtype=dtype),
        }
    zeros = torch.zeros(4, 8, dtype=dtype)  # every score is exactly 0
    yield {
        "query": zeros,
        "key": randn(4, 8, seed=5, dtype=dtype),
        "value": randn(4, 6, seed=6, dtype=dtype),
    }


def causal_by_scores(query, key, value):
    """A future score that is exactly 0 is not hidden: build it from ones."""
    scores = _scores(query, key)
    future = scores.triu(scores.shape[-1] - scores.shape[-2] + 1).bool()
    return scores.masked_fill(future, -math.inf).softmax(dim=-1) @ value


def causal_by_scores_square(query, key, value):
    scores = _scores(query, key)
    future = scores.triu(1).bool()
    return scores.masked_fill(future, -math.inf).softmax(dim=-1) @ value


def _causal(query, key, value, mask, hidden=-math.inf):
    scores = _scores(query, key).masked_fill(~mask, hidden)
    return scores.softmax(dim=-1) @ value


def _ones(query, key):
    return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)


def causal_inverted_inf(query, key, value):
    return _causal(query, key, value, ~causal_mask(query.shape[-2], key.shape[-2]))


def causal_without_self_inf(query, key, value):
    offset = key.shape[-2] - query.shape[-2]
    return _causal(query, key, value, _ones(query, key).tril(offset - 1))


def causal_without_self_big(query, key, value):
    offset = key.shape[-2] - query.shape[-2]
    return _causal(query, key, value, _ones(query, key).tril(offset - 1), -1e9)


def causal_sees_next(query, key, value):
    """tril(S - L + 1) lets every query read the token after it."""
    offset = key.shape[-2] - query.shape[-2]
    return _causal(query, key, value, _ones(query, key).tril(offset + 1))


def causal_after_softmax(query, key, value):
    """The future has already taken its share; the rows no longer sum to 1."""
    weights = _scores(query, key).softmax(dim=-1)
    return weights.tril(key.shape[-2] - query.shape[-2]) @ value


def causal_no_scale(query, key, value):
    """The scores are not divided by √d_k."""
    return causal_attention(query * query.shape[-1] ** 0.5, key, value)


def causal_zero_times_inf(query, key, value):
    """0 times -inf is NaN: build the mask with masked_fill or torch.where."""
    blocked = (~causal_mask(query.shape[-2], key.shape[-2])).to(query.dtype) * -math.inf
    return (_scores(query, key) + blocked).softmax(dim=-1) @ value


def causal_upper_left(query, key, value):
    """With more keys than queries the last query must see all keys."""
    mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    return reference_attention(query, key, value, mask)[0]


def causal_inverted(query, key, value):
    """The queries read only what comes later."""
    mask = ~causal_mask(query.shape[-2], key.shape[-2])
    return reference_attention(query, key, value, mask)[0]


def causal_future(query, key, value):
    """triu where tril is meant."""
    queries, keys = query.shape[-2], key.shape[-2]
    mask = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries)
    return reference_attention(query, key, value, mask)[0]


def causal_without_self(query, key, value):
    """The diagonal belongs to what may be read."""
    queries, keys = query.shape[-2], key.shape[-2]
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - 1)
    return reference_attention(query, key, value, mask)[0]


def causal_zeroed_scores(query, key, value):
    """exp(0) is 1: hidden scores must be -inf."""
    scores = _scores(query, key)
    return scores.tril(scores.shape[-1] - scores.shape[-2]).softmax(dim=-1) @ value


def causal_no_mask(query, key, value):
    """Every query reads the future."""
    return _attention(query, key, value)


EXERCISES = (
    Exercise(
        "1.1",
        "A softmax that cannot overflow",
        softmax,
        softmax_inputs,
        {
            "no maximum subtracted": softmax_overflowing,
            "softmax over the wrong axis": (softmax_wrong_axis, softmax_first_axis),
            "one softmax over all scores": (
                softmax_everything,
                softmax_all_overflowing,
            ),
            "mean or minimum instead of the maximum": (softmax_mean, softmax_minimum),
            "the logarithm of softmax": softmax_log,
            "argmax instead of softmax": softmax_argmax,
            "one maximum for all rows": softmax_global_max,
            "in-place edit of the scores": softmax_in_place,
            "no division by the sum": softmax_not_normalised,
        },
    ),
    Exercise(
        "1.2",
        "Scaled dot-product attention",
        attention,
        attention_trials,
        {
            "no scale": attention_no_scale,
            "d_k instead of √d_k": attention_d_k,
            "multiplied by √d_k": attention_multiplied,
            "√(number of keys) instead of √d_k": attention_number_of_keys,
            "softmax over the wrong axis": (
                attention_wrong_axis,
                attention_axis_from_the_front,
            ),
            "len(query) as d_k": attention_len,
            "√d_v instead of √d_k": attention_value_size,
            "softmax that overflows": attention_overflowing,
            "no division by the sum": attention_not_normalised,
            "keys read instead of values": attention_reads_keys,
            "weights returned": attention_weights,
            "argmax instead of softmax": attention_hard,
            "scale after softmax": attention_scale_after,
            "no softmax": attention_without_softmax,
            "return value": attention_return_value,
            "mean of the values": attention_mean,
            "in-place edit of the query": attention_in_place,
        },
    ),
    Exercise(
        "1.3",
        "Attention under a mask",
        masked_attention,
        masked_inputs,
        {
            "inverted mask": (
                masked_inverted,
                masked_inverted_inf,
                masked_inverted_big,
            ),
            "mask after softmax": masked_after_softmax,
            "scores times mask": masked_by_product,
            "−1e9 where nothing may be read": (
                masked_big_number,
                masked_big_number_added,
            ),
            "-inf where nothing may be read": masked_no_guard,
            "division by a sum of 0": masked_renormalised,
            "NaN hidden by nan_to_num": (masked_nan_gradient, masked_nan_output),
            "mask added as ones": masked_added_as_ones,
            "0 times -inf": masked_zero_times_inf,
            "0 read as hidden": masked_zero_is_hidden,
            "no mask": masked_not_at_all,
            "no scale": masked_no_scale,
        },
    ),
    Exercise(
        "1.4",
        "Causal attention",
        causal_attention,
        causal_inputs,
        {
            "triu(scores) used as a mask": (causal_by_scores, causal_by_scores_square),
            "upper-left alignment": causal_upper_left,
            "inverted mask": (causal_inverted, causal_inverted_inf),
            "the future instead of the past": causal_future,
            "a token may not read itself": (
                causal_without_self,
                causal_without_self_inf,
                causal_without_self_big,
            ),
            "the next token is visible": causal_sees_next,
            "mask after softmax": causal_after_softmax,
            "0 times -inf": causal_zero_times_inf,
            "no scale": causal_no_scale,
            "future scores set to 0": causal_zeroed_scores,
            "no mask": causal_no_mask,
        },
    ),
)
