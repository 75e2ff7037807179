"""torch's private doors that the course goes through: why, and what fails if one shuts.

A name of torch that begins with one underscore is not promised to stay. Each that is
used stands in `DOORS`; the tests named there run on the lowest and on the newest torch.
What is replaced in another library, which may call it otherwise, stands in `REPLACED`.
"""

import json
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

DOORS = {
    # no public hook of .to() and .half(), which would round ALiBi's slopes
    "_apply": "test_positions: test_positions_are_never_computed_in_half",
    # nothing public tells what torch.set_printoptions has set
    "_tensor_str": "exercises/test_engine: nothing stays",
    # nn.MultiheadAttention has no public reset_parameters
    "_reset_parameters": "test_baselines: test_an_untrained_copy_of_torch_layers...",
    # TorchDispatchMode, documented, has no public place
    "_python_dispatch": "notebooks 10 and deeper/10: which kernel is called",
    # nothing public tells of the fast path
    "_native_multi_head_attention": "notebook deeper/03: the fast path",
    "_transformer_encoder_layer_fwd": "notebook deeper/03: the fast path of a block",
    # nothing public counts the hooks of a module
    "_forward_hooks": "exercises/test_answers: 7.3, hooks that stay",
    "_forward_pre_hooks": "exercises/test_answers: 7.3, hooks that stay",
}
# what the package replaces in other libraries while it calls them
REPLACED = {
    # gguf reads a path alone, and its memmap takes 3 seconds more than an array
    "numpy.memmap": "test_pretrained: the weights of lesson 11's model",
}
ROOT, HERE = Path(__file__).resolve().parents[2], Path(__file__).resolve()
PARTS = ("utils/**/*", ".ci/*", "notebooks/**/*.ipynb", "notebooks/*.py", "assets/**/*")
IMPORT = re.compile(r"^ *(?:from|import) torch[^\n(]*(?:\([^)]*\))?", re.M)
# x._name, "_name", and a method that is written anew
NAME = re.compile(r"""(?:[.'"]|^ +def )(_[a-zA-Z]\w*)""", re.M)
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
    imports = " ".join(IMPORT.findall(code))
    used = {x for x in NAME.findall(code) if any(hasattr(each, x) for each in PLACES)}
    return used | {*re.findall(r"\b_[a-zA-Z]\w*", imports)}


def test_the_table_is_whole():
    assert set().union(*map(private_names, sources())) == set(DOORS)


def test_what_is_replaced_in_other_libraries_is_known():
    files = [x for x in ROOT.glob("utils/**/*.py") if "tests" not in x.parts]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert {*re.findall(r"""\bpatch\(["']([\w.]+)""", code)} == {*REPLACED}
