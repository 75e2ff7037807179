"""Every diagram is there as SVG and PNG, says what it shows, and can be drawn again."""

import json
from xml.etree import ElementTree

import pytest

from assets.diagrams.__main__ import main
from assets.diagrams.drawing import save
from assets.diagrams.transformer import transformer
from utils.plotting import DIAGRAMS

CAPTIONS = json.loads((DIAGRAMS / "diagrams.json").read_text(encoding="utf-8"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The folder of diagrams drawn now."""
    folder = tmp_path_factory.mktemp("diagrams")
    main(folder)
    return folder


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_diagram_has_a_small_png_and_an_svg_that_says_what_it_shows(name):
    svg = ElementTree.parse(DIAGRAMS / f"{name}.svg").getroot()
    assert svg.findtext(f"{SVG}desc") == CAPTIONS[name]
    assert svg.findtext(f"{SVG}title") and svg.get("role") == "img"
    assert sum(map(str.isalpha, CAPTIONS[name])) >= 40
    assert any(map(str.isdigit, CAPTIONS[name]))
    assert 1000 < (DIAGRAMS / f"{name}.png").stat().st_size < 80_000


def test_drawn_again_they_are_the_same(drawn):
    stored = {p.name for p in DIAGRAMS.iterdir() if p.suffix in {".svg", ".png"}}
    again = {p.name for p in drawn.iterdir()} - {"diagrams.json"}
    assert again == stored == {f"{n}.{end}" for n in CAPTIONS for end in ("svg", "png")}
    assert json.loads((drawn / "diagrams.json").read_text("utf-8")) == CAPTIONS


def test_drawing_is_deterministic(drawn, tmp_path):
    save(transformer(1), tmp_path, "transformer_01", CAPTIONS["transformer_01"])
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (drawn / path.name).read_bytes(), path.name
