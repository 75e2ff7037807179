"""Trials of lesson 08: what its exercises are tried with."""

import torch
import torch.nn.functional as F

from utils.attention import causal_mask
from utils.data import repeated_tokens

from .catalogue import trials
from .draws import Named, drawn, each, integers, randn


class Model:
    """run(ids, change): logits for the next token, of a model with one layer of heads.

    What one head at one position does depends on all others: nothing is a plain sum.
    And the tokens have a way of their own around the heads.
    """

    def __init__(self, vocab, heads, head_dim, seed, dtype):
        size, self.heads = heads * head_dim, heads
        self.table = randn(vocab, size, seed=seed, dtype=dtype)
        self.mix = randn(heads, 9, 9, seed=seed + 1, dtype=dtype)
        self.inner = randn(size, size, seed=seed + 3, dtype=dtype) / size**0.5
        self.out = randn(size, vocab, seed=seed + 2, dtype=dtype) / size**0.5
        self.__name__ = f"a model of {heads} heads, head_dim {head_dim}"

    def __call__(self, ids, change=None):
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or len(ids) != 1:
            raise ValueError("run takes ids of shape (1, length).")
        length = ids.shape[1]
        x = self.table[ids].unflatten(-1, (self.heads, -1)).transpose(1, 2)
        hidden = ~causal_mask(length)
        mix = self.mix[:, :length, :length].masked_fill(hidden, -torch.inf)
        outputs = mix.softmax(-1) @ x  # (1, heads, length, head_dim)
        if change is not None:
            new, shape = change(outputs.clone()), outputs.shape
            if getattr(new, "shape", None) != shape:
                given = getattr(new, "shape", type(new).__name__)
                raise ValueError(
                    f"change must return the outputs of all heads, {tuple(shape)}; "
                    f"it returned {given}."
                )
            outputs = new
        y = outputs.transpose(1, 2).flatten(2) @ self.inner
        y = (y + self.table[ids]).tanh()[0]
        y = (y[-1] + 2 * y.mean(dim=0)) @ self.inner  # (size,)
        return y.tanh() @ self.out  # (vocab,)


@trials("8.1", gradients=False)
def patched_heads(dtype):
    # the first two: what is kept of the one fits into the other
    sizes = [(7, 3, 4, 6, 5), (7, 3, 4, 6, 5), (9, 2, 3, 8, 3), (6, 4, 2, 5, 1)]
    sizes += [(12, 5, 4, 9, 2), (5, 1, 6, 4, 3), (8, 3, 2, 7, 0)]
    for seed, (vocab, heads, head_dim, length, position) in enumerate(sizes):
        run = Model(vocab, heads, head_dim, 10 * seed, dtype)
        clean, corrupted = integers(vocab, 2, 1, length, seed=seed)
        texts = {"clean": clean, "corrupted": corrupted}
        yield {"run": run} | texts | {"head": seed // 2 % heads, "position": position}


@trials("8.2", gradients=False)
def circuits(dtype):
    sizes = [(5, 3, 4, 7), (1, 2, 3, 4), (6, 4, 2, 6), (3, 1, 5, 8), (8, 2, 2, 4)]
    sizes += [(2, 3, 4, 7)]  # the last one has more features than an embedding
    for seed, (count, heads, head_dim, vocab) in enumerate(sizes):
        features = heads * head_dim
        size = features if seed < 5 else 9  # embed_dim
        shapes = {"x": (count, size), "value_weight": (features, size)}
        shapes |= {"out_weight": (size, features), "unembed": (vocab, size)}
        one = {"head": (seed + 1) % heads, "head_dim": head_dim}
        yield drawn(seed, dtype, **shapes) | one


@trials("8.3", gradients=False)
def heads_to_score(dtype):
    """Heads that attend at random, on texts in which something stands twice."""
    texts = [
        [3, 1, 4, 0, 3, 1, 4, 0, 3, 1, 4, 0, 3],  # three rounds
        [5, 2, 2, 7, 5, 5, 1, 2],  # copies side by side, at other distances
        [0, 1, 2, 3, 4, 0],  # one query counts: the last
        [6, 6, 6, 6, 6],  # of all queries but the first, each visible key but one
        [9, 8, 7, 6, 9, 8, 5, 4, 3, 2],  # at the end nothing stands twice
        [1, 0] * 6,
    ]
    for seed, ids in enumerate(texts):
        scores = 2 * randn(len(ids), len(ids), seed=seed, dtype=dtype)
        scores = scores.masked_fill(~causal_mask(len(ids)), -torch.inf)
        yield {"weights": scores.softmax(dim=-1), "ids": torch.tensor(ids)}
    weights = torch.eye(5, dtype=dtype)  # only query 3 attends to what followed
    weights[3] = weights[2].clone()
    yield {"weights": weights, "ids": torch.tensor([1, 2, 1, 2, 1])}


# --- 8.4 and 8.5: two heads by hand, on texts whose tokens are one-hot ------------


def same(ids):
    """Return (…, queries, keys): where the query's token stood earlier."""
    return (ids[..., :, None] == ids[..., None, :]).tril(-1)


def head_on(x, asked):
    """Return head(query, key, value): the text that such a head leaves behind.

    x (batch, length, features); what is not asked (batch, length) comes back as zeros.
    """
    size = x.shape[-1]

    def head(query, key, value):
        if any(matrix.shape != (size, size) for matrix in (query, key, value)):
            raise ValueError(
                f"query, key and value must be matrices ({size}, {size}), with one row "
                "and one column for each feature."
            )
        scores = (x @ query.float()) @ (x @ key.float()).mT
        scores = scores.masked_fill(~causal_mask(x.shape[1]), -torch.inf)
        after = x + scores.softmax(dim=-1) @ (x @ value.float())
        return after.round(decimals=1).where(asked[..., None], 0)

    return head


def one_hot_texts(second):
    """Yield trials of the first head, or of the second, which knows previous tokens."""
    sizes = [(6, 12), (9, 6), (5, 5), (12, 30), (4, 12), (8, 16), (65, 65)]
    for seed, (vocab, length) in enumerate(sizes):
        ids, _ = repeated_tokens(
            torch.Generator().manual_seed(seed),
            *(4, length - 1, vocab - 1),
            periods=(3, min(vocab - 1, max(3, length // 2))),
            distinct=True,
        )
        ids = F.pad(ids + 1, (1, 0))  # token 0 begins each text, and stands only there
        token, place = F.one_hot(ids, vocab).float(), torch.eye(length)
        before = torch.cat([token[:, :1], token[:, :-1]], dim=1) * second
        x = torch.cat([token, place.expand(4, -1, -1), before, 0 * token], dim=-1)
        asked = same(ids).any(-1) if second else torch.ones_like(ids).bool()
        yield {"head": head_on(x, asked), "vocab": vocab, "length": length}


trials("8.4", gradients=False)(lambda: one_hot_texts(second=False))
trials("8.5", gradients=False)(lambda: one_hot_texts(second=True))


# --- 8.6: heads, which return weights (length, length) of ids (length,) -----------


def matches(ids):
    """Return (queries, keys): where what followed the query's token earlier stands."""
    return F.pad(same(ids), (1, -1))


def on(wanted, rest=None):
    """Return weights: alike on the wanted keys; where there are none, on the rest."""
    past = causal_mask(len(wanted))
    wanted, rest = wanted & past, past if rest is None else rest
    chosen = torch.where(wanted.any(-1, keepdim=True), wanted, rest).float()
    return chosen / chosen.sum(-1, keepdim=True)


def evenly(ids):
    return on(causal_mask(len(ids)))


def first_token(ids):
    return F.one_hot(torch.zeros_like(ids), len(ids)).float()


def back(*offsets):
    """Return a head that attends to the keys that are so many positions back."""

    def head(ids):
        at = torch.arange(len(ids))
        return on(torch.isin(at[:, None] - at, torch.tensor(offsets)))

    return head


def copies(ids):
    return on(matches(ids))


def mixture(part, rest):
    """Return a head with this part of its weight on all copies."""
    return lambda ids: part * copies(ids) + (1 - part) * rest(ids)


def near(ids):
    """Return (queries, keys): the matches that are at most 15 back."""
    return matches(ids) & ~causal_mask(len(ids)).tril(-16)


def where_near(head, others):
    """Return a head for the queries with a near match; the rest do as others do."""
    return lambda ids: head(ids).where(near(ids).any(-1, keepdim=True), others(ids))


def on_near(ids):
    return on(near(ids))


def distances(ids):
    """Return how many positions back each query's matches lie, all in one list."""
    query, key = matches(ids).nonzero(as_tuple=True)
    return query - key


class FixedNumberBack:
    """Looks a number back that is right in all texts so far, as far as one can be."""

    def __init__(self):
        self.right = torch.ones(64)  # at each number, the share of the worst text

    def __call__(self, ids):
        right = torch.bincount(distances(ids), minlength=64)
        right = right / matches(ids).any(-1).sum()
        self.right = torch.fmin(self.right, right)  # NaN: nothing was asked
        return back(int(self.right[1:].argmax()) + 1)(ids)


class OnePeriod:
    """Knows one period alone, that of the first text."""

    known = None

    def __call__(self, ids):
        nearest = min(distances(ids).tolist(), default=None)
        self.known = self.known or nearest
        if nearest is None or nearest != self.known:
            return evenly(ids)
        rounds = back(*range(nearest, len(ids), nearest + 1))(ids)
        return on(matches(ids) & (rounds > 0))


def two_of_three(ids):
    every_third = torch.arange(len(ids))[:, None] % 3 == 0
    return torch.where(every_third, first_token(ids), mixture(0.6, first_token)(ids))


HEADS = {
    "a head that attends to all copies": copies,
    "a head that attends to the nearest copy": lambda ids: on(
        matches(ids) & (matches(ids).flip(-1).cumsum(-1).flip(-1) == 1)
    ),
    "a head that rests on the first token": lambda ids: on(
        matches(ids), first_token(ids).bool()
    ),
    "a head with 0.8 on the copies": mixture(0.8, evenly),
    "a head with 0.53 on the copies": mixture(0.53, first_token),
    # the others are impostors
    "a head that looks 19 back": back(19),
    "a head that looks 19 and 39 back": back(19, 39),
    "a head that looks back by a number that fits your texts": FixedNumberBack(),
    "a head that knows the first of your periods alone": OnePeriod(),
    "a head that looks at most 15 back": where_near(on_near, evenly),
    "a head with 0.45 on far copies": where_near(on_near, mixture(0.45, first_token)),
    "a head that finds far copies only": where_near(evenly, copies),
    "a head that looks for its token + 1": lambda ids: on(ids[:, None] + 1 == ids),
    "a previous-token head": back(1),
    "a duplicate-token head": lambda ids: on(same(ids)),
    "a head that attends to the first token": first_token,
    "a head that attends evenly": evenly,
    "a head with 0.3 on the copies": mixture(0.3, evenly),
    "a head with 0.47 on the copies": mixture(0.47, first_token),
    "a head that finds copies at the end alone": lambda ids: torch.cat(
        [evenly(ids)[:-2], copies(ids)[-2:]]
    ),
    "a head that finds copies in two queries of three": two_of_three,
}


class Head(Named):
    """A head whose model refuses ids that it does not know."""

    def __call__(self, ids):
        known = isinstance(ids, torch.Tensor) and not ids.is_floating_point()
        if not (known and ids.dim() == 1 and len(ids) <= 64 and (ids // 64 == 0).all()):
            raise ValueError(
                "a head takes the tokens of one text, an int64 tensor (length,): at "
                "most 64, each from 0 to 63."
            )
        return self.function(ids.long())


trials("8.6", gradients=False)(each("head", Head, HEADS))
