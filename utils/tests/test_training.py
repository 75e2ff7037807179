"""The loop against PyTorch's parts, many copies against one, and the stop button."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.testing import assert_close

from utils import training
from utils.data import IGNORED, tokens_back
from utils.models import CausalLM
from utils.positions import Learned, Rotary, T5Bias
from utils.tests.helpers import guards
from utils.training import History, cross_entropy, train, train_many

QUIET = {"progress": False, "warmup": 2}
PROBE = torch.arange(16).view(2, 8) % 8


def small(position=None, **options):
    return CausalLM(8, 16, 2, 2, position=position, embedding_std=None, **options)


def made(seed, make_model=small):
    torch.manual_seed(seed)
    return make_model()


def batch(generator):
    return tokens_back(generator, 4, 8, 8, back=1)


def plain_loop(model, steps, seed, *, loss, highest, warmup):
    """The oracle: the losses of training as one writes it with PyTorch's own parts."""
    generator, losses = torch.Generator().manual_seed(seed), []
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=highest, betas=(0.9, 0.98), weight_decay=0.01
    )
    rise = lr_scheduler.LinearLR(optimizer, 1 / warmup, 1, warmup - 1)
    fall = lr_scheduler.CosineAnnealingLR(optimizer, steps - warmup)
    schedule = lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])
    for _ in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        found = loss(model(inputs).transpose(1, 2), targets)
        found.backward()
        losses.append(found.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return losses


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])  # of the loss: with 1, some of
# the gradients are clipped, with the others none or all
def test_equals_the_plain_loop(factor):
    def loss(logits, targets):
        return factor * F.cross_entropy(logits, targets, ignore_index=IGNORED)

    model, other, how = made(0), made(0), {"loss": loss, "warmup": 5}
    theirs = plain_loop(other, 30, seed=3, highest=0.01, **how)
    how["loss"] = lambda logits, targets: loss(logits.transpose(1, 2), targets)
    how |= {"learning_rate": 0.01, "progress": False}
    history = train(model, batch, 30, seed=3, **how)
    assert_close(history.losses, theirs, atol=1e-4 * factor, rtol=0)
    assert theirs[0] - theirs[-1] > 0.1 * factor  # something was learned
    assert_close(model(PROBE), other.eval()(PROBE), atol=1e-3, rtol=1e-3)


def test_loss_counts_the_targets_that_count():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, IGNORED, 2], [IGNORED, IGNORED, 0]])
    asked = [logits[0, 0], logits[0, 2], logits[1, 2]]
    each = [-x.log_softmax(-1)[t] for x, t in zip(asked, (1, 2, 0))]
    assert_close(cross_entropy(logits, targets), sum(each) / 3)
    assert_close(cross_entropy(logits[:, 2], targets[:, 2]), (each[1] + each[2]) / 2)


# --- many at once ---


MODELS = {
    "learned table": lambda: small(Learned(8, 16)),  # one module with many names
    "shared bias": lambda: small(T5Bias(2)),
    "rotary, no MLP": lambda: small(Rotary(8), mlp_dim=0),
}


class Odd(nn.Module):
    """A frozen weight, one that is never called, and a buffer that training changes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 16).requires_grad_(False)
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 8)
        self.spare = nn.Linear(1, 1)
        self.eval()  # from which both loops switch

    def forward(self, ids):
        return self.head(self.norm(self.embedding(ids).mT).mT)


@pytest.mark.parametrize("make", [*MODELS.values(), Odd], ids=[*MODELS, "odd"])
@pytest.mark.filterwarnings("error")
def test_many_equal_each_alone(make):
    """In double precision: rounding hides nothing. Some gradients are clipped."""

    def make_model():
        return make().double()

    seeds, how = [5, 0, 7], {**QUIET, "warmup": 5, "every": 4}
    how["loss"] = lambda logits, targets: 1.2 * cross_entropy(logits, targets)
    how["evaluate"] = lambda model: model(PROBE).square().mean().item()
    models, histories = train_many(make_model, batch, 15, seeds, **how)
    for seed, model, history in zip(seeds, models, histories, strict=True):
        alone = made(seed, make_model)
        expected = train(alone, batch, 15, seed=seed, **how)
        assert [n for n, _ in history.evaluations] == [0, 4, 8, 12, 15]
        for ours, theirs in zip(vars(history).values(), vars(expected).values()):
            assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-9, rtol=0)
        assert_close(model.state_dict(), alone.state_dict(), atol=1e-8, rtol=0)
        assert not model.training and model(PROBE).isfinite().all()
        for x in (*model.parameters(), *model.buffers()):  # a model of its own again
            assert x.is_leaf and x.untyped_storage().nbytes() == x.nbytes


# --- what is left alone, and what is seen ---


def with_dropout():
    return small(dropout=0.3)


def run(seeds, make_batch, steps=20, make_model=small, **options):
    """Return (models, histories), of `train` for one seed, else of `train_many`."""
    if len(seeds) > 1:
        return train_many(make_model, make_batch, steps, seeds, **options)
    model = made(*seeds, make_model)
    return [model], [train(model, make_batch, steps, **options)]


def test_no_random_state_touches_another():
    """Dropout follows the seed; evaluation disturbs nothing, and a seed draws alike."""
    how = {"evaluate": lambda _: torch.rand(1).item(), "every": 2, **QUIET}
    losses = []
    for seed, callers in ((1, 0), (1, 99), (2, 0)):
        model = made(0, with_dropout)
        torch.manual_seed(callers)  # the caller's random state does not matter
        losses.append(train(model, batch, 4, seed=seed, **QUIET).losses)
    assert losses[0] == losses[1] != losses[2]
    model, state = made(0, with_dropout), torch.get_rng_state()
    one = train(model, batch, 4, seed=1, **how)
    _, (same, other) = train_many(small, batch, 4, [1, 0], **how)
    assert torch.equal(torch.get_rng_state(), state)
    assert one.losses == losses[0]
    assert one.evaluations == same.evaluations != other.evaluations


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_evaluation_is_in_eval_mode_without_gradients(seeds):
    seen = []

    class Watched(nn.Linear):
        def forward(self, x):
            seen.append((self.training, torch.is_grad_enabled()))
            return super().forward(x)

    def pairs(generator):
        return (torch.randn(2, 1, generator=generator),) * 2

    def look(model):
        return model(torch.ones(1, 1)).requires_grad

    how = {"loss": F.mse_loss, "make_model": lambda: Watched(1, 1).eval(), **QUIET}
    with torch.no_grad():  # training needs gradients, whatever is around it
        models, (history, *_) = run(seeds, pairs, 3, every=2, evaluate=look, **how)
    off, on = [(False, False)] * len(seeds), [(True, True)]
    assert seen == [*off, *on, *on, *off, *on, *off]
    assert history.evaluations == [(0, False), (2, False), (3, False)]
    assert not any(m.training for m in models)
    assert all(p.grad is None for m in models for p in m.parameters())
    seen.clear()
    run(seeds, pairs, 2, **how)  # from eval mode, and nothing evaluates
    assert seen == [(True, True)] * 2
    history = train(models[0], pairs, 0, evaluate=lambda _: 7)
    assert history == History(evaluations=[(0, 7)])  # no steps are an evaluation
    how = {"loss": F.mse_loss, "progress": False}
    history = train(models[0], pairs, 102, evaluate=lambda _: 1, **how)
    assert history.evaluations == [(0, 1), (100, 1), (102, 1)]  # as long as not told


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_stop_button(seeds, capsys):
    """It ends the training between two steps; what was done until then stays."""
    calls, (_, whole) = iter(range(7 * len(seeds))), run(seeds, batch, **QUIET)

    def interrupted(generator):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return batch(generator)

    models, histories = run(seeds, interrupted, **QUIET)
    assert capsys.readouterr().out == "Stopped after 7 of 20 steps.\n"
    for seed, model, history, all_of_it in zip(seeds, models, histories, whole):
        assert history == History(all_of_it.losses[:7])
        assert not model.training and all(p.grad is None for p in model.parameters())
        assert 0 < (model.head.weight - made(seed).head.weight).abs().max() < 0.05


shared = Learned(8, 16)
NO_MEAN = QUIET | {"loss": lambda x, y: F.cross_entropy(x.mT, y, reduction="none")}
REFUSED = r"""
randomness error mode | train_many(with_dropout, batch, 2, [0], **QUIET)
a weight has two places | train_many(lambda: small(shared), batch, 2, [0, 1], **QUIET)
tie no weights | train_many(lambda: small(tied=True), batch, 2, [0], **QUIET)
steps is 20, but .* warmup=50 | train(small(), 0, 20)
Invalid learning rate | train(small(), 0, 60, learning_rate=-0.1)
logits \(2, 3, 4\), targets \(2, 1\) | cross_entropy(torch.ones(2, 3, 4), PROBE[:, :1])
invalid for input of size 32 | train(small(), batch, 2, **NO_MEAN)
invalid for input of size 32 | train_many(small, batch, 2, [0], **NO_MEAN)
"""

test_what_cannot_be_is_refused = guards(
    REFUSED, globals(), (ValueError, TypeError, RuntimeError)
)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_trains_where_the_model_is():
    state = torch.cuda.get_rng_state()
    model = small(Rotary(8), dropout=0.1).cuda()
    assert len(train(model, batch, 3, **QUIET).losses) == 3
    models, histories = train_many(lambda: small().cuda(), batch, 3, [0, 1], **QUIET)
    assert all(p.is_cuda for model in models for p in model.parameters())
    alone = train(made(0), batch, 3, **QUIET)
    assert_close(histories[0].losses, alone.losses, atol=1e-3, rtol=0)
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.mark.parametrize("disable", ["", "1"])
@pytest.mark.parametrize("seeds", [[0], [0, 0]])
def test_bar_shows_the_loss_and_can_be_hidden(monkeypatch, capfd, seeds, disable):
    monkeypatch.setenv("TQDM_DISABLE", disable)  # read when tqdm is imported
    spec = importlib.util.find_spec("tqdm.std")
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    monkeypatch.setattr(training, "tqdm", again.tqdm)
    last = run(seeds, batch, 3, warmup=2)[1][0].losses[-1]
    printed = capfd.readouterr()
    shown = "3/3" in printed.out and f"loss={last:.3f}" in printed.out
    assert shown == (disable == "") and printed.err == ""
    run(seeds, batch, 3, warmup=2, progress=False)
    assert capfd.readouterr().out == ""
