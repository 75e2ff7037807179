"""What is solved stays: the source of an answer goes to a file, and comes back."""

import ast
import inspect
import json
import linecache
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from utils import exercises
from utils.exercises import EXERCISES, answer, check, forget, kept, progress
from utils.exercises.engine import grade

ROOT = Path(__file__).parents[3]
HEADER = "# Attention, Head by Head: exercise "


class Notebook:
    """Runs cells as IPython does: one dict of names, `In`, and lines to look up."""

    def __init__(self):
        self.names = {"__name__": "__main__", "In": [""], "check": check}
        self.run("import math\nimport torch\nimport torch.nn.functional as F\n")

    def run(self, cell):
        cell = textwrap.dedent(cell)
        self.names["In"].append(cell)
        file = f"<cell {len(self.names['In'])} of {id(self)}>"
        linecache.cache[file] = len(cell), None, cell.splitlines(True), file
        exec(compile(cell, file, "exec"), self.names)
        return self


@pytest.fixture
def notebook():
    return Notebook()


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


SOFTMAX = """
def softmax(scores):
    '''Größe: Σ = 1.'''
    weights = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


check("1.1", softmax)
"""
WRONG = """
def softmax(scores):
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


check("1.1", softmax)
"""


def solutions():
    from utils.tests.exercises.test_solutions import SOLUTIONS, STUBS

    return [(n, SOLUTIONS[n], STUBS[n][0]) for n in EXERCISES if n in SOLUTIONS]


@pytest.mark.parametrize("name, source, function", solutions())
def test_every_printed_solution_comes_back(name, source, function, notebook, capsys):
    source = "from utils.attention import *\n" + source
    notebook.run(source).run(f'check("{name}", {function})')
    assert "Kept for later lessons." in capsys.readouterr().out
    assert_own(name, capsys)
    mine = answer(name)
    assert mine is not notebook.names[function] and mine.__name__ == function
    assert inspect.getsource(mine).startswith("def ")


def test_nothing_solved_is_the_reference(capsys):
    reference, said = is_reference("1.3", capsys)
    assert reference
    assert said == 'answer("1.3"): the reference; 1.3 is not solved yet.\n'


def test_the_file_can_be_read_and_run_alone(notebook, progress_folder, capsys):
    notebook.run(SOFTMAX)
    (path,) = progress_folder.iterdir()
    assert path.name == "1.1.py" and path.parent == exercises.folder()
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"{HEADER}1.1, {EXERCISES['1.1'].title}\n# solved 20")
    assert "Größe: Σ = 1." in text and text.endswith("\nANSWER = softmax\n")
    assert str(progress_folder) not in capsys.readouterr().out


IN_MANY_WAYS = {
    "helpers, constants, imports and a class": """
        from collections.abc import Callable
        import functools as tools
        EPSILON, LARGE = 0.0, float("-inf")
        SIZES = {"axis": -1}

        class Shift:
            factor = SIZES["axis"]

            def __call__(self, x):
                return x - largest(x)

        def largest(x): return x.amax(SIZES["axis"], keepdim=True)

        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)

        def mine(scores: torch.Tensor, shift: Callable | None = Shift()):
            assert even(2) and tools and LARGE < 0
            weights = shift(scores).exp() + EPSILON
            return weights / weights.sum(SIZES["axis"], keepdim=True)

        check("1.1", mine)
    """,
    "lambda": "mine = lambda s: s.softmax(-1)\ncheck('1.1', mine)",
    "lambda in the call": "check('1.1', lambda s: s.softmax(-1))",
    "lambda over lines": "check(\n '1.1',\n lambda s:\n s.softmax(-1)\n)",
    "partial": """
        from functools import partial
        check("1.1", partial(torch.softmax, dim=-1))
    """,
    "named partial": """
        from functools import partial
        mine = partial(torch.softmax, dim=-1)
        def other(scores): return mine(scores)
        check("1.1", other)
    """,
    "decorated": """
        from functools import wraps
        def plain(function):
            def wrapper(*args): return function(*args).softmax(-1)
            return wrapper
        def wrapped(function):
            @wraps(function)
            def wrapper(*args): return function(*args)
            return wrapper
        @plain
        @wrapped
        def mine(scores): return scores
        check("1.1", mine)
    """,
    "closure": """
        def along(dim):
            def softmax(scores): return scores.softmax(dim)
            return softmax
        check("1.1", along(-1))
    """,
    "instance": """
        class Softmax:
            def __init__(self, dim): self.dim = dim
            def __call__(self, scores): return scores.softmax(self.dim)
        check("1.1", Softmax(-1))
    """,
    "method": """
        class Softmax:
            dim = -1
            def apply(self, scores): return scores.softmax(self.dim)
        soft = Softmax()
        check("1.1", soft.apply)
    """,
    "module": "check('1.1', torch.nn.Softmax(-1))",
    "the library's": "sdpa = F.scaled_dot_product_attention\ncheck('1.3', sdpa)",
    "another name": """
        from utils.attention import scaled_dot_product_attention as theirs
        def mine(q, k, v, t=1.0): return theirs(q / t, k, v)[0]
        attend = mine
        def last(*args): return attend(*args)
        for function in [last]:
            check("1.2", function)
    """,
    "a name of the library's": """
        from utils.attention import scaled_dot_product_attention as theirs
        def scaled_dot_product_attention(q, k, v, t=1): return theirs(q / t, k, v)[0]
        check("1.2", scaled_dot_product_attention)
    """,
    "a local function": """
        def cell():
            def mine(scores): return scores.softmax(-1)
            check("1.1", mine)
        cell()
    """,
    "a name that a local one hides": """
        scores = torch.randn(4, requires_grad=True)
        def mine(scores): return scores.softmax(-1)
        check("1.1", mine)
    """,
    "defined again later": """
        def helper(x): return x.softmax(-1)
        def mine(scores): return helper(scores)
        check("1.1", mine)
        def helper(x): return x
    """,
    "under a magic": """
        class Shell:
            def run_cell_magic(self, name, line, cell): exec(cell, globals())
        Shell().run_cell_magic("time", "", "def mine(s): return s.softmax(-1)")
        check("1.1", mine)
    """,
    "noisy and random": """
        torch.manual_seed(0)
        layer = torch.nn.Softmax(-1) if torch.rand(1) < 2 else None
        def mine(scores):
            print("noise")
            return layer(scores)
        check("1.1", mine)
        assert torch.rand(1) == torch.rand(2, generator=torch.manual_seed(0))[1]
    """,
    "an earlier answer": """
        from utils.exercises import answer
        attend = answer("1.2")
        def mine(q, k, v, t=1.0): return attend(q, k, v, t)
        check("1.2", mine)
    """,
}


@pytest.mark.parametrize("way", IN_MANY_WAYS)
def test_written_in_many_ways(way, notebook, capsys):
    notebook.run(IN_MANY_WAYS[way])
    said = capsys.readouterr().out
    assert "solved" in said and "Kept for later lessons." in said, said
    name = next(n for n in EXERCISES if f"{n} {title(n)}: solved" in said)
    assert_own(name, capsys)
    assert "torch._C" not in kept.read(name)  # names that the next version may change


def test_an_answer_that_uses_an_earlier_answer(notebook, capsys):
    notebook.run("""
        def scaled(q, k): return q @ k.mT / q.shape[-1] ** 0.5
        soft = lambda scores: scores.softmax(-1)
        def mine(q, k, v, t=1.0): return soft(scaled(q, k) / t) @ v
        check("1.2", mine)
    """)
    another = Notebook().run("""
        from utils.exercises import answer
        read = mine = answer("1.2")
        def soft(x): return x / 0  # this notebook's, not the answer's
        def later(*args): return read(*args) + mine(*args) * 0
        check("1.2", later)
    """)
    another.run("check('1.2', later)")  # although the file is another one by now
    assert capsys.readouterr().out.count("Kept for later lessons.") == 3
    assert_own("1.2", capsys)
    text = kept.read("1.2")
    assert "read = mine" in text and "def scaled" in text and "x / 0" not in text


CANNOT = {
    "the source of `mine` cannot be found": """
        exec("def mine(scores): return scores.softmax(-1)")
        check("1.1", mine)
    """,
    "uses `shift` of this notebook, a Tensor": """
        shift = torch.zeros(1)
        def mine(scores): return (scores + shift).softmax(-1)
        check("1.1", mine)
    """,
    "two different things called `helper`": """
        def helper(x): return x.softmax(-1)
        first = helper
        def helper(x): return first(x)
        def mine(scores): return helper(scores)
        check("1.1", mine)
    """,
    "its source cannot be found": """
        import functools
        check(*["1.1", functools.partial(torch.softmax, dim=-1)])
    """,
    "run from its source it is not right": """
        class Softmax:
            dim = 0
            def __call__(self, scores): return scores.softmax(self.dim)
        soft = Softmax()
        soft.dim = -1
        check("1.1", soft)
    """,
    "it is the course's own function": """
        from utils.exercises import EXERCISES
        check("1.1", EXERCISES["1.1"].reference)
    """,
    "reading its source raised RuntimeError": """
        class Odd:
            def __call__(self, scores): return scores.softmax(-1)
            def __getattr__(self, name):
                if name == "__qualname__": raise RuntimeError("odd")
                raise AttributeError(name)
        odd = Odd()
        check("1.1", odd)
    """,
    "its source raises NotKept: it calls answer": """
        from utils.exercises import answer
        check("1.1", answer("1.1").__call__)
    """,
    "larger than": "def mine(scores):\n    '''" + "x" * 70_000 + "'''\n"
    "    return scores.softmax(-1)\ncheck('1.1', mine)",
}
CANNOT["longer than 64 KiB"] = CANNOT.pop("larger than")


@pytest.mark.parametrize("why", CANNOT)
def test_what_cannot_be_kept_is_solved_all_the_same(
    why, notebook, progress_folder, capsys
):
    notebook.run(CANNOT[why])
    said = capsys.readouterr().out
    assert "solved. Equal to the reference on " in said
    assert why in said and "Kept for later" not in said
    assert not list(progress_folder.glob("*"))
    progress()
    assert "1.1 solved" in capsys.readouterr().out


def test_a_wrong_second_attempt_deletes_nothing(notebook, progress_folder, capsys):
    notebook.run(SOFTMAX)
    before = (progress_folder / "1.1.py").read_bytes()
    notebook.run(WRONG)
    said = capsys.readouterr().out
    assert "not yet" in said and "The answer that you solved earlier stays." in said
    assert (progress_folder / "1.1.py").read_bytes() == before
    assert_own("1.1", capsys)
    notebook.run("check('1.1', lambda s: s.softmax(-1))")  # a new right one replaces it
    assert "lambda s: s.softmax" in (progress_folder / "1.1.py").read_text()


# --- what may lie in the folder -------------------------------------------------------

HEAD = f"{HEADER}1.1, softmax\n"
BAD = {
    "a stale answer": (
        HEAD + "def softmax(s):\n    return s.exp() / s.exp().sum()\nANSWER = softmax",
        "run from its source it is not right (Your answer equals a known mistake",
    ),
    "a name is missing": (
        HEAD + "ANSWER = lambda s: soft(s)",
        "NameError: name 'soft'",
    ),
    "no ANSWER": (HEAD, "raises KeyError"),
    "no function": (HEAD + "ANSWER = 1", "defines no function"),
    "a stub": (HEAD + "def ANSWER(s): ...", "it is not right (Replace the"),
    "half a line": (HEAD + "def softmax(", "raises SyntaxError"),
    "a null byte": (HEAD + "x = '\0'", "null bytes"),
    "an exit": (HEAD + "exit()", "raises SystemExit"),
    "too deep": (HEAD + "x = " + "(" * 9999, "raises"),
    "not UTF-8": (HEAD.encode() + b"# Gr\xf6\xdfe\n", "damaged: it is not UTF-8 text"),
    "too large": (HEAD + "#" * 70_000, "is larger than 64 KiB"),
    "foreign": ("ANSWER = print('run!') or len", "was not written by this course"),
    "of another exercise": (HEAD.replace("1.1", "1.10"), "not written by this course"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", "was not written by this course"),
    "empty": ("", "1.1 is not solved yet"),
}


def put(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "1.1.py"
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(data)
    return path, data


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_costs_a_sentence(case, progress_folder, notebook, capsys):
    content, why = BAD[case]
    path, data = put(progress_folder, content)
    reference, said = is_reference("1.1", capsys)
    assert reference and said.startswith('answer("1.1"): the reference; ')
    assert why in said and said.count("\n") == 1 and "run!" not in said
    progress()
    foreign = "not written" in why
    assert ("not written by this course" in capsys.readouterr().out) is foreign
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


def test_an_editor_may_change_the_bytes(progress_folder, capsys):
    lines = [HEAD.strip(), "ANSWER = lambda s: s.softmax(-1)  # größer", ""]
    put(progress_folder, "\r\n".join(lines).encode("utf-8-sig"))
    assert_own("1.1", capsys)


def test_what_the_file_prints_is_not_shown(progress_folder, capsys):
    put(progress_folder, HEAD + "print('noise')\nANSWER = lambda s: s.softmax(-1)")
    assert_own("1.1", capsys)


def test_a_pipe_or_a_folder_in_its_place(progress_folder, capsys):
    (progress_folder / "1.1.py").mkdir(parents=True)
    reference, said = is_reference("1.1", capsys)
    assert reference and "1.1.py in your folder is not a file" in said


# --- what the folder may be -----------------------------------------------------------


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


def test_the_folder_of_each_platform(monkeypatch):
    home = Path.home()
    monkeypatch.delenv("COURSE_PROGRESS_DIR")
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)

    def on(platform):
        monkeypatch.setattr(sys, "platform", platform)
        return kept.folder()

    assert on("linux") == home / ".local/share/attention-head-by-head"
    assert on("darwin") == home / "Library/Application Support/attention-head-by-head"
    assert on("win32") == home / "AppData/Local/attention-head-by-head"
    monkeypatch.setenv("LOCALAPPDATA", "/c/Local")
    assert on("win32") == Path("/c/Local/attention-head-by-head")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert on("linux") == Path("/data/attention-head-by-head")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert on("linux") == home / ".local/share/attention-head-by-head"
    monkeypatch.setenv("COURSE_PROGRESS_DIR", "~/my course")
    assert on("win32") == home / "my course"


def test_no_home(monkeypatch, notebook, capsys):
    def homeless(cls=None):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("COURSE_PROGRESS_DIR")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    notebook.run(SOFTMAX)
    said = capsys.readouterr().out
    assert "It is not kept: you have no home folder; set COURSE_PROGRESS_DIR." in said
    assert is_reference("1.1", capsys)[0]


# --- progress and forget --------------------------------------------------------------


def test_progress_shows_the_whole_course(notebook, monkeypatch, capsys):
    progress()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(exercises.LESSONS) + 1 and said[0].count("–") == 5
    assert said[-1] == f"0 of {len(EXERCISES)} solved. Next: 1.1 {title('1.1')}."
    monkeypatch.setattr(exercises, "draw", lambda *_: None)
    notebook.run(SOFTMAX).run("check('1.2', lambda q, k, v: v)")
    notebook.run("check('1.3', lambda q, k, v, m: ...)")
    capsys.readouterr()
    progress()
    said = capsys.readouterr().out.splitlines()
    assert (
        said[0]
        == "Lesson 1   1.1 solved    1.2 not yet   1.3 –         1.4 –         1.5 –"
    )
    assert said[-1] == f"1 of {len(EXERCISES)} solved. Next: 1.2 {title('1.2')}."
    exercises._verdicts.clear()  # another day, another kernel
    progress()
    assert "1.1 solved    1.2 –" in capsys.readouterr().out


def title(name):
    return EXERCISES[name].title


def test_progress_when_all_is_solved(monkeypatch, capsys):
    monkeypatch.setattr(kept, "is_kept", lambda name: True)
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


# --- several at once ------------------------------------------------------------------

WRITER = """
import runpy
write = runpy.run_path("utils/exercises/kept.py")["write"]
for _ in range(500):
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
    partial = "import functools as f\nmine = f.partial(torch.softmax, dim=-1)"
    wait = "check('1.1', mine)"
    said = kernel([start, helper, partial, wait, cell, "progress()"])
    assert said[3].endswith("Kept for later lessons.\n")
    assert said[4].endswith("Kept for later lessons.\n")
    assert said[5].startswith("Lesson 1   1.1 solved    1.2 –")
    assert_own("1.1", capsys)
    assert "def rows(x):" in kept.read("1.1")


ALONE = """
import os, pathlib
folder = pathlib.Path(os.environ["COURSE_PROGRESS_DIR"])
print(folder.exists())
folder.mkdir()
"""


def test_every_notebook_is_tested_with_an_empty_folder(tmp_path, progress_folder):
    cell = nbformat.v4.new_code_cell(ALONE, execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="False\n")]
    for name in "ab":  # what the first one leaves, the second must not see
        book = nbformat.v4.new_notebook(cells=[cell])
        nbformat.write(book, tmp_path / f"{name}.ipynb")
    shutil.copy(ROOT / "notebooks" / "conftest.py", tmp_path)
    path, _ = put(progress_folder, HEAD)  # what the developer solved
    options = ["--nbval", "--nbval-current-env", "-kCell", "-q", "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".ci")}
    done = subprocess.run(
        [*command, "a.ipynb", "b.ipynb"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert path.exists()


def kernel(cells):
    """Return what the cells print in a kernel of their own."""
    book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    resources = {"metadata": {"path": str(ROOT)}}
    NotebookClient(book, timeout=120, resources=resources).execute()
    texts = [json.loads(json.dumps(cell.outputs)) for cell in book.cells]
    return [
        "".join(o.get("text") or o["data"]["text/plain"] for o in outputs)
        for outputs in texts
    ]
