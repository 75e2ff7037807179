"""The page of the atlas: its numbers and tables, from the stored study."""

from collections import Counter

NONE = "no role found"


def page(source, study):
    """The Markdown of the page, from its source and assets/studies/roles.json."""
    values = {"enough": study["enough"]}
    by_head = {(row["model"], row["head"]): row["scores"] for row in study["runs"]}
    for model, about in study["models"].items():
        rows = [row for row in study["runs"] if row["model"] == model]
        counts = Counter(row["role"] or NONE for row in rows)
        roles = sorted(counts, key=lambda role: (role == NONE, -counts[role]))
        name = model.replace(" ", "_")
        values |= {
            f"{name}_heads": len(rows),
            f"{name}_counts": ", ".join(f"{role} {counts[role]}" for role in roles),
            f"{name}_table": table(rows, about["baselines"]),
        }
    for name, model, head, role in (
        ("previous", "encoder", "0.2", "previous token"),
        ("next", "encoder", "1.8", "next token"),
        ("same", "encoder", "0.8", "same token"),
        ("induction", "language model", "18.6", "induction"),
    ):
        values[name] = f"{by_head[model, head][role]:.2f}"
    untrained = study["models"]["encoder"]["baselines"]["same token"][1]
    resting = [
        row["scores"]["first token"]
        for row in study["runs"]
        if row["role"] == "induction"
    ]
    (sentences, _), *_ = study["models"]["encoder"]["texts"]
    (texts, length), (copies, _) = study["models"]["language model"]["texts"]
    return source.format(
        **values,
        same_untrained=f"{untrained:.2f}",
        resting_least=f"{min(resting):.2f}",
        resting_most=f"{max(resting):.2f}",
        sentences=sentences,
        texts=texts,
        length=length,
        copies=copies,
    )


def table(rows, baselines):
    """The table of the heads of one model, below its baselines."""
    roles = list(baselines)
    lines = [["head", *roles, "entropy"], ["---"] * (len(roles) + 2)]
    for i, name in enumerate(("uniform", "untrained")):
        scores = (f"{baselines[role][i]:.2f}" for role in roles)
        lines.append([f"*{name}*", *scores, ""])
    for row in rows:
        scores = {role: f"{row['scores'][role]:.2f}" for role in roles}
        if row["role"]:
            scores[row["role"]] = f"**{scores[row['role']]}**"
        lines.append([row["head"], *scores.values(), f"{row['entropy']:.2f}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
