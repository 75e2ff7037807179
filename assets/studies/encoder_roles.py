"""How high do untrained encoders score in the patterns of lesson 09's map of heads?

Nineteen untrained copies of MiniLM, each of whose heads is as sharp as the trained head
in its place (lesson 07). For each copy and each pattern the score of its best head is
stored, the mean over the course's 203 sentences. The highest of these is the threshold
above which lesson 09 calls a trained head specialised.
"""

from assets.studies.roles import best_of_copies, encoder_and_texts

COPIES = 19  # with the trained encoder twenty: see lesson 07
PATTERNS = ["previous token", "next token", "punctuation", "[SEP]", "[CLS]"]
KEY = ("seed",)
MARGIN = {"best": 0.01}


def best_scores(seeds) -> list[dict]:
    """Return a row for each untrained copy: {pattern: the score of its best head}."""
    model, (texts,) = encoder_and_texts()
    roles = {name: texts.roles[name] for name in PATTERNS}
    return best_of_copies(model, [texts._replace(roles=roles)], seeds)


def study() -> dict:
    """Return the study."""
    return {"copies": COPIES, "runs": best_scores(range(COPIES))}


def again(stored: dict) -> list[dict]:
    """Make the first copy once more."""
    return best_scores([0])
