"""Exercises of notebook 01: softmax, attention, a mask, the newest words, a test.

Each exercise is a reference, its trials and its known mistakes. A mistake's docstring
is what the learner reads; where one mistake has several forms, the first one speaks.
"""

import functools
import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.exercises.engine import WITHOUT_NAN, Exercise, randn

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


# --- 1.2 attention at a temperature -----------------------------------------------


def attention(
    query: Tensor, key: Tensor, value: Tensor, temperature: float = 1.0
) -> Tensor:
    """The reference: softmax(query keyᵀ / (√d_k T)) value, for any leading axes."""
    return (_scores(query, key) / temperature).softmax(dim=-1) @ value


def _scores(query, key):
    return query @ key.mT / math.sqrt(query.shape[-1])


def _qkv(leading, queries, keys, dim, value_dim, seed, dtype):
    return {
        "query": randn(*leading, queries, dim, seed=seed, dtype=dtype),
        "key": randn(*leading, keys, dim, seed=seed + 10, dtype=dtype),
        "value": randn(*leading, keys, value_dim, seed=seed + 20, dtype=dtype),
    }


def _transposed(trial):
    """The trial with its first two axes swapped: every tensor is strided."""
    return {name: arg.transpose(0, 1) for name, arg in trial.items()}


def attention_trials(dtype):
    small = _qkv((), 3, 3, 4, 4, 0, dtype)
    yield small  # without a temperature it is 1
    yield _qkv((2,), 4, 6, 9, 5, 1, dtype) | {"temperature": 0.5}
    yield _qkv((2, 3), 5, 5, 8, 8, 2, dtype) | {"temperature": 3.0}
    yield small | {"query": small["query"] * 300}  # exp of such scores overflows
    yield _qkv((1,), 1, 3, 4, 4, 3, dtype)  # one query
    yield _qkv((2,), 3, 1, 4, 2, 4, dtype)  # one key
    strided = _transposed(_qkv((3, 2), 4, 5, 8, 6, 5, dtype))
    yield strided | {"temperature": 0.25}
    silent = _qkv((), 3, 4, 4, 4, 6, dtype)
    silent["query"][1] = 0.0  # a query that asks for nothing: equal shares
    yield silent | {"query": silent["query"] * 3}
    yield _qkv((2,), 4, 6, 9, 5, 7, dtype)  # a shape seen before


def at_any_temperature(mistake):
    """Return the mistake with its scores divided by a temperature, as they should."""

    @functools.wraps(mistake)
    def warm(query, key, value, temperature=1.0):
        return mistake(query / temperature, key, value)

    return warm


def _attention(query, key, value, factor=None, dim=-1):
    factor = query.shape[-1] ** -0.5 if factor is None else factor
    return (query @ key.mT * factor).softmax(dim=dim) @ value


@at_any_temperature
def attention_no_scale(query, key, value):
    """The scores are not divided by √d_k."""
    return _attention(query, key, value, 1.0)


@at_any_temperature
def attention_d_k(query, key, value):
    """The scores are divided by d_k: too much, all weights become alike."""
    return _attention(query, key, value, 1 / query.shape[-1])


@at_any_temperature
def attention_multiplied(query, key, value):
    """The scores are multiplied where they should be divided."""
    return _attention(query, key, value, query.shape[-1] ** 0.5)


@at_any_temperature
def attention_number_of_keys(query, key, value):
    """The scale depends on the features, not on the length of the text."""
    return _attention(query, key, value, key.shape[-2] ** -0.5)


@at_any_temperature
def attention_len(query, key, value):
    """len counts the first axis; d_k is the last, query.shape[-1]."""
    return _attention(query, key, value, len(query) ** -0.5)


@at_any_temperature
def attention_len_of_key(query, key, value):
    return _attention(query, key, value, len(key) ** -0.5)


@at_any_temperature
def attention_second_axis(query, key, value):
    """shape[1] is d_k only where nothing stands in front: write query.shape[-1]."""
    return _attention(query, key, value, query.shape[1] ** -0.5)


@at_any_temperature
def attention_value_size(query, key, value):
    """The scale depends on the features of query and key, not on those of value."""
    return _attention(query, key, value, value.shape[-1] ** -0.5)


@at_any_temperature
def attention_wrong_axis(query, key, value):
    """Each query (a row) shares out 1 among the keys: softmax(dim=-1)."""
    return _attention(query, key, value, dim=-2)


@at_any_temperature
def attention_first_axis(query, key, value):
    return _attention(query, key, value, dim=0)


@at_any_temperature
def attention_axis_from_the_front(query, key, value):
    return _attention(query, key, value, dim=1)


@at_any_temperature
def attention_without_dim(query, key, value):
    """Without dim, F.softmax chooses an axis by their number: write dim=-1."""
    return softmax_without_dim(_scores(query, key)) @ value


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
    return softmax_overflowing(_scores(query, key)) @ value


@at_any_temperature
def attention_not_normalised(query, key, value):
    """The weights of a query must sum to 1: divide by the sum of the row."""
    return softmax_not_normalised(_scores(query, key)) @ value


@at_any_temperature
def attention_one_sum(query, key, value):
    """exps.sum() adds up every row: write .sum(dim=-1, keepdim=True)."""
    return softmax_one_sum(_scores(query, key)) @ value


@at_any_temperature
def attention_one_sum_overflowing(query, key, value):
    return softmax_all_overflowing(_scores(query, key)) @ value


@at_any_temperature
def attention_reads_keys(query, key, value):
    """Keys are compared; what is read, and mixed, are the values."""
    return _attention(query, key, key)


@at_any_temperature
def attention_roles_swapped(query, key, value):
    """Rows are queries: query @ key.mT, not key @ query.mT."""
    return _scores(key, query).softmax(dim=-1) @ value


@at_any_temperature
def attention_weights(query, key, value):
    """Multiply the weights by the values: return what is read."""
    return _scores(query, key).softmax(dim=-1)


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
    return _scores(query, key) @ value


@at_any_temperature
def attention_without_exp(query, key, value):
    """Scores may be negative or sum to 0: a share needs softmax."""
    return softmax_without_exp(_scores(query, key)) @ value


@at_any_temperature
def attention_return_value(query, key, value):
    """Nothing is attended to: every query must mix all values."""
    return value


@at_any_temperature
def attention_mean(query, key, value):
    """Every key gets the same weight, whatever the query asks."""
    return _attention(query, key, value, 0.0)


def attention_in_place(query, key, value, temperature=1.0):
    """/= writes into the caller's tensor; build a new one."""
    query /= query.shape[-1] ** 0.5
    return _attention(query, key, value, 1 / temperature)


@at_any_temperature
def attention_fixed_number(query, key, value):
    """d_k is not always 4: read it from the query, query.shape[-1]."""
    return _attention(query, key, value, 0.5)


@at_any_temperature
def attention_weights_turned(query, key, value):
    """A row of the weights belongs to a query: weights @ value, nothing turned."""
    return _scores(query, key).softmax(dim=-1).mT @ value


@at_any_temperature
def attention_number_of_queries(query, key, value):
    return _attention(query, key, value, query.shape[-2] ** -0.5)


@at_any_temperature
def attention_half(query, key, value):
    """** binds tighter than /: d ** 1 / 2 is d / 2. Write d ** 0.5."""
    return _attention(query, key, value, 2 / query.shape[-1])


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
    return _scores(query, key)


@at_any_temperature
def attention_key_and_value_swapped(query, key, value):
    """The query is compared with the keys, and what is read are the values."""
    return _scores(query, value).softmax(dim=-1) @ key


@at_any_temperature
def attention_softmax_twice(query, key, value):
    """One softmax is enough: a second one flattens the weights."""
    return _scores(query, key).softmax(dim=-1).softmax(dim=-1) @ value


def attention_without_temperature(query, key, value, temperature=1.0):
    """The temperature is accepted, and changes nothing: divide the scores by it."""
    return _attention(query, key, value)


def attention_times_temperature(query, key, value, temperature=1.0):
    """Multiplied by T the scores grow, and the weights get colder: divide by it."""
    return _attention(query * temperature, key, value)


def attention_temperature_in_the_root(query, key, value, temperature=1.0):
    """The root belongs to d_k alone: √(d_k · T) is too small a change."""
    return _attention(query / temperature**0.5, key, value)


def attention_temperature_added(query, key, value, temperature=1.0):
    """Divide by √d_k and by T, not by their sum."""
    return _attention(query, key, value, 1 / (query.shape[-1] ** 0.5 + temperature))


def attention_temperature_late(query, key, value, temperature=1.0):
    """After the softmax T changes all weights alike: divide the scores by it."""
    return _attention(query, key, value) / temperature


# --- 1.3 attention under a mask ---------------------------------------------------


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The reference: True = may be read; a query with nothing to read gets zeros."""
    empty = ~mask.any(dim=-1, keepdim=True)
    scores = _hide(query, key, mask).masked_fill(empty, 0.0)
    return scores.softmax(dim=-1).masked_fill(empty, 0.0) @ value


def masked_trials(dtype):
    yield _qkv((), 3, 3, 4, 4, 0, dtype) | {"mask": _past(3, 3)}
    some = randn(4, 6, seed=3, dtype=torch.float64) > -0.3
    some[0], some[:, 0] = True, True
    yield _qkv((2,), 4, 6, 9, 5, 1, dtype) | {"mask": some}
    nothing = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    nothing[0, :, 2] = False  # the third query of the first sentence may read nothing
    nothing[1, :, :, 3:] = False
    yield _qkv((2, 3), 5, 5, 8, 8, 2, dtype) | {"mask": nothing}
    yield _every_score_zero(dtype) | {"mask": _past(4, 4)}
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[:3, -1] = False
    yield _tall_last_key(dtype) | {"mask": mask}
    yield _two_lowest(dtype, 3e4)
    yield _two_lowest(dtype, 3e10)
    lengths = torch.arange(6) < torch.tensor([4, 0])[:, None, None]  # (2, 1, 6)
    yield _qkv((2,), 3, 6, 4, 4, 7, dtype) | {"mask": lengths}
    rows = torch.tensor([[True], [False], [True], [True]])  # (4, 1): all keys or none
    yield _qkv((), 4, 6, 4, 4, 8, dtype) | {"mask": rows}
    one = torch.tensor([[False, True, True]])
    yield _qkv((2,), 1, 3, 4, 4, 9, dtype) | {"mask": one}  # one query
    yield _transposed(_qkv((3, 2), 4, 5, 8, 6, 5, dtype)) | {"mask": _past(4, 5)}
    yield _qkv((), 3, 3, 4, 4, 6, dtype) | {"mask": _past(3, 3)}  # a shape seen before


def _past(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


def _every_score_zero(dtype):
    return _qkv((), 4, 4, 8, 6, 5, dtype) | {"query": torch.zeros(4, 8, dtype=dtype)}


def _tall_last_key(dtype):
    """Four words; the last key has a score of 200 with every query."""
    trial = _qkv((), 4, 4, 4, 4, 4, dtype)
    trial["query"][:, 0] = 1.0
    trial["key"][-1] = torch.tensor([400.0, 0.0, 0.0, 0.0], dtype=dtype)
    return trial


def _two_lowest(dtype, size):
    """Scores of about `size`, of which only the two lowest may be read."""
    trial = _qkv((), 3, 5, 4, 4, 6, dtype)
    for name in ("query", "key"):  # in equal parts: rounding would tell answers apart
        trial[name] = trial[name] * size**0.5
    scores = trial["query"].double() @ trial["key"].double().mT
    return trial | {"mask": scores <= scores.sort(dim=-1).values[:, 1:2]}


def _hide(query, key, mask, hidden=-math.inf):
    return _scores(query, key).masked_fill(~mask, hidden)


def _block(query, mask, hidden=-math.inf):
    """The mask as a float to add: 0 where True, `hidden` elsewhere."""
    zeros = torch.zeros(mask.shape, dtype=query.dtype)
    return zeros.masked_fill(~mask, hidden)


def masked_no_guard(query, key, value, mask):
    """A query with nothing to read becomes NaN; it should get zeros."""
    return _hide(query, key, mask).softmax(dim=-1) @ value


def masked_added_no_guard(query, key, value, mask):
    return (_scores(query, key) + _block(query, mask)).softmax(dim=-1) @ value


def masked_big_number(query, key, value, mask):
    """That query averages all it must not see; it should get zeros."""
    return _hide(query, key, mask, -1e9).softmax(dim=-1) @ value


def masked_big_number_added(query, key, value, mask):
    return (_scores(query, key) + _block(query, mask, -1e9)).softmax(dim=-1) @ value


def masked_lowest_number(query, key, value, mask):
    lowest = torch.finfo(query.dtype).min
    return _hide(query, key, mask, lowest).softmax(dim=-1) @ value


def masked_small_number(query, key, value, mask):
    """A number hides nothing from scores that are lower still, be it -100 or -1e9:
    fill with -inf."""
    return _hide(query, key, mask, -1e4).softmax(dim=-1) @ value


def masked_small_number_added(query, key, value, mask):
    return (_scores(query, key) + _block(query, mask, -1e4)).softmax(dim=-1) @ value


def masked_small_number_guarded(query, key, value, mask):
    weights = _hide(query, key, mask, -1e4).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True) @ value


def masked_small_number_times_mask(query, key, value, mask):
    return _hide(query, key, mask, -1e4).softmax(dim=-1) * mask @ value


def masked_small_number_added_guarded(query, key, value, mask):
    weights = (_scores(query, key) + _block(query, mask, -1e4)).softmax(dim=-1)
    return weights * _any(mask) @ value


def masked_big_number_guarded(query, key, value, mask):
    weights = _hide(query, key, mask, -1e9).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True) @ value


def masked_big_number_times_mask(query, key, value, mask):
    return _hide(query, key, mask, -1e9).softmax(dim=-1) * mask @ value


def masked_big_number_renormalised(query, key, value, mask):
    weights = _hide(query, key, mask, -1e9).softmax(dim=-1) * mask
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
    scores = _scores(query, key).masked_fill(hidden, -math.inf)
    return scores.softmax(dim=-1).masked_fill(zeroed, 0.0) @ value


def _any(mask):
    return mask.any(dim=-1, keepdim=True)


def masked_inverted_guarded(query, key, value, mask):
    return _hide_then_zero(query, key, value, mask & _any(mask), ~_any(mask))


def masked_inverted_or_empty(query, key, value, mask):
    return _hide_then_zero(query, key, value, mask | ~_any(mask), ~_any(mask))


def masked_not_emptied(query, key, value, mask):
    """A query with nothing to read now reads every key: set its weights to 0, too."""
    return _hide(query, key, mask | ~_any(mask)).softmax(dim=-1) @ value


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
    return (_scores(query, key).softmax(dim=-1) * mask) @ value


def masked_renormalised(query, key, value, mask):
    """A tall hidden score rounds all others to 0, and nothing is left to share out:
    hide before the softmax."""
    weights = _scores(query, key).softmax(dim=-1) * mask
    return weights / weights.sum(dim=-1, keepdim=True) @ value


def masked_renormalised_with_epsilon(query, key, value, mask):
    weights = _scores(query, key).softmax(dim=-1) * mask
    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-9) @ value


def masked_renormalised_clamped(query, key, value, mask):
    weights = _scores(query, key).softmax(dim=-1) * mask
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-9) @ value


def masked_renormalised_nan_to_num(query, key, value, mask):
    weights = _scores(query, key).softmax(dim=-1) * mask
    return (weights / weights.sum(dim=-1, keepdim=True)).nan_to_num() @ value


def masked_renormalised_guarded(query, key, value, mask):
    weights = _scores(query, key).softmax(dim=-1) * mask
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(~_any(mask), 1.0) @ value


def masked_renormalised_without_0(query, key, value, mask):
    weights = _scores(query, key).softmax(dim=-1) * mask
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0) @ value


def masked_exps(query, key, value, mask):
    exps = _scores(query, key).exp() * mask
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def masked_exps_with_epsilon(query, key, value, mask):
    exps = _scores(query, key).exp() * mask
    return exps / (exps.sum(dim=-1, keepdim=True) + 1e-9) @ value


def masked_safe_exps(query, key, value, mask):
    exps = softmax_not_normalised(_scores(query, key)) * mask
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def masked_safe_exps_with_epsilon(query, key, value, mask):
    exps = softmax_not_normalised(_scores(query, key)) * mask
    return exps / (exps.sum(dim=-1, keepdim=True) + 1e-9) @ value


def masked_by_product(query, key, value, mask):
    """A score of 0 is not hidden: exp(0) is 1."""
    return (_scores(query, key) * mask).softmax(dim=-1) @ value


def masked_by_product_guarded(query, key, value, mask):
    weights = (_scores(query, key) * mask).softmax(dim=-1)
    return weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0) @ value


def masked_added_as_ones(query, key, value, mask):
    """Adding 1 to what may be read hides nothing: add -inf to what may not."""
    return (_scores(query, key) + mask.to(query.dtype)).softmax(dim=-1) @ value


def masked_zero_times_inf(query, key, value, mask):
    """0 times -inf is NaN: build the mask with masked_fill or torch.where."""
    blocked = (~mask).to(query.dtype) * -math.inf
    return (_scores(query, key) + blocked).softmax(dim=-1) @ value


def masked_zero_times_inf_painted(query, key, value, mask):
    blocked = (~mask).to(query.dtype) * -math.inf
    return (_scores(query, key) + blocked).softmax(dim=-1).nan_to_num() @ value


def masked_zero_times_inf_guarded(query, key, value, mask):
    blocked = (~mask & _any(mask)).to(query.dtype) * -math.inf
    weights = (_scores(query, key) + blocked).softmax(dim=-1)
    return weights.masked_fill(~_any(mask), 0.0) @ value


def masked_zero_is_hidden(query, key, value, mask):
    """A score that is allowed, and happens to be 0, is hidden as well."""
    scores = _scores(query, key) * mask
    return scores.masked_fill(scores == 0, -1e9).softmax(dim=-1) * mask @ value


def masked_zero_is_inf(query, key, value, mask):
    scores = _scores(query, key) * mask
    return scores.masked_fill(scores == 0, -math.inf).softmax(dim=-1) @ value


def masked_zero_is_inf_painted(query, key, value, mask):
    scores = _scores(query, key) * mask
    weights = scores.masked_fill(scores == 0, -math.inf).softmax(dim=-1)
    return weights.nan_to_num() @ value


def masked_nan_gradient(query, key, value, mask):
    """The output is right, but a NaN arose, and only luck may keep it out of the
    gradients: repair the scores before the softmax; painting over a NaN is late."""
    scores = _scores(query, key) + _block(query, mask)
    return scores.softmax(dim=-1).nan_to_num() @ value


def masked_nan_filled(query, key, value, mask):
    return _hide(query, key, mask).softmax(dim=-1).nan_to_num() @ value


def masked_nan_filled_twice(query, key, value, mask):
    weights = _hide(query, key, mask).softmax(dim=-1)
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
    weights = _hide(query, key, mask).softmax(dim=-1)
    weights[weights.isnan()] = 0.0
    return weights @ value


def masked_nan_in_place_added(query, key, value, mask):
    weights = (_scores(query, key) + _block(query, mask)).softmax(dim=-1)
    weights[weights.isnan()] = 0.0
    return weights @ value


def masked_by_index(query, key, value, mask):
    """scores[~mask] does not broadcast: the axes of the mask must be the first axes of
    the scores. masked_fill(~mask, -inf) does, and leaves the old scores alone."""
    scores = _scores(query, key)
    scores[~mask] = -math.inf
    return scores.softmax(dim=-1) @ value


def masked_by_index_big(query, key, value, mask):
    scores = _scores(query, key)
    scores[~mask] = -1e9
    return scores.softmax(dim=-1) @ value


def masked_by_index_painted(query, key, value, mask):
    scores = _scores(query, key)
    scores[~mask] = -math.inf
    return scores.softmax(dim=-1).nan_to_num() @ value


def masked_any_without_keepdim(query, key, value, mask):
    """any(dim=-1) drops the axis of the keys: write keepdim=True."""
    empty = ~mask.any(dim=-1)
    weights = _hide(query, key, mask | empty).softmax(dim=-1)
    return weights.masked_fill(empty, 0.0) @ value


def masked_any_of_the_queries(query, key, value, mask):
    """any(dim=-2) asks which keys are read by anybody; ask which queries may read."""
    empty = ~mask.any(dim=-2, keepdim=True)
    weights = _hide(query, key, mask | empty).softmax(dim=-1)
    return weights.masked_fill(empty, 0.0) @ value


def masked_not_at_all(query, key, value, mask):
    """Every key is read."""
    return _attention(query, key, value)


def masked_not_at_all_guarded(query, key, value, mask):
    return _attention(query, key, value) * _any(mask)


def masked_no_scale(query, key, value, mask):
    """The scores are not divided by √d_k."""
    return masked_attention(query * query.shape[-1] ** 0.5, key, value, mask)


# --- 1.4 causal attention of the newest words -------------------------------------


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The reference: the last query reads every key, the one before it one less."""
    return masked_attention(query, key, value, _past(query.shape[-2], key.shape[-2]))


def causal_trials(dtype):
    yield _qkv((), 4, 4, 8, 6, 0, dtype)
    yield _qkv((2,), 3, 5, 8, 6, 1, dtype)
    yield _every_score_zero(dtype)
    yield _tall_last_key(dtype)
    large = _qkv((), 3, 4, 8, 6, 19, dtype)  # first query: below -37,000
    yield large | {name: large[name] * 170 for name in ("query", "key")}
    yield _qkv((2, 3), 1, 5, 4, 4, 3, dtype)  # the newest word alone
    yield _qkv((), 1, 1, 4, 4, 4, dtype)
    yield _transposed(_qkv((3, 2), 4, 6, 8, 6, 5, dtype))
    yield _qkv((2,), 3, 5, 8, 6, 6, dtype)  # a shape seen before
    yield _qkv((), 2, 20, 4, 4, 8, dtype)  # long


def _causal(query, key, value, mask, hidden=-math.inf):
    return _hide(query, key, mask, hidden).softmax(dim=-1) @ value


def _ones(query, key):
    return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)


def _offset(query, key):
    return key.shape[-2] - query.shape[-2]


def causal_by_scores(query, key, value):
    """A future score that is exactly 0 is not hidden: build it from ones."""
    future = _scores(query, key).triu(_offset(query, key) + 1).bool()
    return _causal(query, key, value, ~future)


def causal_by_scores_square(query, key, value):
    return _causal(query, key, value, ~_scores(query, key).triu(1).bool())


def causal_by_zero_scores(query, key, value):
    past = _scores(query, key).tril(_offset(query, key))
    return past.masked_fill(past == 0, -math.inf).softmax(dim=-1) @ value


def causal_upper_left(query, key, value):
    """With more keys than queries the last query must see all keys: tril(S - L)."""
    return _causal(query, key, value, _ones(query, key).tril())


def causal_offset_turned(query, key, value):
    """tril(L - S) hides more the more keys there are: it is S - L."""
    return _causal(query, key, value, _ones(query, key).tril(-_offset(query, key)))


def causal_offset_turned_big(query, key, value):
    mask = _ones(query, key).tril(-_offset(query, key))
    return _causal(query, key, value, mask, -1e9)


def causal_offset_turned_guarded(query, key, value):
    mask = _ones(query, key).tril(-_offset(query, key))
    return masked_attention(query, key, value, mask)


def causal_square(query, key, value):
    """A mask of (L, L) or (S, S) fits only where there are as many keys as queries."""
    mask = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).tril()
    return _causal(query, key, value, mask)


def causal_square_of_keys(query, key, value):
    mask = torch.ones(key.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    return _causal(query, key, value, mask)


def causal_last_keys(query, key, value):
    """The newest words read all older ones, too, not the last L keys alone."""
    newest = slice(-query.shape[-2], None)
    return causal_attention(query, key[..., newest, :], value[..., newest, :])


def causal_inverted(query, key, value):
    """The queries read only what comes later."""
    mask = ~_ones(query, key).tril(_offset(query, key))
    return masked_attention(query, key, value, mask)


def causal_inverted_inf(query, key, value):
    return _causal(query, key, value, ~_ones(query, key).tril(_offset(query, key)))


def causal_inverted_big(query, key, value):
    mask = ~_ones(query, key).tril(_offset(query, key))
    return _causal(query, key, value, mask, -1e9)


def causal_future(query, key, value):
    """triu where tril is meant: the past is hidden, the future read."""
    return _causal(query, key, value, _ones(query, key).triu(_offset(query, key)))


def causal_future_square(query, key, value):
    return _causal(query, key, value, _ones(query, key).triu())


def causal_without_self(query, key, value):
    """The diagonal belongs to what may be read."""
    mask = _ones(query, key).tril(_offset(query, key) - 1)
    return masked_attention(query, key, value, mask)


def causal_without_self_inf(query, key, value):
    return _causal(query, key, value, _ones(query, key).tril(_offset(query, key) - 1))


def causal_without_self_big(query, key, value):
    mask = _ones(query, key).tril(_offset(query, key) - 1)
    return _causal(query, key, value, mask, -1e9)


def causal_sees_next(query, key, value):
    """tril(S - L + 1) lets every query read the token after it."""
    return _causal(query, key, value, _ones(query, key).tril(_offset(query, key) + 1))


def causal_after_softmax(query, key, value):
    """The future has already taken its share; the rows no longer sum to 1."""
    return _scores(query, key).softmax(dim=-1).tril(_offset(query, key)) @ value


def causal_renormalised(query, key, value):
    """A tall score of the future rounds the past to 0, and nothing is left to share
    out: hide before the softmax."""
    weights = _scores(query, key).softmax(dim=-1).tril(_offset(query, key))
    return weights / weights.sum(dim=-1, keepdim=True) @ value


def causal_renormalised_with_epsilon(query, key, value):
    weights = _scores(query, key).softmax(dim=-1).tril(_offset(query, key))
    return weights / (weights.sum(dim=-1, keepdim=True) + 1e-9) @ value


def causal_exps(query, key, value):
    exps = _scores(query, key).exp().tril(_offset(query, key))
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def causal_safe_exps(query, key, value):
    exps = softmax_not_normalised(_scores(query, key)).tril(_offset(query, key))
    return exps / exps.sum(dim=-1, keepdim=True) @ value


def causal_added_as_ones(query, key, value):
    """Adding 1, or True, hides nothing: add -inf to the future."""
    past = _ones(query, key).tril(_offset(query, key))
    return (_scores(query, key) + past.to(query.dtype)).softmax(dim=-1) @ value


def causal_future_added(query, key, value):
    future = ~_past(query.shape[-2], key.shape[-2])
    return (_scores(query, key) + future).softmax(dim=-1) @ value


def causal_zero_times_inf(query, key, value):
    """0 times -inf is NaN: build the mask with masked_fill or torch.where."""
    blocked = (~_past(query.shape[-2], key.shape[-2])).to(query.dtype) * -math.inf
    return (_scores(query, key) + blocked).softmax(dim=-1) @ value


def causal_zeroed_scores(query, key, value):
    """exp(0) is 1: hidden scores must be -inf."""
    return _scores(query, key).tril(_offset(query, key)).softmax(dim=-1) @ value


def causal_zeroed_scores_square(query, key, value):
    return _scores(query, key).tril().softmax(dim=-1) @ value


def causal_small_number(query, key, value):
    """A number hides nothing from scores that are lower still, be it -100 or -10,000:
    fill with -inf."""
    return _causal(query, key, value, _past(query.shape[-2], key.shape[-2]), -1e4)


def causal_small_number_added(query, key, value):
    block = _block(query, _past(query.shape[-2], key.shape[-2]), -1e4)
    return (_scores(query, key) + block).softmax(dim=-1) @ value


def causal_by_index(query, key, value):
    """scores[~mask] does not broadcast: the axes of the mask must be the first axes of
    the scores. masked_fill(~mask, -inf) does, and leaves the old scores alone."""
    scores = _scores(query, key)
    scores[~_past(query.shape[-2], key.shape[-2])] = -math.inf
    return scores.softmax(dim=-1) @ value


def causal_by_index_square(query, key, value):
    scores = _scores(query, key)
    scores[~_ones(query, key).tril()] = -math.inf
    return scores.softmax(dim=-1) @ value


def causal_first_axes(query, key, value):
    """len and shape[0], shape[1] count from the front; L and S are shape[-2]."""
    mask = torch.ones(len(query), len(key), dtype=torch.bool)
    return _causal(query, key, value, mask.tril(len(key) - len(query)))


def causal_second_axes(query, key, value):
    queries, keys = query.shape[1], key.shape[1]
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return _causal(query, key, value, mask)


def causal_no_scale(query, key, value):
    """The scores are not divided by √d_k."""
    return causal_attention(query * query.shape[-1] ** 0.5, key, value)


def causal_no_mask(query, key, value):
    """Every query reads the future."""
    return _attention(query, key, value)


# --- 1.5 a test for the future ----------------------------------------------------

WORDS = 8  # in the sentences on which the reference tries a function


def reads_the_future(attend) -> bool:
    """The reference: change one word after another; does an earlier output move?"""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    before = attend(x, x, x)
    for word in range(1, WORDS):
        changed = x.clone()
        changed[word] = randn(4, seed=word, dtype=torch.float64)
        after = attend(changed, changed, changed)
        if not torch.allclose(after[:word], before[:word]):
            return True
    return False


def _reads(query, key, value, allowed):
    """Masked attention, where allowed(i, j) says whether query i may read key j."""
    i = torch.arange(query.shape[-2])[:, None]
    j = torch.arange(key.shape[-2])
    return masked_attention(query, key, value, allowed(i, j))


def past_and_self(query, key, value):
    return causal_attention(query, key, value)


def past_without_self(query, key, value):
    return causal_without_self(query, key, value)


def only_itself(query, key, value):
    return _reads(query, key, value, torch.eq)


def last_three_words(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) & (j > i - 3))


def past_without_scale(query, key, value):
    return causal_no_scale(query, key, value)


def past_colder_in_longer_texts(query, key, value):
    """Scores times the logarithm of the number of words, as some models do."""
    return causal_attention(query * math.log(1 + len(key)), key, value)


def every_word(query, key, value):
    return attention(query, key, value)


def one_word_ahead(query, key, value):
    return causal_sees_next(query, key, value)


def hidden_after_the_softmax(query, key, value):
    return causal_after_softmax(query, key, value)


def ones_added(query, key, value):
    return causal_added_as_ones(query, key, value)


def only_the_last_word_hidden(query, key, value):
    def allowed(i, j):
        return (j <= i) | (j < query.shape[-2] - 1)

    return _reads(query, key, value, allowed)


def only_the_last_word_shown(query, key, value):
    def allowed(i, j):
        return (j <= i) | (j == query.shape[-2] - 1)

    return _reads(query, key, value, allowed)


def first_word_peeks_at_the_second(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) | (i + j == 1))


def first_word_is_honest(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) | (i > 0))


def centred_values(query, key, value):
    return causal_attention(query, key, value - value.mean(dim=-2, keepdim=True))


def centred_queries(query, key, value):
    return causal_attention(query - query.mean(dim=-2, keepdim=True), key, value)


def two_words_ahead(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) | (j == i + 2))


def third_word_shown(query, key, value):
    return _reads(query, key, value, lambda i, j: (j <= i) | (j == 2))


def hidden_by_minus_five(query, key, value):
    past = _past(query.shape[-2], key.shape[-2])
    return _causal(query, key, value, past, -5.0)


HONEST = (
    past_and_self,
    past_without_self,
    only_itself,
    last_three_words,
    past_without_scale,
    past_colder_in_longer_texts,
)
LEAKY = (
    every_word,
    one_word_ahead,
    hidden_after_the_softmax,
    ones_added,
    only_the_last_word_hidden,
    only_the_last_word_shown,
    first_word_peeks_at_the_second,
    first_word_is_honest,
    centred_values,
    centred_queries,
    two_words_ahead,
    third_word_shown,
    hidden_by_minus_five,
)


def future_trials(dtype):
    for honest in HONEST:
        yield {"attend": honest}
    for leaky in LEAKY:
        yield {"attend": leaky}


def _moved(attend, change, rows=slice(None)):
    """Whether `change(query, key, value, word)` moves an output before that word."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    before = attend(x, x, x)
    for word in range(1, WORDS):
        after = attend(*change(x, x, x, word))
        if not torch.allclose(after[:word][rows], before[:word][rows]):
            return True
    return False


def _changed(x, word):
    changed = x.clone()
    changed[word:] += randn(*x[word:].shape, seed=word, dtype=x.dtype)
    return changed


def future_turned(attend):
    """True is to say that it DOES read the future; yours says the opposite."""
    return not reads_the_future(attend)


def future_always(attend):
    """You call every function a leak, even one that is right. The output of the
    changed word itself may move: compare the earlier ones alone. Start each time from a
    fresh x.clone(), and change it to ordinary numbers: 0 · inf and 0 · NaN are NaN."""
    return True


def future_never(attend):
    """You find no leak anywhere. Change a later word by much, in a clone (c = x is the
    same tensor), and compare what the words before it have read."""
    return False


def future_values_only(attend):
    """A later key can be felt without its value being read: through the sum that the
    softmax divides by. Change the keys as well."""
    return _moved(attend, lambda q, k, v, word: (q, k, _changed(v, word)))


def future_keys_only(attend):
    """The later values are read, too: change them as well."""
    return _moved(attend, lambda q, k, v, word: (q, _changed(k, word), v))


def future_last_word_only(attend):
    """A leak of any other word is not felt: change one word after another."""
    return _moves_before(attend, WORDS - 1)


def future_middle_word_only(attend):
    return _moves_before(attend, WORDS // 2)


def future_second_half_only(attend):
    return _moves_before(attend, WORDS // 2, WORDS)


def _moves_before(attend, word, stop=None):
    """Whether new words from `word` to `stop` move an output before them."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    changed, stop = x.clone(), stop or word + 1
    changed[word:stop] = randn(stop - word, 4, seed=1, dtype=x.dtype)
    before, after = attend(x, x, x), attend(changed, changed, changed)
    return not torch.allclose(after[:word], before[:word])


def future_two_words(attend):
    """Two words are too few: some leaks need three. Try a longer text."""
    x = randn(2, 4, seed=0, dtype=torch.float64)
    changed = torch.stack([x[0], -x[1]])
    after = attend(changed, changed, changed)
    return not torch.allclose(after[0], attend(x, x, x)[0])


def future_cut_off(attend):
    """Without its later words a text is shorter, and a function may use its length.
    Leave the words there, and change what they are."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    whole = attend(x, x, x)
    starts = (x[:words] for words in range(1, WORDS))
    return not all(torch.allclose(attend(s, s, s), whole[: len(s)]) for s in starts)


def future_first_output_only(attend):
    """Only the first output was compared: others may leak though the first does not."""

    def change(q, k, v, word):
        return (_changed(q, word),) * 3

    return _moved(attend, change, rows=slice(0, 1))


def future_first_word_kept(attend):
    return _moves_before(attend, 1, WORDS)


def future_queries_not_changed(attend):
    """A later query can be felt where queries are compared: change it as well."""

    def change(q, k, v, word):
        return q, _changed(k, word), _changed(v, word)

    return _moved(attend, change)


def future_queries_only(attend):
    """The later keys and values are read: change them as well."""
    return _moved(attend, lambda q, k, v, word: (_changed(q, word), k, v))


def future_without_last(attend):
    """A leak may be of one word alone: change each word but the first, the last too."""
    return any(_moves_before(attend, word) for word in range(1, WORDS - 1))


def future_from_the_third(attend):
    return any(_moves_before(attend, word) for word in range(2, WORDS))


def future_every_second_word(attend):
    return any(_moves_before(attend, word) for word in range(1, WORDS, 2))


def future_every_other_second_word(attend):
    return any(_moves_before(attend, word) for word in range(2, WORDS, 2))


def future_neighbour_only(attend):
    """Only the word just before the changed one was compared: a leak may go further."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    before = attend(x, x, x)
    for word in range(1, WORDS):
        changed = x.clone()
        changed[word] = randn(4, seed=word, dtype=x.dtype)
        after = attend(changed, changed, changed)
        if not torch.allclose(after[word - 1], before[word - 1]):
            return True
    return False


def future_coarse(attend):
    """A leak may be small: compare up to rounding (torch.allclose), not to a tenth."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    before = attend(x, x, x)
    for word in range(1, WORDS):
        changed = x.clone()
        changed[word] = randn(4, seed=word, dtype=x.dtype)
        after = attend(changed, changed, changed)
        if not torch.allclose(after[:word], before[:word], atol=0.1):
            return True
    return False


def future_past_changed(attend):
    """That an earlier word is felt later is what attention is for: change a later word,
    and look at the earlier ones."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    changed = torch.cat([-x[:1], x[1:]])
    after = attend(changed, changed, changed)
    return not torch.allclose(after[1:], attend(x, x, x)[1:])


def future_shuffled(attend):
    """Later words that change places are still the same words: without a mask attention
    does not notice. Change what they are."""

    def change(q, k, v, word):
        turned = torch.cat([q[:word], q[word:].flip(0)])
        return (turned,) * 3

    return _moved(attend, change)


def future_compared_with_causal(attend):
    """A function may be honest and yet not be full causal attention, such as one with a
    window of three words. Ask only whether later words have an influence."""
    x = randn(WORDS, 4, seed=0, dtype=torch.float64)
    return not torch.allclose(attend(x, x, x), causal_attention(x, x, x))


EXERCISES = (
    Exercise(
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
    ),
    Exercise(
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
            "** 1 / 2 is not a root": attention_half,
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
    ),
    Exercise(
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
    ),
    Exercise(
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
    ),
    Exercise(
        "1.5",
        "A test for the future",
        reads_the_future,
        future_trials,
        {
            "True for every function": future_always,
            "False for every function": future_never,
            "the answer turned round": future_turned,
            "only the values changed": future_values_only,
            "only the keys changed": future_keys_only,
            "only one place changed": (
                future_last_word_only,
                future_middle_word_only,
                future_second_half_only,
            ),
            "not every place changed": (
                future_without_last,
                future_from_the_third,
                future_every_second_word,
                future_every_other_second_word,
            ),
            "the queries not changed": future_queries_not_changed,
            "only the queries changed": future_queries_only,
            "only the neighbour compared": future_neighbour_only,
            "a comparison too coarse": future_coarse,
            "the past changed, not the future": future_past_changed,
            "a text of two words": future_two_words,
            "later words cut off": future_cut_off,
            "only the first output compared": (
                future_first_output_only,
                future_first_word_kept,
            ),
            "the future only shuffled": future_shuffled,
            "compared with causal attention": future_compared_with_causal,
        },
        gradients=False,
    ),
)

# What the page shows to be broken -> the exercise and the mistake that reject it.
SHOWN = {
    "raw / raw.sum()": ("1.1", "no exponential"),
    "return scores.exp() / scores.exp().sum(": ("1.1", "no maximum subtracted"),
    "one maximum for the whole tensor": ("1.1", "one maximum for all rows"),
    "`scores -= …` writes": ("1.1", "in-place edit of the scores"),
    "so the axis is gone": ("1.1", "keepdim forgotten"),
    "F.one_hot(best, ": ("1.2", "argmax instead of softmax"),
    "`key.T` turns *all* axes": ("1.2", "other axes of key swapped"),
    "`softmax(dim=1)` is": ("1.2", "softmax over the wrong axis"),
    "`len(query)` is": ("1.2", "len() as d_k"),
    "is not $\\sqrt{d_k}\\,T$": ("1.2", "the temperature under the root"),
    "dividing the *weights* by $T$": ("1.2", "temperature after the softmax"),
    "softmax(dim=-1) * causal": ("1.4", "mask after softmax"),
    "after / after.sum(": ("1.4", "renormalised after the softmax"),
    "tall.softmax(dim=-1) * seen": ("1.3", "mask after softmax"),
    "late / late.sum()": ("1.3", "renormalised after the softmax"),
    "Adding a little to the sum": ("1.3", "renormalised after the softmax"),
    "scaled_scores(query, key) + causal.float()": ("1.4", "mask added as ones"),
    "a float mask of zeros and ones, *added*": ("1.3", "mask added as ones"),
    "def fill_inf": ("1.3", "-inf where nothing may be read"),
    "def fill_billion": ("1.3", "−1e9 where nothing may be read"),
    "*A large number instead of −inf*": ("1.3", "a fill that is not low enough"),
    "def paint_output": ("1.3", "NaN painted over"),
    "def paint_added": ("1.3", "NaN painted over"),
    "def paint_filled": ("1.3", "NaN painted over"),
    "`masked_fill(mask, -inf)` hides": ("1.3", "inverted mask"),
    "`scores[~mask] = -inf` does not": ("1.3", "scores indexed with the mask"),
    "is_causal=True": ("1.4", "upper-left alignment"),
    "`tril()` without `S - L`": ("1.4", "upper-left alignment"),
    "`torch.triu(scores, 1).bool()`": ("1.4", "zero scores used as a mask"),
    "*Only the values are changed*": ("1.5", "only the values changed"),
    "*Only the last word is changed*": ("1.5", "only one place changed"),
    "*The words after t are shuffled*": ("1.5", "the future only shuffled"),
    "*The later words are cut off*": ("1.5", "later words cut off"),
}
