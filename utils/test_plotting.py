"""Pictures show what they are given, fit the page, and refuse to distort it."""

import base64
import struct
import warnings

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

from utils import plotting  # noqa: E402
from utils.captions import as_html  # noqa: E402
from utils.plotting import heatmap, plot_heads, show  # noqa: E402

CAPTION = "What this figure shows, in words."
THIRDS = torch.full((3, 3), 1 / 3)
CAUSAL = torch.ones(3, 3, dtype=torch.bool).tril()
HIDDEN = THIRDS.masked_fill(~CAUSAL, -torch.inf)


@pytest.fixture(autouse=True)
def house_style():
    """Every test: the house style, and no figure left behind."""
    with matplotlib.rc_context():
        plotting.style()
        yield
    plt.close("all")


@pytest.fixture
def shown(monkeypatch):
    """What has been displayed, newest last: a picture, its caption, a picture, ..."""
    displayed = []
    monkeypatch.setattr(plotting, "display", lambda data, raw: displayed.append(data))
    return displayed


def words(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_masked_cells_are_left_out_and_not_coloured_as_zero():
    cells = heatmap(THIRDS, mask=CAUSAL).collections[0].get_array()
    assert (cells.mask.reshape(3, 3) == ~CAUSAL.numpy()).all()
    figure = plot_heads(THIRDS.expand(2, 3, 3), mask=CAUSAL.tolist())
    for ax in figure.axes:
        assert ax.collections[0].get_array().mask.sum() == 3
        assert any(patch.get_hatch() for patch in ax.patches)


@pytest.mark.parametrize("mask", [CAUSAL.int(), CAUSAL.float(), CAUSAL.long().tolist()])
def test_a_mask_that_is_not_bool_is_refused(mask):
    for draw, values in ((heatmap, THIRDS), (plot_heads, THIRDS[None])):
        with pytest.raises(TypeError, match="True = may be read"):
            draw(values, mask=mask)
    assert plt.get_fignums() == []


@pytest.mark.parametrize(("size", "step"), [(1, 1), (8, 1), (12, 2), (60, 8)])
def test_without_words_positions_stand_at_the_centres_of_cells(size, step):
    many = None if size <= plotting.MOST_LABELS else ["word"] * size
    ax = heatmap(torch.ones(size, size), queries=many, keys=many)
    for axis in (ax.xaxis, ax.yaxis):
        assert words(axis) == [str(i) for i in range(0, size, step)]
        assert list(axis.get_ticklocs()) == [i + 0.5 for i in range(0, size, step)]
    assert words(heatmap(torch.ones(2, 2), queries=False).yaxis) == []


def test_only_the_outer_panels_are_labelled():
    figure = plot_heads(THIRDS.expand(6, 3, 3), list("abc"))
    assert [words(ax.yaxis) for ax in figure.axes[:6]] == [
        list("abc") if head in (0, 4) else [] for head in range(6)
    ]
    assert [words(ax.xaxis) for ax in figure.axes[:6]] == [
        list("abc") if head >= 2 else [] for head in range(6)
    ]
    assert words(plot_heads(THIRDS[None]).axes[0].yaxis) == ["0", "1", "2"]
    narrow = plot_heads(torch.zeros(4, 24, 24), ["word"] * 24)
    assert words(narrow.axes[0].yaxis)[:2] == ["0", "3"]  # 24 words would not fit


def test_a_token_is_drawn_as_it_is(shown):
    tokens = [r"$\foo$", "<b>", "a\nb", "", " ", "$x$", "\u200b", "w" * 500]
    ax = heatmap(torch.eye(8), queries=tokens, keys=tokens)
    seen = [r"$\foo$", "<b>", "a⏎b", "∅", "␣", "$x$", r"\u200b", "w" * 15 + "…"]
    assert words(ax.xaxis) == words(ax.yaxis) == seen
    assert not any(label.get_parse_math() for label in ax.get_xticklabels())
    show(ax.figure, CAPTION)  # mathematics would raise here
    assert len(shown) == 2


@pytest.mark.parametrize(
    "shape",
    [(1, 1), (1, 2), (1, 50), (50, 1), (25, 25), (60, 60), (500, 500)],
    ids=str,
)
def test_every_shape_fits_the_page(shape, shown):
    rows, columns = shape
    labels = {"queries": ["understanding"] * rows, "keys": ["understanding"] * columns}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        show(heatmap(torch.zeros(shape), **labels, colorbar=True).figure, CAPTION)
        for heads in (1, 4):
            show(plot_heads(torch.zeros(heads, *shape)), CAPTION)
    for data in shown[::2]:
        png = base64.b64decode(data["image/png"])
        width, height = struct.unpack(">II", png[16:24])
        assert width <= 9 * plt.rcParams["figure.dpi"]
        assert 1 / 7 < height / width < 3


def test_the_layout_does_not_depend_on_the_style():
    matplotlib.rcdefaults()
    assert heatmap(THIRDS).figure.get_layout_engine() is not None
    assert plot_heads(THIRDS[None]).get_layout_engine() is not None


@pytest.mark.parametrize(
    ("error", "says", "draw"),
    [
        (ValueError, "signed=True", lambda: heatmap(-THIRDS)),
        (ValueError, "-inf.*mask=", lambda: heatmap(HIDDEN)),
        (ValueError, "-inf.*mask=", lambda: heatmap(-THIRDS / 0, signed=True)),
        (ValueError, "NaN", lambda: heatmap(THIRDS * torch.nan)),
        (ValueError, "mask has shape", lambda: heatmap(THIRDS, mask=CAUSAL[:2])),
        (ValueError, "2 keys but 3", lambda: heatmap(THIRDS, keys=["a", "b"])),
        (TypeError, "list of words", lambda: heatmap(THIRDS, keys="abc")),
        (TypeError, "list of words", lambda: heatmap(THIRDS, queries=[1, 2, 3])),
        (TypeError, "list of words", lambda: plot_heads(THIRDS[None], "abc")),
        (ValueError, r"\(0, 3, 3\)", lambda: plot_heads(THIRDS[None][:0])),
        (ValueError, "1 or more", lambda: plot_heads(THIRDS[None], columns=0)),
        (ValueError, "not a softmax", lambda: plot_heads(THIRDS[None] * 4)),
    ],
)
def test_what_would_be_a_false_picture_is_refused(error, says, draw):
    with pytest.raises(error, match=says):
        draw()
    assert plt.get_fignums() == []  # no half-drawn figure for Jupyter to show


def test_what_a_mask_hides_may_be_infinite_and_rounding_may_be_negative():
    heatmap(HIDDEN, mask=CAUSAL)
    mesh = heatmap(HIDDEN, mask=CAUSAL, signed=True).collections[0]
    assert mesh.get_clim() == pytest.approx((-1 / 3, 1 / 3))
    heatmap(HIDDEN, mask=torch.zeros(3, 3, dtype=torch.bool), signed=True)
    heatmap(torch.full((3, 3), -5e-7))
    plot_heads(torch.full((1, 3, 3), -5e-7))


def test_zeros_are_white_on_a_signed_scale():
    mesh = heatmap(torch.zeros(2, 2), signed=True).collections[0]
    assert mesh.get_clim() == (-1.0, 1.0)


def test_show_puts_the_caption_under_the_picture_once_and_closes(shown):
    show(heatmap(THIRDS).figure, CAPTION)
    picture, caption = shown
    assert set(picture) == {"image/png"}  # no words that would be read a second time
    png = base64.b64decode(picture["image/png"])
    assert png.startswith(b"\x89PNG") and b"Software" not in png
    assert caption == {"text/plain": CAPTION, "text/html": as_html(CAPTION)}
    assert plt.get_fignums() == []


@pytest.mark.parametrize("caption", ["too short", "", 5])
def test_a_caption_is_a_sentence(caption, shown):
    with pytest.raises(ValueError, match="say in a sentence"):
        show(heatmap(THIRDS).figure, caption)
    assert shown == []


def test_a_figure_without_a_description_wants_a_caption(shown):
    figure, ax = plt.subplots()
    ax.plot([1, 2])
    with pytest.raises(ValueError, match=r"show\(figure, caption\)"):
        show(figure)
    heatmap(THIRDS, ax)
    ax.clear()  # what has been wiped off is not described
    with pytest.raises(ValueError, match=r"show\(figure, caption\)"):
        show(figure)
    assert shown == []
