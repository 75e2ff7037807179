"""Captions name the strongest, decide nothing that a CPU decides, show every letter."""

import html
import re

import pytest
import torch

from utils.captions import (
    as_html,
    caption_of,
    extremes,
    names,
    printed,
    strongest_keys,
    strongest_pairs,
)

ALL = torch.ones(3, 3, dtype=torch.bool)
CAUSAL = ALL.tril()
WORDS = ["the", "cat", "sat"]
THIRDS = torch.full((3, 3), 1 / 3)
FUTURE = torch.tensor([[0.1, 0.9, 0.9], [0.3, 0.2, 0.9], [0.1, 0.2, 0.3]])
COLUMNS = torch.ones(3, 1)


def described(matrix, mask=None):
    mask = torch.ones_like(matrix, dtype=torch.bool) if mask is None else mask
    return strongest_keys(matrix, mask, *(names(None, size) for size in matrix.shape))


def keys_of(matrix, mask=ALL):
    description = strongest_keys(matrix, mask, WORDS, WORDS)
    return caption_of([("", description)])


def pairs_of(weights, mask=ALL):
    heads = [f"head {head}" for head in range(len(weights))]
    description = strongest_pairs(weights, mask, WORDS, WORDS, heads)
    return caption_of([("", description)])


def extremes_of(matrix, mask=ALL):
    return caption_of([("", extremes(matrix, mask, WORDS, WORDS))])


@pytest.mark.parametrize(
    ("matrix", "mask", "says"),
    [
        (FUTURE, CAUSAL, "the → the (0.10), cat → the (0.30), sat → sat (0.30)"),
        (FUTURE, ~ALL, "all 3 queries → nothing"),
        (FUTURE * 0, ALL, "all 3 queries → nothing"),
        (THIRDS, ALL, "all 3 queries → all 3 keys alike (0.33)"),
        (
            THIRDS,
            CAUSAL,
            "the → the (0.33), cat → all 2 keys alike (0.33), "
            "sat → all 3 keys alike (0.33)",
        ),
        (COLUMNS * torch.tensor([0.1, 0.8, 0.1]), ALL, "all 3 queries → cat (0.80)"),
        (
            COLUMNS * torch.tensor([0.401, 0.2, 0.399]),
            ALL,
            "all 3 queries → the and sat (0.40)",
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
        (THIRDS.expand(2, 3, 3), ALL, "all 2 heads: all 9 pairs alike (0.33)"),
        (
            torch.eye(3).expand(1, 3, 3),
            torch.eye(3) > 0,
            "head 0: all 3 pairs alike (1.00)",
        ),
        (
            torch.stack([FUTURE + torch.eye(3), FUTURE * 0]),
            CAUSAL,
            "head 0: sat → sat (1.30), head 1: nothing",
        ),
    ],
)
def test_the_strongest_pair_of_each_head(weights, mask, says):
    """The first query of a causal head reads itself alone: it is not the strongest."""
    assert pairs_of(weights, mask) == f"Strongest pair of each head: {says}."


def test_the_extremes_of_a_signed_matrix():
    matrix = torch.tensor([[-2.0, 0.5, 0.0], [0.0, 1.5, 9.0], [0.0, 0.0, 0.0]])
    begin = "Largest and smallest entry: "
    assert extremes_of(matrix) == begin + "cat → sat (9.00), the → the (-2.00)."
    assert extremes_of(matrix, CAUSAL) == begin + "cat → cat (1.50), the → the (-2.00)."
    assert extremes_of(0 * matrix) == begin + "all 9 entries alike (0.00)."
    assert extremes_of(matrix, ~ALL) == begin + "none is readable."
    hidden = matrix.where(CAUSAL, 1.5)  # what is hidden is not counted
    assert extremes_of(hidden, CAUSAL) == extremes_of(matrix, CAUSAL)
    matrix[0] = -torch.inf
    assert extremes_of(matrix, CAUSAL & (matrix > -9)).endswith(
        "4 entries alike (0.00)."
    )


def test_many_alike_are_counted():
    rows = torch.tensor([[0.2] * 3 + [0.1] * 4, [0.2] * 4 + [0.1] * 3])
    findings = [fact.finding for fact in described(rows).facts]
    assert findings == [" → 0 and 1 and 2 (0.20)", " → 4 keys alike (0.20)"]


def test_a_word_that_stands_twice_is_numbered():
    assert names(["the", "cat", "the"], 3) == ["the₀", "cat", "the₂"]
    assert names(["a"] * 11, 11)[10] == "a₁₀"
    assert names(["", " "], 2) == ["∅", "␣"]
    assert names(None, 2) == names(False, 2) == ["0", "1"]


def test_of_many_queries_some_of_the_sharpest_are_named():
    twelve, weights = torch.eye(12) * 0.9, torch.full((13, 13), 0.01)
    assert caption_of([("", described(twelve))]).count("→") == 12
    weights[2:9, 0] = 0.5
    weights[11, 0] = 0.8
    assert caption_of([("", described(weights))]) == (
        "Strongest key of each query, 6 of 13 queries (none is sharper): 2 → 0 (0.50), "
        "3 → 0 (0.50), 4 → 0 (0.50), 5 → 0 (0.50), 6 → 0 (0.50), 11 → 0 (0.80)."
    )


def test_panels_share_the_room_of_a_caption():
    description = described(torch.tensor([[0.3, 0.4], [0.7, 0.1], [0.2, 0.6]]))
    three = caption_of([("a\nb", description), ("", description), ("c", description)])
    assert three == (
        "Strongest key of each query – "
        "a b: 0 → 1 (0.40), 1 → 0 (0.70), 2 → 1 (0.60); "
        "panel 2: 0 → 1 (0.40), 1 → 0 (0.70), 2 → 1 (0.60); "
        "c: 0 → 1 (0.40), 1 → 0 (0.70), 2 → 1 (0.60)."
    )
    eight = caption_of([(f"{panel}", description) for panel in range(8)])
    begin = "Strongest key of each query, 1 of 3 queries (none is sharper) – 0: 1 → 0 "
    assert eight.startswith(begin) and eight.count("→") == 8
    signed = extremes(torch.eye(2), ALL[:2, :2], WORDS[:2], WORDS[:2])
    assert caption_of([("", signed)] * 8).count("(0.00)") == 8  # both ends of each


def test_numbers_do_not_depend_on_the_last_bit():
    edges = torch.tensor([0.125, 0.375, 0.625, 0.005, 0.995, 1 / 3, 2.345, 0.0, 1.0])
    for edge in (edges, -edges):
        assert printed(edge - 2e-7).equal(printed(edge + 2e-7))
    assert printed(torch.tensor([0.125, -0.125, 0.004])).tolist() == [0.13, -0.13, 0]
    assert f"{printed(torch.tensor(-0.001)).item():.2f}" == "0.00"


@pytest.mark.parametrize("caption", [keys_of, extremes_of, lambda m: pairs_of(m[None])])
def test_captions_do_not_depend_on_the_last_bit(caption):
    noise = 1e-7 * torch.randn(20, 3, 3, generator=torch.Generator().manual_seed(0))
    for matrix in (THIRDS, torch.eye(3), torch.zeros(3, 3), THIRDS * 0.375):
        assert {caption(matrix + n) for n in noise} == {caption(matrix)}


def test_every_letter_stands_for_itself():
    text = r"<b> & &amp; $x$ \(y\) \[z\] $$w$$ \begin{a} 'q' → 1"
    written = as_html(text)
    shown = html.unescape(re.sub("<[^>]*>", "", written)).replace("\xa0", " ")
    assert shown == text
    assert "'q'&nbsp;→ 1" in written  # no line begins with an arrow
    assert "<b>" not in written and "&amp;amp;" in written
    # in no piece of text is there what MathJax looks for
    assert not any(
        re.search(r"\$.|\\.", piece) for piece in re.split("<[^>]*>", written)
    )


def test_a_caption_has_the_colour_of_the_page():
    assert "color" not in as_html("a") and "background" not in as_html("a")
