"""What every backend offers: the protocol, the record of a variant, and the registry of variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from sparsenn.errors import SparseNNError, unknown_name
from sparsenn.formats import CSR, Array
from sparsenn.layers import ImageLayer, Linear, SparseLinear
from sparsenn.network import Layer

__all__ = [
    "HOST_WEIGHT_MEMORY",
    "Backend",
    "Features",
    "ImageStack",
    "LayerCounts",
    "StepInput",
    "StepOutput",
    "Variant",
    "finished_step",
    "launch_dense",
    "operations",
    "register",
    "variant",
    "variants",
]

HOST_WEIGHT_MEMORY = 256 << 20
"""Bytes of weights that backends on the host prepare at a time, unless told otherwise."""

Features: TypeAlias = CSR | Array
"""Rows of features: CSR, or a dense row-major matrix of shape (rows, width)."""


@dataclass(frozen=True)
class LayerCounts:
    """What a kernel counted in one layer.

    Parameters
    ----------
    kernel : name of the variant that computed the layer.
    rows : rows it computed.
    active_inputs : inputs (a row may stand for many equal ones) whose output row has a non-zero; None where the kernel
        does not give the layer's outputs away.
    nonzeros : non-zero outputs, summed over the inputs and over all neurons of the layer; None likewise.
    performed_edges : multiply-adds done.
    distinct : rows that differ after this layer, where the kernel groups equal rows itself and did so here.
    """

    kernel: str
    rows: int
    active_inputs: int | None
    nonzeros: int | None
    performed_edges: int
    distinct: int | None = None


@dataclass(frozen=True, eq=False)
class ImageStack:
    """Consecutive layers of images, as a backend has prepared them.

    Parameters
    ----------
    layers : the layers.
    shapes : of one input before each layer, and after the last: (channels, height, width) or (width,).
    prepared : a convolution as the variants of `conv2d` take it; of other layers nothing.
    """

    layers: tuple[ImageLayer, ...]
    shapes: tuple[tuple[int, ...], ...]
    prepared: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class StepInput:
    """One launch: some consecutive layers of a prepared stack, on some rows.

    Parameters
    ----------
    stack : what `Backend.prepare`, `Backend.prepare_dense` or `Backend.prepare_images` returned.
    first, last : the layers to run, counted from 0 within the stack, `last` excluded.
    features : rows of width `inputs` of layer `first`.
    multiplicity : (rows,) int64, how many inputs each row stands for; used for counting only.
    droppable_from : rows that are all zero may be left out of the output once this layer (counted within the
        stack) has run, because every later layer keeps them at zero.
    scatter : multiply only the non-zeros in layer `first` (where the variant has that choice).
    deduplicate : compute equal rows once (where the variant can group them itself).
    """

    stack: Any
    first: int
    last: int
    features: Features
    multiplicity: Array
    droppable_from: int
    scatter: bool = False
    deduplicate: bool = False


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What a launch gives back.

    Parameters
    ----------
    features : the rows that are left, of the last layer's width.
    kept : (rows,) int64, which input row each of them came from.
    counts : one record a layer.
    owner : (rows of the input,) int64, which of the rows left each input row has become, -1 for one that died; None
        where `kept` says it all, because every row left came from one input row.
    """

    features: Features
    kept: Array
    counts: tuple[LayerCounts, ...]
    owner: Array | None = None

    def owners(self, rows: int) -> Array:
        """Return `owner`, worked out from `kept` where it is not given, for an input of so many rows."""
        if self.owner is not None:
            return self.owner
        owner = np.full(rows, -1, np.int64)
        owner[self.kept] = np.arange(self.kept.size)
        return owner


@dataclass(frozen=True)
class Variant:
    """One way to carry out an operation.

    Parameters
    ----------
    operation : what is computed, for example `spmspm`.
    name : the variant's idea in a word or two.
    device : `reference`, `cpu` or `cuda`.
    summary : one line for tables.
    launch : runs one step of `spmspm`, and returns when the device has done with the step's stack; what it takes
        and gives in other operations, their own modules say.
    needs : what must hold for it, in words; empty if nothing.
    fuses : whether one launch can run several layers.
    groups_rows : whether it computes equal rows once by itself; it then takes all layers of a stack in one launch.
    seconds : estimates what consecutive layers take for so many rows if none of them leaves; None where `auto` has
        nothing to choose from. A variant of `conv2d` takes the layer and an image's shape, and tells of one image.
    half_rows : whether a variant of `mlp` or `conv2d` takes float16 rows as they are, and gives such.
    why_not : given the network to compute and its inputs, says why the variant cannot run them; None if it can. A
        variant of `mlp` takes the layers in place of the network, and looks at no inputs; one of `conv2d` takes the
        layer, and an image's (channels, height, width).
    precision : of what it multiplies, `float32`, `tf32` or `fp16`; the reference's float64 is not told.
    tf32_products : products in TF32 that it makes each product in float32 of; 0 where it splits no numbers.
    half_sums : products of which it keeps sums in half precision, at most; 0 where all sums are float32.
    """

    operation: str
    name: str
    device: str
    summary: str
    launch: Callable[..., Any]
    needs: tuple[str, ...] = ()
    fuses: bool = False
    groups_rows: bool = False
    seconds: Callable[[Any, Any], float] | None = None
    half_rows: bool = False
    why_not: Callable[[Any, Any], str | None] = lambda network, inputs: None
    precision: str = "float32"
    tf32_products: int = 0
    half_sums: int = 0


class Backend(Protocol):
    """The operations the engine is written in.

    Attributes
    ----------
    device : `reference`, `cpu` or `cuda`.
    prepares_ahead : whether it pays to prepare weights in another thread while a launch computes. `prepare` may then
        be called there, by one thread at a time.
    """

    device: str
    prepares_ahead: bool

    @property
    def description(self) -> str:
        """The device in words."""
        ...

    def free_memory(self) -> int:
        """Return the bytes that rows may take, 0 where that cannot be told."""
        ...

    def weight_memory(self) -> int:
        """Return the bytes that prepared weights may take, unless the user says otherwise."""
        ...

    def prepared_bytes(self, layer: Layer) -> int:
        """Estimate the bytes that a layer takes once prepared, with what any kernel makes of it on top."""
        ...

    def prepare(self, layers: Sequence[SparseLinear], copies: Sequence[Array]) -> Any:
        """Bring layers into the form the kernels read; `copies[k]` (int64) says how many neurons each output is.

        What is returned can be read by any launch from then on: copies to the device have ended. It may be dropped as
        soon as its last launch has returned, because a launch returns only when the device has done with it; its
        memory then serves other weights.
        """
        ...

    def prepare_dense(self, layers: Sequence[Linear]) -> Any:
        """Bring dense layers into the form that the variants of `mlp` read; to be used as what `prepare` returns.

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

    def release(self) -> None:
        """Give back memory that is kept for reuse. Nothing that a failed launch left behind is used from then on."""
        ...

    def compile_seconds(self) -> float:
        """Return the seconds that this process has spent on compiling and loading kernels: it only ever grows.

        A backend that cannot tell returns 0.
        """
        ...

    def place(self, features: Features) -> Features:
        """Move features to the device, in a type its kernels take."""
        ...

    def fetch(self, features: Features) -> Features:
        """Move features to the host, into memory that later launches do not touch."""
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

    def take_in(self, rows: Any, keep_half: bool) -> tuple[Array, bool]:
        """Bring rows from another library to the device, as the variants of `mlp` read them.

        Parameters
        ----------
        rows : NumPy's, CuPy's, nested sequences, or what speaks DLPack or CUDA's array interface.
        keep_half : whether float16 may stay float16.

        Returns
        -------
        A matrix on the device, the rows themselves where that can be; and whether they were in host memory.

        Raises
        ------
        UsageError
            They are on a GPU that is not this device.
        ShapeError, InputError
            They are no matrix, or not of real numbers.
        """
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


def launch_dense(backend: Backend, kernel: Variant, layers: Sequence[Linear], step: StepInput) -> StepOutput:
    """Run a step with a variant of `mlp`, and count and drop rows as variants of `spmspm` do by themselves.

    Parameters
    ----------
    layers : what the step's stack was prepared from; every output stands for one neuron.
    step : all layers of the stack that `backend.prepare_dense` made of them. `scatter` and `deduplicate` are not
        looked at.

    Returns
    -------
    Dense features. Of all layers but the last the counts say neither active inputs nor non-zeros.
    """
    outputs = kernel.launch(step.stack, backend.as_dense(step.features))
    rows = int(outputs.shape[0])
    edges = tuple(rows * layer.edges for layer in layers)
    return finished_step(backend, kernel.name, edges, outputs, step)


def finished_step(backend: Backend, kernel: str, edges: Sequence[int], outputs: Array, step: StepInput) -> StepOutput:
    """Count what a launch that gives dense rows has computed, and drop the rows that may go.

    Parameters
    ----------
    kernel : name of what computed it.
    edges : multiply-adds done, layer by layer.
    outputs : a matrix on the device, a row for each of the step's, all of them.
    """
    nonzeros = backend.count_nonzeros(outputs)
    rows, alive = nonzeros.size, nonzeros > 0
    hidden = (LayerCounts(kernel, rows, None, None, done) for done in edges[:-1])
    last = LayerCounts(
        kernel=kernel,
        rows=rows,
        active_inputs=int(step.multiplicity[alive].sum()),
        nonzeros=int(nonzeros @ step.multiplicity),
        performed_edges=edges[-1],
    )
    kept = np.flatnonzero(alive) if step.last > step.droppable_from else np.arange(rows)
    features = outputs if kept.size == rows else backend.take_rows(outputs, kept)
    return StepOutput(features, kept, (*hidden, last))


_VARIANTS: dict[tuple[str, str, str], Variant] = {}


def register(entry: Variant) -> Variant:
    """Add a variant to the registry; a name may be taken once per operation and device."""
    key = (entry.operation, entry.device, entry.name)
    if key in _VARIANTS:
        raise SparseNNError(f"the {entry.device} variant {entry.name!r} of {entry.operation} is registered twice")
    _VARIANTS[key] = entry
    return entry


def operations() -> tuple[str, ...]:
    """Return the names of all operations that have a variant."""
    return tuple(sorted({entry.operation for entry in _VARIANTS.values()}))


def variants(operation: str | None = None, device: str | None = None) -> tuple[Variant, ...]:
    """Return the registered variants in order of registration, all or those of an operation and a device.

    Raises
    ------
    UsageError
        No variant has that operation.
    """
    if operation is not None and operation not in operations():
        raise unknown_name("operation", operation, operations())
    return tuple(
        entry for entry in _VARIANTS.values() if operation in (None, entry.operation) and device in (None, entry.device)
    )


def variant(operation: str, name: str, device: str) -> Variant:
    """Return one variant.

    Raises
    ------
    UsageError
        The operation has no variant of that name on that device; the message lists those it has.
    """
    choices = {entry.name: entry for entry in variants(operation, device)}
    if name not in choices:
        raise unknown_name(f"{device} kernel for {operation}", name, choices)
    return choices[name]
