"""The records of kernels, one class per operation, with the inputs and outputs of their launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sparsenn.backends.chains import (
    Features,
    LayerCounts,
    RowMap,
    RowsCheck,
    RowsLeft,
    SparseChain,
    SparseProblem,
    SparseRows,
)
from sparsenn.backends.machine import Machine
from sparsenn.backends.trainer import TRAINING_OPERATION, Trainer, TrainingProblem
from sparsenn.formats import CSR, Array
from sparsenn.layers import Add, Conv2d, ImageLayer, Linear
from sparsenn.network import Image, Network

SPARSE_OPERATION = "spmspm"
DENSE_OPERATION = "mlp"
CONV_OPERATION = "conv2d"
IMAGE_OPERATION = "images"
"""Layers of images other than convolutions: no registered kernels, but one function of each backend."""

WHOLE_OPERATION = "whole"
"""All layers of a network in one launch, by another library."""

PANEL = 16  # images at most that a thread takes through several layers at a time, on the host: they stay in its cache

Shapes: TypeAlias = Sequence[tuple[int, ...]]
"""Shapes of one input before each layer of images, and after the last: (channels, height, width) or (width,)."""

Sources: TypeAlias = Sequence[tuple[int, ...]]
"""Inputs of each layer of images: 0 for the input of the first, and numbers of layers, counted from 1."""


@dataclass(frozen=True, eq=False)
class ImageStack:
    """Consecutive layers of images, as a backend has prepared them."""

    layers: tuple[ImageLayer, ...]
    shapes: tuple[tuple[int, ...], ...]  # of one input before each layer, and after the last
    prepared: tuple[Any, ...]
    """Convolutions as the kernels of `conv2d` take them. A single layer of another kind is a function of row-major
    matrices on the device, which returns a new one of the same type, for `Flatten` the features themselves."""

    sources: Sources = ()  # values that each layer reads: 0 for the stack's input, and layers, counted from 1


@dataclass(frozen=True, eq=False)
class StepInput:
    """One launch: layers `first` to `last`, excluded, of a prepared stack, on some rows."""

    stack: Any  # what `Backend.prepare` returned
    first: int
    last: int
    features: Features  # rows of width `inputs` of layer `first`
    multiplicity: Array  # (rows,) int64, how many inputs each row stands for; used for counting only
    droppable_from: int  # layer, from 0, after which rows that are all zero may be left out
    scatter: bool = False  # multiply only the non-zeros in layer `first` (where the kernel has that choice)
    deduplicate: bool = False  # compute equal rows once (where the kernel can group them itself)
    counting: bool = True  # whether `StepOutput.counts` is read


@dataclass(frozen=True, eq=False)
class StepOutput:
    """The result of a launch."""

    features: Features  # the surviving rows, of the last layer's width
    row_map: RowMap  # from input rows to surviving ones, on the host
    counts: tuple[LayerCounts, ...]  # one record per layer; maybe none where nobody reads them


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An implementation of an operation on a device: the one place where it is named and described.

    Parameters
    ----------
    operation : str
        What is computed, for example `spmspm`.
    name : str
        The kernel's idea in a word or two.
    device : str
        One of `reference`, `cpu`, `cuda`, `cuda_float64` and, for rungs of ladders alone, `emulated`.
    summary : str
        One line for tables.
    launch : callable
        Computes; what it takes and returns, the records of each operation say.
    needs : tuple of str, optional
        What must hold for it, in words; empty if nothing.
    auto : bool, default False
        Whether `auto` may take it. Of those that it may, the one registered first is preferred, where estimates do not
        say otherwise.
    why_not : callable, optional
        Takes a machine and a problem; says why the kernel cannot run the problem there, or returns None.
    seconds : callable, optional
        Estimates the time of a problem on a machine; None where there is nothing to choose from. Kernels of sparse and
        dense layers with `half_rows` take one keyword more: `row_bytes`, of a number of the rows, 4 or 2.
    precision : str, default "float32"
        Precision of what it multiplies: `float32`, `tf32` or `float16`; the reference's float64 is not stated.
    half_rows : bool, default False
        Whether it takes float16 rows or images as they are, and gives such.
    sparse_rows : bool, default False
        Whether a kernel of dense layers takes CSR rows as they are; `seconds` then takes the `density` of the rows.
    tf32_products : int, default 0
        Products in TF32 that it makes of each product in float32; 0 where it splits no numbers.
    adds_in_half : bool, default False
        Whether sums of several products are in half precision, whose range they may leave: no session takes it.
    traffic : callable, optional
        A model of the bytes that it moves, for rooflines, if any. Studies document its parameters.
    reproducible : bool, default False
        Whether the bits of a row's outputs depend on nothing but that row and the layers: not on how many rows there
        are, which, in which order, nor on threads. Such kernels of an operation on a device have one order of sums,
        and give equal bits.
    """

    operation: str
    name: str
    device: str
    summary: str
    launch: Callable[..., Any]
    needs: tuple[str, ...] = ()
    auto: bool = False
    why_not: Callable[..., str | None] = lambda machine, *problem: None
    seconds: Callable[..., float] | None = None
    precision: str = "float32"
    half_rows: bool = False
    sparse_rows: bool = False
    tf32_products: int = 0
    adds_in_half: bool = False
    traffic: Callable[..., Any] | None = None
    reproducible: bool = False


@dataclass(frozen=True, kw_only=True)
class SparseKernel(Kernel):
    """A kernel of `spmspm`: sparse layers, one or several at a time.

    `why_not` takes the network as it is computed, sparse layers only, and its inputs. `seconds` is of consecutive
    layers, for a number of rows, until the host can have the outputs. A kernel with `prepare` makes chains; others are
    launched some layers at a time.
    """

    operation: str = SPARSE_OPERATION
    launch: Callable[[StepInput], StepOutput] = None  # type: ignore[assignment]
    why_not: Callable[[Machine, Network, CSR], str | None] = lambda machine, network, inputs: None
    seconds: Callable[..., float] | None = None
    fuses: bool = False  # whether one launch can run several layers
    groups_rows: bool = False  # whether it computes equal rows once by itself, all layers of a stack in one launch
    drops_rows: bool = True  # whether rows that have died are computed no more
    keeps_rows: bool = False  # whether they stay nevertheless, as rows of zeros
    stores_zeros: bool = False  # whether weights take memory, and work, as dense ones would
    prepare: Callable[[Any, SparseProblem], SparseChain] | None = None
    uncounted: Callable[[Any, SparseProblem], Callable[[Features], RowsLeft] | None] | None = None
    """Returns a function for all layers of a stack, without counts and searches, where that takes less time."""
    queue_check: Callable[[SparseRows], RowsCheck] | None = None  # of `iso` rows, whose result its chains heed
    own_outputs: bool = False  # whether a chain's outputs lie in memory that nothing else uses
    is_compiled: bool = False  # whether NumPy computes nothing in its chains, so that it has no warnings to silence
    distinct_rows: Callable[[Features], tuple[Features, RowMap]] | None = None
    """Returns the first of each set of rows that are equal bit for bit, in order, and the map; for kernels without
    `prepare`, between whose launches equal rows are merged. It may overwrite the features."""

    def __post_init__(self) -> None:
        if self.launch is None:
            object.__setattr__(self, "launch", partial(_launch_chain, self.prepare))

    @property
    def finds_equal_rows(self) -> bool:
        """Whether equal rows are computed once, by itself or between its launches."""
        return self.groups_rows or self.distinct_rows is not None


def _launch_chain(prepare: Callable[[Any, SparseProblem], SparseChain], step: StepInput) -> StepOutput:
    """Run all layers of a stack by a chain that is made for one run; no row is left out."""
    features = step.features
    form = "dense" if not isinstance(features, CSR) else "iso" if features.iso or not features.nnz else "csr"
    chain = prepare(step.stack, SparseProblem(features.shape[0], form, step.droppable_from, step.deduplicate))
    left = chain.run(features, True, step.multiplicity)
    return StepOutput(left.features, left.row_map, chain.counts())


@dataclass(frozen=True, kw_only=True)
class DenseKernel(Kernel):
    """A kernel of `mlp`: a stack of dense layers; `seconds` lasts until the host can have the outputs.

    Layers that `why_not` and `seconds` are asked about may be sparse, and are then multiplied with their zeros.
    """

    operation: str = DENSE_OPERATION
    launch: Callable[[Any, Array], Array]
    why_not: Callable[[Machine, Sequence[Linear]], str | None] = lambda machine, layers: None
    seconds: Callable[[Machine, Sequence[Linear], int], float] | None = None


@dataclass(frozen=True, kw_only=True)
class ConvolutionKernel(Kernel):
    """A kernel of `conv2d`: one convolution of images (images, channels, height, width); `seconds` is of one image.

    A kernel with `run_stack` runs many layers in one step, on rows of images; in half precision, with a function `scan`
    that is called with each layer's number, from 0, and the numbers that it leaves. One with `with_sum` takes along the
    sum of its outputs and another value: `with_sum` makes a prepared convolution one that ends with the sum, and
    `launch` takes the other value, of the outputs' shape, as a third argument.
    """

    operation: str = CONV_OPERATION
    launch: Callable[..., Array]
    why_not: Callable[[Machine, Conv2d, Image], str | None] = lambda machine, layer, image: None
    seconds: Callable[[Machine, Conv2d, Image], float] | None = None
    run_stack: Callable[..., Array] | None = None
    with_sum: Callable[[Any, Add], Any] | None = None
    fuses: Callable[[ImageLayer, Shapes], bool] = lambda layer, shapes: False  # whether it takes a layer along


@dataclass(frozen=True, kw_only=True)
class TrainingKernel(Kernel):
    """A kernel of `train`: training of MLPs; `launch` makes the trainer of a problem on the device of a number."""

    operation: str = TRAINING_OPERATION
    launch: Callable[[TrainingProblem, int], Trainer]
    why_not: Callable[[Machine, TrainingProblem], str | None] = lambda machine, problem: None
