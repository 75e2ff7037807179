"""Exercises of notebook 07: a figure that lies, a baseline, an honest best."""

import torch
import torch.nn.functional as F

from utils.attention import causal_mask
from utils.oldex.engine import Exercise, randn

IMPORTS = """\
import math
import torch
from utils.attention import causal_mask
"""

# --- 7.1 repair the figure that lies ---


def panels(scores, mask):
    """Return the weights (heads, queries, keys), NaN where the mask hides a key."""
    return drawn(weights_of(scores, mask), mask)


def weights_of(scores, mask, low=-torch.inf):
    return scores.masked_fill(~mask, low).softmax(dim=-1)


def drawn(weights, mask, hidden=torch.nan):
    return weights.masked_fill(~mask, hidden)


def panel_trials(dtype):
    padded = torch.arange(6)[None] < torch.tensor([[4]])
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
    # hidden, and much larger; far below what is hidden; seen by nobody, and not hidden
    rows = [[0, 800, 0], [-150000, -150001, 0], [800, 0, 0]]
    yield {"scores": torch.tensor([rows], dtype=dtype), "mask": causal_mask(3)}
    rows = [[1, 2, 3], [1000, 1001, 1002], [-1000, -1001, -1002]]  # exp overflows, is 0
    yield {"scores": torch.tensor([rows], dtype=dtype), "mask": causal_mask(3)}


figure = Exercise(
    "7.1", "Repair the figure that lies", panels, panel_trials, gradients=False
)


figure.wrong(
    "masked after the softmax",
    "Masked after the softmax, rows do not sum to 1: hide the scores before it.",
    lambda scores, mask: drawn(scores.softmax(dim=-1), mask),
    lambda scores, mask: drawn(scores.softmax(dim=-1), mask, 0),
)
figure.wrong(
    "hidden cells are not NaN",
    "A hidden cell is not a weight of 0, nor of -inf: a plot leaves out NaN alone.",
    weights_of,
    lambda scores, mask: weights_of(scores, mask).nan_to_num(),
    lambda scores, mask: drawn(weights_of(scores, mask), mask, -torch.inf),
)
for name, why, axes in (
    ("each head on its own scale", "This makes noise look like structure.", (1, 2)),
    ("each row on its own scale", "A flat row looks like a sharp one.", (2,)),
    ("all on the scale of the largest", "Draw the weights themselves.", (0, 1, 2)),
):

    @figure.wrong(name, why)
    def _(scores, mask, axes=axes):
        weights = weights_of(scores, mask).nan_to_num()
        return drawn(weights / weights.amax(axes, keepdim=True), mask)

    @figure.wrong(name, why)
    def _(scores, mask, axes=axes):
        weights = panels(scores, mask)
        low = weights.nan_to_num(torch.inf).amin(axes, keepdim=True)
        return (weights - low) / (weights.nan_to_num().amax(axes, keepdim=True) - low)


figure.wrong(
    "queries and keys swapped",
    "Rows are keys here; each query has a row of its own, which sums to 1.",
    lambda scores, mask: panels(scores, mask).mT,
    lambda scores, mask: weights_of(scores, mask).nan_to_num().mT,
)
for axis in (-2, 0):
    figure.wrong(
        "softmax over another axis",
        "The softmax runs over the keys, the last axis: each query's row sums to 1.",
        lambda s, m, axis=axis: drawn(drawn(s, m, -torch.inf).softmax(axis), m),
    )
figure.wrong(
    "heads averaged",
    "The heads were averaged: that is the picture of none of them.",
    lambda scores, mask: panels(scores, mask).mean(0),
    lambda scores, mask: panels(scores, mask).mean(0, keepdim=True),
    lambda scores, mask: panels(scores, mask).mean(0, keepdim=True).expand_as(scores),
    lambda scores, mask: panels(scores.mean(0, keepdim=True).expand_as(scores), mask),
)
figure.wrong(
    "a list of panels",
    "Return one tensor, (heads, queries, keys): torch.stack makes it of a list.",
    lambda scores, mask: list(panels(scores, mask)),
    lambda scores, mask: tuple(panels(scores, mask)),
)
figure.wrong(
    "one row of the mask for all queries",
    "Each query has its own row of the mask: mask[q] hides keys from query q alone.",
    lambda scores, mask: panels(scores, mask[-1]),
    lambda scores, mask: panels(scores, mask[0]),
    lambda scores, mask: drawn(weights_of(scores, mask[-1]), mask),
)
figure.wrong(
    "divided again after the mask",
    "A large hidden score leaves nothing to divide by: hide it before the softmax.",
    lambda s, m: drawn(s.softmax(-1) / (s.softmax(-1) * m).sum(-1, keepdim=True), m),
)
for small in (0, 1e-9, 1e-8):
    figure.wrong(
        "exp of large scores",
        "exp of a large score is infinite, of a very low one 0: use softmax.",
        lambda s, m, small=small: drawn(
            s.exp() / ((s.exp() * m).sum(-1, keepdim=True) + small), m
        ),
    )
for low in (-100.0, -1e3, -1e4, -2e4, -1e5):
    figure.wrong(
        "hidden by a finite number",
        "A visible score may be lower than the number that hides others: use -inf.",
        lambda scores, mask, low=low: drawn(weights_of(scores, mask, low), mask),
    )
figure.wrong(
    "mask inverted", "In mask, True = visible.", lambda s, mask: panels(s, ~mask)
)
figure.wrong(
    "mask not used", "Hidden keys take part, and are drawn.", lambda s, m: s.softmax(-1)
)
figure.wrong("scores instead of weights", "Take the softmax of them.", drawn)
figure.wrong(
    "a causal mask of its own",
    "Use the mask that is given: not every one is square and causal.",
    lambda scores, mask: panels(scores, torch.ones_like(mask).tril()),
)
figure.wrong(
    "scores multiplied by the mask",
    "A score of 0 is not hidden: exp(0) is 1. Fill hidden scores with -inf.",
    lambda scores, mask: drawn((scores * mask).softmax(dim=-1), mask),
)
figure.wrong(
    "NaN before the softmax",
    "One NaN makes its whole row NaN: hide scores by -inf, weights by NaN.",
    lambda scores, mask: drawn(scores, mask).softmax(dim=-1),
)
figure.wrong(
    "zero is hidden",
    "A visible weight or score may be 0: ask the mask what is hidden, not the numbers.",
    lambda scores, mask: drawn(weights_of(scores, mask), weights_of(scores, mask) != 0),
    lambda scores, mask: panels(scores, mask & (scores != 0)),
)

# --- 7.2 write the baseline of a score ---


def baseline(marks, mask):
    """Return the score (batch,) of a head that attends to all it may, all alike.

    It is the mean, over the queries that see a marked key, of the share of marked keys
    among the visible ones; NaN where no query counts.
    """
    seen = marks & mask
    return mean(share(seen, mask), seen.any(dim=-1))


def share(marked, visible, least=1):
    """Return how many keys are marked over how many are visible, or over `least`."""
    return marked.sum(dim=-1) / visible.sum(dim=-1).clamp(min=least)


def mean(shares, counted):
    """Return the mean over the queries that count, NaN where none does."""
    return shares.where(counted, 0).sum(dim=-1) / counted.sum(dim=-1)


def of_all(shares, counted):
    """Return the mean over the queries of all texts, once for each text."""
    return mean(shares.flatten(), counted.flatten()).expand(len(shares))


def of_each(scores):
    """Return the mean of the texts' scores, once for each text."""
    return scores.nanmean().expand(len(scores))


def as_if_causal(marked):
    """Return the share of marked keys if the mask were causal and square."""
    return marked.sum(dim=-1) / torch.arange(1, marked.shape[1] + 1)


def baseline_trials(dtype):
    if dtype != torch.float32:
        return
    previous = torch.ones(8, 8, dtype=torch.bool).tril(-1).triu(-1)
    causal, both = causal_mask(8), torch.ones(8, 8, dtype=torch.bool)
    padded = torch.arange(8) < torch.tensor([8, 5, 3])[:, None, None]  # (3, 1, 8)
    real = padded & padded.mT  # padding neither attends nor is attended to
    ids = torch.tensor([[3, 1, 2, 3, 1, 2, 3, 1], [5, 5, 5, 5, 5, 5, 5, 5]])
    same = (ids[:, :, None] == ids[:, None]).tril(-1)
    window = causal & ~causal.tril(-4)
    some = randn(2, 5, 9, seed=1, dtype=dtype) > 0.8  # not as many queries as keys
    one_word = torch.ones(2, 1, 1, dtype=torch.bool)
    for marks, mask in (
        (previous[None], causal[None]),
        (previous.expand(3, 8, 8), causal & real),
        (same, causal.expand(2, 8, 8)),
        (same | same.mT, window.expand(2, 8, 8)),
        ((previous | previous.mT).expand(3, 8, 8), both & real),
        (some, randn(2, 5, 9, seed=2, dtype=dtype) > -0.3),
        (some.mT.contiguous().mT, causal_mask(5, 9).expand(2, 5, 9)),
        (torch.tensor([[[False]], [[True]]]), one_word),
    ):
        yield {"marks": marks, "mask": mask}


TITLE = "Write the baseline of a score"
even = Exercise("7.2", TITLE, baseline, baseline_trials, gradients=False)


def made(function):
    """Return a function of marks and mask from one of marks, mask and both."""
    return lambda marks, mask: function(marks, mask, marks & mask)


even.wrong(
    "hidden keys count",
    "A hidden key gets no weight: divide by the number of visible keys.",
    lambda marks, mask: baseline(marks, torch.ones_like(mask)),
    made(lambda marks, mask, seen: share(seen, marks | True).mean(-1)),
    made(lambda marks, mask, seen: mean(share(seen, marks | True), seen.any(-1))),
)
even.wrong(
    "hidden marks count",
    "A marked key that is hidden gets no weight: count marks & mask.",
    made(lambda marks, mask, seen: mean(share(marks, mask), seen.any(-1))),
    made(lambda marks, mask, seen: mean(share(marks, mask), marks.any(-1))),
    made(lambda marks, mask, seen: mean(share(marks, mask, 0), marks.any(-1))),
    made(lambda m, mask, seen: mean(share(m, mask, 0), m.any(-1) & mask.any(-1))),
)
even.wrong(
    "queries without a mark count",
    "A query that sees no marked key does not count; here it counts as 0.",
    made(lambda marks, mask, seen: mean(share(seen, mask), marks.any(-1))),
    made(lambda marks, mask, seen: mean(share(seen, mask), mask.any(-1))),
    made(lambda marks, mask, seen: share(seen, mask).mean(-1)),
    made(lambda marks, mask, seen: share(seen, mask, 0).mean(-1)),
    made(lambda marks, mask, seen: share(seen, mask, 0).nanmean(-1)),
)


@even.wrong("0 / 0 where a query sees nothing", "0 times NaN is NaN: divide by 1.")
def _(marks, mask):
    shares, counted = share(marks & mask, mask, least=0), (marks & mask).any(-1)
    return (shares * counted).sum(-1) / counted.sum(-1)


@even.wrong("ratio of sums", "Each query has one vote: take the mean of the shares.")
def _(marks, mask):
    counted = (marks & mask).any(dim=-1, keepdim=True)
    return share((marks & mask).flatten(1), (mask & counted).flatten(1), least=0)


even.wrong(
    "ratio of sums", made(lambda _, m, seen: share(seen.flatten(1), m.flatten(1)))
)
even.wrong(
    "one marked key only",
    "Several keys may be marked for one query: their weights add up.",
    made(
        lambda marks, mask, seen: mean(share(seen[..., :1] | True, mask), seen.any(-1))
    ),
)
even.wrong(
    "no mean over the queries",
    "A sum grows with the text: take the mean over the queries that count.",
    made(lambda marks, mask, seen: share(seen, mask).sum(-1)),
    made(lambda marks, mask, seen: share(seen, mask)),
    made(lambda marks, mask, seen: share(seen, mask, 0)),
)
even.wrong(
    "one number for all sentences",
    "Return one number for each text: (batch,).",
    made(lambda m, mask, seen: mean(share(seen, mask).view(-1), seen.any(-1).view(-1))),
    made(lambda marks, mask, seen: of_all(share(seen, mask), seen.any(-1))),
    made(lambda marks, mask, seen: of_each(baseline(marks, mask))),
)
even.wrong(
    "a causal mask of its own",
    "Count the visible keys in `mask`; not every mask is causal.",
    made(lambda marks, mask, seen: mean(as_if_causal(seen), seen.any(-1))),
    made(lambda marks, mask, seen: as_if_causal(seen).mean(-1)),
    made(lambda marks, mask, seen: as_if_causal(seen)[:, 1:].mean(-1)),
    made(lambda marks, mask, seen: mean(as_if_causal(marks), marks.any(-1))),
)
even.wrong(
    "only the first query does not count",
    "Ask `marks` and `mask` which queries count: it may be any of them.",
    made(lambda marks, mask, seen: share(seen, mask)[:, 1:].mean(-1)),
    made(lambda marks, mask, seen: share(seen, mask, 0)[:, 1:].mean(-1)),
)
even.wrong(
    "over the queries",
    "The last axis is that of the keys; here the sums run over the queries.",
    lambda marks, mask: baseline(marks.mT, mask.mT),
)
even.wrong(
    "0 where nothing counts",
    "Where no query counts there is no score: NaN, and not 0, which is a score.",
    made(lambda marks, mask, seen: baseline(marks, mask).nan_to_num()),
)
even.wrong(
    "the unmarked keys",
    "Those are the keys that are *not* marked.",
    lambda marks, mask: 1 - baseline(marks, mask),
)


@even.wrong("marks taken for scores", "This head attends to all visible keys alike.")
def _(marks, mask):
    weights = weights_of(marks.float(), mask).nan_to_num()
    return mean((weights * marks).sum(-1), (marks & mask).any(-1))


# --- 7.3 an honest best head ---


def honest_best(found, copies):
    """Return the head that is best on the first half of the texts, its mean on the
    second half, and the share of copies, each with its choice, that reach this mean.
    """
    half = found.shape[-1] // 2
    best = int(found[:, :half].mean(dim=-1).argmax())
    score = found[best, half:].mean()
    chosen = copies[..., :half].mean(dim=-1).argmax(dim=-1)  # (copies,)
    others = copies[torch.arange(len(copies)), chosen, half:].mean(dim=-1)
    reached = int((others >= score).sum())
    return best, score.item(), (1 + reached) / (1 + len(copies))


def best_trials(dtype):
    """No two heads of a model are equally good; copies may do exactly as well."""
    sizes = [(4, 8, 9), (3, 6, 19), (6, 4, 5), (2, 10, 3), (1, 4, 4), (8, 8, 39)]
    for seed, (heads, sentences, copies) in enumerate(sizes):
        lift = torch.zeros(heads, 1, dtype=dtype)
        lift[seed % heads] = (0.0, 0.75, 0.25, 2.0, 0.0, 0.5)[seed]
        yield {
            "found": randn(heads, sentences, seed=seed, dtype=dtype) + lift,
            "copies": randn(copies, heads, sentences, seed=seed + 10, dtype=dtype),
        }
    # the best of the first half is the worst of the second; a copy ties; odd number
    found = torch.tensor([[4, 4, -3, 0, 0], [3, 3, 3, 3, 3], [0, 0, 8, 8, 8]]).to(dtype)
    same = torch.stack([found / 4, found / 8, found.flip(0) / 4, found.flip(1) / 4])
    yield {"found": found / 4, "copies": same}
    # all in another order of memory
    wide = randn(4, 6, 12, seed=31, dtype=dtype).transpose(0, 1)
    yield {"found": wide[0] + 0.125, "copies": wide}
    near = torch.tensor([[0.5] * 4, [0.0] * 4], dtype=dtype)
    yield {"found": near, "copies": near[None] * torch.tensor([1, 1, 1, 1 - 2**-10])}


best = Exercise("7.3", "An honest best head", honest_best, best_trials, gradients=False)


def first(scores):
    return scores[..., : scores.shape[-1] // 2]


def second(scores):
    return scores[..., scores.shape[-1] // 2 :]


def every(scores):
    return scores


def made(
    choose=first, measure=second, report=None, theirs=None, rivals=None, reach=torch.ge,
    ones=(1, 1),
):  # fmt: skip
    """Return the function of the exercise with something replaced.

    choose, measure, report: which scores choose the head, are compared, are returned.
    theirs: which choose the heads of the copies. rivals: what is compared of them, each
    with its chosen head or all. ones: what is added above and below.
    """

    def wrong_best(found, copies):
        head = int(choose(found).mean(dim=-1).argmax())
        score = measure(found)[head].mean()
        chosen = (theirs or choose)(copies).mean(dim=-1).argmax(dim=-1)  # (copies,)
        others = measure(copies).mean(dim=-1)  # (copies, heads)
        others = rivals(others, head) if rivals else others[range(len(copies)), chosen]
        share = (ones[0] + int(reach(others, score).sum())) / (ones[1] + len(others))
        return head, (report or measure)(found)[head].mean().item(), share

    return wrong_best


best.wrong(
    "reported where it was chosen",
    "Where it was chosen it had luck as well: report it on the second half alone.",
    *(made(half, half) for half in (first, second, every)),
    *(made(measure=every), made(report=first), made(report=every)),
)
best.wrong(
    "not chosen on the first half",
    "The first half chooses: texts that are reported may not choose.",
    made(choose=every),
    made(second, first),
)
best.wrong(
    "an odd number divided otherwise",
    "The first half has `texts // 2`; all other texts are in the second half.",
    made(lambda s: first(F.pad(s, (0, 1))), lambda s: s[..., (s.shape[-1] + 1) // 2 :]),
    made(measure=lambda scores: scores[..., -(scores.shape[-1] // 2) :]),
)
best.wrong(
    "the copies may not choose",
    "You chose among all heads: each copy may choose its own best head, too.",
    made(theirs=lambda copies: first(copies).mean(dim=0, keepdim=True)),
    made(rivals=lambda others, head: others[:, head]),
    made(rivals=lambda others, head: others.mean(dim=1)),
    made(rivals=lambda others, head: others.flatten()),
    made(rivals=lambda others, head: others),
)
best.wrong(
    "the copies choose where they report",
    "The copies choose on the half on which they are measured; you did not.",
    made(theirs=second),
    made(theirs=every),
)
best.wrong(
    "no one added",
    "Your own model might be one of the draws: add 1 above and below.",
    *(made(ones=ones) for ones in ((0, 0), (1, 0), (0, 1))),
)
best.wrong(
    "a tie is no reach", "Doing exactly as well is reaching: >=.", made(reach=torch.gt)
)
best.wrong(
    "near misses reach it",
    "A copy that does a little worse does not reach it: compare without a tolerance.",
    made(reach=lambda others, score: others >= score - 1e-3),
)
best.wrong(
    "the share of the worse",
    "Those are the copies that do worse.",
    *(made(reach=torch.lt), made(reach=torch.le), made(reach=torch.lt, ones=(0, 0))),
)
best.wrong(
    "one sentence decides",
    "One text in which a head shines says nothing: take means over texts.",
    made(choose=lambda scores: first(scores).amax(dim=-1, keepdim=True)),
    made(measure=lambda scores: second(scores).amax(dim=-1, keepdim=True)),
)

EXERCISES = (figure, even, best)
