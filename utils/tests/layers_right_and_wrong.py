"""Layers that `examine` is tried on: right ones of many kinds, and wrong ones."""

import math
from itertools import product

import torch
import torch.nn.functional as F
from torch import nn

from utils import positions
from utils.positions import sinusoidal

E, H, D = 24, 4, 6
LOW = -math.inf


class Stacked(nn.Module):
    """One stacked projection; what is wrong, or done otherwise, overrides one method.

    own: shapes of further parameters; biased: the projection has a bias, which is
    drawn; small: a factor that makes all weights small, and the other bias 0.
    """

    own, biased, small = {}, True, None

    def __init__(self, embed_dim=E, num_heads=H):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=self.biased)
        self.out = nn.Linear(embed_dim, embed_dim)
        if self.biased:
            nn.init.normal_(self.qkv.bias)
        for name, shape in self.own.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))
        if self.small:
            self.qkv.weight.data *= self.small
            self.out.weight.data *= self.small
            nn.init.zeros_(self.out.bias)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge(self, heads):
        return heads.transpose(1, 2).flatten(2)

    def scale(self, q):
        return q.shape[-1] ** -0.5

    def softmax(self, scores):
        return scores.softmax(dim=-1)

    def hide(self, scores, mask):
        return scores.masked_fill(~mask, -math.inf)

    def weigh(self, scores, mask):
        return self.softmax(scores if mask is None else self.hide(scores, mask))

    def parts(self, x):
        return self.qkv(x).chunk(3, dim=-1)

    def attend(self, x, mask=None):
        q, k, v = map(self.split, self.parts(x))
        weights = self.weigh(q @ k.mT * self.scale(q), mask)
        return self.merge(weights @ v)

    def forward(self, x, mask=None):
        return self.out(self.attend(x, mask))


def variant(name, base=Stacked, **methods):
    """Return a class: a layer with other methods."""
    return type(name, (base,), methods)


# --- right ---


class Interleaved(Stacked):
    def parts(self, x):
        x = self.qkv(x).unflatten(-1, (self.num_heads, 3, -1))
        return [x[..., i, :].flatten(-2) for i in range(3)]


class ListOfHeads(nn.Module):
    """Heads as modules, causal by a registered triangle."""

    names, scale = ("query", "key", "value"), D**-0.5

    def __init__(self, embed_dim=E, num_heads=H, block_size=8):
        super().__init__()
        dim = embed_dim // num_heads
        self.heads = nn.ModuleList(nn.ModuleDict() for _ in range(num_heads))
        for head, name in product(self.heads, self.names):
            head[name] = nn.Linear(embed_dim, dim, bias=False)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.register_buffer("triangle", torch.ones(block_size, block_size).tril())

    def forward(self, x):
        hide = self.triangle[: x.shape[1], : x.shape[1]] == 0
        outputs = []
        for head in self.heads:
            q, k, v = (head[name](x) for name in ("query", "key", "value"))
            scores = (q @ k.mT * self.scale).masked_fill(hide, -math.inf)
            outputs.append(scores.softmax(dim=-1) @ v)
        return self.out(torch.cat(outputs, dim=-1))


class Separate(nn.Module):
    """Separate projections, -1e9 as a mask; returns weights after dropout, too."""

    def __init__(self, embed_dim=E, num_heads=H):
        super().__init__()
        self.h = num_heads
        for name in "qkvo":
            setattr(self, f"w_{name}", nn.Linear(embed_dim, embed_dim))
        self.dropout = nn.Dropout(0.5)

    def forward(self, query, key, value, mask=None):
        def cut(x):
            return x.view(len(x), -1, self.h, x.shape[-1] // self.h).transpose(1, 2)

        q, k, v = cut(self.w_q(query)), cut(self.w_k(key)), cut(self.w_v(value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
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
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1) @ v


def seeing(name, pattern):
    """Return a class: a layer whose queries see what a pattern of ones leaves."""

    def weigh(self, scores, mask):
        seen = pattern(torch.ones(scores.shape[-2:])).bool()
        return Stacked.weigh(self, scores, seen if mask is None else seen & mask)

    return variant(name, weigh=weigh)


Causal = seeing("Causal", torch.tril)
Window = seeing("Window", lambda ones: ones.tril().triu(-2))
Local = seeing("Local", lambda ones: ones.tril(1).triu(-1))
Prefix = seeing(
    "Prefix", lambda ones: ones.tril().where(torch.arange(len(ones)) > 2, 1)
)


class Sink(Stacked):
    """A learned logit in the softmax that belongs to no token."""

    own = {"sink": (H, 1, 1)}

    def softmax(self, scores):
        sink = self.sink.expand(len(scores), -1, scores.shape[-2], 1)
        return torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]


def turned(heads, by=1.0):
    """Return heads (batch, heads, length, D) rotated as by RoPE, or by -1 back."""
    angles = torch.arange(heads.shape[2])[:, None] / 10.0 ** torch.arange(D // 2)
    return positions.rotate_pairs(heads, by * angles.to(heads))


def rotary(self, x):
    """Return the parts of a layer with RoPE in queries and keys."""
    q, k, v = map(self.split, Stacked.parts(self, x))
    return [Stacked.merge(self, y) for y in (turned(q), turned(k), v)]


# positions and a sink in both directions, as GPT-OSS without a mask
RotarySink = variant("RotarySink", Sink, parts=rotary)


class RotaryValues(Stacked):
    """Values are rotated, too, and the heads are rotated back."""

    def attend(self, x, mask=None):
        q, k, v = (turned(self.split(part)) for part in self.parts(x))
        return self.merge(turned(self.weigh(q @ k.mT * self.scale(q), mask) @ v, -1.0))


class RotaryRegisters(Stacked):
    """Two tokens of its own stand before the text, and there are positions."""

    own, parts = {"registers": (2, E)}, rotary

    def forward(self, x):
        own = self.registers.expand(len(x), -1, -1)
        return super().forward(torch.cat([own, x], dim=1))[:, 2:]


class OnlyFirst(Stacked):
    """The first token attends, and the others pass through, as in CaiT."""

    def forward(self, x):
        return torch.cat([super().forward(x)[:, :1], x[:, 1:]], dim=1)


class AddedPositions(Stacked):
    own = {"pos_embedding": (1, 32, E)}

    def forward(self, x, mask=None):
        return super().forward(x + self.pos_embedding[:, : x.shape[1]], mask)


class SinusoidalPositions(Stacked):
    """Positions are added inside, and no parameter has their name."""

    def forward(self, x, mask=None):
        return super().forward(x + sinusoidal(x.shape[1], E).to(x), mask)


class OneName(SinusoidalPositions):
    """The name of one matrix says all three roles, as in GPT-NeoX."""

    def __init__(self):
        super().__init__()
        self.query_key_value = self.qkv
        del self.qkv

    def parts(self, x):
        return self.query_key_value(x).chunk(3, dim=-1)


class NormThenPositions(Stacked):
    """A norm before the positions: tokens of every size come out alike."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm_out = nn.LayerNorm(E), nn.LayerNorm(E)

    def forward(self, x):
        y = super().forward(self.norm(x) + sinusoidal(x.shape[1], E).to(x))
        return x + self.norm_out(y)


class NormByHand(SinusoidalPositions):
    """No module is named after the norm that comes before the positions."""

    def forward(self, x):
        return super().forward(x / x.square().mean(dim=-1, keepdim=True).sqrt())


class Convolution(Stacked):
    """A convolution gives each token its neighbours, as in CvT."""

    def __init__(self):
        super().__init__()
        self.neighbours = nn.Conv1d(E, E, 3, padding=1, groups=E)

    def forward(self, x, mask=None):
        return super().forward(self.neighbours(x.mT).mT, mask)


class AfterNorm(Stacked):
    """A norm before, a residual connection around it: a sublayer."""

    kind = nn.LayerNorm

    def __init__(self):
        super().__init__()
        self.norm = self.kind(E)

    def forward(self, x, mask=None):
        return x + super().forward(self.norm(x), mask)


class Shift(AfterNorm):
    """A part of the features comes from the token before, as in x-transformers."""

    before = (0, 0, 1, -1)
    weigh = Causal.weigh

    def shift(self, x):
        parts = x.chunk(2, dim=-1)
        return torch.cat([F.pad(parts[0], self.before), parts[1]], dim=-1)

    def parts(self, x):
        return super().parts(self.shift(x))


class ShiftBothWays(Shift):
    """Another part comes from the token after; every token sees every token."""

    weigh = Stacked.weigh

    def shift(self, x):
        a, b, c = x.chunk(3, dim=-1)
        return torch.cat([F.pad(a, self.before), F.pad(b, (0, 0, -1, 1)), c], dim=-1)


class OnlySaysCausal(Stacked):
    """Any mask means "causal", whatever it says, as in Whisper."""

    def weigh(self, scores, mask):
        seen = None if mask is None else torch.ones(scores.shape[-2:]).tril().bool()
        return super().weigh(scores, seen)


# a norm that computes in single precision by force, as in CLIP
NormInSingle = variant(
    "Norm", nn.LayerNorm, forward=lambda self, x: F.layer_norm(x.float(), (E,)).to(x)
)
SingleNorm = variant("SingleNorm", AfterNorm, kind=NormInSingle)


class SingleTable(Stacked):
    """A table in single precision that is no buffer, so that no copy turns it."""

    def forward(self, x, mask=None):
        return super().forward(x @ torch.eye(E), mask)


class TinyScale(Stacked):
    """A residual connection to which hardly anything is added yet (LayerScale)."""

    gain = torch.full((E,), 1e-9)

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(self.gain.clone())

    def forward(self, x, mask=None):
        return x + self.gamma * super().forward(x, mask)


# one number that begins as 0 lets the attention in, as in ReZero
FromZero = variant("FromZero", TinyScale, gain=torch.zeros(1))


class TwoInputs(nn.TransformerDecoderLayer):
    """Attends to itself, and to a second input, which has another mask."""

    def __init__(self):
        super().__init__(E, H, 48, batch_first=True)


class Closure(Stacked):
    """A function keeps the modules of the layer: a copy still calls them."""

    def __init__(self):
        super().__init__()
        dropout, lin = nn.Dropout(0.5), nn.Linear(E, E, bias=False)
        self.dropout, self.lin = dropout, lin
        self.before, self.drop = lambda x: lin(x), lambda x: dropout(x)

    def forward(self, x, mask=None):
        return self.drop(super().forward(self.before(x), mask))


# each weight is a sigmoid of its score: the sum grows with the text
Sigmoid = variant("Sigmoid", softmax=lambda self, scores: scores.sigmoid())
# weights so small that each sigmoid is a quarter: four heads have a sum of one
SmallSigmoid = variant(
    "SmallSigmoid", small=0.02, softmax=lambda self, s: (s - math.log(3)).sigmoid()
)


class ScaleInSingle(Stacked):
    """The scale is a tensor in single precision, and no buffer."""

    def __init__(self):
        super().__init__()
        self.root = torch.sqrt(torch.FloatTensor([D]))

    def scale(self, q):
        return 1 / self.root


class LinearAttention(Stacked):
    """Weights are products of positive features, as in Katharopoulos et al. 2020."""

    def forward(self, x):
        q, k, v = map(self.split, self.parts(x))
        weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
        return self.out(self.merge(weights / weights.sum(dim=-1, keepdim=True) @ v))


class FreshZeros(Stacked):
    """The output matrix begins as zeros, as in some trainings."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.out.weight)


class TwoLayers(nn.Module):
    """What a mask hides in two layers must be hidden by every way through them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = AfterNorm(), AfterNorm()

    def forward(self, x, mask=None):
        return self.second(self.first(x, mask), mask)


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


NarrowHeads = variant("NarrowHeads", WiderHeads, sizes=(12, 12, 12))
NarrowKeys = variant("NarrowKeys", WiderHeads, sizes=(12, 12, 24))


class KeyPadding(Stacked):
    """True hides, and each text has a row (batch, length), as key_padding_mask."""

    def forward(self, x, key_padding_mask=None):
        mask = None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        return super().forward(x, mask)


class ExtraKey(nn.Module):
    """nn.MultiheadAttention with an extra key, and another output matrix."""

    def __init__(self):
        super().__init__()
        options = {"add_bias_kv": True, "batch_first": True}
        self.attention = nn.MultiheadAttention(E, H, **options)
        self.proj = nn.Linear(E, E)

    def forward(self, x):
        return self.proj(self.attention(x, x, x)[0])


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
        q, k, _ = map(self.split, self.parts(x))
        weights = self.weigh(q @ k.mT * self.scale(q), mask)
        return weights, super().forward(x, mask)


class NeedsMask(Stacked):
    """Takes values, keys and queries, and always a mask, which may be None."""

    def forward(self, values, keys, query, mask):
        return super().forward(query, mask)


class ShownAsOne(Stacked):
    """Takes masks of 1 and 0; a mask of zeros would hide all."""

    def hide(self, scores, mask):
        return scores + (1 - mask.to(scores)) * torch.finfo(scores.dtype).min


class FilledInSingle(Stacked):
    """The product of True and a Python number is in single: there, -1.8e308 is -inf."""

    def hide(self, scores, mask):
        return scores + (mask == 0) * torch.finfo(scores.dtype).min


class BiasElsewhere(Stacked):
    """A bias is added to the queries after the split, the same for each head."""

    own = {"bias": (D,)}

    def parts(self, x):
        q, k, v = super().parts(x)
        return q + self.bias.repeat(H), k, v


class DropsPaths(Stacked):
    def forward(self, x, mask=None):
        kept = torch.bernoulli(torch.full((len(x), 1, 1), 0.95)) / 0.95
        return x + super().forward(x, mask) * (kept if self.training else 1)


class SharpCosines(Stacked):
    """Scores are cosines times 100, however small the tokens are, as in Swin v2."""

    biased = False

    def split(self, x):
        return F.normalize(super().split(x), dim=-1)

    def scale(self, q):
        return 100.0


# weights so small that the scores, and so their positions, hardly count
SmallRotary = variant("SmallRotary", Causal, biased=False, small=0.05, parts=rotary)


class RoomForNine(Causal):
    """Its cache has room for nine texts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(9, 128, 3 * E))

    def parts(self, x):
        self.cache[: len(x), : x.shape[1]] = self.qkv(x)
        return self.cache[: len(x), : x.shape[1]].clone().chunk(3, dim=-1)


class SoftmaxInSingle(Stacked):
    """Small weights, and a softmax in single precision by force."""

    biased, small = False, 0.034

    def softmax(self, scores):
        return super().softmax(scores.float()).to(scores.dtype)


class SoftCap(Stacked):
    """Scores stay between -50 and 50, as in Gemma 2, and here far from these."""

    biased, small = False, 0.15

    def softmax(self, scores):
        return super().softmax(50 * torch.tanh(scores / 50))


class NamesOfLlama(nn.Module):
    """Grouped heads, and a norm with a parameter that must be above 0."""

    def __init__(self, embed_dim=E, num_heads=H):
        super().__init__()
        self.wq = nn.Linear(embed_dim, embed_dim, bias=False)
        self.wk = nn.Linear(embed_dim, embed_dim // 2, bias=False)
        self.wv = nn.Linear(embed_dim, embed_dim // 2, bias=False)
        self.wo = nn.Linear(embed_dim, embed_dim, bias=False)
        self.eps = nn.Parameter(torch.full((8,), 1e-6))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, D)) for w in (self.wq, self.wk, self.wv))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        k, v = (each.repeat_interleave(2, dim=1) for each in (k, v))
        one = self.eps.sqrt().mean() / self.eps.sqrt().mean()  # NaN below 0
        weights = (q @ k.mT * D**-0.5 * one).softmax(dim=-1)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))


class StoredTokens(Stacked):
    """Each token attends to 16 learned tokens only (external attention)."""

    own = {"stored": (16, E)}

    def forward(self, x):
        q, (_, k, v) = self.parts(x)[0], self.parts(self.stored[None])
        q, k, v = map(self.split, (q, k, v))
        weights = self.softmax(q @ k.mT * self.scale(q))
        return self.out(self.merge(weights @ v))


class KernelMaskInSingle(Stacked):
    """A mask in single precision: beside double tensors, the kernel misreads it."""

    def forward(self, x):
        q, k, v = map(self.split, self.parts(x))
        later = torch.full((x.shape[1],) * 2, -math.inf).triu(1)
        return self.out(self.merge(F.scaled_dot_product_attention(q, k, v, later)))


RIGHT = [
    x for x in [*vars().values()]
    if isinstance(x, type) and nn.Module in x.mro() and x is not NormInSingle
]  # fmt: skip


class RelativeShift(Stacked):
    """Transformer-XL: an unusual shift gives the scores of distances.

    Above the diagonal it gives those of the next query; a causal mask hides them.
    """

    def __init__(self):
        super().__init__()
        self.positions = nn.Linear(E, E)

    def forward(self, x, mask):
        q, k, v = map(self.split, self.parts(x))
        n = x.shape[1]
        far = sinusoidal(n, E).flip(0).to(x)
        scores = q @ self.split(self.positions(far)[None]).mT
        scores = F.pad(scores, (1, 0)).reshape(len(x), H, n + 1, n)[:, :, 1:]
        weights = self.weigh((scores + q @ k.mT) * self.scale(q), mask)
        return self.out(self.merge(weights @ v))


# --- wrong ---


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


def keys_cut(self, x, mask=None):
    q, k, v = self.parts(x)
    q, k, v = self.split(q), cut_text(self, k), self.split(v)
    return self.merge(self.weigh(q @ k.mT * self.scale(q), mask) @ v)


def mask_after(self, scores, mask):
    weights = self.softmax(scores)
    return weights if mask is None else weights * mask


def triangle_after(self, scores, mask):
    return scores.softmax(dim=-1) * torch.ones_like(scores).tril()


def times_triangle(self, scores, mask):
    return (scores * torch.ones_like(scores).tril()).softmax(dim=-1)


def keys_as_values(self, x):
    query, key, _ = self.qkv(x).chunk(3, dim=-1)
    return query, key, key


def changes_input(self, x, mask=None):
    x += 1.0
    return Stacked.forward(self, x, mask)


def by_text(self, x, mask=None):
    return Stacked.forward(self, x + torch.arange(len(x))[:, None, None].to(x), mask)


def rolled(self, x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a.roll(1, dims=1), b], dim=-1)


class MaskInSingle(Stacked):
    """Masks are added in single precision alone."""

    def hide(self, scores, mask):
        if mask.dtype not in (torch.float32, torch.bool):
            raise TypeError(f"mask is {mask.dtype}")
        return scores.float() + mask

    def attend(self, x, mask=None):
        q, k, v = map(self.split, self.parts(x))
        weights = self.weigh(q @ k.mT * self.scale(q), mask)
        return self.merge(weights.to(v.dtype) @ v)


class ZerosPaintedOver(Stacked):
    """Where nothing is seen, NaN is replaced by 0, and its gradient is NaN."""

    def hide(self, scores, mask):
        return scores + torch.zeros_like(scores).masked_fill(~mask, LOW)

    def softmax(self, scores):
        return super().softmax(scores).nan_to_num(0.0)


class OffByOne(Stacked):
    """Each token sees earlier ones only, but for the first, which sees itself."""

    def weigh(self, scores, mask):
        visible = torch.ones_like(scores).tril(-1)
        visible[..., 0, 0] = 1
        return super().weigh(scores.masked_fill(visible == 0, LOW), mask)


class EveryFourthFeature(Stacked):
    """Head h has the features h, h + 4, …, as in SuperGlue."""

    def split(self, x):
        return x.unflatten(-1, (-1, self.num_heads)).permute(0, 3, 1, 2)

    def merge(self, heads):
        return heads.permute(0, 2, 3, 1).flatten(2)


class Temperature(Stacked):
    """A second input that is no mask."""

    def forward(self, x, temperature=1.0):
        self.temperature = temperature
        return super().forward(x)

    def softmax(self, scores):
        return super().softmax(scores / self.temperature)


class PaddingIgnored(Stacked):
    """A second mask does nothing."""

    def forward(self, x, mask=None, pad_mask=None):
        return super().forward(x, mask)


class KeysOfQuery(Separate):
    """Keys come from the input of the queries."""

    def forward(self, query, key, value):
        return super().forward(query, query, value)


class ChangesInside(Stacked):
    """The output is added to the input in its place."""

    def forward(self, x):
        x += super().forward(F.layer_norm(x, x.shape[-1:]))
        return x


class SeesMoreInTraining(Stacked):
    """It leaks in training alone."""

    def weigh(self, scores, mask):
        scores = scores if self.training else scores + torch.triu(scores + LOW, 1)
        return super().weigh(scores, mask)


class SeesMoreBesideDropout(SeesMoreInTraining):
    """And drops weights there."""

    def __init__(self):
        super().__init__()
        self.dropout = 0.3

    def weigh(self, scores, mask):
        return F.dropout(super().weigh(scores, mask), self.dropout, self.training)


class UnusedBias(Stacked):
    """A bias of the values is loaded, and not added."""

    own = {"v_bias": (E,)}


class FirstAlwaysSeen(Stacked):
    """No mask hides the first token."""

    def hide(self, scores, mask):
        mask = mask.clone()
        mask[..., 0] = True
        return super().hide(scores, mask)


class ShortTriangle(Stacked):
    """Causal in the first eight tokens only."""

    def weigh(self, scores, mask):
        later = torch.ones_like(scores[:, :, :8, :8]).triu(1)
        rest = [0, scores.shape[-1] - later.shape[-1]] * 2
        return super().weigh(scores.masked_fill(F.pad(later, rest).bool(), LOW), mask)


class EditsWeights(Stacked):
    """The weights are cut by running, once and for all."""

    def attend(self, x, mask=None):
        self.qkv.weight.data.clamp_(-0.1, 0.1)
        return super().attend(x, mask)


# beside what is in single precision, another scale is seen
TableWideScale = variant("TableWideScale", SingleTable, scale=lambda self, q: E**-0.5)
# all queries get the mask of the first one
MaskOfFirstQuery = variant(
    "MaskOfFirstQuery", hide=lambda self, s, m: Stacked.hide(self, s, m[..., :1, :])
)
FirstQueryUnscaled = variant(
    "FirstQueryUnscaled", MaskOfFirstQuery, scale=lambda self, q: 1.0
)
# of a mask for each text without an axis of heads, the first is taken
FirstMaskForAll = variant(
    "FirstMaskForAll",
    hide=lambda self, s, m: Stacked.hide(self, s, m[:1, None] if m.dim() == 3 else m),
)
# numbers on the way are too large for float16
OverflowsInHalf = variant(
    "OverflowsInHalf", softmax=lambda self, s: (s * 1e5 / 1e5).softmax(dim=-1)
)
# no gradient reaches queries and keys
Detached = variant("Detached", softmax=lambda self, s: s.detach().softmax(dim=-1))


class InBlocks(Stacked):
    """Each block of 16 tokens is a text of its own."""

    def attend(self, x, mask=None):
        return torch.cat([super(InBlocks, self).attend(y) for y in x.split(16, 1)], 1)


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


def wrong(name, cause, checks, base=Stacked, **methods):
    """Return (name, cause, checks, class): a layer with other methods."""
    return name, cause, checks, variant(name, base, **methods)


FAULTS = [  # name, the known mistake that is named or None, the checks that fail, class
    # neither norms nor positions hide that tokens are mixed up
    wrong("normed_reshape", None, "equal tokens", NormThenPositions, split=cut_text),
    wrong("rotary_merge", None, "equal tokens", parts=rotary, merge=glue),
    wrong("keys_cut", "reshape without transpose", "same numbers", attend=keys_cut),
    wrong("rotary_after", None, "equal tokens, mask", parts=rotary,
          weigh=triangle_after),
    # only the names say which matrix is which
    wrong("keys_first", "√embed_dim", "same numbers", ListOfHeads,
          names=("key", "query", "value"), scale=E**-0.5),
    # a shift of tokens excuses no mask after the softmax
    wrong("shift_and_after", None, "mask", Shift, weigh=mask_after),
    # the shift goes around: the last token reaches the first one
    wrong("rolled", None, "mask", Shift, shift=rolled),
    # all texts of a batch get the mask of the first one
    wrong("first_text", None, "mask per text",
          hide=lambda self, s, m: Stacked.hide(self, s, m[:1])),
    ("cache_of_others", None, "repeats", CacheOfOthers),
    wrong("zeros_hidden", None, "scores of 0",
          weigh=lambda self, s, m: s.masked_fill(s.tril() == 0, LOW).softmax(-1),
          forward=lambda self, x: self.out(self.attend(x))),
    wrong("later_only", None, "who sees whom, mask",
          weigh=hiding(lambda s: torch.ones_like(s).tril())),
    wrong("zeros_leak", "always a causal mask", "mask, with a mask, scores of 0",
          weigh=hiding(lambda s: s.triu(1))),
    wrong("width_scale", "√embed_dim", "same numbers", scale=lambda self, q: E**-0.5),
    wrong("no_scale", "no scale", "", scale=lambda self, q: 1.0),
    wrong("d_scale", "divided by head_dim", "", scale=lambda self, q: 1 / q.shape[-1]),
    wrong("reshape", "reshape without transpose", "equal tokens, same numbers, mask",
          split=cut_text),
    wrong("merge", "merge without transpose", "equal tokens, same numbers", merge=glue),
    wrong("both", "split and merge without transpose", "equal tokens, same numbers",
          split=cut_text, merge=glue),
    wrong("over_queries", "softmax over the wrong axis",
          "equal tokens, same numbers, mask", softmax=lambda self, s: s.softmax(-2)),
    wrong("rotary_queries", None, "equal tokens, mask", parts=rotary,
          softmax=lambda self, s: s.softmax(-2)),
    wrong("normed_queries", None, "equal tokens, mask", parts=normed,
          softmax=lambda self, s: s.softmax(-2)),
    wrong("over_heads", "softmax over the heads", "equal tokens, same numbers, mask",
          softmax=lambda self, s: s.softmax(1)),
    wrong("one_ahead", None, "who sees whom, mask",
          weigh=hiding(lambda s: torch.ones_like(s).triu(2))),
    wrong("not_itself", None, "mask",
          weigh=hiding(lambda s: torch.ones_like(s).triu())),
    wrong("drops_in_eval", None, "repeats",
          weigh=lambda self, s, m: F.dropout(Stacked.weigh(self, s, m), 0.2)),
    wrong("no_maximum", None, "large scores",
          softmax=lambda self, s: s.exp() / s.exp().sum(dim=-1, keepdim=True)),
    wrong("after", "mask after the softmax", "mask, with a mask", weigh=mask_after),
    wrong("minus_three", None, "mask", hide=lambda self, s, m: s.masked_fill(~m, -3.0)),
    wrong("zeros_masked", None, "with a mask, scores of 0",
          hide=lambda self, s, m: s.masked_fill((s * ~m).bool(), LOW)),
    wrong("hides_queries", "mask transposed", "mask, with a mask",
          hide=lambda self, s, m: s.masked_fill(~m.mT, LOW)),
    wrong("times_triangle", "scores times mask", "same numbers, mask",
          weigh=times_triangle),
    wrong("times_mask", "scores times mask", "mask, with a mask",
          hide=lambda self, s, m: s * m),
    wrong("scale_lost", None, "mask",
          hide=lambda self, s, m: (2 * s).masked_fill(~m, LOW)),
    wrong("changes_input", None, "input", forward=changes_input),
    wrong("by_text", None, "batch", forward=by_text),
    wrong("across_batch", None, "batch",
          forward=lambda self, x: Stacked.forward(self, x - x.mean(dim=0))),
    wrong("keys_as_values", "w_q, w_k and w_v in other roles", "same numbers",
          parts=keys_as_values),
    wrong("no_out", "no output projection", "same numbers", forward=Stacked.attend),
    wrong("no_softmax", "no softmax", "mask", softmax=lambda self, x: x),
    wrong("edits_mask", None, "mask",
          hide=lambda self, s, m: (s.masked_fill(~m, LOW), m.fill_(True))[0]),
    # dropout of -inf is NaN
    wrong("nan_in_training", None, "dropout",
          forward=lambda self, x: self.out(self.attend(x)),
          weigh=lambda self, s, m: F.dropout(
              s + torch.triu(s + LOW, 1), 0.3, self.training).softmax(dim=-1)),
]  # fmt: skip
