"""Lesson 06, section 8: whatever test solves exercise 6.3, the page says the same."""

import contextlib
import io
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import MultiHeadAttention
from utils.exercises import EXERCISES
from utils.exercises.engine import grade
from utils.models import CausalLM
from utils.positions import Rotary
from utils.tests.exercises.test_solutions import SOLUTIONS, defined
from utils.training import train

PAGE = Path(__file__).parents[3] / "notebooks" / "06_transformer_block.ipynb"
FROM, TO = "def as_function(model)", "steps=more"  # the cells that use the answer
LEFT_OUT = "leak_test(as_function(model))"  # it needs the trained model
NAMES = {"torch": torch, "nn": nn, "MultiHeadAttention": MultiHeadAttention}
NAMES |= {"CausalLM": CausalLM, "Rotary": Rotary, "train": train}
PRINTED = [
    "healthy          causal? True",
    "one ahead        causal? False",
    "batch norm       causal? False",
    "mask in training causal? False",
    "after 0 steps: causal? True",
    "after 20 steps: causal? False",
]


def unmoved(tolerance):
    """Return a leak test that changes one token after another."""

    def leak_test(logits_of):
        ids = torch.randint(10, (1, 64))
        for training in (True, False):
            before = logits_of(ids, training)
            for k in range(1, 64):
                changed = ids.clone()
                changed[0, k] = (changed[0, k] + 3) % 10
                moved = (logits_of(changed, training) - before)[:, :k].abs()
                if moved.max() > tolerance:
                    return False
        return True

    return leak_test


def cut(logits_of):
    """A leak test that cuts the text, where others change a token.

    Two tokens are left at the least: of those it changes the second.
    """
    ids = torch.randint(10, (1, 64))
    two = torch.tensor([[ids[0, 0], (ids[0, 1] + 1) % 10]])
    if any(
        (logits_of(two, m) - logits_of(ids[:, :2], m))[0, 0].abs().max() > 1e-3
        for m in (True, False)
    ):
        return False
    return all(
        (logits_of(ids[:, :k], mode) - logits_of(ids, mode)[:, :k]).abs().max() < 1e-3
        for mode in (True, False)
        for k in range(2, 64)
    )


ANSWERS = {
    "the printed solution": defined(SOLUTIONS["6.3"], "my_leak_test"),
    "the widest tolerance": unmoved(0.009),
    "a text that is cut": cut,
}


def printed(answer):
    """Return what section 8 prints with an answer to 6.3."""
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    first, last = (
        next(i for i, source in enumerate(sources) if text in source)
        for text in (FROM, TO)
    )
    names = NAMES | {"leak_test": answer}
    with contextlib.redirect_stdout(io.StringIO()) as told:
        for source in sources[first : last + 1]:
            if LEFT_OUT not in source and "show(" not in source:
                exec(source, names)
    return told.getvalue().splitlines()


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_solve_6_3_find_what_the_page_says(name):
    assert grade(EXERCISES["6.3"], ANSWERS[name]).solved
    assert printed(ANSWERS[name]) == PRINTED


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
    def cut_off(train, validation, vocab_size):
        right = EXERCISES["6.2"].reference
        return right(train, validation, vocab_size).clamp(max=12)

    assert not grade(EXERCISES["6.2"], cut_off).solved
