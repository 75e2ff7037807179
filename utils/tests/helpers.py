"""What several test files share."""

import torch

# --- attention and its layer ---


# --- models, positions, training ---


# --- heads and their baselines ---


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
