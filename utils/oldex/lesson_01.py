"""Exercises of lesson 01: softmax, attention, a mask, the newest tokens, a test.

Each exercise is a reference, its trials and its known mistakes, each with its name,
what is wrong with it (the learner reads that), and the code that makes it."""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.oldex.engine import WITHOUT_NAN, Exercise, randn

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
"""

INF = math.inf


# --- 1.1 --------------------------------------------------------------------------


def softmax(scores: Tensor) -> Tensor:
    """Return exp of each score's distance to the row's largest, made to sum to 1."""
    return shares(distances(scores).exp())


def shares(numbers):
    """Return each row divided by its sum."""
    return numbers / numbers.sum(dim=-1, keepdim=True)


def distances(scores):
    """Return the scores minus the largest of their row."""
    return scores - largest(scores)


def largest(scores):
    return scores.amax(dim=-1, keepdim=True)


def softmax_trials(dtype):
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


stable = Exercise("1.1", "A softmax that cannot overflow", softmax, softmax_trials)


def overflowing(scores):
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def without_dim(scores):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return F.softmax(scores)


stable.wrong(
    "no maximum subtracted",
    "exp(1000) is inf, and inf / inf is NaN: subtract each row's maximum first.",
    overflowing,
    lambda s: s.exp() / (s.exp().sum(dim=-1, keepdim=True) + 1e-9),
)
stable.wrong(
    "double precision instead of a maximum",
    "exp(1000) is inf in double precision, too: subtract each row's maximum first.",
    lambda s: overflowing(s.double()).to(s.dtype),
    lambda s: overflowing(s.double()),
)
stable.wrong(
    "a loop over the first axis",
    "Scores with one axis have no rows to loop over: use dim=-1, without a loop.",
    lambda s: torch.stack([row.softmax(dim=-1) for row in s]),
    lambda s: torch.stack([overflowing(row - row.max()) for row in s]),
)
stable.wrong(
    "NaN painted over",
    "nan_to_num comes too late: subtract each row's maximum, so that no NaN arises.",
    lambda s: overflowing(s).nan_to_num(),
)
stable.wrong(
    "subtracted the wrong way round",
    "The largest score must get the largest weight: scores minus maximum.",
    lambda s: overflowing(largest(s) - s),
)
stable.wrong(
    "subtracted in one place only",
    "Subtract the same maximum in the numerator and in the sum; then it cancels.",
    lambda s: s.exp() / distances(s).exp().sum(dim=-1, keepdim=True),
    lambda s: distances(s).exp() / s.exp().sum(dim=-1, keepdim=True),
)
stable.wrong(
    "divided by the maximum",
    "Division changes the differences between the scores: subtract the maximum.",
    lambda s: overflowing(s / largest(s)),
)
stable.wrong(
    "softmax over the wrong axis",
    "Each row (the last axis) must sum to 1; here another axis does.",
    lambda s: s.softmax(dim=0 if s.dim() == 1 else -2),
    lambda s: s.softmax(dim=0),
    lambda s: s.softmax(dim=1),
)
stable.wrong(
    "softmax without dim",
    "Without dim, F.softmax chooses an axis by their number: write dim=-1.",
    without_dim,
)
stable.wrong(
    "one sum for all rows",
    "Each row is a distribution of its own: sum with dim=-1, keepdim=True.",
    lambda s: distances(s).exp() / distances(s).exp().sum(),
    lambda s: s.exp() / s.exp().sum(),
    lambda s: s.flatten().softmax(0).view(s.shape),
)
stable.wrong(
    "keepdim forgotten",
    "Without keepdim=True the last axis is gone, and the rows do not fit: keep it.",
    lambda s: shares((s - s.amax(dim=-1)).exp()),
    lambda s: distances(s).exp() / distances(s).exp().sum(dim=-1),
    lambda s: (s - s.amax(dim=-1)).exp() / (s - s.amax(dim=-1)).exp().sum(dim=-1),
)
stable.wrong(
    "mean or minimum instead of the maximum",
    "exp still overflows above the mean: subtract each row's maximum.",
    lambda s: overflowing(s - s.mean(dim=-1, keepdim=True)),
    lambda s: overflowing(s - s.amin(dim=-1, keepdim=True)),
)
stable.wrong(
    "the largest absolute value instead of the maximum",
    "Of -2000 and -2001 the larger is -2000: subtract the maximum, without abs.",
    lambda s: overflowing(s - largest(s.abs())),
)
stable.wrong(
    "scores clamped",
    "All scores above the limit become equal: subtract the maximum, clamp nothing.",
    lambda s: overflowing(s.clamp(max=80.0)),
    lambda s: overflowing(s.clamp(-80.0, 80.0)),
)
stable.wrong(
    "the logarithm of softmax",
    "These are the logarithms of the weights: take their exponentials.",
    lambda s: s.log_softmax(dim=-1),
)
stable.wrong(
    "argmax instead of softmax",
    "The largest score takes everything; a softmax gives every key a weight.",
    lambda s: torch.zeros_like(s).scatter(-1, s.argmax(-1, keepdim=True), 1.0),
)
stable.wrong(
    "one maximum for all rows",
    "Rows far below it underflow to 0 / 0: each row subtracts its own.",
    lambda s: overflowing(s - s.max()),
    lambda s: overflowing(s - s.amax()),  # its gradient of a NaN is NaN everywhere
)
stable.wrong(
    "in-place edit of the scores",
    "-= and its friends write into the caller's tensor; build a new one.",
    lambda s: overflowing(s.sub_(largest(s))),
)
stable.wrong(
    "no division by the sum", "The rows must sum to 1.", lambda s: distances(s).exp()
)
stable.wrong(
    "no exponential",
    "Scores may be negative or sum to 0: divide their exponentials by their sum.",
    shares,
    lambda s: shares(distances(s)),
)


# --- 1.2 --------------------------------------------------------------------------


def attention(
    query: Tensor, key: Tensor, value: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return softmax(query keyᵀ / (√d_k T)) value, for any leading axes."""
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
    """Return the trial with its first two axes swapped: every tensor is strided."""
    return {name: arg.transpose(0, 1) for name, arg in trial.items()}


def attention_trials(dtype):
    small = qkv((), 3, 3, 4, 4, 0, dtype)
    yield small  # without a temperature it is 1
    yield qkv((2,), 4, 6, 9, 5, 1, dtype) | {"temperature": 0.5}
    yield qkv((2, 3), 5, 5, 16, 8, 2, dtype) | {"temperature": 3.0}
    yield small | {"query": small["query"] * 300}  # exp of such scores overflows
    yield qkv((1,), 1, 3, 9, 4, 3, dtype)  # one query
    yield qkv((2,), 3, 1, 9, 2, 4, dtype)  # one key
    strided = transposed(qkv((3, 2), 4, 5, 16, 6, 5, dtype))
    yield strided | {"temperature": 0.25}
    silent = qkv((), 3, 4, 9, 4, 6, dtype)
    silent["query"][1] = 0.0  # a query that asks for nothing: equal weights
    yield silent | {"query": silent["query"] * 3}
    yield qkv((2,), 4, 6, 9, 5, 7, dtype)  # a shape seen before
    if dtype == torch.float32:  # no square: the whole part of the root is no root
        yield qkv((), 3, 4, 8, 5, 8, dtype)


warm = Exercise("1.2", "Attention at a temperature", attention, attention_trials)


def variant(
    products=lambda q, k: q @ k.mT,
    divisor=lambda q, k, v: q.shape[-1] ** 0.5,
    weigh=lambda scores: scores.softmax(dim=-1),
):
    """Return attention at a temperature with one of its three steps replaced."""

    def attend(query, key, value, temperature=1.0):
        scores = products(query, key) / divisor(query, key, value) / temperature
        return weigh(scores) @ value

    return attend


def rescaled(attend, root):
    """Return attend with its scores divided by root(d_k) instead of √d_k."""

    def attempt(query, *others):
        d_k = query.shape[-1]
        return attend(query * (d_k**0.5 / root(d_k)), *others)

    return attempt


WRONG_SCALES = [  # name, why, what the scores are divided by
    ("no scale", "Divide the scores by √d_k.", lambda d_k: 1.0),
    (
        "d_k instead of √d_k",
        "Divided by d_k, the weights become almost equal: divide by √d_k.",
        lambda d_k: d_k,
    ),
    ("multiplied by √d_k", "√d_k must divide the scores.", lambda d_k: d_k**-0.5),
    (
        "the root rounded",
        "√8 is 2.83; math.isqrt, int(), round() and // make it 2 or 3: d_k ** 0.5.",
        math.isqrt,
        lambda d_k: round(d_k**0.5),
    ),
    (
        "** 1 / 2 is not a root",
        "** binds tighter than /: d ** 1 / 2 is d / 2. Write d ** 0.5.",
        lambda d_k: d_k / 2,
        lambda d_k: d_k * 2,  # times d_k ** -1 / 2
    ),
]


def wrong_scales(exercise):
    """Note the wrong scales as mistakes of this exercise."""
    for name, why, *roots in WRONG_SCALES:
        forms = [rescaled(exercise.reference, root) for root in roots]
        exercise.wrong(name, why, *forms)


wrong_scales(warm)
NOT_HERE = (
    "in-place edit of the scores",  # here they are its own
    "double precision instead of a maximum",  # here no score is that high
    "a loop over the first axis",  # here scores have two axes or more
)
for mistake in stable.known:  # a softmax by hand goes wrong here as it does there
    if mistake.name not in NOT_HERE:
        warm.wrong(mistake.name, mistake.why, variant(weigh=mistake.function))

warm.wrong(
    "√(number of tokens) instead of √d_k",
    "d_k is the number of features of a query, not the length of the text.",
    variant(divisor=lambda q, k, v: k.shape[-2] ** 0.5),
    variant(divisor=lambda q, k, v: q.shape[-2] ** 0.5),
)
warm.wrong(
    "√d_v instead of √d_k",
    "d_k is the number of features of query and key, not of value.",
    variant(divisor=lambda q, k, v: v.shape[-1] ** 0.5),
)
warm.wrong(
    "a fixed number instead of √d_k",
    "d_k is not always the same: take it from the query, query.shape[-1].",
    variant(divisor=lambda q, k, v: 2.0),
    variant(divisor=lambda q, k, v: 8.0),
)
warm.wrong(
    "d_k counted from the front",
    "len and shape[1] count axes from the front; d_k is the last, query.shape[-1].",
    variant(divisor=lambda q, k, v: len(q) ** 0.5),
    variant(divisor=lambda q, k, v: len(k) ** 0.5),
    variant(divisor=lambda q, k, v: q.shape[1] ** 0.5),
)
warm.wrong(
    "key not transposed",
    "key.mT swaps the last two axes; reshape and view put the numbers elsewhere.",
    variant(products=lambda q, k: q @ k),
    variant(products=lambda q, k: q @ k.reshape(k.mT.shape)),
)
warm.wrong(
    "other axes of key swapped",
    "key.mT swaps the last two axes, however many stand in front of them.",
    variant(products=lambda q, k: q @ k.permute(*reversed(range(k.dim())))),  # key.T
    variant(products=lambda q, k: q @ k.transpose(0, 1)),
    variant(products=lambda q, k: q @ k.transpose(1, 2)),
)
warm.wrong(
    "softmax twice",
    "One softmax is enough: a second one flattens the weights.",
    variant(weigh=lambda scores: scores.softmax(dim=-1).softmax(dim=-1)),
)
warm.wrong(
    "no softmax",
    "Bare scores may be negative and do not sum to 1.",
    variant(weigh=lambda scores: scores),
)
warm.wrong(
    "weights transposed",
    "A row of the weights belongs to a query: weights @ value, without .mT.",
    variant(weigh=lambda scores: scores.softmax(dim=-1).mT),
)
warm.wrong(
    "weights returned",
    "Multiply the weights by the values, and return that.",
    lambda q, k, v, t=1.0: (score(q, k) / t).softmax(dim=-1),
    lambda q, k, v, t=1.0: score(q, k) / t,
)
warm.wrong(
    "scale after softmax",
    "The weights no longer sum to 1: scale the scores.",
    lambda q, k, v, t=1.0: (q @ k.mT / t).softmax(dim=-1) / q.shape[-1] ** 0.5 @ v,
)
warm.wrong(
    "a causal mask",
    "No key is hidden here: every query attends to every key.",
    lambda q, k, v, t=1.0: F.scaled_dot_product_attention(q / t, k, v, is_causal=True),
)
warm.wrong(
    "query, key and value swapped",
    "Rows are queries, columns are keys, and the output mixes the values.",
    lambda q, k, v, t=1.0: attention(q, v, k, t),
    lambda q, k, v, t=1.0: attention(k, q, v, t),
)
warm.wrong(
    "keys used instead of values",
    "Keys are only compared with queries: multiply the weights by the values.",
    lambda q, k, v, t=1.0: attention(q, k, k, t),
)
warm.wrong(
    "return value",
    "These are the values as they came: return weights @ value.",
    lambda q, k, v, t=1.0: v,
)
warm.wrong(
    "mean of the values",
    "Every key gets the same weight, whatever the query is.",
    lambda q, k, v, t=1.0: attention(q * 0, k, v),
)
warm.wrong(
    "in-place edit of the query",
    "/= writes into the caller's tensor; build a new one.",
    lambda q, k, v, t=1.0: warm.reference(q.div_(t), k, v),
)
warm.wrong(
    "temperature forgotten",
    "The temperature changes nothing: divide the scores by it.",
    lambda q, k, v, t=1.0: attention(q, k, v),
)
warm.wrong(
    "multiplied by the temperature",
    "Multiplied by a large T, the weights become less equal: divide by it.",
    lambda q, k, v, t=1.0: attention(q * t, k, v),
)
warm.wrong(
    "the temperature under the root",
    "The root belongs to d_k alone: √(d_k · T) is too small a change.",
    lambda q, k, v, t=1.0: attention(q / t**0.5, k, v),
)
warm.wrong(
    "the temperature added",
    "Divide by √d_k and by T, not by their sum.",
    lambda q, k, v, t=1.0: (q @ k.mT / (q.shape[-1] ** 0.5 + t)).softmax(dim=-1) @ v,
)
warm.wrong(
    "temperature after the softmax",
    "After the softmax it is too late: divide the scores by T.",
    lambda q, k, v, t=1.0: attention(q, k, v) / t,
    lambda q, k, v, t=1.0: attention(q, k, v) * t,
    lambda q, k, v, t=1.0: score(q, k).softmax(dim=-1) ** (1 / t) @ v,
)


# --- 1.3 --------------------------------------------------------------------------


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return attention to what the mask allows; a query without any key gets zeros."""
    return guarded(query, key, value, mask, mask.any(dim=-1, keepdim=True))


def guarded(query, key, value, mask, able):
    """Hide keys from the queries that are able to attend; zero the others' weights."""
    scores = score(query, key).masked_fill(~mask & able, -INF)
    return scores.softmax(dim=-1).masked_fill(~able, 0.0) @ value


def past_mask(queries, keys, shift=0):
    """Return which keys stand at or before each query; shift: that many after it."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries + shift)


def masked_trials(dtype):
    yield qkv((), 3, 3, 4, 4, 0, dtype) | {"mask": past_mask(3, 3)}
    some = randn(4, 6, seed=3, dtype=torch.float64) > -0.3
    some[0], some[:, 0] = True, True
    yield qkv((2,), 4, 6, 9, 5, 1, dtype) | {"mask": some}
    nothing = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    nothing[0, :, 2] = False  # the third query of the first sentence has no key
    nothing[1, :, :, 3:] = False
    yield qkv((2, 3), 5, 5, 16, 8, 2, dtype) | {"mask": nothing}
    yield every_score_zero(dtype) | {"mask": past_mask(4, 4)}
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[:3, -1] = False
    yield tall_last_key(dtype) | {"mask": mask}
    yield two_lowest(dtype, 3e4)
    if dtype == torch.float64:  # single precision would round the gradients visibly
        yield two_lowest(dtype, 3e10)
    lengths = torch.arange(6) < torch.tensor([4, 0])[:, None, None]  # (2, 1, 6)
    yield qkv((2,), 3, 6, 4, 4, 7, dtype) | {"mask": lengths}
    rows = torch.tensor([[True], [False], [True], [True]])  # (4, 1): all keys or none
    yield qkv((), 4, 6, 4, 4, 8, dtype) | {"mask": rows}
    one = torch.tensor([[False, True, True]])
    yield qkv((2,), 1, 3, 4, 4, 9, dtype) | {"mask": one}  # one query
    yield transposed(qkv((3, 2), 4, 5, 16, 6, 5, dtype)) | {"mask": past_mask(4, 5)}
    again = qkv((), 3, 3, 4, 4, 6, dtype)  # a shape seen before
    yield again | {"mask": past_mask(3, 3)}
    if dtype == torch.float32:  # no square: a whole number is no root
        yield qkv((), 3, 4, 8, 5, 8, dtype) | {"mask": past_mask(3, 4)}


def every_score_zero(dtype):
    return qkv((), 4, 4, 9, 6, 5, dtype) | {"query": torch.zeros(4, 9, dtype=dtype)}


def tall_last_key(dtype):
    """Return four words; the last key has a score of 200 with every query."""
    trial = qkv((), 4, 4, 4, 4, 4, dtype)
    trial["query"][:, 0] = 1.0
    trial["key"][-1] = torch.tensor([400.0, 0.0, 0.0, 0.0], dtype=dtype)
    return trial


def two_lowest(dtype, size):
    """Return scores of about `size`, of which the mask allows only the two lowest."""
    trial = qkv((), 3, 5, 4, 4, 6, dtype)
    for name in ("query", "key"):  # in equal parts: rounding would tell answers apart
        trial[name] = trial[name] * size**0.5
    scores = trial["query"].double() @ trial["key"].double().mT
    return trial | {"mask": scores <= scores.sort(dim=-1).values[:, 1:2]}


masking = Exercise(
    "1.3",
    "Attention under a mask",
    masked_attention,
    masked_trials,
    gradients=WITHOUT_NAN,
)


def use(before=None, after=None):
    """Return attention that uses the mask on the scores, on the weights, or on both."""

    def attend(query, key, value, mask):
        scores = score(query, key)
        scores = before(scores, mask) if before else scores
        weights = scores.softmax(dim=-1)
        weights = after(weights, mask) if after else weights
        return weights @ value

    return attend


def fill(number):
    return lambda scores, mask: scores.masked_fill(~mask, number)


def add(number):
    """Return what adds the number to hidden scores, and 0 to the others."""
    return lambda scores, mask: (
        scores + torch.zeros_like(scores).masked_fill(~mask, number)
    )


def add_product(scores, mask):
    return scores + (~mask).to(scores.dtype) * -INF


def able(mask):
    """Return which queries have a key to attend to."""
    return mask.any(dim=-1, keepdim=True)


def empty(weights, mask):
    return weights.masked_fill(~able(mask), 0.0)


def overwrite(weights, mask):
    weights[weights.isnan()] = 0.0
    return weights


def index(scores, mask):
    scores[~mask] = -INF
    return scores


def by_two_fills(find=lambda mask: ~able(mask), weights_too=True):
    """Return attention with two fills of the scores; find: which rows are empty."""

    def attend(query, key, value, mask):
        rows = find(mask)
        scores = score(query, key).masked_fill(~mask, -INF).masked_fill(rows, 0.0)
        weights = scores.softmax(dim=-1)
        return (weights.masked_fill(rows, 0.0) if weights_too else weights) @ value

    return attend


unguarded = use(fill(-INF))

wrong_scales(masking)
masking.wrong(
    "inverted mask",
    "True says which keys a query may attend to.",
    lambda q, k, v, mask: masked_attention(q, k, v, ~mask),
    lambda q, k, v, mask: unguarded(q, k, v, ~mask),
    lambda q, k, v, mask: use(fill(-1e9))(q, k, v, ~mask),
    lambda q, k, v, mask: use(after=torch.mul)(q, k, v, ~mask),
    lambda q, k, v, mask: guarded(q, k, v, ~mask, able(mask)),
)
masking.wrong(
    "weights not emptied",
    "A query with nothing to attend to attends to every key: set its weights to 0.",
    lambda q, k, v, mask: unguarded(q, k, v, mask | ~able(mask)),
)
masking.wrong(
    "all instead of any",
    "mask.all asks who may attend to EVERY key; ask who may attend to ANY.",
    lambda q, k, v, mask: guarded(q, k, v, mask, mask.all(dim=-1, keepdim=True)),
    by_two_fills(lambda mask: ~mask.all(dim=-1, keepdim=True)),
)
masking.wrong(
    "the guard turned round",
    "You set the weights to 0 in the rows that have a key, not in the empty rows.",
    use(
        lambda s, mask: s.masked_fill(~mask & able(mask), -INF),
        lambda w, mask: w.masked_fill(able(mask), 0.0),
    ),
    by_two_fills(able),
)
masking.wrong(
    "keepdim forgotten",
    "any(dim=-1) drops the axis of the keys: write keepdim=True.",
    lambda q, k, v, mask: guarded(q, k, v, mask, mask.any(dim=-1)),
    by_two_fills(lambda mask: ~mask.any(dim=-1)),
)
masking.wrong(
    "any over the wrong axis",
    "any(dim=-2) asks which keys have a query; ask which queries have a key, dim=-1.",
    lambda q, k, v, mask: guarded(q, k, v, mask, mask.any(dim=-2, keepdim=True)),
    by_two_fills(lambda mask: ~mask.any(dim=-2, keepdim=True)),
    by_two_fills(lambda mask: ~mask.any(dim=-2)),
)
masking.wrong(
    "mask after softmax",
    "The hidden keys keep a part of the sum, so the row no longer sums to 1.",
    use(after=torch.mul),
)
masking.wrong(
    "renormalised after the softmax",
    "A high hidden score rounds all others to 0: hide it before the softmax.",
    use(after=lambda w, mask: shares(w * mask)),
    use(after=lambda w, mask: shares(w * mask).nan_to_num()),
    use(after=lambda w, mask: w * mask / ((w * mask).sum(-1, keepdim=True) + 1e-9)),
    use(after=lambda w, mask: w * mask / (w * mask + ~able(mask)).sum(-1, True)),
    use(after=lambda w, mask: F.normalize(w * mask, p=1, dim=-1)),
    lambda q, k, v, mask: shares(score(q, k).exp() * mask) @ v,
    lambda q, k, v, mask: shares(score(q, k).exp().masked_fill(~mask, 0)) @ v,
)
masking.wrong(
    "scores times mask",
    "A score of 0 is not hidden, because exp(0) is 1: fill with -inf.",
    use(torch.mul),
    use(torch.mul, empty),
)
masking.wrong(
    "an empty row averages all values",
    "Equal scores give equal weights: after the softmax, set the weights of a query "
    "with nothing to attend to to 0.",
    by_two_fills(weights_too=False),
    use(lambda s, mask: s.masked_fill(~mask, torch.finfo(s.dtype).min)),
)
masking.wrong(
    "−1e9 in an empty row",
    "A query with nothing to attend to gets the mean of all values, not zeros.",
    use(fill(-1e9)),
    use(add(-1e9)),
)
masking.wrong(
    "a fill that is not low enough",
    "Scores may lie below -100 and below -1e9, too: fill with -inf.",
    use(fill(-1e4)),
    use(add(-1e4)),
    *(
        use(hide(number), after)
        for number in (-1e4, -1e9)
        for hide in (fill, add)
        for after in (empty, torch.mul)
    ),
)
masking.wrong(
    "-inf in an empty row",
    "A query with nothing to attend to becomes NaN; it should get zeros.",
    unguarded,
)
masking.wrong(
    "NaN painted over",
    "A NaN arises on the way, even if the output is right: give an empty row finite "
    "scores, so that its softmax is finite, and then set its weights to 0.",
    use(fill(-INF), lambda w, mask: w.nan_to_num()),
)
masking.wrong(
    "NaN overwritten in place",
    "w[w.isnan()] = 0 overwrites what the backward pass needs: let no NaN arise.",
    use(fill(-INF), overwrite),
)
masking.wrong(
    "scores indexed with the mask",
    "scores[~mask] needs a mask with the first axes of the scores; masked_fill(~mask, "
    "-inf) broadcasts, and leaves the old scores alone.",
    use(index),
)
masking.wrong(
    "mask added as ones",
    "Adding 1, or True, hides nothing: add -inf to the scores to be hidden.",
    use(lambda s, mask: s + mask),
    use(lambda s, mask: s + ~mask),
)
masking.wrong(
    "0 times -inf",
    "0 times -inf is NaN: build the mask with masked_fill or torch.where.",
    use(add_product),
    use(add_product, lambda w, mask: w.nan_to_num()),
    use(lambda s, mask: add_product(s, mask | ~able(mask)), empty),
)
masking.wrong(
    "a score of 0 taken for hidden",
    "A visible score that happens to be 0 is hidden as well: ask the mask.",
    use(lambda s, mask: s.masked_fill(s * mask == 0, -INF)),
    use(lambda s, mask: s.masked_fill(s * mask == 0, -1e9), torch.mul),
)
masking.wrong(
    "no mask",
    "Every query attends to every key.",
    lambda q, k, v, mask: attention(q, k, v),
    lambda q, k, v, mask: attention(q, k, v) * able(mask),
)


# --- 1.4 --------------------------------------------------------------------------


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return attention in which the last query sees every key, the one before less."""
    mask = past_mask(query.shape[-2], key.shape[-2])
    return masked_attention(query, key, value, mask)


def causal_trials(dtype):
    yield qkv((), 4, 4, 16, 6, 0, dtype)
    yield qkv((2,), 3, 5, 9, 6, 1, dtype)
    yield every_score_zero(dtype)
    yield tall_last_key(dtype)
    large = qkv((), 3, 4, 16, 6, 31, dtype)  # first query: below -37,000
    yield large | {name: large[name] * 170 for name in ("query", "key")}
    yield qkv((2, 3), 1, 5, 4, 4, 3, dtype)  # the newest token alone
    yield qkv((), 1, 1, 4, 4, 4, dtype)
    yield transposed(qkv((3, 2), 4, 6, 16, 6, 5, dtype))
    yield qkv((2,), 3, 5, 9, 6, 6, dtype)  # a shape seen before
    yield qkv((), 2, 20, 4, 4, 8, dtype)  # long
    if dtype == torch.float32:  # no square: a whole number is no root
        yield qkv((), 3, 4, 8, 5, 8, dtype)


newest = Exercise(
    "1.4", "The newest words of a longer text", causal_attention, causal_trials
)


def under(mask, attend=unguarded):
    """Return attention under mask(number of queries, number of keys)."""

    def attempt(query, key, value):
        return attend(query, key, value, mask(query.shape[-2], key.shape[-2]))

    return attempt


def in_all_ways(mask):
    """Return attention under a mask with empty rows: NaN, averages, and zeros there."""
    return under(mask), under(mask, use(fill(-1e9))), under(mask, masked_attention)


def triangle(L, S):
    return torch.ones(L, S, dtype=torch.bool).tril()


def newest_of(words, query):
    return words[..., -query.shape[-2] :, :]


ALSO_HERE = [
    *(name for name, *_ in WRONG_SCALES),
    "inverted mask",
    "mask after softmax",
    "renormalised after the softmax",
    "scores times mask",
    "mask added as ones",
    "0 times -inf",
    "scores indexed with the mask",
    "no mask",
]
for mistake in masking.known:
    if mistake.name in ALSO_HERE:
        newest.wrong(mistake.name, mistake.why, under(past_mask, mistake.function))

newest.wrong(
    "upper-left alignment",
    "With more keys than queries the last query must see all keys: tril(S - L).",
    under(triangle),
)
newest.wrong(
    "the offset turned round",
    "tril(L - S) hides more the more keys there are: it is S - L.",
    *in_all_ways(lambda L, S: past_mask(L, S, 2 * (L - S))),
)
newest.wrong(
    "only the last L keys used",
    "The newest tokens attend to all older ones, too, not to the last L keys alone.",
    lambda q, k, v: causal_attention(q, newest_of(k, q), newest_of(v, q)),
)
newest.wrong(
    "a square mask",
    "A mask of (L, L) or (S, S) fits only where there are as many keys as queries.",
    under(lambda L, S: triangle(L, L)),
    under(lambda L, S: triangle(S, S)),
)
newest.wrong(
    "lengths counted from the front",
    "len and shape[0], shape[1] count from the front; L and S are shape[-2].",
    lambda q, k, v: unguarded(q, k, v, past_mask(len(q), len(k))),
    lambda q, k, v: unguarded(q, k, v, past_mask(q.shape[1], k.shape[1])),
)
newest.wrong(
    "the future instead of the past",
    "triu where tril is meant: the past is hidden, the future visible.",
    under(lambda L, S: ~past_mask(L, S, -1)),
    under(lambda L, S: ~past_mask(L, S, L - S - 1)),
)
newest.wrong(
    "a token hidden from itself",
    "A token may attend to itself: keep the diagonal.",
    *in_all_ways(lambda L, S: past_mask(L, S, -1)),
)
newest.wrong(
    "the next token is visible",
    "tril(S - L + 1) lets every query attend to the token after it.",
    under(lambda L, S: past_mask(L, S, 1)),
)
newest.wrong(
    "zero scores used as a mask",
    "A future score that is exactly 0 is not hidden: build the mask from ones.",
    under(past_mask, use(lambda s, past: s.masked_fill(s * ~past != 0, -INF))),
    under(past_mask, use(lambda s, past: s.masked_fill(s * past == 0, -INF))),
    under(triangle, use(lambda s, past: s.masked_fill(s * ~past != 0, -INF))),
)
newest.wrong("scores times mask", under(triangle, use(torch.mul)))
newest.wrong(
    "a fill that is not low enough",
    "Scores may lie below -100 and below -10,000, too: fill with -inf.",
    under(past_mask, use(fill(-1e4))),
    under(past_mask, use(add(-1e4))),
)


# --- 1.5 --------------------------------------------------------------------------

WORDS = 8  # that a text must have, so that every leak below shows
X = randn(WORDS, 4, seed=0, dtype=torch.float64)


def reads_the_future(attend) -> bool:
    """Return whether a change of one token changes the output of an earlier one."""
    before = attend(X, X, X)
    for word in range(1, WORDS):
        changed = X.clone()
        changed[word] = randn(4, seed=word, dtype=torch.float64)
        after = attend(changed, changed, changed)
        if not torch.allclose(after[:word], before[:word], equal_nan=True):
            return True
    return False


def named(name, function):
    function.__name__ = name
    return function


def where(name, visible, attend=masked_attention):
    """Return attention in which query i sees key j if visible(i, j, number of keys)."""

    def masked(query, key, value):
        i, j = torch.arange(len(query))[:, None], torch.arange(len(key))
        return attend(query, key, value, visible(i, j, len(key)))

    return named(name, masked)


HONEST = (
    named("past_and_self", lambda q, k, v: causal_attention(q, k, v)),
    where("past_without_self", lambda i, j, n: j < i),
    # the first token attends to nothing, and its output is NaN
    where("past_without_self_or_guard", lambda i, j, n: j < i, use(fill(-INF))),
    where("only_itself", lambda i, j, n: j == i),
    where("last_three_tokens", lambda i, j, n: (j <= i) & (j > i - 3)),
    named("past_without_scale", rescaled(causal_attention, lambda d_k: 1.0)),
    # scores times the logarithm of the number of tokens, as some models have them
    named(
        "past_sharper_in_longer_texts",
        lambda q, k, v: causal_attention(q * math.log(1 + len(k)), k, v),
    ),
)

LEAKY = (
    where("every_token", lambda i, j, n: j >= 0),
    where("one_token_ahead", lambda i, j, n: j <= i + 1),
    named("hidden_after_the_softmax", under(past_mask, use(after=torch.mul))),
    named("ones_added", under(past_mask, use(lambda s, past: s + past))),
    where("only_the_last_token_hidden", lambda i, j, n: (j <= i) | (j < n - 1)),
    where("only_the_last_token_shown", lambda i, j, n: (j <= i) | (j == n - 1)),
    where("first_token_sees_the_second", lambda i, j, n: (j <= i) | (i + j == 1)),
    where("only_the_first_token_masked", lambda i, j, n: (j <= i) | (i > 0)),
    named(
        "centred_values",
        lambda q, k, v: causal_attention(q, k, v - v.mean(dim=-2, keepdim=True)),
    ),
    named(
        "centred_queries",
        lambda q, k, v: causal_attention(q - q.mean(dim=-2, keepdim=True), k, v),
    ),
    where("two_tokens_ahead", lambda i, j, n: (j <= i) | (j == i + 2)),
    where("third_token_shown", lambda i, j, n: (j <= i) | (j == 2)),
    where("third_token_sees_the_sixth", lambda i, j, n: (j <= i) | (i == 2) & (j == 5)),
    where("seven_tokens_ahead", lambda i, j, n: (j <= i) | (j == i + 7)),
    named("hidden_by_minus_five", under(past_mask, use(fill(-5.0)))),
)


def future_trials(dtype):
    for attend in HONEST + LEAKY:
        yield {"attend": attend}


future = Exercise(
    "1.5", "A test for the future", reads_the_future, future_trials, gradients=False
)


def tests(
    words=range(1, WORDS),
    *,
    length=WORDS,
    later=False,
    tensors="qkv",
    outputs=lambda word: slice(0, word),
    new=lambda old, word: randn(*old.shape, seed=word, dtype=old.dtype),
    cut=False,
    atol=1e-8,
):
    """Return two tests that do something else than the reference.

    words: those that are changed, one after another; later: with all after them.
    tensors: in which of query, key, value; new: what the changed words become.
    cut: leave out the words from there on instead of changing them.
    outputs: which ones are compared. To the second test NaN is a change.
    """

    def finds(attend, equal_nan):
        x = X[:length]
        before = attend(x, x, x)
        for word in words:
            changed, at = x.clone(), slice(word, None if later else word + 1)
            changed[at] = new(x[at], word)
            changed = x[:word] if cut else changed
            after = attend(*(changed if name in tensors else x for name in "qkv"))
            pair = after[outputs(word)], before[outputs(word)]
            if not torch.allclose(*pair, atol=atol, equal_nan=equal_nan):
                return True
        return False

    return lambda attend: finds(attend, True), lambda attend: finds(attend, False)


future.wrong(
    "NaN taken for a change",
    "A token without any key may give NaN, before and after: allow equal_nan=True.",
    tests()[1],
)
future.wrong(
    "True for every function",
    "You return True even for a function that is right. The output of the changed "
    "token itself may change: compare the earlier ones alone. Start each time from a "
    "fresh x.clone(), and change it to ordinary numbers: 0 · inf and 0 · NaN are NaN.",
    lambda attend: True,
)
future.wrong(
    "False for every function",
    "You find no leak. Change a later token in a clone (c = x is the same tensor), by "
    "much, and compare the outputs of the tokens before it.",
    lambda attend: False,
)
future.wrong(
    "the answer turned round",
    "True means that a token DOES use a later one; yours says the opposite.",
    *(lambda attend, leaks=leaks: not leaks(attend) for leaks in tests()),
    lambda attend: not all(tests([word])[1](attend) for word in range(1, WORDS)),
)
for length in range(2, WORDS):
    future.wrong(
        "fewer than eight tokens",
        "A leak may reach seven tokens ahead, which needs a text of eight or more.",
        *tests(range(1, length), length=length),
    )
for name, why, *tensors in [
    ("the keys not changed", "The softmax divides by a sum over all keys.", "v", "qv"),
    ("the values not changed", "The output may contain the later values.", "k", "qk"),
    ("the queries not changed", "The output may use a later query.", "kv"),
    ("only the queries changed", "Leaks come from later keys and values.", "q"),
]:
    for changed in tensors:
        future.wrong(name, why, *tests(tensors=changed))

future.wrong(
    "only one token changed",
    "A leak of any other token is missed: change one token after another.",
    *tests([WORDS - 1]),
    *tests([1]),  # as `return` in the loop, whatever it found
    *tests([WORDS // 2]),
    *tests([WORDS // 2], later=True),
)
future.wrong(
    "not every token changed",
    "A leak may concern one token alone: change each one but the first, the last too.",
    *tests(range(1, WORDS - 1)),
    *tests(range(2, WORDS)),
    *tests(range(1, WORDS, 2)),
    *tests(range(2, WORDS, 2)),
    *tests([1, WORDS - 1]),
)
for name, why, outputs in [
    ("only the neighbour compared", "A leak may reach further.", lambda t: [t - 1]),
    ("only the first output compared", "Others may leak as well.", lambda t: [0]),
    ("not every earlier output compared", "Any one may leak.", lambda t: [0, t - 1]),
]:
    future.wrong(name, why, *tests(outputs=outputs))

future.wrong(
    "a comparison too coarse",
    "A leak may be small: compare up to rounding (torch.allclose), not to a tenth.",
    *tests(atol=0.1),
    *tests(atol=0.01),
)
future.wrong(
    "the future only shuffled",
    "Attention without a mask does not notice the order: change the tokens themselves.",
    *tests(later=True, new=lambda old, word: old.flip(0)),
)
future.wrong(
    "later tokens cut off",
    "A function may use the length of the text: keep all tokens, and change them.",
    *tests(cut=True),
)
future.wrong(
    "the past changed, not the future",
    "Earlier tokens may be used: change a later token, and compare the ones before it.",
    *tests([0], outputs=lambda word: slice(1, None)),
)
future.wrong(
    "compared with causal attention",
    "A function without a leak may differ from it, such as one that sees three tokens.",
    lambda attend: not torch.allclose(attend(X, X, X), causal_attention(X, X, X)),
)

EXERCISES = (stable, warm, masking, newest, future)
