"""Slips, each as an edit of the calls that an answer makes.

An answer is run again with, say, `keepdim=True` in its sums. If that makes it right,
the slip is proved, however the answer is written.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Edit = Callable[[Callable, tuple, dict], tuple | None]

MOST = 200_000  # numbers in a tensor; an axis too many in a loop doubles them each time
REDUCTIONS = {"sum", "mean", "max", "min", "amax", "amin", "logsumexp", "prod"}
SOFTMAX = {"softmax", "log_softmax"}


class Edited(TorchFunctionMode):
    """While active, calls of PyTorch are edited; `used` says whether one was."""

    def __init__(self, edit: Edit):
        super().__init__()
        self.edit, self.used = edit, False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        edited = self.edit(func, args, kwargs or {})
        if edited is not None:
            self.used = True
            func, args, kwargs = edited
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() > MOST:
            raise OverflowError("the edit makes the shapes grow without end")
        return result

    def around(self, function: Callable) -> Callable:
        """Return the function, run with its calls edited."""

        def edited(*args):
            with self:
                return function(*args)

        return edited


def _dim(args: tuple, kwargs: dict) -> object:
    """Return the axis that a call names, or None."""
    positional = args[1] if len(args) > 1 and not isinstance(args[1], Tensor) else None
    return kwargs.get("dim", kwargs.get("axis", positional))


def _keepdim(func: Callable, args: tuple, kwargs: dict) -> tuple | None:
    reduces = func.__name__ in REDUCTIONS and _dim(args, kwargs) is not None
    if not reduces or "keepdim" in kwargs or len(args) > 2:
        return None
    return func, args, kwargs | {"keepdim": True}


def _over_rows(func: Callable, args: tuple, kwargs: dict) -> tuple | None:
    if func.__name__ not in REDUCTIONS or len(args) > 1 or kwargs:
        return None
    func = {"max": torch.amax, "min": torch.amin}.get(func.__name__, func)
    return func, args, {"dim": -1, "keepdim": True}


def _last_two(func: Callable, args: tuple, kwargs: dict) -> tuple | None:
    if func in (torch.Tensor.T.__get__, torch.Tensor.t, torch.t):
        return torch.transpose, (args[0], -2, -1), {}
    if func.__name__ not in ("transpose", "swapaxes", "swapdims") or len(args) != 3:
        return None
    return func, (args[0], -2, -1), kwargs


def _last_axis(func: Callable, args: tuple, kwargs: dict) -> tuple | None:
    dim = _dim(args, kwargs)
    reduces = func.__name__ in REDUCTIONS and dim is not None
    if not (reduces or func.__name__ in SOFTMAX) or dim == -1:
        return None
    kwargs = {k: v for k, v in kwargs.items() if k not in ("dim", "axis")}
    if len(args) > 1:
        return func, (args[0], -1, *args[2:]), kwargs
    return func, args, kwargs | {"dim": -1}


def _reshape(func: Callable, args: tuple, kwargs: dict) -> tuple | None:
    if func.__name__ != "view" or kwargs or isinstance(args[1], torch.dtype):
        return None
    return torch.Tensor.reshape, args, kwargs


def _opposite_mask(func: Callable, args: tuple, kwargs: dict) -> tuple | None:
    mask = {"masked_fill": 1, "masked_fill_": 1, "where": 0}.get(func.__name__)
    if mask is None or len(args) < 3:
        return None
    if func is torch.Tensor.where:
        mask = 1
    if not isinstance(args[mask], Tensor) or args[mask].dtype != torch.bool:
        return None
    return func, (*args[:mask], ~args[mask], *args[mask + 1 :]), kwargs


def _attached(func: Callable, args: tuple, kwargs: dict) -> tuple | None:
    if func.__name__ != "detach" and func is not torch.Tensor.data.__get__:
        return None
    return (lambda tensor: tensor), args[:1], {}


def _tolerance(func: Callable, args: tuple, kwargs: dict) -> tuple | None:
    if func.__name__ not in ("equal", "allclose") or len(args) < 2:
        return None
    return torch.allclose, args[:2], {"rtol": 1e-5, "atol": 1e-4}


SLIPS: dict[str, tuple[str, Edit]] = {
    "keepdim=True forgotten": (
        "keepdim=True is missing in a sum or maximum: without it the result does not "
        "line up with the rows it came from.", _keepdim),
    "another axis than the last": (
        "A softmax, sum, mean or maximum runs over another axis than the last "
        "(dim=-1).",
        _last_axis),
    "a sum or maximum of everything": (
        "A sum, mean or maximum without dim= runs over the whole tensor, not over each "
        "row.",
        _over_rows),
    "another pair of axes transposed": (
        "The two axes to swap are the last: .T and transpose(0, 1) swap others as soon "
        "as there are sentences or heads; .mT and transpose(-2, -1) do not.",
        _last_two),
    "view of transposed memory": (
        "view needs memory in order; after a transpose, yours or of the input, it is "
        "not. reshape copies where it must.", _reshape),
    "the mask the wrong way round": (
        "masked_fill or where is given the opposite of the mask that it needs.",
        _opposite_mask),
    "an unfit tolerance": (
        "Two tensors are compared too strictly or too loosely: take atol=1e-4.",
        _tolerance),
    "a gradient cut by detach": (".detach() or .data cuts off the gradient.",
        _attached),
}  # fmt: skip
