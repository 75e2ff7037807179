"""The viewer without a browser: what is written is safe, exact, small, and the same."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from utils.tests.helpers import HOSTILE, WORDS, heads
from utils.viewer import CODES, DIGITS, SHORT, view_heads
from utils.words import visible

# what an untrusted JupyterLab keeps of an output: with these the tables survive
PLAIN = "p strong br summary table caption tr code span script".split()
KEPT = dict.fromkeys(PLAIN, []) | {
    "details": ["open"],
    "div": ["data-attn-view"],  # lost there, and not needed where no script runs
    "td": ["style", "title"],
    "th": ["scope"],
}


def html_of(view) -> str:
    return view._repr_html_()


def data_of(view) -> dict:
    """What the script is given."""
    call = re.search(r'viewHeads\("[0-9a-f]{12}", (\{.*\})\);\n', html_of(view))
    return json.loads(call[1])


def decoded(view, layer=0, head=0) -> torch.Tensor:
    """The weights of a head as the script reads them: (queries, keys), 0 to 1."""
    data = data_of(view)
    numbers = as_numbers(data["weights"][layer][head])
    return numbers.view(len(data["queries"]), len(data["keys"]))


def as_numbers(text) -> torch.Tensor:
    """What stands in a text of thousandths: numbers from 0 to 1."""
    digits, numbers = iter(text), []
    for digit in digits:
        number = DIGITS.index(digit)
        if number >= SHORT:
            rest = DIGITS.index(next(digits))
            number = SHORT + (number - SHORT) * len(DIGITS) + rest
        numbers.append(number / 1000)
    return torch.tensor(numbers)


class Parsed(HTMLParser):
    """The tags with their attributes, and the texts, of a page; the scripts apart."""

    def __init__(self, view):
        super().__init__()
        self.tags, self.texts, self.scripts, self.open = [], [], [], None
        self.feed(html_of(view))
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open = tag

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        (self.scripts if self.open == "script" else self.texts).append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


def test_every_weight_arrives_where_it_belongs():
    weights = [heads(3, 2, 5), heads(1, 4, 2, 5, seed=1)]
    view = view_heads(weights, ["a", "b"], key_tokens=WORDS)
    for layer, matrices in enumerate((weights[0], weights[1][0])):
        for head, matrix in enumerate(matrices):
            found = decoded(view, layer, head)
            torch.testing.assert_close(found, matrix, atol=0.00051, rtol=0)
    assert [words for words, _ in data_of(view)["queries"]] == ["a", "b"]
    assert [words for words, _ in data_of(view)["keys"]] == WORDS
    texts = Parsed(view).texts  # the first table: a row of keys, then row by row
    numbers = [float(text) for text in texts if re.fullmatch(r"[01]\.\d\d", text)][:10]
    assert torch.allclose(torch.tensor(numbers).view(2, 5), weights[0][0], atol=0.0051)


def features_of(lengths=(5, 5), dim=3, sharp=1.0):
    """Queries and keys, and the weights that they give."""
    g = torch.Generator().manual_seed(0)
    q, k = (sharp * torch.randn(length, dim, generator=g) for length in lengths)
    return q, k, (q @ k.mT / dim**0.5).softmax(dim=-1)


def test_queries_and_keys_arrive_too():
    q, k, weights = features_of((2, 5))
    layers = [heads(2, 2, 5), torch.stack([heads(1, 2, 5)[0], weights])]
    options = {"key_tokens": WORDS, "layers": [3, 4], "features": {(4, 1): (q, k)}}
    (found,) = data_of(view_heads(layers, ["a", "b"], **options))["features"]
    assert (found["place"], found["dim"]) == ([1, 1], 3)
    for name, most, real in zip("qk", found["most"], (q, k)):
        arrived = (2 * as_numbers(found[name]) - 1) * most
        assert (arrived.view_as(real) - real).abs().max() <= 0.0011 * most


@pytest.mark.parametrize(
    ("says", "features"),
    [
        (r"\(0, 1\); give", lambda q, k: {(0, 1): (q, k)}),
        ("have shapes", lambda q, k: {(0, 0): (q[:4], k)}),
        ("have shapes", lambda q, k: {(0, 0): (q, k[:, :2])}),
        ("differ by", lambda q, k: {(0, 0): (k, q)}),
    ],
)
def test_features_of_another_head_are_refused(says, features):
    q, k, weights = features_of(sharp=3.0)
    with pytest.raises(ValueError, match=says):
        view_heads(weights[None], WORDS, features=features(q, k))


def test_every_thousandth_has_a_code_of_its_own():
    assert len(set(CODES)) == len(CODES) == 1001
    assert all(code.isascii() and code.isprintable() for code in CODES)
    rows = torch.arange(1001).div(1000)
    for row in torch.stack([rows, 1 - rows], dim=1)[None].split(100, dim=1):
        view = view_heads(row, ["q"] * row.shape[1], key_tokens=["a", "b"])
        assert (decoded(view) - row[0]).abs().max() < 1e-6


def test_rounding_is_that_of_the_captions():
    """0.0125 is 0.013, and so is what another CPU makes of it."""
    for a in (0.0125, 0.012499999):
        view = view_heads(torch.tensor([[[a, 1 - a]]]), ["q"], key_tokens=["a", "b"])
        assert decoded(view)[0, 0].item() == pytest.approx(0.013)
        assert ">0.01<" in html_of(view) and ">0.99<" in html_of(view)


def test_what_may_not_be_read_is_no_zero():
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    weights = heads(2, 5, 5) * causal
    weights = weights / weights.sum(dim=-1, keepdim=True)
    for mask in (causal, causal[None, None]):
        view = view_heads(weights, WORDS, mask=mask)
        assert data_of(view)["mask"] == causal.int().tolist()
        assert Parsed(view).texts.count("–") == 2 * 10
    row = weights[:, 2:3].expand(2, 5, 5)
    padded = view_heads(row, WORDS, mask=causal[None, None, 2:3])
    assert data_of(padded)["mask"] == [[1, 1, 1, 0, 0]] * 5
    assert data_of(view_heads(weights, WORDS))["mask"] is None


@pytest.mark.parametrize(("keys", "texts"), [(2, ["–", "–"]), (20, ["nothing", "–"])])
def test_a_query_that_may_read_nothing(keys, texts):
    """Short texts are written as grids, long ones as lists of the strongest keys."""
    mask = torch.tensor([[True], [False]]).expand(2, keys)
    view = view_heads(mask[None] / keys, ["a", "b"], key_tokens=["k"] * keys, mask=mask)
    assert [text for text in Parsed(view).texts if text in ("–", "nothing")] == texts


@pytest.mark.parametrize("tokens", [HOSTILE[:16], HOSTILE[2:], (HOSTILE * 3)[:40]])
def test_hostile_tokens_come_out_as_text(tokens):
    some = heads(2, len(tokens), len(tokens))
    label = '</summary><script>alert("$x$")</script>'
    view = view_heads(some, tokens, labels={(0, 1): label}, title="</title><b>$t$</b>")
    markup, parsed, data = html_of(view), Parsed(view), data_of(view)
    for tag, attributes in parsed.tags:
        assert set(attributes) <= set(KEPT[tag]), (tag, attributes)
    assert markup.count("<script") == markup.count("</script") == 1
    assert "http" not in markup and "url(" not in markup and "@import" not in markup
    assert all(letter == "\n" or letter.isprintable() for letter in markup)
    texts = "".join(parsed.texts)
    assert all(visible(token) in texts for token in tokens)
    assert f"layer 0, head 1: {label}" in texts and "</title><b>$t$</b>" in texts
    # MathJax skips <code>; elsewhere nothing stands between two dollars in one text
    outside = re.sub(r"<script>.*?</script>|<code>.*?</code>", "", markup, flags=re.S)
    assert not re.search(r"\$[^<]+\$|\\\(", re.sub(r'"[^"]*"', "", outside))
    # the script is given JSON that HTML cannot misread
    (payload,) = re.findall(r"viewHeads\(.*\);\n", "".join(parsed.scripts))
    assert not set("<>&") & set(payload) and payload.isascii()
    assert data["title"] == "</title><b>$t$</b>" and data["labels"] == [["", label]]
    assert [words for words, _ in data["queries"]] == list(map(visible, tokens))


def test_the_script_asks_for_nothing_and_keeps_nothing():
    script = "".join(Parsed(view_heads(heads(1, 2, 2), ["a", "b"])).scripts)
    for word in (
        "fetch import( XMLHttpRequest WebSocket localStorage sessionStorage cookie "
        "eval innerHTML outerHTML insertAdjacentHTML document.write Image( Date "
        "currentScript Math.random http // .src .href"
    ).split():
        assert word not in script, word


def test_views_of_one_page_do_not_take_each_others_place():
    views = [view_heads(heads(2, 5, 5, seed=seed), WORDS) for seed in range(9)]
    views.append(view_heads(heads(2, 5, 5), WORDS, title="another"))
    assert len({re.search('view="([0-9a-f]{12})"', html_of(v))[1] for v in views}) == 10


def test_the_same_bytes_in_another_process():
    """No random seed, no clock and no address is in them."""
    code = (
        "import torch; from utils.viewer import view_heads;"
        "weights = torch.arange(1.0, 33.0).sin().view(2, 4, 4).softmax(dim=-1);"
        "view = view_heads(weights, list('abca'), labels={(0, 1): 'x', (0, 0): 'y'});"
        "markup = view._repr_html_()"
    )
    here = {}
    exec(code, here)
    there = subprocess.run(
        [sys.executable, "-c", code + ";print(ascii(markup))"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert there.stdout.strip() == ascii(here["markup"])


@pytest.mark.parametrize(
    ("queries", "keys", "groups"),
    [
        ("[CLS] a [SEP] b [SEP]", None,
         [("[CLS]", [0], [0]), ("[SEP]", [2, 4], [2, 4])]),
        ("the cat", None, [("first token", [0], [0])]),
        ("a b", "c d", [("first token", [], [0])]),
        ("</s> b", "b </s>", [("first token", [], [0]), ("</s>", [0], [1])]),
    ],
)  # fmt: skip
def test_what_can_be_hidden(queries, keys, groups):
    size = len(queries.split())
    keys = keys and keys.split()
    view = view_heads(heads(1, size, size), queries.split(), key_tokens=keys)
    assert [tuple(group.values()) for group in data_of(view)["hide"]] == groups


def test_labels_stand_at_their_heads_and_come_first_in_the_tables():
    weights, label = [heads(6, 5, 5), heads(6, 5, 5, seed=1)], "previous token 0.99"
    view = view_heads(weights, WORDS, labels={(1, 4): label}, title="Two layers")
    assert data_of(view)["labels"][1] == ["", "", "", "", label, ""]
    first, *others = re.findall("<summary>(.*?)</summary>", html_of(view))
    assert first == f"layer 1, head 4: {label}"
    assert others == ["layer 0, head 0", "layer 0, head 1", "layer 0, head 2"]
    summary = "<Two layers: 2 layers, 12 heads, 5 queries × 5 keys, 0.0"
    assert repr(view).startswith(summary)


def test_long_texts_are_tables_of_the_strongest_keys():
    weights = torch.zeros(1, 20, 20)
    weights[..., 3], weights[..., 7], weights[..., 11] = 0.6, 0.3, 0.1
    view = view_heads(weights, [f"w{i}" for i in range(20)])
    row = "<td><code>w3</code> 0.60, <code>w7</code> 0.30, <code>w11</code> 0.10</td>"
    assert html_of(view).count(row + "<td>0.05</td>") == 20


@pytest.mark.parametrize("sharpness", [0.0, 2.0, 100.0])
def test_144_heads_at_64_tokens_take_less_than_800_kb(sharpness):
    layers = [heads(12, 64, 64, sharpness=sharpness, seed=i) for i in range(12)]
    view = view_heads(layers, [f"token{i}" for i in range(64)])
    assert 12 * 64 * 64 * 12 < len(html_of(view).encode()) < 800_000


def test_270_heads_at_64_tokens_with_roles_take_less_than_2_mb():
    """Of SmolLM2's size: 30 layers of 9 causal heads, with three roles."""
    torch.manual_seed(0)
    hidden = torch.ones(64, 64).triu(1).bool()
    layers = torch.randn(30, 9, 64, 64).mul(2).masked_fill(hidden, -torch.inf)
    roles = {name: torch.rand(30, 9) for name in ("induction", "previous", "first")}
    weights = list(layers.softmax(dim=-1).split(1))
    view = view_heads(weights, ["Ġtoken"] * 64, mask=~hidden, roles=roles)
    assert len(html_of(view).encode()) <= 2_000_000


def test_the_scores_of_roles_arrive():
    scores = torch.tensor([[0.12345, -1.0]])
    data = data_of(view_heads(heads(2, 5, 5), WORDS, roles={"<i>": scores}))
    assert data["roles"] == [{"name": "<i>", "scores": [[0.1235, -1.0]]}]


def test_the_worst_case_is_not_much_larger():
    """Thirteen weights of a row at most take two letters."""
    weights = torch.full((1, 64, 64), 0.0001)
    weights[..., :13] = (1 - 51 * 0.0001) / 13
    data = data_of(view_heads(weights, ["x"] * 64))
    assert len(data["weights"][0][0]) == 64 * (64 + 13)


@pytest.mark.parametrize(
    ("says", "weights", "options"),
    [
        ("one sentence", lambda w: w.expand(2, 2, 5, 5), {}),
        (r"\(5, 5\)", lambda w: w[0], {}),
        (r"list\(weights\)", lambda w: w.expand(3, 2, 5, 5), {}),
        ("need_weights=True", lambda w: [None], {}),
        ("no weights", lambda w: [], {}),
        ("different lengths", lambda w: [w, w[..., :4]], {}),
        ("NaN", lambda w: w * torch.nan, {}),
        ("after the softmax", lambda w: w - 0.5, {}),
        ("dropout", lambda w: w * 0.7, {}),
        ("swapped", lambda w: w.mT, {}),
        ("2.1 MB or more.*fewer layers", lambda w: w.repeat(42_000, 1, 1), {}),
        ("4 words for 5 queries", None, {"tokens": WORDS[1:]}),
        ("list of words", None, {"tokens": "abcde"}),
        ("list of words", None, {"tokens": [1, 2, 3, 4, 5]}),
        ("3 words for 5 keys", lambda w: w[:, :3], {"tokens": WORDS[:3]}),
        ("2 words for 5 keys", None, {"key_tokens": ["a", "b"]}),
        ("True = may be read", None, {"mask": torch.ones(5, 5)}),
        ("mask has shape", None, {"mask": torch.ones(4, 4) > 0}),
        ("mask has shape", None, {"mask": torch.ones(2, 1, 5, 5) > 0}),
        ("nothing is read", None, {"mask": torch.eye(5) > 0}),
        (r"\(0, 2\)", None, {"labels": {(0, 2): "x"}}),
        ("counted from 0", None, {"labels": {3: "x"}}),
        ("for 1 layers", None, {"layers": [3, 4]}),
        ("for 2 layers", lambda w: [w, w], {"layers": [3, 3]}),
        ("for 1 layers", None, {"layers": [-1]}),
        (r"start=\(1, 0\)", None, {"start": (1, 0)}),
        (r"start=\(0, 0\)", None, {"start": (0, 0), "layers": [3]}),
        ("0.9; give", None, {"labels": {(0, 0): 0.9}}),
        (r"\(layers, heads\)", None, {"roles": {"a": torch.ones(2, 1)}}),
        (r"\(layers, heads\)", None, {"roles": {"a": [[0.5, 0.5]]}}),
        ("NaN", None, {"roles": {"a": torch.tensor([[0.5, torch.nan]])}}),
        ("name for each", None, {"roles": {" ": torch.ones(1, 2)}}),
        ("name for each", None, {"roles": {3: torch.ones(1, 2)}}),
        (
            "same number of heads",
            lambda w: [w, w[:1]],
            {"roles": {"a": torch.ones(2, 2)}},
        ),
    ],
)
def test_what_would_be_a_false_view_is_refused(says, weights, options):
    some = heads(2, 5, 5)
    with pytest.raises((ValueError, TypeError), match=says):
        view_heads(weights(some) if weights else some, **{"tokens": WORDS} | options)


def test_half_precision_and_gradients_are_welcome_and_nothing_is_edited():
    weights = heads(1, 2, 5, 5).bfloat16().requires_grad_()
    before = weights.detach().clone()
    view_heads(weights, WORDS)
    assert torch.equal(weights, before)


def test_a_saved_view_is_a_page_of_its_own(tmp_path):
    view = view_heads(heads(2, 5, 5), WORDS, title='A "B" & <C>')
    path = view.save(tmp_path / "view.html")
    page = path.read_bytes().decode("utf-8")
    assert page.startswith('<!doctype html>\n<html lang="en">\n')
    assert '<meta charset="utf-8">' in page and html_of(view) in page
    assert "<title>A &quot;B&quot; &amp; &lt;C&gt;</title>" in page
    assert "default-src 'none'" in page and "http:" not in page
    assert view.save(str(path)).read_bytes().decode("utf-8") == page
