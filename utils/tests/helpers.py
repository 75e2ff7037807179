"""What several test files share."""

import functools
import math
import os

import pytest
import torch
from hypothesis import settings
from torch import nn

from utils import positions
from utils.masks import causal_mask, padding_mask
from utils.models import CausalLM
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


def normal(*shape, seed=0, dtype=torch.float32):
    """Return the same normal numbers for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def mask_of(kind, batch, heads, queries, keys, seed):
    """Return a mask of a kind; rows may be empty."""
    some = normal(batch, heads, queries, keys, seed=seed) > 0.3
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(keys + 1, (batch,), generator=generator)
    padding, causal = padding_mask(lengths, keys), causal_mask(queries, keys)
    return {
        "none": None,
        "two axes": some[0, 0],
        "causal": causal,
        "padding": padding,
        "both": padding & causal,
        "any": some,
        "added": torch.zeros(some.shape).masked_fill(~some, -math.inf),
        "learned": normal(queries, keys, seed=seed),
    }[kind]


# --- what is refused ---


def guards(table, names, errors=(ValueError, TypeError)):
    """Return a test for the rows of a table: `what the message says | a call`.

    names: those that the calls use, e.g. `globals()`. errors: their kinds.
    """

    @pytest.mark.parametrize("row", [row for row in table.splitlines() if row])
    def refused(row):
        says, call = row.split(" | ")
        with pytest.raises(errors, match=says):
            eval(call, names)

    return refused


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


SIZES = B, L, E, H, V = 3, 7, 16, 4, 11  # batch, length, embed_dim, heads, vocabulary


def drawn(model, std=1.0):
    """Return a model in which nothing is hidden by a 0 or a 1, evaluating."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    return model.eval()


def lm(scheme="rotary half", **options):
    """Return a language model of two blocks with weights of all sizes."""
    position = None if scheme is None else scheme_of(scheme)
    model = drawn(CausalLM(V, E, H, 2, position=position, **options), std=0.3)
    nn.init.normal_(model.embedding.weight, std=3.0)  # so that they decide
    return model


def text(seed=0):
    """Return ids (batch, length) for the language model."""
    return torch.randint(V, (B, L), generator=torch.Generator().manual_seed(seed))


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


# --- weights, pictures and the viewer ---

WORDS = "the cat sat on it".split()
HOSTILE = [
    "</script><img src=x onerror=alert(1)>", "<!--", "]]>", '"quoted"', "it's", "&amp;",
    "$x$", r"\(y\)", "a\u2028b", "\x00", "", " ", "\n", "שלום", "\u202eevil", "🙂",
    "Ġcat", "##ing",
]  # fmt: skip


def heads(*shape, seed=0, mask=None):
    """Weights of this shape that softmax made; a row without a visible key is 0."""
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    hidden = torch.zeros(1).bool() if mask is None else ~mask
    scores = (2 * scores).masked_fill(hidden, -math.inf)
    return scores.softmax(dim=-1).nan_to_num()
