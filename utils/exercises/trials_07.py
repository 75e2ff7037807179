"""Trials of lesson 07: what its exercises are tried with."""

from copy import deepcopy

import torch
from torch import nn

from utils.attention import causal_mask

from .catalogue import trials
from .compare import unlike
from .draws import randn, strided


@trials("7.4", gradients=False)
def panels(dtype):
    padded = torch.arange(6) < 4
    masks = [
        causal_mask(5),
        causal_mask(3, 6),
        causal_mask(6) & padded,
        torch.ones(4, 7, dtype=torch.bool),
        causal_mask(4) & causal_mask(4).mT.roll(1, 0),  # the last query sees two keys
        causal_mask(1),
        torch.tensor([[False, False, False], [True, False, True]]),  # query 0 sees none
    ]
    for seed, mask in enumerate(masks):
        heads = 3 if seed % 2 else 1
        scores = 2 * randn(heads, *mask.shape, seed=seed, dtype=dtype)
        yield {"scores": scores, "mask": mask}
    # what is hidden has the largest score, and the memory is in another order
    scores = randn(5, 4, 2, seed=9, dtype=dtype).permute(2, 1, 0)  # (2, 4, 5)
    mask = causal_mask(4, 5)
    yield {"scores": scores.where(mask, scores + 9), "mask": mask}
    for rows in (
        # hidden, and much larger; far below what is hidden; seen by nobody
        [[0, 800, 0], [-150000, -150200, 0], [800, 0, 0]],
        [[1, 2, 3], [1000, 1001, 1002], [-1000, -1001, -1002]],  # exp overflows, is 0
    ):
        yield {"scores": torch.tensor([rows], dtype=dtype), "mask": causal_mask(3)}


@trials("7.1", gradients=False)
def baselines():
    previous = torch.ones(8, 8, dtype=torch.bool).tril(-1).triu(-1)
    causal, both = causal_mask(8), torch.ones(8, 8, dtype=torch.bool)
    padded = torch.arange(8) < torch.tensor([8, 5, 3])[:, None, None]  # (3, 1, 8)
    real = padded & padded.mT  # padding neither attends nor is attended to
    ids = torch.tensor([[3, 1, 2, 3, 1, 2, 3, 1], [5, 5, 5, 5, 5, 5, 5, 5]])
    same = (ids[:, :, None] == ids[:, None]).tril(-1)
    window = causal & ~causal.tril(-4)
    some = randn(2, 5, 9, seed=1) > 0.8  # not as many queries as keys
    one_word = torch.ones(2, 1, 1, dtype=torch.bool)
    for marks, mask in (
        (previous[None], causal[None]),
        (previous.expand(3, 8, 8), causal & real),
        (same, causal.expand(2, 8, 8)),
        (same | same.mT, window.expand(2, 8, 8)),
        ((previous | previous.mT).expand(3, 8, 8), both & real),
        (some, randn(2, 5, 9, seed=2) > -0.3),
        (strided(some), causal_mask(5, 9).expand(2, 5, 9)),
        (torch.tensor([[[False]], [[True]]]), one_word),
    ):
        yield {"marks": marks, "mask": mask}


@trials("7.2", gradients=False)
def honest(dtype):
    """No two heads of a model are equally good."""
    sizes = [(4, 8), (3, 6), (6, 4), (2, 10), (1, 4), (8, 39)]
    lifts = 0.0, 0.75, 0.25, 2.0, 0.0, 0.5
    for seed, (heads, texts) in enumerate(sizes):
        found = randn(heads, texts, seed=seed, dtype=dtype)
        found[seed % heads] += lifts[seed]
        yield {"found": found}
    # the best of the first half is the worst of the second; an odd number
    rows = [[4, 4, -3, 0, 0], [3, 3, 3, 3, 3], [0, 0, 8, 8, 8]]
    yield {"found": torch.tensor(rows, dtype=dtype) / 4}
    yield {"found": torch.tensor([[0.9, 0.7, 0.2, 0.4], [0.5] * 4], dtype=dtype)}
    # one text in which a head shines, in the first half and in the second
    rows = [[3, 0, 0, 1, 1, 1], [2, 2, 2, 0, 0, 3], [1, 1, 1, 4, 0, 0]]
    yield {"found": torch.tensor(rows, dtype=dtype) / 4}
    # no head has a mean above 0 in the first half
    rows = [[-4, -4, -4, -4], [-3, -1.5, -5, 1], [-3, -3, 2, 2]]
    yield {"found": torch.tensor(rows, dtype=dtype)}
    wide = randn(12, 6, seed=31, dtype=dtype)  # in another order
    yield {"found": wide.mT + 0.125}


# --- 7.3: an attention layer as far as its output layer; it cannot be called ---------


class Layer:
    """What an ablation needs of an attention layer; it has a hook of somebody else."""

    def __init__(self, heads: int, head_dim: int, seed: int, dtype):
        self.num_heads, self.head_dim = heads, head_dim
        self.embed_dim = heads * head_dim
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, dtype=dtype)
        weight = randn(self.embed_dim, self.embed_dim, seed=seed, dtype=dtype)
        self.out_proj.weight = nn.Parameter(weight, requires_grad=False)
        self.out_proj.bias = nn.Parameter(weight[0] / 2, requires_grad=False)
        self.out_proj.register_forward_pre_hook(lambda *_: None)

    def register_forward_pre_hook(self, *_, **__):
        raise TypeError("the hook must be on layer.out_proj, not on the layer")

    def __eq__(self, other):
        return not unlike(self.out_proj, other.out_proj)

    def __repr__(self):
        return f"of {self.num_heads} heads, head_dim {self.head_dim}"


class Stopped(Exception):
    """It says what is left of out_proj when it is read, after the answer is done."""

    def __str__(self):
        layer, as_it_was = self.args
        one = layer.out_proj
        hooks = len(one._forward_pre_hooks) + len(one._forward_hooks)
        kept = "as before" if layer == as_it_was else "changed"
        left = f"hooks on out_proj: {hooks}; before your function: 1"
        return f"{left}; out_proj is {kept}; the model stopped"


class StoppedInTorch(Stopped, RuntimeError):
    """What `except RuntimeError` catches; the other it does not."""


class Run:
    """Runs out_proj twice; says what it gave, what was put in, and how often it ran."""

    calls = 0

    def __init__(self, layer: Layer, x, stops: type | None):
        self.layer, self.as_it_was, self.x = layer, deepcopy(layer), x
        self.stops = stops
        self.__name__ = "a model that stops with an error" if stops else "a model"

    def __call__(self):
        self.calls += 1
        found = [self.layer.out_proj(self.x)]
        if self.stops:
            raise self.stops(self.layer, self.as_it_was)
        found.append(self.layer.out_proj(self.x))
        found = {"outputs of out_proj": torch.cat(found), "inputs of out_proj": self.x}
        return found | {"calls of run()": self.calls}


@trials("7.3", gradients=False)
def ablations(dtype):
    # texts, length, heads, head_dim, head; then texts and length of `outputs`
    cases = [(1, 4, 3, 2, 1, None), (2, 5, 4, 3, 3, (3, 6)), (2, 3, 4, 2, 0, (2, 3))]
    cases += [(3, 2, 2, 5, 0, None), (1, 6, 4, 4, 2, (4, 1)), (2, 2, 1, 3, 0, (1, 5))]
    cases += [(2, 4, 3, 3, 1, (2, 4)), (2, 3, 5, 2, 4, None), (2, 4, 3, 4, 1, (2, 3))]
    for stops in (False, True):
        for seed, (texts, length, heads, size, head, others) in enumerate(cases):
            layer = Layer(heads, size, seed, dtype)
            x = randn(texts, length, heads * size, seed=20 + seed, dtype=dtype)
            outputs = None
            if others is not None:
                shape = others[0], heads, others[1], size
                outputs = 1 + randn(*shape, seed=40 + seed, dtype=dtype)
            error = (Stopped, StoppedInTorch)[seed % 2] if stops else None
            run = Run(layer, x, error)
            yield {"run": run, "layer": layer, "head": head, "outputs": outputs}
