"""Draws the map of the transformer, and at its side the part that a lesson is about."""

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    "attention": (1.43, 0.48, "multi-head attention"),
    "norm 2": (2.27, 0.2, "layer norm"),
    "MLP": (2.58, 0.22, "MLP"),
    "last norm": (3.26, 0.2, "layer norm"),
    "output layer": (3.57, 0.22, "output layer (LM head)"),
    "probabilities": (3.9, 0.22, "next-token probabilities"),
}
PLUSES = {"position": 0.8, "residual 1": 2.07, "residual 2": 2.96}
BLOCK = (0.97, 2.16)  # y and height
POSITIONS = (0.3, 0.62, 0.72, 0.36)  # the box of the positional encodings
# where a beam begins: its x, lower y and height
BEAMS = {
    "block": (SKIP + 0.12, *BLOCK),
    "attention": (LEFT + BREADTH, *BOXES["attention"][:2]),
    "positions": (MIDDLE + 0.1, POSITIONS[1], POSITIONS[3]),
}


class Lesson(NamedTuple):
    """A state of the map."""

    title: str
    marked: set[str]  # names of BOXES and PLUSES, "positions", "block"
    enlarged: Callable[[Axes], None]  # draws the panel; its docstring is the alt text
    layers: str = "N"  # how often the block is repeated


IN_BLOCK = {"norm 1", "attention", "residual 1", "norm 2", "MLP", "residual 2", "block"}
ENCODER = {"tokens", "embeddings", "position", "positions"} | IN_BLOCK
# A language model of today has no encodings at this place: its heads rotate q and k.
WHOLE = set(BOXES) | IN_BLOCK
HEADS, POSITIONAL = {"attention"}, {"position", "positions"}
LOOP = {"tokens", "probabilities"}  # the model writes: a token goes back to the tokens

LESSONS = {
    1: Lesson("scaled dot-product attention", HEADS, panels.one_head),
    2: Lesson("multi-head attention", HEADS, panels.several_heads),
    3: Lesson("nn.MultiheadAttention", HEADS, panels.pytorch),
    4: Lesson("positional encodings", POSITIONAL, panels.encodings),
    5: Lesson("relative positions", POSITIONAL | HEADS, panels.three_places),
    6: Lesson("the block, and a model that writes", WHOLE, panels.block, "2"),
    7: Lesson("seeing heads", HEADS, panels.seen, "2"),
    8: Lesson("head specialisation", HEADS, panels.specialised, "2"),
    9: Lesson("a pretrained encoder", ENCODER, panels.encoder, "6"),
    10: Lesson("writing text", HEADS | LOOP, panels_model.cache),
    11: Lesson("a real language model", WHOLE, panels_model.language_model, "30"),
    12: Lesson("debugging attention", HEADS, debugging.who_sees_whom),
}


def transformer(number: int) -> Figure:
    """Return the map with the part of this lesson marked, and enlarged at its right."""
    lesson = LESSONS[number]
    ax = canvas(WIDTH, HEIGHT)
    _beam(ax, lesson.marked)
    _block(ax, lesson)
    _arrows(ax)
    for name, (y, height, text) in BOXES.items():
        text = text if name != "attention" else ""  # written above q, k and v
        _part(ax, lesson, name, LEFT, y, BREADTH, height, text)
    _part(ax, lesson, "positions", *POSITIONS, "positional\nencodings")
    _attention(ax, "attention" in lesson.marked)
    for name, y in PLUSES.items():
        fill, edge = (MARKED, MARK) if name in lesson.marked else (QUIET, LINE)
        plus(ax, MIDDLE, y, fill, edge, radius=0.09)
    if lesson.marked >= LOOP:
        _loop(ax)
    _panel(ax, f"lesson {number:02}: {lesson.title}")
    inside = ax.figure.add_axes((0, 0, 1, 1), xlim=(-PANEL[0], WIDTH - PANEL[0]))
    inside.set(ylim=(-PANEL[1], HEIGHT - PANEL[1]))
    inside.set_axis_off()
    lesson.enlarged(inside)
    return ax.figure


def _part(ax, lesson, name, x, y, width, height, text):
    """Draw a box of the map: quiet, or marked."""
    marked = name in lesson.marked
    look = {"fill": MARKED, "edge": MARK} if marked else {"color": "#404040"}
    box(ax, x, y, width, height, text, size=8, **look)


def _attention(ax, marked):
    """Write into the box of attention, and draw its queries, keys and values."""
    y, height, text = BOXES["attention"]
    write(ax, MIDDLE, y + 0.74 * height, text, 8, color=INK if marked else "#404040")
    for x, letter, colour in zip((-0.4, 0, 0.4), "qkv", (QUERY, KEY, VALUE)):
        fill = colour if marked else PALE
        box(ax, MIDDLE + x - 0.13, y + 0.05, 0.26, 0.18, letter, fill, size=8)


def _block(ax, lesson):
    """Draw the panel of the block, and how often the block is repeated."""
    y, height = BLOCK
    edge = MARK if "block" in lesson.marked else LINE
    box(ax, LEFT - 0.12, y, SKIP + 0.12 - LEFT + 0.12, height, fill=PALE, edge=edge)
    times = f"block\n× {lesson.layers}"
    box(ax, 0.42, y + height / 2 - 0.2, 0.56, 0.4, times, PALE, edge, 8)


def _arrows(ax):
    """Draw the way of a token upwards, and the residual connections around it."""
    stops = [(y, y + height) for y, height, _ in BOXES.values()]
    stops = sorted(stops + [(y - 0.09, y + 0.09) for y in PLUSES.values()])
    for (_, top), (bottom, _) in zip(stops, stops[1:]):
        arrow(ax, (MIDDLE, top), (MIDDLE, bottom))
    x, y, width, height = POSITIONS
    arrow(ax, (x + width, y + height / 2), (MIDDLE - 0.09, y + height / 2))
    ends = PLUSES["residual 1"], PLUSES["residual 2"]
    for start, end in zip((1.05, 2.215), ends):
        arrow(ax, (MIDDLE, start), (SKIP, start), (SKIP, end), (MIDDLE + 0.09, end))


def _loop(ax):
    """Draw the way of the sampled token back to the tokens."""
    top, bottom = BOXES["probabilities"][0] + 0.11, BOXES["tokens"][0] + 0.11
    points = (LEFT, top), (0.15, top), (0.15, bottom), (LEFT, bottom)
    arrow(ax, *points, **FLOW)
    box(ax, 0.3, top - 0.11, 0.62, 0.22, "sample", MARKED, MARK, 8)


def _beam(ax, marked):
    """Draw the beam that leads from the marked part to the panel."""
    x, y, _, height = PANEL
    for name, (right, low, tall) in BEAMS.items():
        if name in marked and (name == "block" or "block" not in marked):
            corners = [right, right, x + 0.1, x + 0.1]
            heights = [low, low + tall, y + height, y]
            ax.fill(corners, heights, color=MARK, alpha=0.22, lw=0)


def _panel(ax, title):
    """Draw the ground of the enlarged part, with the lesson's title on its edge."""
    x, y, width, height = PANEL
    box(ax, x, y, width, height, fill=PALE, edge=MARK)
    place = x + 0.15, y + height - 0.15, 0.35 + 0.073 * len(title), 0.27
    box(ax, *place, title, MARKED, MARK, 9.5, weight="bold")
