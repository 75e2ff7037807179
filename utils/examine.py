"""Is this attention right? `examine` asks any layer, from outside and from inside.

From outside: it changes tokens, texts and masks, and looks at what moves. From inside:
it takes the layer's matrices, and looks for the way of computing attention that gives
exactly the layer's numbers: the right one, or a mistake that the exercises know. What
right layers may do in several ways is a convention, and no fault. Where a right layer
and a fault look alike, it asks.

    python -m utils.examine FILE.py:NAME --embed-dim 64 --heads 4

NAME is a layer, or a class or function that returns one: called with (embed_dim,
num_heads), or with nothing if it takes nothing. The exit status is 0 if no fault was
found, 1 if one was, and 2 if the layer could not be run.
"""

import argparse
import copy
import html
import inspect
import math
import re
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from itertools import product, takewhile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from utils.exercises.known_layers import known_mistakes, readings, reference

LENGTH = 8  # tokens of the texts that are tried
SINGLE = 1e-6  # how exactly numbers agree: a scale may be in single precision
ONE = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
CAUSAL, OTHERS = ONE.tril(), ONE ^ ONE.tril().triu()
SIGNS = {True: "ok", False: "WRONG", None: "note"}
KINDS = {  # of masks, made from hide (queries, keys), True = hide
    "True shows": lambda hide: ~hide,
    "True hides": lambda hide: hide,
    "0 hides and 1 shows": lambda hide: (~hide).double(),
    "-inf is added": lambda hide: hide.double().masked_fill(hide, -math.inf),
}
SHAPES = {  # without an axis of queries: what is hidden from all of them
    "(length, length)": lambda hide: hide,
    "(batch, 1, length, length)": lambda hide: hide[None, None],
    "(batch, length, length)": lambda hide: hide[None],
    "(batch, 1, 1, length)": lambda hide: hide.all(dim=0)[None, None, None],
    "(batch, length)": lambda hide: hide.all(dim=0)[None],
}
PATTERNS = {  # of who sees whom: whether right layers have it, and (queries, keys)
    "every token sees every token": (True, ONE),
    "causal: each token sees itself and earlier ones": (True, CAUSAL),
    "no token sees another": (False, ~ONE),
    "each token sees later ones only: is the mask inverted?": (False, ONE.triu()),
    "each token sees the next one": (False, ONE.tril(1)),
}
WIDTHS = range(1, LENGTH - 1)
PATTERNS |= {f"a window of {n + 1} tokens": (True, CAUSAL.triu(-n)) for n in WIDTHS}
PATTERNS |= {f"{n} tokens on each side": (True, ONE.tril(n).triu(-n)) for n in WIDTHS}
EXACTLY, NOTHING, NOT_COMPARED = "hides exactly", "changes nothing", "not compared"
TRACE, ALWAYS = "leaves a trace", "changes the output even where it hides nothing"
LATER, INSTEAD = "hides later tokens only", "comes in place of the layer's own mask"
ALL = [*range(LENGTH)]
DROPPED = re.compile(r"^p$|drop(out)?(_p|_prob|_rate)?$")  # names of probabilities
HIDE = (torch.arange(LENGTH) == 2).expand(LENGTH, LENGTH)  # token 2, from every query
# Mistakes that some right layers make on purpose: they are named, and the verdict asks.
ON_PURPOSE = {
    "no scale": "T5 and GPT-Neo leave it out on purpose: is it meant?",
    "no softmax": "linear attention leaves it out on purpose: is it meant?",
    "divided by head_dim": "models in μP do it on purpose: is it meant?",
    "every num_heads-th feature": "SuperGlue does it on purpose: is it meant?",
}


class Finding(NamedTuple):
    """What a check found. ok: True, False (a fault), or None (a convention to know).

    A convention that ends with a question may also be a fault.
    """

    check: str
    ok: bool | None
    text: str


@dataclass
class Report:
    """What is right and wrong with a layer; `print` it, or let a notebook show it.

    mistake: the known mistake whose numbers the layer gives, or None.
    sees (queries, keys): whether a query's output depends on a key's token.
    """

    findings: list[Finding] = field(default_factory=list)
    mistake: str | None = None
    sees: Tensor | None = None

    @property
    def right(self) -> bool:
        """Whether no finding is a fault."""
        return all(found.ok is not False for found in self.findings)

    @property
    def verdict(self) -> str:
        """The sentence that says whether something is wrong, and what."""
        if not self.right:
            wrong = ", ".join(x.check for x in self.findings if x.ok is False)
            known = f" It is a known mistake: {self.mistake}." if self.mistake else ""
            return f"This layer is wrong: {wrong}.{known}"
        texts = {x.check: x.text for x in self.findings}
        asked = [check for check, text in texts.items() if text.endswith("?")]
        if self.mistake:
            asked[asked.index("same numbers")] = self.mistake
        meant = f", if this is meant: {', '.join(asked)}" if asked else ""
        compared = not texts.get("same numbers", NOT_COMPARED).startswith(NOT_COMPARED)
        more = "" if compared else " The numbers could not be compared."
        return f"No fault was found{meant}.{more}"

    def __str__(self) -> str:
        rows = [f"{SIGNS[x.ok]:5s}  {x.check:13s}  {x.text}" for x in self.findings]
        return "\n".join([*rows, self.verdict])

    def _repr_html_(self) -> str:
        """Return the text, and "who sees whom" as a picture."""
        text = f"<pre style='white-space:pre-wrap'>{html.escape(str(self))}</pre>"
        if self.sees is None:
            return text
        box = "<td style='width:14px;height:14px;border:1px solid #888;background:{}'>"
        rows = [[box.format("#2b6cb0" if x else "#eee") for x in y] for y in self.sees]
        table = "".join(f"<tr>{''.join(row)}" for row in rows)
        words = "Row: query. Column: key. Blue: the query's output depends on this key."
        return f"{text}<table>{table}</table><small>{words}</small>"


def examine(
    layer: nn.Module, embed_dim: int, num_heads: int, *, call: Callable | None = None
) -> Report:
    """Return what is right and wrong with an attention layer.

    call(layer, x, mask) returns the output (batch, length, embed_dim), or a tuple that
    begins with it, of x (batch, length, embed_dim); mask is None where there is none.
    By default layer(x) is called, and with a mask layer(x, mask), by the name of its
    mask if it has one; a layer that takes query, key and value gets x three times.
    Other layers need a call of their own:

        call=lambda layer, x, mask: layer(x, attention_mask=mask)[0]
        call=lambda layer, x, mask: layer(x, causal if mask is None else mask)
        call=lambda layer, x, mask: layer(x, position_embeddings=rotary(x, places))[0]
        call=lambda layer, x, mask: layer(x, mask=mask, cache={})["output"]

    A copy is examined, in eval mode, and in double precision (in single if it runs in
    no other): the layer, its mode and the random numbers stay as they were.

    TypeError: the layer is no module. ValueError: embed_dim is no multiple of
    num_heads, or one of them is no positive whole number. RuntimeError: the layer
    raised an error, or gave no tensor.

    >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> examine(layer, embed_dim=8, num_heads=2).verdict
    'No fault was found.'
    """
    if not isinstance(layer, nn.Module):
        kind = getattr(layer, "__name__", type(layer).__name__)
        raise TypeError(f"layer is {kind}; give an nn.Module, such as Layer(64, 4).")
    sizes = embed_dim, num_heads
    if not all(isinstance(n, int) and n > 0 for n in sizes) or embed_dim % num_heads:
        raise ValueError(f"{num_heads=} must divide {embed_dim=}: whole, above 0.")
    modes = {module: module.training for module in layer.modules()}
    layer.eval()  # a closure in the copy keeps the layer's own modules
    try:
        return _examined(layer, embed_dim, num_heads, call)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _examined(layer, embed_dim: int, num_heads: int, call) -> Report:
    """Return the report on a layer in eval mode."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # what the layer warns of is not asked here
        torch.manual_seed(0)
        probe, findings = Probe(layer, embed_dim, num_heads, call), []
        sure = True  # that what moves in an output was moved by the check
        for name, check in CHECKS.items():
            if not (sure or name == "same numbers") or not (said := check(probe)):
                continue
            findings.append(Finding(name, *said))
            if said[0] is False and name == "shapes":
                return Report(findings)
            sure = sure and not (said[0] is False and name in ("repeats", "batch"))
        return Report(findings, probe.mistake, probe.sees if sure else None)


def parameters(layer: nn.Module) -> tuple[list[str], list[str], bool]:
    """Return the inputs that a layer needs, its masks, and whether it needs a mask."""
    try:
        known = inspect.signature(layer.forward).parameters
    except ValueError:  # a layer of torch.jit.script
        return [], [], False
    needed = [n for n, p in known.items() if p.default is p.empty and p.kind < 2]
    masks = [name for name in known if "mask" in name and name != "head_mask"]
    masks.sort(key=lambda name: name not in ("mask", "attn_mask"))
    inputs = [name for name in needed if name not in masks]
    return inputs, masks, len(inputs) < len(needed)


def call_by_name(layer: nn.Module, x: Tensor, mask: Tensor | None, which: int = 0):
    """Return layer(x), or layer(x, x, x), and with a mask by the name of one mask."""
    needed, masks, always = parameters(layer)
    inputs = [x] * max(1, min(3, len(needed)))
    if mask is None and not always:
        return layer(*inputs)
    return layer(*inputs, **{masks[which]: mask}) if masks else layer(*inputs, mask)


def call_with(layer: nn.Module, x: Tensor, mask, other: Tensor, place: int):
    """Call a layer with x, but with another tensor in one place."""
    needed, masks, always = parameters(layer)
    inputs = [other if i == place else x for i in range(min(3, len(needed)))]
    return layer(*inputs, **({masks[0]: mask} if always and masks else {}))


class Detached(TorchFunctionMode):
    """While it is on, what a layer keeps of an earlier run is copied detached."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is Tensor.__deepcopy__ and args[0].grad_fn is not None:
            return args[1].setdefault(id(args[0]), args[0].detach().clone())
        return function(*args, **(kwargs or {}))


def copied(layer: nn.Module) -> nn.Module:
    """Return a copy, without gradients of an earlier run."""
    with Detached():
        return copy.deepcopy(layer)


class Probe:
    """A copy of a layer, as a function of tokens, and what was seen of it.

    output: what it gives for x (3, length, embed_dim). exact: how exactly it computes,
    relative to its largest output: of a smooth function the second difference of tiny
    steps is nothing, and where a part is in single precision it jumps.
    """

    def __init__(self, layer, embed_dim: int, num_heads: int, call: Callable | None):
        self.layer, self.dtype = copied(layer).double(), torch.float64
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.call, self.own_call = call or call_by_name, call is not None
        self.length_first = getattr(layer, "batch_first", True) is False
        self.mistake = self.reading = None
        self.x = self.text(3, LENGTH)
        in_double = self.tried(self.x) is not None
        if not (in_double and self.adds()):  # a part or a mask may be in single
            double, self.layer = self.layer, copied(layer).float()
            self.dtype = torch.float32
            if in_double and not self.adds():
                self.layer, self.dtype = double, torch.float64
        try:
            self.output = self.run(self.x)
        except Exception as error:
            said = f"the layer could not be run: {type(error).__name__}: {error}"
            how = f"examine(layer, {embed_dim}, {num_heads}, call=...)"
            hint = f"If layer(x) is not the way to call it, say how: {how}."
            raise RuntimeError(f"{said}\n{hint}") from error
        step = 1e-8 * self.text(3, LENGTH)
        more, less = self.tried(self.x + step), self.tried(self.x - step)
        jumps = more is not None and (more + less - 2 * self.output).abs().max() > 1e-11
        self.exact = 1e-5 if jumps or self.dtype == torch.float32 else 1e-9

    def run(self, x: Tensor, mask: Tensor | None = None, layer=None) -> Tensor:
        """Return the output (batch, length, embed_dim) for such an x."""
        if mask is not None and len(mask) == 1:  # once for each text
            mask = mask.expand(len(x), *mask.shape[1:]).contiguous()
        if mask is not None and mask.is_floating_point():
            mask = mask.to(self.dtype)
        x = self.axes(x).to(self.dtype, copy=True)
        given = self.call(self.layer if layer is None else layer, x, mask)
        if isinstance(given, tuple | list):  # weights may stand beside it
            tensors = [y for y in given if isinstance(y, Tensor)]
            given = min(tensors, key=lambda y: y.shape != x.shape, default=given)
        if not isinstance(given, Tensor):
            kind = type(given).__name__
            raise TypeError(f"it gave a {kind}, and no tensor; give a call that does")
        return self.axes(given.double())

    def axes(self, x: Tensor) -> Tensor:
        """Return x with the axes of the layer, or an output with ours."""
        return x.transpose(0, 1) if self.length_first else x

    def tried(self, x: Tensor, mask: Tensor | None = None, layer=None) -> Tensor | None:
        """Return the output, or None if the layer refuses this input."""
        try:
            return self.run(x, mask, layer)
        except Exception:
            return None

    def adds(self) -> bool:
        """Whether the layer takes a mask that is added, in some shape."""
        masks = (made(("-inf is added", shape), HIDE) for shape in SHAPES)
        return any(self.tried(self.x, mask) is not None for mask in masks)

    def text(self, *size: int) -> Tensor:
        """Return random tokens (*size, embed_dim)."""
        return torch.randn(*size, self.embed_dim, dtype=torch.float64)

    def moved(self, a: Tensor, b: Tensor, exact: float = 0.0) -> Tensor:
        """Return at which tokens outputs differ, (batch, length)."""
        size = max(1.0, float(b.nan_to_num(0, 0, 0).abs().max()))
        size *= max(exact, self.exact)
        far = ~torch.isclose(a, b, rtol=0, atol=size, equal_nan=True)
        return far.any(dim=-1)

    def same(self, a: Tensor | None, b: Tensor | None, exact: float = 0.0) -> bool:
        """Whether two outputs are equal, as exactly as the layer computes."""
        known = a is not None and b is not None and a.shape == b.shape
        return known and not self.moved(a, b, exact).any()

    def moves(self, x: Tensor, mask, tokens: list[int], layer=None) -> Tensor | None:
        """Return which outputs of x (1, length, embed_dim) move if a token is changed.

        (queries, tokens), or None if the layer refuses the mask.
        """
        x = x.repeat(len(tokens) + 1, 1, 1)
        x[range(1, len(x)), tokens] = self.text(len(tokens))  # each in turn
        output = self.tried(x, mask, layer)
        if output is None or output.shape != x.shape:
            return None
        return self.moved(output[1:], output[:1].expand_as(output[1:])).mT

    def visible(self, mask: Tensor | None = None) -> Tensor | None:
        """Return who sees whom, (queries, keys), or None if the mask is refused.

        Inputs are small, because a saturated softmax gives no weight to most tokens.
        """
        return self.moves(0.2 * self.text(1, LENGTH), mask, ALL)

    @cached_property
    def sees(self) -> Tensor:
        """Who sees whom without a mask."""
        if (seen := self.visible()) is None:
            refused = f"the layer refuses {LENGTH + 1} texts of {LENGTH} tokens at once"
            raise RuntimeError(f"{refused}, though it takes 3")
        return seen

    @cached_property
    def shuffles(self) -> bool | None:
        """Whether shuffled tokens give shuffled outputs; None: not all are seen."""
        if not self.sees.all():
            return None
        order = torch.randperm(LENGTH)
        return self.same(self.run(self.x[:, order]), self.output[:, order])

    @cached_property
    def hide(self) -> Tensor:
        """What masks hide: token 2, later tokens, and what the layer itself hides.

        So each query has its own row, and a mask may come in place of the layer's own.
        """
        return HIDE | (OTHERS & ~(self.sees & CAUSAL))

    @cached_property
    def masked(self) -> dict[tuple[str, str], str]:
        """What such a mask does, for each kind and shape that is taken."""
        did = {way: effect(self, way) for way in product(KINDS, SHAPES)}
        for way in (way for way, text in did.items() if text == EXACTLY):
            shown = self.tried(self.x, made(way, OTHERS & ~self.sees))  # as without it
            if not self.same(shown, self.output, SINGLE):
                did[way] = None if shown is None else ALWAYS
        return {way: text for way, text in did.items() if text}

    @cached_property
    def hides(self) -> tuple[str, str] | None:
        """The first kind and shape of a mask that hides exactly."""
        return next((way for way, did in self.masked.items() if did == EXACTLY), None)

    @cached_property
    def bare(self) -> nn.Module:
        """The layer with biases of 0."""
        layer = copied(self.layer)
        for name, x in [*layer.named_parameters(), *layer.named_buffers()]:
            if "bias" in name and x.dim() == 1:
                x.data.zero_()
        return layer


def made(way: tuple[str, str], hide: Tensor) -> Tensor:
    """Return a mask of a kind and a shape, from hide (queries, keys), True = hide."""
    kind, shape = way
    return KINDS[kind](SHAPES[shape](hide))


def hidden_by(p: Probe, shape: str) -> Tensor:
    """Return what a mask of this shape hides, (queries, keys)."""
    return SHAPES[shape](p.hide).reshape(-1, LENGTH).expand(LENGTH, LENGTH)


def effect(p: Probe, way: tuple[str, str]) -> str | None:
    """Return what a mask does, by who then sees whom; None: it is refused."""
    mask = made(way, p.hide)
    if (seen := p.visible(mask)) is None:
        return None
    before, now = p.sees & OTHERS, seen & OTHERS
    hide = hidden_by(p, way[1])
    patterns = {
        NOTHING if p.same(p.tried(p.x, mask), p.output) else TRACE: before,
        EXACTLY: before & ~hide,
        LATER: before & CAUSAL,
        INSTEAD: OTHERS & ~hide,
        "hides the query, not the key": before & ~hide.mT,
    }
    rows = ~HIDE.mT | now[2].any()  # some layers set the rows of hidden tokens to 0
    found = (did for did, each in patterns.items() if (now & rows).equal(each & rows))
    return next(found, "hides something else")


def hides_far(p: Probe, way: tuple[str, str]) -> bool:
    """Whether a mask that shows token 0 alone hides exactly what is far off.

    So it is if a shift or a convolution gives hidden tokens to their neighbours. A
    token in the middle must not reach the ends, and the last one not the middle.
    """
    for n in (128, 32, LENGTH):
        mask, x = made(way, (torch.arange(n) > 0).expand(n, n)), p.text(1, n)
        moved = p.moves(x, mask, [n // 2, n - 1])
        if moved is not None:
            seen = moved[[0, -1], 0].any() or moved[n // 2, 1]
            return not seen and p.run(x, mask).isfinite().all()
    return False


# --- the checks: each returns (ok, text), or None if there is nothing to say ---


def either(ok, text: str, otherwise: str) -> tuple[bool, str]:
    """Return (ok, text), or (False, otherwise)."""
    return bool(ok), text if ok else otherwise


def meant(seen: str, who: str, fault: str) -> tuple[None, str]:
    """Return a question, because a right layer and a fault look alike."""
    return None, f"{seen}: {who} does so on purpose, {fault} by mistake. Is it meant?"


def zeros(p: Probe):
    """Draw what is tiny (LayerScale), or zero if that hides everything."""
    if p.output.shape == p.x.shape:
        axes(p)
    named = [(n, w) for n, w in p.layer.named_parameters() if "bias" not in n]
    tiny = {n: w for n, w in named if w.numel() and w.abs().max() < 1e-4}
    if not tiny or (seen := p.visible()) is None:
        return None
    if (seen & OTHERS).any() and not any(w.any() for w in tiny.values()):
        names = ", ".join(n for n, w in tiny.items() if w.dim() > 1)
        text = f"{names} is 0, and not tried: draw it, and examine it again"
        return (None, text) if names else None
    for w in tiny.values():
        w.normal_(std=0.2)
        if w.dim() < 2:  # it may stand under a root
            w.abs_()
    p.output = p.run(p.x)
    return None, f"{', '.join(tiny)}: 0 or tiny, so random numbers are tried"


def shapes(p: Probe):
    outputs = {n: p.tried(p.text(2, n)) for n in (1, 5, LENGTH)}
    for n, y in outputs.items():
        if y is not None and y.shape != (wanted := (2, n, p.embed_dim)):
            return False, f"{wanted} goes in, and {tuple(y.shape)} comes out"
    if refused := [n for n, y in outputs.items() if y is None]:
        return None, f"texts of {refused[0]} token(s) are refused"
    return True, "each text keeps its length and its width"


def repeats(p: Probe):
    ok, text = p.same(p.run(p.x), p.output), "the same input gives the same output"
    return either(ok, text, "calls differ in eval mode (dropout?); other tests wait")


def input_stays(p: Probe):
    before = p.axes(p.x).to(p.dtype)
    p.call(p.layer, x := before.clone(), None)
    text = "the input stays as it was"
    return either(x.equal(before), text, "the layer changes its input")


def precision(p: Probe):
    if p.dtype == torch.float64:
        return None
    return None, "it runs in single precision only: what is below 1e-5 is not seen"


def finite(p: Probe):
    ok = p.output.isfinite().all()
    return None if ok else (False, "NaN or infinite numbers come out")


def moved_by_one(p: Probe) -> Tensor:
    """Return what moves, (3, length), if token 2 of text 1 is changed."""
    x = p.x.clone()
    x[1, 2] = p.text()
    return p.moved(p.run(x), p.output)


def axes(p: Probe):
    """Exchange the axes of length and batch if the other one is mixed."""
    moved = moved_by_one(p)
    if moved[[0, 2], 2].any() and not moved[1, [0, 1, 3, 4]].any():
        p.length_first = not p.length_first
        p.output = p.run(p.x)
    return (None, "it takes (length, batch, embed_dim)") if p.length_first else None


def batch(p: Probe):
    alone = p.tried(p.x[1:2])  # the first may get what it gets alone
    ok = alone is None or p.same(alone, p.output[1:2])
    ok = ok and not moved_by_one(p)[[0, 2]].any()
    text = "a text gives something else in a batch than alone; other tests wait"
    return either(ok, "each text gives what it gives alone", text)


def pattern(sees: Tensor) -> tuple[bool | None, str]:
    """Return whether right layers have this pattern (None: some), and its name.

    A token's own output depends on it by its query already. So only a query that may
    attend to itself alone shows whether a token attends to itself.
    """
    for text, (ok, known) in PATTERNS.items():
        if torch.equal(sees & OTHERS, known & OTHERS):
            if ok and not known[0, 1:].any() and not sees[0, 0]:
                return None, "each sees earlier tokens, but not itself: is it meant?"
            return ok, text
    return None, "an unusual pattern: is it meant?"


def who_sees_whom(p: Probe):
    if p.own_call and not (p.sees & OTHERS).any():  # it may give keys of its own
        return None, "no token sees another: is it meant?"
    return pattern(p.sees)


def order(p: Probe):
    if p.shuffles:
        return True, "shuffled tokens give shuffled outputs"
    text = "the order counts: positions or a mask inside, or tokens are mixed up"
    return None if p.shuffles is None else (None, text)


def equal_tokens(p: Probe):
    """Test whether equal tokens give what one of them gives.

    They do if the weights of each query sum to 1, and nothing else is mixed. A token
    that the layer passes on as it is (CaiT) is left out.
    """
    token = p.text(1, 1)
    outputs = of_equal(p, token)
    if len(outputs) < 3:
        return None
    outputs[1:] = [y.where(y != token, outputs[0]) for y in outputs[1:]]
    if all(p.same(y, outputs[0].expand_as(y)) for y in outputs):
        if over_queries(p):
            return False, "the weights of a key sum to 1, and not those of a query"
        return True, "they give what one gives: weights always have the same sum"
    ends = torch.stack([y[0, -1] for y in outputs])  # of 1, 2, 4, … tokens
    steps = ends.diff(dim=0).abs().amax(dim=-1)
    last, largest = steps[-1], steps.max()
    inside = outputs[-1][0, len(outputs[-1][0]) // 4 : -len(outputs[-1][0]) // 4]
    alike = p.same(inside, inside[:1].expand_as(inside))
    usual = pattern(p.sees)[0] and (alike or p.shuffles is not False)
    if usual and last < largest / 2:  # a part falls like 1 / length, or faster
        who = "a sink, an extra key, a decay or a shift of tokens"
        return meant("they differ less in longer texts", who, "padding that is seen")
    constant = differ_by_a_constant(p)
    if constant is None:
        text = "and their size hardly counts: positions after a norm, or tokens mixed?"
        return None, f"they differ, {text}"
    if constant:
        return None, "they differ by something that is added, such as positions"
    if last == largest > p.exact:
        return None, "their output grows: the weights do not sum to 1. Is it meant?"
    if fault := mixed_up(p):
        return False, f"they do not give what one gives: {fault}"
    who, fault = (
        "a sink, or other tokens of its own,",
        "a wrong split, merge or softmax",
    )
    return meant("they do not give what one gives", who, fault)


def of_equal(p: Probe, token: Tensor, layer=None, texts: int = 9) -> list[Tensor]:
    """Return the outputs for 1, 2, 4, … equal tokens, as far as they go."""
    texts = (token.repeat(1, 2**n, 1) for n in range(texts))
    outputs = (p.tried(x, layer=layer) for x in texts)
    return [*takewhile(lambda y: y is not None, outputs)]


def mixed_up(p: Probe) -> str | None:
    """Return the fault that alone gives such outputs for equal tokens, or None.

    Then each head gives a multiple of its own value, whatever positions there are. If
    the softmax is over heads or queries, the multiples sum to the number of tokens. If
    weights are hidden after it, the multiples for tiny tokens, whose scores are equal,
    are fractions of this number. A wrong split or merge gives sums of several values
    (of huge tokens, beside which positions that are added are nothing).
    """
    tokens = p.text(8, 1)
    sizes = (multiples(p, tokens * size) for size in (1.0, 1e-3, 1e6))
    for (c, own, mixed), (tiny, *_), (_, still_own, still_mixed) in zip(*sizes):
        if (mixed and not own) or (still_mixed and not still_own):
            return "heads or tokens are mixed up"
        n = c.shape[1]
        if not own or (c - 1).abs().max() < 1e-4:
            continue
        if any((c.sum(dim) - n).abs().max() < 1e-4 * n for dim in (1, 2)):
            return "the softmax is over another axis"
        seen = n * tiny
        if (
            seen.min() > 0.9
            and seen.max() < n + 0.1
            and (seen - seen.round()).abs().max() < 1e-3
        ):
            return "weights are hidden after the softmax"
    return None


def multiples(p: Probe, tokens: Tensor) -> Iterator[tuple[Tensor, bool, bool]]:
    """Yield, for each reading, how much each head gives of the value of equal tokens.

    (texts, length, heads); whether it gives nothing else, and whether it gives sums of
    the values of all heads.
    """
    y = of_equal(p, tokens, unnormed(p.bare), 6)[-1]  # 32 tokens are enough
    for given, values in heads_and_values(p, tokens.expand_as(y), y):
        own, values = values, values[:, 0]  # (texts, heads, head_dim)
        c = (given * own).sum(dim=-1) / own.square().sum(dim=-1)
        exact = 1e-4 * own.abs().max()
        alone = (given - c[..., None] * own).abs().max() < exact
        sums = given.flatten(1, 2).mT  # (texts, head_dim, ...)
        left = values.mT @ torch.linalg.lstsq(values.mT, sums).solution - sums
        mixed = values.shape[2] > values.shape[1] and left.abs().max() < exact
        yield c, bool(alone), bool(mixed)


def over_queries(p: Probe) -> bool:
    """Whether the softmax is over the queries.

    A head gives sums of its values, so for fewer tokens than features we know with
    which weights. Those of a query must sum to 1.
    """
    x = p.text(4, min(4, p.embed_dim // p.num_heads - 1))
    y = p.tried(x, layer=unnormed(p.bare)) if x.shape[1] > 1 else None
    for given, values in () if y is None else heads_and_values(p, x, y):
        v, o = (each.transpose(1, 2).mT for each in (values, given))
        weights = torch.linalg.lstsq(v, o).solution  # (texts, heads, keys, queries)
        if (v @ weights - o).abs().max() < 1e-6 * v.abs().max():
            of_query, of_key = ((weights.sum(dim) - 1).abs().max() for dim in (2, 3))
            return bool(of_key < 1e-4 < 1e-2 < of_query)
    return False


def heads_and_values(p: Probe, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each reading, what heads give and their values.

    Each (texts, length, heads, head_dim), of outputs y for x, without biases.
    """
    size = p.embed_dim // p.num_heads
    ways = readings(p.bare, p.embed_dim, p.num_heads) if y.isfinite().all() else ()
    for each, rest in product(ways, (0, x)):  # a residual goes
        *_, v, out = each.matrices
        given = torch.linalg.lstsq(out.w, (y - rest).flatten(0, 1).mT).solution.mT
        values = (x @ v.w.mT).unflatten(-1, (-1, size))
        groups = p.num_heads // values.shape[2]
        given = given.view_as(y).unflatten(-1, (-1, size))
        yield given, values.repeat_interleave(groups, dim=2)


def differ_by_a_constant(p: Probe) -> bool | None:
    """Whether huge equal tokens give what one gives, but for a rest.

    What is added to tokens or values has its own size. A wrong weight grows with the
    tokens, if norms are left out. None: what attention gives does not grow, so that
    huge tokens say nothing.
    """
    token = 1e6 * p.text(8, 1)  # of eight texts: one may agree by chance
    one, *more = of_equal(p, token, unnormed(p.layer)) or [token]
    rest = max((float((y - one).abs().max()) for y in more[1:]), default=math.inf)
    of_attention = min((one - y).abs().max() for y in (0, token))  # a residual goes
    if of_attention < 1e-3 * token.abs().max():
        return None
    return rest < 1e-3 * float(one.abs().max())


def unnormed(layer: nn.Module) -> nn.Module:
    """Return a copy whose norms give what they get."""
    layer = copied(layer)
    for module in layer.modules():
        leaf = not [*module.children()]
        if leaf and "norm" in type(module).__name__.lower():
            module.forward = lambda x, *_: x
    return layer


def masks(p: Probe):
    """See what masks of each kind and shape do that should hide token 2."""
    if p.hides:
        return masks_that_hide(p)
    if not p.masked:
        return None, "it takes none of the masks that were tried"
    acting = {way: did for way, did in p.masked.items() if did != NOTHING}
    inputs, names, _ = parameters(p.layer)
    if not acting:  # a fault if the layer calls it a mask
        ok = False if names and not p.own_call else None
        return ok, "what is given as a mask changes nothing"
    if {*acting.values()} == {LATER}:
        text = f"every mask {LATER}, whatever it says"
        return meant(text, "a layer of Whisper", "a mask that was forgotten")
    (kind, _), did = next(iter(acting.items()))
    one = f'a mask of the kind "{kind}" {did}'
    if did == ALWAYS:
        return False, one
    if INSTEAD in acting.values():
        return None, f"a mask hides tokens, but {INSTEAD}: is it meant?"
    if not (p.shuffles or p.reading) and any(hides_far(p, way) for way in acting):
        who, fault = "a shift of tokens, or a convolution", "a mask shifted by one"
        return meant("a hidden token reaches its neighbours", who, fault)
    if len(inputs) == 2:
        return None, f"{one}: perhaps another mask hides it in the second input"
    if not (names or p.own_call):
        return None, f"what is given as a second input {did}: is it a mask?"
    return False, f"no mask hides a token exactly: {one}"


def masks_that_hide(p: Probe):
    """Say which kinds hide exactly, in which shapes, and what they do in others."""
    shapes = {}  # {kind: {what it does: in which shapes}}
    for (kind, shape), did in p.masked.items():
        shapes.setdefault(kind, {}).setdefault(did, []).append(shape)
    said, odd = [], False
    for kind, each in shapes.items():
        if EXACTLY in each:
            said.append(f"{kind}, in shape {' or '.join(each.pop(EXACTLY))}")
            for did, others in each.items():
                said.append(f"but in shape {' or '.join(others)} it {did}")
                odd = odd or did != INSTEAD
    if any("True" in kind and TRACE in each for kind, each in shapes.items()):
        said.append("but True and False are added as 1 and 0, and hide nothing")
    text = f"{EXACTLY}: {'; '.join(said)}"
    return (None, f"{text}: is it meant?") if odd else (True, text)


def second_mask(p: Probe):
    """Test whether a second mask, such as one for padding, hides anything."""
    inputs, names, always = parameters(p.layer)
    if p.own_call or always or len(inputs) == 2:  # the second input shows all tokens
        return None
    for which, name in enumerate(names):
        if which == 0 or re.search("encoder|memory|cross", name):
            continue
        call = partial(call_by_name, which=which)
        other = Probe(p.layer, p.embed_dim, p.num_heads, call)
        other.length_first = p.length_first
        other.output = other.run(other.x)
        if not other.hides:
            return None, f"{name} hides no token exactly: is it meant?"
    return None


def other_inputs(p: Probe):
    """Test whether the output depends on each input that the layer needs."""
    inputs, usual = parameters(p.layer)[0][:3], p.call
    if p.own_call or len(inputs) < 2:
        return None
    ignored, other = [], p.axes(p.text(3, LENGTH)).to(p.dtype)
    for place, name in enumerate(inputs):
        p.call = partial(call_with, other=other, place=place)
        if p.same(p.tried(p.x), p.output):
            ignored.append(name)
    p.call = usual
    if not ignored:
        return None
    return None, f"nothing depends on its input {' or '.join(ignored)}: is it meant?"


def mask_per_text(p: Probe):
    """Test whether each text of a batch gets its own mask."""
    exact = [way for way, did in p.masked.items() if did == EXACTLY]
    exact = [way for way in exact if "batch" in way[1]]
    for way in exact:
        mask, other = made(way, p.hide), made(way, p.hide.roll(1, dims=1))
        alone = p.tried(p.x[1:2], mask)
        each = p.tried(p.x, torch.cat([other, mask, other]))
        if alone is None or each is None or p.same(each[1:2], alone):
            continue
        if way == exact[0]:
            return False, "a text does not get its own mask in a batch"
        return None, f"a text does not get its own mask in shape {way[1]}: is it meant?"
    return None


def scores_of_zero(p: Probe):
    """Test whether hidden tokens stay hidden if their scores are exactly 0."""
    hidden = [(p.sees, None)] if pattern(p.sees)[0] else []
    if p.hides:
        mask = made(p.hides, p.hide)
        hidden.append((p.sees & ~hidden_by(p, p.hides[1]), mask))
    for seen, mask in hidden:
        token = torch.zeros(1, LENGTH, p.embed_dim).double()
        at_zero = p.moves(token, mask, ALL, p.bare)
        if at_zero is not None and (at_zero & ~seen & OTHERS).any():
            return False, "tokens whose scores are exactly 0 are seen, though hidden"
    return None


def empty_rows(p: Probe):
    """See what a query gives that may attend to nothing."""
    if not p.hides:
        return None
    mask = made(p.hides, ONE)
    output, other = p.tried(p.x, mask), p.tried(p.x.flip(1), mask)
    if output is None or other is None:
        return None
    if output.isnan().any():
        text = "NaN"
    elif p.same(output, output[:1, :1].expand_as(output)):
        text = "zeros, or the bias of the output"
    elif p.same(output, other):
        text = "the mean of all tokens, also of hidden ones"
    else:  # such as its own token, by a residual connection
        return None
    found = slope(p, p.x, p.text(3, LENGTH), mask)
    lost = text != "NaN" and found is not None and found.isnan().any()
    text += ", and NaN as a gradient" if lost else ""
    return None, f"a query that may see nothing gives {text}"


def large_scores(p: Probe):
    """Test whether large scores give numbers.

    An exponential that overflows makes nearly every output NaN. In linear attention a
    few are, where all features of a query underflow and its weights are 0 / 0.
    """
    if (output := p.tried(p.x * 1e4)) is None:
        return None
    lost = (~output.isfinite()).any(dim=-1).double().mean()
    if 0 < lost < 0.5:
        return None, f"{lost:.0%} of the outputs are NaN: all weights underflow to 0"
    text = "they give NaN or infinity, as if exp overflows"
    return either(lost == 0, "they give numbers", text)


def half_precision(p: Probe):
    """See whether the numbers stay close in float16, also with a mask."""
    given = [None, *([made(p.hides, p.hide)] if p.hides else [])]
    wanted, dtype = [p.run(p.x, mask) for mask in given], p.dtype
    layer, p.dtype = copied(p.layer).half(), torch.float16
    found = [p.tried(p.x, mask, layer) for mask in given]
    p.dtype = dtype
    if found[0] is None:  # not every operation is there on each device
        return None
    if found[-1] is None:
        return None, "a mask is refused: a fill such as -1e9 does not fit float16"
    for a, b in zip(found, wanted):
        if b.isfinite().all() and not (a - b).abs().max() < 0.05 * b.abs().max():
            return None, "its numbers are not those of double precision: is it meant?"
    return None


def slope(p: Probe, x: Tensor, weights: Tensor, mask=None) -> Tensor | None:
    """Return the gradient of the weighted outputs at x; zeros if none arrives."""
    with torch.enable_grad():
        output = p.tried(leaf := x.clone().requires_grad_(), mask)
        if output is None or not output.requires_grad:
            return None if output is None else torch.zeros_like(x)
        try:
            return torch.autograd.grad((output * weights).sum(), leaf)[0]
        except RuntimeError:  # such as a tensor that was changed in place
            return None


def gradients(p: Probe):
    """Test whether the gradient of the input is the slope of the outputs."""
    x, step, weights = p.text(1, LENGTH), 1e-6 * p.text(1, LENGTH), p.text(1, LENGTH)
    more, less, found = p.tried(x + step), p.tried(x - step), slope(p, x, weights)
    if p.exact > 1e-9 or any(y is None or y.isnan().any() for y in (found, more, less)):
        return None
    change = ((more - less) * weights).sum() / 2
    terms = found * step
    if (change - terms.sum()).abs() < 1e-4 * (change.abs() + terms.abs().sum()):
        return None
    return None, "its gradient is not the slope of its output (detach?): is it meant?"


def weights_in_use(p: Probe):
    """Test whether the output depends on each matrix."""
    layer = copied(p.layer)
    named = {n: w for n, w in layer.named_parameters() if w.dim() > 1}
    with torch.enable_grad():
        for w in named.values():
            w.requires_grad_(w.is_floating_point())
        output = p.tried(p.x, layer=layer)
        if output is None or not output.requires_grad:
            return None
        each, weights = [*named.values()], p.text(3, LENGTH)
        try:
            slopes = torch.autograd.grad(
                (output * weights).sum(), each, allow_unused=True
            )
        except RuntimeError:  # such as a tensor that was changed in place
            return None
    unused = [n for n, d in zip(named, slopes) if d is None or not d.any()]
    if not unused:
        return None
    return None, f"nothing depends on {', '.join(unused)}: is it meant?"


def dropout(p: Probe):
    """See what is dropped in training."""
    wanted = p.run(x := p.text(16, LENGTH))  # 16 texts: some are rarely dropped
    p.layer.train()
    first, second = p.tried(x), p.tried(x)
    p.layer.eval()
    if first is None or second is None:
        return None
    if torch.equal(first, second):
        other = "in training mode it gives other numbers: is it meant?"
        same = "in training mode: none"
        return None, same if p.same(first, wanted) else other
    layer = copied(p.layer).train()
    for module in layer.modules():
        for name, kept in vars(module).items():  # of nn.Dropout, or for F.dropout
            if isinstance(kept, float) and DROPPED.search(name):
                setattr(module, name, 0.0)
    plain, again = p.tried(x, layer=layer), p.tried(x, layer=layer)
    if p.same(plain, again) and not p.same(plain, wanted):
        return None, "without dropout, training gives other numbers: is it meant?"
    zero = (first == 0) & (wanted != 0)
    zero = zero & ~zero.all(dim=-1, keepdim=True)  # all weights of a query may go
    on_outputs = zero.double().mean() > 0.01
    where = "on the outputs" if on_outputs else "inside, such as on the weights"
    return None, f"in training mode: {where}"


def numbers(p: Probe):
    """Look for the way of computing that gives the layer's numbers."""
    if not p.output.isfinite().all():
        return None
    usual = {"": ONE, ", causal": CAUSAL}
    names = [name for name, seen in usual.items() if p.sees.equal(seen)]
    heads, sizes = p.num_heads, (p.embed_dim, p.num_heads)
    ways = [*zip(readings(p.layer, *sizes), readings(p.bare, *sizes))]
    bare = p.tried(p.x, layer=p.bare)
    for each, plain in ways:
        if p.same(reference(p.x, plain, heads, p.sees), bare, SINGLE):
            p.reading = plain
            if not p.same(reference(p.x, each, heads, p.sees), p.output, SINGLE):
                return None, "equal but for the biases: they are added elsewhere"
            long, all_keys = p.text(1, 70), torch.ones(70, 70, dtype=torch.bool)
            shown = all_keys.tril() if names == [", causal"] else all_keys
            found = p.tried(long, layer=p.bare) if names else None
            wanted = reference(long, plain, heads, shown)
            if found is not None and not p.same(wanted, found, SINGLE):
                text = "equal for 8 tokens, and not for 70. Is there a window?"
                return None, text
            pattern = names[0] if names else ", with its pattern"
            equal = f"{each.layout}, {heads} heads{pattern}: softmax(QKᵀ/√d)V"
            return each.ok, equal + each.but
    asked = with_other_heads(p, bare)
    likely = [plain for _, plain in ways if plain.likely]
    shown = [None, CAUSAL] if names else [None, CAUSAL, p.sees]
    for plain, mask, mistake in product(likely, shown, known_mistakes()):
        if p.same(mistake.gives(p.x, plain, heads, mask), bare, SINGLE):
            return named(p, mistake, asked or ON_PURPOSE.get(mistake.name))
    return None, asked or f"{NOT_COMPARED}: no known way of computing gives them"


def with_other_heads(p: Probe, bare: Tensor) -> str | None:
    """Return the question that another number of heads puts, if one is equal."""
    for heads in range(1, p.embed_dim + 1):
        if p.embed_dim % heads or heads == p.num_heads:
            continue
        for each in (x for x in readings(p.bare, p.embed_dim, heads) if x.likely):
            if p.same(reference(p.x[:1], each, heads, p.sees), bare[:1], SINGLE):
                return f"it is equal with {heads} head(s): is num_heads right?"
    return None


def numbers_with_a_mask(p: Probe):
    """Name the mistake of a layer that is right until it gets a mask."""
    if not p.reading or masks(p)[0] is not False:
        return None
    ways = [("True shows", shape) for shape in [*SHAPES][:3]]
    outputs = [p.tried(p.x, made(way, p.hide), p.bare) for way in ways]
    for mistake in (m for m in known_mistakes() if m.of_head):
        gives = mistake.gives(p.x, p.reading, p.num_heads, ~p.hide)
        if any(p.same(gives, output, SINGLE) for output in outputs):
            return named(p, mistake)
    return None


def named(p: Probe, mistake, asked: str | None = None):
    """Return that the layer is a known mistake: a question if it may be on purpose."""
    p.mistake = mistake.name
    said = f"{mistake.name}: {mistake.why}"
    return (None, f"{said} But {asked}") if asked else (False, said)


CHECKS = {
    "zeros": zeros,
    "shapes": shapes,
    "precision": precision,
    "repeats": repeats,
    "input": input_stays,
    "finite": finite,
    "axes": axes,
    "batch": batch,
    "who sees whom": who_sees_whom,
    "order": order,
    "equal tokens": equal_tokens,
    "same numbers": numbers,
    "mask": masks,
    "second mask": second_mask,
    "other inputs": other_inputs,
    "with a mask": numbers_with_a_mask,
    "mask per text": mask_per_text,
    "scores of 0": scores_of_zero,
    "empty rows": empty_rows,
    "large scores": large_scores,
    "half precision": half_precision,
    "gradients": gradients,
    "weights": weights_in_use,
    "dropout": dropout,
}


# --- on the command line ---


def of_file(path: Path, name: str):
    """Return what a Python file calls `name`; the file is run for that.

    Its imports find what its project has. A file in a folder with an __init__.py, or
    with relative imports, is a module of a package. A project may have its own `utils`:
    the course's is forgotten, and then found last.
    """
    folder, module = path.parent, path.stem
    dots = re.findall(r"^\s*from\s+(\.+)", path.read_text(encoding="utf-8"), re.M)
    depth = max(map(len, dots), default=0)
    while depth > 0 or (folder / "__init__.py").is_file():
        folder, module, depth = folder.parent, f"{folder.name}.{module}", depth - 1
    for ours in [x for x in sys.modules if x.split(".")[0] == "utils"]:
        del sys.modules[ours]
    course = Path(__file__).parents[1]
    others = [x for x in sys.path if Path(x).resolve() != course]
    sys.path[:] = map(str, [folder, path.parent, *others, *path.parents, course])
    alone = module == path.stem  # no part of a package
    space = runpy.run_path(str(path)) if alone else vars(import_module(module))
    if name not in space:
        raise AttributeError(f"{path} has no {name}.")
    return space[name]


def built(made, embed_dim: int, num_heads: int):
    """Return a layer, or what its class or function returns."""
    if isinstance(made, nn.Module):
        return made
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads}
    for args, options in (((embed_dim, num_heads), {}), ((), sizes), ((), {})):
        try:
            inspect.signature(made).bind(*args, **options)
        except TypeError:
            continue
        return made(*args, **options)
    ways = f"({embed_dim}, {num_heads}), nor with nothing"
    text = f"{made!r} is no layer, and cannot be called with {ways}"
    raise TypeError(f"{text}: name a function that can.")


def main(arguments: list[str] | None = None) -> int:
    """Examine the layer of a file, print the report, and return the exit status."""
    parser = argparse.ArgumentParser("python -m utils.examine")
    parser.add_argument("place", metavar="FILE.py:NAME")
    parser.add_argument("--embed-dim", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True)
    given = parser.parse_args(arguments)
    sizes = given.embed_dim, given.heads
    path, colon, name = given.place.rpartition(":")
    if not colon:
        parser.error(f"{given.place} is no FILE.py:NAME")
    try:
        made = of_file(Path(path).resolve(), name)
        report = examine(built(made, *sizes), *sizes)
    except (Exception, SystemExit) as error:  # the file may raise anything
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
