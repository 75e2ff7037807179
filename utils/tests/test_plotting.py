"""Pictures show what they are given, fit the page, and refuse to distort it; numbers
do not depend on a CPU, and every letter is shown."""

import base64
import html
import json
import math
import re
import struct

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from utils import plotting
from utils.plotting import (
    DIAGRAMS,
    as_html,
    diagram,
    heatmap,
    plot_heads,
    printed,
    show,
)
from utils.words import _say_what_is_lacking

plt.switch_backend("Agg")

CAPTION = "What this figure shows, in words."
ABC = list("abc")
THIRDS = torch.full((3, 3), 1 / 3)
ALL = torch.ones(3, 3, dtype=torch.bool)
CAUSAL = ALL.tril()
HIDDEN = THIRDS.masked_fill(~CAUSAL, -torch.inf)
EACH = torch.eye(3)[:, None].expand(3, 3, 3)  # every query of head i attends to key i

# the three ways to draw a matrix: alone, as two heads of a layer, in two layers
DRAWS = {
    "matrix": lambda matrix, **options: heatmap(matrix, **options).figure,
    "layer": lambda matrix, **options: plot_heads(torch.stack([matrix] * 2), **options),
    "layers": lambda matrix, **options: plot_heads([matrix[None]] * 2, **options),
}
each_way = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


@pytest.fixture(autouse=True)
def house_style():
    """Every test: the house style, nothing warned of, and no figure left behind."""
    _say_what_is_lacking.cache_clear()
    with matplotlib.rc_context():
        plotting.style()
        yield
    plt.close("all")


@pytest.fixture
def shown(monkeypatch):
    """What has been displayed: a picture, its caption, a picture, …"""
    displayed = []
    monkeypatch.setattr(plotting, "display", lambda data, raw: displayed.append(data))
    return displayed


def words(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def panels(figure) -> list:
    drawn = [ax for ax in figure.axes if ax.axison]
    return [ax for ax in drawn if ax.get_label() != "<colorbar>"]


def cells(ax):
    """Return what a panel shows, (queries, keys), with what the mask hides masked."""
    return ax.collections[0].get_array().reshape(-1, int(ax.get_xlim()[1]))


@each_way
def test_masked_cells_are_left_out_and_not_coloured_as_zero(draw):
    for ax in panels(draw(THIRDS, mask=CAUSAL[None, None])):
        assert (cells(ax).mask == ~CAUSAL.numpy()).all()
        assert any(patch.get_hatch() for patch in ax.patches)
    assert not any(ax.patches for ax in panels(draw(THIRDS)))


REFUSED = [
    ("True = may be attended to", lambda: heatmap(THIRDS, mask=CAUSAL.int())),
    ("True = may", lambda: plot_heads(EACH, mask=CAUSAL.float())),
    ("mask has shape", lambda: heatmap(THIRDS, mask=CAUSAL[:2])),
    ("mask has shape", lambda: plot_heads(EACH, mask=CAUSAL[:, :2])),
    ("signed=True", lambda: heatmap(-THIRDS)),
    ("hide those cells", lambda: heatmap(HIDDEN)),
    ("hide those cells", lambda: heatmap(-THIRDS / 0, signed=True)),
    ("NaN", lambda: heatmap(THIRDS * torch.nan)),
    ("2 words for 3 keys", lambda: heatmap(THIRDS, keys=["a", "b"])),
    ("2 words for 3 queries", lambda: plot_heads(EACH, ["a", "b"])),
    ("not a softmax", lambda: plot_heads(THIRDS[None] * 4)),
    ("not a softmax", lambda: plot_heads([EACH, EACH * -0.5])),
    ("NaN", lambda: plot_heads(EACH * torch.nan)),
    ("one sentence", lambda: plot_heads([EACH.expand(2, 3, 3, 3)])),
    ("one sentence", lambda: plot_heads([EACH, EACH[..., :2]])),
    ("a tuple holds no", lambda: plot_heads(())),  # without "eager"
    ("a NoneType holds no", lambda: plot_heads([EACH, None])),
    ("a dict holds no", lambda: plot_heads({"attentions": [EACH]})),
]


@pytest.mark.parametrize(("says", "draw"), REFUSED)
def test_what_would_be_a_false_picture_is_refused(says, draw):
    with pytest.raises((TypeError, ValueError), match=says):
        draw()
    assert plt.get_fignums() == []  # no half-drawn figure for Jupyter to show


def test_a_title_belongs_to_each_head():
    figure = plot_heads([EACH[:1], EACH[1:]], titles=ABC)
    assert [ax.get_title() for ax in panels(figure)] == ABC
    with pytest.raises(ValueError):  # zip, strict
        plot_heads(EACH, titles=ABC[:2])


def test_what_a_mask_hides_may_be_infinite_and_rounding_may_be_negative():
    heatmap(HIDDEN, mask=CAUSAL)
    mesh = heatmap(HIDDEN, mask=CAUSAL, signed=True).collections[0]
    assert mesh.get_clim() == pytest.approx((-1 / 3, 1 / 3))
    for blank in (heatmap(HIDDEN, mask=~ALL, signed=True), heatmap(~ALL, signed=True)):
        assert blank.collections[0].get_clim() == (-1.0, 1.0)  # so that zero is white
    heatmap(THIRDS.masked_fill(~CAUSAL, torch.nan), mask=CAUSAL)
    heatmap(torch.full((3, 3), -5e-7))
    plot_heads(torch.full((1, 3, 3), -5e-7))


def test_the_scale_is_that_of_weights_unless_another_is_given():
    for options, limits in (({}, (0, 1)), ({"vmax": 0.5}, (0, 0.5))):
        assert heatmap(THIRDS, **options).collections[0].get_clim() == limits
    signed = heatmap(THIRDS, signed=True, vmax=2).collections[0]
    assert signed.get_clim() == (-2, 2)


def test_numbers_are_written_where_they_fit_as_in_the_caption():
    for shape, fit in (((8, 8), True), ((9, 8), False), ((8, 9), False)):
        for annotate, written in ((None, fit), (True, True), (False, False)):
            texts = heatmap(torch.zeros(shape), annotate=annotate).texts
            assert len(texts) == written * math.prod(shape)
    ax = heatmap(torch.tensor([[0.125, -0.001]]), signed=True)
    assert [cell.get_text() for cell in ax.texts] == ["0.13", "0.00"]


def test_layers_are_rows_and_heads_columns_on_one_scale():
    layers = [EACH[:2], EACH / 10]
    figure = plot_heads(layers)
    drawn, (bar,) = panels(figure), set(figure.axes) - set(figure.axes[:6])
    assert bar.get_ylabel() == "attention weight" and bar.get_ylim() == (0.0, 1.0)
    places = [ax.get_subplotspec() for ax in drawn]
    grid = [(place.rowspan.start, place.colspan.start) for place in places]
    assert grid == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    for ax, (layer, head) in zip(drawn, grid):
        assert (cells(ax).data == layers[layer][head].numpy()).all()
        assert ax.collections[0].get_clim() == (0.0, 1.0)
    assert [ax.get_title() for ax in drawn] == ["head 0", "head 1", "", "", ""]
    assert [ax.get_ylabel() for ax in drawn] == ["layer 0", "", "layer 1", "", ""]
    for layer in (EACH, EACH[None]):
        assert plot_heads([layer]).axes[0].get_ylabel() == "layer 0"
        alone = plot_heads(layer).axes[0]
        assert alone.get_title() == "head 0" and alone.get_ylabel() == ""


def test_the_first_query_is_on_top_and_the_first_key_left():
    layer = torch.tensor([[[0.0, 0, 0, 1], [1, 0, 0, 0]]])
    figure = plot_heads([layer], ["a", "b"])
    assert figure.get_supxlabel() == "key" and figure.get_supylabel() == "query"
    alone = heatmap(layer[0], queries=["a", "b"], keys=list("wxyz"))
    assert alone.get_xlabel() == "key" and alone.get_ylabel() == "query"
    for ax in (figure.axes[0], alone):
        assert cells(ax).tolist() == layer[0].tolist()
        assert ax.get_ylim() == (2, 0) and ax.get_xlim() == (0, 4)
        assert words(ax.yaxis) == ["a", "b"]
    assert words(alone.xaxis) == list("wxyz")
    assert words(figure.axes[0].xaxis) == list("0123")  # tokens name queries only


@pytest.mark.parametrize(
    ("size", "step"), [(1, 1), (8, 1), (12, 2), (24, 3), (25, 4), (60, 8)]
)
def test_labels_stand_at_the_centres_of_cells(size, step):
    """Positions stand for more than 24 words, and where none are given."""
    tokens, readable = ["word"] * size, size <= 24
    ax = heatmap(torch.ones(size, size), keys=tokens)
    for axis, written in ((ax.xaxis, readable), (ax.yaxis, False)):
        at = range(0, size, 1 if written else step)
        assert words(axis) == (tokens if written else [str(i) for i in at])
        assert list(axis.get_ticklocs()) == [i + 0.5 for i in at]
    assert words(heatmap(torch.ones(size, size), queries=False).yaxis) == []


@pytest.mark.parametrize(
    ("shape", "tokens", "said"),
    [
        ((1, 3, 3), False, "0 1 2"),
        ((4, 40, 40), False, "0 5 10 15 20 25 30 35"),
        ((8, 40, 40), False, "0 10 20 30"),
        ((4, 12, 12), True, "word " * 12),
        ((4, 24, 24), True, "0 3 6 9 12 15 18 21"),
        ((12, 12, 12), True, "0 4 8"),
    ],
)
def test_labels_that_would_not_fit_in_a_panel_give_way(shape, tokens, said):
    tokens = ["word"] * shape[-1] if tokens else None
    ax = plot_heads([torch.zeros(shape)], tokens).axes[0]
    assert words(ax.xaxis) == words(ax.yaxis) == said.split()


@pytest.mark.parametrize(
    ("weights", "left", "below"),
    [
        (THIRDS.expand(6, 3, 3), "100010", "001111"),  # four in the first row
        ([EACH, EACH[:2]], "10010", "00111"),
    ],
)
def test_only_the_outer_panels_are_labelled(weights, left, below):
    """Also the last one above a row with fewer heads."""
    drawn = panels(plot_heads(weights, ABC))
    labels = {"0": [], "1": ABC}
    assert [words(ax.yaxis) for ax in drawn] == [labels[each] for each in left]
    assert [words(ax.xaxis) for ax in drawn] == [labels[each] for each in below]


@pytest.mark.parametrize(("letters", "turn"), [("ab", 0), ("abc", 90)])
def test_labels_of_three_letters_lie_on_their_side(letters, turn):
    ax = heatmap(THIRDS, queries=["long word"] * 3, keys=[letters] * 3)
    assert [label.get_rotation() for label in ax.get_xticklabels()] == [turn] * 3
    assert [label.get_rotation() for label in ax.get_yticklabels()] == [0] * 3


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 2), (1, 50), (50, 1), (25, 25), (500, 500)], ids=str
)
@pytest.mark.filterwarnings("error")
def test_every_shape_fits_the_page(shape, shown):
    labels = dict(zip(("queries", "keys"), (["understanding"] * n for n in shape)))
    show(heatmap(torch.zeros(shape), **labels).figure, CAPTION)
    for heads in (1, 4):
        show(plot_heads(torch.zeros(heads, *shape)), CAPTION)
    for data in shown[::2]:
        png = base64.b64decode(data["image/png"])
        width, height = struct.unpack(">II", png[16:24])
        assert width <= 9 * plt.rcParams["figure.dpi"]
        assert 1 / 7 < height / width < 3


@each_way
def test_a_wide_matrix_is_lower_than_a_square_one_and_a_tall_one_higher(draw):
    shapes = [(2, 8), (8, 8), (16, 8)]
    heights = [draw(torch.zeros(shape)).get_size_inches()[1] for shape in shapes]
    assert heights[0] < 0.8 * heights[1] < 0.6 * heights[2]


def test_show_puts_the_caption_under_the_picture_once_and_closes(shown):
    show(heatmap(THIRDS).figure, CAPTION)
    picture, caption = shown
    assert set(picture) == {"image/png"}  # no words that would be read a second time
    png = base64.b64decode(picture["image/png"])
    assert png.startswith(b"\x89PNG") and b"Software" not in png
    assert caption == {"text/plain": CAPTION, "text/html": as_html(CAPTION)}
    assert plt.get_fignums() == []


def test_a_diagram_is_its_png_and_its_caption(shown):
    diagram("split_heads")
    captions = json.loads((DIAGRAMS / "diagrams.json").read_text(encoding="utf-8"))
    says = captions["split_heads"]
    png = base64.b64encode((DIAGRAMS / "split_heads.png").read_bytes()).decode()
    assert shown == [
        {"image/png": png},
        {"text/plain": says, "text/html": as_html(says)},
    ]


def test_numbers_do_not_depend_on_the_last_bit():
    edges = torch.tensor([0.125, 0.375, 0.625, 0.005, 0.995, 1 / 3, 2.345, 0.0, 1.0])
    for edge in (edges, -edges):
        assert printed(edge - 2e-7).equal(printed(edge + 2e-7))
    assert printed(torch.tensor([0.125, -0.125, 0.004])).tolist() == [0.13, -0.13, 0]
    assert f"{printed(torch.tensor(-0.001)).item():.2f}" == "0.00"


def test_every_letter_of_a_caption_stands_for_itself():
    text = r"<b> & &amp; $x$ \(y\) \[z\] $$w$$ \begin{a} 'q' → 1"
    written = as_html(text)
    assert html.unescape(re.sub("<[^>]*>", "", written)).replace("\xa0", " ") == text
    assert "'q'&nbsp;→ 1" in written  # no line begins with an arrow
    # no piece of text holds what MathJax looks for
    pieces = re.split("<[^>]*>", written)
    assert not any(re.search(r"\$.|\\.", piece) for piece in pieces)
    assert "color" not in written and "background" not in written  # the page's own
