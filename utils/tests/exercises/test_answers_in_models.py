"""Right answers that lessons put into a model: `check` and the lesson accept them.

For every such exercise three answers, written in different ways, as text. Each is kept
by `check`, and then does what the lessons do with it, at the sizes of MiniLM and of
SmolLM2, whose layers have outputs of more than 200.
"""

import functools

import pytest
import torch
from torch.testing import assert_close

from utils.attention import MultiHeadAttention, causal_mask, merge_heads, split_heads
from utils.exercises import answer
from utils.models import CausalLM, Encoder
from utils.own import with_own_functions
from utils.positions import Rotary
from utils.pretrained import load_minilm, load_smollm2
from utils.tests.exercises.helpers import Notebook
from utils.tests.helpers import need_smollm2, normal

ANSWERS = {
    "1.1": """
def by_torch(query, key, value, temperature=1.0):
    return F.scaled_dot_product_attention(query / temperature, key, value)
---
def by_einsum(query, key, value, temperature=1.0):
    scale = temperature * math.sqrt(query.size(-1))
    weights = torch.einsum("...qd,...kd->...qk", query, key).div(scale).softmax(-1)
    return torch.einsum("...qk,...kd->...qd", weights, value)
---
def by_hand(query, key, value, temperature=1.0):
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 / temperature)
    exps = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return exps @ value / exps.sum(dim=-1, keepdim=True)
""",
    "1.2": """
def by_torch(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
---
def by_hand(query, key, value, mask):
    scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(query.size(-1))
    some = mask.any(-1, keepdim=True)
    scores = torch.where(mask, scores, -torch.inf)
    scores = torch.where(some, scores, 0.0)
    exps = torch.exp(scores - scores.amax(-1, keepdim=True)) * some
    return exps @ value / exps.sum(-1, keepdim=True).where(some, 1.0)
---
def by_logs(query, key, value, mask):
    root = query.shape[-1] ** 0.25
    scores = (query / root) @ (key / root).mT
    added = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
    added = added.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
    weights = torch.log_softmax(scores + added, dim=-1).exp()
    return (weights * mask.any(dim=-1, keepdim=True)) @ value
""",
    "1.5": """
def by_torch(query, key, value):
    mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    mask = mask.tril(key.shape[-2] - query.shape[-2])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
---
def by_positions(query, key, value):
    L, S = query.shape[-2], key.shape[-2]
    later = torch.arange(S) > torch.arange(S - L, S)[:, None]
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ value
---
def by_einsum(query, key, value):
    L, S = query.shape[-2], key.shape[-2]
    added = torch.full((L, S), -torch.inf, dtype=query.dtype).triu(S - L + 1)
    scores = torch.einsum("...qd,...kd->...qk", query * query.shape[-1] ** -0.5, key)
    return torch.einsum("...qk,...kd->...qd", (scores + added).softmax(-1), value)
""",
    "2.2": """
def by_torch(x, w_q, w_k, w_v, w_o, num_heads):
    q, k, v = (split_heads(x @ w.T, num_heads) for w in (w_q, w_k, w_v))
    return merge_heads(F.scaled_dot_product_attention(q, k, v)) @ w_o.T
---
def by_heads(x, w_q, w_k, w_v, w_o, num_heads):
    outputs = []
    for q, k, v in zip(*((x @ w.mT).chunk(num_heads, dim=-1) for w in (w_q, w_k, w_v))):
        outputs.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v)
    return torch.cat(outputs, dim=-1) @ w_o.mT
---
def by_einsum(x, w_q, w_k, w_v, w_o, num_heads):
    batch, length, _ = x.shape
    q, k, v = (
        F.linear(x, w).view(batch, length, num_heads, -1) for w in (w_q, w_k, w_v)
    )
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    weights = scores.softmax(-1)
    return F.linear(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2), w_o)
""",
    "3.1": """
def by_torch(x, in_proj_weight, in_proj_bias, out_weight, out_bias, num_heads):
    q, k, v = F.linear(x, in_proj_weight, in_proj_bias).chunk(3, dim=-1)
    q, k, v = (split_heads(part, num_heads) for part in (q, k, v))
    heads = F.scaled_dot_product_attention(q, k, v)
    return F.linear(merge_heads(heads), out_weight, out_bias)
---
def by_its_own(x, in_proj_weight, in_proj_bias, out_weight, out_bias, num_heads):
    x = x.transpose(0, 1)
    found, _ = F.multi_head_attention_forward(
        x, x, x, x.shape[-1], num_heads, in_proj_weight, in_proj_bias, None, None,
        False, 0.0, out_weight, out_bias, training=False, need_weights=False,
    )
    return found.transpose(0, 1)
---
def by_heads(x, in_proj_weight, in_proj_bias, out_weight, out_bias, num_heads):
    parts = (x @ in_proj_weight.T + in_proj_bias).chunk(3, -1)
    outputs = []
    for q, k, v in zip(*(part.chunk(num_heads, -1) for part in parts)):
        outputs.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
    return torch.cat(outputs, -1) @ out_weight.T + out_bias
""",
    "5.2": """
def by_halves(x, positions, base):
    d = x.shape[-1]
    angles = torch.outer(positions.float(), 1 / base ** (torch.arange(0, d, 2) / d))
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    return x * cos + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1) * sin
---
def by_complex_numbers(x, positions, base):
    a, b = x.chunk(2, dim=-1)
    half = a.shape[-1]
    angles = positions[:, None] * base ** (-torch.arange(half) / half)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)
---
def by_matrices(x, positions, base):
    half = x.shape[-1] // 2
    pairs = x.unflatten(-1, (2, half))
    angles = positions[:, None] * base ** (-2 * torch.arange(half) / x.shape[-1])
    cos, sin = angles.cos(), angles.sin()
    matrix = torch.stack([torch.stack([cos, -sin]), torch.stack([sin, cos])])
    return torch.einsum("ijnh,...njh->...nih", matrix.to(x), pairs).flatten(-2)
""",
    "10.2": """
def by_torch(query, key, value):
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    return F.scaled_dot_product_attention(query, key, value)
---
def by_groups(query, key, value):
    q = query.unflatten(1, (key.shape[1], -1))
    scores = q @ key[:, :, None].mT / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ value[:, :, None]).flatten(1, 2)
---
def by_heads(query, key, value):
    group, heads = query.shape[1] // key.shape[1], []
    for h in range(query.shape[1]):
        q, k, v = query[:, h], key[:, h // group], value[:, h // group]
        heads.append((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)
    return torch.stack(heads, dim=1)
""",
}
CASES = [
    pytest.param(name, text, id=f"{name} {text.split('(')[0].split()[-1]}")
    for name, texts in ANSWERS.items()
    for text in texts.split("---")
]


@functools.cache
def minilm() -> Encoder:
    return load_minilm().model


def like_smollm2() -> CausalLM:
    """Two blocks of its sizes, in which attention has outputs of more than 200."""
    torch.manual_seed(0)
    options = {"norm_kind": "rms", "activation": "swiglu", "bias": False, "mlp_dim": 8}
    options["position"] = Rotary(64, base=1e5, layout="interleaved")
    model = CausalLM(50, 576, 9, 2, num_kv_heads=3, **options).eval()
    for block in model.blocks:
        for name, size in (("query", 6), ("value", 20), ("out", 20)):
            getattr(block.attention, f"{name}_proj").weight.data *= size
    return model


@torch.no_grad()
def in_smollm2(**own):
    model, ids = like_smollm2(), torch.arange(40)[None]
    largest = model.blocks[0].attention(normal(1, 5, 576))[0].abs().max()
    assert largest > 200
    assert_close(
        with_own_functions(model, **own)(ids), model(ids), atol=1e-3, rtol=1e-3
    )


@torch.no_grad()
def in_minilm(**own):
    ids, mask = torch.arange(1000, 1012).view(2, 6), causal_mask(6)
    mine = with_own_functions(minilm(), **own)
    for given in ((ids,), (ids, mask)):
        assert_close(mine(*given), minilm()(*given), atol=1e-4, rtol=1e-4)


def between_the_projections(function, mask=None):
    """As in deeper 03 and 06, in a real layer."""
    layer = minilm().blocks[3].attention
    x = minilm().hidden_states(torch.arange(1000, 1010)[None])[3]
    q, k, v = (
        split_heads(proj(x), 12)
        for proj in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    mine = layer.out_proj(merge_heads(function(q, k, v)))
    assert_close(mine, layer(x, mask=mask)[0], atol=1e-5, rtol=1e-5)


def as_whole_layer(function):
    """As in deeper 03 and 06: the layer's matrices are handed over."""
    plain, x = MultiHeadAttention(8, 2, bias=False), normal(3, 5, 8)
    mine = function(x, *plain.parameters(), 2)
    assert_close(mine, plain(x)[0], atol=1e-6, rtol=1e-5)
    in_minilm(layer=function)


def as_torchs_layer(function):
    """As in 03 and deeper 03: the parameters of a real nn.MultiheadAttention."""
    layer = minilm().blocks[0].attention.to_torch()
    x = minilm().hidden_states(torch.arange(1000, 1010)[None])[0]
    mine = function(x, *(x for _, x in layer.named_parameters()), 12)
    assert_close(mine, layer(x, x, x)[0], atol=1e-5, rtol=1e-5)


def as_grouped(function):
    """As in 10."""
    q, k, v = normal(2, 9, 7, 64), normal(2, 3, 7, 64, seed=1), normal(2, 3, 7, 64)
    layer = MultiHeadAttention(576, 9).eval()
    repeated = (x.repeat_interleave(3, dim=1) for x in (k, v))
    assert_close(function(q, k, v), layer.attend(q, *repeated, None, None, False)[0])


USES = {
    "1.1": between_the_projections,
    "1.2": lambda own: (in_smollm2(attention=own), in_minilm(attention=own)),
    "1.5": lambda own: between_the_projections(own, causal_mask(10)),
    "2.2": as_whole_layer,
    "3.1": as_torchs_layer,
    "5.2": lambda own: in_smollm2(turn=own),
    "10.2": as_grouped,
}
IMPORTS = "from utils.attention import merge_heads, split_heads"


@torch.no_grad()
@pytest.mark.parametrize(("name", "text"), CASES)
def test_check_and_the_lessons_accept_it(name, text, capsys):
    function = text.split("(")[0].split()[-1]
    cell = f'{IMPORTS}\n{text.strip()}\n\n\ncheck("{name}", {function})\n'
    Notebook().run(cell)
    said = capsys.readouterr().out
    assert ": solved. " in said and said.endswith("Kept for later lessons.\n"), said
    own = answer(name)
    assert own.__name__ == function
    USES[name](own)


@torch.no_grad()
def test_right_answers_in_smollm2_itself():
    need_smollm2()
    model, tokenizer = load_smollm2()
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    texts = zip(ANSWERS["1.2"].split("---"), ANSWERS["5.2"].split("---"))
    for attention, turn in texts:
        own = [
            Notebook().run(text).names[text.split("(")[0].split()[-1]]
            for text in (attention, turn)
        ]
        mine = with_own_functions(model, attention=own[0], turn=own[1])
        assert_close(mine(ids), model(ids), atol=1e-3, rtol=1e-3)
