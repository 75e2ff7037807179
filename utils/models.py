"""Models of the course, made of blocks: a causal language model, and BERT's encoder.

Shapes: ids (batch, length) are whole numbers; x (batch, length, embed_dim).
A model returns its result alone; attention weights come from `record_attention`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.attention import MultiHeadAttention
from utils.masks import causal_mask, holds
from utils.positions import Learned
from utils.recording import looking

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "swiglu": nn.SiLU}
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
TOGETHER = 32  # sentences that are computed at once, where each gives one vector


class Block(nn.Module):
    """A transformer block: attention between tokens, then an MLP for each token alone.

    Both have a residual connection: their output is added to their input.

    mlp_dim: width of the MLP (default 4 * embed_dim); 0 = attention only.
    norm: "pre" normalises the inputs of attention and MLP, "post" the sums after the
        residual connections, None nothing. norm_kind: "layer" (`nn.LayerNorm`) or "rms"
        (`nn.RMSNorm`: no mean is subtracted). norm_eps: what is added under the root.
    activation: "gelu", "relu", or "swiglu" for a `GatedMLP`.
    dropout: probability, in training, of dropping an attention weight, a feature
        inside the MLP, and a feature that is added.
    bias: of attention, MLP and norms. num_kv_heads, position: of `MultiHeadAttention`.

    `attention` may be replaced by any module that is called in the same way.
    Source: Vaswani et al. 2017, section 3.1 ("post"); Xiong et al. 2020 ("pre");
    Zhang & Sennrich 2019 ("rms"); Touvron et al. 2023, section 2.2 (Llama).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        mlp_dim: int | None = None,
        norm: str | None = "pre",
        norm_kind: str = "layer",
        norm_eps: float = 1e-5,
        activation: str = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
        position=None,
        num_kv_heads: int | None = None,
    ):
        super().__init__()
        mlp_dim = 4 * embed_dim if mlp_dim is None else mlp_dim
        _refuse_negative(mlp_dim=mlp_dim, norm_eps=norm_eps)
        if norm not in ("pre", "post", None):  # it would run without norms
            raise ValueError(f"norm is {norm!r}; give 'pre', 'post' or None.")
        self.norm, self.mlp = norm, None
        attention = {"bias": bias, "dropout": dropout}
        attention |= {"position": position, "num_kv_heads": num_kv_heads}
        self.attention = MultiHeadAttention(embed_dim, num_heads, **attention)
        self.dropout = nn.Dropout(dropout)
        given = norm_kind if norm else None, embed_dim, bias, norm_eps
        self.attention_norm = _norm(*given)
        if mlp_dim > 0:
            self.mlp_norm = _norm(*given)
            self.mlp = _mlp(activation, embed_dim, mlp_dim, bias, dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, cache=None) -> Tensor:
        """Return the new x (batch, length, embed_dim); mask, cache: its attention's."""
        y = self.attention_norm(x) if self.norm == "pre" else x
        y, _ = self.attention(y, mask=mask, cache=cache)  # (batch, length, embed_dim)
        x = x + self.dropout(y)  # (batch, length, embed_dim)
        x = self.attention_norm(x) if self.norm == "post" else x
        if self.mlp is None:
            return x
        y = self.mlp_norm(x) if self.norm == "pre" else x
        y = self.mlp(y)  # to (batch, length, mlp_dim), and back to embed_dim
        x = x + self.dropout(y)  # (batch, length, embed_dim)
        return self.mlp_norm(x) if self.norm == "post" else x


class GatedMLP(nn.Module):
    """An MLP of two linear maps, one of which gates the other, and a third (SwiGLU).

    From x (..., embed_dim) to the same shape: each of the mlp_dim features of up(x) is
    multiplied by the same feature of silu(gate(x)), where silu(z) = z * sigmoid(z).
    Source: Shazeer 2020, equation (6).
    """

    def __init__(self, embed_dim: int, mlp_dim: int, *, bias=True, dropout=0.0):
        super().__init__()
        self.gate = nn.Linear(embed_dim, mlp_dim, bias=bias)
        self.up = nn.Linear(embed_dim, mlp_dim, bias=bias)
        self.activation = ACTIVATIONS["swiglu"]()
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(mlp_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.gate(x)) * self.up(x)  # (batch, length, mlp_dim)
        return self.down(self.dropout(y))  # (batch, length, embed_dim)


class CausalLM(nn.Module):
    """A language model: at each position, logits for the next token.

    position: a position scheme. Its `embed` is called once, its `rotate` and `bias` in
        every block. It is one object: all blocks share what it learns.
    embedding_std: the token embeddings are drawn from N(0, embedding_std²), by default
        as in GPT-2; None leaves them as `nn.Embedding` draws them, from N(0, 1).
    tied: the head's weights are the token embeddings, one parameter for both.
    The other options are those of every `Block`.

    `embedding`, `blocks`, `norm` (before the head if norm="pre"), `head`.
    Source: Radford et al. 2018 and 2019 (GPT, GPT-2); Press & Wolf 2017 (tied).

    >>> model = CausalLM(vocab_size=10, embed_dim=8, num_heads=2, num_layers=2)
    >>> model(torch.tensor([[3, 1, 4, 1, 5]])).shape
    torch.Size([1, 5, 10])
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        num_layers: int,
        *,
        position=None,
        mlp_dim: int | None = None,
        norm: str | None = "pre",
        norm_kind: str = "layer",
        norm_eps: float = 1e-5,
        activation: str = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
        num_kv_heads: int | None = None,
        embedding_std: float | None = 0.02,
        tied: bool = False,
    ):
        super().__init__()
        _refuse_negative(num_layers=num_layers)
        options = {"position": position, "mlp_dim": mlp_dim, "activation": activation}
        options |= {"norm": norm, "norm_kind": norm_kind, "norm_eps": norm_eps}
        options |= {"dropout": dropout, "bias": bias, "num_kv_heads": num_kv_heads}
        self.position, self.embedding_std = position, embedding_std
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, **options) for _ in range(num_layers)
        )
        kind = norm_kind if norm == "pre" else None
        self.norm = _norm(kind, embed_dim, bias, norm_eps)
        self.head = nn.Linear(embed_dim, vocab_size, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the token embeddings; all other modules draw their own weights."""
        if self.embedding_std is not None:
            nn.init.normal_(self.embedding.weight, std=self.embedding_std)

    def forward(self, ids: Tensor, *, cache: dict | None = None) -> Tensor:
        """Return logits (batch, length, vocab_size): what follows each of ids.

        cache: a dict, empty at first, in which keys and values are kept, so that a text
            can be given part by part.
        """
        length, past = ids.shape[1], 0 if cache is None else cache.get("length", 0)
        mask = causal_mask(length, past + length, device=ids.device)  # (queries, keys)
        x = self.embedding(ids)  # (batch, length, embed_dim)
        if self.position is not None:
            x = self.position.embed(x, offset=past)  # (batch, length, embed_dim)
        x, caches = self.dropout(x), {}
        for i, block in enumerate(self.blocks):
            if cache is not None:  # a copy: a call that is refused changes nothing
                caches[i] = dict(cache.get(i, {}))
            x = block(x, mask, cache=caches.get(i))  # (batch, length, embed_dim)
        if cache is not None:
            cache.update(caches, length=past + length)
        return self.head(self.norm(x))  # (batch, length, vocab_size)

    def generate(self, ids: Tensor, steps: int, *, temperature=1.0, generator=None):
        """Return ids (batch, length + steps): the given ones and sampled next tokens.

        temperature: divides the logits; 0 takes the most probable token every time.
        generator: a `torch.Generator`. Dropout is off meanwhile.
        """
        _refuse_negative(steps=steps, temperature=temperature)
        cache = {}
        with looking(self):
            for _ in range(steps):
                new = ids[:, cache.get("length", 0) :]  # (batch, not yet in the cache)
                logits = self(new, cache=cache)[:, -1]  # (batch, vocab_size)
                ids = torch.cat([ids, _sample(logits, temperature, generator)], dim=1)
        return ids


class Encoder(nn.Module):
    """BERT's encoder: tokens attend to each other in both directions.

    Token, position and token type embeddings (the type is always the first: one text)
    are added and normalised; then come post-norm blocks. Nothing is dropped out.
    max_length: of a text, in tokens.

    `embedding`, `position`, `token_type`, `norm` (after their sum), `blocks`.
    Source: Devlin et al. 2019, section 3 (BERT).
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        num_layers: int,
        mlp_dim: int,
        max_length: int,
        *,
        norm_eps: float = 1e-12,
    ):
        super().__init__()
        _refuse_negative(num_layers=num_layers)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.position = Learned(max_length, embed_dim)
        self.token_type = nn.Embedding(2, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)
        options = {"mlp_dim": mlp_dim, "norm": "post", "norm_eps": norm_eps}
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, **options) for _ in range(num_layers)
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

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden states of the last layer, (batch, length, embed_dim).

        mask: any of the attention layer, True = may be attended to; to hide padding,
            the tokenizer's `attention_mask.bool()[:, None, None]`.
        """
        return self.hidden_states(ids, mask)[-1]

    def hidden_states(self, ids: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Return the first layer's input, then each layer's output, as in `forward`."""
        if mask is not None and mask.shape == ids.shape:
            raise ValueError("mask is shaped like ids: mask.bool()[:, None, None].")
        boolean = mask is not None and mask.dtype == torch.bool
        if boolean and not holds(mask.flatten(1).any(dim=1)):
            raise ValueError("mask hides every token of a sentence; is it ~mask?")
        x = self.embedding(ids) + self.token_type.weight[0]
        states = [self.norm(self.position.embed(x))]  # (batch, length, embed_dim)
        for block in self.blocks:
            states.append(block(states[-1], mask))  # (batch, length, embed_dim)
        return states

    def sentence_embedding(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return one vector of length 1 per sentence, (batch, embed_dim).

        It is the mean of the last hidden states, [CLS] and [SEP] included, padding
        not; the dot product of two is their similarity.
        mask: bool (batch, 1, 1, length), True = a token, or None.
        Source: Reimers & Gurevych 2019, section 3.
        """
        if mask is None:
            return F.normalize(self(ids).mean(dim=1), dim=-1)
        if mask.dtype != torch.bool or mask.shape != (len(ids), 1, 1, ids.shape[1]):
            given = f"mask is {mask.dtype} {tuple(mask.shape)}; to know which tokens"
            raise ValueError(f"{given} count, give bool (batch, 1, 1, length).")
        if len(ids) > TOGETHER:
            return self._by_length(ids, mask)
        hidden = self(ids, mask)
        real = mask[:, 0, 0, :, None].to(hidden.dtype)  # (batch, length, 1)
        return F.normalize((hidden * real).sum(dim=1) / real.sum(dim=1), dim=-1)

    def _by_length(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of many sentences; those of similar length together.

        Each part is cut after its last visible token, because padding takes time, too.
        """
        last = mask[:, 0, 0] * torch.arange(ids.shape[1]).to(ids)  # (batch, length)
        length = last.amax(dim=1) + 1  # (batch,)
        order, vectors = length.argsort(), []
        for rows in order.split(TOGETHER):
            n = int(length[rows].max())
            vectors.append(self.sentence_embedding(ids[rows, :n], mask[rows, ..., :n]))
        return torch.cat(vectors)[order.argsort()]


def _refuse_negative(**numbers) -> None:
    """Refuse numbers below 0, with which Python and torch would go on; and NaN."""
    for name, x in numbers.items():
        if not x >= 0:
            raise ValueError(f"{name} is {x}; give 0 or more.")


def _norm(kind: str | None, embed_dim: int, bias: bool, eps: float) -> nn.Module:
    """Return a normalisation over the features, or the identity if kind is None."""
    if kind is None:
        return nn.Identity()
    options = {"bias": bias} if kind == "layer" else {}  # RMSNorm has no bias
    return NORMS[kind](embed_dim, eps=eps, **options)


def _mlp(activation: str, embed_dim: int, mlp_dim: int, bias: bool, dropout: float):
    if activation == "swiglu":
        return GatedMLP(embed_dim, mlp_dim, bias=bias, dropout=dropout)
    return nn.Sequential(
        nn.Linear(embed_dim, mlp_dim, bias=bias),
        nn.Sequential(ACTIVATIONS[activation](), nn.Dropout(dropout)),
        nn.Linear(mlp_dim, embed_dim, bias=bias),
    )


def _sample(logits: Tensor, temperature: float, generator) -> Tensor:
    """Return one id (batch, 1) per row, drawn from softmax(logits / temperature)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    probabilities = (logits.float() / temperature).softmax(dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)
