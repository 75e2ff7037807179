"""Pictures show what they are given, fit the page, and refuse to distort it; captions
name the strongest, decide nothing that a CPU decides, and show every letter."""

import base64
import html
import io
import re
import struct
import warnings
from xml.etree import ElementTree

import matplotlib
import pytest
import torch

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

from utils import plotting  # noqa: E402
from utils.plotting import (  # noqa: E402
    as_html,
    heatmap,
    names,
    plot_heads,
    printed,
    show,
    strongest_keys,
    strongest_pairs,
    visible,
)
from utils.tests.helpers import HOSTILE  # noqa: E402

SVG_TEXT = "{http://www.w3.org/2000/svg}text"
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


def test_24_words_can_be_read_and_25_cannot():
    for size, first in ((24, "word"), (25, "0")):
        ax = heatmap(torch.ones(1, size), keys=["word"] * size)
        assert words(ax.xaxis)[0] == first


def test_positions_stand_apart_in_narrow_panels():
    narrow = plot_heads([torch.zeros(8, 40, 40)])
    assert words(narrow.axes[0].xaxis) == words(narrow.axes[0].yaxis)
    assert words(narrow.axes[0].xaxis) == ["0", "10", "20", "30"]
    wide = plot_heads(torch.zeros(4, 40, 40))
    assert words(wide.axes[0].xaxis)[:2] == ["0", "5"]


@pytest.mark.parametrize(("letters", "turn"), [("a", 0), ("ab", 0), ("abc", 90)])
def test_labels_of_three_letters_lie_on_their_side(letters, turn):
    ax = heatmap(THIRDS, queries=["long word"] * 3, keys=[letters] * 3)
    assert [label.get_rotation() for label in ax.get_xticklabels()] == [turn] * 3
    assert [label.get_rotation() for label in ax.get_yticklabels()] == [0] * 3


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (9, 8), (8, 9)])
def test_numbers_are_written_where_they_fit(rows, columns):
    zeros = torch.zeros(rows, columns)
    written = rows * columns if (rows, columns) == (8, 8) else 0
    assert len(heatmap(zeros).texts) == written
    assert len(heatmap(zeros, annotate=True).texts) == rows * columns
    assert len(heatmap(zeros, annotate=False).texts) == 0


def test_numbers_are_written_with_the_digits_of_the_caption():
    ax = heatmap(torch.tensor([[0.125, -0.001]]), signed=True)
    assert [cell.get_text() for cell in ax.texts] == ["0.13", "0.00"]


def test_a_wide_matrix_is_lower_than_a_square_one_and_a_tall_one_higher():
    shapes = [(2, 8), (8, 8), (16, 8)]
    for draw in (heatmap, lambda matrix: plot_heads(matrix[None]).axes[0]):
        sizes = [draw(torch.zeros(shape)).figure.get_size_inches() for shape in shapes]
        widths, heights = zip(*map(tuple, sizes), strict=True)
        assert len(set(widths)) == 1
        assert heights[0] < 0.8 * heights[1] < 0.6 * heights[2]


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
        show(heatmap(torch.zeros(shape), **labels).figure, CAPTION)
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
        (ValueError, "2 words for 3 keys", lambda: heatmap(THIRDS, keys=["a", "b"])),
        (TypeError, "list of words", lambda: heatmap(THIRDS, keys="abc")),
        (TypeError, "list of words", lambda: heatmap(THIRDS, queries=["a", 2, "c"])),
        (TypeError, "list of words", lambda: plot_heads(THIRDS[None], "abc")),
        (ValueError, r"\(0, 3, 3\)", lambda: plot_heads(THIRDS[None][:0])),
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


def test_what_heatmap_drew_is_the_caption(shown):
    words = "the cat sat".split()
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.1, 0.6, 0.3]])
    show(heatmap(weights, queries=words, keys=words, mask=CAUSAL).figure)
    figure, axes = plt.subplots(1, 2)
    heatmap(weights, axes[0], title="weights")
    heatmap(-weights, axes[1], signed=True)
    axes[1].set_title("scores")  # a title may come later
    show(figure)
    show(plot_heads(weights.expand(2, 3, 3), words, mask=CAUSAL))
    show(plot_heads(weights[None].requires_grad_(), titles=["layer 1, head 5"]))
    show(plot_heads((weights[None, :2] > 0.5).long(), words[:2], keys=words))
    show(heatmap(weights[:2].bfloat16(), queries=["a", "b"], keys=words).figure)
    assert [caption["text/plain"] for caption in shown[1::2]] == [
        "Strongest key of each query: the → the (1.00), cat → cat (0.80), "
        "sat → cat (0.60).",
        "weights: Strongest key of each query: 0 → 0 (1.00), 1 → 1 (0.80), "
        "2 → 1 (0.60). scores: The entries lie between -1.00 and 0.00.",
        "Strongest pair of each head: head 0: cat → cat (0.80), "
        "head 1: cat → cat (0.80).",
        "Strongest pair of each head: layer 1, head 5: 0 → 0 (1.00).",
        "Strongest pair of each head: head 0: the → the and cat → cat (1.00).",
        "Strongest key of each query: a → the (1.00), b → cat (0.80).",
    ]


FUTURE = torch.tensor([[0.1, 0.9, 0.9], [0.3, 0.2, 0.9], [0.1, 0.2, 0.3]])
ALL, TOKENS = torch.ones(3, 3, dtype=torch.bool), ["the", "cat", "sat"]


def keys_of(matrix, mask=ALL):
    return strongest_keys(matrix, mask, TOKENS, TOKENS)


def pairs_of(weights, mask=ALL):
    heads = [f"head {head}" for head in range(len(weights))]
    return strongest_pairs(weights, mask, TOKENS, TOKENS, heads)


@pytest.mark.parametrize(
    ("matrix", "mask", "says"),
    [
        (FUTURE, CAUSAL, "the → the (0.10), cat → the (0.30), sat → sat (0.30)"),
        (FUTURE, ~ALL, "the → nothing, cat → nothing, sat → nothing"),
        (FUTURE * 0, ALL, "the → nothing, cat → nothing, sat → nothing"),
        (
            THIRDS,
            CAUSAL,
            "the → the (0.33), cat → all 2 keys alike (0.33), "
            "sat → all 3 keys alike (0.33)",
        ),
        (
            torch.tensor([[0.401, 0.2, 0.399]]),
            ALL[:1],
            "the → the and sat (0.40)",
        ),
    ],
)
def test_the_strongest_key_of_each_query(matrix, mask, says):
    assert keys_of(matrix, mask) == f"Strongest key of each query: {says}."


@pytest.mark.parametrize(
    ("weights", "mask", "says"),
    [
        (FUTURE[None], ALL, "head 0: the → cat and the → sat and cat → sat (0.90)"),
        (FUTURE[None], CAUSAL, "head 0: cat → the and sat → sat (0.30)"),
        (torch.ones(1, 3, 3), CAUSAL, "head 0: all 5 pairs alike (1.00)"),
        (torch.eye(3)[None], torch.eye(3) > 0, "head 0: all 3 pairs alike (1.00)"),
        (
            torch.stack([FUTURE + torch.eye(3), FUTURE * 0]),
            CAUSAL,
            "head 0: sat → sat (1.30), head 1: nothing",
        ),
    ],
)
def test_the_strongest_pair_of_each_head(weights, mask, says):
    """The first query of a causal head has no choice: it is not the strongest."""
    assert pairs_of(weights, mask) == f"Strongest pair of each head: {says}."


def test_the_range_of_a_signed_matrix_leaves_out_what_is_hidden(shown):
    matrix = torch.tensor([[-2.0, 0.5], [0.0, 9.0]])
    mask = torch.tensor([[True, True], [True, False]])
    show(heatmap(matrix, signed=True, mask=mask).figure)
    show(heatmap(matrix, signed=True, mask=~mask & mask).figure)
    assert [caption["text/plain"] for caption in shown[1::2]] == [
        "The entries lie between -2.00 and 0.50.",
        "The mask hides every entry of this matrix.",
    ]


def test_many_alike_are_counted_and_of_many_queries_the_strongest_are_named():
    row = torch.tensor([[0.2] * 4 + [0.1] * 3])
    numbers = names(None, 7)
    said = strongest_keys(row, row > 0, ["a"], numbers)
    assert said.endswith(": a → 4 keys alike (0.20).")
    weights = torch.full((13, 13), 0.01)
    weights[2:9, 0], weights[11, 0] = 0.5, 0.8
    assert strongest_keys(weights, weights > 0, names(None, 13), names(None, 13)) == (
        "Strongest key of each query, 6 of 13 (none is stronger): 2 → 0 (0.50), "
        "3 → 0 (0.50), 4 → 0 (0.50), 5 → 0 (0.50), 6 → 0 (0.50), 11 → 0 (0.80)."
    )


def test_a_token_that_stands_twice_is_numbered():
    assert names(["the", "cat", "the"], 3) == ["the₀", "cat", "the₂"]
    assert names(["a"] * 11, 11)[10] == "a₁₀"
    assert names(["", " "], 2) == ["∅", "␣"]
    assert names(None, 2) == names(False, 2) == ["0", "1"]


def test_numbers_do_not_depend_on_the_last_bit():
    edges = torch.tensor([0.125, 0.375, 0.625, 0.005, 0.995, 1 / 3, 2.345, 0.0, 1.0])
    for edge in (edges, -edges):
        assert printed(edge - 2e-7).equal(printed(edge + 2e-7))
    assert printed(torch.tensor([0.125, -0.125, 0.004])).tolist() == [0.13, -0.13, 0]
    assert f"{printed(torch.tensor(-0.001)).item():.2f}" == "0.00"


@pytest.mark.parametrize("caption", [keys_of, lambda matrix: pairs_of(matrix[None])])
def test_captions_do_not_depend_on_the_last_bit(caption):
    noise = 1e-7 * torch.randn(20, 3, 3, generator=torch.Generator().manual_seed(0))
    for matrix in (THIRDS, torch.eye(3), torch.zeros(3, 3), THIRDS * 0.375):
        assert {caption(matrix + n) for n in noise} == {caption(matrix)}


def test_every_letter_of_a_caption_stands_for_itself():
    text = r"<b> & &amp; $x$ \(y\) \[z\] $$w$$ \begin{a} 'q' → 1"
    written = as_html(text)
    assert html.unescape(re.sub("<[^>]*>", "", written)).replace("\xa0", " ") == text
    assert "'q'&nbsp;→ 1" in written  # no line begins with an arrow
    assert "<b>" not in written and "&amp;amp;" in written
    # no piece of text holds what MathJax looks for
    pieces = re.split("<[^>]*>", written)
    assert not any(re.search(r"\$.|\\.", piece) for piece in pieces)
    assert "color" not in written and "background" not in written  # the page's own


def overview(*heads, size=3, mask=None, **options):
    """Layers of so many heads; each head reads a key of its own, with weight 1."""
    number, layers = 0, []
    for count in heads:
        layer = torch.zeros(count, size, size)
        for head in range(count):
            layer[head, :, number % size] = 1.0
            number += 1
        layers.append(layer)
    return layers, plot_heads(layers, mask=mask, **options)


def cells(ax):
    return ax.collections[0].get_array().reshape(-1, int(ax.get_xlim()[1]))


def test_an_overview_has_a_row_for_each_layer_and_a_column_for_each_head():
    layers, figure = overview(2, 3)
    panels = [ax for ax in figure.axes if ax.axison]
    grid = [(p.rowspan.start, p.colspan.start) for p in map(_place, panels)]
    assert grid == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    for ax, (layer, head) in zip(panels, grid):
        assert (cells(ax).data == layers[layer][head].numpy()).all()
    assert [ax.get_title() for ax in panels] == ["head 0", "head 1", "", "", ""]
    assert [ax.get_ylabel() for ax in panels] == ["layer 0", "", "layer 1", "", ""]


def _place(ax):
    return ax.get_subplotspec()


def test_an_overview_puts_the_first_query_on_top_and_the_first_key_left():
    layer = torch.zeros(1, 2, 4)
    layer[0, 0, 3] = layer[0, 1, 0] = 1.0  # the first query reads the last key
    ax = plot_heads([layer], ["a", "b"], keys=list("wxyz")).axes[0]
    assert cells(ax).tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    assert ax.get_ylim() == (2, 0) and ax.get_xlim() == (0, 4)  # downwards, rightwards
    assert words(ax.yaxis) == ["a", "b"] and words(ax.xaxis) == list("wxyz")
    assert ax.figure.get_supxlabel() == "key"
    assert ax.figure.get_supylabel() == "query"


def test_an_overview_leaves_out_what_may_not_be_read():
    _, figure = overview(2, 2, mask=CAUSAL)
    for ax in figure.axes:
        assert (cells(ax).mask == ~CAUSAL.numpy()).all()
        assert any(patch.get_hatch() for patch in ax.patches)
    _, figure = overview(2, 2)
    assert not any(ax.patches for ax in figure.axes)


def test_only_the_outer_panels_of_an_overview_are_labelled():
    """Also below a layer with fewer heads than the layer above it."""
    _, figure = overview(3, 2, tokens=list("abc"))
    labelled = [bool(words(ax.xaxis)) for ax in figure.axes if ax.axison]
    assert labelled == [False, False, True, True, True]
    labelled = [bool(words(ax.yaxis)) for ax in figure.axes if ax.axison]
    assert labelled == [True, False, False, True, False]
    _, narrow = overview(12, size=12, tokens=["word"] * 12)
    assert words(narrow.axes[0].xaxis)[0] == "0"  # twelve words do not fit


def test_an_overview_says_the_strongest_pair_of_each_head(shown):
    layers, figure = overview(1, 2, mask=CAUSAL, tokens=list("abc"))
    show(figure)
    show(plot_heads(layers, titles=["x", "y", "z"]))
    assert [caption["text/plain"] for caption in shown[1::2]] == [
        "Strongest pair of each head: layer 0, head 0: b → a and c → a (1.00), "
        "layer 1, head 0: b → b and c → b (1.00), layer 1, head 1: c → c (1.00).",
        "Strongest pair of each head: x: 0 → 0 and 1 → 0 and 2 → 0 (1.00), "
        "y: 0 → 1 and 1 → 1 and 2 → 1 (1.00), z: 0 → 2 and 1 → 2 and 2 → 2 (1.00).",
    ]


def test_all_heads_of_an_overview_share_one_scale():
    figure = plot_heads([torch.full((2, 3, 3), 0.1), THIRDS.expand(2, 3, 3)])
    scales = {ax.collections[0].get_clim() for ax in figure.axes}
    assert scales == {(0.0, 1.0)}


def test_one_layer_in_a_list_is_drawn_like_several():
    for layer in (torch.zeros(2, 3, 3), torch.zeros(1, 2, 3, 3)):
        assert plot_heads([layer]).axes[0].get_ylabel() == "layer 0"
    assert plot_heads(torch.zeros(2, 3, 3)).axes[0].get_title() == "head 0"


@pytest.mark.parametrize(
    ("says", "layers"),
    [
        ("need_weights=True", [None, None]),
        ("one sentence", [torch.zeros(2, 2, 3, 3)]),
        ("different lengths", [torch.zeros(2, 3, 3), torch.zeros(2, 3, 4)]),
        ("not a softmax", [torch.zeros(2, 3, 3), torch.full((1, 3, 3), 1.5)]),
        ("no weights", []),
    ],
)
def test_layers_that_cannot_be_drawn_are_refused(says, layers):
    with pytest.raises(ValueError, match=says):
        plot_heads(layers)
    assert plt.get_fignums() == []


def test_large_overviews_are_saved_as_pictures_with_letters():
    saved = io.BytesIO()
    figure = plot_heads([torch.full((12, 64, 64), 1 / 64)] * 2)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(saved, format="svg")
    assert len(saved.getvalue()) < 1_000_000
    assert b"head 11" in saved.getvalue() and b"<image" in saved.getvalue()


@pytest.mark.parametrize(("form", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_can_be_saved_for_print(form, start, shown):
    tokens = [r"$\foo$", "</script>", "a & b"]
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none"}):
        warnings.simplefilter("error")
        for figure in (
            heatmap(THIRDS, queries=tokens, keys=tokens, mask=CAUSAL).figure,
            plot_heads(THIRDS.expand(2, 3, 3), tokens, mask=CAUSAL),
            plot_heads([THIRDS.expand(2, 3, 3)] * 2, tokens, titles=tokens + ["$$"]),
        ):
            show(figure)  # closed, and still there to be saved
            saved = io.BytesIO()
            figure.savefig(saved, format=form)
            assert saved.getvalue().startswith(start)
            if form == "svg":
                assert all(html.escape(t).encode() in saved.getvalue() for t in tokens)


@pytest.mark.filterwarnings("ignore:Glyph")  # a font without emoji shows a box
def test_hostile_tokens_are_letters_in_files_for_print_too():
    size = len(HOSTILE)
    for figure in (
        plot_heads([torch.eye(size)[None]], HOSTILE, titles=["$</svg>$"]),
        plot_heads(torch.eye(size)[None], HOSTILE, titles=["$</svg>$"]),
    ):
        for form in ("svg", "pdf"):
            saved = io.BytesIO()
            with matplotlib.rc_context({"svg.fonttype": "none"}):
                figure.savefig(saved, format=form)
            assert saved.tell() > 1000
            if form == "svg":
                drawing = ElementTree.fromstring(saved.getvalue())
                texts = [element.text for element in drawing.iter(SVG_TEXT)]
                assert texts.count("$</svg>$") == 1
                for token in map(visible, HOSTILE):
                    assert texts.count(token) >= 2, token
