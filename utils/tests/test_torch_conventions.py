"""What deeper 03 says below its table of conventions, and its cells do not run.

Row 10 for compiled layers (all keys are blocked), and masks that are misread.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from utils.attention import MultiHeadAttention
from utils.tests.helpers import normal

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def test_row_10_after_torch_compile():
    """Compiled code of torch 2.6 takes the fast path, of 2.11 and 2.13 not."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.init.normal_(theirs.out_proj.bias)
    ours, x = MultiHeadAttention.from_torch(theirs), normal(3, 5, 8)
    bias = theirs.out_proj.bias.detach().expand(5, 8)
    keep = torch.tensor([[True] * 5, [False] * 5, [True] * 5])  # nothing, in row 1
    torch.compiler.reset()
    found = torch.compile(ours, backend="eager")(x, mask=keep[:, None, None])[0][1]
    assert_close(found, bias, atol=1e-6, rtol=1e-5)
    frozen = theirs.eval().requires_grad_(False)  # takes the fast path
    options = {"key_padding_mask": ~keep, "need_weights": False}
    found = torch.compile(frozen, backend="eager")(x, x, x, **options)[0][1]
    if VERSION == (2, 6):
        assert found.isnan().all()
    elif VERSION >= (2, 11):  # which version changed it has not been looked up
        assert_close(found, bias, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("keys", [3, 64])
def test_a_mask_in_single_beside_queries_in_double(keys):
    """From 8 keys on (AVX2) or 16 (AVX-512), PyTorch reads it as if it were double."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    ours, x = MultiHeadAttention.from_torch(theirs), normal(1, keys, 8).double()
    mask = nn.Transformer.generate_square_subsequent_mask(keys)
    mask = torch.stack([mask] * 3)[0]  # PyTorch reads beyond its end: own memory
    assert mask.dtype == torch.float32
    wanted = theirs(x, x, x, attn_mask=mask.double(), need_weights=False)[0]
    assert_close(ours(x, mask=mask)[0], wanted, atol=1e-12, rtol=0)
    if VERSION <= (2, 13):  # a later version may refuse it, or be right
        found = theirs(x, x, x, attn_mask=mask, need_weights=False)[0]
        q = x[None]  # four axes: three go to another kernel, which is right
        both = (mask, mask.double())
        functions = [F.scaled_dot_product_attention(q, q, q, m) for m in both]
        for a, b in ((found, wanted), functions):
            assert ((a - b).abs().max() < 1e-9) == (keys == 3)
