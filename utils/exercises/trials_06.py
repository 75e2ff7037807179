"""Trials of lesson 06: what its exercises are tried with."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.attention import merge_heads, split_heads
from utils.models import CausalLM
from utils.positions import Rotary

from .catalogue import trials
from .draws import drawn, integers, randn, strided


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


@trials("6.5")
def blocks(dtype):
    # batch, length, width, heads, features inside the MLP
    sizes = [(2, 5, 8, 2, 32), (1, 1, 6, 3, 10), (3, 3, 3, 1, 3), (2, 7, 12, 4, 20)]
    for at, (batch, length, embed, heads, inner) in enumerate(sizes):
        shapes = {"x": (batch, length, embed), "w_1": (inner, embed), "b_1": (inner,)}
        shapes |= {"w_2": (embed, inner), "b_2": (embed,)}
        both = 2, embed  # of two norms
        given = drawn(at, dtype, **shapes, gains=both, shifts=both)
        given["w_1"] /= embed**0.5
        given["w_2"] /= inner**0.5
        given["gains"] = 1 + given["gains"] / 2
        x, attend = given["x"], self_attention(embed, heads, at % 2 == 1, 10 * at + 7)
        given = {"x": x, "attend": attend} | given
        yield given
        if at == 0:
            yield given | {"x": strided(x, 0, 1)}
            yield given | {"x": 100 * x}
            yield given | {"x": x / 1000}  # ε counts
            yield given | {"x": torch.zeros_like(x[:1, :1])}  # no variance
            yield given | {"gains": 10 * given["gains"]}  # large numbers in the MLP


@trials("6.4", gradients=False)
def texts():
    given = []
    sizes = [(40, 12, 5), (200, 30, 7), (12, 9, 6), (3, 2, 2), (60, 20, 20)]
    for seed, (train, validation, vocab_size) in enumerate(sizes):
        text = integers(vocab_size**2, train + validation, seed=seed)
        text = text.float().sqrt().long()  # the larger ids are more frequent
        given.append((text[:train], text[train:], vocab_size))
    given += [
        # token 2 stands at the end of train alone, token 3 nowhere
        ([0, 1, 0, 0, 1, 1, 0, 2], [1, 2, 0, 3, 1, 3, 3, 0, 0], 4),
        ([0, 1, 4, 2, 1, 0, 3, 0, 1, 2], [0, 1, 3, 4, 0, 2], 9),  # 5 to 8 stand nowhere
        ([0] * 3000 + [1], [0, 0, 2, 0, 1], 3),  # one pair costs more than 12
    ]
    both = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 0, 1, 2]).view(6, 2).T
    given.append((*both, 3))
    for train, validation, vocab_size in given:
        train, validation = torch.as_tensor(train), torch.as_tensor(validation)
        yield {"train": train, "validation": validation, "vocab_size": vocab_size}


WORDS, LONGEST = 10, 64
LOGITS, RANDOM = randn(WORDS, WORDS, seed=2), randn(WORDS, WORDS, seed=3)
BALANCED = RANDOM - RANDOM.mean(dim=1, keepdim=True)  # the sum of the logits stays
RISING = torch.zeros_like(RANDOM)  # each word adds more than the one before
RISING[:, 7] = 0.2 * torch.arange(1, WORDS + 1)  # never 0: texts may be cut, too
K = torch.arange(LONGEST)
Q = K[:, None]


@dataclass
class BlackBox:
    """A language model of ten words that cannot be looked into.

    sees: which later tokens each output sees (queries, keys), in these modes. adds:
    what each word adds to the logits of an output that sees it. own: an output depends
    on its own token only, but for what it sees ahead. rounds: as real kernels do, by
    what comes later, too: nearly as much as the page allows, as a rule. training: what
    the logits are multiplied by in training. level: what all logits have in common.
    """

    __name__: str
    sees: Tensor = K < 0
    adds: Tensor = RANDOM
    modes: tuple = (True, False)
    own: bool = False
    rounds: float = 1e-7
    training: float = 1.0
    level: float = 0.0

    def __post_init__(self):
        weights = 1 + K / 640  # of the words that are seen: their order counts, too
        self.sees = (self.sees & (K > Q)) * weights.double()

    def __call__(self, ids, training):
        if ids.dim() != 2 or len(ids) != 1 or not 1 <= ids.shape[1] <= LONGEST:
            raise ValueError(
                "a model takes one text, ids of shape (1, length), with 1 to 64 ids."
            )
        n, logits = ids.shape[1], F.embedding(ids, LOGITS)
        if not self.own:
            logits = logits.cumsum(dim=1) / (Q[:n] + 1)  # (1, length, WORDS)
        if bool(training) in self.modes:
            logits = logits + self.sees[:n, :n] @ self.adds[ids]
        last = ids[0, -1]  # the next id is rounded the other way: by 8e-6
        logits = logits + self.rounds * (80 * (last % 2) + last) + self.level
        return (logits * (self.training if training else 1)).float()


@trials("6.3", gradients=False)
def models():
    training, evaluation = {"modes": (True,)}, {"modes": (False,)}
    following, alike = K == Q + 1, RISING[:, 7:8].expand(-1, WORDS)
    one_each = torch.eye(WORDS).double()
    known = {
        "a causal model": {},
        "a causal model that sees one token": {"own": True, "rounds": 0.0},
        "a causal model that computes otherwise in training": {"training": 0.5},
        "a model without a mask": {"sees": K > Q},
        "a model without a mask in training": {"sees": K > Q} | training,
        "a model without a mask in evaluation": {"sees": K > Q} | evaluation,
        "a model that sees one token ahead": {"sees": following},
        "one ahead in training": {"sees": following, "adds": BALANCED} | training,
        "a leak of 0.01": {"sees": following, "adds": 0.0102 * one_each},
        "a leak that moves all ten logits alike": {"sees": following, "adds": alike},
        "a leak past position 56": {"sees": following & (Q >= 56)},
        "a model that sees the token eight ahead": {"sees": K == Q + 8},
        "all see token 63": {"sees": K == 63},
    }
    pairs = [(0, 1, RISING), (0, 1, -RISING), (62, 63, RISING), (62, 63, -RISING)]
    for q, k, adds in [*pairs, (20, 40, 0.051 * RISING), (0, 63, BALANCED)]:
        at = (q == Q) & (k == K)
        known[f"a model whose output {q} sees token {k}"] = {"sees": at, "adds": adds}
    for at in (*range(1, 9), *range(33, 56)):
        name = f"a model in which only token {at} is seen too early, in one mode "
        name += "(is your new token always another one?)"
        known[name] = {"sees": following & (at == K), "modes": (at % 5 != 1,)}
    larger = {"level": 5.0}
    known["a leak of 0.01 in larger logits"] = known["a leak of 0.01"] | larger
    known["a causal model without rounding"] = {"rounds": 0.0}
    for name, model in known.items():
        yield {"logits_of": BlackBox(name, **model)}


@trials("6.2")
def padded(dtype):
    # lengths of the rows, length, vocabulary, id of the padding
    sizes = [((6, 4, 2), 6, 7, 0), ((5, 5), 5, 9, 8), ((8, 2, 5, 3), 8, 8, 3)]
    sizes += [((3,), 4, 5, 0), ((3, 1, 2), 3, 3, 1), ((2, 2), 2, 6, 5)]
    sizes += [((3, 6, 5), 6, 7, 2)]  # the first row is not the longest
    for seed, (lengths, length, vocab_size, pad) in enumerate(sizes):
        ids = integers(vocab_size - 1, len(lengths), length, seed=seed)
        ids = ids + (ids >= pad)  # no real token is the padding
        ids[torch.arange(length) >= torch.tensor(lengths)[:, None]] = pad
        logits = 3 * randn(*ids.shape, vocab_size, seed=seed, dtype=dtype)
        given = {"logits": logits, "ids": ids, "pad": pad}
        yield given
        if seed == 0:
            yield given | {"logits": strided(logits, 0, 1), "ids": strided(ids)}
            yield given | {"logits": 1000 + logits}  # exp of such logits overflows
            yield given | {"logits": 300 * logits}  # and their softmax is 0 or 1


def with_weights_of_the_course(made, vocab_size, embed_dim, num_heads, num_layers, ids):
    """Return the logits of a model of a learner's class, and gradients of its weights.

    Its weights are those of the course's model. They are drawn, gains and biases too,
    so that each counts.
    """
    sizes = vocab_size, embed_dim, num_heads, num_layers
    course = CausalLM(*sizes, position=Rotary(embed_dim // num_heads))
    weights = {}
    for i, (name, x) in enumerate(course.state_dict().items()):
        scale = 0.5 if x.dim() == 1 else 1 / x.shape[-1] ** 0.5
        around = 1.0 if "norm.weight" in name else 0.0
        weights[name] = around + scale * randn(*x.shape, seed=i, dtype=x.dtype)
    model = made(*sizes)
    if not isinstance(model, torch.nn.Module):
        raise TypeError("your class is no nn.Module: class MyCausalLM(nn.Module).")
    own = dict(model.named_parameters())
    places = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    faults = {
        "one object stands in several places:": places & {*weights} - {*own},
        "your model has no parameter": {*weights} - places,
        "the course's model has no parameter": {*own} - {*weights},
    }
    if said := [f"{said} {_some(names)}" for said, names in faults.items() if names]:
        raise ValueError(f"{'; '.join(said)}.")
    for name, x in weights.items():
        if own[name].shape != x.shape:
            shapes = f"{tuple(own[name].shape)}, the course's {tuple(x.shape)}"
            raise ValueError(f"your {name} has the shape {shapes}.")
    model.load_state_dict(weights, strict=False)  # a mask may be a buffer
    logits = model(ids)
    if not isinstance(logits, Tensor):
        raise TypeError(f"forward returns {type(logits).__name__}: return the logits.")
    found = {"logits": logits}
    if logits.requires_grad and logits.shape == (*ids.shape, vocab_size):
        logits.backward(randn(*logits.shape, seed=99, dtype=logits.dtype))
    for name, x in own.items():
        grad = torch.zeros_like(x) if x.grad is None else x.grad
        found[f"gradient of {name}"] = grad
    found["logits of a longer text"] = model(torch.cat([ids, ids], dim=1)[:, :100])
    return found | {"logits in evaluation mode": model.eval()(ids)}


def _some(names):
    """Return the first name, and how many more there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{min(names)}{more}"


@trials("6.1", gradients=False, through=with_weights_of_the_course)
def language_models():
    # vocabulary, features, heads, blocks, texts, length
    sizes = [(11, 8, 2, 2, 2, 5), (5, 12, 3, 1, 1, 1), (7, 8, 2, 3, 3, 7)]
    sizes += [(9, 4, 1, 2, 1, 64), (6, 16, 4, 4, 2, 6), (7, 8, 2, 1, 1, 6)]
    names = "vocab_size", "embed_dim", "num_heads", "num_layers"
    for seed, given in enumerate(sizes):
        ids = integers(given[0], *given[-2:], seed=seed)
        yield dict(zip(names, given)) | {"ids": ids}
