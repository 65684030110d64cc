"""The key of a measured choice, in plain values: device, versions, network, options and rows."""

from __future__ import annotations

import sys
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any

import numpy as np

from sparsenn.engine.choices import bucket_of_choice
from sparsenn.engine.choosing import RowsShape
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.whole import may_run_whole, onnx_runtime_version
from sparsenn.layers import Conv2d, ForeignLayer, SparseLinear, connected_layer, positions_of
from sparsenn.network import Network
from sparsenn.runtime.storage import package_version

__all__ = ["choice_key", "convolution_sizes"]

SAMPLED_INDICES = 4096
"""Indices of a sparse layer that its digest covers, evenly spread."""

LEADING_BITS = 3
"""Binary digits of a convolution's weights other than zero that count: layers of like numbers take as long."""


def choice_key(compiled: CompiledNetwork, rows: RowsShape) -> dict[str, str | int]:
    """Return the key of a choice: all that times depend on."""
    machine, options = compiled.backend.machine, compiled.options
    return {
        "device": f"{compiled.backend.device}: {machine.name}",
        "versions": _versions(compiled.backend.device, may_run_whole(compiled, rows.form)),
        "sources": _sources_digest(),
        "network": _network_digest(compiled.merged.network),
        "kernel": options.kernel,
        "precision": options.precision,
        "rows": bucket_of_choice(rows.count),
        "form": rows.form,
        "in_order": int(compiled.in_order),
    }


def _network_digest(network: Network) -> str:
    """Return a digest of what times depend on: layers, their sizes, and samples of where sparse weights are."""
    digest = blake2b(digest_size=16)
    for number, node in enumerate(network.nodes):
        layer, positions = connected_layer(node.layer), positions_of(node.layer)
        words = type(layer).__name__, node.sources, network.shapes[number + 1], getattr(layer, "activation", None)
        digest.update(repr(words).encode())
        if positions > 1:
            digest.update(repr(positions).encode())
        if isinstance(layer, SparseLinear):
            indices = layer.weights.indices
            sample = indices[:: max(1, indices.size // SAMPLED_INDICES)]
            digest.update(np.ascontiguousarray(sample, np.int64).tobytes() + str(layer.edges).encode())
        if isinstance(layer, ForeignLayer):
            digest.update(layer.model)
        if isinstance(layer, Conv2d):
            digest.update(repr(convolution_sizes(layer)).encode())
    return digest.hexdigest()


def convolution_sizes(layer: Conv2d) -> tuple[Any, ...]:
    """Return what the time of a convolution depends on, but for its images; weights left are rounded."""
    shift = max(0, layer.nonzeros.bit_length() - LEADING_BITS)
    return layer.weights.shape, layer.sliding_window, layer.groups, layer.nonzeros >> shift << shift


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


def _versions(device: str, runs_whole: bool) -> str:
    libraries = ("numpy", "numba", *(["cupy"] if device.startswith("cuda") else []))
    versions = {name: sys.modules[name].__version__ for name in libraries if name in sys.modules}
    if runs_whole:
        versions["onnxruntime"] = onnx_runtime_version()
    return ", ".join(f"{name} {number}" for name, number in {"sparsenn": package_version(), **versions}.items())
