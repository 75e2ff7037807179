"""What do heads specialise in? Four kinds of models, sixteen seeds each, every head.

Beside them three contrasts, eight seeds each: rotary positions instead of a learned
table, and one layer in which the queries are smeared, or the values, but not the keys.

usage: python assets/studies/specialisation.py [FOLDER]    all into specialisation.json
       python assets/studies/specialisation.py --check     one run again: as stored?

All models read random tokens that start again after a while, and learn to continue
them. In FOLDER trained models are kept, so that a study that was interrupted goes on.
The whole study takes about half an hour on one core; lesson 08 plots what is stored.
"""

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from studies import as_json  # noqa: E402

from utils.attention import causal_mask  # noqa: E402
from utils.baselines import entropy_matched_copy, uniform_attention  # noqa: E402
from utils.data import IGNORED, repeated_tokens  # noqa: E402
from utils.heads import (  # noqa: E402
    at_offset,
    current_token,
    duplicate_token,
    induction,
    normalised_entropy,
    on_keys,
    previous_token,
    record_attention,
)
from utils.models import CausalLM  # noqa: E402
from utils.positions import Learned, Rotary  # noqa: E402
from utils.recording import ablate, head_importance  # noqa: E402
from utils.training import cross_entropy, train  # noqa: E402

STORED = Path(__file__).with_suffix(".json")
SEEDS = list(range(16))
FURTHER = list(range(16, 32))  # of two layers; only who plays which role
FEW = list(range(8))  # of each contrast
VOCAB, LENGTH, DIM, HEADS = 64, 64, 64, 4
PERIODS, FIXED = (8, 31), (20, 20)  # trained on
TESTED = (4, 6, 8, 12, 16, 20, 24, 28, 31, 32, 36, 40, 44)  # periods in the tests
SETTINGS = {
    "vocab_size": VOCAB,
    "length": LENGTH,
    "embed_dim": DIM,
    "num_heads": HEADS,
    "periods": PERIODS,
    "fixed period": FIXED,
    "tested periods": TESTED,
    "batch": 32,
    "steps": 800,
    "learning_rate": 3e-3,
    "rows": 128,
    "every": 20,
}
CHECKED = ("smeared", 0)  # --check repeats this run
MARGIN, LATER = 0.05, 40  # another CPU rounds otherwise, and training makes more of it


def smear(x: Tensor, share: Tensor) -> Tensor:
    """Return x (..., length, features), each position mixed with the one before it."""
    before = F.pad(x, (0, 0, 1, 0))[..., :-1, :]
    return (1 - share.sigmoid()) * x + share.sigmoid() * before


class Smeared(Learned):
    """Each head's key is mixed with the key before it, in a share that is learned.

    Source: Olsson et al. 2022, argument 2, "smeared keys".
    """

    def __init__(self, max_length, embed_dim, num_heads):
        super().__init__(max_length, embed_dim)
        self.share = nn.Parameter(torch.zeros(num_heads, 1, 1))

    def rotate(self, query, key, offset=0):
        return query, smear(key, self.share)


class SmearedQueries(Smeared):
    """The same for the queries instead of the keys."""

    def rotate(self, query, key, offset=0):
        return smear(query, self.share), key


class SmearedValues(nn.Module):
    """The same for the values, (batch, length, embed_dim), after their projection."""

    def __init__(self, num_heads):
        super().__init__()
        self.share = nn.Parameter(torch.zeros(num_heads, 1, 1))

    def forward(self, value):
        heads = value.unflatten(-1, (len(self.share), -1)).transpose(1, 2)
        return smear(heads, self.share).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Kind:
    """A kind of model, and the periods that it is trained on."""

    layers: int
    periods: tuple[int, int]
    position: Callable = lambda: Learned(LENGTH, DIM)
    smeared_values: bool = False

    def make(self) -> CausalLM:
        """Return a new model: attention only, words drawn as in GPT-2."""
        position = self.position()
        model = CausalLM(VOCAB, DIM, HEADS, self.layers, position=position, mlp_dim=0)
        for block in model.blocks if self.smeared_values else ():
            smeared = block.attention.value_proj, SmearedValues(HEADS)
            block.attention.value_proj = nn.Sequential(*smeared)
        return model

    def batch(self, generator) -> tuple[Tensor, Tensor]:
        return draw(generator, SETTINGS["batch"], self.periods)


KINDS = {
    "two layers": Kind(2, PERIODS),
    "one layer": Kind(1, PERIODS),
    "smeared": Kind(1, PERIODS, lambda: Smeared(LENGTH, DIM, HEADS)),
    "fixed": Kind(1, FIXED),
}
CONTRASTS = {
    "rotary": Kind(2, PERIODS, lambda: Rotary(DIM // HEADS)),
    "smeared queries": Kind(1, PERIODS, lambda: SmearedQueries(LENGTH, DIM, HEADS)),
    "smeared values": Kind(1, PERIODS, smeared_values=True),
}


def draw(generator, rows: int, periods: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return texts that repeat with some period, and what follows each token."""
    return repeated_tokens(
        generator, rows, LENGTH, VOCAB, periods=periods, distinct=True
    )


def unseen(periods: tuple[int, int], rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Return texts for tests: never those of a training."""
    rows = SETTINGS["rows"] if rows is None else rows
    return draw(torch.Generator().manual_seed(10_000), rows, periods)


@torch.no_grad()
def accuracy(model: CausalLM, texts: tuple[Tensor, Tensor]) -> float:
    """Return the share of the asked tokens whose next token is guessed."""
    ids, targets = texts
    right = model(ids).argmax(-1) == targets
    return right[targets != IGNORED].float().mean().item()


def trained(kind: Kind, seed: int) -> tuple[CausalLM, list]:
    """Train one model; return it, and its accuracy at every 20th step."""
    texts = unseen(kind.periods, 32)
    torch.manual_seed(seed)
    model = kind.make()
    history = train(
        model,
        kind.batch,
        SETTINGS["steps"],
        seed=seed,
        learning_rate=SETTINGS["learning_rate"],
        evaluate=lambda model: round(accuracy(model, texts), 4),
        every=SETTINGS["every"],
    )
    return model, history.evaluations


def kept(folder: Path | None, name: str, seed: int) -> tuple[CausalLM, list]:
    """Return what `trained` returns, trained only if it is not in the folder."""
    kind = (KINDS | CONTRASTS)[name]
    if folder is None:
        return trained(kind, seed)
    file = folder / f"{name.replace(' ', '_')}_{seed}.pt"
    if not file.exists():
        model, curve = trained(kind, seed)
        torch.save((model.state_dict(), curve), file)
    state, curve = torch.load(file)
    model = kind.make()
    model.load_state_dict(state)
    return model.eval(), curve


def moved(rows: int, size: int = 8) -> tuple[Tensor, Tensor]:
    """Return texts without a period: one piece of `size` tokens stands there twice."""
    g = torch.Generator().manual_seed(10_001)
    ids, targets = [], torch.full((rows, LENGTH), IGNORED)
    for row in range(rows):
        tokens = torch.randperm(VOCAB, generator=g)[: LENGTH - size]
        start = int(torch.randint(20, (), generator=g))
        again = int(torch.randint(start + size, LENGTH - size, (), generator=g))
        piece = tokens[start : start + size]
        ids.append(torch.cat([tokens[:again], piece, tokens[again:]]))
        targets[row, again : again + size - 1] = piece[1:]
    return torch.stack(ids), targets


# --- what is measured of a model ------------------------------------------------------

METRICS = {
    "previous": lambda attention, ids: previous_token(attention, mask=MASK),
    "previous, positions 1 to 31": lambda attention, ids: previous_token(
        attention, mask=MASK, queries=early(attention)
    ),
    "previous, from 32 on": lambda attention, ids: previous_token(
        attention, mask=MASK, queries=~early(attention)
    ),
    "induction": lambda attention, ids: induction(attention, ids, mask=MASK),
    "current": lambda attention, ids: current_token(attention, mask=MASK),
    "duplicate": lambda attention, ids: duplicate_token(attention, ids, mask=MASK),
    # of all queries, also of query 0, whose weight on itself is always 1
    "first": lambda attention, ids: on_keys(attention, places(ids) == 0, mask=MASK),
    "entropy": lambda attention, ids: normalised_entropy(attention, mask=MASK),
}
MASK = causal_mask(LENGTH)


def early(attention: Tensor) -> Tensor:
    """Return (texts, queries): the positions that a first copy can have."""
    return places(attention) <= PERIODS[1]


def places(texts: Tensor) -> Tensor:
    """Return (texts, positions): the number of each position."""
    return torch.arange(LENGTH).expand(len(texts), -1)


def by_head(model, ids: Tensor, metric: Callable) -> list[list[float]]:
    """Return a metric's mean over texts, for each head of each layer."""
    found = [metric(a, ids).nanmean(0) for a in record_attention(model, ids)]
    return [[round(x, 4) for x in layer.tolist()] for layer in found]


def head_scores(model, ids: Tensor) -> dict[str, list]:
    return {name: by_head(model, ids, metric) for name, metric in METRICS.items()}


def sharpened(kind: Kind, seed: int, model, ids: Tensor) -> CausalLM:
    """Return the model as it was before training, its heads as sharp as now."""
    torch.manual_seed(seed)
    found = record_attention(model, ids)
    sharpness = [normalised_entropy(a, mask=MASK).nanmean(0) for a in found]
    return entropy_matched_copy(kind.make().eval(), ids, sharpness, mask=MASK)


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


def diagonal_share(tables: Tensor) -> list[float]:
    """Return the share of columns whose largest entry is on the diagonal, per head."""
    right = tables.argmax(-2) == torch.arange(tables.shape[-1])
    return [round(x, 4) for x in right.float().mean(-1).tolist()]


def eigenvalue_score(tables: Tensor) -> list[float]:
    """Return sum of eigenvalues / sum of their sizes, per head (Elhage et al. 2021)."""
    values = torch.linalg.eigvals(tables.double())
    return [round(x, 4) for x in (values.real.sum(-1) / values.abs().sum(-1)).tolist()]


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


def previous_share(scores: Tensor) -> list[float]:
    """Return the share of positions that score the one before highest, per head."""
    best = scores.masked_fill(~MASK, -torch.inf).argmax(-1)[:, 1:]
    right = best == torch.arange(LENGTH - 1)
    return [round(x, 4) for x in right.float().mean(-1).tolist()]


def subsets(model, texts) -> list[float]:
    """Return the accuracy without each set of heads.

    Bit i of the place in the list says whether head i % 4 of layer i // 4 is removed.
    """
    heads, found = len(model.blocks) * HEADS, []
    for bits in range(2**heads):
        gone = {
            layer: [h for h in range(HEADS) if bits >> (layer * HEADS + h) & 1]
            for layer in range(len(model.blocks))
        }
        with ablate(model, gone):
            found.append(round(accuracy(model, texts), 4))
    return found


def mean_ablated(model, texts) -> list[float]:
    """Return the accuracy with each head in turn always saying its mean."""
    found = []
    for head in range(len(model.blocks) * HEADS):
        gone = {head // HEADS: [head % HEADS]}
        with ablate(model, gone, mode="mean", mean_from=texts[0]):
            found.append(round(accuracy(model, texts), 4))
    return found


def loss_of(model, ids: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(ids), targets)


def short(x: float) -> float:
    """Return x with four significant digits: some are so small that `round` ties."""
    return float(f"{x:.4g}")


def importance(model, texts) -> list[list[float]]:
    """Return Michel's importance of each head, from 64 texts."""
    found = head_importance(model, loss_of, *(x[:64] for x in texts))
    return [list(map(short, layer)) for layer in found.tolist()]


@torch.no_grad()
def loss_without(model, texts) -> list[float]:
    """Return the loss without each head, of the same 64 texts."""
    found = []
    for head in range(len(model.blocks) * HEADS):
        with ablate(model, {head // HEADS: [head % HEADS]}):
            found.append(short(loss_of(model, *(x[:64] for x in texts)).item()))
    return found


@torch.no_grad()
def hidden_from(model, part: str, texts) -> list[float]:
    """Return the accuracy if the keys, or the values, of the second layer do not see
    what a first-layer head wrote, while all else does; for each of its heads."""
    ids, targets = (x[:64] for x in texts)
    first, second = model.blocks
    words = model.position.embed(model.embedding(ids))
    x = words + first.attention(first.attention_norm(words), mask=MASK)[0]
    found = []
    for head in range(HEADS):
        with ablate(first, {0: [head]}):
            cut = words + first.attention(first.attention_norm(words), mask=MASK)[0]
        key, value = (cut if part == name else x for name in ("keys", "values"))
        read = [second.attention_norm(each) for each in (x, key, value)]
        logits = model.head(model.norm(x + second.attention(*read, mask=MASK)[0]))
        right = (logits.argmax(-1) == targets)[targets != IGNORED]
        found.append(round(right.float().mean().item(), 4))
    return found


def current_by_place(model, ids: Tensor) -> dict[str, list[float]]:
    """Return how much the first layer's heads read their own token, up to 31 or not."""
    places = {
        "up to 31": lambda a, _: current_token(a, mask=MASK, queries=early(a)),
        "from 32 on": lambda a, _: current_token(a, mask=MASK, queries=~early(a)),
    }
    return {name: by_head(model, ids, metric)[0] for name, metric in places.items()}


def cast(seed: int, model) -> dict:
    """Return which first-layer heads read the token before, and their own, most."""
    scores = head_scores(model, unseen(PERIODS)[0])
    best = {
        role: max(range(HEADS), key=scores[score][0].__getitem__)
        for role, score in (
            ("previous", "previous, positions 1 to 31"),
            ("current", "current"),
        )
    }
    return (
        {"seed": seed} | best | {"accuracy": round(accuracy(model, unseen(PERIODS)), 4)}
    )


def jump(curve: list) -> int | None:
    """Return the first step at which half of the tokens were guessed."""
    return next((step for step, share in curve if share >= 0.5), None)


def measured(name: str, seed: int, model, curve: list) -> dict:
    """Return all that is stored of a trained model."""
    kind, layers = KINDS[name], range(KINDS[name].layers)
    texts = unseen(kind.periods)
    few = tuple(x[:32] for x in texts)
    ids = texts[0]
    torch.manual_seed(seed)
    untrained = kind.make().eval()
    found = {
        "kind": name,
        "seed": seed,
        "curve": [share for _, share in curve],
        "jump": jump(curve),
        "accuracy": {
            "as trained": round(accuracy(model, texts), 4),
            "moved": round(accuracy(model, moved(SETTINGS["rows"])), 4),
            **{str(p): round(accuracy(model, unseen((p, p))), 4) for p in TESTED},
        },
        "scores": {
            "trained": head_scores(model, ids),
            "untrained": head_scores(untrained, ids),
            "sharpened": head_scores(sharpened(kind, seed, model, ids), ids),
        },
        "induction at period": {
            str(p): by_head(model, unseen((p, p))[0], METRICS["induction"])
            for p in TESTED
        },
        "fixed offset at period": {
            str(p): by_head(model, unseen((p, p))[0], stripe(p)) for p in TESTED
        },
        "first, no repeats": by_head(
            model, unseen((LENGTH, LENGTH))[0], METRICS["first"]
        ),
        "copying": {
            "largest": [diagonal_share(copying(model, i)) for i in layers],
            "eigenvalues": [eigenvalue_score(copying(model, i)) for i in layers],
            "untrained": [eigenvalue_score(copying(untrained, i)) for i in layers],
        },
        "previous by position": previous_share(positions_alone(model)),
        "previous by position, untrained": previous_share(positions_alone(untrained)),
        "without": subsets(model, few),
        "mean instead": mean_ablated(model, few),
        "importance": importance(model, texts),
    }
    if kind.layers == 2:
        found["composition"] = [diagonal_share(x) for x in composition(model)]
        found["composition, untrained"] = [
            diagonal_share(x) for x in composition(untrained)
        ]
        found["loss without"] = loss_without(model, texts)
        found["current by place"] = current_by_place(model, ids)
        for part in ("keys", "values"):
            found[f"hidden from {part}"] = hidden_from(model, part, texts)
        found["relayed"] = diagonal_share(relayed(model))
        found["relayed, untrained"] = diagonal_share(relayed(untrained))
    return found


def contrasted(name: str, seed: int, model, curve: list) -> dict:
    """Return what is stored of a contrast: accuracies, and roles by position."""
    texts = unseen(PERIODS)
    names = [name for name in METRICS if name.startswith(("previous", "induction"))]
    return {
        "kind": name,
        "seed": seed,
        "steps": SETTINGS["steps"],
        "learning_rate": SETTINGS["learning_rate"],
        "jump": jump(curve),
        "accuracy": {
            "as trained": round(accuracy(model, texts), 4),
            "moved": round(accuracy(model, moved(SETTINGS["rows"])), 4),
            **{str(p): round(accuracy(model, unseen((p, p))), 4) for p in TESTED},
        },
        "scores": {name: by_head(model, texts[0], METRICS[name]) for name in names},
    }


def stripe(period: int) -> Callable:
    """Return the usual induction score: the weight on the key period - 1 back.

    Of texts of one period, over all queries that have such a key.
    """
    return lambda attention, ids: at_offset(attention, 1 - period, mask=MASK)


def study(folder: Path | None) -> dict:
    """Run everything; return what is stored."""
    runs = []
    for name in KINDS:
        for seed in SEEDS:
            print(name, seed, flush=True)
            runs.append(measured(name, seed, *kept(folder, name, seed)))
    contrasts = [
        contrasted(name, seed, *kept(folder, name, seed))
        for name in CONTRASTS
        for seed in FEW
    ]
    further = [cast(seed, kept(folder, "two layers", seed)[0]) for seed in FURTHER]
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions["machine"] = platform.machine()
    versions["cpu capability"] = torch.backends.cpu.get_cpu_capability()
    return {
        "study": "what heads specialise in",
        "versions": versions,
        "settings": SETTINGS,
        "seeds": SEEDS,
        "even": even_scores(),
        "further": further,
        "contrasts": contrasts,
        "runs": runs,
    }


def even_scores() -> dict[str, float]:
    """Return what a head scores that reads all it may, all alike."""
    ids, even = (
        unseen(PERIODS)[0],
        uniform_attention((SETTINGS["rows"], 1, LENGTH, LENGTH), MASK),
    )
    return {
        name: round(metric(even, ids).nanmean().item(), 4)
        for name, metric in METRICS.items()
    }


def repeated() -> dict:
    """Train the run that --check repeats; return its accuracies, and its jump."""
    name, seed = CHECKED
    model, curve = trained(KINDS[name], seed)
    shares = {str(p): accuracy(model, unseen((p, p))) for p in TESTED}
    return {"accuracy": shares, "jump": jump(curve)}


def misfits(stored: dict, found: dict) -> list[str]:
    """Return what of a repeated run is not as stored, in words."""
    said = []
    if json.loads(json.dumps(SETTINGS)) != stored["settings"]:
        said.append("the settings are not those with which the study was stored.")
    same = [run for run in stored["runs"] if run["kind"] == CHECKED[0]]
    if len(same) != len(SEEDS):
        return [*said, f"{len(same)} runs of {CHECKED[0]} are stored."]
    for period, share in found["accuracy"].items():
        column = [run["accuracy"][period] for run in same]
        low, high = min(column) - MARGIN, max(column) + MARGIN
        if not low <= share <= high:
            said.append(
                f"period {period}: {share:.2f} is not in {low:.2f} to {high:.2f}."
            )
    jumps = [run["jump"] for run in same]
    low, high = min(jumps) - LATER, max(jumps) + LATER
    if found["jump"] is None or not low <= found["jump"] <= high:
        said.append(f"the jump at step {found['jump']} is not in {low} to {high}.")
    return said


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    if arguments == ["--check"]:
        said = misfits(json.loads(STORED.read_text(encoding="utf-8")), repeated())
        print("\n".join(said) or f"{', '.join(map(str, CHECKED))}: as stored.")
        return bool(said)
    if len(arguments) > 1 or any(x.startswith("-") for x in arguments):
        print(__doc__)
        return 2
    folder = Path(arguments[0]) if arguments else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    STORED.write_text(as_json(study(folder)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
