"""Exercise 2.1: heads, there and back."""

import torch
from torch import Tensor

from utils.attention import merge_heads, split_heads
from utils.exercises.engine import Exercise, randn


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


def times_random(x: Tensor) -> Tensor:
    """Multiply by random numbers; a second call gets others."""
    return x * torch.rand(_of_heads(x).shape).to(x.dtype)


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
    yield {"function": times_random, "x": strided, "num_heads": 3}


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


def on_heads_merged_as_sentences(function, x, num_heads):
    length, batch, embed = x.shape
    done = function(_fold(x, num_heads))
    return done.reshape(batch, length, embed).transpose(0, 1)


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


def on_heads_heads_first_only_in(function, x, num_heads):
    heads = split_heads(x.transpose(0, 1), num_heads).transpose(0, 1)
    return _unfold(function(heads.flatten(0, 1)), x)


def on_heads_merge_interleaved(function, x, num_heads):
    """Lay the heads side by side, one whole head after the other."""
    done = function(_fold(x, num_heads)).unflatten(0, (-1, num_heads))
    return done.permute(2, 0, 3, 1).flatten(2)


def on_heads_cut_interleaved(function, x, num_heads):
    heads = x.unflatten(-1, (-1, num_heads)).permute(1, 3, 0, 2).flatten(0, 1)
    return _unfold(function(heads), x)


def on_heads_not_glued(function, x, num_heads):
    """Make one axis of batch and heads before the call: flatten(0, 1), or reshape."""
    return merge_heads(function(split_heads(x.transpose(0, 1), num_heads)))


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


def on_heads_each_alone(function, x, num_heads):
    done = [function(head[None])[0] for head in _fold(x, num_heads)]
    return _unfold(torch.stack(done), x)


def on_heads_each_without_batch(function, x, num_heads):
    return _unfold(torch.stack([function(h) for h in _fold(x, num_heads)]), x)


def on_heads_twice(function, x, num_heads):
    heads = _fold(x, num_heads)
    function(heads)
    return _unfold(function(heads), x)


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


EXERCISE = Exercise(
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
        "merge without transpose": (
            on_heads_merge_wrong,
            on_heads_merged_as_sentences,
        ),
        "batch and heads not glued": on_heads_not_glued,
        "x read as (batch, length, embed)": on_heads_batch_first,
        "heads before sentences": (
            on_heads_heads_first,
            on_heads_heads_first_only_in,
        ),
        "every num_heads-th feature": (
            on_heads_interleaved,
            on_heads_cut_interleaved,
        ),
        "heads interleaved in the merge": on_heads_merge_interleaved,
        "number and size of the heads swapped": (
            on_heads_swapped,
            on_heads_swapped_and_strided,
            on_heads_pieces_first,
        ),
        "called more than once": (
            on_heads_one_by_one,
            on_heads_one_by_one_not_moved,
            on_heads_by_sentence,
            on_heads_each_alone,
            on_heads_each_without_batch,
            on_heads_twice,
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
)
