"""What several test files share."""

import torch
from torch import Tensor

from utils.attention import scaled_dot_product_attention

# --- attention and its layer ---


# --- models, positions, training ---


# --- heads and their baselines ---


def attention_under(mask, batch, heads, length, keys=None, seed=0) -> Tensor:
    """Return sharp random weights of heads that keep to a mask."""
    g = torch.Generator().manual_seed(seed)
    keys = length if keys is None else keys
    q = 2 * torch.randn(batch, heads, length, 4, generator=g)
    k = torch.randn(batch, heads, keys, 4, generator=g)
    return scaled_dot_product_attention(q, k, k, mask)[1]


# --- pictures and the viewer ---

WORDS = "the cat sat on it".split()
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "]]>",
    '"quoted"',
    "it's",
    "&amp;",
    "$x$",
    r"\(y\)",
    "a\u2028b",
    "\x00",
    "",
    " ",
    "\n",
    "שלום",
    "\u202eevil",
    "🙂",
    "Ġcat",
    "##ing",
]


def heads(*shape, seed=0):
    """Weights of this shape that softmax made."""
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (2 * scores).softmax(dim=-1)


# --- exercises ---
