"""The stored study of lesson 06: complete, of this script, and able to disagree."""

import json

import pytest
from studies import script_of


@pytest.fixture(scope="module")
def study():
    """Return the script as a module."""
    return script_of("language_model")


@pytest.fixture(scope="module")
def stored(study):
    return json.loads(study.FILE.read_text(encoding="utf-8"))


def test_every_run_is_stored_once(study, stored):
    runs = {(run["variant"], run["seed"]): run for run in stored["runs"]}
    assert len(runs) == len(stored["runs"])
    assert runs.keys() == {(v, s) for v in study.VARIANTS for s in study.SEEDS}
    for (variant, _), run in runs.items():
        steps = study.STEPS // 4 if variant == "short" else study.STEPS
        assert run["validation"][-1][0] == steps
        assert len(run["by_position"]) == study.LENGTH
        mean = sum(run["by_position"]) / study.LENGTH
        assert mean == pytest.approx(run["validation"][-1][1], abs=1e-3)
        assert ("with_bigram" in run) == (variant == "no attention")
        assert ("right_mask" in run) == (variant == "one ahead")


def test_the_settings_are_those_of_the_script(study, stored):
    assert stored["model"] == {
        "embed_dim": study.EMBED_DIM,
        "heads": study.HEADS,
        "layers": study.LAYERS,
    }
    sizes = {"length": study.LENGTH, "batch": study.BATCH, "steps": study.STEPS}
    assert stored["training"] == sizes | study.OPTIONS
    assert {"python", "torch"} <= stored.keys()


def test_two_seeds_are_two_runs(stored):
    for variant in {run["variant"] for run in stored["runs"]}:
        ends = [run["alone"] for run in stored["runs"] if run["variant"] == variant]
        assert len(set(ends)) == len(ends)


@pytest.mark.parametrize("beyond, code", [(-0.11, 1), (-0.09, 0), (0.09, 0), (0.11, 1)])
def test_a_run_outside_what_is_stored_is_refused(
    study, stored, monkeypatch, beyond, code
):
    """The repeated run is replaced: a little below the stored ones, or above."""
    ends = [
        run["validation"][-1][1] for run in stored["runs"] if run["variant"] == "short"
    ]
    found = (min(ends) if beyond < 0 else max(ends)) + beyond
    found += counted(study) - stored["baselines"]["bigram"]
    monkeypatch.setattr(study, "run", lambda *_: {"validation": [[60, found]]})
    assert study.check() == code


def counted(study) -> float:
    """Return the bigram's loss on this Python's documentation."""
    return study.bigram_losses(study.python_docs()).mean().item()
