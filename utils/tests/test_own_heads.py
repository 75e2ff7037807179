"""What lessons 07 and 08 give to paste runs: the viewer, and heads of six classes."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

from utils.pretrained import find_minilm

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "bos_token_id": 0, "eos_token_id": 0}
NARROW = {"intermediate_size": 32}
GROUPED = NARROW | {"num_key_value_heads": 2}
KINDS = {"gpt2": {}, "gpt_neox": NARROW}
KINDS |= {"opt": {"ffn_dim": 32, "word_embed_proj_dim": 32}}
KINDS |= {"llama": GROUPED, "mistral": GROUPED, "qwen2": GROUPED}


def sources_of(lesson):
    """Return the text of each cell of a lesson."""
    cells = json.loads((NOTEBOOKS / f"{lesson}.ipynb").read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells]


def test_the_cell_to_paste_draws_a_model(monkeypatch):
    cpu = torch.device("cpu")  # which torch 2.6 cannot say after other tests' resets
    monkeypatch.setattr(torch, "get_default_device", lambda: cpu)
    (page,) = [x for x in sources_of("07_seeing_heads") if "ready to paste" in x]
    (cell,) = re.findall("```python\n%pip install [^\n]*\n(.*?)```", page, re.S)
    *lines, view = cell.replace("head_by_head.", "").strip().split("\n")
    code = "\n".join([*lines, f"view = {view}"]).replace('"gpt2"', "folder")
    names = {"folder": str(find_minilm())}
    exec(code, names)
    assert "because" in names["view"]._repr_html_() and names["sees"].all()


@pytest.fixture(scope="module")
def code():
    """The page's LAST, and its lines from `linears` to the loss without heads."""
    sources = sources_of("08_head_specialisation")
    (last,) = [x for x in sources if x.startswith("LAST = ")]
    (page,) = [x for x in sources if "### At work: a model of the hub" in x]
    (lines,) = re.findall(r"^linears = .*?(?=^LAYER = )", page, flags=re.M | re.S)
    return last[: last.index("linear = ")] + lines


@pytest.mark.parametrize("kind", KINDS)
def test_heads_of_a_model_of_the_hub(kind, code):
    config = AutoConfig.for_model(kind, **SIZES, **KINDS[kind])
    own = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    twice = torch.randint(64, (8, 25)).repeat(1, 2)
    names = {"own": own, "torch": torch, "twice": twice}
    exec(code, names)
    run, linear, usual = names["run_in"](1), names["linears"][1], own(twice).logits

    def zeros(heads):  # (8, 4, 50, 8)
        heads = heads.clone()
        heads[:, 1] = 0
        return heads

    assert_close(run(twice), usual)
    without_1 = run(twice, zeros)
    assert not torch.allclose(without_1, usual)
    of_all, of_one = names["loss_without"](1, []), names["loss_without"](1, [1])
    assert of_all == pytest.approx(
        torch.nn.functional.cross_entropy(usual[:, 25:-1].mT, twice[:, 26:]).item()
    )
    assert of_one != of_all
    weight = linear.weight if kind == "gpt2" else linear.weight.T  # (in, out)
    weight.data[8:16] = 0  # head 1 of layer 1: the features 8 to 15
    assert_close(own(twice).logits, without_1)
    assert not linear._forward_pre_hooks
