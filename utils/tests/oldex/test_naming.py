"""A wrong answer gets the right name, and no name where none can be claimed."""

import pytest
import torch
from torch.testing import assert_close

from utils.oldex import slips
from utils.oldex.engine import grade, randn
from utils.tests.helpers import made_up, written

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


SOFTMAX = made_up(
    softmax,
    softmax_inputs,
    wrong={"no maximum subtracted": no_maximum, "logarithms": logarithms},
)
STABLE = "e = (x - x.amax(dim=-1, keepdim=True)).exp(); "


@pytest.mark.parametrize(
    "body, name, also",
    [
        (f"{STABLE}return e / e.sum(-1)", "keepdim=True forgotten",
         "line up with the rows it came from. Nothing else is wrong."),
        ("e = (x - x.max(dim=-1).values).exp(); return e / e.sum(-1, keepdim=True)",
         "keepdim=True forgotten", "Nothing else is wrong."),
        ("return x.exp() / x.exp().sum(axis=-1)", "keepdim=True forgotten",
         "'no maximum subtracted'"),
        ("return F.softmax(x, 0)", "another axis than the last", "(dim=-1)"),
        ("return F.softmax(x)", "another axis than the last", "(dim=-1)"),
        (f"{STABLE}return e / e.sum()", "a sum or maximum of everything", "dim="),
        (f"{STABLE}return e / e.sum(dim=-1, keepdim=True).detach()",
         "a gradient cut by detach", ".detach()"),
        ("return x.log_softmax(dim=-1).detach()", "a gradient cut by detach",
         "'logarithms'"),
        ("return torch.tensor(x.log_softmax(-1).tolist(), dtype=x.dtype)", "logarithms",
         "On 6 of 6 inputs its output is that of a known mistake, 'logarithms'. "
         "Those are logarithms.\n"),
        ("return x.log_softmax(-1).float()", "logarithms", "On 6 of 6 inputs"),
        ("return x.log_softmax(-1), x", "logarithms", "returned tuple, not a tensor"),
        ("x -= x.logsumexp(-1, keepdim=True); return x", "logarithms",
         "edits its argument `x`"),
        ("return x.log_softmax(-1) if x.abs().max() < 30 else x * math.nan",
         "logarithms",
         "On 4 of 6 inputs its output, where it is a number, is that of a known "
         "mistake, 'logarithms'. Those are logarithms.\n"),
        ("return x.log_softmax(-1) if x.abs().max() < 30 else x", "logarithms",
         "On 4 of 6 inputs its output is that of a known mistake, 'logarithms'. "
         "Those are logarithms.\n"),
        ("assert x.dim() == 2; return x.log_softmax(-1)", "logarithms",
         "On 4 of 6 inputs its output is that of a known mistake, 'logarithms'. "
         "Those are logarithms.\n"),
        ("return x.softmax(-1), x", "more returned than was asked for", "first part"),
        ("return x.softmax(-1).half()", "another dtype", "Your numbers are right"),
        ("return x.softmax(-1) / 4", "right but for a factor",
         "Every number is 0.25 times the expected one."),
        ("return x.softmax(-1) / len(x)", "right but for a factor",
         "times the same factor; another input has another factor."),
        ("return x.softmax(-1) / (4 if x.dim() == 2 else 1)", "right but for a factor",
         "times the same factor; another input has another factor."),
        ("return x.softmax(-1).mT", "axes in another order", "Your numbers are right"),
        ("return x.softmax(-1)[None]", "right numbers in another shape", "(1, 3, 5)"),
        ("return x.copy_(x.softmax(-1))", "an argument edited in place", "edits its"),
        ("return x.float().softmax(dim=-1).to(x.dtype)",
         "right in single precision only", "single precision ("),
        (f"{STABLE}return e / (e.sum(dim=-1, keepdim=True) + 1e-6)",
         "right in single precision only", "small number"),
        ("print(x)", "no return", "Is a `return` missing?"),
        ("return (x, x).exp()", "a tuple taken for a tensor", "several things"),
        ("return tuple(x)[:, None]", "a tuple taken for a tensor", "several things"),
        ("return list(x)[:, None]", "a list taken for a tensor", "torch.arange(...)"),
        ("return range(2)[:, None]", "a list taken for a tensor", "torch.arange(...)"),
        ("return x >= 0 and x < 2", "many truths where one is needed", "(a >= 0) &"),
        # what cannot be claimed is not named
        ("return x * math.nan", None, "are NaN"),
        ("return torch.where(x < x.amax(-1, True), math.nan, x.log_softmax(-1))", None,
         "are NaN"),
        ("return x / 0", None, "are infinite"),
        ("return x.softmax(-1) if x.abs().max() < 30 else x.log_softmax(-1)", None, ""),
        ("return x.sigmoid() if x.dim() == 2 > x.mean() else x.log_softmax(-1)", None,
         ""),
        ("return x.sigmoid() + 1", None, ""),
        ("return (x * 2).exp() / (x * 3).exp().sum(dim=-1)", None, ""),
        ("return x[:0]", None, ""),
        ("return x.new_zeros(())", None, ""),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_what_was_done_is_named(body, name, also):
    verdict = grade(SOFTMAX, written(body))
    assert not verdict.solved and verdict.mistake == name, verdict.message
    assert also in verdict.message, verdict.message
    assert name or "known mistake" not in verdict.message


# --- infinite outputs -------------------------------------------------------------


def losses(p):
    return -(p * 0.9 + 0.1 / p.shape[-1]).log()


def not_smoothed(p):
    """What was never seen would cost infinity."""
    return -p.log()


def smoothed_twice(p):
    """Smooth once."""
    return -(p * 0.8 + 0.2 / p.shape[-1]).log()


@pytest.mark.parametrize(
    "body, name",
    [
        ("return -x.log() + 0 * x.mean()", "not smoothed"),
        ("return torch.where(x > 0, -(x * 0.8 + 0.05).log(), math.inf)", None),
        ("return -(x * 0).log()", None),
        ("return x * math.nan", None),
        ("return torch.where(x > 0.8, -(x * 0.8 + 0.05).log(), math.inf)", None),
    ],
)
def test_infinite_outputs_are_compared_too(body, name):
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.9, 0.1, 0.0, 0.0]])
    wrong = {"smoothed twice": smoothed_twice}
    if name:
        wrong[name] = not_smoothed
    exercise = made_up(losses, {"x": p}, wrong=wrong, gradients=False)
    verdict = grade(exercise, written(body))
    assert not verdict.solved and verdict.mistake == name, verdict.message


# --- where two mistakes cannot be told apart --------------------------------------


def by_length(x):
    """Divided by the length."""
    return x / len(x)


def by_width(x):
    """Divided by the width."""
    return x / x.shape[-1]


def test_of_two_mistakes_that_come_equally_close_none_is_the_name():
    trials = {"x": randn(3, 3, seed=0, dtype=torch.float32)}, {"x": torch.zeros(2, 3)}
    wrong = {"by length": by_length, "by width": by_width}
    exercise = made_up(lambda x: x * 1, *trials, wrong=wrong)
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


@pytest.mark.parametrize(
    "answer",
    [
        lambda query, key: query @ (key.t() if key.dim() == 2 else key.T),
        lambda query, key: query @ key.transpose(0, 1),
    ],
)
@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_another_pair_of_axes(answer):
    verdict = grade(made_up(scores, scores_inputs), answer)
    assert verdict.mistake == "another pair of axes transposed"


def test_a_view_that_should_be_a_reshape():
    trial = {"x": randn(2, 3, 4, seed=0, dtype=torch.float32)}
    exercise = made_up(lambda x: x.mT.flatten(1), trial)
    verdict = grade(exercise, lambda x: x.transpose(1, 2).view(2, 12))
    assert verdict.mistake == "view of transposed memory"


def believes(function):
    """Some are not zero."""
    return True


def zero(function):
    return bool(function(X).abs().max() < 1e-3)


def nearly(x):
    return x * 1e-6


def small(x):
    return x * 0.01


X = torch.linspace(-1, 1, 5)
IS_ZERO = made_up(
    zero,
    *({"function": f} for f in (torch.zeros_like, nearly, small, torch.sin)),
    wrong={"believes everything": believes},
    gradients=False,
)


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
    trial = {"mask": randn(3, 4, seed=0, dtype=torch.float32) > 0}
    for answer in (
        lambda mask: torch.where(mask, 0.0, 1.0),
        lambda mask: torch.ones(3, 4).masked_fill(mask, 0.0),
        lambda mask: torch.ones(3, 4).where(~mask, torch.zeros(3, 4)),
    ):
        verdict = grade(made_up(allowed, trial), answer)
        assert verdict.mistake == "the mask the wrong way round"
    flipped = made_up(lambda mask: mask, trial)
    assert grade(flipped, lambda mask: ~mask).mistake == "True and False exchanged"


@pytest.mark.parametrize(
    "body, name",
    [
        ("x = x.clone(); x[M] = 0; return x", "assignment under a mask that should"),
        ("return x @ torch.ones(3, 3)", "two precisions mixed"),
        ("return x.masked_fill(~M.float(), 0.0)", "a mask of numbers"),
    ],
)
def test_an_error_that_everybody_meets_is_explained(body, name):
    x = randn(2, 3, 3, seed=0, dtype=torch.float64)
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    answer = written(body)
    answer.__globals__["M"] = mask
    verdict = grade(made_up(lambda x: x * mask, {"x": x}), answer)
    assert verdict.mistake.startswith(name), verdict.message


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
    columns = made_up(column_sums, softmax_inputs, wrong={"row sums": row_sums})
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

    halving = made_up(eighths, inputs, wrong={"half": wrong_half}, gradients=False)
    verdict = grade(halving, eighths_of_something_else)
    assert not verdict.solved and verdict.mistake is None, verdict.message
