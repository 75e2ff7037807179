"""The stored study of lesson 08: complete, of this script, and able to disagree."""

import copy
import json

import pytest
import torch
from studies import script_of
from torch import nn


@pytest.fixture(scope="module")
def study():
    """Return the script as a module."""
    return script_of("specialisation")


@pytest.fixture(scope="module")
def stored(study):
    return json.loads(study.STORED.read_text(encoding="utf-8"))


def test_every_run_is_stored_once(study, stored):
    assert stored["seeds"] == list(range(16)) == study.SEEDS
    assert stored["versions"].keys() >= {"python", "torch"}
    runs = {(run["kind"], run["seed"]): run for run in stored["runs"]}
    assert len(runs) == len(stored["runs"]) == 64
    for name, kind in study.KINDS.items():
        for seed in study.SEEDS:
            run = runs[name, seed]
            assert len(run["without"]) == 2 ** (4 * kind.layers)
            assert len(run["mean instead"]) == 4 * kind.layers
            assert len(run["curve"]) == 1 + study.SETTINGS["steps"] // 20
            for scores in run["scores"].values():
                assert scores.keys() == study.METRICS.keys() == stored["even"].keys()


def test_importances_do_not_tie(stored):
    for run in stored["runs"]:
        found = sum(run["importance"], [])
        assert len(set(found)) == len(found), (run["kind"], run["seed"])


def test_paths_are_hidden_in_the_model_as_it_is(study):
    torch.manual_seed(0)
    model, texts = study.KINDS["two layers"].make().eval(), study.unseen((9, 9), 64)
    for weight in model.parameters():
        nn.init.normal_(weight)  # heads that say much,
    nn.init.normal_(model.blocks[1].attention.out_proj.weight, std=0.1)  # not all
    whole = round(study.accuracy(model, texts), 4)
    assert study.hidden_from(model, "nothing", texts) == [whole] * study.HEADS
    keys, values = (study.hidden_from(model, x, texts) for x in ("keys", "values"))
    assert len({whole, *keys}) > 2 and len({whole, *values}) > 2 and keys != values


def test_further_seeds_are_others(study, stored):
    further = [run["seed"] for run in stored["further"]]
    assert further == study.FURTHER == list(range(16, 32))
    assert all(run["accuracy"] > 0.99 for run in stored["further"])


def test_every_seed_is_a_training_of_its_own(stored):
    found = {(run["kind"], *run["curve"]) for run in stored["runs"]}
    assert len(found) == 64


def test_the_tests_are_what_they_say(study):
    ids, targets = study.moved(32)
    for row, wanted in zip(ids.tolist(), targets.tolist()):
        asked = [i for i, target in enumerate(wanted) if target >= 0]
        assert len(asked) == 7 and asked[-1] - asked[0] == 6
        for i in asked:
            before = row.index(row[i])
            assert before <= i - 8 and row[before + 1] == wanted[i] == row[i + 1]
    ids, targets = study.unseen((20, 20), 4)
    assert (targets[:, :20] == -100).all() and (targets[:, 20:-1] == ids[:, 21:]).all()


def test_the_check_can_fail(study, stored):
    of_kind = {
        run["kind"]: run for run in stored["runs"] if run["seed"] == study.CHECKED[1]
    }
    assert study.misfits(stored, of_kind["smeared"]) == []
    for other in ("two layers", "one layer", "fixed"):
        assert study.misfits(stored, of_kind[other]), other
    changed = copy.deepcopy(stored)
    changed["settings"]["steps"] += 1
    assert "settings" in study.misfits(changed, of_kind["smeared"])[0]
    assert "0 runs" in study.misfits({**stored, "runs": []}, of_kind["smeared"])[0]
