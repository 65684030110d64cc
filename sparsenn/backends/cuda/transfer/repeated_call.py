"""Repeated calls: a session's calls with arrays like those of an earlier call, with as little Python as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsenn.backends.cuda.runtime.calls import Calls
from sparsenn.backends.cuda.runtime.recorder import recorded
from sparsenn.backends.cuda.runtime.replay import DeviceReplay, array_at
from sparsenn.backends.cuda.transfer.caller_arrays import CuPyArrays, Tensors
from sparsenn.formats import Array

__all__ = ["RepeatedCall"]

MAX_SPARE_BYTES = 1 << 20
"""Bytes of outputs up to which the next call's array is made while the device computes: that takes as long as all other
Python code of a call. It is of use on the same stream only, for which CuPy's and PyTorch's memory is."""


class RepeatedCall:
    """A function of arrays like an earlier call's, which returns new outputs of the same library.

    It returns None for other arrays, in a capture, and once the replay is dropped.

    Parameters
    ----------
    arrays : CuPyArrays or Tensors
        The arrays that it takes.
    run : callable
        Queues the work on a matrix of rows on the device, and returns results there.
    rows : array
        Rows of the earlier call as a matrix of CuPy's.
    replay : DeviceReplay or None
        That of the work; None where launches are queued one by one.
    calls : Calls
        The calls of the backend.
    """

    def __init__(
        self,
        arrays: CuPyArrays | Tensors,
        run: Callable[[Array], tuple[Array, ...]],
        rows: Any,
        replay: DeviceReplay | None,
        calls: Calls,
    ) -> None:
        self._arrays, self._run, self._replay, self._calls = arrays, run, replay, calls
        self._shape, self._dtype, self._device = rows.shape, rows.dtype, rows.data.device_id

    def __call__(self, rows: Any) -> Any:
        """Return outputs, or None."""
        arrays, replay, calls = self._arrays, self._replay, self._calls
        source = arrays.address(rows)
        if not source or recorded() or (replay is not None and replay.is_dropped):
            return None
        stream = arrays.stream()
        calls.enter(stream)
        try:
            if stream.is_capturing():
                return None
            result: Any = None if replay is None else replay.result
            if replay is None or result is None:
                with stream:
                    features = array_at(source, self._shape, self._dtype, self._device, rows)
                    results = None if replay is None else replay(self._run, features)
                    outputs = arrays.own((results or self._run(features))[0])
                return outputs if arrays.are_numbers(rows) else None
            key = arrays, calls.stream_key, arrays.mode()
            spare = replay.spare
            known, outputs, target = (key, *arrays.new(result, rows)) if spare is None or spare[0] != key else spare
            graph = replay.bound.get((source, target))
            if graph is None:
                replay.launch(self._run, source, target, stream)
            else:
                graph.launch(stream)
            # what does not matter to the launch is done while the device computes
            replay.spare = (known, *arrays.again(outputs)) if result.nbytes <= MAX_SPARE_BYTES else None
            return outputs if arrays.are_numbers(rows) else None
        finally:
            calls.leave()
