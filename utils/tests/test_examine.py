"""`examine` accepts right layers of many kinds, and finds and names wrong ones."""

import copy
import math
import re
import sys
from functools import cache, partial
from importlib import import_module

import pytest
import torch
from torch import nn

from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.examine import Finding, Report, examine
from utils.examine.__main__ import main
from utils.examine.inside import ON_PURPOSE
from utils.examine.known_layers import mistakes_of
from utils.examine.probe import Probe
from utils.exercises.catalogue import exercises
from utils.tests.layers_right_and_wrong import (
    ASKED,
    FAULTS,
    RIGHT,
    D,
    E,
    H,
    RelativeShift,
    Separate,
    Stacked,
    meant,
    variant,
    zeroed,
)

# as layers these are what right layers do, too: another name, another convention
CONVENTIONS = {
    "1.3": "query and key exchanged, inverted mask, mask added as ones, "
    "a causal mask instead of None",
    "2.1": "tokens not moved, x taken for (batch, called more than once",
    "2.2": "causal mask, batch taken for length, w_q, w_k and w_v in other roles",
}

# forms that compute the same as a layer, and why
EQUAL = {
    "√d instead of √d_k": "a layer's queries have as many features as x: d = d_k",
    "√d_v instead of √d_k": "and its values have as many as its queries",
    "other axes of key swapped": "x has three axes, so 1 and 2 are the last two",
    "scores returned instead of weights": "the output is right, and a layer's own",
    "weights without the mask": "the output is right, and a layer's own",
    "a gradient cut off": "of the returned weights only; the output's is whole",
    "batch and heads not joined": "attention takes any axes in front",
    "heads before sentences": "each head of each text is attended to on its own",
    "called more than once": "each head of each text is attended to on its own",
    "size of the heads taken from x": "w_q is square: x has as many features",
    "size of the heads taken from w_o": "w_o is square: it has as many rows as w_q",
    "scale taken from x": "w_q is square: x has as many features",
}
# fills of -1e4 and -1e9, which right layers use, too: only lower scores are hidden less
LOW, LOW_ENOUGH = "a fill that is not low enough", ("-1e4", "-1e9")


@cache
def report_on(make, heads=H):
    """Return the report on a layer of seed 0; several tests ask for the same one."""
    torch.manual_seed(0)
    return examine(make(), E, heads)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_layer_is_accepted(name):
    report = report_on(RIGHT[name], heads=1 if name == "PlainMatrices" else H)
    assert report.right and report.mistake is None, str(report)


class ComplexRotary(Stacked):
    """RoPE as Llama first wrote it: a complex buffer."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(512)[:, None] / 10.0 ** torch.arange(D // 2)
        self.register_buffer("turns", torch.polar(torch.ones(512, D // 2), angles))

    def heads(self, x):
        *turned, v = super().heads(x)
        pairs = [torch.view_as_complex(y.unflatten(-1, (-1, 2))) for y in turned]
        pairs = [torch.view_as_real(y * self.turns[: y.shape[-2]]) for y in pairs]
        return *(y.flatten(-2).to(x) for y in pairs), v


def test_a_complex_buffer_stays_complex():
    probe = Probe(layer := ComplexRotary(), E, H, None)
    output = layer.double()(probe.x)
    assert (probe.output - output).abs().max() < 1e-6


@pytest.mark.parametrize("kind, mistake, checks", FAULTS)
def test_a_wrong_layer_is_found_and_named(kind, mistake, checks):
    report = report_on(kind)
    assert report.mistake == mistake, str(report)
    failed = [found.check for found in report.findings if found.ok is False]
    assert ", ".join(failed) == checks, str(report)
    assert report.right == (report.verdict == meant(mistake))
    assert not report.right or mistake in ON_PURPOSE


def masked(layer, x, mask):
    """Call a decoder's layer of `transformers`, causal, with positions."""
    added = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1).to(x)[None, None]
    if mask is not None and mask.dtype == torch.bool:
        added = added.masked_fill(~mask, -math.inf)
    elif mask is not None:
        added = added + mask
    places = layer.rotary(x, torch.arange(x.shape[1])[None])
    return layer.attention(x, position_embeddings=places, attention_mask=added)


def with_length(layer, x, mask):
    """Call a layer of T5."""
    return layer(x, mask=mask, query_length=x.shape[1])


class WithRotary(nn.Module):
    """A layer of `transformers` and its rotary embeddings, in the hand of `masked`."""

    def __init__(self, attention, rotary):
        super().__init__()
        self.attention, self.rotary = attention, rotary

    def forward(self, x):
        return masked(self, x, None)


SIZES = {"hidden_size": E, "num_attention_heads": H}
FEW_KEYS = SIZES | {"num_key_value_heads": 2, "head_dim": D}
NEO = {"num_layers": 1, "attention_types": [[["global"], 1]]}
FIRST, BIASED = {"layer_idx": 0}, {"has_relative_attention_bias": True, "layer_idx": 0}
OF_TRANSFORMERS = {  # name: module, class, its sizes, its other arguments, call
    "BERT": ("bert", "BertSelfAttention", SIZES, {}, None),
    "GPT-2": ("gpt2", "GPT2Attention", SIZES, FIRST, None),
    # without a scale
    "GPT-Neo": ("gpt_neo", "GPTNeoAttention", SIZES | NEO, {}, None),
    "T5": ("t5", "T5Attention", SIZES | {"d_kv": D}, BIASED, with_length),
    "Llama": ("llama", "LlamaAttention", FEW_KEYS, FIRST, masked),
    "Gemma": ("gemma", "GemmaAttention", FEW_KEYS, FIRST, masked),
    "Qwen3": ("qwen3", "Qwen3Attention", FEW_KEYS, FIRST, masked),
}


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_a_layer_of_transformers_is_accepted(name):
    torch.manual_seed(0)
    place, kind, sizes, others, call = OF_TRANSFORMERS[name]
    code = import_module(f"transformers.models.{place}.modeling_{place}")
    family = re.sub("(Self)?Attention", "", kind)
    config = getattr(code, f"{family}Config")(**sizes, attn_implementation="eager")
    layer = getattr(code, kind)(config, **others)
    if call is masked:
        layer = WithRotary(layer, getattr(code, f"{family}RotaryEmbedding")(config))
    report = examine(layer, E, H, call=call)
    assert report.right, str(report)


def attend(x):
    """Return self-attention without projections, as exercise 2.1 gives it."""
    return scaled_dot_product_attention(x, x, x)[0]


class FromExercise(nn.Module):
    """A layer that computes what an answer to exercise 2.1 or 2.2 computes."""

    def __init__(self, exercise, function):
        super().__init__()
        self.exercise, self.function = exercise, function
        roles = "o" if exercise == "2.1" else "qkvo"
        for role in roles:
            setattr(self, f"w_{role}", nn.Linear(E, E, bias=False))

    def forward(self, x):
        ws = [module.weight for module in self.children()]
        if self.exercise == "2.2":
            return self.function(x, *ws, H)
        return self.function(attend, x.transpose(0, 1), H).transpose(0, 1) @ ws[0].mT


class OfOneHead(FromExercise):
    """A layer that computes what an answer to exercise 1.3 computes."""

    def forward(self, x, mask=None):
        *ws, out = (module.weight.mT for module in self.children())
        return self.function(x, *ws, mask)[0] @ out


def of_exercise(exercise):
    """Return {name: layers} of the known mistakes that differ from a right layer."""
    x, mask = torch.randn(3, 8, E), torch.ones(8, 8, dtype=torch.bool).tril()
    kind = OfOneHead if exercise == "1.3" else FromExercise
    inputs = [(x,), (x, mask)] if exercise == "1.3" else [(x,)]
    torch.manual_seed(1)
    reference, found = kind(exercise, exercises()[exercise].reference), {}
    wanted = [reference(*each) for each in inputs]
    for mistake in mistakes_of(exercise):
        layer = copy.deepcopy(reference)
        layer.function = mistake.function(None)
        try:
            gives = [layer(*each) for each in inputs]
        except Exception:  # a mistake that raises an error is found by everyone
            continue
        same = all(a.shape == b.shape and a.allclose(b) for a, b in zip(gives, wanted))
        if mistake.name in EQUAL and same:  # another form of it may differ
            continue
        low = mistake.name == LOW and any(x in mistake.code for x in LOW_ENOUGH)
        known = CONVENTIONS[exercise]
        if not low and mistake.name.split(", length")[0] not in known:
            found.setdefault(mistake.name, []).append(layer)
    return found


NAMED = [("1.3", 0.85), ("2.1", 0.3), ("2.2", 0.9)]  # without projections: a third


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("exercise, share", NAMED)
def test_known_mistakes_are_found_and_most_of_them_named(exercise, share):
    heads = 1 if exercise == "1.3" else H
    reports = {
        name: [examine(layer, E, heads) for layer in layers]
        for name, layers in of_exercise(exercise).items()
    }
    each = [report for every in reports.values() for report in every]
    missed = [r for r in each if r.right and r.verdict != meant(r.mistake)]
    assert len(each) >= 15 and len(missed) <= len(each) / 20, missed
    assert sum(report.mistake is not None for report in each) >= share * len(each)


def roles_exchanged():
    layer = Separate()
    layer.w_q.forward, layer.w_k.forward = layer.w_k.forward, layer.w_q.forward
    return layer


def grouped_without_scale():
    layer = MultiHeadAttention(E, H, num_kv_heads=2)
    layer.attend = lambda q, *rest: MultiHeadAttention.attend(layer, q * D**0.5, *rest)
    return layer


def has_run():
    """Return a layer that keeps its last weights, and has run."""
    layer = Stacked()
    layer.kept = [layer(torch.randn(1, 3, E))]
    layer.register_buffer("cache", layer.kept[0] + 1)
    return layer


def filled_with(number, added=False):
    """Return a right layer of large weights, whose masks are filled with a number."""

    def hide(self, scores, mask):
        return scores + number * ~mask if added else scores.masked_fill(~mask, number)

    layer = variant("Filled", hide=hide)()
    nn.init.normal_(layer.qkv.weight)
    return layer


def one_for_both():
    """Return a layer whose key projection is never used."""
    layer = Separate()
    layer.w_k.forward = layer.w_q.forward
    return layer


def in_a_closure(lin=None, used=True):
    """Return a layer whose class keeps a module that the layer has, too."""
    lin = lin or nn.Linear(E, E, bias=False)

    layer = variant("Kept", before=lambda self, x: lin(x) if used else x)()
    layer.lin = lin
    return layer


KINDS = RIGHT | {kind.__name__: kind for kind, *_ in FAULTS}
FROZEN = nn.Linear(E, E).requires_grad_(False)
scripted = partial(torch.jit.script, nn.Identity())
SAID = [  # layer, or its name, what its report says, what it does not say
    (partial(filled_with, -1e4), "meant: a fill that is not low enough.", "WRONG"),
    (partial(filled_with, -1e4, True), "if this is meant: with a mask.", "WRONG"),
    (partial(filled_with, -1e9), "No fault was found.", "with a mask"),
    ("drops_in_eval", "calls differ in eval mode", "batch"),
    ("by_text", "something else in a batch than alone", "mask"),
    ("later_only", "is the mask inverted?", "grows"),
    ("not_itself", "earlier tokens, but not itself", "sees itself"),
    ("after", 'of the kind "True shows" leaves a trace', "seen, though"),
    ("rotary_merge", "heads or tokens are mixed up", "a sink"),
    ("rotary_after", "weights are hidden after the softmax", "a sink"),
    ("rotary_queries", "the softmax is over another axis", "a sink"),
    ("normed_queries", "the weights of a key sum to 1", "same sum"),
    (roles_exchanged, "other roles than their names", "wrong"),
    (partial(Stacked, E, 1), "equal with 1 head(s): is num_heads right?", "could not"),
    (partial(Stacked, E, 6), "equal with 6 head(s): is num_heads right?", "could not"),
    ("TwoLayers", "hides exactly", "meant"),
    (
        partial(zeroed, RIGHT["AddedPositions"], "pos_embedding"),
        "pos_embedding is 0, and not tried",
        "wrong",
    ),
    ("ScaleInSingle", "softmax(QKᵀ/√6)V, equal to 1e-6", "single"),
    ("SingleTable", "it runs in single precision only", "could not"),
    ("SharpCosines", "not causal: every token sees every token", "meant"),
    ("SoftCap", meant("large scores"), "with a mask"),
    ("SoftmaxInSingle", "shuffled tokens give shuffled outputs", "meant"),
    ("zeros_hidden", "NaN comes out if all scores of a query are 0", "seen"),
    (grouped_without_scale, meant("no scale"), "wrong"),
    (has_run, "4 heads: softmax(QKᵀ/√6)V, equal to 1e-12", "meant"),
    (scripted, "no token sees another", "could not be run"),
    (partial(nn.TransformerEncoderLayer, E, H, 32), "it takes (length,", "padding"),
    ("ShownAsOne", "; 0 hides and 1 shows, in shape", "added"),
    ("scale_lost", "changes the output even where it hides nothing", "exactly"),
    ("DropsPaths", "in training mode: inside", "meant"),
    ("Stacked", "in training mode: none", "meant"),
    ("NamesOfLlama", "4 heads, 2 of keys and values: softmax(QKᵀ/√6)V", "could not"),
    ("Causal", "4 heads, causal: softmax(QKᵀ/√6)V, equal to 1e-12", "biases"),
    ("Prefix", "4 heads, with its pattern: softmax(QKᵀ/√6)V, equal to 1e-12", "biases"),
    ("BiasElsewhere", "V, equal to 1e-12 but for the biases, added elsewhere", "wrong"),
    (one_for_both, "nothing depends on w_k.weight", "w_v.weight"),
    ("FilledInSingle", "other numbers in double precision, so it was run", "meant"),
    ("Closure", "in training mode: on the outputs", "lin.weight"),
    (in_a_closure, "it runs in single precision only", "lin.weight"),
    (partial(in_a_closure, FROZEN), "in training mode: none", "lin.weight"),
    (partial(in_a_closure, used=False), "nothing depends on lin.weight: is", "qkv"),
    ("Separate", "a fill such as -1e9 does not fit float16", "meant"),
    ("KernelMaskInSingle", "it gives other numbers in double precision", "WRONG"),
    ("KernelMaskInSingle", "causal: softmax(QKᵀ/√6)V, equal to 1e-", "window"),
]


@pytest.mark.parametrize("make, said, unsaid", [*SAID, *ASKED])
def test_a_report_says_what_is_true_and_nothing_else(make, said, unsaid):
    report = str(report_on(KINDS.get(make, make)))
    assert said in report and unsaid not in report, report


def causal_unless(layer, x, mask):
    """Call a layer with a causal mask, in whose place another mask comes."""
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return layer(x, causal if mask is None else mask)


@pytest.mark.parametrize("kind", [Stacked, RelativeShift])
def test_a_mask_may_replace_the_causal_one_that_a_call_gives(kind):
    report = examine(kind(), E, H, call=causal_unless)
    assert report.right and report.mistake is None, str(report)
    assert "hides exactly: True shows, in shape (length, length)" in str(report)


class KeysInPlace(Stacked):
    def forward(self, x, padding=None):
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return super().forward(x, causal if padding is None else padding[:, None, None])


def test_a_mask_of_keys_in_place_of_the_causal_one_is_told():
    report = examine(KeysInPlace(), E, H)
    assert report.right and "but comes in place of the layer's own mask" in str(report)


def test_keys_may_come_from_the_call():
    memory = torch.randn(1, 5, E).double()

    def call(layer, x, mask):
        return layer(x, *2 * [memory.expand(len(x), -1, -1)])

    report = examine(Separate(), E, H, call=call)
    assert report.right and "no token sees another: is it meant?" in str(report)


def test_a_call_may_keep_the_layer():
    layer = Stacked()
    report = examine(layer, E, H, call=lambda _, x, mask: layer(x.float(), mask))
    assert "nothing depends on" not in str(report), str(report)


def test_numbers_that_are_nan_have_no_name():
    report = examine(Stacked(), E, H, call=lambda layer, x, mask: x * math.nan)
    assert not report.right and report.mistake is None, str(report)


def test_layer_mode_and_random_numbers_stay_as_they_were():
    norm = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(E), nn.Unflatten(0, (-1, 8)))
    layer = in_a_closure(norm).train()
    layer.out.requires_grad_(False)
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    state = torch.get_rng_state()
    examine(layer, E, H)
    assert torch.equal(torch.get_rng_state(), state) and layer.training
    assert layer.qkv.weight.requires_grad and not layer.out.weight.requires_grad
    for name, x in layer.state_dict().items():
        assert x.dtype == before[name].dtype and torch.equal(x, before[name])


def only_three(layer, x, mask):
    """Call a layer that takes at most three texts."""
    return layer(x[:3], x[: len(x)])


def test_bad_input_gets_a_sentence():
    with pytest.raises(TypeError, match="give an nn.Module, such as Layer"):
        examine(Stacked, E, H)
    for sizes in ((E, 5), (E, 0), (-E, -H), (float(E), H), ("24", H), (E, True)):
        with pytest.raises(ValueError, match=f"num_heads={sizes[1]} must divide"):
            examine(Stacked(), *sizes)
    with pytest.raises(RuntimeError, match="refuses 9 texts of 8 tokens"):
        examine(nn.Bilinear(E, E, E), E, H, call=only_three)
    with pytest.raises(
        RuntimeError, match=r"be run: .* \(x \(3, 8, 24\) was .*\n.*say how: examine"
    ):
        examine(Stacked(12, 4), E, H)
    for given in ({"output": 1}, (1, "a"), ()):
        kind = type(given).__name__
        with pytest.raises(RuntimeError, match=f"gave a {kind}, and no tensor"):
            examine(Stacked(), E, H, call=lambda layer, x, mask, given=given: given)


def test_a_report_is_a_table_and_its_page_is_escaped():
    findings = [Finding("a", True, "<b>"), Finding("c", None, "&")]
    report = Report(findings, None, torch.eye(2, dtype=torch.bool))
    assert str(report).splitlines() == [
        "ok     a              <b>",
        "note   c              &",
        "No fault was found. The numbers could not be compared.",
    ]
    page = report._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page and page.count("#2b6cb0") == 2


LAYER = """
from torch import nn
class Layer(nn.MultiheadAttention):
    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads, batch_first=True)
"""
PROJECT = {  # files of somebody else's
    "neighbour.py": f"SIZE = 8{LAYER}",
    "mine.py": """
from torch import nn
from neighbour import SIZE, Layer
class Wrong(nn.Linear):
    def __init__(self, embed_dim, num_heads):
        super().__init__(embed_dim, embed_dim)
class ByName(Layer):
    def __init__(self, *, embed_dim, num_heads):
        super().__init__(embed_dim, num_heads)
def make():
    return Layer(SIZE, 2)
def ends():
    raise SystemExit(0)
def needs(x):
    return x
layer = make()
""",
    "copy.py": LAYER,  # the name of a module that is loaded
    "course.py": "from utils.attention import MultiHeadAttention as Layer",
    "own/utils/__init__.py": "",
    "own/utils/parts.py": LAYER,
    "own/model/uses.py": "from utils.parts import Layer",
    "bare/utils/parts.py": LAYER,  # without an __init__.py
    "bare/uses.py": "from utils.parts import Layer",
    "package/__init__.py": "from package.uses import Layer",
    "package/parts.py": LAYER,
    "package/uses.py": "from .parts import Layer",
    "package/inner/__init__.py": "",
    "package/inner/parts.py": "from ..parts import Layer",
    "package/inner/uses.py": "from .parts import Layer",
    "package/inner/wave.py": "from wave import Error\nfrom .parts import Layer",
    "loose/parts.py": LAYER,
    "loose/uses.py": "from .parts import Layer",
    "fails.py": "from .nothing import Layer",
}


@pytest.fixture
def imports(monkeypatch):
    """Keep sys.path and sys.modules as they are."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in sys.modules.keys() - before:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.parametrize(
    "place, status, words",
    [
        ("neighbour.py:Layer", 0, "No fault was found."),
        ("mine.py:make", 0, "No fault was found."),
        ("mine.py:layer", 0, "No fault was found."),
        ("mine.py:ByName", 0, "No fault was found."),
        ("mine.py:Wrong", 1, "no token sees another"),
        ("mine.py:Nothing", 2, "has no Nothing"),
        ("mine.py:SIZE", 2, "8 is no layer"),
        ("mine.py:needs", 2, "cannot be called with (8, 2), nor with nothing"),
        ("mine.py:ends", 2, "SystemExit"),
        ("nothing.py:Layer", 2, "No such file"),
        ("copy.py:Layer", 0, "No fault was found."),
        ("course.py:Layer", 0, "No fault was found."),
        ("own/model/uses.py:Layer", 0, "No fault was found."),
        ("own/utils/parts.py:Layer", 0, "No fault was found."),
        ("bare/uses.py:Layer", 0, "No fault was found."),
        ("package/uses.py:Layer", 0, "No fault was found."),
        ("package/inner/uses.py:Layer", 0, "No fault was found."),
        ("package/inner/wave.py:Layer", 0, "No fault was found."),
        ("loose/uses.py:Layer", 0, "No fault was found."),
        ("fails.py:Layer", 2, "No module named"),
    ],
)
@pytest.mark.usefixtures("imports")
def test_the_command_line(place, status, words, tmp_path, capsys):
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert main([f"{tmp_path / place}", "--embed-dim", "8", "--heads", "2"]) == status
    said = capsys.readouterr()
    assert words in (said.out if status < 2 else said.err)
