"""The protocol that every backend implements; `kernel_records` describes the kernels that it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    SparseKernel,
    StepInput,
    StepOutput,
    TrainingKernel,
    Tunable,
)
from sparsenn.backends.machine import Machine
from sparsenn.backends.row_map import SAME_ROWS, RowMap
from sparsenn.formats import CSR, Array
from sparsenn.layers import CombiningLayer, ImageLayer, Linear, SparseLinear
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
    "SparseChain",
    "SparseKernel",
    "SparseProblem",
    "SparseRows",
    "StepInput",
    "StepOutput",
    "TrainingKernel",
    "Tunable",
]


class Replay(Protocol):
    """Work on rows of one shape and type, which a device may run faster as one than launch by launch."""

    @property
    def nbytes(self) -> int:
        """Device memory that is cached for that, in bytes."""
        ...

    def __call__(self, run: Callable[[Array], tuple[Array, ...]], rows: Array) -> tuple[Array, ...] | None:
        """Return the results of work where the rows are; None where it has to be run otherwise.

        Parameters
        ----------
        run : the work, on a matrix on the device; the same in each call, and it has run before.
        rows : contiguous, of the shape and type of the first call. Of rows on the device, only the first result is
            returned.
        """
        ...


class Backend(Protocol):
    """The operations that the engine is built on.

    Attributes
    ----------
    device : `reference`, `cpu`, `cuda`, or `cuda_float64`: what its kernels are registered for.
    doubles : whether rows, hidden values and sums are float64, whatever kernel runs; merging is then off by default.
    in_host_memory : whether it computes in the host's memory.
    prepares_ahead : whether it pays to prepare weights in another thread while a launch computes. `prepare` may then
        be called there, by one thread at a time.
    """

    device: str
    doubles: bool
    in_host_memory: bool
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

    def weight_memory(self) -> int:
        """Return the bytes that prepared weights may take, unless the user says otherwise."""
        ...

    def prepared_bytes(self, layer: Layer) -> int:
        """Estimate the bytes that a layer takes once prepared, with what any kernel makes of it on top."""
        ...

    def dense_bytes(self, layer: SparseLinear) -> int:
        """Estimate the bytes that a sparse layer takes once `prepare_dense` has prepared it with its zeros stored."""
        ...

    def prepare(self, layers: Sequence[SparseLinear], copies: Sequence[Array]) -> Any:
        """Bring layers into the form kernels read; `copies[k]` (int64) says how many neurons each output stands for.

        Any launch may read the result: copies to the device have ended. Once it is dropped, its memory may be reused
        even while launches that read it are still queued: call `before_drop` first.
        """
        ...

    def prepare_dense(self, layers: Sequence[Linear]) -> Any:
        """Bring dense layers into the form that the kernels of `mlp` read; to be used as what `prepare` returns.

        Raises
        ------
        UsageError
            The device's kernels do not know a layer's activation.
        """
        ...

    def prepare_images(self, layers: Sequence[ImageLayer], shapes: Sequence[tuple[int, ...]]) -> ImageStack:
        """Bring layers of images into the form that kernels read; to be used as what `prepare` returns.

        Parameters
        ----------
        shapes : of one input before each layer, and after the last.

        Raises
        ------
        UsageError
            The device's kernels do not know a layer's activation.
        """
        ...

    def run_image_layer(self, layer: ImageLayer, shape: tuple[int, ...], features: Array) -> Array:
        """Run a layer of images that is no convolution, with the backend's own function for it.

        Parameters
        ----------
        shape : of one input.
        features : a row-major matrix on the device, a row an input.

        Returns
        -------
        A matrix on the device, of the same type: a new one, or for `Flatten` the features themselves.
        """
        ...

    def before_drop(self) -> None:
        """Make sure that memory dropped from now on is reused only after the work that is queued now."""
        ...

    def combine(self, layer: CombiningLayer, matrices: Sequence[Array]) -> Array:
        """Add or concatenate matrices on the device, a row an input: a new one, of their type."""
        ...

    def replay(self, shape: tuple[int, int], on_host: bool) -> Replay | None:
        """Return what replays work of many launches on rows of one shape; None where there is no gain.

        Parameters
        ----------
        shape : of the matrix that the work takes.
        on_host : whether rows are in host memory.
        """
        ...

    def number_log(self, looks: int) -> NumberLog:
        """Begin to look at numbers up to so many times, for a replay; asked only of backends that replay."""
        ...

    def release(self) -> None:
        """Give back memory that is kept for reuse. Nothing that a failed launch left behind is used from then on."""
        ...

    def compile_seconds(self) -> float:
        """Return the seconds that this process has spent on compiling and loading kernels: it only ever grows.

        A backend that cannot tell returns 0.
        """
        ...

    def wait(self) -> None:
        """Wait until the device has done all that was queued."""
        ...

    def begin_turn(self) -> None:
        """Begin a call: what is queued from now on comes after what was queued in calls before.

        Calls may be made from several threads and on several streams, one at a time.
        """
        ...

    def end_turn(self) -> None:
        """End a call."""
        ...

    def number_check(self) -> NumberCheck:
        """Begin to look at numbers."""
        ...

    def rows_watch(self) -> RowsWatch:
        """Begin to look at rows on the device, without waiting; asked only for rows that `device_rows` returned."""
        ...

    def fetch_rows(self, rows: SparseRows) -> SparseRows:
        """Move sparse rows to the host."""
        ...

    def joined(self, parts: Sequence[Array], width: int) -> Array:
        """Return matrices of one width stacked, on the device."""
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
            Columns of a row are not in increasing order, or one is given twice.
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
        ...

    def fetch(self, features: Features) -> Features:
        """Move features to the host, into memory that later launches do not touch."""
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
        """Give each input its row, and each output its column.

        Parameters
        ----------
        left : what the layers left.
        expansion : (outputs,) int64 on the host, the column of each output; None where column k is that of output k.

        Returns
        -------
        A new matrix on the device, of shape (inputs, outputs).
        """
        ...

    def take_out(self, left: RowsLeft, own: bool) -> Callable[[], tuple[Array, RowsLeft]]:
        """Begin to find the inputs that are alive at the end of the network, and keep what the layers left.

        Parameters
        ----------
        left : what the layers left; where rows of zeros have not been dropped, all are looked at.
        own : whether it lies in memory that nothing else uses.

        Returns
        -------
        A function that waits for that, and returns the inputs whose row has a non-zero, int64 on the host, increasing;
        and the rows that inputs have, with their map, on the device, in memory that later launches do not touch.
        The caller launches nothing on the device until it has called this.
        """
        ...

    def as_csr(self, matrix: Array) -> Any:
        """Return a matrix on the device as a sparse one there: CSR on the host, CuPy's `csr_matrix` on a GPU."""
        ...

    def take_rows(self, features: Features, rows: Array) -> Features:
        """Return the given rows (int64, increasing); the features they are taken from are not used again."""
        ...

    def equal_rows(self, features: Features) -> tuple[Array, Array]:
        """Group rows that are equal bit for bit.

        Returns (representatives, group): the first row of each group, increasing, and each row's group, int64.
        """
        ...

    def as_dense(self, features: Features) -> Array:
        """Return features that are on the device as a row-major matrix there."""
        ...

    def count_nonzeros(self, features: Array) -> Array:
        """Return the non-zeros of each row of a matrix on the device, (rows,) int64, on the host.

        All that was started on the device before has ended when this returns.
        """
        ...

    def largest_number(self, features: Features) -> tuple[float, bool]:
        """Return the size of the largest finite number of features on the device, and whether all are finite.

        It looks at each number once, and waits for the device once. Without a finite number the size is 0.
        """
        ...
