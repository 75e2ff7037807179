"""The pretrained encoder of lesson 09 without some of its heads.

Without each of the 72 heads alone; without the syntactic heads, all together: those
that beat their fixed offset in `treebank`, to the head, after Holm's correction; and
without as many heads of the same layers, or as many others that do not rest on [CLS],
of all layers or of all but the last, each drawn 24 times; and without as many others
that were chosen because they write most, in the same layers, or in layers 0 to 4. Of
the course's 203 sentences: the share of their five nearest that stay.
"""

import torch

from assets.studies import FOLDER, rounded, stored_of
from assets.studies._heads import named
from utils.baselines import holm
from utils.heads import on_keys, record_attention
from utils.pretrained import MINILM_SHA256, REVISION, load_minilm
from utils.recording import ablate, by_layer, recorded
from utils.syntax import read_conllu

SENTENCES = FOLDER.parent / "annotated_sentences.conllu"
NEAREST, DRAWS, BATCH = 5, 24, 34
NAMES = named(range(6), 12)
KEY = ("gone",)
MARGIN = {"kept": 0.01}  # neighbours that are nearly equally near


class Sentences:
    """The encoder, and the sentences that it reads, the shortest first."""

    def __init__(self):
        minilm = load_minilm()
        self.encoder = minilm.model
        texts = sorted(read_conllu(SENTENCES), key=lambda each: len(each.words))
        self.batches = []
        for start in range(0, len(texts), BATCH):
            some = [each.text for each in texts[start : start + BATCH]]
            read = minilm.tokenizer(some, padding=True, return_tensors="pt")
            mask = read.attention_mask.bool()[:, None, None]
            self.batches.append((read.input_ids, mask))
        self.cls = minilm.tokenizer.cls_token_id
        self.whole = self.vectors([])

    @torch.no_grad()
    def vectors(self, gone: list[str]) -> torch.Tensor:
        """Return the vectors (sentences, features) without some heads."""
        with ablate(self.encoder, by_layer(gone)):
            found = [self.encoder.sentence_embedding(*batch) for batch in self.batches]
        return torch.cat(found)

    def on_cls(self) -> torch.Tensor:
        """Return the mean weight of each head on [CLS], (72,)."""
        scores = []
        for ids, mask in self.batches:
            weights = torch.cat(record_attention(self.encoder, ids, mask), dim=1)
            scores.append(on_keys(weights, ids == self.cls, mask=mask))
        return torch.cat(scores).nanmean(dim=0)

    @torch.no_grad()
    def written(self) -> torch.Tensor:
        """Return how much each head writes: the mean length of its output, (72,)."""
        total, count = torch.zeros(6, 12), 0
        for ids, mask in self.batches:
            real = mask[:, 0, 0]
            with recorded(self.encoder, "blocks.*.attention.heads") as seen:
                self.encoder(ids, mask)
            for layer, outputs in enumerate(seen.values()):  # (batch, 12, length, 32)
                attention = self.encoder.blocks[layer].attention
                outputs = outputs.transpose(1, 2)[real]
                parts = attention.out_proj.weight.view(384, 12, 32)
                added = torch.einsum("qhd,ehd->qhe", outputs, parts)
                total[layer] += added.norm(dim=-1).sum(dim=0)
            count += int(real.sum())
        return (total / count).flatten()

    def without(self, gone: list[str]) -> dict:
        """Return a row of the study."""
        near = []
        for x in (self.whole, self.vectors(gone)):
            cosines = (x @ x.mT).fill_diagonal_(-torch.inf)
            best = cosines.topk(NEAREST).indices
            near.append(torch.zeros_like(cosines).bool().scatter(1, best, True))
        kept = (near[0] & near[1]).sum().item() / near[0].sum().item()
        return {"gone": gone, "kept": round(kept, 4)}


def best_of_relations() -> list[str]:
    """Return the heads that beat their fixed offset in the treebank, to the head."""
    rows = stored_of("treebank")["rows"]
    clear = holm([row["p"] for row in rows])  # of all 30
    found = [row for row, is_clear in zip(rows, clear) if is_clear and row["lift"] > 0]
    return sorted({row["head"] for row in found if row["direction"] == "to head"})


def busiest(best: list[str], written: torch.Tensor) -> dict[str, list[str]]:
    """Return as many other heads, chosen because they write most."""
    order = [NAMES[i] for i in written.argsort(descending=True) if NAMES[i] not in best]
    same = [
        [name for name in order if name.startswith(f"{layer}.")][: len(heads)]
        for layer, heads in by_layer(best).items()
    ]
    earlier = [name for name in order if not name.startswith("5.")]
    return {
        "write most, same layers": sorted(sum(same, [])),
        "write most, layers 0-4": sorted(earlier[: len(best)]),
    }


def draws(best: list[str], resting: list[str]) -> dict[str, list[list[str]]]:
    """Return sets of as many heads: of the same layers; or others, not resting."""
    generator = torch.Generator().manual_seed(0)
    pool = [name for name in NAMES if name not in {*resting, *best}]
    earlier = [name for name in pool if not name.startswith("5.")]

    def some(names: list[str], count: int) -> list[str]:
        order = torch.randperm(len(names), generator=generator)[:count]
        return [names[i] for i in sorted(order.tolist())]

    def of_layers() -> list[str]:
        found = by_layer(best).items()
        return sum((some(named([n], 12), len(heads)) for n, heads in found), [])

    return {
        "same layers": [of_layers() for _ in range(DRAWS)],
        "others": [some(pool, len(best)) for _ in range(DRAWS)],
        "others, layers 0-4": [some(earlier, len(best)) for _ in range(DRAWS)],
    }


def study() -> dict:
    """Return the study."""
    sentences, best = Sentences(), best_of_relations()
    resting = [n for n, w in zip(NAMES, sentences.on_cls().tolist()) if w > 0.5]
    sets, written = draws(best, resting), sentences.written()
    chosen = busiest(best, written)
    return {
        "model": {"revision": REVISION, "sha256": MINILM_SHA256},
        "sentences": len(sentences.whole),
        "nearest": NEAREST,
        "resting": resting,
        "written": rounded(written, 3),
        "best": sentences.without(best),
        "busiest": {kind: sentences.without(gone) for kind, gone in chosen.items()},
        "sets": {kind: list(map(sentences.without, sets[kind])) for kind in sets},
        "runs": [sentences.without([name]) for name in NAMES],
    }


def comparable(stored: dict) -> list[dict]:
    rows = [stored["best"], *stored["runs"], *stored["busiest"].values()]
    return rows + sum(stored["sets"].values(), [])


def again(stored: dict) -> list[dict]:
    """Repeat two heads, the syntactic heads, and a set of each kind."""
    sentences = Sentences()
    sets = [rows[0]["gone"] for rows in stored["sets"].values()]
    sets += [row["gone"] for row in stored["busiest"].values()]
    some = [["0.0"], ["5.10"], stored["best"]["gone"], *sets]
    return [sentences.without(gone) for gone in some]
