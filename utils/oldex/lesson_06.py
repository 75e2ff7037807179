"""Exercises of notebook 06: a block, a baseline, a test for leaks, a loss to repair."""

import functools
import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.attention import merge_heads, split_heads
from utils.oldex.engine import Exercise, randn

IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import MultiHeadAttention, causal_mask, merge_heads, split_heads
from utils.models import Block, CausalLM
"""

# --- 6.1 the block of 2017, with its norms after the additions ---

EPS = 1e-5


def layer_norm(x, gain, shift, eps=EPS):
    return F.layer_norm(x, x.shape[-1:], gain, shift, eps)


def feed_forward(x, w_1, b_1, w_2, b_2, activation=torch.relu):
    return activation(x @ w_1.mT + b_1) @ w_2.mT + b_2


def post_norm_block(x, attend, w_1, b_1, w_2, b_2, gains, shifts):
    """Return norm(x + attention(x)), and of that norm(x + mlp(x))."""
    x = layer_norm(x + attend(x), gains[0], shifts[0])
    return layer_norm(x + feed_forward(x, w_1, b_1, w_2, b_2), gains[1], shifts[1])


def self_attention(embed_dim, num_heads, causal, seed):
    """Return attention with weights of its own, as a function of x alone."""
    shape = (4, embed_dim, embed_dim)
    weights = randn(*shape, seed=seed, dtype=torch.float64) / embed_dim**0.5

    def attend(x):
        *projections, w_o = weights.to(x.dtype)
        q, k, v = (split_heads(x @ w.mT, num_heads) for w in projections)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return merge_heads(heads) @ w_o.mT

    attend.__name__ = "a causal attention" if causal else "an attention"
    return attend


def block_trials(dtype):
    # batch, length, embed_dim, heads, features inside the MLP
    sizes = [(2, 5, 8, 2, 32), (1, 1, 6, 3, 10), (3, 3, 3, 1, 3), (2, 7, 12, 4, 20)]
    trials = []
    for at, (batch, length, embed, heads, inner) in enumerate(sizes):
        draw = functools.partial(randn, dtype=dtype)
        trial = {
            "x": draw(batch, length, embed, seed=10 * at),
            "attend": self_attention(embed, heads, at % 2 == 1, seed=10 * at + 1),
            "w_1": draw(inner, embed, seed=10 * at + 2) / embed**0.5,
            "b_1": draw(inner, seed=10 * at + 3),
            "w_2": draw(embed, inner, seed=10 * at + 4) / inner**0.5,
            "b_2": draw(embed, seed=10 * at + 5),
            "gains": 1 + draw(2, embed, seed=10 * at + 6) / 2,
            "shifts": draw(2, embed, seed=10 * at + 7),
        }
        trials.append(trial)
    yield from trials
    first, x = trials[0], trials[0]["x"]
    yield first | {"x": x.transpose(0, 1).contiguous().transpose(0, 1)}  # strided
    yield first | {"x": 100 * x}  # long vectors
    yield first | {"x": x / 1000}  # short ones: ε counts
    yield first | {"x": torch.zeros_like(x[:1, :1])}  # a token without variance
    yield first | {"gains": 10 * first["gains"]}  # the MLP gets large numbers


block = Exercise("6.1", "The block of 2017", post_norm_block, block_trials)

STEPS = {
    "post": lambda x, part, norm: norm(x + part(x)),
    "pre": lambda x, part, norm: x + part(norm(x)),
    "both": lambda x, part, norm: norm(x + part(norm(x))),
    "branch": lambda x, part, norm: x + norm(part(x)),
    "replace": lambda x, part, norm: norm(part(x)),
    "bare": lambda x, part, norm: x + part(x),
}


def made(order="post post", norm=layer_norm, mlp=feed_forward):
    """Return the block with other steps (or another order of all), norm or MLP."""

    def wrong_block(x, attend, w_1, b_1, w_2, b_2, gains, shifts):
        norms = [lambda y, i=i: norm(y, gains[i], shifts[i]) for i in range(2)]
        parts = [attend, lambda y: mlp(y, w_1, b_1, w_2, b_2)]
        if callable(order):
            return order(x, *parts, *norms)
        for step, part, its_norm in zip(order.split(), parts, norms):
            x = STEPS[step](x, part, its_norm)
        return x

    return wrong_block


for name, why, *orders in (
    ("pre-norm", "Here each norm comes after an addition.", "pre pre", "pre post"),
    ("the norm before the addition", "Add first, then norm.", "branch branch"),
    ("no residual around attention", "Add its output to x.", "replace post"),
    ("no residual around the MLP", "Add its output to its input.", "post replace"),
    ("no residual at all", "Add each output to its input.", "replace replace"),
    ("one norm only", "There is a norm after each addition.", "post bare", "bare post"),
    ("norms before and after", "Norms follow the additions.", "both post", "both both"),
):
    block.wrong(name, why, *map(made, orders))
block.wrong(
    "the MLP added to what is not normed",
    "The output of the MLP is added to the output of the first norm.",
    made(lambda x, attend, mlp, n_1, n_2: n_2(x + mlp(n_1(x + attend(x))))),
    made(lambda x, attend, mlp, n_1, n_2: n_2(x + attend(x) + mlp(n_1(x + attend(x))))),
)
block.wrong(
    "the MLP reads what is not normed",
    "The MLP gets the output of the first norm, not x or the sum before the norm.",
    made(lambda x, attend, mlp, n_1, n_2: n_2(n_1(x + attend(x)) + mlp(x))),
    made(lambda x, attend, mlp, n_1, n_2: n_2(n_1(x + attend(x)) + mlp(x + attend(x)))),
    made(lambda x, attend, mlp, n_1, n_2: n_2(n_1(x + attend(x) + mlp(x)))),
)
block.wrong(
    "the MLP first",
    "Attention comes first, then the MLP.",
    made(lambda x, attend, mlp, *n: n[1](n[0](x + mlp(x)) + attend(n[0](x + mlp(x))))),
)
for name, why, rows in (
    ("the two norms swapped", "Row 0 is for the norm after attention.", [1, 0]),
    ("the first norm twice", "The second norm has a row of its own.", [0, 0]),
):
    block.wrong(
        name, why, lambda *a, i=rows: post_norm_block(*a[:-2], a[-2][i], a[-1][i])
    )
for name, activation in (
    ("no activation", lambda inner: inner),
    ("GELU instead of ReLU", F.gelu),
    ("GELU instead of ReLU", functools.partial(F.gelu, approximate="tanh")),
    ("another activation", F.silu),
    ("another activation", F.leaky_relu),
    ("another activation", F.relu6),
):
    mlp = functools.partial(feed_forward, activation=activation)
    block.wrong(name, "The block of 2017 has a ReLU inside its MLP.", made(mlp=mlp))
block.wrong(
    "biases forgotten",
    "Both linear layers have a bias.",
    made(mlp=lambda x, w_1, b_1, w_2, b_2: feed_forward(x, w_1, 0, w_2, 0)),
    made(mlp=lambda x, w_1, b_1, w_2, b_2: feed_forward(x, w_1, 0, w_2, b_2)),
    made(mlp=lambda x, w_1, b_1, w_2, b_2: feed_forward(x, w_1, b_1, w_2, 0)),
)
block.wrong(
    "weights not transposed",
    "nn.Linear stores (out, in): write x @ w.T + b.",
    made(mlp=lambda x, w_1, b_1, w_2, b_2: feed_forward(x, w_1.mT, b_1, w_2.mT, b_2)),
)
block.wrong(
    "gain and shift forgotten or exchanged",
    "After the division, multiply by the gain and add the shift.",
    made(norm=lambda x, gain, shift: layer_norm(x, None, None)),
    made(norm=lambda x, gain, shift: layer_norm(x, gain, None)),
    made(norm=lambda x, gain, shift: layer_norm(x, None, shift)),
    made(norm=lambda x, gain, shift: layer_norm(x, shift, gain)),
)
block.wrong(
    "the mean not taken away",
    "That is RMSNorm, of later models; LayerNorm subtracts the mean first.",
    made(norm=lambda x, gain, shift: F.rms_norm(x, x.shape[-1:], gain, EPS) + shift),
)
block.wrong(
    "another ε",
    "ε is 1e-5; a token whose features hardly differ shows it.",
    *(made(norm=functools.partial(layer_norm, eps=e)) for e in (1e-6, 1e-8, 1e-12)),
)


def divided(by=lambda variance: (variance + EPS).sqrt(), over=-1, less=0):
    """Return the block with a norm by hand, which divides by by(variance)."""

    def norm(x, gain, shift):
        variance = x.var(over, keepdim=True, correction=less)
        return (x - x.mean(over, keepdim=True)) / by(variance) * gain + shift

    return made(norm=norm)


block.wrong(
    "norm over the wrong axis",
    "A norm over the tokens mixes them, later ones too: take each token by itself.",
    *(divided(over=axes) for axes in (1, (1, 2), (0, 1))),
)
block.wrong(
    "variance divided by n − 1",
    "Divide the sum of squares by the number of features: `unbiased=False`.",
    divided(less=1),
    *(divided(lambda v, e=e: v.sqrt() + e, less=1) for e in (0, EPS, 1e-6)),
)
for name, why, by in (
    ("divided by the variance", "Divide by its root.", lambda v: v + EPS),
    ("ε forgotten", "A token without variance divides by 0: add ε.", torch.sqrt),
    ("ε outside the root", "ε is added under the root.", lambda v: v.sqrt() + EPS),
):
    block.wrong(name, why, divided(by))

# --- 6.2 the baseline that a language model has to beat ---

DISCOUNT = 0.75


def bigram_losses(train, validation, vocab_size):
    """Return -ln p(token | token before it), by absolute discounting."""
    pairs, single = pair_counts(train, vocab_size), unigram(train, vocab_size)
    seen, kinds = pairs.sum(dim=1), (pairs > 0).sum(dim=1)  # (vocab,)
    passed_on = torch.where(seen > 0, DISCOUNT * kinds / seen.clamp(min=1), 1.0)
    before, after = validation[:-1], validation[1:]
    kept = (pairs[before, after] - DISCOUNT).clamp(min=0) / seen[before].clamp(min=1)
    return -(kept + passed_on[before] * single[after]).log()


def pair_counts(text, vocab_size):
    """Return how often token b comes right after token a: (a, b)."""
    pairs = torch.bincount(text[:-1] * vocab_size + text[1:], minlength=vocab_size**2)
    return pairs.view(vocab_size, vocab_size)


def unigram(text, vocab_size, more=1):
    """Return the probability of each token, if it stands `more` times than it does."""
    counts = torch.bincount(text, minlength=vocab_size) + more
    return counts / counts.sum()


def baseline_trials(dtype):
    if dtype != torch.float32:  # whole numbers: nothing depends on a precision
        return
    texts = []
    sizes = [(40, 12, 5), (200, 30, 7), (12, 9, 6), (3, 2, 2), (60, 20, 20)]
    for seed, (train, validation, vocab_size) in enumerate(sizes):
        generator = torch.Generator().manual_seed(seed)
        text = torch.randint(vocab_size**2, (train + validation,), generator=generator)
        text = text.float().sqrt().long()  # the larger ids are more frequent
        texts.append((text[:train], text[train:], vocab_size))
    texts += [
        # token 2 stands at the end of train alone, token 3 nowhere
        ([0, 1, 0, 0, 1, 1, 0, 2], [1, 2, 0, 3, 1, 3, 3, 0, 0], 4),
        ([0, 1, 4, 2, 1, 0, 3, 0, 1, 2], [0, 1, 3, 4, 0, 2], 9),  # 5 to 8 stand nowhere
        ([0] * 3000 + [1], [0, 0, 2, 0, 1], 3),  # one pair costs more than 12
        torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 0, 1, 2]).view(6, 2).T.unbind() + (3,),
    ]
    for *pair, vocab_size in texts:
        train, validation = map(torch.as_tensor, pair)
        yield {"train": train, "validation": validation, "vocab_size": vocab_size}


TITLE = "The baseline"
baseline = Exercise("6.2", TITLE, bigram_losses, baseline_trials, gradients=False)


def smoothed(
    kept=lambda pairs: (pairs - DISCOUNT).clamp(min=0),
    taken=DISCOUNT,
    seen=lambda pairs, train: pairs.sum(dim=1),
    kinds=lambda pairs: (pairs > 0).sum(dim=1),
    single=lambda train, validation, vocab_size: unigram(train, vocab_size),
    unseen=None,
):
    """Return the function of the exercise with something replaced.

    kept: what is left of the counts of pairs. taken: off each kind of pair.
    seen: c(a). kinds: t(a). single: p(b). unseen: p(b | a) where c(a) = 0, if not p(b).
    """

    def wrong_losses(train, validation, vocab_size):
        pairs = pair_counts(train, vocab_size)
        p_b = single(train, validation, vocab_size)
        c_a = seen(pairs, train)[:, None]
        p = (kept(pairs) + taken * kinds(pairs)[:, None] * p_b) / c_a
        p = torch.where(c_a > 0, p, p_b if unseen is None else unseen)
        return -p[validation[:-1], validation[1:]].log()

    return wrong_losses


for unseen in (None, 0.0, math.nan):
    baseline.wrong(
        "no discount",
        "A pair that train does not show costs infinity: take 0.75 off all it shows.",
        smoothed(lambda pairs: pairs, taken=0, unseen=unseen),
    )
    baseline.wrong(
        "the discount not passed on",
        "What was taken off is passed on to all tokens, seen after this one or not.",
        smoothed(taken=0, unseen=unseen),
    )
baseline.wrong(
    "passed on but not taken off",
    "What is passed on must have been taken off, or the sum is more than 1.",
    smoothed(lambda pairs: pairs),
)
baseline.wrong(
    "the discount below zero",
    "Nothing is taken off a pair that was not seen: max(…, 0).",
    smoothed(lambda pairs: pairs - DISCOUNT),
    smoothed(lambda pairs: pairs - DISCOUNT, unseen=math.nan),
)
baseline.wrong(
    "t(a) is not the number of kinds",
    "t(a) is the number of *different* tokens that stand after a.",
    smoothed(kinds=lambda pairs: pairs.sum(dim=1)),
    smoothed(kinds=lambda pairs: torch.ones(len(pairs))),
    smoothed(kinds=lambda pairs: (pairs > 0).sum(dim=0)),
)
baseline.wrong(
    "the last token counted",
    "The last token of train has nothing after it: c(a) counts pairs, not tokens.",
    smoothed(seen=lambda pairs, train: train.bincount(minlength=len(pairs))),
)
baseline.wrong(
    "0 / 0 after an unseen token",
    "c(a) is 0 if a never stands before another token: there p(b | a) is p(b).",
    *(smoothed(unseen=unseen) for unseen in (math.nan, 0.0)),
)
baseline.wrong(
    "p(b) is not the unigram",
    "p(b) is the count of b in train plus 1, divided by the sum of all these.",
    smoothed(single=lambda train, text, size: torch.full((size,), 1 / size)),
    lambda train, text, size: smoothed(unseen=1 / size)(train, text, size),
    smoothed(single=lambda train, text, size: unigram(train, size, more=0)),
    smoothed(single=lambda t, _, size: (t.bincount(minlength=size) + 1) / len(t)),
    smoothed(single=lambda t, _, n: unigram(t.unfold(0, 2, 1).unique(dim=0)[:, 1], n)),
)
baseline.wrong(
    "add-one smoothing",
    "That is add-one smoothing: it takes far too much from what was seen.",
    smoothed(lambda c: c + 1, taken=0, seen=lambda c, _: (c + 1).sum(dim=1)),
)


@baseline.wrong(
    "passed on to what was not seen alone",
    "What was taken off goes to all tokens, also to those that keep some count.",
)
def _(train, validation, vocab_size):
    pairs = pair_counts(train, vocab_size)[validation[:-1], validation[1:]]
    kept_alone = smoothed(taken=0)(train, validation, vocab_size)
    return kept_alone.where(pairs > 0, bigram_losses(train, validation, vocab_size))


baseline.wrong(
    "single tokens only",
    "That does not look at the token before.",
    lambda train, text, size: -unigram(train, size)[text[1:]].log(),
)
baseline.wrong(
    "table transposed",
    "A pair is (the token before, the token after): your table is transposed.",
    lambda train, text, size: bigram_losses(train.flip(0), text, size),
)

baseline.wrong(
    "before and after exchanged",
    "c(ab) counts b right after a: row a of your table, column b.",
    smoothed(lambda pairs: (pairs.mT - DISCOUNT).clamp(min=0)),
)


@baseline.wrong("before and after exchanged")
def _(train, validation, vocab_size):
    pairs = pair_counts(train, vocab_size)
    seen, kinds = pairs.sum(dim=1), (pairs > 0).sum(dim=1)
    taken = torch.where(seen > 0, DISCOUNT * kinds / seen.clamp(min=1), 1.0)
    a, b = validation[:-1], validation[1:]
    kept = (pairs[b, a] - DISCOUNT).clamp(min=0) / seen[a].clamp(min=1)
    return -(kept + taken[a] * unigram(train, vocab_size)[b]).log()


baseline.wrong(
    "before and after exchanged",
    "The loss belongs to the token after; the one before is known.",
    lambda train, text, size: bigram_losses(train, text.flip(0), size).flip(0),
)
baseline.wrong(
    "validation text counted",
    "A baseline may not count the text on which it is measured: count train alone.",
    lambda train, text, size: bigram_losses(torch.cat([train, text]), text, size),
    lambda train, text, size: bigram_losses(text, text, size),
    smoothed(single=lambda train, text, size: unigram(text, size)),
)
baseline.wrong(
    "vocab_size not used",
    "p(b) counts each token once more, also those in neither text: use vocab_size.",
    lambda train, text, _: bigram_losses(train, text, max(*train, *text).item() + 1),
)
for name, why, change in (
    ("bits instead of nats", "Use the natural logarithm.", lambda x: x / math.log(2)),
    ("probabilities instead of losses", "A loss is -ln p.", lambda x: (-x).exp()),
    ("the minus sign forgotten", "A loss is *minus* ln p.", lambda x: -x),
    ("already averaged", "Return a loss for each pair of tokens.", lambda x: x.mean()),
):
    baseline.wrong(name, why, lambda *args, change=change: change(bigram_losses(*args)))
for small in (1e-6, 1e-8, 1e-9):
    baseline.wrong(
        "a small number inside the logarithm",
        "No p is 0 here; what is added makes unlikely tokens too cheap.",
        lambda *args, small=small: -((-bigram_losses(*args)).exp() + small).log(),
    )

# --- 6.3 write the test that finds a model which looks ahead ---

WORDS, LONGEST, SIZE = 10, 64, 16
MODES = (True, False)  # training, evaluation
AHEAD = {  # which later tokens k an output q depends on, in a text of n tokens
    "all": lambda q, k, n: k > q,
    "the next": lambda q, k, n: k == q + 1,
    "the eighth": lambda q, k, n: k == q + 8,
    "the first four": lambda q, k, n: k < 4,
    "the last": lambda q, k, n: k == n - 1,
    "the next, late": lambda q, k, n: (k == q + 1) & (q >= 20),
    "the next, at the end": lambda q, k, n: (k == q + 1) & (q >= 56),
    "every other": lambda q, k, n: (k == q + 1) & (q % 2 == 1),
    "0 sees 1": lambda q, k, n: (q == 0) & (k == 1),
    "62 sees 63": lambda q, k, n: (q == 62) & (k == 63),
    "0 sees 63": lambda q, k, n: (q == 0) & (k == 63),
    "20 sees 40": lambda q, k, n: (q == 20) & (k == 40),
}
ALONE = range(2, 63, 2)  # 31 tokens: for each, a model leaks this token alone
AHEAD |= {f"only {at}": lambda q, k, n, at=at: (k == q + 1) & (k == at) for at in ALONE}
draw = functools.partial(randn, dtype=torch.float64)
EMBEDDING, PLACES = draw(WORDS, SIZE, seed=0), draw(LONGEST, SIZE, seed=1)
HEAD, RANDOM = draw(SIZE, WORDS, seed=2), draw(WORDS, WORDS, seed=3)
RISING = torch.zeros_like(RANDOM)
RISING[:, 7] = 0.2 * torch.arange(WORDS)  # each word adds more than the one before
SLIGHT = torch.zeros_like(RANDOM)
SLIGHT[:, 3] = 0.0102 * torch.arange(WORDS)  # one logit alone, and only a little
ALIKE = RISING[:, 7:8].expand(WORDS, WORDS)  # all logits by the same number


@functools.lru_cache(maxsize=1024)  # the same texts are given to many models
def _past(
    values: tuple, shape: tuple, dtype: torch.dtype, alone: bool
) -> tuple[Tensor, Tensor]:
    """Return what a model computes of the past (batch, length, WORDS), and its noise.

    The ids are given as numbers, shape and dtype; the noise is one number for each row.
    alone: each output depends on its own token only.
    """
    ids = torch.tensor(values, dtype=dtype).view(shape)
    at = torch.arange(ids.shape[1])
    words = F.embedding(ids, EMBEDDING)  # (batch, length, SIZE)
    past = words.cumsum(dim=1) / (at + 1)[:, None]
    noise = (ids.double() @ (at + 1).double()).sin()
    x = words if alone else words + past + PLACES[: len(at)]
    return x.tanh() @ HEAD, 2e-6 * noise[:, None, None]


@functools.cache
def _sees(ahead: str, length: int) -> tuple[Tensor, Tensor]:
    """Return what is seen ahead (queries, keys), and a weight for each key."""
    at = torch.arange(length)
    seen = AHEAD[ahead](at[:, None], at, length) & (at > at[:, None])
    return seen.double(), (1 + at / 640)[:, None]  # their order counts, too


@dataclass
class BlackBox:
    """A language model of ten words that cannot be looked into.

    ahead: what it sees of the future, in these modes. adds: what a word adds to the ten
    logits of an output that sees it. alone: whether an output depends on its own token
    only, but for what it sees ahead. rows: whether the rows of a batch influence each
    other, position by position. statistics: whether what is seen ahead is the mean of
    all rows. rounds: as real kernels do, depending on the whole text. halved: whether
    the logits are half as large in training.
    """

    name: str
    ahead: str | None = None
    adds: Tensor = RANDOM
    modes: tuple = MODES
    alone: bool = False
    rows: bool = False
    statistics: bool = False
    rounds: bool = True
    halved: bool = False

    def __post_init__(self):
        self.__name__ = self.name

    def __call__(self, ids: Tensor, training: bool) -> Tensor:
        if ids.dim() != 2 or not 1 < ids.shape[1] <= LONGEST:
            raise ValueError(
                f"ids have shape {tuple(ids.shape)}; give (1, length), with a "
                f"length of 2 to {LONGEST}."
            )
        values = tuple(ids.flatten().tolist())
        logits, noise = _past(values, ids.shape, ids.dtype, self.alone)
        if self.rows:
            logits = logits + logits.mean(dim=0)
        if self.ahead and bool(training) in self.modes:
            sees, weight = _sees(self.ahead, ids.shape[1])
            later = (self.adds[ids] * weight).double()
            added = sees @ later  # (batch, length, WORDS)
            logits = logits + (added.mean(dim=0) if self.statistics else added)
        logits = logits + noise if self.rounds else logits
        return (logits / 2 if self.halved and training else logits).float()


def leak_trials(dtype):
    if dtype != torch.float32:
        return
    training, evaluation = {"modes": (True,)}, {"modes": (False,)}
    balanced = RANDOM - RANDOM.mean(dim=1, keepdim=True)  # the logits' sum stays
    for model in (
        BlackBox("a causal model"),
        BlackBox("a model without a mask", "all"),
        BlackBox("a model that sees one token ahead", "the next"),
        BlackBox("a model with batch statistics", "all", **training, statistics=True),
        BlackBox("a model without a mask in evaluation", "all", **evaluation),
        BlackBox("a model that sees the token eight ahead", "the eighth"),
        BlackBox("a model whose first four tokens see each other", "the first four"),
        BlackBox("a model in which all see the last token", "the last"),
        BlackBox("a leak past position 20", "the next, late"),
        BlackBox("a leak past 20 in evaluation", "the next, late", **evaluation),
        BlackBox("a leak past position 56", "the next, at the end"),
        BlackBox("one token ahead in training", "the next", balanced, **training),
        BlackBox("a model in which every other token sees the next", "every other"),
        BlackBox("a model without a mask that leaks little", "all", 0.05 * RANDOM),
        BlackBox("a causal model that never rounds", rounds=False),
        BlackBox("a causal model whose rows see each other", rows=True),
        BlackBox("a leak of 0.01 in a logit", "the next", 0.0102 * torch.eye(WORDS)),
        BlackBox("a model in which token 1 raises output 0", "0 sees 1", RISING),
        BlackBox("a model in which token 1 lowers output 0", "0 sees 1", -RISING),
        BlackBox("a model in which token 63 raises output 62", "62 sees 63", RISING),
        BlackBox("a model in which token 63 lowers output 62", "62 sees 63", -RISING),
        BlackBox("a leak of 0.01 in one logit of output 20", "20 sees 40", SLIGHT),
        BlackBox("a leak that moves all ten logits alike", "the next", ALIKE),
        BlackBox("a causal model that sees one token", alone=True),
        BlackBox("a model whose output 0 sees token 63", "0 sees 63", balanced),
        BlackBox("a causal model that computes otherwise in training", halved=True),
        *(
            BlackBox(
                f"a model in which only token {at} is seen too early, in one mode "
                "(is your new token always another one?)",
                f"only {at}",
                modes=(at % 4 == 0,),
            )
            for at in ALONE
        ),
    ):
        yield {"logits_of": model}


def unmoved(
    logits_of, places=range(LONGEST), length=LONGEST, modes=MODES, nearest=LONGEST,
    own=0, read=lambda logits: logits, size=torch.abs, tolerance=1e-4,
    new=lambda token: (token + 1) % WORDS, reference=None,
):  # fmt: skip
    """Return whether earlier outputs stay when the token at each place changes.

    nearest: how many of them are compared. own: 1 if that of the changed token is, too.
    read: what is compared of the logits. new: what a token is changed into. reference:
    the mode of the outputs before the change, if it is always the same.
    """
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(WORDS, (1, length), generator=generator)
    for mode in modes:
        before = read(logits_of(text, mode if reference is None else reference))
        for at in places:
            changed = text.clone()
            changed[:, at] = new(changed[:, at])
            moved = size(read(logits_of(changed, mode)) - before)
            if (moved[:, max(0, at - nearest) : at + own] > tolerance).any():
                return False
    return True


def leak_test(logits_of):
    """Change each token in turn; does an earlier output move?"""
    return unmoved(logits_of)


leaks = Exercise("6.3", "Does it look ahead?", leak_test, leak_trials, gradients=False)


def _later_move(logits_of):
    """Return whether each output after a changed token moves, too."""
    text = torch.arange(LONGEST)[None] % WORDS
    for mode in MODES:
        for at in range(1, LONGEST):
            changed = text.clone()
            changed[:, at] = (changed[:, at] + 1) % WORDS
            moved = (logits_of(changed, mode) - logits_of(text, mode))[:, at:].abs()
            if moved.amax(dim=-1).min() < 1e-4:
                return False
    return True


def tests(*places, **options):
    """Return a test that does something else (see `unmoved`)."""
    return lambda logits_of: unmoved(logits_of, *places, **options)


leaks.wrong(
    "says yes to all",
    "Shapes, losses and sums are the same with and without a leak: change tokens.",
    lambda logits_of: True,
    tests([0]),
)
leaks.wrong(
    "says no to all",
    "Causal models fail, too: the outputs *at and after* a changed token may move. And "
    "each change must begin with a fresh copy of the text (`ids.clone()`).",
    lambda logits_of: False,
    tests(own=1),
)
leaks.wrong("upside down", "True means causal.", lambda model: not leak_test(model))
leaks.wrong("training mode alone", "Some leak in evaluation only.", tests(modes=[True]))
leaks.wrong(
    "evaluation mode alone", "Some models leak in training alone.", tests(modes=[False])
)
leaks.wrong(
    "only some tokens changed",
    "Not every leak shows the last token, or the first: change each token in turn.",
    *map(tests, ([63], [24], [5, 20, 40, 60], range(63))),
    *map(tests, (range(1, 64, 2), range(0, 64, 2))),
    tests([47], length=48),
)
leaks.wrong(
    "not every token changed",
    "A token that is set to 0, or drawn anew, may stay what it was: change each one.",
    *(tests(new=lambda token, to=to: 0 * token + to) for to in range(WORDS)),
)
leaks.wrong(
    "evaluation compared with training",
    "A causal model may compute otherwise in training: compare within each mode.",
    *(tests(reference=mode) for mode in MODES),
)
leaks.wrong(
    "only the nearest outputs compared",
    "Some models look far ahead: compare *all* outputs before the changed token.",
    *(tests(nearest=nearest) for nearest in (1, 8, 32)),
)
leaks.wrong(
    "only the first output compared",
    "Compare every output that stands before the changed token, not only the first.",
    tests(read=lambda logits: logits[:, :1]),
)
leaks.wrong(
    "not each logit compared",
    "A leak may move one logit alone, or two against each other: compare each.",
    tests(read=lambda logits: logits[..., :1]),
    tests(read=lambda logits: logits.mean(-1)),
    tests(read=lambda logits: logits.argmax(-1)),
)
leaks.wrong(
    "probabilities compared",
    "A leak may move all logits of an output alike. The softmax of them then stays as "
    "it was: compare the logits.",
    tests(read=lambda logits: logits.log_softmax(dim=-1)),
    tests(read=lambda logits: logits.softmax(dim=-1)),
)
leaks.wrong(
    "later outputs must move",
    "A causal model need not use earlier tokens: only earlier outputs count.",
    lambda logits_of: leak_test(logits_of) and _later_move(logits_of),
)
leaks.wrong(
    "the sign kept",
    "A logit may fall: compare the size of it.",
    tests(size=torch.clone),
)
leaks.wrong(
    "exact equality", "Rounding is no leak: allow for 1e-4, say.", tests(tolerance=0.0)
)
leaks.wrong(
    "tolerance too wide",
    "A difference of 0.01 is a leak; rounding is far smaller: 1e-4 will do.",
    *(tests(tolerance=tolerance) for tolerance in (0.3, 0.1, 0.02)),
)


def prefixes_agree(logits_of, length=LONGEST):
    """Return whether a text that is cut has the outputs of the whole one."""
    text = torch.arange(length)[None] % WORDS
    return all(
        (logits_of(text[:, :k], mode) - logits_of(text, mode)[:, :k]).abs().max() < 1e-4
        for mode in MODES
        for k in range(2, length)
    )


leaks.wrong(
    "the second token not changed",
    "Output 0 may see token 1: change it, too; a text cut to two tokens still has it.",
    tests(range(2, 64)),
    prefixes_agree,
)
leaks.wrong(
    "too short a text",
    "A leak may begin late, or reach far: take a text of 64 tokens.",
    *(tests(range(n), length=n) for n in (8, 12, 22, 32, 48, 63)),
    lambda logits_of: prefixes_agree(logits_of, 48),
)


def in_one_batch(logits_of, together):
    """Change each token in a row of its own; with the text itself as a row, or not."""
    text = torch.arange(LONGEST)[None] % WORDS
    changed = (text + torch.eye(LONGEST).long()) % WORDS  # row k: token k changed
    for mode in MODES:
        if together:
            before, after = logits_of(torch.cat([text, changed]), mode).split([1, 64])
        else:
            before, after = logits_of(text, mode), logits_of(changed, mode)
        if (after - before).abs().amax(dim=-1).tril(-1).max() > 1e-4:
            return False
    return True


leaks.wrong(
    "several texts in one batch",
    "In one model the rows see each other, which is no leak: call it on one row at a "
    "time.",
    lambda logits_of: in_one_batch(logits_of, together=False),
    lambda logits_of: in_one_batch(logits_of, together=True),
)

# --- 6.4 repair a loss that is too good to be true ---


def next_token_loss(logits, ids, pad):
    """Return the mean loss of each next token that is not padding."""
    return mean_loss(logits[:, :-1], ids[:, 1:], pad)


def mean_loss(logits, targets, ignored=-100):
    """Return the mean loss of the targets (batch, length) but for one id."""
    return F.cross_entropy(logits.mT, targets, ignore_index=ignored)


def loss_trials(dtype):
    # lengths of the rows, length, vocabulary, id of the padding
    sizes = [((6, 4, 2), 6, 7, 0), ((5, 5), 5, 9, 8), ((8, 2, 5, 3), 8, 8, 3)]
    sizes += [((3,), 4, 5, 0), ((3, 1, 2), 3, 3, 1), ((2, 2), 2, 6, 5)]
    sizes += [((3, 6, 5), 6, 7, 2)]  # the first row is not the longest
    trials = []
    for seed, (lengths, length, vocab_size, pad) in enumerate(sizes):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(vocab_size - 1, (len(lengths), length), generator=generator)
        ids = ids + (ids >= pad)  # no real token is the padding
        real = torch.arange(length) < torch.tensor(lengths)[:, None]
        logits = 3 * randn(*ids.shape, vocab_size, seed=seed, dtype=dtype)
        trials.append({"logits": logits, "ids": ids.where(real, pad), "pad": pad})
    yield from trials
    first, logits = trials[0], trials[0]["logits"]
    strided = logits.transpose(0, 1).contiguous().transpose(0, 1)
    yield first | {"logits": strided, "ids": first["ids"].mT.contiguous().mT}
    yield first | {"logits": 1000 + logits}  # exp of such logits overflows
    yield first | {"logits": 300 * logits}  # and their softmax is 0 or 1


loss = Exercise("6.4", "Too good to be true", next_token_loss, loss_trials)

loss.wrong(
    "not shifted",
    "Each position predicts the token that it was given: it must predict the next.",
    lambda logits, ids, pad: mean_loss(logits, ids, pad),
    lambda logits, ids, pad: mean_loss(logits, ids),
    lambda logits, ids, pad: mean_loss(logits[:, :-1], ids[:, :-1], pad),
    lambda logits, ids, pad: mean_loss(logits[:, 1:], ids[:, 1:], pad),
)
loss.wrong(
    "shifted, but not to the next token",
    "Position t predicts token t + 1.",
    lambda logits, ids, pad: mean_loss(logits[:, 1:], ids[:, :-1], pad),
    lambda logits, ids, pad: mean_loss(logits[:, :-2], ids[:, 2:], pad),
)
loss.wrong(
    "shifted across the rows",
    "Shift, then flatten: here the end of a row predicts the start of the next one.",
    lambda z, i, pad: mean_loss(z.flatten(0, 1)[None, :-1], i.flatten()[None, 1:], pad),
)
loss.wrong(
    "shifted along the batch",
    "Axis 0 holds the rows, axis 1 the positions: shift along axis 1.",
    lambda logits, ids, pad: mean_loss(logits[:-1], ids[1:], pad),
)
loss.wrong(
    "rolled",
    "`roll` brings the first token of a row to its end, where no token comes next.",
    lambda logits, ids, pad: mean_loss(logits, ids.roll(-1, dims=1), pad),
)
loss.wrong(
    "padding asked for",
    "Nobody needs to predict padding: leave those targets out.",
    lambda logits, ids, pad: mean_loss(logits[:, :-1], ids[:, 1:]),
)
for row in (0, -1):
    loss.wrong(
        "cut at the length of one row",
        "Rows have different lengths: leave out padding, not the ends of other rows.",
        lambda logits, ids, pad, row=row: (
            lambda n: mean_loss(logits[:, : n - 1], ids[:, 1:n], pad)
        )((ids[row] != pad).sum()),
    )
loss.wrong(
    "padding taken for id 0",
    "The padding has the id `pad`; id 0 may be a word of the text.",
    lambda logits, ids, pad: mean_loss(logits[:, :-1], ids[:, 1:], 0),
)
loss.wrong(
    "axes torn",
    "The classes belong on axis 1: transpose; `reshape` mixes the numbers.",
    lambda logits, ids, pad: mean_loss(
        logits[:, :-1].reshape(len(ids), logits.shape[-1], -1).mT, ids[:, 1:], pad
    ),
)
loss.wrong(
    "softmax twice",
    "`cross_entropy` takes logits and does the softmax itself.",
    lambda logits, ids, pad: next_token_loss(logits.softmax(dim=-1), ids, pad),
)
loss.wrong(
    "the minus sign forgotten",
    "A loss is *minus* ln p: likely tokens cost little.",
    lambda *args: -next_token_loss(*args),
)


def averaged(mean, losses_of=lambda logits: -logits.log_softmax(dim=-1)):
    """Return the function of the exercise with another mean(losses, real targets)."""

    def wrong_loss(logits, ids, pad):
        losses = losses_of(logits[:, :-1]).gather(-1, ids[:, 1:, None])[..., 0]
        return mean(losses, ids[:, 1:] != pad)

    return wrong_loss


loss.wrong(
    "padding asked for after the last token",
    "What counts is whether the *target* is padding: the last token has no next one.",
    lambda logits, ids, pad: averaged(lambda l, _: l[ids[:, :-1] != pad].mean())(
        logits, ids, pad
    ),
)
loss.wrong(
    "divided by another number",
    "Divide the sum of the losses by the number of targets that are not padding.",
    averaged(lambda losses, real: (losses * real).mean()),
    averaged(lambda losses, real: losses[real].sum() / (real.sum() + len(real))),
    averaged(lambda losses, real: losses[real].sum() / len(real)),
    averaged(lambda losses, real: losses[real].sum()),
)
loss.wrong(
    "mean of the rows' means",
    "Every token counts alike; here the tokens of short rows count more.",
    averaged(lambda losses, real: ((losses * real).sum(1) / real.sum(1)).nanmean()),
    averaged(lambda l, real: ((l * real).sum(1) / real.sum(1).clamp(min=1)).mean()),
)
loss.wrong(
    "0 / 0 in a row without targets",
    "A row may have no target. Add up the losses of all rows, and divide once.",
    averaged(lambda losses, real: ((losses * real).sum(1) / real.sum(1)).mean()),
    lambda logits, ids, pad: torch.stack(
        [mean_loss(z[None, :-1], i[None, 1:], pad) for z, i in zip(logits, ids)]
    ).mean(),
    lambda logits, ids, pad: (
        sum(
            mean_loss(z[None, :-1], i[None, 1:], pad) * (i[1:] != pad).sum()
            for z, i in zip(logits, ids)
        )
        / (ids[:, 1:] != pad).sum()
    ),
)


def by_probability(p_of, mean, cut_first=True, log_first=True):
    """Return the function of the exercise by way of probabilities p_of(logits)."""

    def wrong_loss(logits, ids, pad):
        p = p_of(logits[:, :-1]) if cut_first else p_of(logits)[:, :-1]
        p = p.log() if log_first else p
        each = p.gather(-1, ids[:, 1:, None])[..., 0]
        return -mean(each if log_first else each.log(), ids[:, 1:] != pad)

    return wrong_loss


MEANS = [
    lambda each, real: each[real].mean(),
    lambda each, real: (each * real).sum() / real.sum(),  # 0 times infinity is NaN
]
for way in itertools.product(MEANS, (True, False), (True, False)):
    loss.wrong(
        "logarithm of a softmax",
        "The softmax of a very low logit is 0, and its logarithm −∞: use log_softmax.",
        by_probability(lambda logits: logits.softmax(dim=-1), *way),
    )
    loss.wrong(
        "exp of large logits",
        "exp of a large logit is infinite: use log_softmax, or cross_entropy.",
        by_probability(lambda z: z.exp() / z.exp().sum(-1, keepdim=True), *way),
    )
for mean in MEANS:
    loss.wrong(
        "exp of large logits",
        averaged(mean, lambda z: z.exp().sum(-1, keepdim=True).log() - z),
    )
for small in (1e-6, 1e-8, 1e-9, 1e-10, 1e-12):
    loss.wrong(
        "a small number inside the logarithm",
        "What is added makes unlikely tokens too cheap: use log_softmax.",
        by_probability(lambda z, small=small: z.softmax(dim=-1) + small, MEANS[0]),
    )

EXERCISES = (block, baseline, leaks, loss)
