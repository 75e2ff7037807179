"""The layer's time as a ratio to nn.MultiheadAttention's: `pytest -m slow`.

Never seconds, which are those of a machine: both layers have the same weights, are
compared in values and gradients first, and take turns on one thread.
"""

import pytest
import torch
from torch import nn

from utils.attention import MultiHeadAttention
from utils.benchmark import time_ratios


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "backward", "calls", "bar"),
    [
        ((1, 16, 64, 4), False, 200, 1.25),
        ((1, 16, 64, 4), True, 100, 1.25),
        ((8, 256, 256, 8), True, 1, 1.1),
    ],
)
def test_the_layer_is_about_as_fast_as_torchs(size, backward, calls, bar):
    batch, length, embed, heads = size
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(embed, heads, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(batch, length, embed, requires_grad=backward)
    both = {
        "theirs": lambda x: theirs(x, x, x, need_weights=False)[0],
        "ours": lambda x: ours(x)[0],
    }
    options = {"backward": backward, "calls": calls, "rounds": 15, "threads": 1}
    ratio = time_ratios(both, (x,), **options)["ours"]
    assert ratio < bar
