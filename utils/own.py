"""Your own functions in the place of the course's, inside a whole model.

A function that does not give what the course's gives, to `CLOSE`, is refused.
"""

import copy

import torch
from torch import Tensor, nn

from utils.attention import MultiHeadAttention
from utils.masks import padding_mask
from utils.positions import Rotary

# of the largest output: in the layers of SmolLM2, where it is 233, answers written in
# other ways differ by up to 4e-6 of it, and a scale of sqrt(head_dim - 1) by 3e-3
CLOSE = 1e-4


def with_own_functions(model, *, attention=None, layer=None, turn=None) -> nn.Module:
    """Return a copy of an `Encoder` or a `CausalLM` that runs on your functions.

    attention(query, key, value, mask) -> output, as in exercise 1.2: for all heads of
        every block, (batch, heads, length, head_dim) of each. Queries and keys are
        rotated and grouped keys and values repeated before; the mask is bool, with an
        entry for each score.
    layer(x, w_q, w_k, w_v, w_o, num_heads) -> output, as in exercise 2.2: for every
        block, where nothing is masked or cached and no weights are wanted. Of d
        features, x is (batch, length, d + 1), the last always 1; w_q, w_k, w_v are
        (d, d + 1), the biases in the last column; w_o is the identity (d, d), and the
        output (batch, length, d). There are no grouped heads and no positions.
    turn(x, positions, base) -> x, as in exercise 5.2: for the rotary positions. It
        rotates features i and i + head_dim / 2 of x (..., length, head_dim) by
        positions (length,) * base^(-2i / head_dim) radians.
    What is None stays the course's. Yours drops nothing out. Both models have the same
    parameters: to train one is to train the other.
    """
    shared = {id(parameter): parameter for parameter in model.parameters()}
    model = copy.deepcopy(model, shared)
    if turn is not None:
        model.position = OwnRotary(model.position, turn)
        for block in model.blocks:
            block.attention.position = model.position
    if attention is not None or layer is not None:
        for block in model.blocks:
            block.attention = OwnAttention(block.attention, attention, layer)
    return model


class OwnAttention(MultiHeadAttention):
    """An attention layer on your functions, with the parameters of another layer."""

    def __init__(self, original: MultiHeadAttention, attention=None, layer=None):
        options = {"num_kv_heads": original.num_kv_heads, "position": original.position}
        super().__init__(original.embed_dim, original.num_heads, **options)
        for name, module in original.named_children():  # shared, not copied
            setattr(self, name, module)
        self.own_attention, self.own_layer = attention, layer
        self.train(original.training)._compare(original)

    def forward(self, x, mask=None, *, need_weights=False, cache=None):
        """Return (output, weights) as `MultiHeadAttention` does."""
        plain = mask is None and cache is None and not need_weights
        if self.own_layer is not None and plain:
            return self.out_proj(self._heads_of_layer(x)), None
        return super().forward(x, mask=mask, need_weights=need_weights, cache=cache)

    def attend(self, q, k, v, mask, bias, need_weights):
        if self.own_attention is None:
            return super().attend(q, k, v, mask, bias, need_weights)
        if bias is not None or (mask is not None and mask.dtype != torch.bool):
            raise TypeError("your own functions take bool as a mask, and no bias.")
        scores = (*q.shape[:-1], k.shape[-2])  # (batch, heads, queries, keys)
        mask = torch.ones((), device=q.device).bool() if mask is None else mask
        heads = self.own_attention(q, k, v, mask.expand(scores))  # shaped like q
        if not need_weights:
            return heads, None
        # (batch, heads, keys, keys): as values they make the output the weights
        identity = torch.eye(k.shape[-2]).to(k).expand(*k.shape[:-1], -1)
        return heads, self.own_attention(q, k, identity, mask.expand(scores))

    def _heads_of_layer(self, x: Tensor) -> Tensor:
        """Return the outputs of all heads, (batch, length, embed_dim), by your layer.

        It has no biases, but [x, 1] [W, b]ᵀ = x Wᵀ + b. `out_proj` follows as a module
        of its own, so that heads can be ablated here, too.
        """
        x = torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)
        projections = (self.query_proj, self.key_proj, self.value_proj)
        matrices = [torch.cat([p.weight, p.bias[:, None]], dim=1) for p in projections]
        w_o = torch.eye(self.embed_dim).to(x)
        return self.own_layer(x, *matrices, w_o, self.num_heads)

    @torch.no_grad()
    def _compare(self, original: MultiHeadAttention) -> None:
        """Refuse functions that do not give what the original layer gives."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(2, 5, self.embed_dim, generator=generator)
        x = x.to(self.out_proj.weight)
        if self.own_layer is not None:
            _refuse_unequal(self.own_layer, self(x)[0], original(x)[0])
        if self.own_attention is not None:
            options = {"mask": padding_mask([5, 3]).to(x.device), "need_weights": True}
            for found, wanted in zip(self(x, **options), original(x, **options)):
                _refuse_unequal(self.own_attention, found, wanted)


class OwnRotary(Rotary):
    """The rotary scheme of another, computed by your function."""

    def __init__(self, original: Rotary, turn):
        options = {name: getattr(original, name) for name in ("base", "layout")}
        super().__init__(original.head_dim, **options)
        self.train(original.training).turn = turn
        x = torch.randn(3, self.head_dim, generator=torch.Generator().manual_seed(0))
        _refuse_unequal(turn, self._rotated(x, 7), original._rotated(x, 7))

    def _rotated(self, x: Tensor, first: int) -> Tensor:
        positions = torch.arange(first, first + x.shape[-2], device=x.device)
        if self.layout == "half":
            return self.turn(x, positions, self.base)
        x = x.unflatten(-1, (-1, 2)).mT.flatten(-2)  # 0, 2, 4, ..., then 1, 3, 5, ...
        x = self.turn(x, positions, self.base)
        return x.unflatten(-1, (2, -1)).mT.flatten(-2)  # back again


def _refuse_unequal(function, found: Tensor, wanted: Tensor) -> None:
    if not (found - wanted).abs().max() <= CLOSE * wanted.abs().max():  # nor is NaN
        name = getattr(function, "__name__", repr(function))
        raise ValueError(f"{name} does not give what the course's layer gives.")
