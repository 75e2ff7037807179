"""The stored studies: complete, of their scripts, and able to disagree.

What their scripts do is tested in test_study_scripts.
"""

import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from assets import studies
from assets.studies import FOLDER, STUDIES, as_json, misfits, stored_of
from assets.studies import __main__ as front_door
from utils.tests.helpers import need_smollm2


@cache
def study_of(name):
    """Return the script as a module, and what is stored of it."""
    return import_module(f"assets.studies.{name}"), stored_of(name)


# --- all studies: complete ---


def named(layers, heads):
    return [f"{layer}.{head}" for layer in range(layers) for head in range(heads)]


def all_tests(study):
    """Yield the runs of `length`: every scheme, as trained and changed afterwards."""
    for how in study.ALL:
        size, other = study.SETTINGS["length"][how.task], how.other_training
        for name in how.schemes:
            changed = study.changed_after_training(study.SCHEMES[name](size), size)
            for test, seed in product(["as trained", *changed], how.seeds):
                trained = other.get("steps"), other.get("learning_rate")
                yield how.task, name, test, *trained, seed


# name: (number of runs, the fields that tell them apart, the runs of the script)
RUNS = {
    "adversary": (18, "search, seed", lambda s: [
        *product(["trained"], s.SEEDS),
        *((name, seed) for name, x in s.SEARCHES.items() for seed in x.seeds)]),
    "decoder_roles": (19, "seed", lambda s: [[seed] for seed in range(s.COPIES)]),
    "encoder_roles": (19, "seed", lambda s: [[seed] for seed in range(s.COPIES)]),
    "dropout": (3, "dropout, seed", lambda s: product(s.DROPOUTS, s.SEEDS)),
    "grouped_heads": (64, "way, kv heads, seed", lambda s: [
        (way, n, seed) for way, numbers in s.WAYS.items()
        for n, seed in product(numbers, s.SEEDS)]),
    "length": (704, "task, scheme, tested, steps, learning_rate, seed", all_tests),
    "norms": (78, "norms, blocks, features, rate, clipped, steps, precision, weights, "
              "seed", lambda s: [
        [*(x[key] for key in s.KEY), seed] for x in s.settings() for seed in s.SEEDS]),
    "number_of_heads": (80, "heads, head_dim, steps, seed", lambda s: [
        (*kind, seed) for kind in s.KINDS for seed in s.SEEDS]),
    "ordinary_text": (36, "text, without, instead", lambda s: product(
        ("help", "prose"), s.LEFT_OUT, ["zero"])),
    "ov_copying": (393, "part, head, gone, what", None),
    "parts": (45, "model, blocks, steps, learning_rate, seed", lambda s: [
        (*setting, seed) for *setting, seeds in s.GROUPS for seed in seeds]),
    "repairs": (352, "task, head_dim, steps, factor, repair, further, seed", lambda s: [
        (kind.task, kind.head_dim, kind.steps, factor, repair, further, seed)
        for kind in s.KINDS for factor, counts in kind.tests.items()
        for repair, further, seed in product(s.REPAIRS, counts, s.SEEDS)]),
    "roles": (342, "model, head", lambda s: [
        *product(["encoder"], named(6, 12)),
        *product(["language model"], named(30, 9))]),
    "rollout": (17, "encoder, seed", lambda s: [
        ("trained", None), *product(s.KINDS, s.SEEDS)]),
    "sliding_window": (10, "what, texts, keys", lambda s: product(
        ["mask"], s.LENGTH, s.MASKS)),
    "smollm2": (270, "head", lambda s: product(named(30, 9))),
    "smollm2_controls": (1, "control", None),
    "specialisation": (64, "kind, seed", lambda s: product(s.KINDS, range(16))),
    "seen_heads": (16, "seed", lambda s: [(seed,) for seed in range(16)]),
    "story_models": (16, "seed", lambda s: [(seed,) for seed in s.SEEDS]),
    "story_variants": (40, "variant, seed", lambda s: product(s.VARIANTS, s.SEEDS)),
    "story_heads": (16, "seed", lambda s: product(s.SEEDS)),
    "thermometers": (112, "kind, seed", lambda s: [
        (name, seed) for name, kind in s.KINDS.items() for seed in kind.seeds]),
    "trained": (11, "model, seed", lambda s: [
        (name, seed) for name, x in s.RECIPES.items() for seed in x.seeds]),
    "treebank": (30, "relation, direction",
                 lambda s: product(s.RELATIONS, s.DIRECTIONS)),
    "variants": (32, "variant, seed", lambda s: product(s.VARIANTS, range(8))),
    "without_heads": (72, "gone", lambda s: [[[name]] for name in named(6, 12)]),
}  # fmt: skip
WITH_SMOLLM2 = {"decoder_roles", "ordinary_text", "ov_copying", "roles"}
WITH_SMOLLM2 |= {"sliding_window", "smollm2", "smollm2_controls"}


def test_every_study_has_its_script_and_a_row_of_the_table():
    stored = sorted(path.stem for path in FOLDER.glob("*.json"))
    assert stored == STUDIES == sorted(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_every_run_is_stored_once_in_the_bytes_that_a_study_writes(name):
    study, stored = study_of(name)
    count, fields, expected = RUNS[name]
    found = [
        [run.get(field) for field in fields.split(", ")]
        for run in stored.get("runs") or stored["rows"]
    ]
    assert len(found) == len(set(map(str, found))) == count
    if expected:
        assert sorted(found, key=str) == sorted(map(list, expected(study)), key=str)
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert as_json(json.loads(text)) == text
    assert {"python", "torch"} & {*stored, *stored.get("versions", ())}


@pytest.mark.parametrize(
    ("name", "count", "fields"),
    [
        ("adversary", 18, ["search", "after 2"]),
        ("length", 200, ["task", "scheme", "steps", "learning_rate", "parts"]),
        ("variants", 32, ["variant", "training"]),
        ("parts", 45, ["model", "blocks", "steps", "training", "validation"]),
        ("specialisation", 64, ["kind", "curve"]),
        ("grouped_heads", 64, ["way", "kv heads", "losses"]),
        ("thermometers", 112, ["error", "weight back"]),
        ("number_of_heads", 80, ["heads", "head_dim", "steps", "curve"]),
        ("seen_heads", 16, ["scores"]),
        ("story_models", 16, ["loss", "without"]),
    ],
)
def test_every_seed_is_a_training_of_its_own(name, count, fields):
    runs = [
        run
        for run in study_of(name)[1]["runs"]
        if run.get("tested", "as trained") == "as trained"
        and run.get("task") != "first"  # there all are at 1.00
    ]
    found = {str([run.get(field) for field in fields]) for run in runs}
    assert len(found) == len(runs) == count


# --- all studies: able to disagree ---


# Their code is repeated by others: that of dropout by parts, of decoder_roles by roles
# and encoder_roles. The treebank's texts are not here: see test_study_scripts.
AT_NIGHT, NEVER = {"dropout", "decoder_roles"}, {"treebank"}
REPEATED = [
    pytest.param(x, marks=pytest.mark.nightly if x in AT_NIGHT else pytest.mark.slow)
    for x in sorted({*RUNS} - NEVER)
]


@pytest.mark.parametrize("name", REPEATED)
def test_one_run_again_is_as_stored(name, capsys):
    if name in WITH_SMOLLM2:
        need_smollm2()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the command does
    try:
        code, said = front_door.main([name, "--check"]), capsys.readouterr().out
    finally:
        torch.set_num_threads(threads)
    assert code == 0 and "as stored" in said, said


@pytest.mark.slow
def test_the_command_itself():
    command = [sys.executable, "-m", "assets.studies", "rollout", "--check"]
    root = FOLDER.parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0 and "as stored" in done.stdout, done.stderr


def comparable(study, stored):
    """Return the stored runs as `again` would return them."""
    return getattr(study, "comparable", lambda stored: stored["runs"])(stored)


def last(value):
    """Return the last value inside lists and dicts."""
    while isinstance(value, (list, dict)):
        value = [*value.values()][-1] if isinstance(value, dict) else value[-1]
    return value


def with_last(value, new):
    """Return the value with the last one inside it replaced."""
    if isinstance(value, dict):
        name = [*value][-1]
        return value | {name: with_last(value[name], new)}
    if isinstance(value, list):
        return [*value[:-1], with_last(value[-1], new)]
    return new


@pytest.mark.parametrize("name", RUNS)
def test_a_changed_number_is_told(name):
    study, stored = study_of(name)
    rows = comparable(study, stored)
    assert misfits(study, stored, rows) == []

    def told(field, row, new):
        return misfits(study, stored, [row | {field: with_last(row[field], new)}])

    for field, margin in study.MARGIN.items():
        known = [row for row in rows if field in row and last(row[field]) is not None]
        which = [known[0].get(name) for name in study.KEY]
        same = [row for row in known if [row.get(x) for x in study.KEY] == which]
        values = [last(row[field]) for row in same]
        for value, sign in ((min(values), -1), (max(values), 1)):
            if isinstance(value, str):
                assert told(field, same[0], value + "?")
                continue
            assert not told(field, same[0], value + sign * 0.99 * margin)
            (said,) = told(field, same[0], value + sign * 1.01 * margin)
            assert field in said and "stored" in said
            assert told(field, same[0], float("nan")) and told(field, same[0], None)
        less = {name: value for name, value in same[0].items() if name != field}
        (said,) = misfits(study, stored, [less])
        assert field in said
    (said,) = misfits(study, stored, [rows[0] | {study.KEY[0]: "unknown"}])
    assert "no such run" in said
    if "settings" in stored:
        changed = stored | {"settings": with_last(stored["settings"], 1)}
        assert "settings" in misfits(study, changed, [])[0]


@pytest.mark.parametrize(
    ("name", "own", "others"),
    [
        ("length", {"task": "3 back", "scheme": "T5", "tested": "as trained"},
         {"scheme": ["learned", "sinusoidal", "none", "rotary", "ALiBi"]}),
        ("length", {"task": "3 back", "scheme": "ALiBi", "steps": 2000,
                    "learning_rate": 0.01, "tested": "as trained"},
         {"scheme": ["rotary", "none", "T5"], "steps": [400],
          "learning_rate": [0.003]}),
        ("specialisation", {"kind": "smeared"},
         {"kind": ["two layers", "one layer", "fixed"]}),
        ("parts", {"model": "no residual", "blocks": 2, "steps": 240},
         {"model": ["no norms", "no MLP"]}),
        ("number_of_heads", {"heads": 16, "head_dim": 1, "steps": 1000},
         {"head_dim": [4]}),
        ("adversary", {"search": "slow", "seed": 1},
         {"search": ["trained", "no demand"]}),
        ("variants", {"variant": "short"}, {"variant": ["pre", "no attention"]}),
        ("norms", {"norms": "pre", "blocks": 12, "features": 64, "rate": 5e-3,
                   "clipped": True, "steps": 240, "precision": "float32", "weights": 1},
         {"rate": [3e-2], "steps": [720], "weights": [3]}),
    ],
)  # fmt: skip
def test_a_run_of_another_kind_is_told(name, own, others):
    study, stored = study_of(name)
    rows = comparable(study, stored)
    for field, values in others.items():
        for value in values:
            which = own | {field: value}
            other = next(
                row for row in rows if all(row.get(x) == y for x, y in which.items())
            )
            assert misfits(study, stored, [other]) == []
            assert misfits(study, stored, [other | own]), which


def test_the_front_door_writes_checks_and_explains(tmp_path, monkeypatch, capsys):
    again, path = [{"seed": 0, "loss": 1.0}], tmp_path / "toy.json"
    toy = SimpleNamespace(KEY=("seed",), MARGIN={"loss": 0.1}, __doc__="A toy.")
    toy.study = lambda: {"seeds": 1, "runs": [{"seed": 0, "loss": 1.0}]}
    toy.again = lambda stored: again
    monkeypatch.setitem(sys.modules, "assets.studies.toy", toy)
    monkeypatch.setattr(front_door, "STUDIES", ["toy"])
    for module in (studies, front_door):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    for wrong in (["nonsense"], ["toy", "file"], ["toy", "--chek"], []):
        with pytest.raises(SystemExit) as stopped:
            front_door.main(wrong)
        assert stopped.value.code == 2 and "usage" in capsys.readouterr().err
    assert not path.exists()
    assert front_door.main(["toy"]) == 0
    assert path.read_text("utf-8") == as_json(toy.study())
    assert front_door.main(["toy", "--check"]) == 0
    assert "as stored" in capsys.readouterr().out
    again[0]["loss"] = 1.2
    assert front_door.main(["--check", "toy"]) == 1
    assert capsys.readouterr().out == "0: loss is 1.2; stored: 1.0 to 1.0\n"
    assert json.loads(path.read_text("utf-8")) == toy.study()


# --- what is stored fits together ---


def test_runs_of_variants_and_of_parts_are_whole():
    study, stored = study_of("variants")
    for run in stored["runs"]:
        step, loss = run["validation"][-1]
        assert step == study.STEPS // (4 if run["variant"] == "short" else 1)
        assert loss > run["training"]
    sizes = {"embed_dim": study.EMBED_DIM, "heads": study.HEADS, "layers": study.LAYERS}
    assert stored["model"] == sizes
    sizes = {"length": study.LENGTH, "batch": study.BATCH, "steps": study.STEPS}
    assert stored["training"] == sizes | study.OPTIONS
    for run in study_of("parts")[1]["runs"]:
        assert run["at"][0] == 0 and run["at"][-1] == run["steps"]
        assert len(run["at"]) == len(run["training"]) == len(run["validation"])


def test_runs_of_norms_are_finite_or_say_where_they_broke():
    _, stored = study_of("norms")
    ends = "training", "validation"
    broken = [run for run in stored["runs"] if run["broke_at"] is not None]
    for run in broken:
        assert run["broke_at"] < run["steps"] and {run[x] for x in ends} == {None}
    finite = [run for run in stored["runs"] if run not in broken]
    assert all(run[x] > 0 for run in finite for x in ends)
    assert len({tuple(run[x] for x in ends) for run in finite}) == len(finite)


def test_another_text_moves_the_loss_and_its_bigram_together():
    """Also where the losses on the way are stored, and where a model broke."""
    of = study_of("variants")[0].from_bigram
    for validation in ([[0, 9.0], [60, 4.0]], [9.0, 4.0], 4.0):
        assert of({"validation": validation}, 3.0)["from the bigram"] == 1.0
    assert of({"validation": None}, 3.0)["from the bigram"] is None


def test_runs_of_adversary_are_whole():
    study, stored = study_of("adversary")
    assert stored["uniform"].keys() == {str(steps) for steps in study.UNIFORM}
    assert all(len(each) == len(study.SEEDS) for each in stored["uniform"].values())
    for run in stored["runs"]:
        assert run["at"][-1] == (225 if run["search"] == "trained" else study.STEPS)
        assert len(run["at"]) == len(run["accuracy"]) == len(run["forbidden"])
        shown = run["search"] in ("trained", "slow") and run["seed"] == 1
        assert ("patterns" in run) == shown


def test_runs_of_specialisation_are_whole():
    study, stored = study_of("specialisation")
    assert stored["seeds"] == study.SEEDS == list(range(16))
    for run in stored["runs"]:
        assert len(run["curve"]) == 1 + study.SETTINGS["steps"] // 20
        assert run["scores"]["trained"].keys() == {*study.SCORED}
    for run in studies.runs_of(stored, kind="two layers"):
        assert len(run["without"]) == 2**8
        importances = sum(run["importance"], [])
        assert len(set(importances)) == len(importances)  # none tie
    contrasts = stored["contrasts"]
    found = [(run["kind"], run["seed"]) for run in contrasts]
    assert found == [*product(study.CONTRASTS, range(8))]
    assert {(run["steps"], run["learning_rate"]) for run in contrasts} == {(800, 3e-3)}
    assert len({str(run["scores"]) for run in contrasts}) == 24
    shares = [run["accuracy"]["as trained"] for run in contrasts]
    assert min(shares[:8]) > 0.99 and max(shares[8:]) < 0.2


def test_sets_of_without_heads_are_those_of_the_script():
    study, stored = study_of("without_heads")
    assert (stored["sentences"], stored["nearest"]) == (203, study.NEAREST)
    assert stored["model"] == {
        "revision": study.REVISION,
        "sha256": study.MINILM_SHA256,
    }
    best = stored["best"]["gone"]
    assert best == study.best_of_relations()
    drawn = study.draws(best, stored["resting"])
    of_sets = stored["sets"].items()
    assert drawn == {kind: [row["gone"] for row in rows] for kind, rows in of_sets}
    for sets in drawn.values():
        assert len({tuple(gone) for gone in sets}) == len(sets) == study.DRAWS
        assert all(len(set(gone)) == len(best) for gone in sets)
    chosen = study.busiest(best, torch.tensor(stored["written"]))
    assert chosen == {kind: row["gone"] for kind, row in stored["busiest"].items()}
    assert all(not set(gone) & set(best) for gone in chosen.values())
    for gone in [*drawn["same layers"], chosen["write most, same layers"]]:
        assert sorted(name[0] for name in {*gone}) == sorted(name[0] for name in best)
    for gone in drawn["others"] + drawn["others, layers 0-4"]:
        assert not set(gone) & {*best, *stored["resting"]}
    assert not any(x.startswith("5.") for x in sum(drawn["others, layers 0-4"], []))


def test_random_heads_are_others_of_the_same_layers():
    study, _ = study_of("ordinary_text")
    drawn = [study.LEFT_OUT[f"random {i}"] for i in range(study.DRAWS)]
    assert len(set(map(tuple, drawn))) == study.DRAWS
    layers = sorted(studies.by_layer(study.INDUCTION))
    for heads in drawn:
        assert not {*heads} & {*study.INDUCTION} and len({*heads}) == len(heads)
        assert sorted(studies.by_layer(heads)) == layers


def test_rows_of_ordinary_text_are_means_of_all_tokens():
    study, stored = study_of("ordinary_text")
    assert len(study.prose()) == len(stored["help"]) == 8
    of_places = torch.tensor([study.BIN - 1] + [study.BIN] * 15) / (study.LENGTH - 1)
    for run in stored["runs"]:
        assert run["heads"] == study.LEFT_OUT[run["without"]]
        every = torch.tensor(run["all"])
        found = torch.tensor(run["by place"]) @ of_places
        torch.testing.assert_close(found, every, atol=2e-3, rtol=0)
        kinds = torch.tensor([run[kind] for kind in study.KINDS])
        assert (kinds.amin(0) <= every).all() and (every <= kinds.amax(0)).all()


def test_roles_agree_with_the_lessons():
    _, stored = study_of("roles")
    for row in stored["runs"]:
        named = row["role"] is not None
        assert named == (row["lift"] is not None) and 0 <= row["entropy"] <= 1
        if named:
            baselines = stored["models"][row["model"]]["baselines"][row["role"]]
            assert row["lift"][0] > 0 and row["scores"][row["role"]] > max(baselines)
    roles = {(row["model"], row["head"]): row["role"] for row in stored["runs"]}
    found = {"0.2": "previous token", "1.8": "next token", "4.5": "[CLS]", "0.8": None}
    assert {head: roles["encoder", head] for head in found} == found  # lesson 09
    inductive = [h for (_, h), role in roles.items() if role == "induction"]
    assert {*"18.6 17.3 17.4 17.5 18.7 23.2 23.7 20.6".split()} <= {*inductive}
    assert {int(head.split(".")[0]) for head in inductive} <= {*range(17, 25)}
    assert roles["language model", "16.0"] == "previous token"  # lesson 11
