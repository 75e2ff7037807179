"""Trials of lesson 06: what its exercises are tried with."""

import torch
import torch.nn.functional as F

from utils.attention import merge_heads, split_heads

from .catalogue import trials
from .draws import randn


def self_attention(embed, heads, causal, seed):
    """Return attention with weights of its own, as a function of x alone."""
    weights = randn(4, embed, embed, seed=seed) / embed**0.5

    def attend(x):
        *projections, w_o = weights.to(x.dtype)
        q, k, v = (split_heads(x @ w.mT, heads) for w in projections)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return merge_heads(out) @ w_o.mT

    attend.__name__ = "a causal attention" if causal else "an attention"
    return attend


@trials("6.1")
def blocks(dtype):
    # batch, length, width, heads, features inside the MLP
    sizes = [(2, 5, 8, 2, 32), (1, 1, 6, 3, 10), (3, 3, 3, 1, 3), (2, 7, 12, 4, 20)]
    for at, (batch, length, embed, heads, inner) in enumerate(sizes):
        x, w_1, b_1, w_2, b_2, gains, shifts = (
            randn(*shape, seed=10 * at + i, dtype=dtype)
            for i, shape in enumerate(
                [(batch, length, embed), (inner, embed), (inner,)]
                + [(embed, inner), (embed,), (2, embed), (2, embed)]
            )
        )
        given = {
            "x": x,
            "attend": self_attention(embed, heads, at % 2 == 1, seed=10 * at + 7),
            "w_1": w_1 / embed**0.5,
            "b_1": b_1,
            "w_2": w_2 / inner**0.5,
            "b_2": b_2,
            "gains": 1 + gains / 2,
            "shifts": shifts,
        }
        yield given
        if at == 0:
            yield given | {"x": x.transpose(0, 1).contiguous().transpose(0, 1)}
            yield given | {"x": 100 * x}
            yield given | {"x": x / 1000}  # ε counts
            yield given | {"x": torch.zeros_like(x[:1, :1])}  # no variance
            yield given | {"gains": 10 * given["gains"]}  # large numbers in the MLP


@trials("6.2", gradients=False)
def texts(dtype):
    given = []
    sizes = [(40, 12, 5), (200, 30, 7), (12, 9, 6), (3, 2, 2), (60, 20, 20)]
    for seed, (train, validation, vocab_size) in enumerate(sizes):
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(vocab_size**2, (train + validation,), generator=generator)
        text = text.float().sqrt().long()  # the larger ids are more frequent
        given.append((text[:train], text[train:], vocab_size))
    given += [
        # token 2 stands at the end of train alone, token 3 nowhere
        ([0, 1, 0, 0, 1, 1, 0, 2], [1, 2, 0, 3, 1, 3, 3, 0, 0], 4),
        ([0, 1, 4, 2, 1, 0, 3, 0, 1, 2], [0, 1, 3, 4, 0, 2], 9),  # 5 to 8 stand nowhere
        ([0] * 3000 + [1], [0, 0, 2, 0, 1], 3),  # one pair costs more than 12
    ]
    strided = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 0, 1, 2]).view(6, 2).T
    given.append((*strided, 3))
    # whole numbers: nothing depends on a precision
    for train, validation, vocab_size in given if dtype == torch.float32 else ():
        train, validation = torch.as_tensor(train), torch.as_tensor(validation)
        yield {"train": train, "validation": validation, "vocab_size": vocab_size}
