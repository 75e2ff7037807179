"""The encoder of BERT, made of the course's own blocks, for MiniLM's real weights.

Shapes: ids (batch, length) are whole numbers; hidden states (batch, length, embed_dim).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils import checks
from utils.models import Block
from utils.own import with_own_functions
from utils.positions import Learned
from utils.pretrained import MiniLM

BLOCK = {  # our name -> the name in the file, after the prefix encoder.layer.L
    "attention.query_proj": "attention.self.query",
    "attention.key_proj": "attention.self.key",
    "attention.value_proj": "attention.self.value",
    "attention.out_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "mlp.0": "intermediate.dense",
    "mlp.3": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
EMBEDDINGS = {
    "embedding.weight": "embeddings.word_embeddings.weight",
    "position.table": "embeddings.position_embeddings.weight",
    "token_type.weight": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}
TOGETHER = 32  # sentences that are computed at once, where each gives one vector


class Encoder(nn.Module):
    """A transformer whose tokens attend to each other in both directions, as in BERT.

    Token, position and token type embeddings (the type is always the first: one text)
    are added and normalised; then come `num_layers` post-norm blocks. The sizes that
    are not given are MiniLM's. dropout: as in `Block`, and before the first block.
    Source: Devlin et al. 2019, section 3 (BERT).
    """

    def __init__(
        self,
        vocab_size: int = 30522,
        embed_dim: int = 384,
        num_heads: int = 12,
        num_layers: int = 6,
        mlp_dim: int = 1536,
        max_length: int = 512,
        *,
        norm_eps: float = 1e-12,
        dropout: float = 0.0,
    ):
        super().__init__()
        checks.check_size("num_layers", num_layers)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.position = Learned(max_length, embed_dim)
        self.token_type = nn.Embedding(2, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)
        options = {"norm": "post", "norm_eps": norm_eps, "dropout": dropout}
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, mlp_dim=mlp_dim, **options)
            for _ in range(num_layers)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as BERT does: N(0, 0.02²); biases 0, gains 1."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, (nn.LayerNorm, Learned)):
                module.reset_parameters()

    @classmethod
    def from_minilm(cls, minilm: MiniLM, *, attention=None, layer=None) -> "Encoder":
        """Return MiniLM in evaluation mode, from what `load_minilm()` returned.

        attention, layer: functions of your own for every block: see `own.py`.
        """
        config = minilm.config
        encoder = cls(
            config["vocab_size"],
            config["hidden_size"],
            config["num_attention_heads"],
            config["num_hidden_layers"],
            config["intermediate_size"],
            config["max_position_embeddings"],
            norm_eps=config["layer_norm_eps"],
        )
        with torch.no_grad():
            for name, parameter in encoder.named_parameters():
                parameter.copy_(minilm.weights[_stored_name(name)])
        return with_own_functions(encoder.eval(), attention=attention, layer=layer)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden states of the last layer, (batch, length, embed_dim).

        mask: any of the attention layer, True = may be attended to; to hide padding,
            the tokenizer's `attention_mask.bool()[:, None, None]`.
        """
        return self.hidden_states(ids, mask)[-1]

    def hidden_states(self, ids: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Return the input of the first layer, and the output of each layer."""
        if mask is not None and mask.shape == ids.shape:
            raise ValueError("mask is shaped like ids: mask.bool()[:, None, None].")
        boolean = mask is not None and mask.dtype == torch.bool
        if boolean and not checks.holds(mask.flatten(1).any(dim=1)):
            raise ValueError("mask hides every token of a sentence; is it ~mask?")
        x = self.embedding(ids) + self.token_type.weight[0]
        x = self.position.embed(x)  # (batch, length, embed_dim)
        states = [self.dropout(self.norm(x))]
        for block in self.blocks:
            states.append(block(states[-1], mask))  # (batch, length, embed_dim)
        return states

    def sentence_embedding(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return one vector of length 1 per sentence, (batch, embed_dim).

        It is the mean of the last hidden states, [CLS] and [SEP] included, padding
        not; the dot product of two is their similarity.
        mask: (batch, 1, 1, length), or None.
        Source: Reimers & Gurevych 2019, section 3.
        """
        many = mask is not None and len(ids) > TOGETHER
        if many and mask.shape == (len(ids), 1, 1, ids.shape[-1]):
            return self._by_length(ids, mask)
        hidden = self(ids, mask)
        if mask is None:
            return F.normalize(hidden.mean(dim=1), dim=-1)
        if mask.dtype != torch.bool or mask.shape != (len(ids), 1, 1, ids.shape[1]):
            wanted = "to know which tokens count, give bool (batch, 1, 1, length)"
            raise ValueError(f"mask is {mask.dtype} {checks.shape_of(mask)}; {wanted}.")
        real = mask[:, 0, 0, :, None].to(hidden.dtype)  # (batch, length, 1)
        return F.normalize((hidden * real).sum(dim=1) / real.sum(dim=1), dim=-1)

    def _by_length(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of many sentences; those of similar length together.

        Each part is cut after its last visible token, because padding takes time, too.
        """
        last = mask.flatten(1, 2).any(dim=1) * torch.arange(ids.shape[1]).to(ids)
        length = last.amax(dim=1) + 1  # (batch,)
        order, vectors = length.argsort(), []
        for rows in order.split(TOGETHER):
            n = int(length[rows].max())
            vectors.append(self.sentence_embedding(ids[rows, :n], mask[rows, ..., :n]))
        return torch.cat(vectors)[order.argsort()]


def _stored_name(name: str) -> str:
    """Return the name in MiniLM's file of one of our parameters."""
    if name in EMBEDDINGS:
        return EMBEDDINGS[name]
    _, layer, part = name.split(".", 2)  # blocks.3.mlp.0.bias
    part, kind = part.rsplit(".", 1)
    return f"encoder.layer.{layer}.{BLOCK[part]}.{kind}"
