"""Checks from outside: tokens are changed, and what moves is looked at.

Each check returns (ok, text), or None if there is nothing to say.
"""

import re
from functools import partial

import torch
from torch import Tensor

from .probe import (
    ALL,
    CAUSAL,
    LENGTH,
    ONE,
    OTHERS,
    TEXTS,
    Probe,
    call_by_name,
    copied,
    made,
    parameters,
)

PATTERNS = {  # of who sees whom: whether right layers have it, and (queries, keys)
    "not causal: every token sees every token": (True, ONE),
    "causal: each token sees itself and earlier ones": (True, CAUSAL),
    "no token sees another": (False, ~ONE),
    "each token sees later ones only: is the mask inverted?": (False, ONE.triu()),
    "each token sees the next one": (False, ONE.tril(1)),
}
WIDTHS = range(1, LENGTH - 1)
PATTERNS |= {f"a window of {n + 1} tokens": (True, CAUSAL.triu(-n)) for n in WIDTHS}
PATTERNS |= {f"{n} tokens on each side": (True, ONE.tril(n).triu(-n)) for n in WIDTHS}
DROPPED = re.compile(r"^p$|drop(out)?(_p|_prob|_rate)?$")  # names of probabilities


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
    for _ in range(8):  # what is drawn may hide everything by chance
        for w in tiny.values():
            w.normal_(std=0.2)
            if w.dim() < 2:  # it may stand under a root
                w.abs_()
        if (p.visible() & OTHERS).any():
            break
    p.output, p.drawn = p.run(p.x), [*tiny]
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
    p.run(p.text(3, LENGTH))  # what is kept of it must not come back
    if p.same(p.run(p.x), p.output):
        return True, "the same input gives the same output"
    return False, "calls differ in eval mode (dropout? a cache?); other tests wait"


def input_stays(p: Probe):
    if p.edits_x:
        return False, "the layer changes its input"
    text = "the input stays as it was"
    if changed := edited(p):
        return None, f"{text}; but the layer changes {changed}: is it meant?"
    return True, text


def edited(p: Probe) -> str:
    """Return which of its own weights the copy has changed by running, or ""."""
    own = {n: w.to(p.dtype) for n, w in p.given.named_parameters()}
    new = {n: w for n, w in p.layer.named_parameters() if n not in p.drawn}
    return ", ".join(n for n, w in new.items() if n in own and not w.equal(own[n]))


def precision(p: Probe):
    if p.dtype == torch.float64:
        return None
    why = "it runs in single precision only"
    if p.misreads:  # because of a mask in single, perhaps
        why = "it gives other numbers in double precision, so it was run in single"
    return None, f"{why}: what is below 1e-5 is not seen"


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
    same = alone is None or p.same(alone, p.output[1:2])
    if same and not moved_by_one(p)[[0, 2]].any():
        return True, "each text gives what it gives alone"
    return False, "a text gives something else in a batch than alone; other tests wait"


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
    if not (p.sees & OTHERS).any() and (p.own_call or stored_tokens(p)):
        return None, "no token sees another: is it meant?"
    ok, text = pattern(p.sees)
    if ok and not (own := see_themselves(p)).all():
        which = ", ".join(map(str, (~own).nonzero().flatten().tolist()))
        return None, f"{text}; but {which} do not see themselves: is it meant?"
    if ok and not (p.sees & ~CAUSAL).any() and not cut_alike(p):
        return None, f"{text}; but what comes later changes outputs: is it meant?"
    return ok, text


def cut_alike(p: Probe) -> bool:
    """Whether a text of 70 tokens begins with the outputs of its first half."""
    long = p.text(1, 70)
    whole, half = p.tried(long), p.tried(long[:, :35])
    return whole is None or half is None or p.same(whole[:, :35], half)


def see_themselves(p: Probe) -> Tensor:
    """Return which tokens see themselves, (length,); all, if it cannot be told.

    A token's own output depends on it by its query, too. But among equal tokens, one
    that does not see itself gets their value, whatever its query is.
    """
    own = torch.zeros(LENGTH, dtype=torch.bool)
    for _ in range(TEXTS):
        x = 0.2 * p.text(1, 1).expand(1, LENGTH, p.embed_dim)
        output = p.run(x)
        if not p.same(output, output[:, :1].expand_as(output)):  # such as positions
            return torch.ones_like(own)
        own |= p.moves(x, None, ALL).diagonal()
    return own


def stored_tokens(p: Probe) -> bool:
    """Whether a layer holds a table (tokens, embed_dim): it may attend to these alone.

    A matrix has embed_dim, or a multiple of it, in both places, or it is a `weight`.
    """
    named = p.layer.named_parameters()
    sizes = [x.squeeze().shape for name, x in named if not name.endswith("weight")]
    return any(len(n) == 2 and n[1] == p.embed_dim and n[0] % n[1] for n in sizes)


def order(p: Probe):
    if p.shuffles:
        return True, "shuffled tokens give shuffled outputs"
    text = "the order counts: positions or a mask inside, or tokens are mixed up"
    return None if p.shuffles is None else (None, text)


def other_inputs(p: Probe):
    """Test whether the output depends on each input that the layer needs."""
    inputs, usual = parameters(p.layer)[0][:3], p.call
    if p.own_call or len(inputs) < 2:
        return None
    ignored, other = [], p.axes(p.text(3, LENGTH)).to(p.dtype)
    for name in inputs:
        p.call = partial(call_by_name, other=(name, other))
        if p.same(p.tried(p.x), p.output):
            ignored.append(name)
    p.call = usual
    if not ignored:
        return None
    return None, f"nothing depends on its input {' or '.join(ignored)}: is it meant?"


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
    rounding = 1e-14 * (more * weights).abs().sum()  # of outputs that hardly move
    far = (change - terms.sum()).abs() - 1e-4 * (change.abs() + terms.abs().sum())
    if far < rounding:
        return None
    return None, "its gradient is not the slope of its output (detach?): is it meant?"


def weights_in_use(p: Probe):
    """Test whether the output depends on each matrix, of the copy or of the layer.

    A function that the layer keeps may call the layer's own modules, also in a copy.
    """
    layer, own = copied(p.layer), dict(p.given.named_parameters())
    all_named = layer.named_parameters()
    named = {n: w for n, w in all_named if w.dim() > 1 or n.endswith("bias")}
    each = [*named.values(), *(own[n] for n in named)]
    before = [w.requires_grad for w in each]
    try:
        with torch.enable_grad():
            for w in each:
                w.requires_grad_(w.is_floating_point())
            output, weights = p.tried(p.x, layer=layer), p.text(3, LENGTH)
            if output is None or not output.requires_grad:
                return None
            output = (output * weights).sum()
            slopes = torch.autograd.grad(output, each, allow_unused=True)
    except RuntimeError:  # such as a tensor that was changed in place
        return None
    finally:
        for w, known in zip(each, before):
            w.requires_grad_(known)
    # the bias of keys moves no output: its slope is 0, or rounding
    used = [d is not None and (d.dim() == 1 or bool(d.any())) for d in slopes]
    unused = [n for n, *two in zip(named, used, used[len(named) :]) if not any(two)]
    if not unused:
        return None
    return None, f"nothing depends on {', '.join(unused)}: is it meant?"


def dropout(p: Probe):
    """See what is dropped in training."""
    x = p.text(64, LENGTH)  # 64 texts: some are rarely dropped
    if (wanted := p.tried(x)) is None:  # more than a cache has room for
        wanted = p.run(x := p.x)
    buffers = [(kept, kept.clone()) for kept in p.given.buffers()]
    both = p.layer, p.given  # a function may keep the layer's own modules
    for each in both:
        each.train()
    equal = p.text(len(x), 1).expand_as(x)
    first, second, of_equal = p.tried(x), p.tried(x), p.tried(equal)
    for each in both:
        each.eval()
    for kept, before in buffers:  # such as the mean of a BatchNorm
        kept.copy_(before)
    if first is None or second is None:
        return None
    if wanted.isfinite().all() and not first.isfinite().all():
        return False, "in training mode NaN or infinite numbers come out"
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
    if p.same(of_equal, p.tried(equal)):
        return None, "in training mode: before the softmax. Is it meant?"
    zero = (first == 0) & (wanted != 0)
    zero = zero & ~zero.all(dim=-1, keepdim=True)  # all weights of a query may go
    on_outputs = zero.double().mean() > 0.01
    where = "on the outputs" if on_outputs else "inside, such as on the weights"
    return None, f"in training mode: {where}"
