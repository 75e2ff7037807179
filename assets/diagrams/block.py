"""Draws block."""

from drawing import canvas


def block():
    """The transformer block in 2 forms. Pre-norm: each layer norm stands before attention or
    the MLP, and nothing but additions on the residual stream. Post-norm: each layer norm
    stands on the residual stream itself, after the addition.
    """
    return canvas(9, 3).figure
