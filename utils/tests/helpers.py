"""What several test files share."""

import math

import torch

from utils.masks import causal_mask, padding_mask

# --- attention and its layer ---

B, H, L, S, D, E = 3, 4, 5, 7, 8, 32  # batch, heads, queries, keys, head_dim, embed_dim


def randn(*shape, seed=0, dtype=torch.float32, grad=False):
    """Return the same normal numbers for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(grad)


def masks():
    """Return masks of each kind for scores (B, H, L, S), by name."""
    causal = causal_mask(L, S)
    padding = padding_mask([7, 4, 2], S)
    additive = torch.zeros(B, 1, L, S).masked_fill(~(causal & padding), -math.inf)
    return {
        "none": None,
        "causal": causal,
        "padding": padding,
        "both": causal & padding,
        "per head": randn(1, H, L, S, seed=9) > -1,
        "additive": additive,
        "bias": randn(B, H, L, S, seed=8),
    }


# --- models, positions, training ---


# --- heads and their baselines ---


# --- pictures and the viewer ---


# --- exercises ---
