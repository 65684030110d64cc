"""Whole networks in ONNX Runtime, in place of all kernels: where a network allows it, and a session has measured it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from sparsenn.backends.foreign import ONNX_RUNTIME
from sparsenn.engine.compiled_network import CompiledNetwork
from sparsenn.engine.options import PRECISIONS
from sparsenn.engine.steps import Step
from sparsenn.network import Network

__all__ = ["may_run_whole", "onnx_runtime_version", "whole_step"]


def may_run_whole(compiled: CompiledNetwork, form: str) -> bool:
    """Return whether ONNX Runtime may run all layers for rows of a form, if that is measured to be faster."""
    options = compiled.options
    permitted = compiled.network.onnx_graph is not None and compiled.measures and not compiled.in_order
    plain = form == "dense" and options.kernel == "auto" and options.precision == PRECISIONS[0]
    return permitted and plain and compiled.backend.device == ONNX_RUNTIME.device and bool(onnx_runtime_version())


def whole_step(network: Network) -> Step:
    """Return the step that takes rows through all layers of a network."""
    return Step(0, len(network), ONNX_RUNTIME)


@cache
def onnx_runtime_version() -> str:
    """Return the version of the package onnxruntime; an empty text where it is not installed."""
    try:
        return version("onnxruntime")
    except PackageNotFoundError:
        return ""
