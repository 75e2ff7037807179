"""What the heads of `specialisation` do, from their weights alone."""

import torch
from torch import Tensor

from assets.studies._repeating import HEADS, LENGTH, MASK


def from_weights(model, untrained) -> dict:
    """Return what is stored of a model, beside the same of an untrained one."""
    both = {"": model, ", untrained": untrained}
    tables = [copying(model, layer) for layer in range(len(model.blocks))]
    untrained_tables = [copying(untrained, layer) for layer in range(len(model.blocks))]
    found = {
        "copying": {
            "largest": [diagonal_share(table) for table in tables],
            "eigenvalues": [eigenvalue_score(table) for table in tables],
            "untrained": [eigenvalue_score(table) for table in untrained_tables],
        }
    }
    for name, each in both.items():
        found[f"previous by position{name}"] = previous_share(positions_alone(each))
        if len(each.blocks) == 2:
            found[f"composition{name}"] = diagonal_share(composition(each))
            found[f"relayed{name}"] = diagonal_share(relayed(each))
    return found


@torch.no_grad()
def head_maps(model, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the weights of a layer's heads: query, key, value, out.

    query, key, value (heads, head_dim, embed_dim); out (heads, embed_dim, head_dim).
    """
    a = model.blocks[layer].attention
    into = [p.weight.unflatten(0, (HEADS, -1)) for p in (a.query_proj, a.key_proj)]
    value = a.value_proj.weight.unflatten(0, (HEADS, -1))
    return *into, value, a.out_proj.weight.unflatten(1, (HEADS, -1)).transpose(0, 1)


@torch.no_grad()
def copying(model, layer: int) -> Tensor:
    """Return (heads, tokens, tokens): how much reading token j speaks for token i.

    From weights alone: words, normalised, through value and out into the read-out.
    """
    _, _, value, out = head_maps(model, layer)
    read = model.blocks[layer].attention_norm(model.embedding.weight)  # (tokens, embed)
    written = out @ (value @ read.T)  # (heads, embed, tokens)
    written = written - written.mean(1, keepdim=True)  # as the last norm does
    return (model.head.weight * model.norm.weight) @ written


def diagonal_share(tables: Tensor) -> Tensor:
    """Return the share of columns whose largest entry is on the diagonal, per head."""
    return (tables.argmax(-2) == torch.arange(tables.shape[-1])).float().mean(-1)


def eigenvalue_score(tables: Tensor) -> Tensor:
    """Return sum of eigenvalues / sum of their sizes, per head (Elhage et al. 2021)."""
    values = torch.linalg.eigvals(tables.double())
    return values.real.sum(-1) / values.abs().sum(-1)


@torch.no_grad()
def composition(model) -> Tensor:
    """Return (first, second, tokens, tokens): scores of second-layer heads.

    Query token j against what each first-layer head writes that has read token i.
    """
    _, _, value, out = head_maps(model, 0)
    query, key, _, _ = head_maps(model, 1)
    words, norm = model.embedding.weight, model.blocks[1].attention_norm
    written = out @ (value @ model.blocks[0].attention_norm(words).T)
    keys = norm(written.mT)[:, None] @ key.mT  # (first, second, tokens, head_dim)
    queries = norm(words) @ query.mT  # (second, tokens, head_dim)
    return keys @ queries.mT


@torch.no_grad()
def relayed(model) -> Tensor:
    """Return (heads, tokens, tokens): as `copying`, of what the first layer's heads say
    about token j when the second layer's heads, all together, hand it on."""
    _, _, value, out = head_maps(model, 0)
    words, norm = model.embedding.weight, model.blocks[1].attention_norm
    written = out @ (value @ model.blocks[0].attention_norm(words).T)
    _, _, value, out = head_maps(model, 1)
    said = (out @ (value @ norm(written.mT).mT[:, None])).sum(1)
    said = said - said.mean(1, keepdim=True)  # (first, embed, tokens)
    return (model.head.weight * model.norm.weight) @ said


@torch.no_grad()
def positions_alone(model) -> Tensor:
    """Return (heads, queries, keys): the first layer's scores between positions."""
    query, key, _, _ = head_maps(model, 0)
    a = model.blocks[0].attention
    places = model.blocks[0].attention_norm(model.position.table)
    q = places @ query.mT + a.query_proj.bias.view(HEADS, 1, -1)
    return q @ (places @ key.mT).mT


def previous_share(scores: Tensor) -> Tensor:
    """Return the share of positions that score the one before highest, per head."""
    best = scores.masked_fill(~MASK, -torch.inf).argmax(-1)[:, 1:]
    return (best == torch.arange(LENGTH - 1)).float().mean(-1)
