"""What a run gives otherwise than a notebook stores, where no test compares the two.

nbval compares no picture, and no text of a cell with the tag nbval-ignore-output.
"""

import base64
import io
import re
from decimal import Decimal

import house
import numpy as np
from PIL import Image

# The margins: how far a number may be from the stored one, as a share of the larger of
# both, and a picture, as the mean difference of its pixels (black to white is 1).
NUMBERS, PIXELS = Decimal("0.1"), 0.01
NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def drifts(stored, fresh):
    """Yield (cell, what differs) for two runs, as JSON, of the same notebook."""
    for old, new in zip(stored["cells"], fresh["cells"]):
        if old["cell_type"] == "code":
            found = list(pictures(old["outputs"], new["outputs"]))
            if "nbval-ignore-output" in house.tags(old):
                found += numbers(words(old["outputs"]), words(new["outputs"]))
            if found:
                yield old, "; ".join(found)


def words(outputs):
    """What outputs say in plain text."""
    texts = [o.get("text") or o.get("data", {}).get("text/plain") for o in outputs]
    return "\n".join(filter(None, map(house.text, texts)))


def numbers(old, new):
    """Yield what differs in two texts, other than numbers within their margin."""
    if NUMBER.sub("0", old) != NUMBER.sub("0", new):
        yield "other words"
        return
    pairs = list(zip(NUMBER.findall(old), NUMBER.findall(new)))
    if apart := [f"{a} is now {b}" for a, b in pairs if are_apart(a, b)]:
        more = f" and {len(apart) - 1} more" if apart[1:] else ""
        yield f"{apart[0]}{more}, of {len(pairs)} numbers"


def are_apart(old, new):
    """Whether two printed numbers differ by more than the margin and a last digit."""
    old, new = (Decimal(number.replace(",", "")) for number in (old, new))
    digit = Decimal(1).scaleb(max(x.as_tuple().exponent for x in (old, new)))
    return abs(old - new) > max(digit, NUMBERS * max(abs(old), abs(new)))


def pictures(old, new):
    """Yield what differs in the pictures of two lists of outputs."""
    old, new = (
        [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
        for outputs in (old, new)
    )
    if len(old) != len(new):
        yield f"{len(old)} pictures are now {len(new)}"
    for before, after in zip(map(pixels, old), map(pixels, new)):
        if before.shape != after.shape:
            yield f"a picture of {before.shape[:2]} pixels has now {after.shape[:2]}"
        elif (apart := float(np.abs(before - after).mean())) > PIXELS:
            yield f"a picture differs by {apart:.3f}"


def pixels(png):
    """The pixels of a stored PNG, on white, from 0 to 1: (height, width, 3)."""
    image = Image.open(io.BytesIO(base64.b64decode(house.text(png)))).convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return np.asarray(Image.alpha_composite(white, image).convert("RGB")) / 255
