"""Do heads know grammar? Heads compared with the dependency trees of a treebank.

As in Clark et al. 2019, section 4.2: weights between subword tokens become weights
between words; a head names for each word the other word to which it attends most, and
is right where the tree joins the two. The head is the best of many, so it is chosen on
some sentences and reported on others, and so is its baseline, the best fixed offset.

Words are counted from 0 within their sentence; -1 = none. The heads of all layers stand
in one row, named "layer.head".
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import conllu
import torch
import torch.nn.functional as F
from conllu.exceptions import ParseException
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from utils.baselines import bootstrap
from utils.masks import padding_mask
from utils.recording import record_attention

NOT_GRAMMAR = ("root", "punct")  # the root has no head; Clark et al. leave out both
DIRECTIONS = ("to head", "to dependent")  # where a word should attend

# --- sentences with their trees ---


class Sentence(NamedTuple):
    """A sentence and its tree: the part of speech, head and relation of each word.

    heads: word i depends on `words[heads[i] - 1]`: counted from 1, and 0 for the root.
    The words are the syntactic ones: the multiword token "don't" is "do" and "n't".
    Empty nodes, words that an analysis adds to the text, are counted and left out.
    """

    id: str
    text: str
    words: tuple[str, ...]
    upos: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    empty_nodes: int


def read_conllu(path) -> list[Sentence]:
    """Return the sentences of a file in CoNLL-U, the format of Universal Dependencies.

    ValueError, with the sentence, where the words are no tree.
    Source: https://universaldependencies.org/format.html
    """
    return parse_conllu(Path(path).read_text(encoding="utf-8-sig"), str(path))


def parse_conllu(text: str, file: str = "text") -> list[Sentence]:
    """Return the sentences of a text in CoNLL-U; `file` is its name in the errors."""
    sentences = []
    for number, block in enumerate(conllu.parse_sentences(StringIO(text)), 1):
        try:
            rows = conllu.parse_token_and_metadata(block)
            sentences.append(_sentence(rows, str(number)))
        except (ValueError, ParseException) as error:
            where = f"{file}, sentence {number} ({block.splitlines()[0]:.60})"
            raise ValueError(f"{where}: {error}") from None
    return sentences


def _sentence(rows: conllu.TokenList, number: str) -> Sentence:
    """Return the sentence of some lines; number: its id, if it has no other."""
    words = [row for row in rows if isinstance(row["id"], int)]
    _check_tree(rows, [row["id"] for row in words])
    columns = (tuple(row[x] for row in words) for x in "form upos head deprel".split())
    text = rows.metadata.get("text", " ".join(row["form"] for row in words))
    name = rows.metadata.get("sent_id", number)
    # the id of an empty node is as (5, ".", 1); (3, "-", 4) is a multiword token
    signs = [row["id"][1] for row in rows if not isinstance(row["id"], int)]
    return Sentence(name, text, *columns, signs.count("."))


def _check_tree(rows: conllu.TokenList, words: list[int]) -> None:
    """Refuse words that are not counted from 1, and heads that are no tree."""
    if not words or words != [*range(1, len(words) + 1)]:
        why = "is there an empty line too few or too many?"
        raise ValueError(f"its words are counted {words}, not 1, 2, 3 and so on; {why}")
    roots = [row["id"] for row in rows if row["head"] == 0]
    called = [row["id"] for row in rows if row["deprel"].split(":")[0] == "root"]
    if len(roots) != 1 or roots != called:
        both = f"words {roots} have head 0, words {called} the relation root"
        raise ValueError(f"{both}; one word must have both.")
    if lost := {*words} - {row["id"] for row in rows.to_tree().to_list()}:
        why = "they are in a cycle, or a head does not exist"
        raise ValueError(f"words {sorted(lost)} do not hang on the root: {why}.")


# --- from subword tokens to words ---


class Reading(NamedTuple):
    """To which other words the heads of a model attend most in some sentences.

    most (sentences, words, heads): the word to which each word attends most, or -1.
    pieces (sentences, words): of how many subword tokens each word consists: 0 for a
        word without any, past the end, and in a sentence too long for the model.
    """

    sentences: tuple[Sentence, ...]
    most: Tensor
    pieces: Tensor
    names: tuple[str, ...]

    def part(self, rows: Sequence[int] | Tensor) -> "Reading":
        """Return the reading of some of the sentences, by numbers or a boolean mask."""
        rows = torch.arange(len(self.sentences))[rows].tolist()
        sentences = tuple(self.sentences[row] for row in rows)
        return Reading(sentences, self.most[rows], self.pieces[rows], self.names)

    def too_long(self) -> list[int]:
        """Return the numbers of the sentences that were too long for the model."""
        return (self.pieces.sum(dim=1) == 0).nonzero().flatten().tolist()


def word_pieces(tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return (ids, the word of each id); each word is split alone; [CLS], [SEP]: -1."""
    if isinstance(words, str):
        raise TypeError(f"words is {words!r}; give a list, e.g. words.split().")
    batch = tokenizer(list(words), is_split_into_words=True, verbose=False)
    return batch["input_ids"], [-1 if x is None else x for x in batch.word_ids()]


def word_maps(weights: Tensor, word_of: Tensor, words: int) -> Tensor:
    """Return the weights between words (batch, heads, words, words).

    weights (batch, heads, pieces, pieces): between subword tokens. word_of (batch,
    pieces): the word of each token, -1 = none. The weight on a word is the sum over its
    tokens; of a word as a query it is the mean over its tokens. What a row lacks to 1
    went to tokens without a word. Source: Clark et al. 2019, section 4.1.

    >>> weights = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3], [0, 0, 1]])
    >>> word_maps(weights[None, None], torch.tensor([[0, 0, 1]]), words=2)
    tensor([[[[0.5000, 0.5000],
              [0.0000, 1.0000]]]])
    """
    if weights.dim() != 4 or len(word_of) != len(weights):  # would broadcast
        given = f"weights {tuple(weights.shape)}, word_of {tuple(word_of.shape)}"
        raise ValueError(f"{given}; give 4 axes, and of each piece its word.")
    belongs = F.one_hot(word_of + 1, words + 1)[:, None, :, 1:].to(weights.dtype)
    share = belongs / belongs.sum(dim=-2, keepdim=True).clamp(min=1)
    return share.mT @ weights @ belongs  # share and belongs: (batch, 1, pieces, words)


def most_attended(maps: Tensor, pieces: Tensor) -> Tensor:
    """Return the other word to which each word attends most (batch, heads, words).

    maps: weights between words (batch, heads, words, words). pieces (batch, words): a
    word of 0 subword tokens is neither query nor key. -1 where no other word is left.
    """
    there = (pieces > 0)[:, None]  # (batch, 1, words)
    itself = torch.eye(maps.shape[-1], dtype=torch.bool, device=maps.device)
    visible = there[:, :, None] & ~itself  # (batch, 1, words, words)
    most = maps.masked_fill(~visible, -1.0).argmax(dim=-1)
    return most.masked_fill(~(visible.any(dim=-1) & there), -1)


def read_words(
    model: nn.Module, tokenizer, sentences, *, max_length=512, batch_tokens=2048
) -> Reading:
    """Return the `Reading` of a list of `Sentence`: where every head attends most.

    model: called as model(ids, mask), e.g. an `Encoder`. tokenizer: its own, a fast one
    of `transformers`. max_length: in subword tokens with [CLS] and [SEP]; a longer
    sentence is left out. batch_tokens: how many the model gets at once, with padding.
    """
    split = [word_pieces(tokenizer, sentence.words) for sentence in sentences]
    longest = max(len(sentence.words) for sentence in sentences)
    pieces = torch.zeros(len(split), longest, dtype=torch.int16)
    most, names = None, ()
    for rows in _batches([len(ids) for ids, _ in split], max_length, batch_tokens):
        ids, word_of = ([torch.tensor(split[row][i]) for row in rows] for i in (0, 1))
        mask = padding_mask([len(each) for each in ids])
        ids, word_of = pad_sequence(ids, True), pad_sequence(word_of, True, -1)
        words = max(len(sentences[row].words) for row in rows)
        layers = record_attention(model, ids, mask)
        if most is None:
            names = [f"{i}.{j}" for i, x in enumerate(layers) for j in range(len(x[0]))]
            most = torch.full((*pieces.shape, len(names)), -1, dtype=torch.int16)
        maps = word_maps(torch.cat(layers, dim=1), word_of, words)
        count = F.one_hot(word_of + 1, words + 1)[..., 1:].sum(dim=1)  # (rows, words)
        most[rows, :words] = most_attended(maps, count).mT.to(torch.int16)
        pieces[rows, :words] = count.to(torch.int16)
    if most is None:
        raise ValueError(f"all sentences are longer than max_length={max_length}.")
    return Reading(tuple(sentences), most, pieces, tuple(names))


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
    """Pairs: in sentence `sentence[i]`, `word[i]` should attend to `partner[i]`.

    The three are (arcs,); `relation[i]` is what joins the two words in the tree.
    """

    sentence: Tensor
    word: Tensor
    partner: Tensor
    relation: tuple[str, ...]

    def of(self, relation: str) -> "Arcs":
        """Return the arcs of this very relation; nsubj is not nsubj:pass."""
        return self.where(torch.tensor([r == relation for r in self.relation]).bool())

    def where(self, keep: Tensor) -> "Arcs":
        """Return the arcs of which the boolean mask `keep` (arcs,) says True."""
        relation = tuple(r for r, kept in zip(self.relation, keep.tolist()) if kept)
        return Arcs(*(x[keep] for x in self[:3]), relation)


def arcs_of(reading: Reading, direction: str) -> Arcs:
    """Return the arcs between words that have tokens, without roots and punctuation.

    direction: "to head" (a dependent should attend to its head) or "to dependent".
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction is {direction!r}; give one of {DIRECTIONS}.")
    found = []
    for number, sentence in enumerate(reading.sentences):
        there = reading.pieces[number].tolist()
        for word, (head, name) in enumerate(zip(sentence.heads, sentence.relations)):
            if head and name not in NOT_GRAMMAR and there[word] and there[head - 1]:
                pair = (word, head - 1) if direction == "to head" else (head - 1, word)
                found.append((number, *pair, name))
    *places, relation = zip(*found) if found else [()] * 4
    return Arcs(*(torch.tensor(x, dtype=torch.long) for x in places), relation)


def hits(reading: Reading, arcs: Arcs) -> Tensor:
    """Return whether each head attends most to the partner: bool (arcs, heads)."""
    return reading.most[arcs.sentence, arcs.word] == arcs.partner[:, None]


def accuracies(reading: Reading, arcs: Arcs) -> Tensor:
    """Return for which share of the arcs each head is right: (heads,), from 0 to 1."""
    return hits(reading, arcs).float().mean(dim=0)


def offsets(arcs: Arcs) -> Tensor:
    """Return where the partner stands, seen from the word (arcs,): -1 = just before."""
    return arcs.partner - arcs.word


def best_offset(arcs: Arcs) -> tuple[int, float]:
    """Return the offset of most arcs (of equals the nearest), and its share of them."""
    times = Counter(offsets(arcs).tolist())
    best = min(times, key=lambda offset: (-times[offset], abs(offset), offset))
    return best, times[best] / len(arcs.word)


def permuted(arcs: Arcs, generator: torch.Generator) -> Arcs:
    """Return the arcs, the partners within each sentence dealt out again at random.

    What a head finds here it finds by chance. A word that gets itself loses its arc.
    """
    order = torch.randperm(len(arcs.word), generator=generator)
    # at random within each sentence: a stable sort of what was shuffled
    order = order[arcs.sentence[order].argsort(stable=True)]
    partner = torch.empty_like(arcs.partner)
    partner[arcs.sentence.argsort(stable=True)] = arcs.partner[order]
    return arcs._replace(partner=partner).where(partner != arcs.word)


class Finding(NamedTuple):
    """The head and the fixed offset chosen for a relation, and how accurate they are.

    *chosen: on the sentences on which they were chosen, all others on other ones.
    *_interval: 95 %, by bootstrap over sentences.
    """

    relation: str
    direction: str
    head: str
    chosen: float
    accuracy: float
    interval: tuple[float, float]
    offset: int  # where the partner stands, seen from the word
    offset_chosen: float
    offset_accuracy: float
    offset_interval: tuple[float, float]
    lift: float  # accuracy - offset_accuracy
    lift_interval: tuple[float, float]
    elsewhere: float  # the head's accuracy on the arcs where the offset is wrong
    distance: float  # how many words apart the two words of an arc are, in the mean
    arcs: int  # how many were counted
    arcs_chosen: int


def held_out(first: Reading, other: Reading, relation: str, direction: str) -> Finding:
    """Return the head and the offset that are best on `first`, reported on `other`.

    first, other: of different sentences by one model. relation: e.g. "nsubj".
    direction: as in `arcs_of`. ValueError if the relation is not in both.
    """
    old, new = (arcs_of(x, direction).of(relation) for x in (first, other))
    if not (len(old.word) and len(new.word)):
        times = f"{len(old.word)} times in the first sentences, {len(new.word)} times"
        raise ValueError(f"{relation} occurs {times} in the others.")
    scores = accuracies(first, old)
    head, (offset, offset_chosen) = scores.argmax().item(), best_offset(old)
    by_head, by_offset = hits(other, new)[:, head].float(), offsets(new) == offset
    right = torch.stack([by_head, by_offset, by_head - by_offset.float()], dim=1)
    accuracy, offset_accuracy, lift = right.mean(dim=0).tolist()
    ends = bootstrap(right, new.sentence, len(other.sentences)).mT.tolist()
    interval, offset_interval, lift_interval = map(tuple, ends)
    return Finding(
        relation=relation,
        direction=direction,
        head=first.names[head],
        chosen=scores[head].item(),
        accuracy=accuracy,
        interval=interval,
        offset=offset,
        offset_chosen=offset_chosen,
        offset_accuracy=offset_accuracy,
        offset_interval=offset_interval,
        lift=lift,
        lift_interval=lift_interval,
        elsewhere=by_head[~by_offset].mean().item(),
        distance=offsets(new).abs().float().mean().item(),
        arcs=len(new.word),
        arcs_chosen=len(old.word),
    )
