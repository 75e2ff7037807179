"""Lesson 06: whatever test solves exercise 6.3, both pages say the same."""

import contextlib
import copy
import io
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from utils.attention import MultiHeadAttention, causal_mask
from utils.oldex import EXERCISES
from utils.oldex.engine import grade
from utils.models import CausalLM
from utils.positions import Rotary
from utils.tests.oldex.test_solutions import SOLUTIONS, defined
from utils.training import train

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
PAGES = ["06_transformer_block.ipynb", "deeper/06_transformer_block.ipynb"]
NAMES = {"copy": copy, "torch": torch, "nn": nn, "causal_mask": causal_mask}
NAMES |= {"MultiHeadAttention": MultiHeadAttention, "Rotary": Rotary}
NAMES |= {"CausalLM": CausalLM, "train": train, "math": math}


@pytest.fixture
def names():
    """What the pages define before these cells, with a smaller model."""
    torch.manual_seed(0)
    return NAMES | {"model": CausalLM(30, 128, 4, 1, position=Rotary(32))}


def cells_of(page):
    """Return the cells that use the answer to 6.3."""
    cells = json.loads((NOTEBOOKS / page).read_text(encoding="utf-8"))["cells"]
    return [
        cell for cell in cells if "uses-answer-6.3" in cell["metadata"].get("tags", [])
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


@pytest.mark.parametrize("answer", ANSWERS)
def test_each_of_these_answers_solves_6_3(answer):
    assert grade(EXERCISES["6.3"], answer).solved


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_that_solve_6_3_find_what_the_page_says(answer, page, names):
    cells, printed = cells_of(page), []
    names["leak_test"] = answer
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


def changing(logits_of, new, reference=None):
    """Change each token into new(token); the outputs before may be of another mode."""
    ids = torch.randint(10, (1, 64), generator=torch.Generator().manual_seed(5))
    for training in (True, False):
        before = logits_of(ids, training if reference is None else reference)
        for k in range(1, 64):
            changed = ids.clone()
            changed[0, k] = new(changed[0, k])
            if (logits_of(changed, training) - before)[:, :k].abs().max() > 1e-3:
                return False
    return True


def test_a_leak_test_that_leaves_some_tokens_as_they_are_is_refused():
    """Each token is set to 9, and a token that is 9 already does not change."""
    verdict = grade(EXERCISES["6.3"], lambda model: changing(model, lambda _: 9))
    assert not verdict.solved and "only token" in verdict.message


@pytest.mark.parametrize("mode", [True, False])
def test_a_leak_test_may_not_compare_two_modes(mode):
    def across(model):
        return changing(model, lambda token: (token + 1) % 10, reference=mode)

    verdict = grade(EXERCISES["6.3"], across)
    assert verdict.mistake == "evaluation compared with training"


@pytest.mark.parametrize("row", [0, -1])
def test_a_loss_cut_at_the_length_of_one_row_is_named(row):
    def cut(logits, ids, pad):
        n = (ids[row] != pad).sum()
        logits, targets = logits[:, : n - 1].flatten(0, 1), ids[:, 1:n].flatten()
        return F.cross_entropy(logits, targets, ignore_index=pad)

    verdict = grade(EXERCISES["6.4"], cut)
    assert verdict.mistake == "cut at the length of one row"


def test_a_table_of_pairs_read_the_wrong_way_round_is_named():
    def exchanged(train, validation, vocab_size):
        pairs = torch.zeros(vocab_size, vocab_size)
        for a, b in zip(train[:-1], train[1:]):
            pairs[a, b] += 1
        counts = torch.bincount(train, minlength=vocab_size) + 1
        losses = []
        for a, b in zip(validation[:-1], validation[1:]):
            seen, p = pairs[a].sum(), counts[b] / counts.sum()
            if seen > 0:
                passed_on = 0.75 * (pairs[a] > 0).sum() * p
                p = ((pairs[b, a] - 0.75).clamp(min=0) + passed_on) / seen
            losses.append(-p.log())
        return torch.stack(losses)

    verdict = grade(EXERCISES["6.2"], exchanged)
    assert verdict.mistake == "before and after exchanged"


@pytest.mark.parametrize("page", PAGES)
def test_dropout_is_no_leak(page, names):
    """The page's `as_function` gives both texts the same dropout."""
    for cell in cells_of(page):
        source = "".join(cell["source"])
        if "def as_function" in source or source.startswith("class OneAhead"):
            exec(source, names)
    as_function, leaky = names["as_function"], names["OneAhead"]
    torch.manual_seed(0)
    model = CausalLM(10, 32, 4, 2, position=Rotary(8), dropout=0.1)
    assert by_changes(as_function(model))
    model.blocks[0].attention = leaky(32, 4, position=Rotary(8), dropout=0.1)
    assert not by_changes(as_function(model))


def averaged(ids, new, logits_of, read=lambda logits: logits, size=torch.amax):
    """Change each token into new(token); `size` of what moves before it counts."""
    for training in (True, False):
        before = read(logits_of(ids, training))
        for k in range(1, 64):
            changed = ids.clone()
            changed[0, k] = new(changed[0, k])
            moved = (read(logits_of(changed, training)) - before)[:, :k].abs()
            if size(moved) > 1e-4:
                return False
    return True


@pytest.mark.parametrize("seed", range(6))
def test_a_leak_test_that_draws_tokens_anew_or_takes_means_is_refused(seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(10, (1, 64), generator=generator)

    def anew(_):
        return torch.randint(10, (), generator=generator)

    def next_one(token):
        return (token + 1) % 10

    drawn = grade(EXERCISES["6.3"], lambda model: averaged(ids, anew, model))
    assert not drawn.solved
    if ids[0, 40] != 9:  # 9 becomes 0, which moves the one logit most
        means = grade(
            EXERCISES["6.3"],
            lambda model: averaged(ids, next_one, model, size=torch.mean),
        )
        assert not means.solved


def test_probabilities_and_later_outputs_are_named_in_6_3():
    ids = torch.arange(64)[None] % 10

    def likely(logits_of):
        def read(logits):
            return logits.log_softmax(dim=-1)

        return averaged(ids, lambda token: (token + 1) % 10, logits_of, read)

    assert grade(EXERCISES["6.3"], likely).mistake == "probabilities compared"
