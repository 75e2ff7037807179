"""Exercise 3.3: how much does a head read the previous token?."""

import torch
from torch import Tensor

from utils.exercises.engine import Exercise, randn


def previous_token_score(weights: Tensor) -> Tensor:
    """The reference: weights (heads, L, L) -> (heads,), mean of weights[h, q, q - 1].

    The first query has no previous token and is left out.
    """
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def score_inputs(dtype):
    sizes = [(3, 5), (4, 4), (2, 8), (1, 6), (5, 2)]
    for seed, (heads, length) in enumerate(sizes):
        weights = randn(heads, length, length, seed=seed, dtype=dtype).softmax(dim=-1)
        yield {"weights": weights}
    sharp = (50 * randn(3, 5, 5, seed=5, dtype=dtype)).softmax(dim=-1)
    yield {"weights": sharp.transpose(0, 1).contiguous().transpose(0, 1)}
    # as a layer returns them in training: dropped out, so rows need not sum to 1
    kept = randn(3, 6, 6, seed=7, dtype=dtype) > 0
    yield {"weights": 2 * kept * (4 * randn(3, 6, 6, seed=6, dtype=dtype)).softmax(-1)}


def score_next(weights):
    """Queries are rows: the previous token lies below the diagonal."""
    return weights.diagonal(offset=1, dim1=-2, dim2=-1).mean(dim=-1)


def score_self(weights):
    """That is the diagonal; the previous token lies below it."""
    return weights.diagonal(dim1=-2, dim2=-1).mean(dim=-1)


def score_all_queries(weights):
    """The first query has no previous token: divide by one less."""
    diagonal = weights.diagonal(offset=-1, dim1=-2, dim2=-1)
    return diagonal.sum(dim=-1) / weights.shape[-1]


def score_averaged(weights):
    """One number for all; each head has its own."""
    return previous_token_score(weights).mean()


def score_averaged_maps(weights):
    """The heads were mixed before they were measured."""
    return previous_token_score(weights.mean(dim=0, keepdim=True))


def score_per_query(weights):
    """Take the mean over the queries."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1)


def score_without_last(weights):
    """range(1, L - 1) ends before the last query, which has a previous token, too."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1)[:, :-1].mean(dim=-1)


def score_without_last_over_all(weights):
    diagonal = weights.diagonal(offset=-1, dim1=-2, dim2=-1)
    return diagonal[:, :-1].sum(dim=-1) / diagonal.shape[-1]


def score_over_the_matrix(weights):
    """The mean is over the L - 1 queries, not over L * L numbers, most of them 0."""
    return weights.tril(-1).triu(-1).mean(dim=(-2, -1))


def score_of_a_block(weights):
    """Two slices take a block; only its diagonal is [q, q - 1]."""
    return weights[:, 1:, :-1].mean(dim=(-2, -1))


def score_rows_to_one(weights):
    """Take the weights as they are: rows with dropout need not sum to 1."""
    return previous_token_score(weights / weights.sum(dim=-1, keepdim=True))


def score_sum(weights):
    """A sum grows with the sentence: take the mean over the queries."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).sum(dim=-1)


def score_two_back(weights):
    """offset=-2 is the token before the previous one."""
    return weights.diagonal(offset=-2, dim1=-2, dim2=-1).mean(dim=-1)


def score_all_before(weights):
    """That is the weight on all earlier tokens, not on the one before."""
    return weights.tril(-1).sum(dim=-1)[:, 1:].mean(dim=-1)


def score_wraps_round(weights):
    """For q = 0 the index q - 1 is -1, the last key: start at the second query."""
    queries = torch.arange(weights.shape[-1])
    return weights[:, queries, queries - 1].mean(dim=-1)


def _hits(weights):
    """Whether the favourite key of each query but the first is the one before it."""
    before = torch.arange(weights.shape[-1] - 1)
    return (weights.argmax(dim=-1)[:, 1:] == before).to(weights.dtype)


def score_share_of_favourites(weights):
    """How often it is the favourite says nothing of how much: take the mean weight."""
    return _hits(weights).mean(dim=-1)


def score_share_of_favourites_single(weights):
    return score_share_of_favourites(weights).float()


def score_count_of_favourites(weights):
    return _hits(weights).sum(dim=-1)


def score_count_of_favourites_whole(weights):
    return _hits(weights).long().sum(dim=-1)


def score_share_over_all_queries(weights):
    return _hits(weights).sum(dim=-1) / weights.shape[-1]


def score_best_query(weights):
    """The largest weight on the previous token is that of one query: take the mean."""
    return weights.diagonal(offset=-1, dim1=-2, dim2=-1).amax(dim=-1)


def score_heads_as_queries(weights):
    """Those are heads and queries."""
    return weights.diagonal(offset=-1, dim1=0, dim2=1).mean(dim=-1)


EXERCISE = Exercise(
    "3.3",
    "How much does a head read the previous token?",
    previous_token_score,
    score_inputs,
    {
        "the next token": score_next,
        "two tokens back": score_two_back,
        "all earlier tokens": score_all_before,
        "the first query wraps round": score_wraps_round,
        "a sum instead of a mean": score_sum,
        "the last query left out": (score_without_last, score_without_last_over_all),
        "mean over the whole matrix": score_over_the_matrix,
        "mean over a block": score_of_a_block,
        "rows divided by their sums": score_rows_to_one,
        "the token itself": score_self,
        "mean over all queries": score_all_queries,
        "share of favourites": (
            score_share_of_favourites,
            score_share_of_favourites_single,
            score_count_of_favourites,
            score_count_of_favourites_whole,
            score_share_over_all_queries,
        ),
        "the best query": score_best_query,
        "averaged heads": score_averaged,
        "averaged maps": score_averaged_maps,
        "one number per query": score_per_query,
        "diagonal of the first two axes": score_heads_as_queries,
    },
    gradients=False,
)
