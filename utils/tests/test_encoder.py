"""The pretrained encoder equals `transformers`, on the course's layer and on yours."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from utils import exercises
from utils.attention import MultiHeadAttention, padding_mask
from utils.encoder import BLOCK, EMBEDDINGS, Encoder, OwnAttention
from utils.exercises import EXERCISES, answer, kept
from utils.pretrained import MiniLM, load_minilm

EXAMPLE = (  # of the model's card, with its similarities
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
)
TEXTS = {
    "one sentence": ["The cat sat on the mat because it was tired."],
    "padding": ["Why?", *EXAMPLE, "Words the vocabulary does not have: zyxwvu, 👍!"],
    "longest": ["the dog saw a cat " * 102],  # 510 tokens, [CLS] and [SEP]
    "longest and shortest": ["", "one two three " * 170],
}


@functools.cache
def minilm():
    return load_minilm()


@functools.cache
def theirs():
    """Return the same model as `transformers` builds it."""
    config = BertConfig(**minilm().config, attn_implementation="eager")
    model = BertModel(config)
    missing, _ = model.load_state_dict(minilm().weights, strict=False)
    assert all("position_ids" in name or "token_type_ids" in name for name in missing)
    return model.eval()


@functools.cache
def ours():
    return Encoder.from_minilm(minilm())


def tokens(texts):
    """Return ids and both forms of the padding mask: theirs, ours."""
    batch = minilm().tokenizer(list(texts), padding=True, return_tensors="pt")
    theirs = batch["attention_mask"]
    return batch["input_ids"], theirs, theirs.bool()[:, None, None]


def assert_equal(encoder, model, ids, their_mask, our_mask, **margin):
    """Assert equal outputs, hidden states and attention maps of all layers.

    The states of the padding itself, which nobody reads, are left out: in single
    precision both models are 1e-4 away from double precision there.
    """
    margin = {"atol": 1e-5, "rtol": 0, **margin}
    with torch.no_grad():
        kwargs = {"output_hidden_states": True, "output_attentions": True}
        wanted = model(ids, attention_mask=their_mask, **kwargs)
        hidden, weights = encoder(ids, our_mask, need_weights=True)
        fused, none = encoder(ids, our_mask)
        states = encoder.hidden_states(ids, our_mask)
    assert none is None
    assert len(states) == len(wanted.hidden_states) == len(encoder.blocks) + 1
    assert len(weights) == len(wanted.attentions) == len(encoder.blocks)
    for found, expected in zip(weights, wanted.attentions):
        assert_close(found, expected, **margin)
    pairs = [*zip(states, wanted.hidden_states)]
    pairs += [(each, wanted.last_hidden_state) for each in (hidden, fused)]
    real = slice(None) if our_mask is None else our_mask[:, 0, 0]
    for found, expected in pairs:
        assert found.shape == expected.shape
        assert_close(found[real], expected[real], **margin)


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
    assert sum(block.attention.num_heads for block in ours().blocks) == 72
    stored = set(minilm().weights) - {"pooler.dense.weight", "pooler.dense.bias"}
    taken = {
        f"encoder.layer.{layer}.{theirs}.{kind}"
        for layer in range(6)
        for theirs in BLOCK.values()
        for kind in ("weight", "bias")
    }
    assert taken | set(EMBEDDINGS.values()) == stored
    before = minilm().weights["embeddings.word_embeddings.weight"].clone()
    encoder = Encoder.from_minilm(minilm())
    with torch.no_grad():
        encoder.embedding.weight.zero_()
    assert not encoder.training
    assert torch.equal(minilm().weights["embeddings.word_embeddings.weight"], before)


def test_padding_changes_nothing():
    """Each sentence alone, without a mask, is what it is in the padded batch."""
    texts = TEXTS["padding"]
    ids, _, mask = tokens(texts)
    with torch.no_grad():
        batch, _ = ours()(ids, mask)
        for row, text in zip(batch, texts):
            alone, _ = ours()(tokens([text])[0])
            assert_close(row[: alone.shape[1]], alone[0], atol=1e-5, rtol=0)


def test_similarities_of_the_published_example():
    ids, _, mask = tokens(EXAMPLE)
    with torch.no_grad():
        vectors = ours().sentence_embedding(ids, mask)
        alone = torch.cat([ours().sentence_embedding(tokens([t])[0]) for t in EXAMPLE])
    assert_close(vectors.norm(dim=-1), torch.ones(3))
    assert_close(vectors, alone, atol=1e-5, rtol=0)
    found = vectors @ vectors.mT
    wanted = torch.tensor([0.6660, 0.1046, 0.1411])
    assert_close(found[[0, 0, 1], [1, 2, 2]], wanted, atol=5e-5, rtol=0)


# --- a small BERT in which every detail shows ---


def small(scale=1.0, seed=0):
    """Return a random BERT in the layout of `transformers`, and our copy of it.

    scale: factor of all its weights; a small one makes small variances.
    """
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=12,
        max_position_embeddings=7,
        layer_norm_eps=1e-12,
        attn_implementation="eager",
    )
    model = BertModel(config).eval()
    for parameter in model.parameters():  # nothing is hidden by a 0 or a 1
        nn.init.normal_(parameter)
        parameter.data *= scale
    weights = dict(model.state_dict())
    return model, Encoder.from_minilm(MiniLM(config.to_dict(), None, weights))


IDS = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(0))
LENGTHS = [7, 1, 4]
THEIR_MASK = padding_mask(LENGTHS)[:, 0, 0].long()
OUR_MASK = padding_mask(LENGTHS)


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


# What must not be: each edit of the encoder is seen by the comparison above.
def no_token_type(encoder):
    nn.init.zeros_(encoder.token_type.weight)


def tanh_gelu(encoder):
    for block in encoder.blocks:
        block.mlp[1] = nn.GELU(approximate="tanh")


def padding_read(encoder):
    plain = encoder.forward
    encoder.forward = lambda ids, mask=None, **options: plain(ids, None, **options)


def norm_first(encoder):
    for block in encoder.blocks:
        block.norm = "pre"


def heads_renumbered(encoder):
    attention = encoder.blocks[1].attention
    for proj in (attention.query_proj, attention.key_proj, attention.value_proj):
        proj.weight.data = proj.weight.data.roll(attention.head_dim, 0)
        proj.bias.data = proj.bias.data.roll(attention.head_dim, 0)
    attention.out_proj.weight.data = attention.out_proj.weight.data.roll(
        attention.head_dim, 1
    )


EDITS = (no_token_type, tanh_gelu, padding_read, norm_first, heads_renumbered)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("size", ["small", "MiniLM"])
def test_the_comparison_can_fail(edit, size):
    if size == "small":
        (model, encoder), inputs = small(), (IDS, THEIR_MASK, OUR_MASK)
    else:
        model, encoder = theirs(), copy.deepcopy(ours())
        inputs = tokens(TEXTS["padding"])
    edit(encoder)
    with pytest.raises(AssertionError):
        assert_equal(encoder, model, *inputs)


def test_untrained_weights_are_drawn_as_berts():
    torch.manual_seed(0)
    encoder = Encoder(50, 64, 4, 2, 256, 100, dropout=0.1)
    config = BertConfig(
        vocab_size=50,
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        intermediate_size=256,
        max_position_embeddings=100,
    )
    model, _ = BertModel(config, add_pooling_layer=False), None
    for name, parameter in encoder.named_parameters():
        wanted = 1.0 if "norm.weight" in name else 0.0
        assert abs(parameter.mean() - wanted) < 5e-3, name
        matrix = parameter.dim() == 2
        assert not matrix or 0.017 < parameter.std() < 0.023, name
        assert matrix or parameter.std() == 0, name
    assert sum(p.numel() for p in encoder.parameters()) == sum(
        p.numel() for p in model.parameters()
    )
    assert encoder.training and encoder.dropout.p == encoder.blocks[1].dropout.p == 0.1


def test_compiles_whole_exports_and_runs_under_vmap():
    encoders = [small(seed=seed)[1] for seed in range(3)]
    inputs, encoder = (IDS, OUR_MASK), encoders[0]
    wanted = encoder(*inputs)[0]
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    assert_close(compiled(*inputs)[0], wanted)
    exported = torch.export.export(encoder, inputs).module()
    assert_close(exported(*inputs)[0], wanted)
    state = stack_module_state(encoders)
    many = vmap(lambda *state: functional_call(encoder, state, inputs)[0])(*state)
    for each, own in zip(encoders, many):
        assert_close(own, each(*inputs)[0], atol=1e-5, rtol=1e-4)


# --- what speaks ---


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        (torch.zeros(1, 8).long(), ValueError, "8 tokens, but .* positions for 7"),
        (torch.tensor([[3, 11]]), ValueError, "from 3 to 11, but vocab_size=11"),
        (torch.tensor([[-1, 1]]), ValueError, "between 0 and 10"),
        (torch.zeros(1, 0).long(), ValueError, "at least 1"),
        (torch.zeros(1, 3), TypeError, "whole numbers"),
        (torch.zeros(3).long(), ValueError, r"give \(batch, length\)"),
        ([[1, 2]], TypeError, "list"),
    ],
)
def test_wrong_ids_speak(ids, error, words):
    for method in ("forward", "hidden_states", "sentence_embedding"):
        with pytest.raises(error, match=words):
            getattr(small()[1], method)(ids)


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        (THEIR_MASK, ValueError, r"mask.bool\(\)\[:, None, None\]"),
        (THEIR_MASK[:, None, None], TypeError, "int64; give bool"),
        (OUR_MASK[..., :5], ValueError, "shape"),
        (~OUR_MASK, ValueError, "hides every token of a sentence.*~mask"),
        (OUR_MASK & False, ValueError, "hides every token"),
        ([True] * 7, TypeError, "mask is a list"),
    ],
)
def test_wrong_masks_speak(mask, error, words):
    for method in ("forward", "hidden_states", "sentence_embedding"):
        with pytest.raises(error, match=words):
            getattr(small()[1], method)(IDS, mask)


def test_a_mask_of_pairs_is_read_but_says_nothing_of_sentences():
    encoder, pairs = small()[1], torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    hidden, _ = encoder(IDS, pairs)
    changed = IDS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 11
    assert_close(encoder(changed, pairs)[0][:, :-1], hidden[:, :-1])
    with pytest.raises(ValueError, match="to know which tokens count"):
        encoder.sentence_embedding(IDS, pairs)


# --- the learner's own functions ---

OWN = {
    "1.3": """
def my_masked(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    none = ~mask.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(mask | none), -math.inf).softmax(dim=-1)
    return weights.masked_fill(none, 0.0) @ value


ANSWER = my_masked
""",
    "2.2": """
def my_layer(x, w_q, w_k, w_v, w_o, num_heads):
    heads = []
    for q, k, v in zip(*((x @ w.mT).chunk(num_heads, -1) for w in (w_q, w_k, w_v))):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        heads.append(scores.softmax(dim=-1) @ v)
    return torch.cat(heads, dim=-1) @ w_o.mT


ANSWER = my_layer
""",
}


@pytest.fixture
def solved(monkeypatch, tmp_path):
    """Answers of a learner's own to 1.3 and 2.2, kept."""
    monkeypatch.setenv("COURSE_PROGRESS_DIR", str(tmp_path))
    for name, source in OWN.items():
        kept.write(name, EXERCISES[name].title, source)


@pytest.mark.parametrize("texts", ["one sentence", "padding", "longest and shortest"])
def test_your_own_functions_equal_transformers(solved, capsys, texts):
    encoder = Encoder.from_minilm(minilm(), attention="learner")
    said = capsys.readouterr().out
    assert said == "".join(
        f'answer("{name}"): your own, checked again.\n' for name in OWN
    )
    assert "runs on my_masked and my_layer" in repr(encoder)
    ids, their_mask, our_mask = tokens(TEXTS[texts])
    assert_equal(encoder, theirs(), ids, their_mask, our_mask)
    if len(ids) == 1:  # without a mask the whole layer is yours
        assert_equal(encoder, theirs(), ids, None, None)


def test_unsolved_it_runs_on_the_references(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COURSE_PROGRESS_DIR", str(tmp_path))
    encoder = Encoder.from_minilm(minilm(), attention="learner")
    said = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0] for line in said] == [
        f'answer("{name}"): the reference' for name in OWN
    ]
    ids, their_mask, our_mask = tokens(TEXTS["padding"])
    assert_equal(encoder, theirs(), ids, their_mask, our_mask)


def test_the_functions_are_really_called(solved):
    calls = []
    attention = small()[1].blocks[0].attention

    def attend(query, key, value, mask):
        calls.append("attend")
        return answer("1.3")(query, key, value, mask)

    def whole(*args):
        calls.append("whole")
        return answer("2.2")(*args)

    layer, x = OwnAttention(attention, attend, whole), torch.randn(3, 7, 8)
    for options, wanted in (
        ({}, ["whole"]),
        ({"need_weights": True}, ["attend"] * 2),
        ({"mask": OUR_MASK}, ["attend"]),
    ):
        calls.clear()
        layer(x, **options)
        assert calls == wanted


def test_gates_silence_the_heads_of_your_own_functions(solved):
    attention = small()[1].blocks[0].attention
    attention.head_gate[1] = 0.0
    layer, x = (
        OwnAttention(attention, answer("1.3"), answer("2.2")),
        torch.randn(3, 7, 8),
    )
    for options in ({}, {"mask": OUR_MASK}):
        assert_close(layer(x, **options), attention(x, **options))


def unscaled(query, key, value, mask):
    return EXERCISES["1.3"].reference(query * query.shape[-1] ** 0.5, key, value, mask)


def deaf(query, key, value, mask):
    return EXERCISES["1.3"].reference(query, key, value, mask | True)


def shapeless(query, key, value, mask):
    return EXERCISES["1.3"].reference(query, key, value, mask).sum(-1)


def nothing(query, key, value, mask):
    return query * float("nan")


@pytest.mark.parametrize("wrong", [unscaled, deaf, shapeless, nothing])
def test_a_wrong_function_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{wrong.__name__} "):
        Encoder.from_minilm(minilm(), attention=wrong)


def test_own_attention_speaks():
    with pytest.raises(ValueError, match="'learner'"):
        Encoder.from_minilm(minilm(), attention="mine")
    right = EXERCISES["1.3"].reference
    layer = OwnAttention(MultiHeadAttention(8, 2), right, None)
    x = torch.randn(1, 3, 8)
    with pytest.raises(TypeError, match="take bool"):
        layer(x, mask=torch.zeros(3, 3))
    with pytest.raises(ValueError, match="one text"):
        layer(x, x)
    assert exercises.answer is answer
