"""Exercises of lesson 11: a logit difference, a patched head, its direct effect."""

from functools import partial

import torch
from torch import Tensor

from utils.exercises.engine import Exercise, randn

IMPORTS = """\
import torch
import torch.nn.functional as F
"""

# --- 11.4: how much more likely one name is than the other ----------------------------


def logit_difference(logits: Tensor, answer: Tensor, other: Tensor) -> Tensor:
    """The reference: at the last position, the answer's logit minus the other's."""
    return _difference(logits, answer, other)


def _difference(logits, answer, other, at=-1, how=lambda x: x):
    last, rows = how(logits)[:, at], torch.arange(len(logits))
    return last[rows, answer] - last[rows, other]


def named_logits(dtype):
    sizes = [(1, 3, 5), (2, 4, 7), (5, 2, 9), (4, 6, 4), (3, 1, 6), (6, 6, 6)]
    for seed, (batch, length, vocab) in enumerate(sizes):
        g = torch.Generator().manual_seed(60 + seed)
        names = torch.stack([torch.randperm(vocab, generator=g) for _ in range(batch)])
        logits = 3 * randn(batch, length, vocab, seed=60 + seed, dtype=dtype)
        if seed == 1:  # not contiguous
            logits = logits.mT.contiguous().mT
        yield {"logits": logits, "answer": names[:, 0], "other": names[:, 1]}


names = Exercise(
    "11.4", "The logit difference", logit_difference, named_logits, gradients=False
)

names.wrong(
    "the other minus the answer",
    "The answer's logit comes first: positive means that the answer is more likely.",
    lambda logits, answer, other: logit_difference(logits, other, answer),
)
names.wrong(
    "the first position",
    "There the model has seen one token. The next token of the sentence is predicted "
    "at the last position.",
    partial(_difference, at=0),
)
names.wrong(
    "the last position but one",
    "There the model predicts the last token of the sentence, which is already known.",
    lambda logits, *given: _difference(logits, *given, at=max(logits.shape[1] - 2, 0)),
)
names.wrong(
    "all positions",
    "Only the last position predicts the next token of the sentence.",
    partial(_difference, how=lambda x: x.mean(dim=1, keepdim=True)),
    partial(_difference, how=lambda x: x.sum(dim=1, keepdim=True)),
    lambda logits, answer, other: torch.stack(
        [x[:, a] - x[:, b] for x, a, b in zip(logits, answer, other)]
    ),
)
names.wrong(
    "a difference of probabilities",
    "Take the logits as they are: probabilities also depend on all other tokens.",
    partial(_difference, how=lambda x: x.softmax(dim=-1)),
)
names.wrong(
    "a ratio of probabilities",
    "That is exp of the logit difference: return the difference itself.",
    lambda *given: logit_difference(*given).exp(),
)
names.wrong(
    "all pairs of sentences",
    "`last[:, answer]` looks up every answer in every sentence: (batch, batch). Take "
    "one answer for each row: last[rows, answer].",
    lambda logits, answer, other: logits[:, -1][:, answer] - logits[:, -1][:, other],
    lambda logits, answer, other: (
        logits[:, -1][:, answer] - logits[:, -1][:, other]
    ).mean(dim=-1),
)
names.wrong(
    "the first sentence's names",
    "Each sentence has its own two names.",
    lambda logits, answer, other: logits[:, -1, answer[0]] - logits[:, -1, other[0]],
)
names.wrong(
    "the answer's logit alone",
    "A logit alone says little: a number added to all logits changes nothing. Subtract "
    "the logit of the other name.",
    lambda logits, answer, other: logits[torch.arange(len(logits)), -1, answer],
)
names.wrong(
    "the best other token",
    "Compare with the other name, not with the largest logit of all.",
    lambda logits, answer, other: (
        logits[torch.arange(len(logits)), -1, answer] - logits[:, -1].amax(dim=-1)
    ),
)
names.wrong(
    "without the sign",
    "The sign says which name the model prefers: keep it.",
    lambda *given: logit_difference(*given).abs(),
)
names.wrong(
    "the mean over the sentences",
    "Return one number for each sentence; take the mean later.",
    lambda *given: logit_difference(*given).mean(),
)

# --- 11.5: the output of one head, taken from another run -----------------------------


def patch_head(
    into: Tensor, source: Tensor, head: int, position: int, num_heads: int
) -> Tensor:
    """The reference: one head's features, at one position, come from the other run."""
    return _patched(into, source, head, position, num_heads)


def _patched(into, source, head, position, num_heads, what=None, where=None):
    """Return the answer with other features or positions than it should have."""
    size = into.shape[-1] // num_heads
    what = slice(head * size, (head + 1) * size) if what is None else what
    patched = into.clone()
    where = position if where is None else where
    patched[:, where, what] = source[:, where, what]
    return patched


def runs(dtype):
    cases = [(1, 3, 2, 4, 0, 1), (2, 5, 3, 2, 1, 4), (3, 4, 4, 6, 3, -1)]
    cases += [(2, 6, 2, 8, 1, -2), (4, 2, 5, 3, 2, 0), (1, 7, 6, 4, 4, 3)]
    for seed, (batch, length, heads, size, head, position) in enumerate(cases):
        shape = batch, length, heads * size
        yield {
            "into": randn(*shape, seed=70 + seed, dtype=dtype),
            "source": randn(*shape, seed=80 + seed, dtype=dtype),
            "head": head,
            "position": position,
            "num_heads": heads,
        }


patch = Exercise("11.5", "Patch one head", patch_head, runs, gradients=False)

patch.wrong(
    "the runs exchanged",
    "`into` stays as it is, except for one head; `source` gives only this head.",
    lambda into, source, *where: patch_head(source, into, *where),
)


@patch.wrong(
    "every num_heads-th feature",
    "The heads lie side by side: the features of a head are neighbours.",
)
def _(into, source, head, position, num_heads):
    what = slice(head, None, num_heads)
    return _patched(into, source, head, position, num_heads, what)


@patch.wrong(
    "one feature",
    "A head has embed_dim / num_heads features; this replaces one of them.",
)
def _(into, source, head, position, num_heads):
    return _patched(into, source, head, position, num_heads, slice(head, head + 1))


@patch.wrong(
    "num_heads features",
    "A head has embed_dim / num_heads features, not num_heads of them.",
)
def _(into, source, head, position, num_heads):
    what = slice(head * num_heads, (head + 1) * num_heads)
    return _patched(into, source, head, position, num_heads, what)


patch.wrong(
    "the head before",
    "Heads are counted from 0: head 0 has the first features.",
    lambda i, s, head, at, n: _patched(i, s, (head - 1) % n, at, n),
)
patch.wrong(
    "the head after",
    "Heads are counted from 0: head 0 has the first features.",
    lambda i, s, head, at, n: _patched(i, s, (head + 1) % n, at, n),
)
patch.wrong(
    "all heads",
    "Only one head comes from the other run.",
    lambda *given: _patched(*given, what=slice(None)),
)
patch.wrong(
    "all heads but this one",
    "This head comes from `source`, and all others from `into`.",
    lambda into, source, *where: patch_head(
        _patched(into, source, *where, what=slice(None)), into, *where
    ),
)
patch.wrong(
    "all positions",
    "Only one position is patched; the others stay.",
    lambda *given: _patched(*given, where=slice(None)),
)


@patch.wrong("this position and all later ones", "Only one position is patched.")
def _(into, source, head, position, num_heads):
    where = slice(position, None)
    return _patched(into, source, head, position, num_heads, where=where)


@patch.wrong(
    "the last position",
    "The position is given; it need not be the last one.",
)
def _(into, source, head, position, num_heads):
    return _patched(into, source, head, -1, num_heads)


@patch.wrong(
    "from the last position",
    "Both runs have the same positions: take the same one from `source`.",
)
def _(into, source, head, position, num_heads):
    size = into.shape[-1] // num_heads
    what, patched = slice(head * size, (head + 1) * size), into.clone()
    patched[:, position, what] = source[:, -1, what]
    return patched


def _instead(change):
    """Return the answer that puts change(into, source) in the place of the head."""

    def other(into, source, *where):
        return patch_head(into, change(into, source), *where)

    return other


patch.wrong(
    "zeros",
    "That is an ablation: a patch takes what the head gave in the other run.",
    _instead(lambda into, source: torch.zeros_like(into)),
)
patch.wrong(
    "added",
    "The output of the other run replaces that of this run; it is not added.",
    _instead(lambda into, source: into + source),
)
patch.wrong(
    "half of each",
    "The output of the other run replaces that of this run wholly.",
    _instead(lambda into, source: (into + source) / 2),
)
patch.wrong(
    "the mean over the texts",
    "Each text gets its own output from the other run.",
    _instead(lambda into, source: source.mean(0, keepdim=True).expand_as(into)),
)
patch.wrong(
    "nothing patched",
    "What comes back is `into` as it was. Did an assignment go to a copy?",
    lambda into, source, *where: into.clone(),
)

# --- 11.6: what each head adds to the logit difference directly -----------------------


def direct_effect(
    heads: Tensor, w_o: Tensor, gain: Tensor, rms: Tensor, direction: Tensor
) -> Tensor:
    """The reference: through its columns of w_o and the final norm, on the direction.

    heads (batch, num_heads, head_dim), w_o (embed_dim, num_heads * head_dim),
    gain (embed_dim,), rms (batch,), direction (batch, embed_dim) -> (batch, num_heads).
    """
    return _onto(_written(heads, w_o) * gain / rms[:, None, None], direction)


def _written(heads: Tensor, w_o: Tensor) -> Tensor:
    """Return what each head adds to the residual stream (batch, heads, embed_dim)."""
    parts = w_o.unflatten(1, heads.shape[1:])  # (embed_dim, num_heads, head_dim)
    return torch.einsum("bhd,ehd->bhe", heads, parts)


def _onto(written: Tensor, direction: Tensor) -> Tensor:
    return (written * direction[:, None]).sum(dim=-1)


def outputs(dtype):
    sizes = [(1, 2, 3), (3, 4, 2), (2, 3, 5), (4, 6, 4), (5, 1, 4), (2, 5, 5)]
    for seed, (batch, heads, size) in enumerate(sizes):
        dim = heads * size
        yield {
            "heads": randn(batch, heads, size, seed=90 + seed, dtype=dtype),
            "w_o": randn(dim, dim, seed=100 + seed, dtype=dtype),
            "gain": 1 + randn(dim, seed=110 + seed, dtype=dtype).abs(),
            "rms": 1.5 + randn(batch, seed=120 + seed, dtype=dtype).abs(),
            "direction": randn(batch, dim, seed=130 + seed, dtype=dtype),
        }


direct = Exercise(
    "11.6", "The direct effect of a head", direct_effect, outputs, gradients=False
)


@direct.wrong(
    "rows of w_o instead of columns",
    "out_proj computes w_o @ x: a head's part of x is multiplied by its columns.",
)
def _(heads, w_o, *rest):
    return direct_effect(heads, w_o.mT, *rest)


@direct.wrong(
    "columns of other heads",
    "Columns head * head_dim to (head + 1) * head_dim belong to a head: neighbours, "
    "not every num_heads-th column.",
)
def _(heads, w_o, *rest):
    count = heads.shape[1]
    mixed = w_o.unflatten(1, (-1, count)).mT.flatten(1)  # 0, count, 2 * count, ...
    return direct_effect(heads, mixed, *rest)


direct.wrong(
    "the gain forgotten",
    "The final norm multiplies each feature by its gain before the output layer.",
    lambda heads, w_o, gain, *rest: direct_effect(
        heads, w_o, torch.ones_like(gain), *rest
    ),
)
direct.wrong(
    "not divided by the rms",
    "The final norm divides the residual stream by its root mean square.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, torch.ones_like(rms), direction
    ),
)
direct.wrong(
    "multiplied by the rms",
    "The final norm divides by the root mean square.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, 1 / rms, direction
    ),
)
direct.wrong(
    "divided by the mean square",
    "rms is the root already: divide by it once.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms**2, direction
    ),
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms**0.5, direction
    ),
)


@direct.wrong(
    "each head normalised alone",
    "The norm sees the sum of all parts, so all heads of a text are divided by the "
    "same number, rms.",
)
def _(heads, w_o, gain, rms, direction):
    written = _written(heads, w_o)
    own = written.pow(2).mean(dim=-1, keepdim=True).sqrt()
    return _onto(written / own * gain, direction)


@direct.wrong(
    "the length instead of the rms",
    "rms is given: the root of the mean of the squares, not of their sum.",
)
def _(heads, w_o, gain, rms, direction):
    length = rms * len(gain) ** 0.5
    return direct_effect(heads, w_o, gain, length, direction)


direct.wrong(
    "the sum over the heads",
    "Return a number for each head: (batch, num_heads).",
    lambda *given: direct_effect(*given).sum(dim=1),
    lambda *given: direct_effect(*given).sum(dim=1, keepdim=True),
)
direct.wrong(
    "the mean over the texts",
    "Return a row for each text; take the mean later.",
    lambda *given: direct_effect(*given).mean(dim=0),
)
direct.wrong(
    "heads and texts exchanged",
    "Rows are texts, columns are heads: (batch, num_heads).",
    lambda *given: direct_effect(*given).mT,
)
direct.wrong(
    "the direction of the first text",
    "Each text has its own two names, and so its own direction.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms, direction[:1].expand_as(direction)
    ),
)
direct.wrong(
    "a cosine",
    "The direction keeps its length: a dot product gives logits, a cosine does not.",
    lambda heads, w_o, gain, rms, direction: direct_effect(
        heads, w_o, gain, rms, torch.nn.functional.normalize(direction, dim=-1)
    ),
)


@direct.wrong(
    "without w_o",
    "The outputs of the heads go through out_proj before they reach the stream.",
)
def _(heads, w_o, *rest):
    return direct_effect(heads, torch.eye(len(w_o)).to(w_o), *rest)


EXERCISES = (names, patch, direct)
