"""Exercise 2.4: renumber the heads."""

import torch
from torch import Tensor

from utils.exercises.engine import Exercise, randn


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


def renumber_rows_and_columns(w_in, b_in, w_out, b_out, order):
    moved = renumber(w_in, b_in, w_out, b_out, order)
    return _blocks(moved[0], order, 2), *moved[1:]


def renumber_both_of_w_out(w_in, b_in, w_out, b_out, order):
    moved = renumber(w_in, b_in, w_out, b_out, order)
    return *moved[:2], _blocks(moved[2], order, 0), b_out


def renumber_inputs_inverse(w_in, b_in, w_out, b_out, order):
    """The rows of w_in take the same order as the columns of w_out."""
    inverse = torch.tensor(order).argsort().tolist()
    moved = renumber(w_in, b_in, w_out, b_out, inverse)
    return *moved[:2], _blocks(w_out, order, 1), b_out


def renumber_queries_only(w_in, b_in, w_out, b_out, order):
    w, b, w_out, b_out = renumber(w_in, b_in, w_out, b_out, order)
    return torch.cat([w[:1], w_in[1:]]), torch.cat([b[:1], b_in[1:]]), w_out, b_out


def renumber_not_flattened(w_in, b_in, w_out, b_out, order):
    """The axes must be flattened again: the shapes stay as they were."""
    heads = (len(order), -1)
    moved = (t.unflatten(1, heads)[:, order] for t in (w_in, b_in, w_out))
    return *moved, b_out


def renumber_no_values(w_in, b_in, w_out, b_out, order):
    """Queries, keys and values of a head move together."""
    w, b, w_out, b_out = renumber(w_in, b_in, w_out, b_out, order)
    return torch.cat([w[:2], w_in[2:]]), torch.cat([b[:2], b_in[2:]]), w_out, b_out


def renumber_nothing(w_in, b_in, w_out, b_out, order):
    """Every head has kept its number."""
    return w_in, b_in, w_out, b_out


EXERCISE = Exercise(
    "2.4",
    "Renumber the heads",
    renumber,
    renumber_inputs,
    {
        "biases not moved": renumber_no_biases,
        "rows of w_out moved": (
            renumber_rows_of_w_out,
            renumber_all_rows,
            renumber_both_of_w_out,
        ),
        "w_in in the inverse order": renumber_inputs_inverse,
        "axes not flattened": renumber_not_flattened,
        "b_out moved": renumber_b_out,
        "the inverse order": renumber_inverse,
        "w_out in the inverse order": renumber_w_out_inverse,
        "w_out not moved": renumber_inputs_only,
        "only w_out moved": renumber_output_only,
        "single features moved": renumber_features,
        "order taken for row numbers": renumber_rows_as_heads,
        "columns of w_in moved": (
            renumber_columns_of_w_in,
            renumber_rows_and_columns,
        ),
        "values not moved": (renumber_no_values, renumber_queries_only),
        "nothing moved": renumber_nothing,
    },
)
