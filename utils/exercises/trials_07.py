"""Trials of lesson 07: what its exercises are tried with."""

import torch

from utils.attention import causal_mask

from .catalogue import trials
from .draws import randn


@trials("7.1", gradients=False)
def panels(dtype):
    padded = torch.arange(6) < 4
    masks = [
        causal_mask(5),
        causal_mask(3, 6),
        causal_mask(6) & padded,
        torch.ones(4, 7, dtype=torch.bool),
        causal_mask(4) & causal_mask(4).mT.roll(1, 0),  # the last query sees two keys
        causal_mask(1),
        torch.tensor([[False, False, False], [True, False, True]]),  # query 0 sees none
    ]
    for seed, mask in enumerate(masks):
        heads = 3 if seed % 2 else 1
        scores = 2 * randn(heads, *mask.shape, seed=seed, dtype=dtype)
        yield {"scores": scores, "mask": mask}
    # what is hidden has the largest score, and the memory is in another order
    scores = randn(5, 4, 2, seed=9, dtype=dtype).permute(2, 1, 0)  # (2, 4, 5)
    mask = causal_mask(4, 5)
    yield {"scores": scores.where(mask, scores + 9), "mask": mask}
    for rows in (
        # hidden, and much larger; far below what is hidden; seen by nobody
        [[0, 800, 0], [-150000, -150200, 0], [800, 0, 0]],
        [[1, 2, 3], [1000, 1001, 1002], [-1000, -1001, -1002]],  # exp overflows, is 0
    ):
        yield {"scores": torch.tensor([rows], dtype=dtype), "mask": causal_mask(3)}


@trials("7.2", gradients=False)
def baselines(dtype):
    if dtype != torch.float32:  # marks and masks have no precision
        return
    previous = torch.ones(8, 8, dtype=torch.bool).tril(-1).triu(-1)
    causal, both = causal_mask(8), torch.ones(8, 8, dtype=torch.bool)
    padded = torch.arange(8) < torch.tensor([8, 5, 3])[:, None, None]  # (3, 1, 8)
    real = padded & padded.mT  # padding neither attends nor is attended to
    ids = torch.tensor([[3, 1, 2, 3, 1, 2, 3, 1], [5, 5, 5, 5, 5, 5, 5, 5]])
    same = (ids[:, :, None] == ids[:, None]).tril(-1)
    window = causal & ~causal.tril(-4)
    some = randn(2, 5, 9, seed=1) > 0.8  # not as many queries as keys
    one_word = torch.ones(2, 1, 1, dtype=torch.bool)
    for marks, mask in (
        (previous[None], causal[None]),
        (previous.expand(3, 8, 8), causal & real),
        (same, causal.expand(2, 8, 8)),
        (same | same.mT, window.expand(2, 8, 8)),
        ((previous | previous.mT).expand(3, 8, 8), both & real),
        (some, randn(2, 5, 9, seed=2) > -0.3),
        (some.mT.contiguous().mT, causal_mask(5, 9).expand(2, 5, 9)),
        (torch.tensor([[[False]], [[True]]]), one_word),
    ):
        yield {"marks": marks, "mask": mask}


@trials("7.3", gradients=False)
def honest(dtype):
    """No two heads of a model are equally good; copies may do exactly as well."""
    sizes = [(4, 8, 9), (3, 6, 19), (6, 4, 5), (2, 10, 3), (1, 4, 4), (8, 8, 39)]
    lifts = 0.0, 0.75, 0.25, 2.0, 0.0, 0.5
    for seed, (heads, texts, copies) in enumerate(sizes):
        found = randn(heads, texts, seed=seed, dtype=dtype)
        found[seed % heads] += lifts[seed]
        theirs = randn(copies, heads, texts, seed=seed + 10, dtype=dtype)
        yield {"found": found, "copies": theirs}
    # the best of the first half is the worst of the second; a copy ties; odd number
    rows = [[4, 4, -3, 0, 0], [3, 3, 3, 3, 3], [0, 0, 8, 8, 8]]
    found = torch.tensor(rows, dtype=dtype) / 4
    same = torch.stack([found, found / 2, found.flip(0), found.flip(1)])
    yield {"found": found, "copies": same}
    wide = randn(4, 6, 12, seed=31, dtype=dtype).transpose(0, 1)  # in another order
    yield {"found": wide[0] + 0.125, "copies": wide}
    near = torch.tensor([[0.5] * 4, [0.0] * 4], dtype=dtype)
    nearly = torch.tensor([1, 1, 1, 1 - 2**-10])
    yield {"found": near, "copies": near * nearly[:, None, None]}
