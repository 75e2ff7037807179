"""A control of `smollm2`: on its sentences, what is 16.0 needed for at one position?

And four texts, on which lesson 11's deeper notebook ablates heads itself.
"""

from assets.studies._heads import giving
from assets.studies._smollm2 import ABOUT, help_texts
from assets.studies.smollm2 import Names
from utils.recording import record_attention

WENT, GIVER = 4, 9  # positions of the sentences
TITLE, LENGTH = 40, 160  # tokens of a help() text: those left out, those read
TEXTS = 4
KEY = ("control",)
NUMBERS = "whole, less, others, change, everywhere"
MARGIN = dict.fromkeys(NUMBERS.split(", "), 0.02)


def without_16_0(names: Names) -> dict:
    """Return what 16.0 at "went" does to 17.4, and to the logit difference.

    In the sentences in which the second person gives: "went" follows its first mention.
    whole, less: the weight of 17.4 from the giver on "went", with 16.0 and without it.
    others: the same weight without each other head of layer 16, at the same position.
    change, everywhere: of the difference, without 16.0 at "went" or at all positions.
    """
    ids = names.ids[::2]  # "When Mary and John went ..., John gave a drink to"

    def weight():
        layer = record_attention(names.model, ids)[17]
        return round(layer[:, 4, GIVER, WENT].mean().item(), 3)

    whole, without = weight(), []
    for head in range(9):
        with giving(names.model, f"16.{head}", 0.0, at=WENT):
            without.append(weight())
    less, *others = without
    row = {"control": "16.0 at went", "whole": whole, "less": less}
    row["others"] = [min(others), max(others)]
    for kind, at in ("change", WENT), ("everywhere", slice(None)):
        with giving(names.model, "16.0", 0.0, at=at):
            row[kind] = round(names.changes()[::2].mean().item(), 3)
    return row


def study() -> dict:
    """Return the study."""
    names = Names()
    texts = [*help_texts(names.tokenizer, LENGTH, TITLE).values()][:TEXTS]
    return {**ABOUT, "texts": texts, "runs": [without_16_0(names)]}


def again(stored: dict) -> list[dict]:
    return [without_16_0(Names())]
