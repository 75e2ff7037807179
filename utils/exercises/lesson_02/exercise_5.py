"""Exercise 2.5: from interleaved to stacked."""

import torch
from torch import Tensor

from utils.exercises.engine import Exercise, randn


def stacked_from_interleaved(parameter: Tensor, num_heads: int) -> Tensor:
    """The reference: rows ordered (head, qkv, dim) -> rows ordered (qkv, head, dim)."""
    by_head = parameter.unflatten(0, (num_heads, 3, -1))  # (heads, 3, head_dim, ...)
    return by_head.transpose(0, 1).flatten(0, 2)


def layout_inputs(dtype):
    sizes = [(3, 4), (2, 6), (4, 4), (2, 3), (1, 4), (3, 1), (5, 2)]
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


def layout_no_biases(parameter, num_heads):
    """The rows of a bias move as those of its weight."""
    if parameter.dim() == 1:
        return parameter.clone()
    return stacked_from_interleaved(parameter, num_heads)


def layout_columns(parameter, num_heads):
    """The layout is a matter of the rows, the outputs."""
    if parameter.dim() == 1:
        return stacked_from_interleaved(parameter, num_heads)
    columns = parameter.unflatten(1, (num_heads, -1)).transpose(1, 2).flatten(1, 2)
    return columns.contiguous()


EXERCISE = Exercise(
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
        "biases not moved": layout_no_biases,
        "columns moved": layout_columns,
        "axes not flattened": layout_not_flattened,
    },
)
