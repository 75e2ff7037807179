"""What lessons 06, 07 and 10 give away: a file, and cells that are a script."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from utils.exercises.catalogue import cells_of
from utils.pretrained import load_story_model
from utils.stories import NUMBER, VOCAB, encode, write_stories

ROOT = Path(__file__).parents[2]
ONE_FILE = ROOT / "assets/one_file.py"


@pytest.fixture(scope="module")
def one_file() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(ONE_FILE)))


def test_one_file_has_the_model_of_lesson_06_and_the_cache_of_lesson_10(one_file):
    theirs = load_story_model().double()
    own = one_file.LanguageModel(len(VOCAB)).double()
    own.load_state_dict(theirs.state_dict())  # the same names
    ids, cache = encode(write_stories(3, seed=2))[:, :40], [{}, {}]
    logits, expected = own(ids), theirs(ids)
    near = {"atol": 1e-5, "rtol": 1e-4}  # its angles have single precision
    assert_close(logits, expected, **near)
    by_part = [own(part, cache) for part in ids.split((1, 30, 1, 8), dim=1)]
    assert_close(torch.cat(by_part, dim=1), logits)
    same = [name for name, _ in own.named_parameters()]
    found = torch.autograd.grad(logits.square().sum(), [*own.parameters()])
    named = dict(theirs.named_parameters())
    wanted = torch.autograd.grad(expected.square().sum(), [named[x] for x in same])
    for mine, other in zip(found, wanted, strict=True):
        assert (mine - other).abs().max() < 1e-4 * other.abs().max()
    for _ in range(50):
        ids = torch.cat([ids, theirs(ids)[:, -1:].argmax(dim=-1)], dim=1)
    assert torch.equal(one_file.write(own, ids[:, :40], 50, temperature=0), ids)
    assert one_file.write(own, ids, 5).shape == (3, 95)


def test_one_file_learns_a_text_and_needs_no_file_of_the_course(tmp_path):
    path = tmp_path / "text.txt"
    learned = "Zeile für Zeile. " * 20
    path.write_text(learned, encoding="utf-8")
    command = [sys.executable, "-I", str(ONE_FILE), str(path), "--length", "40"]
    done = subprocess.run([*command, "--steps", "60"], capture_output=True, check=True)
    first, last, text = done.stdout.decode().splitlines()
    assert float(first.split()[-1]) > 2 > 1 > float(last.split()[-1])
    assert text == learned[:40]
    path.write_text("short", encoding="utf-8")
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 2 and b"5 characters: --length 40 must" in done.stderr


def test_the_script_for_a_model_of_your_own_needs_no_file_of_the_course(tmp_path):
    cells = cells_of(ROOT / "notebooks/07_seeing_heads.ipynb")
    known = {
        "model": load_story_model().double(),
        "inputs": encode(write_stories(2, seed=2)),
    }
    known |= {"torch": torch, "assert_close": assert_close, "Path": Path}
    known |= {"VOCAB": VOCAB, "NUMBER": NUMBER, "write_stories": write_stories}
    for _, text, _ in cells:  # our model and its tokenizer go into a folder
        if text.startswith("# @title Set: ") and "neox" in text:
            exec(text, known)
    begin, end = (
        next(i for i, (_, text, _) in enumerate(cells) if text.startswith(heading))
        for heading in ("## At work", "## What you now know")
    )
    script = [
        text
        for kind, text, metadata in cells[begin:end]
        if kind == "code" and "jupyter" not in metadata  # folded
    ]
    path = tmp_path / "mine.py"
    text = "\n".join(script).replace("own_folder.name", repr(known["folder"]))
    path.write_text(text, "utf-8")
    command = [sys.executable, "-I", str(path)]  # -I: without the course's folder
    said = subprocess.run(command, capture_output=True, text=True).stdout
    assert "no head removed: right 1.00" in said
    assert "head 0.0: weight 0.94, without it: right 0.07" in said
    assert said.count("without it: right 1.00") == 7
