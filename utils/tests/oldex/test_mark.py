"""Submissions are marked each on its own, whatever one of them does."""

import csv
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from utils.oldex import __main__, mark
from utils.oldex.__main__ import main
from utils.tests.oldex.test_kept import SOFTMAX
from utils.tests.oldex.test_solutions import SOLUTIONS, STUBS

ROOT = Path(__file__).parents[3]
SECONDS = 12 if mark.START == "fork" else 60  # what is spawned loads PyTorch first
COMMAND = f"""
from utils.oldex import __main__, kept, mark, running
mark.MEMORY, mark.SECONDS, kept.LIMIT, running.LIMIT = 2**29, {SECONDS}, 2.0, 2.0
__main__.main()
"""


def solved(name: str, body: str = "") -> str:
    """Return an answer cell with the printed solution, or with another one."""
    return f"{body or SOLUTIONS[name]}\n\ncheck({name!r}, {STUBS[name][0]})\n"


def soft(body: str) -> str:
    """Return an answer cell for 1.1 whose function has this body."""
    body = "\n    ".join([*body.split("\n"), "return scores.softmax(-1)"])
    return f"def softmax(scores):\n    {body}\n\ncheck('1.1', softmax)\n"


FAKE = """print('{"exercises": {"1.1": {"status": "solved"}}, "problem": null}')"""
NEVER = "import signal, time\nold = signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
PATCH = "import utils.oldex as x\nx.grade = x.check\n"
KEEPS = """
def attention(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, mask)

tried = []

def softmax(scores):
    if not tried:  # checks another answer while this one is graded
        tried.append(exercises.check("1.3", attention))
    return scores.softmax(-1)

from utils import oldex as exercises
check("1.1", softmax)
check("1.3", attention)
"""
CONNECT = "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)"
SUBMISSIONS = {
    "never": [solved("1.3"), f"{NEVER}while True: time.sleep(1)\n{SOFTMAX}"],
    "late": [solved("1.2"), soft(f"{NEVER}while True: time.sleep(1)")],
    "right": ["raise SystemError", solved("1.1"), solved("1.2"), solved("1.3")],
    "wrong": [solved("1.2", SOLUTIONS["1.2"].replace("dim=-1", "dim=-2"))],
    "untouched": [STUBS["1.1"][1], solved("1.2")],
    "crash": [f"x = 1 / 0\n{SOFTMAX}", solved("1.2"), "def f(:\ncheck('1.3', f)"],
    "loop": [soft("while True: pass"), solved("1.2")],
    "memory": [soft("bytes(2**32)"), solved("1.2")],
    "replaced": [f"{SOFTMAX}\ncheck = print\ncheck('1.1', 0)", solved("1.2")],
    "patched": [solved("1.2"), f"{PATCH}{SOFTMAX}", solved("1.3")],
    "exit": [FAKE, soft(f"{FAKE}\nimport os\nos._exit(0)")],
    "segfault": [solved("1.2"), soft("import os\nos.abort()"), solved("1.3")],
    "network": [soft(CONNECT), solved("1.2", "import os\nx = os.system('true')")],
    "keeps": [KEEPS],
    "prints": [soft("print('x' * 50_000_000)")],
    "silent": [f"# the course shows a mistake\n{SOFTMAX}"],
}


def notebook(*cells: str) -> str:
    """Return a notebook whose stored outputs say that all is solved."""
    said = [{"output_type": "stream", "name": "stdout", "text": "1.1: solved."}]
    parts = [{"cell_type": "code", "outputs": said, "source": cell} for cell in cells]
    for part in parts:
        part["metadata"] = {"shows_broken": 0} if "shows" in part["source"] else {}
    return json.dumps({"nbformat": 4, "cells": parts})


def call(*arguments, **variables) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", COMMAND, "mark", *map(str, arguments)]
    shown = {k: v for k, v in os.environ.items() if k != "TQDM_DISABLE"}  # the bar
    shown.update(variables)
    return subprocess.run(command, cwd=ROOT, env=shown, capture_output=True, text=True)


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """Mark all submissions with one call; return the rows of the CSV file, and it."""
    folder = tmp_path_factory.mktemp("Abgaben und mehr")
    data = folder / "data"
    names = [*SUBMISSIONS, "text", "missing"]
    paths = [folder / f"{name}.ipynb" for name in names]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for path, cells in zip(paths, SUBMISSIONS.values()):
            path.write_text(notebook(*cells).replace("PORT", port), encoding="utf-8")
        (folder / "text.ipynb").write_text("[1, 2")
        own = {"XDG_DATA_HOME": str(data), "COURSE_PROGRESS_DIR": str(data / "kept")}
        done = call(*paths, "--jobs", 2, "--csv", folder / "all.csv", **own)
        missing = str(folder / "missing.ipynb")
        assert done.stderr.endswith(f"There is no file {missing!r}.\n")
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert done.returncode == 1, done.stderr
    assert not data.exists(), "the marker's own folder has an answer, or a key"
    with (folder / "all.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["submission"] for row in rows] == [*map(str, paths)]
    return dict(zip(names, rows)), rows, done


AXIS = "softmax over the wrong axis"
SAID = f"""
right      1.3      solved
wrong      1.2      wrong: {AXIS}
untouched  1.1      untouched
crash      1.1      wrong: when its cell is run alone, it raises ZeroDivisionError
crash      1.2      solved
crash      1.3      wrong: invalid syntax
loop       1.1      wrong: Your function had not finished after 2 sec
memory     1.1      wrong: Your function raised MemoryError
replaced   1.1      wrong: its cell replaces `check`
patched    1.2      unmarked
patched    1.1      unmarked
patched    problem  it replaces `check`, or what `check` is made of, while marking 1.1
exit       1.1      unmarked
exit       problem  its process ended before its answers were marked, while marking 1.1
segfault   1.1      unmarked
segfault   1.2      solved
segfault   1.3      unmarked
segfault   problem  its process ended: Aborted, while marking 1.1
network    1.1      wrong: Your function raised PermissionError: a submission may
network    1.2      wrong: when its cell is run alone, it raises PermissionError
keeps      1.1      solved
prints     1.1      solved
keeps      1.3      solved
silent     problem  no cell calls check("N.M", ...)
text       problem  it is no notebook of format 4
missing    problem  it cannot be read: No such file
late       1.1      unmarked
late       1.2      solved
late       problem  it was stopped after {SECONDS} seconds, while marking 1.1
never      1.3      solved
never      problem  it was stopped after {SECONDS} seconds, while marking 1.1"""


@pytest.mark.skipif(sys.platform != "linux", reason="its limits are those of Linux")
@pytest.mark.parametrize("said", SAID.split("\n")[1:])
def test_what_is_said_of_a_submission(said, marked):
    name, column, begins = said.split(maxsplit=2)
    row = marked[0][name]
    verdicts = [row[each] for each in ("1.1", "1.2", "1.3")]
    assert row[column].startswith(begins), row
    assert bool(row["problem"]) == ("unmarked" in verdicts or not any(verdicts)), row
    assert int(row["solved"]) == verdicts.count("solved")


COUNTS = f"""
1.1: 3 solved, 5 wrong (others 5), 1 untouched, 5 unmarked
1.2: 8 solved, 2 wrong ({AXIS} 1, others 1), 0 untouched, 1 unmarked
1.3: 3 solved, 1 wrong (others 1), 0 untouched, 2 unmarked"""


@pytest.mark.skipif(sys.platform != "linux", reason="its limits are those of Linux")
def test_the_table_the_bar_and_several_at_once(marked):
    _, rows, done = marked
    *lines, last = done.stdout.splitlines()
    table, counts = lines[: len(rows)], lines[len(rows) :]
    for row, line in zip(rows, table, strict=True):
        assert line.startswith(row["submission"]) and line.endswith(row["problem"])
    assert f"1.2 wrong: {AXIS}" in done.stdout
    assert "1.1 unmarked    1.2 solved      1.3 unmarked    its process" in done.stdout
    assert counts == COUNTS.split("\n")[1:]
    assert "18/18" in done.stderr and last.startswith("18 marked in ")
    took = sum(float(row["seconds"]) for row in rows) - SECONDS / 2
    assert float(last.split()[-2]) < took, "one after the other"


def test_one_line_of_json(tmp_path):
    cells = solved("1.2"), f"{FAKE}\nimport os; x = os.write(1, b'[]')\n{SOFTMAX}"
    path = tmp_path / "one.ipynb"
    path.write_text(notebook(*cells))
    done = call("--one", path)
    row = json.loads(done.stdout)
    verdict = {"status": "solved", "mistake": None, "message": ""}
    both = {"1.1": verdict, "1.2": verdict}
    assert row.pop("seconds") > 0 and done.stdout.count("\n") == 1 and not done.stderr
    assert row == {"submission": str(path), "exercises": both, "problem": None}


NAMES = b'["1.1", "1.3"]'
RIGHT = b'{"status": "solved", "mistake": null, "message": ""}'
BEST = RIGHT.replace(b"solved", b"best")
SAYS = [[b"[" * 9999], [b"{"], [b'{"1.1": 1}'], [b'["9.9"]'], [b"\x80\x04N."]]
SAYS += [[NAMES, b"{}"], [NAMES, BEST], [NAMES, RIGHT, RIGHT, RIGHT], [RIGHT]]


def received(*said):
    receiver, sender = multiprocessing.Pipe(duplex=False)
    for each in said:
        sender.send_bytes(each)
    sender.close()
    return mark._received(receiver)


@pytest.mark.parametrize("said", SAYS)
def test_what_a_process_says_is_not_trusted(said):
    names, verdicts, problem = received(*said)
    assert problem == "its process said something else than verdicts"
    assert not names and not verdicts


def test_what_a_process_said_before_it_ended_counts():
    right = json.loads(RIGHT)
    assert received() == ([], [], None)
    assert received(b'"why"') == ([], [], "why")
    assert received(NAMES, RIGHT) == (["1.1", "1.3"], [right], None)
    assert received(NAMES, b'"why"') == (["1.1", "1.3"], [], "why")
    assert received(NAMES, RIGHT, b"x" * (mark.MESSAGE + 1))[1:] == ([right], None)
    wrong = right | {"status": "wrong"}
    tried = mark._best(["1.3", "1.1", "1.1", "1.3"], [right, wrong])
    assert list(tried.items()) == [("1.1", mark.UNMARKED), ("1.3", right)]


HELPER = "it uses `helper` from another cell"
CELLS = [  # of one submission, and what is said of 1.1
    ([f"%%time\n%matplotlib inline\n{SOFTMAX}"], "solved", ""),
    ([soft("return 1"), SOFTMAX, soft("return 1")], "solved", ""),
    ([STUBS["1.1"][1], "# check('1.1', 1)", soft("return 1")], "wrong", "Your"),
    (["helper = torch.softmax", "check('1.1', helper)"], "wrong", HELPER),
    (["check('1.1', answer('1.1'))"], "wrong", "it reads the course's own answer"),
    ([soft("from utils.oldex import lesson_01")], "wrong", "it reads the course's"),
    ([soft("raise ValueError('\\x1b[2J' + 'x' * 999)")], "wrong", "Your function"),
]


@pytest.mark.parametrize("cells, status, begins", CELLS)
def test_of_several_cells_the_best_answer_counts(cells, status, begins, tmp_path):
    path = tmp_path / "cells.ipynb"
    path.write_text(notebook(*cells))
    cells = mark._answer_cells(path)
    names, verdicts = [name for name, _ in cells], list(mark._verdicts(cells))
    said = mark._best(names, verdicts)["1.1"]
    assert said["status"] == status and said["message"].startswith(begins), said
    assert len(said["message"]) <= mark.LONGEST and said["message"].isprintable()


def row_of(submission: str, **verdicts) -> dict:
    """Return a row; `verdicts` are (status, mistake) of exercises, named _1_1."""
    said = {name[1:].replace("_", "."): v for name, v in verdicts.items()}
    said = {n: dict(zip(mark.PARTS, (*v, "its message"))) for n, v in said.items()}
    return {
        "submission": submission,
        "exercises": said,
        "seconds": 1.5,
        "problem": None,
    }


SOLVED, UNKNOWN = ("solved", None), ("wrong", None)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Return a folder with submissions, and a list of which `mark` was asked for."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "class/b.ipynb",
        "class/a.ipynb",
        "class/a/deeper/a.ipynb",
        "class/.ipynb_checkpoints/a.ipynb",
        "class/a/._a.ipynb",
        "class/a.txt",
        "other/[1].ipynb",
        "empty/a.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    asked = []

    def fake(submissions, jobs):
        asked.extend(Path(each).as_posix() for each in submissions)
        return [row_of(each, _1_1=SOLVED, _1_4=UNKNOWN) for each in submissions]

    monkeypatch.setattr(__main__, "mark", fake)
    return tmp_path, asked


FOUND = [
    ("class", "a.ipynb a/deeper/a.ipynb b.ipynb"),
    ("./class/b.ipynb class/*.ipynb class/b.ipynb", "b.ipynb a.ipynb"),
    ("class/**/*.ipynb", "a.ipynb a/deeper/a.ipynb b.ipynb"),
    ("class/a*", "a.ipynb a/deeper/a.ipynb"),
    ("other/[1].ipynb", "../other/[1].ipynb"),
]


@pytest.mark.parametrize("arguments, notebooks", FOUND)
def test_a_folder_and_a_pattern_mean_notebooks(arguments, notebooks, course, capsys):
    main(["mark", *arguments.split()])
    found = [os.path.normpath(f"class/{each}") for each in notebooks.split()]
    assert course[1] == [Path(each).as_posix() for each in found]


def test_a_missing_file_costs_its_own_row(course, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["mark", "class/none.ipynb", "class/a.ipynb"])
    assert ended.value.code == 1 and course[1] == ["class/none.ipynb", "class/a.ipynb"]
    assert capsys.readouterr().err == "There is no file 'class/none.ipynb'.\n"


BEFORE = """\
submission,1.3,points,1.1,solved,seconds,problem\r
other.ipynb,solved,7,wrong: √d_k,1,0.5,by hand\r
./class/a.ipynb,solved,9,wrong,1,0.5,it was stopped\r
"""
AFTER = f"""\
submission,1.3,points,1.1,1.4,solved,seconds,problem\r
other.ipynb,solved,7,wrong: √d_k,,1,0.5,by hand\r
{Path("class/a.ipynb")},,9,solved,wrong: its message,1,1.5,\r
{Path("class/b.ipynb")},,,solved,wrong: its message,1,1.5,\r
"""


def test_rows_of_other_notebooks_stay_in_the_file(course, capsys):
    file = course[0] / "marks.csv"
    file.write_bytes(BEFORE.encode())  # without a mark for Excel, as an editor saves it
    for _ in range(2):
        main(["mark", *"class/a.ipynb class/b.ipynb --csv marks.csv".split()])
        assert file.read_bytes() == AFTER.encode("utf-8-sig")
    main(["mark", "class/b.ipynb", "--csv", "new.csv"])
    columns, *rest = (course[0] / "new.csv").read_text("utf-8-sig").splitlines()
    assert columns == "submission,1.1,1.4,solved,seconds,problem" and len(rest) == 1


NO_TABLE = {
    "a notebook": notebook(SOFTMAX).encode(),
    "other names": b"student,1.1,solved,seconds,problem\n",
    "no end": b"submission,1.1,solved\n",
    "semicolons": b"submission;1.1;solved;seconds;problem\n",
    "a cell too many": b"submission,solved,seconds,problem\na.ipynb,1,0.5,,9\n",
    "a column twice": b"submission,1.1,1.1,solved,seconds,problem\n",
    "not UTF-8": b"submission,solved,seconds,problem\nZo\xeb.ipynb,1,0.5,\n",
}


@pytest.mark.parametrize("kind", NO_TABLE)
def test_a_file_that_is_no_table_is_not_overwritten(kind, course, capsys):
    file = course[0] / "marks.csv"
    file.write_bytes(NO_TABLE[kind])
    with pytest.raises(SystemExit) as ended:
        main(["mark", "class", "--csv", "marks.csv"])
    assert ended.value.code == 2 and not course[1]
    assert "--csv is 'marks.csv', which is no table" in capsys.readouterr().err
    assert file.read_bytes() == NO_TABLE[kind]


def test_mistakes_of_the_class_are_counted(capsys):
    scale, axis = ("wrong", "no scale"), ("wrong", "wrong axis")
    tries = scale, UNKNOWN, axis, SOLVED, ("untouched", None), axis, UNKNOWN, UNKNOWN
    rows = [row_of("a", _1_2=each) for each in tries]
    rows += [row_of("a", _1_1=SOLVED), row_of("a", _1_1=("unmarked", None))]
    __main__._print_counts(rows)
    assert capsys.readouterr().out.splitlines() == [
        "1.1: 1 solved, 0 wrong, 0 untouched, 1 unmarked",
        "1.2: 1 solved, 6 wrong (wrong axis 2, no scale 1, others 3), 1 untouched",
    ]


MISUSE = [
    ("a.ipynb --one b.ipynb", "give notebooks to mark, or else one after --one"),
    ("--one b.ipynb --csv a.csv", "--one prints its row, so leave out --csv"),
    ("none/*.ipynb", "'none/*.ipynb': there is no notebook (.ipynb)"),
    (".", "'.': there is no notebook (.ipynb)"),
    ("a.ipynb --jobs 0", "--jobs is 0; it must be at least 1"),
    ("--csv a.ipynb b.ipynb", "--csv is 'a.ipynb'; its name must end in .csv"),
    ("a.ipynb --csv none/b.csv", "--csv is 'none/b.csv': No such file"),
]


@pytest.mark.parametrize("arguments, says", MISUSE)
def test_misuse_is_explained(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["mark", *arguments.split()])
    assert says in capsys.readouterr().err
    with pytest.raises(ValueError, match="jobs is 0; it must be at least 1"):
        mark.mark(["a.ipynb"], jobs=0)
