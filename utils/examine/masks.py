"""Checks of masks: which kinds and shapes are taken, and what do they hide?"""

import re
from functools import partial

import torch

from .outside import pattern, slope
from .probe import (
    ALL,
    ALWAYS,
    CAUSAL,
    EXACTLY,
    INSTEAD,
    LATER,
    LENGTH,
    NOTHING,
    ONE,
    OTHERS,
    TRACE,
    Probe,
    call_by_name,
    hidden_by,
    made,
    meant,
    parameters,
)


def kinds(p: Probe):
    """See what masks of each kind and shape do that should hide token 2."""
    if p.masked and p.edits_mask:
        return False, "the layer changes the mask that it is given"
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
    first = (torch.arange(LENGTH) == 0).expand(LENGTH, LENGTH)  # hidden, too
    seen = p.visible(made(p.hides, first | (OTHERS & ~(p.sees & CAUSAL))))
    if p.sees[1:, 0].all() and seen is not None and seen[1:, 0].any():
        said, odd = [*said, "but token 0 stays visible"], True
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
    """Test whether hidden tokens stay hidden if their scores are exactly 0.

    Seen tokens must stay seen: where all scores of a query are 0, NaN says they do not.
    """
    x = p.x.clone()
    x[:, 1] = 0.0
    output = p.tried(x, None, p.bare) if p.reading else None
    if output is not None and output.isnan().any():
        return False, "NaN comes out if all scores of a query are 0"
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
    return None, f"a query from which all keys are hidden gives {text}"
