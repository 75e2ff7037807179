"""What several test files share."""

import torch
from torch import nn

from utils import positions

# --- attention and its layer ---


# --- models, positions, training ---

SCHEMES = {  # for 7 tokens (and 3 more), 16 features, 4 heads
    "nope": positions.NoPE,
    "learned": lambda: positions.Learned(7 + 3, 16),
    "sinusoidal": lambda: positions.Sinusoidal(16),
    "rotary half": lambda: positions.Rotary(4),
    "rotary interleaved": lambda: positions.Rotary(4, layout="interleaved", scale=0.5),
    "alibi": lambda: positions.ALiBi(4),
    "alibi symmetric": lambda: positions.ALiBi(4, causal=False, formula="paper"),
    "t5": lambda: positions.T5Bias(4, num_buckets=4, max_distance=5),
    "t5 symmetric": lambda: positions.T5Bias(
        4, num_buckets=8, max_distance=5, causal=False
    ),
}


def scheme_of(name, seed=0):
    """Return a position scheme in whose tables nothing is hidden by a zero."""
    torch.manual_seed(seed)
    scheme = SCHEMES[name]()
    for table in scheme.parameters():
        nn.init.normal_(table)
    return scheme


def randn(*shape, seed=0, dtype=torch.float32, grad=False):
    """Return the same normal numbers for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(grad)


def gradients(loss, module):
    """Return the gradients of all parameters of a module."""
    return torch.autograd.grad(loss, [*module.parameters()])


# --- heads and their baselines ---


# --- pictures and the viewer ---


# --- exercises ---
