"""Exercise 2.2: the whole layer."""

import torch
from torch import Tensor

from utils.attention import merge_heads, scaled_dot_product_attention, split_heads
from utils.exercises.engine import Exercise, randn


def multi_head_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int
) -> Tensor:
    """The reference: project, split, attend, merge, project; weights (out, in)."""
    q, k, v = (split_heads(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    heads, _ = scaled_dot_product_attention(q, k, v)
    return merge_heads(heads) @ w_o.mT


# batch, length, heads, head_dim (a square: its root is exact), features, out
LAYERS = [
    (2, 6, 3, 4, 12, 12),
    (3, 4, 2, 9, 18, 18),
    (2, 5, 4, 4, 16, 16),
    (2, 5, 3, 4, 7, 9),
    (1, 1, 2, 4, 8, 8),
    (4, 4, 4, 4, 16, 16),
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
    silent = trials[0]["x"].clone()
    silent[0, 1] = 0  # a word whose scores are exactly 0, among others
    yield trials[0] | {"x": silent}
    yield trials[1] | {"w_q": torch.zeros_like(trials[1]["w_q"])}  # all scores 0
    if dtype == torch.float64:  # precise enough for scores whose exp overflows
        yield trials[0] | {"w_q": trials[0]["w_q"] * 1000}  # √d_k is exact


def _two_layers(dtype):
    for seed, (heads, dim) in enumerate([(3, 4), (2, 9)], start=50):
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


def layer_with(
    x, w_q, w_k, w_v, w_o, num_heads, *, scale=None,
    split=split_heads, merge=merge_heads, dim=-1,
):  # fmt: skip
    q, k, v = (split(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return merge((q @ k.mT * scale).softmax(dim) @ v) @ w_o.mT


def layer_no_scale(*args):
    """The scores are not divided by √d_k."""
    return layer_with(*args, scale=1.0)


def layer_sqrt_embed_dim(x, w_q, *args):
    """A head has only head_dim features, so d_k is head_dim."""
    return layer_with(x, w_q, *args, scale=len(w_q) ** -0.5)


def layer_sqrt_features(x, *args):
    return layer_with(x, *args, scale=x.shape[-1] ** -0.5)


def layer_sqrt_num_heads(*args):
    """Divide by √head_dim; how many heads there are does not matter to one head."""
    return layer_with(*args, scale=args[-1] ** -0.5)


def layer_divided_by_d_k(x, w_q, *args):
    """The scores are divided by the square root of d_k, not by d_k."""
    return layer_with(x, w_q, *args, scale=args[-1] / len(w_q))


def layer_multiplied(x, w_q, *args):
    """The scores are multiplied by √d_k; divide."""
    return layer_with(x, w_q, *args, scale=(len(w_q) / args[-1]) ** 0.5)


def layer_split_without_transpose(*args):
    """Such heads are pieces of the sentence: each sees only a few tokens."""
    return layer_with(*args, split=split_without_transpose)


def layer_merge_without_transpose(*args):
    """Features of different tokens end up in one row."""
    return layer_with(*args, merge=merge_without_transpose)


def layer_both_without_transpose(*args):
    """Shapes and causality look right, yet distant tokens never meet."""
    return layer_with(
        *args, split=split_without_transpose, merge=merge_without_transpose
    )


def layer_split_after_transpose(*args):
    """First cut the features into (heads, head_dim), then move the heads."""
    return layer_with(*args, split=split_after_transpose)


def layer_merge_last_axes(*args):
    """Move the heads behind the words, transpose(1, 2), before you merge."""
    return layer_with(*args, merge=merge_last_axes)


def layer_wrong_axis(*args):
    """Each query (a row) shares out 1 among the keys."""
    return layer_with(*args, dim=-2)


def layer_interleaved(*args):
    """A head is a block of neighbouring features."""
    return layer_with(*args, split=split_interleaved)


def layer_interleaved_back(*args):
    return layer_with(*args, split=split_interleaved, merge=merge_interleaved)


def layer_merge_interleaved(*args):
    """Lay the heads side by side, one whole head after the other."""
    return layer_with(*args, merge=merge_interleaved)


def layer_pieces(*args):
    """Those are pieces of num_heads features; wanted are num_heads pieces."""
    return layer_with(*args, split=split_into_pieces_of)


def layer_pieces_scaled(x, w_q, *args):
    scale = (args[-1] / len(w_q)) ** 0.5
    return layer_with(x, w_q, *args, scale=scale, split=split_into_pieces_of)


def layer_weights_not_transposed(x, w_q, w_k, w_v, w_o, num_heads):
    """nn.Linear stores (out, in): write x @ w.T."""
    return layer_with(x, w_q.mT, w_k.mT, w_v.mT, w_o.mT, num_heads)


def layer_without_output(x, w_q, w_k, w_v, w_o, num_heads):
    """w_o mixes what the heads have read."""
    eye = torch.eye(len(w_q), dtype=x.dtype)
    return layer_with(x, w_q, w_k, w_v, eye, num_heads)


def layer_averaged_heads(x, w_q, w_k, w_v, w_o, num_heads):
    """Every head reads with its own weights."""
    q, k, v = (split_heads(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    weights = scaled_dot_product_attention(q, k, v)[1].mean(dim=1, keepdim=True)
    return merge_heads(weights @ v) @ w_o.mT


def layer_one_head(x, w_q, w_k, w_v, w_o, num_heads):
    """num_heads is not used."""
    return layer_with(x, w_q, w_k, w_v, w_o, 1)


def layer_swapped(x, w_q, w_k, w_v, w_o, num_heads):
    """w_k makes what is compared, w_v what is read."""
    return layer_with(x, w_q, w_v, w_k, w_o, num_heads)


def layer_inputs_not_transposed(x, w_q, w_k, w_v, w_o, num_heads):
    return layer_with(x, w_q.mT, w_k.mT, w_v.mT, w_o, num_heads)


def layer_output_not_transposed(x, w_q, w_k, w_v, w_o, num_heads):
    return layer_with(x, w_q, w_k, w_v, w_o.mT, num_heads)


def layer_queries_swapped(x, w_q, w_k, w_v, w_o, num_heads):
    """Rows of the scores are queries: the roles of w_q and w_k differ."""
    return layer_with(x, w_k, w_q, w_v, w_o, num_heads)


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


def layer_cut_first_unflattened(x, w_q, w_k, w_v, w_o, num_heads):
    heads = x.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    q, k, v = (heads @ w.mT for w in (w_q, w_k, w_v))
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ w_o.mT


def layer_cut_first_reshaped(x, w_q, w_k, w_v, w_o, num_heads):
    heads = x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)
    q, k, v = (heads @ w.mT for w in (w_q, w_k, w_v))
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ w_o.mT


def layer_merged_as_x(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (split_heads(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    read, _ = scaled_dot_product_attention(q, k, v)
    return read.transpose(1, 2).reshape(x.shape) @ w_o.mT


def layer_keys_as_values(x, w_q, w_k, w_v, w_o, num_heads):
    """Three maps for three roles: here two of them are the same."""
    return multi_head_attention(x, w_q, w_k, w_k, w_o, num_heads)


def layer_queries_as_keys(x, w_q, w_k, w_v, w_o, num_heads):
    return multi_head_attention(x, w_q, w_q, w_v, w_o, num_heads)


def layer_queries_as_all(x, w_q, w_k, w_v, w_o, num_heads):
    return multi_head_attention(x, w_q, w_q, w_q, w_o, num_heads)


def layer_without_softmax(x, w_q, w_k, w_v, w_o, num_heads):
    """The softmax is missing: scores are not shares."""
    q, k, v = (split_heads(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    return merge_heads(q @ k.mT / q.shape[-1] ** 0.5 @ v) @ w_o.mT


def layer_overflowing(x, w_q, w_k, w_v, w_o, num_heads):
    """exp of a large score is infinite: softmax subtracts each row's own maximum."""
    q, k, v = (split_heads(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    e = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    return merge_heads(e / e.sum(dim=-1, keepdim=True) @ v) @ w_o.mT


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


EXERCISE = Exercise(
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
            layer_cut_first_unflattened,
            layer_cut_first_reshaped,
        ),
        "size of the heads taken from x": (layer_size_of_x, layer_merged_as_x),
        "one map in two roles": (
            layer_keys_as_values,
            layer_queries_as_keys,
            layer_queries_as_all,
        ),
        "no softmax": layer_without_softmax,
        "softmax that overflows": layer_overflowing,
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
)
