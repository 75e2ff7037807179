"""The stored weights that deeper notebooks load: they fit, and reach what is stored."""

from hashlib import sha256

import pytest
import torch
from safetensors.torch import load_file

from assets.studies import stored_of, trained

RUNS = {(run["model"], run["seed"]): run for run in stored_of("trained")["runs"]}


@pytest.mark.parametrize(("name", "seed"), RUNS)
def test_stored_weights_are_those_of_the_run_and_reach_what_it_reached(name, seed):
    run, path = RUNS[name, seed], trained.path_of(name, seed)
    assert sha256(path.read_bytes()).hexdigest() == run["sha256"]
    weights = load_file(path)
    assert {x.dtype for x in weights.values()} == {torch.float16}
    reached = trained.measured(name, seed, weights)  # refuses what does not fit
    assert reached.keys() == {"model", "seed", "accuracy", "loss"}
    for field in ("accuracy", "loss"):
        assert reached[field] == pytest.approx(run[field], abs=0.005), field


def test_each_model_has_its_own_small_file_and_no_file_has_no_run():
    files = {trained.path_of(*which) for which in RUNS}
    assert files == {*(trained.FOLDER / "trained").iterdir()}
    assert len({run["sha256"] for run in RUNS.values()}) == len(files)
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 300_000 and sum(sizes) < 1_000_000


def test_models_that_solve_their_task_and_one_that_cannot():
    assert all(run["accuracy"] > 0.85 for (name, _), run in RUNS.items()
               if name != "one layer")  # fmt: skip
    assert RUNS["one layer", 0]["accuracy"] < 0.3


def test_scores_of_lesson_07_are_kept_from_the_untrained_model_to_the_stored_one():
    for seed in trained.RECIPES["seeing heads"].seeds:
        scores = RUNS["seeing heads", seed]["scores"]
        assert len(scores) == 1 + 225 // trained.EVERY
        model = trained.RECIPES["seeing heads"].make()
        model.load_state_dict(load_file(trained.path_of("seeing heads", seed)))
        reached = trained.best_scores(model.eval())
        assert reached == pytest.approx(scores[-1], abs=0.01)
        assert max(scores[0]) < 0.2 < min(scores[-1])
