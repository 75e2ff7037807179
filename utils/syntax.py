"""Do heads know grammar? Heads compared with the dependency trees of a treebank.

As in Clark et al. 2019, section 4.2, weights between subword tokens become weights
between words. For each word a head names the word to which it attends most, and it is
right where a relation of the treebank joins the two. The head is chosen as the best of
many, so it is chosen on some of the sentences and reported on others. So is its
baseline, the best fixed offset between the two words.

Words are counted from 0 within their sentence; -1 = none. The heads of all layers stand
in one row, named "layer.head".
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.baselines import bootstrap
from utils.checks import check_choice, check_layout, check_size, shape_of
from utils.masks import padding_mask
from utils.recording import record_attention
from utils.treebank import Sentence

NOT_GRAMMAR = ("root", "punct")  # the root has no head; Clark et al. leave out both
DIRECTIONS = ("to head", "to dependent")  # where a word should attend

# --- from subword tokens to words ---


class Reading(NamedTuple):
    """To which words the heads of a model attend most in some sentences.

    most:   (sentences, words, heads), the word to which each word attends most.
    pieces: (sentences, words), of how many subword tokens the word consists: 0 for a
            word without any, past the end, and in a sentence too long for the model.
    names:  of the heads, "layer.head".
    """

    sentences: tuple[Sentence, ...]
    most: Tensor
    pieces: Tensor
    names: tuple[str, ...]

    def part(self, rows: Sequence[int] | Tensor) -> "Reading":
        """Return the reading of some of the sentences, by numbers or a boolean mask."""
        rows = rows if isinstance(rows, Tensor) else list(rows)
        rows = torch.arange(len(self.sentences))[rows].tolist()
        sentences = tuple(self.sentences[row] for row in rows)
        return Reading(sentences, self.most[rows], self.pieces[rows], self.names)

    def too_long(self) -> list[int]:
        """Return the numbers of the sentences that were too long for the model."""
        return (self.pieces.sum(dim=1) == 0).nonzero().flatten().tolist()


def word_pieces(tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return (ids, word of each id) of one sentence; -1 for [CLS] and [SEP].

    The words are given to the tokenizer as they are: "n't" stays a word of its own.
    """
    if isinstance(words, str):
        raise TypeError(f"words is {words!r}; give a list, e.g. words.split().")
    batch = tokenizer(list(words), is_split_into_words=True, verbose=False)
    word_of = [-1 if word is None else word for word in batch.word_ids()]
    return batch["input_ids"], word_of


def word_maps(weights: Tensor, word_of: Tensor, words: int) -> Tensor:
    """Return the weights between words (batch, heads, words, words).

    The weight on a word is the sum over its subword tokens; the weight of a word as a
    query is the mean over its own. What is missing to 1 went to [CLS] and [SEP].
    weights (batch, heads, pieces, pieces); word_of (batch, pieces), -1 = no word.
    Source: Clark et al. 2019, section 4.1.

    >>> weights = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3], [0, 0, 1]])
    >>> word_maps(weights[None, None], torch.tensor([[0, 0, 1]]), words=2)
    tensor([[[[0.5000, 0.5000],
              [0.0000, 1.0000]]]])
    """
    check_layout("weights", weights, "(batch, heads, pieces, pieces)", 4)
    if not word_of.shape == weights.shape[::2] == weights.shape[::3]:
        shapes = f"word_of has shape {shape_of(word_of)}, weights {shape_of(weights)}"
        raise ValueError(f"{shapes}; give one word for each piece.")
    belongs = F.one_hot(word_of + 1, words + 1)[..., 1:]  # (batch, pieces, words)
    belongs = belongs[:, None].to(weights.dtype)
    share = belongs / belongs.sum(dim=-2, keepdim=True).clamp(min=1)
    return share.mT @ weights @ belongs


def most_read(maps: Tensor, pieces: Tensor) -> Tensor:
    """Return the other word to which each word attends most (batch, heads, words).

    maps (batch, heads, words, words); pieces (batch, words): a word of 0 pieces is
    neither query nor key. -1 where no word is left.
    """
    there = (pieces > 0)[:, None]  # (batch, 1, words)
    itself = torch.eye(maps.shape[-1], dtype=torch.bool, device=maps.device)
    visible = there[:, :, None] & ~itself  # (batch, 1, words, words)
    most = maps.masked_fill(~visible, -1.0).argmax(dim=-1)
    return most.masked_fill(~(visible.any(dim=-1) & there), -1)


def read_words(
    model: nn.Module,
    tokenizer,
    sentences: Sequence[Sentence],
    *,
    max_length: int = 512,
    batch_tokens: int = 2048,
) -> Reading:
    """Return to which words every head of a model attends most in the sentences.

    model: called as model(ids, mask), e.g. an `Encoder`. A sentence of more than
    max_length tokens is not cut but left out (`Reading.too_long`).
    batch_tokens: size of a batch; sentences of similar length come together.
    """
    check_size("max_length", max_length, least=1)
    split = [word_pieces(tokenizer, sentence.words) for sentence in sentences]
    lengths = [len(ids) for ids, _ in split]
    longest = max(len(sentence.words) for sentence in sentences)
    pieces = torch.zeros(len(split), longest, dtype=torch.int16)
    most, names = None, ()
    for rows in _batches(lengths, max_length, batch_tokens):
        width = lengths[rows[0]]  # the longest
        words = max(len(sentences[row].words) for row in rows)
        ids = torch.tensor([split[r][0] + [0] * (width - lengths[r]) for r in rows])
        padded = [split[r][1] + [-1] * (width - lengths[r]) for r in rows]
        word_of = torch.tensor(padded)  # (rows, width)
        count = F.one_hot(word_of + 1, words + 1)[..., 1:].sum(dim=1)
        mask = padding_mask([lengths[r] for r in rows], width)
        layers = record_attention(model, ids, mask)
        if most is None:
            heads = [(i, j) for i, x in enumerate(layers) for j in range(x.shape[1])]
            names = tuple(f"{layer}.{head}" for layer, head in heads)
            shape = (len(split), longest, len(names))
            most = torch.full(shape, -1, dtype=torch.int16)
        found = most_read(word_maps(torch.cat(layers, dim=1), word_of, words), count)
        most[rows, :words] = found.mT.to(torch.int16)
        pieces[rows, :words] = count.to(torch.int16)
    if most is None:
        raise ValueError(f"all sentences are longer than max_length={max_length}.")
    return Reading(tuple(sentences), most, pieces, names)


def _batches(lengths: list[int], longest: int, tokens: int) -> Iterator[list[int]]:
    """Yield rows of similar length, at most so many tokens together with padding."""
    rows = [row for row, length in enumerate(lengths) if length <= longest]
    rows.sort(key=lengths.__getitem__, reverse=True)
    while rows:
        size = max(1, tokens // lengths[rows[0]])
        yield rows[:size]
        rows = rows[size:]


# --- arcs, and how often a head is right ---


class Arcs(NamedTuple):
    """Pairs: in sentence `sentence[i]`, `word[i]` should attend to `partner[i]`."""

    sentence: Tensor
    word: Tensor
    partner: Tensor
    relation: tuple[str, ...]

    def of(self, relation: str) -> "Arcs":
        """Return the arcs of this very relation; nsubj is not nsubj:pass."""
        return self.where(torch.tensor([r == relation for r in self.relation]).bool())

    def where(self, keep: Tensor) -> "Arcs":
        """Return the arcs of which the boolean mask `keep` (arcs,) says True."""
        if keep.dtype != torch.bool:
            raise TypeError(f"keep is {keep.dtype}; give bool, one for each arc.")
        relation = tuple(r for r, kept in zip(self.relation, keep.tolist()) if kept)
        return Arcs(*(x[keep] for x in self[:3]), relation)


def arcs_of(reading: Reading, direction: str) -> Arcs:
    """Return the arcs between words that have tokens, punctuation and roots left out.

    direction: "to head" (the dependent should attend to its head) or "to dependent".
    """
    check_choice("direction", direction, DIRECTIONS)
    found = []
    for number, sentence in enumerate(reading.sentences):
        there = reading.pieces[number].tolist()
        for dependent, head in enumerate(sentence.heads):
            head, name = head - 1, sentence.relations[dependent]
            if name in NOT_GRAMMAR or not (there[dependent] and there[head]):
                continue
            pair = (dependent, head) if direction == "to head" else (head, dependent)
            found.append((number, *pair, name))
    columns = list(zip(*found)) or [(), (), (), ()]
    return Arcs(*(torch.tensor(x, dtype=torch.long) for x in columns[:3]), columns[3])


def hits(reading: Reading, arcs: Arcs) -> Tensor:
    """Return whether each head attends most to the partner: bool (arcs, heads)."""
    return reading.most[arcs.sentence, arcs.word] == arcs.partner[:, None]


def accuracies(reading: Reading, arcs: Arcs) -> Tensor:
    """Return the share of the arcs for which each head is right: (heads,)."""
    return hits(reading, arcs).float().mean(dim=0)


def offsets(arcs: Arcs) -> Tensor:
    """Return where the partner stands, seen from the word: -1 = just before it."""
    return arcs.partner - arcs.word


def best_offset(arcs: Arcs) -> tuple[int, float]:
    """Return the most frequent offset, and its share; of equals the smallest.

    No distance is ruled out. (Clark et al. 2019 try -3 to +2.)
    """
    values, counts = offsets(arcs).unique(return_counts=True)
    best = min(zip(values.tolist(), counts.tolist()), key=lambda x: (-x[1], abs(x[0])))
    return best[0], best[1] / counts.sum().item()


def permuted(arcs: Arcs, generator: torch.Generator) -> Arcs:
    """Return the arcs with the partners of each sentence in random order.

    An arc from a word to itself is left out.
    """
    order = torch.randperm(len(arcs.word), generator=generator)
    # at random within each sentence: a stable sort of what was shuffled
    order = order[arcs.sentence[order].argsort(stable=True)]
    places = arcs.sentence.argsort(stable=True)
    partner = torch.empty_like(arcs.partner)
    partner[places] = arcs.partner[order]
    return arcs._replace(partner=partner).where(partner != arcs.word)


# --- chosen on one part, reported on the other ---


class Finding(NamedTuple):
    """A head that was chosen for a relation, and its accuracy on other sentences.

    head, offset: chosen for their accuracy on the first sentences, `chosen` and
        `offset_chosen`. offset = where the partner stands, seen from the word.
    accuracy, offset_accuracy, lift: of the two, and their difference, on the others.
    elsewhere: the head's accuracy where the offset is wrong.
    distance: how many words apart the two are on the others, in the mean.
    *_interval: 95 %, by bootstrap over sentences.
    arcs, arcs_chosen: how many were counted on the others, and on the first sentences.
    """

    relation: str
    direction: str
    head: str
    chosen: float
    accuracy: float
    interval: tuple[float, float]
    offset: int
    offset_chosen: float
    offset_accuracy: float
    offset_interval: tuple[float, float]
    lift: float
    lift_interval: tuple[float, float]
    elsewhere: float
    distance: float
    arcs: int
    arcs_chosen: int


def held_out(
    first: Reading, other: Reading, relation: str, direction: str, *, seed: int = 0
) -> Finding:
    """Return the head and the offset that are best on `first`, reported on `other`.

    Raises ValueError if the relation does not occur in both.
    """
    chosen = arcs_of(first, direction).of(relation)
    reported = arcs_of(other, direction).of(relation)
    if not (len(chosen.word) and len(reported.word)):
        times = f"{len(chosen.word)} times in the first sentences"
        raise ValueError(
            f"{relation} occurs {times}, {len(reported.word)} times in the others."
        )
    scores = accuracies(first, chosen)
    head, (offset, offset_chosen) = scores.argmax().item(), best_offset(chosen)
    by_head, by_offset = hits(other, reported)[:, head], offsets(reported) == offset
    a, b = by_head.float(), by_offset.float()
    right = torch.stack([a, b, a - b], dim=1)  # (arcs, 3)
    accuracy, offset_accuracy, lift = right.mean(dim=0).tolist()
    ends = bootstrap(right, reported.sentence, len(other.sentences), seed=seed)
    intervals = [tuple(column) for column in ends.mT.tolist()]
    return Finding(
        relation=relation,
        direction=direction,
        head=first.names[head],
        chosen=scores[head].item(),
        accuracy=accuracy,
        interval=intervals[0],
        offset=offset,
        offset_chosen=offset_chosen,
        offset_accuracy=offset_accuracy,
        offset_interval=intervals[1],
        lift=lift,
        lift_interval=intervals[2],
        elsewhere=by_head[~by_offset].float().mean().item(),
        distance=offsets(reported).abs().float().mean().item(),
        arcs=len(reported.word),
        arcs_chosen=len(chosen.word),
    )


def as_good(
    finding: Finding, baselines: Sequence[tuple[Tensor, Tensor]]
) -> tuple[float, list[float]]:
    """Return (share of the baselines' heads as accurate, what each baseline finds).

    baselines: for each untrained model, the accuracies (heads,) of its heads on the
    first sentences and on the others. It chooses its head as the finding did.
    """
    others = torch.cat([other for _, other in baselines])
    share = (others >= finding.accuracy).float().mean().item()
    return share, [other[first.argmax()].item() for first, other in baselines]
