"""Trials of lesson 09: what its exercises are tried with."""

import torch

from .catalogue import trials
from .draws import randn

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
        if seed == 1:  # not contiguous
            attention = attention.mT.contiguous().mT
        yield {"attention": attention, "word_of": torch.tensor(word_of), "words": words}
