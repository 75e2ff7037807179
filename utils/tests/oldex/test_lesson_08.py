"""Lesson 08: what is refused or named; a solved answer runs in the page; no names."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from utils.oldex import EXERCISES
from utils.oldex.engine import grade

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


def cell_with(words: str) -> str:
    """Return the cell of the core or of the deeper notebook with these words."""
    pages = NOTEBOOKS.rglob("08_head_specialisation.ipynb")
    cells = [
        "".join(cell["source"])
        for page in pages
        for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]
    ]
    (found,) = [source for source in cells if words in source]
    return found


def copied_answer(head, vocab, length):
    return (
        EXERCISES["8.1"]
        .reference(
            lambda *matrices: head(*(matrix.long() for matrix in matrices)),
            vocab,
            length,
        )
        .clone()
    )


def test_what_an_answer_makes_of_the_text_does_not_matter_to_the_page():
    assert grade(EXERCISES["8.1"], copied_answer).solved
    page = {"torch": torch, "answer": lambda name: copied_answer}
    exec(cell_with("def matrices_of("), page)
    query, key, value = page["matrices_of"]("8.1", 3, 5)
    x = torch.eye(3 * 3 + 5)[3:8]  # positions alone
    scores = (x @ query.float()) @ (x @ key.float()).mT
    assert scores[1:].argmax(-1).tolist() == [0, 1, 2, 3]
    assert value[:3, 8:11].equal(torch.eye(3).long())


@pytest.mark.parametrize(("name", "table"), [("8.1", "guess"), ("8.2", "previous")])
def test_a_token_that_is_written_into_two_tables_is_named(name, table):
    def twice(head, vocab, length):
        other = slice(2 * vocab + length, None)
        if table == "previous":
            other = slice(vocab + length, 2 * vocab + length)

        def also(query, key, value):
            value[:vocab, other] = torch.eye(vocab)
            return head(query, key, value)

        return EXERCISES[name].reference(also, vocab, length)

    assert grade(EXERCISES[name], twice).mistake == "writes into two tables"


def solution(name):
    """Return the function of the solution that a page shows."""
    page = cell_with(f"<summary>Solution {name}</summary>")
    code = page.split(f"Solution {name}</summary>")[1].split("```")[1]
    names = {"torch": torch}
    exec(code.removeprefix("python"), names)
    return names["my_previous_head" if name == "8.1" else "my_induction_head"]


@pytest.mark.parametrize("name", ["8.1", "8.2"])
@pytest.mark.parametrize("packed", [tuple, list])
def test_matrices_that_are_not_given_to_the_head_are_named(name, packed):
    def forgets_the_head(head, vocab, length):
        return solution(name)(lambda *matrices: packed(matrices), vocab, length)

    verdict = grade(EXERCISES[name], forgets_the_head)
    assert verdict.mistake == "returns the matrices"
    assert "return head(query, key, value)" in verdict.message


def test_several_things_where_one_tensor_is_asked_for_get_a_sentence():
    def output_and_weights(head, vocab, length):
        return torch.zeros(4, length, length), torch.zeros(length)

    verdict = grade(EXERCISES["8.2"], output_and_weights)
    assert "returned tuple, not a tensor. Return one tensor;" in verdict.message


def text(period, length=60, first=0):
    return first + torch.randperm(64)[:period].repeat(length)[:length]


def share(head, ids):
    follows = F.pad((ids[:, None] == ids[None, :]).tril(-1), (1, -1))
    return (head(ids) * follows).sum(-1)[follows.any(-1)].mean()


def asks(*periods, **options):
    """Return a test that asks for a high share at each of these periods."""
    return lambda head: all(share(head, text(p, **options)) > 0.5 for p in periods)


def random_periods(head):
    return asks(5, 19, *torch.randperm(30)[:8].add(3).tolist())(head)


def pieces_that_return_once(head):
    """Texts whose first ten tokens come again, each text after another distance."""
    tokens = torch.randperm(64)
    texts = (torch.cat([tokens[: 10 + gap], tokens[:10]]) for gap in (0, 5, 12, 40))
    return all(share(head, ids) > 0.5 for ids in texts)


@pytest.mark.parametrize(
    "right",
    [asks(9, 14, 19, 25, length=50), random_periods, pieces_that_return_once],
)
def test_other_texts_find_the_impostors_too(right):
    verdict = grade(EXERCISES["8.3"], right)
    assert verdict.solved, verdict.message


@pytest.mark.parametrize("period", [3, 4, 16, 17, 32, 33, 45, 58])
def test_no_single_period_is_enough(period):
    verdict = grade(EXERCISES["8.3"], asks(period))
    assert verdict.mistake == "one period is enough", verdict.message


def one_piece_after_long_distances(head):
    """Texts whose first 16 tokens come again later, no key nearer than 17 back."""
    tokens = torch.randperm(64)
    texts = (torch.cat([tokens[: 16 + gap], tokens[:16]]) for gap in (2, 9, 30))
    return all(share(head, ids) > 0.5 for ids in texts)


@pytest.mark.parametrize(
    "wrong",
    [asks(20, 31), asks(17, 23, 29, 31), one_piece_after_long_distances],
)
def test_long_periods_alone_are_not_enough(wrong):
    assert grade(EXERCISES["8.3"], wrong).mistake == "near copies not asked for"


@pytest.mark.parametrize("lead", [6.0, 7.0])
def test_a_lead_that_is_too_small_for_65_positions_is_named(lead):
    def blunt(head, vocab, length):
        weaker = lambda q, k, v: head(q / 20 * lead, k, v)  # noqa: E731
        return EXERCISES["8.1"].reference(weaker, vocab, length)

    assert grade(EXERCISES["8.1"], blunt).mistake == "not sharp"


def test_all_earlier_positions_are_named():
    def earlier(head, vocab, length):
        def all_before(query, key, value):
            place = slice(vocab, vocab + length)
            query[place, place] = 20 * torch.ones(length, length).tril(-1)
            return head(query, key, value)

        return EXERCISES["8.1"].reference(all_before, vocab, length)

    assert grade(EXERCISES["8.1"], earlier).mistake == "all earlier positions"


@pytest.mark.parametrize(
    "wrong",
    [
        asks(7, 11, 13, 17, length=65),
        asks(7, 11, 13, 17, first=1),
        lambda head: asks(7, 17)(lambda ids: head(ids[None])[0]),
        lambda head: asks(7, 17)(lambda ids: head(ids.float())),
    ],
)
def test_a_text_that_the_model_does_not_know_is_refused(wrong):
    verdict = grade(EXERCISES["8.3"], wrong)
    assert "at most 64, each from 0 to 63" in verdict.message


@pytest.mark.parametrize("name", ["8.3", "8.4", "9.2"])
def test_a_function_shows_nothing_of_what_it_is(name):
    seen = []

    def looks(function, *heads):
        with pytest.raises(TypeError, match="__dict__"):
            vars(function)
        shown = repr(function).split(" at 0x")[0], type(function), dir(function)
        hidden = (hasattr(function, name) for name in ("__name__", "__closure__"))
        seen.append((*shown, *hidden))
        return EXERCISES[name].reference(function, *heads)

    assert grade(EXERCISES[name], looks).solved
    assert len(seen) > 10 and all(each == seen[0] for each in seen)
    told = grade(EXERCISES[name], lambda function, *heads: 0).message
    (first, *_) = EXERCISES[name].inputs(torch.float32)
    assert f"For `{next(iter(first.values())).__name__}` your" in told


@pytest.mark.parametrize("fall, found", [(0.3, []), (0.301, [(0, 1)])])
def test_a_model_in_which_the_accuracy_falls_by_exactly_the_limit(fall, found):
    models = [m["accuracy_without"] for m in EXERCISES["8.4"].inputs(torch.float32)]
    assert any(m.function([]) - m.function([0, 1]) == 0.3 for m in models)
    accuracy = lambda gone: 0.301 - fall * (len(gone) == 2)  # noqa: E731
    assert EXERCISES["8.4"].reference(accuracy, 2) == found
