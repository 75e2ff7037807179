"""Trains models of one shape with different seeds, all in one optimizer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap


def train_together(
    models: list[nn.Module],
    draw_batches: Callable[[], list[tuple[Tensor, Tensor]]],
    steps: int,
    learning_rate: float,
    given: tuple = (),
) -> Tensor:
    """Train the models with Adam on a squared error; return the losses (steps, models).

    draw_batches: gives the next inputs and targets of each model. given: what each
    model takes before its inputs. The learning rate falls linearly to 0.
    """
    weights, _ = stack_module_state(models)  # name -> (models, ...)
    optimizer = torch.optim.Adam(weights.values(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, steps)
    predict = vmap(lambda weights, x: functional_call(models[0], weights, (*given, x)))
    losses = []
    for _ in range(steps):
        x, target = map(torch.stack, zip(*draw_batches()))
        loss = (predict(weights, x) - target).square().mean(dim=(1, 2, 3))  # (models,)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    for i, model in enumerate(models):
        model.load_state_dict({name: x[i] for name, x in weights.items()})
    return torch.stack(losses)
