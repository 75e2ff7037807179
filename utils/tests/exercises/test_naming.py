"""A wrong answer gets the right name, and no name where none can be claimed."""

import math

import pytest
import torch
from torch.testing import assert_close

from utils.exercises import slips
from utils.exercises.engine import Exercise, grade, randn

# --- softmax, known-wrong in two ways ---------------------------------------------


def softmax(x):
    return x.softmax(dim=-1)


def no_maximum(x):
    """exp overflows."""
    return x.exp() / x.exp().sum(dim=-1, keepdim=True)


def logarithms(x):
    """Those are logarithms."""
    return x.log_softmax(dim=-1)


def softmax_inputs(dtype):
    yield {"x": randn(3, 5, seed=0, dtype=dtype)}
    yield {"x": randn(2, 3, 3, seed=1, dtype=dtype)}
    yield {"x": randn(2, 4, seed=2, dtype=dtype) * 1000}


SOFTMAX = Exercise(
    "0.1",
    "Softmax",
    softmax,
    softmax_inputs,
    {"no maximum subtracted": no_maximum, "logarithms": logarithms},
)


def stable(x):
    return (x - x.amax(dim=-1, keepdim=True)).exp()


def keepdim_in_the_sum(x):
    e = stable(x)
    return e / e.sum(-1)


def keepdim_in_the_maximum(x):
    e = (x - x.max(dim=-1).values).exp()
    return e / e.sum(dim=-1, keepdim=True)


def keepdim_and_no_maximum(x):
    return x.exp() / x.exp().sum(axis=-1)


def first_axis(x):
    return torch.nn.functional.softmax(x, 0)


def axis_left_out(x):
    return torch.nn.functional.softmax(x)


def sum_of_everything(x):
    e = stable(x)
    return e / e.sum()


def cut_in_the_middle(x):
    e = stable(x.detach() * 0 + x)
    return e / e.sum(dim=-1, keepdim=True).detach()


def logarithms_detached(x):
    return x.log_softmax(dim=-1).detach()


def logarithms_as_numbers(x):
    return torch.tensor(x.log_softmax(dim=-1).tolist(), dtype=x.dtype)


def logarithms_in_a_tuple(x):
    return x.log_softmax(dim=-1), x


def logarithms_in_place(x):
    x -= x.logsumexp(dim=-1, keepdim=True)
    return x


def logarithms_unless_large(x):
    return logarithms(x) if x.abs().max() < 30 else x * math.nan


def logarithms_in_two_dimensions(x):
    if x.dim() > 2:
        raise ValueError("only two axes")
    return logarithms(x)


def softmax_in_single(x):
    return x.float().softmax(dim=-1).to(x.dtype)


def softmax_off_by_little(x):
    return stable(x) / (stable(x).sum(dim=-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    "answer, name, also",
    [
        (keepdim_in_the_sum, "keepdim=True forgotten", "Nothing else is wrong."),
        (keepdim_in_the_maximum, "keepdim=True forgotten", "Nothing else is wrong."),
        (keepdim_and_no_maximum, "keepdim=True forgotten", "'no maximum subtracted'"),
        (first_axis, "another axis than the last", "Nothing else is wrong."),
        (lambda x: x.softmax(0), "another axis than the last", "Nothing else is wrong"),
        (axis_left_out, "another axis than the last", "Nothing else is wrong."),
        (sum_of_everything, "a sum or maximum of everything", "Nothing else is wrong."),
        (cut_in_the_middle, "a gradient cut by detach", "Nothing else is wrong."),
        (lambda x: softmax(x).detach(), "a gradient cut off", "none arrives"),
        (logarithms_detached, "a gradient cut by detach", "'logarithms'"),
        (logarithms_as_numbers, "logarithms", "On 6 of 6 inputs its output"),
        (lambda x: logarithms(x).float(), "logarithms", "On 6 of 6 inputs"),
        (logarithms_in_a_tuple, "logarithms", "returned tuple, not a tensor"),
        (logarithms_in_place, "logarithms", "edits its argument `x`"),
        (logarithms_unless_large, "logarithms", "(On others most of it is NaN or"),
        (logarithms_in_two_dimensions, "logarithms", "(On others it raises an error.)"),
        (lambda x: (softmax(x), x), "more returned than was asked for", "first part"),
        (lambda x: softmax(x).half(), "another dtype", "Your numbers are right"),
        (lambda x: softmax(x) / 4, "right but for a factor", "number is 0.25 times"),
        (lambda x: softmax(x).mT, "axes in another order", "Your numbers are right"),
        (lambda x: softmax(x)[None], "right numbers in another shape", "(1, 3, 5)"),
        (lambda x: x.copy_(softmax(x)), "an argument edited in place", "edits its"),
        (softmax_in_single, "right in single precision only", "single precision ("),
        (softmax_off_by_little, "right in single precision only", "small number"),
        (lambda x: print(x), "no return", "Is a `return` missing?"),
        (lambda x: (x, x).exp(), "a tuple taken for a tensor", "several things"),
    ],
)
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_what_was_done_is_named(answer, name, also):
    verdict = grade(SOFTMAX, answer)
    assert verdict.mistake == name and also in verdict.message, verdict.message


def all_nan(x):
    return x * math.nan


def right_unless_large(x):
    return softmax(x) if x.abs().max() < 30 else logarithms(x)


def other_mistake_first(x):
    return x.sigmoid() if x.dim() == 2 and x.abs().max() < 30 else logarithms(x)


def wrong_in_its_own_way(x):
    return x.sigmoid() + 1


def keepdim_and_something_else(x):
    return (x * 2).exp() / (x * 3).exp().sum(dim=-1)


@pytest.mark.parametrize(
    "answer",
    [all_nan, right_unless_large, other_mistake_first, wrong_in_its_own_way]
    + [keepdim_and_something_else, lambda x: x[:0], lambda x: x.new_zeros(())],
)
def test_what_cannot_be_claimed_is_not_named(answer):
    verdict = grade(SOFTMAX, answer)
    assert verdict.mistake is None and not verdict.solved, verdict.message
    assert "known mistake" not in verdict.message


# --- where two mistakes cannot be told apart --------------------------------------


def by_length(x):
    """Divided by the length."""
    return x / len(x)


def by_width(x):
    """Divided by the width."""
    return x / x.shape[-1]


def test_of_two_mistakes_that_come_equally_close_none_is_the_name():
    trials = {"x": randn(3, 3, seed=0, dtype=torch.float32)}, {"x": torch.zeros(2, 3)}
    mistakes = {"by length": by_length, "by width": by_width}
    exercise = Exercise("0.2", "", lambda x: x * 1, lambda _: trials, mistakes)
    verdict = grade(exercise, lambda x: (x / 3, x) if len(x) == 2 else x.detach() / 3)
    assert verdict.mistake is None


# --- layouts ----------------------------------------------------------------------


def scores(query, key):
    return query @ key.mT


def scores_inputs(dtype):
    for leading in ((), (2,), (2, 3)):
        yield {
            "query": randn(*leading, 4, 5, seed=0, dtype=dtype),
            "key": randn(*leading, 3, 5, seed=1, dtype=dtype),
        }


def with_t(query, key):
    return query @ key.t() if key.dim() == 2 else query @ key.T


def with_first_two(query, key):
    return query @ key.transpose(0, 1)


@pytest.mark.parametrize("answer", [with_t, with_first_two])
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_another_pair_of_axes(answer):
    exercise = Exercise("0.3", "", scores, scores_inputs, {})
    assert grade(exercise, answer).mistake == "another pair of axes transposed"


def test_a_view_that_should_be_a_reshape():
    trials = ({"x": randn(2, 3, 4, seed=0, dtype=torch.float32)},)
    exercise = Exercise("0.4", "", lambda x: x.mT.flatten(1), lambda _: trials, {})
    verdict = grade(exercise, lambda x: x.transpose(1, 2).view(2, 12))
    assert verdict.mistake == "view of transposed memory"


def believes(function):
    """Some are not zero."""
    return True


def zero(function):
    return bool(function(X).abs().max() < 1e-3)


X = torch.linspace(-1, 1, 5)
IS_ZERO = Exercise(
    "0.8",
    "",
    zero,
    lambda dtype: [
        {"function": f} for f in (torch.zeros_like, nearly, small, torch.sin)
    ],
    {"believes everything": believes},
    gradients=False,
)


def nearly(x):
    return x * 1e-6


def small(x):
    return x * 0.01


@pytest.mark.parametrize(
    "answer, name",
    [
        (lambda f: torch.equal(f(X), X * 0), "an unfit tolerance"),
        (lambda f: torch.allclose(f(X), X * 0, atol=0.1), "an unfit tolerance"),
        (lambda f: bool(f(X) == 0), "many truths where one is needed"),
        (lambda f: assert_close(f(X), X * 0) is None, "an assertion where an answer"),
        (lambda f: not torch.equal(f(X), X * 0), None),
    ],
)
def test_how_a_test_of_two_tensors_goes_wrong_is_named(answer, name):
    verdict = grade(IS_ZERO, answer)
    assert not verdict.solved
    assert (verdict.mistake or "").startswith(name or ""), verdict.message
    assert name or verdict.mistake is None


def allowed(mask):
    return torch.where(mask, 1.0, 0.0)


def test_a_mask_the_wrong_way_round():
    trials = ({"mask": randn(3, 4, seed=0, dtype=torch.float32) > 0},)
    for answer in (
        lambda mask: torch.where(mask, 0.0, 1.0),
        lambda mask: torch.ones(3, 4).masked_fill(mask, 0.0),
        lambda mask: torch.ones(3, 4).where(~mask, torch.zeros(3, 4)),
    ):
        verdict = grade(Exercise("0.5", "", allowed, lambda _: trials, {}), answer)
        assert verdict.mistake == "the mask the wrong way round"
    flipped = Exercise("0.6", "", lambda mask: mask, lambda _: trials, {})
    assert grade(flipped, lambda mask: ~mask).mistake == "True and False exchanged"


@pytest.mark.parametrize(
    "answer, name",
    [
        (lambda x, m: index_under_mask(x, m), "assignment under a mask that should"),
        (lambda x, m: x @ torch.ones(3, 3).to(m.device), "two precisions mixed"),
        (lambda x, m: x.masked_fill(~m.float(), 0.0), "a mask of numbers"),
    ],
)
def test_an_error_that_everybody_meets_is_explained(answer, name):
    def inputs(dtype):
        x = randn(2, 3, 3, seed=0, dtype=torch.float64)
        yield {"x": x, "m": torch.ones(3, 3, dtype=torch.bool).tril()}

    verdict = grade(Exercise("0.7", "", lambda x, m: x * m, inputs, {}), answer)
    assert verdict.mistake.startswith(name), verdict.message


def index_under_mask(x, mask):
    x = x.clone()
    x[~mask] = 0
    return x


def test_an_edit_that_makes_the_shapes_grow_is_given_up():
    def smoothed(x):
        for _ in range(20):
            x = x + x.mean(dim=-1)[..., None]
        return x

    assert smoothed(torch.ones(3, 5)).shape == (3, 5)
    edited = slips.Edited(slips._keepdim).around(smoothed)
    with pytest.raises(OverflowError):
        edited(torch.ones(3, 5))


def column_sums(x):
    return x.sum(dim=-2)


def row_sums(x):
    """Those are sums of rows."""
    return x.sum(dim=-1)


def sums_over_the_first_axis(x):
    return x.sum(dim=0)


def test_an_edit_that_spoils_what_was_right_is_no_slip():
    # over the last axis it would equal the mistake, also where it is right as it stands
    columns = Exercise(
        "0.3", "Sums", column_sums, softmax_inputs, {"row sums": row_sums}
    )
    verdict = grade(columns, sums_over_the_first_axis)
    assert not verdict.solved and verdict.mistake is None, verdict.message


def eighths(x, kept=True):
    """Return x in [0, 1), rounded down to eighths, by halving an interval."""
    low, high = torch.zeros_like(x), torch.ones_like(x)
    for _ in range(3):
        middle = (low + high) / 2
        upper = (middle <= x) == kept
        low, high = middle.where(upper, low), high.where(upper, middle)
    return low


def wrong_half(x):
    """The number is in the other half."""
    return eighths(x, kept=False)


def eighths_of_something_else(x):
    return eighths(x.round() * 0.9)


def test_an_edit_that_makes_a_mistake_of_the_right_answer_is_no_slip():
    # the halves exchanged, every search ends as wrong_half does, a right one, too
    def inputs(dtype):
        yield {"x": torch.tensor([[0.3, 0.7, 0.3]], dtype=dtype)}

    halving = Exercise(
        "0.4", "Halving", eighths, inputs, {"half": wrong_half}, gradients=False
    )
    verdict = grade(halving, eighths_of_something_else)
    assert not verdict.solved and verdict.mistake is None, verdict.message
