"""Exercises of notebook 01: softmax, attention, a mask, the newest words, a test.

Each exercise is a reference, its trials and its known mistakes. A mistake's docstring
is what the learner reads; where one mistake has several forms, the first one speaks.
"""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

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
    yield {"scores": randn(2, 1, 2, 1, seed=3, dtype=dtype)}  # one key: weight 1
    strided = randn(3, 2, 3, seed=4, dtype=dtype).transpose(0, 1)
    yield {"scores": strided + 500}
    yield {"scores": randn(3, 5, seed=5, dtype=dtype)}  # a shape seen before
    yield {"scores": torch.zeros(2, 4, dtype=dtype)}


def softmax_overflowing(scores):
    """exp(1000) is inf, and inf / inf is NaN: subtract each row's maximum first."""
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


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


def softmax_clamped(scores):
    """Above the limit all scores become equal: subtract the maximum, cut nothing."""
    return softmax_overflowing(scores.clamp(max=80.0))


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


# --- 1.2 attention ----------------------------------------------------------------


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The reference: softmax(query keyᵀ / √d_k) value, for any leading axes."""
    return _scores(query, key).softmax(dim=-1) @ value


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
    yield small
    yield _qkv((2,), 4, 6, 9, 5, 1, dtype)
    yield _qkv((2, 3), 5, 5, 8, 8, 2, dtype)
    yield small | {"query": small["query"] * 300}  # exp of such scores overflows
    yield _qkv((1,), 1, 3, 4, 4, 3, dtype)  # one query
    yield _qkv((2,), 3, 1, 4, 2, 4, dtype)  # one key
    yield _transposed(_qkv((3, 2), 4, 5, 8, 6, 5, dtype))  # strided
    silent = _qkv((), 3, 4, 4, 4, 6, dtype)
    silent["query"][1] = 0.0  # a query that asks for nothing: equal shares
    yield silent | {"query": silent["query"] * 3}
    yield _qkv((2,), 4, 6, 9, 5, 7, dtype)  # a shape seen before


def _attention(query, key, value, factor=None, dim=-1):
    factor = query.shape[-1] ** -0.5 if factor is None else factor
    return (query @ key.mT * factor).softmax(dim=dim) @ value


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


def attention_len(query, key, value):
    """len counts the first axis; d_k is the last, query.shape[-1]."""
    return _attention(query, key, value, len(query) ** -0.5)


def attention_len_of_key(query, key, value):
    return _attention(query, key, value, len(key) ** -0.5)


def attention_second_axis(query, key, value):
    """shape[1] is d_k only where nothing stands in front: write query.shape[-1]."""
    return _attention(query, key, value, query.shape[1] ** -0.5)


def attention_value_size(query, key, value):
    """The scale depends on the features of query and key, not on those of value."""
    return _attention(query, key, value, value.shape[-1] ** -0.5)


def attention_wrong_axis(query, key, value):
    """Each query (a row) shares out 1 among the keys: softmax(dim=-1)."""
    return _attention(query, key, value, dim=-2)


def attention_first_axis(query, key, value):
    return _attention(query, key, value, dim=0)


def attention_axis_from_the_front(query, key, value):
    return _attention(query, key, value, dim=1)


def attention_without_dim(query, key, value):
    """Without dim, F.softmax chooses an axis by their number: write dim=-1."""
    return softmax_without_dim(_scores(query, key)) @ value


def attention_all_axes_turned(query, key, value):
    """key.mT swaps the last two axes, however many stand in front of them."""
    turned = key.permute(*reversed(range(key.dim())))  # what key.T does
    return _softmax_read(query @ turned, query, value)


def attention_first_axes_turned(query, key, value):
    return _softmax_read(query @ key.transpose(0, 1), query, value)


def attention_second_axes_turned(query, key, value):
    return _softmax_read(query @ key.transpose(1, 2), query, value)


def _softmax_read(products, query, value):
    return (products / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


def attention_overflowing(query, key, value):
    """exp of a large score is inf: use softmax, or subtract each row's maximum."""
    return softmax_overflowing(_scores(query, key)) @ value


def attention_not_normalised(query, key, value):
    """The weights of a query must sum to 1: divide by the sum of the row."""
    return softmax_not_normalised(_scores(query, key)) @ value


def attention_one_sum(query, key, value):
    """exps.sum() adds up every row: write .sum(dim=-1, keepdim=True)."""
    return softmax_one_sum(_scores(query, key)) @ value


def attention_one_sum_overflowing(query, key, value):
    return softmax_all_overflowing(_scores(query, key)) @ value


def attention_reads_keys(query, key, value):
    """Keys are compared; what is read, and mixed, are the values."""
    return _attention(query, key, key)


def attention_roles_swapped(query, key, value):
    """Rows are queries: query @ key.mT, not key @ query.mT."""
    return _scores(key, query).softmax(dim=-1) @ value


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
    return _scores(query, key) @ value


def attention_without_exp(query, key, value):
    """Scores may be negative or sum to 0: a share needs softmax."""
    return softmax_without_exp(_scores(query, key)) @ value


def attention_return_value(query, key, value):
    """Nothing is attended to: every query must mix all values."""
    return value


def attention_mean(query, key, value):
    """Every key gets the same weight, whatever the query asks."""
    return _attention(query, key, value, 0.0)


def attention_in_place(query, key, value):
    """/= writes into the caller's tensor; build a new one."""
    query /= query.shape[-1] ** 0.5
    return _attention(query, key, value, 1.0)


# --- 1.3 attention under a mask ---------------------------------------------------


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """The reference: True = may be read; a query with nothing to read gets zeros."""
    scores = _scores(query, key)
    empty = ~mask.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(mask | empty), -math.inf).softmax(dim=-1)
    return weights.masked_fill(empty, 0.0) @ value


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
    yield _two_lowest(dtype)
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


def _two_lowest(dtype):
    """Scores of 10,000 and more, of which only the two lowest may be read."""
    trial = _qkv((), 3, 5, 4, 4, 6, dtype)
    trial["query"] = trial["query"] * 3e4
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
    """-10,000 hides nothing from scores that are lower still: fill with -inf."""
    return _hide(query, key, mask, -1e4).softmax(dim=-1) @ value


def masked_small_number_added(query, key, value, mask):
    return (_scores(query, key) + _block(query, mask, -1e4)).softmax(dim=-1) @ value


def masked_small_number_guarded(query, key, value, mask):
    weights = _hide(query, key, mask, -1e4).softmax(dim=-1)
    return weights * mask.any(dim=-1, keepdim=True) @ value


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


def masked_zero_is_hidden(query, key, value, mask):
    """A score that is allowed, and happens to be 0, is hidden as well."""
    scores = _scores(query, key) * mask
    return scores.masked_fill(scores == 0, -1e9).softmax(dim=-1) * mask @ value


def masked_zero_is_inf(query, key, value, mask):
    scores = _scores(query, key) * mask
    return scores.masked_fill(scores == 0, -math.inf).softmax(dim=-1) @ value


def masked_nan_gradient(query, key, value, mask):
    """The output is right, but the NaN was there, and backwards 0 · NaN is NaN: repair
    the scores before the softmax; nan_to_num or torch.where after it come too late."""
    scores = _scores(query, key) + _block(query, mask)
    return scores.softmax(dim=-1).nan_to_num() @ value


def masked_nan_output(query, key, value, mask):
    return masked_no_guard(query, key, value, mask).nan_to_num()


def masked_nan_output_added(query, key, value, mask):
    return masked_added_no_guard(query, key, value, mask).nan_to_num()


def masked_nan_output_where(query, key, value, mask):
    read = masked_no_guard(query, key, value, mask)
    return torch.where(mask.any(dim=-1, keepdim=True), read, 0.0)


def masked_nan_in_place(query, key, value, mask):
    """w[w.isnan()] = 0 overwrites what the backward pass needs. Keep the NaN from
    arising: leave the scores of such a row as they are, then empty its weights."""
    weights = _hide(query, key, mask).softmax(dim=-1)
    weights[weights.isnan()] = 0.0
    return weights @ value


def masked_nan_in_place_added(query, key, value, mask):
    weights = (_scores(query, key) + _block(query, mask)).softmax(dim=-1)
    weights[weights.isnan()] = 0.0
    return weights @ value


def masked_by_index(query, key, value, mask):
    """scores[~mask] needs a mask of exactly the shape of the scores; masked_fill(~mask,
    -inf) broadcasts, and leaves the old scores alone."""
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
    large = _qkv((), 3, 4, 8, 6, 19, dtype)  # first query: below -39,000
    yield large | {"query": large["query"] * 3e4}
    yield _qkv((2, 3), 1, 5, 4, 4, 3, dtype)  # the newest word alone
    yield _qkv((), 1, 1, 4, 4, 4, dtype)
    yield _transposed(_qkv((3, 2), 4, 6, 8, 6, 5, dtype))
    yield _qkv((2,), 3, 5, 8, 6, 6, dtype)  # a shape seen before


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
    """Adding 1 to the past hides nothing: add -inf to the future."""
    past = _ones(query, key).tril(_offset(query, key))
    return (_scores(query, key) + past.to(query.dtype)).softmax(dim=-1) @ value


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
    """-10,000 hides nothing from scores that are lower still: fill with -inf."""
    return _causal(query, key, value, _past(query.shape[-2], key.shape[-2]), -1e4)


def causal_by_index(query, key, value):
    """scores[~mask] needs a mask of exactly the shape of the scores; masked_fill(~mask,
    -inf) broadcasts, and leaves the old scores alone."""
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


HONEST = (
    past_and_self,
    past_without_self,
    only_itself,
    last_three_words,
    past_without_scale,
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
    changed word itself may move: compare the earlier ones alone. And change it to
    ordinary numbers: 0 · inf and 0 · NaN are NaN, hidden or not."""
    return True


def future_never(attend):
    """You find no leak anywhere. Change a later word by much, and compare what the
    words before it have read."""
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


def future_first_output_only(attend):
    """Only the first output was compared: others may leak though the first does not."""

    def change(q, k, v, word):
        return (_changed(q, word),) * 3

    return _moved(attend, change, rows=slice(0, 1))


def future_first_word_kept(attend):
    return _moves_before(attend, 1, WORDS)


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
            "no maximum subtracted": softmax_overflowing,
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
            "scores cut off": softmax_clamped,
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
            "weights returned": attention_weights,
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
            ),
            "mask after softmax": masked_after_softmax,
            "renormalised after the softmax": (
                masked_renormalised,
                masked_renormalised_with_epsilon,
                masked_renormalised_clamped,
                masked_renormalised_nan_to_num,
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
            ),
            "-inf where nothing may be read": (masked_no_guard, masked_added_no_guard),
            "NaN painted over": (
                masked_nan_gradient,
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
            "0 times -inf": masked_zero_times_inf,
            "0 read as hidden": (masked_zero_is_hidden, masked_zero_is_inf),
            "no mask": masked_not_at_all,
            "no scale": masked_no_scale,
        },
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
            "a square mask": (causal_square, causal_square_of_keys),
            "inverted mask": (
                causal_inverted,
                causal_inverted_inf,
                causal_inverted_big,
            ),
            "the future instead of the past": causal_future,
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
            "mask added as ones": causal_added_as_ones,
            "0 times -inf": causal_zero_times_inf,
            "a fill that is not low enough": causal_small_number,
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
    "(query @ key.mT).softmax(dim=-1) @ value": ("1.2", "no scale"),
    "`key.T` turns *all* axes": ("1.2", "other axes of key swapped"),
    "`softmax(dim=1)` is": ("1.2", "softmax over the wrong axis"),
    "`len(query)` is": ("1.2", "len() as d_k"),
    "softmax(dim=-1) * causal": ("1.4", "mask after softmax"),
    "after / after.sum(": ("1.4", "renormalised after the softmax"),
    "tall.softmax(dim=-1) * may_read": ("1.3", "mask after softmax"),
    "late / late.sum()": ("1.3", "renormalised after the softmax"),
    "Adding a little to the sum": ("1.3", "renormalised after the softmax"),
    "scaled_scores(query, key) + causal.float()": ("1.4", "mask added as ones"),
    "a float mask of zeros and ones, *added*": ("1.3", "mask added as ones"),
    "def fill_inf": ("1.3", "-inf where nothing may be read"),
    "def fill_billion": ("1.3", "−1e9 where nothing may be read"),
    "def paint_output": ("1.3", "NaN painted over"),
    "def paint_added": ("1.3", "NaN painted over"),
    "`masked_fill(mask, -inf)` hides": ("1.3", "inverted mask"),
    "`scores[~mask] = -inf` needs": ("1.3", "scores indexed with the mask"),
    "is_causal=True": ("1.4", "upper-left alignment"),
    "`tril()` without `S - L`": ("1.4", "upper-left alignment"),
    "`torch.triu(scores, 1).bool()`": ("1.4", "zero scores used as a mask"),
    "*Only the values are changed*": ("1.5", "only the values changed"),
    "*Only the last word is changed*": ("1.5", "only one place changed"),
    "*The words after t are shuffled*": ("1.5", "the future only shuffled"),
}
