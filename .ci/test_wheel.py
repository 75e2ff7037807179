"""Tests of .ci/wheel.py: the course's package in a project that has a `utils` too."""

import os
import subprocess
import sys

import pytest
import wheel

LAYER = """
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from utils import KEPT  # of this project

class Mine(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.heads = heads

    def forward(self, x, mask=None):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        return scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)

class Mixed(Mine):
    def forward(self, x, mask=None):
        return super().forward(x, mask).flip(0)
"""
SCRIPT = """
import sys
for name in "conllu gguf jupyterlab nbval pytest safetensors transformers".split():
    sys.modules[name] = None  # the wheel does not ask for these
import torch, utils
from torch import nn
from head_by_head.utils.baselines import entropy_matched_copy, untrained_copy
from head_by_head.utils.examine import examine
from head_by_head.utils.recording import record_attention, replaced
from head_by_head.utils.viewer import view_heads
from layer import Mine

layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 3, 8)
page = view_heads(record_attention(layer, x, x, x), ["a", "b", "c"])
assert "<script" in page._repr_html_() and utils.KEPT == 1
print(examine(Mine(24, 4), 24, 4).right, [x for x in sys.modules if x[:6] == "utils."])
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a `utils` of its own; the function runs Python in it."""
    work = tmp_path_factory.mktemp("project")
    made, site = wheel.build(work), work / "site"
    into = ["--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *into, made], check=True)
    (work / "utils").mkdir()
    (work / "utils" / "__init__.py").write_text("KEPT = 1\n")
    (work / "layer.py").write_text(LAYER)
    (work / "script.py").write_text(SCRIPT)

    def run(*arguments):
        command, env = [sys.executable, *arguments], os.environ | {"PYTHONPATH": site}
        done = subprocess.run(
            command, cwd=work, env=env, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr[-500:]

    return run


def test_a_script_imports_it_beside_its_own_utils(project):
    assert project("script.py") == (0, "True []\n", "")


@pytest.mark.parametrize(
    "name, status, said", [("Mine", 0, "No fault"), ("Mixed", 1, "wrong")]
)
def test_the_command(project, name, status, said):
    command = "-m", "head_by_head.utils.examine", f"layer.py:{name}"
    returned, output, errors = project(*command, "--embed-dim", "24", "--heads", "4")
    assert (returned, errors) == (status, "") and said in output.splitlines()[-1]


def test_what_pip_reads(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (wheel.build(tmp_path / name).read_bytes() for name in ("one", "two"))
    about = dict(wheel.described())["METADATA"]
    assert one == two and about.count("Requires-Dist") == len(wheel.NEEDS) + 1
