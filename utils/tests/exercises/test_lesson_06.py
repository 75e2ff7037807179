"""Lesson 06: whatever test solves exercise 6.3, both pages say the same."""

import contextlib
import copy
import io
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import MultiHeadAttention, causal_mask
from utils.exercises import EXERCISES
from utils.exercises.engine import grade
from utils.models import CausalLM
from utils.positions import Rotary
from utils.tests.exercises.test_solutions import SOLUTIONS, defined
from utils.training import train

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
PAGES = ["06_transformer_block.ipynb", "deeper/06_transformer_block.ipynb"]
OWN = ("class Block(", "class CausalLM(")  # the core's model is written out there
NAMES = {"copy": copy, "torch": torch, "nn": nn, "causal_mask": causal_mask}
NAMES |= {"MultiHeadAttention": MultiHeadAttention, "Rotary": Rotary}
NAMES |= {"CausalLM": CausalLM, "train": train}


def cells_of(page):
    """Return the cells that use the answer to 6.3, and those of the core's model."""
    cells = json.loads((NOTEBOOKS / page).read_text(encoding="utf-8"))["cells"]
    return [
        cell
        for cell in cells
        if "uses-answer-6.3" in cell["metadata"].get("tags", [])
        or "".join(cell["source"]).startswith(OWN)
    ]


def by_changes(logits_of):
    """Change one token after another; the widest tolerance that the card allows."""
    ids = torch.randint(10, (1, 64))
    for training in (True, False):
        before = logits_of(ids, training)
        for k in range(1, 64):
            changed = ids.clone()
            changed[0, k] = (changed[0, k] + 3) % 10
            moved = (logits_of(changed, training) - before)[:, :k].abs()
            if moved.max() > 0.009:
                return False
    return True


def by_cuts(logits_of):
    """Cut the text; two tokens are left at the least, so change the second of those."""
    ids = torch.randint(10, (1, 64))
    two = torch.tensor([[ids[0, 0], (ids[0, 1] + 1) % 10]])
    for training in (True, False):
        whole = logits_of(ids, training)
        parts = [(two, 1), *((ids[:, :k], k) for k in range(2, 64))]
        for part, k in parts:
            gap = logits_of(part, training)[:, :k] - whole[:, :k]
            if gap.abs().max() > 1e-3:
                return False
    return True


ANSWERS = [defined(SOLUTIONS["6.3"], "my_leak_test"), by_changes, by_cuts]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_that_solve_6_3_find_what_the_page_says(answer, page):
    assert grade(EXERCISES["6.3"], answer).solved
    cells, names, printed = cells_of(page), NAMES | {"leak_test": answer}, []
    torch.manual_seed(0)
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            exec("".join(cell["source"]), names)
        printed += told.getvalue().splitlines(keepends=True)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert printed == sum((output["text"] for output in outputs), [])
    assert any("True" in line for line in printed)
    assert any("False" in line for line in printed)


def over_words(x, attend, w_1, b_1, w_2, b_2, gains, shifts):
    """The page's norm over the words, by layer_norm."""

    def norm(y, gain, shift):
        return F.layer_norm(y.mT, y.shape[1:2]).mT * gain + shift

    x = norm(x + attend(x), gains[0], shifts[0])
    return norm(x + (x @ w_1.T + b_1).relu() @ w_2.T + b_2, gains[1], shifts[1])


def test_a_known_mistake_written_otherwise_is_the_only_fault():
    """Only its gradients differ a little, where it divides by almost nothing."""
    verdict = grade(EXERCISES["6.1"], over_words)
    assert verdict.mistake == "norm over the wrong axis"
    assert "only fault" not in verdict.message


def test_a_large_loss_must_not_be_cut_off():
    right = EXERCISES["6.2"].reference
    assert not grade(EXERCISES["6.2"], lambda *args: right(*args).clamp(max=12)).solved


def test_every_leak_of_6_3_is_as_large_as_its_card_says():
    for trial in EXERCISES["6.3"].inputs(torch.float32):
        added = trial["logits_of"].adds.float()  # by each word
        gaps = torch.cdist(added, added, p=torch.inf)
        assert gaps[~torch.eye(10, dtype=torch.bool)].min() >= 0.01
