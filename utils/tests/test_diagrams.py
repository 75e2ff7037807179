"""Every diagram is there as SVG and PNG, says what it shows, and can be drawn again."""

import importlib
import json
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch.nn import functional as F

from assets.diagrams import __main__ as diagrams
from assets.diagrams.debugging import CAUSAL, LATER
from assets.diagrams.drawing import save
from assets.diagrams.lesson_01 import OF_IT, SENTENCE
from assets.diagrams.transformer import transformer
from utils.plotting import DIAGRAMS
from utils.pretrained import load_minilm
from utils.recording import record_attention

CAPTIONS = json.loads((DIAGRAMS / "diagrams.json").read_text(encoding="utf-8"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_diagram_has_a_small_png_and_an_svg_that_says_what_it_shows(name):
    svg = ElementTree.parse(DIAGRAMS / f"{name}.svg").getroot()
    assert svg.findtext(f"{SVG}desc") == CAPTIONS[name]
    assert svg.findtext(f"{SVG}title") and svg.get("role") == "img"
    assert sum(map(str.isalpha, CAPTIONS[name])) >= 40
    assert any(map(str.isdigit, CAPTIONS[name]))
    assert not {*CAPTIONS[name]} & {*"[]*$`<"}  # it stands in Markdown's ![]
    assert 1000 < (DIAGRAMS / f"{name}.png").stat().st_size < 80_000


def test_each_can_be_drawn_again_and_no_other_is_stored(monkeypatch):
    """Drawn, not saved, which takes seconds each."""
    names = []

    def keep(figure, folder, name, alt):
        names.append(name)
        texts = [text for text in figure.findobj(Text) if text.get_text()]
        assert min(text.get_fontsize() for text in texts) >= 8, name

    monkeypatch.setattr(diagrams, "save", keep)
    diagrams.main()
    plt.close("all")
    stored = {p.name for p in DIAGRAMS.iterdir() if p.suffix in {".svg", ".png"}}
    assert stored == {f"{name}.{end}" for name in names for end in ("svg", "png")}


@pytest.mark.parametrize("script", sorted(DIAGRAMS.parent.glob("draw_*.py")))
def test_what_the_script_of_another_picture_imports_is_there(script):
    importlib.import_module(f"assets.{script.stem}")


def test_drawing_is_deterministic(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        transformer(1)
        save(plt.gcf(), tmp_path / name, "transformer_01", "An alt text.")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


@pytest.mark.parametrize("drawn, shown", [(CAUSAL, CAUSAL), (LATER, ~CAUSAL)])
def test_who_sees_whom_is_what_pytorch_does(drawn, shown):
    """The fault of lesson 12 takes True, which shows, for hiding."""
    x = torch.randn(8, 16, dtype=torch.float64)

    def attended(x):
        q, k, v = (x.roll(shift, dims=-1)[None] for shift in range(3))
        return F.scaled_dot_product_attention(q, k, v, torch.tensor(shown))[0]

    sees = np.zeros((8, 8), dtype=bool)
    for token in range(8):
        changed = x.clone()
        changed[token] = torch.randn(16)
        sees[:, token] = ((attended(changed) - attended(x)).abs() > 1e-9).any(-1)
    assert (sees == drawn).all()


def test_the_arcs_are_those_of_the_model():
    minilm, words = load_minilm(), SENTENCE.split()
    ids = torch.tensor([minilm.tokenizer.convert_tokens_to_ids(words)])
    weights = record_attention(minilm.model, ids)[3][0, 1, words.index("it")]
    torch.testing.assert_close(torch.tensor(OF_IT), weights, atol=0.0051, rtol=0)
