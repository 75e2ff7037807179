"""The code on the page for Monday is that of lesson 12, and runs on other models."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).parents[2]
SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 4, "intermediate_size": 64}


def read():
    """Return the page, and the cells of lesson 12."""
    lesson = ROOT / "notebooks/12_debugging_attention.ipynb"
    page = (ROOT / "assets/pages/monday.md").read_text(encoding="utf-8")
    return page, json.loads(lesson.read_text(encoding="utf-8"))["cells"]


def test_what_the_page_shows_is_what_the_lesson_printed():
    page, cells = read()
    (shown,) = re.findall(r"^```\n(1 inputs.*?)^```", page, flags=re.M | re.S)
    outputs = [each for cell in cells for each in cell.get("outputs", [])]
    assert shown in "".join("".join(each.get("text", [])) for each in outputs)


@pytest.mark.parametrize(
    "model, leaks",
    [
        (LlamaForCausalLM(LlamaConfig(**SIZES)), False),
        (BertLMHeadModel(BertConfig(**SIZES)), True),  # every token sees every token
    ],
)
def test_first_checks(model, leaks):
    page, cells = read()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    assert code[code.index("def ") :].strip() in ["".join(c["source"]) for c in cells]
    names = {}
    exec(code, names)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    ids = torch.randint(50, (4, 12), generator=torch.Generator().manual_seed(0))
    inputs, targets = ids[:, :-1], ids[:, 1:]
    call = lambda model, ids: model(ids).logits  # noqa: E731
    first, last, gap = names["first_checks"](model, inputs, targets, call=call)
    assert last < 0.5 < first and (gap > 0.05 if leaks else gap < 1e-5)
    assert all(torch.equal(before[x], each) for x, each in model.state_dict().items())
