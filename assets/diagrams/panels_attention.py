"""Draws the inside of attention."""


def one_head(ax):
    """Map of the transformer, lesson 01: inside one attention head. The query of "sat" is
    compared with 6 keys. The softmax turns the 6 scores into weights that sum to 1, and
    the output is the weighted mean of the 6 values.
    """


def several_heads(ax):
    """Map of the transformer, lesson 02: multi-head attention. 3 heads, each with queries,
    keys and values of its own, attend side by side. Their outputs are merged, and the
    output projection adds them up.
    """


def pytorch(ax):
    """Map of the transformer, lesson 03: the course's MultiHeadAttention and PyTorch's
    nn.MultiheadAttention. The values of 4 projections are copied from one to the other,
    and both then give the same output.
    """


def cache(ax):
    """Map of the transformer, lesson 10: fast attention. The keys and values of 5 earlier
    tokens are kept in a cache, so that a new token computes 1 query, 1 key and 1 value.
    Beside it, the score matrix is computed in tiles and never stored as a whole.
    """
