"""Draws the map of the transformer, and at its side the part that a lesson is about."""

from assets.diagrams import debugging, panels, panels_model
from assets.diagrams.drawing import *

WIDTH, HEIGHT = 9.0, 4.2
PANEL = (3.3, 0.05, 5.65, 3.98)  # x, y, width, height of the enlarged part
MIDDLE, LEFT, BREADTH = 1.95, 1.2, 1.5  # of the column of boxes
SKIP = 2.84  # x of the lines around attention and MLP: the residual connections

# name: (y of the lower edge, height, text), from the tokens up
BOXES = {
    "tokens": (0.05, 0.22, "tokens"),
    "embeddings": (0.38, 0.22, "token embeddings"),
    "norm 1": (1.12, 0.2, "layer norm"),
    "attention": (1.43, 0.48, ""),  # written above q, k and v
    "norm 2": (2.27, 0.2, "layer norm"),
    "MLP": (2.58, 0.22, "MLP"),
    "last norm": (3.26, 0.2, "layer norm"),
    "output layer": (3.57, 0.22, "output layer (LM head)"),
    "probabilities": (3.9, 0.22, "next-token probabilities"),
}
PLUSES = {"position": 0.8, "residual 1": 2.07, "residual 2": 2.96}
BLOCK = (0.97, 2.16)  # y and height
POSITIONS = (0.3, 0.62, 0.72, 0.36)  # the box of the positional encodings
ROTATED = (0.3, 1.4, 0.72, 0.36)  # the same box, where the heads rotate q and k
# where a beam begins: its x, lower y and height
BEAMS = {
    "block": (SKIP + 0.12, *BLOCK),
    "attention": (LEFT + BREADTH, *BOXES["attention"][:2]),
    "positions": (MIDDLE + 0.1, POSITIONS[1], POSITIONS[3]),
}

IN_BLOCK = {"norm 1", "attention", "residual 1", "norm 2", "MLP", "residual 2", "block"}
ENCODER = {"tokens", "embeddings", "position", "positions"} | IN_BLOCK
WHOLE = set(BOXES) | IN_BLOCK | {"positions"}
ATTENTION, POSITIONAL = {"attention"}, {"position", "positions"}
ROTARY = (6, 7, 8, 10, 11)  # the lessons whose model has rotary embeddings
LOOP = {"tokens", "probabilities"}  # the model writes: a token goes back to the tokens

# what is marked: names of BOXES and PLUSES, "positions", "block"
LESSONS = {  # title, what is marked, what is enlarged, how often the block is repeated
    1: ("scaled dot-product attention", ATTENTION, panels.one_head, "N"),
    2: ("multi-head attention", ATTENTION, panels.several_heads, "N"),
    3: ("nn.MultiheadAttention", ATTENTION, panels.pytorch, "N"),
    4: ("positional encodings", POSITIONAL, panels.encodings, "N"),
    5: ("relative positions", POSITIONAL | ATTENTION, panels.three_places, "N"),
    6: ("the block, and a model that writes", WHOLE, panels.block, "2"),
    7: ("seeing heads", ATTENTION, panels.seen, "2"),
    8: ("head specialisation", ATTENTION, panels.specialised, "2"),
    9: ("a pretrained encoder", ENCODER, panels.encoder, "6"),
    10: ("writing text", ATTENTION | LOOP, panels_model.cache, "N"),
    11: ("a real language model", WHOLE, panels_model.language_model, "30"),
    12: ("debugging attention", ATTENTION, debugging.who_sees_whom, "N"),
}


def transformer(number: int) -> None:
    """Draw the map with the part of this lesson marked, and enlarged at its right."""
    title, subject, enlarge, layers = LESSONS[number]
    ax = canvas(WIDTH, HEIGHT)
    _beam(ax, subject)
    y, height = BLOCK
    edge = MARK if "block" in subject else LINE
    box(ax, LEFT - 0.12, y, SKIP + 0.12 - LEFT + 0.12, height, fill=PALE, edge=edge)
    times = f"block\n× {layers}"
    box(ax, 0.42, y + height / 2 - 0.2, 0.56, 0.4, times, PALE, edge, 8)
    positions, pluses = (*POSITIONS, "positional\nencodings"), dict(PLUSES)
    if number in ROTARY:
        positions = *ROTATED, "rotary\npositions"
        del pluses["position"]
    _arrows(ax, pluses, positions[:4])
    boxes = {name: (LEFT, y, BREADTH, *rest) for name, (y, *rest) in BOXES.items()}
    boxes["positions"] = positions
    for name, place_and_text in boxes.items():
        ink = {} if name in subject else {"color": "#404040"}
        box(ax, *place_and_text, size=8, **marked(name in subject), **ink)
    shown = "attention" in subject
    y, ink = BOXES["attention"][0], {} if shown else {"color": "#404040"}
    write(ax, MIDDLE, y + 0.74 * 0.48, "multi-head attention", 8, **ink)
    for x, letter, colour in zip((-0.4, 0, 0.4), "qkv", (QUERY, KEY, VALUE)):
        fill = colour if shown else PALE
        box(ax, MIDDLE + x - 0.13, y + 0.05, 0.26, 0.18, letter, fill, size=8)
    for name, y in pluses.items():
        plus(ax, MIDDLE, y, **marked(name in subject), radius=0.09)
    if subject >= LOOP:  # the sampled token goes back to the tokens
        top, bottom = BOXES["probabilities"][0] + 0.11, BOXES["tokens"][0] + 0.11
        arrow(ax, (LEFT, top), (0.15, top), (0.15, bottom), (LEFT, bottom), **FLOW)
        box(ax, 0.3, top - 0.11, 0.62, 0.22, "sample", MARKED, MARK, 8)
    x, y, width, height = PANEL
    box(ax, x, y, width, height, fill=PALE, edge=MARK)
    title = f"lesson {number:02}: {title}"
    place = x + 0.15, y + height - 0.15, 0.35 + 0.073 * len(title), 0.27
    box(ax, *place, title, MARKED, MARK, 9.5, **BOLD)
    inside = ax.figure.add_axes((0, 0, 1, 1), xlim=(-x, WIDTH - x))
    inside.set(ylim=(-y, HEIGHT - y))
    inside.set_axis_off()
    enlarge(inside)


def _arrows(ax, pluses, positions):
    """Draw the way of a token upwards, and the residual connections around it."""
    stops = [(y, y + height) for y, height, _ in BOXES.values()]
    stops = sorted(stops + [(y - 0.09, y + 0.09) for y in pluses.values()])
    for (_, top), (bottom, _) in zip(stops, stops[1:]):
        arrow(ax, (MIDDLE, top), (MIDDLE, bottom))
    x, y, width, height = positions
    end = MIDDLE - 0.09 if "position" in pluses else LEFT
    arrow(ax, (x + width, y + height / 2), (end, y + height / 2))
    ends = PLUSES["residual 1"], PLUSES["residual 2"]
    for start, end in zip((1.05, 2.215), ends):
        arrow(ax, (MIDDLE, start), (SKIP, start), (SKIP, end), (MIDDLE + 0.09, end))


def _beam(ax, subject):
    """Draw the beam that leads from the marked part to the panel."""
    x, y, _, height = PANEL
    for name, (right, low, tall) in BEAMS.items():
        if name in subject and (name == "block" or "block" not in subject):
            corners = [right, right, x + 0.1, x + 0.1]
            heights = [low, low + tall, y + height, y]
            ax.fill(corners, heights, color=MARK, alpha=0.22, lw=0)
