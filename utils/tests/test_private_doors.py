"""torch's private doors that the course goes through: what, why, and whether it opens.

A name of torch that begins with one underscore is not promised to stay. Each that is
used stands here with a test, which runs on the lowest and on the newest torch.
"""

import ast
import json
import re
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.profiler_legacy import profile

from utils.baselines import untrained_copy
from utils.positions import ALiBi, alibi_slopes

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve()
DOORS = {}  # the private name -> the files that use it, why, and the test


def door(name, *files, why):
    """Enter a private name into the table; the decorated function tries it."""

    def enter(test):
        DOORS[name] = (set(files), why, test)
        return test

    return enter


@door(
    "_apply",
    "utils/positions.py",
    why="there is no public hook of .to() and .half(), which rounds ALiBi's slopes",
)
def moved():
    model = nn.Sequential(ALiBi(6))
    for cast in (nn.Module.half, nn.Module.double, nn.Module.bfloat16):
        assert torch.equal(cast(model)[0].slopes, alibi_slopes(6))
    empty = model.to("meta").to_empty(device="cpu")
    assert torch.equal(empty[0].slopes, alibi_slopes(6))


@door(
    "_tensor_str",
    "utils/exercises/running.py",
    why="nothing public tells what torch.set_printoptions has set",
)
def printed():
    before = str(torch.ones(1) / 3)
    with torch._tensor_str.printoptions():
        torch.set_printoptions(precision=9)
        assert str(torch.ones(1) / 3) != before
    assert str(torch.ones(1) / 3) == before


@door(
    "_reset_parameters",
    "utils/baselines.py",
    why="nn.MultiheadAttention and nn.Transformer have no public reset_parameters",
)
def reset():
    layer = nn.MultiheadAttention(8, 2)
    assert not hasattr(layer, "reset_parameters")
    nn.init.zeros_(layer.in_proj_weight)
    assert untrained_copy(layer, seed=0).in_proj_weight.std() > 0.1


@door(
    "_forward_hooks",
    "utils/tests/test_interventions.py",
    "utils/tests/test_properties_of_heads.py",
    "utils/tests/test_recording.py",
    why="no public name lists the hooks of a module, of which none may be left behind",
)
def hooks():
    layer = nn.Linear(2, 2)
    with layer.register_forward_hook(print):
        assert list(layer._forward_hooks.values()) == [print]
    assert not layer._forward_hooks


@door(
    "_forward_pre_hooks",
    "utils/tests/test_interventions.py",
    "utils/tests/test_properties_of_heads.py",
    "utils/tests/test_recording.py",
    why="as _forward_hooks",
)
def pre_hooks():
    layer = nn.Linear(2, 2)
    with layer.register_forward_pre_hook(print):
        assert list(layer._forward_pre_hooks.values()) == [print]
    assert not layer._forward_pre_hooks


@door(
    "_python_dispatch",
    "notebooks/10_fast_attention.ipynb",
    "notebooks/deeper/10_fast_attention.ipynb",
    why="TorchDispatchMode, documented, has no public place; it sees which kernel runs",
)
def dispatch():
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            names.append(operation.overloadpacket.__name__)
            return operation(*args, **(kwargs or {}))

    x = torch.randn(1, 2, 64, 8)
    with Watch():
        F.scaled_dot_product_attention(x, x, x)
    assert any("flash" in name for name in names)


@pytest.mark.parametrize("name", DOORS)
def test_the_door_opens(name):
    DOORS[name][2]()


def fast_path(name, layer, *inputs):
    """Both doors show a call without gradients, and none while the layer trains."""
    with patch.object(torch, name, wraps=getattr(torch, name)) as spy:
        layer.train()(*inputs)
        assert not spy.called
        with torch.no_grad():
            layer.eval()(*inputs)
        assert spy.called


@door(
    "_native_multi_head_attention",
    "notebooks/deeper/03_nn_multihead_attention.ipynb",
    why="nothing public says whether a call took the fast path",
)
def attention_path():
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    fast_path("_native_multi_head_attention", layer, x, x, x)


@door(
    "_transformer_encoder_layer_fwd",
    "notebooks/deeper/03_nn_multihead_attention.ipynb",
    why="as _native_multi_head_attention, for the layer of a transformer",
)
def encoder_path():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    fast_path("_transformer_encoder_layer_fwd", layer, torch.randn(1, 3, 8))


@door(
    "_softmax",
    "notebooks/deeper/03_nn_multihead_attention.ipynb",
    why="the profiler calls the operator so; it shows that the weights are written out",
)
def operator():
    with profile() as record:
        torch.randn(2, 2).softmax(-1)
    assert "aten::_softmax" in [event.name for event in record.function_events]


# --- the table is whole ---

PARTS = ("utils/**/*", ".ci/*", "notebooks/**/*.ipynb", "notebooks/*.py", "assets/**/*")
PLACES = [torch, torch.Tensor, torch.nn, F, nn.Module(), nn.MultiheadAttention(2, 1)]


def sources():
    """Yield (file, its Python) of the package, its tests, .ci and the notebooks."""
    for path in (path for part in PARTS for path in ROOT.glob(part)):
        name = path.relative_to(ROOT).as_posix()
        mine = path.suffix in (".py", ".ipynb", "") and path.is_file()
        if not mine or path == HERE:
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            code = [c["source"] for c in cells if c["cell_type"] == "code"]
            yield name, "\n".join(map("".join, code))
        elif path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
            yield name, text


def private_names(code):
    """The names of torch with one underscore in front that some Python code uses."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [getattr(node, "module", None), *(n.name for n in node.names)]
            path = ".".join(filter(None, modules)).split(".")
            names = filter(re.compile("_[a-zA-Z]").match, path)
            found |= set(names) if path[0] == "torch" else set()
        names = [getattr(node, "attr", None)]  # x._name
        names += [getattr(node, "value", None)]  # getattr(x, "_name")
        if isinstance(node, ast.ClassDef):  # a method of torch written anew
            names += [getattr(each, "name", None) for each in node.body]
        for name in names:
            if isinstance(name, str) and re.fullmatch("_[a-zA-Z]\\w*", name):
                found |= {name} if any(hasattr(x, name) for x in PLACES) else set()
    return found


def test_the_table_is_whole():
    found = {}
    for file, code in sources():
        for name in private_names(code):
            found.setdefault(name, set()).add(file)
    assert found == {name: files for name, (files, _, _) in DOORS.items()}


@pytest.mark.parametrize(
    "code",
    [
        "torch._C.x",
        "x._version",
        "getattr(x, '_version')",
        "import torch._dynamo",
        "import torch._dynamo as d",
        "from torch import _dynamo",
        "from torch._tensor_str import get_printoptions",
        "from torch.nn.modules.module import _global_forward_hooks",
        "class A(nn.Module):\n    def _apply(self, fn): ...",
    ],
)
def test_a_private_name_is_found(code):
    assert len(private_names(code)) == 1


@pytest.mark.parametrize(
    "code", ["a._asdict()", "x.__dict__", "import _thread", "_ = '_'", "self._run()"]
)
def test_other_names_are_left_alone(code):
    assert private_names(code) == set()
