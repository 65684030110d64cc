"""Networks as modules of PyTorch: called, compiled, copied, and held to PyTorch's rules for operators."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sparsenn
from sparsenn.engine import Session
from sparsenn.errors import InputError, ShapeError, SparseNNError, UsageError
from sparsenn.io import from_torch
from sparsenn.layers import Conv2d, Identity, Linear, ReLU
from sparsenn.network import Network

torch = pytest.importorskip("torch", reason="needs PyTorch")
nn = torch.nn

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(params=["rows", "images"])
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """A module of PyTorch, the same wrapped, and rows for both."""
    torch.manual_seed(4)
    if request.param == "rows":
        module, rows = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(7, 6)
    else:
        module, rows = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)), torch.randn(7, 2, 6, 8)
    return module.eval(), sparsenn.torch.wrap(from_torch(module, rows), device="cpu"), rows


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)


def test_called(pair: tuple[Any, Any, Any]) -> None:
    module, wrapped, rows = pair
    close(wrapped(rows), module(rows))
    close(wrapped(rows[:1]), module(rows[:1]))
    close(wrapped(rows[1::2]), module(rows[1::2]))
    assert wrapped(rows[:0]).shape == module(rows[:0]).shape
    close(wrapped(rows.requires_grad_()), module(rows))


def test_rows_that_lie_otherwise() -> None:
    layer = nn.Linear(4, 3)
    wrapped = sparsenn.torch.wrap(from_torch(layer))
    rows = torch.randn(4, 9).T
    close(wrapped(rows), layer(rows))
    close(wrapped(rows.reshape(9, 2, 2)), layer(rows))
    pictures = torch.randn(5, 3, 4, 4).to(memory_format=torch.channels_last)
    convolution = nn.Conv2d(3, 2, 3)
    close(sparsenn.torch.wrap(from_torch(convolution, pictures))(pictures), convolution(pictures))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "bool"])
def test_types_of_rows_and_outputs(dtype: str) -> None:
    layer = nn.Linear(4, 3)
    rows = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0]]).to(getattr(torch, dtype))
    found = sparsenn.torch.wrap(from_torch(layer))(rows)
    assert found.dtype == (rows.dtype if dtype.endswith("16") else torch.float32)
    torch.testing.assert_close(found.float(), layer(rows.float()).detach(), rtol=1e-2, atol=1e-2)


def test_the_operator_keeps_pytorchs_rules(pair: tuple[Any, Any, Any]) -> None:
    _, wrapped, rows = pair
    torch.library.opcheck(torch.ops.sparsenn.run, (rows.flatten(1), wrapped._number))
    torch.library.opcheck(torch.ops.sparsenn.run, (rows.flatten(1).half(), wrapped._number))


def test_compiled(pair: tuple[Any, Any, Any]) -> None:
    module, wrapped, rows = pair
    compiled = torch.compile(lambda given: wrapped(given * 2) + 1, fullgraph=True, backend="aot_eager")
    for count in (7, 3, 5):
        close(compiled(rows[:count]), module(rows[:count] * 2) + 1)


def test_compiled_before_it_is_called() -> None:
    wrapped = sparsenn.torch.wrap(Network((Linear(np.ones((4, 3)), activation=ReLU()),)))
    compiled = torch.compile(nn.Sequential(wrapped, nn.Softmax(1)), fullgraph=True, backend="aot_eager")
    close(compiled(torch.ones(2, 4)), torch.full((2, 3), 1 / 3))
    exported = torch.export.export(wrapped, (torch.ones(2, 4),)).module()
    close(exported(torch.ones(2, 4)), torch.full((2, 3), 4.0))


def test_there_is_no_gradient(pair: tuple[Any, Any, Any]) -> None:
    _, wrapped, rows = pair
    assert list(wrapped.parameters()) == []
    assert wrapped.state_dict() == {}
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        wrapped(rows.requires_grad_()).sum().backward()


def dual(function: Callable[[Any], Any], rows: Any) -> None:
    with torch.autograd.forward_ad.dual_level():
        function(torch.autograd.forward_ad.make_dual(rows, rows))


FORWARD_MODE: dict[str, Callable[[Any, Any], Any]] = {
    "jvp": lambda function, rows: torch.func.jvp(function, (rows,), (rows,)),
    "jacfwd": lambda function, rows: torch.func.jacfwd(function)(rows),
    "linearize": lambda function, rows: torch.func.linearize(function, rows),
    "dual": dual,
}


@pytest.mark.parametrize("derive", FORWARD_MODE.values(), ids=FORWARD_MODE)
def test_forward_mode_derivatives_are_refused(pair: tuple[Any, Any, Any], derive: Callable[[Any, Any], Any]) -> None:
    _, wrapped, rows = pair
    with pytest.raises(UsageError, match="a wrapped network has no derivative"):
        derive(wrapped, rows)


def test_reverse_mode_derivatives_are_refused(pair: tuple[Any, Any, Any]) -> None:
    _, wrapped, rows = pair
    for derivative in (torch.func.grad(lambda given: wrapped(given).sum()), torch.func.jacrev(wrapped)):
        with pytest.raises(RuntimeError, match=r"autograd\.Function"):
            derivative(rows)


def test_mapped_over_batches(pair: tuple[Any, Any, Any]) -> None:
    module, wrapped, rows = pair
    batches = torch.stack([rows, -rows, 2 * rows])
    close(torch.vmap(wrapped)(batches), torch.vmap(module)(batches))
    close(torch.vmap(wrapped, in_dims=1, out_dims=1)(batches), torch.vmap(module, in_dims=1, out_dims=1)(batches))


def test_among_other_modules_copied_and_pickled(pair: tuple[Any, Any, Any]) -> None:
    module, wrapped, rows = pair
    whole = nn.Sequential(wrapped, nn.Sigmoid())
    for each in (whole, copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        close(each(rows), module(rows).sigmoid())
    assert "layer" in repr(whole)


def test_what_is_refused() -> None:
    network = Network((Linear(np.ones((4, 3)), activation=ReLU()),))
    wrapped = sparsenn.torch.wrap(network)
    for call, error, message in (
        (lambda: wrapped(torch.zeros(2, 3)), ShapeError, r"\(2, 3\); .* 4 numbers"),
        (lambda: wrapped(torch.zeros(4)), ShapeError, "rows of shape"),
        (lambda: sparsenn.torch.wrap(3), UsageError, r"give a sparsenn\.Network"),
        (lambda: sparsenn.torch.wrap(network, devise="cpu"), UsageError, "there is no option 'devise'"),
        (lambda: sparsenn.torch.wrap(network, device="abacus"), UsageError, "unknown device"),
        (lambda: torch.ops.sparsenn.run(torch.zeros(1, 4), 1 << 40), UsageError, "the network of this operator is"),
    ):
        with pytest.raises(error, match=message):
            call()


def imaginary(numbers: Any) -> Any:
    """The same numbers as a tensor with the negative bit: PyTorch holds them in memory with the other sign."""
    found = torch.complex(torch.zeros_like(numbers), -numbers).conj().imag
    assert found.is_neg()
    return found


NUMBERS = torch.tensor([[-1.0, 2.0, 0.5], [3.0, -4.0, 0.25]])

READ: dict[str, Callable[[], Any]] = {
    "negative bit": lambda: imaginary(NUMBERS),
    "part of negative bit": lambda: imaginary(NUMBERS)[:, 1:],
    "part of conjugate": lambda: torch.complex(NUMBERS, NUMBERS).conj().real,
    "transposed": lambda: NUMBERS.T,
    "repeated": lambda: NUMBERS[:1].expand(3, 3),
    "subclass": lambda: NUMBERS.as_subclass(type("Named", (torch.Tensor,), {})),
    "truths": lambda: NUMBERS > 0,
    "half": lambda: NUMBERS.half(),
    "bfloat16": lambda: NUMBERS.bfloat16(),
}


def identity(width: int) -> Network:
    return Network((Linear(np.eye(width), activation=Identity()),))


@pytest.mark.parametrize("make", READ.values(), ids=READ)
def test_sessions_read_tensors(make: Callable[[], Any]) -> None:
    tensor = make()
    network = identity(tensor.shape[1])
    for found in (Session(network, device="cpu")(tensor), sparsenn.torch.wrap(network)(tensor)):
        assert found.tolist() == tensor.float().tolist()
    named = replace(network, named_inputs={"a": (tensor.shape[1],)}, named_outputs={"b": (tensor.shape[1],)})
    for inputs in ([tensor], {"a": tensor}):
        assert Session(named, device="cpu")(inputs)["b"].tolist() == tensor.float().tolist()


def fake() -> Any:
    with importlib.import_module("torch._subclasses").FakeTensorMode():
        return torch.ones(2, 3)


UNREADABLE: dict[str, Callable[[], Any]] = {
    "gradient": lambda: NUMBERS.clone().requires_grad_(),
    "conjugate": lambda: torch.complex(NUMBERS, NUMBERS).conj(),
    "complex": lambda: torch.complex(NUMBERS, NUMBERS),
    "quantized": lambda: torch.quantize_per_tensor(NUMBERS, 0.1, 0, torch.qint8),
    "meta": lambda: NUMBERS.to("meta"),
    "fake": fake,
    "opaque": lambda: NUMBERS.to_mkldnn(),
    "masked": lambda: torch.masked.masked_tensor(NUMBERS, NUMBERS > 0),
    "nested": lambda: torch.nested.nested_tensor([NUMBERS[0], NUMBERS[1]]),
    "coo": lambda: NUMBERS.to_sparse(),
    "csr": lambda: NUMBERS.to_sparse_csr(),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_sessions_refuse_tensors(name: str) -> None:
    with pytest.raises(SparseNNError, match=r"^the (inputs|rows)") as raised:
        Session(identity(3), device="cpu")(UNREADABLE[name]())
    assert "\n" not in str(raised.value)
    if name in ("complex", "conjugate", "quantized"):
        with pytest.raises(InputError, match="real numbers are needed"):
            sparsenn.torch.wrap(identity(3))(UNREADABLE[name]())


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    **FORWARD_MODE,
    "vmap": lambda function, rows: torch.vmap(function)(rows[None]),
    "grad": lambda function, rows: torch.func.grad(lambda given: function(given).sum())(rows),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_sessions_refuse_tensors_of_transforms(transform: Callable[[Any, Any], Any]) -> None:
    session = Session(identity(3), device="cpu")
    with pytest.raises(InputError, match=r"^the (inputs|rows)"):
        transform(session, NUMBERS)


def test_images_that_come_from_rows() -> None:
    network = Network((Conv2d(np.ones((2, 1, 2, 2)), activation=ReLU()),), image=(1, 3, 3))
    assert sparsenn.torch.wrap(network)(torch.ones(2, 9)).shape == (2, 2, 2, 2)


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_copied_and_streams_are_kept(pair: tuple[Any, Any, Any]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    module, _, rows = pair
    wrapped = sparsenn.torch.wrap(from_torch(module, rows))
    module, rows = module.cuda(), rows.cuda()
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for factor in range(1, 20):
                found = wrapped(rows * factor)
                assert found.device == rows.device
                close(found, module(rows * factor))
