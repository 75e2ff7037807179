"""House style, figures with a description, heatmaps and grids of heads."""

import base64
import io
import math

import matplotlib.pyplot as plt
import seaborn as sns
import torch
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

MOST_LABELS = 24  # with more tokens than this an axis shows positions, not words
VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥", "": "∅"}


def style() -> None:
    """Set the look of all figures: colour-blind-safe, white, 110 dpi, quiet axes."""
    sns.set_theme(style="ticks", palette="colorblind", font_scale=0.9)
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.figsize": (6.0, 3.2),
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": "medium",
            "image.cmap": "viridis",
        }
    )


def show(figure: Figure, alt: str) -> None:
    """Display a figure as a PNG together with its description, and close it.

    alt: the finding in words, with its numbers. It stands for the picture where the
    picture cannot be seen, and it is what the tests compare.
    """
    if not isinstance(alt, str) or len(alt.split()) < 5:
        raise ValueError(f"alt is {alt!r}; say in a sentence what the figure shows.")
    png = io.BytesIO()
    figure.savefig(png, format="png", bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    encoded = base64.b64encode(png.getvalue()).decode()
    display({"image/png": encoded, "text/plain": alt}, raw=True)


def heatmap(
    matrix: Tensor,
    ax: Axes | None = None,
    *,
    queries=None,
    keys=None,
    mask: Tensor | None = None,
    signed: bool = False,
    vmax: float | None = None,
    annotate: bool | None = None,
    title: str = "",
    colorbar: bool = False,
) -> Axes:
    """Draw a matrix (queries, keys); return its axes.

    queries, keys: the words on the axes (a list each), or None for positions.
    mask: bool, True = may be read; other cells are hatched grey, not coloured as zero.
    signed: red and blue around zero; otherwise one colour scale from 0 to `vmax`
        (default 1, the scale of attention weights).
    annotate: write the numbers (default: where they fit).
    """
    matrix = _checked_matrix(matrix)
    rows, columns = matrix.shape
    queries = _checked_tokens("queries", queries, rows)
    keys = _checked_tokens("keys", keys, columns)
    if mask is not None and tuple(mask.shape) != (rows, columns):
        raise ValueError(
            f"mask has shape {tuple(mask.shape)} but the matrix {(rows, columns)}."
        )
    if ax is None:
        size = (max(2.6, 0.55 * columns + 1.2), max(1.8, 0.42 * rows + 0.9))
        ax = plt.figure(figsize=size).subplots()
    if mask is not None and not mask.all():  # shows wherever a cell is left out
        ax.add_patch(
            Rectangle((0, 0), columns, rows, fc="0.94", ec="0.75", hatch="////", lw=0)
        )
    if vmax is None:
        vmax = float(matrix[matrix.isfinite()].abs().max()) if signed else 1.0
    annotate = rows <= 8 and columns <= 8 if annotate is None else annotate
    sns.heatmap(
        matrix.numpy(),
        ax=ax,
        mask=None if mask is None else ~mask.numpy(),
        vmin=-vmax if signed else 0.0,
        vmax=vmax or 1.0,
        cmap="RdBu_r" if signed else "viridis",
        annot=annotate,
        fmt=".2f",
        annot_kws={"size": 8},
        cbar=colorbar,
        linewidths=0.5 if max(rows, columns) <= MOST_LABELS else 0,
        xticklabels=False if keys is None else keys,
        yticklabels=False if queries is None else queries,
    )
    _label_tokens(ax, keys)
    ax.set(xlabel="key (is read)", ylabel="query (reads)")
    ax.set_title(title, parse_math=False)
    return ax


def plot_heads(
    weights: Tensor,
    tokens=None,
    *,
    keys=None,
    mask: Tensor | None = None,
    titles: list[str] | None = None,
    columns: int = 4,
) -> Figure:
    """Draw every head of one layer on one shared scale from 0 to 1.

    weights: (heads, queries, keys), or (1, heads, queries, keys).
    tokens: the words of the queries, and of the keys unless `keys` is given.
    mask: bool (queries, keys), True = may be read. titles: one per head.
    Raises ValueError for NaN, for weights outside 0 to 1, for a batch of sentences.
    """
    weights = torch.as_tensor(weights)
    if weights.dim() == 4 and len(weights) == 1:
        weights = weights[0]
    if weights.dim() != 3:
        raise ValueError(
            f"weights have shape {tuple(weights.shape)}; give one layer and one "
            "sentence, (heads, queries, keys), e.g. weights[0] of a batch."
        )
    if not ((weights >= -1e-4) & (weights <= 1 + 1e-4)).all():
        raise ValueError("weights contain NaN or values outside 0 to 1: not a softmax.")
    count, rows, width = weights.shape
    if titles is not None and len(titles) != count:
        raise ValueError(f"there are {len(titles)} titles for {count} heads.")
    keys = tokens if keys is None and rows == width else keys
    columns = min(columns, count)
    lines = math.ceil(count / columns)
    side = min(9.0 / columns, 3.2)
    figure = plt.figure(figsize=(side * columns, lines * side * (rows / width) + 0.5))
    grid = figure.subplots(lines, columns, squeeze=False)
    for head, ax in enumerate(grid.flat):
        if head >= count:
            ax.set_axis_off()
            continue
        title = f"head {head}" if titles is None else titles[head]
        heatmap(
            weights[head],
            ax,
            queries=tokens if head % columns == 0 else None,
            keys=keys if head >= count - columns else None,
            mask=mask,
            annotate=False,
            title=title,
        )
        ax.set(xlabel="", ylabel="")
        ax.tick_params(labelsize=7)
    figure.supxlabel("key (is read)", fontsize="small")
    figure.supylabel("query (reads)", fontsize="small")
    return figure


def _checked_matrix(matrix) -> Tensor:
    matrix = torch.as_tensor(matrix).detach().cpu().float()
    if matrix.dim() != 2 or 0 in matrix.shape:
        raise ValueError(
            f"the matrix has shape {tuple(matrix.shape)}; give (queries, keys), "
            "e.g. weights[0, 0] of (batch, heads, queries, keys)."
        )
    if matrix.isnan().any():
        raise ValueError("the matrix contains NaN; find out where before drawing it.")
    return matrix


def _checked_tokens(name: str, tokens, size: int) -> list[str] | None:
    if tokens is None:
        return None
    if len(tokens) != size:
        raise ValueError(f"there are {len(tokens)} {name} but {size} in the matrix.")
    if size > MOST_LABELS:
        return None
    return [VISIBLE.get(str(token), str(token)) for token in tokens]


def _label_tokens(ax: Axes, keys) -> None:
    """Turn long words on their side; a token is never read as mathematics."""
    turn = keys is not None and max(map(len, keys), default=0) > 2
    ax.tick_params(axis="x", labelrotation=90 if turn else 0, length=0)
    ax.tick_params(axis="y", labelrotation=0, length=0)
    for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        label.set_parse_math(False)
