"""The viewer in a browser: used with mouse and keyboard, light and dark, watched.

Needs playwright's Python package and a Chromium: the one that CHROMIUM names, or the
first on the PATH. Without them the tests are skipped, or fail where the environment
says COURSE_BROWSER_TESTS=required.
"""

import base64
import io
import os
import re
import shutil
from itertools import product

import matplotlib.pyplot as plt
import pytest
import torch

from utils.tests.helpers import HOSTILE, WORDS, heads
from utils.viewer import view_heads
from utils.words import visible

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
EVEN = torch.ones(1, 5, 5).tril() / torch.arange(1, 6)[:, None]  # all up to itself


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
def opened(watched):
    """Shows a view as the output of a notebook."""

    def show(view, **options):
        page = watched(**options)
        page.set_content(NOTEBOOK)
        page.evaluate(AS_OUTPUT, view._repr_html_())
        return page

    return show


def said(page) -> str:
    return "\n".join(page.locator(".said p").all_inner_texts())


def strip(page, kind) -> dict[str, str]:
    """The words of a strip, and the colour behind each."""
    return dict(
        page.locator(f".{kind} > bdi").evaluate_all(
            "all => all.map(w => [w.textContent, getComputedStyle(w).backgroundColor])"
        )
    )


def hover(page, kind, word):
    page.locator(f".{kind} > bdi").nth(word).hover()


def pixels(page, picture=0):
    """The colours of a picture on white paper, 0 to 255 (height, width, 3)."""
    url = page.locator("canvas").nth(picture).evaluate("canvas => canvas.toDataURL()")
    image = plt.imread(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return 255 * (image[..., :3] * image[..., 3:] + 1 - image[..., 3:])


def lines_of(page, colour) -> int:
    """How many pixels of the first picture have a colour: red, green, blue."""
    return int((abs(pixels(page) - colour).max(axis=-1) < 5).sum())


def cells(page, size=5, step=30):
    """(row, column, x, y) of each cell of the first picture; the mouse is there."""
    box = page.locator("canvas").first.bounding_box()
    left, top = box["width"] - 4 - step * size, 2
    for row in range(size):
        for column in range(size):
            x, y = left + (column + 0.7) * step, top + (row + 0.7) * step
            page.mouse.move(box["x"] + x, box["y"] + y)
            yield row, column, x, y


@pytest.mark.parametrize("weights", [SHIFT, EVEN], ids=["all", "causal"])
def test_the_mouse_reads_every_cell_of_the_heat_map(opened, weights):
    """A query is a row, from the top; a key is a column, from the left."""
    mask = None if weights is SHIFT else EVEN[0] > 0
    page, inks = opened(view_heads(weights, WORDS, mask=mask)), {}
    for query, key, x, y in cells(page):
        weight = weights[0, query, key].item()
        hidden = mask is not None and key > query
        uniform = 1 / (5 if mask is None else query + 1)
        says = f"{weight:.3f} (uniform {uniform:.3f})"
        says = "hidden by the mask" if hidden else says
        assert said(page).startswith(f"{WORDS[query]} → {WORDS[key]}: {says}")
        inks[int(y), int(x)] = None if hidden else weight
    paper = pixels(page)
    for (y, x), weight in inks.items():
        ink = 1 - paper[y, x, 0] / 255
        if weight is None:  # grey, and neither the paper's nor a weight's colour
            assert 0.02 < ink < 0.1
        else:
            assert ink == pytest.approx(weight, abs=0.004)


def test_a_saved_view_is_a_page_of_its_own(watched, tmp_path):
    path, title = tmp_path / "heads.html", "</title><script>no()</script>"
    view_heads(SHIFT, ["שלום", *WORDS[1:]], title=title).save(path)
    page = watched()
    page.goto(path.as_uri())
    assert page.noticed == [f"request {page.url}"]  # itself, and nothing else
    page.noticed.clear()
    assert page.title() == title
    next(cells(page))
    assert "שלום" in said(page) and "0.000 (uniform 0.200)" in said(page)


def test_what_the_mask_hides_is_marked_in_the_sentences(opened):
    page = opened(view_heads(EVEN, WORDS, mask=EVEN[0] > 0))
    hover(page, "readers", 1)
    assert page.locator(".reads > .never").all_inner_texts() == ["sat", "on", "it"]
    assert page.locator(".readers > .never").all_inner_texts() == ["the"]
    assert "cat is attended to by cat 0.500, sat 0.333, on 0.250" in said(page)
    assert page.get_by_text("hidden by the mask").is_visible()


def test_the_keyboard_reads_every_cell_and_nothing_else_hears_it(opened):
    page = opened(view_heads(SHIFT, WORDS))
    page.evaluate("() => { window.heard = []; onkeydown = e => heard.push(e.key); }")
    assert said(page).startswith("the → cat: 1.000")
    for _ in range(4):  # head, view, hide, the picture
        page.keyboard.press("Tab")
    root = page.locator("[data-attn-view]")
    assert root.evaluate("e => e.shadowRoot.activeElement.tagName") == "CANVAS"
    for key, words in (
        ("ArrowDown", "cat → cat: 0.000"),
        ("ArrowRight", "cat → sat: 1.000 (uniform 0.200)"),
        ("ArrowUp", "the → sat: 0.000"),
        ("ArrowUp", "the → sat: 0.000"),
        ("ArrowLeft", "the → cat: 1.000"),
        ("End", "the → it: 0.000"),
        ("PageDown", "it → it: 0.000"),
        ("Home", "it → the: 1.000"),
        ("PageUp", "the → the: 0.000"),
        ("ArrowRight", "the → cat: 1.000"),
        ("d", "the → cat: 1.000"),  # twice, it deletes a cell of a notebook
        ("Control+s", "the → cat: 1.000"),
        ("Alt+ArrowDown", "the → cat: 1.000"),  # the browser's, not ours
        # to the words: the token as query and as key
        ("Tab", "cat attends to sat 1.000, the 0.000, cat 0.000 (uniform 0.200)\n"
         "cat is attended to by the 1.000, cat 0.000, sat 0.000"),
        ("ArrowRight", "sat attends to on 1.000"),
        ("Tab", "sat attends to on 1.000"),
        ("ArrowLeft", "cat attends to sat 1.000"),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert said(page).startswith(words)
        if key == "Control+s":  # first the Tab that led into the view
            assert page.evaluate("heard") == ["Tab", "Control", "s"]
    assert root.get_attribute("data-lm-suppress-shortcuts") == "true"
    assert page.locator("[aria-live=polite].said").count() == 1


def test_views_of_one_page_do_not_hear_each_others_keys(opened):
    """Also the first key, and also where one view stands in two cells."""
    view, other = view_heads(SHIFT, WORDS), view_heads(SHIFT, WORDS, title="another")
    page = opened(view)
    for again in (other, view):
        page.evaluate(AS_OUTPUT, again._repr_html_())
    views = page.locator("[data-attn-view]")
    expected = ["the → cat"] * 3
    for place, (key, now) in enumerate(
        [("ArrowDown", "cat → cat"), ("End", "the → it"), ("ArrowLeft", "the → the")]
    ):
        views.nth(place).locator("canvas").first.focus()
        page.keyboard.press(key)
        expected[place] = now
        said = [each.locator(".said p").first.inner_text() for each in views.all()]
        assert [words.split(":")[0] for words in said] == expected


def test_the_sentence_is_coloured_by_what_a_token_reads_and_by_who_reads_it(opened):
    page = opened(view_heads(SHIFT, WORDS))
    hover(page, "readers", 2)
    for kind, word in (("reads", "on"), ("readers", "cat")):
        colours = strip(page, kind)
        assert colours.pop(word) == LIGHT
        assert list(colours.values()) == ["rgba(0, 0, 0, 0)"] * 4
    titles = page.locator(".strip b").all_inner_texts()
    assert titles == ["what sat attends to", "who attends to sat"]
    hover(page, "reads", 0)
    assert strip(page, "reads")["cat"] == LIGHT
    assert "is attended to by it 1.000" in said(page)


def test_layers_heads_labels_and_the_map(opened):
    layers = [heads(2, 5, 5), torch.cat([heads(2, 5, 5, seed=1), SHIFT])]
    label = "next token 1.00 · baseline 0.20"
    page = opened(view_heads(layers, WORDS, layers=[4, 5], labels={(5, 2): label}))
    title = page.locator("h4")
    layer, head = (page.get_by_label(x, exact=True) for x in ("layer", "head"))
    assert title.inner_text() == f"layer 5, head 2 · {label}"
    assert layer.locator("option").all_inner_texts() == ["4", "5"]
    assert (layer.input_value(), head.input_value()) == ("1", "2")
    assert head.locator("option").all_inner_texts() == ["0", "1", f"2 · {label}"]
    layer.select_option("4")  # which has no head 2
    assert title.inner_text() == "layer 4, head 1"
    assert head.inner_text().split() == ["0", "1"]
    layer.select_option("5")
    head.select_option("2")
    assert title.inner_text() == f"layer 5, head 2 · {label}"
    hover(page, "reads", 0)
    assert said(page).startswith("the attends to cat 1.000")
    page.locator(".map canvas").click(position={"x": 22 + 80 + 20, "y": 20})
    assert title.inner_text() == "layer 4, head 1"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert title.inner_text() == "layer 5, head 0"
    assert (layer.input_value(), head.input_value()) == ("1", "0")


def test_it_opens_on_what_a_reader_looks_for(opened):
    """Not on a special token, nor on a token with itself, while there is another."""
    weights = torch.tensor([[0.9, 0.1, 0, 0], [0.7, 0.1, 0.2, 0], [0, 0.3, 0.7, 0]])
    weights = torch.cat([weights, torch.tensor([[0, 0, 0.1, 0.9]])])[None]
    tokens = ["[CLS]", "a", "b", "[SEP]"]
    assert said(opened(view_heads(weights, tokens))).startswith("b → a: 0.300")
    sure = torch.tensor([[[1.0, 0], [0.9, 0.1]]])  # only special tokens have a choice
    page = opened(view_heads(sure, tokens[::3], mask=torch.ones(2, 2).tril() > 0))
    assert said(page).startswith("[SEP] → [CLS]: 0.900")


def test_all_words_of_a_long_text_can_be_read(opened):
    page = opened(view_heads(heads(1, 50, 50), [f"w{i}" for i in range(50)]))
    picture = page.locator("canvas").first
    before = picture.bounding_box()["height"]
    page.get_by_label("all words").check()
    assert picture.bounding_box()["height"] > before + 100
    assert page.evaluate("document.documentElement.scrollWidth") <= 1000
    assert not opened(view_heads(SHIFT, WORDS)).get_by_label("all words").is_visible()


def test_the_overview_draws_what_is_hidden_apart_and_small_weights_too(opened):
    weights = torch.tensor([[1.0, 0, 0], [0.96, 0.04, 0], [0.5, 0.48, 0.02]])
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    mask[2, 1] = False
    weights[2] = torch.tensor([0.98, 0, 0.02])
    page = opened(view_heads(weights.expand(2, 3, 3), WORDS[:3], mask=mask))
    page.wait_for_timeout(200)
    dot, paper = (80 - 4) / 3, pixels(page, 1)
    inks = {
        (i, j): 1 - paper[int(2 + (i + 0.5) * dot), int(24 + (j + 0.5) * dot), 0] / 255
        for i, j in product(range(3), repeat=2)
    }
    assert 0.02 < inks[0, 2] == inks[2, 1] < 0.1  # hidden
    assert inks[1, 1] == pytest.approx(0.04, abs=0.006)
    assert inks[2, 2] == pytest.approx(0.02, abs=0.006)


def test_the_heads_of_a_layer_as_lines_over_each_other(opened):
    first, second = (1, 115, 178), (222, 143, 5)  # of the palette "colorblind"
    page = opened(view_heads(torch.cat([SHIFT, SHIFT.roll(1, dims=-1)]), WORDS))
    assert not page.get_by_text("lines of heads").is_visible()
    page.get_by_label("view", exact=True).select_option(label="lines")
    both = lines_of(page, first), lines_of(page, second)
    assert min(both) > 200
    picture = page.locator("canvas").first
    picture.hover(position={"x": 10, "y": 20 + 1.5 * 20})  # the query "cat"
    assert said(page).startswith("cat attends to sat 1.000")
    assert 0 < lines_of(page, first) < both[0] / 3
    right = picture.bounding_box()["width"] - 8
    picture.hover(position={"x": right, "y": 20 + 1.5 * 20})  # the key "cat"
    assert "cat is attended to by the 1.000" in said(page)
    page.mouse.move(2, 2)
    assert (lines_of(page, first), lines_of(page, second)) == both
    page.get_by_label("0", exact=True).uncheck()
    assert lines_of(page, first) == 0 and lines_of(page, second) >= both[1]
    page.get_by_role("button", name="this head only").click()
    assert lines_of(page, first) >= both[0] and lines_of(page, second) == 0
    picture.focus()
    page.keyboard.press("ArrowDown")  # one query only
    assert 0 < lines_of(page, first) < both[0] / 3
    page.get_by_label("view", exact=True).select_option(label="heat map")
    assert lines_of(page, first) > 5 * 29 * 29 - 400  # five cells again


LISTEN = """() => {
    const pen = CanvasRenderingContext2D.prototype, write = pen.fillText;
    window.written = [];
    pen.fillText = function (...all) { written.push(all[0]); write.apply(this, all); };
}"""  # what is written in pictures


def test_how_one_weight_arises(opened):
    q = 3 * torch.eye(5)  # each query fits one key, with a score of 9 / √5
    k = q.roll(-1, dims=0)
    weights = (q @ k.mT / 5**0.5).softmax(dim=-1)
    both = torch.stack([weights, SHIFT[0]])
    page = opened(view_heads(both, WORDS, features={(0, 0): (q, k)}))
    picture, view = page.locator("canvas").first, page.get_by_label("view", exact=True)
    page.evaluate(LISTEN)
    view.select_option(label="one weight")
    said = "sum of products 9.00, divided by √5: score 4.02"
    assert said in page.evaluate("window.written")
    fits = lines_of(page, (0, 114, 178))
    assert picture.bounding_box()["height"] > 200 and fits > 1000
    hover(page, "reads", 3)  # a pair that does not fit: the product has no feature
    assert 150 < fits - lines_of(page, (0, 114, 178)) < 400
    hover(page, "readers", 4)  # the key stays, and the query 4 fits the key 3
    assert abs(fits - lines_of(page, (0, 114, 178))) < 40
    page.get_by_label("head", exact=True).select_option("1")
    assert picture.bounding_box()["height"] < 60
    assert (
        "one weight"
        not in opened(view_heads(both, WORDS)).locator("select").last.inner_text()
    )


def test_what_is_hidden_is_still_counted(opened):
    weights = torch.tensor([[0.1, 0.2, 0.1, 0.6]]).expand(1, 4, 4)
    page = opened(view_heads(weights, ["[CLS]", "a", "b", "[SEP]"]))
    assert "not shown" not in page.locator(".panels").inner_text() + said(page)
    page.get_by_label("[SEP]").check()
    page.get_by_label("[CLS]").check()
    assert set(strip(page, "reads")) == {"a", "b", "not shown"}
    assert set(strip(page, "readers")) == {"a", "b"}
    hover(page, "reads", 0)
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


def test_nothing_is_left_to_show(opened):
    page = opened(view_heads(torch.ones(2, 1, 1), ["a"]))
    page.get_by_label("first token").check()
    assert said(page) == "every query is hidden"
    page.locator("canvas").first.focus()
    page.keyboard.press("ArrowDown")
    page.get_by_label("first token").uncheck()
    assert said(page).startswith("a → a: 1.000 (uniform 1.000)")


def test_dark_and_light(opened):
    """A view follows its notebook."""
    page = opened(view_heads(SHIFT, WORDS))
    assert strip(page, "reads")["cat"] == LIGHT
    page.add_style_tag(content="body { background: #111; color: #eee }")
    hover(page, "readers", 0)
    assert strip(page, "reads")["cat"] == DARK
    letters = page.locator(".said").evaluate("e => getComputedStyle(e).color")
    assert min(map(int, re.findall(r"\d+", letters))) > 200
    page.add_style_tag(content="body { background: white; color: black }")
    for place in ("h3", "#outside", "h3"):
        page.locator(place).hover()
    assert strip(page, "reads")["cat"] == LIGHT


def test_hostile_tokens_are_text_and_nothing_but_text(opened):
    size = len(HOSTILE)
    bad = "</script></title><img src=https://example.org/x onerror=alert(2)>"
    view = view_heads(heads(2, size, size), HOSTILE, labels={(0, 1): bad}, title=bad)
    page = opened(view)
    assert page.title() == "a notebook"
    words = page.locator(".reads > bdi")
    assert words.all_inner_texts() == [visible(token) for token in HOSTILE]
    for i in range(size):
        words.nth(i).hover()
        assert f"{visible(HOSTILE[i])} is attended to by" in said(page)
    assert page.locator("h3").inner_text() == bad
    assert bad in page.locator("h4").inner_text()
    assert page.locator("img").count() == 0 and page.locator("script").count() == 1
    page.wait_for_timeout(100)  # for a request or a dialog to be noticed


ACROSS = """(element, words) => words.map(word => {
    for (const walker = document.createTreeWalker(element, 4); walker.nextNode();) {
        const at = walker.currentNode.data.indexOf(word), range = new Range();
        if (at < 0) continue;
        range.setStart(walker.currentNode, at);
        range.setEnd(walker.currentNode, at + word.length);
        return range.getBoundingClientRect().left;
    }
})"""  # where each word starts on the page


def from_the_left(place, *words):
    """The words in the order in which they stand on the page."""
    return sorted(words, key=dict(zip(words, place.evaluate(ACROSS, words))).get)


def test_hebrew_turns_nothing_round(opened):
    """Query, key and number from the left; a label in the direction of its words."""
    tokens = ["שלום", "עולם", "  ", "\u0301", "\xa0"]
    label, title = "שלום · next", "שלום, עולם."
    view = view_heads(SHIFT, tokens, labels={(0, 0): label}, title=title)
    page = opened(view)
    said = page.locator(".said p").first
    assert from_the_left(said, "1.000", "עולם", "שלום") == ["שלום", "עולם", "1.000"]
    assert from_the_left(page.locator("h4"), "שלום", "next") == ["next", "שלום"]
    assert from_the_left(page.locator("h3"), "שלום", ".") == [".", "שלום"]
    seen = ["שלום", "עולם", "␣␣", "◌\u0301", r"\xa0"]
    assert page.locator(".reads > bdi").all_inner_texts() == seen


def test_the_page_and_the_view_do_not_change_each_other(opened):
    view = view_heads(SHIFT, WORDS)
    page = opened(view)
    outside = page.locator("#outside")
    style = "e => JSON.stringify(Object.values(getComputedStyle(e)))"
    before = outside.evaluate(style), page.evaluate("Object.keys(window)")
    page.evaluate(AS_OUTPUT, view._repr_html_())  # the same view once more
    assert (outside.evaluate(style), page.evaluate("Object.keys(window)")) == before
    assert page.locator(".panel").count() == 2  # each in its own place
    assert page.locator(".panel canvas").first.bounding_box()["height"] > 100


def test_without_scripts_the_table_stands(watched):
    markup = view_heads(SHIFT, WORDS)._repr_html_()
    untrusted = re.sub(r"<script>.*?</script>", "", markup, flags=re.S)
    for html, scripts in ((untrusted, True), (markup, False)):
        page = watched(java_script_enabled=scripts)
        page.set_content(NOTEBOOK + html)
        assert page.get_by_text("trust the notebook").is_visible()
        table = page.get_by_role("table")
        assert table.is_visible() and table.get_by_text("1.00").count() == 5
        assert table.get_by_role("columnheader").all_inner_texts() == WORDS


@pytest.mark.parametrize("width", [1000, 600, 320])
def test_nothing_is_wider_than_the_page(opened, width):
    tokens = "[CLS] an uncharacteristically long sentence . [SEP]".split() * 2
    view = view_heads([heads(12, 14, 14)] * 3, tokens, labels={(0, 0): "word " * 12})
    page = opened(view, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
