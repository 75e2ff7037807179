"""What the scripts of the studies do: their models, texts and scores, on small cases.

The treebank, whose texts are not in the repository, is studied here on a tiny one.
"""

import inspect
import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from assets import studies
from assets.studies import __main__ as front_door
from assets.studies import (
    _repeating,
    adversary,
    as_json,
    number_of_heads,
    parts,
    rounded,
    specialisation,
    treebank,
    without_heads,
)
from assets.studies._repeating import KINDS
from assets.studies.roles import candidates, rows_of
from utils.baselines import bootstrap
from utils.pretrained import MINILM_SHA256, MODEL, REVISION
from utils.syntax import Sentence


def test_four_different_numbers_are_asked_for_and_weights_come_from_names_alone():
    asked = number_of_heads.draw_asked(seed=0)
    x, target = number_of_heads.draw_batch(asked, torch.Generator().manual_seed(0), 3)
    assert x.shape == (3, 15, 16) and target.shape == (3, 15, 4)
    for token, others in enumerate(asked.tolist()):
        assert len({*others}) == 4
        assert torch.equal(target[:, token], x[:, others, -1])
    torch.manual_seed(0)
    model, name = number_of_heads.Asker(4, 4), torch.eye(15, 16)[None]
    twice = model(name, 2 * x) - model(name, x)  # linear in the numbers
    torch.testing.assert_close(twice, model(name, x) - model(name, 0 * x))


def test_layers_of_equal_heads_have_equal_parameters():
    """That few heads keep to their bound is asserted in deeper 02."""
    sizes = {
        sum(p.numel() for p in number_of_heads.Asker(*size).parameters())
        for size in number_of_heads.EQUAL
    }
    assert len(sizes) == 1


def test_a_model_without_a_part_is_without_this_part():
    x = torch.randn(1, 5, 128, generator=torch.Generator().manual_seed(0))

    def change(name, *silent):
        """How much the first block's output changes with its input."""
        torch.manual_seed(0)
        block = parts.make_model(name, 2, vocab_size=10).blocks[0]
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
    assert parts.make_model("no MLP", 2, 10).blocks[1].mlp is None
    kinds = {type(module) for module in parts.make_model("no norms", 2, 10).modules()}
    assert nn.LayerNorm not in kinds


def test_what_the_adversary_must_not_do_is_the_induction_score():
    weights = torch.rand(32, 4, 32, 32).masked_fill(~adversary.MASK, 0)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    expected = adversary.induction(weights, adversary.TEST, mask=adversary.MASK)
    found = adversary.after_copy(weights, adversary.TEST, 1)
    assert (found - expected.mean(dim=0)).abs().max() < 0.01  # one mean, or two
    ids, after = torch.arange(8).repeat(4)[None], torch.ones(25).diag(-7)
    for places, share in ((1, 1), (2, 0)):  # each copy comes 8 tokens later
        found = adversary.after_copy(after.expand(1, 4, 32, 32), ids, places)
        assert (found == share).all()
    nowhere = torch.eye(32).expand(32, 4, 32, 32)
    assert adversary.after_copy(nowhere, adversary.TEST, 1).max() < 0.1
    slow = adversary.SEARCHES["slow"]
    strengths = [round(slow.strength(step)) for step in (0, 600, 1200, 3000)]
    assert strengths == [3, 17, 100, 100]
    assert adversary.SEARCHES["no demand"].strength(100) == 0


def test_what_is_smeared_and_what_is_not():
    torch.manual_seed(0)
    model, x = KINDS["smeared"].make().eval(), torch.randn(1, 5, _repeating.DIM)
    layer, moved = model.blocks[0].attention, x.clone()
    moved[:, 1] += 1  # position 1: seen at 1, and at 2 if it is smeared
    seen = []
    for each in (x, moved):
        pair = (
            proj(each).unflatten(-1, (_repeating.HEADS, -1)).transpose(1, 2)
            for proj in (layer.query_proj, layer.key_proj)
        )
        seen.append(layer.position.rotate(*pair))
    for before, after, places in zip(*seen, ([1], [1, 2])):
        change = (after - before).abs().sum(dim=(0, 1, 3))
        assert (change > 1e-4).nonzero().flatten().tolist() == places


def test_each_path_that_is_hidden_matters_in_its_own_way():
    torch.manual_seed(0)
    model, texts = KINDS["two layers"].make().eval(), _repeating.unseen((9, 9), 64)
    for weight in model.parameters():
        nn.init.normal_(weight)  # heads that say much,
    nn.init.normal_(model.blocks[1].attention.out_proj.weight, std=0.1)  # not all
    right = partial(_repeating.accuracy, texts=texts)
    keys, values = (
        rounded(specialisation.hidden_from(model, part, texts[0], right))
        for part in ("key", "value")
    )
    whole = rounded(right(model))
    assert len({whole, *keys}) > 2 and len({whole, *values}) > 2 and keys != values


def test_nothing_taken_away_changes_nothing(monkeypatch):
    """And whoever is taken away is back afterwards."""
    read = without_heads.read_conllu
    monkeypatch.setattr(without_heads, "read_conllu", lambda path: read(path)[:34])
    sentences = without_heads.Sentences()
    assert sentences.without([]) == {"gone": [], "kept": 1.0}
    assert sentences.without(["5.10"])["kept"] < 0.9
    assert sentences.without([])["kept"] == 1.0


def test_a_lucky_head_gets_no_role():
    found = torch.tensor([[0.9, 0.9, 0.4, 0.2]] * 4 + [[0.8, 0.1, 0.5, 0.9]] * 4)
    first = torch.full((8, 4), 0.95)
    uniform, untrained = torch.full((8, 1), 0.1), torch.full((8, 5), 0.2)
    roles = {"induction": (found, uniform, untrained)}
    rows = rows_of("model", roles, torch.zeros(4), 2)
    assert [row["role"] for row in rows] == ["induction", None, "induction", None]
    assert [row["head"] for row in rows] == ["0.0", "0.1", "1.0", "1.1"]
    assert rows[0]["scores"] == {"induction": 0.8}  # of the other half
    roles["first token"] = (first, uniform, untrained)
    rows = rows_of("model", roles, torch.zeros(4), 2)
    assert [row["role"] for row in rows][2:] == ["induction", "first token"]
    choosing = {"same token": (0.9, 0.95), "first token": (0.8, 0.2)}
    choosing |= {"current token": (0.5, 0.1), "punctuation": (0.2, 0.1)}
    assert candidates(choosing) == ["current token", "first token"]
    unsure = found.clone()
    unsure[4:, 0] = torch.tensor([0.0, 0.45, 0.0, 0.45])  # 0.2 is in the interval
    rows = rows_of(
        "model", {"induction": (unsure, uniform, untrained)}, torch.zeros(4), 2
    )
    assert [row["role"] for row in rows] == [None, None, "induction", None]
    sharp = {"induction": (found, uniform, torch.full((8, 5), 0.6))}
    rows = rows_of("model", sharp, torch.zeros(4), 2)
    assert [row["role"] for row in rows] == ["induction", None, None, None]


STORED = studies.stored_of("treebank")


def test_the_treebank_is_that_of_the_script():
    assert STORED["data"] == treebank.DATA  # the digests are those of the known files
    model = {"name": MODEL, "revision": REVISION, "sha256": MINILM_SHA256}
    assert STORED["model"] == model
    draws = inspect.signature(bootstrap).parameters["draws"].default
    assert STORED["settings"]["bootstrap_draws"] == draws


def test_of_a_null_the_head_is_reported_that_is_best_on_the_first_set():
    chosen, reported = torch.tensor([0.1, 0.3]), torch.tensor([0.9, 0.2])
    found = treebank.best_on_other(chosen, reported)
    assert found == pytest.approx(0.2)  # not 0.9, the best here


def test_between_an_object_and_its_verb():
    def stands(words, tags, heads, word, verb):
        text = Sentence("", "", words.split(), tags.split(), heads, [], 0)
        return treebank.between(text, word, verb)

    plain = "VERB DET ADJ NOUN", [0, 4, 4, 1], 3, 0
    assert stands("saw the old car", *plain) == "only words of the object"
    two = "VERB PRON DET NOUN", [0, 1, 4, 1], 3, 0
    assert stands("gave her the car", *two) == "other words: only pronouns"
    noun = "VERB PRON NOUN NOUN", [0, 3, 1, 1], 3, 0
    assert stands("gave my son cars", *noun) == "other words"
    later = "DET NOUN VERB", [2, 3, 0], 1, 2
    assert stands("what car sold", *later) == "the verb comes later"
    near = "VERB NOUN", [0, 1], 1, 0
    assert stands("saw cars", *near) == "only words of the object"


def test_the_usual_tag_of_a_word_is_its_most_frequent_one():
    tags = "NOUN VERB NOUN".split()
    some = [SimpleNamespace(words=["Saw"], upos=[tag]) for tag in tags]
    assert treebank.usual_tags(some) == {"saw": "NOUN"}


def test_the_objects_of_the_treebank_add_up_to_its_row():
    key = ("obj", "to head")
    (row,) = (r for r in STORED["rows"] if (r["relation"], r["direction"]) == key)
    counts = [x for group in STORED["objects"].values() for x in group.values()]
    assert sum(x["objects"] for x in counts) == row["arcs"]
    found = sum(x["head"] for x in counts) / row["arcs"]
    assert found == pytest.approx(row["accuracy"], abs=1e-4)
    groups = STORED["objects"].values()
    at_offset = sum(x["2"]["objects"] for x in groups if "2" in x) / row["arcs"]
    assert row["offset"] == -2
    assert at_offset == pytest.approx(row["offset_accuracy"], abs=1e-4)


def test_no_text_of_the_treebank_is_stored():
    known = json.dumps([treebank.SETTINGS, treebank.DATA, STORED["model"]])
    heads = without_heads.NAMES
    for row in STORED["rows"]:
        words = {x for x in row.values() if isinstance(x, str)}
        assert len(words) == 3 and all(x in known or x in heads for x in words)
    for part in (STORED["dev"], STORED["test"]):
        assert not any(isinstance(x, str) for x in part.values())
    assert (studies.FOLDER / "treebank.json").stat().st_size < 50_000


def block(name, words, heads, relations):
    """Return the lines of a sentence; "_" in a relation stands for no space."""
    rows = zip(words.split(), heads, relations.split())
    return f"# sent_id = {name}\n" + "".join(
        f"{i}\t{word}\t_\tX\t_\t_\t{head}\t{relation}\t_\t_\n"
        for i, (word, head, relation) in enumerate(rows, 1)
    )


DET = ([2, 3, 0, 5, 3, 3], "det nsubj root det obj punct")
TINY_DEV = [
    block("1", "The dog saw a cat .", *DET),
    block("2", "Every child reads some book .", *DET),
    block("3", "The very old house burned .", [4, 3, 4, 5, 0, 5],
          "det advmod amod nsubj root punct"),
]  # fmt: skip
TINY_TEST = [
    block("1", "A bird sang the song !", *DET),
    block("2", "My friend is a \ufe0f doctor", [2, 6, 6, 6, 6, 0],
          "nmod:poss nsubj cop det amod root"),
    block("3", "word " * 30, [0] + [1] * 29, "root " + "conj " * 29),
    "1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tDo\t_\tAUX\t_\t_\t3\taux\t_\t_\n"
    "2\tn't\t_\tPART\t_\t_\t3\tadvmod\t_\t_\n"
    "3\tgo\t_\tVERB\t_\t_\t0\troot\t_\t_\n"
    "3.1\tgo\t_\tVERB\t_\t_\t_\t_\t_\t_\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return two paths, and the study of them with few repetitions."""
    folder = tmp_path_factory.mktemp("tiny")
    paths = folder / "dev.conllu", folder / "test.conllu"
    for path, sentences in zip(paths, (TINY_DEV, TINY_TEST)):
        path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    before = dict(treebank.SETTINGS)
    treebank.SETTINGS.update(max_length=30, twin_seeds=[0], permutations=3)
    yield paths, studies.whole(treebank, *paths)
    treebank.SETTINGS.update(before)


def test_what_is_left_out_is_said(tiny):
    _, found = tiny
    test = found["test"]
    assert test["sentences"] == 4 and test["longest_in_pieces"] == 8
    out = {"sentences_too_long": 1, "words_without_pieces": 1, "empty_nodes": 1}
    assert test["left_out"] == out
    assert found["data"].keys() == {"sha256"}  # of other files no source is claimed
    in_both = ["det", "nsubj", "obj", "advmod"]
    assert [row["relation"] for row in found["rows"]][::2] == in_both
    det = found["rows"][0]
    assert (det["relation"], det["direction"]) == ("det", "to head")
    assert (det["arcs_chosen"], det["arcs"]) == (5, 3)
    assert (det["offset"], det["offset_chosen"]) == (1, 0.8)
    (counts,) = found["objects"]["only words of the object"].values()
    assert len(found["objects"]) == 1
    assert (counts["objects"], counts["rule"]) == (1, 0)  # no word is tagged as a verb
    assert det["offset_accuracy"] == pytest.approx(2 / 3, abs=1e-4)


def test_chosen_on_the_first_file(tiny):
    """With the files exchanged, it is chosen from what was reported."""
    (dev, test), result = tiny
    _, *swapped = treebank.again({}, test, dev)
    for there, back in zip(result["rows"], swapped, strict=True):
        assert there["relation"] == back["relation"]
        assert there["direction"] == back["direction"]
        assert back["chosen"] == max(there["all_heads"])
        head = without_heads.NAMES.index(there["head"])
        assert there["accuracy"] == there["all_heads"][head]


def test_the_study_is_deterministic_and_another_treebank_is_told(
    tiny, monkeypatch, capsys, tmp_path
):
    files = list(map(str, tiny[0]))
    assert front_door.main(["treebank", *files, "--check"]) == 1
    said = capsys.readouterr().out
    for name in ("data", "dev", "test", "objects", "relations"):
        assert f"all: {name}" in said
    for module in (studies, front_door):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    assert front_door.main(["treebank", *files]) == 0
    assert (tmp_path / "treebank.json").read_text("utf-8") == as_json(tiny[1])
    assert front_door.main(["treebank", "--check", *files]) == 0
    with pytest.raises(SystemExit):
        front_door.main(["treebank", files[0]])
