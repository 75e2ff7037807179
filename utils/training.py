"""Training: a plain loop for one model, and the same loop for many copies at once.

Data come from make_batch(generator), which returns (inputs, targets), as the tasks of
`data.py` do. They are made on the CPU and moved to where the model is.
"""

import math
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from utils.recording import looking

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
    model, make_batch, steps, *, seed=0, loss=cross_entropy, evaluate=None, **how
) -> History:
    """Train a model in place with AdamW, and return its history.

    seed: of the data's generator and of dropout. Your own random state does not change.
    loss: loss(model(inputs), targets) -> a tensor with one number.
    evaluate: evaluate(model) -> anything, e.g. an accuracy. It is called in eval mode,
        without gradients: before the first step, after every `every` steps, and after
        the last.
    how: learning_rate=3e-3, the highest; warmup=50, the steps until it is reached (see
        `learning_rate_at`); every=100; progress=True, a bar, unless TQDM_DISABLE=1.
    The stop button ends the training early. The model is left in eval mode.
    Source: Loshchilov and Hutter 2019 (AdamW).

    >>> def double(generator):
    ...     x = torch.randn(8, 1, generator=generator)
    ...     return x, 2 * x
    >>> how = {"loss": F.mse_loss, "progress": False, "learning_rate": 0.1}
    >>> history = train(nn.Linear(1, 1), double, steps=200, **how)
    >>> len(history.losses), history.losses[-1] < history.losses[0]
    (200, True)
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = [*model.parameters()]
    clip = partial(nn.utils.clip_grad_norm_, parameters, LONGEST)

    def next_loss() -> Tensor:
        inputs, targets = (x.to(parameters[0].device) for x in make_batch(generator))
        return loss(model(inputs), targets).reshape(())

    look = partial(_evaluated, evaluate, model, seed) if evaluate else None
    model.train()
    history = _descend(parameters, next_loss, clip, look, steps, seed, **how)
    model.eval()
    return history


def train_many(
    make_model, make_batch, steps, seeds, *, loss=cross_entropy, evaluate=None, **how
) -> tuple[list[nn.Module], list[History]]:
    """Train one copy of a model per seed, all at once; return them and their histories.

    Each copy is what `train` makes of it alone with that seed, up to rounding; small
    ones take less time together, because they share each call of PyTorch.
    make_model: called once for each seed, after `torch.manual_seed(seed)`. All models
        must be of one kind, and draw no random numbers later: no dropout. ValueError if
        they share or tie weights.
    The other arguments are those of `train`.
    """
    models = []
    for seed in seeds:
        with _seeded(seed):
            models.append(make_model().train())
    places = [x for m in models for part in m.modules() for x in part.parameters(False)]
    if len(set(places)) < len(places):
        raise ValueError("a weight has two places: build all anew, and tie no weights.")
    weights, buffers = stack_module_state(models)  # by name: (copies, ...)
    trained = [x for x in weights.values() if x.requires_grad]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def loss_of_one(weights, buffers, inputs, targets):
        state = weights, buffers  # a module with two names is one: nothing to tie
        outputs = functional_call(models[0], state, (inputs,), tie_weights=False)
        return loss(outputs, targets).reshape(())

    def next_losses() -> Tensor:  # (copies,)
        batches = [make_batch(generator) for generator in generators]
        batch = (torch.stack(part).to(trained[0].device) for part in zip(*batches))
        with sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for other kernels
            return vmap(loss_of_one)(weights, buffers, *batch)

    @torch.no_grad()
    def hand_out() -> None:
        for i, model in enumerate(models):
            for name, x in (*model.named_parameters(), *model.named_buffers()):
                x.copy_((weights | buffers)[name][i])

    def look() -> list:
        hand_out()
        return [_evaluated(evaluate, *each) for each in zip(models, seeds)]

    clip, look = partial(_clip_each, trained), look if evaluate else None
    whole = _descend(trained, next_losses, clip, look, steps, seeds[0], **how)
    hand_out()
    histories = []
    for i, model in enumerate(models):
        model.eval()
        evaluations = [(step, values[i]) for step, values in whole.evaluations]
        histories.append(History([each[i] for each in whole.losses], evaluations))
    return models, histories


def learning_rate_at(step: int, steps: int, highest: float, warmup: int) -> float:
    """Return the rate of a step (from 0): up in a line, down along a cosine.

    >>> [learning_rate_at(step, 6, 1.0, warmup=2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < warmup:
        return highest * (step + 1) / warmup
    fallen = math.cos(math.pi * (step - warmup) / (steps - warmup))  # from 1 to -1
    return highest * (1 + fallen) / 2


def _descend(
    parameters,
    next_loss: Callable[[], Tensor],
    clip: Callable,
    look: Callable | None,
    steps: int,
    seed: int,
    *,
    learning_rate: float = 3e-3,
    warmup: int = 50,
    every: int = 100,
    progress: bool = True,
) -> History:
    """Take the steps, and return their history; the stop button ends them.

    next_loss() -> the loss, or one for each copy (copies,); clip() shortens gradients.
    """
    if 0 < steps < warmup:
        raise ValueError(f"steps is {steps}, but the rate rises for {warmup=} steps.")
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, **ADAMW)
    history = History()
    hidden = {} if progress else {"disable": True}  # without it TQDM_DISABLE rules
    bar = tqdm(range(steps), file=sys.stdout, unit="step", **hidden)
    try:
        with _seeded(seed), torch.enable_grad(), bar:
            for step in bar:
                if look and step % every == 0:
                    history.evaluations.append((step, look()))
                rate = learning_rate_at(step, steps, learning_rate, warmup)
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                found = next_loss()
                found.sum().backward()
                clip()
                optimizer.step()
                history.losses.append(found.tolist())
                bar.set_postfix(loss=f"{found.mean():.3f}", refresh=False)
            if look:
                history.evaluations.append((steps, look()))
    except KeyboardInterrupt:
        print(f"Stopped after {len(history.losses)} of {steps} steps.")
    optimizer.zero_grad()
    return history


@torch.no_grad()
def _clip_each(parameters: list[Tensor]) -> None:
    """Shorten the gradient of each copy, as `clip_grad_norm_` does; (copies, ...)."""
    gradients = [x.grad for x in parameters if x.grad is not None]
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    factors = (LONGEST / (norms + 1e-6)).clamp(max=1.0)  # (copies,)
    for g in gradients:
        g.mul_(factors.view(-1, *[1] * (g.dim() - 1)))


@contextmanager
def _seeded(seed: int):
    """Seed PyTorch's own random numbers; afterwards they go on as if nothing was."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


def _evaluated(evaluate: Callable, model: nn.Module, seed: int):
    """Return evaluate(model); the training goes on as if nothing was."""
    with looking(model), _seeded(seed):
        return evaluate(model)
