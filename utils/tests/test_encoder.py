"""The pretrained encoder equals `transformers`, on the course's layer and on yours."""

import copy
import functools
import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from utils.attention import padding_mask, scaled_dot_product_attention
from utils.encoder import BLOCK, EMBEDDINGS, Encoder
from utils.own import OwnAttention
from utils.pretrained import MiniLM, load_minilm
from utils.recording import record_attention
from utils.tests.helpers import gradients

EXAMPLE = (  # of the model's card, with its similarities
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
)
TEXTS = {
    "one sentence": ["The cat sat on the mat because it was tired."],
    "padding": ["Why?", *EXAMPLE, "Words the vocabulary does not have: zyxwvu, 👍!"],
    "longest": ["one two three " * 170],  # 510 tokens, [CLS] and [SEP]
}


@functools.cache
def minilm():
    return load_minilm()


@functools.cache
def theirs():
    """Return the same model as `transformers` builds it."""
    model = BertModel(BertConfig(**minilm().config, attn_implementation="eager"))
    missing, _ = model.load_state_dict(minilm().weights, strict=False)
    assert all("position_ids" in name or "token_type_ids" in name for name in missing)
    return model.eval()


@functools.cache
def ours():
    return Encoder.from_minilm(minilm())


def tokens(texts):
    """Return ids and both forms of the padding mask: theirs, ours."""
    batch = minilm().tokenizer(list(texts), padding=True, return_tensors="pt")
    mask = batch["attention_mask"]
    return batch["input_ids"], mask, mask.bool()[:, None, None]


@torch.no_grad()
def assert_equal(encoder, model, ids, their_mask, our_mask, **margin):
    """Assert equal outputs, hidden states and attention maps of all layers.

    The states of the padding itself, to which nothing attends, are left out: in single
    precision both models are 1e-4 away from double precision there.
    """
    margin = {"atol": 1e-5, "rtol": 0, **margin}
    kwargs = {"output_hidden_states": True, "output_attentions": True}
    wanted = model(ids, attention_mask=their_mask, **kwargs)
    weights = record_attention(encoder, ids, our_mask)
    assert_close(weights, list(wanted.attentions), **margin)
    found = [*encoder.hidden_states(ids, our_mask), encoder(ids, our_mask)]
    expected = [*wanted.hidden_states, wanted.last_hidden_state]
    real = slice(None) if our_mask is None else our_mask[:, 0, 0]
    assert_close([x[real] for x in found], [x[real] for x in expected], **margin)


@pytest.mark.parametrize("texts", TEXTS)
def test_equals_transformers(texts):
    ids, their_mask, our_mask = tokens(TEXTS[texts])
    encoder, model, margin = ours(), theirs(), {}
    if "longest" in texts:  # single precision is 1e-5 away from double by itself
        assert ids.shape[1] == 512
        encoder, model = (copy.deepcopy(each).double() for each in (encoder, model))
        margin = {"atol": 1e-10}
    assert_equal(encoder, model, ids, their_mask, our_mask, **margin)


def test_it_has_72_heads_and_all_weights():
    """As copies, in evaluation mode; what is not taken is the pooler alone."""
    assert sum(block.attention.num_heads for block in ours().blocks) == 72
    left = set(minilm().weights) - set(EMBEDDINGS.values())
    for layer, part, kind in itertools.product(
        range(6), BLOCK.values(), ("weight", "bias")
    ):
        left.remove(f"encoder.layer.{layer}.{part}.{kind}")
    assert left == {"pooler.dense.weight", "pooler.dense.bias"}
    encoder = Encoder.from_minilm(minilm())
    nn.init.zeros_(encoder.embedding.weight)
    assert not encoder.training
    assert minilm().weights[EMBEDDINGS["embedding.weight"]].any()


@torch.no_grad()
def test_padding_changes_nothing_and_the_published_similarities():
    """Each sentence alone, without a mask, is what it is in the padded batch."""
    texts = TEXTS["padding"]
    ids, _, mask = tokens(texts)
    hidden, vectors = ours()(ids, mask), ours().sentence_embedding(ids, mask)
    for row, vector, text in zip(hidden, vectors, texts):
        one = tokens([text])[0]
        assert_close(row[: one.shape[1]], ours()(one)[0], atol=1e-5, rtol=0)
        alone = ours().sentence_embedding(one)[0]
        assert_close(vector, alone, atol=1e-5, rtol=0)
    assert_close(vectors.norm(dim=-1), torch.ones(len(texts)))
    found = (vectors @ vectors.mT)[[1, 1, 2], [2, 3, 3]]  # those of the example
    assert_close(found, torch.tensor([0.6660, 0.1046, 0.1411]), atol=5e-5, rtol=0)


@torch.no_grad()
def test_many_sentences_have_the_vectors_that_each_has_alone():
    """They are computed in parts of similar length: 70 of them in three parts."""
    lengths = torch.randint(2, 30, (70,), generator=torch.Generator().manual_seed(1))
    ids = torch.randint(
        1000, 2000, (70, 30), generator=torch.Generator().manual_seed(2)
    )
    vectors = ours().sentence_embedding(ids, padding_mask(lengths, 30))
    for i in range(0, 70, 9):
        alone = ours().sentence_embedding(ids[i : i + 1, : lengths[i]])
        assert_close(vectors[i : i + 1], alone, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="hides every token"):
        ours().sentence_embedding(ids, padding_mask(lengths * (lengths > 5), 30))


# --- a small BERT in which every detail shows ---

SIZES = {
    "vocab_size": 11, "hidden_size": 8, "num_attention_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 12, "max_position_embeddings": 7,
}  # fmt: skip
IDS = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(0))
OUR_MASK = padding_mask([7, 1, 4])
THEIR_MASK = OUR_MASK[:, 0, 0].long()


def small(scale=1.0, seed=0):
    """Return a random BERT in the layout of `transformers`, and our copy of it.

    scale: factor of all its weights; a small one makes small variances.
    """
    torch.manual_seed(seed)
    config = BertConfig(**SIZES, layer_norm_eps=1e-12, attn_implementation="eager")
    model = BertModel(config).eval()
    for parameter in model.parameters():  # nothing is hidden by a 0 or a 1
        nn.init.normal_(parameter)
        parameter.data *= scale
    weights = dict(model.state_dict())
    return model, Encoder.from_minilm(MiniLM(config.to_dict(), None, weights))


def test_small_model_equals_transformers():
    model, encoder = small()
    assert_equal(encoder, model, IDS, THEIR_MASK, OUR_MASK)
    assert_equal(encoder, model, IDS, None, None)


def test_the_epsilon_of_every_norm():
    """With small weights the variances are 1e-6: 1e-5 in place of 1e-12 shows."""
    model, encoder = small(scale=1e-3)
    margin = {"atol": 1e-9, "rtol": 1e-3}
    assert_equal(encoder, model, IDS, THEIR_MASK, OUR_MASK, **margin)
    norms = [m for m in encoder.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 5
    for norm in norms:
        norm.eps = 1e-5
        with pytest.raises(AssertionError):
            assert_equal(encoder, model, IDS, THEIR_MASK, OUR_MASK, **margin)
        norm.eps = 1e-12


def test_untrained_weights_are_drawn_as_berts():
    torch.manual_seed(0)
    encoder = Encoder(50, 64, 4, 2, 256, 100, dropout=0.1)
    for name, parameter in encoder.named_parameters():
        wanted = 1.0 if "norm.weight" in name else 0.0
        assert abs(parameter.mean() - wanted) < 5e-3, name
        matrix = parameter.dim() == 2
        assert not matrix or 0.017 < parameter.std() < 0.023, name
        assert matrix or parameter.std() == 0, name
    assert encoder.training and encoder.dropout.p == encoder.blocks[1].dropout.p == 0.1


def test_compiles_whole_and_exports():
    torch.compiler.reset()
    encoder, inputs = small()[1], (IDS, OUR_MASK)
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    wanted, found = encoder(*inputs), compiled(*inputs)
    assert_close(found, wanted)
    grads = [gradients(x.square().sum(), encoder) for x in (found, wanted)]
    assert_close(*grads, atol=1e-5, rtol=1e-4)
    exported = torch.export.export(encoder, inputs, strict=False).module()
    assert_close(exported(*inputs), wanted)


# --- what is refused ---


@pytest.mark.parametrize(
    "inputs, error, words",
    [
        ((torch.zeros(1, 8).long(),), ValueError, "position 7, .* max_length=7"),
        ((torch.tensor([[3, 11]]),), IndexError, "out of range"),
        ((IDS, THEIR_MASK), ValueError, r"mask.bool\(\)\[:, None, None\]"),
        ((IDS, THEIR_MASK[:, None, None]), TypeError, "int64"),
        ((IDS, ~OUR_MASK), ValueError, "hides every token of a sentence.*~mask"),
    ],
)
def test_wrong_inputs_are_refused(inputs, error, words):
    encoder = small()[1]
    for method in (encoder, encoder.hidden_states, encoder.sentence_embedding):
        with pytest.raises(error, match=words):
            method(*inputs)


def test_a_mask_of_pairs_is_taken_but_says_nothing_of_sentences():
    encoder, pairs = small()[1], torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    changed = IDS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 11
    assert_close(encoder(changed, pairs)[:, :-1], encoder(IDS, pairs)[:, :-1])
    with pytest.raises(ValueError, match="to know which tokens count"):
        encoder.sentence_embedding(IDS, pairs)


# --- the learner's own functions ---


def my_masked(query, key, value, mask):
    assert mask.shape == (*query.shape[:-1], key.shape[-2])  # an entry for each score
    scores = query @ key.mT / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return weights.nan_to_num() @ value  # 0 where a query may see nothing


def my_layer(x, w_q, w_k, w_v, w_o, num_heads):
    heads = []
    for q, k, v in zip(*((x @ w.mT).chunk(num_heads, -1) for w in (w_q, w_k, w_v))):
        heads.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v)
    return torch.cat(heads, dim=-1) @ w_o.mT


BOTH = {"attention": my_masked, "layer": my_layer}


@pytest.mark.parametrize("texts", ["one sentence", "padding"])
def test_your_own_functions_equal_transformers(texts):
    encoder = Encoder.from_minilm(minilm(), **BOTH)
    ids, their_mask, our_mask = tokens(TEXTS[texts])
    assert_equal(encoder, theirs(), ids, their_mask, our_mask)
    if len(ids) == 1:  # without a mask the whole layer is yours
        assert_equal(encoder, theirs(), ids, None, None)


@pytest.mark.parametrize("given", [(), ("attention",), ("layer",), tuple(BOTH)])
def test_the_functions_are_really_called(given):
    """And where none is given, the course's layer computes the same."""
    calls, original, x = [], small()[1].blocks[0].attention, torch.randn(3, 7, 8)

    def watched(name):
        return lambda *args: (calls.append(name), BOTH[name](*args))[1]

    layer = OwnAttention(original, **{name: watched(name) for name in given})
    for options, wanted in (
        ({}, ["layer"] if "layer" in given else ["attention"]),
        ({"need_weights": True}, ["attention"] * 2),
        ({"mask": OUR_MASK}, ["attention"]),
        ({"mask": torch.ones(7, 7).tril().bool()}, ["attention"]),
    ):
        calls.clear()
        assert_close(layer(x, **options), original(x, **options))
        assert calls == [name for name in wanted if name in given]


def test_heads_of_your_own_functions_can_be_ablated():
    """From outside: what enters `out_proj` is all that a head contributes."""
    original, x = small()[1].blocks[0].attention, torch.randn(3, 7, 8)
    layers, gate = (original, OwnAttention(original, **BOTH)), torch.ones(8)
    gate[4:] = 0
    for layer in layers:
        layer.out_proj.register_forward_pre_hook(lambda _, inputs: inputs[0] * gate)
    for options in ({}, {"mask": OUR_MASK}):
        assert_close(layers[1](x, **options), layers[0](x, **options))


def unscaled(query, key, value, mask):
    return my_masked(query * query.shape[-1] ** 0.5, key, value, mask)


def deaf(query, key, value, mask):
    return scaled_dot_product_attention(query, key, value)[0]


def nothing(query, key, value, mask):
    return query * float("nan")


def one_head(x, w_q, w_k, w_v, w_o, num_heads):
    return my_layer(x, w_q, w_k, w_v, w_o, 1)


@pytest.mark.parametrize(
    "own", [{"attention": f} for f in (unscaled, deaf, nothing)] + [{"layer": one_head}]
)
def test_a_wrong_function_is_refused(own):
    (function,) = own.values()
    with pytest.raises(ValueError, match=f"{function.__name__} does not give"):
        Encoder.from_minilm(minilm(), **own)


def test_a_mask_of_numbers_is_refused():
    layer = OwnAttention(small()[1].blocks[0].attention, my_masked)
    with pytest.raises(TypeError, match="take bool"):
        layer(torch.ones(1, 3, 8), mask=torch.zeros(3, 3))
