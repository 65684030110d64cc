"""Bound calls: a session's work on arrays that stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sparsenn.backends import Backend
from sparsenn.engine.inputs import to_input_type
from sparsenn.errors import ShapeError, UsageError

__all__ = ["BoundCall", "bind"]


class BoundCall:
    """A call of a session on fixed arrays, which `Session.bind` returns; each call overwrites the outputs.

    ::

        call = session.bind(rows)
        rows[:] = measured()
        outputs = call()                              # always the same array

    With rows on a GPU, a call launches one captured graph, on CuPy's current stream or PyTorch's for its tensors, and
    does nothing else: it waits for nothing, and rows are not checked for NaN and infinity. Work that a call queues has
    to end before another thread or stream calls. The arrays, and the memory that the graph uses, live as long as this
    object.

    Parameters
    ----------
    session : Session
        The session that made it; not named as a type, since its module reads this one.
    run : callable
        Queues the work, or does it.
    inputs, outputs : array
        As the attributes.

    Attributes
    ----------
    inputs : array
        The rows, as they were bound; change their numbers between calls.
    outputs : array
        The outputs, of shape (rows, outputs), in the inputs' library's type, or the array that was bound as `out`.
    """

    def __init__(self, session: Any, run: Callable[[], Any], inputs: Any, outputs: Any) -> None:
        self._session, self._run = session, run
        self.inputs, self.outputs = inputs, outputs

    def __call__(self) -> Any:
        """Compute the outputs of the numbers that are in `inputs` now, and return `outputs`.

        Raises
        ------
        UsageError
            The session is closed.
        SparseNNError
            Rows are on the host, and `Session.__call__` refuses them.
        """
        if self._session._closed:
            raise UsageError("the session is closed")
        self._run()
        return self.outputs


def bind(session: Any, inputs: Any, out: Any) -> BoundCall:
    """Return a call of a session on fixed arrays; parameters and errors are those of `Session.bind`."""
    for _ in range(2):  # kernels are chosen and compiled, and what each call does is settled
        first = session(inputs)
    backend = session.backend
    with session._exclusive("bind"):
        rows = session._read(inputs)
        matrix: Any = rows.rows
        is_read = not rows.is_sparse and matrix.dtype in backend.row_types and matrix.flags.c_contiguous
        if isinstance(first, dict) or not is_read or not _is_view(backend, matrix, inputs):
            raise UsageError(
                "only one dense matrix can be bound, row-major and of float32, on a GPU also float16, not in float64"
            )
        target = None if out is None else _array_of(backend, out)
        if target is not None:
            _check_target(target, _array_of(backend, first))
            if isinstance(target, np.ndarray) and not (
                target.flags.writeable and np.may_share_memory(target, np.asarray(out))
            ):
                raise UsageError("out cannot be written where it lies; give an array in memory of its own")
        if rows.on_host:
            target = np.empty_like(_array_of(backend, first)) if target is None else target
            bound = to_input_type(inputs, target) if out is None else out
            return BoundCall(session, partial(_copy_outputs, session, inputs, target), inputs, bound)
        work = session._cache.bound(rows)
        call = None if work is None else backend.queue.captured_call(work, matrix, target, inputs)
    if call is None:
        raise UsageError(
            "the network cannot be bound: ONNX Runtime computes some of its layers on the host, its weights or rows "
            "do not fit into the device's memory at once, or rows of zeros leave between its steps"
        )
    return BoundCall(session, call, inputs, to_input_type(inputs, call.outputs) if out is None else out)


def _array_of(backend: Backend, array: Any) -> Any:
    """Return a NumPy or CuPy array in the memory of an array of any library."""
    found = backend.device_rows(array)
    if found is not None:
        return found
    try:
        return np.asarray(array)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"the array cannot be read as one of NumPy's: {error}") from error


def _is_view(backend: Backend, rows: Any, inputs: Any) -> bool:
    both = rows, _array_of(backend, inputs)
    addresses = {each.ctypes.data if isinstance(each, np.ndarray) else each.data.ptr for each in both}
    return len(addresses) == 1


def _copy_outputs(session: Any, inputs: Any, target: Any) -> None:
    np.copyto(target, _array_of(session.backend, session(inputs)))


def _check_target(out: Any, outputs: Any) -> None:
    """Refuse an array that cannot take outputs, by a `ShapeError` or `UsageError`."""
    if tuple(out.shape) != tuple(outputs.shape):
        raise ShapeError(f"out has the shape {tuple(out.shape)}; the outputs have {tuple(outputs.shape)}")
    if np.dtype(out.dtype) != np.dtype(outputs.dtype):
        raise UsageError(f"out is of type {out.dtype}; the outputs are of {outputs.dtype}")
    if not out.flags.c_contiguous:
        raise UsageError("out is not contiguous; give a row-major array")
