"""Names of heads, such as "2.8" (layer.head), and what a head gives in a model."""

from collections.abc import Iterable

from utils.recording import replaced


def named(layers: Iterable[int], heads: int = 9) -> list[str]:
    """Return the names of all heads of these layers; in SmolLM2 each has 9.

    >>> named([2])[:3]
    ['2.0', '2.1', '2.2']
    """
    return [f"{layer}.{head}" for layer in layers for head in range(heads)]


def place(name: str) -> tuple[int, int]:
    """Return (layer, head) of a name."""
    layer, head = name.split(".")
    return int(layer), int(head)


def giving(model, name: str, values, *, part: str = "heads", at=slice(None)):
    """Replace a part of one head, at some positions, for a `with` block.

    part: what of its attention, such as its output, "heads", or its "query".
    """
    layer, head = place(name)

    def change(x):  # (batch, heads, length, head_dim)
        x = x.clone()
        x[:, head, at] = values
        return x

    return replaced(model, {f"blocks.{layer}.attention.{part}": change})
