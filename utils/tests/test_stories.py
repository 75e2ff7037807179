"""Tests of the stories: each text can be written in one way, and errors are found."""

import math
import random

import pytest
import torch

from utils.data import SPLIT
from utils.stories import (
    VOCAB,
    Story,
    decode,
    encode,
    first_error,
    is_right,
    next_tokens,
    surprise,
    write_stories,
)

STORIES = write_stories(200, seed=7)
TOLD = (
    "There was a girl named Kim. She had a red kite. She had a friend, a boy named "
    "Lou. She went to the yard. Lou came to the yard, too. Kim gave the red kite to "
    'Lou. "Thank you!" said Lou. He hid the red kite in a bag. Kim looked in the bag '
    "and found the red kite. At night, Kim had the red kite."
)


def test_a_text_can_be_written_in_one_way_only():
    """At each point no sentence is the beginning of another; probabilities add to 1."""
    rng = random.Random(0)
    for _ in range(100):
        who = {"Kim": "girl", "Lou": rng.choice(["girl", "boy"])}
        story, what = Story(who, "red kite"), None
        while what != ():
            ways = story.next()
            told = [sentence for _, sentence, _ in ways]
            assert sum(p for p, *_ in ways) == pytest.approx(1)
            assert not any(a != b and b.startswith(a) for a in told for b in told)
            assert len(set(told)) == len(told)
            _, _, what = rng.choice(ways)
            if what:
                story.happen(*what)


def test_the_surprise_is_the_product_of_the_choices():
    """Counted by hand: who, what and how at the start; then each sentence."""
    start = 6 * 6 * 2 * 2 * (12 * 12) * 2
    go = 2 * 8 * 2  # one of two children, eight places, two wordings
    come = 3 * 2  # or the girl hides it, or loses it
    give = 5 * 2  # or hides it, loses it, plays; or the boy asks
    hide = 3 * 5 * 2  # or loses it, or plays; five boxes
    ways = start * go * come * give * hide * 2 * 2  # open, and the end: two wordings
    assert surprise(TOLD) == pytest.approx(math.log(ways))


def test_stories_are_right_and_none_is_written_twice():
    assert len(set(STORIES)) == 200 and write_stories(200, seed=7) == STORIES
    assert all(map(is_right, STORIES))


@pytest.mark.parametrize(
    "old, new, kind",
    [
        ("hid the red", "hid the blue", "colour"),
        ("hid the red kite", "hid the red ball", "thing"),
        ("She went", "He went", "pronoun"),
        ("He hid", "She hid", "pronoun"),
        ("Kim looked", "Max looked", "name"),
        ("came to the yard, too", "followed Max to the yard", "name"),
        ("Lou came to the yard", "Lou came to the barn", "place"),
        ("She went to the yard. Lou came to the yard, too. ", "", "name"),
        ("Kim gave the red kite to Lou.", "Lou gave the red kite to Kim.", "name"),
        ("looked in the bag", "looked in the box", "place"),
        ("At night, Kim", "At night, Lou", "night"),
        ("Kim gave the", "Kim the gave", "other"),
        ("At night", "There was a cat. At night", "other"),
        ("There was a girl named Kim.", "", "start"),
        ("She had a red", "He had a red", "start"),
        ("At night, Kim had", "At night,", "night"),
        ("too. Kim gave", "Kim. Kim gave", "name"),
    ],
)
def test_an_error_is_found_and_its_kind(old, new, kind):
    wrong = TOLD.replace(old, new, 1)
    assert wrong != TOLD and is_right(TOLD) and not is_right(wrong)
    assert first_error(TOLD) is None and first_error(wrong) == kind
    later = wrong.replace("At night, Kim", "At night, Max")  # only the first one counts
    assert first_error(later) == kind


NO_START = ["", "Kim", "At night, Kim had the red kite.", "\n."]
NO_END = [TOLD.split(" At night")[0], TOLD[:-1], f"{TOLD} {TOLD}"]  # or not there


@pytest.mark.parametrize("text", NO_START + NO_END)
def test_what_is_no_story_is_not_right(text):
    kind = "start" if text in NO_START else "other"
    assert not is_right(text) and first_error(text) == kind


def test_ids_are_those_of_the_text_and_padding_does_not_count():
    rows = encode(STORIES)
    assert [decode(row) for row in rows] == STORIES
    used = {VOCAB[i] for i in encode(write_stories(2000, seed=3)).unique()}
    assert used == set(VOCAB)  # no token too many
    inputs, targets = next_tokens(rows)
    assert torch.equal(inputs, rows[:, :-1])
    assert torch.equal(targets[targets >= 0], rows[:, 1:][rows[:, 1:] > 0])
    tokens = [len(SPLIT["words"](text)) for text in STORIES]
    assert (targets >= 0).sum(dim=1).tolist() == [n + 1 for n in tokens]


def test_a_token_that_no_story_has_is_refused():
    with pytest.raises(ValueError, match="Anna"):
        encode(["There was a girl named Anna."])
    assert encode([]).shape == (0, 0)
