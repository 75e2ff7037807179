"""A copy of a layer that can be asked: who sees whom, and what does a mask do?"""

import copy
import inspect
import math
from collections.abc import Callable
from functools import cached_property
from itertools import product

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LENGTH = 8  # tokens of the texts that are tried
SINGLE = 1e-6  # how exactly numbers agree: a scale may be in single precision
ONE = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
CAUSAL, OTHERS = ONE.tril(), ONE ^ ONE.tril().triu()
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
EXACTLY, NOTHING, NOT_COMPARED = "hides exactly", "changes nothing", "not compared"
TRACE, ALWAYS = "leaves a trace", "changes the output even where it hides nothing"
LATER, INSTEAD = "hides later tokens only", "comes in place of the layer's own mask"
ALL, TEXTS = [*range(LENGTH)], 4
HIDE = (torch.arange(LENGTH) == 2).expand(LENGTH, LENGTH)  # token 2, from every query


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


def call_by_name(
    layer: nn.Module, x: Tensor, mask: Tensor | None, which: int = 0, other: tuple = ()
):
    """Return layer(x), or layer(x, x, x), and with a mask by the name of one mask.

    other: (name, tensor) of an input that gets another tensor than x.
    """
    needed, masks, always = parameters(layer)
    inputs = [other[1] if name in other[:1] else x for name in needed[:3]] or [x]
    if mask is None and not always:
        return layer(*inputs)
    return layer(*inputs, **{masks[which]: mask}) if masks else layer(*inputs, mask)


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


def misread(single: Tensor | None, double: Tensor | None, given: tuple) -> bool:
    """Whether a layer gives other numbers for (x, mask) in double precision."""
    if double is None or single is None or double.shape != single.shape:
        return False
    if given[1] is None:
        return bool((double - single).abs().max() > 0.01 * single.abs().max())
    return bool((double.isnan() & single.isfinite()).any())


class Probe:
    """A copy of a layer, as a function of tokens, and what was seen of it.

    given: the layer itself. output: what the copy gives for x (3, length, embed_dim).
    exact: how exactly it computes, relative to its largest output: of a smooth function
    the second difference of tiny steps is nothing, and where a part is in single
    precision it jumps.
    """

    def __init__(self, layer, embed_dim: int, num_heads: int, call: Callable | None):
        self.given, self.embed_dim, self.num_heads = layer, embed_dim, num_heads
        self.call, self.own_call = call or call_by_name, call is not None
        self.length_first = getattr(layer, "batch_first", True) is False
        self.mistake, self.reading = None, None
        self.edits_x = self.edits_mask = False  # whether some run did so
        self.drawn = []  # names of weights that were 0 or tiny
        self.x = self.text(3, LENGTH)
        self.choose_precision()
        try:
            self.output = self.run(self.x)
        except Exception as error:
            said = f"the layer could not be run: {type(error).__name__}: {error}"
            if not self.own_call and (names := parameters(layer)[0]):
                shape, names = tuple(self.x.shape), ", ".join(names[:3])
                said += f" (x {shape} was given as {names})"
            how = f"examine(layer, {embed_dim}, {num_heads}, call=...)"
            hint = f"If layer(x) is not the way to call it, say how: {how}."
            raise RuntimeError(f"{said}\n{hint}") from error
        single = self.dtype == torch.float32 or self.jumps()
        self.exact = 1e-5 if single else 1e-9

    def choose_precision(self):
        """Run in single precision if double is refused, or gives other numbers.

        A part or a mask that is added may be in single. From 8 or 16 keys on, PyTorch's
        kernel for the CPU reads a mask in single, if queries are in double, as if it
        were in double, too, without an error. And `mask * finfo.min` is in single:
        there, the lowest number of double is -inf.
        """
        given = [(self.x, None), (self.x.flatten(0, 1)[None], None)]  # 8, 24 tokens
        given += [(self.x, made(way, HIDE)) for way in product(KINDS, SHAPES)]
        is_added = [mask is not None and mask.isinf().any() for _, mask in given]
        found, adds = [], []  # in single, and then in double
        for dtype in (torch.float32, torch.float64):
            layer, self.dtype = copied(self.given), dtype  # .to() cuts complex buffers
            self.layer = layer.float() if dtype == torch.float32 else layer.double()
            outputs = [self.tried(*each) for each in given]
            found.append(outputs)
            added = [y for y, each in zip(outputs, is_added) if each]
            adds.append(any(y is not None for y in added))
        self.misreads = any(misread(*each) for each in zip(*found, given))
        runs = found[1][0] is not None and not self.misreads
        if not runs or adds == [True, False]:
            self.layer, self.dtype = copied(self.given).float(), torch.float32

    def jumps(self) -> bool:
        """Whether steps of the input show that a part is in single precision.

        Second differences of a smooth function are 100 times smaller for steps that are
        10 times smaller. Where weights are small, only larger steps show jumps.
        """
        step, bends = self.text(3, LENGTH), []
        for size in (1e-8, 1e-6, 1e-5):
            more, less = (self.tried(self.x + c * step) for c in (size, -size))
            if more is None or less is None:
                return False
            bends.append((more + less - 2 * self.output).abs().max())
        tiny, small, large = torch.stack(bends) / self.output.abs().max()
        return bool(tiny > 1e-11 or (small > 1e-10 and large < 5 * small))

    def run(self, x: Tensor, mask: Tensor | None = None, layer=None) -> Tensor:
        """Return the output (batch, length, embed_dim) for such an x."""
        if mask is not None and len(mask) == 1:  # once for each text
            mask = mask.expand(len(x), *mask.shape[1:]).contiguous()
        if mask is not None and mask.is_floating_point():
            mask = mask.to(self.dtype)
        x = self.axes(x).to(self.dtype)
        tokens, hide = x.clone(), None if mask is None else mask.clone()
        given = self.call(self.layer if layer is None else layer, tokens, hide)
        self.edits_x |= not tokens.equal(x)
        self.edits_mask |= mask is not None and not hide.equal(mask)
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

    def text(self, *size: int) -> Tensor:
        """Return random tokens (*size, embed_dim)."""
        return torch.randn(*size, self.embed_dim, dtype=torch.float64)

    def moved(self, a: Tensor, b: Tensor, exact: float = 0.0) -> Tensor:
        """Return at which tokens outputs differ, (batch, length)."""
        size = max(float(y.nan_to_num(0, 0, 0).abs().max()) for y in (a, b))
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
        Where norms undo this, each of several texts shows some of it.
        """
        seen = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
        for _ in range(TEXTS):
            moved = self.moves(0.2 * self.text(1, LENGTH), mask, ALL)
            if moved is None:
                return None
            seen |= moved
            if seen.all():
                break
        return seen

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
        return {way: text for way, text in did.items() if text}

    @cached_property
    def hides(self) -> tuple[str, str] | None:
        """The first kind and shape of a mask that hides exactly."""
        exact = (way for way, did in self.masked.items() if did == EXACTLY)
        return next(exact, None)

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
    if (did := next(found, "hides something else")) != EXACTLY:
        return did
    shown = p.tried(p.x, made(way, OTHERS & ~p.sees))  # as without a mask
    every = p.tried(p.x, made(way, ~ONE))  # what is hidden may be unseen
    if any(p.same(output, p.output, SINGLE) for output in (shown, every)):
        return EXACTLY
    return None if shown is None else ALWAYS


def meant(seen: str, who: str, fault: str) -> tuple[None, str]:
    """Return a question, because a right layer and a fault look alike."""
    return None, f"{seen}: {who} does so on purpose, {fault} by mistake. Is it meant?"
