"""Scores beside their nulls, with intervals: value, nulls, lift."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from utils.checks import check_layout, check_size, shape_of
from utils.counting import AXES
from utils.nulls import best_of

__all__ = ["Row", "Table", "compare", "score_table"]

RESAMPLES = 1000


@dataclass(frozen=True)
class Row:
    """A score beside its nulls: means over sequences, and 95 % intervals of the means.

    lift: the value minus the highest of the nulls, compared sequence by sequence.
    """

    name: str
    value: float
    interval: tuple[float, float]
    nulls: dict[str, float]
    lift: float
    lift_interval: tuple[float, float]
    sequences: int


class Table(list):
    """A list of rows that prints as a table."""

    def __str__(self) -> str:
        if not self:
            return "no rows"
        cells = [["", "value", "95 %", *self[0].nulls, "lift", "95 %", "n"]]
        for row in self:
            nulls = [f"{null:.2f}" for null in row.nulls.values()]
            value = [f"{row.value:.2f}", _range(row.interval)]
            lift = [f"{row.lift:+.2f}", _range(row.lift_interval, "+")]
            cells.append([row.name, *value, *nulls, *lift, str(row.sequences)])
        wide = [max(map(len, column)) for column in zip(*cells)]
        return "\n".join(
            "  ".join([line[0].ljust(wide[0]), *map(str.rjust, line[1:], wide[1:])])
            for line in cells
        )

    __repr__ = __str__


def score_table(
    metric: Callable[..., Tensor],
    attention: Tensor | Sequence[Tensor],
    nulls: Mapping[str, Tensor | Sequence[Tensor]],
    *,
    best: bool = False,
    seed: int = 0,
    **options,
) -> Table:
    """Return a row per head: its score, those of its nulls, and how far it is above.

    metric: e.g. `previous_token`; options: its own, e.g. mask=, ids=.
    attention: of one layer, or a list of them, as from `record_attention`. nulls: for
        each name an attention like it; one with a single sequence or a single head
        stands for all, and so does one tensor for all layers.
    best: True gives one row, the head with the highest mean, beside the head with the
        highest mean of each null: whoever chooses lets the nulls choose, too.
    seed: of the intervals, see `compare`.

    >>> from utils.heads import previous_token
    >>> from utils.nulls import uniform_attention
    >>> attention = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]).expand(4, 1, 3, 3)
    >>> score_table(
    ...     previous_token, attention, {"even": uniform_attention((1, 1, 3, 3))}
    ... )
            value          95 %  even   lift            95 %  n
    head 0   1.00  [1.00, 1.00]  0.33  +0.67  [+0.67, +0.67]  4
    """
    layers = _layers(attention)
    names = [
        f"head {head}" if isinstance(attention, Tensor) else f"L{index} H{head}"
        for index, layer in enumerate(layers)
        for head in range(layer.shape[1])
    ]
    scores = torch.cat([metric(layer, **options) for layer in layers], dim=1)
    others = {}  # name of the null: its scores (batch, heads of all layers)
    for name, null in nulls.items():
        alike = _alike(name, null, layers)
        others[name] = torch.cat([metric(layer, **options) for layer in alike], dim=1)
    if best:
        at = int(scores.nanmean(0).nan_to_num(-torch.inf).argmax())
        chosen = {name: best_of(each) for name, each in others.items()}
        return Table([compare(scores[:, at], chosen, f"best: {names[at]}", seed=seed)])
    return Table(
        compare(scores[:, i], {k: x[:, i] for k, x in others.items()}, name, seed=seed)
        for i, name in enumerate(names)
    )


def compare(
    scores: Tensor, nulls: Mapping[str, Tensor], name: str = "", *, seed: int = 0
) -> Row:
    """Return the row of one score (batch,) beside its nulls, each (batch,).

    Means are over the sequences for which all are defined (not NaN). Intervals: 95 %,
    percentiles of the means of 1,000 resamples of the sequences (bootstrap), drawn from
    a generator that starts from seed; NaN for a single sequence. They tell how far
    other sequences would change the mean, not other seeds of the model or of a null.
    Source: Efron and Tibshirani 1993, chapter 13.
    """
    check_size("seed", seed)
    for key, x in {"scores": scores, **nulls}.items():
        check_layout(key, x, "(batch,)", 1)
        if len(x) != len(scores):
            raise ValueError(f"{key} has {len(x)} sequences, scores {len(scores)}.")
    each = torch.stack([x.detach().cpu().double() for x in (scores, *nulls.values())])
    each = each[:, ~each.isnan().any(0)]  # (1 + nulls, sequences)
    if each.shape[1] == 0:
        raise ValueError(f"{name or 'the score'} is defined in no sequence.")
    means = each.mean(1).tolist()
    hardest = each[1:][each[1:].mean(1).argmax()] if nulls else torch.zeros(())
    lifts = each[0] - hardest
    return Row(
        name=name,
        value=means[0],
        interval=_interval(each[0], seed),
        nulls=dict(zip(nulls, means[1:])),
        lift=float(lifts.mean()),
        lift_interval=_interval(lifts, seed),
        sequences=each.shape[1],
    )


def _interval(values: Tensor, seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean of values (sequences,)."""
    count = len(values)
    if count == 1:
        return torch.nan, torch.nan
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(count, (RESAMPLES, count), generator=generator)
    low, high = values[drawn].mean(1).quantile(torch.tensor([0.025, 0.975]).double())
    return float(low), float(high)


def _range(interval: tuple[float, float], sign: str = "") -> str:
    return "[{:{s}.2f}, {:{s}.2f}]".format(*interval, s=sign)


def _layers(attention) -> list[Tensor]:
    """Return a list of layers, (batch, heads, queries, keys) each."""
    layers = [attention] if isinstance(attention, Tensor) else list(attention)
    if not layers:
        raise ValueError("attention is an empty list; give one tensor per layer.")
    for layer in layers:
        check_layout("attention", layer, AXES, 4)
    return layers


def _alike(name: str, null, layers: list[Tensor]) -> list[Tensor]:
    """Return a null's layers, each in the shape of the layer beside which it stands."""
    given = _layers(null)
    given = given * len(layers) if isinstance(null, Tensor) else given
    if len(given) != len(layers):
        raise ValueError(
            f"the null {name!r} has {len(given)} layers and attention {len(layers)}."
        )
    try:
        return [a.expand(layer.shape) for a, layer in zip(given, layers)]
    except RuntimeError:
        raise ValueError(
            f"the null {name!r} has shapes {[shape_of(a) for a in given]}, attention "
            f"{[shape_of(a) for a in layers]}; a null has the same shape."
        ) from None
