"""The viewer without a browser: what is written is safe, exact, small, and the same."""

import json
import re
from functools import partial
from html.parser import HTMLParser

import pytest
import torch

from utils.tests.helpers import HOSTILE, WORDS, guards, heads
from utils.viewer import CODES, DIGITS, SHORT, view_heads
from utils.words import visible

# what an untrusted JupyterLab keeps of an output: with these the table survives
PLAIN = "p strong br table caption tr code span script".split()
KEPT = dict.fromkeys(PLAIN, []) | {
    "div": ["data-attn-view"],  # lost there, and not needed where no script runs
    "td": ["style"],
    "th": ["scope"],
}


def data_of(view) -> dict:
    """What the script is given."""
    call = re.search(r'viewHeads\("[0-9a-f]{12}", (\{.*\})\);\n', view._repr_html_())
    return json.loads(call[1])


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
        self.feed(view._repr_html_())
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


def table_of(view) -> list[str]:
    """The numbers of the table, row by row; – where a key is hidden."""
    return [t for t in Parsed(view).texts if re.fullmatch(r"[01]\.\d\d|–", t)]


def features_of(dim=3, sharp=1.0):
    """Queries and keys, and the weights that they give."""
    g = torch.Generator().manual_seed(0)
    q, k = (sharp * torch.randn(5, dim, generator=g) for _ in range(2))
    return q, k, (q @ k.mT / dim**0.5).softmax(dim=-1)


def test_everything_arrives_where_it_belongs():
    q, k, weights = features_of()
    layers = [heads(2, 5, 5), torch.stack([*heads(2, 5, 5, seed=1), weights])[None]]
    layers = layers[0].bfloat16().requires_grad_(), layers[1]  # a tuple, as of a BERT
    options = {"layers": [3, 4], "features": {(4, 2): (q, k)}, "title": "Two layers"}
    view = view_heads(layers, WORDS, labels={(4, 1): "previous"}, **options)
    data = data_of(view)
    for layer, matrices in enumerate((layers[0], layers[1][0])):
        for head, matrix in enumerate(matrices):
            found = as_numbers(data["weights"][layer][head]).view(5, 5)
            torch.testing.assert_close(found, matrix.float(), atol=0.00051, rtol=0)
    assert data["tokens"] == [[word, word] for word in WORDS]
    assert data["labels"] == [["", ""], ["", "previous", ""]]
    assert (data["start"], data["layers"], data["mask"]) == ([1, 1], [3, 4], None)
    shown = torch.tensor([float(number) for number in table_of(view)]).view(5, 5)
    torch.testing.assert_close(shown, layers[1][0, 1], atol=0.0051, rtol=0)
    assert "layer 4, head 1: previous. Each row" in view._repr_html_()
    (found,) = data["features"]
    assert (found["place"], found["dim"]) == ([1, 2], 3)
    for name, most, real in zip("qk", found["most"], (q, k)):
        arrived = (2 * as_numbers(found[name]) - 1) * most
        assert (arrived.view_as(real) - real).abs().max() <= 0.0011 * most
    assert repr(view).startswith("<Two layers: 2 layers, 5 heads, 5 tokens, 0.0")


def test_every_thousandth_has_a_code_and_is_rounded_as_elsewhere():
    assert len(set(CODES)) == len(CODES) == 1001
    assert all(code.isascii() and code.isprintable() for code in CODES)
    rows = torch.arange(1001).div(1000)
    for some in torch.stack([rows, 1 - rows], dim=1).split(100):
        weights = torch.nn.functional.pad(some, (0, len(some) - 2))  # square
        data = data_of(view_heads(weights[None], ["t"] * len(weights)))
        found = as_numbers(data["weights"][0][0]).view_as(weights)
        assert (found - weights).abs().max() < 1e-6
    for a in (0.0125, 0.012499999):  # 0.0125 is 0.013, whatever a CPU makes of it
        view = view_heads(torch.tensor([[[a, 1 - a]] * 2]), ["a", "b"])
        found = as_numbers(data_of(view)["weights"][0][0])
        assert found[0].item() == pytest.approx(0.013)
        assert table_of(view) == ["0.01", "0.99"] * 2


def test_what_the_mask_hides_is_no_zero():
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    weights = heads(2, 5, 5) * causal
    weights = weights / weights.sum(dim=-1, keepdim=True)
    for mask in (causal, causal[None, None]):
        view = view_heads(weights, WORDS, mask=mask)
        assert data_of(view)["mask"] == causal.int().tolist()
        assert table_of(view).count("–") == 10
    row = weights[:, 2:3].expand(2, 5, 5)
    padded = view_heads(row, WORDS, mask=causal[None, None, 2:3])
    assert data_of(padded)["mask"] == [[1, 1, 1, 0, 0]] * 5
    mask = torch.tensor([[True, False], [False, False]])  # the second sees nothing
    assert table_of(view_heads(mask[None].float(), ["a", "b"], mask=mask)) == [
        "1.00",
        *"–––",
    ]


@pytest.mark.parametrize(("size", "tables"), [(24, 1), (25, 0)])
def test_without_scripts_a_long_text_says_what_it_is_and_what_to_do(size, tables):
    markup = view_heads(heads(2, size, size), ["w"] * size)._repr_html_()
    says = f"1 layer, 2 heads, {size} tokens. Run the cell, or trust the notebook"
    assert says in markup and markup.count("<table>") == tables


@pytest.mark.parametrize("tokens", [HOSTILE[:16], HOSTILE[2:], (HOSTILE * 3)[:40]])
def test_hostile_tokens_come_out_as_text(tokens):
    some = heads(2, len(tokens), len(tokens))
    label = '</caption><script>alert("$x$")</script>'
    view = view_heads(some, tokens, labels={(0, 1): label}, title="</title><b>$t$</b>")
    markup, parsed, data = view._repr_html_(), Parsed(view), data_of(view)
    for tag, attributes in parsed.tags:
        assert set(attributes) <= set(KEPT[tag]), (tag, attributes)
    assert markup.count("<script") == markup.count("</script") == 1
    assert "http" not in markup and "url(" not in markup and "@import" not in markup
    assert all(letter == "\n" or letter.isprintable() for letter in markup)
    texts = "".join(parsed.texts)
    assert "</title><b>$t$</b>" in texts
    if len(tokens) < 25:
        assert all(visible(token) in texts for token in tokens)
        assert f"layer 0, head 1: {label}" in texts
    # MathJax skips <code>; elsewhere nothing stands between two dollars in one text
    outside = re.sub(r"<script>.*?</script>|<code>.*?</code>", "", markup, flags=re.S)
    assert not re.search(r"\$[^<]+\$|\\\(", re.sub(r'"[^"]*"', "", outside))
    # the script is given JSON that HTML cannot misread
    (payload,) = re.findall(r"viewHeads\(.*\);\n", "".join(parsed.scripts))
    assert not set("<>&") & set(payload) and payload.isascii()
    assert data["title"] == "</title><b>$t$</b>" and data["labels"] == [["", label]]
    assert [words for words, _ in data["tokens"]] == list(map(visible, tokens))


def test_the_script_asks_for_nothing_and_keeps_nothing():
    script = "".join(Parsed(view_heads(heads(1, 2, 2), ["a", "b"])).scripts)
    for word in (
        "fetch import( XMLHttpRequest WebSocket localStorage sessionStorage cookie "
        "eval innerHTML outerHTML insertAdjacentHTML document.write Image( Date "
        "currentScript Math.random http // .src .href"
    ).split():
        assert word not in script, word


def test_each_view_has_its_own_name():
    """Made of what it holds, not of a seed, a clock or an address."""
    made = [({"seed": seed}, {}) for seed in range(9)] + [({}, {"title": "another"})]
    views = [view_heads(heads(2, 5, 5, **w), WORDS, **o) for w, o in 2 * made]
    names = [
        re.search(r'viewHeads\("(\w{12})"', view._repr_html_())[1] for view in views
    ]
    assert names[:10] == names[10:] and len({*names}) == 10


@pytest.mark.parametrize(
    ("tokens", "groups"),
    [
        ("[CLS] a [SEP] b [SEP]", [("[CLS]", [0]), ("[SEP]", [2, 4])]),
        ("the cat", [("first token", [0])]),
        ("b </s>", [("first token", [0]), ("</s>", [1])]),
    ],
)
def test_what_can_be_hidden(tokens, groups):
    tokens = tokens.split()
    data = data_of(view_heads(heads(1, len(tokens), len(tokens)), tokens))
    assert [tuple(group.values()) for group in data["hide"]] == groups
    special = [i for i, token in enumerate(tokens) if token[0] in "[<"]
    assert data["special"] == special


@pytest.mark.parametrize("layers, count", [(12, 12), (30, 9)])
def test_large_views_are_small(layers, count):
    """BERT's size, and SmolLM2's, with 64 tokens: a weight takes less than 2 bytes."""
    view = view_heads([heads(count, 64, 64)] * layers, ["Ġtoken"] * 64)
    weights = layers * count * 64 * 64
    assert weights < len(view._repr_html_().encode()) < 1.8 * weights


Q, K, FROM_QK = features_of(sharp=3.0)
W, view = heads(2, 5, 5), partial(view_heads, tokens=WORDS)
REFUSED = r"""
one sentence | view(W.expand(2, 2, 5, 5))
one sentence | view(W[0])
list\(weights\) | view(W.expand(3, 2, 5, 5))
output_attentions=True | view([])
2 tuples of layers.*attentions\[0\] | view(((W, W), (W[..., :1, :],)))
one sentence | view([W, W[..., :4]])
NaN | view(W * torch.nan)
after the softmax | view(W - 0.5)
dropout | view(W * 0.7)
swapped | view(W.mT)
2 MB.*fewer layers | view(heads(30, 300, 300), tokens=["w"] * 300)
4 words for weights | view(W, tokens=WORDS[1:])
\(5, 3\); give a word | view(W[..., :3])
True = may be | view(W, mask=torch.ones(5, 5))
mask has shape | view(W, mask=torch.ones(4, 4) > 0)
hides the key | view(W, mask=torch.eye(5) > 0)
\(0, 2\) | view(W, labels={(0, 2): "x"})
\(0, 0\) | view(W, labels={(0, 0): "x"}, layers=[3])
\(0, 1\) | view(FROM_QK[None], features={(0, 1): (Q, K)})
differ by | view(FROM_QK[None], features={(0, 0): (K, Q)})
for 1 layers | view(W, layers=[3, 4])
for 2 layers | view([W, W], layers=[3, 3])
"""
test_what_would_be_a_false_view_is_refused = guards(REFUSED, globals())
