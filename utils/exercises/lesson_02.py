"""Exercises of notebook 02: split and merge heads, the whole layer, QKV layouts."""

import torch
from torch import Tensor

from utils.attention import merge_heads as reference_merge
from utils.attention import scaled_dot_product_attention
from utils.attention import split_heads as reference_split
from utils.exercises.engine import Exercise, randn

SIZES = [(2, 6, 3, 4), (3, 4, 2, 6), (1, 5, 4, 4)]  # batch, length, heads, head_dim


IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn
"""

# --- 2.1 split --------------------------------------------------------------------


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """The reference: (batch, length, embed) -> (batch, heads, length, head_dim)."""
    return reference_split(x, num_heads)


def split_inputs(dtype):
    for seed, (batch, length, heads, dim) in enumerate(SIZES):
        x = randn(batch, length, heads * dim, seed=seed, dtype=dtype)
        yield {"x": x, "num_heads": heads}


def split_without_transpose(x, num_heads):
    """Such heads are pieces of the sentence: each sees only a few tokens."""
    batch, length, embed = x.shape
    return x.reshape(batch, num_heads, length, embed // num_heads)


def split_interleaved(x, num_heads):
    """A head is a block of neighbouring features."""
    return x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2)


def split_not_moved(x, num_heads):
    """The axis of the heads must stand before the axis of the tokens."""
    return x.unflatten(-1, (num_heads, -1))


def split_key_layout(x, num_heads):
    """The transpose of the key belongs into the attention, not here."""
    return x.unflatten(-1, (num_heads, -1)).permute(0, 2, 3, 1)


def split_swapped_sizes(x, num_heads):
    """embed = num_heads * head_dim, in this order."""
    return x.unflatten(-1, (-1, num_heads)).transpose(1, 2)


def split_heads_first(x, num_heads):
    """The heads stand before the sentences; the batch is the first axis."""
    return torch.stack(x.chunk(num_heads, dim=-1))


def split_unchanged(x, num_heads):
    """The heads need an axis of their own."""
    return x


# --- 2.2 merge --------------------------------------------------------------------


def merge_heads(x: Tensor) -> Tensor:
    """The reference: (batch, heads, length, head_dim) -> (batch, length, embed)."""
    return reference_merge(x)


def merge_inputs(dtype):
    for seed, (batch, length, heads, dim) in enumerate(SIZES):
        yield {"x": randn(batch, heads, length, dim, seed=seed, dtype=dtype)}


def merge_without_transpose(x):
    """Features of different tokens end up in one row."""
    batch, heads, length, head_dim = x.shape
    return x.reshape(batch, length, heads * head_dim)


def merge_interleaved(x):
    """Lay the heads side by side, one whole head after the other."""
    return x.permute(0, 2, 3, 1).flatten(2)


def merge_averaged(x):
    """Their outputs are laid side by side, not mixed."""
    return x.mean(dim=1)


def merge_summed(x):
    return x.sum(dim=1)


def merge_along_length(x):
    """The heads stand one after the other as if they were words."""
    return x.flatten(1, 2)


def merge_view(x):
    """view cannot merge these axes: use reshape or flatten."""
    return x.transpose(1, 2).view(x.shape[0], x.shape[2], -1)


def merge_unchanged(x):
    """The axis of the heads must go into the features."""
    return x


# --- 2.3 the whole layer ----------------------------------------------------------


def multi_head_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int
) -> Tensor:
    """The reference: project, split, attend, merge, project; weights (out, in)."""
    q, k, v = (reference_split(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    heads, _ = scaled_dot_product_attention(q, k, v)
    return reference_merge(heads) @ w_o.mT


def layer_inputs(dtype):
    for seed, (batch, length, heads, dim) in enumerate(SIZES):
        embed = heads * dim
        weights = {
            name: randn(embed, embed, seed=seed + i, dtype=dtype) / embed**0.5 * 2
            for i, name in enumerate(("w_q", "w_k", "w_v", "w_o"), start=10)
        }
        x = randn(batch, length, embed, seed=seed, dtype=dtype)
        yield {"x": x, **weights, "num_heads": heads}


def _layer(
    x, w_q, w_k, w_v, w_o, num_heads, *, scale=None,
    split=reference_split, merge=reference_merge, dim=-1,
):  # fmt: skip
    q, k, v = (split(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return merge((q @ k.mT * scale).softmax(dim) @ v) @ w_o.mT


def layer_no_scale(*args):
    """The scores are not divided by √d_k."""
    return _layer(*args, scale=1.0)


def layer_sqrt_embed_dim(x, *args):
    """A head has only head_dim features, so d_k is head_dim."""
    return _layer(x, *args, scale=x.shape[-1] ** -0.5)


def layer_split_without_transpose(*args):
    """Such heads are pieces of the sentence: each sees only a few tokens."""
    return _layer(*args, split=split_without_transpose)


def layer_merge_without_transpose(*args):
    """Features of different tokens end up in one row."""
    return _layer(*args, merge=merge_without_transpose)


def layer_both_without_transpose(*args):
    """Shapes and causality look right, yet distant tokens never meet."""
    return _layer(*args, split=split_without_transpose, merge=merge_without_transpose)


def layer_wrong_axis(*args):
    """Each query (a row) shares out 1 among the keys."""
    return _layer(*args, dim=-2)


def layer_interleaved(*args):
    """A head is a block of neighbouring features."""
    return _layer(*args, split=split_interleaved)


def layer_weights_not_transposed(x, w_q, w_k, w_v, w_o, num_heads):
    """nn.Linear stores (out, in): write x @ w.T."""
    return _layer(x, w_q.mT, w_k.mT, w_v.mT, w_o.mT, num_heads)


def layer_without_output(x, w_q, w_k, w_v, w_o, num_heads):
    """w_o mixes what the heads have read."""
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return _layer(x, w_q, w_k, w_v, eye, num_heads)


def layer_averaged_heads(x, w_q, w_k, w_v, w_o, num_heads):
    """Every head reads with its own weights."""
    q, k, v = (reference_split(x @ w.mT, num_heads) for w in (w_q, w_k, w_v))
    weights = scaled_dot_product_attention(q, k, v)[1].mean(dim=1, keepdim=True)
    return reference_merge(weights @ v) @ w_o.mT


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


def layer_unchanged(x, *args):
    """No word has read any other."""
    return x


# --- 2.4 QKV layouts --------------------------------------------------------------


def stacked_from_interleaved(weight: Tensor, num_heads: int) -> Tensor:
    """The reference: rows ordered (head, qkv, dim) -> rows ordered (qkv, head, dim)."""
    by_head = weight.unflatten(0, (num_heads, 3, -1))  # (heads, 3, head_dim, embed)
    return by_head.transpose(0, 1).flatten(0, 2)


def layout_inputs(dtype):
    for seed, (_, _, heads, dim) in enumerate(SIZES):
        weight = randn(3 * heads * dim, heads * dim, seed=seed, dtype=dtype)
        yield {"weight": weight, "num_heads": heads}


def layout_read_as_stacked(weight, num_heads):
    """The rows were not moved."""
    return weight.clone()


def layout_other_direction(weight, num_heads):
    """These rows go from stacked to per-head."""
    return weight.unflatten(0, (3, num_heads, -1)).transpose(0, 1).flatten(0, 2)


def layout_view(weight, num_heads):
    """A head's rows are (3, head_dim), not (head_dim, 3)."""
    return weight.unflatten(0, (num_heads, -1, 3)).permute(2, 0, 1, 3).flatten(0, 2)


def layout_swapped(weight, num_heads):
    """The order is query, key, value."""
    q, k, v = stacked_from_interleaved(weight, num_heads).chunk(3)
    return torch.cat([q, v, k])


def layout_queries_swapped(weight, num_heads):
    q, k, v = stacked_from_interleaved(weight, num_heads).chunk(3)
    return torch.cat([k, q, v])


def layout_value_first(weight, num_heads):
    q, k, v = stacked_from_interleaved(weight, num_heads).chunk(3)
    return torch.cat([v, q, k])


def layout_columns(weight, num_heads):
    """The layout is a matter of the rows, the outputs."""
    columns = weight.unflatten(1, (num_heads, -1)).transpose(1, 2).flatten(1, 2)
    return columns.contiguous()


EXERCISES = (
    Exercise(
        "2.1",
        "Split the heads",
        split_heads,
        split_inputs,
        {
            "reshape without transpose": split_without_transpose,
            "every num_heads-th feature": split_interleaved,
            "no transpose after the split": split_not_moved,
            "head_dim before length": split_key_layout,
            "number and size of the heads swapped": split_swapped_sizes,
            "heads before the batch": split_heads_first,
            "x as it came": split_unchanged,
        },
    ),
    Exercise(
        "2.2",
        "Merge the heads",
        merge_heads,
        merge_inputs,
        {
            "merge without transpose": merge_without_transpose,
            "features of the heads interleaved": merge_interleaved,
            "averaged heads": (merge_averaged, merge_summed),
            "heads laid along the length": merge_along_length,
            "view of transposed memory": merge_view,
            "x as it came": merge_unchanged,
        },
    ),
    Exercise(
        "2.3",
        "Multi-head attention",
        multi_head_attention,
        layer_inputs,
        {
            "no scale": layer_no_scale,
            "√embed_dim": layer_sqrt_embed_dim,
            "reshape without transpose": layer_split_without_transpose,
            "merge without transpose": layer_merge_without_transpose,
            "split and merge without transpose": layer_both_without_transpose,
            "every num_heads-th feature": layer_interleaved,
            "softmax over the wrong axis": layer_wrong_axis,
            "averaged heads": layer_averaged_heads,
            "one head over all features": layer_one_head,
            "weights used as (in, out)": (
                layer_weights_not_transposed,
                layer_inputs_not_transposed,
                layer_output_not_transposed,
            ),
            "queries and keys swapped": layer_queries_swapped,
            "attention between the heads of a word": layer_over_heads,
            "no output projection": layer_without_output,
            "keys and values swapped": layer_swapped,
            "x as it came": layer_unchanged,
        },
    ),
    Exercise(
        "2.4",
        "From the per-head layout to the stacked one",
        stacked_from_interleaved,
        layout_inputs,
        {
            "interleaved read as stacked": layout_read_as_stacked,
            "the other direction": layout_other_direction,
            "q, k, v as the fastest axis": layout_view,
            "q, k, v in another order": (
                layout_swapped,
                layout_queries_swapped,
                layout_value_first,
            ),
            "columns moved": layout_columns,
        },
    ),
)
