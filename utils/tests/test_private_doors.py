"""torch's private doors that the course goes through: why, and whether each opens.

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

ROOT, HERE = Path(__file__).resolve().parents[2], Path(__file__).resolve()
DOORS = {}  # the private name -> the test


def door(name, why):
    """Enter a private name into the table; the decorated function tries it."""
    return lambda test: DOORS.setdefault(name, test)


@door("_apply", "no public hook of .to() and .half(), which would round ALiBi's slopes")
def moved():
    model = nn.Sequential(ALiBi(6))
    for cast in (nn.Module.half, nn.Module.double, nn.Module.bfloat16):
        assert torch.equal(cast(model)[0].slopes, alibi_slopes(6))
    empty = model.to("meta").to_empty(device="cpu")
    assert torch.equal(empty[0].slopes, alibi_slopes(6))


@door("_tensor_str", "nothing public tells what torch.set_printoptions has set")
def printed():
    before = str(torch.ones(1) / 3)
    with torch._tensor_str.printoptions():
        torch.set_printoptions(precision=9)
        assert str(torch.ones(1) / 3) != before
    assert str(torch.ones(1) / 3) == before


@door("_reset_parameters", "nn.MultiheadAttention has no public reset_parameters")
def reset():
    layer = nn.MultiheadAttention(8, 2)
    assert not hasattr(layer, "reset_parameters")
    nn.init.zeros_(layer.in_proj_weight)
    assert untrained_copy(layer, seed=0).in_proj_weight.std() > 0.1


@door("_python_dispatch", "TorchDispatchMode, documented, has no public place")
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


def fast_path(name, layer, inputs):
    """The door shows a call without gradients, and none while the layer trains."""
    with patch.object(torch, name, wraps=getattr(torch, name)) as spy:
        layer.train()(*inputs)
        assert not spy.called
        with torch.no_grad():
            layer.eval()(*inputs)
        assert spy.called


@door("_native_multi_head_attention", "nothing public tells of the fast path")
def attention_path():
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
    fast_path("_native_multi_head_attention", layer, [x, x, x])


@door("_transformer_encoder_layer_fwd", "as _native_multi_head_attention")
def encoder_path():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    fast_path("_transformer_encoder_layer_fwd", layer, [torch.randn(1, 3, 8)])


@door("_softmax", "the profiler calls the operator so that writes out the weights")
def operator():
    with profile() as record:
        torch.randn(2, 2).softmax(-1)
    assert "aten::_softmax" in [event.name for event in record.function_events]


@pytest.mark.parametrize("name", DOORS)
def test_the_door_opens(name):
    DOORS[name]()


# --- the table is whole ---

PARTS = ("utils/**/*", ".ci/*", "notebooks/**/*.ipynb", "notebooks/*.py", "assets/**/*")
PLACES = [torch, torch.Tensor, torch.nn, F, nn.Module(), nn.MultiheadAttention(2, 1)]


def sources():
    """Yield the Python of the package, its tests, .ci, assets and the notebooks."""
    for path in (path for part in PARTS for path in ROOT.glob(part)):
        mine = path.suffix in (".py", ".ipynb", "") and path.is_file()
        if not mine or path == HERE:
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            code = [c["source"] for c in cells if c["cell_type"] == "code"]
            yield "\n".join(map("".join, code))
        elif path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
            yield text


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
    assert set().union(*map(private_names, sources())) == set(DOORS)


@pytest.mark.parametrize(
    ("count", "code"),
    [
        (1, "torch._C.x"),
        (1, "x._version"),
        (1, "getattr(x, '_version')"),
        (1, "import torch._dynamo as d"),
        (1, "from torch import _dynamo"),
        (1, "from torch._tensor_str import get_printoptions"),
        (1, "from torch.nn.modules.module import _global_forward_hooks"),
        (1, "class A(nn.Module):\n    def _apply(self, fn): ..."),
        (0, "a._asdict(); x.__dict__; import _thread; _ = '_'; self._run()"),
    ],
)
def test_a_private_name_is_found_and_others_are_left_alone(count, code):
    assert len(private_names(code)) == count
