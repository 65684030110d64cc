"""The description of a model that its file holds beside the layers, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from sparsenn.errors import InputError
from sparsenn.formats import Column, InputLayout, TableEncoding
from sparsenn.model import LOSSES, Model, with_onnx_graph
from sparsenn.network import Network


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
    """Return the model of a network and what `description_of` gave."""
    loss, classes = description.get("loss"), description.get("classes")
    if loss not in (None, *LOSSES) or not isinstance(classes, bool):
        raise InputError("description has no valid loss and classes")
    names, encoding = _class_names(description.get("class_names")), _encoding(description.get("table"))
    if "input_layout" in description:
        described = replace(network, input_layout=_input_layout(description["input_layout"]))
        network = with_onnx_graph(described, network.onnx_graph)
    return Model(network, loss, classes, provenance, class_names=names, encoding=encoding)


def _class_names(found: Any) -> tuple[str, ...] | None:
    """Return the class names of a description."""
    if found is None:
        return None
    if not (isinstance(found, list) and all(isinstance(name, str) for name in found) and len(set(found)) == len(found)):
        raise InputError("description has no valid class_names")
    return tuple(found)


def _encoding(found: Any) -> TableEncoding | None:
    """Return what a description says of the table."""
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
    """Return what a description says of how one input is held."""
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
