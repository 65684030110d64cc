"""A trained network and its purpose."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sparsenn.errors import ShapeError, UsageError, unknown_name
from sparsenn.formats import Scaling, TableEncoding
from sparsenn.layers import ForeignGraph, ForeignLayer
from sparsenn.network import Network
from sparsenn.plugins import Viewed
from sparsenn.printable import kind_of, one_line

LOSSES = ("mse", "cross_entropy")
"""Mean squared error over rows and outputs; mean over rows of -log softmax of the raw outputs at the class."""

RESIZES = ("bilinear",)
"""How images may be brought to a model's size."""

PRUNED = "pruned"
"""The key of a model's provenance under which `Model.pruned` says what it did."""


@dataclass(frozen=True, eq=False)
class Model(Viewed):
    """A trained network and what it was trained for.

    Parameters
    ----------
    network : Network
        The layers.
    loss : str, optional
        What was minimised: "mse" or "cross_entropy"; None where that is not known.
    classes : bool, default False
        Whether each output is the score, or the probability, of a class.
    provenance : dict of str to str, optional
        How it was made, in words and figures.
    resize : str, optional
        How smaller images are brought to the size that the network takes, one of `RESIZES`; None where they are not.
    class_names : tuple of str, optional
        What the classes are called, in the order of the outputs; None where they are called 0, 1, ….
    encoding : TableEncoding, optional
        What the model takes of a table; None where that is a column for each input.
    scaling : Scaling, optional
        How inputs are scaled before the first layer; None where they are not.

    Raises
    ------
    UsageError
        The network is no `Network`, there is no such loss or way to resize, or images are to be resized for a network
        that takes none.
    ShapeError
        Class names, encoding or scaling do not fit the network.
    """

    network: Network
    loss: str | None = None
    classes: bool = False
    provenance: dict[str, str] = field(default_factory=dict)
    resize: str | None = None
    class_names: tuple[str, ...] | None = None
    encoding: TableEncoding | None = None
    scaling: Scaling | None = None

    __repr__ = one_line

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise UsageError(f"the network is {kind_of(self.network)}; a model holds a sparsenn.Network")
        if self.loss is not None and self.loss not in LOSSES:
            raise unknown_name("loss", str(self.loss), LOSSES)
        if self.resize is not None and self.resize not in RESIZES:
            raise unknown_name("way to resize", self.resize, RESIZES)
        if self.resize is not None and self.network.image is None:
            raise UsageError("images are resized for a network that takes images, and this one takes rows of features")
        if self.class_names is not None and len(self.class_names) != self.network.outputs:
            raise ShapeError(f"there are {len(self.class_names):,} class names for {self.network.outputs:,} outputs")
        if self.encoding is not None and self.encoding.width != self.network.inputs:
            raise ShapeError(
                f"the table gives {self.encoding.width:,} inputs; the network takes {self.network.inputs:,}"
            )
        if self.scaling is not None:
            self.scaling.check_width(self.network.inputs, self.network.image)

    @property
    def evaluation_loss(self) -> str:
        """The loss that outputs are judged by: where that of the training is not known, the usual one."""
        return self.loss or ("cross_entropy" if self.classes else "mse")

    def pruned(self, share: float) -> Model:
        """Keep only a share of each layer's weights, as `Network.pruned` does; the provenance says so.

        Parameters
        ----------
        share : float
            The share that stays, above 0 and at most 1.

        Returns
        -------
        Model
            The model with fewer weights.

        Raises
        ------
        UsageError
            The share is not above 0 and at most 1.
        """
        network = self.network.pruned(share)
        before, after = self.network.nonzeros, network.nonzeros
        note = (
            f"{before - after:,} of {before:,} weights were set to zero to show what sparsity would "
            f"gain: the model was not retrained and loses accuracy"
        )
        return replace(self, network=network, provenance={**self.provenance, PRUNED: note})


def imported_model(network: Network, provenance: dict[str, str], classes: bool | None = None) -> Model:
    """Return a network that another program trained, of which only the layers are known, as a model.

    Parameters
    ----------
    network : the layers.
    provenance : its origin, in words.
    classes : whether outputs are scores of classes; if unknown, whether they are several, along one axis, unnamed.
    """
    if classes is None:
        outputs = network.outputs
        classes = outputs > 1 and network.named_outputs is None and max(network.shapes[-1]) == outputs
    return Model(network, None, classes, provenance)


def feature_names(network: Network) -> tuple[str, ...] | None:
    """Return the names of the columns of a network's rows: of its features, or inputs of one number each; else None."""
    if network.named_inputs is None:
        return None if network.input_layout is None else network.input_layout.names
    return tuple(network.named_inputs) if len(network.named_inputs) == network.inputs else None


def fills_gaps(network: Network) -> bool:
    """Return whether a network takes NaN for missing numbers, which a layer of ONNX Runtime replaces."""
    return any(isinstance(layer, ForeignLayer) and "Imputer" in layer.operators for layer in network)


def with_onnx_graph(network: Network, graph: ForeignGraph | None) -> Network:
    """Return a network with the graph that it was imported from, which computes what its layers do."""
    network = replace(network)
    object.__setattr__(network, "onnx_graph", graph)
    return network
