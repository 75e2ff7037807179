"""How high do untrained encoders score in the patterns of lesson 09's map of heads?

Nineteen untrained copies of MiniLM, each of whose heads is as sharp as the trained head
in its place (lesson 07). For each copy and each pattern the score of its best head is
stored, the mean over the course's 203 sentences. The highest of these is the threshold
above which lesson 09 calls a trained head specialised.
"""

import torch

from assets.studies import rounded
from assets.studies.roles import encoder_and_texts, matched_copy, scores
from utils import heads

COPIES = 19  # with the trained encoder twenty: see lesson 07
PATTERNS = ["previous token", "next token", "punctuation", "[SEP]", "[CLS]"]
KEY = ("seed",)
MARGIN = {"best": 0.01}


def best_scores(seeds) -> list[dict]:
    """Return a row for each untrained copy: {pattern: the score of its best head}."""
    model, (texts,) = encoder_and_texts()
    layers, rows = heads.record_attention(model, *texts.inputs), []
    for seed in seeds:
        copy = matched_copy(model, texts, layers, seed)
        found = scores(heads.record_attention(copy, *texts.inputs), texts)
        best = {name: found[name].nanmean(0).max() for name in PATTERNS}
        rows.append({"seed": seed, "best": rounded(best, 3)})
    return rows


def study() -> dict:
    """Return the study."""
    version = torch.__version__.split("+")[0]
    return {"torch": version, "copies": COPIES, "runs": best_scores(range(COPIES))}


def again(stored: dict) -> list[dict]:
    """Make the first copy once more."""
    return best_scores([0])
