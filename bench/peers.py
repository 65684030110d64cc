"""What sessions are compared with: functions from a problem and a precision to ways of other libraries to compute it.

A function yields nothing where its library is not installed, or does not take the problem.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from deepsparse_peer import INTERPRETER, DeepSparse

from sparsenn import CSR, Linear, Network, ReLU, SparseLinear
from sparsenn.errors import SparseNNError, UsageError
from sparsenn.layers import Conv2d, Flatten, MaxPool2d, Softmax

try:
    import torch
except ImportError:
    torch = None

__all__ = ["PRECISIONS", "Peer", "Problem", "Way", "as_dense", "as_matrix", "torch", "ways"]

PRECISIONS = ("float32", "tf32", "float16")

SPARSE_ENOUGH = 0.3
"""The largest share of weights in all places for which PyTorch's sparse product is tried."""

MOST_DENSE_BYTES = 2 << 30
"""Of rows that other ways take dense though they are sparse."""

GRAPH_WARM_UP = 3
"""Calls of PyTorch before they are captured."""

Call = Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Problem:
    """A network and its rows in host memory, and where they are computed.

    Parameters
    ----------
    rows : float32 (rows, inputs), CSR, or an array for each input's name.
    device, where : `cuda` or `cpu` computes; rows are on that `device`, or on the `host`, and outputs go there, too.
    classes : (rows,) the true class of each, where there are classes.
    categories : how many inputs are known to stay alive, where that is known.
    are_categories : whether the numbers of those are the answer, on the host; else the outputs are.
    file, module : the network as an ONNX file and as a module of PyTorch, where there is one.
    """

    network: Network
    rows: Any
    device: str = "cpu"
    where: str = "host"
    classes: np.ndarray | None = None
    categories: int | None = None
    are_categories: bool = False
    file: bytes | None = None
    module: Any = None

    @property
    def inputs(self) -> Any:
        """The rows as a session takes them: without a name where there is one input."""
        return next(iter(self.rows.values())) if isinstance(self.rows, dict) and len(self.rows) == 1 else self.rows


@dataclass(frozen=True, eq=False)
class Way:
    """One way to compute a problem.

    Parameters
    ----------
    precision : of the products.
    run : computes all outputs; does not wait for the device.
    outputs : takes what `run` returns to a matrix (rows, outputs), of CuPy where it is on a GPU, else of NumPy.
    """

    name: str
    precision: str
    run: Call
    outputs: Callable[[Any], Any]


Peer = Callable[[Problem, str], Iterator[Way]]


def ways(peers: Iterable[Peer], problem: Problem, precision: str = "float32") -> Iterator[Way]:
    """Yield the ways of some peers, one at a time: PyTorch's switch for TF32 is set for the way in hand.

    A peer that fails, for want of memory or of a layer, is left out.
    """
    for peer in peers:
        try:
            yield from peer(problem, precision)
        except (SparseNNError, RuntimeError) as error:
            print(f"{peer.__name__}: left out: {error}", file=sys.stderr)


def as_matrix(outputs: Any) -> np.ndarray:
    """Return a row's numbers side by side, of one array on the host or several."""
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    several = outputs if isinstance(outputs, list | tuple) else [outputs]
    return np.concatenate([np.asarray(each).reshape(len(each), -1) for each in several], axis=1)


# ---- Networks as files and modules, on a CPU --------------------------------------------------------------------


def onnx_runtime(problem: Problem, precision: str) -> Iterator[Way]:
    """Yield the whole file by ONNX Runtime, with its own number of threads."""
    if find_spec("onnxruntime") is None or problem.file is None:
        return
    import onnxruntime

    runtime = onnxruntime.InferenceSession(problem.file, providers=["CPUExecutionProvider"])
    rows = problem.rows if isinstance(problem.rows, dict) else {runtime.get_inputs()[0].name: problem.rows}
    yield Way("onnxruntime", precision, lambda: runtime.run(None, rows), as_matrix)


def openvino(problem: Problem, precision: str) -> Iterator[Way]:
    """Yield the file by OpenVINO, compiled for latency."""
    if find_spec("openvino") is None or problem.file is None:
        return
    import openvino  # type: ignore[import-not-found]

    core = openvino.Core()
    model = core.read_model(problem.file)
    model.reshape(list(problem.inputs.shape))
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}  # bfloat16 where it can, by itself
    compiled = core.compile_model(model, "CPU", options)
    yield Way("openvino", precision, lambda: compiled(problem.inputs)[0], as_matrix)


def deepsparse(problem: Problem, precision: str) -> Iterator[Way]:
    """Yield the file by DeepSparse, in a process of its own."""
    if INTERPRETER is not None and problem.file is not None:
        yield Way("deepsparse", precision, DeepSparse(INTERPRETER, problem.file, problem.inputs), as_matrix)


def torch_module(problem: Problem, precision: str) -> Iterator[Way]:
    """Yield the module by PyTorch."""
    if torch is None or problem.module is None:
        return
    tensors = [torch.from_numpy(each) for each in problem.rows.values()]
    yield Way("torch", precision, _without_gradients(lambda: problem.module(*tensors)), as_matrix)


# ---- Layer by layer ---------------------------------------------------------------------------------------------


def numpy_products(problem: Problem, precision: str) -> Iterator[Way]:
    """Yield a product by NumPy's BLAS a layer, all weights stored; nothing where a layer is not written for it here."""
    layers = list(as_dense(problem.network))
    if problem.device != "cpu" or not isinstance(problem.rows, np.ndarray) or not all(map(_is_plain, layers)):
        return

    def run() -> np.ndarray:
        values = problem.rows
        for layer in layers:
            values = values @ layer.weights + layer.bias_vector()
            if isinstance(layer.activation, ReLU):
                values = np.maximum(values, 0)
        return values

    yield Way("NumPy, dense", "float32", run, np.asarray)


def torch_layers(problem: Problem, precision: str) -> Iterator[Way]:
    """Yield PyTorch's ways: eager, as one CUDA graph, with ReLU in the product, and sparse times dense.

    Raises
    ------
    UsageError
        A layer or an activation is not known in PyTorch here.
    """
    if torch is None or not isinstance(problem.rows, np.ndarray):
        return
    network, rows, device = problem.network, problem.rows, problem.device
    dense = as_dense(network)
    peer = TorchNetwork(dense, device, precision)
    shape = (len(rows), *dense.shapes[0])
    if problem.where == "host":
        source = torch.from_numpy(np.ascontiguousarray(rows, np.float32))
        run = lambda: peer(source.to(device, peer.kind).reshape(shape)).float().cpu().numpy()  # noqa: E731
        yield Way("PyTorch, eager", precision, run, lambda found: found.reshape(len(rows), -1))
        return
    values = peer.tensor(rows).reshape(shape)
    calls: dict[str, Call] = {"": lambda: peer(values)}
    if device == "cuda" and all(isinstance(layer, Linear) for layer in dense):
        calls[", ReLU in the product"] = _fused(dense, peer, values)
    for name, call in calls.items():
        yield Way(f"PyTorch, eager{name}", precision, call, _torch_matrix)
        graph = torch_graph(call) if device == "cuda" else None
        if graph is not None:
            yield Way(f"PyTorch, graph{name}", precision, graph, _torch_matrix)
    density = sum(layer.edges for layer in network) / max(1, sum(layer.edges for layer in dense))
    if precision == "float32" and density < SPARSE_ENOUGH and all(map(_is_plain, dense)):
        yield Way("PyTorch, sparse times dense", precision, _sparse(network, device, values), _torch_matrix)


def torch_categories(problem: Problem, precision: str) -> Iterator[Way]:
    """Yield PyTorch's products of sparse and dense matrices, and the numbers of the rows that end with a non-zero.

    Rows have to be where it computes, and not too many to be dense there.
    """
    network, rows = problem.network, problem.rows
    if torch is None or problem.where == "host" or 4 * rows.shape[0] * network.inputs > MOST_DENSE_BYTES:
        return
    dense = (rows.to_scipy().toarray() if isinstance(rows, CSR) else rows).astype(np.float32)
    compute = _sparse(network, problem.device, torch.from_numpy(dense).to(problem.device))
    run = _without_gradients(lambda: compute().any(dim=1).nonzero())
    yield Way("PyTorch, sparse times dense", "float32", run, lambda found: found.cpu().numpy().reshape(-1))


def as_dense(network: Network) -> Network:
    """Return the network with its sparse layers stored as dense ones."""
    layers = [
        Linear(layer.weights.to_scipy().toarray(), layer.bias_vector(), layer.activation)
        if isinstance(layer, SparseLinear)
        else layer
        for layer in network
    ]
    return Network(tuple(layers), network.image)


def _is_plain(layer: Any) -> bool:
    """Whether a layer is fully connected, with ReLU or no activation."""
    activation = getattr(layer, "activation", None)
    is_relu = isinstance(activation, ReLU) and activation.clip is None
    return isinstance(layer, Linear | SparseLinear) and (is_relu or getattr(activation, "name", "") == "identity")


class TorchNetwork:
    """The same network in PyTorch, channels first.

    Raises
    ------
    UsageError
        A layer or an activation is not known in PyTorch here.
    """

    def __init__(self, network: Network, device: str, precision: str) -> None:
        allow_tf32(precision == "tf32")
        torch.backends.cudnn.benchmark = True
        self.device, self.kind = device, torch.float16 if precision == "float16" else torch.float32
        self.layers = [self._layer(layer) for layer in network]

    def tensor(self, values: np.ndarray) -> Any:
        """Return numbers on the device, in the precision's type."""
        return torch.tensor(np.ascontiguousarray(values), dtype=self.kind, device=self.device)

    def transposed(self, matrix: np.ndarray) -> Any:
        """Return a matrix transposed on the device: NumPy takes long to transpose a large one."""
        return self.tensor(matrix).t().contiguous()

    def _layer(self, layer: Any) -> Callable[[Any], Any]:
        functional = torch.nn.functional
        if isinstance(layer, Conv2d):
            weights, bias = self.tensor(layer.weights), self.tensor(layer.bias_vector())
            _, stride, padding, dilation = layer.sliding_window
            finish = self._activation(layer)
            return lambda x: finish(functional.conv2d(x, weights, bias, stride, padding, dilation, layer.groups))
        if isinstance(layer, Linear):
            weights, bias = self.transposed(layer.weights), self.tensor(layer.bias_vector())
            finish = self._activation(layer)
            return lambda x: finish(functional.linear(x, weights, bias))
        if isinstance(layer, MaxPool2d):
            return lambda x: functional.max_pool2d(x, *layer.sliding_window[:3])
        if isinstance(layer, Flatten):
            return lambda x: x.flatten(1)
        if isinstance(layer, Softmax):
            return lambda x: torch.softmax(x.flatten(1), 1).view_as(x)
        raise UsageError(f"PyTorch's {type(layer).__name__} is not known here")

    @staticmethod
    def _activation(layer: Any) -> Callable[[Any], Any]:
        if isinstance(layer.activation, ReLU) and layer.activation.clip is None:
            return torch.relu_
        if layer.activation.name == "identity":
            return lambda x: x
        raise UsageError(f"PyTorch's {layer.activation} is not known here")

    def __call__(self, images: Any) -> Any:
        with torch.no_grad():
            for layer in self.layers:
                images = layer(images)
        return images


def allow_tf32(is_allowed: bool) -> None:
    """Set whether PyTorch may multiply float32 numbers in TF32."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = is_allowed


def torch_graph(call: Call) -> Call | None:
    """Return a call that launches a call's work as one CUDA graph and returns its outputs; None if PyTorch refuses."""
    try:
        with torch.no_grad():
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(GRAPH_WARM_UP):
                    call()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = call()
    except RuntimeError as error:
        print(f"PyTorch: not captured: {error}", file=sys.stderr)
        return None

    def launch() -> Any:
        graph.replay()
        return outputs

    return launch


def _fused(dense: Network, peer: TorchNetwork, rows: Any) -> Call:
    """Return products by cuBLASLt that add the bias and apply ReLU."""
    layers = [
        (peer.transposed(layer.weights), peer.tensor(layer.bias_vector()), isinstance(layer.activation, ReLU))
        for layer in dense
    ]

    def run() -> Any:
        values = rows
        for weights, bias, is_relu in layers:
            product = torch._addmm_activation if is_relu else torch.addmm
            values = product(bias, values, weights.t())
        return values

    return _without_gradients(run)


def _sparse(network: Network, device: str, rows: Any) -> Call:
    """Return products of sparse and dense matrices; features lie column by column from the first layer to the last."""
    layers = []
    for layer in network:
        bias = torch.from_numpy(layer.bias_vector()).to(device)[:, None]
        if isinstance(layer, SparseLinear):
            csc = layer.weights.to_scipy()
            indices = [torch.from_numpy(array.astype(np.int32)) for array in (csc.indptr, csc.indices)]
            values = torch.from_numpy(csc.data.astype(np.float32))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that such tensors are new, and checks cost time
                shape = csc.shape[::-1]
                weights = torch.sparse_csr_tensor(*indices, values, shape, device=device, check_invariants=True)
        else:
            weights = torch.tensor(layer.weights, device=device).t().contiguous()
        layers.append((weights, bias, layer.activation))

    def run() -> Any:
        values = rows.t().contiguous()
        for weights, bias, activation in layers:
            values = (weights @ values).add_(bias)
            if isinstance(activation, ReLU):
                values = values.clamp_(0, activation.clip)
        return values.t()

    return _without_gradients(run)


def _without_gradients(call: Call) -> Call:
    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


def _torch_matrix(outputs: Any) -> Any:
    found = outputs.float().reshape(len(outputs), -1)
    if not found.is_cuda:
        return found.numpy()
    import cupy

    return cupy.from_dlpack(found)
