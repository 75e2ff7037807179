"""The viewer in a browser: used with mouse and keyboard, light and dark, watched.

Needs playwright's Python package and a Chromium: the one that CHROMIUM names, or the
first on the PATH. Without them the tests are skipped, or fail where the environment
says COURSE_BROWSER_TESTS=required.
"""

import os
import re
import shutil

import pytest
import torch

from utils.plotting import visible
from utils.tests.helpers import HOSTILE, WORDS, heads
from utils.viewer import view_heads

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
FLAGS += ["--disable-background-networking", "--force-color-profile=srgb"]
LIGHT, DARK = "rgb(0, 114, 178)", "rgb(96, 184, 240)"  # the colours of a weight of 1

# What JupyterLab does with the HTML of an output: scripts run once they are in place.
AS_OUTPUT = """html => {
    const output = document.createElement("div");
    output.innerHTML = html;
    for (const script of output.querySelectorAll("script")) {
        const copy = document.createElement("script");
        copy.textContent = script.textContent;
        script.replaceWith(copy);
    }
    document.body.append(output);
}"""
NOTEBOOK = """<!doctype html><title>a notebook</title>
<style>body { background: white; color: black } bdi { display: none }
canvas { height: 7px !important }</style><body><p id="outside">outside</p></body>"""

SHIFT = torch.eye(5).roll(-1, dims=0)[None]  # each query reads the next token


def unavailable(reason):
    if os.environ.get("COURSE_BROWSER_TESTS") == "required":
        pytest.fail(f"COURSE_BROWSER_TESTS=required, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("playwright is missing: pip install playwright")
    found = os.environ.get("CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), ""
    )
    if not shutil.which(found):
        unavailable(f"there is no browser: CHROMIUM is {found!r}, {NAMES} are missing")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def watched(browser):
    """Opens pages that must ask for nothing, run nothing strange, and raise nothing."""
    noticed, contexts = [], []

    def new_page(**options):
        context = browser.new_context(
            **{"viewport": {"width": 1000, "height": 900}} | options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5_000)
        page.on("request", lambda request: noticed.append(f"request {request.url}"))
        page.on("pageerror", lambda error: noticed.append(f"error {error}"))
        page.on("console", lambda message: noticed.append(f"console {message.text}"))
        page.on("dialog", lambda dialog: (noticed.append("dialog"), dialog.dismiss()))
        page.noticed = noticed
        return page

    yield new_page
    for context in contexts:
        context.close()
    assert noticed == []


@pytest.fixture
def notebook(watched):
    """Shows a view as the output of a notebook, and returns the page."""

    def show(view, **options):
        page = watched(**options)
        page.set_content(NOTEBOOK)
        page.evaluate(AS_OUTPUT, view._repr_html_())
        return page

    return show


def said(page) -> str:
    return "\n".join(page.locator(".said p").all_inner_texts())


def choose(page, name, option):
    page.get_by_label(name, exact=True).select_option(str(option))


def strip(page, kind, panel=0) -> dict[str, str]:
    """The words of a strip, and the colour behind each."""
    words = page.locator(f".{kind}").nth(panel).locator("> bdi")
    return dict(
        words.evaluate_all(
            "all => all.map(w => [w.textContent, getComputedStyle(w).backgroundColor])"
        )
    )


def inked(page, x, y) -> float:
    """How far from white to ink the colour of the first picture is at a point."""
    red = page.locator("canvas").first.evaluate(
        """(canvas, [x, y]) => {
            const scale = canvas.width / canvas.getBoundingClientRect().width;
            const copy = document.createElement("canvas");
            const pen = copy.getContext("2d", { willReadFrequently: true });
            pen.fillStyle = "white";
            pen.fillRect(0, 0, 1, 1);
            pen.drawImage(canvas, -x * scale, -y * scale);
            return pen.getImageData(0, 0, 1, 1).data[0];
        }""",
        [x, y],
    )
    return 1 - red / 255


def cells(page, size=5, step=30):
    """(row, column, x, y) of each cell of the first picture; the mouse is there."""
    box = page.locator("canvas").first.bounding_box()
    left, top = box["width"] - 4 - step * size, 2
    for row in range(size):
        for column in range(size):
            x, y = left + (column + 0.7) * step, top + (row + 0.7) * step
            page.mouse.move(box["x"] + x, box["y"] + y)
            yield row, column, x, y


def test_the_mouse_reads_every_cell_of_the_heat_map(notebook):
    """A query is a row, from the top; a key is a column, from the left."""
    page = notebook(view_heads(SHIFT, WORDS))
    for query, key, x, y in cells(page):
        weight = SHIFT[0, query, key].item()
        pair = f"{WORDS[query]} → {WORDS[key]}"
        assert said(page).startswith(f"{pair}: {weight:.3f} (uniform 0.200)")
        assert inked(page, x, y) == weight


def test_the_keyboard_reads_every_cell_and_nothing_else_hears_it(notebook):
    view = view_heads(SHIFT, WORDS)
    page = notebook(view)
    page.evaluate("() => { window.heard = []; onkeydown = e => heard.push(e.key); }")
    assert said(page).startswith("the → cat: 1.000")
    for _ in range(3):  # head, hide, the picture
        page.keyboard.press("Tab")
    assert (
        page.evaluate(
            "document.querySelector('[data-attn-view]').shadowRoot.activeElement.tagName"
        )
        == "CANVAS"
    )
    for key, words in (
        ("ArrowDown", "cat → cat: 0.000"),
        ("ArrowRight", "cat → sat: 1.000 (uniform 0.200)"),
        ("ArrowUp", "the → sat: 0.000"),
        ("ArrowUp", "the → sat: 0.000"),
        ("ArrowLeft", "the → cat: 1.000"),
    ):
        page.keyboard.press(key)
        assert said(page).startswith(words)
    page.keyboard.press("d")  # twice, it deletes a cell of a notebook
    page.keyboard.press("Control+s")
    heard = page.evaluate("heard")  # first the Tab that led into the view
    assert heard == ["Tab", "Control", "s"]
    root = page.locator("[data-attn-view]")
    assert root.get_attribute("data-lm-suppress-shortcuts") == "true"
    page.keyboard.press("Tab")  # to the words: the token as query and as key
    assert said(page).splitlines() == [
        "cat attends to sat 1.000, the 0.000, cat 0.000 (uniform 0.200)",
        "cat is attended to by the 1.000, cat 0.000, sat 0.000",
    ]
    page.keyboard.press("ArrowRight")
    assert said(page).startswith("sat attends to on 1.000")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    assert said(page).startswith("cat attends to sat 1.000")
    assert page.locator("[aria-live=polite].said").count() == 1


def test_the_sentence_is_coloured_by_what_a_token_reads_and_by_who_reads_it(notebook):
    page = notebook(view_heads(SHIFT, WORDS))
    page.locator(".readers > bdi").nth(2).hover()
    assert strip(page, "reads").pop("on") == LIGHT
    assert strip(page, "readers").pop("cat") == LIGHT
    plain = {"rgba(0, 0, 0, 0)"}
    for kind, word in (("reads", "on"), ("readers", "cat")):
        rest = strip(page, kind)
        del rest[word]
        assert set(rest.values()) == plain and len(rest) == 4
    titles = page.locator(".strip b").all_inner_texts()
    assert titles == ["what sat attends to", "who attends to sat"]
    page.locator(".reads > bdi").nth(0).hover()
    assert strip(page, "reads")["cat"] == LIGHT
    assert "is attended to by it 1.000" in said(page)


def test_layers_heads_and_labels(notebook):
    layers = [heads(2, 5, 5), torch.cat([heads(2, 5, 5, seed=1), SHIFT])]
    label = "next token 1.00 · null 0.20"
    page = notebook(view_heads(layers, WORDS, labels={(1, 2): label}))
    assert page.locator("h4").inner_text() == f"layer 1, head 2 · {label}"
    assert page.get_by_label("layer", exact=True).input_value() == "1"
    assert page.get_by_label("head", exact=True).input_value() == "2"
    choose(page, "layer", 0)
    assert page.get_by_label("head", exact=True).inner_text().split() == ["0", "1"]
    choose(page, "layer", 1)
    options = page.get_by_label("head", exact=True).locator("option").all_inner_texts()
    assert options == ["0", "1", f"2 · {label}"]
    choose(page, "head", 2)
    assert page.locator("h4").inner_text() == f"layer 1, head 2 · {label}"
    page.locator(".reads > bdi").nth(0).hover()
    assert said(page).startswith("the attends to cat 1.000")
    choose(page, "layer", 0)  # which has no head 2
    assert page.locator("h4").inner_text() == "layer 0, head 1"


def test_the_map_shows_all_heads_and_chooses_one(notebook):
    layers = [heads(3, 5, 5), heads(3, 5, 5, seed=1)]
    page = notebook(view_heads(layers, WORDS, labels={(0, 2): "a label"}))
    little = page.locator(".map canvas")
    little.click(position={"x": 22 + 2 * 44 + 20, "y": 20})
    assert page.locator("h4").inner_text() == "layer 0, head 2 · a label"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert page.locator("h4").inner_text() == "layer 1, head 1"
    assert page.get_by_label("layer", exact=True).input_value() == "1"
    assert page.get_by_label("head", exact=True).input_value() == "1"


def test_what_is_hidden_is_still_counted(notebook):
    tokens = ["[CLS]", "a", "b", "[SEP]"]
    weights = torch.tensor([[0.1, 0.2, 0.1, 0.6]]).expand(1, 4, 4)
    page = notebook(view_heads(weights, tokens))
    assert "not shown" not in page.locator(".panels").inner_text() + said(page)
    page.get_by_label("[SEP]").check()
    page.get_by_label("[CLS]").check()
    assert set(strip(page, "reads")) == {"a", "b", "not shown"}
    assert set(strip(page, "readers")) == {"a", "b"}
    page.locator(".reads > bdi").nth(0).hover()
    assert said(page).splitlines() == [
        "a attends to a 0.200, b 0.100 (uniform 0.250)",  # nothing is scaled up
        "a is attended to by a 0.200, b 0.200",
        "not shown: 0.700 of a query's weights on average; 0.700 of the weights of a",
    ]
    page.locator("canvas").first.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert said(page).startswith("a → not shown: 0.700 (uniform 0.500)")
    page.get_by_label("[SEP]").uncheck()
    assert "not shown: 0.100 of a query" in said(page)


def test_nothing_is_left_to_show(notebook):
    page = notebook(view_heads(torch.ones(2, 1, 1), ["a"]))
    page.get_by_label("first token").check()
    assert said(page) == "every query is hidden"
    page.locator("canvas").first.focus()
    page.keyboard.press("ArrowDown")
    page.get_by_label("first token").uncheck()
    assert said(page).startswith("a → a: 1.000 (uniform 1.000)")


def test_queries_and_keys_of_different_texts(notebook):
    weights = torch.tensor([[[0.7, 0.2, 0.1], [0.0, 0.1, 0.9]]])
    page = notebook(view_heads(weights, ["le", "chat"], key_tokens=["the", "cat", "s"]))
    page.locator(".readers > bdi").nth(1).hover()
    assert said(page).splitlines() == [
        "chat attends to s 0.900, cat 0.100, the 0.000 (uniform 0.333)"
    ]
    page.locator(".reads > bdi").nth(0).hover()
    assert "the is attended to by le 0.700, chat 0.000" in said(page)
    assert set(strip(page, "reads")) == {"the", "cat", "s"}


def test_what_may_not_be_read_is_no_zero(notebook):
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    weights = causal / causal.sum(dim=-1, keepdim=True)
    page = notebook(view_heads(weights[None], WORDS, mask=causal))
    for query, key, x, y in cells(page):
        even = f"{1 / (query + 1):.3f}"
        says = f"{even} (uniform {even})" if key <= query else "hidden by the mask"
        assert said(page).startswith(f"{WORDS[query]} → {WORDS[key]}: {says}")
        if key > query:  # grey, and neither the paper's nor a weight's colour
            assert 0.02 < inked(page, x, y) < 0.1
        else:
            assert inked(page, x, y) > 0.15
    page.locator(".readers > bdi").nth(1).hover()
    assert page.locator(".reads > .never").all_inner_texts() == ["sat", "on", "it"]
    assert page.locator(".readers > .never").all_inner_texts() == ["the"]
    assert "cat is attended to by cat 0.500, sat 0.333, on 0.250" in said(page)
    assert page.get_by_text("hidden by the mask").is_visible()


@pytest.mark.parametrize("how", ["preference", "page", "change"])
def test_dark_and_light(notebook, watched, how, tmp_path):
    view = view_heads(SHIFT, WORDS)
    if how == "preference":  # of the reader's system, in a page of its own
        page = watched(color_scheme="dark")
        page.goto(view.save(tmp_path / "view.html").as_uri())
        assert page.noticed.pop(0).startswith("request file:")
    else:  # of the notebook, whatever the system prefers
        page = notebook(view)
        assert strip(page, "reads")["cat"] == LIGHT
        page.add_style_tag(content="body { background: #111; color: #eee }")
    page.locator(".readers > bdi").nth(0).hover()
    assert strip(page, "reads")["cat"] == DARK
    letters = page.locator(".said").evaluate("e => getComputedStyle(e).color")
    assert min(map(int, re.findall(r"\d+", letters))) > 200
    if how == "change":
        page.add_style_tag(content="body { background: white; color: black }")
        page.locator("h3").hover()
        page.locator("#outside").hover()
        page.locator("h3").hover()
        assert strip(page, "reads")["cat"] == LIGHT


@pytest.mark.parametrize("where", ["notebook", "page"])
def test_hostile_tokens_are_text_and_nothing_but_text(
    notebook, watched, where, tmp_path
):
    size = len(HOSTILE)
    bad = "</script></title><img src=https://example.org/x onerror=alert(2)>"
    view = view_heads(heads(2, size, size), HOSTILE, labels={(0, 1): bad}, title=bad)
    if where == "notebook":
        page = notebook(view)
    else:
        page = watched()
        page.goto(view.save(tmp_path / "view.html").as_uri())
        assert page.noticed.pop(0).startswith("request file:")
        assert page.title() == bad
    choose(page, "head", 1)
    words = page.locator(".reads").first.locator("> bdi")
    assert words.all_inner_texts() == [visible(token) for token in HOSTILE]
    for i in range(size):
        words.nth(i).hover()
        assert f"{visible(HOSTILE[i])} is attended to by" in said(page)
    assert page.locator("h3").inner_text() == bad
    assert bad in page.locator("h4").first.inner_text()
    assert page.locator("img").count() == 0 and page.locator("script").count() == 1
    page.wait_for_timeout(100)  # for a request or a dialog to be noticed


def test_the_page_and_the_view_do_not_change_each_other(notebook):
    view = view_heads(SHIFT, WORDS)
    page = notebook(view)
    outside = page.locator("#outside")
    style = "e => JSON.stringify(Object.values(getComputedStyle(e)))"
    before = outside.evaluate(style)
    known = page.evaluate("Object.keys(window)")
    page.evaluate(AS_OUTPUT, view._repr_html_())  # the same view once more
    assert outside.evaluate(style) == before
    assert page.locator(".panel").count() == 2  # each in its own place
    assert page.locator(".panel canvas").first.bounding_box()["height"] > 100
    assert page.evaluate("Object.keys(window)") == known


def test_without_scripts_the_tables_stand(watched, tmp_path):
    view = view_heads(SHIFT, WORDS, title="A shift")
    untrusted = re.sub(r"<script>.*?</script>", "", view._repr_html_(), flags=re.S)
    for markup, scripts in ((untrusted, True), (view._repr_html_(), False)):
        page = watched(java_script_enabled=scripts)
        page.set_content(NOTEBOOK + markup)
        assert page.get_by_text("trust the notebook").is_visible()
        table = page.get_by_role("table")
        assert table.is_visible() and table.get_by_text("1.00").count() == 5
        assert table.get_by_role("columnheader").all_inner_texts() == WORDS


def test_144_heads_at_64_tokens_appear(notebook):
    layers = [heads(12, 64, 64, seed=layer) for layer in range(12)]
    page = notebook(view_heads(layers, [f"token{i}" for i in range(64)]))
    page.locator(".readers > bdi").nth(20).hover()
    assert said(page).startswith("token20 attends to ")
    assert page.locator(".map canvas").bounding_box()["height"] > 12 * 16


@pytest.mark.parametrize("width", [1000, 600, 320])
def test_nothing_is_wider_than_the_page(notebook, width):
    tokens = "[CLS] an uncharacteristically long sentence . [SEP]".split() * 2
    view = view_heads([heads(12, 14, 14)] * 3, tokens, labels={(0, 0): "word " * 12})
    page = notebook(view, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
