"""What is solved stays: the cell of an answer goes to a file, and comes back."""

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import platformdirs
import pytest
import torch
from nbclient import NotebookClient
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from utils import exercises
from utils.exercises import EXERCISES, answer, check, forget, kept, progress
from utils.exercises.engine import grade
from utils.tests.helpers import Notebook

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


@pytest.fixture
def notebook():
    return Notebook()


@pytest.fixture
def put(progress_folder):
    """Put something into the folder as the answer to 1.1; return its path."""

    def written(content: str | bytes):
        progress_folder.mkdir(parents=True, exist_ok=True)
        path = progress_folder / "1.1.py"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


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
    assert text.startswith(f"{HEADER}1.1, {EXERCISES['1.1'].title}\n# solved 20")
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
    from utils import exercises
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
    (
        "def use(s): return s.softmax(0)\ndef mine(s): return use(s)",
        "def use(s): return s.softmax(-1)",
    ),
    (
        "AXIS = 0\ndef use(s): return s.softmax(AXIS)\ndef mine(s): return use(s)",
        "AXIS = -1",
    ),
    ("def mine(s): return s.softmax(0)", "mine = lambda s: s.softmax(-1)"),
]


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
    (
        "def cell(): check('1.1', helper)\ncell()",
        "its cell gives no function to check",
    ),
    (
        "known = 1 / ('helper' in globals())\ncheck('1.1', helper)",
        "when its cell is run alone, it raises ZeroDivisionError: division",
    ),
    (
        "while 'helper' not in globals(): pass\ncheck('1.1', helper)",
        "its cell had not finished after 0.5 seconds",
    ),
    (
        "if 'helper' not in globals(): raise KeyboardInterrupt\ncheck('1.1', helper)",
        "its cell was interrupted",
    ),
    (
        "from utils.exercises import EXERCISES\n"
        "check('1.1', EXERCISES['1.1'].reference)",
        "it is the course's own function",
    ),
    (
        "own = answer('1.1')\ncheck('1.1', lambda s: own(s))",
        'it calls answer("1.1") itself',
    ),
    (
        f"def mine(s): return s.softmax(-1)\ncheck('1.1', mine)\n{'#' * 70_000}",
        "its cell is longer than 64 KiB",
    ),
]


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
    "an exit": (HEAD + "x = exit()\nANSWER = x", "raises SystemExit"),
    "endless": (HEAD + "while True: pass\nANSWER = 1", "not finished after 0.2 sec"),
    "interrupted": (HEAD + "raise KeyboardInterrupt\nANSWER = 1", "was interrupted"),
    "too deep": (HEAD + "ANSWER = " + "(" * 9999, "raises"),
    "not UTF-8": (HEAD.encode() + b"# Gr\xf6\xdfe\n", "damaged: it is not UTF-8 text"),
    "too large": (HEAD + "#" * 70_000, "is larger than 64 KiB"),
    "foreign": ("ANSWER = print('run!') or len", "was not written by this course"),
    "of another exercise": (HEAD.replace("1.1", "1.10"), "not written by this course"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", "was not written by this course"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_costs_a_sentence(case, put, notebook, monkeypatch, capsys):
    monkeypatch.setattr(kept, "LIMIT", 0.2)
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


def test_an_editor_may_change_the_bytes(put, capsys):
    lines = [HEAD.strip(), "ANSWER = lambda s: s.softmax(-1)  # größer", ""]
    put("\r\n".join(lines).encode("utf-8-sig"))
    assert_own("1.1", capsys)


def test_running_a_kept_cell_leaves_nothing_behind(put, capsys):
    put(
        f"{HEAD}import os, torch\nnoise = print('noise')\n"
        "x = torch.set_default_dtype(torch.float64), os.chdir('/'), torch.rand(1)\n"
        "import numpy; x = numpy.seterr(all='raise')\nANSWER = torch.nn.Softmax(-1)\n"
    )
    torch.manual_seed(3)
    before = os.getcwd(), torch.get_default_dtype(), np.geterr()
    drawn = torch.get_rng_state()
    assert_own("1.1", capsys)
    assert before == (os.getcwd(), torch.get_default_dtype(), np.geterr())
    assert torch.equal(drawn, torch.get_rng_state())


# --- what the folder may be -------------------------------------------------------


def denied(*args, **kwargs):
    raise PermissionError(13, "Permission denied", "/home/somebody")


@pytest.mark.parametrize("where", ["mkdir", "mkstemp", "replace"])
def test_a_folder_that_cannot_be_written(
    where, notebook, progress_folder, monkeypatch, capsys
):
    owner = {"mkdir": Path, "mkstemp": kept.tempfile, "replace": kept.os}[where]
    monkeypatch.setattr(owner, where, denied)
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert "It is not kept: 1.1.py in your folder: Permission denied." in said
    assert not list(progress_folder.glob("*")), "half a file stays behind"


def test_a_file_where_the_folder_should_be(progress_folder, notebook, capsys):
    progress_folder.write_text("a file")
    notebook.run(SOFTMAX)
    assert "It is not kept: 1.1.py in your folder: Not a dir" in capsys.readouterr().out
    assert is_reference("1.1", capsys)[0]
    forget()
    progress()
    assert "What is kept cannot be read" in capsys.readouterr().out


def test_a_folder_in_the_place_of_a_file(progress_folder, capsys):
    (progress_folder / "1.1.py").mkdir(parents=True)
    reference, said = is_reference("1.1", capsys)
    assert reference and "1.1.py in your folder is not a file" in said


@pytest.mark.parametrize("platform", [Unix, MacOS])
def test_the_folder_of_each_platform(platform, monkeypatch, tmp_path):
    monkeypatch.setattr(platformdirs, "PlatformDirs", platform)
    for name in ("COURSE_PROGRESS_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    home = {Unix: ".local/share", MacOS: "Library/Application Support"}[platform]
    assert exercises.folder() == tmp_path / home / "attention-head-by-head"
    monkeypatch.setenv("COURSE_PROGRESS_DIR", "~/my course")
    assert exercises.folder() == tmp_path / "my course"


def test_no_home(monkeypatch, notebook, capsys):
    monkeypatch.setenv("COURSE_PROGRESS_DIR", "~nobody-of-this-name/course")
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert "It is not kept: you have no home folder; set COURSE_PROGRESS_DIR." in said
    assert is_reference("1.1", capsys)[0]


# --- progress and forget ----------------------------------------------------------


def test_progress_shows_the_whole_course(notebook, monkeypatch, capsys):
    progress()
    said = capsys.readouterr().out.splitlines()
    titles = {name: e.title for name, e in EXERCISES.items()}
    first = exercises.LESSONS[0].EXERCISES
    assert len(said) == len(exercises.LESSONS) + 1 and said[0].count("–") == len(first)
    assert said[-1] == f"0 of {len(EXERCISES)} solved. Next: 1.1 {titles['1.1']}."
    monkeypatch.setattr(exercises, "draw", lambda *_: None)
    notebook.run(SOFTMAX).run("check('1.2', lambda q, k, v: v)")
    notebook.run("check('1.3', lambda q, k, v, m: ...)")
    capsys.readouterr()
    progress()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Lesson 1   1.1 solved    1.2 not yet   1.3 –         1.")
    assert said[-1] == f"1 of {len(EXERCISES)} solved. Next: 1.2 {titles['1.2']}."
    exercises._verdicts.clear()  # another day, another kernel
    progress()
    assert "1.1 solved    1.2 –" in capsys.readouterr().out


def test_progress_when_all_is_solved(monkeypatch, capsys):
    monkeypatch.setattr(kept, "read", lambda name: "check(")
    progress()
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"{len(EXERCISES)} of {len(EXERCISES)} solved."
    assert max(map(len, said)) <= 88


def test_forget_removes_one_or_all_and_only_ours(notebook, progress_folder, capsys):
    notebook.run(SOFTMAX).run("check('1.3', F.scaled_dot_product_attention)")
    other = progress_folder / "notes.py"
    other.write_text(HEAD)
    forget("1.3")
    assert capsys.readouterr().out.endswith("Forgotten: 1.3.\n")
    assert {path.name for path in progress_folder.iterdir()} == {"1.1.py", "notes.py"}
    forget()
    assert capsys.readouterr().out == "Forgotten: 1.1.\n"
    assert list(progress_folder.iterdir()) == [other]
    assert is_reference("1.1", capsys)[0]
    progress()
    assert "0 of" in capsys.readouterr().out
    forget()
    assert capsys.readouterr().out == "Nothing was deleted.\n"


def test_misuse_is_explained():
    for function in (answer, forget):
        with pytest.raises(ValueError, match="no exercise '../../x'"):
            function("../../x")
        with pytest.raises(TypeError, match='is text: "7.1", not 7.1'):
            function(7.1)
    with pytest.raises(ValueError, match="no exercise '9.9'"):
        check("9.9", len)
    with pytest.raises(TypeError, match='is text: "7.1", not 7.1'):
        check(7.1, len)
    with pytest.raises(TypeError, match=r'write check\("1.1", softmax\)'):
        check("1.1", torch.zeros(2))


# --- several at once --------------------------------------------------------------

WRITER = """
from utils.exercises.kept import write
for _ in range(100):
    write("1.1", "softmax", "ANSWER = abs  # " + "x" * 9999 * {})
"""


def test_several_kernels_write_and_read_at_once(progress_folder):
    commands = [[sys.executable, "-c", WRITER.format(n)] for n in (1, 2)]
    running = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    sizes = set()
    while any(process.poll() is None for process in running):
        if text := kept.read("1.1"):
            ast.parse(text)
            sizes.add(len(text))
            assert text.startswith(HEADER) and text.endswith("x\n"), "half a file"
    assert [process.returncode for process in running] == [0, 0] and len(sizes) == 2
    assert [path.name for path in progress_folder.iterdir()] == ["1.1.py"]


def test_what_a_kernel_solves_another_process_uses(capsys):
    start = "import torch\nfrom utils.exercises import check, progress"
    helper = "def rows(x):\n    return x.sum(-1, keepdim=True)"
    cell = SOFTMAX.replace("weights.sum(dim=-1, keepdim=True)", "rows(weights)")
    said = kernel([start, helper, cell, f"%time\n{helper}\n{cell}", "progress()"])
    assert "It is not kept: it uses `rows` from another cell;" in said[2]
    assert said[3].endswith("Kept for later lessons.\n")
    assert said[4].startswith("Lesson 1   1.1 solved    1.2 –")
    assert_own("1.1", capsys)
    assert "def rows(x):" in kept.read("1.1")


def kernel(cells):
    """Return what the cells print in a kernel of their own."""
    book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    resources = {"metadata": {"path": str(ROOT)}}
    NotebookClient(book, timeout=120, resources=resources).execute()
    return ["".join(o.get("text", "") for o in cell.outputs) for cell in book.cells]


ALONE = """
import os, pathlib
folder = pathlib.Path(os.environ["COURSE_PROGRESS_DIR"])
print(folder.exists())
folder.mkdir()
"""


def test_every_notebook_is_tested_with_an_empty_folder(tmp_path, put):
    cell = nbformat.v4.new_code_cell(ALONE, execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="False\n")]
    for name in "ab":  # what the first one leaves, the second must not see
        book = nbformat.v4.new_notebook(cells=[cell])
        nbformat.write(book, tmp_path / f"{name}.ipynb")
    shutil.copy(ROOT / "notebooks" / "conftest.py", tmp_path)
    path = put(HEAD)  # what the developer solved
    options = ["--nbval", "--nbval-current-env", "-kCell", "-q", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".ci")}
    done = subprocess.run(
        [*command, "a.ipynb", "b.ipynb"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert path.exists()
