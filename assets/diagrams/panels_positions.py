"""Draws positional encodings, and the three places where positions enter."""


def encodings(ax):
    """Map of the transformer, lesson 04: positional encodings. To the embedding of each of
    3 tokens, "dog bites man", the encoding of its position, 0, 1 or 2, is added.
    """


def three_places(ax):
    """Map of the transformer, lesson 05: the 3 places where positions enter. They are added
    to the embeddings (learned, sinusoidal), rotate queries and keys (RoPE), or are
    added to the scores (ALiBi, T5).
    """
