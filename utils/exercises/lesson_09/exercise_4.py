"""Exercise 9.4: how many of a sentence's neighbours stay."""

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.exercises.engine import Exercise, randn


def _similar(x, y=None):
    """Return the cosines between all rows; of a row and itself, minus infinity."""
    x = F.normalize(x, dim=-1)
    y = x if y is None else F.normalize(y, dim=-1)
    itself = torch.eye(len(x), dtype=torch.bool)
    return (x @ y.mT).masked_fill(itself, -torch.inf)


def _nearest(similar, k):
    """Return whether j is one of the k nearest of i: bool (n, n)."""
    best = similar.topk(k, dim=-1).indices
    return torch.zeros_like(similar, dtype=torch.bool).scatter(1, best, True)


def kept(before: Tensor, after: Tensor, k: int) -> Tensor:
    """The reference: for each sentence, the share of its k nearest that stay."""
    near, still = (_nearest(_similar(x), k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def kept_inputs(dtype):
    """Yield trials in which no rounding decides who is the k-th nearest."""
    if dtype != torch.float32:
        return
    sizes = [(12, 6, 3, 0.3), (60, 8, 5, 0.5), (8, 4, 1, 0.3), (20, 16, 4, 1.5)]
    sizes += [(6, 3, 5, 0.5), (25, 5, 7, 0.2)]
    for seed, (count, dim, k, noise) in zip((0, 50, 2, 3, 4, 298), sizes):
        lengths = 0.3 + torch.arange(count)[:, None] % 4  # not of length 1
        before = randn(count, dim, seed=seed, dtype=dtype) + 0.4
        after = before + noise * randn(count, dim, seed=50 + seed, dtype=dtype)
        if seed == 50:  # nothing may be added to a length
            lengths[::3] = 0.01
        if seed == 3:  # neither contiguous
            before, after = before.mT.contiguous().mT, after.mT.contiguous().mT
        yield {"before": before * lengths, "after": after * lengths.flip(0), "k": k}
    # two that point exactly the same way, until they part
    before = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    after = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
    yield {"before": before, "after": after, "k": 1}
    # nearly opposite: a neighbour all the same, as there are but two others
    before = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.0, 1.0]])
    after = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    yield {"before": before, "after": after, "k": 2}


def kept_itself(before, after, k):
    """Each sentence is its own nearest neighbour, before and after: leave it out."""
    near, still = (
        _nearest(_similar(x).fill_diagonal_(2.0), k) for x in (before, after)
    )
    return (near & still).sum(dim=-1) / k


def kept_itself_as_found(before, after, k):
    directions = (F.normalize(x, dim=-1) for x in (before, after))
    near, still = (_nearest(x @ x.mT, k) for x in directions)
    return (near & still).sum(dim=-1) / k


def kept_itself_and_more(before, after, k):
    size = min(k + 1, len(before))
    near, still = (
        _nearest(_similar(x).fill_diagonal_(2.0), size) for x in (before, after)
    )
    return (near & still).sum(dim=-1) / size


def kept_itself_over_k(before, after, k):
    size = min(k + 1, len(before))
    near, still = (
        _nearest(_similar(x).fill_diagonal_(2.0), size) for x in (before, after)
    )
    return (near & still).sum(dim=-1) / k


def kept_itself_before(before, after, k):
    near = _nearest(_similar(before).fill_diagonal_(2.0), k)
    return (near & _nearest(_similar(after), k)).sum(dim=-1) / k


def kept_itself_after(before, after, k):
    still = _nearest(_similar(after).fill_diagonal_(2.0), k)
    return (_nearest(_similar(before), k) & still).sum(dim=-1) / k


def kept_without_twins(before, after, k):
    """Another sentence may point the same way, and is a neighbour: leave out the
    diagonal, not every cosine of 1."""

    def similar(x):
        found = _similar(x)
        return found.masked_fill(found > 0.9999, -torch.inf)

    near, still = (_nearest(similar(x), k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def kept_after_the_first(before, after, k):
    """The first of the list is not always the sentence itself: another may point the
    same way. Put -inf on the diagonal."""
    near, still = (_nearest_after_the_first(x, k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def _nearest_after_the_first(x, k):
    x = F.normalize(x, dim=-1)
    similar = x @ x.mT
    best = similar.topk(k + 1, dim=-1).indices[:, 1:]
    return torch.zeros_like(similar, dtype=torch.bool).scatter(1, best, True)


def kept_after_the_first_sorted(before, after, k):
    best = []
    for x in (before, after):
        x = F.normalize(x.double(), dim=-1)
        best.append((x @ x.mT).argsort(dim=-1, descending=True)[:, 1 : k + 1])
    return (best[0][:, :, None] == best[1][:, None]).any(dim=-1).float().mean(dim=-1)


def kept_zero_diagonal(before, after, k):
    """A cosine of 0 is not the smallest: many are below. Put -inf on the diagonal."""
    near, still = (
        _nearest(_similar(x).fill_diagonal_(0.0), k) for x in (before, after)
    )
    return (near & still).sum(dim=-1) / k


def kept_low_diagonal(before, after, k):
    near, still = (
        _nearest(_similar(x).fill_diagonal_(-0.5), k) for x in (before, after)
    )
    return (near & still).sum(dim=-1) / k


def _dots(x):
    return (x @ x.mT).fill_diagonal_(-torch.inf)


def kept_dot(before, after, k):
    """The vectors are not of length 1, and long ones win every dot product: divide by
    the lengths."""
    near, still = (_nearest(_dots(x), k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def kept_dot_before(before, after, k):
    near, still = _nearest(_dots(before), k), _nearest(_similar(after), k)
    return (near & still).sum(dim=-1) / k


def kept_dot_after(before, after, k):
    near, still = _nearest(_similar(before), k), _nearest(_dots(after), k)
    return (near & still).sum(dim=-1) / k


def kept_by_features(before, after, k):
    """That divides each feature by its size over the sentences: divide each vector by
    its own length, along the last axis."""
    near, still = (_nearest(_dots(F.normalize(x, dim=0)), k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def kept_without_signs(before, after, k):
    """Vectors that point in opposite ways are no neighbours: keep the sign of the
    cosine."""

    def similar(x):
        return _similar(x).abs().fill_diagonal_(-torch.inf)

    near, still = (_nearest(similar(x), k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def kept_centred(before, after, k):
    """A cosine is asked for, without subtracting a mean; that would be a
    correlation."""
    return kept(before - before.mean(dim=0), after - after.mean(dim=0), k)


def kept_correlated(before, after, k):
    before, after = (x - x.mean(dim=-1, keepdim=True) for x in (before, after))
    return kept(before, after, k)


def kept_distance(before, after, k):
    """The vectors are not of length 1, and two that point the same way may lie far
    apart: compare directions, by the cosine."""

    def similar(x):
        itself = torch.eye(len(x), dtype=torch.bool)
        return (-torch.cdist(x, x)).masked_fill(itself, -torch.inf)

    near, still = (_nearest(similar(x), k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def kept_in_order(before, after, k):
    """Two neighbours that change places are still both neighbours: compare sets."""
    best = [_similar(x).topk(k, dim=-1).indices for x in (before, after)]
    return (best[0] == best[1]).float().mean(dim=-1)


def kept_farthest(before, after, k):
    """Those are the least similar ones; neighbours are the most similar."""

    def far(x):
        return -_similar(x).masked_fill(torch.eye(len(x), dtype=torch.bool), torch.inf)

    near, still = (_nearest(far(x), k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def kept_farthest_of_all(before, after, k):
    near, still = (_nearest(-_similar(x), k) for x in (before, after))
    return (near & still).sum(dim=-1) / k


def kept_anywhere(before, after, k):
    """`isin` looks for a number in *all* rows: compare row by row."""
    best = [_similar(x).topk(k, dim=-1).indices for x in (before, after)]
    return torch.isin(*best).float().mean(dim=-1)


def kept_any(before, after, k):
    """A share is asked for: how many stay, not whether one does, or all do."""
    return (kept(before, after, k) > 0).float()


def kept_all(before, after, k):
    return (kept(before, after, k) == 1).float()


def kept_crossed(before, after, k):
    """Compare vectors of one model with each other: before with before, and after with
    after."""
    near, still = _nearest(_similar(before), k), _nearest(_similar(before, after), k)
    return (near & still).sum(dim=-1) / k


def kept_crossed_after(before, after, k):
    near, still = _nearest(_similar(before), k), _nearest(_similar(after, before), k)
    return (near & still).sum(dim=-1) / k


def kept_of_union(before, after, k):
    """That is the share of all that were neighbours before or after; asked is the share
    of the k that were neighbours before."""
    near, still = (_nearest(_similar(x), k) for x in (before, after))
    return (near & still).sum(dim=-1) / (near | still).sum(dim=-1)


def kept_mean(before, after, k):
    """One number for each sentence; take the mean later."""
    return kept(before, after, k).mean()


def kept_counted(before, after, k):
    """Those are counts; divide by k."""
    return kept(before, after, k) * k


def kept_lost(before, after, k):
    """That is the share that left."""
    return 1 - kept(before, after, k)


def kept_nearest_only(before, after, k):
    """That asks for the nearest one alone; asked are the k nearest."""
    return kept(before, after, 1)


def kept_nearest_stays(before, after, k):
    first = _similar(before).argmax(dim=-1, keepdim=True)
    return _nearest(_similar(after), k).gather(1, first)[:, 0].float()


def kept_one_too_few(before, after, k):
    """One neighbour too few: after the sentence itself is left out, k must remain."""
    near, still = (_nearest(_similar(x), max(k - 1, 1)) for x in (before, after))
    return (near & still).sum(dim=-1) / max(k - 1, 1)


def kept_columns(before, after, k):
    """Nearest *of whom*? In row i stand the similarities of sentence i: choose along
    the last axis, and count along it."""
    near, still = (_nearest(_similar(x), k).mT for x in (before, after))
    return (near & still).sum(dim=-1) / k


EXERCISE = Exercise(
    "9.4",
    "Who keeps its neighbours?",
    kept,
    kept_inputs,
    {
        "itself among its neighbours": (
            kept_itself,
            kept_itself_as_found,
            kept_itself_and_more,
            kept_itself_over_k,
            kept_itself_before,
            kept_itself_after,
        ),
        "the first of the list left out": (
            kept_after_the_first,
            kept_after_the_first_sorted,
        ),
        "twins left out": kept_without_twins,
        "zeros on the diagonal": (kept_zero_diagonal, kept_low_diagonal),
        "dot products": (kept_dot, kept_dot_before, kept_dot_after),
        "features divided, not sentences": kept_by_features,
        "signs lost": kept_without_signs,
        "a mean subtracted": (kept_centred, kept_correlated),
        "distances of vectors of any length": kept_distance,
        "the order counted": kept_in_order,
        "the neighbours of all": kept_anywhere,
        "yes or no": (kept_any, kept_all),
        "the farthest": (kept_farthest, kept_farthest_of_all),
        "two models mixed": (kept_crossed, kept_crossed_after),
        "the share of the union": kept_of_union,
        "the mean of all": kept_mean,
        "counts": kept_counted,
        "the share that left": kept_lost,
        "the nearest only": (kept_nearest_only, kept_nearest_stays),
        "one too few": kept_one_too_few,
        "along the other axis": kept_columns,
    },
    gradients=False,
)
