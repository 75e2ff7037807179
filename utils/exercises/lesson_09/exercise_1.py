"""Exercise 9.1: weights between words, from weights between pieces."""

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.exercises.engine import Exercise, randn


def _members(word_of: Tensor, words: int, dtype) -> Tensor:
    """Return 1 where a piece belongs to a word, (pieces, words)."""
    return F.one_hot(word_of + 1, words + 1)[:, 1:].to(dtype)


def word_map(attention: Tensor, word_of: Tensor, words: int) -> Tensor:
    """The reference: the sum over the pieces read, the mean over those that read."""
    belongs = _members(word_of, words, attention.dtype)
    share = belongs / belongs.sum(dim=0).clamp(min=1)
    return share.mT @ attention @ belongs


def word_map_inputs(dtype):
    cases = [
        (3, [-1, 0, 0, 1, -1], 2),
        (2, [-1, 0, 1, 1, 1, 2, 3, 3, -1], 4),
        (1, [-1, 0, 1, 2, -1], 3),
        (4, [-1, 0, 0, 0, -1], 1),
        (2, [-1, 0, 2, 2, 3, -1], 4),  # word 1 has no piece
        (5, [-1, 0, 1, 1, 2, 2, 2, 4, -1, -1, -1], 6),  # padding; two without pieces
        (2, [-1, 0, 0, 0, 0, 1, -1], 2),
        (3, [0, 1, 1, 2], 3),  # no [CLS], no [SEP]
        (2, [-1, 0, 1, 0, -1], 2),  # word 0 stands on both sides of word 1
    ]
    for seed, (heads, word_of, words) in enumerate(cases):
        pieces = len(word_of)
        scores = randn(heads, pieces, pieces, seed=seed, dtype=dtype) * 2
        attention = scores.softmax(dim=-1)
        if seed == 1:  # not contiguous
            attention = attention.mT.contiguous().mT
        yield {"attention": attention, "word_of": torch.tensor(word_of), "words": words}


def _mapped(attention, word_of, words, reads="mean", read="sum"):
    belongs = _members(word_of, words, attention.dtype)
    share = belongs / belongs.sum(dim=0).clamp(min=1)
    left, right = (share if how == "mean" else belongs for how in (reads, read))
    return left.mT @ attention @ right


def map_means(attention, word_of, words):
    """A word is read as much as all its pieces together: sum over them. A mean would
    make long words look unread."""
    return _mapped(attention, word_of, words, "mean", "mean")


def map_sums(attention, word_of, words):
    """A word reads once, not once per piece: take the mean over the pieces that read,
    or rows sum to more than 1."""
    return _mapped(attention, word_of, words, "sum", "sum")


def map_divided_by_both(attention, word_of, words):
    """Divide by the pieces that read, and by nothing else: what is read is a sum."""
    belongs = _members(word_of, words, attention.dtype)
    count = belongs.sum(dim=0).clamp(min=1)
    return belongs.mT @ attention @ belongs / (count[:, None] * count).sqrt()


def map_exchanged(attention, word_of, words):
    """The other way round: the mean belongs to the pieces that read (rows), the sum to
    the pieces that are read (columns)."""
    return _mapped(attention, word_of, words, "sum", "mean")


def _picked(word_of, words, dtype, last):
    """Return 1 where a piece is the first, or the last, of a word."""
    chosen = torch.zeros(len(word_of), words, dtype=dtype)
    for word in range(words):
        at = (word_of == word).nonzero().flatten()
        if len(at):
            chosen[at[-1 if last else 0], word] = 1
    return chosen


def map_first_reads(attention, word_of, words):
    """All pieces of a word read, and all are read; here one stands for the word."""
    first = _picked(word_of, words, attention.dtype, last=False)
    return first.mT @ attention @ _members(word_of, words, attention.dtype)


def map_first_both(attention, word_of, words):
    first = _picked(word_of, words, attention.dtype, last=False)
    return first.mT @ attention @ first


def map_first_read(attention, word_of, words):
    belongs = _members(word_of, words, attention.dtype)
    share = belongs / belongs.sum(dim=0).clamp(min=1)
    first = _picked(word_of, words, attention.dtype, last=False)
    return share.mT @ attention @ first


def map_last_reads(attention, word_of, words):
    last = _picked(word_of, words, attention.dtype, last=True)
    return last.mT @ attention @ _members(word_of, words, attention.dtype)


def map_last_both(attention, word_of, words):
    last = _picked(word_of, words, attention.dtype, last=True)
    return last.mT @ attention @ last


def map_last_read(attention, word_of, words):
    belongs = _members(word_of, words, attention.dtype)
    share = belongs / belongs.sum(dim=0).clamp(min=1)
    return share.mT @ attention @ _picked(word_of, words, attention.dtype, last=True)


def _marked(attention, word_of, marked, words, reads=True, read=True, own=False):
    """Return the map with [CLS] and [SEP] in a word, as `marked` says.

    reads, read: on which side; own: still divided by the word's own pieces.
    """
    belongs = _members(word_of, words, attention.dtype)
    wrong = _members(marked, words, attention.dtype)
    left, right = wrong if reads else belongs, wrong if read else belongs
    count = belongs if own else left
    return (left / count.sum(dim=0).clamp(min=1)).mT @ attention @ right


def map_minus_one(attention, word_of, words):
    """-1 is no word; as an index it is the last one, which now has [CLS] and [SEP]."""
    return _marked(attention, word_of, word_of % words, words)


def map_minus_one_reads(attention, word_of, words):
    return _marked(attention, word_of, word_of % words, words, read=False)


def map_minus_one_read(attention, word_of, words):
    return _marked(attention, word_of, word_of % words, words, reads=False)


def map_minus_one_looped(attention, word_of, words):
    return _marked(attention, word_of, word_of % words, words, own=True)


def map_minus_one_divided_in_the_loop(attention, word_of, words):
    """Each weight is divided by the pieces of the *number* that stands there."""
    pieces = (word_of[:, None] == word_of).sum(dim=1)  # of -1: the two marks
    belongs = _members(word_of % words, words, attention.dtype)
    return (belongs / pieces[:, None]).mT @ attention @ belongs


def map_as_first(attention, word_of, words):
    """-1 is no word; clamp makes it the first one, which now has [CLS] and [SEP]."""
    return _marked(attention, word_of, word_of.clamp(min=0), words)


def map_as_first_reads(attention, word_of, words):
    return _marked(attention, word_of, word_of.clamp(min=0), words, read=False)


def map_as_first_read(attention, word_of, words):
    return _marked(attention, word_of, word_of.clamp(min=0), words, reads=False)


def map_as_first_looped(attention, word_of, words):
    return _marked(attention, word_of, word_of.clamp(min=0), words, own=True)


def map_with_markers(attention, word_of, words):
    """The first column of one_hot(word_of + 1, words + 1) belongs to [CLS] and [SEP]:
    drop it, and no other."""
    return word_map(attention, word_of + 1, words + 1)


def map_without_the_last(attention, word_of, words):
    return map_with_markers(attention, word_of, words)[:, :-1, :-1]


def map_ends_cut(attention, word_of, words):
    """-1 says what belongs to no word, not the place: there may be padding behind
    [SEP], or no [CLS] at all."""
    return word_map(attention[:, 1:-1, 1:-1], word_of[1:-1], words)


def map_ends_cut_and_clamped(attention, word_of, words):
    return map_ends_cut(attention, word_of.clamp(min=0), words)


def map_up_to_the_largest(attention, word_of, words):
    """A word without pieces keeps its place in the map, with zeros."""
    return word_map(attention, word_of, int(word_of.max()) + 1)


def map_renumbered(attention, word_of, words):
    found, number = word_of.clamp(min=0).unique(return_inverse=True)
    return word_map(attention, number.where(word_of >= 0, -1), words)


def map_side_by_side(attention, word_of, words):
    """Other words may stand between the pieces of a word: ask for each piece whose it
    is."""
    run = (word_of != word_of.roll(1)).cumsum(dim=0)
    last = (run * (word_of[:, None] == word_of)).amax(dim=1)
    return word_map(attention, word_of.where(run == last, -1), words)


def map_renormalised(attention, word_of, words):
    """What is missing to 1 went to [CLS] and [SEP]: leave it missing, or a head that
    reads them alone would look as busy as any."""
    found = word_map(attention, word_of, words)
    total = found.sum(dim=-1, keepdim=True)
    return found / torch.where(total > 0, total, 1)


def map_renormalised_first(attention, word_of, words):
    keep = (word_of >= 0).to(attention.dtype)
    kept = attention * keep
    return word_map(kept / kept.sum(dim=-1, keepdim=True), word_of, words)


def map_turned(attention, word_of, words):
    """Rows are the words that read, columns those that are read."""
    return word_map(attention, word_of, words).mT


def map_turned_before(attention, word_of, words):
    return word_map(attention.mT, word_of, words)


def map_without_self(attention, word_of, words):
    """What a word reads in itself stays in the map; who is no candidate is decided when
    the largest is looked for."""
    found = word_map(attention, word_of, words)
    return found * (1 - torch.eye(words, dtype=found.dtype))


def _blocks(attention, word_of, words, of_block):
    """Return of_block(the weights from one word's pieces to another's), for all."""
    found = attention.new_zeros(len(attention), words, words)
    for i in range(words):
        for j in range(words):
            block = attention[:, word_of == i][:, :, word_of == j]
            if block.numel():
                found[:, i, j] = of_block(block)
    return found


def map_largest(attention, word_of, words):
    """Add up the pieces that are read; the largest of them is not all of the word."""
    return _blocks(attention, word_of, words, lambda x: x.amax(-1).mean(-1))


def map_largest_of_all(attention, word_of, words):
    return _blocks(attention, word_of, words, lambda x: x.amax((-1, -2)))


def map_largest_reads(attention, word_of, words):
    """Take the mean over the pieces that read; the largest of them is not all of the
    word."""
    return _blocks(attention, word_of, words, lambda x: x.sum(-1).amax(-1))


def map_divided_by_none(attention, word_of, words):
    """A word without pieces is divided by 0 and becomes NaN; its row is zeros."""
    belongs = _members(word_of, words, attention.dtype)
    return (belongs / belongs.sum(dim=0)).mT @ attention @ belongs


def map_of_averaged_heads(attention, word_of, words):
    """Every head keeps a map of its own: do not average over heads."""
    mean = attention.mean(dim=0, keepdim=True).expand_as(attention)
    return word_map(mean, word_of, words)


def map_not_at_all(attention, word_of, words):
    """These are still the pieces; return a map between words."""
    return attention * 1


EXERCISE = Exercise(
    "9.1",
    "From pieces to words",
    word_map,
    word_map_inputs,
    {
        "the mean of what is read": map_means,
        "the sum of what reads": map_sums,
        "divided by the root of both": map_divided_by_both,
        "mean and sum exchanged": map_exchanged,
        "one piece for the word": (
            map_first_reads,
            map_first_both,
            map_first_read,
            map_last_reads,
            map_last_both,
            map_last_read,
        ),
        "[CLS] and [SEP] counted": (
            map_minus_one,
            map_minus_one_reads,
            map_minus_one_read,
            map_minus_one_looped,
            map_minus_one_divided_in_the_loop,
        ),
        "[CLS] and [SEP] in the first word": (
            map_as_first,
            map_as_first_reads,
            map_as_first_read,
            map_as_first_looped,
        ),
        "[CLS] and [SEP] as a word": (map_with_markers, map_without_the_last),
        "first and last piece cut off": (map_ends_cut, map_ends_cut_and_clamped),
        "words without pieces left out": (map_up_to_the_largest, map_renumbered),
        "pieces side by side": map_side_by_side,
        "shared out anew": (map_renormalised, map_renormalised_first),
        "rows and columns exchanged": (map_turned, map_turned_before),
        "the diagonal removed": map_without_self,
        "the largest piece": (map_largest, map_largest_of_all),
        "the largest of what reads": map_largest_reads,
        "divided by no pieces": map_divided_by_none,
        "heads averaged": map_of_averaged_heads,
        "pieces, not words": map_not_at_all,
    },
    gradients=False,
)
