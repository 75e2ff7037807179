"""Exercise 2.3: write the test."""

import torch
from torch import Tensor

from utils.attention import merge_heads, split_heads
from utils.exercises.engine import Exercise, randn
from utils.exercises.lesson_02.exercise_2 import (
    layer_with,
    merge_without_transpose,
    split_without_transpose,
)


class _Black:
    """A layer that cannot be looked into: four heads of six features."""

    def __init__(self, name, seed, sharp, size, split=split_heads, merge=merge_heads):
        self.__name__ = name
        self.split, self.merge, self.exact = split, merge, False
        self.weights = [
            randn(24, 24, seed=seed + i, dtype=torch.float64) / 24**0.5
            for i in range(4)
        ]
        self.weights[0] = self.weights[0] * sharp
        self.weights[3] = self.weights[3] * size  # small ones catch a wide tolerance

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[-1] != 24:
            raise ValueError(f"x has shape {tuple(x.shape)}; give (batch, length, 24).")
        given = x if x.is_floating_point() else x.float()
        x = given.double() if self.exact else given
        weights = [w.to(x.dtype) for w in self.weights]
        output = layer_with(x, *weights, 4, split=self.split, merge=self.merge)
        return output.to(given.dtype)


def _layers() -> list[_Black]:
    """Right ones and wrong ones, of each kind several."""
    wrong_split = {"split": split_without_transpose}
    wrong_merge = {"merge": merge_without_transpose}
    kinds = {
        "a right layer": {},
        "a layer with the split wrong": wrong_split,
        "a layer with the merge wrong": wrong_merge,
        "a layer with both wrong": wrong_split | wrong_merge,
    }
    exact = _Black("a right layer without rounding errors", 300, 1.0, 1.0)
    exact.exact = True  # the only one that torch.equal may accept
    return [
        *(
            _Black(name, seed, sharp, size, **options)
            for seed, sharp, size in ((0, 1.0, 0.1), (100, 0.5, 1.0), (200, 3.0, 1.0))
            for name, options in kinds.items()
        ),
        exact,
    ]


def reshape_test(layer) -> bool:
    """The reference: are shuffled words answered by shuffled outputs?"""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 13, 24, generator=generator)
    shuffle = torch.randperm(13, generator=generator)
    return torch.allclose(layer(x[:, shuffle]), layer(x)[:, shuffle], atol=1e-4)


def test_inputs(dtype):
    for layer in _layers() if dtype == torch.float32 else ():
        yield {"layer": layer}


test_inputs.__test__ = False  # its name begins with "test", and pytest collects such


def _text(length=8, batch=1):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, length, 24, generator=generator)


def _shuffle():
    return torch.randperm(13, generator=torch.Generator().manual_seed(0))


def _survives(layer, shuffle) -> bool:
    x = _text(len(shuffle))
    return torch.allclose(layer(x[:, shuffle]), layer(x)[:, shuffle], atol=1e-4)


def tests_shape(layer):
    """Shapes, sums, sentences in a new order: all four pass. Shuffle the words."""
    x = _text()
    return layer(x).shape == x.shape


def tests_nothing(layer):
    """Right layers fail, too. Each word may read all of them; if you shuffle, compare
    layer(x[:, order]) with layer(x)[:, order], up to rounding."""
    return False


def tests_pieces(layer):
    """With both wrong it keeps or swaps whole pieces: more words, a random order."""
    return _survives(layer, [1, 0, 3, 2, 5, 4, 7, 6])


def tests_exactly(layer):
    """Right layers differ in their last bits: use torch.allclose with an atol."""
    x, shuffle = _text(13), _shuffle()
    return torch.equal(layer(x[:, shuffle]), layer(x)[:, shuffle])


def tests_sight(layer):
    """With one reshape wrong every word still sees every word; only the places err."""
    x = _text()
    changed = x.clone()
    changed[:, 0] += 1
    return bool(((layer(changed) - layer(x)).abs().amax(-1) > 1e-5).all())


def tests_loosely(layer):
    """Outputs of size 1 are equal up to 1, whatever they are: try atol=1e-4."""
    x, shuffle = _text(13), _shuffle()
    return torch.allclose(layer(x[:, shuffle]), layer(x)[:, shuffle], atol=1.0)


def tests_upside_down(layer):
    """True means that the layer is right."""
    return not reshape_test(layer)


def tests_as_many_words_as_heads(layer):
    return _survives(layer, [2, 0, 3, 1])


EXERCISE = Exercise(
    "2.3",
    "Write the test",
    reshape_test,
    test_inputs,
    {
        "says yes to all": tests_shape,
        "says no to all": tests_nothing,
        "a shuffle that keeps the pieces": (
            tests_pieces,
            tests_as_many_words_as_heads,
        ),
        "exact equality": tests_exactly,
        "tolerance too wide": tests_loosely,
        "looks at who sees whom": tests_sight,
        "upside down": tests_upside_down,
    },
    gradients=False,
)
