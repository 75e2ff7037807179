"""Trials of lesson 12: right and wrong layers that cannot be looked into."""

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.positions import frequencies, rotate_pairs, sinusoidal

from .catalogue import trials
from .draws import randn

LOW = -math.inf
SIZES = [(1.0, 1.0, 0.0), (0.002, 1.0, 0.0), (1.0, 2.0, 0.5), (3.0, 0.5, 1.0)]


class Layer:
    """A function layer(x, mask=None) of some heads; True shows a key.

    What a kind of layer does otherwise overrides a method. size: of the outputs;
    sharp: of the queries. It computes in double precision, unless as_given.
    """

    kind, as_given, heads, features = "a right layer", False, 4, 24

    def __init__(self, seed=0, size=1.0, sharp=1.0, bias=0.0):
        n = self.features
        w = randn(4, n, n, seed=seed) / n**0.5
        self.w_q, self.w_k, self.w_v, self.w_o = w[0] * sharp, w[1], w[2], w[3] * size
        self.biases = bias * randn(3, n, seed=seed + 1)
        self.__name__ = self.kind

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if x.dim() != 3 or x.shape[-1] != self.features:
            asked = f"give (batch, length, {self.features})"
            raise ValueError(f"x has shape {tuple(x.shape)}; {asked}.")
        x = x if x.is_floating_point() else x.float()
        return self.layer(x if self.as_given else x.double(), mask).to(x.dtype)

    def train(self, mode=True):  # as of a module: tests of the page call it
        return self

    eval = train

    def __repr__(self):
        return "a layer"

    def layer(self, x, mask):
        if mask is not None and mask.dim() < 2:
            raise ValueError(f"mask has shape {tuple(mask.shape)}; give a square one.")
        ws = (w.to(x.dtype) for w in (self.w_q, self.w_k, self.w_v))
        biases = self.biases.to(x.dtype)
        q, k, v = (self.split(x @ w + b) for w, b in zip(ws, biases))
        q, k = self.turn(q), self.turn(k)
        scores = self.biased(q @ k.mT / q.shape[-1] ** 0.5)
        weights = self.softmax(scores if mask is None else self.hide(scores, mask))
        return self.merge(self.after(weights, mask) @ v) @ self.w_o.to(x.dtype)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def merge(self, heads):
        return heads.transpose(1, 2).flatten(2)

    def turn(self, x):
        return x

    def biased(self, scores):
        return scores

    def hide(self, scores, mask):
        return scores.masked_fill(~mask, LOW)

    def softmax(self, scores):
        return scores.softmax(dim=-1)

    def after(self, weights, mask):
        return weights


def made(kind: str, of: type = Layer, **methods) -> type:
    """Return a class of layers with other methods."""
    return type("Made", (of,), {"kind": kind} | methods)


# --- what is wrong ----------------------------------------------------------------

CUT = {"split": lambda self, x: x.reshape(len(x), 4, x.shape[1], 6)}
GLUED = {"merge": lambda self, heads: heads.reshape(len(heads), heads.shape[2], 24)}
RESHAPES = [
    made("split without transpose", **CUT),
    made("merge without transpose", **GLUED),
    made("split and merge without transpose", **CUT, **GLUED),
]


def by_text(self, x, mask):
    return Layer.layer(self, x + sinusoidal(len(x), 24)[:, None].to(x), mask)


def exps(self, scores):
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


FAULTS = [
    *RESHAPES,
    made("mask inverted", hide=lambda self, s, m: s.masked_fill(m, LOW)),
    made("mask hides queries", hide=lambda self, s, m: s.masked_fill(~m.mT, LOW)),
    made("mask added as 1 and 0", hide=lambda self, s, m: s + m),
    made(
        "mask after the softmax",
        hide=lambda self, s, m: s,
        after=lambda self, w, m: w if m is None else w * m,
    ),
    made("softmax over the queries", softmax=lambda self, s: s.softmax(dim=-2)),
    made("exp without a maximum", softmax=exps),
    made("dropout", after=lambda self, w, m: F.dropout(w, 0.1)),
    made("positions along the batch", layer=by_text),
]
LARGE = made("a mask of -1e9", hide=lambda self, s, m: s.masked_fill(~m, -1e9))
NAMES = "Ada Ben Cem Dia Eva Fay".split()


@trials("12.1", gradients=False)
def six_layers():
    """Yield six layers by name: each fault is once the only one, and more at random."""
    rng = random.Random(0)
    for number in range(18):
        names = NAMES if number % 3 else NAMES[::-1]  # not always alphabetical
        some = [FAULTS[number]] if number < len(FAULTS) else rng.sample(FAULTS, 3)
        some = some if number < 17 else []  # the last six are all right
        kinds = [*some, LARGE, *[Layer] * 5][:6]
        rng.shuffle(kinds)
        layers = {
            name: kind(100 * number + 10 * i, *rng.choice(SIZES))
            for i, (name, kind) in enumerate(zip(names, kinds))
        }
        yield {"layers": layers}


# --- weighted means that look unusual ---------------------------------------------


def rotated(self, x):
    turns = frequencies(6, dtype=torch.float64)
    return rotate_pairs(x, torch.arange(x.shape[-2])[:, None] * turns)


def distances(scores):
    place = torch.arange(scores.shape[-1])
    return place - place[:, None]


def sloped(self, scores):
    slopes = 0.5 ** torch.arange(1, 5).double()[:, None, None]
    return scores + slopes * distances(scores).clamp(max=0)


def causal(self, scores):
    return scores.masked_fill(distances(scores) > 0, LOW)


def near(self, scores):
    return causal(self, scores).masked_fill(distances(scores) < -3, LOW)


def prefix(self, scores):
    return causal(self, scores).where(torch.arange(scores.shape[-1]) > 2, scores)


class Grouped(Layer):
    """Each two heads share the same keys and values."""

    kind = "grouped heads"

    def __init__(self, *options):
        super().__init__(*options)
        for name in ("w_k", "w_v"):  # heads 1 and 3 get those of 0 and 2
            w = getattr(self, name).unflatten(-1, (4, 6))
            setattr(self, name, w[:, [0, 0, 2, 2]].flatten(-2))
        biases = self.biases.unflatten(-1, (4, 6))
        self.biases[1:] = biases[1:, [0, 0, 2, 2]].flatten(-2)


def rounded(self, x, mask):
    return Layer.layer(self, x, mask).round(decimals=6)


EXACT = made("a right layer without rounding errors", layer=rounded)
UNUSUAL = [
    made("a causal layer", biased=causal),
    made("a window of four tokens", biased=near),
    made("rotary embeddings", turn=rotated),
    made("ALiBi", biased=sloped),
    made("a prefix that all see, then causal", biased=prefix),
    Grouped,
    made("normed queries and keys", turn=lambda self, x: F.layer_norm(x, (6,))),
    made(
        "dropout, in evaluation mode", after=lambda self, w, m: F.dropout(w, 0.5, False)
    ),
]
SUMS = [
    made("softmax over the heads", softmax=lambda self, s: s.softmax(dim=1)),
    made("no softmax", softmax=lambda self, s: s),
    made(
        "causal, softmax over the queries",
        biased=causal,
        softmax=lambda self, s: s.softmax(dim=-2),
    ),
    made("causal mask after the softmax", after=lambda self, w, m: w.tril()),
    made(  # its first output is NaN
        "earlier tokens only",
        biased=lambda self, s: s.masked_fill(distances(s) > -1, LOW),
    ),
    made(
        "sums of 0.95",
        softmax=lambda self, s: s.softmax(dim=-1) * (0.95 if s.shape[-1] > 1 else 1.0),
    ),
    made(  # the first four outputs are right
        "causal, a window of four after the softmax",
        biased=causal,
        after=lambda self, w, m: w.triu(-3),
    ),
]


@trials("12.2", gradients=False)
def weighted_means():
    for number, kind in enumerate([Layer, EXACT, *UNUSUAL, *RESHAPES, *SUMS]):
        for seed, each in enumerate(SIZES[:3]):
            yield {"layer": kind(10 * number + seed, *each)}


# --- what True means --------------------------------------------------------------


class Padded(Layer):
    """A function layer(x, mask): one head; mask (batch, length), True or False."""

    heads, features = 1, 8

    def __init__(self, *options):
        super().__init__(*options)
        self.__name__ = "a layer"  # it does not tell its kind

    def layer(self, x, mask):
        if mask is not None and (mask.dtype, mask.shape) != (torch.bool, x.shape[:2]):
            given = f"{mask.dtype} {tuple(mask.shape)}"
            raise ValueError(f"mask is {given}; give True and False {(*x.shape[:2],)}.")
        return super().layer(x, mask if mask is None else mask[:, None, None])

    def hide(self, scores, mask):
        return scores


def silent(self, weights, mask):
    return weights if mask is None else weights.masked_fill(mask.mT, 0.0)


MEANINGS = [
    made("True shows", Padded, hide=lambda self, s, m: s.masked_fill(~m, -1e9)),
    made("True hides", Padded, hide=lambda self, s, m: s.masked_fill(m, -1e9)),
    made("True is added", Padded, hide=lambda self, s, m: s + m),
    made("True hides the query", Padded, after=silent),
    made("ignored", Padded),
]


@trials("12.3", gradients=False)
def conventions():
    for seed, size in enumerate((1.0, 0.002, 5.0)):
        for number, kind in enumerate(MEANINGS):
            yield {"layer": kind(20 * seed + number, size)}
