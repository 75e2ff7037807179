"""How high do untrained language models score in the kinds of heads of lesson 11?

Nineteen untrained copies of SmolLM2, each of whose heads is as sharp as the trained
head in its place (lesson 07). For each copy and each pattern the score of its best head
is stored, the mean over 16 texts of 64 tokens: sentences of the course, or, for
induction, random tokens that come twice. The highest of these is the threshold above
which lesson 11 calls a trained head specialised.
"""

from functools import partial

import torch

from assets.studies.roles import Texts, best_of_copies, language_model_and_texts
from utils import heads

COPIES = 19  # with the trained model twenty: see lesson 07
TEXTS = 16
KEY = ("seed",)
MARGIN = {"best": 0.01}


def model_and_texts():
    """Return SmolLM2, the first 16 texts of sentences, and random tokens twice."""
    model, (many, copies) = language_model_and_texts()
    (ids,), mask = many.inputs, many.mask
    order = torch.arange(len(ids))
    order = torch.cat([order[::2], order[1::2]]).argsort()  # as they were joined
    patterns = {
        "first token": partial(heads.first_token, mask=mask),
        "previous token": partial(heads.at_offset, offset=-1, mask=mask),
        "own token": partial(heads.at_offset, offset=0, mask=mask),
    }
    sentences = Texts((ids[order][:TEXTS],), mask, patterns)
    twice = Texts(copies.inputs, mask, {"induction": copies.roles["induction"]})
    return model, [sentences, twice]


def best_scores(seeds) -> list[dict]:
    """Return a row for each untrained copy: {pattern: the score of its best head}."""
    return best_of_copies(*model_and_texts(), seeds)


def study() -> dict:
    """Return the study."""
    return {"copies": COPIES, "runs": best_scores(range(COPIES))}


def again(stored: dict) -> list[dict]:
    """Make the first copy once more."""
    return best_scores([0])
