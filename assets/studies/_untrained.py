"""Untrained copies of a model whose heads attend as sharply as its own."""

from collections.abc import Iterable, Iterator

from torch import nn

from utils.baselines import entropy_matched_copy, untrained_copy
from utils.heads import normalised_entropy
from utils.recording import record_attention


def sharp_copies(
    model: nn.Module, inputs: tuple, seeds: Iterable[int], **which
) -> Iterator[nn.Module]:
    """Yield an untrained copy for each seed, matched in the entropies on inputs.

    which: the mask and the queries of `normalised_entropy`.
    """
    layers = record_attention(model, *inputs)
    sharp = [normalised_entropy(x, **which).nanmean(0) for x in layers]
    for seed in seeds:
        untrained = untrained_copy(model, seed)
        yield entropy_matched_copy(untrained, inputs, sharp, **which)
