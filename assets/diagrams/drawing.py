"""Draws boxes, arrows and matrices, for all diagrams: one inch is one unit.

Each text stands on a pale fill and each line is grey, so that one file can be read on a
white page and on a dark one.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path as Line
from PIL import Image

INK, LINE = "#1a1a1a", "#808080"
PALE, QUIET = "#f7f7f7", "#e6e6e6"  # panels, and boxes that are not the subject


def tint(colour: str, strength: float = 0.45) -> str:
    """Return the colour mixed with white; black text can be read on it."""
    return to_hex(1 - strength * (1 - np.array(to_rgb(colour))))


# All are of seaborn's palette "colorblind", for the whole course.
QUERY, KEY, VALUE = tint("#0173b2"), tint("#de8f05", 0.6), tint("#029e73")
HEADS = [tint("#56b4e9", 0.6), tint("#ece133", 0.7), tint("#d55e00", 0.6)]
HEADS += [tint("#949494", 0.7)]
MARK, MARKED = "#a04a90", tint("#cc78bc", 0.6)  # edge and fill of the lesson's part

GREY = "#c9c9c9"  # inputs and outputs
BOLD, CODE = {"weight": "bold"}, {"family": "monospace", "size": 8}  # texts
FLOW = {"colour": MARK, "width": 1.8}  # an arrow that is the subject
STREAM_GREY = "#b0b0b0"  # of the residual stream

TOKENS = "The cat sat on the mat".split()


def canvas(width: float, height: float) -> Axes:
    """Return axes of width x height inches, transparent and without a frame."""
    figure = plt.figure(figsize=(width, height), layout="none")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    figure.patch.set_alpha(0)
    return ax


def ground(height: float) -> Axes:
    """Return axes 9 inches wide, for what is drawn on one pale panel."""
    ax = canvas(9, height)
    box(ax, 0.03, 0.03, 8.94, height - 0.06, "", PALE)
    return ax


def box(ax, x, y, width, height, text="", fill=QUIET, edge=LINE, size=9, **font):
    """Draw a rounded box, x and y its lower left corner, with a text in the middle."""
    style = f"round,pad=0,rounding_size={min(0.06, width / 3, height / 3)}"
    ax.add_patch(FancyBboxPatch((x, y), width, height, style, **_look(fill, edge)))
    write(ax, x + width / 2, y + height / 2, text, size, **font)


def titled(ax, x, y, width, height, title, at, fill="white", edge=MARK, **font):
    """Draw a box and its title, `at` from the upper left corner: to the right, down."""
    box(ax, x, y, width, height, "", fill, edge)
    font = {"ha": "left"} | BOLD | font
    write(ax, x + at[0], y - at[1] + height, title, **font)


def write(ax, x, y, text, size=9, ha="center", **font):
    """Write a text on a fill that is there already; x and y are its middle."""
    font = {"color": INK, "va": "center_baseline", "linespacing": 1.2} | font
    ax.text(x, y, text, size=size, ha=ha, **font)


def row(ax, y, texts, size=8, **font):
    """Write texts at one height: {x: text}."""
    for x, text in texts.items():
        write(ax, x, y, text, size, **font)


def column(ax, x, texts, size=8, **font):
    """Write texts one below the other: {y: text}."""
    for y, text in texts.items():
        write(ax, x, y, text, size, **font)


def names(ax, x, top, texts, tall, bold=()):
    """Write what each row is, at the left of a matrix whose upper edge is top."""
    for i, text in enumerate(texts):
        font = BOLD if i in bold else {}
        write(ax, x, top - (i + 0.5) * tall, text, 8, ha="right", **font)


def column_names(ax, x, y, texts, wide, **font):
    """Write upwards what each column is, x the left edge of the matrix."""
    for i, text in enumerate(texts):
        write(ax, x + (i + 0.5) * wide, y, text, 8, rotation=90, **font)


def arrow(ax, *points, head=True, colour=LINE, width=1.2):
    """Draw a line through the points, with a head at the last of them."""
    style = "-|>,head_length=3.5,head_width=2" if head else "-"
    line = {"color": colour, "lw": width, "joinstyle": "round", "capstyle": "butt"}
    path = Line([np.array(point, dtype=float) for point in points])
    ax.add_patch(FancyArrowPatch(path=path, arrowstyle=style, **line))


def arrows(ax, y, *spans, **look):
    """Draw arrows at one height, each from an x to another."""
    for start, end in spans:
        arrow(ax, (start, y), (end, y), **look)


def marked(really, fill=QUIET) -> dict:
    """Return the fill and the edge of what may be the subject."""
    return {"fill": MARKED, "edge": MARK} if really else {"fill": fill}


def panel(ax, x, width, title, draw, method=""):
    """Draw a white panel, its title, what is on it, and the method of a place."""
    edge = MARK if method else LINE
    titled(ax, x, 0.34, width, 2.3, title, (0.12, 0.18), edge=edge, size=10)
    write(ax, x + width - 0.12, 2.46, method, ha="right", **CODE)
    draw(ax)


def beside(ax, x, low, tall, name, size):
    """Write a name above a small matrix, and its size below, x their middle."""
    write(ax, x, low + tall + 0.14, name)
    write(ax, x, low - 0.15, size, 8)


def named(ax, x, y, colours, cell, name, size, edge="white"):
    """Draw a matrix with its name and its size, y its middle."""
    tall, wide = len(colours) * cell, len(colours[0]) * cell
    matrix(ax, x, y - tall / 2, colours, cell, edge)
    beside(ax, x + wide / 2, y - tall / 2, tall, name, size)


def _look(fill, edge):
    """Return how a shape is filled and outlined; what is marked has a thick outline."""
    return {"fc": fill, "ec": edge, "lw": 1.8 if edge == MARK else 0.8}


def words(ax, x, y, texts, widths, gap, subject, tall=0.3) -> float:
    """Draw tokens in a line, y their middle, one marked; return where a next begins."""
    for text, width in zip(texts, widths):
        look = marked(text == subject, "white")
        box(ax, x, y - tall / 2, width, tall, text, **look)
        x += width + gap
    return x


def bar(ax, x, y, length, name, subject, tall=0.18, gap=0.06):
    """Draw a bar, x and y the middle of its left edge, with its name at its left."""
    write(ax, x - gap, y, name, 8, ha="right")
    box(ax, x, y - tall / 2, length, tall, "", **marked(subject))


def circle(ax, x, y, radius, fill="none", edge=LINE):
    """Draw a circle, x and y its centre."""
    ax.add_patch(plt.Circle((x, y), radius, **_look(fill, edge)))


def turn(ax, x, y, radius, start, end):
    """Draw a pair of features that turns counter-clockwise on a circle, in degrees."""
    circle(ax, x, y, radius)
    ways = np.radians(np.linspace(start, end, 20))
    points = np.stack([np.cos(ways), np.sin(ways)], -1)
    for way in points[[0, -1]]:
        arrow(ax, (x, y), (x, y) + radius * way)
    arrow(ax, *((x, y) + 0.6 * radius * points), **FLOW)


def plus(ax, x, y, fill=QUIET, edge=LINE, radius=0.1):
    """Draw the sign of an addition, x and y its centre."""
    circle(ax, x, y, radius, fill, edge)
    for dx, dy in ((0.6 * radius, 0), (0, 0.6 * radius)):
        ax.plot([x - dx, x + dx], [y - dy, y + dy], color=INK, lw=1.2)


def letter(ax, x, y, text):
    """Draw the letter or number of a part, x and y its centre."""
    box(ax, x - 0.1, y - 0.1, 0.2, 0.2, text, MARKED, MARK, 8, **BOLD)


def sublayer(ax, stream, norm, low, out, text="norm", gap=0.12, radius=0.12, **font):
    """Draw what a part (its lower edge, x of its output) takes from a stream and adds.

    norm: the box of its norm: x, y, width, height.
    """
    x, y, width, height = norm
    middle = x + width / 2
    arrow(ax, (middle, stream), (middle, y))
    box(ax, *norm, text, **({"fill": "white", "size": 8} | font))
    arrow(ax, (middle, y + height), (middle, low))
    arrow(ax, (out, low), (out, stream + gap))
    plus(ax, out, stream, MARKED, MARK, radius)


def matrix(ax, x, y, colours, cell, edge="white", tall=None):
    """Draw a matrix of colours, the first row on top, x and y its lower left corner."""
    tall = tall or cell  # squares
    height = len(colours) * tall
    for i, row in enumerate(colours):
        for j, colour in enumerate(row):
            at = (x + j * cell, y + height - (i + 1) * tall)
            marks = {"fc": colour or QUIET, "ec": edge, "lw": 0.6}
            # add_patch would also look for the limits of the axes, which are set
            ax.add_artist(Rectangle(at, cell, tall, **marks))
            if colour is None:  # hidden by a mask
                hidden = {"fc": "none", "ec": "#b5b5b5", "hatch": "/////", "lw": 0}
                ax.add_artist(Rectangle(at, cell, tall, **hidden))
    frame = _look("none", LINE)
    ax.add_patch(Rectangle((x, y), len(colours[0]) * cell, height, **frame))


def numbered(ax, x, top, rows, fill, cell, tall=None, framed=()) -> float:
    """Draw numbers on one colour, or one for each; return the right edge."""
    tall, columns = tall or cell, len(rows[0])
    colours = [[fill] * columns] * len(rows) if isinstance(fill, str) else fill
    matrix(ax, x, top - len(rows) * tall, colours, cell, "#d6d6d6", tall)
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            dark = np.mean(to_rgb(colours[i][j])) < 0.45
            ink = "white" if dark else INK if number else "#707070"
            text = f"{number:g}" if 2 * number % 1 == 0 else f"{number:.2f}"
            at = x + (j + 0.5) * cell, top - (i + 0.5) * tall
            write(ax, *at, text, 8, color=ink)
    for row in framed:
        at, frame = (x, top - (row + 1) * tall), {"fc": "none", "ec": MARK, "lw": 2}
        ax.add_patch(Rectangle(at, columns * cell, tall, **frame))
    return x + columns * cell


def stack(ax, x, y, matrices, cell, step=0.05):
    """Draw matrices one behind the other, the first in front, at x and y."""
    for i, colours in reversed([*enumerate(matrices)]):
        matrix(ax, x + i * step, y + i * step, colours, cell)


def viridis(weights, mask=True) -> np.ndarray:
    """Return the colours of attention weights from 0 to 1; None where masked."""
    return colours("viridis", np.asarray(weights), mask)


def signed(numbers, mask=True) -> np.ndarray:
    """Return the colours of numbers around 0: red above, blue below; None if masked."""
    return colours("RdBu_r", 0.5 + 0.33 * np.asarray(numbers), mask)


def causal_maps(scores) -> list[np.ndarray]:
    """Return the weights of several heads as colours, under the causal mask."""
    queries, keys = scores.shape[-2:]
    mask = np.tri(queries, keys, keys - queries, dtype=bool)
    return [viridis(each, mask) for each in softmax(np.where(mask, scores, -np.inf))]


def colours(name, numbers, mask=True) -> np.ndarray:
    """Return the colours of numbers from 0 to 1 on a scale; None where masked."""
    found = [[*map(to_hex, row)] for row in plt.get_cmap(name)(numbers)]
    return np.where(mask, found, None)


def softmax(scores) -> np.ndarray:
    """Return the softmax of each row."""
    powers = np.exp(np.asarray(scores, dtype=float))
    return powers / powers.sum(-1, keepdims=True)


def save(figure: Figure, folder: Path, name: str, alt: str) -> None:
    """Write NAME.png and NAME.svg, the same bytes each time; the SVG tells the text."""
    quiet = {"Creator": None, "Date": None, "Format": None, "Type": None}
    with plt.rc_context({"svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.svg", metadata=quiet | {"Title": name})
    png = folder / f"{name}.png"
    figure.savefig(png, dpi=120)
    plt.close(figure)
    coarse = np.round(np.array(Image.open(png)) / 5) * 5  # unseen, and a quarter less
    _of_few_colours(coarse.astype(np.uint8)).save(png, optimize=True)
    svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
    title = f"<title>{name}</title>"
    words = f"<title>{name.replace('_', ' ')}</title>\n <desc>{alt}</desc>"
    svg = svg.replace(title, words).replace("<svg ", '<svg role="img" ', 1)
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


def _of_few_colours(image: np.ndarray) -> Image.Image:
    """Return the image in its 256 most frequent colours: a third as many bytes."""
    height, width, _ = image.shape
    packed, which, counts = np.unique(
        image.view(np.uint32), return_inverse=True, return_counts=True
    )
    colours = packed.view(np.uint8).reshape(-1, 4)
    kept = colours[np.argsort(-counts, kind="stable")[:256]]
    distances = np.abs(colours[:, None].astype(int) - kept).sum(-1)
    indices = distances.argmin(-1)[which].reshape(height, width)
    few = Image.fromarray(indices.astype(np.uint8)).convert("P")
    few.putpalette(kept.tobytes(), "RGBA")
    return few
