"""Other engines on a CPU: OpenVINO, and what DeepSparse took before it ended; and the least that a network can take."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
from ceilings import ceilings

from sparsenn import Network
from sparsenn.layers import Conv2d

__all__ = ["DEEPSPARSE", "DEEPSPARSE_NOTE", "floor", "openvino_call"]

DEEPSPARSE = {
    ("LeNet-300-100, 1.9 %", 1): 0.052,
    ("LeNet-300-100, 1.9 %", 64): 0.068,
    ("LeNet-300-100, 1.9 %", 10_000): 7.6,
    ("LeNet-300-100, 20 %", 1): 0.054,
    ("LeNet-300-100, 20 %", 64): 0.105,
    ("LeNet-300-100, 20 %", 10_000): 13.3,
    ("24 × 1024, 32 an output", 1): 1.5,
    ("24 × 1024, 32 an output", 64): 2.2,
    ("24 × 1024, 32 an output", 6000): 225.0,
    ("12 × 1024, 102 an output", 1): 0.86,
    ("12 × 1024, 102 an output", 64): 1.9,
    ("12 × 1024, 102 an output", 6000): 204.0,
    ("4 × 4096, 205 an output", 1): 4.1,
    ("4 × 4096, 205 an output", 64): 8.4,
    ("4 × 4096, 205 an output", 6000): 1057.0,
    ("resnet18, 100 %", 1): 20.5,
    ("resnet18, 100 %", 16): 219.0,
    ("resnet18, 10 %", 1): 8.6,
    ("resnet18, 10 %", 16): 58.0,
    ("resnet50, 100 %", 1): 53.0,
    ("resnet50, 100 %", 16): 623.0,
    ("resnet50, 10 %", 1): 16.4,
    ("resnet50, 10 %", 16): 129.0,
    ("resnet50, 5 %", 1): 13.4,
    ("resnet50, 5 %", 16): 109.0,
    ("mobilenet_v2, 100 %", 1): 4.0,
    ("mobilenet_v2, 100 %", 16): 59.0,
    ("mobilenet_v2, 10 %", 1): 2.9,
    ("mobilenet_v2, 10 %", 16): 43.0,
}
"""Milliseconds of DeepSparse 1.8 by network and rows, recorded once."""

DEEPSPARSE_NOTE = (
    "DeepSparse ended in 2025: its times are medians of version 1.8.0 with networks of the same shape and density, "
    "recorded once on two cores of an AMD EPYC with AVX-512, in another run than the others'."
)


def openvino_call(file: bytes, rows: np.ndarray) -> Callable[[], Any] | None:
    """Return a call of OpenVINO, compiled for latency, that returns the outputs; None where it is not installed."""
    if find_spec("openvino") is None:
        return None
    import openvino  # type: ignore[import-not-found]

    core = openvino.Core()
    model = core.read_model(file)
    model.reshape(list(rows.shape))
    compiled = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
    return lambda: compiled(rows)[0]


def floor(network: Network, rows: int) -> float:
    """Return the milliseconds that nothing can go below: weights, rows and outputs once, or multiply-adds."""
    multiply_adds = sum(
        int(np.count_nonzero(layer.weights)) * prod(shape[1:]) if isinstance(layer, Conv2d) else layer.edges
        for layer, shape in zip(network.layers, network.shapes[1:], strict=True)
    )
    weights = sum(
        int(np.count_nonzero(layer.weights)) if isinstance(layer, Conv2d) else layer.edges for layer in network
    )
    moved = 4 * (weights + rows * (network.inputs + network.outputs))
    return 1e3 * ceilings().floor(moved, rows * multiply_adds)
