"""The protocol that every backend implements; `kernel_records` describes the kernels that it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from sparsenn.backends.chains import (
    Features,
    LayerCounts,
    NumberCheck,
    NumberLog,
    RowsCheck,
    RowsLeft,
    RowsWatch,
    SparseChain,
    SparseProblem,
    SparseRows,
)
from sparsenn.backends.kernel_records import (
    ConvolutionKernel,
    DenseKernel,
    ImageStack,
    Kernel,
    Shapes,
    SparseKernel,
    StepInput,
    StepOutput,
    TrainingKernel,
)
from sparsenn.backends.machine import Machine
from sparsenn.backends.row_map import SAME_ROWS, RowMap
from sparsenn.formats import CSR, Array
from sparsenn.layers import ImageLayer
from sparsenn.network import Layer

__all__ = [
    "SAME_ROWS",
    "Backend",
    "ConvolutionKernel",
    "DenseKernel",
    "Features",
    "ImageStack",
    "Kernel",
    "LayerCounts",
    "NumberCheck",
    "NumberLog",
    "Replay",
    "RowMap",
    "RowsCheck",
    "RowsLeft",
    "RowsWatch",
    "Shapes",
    "SparseChain",
    "SparseKernel",
    "SparseProblem",
    "SparseRows",
    "StepInput",
    "StepOutput",
    "TrainingKernel",
]


class Replay(Protocol):
    """Work on rows of one shape and type, which a device may run faster as a whole than launch by launch."""

    @property
    def nbytes(self) -> int:
        """Device memory that is cached for replays, in bytes."""
        ...

    def __call__(self, run: Callable[[Array], tuple[Array, ...]], rows: Array) -> tuple[Array, ...] | None:
        """Return the results of work where the rows are; None where the work has to be queued launch by launch.

        Parameters
        ----------
        run : the work, on a matrix on the device; the same in each call. It has run before.
        rows : contiguous, of the shape and type of the first call. Of rows on the device, only the first result is
            returned.
        """
        ...


class Backend(Protocol):
    """The operations that the engine is built on.

    Some have a default, which does nothing: for backends that inherit from this, and queue no work.

    Attributes
    ----------
    device : `reference`, `cpu`, `cuda`, or `cuda_float64`: what its kernels are registered for.
    doubles : whether rows, hidden values and sums are float64, whatever kernel runs; merging is then off by default.
    in_host_memory : whether it computes in the host's memory.
    rehearses : whether launches need kernels that take long to compile, and can be rehearsed.
    prepares_ahead : whether it pays to prepare weights in another thread while a launch computes. `prepare` may then
        be called there, by one thread at a time.
    """

    device: str
    doubles: bool
    in_host_memory: bool
    rehearses: bool
    prepares_ahead: bool

    @property
    def description(self) -> str:
        """The device in words."""
        ...

    @property
    def machine(self) -> Machine:
        """What the device offers."""
        ...

    def free_memory(self) -> int:
        """Return the bytes that rows may take, 0 where that is unknown."""
        ...

    def prepared_bytes(self, layer: Layer, with_zeros: bool = False) -> int:
        """Estimate the bytes that a layer takes once prepared, with what any kernel makes of it on top.

        Parameters
        ----------
        with_zeros : whether a sparse layer is prepared as a dense one.
        """
        ...

    def prepare(self, layers: Sequence[Layer], copies: Sequence[Array] = (), shapes: Shapes = ()) -> Any:
        """Bring layers of one family into the form that their kernels read.

        Any launch may read the result: copies to the device have ended. Once it is dropped, its memory may be reused
        even while launches that read it are still queued: call `before_drop` first.

        Parameters
        ----------
        layers : `SparseLinear` for `spmspm`, `Linear` for `mlp`, or layers of images.
        copies : of each sparse layer, (outputs,) int64, how many neurons each output stands for.
        shapes : of one input before each layer of images, and after the last.

        Returns
        -------
        What the kernels take; an `ImageStack` for layers of images.

        Raises
        ------
        UsageError
            The device's kernels do not know a layer's activation.
        """
        ...

    def run_layer(self, layer: ImageLayer, shape: tuple[int, ...], *matrices: Array) -> Array:
        """Run a layer of images that is no convolution, with the backend's own function for it.

        Parameters
        ----------
        layer : may combine several matrices.
        shape : of one input.
        matrices : row-major matrices on the device, a row an input; one unless the layer combines several.

        Returns
        -------
        A matrix on the device, of the same type: a new one, or for `Flatten` the features themselves.
        """
        ...

    def rehearsal(self) -> AbstractContextManager[None]:
        """Return a context in which launches only have their kernels compiled, side by side.

        Only backends that `rehearses` says it of have one.
        """
        return nullcontext()

    def end_rehearsals(self) -> None:
        """Wait until all kernels that rehearsals asked for are compiled."""
        return

    def before_drop(self) -> None:
        """Make sure that memory dropped from now on is reused only after the work that is queued now."""
        return

    def replay(self, shape: tuple[int, int], on_host: bool) -> Replay | None:
        """Return a replay of work of many launches on rows of one shape; None where there is no gain.

        Parameters
        ----------
        shape : of the matrix that the work takes.
        on_host : whether rows are in host memory.
        """
        return None

    def number_log(self, scans: int) -> NumberLog:
        """Return a log of up to a number of scans, for a replay; only backends that replay need one."""
        ...

    def release(self) -> None:
        """Free memory that is cached for reuse. What a failed launch left behind is not used afterwards."""
        return

    def compile_seconds(self) -> float:
        """Return the seconds that this process has spent on compiling and loading kernels; 0 where unknown."""
        ...

    def wait(self) -> None:
        """Wait until the device has done all that was queued."""
        return

    def begin_call(self) -> None:
        """Begin a call: work that it queues runs after the work of earlier calls.

        Several threads may make calls, on several streams, one at a time.
        """
        return

    def end_call(self) -> None:
        """End a call."""
        return

    def number_check(self) -> NumberCheck:
        """Return a check that has scanned nothing yet."""
        ...

    def rows_watch(self) -> RowsWatch:
        """Return a check of rows on the device that never waits; called only for rows that `device_rows` returned."""
        ...

    def reads_as_is(self, inputs: Any) -> bool:
        """Return whether inputs are a row-major array of a type that kernels read, float32 or float16. Cheap."""
        ...

    def device_rows(self, inputs: Any) -> CSR | SparseRows | Array | None:
        """Return rows that are on a GPU as they are: sparse rows, or an array; None for anything not on a GPU.

        Raises
        ------
        UsageError
            They are on a GPU that is not this device.
        """
        ...

    def place(self, rows: CSR | SparseRows | Array, keep_half: bool = False) -> Features:
        """Bring rows to the device, in types its kernels take; rows that are there in these types are not copied.

        What is returned may share memory with rows that are in the device's memory, and only with those.

        Parameters
        ----------
        rows : on the host or on the device; they are checked unless they have been.
        keep_half : whether a float16 matrix may stay float16.

        Raises
        ------
        UnsortedError
            Columns of a row are not in increasing order, or one occurs twice.
        MatrixError
            Offsets or columns are out of range, or a value is not finite.
        """
        ...

    def queue_check(self, rows: CSR | SparseRows | Array) -> RowsCheck | None:
        """Begin to check sparse rows that are on the device; None where there is none, or the check would wait.

        Raises
        ------
        MatrixError
            The arrays' shapes or types do not fit together.
        """
        return None

    def fetch(self, features: Features | SparseRows) -> Any:
        """Move rows to the host, into memory that later launches do not touch; their type stays."""
        ...

    def fetch_later(self, matrix: Array, target: Array) -> Callable[[], None]:
        """Begin to move a matrix to the host, and return a function that waits until it is there.

        Parameters
        ----------
        matrix : on the device.
        target : of the same shape, on the host; it is filled once that function has returned.
        """
        ...

    def spread(self, left: RowsLeft, expansion: Array | None) -> Array:
        """Return the row of each input, with a column for each output.

        Parameters
        ----------
        left : the surviving rows.
        expansion : (outputs,) int64 on the host, the column of each output; None where column k is that of output k.

        Returns
        -------
        A new matrix on the device, of shape (inputs, outputs).
        """
        ...

    def take_out(self, left: RowsLeft, own: bool) -> Callable[[], tuple[Array, RowsLeft]]:
        """Begin to find the inputs that are alive at the end of the network, and store the surviving rows.

        Parameters
        ----------
        left : the surviving rows; where rows of zeros have not been dropped, all are scanned.
        own : whether they lie in memory that nothing else uses.

        Returns
        -------
        A function that waits, and returns the inputs whose row has a non-zero, int64 on the host, increasing; and the
        surviving rows, with their map, on the device, in memory that later launches do not touch. The caller launches
        nothing on the device before it has called the function.
        """
        ...

    def as_csr(self, matrix: Array) -> Any:
        """Return the non-zeros of a matrix of outputs where it is: CSR on the host, CuPy's `csr_matrix` on a GPU."""
        ...

    def distinct_rows(self, features: Features) -> tuple[Features, RowMap]:
        """Return the first of each set of rows that are equal bit for bit, in their order, and the map to them.

        The caller does not use the features again.
        """
        ...

    def as_dense(self, features: Features) -> Array:
        """Return features that are on the device as a row-major matrix there."""
        ...

    def count_nonzeros(self, features: Array) -> Array:
        """Return the non-zeros of each row of a matrix on the device, (rows,) int64, on the host.

        All work queued on the device has ended when this returns.
        """
        ...

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Return the size of the largest finite number of features on the device, and whether all are finite.

        It reads each number once, and waits for the device once. Without a finite number the size is 0.
        """
        ...
