"""Trials of lesson 09: what its exercises are tried with."""

import torch
from torch import Tensor

from .catalogue import trials
from .draws import Named, each, integers, randn, strided

WORDS = [  # heads, the word of each token, words
    (3, [-1, 0, 0, 1, -1], 2),
    (2, [-1, 0, 1, 1, 1, 2, 3, 3, -1], 4),
    (1, [-1, 0, 1, 2, -1], 3),
    (4, [-1, 0, 0, 0, -1], 1),
    (2, [-1, 0, 2, 2, 3, -1], 4),  # word 1 has no token
    (5, [-1, 0, 1, 1, 2, 2, 2, 4, -1, -1, -1], 6),  # padding; two without tokens
    (2, [-1, 0, 0, 0, 0, 1, -1], 2),
    (3, [0, 1, 1, 2], 3),  # no [CLS], no [SEP]
    (2, [-1, 0, 1, 0, -1], 2),  # word 0 stands on both sides of word 1
]


@trials("9.1", gradients=False)
def maps(dtype):
    for seed, (heads, word_of, words) in enumerate(WORDS):
        scores = randn(heads, len(word_of), len(word_of), seed=seed, dtype=dtype)
        attention = (2 * scores).softmax(dim=-1)
        attention = strided(attention) if seed == 1 else attention
        yield {"attention": attention, "word_of": torch.tensor(word_of), "words": words}


class Report(Named):
    """A function report(first, other) that refuses what is no table.

    Its number is made of the accuracies (heads,) on `first`, on `other` and on both.
    """

    def __call__(self, first: Tensor, other: Tensor) -> float:
        parts = first, other
        tables = all(isinstance(x, Tensor) and x.dim() == 2 and len(x) for x in parts)
        if not tables or first.shape[1] != other.shape[1] or not first.shape[1]:
            raise ValueError(
                "report takes two tensors (arcs, heads), each with one arc at least "
                "and with the same heads."
            )
        both = torch.cat(parts)
        return float(self.function(*(x.double().mean(dim=0) for x in (*parts, both))))


class FirstCall:
    """Repeats what `how` takes of the first call: the head, or its honest number."""

    first = None

    def __init__(self, how):
        self.how = how

    def __call__(self, a, b, both):
        self.first = self.first or (a.argmax().item(), b[a.argmax()])
        return self.how(b, *self.first)


REPORTS = {
    "an honest one": lambda a, b, both: b[a.argmax()],
    "one that chooses on the other part": lambda a, b, both: b.max(),
    "one that chooses on both parts": lambda a, b, both: b[both.argmax()],
    "one that reports on the first part": lambda a, b, both: a.max(),
    "one that reports on both parts": lambda a, b, both: both[a.argmax()],
    "one that reports the better number": lambda a, b, both: max(
        a.max(), b[a.argmax()]
    ),
    "one that takes head 0": lambda a, b, both: b[0],
    "one that takes the last head": lambda a, b, both: b[-1],
    "one that takes the head in the middle": lambda a, b, both: b[len(b) // 2],
    "one that takes the worst head of the first part": lambda a, b, both: b[a.argmin()],
    "one that takes the worst head of the other part": lambda a, b, both: b.min(),
    "one that keeps the head it chose at its first call": FirstCall(
        lambda b, head, number: b[min(head, len(b) - 1)]
    ),
    "one that returns the number of its first call again": FirstCall(
        lambda b, head, number: number
    ),
    "one that takes the mean of the heads": lambda a, b, both: b.mean(),
    "one that exchanges the parts": lambda a, b, both: a[b.argmax()],
    "one that lets the other part decide between two": lambda a, b, both: b[
        a.topk(min(2, len(a))).indices
    ].max(),
    "one that takes the mean of both best": lambda a, b, both: (a.max() + b.max()) / 2,
    "an honest one in single precision": lambda a, b, both: b[a.argmax()].float(),
    "one that chooses by the mean of both": lambda a, b, both: b[(a + b).argmax()],
    "an honest one that takes the last of equals": lambda a, b, both: b[
        -1 - a.flip(0).argmax()
    ],
}


trials("9.2", gradients=False)(each("report", Report, REPORTS))


@trials("9.4", gradients=False)
def draws():
    shapes = [(12, 40, 50), (30, 25, 80), (5, 60, 40), (4, 3, 60), (60, 200, 100)]
    for seed, (sentences, arcs, count) in enumerate(shapes):
        generator = torch.Generator().manual_seed(seed)
        sentence = torch.randint(sentences, (arcs,), generator=generator)
        sentence = sentence if seed == 2 else sentence.sort().values
        easy = torch.rand(sentences, generator=generator)[sentence]
        right = torch.rand(arcs, generator=generator) < easy
        drawn = torch.randint(sentences, (count, sentences), generator=generator)
        yield {"right": right, "sentence": sentence, "drawn": drawn}
    few = integers(6, 40, 6, seed=9)
    fewer = torch.tensor([0, 0, 1, 1] + [2] * 96)[:, None].repeat(1, 3)
    two = torch.tensor([[0, 1, 1, 4, 2, 3, 3], [4, 4, 2, 5, 6, 0, 1]])
    for right, sentence, drawn in (
        ([1, 1, 0, 0, 1], [0, 0, 0, 3, 3], few),  # some draws have no arc
        ([1, 1, 1, 0], [0, 0, 0, 1], fewer),  # nearly all have none
        ([1, 1, 1, 0], [0, 1, 1, 4], two),  # fewer draws than sentences
    ):
        right, sentence = torch.tensor(right).bool(), torch.tensor(sentence)
        yield {"right": right, "sentence": sentence, "drawn": drawn}


@trials("9.5", gradients=False)
def vectors():
    """Yield trials in which no rounding decides who is the k-th nearest."""
    dtype = torch.float32
    for seed, count, dim, k, noise in (
        (0, 12, 6, 3, 0.3),
        (50, 60, 8, 5, 0.5),  # nothing may be added to a length
        (2, 8, 4, 1, 0.3),
        (3, 20, 16, 4, 1.5),  # not contiguous
        (4, 6, 3, 5, 0.5),  # all others are neighbours
        (298, 25, 5, 7, 0.2),
        (1365, 12, 6, 3, 0.3),  # half precision would exchange two
    ):
        lengths = 0.3 + torch.arange(count)[:, None] % 4  # not of length 1
        before = randn(count, dim, seed=seed, dtype=dtype) + 0.4
        after = before + noise * randn(count, dim, seed=50 + seed, dtype=dtype)
        if seed == 50:
            lengths[::3] = 0.01
        if seed == 3:
            before, after = strided(before), strided(after)
        yield {"before": before * lengths, "after": after * lengths.flip(0), "k": k}
    # two that point exactly the same way, until they part
    before = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    after = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
    yield {"before": before, "after": after, "k": 1}
    # nearly opposite: a neighbour all the same, as there are but two others
    before = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.0, 1.0]])
    after = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    yield {"before": before, "after": after, "k": 2}


@trials("9.3", gradients=False)
def sentences(dtype):
    sizes = [((3, 5, 4), 4), ((4, 4), 3), ((7,), 5), ((9, 1, 6, 2), 6), ((3, 8), 2)]
    for seed, (lengths, features) in enumerate(sizes):
        longest = max(lengths) + seed % 2  # in some, all sentences have padding
        hidden = randn(len(lengths), longest, features, seed=90 + seed, dtype=dtype)
        mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
        # of different norms, with a common direction; padding can be anything
        hidden = hidden * (1 + torch.arange(longest)[:, None] % 3) + 0.5
        hidden = torch.where(mask[:, :, None], hidden, 50 * hidden.roll(1, 1) - 20)
        if seed == 3:  # padding comes first
            hidden, mask = hidden.flip(1), mask.flip(1)
        if seed == 4:  # a hole in the middle
            mask[1, 4] = False
        yield {"hidden": hidden, "mask": mask}
    # what is added and taken away again loses what stands beside it
    yield {"hidden": torch.where(mask[:, :, None], hidden, 1e30), "mask": mask}
    example = torch.tensor([[[2, 0], [4, 8], [9, -9]]], dtype=dtype)
    yield {"hidden": example, "mask": torch.tensor([[True, True, False]])}
