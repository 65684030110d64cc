"""Arrays of callers, as repeated calls read and write them."""

import numpy as np
import pytest

from sparsenn.backends.cuda.transfer import queue as transfer_queue


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_addresses_of_tensors(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(transfer_queue, "current_stream_of", lambda like, device: None)
    like = torch.rand(4, 8)
    tensors = transfer_queue.Tensors(like, -1)  # PyTorch's number of the host
    assert tensors.address(like) == like.data_ptr()
    others = like[:, ::2], like.double(), like[:3], torch.nn.Parameter(like), like.to_sparse(), like.numpy(), None
    assert not any(map(tensors.address, others))
    assert not torch.func.vmap(lambda rows: torch.tensor(tensors.address(rows)))(torch.rand(2, 4, 8)).any()
    negative = torch.complex(like, like).conj().imag
    assert [tensors.are_numbers(each) for each in (like, negative, like.clone().requires_grad_())] == [1, 0, 0]
    with torch.autograd.forward_ad.dual_level():
        assert not tensors.are_numbers(torch.autograd.forward_ad.make_dual(like, like))
    outputs, address = tensors.new(np.zeros((4, 3), np.float16), like)
    assert (outputs.dtype, tuple(outputs.shape), outputs.data_ptr()) == (torch.float16, (4, 3), address)
    outputs, address = tensors.again(outputs)
    assert (outputs.dtype, tuple(outputs.shape), outputs.data_ptr()) == (torch.float16, (4, 3), address)
