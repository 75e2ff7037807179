"""Exercise 3.2: a tokenizer's mask for nn.MultiheadAttention."""

import math

import torch
from torch import Tensor

from utils.attention import (
    causal_mask,
)
from utils.exercises.engine import Exercise


def torch_mask(attention_mask: Tensor, num_heads: int) -> Tensor:
    """The reference: words (batch, L) and causal, as blocked (batch * heads, L, L)."""
    words = attention_mask.bool()[:, None, :]  # (batch, 1, keys), True = may be read
    keep = words & causal_mask(attention_mask.shape[-1], device=attention_mask.device)
    return ~keep.repeat_interleave(num_heads, dim=0)


def mask_inputs(dtype):
    """Sentences with padding on the right, on the left, in all places and in none."""
    rows = [[1, 1, 1, 0], [1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 0]]
    some = torch.tensor(rows)
    yield {"attention_mask": some[:2], "num_heads": 3}
    yield {"attention_mask": some[1:].T.contiguous().T, "num_heads": 2}
    yield {"attention_mask": torch.tensor([[0, 0, 0], [1, 1, 0]]), "num_heads": 2}
    yield {"attention_mask": some[:, :2], "num_heads": 4}  # as many heads as sentences
    yield {"attention_mask": some[:1], "num_heads": 1}
    yield {"attention_mask": torch.ones(1, 1, dtype=torch.long), "num_heads": 2}
    yield {"attention_mask": torch.ones(5, 5, dtype=torch.long), "num_heads": 2}


def _mask(
    attention_mask, num_heads, *,
    words=lambda m: m.bool()[:, None, :],
    causal=causal_mask,
    combined=torch.logical_and,
    flipped=torch.logical_not,
):  # fmt: skip
    """Every mistake below replaces one step of this."""
    keep = combined(words(attention_mask), causal(attention_mask.shape[-1]))
    return flipped(keep).repeat_interleave(num_heads, dim=0)


def _later(length):
    return ~causal_mask(length)


def _same(mask):
    return mask


def _infinite(keep):
    return torch.zeros(keep.shape).masked_fill(~keep, -math.inf)


def mask_bool_alone(attention_mask, num_heads):
    """1 is a word, and True means blocked: the words got weight 0, not the padding."""
    return _mask(
        attention_mask, num_heads,
        causal=_later, combined=torch.logical_or, flipped=_same,
    )  # fmt: skip


def mask_bool_alone_not_causal(attention_mask, num_heads):
    length = attention_mask.shape[-1]
    words = attention_mask.bool()[:, None].expand(-1, length, -1)
    return words.repeat_interleave(num_heads, dim=0)


def mask_not_flipped(attention_mask, num_heads):
    """There True means blocked; here it means may be read."""
    return _mask(attention_mask, num_heads, flipped=_same)


def mask_causal_not_flipped(attention_mask, num_heads):
    """The padding is blocked, but so is the past: causal_mask says what may be read."""
    return _mask(attention_mask, num_heads, causal=_later)


def mask_only_where_both(attention_mask, num_heads):
    """A key is blocked if it is padding *or* later: of blocked masks take |, not &."""
    return _mask(attention_mask, num_heads, combined=torch.logical_or)


def mask_tilde_on_integers(attention_mask, num_heads):
    """~1 is -2 and ~0 is -1: of integers, both are True. Make it boolean first."""
    return _mask(attention_mask, num_heads, words=lambda m: ~(~m).bool()[:, None, :])


def mask_tilde_left_integer(attention_mask, num_heads):
    later = ~causal_mask(attention_mask.shape[-1])
    return (~attention_mask[:, None] | later).repeat_interleave(num_heads, dim=0)


def mask_no_query_axis(attention_mask, num_heads):
    """(batch, L) needs an axis for the queries: attention_mask[:, None, :]."""
    later = ~causal_mask(attention_mask.shape[-1])
    return ((attention_mask == 0) | later).repeat_interleave(num_heads, dim=0)


def mask_no_query_axis_of_keep(attention_mask, num_heads):
    keep = attention_mask.bool() & causal_mask(attention_mask.shape[-1])
    return ~keep.repeat_interleave(num_heads, dim=0)


def mask_of_queries(attention_mask, num_heads):
    """Padding is hidden as a *key*: its column is blocked, not its row."""
    return _mask(attention_mask, num_heads, words=lambda m: m.bool()[:, :, None])


def mask_both_axes(attention_mask, num_heads):
    """Padding is hidden as a key. As a query, too, and its row becomes NaN."""
    return _mask(
        attention_mask, num_heads, words=lambda m: (m[:, None] * m[:, :, None]).bool()
    )


def mask_not_causal(attention_mask, num_heads):
    """Every word still reads the words after it."""
    return _mask(
        attention_mask, num_heads,
        causal=lambda n: torch.ones(n, n, dtype=torch.bool),
    )  # fmt: skip


def mask_no_padding(attention_mask, num_heads):
    """The padding is still read: nothing came from attention_mask."""
    return _mask(attention_mask, num_heads, words=lambda m: m[:, None, :] == m[:, None])


def mask_empty_rows_opened(attention_mask, num_heads):
    """A row with nothing to read stays all blocked; only its loss is left out later."""
    blocked = torch_mask(attention_mask, num_heads)
    return blocked & ~blocked.all(dim=-1, keepdim=True)


def mask_empty_rows_read_themselves(attention_mask, num_heads):
    blocked = torch_mask(attention_mask, num_heads)
    itself = torch.eye(attention_mask.shape[-1], dtype=torch.bool)
    return blocked & ~(blocked.all(dim=-1, keepdim=True) & itself)


def mask_diagonal_open(attention_mask, num_heads):
    """Padding is hidden even from itself: the diagonal is no exception."""
    diagonal = torch.eye(attention_mask.shape[-1], dtype=torch.bool)
    return torch_mask(attention_mask, num_heads) & ~diagonal


def mask_by_length(attention_mask, num_heads):
    """A count of words does not say where they are: padding may stand on the left."""

    def first(mask):
        return (torch.arange(mask.shape[-1]) < mask.sum(-1, keepdim=True))[:, None]

    return _mask(attention_mask, num_heads, words=first)


def mask_past_blocked(attention_mask, num_heads):
    """The future is open and the past blocked: triu stands for tril, or the reverse."""
    return _mask(attention_mask, num_heads, causal=lambda n: causal_mask(n).mT)


def mask_without_diagonal(attention_mask, num_heads):
    """A word may read itself: block from the first diagonal above, triu(1)."""
    return _mask(
        attention_mask, num_heads,
        causal=lambda n: torch.ones(n, n, dtype=torch.bool).tril(-1),
    )  # fmt: skip


def mask_head_major(attention_mask, num_heads):
    """Row n * heads + h must belong to sentence n: use repeat_interleave."""
    return _mask(attention_mask, 1).repeat(num_heads, 1, 1)


def mask_not_repeated(attention_mask, num_heads):
    """PyTorch wants one per sentence and head."""
    return _mask(attention_mask, 1)


def mask_four_axes(attention_mask, num_heads):
    """PyTorch wants (batch * heads, L, L)."""
    return _mask(attention_mask, 1)[:, None].repeat(1, num_heads, 1, 1)


def mask_float_of_ones(attention_mask, num_heads):
    """A float mask is added to the scores: 1.0 hides nothing. Return bool."""
    return _mask(attention_mask, num_heads).float()


def mask_float_of_keep(attention_mask, num_heads):
    return _mask(attention_mask, num_heads, flipped=_same).float()


def mask_integer(attention_mask, num_heads):
    """PyTorch refuses integer masks: return bool."""
    return _mask(attention_mask, num_heads).int()


def mask_integer_long(attention_mask, num_heads):
    return _mask(attention_mask, num_heads).long()


def mask_integer_byte(attention_mask, num_heads):
    return _mask(attention_mask, num_heads).byte()


def mask_integer_of_keep(attention_mask, num_heads):
    return _mask(attention_mask, num_heads, flipped=_same).long()


def mask_additive(attention_mask, num_heads):
    """It would do the same, but boolean is asked: True = blocked."""
    return _mask(attention_mask, num_heads, flipped=_infinite)


def mask_additive_finite(attention_mask, num_heads):
    return _mask(attention_mask, num_heads, flipped=_infinite).clamp(min=-1e9)


def _summed(attention_mask, num_heads, hidden):
    length = attention_mask.shape[-1]
    later = torch.full((length, length), hidden).triu(1)
    padding = (1 - attention_mask[:, None]) * hidden
    return (later + padding).repeat_interleave(num_heads, dim=0)


def mask_additive_summed(attention_mask, num_heads):
    return _summed(attention_mask, num_heads, -1e9)


def mask_additive_zero_times_infinity(attention_mask, num_heads):
    return _summed(attention_mask, num_heads, -math.inf)


def mask_only_padding(attention_mask, num_heads):
    """That is a key_padding_mask; asked is attn_mask, with the causal one in it."""
    return attention_mask == 0


def mask_only_padding_repeated(attention_mask, num_heads):
    return (attention_mask == 0).repeat_interleave(num_heads, dim=0)


def mask_unchanged(attention_mask, num_heads):
    """It must be flipped, joined with the causal mask, repeated for every head."""
    return attention_mask


EXERCISE = Exercise(
    "3.2",
    "A tokenizer's mask for nn.MultiheadAttention",
    torch_mask,
    mask_inputs,
    {
        ".bool() alone": (mask_bool_alone, mask_bool_alone_not_causal),
        "inverted mask": mask_not_flipped,
        "causal mask not flipped": mask_causal_not_flipped,
        "and instead of or": mask_only_where_both,
        "~ on integers": (mask_tilde_on_integers, mask_tilde_left_integer),
        "no axis for the queries": (
            mask_no_query_axis,
            mask_no_query_axis_of_keep,
        ),
        "queries hidden instead of keys": mask_of_queries,
        "queries hidden, too": mask_both_axes,
        "not causal": mask_not_causal,
        "padding not hidden": mask_no_padding,
        "empty rows opened": (
            mask_empty_rows_opened,
            mask_empty_rows_read_themselves,
        ),
        "the diagonal always open": mask_diagonal_open,
        "only padding on the right": mask_by_length,
        "past and future exchanged": mask_past_blocked,
        "without the diagonal": mask_without_diagonal,
        "repeat instead of repeat_interleave": mask_head_major,
        "one mask per sentence": mask_not_repeated,
        "four axes": mask_four_axes,
        "float mask of ones": (mask_float_of_ones, mask_float_of_keep),
        "integer mask": (
            mask_integer,
            mask_integer_long,
            mask_integer_byte,
            mask_integer_of_keep,
        ),
        "additive mask": (
            mask_additive,
            mask_additive_finite,
            mask_additive_summed,
            mask_additive_zero_times_infinity,
        ),
        "only the padding": (mask_only_padding, mask_only_padding_repeated),
        "attention_mask as it came": mask_unchanged,
    },
    gradients=False,
)
