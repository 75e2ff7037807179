"""Trials of lesson 10: what its exercises are tried with."""

import math

import torch

from utils.models import CausalLM
from utils.positions import Rotary

from .catalogue import trials
from .draws import integers, qkv, randn, strided


def in_parts(answer, q, k, v, parts):
    """Return what an answer gives for a text in parts, and what its cache keeps."""
    cache, found, rotate = {}, {}, Rotary(q.shape[-1], base=100.0).rotate
    for i, part in enumerate(zip(*(x.split(parts, dim=-2) for x in (q, k, v)))):
        found[f"output of call {i + 1}"] = answer(*part, cache, rotate)
        if not {"key", "value"} <= cache.keys():
            raise ValueError(
                f"after call {i + 1}, the given dict `cache` has the entries "
                f"{[*cache]}, and not 'key' and 'value'."
            )
    return found | {f"cache[{name!r}]": cache[name] for name in ("key", "value")}


@trials("10.1", gradients=False, through=in_parts)
def texts(dtype):
    # texts, heads, features, tokens of each call
    sizes = [(1, 2, 4, (3, 2)), (2, 3, 8, (4, 1, 1)), (2, 1, 2, (1, 1, 3))]
    sizes += [(1, 4, 6, (2, 4, 1)), (3, 2, 4, (1, 2)), (1, 2, 8, (6,))]
    if dtype == torch.float32:
        # not in double: from 8 keys on, PyTorch misreads an answer's mask in single
        sizes += [(2, 2, 4, (5, 3, 2))]
        sizes += [(1, 1, 2, (70, 1, 64))]  # longer than a memory of 64 or 128 tokens
    for seed, (batch, heads, dim, parts) in enumerate(sizes):
        tokens = sum(parts)
        trial = qkv((batch, heads), tokens, tokens, dim, dim, seed, dtype)
        # in memory they lie as `split_heads` gives them
        q, k, v = (strided(x, 1, 2) for x in trial.values())
        sharp = 1000 if (dtype, seed) == (torch.float64, 3) else 2  # exp overflows
        yield {"q": sharp * q, "k": k, "v": v, "parts": parts}


@trials("10.3", gradients=False)
def steps(dtype):
    """Yield the steps of some attentions, one after the other."""
    sizes = [(4, 9, 3, 2), (3, 8, 4, 5), (2, 5, 2, 1), (1, 6, 1, 3), (3, 6, 2, 2)]
    yield example(dtype)  # first: a reader can follow it by hand
    for seed, (queries, keys, block, dim) in enumerate(sizes):
        scores = 3 * randn(queries, keys, seed=seed, dtype=dtype)
        values = randn(keys, dim, seed=20 + seed, dtype=dtype)
        if seed == 0:
            scores -= 1000  # exp(-1000) is 0: the first maximum is not 0
        if seed == 1:  # the first block is hidden from all, a later one from some
            scores[:, :block] = -math.inf
            scores[0, block:] = -math.inf
        if seed == 2:
            scores[:, block : 2 * block] = -math.inf
        if seed == 3:
            scores += 1000  # nothing may overflow
        if seed == 4:  # below and above any number that one may think of
            scores[:] = torch.tensor([-3e10, -3e10, -3e10, -3e10, 3e10, 3e10])
            scores[0, :2], scores[1, 1:3] = -math.inf, -math.inf
        for at in range(0, keys, block):
            upto = scores[:, :at], values[:at]
            part = {"scores": scores[:, at : at + block], "values": values[at:][:block]}
            yield part | state(*upto)


def example(dtype):
    """Return the example of the page: one score and one value."""
    numbers = {"scores": 3, "values": 2, "top": 1, "total": 1, "output": 7}
    return {name: torch.full((1, 1), x, dtype=dtype) for name, x in numbers.items()}


def state(scores, values):
    """Return the state of an online softmax after these keys."""
    top = torch.full((len(scores), 1), -math.inf, dtype=scores.dtype)
    top = torch.cat([top, scores], dim=-1).amax(dim=-1, keepdim=True)
    exps = (scores - top).exp().nan_to_num()  # -inf - (-inf) is NaN
    total, output = exps.sum(dim=-1, keepdim=True), exps @ values
    return {"top": top, "total": total, "output": output}


@trials("10.4", gradients=False)
def windows():
    sizes = [(5, 5, 2), (6, 6, 3), (3, 8, 4), (1, 9, 3), (7, 7, 1), (4, 4, 9)]
    sizes += [(2, 6, 5), (8, 8, 4)]
    sizes += [(5, 5, 3), (5, 8, 2)]  # two of three numbers were seen before
    for queries, keys, window in sizes:
        yield {"queries": queries, "keys": keys, "window": window}


def counted(answer, model, ids, steps, temperature, seed):
    """Return what an answer writes, and how many positions it computes in vain.

    Prompt and new tokens are enough; the last new token need not be computed.
    """
    computed = 0

    def watched(new, *, cache=None):  # as CausalLM has it
        nonlocal computed
        computed += new.numel()  # texts × positions
        return model(new, cache=cache)

    watched.__qualname__ = "model"  # as an error names it
    generator = torch.Generator().manual_seed(seed) if seed else None
    torch.manual_seed(57)  # of torch's own generator, for None
    ids_written = answer(watched, ids, steps, temperature, generator)
    if steps and not computed:
        raise ValueError(
            "it never calls the `model` that it gets: model(new, cache=cache)."
        )
    needed = ids.numel() + steps * len(ids)
    again = max(0, computed - needed)
    return {"ids": ids_written, "positions that `model` computed again": again}


def small_model(vocab_size, seed):
    """Return a language model of this vocabulary with drawn weights."""
    model = CausalLM(vocab_size, 16, 2, 1, position=Rotary(8)).double().eval()
    for i, x in enumerate(model.parameters()):
        scale = 0.5 if x.dim() == 1 else 2 / x.shape[-1] ** 0.5
        x.data = scale * randn(*x.shape, seed=100 * seed + i)
    return model.requires_grad_(False)


@trials("10.2", gradients=False, through=counted)
def prompts():
    # vocabulary, texts, length of the prompt, steps, temperature
    sizes = [(11, 1, 4, 8, 0.0), (9, 1, 6, 9, 0.7), (13, 3, 5, 10, 0.0)]
    sizes += [(7, 2, 5, 9, 1.5), (12, 1, 1, 6, 0.0), (8, 4, 3, 6, 1.0)]
    sizes += [(10, 2, 7, 1, 0.5), (10, 1, 3, 12, 3.0), (6, 2, 3, 0, 0.0)]
    # long and broad: another temperature would draw other tokens
    sizes += [(40, 4, 3, 30, 0.3), (40, 4, 3, 30, 3.0)]
    sizes += [(9, 2, 4, 6, 1e-3)]  # exp of such logits / temperature overflows
    sizes += [(3, 1, 2, 12, 1.0)]  # each token comes long before the end
    for seed, given in enumerate(sizes):
        vocab_size, texts, length, steps, temperature = given
        ids = integers(vocab_size, texts, length, seed=seed)
        trial = {"model": small_model(vocab_size, seed), "ids": ids, "steps": steps}
        yield trial | {"temperature": temperature, "seed": 100 + seed}
    drawn = {"model": small_model(8, 19), "ids": integers(8, 3, 4, seed=19), "steps": 9}
    yield drawn | {"temperature": 1.0, "seed": 0}  # without a generator
    for apart, temperature in ((1e-3, 0.0), (1e-3, 1e-3), (1e-9, 0.0)):
        close = small_model(11, seed=20)  # logits that differ by so little
        for x in close.head.parameters():
            x *= apart
        trial = {"model": close, "ids": integers(11, 1, 4, seed=20), "steps": 8}
        yield trial | {"temperature": temperature, "seed": 120}
