"""A function in a trial that messages call by a name, and that learners cannot."""

import copy
from collections.abc import Callable
from weakref import WeakKeyDictionary

from torch import nn

_INSIDE: WeakKeyDictionary = WeakKeyDictionary()  # of each copy, kept outside of it


class _Copy:
    """What an answer is given: it can be called, and nothing in it says what it is."""

    __slots__ = ("__weakref__",)

    def __call__(self, *args, **kwargs):
        return _INSIDE[self](*args, **kwargs)


class Unnamed(nn.Module):
    """A function that messages call `name`; an answer gets it without that name.

    Modules are copied for every call of an answer. What the function remembers begins
    anew with each copy.
    """

    def __init__(self, name: str, function: Callable):
        super().__init__()
        self.__name__, self.function = name, function

    def __deepcopy__(self, memo: dict) -> _Copy:
        given = _Copy()
        _INSIDE[given] = copy.deepcopy(self.function)
        return given
