"""General checks of arguments: what was given, what was expected, what to do.

Checks look at types and shapes, which costs next to nothing; `holds` is for the few
that must look at values. A check that knows a class stands beside that class.
"""

import math
import sys

import torch
from torch import Tensor

# as tuples: torch 2.6 cannot compile `int | float`
WHOLE, NUMBER = (int, torch.SymInt), (int, float)
TINIEST, LARGEST = math.ulp(0), sys.float_info.max  # finite floats above 0


def holds(condition: Tensor) -> bool:
    """Return whether a boolean tensor is true everywhere, as far as one can look now.

    While a graph is traced, and under `torch.func.vmap`, there is no single value to
    look at: there a guard must not stop anybody, so the answer is True.
    """
    if torch.compiler.is_compiling():
        return True
    try:
        return bool(condition.all())
    except RuntimeError:  # vmap
        return True


def shape_of(x: Tensor) -> tuple[int, ...]:
    """Return the shape as it reads best in a message."""
    return tuple(x.shape)


def check_size(name: str, size, least: int = 0) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(size, bool) or not isinstance(size, WHOLE):
        raise TypeError(f"{name} is {size!r}; it must be an int.")
    if size < least:
        raise ValueError(f"{name} is {size}; it must be at least {least}.")


def check_positive(name: str, x) -> None:
    """Refuse what is not a finite number above 0."""
    _check_number(name, x, TINIEST, LARGEST, "be finite and above 0")


def check_not_negative(name: str, x) -> None:
    """Refuse what is not a finite number of at least 0."""
    _check_number(name, x, 0, LARGEST, "be finite and at least 0")


def _check_number(name: str, x, least: float, most: float, says: str) -> None:
    """Refuse what is not a number from `least` to `most`."""
    if isinstance(x, bool) or not isinstance(x, NUMBER):
        raise TypeError(f"{name} is a {type(x).__name__}; give a number.")
    if not least <= x <= most:
        raise ValueError(f"{name} is {x}; it must {says}.")


def check_layout(name: str, x, axes: str, dims: int) -> None:
    """Refuse what is not a tensor with as many axes as `axes` names."""
    if isinstance(x, tuple):
        raise TypeError(f"{name} is a tuple; of (output, weights) take the first.")
    check_tensor(name, x)
    if x.dim() != dims:
        raise ValueError(f"{name} has shape {shape_of(x)}; give {axes}.")


def check_tensor(name: str, x) -> None:
    """Refuse what is not a tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; give a torch.Tensor.")


def check_whole(name: str, x) -> None:
    """Refuse what is not a tensor of whole numbers."""
    check_tensor(name, x)
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name}: {x.dtype}; give whole numbers, e.g. {name}.long().")


def check_floating(name: str, x) -> None:
    """Refuse what is not a tensor of floating point."""
    check_tensor(name, x)
    if not x.is_floating_point():
        raise TypeError(f"{name} is {x.dtype}; give floating point: {name}.float().")


def check_choice(name: str, given, known) -> None:
    """Refuse what is not one of the known values."""
    if given not in known:
        choices = ", ".join(map(repr, known))
        raise ValueError(f"{name} is {given!r}; give one of {choices}.")


def checked_layers(weights) -> list[Tensor]:
    """Return one tensor (heads, queries, keys) for each layer, on the CPU."""
    layers = list(weights) if isinstance(weights, (list, tuple)) else [weights]
    if not layers:
        raise ValueError("there are no weights: give one tensor for each layer.")
    if any(layer is None for layer in layers):
        raise ValueError("weights are None: ask the layer for them, need_weights=True.")
    layers = [torch.as_tensor(layer).detach().cpu().float() for layer in layers]
    layers = [x[0] if x.dim() == 4 and len(x) == 1 else x for x in layers]
    for layer in layers:
        if layer.dim() != 3 or 0 in layer.shape:
            raise ValueError(
                f"weights have shape {shape_of(layer)}; give (heads, queries, keys) of "
                "one sentence: weights[0] of a batch, list(weights) of stacked layers."
            )
    if len({layer.shape[1:] for layer in layers}) > 1:
        raise ValueError(f"layers of different lengths: {[*map(shape_of, layers)]}.")
    return layers


def checked_mask(mask, rows: int, columns: int) -> Tensor:
    """Return the mask (queries, keys) on the CPU; None: every key may be read.

    It may have further axes of size 1 in front, and 1 for "the same for all".
    """
    if mask is None:
        return torch.ones(rows, columns, dtype=torch.bool)
    mask = torch.as_tensor(mask).cpu()
    if mask.dtype != torch.bool:
        raise TypeError(f"mask is {mask.dtype}; give bool, True = may be read.")
    try:
        shape = (1,) * max(mask.dim() - 2, 0) + (rows, columns)
        return mask.expand(shape).reshape(rows, columns)
    except RuntimeError:
        wanted = f"give one for all heads, {(rows, columns)}"
        raise ValueError(f"mask has shape {shape_of(mask)}; {wanted}.") from None


def check_tokens(name: str, tokens, size: int) -> None:
    """Refuse what is not a list of words, one for each query or key."""
    listed = isinstance(tokens, (list, tuple))
    if not listed or not all(isinstance(token, str) for token in tokens):
        raise TypeError(f"{name}: {tokens!r:.60}; give a list of words (str).")
    if len(tokens) != size:
        given = f"there are {len(tokens)} words for {size} {name}"
        raise ValueError(f"{given}; give each axis its own.")
