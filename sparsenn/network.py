"""Network: an ordered, shape-checked tuple of layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np

from sparsenn.errors import InputError, MatrixError, ShapeError, UsageError
from sparsenn.formats import INDEX32_LIMIT, Array, InputLayout
from sparsenn.formats.arrays import size
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.layers import (
    Activation,
    Add,
    Conv2d,
    FullyConnected,
    ImageLayer,
    Join,
    Keep,
    Linear,
    Recall,
    ReLU,
    SparseLinear,
    StackLayer,
)
from sparsenn.layers.images import integers
from sparsenn.printable import kind_of

__all__ = ["Image", "Layer", "Network"]

Layer: TypeAlias = SparseLinear | Linear | ImageLayer
"""Any layer that a network can hold."""

Family = TypeVar("Family", SparseLinear, Linear, ImageLayer)

FAMILIES: dict[type[Layer], str] = {SparseLinear: "sparse", Linear: "dense", ImageLayer: "image"}
"""Families of layers that run together, and what messages call them."""

Image: TypeAlias = tuple[int, int, int]
"""Channels, height and width."""


@dataclass(frozen=True, eq=False)
class Network(Rebuilt):
    """Layers applied one after the other, each one's outputs the next one's inputs.

    What a `Keep` is given is kept beside them, until an `Add` or a `Concatenate` joins it with what came of it since.

    What goes through a network is always a matrix with one row an input. A row is a vector of features, or an image:
    its numbers channel by channel, row by row of pixels.

    Parameters
    ----------
    layers : sequence of layers
        At least one.
    image : (int, int, int), optional
        Channels, height and width of the inputs, where the first layer is neither `Linear` nor `SparseLinear`.
    needs_float64 : bool, default False
        Whether float32 rounds away too much of the outputs, as importers find out; `Session` then computes in float64
        unless a precision is asked for.
    input_layout : InputLayout, optional
        How the program that the network comes from holds one input: its shape, the order of its axes, and names. A
        session takes such inputs, too.

    Attributes
    ----------
    shapes : tuple of tuple of int
        The shape of one input before each layer, and after the last: (channels, height, width) or (width,).
    kept : tuple of tuple of tuple of int
        The shapes of what is kept of one input before each layer, and after the last.

    Raises
    ------
    ShapeError
        There is no layer; a layer does not take what the one before it gives, and the message names it (1-based);
        the image is needed and not given, or not three sizes of at least 1; the input layout does not fit the network;
        or rows become longer than 2^31 - 1.
    InputError
        One of the layers is something else, such as a matrix.
    """

    layers: tuple[Layer, ...]
    image: Image | None = None
    needs_float64: bool = False
    input_layout: InputLayout | None = None
    shapes: tuple[tuple[int, ...], ...] = field(init=False, repr=False)
    kept: tuple[tuple[tuple[int, ...], ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", _checked_layers(self.layers))
        if not self.layers:
            raise ShapeError("a network needs at least one layer")
        if self.image is not None:
            object.__setattr__(self, "image", _checked_image(self.image))
        self._follow_shapes()
        if self.input_layout is not None:
            self.input_layout.check_width(self.inputs)

    def _follow_shapes(self) -> None:
        """Follow the shape of one input through the layers."""
        first = next((layer for layer in self.layers if not isinstance(layer, Keep | Recall | Add)), self.layers[0])
        if self.image is not None:
            shape: tuple[int, ...] = self.image
        elif isinstance(first, FullyConnected):
            shape = (first.inputs,)
        else:
            raise ShapeError(
                f"layer {self.layers.index(first) + 1} is {_called(first)}: "
                "say what images the network takes, image=(channels, height, width)"
            )
        shapes: list[tuple[int, ...]] = [shape]
        kept: list[tuple[tuple[int, ...], ...]] = [()]
        for number, layer in enumerate(self.layers, start=1):
            shape, held = _shapes_after(layer, shape, kept[-1], number)
            shapes.append(shape)
            kept.append(held)
        for number, shape in enumerate(shapes):
            if prod(shape) > INDEX32_LIMIT:
                what = f"layer {number} gives" if number else "the network takes"
                raise ShapeError(f"{what} rows of shape {shape}; a row holds at most {INDEX32_LIMIT:,} numbers")
        object.__setattr__(self, "shapes", tuple(shapes))
        object.__setattr__(self, "kept", tuple(kept))

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        layers = f"{len(self):,} {'layer' if len(self) == 1 else 'layers'}"
        return f"Network({layers}, {self.inputs:,} → {self.outputs:,}, {self.edges:,} edges)"

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Layer:
        return self.layers[index]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers one input has before each layer, and after the last."""
        return tuple(map(prod, self.shapes))

    @property
    def inputs(self) -> int:
        """How many numbers one input of the network has."""
        return self.sizes[0]

    @property
    def outputs(self) -> int:
        """How many numbers one output of the network has."""
        return self.sizes[-1]

    @cached_property
    def edges(self) -> int:
        """Stored weights of all layers."""
        return sum(layer.edges for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def widest(self) -> int:
        """The largest of `sizes`."""
        return max(self.sizes)

    @cached_property
    def multiply_adds(self) -> int:
        """Multiply-adds for one input through all layers, none left out."""
        return sum(layer.multiply_adds((1, *shape)) for layer, shape in zip(self.layers, self.shapes, strict=False))

    def runs(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges of consecutive layers of one family.

        The families are sparse and dense layers, and layers of images.

        Returns
        -------
        tuple of (int, int)
            First and last layer of each range, counted from 0, the last excluded.
        """
        families = [layer.family for layer in self.layers]
        starts = [0, *(number for number in range(1, len(families)) if families[number] != families[number - 1])]
        return tuple(pairwise((*starts, len(families))))

    def sparse_layers(self, first: int = 0, last: int | None = None) -> tuple[SparseLinear, ...]:
        """Return some layers, all of which must be sparse.

        Parameters
        ----------
        first : int, default 0
            The first layer, counted from 0.
        last : int, optional
            The layer after the last; by default all are taken.

        Returns
        -------
        tuple of SparseLinear
            The layers.

        Raises
        ------
        UsageError
            A layer is dense; the message names it (1-based).
        """
        return self._all_of(SparseLinear, first, last)

    def dense_layers(self, first: int = 0, last: int | None = None) -> tuple[Linear, ...]:
        """Return some layers, all of which must be dense.

        Parameters
        ----------
        first : int, default 0
            The first layer, counted from 0.
        last : int, optional
            The layer after the last; by default all are taken.

        Returns
        -------
        tuple of Linear
            The layers.

        Raises
        ------
        UsageError
            A layer is sparse; the message names it (1-based).
        """
        return self._all_of(Linear, first, last)

    def image_layers(self, first: int = 0, last: int | None = None) -> tuple[ImageLayer, ...]:
        """Return some layers, all of which must be layers of images.

        Parameters
        ----------
        first : int, default 0
            The first layer, counted from 0.
        last : int, optional
            The layer after the last; by default all are taken.

        Returns
        -------
        tuple of layers
            The layers.

        Raises
        ------
        UsageError
            A layer is sparse or dense; the message names it (1-based).
        """
        return self._all_of(ImageLayer, first, last)  # type: ignore[type-abstract]

    def _all_of(self, family: type[Family], first: int, last: int | None) -> tuple[Family, ...]:
        """Return layers that must all be of one family."""
        found = []
        for number, layer in enumerate(self.layers[first:last], start=first + 1):
            if not isinstance(layer, family):
                raise UsageError(f"layer {number} is {_called(layer)}; this takes {FAMILIES[family]} layers only")
            found.append(layer)
        return tuple(found)

    def prefix(self, layers: int) -> Network:
        """Return the network of the first layers.

        Parameters
        ----------
        layers : int
            How many, at least 1.

        Returns
        -------
        Network
            A network that shares the layers.

        Raises
        ------
        UsageError
            The network has fewer layers, or `layers` is not an integer of at least 1.
        """
        layers = size(layers, "layers")
        if layers > len(self):
            raise UsageError(f"cannot take {layers} layers of a network that has {len(self)}")
        return replace(self, layers=self.layers[:layers])

    def with_bias(self, bias: float) -> Network:
        """Return the same network with one bias for all outputs of all layers that have weights.

        Parameters
        ----------
        bias : float
            The bias.

        Returns
        -------
        Network
            A network that shares the weights.
        """
        layers = (
            replace(layer, bias=bias) if isinstance(layer, FullyConnected | Conv2d) else layer for layer in self.layers
        )
        return replace(self, layers=tuple(layers))

    def pruned(self, share: float) -> Network:
        """Return the network with only a share of each layer's weights, the largest by magnitude; the rest become zero.

        The result computes something else, and may no longer do what the network was trained for. Biases stay, and
        layers left with few weights become sparse (`sparsenn.layers.pruning`).

        Parameters
        ----------
        share : float
            The share that is kept, above 0 and at most 1.

        Returns
        -------
        Network
            The network with fewer weights.

        Raises
        ------
        UsageError
            The share is not above 0 and at most 1.
        """
        from sparsenn.layers.pruning import check_share, pruned

        check_share(share)
        return replace(self, layers=tuple(pruned(layer, share) for layer in self.layers))

    @property
    def nonzeros(self) -> int:
        """Non-zero weights of all layers."""
        from sparsenn.layers.pruning import nonzeros

        return sum(map(nonzeros, self.layers))

    @classmethod
    def from_scipy(
        cls,
        weights: Iterable[Any],
        bias: float | Array | Sequence[float | Array | None] | None = None,
        activation: Activation | Sequence[Activation | None] | None = None,
    ) -> Network:
        """Build from matrices of shape (inputs, outputs), one per layer: SciPy's sparse ones, or dense ones.

        Messages name the layer (1-based).

        Parameters
        ----------
        weights : iterable of matrices, shape (inputs, outputs)
            A SciPy sparse matrix makes a `SparseLinear`, a NumPy array or nested lists a `Linear`.
        bias : float, array_like, or list or tuple of these, optional
            One number or one vector for all layers; or a list or a tuple with one of these, or None, for each layer.
        activation : Activation, or list or tuple of these, optional
            Of all layers, `ReLU()` unless given; or a list or a tuple with one for each layer.

        Returns
        -------
        Network
            The layers, in the order of the matrices.

        Raises
        ------
        ShapeError
            Neighbouring widths differ, or a bias vector does not fit its layer.
        MatrixError
            The weights are not a list; or a sparse matrix holds a value that is not a finite real number.
        InputError
            A dense matrix or a bias holds such a value, an activation is none, or a list does not have one per layer.
        """
        if hasattr(weights, "tocsc") or not isinstance(weights, Iterable):
            found = "one matrix" if hasattr(weights, "tocsc") else kind_of(weights)
            raise MatrixError(f"the weights are {found}; from_scipy takes a list of matrices, one per layer")
        matrices = tuple(weights)
        each = zip(
            matrices,
            _one_each(bias, len(matrices), "biases"),
            _one_each(activation, len(matrices), "activations"),
            strict=True,
        )
        layers: list[Layer] = []
        for number, (matrix, its_bias, its_activation) in enumerate(each, start=1):
            applied = ReLU() if its_activation is None else its_activation
            dense = isinstance(matrix, np.ndarray | list | tuple)
            try:
                layers.append((Linear if dense else SparseLinear.from_scipy)(matrix, its_bias, applied))
            except InputError as error:
                raise type(error)(f"layer {number}: {error}") from error
        return cls(tuple(layers))


def _one_each(given: Any, layers: int, what: str) -> Sequence[Any]:
    """Return one value per layer: those of a list or a tuple, or the single one given for all."""
    if not isinstance(given, list | tuple):
        return [given] * layers
    if len(given) != layers:
        raise InputError(
            f"{len(given)} {what} are given for {layers} layers; give a list of one per layer, or what all layers share"
        )
    return given


def _checked_layers(layers: Any) -> tuple[Layer, ...]:
    """Return layers as a tuple, or say what was given instead."""
    if isinstance(layers, FullyConnected | ImageLayer) or hasattr(layers, "tocsc") or not isinstance(layers, Iterable):
        raise InputError(f"the layers are {kind_of(layers)}; a network takes a tuple of layers")
    checked = tuple(layers)
    for number, layer in enumerate(checked, start=1):
        if not isinstance(layer, FullyConnected | ImageLayer):
            raise InputError(
                f"layer {number} is {kind_of(layer)}, which is not a layer; Network.from_scipy and "
                "SparseLinear.from_scipy make layers of SciPy's matrices, and Linear of NumPy's"
            )
    return checked


def _checked_image(image: Image) -> Image:
    """Return the shape of an image as a tuple of three sizes of at least 1."""
    sizes = integers(image, 1)
    if sizes is None or len(sizes) != 3:
        raise ShapeError(f"the image {image} is not (channels, height, width), three integers of at least 1")
    return sizes[0], sizes[1], sizes[2]


def _shapes_after(
    layer: Layer, shape: tuple[int, ...], kept: tuple[tuple[int, ...], ...], number: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the shape that layer `number` (1-based) gives for one input of `shape`, and those that are then kept."""
    if isinstance(layer, FullyConnected) and shape != (layer.inputs,):
        before = f"layer {number - 1} gives" if number > 1 else "the network is given"
        if len(shape) == 1:
            raise ShapeError(f"layer {number} takes {layer.inputs} inputs, but {before} {shape[0]}")
        raise ShapeError(
            f"layer {number} takes rows of {layer.inputs} inputs, but {before} images of shape {shape}; put a "
            f"Flatten between them, which makes rows of {prod(shape)}"
        )
    try:
        if isinstance(layer, StackLayer):
            given, kept = layer.move(shape, kept)
            return layer.joined_shape(given) if isinstance(layer, Join) else given[0], kept
        return layer.output_shape((1, *shape))[1:], kept
    except ShapeError as error:
        raise ShapeError(f"layer {number}: {error}") from error


def _called(layer: Layer) -> str:
    """Return what messages call a layer."""
    return kind_of(layer) if layer.family is ImageLayer else FAMILIES[layer.family]
