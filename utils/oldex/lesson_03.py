"""Exercises of notebook 03: PyTorch's weights and masks, a head's score, a baseline."""

import math

import torch
from torch import Tensor, nn

from utils.attention import (
    causal_mask,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from utils.oldex.engine import Exercise, randn

IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import (
    MultiHeadAttention,
    causal_mask,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
"""


# --- 3.1 nn.MultiheadAttention from its weights -----------------------------------


def torch_attention(
    x: Tensor,
    in_proj_weight: Tensor,
    in_proj_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    num_heads: int,
) -> Tensor:
    """The reference: what nn.MultiheadAttention(batch_first=True) computes from x."""
    q, k, v = (x @ in_proj_weight.mT + in_proj_bias).chunk(3, dim=-1)
    q, k, v = (split_heads(part, num_heads) for part in (q, k, v))
    heads, _ = scaled_dot_product_attention(q, k, v)
    return merge_heads(heads) @ out_weight.mT + out_bias


def torch_trials(dtype):
    # some sequences and one, one token, one head, head_dim = num_heads; head_dim is a
    # square, so that its root is exact in every precision
    sizes = [(2, 6, 3, 4), (3, 4, 2, 9), (1, 5, 4, 4), (2, 1, 2, 4), (2, 4, 1, 9)]
    if dtype == torch.float32:
        sizes += [(2, 6, 2, 6)]  # a root that is no whole number
    for seed, (batch, length, heads, head_dim) in enumerate(sizes):
        embed = heads * head_dim
        trial = {
            # laid out length first in memory: .view() would not do
            "x": randn(length, batch, embed, seed=seed, dtype=dtype).transpose(0, 1),
            "in_proj_weight": randn(3 * embed, embed, seed=seed + 10, dtype=dtype) / 2,
            "in_proj_bias": randn(3 * embed, seed=seed + 20, dtype=dtype),
            "out_weight": randn(embed, embed, seed=seed + 30, dtype=dtype) / 2,
            "out_bias": randn(embed, seed=seed + 40, dtype=dtype),
            "num_heads": heads,
        }
        yield trial
    if dtype == torch.float64:
        # a key bias adds the same to all scores of a query: softmax does not care, exp
        # does (in single precision right answers would differ by their rounding)
        of_keys = torch.arange(3 * embed) // embed == 1
        yield trial | {"in_proj_bias": trial["in_proj_bias"] + 600 * of_keys}


torch_layer = Exercise(
    "3.1", "nn.MultiheadAttention from its weights", torch_attention, torch_trials
)


def _thirds(projected, num_heads):
    return [split_heads(part, num_heads) for part in projected.chunk(3, dim=-1)]


def _attend(q, k, v, scale=None):
    return scaled_dot_product_attention(q, k, v, scale=scale)[0]


def _layer(cut=_thirds, attend=_attend, merge=merge_heads):
    """Return the reference with a step replaced."""

    def answer(x, w, b, out_w, out_b, num_heads):
        q, k, v = cut(x @ w.mT + b, num_heads)
        return merge(attend(q, k, v)) @ out_w.mT + out_b

    return answer


torch_layer.wrong(
    "stacked read as interleaved",
    "The rows are all queries, then all keys, then all values.",
    _layer(cut=lambda p, heads: split_heads(p, heads).chunk(3, dim=-1)),
    _layer(cut=lambda p, heads: _thirds(p.unflatten(-1, (-1, 3)).mT.flatten(2), heads)),
)


def _biased(*used):
    """Return the reference with a part of in_proj_bias: of queries, keys, values."""

    def answer(x, w, b, *rest):
        part = torch.tensor(used).repeat_interleave(x.shape[-1])
        return torch_attention(x, w, b * part, *rest)

    return answer


for name, functions in {
    "no in_proj_bias": [_biased(0, 0, 0)],
    "a part of in_proj_bias": [_biased(1, 1, 0), _biased(0, 1, 1), _biased(0, 0, 1)],
    "no bias of out_proj": [lambda *args: torch_attention(*args) - args[4]],
    "no bias at all": [lambda *args: _biased(0, 0, 0)(*args) - args[4]],
}.items():
    why = "Queries, keys and values have a bias each, and so has the output."
    torch_layer.wrong(name, why, *functions)

torch_layer.wrong(
    "out_weight used as (in, out)",
    "nn.Linear stores (out, in): write x @ weight.T.",
    lambda x, w, b, out_w, *rest: torch_attention(x, w, b, out_w.mT, *rest),
)
torch_layer.wrong(
    "in_proj_weight used as (in, out)",
    "nn.Linear stores (out, in): write x @ in_proj_weight.T.",
    lambda x, w, *rest: x @ w,  # raises an error
    lambda x, w, *rest: torch_attention(x, torch.cat([m.T for m in w.chunk(3)]), *rest),
)
torch_layer.wrong(
    "length before batch",
    "x is (batch, length, embed): tokens attend to tokens of their own sequence.",
    lambda x, *rest: torch_attention(x.transpose(0, 1), *rest).transpose(0, 1),
)
for name, attend in {
    "keys and values swapped": lambda q, k, v: _attend(q, v, k),
    "queries and keys swapped": lambda q, k, v: _attend(k, q, v),
    "read as key, value, query": lambda k, v, q: _attend(q, k, v),
    "read as value, query, key": lambda v, q, k: _attend(q, k, v),
}.items():
    torch_layer.wrong(name, "The order is query, key, value.", _layer(attend=attend))

for name, attend in {
    "no scale": lambda q, k, v: _attend(q, k, v, 1.0),
    "divided by head_dim": lambda q, k, v: _attend(q, k, v, 1 / q.shape[3]),
    "√embed_dim": lambda q, k, v: _attend(q, k, v, (q.shape[1] * q.shape[3]) ** -0.5),
    "√num_heads": lambda q, k, v: _attend(q, k, v, q.shape[1] ** -0.5),
}.items():
    why = "The scores are divided once, by √head_dim, the root of a head's features."
    torch_layer.wrong(name, why, _layer(attend=attend))

torch_layer.wrong(
    "root rounded",
    "√head_dim need not be a whole number: math.isqrt, round and // lose its fraction.",
    _layer(attend=lambda q, k, v: _attend(q, k, v, 1 / math.isqrt(q.shape[3]))),
)


@torch_layer.wrong(
    "no maximum subtracted",
    "exp of a large score is infinite: subtract each row's maximum, or use softmax.",
)
def _(*args):
    def attend(q, k, v):
        e = (q @ k.mT / q.shape[-1] ** 0.5).exp()
        return e / e.sum(dim=-1, keepdim=True) @ v

    return _layer(attend=attend)(*args)


torch_layer.wrong(
    "sequences cut instead of features",
    "chunk(3) cuts axis 0, the sequences; cut the features: chunk(3, dim=-1).",
    _layer(cut=lambda p, heads: [split_heads(part, heads) for part in p.chunk(3)]),
)


def _unfolded(projected, heads):
    return [third.unflatten(-1, (heads, -1)) for third in projected.chunk(3, dim=-1)]


def _reshaped(projected, heads):
    size = len(projected), heads, projected.shape[1], -1
    return [third.reshape(size) for third in projected.chunk(3, dim=-1)]


def _merged(heads):
    return heads.reshape(len(heads), heads.shape[2], -1)


for name, functions in {
    "reshape without transpose": [_layer(cut=_reshaped)],
    "merge without transpose": [_layer(merge=_merged)],
    "both reshapes without transpose": [_layer(cut=_reshaped, merge=_merged)],
    "heads attend to each other": [
        _layer(cut=_unfolded, merge=lambda heads: heads.flatten(2)),
        _layer(cut=_unfolded, merge=lambda heads: _merged(heads.transpose(1, 2))),
    ],
    "one head over all features": [lambda *args: torch_attention(*args[:-1], 1)],
}.items():
    why = "Each head has its own features of all tokens: split them, then transpose."
    torch_layer.wrong(name, why, *functions)


def _module(x, *args, **options):
    layer = nn.MultiheadAttention(x.shape[-1], args[-1], **options)
    names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
    layer.load_state_dict(dict(zip(names, args)))
    return layer(x, x, x)[0]


torch_layer.wrong(
    "a module built inside and loaded",
    "A module holds copies, as do nn.Parameter and torch.tensor: no gradient.",
    lambda x, *rest: _module(x, *rest, batch_first=True, dtype=x.dtype),
    lambda x, *rest: _module(x, *rest, batch_first=True, dtype=x.dtype).detach(),
    lambda *args: _module(*args, batch_first=True),
)
torch_layer.wrong(
    "a module built inside, length first",
    "batch_first=False is the default, and load_state_dict copies: no gradient.",
    lambda x, *rest: _module(x, *rest, dtype=x.dtype),
)
torch_layer.wrong(
    "no out_proj",
    "out_proj mixes the outputs of the heads.",
    lambda x, w, b, _, __, n: merge_heads(_attend(*_thirds(x @ w.mT + b, n))),
)
torch_layer.wrong("x as it came", "No token attends to any other.", lambda x, *rest: x)


# --- 3.2 A tokenizer's mask for nn.MultiheadAttention -----------------------------


def torch_mask(attention_mask: Tensor, num_heads: int) -> Tensor:
    """The reference: padding and later tokens, as blocked (batch * heads, L, L).

    A query without any key, as with padding on the left, keeps its row of True.
    """
    real = attention_mask.bool()[:, None, :]  # (batch, 1, keys), True = a real token
    keep = real & causal_mask(attention_mask.shape[-1], device=attention_mask.device)
    return ~keep.repeat_interleave(num_heads, dim=0)


def mask_trials(dtype):
    """Sequences with padding on the right, on the left, in all places and in none."""
    some = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 0]])
    ones = torch.ones(5, 5, dtype=torch.long)
    yield {"attention_mask": some[:2], "num_heads": 3}
    yield {"attention_mask": some[1:].T.contiguous().T, "num_heads": 2}
    yield {"attention_mask": torch.tensor([[0, 0, 0], [1, 1, 0]]), "num_heads": 2}
    yield {"attention_mask": some[:, :2], "num_heads": 4}  # as many heads as sequences
    yield {"attention_mask": some[:1], "num_heads": 1}
    yield {"attention_mask": ones[:1, :1], "num_heads": 2}
    yield {"attention_mask": ones, "num_heads": 2}


torch_masks = Exercise(
    "3.2",
    "A tokenizer's mask for nn.MultiheadAttention",
    torch_mask,
    mask_trials,
    gradients=False,
)


def _same(mask):
    return mask


def _ones(length):
    return torch.ones(length, length, dtype=torch.bool)


def _mask(
    real=lambda m: m.bool()[:, None, :],
    causal=causal_mask,
    joined=torch.logical_and,
    flipped=torch.logical_not,
    repeated=lambda mask, heads: mask.repeat_interleave(heads, dim=0),
):
    """Return the reference with a step replaced."""

    def answer(attention_mask, num_heads):
        keep = joined(real(attention_mask), causal(attention_mask.shape[-1]))
        return repeated(flipped(keep), num_heads)

    return answer


def _changed(change):
    """Return the reference with something done to its mask."""
    return lambda *args: change(torch_mask(*args))


torch_masks.wrong(
    ".bool() alone",
    "1 is a real token and True means blocked: the real tokens got weight 0.",
    _mask(lambda m: ~m.bool()[:, None, :]),
    _mask(causal=_ones, flipped=_same),
)
torch_masks.wrong(
    "inverted mask",
    "True means blocked in PyTorch's layer; here it means the opposite.",
    _mask(flipped=_same),
)
torch_masks.wrong(
    "causal mask not flipped",
    "The past is blocked, too: in causal_mask, True means may be attended to.",
    _mask(causal=lambda length: ~causal_mask(length)),
)
torch_masks.wrong(
    "and instead of or",
    "A key is blocked if it is padding *or* later: of blocked masks take |, not &.",
    _mask(joined=torch.logical_or),
)
torch_masks.wrong(
    "~ on integers",
    "~1 is -2 and ~0 is -1: of integers, both are True. Make it boolean first.",
    _mask(lambda m: ~(~m).bool()[:, None, :]),
    lambda m, n: (~m[:, None] | ~causal_mask(m.shape[1])).repeat_interleave(n, dim=0),
)
torch_masks.wrong(
    "no axis for the queries",
    "(batch, L) needs an axis for the queries: attention_mask[:, None, :].",
    _mask(lambda m: m.bool()),
    lambda m, n: ((m == 0) | ~causal_mask(m.shape[1])).repeat_interleave(n, dim=0),
)
for name, real in {
    "queries blocked instead of keys": lambda m: m.bool()[:, :, None],
    "queries blocked, too": lambda m: m.bool()[:, None] & m.bool()[:, :, None],
    "padding not blocked": lambda m: torch.ones_like(m)[:, None],
    "only padding on the right": lambda m: m.sort(descending=True)[0].bool()[:, None],
}.items():
    why = "Padding on either side is blocked as a key: its column, not its row."
    torch_masks.wrong(name, why, _mask(real))

for name, causal in {
    "not causal": _ones,
    "one token too far ahead": lambda length: _ones(length).tril(1),
    "without the diagonal": lambda length: _ones(length).tril(-1),
    "past and future exchanged": lambda length: _ones(length).triu(),
}.items():
    why = "A token attends to itself and to all before it: block later ones, triu(1)."
    torch_masks.wrong(name, why, _mask(causal=causal))


def _itself(blocked):
    return torch.eye(blocked.shape[1], dtype=torch.bool)


torch_masks.wrong(
    "rows without a key opened",
    "Leave a row without any key blocked here; convention 8 repairs it afterwards.",
    _changed(lambda blocked: blocked & ~blocked.all(dim=-1, keepdim=True)),
    _changed(lambda b: b & ~(b.all(dim=-1, keepdim=True) & _itself(b))),
)
torch_masks.wrong(
    "the diagonal always open",
    "A padding token may not attend to itself: as a key, it is blocked for all.",
    _changed(lambda blocked: blocked & ~_itself(blocked)),
)

for name, repeated in {
    "repeat instead of repeat_interleave": lambda mask, n: mask.repeat(n, 1, 1),
    "one mask per sequence": lambda mask, n: mask,
    "four axes": lambda mask, n: mask[:, None].repeat(1, n, 1, 1),
}.items():
    why = (
        "PyTorch wants (batch * heads, L, L): all heads of sequence 0 first, "
        "then all heads of sequence 1."
    )
    torch_masks.wrong(name, why, _mask(repeated=repeated))

for name, changes in {
    "float mask of ones": [Tensor.float, lambda blocked: (~blocked).float()],
    "integer mask": [Tensor.int, Tensor.long, Tensor.byte],
    "additive mask": [
        lambda blocked: torch.where(blocked, -math.inf, 0.0),
        lambda blocked: torch.where(blocked, -1e9, 0.0),
    ],
}.items():
    why = "Return bool: PyTorch adds floats to the scores, and refuses integers."
    torch_masks.wrong(name, why, *[_changed(change) for change in changes])

torch_masks.wrong(
    "only the padding",
    "That is a key_padding_mask; asked is attn_mask, with the causal mask in it.",
    lambda m, n: m == 0,
    lambda m, n: (m == 0).repeat_interleave(n, dim=0),
)
torch_masks.wrong(
    "attention_mask as it came",
    "It must be flipped, joined with the causal mask, repeated for every head.",
    lambda m, n: m,
)


# --- 3.3 How much does a head attend to the previous token? -----------------------


def previous_token_score(weights: Tensor) -> Tensor:
    """The reference: weights (heads, L, L) -> (heads,), mean of weights[h, q, q - 1].

    The first query has no previous token and is left out.
    """
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def score_trials(dtype):
    sizes = [(3, 5), (4, 4), (2, 8), (1, 6), (5, 2)]
    for seed, (heads, length) in enumerate(sizes):
        weights = randn(heads, length, length, seed=seed, dtype=dtype).softmax(dim=-1)
        yield {"weights": weights}
    sharp = (50 * randn(3, 5, 5, seed=5, dtype=dtype)).softmax(dim=-1)
    yield {"weights": sharp.transpose(0, 1).contiguous().transpose(0, 1)}
    # as a layer returns them in training: dropped out, so rows need not sum to 1
    kept = randn(3, 6, 6, seed=7, dtype=dtype) > 0
    yield {"weights": 2 * kept * (4 * randn(3, 6, 6, seed=6, dtype=dtype)).softmax(-1)}


previous_token = Exercise(
    "3.3",
    "How much does a head attend to the previous token?",
    previous_token_score,
    score_trials,
    gradients=False,
)


def _diagonal(weights, offset=-1):
    return weights.diagonal(offset=offset, dim1=-2, dim2=-1)


for name, function in {
    "the next token": lambda w: _diagonal(w, 1).mean(dim=-1),
    "the token itself": lambda w: _diagonal(w, 0).mean(dim=-1),
    "two tokens back": lambda w: _diagonal(w, -2).mean(dim=-1),
    "all earlier tokens": lambda w: w.tril(-1).sum(dim=-1)[:, 1:].mean(dim=-1),
}.items():
    why = "Queries are rows: the previous token lies just below the diagonal."
    previous_token.wrong(name, why, function)

for name, functions in {
    "a sum instead of a mean": [lambda w: _diagonal(w).sum(dim=-1)],
    "mean over all queries": [lambda w: _diagonal(w).sum(dim=-1) / w.shape[-1]],
    "the last query left out": [
        lambda w: _diagonal(w)[:, :-1].mean(dim=-1),
        lambda w: _diagonal(w)[:, :-1].sum(dim=-1) / (w.shape[-1] - 1),
    ],
    "mean over the whole matrix": [lambda w: w.tril(-1).triu(-1).mean(dim=(-2, -1))],
    "mean over a block": [lambda w: w[:, 1:, :-1].mean(dim=(-2, -1))],
    "the best query": [lambda w: _diagonal(w).amax(dim=-1)],
    "median": [lambda w: _diagonal(w).median(dim=-1).values],
    "one number per query": [_diagonal],
}.items():
    why = "Take the mean over the L - 1 queries q = 1, 2, ... of weights[h, q, q - 1]."
    previous_token.wrong(name, why, *functions)


def _wrapped(weights):
    """Return weights[h, q, q - 1] for all q: for q = 0, that is the last token."""
    return _diagonal(weights.roll(1, -1), 0)


previous_token.wrong(
    "the first query wraps round",
    "For q = 0, the key q - 1 is -1, the last token: begin with q = 1.",
    lambda w: _wrapped(w).mean(dim=-1),
    lambda w: _wrapped(w).sum(dim=-1) / (w.shape[-1] - 1),
)
previous_token.wrong(
    "rows divided by their sums",
    "Take the weights as they are: after dropout, rows need not sum to 1.",
    lambda w: previous_token_score(w / w.sum(dim=-1, keepdim=True)),
)


def _hits(weights):
    """Whether the largest weight of each query but the first is on the token before."""
    before = torch.arange(weights.shape[-1] - 1)
    return (weights.argmax(dim=-1)[:, 1:] == before).to(weights.dtype)


previous_token.wrong(
    "how often it is the largest",
    "How often a weight is the largest does not say how large: take the mean weight.",
    lambda w: _hits(w).mean(dim=-1),
    lambda w: _hits(w).mean(dim=-1).float(),
    lambda w: _hits(w).long().sum(dim=-1),
    lambda w: _hits(w).sum(dim=-1) / w.shape[-1],
)
for name, function in {
    "averaged heads": lambda w: previous_token_score(w).mean(),
    "averaged maps": lambda w: previous_token_score(w.mean(dim=0, keepdim=True)),
}.items():
    previous_token.wrong(name, "Each head has a score of its own.", function)

previous_token.wrong(
    "diagonal of the first two axes",
    "diagonal(-1) takes the axes of heads and queries: say dim1=-2, dim2=-1.",
    lambda w: w.diagonal(-1).mean(dim=-1),
)


# --- 3.4 A baseline that is as sharp ----------------------------------------------


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy of each row of weights, in nats: 0 = all weight on one key."""
    return torch.special.entr(weights).sum(dim=-1)


def sharpened(scores: Tensor, target: float) -> Tensor:
    """The reference: weights softmax(gain * scores), one gain for each head.

    scores (heads, L, L); the gain of a head is the number above 0 for which the entropy
    of its weights, averaged over the queries, is `target`.
    """
    return (_gain(scores, target) * scores).softmax(dim=-1)


def _of_heads(weights):
    return entropy(weights).mean(dim=-1)[:, None, None]  # (heads, 1, 1)


def _gain(scores, target, measure=_of_heads, low=-20.0, high=20.0, halvings=40):
    """Halve an interval of log gains: the larger the gain, the smaller the entropy."""
    low = torch.full_like(measure(scores.softmax(dim=-1)), low)
    high = torch.full_like(low, high)
    for _ in range(halvings):
        middle = (low + high) / 2
        too_flat = measure((middle.exp() * scores).softmax(dim=-1)) > target
        low, high = middle.where(too_flat, low), high.where(too_flat, middle)
    return middle.exp()


def sharpened_trials(dtype):
    """Scores in single precision: a search need not be better than five digits."""
    if dtype != torch.float32:
        return
    sizes = [(3, 5, 1.0, 1), (2, 4, 1.3, 3), (1, 6, 0.3, 0.5), (4, 8, 1.9, 400)]
    for seed, (heads, length, target, factor) in enumerate(sizes):
        scores = randn(heads, length, length, seed=seed, dtype=dtype) * factor
        yield {"scores": scores, "target": target}
    turned = randn(3, 7, 7, seed=4, dtype=dtype).mT
    yield {"scores": turned + 100, "target": 0.8}  # neither contiguous nor near 0
    # as on the page: close ties, so gains up to a million, and most weights exactly 0
    small = randn(4, 13, 13, seed=5, dtype=dtype) * 3e-4
    yield {"scores": small, "target": 0.0023}
    # half of the weight on one key of 48: it changes most with the gain
    peaked = torch.eye(48) + randn(12, 48, 48, seed=6, dtype=dtype) / 50
    yield {"scores": peaked * torch.linspace(1, 3, 12)[:, None, None], "target": 2.6}


sharper = Exercise(
    "3.4", "A baseline that is as sharp", sharpened, sharpened_trials, gradients=False
)


def _searched(*measure, **interval):
    """Return the reference with another search."""

    def answer(scores, target):
        return (_gain(scores, target, *measure, **interval) * scores).softmax(dim=-1)

    return answer


for name, answer in {
    "one gain for all heads": _searched(lambda w: entropy(w).mean().view(1, 1, 1)),
    "one gain per query": _searched(lambda w: entropy(w)[..., None]),
    "bits": _searched(lambda w: _of_heads(w) / math.log(2)),
    "entropies added up": _searched(lambda w: _of_heads(w) * w.shape[-1]),
    "entropy of the mean row": _searched(lambda w: entropy(w.mean(-2))[:, None, None]),
    "the flattest query": _searched(lambda w: entropy(w).amax(-1)[:, None, None]),
}.items():
    why = "Each head has one gain: its rows have `target` nats of entropy on average."
    sharper.wrong(name, why, answer)


def _with_logarithm(weights):
    return -(weights * weights.log()).sum(dim=-1).mean(dim=-1)[:, None, None]


sharper.wrong(
    "0 · ln 0",
    "0 · ln 0 is NaN, no comparison with NaN is true, and the search goes astray.",
    _searched(_with_logarithm),
    _searched(lambda w: _with_logarithm(w).nan_to_num(math.inf)),  # if < is asked
)
sharper.wrong(
    "all heads moved alike",
    "`any` and `all` move every head alike; each needs its own half: use where.",
    _searched(lambda w: _of_heads(w).amin().view(1, 1, 1)),
    _searched(lambda w: _of_heads(w).amax().view(1, 1, 1)),
)
for name, answers in {
    "the search ends too soon": [
        *[_searched(low=-reach, high=reach) for reach in (5, 10)],
        *[_searched(low=math.log(least)) for least in (0.1, 0.01)],
        *[_searched(high=math.log(most)) for most in (20, 100, 1000, 10_000)],
    ],
    "gain never below 1": [_searched(low=0.0)],
}.items():
    why = "Some gains are far below 1, some in millions: search logs from -20 to 20."
    sharper.wrong(name, why, *answers)

sharper.wrong(
    "too few halvings",
    "The interval of gains is still too wide after so few steps: take about 40.",
    *[_searched(halvings=halvings) for halvings in (10, 15, 16, 17)],
)
sharper.wrong(
    "the wrong half kept",
    "Weights that are too flat need a larger gain: keep the upper half.",
    _searched(low=20.0, high=-20.0),
    _searched(low=10.0, high=-10.0),
)
sharper.wrong(
    "target as gain",
    "The target is an entropy, not a gain: search the gain that leads to it.",
    lambda s, target: (s * target).softmax(dim=-1),
    lambda s, target: (s / target).softmax(dim=-1),
    lambda s, target: (s * _of_heads(s.softmax(dim=-1)) / target).softmax(dim=-1),
)
for name, functions in {
    "softmax of the scores": [lambda s, target: s.softmax(dim=-1)],
    "softmax over the queries": [lambda s, target: sharpened(s.mT, target).mT],
    "the gains": [_gain, lambda s, target: _gain(s, target).flatten()],
    "scores instead of weights": [lambda s, target: _gain(s, target) * s],
    "weights sharpened again": [lambda s, target: sharpened(s.softmax(-1), target)],
    "weights multiplied": [lambda s, target: s.softmax(dim=-1) * _gain(s, target)],
    "powers not normalised": [lambda s, target: s.softmax(dim=-1) ** _gain(s, target)],
}.items():
    why = "Return softmax(gain * scores): the gain multiplies, then each row sums to 1."
    sharper.wrong(name, why, *functions)


EXERCISES = (torch_layer, torch_masks, previous_token, sharper)
