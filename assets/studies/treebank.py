"""Do MiniLM's heads know grammar? Chosen on one set of a treebank, reported on another.

Two files in CoNLL-U, DEV and TEST, are needed: `python -m assets.studies treebank DEV
TEST`. Those of the stored study are en_ewt-ud-dev.conllu and en_ewt-ud-test.conllu from
https://github.com/UniversalDependencies/UD_English-EWT at the commit below (CC BY-SA
4.0); their texts are not stored. For each relation and direction a head and a fixed
offset are chosen on DEV and reported on TEST, beside what the same choice finds in
nulls. The whole study takes about ten minutes on one core; --check leaves the nulls
out. Lesson 09 shows what is stored.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from assets.studies import rounded
from assets.studies._untrained import sharp_copies
from utils import pretrained
from utils.baselines import sign_flip
from utils.masks import padding_mask
from utils.syntax import (
    DIRECTIONS,
    Arcs,
    Finding,
    Reading,
    Sentence,
    accuracies,
    arcs_of,
    held_out,
    hits,
    offsets,
    parse_conllu,
    permuted,
    read_words,
    word_pieces,
)

RELATIONS = """
    det amod nsubj obj nmod:poss case aux advmod compound mark cop obl nmod conj cc
""".split()
DATA = {
    "name": "Universal Dependencies, English Web Treebank (UD_English-EWT)",
    "source": "https://github.com/UniversalDependencies/UD_English-EWT",
    "commit": "15d613d8 (2025-05-10)",
    "licence": "CC BY-SA 4.0",
    "sha256": {
        "dev": "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
        "test": "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd",
    },
}
SETTINGS = {
    "relations": RELATIONS,
    "directions": list(DIRECTIONS),
    "max_length": 512,  # pieces; a longer sentence is not read
    "batch_tokens": 2048,
    "bootstrap_draws": 1000,
    "twin_seeds": list(range(8)),
    "sharpened_on": 32,  # sentences of DEV on which a twin is made as sharp
    "permutations": 100,
}
WHOLE = ("data", "dev", "test", "objects")  # --check compares them, too
KEY = ("relation", "direction")
FIELDS = (*WHOLE, *Finding._fields[2:], "p", "relations")
MARGIN = dict.fromkeys(FIELDS, 0.005)  # a near tie may fall otherwise
MARGIN["objects"] = 2  # counts


def read(model, tokenizer, sentences) -> Reading:
    options = {name: SETTINGS[name] for name in ("max_length", "batch_tokens")}
    return read_words(model, tokenizer, sentences, **options)


def described(reading: Reading) -> dict:
    """Return how much was read, and how much was left out."""
    sentences, pieces = reading.sentences, reading.pieces
    too_long = set(reading.too_long())
    words = sum(len(s.words) for i, s in enumerate(sentences) if i not in too_long)
    return {
        "sentences": len(sentences),
        "longest_in_pieces": int(pieces.sum(dim=1).max()) + 2,  # [CLS] and [SEP]
        "left_out": {
            "sentences_too_long": len(too_long),
            "words_without_pieces": words - int((pieces > 0).sum()),
            "empty_nodes": sum(s.empty_nodes for s in sentences),
        },
    }


def sample(tokenizer, sentences) -> tuple[Tensor, Tensor]:
    """Return ids and mask of some sentences, spread over all, for the entropies."""
    step = max(1, len(sentences) // SETTINGS["sharpened_on"])
    split = [word_pieces(tokenizer, s.words)[0] for s in sentences[::step]]
    split = [ids for ids in split if len(ids) <= SETTINGS["max_length"]]
    width = max(map(len, split))
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in split])
    return ids, padding_mask([len(ids) for ids in split], width)


def of_both(readings: Sequence[Reading], arcs: Sequence[Arcs], relation: str) -> tuple:
    """Return the accuracies of all heads for a relation, on both sets."""
    both = zip(readings, arcs)
    return tuple(accuracies(reading, each.of(relation)) for reading, each in both)


def table(*readings: Reading) -> dict[tuple, tuple[Tensor, Tensor]]:
    """Return the accuracies of all heads by relation and direction, on both sets."""
    found = {}
    for direction in DIRECTIONS:
        arcs = [arcs_of(reading, direction) for reading in readings]
        for relation in RELATIONS:
            found[relation, direction] = of_both(readings, arcs, relation)
    return found


def best_on_other(chosen: Tensor, reported: Tensor) -> float:
    """Return the accuracy, on the other set, of the head that is best on the first."""
    return reported[chosen.argmax()].item()


def by_permutation(*readings: Reading, draws: int) -> dict[tuple, list]:
    """Return what the same choice finds when partners are dealt out again, per draw."""
    found = {(r, d): [] for r in RELATIONS for d in DIRECTIONS}
    generator = torch.Generator().manual_seed(0)
    for direction in DIRECTIONS:
        arcs = [arcs_of(reading, direction) for reading in readings]
        for _ in range(draws):
            dealt = [permuted(each, generator) for each in arcs]
            for relation in RELATIONS:
                best = best_on_other(*of_both(readings, dealt, relation))
                found[relation, direction].append(best)
    return found


def belongs(word: int, thing: int, tree: Sequence[int]) -> bool:
    """Return whether a word depends on a thing, directly or through other words."""
    while word >= 0 and word != thing:
        word = tree[word] - 1  # one step up; above the root is -1
    return word == thing


def between(sentence: Sentence, word: int, verb: int) -> str:
    """Return what stands between an object and its verb."""
    if verb > word:
        return "the verb comes later"
    middle = range(verb + 1, word)
    others = [i for i in middle if not belongs(i, word, sentence.heads)]
    if not others:
        return "only words of the object"
    pronouns = all(sentence.upos[i] == "PRON" for i in others)
    return "other words: only pronouns" if pronouns else "other words"


def usual_tags(sentences: Sequence[Sentence]) -> dict[str, str]:
    """Return the part of speech that each word most often has in these sentences."""
    counts: dict[str, Counter] = {}
    for sentence in sentences:
        for word, tag in zip(sentence.words, sentence.upos):
            counts.setdefault(word.lower(), Counter())[tag] += 1
    return {word: tags.most_common(1)[0][0] for word, tags in counts.items()}


def objects_of(
    reading: Reading, head: str, usual: dict[str, str]
) -> dict[str, dict[str, dict]]:
    """Return how many verbs of objects a head and a rule find: {between: {distance}}.

    The rule names the nearest verb to the left; "by usual tags" it is not told the part
    of speech of a word in its sentence, but takes the usual one (NOUN if unknown). The
    distance is the number of words from the verb to the object, below 0 where the verb
    comes later.
    """
    arcs = arcs_of(reading, "to head").of("obj")
    by_head = hits(reading, arcs)[:, reading.names.index(head)].tolist()
    found: dict[str, dict[str, dict]] = {}
    for right, row, word, verb in zip(by_head, *(x.tolist() for x in arcs[:3])):
        sentence = reading.sentences[row]
        by_rule, by_usual = (
            [i for i in range(word) if tags[i] == "VERB"][-1:] == [verb]
            for tags in (
                sentence.upos,
                [usual.get(each.lower(), "NOUN") for each in sentence.words],
            )
        )
        counts = found.setdefault(between(sentence, word, verb), {})
        count = counts.setdefault(str(word - verb), Counter())
        said = {"objects": 1, "head": right, "rule": by_rule}
        said |= {"both": right and by_rule, "by usual tags": by_usual}
        count.update({name: int(x) for name, x in said.items()})
    return {
        group: {
            distance: dict(counts[distance]) for distance in sorted(counts, key=int)
        }
        for group, counts in sorted(found.items())
    }


def read_files(dev: Path, test: Path) -> tuple[list[list], dict]:
    """Return the sentences of both files, and what is known of them by their digest."""
    parts, digests = [], {}
    for name, path in (("dev", dev), ("test", test)):
        data = Path(path).read_bytes()  # once: what is hashed is what is read
        digests[name] = hashlib.sha256(data).hexdigest()
        parts.append(parse_conllu(data.decode("utf-8-sig"), str(path)))
    return parts, DATA if digests == DATA["sha256"] else {"sha256": digests}


def findings(first: Reading, other: Reading) -> list:
    """Return a `Finding` for each relation and direction that occurs in both sets."""
    counts = [Counter(arcs_of(r, DIRECTIONS[0]).relation) for r in (first, other)]
    return [
        held_out(first, other, relation, direction)
        for relation in RELATIONS
        for direction in DIRECTIONS
        if all(count[relation] for count in counts)
    ]


def p_value(finding: Finding, reading: Reading, arcs: Arcs) -> float:
    """Return the p-value of the difference of a head and its offset."""
    head = hits(reading, arcs)[:, reading.names.index(finding.head)]
    offset = offsets(arcs) == finding.offset
    difference = head.double() - offset.double()
    return sign_flip(difference, arcs.sentence, len(reading.sentences))


def objects_read(found: list, first: Reading, other: Reading) -> dict:
    """Return `objects_of` the other set for the head that was chosen on the first."""
    key = "obj", "to head"
    (head,) = (x.head for x in found if (x.relation, x.direction) == key)
    return objects_of(other, head, usual_tags(first.sentences))


def row_of(finding: Finding, other: Reading) -> dict:
    """Return what is stored of a finding that is reported on `other`."""
    arcs = arcs_of(other, finding.direction).of(finding.relation)
    return finding._asdict() | {"p": p_value(finding, other, arcs)}


def opened(dev: Path, test: Path) -> tuple:
    """Return tokenizer, encoder, the sentences, how it read them, and `data`."""
    minilm = pretrained.load_minilm()
    encoder = minilm.model
    parts, data = read_files(dev, test)
    readings = [read(encoder, minilm.tokenizer, part) for part in parts]
    return minilm.tokenizer, encoder, parts, readings, data


def without_nulls(readings: Sequence[Reading], data: dict) -> tuple[dict, list]:
    """Return what is stored of the data, and the findings."""
    found = findings(*readings)
    whole = {
        "data": data,
        "dev": described(readings[0]),
        "test": described(readings[1]),
        "objects": objects_read(found, *readings),
    }
    return whole, found


def study(dev: Path, test: Path) -> dict:
    """Run everything; return what is stored."""
    tokenizer, encoder, parts, readings, data = opened(dev, test)
    own = table(*readings)
    dealt = by_permutation(*readings, draws=SETTINGS["permutations"])
    inputs, nulls = sample(tokenizer, parts[0]), []
    for twin in sharp_copies(encoder, inputs, SETTINGS["twin_seeds"], mask=inputs[1]):
        print("twin", len(nulls), flush=True)
        nulls.append(table(*(read(twin, tokenizer, part) for part in parts)))
    (whole, found), rows = without_nulls(readings, data), []
    for finding in found:
        key = finding.relation, finding.direction
        row = row_of(finding, readings[1])
        row["sharpened"] = [best_on_other(*each[key]) for each in nulls]
        row["permuted_most"] = max(dealt[key])
        row["all_heads"] = own[key][1].tolist()
        rows.append(rounded(row))
    model = {"name": pretrained.MODEL, "revision": pretrained.REVISION}
    model["sha256"] = pretrained.MINILM_SHA256
    return {"model": model, **whole, "rows": rows}


def comparable(stored: dict) -> list[dict]:
    """Return the rows, and before them one with all that is said of the data."""
    rows = stored["rows"]
    whole = {"relation": "all"} | {name: stored[name] for name in WHOLE}
    return [whole | {"relations": [row["relation"] for row in rows]}, *rows]


def again(stored: dict, dev: Path, test: Path) -> list[dict]:
    """Repeat all but the nulls of 72 other heads."""
    *_, readings, data = opened(dev, test)
    whole, found = without_nulls(readings, data)
    rows = [rounded(row_of(each, readings[1])) for each in found]
    return comparable(whole | {"rows": rows})
