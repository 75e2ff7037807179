"""Position schemes: how attention is told the order of the tokens.

A scheme has three methods: `embed` adds to the embeddings, once; `rotate` rotates
queries and keys, in every layer; `bias` is added to the scaled scores, in every layer.
The plain `PositionScheme` (NoPE) does nothing in all three; every other scheme
overrides exactly one of them.

Positions count tokens from 0. The last query stands at the last key, as in a causal
mask and a cache. Positions and angles are computed in single precision at least.
"""

import math
from itertools import count

import torch
from torch import Tensor, nn

from utils.masks import relative_positions

LAYOUTS = {"half": ((2, -1), -2), "interleaved": ((-1, 2), -1)}  # sizes, axis of a pair


class PositionScheme(nn.Module):
    """No positions at all (NoPE), and the three methods that a scheme may override.

    offset: position of the first token or key; above 0 where earlier ones are cached.
    query, key: their lengths and numbers of heads may differ.
    Source: Haviv et al. 2022; Kazemnejad et al. 2023, who named it.
    """

    def embed(self, x: Tensor, offset: int = 0) -> Tensor:
        """Return x (batch, length, embed_dim) with what tells the positions added."""
        return x

    def rotate(self, query: Tensor, key: Tensor, offset: int = 0):
        """Return query and key (batch, heads, length, head_dim), rotated."""
        return query, key

    def bias(self, query_length: int, key_length: int) -> Tensor | None:
        """Return what is added to the scaled scores (1, heads, queries, keys)."""
        return None


NoPE = PositionScheme


class Learned(PositionScheme):
    """A table of one learned vector per position, added to the embeddings.

    It ends: `embed` raises ValueError for positions from max_length on. It is drawn
    from N(0, 0.02²), as in BERT. (OpenAI's GPT-2 draws positions from N(0, 0.01²).)
    Source: Gehring et al. 2017, section 3.1; Vaswani et al. 2017, table 3, row (E).
    """

    def __init__(self, max_length: int, embed_dim: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def embed(self, x: Tensor, offset: int = 0) -> Tensor:
        max_length, embed_dim = self.table.shape
        _check_embeddings(x, embed_dim)
        if offset < 0:  # would count from the end of the table
            raise ValueError(f"offset is {offset}; positions count from 0.")
        end = offset + x.shape[1]
        if end > max_length:
            raise ValueError(f"position {end - 1} is not in the table: {max_length=}.")
        return x + self.table[offset:end].to(x.dtype)


class Sinusoidal(PositionScheme):
    """Sines and cosines of fixed frequencies, added to the embeddings; any length.

    Source: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, embed_dim: int):
        super().__init__()
        self.embed_dim = embed_dim

    def embed(self, x: Tensor, offset: int = 0) -> Tensor:
        _check_embeddings(x, self.embed_dim)
        waves = sinusoidal(x.shape[1], self.embed_dim, offset=offset, **_exact(x))
        return x + waves.to(x.dtype)  # (batch, length, embed_dim)


class Rotary(PositionScheme):
    """Queries and keys rotated by their position, pair of features by pair (RoPE).

    layout: which features are a pair. "half": i and i + head_dim / 2 (`rotate_half` of
        GPT-NeoX and Llama); "interleaved": 2i and 2i + 1 (the paper, GPT-J).
    base: "NTK-aware" scaling (bloc97 2023), for texts s times as long, multiplies it by
        s ** (head_dim / (head_dim - 2)): the slowest pair then rotates s times slower.
    scale: factor of the positions; with 1 / 4, texts of four times the length take the
        angles seen in training ("position interpolation", Chen et al. 2023).
    Source: Su et al. 2021, equations (14) to (16) and (34).
    """

    def __init__(self, head_dim: int, *, base=10000.0, layout="half", scale=1.0):
        super().__init__()
        if layout not in LAYOUTS:
            raise ValueError(f"{layout=}; give one of {', '.join(LAYOUTS)}.")
        if scale <= 0:  # would rotate backwards, or not at all
            raise ValueError(f"{scale=}; give a number above 0, such as 1 / 4.")
        self.head_dim, self.layout = head_dim, layout
        self.base, self.scale = base, scale

    def rotate(self, query: Tensor, key: Tensor, offset: int = 0):
        first = offset + key.shape[-2] - query.shape[-2]  # of the queries
        return self._rotated(query, first), self._rotated(key, offset)

    def frequencies(self, length: int, **options) -> Tensor:
        """Return radians per position (head_dim / 2,); length: of the text so far."""
        return self.scale * frequencies(self.head_dim, base=self.base, **options)

    def _rotated(self, x: Tensor, first: int) -> Tensor:
        length, options = first + x.shape[-2], _exact(x)
        turns = self.frequencies(length, **options)  # (pairs,)
        positions = torch.arange(first, length, **options)
        return rotate_pairs(x, positions[:, None] * turns, layout=self.layout)


class Stretched(Rotary):
    """Rotary, told its training's text length, in tokens, and a factor of 1 or more."""

    shortest = 1  # texts in training

    def __init__(self, head_dim: int, trained_length: int, factor: float, **options):
        super().__init__(head_dim, **options)
        if factor < 1:
            raise ValueError(f"{factor=}; give 1 or more.")
        if trained_length < self.shortest:
            raise ValueError(f"{trained_length=}; give {self.shortest} tokens or more.")
        self.trained_length, self.factor = trained_length, factor


class DynamicNTK(Stretched):
    """Rotary whose base grows with the text, from its trained length on.

    In a text r times as long, with r > 1, the base is multiplied by
    (factor * r - (factor - 1)) ** (head_dim / (head_dim - 2)). With factor=1 this is
    NTK-aware scaling by r. A text that grows in a cache changes the base for new keys
    only. (`transformers` has the same formula, but keeps the base of the longest text
    so far, until a text shorter than `trained_length` comes.)
    Source: emozilla 2023, described by Peng et al. 2024, section 3.3.
    """

    def frequencies(self, length: int, **options) -> Tensor:
        longer = max(length / self.trained_length, 1.0)
        growth = self.factor * longer - (self.factor - 1)
        base = self.base * growth ** (self.head_dim / (self.head_dim - 2))
        return self.scale * frequencies(self.head_dim, base=base, **options)


class YaRN(Stretched):
    """Rotary for texts `factor` times as long: each pair changed by its wavelength.

    Pairs that make 32 full turns and more in `trained_length` tokens rotate as before;
    those that make one and fewer, `factor` times slower; in between, the share of the
    old frequency falls in equal steps from pair to pair. Queries and keys are
    multiplied by 0.1 ln(factor) + 1, and so the scores by its square.
    Source: Peng et al. 2024, section 3, and the code that they published with it: the
    paper's own share falls with the number of turns.
    """

    shortest = 7  # in a shorter text, not even the fastest pair makes a full turn

    def frequencies(self, length: int, **options) -> Tensor:
        turns = super().frequencies(length, **options)  # (pairs,)
        # the numbers of the pairs, not whole, with 32 turns and with 1 in training
        waves = [self.trained_length / n / (2 * math.pi) for n in (32, 1)]
        fast, slow = (self.head_dim / 2 * math.log(x, self.base) for x in waves)
        first = max(math.floor(fast), 0)
        last = min(math.ceil(slow), self.head_dim - 1)
        pairs = torch.arange(len(turns), **options)
        changed = ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)
        return turns * (1 - changed) + turns / self.factor * changed

    def _rotated(self, x: Tensor, first: int) -> Tensor:
        return super()._rotated(x, first) * (0.1 * math.log(self.factor) + 1)


class ALiBi(PositionScheme):
    """A penalty on every score: the head's slope times the distance to the key.

    Later keys have none; a causal mask must hide them. Nothing is learned.
    Source: Press et al. 2022, section 3: added after the scaling by 1 / sqrt(head_dim).

    >>> ALiBi(num_heads=1).bias(3, 3)[0, 0] * 256
    tensor([[ 0.,  0.,  0.],
            [-1.,  0.,  0.],
            [-2., -1.,  0.]])
    """

    def __init__(self, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def bias(self, query_length: int, key_length: int) -> Tensor:
        ahead = relative_positions(query_length, key_length, device=self.slopes.device)
        return (self.slopes[:, None, None] * ahead.clamp(max=0))[None]

    def _apply(self, fn, recurse=True):  # .half() would round the slopes
        super()._apply(fn, recurse)
        self.slopes = alibi_slopes(self.num_heads).to(self.slopes.device)
        return self


class T5Bias(PositionScheme):
    """A learned number per head and bucket of distances, added to every score.

    Options and source: see `t5_bucket`; a causal mask must hide later keys. The table
    (num_buckets, num_heads) starts at 0. In T5, scores are not divided by
    sqrt(head_dim), and all layers share one table, as in `CausalLM`.
    """

    def __init__(self, num_heads: int, *, num_buckets=32, max_distance=128):
        super().__init__()
        self.num_heads = num_heads
        self.first = t5_first_distances(num_buckets, max_distance)
        self.table = nn.Parameter(torch.zeros(num_buckets, num_heads))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def bias(self, query_length: int, key_length: int) -> Tensor:
        ahead = relative_positions(query_length, key_length, device=self.table.device)
        buckets = _buckets(ahead, self.first)  # (queries, keys)
        # index_select: under vmap its derivative is three times faster than indexing's
        chosen = self.table.T.index_select(1, buckets.flatten())
        return chosen.unflatten(1, buckets.shape)[None]  # (1, heads, queries, keys)


def frequencies(dim: int, *, base=10000.0, device=None, dtype=torch.float32) -> Tensor:
    """Return base^(-2i/dim), the radians of pair i per position: (dim / 2, rounded up).

    >>> frequencies(4)
    tensor([1.0000, 0.0100])
    """
    return 1 / base ** (torch.arange(0, dim, 2, device=device).to(dtype) / dim)


def sinusoidal(length: int, embed_dim: int, *, offset: int = 0, **options) -> Tensor:
    """Return the sinusoidal positions (length, embed_dim), the first at `offset`.

    Feature 2i is sin(position * base^(-2i / embed_dim)), feature 2i + 1 its cosine;
    where embed_dim is odd, the last sine has no cosine.
    options: base, device and dtype, as in `frequencies`.

    >>> sinusoidal(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]])
    """
    angles = rotary_angles(length, embed_dim, offset=offset, **options)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)  # (length, pairs, 2)
    return waves.flatten(-2)[:, :embed_dim]


def rotary_angles(length: int, head_dim: int, *, offset: int = 0, **options) -> Tensor:
    """Return the angle of each position and pair, in radians (length, head_dim / 2).

    offset: the first position. options: base, device and dtype, as in `frequencies`.
    Source: Su et al. 2021, equation (15), which counts the pairs from 1.
    """
    turns = frequencies(head_dim, **options)  # (pairs,)
    positions = torch.arange(length, device=turns.device) + offset
    return positions.to(turns)[:, None] * turns


def rotate_pairs(x: Tensor, angles: Tensor, *, layout: str = "half") -> Tensor:
    """Return x (..., length, head_dim), each pair rotated by its angle.

    angles: radians (length, head_dim / 2). layout: as in `Rotary`.
    Source: Su et al. 2021, equation (34).

    >>> quarter = torch.full((1, 2), torch.pi / 2)
    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> rotate_pairs(x, quarter, layout="half")
    tensor([[-3., -4.,  1.,  2.]])
    >>> rotate_pairs(x, quarter, layout="interleaved")
    tensor([[-2.,  1., -4.,  3.]])
    """
    if not x.is_floating_point():  # whole numbers would be cut off
        raise TypeError(f"x is {x.dtype}; give floating point: x.float().")
    if angles.dim() != 2 or x.shape[-2:] != (len(angles), 2 * angles.shape[1]):
        shapes = f"x has shape {tuple(x.shape)}, the angles {tuple(angles.shape)}"
        raise ValueError(f"{shapes}; give (..., length, dim) and (length, dim / 2).")
    sizes, axis = LAYOUTS[layout]
    a, b = x.unflatten(-1, sizes).unbind(axis)  # (..., length, pairs)
    cos, sin = angles.cos(), angles.sin()  # (length, pairs)
    rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=axis)
    return rotated.flatten(-2).to(x.dtype)  # (..., length, head_dim)


def alibi_slopes(num_heads: int) -> Tensor:
    """Return the slope of each head, a penalty per position of distance (num_heads,).

    2^(-8 i / num_heads) for i = 1 … num_heads, where num_heads is a power of two.
    Otherwise, as in the authors' code, Bloom and MPT: the slopes of the next lower
    power, then every other one of its double (not sorted).
    Source: Press et al. 2022, section 3, and the code that they published with it.

    >>> alibi_slopes(6)
    tensor([0.2500, 0.0625, 0.0156, 0.0039, 0.5000, 0.1250])
    """
    power = 2 ** (num_heads.bit_length() - 1)
    exponents = [8 * i / power for i in range(1, power + 1)]
    exponents += [4 * i / power for i in range(1, 2 * power, 2)]  # of twice the power
    return torch.tensor([2.0**-x for x in exponents[:num_heads]])


def t5_bucket(relative: Tensor, *, num_buckets=32, max_distance=128) -> Tensor:
    """Return the bucket of each relative position (key - query), int64, same shape.

    Half of the buckets hold one distance each; the others grow in proportion to the
    distance, up to max_distance. Later keys are in bucket 0, as in T5's decoder.
    Source: Raffel et al. 2020, section 2.1, and the code that they published with it.

    >>> t5_bucket(torch.tensor([1, 0, -1, -15, -16, -18, -19, -112, -113])).tolist()
    [0, 0, 1, 15, 16, 16, 17, 30, 31]
    """
    return _buckets(relative.long(), t5_first_distances(num_buckets, max_distance))


def _buckets(relative: Tensor, first: list[int]) -> Tensor:
    """Return how many buckets begin at this distance or before it, less one."""
    later = torch.tensor(first[1:], device=relative.device)
    return torch.bucketize(relative.neg().clamp(min=0), later, right=True)


def t5_first_distances(num_buckets: int, max_distance: int) -> list[int]:
    """Return the smallest distance in each bucket.

    With e buckets of one distance each, and w wider ones, wide bucket k begins at
    e * (max_distance / e)^(k / w): found in whole numbers, where nothing is rounded.
    """
    exact, wide = num_buckets // 2, (num_buckets + 1) // 2
    if max_distance <= exact:
        raise ValueError(f"{max_distance=}; give more: single ones go up to {exact}.")
    first = [*range(exact + 1)]
    for k in range(1, wide):
        least = exact ** (wide - k) * max_distance**k  # to be reached by distance^wide
        first.append(next(n for n in count(first[-1]) if n**wide >= least))
    return first


def _exact(x: Tensor) -> dict:
    """Return where positions are computed: on x's device, in single or double."""
    return {"device": x.device, "dtype": torch.promote_types(x.dtype, torch.float32)}


def _check_embeddings(x: Tensor, embed_dim: int) -> None:
    """Refuse what could be added to by accident: token ids, or a text without batch."""
    if not x.is_floating_point() or x.dim() != 3 or x.shape[-1] != embed_dim:
        given, wanted = f"x is {x.dtype} {tuple(x.shape)}", f"{embed_dim=}"
        raise ValueError(f"{given}; give floats (batch, length, embed_dim), {wanted}.")
