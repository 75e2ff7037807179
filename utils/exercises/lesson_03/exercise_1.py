"""Exercise 3.1: nn.MultiheadAttention from its weights."""

import torch
from torch import Tensor, nn

from utils.attention import (
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from utils.exercises.engine import Exercise, randn
from utils.exercises.lesson_02 import (
    merge_without_transpose,
    split_without_transpose,
)


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


def _shapes(dtype):
    # several and one sentence, one word, one head, head_dim = num_heads; head_dim is a
    # square, so that its root is exact in every precision
    sizes = [(2, 6, 3, 4), (3, 4, 2, 9), (1, 5, 4, 4), (2, 1, 2, 4), (2, 4, 1, 9)]
    for seed, (batch, length, heads, dim) in enumerate(sizes):
        embed = heads * dim
        yield {
            # laid out length first in memory: .view() would not do
            "x": randn(length, batch, embed, seed=seed, dtype=dtype).transpose(0, 1),
            "in_proj_weight": randn(3 * embed, embed, seed=seed + 10, dtype=dtype) / 2,
            "in_proj_bias": randn(3 * embed, seed=seed + 20, dtype=dtype),
            "out_weight": randn(embed, embed, seed=seed + 30, dtype=dtype) / 2,
            "out_bias": randn(embed, seed=seed + 40, dtype=dtype),
            "num_heads": heads,
        }


def packed_inputs(dtype):
    yield from _shapes(dtype)
    if dtype != torch.float64:
        return  # in single precision right answers differ here by their rounding
    # a key bias adds the same to all scores of a query; softmax does not care, exp does
    large = next(_shapes(dtype))
    nothing = torch.zeros_like(large["out_bias"])
    shift = torch.cat([nothing, nothing + 600, nothing])
    yield large | {"in_proj_bias": large["in_proj_bias"] + shift}


def _packed(
    x, w, b, out_w, out_b, num_heads, *, order=(0, 1, 2), scale=None,
    split=split_heads, merge=merge_heads,
):  # fmt: skip
    parts = (x @ w.mT + b).chunk(3, dim=-1)
    q, k, v = (split(parts[i], num_heads) for i in order)
    heads, _ = scaled_dot_product_attention(q, k, v, scale=scale)
    return merge(heads) @ out_w.mT + out_b


def packed_read_per_head(x, w, b, out_w, out_b, num_heads):
    """The rows are all queries, then all keys, then all values."""
    q, k, v = split_heads(x @ w.mT + b, num_heads).chunk(3, dim=-1)
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ out_w.mT + out_b


def packed_read_per_feature(x, w, b, out_w, out_b, num_heads):
    parts = (x @ w.mT + b).unflatten(-1, (-1, 3)).unbind(-1)
    q, k, v = (split_heads(part, num_heads) for part in parts)
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ out_w.mT + out_b


def packed_no_in_bias(x, w, b, out_w, out_b, num_heads):
    """Queries, keys and values each have a bias."""
    return _packed(x, w, torch.zeros_like(b), out_w, out_b, num_heads)


def packed_no_out_bias(x, w, b, out_w, out_b, num_heads):
    """It is added after the heads are mixed."""
    return _packed(x, w, b, out_w, torch.zeros_like(out_b), num_heads)


def packed_swapped(*args):
    """The order is query, key, value."""
    return _packed(*args, order=(0, 2, 1))


def packed_key_value_query(*args):
    """The order is query, key, value."""
    return _packed(*args, order=(1, 2, 0))


def packed_key_query_value(*args):
    """The order is query, key, value."""
    return _packed(*args, order=(1, 0, 2))


def packed_part_of_bias(*kept):
    def answer(x, w, b, out_w, out_b, num_heads):
        """Queries, keys and values each have a bias, and all of it counts."""
        keep = torch.zeros(3, 1, dtype=b.dtype)
        keep[list(kept)] = 1
        part = (b.view(3, -1) * keep).flatten()
        return _packed(x, w, part, out_w, out_b, num_heads)

    return answer


def packed_over_heads(x, w, b, out_w, out_b, num_heads):
    """Words must read words: bring the heads' axis before the words' (transpose)."""
    parts = (x @ w.mT + b).chunk(3, dim=-1)
    q, k, v = (part.unflatten(-1, (num_heads, -1)) for part in parts)
    read = scaled_dot_product_attention(q, k, v)[0]
    return read.flatten(-2) @ out_w.mT + out_b


def packed_over_heads_turned(x, w, b, out_w, out_b, num_heads):
    parts = (x @ w.mT + b).chunk(3, dim=-1)
    q, k, v = (part.unflatten(-1, (num_heads, -1)) for part in parts)
    read = scaled_dot_product_attention(q, k, v)[0].transpose(1, 2)
    return read.reshape(x.shape) @ out_w.mT + out_b


def packed_exp(x, w, b, out_w, out_b, num_heads):
    """exp of a large score is infinite: subtract each row's maximum, or use softmax."""
    parts = (x @ w.mT + b).chunk(3, dim=-1)
    q, k, v = (split_heads(part, num_heads) for part in parts)
    e = (q @ k.mT / q.shape[-1] ** 0.5).exp()
    read = e / e.sum(dim=-1, keepdim=True) @ v
    return merge_heads(read) @ out_w.mT + out_b


def packed_no_scale(*args):
    """The scores are not divided by √d_k."""
    return _packed(*args, scale=1.0)


def packed_scaled_twice(x, w, b, out_w, out_b, num_heads):
    """scaled_dot_product_attention divides by √d_k itself: once is enough."""
    return _packed(x, w, b, out_w, out_b, num_heads, scale=num_heads / x.shape[-1])


def packed_chunk_of_batch(x, w, b, out_w, out_b, num_heads):
    """chunk(3) cuts axis 0, the sentences; cut the features: chunk(3, dim=-1)."""
    q, k, v = (x @ w.mT + b).chunk(3)
    q, k, v = (split_heads(part, num_heads) for part in (q, k, v))
    return merge_heads(scaled_dot_product_attention(q, k, v)[0]) @ out_w.mT + out_b


def packed_chunk_of_batch_linear(x, w, b, out_w, out_b, num_heads):
    q, k, v = nn.functional.linear(x, w, b).chunk(3)
    q, k, v = (split_heads(part, num_heads) for part in (q, k, v))
    read = scaled_dot_product_attention(q, k, v)[0]
    return nn.functional.linear(merge_heads(read), out_w, out_b)


def packed_sqrt_embed_dim(x, *args):
    """A head has only head_dim features, so d_k is head_dim."""
    return _packed(x, *args, scale=x.shape[-1] ** -0.5)


def packed_split_without_transpose(*args):
    """Such heads are pieces of the sentence: each sees only a few tokens."""
    return _packed(*args, split=split_without_transpose)


def packed_merge_without_transpose(*args):
    """Features of different tokens end up in one row."""
    return _packed(*args, merge=merge_without_transpose)


def packed_both_without_transpose(*args):
    """The second undoes the first, but each head saw only a part of the words."""
    return _packed(*args, split=split_without_transpose, merge=merge_without_transpose)


def packed_sqrt_heads(x, w, b, out_w, out_b, num_heads):
    """The scores are divided by √d_k, the root of a head's features."""
    return _packed(x, w, b, out_w, out_b, num_heads, scale=num_heads**-0.5)


def _loaded(x, w, b, out_w, out_b, num_heads):
    layer = nn.MultiheadAttention(
        x.shape[-1], num_heads, batch_first=True, dtype=x.dtype
    )
    names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
    layer.load_state_dict(dict(zip(names, (w, b, out_w, out_b), strict=True)))
    return layer


def packed_module(x, *args):
    """A module holds copies, as do nn.Parameter and torch.tensor: no gradient."""
    return _loaded(x, *args)(x, x, x)[0]


def packed_module_no_grad(x, *args):
    with torch.no_grad():
        return _loaded(x, *args).eval()(x, x, x)[0]


def packed_module_single(x, w, b, out_w, out_b, num_heads):
    layer = nn.MultiheadAttention(x.shape[-1], num_heads, batch_first=True)
    names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
    layer.load_state_dict(dict(zip(names, (w, b, out_w, out_b), strict=True)))
    return layer(x, x, x)[0]


def packed_module_length_first(x, w, b, out_w, out_b, num_heads):
    """batch_first=False is the default, and load_state_dict copies: no gradient."""
    layer = nn.MultiheadAttention(x.shape[-1], num_heads, dtype=x.dtype)
    names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
    layer.load_state_dict(dict(zip(names, (w, b, out_w, out_b), strict=True)))
    return layer(x, x, x)[0]


def packed_split_before_projecting(x, w, b, out_w, out_b, num_heads):
    """Each head must see all features of x; the projection decides what it keeps."""
    n, dim = x.shape[-1], x.shape[-1] // num_heads
    parts = []
    for which in range(3):
        rows = w[which * n : (which + 1) * n].unflatten(0, (num_heads, dim))
        blocks = torch.stack(
            [rows[h, :, h * dim : (h + 1) * dim] for h in range(num_heads)]
        )
        bias = b[which * n : (which + 1) * n].view(num_heads, 1, dim)
        parts.append(split_heads(x, num_heads) @ blocks.mT + bias)
    read = scaled_dot_product_attention(*parts)[0]
    return merge_heads(read) @ out_w.mT + out_b


def packed_in_not_transposed(x, w, b, out_w, out_b, num_heads):
    """Stacked means one third below the other: cut the rows, axis 0."""
    n = x.shape[-1]
    third = w.view(n, 3 * n).chunk(3, dim=1)
    parts = (x @ m.mT + c for m, c in zip(third, b.chunk(3), strict=True))
    q, k, v = (split_heads(part, num_heads) for part in parts)
    read = scaled_dot_product_attention(q, k, v)[0]
    return merge_heads(read) @ out_w.mT + out_b


def packed_no_output(x, w, b, out_w, out_b, num_heads):
    """out_proj mixes what the heads have read."""
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return _packed(x, w, b, eye, torch.zeros_like(out_b), num_heads)


def packed_no_bias(x, w, b, out_w, out_b, num_heads):
    """in_proj_bias and the bias of out_proj are both part of the layer."""
    nothing = torch.zeros_like(b), torch.zeros_like(out_b)
    return _packed(x, w, nothing[0], out_w, nothing[1], num_heads)


def packed_only_out_bias(x, w, b, out_w, out_b, num_heads):
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return _packed(x, w, b, eye, out_b, num_heads)


def packed_out_not_transposed(x, w, b, out_w, out_b, num_heads):
    """nn.Linear stores (out, in): write x @ weight.T."""
    return _packed(x, w, b, out_w.mT, out_b, num_heads)


def packed_in_as_in_out(x, w, b, out_w, out_b, num_heads):
    """nn.Linear stores (out, in): write x @ in_proj_weight.T."""
    q, k, v = (split_heads(part, num_heads) for part in (x @ w + b).chunk(3, dim=-1))
    read = scaled_dot_product_attention(q, k, v)[0]
    return merge_heads(read) @ out_w.mT + out_b


def packed_thirds_in_out(x, w, *args):
    return _packed(x, torch.cat([third.mT for third in w.chunk(3)]), *args)


def packed_one_head(x, w, b, out_w, out_b, num_heads):
    """Each head has its own slice of the features: num_heads is not used."""
    return _packed(x, w, b, out_w, out_b, 1)


def packed_length_first(x, *args):
    """x is (batch, length, embed): words read words of the same sentence."""
    return torch_attention(x.transpose(0, 1), *args).transpose(0, 1)


def packed_unchanged(x, *args):
    """No word has read any other."""
    return x


EXERCISE = Exercise(
    "3.1",
    "nn.MultiheadAttention from its weights",
    torch_attention,
    packed_inputs,
    {
        "stacked read as interleaved": (packed_read_per_head, packed_read_per_feature),
        "no in_proj_bias": packed_no_in_bias,
        "no bias of out_proj": packed_no_out_bias,
        "no bias at all": packed_no_bias,
        "out_weight used as (in, out)": packed_out_not_transposed,
        "in_proj cut along the wrong axis": packed_in_not_transposed,
        "in_proj_weight used as (in, out)": (packed_in_as_in_out, packed_thirds_in_out),
        "one head over all features": packed_one_head,
        "split before projecting": packed_split_before_projecting,
        "length before batch": packed_length_first,
        "keys and values swapped": packed_swapped,
        "queries and keys swapped": packed_key_query_value,
        "read as key, value, query": packed_key_value_query,
        "a part of in_proj_bias": (
            packed_part_of_bias(0, 1),
            packed_part_of_bias(1, 2),
            packed_part_of_bias(2),
        ),
        "heads read one another": (packed_over_heads, packed_over_heads_turned),
        "no maximum subtracted": packed_exp,
        "no scale": packed_no_scale,
        "scaled twice": packed_scaled_twice,
        "sentences cut instead of features": (
            packed_chunk_of_batch,
            packed_chunk_of_batch_linear,
        ),
        "√embed_dim": packed_sqrt_embed_dim,
        "√num_heads": packed_sqrt_heads,
        "reshape without transpose": packed_split_without_transpose,
        "merge without transpose": packed_merge_without_transpose,
        "both reshapes without transpose": packed_both_without_transpose,
        "a module built inside and loaded": (
            packed_module,
            packed_module_no_grad,
            packed_module_single,
        ),
        "a module built inside, length first": packed_module_length_first,
        "no out_proj": (packed_no_output, packed_only_out_bias),
        "x as it came": packed_unchanged,
    },
)
