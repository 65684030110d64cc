"""What else people run a network with: each made ready for a network once, then called with rows.

A peer multiplies in float32, on the same device where it can. Their libraries are the user's own: what is not installed
is said in a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.formats.named_shapes import named_columns
from sparsenn.layers import Activation, FullyConnected, ReLU, SparseLinear
from sparsenn.layers.activation_names import elsewhere_of
from sparsenn.network import Network
from sparsenn.printable import kind_of


@dataclass(frozen=True)
class Peer:
    """A network that is ready to be called."""

    run: Callable[[Any], Any]
    """Takes rows that lie where they are computed, (rows, inputs), and returns outputs there once they are done."""
    place: Callable[[Array], Any] = np.asarray  # brings float32 rows there from the host
    fetch: Callable[[Any], Array] = np.asarray  # brings outputs to the host, (rows, outputs)

    def __call__(self, rows: Array) -> Array:
        """Return the outputs of rows, both on the host."""
        return self.fetch(self.run(self.place(rows)))


def _layers(network: Network) -> Sequence[Any]:
    layers = tuple(network)
    other = next((layer for layer in layers if not isinstance(layer, FullyConnected)), None)
    if other is not None:
        raise UsageError(f"it is compared on fully connected layers only; this network has {kind_of(other)}")
    return layers


def _scipy(network: Network, device: str) -> Peer:
    chain = []
    for layer in _layers(network):
        weights: Any = layer.weights
        if isinstance(layer, SparseLinear):
            weights = weights.to_scipy().tocsr().astype(np.float32)
        chain.append((weights, layer.bias_vector(), layer.activation))

    def run(rows: Array) -> Array:
        for weights, bias, activation in chain:
            rows = activation(np.asarray(rows @ weights) + bias)
        return rows

    return Peer(run)


def _onnxruntime(network: Network, device: str) -> Peer:
    """ONNX Runtime, on a CPU on the graph that a network was imported from; else on its dense ONNX file, with zeros."""
    import onnxruntime

    from sparsenn.io.importers.onnx import to_onnx

    providers = ["CPUExecutionProvider"] if device == "cpu" else ["CUDAExecutionProvider"]
    if providers[0] not in onnxruntime.get_available_providers():
        raise UsageError(f"this build of it has no {providers[0]}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    graph = network.onnx_graph
    if graph is not None and device == "cpu" and not graph.row_by_row:
        inputs = graph.inputs
        session = onnxruntime.InferenceSession(graph.model, options, providers=providers)
    else:
        inputs = {"input": network.shapes[0]}
        with TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            to_onnx(replace(network, named_inputs=inputs, named_outputs=None), path)
            session = onnxruntime.InferenceSession(path, options, providers=providers)
    columns = list(named_columns(inputs))

    def on_host(rows: Array) -> Array:
        if len(inputs) == 1:
            named = {name: rows.reshape(-1, *shape) for name, shape in inputs.items()}
        else:
            named = {name: rows[:, first:last].reshape(-1, *shape) for name, shape, first, last in columns}
        outputs = [each.reshape(len(rows), -1) for each in session.run(None, named)]
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=1)

    if device == "cpu":
        return Peer(on_host)
    ((name, shape),) = inputs.items()

    def run(rows: Any) -> Any:
        binding = session.io_binding()
        binding.bind_ortvalue_input(name, rows)
        binding.bind_output(session.get_outputs()[0].name, device)
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return binding

    def fetch(binding: Any) -> Array:
        outputs: Array = binding.copy_outputs_to_cpu()[0]
        return outputs.reshape(len(outputs), -1)

    return Peer(run, lambda rows: onnxruntime.OrtValue.ortvalue_from_numpy(rows.reshape(-1, *shape), device), fetch)


def _torch_activation(activation: Activation) -> Any:
    import torch

    if isinstance(activation, ReLU) and activation.clip is not None:
        return torch.nn.Hardtanh(0.0, activation.clip)
    found = elsewhere_of(activation, "torch")
    assert found is not None, "PyTorch has modules for all activations"
    return getattr(torch.nn, found[0].name)(**found[1])


def _torch(network: Network, device: str) -> Peer:
    import torch

    modules = []
    for layer in _layers(network):
        weights = layer.weights.to_scipy().toarray() if isinstance(layer, SparseLinear) else layer.weights
        linear = torch.nn.Linear(layer.inputs, layer.outputs)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(weights.T, np.float32)))
            linear.bias.copy_(torch.from_numpy(np.array(layer.bias_vector(), np.float32)))
        modules += [linear, _torch_activation(layer.activation)]
    chain = torch.nn.Sequential(*modules).to(device).eval()

    def run(rows: Any) -> Any:
        with torch.inference_mode():
            outputs = chain(rows)
        if device == "cuda":
            torch.cuda.synchronize()
        return outputs

    return Peer(run, lambda rows: torch.from_numpy(rows).to(device), lambda outputs: outputs.cpu().numpy())


PEERS: dict[str, Callable[[Network, str], Peer]] = {"onnxruntime": _onnxruntime, "torch": _torch, "scipy": _scipy}
"""Those that `peer_for` makes, by name."""


def peer_for(name: str, network: Network, device: str) -> Peer:
    """Make a network ready for a peer."""
    try:
        return PEERS[name](network, device)
    except ImportError as error:
        library = error.name or name
        raise UsageError(f"{library} is not installed (pip install {library})") from error
