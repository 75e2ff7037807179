"""Draws what a head attends to, and heads with roles."""


def seen(ax):
    """Map of the transformer, lesson 07: seeing heads. The attention weights of 1 head as a
    heat map, with a row for each query and a column for each key, and 3 more heads of
    its layer on the same scale from 0 to 1. Masked cells are hatched.
    """


def specialised(ax):
    """Map of the transformer, lesson 08: head specialisation. In 2 layers of 4 heads, 2
    heads are marked: one of layer 0 attends to the previous token, and one of layer 1,
    the induction head, to the token after the earlier A.
    """
