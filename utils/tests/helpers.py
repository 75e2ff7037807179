"""What several test files share."""

import math

import torch

from utils.masks import causal_mask, padding_mask

# --- attention and its layer ---

SIZES = 3, 4, 5, 7, 8, 32  # batch, heads, queries, keys, head_dim, embed_dim


def normal(*shape, seed=0, dtype=torch.float32, grad=False):
    """Return the same normal numbers for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(grad)


def masks():
    """Return masks of each kind for scores (3, 4, 5, 7), by name."""
    causal = causal_mask(5, 7)
    padding = padding_mask([7, 4, 2], 7)
    additive = torch.zeros(3, 1, 5, 7).masked_fill(~(causal & padding), -math.inf)
    return {
        "none": None,
        "causal": causal,
        "padding": padding,
        "both": causal & padding,
        "per head": normal(1, 4, 5, 7, seed=9) > -1,
        "additive": additive,
        "bias": normal(3, 4, 5, 7, seed=8),
    }


# --- models, positions, training ---


# --- heads and their baselines ---


# --- pictures and the viewer ---


# --- exercises ---
