"""Training: one plain loop for a model, and one for many copies of it at once.

Data come from `make_batch(generator)`, which returns (inputs, targets); `data.py` has
some. They are made on the CPU and moved to where the model is.
"""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from utils import checks

ADAMW = {"betas": (0.9, 0.98), "weight_decay": 0.01, "fused": True}
LONGEST = 1.0  # gradient, of all parameters together; a longer one is shortened


@dataclass
class History:
    """The loss of each step, and (steps taken, evaluate(model)) for each evaluation."""

    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple] = field(default_factory=list)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of -log softmax(logits)[target] over the targets that count.

    logits (..., classes); targets (...), whole numbers; -100 = does not count.
    """
    if logits.shape[:-1] != targets.shape:
        shapes = f"logits {tuple(logits.shape)}, targets {tuple(targets.shape)}"
        raise ValueError(f"{shapes}: give (..., classes) and (...).")
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def train(
    model: nn.Module,
    make_batch: Callable,
    steps: int,
    *,
    seed: int = 0,
    learning_rate: float = 3e-3,
    warmup: int = 50,
    loss: Callable = cross_entropy,
    evaluate: Callable | None = None,
    every: int = 100,
    progress: bool = True,
) -> History:
    """Train a model in place, and return its history.

    make_batch: make_batch(generator) -> (inputs, targets).
    seed: of the generator and of dropout; the caller's own random state is left alone.
    learning_rate: the highest one of AdamW, see `learning_rate_at`.
    loss: loss(model(inputs), targets) -> a tensor with one number.
    evaluate: evaluate(model) -> anything; called in eval mode, without gradients,
        before the first step, after every `every` steps, and after the last.
    progress: show a bar with the loss; the environment's TQDM_DISABLE=1 hides all.
    The stop button ends it early. The model is left in eval mode.
    Source: Loshchilov and Hutter 2019 (AdamW).

    >>> def double(generator):
    ...     x = torch.randn(8, 1, generator=generator)
    ...     return x, 2 * x
    >>> how = {"loss": F.mse_loss, "progress": False, "learning_rate": 0.1}
    >>> history = train(nn.Linear(1, 1), double, steps=200, **how)
    >>> len(history.losses), history.losses[-1] < history.losses[0]
    (200, True)
    """
    _check(steps, learning_rate, warmup, every)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    generator, history = torch.Generator().manual_seed(seed), History()
    device = next(model.parameters()).device
    model.train()
    with _running(steps, seed, progress, history.losses) as bar:
        for step in bar:
            if evaluate and step % every == 0:
                history.evaluations.append((step, _evaluated(evaluate, model, seed)))
            inputs, targets = (x.to(device) for x in make_batch(generator))
            rate = learning_rate_at(step, steps, learning_rate, warmup)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            found = loss(model(inputs), targets)
            found.backward()
            nn.utils.clip_grad_norm_(model.parameters(), LONGEST)
            optimizer.step()
            history.losses.append(found.item())
            bar.set_postfix(loss=f"{history.losses[-1]:.3f}", refresh=False)
        if evaluate:
            history.evaluations.append((steps, _evaluated(evaluate, model, seed)))
    optimizer.zero_grad()
    model.eval()
    return history


def train_many(
    make_model: Callable[[], nn.Module],
    make_batch: Callable,
    steps: int,
    seeds: Sequence[int],
    *,
    learning_rate: float = 3e-3,
    warmup: int = 50,
    loss: Callable = cross_entropy,
    evaluate: Callable | None = None,
    every: int = 100,
    progress: bool = True,
) -> tuple[list[nn.Module], list[History]]:
    """Train one copy of a model per seed, all at once; return them and their histories.

    Each copy is what `train` makes of it alone, up to rounding: `make_model()` is
    called after `torch.manual_seed(seed)`, data come from a generator that starts from
    seed, gradients are clipped copy by copy. The options are those of `train`.
    The smaller the models, the more time it saves. They must draw no random numbers:
    build them with dropout=0.
    """
    _check(steps, learning_rate, warmup, every)
    models = []
    for seed in seeds:
        with _seeded(seed):
            models.append(make_model())
    stack = _stacked(models)
    trained = [x for x in dict.fromkeys(stack.values()) if x.requires_grad]
    device = trained[0].device
    optimizer = torch.optim.AdamW(trained, **ADAMW)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    losses, evaluations = [], []  # one entry per step, with a number for each copy

    def loss_of_one(stack, inputs, targets):
        outputs = functional_call(models[0], stack, (inputs,), tie_weights=False)
        return loss(outputs, targets)

    def look(step):
        _hand_out(stack, models)
        values = [_evaluated(evaluate, *each) for each in zip(models, seeds)]
        evaluations.append((step, values))

    models[0].train()
    with _running(steps, seeds[0], progress, losses) as bar:
        for step in bar:
            if evaluate and step % every == 0:
                look(step)
            batches = [make_batch(generator) for generator in generators]
            inputs, targets = (torch.stack(part).to(device) for part in zip(*batches))
            rate = learning_rate_at(step, steps, learning_rate, warmup)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for other kernels
                found = vmap(loss_of_one)(stack, inputs, targets)  # (copies,)
            found.sum().backward()
            clip_each([x.grad for x in trained if x.grad is not None], LONGEST)
            optimizer.step()
            losses.append(found.tolist())
            bar.set_postfix(loss=f"{sum(losses[-1]) / len(models):.3f}", refresh=False)
        if evaluate:
            look(steps)
    _hand_out(stack, models)
    many = [History([each[i] for each in losses]) for i in range(len(models))]
    for step, values in evaluations:
        for history, value in zip(many, values):
            history.evaluations.append((step, value))
    return models, many


def learning_rate_at(step: int, steps: int, highest: float, warmup: int) -> float:
    """Return the learning rate of a step (from 0): up in a line, down along a cosine.

    >>> [learning_rate_at(step, 6, 1.0, warmup=2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < warmup:
        return highest * (step + 1) / warmup
    return highest * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


@torch.no_grad()
def clip_each(gradients: list[Tensor], longest: float) -> None:
    """Clip each copy's gradient in place, as `clip_grad_norm_` does for one model.

    gradients: of every parameter, (copies, ...).
    """
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    factors = (longest / (norms + 1e-6)).clamp(max=1.0)  # (copies,)
    for g in gradients:
        g.mul_(factors.view(-1, *[1] * (g.dim() - 1)))


def _check(steps, learning_rate, warmup, every) -> None:
    """Refuse numbers that cannot be meant, and that PyTorch would take."""
    checks.check_size("steps", steps)
    checks.check_positive("learning_rate", learning_rate)
    checks.check_size("warmup", warmup)
    checks.check_size("every", every, least=1)
    if 0 < steps < warmup:
        raise ValueError(f"steps is {steps}, but the rate rises for {warmup=} steps.")


@contextmanager
def _running(steps: int, seed: int, progress: bool, done: list):
    """Give a bar over the steps: seeded, with gradients, ended by the stop button.

    done: has one entry for each step that was taken.
    """
    hidden = {} if progress else {"disable": True}  # without it TQDM_DISABLE rules
    bar = tqdm(range(steps), file=sys.stdout, unit="step", **hidden)
    try:
        with _seeded(seed), torch.enable_grad(), bar:
            yield bar
    except KeyboardInterrupt:
        print(f"Stopped after {len(done)} of {steps} steps.")


@contextmanager
def _seeded(seed: int):
    """Seed PyTorch's own random numbers; afterwards they go on as if nothing was."""
    checks.check_size("seed", seed)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _evaluated(evaluate: Callable, model: nn.Module, seed: int):
    """Return evaluate(model); the training goes on as if nothing was."""
    model.eval()
    with torch.no_grad(), _seeded(seed):
        value = evaluate(model)
    model.train()
    return value


def _places(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and buffers by their place; a shared one has several places.

    But a module with two names is one place: `functional_call` takes it for two.
    """
    return {
        name: tensor
        for path, module in model.named_modules()
        for own in (module.named_parameters, module.named_buffers)
        for name, tensor in own(path, recurse=False)
    }


def _stacked(models: list[nn.Module]) -> dict[str, Tensor]:
    """Return the weights and buffers of all models by their place, (copies, ...)."""
    places = [_places(model) for model in models]
    owned = [id(tensor) for own in places for tensor in set(own.values())]
    if len(set(owned)) < len(owned):
        raise ValueError("copies share weights; make_model() must build all anew.")
    stacks = {}  # by the first model's tensor
    for name, tensor in places[0].items():
        if tensor not in stacks:
            stack = torch.stack([own[name].detach() for own in places])
            stacks[tensor] = stack.requires_grad_(tensor.requires_grad)
    return {name: stacks[tensor] for name, tensor in places[0].items()}


def _hand_out(stack: dict[str, Tensor], models: list[nn.Module]) -> None:
    """Copy each model's weights out of the stack, and put it in eval mode."""
    for i, model in enumerate(models):
        for name, tensor in _places(model).items():
            tensor.data.copy_(stack[name][i])
        model.eval()
