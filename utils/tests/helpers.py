"""What several test files share."""

import torch
from torch import nn

from utils import positions

# --- attention and its layer ---


# --- models, positions, training ---

B, L, E, H, V = 3, 7, 16, 4, 11  # batch, length, embed_dim, heads, vocabulary
SCHEMES = {
    "nope": positions.NoPE,
    "learned": lambda: positions.Learned(L + 3, E),
    "sinusoidal": lambda: positions.Sinusoidal(E),
    "rotary half": lambda: positions.Rotary(E // H),
    "rotary interleaved": lambda: positions.Rotary(
        E // H, layout="interleaved", scale=0.5
    ),
    "alibi": lambda: positions.ALiBi(H),
    "alibi symmetric": lambda: positions.ALiBi(H, causal=False, formula="paper"),
    "t5": lambda: positions.T5Bias(H, num_buckets=4, max_distance=5),
    "t5 symmetric": lambda: positions.T5Bias(
        H, num_buckets=8, max_distance=5, causal=False
    ),
}


def scheme_of(name, seed=0):
    """Return a position scheme in whose tables nothing is hidden by a zero."""
    torch.manual_seed(seed)
    scheme = SCHEMES[name]()
    for table in scheme.parameters():
        nn.init.normal_(table)
    return scheme


def randn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def gradients(loss, module):
    """Return the gradients of all parameters of a module."""
    return torch.autograd.grad(loss, [*module.parameters()])


# --- heads and their baselines ---


# --- pictures and the viewer ---


# --- exercises ---
