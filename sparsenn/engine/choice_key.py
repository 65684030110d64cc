"""The key of a measured choice, in plain values: device, versions, network, options and rows."""

from __future__ import annotations

import sys
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any

import numpy as np

from sparsenn.backends.foreign import onnx_runtime_version
from sparsenn.engine.choosing import RowsShape
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.steps import bucket_of_choice
from sparsenn.layers import Conv2d, ForeignLayer, SparseLinear, connected_layer, positions_of
from sparsenn.network import Network
from sparsenn.runtime.storage import package_version

__all__ = ["choice_key", "layer_key"]

SAMPLED_INDICES = 4096  # indices of a sparse layer that its digest covers, evenly spread

LEADING_BITS = 3
"""Binary digits of a convolution's weights other than zero that count: layers of like numbers take as long."""


def choice_key(compiled: CompiledNetwork, rows: RowsShape) -> dict[str, str | int]:
    """Return the key of a choice: all that times depend on."""
    device, options, network = compiled.backend.device, compiled.options, compiled.merged.network
    libraries = ("numpy", "numba", *(["cupy"] if device.startswith("cuda") else []))
    versions = {name: sys.modules[name].__version__ for name in libraries if name in sys.modules}
    if compiled.whole_step(rows.form) is not None:
        versions["onnxruntime"] = onnx_runtime_version()
    layers = [(node.sources, layer_key(network, number)) for number, node in enumerate(network.nodes)]
    return {
        "device": f"{device}: {compiled.backend.machine.name}",
        "versions": ", ".join(f"{name} {each}" for name, each in {"sparsenn": package_version(), **versions}.items()),
        "sources": _sources_digest(),
        "network": blake2b(repr(layers).encode(), digest_size=16).hexdigest(),
        "kernel": options.kernel,
        "precision": options.precision,
        "rows": bucket_of_choice(rows.count),
        "form": rows.form,
        "in_order": int(compiled.in_order),
    }


def layer_key(network: Network, number: int) -> tuple[Any, ...]:
    """Return what the time of a layer depends on, but for rows: sizes, and a sample of where sparse weights are.

    Of a convolution, the number of weights that are left is rounded.
    """
    layer = connected_layer(network[number])
    key: tuple[Any, ...] = type(layer).__name__, positions_of(network[number]), network.shapes[number + 1]
    if isinstance(layer, SparseLinear):
        indices = layer.weights.indices
        sample = np.ascontiguousarray(indices[:: max(1, indices.size // SAMPLED_INDICES)], np.int64)
        key += layer.edges, blake2b(sample.tobytes(), digest_size=16).digest()
    if isinstance(layer, ForeignLayer):
        key += (blake2b(layer.model, digest_size=16).digest(),)
    if isinstance(layer, Conv2d):
        shift = max(0, layer.nonzeros.bit_length() - LEADING_BITS)
        key += layer.weights.shape, layer.sliding_window, layer.groups, layer.nonzeros >> shift << shift
    return *key, network.input_shapes(number), type(getattr(layer, "activation", None)).__name__


@lru_cache(maxsize=1)
def _sources_digest() -> str:
    """Return a digest of the sources of all kernels, and of the code that launches them."""
    digest = blake2b(digest_size=16)

    def add(folder: Any) -> None:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_dir():
                add(entry)
            elif entry.name.endswith((".py", ".cu", ".cuh")):
                digest.update(entry.read_bytes())

    add(files("sparsenn.backends"))
    return digest.hexdigest()
