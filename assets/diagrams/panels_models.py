"""Draws the block, the encoder and the language model."""


def block(ax):
    """Map of the transformer, lesson 06: the transformer block. 1 residual stream runs
    through it. Attention and the MLP, 2 sublayers, each after a layer norm, read from
    the stream and add their outputs to it.
    """


def encoder(ax):
    """Map of the transformer, lesson 09: a pretrained encoder of 6 layers with 12 heads
    each. Which of its 72 heads attend from a word to its head in the dependency tree?
    """


def language_model(ax):
    """Map of the transformer, lesson 11: a language model of 30 layers with 9 heads each.
    It predicts the next token of a text; a token is sampled from the probabilities and
    put at the end of the text, and the model predicts again.
    """
