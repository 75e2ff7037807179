"""The real MiniLM loads offline; damaged, missing and foreign files are refused."""

import contextlib
import functools
import json
import pickle
import socket
from pathlib import Path

import huggingface_hub
import pytest
import torch

from utils import pretrained

SENTENCE = "The cat sat on the mat because it was tired."


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Every test: MINILM_DIR unset, an empty hub cache, sockets that raise.

    Yields the list of attempts to use the network.
    """
    attempts = []

    def refuse(*args, **kwargs):
        attempts.append(args)
        raise OSError("the network is blocked in this test")

    monkeypatch.delenv("MINILM_DIR", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    download = huggingface_hub.snapshot_download
    download = functools.partial(download, cache_dir=tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return attempts


def copy_by_links(folder: Path) -> Path:
    """A new folder with links to the real files."""
    folder.mkdir(parents=True)
    source = pretrained.find_minilm()
    for name in pretrained.FILES:
        (folder / name).symlink_to(source / name)
    return folder


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(pretrained, "PACKAGE", "not-installed")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder with links to the real files, which MINILM_DIR names."""
    folder = copy_by_links(tmp_path / "mine")
    monkeypatch.setenv("MINILM_DIR", str(folder))
    return folder


def refused(path: Path, data: bytes, match: str) -> str:
    """Return what is said where a file of these bytes stands in place of a link."""
    path.unlink()  # the link alone
    path.write_bytes(data)
    with pytest.raises(ValueError, match=match) as caught:
        pretrained.load_minilm()
    return str(caught.value)


def set_offline(monkeypatch, offline):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client's retries
    # the client before version 1 keeps its sessions, and with them the old setting
    getattr(huggingface_hub.utils, "reset_sessions", lambda: None)()


def test_the_real_model_loads_without_network(no_network, capfd):
    config, tokenizer, weights = pretrained.load_minilm()
    tokens = tokenizer(SENTENCE).tokens()
    assert len(tokens) == 13 and tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
    assert tokens[1:4] == ["the", "cat", "sat"]
    assert (config["num_hidden_layers"], config["num_attention_heads"]) == (6, 12)
    for layer in range(6):
        for part in ("query", "key", "value"):
            name = f"encoder.layer.{layer}.attention.self.{part}.weight"
            assert weights[name].unflatten(0, (12, 32)).shape == (12, 32, 384)
    assert len(weights) == 103 and list(weights) == sorted(weights)
    assert all(w.dtype == torch.float32 for w in weights.values())
    assert all(w.isfinite().all() for w in weights.values())
    assert no_network == []
    assert capfd.readouterr() == ("", "")


def test_minilm_dir_wins_over_the_package_and_the_package_over_the_hub(
    folder, monkeypatch
):
    assert pretrained.find_minilm() == folder
    monkeypatch.setattr(pretrained, "_snapshot", None)  # the hub is not even asked
    monkeypatch.setenv("MINILM_DIR", "")  # as if it were not set
    found = pretrained.find_minilm()
    assert found.parent.name == pretrained.PACKAGE.replace("-", "_")


def test_minilm_dir_without_the_files_is_an_error(folder, monkeypatch):
    (folder / "tokenizer.json").unlink()
    for path, lacking in [(folder, "tokenizer.json"), (folder / "no", "config.json")]:
        monkeypatch.setenv("MINILM_DIR", str(path))
        with pytest.raises(FileNotFoundError, match=f"{path}.*{lacking}"):
            pretrained.load_minilm()


def test_the_hub_cache_is_used_if_complete(no_network, monkeypatch, tmp_path):
    cache = tmp_path / "hub" / "models--sentence-transformers--all-MiniLM-L6-v2"
    folder = copy_by_links(cache / "snapshots" / pretrained.REVISION)
    monkeypatch.setattr(pretrained, "PACKAGE", "not-installed")
    assert pretrained.find_minilm() == folder
    assert no_network == []
    (folder / "model.safetensors").unlink()
    set_offline(monkeypatch, False)
    with contextlib.suppress(FileNotFoundError):
        pretrained.find_minilm()
    assert no_network != []  # what is not whole is asked for again


@pytest.mark.parametrize("offline", [True, False])
def test_nothing_anywhere_names_both_ways(offline, no_network, no_package, monkeypatch):
    set_offline(monkeypatch, offline)
    with pytest.raises(FileNotFoundError, match="pip install .*MINILM_DIR") as e:
        pretrained.load_minilm()
    assert e.value.__cause__ is not None
    assert not (offline and no_network)


def test_the_download_is_pinned_and_takes_no_pickle(no_package, monkeypatch):
    asked = {}

    def download(model, **options):
        asked.update(options)
        return "here"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert pretrained.find_minilm() == Path("here") and "local_files_only" in asked
    assert asked["revision"] == pretrained.REVISION
    kinds = {Path(name).suffix for name in asked["allow_patterns"]}
    assert kinds == {".json", ".safetensors"}


def test_one_flipped_bit_is_refused(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    said = refused(path, data, "SHA-256")
    assert str(path) in said and pretrained.SHA256 in said


@pytest.mark.parametrize("field", pretrained.SHAPE)
def test_every_field_that_changes_the_result_is_compared(field, folder):
    path = folder / "config.json"
    config = json.loads(path.read_bytes())
    assert config[field] == pretrained.SHAPE[field] and len(pretrained.SHAPE) == 8
    data = json.dumps(config | {field: 13}).encode()
    assert str(path) in refused(path, data, f"'{field}': 13")


@pytest.mark.parametrize(
    "data", [b'{"hidden_size": 38', b"", b"[384]", b"null", b"\xff"]
)
def test_a_broken_config_is_named(data, folder):
    path = folder / "config.json"
    assert f"Delete {path}" in refused(path, data, "JSON")


CHANGES = {
    "exchanged": lambda words: words.update(cat=words["dog"], dog=words["cat"]),
    "renamed": lambda words: words.update(katze=words.pop("cat")),
    "one more": lambda words: words.update(katze=len(words)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_vocabulary_is_refused(change, folder):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_bytes())
    CHANGES[change](tokenizer["model"]["vocab"])
    said = refused(path, json.dumps(tokenizer).encode(), "vocabulary")
    assert str(folder) in said and "pip install --force-reinstall" in said


class Bomb:
    """Unpickling it creates the file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_beside_the_weights_is_not_touched(folder, tmp_path):
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    (folder / "pytorch_model.bin").write_bytes(bomb)
    pretrained.load_minilm()
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)  # the bomb is live
    assert (tmp_path / "exploded").exists()
