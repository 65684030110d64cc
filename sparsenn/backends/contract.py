"""The protocol that every backend implements; `kernel_records` describes the kernels that it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from sparsenn.backends.chains import Features, NumberCheck, RowsLeft, RowsWatch, SparseRows
from sparsenn.backends.kernel_records import Shapes, Sources
from sparsenn.backends.machine import Machine
from sparsenn.formats import CSR, Array
from sparsenn.network import Layer

LONG_SECONDS = 0.05  # of work, from which on no graph captures it: a device computes it while the host queues it


class CapturedCall(Protocol):
    """Work on arrays that stay where they are."""

    outputs: Array

    def __call__(self) -> None:
        """Queue the work on the caller's current stream, or do it; earlier outputs are overwritten."""


class Replay(Protocol):
    """Work on rows of one shape and type, which a device may run faster as a whole than launch by launch."""

    @property
    def nbytes(self) -> int:
        """Device memory that is cached for replays, in bytes."""

    def drop(self) -> None:
        """Free that memory."""

    def __call__(self, run: Callable[[Array], tuple[Array, ...]], rows: Array) -> tuple[Array, ...] | None:
        """Return the results of work where the rows are; None where the work has to be queued launch by launch.

        `run` is the same in each call, and has run before; of rows on the device, only the first result is returned.
        """


class Queue:
    """The order of a backend's work, of the calls of several threads, and what of it is captured as a graph.

    This class itself is the queue of a backend whose work is done when a launch returns.
    """

    rehearses: bool = False  # whether launches need kernels that take long to compile, and can be rehearsed

    def __enter__(self) -> None:
        """Begin a call of one of several threads, whose work runs after the work of earlier calls."""
        return

    def __exit__(self, *error: object) -> None:
        """End the call."""
        return

    def stream_of(self, inputs: Any) -> AbstractContextManager[Any]:
        """Return a context in which work is queued on the stream of the inputs' library, if the device has streams."""
        return nullcontext()

    def wait(self) -> None:
        """Wait until the device has done all that was queued."""
        return

    def before_drop(self) -> None:
        """Make sure that memory dropped from now on is reused only after the work that is queued now."""
        return

    def replay(self, shape: tuple[int, int], on_host: bool) -> Replay | None:
        """Return a replay of work of many launches on rows of one shape; None where there is no gain."""
        return None

    def captured_call(
        self, run: Callable[[Array], Array], rows: Array, out: Array | None, source: Any
    ) -> CapturedCall | None:
        """Return a call that reads the memory of these rows each time, and writes to `out`; None if none is captured.

        `run` has run before, and queues work on a matrix on the device. `source` is the caller's array, whose library
        has the stream that work is queued on.
        """
        return None

    def repeated_call(
        self, run: Callable[[Array], tuple[Array, ...]], source: Any, rows: Array, replay: Replay | None
    ) -> Callable[[Any], Any] | None:
        """Return a function of arrays like `source`, whose rows are `rows` on the device; None where there is none.

        It returns new outputs, in the array's library where it is CuPy or PyTorch, or None for other arrays. The replay
        is of `run`; without one, the function runs it.
        """
        return None

    def rehearsal(self) -> AbstractContextManager[None]:
        """Return a context in which launches only have their kernels compiled; only where it `rehearses`."""
        return nullcontext()

    def end_rehearsals(self) -> None:
        """Wait until all kernels that rehearsals asked for are compiled."""
        return


class Backend(Protocol):
    """The operations that the engine is built on; some have a default, for backends in host memory."""

    device: str  # `reference`, `cpu`, `cuda`, or `cuda_float64`: what its kernels are registered for
    doubles: bool  # rows, hidden values and sums are float64; merging is then off by default
    in_host_memory: bool  # whether it computes in the host's memory
    prepares_ahead: bool  # `prepare` pays in another thread, one at a time, while a launch computes
    row_types: tuple[np.dtype[Any], ...]  # of row-major matrices that kernels read as they are: float32, float16

    @property
    def queue(self) -> Queue:
        """The order of its work; each call is a context."""

    @property
    def description(self) -> str:
        """The device in words."""

    @property
    def machine(self) -> Machine:
        """Peaks and sizes of the device, as plans take them."""

    def free_memory(self) -> int:
        """Return the bytes that rows may take, 0 where that is unknown."""

    def prepared_bytes(self, layer: Layer, with_zeros: bool = False) -> int:
        """Estimate the bytes of a prepared layer, dense `with_zeros`, with what any kernel makes of it on top."""

    def prepare(
        self, layers: Sequence[Layer], copies: Sequence[Array] = (), shapes: Shapes = (), sources: Sources = ()
    ) -> Any:
        """Bring layers of one family into the form that their kernels read; layers of images become an `ImageStack`.

        Any launch may read the result: copies to the device have ended. Once it is dropped, its memory may be reused
        even while launches that read it are still queued: call `before_drop` first. `copies` are, of each sparse layer,
        (outputs,) int64, how many neurons each output stands for. An activation that kernels lack raises UsageError.
        """

    def release(self) -> None:
        """Free memory that is cached for reuse. What a failed launch left behind is not used afterwards."""
        return

    def number_check(self, results: int = 1) -> NumberCheck | None:
        """Return a check that has scanned nothing yet; None in host memory, where rows are checked at once.

        With several `results`, for a replay, its attribute of that name is (results, 2) uint32 on the device: of each
        scan the bits of the largest finite number's size in float32, and whether a number is not finite.
        """
        return None

    def rows_watch(self) -> RowsWatch | None:
        """Return a check of rows on the device that never waits; None in host memory."""
        return None

    def device_rows(self, inputs: Any) -> CSR | SparseRows | Array | None:
        """Return rows on this GPU as they are, sparse or an array; None for host memory; refuse other GPUs' rows."""

    def place(self, rows: CSR | SparseRows | Array, keep_half: bool = False) -> Features:
        """Bring rows to the device, in types its kernels take; rows that are there in these types are not copied.

        What is returned may share memory only with rows in the device's memory. Columns of a row that do not increase
        raise UnsortedError, other faults MatrixError. `keep_half` says that a float16 matrix may stay float16.
        """

    def fetch(self, features: Features | SparseRows) -> Any:
        """Move rows to the host, into memory that later launches do not touch; their type stays."""

    def fetch_later(self, matrix: Array, target: Array) -> Callable[[], None]:
        """Begin to move a matrix to the host, and return a function that waits until it fills `target`."""

    def spread(self, left: RowsLeft, expansion: Array | None) -> Array:
        """Return a new matrix: the row of each input, a column for each output by `expansion` (int64, on the host)."""

    def take_out(self, left: RowsLeft, own: bool) -> Callable[[], tuple[Array, RowsLeft]]:
        """Begin to find the inputs that are alive at the end of the network, and store the surviving rows.

        It returns a function that waits, and returns the inputs whose row has a non-zero, int64 on the host,
        increasing; and the surviving rows, with their map, on the device, in memory that later launches do not touch.
        The caller launches nothing on the device before it has called the function. `own` says that nothing else uses
        the rows' memory.
        """

    def as_csr(self, matrix: Array) -> Any:
        """Return the non-zeros of a matrix of outputs where it is: CSR on the host, CuPy's `csr_matrix` on a GPU."""

    def as_dense(self, features: Features) -> Array:
        """Return features that are on the device as a row-major matrix there."""

    def count_nonzeros(self, features: Array) -> Array:
        """Return each row's non-zeros of a matrix on the device, (rows,) int64 on the host; waits for queued work."""

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Return the size of the largest finite number or 0, and whether all are finite; waits for the device."""
