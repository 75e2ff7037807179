"""Exercises of lesson 02: heads there and back, the whole layer, a test, layouts.

Each exercise is a reference, its trials and its known mistakes, each with its name,
what is wrong with it (the learner reads that), and the code that makes it."""

import math

import torch
from torch import Tensor

from utils.attention import merge_heads, scaled_dot_product_attention, split_heads
from utils.oldex.engine import Exercise, randn

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
from utils.attention import causal_mask, padding_mask, scaled_dot_product_attention
"""


# --- 2.1 --------------------------------------------------------------------------


def on_heads(function, x: Tensor, num_heads: int) -> Tensor:
    """Fold the heads into the batch, call function, and unfold what it returns."""
    return unfold(function(fold(x, num_heads)), x)


def fold(x, num_heads):
    """Return x (length, batch, embed) as (batch * num_heads, length, head_dim)."""
    length, batch, embed = x.shape
    heads = x.reshape(length, batch * num_heads, embed // num_heads)
    return heads.transpose(0, 1)


def unfold(heads, x, num_heads=None):
    return heads.transpose(0, 1).reshape(x.shape)


def of_heads(x) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() != 3:
        given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"takes (batch * num_heads, length, head_dim), not {given}.")
    return x


def mean_so_far(x: Tensor) -> Tensor:
    """Mix each token with those before it."""
    count = torch.arange(1, of_heads(x).shape[1] + 1, dtype=x.dtype)
    return x.cumsum(dim=1) / count[:, None]


def times_its_number(x: Tensor) -> Tensor:
    """Multiply the first head by 1, the second by 2, ..."""
    return x * torch.arange(1, len(of_heads(x)) + 1, dtype=x.dtype)[:, None, None]


def sums_of_features(x: Tensor) -> Tensor:
    """Mix the features inside each head."""
    return of_heads(x).cumsum(dim=2)


def times_random(x: Tensor) -> Tensor:
    """Multiply by random numbers; a second call gets others."""
    return x * torch.rand(of_heads(x).shape).to(x.dtype)


def on_heads_trials(dtype):
    sizes = [(6, 2, 3, 4), (4, 3, 2, 6), (5, 1, 4, 4), (1, 2, 2, 3), (3, 3, 3, 3)]
    for seed, (length, batch, heads, dim) in enumerate(sizes):
        for function in (mean_so_far, times_its_number, sums_of_features):
            x = randn(length, batch, heads * dim, seed=seed, dtype=dtype)
            yield {"function": function, "x": x, "num_heads": heads}
    strided = randn(2, 5, 12, seed=9, dtype=dtype).transpose(0, 1)
    for function in (mean_so_far, times_its_number, times_random):
        yield {"function": function, "x": strided, "num_heads": 3}


there_and_back = Exercise("2.1", "Heads, there and back", on_heads, on_heads_trials)


def ways(way_in=fold, way_out=unfold):
    """Return the answer with another way in, or another way out, or both."""
    return lambda f, x, num_heads: way_out(f(way_in(x, num_heads)), x, num_heads)


def reshape_in(x, num_heads):
    return x.reshape(x.shape[1] * num_heads, len(x), -1)


def reshape_out(heads, x, num_heads):
    return heads.reshape(x.shape)


def sentences_out(heads, x, num_heads):
    return heads.reshape(x.transpose(0, 1).shape).transpose(0, 1)


def sentences_in_front(heads, x, num_heads):
    by_sentence = heads.unflatten(0, (-1, num_heads)).transpose(1, 2)
    return by_sentence.reshape(x.shape)  # of (batch, length, heads, head_dim)


def transposed_in(x, num_heads):
    return x.transpose(1, 2).reshape(x.shape[1] * num_heads, len(x), -1)


def heads_first_in(x, num_heads):
    return torch.cat(x.transpose(0, 1).chunk(num_heads, dim=-1))


def heads_first_out(heads, x, num_heads):
    return torch.cat(heads.chunk(num_heads), dim=-1).transpose(0, 1)


def interleaved_in(x, num_heads):
    return x.unflatten(-1, (-1, num_heads)).permute(1, 3, 0, 2).flatten(0, 1)


def interleaved_out(heads, x, num_heads):
    return heads.unflatten(0, (-1, num_heads)).permute(2, 0, 3, 1).flatten(2)


heads_first = ways(heads_first_in, heads_first_out)
interleaved = ways(interleaved_in, interleaved_out)

there_and_back.wrong(
    "reshape without transpose",
    "Such heads are pieces of the text: cut the features, then move an axis.",
    ways(reshape_in, reshape_out),
    ways(lambda x, H: fold(x, 1).reshape(-1, len(x), x.shape[2] // H), sentences_out),
)
there_and_back.wrong(
    "transposed before it was cut",
    "First cut the features into (num_heads, head_dim), then move an axis.",
    ways(transposed_in, reshape_out),
    ways(transposed_in),
)
there_and_back.wrong(
    "tokens not moved",
    "The tokens are still in front: `function` takes them as the second axis.",
    ways(lambda x, H: x.reshape(len(x), x.shape[1] * H, -1), reshape_out),
)
there_and_back.wrong(
    "split without transpose",
    "The way in cuts the text, not the features; only the way out is right.",
    ways(reshape_in),
)
there_and_back.wrong(
    "merge without transpose",
    "On the way out features of different tokens end up in one row.",
    ways(way_out=reshape_out),
    ways(way_out=sentences_out),
)
there_and_back.wrong(
    "batch and heads not joined",
    "Make one axis of batch and heads before the call: flatten(0, 1), or reshape.",
    lambda f, x, H: merge_heads(f(split_heads(x.transpose(0, 1), H))),
)
there_and_back.wrong(
    "x taken for (batch, length, embed)",
    "The first axis of x is the length here, the second the batch.",
    lambda f, x, H: on_heads(f, x.transpose(0, 1), H).transpose(0, 1),
)
there_and_back.wrong(
    "heads before sentences",
    "Head 0 of all sentences comes first; wanted is all of one sentence first.",
    heads_first,
    ways(heads_first_in),
)
there_and_back.wrong(
    "heads before sentences on the way out",
    "After the call, the first axis is (batch, heads), not (heads, batch).",
    ways(way_out=heads_first_out),
)
there_and_back.wrong(
    "sentences not moved",
    "The result is (length, batch, embed): move the axes, do not reshape them.",
    ways(way_out=sentences_in_front),
)
there_and_back.wrong(
    "every num_heads-th feature",
    "A head is a block of neighbouring features.",
    interleaved,
    ways(interleaved_in),
)
there_and_back.wrong(
    "heads interleaved in the merge",
    "Put the heads side by side, one whole head after the other.",
    ways(way_out=interleaved_out),
)
there_and_back.wrong(
    "tokens and features exchanged before merging",
    "Before the merge the heads must stand beside their features, not the tokens.",
    ways(way_out=lambda y, x, H: unfold(y.transpose(1, 2), x)),
    ways(way_out=lambda y, x, H: y.transpose(1, 2).reshape(x.shape)),
)
there_and_back.wrong(
    "heads summed or averaged",
    "The heads stand side by side; they are neither added up nor averaged.",
    ways(way_out=lambda y, x, H: y.unflatten(0, (-1, H)).sum(dim=1).transpose(0, 1)),
    ways(way_out=lambda y, x, H: y.unflatten(0, (-1, H)).mean(dim=1).transpose(0, 1)),
)
there_and_back.wrong(
    "view of transposed memory",
    "view cannot merge axes that were moved: use reshape or flatten.",
    ways(way_out=lambda y, x, H: y.transpose(0, 1).view(x.shape)),
)
there_and_back.wrong(
    "heads not merged",
    "The way back is missing: return (length, batch, embed).",
    ways(way_out=lambda y, x, H: y),
)
there_and_back.wrong(
    "function left out",
    "`function` was never called, or its result was not used.",
    lambda f, x, H: x.clone(),
)
there_and_back.wrong(
    "one head over all features",
    "num_heads was not used: every sentence is one head.",
    lambda f, x, H: on_heads(f, x, 1),
)
there_and_back.wrong(
    "called more than once",
    "All heads go into one call, as one batch.",
    lambda f, x, H: torch.cat([on_heads(f, part, 1) for part in x.chunk(H, -1)], -1),
    lambda f, x, H: torch.cat([on_heads(f, one, H) for one in x.split(1, 1)], 1),
    lambda f, x, H: torch.cat([f(part) for part in x.chunk(H, -1)], -1),
    lambda f, x, H: unfold(torch.stack([f(head[None])[0] for head in fold(x, H)]), x),
    lambda f, x, H: unfold(torch.stack([f(head) for head in fold(x, H)]), x),
    lambda f, x, H: on_heads(lambda heads: (f(heads), f(heads))[1], x, H),
)
there_and_back.wrong(
    "number and size of the heads swapped",
    "Those are embed / num_heads heads of num_heads features each.",
    lambda f, x, H: on_heads(f, x, x.shape[-1] // H),
    lambda f, x, H: heads_first(f, x, x.shape[-1] // H),
    lambda f, x, H: interleaved(f, x, x.shape[-1] // H),
)


# --- 2.2 --------------------------------------------------------------------------


def multi_head_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int
) -> Tensor:
    """Project, split, attend, merge, project; weights are (out, in)."""
    return merge_heads(heads_of(x, w_q, w_k, w_v, num_heads)) @ w_o.mT


def heads_of(x, w_q, w_k, w_v, num_heads, split=split_heads):
    """Return what the heads give: (batch, heads, length, head_dim)."""
    q, k, v = (split(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    return scaled_dot_product_attention(q, k, v)[0]


# batch, length, heads, head_dim, features, out; in double precision head_dim is a
# square, so that its root is exact in every precision
SIZES = [
    (2, 6, 3, 4, 12, 12),
    (3, 4, 2, 9, 18, 18),
    (2, 5, 4, 4, 16, 16),
    (2, 5, 3, 4, 7, 9),
    (1, 1, 2, 4, 8, 8),
    (4, 4, 4, 4, 16, 16),
]
NO_SQUARES = [(2, 5, 2, 6, 12, 12), (2, 5, 4, 3, 12, 12)]


def layer_trials(dtype):
    trials = [
        layer_trial(*size, seed, dtype)
        for seed, size in enumerate(SIZES + NO_SQUARES * (dtype == torch.float32))
    ]
    yield from trials
    first, second = trials[:2]
    yield first | {"x": first["x"].transpose(0, 1).contiguous().transpose(0, 1)}
    silent = first["x"].clone()
    silent[0, 1] = 0  # a token whose scores are exactly 0, among others
    yield first | {"x": silent}
    yield second | {"w_q": torch.zeros_like(second["w_q"])}  # all scores 0
    if dtype == torch.float64:  # precise enough for scores whose exp overflows
        yield first | {"w_q": first["w_q"] * 1000}


def layer_trial(batch, length, heads, head_dim, features, out, seed, dtype):
    def weight(rows, columns, at):
        return randn(rows, columns, seed=seed + at, dtype=dtype) / columns**0.5 * 2

    embed = heads * head_dim
    return {
        "x": randn(batch, length, features, seed=seed, dtype=dtype),
        "w_q": weight(embed, features, 10),
        "w_k": weight(embed, features, 20),
        "w_v": weight(embed, features, 30),
        "w_o": weight(out, embed, 40),
        "num_heads": heads,
    }


whole_layer = Exercise("2.2", "The whole layer", multi_head_attention, layer_trials)


def layer(
    split=split_heads,
    merge=merge_heads,
    divisor=lambda x, E, H: (E / H) ** 0.5,
    weigh=lambda scores: scores.softmax(dim=-1),
):
    """Return the layer with one or two of its steps replaced.

    divisor: what the scores are divided by, from x, embed_dim and the number of heads.
    """

    def attempt(x, w_q, w_k, w_v, w_o, num_heads):
        q, k, v = (split(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
        scores = q @ k.mT / divisor(x, len(w_q), num_heads)
        return merge(weigh(scores) @ v) @ w_o.mT

    return attempt


def split_without_transpose(x, num_heads):
    batch, length, embed = x.shape
    return x.reshape(batch, num_heads, length, embed // num_heads)


def merge_without_transpose(x):
    batch, heads, length, head_dim = x.shape
    return x.reshape(batch, length, heads * head_dim)


def split_interleaved(x, num_heads):
    return x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)


def split_into_pieces_of(x, num_heads):
    return torch.stack(x.split(num_heads, dim=-1), dim=1)


def merge_interleaved(x):
    return x.permute(0, 2, 3, 1).flatten(2)


for name, why, divisor in [
    ("no scale", "The scores are not divided by √head_dim.", lambda x, E, H: 1.0),
    (
        "√embed_dim",
        "Divide by the root of head_dim, not of embed_dim.",
        lambda x, E, H: E**0.5,
    ),
    ("√embed_dim", "", lambda x, E, H: x.shape[-1] ** 0.5),
    ("√num_heads", "The scale is √head_dim, not √num_heads.", lambda x, E, H: H**0.5),
    (
        "√length",
        "The scale is √head_dim, not √length.",
        lambda x, E, H: x.shape[1] ** 0.5,
    ),
    ("divided by head_dim", "Divide by √head_dim instead.", lambda x, E, H: E / H),
    (
        "multiplied by √head_dim",
        "Divide the scores by √head_dim.",
        lambda x, E, H: (H / E) ** 0.5,
    ),
    ("the root rounded", "√6 is 2.45, not 2.", lambda x, E, H: math.isqrt(E // H)),
    ("the root rounded", "", lambda x, E, H: round((E / H) ** 0.5)),
]:
    whole_layer.wrong(name, why, layer(divisor=divisor))

whole_layer.wrong(
    "reshape without transpose",
    "Such heads are pieces of the sentence: each sees only a few tokens.",
    layer(split_without_transpose),
)
whole_layer.wrong(
    "merge without transpose",
    "Features of different tokens end up in one row.",
    layer(merge=merge_without_transpose),
)
whole_layer.wrong(
    "split and merge without transpose",
    "Shapes and causality look right, yet distant tokens never meet.",
    layer(split_without_transpose, merge_without_transpose),
)
whole_layer.wrong(
    "transposed before it was cut",
    "First cut the features into (heads, head_dim), then move the heads.",
    layer(lambda x, H: x.transpose(1, 2).reshape(len(x), H, x.shape[1], -1)),
)
whole_layer.wrong(
    "tokens and features exchanged before merging",
    "Move the heads behind the tokens, transpose(1, 2), before you merge.",
    layer(merge=lambda heads: heads.mT.reshape(len(heads), heads.shape[2], -1)),
)
whole_layer.wrong(
    "every num_heads-th feature",
    "A head is a block of neighbouring features.",
    layer(split_interleaved),
    layer(split_interleaved, merge_interleaved),
)
whole_layer.wrong(
    "heads interleaved in the merge",
    "Put the heads side by side, one whole head after the other.",
    layer(merge=merge_interleaved),
)
whole_layer.wrong(
    "pieces of num_heads features",
    "Those are pieces of num_heads features; wanted are num_heads pieces.",
    layer(split_into_pieces_of),
    layer(split_into_pieces_of, divisor=lambda x, E, H: H**0.5),
)
whole_layer.wrong(
    "summed heads",
    "Before w_o the heads stand side by side; they are not added up.",
    layer(merge=lambda heads: heads.sum(dim=1)),
)
whole_layer.wrong(
    "averaged weights",
    "Every head attends with its own weights.",
    layer(weigh=lambda scores: scores.softmax(dim=-1).mean(dim=1, keepdim=True)),
)
whole_layer.wrong(
    "softmax over the wrong axis",
    "The weights of each query (a row) must sum to 1.",
    layer(weigh=lambda scores: scores.softmax(dim=-2)),
)
whole_layer.wrong(
    "causal mask",
    "No mask is wanted here: each token attends to all tokens.",
    layer(
        weigh=lambda scores: scores.masked_fill(
            torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf
        ).softmax(dim=-1)
    ),
)
whole_layer.wrong(
    "no softmax",
    "The softmax is missing: scores are not weights.",
    layer(weigh=lambda scores: scores),
)
whole_layer.wrong(
    "softmax that overflows",
    "exp of a large score is infinite: softmax subtracts each row's own maximum.",
    layer(weigh=lambda scores: scores.exp() / scores.exp().sum(dim=-1, keepdim=True)),
)
whole_layer.wrong(
    "one head over all features",
    "num_heads is not used.",
    lambda x, q, k, v, o, H: multi_head_attention(x, q, k, v, o, 1),
)
whole_layer.wrong(
    "weights used as (in, out)",
    "nn.Linear stores (out, in): write x @ w.T.",
    lambda x, q, k, v, o, H: multi_head_attention(x, q.mT, k.mT, v.mT, o.mT, H),
    lambda x, q, k, v, o, H: multi_head_attention(x, q.mT, k.mT, v.mT, o, H),
    lambda x, q, k, v, o, H: multi_head_attention(x, q, k, v, o.mT, H),
)
whole_layer.wrong(
    "w_q, w_k and w_v in other roles",
    "w_q makes the queries, w_k the keys, w_v the values, and each its own.",
    lambda x, q, k, v, o, H: multi_head_attention(x, k, q, v, o, H),
    lambda x, q, k, v, o, H: multi_head_attention(x, q, v, k, o, H),
    lambda x, q, k, v, o, H: multi_head_attention(x, q, k, k, o, H),
    lambda x, q, k, v, o, H: multi_head_attention(x, q, q, v, o, H),
    lambda x, q, k, v, o, H: multi_head_attention(x, q, q, q, o, H),
)
whole_layer.wrong(
    "no output projection",
    "w_o mixes what the heads have returned.",
    lambda x, q, k, v, o, H: merge_heads(heads_of(x, q, k, v, H)),
)
whole_layer.wrong(
    "x as it came", "No token has attended to any other.", lambda x, *_: x.clone()
)


def beside(x, num_heads):
    """Return (batch, length, heads, head_dim)."""
    return x.unflatten(-1, (num_heads, -1))


whole_layer.wrong(
    "attention between the heads of a token",
    "Without the transpose the heads of one token attend to each other.",
    lambda x, q, k, v, o, H: heads_of(x, q, k, v, H, beside).flatten(2) @ o.mT,
)


whole_layer.wrong(
    "size of the heads taken from x",
    "The heads divide the rows of w_q; x may have another number of features.",
    lambda x, q, k, v, o, H: merge_heads(heads_of(x, q, k, v, H)).view(x.shape) @ o.mT,
)


@whole_layer.wrong("size of the heads taken from x")
def _(x, w_q, w_k, w_v, w_o, num_heads):
    shape = (*x.shape[:2], num_heads, x.shape[2] // num_heads)
    heads = heads_of(x, w_q, w_k, w_v, 1, lambda y, _: y.view(shape).transpose(1, 2))
    return merge_heads(heads) @ w_o.mT


def cut_first(cut):
    """Return the layer that cuts x into heads, and then projects them."""

    def attempt(x, w_q, w_k, w_v, w_o, num_heads):
        q, k, v = (cut(x, num_heads) @ w.mT for w in (w_q, w_k, w_v))
        return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ w_o.mT

    return attempt


whole_layer.wrong(
    "heads cut before projecting",
    "Project the whole token first, and split afterwards: each head needs all of it.",
    cut_first(split_heads),
    cut_first(lambda x, H: beside(x, H).transpose(1, 2)),
    cut_first(lambda x, H: x.reshape(*x.shape[:2], H, -1).transpose(1, 2)),
    cut_first(lambda x, H: x.view(*x.shape[:2], H, x.shape[2] // H).transpose(1, 2)),
)


@whole_layer.wrong("heads cut before projecting")
def _(x, w_q, w_k, w_v, w_o, num_heads):  # with the first rows and columns of the maps
    size = x.shape[-1] // num_heads
    corners = (w[:size, :size] for w in (w_q, w_k, w_v))
    return cut_first(split_heads)(x, *corners, w_o, num_heads)


@whole_layer.wrong("heads cut before projecting")
def _(x, w_q, w_k, w_v, w_o, num_heads):  # with a block of the maps for each head
    def blocks(w):
        rows = enumerate(w.chunk(num_heads))
        return torch.block_diag(*(r.chunk(num_heads, -1)[h] for h, r in rows))

    return multi_head_attention(x, *map(blocks, (w_q, w_k, w_v)), w_o, num_heads)


# --- 2.3 --------------------------------------------------------------------------


SHUFFLED = torch.randperm(13, generator=torch.Generator().manual_seed(0))


def shuffle_test(layer) -> bool:
    """Return whether shuffled tokens give the outputs in the shuffled order."""
    return survives(layer, SHUFFLED, atol=1e-4)


def survives(layer, order, same=torch.allclose, **tolerance) -> bool:
    """Return whether a layer gives tokens in this order the outputs in this order."""
    x = randn(2, len(order), 24, seed=3, dtype=torch.float32)
    return same(layer(x[:, order]), layer(x)[:, order], **tolerance)


class BlackBox:
    """A layer that cannot be looked into: four heads of six features."""

    def __init__(self, name, seed, sharp, size, exact=False, **steps):
        self.__name__, self.exact, self.layer = name, exact, layer(**steps)
        w_q, w_k, w_v, w_o = randn(4, 24, 24, seed=seed, dtype=torch.float64) / 24**0.5
        self.weights = w_q * sharp, w_k, w_v, w_o * size

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[-1] != 24:
            raise ValueError(f"x has shape {tuple(x.shape)}; give (batch, length, 24).")
        given = x if x.is_floating_point() else x.float()
        x = given.double() if self.exact else given
        weights = [w.to(x.dtype) for w in self.weights]
        return self.layer(x, *weights, 4).to(given.dtype)


WRONG_SPLIT = {"split": split_without_transpose}
WRONG_MERGE = {"merge": merge_without_transpose}
KINDS = {
    "a right layer": {},
    "a layer with the split wrong": WRONG_SPLIT,
    "a layer with the merge wrong": WRONG_MERGE,
    "a layer with both wrong": WRONG_SPLIT | WRONG_MERGE,
}
LAYERS = [
    BlackBox(name, seed, sharp, size, **steps)
    for seed, sharp, size in ((0, 1.0, 0.02), (100, 0.5, 1.0), (200, 3.0, 1.0))
    for name, steps in KINDS.items()
]
# the only one that torch.equal may accept
LAYERS.append(BlackBox("a right layer without rounding errors", 300, 1.0, 1.0, True))


def shuffle_trials(dtype):
    for layer in LAYERS if dtype == torch.float32 else ():
        yield {"layer": layer}


write_the_test = Exercise(
    "2.3", "Write the test", shuffle_test, shuffle_trials, gradients=False
)
write_the_test.wrong(
    "says yes to all",
    "All layers get shapes, sums and the order of sentences right, and the wrong ones "
    "differ only if tokens change places: shuffle tokens that are all different.",
    lambda layer: True,
)
write_the_test.wrong(
    "says no to all",
    "Right layers fail, too. Each token may attend to all of them; if you shuffle, "
    "compare layer(x[:, order]) with layer(x)[:, order], up to rounding.",
    lambda layer: False,
)
write_the_test.wrong(
    "both wrong not found",
    "With both wrong, whole pieces of a text, or equal tokens, may change places "
    "unnoticed: shuffle more tokens, all different, in a random order.",
    lambda layer: survives(layer, [1, 0, 3, 2, 5, 4, 7, 6], atol=1e-4),
    lambda layer: survives(layer, [2, 0, 3, 1], atol=1e-4),
)
write_the_test.wrong(
    "exact equality",
    "Right layers differ in their last bits: use torch.allclose with an atol.",
    lambda layer: survives(layer, SHUFFLED, torch.equal),
)
write_the_test.wrong(
    "tolerance too wide",
    "Outputs of size 0.02 are equal up to 0.1, whatever they are: try atol=1e-4.",
    lambda layer: survives(layer, SHUFFLED, atol=1.0),
    lambda layer: survives(layer, SHUFFLED, atol=0.1),
)
write_the_test.wrong(
    "upside down",
    "True means that the layer is right.",
    lambda layer: not shuffle_test(layer),
)


@write_the_test.wrong(
    "looks at who sees whom",
    "With one wrong reshape, each token still depends on all tokens: shuffle them.",
)
def _(layer):
    x = randn(1, 8, 24, seed=3, dtype=torch.float32)
    changed = x.clone()
    changed[:, 0] += 1
    return bool(((layer(changed) - layer(x)).abs().amax(-1) > 1e-5).all())


# --- 2.4 --------------------------------------------------------------------------


def renumber(w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor, order: list):
    """Move blocks of rows going in, and blocks of columns going out."""
    return moved(w_in, order), moved(b_in, order), moved(w_out, order), b_out


def moved(x, order, dim=1):
    """Return x with the blocks along an axis, one for each head, in a new order."""
    blocks = x.unflatten(dim, (len(order), -1))
    return blocks.index_select(dim, torch.tensor(order)).flatten(dim, dim + 1)


def renumber_trials(dtype):
    orders = [(4, [2, 0, 1]), (3, [1, 3, 0, 2]), (2, [1, 0]), (3, [1, 2, 0])]
    orders += [(1, [2, 3, 1, 0]), (4, [0])]
    for seed, (dim, order) in enumerate(orders):
        embed = dim * len(order)
        yield {
            "w_in": randn(3, embed, embed, seed=seed, dtype=dtype),
            "b_in": randn(3, embed, seed=seed + 10, dtype=dtype),
            "w_out": randn(embed, embed, seed=seed + 20, dtype=dtype),
            "b_out": randn(embed, seed=seed + 30, dtype=dtype),
            "order": order,
        }
    yield {
        "w_in": randn(6, 3, 6, seed=40, dtype=dtype).transpose(0, 1),  # strided
        "b_in": randn(3, 6, seed=41, dtype=dtype),
        "w_out": randn(6, 6, seed=43, dtype=dtype).mT,
        "b_out": randn(6, seed=42, dtype=dtype),
        "order": [1, 2, 0],
    }


new_numbers = Exercise(
    "2.4", "Renumber the heads", renumber, renumber_trials, gradients=False
)


def inverse(order):
    return torch.tensor(order).argsort().tolist()


def only(maps):
    """Return the answer that moves only these of w_in: 0 queries, 1 keys, 2 values."""

    def part(x, order):
        done = moved(x, order)
        return torch.stack([done[i] if i in maps else x[i] for i in range(3)])

    return lambda w, b, out, c, o: (part(w, o), part(b, o), moved(out, o), c)


new_numbers.wrong(
    "biases not moved",
    "b_in belongs to the rows of w_in and moves with them.",
    lambda w, b, out, c, order: (moved(w, order), b, moved(out, order), c),
)
new_numbers.wrong(
    "rows of w_out moved",
    "The heads come in through the columns of w_out; its rows are outputs.",
    lambda w, b, out, c, o: (moved(w, o), moved(b, o), moved(out, o, 0), c),
    lambda w, b, out, c, o: (
        moved(w, o),
        moved(b, o),
        moved(out, o, 0),
        moved(c, o, 0),
    ),
    lambda w, b, out, c, o: renumber(w, b, moved(out, o, 0), c, o),
)
new_numbers.wrong(
    "b_out moved",
    "b_out is added to the sum; it belongs to no head.",
    lambda w, b, out, c, o: renumber(w, b, out, moved(c, o, 0), o),
)
new_numbers.wrong(
    "the inverse order",
    "Head order[i] becomes head i, in w_in, b_in and w_out alike.",
    lambda w, b, out, c, o: renumber(w, b, out, c, inverse(o)),
    lambda w, b, out, c, o: (moved(w, o), moved(b, o), moved(out, inverse(o)), c),
    lambda w, b, out, c, o: (*renumber(w, b, out, c, inverse(o))[:2], moved(out, o), c),
)
new_numbers.wrong(
    "only one of w_in and w_out moved",
    "One of them still has the heads in their old order.",
    lambda w, b, out, c, o: (moved(w, o), moved(b, o), out, c),
    lambda w, b, out, c, o: (w, b, moved(out, o), c),
)
new_numbers.wrong(
    "only a part of w_in moved",
    "Queries, keys and values of a head move together.",
    *(only(maps) for maps in ([0], [0, 1], [0, 2], [1, 2], [2])),
)
new_numbers.wrong(
    "order taken for row numbers",
    "`order` numbers heads, blocks of rows, not single rows.",
    lambda w, b, out, c, o: (w[:, o], b[:, o], out[:, o], c),
)
new_numbers.wrong(
    "columns of w_in moved",
    "The columns of w_in are the features of a token; the heads are its rows.",
    lambda w, b, out, c, o: (moved(w, o, 2), moved(b, o), moved(out, o), c),
    lambda w, b, out, c, o: renumber(moved(w, o, 2), b, out, c, o),
)
new_numbers.wrong(
    "columns of w_in and rows of w_out moved",
    "It is the other way round: the heads are the rows of w_in and columns of w_out.",
    lambda w, b, out, c, o: (moved(w, o, 2), moved(b, o), moved(out, o, 0), c),
)
new_numbers.wrong(
    "queries, keys and values reordered",
    "The first axis of w_in is query, key, value; it has no heads. Cut its rows.",
    lambda w, b, out, c, o: (w[o], b[o], moved(out, o), c),
    lambda w, b, out, c, o: (w[o], moved(b, o), moved(out, o), c),
)
new_numbers.wrong(
    "nothing moved", "Every head has kept its number.", lambda *tensors: tensors[:4]
)


@new_numbers.wrong(
    "single features moved",
    "A head is a block of features; here single features were moved.",
)
def _(w_in, b_in, w_out, b_out, order):
    fine = (x.unflatten(1, (-1, len(order)))[:, :, order] for x in (w_in, b_in, w_out))
    return *(x.flatten(1, 2) for x in fine), b_out


@new_numbers.wrong(
    "axes not flattened",
    "The axes must be flattened again: the shapes stay as they were.",
)
def _(w_in, b_in, w_out, b_out, order):
    cut = (x.unflatten(1, (len(order), -1))[:, order] for x in (w_in, b_in, w_out))
    return *cut, b_out


# --- 2.5 --------------------------------------------------------------------------


def stacked_from_interleaved(parameter: Tensor, num_heads: int) -> Tensor:
    """Return rows ordered (head, qkv, dim) in the order (qkv, head, dim)."""
    return by_head(parameter, num_heads).transpose(0, 1).flatten(0, 2)


def by_head(parameter, num_heads):
    return parameter.unflatten(0, (num_heads, 3, -1))  # (heads, 3, head_dim, ...)


def layout_trials(dtype):
    sizes = [(3, 4), (2, 6), (4, 4), (2, 3), (1, 4), (3, 1), (5, 2)]
    for seed, (heads, dim) in enumerate(sizes):
        embed = heads * dim
        weight = randn(3 * embed, embed, seed=seed, dtype=dtype)
        yield {"parameter": weight, "num_heads": heads}
        bias = randn(3 * embed, seed=seed + 10, dtype=dtype)
        yield {"parameter": bias, "num_heads": heads}
    strided = randn(8, 24, seed=20, dtype=dtype).mT
    yield {"parameter": strided, "num_heads": 4}


layouts = Exercise(
    "2.5",
    "From interleaved to stacked",
    stacked_from_interleaved,
    layout_trials,
    gradients=False,
)
layouts.wrong(
    "rows not moved",
    "They are still ordered (head, qkv, dim): transpose the axes of heads and kinds.",
    lambda p, H: p.clone(),
)
layouts.wrong(
    "the other direction",
    "These rows go from stacked to interleaved.",
    lambda p, H: p.unflatten(0, (3, H, -1)).transpose(0, 1).flatten(0, 2),
)
layouts.wrong(
    "q, k, v as the fastest axis",
    "A head's rows are (3, head_dim), not (head_dim, 3).",
    lambda p, H: p.unflatten(0, (H, -1, 3)).movedim(2, 0).flatten(0, 2),
    lambda p, H: p.unflatten(0, (H, -1, 3)).transpose(0, 1).flatten(0, 2),
)
layouts.wrong(
    "other axes exchanged",
    "Of (head, qkv, dim) the first two change places: transpose(0, 1).",
    lambda p, H: by_head(p, H).transpose(1, 2).flatten(0, 2),
    lambda p, H: by_head(p, H).transpose(0, 2).flatten(0, 2),
    lambda p, H: by_head(p, H).movedim(0, 2).flatten(0, 2),
)
layouts.wrong(
    "axes not flattened",
    "The axes must be flattened again, into the rows of one matrix.",
    lambda p, H: by_head(p, H).transpose(0, 1),
)
layouts.wrong(
    "biases not moved",
    "The rows of a bias move as those of its weight.",
    lambda p, H: p.clone() if p.dim() == 1 else stacked_from_interleaved(p, H),
)
layouts.wrong(
    "only for matrices",
    "A bias has no second axis: unflatten and flatten work for both.",
    lambda p, H: by_head(p, H).permute(1, 0, 2, 3).flatten(0, 2),
    lambda p, H: p.reshape(H, 3, -1, p.shape[1]).transpose(0, 1).reshape(p.shape),
    lambda p, H: p.reshape(H, 3, -1, p.shape[-1]).transpose(0, 1).reshape(p.shape),
    lambda p, H: p.reshape(H, 3, p.shape[-1] // H, -1).transpose(0, 1).reshape(p.shape),
)


for kinds in ([0, 2, 1], [1, 0, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]):
    layouts.wrong(
        "q, k, v in another order",
        "The order is query, key, value.",
        lambda p, H, kinds=kinds: by_head(p, H)[:, kinds].transpose(0, 1).flatten(0, 2),
    )


@layouts.wrong("columns moved", "The layout is a matter of the rows, the outputs.")
def _(parameter, num_heads):
    if parameter.dim() == 1:
        return stacked_from_interleaved(parameter, num_heads)
    return parameter.unflatten(1, (num_heads, -1)).transpose(1, 2).flatten(1, 2)


EXERCISES = (there_and_back, whole_layer, write_the_test, new_numbers, layouts)
