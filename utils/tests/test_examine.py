"""`examine` accepts right layers of many kinds, and finds and names wrong ones."""

import math
import sys
from functools import partial

import pytest
import torch
from torch import nn

from utils.attention import MultiHeadAttention
from utils.examine import ON_PURPOSE, Finding, Report, examine, main
from utils.exercises.catalogue import NOTEBOOKS, read_page
from utils.exercises.known_layers import KnownMistake, mistakes_of
from utils.positions import ALiBi, Rotary, T5Bias
from utils.tests.layers_right_and_wrong import (
    FAULTS,
    RIGHT,
    AddedPositions,
    D,
    E,
    H,
    MaskOfFirstQuery,
    RelativeShift,
    ScaleInSingle,
    Separate,
    SingleTable,
    Stacked,
    TwoLayers,
)

TORCH = {
    "batch first": {"batch_first": True},
    "sequence first": {},
    "no bias": {"bias": False, "batch_first": True},
    "bias_kv": {"add_bias_kv": True, "batch_first": True},
    "zero_attn": {"add_zero_attn": True, "batch_first": True},
}
OURS = {
    "plain": {},
    "grouped": {"num_kv_heads": 2},
    "rotary": {"position": Rotary(D)},
    "alibi": {"position": ALiBi(H)},
    "t5": {"position": T5Bias(H)},
    "dropout": {"dropout": 0.5},
}
# as layers these are what right layers do, too: another name, another convention
CONVENTIONS = {
    "1.3": "query and key exchanged, inverted mask, mask added as ones, "
    "a causal mask instead of None",
    "2.1": "tokens not moved, x taken for (batch, called more than once",
    "2.2": "causal mask, batch taken for length, w_q, w_k and w_v in other roles",
}


RIGHT_LAYERS = {kind.__name__: kind for kind in RIGHT}
for name, options in OURS.items():
    RIGHT_LAYERS[f"ours, {name}"] = partial(MultiHeadAttention, E, H, **options)
for name, options in TORCH.items():
    RIGHT_LAYERS[f"torch, {name}"] = partial(nn.MultiheadAttention, E, H, **options)


def meant(mistake):
    """Return the verdict on what is a mistake, or done on purpose."""
    return f"No fault was found, if this is meant: {mistake}."


@pytest.mark.parametrize("name", RIGHT_LAYERS)
def test_a_right_layer_is_accepted(name):
    torch.manual_seed(0)
    heads = 1 if name == "PlainMatrices" else H
    call = causal_unless if name == "RelativeShift" else None
    report = examine(RIGHT_LAYERS[name](), E, heads, call=call)
    assert report.right and report.mistake is None, str(report)


@pytest.mark.parametrize("name, mistake, kind", FAULTS)
def test_a_wrong_layer_is_found_and_named(name, mistake, kind):
    torch.manual_seed(0)
    report = examine(kind(), E, H)
    assert report.mistake == mistake, str(report)
    assert report.right == (report.verdict == meant(mistake)) == (mistake in ON_PURPOSE)


@pytest.mark.parametrize(
    "name, said, unsaid",
    [
        ("drops_in_eval", "calls differ in eval mode", "batch"),
        ("by_text", "something else in a batch than alone", "mask"),
        ("later_only", "is the mask inverted?", "grows"),
        ("not_itself", "earlier ones, but not itself", "sees itself"),
        ("after", 'of the kind "True shows" leaves a trace', "seen, though"),
    ],
)
def test_a_report_says_what_is_true_and_nothing_else(name, said, unsaid):
    torch.manual_seed(0)
    (kind,) = (kind for each, _, kind in FAULTS if each == name)
    report = str(examine(kind(), E, H))
    assert said in report and unsaid not in report, report


def masked(layer, x, mask):
    """Call a decoder's layer of `transformers`, causal, with positions."""
    added = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1).to(x)[None, None]
    if mask is not None and mask.dtype == torch.bool:
        added = added.masked_fill(~mask, -math.inf)
    elif mask is not None:
        added = added + mask
    places = layer.rotary(x, torch.arange(x.shape[1])[None])
    return layer.attention(x, position_embeddings=places, attention_mask=added)


class WithRotary(nn.Module):
    """A layer of `transformers` and its rotary embeddings, in the hand of `masked`."""

    def __init__(self, attention, rotary):
        super().__init__()
        self.attention, self.rotary = attention, rotary

    def forward(self, x):
        return masked(self, x, None)


def of_transformers(name):
    """Return (layer, call) of an attention layer of `transformers`."""
    import transformers.models as models

    sizes = {"hidden_size": E, "num_attention_heads": H, "intermediate_size": 2 * E}
    eager = {"attn_implementation": "eager"}
    grouped = sizes | eager | {"num_key_value_heads": 2, "head_dim": D}
    bert = models.bert.modeling_bert
    gpt2, t5 = models.gpt2.modeling_gpt2, models.t5.modeling_t5
    llama = models.llama.modeling_llama
    if name == "BERT":
        config = models.bert.BertConfig(**sizes, **eager)
        return bert.BertSelfAttention(config), None
    if name == "GPT-2":
        config = models.gpt2.GPT2Config(n_embd=E, n_head=H, **eager)
        return gpt2.GPT2Attention(config, layer_idx=0), None
    if name == "GPT-Neo":  # without a scale
        neo = models.gpt_neo
        layers = {"num_layers": 1, "attention_types": [[["global"], 1]]}
        config = neo.GPTNeoConfig(hidden_size=E, num_heads=H, **layers, **eager)
        return neo.modeling_gpt_neo.GPTNeoAttention(config), None
    if name == "T5":
        options = {"d_model": E, "d_kv": D, "num_heads": H}
        config = models.t5.T5Config(**options, **eager)
        layer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
        return layer, lambda layer, x, mask: layer(
            x, mask=mask, query_length=x.shape[1]
        )
    config = models.llama.LlamaConfig(**grouped)
    layer = llama.LlamaAttention(config, 0)
    return WithRotary(layer, llama.LlamaRotaryEmbedding(config)), masked


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "GPT-Neo", "T5", "Llama"])
def test_a_layer_of_transformers_is_accepted(name):
    torch.manual_seed(0)
    layer, call = of_transformers(name)
    report = examine(layer, E, H, call=call)
    assert report.right, str(report)


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
        attend = KnownMistake("", "", SELF, "", False).function(None)
        return self.function(attend, x.transpose(0, 1), H).transpose(0, 1) @ ws[0].mT


class OfOneHead(FromExercise):
    """A layer that computes what an answer to exercise 1.3 computes."""

    def forward(self, x, mask=None):
        *ws, out = (module.weight.mT for module in self.children())
        return self.function(x, *ws, mask)[0] @ out


SELF = "def attend(x):\n    return scaled_dot_product_attention(x, x, x)[0]\n"


def of_exercise(exercise):
    """Return {name: layers} of the known mistakes that differ from a right layer."""
    (page,) = NOTEBOOKS.glob(f"0{exercise[0]}_*.ipynb")
    solution = read_page(page)[exercise][2]
    right = KnownMistake("", "", solution, "", False).function(None)
    x, mask = torch.randn(3, 8, E), torch.ones(8, 8, dtype=torch.bool).tril()
    kind = OfOneHead if exercise == "1.3" else FromExercise
    inputs = [(x,), (x, mask)] if exercise == "1.3" else [(x,)]
    found = {}
    for mistake in mistakes_of(exercise):
        torch.manual_seed(1)
        layer = kind(exercise, mistake.function(None))
        reference = kind(exercise, right)
        reference.load_state_dict(layer.state_dict())
        try:
            gives = [layer(*each) for each in inputs]
        except Exception:  # a mistake that raises an error is found by everyone
            continue
        wanted = [reference(*each) for each in inputs]
        differs = any(
            a.shape != b.shape or not torch.allclose(a, b, atol=1e-4)
            for a, b in zip(gives, wanted)
        )
        known = CONVENTIONS[exercise]
        if differs and mistake.name.split(", length")[0] not in known:
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


def causal_unless(layer, x, mask):
    """Call a layer with a causal mask, in whose place another mask comes."""
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return layer(x, causal if mask is None else mask)


def test_a_mask_may_replace_the_causal_one_that_a_call_gives():
    report = examine(Stacked(), E, H, call=causal_unless)
    assert report.right and report.mistake is None, str(report)


def test_matrices_in_other_roles_than_their_names_are_noted():
    layer = Separate()
    layer.w_q.forward, layer.w_k.forward = layer.w_k.forward, layer.w_q.forward
    report = examine(layer, E, H)
    assert report.right and "other roles than their names" in str(report)


@pytest.mark.parametrize("heads", [1, 2, 6])
def test_another_number_of_heads_is_asked(heads):
    report = examine(Stacked(E, heads), E, H)
    asked = f"equal with {heads} head" in str(report) and "is num_heads right?" in str(
        report
    )
    assert report.right and asked, str(report)
    assert "could not" not in report.verdict and "if this is meant" in report.verdict


def test_a_mask_that_is_taken_in_a_shape_and_does_something_else_is_asked():
    report = examine(MaskOfFirstQuery(), E, H)
    other = "but in shape (length, length) or (batch, 1, length, length) it hides"
    assert other in str(report) and report.verdict == meant("mask"), str(report)


def test_masks_hide_exactly_in_two_layers_and_in_the_place_of_a_causal_one():
    report = examine(TwoLayers(), E, H)
    assert "hides exactly" in str(report) and "meant" not in report.verdict, str(report)
    report = examine(RelativeShift(), E, H, call=causal_unless)
    assert "hides exactly: True shows, in shape (length, length)" in str(report)


def test_a_verdict_asks_for_the_mistake_and_for_the_rest():
    layer = type("Odd", (MaskOfFirstQuery,), {"scale": lambda self, q: 1.0})()
    assert examine(layer, E, H).verdict == meant("no scale, mask")


def test_zeros_that_were_not_tried_are_named():
    layer = AddedPositions()
    nn.init.zeros_(layer.pos_embedding)
    assert "pos_embedding is 0, and not tried" in str(examine(layer, E, H))


def test_a_scale_in_single_precision_does_not_hide_the_numbers():
    report = examine(ScaleInSingle(), E, H)
    assert report.verdict == "No fault was found.", str(report)


def test_a_layer_that_cannot_run_in_double_precision_runs_in_single():
    report = examine(SingleTable(), E, H)
    assert report.verdict == "No fault was found.", str(report)
    assert "single precision" in str(report) and "softmax(QKᵀ/√d)V" in str(report)
    wrong = type("Wrong", (SingleTable,), {"scale": lambda self, q: E**-0.5})
    assert examine(wrong(), E, H).mistake == "√embed_dim"


def test_numbers_that_are_nan_have_no_name():
    report = examine(Stacked(), E, H, call=lambda layer, x, mask: x * math.nan)
    assert not report.right and report.mistake is None, str(report)


def test_grouped_heads_without_a_scale_are_named():
    layer = MultiHeadAttention(E, H, num_kv_heads=2)
    layer.attend = lambda q, k, v, *rest: MultiHeadAttention.attend(
        layer, q * D**0.5, k, v, *rest
    )
    assert examine(layer, E, H).mistake == "no scale"


def test_layer_mode_and_random_numbers_stay_as_they_were():
    layer = Stacked().train()
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    state = torch.get_rng_state()
    examine(layer, E, H)
    assert torch.equal(torch.get_rng_state(), state) and layer.training
    for name, x in layer.state_dict().items():
        assert x.dtype == torch.float32 and torch.equal(x, before[name])


def only_three(layer, x, mask):
    """Call a layer that takes at most three texts."""
    return layer(x[:3], x[: len(x)])


def test_bad_input_gets_a_sentence():
    with pytest.raises(TypeError, match="give an nn.Module, such as Layer"):
        examine(Stacked, E, H)
    for sizes in ((E, 5), (E, 0), (-E, -H), (float(E), H), ("24", H)):
        with pytest.raises(ValueError, match=f"num_heads={sizes[1]} must divide"):
            examine(Stacked(), *sizes)
    with pytest.raises(RuntimeError, match="refuses 9 texts of 8 tokens"):
        examine(nn.Bilinear(E, E, E), E, H, call=only_three)
    with pytest.raises(RuntimeError, match=r"could not be run: .*\n.*say how: examine"):
        examine(Stacked(12, 4), E, H)
    with pytest.raises(RuntimeError, match="gave a dict; give a call"):
        examine(Stacked(), E, H, call=lambda layer, x, mask: {"output": layer(x)})


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
    "utils/__init__.py": "",
    "utils/parts.py": LAYER,
    "model/own_utils.py": "from utils.parts import Layer",
    "package/__init__.py": "from package.uses import Layer",
    "package/parts.py": LAYER,
    "package/uses.py": "from .parts import Layer",
    "package/inner/__init__.py": "",
    "package/inner/parts.py": "from ..parts import Layer",
    "package/inner/uses.py": "from .parts import Layer",
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
        ("model/own_utils.py:Layer", 0, "No fault was found."),
        ("utils/parts.py:Layer", 0, "No fault was found."),
        ("package/uses.py:Layer", 0, "No fault was found."),
        ("package/inner/uses.py:Layer", 0, "No fault was found."),
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


@pytest.mark.usefixtures("imports")
def test_the_command_line_on_a_file_that_uses_the_course(tmp_path, capsys):
    text = "from utils.attention import MultiHeadAttention as Layer"
    (tmp_path / "course.py").write_text(text)
    place = f"{tmp_path / 'course.py'}:Layer"
    assert main([place, "--embed-dim", "8", "--heads", "2"]) == 0, capsys.readouterr()
