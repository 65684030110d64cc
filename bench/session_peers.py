"""What sessions are compared with: the same network in PyTorch and in NumPy, from the same rows to the same outputs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from image_timing import Peer, torch
from session_networks import as_dense

from sparsenn import Linear, Network, ReLU, SparseLinear
from sparsenn.errors import UsageError

__all__ = ["PRECISIONS", "Way", "numpy_way", "torch", "torch_categories", "torch_ways"]

PRECISIONS = ("float32", "tf32", "float16")

SPARSE_ENOUGH = 0.3
"""The largest share of weights in all places for which PyTorch's sparse product is tried."""


@dataclass(frozen=True, eq=False)
class Way:
    """One way to compute a network.

    Parameters
    ----------
    name : in words.
    precision : what it multiplies in.
    run : computes all outputs; does not wait for the device.
    outputs : takes what `run` returns to a float32 matrix (rows, outputs), of CuPy where it is on a GPU, else of NumPy.
    """

    name: str
    precision: str
    run: Callable[[], Any]
    outputs: Callable[[Any], Any]


def numpy_way(network: Network, rows: np.ndarray) -> Way:
    """Return a product by NumPy's BLAS a layer, all weights stored.

    Raises
    ------
    UsageError
        A layer is not fully connected, or its activation is neither ReLU nor none.
    """
    layers = []
    for layer in as_dense(network):
        if not isinstance(layer, Linear) or not _is_plain(layer):
            raise UsageError(f"a {type(layer).__name__} such as this network has is not computed by NumPy here")
        layers.append((layer.weights, layer.bias_vector(), isinstance(layer.activation, ReLU)))

    def run() -> np.ndarray:
        values = rows
        for weights, bias, positive in layers:
            values = values @ weights + bias
            if positive:
                values = np.maximum(values, 0)
        return values

    return Way("dense", "float32", run, np.asarray)


def torch_ways(network: Network, rows: np.ndarray, device: str, where: str, precision: str) -> Iterator[Way]:
    """Yield PyTorch's ways; one at a time, for its switch for TF32 is set to the precision of the way in hand.

    Parameters
    ----------
    rows : (rows, inputs) float32 in host memory.
    device : `cuda` or `cpu`.
    where : `device` if rows and outputs are there, `host` if they come from ordinary memory and go back to it.

    Raises
    ------
    UsageError
        A layer or an activation is not known in PyTorch here.
    """
    dense = as_dense(network)
    peer = Peer(dense, device, precision)
    shape = (len(rows), *dense.shapes[0])
    if where == "host":
        source = torch.from_numpy(np.ascontiguousarray(rows, np.float32))
        run = lambda: peer(source.to(device, peer.kind).reshape(shape)).float().cpu().numpy()  # noqa: E731
        yield Way("eager", precision, run, lambda found: found.reshape(len(rows), -1))
        return
    values = peer.tensor(rows).reshape(shape)
    calls: dict[str, Callable[[], Any]] = {"": lambda: peer(values)}
    if device == "cuda" and all(isinstance(layer, Linear) for layer in dense):
        calls[", ReLU in the product"] = _fused(dense, peer, values)
    for name, call in calls.items():
        yield Way(f"eager{name}", precision, call, _as_matrix)
        captured = peer.captured(_without_gradients(call))
        if captured is not None:
            yield Way(f"graph{name}", precision, captured, _as_matrix)
    density = sum(layer.edges for layer in network) / max(1, sum(layer.edges for layer in dense))
    if precision == "float32" and density < SPARSE_ENOUGH and all(_is_plain(layer) for layer in dense):
        yield Way("sparse times dense", precision, _sparse(network, device, values), _as_matrix)


def torch_categories(network: Network, rows: np.ndarray, device: str) -> Way:
    """Return PyTorch's products of sparse and dense matrices, and the numbers of the rows that end with a non-zero.

    Parameters
    ----------
    network : sparse layers with ReLU, which may be clipped.
    rows : (rows, inputs) float32 in host memory.
    device : `cuda` or `cpu`.
    """
    compute = _sparse(network, device, torch.from_numpy(rows).to(device))
    run = _without_gradients(lambda: compute().any(dim=1).nonzero())
    return Way("sparse times dense", "float32", run, lambda found: found.cpu().numpy().reshape(-1))


def _is_plain(layer: Any) -> bool:
    activation = getattr(layer, "activation", None)
    relu = isinstance(activation, ReLU) and activation.clip is None
    return isinstance(layer, Linear | SparseLinear) and (relu or getattr(activation, "name", "") == "identity")


def _as_matrix(outputs: Any) -> Any:
    found = outputs.float().reshape(len(outputs), -1)
    if not found.is_cuda:
        return found.numpy()
    import cupy

    return cupy.from_dlpack(found)


def _without_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


def _fused(dense: Network, peer: Peer, rows: Any) -> Callable[[], Any]:
    """Return products by cuBLASLt that add the bias and apply ReLU."""
    layers = [
        (peer.transposed(layer.weights), peer.tensor(layer.bias_vector()), isinstance(layer.activation, ReLU))
        for layer in dense
    ]

    def run() -> Any:
        values = rows
        for weights, bias, positive in layers:
            product = torch._addmm_activation if positive else torch.addmm
            values = product(bias, values, weights.t())
        return values

    return _without_gradients(run)


def _sparse(network: Network, device: str, rows: Any) -> Callable[[], Any]:
    """Return products of sparse and dense matrices; features lie column by column from the first layer to the last."""
    layers = []
    for layer in network:
        bias = torch.from_numpy(layer.bias_vector()).to(device)[:, None]
        if isinstance(layer, SparseLinear):
            csc = layer.weights.to_scipy()
            parts = [torch.from_numpy(part.astype(np.int32)) for part in (csc.indptr, csc.indices)]
            values = torch.from_numpy(csc.data.astype(np.float32))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that such tensors are new, and checks cost time
                weights = torch.sparse_csr_tensor(*parts, values, csc.shape[::-1], device=device, check_invariants=True)
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


def left_out(error: Exception) -> None:
    """Say on standard error that PyTorch does not take part."""
    print(f"PyTorch: left out: {error}", file=sys.stderr)
