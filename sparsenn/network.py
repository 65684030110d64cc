"""Network: a shape-checked graph of layers, in an order in which each reads only what comes before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np

from sparsenn.errors import InputError, MatrixError, ShapeError, UsageError
from sparsenn.formats import INDEX32_LIMIT, Array, InputLayout
from sparsenn.formats.arrays import size
from sparsenn.formats.named_shapes import NamedShapes, checked_shapes, total_width
from sparsenn.formats.rebuilt import Rebuilt
from sparsenn.graph import (
    FAMILIES,
    Layer,
    Node,
    called,
    chains_of,
    checked_nodes,
    consumers_of,
    live_values,
    output_shape_of,
)
from sparsenn.layers import (
    Activation,
    Conv2d,
    ForeignGraph,
    ForeignLayer,
    FullyConnected,
    ImageLayer,
    LayerNorm,
    Linear,
    PerPosition,
    ReLU,
    SparseLinear,
    replace_fields,
)
from sparsenn.layers.images import Image, checked_image
from sparsenn.layers.pruning import check_share, nonzeros, pruned
from sparsenn.plugins import Viewed
from sparsenn.printable import kind_of

__all__ = ["Image", "Layer", "Network", "Node"]

Family = TypeVar("Family", SparseLinear, Linear, ImageLayer)


@dataclass(frozen=True, eq=False, init=False)
class Network(Rebuilt, Viewed):
    """A graph of layers. The last node's outputs are the network's.

    `Network((a, b, c))` is a chain, each layer's outputs the next one's inputs; a `Node` says which outputs its layer
    reads, as many as it combines. Nodes have numbers, counted from 1, and read only nodes before them; 0 is the input.
    A residual block is `Network((a, b, Node(Add(), (1, 2))))`.

    What goes through a network is always a matrix with one row an input. A row is a vector of features, or an image:
    its numbers channel by channel, row by row of pixels.

    Parameters
    ----------
    nodes : sequence of Node or layer
        At least one. A layer alone reads the node before it, and the first one the input.
    image : (int, int, int), optional
        Channels, height and width of the inputs, where no layer that reads them is `Linear` or `SparseLinear`.
    needs_float64 : bool, default False
        Whether float32 rounds away too much of the outputs, as importers find out; `Session` then computes in float64
        unless a precision is asked for.
    input_layout : InputLayout, optional
        How the program that the network comes from holds one input: its shape, the order of its axes, and names. A
        session takes such inputs, too.
    named_inputs : dict of str to tuple of int, optional
        Names and shapes of several inputs, where the network's row holds them side by side, in this order; a `Slice`
        takes each out of it.
    named_outputs : dict of str to tuple of int, optional
        Names and shapes of several outputs, which are side by side in the network's, as a `Concatenate` leaves them.

    Attributes
    ----------
    onnx_graph : ForeignGraph or None
        The graph that it was imported from, or `to_onnx` would write, which ONNX Runtime may run on a CPU in place of
        the layers. Networks that `dataclasses.replace` returns, and those with other layers, are without one.
    shapes : tuple of tuple of int
        The shape of one input, and of what each node gives for it: (channels, height, width) or (width,).

    Raises
    ------
    ShapeError
        There is no layer; a layer does not take what it reads, and the message names it (1-based); the image is needed
        and not given, or not three sizes of at least 1; the input layout does not fit the network; named inputs or
        outputs are wider or narrower than its rows; or rows become longer than 2^31 - 1.
    UsageError
        Named inputs or outputs are no dictionary of names and shapes.
    InputError
        One of the layers is something else, such as a matrix; or a node reads one that does not come before it.
    """

    nodes: tuple[Node, ...]
    image: Image | None = None
    needs_float64: bool = False
    input_layout: InputLayout | None = None
    named_inputs: NamedShapes | None = None
    named_outputs: NamedShapes | None = None
    onnx_graph: ForeignGraph | None = field(init=False, repr=False, default=None)
    shapes: tuple[tuple[int, ...], ...] = field(init=False, repr=False)

    def __init__(
        self,
        nodes: Iterable[Node | Layer],
        image: Image | None = None,
        needs_float64: bool = False,
        input_layout: InputLayout | None = None,
        named_inputs: Mapping[str, Sequence[int]] | None = None,
        named_outputs: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        object.__setattr__(self, "nodes", checked_nodes(nodes))
        if not self.nodes:
            raise ShapeError("a network needs at least one layer")
        object.__setattr__(self, "image", None if image is None else checked_image(image))
        object.__setattr__(self, "needs_float64", needs_float64)
        object.__setattr__(self, "input_layout", input_layout)
        for field_name, shapes in (("named_inputs", named_inputs), ("named_outputs", named_outputs)):
            checked = None if shapes is None else checked_shapes(shapes, field_name.replace("_", " "))
            object.__setattr__(self, field_name, checked)
        object.__setattr__(self, "shapes", self._shapes())
        if input_layout is not None:
            input_layout.check_width(self.inputs)
        for named, width in ((self.named_inputs, self.inputs), (self.named_outputs, self.outputs)):
            if named is not None and total_width(named) != width:
                raise ShapeError(f"the shapes {named} make rows of {total_width(named):,}; the network has {width:,}")

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        """Follow the shape of one input through the layers."""
        readers = [node.layer for node in self.nodes if 0 in node.sources]
        has_width = FullyConnected | ForeignLayer | LayerNorm | PerPosition
        width = next((layer.inputs for layer in readers if isinstance(layer, has_width)), None)
        if self.named_inputs is not None:
            width = total_width(self.named_inputs)
        if self.image is None and width is None:
            raise ShapeError(
                f"layer 1 is {called(self.nodes[0].layer)}: say what images the network takes, "
                "image=(channels, height, width)"
            )
        shapes: list[tuple[int, ...]] = [self.image or (width or 0,)]
        for number, node in enumerate(self.nodes, start=1):
            shapes.append(output_shape_of(node, [shapes[source] for source in node.sources], number))
        for number, shape in enumerate(shapes):
            if prod(shape) > INDEX32_LIMIT:
                what = f"layer {number} gives" if number else "the network takes"
                raise ShapeError(f"{what} rows of shape {shape}; a row holds at most {INDEX32_LIMIT:,} numbers")
        return tuple(shapes)

    @cached_property
    def has_foreign_layers(self) -> bool:
        """Whether ONNX Runtime computes some of the layers."""
        return any(isinstance(layer, ForeignLayer) for layer in self.layers)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in the order of the nodes."""
        return tuple(node.layer for node in self.nodes)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """For the input and for each node, the numbers of the nodes that read it, ascending."""
        return consumers_of(self.nodes)

    @cached_property
    def live(self) -> tuple[tuple[int, ...], ...]:
        """Before each layer and after the last, what is still to be read: 0 for the input, and numbers of nodes."""
        return live_values(self.consumers)

    @cached_property
    def chains(self) -> tuple[tuple[int, int], ...]:
        """Ranges of layers that may run together, from 0, the last excluded: only the next reads a layer's outputs."""
        return chains_of(self.nodes, self.consumers)

    def input_shapes(self, number: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of what a layer reads of one input.

        Parameters
        ----------
        number : int
            The layer, counted from 0.

        Returns
        -------
        tuple of tuple of int
            One; or several, where the layer combines them.
        """
        return tuple(self.shapes[source] for source in self.nodes[number].sources)

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"onnx_graph": self.onnx_graph})

    def with_layers(self, layers: Iterable[Layer]) -> Network:
        """Return the same graph with other layers.

        Parameters
        ----------
        layers : iterable of layers
            As many as there are.

        Returns
        -------
        Network
            A network whose nodes read what they read here.

        Raises
        ------
        ShapeError
            A layer does not take what it reads.
        """
        nodes = tuple(Node(layer, node.sources) for layer, node in zip(layers, self.nodes, strict=True))
        return replace(self, nodes=nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        layers = f"{len(self):,} {'layer' if len(self) == 1 else 'layers'}"
        return f"Network({layers}, {self.inputs:,} → {self.outputs:,}, {self.edges:,} edges)"

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Layer:
        return self.layers[index]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers one input has, and what each node gives for it."""
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
        shapes = map(self.input_shapes, range(len(self)))
        return sum(layer.multiply_adds((1, *shape[0])) for layer, shape in zip(self.layers, shapes, strict=True))

    def runs(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges of layers, sparse, dense or of images, within which only the next reads a layer's outputs.

        Returns
        -------
        tuple of (int, int)
            First and last layer of each range, counted from 0, the last excluded.
        """
        families = [layer.family for layer in self.layers]
        starts = {first for first, _ in self.chains}
        starts |= {number for number in range(1, len(families)) if families[number] != families[number - 1]}
        return tuple(pairwise((*sorted(starts), len(families))))

    def layers_of(self, family: type[Family], first: int = 0, last: int | None = None) -> tuple[Family, ...]:
        """Return a chain of layers, all of which must be of one family.

        Parameters
        ----------
        family : type
            `SparseLinear`, `Linear` or `ImageLayer`.
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
            A layer is of another family, or it does not read the one before it; the message names it (1-based).
        """
        found = []
        for number, layer in enumerate(self.layers[first:last], start=first + 1):
            if not isinstance(layer, family):
                raise UsageError(f"layer {number} is {called(layer)}; this takes {FAMILIES[family]} layers only")
            if number > first + 1 and self.nodes[number - 1].sources != (number - 1,):
                raise UsageError(f"layer {number} does not read layer {number - 1}; this takes chains of layers only")
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
        return replace(
            self, nodes=self.nodes[:layers], named_outputs=self.named_outputs if layers == len(self) else None
        )

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
        has_bias = FullyConnected | Conv2d | PerPosition
        layers = (replace_fields(layer, bias=bias) if isinstance(layer, has_bias) else layer for layer in self.layers)
        return self.with_layers(layers)

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
        check_share(share)
        return self.with_layers(pruned(layer, share) for layer in self.layers)

    @property
    def nonzeros(self) -> int:
        """Non-zero weights of all layers."""
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
