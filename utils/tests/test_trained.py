"""What deeper notebooks load and do not train: weights that fit, whole runs.

Stored weights reach what is stored of them. That a training gives them, or these runs,
again, is what `--check` finds out (test_studies).
"""

from hashlib import sha256

import pytest
import torch
from safetensors.torch import load_file

from assets.studies import runs_of, stored_of, story_models, thermometers, trained
from utils import pretrained
from utils.attention import MultiHeadAttention
from utils.masks import causal_mask

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
    stories = trained.FOLDER / "trained" / "stories.safetensors"
    assert files | {stories} == {*(trained.FOLDER / "trained").iterdir()}
    assert len({run["sha256"] for run in RUNS.values()}) == len(files)
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 300_000 and sum(sizes) < 1_500_000


# --- the story model ---


def test_the_story_model_is_the_stored_one_and_as_good(monkeypatch, tmp_path):
    stored = stored_of("story_models")
    assert stored["sha256"] == pretrained.STORIES_SHA256
    (run,) = runs_of(stored, seed=stored["stored"])
    model = pretrained.load_story_model()
    assert not model.training
    assert abs(story_models.held_out_loss(model) - run["loss"]) < 0.002
    (tmp_path / "other").write_bytes(b"other weights")
    monkeypatch.setattr(pretrained, "STORIES", tmp_path / "other")
    with pytest.raises(ValueError, match="another file"):
        pretrained.load_story_model()


# --- runs of `thermometers` ---


def test_the_right_layer_of_thermometers_is_the_course_s_and_each_wrong_one_is_not():
    torch.manual_seed(0)
    x, mask = torch.randn(2, 12, 32), causal_mask(12)
    course = MultiHeadAttention(32, 2)
    for kind in thermometers.KINDS.values():
        layer = kind.layer(32, 2)
        layer.load_state_dict(course.state_dict())
        gap = (layer(x, mask)[0] - course(x, mask=mask)[0]).abs().max()
        assert (gap < 1e-5) == (kind.layer is thermometers.MultiHead)


def test_a_target_is_the_difference_one_and_two_hours_back():
    x, target = thermometers.draw_batch(torch.Generator().manual_seed(0), 3)
    temperature = x[..., :8]
    assert x.shape == (3, 12, 32) and target.shape == (3, 10, 8)
    for hour in range(2, 12):
        wanted = temperature[:, hour - 1] - temperature[:, hour - 2]
        assert torch.equal(target[:, hour - 2], wanted)
