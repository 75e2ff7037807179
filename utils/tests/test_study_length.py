"""The stored study of lesson 05: complete, of this script, and able to disagree."""

import copy
import json

import pytest
from studies import script_of


@pytest.fixture(scope="module")
def length():
    """Return the script as a module."""
    return script_of("length")


@pytest.fixture(scope="module")
def stored(length):
    return json.loads(length.STORED.read_text(encoding="utf-8"))


def test_every_run_is_stored_once(length, stored):
    assert stored["seeds"] == list(range(8)) == length.SEEDS
    assert stored["versions"].keys() >= {"python", "torch"}
    runs = {
        (run["task"], run["scheme"], run["tested"], run["seed"]): run
        for run in stored["runs"]
    }
    assert len(runs) == len(stored["runs"])
    for task in length.TASKS:
        of_task = dict(length.SCHEMES)
        of_task |= length.VARIANTS if task == "characters" else {}
        for name, scheme in of_task.items():
            size = length.SETTINGS["length"][task]
            changed = length.changed_after_training(scheme(size), size)
            for tested in ("as trained", *changed):
                for seed in length.SEEDS:
                    run = runs.pop((task, name, tested, seed))
                    assert len(run["parts"]) == length.PARTS
    assert not runs


def test_every_seed_is_a_training_of_its_own(stored):
    runs = {}
    for run in stored["runs"]:
        if run["tested"] == "as trained" and run["task"] != "first":  # all at 1.00
            found = runs.setdefault((run["task"], run["scheme"]), set())
            found.add((run["training_loss"], *run["parts"]))
    assert len(runs) == 16 and all(len(found) == 8 for found in runs.values())


def test_the_check_can_fail(length, stored):
    task, scheme, seed = length.CHECKED
    (own,) = (
        run["parts"]
        for run in stored["runs"]
        if (run["task"], run["scheme"], run["tested"], run["seed"])
        == (task, scheme, "as trained", seed)
    )
    assert length.misfits(stored, own) == []
    for other in ("learned", "sinusoidal", "none", "rotary", "ALiBi"):
        parts = next(
            run["parts"]
            for run in stored["runs"]
            if (run["task"], run["scheme"]) == (task, other)
        )
        assert length.misfits(stored, parts), other
    changed = copy.deepcopy(stored)
    changed["settings"]["steps"] += 1
    assert "settings" in length.misfits(changed, own)[0]
    assert "0 runs" in length.misfits({**stored, "runs": []}, own)[0]
