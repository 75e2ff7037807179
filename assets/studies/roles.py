"""Which roles have the heads of the two real models? The numbers of the site's atlas.

A role is a score, the mean weight on some keys. A head gets the name of a role if, on
one half of the texts, this score is at least 0.3 and above those of all untrained heads
that are as sharp, and if it stays above them on the other half. Of several roles it is
the one with the highest score; to attend to the first token counts last, because
nearly every head does that where it finds nothing else. The numbers stored are those
of the other half.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from assets.studies import FOLDER, rounded
from assets.studies._smollm2 import twice
from assets.studies._untrained import sharp_copies
from utils import heads
from utils.baselines import best_of, bootstrap, uniform_attention
from utils.masks import causal_mask
from utils.pretrained import load_minilm, load_smollm2
from utils.syntax import read_conllu

SENTENCES = FOLDER.parent / "annotated_sentences.conllu"
ENOUGH = 0.3  # the weight from which on a role may be named
LENGTH = 64  # tokens of a text for the language model
LAST = ("[SEP]", "[CLS]", "first token")  # roles of heads that find nothing else
SIGNS = list(".,?!;:")
COPIES = {"encoder": 2, "language model": 1}  # untrained, for the baseline
KEY = ("model", "head")
MARGIN = {"scores": 0.01}


class Texts(NamedTuple):
    """Texts, of which the first half chooses a role and the second half reports."""

    inputs: tuple[Tensor, ...]  # of the model: ids (texts, length), perhaps a mask
    mask: Tensor
    roles: dict[str, Callable[[Tensor], Tensor]]  # name -> score of a layer's weights


def encoder_and_texts() -> tuple[nn.Module, list[Texts]]:
    """Return MiniLM and the course's sentences, one by one."""
    minilm = load_minilm()
    sentences = [list(sentence.words) for sentence in read_conllu(SENTENCES)]
    sentences = sentences[::2] + sentences[1::2]  # so that the halves are alike
    options = {"is_split_into_words": True, "padding": True, "return_tensors": "pt"}
    batch = minilm.tokenizer(sentences, **options)
    ids, mask = batch.input_ids, batch.attention_mask.bool()[:, None, None]

    def on(*tokens):
        marked = torch.tensor(minilm.tokenizer.convert_tokens_to_ids(tokens))
        return partial(heads.on_keys, keys=torch.isin(ids, marked), mask=mask)

    roles = {
        "previous token": partial(heads.at_offset, offset=-1, mask=mask),
        "next token": partial(heads.at_offset, offset=1, mask=mask),
        "current token": partial(heads.at_offset, offset=0, mask=mask),
        "same token": partial(heads.duplicate_token, ids=ids, mask=mask),
        "punctuation": on(*SIGNS),
        "[SEP]": on("[SEP]"),
        "[CLS]": on("[CLS]"),
    }
    return minilm.model, [Texts((ids, mask), mask, roles)]


def language_model_and_texts() -> tuple[nn.Module, list[Texts]]:
    """Return SmolLM2, texts of sentences, and lesson 11's random tokens twice."""
    model, tokenizer = load_smollm2()
    texts, text = [], []
    for sentence in read_conllu(SENTENCES):
        text = text + tokenizer.encode(f" {sentence.text}" if text else sentence.text)
        if len(text) >= LENGTH:
            texts, text = [*texts, text[:LENGTH]], []
    ids, mask = torch.tensor(texts[::2] + texts[1::2]), causal_mask(LENGTH)
    signs = torch.isin(ids, torch.tensor([tokenizer.encode(sign) for sign in SIGNS]))
    copies = twice(16, seed=0)  # (16, LENGTH)
    in_sentences = {
        "previous token": partial(heads.at_offset, offset=-1, mask=mask),
        "current token": partial(heads.at_offset, offset=0, mask=mask),
        "punctuation": partial(heads.on_keys, keys=signs, mask=mask),
        "first token": partial(heads.first_token, mask=mask),
    }
    in_copies = {
        "same token": partial(heads.duplicate_token, ids=copies, mask=mask),
        "induction": partial(heads.induction, ids=copies, mask=mask),
    }
    model.head = nn.Identity()  # no logits are needed
    return model, [Texts((ids,), mask, in_sentences), Texts((copies,), mask, in_copies)]


MODELS = {"encoder": encoder_and_texts, "language model": language_model_and_texts}


def scores(layers: list[Tensor], texts: Texts) -> dict[str, Tensor]:
    """Return for each role the scores (texts, heads of all layers)."""
    return {
        role: torch.cat([score(weights) for weights in layers], dim=1)
        for role, score in texts.roles.items()
    }


def reported(values: Tensor) -> Tensor:
    """Return the means (heads,) over the second half of the texts."""
    return values[len(values) // 2 :].nanmean(0)


def untrained(model: nn.Module, texts: Texts, seeds) -> Iterator[dict[str, Tensor]]:
    """Yield the scores of untrained copies of a model whose heads are as sharp."""
    few = slice(1, None, 8)  # the texts on which the sharpness is measured
    inputs = tuple(each[few] for each in texts.inputs)
    mask = inputs[1] if len(inputs) > 1 else texts.mask
    for copy in sharp_copies(model, inputs, seeds, mask=mask):
        yield scores(heads.record_attention(copy, *texts.inputs), texts)


def best_of_copies(model: nn.Module, kinds_of_texts: list[Texts], seeds) -> list[dict]:
    """Return for each untrained, as sharp copy {role: the score of its best head}."""
    rows = [{"seed": seed, "best": {}} for seed in seeds]
    for texts in kinds_of_texts:
        for row, found in zip(rows, untrained(model, texts, seeds)):
            best = {name: values.nanmean(0).max() for name, values in found.items()}
            row["best"] |= rounded(best, 3)
    return rows


def measured(model: nn.Module, texts: Texts, copies: int) -> tuple[dict, Tensor]:
    """Return {role: scores of the heads, uniform, untrained heads}, and entropies."""
    layers = heads.record_attention(model, *texts.inputs)
    size, length = texts.inputs[0].shape
    copied = [*untrained(model, texts, range(copies))]
    uniform = scores([uniform_attention((size, 1, length, length), texts.mask)], texts)
    found = {
        role: (values, uniform[role], torch.cat([x[role] for x in copied], dim=1))
        for role, values in scores(layers, texts).items()
    }
    entropies = [heads.normalised_entropy(x, mask=texts.mask) for x in layers]
    return found, reported(torch.cat(entropies, dim=1))


def candidates(choosing: dict[str, tuple[float, float]]) -> list[str]:
    """Return the roles that a head may have, from {role: (score, baseline)}.

    The one that it gets comes first.
    """
    able = [r for r, (x, base) in choosing.items() if x >= ENOUGH and x > base]
    return sorted(able, key=lambda role: (role in LAST, -choosing[role][0]))


def lift_interval(scores: Tensor, baselines: list[Tensor]) -> list[float]:
    """Return the 95 % interval of the lift of one head over its highest baseline.

    scores and each of the baselines: (texts,); texts where one is NaN are left out.
    """
    every = torch.stack([scores, *baselines]).double()
    every = every[:, ~every.isnan().any(0)]  # (1 + baselines, texts)
    lift = every[0] - every[1 + every[1:].mean(1).argmax()]
    return bootstrap(lift[:, None], torch.arange(len(lift)), len(lift))[:, 0].tolist()


def rows_of(name: str, found: dict, entropies: Tensor, per_layer: int) -> list[dict]:
    """Return a row for each head of a model."""
    choosing, reporting = {}, {}
    for role, (values, *others) in found.items():
        half = len(values) // 2
        base = max(best_of(other[:half]).nanmean().item() for other in others)
        choosing[role] = [(x, base) for x in values[:half].nanmean(0).tolist()]
        others = [best_of(other[half:]) for other in others]
        reporting[role] = values[half:], others
    rows = []
    for head in range(len(entropies)):
        role, lift = None, None
        for role in candidates({r: x[head] for r, x in choosing.items()})[:1]:
            values, others = reporting[role]
            lift = lift_interval(values[:, head], others)
            if lift[0] <= 0:
                role = lift = None
        values = {
            "lift": lift,
            "entropy": entropies[head],
            "scores": {r: x[:, head].nanmean() for r, (x, _) in reporting.items()},
        }
        place = f"{head // per_layer}.{head % per_layer}"
        rows.append({"model": name, "head": place, "role": role} | rounded(values, 3))
    return rows


def study() -> dict:
    """Return the study."""
    kinds, rows = {}, []
    for name, load in MODELS.items():
        model, kinds_of_texts = load()
        found, entropies = {}, None
        for texts in kinds_of_texts:
            more, sharp = measured(model, texts, COPIES[name])
            found |= more
            entropies = sharp if entropies is None else entropies  # of real sentences
        kinds[name] = {
            "texts": [list(texts.inputs[0].shape) for texts in kinds_of_texts],
            "baselines": {
                role: rounded([reported(x).max() for x in others], 3)
                for role, (_, *others) in found.items()
            },
        }
        heads_per_layer = model.blocks[0].attention.num_heads
        rows += rows_of(name, found, entropies, heads_per_layer)
    return {"enough": ENOUGH, "models": kinds, "runs": rows}


def again(stored: dict) -> list[dict]:
    """Measure the scores of all heads once more, without the baselines."""
    rows = []
    for name, load in MODELS.items():
        model, kinds_of_texts = load()
        found = {}  # role -> the means of all heads
        for texts in kinds_of_texts:
            layers = heads.record_attention(model, *texts.inputs)
            found |= {r: reported(x).tolist() for r, x in scores(layers, texts).items()}
        count = model.blocks[0].attention.num_heads
        for i, values in enumerate(zip(*found.values())):
            head = f"{i // count}.{i % count}"
            row = {"model": name, "head": head, "scores": dict(zip(found, values))}
            rows.append(row)
    return rows
