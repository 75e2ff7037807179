"""Layers that `examine` is tried on: right ones of many kinds, and wrong ones."""

import math
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import MultiHeadAttention
from utils.positions import ALiBi, Rotary, T5Bias, rotate_pairs, sinusoidal

E, H, D = 24, 4, 6
LOW = -math.inf


class Stacked(nn.Module):
    """One stacked projection; what is wrong, or done otherwise, overrides one method.

    own: shapes of further parameters, or what makes further modules; biased: the
    projection has a bias, which is drawn; small: a factor that makes all weights small,
    and the other bias 0.
    """

    own, biased, small = {}, True, None

    def __init__(self, embed_dim=E, num_heads=H):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=self.biased)
        self.out = nn.Linear(embed_dim, embed_dim)
        if self.biased:
            nn.init.normal_(self.qkv.bias)
        for name, each in self.own.items():
            made = each() if callable(each) else nn.Parameter(torch.randn(each))
            setattr(self, name, made)
        if self.small:
            self.qkv.weight.data *= self.small
            self.out.weight.data *= self.small
            nn.init.zeros_(self.out.bias)

    def before(self, x):
        return x

    def parts(self, x):
        return self.qkv(x).chunk(3, dim=-1)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def heads(self, x):
        return [self.split(part) for part in self.parts(x)]

    def scale(self, q):
        return q.shape[-1] ** -0.5

    def scores(self, q, k):
        return q @ k.mT * self.scale(q)

    def softmax(self, scores):
        return scores.softmax(dim=-1)

    def hide(self, scores, mask):
        return scores.masked_fill(~mask, LOW)

    def weigh(self, scores, mask):
        return self.softmax(scores if mask is None else self.hide(scores, mask))

    def merge(self, heads):
        return heads.transpose(1, 2).flatten(2)

    def attend(self, x, mask=None):
        q, k, v = self.heads(x)
        return self.merge(self.weigh(self.scores(q, k), mask) @ v)

    def after(self, y, x):
        return y

    def forward(self, x, mask=None):
        return self.after(self.out(self.attend(self.before(x), mask)), x)


def variant(name, base=Stacked, **methods):
    """Return a class: a layer with other methods."""
    return type(name, (base,), methods)


def variants(**table):
    """Return {name: class} of a table {name: other methods, and perhaps a base}."""
    return {name: variant(name, **methods) for name, methods in table.items()}


def zeroed(kind, name):
    """Return a layer one of whose parameters is 0."""
    layer = kind()
    nn.init.zeros_(layer.get_parameter(name))
    return layer


# --- methods of several layers ---


def unmasked(self, x):
    """A forward that takes no mask."""
    return Stacked.forward(self, x)


def seeing(pattern):
    """Return a method: queries see what pattern(query, key) leaves, and a mask."""

    def weigh(self, scores, mask):
        places = torch.arange(scores.shape[-1])
        seen = pattern(places[:, None], places)
        return Stacked.weigh(self, scores, seen if mask is None else seen & mask)

    return weigh


causal = seeing(lambda q, k: k <= q)


def turned(heads, by=1.0):
    """Return heads (batch, heads, length, D) rotated as by RoPE, or by -1 back."""
    angles = torch.arange(heads.shape[2])[:, None] / 10.0 ** torch.arange(D // 2)
    return rotate_pairs(heads, by * angles.to(heads))


def rotary(self, x):
    """Return the heads of a layer with RoPE in queries and keys."""
    q, k, v = Stacked.heads(self, x)
    return turned(q), turned(k), v


def positioned(self, x):
    """Return tokens with their positions added."""
    return x + sinusoidal(x.shape[1], E).to(x)


# --- right: layers of their own ---


class ListOfHeads(nn.Module):
    """Heads as modules, causal by a registered triangle."""

    names, scale = ("query", "key", "value"), D**-0.5

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.ModuleDict() for _ in range(H))
        for head, name in product(self.heads, self.names):
            head[name] = nn.Linear(E, D, bias=False)
        self.out = nn.Linear(E, E)
        self.register_buffer("triangle", torch.ones(8, 8).tril())

    def forward(self, x):
        hide = self.triangle[: x.shape[1], : x.shape[1]] == 0
        outputs = []
        for head in self.heads:
            q, k, v = (head[name](x) for name in ("query", "key", "value"))
            scores = (q @ k.mT * self.scale).masked_fill(hide, LOW)
            outputs.append(scores.softmax(dim=-1) @ v)
        return self.out(torch.cat(outputs, dim=-1))


class Separate(nn.Module):
    """Separate projections, -1e9 as a mask; returns weights after dropout, too."""

    def __init__(self):
        super().__init__()
        for name in "qkvo":
            setattr(self, f"w_{name}", nn.Linear(E, E))
        self.dropout = nn.Dropout(0.5)

    def forward(self, query, key, value, mask=None):
        def cut(x):
            return x.view(len(x), -1, H, D).transpose(1, 2)

        q, k, v = cut(self.w_q(query)), cut(self.w_k(key)), cut(self.w_v(value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(D)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(scores.softmax(dim=-1))
        x = (weights @ v).transpose(1, 2).contiguous().view(len(query), -1, E)
        return self.w_o(x), weights


class ByHeadParameters(nn.Module):
    """Matrices (heads, embed_dim, head_dim) and einsum, as in TransformerLens."""

    def __init__(self):
        super().__init__()
        for name in "QKV":
            setattr(self, f"W_{name}", nn.Parameter(torch.randn(H, E, D)))
            setattr(self, f"b_{name}", nn.Parameter(torch.zeros(H, D)))
        self.W_O = nn.Parameter(torch.randn(H, D, E))

    def project(self, x, role):
        w, b = getattr(self, f"W_{role}"), getattr(self, f"b_{role}")
        return torch.einsum("bte,hed->bhtd", x, w) + b[:, None]

    def forward(self, x):
        q, k, v = (self.project(x, role) for role in "QKV")
        weights = (q @ k.mT / D**0.5).softmax(dim=-1)
        return torch.einsum("bhtd,hde->bte", weights @ v, self.W_O)


class PlainMatrices(nn.Module):
    """x @ W with parameters, one head, no output matrix."""

    def __init__(self):
        super().__init__()
        for name in ("W_q", "W_k", "W_v"):
            setattr(self, name, nn.Parameter(torch.randn(E, E)))

    def forward(self, x, mask=None):
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        scores = q @ k.mT / E**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, LOW)
        return scores.softmax(dim=-1) @ v


class NamesOfLlama(nn.Module):
    """Grouped heads, and a norm with a parameter that must be above 0."""

    def __init__(self):
        super().__init__()
        for name, size in {"wq": E, "wk": E // 2, "wv": E // 2, "wo": E}.items():
            setattr(self, name, nn.Linear(E, size, bias=False))
        self.eps = nn.Parameter(torch.full((8,), 1e-6))

    def shared(self, heads):
        return heads.repeat_interleave(2, dim=1)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, D)) for w in (self.wq, self.wk, self.wv))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        k, v = self.shared(k), self.shared(v)
        one = self.eps.sqrt().mean() / self.eps.sqrt().mean()  # NaN below 0
        weights = (q @ k.mT * D**-0.5 * one).softmax(dim=-1)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))


class ExtraKey(nn.Module):
    """nn.MultiheadAttention with an extra key, and another output matrix."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(E, H, add_bias_kv=True, batch_first=True)
        self.proj = nn.Linear(E, E)

    def forward(self, x):
        return self.proj(self.attention(x, x, x)[0])


class AfterNorm(Stacked):
    """A norm before, a residual connection around it: a sublayer."""

    own = {"norm": lambda: nn.LayerNorm(E)}

    def before(self, x):
        return self.norm(x)

    def after(self, y, x):
        return x + y


class TwoLayers(nn.Module):
    """What a mask hides in two layers must be hidden by every way through them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = AfterNorm(), AfterNorm()

    def forward(self, x, mask=None):
        return self.second(self.first(x, mask), mask)


# --- right: what differs from `Stacked` ---


class Interleaved(Stacked):
    def parts(self, x):
        x = self.qkv(x).unflatten(-1, (self.num_heads, 3, -1))
        return [x[..., i, :].flatten(-2) for i in range(3)]


class OneName(Stacked):
    """The name of one matrix says all three roles, as in GPT-NeoX."""

    before = positioned

    def __init__(self):
        super().__init__()
        self.query_key_value = self.qkv
        del self.qkv

    def parts(self, x):
        return self.query_key_value(x).chunk(3, dim=-1)


class WiderHeads(Stacked):
    """Its heads have more than embed_dim / num_heads features."""

    sizes = 32, 32, 32

    def __init__(self):
        super().__init__()
        for name, size in zip("qkv", self.sizes):
            setattr(self, f"w_{name}", nn.Linear(E, size))
        self.out = nn.Linear(self.sizes[2], E)
        del self.qkv

    def parts(self, x):
        return self.w_q(x), self.w_k(x), self.w_v(x)


class Sink(Stacked):
    """A learned logit in the softmax that belongs to no token."""

    own = {"sink": (H, 1, 1)}

    def softmax(self, scores):
        sink = self.sink.expand(len(scores), -1, scores.shape[-2], 1)
        return torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]


class Shift(AfterNorm):
    """A part of the features comes from the token before, as in x-transformers."""

    earlier, weigh = (0, 0, 1, -1), causal

    def shift(self, x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([F.pad(a, self.earlier), b], dim=-1)

    def before(self, x):
        return self.shift(self.norm(x))


class ShiftBothWays(Shift):
    """Another part comes from the token after; every token sees every token."""

    later, weigh = (0, 0, -1, 1), Stacked.weigh

    def shift(self, x):
        a, b, c = x.chunk(3, dim=-1)
        return torch.cat([F.pad(a, self.earlier), F.pad(b, self.later), c], dim=-1)


class Closure(Stacked):
    """A function keeps the modules of the layer: a copy still calls them."""

    def __init__(self):
        super().__init__()
        dropout, lin = nn.Dropout(0.5), nn.Linear(E, E, bias=False)
        self.dropout, self.lin = dropout, lin
        self.before, self.after = lambda x: lin(x), lambda y, x: dropout(y)


class KeyPadding(Stacked):
    """True hides, and each text has a row (batch, length), as key_padding_mask."""

    def forward(self, x, key_padding_mask=None):
        mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        return super().forward(x, mask)


class ZeroPadding(KeyPadding):
    """Also sets the outputs of hidden tokens to 0."""

    def forward(self, x, key_padding_mask=None):
        output = super().forward(x, key_padding_mask)
        if key_padding_mask is None:
            return output
        return output.masked_fill(key_padding_mask[..., None], 0.0)


class WeightsFirst(Stacked):
    """Returns the weights, and then the output."""

    def forward(self, x, mask=None):
        q, k, _ = self.heads(x)
        return self.weigh(self.scores(q, k), mask), super().forward(x, mask)


class RoomForNine(Stacked):
    """Its cache has room for nine texts."""

    weigh = causal

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(9, 128, 3 * E))

    def parts(self, x):
        self.cache[: len(x), : x.shape[1]] = self.qkv(x)
        return self.cache[: len(x), : x.shape[1]].clone().chunk(3, dim=-1)


class TinyScale(Stacked):
    """A residual connection to which hardly anything is added yet (LayerScale)."""

    own = {"gamma": lambda: nn.Parameter(torch.full((E,), 1e-9))}

    def after(self, y, x):
        return x + self.gamma * y


HERE = [x for x in vars().values() if getattr(x, "__module__", "") == __name__]
RIGHT = {x.__name__: x for x in HERE if isinstance(x, type)}
RIGHT |= variants(
    Causal=dict(weigh=causal),
    Window=dict(weigh=seeing(lambda q, k: (k <= q) & (k >= q - 2))),
    Local=dict(weigh=seeing(lambda q, k: (q - k).abs() <= 1)),
    Prefix=dict(weigh=seeing(lambda q, k: (k <= q) | (k < 3))),
    # positions and a sink in both directions, as GPT-OSS without a mask
    RotarySink=dict(base=Sink, heads=rotary),
    # values are rotated, too, and the heads are rotated back
    RotaryValues=dict(
        heads=lambda self, x: [turned(each) for each in Stacked.heads(self, x)],
        merge=lambda self, heads: Stacked.merge(self, turned(heads, -1.0))),
    # two tokens of its own stand before the text, and there are positions
    RotaryRegisters=dict(
        own={"registers": (2, E)}, heads=rotary, forward=unmasked,
        before=lambda self, x: torch.cat([self.registers.expand(len(x), -1, -1), x], 1),
        after=lambda self, y, x: y[:, 2:]),
    # the first token attends, and the others pass through, as in CaiT
    OnlyFirst=dict(
        forward=unmasked,
        after=lambda self, y, x: torch.cat([y[:, :1], x[:, 1:]], dim=1)),
    AddedPositions=dict(
        own={"pos_embedding": (1, 32, E)},
        before=lambda self, x: x + self.pos_embedding[:, : x.shape[1]]),
    # positions are added inside, and no parameter has their name
    SinusoidalPositions=dict(before=positioned),
    # a norm before the positions: tokens of every size come out alike
    NormThenPositions=dict(
        own={"norm": lambda: nn.LayerNorm(E), "norm_out": lambda: nn.LayerNorm(E)},
        before=lambda self, x: positioned(self, self.norm(x)),
        after=lambda self, y, x: x + self.norm_out(y),
        forward=unmasked),
    # no module is named after the norm that comes before the positions
    NormByHand=dict(
        before=lambda self, x: positioned(
            self, x / x.square().mean(dim=-1, keepdim=True).sqrt()),
        forward=unmasked),
    # a convolution gives each token its neighbours, as in CvT
    Convolution=dict(
        own={"neighbours": lambda: nn.Conv1d(E, E, 3, padding=1, groups=E)},
        before=lambda self, x: self.neighbours(x.mT).mT),
    # any mask means "causal", whatever it says, as in Whisper
    OnlySaysCausal=dict(
        hide=lambda self, s, m: s.masked_fill(torch.ones_like(s).triu(1).bool(), LOW)),
    # a table in single precision that is no buffer, so that no copy turns it
    SingleTable=dict(before=lambda self, x: x @ torch.eye(E)),
    # a norm that computes in single precision by force, as in CLIP
    SingleNorm=dict(base=AfterNorm, own={"norm": partial(variant(
        "NormInSingle", nn.LayerNorm,
        forward=lambda self, x: F.layer_norm(x.float(), (E,)).to(x)), E)}),
    # one number that begins as 0 lets the attention in, as in ReZero
    FromZero=dict(base=TinyScale, own={"gamma": lambda: nn.Parameter(torch.zeros(1))}),
    # each weight is a sigmoid of its score: the sum grows with the text
    Sigmoid=dict(softmax=lambda self, scores: scores.sigmoid()),
    # weights so small that each sigmoid is a quarter: four heads have a sum of one
    SmallSigmoid=dict(small=0.02, softmax=lambda self, s: (s - math.log(3)).sigmoid()),
    # the scale is a tensor in single precision, and no buffer
    ScaleInSingle=dict(
        own={"root": lambda: torch.sqrt(torch.FloatTensor([D]))},
        scale=lambda self, q: 1 / self.root),
    # weights are products of positive features, as in Katharopoulos et al. 2020
    LinearAttention=dict(
        scores=lambda self, q, k: (F.elu(q) + 1) @ (F.elu(k) + 1).mT,
        softmax=lambda self, scores: scores / scores.sum(dim=-1, keepdim=True),
        forward=unmasked),
    NarrowHeads=dict(base=WiderHeads, sizes=(12, 12, 12)),
    NarrowKeys=dict(base=WiderHeads, sizes=(12, 12, 24)),
    # takes values, keys and queries, and always a mask, which may be None
    NeedsMask=dict(
        forward=lambda self, values, keys, query, mask: (
            Stacked.forward(self, query, mask))),
    # takes masks of 1 and 0; a mask of zeros would hide all
    ShownAsOne=dict(
        hide=lambda self, s, m: s + (1 - m.to(s)) * torch.finfo(s.dtype).min),
    # the product of True and a Python number is in single: there, -1.8e308 is -inf
    FilledInSingle=dict(
        hide=lambda self, s, m: s + (m == 0) * torch.finfo(s.dtype).min),
    # a bias is added to the queries after the split, the same for each head
    BiasElsewhere=dict(
        own={"bias": (D,)},
        scores=lambda self, q, k: Stacked.scores(self, q + self.bias, k)),
    # in training, a residual connection is all that some texts get
    DropsPaths=dict(
        after=lambda self, y, x: (
            x + y * F.dropout(torch.ones(len(x), 1, 1), 0.05, self.training))),
    # scores are cosines times 100, however small the tokens are, as in Swin v2
    SharpCosines=dict(
        biased=False, scale=lambda self, q: 100.0,
        split=lambda self, x: F.normalize(Stacked.split(self, x), dim=-1)),
    # each token attends to 16 learned tokens only (external attention)
    StoredTokens=dict(
        own={"stored": (16, E)}, forward=unmasked,
        heads=lambda self, x: [
            Stacked.heads(self, x)[0], *Stacked.heads(self, self.stored[None])[1:]]),
    # a mask in single precision: beside double tensors, the kernel misreads it
    KernelMaskInSingle=dict(
        forward=unmasked,
        attend=lambda self, x, mask: self.merge(F.scaled_dot_product_attention(
            *self.heads(x), torch.full((x.shape[1],) * 2, LOW).triu(1)))),
    # weights so small that the scores, and so their positions, hardly count
    SmallRotary=dict(biased=False, small=0.05, heads=rotary, weigh=causal),
    # small weights, and a softmax in single precision by force
    SoftmaxInSingle=dict(
        biased=False, small=0.034,
        softmax=lambda self, s: s.float().softmax(dim=-1).to(s.dtype)),
    # scores stay between -50 and 50, as in Gemma 2, and here far from these
    SoftCap=dict(
        biased=False, small=0.15,
        softmax=lambda self, s: (50 * torch.tanh(s / 50)).softmax(dim=-1)),
)  # fmt: skip
OURS, TORCH = partial(MultiHeadAttention, E, H), partial(nn.MultiheadAttention, E, H)
RIGHT |= {
    "FreshZeros": partial(zeroed, Stacked, "out.weight"),
    # attends to itself, and to a second input, which has another mask
    "TwoInputs": partial(nn.TransformerDecoderLayer, E, H, 48, batch_first=True),
    "ours, plain": OURS,
    "ours, grouped": partial(OURS, num_kv_heads=2),
    "ours, rotary": partial(OURS, position=Rotary(D)),
    "ours, alibi": partial(OURS, position=ALiBi(H)),
    "ours, t5": partial(OURS, position=T5Bias(H)),
    "ours, dropout": partial(OURS, dropout=0.5),
    "torch, batch first": partial(TORCH, batch_first=True),
    "torch, sequence first": TORCH,
    "torch, no bias": partial(TORCH, bias=False, batch_first=True),
    "torch, bias_kv": partial(TORCH, add_bias_kv=True, batch_first=True),
}


# --- of a call, or in single ---


class RelativeShift(Stacked):
    """Transformer-XL: an unusual shift gives the scores of distances.

    Above the diagonal it gives those of the next query; a causal mask hides them.
    """

    own = {"positions": lambda: nn.Linear(E, E)}

    def scores(self, q, k):
        n = q.shape[2]
        far = sinusoidal(n, E).flip(0).to(q)
        scores = q @ self.split(self.positions(far)[None]).mT
        scores = F.pad(scores, (1, 0)).reshape(len(q), H, n + 1, n)[:, :, 1:]
        return (scores + q @ k.mT) * self.scale(q)


class MaskInSingle(Stacked):
    """Masks are added in single precision alone."""

    def hide(self, scores, mask):
        if mask.dtype not in (torch.float32, torch.bool):
            raise TypeError(f"mask is {mask.dtype}")
        return scores.float() + mask

    def weigh(self, scores, mask):
        return super().weigh(scores, mask).to(scores.dtype)


# --- wrong, or asked about ---


class Temperature(Stacked):
    """A second input that is no mask."""

    def forward(self, x, temperature=1.0):
        self.temperature = temperature
        return super().forward(x)

    def softmax(self, scores):
        return super().softmax(scores / self.temperature)


class EditsWeights(Stacked):
    """The weights are cut by running, once and for all."""

    def before(self, x):
        self.qkv.weight.data.clamp_(-0.1, 0.1)
        return x


class CacheOfOthers(Stacked):
    """Keys and values of the call before stay in front of those of this one."""

    kept = None

    def parts(self, x):
        q, k, v = super().parts(x)
        now = k, v
        if self.kept is not None and len(self.kept[0]) == len(x):
            k, v = (torch.cat(two, dim=1) for two in zip(self.kept, now))
        self.kept = now
        return q, k, v


def leaks_in_training(self, scores, mask):
    return (Stacked.weigh if self.training else causal)(self, scores, mask)


def hide_of_first_query(self, scores, mask):
    return Stacked.hide(self, scores, mask[..., :1, :])


def meant(what):
    """Return the verdict on what is a mistake, or done on purpose."""
    return f"No fault was found, if this is meant: {what}."


def entry(name, first, second, base=Stacked, **methods):
    """Return (class, first, second): a layer with other methods, and what is known."""
    return variant(name, base, **methods), first, second


ASKED = [  # class, what its report says, what it does not say
    (MaskInSingle, "-inf is added", "wrong"),
    (Temperature, "a second input hides something else: is it a mask?", "wrong"),
    # the output is added to the input in its place
    entry("ChangesInside", "layer is wrong: input", "meant",
          forward=lambda self, x: x.add_(
              Stacked.forward(self, F.layer_norm(x, x.shape[-1:])))),
    (EditsWeights, "but the layer changes qkv.weight: is it meant?", "WRONG"),
    # head h has the features h, h + 4, …, as in SuperGlue
    entry("EveryFourthFeature", meant("every num_heads-th feature"), "wrong",
          split=lambda self, x: x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2),
          merge=lambda self, heads: heads.permute(0, 2, 3, 1).flatten(2)),
    entry("SeesMoreInTraining", "in training mode it gives other numbers", "wrong",
          weigh=leaks_in_training),
    entry("SeesMoreBesideDropout", "without dropout, training gives other", "wrong",
          own={"dropout": lambda: 0.3},
          weigh=lambda self, s, m: F.dropout(
              leaks_in_training(self, s, m), self.dropout, self.training)),
    entry("DropsScores", "in training mode: before the softmax. Is it", "wrong",
          softmax=lambda self, s: F.dropout(s, 0.2, self.training).softmax(dim=-1)),
    # large scores are cut, and small ones are not
    entry("ClampsScores", meant("large scores"), "could not", biased=False, small=0.15,
          scores=lambda self, q, k: Stacked.scores(self, q, k).clamp(-5, 5)),
    # head i has the keys of group i % 2, and not those of its neighbour
    entry("GroupsInTurns", meant("same numbers"), "could not", NamesOfLlama,
          shared=lambda self, heads: heads.repeat(1, 2, 1, 1)),
    # each block of 16 tokens is a text of its own
    entry("InBlocks", "equal for 8 tokens, and not for 70", "could not",
          attend=lambda self, x, mask=None: torch.cat(
              [Stacked.attend(self, y) for y in x.split(16, dim=1)], dim=1)),
    # where nothing is seen, NaN is replaced by 0, and its gradient is NaN
    entry("ZerosPaintedOver", "gives zeros, or the bias of the output, and NaN as",
          "meant",
          hide=lambda self, s, m: s + torch.zeros_like(s).masked_fill(~m, LOW),
          softmax=lambda self, s: s.softmax(dim=-1).nan_to_num(0.0)),
    # each token sees earlier ones only, but for the first, which sees itself
    entry("OffByOne", "ones; but 1, 2, 3, 4, 5, 6, 7 do not see themselves: is it",
          "0, 1", weigh=seeing(lambda q, k: (k < q) | (q + k == 0))),
    # causal in the first eight tokens only
    entry("ShortTriangle", "but what comes later changes outputs: is it meant?",
          "WRONG", weigh=seeing(lambda q, k: (k <= q) | (k > 7))),
    # a second mask does nothing
    entry("PaddingIgnored", meant("second mask"), "wrong",
          forward=lambda self, x, mask=None, pad_mask=None: (
              Stacked.forward(self, x, mask))),
    # keys come from the input of the queries
    entry("KeysOfQuery", "nothing depends on its input key", "or value", Separate,
          forward=lambda self, query, key, value: Separate.forward(
              self, query, query, value)),
    # a bias of the values is loaded, and not added
    entry("UnusedBias", "nothing depends on v_bias: is it meant?", "qkv",
          own={"v_bias": (E,)}),
    # no mask hides the first token
    entry("FirstAlwaysSeen", "but token 0 stays visible: is it meant?", "WRONG",
          hide=lambda self, s, m: Stacked.hide(
              self, s, m | (torch.arange(m.shape[-1]) == 0))),
    # beside what is in single precision, another scale is seen
    entry("TableWideScale", "mistake: √embed_dim", "could not", RIGHT["SingleTable"],
          scale=lambda self, q: E**-0.5),
    # all queries get the mask of the first one
    entry("MaskOfFirstQuery", "but in shape (length, length) or "
          "(batch, 1, length, length) it hides", "wrong", hide=hide_of_first_query),
    entry("FirstQueryUnscaled", meant("no scale, mask, mask per text"), "wrong",
          hide=hide_of_first_query, scale=lambda self, q: 1.0),
    # of a mask for each text without an axis of heads, the first is taken
    entry("FirstMaskForAll", meant("mask per text"), "wrong",
          hide=lambda self, s, m: Stacked.hide(
              self, s, m[:1, None] if m.dim() == 3 else m)),
    # numbers on the way are too large for float16
    entry("OverflowsInHalf", meant("half precision"), "wrong",
          softmax=lambda self, s: (s * 1e5 / 1e5).softmax(dim=-1)),
    # no gradient reaches queries and keys
    entry("Detached", meant("gradients"), "wrong",
          softmax=lambda self, s: s.detach().softmax(dim=-1)),
]  # fmt: skip


# --- faults ---


def hiding(hidden):
    """Return a method: the softmax without what is hidden, whatever the mask says."""
    return lambda self, scores, mask: (
        scores.masked_fill(hidden(scores).bool(), LOW).softmax(-1).nan_to_num()
    )


def cut_text(self, x):
    return x.reshape(len(x), self.num_heads, x.shape[1], -1)


def glue(self, heads):
    return heads.reshape(len(heads), heads.shape[2], -1)


def normed(self, x):
    q, k, v = Stacked.parts(self, x)
    return F.layer_norm(q, q.shape[-1:]), F.layer_norm(k, k.shape[-1:]), v


def keys_cut(self, x):
    q, k, v = self.parts(x)
    return self.split(q), cut_text(self, k), self.split(v)


def mask_after(self, scores, mask):
    weights = self.softmax(scores)
    return weights if mask is None else weights * mask


FAULTS = [  # class, the known mistake that is named or None, the checks that fail
    # neither norms nor positions hide that tokens are mixed up
    entry("normed_reshape", None, "equal tokens",
          RIGHT["NormThenPositions"], split=cut_text),
    entry("rotary_merge", None, "equal tokens", heads=rotary, merge=glue),
    entry("keys_cut", "reshape without transpose", "same numbers", heads=keys_cut),
    entry("rotary_after", None, "equal tokens, mask", heads=rotary,
          weigh=lambda self, s, m: s.softmax(dim=-1).tril()),
    # only the names say which matrix is which
    entry("keys_first", "√embed_dim", "same numbers", ListOfHeads,
          names=("key", "query", "value"), scale=E**-0.5),
    # a shift of tokens excuses no mask after the softmax
    entry("shift_and_after", None, "mask", Shift, weigh=mask_after),
    # the shift goes around: the last token reaches the first one
    entry("rolled", None, "mask", Shift,
          shift=lambda self, x: torch.cat([x[..., :12].roll(1, 1), x[..., 12:]], -1)),
    # all texts of a batch get the mask of the first one
    entry("first_text", None, "mask per text",
          hide=lambda self, s, m: Stacked.hide(self, s, m[:1])),
    (CacheOfOthers, None, "repeats"),
    entry("zeros_hidden", None, "scores of 0",
          weigh=lambda self, s, m: s.masked_fill(s.tril() == 0, LOW).softmax(-1),
          forward=unmasked),
    entry("later_only", None, "who sees whom, mask",
          weigh=hiding(lambda s: torch.ones_like(s).tril())),
    entry("zeros_leak", "always a causal mask", "mask, with a mask, scores of 0",
          weigh=hiding(lambda s: s.triu(1))),
    entry("width_scale", "√embed_dim", "same numbers", scale=lambda self, q: E**-0.5),
    entry("no_scale", "no scale", "", scale=lambda self, q: 1.0),
    entry("d_scale", "divided by head_dim", "", scale=lambda self, q: 1 / q.shape[-1]),
    entry("reshape", "reshape without transpose", "equal tokens, same numbers, mask",
          split=cut_text),
    entry("merge", "merge without transpose", "equal tokens, same numbers", merge=glue),
    entry("both", "split and merge without transpose", "equal tokens, same numbers",
          split=cut_text, merge=glue),
    entry("over_queries", "softmax over the wrong axis",
          "equal tokens, same numbers, mask", softmax=lambda self, s: s.softmax(-2)),
    entry("rotary_queries", None, "equal tokens, mask", heads=rotary,
          softmax=lambda self, s: s.softmax(-2)),
    entry("normed_queries", None, "equal tokens, mask", parts=normed,
          softmax=lambda self, s: s.softmax(-2)),
    entry("over_heads", "softmax over the heads", "equal tokens, same numbers, mask",
          softmax=lambda self, s: s.softmax(1)),
    entry("one_ahead", None, "who sees whom, mask",
          weigh=hiding(lambda s: torch.ones_like(s).triu(2))),
    entry("not_itself", None, "mask",
          weigh=hiding(lambda s: torch.ones_like(s).triu())),
    entry("drops_in_eval", None, "repeats",
          weigh=lambda self, s, m: F.dropout(Stacked.weigh(self, s, m), 0.2)),
    entry("no_maximum", None, "large scores",
          softmax=lambda self, s: s.exp() / s.exp().sum(dim=-1, keepdim=True)),
    entry("after", "mask after the softmax", "mask, with a mask", weigh=mask_after),
    entry("minus_three", None, "mask", hide=lambda self, s, m: s.masked_fill(~m, -3.0)),
    entry("zeros_masked", None, "with a mask, scores of 0",
          hide=lambda self, s, m: s.masked_fill((s * ~m).bool(), LOW)),
    entry("hides_queries", "mask transposed", "mask, with a mask",
          hide=lambda self, s, m: s.masked_fill(~m.mT, LOW)),
    entry("times_triangle", "scores times mask", "same numbers, mask",
          weigh=lambda self, s, m: s.tril().softmax(dim=-1)),
    entry("times_mask", "scores times mask", "mask, with a mask",
          hide=lambda self, s, m: s * m),
    entry("scale_lost", None, "mask",
          hide=lambda self, s, m: (2 * s).masked_fill(~m, LOW)),
    entry("changes_input", None, "input", before=lambda self, x: x.add_(1.0)),
    entry("by_text", None, "batch",
          before=lambda self, x: x + torch.arange(len(x))[:, None, None].to(x)),
    entry("across_batch", None, "batch",
          before=lambda self, x: x - x.mean(dim=0), forward=unmasked),
    entry("keys_as_values", "w_q, w_k and w_v in other roles", "same numbers",
          parts=lambda self, x: [Stacked.parts(self, x)[i] for i in (0, 1, 1)]),
    entry("no_out", "no output projection", "same numbers", forward=Stacked.attend),
    entry("no_softmax", "no softmax", "mask", softmax=lambda self, x: x),
    entry("edits_mask", None, "mask",
          hide=lambda self, s, m: (s.masked_fill(~m, LOW), m.fill_(True))[0]),
    # dropout of -inf is NaN
    entry("nan_in_training", None, "dropout",
          forward=unmasked,
          weigh=lambda self, s, m: F.dropout(
              s + torch.triu(s + LOW, 1), 0.3, self.training).softmax(dim=-1)),
]  # fmt: skip
