"""A trained network and its purpose; a description of both, beside the layers, as files of all kinds hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sparsenn.backends.trainer import LOSSES
from sparsenn.errors import InputError, ShapeError, UsageError, unknown_name
from sparsenn.formats import Column, InputLayout, Scaling, TableEncoding
from sparsenn.network import Network
from sparsenn.printable import kind_of, one_line

__all__ = ["PRUNED", "Model", "description_of", "imported_model", "model_described"]

RESIZES = ("bilinear",)
"""How images may be brought to a model's size."""

PRUNED = "pruned"
"""The key of a model's provenance under which `Model.pruned` says what it did."""


@dataclass(frozen=True, eq=False)
class Model:
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
    classes : whether outputs are scores of classes; if unknown, whether there are several outputs.
    """
    if classes is None:
        classes = network.outputs > 1 and network.named_outputs is None
    return Model(network, None, classes, provenance)


def description_of(model: Model) -> dict[str, Any]:
    """Return what a model's file says of it besides its layers, for JSON.

    That is loss, classes, class_names and table; and input_layout, where there is one.
    """
    layout = model.network.input_layout
    return {
        "loss": model.loss,
        "classes": model.classes,
        "class_names": model.class_names,
        "table": None if model.encoding is None else asdict(model.encoding),
        **({} if layout is None else {"input_layout": asdict(layout)}),
    }


def model_described(network: Network, description: Mapping[str, Any], provenance: dict[str, str]) -> Model:
    """Return the model of a network and what `description_of` gave.

    Raises
    ------
    InputError
        The description is not sound, or does not fit the network.
    """
    loss, classes = description.get("loss"), description.get("classes")
    if loss not in (None, *LOSSES) or not isinstance(classes, bool):
        raise InputError("description has no valid loss and classes")
    names, encoding = _class_names(description.get("class_names")), _encoding(description.get("table"))
    if "input_layout" in description:
        network = replace(network, input_layout=_input_layout(description["input_layout"]))
    return Model(network, loss, classes, provenance, class_names=names, encoding=encoding)


def _class_names(found: Any) -> tuple[str, ...] | None:
    """Return the class names of a description.

    Raises
    ------
    InputError
        They are no different texts.
    """
    if found is None:
        return None
    if not (isinstance(found, list) and all(isinstance(name, str) for name in found) and len(set(found)) == len(found)):
        raise InputError("description has no valid class_names")
    return tuple(found)


def _encoding(found: Any) -> TableEncoding | None:
    """Return what a description says of the table.

    Raises
    ------
    InputError
        It is not what `write_model` writes.
    """
    if found is None:
        return None
    try:
        columns = tuple(_column(**column) for column in found["columns"])
        targets, named = tuple(found["targets"]), found["named"]
    except (TypeError, KeyError) as error:
        raise InputError("description has no valid table") from error
    if not (all(isinstance(name, str) for name in targets) and isinstance(named, bool)):
        raise InputError("description has no valid table")
    return TableEncoding(columns, targets, named)


def _input_layout(found: Any) -> InputLayout:
    """Return what a description says of how one input is held.

    Raises
    ------
    InputError
        It is not what `write_model` writes, or not sound.
    """
    try:
        return InputLayout(**found)
    except TypeError as error:
        raise InputError("description has no valid input_layout") from error


def _column(name: Any, categories: Any, fill: Any) -> Column:
    texts = categories if isinstance(categories, list) else []
    sound = isinstance(name, str) and isinstance(categories, list | None) and isinstance(fill, str | float | None)
    if not sound or not all(isinstance(text, str) for text in texts):
        raise TypeError("a column")
    return Column(name, None if categories is None else tuple(texts), fill)
