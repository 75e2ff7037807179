"""Finds what a wrong answer did: a slip, a known mistake, or both.

A name is a claim, so each has to be earned on every input that can speak for it:

1. A known mistake did exactly the same, gradients and errors included.
2. The difference itself says it: a tuple, another order of the axes, ...
3. A slip: with nothing changed but, say, `keepdim=True`, the answer is right.
   Or with that change it equals a known mistake.
4. A known mistake with something else beside it: the outputs are the same numbers on
   all inputs or on most, and no other mistake comes as close.

An output that is mostly NaN or infinite could come from anything: it does not count as
near to a mistake.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from utils.oldex.compare import (
    CUT_OFF,
    EDITS,
    FIRST_IS_RIGHT,
    OVERWRITTEN,
    RETURN_MISSING,
    VALUES_DIFFER,
    alike,
    difference,
    hint,
    output_difference,
    same,
)
from utils.oldex.running import Run, run, silence, tensors
from utils.oldex.slips import SLIPS, Edited

Form = tuple[str, str, Callable]  # mistake, why, function


@dataclass(frozen=True)
class Trial:
    """One trial: its arguments, what should have happened, what the answer did."""

    inputs: dict
    should: Run
    did: Run
    seed: int = 0  # of the random numbers that were drawn

    @functools.cached_property
    def said(self) -> str | None:
        return difference(self.should, self.did)

    @functools.cached_property
    def lost(self) -> bool:
        """Whether most numbers are NaN or infinite that should not be."""
        target, output = self.should.output, _unpacked(self, self.did.output)
        said = output_difference(target, output)
        if said is None or not said.startswith(VALUES_DIFFER):
            return False
        lost = target.isfinite() & ~output.isfinite()
        return int(lost.sum()) * 2 > target.numel()


@dataclass(frozen=True)
class Name:
    """The name of a mistake, and the sentence that claims it."""

    mistake: str
    sentence: str = ""  # empty if the difference says it already


def name_of(
    function: Callable,
    trials: list[Trial],
    forms: Iterable[Form],
    gradients: bool | str,
    reference: Callable,
) -> Name | None:
    """Return what the learner did, or None where nothing can be claimed."""
    known = Known(forms, trials, gradients)
    exact = known.exactly(lambda at: trials[at].did)
    if exact:
        mistake, why = exact
        return Name(mistake, f"Your answer equals a known mistake, {mistake!r}. {why}")
    if not any(True for t in trials for _ in tensors(t.should.output)):
        # a few words in common prove no known mistake, what puts them right does
        known = Known([], trials, gradients)
    return (
        _evident(trials)
        or _slip(function, reference, known)
        or known.nearly()
        or _single(trials)
    )


# --- known mistakes ---------------------------------------------------------------


class Known:
    """The known mistakes of an exercise; each is run on an input once, when needed."""

    def __init__(
        self, forms: Iterable[Form], trials: list[Trial], gradients: bool | str
    ):
        self.forms, self.trials, self.gradients = list(forms), trials, gradients
        # what is wrong comes first: it tells mistakes apart soonest
        self.order = sorted(range(len(trials)), key=lambda at: trials[at].said is None)
        self.run = functools.cache(self._run)

    def _run(self, form: int, at: int) -> Run:
        trial = self.trials[at]
        return run(self.forms[form][2], trial.inputs, self.gradients, trial.seed)

    def exactly(self, did: Callable[[int], Run]) -> tuple[str, str] | None:
        """Return (mistake, why) of the first that did the same everywhere."""
        for form, (mistake, why, _) in enumerate(self.forms):
            if all(alike(self.run(form, at), did(at)) for at in self.order):
                return mistake, why
        return None

    def nearly(self) -> Name | None:
        """Return the one mistake whose outputs are the learner's on the most inputs."""
        near = [self._near(form) for form in range(len(self.forms))]
        best = max(near, default=(0, False))
        closest = [form[:2] for form, score in zip(self.forms, near) if score == best]
        if best == (0, False) or len({mistake for mistake, _ in closest}) > 1:
            return None  # of two that come equally close, neither is the name
        mistake, why = closest[0]
        some = any("are NaN" in (trial.said or "") for trial in self.trials)
        claim = (
            f"On {best[0]} of {len(self.trials)} inputs its output"
            f"{', where it is a number,' if some else ''} is that of a known mistake, "
            f"{mistake!r}. {why}"
        )
        return Name(mistake, claim)

    def _near(self, form: int) -> tuple[int, bool]:
        """Return on how many inputs the outputs are equal, and whether on all.

        (0, False) if that proves nothing: if the answer is right where the mistake is
        wrong, if the first wrong output is another one, or most are.
        """
        equal, others = 0, 0
        for at, trial in enumerate(self.trials):
            if trial.did.error is not None or trial.lost:
                continue
            wrong = not _is_output(trial, trial.should)
            agrees = _is_output(trial, self.run(form, at))
            if not agrees and (not wrong or not equal):
                return 0, False
            equal += wrong and agrees
            others += not agrees
        return (equal, not others) if equal and equal >= others else (0, False)


def _is_output(trial: Trial, other: Run) -> bool:
    """Whether an answer's output is another's, but for NaN and what was packed around.

    NaN is left out because it looks like any other; infinite numbers count.
    """
    if other.error is not None:
        return False
    yours, known = _unpacked(trial, trial.did.output), _unpacked(trial, other.output)
    said = output_difference(known, yours)
    if said is None or not said.startswith(VALUES_DIFFER):
        return said is None
    number, cast = ~yours.isnan(), yours is not trial.did.output
    equal = _equal if cast else same  # a cast one, as far as its own type could tell
    return equal(yours[number], known[number])


def _unpacked(trial: Trial, output: object) -> object:
    """Return an output without what was packed or cast around it."""
    target = trial.should.output
    if not isinstance(target, Tensor):
        return output
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    if isinstance(output, Tensor) and output.dtype.is_floating_point:
        return output.to(target.dtype) if target.is_floating_point() else output
    return output


# --- what the difference itself says ----------------------------------------------

FACTOR = "right but for a factor"
SAID = {  # words of a difference -> what was done
    RETURN_MISSING: "no return",
    FIRST_IS_RIGHT: "more returned than was asked for",
    OVERWRITTEN: "a tensor overwritten that the gradient needs",
    CUT_OFF: "a gradient cut off",
}


def _evident(trials: list[Trial]) -> Name | None:
    """Return what is said on every input on which the answer is wrong."""
    found = [_said(trial) for trial in trials if trial.said is not None]
    if None in found or len({name.mistake for name in found}) != 1:
        return None
    everywhere = len(found) == len(trials) and len(set(found)) == 1
    if found[0].mistake == FACTOR and not everywhere:
        claim = (
            "On each input every number is the expected one times the same factor; "
            "another input has another factor."
        )
        return Name(FACTOR, claim)
    return found[0]


def _said(trial: Trial) -> Name | None:
    said, did, target = trial.said, trial.did, trial.should.output
    if did.error is not None:
        known = hint(did.error)
        return Name(known[0]) if known else None
    if said.startswith(EDITS):
        right = output_difference(target, did.output) is None
        return Name("an argument edited in place") if right else None
    for words, mistake in SAID.items():
        if words in said:
            return Name(mistake)
    return _rearranged(target, did.output)


def _rearranged(target, output) -> Name | None:
    """Return in what form the right numbers came, if they did."""
    if not (type(output) is Tensor and isinstance(target, Tensor)):
        return None
    if output.layout != torch.strided or output.device != target.device:
        return None
    if output.dtype != target.dtype:
        if target.dtype != torch.bool and _equal(output, target):
            return Name("another dtype", "Your numbers are right, but not their type.")
        return None
    if output.numel() != target.numel() or _equal(output, target):
        return None
    if output.dim() == target.dim() <= 4:
        for order in itertools.permutations(range(output.dim())):
            if _equal(output.permute(order), target):
                claim = "Your numbers are right, but their axes stand in another order."
                return Name("axes in another order", claim)
    if output.shape != target.shape:
        if _equal(output.reshape(target.shape), target):
            claim = "Your numbers are right, and their order, but not their shape."
            return Name("right numbers in another shape", claim)
        return None
    if target.dtype == torch.bool and torch.equal(~output, target):
        claim = "True stands where False should."
        return Name("True and False exchanged", claim)
    return _multiple(target, output)


def _multiple(target: Tensor, output: Tensor) -> Name | None:
    """Return that every number is the same multiple of the expected one, if it is."""
    if not target.is_floating_point() or target.numel() < 2:
        return None
    factor = ((output * target).sum() / (target * target).sum()).item()
    if not math.isfinite(factor) or abs(factor) < 1e-3:
        return None
    if not _equal(output / factor, target):
        return None
    claim = f"Every number is {factor:.4g} times the expected one."
    return Name(FACTOR, claim)


def _single(trials: list[Trial]) -> Name | None:
    """Return that only single precision is right, if only the last digits differ."""
    tolerance = 1e-6
    for trial in trials:
        target, output = trial.should.output, trial.did.output
        if trial.said is None:
            continue
        if not (isinstance(target, Tensor) and type(output) is Tensor):
            return None
        if not target.dtype == output.dtype == torch.float64:
            return None
        if not _equal(output, target, tolerance):
            return None
        tolerance = 1e-4  # after the first: large scores show it more
    claim = (
        "In double precision only the first digits are right. Is something done in "
        "single precision (.float(), a new tensor without dtype=...), or a small "
        "number added?"
    )
    return Name("right in single precision only", claim)


def _equal(output: Tensor, target: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether two tensors are equal, as far as the smaller precision can tell."""
    if output.shape != target.shape:
        return False
    rough = output.dtype in (torch.float16, torch.bfloat16)
    tolerance = 1e-2 if rough else tolerance
    a, b = output.detach().double(), target.detach().double()
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


# --- slips ------------------------------------------------------------------------


def _slip(function: Callable, reference: Callable, known: Known) -> Name | None:
    """Return the slip without which the answer is right, or a known mistake."""
    for slip, (why, edit) in SLIPS.items():
        mode = Edited(edit)
        did = functools.cache(functools.partial(_edited, mode, function, known))
        did(known.order[0])
        if not mode.used:
            continue
        said = [difference(known.trials[at].should, did(at)) for at in known.order]
        if not any(said):
            return Name(slip, f"{why} Nothing else is wrong.")
        was = [known.trials[at].said for at in known.order]
        if any(now and not before for now, before in zip(said, was)):
            continue  # what the edit spoils was right without it
        exact = known.exactly(did)
        if exact:
            mistake, other = exact
            spoilt = known.exactly(functools.partial(_edited, mode, reference, known))
            if spoilt and spoilt[0] == mistake:
                continue  # the edit itself makes this mistake, even of the right answer
            also = f"That put right, it equals a known mistake, {mistake!r}. {other}"
            return Name(slip, f"{why} {also}")
    return None


def _edited(mode: Edited, function: Callable, known: Known, at: int) -> Run:
    """Return what the function does on one input if its calls are edited."""
    with silence():
        trial, edited = known.trials[at], mode.around(function)
        return run(edited, trial.inputs, known.gradients, trial.seed)
