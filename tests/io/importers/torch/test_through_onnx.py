"""PyTorch modules that become ONNX graphs on their way to a network."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import pytest

from sparsenn.engine import Session
from sparsenn.errors import InputError, UsageError
from sparsenn.io import from_torch
from sparsenn.layers import ForeignLayer, SparseLinear

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter

ROWS = torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(2))


class Pair(NamedTuple):
    """Two outputs."""

    sums: Any
    scores: Any


class Several(nn.Module):
    """Two inputs, and two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, rows: Any, mask: Any) -> Pair:
        hidden = torch.cumsum(self.head(rows), -1) * mask[:, :1]
        return Pair(hidden.sum(1), hidden.softmax(-1))


class Encoder(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.linear1, self.linear2 = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, rows: Any) -> Any:
        heads = self.attention(self.norm1(rows)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        rows = rows + self.out(mixed.transpose(1, 2).flatten(2))
        return rows + self.linear2(nn.functional.gelu(self.linear1(self.norm2(rows))))


def encoder() -> Any:
    torch.manual_seed(3)
    module = Encoder().eval()
    importlib.import_module("torch.nn.utils.prune").l1_unstructured(module.linear1, "weight", amount=0.8)
    return module


def check(module: Any, rows: Any, *wrapped: Any) -> Any:
    """Hold a network made through ONNX against its module, and return it; what is wrapped around that is read."""
    network = from_torch(*wrapped or (module,), rows if wrapped else rows[:1], through="onnx")
    with torch.no_grad():
        expected = module(rows).reshape(len(rows), -1).numpy()
    found = Session(network, device="cpu")(rows.numpy()).reshape(len(rows), -1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    return network


def test_an_encoder() -> None:
    assert any(isinstance(layer, ForeignLayer) for layer in check(encoder(), ROWS))


class Attending(nn.Module):
    """PyTorch's own attention, which has a fast path that no ONNX operator computes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 4)

    def forward(self, rows: Any) -> Any:
        return self.out(self.attention(rows, rows, rows, need_weights=False)[0])


def test_attention_without_its_fast_path() -> None:
    check(Attending().eval(), ROWS)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("name", ["trace", "script", "parallel", "compiled", "averaged"])
def test_modules_around_others(name: str) -> None:
    torch.manual_seed(3)
    module, rows = nn.Sequential(nn.Linear(16, 8), nn.GLU(), nn.Linear(4, 3)).eval(), ROWS[:, 0]
    wrapped = {"trace": lambda: torch.jit.trace(module, rows), "script": lambda: torch.jit.script(module)}
    wrapped |= {"compiled": lambda: torch.compile(module)}
    wrapped |= {"averaged": lambda: torch.optim.swa_utils.AveragedModel(nn.DataParallel(module))}
    check(module, rows, wrapped.get(name, lambda: nn.DataParallel(module))())


@pytest.mark.parametrize("named", [True, False])
def test_several_inputs_and_outputs(named: bool) -> None:
    torch.manual_seed(3)
    module, rows, mask = Several(), ROWS[:, 0], torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    example = {"mask": mask, "rows": rows} if named else (rows, mask)
    network = from_torch(module, example, through="onnx")
    found = Session(network, device="cpu")({"rows": rows.numpy(), "mask": mask.numpy()})
    with torch.no_grad():
        expected = module(rows, mask)
    np.testing.assert_allclose(found["sums"].ravel(), expected.sums.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["scores"], expected.scores.numpy(), rtol=1e-4, atol=1e-5)


def test_what_is_refused_names_both_other_ways() -> None:
    for example in (None, ROWS):
        with pytest.raises(InputError, match=r"(?s)sparsify\(module\).*through=\"onnx\""):
            from_torch(encoder(), example)
    with pytest.raises(UsageError, match='give "onnx", and an example'):
        from_torch(encoder(), through="onnx")
    with pytest.raises(UsageError, match="through is 'jit'"):
        from_torch(encoder(), ROWS, through="jit")
    with pytest.raises(UsageError, match="the example does not fit Several"):
        from_torch(Several(), ROWS[:, 0], through="onnx")


def test_modules_that_fail_are_refused() -> None:
    module = nn.Linear(16, 3)
    module.forward = lambda rows: rows.frobnicated()
    with pytest.raises(InputError, match=r"torch\.onnx\.export cannot make a graph of Linear"):
        from_torch(module, ROWS[:, 0], through="onnx")


def test_a_sparse_layer_stays_one() -> None:
    assert [type(layer) for layer in check(encoder().linear1, ROWS[:, 0])] == [SparseLinear]
