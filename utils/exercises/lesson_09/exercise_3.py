"""Exercise 9.3: repair an interval: draw sentences, not arcs."""

import torch
from torch import Tensor

from utils.exercises.engine import Exercise

ENDS = (0.025, 0.975)


def _times(drawn, sentences):
    """Return how often each draw has each sentence, (draws, sentences)."""
    zeros = torch.zeros(len(drawn), sentences, dtype=torch.float64)
    return zeros.scatter_add(1, drawn, torch.ones(drawn.shape, dtype=torch.float64))


def _sums(right, sentence, sentences):
    """Return the arcs that are right, and all arcs, of each sentence."""
    zeros = torch.zeros(sentences, dtype=torch.float64)
    hits = zeros.index_add(0, sentence, right.double())
    return hits, torch.bincount(sentence, minlength=sentences).double()


def _ends(means, low=ENDS[0], high=ENDS[1]):
    wanted = torch.tensor([low, high], dtype=means.dtype)
    return means.nanquantile(wanted).float()


def _means(right, sentence, drawn):
    """Return the accuracy of each draw; NaN: a draw without any arc."""
    times = _times(drawn, drawn.shape[1])
    hits, arcs = _sums(right, sentence, drawn.shape[1])
    return (times @ hits) / (times @ arcs)


def interval(right: Tensor, sentence: Tensor, drawn: Tensor) -> Tensor:
    """The reference: with a sentence all its arcs are drawn, as often as it is."""
    return _ends(_means(right, sentence, drawn))


def interval_inputs(dtype):
    if dtype != torch.float32:  # whole numbers and bools: the same in both
        return
    shapes = [(12, 40, 50), (30, 25, 80), (5, 60, 40), (4, 3, 60), (60, 200, 100)]
    for seed, (sentences, arcs, draws) in enumerate(shapes):
        generator = torch.Generator().manual_seed(seed)
        sentence = torch.randint(sentences, (arcs,), generator=generator)
        if seed != 2:
            sentence = sentence.sort().values
        easy = torch.rand(sentences, generator=generator)[sentence]
        right = torch.rand(arcs, generator=generator) < easy
        size = (draws, sentences)
        drawn = torch.randint(sentences, size, generator=generator)
        yield {"right": right, "sentence": sentence, "drawn": drawn}
    # a word in many sentences, arcs in two of them: some draws have no arc
    sentence = torch.tensor([0, 0, 0, 3, 3])
    right = torch.tensor([True, True, False, False, True])
    drawn = torch.randint(6, (40, 6), generator=torch.Generator().manual_seed(9))
    yield {"right": right, "sentence": sentence, "drawn": drawn}
    # nearly all draws have no arc
    drawn = torch.full((100, 3), 2)
    drawn[:2], drawn[2:4] = 0, 1
    right = torch.tensor([True, True, True, False])
    yield {"right": right, "sentence": torch.tensor([0, 0, 0, 1]), "drawn": drawn}
    # fewer draws than sentences
    drawn = torch.tensor([[0, 1, 1, 4, 2, 3, 3], [4, 4, 2, 5, 6, 0, 1]])
    sentence = torch.tensor([0, 1, 1, 4])
    yield {"right": right, "sentence": sentence, "drawn": drawn}


def by_arcs(right, sentence, drawn):
    """This draws arcs, as if those of one sentence were independent; they succeed and
    fail together, and the interval becomes too narrow. Draw sentences."""
    return _ends(right.double()[drawn % len(right)].mean(dim=1))


def by_sentence_means(right, sentence, drawn):
    """A sentence with ten arcs counts ten times as much as one with one: add up hits
    and arcs, then divide."""
    hits, arcs = _sums(right, sentence, drawn.shape[1])
    return _ends((hits / arcs)[drawn].nanmean(dim=1))


def by_sentence_means_with_zeros(right, sentence, drawn):
    hits, arcs = _sums(right, sentence, drawn.shape[1])
    return _ends((hits / arcs.clamp(min=1))[drawn].mean(dim=1))


def by_sentence_means_with_nan(right, sentence, drawn):
    hits, arcs = _sums(right, sentence, drawn.shape[1])
    return _ends((hits / arcs)[drawn].mean(dim=1))


def _last_arc(right, sentence, sentences):
    """Return for each sentence whether its last arc is right, 0 where it has none."""
    last = torch.zeros(sentences, dtype=torch.float64)
    for at, hit in zip(sentence.tolist(), right.tolist()):
        last[at] = hit
    return last


def repeats_lost(right, sentence, drawn):
    """`x[sentence] += right` keeps one arc of each sentence: repeated places are added
    once. `index_add` and `bincount` add them all."""
    hits = _last_arc(right, sentence, drawn.shape[1])
    _, arcs = _sums(right, sentence, drawn.shape[1])
    return _ends(hits[drawn].sum(dim=1) / arcs[drawn].sum(dim=1))


def repeats_lost_in_both(right, sentence, drawn):
    hits = _last_arc(right, sentence, drawn.shape[1])
    _, arcs = _sums(right, sentence, drawn.shape[1])
    return _ends(hits[drawn].sum(dim=1) / (arcs[drawn] > 0).sum(dim=1))


def once(right, sentence, drawn):
    """A sentence that is drawn twice brings its arcs twice."""
    times = (_times(drawn, drawn.shape[1]) > 0).double()
    hits, arcs = _sums(right, sentence, drawn.shape[1])
    return _ends((times @ hits) / (times @ arcs))


def empty_as_zero(right, sentence, drawn):
    """A draw without any arc has no accuracy: leave it out, give it no number."""
    times = _times(drawn, drawn.shape[1])
    hits, arcs = _sums(right, sentence, drawn.shape[1])
    return _ends((times @ hits) / (times @ arcs).clamp(min=1))


def empty_as_nan(right, sentence, drawn):
    means = _means(right, sentence, drawn)
    return means.quantile(torch.tensor(ENDS, dtype=means.dtype)).float()


def empty_as_half(right, sentence, drawn):
    return _ends(_means(right, sentence, drawn).nan_to_num(0.5))


def empty_as_one(right, sentence, drawn):
    return _ends(_means(right, sentence, drawn).nan_to_num(1.0))


def empty_as_all(right, sentence, drawn):
    all_arcs = right.double().mean().item()
    return _ends(_means(right, sentence, drawn).nan_to_num(all_arcs))


def over_all_arcs(right, sentence, drawn):
    """A draw has not as many arcs as all sentences together: divide by its own."""
    times = _times(drawn, drawn.shape[1])
    hits, _ = _sums(right, sentence, drawn.shape[1])
    return _ends((times @ hits) / len(right))


def over_all_arcs_without_empty(right, sentence, drawn):
    times = _times(drawn, drawn.shape[1])
    hits, arcs = _sums(right, sentence, drawn.shape[1])
    shares = (times @ hits) / len(right)
    return _ends(shares.masked_fill(times @ arcs == 0, torch.nan))


def over_sentences(right, sentence, drawn):
    """That is hits per sentence; the accuracy is hits per arc."""
    times = _times(drawn, drawn.shape[1])
    hits, _ = _sums(right, sentence, drawn.shape[1])
    return _ends((times @ hits) / drawn.shape[1])


def ninety(right, sentence, drawn):
    """95 % lie between the quantiles 0.025 and 0.975; between these lie 90 %."""
    return _ends(_means(right, sentence, drawn), 0.05, 0.95)


def ends_of_all(right, sentence, drawn):
    """The lowest and the highest draw: they move with the number of draws. Take the
    quantiles 0.025 and 0.975."""
    return _ends(_means(right, sentence, drawn), 0.0, 1.0)


def one_sided(right, sentence, drawn):
    """That is 95 % below, and 5 % above: leave out 2.5 % at each end."""
    return _ends(_means(right, sentence, drawn), 0.0, 0.95)


def nearest(right, sentence, drawn):
    """The ends may lie between two draws: interpolate, as torch.quantile does."""
    wanted = torch.tensor(ENDS, dtype=torch.float64)
    means = _means(right, sentence, drawn)
    return means.nanquantile(wanted, interpolation="nearest").float()


def sorted_place(right, sentence, drawn):
    means = _means(right, sentence, drawn)
    means = means[~means.isnan()].sort().values
    return torch.stack([means[int(end * len(means))] for end in ENDS]).float()


def mirrored(right, sentence, drawn):
    """That mirrors the interval at the accuracy (a *basic* bootstrap); asked are the
    quantiles of the draws themselves."""
    return 2 * right.float().mean() - interval(right, sentence, drawn).flip(0)


def swapped(right, sentence, drawn):
    """The lower end comes first."""
    return interval(right, sentence, drawn).flip(0)


def normal(right, sentence, drawn):
    """Mean ± 1.96 standard deviations supposes a bell; asked are the quantiles of the
    draws themselves."""
    means = _means(right, sentence, drawn)
    means = means[~means.isnan()]
    spread = 1.96 * means.std()
    return torch.stack([means.mean() - spread, means.mean() + spread]).float()


def standard_error(right, sentence, drawn):
    """The formula for independent arcs uses no draws at all; those of one sentence are
    not independent."""
    p = right.double().mean()
    spread = 1.96 * (p * (1 - p) / len(right)).sqrt()
    return torch.stack([p - spread, p + spread]).float()


def over_draws(right, sentence, drawn):
    """That are the accuracies of all draws; return two numbers, the ends."""
    return _means(right, sentence, drawn).float()


def of_errors(right, sentence, drawn):
    """That is the share of what is wrong."""
    return interval(~right, sentence, drawn)


EXERCISE = Exercise(
    "9.3",
    "Repair the interval",
    interval,
    interval_inputs,
    {
        "arcs drawn": by_arcs,
        "each sentence weighs alike": (
            by_sentence_means,
            by_sentence_means_with_zeros,
            by_sentence_means_with_nan,
        ),
        "one arc of each sentence": (repeats_lost, repeats_lost_in_both),
        "drawn twice, counted once": once,
        "an empty draw counts": (
            empty_as_zero,
            empty_as_nan,
            empty_as_half,
            empty_as_one,
            empty_as_all,
        ),
        "divided by all arcs": (over_all_arcs, over_all_arcs_without_empty),
        "divided by sentences": over_sentences,
        "90 %": ninety,
        "the lowest and the highest": ends_of_all,
        "one-sided": one_sided,
        "no interpolation": (nearest, sorted_place),
        "mirrored": mirrored,
        "ends exchanged": swapped,
        "a bell supposed": normal,
        "the formula for independent arcs": standard_error,
        "all draws returned": over_draws,
        "errors counted": of_errors,
    },
    gradients=False,
)
