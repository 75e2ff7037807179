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

Its files, each of which imports only files above it:

  probe.py
      A copy of a layer that can be asked: who sees whom, and what does a mask do?
  known_layers.py
      The matrices of any layer, and the known ways to compute attention from them.
  outside.py <- probe
      Checks from outside: tokens are changed, and what moves is looked at.
  masks.py <- outside, probe
      Checks of masks: which kinds and shapes are taken, and what do they hide?
  equal.py <- known_layers, outside, probe
      The check of equal tokens: do the weights of each query sum to one?
  inside.py <- known_layers, masks, probe
      Checks from inside: which way of computing attention gives the layer's numbers?
"""

import html
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from . import equal, inside, masks, outside
from .probe import NOT_COMPARED, Probe

SIGNS = {True: "ok", False: "WRONG", None: "note"}


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

    findings: list[Finding]
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
        known = f"{self.mistake}:"  # so begins the line that names it
        asked = [self.mistake if texts[x].startswith(known) else x for x in asked]
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
    if not all(type(n) is int and n > 0 for n in sizes) or embed_dim % num_heads:
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


CHECKS = {
    "zeros": outside.zeros,
    "shapes": outside.shapes,
    "precision": outside.precision,
    "repeats": outside.repeats,
    "input": outside.input_stays,
    "finite": outside.finite,
    "axes": outside.axes,
    "batch": outside.batch,
    "who sees whom": outside.who_sees_whom,
    "order": outside.order,
    "equal tokens": equal.equal_tokens,
    "same numbers": inside.numbers,
    "mask": masks.kinds,
    "second mask": masks.second_mask,
    "other inputs": outside.other_inputs,
    "with a mask": inside.numbers_with_a_mask,
    "mask per text": masks.mask_per_text,
    "scores of 0": masks.scores_of_zero,
    "empty rows": masks.empty_rows,
    "large scores": inside.large_scores,
    "half precision": outside.half_precision,
    "gradients": outside.gradients,
    "weights": outside.weights_in_use,
    "dropout": outside.dropout,
}
