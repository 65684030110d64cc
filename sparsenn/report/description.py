"""What a dataset or a model consists of: shapes, edges, degrees, values, truth and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from sparsenn.errors import UsageError
from sparsenn.formats import Array
from sparsenn.formats.named_shapes import NamedShapes
from sparsenn.io import Dataset
from sparsenn.layers import ImageLayer, Linear, Softmax, SparseLinear
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.printable import kind_of, printable
from sparsenn.report.architecture import architecture_table, shape_text
from sparsenn.report.fitting import FittedTable, numbers
from sparsenn.report.quantities import UNCOUNTED, count, percentage
from sparsenn.report.tables import fact_table
from sparsenn.report.training import model_facts
from sparsenn.structure import Structure

_IMPORTANCE = {"density": 3, "per output": 2, "per input": 1}
_NUMERIC = ("layers", "inputs", "outputs", "edges", *_IMPORTANCE)
"""Columns of numbers, of which some are left out where the table is too wide."""

_WORDED = ("weights", "bias", "activation")


def describe_dataset(dataset: Dataset) -> Table:
    """Return a table of the dataset as a whole: network, inputs, truth and provenance."""
    network, inputs = dataset.network, dataset.inputs
    positions = sum(before * after for before, after in pairwise(network.sizes))
    facts: list[tuple[str, str | Text]] = [
        ("dataset", dataset.name),
        ("network", _size(network)),
        ("edges", f"{count(network.edges)}, density {percentage(network.edges, positions)}"),
        (
            "inputs",
            f"{count(inputs.shape[0])} × {count(inputs.shape[1])}, {count(inputs.nnz)} non-zeros, "
            f"density {percentage(inputs.density, 1)}, values {_values(inputs.values)}",
        ),
        ("truth", _truth(dataset)),
        ("provenance", _origins(dataset.provenance)),
    ]
    return fact_table(facts)


def describe_model(name: str | None, model: Model, structure: Structure | None = None) -> Table:
    """Return a table of a trained model as a whole: network, what it was trained for, and provenance."""
    shares = isinstance(model.network[-1], Softmax)
    purpose = f"{'probabilities' if shares else 'scores'} of classes" if model.classes else "numbers"
    network, words = model.network, "" if structure is None or not structure.layers else str(structure)
    facts: list[tuple[str, str | Text]] = [
        *([] if name is None else [("model", name)]),
        *_network_facts(network, model.resize),
        *([("structure", Text(words))] if words and not words.startswith("No structure") else ()),
        ("outputs", purpose if model.loss is None else f"{purpose}; loss: {model.loss}"),
        *model_facts(model),
        ("provenance", _origins(model.provenance)),
    ]
    return fact_table(facts)


def describe_network(network: Network) -> Table:
    """Return a table of a network as a whole: its inputs and outputs, weights and work."""
    return fact_table(_network_facts(network, None))


def _network_facts(network: Network, resize: str | None) -> list[tuple[str, str | Text]]:
    uncounted = UNCOUNTED * network.has_foreign_layers
    return [
        ("network", _size(network)),
        *([("images", _images(network.image, resize))] if network.image is not None else ()),
        *([("named inputs", _named(network.named_inputs))] if network.named_inputs is not None else ()),
        *([("named outputs", _named(network.named_outputs))] if network.named_outputs is not None else ()),
        ("weights", f"{count(network.edges)}; with biases {count(network.parameters)} parameters{uncounted}"),
        ("multiply-adds", f"{count(network.multiply_adds)} per sample{uncounted}"),
    ]


def _images(image: tuple[int, ...], resize: str | None) -> str:
    smaller = "" if resize is None else f"; smaller ones are enlarged: {resize}"
    return f"{shape_text(image)} (channels × height × width){smaller}"


def _named(shapes: NamedShapes) -> Text:
    return Text("; ".join(f"{printable(name)}: {shape_text(shape) or '1'}" for name, shape in shapes.items()))


def _size(network: Network) -> str:
    layers = "layer" if len(network) == 1 else "layers"
    return f"{count(len(network))} {layers}, {count(network.inputs)} inputs → {count(network.outputs)} outputs"


def _origins(provenance: Mapping[str, str]) -> Text:
    lines = (printable(f"{part}: {origin}") for part, origin in provenance.items())
    return Text("\n".join(lines) or "unknown")


def describe_layers(network: Network) -> Table:
    """Return a table of the layers; where all are sparse or dense, neighbours that look the same share a line."""
    if any(layer.family is ImageLayer for layer in network):
        return architecture_table(network)
    table = FittedTable(*numbers(*_NUMERIC), *_WORDED, importance=_IMPORTANCE, title="layers")
    described = ((number, _layer_cells(layer)) for number, layer in enumerate(network, start=1))
    for cells, members in groupby(described, key=lambda numbered: numbered[1]):
        places = [number for number, _ in members]
        span = str(places[0]) if len(places) == 1 else f"{places[0]}–{places[-1]}"
        table.add_row(*map(Text, (span, *cells)))
    return table


def _truth(dataset: Dataset) -> str:
    if dataset.truth is None:
        return "none"
    return f"{count(dataset.truth.size)} {'category' if dataset.truth.size == 1 else 'categories'}"


def _layer_cells(layer: Any) -> tuple[str, ...]:
    """Return all cells but the layer's number; of a dense layer, weights that are zero are no edges."""
    if isinstance(layer, SparseLinear):
        values, per_output = layer.weights.values, np.diff(layer.weights.indptr)
        per_input = np.bincount(layer.weights.indices, minlength=layer.inputs)
    elif isinstance(layer, Linear):
        values, there = layer.weights, layer.weights != 0
        per_output, per_input = there.sum(axis=0), there.sum(axis=1)
    else:
        raise UsageError(f"the table of layers has no columns for {kind_of(layer)}")
    edges = int(per_output.sum())
    return (
        count(layer.inputs),
        count(layer.outputs),
        count(edges),
        percentage(edges, layer.inputs * layer.outputs),
        _span(per_output),
        _span(per_input),
        _values(values),
        "none" if layer.bias is None else _values(np.atleast_1d(layer.bias)),
        str(layer.activation),
    )


def _span(degrees: Array) -> str:
    if not degrees.size:
        return "–"
    least, most = int(degrees.min()), int(degrees.max())
    return count(least) if least == most else f"{count(least)}–{count(most)}"


def _values(values: Array) -> str:
    if not values.size:
        return "none"
    least, most = float(values.min()), float(values.max())
    return f"all {least:.6g}" if least == most else f"{least:.6g} to {most:.6g}"
