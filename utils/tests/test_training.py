"""The loop against PyTorch's parts, many copies against one, and the stop button."""

import copy
import importlib.util
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from utils import training
from utils.data import IGNORED, tokens_back
from utils.models import CausalLM
from utils.positions import Learned, Rotary, T5Bias
from utils.training import (
    History,
    clip_each,
    cross_entropy,
    learning_rate_at,
    train,
    train_many,
)

QUIET = {"progress": False}


def small(position=None, **options):
    return CausalLM(8, 16, 2, 2, position=position, **options)


def made(seed, make_model=small):
    torch.manual_seed(seed)
    return make_model()


def batch(generator):
    return tokens_back(generator, 4, 8, 8, back=1)


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def plain_loop(model, steps, seed, *, highest, warmup, decay, betas, clip):
    """Return the losses of training as one writes it with PyTorch's own parts."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=highest, betas=betas, weight_decay=decay
    )
    rise = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1 / warmup, total_iters=warmup - 1
    )
    losses = []
    for step in range(steps):
        if step == warmup:
            fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warmup)
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(
            model(inputs).transpose(1, 2), targets, ignore_index=IGNORED
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        (rise if step < warmup - 1 else fall if step >= warmup else Nothing).step()
        losses.append(loss.item())
    return losses


class Nothing:
    step = staticmethod(lambda: None)


@pytest.mark.parametrize("clip", [0.1, 100.0])
def test_equals_the_plain_loop(clip):
    model, other = made(0), made(0)
    theirs = plain_loop(
        other,
        30,
        seed=3,
        highest=0.01,
        warmup=5,
        decay=0.1,
        betas=(0.8, 0.9),
        clip=clip,
    )
    history = train(
        model,
        batch,
        30,
        seed=3,
        learning_rate=0.01,
        warmup=5,
        weight_decay=0.1,
        betas=(0.8, 0.9),
        clip=clip,
        **QUIET,
    )
    assert_close(history.losses, theirs, atol=1e-4, rtol=0)
    assert theirs[0] - theirs[-1] > 0.1  # something was learned
    probe = batch(torch.Generator())[0]
    assert_close(model(probe), other.eval()(probe), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("warmup", [0, 1, 4, 10, 20])
def test_schedule_rises_in_a_line_and_falls_along_a_cosine(warmup):
    rates = train(made(0), batch, 10, warmup=warmup, **QUIET).learning_rates
    assert rates == [learning_rate_at(i, 10, 3e-3, warmup) for i in range(10)]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=3e-3)
    if warmup < 10:
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10 - warmup)
        for rate in rates[warmup:]:
            assert math.isclose(rate, optimizer.param_groups[0]["lr"], abs_tol=1e-12)
            optimizer.step()
            fall.step()
    for i, rate in enumerate(rates[:warmup]):
        assert math.isclose(rate, 3e-3 * (i + 1) / warmup)


def test_clipping_each_equals_torch():
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 3), (3,), (2, 2, 2))
    stacks = [torch.randn(4, *shape, generator=generator) for shape in shapes]
    for stack in stacks:
        stack *= torch.tensor([0.0, 0.01, 1.0, 50.0]).view(4, *[1] * (stack.dim() - 1))
    alone = []
    for i in range(4):
        parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
        for parameter, stack in zip(parameters, stacks):
            parameter.grad = stack[i].clone()
        nn.utils.clip_grad_norm_(parameters, 0.7)
        alone.append([p.grad for p in parameters])
    clip_each(stacks, 0.7)
    for i in range(4):
        assert_close([stack[i] for stack in stacks], alone[i])


def test_loss_counts_what_is_asked():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[1, IGNORED, 2], [IGNORED, IGNORED, 0]])
    asked = [logits[0, 0], logits[0, 2], logits[1, 2]]
    each = [-x.log_softmax(-1)[t] for x, t in zip(asked, (1, 2, 0))]
    assert_close(cross_entropy(logits, targets), sum(each) / 3)
    assert_close(cross_entropy(logits[:, 2], targets[:, 2]), (each[1] + each[2]) / 2)


MODELS = {
    "plain": small,
    "learned table": lambda: small(Learned(8, 16)),
    "rotary": lambda: small(Rotary(8)),
    "shared bias": lambda: small(T5Bias(2)),
    "tied head": lambda: tied(small()),
    "post-norm, frozen": lambda: frozen(small(norm="post")),
    "no bias": lambda: small(bias=False, num_kv_heads=1, mlp_dim=0),
}


def tied(model):
    model.head.weight = model.embedding.weight
    return model


def frozen(model):
    model.embedding.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("error")
def test_many_equal_each_alone(name):
    """In double precision, so that rounding hides nothing."""

    def make_model():
        return MODELS[name]().double()

    probe, seeds = batch(torch.Generator())[0], [5, 0, 7]
    how = {"warmup": 5, "clip": 0.5, "every": 4, **QUIET}
    how["evaluate"] = lambda model: model(probe).square().mean().item()
    models, histories = train_many(make_model, batch, 15, seeds, **how)
    for seed, model, history in zip(seeds, models, histories, strict=True):
        alone = made(seed, make_model)
        expected = train(alone, batch, 15, seed=seed, **how)
        assert [n for n, _ in history.evaluations] == [0, 4, 8, 12, 15]
        for ours, theirs in zip(vars(history).values(), vars(expected).values()):
            assert_close(torch.tensor(ours), torch.tensor(theirs), atol=1e-9, rtol=0)
        assert_close(weights_of(model), weights_of(alone), atol=1e-8, rtol=0)
    assert_close(models[0](probe).isfinite().all(), torch.tensor(True))


def test_many_equal_each_alone_in_single_precision():
    _, histories = train_many(small, batch, 40, [0, 1], warmup=10, **QUIET)
    for seed in (0, 1):
        alone = train(made(seed), batch, 40, seed=seed, warmup=10, **QUIET)
        assert_close(histories[seed].losses, alone.losses, atol=1e-4, rtol=0)


def test_different_seeds_differ_and_the_same_seed_does_not():
    seen = {}

    def watched(generator):
        inputs, targets = batch(generator)
        seen.setdefault(generator.initial_seed(), []).append(inputs)
        return inputs, targets

    before = [made(seed) for seed in (1, 2)]
    models, histories = train_many(small, watched, 5, [1, 2, 1], **QUIET)
    assert histories[0] == histories[2] and histories[0].losses != histories[1].losses
    assert_close(weights_of(models[0]), weights_of(models[2]), atol=0, rtol=0)
    assert not torch.equal(seen[1][0], seen[2][0])  # data
    assert torch.equal(seen[1][0], seen[1][1])  # copies 0 and 2
    assert not torch.equal(before[0].head.weight, before[1].head.weight)  # weights
    for model, other in zip(models, before):
        assert (model.head.weight - other.head.weight).abs().max() < 0.02
    alone = [train(made(0), batch, 5, seed=seed, **QUIET).losses for seed in (1, 2, 1)]
    assert alone[0] == alone[2] != alone[1]


def test_dropout_follows_the_seed():
    runs = [
        train(made(0, lambda: small(dropout=0.3)), batch, 5, seed=seed, **QUIET).losses
        for seed in (1, 1, 2)
    ]
    torch.manual_seed(99)  # the caller's random state does not matter
    again = train(made(0, lambda: small(dropout=0.3)), batch, 5, seed=1, **QUIET)
    assert runs[0] == runs[1] == again.losses != runs[2]


def numbers(_):
    return torch.rand(1).item()


@pytest.mark.parametrize("evaluate", [None, numbers])
def test_the_callers_random_state_is_left_alone(evaluate):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    how = {"evaluate": evaluate, "every": 2, **QUIET}
    model = made(0, lambda: small(dropout=0.3))
    torch.set_rng_state(state)
    with_one = train(model, batch, 4, **how)
    assert torch.equal(torch.get_rng_state(), state)
    _, histories = train_many(small, batch, 4, [0, 1], **how)
    assert torch.equal(torch.get_rng_state(), state)
    if evaluate:  # evaluation disturbs nothing, and a seed evaluates alike
        without = train(made(0, lambda: small(dropout=0.3)), batch, 4, **QUIET)
        assert without.losses == with_one.losses
        assert histories[0].evaluations == with_one.evaluations
        assert histories[0].evaluations != histories[1].evaluations


def test_evaluation_is_in_eval_mode_without_gradients():
    seen = []

    def evaluate(model):
        seen.append((model.training, torch.is_grad_enabled()))

    def watched(generator):
        seen.append((model.training, torch.is_grad_enabled()))
        return batch(generator)

    model = small().eval()
    with torch.no_grad():  # training needs gradients, whatever is around it
        history = train(model, watched, 3, evaluate=evaluate, every=2, **QUIET)
    off, on = (False, False), (True, True)
    assert seen == [off, on, on, off, on, off] and not model.training
    assert history.evaluations == [(0, None), (2, None), (3, None)]
    assert all(p.grad is None for p in model.parameters())


def test_no_steps_are_an_evaluation():
    before = weights_of(model := small())
    history = train(model, batch, 0, evaluate=lambda model: 7, **QUIET)
    assert history == History(evaluations=[(0, 7)])
    assert_close(weights_of(model), before, atol=0, rtol=0)


def interrupted_after(calls, function):
    """Return the function; the stop button is pressed instead of a later call."""
    count = iter(range(calls))

    def interrupted(*args):
        if next(count, None) is None:
            raise KeyboardInterrupt
        return function(*args)

    return interrupted


def test_stop_button_in_train(capsys):
    whole = train(made(0), batch, 20, **QUIET)
    model = made(0)
    stopped = interrupted_after(7, batch)
    history = train(model, stopped, 20, **QUIET)
    assert history.losses == whole.losses[:7]
    assert history.learning_rates == whole.learning_rates[:7]
    assert capsys.readouterr().out == "Stopped after 7 of 20 steps.\n"
    assert not model.training and model(batch(torch.Generator())[0]).isfinite().all()
    learned = (model.head.weight - made(0).head.weight).abs().max()
    assert 0 < learned < 0.02
    model = made(0)
    evaluate = interrupted_after(2, lambda model: 1)
    history = train(model, batch, 20, evaluate=evaluate, every=5, **QUIET)
    assert history.losses == whole.losses[:10]
    assert history.evaluations == [(0, 1), (5, 1)] and not model.training


def test_stop_button_in_train_many():
    whole, histories = train_many(small, batch, 7, [0, 1], **QUIET)
    _, expected = train_many(small, batch, 20, [0, 1], **QUIET)
    probe = batch(torch.Generator())[0]
    for calls, steps in ((14, 7), (15, 7)):  # between two copies' batches, too
        stopped = interrupted_after(calls, batch)
        models, histories = train_many(small, stopped, 20, [0, 1], **QUIET)
        for seed in (0, 1):
            assert histories[seed].losses == expected[seed].losses[:steps]
            assert not models[seed].training
            assert models[seed](probe).isfinite().all()
            moved = (models[seed].head.weight - made(seed).head.weight).abs().max()
            assert 0 < moved < 0.02
    evaluate = interrupted_after(5, lambda model: 1)  # the second copy's, at step 10
    models, histories = train_many(
        small, batch, 20, [0, 1], evaluate=evaluate, every=5, **QUIET
    )
    assert [len(h.losses) for h in histories] == [10, 10]
    assert all(h.evaluations == [(0, 1), (5, 1)] for h in histories)
    again = train(models[0], batch, 3, **QUIET)  # usable: it can be trained on
    assert len(again.losses) == 3


def test_copies_are_models_of_their_own_afterwards():
    models, _ = train_many(lambda: small(T5Bias(2)), batch, 2, [0, 1], **QUIET)
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert all(p.is_leaf and p.requires_grad for p in model.parameters())
        copy.deepcopy(model).load_state_dict(model.state_dict())
    before = weights_of(models[1])
    train(models[0], batch, 2, **QUIET)
    assert_close(weights_of(models[1]), before, atol=0, rtol=0)


def test_a_copy_that_explodes_does_not_touch_the_others():
    def exploding():
        model = small()
        if torch.initial_seed() == 1:
            with torch.no_grad():
                model.head.weight.fill_(torch.inf)
        return model

    _, histories = train_many(exploding, batch, 5, [0, 1], **QUIET)
    assert math.isnan(histories[1].losses[-1])
    alone = train(made(0), batch, 5, **QUIET)
    assert_close(histories[0].losses, alone.losses, atol=1e-5, rtol=0)


def test_other_inputs_and_losses():
    """Regression, with buffers, with inputs of floating point."""

    def make_model():
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def product(generator):
        x = torch.randn(32, 2, generator=generator)
        return x, x.prod(dim=-1, keepdim=True)

    how = {"loss": F.mse_loss, "learning_rate": 0.05, "weight_decay": 0.0, **QUIET}
    models, histories = train_many(make_model, product, 200, range(4), **how)
    x = torch.tensor([[0.5, -1.0], [1.0, 1.0]])
    for model, history in zip(models, histories):
        assert history.losses[-1] < 0.1 * history.losses[0]
        assert_close(model(x)[:, 0], torch.tensor([-0.5, 1.0]), atol=0.4, rtol=0)


shared = Learned(8, 16)


@pytest.mark.parametrize(
    "error, says, call",
    [
        (
            ValueError,
            r"draws random numbers \(dropout\?\).*build it with dropout=0",
            lambda: train_many(lambda: small(dropout=0.1), batch, 2, [0], **QUIET),
        ),
        (
            ValueError,
            "copies share weights or buffers",
            lambda: train_many(lambda: small(shared), batch, 2, [0, 1], **QUIET),
        ),
        (
            TypeError,
            "make_model is a CausalLM; give a function",
            lambda: train_many(small(), batch, 2, [0], **QUIET),
        ),
        (
            TypeError,
            r"make_model\(\) returned 3",
            lambda: train_many(lambda: 3, batch, 2, [0], **QUIET),
        ),
        (ValueError, "seeds is empty", lambda: train_many(small, batch, 2, [])),
        (TypeError, "seeds is 8; give", lambda: train_many(small, batch, 2, 8)),
        (TypeError, "seed is 0.5", lambda: train_many(small, batch, 2, [0.5])),
        (TypeError, "seed is 'a'", lambda: train(small(), batch, 2, seed="a")),
        (TypeError, "model is <function", lambda: train(small, batch, 2)),
        (ValueError, "steps is -1", lambda: train(small(), batch, -1)),
        (TypeError, "steps is 2.0", lambda: train(small(), batch, 2.0)),
        (TypeError, "no option 'lr'; there", lambda: train(small(), batch, 2, lr=1)),
        (ValueError, "learning_rate is 0", lambda: train(0, 0, 0, learning_rate=0)),
        (ValueError, "warmup is -5", lambda: train(0, 0, 0, warmup=-5)),
        (ValueError, "clip is -1", lambda: train(0, 0, 0, clip=-1.0)),
        (ValueError, "weight_decay is -1", lambda: train(0, 0, 0, weight_decay=-1)),
        (ValueError, "every is 0", lambda: train(0, 0, 0, every=0)),
        (TypeError, "evaluate is 3; give", lambda: train(0, 0, 0, evaluate=3)),
        (TypeError, "loss is None; give", lambda: train(0, 0, 0, loss=None)),
        (
            TypeError,
            "returned Tensor; it must return two tensors",
            lambda: train(small(), lambda g: batch(g)[0], 2, **QUIET),
        ),
        (
            ValueError,
            "same shape for every seed",
            lambda: train_many(
                small,
                lambda g: tokens_back(g, 4, 3 + g.initial_seed(), 8, back=1),
                2,
                [0, 1],
                **QUIET,
            ),
        ),
        (
            ValueError,
            r"loss returned shape \(4, 8, 8\); it must return one number",
            lambda: train(small(), batch, 2, loss=lambda x, y: x, **QUIET),
        ),
        (
            ValueError,
            "no parameter that requires a gradient",
            lambda: train(small().requires_grad_(False), batch, 2, **QUIET),
        ),
    ],
)
def test_what_cannot_be_is_refused(error, says, call):
    with pytest.raises(error, match=says):
        call()


def test_a_refusal_leaves_the_model_as_it_was():
    made_models = []

    def make_model():
        made_models.append(small(dropout=0.1))
        return made_models[-1]

    with pytest.raises(ValueError, match="dropout"):
        train_many(make_model, batch, 2, [0, 1], **QUIET)
    for seed, model in enumerate(made_models):
        expected = made(seed, lambda: small(dropout=0.1))
        assert_close(weights_of(model), weights_of(expected), atol=0, rtol=0)
        assert model.head.weight.untyped_storage().nbytes() == model.head.weight.nbytes


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


def test_data_are_moved_to_the_model():
    """No second device is needed to see where the data go."""
    moved = []

    class Watched(torch.Tensor):
        def to(self, device):
            moved.append(device)
            return self.as_subclass(torch.Tensor)

    def watched(generator):
        return tuple(x.as_subclass(Watched) for x in batch(generator))

    train(small(), watched, 1, **QUIET)
    assert moved == [torch.device("cpu")] * 2


def bars_under(monkeypatch, disable):
    """Let bars be made by a tqdm that is imported under TQDM_DISABLE=disable."""
    monkeypatch.setenv("TQDM_DISABLE", disable)
    found = importlib.util.find_spec("tqdm.std")
    spec = importlib.util.spec_from_file_location("tqdm.again", found.origin)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(training, "tqdm", module.tqdm)


@pytest.mark.parametrize("many", [False, True])
def test_bar_shows_the_loss_and_can_be_silenced(monkeypatch, capfd, many):
    def run(**options):
        if many:
            _, (history, _) = train_many(small, batch, 3, [0, 0], **options)
        else:
            history = train(made(0), batch, 3, **options)
        return history.losses[-1], capfd.readouterr()

    bars_under(monkeypatch, disable="")
    last, printed = run()
    assert "3/3" in printed.out and f"loss={last:.3f}" in printed.out
    assert printed.err == "" and run(progress=False)[1].out == ""
    bars_under(monkeypatch, disable="1")
    assert run()[1] == ("", "")
