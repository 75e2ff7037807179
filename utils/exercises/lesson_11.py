"""Exercises of lesson 11: the next token, an induction score, an honest choice."""

import torch
from torch import Tensor

from utils.exercises.engine import Exercise, randn

IMPORTS = """\
import torch
import torch.nn.functional as F
"""

# --- 11.1: the most probable next tokens, from logits ---------------------------------


def next_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The reference: softmax over the vocabulary at the last position; the k largest.

    logits (batch, length, vocab) -> probabilities (batch, k), ids (batch, k).
    """
    probabilities, ids = logits[:, -1].softmax(dim=-1).topk(k)
    return probabilities, ids


def logit_trials(dtype):
    shapes = [(1, 3, 4, 2), (2, 5, 11, 3), (3, 1, 6, 6), (4, 4, 9, 1), (2, 8, 8, 4)]
    for seed, (batch, length, vocab, k) in enumerate(shapes):
        yield {
            "logits": 3 * randn(batch, length, vocab, seed=seed, dtype=dtype),
            "k": k,
        }
    # far above 0: exp() of such a logit is inf
    yield {"logits": 800 + 3 * randn(2, 4, 5, seed=9, dtype=dtype), "k": 2}


probable = Exercise(
    "11.1", "The most probable next tokens", next_tokens, logit_trials, gradients=False
)


def _chosen(logits, k, at=-1, how=lambda x: x.softmax(-1), largest=True):
    probabilities, ids = how(logits)[:, at].topk(k, largest=largest)
    return probabilities, ids


probable.wrong(
    "the first position",
    "The logits of a position are for the token after it. The next token of the text "
    "comes from the last position.",
    lambda logits, k: _chosen(logits, k, at=0),
)
probable.wrong(
    "the last position but one",
    "There the model predicts the last token of the text, which is already known.",
    lambda logits, k: _chosen(logits, k, at=max(logits.shape[1] - 2, 0)),
)
probable.wrong(
    "all positions",
    "Only the last position predicts the next token of the text.",
    lambda logits, k: tuple(logits.softmax(-1).topk(k)),
    lambda logits, k: _chosen(logits.softmax(-1).mean(1, keepdim=True), k, how=_same),
    lambda logits, k: _chosen(logits.mean(1, keepdim=True), k),
)
probable.wrong(
    "softmax over the positions",
    "The probabilities of all tokens at one position sum to 1: softmax over the last "
    "axis, the vocabulary.",
    lambda logits, k: _chosen(logits, k, how=lambda x: x.softmax(dim=1)),
)
probable.wrong(
    "softmax over the texts",
    "Each text has its own probabilities: softmax over the last axis, the vocabulary.",
    lambda logits, k: _chosen(logits, k, how=lambda x: x.softmax(dim=0)),
)
probable.wrong(
    "softmax after the choice",
    "The k probabilities need not sum to 1: the other tokens have some, too. Softmax "
    "first, over the whole vocabulary, and choose then.",
    lambda logits, k: (
        logits[:, -1].topk(k).values.softmax(-1),
        logits[:, -1].topk(k).indices,
    ),
    lambda logits, k: (
        next_tokens(logits, k)[0] / next_tokens(logits, k)[0].sum(-1, keepdim=True),
        next_tokens(logits, k)[1],
    ),
)


def _same(x: Tensor) -> Tensor:
    return x


def _overflowing(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(dim=-1, keepdim=True)


probable.wrong(
    "logits instead of probabilities",
    "Logits are no probabilities: they can be negative. Take their softmax.",
    lambda logits, k: _chosen(logits, k, how=_same),
)
probable.wrong(
    "logarithms of probabilities",
    "Probabilities are asked for, not their logarithms.",
    lambda logits, k: _chosen(logits, k, how=lambda x: x.log_softmax(-1)),
)
probable.wrong(
    "a softmax that overflows",
    "exp of a large logit is inf, and inf / inf is NaN. Use softmax, which subtracts "
    "the largest logit first (exercise 1.1).",
    lambda logits, k: _chosen(logits, k, how=_overflowing),
)
probable.wrong(
    "a sigmoid",
    "A sigmoid looks at each token alone; the probabilities of all tokens sum to 1.",
    lambda logits, k: _chosen(logits, k, how=torch.sigmoid),
)
probable.wrong(
    "the least probable ones",
    "The most probable tokens are asked for.",
    lambda logits, k: _chosen(logits, k, largest=False),
)
probable.wrong(
    "the smallest first",
    "The most probable token comes first.",
    lambda logits, k: tuple(x.flip(-1) for x in next_tokens(logits, k)),
)
probable.wrong(
    "ids first",
    "Return the probabilities first, then the ids.",
    lambda logits, k: next_tokens(logits, k)[::-1],
)
probable.wrong(
    "the first text for all",
    "Each text of the batch has its own next tokens.",
    lambda logits, k: tuple(
        x[:1].expand(len(logits), -1).clone() for x in next_tokens(logits, k)
    ),
)
probable.wrong(
    "the first text alone",
    "Return a row for each text of the batch.",
    lambda logits, k: tuple(x[0] for x in next_tokens(logits, k)),
)

# --- 11.2: the induction score of a text that begins again ----------------------------


def induction_score(weights: Tensor, period: int) -> Tensor:
    """The reference: the mean weight of a query on what followed its earlier copy.

    weights (heads, length, length); tokens i and i + period are equal. The key is
    period - 1 before the query. The first query that counts is `period`.
    """
    queries = torch.arange(period, weights.shape[-1])
    return weights[:, queries, queries - period + 1].mean(dim=-1)


def copies(dtype):
    shapes = [(1, 6, 3), (3, 10, 5), (2, 8, 6), (4, 16, 8), (2, 7, 4), (3, 12, 9)]
    for seed, (heads, length, period) in enumerate(shapes):
        scores = 2 * randn(heads, length, length, seed=20 + seed, dtype=dtype)
        hidden = torch.ones(length, length).triu(1).bool()
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        yield {"weights": weights, "period": period}
    # without a causal mask: keys after the query have weights, too
    weights = 2 * randn(2, 9, 9, seed=30, dtype=dtype)
    yield {"weights": weights.softmax(dim=-1), "period": 5}


inductive = Exercise(
    "11.2", "The score of an induction head", induction_score, copies, gradients=False
)


def _stripe(weights, period, back, first=None, last=None):
    """Return the mean weight on the key `back` before the queries from `first` on."""
    first = period if first is None else first
    queries = torch.arange(max(first, back), weights.shape[-1])[:last]
    return weights[:, queries, queries - back].mean(dim=-1)


inductive.wrong(
    "the earlier copy itself",
    "An induction head attends to the token after the earlier copy: one key on.",
    lambda weights, period: _stripe(weights, period, period),
)
inductive.wrong(
    "the token before the earlier copy",
    "The token after the earlier copy is asked for; this is the one before it.",
    lambda weights, period: (
        weights.new_tensor(0)
        + (
            _stripe(weights, period, period + 1)
            if weights.shape[-1] > period + 1
            else weights[:, 0, 0]
        )
    ),
)
inductive.wrong(
    "two after the earlier copy",
    "That is two keys after the earlier copy; one key after it is asked for.",
    lambda weights, period: _stripe(weights, period, period - 2),
)
inductive.wrong(
    "a query of the first copy",
    "The diagonal begins one query too early: query `period - 1` attends to key 0, but "
    "its token has no earlier copy.",
    lambda weights, period: _stripe(weights, period, period - 1, first=period - 1),
)
inductive.wrong(
    "the first query left out",
    "Query `period` is the first one that has an earlier copy: it counts, too.",
    lambda weights, period: _stripe(weights, period, period - 1, first=period + 1),
)
inductive.wrong(
    "the last query left out",
    "The last query has an earlier copy, and a token after it: it counts, too.",
    lambda weights, period: _stripe(weights, period, period - 1, last=-1),
)
inductive.wrong(
    "all queries in the mean",
    "Queries without an earlier copy do not count: divide by length - period.",
    lambda weights, period: (
        induction_score(weights, period)
        * (weights.shape[-1] - period)
        / weights.shape[-1]
    ),
)
inductive.wrong(
    "divided by the period",
    "The second copy may be cut off: length - period queries have an earlier copy.",
    lambda weights, period: (
        induction_score(weights, period) * (weights.shape[-1] - period) / period
    ),
)
inductive.wrong(
    "the sum of the weights",
    "The mean over the queries is asked for.",
    lambda weights, period: (
        induction_score(weights, period) * (weights.shape[-1] - period)
    ),
)
inductive.wrong(
    "half the length as the period",
    "The second copy may be cut off: take `period`, not half the length.",
    lambda weights, period: induction_score(weights, weights.shape[-1] // 2),
)
inductive.wrong(
    "rows and columns exchanged",
    "Rows are the queries: weights[head, query, key].",
    lambda weights, period: induction_score(weights.mT, period),
)
inductive.wrong(
    "the key after the query",
    "The token after the query's own token in the first copy is asked for: its key is "
    "period - 1 before the query.",
    lambda weights, period: weights.diagonal(1, 1, 2).mean(-1),
    lambda weights, period: (
        weights[:, period:, period:].diagonal(1, 1, 2).sum(-1)
        / max(weights.shape[-1] - period - 1, 1)
    ),
)
inductive.wrong(
    "the mean over the heads",
    "Return a score for each head.",
    lambda weights, period: induction_score(weights, period).mean(),
    lambda weights, period: induction_score(weights.mean(0, keepdim=True), period),
)
inductive.wrong(
    "the largest weight",
    "The mean over the queries is asked for, not the largest weight.",
    lambda weights, period: weights.diagonal(1 - period, 1, 2)[:, 1:].amax(-1),
)


@inductive.wrong(
    "how often it wins",
    "The mean weight is asked for, not how often this key has the largest one.",
)
def _(weights, period):
    after = torch.arange(1, weights.shape[-1] - period + 1)
    return (weights[:, period:].argmax(-1) == after).to(weights.dtype).mean(-1)


# --- 11.3: heads chosen on some texts and reported on others --------------------------


def choose_and_report(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The reference: the k best heads of the first half, with means on the second.

    scores (texts, layers, heads) -> pairs (k, 2) of layer and head, reported (k,).
    """
    return _report(scores, k, slice(len(scores) // 2), slice(len(scores) // 2, None))


def _report(scores, k, chosen_on, reported_on, largest=True):
    chosen = scores[chosen_on].mean(dim=0).flatten().topk(k, largest=largest).indices
    reported = scores[reported_on].mean(dim=0).flatten()[chosen]
    pairs = torch.stack([chosen // scores.shape[2], chosen % scores.shape[2]], dim=1)
    return pairs, reported


def score_trials(dtype):
    shapes = [(4, 2, 3, 2), (6, 3, 2, 3), (8, 4, 5, 4), (2, 5, 3, 1), (5, 3, 4, 12)]
    for seed, (texts, layers, heads, k) in enumerate(shapes):
        each = randn(texts, layers, heads, seed=40 + seed, dtype=dtype)
        scores = each + 0.5 * randn(layers, heads, seed=50 + seed, dtype=dtype)
        yield {"scores": scores.sigmoid(), "k": k}


honest = Exercise(
    "11.3", "Choose on one half", choose_and_report, score_trials, gradients=False
)
FIRST = "The heads are chosen on the first half of the texts: texts // 2 of them."
SECOND = "Report the mean over the other half, on which nothing was chosen."
ALL = slice(None)


def _halves(chosen_on, reported_on):
    """Return the answer that chooses and reports on other texts: (texts) -> slice."""

    def other(scores, k):
        return _report(scores, k, chosen_on(len(scores)), reported_on(len(scores)))

    return other


def _first(n):
    return slice(n // 2)


def _second(n):
    return slice(n // 2, None)


def _all(n):
    return ALL


honest.wrong("chosen on all texts", FIRST, _halves(_all, _second), _halves(_all, _all))
honest.wrong("chosen on the other half", FIRST, _halves(_second, _second))
honest.wrong("the halves exchanged", FIRST, _halves(_second, _first))
honest.wrong("reported on the half that chose", SECOND, _halves(_first, _first))
honest.wrong("reported on all texts", SECOND, _halves(_first, _all))
honest.wrong(
    "the text in the middle left out or counted twice",
    "With 5 texts, the first 2 choose, and the last 3 report.",
    _halves(lambda n: slice((n + 1) // 2), lambda n: slice((n + 1) // 2, None)),
    _halves(_first, lambda n: slice((n + 1) // 2, None)),
    _halves(lambda n: slice((n + 1) // 2), _second),
)
honest.wrong(
    "every second text",
    "The first half of the texts chooses, the second half reports.",
    _halves(lambda n: slice(0, None, 2), lambda n: slice(1, None, 2)),
    _halves(lambda n: slice(1, None, 2), lambda n: slice(0, None, 2)),
)


def _flat(scores, k):
    pairs = choose_and_report(scores, k)[0]
    return pairs[:, 0] * scores.shape[2] + pairs[:, 1]


@honest.wrong(
    "divided by the number of layers",
    "The flat index is layer * heads + head: divide by the number of heads.",
)
def _(scores, k):
    layers, flat = scores.shape[1], _flat(scores, k)
    pairs = torch.stack([flat // layers, flat % layers], dim=1)
    return pairs, choose_and_report(scores, k)[1]


honest.wrong(
    "layer and head exchanged",
    "Each pair is (layer, head), in this order.",
    lambda scores, k: (
        choose_and_report(scores, k)[0].flip(1),
        choose_and_report(scores, k)[1],
    ),
)
honest.wrong(
    "the pairs as columns",
    "pairs has a row for each head: (k, 2), not (2, k).",
    lambda scores, k: (
        choose_and_report(scores, k)[0].mT,
        choose_and_report(scores, k)[1],
    ),
)
honest.wrong(
    "the means first",
    "Return the pairs first, then their means.",
    lambda scores, k: choose_and_report(scores, k)[::-1],
)
honest.wrong(
    "the worst of them first",
    "The best head of the first half comes first.",
    lambda scores, k: tuple(x.flip(0) for x in choose_and_report(scores, k)),
)


@honest.wrong(
    "divided without rounding down",
    "A layer is a whole number: use //, which divides and rounds down.",
)
def _(scores, k):
    heads, flat = scores.shape[2], _flat(scores, k)
    pairs = torch.stack([flat / heads, flat % heads], dim=1)
    return pairs, choose_and_report(scores, k)[1]


honest.wrong(
    "flat indices",
    "Return the layer and the head of each: (k, 2).",
    lambda scores, k: (_flat(scores, k), choose_and_report(scores, k)[1]),
)


@honest.wrong(
    "sorted by the report",
    "The order is that of the choice: the best head of the first half comes first. "
    "Sorting by the other half chooses again.",
)
def _(scores, k):
    pairs, reported = choose_and_report(scores, k)
    order = reported.argsort(descending=True)
    return pairs[order], reported[order]


@honest.wrong(
    "the best numbers of the other half",
    "Report the heads that were chosen; the best ones of the other half are others.",
)
def _(scores, k):
    best = scores[len(scores) // 2 :].mean(dim=0).flatten().topk(k).values
    return choose_and_report(scores, k)[0], best


@honest.wrong(
    "the best of each layer",
    "Choose the best k of all heads: a layer may have several, or none.",
)
def _(scores, k):
    half = len(scores) // 2
    best = scores[:half].mean(dim=0).argmax(dim=-1)  # (layers,)
    pairs = torch.stack([torch.arange(len(best)), best], dim=1)[:k]
    return pairs, scores[half:].mean(dim=0)[pairs[:, 0], pairs[:, 1]]


honest.wrong(
    "the lowest scores",
    "Choose the heads with the highest means.",
    lambda scores, k: _report(
        scores, k, _first(len(scores)), _second(len(scores)), largest=False
    ),
)
honest.wrong(
    "the largest of the texts",
    "Choose and report by the mean over the texts, not by the best text.",
    lambda scores, k: _of_each(scores, k, lambda x: x.amax(0), lambda x: x.amax(0)),
    lambda scores, k: _of_each(scores, k, lambda x: x.amax(0), lambda x: x.mean(0)),
    lambda scores, k: _of_each(scores, k, lambda x: x.mean(0), lambda x: x.amax(0)),
)
honest.wrong(
    "one text alone",
    "Choose and report by the mean over all texts of the half.",
    lambda scores, k: _of_each(scores, k, lambda x: x[0], lambda x: x[0]),
    lambda scores, k: _of_each(scores, k, lambda x: x[0], lambda x: x.mean(0)),
)
honest.wrong(
    "the sum over the texts",
    "Report the mean over the texts of the other half.",
    lambda scores, k: _of_each(scores, k, lambda x: x.mean(0), lambda x: x.sum(0)),
)


def _of_each(scores, k, choose, report):
    """Return the answer with other means than `mean`."""
    half = len(scores) // 2
    means = torch.stack([choose(scores[:half]), report(scores[half:])])
    return _report(means, k, slice(1), slice(1, 2))


EXERCISES = (probable, inductive, honest)
