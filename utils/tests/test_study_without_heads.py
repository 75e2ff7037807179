"""The stored study of lesson 09 on heads taken away: complete, and able to disagree."""

import copy
import json

import pytest
from studies import script_of


@pytest.fixture(scope="module")
def study():
    """Return the script as a module."""
    return script_of("without_heads")


@pytest.fixture(scope="module")
def stored(study):
    return json.loads(study.STORED.read_text(encoding="utf-8"))


def test_every_head_is_taken_away_once(study, stored):
    assert [row["gone"] for row in stored["runs"]] == [[name] for name in study.NAMES]
    assert len(study.NAMES) == len(set(study.NAMES)) == 72
    assert (stored["sentences"], stored["nearest"]) == (203, study.NEAREST)
    assert stored["model"] == {"revision": study.REVISION, "sha256": study.SHA256}


def test_the_sets_are_those_of_the_script(study, stored):
    best = stored["best"]["gone"]
    assert best == study.best_of_relations()
    drawn = study.draws(best, stored["resting"])
    assert drawn == {
        kind: [row["gone"] for row in rows] for kind, rows in stored["sets"].items()
    }
    for kind, sets in drawn.items():
        assert len({tuple(gone) for gone in sets}) == len(sets) == study.DRAWS
        assert all(len(set(gone)) == len(best) for gone in sets), kind
    layers = {layer: len(heads) for layer, heads in study.grouped(best).items()}
    for gone in drawn["same layers"]:
        assert {n: len(heads) for n, heads in study.grouped(gone).items()} == layers
    for gone in drawn["others"] + drawn["others, layers 0-4"]:
        assert not set(gone) & {*best, *stored["resting"]}
    assert all(5 not in study.grouped(gone) for gone in drawn["others, layers 0-4"])


def test_a_row_that_differs_is_named(study, stored):
    again = [copy.deepcopy(stored["best"]), copy.deepcopy(stored["runs"][0])]
    assert study.misfits(stored, again) == []
    again[1]["kept"] -= 0.011
    (said,) = study.misfits(stored, again)
    assert said.startswith("without 0.0: kept ")
    again[0]["change"] += 0.0011
    assert len(study.misfits(stored, again)) == 2


def test_nothing_taken_away_changes_nothing(study):
    """And whoever is taken away is back afterwards."""
    sentences = study.Sentences()
    assert sentences.without([]) == {"gone": [], "kept": 1.0, "change": 0.0}
    assert sentences.without(["5.10"])["kept"] < 0.9
    assert sentences.without([])["kept"] == 1.0
