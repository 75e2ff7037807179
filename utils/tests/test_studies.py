"""The stored studies: complete, of their scripts, and able to disagree.

That of the treebank, whose texts are not in the repository, has tests of its own.
"""

import copy
import json
import os
import subprocess
import sys
from functools import cache

import pytest
import torch
from studies import FOLDER, as_json, command_line, script_of
from torch import nn

from utils.tests.helpers import need_smollm2

REPEATED = [
    "adversary",
    "atlas",
    "length",
    "language_model",
    "parts",
    "smollm2",
    "smollm2_controls",
    "specialisation",
    "without_heads",
]


@cache
def study_of(name):
    """Return the script as a module, and what is stored of it."""
    script = script_of(name)
    return script, json.loads(script.STORED.read_text(encoding="utf-8"))


def runs_of(stored, **which):
    """Return the stored runs that have these entries."""
    return [run for run in stored["runs"] if which.items() <= run.items()]


# --- all studies ---


@pytest.mark.slow
@pytest.mark.parametrize("name", REPEATED)
def test_one_run_again_is_as_stored(name):
    if name in ("atlas", "smollm2", "smollm2_controls"):
        need_smollm2()
    command = [sys.executable, FOLDER / f"{name}.py", "--check"]
    quiet = os.environ | {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stored" in done.stdout


def test_the_command_line_writes_checks_and_explains(tmp_path, capsys):
    path, found = tmp_path / "study.json", {"seeds": 1, "runs": [[1]]}

    def run(*arguments, misfits=lambda stored: []):
        return command_line(list(arguments), path, "usage: …", lambda: found, misfits)

    assert run("more") == run("--check", "more") == 2 and not path.exists()
    assert "usage" in capsys.readouterr().out
    assert run() == 0 and json.loads(path.read_text("utf-8")) == found
    assert run("--check", misfits=lambda stored: [f"{stored['seeds']} seed"]) == 1
    assert capsys.readouterr().out == "1 seed\n"
    assert run("--check") == 0 and "as stored" in capsys.readouterr().out


def test_a_script_leaves_nothing_behind():
    before = list(sys.path)
    assert script_of("length").STORED == FOLDER / "length.json"
    with pytest.raises(FileNotFoundError):
        script_of("nonsense")
    assert not {"study_length", "study_nonsense"} & set(sys.modules)
    assert sys.path == before


def test_every_study_has_its_script_and_the_bytes_that_it_writes():
    files = {path.stem for path in FOLDER.glob("*.json")}
    assert files == {path.stem for path in FOLDER.glob("*.py")} - {"studies"}
    assert files == {*REPEATED, "treebank"}
    for name in files:
        stored = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
        rows = "rows" if name == "treebank" else "runs"
        assert as_json(json.loads(stored), rows) == stored, name


@pytest.mark.parametrize(
    ("name", "count", "fields"),
    [
        ("adversary", 34, ["search", "after 1", "after 2"]),
        ("length", 200, ["task", "scheme", "training_loss", "parts"]),
        ("language_model", 48, ["variant", "alone"]),
        ("parts", 51, ["model", "blocks", "steps", "training", "validation"]),
        ("specialisation", 64, ["kind", "curve"]),
    ],
)
def test_every_seed_is_a_training_of_its_own(name, count, fields):
    runs = [
        run
        for run in study_of(name)[1]["runs"]
        if run.get("tested", "as trained") == "as trained"
        and run.get("task") != "first"  # there all are at 1.00
    ]
    found = {str([run[field] for field in fields]) for run in runs}
    assert len(found) == len(runs) == count


@pytest.mark.parametrize(
    ("name", "own", "field", "others"),
    [
        ("length", {"task": "3 back", "scheme": "T5", "tested": "as trained"},
         "scheme", ["learned", "sinusoidal", "none", "rotary", "ALiBi"]),
        ("specialisation", {"kind": "smeared"},
         "kind", ["two layers", "one layer", "fixed"]),
    ],
)  # fmt: skip
def test_the_check_can_fail(name, own, field, others):
    study, stored = study_of(name)
    *names, seed = study.CHECKED
    assert set(names) <= set(own.values())

    def misfits(which, stored=stored):
        found = runs_of(study_of(name)[1], seed=seed, **which)
        (run,) = [run for run in found if "steps" not in run]
        return study.misfits(stored, run["parts"] if name == "length" else run)

    assert misfits(own) == []
    assert all(misfits(own | {field: other}) for other in others)
    changed = copy.deepcopy(stored)
    changed["settings"]["steps"] += 1
    assert "settings" in misfits(own, changed)[0]
    assert "0 runs" in misfits(own, stored | {"runs": []})[0]


# --- lesson 05: length ---


def test_every_run_of_length_is_stored_once():
    study, stored = study_of("length")
    assert stored["seeds"] == list(range(8)) == study.SEEDS
    assert stored["versions"].keys() >= {"python", "torch"}
    assert all(len(run["parts"]) == study.PARTS for run in stored["runs"])
    expected = []
    for task in study.TASKS:
        schemes = study.SCHEMES | (study.VARIANTS if task == "characters" else {})
        for name, scheme in schemes.items():
            how = {"steps": study.STEPS, "rate": study.SETTINGS["learning_rate"]}
            expected += all_tests(study, task, name, scheme, study.SEEDS, **how)
    for more in study.FURTHER:
        how = {"steps": more.steps, "rate": more.learning_rate}
        for name in more.schemes:
            scheme = (study.SCHEMES | study.OTHER_SCHEMES)[name]
            expected += all_tests(study, more.task, name, scheme, more.seeds, **how)
    settings = {"steps": study.STEPS} | study.SETTINGS  # of runs that name no others
    fields = ("task", "scheme", "tested", "seed", "steps", "learning_rate")
    found = [
        tuple((settings | run)[field] for field in fields) for run in stored["runs"]
    ]
    assert sorted(found) == sorted(expected)


def all_tests(study, task, name, scheme, seeds, steps, rate):
    """Return what is to be stored of one scheme on one task."""
    size = study.SETTINGS["length"][task]
    tests = ["as trained", *study.changed_after_training(scheme(size), size)]
    return [(task, name, test, s, steps, rate) for test in tests for s in seeds]


def test_the_check_of_longer_training_can_fail():
    study, stored = study_of("length")
    longer, (task, scheme, seed) = study.LONGER_TRAINING, study.CHECKED_FURTHER
    assert longer.task == task and scheme in longer.schemes and seed in longer.seeds
    how = {"steps": longer.steps, "learning_rate": longer.learning_rate}

    def misfits(**which):
        (run,) = runs_of(stored, task=task, tested="as trained", seed=seed, **which)
        return study.misfits(stored, run["parts"], study.CHECKED_FURTHER, longer)

    assert misfits(scheme=scheme, **how) == []
    others = [other for other in longer.schemes if other != scheme]
    assert all(misfits(scheme=other, **how) for other in others)
    for changed in ({"steps": study.STEPS}, {"learning_rate": 0.003}):  # one alone
        assert misfits(scheme=scheme, **how | changed)
    (short,) = [
        run
        for run in runs_of(stored, task=task, scheme=scheme, seed=seed)
        if "steps" not in run
    ]
    further = study.CHECKED_FURTHER, longer
    assert study.misfits(stored, short["parts"], *further)
    assert "0 runs" in study.misfits(stored | {"runs": []}, short["parts"], *further)[0]


# --- lesson 06: language_model ---


def test_every_run_of_the_language_model_is_stored_once():
    study, stored = study_of("language_model")
    found = [(run["variant"], run["seed"]) for run in stored["runs"]]
    assert sorted(found) == sorted((v, s) for v in study.VARIANTS for s in study.SEEDS)
    for run in stored["runs"]:
        variant, (step, loss) = run["variant"], run["validation"][-1]
        assert step == (study.STEPS // 4 if variant == "short" else study.STEPS)
        assert len(run["by_position"]) == study.LENGTH
        assert loss == pytest.approx(sum(run["by_position"]) / study.LENGTH, abs=1e-3)
        assert ("with_bigram" in run) == (variant == "no attention")
        assert ("right_mask" in run) == (variant == "one ahead")
    sizes = {"embed_dim": study.EMBED_DIM, "heads": study.HEADS, "layers": study.LAYERS}
    assert stored["model"] == sizes
    sizes = {"length": study.LENGTH, "batch": study.BATCH, "steps": study.STEPS}
    assert stored["training"] == sizes | study.OPTIONS
    assert {"python", "torch"} <= stored.keys()


def test_a_run_outside_what_is_stored_is_refused(monkeypatch):
    """The repeated run is replaced: a little below the stored ones, or above."""
    study, stored = study_of("language_model")
    ends = [run["validation"][-1][1] for run in runs_of(stored, variant="short")]
    bigram = study.bigram_losses(study.python_docs())
    moved = bigram.mean().item() - stored["baselines"]["bigram"]  # by another text
    monkeypatch.setattr(study, "bigram_losses", lambda corpus: bigram)
    for edge, beyond, code in (
        (min(ends), -0.11, 1),
        (min(ends), -0.09, 0),
        (max(ends), 0.09, 0),
        (max(ends), 0.11, 1),
    ):
        found = {"validation": [[60, edge + beyond + moved]]}
        monkeypatch.setattr(study, "run", lambda *_, found=found: found)
        assert study.check() == code


# --- lesson 06: parts ---


def test_every_run_of_parts_is_stored_once():
    study, stored = study_of("parts")
    expected = [[*setting, seed] for *setting, seeds in study.GROUPS for seed in seeds]
    fields = (*study.FIELDS, "seed")
    found = [[run[field] for field in fields] for run in stored["runs"]]
    assert sorted(found) == sorted(expected)
    assert stored["versions"].keys() >= {"python", "torch"}
    for run in stored["runs"]:
        assert run["at"][0] == 0 and run["at"][-1] == run["steps"]
        assert len(run["at"]) == len(run["training"]) == len(run["validation"])


def test_the_check_of_parts_can_fail():
    study, stored = study_of("parts")
    now = dict(stored["baselines"])

    def misfits(stored=stored, now=now, **which):
        again, *_ = runs_of(stored, seed=0, blocks=2, steps=240, **which)
        return study.misfits(stored, again, now)

    assert misfits(model="no residual") == []
    assert all(misfits(model=other) for other in ("no norms", "no MLP"))
    assert misfits(model="no residual", now=now | {"bigram": now["bigram"] + 0.5})
    fewer = stored | {"runs": runs_of(stored, seed=0)}
    assert "1 runs" in misfits(fewer, model="no residual")[0]


def test_a_model_without_a_part_is_without_this_part():
    study, _ = study_of("parts")
    x = torch.randn(1, 5, 128, generator=torch.Generator().manual_seed(0))

    def change(name, *silent):
        """How much the first block's output changes with its input."""
        torch.manual_seed(0)
        block = study.make_model(name, 2, vocab_size=10).blocks[0]
        for part in silent:
            for weight in getattr(block, part).parameters():
                nn.init.zeros_(weight)
        with torch.no_grad():
            return (block(2 * x) - block(x)).abs().max()

    for silent in ((), ("attention",), ("mlp",), ("attention", "mlp")):
        assert change("full", *silent) > 0.1
    assert change("no residual around attention", "attention") == 0
    assert change("no residual around attention", "mlp") < 1e-3  # the norm's ε alone
    assert change("no residual around the MLP", "mlp") == 0
    assert change("no residual around the MLP", "attention") < 1e-3
    for part in ("attention", "mlp"):
        assert change("no residual", part) == 0
    assert study.make_model("no MLP", 2, 10).blocks[1].mlp is None
    kinds = {type(module) for module in study.make_model("no norms", 2, 10).modules()}
    assert nn.LayerNorm not in kinds


# --- lesson 07: adversary ---


def test_every_run_of_adversary_is_stored_once():
    study, stored = study_of("adversary")
    expected = [("trained", seed) for seed in study.SEEDS]
    for name, search in study.SEARCHES.items():
        expected += [(name, seed) for seed in search.seeds]
    assert sorted((r["search"], r["seed"]) for r in stored["runs"]) == sorted(expected)
    assert stored["versions"].keys() >= {"python", "torch"}
    assert len(stored["two seeds"]) == 28
    for run in stored["runs"]:
        search = study.SEARCHES.get(run["search"])
        assert run["at"][-1] == (search or study.Search(225, 0, 0, 0)).steps
        assert len(run["at"]) == len(run["accuracy"]) == len(run["forbidden"])
        assert run["forbidden"][-1] == max(run["after 1"])
        shown = run["search"] in ("trained", "slow") and run["seed"] == 1
        assert ("patterns" in run) == shown


def test_the_check_of_adversary_can_fail():
    study, stored = study_of("adversary")
    name, seed = study.CHECKED
    (own,) = runs_of(stored, search=name, seed=seed)
    assert study.misfits(stored, own) == []
    for other in runs_of(stored, seed=seed):
        if other is not own:
            assert study.misfits(stored, other), other["search"]
    for change in ({"reader": own["reader"] + 0.11}, {"after 1": [0.2] * 4}):
        assert study.misfits(stored, own | change)
    assert "0 runs" in study.misfits(stored | {"runs": []}, own)[0]


def test_what_the_adversary_must_not_do_is_the_induction_score():
    study, _ = study_of("adversary")
    weights = torch.rand(32, 4, 32, 32).masked_fill(~study.MASK, 0)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    expected = study.induction(weights, study.TEST, mask=study.MASK)
    found = study.after_copy(weights, study.TEST, 1)
    assert (found - expected.mean(dim=0)).abs().max() < 0.01  # one mean, or two
    nowhere = torch.eye(32).expand(32, 4, 32, 32)
    assert study.after_copy(nowhere, study.TEST, 1).max() < 0.1
    slow = study.SEARCHES["slow"]
    assert [round(slow.strength(step)) for step in (0, 600, 1200, 3000)] == [
        3,
        17,
        100,
        100,
    ]
    assert study.SEARCHES["no demand"].strength(100) == 0


# --- lesson 08: specialisation ---


def test_every_run_of_specialisation_is_stored_once():
    study, stored = study_of("specialisation")
    assert stored["seeds"] == list(range(16)) == study.SEEDS
    assert stored["versions"].keys() >= {"python", "torch"}
    found = [(run["kind"], run["seed"]) for run in stored["runs"]]
    assert sorted(found) == sorted((k, s) for k in study.KINDS for s in study.SEEDS)
    for run in stored["runs"]:
        heads = 4 * study.KINDS[run["kind"]].layers
        assert len(run["without"]) == 2**heads and len(run["mean instead"]) == heads
        assert len(run["curve"]) == 1 + study.SETTINGS["steps"] // 20
        for scores in run["scores"].values():
            assert scores.keys() == study.METRICS.keys() == stored["even"].keys()
        importances = sum(run["importance"], [])
        assert len(set(importances)) == len(importances)  # none tie
    further = [run["seed"] for run in stored["further"]]
    assert further == study.FURTHER == list(range(16, 32))
    assert all(run["accuracy"] > 0.99 for run in stored["further"])


def test_every_contrast_of_specialisation_is_stored_once():
    study, stored = study_of("specialisation")
    found = [(run["kind"], run["seed"]) for run in stored["contrasts"]]
    assert found == [(kind, seed) for kind in study.CONTRASTS for seed in study.FEW]
    how = {(run["steps"], run["learning_rate"]) for run in stored["contrasts"]}
    assert how == {(800, 3e-3)}
    shares = [run["accuracy"]["as trained"] for run in stored["contrasts"]]
    assert len({str(run["scores"]) for run in stored["contrasts"]}) == len(found) == 24
    assert min(shares[:8]) > 0.99 and max(shares[8:]) < 0.2


@pytest.mark.parametrize("part", ["keys", "queries", "values"])
def test_what_is_smeared_and_what_is_not(part):
    study, _ = study_of("specialisation")
    kind = (study.KINDS | study.CONTRASTS)[f"smeared {part}".replace(" keys", "")]
    torch.manual_seed(0)
    model, x = kind.make().eval(), torch.randn(1, 5, study.DIM)
    layer, moved = model.blocks[0].attention, x.clone()
    moved[:, 1] += 1  # position 1: seen at 1, and at 2 if it is smeared
    seen = {}
    for name, each in (("before", x), ("after", moved)):
        query, key = (
            proj(each).unflatten(-1, (study.HEADS, -1)).transpose(1, 2)
            for proj in (layer.query_proj, layer.key_proj)
        )
        query, key = layer.position.rotate(query, key)
        seen[name] = {"queries": query, "keys": key, "values": layer.value_proj(each)}
    for name, after in seen["after"].items():
        change = (after - seen["before"][name]).abs()
        change = change.transpose(1, 2).flatten(2) if after.dim() == 4 else change
        places = (change.sum(-1) > 1e-4)[0].nonzero().flatten().tolist()
        assert places == ([1, 2] if name == part else [1])


def test_paths_are_hidden_in_the_model_as_it_is():
    study, _ = study_of("specialisation")
    torch.manual_seed(0)
    model, texts = study.KINDS["two layers"].make().eval(), study.unseen((9, 9), 64)
    for weight in model.parameters():
        nn.init.normal_(weight)  # heads that say much,
    nn.init.normal_(model.blocks[1].attention.out_proj.weight, std=0.1)  # not all
    whole = round(study.accuracy(model, texts), 4)
    assert study.hidden_from(model, "nothing", texts) == [whole] * study.HEADS
    keys, values = (study.hidden_from(model, x, texts) for x in ("keys", "values"))
    assert len({whole, *keys}) > 2 and len({whole, *values}) > 2 and keys != values


def test_the_texts_of_the_tests_are_what_they_say():
    study, _ = study_of("specialisation")
    ids, targets = study.moved(32)
    for row, wanted in zip(ids.tolist(), targets.tolist()):
        asked = [i for i, target in enumerate(wanted) if target >= 0]
        assert len(asked) == 7 and asked[-1] - asked[0] == 6
        for i in asked:
            before = row.index(row[i])
            assert before <= i - 8 and row[before + 1] == wanted[i] == row[i + 1]
    ids, targets = study.unseen((20, 20), 4)
    assert (targets[:, :20] == -100).all() and (targets[:, 20:-1] == ids[:, 21:]).all()


# --- lesson 09: without_heads ---


def test_every_head_is_taken_away_once():
    study, stored = study_of("without_heads")
    assert [row["gone"] for row in stored["runs"]] == [[name] for name in study.NAMES]
    assert len(study.NAMES) == len(set(study.NAMES)) == 72
    assert (stored["sentences"], stored["nearest"]) == (203, study.NEAREST)
    assert stored["model"] == {"revision": study.REVISION, "sha256": study.SHA256}


def test_the_sets_are_those_of_the_script():
    study, stored = study_of("without_heads")
    best = stored["best"]["gone"]
    assert best == study.best_of_relations()
    drawn = study.draws(best, stored["resting"])
    of_sets = stored["sets"].items()
    assert drawn == {kind: [row["gone"] for row in rows] for kind, rows in of_sets}
    for kind, sets in drawn.items():
        assert len({tuple(gone) for gone in sets}) == len(sets) == study.DRAWS
        assert all(len(set(gone)) == len(best) for gone in sets), kind
    layers = [name[0] for name in sorted(best)]
    assert all([name[0] for name in sorted(x)] == layers for x in drawn["same layers"])
    chosen = study.busiest(best, torch.tensor(stored["written"]))
    assert chosen == {kind: row["gone"] for kind, row in stored["busiest"].items()}
    assert all(not set(gone) & set(best) for gone in chosen.values())
    same = chosen["write most, same layers"]
    assert [name[0] for name in sorted(same)] == layers and len(set(same)) == len(best)
    for gone in drawn["others"] + drawn["others, layers 0-4"]:
        assert not set(gone) & {*best, *stored["resting"]}
    assert all(5 not in study.grouped(gone) for gone in drawn["others, layers 0-4"])


def test_a_row_that_differs_is_named():
    study, stored = study_of("without_heads")
    again = [copy.deepcopy(stored["best"]), copy.deepcopy(stored["runs"][0])]
    assert study.misfits(stored, again) == []
    again[1]["kept"] -= 0.011
    (said,) = study.misfits(stored, again)
    assert said.startswith("without 0.0: kept ")
    again[0]["change"] += 0.0011
    assert len(study.misfits(stored, again)) == 2


def test_nothing_taken_away_changes_nothing():
    """And whoever is taken away is back afterwards."""
    sentences = study_of("without_heads")[0].Sentences()
    assert sentences.without([]) == {"gone": [], "kept": 1.0, "change": 0.0}
    assert sentences.without(["5.10"])["kept"] < 0.9
    assert sentences.without([])["kept"] == 1.0


# --- lesson 11: controls ---


def test_the_check_of_the_controls_can_fail():
    study, stored = study_of("smollm2_controls")
    for row in stored["runs"]:
        assert study.misfits([(row, copy.deepcopy(row))]) == []
    (row,) = runs_of(stored, control="16.0 at went")
    (said,) = study.misfits([(row, row | {"less": row["less"] + 0.05})])
    assert said.startswith("16.0 at went")
    assert study.misfits([(row, row | {"further": 0.0})])


def test_random_heads_are_others_of_the_same_layers():
    study, stored = study_of("smollm2_controls")
    for label in ("induction heads", "write most"):
        (row,) = runs_of(stored, set=label)
        for seed in range(study.RANDOM_SETS):
            (drawn,) = runs_of(stored, set=f"like {label} {seed}")
            assert not {*drawn["heads"]} & {*row["heads"]}
            layers = [sorted(study.gone(x["heads"])) for x in (row, drawn)]
            assert layers[0] == layers[1]
            assert drawn["heads"] == study.random_like(row["heads"], seed)
    assert study.random_like(["3.0", "3.1"], 1) != study.random_like(["3.0", "3.1"], 2)


# --- the atlas of the web site ---


def test_the_atlas_has_every_head_and_agrees_with_the_lessons():
    study, stored = study_of("atlas")
    for model, layers, count in (("encoder", 6, 12), ("language model", 30, 9)):
        names = [row["head"] for row in runs_of(stored, model=model)]
        assert names == [f"{x}.{y}" for x in range(layers) for y in range(count)]
    for row in stored["runs"]:
        named = row["role"] is not None
        assert named == (row["lift"] is not None) and 0 <= row["entropy"] <= 1
        if named:
            baselines = stored["models"][row["model"]]["baselines"][row["role"]]
            assert row["lift"][0] > 0 and row["scores"][row["role"]] > max(baselines)
    roles = {(row["model"], row["head"]): row["role"] for row in stored["runs"]}
    found = {"0.2": "previous token", "1.8": "next token", "4.5": "[CLS]", "0.8": None}
    for head, role in found.items():
        assert roles["encoder", head] == role  # lesson 09
    inductive = [h for (_, h), role in roles.items() if role == "induction"]
    assert {*"18.6 17.3 17.4 17.5 18.7 23.2 23.7 20.6".split()} <= {*inductive}
    assert {int(head.split(".")[0]) for head in inductive} <= {*range(17, 25)}
    assert roles["language model", "16.0"] == "previous token"  # lesson 11


def test_a_lucky_head_gets_no_role():
    study, _ = study_of("atlas")
    found = torch.tensor([[0.9, 0.9, 0.4, 0.2]] * 4 + [[0.8, 0.1, 0.5, 0.9]] * 4)
    first = torch.full((8, 4), 0.95)
    uniform, untrained = torch.full((8, 1), 0.1), torch.full((8, 5), 0.2)
    roles = {"induction": (found, uniform, untrained)}
    rows = study.rows_of("model", roles, torch.zeros(4), 2)
    assert [row["role"] for row in rows] == ["induction", None, "induction", None]
    assert [row["head"] for row in rows] == ["0.0", "0.1", "1.0", "1.1"]
    assert rows[0]["scores"] == {"induction": 0.8}  # of the other half
    roles["first token"] = (first, uniform, untrained)
    rows = study.rows_of("model", roles, torch.zeros(4), 2)
    assert [row["role"] for row in rows][2:] == ["induction", "first token"]
    choosing = {"same token": (0.9, 0.95), "first token": (0.8, 0.2)}
    choosing |= {"current token": (0.5, 0.1), "punctuation": (0.2, 0.1)}
    assert study.candidates(choosing) == ["current token", "first token"]
    sharp = {"induction": (found, uniform, torch.full((8, 5), 0.6))}
    rows = study.rows_of("model", sharp, torch.zeros(4), 2)
    assert [row["role"] for row in rows] == ["induction", None, None, None]


def test_the_check_of_the_atlas_can_fail():
    study, stored = study_of("atlas")
    rows = runs_of(stored, model="encoder")
    means = torch.tensor([row["scores"]["[CLS]"] for row in rows])
    assert study.misfits(stored, {"encoder": {"[CLS]": means}}) == []
    means[17] += 0.02
    (said,) = study.misfits(stored, {"encoder": {"[CLS]": means}})
    assert said.startswith("encoder 1.5: [CLS]")
