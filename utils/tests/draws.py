"""What the properties draw: sizes, tensors, masks; and how many examples they try.

Plain `pytest` tries 50 examples of each property, drawn from a fixed seed: a suite must
not fail by chance. `PROPERTY_EXAMPLES=5000` tries as many, with a seed of that moment.
"""

import math
import os
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from utils.tests.helpers import normal

EXAMPLES = os.environ.get("PROPERTY_EXAMPLES")
settings.register_profile(
    "course",
    max_examples=int(EXAMPLES or 50),
    derandomize=EXAMPLES is None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # of the machine, not of the code
)
settings.load_profile("course")
many = settings(max_examples=3 * settings.default.max_examples)  # for many arguments

DOUBLE = torch.float64
FLOATING = [torch.float32, DOUBLE, torch.bfloat16, torch.float16]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
NO_NUMBERS = [torch.bool, torch.complex64]
FLAGS, SEEDS = st.booleans(), st.integers(0, 999)
# 0 is among them, but not so often that there is nothing to compare
BATCHES, SIZES = (st.sampled_from([*range(1, n + 1)] * 2 + [0]) for n in (3, 6))


class Drawing:
    """What one example is drawn with: `draw(strategy)`, and what the tests share.

    In half of the examples nothing is wrong; in the others one thing in `one_in` is.
    """

    def __init__(self, data, one_in=10):
        self.data, self.one_in, self.fine = data, one_in, data.draw(FLAGS)

    def __call__(self, strategy):
        return self.data.draw(strategy)

    def one_of(self, *values):
        """Return one of the values."""
        return self(st.sampled_from(values))

    def mostly(self, usual, *wrong):
        """Return the usual value, or a wrong one."""
        others = [usual] * (self.one_in - 1) * len(wrong)
        return usual if self.fine else self.one_of(*others, *wrong)

    def normal(self, shape, dtype=torch.float32, size=1.0) -> Tensor:
        """Return normal numbers, times size."""
        return (size * normal(shape, seed=self(SEEDS), dtype=DOUBLE)).to(dtype)

    def laid_out(self, x: Tensor) -> Tensor:
        """Return a tensor in any layout in memory; "expanded": its first row again."""
        layout = self.one_of("plain", "transposed", "every second", "expanded")
        if layout == "transposed" and x.dim() > 1:
            return x.mT.contiguous().mT
        if layout == "every second" and x.dim() > 0:
            return x.repeat_interleave(2, -1)[..., ::2]
        if layout == "expanded" and x.dim() > 0:
            return x[:1].expand(x.shape)
        return x

    def tensor(self, shape, dtype=torch.float32, size=1.0) -> Tensor:
        """Return normal numbers, times size, in any layout."""
        return self.laid_out(self.normal(shape, dtype, size))


def unless(fine, error) -> set:
    """Return {error} unless it is fine."""
    return set() if fine else {error}


def number_errors(x, least, most=1e300) -> set:
    """Return the error of an option that must be a number from least to most."""
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        return {TypeError}
    return unless(least <= x <= most, ValueError)


def size_errors(x, least=0) -> set:
    """Return the error of a size that must be an int of at least `least`."""
    if type(x) is not int:
        return {TypeError}
    return unless(x >= least, ValueError)


def tried(errors, function, *given, **options):
    """Return the result, or None if it is refused by one of these errors, as it must.

    In both cases the arguments must be as they were.
    """
    tensors = [x for x in (*given, *options.values()) if isinstance(x, Tensor)]
    before, result = [x.clone() for x in tensors], None
    with pytest.raises(tuple(errors)) if errors else nullcontext():
        result = function(*given, **options)
    assert_close(tensors, before, rtol=0, atol=0, equal_nan=True)
    return result


def precision(dtype) -> tuple[float, float]:
    """Return eps of a dtype, and of the one that is computed in: single at least."""
    exact = torch.promote_types(dtype, torch.float32)
    return torch.finfo(dtype).eps, torch.finfo(exact).eps


def largest(x) -> float:
    """Return the largest finite absolute value; 0 if there is none."""
    x = x.detach().double().abs()
    return x[x < math.inf].max().item() if (x < math.inf).any() else 0.0
