"""What is solved stays: the cell of an answer goes to a file, and comes back."""

import contextlib
import inspect
import re
from pathlib import Path

import pytest
import torch

from utils import oldex as exercises
from utils.oldex import EXERCISES, answer, forget, kept, progress, running
from utils.oldex.engine import grade
from utils.tests.oldex.test_running import alarm, sets_everything, settings

ROOT = Path(__file__).parents[3]
HEADER = "# Attention, Head by Head: exercise "
HEAD = f"{HEADER}1.1, softmax\n"  # how each file of the course begins
OLDER = f"{HEAD}def softmax(s):\n    return s.softmax(-1)\n\n\nANSWER = softmax\n"

SOFTMAX = """
# Größe: Σ = 1
def softmax(scores):
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


check("1.1", softmax)
"""
WRONG = """
def softmax(scores):
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


check("1.1", softmax)
"""


def is_reference(name, capsys):
    """Whether answer(name) is the reference; and what it said."""
    capsys.readouterr()
    function = answer(name)
    return function is EXERCISES[name].reference, capsys.readouterr().out


def assert_own(name, capsys):
    """Assert that the learner's own answer comes back, and solves the exercise."""
    reference, said = is_reference(name, capsys)
    assert not reference and said == f'answer("{name}"): your own, checked again.\n'
    assert grade(EXERCISES[name], answer(name)).solved


# --- what is kept -----------------------------------------------------------------


def test_the_cell_is_kept_as_it_stands(notebook, progress_folder, capsys):
    notebook.run(SOFTMAX)
    assert str(progress_folder) not in capsys.readouterr().out
    (path,) = progress_folder.iterdir()
    assert path.name == "1.1.py" and path.parent == exercises.folder()
    text = path.read_text(encoding="utf-8")
    title, code, edited, signature, solved, _ = text.split("\n", 5)
    assert title == f"{HEADER}1.1, {EXERCISES['1.1'].title}"
    assert code.startswith('# This file is code, and answer("1.1") runs it: `check` si')
    assert edited.endswith('is not run until you call trust("1.1").')
    assert re.fullmatch("# signature [0-9a-f]{64}", signature)
    assert solved.startswith("# solved 20")
    assert text.endswith(f"\n\n\n{SOFTMAX.strip()}\n")
    assert_own("1.1", capsys)
    mine = answer("1.1")
    assert mine is not notebook.names["softmax"]
    assert inspect.getsource(mine).startswith("def softmax")


def test_a_file_of_the_older_kind_comes_back(put, capsys):
    put(OLDER)
    assert_own("1.1", capsys)


IN_MANY_WAYS = [
    """
    import functools as tools
    EPSILON, SIZES = 0.0, {"axis": -1}
    class Shift:
        factor = SIZES["axis"]
        def __call__(self, x): return x - largest(x)
    def largest(x): return x.amax(SIZES["axis"], keepdim=True)
    def even(n): return n == 0 or odd(n - 1)
    def odd(n): return n != 0 and even(n - 1)
    def mine(scores: torch.Tensor, shift: type | None = Shift()):
        assert even(2) and tools
        weights = shift(scores).exp() + EPSILON
        return weights / weights.sum(SIZES["axis"], keepdim=True)
    check("1.1", mine)
    """,
    """
    def along(dim): return lambda function: lambda s: function(s).softmax(dim)
    @along(-1)
    def mine(scores): return scores
    check("1.1", mine)
    """,
    """
    torch.manual_seed(0)
    layer = torch.nn.Softmax(-1) if torch.rand(1) < 2 else None
    def mine(scores): return print("noise") or layer(scores)
    print(mine(elsewhere).shape)  # what stands in another cell
    check("1.1", mine)
    assert torch.rand(1) == torch.rand(2, generator=torch.manual_seed(0))[1]
    """,
    """
    softmax = answer("1.1")
    def mine(q, k, v, t=1.0): return softmax(q @ k.mT / t / q.shape[-1] ** 0.5) @ v
    check("1.2", mine)
    """,
    """
    from utils import oldex as exercises
    for function in [F.scaled_dot_product_attention]: exercises.check("1.3", function)
    """,
    "mine = lambda s: s.softmax(-1); check('1.1', mine)",
    "check(\n '1.1',\n lambda s:\n s.softmax(-1)\n)",
    "import functools\ncheck('1.1', functools.partial(torch.softmax, dim=-1))",
    "check('1.1', torch.nn.Softmax(-1).forward)",
]


@pytest.mark.parametrize("cell", IN_MANY_WAYS)
def test_written_in_many_ways(cell, notebook, capsys):
    notebook.names["elsewhere"] = torch.zeros(2, 3)
    notebook.run(cell)
    said = capsys.readouterr().out
    assert "solved" in said and "Kept for later lessons." in said, said
    assert_own(re.search(r"^(1\.\d) .*solved", said, re.MULTILINE)[1], capsys)


def count_gradings(monkeypatch):
    graded = []

    def counted(exercise, function):
        graded.append(function)
        return grade(exercise, function)

    monkeypatch.setattr(exercises, "grade", counted)
    return graded


def test_a_cell_that_is_all_its_function_needs_is_graded_once(notebook, monkeypatch):
    graded = count_gradings(monkeypatch)
    notebook.run("""
        AXIS = -1
        def largest(x): return x.amax(AXIS, keepdim=True)
        def softmax(x, depth=1, *, axis=-1):
            if depth: return softmax(x, depth - 1)
            e = (lambda: (x - largest(x)).exp())()
            return e / e.sum(axis, keepdim=True)
        check("1.1", softmax)
    """)
    assert graded == [notebook.names["softmax"]] and kept.read("1.1")


MENDED = [  # a cell that is wrong, and what another one did that puts it right
    ("AXIS = 0\ndef mine(s): return s.softmax(AXIS)", "AXIS = -1"),
    ("AXIS = 0\ndef mine(s): return (lambda: s.softmax(AXIS))()", "AXIS = -1"),
    ("def mine(s, axis=0): return s.softmax(axis)", "mine.__defaults__ = (-1,)"),
    ("def mine(s, *, a=0): return s.softmax(a)", "mine.__kwdefaults__ = {'a': -1}"),
    ("def use(s): return s.softmax(0)\ndef mine(s): return use(s)",
     "def use(s): return s.softmax(-1)"),
    ("AXIS = 0\ndef use(s): return s.softmax(AXIS)\ndef mine(s): return use(s)",
     "AXIS = -1"),
    ("def mine(s): return s.softmax(0)", "mine = lambda s: s.softmax(-1)"),
]  # fmt: skip


@pytest.mark.parametrize("cell, mend", MENDED)
def test_what_is_kept_solves_whatever_another_cell_did(
    cell, mend, notebook, progress_folder, monkeypatch, capsys
):
    graded = count_gradings(monkeypatch)
    notebook.names["mend"] = lambda: exec(mend, notebook.names)
    notebook.run(f"{cell}\nmend()\ncheck('1.1', mine)")
    said = capsys.readouterr().out
    assert "solved" in said and "not kept: when its cell is run alone, it is" in said
    assert len(graded) == 2 and not list(progress_folder.glob("*"))


ELSEWHERE = "it uses `helper` from another cell; put it into the same cell."
CANNOT = [  # cells, of which the first one defines helper; why they cannot be kept
    ("def mine(s): return helper(s)\ncheck('1.1', mine)", ELSEWHERE),
    ("mine = helper\ncheck('1.1', mine)", ELSEWHERE),
    ("check('1.1', helper)", ELSEWHERE),
    ("""exec("check('1.1', helper)")""", "the text of its cell cannot be found"),
    ("def cell(): check('1.1', helper)\ncell()", "its cell gives no function to check"),
    ("known = 1 / ('helper' in globals())\ncheck('1.1', helper)",
     "when its cell is run alone, it raises ZeroDivisionError: division"),
    ("while 'helper' not in globals(): pass\ncheck('1.1', helper)",
     "its cell had not finished after 0.5 seconds"),
    ("if 'helper' not in globals(): raise KeyboardInterrupt\ncheck('1.1', helper)",
     "its cell was interrupted"),
    ("from utils.oldex import EXERCISES\n"
     "check('1.1', EXERCISES['1.1'].reference)", "it is the course's own function"),
    ("own = answer('1.1')\ncheck('1.1', lambda s: own(s))",
     'it calls answer("1.1") itself'),
    (f"def mine(s): return s.softmax(-1)\ncheck('1.1', mine)\n{'#' * 70_000}",
     "its cell is longer than 64 KiB"),
]  # fmt: skip


@pytest.mark.parametrize("cell, why", CANNOT, ids=range(len(CANNOT)))
def test_what_cannot_be_kept_is_solved_all_the_same(
    cell, why, notebook, progress_folder, monkeypatch, capsys
):
    monkeypatch.setattr(kept, "LIMIT", 0.5)
    notebook.run("def helper(scores): return scores.softmax(-1)").run(cell)
    said = capsys.readouterr().out
    assert "solved. Equal to the reference on " in said
    assert f"It is not kept: {why}" in said and "Kept for later" not in said
    assert not list(progress_folder.glob("*"))
    reference, said = is_reference("1.1", capsys)
    assert reference and said == 'answer("1.1"): the reference; 1.1 was not kept.\n'
    progress()
    assert "1.1 solved" in capsys.readouterr().out
    notebook.run(SOFTMAX)
    assert_own("1.1", capsys)


def test_an_older_answer_stays(notebook, progress_folder, capsys):
    notebook.run(SOFTMAX)
    before = (progress_folder / "1.1.py").read_bytes()
    notebook.run(WRONG)
    said = capsys.readouterr().out
    assert "not yet" in said and "The answer that you solved earlier stays." in said
    assert_own("1.1", capsys)
    notebook.run("mine = torch.nn.Softmax(-1)").run("check('1.1', mine)")  # not kept
    said = capsys.readouterr().out
    assert "same cell. The answer that you solved earlier stays." in said
    assert (progress_folder / "1.1.py").read_bytes() == before
    reference, said = is_reference("1.1", capsys)
    assert not reference
    assert said == 'answer("1.1"): the one you solved earlier, checked again.\n'
    notebook.run("check('1.1', lambda s: s.softmax(-1))")  # a new right one replaces it
    assert "earlier" not in capsys.readouterr().out
    assert "lambda s: s.softmax" in (progress_folder / "1.1.py").read_text()
    assert_own("1.1", capsys)


# --- what may lie in the folder ---------------------------------------------------

BAD = {
    "a stale answer": (
        HEAD + "def softmax(s):\n    return s.exp() / s.exp().sum()\nANSWER = softmax",
        "run alone, it is not right (Your answer equals a known mistake",
    ),
    "a name is missing": (HEAD + "ANSWER = lambda s: soft(s)", "it uses `soft` from"),
    "the head alone": (HEAD, "1.1 is not solved yet"),
    "half a head": (HEAD[:20], "1.1 is not solved yet"),
    "empty": ("", "1.1 is not solved yet"),
    "half an answer": (HEAD + "def softmax(", "1.1 is not solved yet"),
    "half a line": (HEAD + "check(", "raises SyntaxError"),
    "no function": (HEAD + "ANSWER = 1", "gives no function"),
    "a stub": (HEAD + "def f(s): ...\ncheck('1.1', f)", "it is not right (Replace the"),
    "a null byte": (HEAD + "x = '\0'\ncheck(", "null bytes"),
    "too deep": (HEAD + "ANSWER = " + "(" * 9999, "raises"),
    "not UTF-8": (HEAD.encode() + b"# Gr\xf6\xdfe\n", "damaged: it is not UTF-8 text"),
    "too large": (HEAD + "#" * 70_000, "is larger than 64 KiB"),
    "foreign": ("ANSWER = print('run!') or len", "was not written by this course"),
    "of another exercise": (HEAD.replace("1.1", "1.10"), "not written by this course"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", "was not written by this course"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_costs_a_sentence(case, put, notebook, capsys):
    (content, why), path = BAD[case], put(BAD[case][0])
    data, foreign = path.read_bytes(), "not written" in BAD[case][1]
    reference, said = is_reference("1.1", capsys)
    assert reference and said.startswith('answer("1.1"): the reference; ')
    assert why in said and said.count("\n") == 1 and "run!" not in said
    progress()
    said = capsys.readouterr().out
    assert ("not written by this course" in said) is foreign
    counted = re.search(r"ANSWER|check\(", str(content)) and not foreign
    assert ("1.1 solved" in said) is bool(counted)
    notebook.run(WRONG).run(SOFTMAX)
    said = capsys.readouterr().out
    if foreign:  # somebody else's file: neither run, nor overwritten, nor deleted
        assert "solved. " in said and "It is not kept: 1.1.py in your folder" in said
        forget()
        assert "1.1 is not forgotten: 1.1.py" in capsys.readouterr().out
        assert path.read_bytes() == data
    else:
        assert "Kept for later lessons." in said
        assert_own("1.1", capsys)
        put(content), capsys.readouterr()
        forget("1.1")
        assert capsys.readouterr().out == "Forgotten: 1.1.\n" and not path.exists()


def test_files_without_an_answer_are_not_counted_as_solved(progress_folder, capsys):
    progress_folder.mkdir()
    for name in EXERCISES:
        text = kept.HEADER.format(name=name, title="title", time="2026-01-01")
        (progress_folder / f"{name}.py").write_text(text)
    progress()
    assert f"\n0 of {len(EXERCISES)} solved. Next: 1.1" in capsys.readouterr().out


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_a_copy_may_change_the_line_ends(end, put, capsys):
    path = put(f"{HEAD}\r\nANSWER = lambda s: s.softmax(-1)  # größer\r\n")
    assert b"\r" not in path.read_bytes()
    put(path.read_text("utf-8").replace("\n", end).encode("utf-8-sig"), trusted=False)
    assert_own("1.1", capsys)


# --- what its cell does while it is run -------------------------------------------

SETS = f"""{HEAD}import os, random, warnings
import matplotlib.pyplot as plt
import numpy as np
import torch
{inspect.getsource(sets_everything)}
noise = print("noise"), sets_everything(torch.ones(2)), torch.set_grad_enabled(False)
ANSWER = torch.nn.Softmax(-1)
"""


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.Tensor])
def test_running_a_kept_cell_leaves_nothing_behind(around, put, capsys):
    put(SETS)
    torch.manual_seed(3)
    with contextlib.nullcontext() if around is torch.Tensor else around():
        before = settings()
        assert_own("1.1", capsys)
        after = settings()
    assert [k for k in before if before[k] != after[k]] == []


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_a_kept_cell_finds_the_settings_that_check_gives(around, put, capsys):
    x = "torch.ones(1, requires_grad=True)"
    put(f"{HEAD}import torch\nassert ({x} * 2).requires_grad\nassert {x}.dtype == "
        "torch.float32\nANSWER = torch.nn.Softmax(-1)\n")  # fmt: skip
    torch.set_default_dtype(torch.float64)
    try:
        with around():
            assert_own("1.1", capsys)
    finally:
        torch.set_default_dtype(torch.float32)


ENDS = {  # what a kept cell does, or its function; what is said then
    "while True: pass": "had not finished after 0.2 seconds",
    "exit()": "SystemExit",
    "raise KeyboardInterrupt": "was (interrupted|stopped by KeyboardInterrupt)",
    "raise GeneratorExit": "GeneratorExit",
    "raise type('Own', (BaseException,), {})": "Own",
}


@alarm
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("called", ["x = ANSWER(1)", ""])
def test_whatever_a_kept_cell_does_answer_goes_on(
    ends, called, put, monkeypatch, capsys
):
    for module in kept, running:
        monkeypatch.setattr(module, "LIMIT", 0.2)
    put(f"{HEAD}def f(s):\n    {ends}\nANSWER = f\n{called}\n")
    try:
        reference, said = is_reference("1.1", capsys)
    except BaseException as error:  # a KeyboardInterrupt would end the tests
        pytest.fail(f"{error!r} leaves answer()")
    assert reference and said.startswith('answer("1.1"): the reference; yours cannot')
    assert re.search(ENDS[ends], said) and said.count("\n") == 1
