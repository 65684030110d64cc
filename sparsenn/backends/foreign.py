"""Foreign layers and whole networks: ONNX Runtime computes them in host memory, on as many threads as the package."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from sparsenn.backends.kernel_records import WHOLE_OPERATION, Kernel
from sparsenn.errors import InputError, UsageError
from sparsenn.formats import Array
from sparsenn.formats.named_shapes import named_columns
from sparsenn.layers.foreign import ForeignGraph, ForeignLayer
from sparsenn.printable import reason_of
from sparsenn.runtime.workers import thread_count

_sessions: WeakKeyDictionary[ForeignLayer, tuple[Any, tuple[str, ...]]] = WeakKeyDictionary()
_making = threading.Lock()

_ONLY_ERRORS, _NOTHING = 3, 4  # of ONNX Runtime's severities


def onnx_runtime() -> Any:
    """Return the package onnxruntime.

    Raises
    ------
    UsageError
        It is not installed; the message says what to install.
    """
    try:
        return import_module("onnxruntime")
    except ImportError as error:
        raise UsageError(
            f"the model's other operators need the package onnxruntime ({error}); install it: pip install onnxruntime"
        ) from error


@cache
def onnx_runtime_version() -> str:
    """Return the version of the package onnxruntime; an empty text where it is not installed."""
    try:
        return version("onnxruntime")
    except PackageNotFoundError:
        return ""


def runtime_session(model: bytes, quiet: bool = False, spins: bool = False) -> Any:
    """Return an `onnxruntime.InferenceSession` on the CPU.

    A quiet one, for single runs, reports errors as exceptions alone, and frees memory at once. Idle threads of one that
    spins react faster to the next call, and take cores from all else meanwhile.
    """
    runtime = onnx_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = thread_count()
    options.log_severity_level = _NOTHING if quiet else _ONLY_ERRORS
    options.enable_cpu_mem_arena = not quiet
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    # products with weights that it dequantises are float32's; by default, it rounds inputs to 8 bits for them
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    # its fallback, to the same processor, prints to stdout
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)


class ForeignNetwork:
    """A whole network that ONNX Runtime computes.

    Parameters
    ----------
    graph : ForeignGraph
        The network's graph.

    Raises
    ------
    InputError
        ONNX Runtime does not take the graph.
    """

    def __init__(self, graph: ForeignGraph) -> None:
        self._run_options = onnx_runtime().RunOptions()
        self.inputs, self.outputs, self.row_by_row = graph.inputs, graph.outputs, graph.row_by_row
        try:
            self._session = runtime_session(graph.model, spins=True)
        except Exception as error:  # of whatever kinds that ONNX Runtime raises
            raise InputError(f"ONNX Runtime does not take the network's graph: {reason_of(error)}") from error

    def run(self, rows: Array) -> Array:
        """Return (rows, outputs) float32 for a matrix of float32 in host memory."""
        count = rows.shape[0]
        feeds = {
            name: np.ascontiguousarray(rows[:, first:last]).reshape(count, *shape)
            for name, shape, first, last in named_columns(self.inputs)
        }
        matrices = [each.reshape(count, -1) for each in self.results(feeds)]
        return matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1)

    def results(self, feeds: dict[str, Array]) -> list[Array]:
        """Return the outputs, each of shape (rows, ...), of float32 inputs of such shapes."""
        count = len(next(iter(feeds.values()))) if self.row_by_row else 1
        if count > 1:
            rows = ({name: feed[row : row + 1] for name, feed in feeds.items()} for row in range(count))
            return [np.concatenate(each) for each in zip(*map(self.results, rows), strict=True)]
        try:
            results: list[Array] = self._session.run(list(self.outputs), feeds, self._run_options)
        except Exception as error:  # likewise
            raise _network_error(error) from error
        return results

    def bind(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> Callable[[], None]:
        """Return a function that computes outputs of inputs, in contiguous float32 arrays that it refers to.

        ONNX Runtime takes longer to make tensors of the arrays of each call, and arrays of tensors, than copies of some
        kilobytes take.
        """
        binding, run = self._session.io_binding(), self._session.run_with_iobinding
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

        def compute() -> None:
            try:
                run(binding)
            except Exception as error:  # likewise
                raise _network_error(error) from error

        return compute


def _network_error(error: Exception) -> InputError:
    return InputError(f"ONNX Runtime cannot compute the network: {reason_of(error)}")


ONNX_RUNTIME = Kernel(
    operation=WHOLE_OPERATION,
    name="onnxruntime",
    device="cpu",
    summary="ONNX Runtime computes the whole network",
    launch=ForeignNetwork.run,
)
"""The kernel that runs a `ForeignNetwork`."""


def run_foreign(layer: ForeignLayer, matrices: Sequence[Array]) -> Array:
    """Return (rows, outputs) float32 for matrices of rows in host memory."""
    rows = matrices[0].shape[0]
    step = 1 if layer.row_by_row else max(1, rows)
    found = [_run_rows(layer, [matrix[first : first + step] for matrix in matrices]) for first in range(0, rows, step)]
    if len(found) == 1:  # without a copy, as most are
        return found[0]
    return np.concatenate(found) if found else np.empty((0, layer.outputs), np.float32)


def _session_of(layer: ForeignLayer) -> tuple[Any, tuple[str, ...]]:
    known = _sessions.get(layer)
    if known is None:
        with _making:
            known = _sessions.get(layer)
            if known is None:
                try:
                    session = runtime_session(layer.model)
                except UsageError:
                    raise
                except Exception as error:  # of whatever kinds that ONNX Runtime raises
                    raise InputError(f"ONNX Runtime does not take a layer's graph: {reason_of(error)}") from error
                known = _sessions[layer] = session, tuple(described.name for described in session.get_inputs())
    return known


def _run_rows(layer: ForeignLayer, matrices: Sequence[Array]) -> Array:
    session, names = _session_of(layer)
    count, feeds = matrices[0].shape[0], {}
    for name, tensor, matrix in zip(names, layer.takes, matrices, strict=True):
        rows = np.asarray(matrix, np.float32).reshape(-1, *tensor.shape)
        rows = rows[0] if tensor.axis is None else np.moveaxis(rows, 0, tensor.axis) if tensor.axis else rows
        feeds[name] = np.ascontiguousarray(rows).reshape(rows.shape)  # of which numbers without axes get one
    try:
        results = session.run(None, feeds)
    except Exception as error:  # likewise
        raise InputError(f"ONNX Runtime cannot compute {', '.join(layer.operators)}: {reason_of(error)}") from error
    found = []
    for tensor, result in zip(layer.gives, results, strict=True):
        shape = list(tensor.shape)
        if tensor.axis is not None:
            shape.insert(tensor.axis, count)
        if result.shape != tuple(shape):
            raise InputError(
                f"what ONNX Runtime computes ({', '.join(layer.operators)}) has the shape {result.shape} for these "
                f"inputs; as for others it would have {tuple(shape)}"
            )
        rows = np.moveaxis(result, tensor.axis, 0) if tensor.axis else result
        found.append(rows.reshape(count, tensor.width))
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)
