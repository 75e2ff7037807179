"""Trains models of one shape with different seeds, all in one optimizer."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap


def train_together(
    make: Callable[[], nn.Module],
    draws: Mapping[int, Callable],
    steps: int,
    learning_rate: float,
    given: tuple = (),
) -> tuple[list[nn.Module], Tensor]:
    """Train models with Adam on a squared error.

    draws: for the seed of each model draw_batch(generator) -> (inputs, targets). given:
    what each model takes before its inputs. The learning rate falls linearly to 0.
    Returns the models, and their losses (steps, models).
    """
    models = []
    for seed in draws:
        torch.manual_seed(seed)
        models.append(make())
    generators = [torch.Generator().manual_seed(1000 + seed) for seed in draws]
    weights, _ = stack_module_state(models)  # name -> (models, ...)
    optimizer = torch.optim.Adam(weights.values(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, steps)
    predict = vmap(lambda weights, x: functional_call(models[0], weights, (*given, x)))
    losses = []
    for _ in range(steps):
        batches = [draw(x) for draw, x in zip(draws.values(), generators)]
        x, target = map(torch.stack, zip(*batches))
        loss = (predict(weights, x) - target).square().mean(dim=(1, 2, 3))  # (models,)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    for i, model in enumerate(models):
        model.load_state_dict({name: x[i] for name, x in weights.items()})
    return models, torch.stack(losses)
