"""Draws attention_shapes."""

from drawing import canvas


def attention_shapes():
    """Attention as shapes, for 6 queries and 6 keys. Q (6 × 4) times K transposed (4 × 6)
    gives scores (6 × 6). They are divided by √4 and masked, and the softmax makes each
    row sum to 1. The weights (6 × 6) times V (6 × 3) give the output (6 × 3).
    """
    return canvas(9, 3).figure
