"""Every token is seen, told from the others, and turns no sentence round."""

import matplotlib.pyplot as plt
import pytest
import torch

from utils import plotting, words
from utils.plotting import heatmap, plot_heads
from utils.tests.test_plotting import house_style  # noqa: F401, a fixture
from utils.words import drawable, isolated, legible, names, visible

HEBREW, ARABIC, THAI, CHINESE = "שלום", "سلام", "ไทย", "中文"
INVISIBLE = "\t\n\r\x00\x1b\x7f\x85\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u180b\u180e"
INVISIBLE += "\u2003\u200b\u200d\u2028\u202e\u2060\u2066\u2800\u3000\u3164\ufeff\uffa0"
INVISIBLE += "\ud800\udfff\ue000\U000e0001"


@pytest.mark.parametrize(
    ("token", "seen"),
    [
        ("", "∅"), (" ", "␣"), ("   ", "␣␣␣"), ("  a", "␣␣a"), ("a ", "a␣"),
        ("a  b", "a␣␣b"), ("\n ", "⏎␣"), (" \n", "␣⏎"), ("\n  if", "⏎␣␣if"),
        ("\t\t", "⇥⇥"), (" \xa0", r"␣\xa0"), ("\u3000", r"\u3000"), ("\r\n", r"\r⏎"),
        ("a\u200bb", r"a\u200bb"), ("\ufeffa", r"\ufeffa"), ("\xad", r"\xad"),
        ("\ud83d", r"\ud83d"), ("\x00", r"\x00"), ("\u202eevil", r"\u202eevil"),
        ("\u0301", "◌\u0301"), (" \u0301", " ◌\u0301"),
        ("\u200b\u0301", "\\u200b◌\u0301"), ("  \u0e31", "␣␣◌\u0e31"),
        ("\u0301\u0302", "◌\u0301\u0302"), ("\u0940", "◌\u0940"),
        (" " * 20, "␣" * 15 + "…"),
    ],
)  # fmt: skip
def test_blanks_and_lone_marks_are_seen(token, seen):
    assert visible(token) == seen


ORDINARY = [" cat", "the cat", " .", *"cat ##ing Ġcat ▁ ▁the ½ e\u0301 🙂".split()]
ORDINARY += [HEBREW, THAI, CHINESE, "हिन्दी", "<|endoftext|>", "…", "$x$"]


@pytest.mark.parametrize("token", ORDINARY)
def test_ordinary_tokens_stay_as_they_are(token):
    assert visible(token) == token == legible(token)


@pytest.mark.parametrize("letter", INVISIBLE)
def test_no_invisible_letter_is_left(letter):
    for token in (letter, letter * 2, f"a{letter}", f"{letter}a", f" {letter}"):
        assert visible(token).isprintable() and letter not in visible(token)
        assert visible(token).strip("␣\\").strip()


def test_tokens_that_look_alike_are_numbered():
    assert names([" the", "the", " cat"]) == [" the₀", "the₁", " cat"]
    assert names(["  ", "␣␣"]) == ["␣␣₀", "␣␣₁"]
    assert names(["a"] * 11)[10] == "a₁₀"


@pytest.mark.parametrize("word", [HEBREW, ARABIC, f"a {HEBREW} 1", "٣"])
def test_only_what_runs_from_the_right_is_isolated(word):
    assert isolated(word) == f"\u2068{word}\u2069"
    for other in ORDINARY:
        if other != HEBREW:
            assert isolated(other) == other


@pytest.mark.parametrize("draw", [
    lambda w, t: heatmap(w, queries=t, keys=t, title=f"$x$ {THAI}").figure,
    lambda w, t: plot_heads(w[None], t, titles=[f"$x$ {THAI}"]),
])  # fmt: skip
def test_letters_that_no_font_has_are_no_boxes(draw):
    tokens = ["a", THAI, CHINESE, "Ġ中", "🙂", "हि", "▁", "  ", "\u0301", "½", "$x$"]
    with pytest.warns() as warned:
        for _ in range(2):
            figure = draw(torch.eye(11), tokens)
            figure.canvas.draw()
    title, *labels = figure.axes[0].title, *figure.axes[0].get_yticklabels()
    written = "a #1 #2 #3 #4 #5 ▁ ␣␣ ◌\u0301 ½ $x$".split()
    assert [label.get_text() for label in labels] == written
    assert title.get_text() == r"$x$ \u0e44\u0e17\u0e22"
    assert not any(label.get_parse_math() for label in (title, *labels))
    (once,) = warned  # matplotlib has nothing to add: "Glyph missing"
    assert "#3 stands for the token at position 3" in str(once.message)


def test_positions_and_ascii_ask_no_font(monkeypatch):
    monkeypatch.setattr(words, "findfont", None)
    heatmap(torch.eye(2), queries=["a", "b"], title="a\nb")
    heatmap(torch.eye(30), queries=[THAI] * 30)  # too many: positions stand for them


def test_the_fonts_are_those_of_the_style():
    assert drawable("ℝ ½\n") == "ℝ ½\n"
    plt.rcParams["font.family"] = ["cmr10"]
    with pytest.warns(UserWarning, match="a font that has them"):
        assert drawable("␣a\n") == "\\u2423a\n"
    plotting.style()
    plt.rcParams["font.sans-serif"] = ["cmr10"]  # another first font, such as Arial
    assert drawable("␣⏎⇥∅◌₀…▁") == "␣⏎⇥∅◌₀…▁"


def test_no_word_is_drawn_backwards(monkeypatch):
    """Matplotlib before 3.11 draws the first letter of Hebrew on the left."""
    monkeypatch.setattr(words, "_say_what_is_lacking", lambda: None)
    for turns, label in ((True, HEBREW), (False, "#1")):
        monkeypatch.setattr(words, "TURNS", turns)
        drawn = [drawable(HEBREW, "#1"), drawable("é", "#2")]
        assert drawn == [label, "é"]
