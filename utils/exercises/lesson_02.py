"""Exercises of notebook 02: heads there and back, the whole layer, a test, layouts."""

import torch
from torch import Tensor

from utils.attention import merge_heads, scaled_dot_product_attention, split_heads
from utils.exercises.engine import Exercise, randn

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn
from utils.attention import causal_mask, padding_mask, scaled_dot_product_attention
"""

SHOWN = {  # broken on the page -> the exercise that rejects it, by this name
    "class WrongSplit(MultiHead)": ("2.2", "reshape without transpose"),
    "class WrongMerge(MultiHead)": ("2.2", "merge without transpose"),
    "class BothWrong(WrongSplit, WrongMerge)": (
        "2.2",
        "split and merge without transpose",
    ),
    "`x.reshape(batch * num_heads, length, -1)`": ("2.1", "reshape without transpose"),
    "`.view` refuses": ("2.1", "view of transposed memory"),
    "`x.split(num_heads, dim=-1)`": ("2.1", "number and size of the heads swapped"),
    "*Scaled by √embed_dim*": ("2.2", "√embed_dim"),
    "*One head over all features*": ("2.2", "one head over all features"),
    "*Heads cut before projecting*": ("2.2", "heads cut before projecting"),
    "def leak(layer)": ("2.3", "says no to all"),
    '"neighbours": torch.tensor([1, 0, 3, 2, 5, 4, 7, 6])': (
        "2.3",
        "a shuffle that keeps the pieces",
    ),
    '"pairs": torch.tensor([2, 3, 0, 1, 6, 7, 4, 5])': (
        "2.3",
        "a shuffle that keeps the pieces",
    ),
    "`layer(x).shape == x.shape`": ("2.3", "says yes to all"),
    "`torch.equal` asks": ("2.3", "exact equality"),
    "Forget the biases": ("2.4", "biases not moved"),
    "Its rows, and `b_out`": ("2.4", "rows of w_out moved"),
    "`order` and its inverse": ("2.4", "the inverse order"),
    "misread = read_stacked(x, interleaved)": ("2.5", "rows not moved"),
    "`unflatten(0, (3, num_heads, -1))`": ("2.5", "the other direction"),
    "`.view(num_heads, 3, head_dim, embed)`": ("2.5", "only for matrices"),
}


# --- 2.1 heads, there and back ----------------------------------------------------


def on_heads(function, x: Tensor, num_heads: int) -> Tensor:
    """The reference: fold the heads into the batch, call function, unfold."""
    length, batch, embed = x.shape
    heads = x.reshape(length, batch * num_heads, embed // num_heads)
    return function(heads.transpose(0, 1)).transpose(0, 1).reshape(length, batch, embed)


def _of_heads(x) -> Tensor:
    if not isinstance(x, Tensor) or x.dim() != 3:
        given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"takes (batch * num_heads, length, head_dim), not {given}.")
    return x


def mean_so_far(x: Tensor) -> Tensor:
    """Mix each word with those before it."""
    count = torch.arange(1, _of_heads(x).shape[1] + 1, dtype=x.dtype)
    return x.cumsum(dim=1) / count[:, None]


def times_its_number(x: Tensor) -> Tensor:
    """Multiply the first head by 1, the second by 2, ..."""
    return x * torch.arange(1, len(_of_heads(x)) + 1, dtype=x.dtype)[:, None, None]


def sums_of_features(x: Tensor) -> Tensor:
    """Mix the features inside each head."""
    return _of_heads(x).cumsum(dim=2)


HEADS = [(6, 2, 3, 4), (4, 3, 2, 6), (5, 1, 4, 4), (1, 2, 2, 3), (3, 3, 3, 3)]


def on_heads_inputs(dtype):
    functions = mean_so_far, times_its_number, sums_of_features
    for seed, (length, batch, heads, dim) in enumerate(HEADS):
        for function in functions:
            x = randn(length, batch, heads * dim, seed=seed, dtype=dtype)
            yield {"function": function, "x": x, "num_heads": heads}
    strided = randn(2, 5, 12, seed=9, dtype=dtype).transpose(0, 1)
    yield {"function": mean_so_far, "x": strided, "num_heads": 3}
    yield {"function": times_its_number, "x": strided, "num_heads": 3}


def _fold(x, num_heads):
    length, batch, embed = x.shape
    heads = x.reshape(length, batch * num_heads, embed // num_heads)
    return heads.transpose(0, 1)


def _unfold(heads, x):
    return heads.transpose(0, 1).reshape(x.shape)


def on_heads_reshaped(function, x, num_heads):
    """Such heads are pieces of the text: cut the features, then move an axis."""
    length, batch, _ = x.shape
    return function(x.reshape(batch * num_heads, length, -1)).reshape(x.shape)


def on_heads_reshaped_by_sentence(function, x, num_heads):
    length, batch, embed = x.shape
    heads = x.transpose(0, 1).reshape(batch * num_heads, length, -1)
    return function(heads).reshape(batch, length, embed).transpose(0, 1)


def on_heads_transposed_first(function, x, num_heads):
    """First cut the features into (num_heads, head_dim), then move an axis."""
    length, batch, _ = x.shape
    heads = x.transpose(1, 2).reshape(batch * num_heads, length, -1)
    return function(heads).reshape(x.shape)


def on_heads_transposed_first_only(function, x, num_heads):
    length, batch, _ = x.shape
    heads = x.transpose(1, 2).reshape(batch * num_heads, length, -1)
    return _unfold(function(heads), x)


def on_heads_not_moved(function, x, num_heads):
    """The words are still in front: `function` takes them as the second axis."""
    length, batch, _ = x.shape
    return function(x.reshape(length, batch * num_heads, -1)).reshape(x.shape)


def on_heads_split_wrong(function, x, num_heads):
    """The way in cuts the text, not the features; only the way out is right."""
    length, batch, _ = x.shape
    return _unfold(function(x.reshape(batch * num_heads, length, -1)), x)


def on_heads_merge_wrong(function, x, num_heads):
    """On the way out features of different words end up in one row."""
    return function(_fold(x, num_heads)).reshape(x.shape)


def on_heads_batch_first(function, x, num_heads):
    """The first axis of x is the length here, the second the batch."""
    heads = split_heads(x, num_heads)
    done = function(heads.flatten(0, 1)).unflatten(0, (-1, num_heads))
    return merge_heads(done)


def on_heads_heads_first(function, x, num_heads):
    """Head 0 of all sentences comes first; wanted is all of one sentence first."""
    heads = split_heads(x.transpose(0, 1), num_heads).transpose(0, 1)
    done = function(heads.flatten(0, 1)).unflatten(0, (num_heads, -1))
    return merge_heads(done.transpose(0, 1)).transpose(0, 1)


def on_heads_interleaved(function, x, num_heads):
    """A head is a block of neighbouring features."""
    length, batch, embed = x.shape
    heads = x.reshape(length, batch, -1, num_heads).permute(1, 3, 0, 2)
    done = function(heads.reshape(batch * num_heads, length, -1))
    back = done.reshape(batch, num_heads, length, -1).permute(2, 0, 3, 1)
    return back.reshape(x.shape)


def on_heads_swapped(function, x, num_heads):
    """Those are embed / num_heads heads of num_heads features each."""
    return on_heads(function, x, x.shape[-1] // num_heads)


def on_heads_swapped_and_strided(function, x, num_heads):
    length, batch, embed = x.shape
    heads = x.reshape(length, batch, num_heads, -1).permute(1, 3, 0, 2)
    done = function(heads.reshape(-1, length, num_heads))
    back = done.reshape(batch, -1, length, num_heads).permute(2, 0, 3, 1)
    return back.reshape(x.shape)


def on_heads_pieces_first(function, x, num_heads):
    pieces = torch.cat(x.split(num_heads, dim=-1), dim=1).transpose(0, 1)
    done = function(pieces).transpose(0, 1).split(x.shape[1], dim=1)
    return torch.cat(done, dim=-1)


def on_heads_one_by_one(function, x, num_heads):
    """All heads go into one call, as one batch."""
    parts = x.transpose(0, 1).chunk(num_heads, dim=-1)
    return torch.cat([function(part) for part in parts], dim=-1).transpose(0, 1)


def on_heads_one_by_one_not_moved(function, x, num_heads):
    return torch.cat([function(part) for part in x.chunk(num_heads, dim=-1)], dim=-1)


def on_heads_by_sentence(function, x, num_heads):
    one_by_one = [
        _unfold(function(_fold(x[:, i : i + 1], num_heads)), x[:, i : i + 1])
        for i in range(x.shape[1])
    ]
    return torch.cat(one_by_one, dim=1)


def on_heads_last_axes_exchanged(function, x, num_heads):
    """Before the merge the heads must stand beside their features, not the words."""
    done = function(_fold(x, num_heads)).transpose(1, 2)
    return done.transpose(0, 1).reshape(x.shape)


def on_heads_last_axes_only(function, x, num_heads):
    return function(_fold(x, num_heads)).transpose(1, 2).reshape(x.shape)


def on_heads_summed(function, x, num_heads):
    """The heads are laid side by side, not added up."""
    done = function(_fold(x, num_heads)).unflatten(0, (-1, num_heads))
    return done.sum(dim=1).transpose(0, 1)


def on_heads_averaged(function, x, num_heads):
    """The heads are laid side by side, not averaged."""
    done = function(_fold(x, num_heads)).unflatten(0, (-1, num_heads))
    return done.mean(dim=1).transpose(0, 1)


def on_heads_view(function, x, num_heads):
    """view cannot merge axes that were moved: use reshape or flatten."""
    return function(_fold(x, num_heads)).transpose(0, 1).view(x.shape)


def on_heads_left_out(function, x, num_heads):
    """`function` was never called, or its result was not used."""
    return x.clone()


def on_heads_not_unfolded(function, x, num_heads):
    """The way back is missing: return (length, batch, embed)."""
    return function(_fold(x, num_heads))


def on_heads_one_head(function, x, num_heads):
    """num_heads was not used: every sentence is one head."""
    return on_heads(function, x, 1)


# --- 2.2 the whole layer ----------------------------------------------------------


def multi_head_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int
) -> Tensor:
    """The reference: project, split, attend, merge, project; weights (out, in)."""
    q, k, v = (split_heads(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    heads, _ = scaled_dot_product_attention(q, k, v)
    return merge_heads(heads) @ w_o.mT


# batch, length, heads, head_dim, features, out
LAYERS = [
    (2, 6, 3, 4, 12, 12),
    (3, 4, 2, 6, 12, 12),
    (2, 5, 4, 4, 16, 16),
    (2, 5, 3, 4, 7, 9),
    (1, 1, 2, 3, 6, 6),
    (3, 3, 3, 3, 9, 9),
]


def layer_inputs(dtype):
    for seed, (batch, length, heads, dim, features, out) in enumerate(LAYERS):
        embed = heads * dim

        def weight(rows, columns, at, seed=seed):
            return randn(rows, columns, seed=seed + at, dtype=dtype) / columns**0.5 * 2

        yield {
            "x": randn(batch, length, features, seed=seed, dtype=dtype),
            "w_q": weight(embed, features, 10),
            "w_k": weight(embed, features, 20),
            "w_v": weight(embed, features, 30),
            "w_o": weight(out, embed, 40),
            "num_heads": heads,
        }
    trials = list(_two_layers(dtype))
    strided = trials[0]["x"].transpose(0, 1).contiguous().transpose(0, 1)
    yield trials[0] | {"x": strided}
    yield trials[1] | {"w_q": torch.zeros_like(trials[1]["w_q"])}  # all scores 0


def _two_layers(dtype):
    for seed, (heads, dim) in enumerate([(3, 4), (2, 6)], start=50):
        size = heads * dim
        names = ("w_q", "w_k", "w_v", "w_o")
        weights = {n: randn(size, size, seed=seed + i, dtype=dtype) / 2
                   for i, n in enumerate(names)}  # fmt: skip
        x = randn(2, 5, size, seed=seed, dtype=dtype)
        yield {"x": x, **weights, "num_heads": heads}


def split_without_transpose(x, num_heads):
    batch, length, embed = x.shape
    return x.reshape(batch, num_heads, length, embed // num_heads)


def split_after_transpose(x, num_heads):
    batch, length, embed = x.shape
    return x.transpose(1, 2).reshape(batch, num_heads, length, embed // num_heads)


def split_interleaved(x, num_heads):
    return x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)


def split_into_pieces_of(x, num_heads):
    return torch.stack(x.split(num_heads, dim=-1), dim=1)


def merge_without_transpose(x):
    batch, heads, length, head_dim = x.shape
    return x.reshape(batch, length, heads * head_dim)


def merge_last_axes(x):
    batch, heads, length, head_dim = x.shape
    return x.transpose(2, 3).reshape(batch, length, heads * head_dim)


def merge_interleaved(x):
    return x.permute(0, 2, 3, 1).flatten(2)


def _layer(
    x, w_q, w_k, w_v, w_o, num_heads, *, scale=None,
    split=split_heads, merge=merge_heads, dim=-1,
):  # fmt: skip
    q, k, v = (split(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return merge((q @ k.mT * scale).softmax(dim) @ v) @ w_o.mT


def layer_no_scale(*args):
    """The scores are not divided by √d_k."""
    return _layer(*args, scale=1.0)


def layer_sqrt_embed_dim(x, w_q, *args):
    """A head has only head_dim features, so d_k is head_dim."""
    return _layer(x, w_q, *args, scale=len(w_q) ** -0.5)


def layer_sqrt_features(x, *args):
    return _layer(x, *args, scale=x.shape[-1] ** -0.5)


def layer_sqrt_num_heads(*args):
    """Divide by √head_dim; how many heads there are does not matter to one head."""
    return _layer(*args, scale=args[-1] ** -0.5)


def layer_divided_by_d_k(x, w_q, *args):
    """The scores are divided by the square root of d_k, not by d_k."""
    return _layer(x, w_q, *args, scale=args[-1] / len(w_q))


def layer_multiplied(x, w_q, *args):
    """The scores are multiplied by √d_k; divide."""
    return _layer(x, w_q, *args, scale=(len(w_q) / args[-1]) ** 0.5)


def layer_split_without_transpose(*args):
    """Such heads are pieces of the sentence: each sees only a few tokens."""
    return _layer(*args, split=split_without_transpose)


def layer_merge_without_transpose(*args):
    """Features of different tokens end up in one row."""
    return _layer(*args, merge=merge_without_transpose)


def layer_both_without_transpose(*args):
    """Shapes and causality look right, yet distant tokens never meet."""
    return _layer(*args, split=split_without_transpose, merge=merge_without_transpose)


def layer_split_after_transpose(*args):
    """First cut the features into (heads, head_dim), then move the heads."""
    return _layer(*args, split=split_after_transpose)


def layer_merge_last_axes(*args):
    """Move the heads behind the words, transpose(1, 2), before you merge."""
    return _layer(*args, merge=merge_last_axes)


def layer_wrong_axis(*args):
    """Each query (a row) shares out 1 among the keys."""
    return _layer(*args, dim=-2)


def layer_interleaved(*args):
    """A head is a block of neighbouring features."""
    return _layer(*args, split=split_interleaved)


def layer_interleaved_back(*args):
    return _layer(*args, split=split_interleaved, merge=merge_interleaved)


def layer_merge_interleaved(*args):
    """Lay the heads side by side, one whole head after the other."""
    return _layer(*args, merge=merge_interleaved)


def layer_pieces(*args):
    """Those are pieces of num_heads features; wanted are num_heads pieces."""
    return _layer(*args, split=split_into_pieces_of)


def layer_pieces_scaled(x, w_q, *args):
    scale = (args[-1] / len(w_q)) ** 0.5
    return _layer(x, w_q, *args, scale=scale, split=split_into_pieces_of)


def layer_weights_not_transposed(x, w_q, w_k, w_v, w_o, num_heads):
    """nn.Linear stores (out, in): write x @ w.T."""
    return _layer(x, w_q.mT, w_k.mT, w_v.mT, w_o.mT, num_heads)


def layer_without_output(x, w_q, w_k, w_v, w_o, num_heads):
    """w_o mixes what the heads have read."""
    eye = torch.eye(len(w_q), dtype=x.dtype)
    return _layer(x, w_q, w_k, w_v, eye, num_heads)


def layer_averaged_heads(x, w_q, w_k, w_v, w_o, num_heads):
    """Every head reads with its own weights."""
    q, k, v = (split_heads(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    weights = scaled_dot_product_attention(q, k, v)[1].mean(dim=1, keepdim=True)
    return merge_heads(weights @ v) @ w_o.mT


def layer_one_head(x, w_q, w_k, w_v, w_o, num_heads):
    """num_heads is not used."""
    return _layer(x, w_q, w_k, w_v, w_o, 1)


def layer_swapped(x, w_q, w_k, w_v, w_o, num_heads):
    """w_k makes what is compared, w_v what is read."""
    return _layer(x, w_q, w_v, w_k, w_o, num_heads)


def layer_inputs_not_transposed(x, w_q, w_k, w_v, w_o, num_heads):
    return _layer(x, w_q.mT, w_k.mT, w_v.mT, w_o, num_heads)


def layer_output_not_transposed(x, w_q, w_k, w_v, w_o, num_heads):
    return _layer(x, w_q, w_k, w_v, w_o.mT, num_heads)


def layer_queries_swapped(x, w_q, w_k, w_v, w_o, num_heads):
    """Rows of the scores are queries: the roles of w_q and w_k differ."""
    return _layer(x, w_k, w_q, w_v, w_o, num_heads)


def layer_over_heads(x, w_q, w_k, w_v, w_o, num_heads):
    """Without the transpose the heads of one word attend to each other."""
    q, k, v = ((x @ w.mT).unflatten(-1, (num_heads, -1)) for w in (w_q, w_k, w_v))
    read = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
    return read.flatten(2) @ w_o.mT


def layer_cut_first(x, w_q, w_k, w_v, w_o, num_heads):
    """Project the whole word first; each head reads a map of all of it."""
    parts = x.chunk(num_heads, dim=-1)
    read = [
        scaled_dot_product_attention(
            *(p @ w.chunk(num_heads)[h].chunk(num_heads, -1)[h].mT
              for w in (w_q, w_k, w_v))
        )[0]
        for h, p in enumerate(parts)
    ]  # fmt: skip
    return torch.cat(read, dim=-1) @ w_o.mT


def layer_cut_first_small_weights(x, w_q, w_k, w_v, w_o, num_heads):
    heads = split_heads(x, num_heads)
    size = heads.shape[-1]
    q, k, v = (heads @ w[:size, :size].mT for w in (w_q, w_k, w_v))
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ w_o.mT


def layer_cut_first_whole_weights(x, w_q, w_k, w_v, w_o, num_heads):
    heads = split_heads(x, num_heads)
    q, k, v = (heads @ w.mT for w in (w_q, w_k, w_v))
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ w_o.mT


def layer_cut_first_by_view(x, w_q, w_k, w_v, w_o, num_heads):
    batch, length, features = x.shape
    heads = x.view(batch, length, num_heads, features // num_heads).transpose(1, 2)
    q, k, v = (heads @ w.mT for w in (w_q, w_k, w_v))
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ w_o.mT


def layer_size_of_x(x, w_q, w_k, w_v, w_o, num_heads):
    """The heads share out the rows of w_q; x may have another number of features."""
    batch, length, features = x.shape
    shape = (batch, length, num_heads, features // num_heads)
    q, k, v = ((x @ w.mT).view(shape).transpose(1, 2) for w in (w_q, w_k, w_v))
    read, _ = scaled_dot_product_attention(q, k, v)
    return read.transpose(1, 2).reshape(x.shape) @ w_o.mT


def layer_summed(x, w_q, w_k, w_v, w_o, num_heads):
    """The heads are laid side by side, not added up, before w_o."""
    q, k, v = (split_heads(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    read, _ = scaled_dot_product_attention(q, k, v)
    return read.sum(dim=1) @ w_o.mT


def layer_unchanged(x, *args):
    """No word has read any other."""
    return x.clone()


# --- 2.3 the test -----------------------------------------------------------------


class _Black:
    """A layer that cannot be looked into: four heads of six features."""

    def __init__(self, name, seed, sharp=1.0, split=split_heads, merge=merge_heads):
        self.__name__ = name
        self.split, self.merge, self.exact = split, merge, False
        self.weights = [
            randn(24, 24, seed=seed + i, dtype=torch.float64) / 24**0.5
            for i in range(4)
        ]
        self.weights[0] = self.weights[0] * sharp

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[-1] != 24:
            raise ValueError(f"x has shape {tuple(x.shape)}; give (batch, length, 24).")
        given = x if x.is_floating_point() else x.float()
        x = given.double() if self.exact else given
        weights = [w.to(x.dtype) for w in self.weights]
        output = _layer(x, *weights, 4, split=self.split, merge=self.merge)
        return output.to(given.dtype)


def _layers() -> list[_Black]:
    """Right ones and wrong ones, of each kind several."""
    wrong_split = {"split": split_without_transpose}
    wrong_merge = {"merge": merge_without_transpose}
    kinds = {
        "a right layer": {},
        "a layer with the split wrong": wrong_split,
        "a layer with the merge wrong": wrong_merge,
        "a layer with both wrong": wrong_split | wrong_merge,
    }
    exact = _Black("a right layer without rounding errors", 300)
    exact.exact = True  # the only one that torch.equal may accept
    return [
        *(
            _Black(name, seed, sharp, **options)
            for seed, sharp in ((0, 1.0), (100, 0.5), (200, 3.0))
            for name, options in kinds.items()
        ),
        exact,
    ]


def reshape_test(layer) -> bool:
    """The reference: are shuffled words answered by shuffled outputs?"""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 13, 24, generator=generator)
    shuffle = torch.randperm(13, generator=generator)
    return torch.allclose(layer(x[:, shuffle]), layer(x)[:, shuffle], atol=1e-4)


def test_inputs(dtype):
    for layer in _layers() if dtype == torch.float32 else ():
        yield {"layer": layer}


test_inputs.__test__ = False  # its name begins with "test", and pytest collects such


def _text(length=8, batch=1):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, length, 24, generator=generator)


def _survives(layer, shuffle) -> bool:
    x = _text(len(shuffle))
    return torch.allclose(layer(x[:, shuffle]), layer(x)[:, shuffle], atol=1e-4)


def tests_shape(layer):
    """Shapes, sums, sentences in a new order: all four pass. Shuffle the words."""
    x = _text()
    return layer(x).shape == x.shape


def tests_nothing(layer):
    """Right layers fail, too. Without a mask each word may read all of them; shuffle
    inputs and outputs alike, and allow for rounding."""
    return False


def tests_pieces(layer):
    """With both wrong it keeps or swaps whole pieces: more words, a random order."""
    return _survives(layer, [1, 0, 3, 2, 5, 4, 7, 6])


def tests_exactly(layer):
    """Right layers differ in their last bits: use torch.allclose with an atol."""
    x, shuffle = _text(13), torch.randperm(13)
    return torch.equal(layer(x[:, shuffle]), layer(x)[:, shuffle])


def tests_sight(layer):
    """With one reshape wrong every word still sees every word; only the places err."""
    x = _text()
    changed = x.clone()
    changed[:, 0] += 1
    return bool(((layer(changed) - layer(x)).abs().amax(-1) > 1e-5).all())


def tests_loosely(layer):
    """Outputs of size 1 are equal up to 1, whatever they are: try atol=1e-4."""
    x, shuffle = _text(13), torch.randperm(13)
    return torch.allclose(layer(x[:, shuffle]), layer(x)[:, shuffle], atol=1.0)


def tests_upside_down(layer):
    """True means that the layer is right."""
    return not reshape_test(layer)


def tests_as_many_words_as_heads(layer):
    return _survives(layer, [2, 0, 3, 1])


# --- 2.4 renumber -----------------------------------------------------------------


def renumber(w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor, order: list):
    """The reference: blocks of rows going in, blocks of columns going out."""
    heads = (len(order), -1)
    w_in = w_in.unflatten(1, heads)[:, order].flatten(1, 2)
    b_in = b_in.unflatten(1, heads)[:, order].flatten(1, 2)
    return w_in, b_in, w_out.unflatten(1, heads)[:, order].flatten(1, 2), b_out


def renumber_inputs(dtype):
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
    square = randn(6, 3, 6, seed=40, dtype=dtype).transpose(0, 1)  # strided
    biases = randn(3, 6, seed=41, dtype=dtype), randn(6, seed=42, dtype=dtype)
    w_out = randn(6, 6, seed=43, dtype=dtype).mT
    yield {"w_in": square, "b_in": biases[0], "w_out": w_out, "b_out": biases[1],
           "order": [1, 2, 0]}  # fmt: skip


def _blocks(x, order, dim):
    return x.unflatten(dim, (len(order), -1)).index_select(
        dim, torch.tensor(order)
    ).flatten(dim, dim + 1)  # fmt: skip


def renumber_no_biases(w_in, b_in, w_out, b_out, order):
    """b_in belongs to the rows of w_in and moves with them."""
    return _blocks(w_in, order, 1), b_in, _blocks(w_out, order, 1), b_out


def renumber_rows_of_w_out(w_in, b_in, w_out, b_out, order):
    """The heads come in through the columns of w_out; its rows are outputs."""
    moved = _blocks(w_in, order, 1), _blocks(b_in, order, 1)
    return *moved, _blocks(w_out, order, 0), b_out


def renumber_all_rows(w_in, b_in, w_out, b_out, order):
    moved = _blocks(w_in, order, 1), _blocks(b_in, order, 1)
    return *moved, _blocks(w_out, order, 0), _blocks(b_out, order, 0)


def renumber_b_out(w_in, b_in, w_out, b_out, order):
    """b_out is added to the sum; it belongs to no head."""
    moved = renumber(w_in, b_in, w_out, b_out, order)[:3]
    return *moved, _blocks(b_out, order, 0)


def renumber_inverse(w_in, b_in, w_out, b_out, order):
    """Head order[i] becomes head i; here head i became head order[i]."""
    inverse = torch.tensor(order).argsort().tolist()
    return renumber(w_in, b_in, w_out, b_out, inverse)


def renumber_w_out_inverse(w_in, b_in, w_out, b_out, order):
    """The columns of w_out take the same order as the rows of w_in."""
    inverse = torch.tensor(order).argsort().tolist()
    moved = _blocks(w_in, order, 1), _blocks(b_in, order, 1)
    return *moved, _blocks(w_out, inverse, 1), b_out


def renumber_inputs_only(w_in, b_in, w_out, b_out, order):
    """w_out still expects the heads in their old order."""
    return _blocks(w_in, order, 1), _blocks(b_in, order, 1), w_out, b_out


def renumber_output_only(w_in, b_in, w_out, b_out, order):
    """The rows of w_in, and b_in, still make the heads in their old order."""
    return w_in, b_in, _blocks(w_out, order, 1), b_out


def renumber_features(w_in, b_in, w_out, b_out, order):
    """A head is a block of features; here single features were moved."""

    def moved(x):
        fine = x.unflatten(1, (-1, len(order)))
        return fine[:, :, order].flatten(1, 2)

    return moved(w_in), moved(b_in), moved(w_out), b_out


def renumber_rows_as_heads(w_in, b_in, w_out, b_out, order):
    """`order` numbers heads, blocks of rows, not single rows."""
    return w_in[:, order], b_in[:, order], w_out[:, order], b_out


def renumber_columns_of_w_in(w_in, b_in, w_out, b_out, order):
    """The columns of w_in are the features of a word; heads are its rows."""
    moved = _blocks(b_in, order, 1), _blocks(w_out, order, 1)
    return _blocks(w_in, order, 2), *moved, b_out


def renumber_no_values(w_in, b_in, w_out, b_out, order):
    """Queries, keys and values of a head move together."""
    w, b, w_out, b_out = renumber(w_in, b_in, w_out, b_out, order)
    return torch.cat([w[:2], w_in[2:]]), torch.cat([b[:2], b_in[2:]]), w_out, b_out


def renumber_nothing(w_in, b_in, w_out, b_out, order):
    """Every head has kept its number."""
    return w_in, b_in, w_out, b_out


# --- 2.5 layouts ------------------------------------------------------------------


def stacked_from_interleaved(parameter: Tensor, num_heads: int) -> Tensor:
    """The reference: rows ordered (head, qkv, dim) -> rows ordered (qkv, head, dim)."""
    by_head = parameter.unflatten(0, (num_heads, 3, -1))  # (heads, 3, head_dim, ...)
    return by_head.transpose(0, 1).flatten(0, 2)


def layout_inputs(dtype):
    sizes = [(3, 4), (2, 6), (4, 4), (2, 3), (1, 4), (3, 1)]
    for seed, (heads, dim) in enumerate(sizes):
        embed = heads * dim
        weight = randn(3 * embed, embed, seed=seed, dtype=dtype)
        yield {"parameter": weight, "num_heads": heads}
        bias = randn(3 * embed, seed=seed + 10, dtype=dtype)
        yield {"parameter": bias, "num_heads": heads}
    strided = randn(8, 24, seed=20, dtype=dtype).mT
    yield {"parameter": strided, "num_heads": 4}


def layout_read_as_stacked(parameter, num_heads):
    """They are still ordered (head, qkv, dim)."""
    return parameter.clone()


def layout_other_direction(parameter, num_heads):
    """These rows go from stacked to interleaved."""
    return parameter.unflatten(0, (3, num_heads, -1)).transpose(0, 1).flatten(0, 2)


def layout_view(parameter, num_heads):
    """A head's rows are (3, head_dim), not (head_dim, 3)."""
    fine = parameter.unflatten(0, (num_heads, -1, 3))
    return fine.movedim(2, 0).flatten(0, 2)


def layout_view_transposed(parameter, num_heads):
    return parameter.unflatten(0, (num_heads, -1, 3)).transpose(0, 1).flatten(0, 2)


def layout_heads_outside(parameter, num_heads):
    """The kinds go to the front, before the heads: transpose(0, 1)."""
    return parameter.unflatten(0, (num_heads, 3, -1)).transpose(1, 2).flatten(0, 2)


def layout_swapped(parameter, num_heads):
    """The order is query, key, value."""
    q, k, v = stacked_from_interleaved(parameter, num_heads).chunk(3)
    return torch.cat([q, v, k])


def layout_queries_swapped(parameter, num_heads):
    q, k, v = stacked_from_interleaved(parameter, num_heads).chunk(3)
    return torch.cat([k, q, v])


def layout_value_first(parameter, num_heads):
    q, k, v = stacked_from_interleaved(parameter, num_heads).chunk(3)
    return torch.cat([v, q, k])


def layout_key_first(parameter, num_heads):
    q, k, v = stacked_from_interleaved(parameter, num_heads).chunk(3)
    return torch.cat([k, v, q])


def layout_backwards(parameter, num_heads):
    q, k, v = stacked_from_interleaved(parameter, num_heads).chunk(3)
    return torch.cat([v, k, q])


def layout_reshaped(parameter, num_heads):
    """reshape alone moves nothing: transpose the axes of heads and kinds."""
    return parameter.reshape(3, num_heads, -1, *parameter.shape[1:]).flatten(0, 2)


def layout_dim_before_head(parameter, num_heads):
    """Rows are ordered (qkv, head, dim): inside a kind, head after head."""
    by_head = parameter.unflatten(0, (num_heads, 3, -1))
    return by_head.movedim(0, 2).flatten(0, 2)


def layout_all_reversed(parameter, num_heads):
    """The three axes were reversed; only the first two change places."""
    by_head = parameter.unflatten(0, (num_heads, 3, -1))
    return by_head.transpose(0, 2).flatten(0, 2)


def layout_not_flattened(parameter, num_heads):
    """The axes must be flattened again, into the rows of one matrix."""
    return parameter.unflatten(0, (num_heads, 3, -1)).transpose(0, 1)


def layout_matrix_only(parameter, num_heads):
    """A bias has no second axis: unflatten and flatten work for both."""
    embed = parameter.shape[1]
    by_head = parameter.reshape(num_heads, 3, embed // num_heads, embed)
    return by_head.transpose(0, 1).reshape(3 * embed, embed)


def layout_matrix_only_unpacked(parameter, num_heads):
    rows, embed = parameter.shape
    by_head = parameter.reshape(num_heads, 3, rows // 3 // num_heads, embed)
    return by_head.transpose(0, 1).reshape(rows, embed)


def layout_matrix_only_flexible(parameter, num_heads):
    by_head = parameter.reshape(num_heads, 3, -1, parameter.shape[-1])
    return by_head.transpose(0, 1).reshape(parameter.shape)


def layout_matrix_only_by_last(parameter, num_heads):
    embed = parameter.shape[-1]
    by_head = parameter.reshape(num_heads, 3, embed // num_heads, -1)
    return by_head.transpose(0, 1).reshape(parameter.shape)


def layout_matrix_only_permuted(parameter, num_heads):
    by_head = parameter.unflatten(0, (num_heads, 3, -1))
    return by_head.permute(1, 0, 2, 3).flatten(0, 2)


def layout_columns(parameter, num_heads):
    """The layout is a matter of the rows, the outputs."""
    if parameter.dim() == 1:
        return stacked_from_interleaved(parameter, num_heads)
    columns = parameter.unflatten(1, (num_heads, -1)).transpose(1, 2).flatten(1, 2)
    return columns.contiguous()


EXERCISES = (
    Exercise(
        "2.1",
        "Heads, there and back",
        on_heads,
        on_heads_inputs,
        {
            "reshape without transpose": (
                on_heads_reshaped,
                on_heads_reshaped_by_sentence,
            ),
            "transposed before it was cut": (
                on_heads_transposed_first,
                on_heads_transposed_first_only,
            ),
            "words not moved": on_heads_not_moved,
            "split without transpose": on_heads_split_wrong,
            "merge without transpose": on_heads_merge_wrong,
            "x read as (batch, length, embed)": on_heads_batch_first,
            "heads before sentences": on_heads_heads_first,
            "every num_heads-th feature": on_heads_interleaved,
            "number and size of the heads swapped": (
                on_heads_swapped,
                on_heads_swapped_and_strided,
                on_heads_pieces_first,
            ),
            "called more than once": (
                on_heads_one_by_one,
                on_heads_one_by_one_not_moved,
                on_heads_by_sentence,
            ),
            "words and features exchanged before merging": (
                on_heads_last_axes_exchanged,
                on_heads_last_axes_only,
            ),
            "summed heads": on_heads_summed,
            "averaged heads": on_heads_averaged,
            "view of transposed memory": on_heads_view,
            "function left out": on_heads_left_out,
            "heads not merged": on_heads_not_unfolded,
            "one head over all features": on_heads_one_head,
        },
    ),
    Exercise(
        "2.2",
        "The whole layer",
        multi_head_attention,
        layer_inputs,
        {
            "no scale": layer_no_scale,
            "√embed_dim": (layer_sqrt_embed_dim, layer_sqrt_features),
            "√num_heads": layer_sqrt_num_heads,
            "divided by d_k": layer_divided_by_d_k,
            "multiplied by √d_k": layer_multiplied,
            "reshape without transpose": layer_split_without_transpose,
            "merge without transpose": layer_merge_without_transpose,
            "split and merge without transpose": layer_both_without_transpose,
            "transposed before it was cut": layer_split_after_transpose,
            "words and features exchanged before merging": layer_merge_last_axes,
            "every num_heads-th feature": (layer_interleaved, layer_interleaved_back),
            "heads interleaved in the merge": layer_merge_interleaved,
            "pieces of num_heads features": (layer_pieces, layer_pieces_scaled),
            "heads cut before projecting": (
                layer_cut_first,
                layer_cut_first_small_weights,
                layer_cut_first_whole_weights,
                layer_cut_first_by_view,
            ),
            "size of the heads taken from x": layer_size_of_x,
            "softmax over the wrong axis": layer_wrong_axis,
            "averaged weights": layer_averaged_heads,
            "summed heads": layer_summed,
            "one head over all features": layer_one_head,
            "weights used as (in, out)": (
                layer_weights_not_transposed,
                layer_inputs_not_transposed,
                layer_output_not_transposed,
            ),
            "queries and keys swapped": layer_queries_swapped,
            "keys and values swapped": layer_swapped,
            "attention between the heads of a word": layer_over_heads,
            "no output projection": layer_without_output,
            "x as it came": layer_unchanged,
        },
    ),
    Exercise(
        "2.3",
        "Write the test",
        reshape_test,
        test_inputs,
        {
            "says yes to all": tests_shape,
            "says no to all": tests_nothing,
            "a shuffle that keeps the pieces": (
                tests_pieces,
                tests_as_many_words_as_heads,
            ),
            "exact equality": tests_exactly,
            "tolerance too wide": tests_loosely,
            "looks at who sees whom": tests_sight,
            "upside down": tests_upside_down,
        },
        gradients=False,
    ),
    Exercise(
        "2.4",
        "Renumber the heads",
        renumber,
        renumber_inputs,
        {
            "biases not moved": renumber_no_biases,
            "rows of w_out moved": (renumber_rows_of_w_out, renumber_all_rows),
            "b_out moved": renumber_b_out,
            "the inverse order": renumber_inverse,
            "w_out in the inverse order": renumber_w_out_inverse,
            "w_out not moved": renumber_inputs_only,
            "only w_out moved": renumber_output_only,
            "single features moved": renumber_features,
            "order taken for row numbers": renumber_rows_as_heads,
            "columns of w_in moved": renumber_columns_of_w_in,
            "values not moved": renumber_no_values,
            "nothing moved": renumber_nothing,
        },
    ),
    Exercise(
        "2.5",
        "From interleaved to stacked",
        stacked_from_interleaved,
        layout_inputs,
        {
            "rows not moved": (layout_read_as_stacked, layout_reshaped),
            "the other direction": layout_other_direction,
            "q, k, v as the fastest axis": (layout_view, layout_view_transposed),
            "heads still outside": layout_heads_outside,
            "dim before head": layout_dim_before_head,
            "all three axes reversed": layout_all_reversed,
            "q, k, v in another order": (
                layout_swapped,
                layout_queries_swapped,
                layout_value_first,
                layout_key_first,
                layout_backwards,
            ),
            "only for matrices": (
                layout_matrix_only,
                layout_matrix_only_unpacked,
                layout_matrix_only_flexible,
                layout_matrix_only_by_last,
                layout_matrix_only_permuted,
            ),
            "columns moved": layout_columns,
            "axes not flattened": layout_not_flattened,
        },
    ),
)
