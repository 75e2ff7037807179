"""The picture beside a verdict: which matrix, which axes, which words."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from utils.oldex import drawing
from utils.oldex.engine import Exercise, draw, grade, randn


@pytest.fixture
def shown(monkeypatch):
    """What was shown, as (figure, caption); the figures stay open."""
    pairs = []
    monkeypatch.setattr(drawing, "show", lambda *given: pairs.append(given))
    yield pairs
    plt.close("all")


def picture_of(answer, x):
    exercise = Exercise("0.0", "", lambda x: x * 1, lambda _: ({"x": x},))
    return grade(exercise, answer).picture


def test_the_three_panels(shown):
    expected, yours = torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.ones(2, 3) * 8
    draw(expected, yours)
    ((figure, caption),) = shown
    assert caption == "Expected and your output differ by at most 7."
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["expected", "yours", "difference"]
    for ax, matrix in zip(figure.axes, (expected, yours, yours - expected)):
        drawn = ax.collections[0]
        assert drawn.get_array().reshape(2, 3).tolist() == matrix.tolist()
        assert drawn.get_clim() == (-8.0, 8.0)  # one scale for all three
        assert ax.get_xlabel() == ax.get_ylabel() == ""


def test_what_is_not_finite_is_hatched_and_counted(shown):
    expected = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    draw(expected, torch.tensor([[1.0, math.nan], [math.inf, 4.5]]))
    ((figure, caption),) = shown
    assert caption == (
        "Expected and your output differ by at most 0.5. "
        "2 of your 4 values are NaN or infinite."
    )
    drawn = [ax.collections[0].get_array() for ax in figure.axes]
    hidden = [np.ma.getmaskarray(cells).flatten().tolist() for cells in drawn]
    lost = [False, True, True, False]
    assert hidden == [[False] * 4, lost, lost]


@pytest.mark.parametrize("value, scale", [(1e30, 1e9), (0.0, 1.0)])
def test_huge_and_equal_matrices_have_a_scale_too(value, scale, shown):
    draw(torch.zeros(2, 2), torch.full((2, 2), value))
    assert shown[0][0].axes[1].collections[0].get_clim() == (-scale, scale)


def test_of_several_matrices_the_one_that_differs_most_is_drawn():
    x = randn(2, 3, 4, 5, seed=0, dtype=torch.float32)
    edit = torch.zeros(2, 3, 4, 5)
    edit[0, 1], edit[1, 2, 0, 0], edit[1, 0] = 0.5, 2.0, -1.0
    expected, yours = picture_of(lambda x: x + edit.to(x.dtype), x)
    torch.testing.assert_close(expected, x[1, 2].double())
    torch.testing.assert_close(yours, (x + edit)[1, 2].double())


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_matrix_with_nan_or_inf_differs_most(lost):
    x = randn(3, 2, 2, seed=0, dtype=torch.float32)
    edit = torch.tensor([5.0, 0, 9]).view(3, 1, 1).repeat(1, 2, 2)
    edit[1, 0, 1] = lost
    expected, yours = picture_of(lambda x: x + edit, x)
    torch.testing.assert_close(expected, x[1].double())
    assert int((~yours.isfinite()).sum()) == 1


def test_a_vector_is_drawn_as_one_row_and_a_number_not_at_all():
    expected, yours = picture_of(lambda x: x + 1, torch.arange(3.0))
    assert expected.tolist() == [[0, 1, 2]] and yours.tolist() == [[1, 2, 3]]
    assert picture_of(lambda x: x + 1, torch.tensor(1.0)) is None


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x[:1],
        lambda x: x.half(),
        lambda x: 1 / 0,
        lambda x: x.detach(),
        lambda x: x.add_(1),
        lambda x: x * 1,
    ],
)
def test_there_is_a_picture_only_of_wrong_values(answer):
    assert picture_of(answer, torch.ones(2, 2)) is None
