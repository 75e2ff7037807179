"""House style, figures and diagrams with captions, heat maps, and their words.

A caption is decided on the printed digits, so that every CPU writes the same sentence:
two weights that print alike are called alike, and none of them the strongest.
"""

import base64
import html
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import torch
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from utils.checks import check_tokens, checked_layers, checked_mask
from utils.words import drawable, isolated, legible, names, visible

MOST_LABELS = 24  # with more tokens than this an axis shows positions, not words
MOST_FACTS = 12  # of more than these a caption names some of the sharpest
MOST_VECTORS = 20_000  # cells; a file for print keeps more of them as one picture
WIDEST = 9.0  # inches
ROUNDING = 1e-6  # a weight this little above or below 0 is a 0
DIAGRAMS = Path(__file__).parents[1] / "assets" / "diagrams"

# Nothing here sets a colour: the caption takes that of the page, be it light or dark.
CAPTION = "max-width: 60em; margin: 0 0 0.5em; font-size: 93%; opacity: 0.8"

Tokens = list[str] | Literal[False] | None  # words, no labels, or positions


def style() -> None:
    """Set the look of all figures: colour-blind-safe, white, 110 dpi, quiet axes."""
    sns.set_theme(style="ticks", palette="colorblind", font_scale=0.9)
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.figsize": (6.0, 3.2),
            "figure.constrained_layout.use": True,
            # the second, which matplotlib brings along, has every sign of the course
            "font.family": ["sans-serif", "DejaVu Sans"],
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": "medium",
            "image.cmap": "viridis",
        }
    )


def show(figure: Figure, caption: str | None = None) -> None:
    """Display a figure as a PNG with its caption under it, and close it.

    caption: the finding in words, with its numbers; it is what the tests compare.
        Without one, figures of `heatmap` and `plot_heads` say what they show.
    Raises ValueError for a caption that is no sentence, and where there is none.
    """
    caption = _own_caption(figure) if caption is None else caption
    if not isinstance(caption, str) or len(caption.split()) < 5:
        raise ValueError(f"caption is {caption!r}; say in a sentence what is shown.")
    png = io.BytesIO()
    # "layout" adds no margin to a figure that is WIDEST already
    tight = {"bbox_inches": "tight", "pad_inches": "layout"}
    figure.savefig(png, format="png", metadata={"Software": None}, **tight)
    plt.close(figure)
    _display(png.getvalue(), caption)


def diagram(name: str) -> None:
    """Display a diagram of the course, with what it shows in words under it.

    name: of a file in assets/diagrams, such as "transformer_01" or "split_heads".
    Raises ValueError for a name that no diagram has.
    """
    captions = json.loads((DIAGRAMS / "diagrams.json").read_text(encoding="utf-8"))
    if name not in captions:
        raise ValueError(f"no diagram is named {name!r}; give one of {list(captions)}.")
    _display((DIAGRAMS / f"{name}.png").read_bytes(), captions[name])


def _display(png: bytes, caption: str) -> None:
    """Display a picture and its caption."""
    encoded = base64.b64encode(png).decode()
    # Two outputs, because of several forms of one output a page shows only one. The
    # picture has no words: where only words can be shown, the caption is there once.
    display({"image/png": encoded}, raw=True)
    display({"text/html": as_html(caption), "text/plain": caption}, raw=True)


def heatmap(
    matrix: Tensor,
    ax: Axes | None = None,
    *,
    queries: Tokens = None,
    keys: Tokens = None,
    mask: Tensor | None = None,
    signed: bool = False,
    vmax: float | None = None,
    annotate: bool | None = None,
    title: str = "",
) -> Axes:
    """Draw a matrix (queries, keys); return its axes.

    queries, keys: the tokens on the axes (a list each), None for positions, False for
        no labels. More than 24 tokens are too many to read: positions stand for them.
    mask: bool, True = may be read; other cells are hatched grey, not coloured as zero.
    signed: red and blue around zero; otherwise one colour scale from 0 to `vmax`
        (default 1, the scale of attention weights).
    annotate: write the numbers (default: where they fit, up to 8 x 8).
    The figure knows what it shows: `show(ax.figure)` needs no caption.
    Raises ValueError for NaN, and for infinite or (unless `signed`) negative cells
    that the mask does not hide.
    """
    matrix = _checked_matrix(matrix)
    rows, columns = matrix.shape
    mask = checked_mask(mask, rows, columns)
    largest = _largest(matrix[mask], signed)
    most = 8 if ax is None else _positions_that_fit(ax)
    query_ticks = _ticks("queries", queries, rows, most)
    key_ticks = _ticks("keys", keys, columns, most)
    if ax is None:
        size = _size(rows, columns, max(map(len, key_ticks.values()), default=0))
        ax = plt.figure(figsize=size, layout="constrained").subplots()
    _hatch_hidden(ax, mask)
    scale = vmax if vmax is not None else largest if signed else 1.0
    scale = scale or 1.0  # a matrix of zeros needs a scale, too
    annotate = rows <= 8 and columns <= 8 if annotate is None else annotate
    written = [[f"{x:.2f}" for x in row] for row in printed(matrix).tolist()]
    colours = {"vmin": -scale if signed else 0.0, "vmax": scale, "cbar": False}
    colours["cmap"] = "RdBu_r" if signed else "viridis"
    numbers = {"annot": written if annotate else None, "fmt": ""}
    numbers["annot_kws"] = {"size": 8}
    grid = {"linewidths": 0.5 if max(rows, columns) <= MOST_LABELS else 0}
    # seaborn would read a token as mathematics
    grid |= {"xticklabels": False, "yticklabels": False}
    cells, hidden = matrix.numpy(), ~mask.numpy()
    sns.heatmap(cells, ax=ax, mask=hidden, **colours, **numbers, **grid)
    seen, called = (matrix, mask), (names(queries, rows), names(keys, columns))
    caption = extremes(*seen) if signed else strongest_keys(*seen, *called)
    ax.collections[-1].caption = caption
    _label(ax, query_ticks, key_ticks)
    ax.set(xlabel="key", ylabel="query")
    ax.set_title(drawable(title), parse_math=False)
    return ax


def plot_heads(
    weights: Tensor | list[Tensor],
    tokens: Tokens = None,
    *,
    keys: Tokens = None,
    mask: Tensor | None = None,
    titles: list[str] | None = None,
) -> Figure:
    """Draw every head, of one layer or of all, on one shared scale from 0 to 1.

    weights: (heads, queries, keys), or (1, heads, queries, keys); or a list of such
        tensors, one for each layer: then each layer is a row, and each head a column.
    tokens: those of the queries, and of the keys unless `keys` is given; None for
        positions, False for no labels. Tokens that do not fit give way to positions.
    mask: bool (queries, keys), True = may be read. titles: one per head.
    The figure knows each head's strongest pair: `show(figure)` needs no caption.
    Raises ValueError for NaN, for weights outside 0 to 1, for a batch of sentences.
    """
    several = isinstance(weights, (list, tuple))
    layers = checked_layers(weights)
    heads = torch.cat(layers)  # (heads of all layers, queries, keys)
    if not ((heads >= -ROUNDING) & (heads <= 1 + 1e-4)).all():
        raise ValueError("weights contain NaN or values outside 0 to 1: not a softmax.")
    count, rows, width = heads.shape
    if titles is not None and len(titles) != count:
        raise ValueError(f"there are {len(titles)} titles for {count} heads.")
    lines = layers if several else heads.split(4)  # of panels
    keys = tokens if keys is None and rows == width else keys
    mask = checked_mask(mask, rows, width)  # before there is a figure to leave behind
    called = titles or [
        f"layer {layer}, head {head}" if several else f"head {head}"
        for layer, matrices in enumerate(layers)
        for head in range(len(matrices))
    ]
    axes_names = names(tokens, rows), names(keys, width)
    caption = strongest_pairs(heads, mask, *axes_names, called)
    side = min(WIDEST / max(map(len, lines)), 3.2)  # inches of a panel
    tokens = _if_they_fit("queries", tokens, rows, side)
    keys = _if_they_fit("keys", keys, width, side)
    figure = _panels(lines, tokens, keys, mask, side)
    panels = [ax for ax in figure.axes if ax.axison]
    first = [ax for ax in panels if ax.get_subplotspec().is_first_col()]
    for layer, ax in enumerate(first if several else []):
        ax.set_ylabel(f"layer {layer}", fontsize=8)
    if titles is None and several:  # the numbers of the heads, above the first layer
        titles = [f"head {head}" for head in range(len(layers[0]))]
    for ax, title in zip(panels, titles or called):
        ax.set_title(drawable(title), fontsize=8, pad=3, parse_math=False)
    figure.supxlabel("key", fontsize="small")
    figure.supylabel("query", fontsize="small")
    figure.caption = caption
    return figure


def _panels(lines, tokens, keys, mask, side) -> Figure:
    """Draw lines of heads (heads, queries, keys); the outer panels are labelled."""
    rows, width = mask.shape
    columns = max(map(len, lines))
    size = (side * columns, len(lines) * side * _shape(rows, width) + 0.6)
    figure = plt.figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    grid = figure.subplots(len(lines), columns, squeeze=False)
    one_picture = sum(map(torch.numel, lines)) > MOST_VECTORS
    for row, line in enumerate(lines):
        for column, ax in enumerate(grid[row]):
            if column >= len(line):
                ax.set_axis_off()
                continue
            _panel(ax, line[column], mask, one_picture)
            last = row + 1 == len(lines) or column >= len(lines[row + 1])
            most = _positions_that_fit(ax)
            query_ticks = _ticks("queries", tokens, rows, most) if column == 0 else {}
            key_ticks = _ticks("keys", keys, width, most) if last else {}
            _label(ax, query_ticks, key_ticks)
            ax.tick_params(labelsize=7 if columns <= 4 else 6, pad=1)
    return figure


def _panel(ax: Axes, matrix: Tensor, mask: Tensor, one_picture: bool) -> None:
    """Draw a small heat map; seaborn's would draw the whole figure anew for each."""
    rows, columns = matrix.shape
    _hatch_hidden(ax, mask)
    cells = np.ma.masked_array(matrix.numpy(), ~mask.numpy())
    ax.pcolormesh(cells, vmin=0.0, vmax=1.0, cmap="viridis", rasterized=one_picture)
    ax.set(xlim=(0, columns), ylim=(rows, 0))
    ax.spines[:].set_visible(False)


def _hatch_hidden(ax: Axes, mask: Tensor) -> None:
    """Hatch the whole panel: it shows wherever a cell is left out."""
    if not mask.all():
        rows, columns = mask.shape
        grey = {"fc": "0.94", "ec": "0.75", "hatch": "////", "lw": 0}
        ax.add_patch(Rectangle((0, 0), columns, rows, **grey))


# --- what is drawn ------------------------------------------------------------------


def _checked_matrix(matrix) -> Tensor:
    matrix = torch.as_tensor(matrix).detach().cpu().float()
    if matrix.dim() != 2 or 0 in matrix.shape:
        shape = tuple(matrix.shape)
        raise ValueError(f"the matrix has shape {shape}; give (queries, keys).")
    if matrix.isnan().any():
        raise ValueError("the matrix contains NaN; find out where before drawing it.")
    return matrix


def _largest(cells: Tensor, signed: bool) -> float:
    """Return the largest size among the cells that are drawn."""
    if cells.isinf().any():
        raise ValueError("the matrix contains inf or -inf; hide those cells by mask=.")
    if not signed and (cells < -ROUNDING).any():
        least = f"the matrix contains {cells.min():.3g}"
        raise ValueError(f"{least}; for values below 0 give signed=True.")
    return float(cells.abs().max()) if cells.numel() else 0.0


# --- sizes and labels ---------------------------------------------------------------


def _shape(rows: int, columns: int) -> float:
    """Height over width of a picture: a row of 50 cells is not drawn as a thread."""
    return min(max(rows / columns, 0.4), 2.0)


def _size(rows: int, columns: int, letters: int) -> tuple[float, float]:
    """The width and height of a figure whose longest key has so many letters."""
    width = min(max(0.55 * columns + 1.2, 2.6), WIDEST)
    height = 0.76 * (width - 1.2) * _shape(rows, columns)
    lines = 0.17 * min(rows, MOST_LABELS)  # the queries, one below the other
    return width, max(height, lines, 0.6) + 0.75 + 0.09 * letters


def _positions_that_fit(ax: Axes) -> int:
    """The number of positions that can stand side by side in a panel, at most 8."""
    inches = ax.bbox.width / ax.figure.dpi
    return min(max(int(inches / 0.15), 2), 8)


def _ticks(name: str, tokens: Tokens, size: int, most: int = 8) -> dict[int, str]:
    """Return the labels of an axis by their cells: words, or `most` positions."""
    if tokens is False:
        return {}
    if tokens is not None:
        check_tokens(name, tokens, size)
        if size <= MOST_LABELS:
            return {cell: visible(token) for cell, token in enumerate(tokens)}
    return {cell: str(cell) for cell in range(0, size, math.ceil(size / most))}


def _if_they_fit(name: str, tokens: Tokens, size: int, side: float) -> Tokens:
    """The tokens, or None (positions) if a panel of `side` inches cannot hold them."""
    words = len(_ticks(name, tokens, size))
    return tokens if 0.1 * words <= 0.85 * side else None


def _label(ax: Axes, queries: dict[int, str], keys: dict[int, str]) -> None:
    """Label the centres of cells; long ones lie on their side."""
    queries, keys = (
        {cell: drawable(word, f"#{cell}") for cell, word in labels.items()}
        for labels in (queries, keys)
    )
    turn = max(map(len, keys.values()), default=0) > 2
    for axis, labels in ((ax.xaxis, keys), (ax.yaxis, queries)):
        centres = [cell + 0.5 for cell in labels]
        axis.set_ticks(centres, list(labels.values()), parse_math=False)
    ax.tick_params(axis="x", labelrotation=90 if turn else 0, length=0)
    ax.tick_params(axis="y", labelrotation=0, length=0)


# --- the words under a picture ------------------------------------------------------


def _own_caption(figure: Figure) -> str:
    """Return what the figure says of itself, from what is drawn in it now."""
    drawn = [(ax.get_title(), d) for ax in figure.axes for d in ax.collections]
    said = [(title, d.caption) for title, d in drawn if hasattr(d, "caption")]
    if hasattr(figure, "caption"):
        return figure.caption
    if not said:
        raise ValueError("this figure does not describe itself: show(figure, caption).")
    if len(said) == 1:
        return said[0][1]
    return " ".join(f"{_called(title)}: {words}" for title, words in said)


def _called(title: str) -> str:
    """Return the title of a panel as a caption says it, in one line."""
    return isolated(legible(" ".join(title.split())))


def strongest_keys(matrix, mask, queries: list[str], keys: list[str]) -> str:
    """Return a sentence: the key that each query attends to most."""
    facts = []
    for query, row, may in zip(queries, matrix, mask):
        value, words = _strongest(row, may, lambda i: isolated(keys[i]), "keys")
        facts.append((value, f"{isolated(query)} → {words}"))
    return f"Strongest key of each query{_listed(facts)}"


def strongest_pairs(weights, mask, queries, keys, heads: list[str]) -> str:
    """Return a sentence: each head's strongest pair, among queries with a choice."""
    # the first query of a causal head has none, and would always be the strongest
    choice = mask.sum(dim=-1, keepdim=True) > 1
    mask = mask & choice if choice.any() else mask

    def pair(i: int) -> str:  # row by row
        query, key = queries[i // len(keys)], keys[i % len(keys)]
        return f"{isolated(query)} → {isolated(key)}"

    facts = []
    for head, matrix in zip(heads, weights):
        value, words = _strongest(matrix.flatten(), mask.flatten(), pair, "pairs")
        facts.append((value, f"{_called(head)}: {words}"))
    return f"Strongest pair of each head{_listed(facts)}"


def extremes(matrix, mask) -> str:
    """Return a sentence: the range of the entries of a matrix with signs."""
    seen = printed(matrix)[mask]
    if not len(seen):
        return "The mask hides every entry of this matrix."
    return f"The entries lie between {seen.min():.2f} and {seen.max():.2f}."


def _strongest(cells, may, name: Callable[[int], str], many: str) -> tuple[float, str]:
    """Return the largest of the visible cells, and in words which cell it is."""
    cells = printed(cells.masked_fill(~may, -torch.inf))
    value = cells.max().item()
    if value <= 0:
        return value, "nothing"
    at = (cells == value).nonzero().flatten().tolist()
    alike = f"all {len(at)}" if len(at) == int(may.sum()) else f"{len(at)}"
    one_by_one = len(at) == 1 or (len(at) <= 3 and not alike.startswith("all"))
    words = " and ".join(map(name, at)) if one_by_one else f"{alike} {many} alike"
    return value, f"{words} ({value:.2f})"


def _listed(facts: list[tuple[float, str]]) -> str:
    """Return ": fact, fact." with all the facts, or with the strongest of many."""
    if len(facts) <= MOST_FACTS:
        return f": {', '.join(words for _, words in facts)}."
    by_value = sorted(range(len(facts)), key=lambda i: (-facts[i][0], i))
    kept = sorted(by_value[: MOST_FACTS // 2])  # in the order of the picture
    words = ", ".join(facts[i][1] for i in kept)
    return f", {len(kept)} of {len(facts)} (none is stronger): {words}."


def printed(numbers: Tensor) -> Tensor:
    """Return the numbers rounded to the two decimals that are printed of them.

    0.125 is 0.13, and so is what another CPU makes of it, 0.12499999.
    """
    numbers = numbers.double()
    hundredths = (numbers.abs() * 100 + 0.5 + 100 * ROUNDING).floor()
    return (hundredths / 100).copysign(numbers) + 0.0  # + 0.0: there is no -0.00


def as_html(caption: str) -> str:
    """Return the caption as a quiet paragraph; each letter stands for itself."""
    text = html.escape(caption, quote=False)
    # MathJax looks for $...$ and \\(...\\) in an unbroken text only
    text = re.sub(r"[$\\]", r"<span>\g<0></span>", text)
    text = text.replace(" →", "&nbsp;→")  # no line begins with an arrow
    return f'<p style="{CAPTION}">{text}</p>'
