"""The stored study of lesson 09: complete, of this script, and consistent in itself.

The treebank is not in the repository, so the script runs here on a tiny one.
"""

import copy
import inspect
import json
from itertools import product
from pathlib import Path

import pytest
import torch
from studies import as_json, script_of

from utils.baselines import bootstrap
from utils.pretrained import MINILM_SHA256, MODEL, REVISION


@pytest.fixture(scope="module")
def treebank():
    """Return the script as a module."""
    return script_of("treebank")


@pytest.fixture(scope="module")
def stored(treebank):
    return json.loads(treebank.STORED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rows(stored):
    return {(row["relation"], row["direction"]): row for row in stored["rows"]}


def between(value, interval):
    return interval[0] <= value <= interval[1]


def test_every_relation_is_stored_in_both_directions(treebank, stored, rows):
    assert list(rows) == list(product(treebank.RELATIONS, treebank.DIRECTIONS))
    assert len(stored["rows"]) == len(rows) == 30
    assert stored["settings"] == json.loads(json.dumps(treebank.SETTINGS))
    assert stored["data"] == treebank.DATA  # the digests are those of the known files
    model = {"name": MODEL, "revision": REVISION, "sha256": MINILM_SHA256}
    assert stored["model"] == model
    draws = inspect.signature(bootstrap).parameters["draws"].default
    assert stored["settings"]["bootstrap_draws"] == draws


def test_everything_is_counted(treebank, stored):
    """Every word is a dependent: counted, or left out for a reason that is said."""
    for name, sentences in (("dev", 2001), ("test", 2077)):
        part, left_out = stored[name], stored[name]["left_out"]
        assert part["sentences"] == sentences
        assert part["sentences_read"] == sentences - left_out["sentences_too_long"]
        assert part["longest_in_pieces"] <= stored["settings"]["max_length"]
        assert part["words"] == (
            sum(part["arcs"].values())
            + sum(left_out["arcs_of_other_relations"].values())
            + left_out["arcs_with_an_unread_word"]
            + left_out["arcs_of_root_and_punctuation"]
        )
        assert not set(part["arcs"]) & set(left_out["arcs_of_other_relations"])
    for row in stored["rows"]:
        assert row["arcs"] == stored["test"]["arcs"][row["relation"]]
        assert row["arcs_chosen"] == stored["dev"]["arcs"][row["relation"]]


def test_rows_are_consistent(treebank, stored):
    names = [f"{layer}.{head}" for layer, head in product(range(6), range(12))]
    seeds = len(treebank.SETTINGS["twin_seeds"])
    for row in stored["rows"]:
        chosen, other = row["all_heads_chosen"], row["all_heads"]
        assert len(chosen) == len(other) == 72
        head = names.index(row["head"])
        assert row["chosen"] == chosen[head] == max(chosen)  # chosen on DEV …
        assert row["accuracy"] == other[head]  # … and reported on TEST
        assert between(row["accuracy"], row["interval"])
        assert between(row["offset_accuracy"], row["offset_interval"])
        assert between(row["lift"], row["lift_interval"])
        lift = row["accuracy"] - row["offset_accuracy"]
        assert row["lift"] == pytest.approx(lift, abs=2e-4)
        assert len(row["untrained"]) == len(row["sharpened"]) == seeds
        assert all(0 <= x <= row["reachable"] <= 1 for x in other)
        assert row["permuted"] <= row["permuted_most"]


def test_the_two_directions_are_one_arc_read_both_ways(treebank, rows):
    for relation in treebank.RELATIONS:
        there, back = (rows[relation, each] for each in treebank.DIRECTIONS)
        assert there["offset"] == -back["offset"]
        for same in ("offset_accuracy", "chance", "distance"):
            assert there[same] == back[same]
        assert there["reachable"] == 1 >= back["reachable"]


def test_no_text_of_the_treebank_is_stored(treebank, stored):
    known = json.dumps([treebank.SETTINGS, treebank.DATA, stored["model"]])
    heads = {f"{layer}.{head}" for layer in range(6) for head in range(12)}
    for row in stored["rows"]:
        words = {x for x in row.values() if isinstance(x, str)}
        assert len(words) == 3 and all(x in known or x in heads for x in words)
    for part in (stored["dev"], stored["test"]):
        assert not any(isinstance(x, str) for x in part.values())
    assert treebank.STORED.stat().st_size < 100_000


def test_the_check_can_fail(treebank, stored):
    again = {k: copy.deepcopy(stored[k]) for k in treebank.COMPARED}
    assert treebank.misfits(stored, again) == []
    for i, name in ((0, "accuracy"), (7, "offset_accuracy"), (29, "lift")):
        changed = copy.deepcopy(again)
        changed["rows"][i][name] += 2 * treebank.MARGIN
        (said,) = treebank.misfits(stored, changed)
        assert name in said and changed["rows"][i]["relation"] in said
    changed = copy.deepcopy(again)
    changed["rows"][3] |= {"head": "5.11", "offset": 9}
    assert len(treebank.misfits(stored, changed)) == 2
    changed["rows"].pop()
    assert "29 rows" in treebank.misfits(stored, changed)[0]
    for name in ("data", "settings", "dev", "test"):
        (said,) = treebank.misfits(stored, again | {name: {}})
        assert said.startswith(name)


# --- the script, on a tiny treebank ---


def test_yardsticks(treebank):
    pieces = torch.tensor([[1, 2, 1, 0, 3, 2, 1, 1]])  # of the words; seven were read
    reading = treebank.Reading((), torch.zeros(1, 8, 1), pieces, ("0.0",))

    def arcs(*pairs):
        word, partner = torch.tensor(pairs).T
        return treebank.Arcs(word * 0, word, partner, ("x",) * len(word))

    to_head = arcs((0, 2), (1, 2), (2, 4), (5, 6), (6, 4))
    assert treebank.chance(reading, to_head) == pytest.approx(1 / 6)
    assert treebank.even(reading, to_head) == pytest.approx(2 / 5)  # 4 has the most
    assert treebank.even(reading, arcs((4, 2))) == 0  # but is not its own partner
    reading = reading._replace(pieces=torch.tensor([[1, 2, 2, 1, 2, 1, 1, 1]]))
    for pair, wanted in (((0, 2), 1 / 3), ((1, 2), 1 / 2), ((5, 6), 0)):
        assert treebank.even(reading, arcs(pair)) == pytest.approx(wanted), pair
    assert treebank.reachable(to_head) == 1
    assert treebank.reachable(arcs((2, 0), (2, 1), (4, 2))) == 2 / 3  # one for a word


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
def tiny(treebank, tmp_path_factory):
    """Return two paths, and the study of them with few repetitions."""
    folder = tmp_path_factory.mktemp("tiny")
    paths = folder / "dev.conllu", folder / "test.conllu"
    for path, sentences in zip(paths, (TINY_DEV, TINY_TEST)):
        path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    before = dict(treebank.SETTINGS)
    treebank.SETTINGS.update(max_length=30, twin_seeds=[0], permutations=3)
    yield paths, treebank.study(*paths)
    treebank.SETTINGS.update(before)


def test_what_is_left_out_is_said(tiny):
    _, found = tiny
    test = found["test"]
    assert test["sentences"] == 4 and test["sentences_read"] == 3
    assert test["words"] == 6 + 6 + 30 + 3
    assert test["multiword_tokens_read_as_their_words"] == 1
    assert test["longest_in_pieces"] == 8
    assert test["left_out"] == {
        "sentences_too_long": 1,
        "words_of_sentences_too_long": 30,
        "words_without_pieces": 1,
        "empty_nodes": 1,
        "arcs_with_an_unread_word": 29 + 1,  # too long; amod of a sign without pieces
        "arcs_of_root_and_punctuation": 4 + 1,
        "arcs_of_other_relations": {},
    }
    assert test["arcs"]["det"] == 3 and test["arcs"]["amod"] == 0
    assert sum(test["arcs"].values()) == 10
    assert found["data"].keys() == {"sha256"}  # of other files no source is claimed
    in_both = ["det", "nsubj", "obj", "advmod"]
    assert [row["relation"] for row in found["rows"]][::2] == in_both
    det = found["rows"][0]
    assert (det["relation"], det["direction"]) == ("det", "to head")
    assert (det["arcs_chosen"], det["arcs"]) == (5, 3)
    assert (det["offset"], det["offset_chosen"]) == (1, 0.8)
    assert det["offset_accuracy"] == pytest.approx(2 / 3, abs=1e-4)


def test_the_digest_is_of_what_was_read(treebank, tiny, tmp_path, monkeypatch):
    """Each file becomes another one right after it was read."""
    paths, read = [tmp_path / path.name for path in tiny[0]], Path.read_bytes
    for path, old in zip(paths, tiny[0]):
        path.write_bytes(old.read_bytes())

    def read_and_replaced(path):
        data = read(path)
        if path in paths:
            path.write_bytes(data.replace(b"dog", b"cow") + b"\n")
        return data

    monkeypatch.setattr(Path, "read_bytes", read_and_replaced)
    assert treebank.repeated(*paths)["data"] == tiny[1]["data"]


def test_chosen_on_the_first_file(treebank, tiny):
    """With the files exchanged, what was reported is what is chosen, and back."""
    (dev, test), result = tiny
    swapped = treebank.repeated(test, dev)["rows"]
    for there, back in zip(result["rows"], swapped):
        assert there["relation"] == back["relation"]
        assert there["direction"] == back["direction"]
        assert back["chosen"] == max(there["all_heads"])
        assert there["chosen"] == max(there["all_heads_chosen"])


def test_the_command_line_and_that_the_study_is_deterministic(
    treebank, tiny, monkeypatch, capsys
):
    monkeypatch.setattr(treebank.torch, "set_num_threads", lambda n: None)
    for arguments in ([], ["one"], ["--check"], ["one", "two", "three"]):
        assert treebank.main(arguments) == 2
        assert "usage" in capsys.readouterr().out
    files = list(map(str, tiny[0]))
    assert treebank.main([*files, "--check"]) == 1  # another treebank is not as stored
    assert "data: not those" in capsys.readouterr().out
    monkeypatch.setattr(treebank, "STORED", tiny[0][0].with_suffix(".json"))
    assert treebank.main(files) == 0
    assert treebank.STORED.read_text("utf-8") == as_json(tiny[1], "rows")
    capsys.readouterr()
    assert treebank.main([*files, "--check"]) == 0
    assert capsys.readouterr().out == "As stored.\n"
