"""Calls on arrays like earlier ones, or on the same arrays: what a session does in other calls is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from math import inf, prod
from typing import Any, TypeAlias

import numpy as np

from sparsenn.backends import Backend
from sparsenn.backends.foreign import ForeignNetwork
from sparsenn.engine.executable import Executable
from sparsenn.errors import ShapeError, UsageError
from sparsenn.formats import Array
from sparsenn.formats.libraries import EXACT_INTEGER, to_input_type
from sparsenn.formats.named_shapes import cut_columns
from sparsenn.network import Network

MAX_COPIED = 1 << 14
"""Numbers of inputs and outputs up to which copies take less time than ONNX Runtime's conversion of arrays."""

ALIGNED = 16  # numbers: arrays in memory that ONNX Runtime reads begin at multiples of this
_ONLY = object()  # the name of the only array of a call without names

DirectCall: TypeAlias = Callable[[Any], Any]
"""A function of a call's inputs.

It returns the outputs, or None for inputs of other shapes or types, or with numbers to check.
"""

_Input: TypeAlias = tuple[Any, tuple[int, ...], np.dtype[Any]]
"""An array of a call: its name, shape and type."""


def no_outputs(inputs: Any) -> None:
    """Return None, as a call does whose inputs have no function of their own."""
    return


def key_of(inputs: Any, is_on_device: bool) -> tuple[Any, ...] | None:
    """Return the names, shapes and types of arrays; None for other inputs, for those of a device for no arrays."""
    if type(inputs) is np.ndarray:
        return inputs.shape, inputs.dtype
    if is_on_device:
        shape, dtype = getattr(inputs, "shape", None), getattr(inputs, "dtype", None)
        return (type(inputs), shape, dtype) if isinstance(shape, tuple) and isinstance(dtype, Hashable) else None
    if type(inputs) is not dict or not all(type(array) is np.ndarray for array in inputs.values()):
        return None
    return tuple((name, array.shape, array.dtype) for name, array in inputs.items())


def direct_call(
    network: Network, inputs: Any, count: int, run: ForeignNetwork | Callable[[Array], Any], is_checked: bool
) -> DirectCall:
    """Return the function of arrays like these inputs, whose numbers are in the network's order, in `count` rows.

    `run` takes a matrix of all rows to outputs that the caller owns.
    """
    arrays = {_ONLY: inputs} if type(inputs) is np.ndarray else inputs
    types = [array.dtype for array in arrays.values()]
    if any(each.kind not in "iub" and each.char not in "fd" for each in types):
        return no_outputs
    has_doubles = any(each.char == "d" for each in types)
    limit = inf if is_checked or has_doubles else None
    has_integers = len(types) > 1 and any(each.kind in "iu" for each in types)  # larger ones make rows float64
    if has_integers or network.has_foreign_layers:  # which may refuse such
        limit = float(EXACT_INTEGER) ** 2
    sources = (_ONLY,) if _ONLY in arrays else tuple(network.named_inputs or ())
    taken = [(source, arrays[source].shape, arrays[source].dtype) for source in sources]
    is_small = count * (network.inputs + network.outputs) <= MAX_COPIED
    if not isinstance(run, ForeignNetwork):
        if not is_small and any(each != np.float32 for each in types):  # which threads convert
            return no_outputs
        call = _matrix_call(run, network, count, taken, limit)
    elif is_small and not (run.row_by_row and count > 1):
        call = _copying_call(run, count, taken, limit, network.named_outputs)
    else:
        call = _matrix_call(run.run, network, count, taken, limit)
    return np.errstate(all="ignore")(call) if has_doubles else call


def _copying_call(
    foreign: ForeignNetwork, count: int, inputs: Sequence[_Input], limit: float | None, names: Collection[str] | None
) -> DirectCall:
    """Return a function that copies few numbers to memory that ONNX Runtime reads, and results from where it writes."""
    sizes = [-(-prod(each[1]) // ALIGNED) * ALIGNED for each in inputs]
    numbers, bound, places = np.zeros(sum(sizes), np.float32), dict[str, Array](), list[tuple[Any, ...]]()
    for each, (name, shape), size, end in zip(inputs, foreign.inputs.items(), sizes, np.cumsum(sizes), strict=True):
        place = numbers[end - size :][: prod(each[1])]
        bound[name] = place.reshape(count, *shape)
        places.append((*each, place.reshape(each[1])))
    results = {name: np.zeros((count, *shape), np.float32) for name, shape in foreign.outputs.items()}
    compute, vdot = foreign.bind(bound, results), np.vdot
    named_results = tuple(zip(names or (), results.values(), strict=False))
    matrix = None if names else next(iter(results.values())).reshape(count, -1)

    # as few steps as possible: a call with one row may take some microseconds
    def call(inputs: Any) -> Any:
        arrays = {_ONLY: inputs} if type(inputs) is np.ndarray else inputs
        if type(arrays) is not dict or len(arrays) != len(places):
            return None
        for source, shape, dtype, place in places:
            array = arrays.get(source)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            place[...] = array
        if limit is not None and not vdot(numbers, numbers) < limit:
            return None
        compute()
        if matrix is not None:
            return matrix.copy()
        outputs = {}
        for name, result in named_results:
            outputs[name] = result.copy()
        return outputs

    return call


def _matrix_call(
    run: Callable[[Array], Any], network: Network, count: int, inputs: Sequence[_Input], limit: float | None
) -> DirectCall:
    """Return the function that puts arrays side by side, as float32, for a function of a matrix."""
    names = network.named_outputs

    def call(inputs_of_call: Any) -> Any:
        arrays = {_ONLY: inputs_of_call} if type(inputs_of_call) is np.ndarray else inputs_of_call
        matrices: list[Array] = []
        if type(arrays) is not dict or len(arrays) != len(inputs):
            return None
        for source, shape, dtype in inputs:
            array = arrays.get(source)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return None
            array = np.ascontiguousarray(array, np.float32)
            if limit is not None and not np.vdot(array, array) < limit:
                return None
            matrices.append(array.reshape(count, -1))
        outputs = run(matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1))
        return outputs if names is None else cut_columns(names, outputs)

    return call


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
        if isinstance(first, dict):
            raise UsageError(f"outputs by name, {', '.join(map(repr, first))}, cannot be bound; call the session")
        if not is_read or _address(matrix) != _address(_array_of(backend, inputs)):
            raise UsageError(
                "only one dense matrix can be bound, row-major and of float32, on a GPU also float16, not in float64"
            )
        target = None if out is None else _array_of(backend, out)
        outputs = _array_of(backend, first)
        if target is not None:
            _check_target(target, out, outputs)
        if rows.on_host:
            target = np.empty_like(outputs) if target is None else target
            bound = to_input_type(inputs, target) if out is None else out

            def call_into_target() -> None:
                np.copyto(target, _array_of(backend, session(inputs)))

            return BoundCall(session, call_into_target, inputs, bound)
        executable, call = Executable(session._cache.plan_of(rows), session._cache.weights), None
        if executable.is_capturable and executable.plan.rows.count >= rows.count:
            call = backend.queue.captured_call(executable.compute_rows, matrix, target, inputs)
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


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _check_target(target: Any, out: Any, outputs: Any) -> None:
    """Refuse an array that cannot take outputs, `target` as read from `out`, by a `ShapeError` or `UsageError`."""
    if target.shape != outputs.shape:
        raise ShapeError(f"out has the shape {target.shape}; the outputs have {outputs.shape}")
    if target.dtype != outputs.dtype:
        raise UsageError(f"out is of type {target.dtype}; the outputs are of {outputs.dtype}")
    if not target.flags.c_contiguous:
        raise UsageError("out is not contiguous; give a row-major array")
    if isinstance(target, np.ndarray) and not (target.flags.writeable and np.may_share_memory(target, np.asarray(out))):
        raise UsageError("out cannot be written where it lies; give an array in memory of its own")
