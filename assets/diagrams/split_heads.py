"""Draws split_heads."""

from drawing import canvas


def split_heads():
    """Splitting 12 features into 3 heads. A matrix of 4 tokens × 12 features is viewed as
    4 × 3 × 4 and transposed to 3 × 4 × 4: one matrix of 4 tokens × 4 features for each
    head. Merging goes the same way back.
    """
    return canvas(9, 3).figure
