"""Scores of heads: for many models at once, and what must be refused and why.

That they equal their definitions is among the properties (`test_properties_of_heads`).
"""

import math

import pytest
import torch
from torch.testing import assert_close

from utils import heads
from utils.masks import causal_mask, padding_mask
from utils.tests.helpers import attention_under

B, H, L = 3, 2, 9
PADDING = padding_mask([L, 4, 6], L)
ODD = torch.rand(B, 1, L, L, generator=torch.Generator().manual_seed(5)) < 0.6
ODD[1, 0, 3] = False  # a query without a visible key
IDS = torch.tensor([[4, 4, 2, 4, 1, 2, 4, 4, 1], [3, 1, 3, 1] + [0] * 5, [5, 6, 5] * 3])
MARKED = (IDS == 1) | (IDS == 5)
CHOSEN = torch.rand(B, L, generator=torch.Generator().manual_seed(1)) < 0.5


def random_weights(mask=None, **sizes):
    return attention_under(mask, **{"batch": B, "heads": H, "length": L, **sizes})


def test_a_mask_of_two_axes_is_queries_and_keys_in_a_batch_of_any_size():
    window = causal_mask(L) & ~causal_mask(L).tril(-3)
    weights = random_weights(window, batch=L)
    found = heads.entropy(weights, mask=window)
    assert_close(found, heads.entropy(weights, mask=window[None, None]))


@pytest.mark.parametrize(
    ("score", "extra"),
    [
        (heads.at_offset, [-3]),
        (heads.previous_token, []),
        (heads.current_token, []),
        (heads.first_token, []),
        (heads.on_keys, [MARKED]),
        (heads.duplicate_token, [IDS]),
        (heads.induction, [IDS]),
        (heads.entropy, []),
        (heads.normalised_entropy, []),
    ],
)
def test_many_models_at_once(score, extra):
    """Under vmap, as where a score is part of a loss (lesson 07)."""

    def measured(weights):
        return score(weights, *extra, mask=PADDING)

    several = torch.stack([random_weights(PADDING, seed=seed) for seed in range(2)])
    found, wanted = torch.func.vmap(measured)(several), [*map(measured, several)]
    assert_close(found, torch.stack(wanted), equal_nan=True)


FINE = random_weights()
BROKEN = {
    "no tensor": (TypeError, "give a torch.Tensor", {"weights": [[1.0]]}),
    "whole numbers": (TypeError, "floating", {"weights": FINE.int()}),
    "one matrix": (ValueError, r"give \(batch, heads,", {"weights": FINE[0, 0]}),
    "empty": (ValueError, "empty", {"weights": FINE[:, :0]}),
    "scores": (ValueError, "negative", {"weights": FINE.log()}),
    "NaN": (ValueError, "NaN", {"weights": FINE * math.nan}),
    "dropout": (ValueError, r"model\.eval\(\)", {"weights": 1.4 * FINE}),
    "no mask": (ValueError, "mask=", {"weights": random_weights(ODD)}),
    "columns": (ValueError, "swapped", {"weights": FINE.mT}),
    "another mask": (ValueError, "mask= hides", {"mask": causal_mask(L)}),
    "mask too long": (ValueError, "mask has shape", {"mask": causal_mask(L + 1)}),
    "mask per head": (ValueError, "mask has shape", {"mask": FINE > 0}),
    "floating mask": (TypeError, "give bool", {"mask": torch.zeros(L, L)}),
    "queries too long": (ValueError, "queries", {"queries": CHOSEN.repeat(1, 2)}),
    "queries not bool": (ValueError, "bool", {"queries": CHOSEN.float()}),
    "no query": (ValueError, "no query counts", {"queries": CHOSEN & ~CHOSEN}),
}


@pytest.mark.parametrize("why", BROKEN)
@pytest.mark.parametrize("name", ["current_token", "entropy", "js_divergence"])
def test_what_cannot_be_measured_is_refused(name, why):
    error, words, change = BROKEN[why]
    with pytest.raises(error, match=words):
        getattr(heads, name)(**{"weights": FINE, **change})


@pytest.mark.parametrize(
    ("words", "metric", "argument"),
    [
        (r"give \(batch, length\) = \(3, 9\)", heads.induction, IDS[:, 1:]),
        (r"give \(batch, length\) = \(3, 9\)", heads.duplicate_token, IDS[:2]),
        ("whole numbers", heads.induction, IDS.float()),
        ("no query counts", heads.at_offset, -L),
        ("keys", heads.on_keys, MARKED[:1]),
    ],
)
def test_arguments_that_are_refused(words, metric, argument):
    with pytest.raises((TypeError, ValueError), match=words):
        metric(FINE, argument)
