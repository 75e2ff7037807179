"""Says in words what one run did otherwise than another."""

import math
import re

import numpy as np
import torch
from torch import Tensor

from utils.oldex.running import NaNOnTheWay, Run, TooLong

VALUES_DIFFER = "the values differ: "
WHOLE = "your output"
CUT_OFF = (
    "none arrives. Does a .detach(), .item(), torch.tensor(), torch.no_grad() or "
    "load_state_dict() (it copies) cut it off?"
)
FIRST_IS_RIGHT = " Its first part is right: return only that."
RETURN_MISSING = " Is a `return` missing?"
OVERWRITTEN = (
    "a tensor was overwritten that the backward pass needs. Build a new one: w = w / s "
    "instead of w /= s, torch.where or masked_fill instead of w[...] = 0."
)
EDITS = "your function edits its argument "
ERROR_HINTS = {  # what PyTorch says -> what was done, and what it means
    r"shape of the mask .* does not match": (
        "assignment under a mask that should broadcast",
        "x[mask] = ... does not broadcast the mask; x.masked_fill(mask, ...) does."),
    r"same dtype|expected scalar type|dtype.* mismatch": ("two precisions mixed",
        "A new tensor takes the type of an input with dtype=x.dtype."),
    r"\(operator\.invert\) is only implemented|bitwise_not": ("a mask of numbers",
        "~ turns True and False round, not numbers: build the mask with "
        "dtype=torch.bool, or compare (mask == 1)."),
    r"torch\.return_types\.(max|min)": ("values and places taken for a tensor",
        "max(dim=...) returns values and their places: take .values, or amax."),
    r"Boolean value of Tensor": ("many truths where one is needed",
        "`if`, `and` and Python's max() need one True or False, but a comparison of "
        "tensors gives one for each number: torch.allclose(a, b) says yes or no, and "
        "amax(dim=...) is the largest number of a row. Two masks are joined by "
        "`(a >= 0) & (a < n)`, with brackets; a choice for each number is "
        "`torch.where` or `masked_fill`."),
    r"are not (close|equal)": ("an assertion where an answer is wanted",
        "assert_close raises an error; torch.allclose(a, b, atol=...) says yes or no."),
    r"(list|range) indices": ("a list taken for a tensor",
        "A list cannot be indexed like a tensor: take torch.tensor(...) or "
        "torch.arange(...)."),
    r"slice indices must be integers|ints,but got float|'float' object cannot be int": (
        "a size or an index that is no whole number",
        "/ gives a float, also for 8 / 2: take // for a size or an index."),
    r"method' object (is not subscriptable|does not support item)": (
        "a method without its brackets", "A method is called: x.clone(), not x.clone."),
    r"is a tuple|'tuple' object|tuple indices must be": ("a tuple taken for a tensor",
        "A function that you call returns several things: output, weights = ..."),
}  # fmt: skip


def difference(expected: Run, yours: Run) -> str | None:
    """Return in words the first thing that yours did otherwise, or None."""
    if yours.error is not None or expected.error is not None:
        return _error_difference(expected.error, yours)
    if yours.edited != expected.edited:
        names = ", ".join(f"`{name}`" for name in yours.edited)
        return (
            f"{EDITS}{names} in place; the caller still "
            "needs it. Build a new tensor (x = x - 1 instead of x -= 1), or change a "
            "copy: keys = keys.clone(). A second name or a slice is no copy."
        )
    said = output_difference(expected.output, yours.output)
    return said or _gradient_difference(expected, yours)


def alike(one: Run, other: Run) -> bool:
    """Whether two runs did exactly the same, errors word for word."""
    if one.error is not None or other.error is not None:
        return _words(one.error) == _words(other.error)
    if _words(one.backward_error) != _words(other.backward_error):
        return False
    return difference(one, other) is None


def _words(error: BaseException | None) -> tuple:
    """Return what makes two errors the same: type, and text but for addresses."""
    return type(error), re.sub(r"0x[0-9a-f]+", "", str(error))


def _error_difference(expected: BaseException | None, yours: Run) -> str | None:
    error, line = yours.error, _in(yours.line)
    if error is None:
        return f"your function raised no error; expected a {type(expected).__name__}."
    if isinstance(error, TooLong):
        return f"your function had not finished after {error} and was stopped.{line}"
    if expected is not None and isinstance(error, type(expected)):
        return None
    known = hint(error)
    meaning = f"\n  {known[1]}" if known else ""
    return f"your function raised {_first_line(error)}{meaning}{line}"


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else f"{type(error).__name__}."


def hint(error: BaseException) -> tuple[str, str] | None:
    """Return what was probably done, and what the error means; None if unknown."""
    for words, known in ERROR_HINTS.items():
        if re.search(words, str(error)):
            return known
    return None


def _in(line: str) -> str:
    return f"\n  In {line}" if line else ""


def output_difference(target, output, where: str = WHOLE) -> str | None:
    """Return in words how an output differs from the target, or None."""
    if isinstance(target, Tensor):
        return _tensor_difference(target, output, where)
    output = _as_plain(output, target)
    returned = "your function returned" if where == WHOLE else f"{where} is"
    if isinstance(target, (list, tuple, dict)):
        return _parts_difference(target, output, where, returned)
    if _same_value(target, output):
        return None
    remark = RETURN_MISSING if output is None else ""
    return f"{returned} {_short(output)}; expected {_short(target)}.{remark}"


def _as_plain(output, target):
    """Return a tensor or array of one entry as the number that it holds."""
    if isinstance(output, (Tensor, np.ndarray, np.generic)) and _is_number(target):
        try:
            return output.item()
        except Exception:  # several entries, or a kind of tensor that has none
            return output
    return output


def _is_number(value) -> bool:
    return isinstance(value, (bool, int, float, complex))


def _same_value(target, output) -> bool:
    """Equal by value; True is not 1, and floats are equal up to rounding."""
    if not _is_number(target):
        return type(output) is type(target) and bool(output == target)
    if not _is_number(output) or isinstance(output, bool) != isinstance(target, bool):
        return False
    if isinstance(target, float) and isinstance(output, (int, float)):
        both_nan = math.isnan(target) and math.isnan(output)
        return both_nan or math.isclose(target, output, rel_tol=1e-4, abs_tol=1e-6)
    return isinstance(output, type(target)) and output == target  # 1.0 is not 1


def _short(value) -> str:
    """Return a value as a sentence can hold it."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _parts_difference(target, output, where: str, returned: str) -> str | None:
    mapping = isinstance(target, dict)
    if not isinstance(output, dict if mapping else (list, tuple)):
        remark = RETURN_MISSING if output is None else ""
        kind = type(target).__name__
        return f"{returned} {type(output).__name__}; expected a {kind}.{remark}"
    if mapping and set(output) != set(target):
        return f"{returned} the keys {_short(list(output))}; expected {list(target)}."
    if len(output) != len(target):
        return f"{returned} {len(output)} parts; expected {len(target)}."
    for key in target if mapping else range(len(target)):
        named = repr(key) if mapping else f"{key + 1} (of {len(target)})"
        part = f"part {named} of {where}"
        said = output_difference(target[key], output[key], part)
        if said is not None:
            differ = said.startswith(VALUES_DIFFER)
            return f"in {part} {said}" if differ else said
    return None


def _tensor_difference(target: Tensor, output, where: str) -> str | None:
    if not isinstance(output, Tensor):
        remark = ""
        if output is None:
            remark = RETURN_MISSING
        elif isinstance(output, tuple) and first_is_right(target, output):
            remark = FIRST_IS_RIGHT
        elif isinstance(output, (tuple, list)):
            remark = f" Return one tensor; this holds {len(output)}."
        returned = "your function returned" if where == WHOLE else f"{where} is"
        return f"{returned} {type(output).__name__}, not a tensor.{remark}"
    if type(output) not in (Tensor, torch.nn.Parameter):
        return f"{where} is a {type(output).__name__}; return an ordinary tensor."
    if output.layout != torch.strided or output.is_nested:
        return f"{where} is a sparse or nested tensor; return an ordinary one."
    if output.shape != target.shape:
        shapes = tuple(output.shape), tuple(target.shape)
        return f"{where} has shape {shapes[0]}; expected {shapes[1]}."
    if output.device != target.device:
        return f"{where} is on {output.device}; the inputs are on {target.device}."
    if output.dtype != target.dtype:
        return f"{where} is {output.dtype}; expected {target.dtype}."
    if not same(output, target):
        return f"{VALUES_DIFFER}{_where(target, output)}"
    return None


def first_is_right(target: Tensor, output: tuple) -> bool:
    """Whether the first of several results is the one that was asked for."""
    return bool(output) and output_difference(target, output[0]) is None


def _gradient_difference(expected: Run, yours: Run) -> str | None:
    if yours.backward_error is not None:
        if expected.backward_error is not None:
            return None
        return _backward_error(yours)
    for name, target in expected.grads.items():
        grad = yours.grads.get(name, torch.zeros_like(target))
        if same(grad, target):
            continue
        said = _where(target, grad)
        if (grad == 0).all():
            said = CUT_OFF
        return f"the values are right, but the gradient of `{name}` is not: {said}"
    return None


def _backward_error(yours: Run) -> str:
    error = yours.backward_error
    if isinstance(error, NaNOnTheWay):
        return f"the values are right, but {error}."
    said = "the values are right, but no gradient can be computed: "
    if isinstance(error, TooLong):
        return f"{said}the backward pass had not finished after {error}."
    if "inplace operation" in str(error):
        return f"{said}{OVERWRITTEN}{_in(yours.line)}"
    return f"{said}the backward pass raised {_first_line(error)}{_in(yours.line)}"


def same(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding; NaN equals NaN, as one of the things an answer can do.

    a, b: of the same shape, dtype and device.
    """
    tolerance = 1e-4 if a.dtype == torch.float32 else 1e-8  # single is off by 1e-7
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _where(expected: Tensor, yours: Tensor) -> str:
    """Return where two tensors of one shape differ most, in words."""
    if yours.isnan().any() and not expected.isnan().any():
        return f"{int(yours.isnan().sum())} of {yours.numel()} are NaN."
    if expected.dtype == torch.bool:
        return f"{int((expected != yours).sum())} of {yours.numel()} are flipped."
    if yours.isinf().any() and not expected.isinf().any():
        return f"{int(yours.isinf().sum())} of {yours.numel()} are infinite."
    equal = (yours == expected) | (yours.isnan() & expected.isnan())  # inf - inf is NaN
    gap = (yours.double() - expected.double()).abs().nan_to_num(math.inf)
    gap = gap.masked_fill(equal, 0.0)
    at = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    a, b = expected[at].item(), yours[at].item()
    if isinstance(a, int):
        return f"at {list(at)} expected {a}, yours {b}."
    digits = next((d for d in (".3f", ".7g") if f"{a:{d}}" != f"{b:{d}}"), ".12g")
    return f"at {list(at)} expected {a:{digits}}, yours {b:{digits}}."
