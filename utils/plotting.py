"""House style, figures and diagrams with captions, heat maps; what can be drawn."""

import base64
import html
import io
import json
import math
import re
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

from utils.masks import visible_keys
from utils.words import drawable, visible

MOST_LABELS = 24  # with more tokens than this an axis shows positions, not words
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


def show(figure: Figure, caption: str) -> None:
    """Display a figure as a PNG with its caption under it, and close the figure.

    caption: the finding in a sentence, with its numbers. Tests compare it, and not the
        picture.
    """
    png = io.BytesIO()
    # "layout" adds no margin to a figure that is WIDEST already
    tight = {"bbox_inches": "tight", "pad_inches": "layout"}
    figure.savefig(png, format="png", metadata={"Software": None}, **tight)
    plt.close(figure)
    _display(png.getvalue(), caption)


def diagram(name: str) -> None:
    """Display a diagram of assets/diagrams, such as "split_heads", with its caption."""
    captions = json.loads((DIAGRAMS / "diagrams.json").read_text(encoding="utf-8"))
    _display((DIAGRAMS / f"{name}.png").read_bytes(), captions[name])


def _display(png: bytes, caption: str) -> None:
    """Display a picture and its caption, each once, as two outputs: a page shows only
    one of several forms of an output, and so the picture must have no words.
    """
    display({"image/png": base64.b64encode(png).decode()}, raw=True)
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
    """Draw a matrix (queries, keys) of numbers; return the axes that hold it.

    ax: where to draw; without it, on a new figure of a fitting size.
    queries, keys: the tokens on the axes (a list each), None for positions, which also
        stand for more than 24 tokens, False for no labels.
    mask: bool, broadcast to (queries, keys), True = may be attended to; the other cells
        are hatched grey, not coloured as zero.
    signed: red above zero and blue below it; otherwise one scale from 0 to `vmax`.
    vmax: the largest number of the scale (default 1; if `signed`, the largest size).
    annotate: write the numbers (default: where they fit, up to 8 x 8).
    ValueError for cells that the mask does not hide and that are NaN, infinite or,
    unless `signed`, negative.
    """
    matrix = torch.as_tensor(matrix).detach().cpu().float()
    rows, columns = matrix.shape
    mask = visible_keys(mask, (1, 1, rows, columns))[0, 0].cpu()
    largest = _largest(matrix, mask, signed)
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
    sns.heatmap(
        matrix.numpy(),
        ax=ax,
        mask=~mask.numpy(),
        vmin=-scale if signed else 0.0,
        vmax=scale,
        cmap="RdBu_r" if signed else "viridis",
        cbar=False,
        annot=written if annotate else None,
        fmt="",
        annot_kws={"size": 8},
        linewidths=0.5 if max(rows, columns) <= MOST_LABELS else 0,
        xticklabels=False,  # seaborn would read a token as mathematics
        yticklabels=False,
    )
    _label(ax, query_ticks, key_ticks)
    ax.set(xlabel="key", ylabel="query")
    ax.set_title(drawable(title), parse_math=False)
    return ax


def plot_heads(
    weights, tokens=None, *, mask: Tensor | None = None, titles: list[str] | None = None
) -> Figure:
    """Draw every head, of one layer or of all, on one shared scale from 0 to 1.

    weights: (heads, queries, keys), or (1, heads, queries, keys); or a list of such
        tensors, one for each layer, such as the `attentions` of `transformers`: then
        each layer is a row, and each head a column.
    tokens: the words of the queries, and of the keys if there are as many; None for
        positions, which also stand for words that do not fit.
    mask: as in `heatmap`, the same for all heads.
    titles: one for each head, layer by layer (default: the number of the head).
    ValueError for NaN, for weights outside 0 to 1, for a batch of sentences.
    """
    several = isinstance(weights, (list, tuple))
    layers = checked_layers(weights)
    if not all(((x >= -ROUNDING) & (x <= 1 + 1e-4)).all() for x in layers):
        raise ValueError("weights contain NaN or values outside 0 to 1: not a softmax.")
    lines = layers if several else layers[0].split(4)  # of panels
    rows, columns = layers[0].shape[1:]
    mask = visible_keys(mask, (1, 1, rows, columns))[0, 0].cpu()
    side = min(WIDEST / max(map(len, lines)), 3.2)  # inches of a panel
    queries = _if_they_fit("queries", tokens, rows, side)
    keys = _if_they_fit("keys", tokens if rows == columns else None, columns, side)
    figure = _panels(lines, queries, keys, mask, side)
    panels = [ax for ax in figure.axes if ax.axison]
    if titles is None:  # of several layers, the numbers stand above the first
        numbers = [f"head {head}" for head in range(len(layers[0]))]
        titles = numbers + [""] * (len(panels) - len(numbers))
    for ax, title in zip(panels, titles, strict=True):
        ax.set_title(drawable(title), fontsize=8, pad=3, parse_math=False)
    first = [ax for ax in panels if ax.get_subplotspec().is_first_col()]
    for layer, ax in enumerate(first if several else []):
        ax.set_ylabel(f"layer {layer}", fontsize=8)
    figure.supxlabel("key", fontsize="small")
    figure.supylabel("query", fontsize="small")
    colours = panels[0].collections[0]  # the same scale in all panels
    bar = figure.colorbar(colours, ax=figure.axes, pad=0.01, aspect=40)
    bar.set_label("attention weight", fontsize="small")
    bar.ax.tick_params(labelsize=7)
    return figure


def _panels(lines, queries, keys, mask, side) -> Figure:
    """Draw lines of heads (heads, queries, keys); the outer panels are labelled."""
    rows, width = mask.shape
    columns = max(map(len, lines))
    size = (side * columns, len(lines) * side * _shape(rows, width) + 0.6)
    figure = plt.figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    grid = figure.subplots(len(lines), columns, squeeze=False)
    for row, line in enumerate(lines):
        for column, ax in enumerate(grid[row]):
            if column >= len(line):
                ax.set_axis_off()
                continue
            _panel(ax, line[column], mask)
            last = row + 1 == len(lines) or column >= len(lines[row + 1])
            most = _positions_that_fit(ax)
            query_ticks = _ticks("queries", queries, rows, most) if column == 0 else {}
            key_ticks = _ticks("keys", keys, width, most) if last else {}
            _label(ax, query_ticks, key_ticks)
            ax.tick_params(labelsize=7 if columns <= 4 else 6, pad=1)
    return figure


def _panel(ax: Axes, matrix: Tensor, mask: Tensor) -> None:
    """Draw a small heat map; seaborn's would draw the whole figure anew for each."""
    rows, columns = matrix.shape
    _hatch_hidden(ax, mask)
    cells = np.ma.masked_array(matrix.numpy(), ~mask.numpy())
    # rasterized: a file for print keeps the many cells as one picture
    ax.pcolormesh(cells, vmin=0.0, vmax=1.0, cmap="viridis", rasterized=True)
    ax.set(xlim=(0, columns), ylim=(rows, 0))
    ax.spines[:].set_visible(False)


def _hatch_hidden(ax: Axes, mask: Tensor) -> None:
    """Hatch the whole panel: it shows wherever a cell is left out."""
    if not mask.all():
        rows, columns = mask.shape
        grey = {"fc": "0.94", "ec": "0.75", "hatch": "////", "lw": 0}
        ax.add_patch(Rectangle((0, 0), columns, rows, **grey))


# --- what can be drawn --------------------------------------------------------------


def checked_layers(weights) -> list[Tensor]:
    """Return one tensor (heads, queries, keys) for each layer, on the CPU.

    weights: of one layer, or of all; with an axis of one sentence in front, or without.
    """
    layers = weights if isinstance(weights, (list, tuple)) else [weights]
    if not layers or not all(isinstance(x, Tensor) for x in layers):
        given = next((x for x in layers if not isinstance(x, Tensor)), weights)
        inner = given if isinstance(given, (list, tuple)) else []
        if any(isinstance(x, Tensor) for x in inner):
            raise ValueError(
                f"weights hold {len(layers)} {type(given).__name__}s of layers, one "
                "for each step, as `generate` returns them; give one of them: "
                "attentions[0] has the weights of the prompt."
            )
        raise ValueError(
            f"a {type(given).__name__} holds no attention weights. From a model of "
            "`transformers` give output.attentions, after from_pretrained(..., "
            'attn_implementation="eager") and a call with output_attentions=True.'
        )
    layers = [x[0] if x.dim() == 4 and len(x) == 1 else x for x in layers]
    if {x.dim() for x in layers} != {3} or len({x.shape[1:] for x in layers}) > 1:
        raise ValueError(
            f"weights have shapes {[tuple(x.shape) for x in layers]}; give (heads, "
            "queries, keys) of one sentence for each layer: weights[0] of a batch, "
            "list(weights) of stacked layers."
        )
    return [x.detach().cpu().float() for x in layers]


def _largest(matrix: Tensor, mask: Tensor, signed: bool) -> float:
    """Return the largest size among the cells that are drawn."""
    cells = matrix[mask]
    if not cells.isfinite().all():
        raise ValueError("the matrix contains NaN or inf; hide those cells by mask=.")
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
    return min(max(int(ax.bbox.width / ax.figure.dpi / 0.15), 2), 8)


def _ticks(name: str, tokens: Tokens, size: int, most: int = 8) -> dict[int, str]:
    """Return the labels of an axis by their cells: words, or `most` positions."""
    if tokens is False:
        return {}
    if tokens is not None:
        if len(tokens) != size:
            given = f"there are {len(tokens)} words for {size} {name}"
            raise ValueError(f"{given}; give each axis its own.")
        if size <= MOST_LABELS:
            return {cell: visible(token) for cell, token in enumerate(tokens)}
    return {cell: str(cell) for cell in range(0, size, math.ceil(size / most))}


def _if_they_fit(name: str, tokens: Tokens, size: int, side: float) -> Tokens:
    """The tokens, or None (positions) if a panel of `side` inches cannot hold them."""
    return tokens if 0.1 * len(_ticks(name, tokens, size)) <= 0.85 * side else None


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


# --- numbers and captions, as they are written --------------------------------------


def printed(numbers: Tensor) -> Tensor:
    """Return the numbers rounded to the two decimals that are printed of them.

    0.125 is 0.13, and so is what another CPU makes of it, 0.12499999.
    """
    numbers = numbers.double()
    hundredths = (numbers.abs() * 100 + 0.5 + 100 * ROUNDING).floor()
    return (hundredths / 100).copysign(numbers) + 0.0  # + 0.0: there is no -0.00


def as_html(caption: str) -> str:
    """Return the caption as a quiet paragraph."""
    text = as_text(caption).replace(" →", "&nbsp;→")  # no line begins with an arrow
    return f'<p style="{CAPTION}">{text}</p>'


def as_text(words: str) -> str:
    """Return words as HTML in which each letter stands for itself."""
    # MathJax looks for $...$ and \\(...\\) in an unbroken text only
    return re.sub(r"[$\\]", r"<span>\g<0></span>", html.escape(words, quote=False))
