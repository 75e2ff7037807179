"""Exercises of lesson 11: the next token, induction heads, a head's effect."""

from functools import partial

import torch
from torch import Tensor

from utils.oldex.engine import Exercise, randn

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
probable.wrong(
    "the last text alone",
    "logits[-1] is the last text; the last position of each text is logits[:, -1].",
    lambda logits, k: tuple(logits[-1].softmax(-1).topk(k)),
)
probable.wrong(
    "an axis too many",
    "A slice keeps the axis of the positions: take logits[:, -1], not logits[:, -1:].",
    lambda logits, k: tuple(x[:, None] for x in next_tokens(logits, k)),
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
    shapes += [(2, 5, 4)]  # a single query counts
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
    queries = torch.arange(first, weights.shape[-1])[:last]
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
            _stripe(weights, period, period + 1, first=period + 1)
            if weights.shape[-1] > period + 1
            else weights[:, 0, 0]
        )
    ),
    lambda weights, period: _stripe(weights, period, period + 1),  # from key -1 on
)
inductive.wrong(
    "the queries of the first copy, too",
    "Only queries from `period` on have an earlier copy; a key of -1 is the last one.",
    lambda weights, period: _stripe(weights, period, period - 1, first=0),
)
inductive.wrong(
    "a block of weights",
    "Each query has one key: weights[:, queries, keys] with two tensors of indices.",
    lambda weights, period: weights[:, period:, 1 : 1 - period].mean(dim=(1, 2)),
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
    _halves(_first, lambda n: slice(n // 2, n // 2 * 2)),
)
honest.wrong(
    "divided by the other half's number",
    "With 5 texts, the first 2 choose, and the last 3 report: divide by 3.",
    lambda scores, k: _of_each(
        scores, k, lambda x: x.mean(0), lambda x: x.sum(0) / (len(scores) // 2)
    ),
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


honest.wrong(
    "the numbers sorted without their heads",
    "The order is that of the choice: reported[i] belongs to the head pairs[i].",
    lambda scores, k: (
        choose_and_report(scores, k)[0],
        choose_and_report(scores, k)[1].sort(descending=True).values,
    ),
)


@honest.wrong(
    "in the order of the layers",
    "The order is that of the choice: the best head of the first half comes first.",
)
def _(scores, k):
    order = _flat(scores, k).argsort()
    return tuple(x[order] for x in choose_and_report(scores, k))


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


@honest.wrong("the best of each layer")
def _(scores, k):
    half = len(scores) // 2
    best = scores[:half].mean(dim=0).topk(k).indices  # (layers, k)
    return best, scores[half:].mean(dim=0).gather(-1, best)


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


# --- 11.4: how much more likely one name is than the other ----------------------------


def logit_difference(logits: Tensor, answer: Tensor, other: Tensor) -> Tensor:
    """The reference: at the last position, the answer's logit minus the other's."""
    return _difference(logits, answer, other)


def _difference(logits, answer, other, at=-1, how=lambda x: x, minus=torch.sub):
    last, rows = how(logits)[:, at], torch.arange(len(logits))
    return minus(last[rows, answer], last[rows, other])


def named_logits(dtype):
    sizes = [(1, 3, 5), (2, 4, 7), (5, 2, 9), (4, 6, 4), (3, 1, 6), (6, 6, 6)]
    sizes += [(3, 4, 7)]
    for seed, (batch, length, vocab) in enumerate(sizes):
        g = torch.Generator().manual_seed(60 + seed)
        names = torch.stack([torch.randperm(vocab, generator=g) for _ in range(batch)])
        far = 100 if seed == 6 else 3  # exp of such a logit is 0 or inf
        logits = far * randn(batch, length, vocab, seed=60 + seed, dtype=dtype)
        if seed == 1:  # not contiguous
            logits = logits.mT.contiguous().mT
        yield {"logits": logits, "answer": names[:, 0], "other": names[:, 1]}


names = Exercise(
    "11.4", "The logit difference", logit_difference, named_logits, gradients=False
)

names.wrong(
    "the other minus the answer",
    "The answer's logit comes first: positive means that the answer is more likely.",
    lambda logits, answer, other: logit_difference(logits, other, answer),
)
names.wrong(
    "the first position",
    "There the model has seen one token. The next token of the text is predicted "
    "at the last position.",
    partial(_difference, at=0),
)
names.wrong(
    "the last position but one",
    "There the model predicts the last token of the text, which is already known.",
    lambda logits, *given: _difference(logits, *given, at=max(logits.shape[1] - 2, 0)),
)
names.wrong(
    "all positions",
    "Only the last position predicts the next token of the text.",
    partial(_difference, how=lambda x: x.mean(dim=1, keepdim=True)),
    partial(_difference, how=lambda x: x.sum(dim=1, keepdim=True)),
    lambda logits, answer, other: torch.stack(
        [x[:, a] - x[:, b] for x, a, b in zip(logits, answer, other)]
    ),
)
names.wrong(
    "a difference of probabilities",
    "Take the logits as they are: probabilities also depend on all other tokens.",
    partial(_difference, how=lambda x: x.softmax(dim=-1)),
)
names.wrong(
    "a ratio of probabilities",
    "That is exp of the logit difference: return the difference itself.",
    lambda *given: logit_difference(*given).exp(),
)
names.wrong(
    "logarithms of probabilities that are 0",
    "The probability of a far smaller logit is 0. Take the logits, or log_softmax.",
    partial(_difference, how=lambda x: x.softmax(dim=-1).log()),
    partial(_difference, how=lambda x: (x.softmax(dim=-1) + 1e-9).log()),
    lambda *given: _difference(
        *given, how=lambda x: x.softmax(dim=-1), minus=torch.div
    ).log(),
)
names.wrong(
    "all pairs of texts",
    "`last[:, answer]` looks up every answer in every text: (batch, batch). Take "
    "one answer for each row: last[rows, answer].",
    lambda logits, answer, other: logits[:, -1][:, answer] - logits[:, -1][:, other],
    lambda logits, answer, other: (
        logits[:, -1][:, answer] - logits[:, -1][:, other]
    ).mean(dim=-1),
)
names.wrong(
    "the first text's tokens",
    "Each text has its own two tokens.",
    lambda logits, answer, other: logits[:, -1, answer[0]] - logits[:, -1, other[0]],
)
names.wrong(
    "the first text's logits",
    "Each text has its own logits: last[rows, answer].",
    lambda logits, answer, other: logits[0, -1, answer] - logits[0, -1, other],
)
names.wrong(
    "the last position forgotten",
    "The second axis is the position: logits[rows, -1, answer].",
    lambda logits, answer, other: (
        logits[range(len(logits)), answer] - logits[range(len(logits)), other]
    ),
)
names.wrong(
    "the answer's logit alone",
    "A logit alone says little: a number added to all logits changes nothing. Subtract "
    "the logit of the other token.",
    lambda logits, answer, other: logits[torch.arange(len(logits)), -1, answer],
)
names.wrong(
    "the best other token",
    "Compare with the other token, not with the largest logit of all.",
    lambda logits, answer, other: (
        logits[torch.arange(len(logits)), -1, answer] - logits[:, -1].amax(dim=-1)
    ),
)
names.wrong(
    "without the sign",
    "The sign says which token the model prefers: keep it.",
    lambda *given: logit_difference(*given).abs(),
)
names.wrong(
    "one number for all texts",
    "Return one number for each text; take a mean later.",
    lambda *given: logit_difference(*given).mean(),
    lambda *given: logit_difference(*given).sum(),
)
names.wrong(
    "a quotient of logits",
    "Subtract: only the difference stays if a number is added to all logits.",
    partial(_difference, minus=torch.div),
)
names.wrong(
    "tokens looked up among the texts",
    "The first axis is the text, the second the token: last[rows, answer].",
    lambda logits, answer, other: logits[:, -1][answer] - logits[:, -1][other],
)

# --- 11.5: the output of one head, taken from another run -----------------------------


def patch_head(
    into: Tensor, source: Tensor, head: int, position: int, num_heads: int
) -> Tensor:
    """The reference: one head's features, at one position, come from the other run."""
    return _patched(into, source, head, position, num_heads)


def _patched(into, source, head, position, num_heads, what=None, where=None):
    """Return the answer with other features or positions than it should have."""
    size = into.shape[-1] // num_heads
    what = slice(head * size, (head + 1) * size) if what is None else what
    patched = into.clone()
    where = position if where is None else where
    patched[:, where, what] = source[:, where, what]
    return patched


def runs(dtype):
    cases = [(1, 3, 2, 4, 0, 1), (2, 5, 3, 2, 1, 4), (3, 4, 4, 6, 3, -1)]
    cases += [(2, 6, 2, 8, 1, -2), (4, 2, 5, 3, 2, 0), (1, 7, 6, 4, 4, 3)]
    cases += [(2, 4, 1, 6, 0, 2), (2, 1, 3, 2, 2, -1)]  # one head, one token
    for seed, (batch, length, heads, size, head, position) in enumerate(cases):
        shape = batch, length, heads * size
        yield {
            "into": randn(*shape, seed=70 + seed, dtype=dtype),
            "source": randn(*shape, seed=80 + seed, dtype=dtype),
            "head": head,
            "position": position,
            "num_heads": heads,
        }


patch = Exercise("11.5", "Patch one head", patch_head, runs, gradients=False)

patch.wrong(
    "the runs exchanged",
    "`into` stays as it is, except for one head; `source` gives only this head.",
    lambda into, source, *where: patch_head(source, into, *where),
)


@patch.wrong(
    "every num_heads-th feature",
    "The heads lie side by side: the features of a head are neighbours.",
)
def _(into, source, head, position, num_heads):
    what = slice(head, None, num_heads)
    return _patched(into, source, head, position, num_heads, what)


@patch.wrong(
    "one feature",
    "A head has embed_dim / num_heads features; this replaces one of them.",
)
def _(into, source, head, position, num_heads):
    return _patched(into, source, head, position, num_heads, slice(head, head + 1))


@patch.wrong("from feature `head` on", "Head h begins at feature h * head_dim.")
def _(into, source, head, position, num_heads):
    what = slice(head, head + into.shape[-1] // num_heads)
    return _patched(into, source, head, position, num_heads, what)


@patch.wrong(
    "num_heads features",
    "A head has embed_dim / num_heads features, not num_heads of them.",
)
def _(into, source, head, position, num_heads):
    what = slice(head * num_heads, (head + 1) * num_heads)
    return _patched(into, source, head, position, num_heads, what)


patch.wrong(
    "the head before",
    "Heads are counted from 0: head 0 has the first features.",
    lambda i, s, head, at, n: _patched(i, s, (head - 1) % n, at, n),
)
patch.wrong(
    "the head after",
    "Heads are counted from 0: head 0 has the first features.",
    lambda i, s, head, at, n: _patched(i, s, (head + 1) % n, at, n),
)


@patch.wrong(
    "heads counted from 1", "Heads count from 0: head h begins at h * head_dim."
)
def _(into, source, head, position, num_heads):
    size = into.shape[-1] // num_heads
    what = slice((head - 1) * size, head * size)
    return _patched(into, source, head, position, num_heads, what)


@patch.wrong(
    "head_dim of the length",
    "The features are the last axis: head_dim is into.shape[-1] // num_heads.",
)
def _(into, source, head, position, num_heads):
    size = into.shape[1] // num_heads
    what = slice(head * size, (head + 1) * size)
    return _patched(into, source, head, position, num_heads, what)


@patch.wrong(
    "the sizes of this model",
    "Other layers have other sizes: head_dim is into.shape[-1] // num_heads.",
)
def _(into, source, head, position, num_heads):
    what = slice(head * 64, (head + 1) * 64)
    return _patched(into, source, head, position, num_heads, what)


@patch.wrong("the sizes of this model")
def _(into, source, head, position, num_heads):
    return _patched(into, source, head, position, 9)


@patch.wrong("all heads up to this one", "Only one head comes from the other run.")
def _(into, source, head, position, num_heads):
    what = slice((head + 1) * (into.shape[-1] // num_heads))
    return _patched(into, source, head, position, num_heads, what)


@patch.wrong("this head and all later ones", "Only one head comes from the other run.")
def _(into, source, head, position, num_heads):
    what = slice(head * (into.shape[-1] // num_heads), None)
    return _patched(into, source, head, position, num_heads, what)


@patch.wrong("only the patch", "Return all of `into`, with this part replaced.")
def _(into, source, head, position, num_heads):
    return source.unflatten(-1, (num_heads, -1))[:, position, head]


patch.wrong(
    "all heads",
    "Only one head comes from the other run.",
    lambda *given: _patched(*given, what=slice(None)),
)
patch.wrong(
    "all heads but this one",
    "This head comes from `source`, and all others from `into`.",
    lambda into, source, *where: patch_head(
        _patched(into, source, *where, what=slice(None)), into, *where
    ),
)
patch.wrong(
    "zeros elsewhere",
    "Begin with a copy of `into`: only one head at one position is replaced.",
    lambda into, *given: patch_head(torch.zeros_like(into), *given),
)
patch.wrong(
    "all positions",
    "Only one position is patched; the others stay.",
    lambda *given: _patched(*given, where=slice(None)),
)


@patch.wrong(
    "an empty slice",
    "For -1, position : position + 1 is -1:0, which is empty: take `position` itself.",
)
def _(into, source, head, position, num_heads):
    where = slice(position, position + 1)
    return _patched(into, source, head, position, num_heads, where=where)


@patch.wrong(
    "a negative position never found",
    "No position equals -1: look for position % length.",
)
def _(into, source, head, position, num_heads):
    where = torch.arange(into.shape[1]) == position
    return _patched(into, source, head, position, num_heads, where=where)


@patch.wrong(
    "the axis of the texts forgotten",
    "The first axis is the text: patched[:, position, features].",
)
def _(into, source, head, position, num_heads):
    size, patched = into.shape[-1] // num_heads, into.clone()
    at = position, slice(head * size, (head + 1) * size)
    patched[at] = source[at]
    return patched


@patch.wrong("the axis of the texts forgotten")
def _(into, source, head, position, num_heads):
    size, patched = into.shape[-1] // num_heads, into.clone()
    at = position, slice(None), slice(head * size, (head + 1) * size)
    patched[at] = source[at]
    return patched


@patch.wrong(
    "the first text alone",
    "This position is patched in each text: patched[:, position, features].",
)
def _(into, source, *where):
    return torch.cat([patch_head(into, source, *where)[:1], into[1:]])


@patch.wrong(
    "heads before positions",
    "The heads lie side by side at each position: view(batch, length, num_heads, "
    "head_dim), and only then a transpose.",
)
def _(into, source, head, position, num_heads):
    patched, given = (
        x.reshape(len(x), num_heads, x.shape[1], -1).clone() for x in (into, source)
    )
    patched[:, head, position] = given[:, head, position]
    return patched.view_as(into)


@patch.wrong("this position and all later ones", "Only one position is patched.")
def _(into, source, head, position, num_heads):
    where = slice(position, None)
    return _patched(into, source, head, position, num_heads, where=where)


@patch.wrong("this position and all earlier ones", "Only one position is patched.")
def _(into, source, head, position, num_heads):
    where = slice(position % into.shape[1] + 1)
    return _patched(into, source, head, position, num_heads, where=where)


@patch.wrong(
    "a negative position one too early",
    "-1 is the last position, length - 1: add the length, and not length - 1.",
)
def _(into, source, head, position, num_heads):
    where = position if position >= 0 else position + into.shape[1] - 1
    return _patched(into, source, head, where, num_heads)


@patch.wrong(
    "the last position",
    "The position is given; it need not be the last one.",
)
def _(into, source, head, position, num_heads):
    return _patched(into, source, head, -1, num_heads)


@patch.wrong(
    "from the last position",
    "Both runs have the same positions: take the same one from `source`.",
)
def _(into, source, head, position, num_heads):
    size = into.shape[-1] // num_heads
    what, patched = slice(head * size, (head + 1) * size), into.clone()
    patched[:, position, what] = source[:, -1, what]
    return patched


def _instead(change):
    """Return the answer that puts change(into, source) in the place of the head."""

    def other(into, source, *where):
        return patch_head(into, change(into, source), *where)

    return other


patch.wrong(
    "zeros",
    "That is an ablation: a patch takes what the head gave in the other run.",
    _instead(lambda into, source: torch.zeros_like(into)),
)
patch.wrong(
    "added",
    "The output of the other run replaces that of this run; it is not added.",
    _instead(lambda into, source: into + source),
)
patch.wrong(
    "half of each",
    "The output of the other run replaces that of this run wholly.",
    _instead(lambda into, source: (into + source) / 2),
)
patch.wrong(
    "the first text of the source",
    "Each text gets its own output from the other run: source[:, position, features].",
    _instead(lambda into, source: source[:1].expand_as(into)),
)


@patch.wrong(
    "the first head of the source",
    "Take the same features from `source` that are replaced in `into`.",
)
def _(into, source, head, position, num_heads):
    first = source.unflatten(-1, (num_heads, -1))[:, :, :1].expand(
        -1, -1, num_heads, -1
    )
    return patch_head(into, first.flatten(2), head, position, num_heads)


patch.wrong(
    "the mean over the texts",
    "Each text gets its own output from the other run.",
    _instead(lambda into, source: source.mean(0, keepdim=True).expand_as(into)),
)
patch.wrong(
    "nothing patched",
    "What comes back is `into` as it was. Did an assignment go to a copy?",
    lambda into, source, *where: into.clone(),
)

# --- 11.6: what each head adds to the logit difference directly -----------------------


def direct_effect(
    heads: Tensor, w_o: Tensor, gain: Tensor, rms: Tensor, direction: Tensor
) -> Tensor:
    """The reference: through its columns of w_o and the final norm, on the direction.

    heads (batch, num_heads, head_dim), w_o (embed_dim, num_heads * head_dim),
    gain (embed_dim,), rms (batch,), direction (batch, embed_dim) -> (batch, num_heads).
    """
    return _onto(_written(heads, w_o) * gain / rms[:, None, None], direction)


def _written(heads: Tensor, w_o: Tensor) -> Tensor:
    """Return what each head adds to the residual stream (batch, heads, embed_dim)."""
    parts = w_o.unflatten(1, heads.shape[1:])  # (embed_dim, num_heads, head_dim)
    return torch.einsum("bhd,ehd->bhe", heads, parts)


def _onto(written: Tensor, direction: Tensor) -> Tensor:
    return (written * direction[:, None]).sum(dim=-1)


def outputs(dtype):
    sizes = [(1, 2, 3), (3, 4, 2), (2, 3, 5), (4, 6, 4), (5, 1, 4), (2, 5, 5)]
    sizes += [(2, 3, 2)]
    for seed, (batch, heads, size) in enumerate(sizes):
        dim = 5 if seed == 6 else heads * size  # the stream may have another width
        given = randn(batch, 3, heads * size, seed=90 + seed, dtype=dtype)
        rms = 1.5 + randn(batch, seed=120 + seed, dtype=dtype).abs()
        yield {  # as sliced out of the outputs at all positions, so not contiguous
            "heads": given[:, -1].unflatten(-1, (heads, size)),
            "w_o": randn(dim, heads * size, seed=100 + seed, dtype=dtype),
            "gain": 2 * randn(dim, seed=110 + seed, dtype=dtype),
            "rms": rms * (1e-4 if seed == 3 else 0.3 if seed == 1 else 12),
            "direction": randn(batch, dim, seed=130 + seed, dtype=dtype),
        }


direct = Exercise(
    "11.6", "The direct effect of a head", direct_effect, outputs, gradients=False
)


@direct.wrong(
    "rows of w_o instead of columns",
    "out_proj computes w_o @ x: a head's part of x is multiplied by its columns.",
)
def _(heads, w_o, *rest):
    return direct_effect(heads, w_o.mT, *rest)


@direct.wrong(
    "columns of other heads",
    "Columns head * head_dim to (head + 1) * head_dim belong to a head: neighbours, "
    "not every num_heads-th column.",
)
def _(heads, w_o, *rest):
    count = heads.shape[1]
    mixed = w_o.unflatten(1, (-1, count)).mT.flatten(1)  # 0, count, 2 * count, ...
    return direct_effect(heads, mixed, *rest)


direct.wrong(
    "divided by the gain",
    "The final norm divides by the rms and multiplies by the gain.",
    lambda heads, w_o, gain, *rest: direct_effect(heads, w_o, 1 / gain, *rest),
)
direct.wrong(
    "the gain twice",
    "The final norm multiplies each feature by its gain once.",
    lambda heads, w_o, gain, *rest: direct_effect(heads, w_o, gain**2, *rest),
)
direct.wrong(
    "the gain before w_o",
    "The gain belongs to the features of the stream: multiply after w_o.",
    lambda heads, w_o, gain, *rest: direct_effect(
        heads, w_o * gain, torch.ones_like(gain), *rest
    ),
)
direct.wrong(
    "the axis of the heads forgotten",
    "What the heads write is (batch, num_heads, embed_dim): divide by "
    "rms[:, None, None], and multiply by direction[:, None].",
    lambda heads, w_o, gain, rms, direction: _onto(
        _written(heads, w_o) * gain / rms[:, None], direction
    ),
    lambda heads, w_o, gain, rms, direction: (
        _onto(_written(heads, w_o) * gain, direction) / rms
    ),
    lambda heads, w_o, gain, rms, direction: (
        _written(heads, w_o) * gain / rms[:, None, None] * direction
    ).sum(dim=-1),
)
direct.wrong(
    "the features not summed",
    "The direct effect is a dot product: sum over the features of the stream.",
    lambda heads, w_o, gain, rms, direction: (
        _written(heads, w_o) * gain / rms[:, None, None] * direction[:, None]
    ),
)
direct.wrong(
    "the mean over the features",
    "A dot product is the sum over the features, not their mean.",
    lambda heads, w_o, *rest: direct_effect(heads, w_o, *rest) / len(w_o),
)
direct.wrong(
    "without the sign",
    "The sign says for which name the head writes: keep it.",
    lambda *given: direct_effect(*given).abs(),
)
direct.wrong(
    "the gain forgotten",
    "The final norm multiplies each feature by its gain before the output layer.",
    lambda heads, w_o, gain, *rest: direct_effect(
        heads, w_o, torch.ones_like(gain), *rest
    ),
)
direct.wrong(
    "not divided by the rms",
    "The final norm divides the residual stream by its root mean square.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, torch.ones_like(rms), direction
    ),
)
direct.wrong(
    "multiplied by the rms",
    "The final norm divides by the root mean square.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, 1 / rms, direction
    ),
)
direct.wrong(
    "divided by the mean square",
    "rms is the root already: divide by it once.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms**2, direction
    ),
)
direct.wrong(
    "divided by the root of the rms",
    "rms is the root already: divide by it, and not by its root.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms**0.5, direction
    ),
)
direct.wrong(
    "no final norm",
    "The final norm divides by the rms and multiplies by the gain.",
    lambda heads, w_o, gain, rms, direction: _onto(_written(heads, w_o), direction),
)
direct.wrong(
    "the mean subtracted",
    "RMSNorm does not subtract the mean: it only divides by the rms.",
    lambda heads, w_o, *rest: direct_effect(heads, w_o - w_o.mean(dim=0), *rest),
)
direct.wrong(
    "the rms of the first text",
    "Each text has its own rms: rms[:, None, None].",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms[:1].expand_as(rms), direction
    ),
)
direct.wrong(
    "the mean rms of all texts",
    "Each text has its own rms: rms[:, None, None].",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms.mean().expand_as(rms), direction
    ),
)


@direct.wrong(
    "the stream cut into heads",
    "The features of the stream belong to no head: take the columns of w_o for a head.",
)
def _(heads, w_o, gain, rms, direction):
    effect = heads.flatten(1) @ w_o.mT / rms[:, None] * gain * direction
    return effect.unflatten(1, (heads.shape[1], -1)).sum(dim=-1)


@direct.wrong(
    "each head normalised alone",
    "The norm sees the sum of all parts, so all heads of a text are divided by the "
    "same number, rms.",
)
def _(heads, w_o, gain, rms, direction):
    written = _written(heads, w_o)
    own = written.pow(2).mean(dim=-1, keepdim=True).sqrt()
    return _onto(written / own * gain, direction)


@direct.wrong(
    "the length instead of the rms",
    "rms is given: the root of the mean of the squares, not of their sum.",
)
def _(heads, w_o, gain, rms, direction):
    length = rms * len(gain) ** 0.5
    return direct_effect(heads, w_o, gain, length, direction)


direct.wrong(
    "the sum over the heads",
    "Return a number for each head: (batch, num_heads).",
    lambda *given: direct_effect(*given).sum(dim=1),
    lambda *given: direct_effect(*given).sum(dim=1, keepdim=True),
)
direct.wrong(
    "the mean over the texts",
    "Return a row for each text; take the mean later.",
    lambda *given: direct_effect(*given).mean(dim=0),
)
direct.wrong(
    "heads and texts exchanged",
    "Rows are texts, columns are heads: (batch, num_heads).",
    lambda *given: direct_effect(*given).mT,
)
direct.wrong(
    "the direction of the first text",
    "Each text has its own two names, and so its own direction.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms, direction[:1].expand_as(direction)
    ),
)
direct.wrong(
    "a cosine",
    "The direction keeps its length: a dot product gives logits, a cosine does not.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms, torch.nn.functional.normalize(direction, dim=-1)
    ),
)


@direct.wrong(
    "without w_o",
    "The outputs of the heads go through out_proj before they reach the stream.",
)
def _(heads, w_o, *rest):
    return direct_effect(heads, torch.eye(len(w_o)).to(w_o), *rest)


EXERCISES = (probable, inductive, honest, names, patch, direct)
