"""Is this attention right? `examine` asks any layer, from outside and from inside.

From outside: it changes tokens, texts and masks, and looks at what moves. From inside:
it takes the layer's matrices, and looks for the way of computing attention that gives
exactly the layer's numbers: the right one, or a mistake that the exercises know. What
right layers may do in several ways is a convention, and no fault.

    python -m utils.examine FILE.py:NAME --embed-dim 64 --heads 4

NAME is a layer, or a class or function that returns one: called with (embed_dim,
num_heads), or with nothing if it takes nothing. The exit status is 0 if no fault was
found, 1 if one was, and 2 if the layer could not be run.
"""

import argparse
import copy
import html
import importlib.util
import inspect
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from utils.exercises.known_layers import known_mistakes, readings, reference

LENGTH = 8  # tokens of the texts that are tried
SIGNS = {True: "ok", False: "WRONG", None: "note"}
KINDS = {  # of masks, made from hide (queries, keys), True = hide
    "True shows": lambda hide: ~hide,
    "True hides": lambda hide: hide,
    "0 hides and 1 shows": lambda hide: (~hide).double(),
    "-inf is added": lambda hide: hide.double().masked_fill(hide, -math.inf),
}
SHAPES = {
    "(length, length)": lambda hide: hide,
    "(batch, 1, length, length)": lambda hide: hide[None, None],
    "(batch, length, length)": lambda hide: hide[None],
    "(batch, 1, 1, length)": lambda hide: hide[None, None, -1:],
    "(batch, length)": lambda hide: hide[None, -1],
}


class NoTensor(TypeError):
    """What the layer gave is no tensor."""


class Finding(NamedTuple):
    """What a test found. ok: True, False (a fault), or None (a convention to know)."""

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
        if self.right:
            compared = any(x.check == "same numbers" and x.ok for x in self.findings)
            more = "" if compared else " The numbers could not be compared."
            return f"No fault was found.{more}"
        wrong = ", ".join(each.check for each in self.findings if each.ok is False)
        known = f" It is a known mistake: {self.mistake}." if self.mistake else ""
        return f"This layer is wrong: {wrong}.{known}"

    def __str__(self) -> str:
        rows = [
            f"{SIGNS[ok]:5s}  {check:13s}  {text}" for check, ok, text in self.findings
        ]
        return "\n".join([*rows, self.verdict])

    def _repr_html_(self) -> str:
        rows = [(SIGNS[ok], check, text) for check, ok, text in self.findings]
        cell = "<td style='text-align:left'>{}</td>"
        cells = ["".join(cell.format(html.escape(x)) for x in row) for row in rows]
        table = "".join(f"<tr>{row}</tr>" for row in cells)
        picture = "" if self.sees is None else _picture(self.sees)
        return f"<table>{table}</table>{picture}<p>{html.escape(self.verdict)}</p>"


def _picture(sees: Tensor) -> str:
    """Return "who sees whom" in HTML: a row for each query, blue for what it sees."""
    box = "<td style='width:14px;height:14px;border:1px solid #888;background:{}'></td>"
    rows = [[box.format("#2b6cb0" if x else "#eeeeee") for x in row] for row in sees]
    table = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    words = "Row: query. Column: key. Blue: the query's output depends on this token."
    return f"<table>{table}</table><small>{words}</small>"


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
        call=lambda layer, x, mask: layer(x, mask=mask, cache={})[0]

    A copy is examined, in double precision and eval mode: the layer, its mode and the
    random numbers stay as they were.

    TypeError: the layer is no module, or gives no tensor. ValueError: embed_dim is no
    multiple of num_heads. RuntimeError: the layer raised an error.

    >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> examine(layer, embed_dim=8, num_heads=2).verdict
    'No fault was found.'
    """
    if not isinstance(layer, nn.Module):
        kind = getattr(layer, "__name__", type(layer).__name__)
        raise TypeError(f"layer is {kind}; give an nn.Module, such as Layer(64, 4).")
    if embed_dim % num_heads:
        raise ValueError(f"{num_heads=} must divide {embed_dim=}.")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # what the layer warns of is not asked here
        torch.manual_seed(0)
        return Examination(layer, embed_dim, num_heads, call).report()


def call_by_name(layer: nn.Module, x: Tensor, mask: Tensor | None):
    """Return layer(x), or layer(x, x, x), and with a mask by the mask's name."""
    known = inspect.signature(layer.forward).parameters
    needed = [n for n, p in known.items() if p.default is p.empty and p.kind < 2]
    inputs = [x] * max(1, min(3, sum("mask" not in name for name in needed)))
    if mask is None:
        return layer(*inputs)
    names = [name for name in ("mask", "attn_mask") if name in known]
    names += [name for name in known if "mask" in name]
    return layer(*inputs, **{names[0]: mask}) if names else layer(*inputs, mask)


class Examination:
    """A copy of a layer, and the tests, each of which adds to the findings."""

    def __init__(self, layer, embed_dim: int, num_heads: int, call: Callable | None):
        self.layer = _copied(layer).double().eval().requires_grad_(False)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.call, self.own_call = call or call_by_name, call is not None
        self.findings, self.mistake, self.sees = [], None, None
        # the axes of the layer: (length, batch, embed_dim)?
        self.length_first = getattr(layer, "batch_first", True) is False

    def report(self) -> Report:
        """Run all tests."""
        self.x = self.text(3, LENGTH)
        try:
            self.output = self.run(self.x)
        except NoTensor:
            raise
        except Exception as error:
            said = f"the layer could not be run: {type(error).__name__}: {error}"
            raise RuntimeError(f"{said} (does it need a `call` of its own?)") from error
        self.exact = self.precision()
        self.wake()
        if self.shapes():
            self.repeats()
            self.batch()
            self.who_sees_whom()
            self.order()
            self.equal_tokens()
            self.masks()
            self.large_scores()
            self.dropout()
            self.numbers()
        return Report(self.findings, self.mistake, self.sees)

    # --- the layer as a function ---

    def run(self, x: Tensor, mask: Tensor | None = None, layer=None) -> Tensor:
        """Return the output (batch, length, embed_dim) for such an x."""
        layer = self.layer if layer is None else layer
        output = self.call(layer, self.axes(x).clone(), mask)
        if isinstance(output, tuple | list):  # weights may stand beside it
            found = [y for y in output if isinstance(y, Tensor)]
            fits = [y for y in found if y.shape == self.axes(x).shape]
            output = (fits or found or [None])[0]
        if not isinstance(output, Tensor):
            kind = type(output).__name__
            raise NoTensor(f"the layer gave a {kind}; give a call that returns x.")
        return self.axes(output.double())

    def axes(self, x: Tensor) -> Tensor:
        """Return x with the axes of the layer, or an output with ours."""
        return x.transpose(0, 1) if self.length_first else x

    def tried(self, x: Tensor, mask: Tensor | None = None, layer=None) -> Tensor | None:
        """Return the output, or None if the layer refuses this input."""
        try:
            return self.run(x, mask, layer)
        except Exception:
            return None

    def text(self, *size: int) -> Tensor:
        """Return random tokens (*size, embed_dim)."""
        return torch.randn(*size, self.embed_dim, dtype=torch.float64)

    def say(self, check: str, ok: bool | None, text: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(check, ok, text))

    def precision(self) -> float:
        """Return how exactly the layer computes, relative to its largest output.

        Of a smooth function the second difference of tiny steps is nothing. A layer
        that computes a part in single precision jumps.
        """
        more, less = (self.tried(self.x * (1 + step)) for step in (1e-8, -1e-8))
        if more is None or less is None:
            return 1e-9
        return 1e-5 if (more + less - 2 * self.output).abs().max() > 1e-11 else 1e-9

    def moved(self, a: Tensor, b: Tensor) -> Tensor:
        """Return at which tokens outputs differ, (batch, length)."""
        size = max(1.0, float(b.nan_to_num(0, 0, 0).abs().max()))
        far = ~torch.isclose(a, b, rtol=0, atol=self.exact * size, equal_nan=True)
        return far.any(dim=-1)

    def same(self, a: Tensor | None, b: Tensor | None) -> bool:
        """Whether two outputs are equal, as exactly as the layer computes."""
        if a is None or b is None or a.shape != b.shape:
            return False
        return not self.moved(a, b).any()

    def wake(self) -> None:
        """Draw what is zero, such as a fresh output matrix, if it hides everything."""
        zeros = [x for x in self.layer.parameters() if x.dim() > 1 and not x.any()]
        sees = self.visible() if zeros else None
        if sees is not None and not (sees & ~torch.eye(LENGTH).bool()).any():
            for x in zeros:
                x.normal_(std=0.2)
            self.output = self.run(self.x)
            text = "matrices of zeros let nothing through: random ones are tried"
            self.say("zeros", None, text)

    # --- tokens and texts ---

    def shapes(self) -> bool:
        """Whether outputs have the shape of inputs, for three lengths."""
        outputs = {n: self.tried(self.text(2, n)) for n in (1, 5, LENGTH)}
        shapes = {n: tuple(y.shape) for n, y in outputs.items() if y is not None}
        for n, shape in shapes.items():
            if shape != (2, n, self.embed_dim):
                text = f"(2, {n}, {self.embed_dim}) goes in, and {shape} comes out"
                self.say("shapes", False, text)
                return False
        refused = sorted(outputs.keys() - shapes)
        text = "each text keeps its length and its width"
        if refused:
            text = f"texts of {refused[0]} token(s) are refused"
        self.say("shapes", None if refused else True, text)
        return True

    def repeats(self) -> None:
        """Test whether the same input gives the same finite output, and stays."""
        ok = self.same(self.run(self.x), self.output)
        text = "the same input gives the same output"
        self.say(
            "repeats", ok, text if ok else "two calls differ in eval mode: dropout?"
        )
        x = self.axes(self.x).clone()
        self.call(self.layer, x, None)
        ok = torch.equal(x, self.axes(self.x))
        text = "the input stays as it was" if ok else "the layer changes its input"
        self.say("input", ok, text)
        if not (ok := bool(self.output.isfinite().all())):
            self.say("finite", ok, "NaN or infinite numbers come out")

    def batch(self) -> None:
        """Test whether the texts of a batch leave each other alone."""
        changed = self.x.clone()
        changed[1, 2] = self.text()
        moved = self.moved(self.run(changed), self.output)  # (batch, length)
        across = moved[[0, 2]].any() and not moved[1, [0, 1, 3, 4]].any()
        if across and moved[[0, 2], 2].any():  # it is the other axis that is mixed
            self.length_first = not self.length_first
            self.output = self.run(self.x)
            moved = self.moved(self.run(changed), self.output)
        if self.length_first:
            self.say("axes", None, "it takes (length, batch, embed_dim)")
        alone = self.tried(self.x[1:2])  # the first may get what it gets alone
        ok = not moved[[0, 2]].any() and (
            alone is None or self.same(alone, self.output[1:2])
        )
        text = "each text gives what it gives alone" if ok else "texts of a batch mix"
        self.say("batch", bool(ok), text)

    def visible(self, mask: Tensor | None = None) -> Tensor | None:
        """Return which outputs move if a token is changed, (queries, keys), or None.

        Small inputs are tried, too, because a saturated softmax gives no weight to
        most tokens.
        """
        found = []
        for size in (1.0, 0.05):
            x = size * self.changed_once(self.text(1, LENGTH))
            output = self.tried(x, of_batch(mask, len(x)))
            if output is None or output.shape != x.shape:
                return None
            found.append(self.moved(output[1:], output[:1].expand_as(output[1:])).mT)
        return found[0] | found[1]

    def changed_once(self, x: Tensor) -> Tensor:
        """Return x (1, length, embed_dim), and x with each token changed in turn."""
        x = x.repeat(LENGTH + 1, 1, 1)
        for k in range(LENGTH):
            x[k + 1, k] = self.text()
        return x

    def who_sees_whom(self) -> None:
        """Test which tokens an output depends on, without a mask."""
        self.sees = self.visible()
        ok, text = pattern(self.sees)
        self.say("who sees whom", ok, text)
        if ok:
            self.scores_of_zero(self.sees)

    def scores_of_zero(self, sees: Tensor, mask: Tensor | None = None) -> None:
        """Test whether a token is hidden, too, if its score is exactly 0."""
        x = self.changed_once(torch.zeros(1, LENGTH, self.embed_dim).double())
        bare = _without_biases(self.layer)
        output = self.tried(x, of_batch(mask, len(x)), layer=bare)
        if output is not None and output.isfinite().all():
            at_zero = self.moved(output[1:], output[:1].expand_as(output[1:])).mT
            if (at_zero & ~sees).any():
                text = "tokens whose scores are exactly 0 are seen, though hidden"
                self.say("scores of 0", False, text)

    def order(self) -> None:
        """Test whether shuffled tokens give shuffled outputs."""
        self.shuffles = None
        if self.sees.all():
            order = torch.randperm(LENGTH)
            self.shuffles = self.same(self.run(self.x[:, order]), self.output[:, order])
            text = "shuffled tokens give shuffled outputs"
            if not self.shuffles:
                text = "the order counts: positions inside, or tokens are mixed up"
            self.say("order", self.shuffles or None, text)

    def equal_tokens(self) -> None:
        """Test whether equal tokens give what one of them gives.

        They do if the weights of each query sum to 1, and nothing else is mixed.
        """
        outputs = self.of_equal(token := self.text(1, 1), self.layer)
        if len(outputs) > 2:
            bare = self.of_equal(token, _without_positions(self.layer))
            self.say("equal tokens", *self.on_equal(outputs, bare))

    def on_equal(self, outputs: list[Tensor], bare: list[Tensor]):
        """Return (ok, text) of the outputs of equal tokens, bare: without positions."""
        if all(self.same(y, outputs[0].expand_as(y)) for y in outputs):
            return True, "they give what one gives: the weights sum to 1"
        if all(self.same(y, bare[0].expand_as(y)) for y in bare):
            return None, "they differ by the positions that are added to them"
        ends = torch.stack([y[0, -1] for y in outputs])  # of 1, 2, 4, … tokens
        steps = ends.diff(dim=0).abs().amax(dim=-1)
        last, largest = steps[-1], steps.max()
        usual = pattern(self.sees)[0] and self.shuffles is not False
        if usual and self.exact < last < largest / 2:  # it falls like 1 / length
            return None, "some weight goes to no token: a sink, or an extra key"
        if self.differs_by_a_constant():
            return None, "they differ by something that is added, such as positions"
        if last == largest:
            return False, "their output grows: the weights do not sum to 1"
        return False, "they do not give what one gives: heads or tokens are mixed up"

    def differs_by_a_constant(self) -> bool:
        """Whether equal tokens of great size give what one gives, but for a rest.

        What is added to tokens or values has its own size. A wrong weight grows with
        the tokens. In a layer with a residual connection nothing can be said.
        """
        token = 1e6 * self.text(1, 1)
        outputs = self.of_equal(token, self.layer)
        if len(outputs) < 3:
            return False
        one = outputs[0]
        far = torch.stack([(y - one).abs().max() for y in outputs]).max()
        residual = (one - token).abs().max() < 1e-3 * token.abs().max()
        return bool(far < 1e-3 * one.abs().max() and not residual)

    def of_equal(self, token: Tensor, layer: nn.Module) -> list[Tensor]:
        """Return the outputs for 1, 2, 4, … 256 equal tokens, as far as they go."""
        outputs = []
        for n in range(9):
            output = self.tried(token.repeat(1, 2**n, 1), layer=layer)
            if output is None:
                break
            outputs.append(output)
        return outputs

    # --- masks, sizes, training ---

    def masks(self) -> None:
        """Try masks of each kind and shape that hide token 2, and see what they do."""
        names = inspect.signature(self.layer.forward).parameters
        if not self.own_call and len(names) < 2:
            return
        hide = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
        hide[:, 2] = True
        did = {}  # {(kind, shape): what such a mask does}
        for kind, values in KINDS.items():
            for shape, axes in SHAPES.items():
                seen = self.visible(mask := values(axes(hide)))
                if seen is not None:
                    did[kind, shape] = self.effect(seen, hide, mask)
        named = not self.own_call and any("mask" in name for name in names)
        self.say("mask", *on_masks(did, named))
        for (kind, shape), effect in did.items():
            if effect == "hides exactly":
                values, axes = KINDS[kind], SHAPES[shape]
                self.scores_of_zero(self.visible(mask := values(axes(hide))), mask)
                return self.empty_rows(values(axes(hide | True)))

    def effect(self, seen: Tensor, hide: Tensor, mask: Tensor) -> str:
        """Return what a mask that should hide a token does, by who then sees whom."""
        others = ~torch.eye(LENGTH, dtype=torch.bool)
        before, now = self.sees & others, seen & others
        if torch.equal(now, before):
            output = self.tried(self.x, of_batch(mask, len(self.x)))
            changed = not self.same(output, self.output)
            return "leaves a trace" if changed else "changes nothing"
        rows = ~hide.mT  # of the other queries: some layers set hidden rows to 0
        wanted = before & ~hide, others & ~hide  # the mask may replace the pattern
        exact = any(torch.equal(now, each) for each in wanted)
        elsewhere = any(torch.equal(now & rows, each & rows) for each in wanted)
        if exact or (elsewhere and not now[hide.mT].any()):
            return "hides exactly"
        for effect, hidden in {
            "hides the query, not the key": hide.mT,
            "hides all other tokens": ~hide,
        }.items():
            if torch.equal(now, before & ~hidden):
                return effect
        return "hides something else"

    def empty_rows(self, mask: Tensor) -> None:
        """See what a query gives that may attend to nothing."""
        mask = of_batch(mask, len(self.x))
        output, other = self.tried(self.x, mask), self.tried(self.x.flip(1), mask)
        if output is None or other is None:
            return
        text = "tokens that it may not see"
        if output.isnan().any():
            text = "NaN"
        elif self.same(output, output[:1, :1].expand_as(output)):
            text = "zeros, or the bias of the output"
        elif self.same(output, other):
            text = "the mean of all tokens, also of hidden ones"
        self.say("empty rows", None, f"a query that may see nothing gives {text}")

    def large_scores(self) -> None:
        """Test whether large scores give numbers."""
        if (output := self.tried(self.x * 1e4)) is not None:
            ok = bool(output.isfinite().all())
            text = (
                "they give numbers"
                if ok
                else "they give NaN or infinity, as if exp overflows"
            )
            self.say("large scores", ok, text)

    def dropout(self) -> None:
        """See what is dropped in training."""
        self.layer.train()
        outputs = self.tried(self.x), self.tried(self.x)
        self.layer.eval()
        if None not in (first := outputs[0], outputs[1]) and not torch.equal(*outputs):
            zeros = (first == 0).double().mean() > 0.01
            where = "on the outputs" if zeros else "inside, such as on the weights"
            self.say("dropout", None, f"in training mode: {where}")

    # --- the numbers ---

    def numbers(self) -> None:
        """Look for the way of computing that gives the layer's numbers."""
        check, x = "same numbers", self.x
        found = list(readings(self.layer, self.embed_dim, self.num_heads))
        causal = torch.ones_like(self.sees).tril()
        masks = {"": None, ", causal": causal, ", with its pattern": self.sees}
        if self.sees.all() or torch.equal(self.sees, causal):
            del (
                masks[", with its pattern"],
                masks["" if self.sees[0, -1] == 0 else ", causal"],
            )
        for each in found:
            for name, mask in masks.items():
                right = reference(x, each, self.num_heads, mask)
                if self.same(right, self.output):
                    self.say(check, *each.verdict(self.num_heads, name))
                    return self.numbers_with_a_mask(each)
        bare = _without_biases(self.layer)
        output = self.tried(x, layer=bare)
        for each in readings(bare, self.embed_dim, self.num_heads):
            for mask in masks.values():
                if self.same(reference(x, each, self.num_heads, mask), output):
                    text = "equal but for the biases: they are added in another place"
                    return self.say(check, None, text)
                for mistake in known_mistakes() if each.likely else ():
                    got = mistake.gives(x, each, self.num_heads, mask)
                    if self.same(got, output):
                        return self.name(check, mistake)
        self.say(check, None, "not compared: no known way of computing gives them")

    def numbers_with_a_mask(self, each) -> None:
        """Name the mistake of a layer that is right until it gets a mask."""
        if not any(
            found.check == "mask" and found.ok is False for found in self.findings
        ):
            return
        hide = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        hide[3:, 2] = True
        bare, plain = _without_biases(self.layer), each.without_biases()
        for axes in [*SHAPES.values()][:3]:  # each query has its own row
            output = self.tried(self.x, of_batch(axes(~hide), len(self.x)), bare)
            right = [reference(self.x, plain, self.num_heads, m) for m in (~hide, hide)]
            if output is None or any(self.same(y, output) for y in right):
                continue
            for mistake in (m for m in known_mistakes() if m.of_head):
                got = mistake.gives(self.x, each, self.num_heads, ~hide)
                if self.same(got, output):
                    return self.name("with a mask", mistake)

    def name(self, check: str, mistake) -> None:
        """Say which known mistake the layer is."""
        self.mistake = mistake.name
        text = f"{mistake.name}: {mistake.why}"
        if mistake.name in ("no scale", "divided by head_dim"):
            text += " (T5 has no scale on purpose, and μP divides by head_dim.)"
        self.say(check, False, text)


def of_batch(mask: Tensor | None, batch: int) -> Tensor | None:
    """Return a mask whose first axis is 1 repeated for each text."""
    if mask is None or mask.shape[0] != 1:
        return mask
    return mask.expand(batch, *mask.shape[1:]).contiguous()


def pattern(sees: Tensor) -> tuple[bool | None, str]:
    """Return whether right layers have this pattern (None: some), and its name.

    A token's own output depends on it by its query already. So only a query that may
    attend to itself alone shows whether a token attends to itself.
    """
    size = len(sees)
    one, others = torch.ones_like(sees), ~torch.eye(size, dtype=torch.bool)
    patterns = {
        "every token sees every token": (True, one),
        "causal: each token sees itself and earlier ones": (True, one.tril()),
        "no token sees another": (False, ~one),
        "each token sees later ones, and no earlier one": (False, one.triu()),
        "each token sees the next one": (False, one.tril(1)),
        "each token sees the next two": (False, one.tril(2)),
    }
    for n in range(1, size - 1):
        patterns[f"a window of {n + 1} tokens"] = True, one.tril() & one.triu(-n)
        patterns[f"{n} tokens on each side"] = True, one.tril(n) & one.triu(-n)
    for text, (ok, known) in patterns.items():
        if torch.equal(sees & others, known & others):
            if not known[0, 1:].any() and ok and not sees[0, 0]:
                return False, f"{text}, but no token sees itself"
            return ok, text
    return None, "a pattern of its own: is it meant?"


def on_masks(did: dict, named: bool) -> tuple[bool | None, str]:
    """Return (ok, text) of what masks did; named: the layer calls its mask a mask."""
    effects = {}
    for (kind, shape), effect in did.items():
        effects.setdefault(effect, {}).setdefault(kind, []).append(shape)
    if exact := effects.pop("hides exactly", None):
        kinds = [
            f"{kind}, in shape {' or '.join(shapes)}" for kind, shapes in exact.items()
        ]
        trace = [kind for kind in effects.get("leaves a trace", {}) if "True" in kind]
        if trace:
            kinds.append("but True and False are added as 1 and 0, and hide nothing")
        return True, f"hides exactly: {'; '.join(kinds)}"
    if not did:
        return None, "no mask that was tried is taken"
    if set(effects) == {"changes nothing"}:
        return False if named else None, "what is given as a mask changes nothing"
    effects.pop("changes nothing", None)
    (effect, kinds), *_ = effects.items()
    return False, f"no mask hides a token exactly; if {[*kinds][0]}, it {effect}"


def _copied(layer: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(layer)
    except Exception as error:
        raise TypeError(f"the layer cannot be copied: {error}") from error


def _without(layer: nn.Module, goes: Callable) -> nn.Module:
    """Return a copy in which what goes(name, tensor) chooses is 0."""
    layer = copy.deepcopy(layer)
    for name, x in [*layer.named_parameters(), *layer.named_buffers()]:
        if goes(name.rsplit(".", 1)[-1], name, x):
            x.data.zero_()
    return layer


def _without_biases(layer: nn.Module) -> nn.Module:
    return _without(layer, lambda last, name, x: x.dim() == 1 and "bias" in last)


def _without_positions(layer: nn.Module) -> nn.Module:
    """Without what has a row for each position."""

    tables = [n for n, m in layer.named_modules() if isinstance(m, nn.Embedding)]

    def is_position(last, name, x):
        named = "pos" in name or last == "pe" or name.rpartition(".")[0] in tables
        return named and x.dim() > 1 and x.is_floating_point()

    return _without(layer, is_position)


# --- on the command line ---


def load(path: Path, name: str):
    """Return what a Python file calls `name`; the file is run for that."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # its neighbours, as if it were run
    sys.modules[path.stem] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise AttributeError(f"{path} has no {name}.")
    return getattr(module, name)


def built(made, embed_dim: int, num_heads: int):
    """Return a layer, or what its class or function returns."""
    if isinstance(made, nn.Module):
        return made
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads}
    for args, options in (((embed_dim, num_heads), {}), ((), sizes)):
        try:
            inspect.signature(made).bind(*args, **options)
        except TypeError:
            continue
        return made(*args, **options)
    return made()


def main(arguments: list[str] | None = None) -> int:
    """Examine the layer of a file, print the report, and return the exit status."""
    parser = argparse.ArgumentParser("python -m utils.examine")
    parser.add_argument("place", metavar="FILE.py:NAME")
    parser.add_argument("--embed-dim", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True)
    given = parser.parse_args(arguments)
    path, colon, name = given.place.rpartition(":")
    if not colon:
        parser.error(f"{given.place} is no FILE.py:NAME")
    try:
        layer = built(load(Path(path), name), given.embed_dim, given.heads)
        report = examine(layer, given.embed_dim, given.heads)
    except (Exception, SystemExit) as error:  # the file may raise anything
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.right else 1


if __name__ == "__main__":
    sys.exit(main())
