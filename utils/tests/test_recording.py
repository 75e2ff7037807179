"""The recorder: each part against its definition, in double; nothing stays."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel

from utils.attention import MultiHeadAttention, merge_heads, split_heads
from utils.masks import causal_mask, padding_mask
from utils.recording import (
    PARTS,
    ablate,
    attention_layers,
    head_importance,
    looking,
    record_attention,
    recorded,
    replaced,
)
from utils.tests import helpers
from utils.tests.helpers import SCHEMES, SIZES, gradients, guards, normal, text
from utils.training import cross_entropy

B, L, E, H, V = SIZES
X, IDS, OTHERS = normal(B, L, E, dtype=torch.float64), text(), text(1)
HIDDEN = ~padding_mask([L, 2, 5], L)[:, 0, 0]  # as PyTorch wants it: True = padding
BLOCK = "blocks.0.attention."


def lm(*scheme, **options):
    return helpers.lm(*scheme, **options).double()


def by_hand(layer, x, change=None, past=0):
    """Return the parts of a layer and its output, from its projections; mask causal.

    change: {part: function}. x (batch, length, embed_dim); the last queries are asked.
    """
    change, found = change or {}, {}

    def put(part, value):
        found[part] = value
        return change.get(part, lambda x: x)(value)

    q, k, v = (
        split_heads(getattr(layer, f"{name}_proj")(x), heads)
        for name, heads in zip(PARTS, (H, *[layer.num_kv_heads] * 2))
    )
    q, k = layer.position.rotate(q, k) if layer.position else (q, k)
    bias = layer.position.bias(L, L) if layer.position else None
    k, v = (torch.repeat_interleave(x, H // layer.num_kv_heads, dim=1) for x in (k, v))
    q, k, v = put("query", q[:, :, past:]), put("key", k), put("value", v)
    scores = q @ k.mT / (E // H) ** 0.5 + (0 if bias is None else bias[..., past:, :])
    scores = scores.masked_fill(~causal_mask(len(x[0]) - past, len(x[0])), -torch.inf)
    heads = put("heads", put("weights", scores.softmax(-1)) @ v)
    return found, layer.out_proj(merge_heads(heads))


def state_of(model):
    """Return all that a recorder might change or leave behind."""
    own = [
        {name: dict(x) if isinstance(x, dict) else x for name, x in vars(m).items()}
        for m in model.modules()
    ]
    fast = torch.backends.mha.get_fastpath_enabled()
    return own, fast, torch.is_grad_enabled(), [x.grad for x in model.parameters()]


# --- what is seen ---


@pytest.mark.parametrize("num_kv_heads", [None, 2])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_parts_are_what_the_definition_says(scheme, num_kv_heads):
    model = lm(scheme, num_kv_heads=num_kv_heads)
    before, logits = state_of(model), model(IDS)
    names = [f"blocks.*.attention.{part}" for part in PARTS]
    with recorded(
        model, *names, "blocks.*.attention_norm", "blocks.*.attention"
    ) as seen:
        assert_close(model(IDS), logits)
    assert state_of(model) == before
    for i, block in enumerate(model.blocks):
        parts, output = by_hand(block.attention, seen[f"blocks.{i}.attention_norm"])
        assert_close(seen[f"blocks.{i}.attention"], output)
        for part in PARTS:
            assert_close(seen[f"blocks.{i}.attention.{part}"], parts[part])
    quiet = {"query", "key", "value", "heads"}  # for these the same kernel runs
    with recorded(model, *(f"blocks.*.attention.{part}" for part in quiet)):
        record_attention(model, IDS)  # which no longer asks, once it is done
        assert torch.equal(model(IDS), logits)
    for got, i in zip(record_attention(model, IDS), range(2), strict=True):
        assert_close(got, seen[f"blocks.{i}.attention.weights"])
        assert not got.requires_grad


def test_names_patterns_and_calls():
    model, cache = lm(num_kv_heads=2), {}
    names = [BLOCK + part for part in PARTS]
    with (
        recorded(model, "blocks.*", "norm", "n*", *names, every_call=True) as every,
        recorded(model, "blocks.*", "*.0.attention_norm", "embedding") as last,
    ):
        assert last == every == {}  # nothing was called
        model(IDS[:, :4], cache=cache)
        assert_close(model(IDS[:, 4:], cache=cache), model(IDS)[:, 4:])
        model(IDS)
    assert [*last] == ["embedding", "blocks.0.attention_norm", "blocks.0", "blocks.1"]
    assert last["blocks.1"] is every["blocks.1"][-1] and len(every["norm"]) == 4
    given = last["blocks.0.attention_norm"]
    parts, _ = by_hand(model.blocks[0].attention, given, past=4)
    for part in PARTS:  # of the second call, whose keys and values are old and new
        assert_close(every[BLOCK + part][1], parts[part])


def test_gradients_with_respect_to_what_was_recorded():
    model = lm()
    names = ["blocks.0", *(BLOCK.replace("0", "1") + part for part in PARTS)]
    with recorded(model, *names) as seen:
        loss = model(IDS).square().sum()
    for name, slope in zip(names, torch.autograd.grad(loss, [*map(seen.get, names)])):
        sides, step = [], 1e-6 * slope / slope.norm()
        for moved in (seen[name].detach() + step, seen[name].detach() - step):
            with replaced(model, {name: moved}):
                sides.append(model(IDS).square().sum())
        assert_close((sides[0] - sides[1]) / 2e-6, slope.norm(), rtol=1e-5, atol=0)


# --- what is replaced ---

CHANGE = {part: lambda x: 0.5 * x + x.flip(0) for part in PARTS}


@pytest.mark.parametrize("num_kv_heads", [None, 2])
@pytest.mark.parametrize("parts", [*[[part] for part in PARTS], PARTS])
def test_replaced_parts_and_their_gradients(parts, num_kv_heads):
    layer = lm("t5", num_kv_heads=num_kv_heads).blocks[0].attention
    before, changes = state_of(layer), {part: CHANGE[part] for part in parts}
    with replaced(layer, changes) as same:
        assert same is layer
        output, none = layer(X, mask=causal_mask(L))
        weights = layer(X, mask=causal_mask(L), need_weights=True)[1]
    assert state_of(layer) == before and none is None
    found, wanted = by_hand(layer, X, changes)
    assert_close(output, wanted)
    changed = CHANGE["weights"] if "weights" in parts else lambda x: x
    assert_close(weights, changed(found["weights"]))
    slopes = gradients(output.square().sum(), layer)
    assert_close(slopes, gradients(wanted.square().sum(), layer))


def test_a_function_may_write_into_what_was_there():
    model, whole = lm(), lm()(IDS)
    with torch.no_grad(), replaced(model, {"blocks.*.attention.weights": torch.zero_}):
        flat = model(IDS)
    with replaced(model, {"blocks.*.attention.heads": torch.zeros_like}):
        assert_close(flat, model(IDS))
    assert (flat - whole).abs().max() > 0.1 and torch.equal(model(IDS), whole)


def test_replaced_weights_are_dropped_out_as_others_are():
    layer = MultiHeadAttention(E, H, dropout=0.5).double()
    weights = normal(B, H, L, L, dtype=torch.float64)
    with (
        replaced(layer, {"weights": weights}),
        recorded(layer, "value", "heads", "weights") as seen,
    ):
        torch.manual_seed(0)
        layer(X)
    torch.manual_seed(0)
    F.dropout(weights)  # the layer's own
    assert_close(seen["heads"], F.dropout(weights) @ seen["value"])
    assert torch.equal(seen["weights"], weights)
    with replaced(layer.eval(), {"weights": weights}):
        assert torch.equal(layer(X)[0], layer(X)[0])


@pytest.mark.parametrize(
    "name", ["blocks.0", "blocks.0.mlp", *(BLOCK + x for x in PARTS)]
)
def test_each_gets_what_those_before_it_left(name):
    model = lm()
    double, plus = {name: lambda x: 2 * x}, {name: lambda x: x + 1}
    with (
        recorded(model, name) as first,
        replaced(model, double),
        recorded(model, name) as second,
    ):
        with replaced(model, plus), recorded(model, name) as third:
            model(IDS)
        twice = model(IDS)
    assert_close(second[name], 2 * first[name])
    assert_close(third[name], 2 * first[name] + 1)
    with replaced(model, {name: 2 * first[name]}):
        assert_close(model(IDS), twice)


@pytest.mark.parametrize("kind", [lambda x: (x, 7), lambda x: [x], lambda x: {"a": x}])
def test_of_several_outputs_the_first(kind):
    model = nn.Sequential(nn.Identity())
    model[0].forward = kind
    with recorded(model, "0") as seen, replaced(model, {"0": torch.neg}):
        assert str(model(X)) == str(kind(-X))
    assert torch.equal(seen["0"], X)


def test_models_of_transformers():
    sizes = {"hidden_size": E, "num_hidden_layers": 2, "num_attention_heads": H}
    sizes |= {"vocab_size": V, "intermediate_size": E}
    model = BertModel(BertConfig(**sizes, attn_implementation="eager")).eval()
    result = model(IDS, output_attentions=True, output_hidden_states=True)
    assert_close(record_attention(model, IDS), [*result.attentions])
    path = "encoder.layer.*.attention.self."
    with recorded(model, path + "weights", path + "query", "encoder.layer.*") as seen:
        model(IDS)
    assert_close(seen["encoder.layer.1.attention.self.weights"], result.attentions[1])
    assert_close(seen["encoder.layer.0"], result.hidden_states[1])
    query = model.encoder.layer[0].attention.self.query(result.hidden_states[0])
    assert_close(seen["encoder.layer.0.attention.self.query"], query)
    with replaced(model, {"encoder": torch.zeros_like}):
        assert model(IDS).last_hidden_state.abs().max() == 0


# --- nothing stays, nothing is silent ---


def test_everything_is_as_it_was_after_an_error():
    model = lm().train()
    model.blocks[1].eval()  # a mixture of modes
    mine = model.blocks[0].attention.attend = model.blocks[0].attention.attend
    before, names = state_of(model), ["blocks.*.attention." + part for part in PARTS]
    wrong = {"mode": "mean", "mean_from": IDS.float()}
    for block, error in [
        (recorded(model, *names, "blocks.0"), KeyboardInterrupt),
        (replaced(model, dict.fromkeys(names, torch.neg)), KeyboardInterrupt),
        (ablate(model, {0: [1]}, mode="mean", mean_from=IDS), KeyboardInterrupt),
        (ablate(model, {0: [1]}, **wrong), RuntimeError),
        (looking(model), KeyboardInterrupt),
        (replaced(model, {names[0]: torch.neg, "blocks.9": torch.neg}), ValueError),
    ]:
        with pytest.raises(error), block, recorded(model, "*.*.attention.key"):
            model(IDS)
            raise KeyboardInterrupt
        assert state_of(model) == before
    with pytest.raises(RuntimeError):
        record_attention(model, IDS.float())
    with pytest.raises(IndexError):
        head_importance(model, lambda model, ids: model(ids)[99], IDS)
    assert state_of(model) == before
    assert vars(model.blocks[0].attention)["attend"] is mine


def wrapped(model):
    return torch.compile(model, backend="eager")


def in_place(model):
    model.compile(backend="eager")
    return model


def one_block(model):
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    return model


@pytest.mark.parametrize("compiled", [wrapped, in_place, one_block])
def test_compiled_models_that_have_run(compiled):
    plain, model, found = lm(), compiled(lm()), []
    whole = model(IDS)
    for each in (plain, model):
        with ablate(each, {0: [3], 1: [0, 2]}):  # alone: a new `attend` is noticed
            found.append([each(IDS)])
        with recorded(each, "blocks.1") as seen:
            found[-1] += [each(IDS), seen["blocks.1"], *record_attention(each, IDS)]
        found[-1].append(head_importance(each, loss, IDS, OTHERS))
    assert_close(*found)
    assert (found[0][0] - whole).abs().max() > 0.1 and torch.equal(model(IDS), whole)


ENCODER = nn.TransformerEncoderLayer(E, H, 32, batch_first=True).double().eval()


# --- record_attention ---


def per_head(module, x, **masks):
    return module(x, x, x, average_attn_weights=False, **masks)[1]


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_layer(batch_first):
    """And whoever calls it still gets what they asked for, also given by position."""
    module = nn.MultiheadAttention(E, H, dropout=0.5, batch_first=batch_first).double()
    x = X if batch_first else X.transpose(0, 1)
    found = record_attention(module, x, x, x, key_padding_mask=HIDDEN)
    assert found[0].shape == (B, H, L, L) and module.training
    wanted = per_head(module.eval(), x, key_padding_mask=HIDDEN)
    found += record_attention(module, x, x, x, HIDDEN, False, None, False)
    assert all(torch.equal(each, wanted) for each in found)
    with recorded(module.train(), "weights") as seen:  # in training, dropped out
        output, _ = module(x, x, x)
    assert (seen["weights"] == 0).any()
    inputs = {"inputs": seen["weights"], "allow_unused": True}  # and without a gradient
    assert torch.autograd.grad(output.sum(), **inputs) == (None,)
    module.eval()
    for asks in {}, {"need_weights": False}, {"average_attn_weights": False}:
        for given, batch in (x, B), (X[0], 1):  # one sequence alone
            with (
                recorded(module, "weights") as outer,
                recorded(module, "weights") as seen,
            ):
                same = module(given, given, given, **asks)
            assert_close(same, module(given, given, given, **asks))
            assert outer["weights"].shape == (batch, H, L, L)
            assert torch.equal(seen["weights"], outer["weights"])


@pytest.mark.parametrize("hidden", [None, HIDDEN])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoder_although_its_fast_path_calls_no_attention(norm_first, hidden):
    options = {"batch_first": True, "norm_first": norm_first}
    layer = nn.TransformerEncoderLayer(E, H, 32, **options).double()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    found = record_attention(model, X, src_key_padding_mask=hidden)
    with torch.no_grad(), recorded(model, "layers.*", "layers.*.linear1") as seen:
        model(X, src_key_padding_mask=hidden)
    x = X
    for i, (block, weights) in enumerate(zip(model.layers, found, strict=True)):
        given = block.norm1(x) if norm_first else x
        assert_close(weights, per_head(block.self_attn, given, key_padding_mask=hidden))
        x = block(x, src_key_padding_mask=hidden)
        assert_close(seen[f"layers.{i}"], x)
    assert f"layers.{i}.linear1" in seen


def test_torch_decoder_layer_attends_to_itself_and_the_other_text():
    layer = nn.TransformerDecoderLayer(E, H, 32, batch_first=True).double()
    own, cross = record_attention(layer, X, X[:, :4])
    assert own.shape == (B, H, L, L) and cross.shape == (B, H, L, 4)


class Hidden(MultiHeadAttention):
    """A variant that hides the options behind **named."""

    def forward(self, *inputs, **named):
        return super().forward(*inputs, **named)


class Own(nn.Module):
    """An attention of one's own, which attends to itself, or a block that has one."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner

    def forward(self, query, mask=None, *, need_weights=False, cache=None):
        if self.inner is not None:
            return self.inner(query, mask=mask, need_weights=need_weights, cache=cache)
        weights = torch.eye(L).double().expand(len(query), 1, L, L)
        return query, weights if need_weights else None


def test_attention_of_ones_own():
    model = lm("nope")
    layers = Own(), Hidden(E, H).double()
    for block, layer in zip(model.blocks, layers):
        block.attention = Own(layer)
    assert [*attention_layers(model).values()] == [*layers]
    mine, hidden = record_attention(model, IDS)
    assert torch.equal(mine, torch.eye(L).double().expand(B, 1, L, L))
    assert hidden.shape == (B, H, L, L) and (hidden.triu(1) == 0).all()


class Plain(nn.Linear):
    """It takes need_weights and gives none."""

    def forward(self, x, need_weights=False):
        return x


# --- ablation and importance ---

SETS = [{0: [1]}, {1: [0, 3, 3]}, {0: [0, 1, 2, 3], 1: [2]}, {0: (2,), 1: []}, {}]


def without(model, heads, others=None):
    """Return a copy in which out_proj itself no longer hears these heads.

    others: ids; out_proj hears the mean over their positions instead, always.
    """
    model = copy.deepcopy(model).requires_grad_(False)
    with recorded(model, "blocks.*.attention_norm") as seen:
        model(IDS if others is None else others)
    for i, chosen in heads.items():
        layer = model.blocks[i].attention
        parts, _ = by_hand(layer, seen[f"blocks.{i}.attention_norm"])
        mean = merge_heads(parts["heads"]).flatten(0, 1).mean(0)  # (embed_dim,)
        for head in set(chosen):
            part = slice(head * E // H, (head + 1) * E // H)
            if others is not None:
                layer.out_proj.bias += layer.out_proj.weight[:, part] @ mean[part]
            layer.out_proj.weight[:, part] = 0
    return model


@pytest.mark.parametrize("num_kv_heads", [None, 2])
@pytest.mark.parametrize("heads", SETS)
def test_an_ablated_head_is_one_that_out_proj_does_not_hear(heads, num_kv_heads):
    model = lm(num_kv_heads=num_kv_heads, dropout=0.5)  # but the mean is without
    whole = model(IDS)
    for others, options in [
        (None, {}),
        (OTHERS, {"mode": "mean", "mean_from": OTHERS}),
        (OTHERS, {"mode": "mean", "mean_from": (OTHERS,)}),
    ]:
        wanted = without(model, heads, others)
        once = {layer: iter(chosen) for layer, chosen in heads.items()}
        with ablate(model.train(), once, **options) as same:
            assert same is model and model.training
            assert_close(model.eval()(IDS), wanted(IDS))
            assert_close(record_attention(model, IDS), record_attention(wanted, IDS))
        assert torch.equal(model(IDS), whole)


def loss(model, ids, targets):
    return cross_entropy(model(ids), targets)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = MultiHeadAttention(8, 2)

    def forward(self, x):
        return self.layer(self.layer(x)[0])[0]


def test_a_mean_is_taken_over_all_calls_of_a_layer():
    model, x, given = Twice(), torch.randn(3, 5, 8), []
    layer = model.layer
    with layer.out_proj.register_forward_pre_hook(lambda _, y: given.append(y[0])):
        model(x)
    mean = torch.cat(given, dim=1)[..., 4:].mean(dim=(0, 1))  # of head 1, both calls
    with ablate(model, {0: [1]}, mode="mean", mean_from=x):
        found = model(x)

    def cut(_, y):
        return (torch.cat([y[0][..., :4], mean.expand(3, 5, 4)], dim=-1),)

    with layer.out_proj.register_forward_pre_hook(cut):
        assert_close(found, model(x))


def test_importance_is_the_mean_size_of_a_slope_per_example():
    """A gate is a factor of the head's columns W of out_proj: the slope is W . dW."""
    model = lm(dropout=0.1).train()
    model.spare = MultiHeadAttention(E, H).double()  # it is not called
    before = state_of(model)
    found = head_importance(model, loss, IDS, OTHERS)
    assert state_of(model) == before
    model.eval()
    columns = [block.attention.out_proj.weight for block in model.blocks]
    slopes = torch.zeros(B, 3, H, dtype=torch.float64)
    for b in range(B):
        value = loss(model, IDS[b : b + 1], OTHERS[b : b + 1])
        for i, slope in enumerate(torch.autograd.grad(value, columns)):
            terms = (columns[i].detach() * slope).unflatten(1, (H, -1))
            slopes[b, i] = terms.sum((0, 2))
    assert_close(found, slopes.abs().mean(0))
    # heads that help in one sentence and harm in another must be among these
    assert (slopes.mean(0).abs() < 0.8 * slopes.abs().mean(0)).any()
    assert (slopes.mean(0) < 0).any()


# --- what would run and mean something else ---


def put(name, new):
    with replaced(ENCODER, {"linear2": torch.neg, name: new}):
        ENCODER(X)


def cut(heads, model=None, **options):
    with ablate(model or lm(), heads, **options):
        pass


BOTH = nn.ModuleList([MultiHeadAttention(E, H), ENCODER])
LINEAR = nn.Linear(E, E).double()
SMALL = {"hidden_size": E, "num_hidden_layers": 1, "num_attention_heads": H}
MPNET = MPNetModel(MPNetConfig(**SMALL, intermediate_size=E)).eval()  # (output,)
REFUSED = r"""
no 'layer1'.*'linear1' | put("layer1", X)
no 'linear\*\.\*' | put("linear*.*", X)
no 'self_attn.heads'.*'self_attn.weights' | put("self_attn.heads", X)
only recorded | put("self_attn.weights", torch.neg)
linear1 has .*32.*in its place is .*1, 1 | put("linear1", X[:1, :1, :1])
in its place is NoneType | put("linear1", lambda x: None)
out_proj.*not called | put("self_attn.out_proj", X)
Linear called no attention | record_attention(LINEAR, X)
return .output, weights | record_attention(Plain(1, 1), X)
return .output, weights.*output_attentions=True | record_attention(MPNET, IDS)
{0: 4, 1: 4} | cut({2: [0]})
{0: 4, 1: 4} | cut({1: [4]})
{0: 4, 1: 4} | cut({0: [-1]})
{0: 4, 1: 4} | cut({-1: [0]})
iterable | cut({0: 1})
'noise'.* 'zero' | cut({0: [1]}, mode="noise")
mean_from is NoneType | cut({0: [1]}, mode="mean")
mode is 'zero' | cut({0: [1]}, mean_from=IDS)
from_torch | cut({0: [1]}, ENCODER)
from_torch | cut({0: [1]}, LINEAR)
from_torch | cut({0: [1]}, BOTH)
from_torch | head_importance(ENCODER, loss, X)
from_torch | head_importance(LINEAR, loss, X)
shorter | head_importance(lm(), loss, IDS, IDS[:1])
"""
test_what_would_mean_something_else_is_refused = guards(
    REFUSED, globals(), (ValueError, TypeError, RuntimeError)
)
