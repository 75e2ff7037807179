"""Checks from inside: which way of computing attention gives the layer's numbers?"""

from itertools import product

import torch
from torch import Tensor

from . import masks
from .known_layers import known_mistakes, readings, reference
from .probe import CAUSAL, NOT_COMPARED, ONE, SHAPES, SINGLE, Probe, hidden_by, made

# Mistakes that some right layers make on purpose: they are named, and the verdict asks.
ON_PURPOSE = {
    "no scale": "T5 and GPT-Neo leave it out on purpose: is it meant?",
    "no softmax": "linear attention leaves it out on purpose: is it meant?",
    "divided by head_dim": "models in μP do it on purpose: is it meant?",
    "every num_heads-th feature": "SuperGlue does it on purpose: is it meant?",
}


def numbers(p: Probe):
    """Look for the way of computing that gives the layer's numbers, `p.reading`."""
    if not p.output.isfinite().all():
        return None
    usual = {"": ONE, ", causal": CAUSAL}
    names = [name for name, seen in usual.items() if p.sees.equal(seen)]
    heads, sizes = p.num_heads, (p.embed_dim, p.num_heads)
    ways = [*zip(readings(p.layer, *sizes), readings(p.bare, *sizes))]
    bare = p.tried(p.x, layer=p.bare)
    for each, plain in ways:
        known = reference(p.x, plain, heads, p.sees)
        if p.same(known, bare, SINGLE):
            p.reading = plain
            pattern = names[0] if names else ", with its pattern"
            whole = reference(p.x, each, heads, p.sees)
            if not p.same(whole, p.output, SINGLE):
                but = f" but for the biases, added elsewhere{each.but}: is it meant?"
                return None, equation(p, each, pattern, known, bare) + but
            long, all_keys = p.text(1, 70), torch.ones(70, 70, dtype=torch.bool)
            shown = all_keys.tril() if names == [", causal"] else all_keys
            found = p.tried(long, layer=p.bare) if names else None
            wanted = reference(long, plain, heads, shown)
            if found is not None and not p.same(wanted, found, SINGLE):
                text = "equal for 8 tokens, and not for 70. Is there a window?"
                return None, text
            return each.ok, equation(p, each, pattern, whole, p.output) + each.but
    asked = with_other_heads(p, bare)
    likely = [plain for _, plain in ways if plain.likely]
    patterns = [None, CAUSAL] if names else [None, CAUSAL, p.sees]
    one = p.tried(p.x[:1], layer=p.bare)
    for plain, mask, mistake in product(likely, patterns, known_mistakes()):
        given = ((p.x[:1], one), (p.x, bare))  # one text first: most differ in it
        if all(
            p.same(mistake.gives(x, plain, heads, mask), y, SINGLE) for x, y in given
        ):
            return named(p, mistake, asked or ON_PURPOSE.get(mistake.name))
    return None, asked or f"{NOT_COMPARED}: no known way of computing gives them"


def equation(p: Probe, each, pattern: str, given: Tensor, output: Tensor) -> str:
    """Return how the layer computes, and how exactly this gives its output.

    Relative to the largest output, as in `Probe.same`.
    """
    size = p.embed_dim // p.num_heads
    heads, groups = (len(m.w) // size for m in each.matrices[:2])
    heads = f"{heads} head{'s' if heads > 1 else ''}"
    heads += f", {groups} of keys and values" if groups < p.num_heads else ""
    rest = (given - output).abs().max() / output.abs().max().clamp(min=1e-30)
    exact = next((x for x in ("1e-12", "1e-9", "1e-6") if rest <= float(x)), "1e-5")
    return f"{each.layout}, {heads}{pattern}: softmax(QKᵀ/√{size})V, equal to {exact}"


def with_other_heads(p: Probe, bare: Tensor) -> str | None:
    """Return the question that another number of heads puts, if one is equal."""
    for heads in range(1, p.embed_dim + 1):
        if p.embed_dim % heads or heads == p.num_heads:
            continue
        for each in (x for x in readings(p.bare, p.embed_dim, heads) if x.likely):
            if p.same(reference(p.x[:1], each, heads, p.sees), bare[:1], SINGLE):
                return f"it is equal with {heads} head(s): is num_heads right?"
    return None


def large_scores(p: Probe):
    """See whether large scores give numbers, and those that follow from small ones.

    An exponential that overflows makes nearly every output NaN. In linear attention a
    few are, where all features of a query underflow and its weights are 0 / 0.
    """
    if (output := p.tried(p.x * 1e4)) is None:
        return None
    lost = (~output.isfinite()).any(dim=-1).double().mean()
    if 0 < lost < 0.5:
        return None, f"{lost:.0%} of the outputs are NaN: all weights underflow to 0"
    if lost:
        return False, "they give NaN or infinity, as if exp overflows"
    given = p.tried(x := 30 * p.x, None, p.bare) if p.reading else None
    if given is None or p.same(
        given, reference(x, p.reading, p.num_heads, p.sees), 1e-3
    ):
        return True, "they give numbers"
    return None, "they give other numbers, as if they are capped: is it meant?"


def numbers_with_a_mask(p: Probe):
    """Say what is wrong with a layer that is right until it gets a mask."""
    if p.hides:
        return differs_with_a_mask(p) if p.reading else None
    if not p.reading or masks.kinds(p)[0] is not False:
        return None
    ways = [("True shows", shape) for shape in [*SHAPES][:3]]
    outputs = [p.tried(p.x, made(way, p.hide), p.bare) for way in ways]
    for mistake in (m for m in known_mistakes() if m.of_head):
        gives = mistake.gives(p.x, p.reading, p.num_heads, ~p.hide)
        if any(p.same(gives, output, SINGLE) for output in outputs):
            return named(p, mistake)
    return None


def differs_with_a_mask(p: Probe):
    """Compare where a score is 0, and where scores are far below 0.

    The latter is asked, because right layers fill with -1e4, too. A layer may set the
    output of token 2 to 0, which is hidden from all.
    """
    mask, shown = made(p.hides, p.hide), p.sees & ~hidden_by(p, p.hides[1])
    x, rows = p.text(9, len(shown)), [n for n in range(len(shown)) if n != 2]
    x[:, 1] = 0.0
    for size in (1.0, 30.0):
        given, bare = p.tried(size * x, mask, p.bare), p.tried(size * x, None, p.bare)
        if given is None or bare is None or not bare.isfinite().all():
            continue
        usual = reference(size * x, p.reading, p.num_heads, p.sees)
        if not p.same(bare, usual, 1e-3):  # scores are capped, with and without a mask
            continue
        wanted = reference(size * x, p.reading, p.num_heads, shown)
        if p.same(given[:, rows], wanted[:, rows], 1e-3):
            continue
        asked = "right layers fill with -1e4, too: is it meant?" if size > 1 else None
        for mistake in (m for m in known_mistakes() if m.of_head):
            gives = mistake.gives(size * x, p.reading, p.num_heads, shown)
            if gives is not None and p.same(gives[:, rows], given[:, rows], SINGLE):
                return named(p, mistake, asked)
        if asked:
            return None, "hidden tokens are seen where scores are low: is it meant?"
        return False, "it hides something else where a score is 0"
    return None


def named(p: Probe, mistake, asked: str | None = None):
    """Return that the layer is a known mistake: a question if it may be on purpose."""
    p.mistake = mistake.name
    said = f"{mistake.name}: {mistake.why}"
    return (None, f"{said} But {asked}") if asked else (False, said)
