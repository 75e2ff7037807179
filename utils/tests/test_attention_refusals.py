"""The layer to and from PyTorch's, and what attention and masks refuse."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.testing import assert_close

from utils.attention import MultiHeadAttention
from utils.attention import scaled_dot_product_attention as attention  # noqa: F401
from utils.masks import causal_mask, padding_mask  # noqa: F401, rows use it
from utils.positions import ALiBi, Rotary  # noqa: F401, rows use them
from utils.tests.helpers import normal

X = normal(3, 5, 32)
ours = partial(MultiHeadAttention, 32, 4)


def torchs(**options):
    return nn.MultiheadAttention(32, 4, batch_first=True, **options)


WAYS = {
    "plain": lambda module, name: None,
    "pruned": partial(prune.l1_unstructured, amount=0.5),
    "weight norm": weight_norm,
    "spectral norm": spectral_norm,
    "new weight norm": parametrizations.weight_norm,
    "new spectral norm": parametrizations.spectral_norm,
}
PLACES = [("torch", "in_proj_weight"), ("torch", "out_proj.weight")]
PLACES += [("ours", f"{name}_proj.weight") for name in ("query", "value", "out")]


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("trained", [False, True])  # since the weight was computed
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("whose", "place"), PLACES)
def test_pruned_and_normed_layers_come_out_right(whose, place, way, trained):
    """In both directions: what is copied is what the layer itself computes with."""
    torch.manual_seed(0)
    layer = torchs() if whose == "torch" else ours()
    layer.eval()  # in training a spectral norm is another one at every look
    path, _, name = place.rpartition(".")
    WAYS[way](layer.get_submodule(path), name=name)
    for parameter in layer.parameters() if trained else ():
        parameter.data.mul_(1.5)
    if whose == "torch":
        copied = MultiHeadAttention.from_torch(layer)
        pair = copied(X)[0], layer(X, X, X)[0]
    else:
        copied = layer.to_torch()
        pair = layer(X)[0], copied(X, X, X)[0]
    assert_close(*pair, atol=1e-4, rtol=1e-4)
    assert all(x.requires_grad and x.is_leaf for x in copied.parameters())


class Halved(MultiHeadAttention):
    def attend(self, *given):
        return super().attend(*given)[0] / 2, None


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Strange(nn.MultiheadAttention):
    pass


def hooked(module):
    module.out_proj.register_forward_hook(lambda module, inputs, output: 2 * output)
    return module


def doubled():
    layer = MultiHeadAttention(32, 4)
    layer.value_proj = Doubled(32, 32)
    return layer


FLAG, FLAGS = causal_mask(5), causal_mask(5).expand(3, 5, 5)
layer = ours()
REFUSED = r"""
mask\[:, None, None, :\] | layer(X, mask=FLAG[:3], need_weights=w)
one per sequence .* mask\[:, None\] | layer(X, mask=FLAGS, need_weights=w)
the scores have shape \(3, 4, 5, 5\) | layer(X, mask=FLAG[0], need_weights=w)
has shape \(5, 6\) | layer(X, mask=causal_mask(5, 6), need_weights=w)
give bool, True = may be attended to | layer(X, mask=FLAG.int(), need_weights=w)
mask is torch.complex64 | layer(X, mask=FLAG + 0j, need_weights=w)
5 keys but 4 values | layer(X, X, X[:, :4], need_weights=w)
give floating point | attention(*[FLAG.int()] * 3)
num_heads=3 must divide | MultiHeadAttention(8, 3)
divided by num_kv_heads=3 | ours(num_kv_heads=3)
position has num_heads=1, the layer | ours(position=ALiBi(1))
position has head_dim=4 | ours(position=Rotary(4))
between 0 and max_length=4 | padding_mask([5, 1], 4)
lengths are \[3, -1\] | padding_mask(torch.tensor([3, -1]))
give whole numbers | padding_mask([True, False])
float32; give whole numbers | padding_mask([1.5], 4)
num_kv_heads=1.*no such option | ours(num_kv_heads=1).to_torch()
position=Rotary.*no such option | ours(position=Rotary(8)).to_torch()
Halved has a.* attend of its own | Halved(32, 4).to_torch()
Doubled has a.* forward of its own | doubled().to_torch()
module is a .*Strange | MultiHeadAttention.from_torch(Strange(32, 4))
add_bias_kv | MultiHeadAttention.from_torch(torchs(add_bias_kv=True))
add_zero_attn | MultiHeadAttention.from_torch(torchs(add_zero_attn=True))
forward hooks | MultiHeadAttention.from_torch(hooked(torchs()))
forward hooks | hooked(ours()).to_torch()
kdim | MultiHeadAttention.from_torch(torchs(kdim=8))
vdim | MultiHeadAttention.from_torch(torchs(vdim=8))
"""


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_what_would_mean_something_else_is_refused(row, need_weights):
    says, call = row.split(" | ")
    with pytest.raises((ValueError, TypeError), match=says):
        eval(call, globals() | {"w": need_weights})
