"""What several test files share."""

import functools
import os

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from utils import positions
from utils.attention import scaled_dot_product_attention
from utils.pretrained import find_smollm2
from utils.recording import record_attention

# --- what is drawn ---


def examples(count):
    """Draw so many examples of a property from a fixed seed: no test fails by chance.

    `PROPERTY_EXAMPLES=5000` draws as many, with a seed of that moment.
    """
    more = os.environ.get("PROPERTY_EXAMPLES")
    return settings(
        max_examples=int(more or count), derandomize=not more, deadline=None
    )


def normal(*shape, seed=0, dtype=torch.float32, grad=False):
    """Return the same normal numbers for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(grad)


# --- models, positions, training ---

SCHEMES = {  # for 7 tokens (and 3 more), 16 features, 4 heads
    "nope": positions.NoPE,
    "learned": lambda: positions.Learned(7 + 3, 16),
    "sinusoidal": lambda: positions.Sinusoidal(16),
    "rotary half": lambda: positions.Rotary(4),
    "rotary interleaved": lambda: positions.Rotary(4, layout="interleaved", scale=0.5),
    "alibi": lambda: positions.ALiBi(4),
    "t5": lambda: positions.T5Bias(4, num_buckets=4, max_distance=5),
}


def scheme_of(name, seed=0):
    """Return a position scheme in whose tables nothing is hidden by a zero."""
    torch.manual_seed(seed)
    scheme = SCHEMES[name]()
    for table in scheme.parameters():
        nn.init.normal_(table)
    return scheme


def results(model, ids, mask=None):
    """Return what our encoder or language model gives: result, states, attention."""
    inputs = (ids,) if mask is None else (ids, mask)
    states = model.hidden_states(*inputs) if hasattr(model, "hidden_states") else []
    return [model(*inputs), *states, *record_attention(model, *inputs)]


def their_results(model, ids, mask=None):
    """Return the same of a model of `transformers`; mask (batch, 1, 1, length)."""
    mask = None if mask is None else mask[:, 0, 0].long()
    options = {"output_attentions": True, "output_hidden_states": True}
    found = model(ids, attention_mask=mask, **options)
    if hasattr(found, "logits"):
        return [found.logits, *found.attentions]
    return [found.last_hidden_state, *found.hidden_states, *found.attentions]


def gradients(loss, module):
    """Return the gradients of all parameters of a module."""
    return torch.autograd.grad(loss, [*module.parameters()])


def need_smollm2():
    """Skip a test where the file of SmolLM2 is missing, unless it is required."""
    if missing := missing_smollm2():
        pytest.skip(missing)


@functools.cache
def missing_smollm2() -> str:
    """Return what to do about the missing file; nothing if it is there or required.

    Where COURSE_MODEL_TESTS=required nothing is skipped: what needs the file fails.
    """
    try:
        find_smollm2()
    except FileNotFoundError as error:
        return str(error) * (os.environ.get("COURSE_MODEL_TESTS") != "required")
    return ""


# --- heads and their baselines ---


def attention_under(mask, batch, heads, length, keys=None, seed=0) -> Tensor:
    """Return sharp random weights of heads that keep to a mask."""
    generator = torch.Generator().manual_seed(seed)
    q = 2 * torch.randn(batch, heads, length, 4, generator=generator)
    k = torch.randn(batch, heads, keys or length, 4, generator=generator)
    return scaled_dot_product_attention(q, k, k, mask)[1]


# --- pictures and the viewer ---

WORDS = "the cat sat on it".split()
HOSTILE = [
    "</script><img src=x onerror=alert(1)>", "<!--", "]]>", '"quoted"', "it's", "&amp;",
    "$x$", r"\(y\)", "a\u2028b", "\x00", "", " ", "\n", "שלום", "\u202eevil", "🙂",
    "Ġcat", "##ing",
]  # fmt: skip


def heads(*shape, seed=0, sharpness=2.0):
    """Weights of this shape that softmax made."""
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (sharpness * scores).softmax(dim=-1)
