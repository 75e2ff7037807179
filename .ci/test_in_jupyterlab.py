"""Each notebook in JupyterLab, in a browser, as a learner opens and runs it.

usage: .venv/bin/python -m pytest -m "slow or nightly" .ci/test_in_jupyterlab.py

Every run of .ci/run opens all notebooks, runs the cores with a head viewer, which only
a browser can try, and follows a learner through two lessons. What a cell computes has
been executed and compared by then, in the same kernel: so only the nightly run runs
them all here, too. A page may ask nothing of the network.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import house
import pytest

from utils.tests.test_viewer_browser import browser  # noqa: F401  a fixture

BADGE = "https://colab.research.google.com/assets/colab-badge.svg"  # is refused quietly
SETTINGS = {  # no pop-ups, nothing saved, and every cell on the page, seen or not
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}
FOLDERS = "COURSE_PROGRESS_DIR IPYTHONDIR JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR "
FOLDERS += "JUPYTER_RUNTIME_DIR"
VIEW, NOTE = "<div data-attn-view=", "Run the cell, or trust the notebook"
START, OPEN, RUN = 120, 120, 900  # seconds, also on a busy machine
POLL = 200  # milliseconds between two looks at a page


def each(daily):
    """Every notebook: of each run of .ci/run, or only of the nightly one."""
    for book in map(house.Notebook, house.notebooks()):
        mark = pytest.mark.slow if daily(book) else pytest.mark.nightly
        yield pytest.param(book.path, id=book.name, marks=mark)


def stored(code, html):
    """How often a piece of HTML stands in the outputs."""
    return json.dumps([cell["outputs"] for cell in code]).count(html)


def has_viewer(book):
    return book.kind == "core" and stored(book.code, VIEW)


# --- JupyterLab ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of JupyterLab, on a server whose files are all in one folder."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "overrides.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if k != "TQDM_DISABLE"}
    env |= {name: str(folder / name.lower()) for name in FOLDERS.split()}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CI": "true"}
    env["JUPYTER_TOKEN"] = secrets.token_hex()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={house.ROOT}"]
    command += ["--LabApp.expose_app_in_browser=True"]  # as window.jupyterapp
    command += [f"--LabApp.app_settings_dir={folder}"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        for _ in range(START):
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(1)
        else:
            pytest.fail(f"JupyterLab does not answer:\n{(folder / 'log').read_text()}")
        yield f"http://127.0.0.1:{port}/lab?token={env['JUPYTER_TOKEN']}"
    finally:
        server.terminate()  # which ends its kernels, too
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


# --- a notebook in the browser ------------------------------------------------------

NOTEBOOK = (
    "const panel = jupyterapp.shell.currentWidget, cells = panel.content.widgets;"
)
LOADED = "() => window.jupyterapp?.restored.then(() => true)"
SHOW = "path => { jupyterapp.commands.execute('docmanager:open', { path }); }"
READY = """path => {
    const { shell } = jupyterapp, all = [...shell.widgets("main")];
    const panel = all.find(each => each.context?.path === path);
    if (!panel?.sessionContext.isReady) return false;
    shell.activateById(panel.id);  // the launcher may have come in front of it
    return shell.currentWidget === panel;
}"""
CLOSE = "() => jupyterapp.shell.currentWidget.dispose()"
SHOWN = f"""() => {{ {NOTEBOOK}
    const texts = cells.filter(({{ model }}) => model.type === "markdown");
    return texts.every(({{ node }}) =>
        node.querySelector(".jp-MarkdownOutput")?.childElementCount);
}}"""
CODE = f"""() => {{ {NOTEBOOK}
    const code = cells.filter(({{ model }}) => model.type === "code");
    return code.map(({{ model, node }}) => {{
        const {{ source, metadata, outputs }} = model.toJSON();
        const editor = node.querySelector(".jp-InputArea-editor");
        return {{
            source, outputs, trusted: model.trusted, tags: metadata.tags ?? [],
            ran: model.trusted && model.executionCount !== null,
            foldable: !!metadata.jupyter?.source_hidden,
            folded: !editor?.checkVisibility(),
        }};
    }});
}}"""
BROKEN = """(images, badge) => images.filter(
    image => image.complete && !image.naturalWidth && image.src !== badge
).map(image => image.src)"""
EXECUTE = "id => jupyterapp.commands.execute(id).then(() => true, () => true)"
CHOOSE = f"""number => {{ {NOTEBOOK}
    const code = cells.filter(({{ model }}) => model.type === "code");
    panel.content.activeCellIndex = cells.indexOf(code[number]);
}}"""


class Notebook:
    """What a learner does with a notebook on a page, and what the page then shows."""

    def __init__(self, page):
        self.page = page

    def code(self):
        return self.page.evaluate(CODE)

    def execute(self, command):
        """Let JupyterLab execute a command that runs cells, and wait for their end."""
        self.page.wait_for_function(EXECUTE, arg=command, timeout=RUN * 1000)

    def choose(self, call):
        """Make the code cell with this call the active one; return its number there."""
        (number, *_) = (i for i, c in enumerate(self.code()) if call in c["source"])
        self.page.evaluate(CHOOSE, number)
        return number

    def run_above(self, call):
        self.choose(call)
        self.execute("notebook:run-all-above")

    def run(self, call, typed=None):
        """Run the cell with this call, typed anew if wished; return what it prints."""
        number = self.choose(call)
        if typed:
            cell = self.page.locator(".jp-CodeCell").nth(number)
            cell.locator(".cm-content").click()
            self.page.keyboard.press("ControlOrMeta+a")
            self.page.keyboard.insert_text(typed)
        self.execute("notebook:run-cell")
        outputs = self.code()[number]["outputs"]
        return "".join(house.text(output.get("text")) for output in outputs)


@pytest.fixture(scope="module")
def page(lab, browser):  # noqa: F811
    """JupyterLab in the browser; to load it once a notebook takes seconds each."""
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(OPEN * 1000)
    page.noticed = []
    page.on("pageerror", lambda error: page.noticed.append(f"error {error}"))

    def refuse(route):
        """Note and stop what would leave the machine."""
        if route.request.url != BADGE:
            page.noticed.append(f"request {route.request.url}")
        route.abort()

    page.route(lambda url: not url.startswith("http://127.0.0.1:"), refuse)
    page.goto(lab)
    page.wait_for_function(LOADED, polling=POLL)
    yield page
    context.close()


@contextmanager
def opened(page, path):
    """A notebook in JupyterLab, not yet run; then the page is left as it was."""
    notebook, name = Notebook(page), path.relative_to(house.ROOT).as_posix()
    page.evaluate(SHOW, name)
    try:
        page.wait_for_function(READY, arg=name, polling=POLL)
        page.wait_for_function(SHOWN, polling=POLL)
        yield notebook
    finally:
        notebook.execute("notebook:shutdown-kernel")
        page.evaluate(CLOSE)
        page.noticed.clear()


# --- what a notebook must do --------------------------------------------------------


@pytest.mark.parametrize("path", [*each(lambda book: True)])
def test_an_untrusted_notebook_is_whole_and_runs_nothing(page, path):
    with opened(page, path) as notebook:
        code = notebook.code()
        assert not any(cell["trusted"] for cell in code)
        folded = [cell["folded"] for cell in code if cell["foldable"]]
        assert all(folded) and folded
        assert page.locator(".jp-Notebook script").count() == 0
        noted = page.locator("p", has_text=NOTE).count()
        assert noted == stored(code, NOTE) >= stored(code, VIEW)
        assert page.locator("mjx-merror").count() == 0  # a formula is not understood
        images = page.locator(".jp-Notebook img")
        assert images.evaluate_all(BROKEN, BADGE) == []
        assert page.noticed == []


@pytest.mark.parametrize("path", [*each(has_viewer)])
def test_run_all_runs_every_cell_and_the_viewers_answer(page, path):
    with opened(page, path) as notebook:
        notebook.execute("notebook:run-all-cells")
        code = notebook.code()
        for cell in code:  # Run All stops at the first error
            outputs = [] if "raises-exception" in cell["tags"] else cell["outputs"]
            errors = [o for o in outputs if o["output_type"] == "error"]
            assert cell["ran"] and not errors, cell["source"]
        views = page.locator("[data-attn-view][data-ready]")
        assert views.count() == stored(code, VIEW)
        for view in views.all():
            said = view.locator(".said")
            before = said.inner_text()
            view.locator(".readers > bdi").last.click()
            assert said.inner_text() != before
        assert page.noticed == []


# --- what a learner does ------------------------------------------------------------

WRONG = """\
def my_masked_attention(query, key, value, mask):
    empty = ~mask.any(dim=-1, keepdim=True)
    scores = query @ key.transpose(-2, -1)
    weights = scores.masked_fill(~mask & ~empty, -math.inf).softmax(dim=-1)
    return weights.masked_fill(empty, 0.0) @ value


check("1.2", my_masked_attention)"""
RIGHT = WRONG.replace("(-2, -1)", "(-2, -1) / key.shape[-1] ** 0.5")


@pytest.mark.slow
def test_lesson_09_remembers_what_was_solved_in_lesson_01(page):
    def expect(said, *words):
        assert [word for word in words if word not in said] == [], said

    lessons = house.ROOT / "notebooks"
    with opened(page, lessons / "01_scaled_dot_product_attention.ipynb") as first:
        exercise = 'check("1.2"'
        first.run_above(exercise)
        expect(first.run(exercise, WRONG), "not yet", "'no scale'")
        expect(first.run(exercise, RIGHT), "1.2", "solved", "Kept for later lessons.")
    with opened(page, lessons / "09_pretrained_encoder.ipynb") as later:
        load = 'answer("1.2")'
        later.run_above(load)
        expect(later.run(load), 'answer("1.2"): your own, checked again.')
        expect(later.run("progress()"), "1.2 solved", "1 of ")
