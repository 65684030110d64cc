"""Graphs whose nodes have layers here, or of which ONNX Runtime computes some."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.inliner
from scipy.sparse import issparse

from sparsenn.errors import InputError, ShapeError, SparseNNError, UsageError
from sparsenn.io.importers.affine import PositionProduct, Scaling
from sparsenn.io.importers.nodes import Node
from sparsenn.io.importers.onnx.call import Classes, Value
from sparsenn.io.importers.onnx.graph import Imported, Walk
from sparsenn.io.importers.onnx.graph_inputs import differ_in_rows, input_signals, open_sizes
from sparsenn.io.importers.onnx.labels import labels_of, with_numeric_outputs
from sparsenn.io.importers.onnx.probing import Probed, RunError, probed, quantises
from sparsenn.io.importers.onnx.subgraphs import Subgraphs, without_constant_outputs, without_dead_nodes
from sparsenn.io.importers.onnx.tensors import Tensors
from sparsenn.io.importers.signal import Signal
from sparsenn.layers import Add, ForeignLayer, LayerNorm, PerPosition, RowTensor, Slice

_WITH_WEIGHTS = ("Conv", "Gemm", "MatMul")
"""Operators for whose layers a graph is cut, where few weights are not zero: ONNX Runtime is as fast with others."""


_FEW_WEIGHTS = 1 << 16
"""Weights of a product, at most, that takes less time than a convolution for which numbers are moved first."""


def import_graph(model: Any, tensors: Tensors, sparse_below: float, foreign: bool) -> Imported:
    """Return the network of a model.

    A tensor whose first axis has a fixed length is taken for rows alike, or, where the graph mixes them, as one row.

    sparse_below : as of `fully_connected`.
    foreign : whether nodes that have no layer here become layers of ONNX Runtime.
    """
    if model.functions:
        model = _inlined(model)
    model = without_constant_outputs(model)
    walk = Walk(model, tensors)
    choices = list(input_signals(model.graph, walk.names_read(), walk.constants, sparse_below))
    # convolutions stay such where that is possible: as products, they have a weight for each pixel
    as_images = [_with_few_weights(signals) for signals in choices]
    has_positions = any(len(signal.shape) > 1 for signals in choices for signal in signals.values())
    is_mixed = walk.unknown_operators() or (has_positions and walk.has_normalisations)  # as transformers are
    if foreign and is_mixed:  # without trying the others first, which may take long
        with suppress(UsageError):
            found = _mixed(model, tensors, walk.constants, as_images)
            if found is not None:
                return found
    faults: list[InputError] = []
    for signals in (*as_images, *choices):
        try:
            return walk.again().run(signals)
        except InputError as error:
            faults.append(error)
    first, *others = faults[len(as_images) :]
    try:
        found = _mixed(model, tensors, walk.constants, as_images) if foreign else None
    except UsageError as error:
        raise InputError(f"{first}; {error}") from error
    if found is not None:
        return found
    if foreign:
        message = f"{first}; nor does ONNX Runtime compute each row by itself"
        if whole := _whole(choices[0]):
            raise open_sizes(f"{message}. {whole}", [value for value in model.graph.input if value.name in choices[0]])
        raise InputError(message) from first
    rows = next(iter(choices[0].values())).rows
    if not others or str(first) == str(others[0]) or rows == 1:
        raise first
    raise InputError(
        f"{first}; there the input's first axis, of length {rows}, is taken for rows. With the whole input "
        f"as one row: {others[0]}"
    )


def _inlined(model: Any) -> Any:
    """Return a model without functions, but for those whose operators differ between their opset and the model's."""
    found, versions = onnx.ModelProto(), {opset.domain: opset.version for opset in model.opset_import}
    found.CopyFrom(model)
    for function in found.functions:
        for opset in function.opset_import:
            version = versions.get(opset.domain, opset.version)
            nodes = [node for node in _with_subgraphs(function.node) if node.domain == opset.domain]
            if all(_since(node, opset.version) == _since(node, version) for node in nodes):
                opset.version = version  # the inliner takes functions of the model's own opsets
    return onnx.inliner.inline_local_functions(found)


def _with_subgraphs(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _with_subgraphs(graph.node)


def _since(node: Any, version: int) -> int:
    """Return the opset in which an operator became what it is in a version; 0 where it is not in it."""
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return 0


def _with_few_weights(signals: Mapping[str, Signal]) -> dict[str, Signal]:
    return {name: replace(signal, most_weights=_FEW_WEIGHTS) for name, signal in signals.items()}


def _whole(signals: Mapping[str, Signal]) -> str:
    """Return how to have inputs with an open axis computed as one row, in words; nothing where no axis is open."""
    if not any(signal.axis is not None and signal.rows is None for signal in signals.values()):
        return ""
    shapes = {}
    for name, signal in signals.items():
        sizes = [*map(str, signal.shape)]
        if signal.axis is not None:
            sizes.insert(signal.axis, str(signal.rows or "rows") if signal.axis else "1")
        shapes[name] = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    shown = ", ".join(f"{name!r}: {sizes}" for name, sizes in shapes.items())
    text = next(iter(shapes.values())) if len(shapes) == 1 else f"{{{shown}}}"
    fix = f"from_onnx(path, shape={text}), or --shape"
    return f"With all sizes fixed, by numbers, it may compute the input as a whole: {fix}"


def _mixed(
    model: Any, tensors: Tensors, constants: Mapping[str, Value], choices: Sequence[dict[str, Signal]]
) -> Imported | None:
    """Return what ONNX Runtime and layers here compute together; None where rows cannot be taken in any way.

    A `UsageError` says why ONNX Runtime does not compute the graph at all.
    """
    labels = next(filter(None, (labels_of(node, constants) for node in model.graph.node)), ())
    model, reasons, is_quantising = with_numeric_outputs(model), list[str](), quantises(model)
    for signals, row_by_row in itertools.product(choices, (False, True)):
        has_rows = any(signal.axis is not None and signal.rows != 1 for signal in signals.values())
        if row_by_row and has_rows and not (differ_in_rows(signals) or is_quantising):
            continue  # nobody knows what the graph makes of single rows
        if is_quantising and not (row_by_row or has_rows):
            continue  # of other steps of quantisation than its own
        try:
            found = _Mixed(model, tensors, constants, signals, row_by_row).run()
        except _RowsError as error:
            reasons.append(str(error))
            continue
        is_of_classes = len(labels) == found.network.outputs
        return replace(found, classes=True, labels=labels) if is_of_classes else found
    if reasons and all(reasons):
        remedy = _whole(choices[0]) if any(signal.axis for signal in choices[0].values()) else ""
        raise UsageError(f"nor does ONNX Runtime compute it: {reasons[0]}{remedy}")
    return None


class _RowsError(Exception):
    """Rows cannot be taken so; the message says why ONNX Runtime does not compute the graph, if it does not."""


class _Mixed:
    """A graph of which ONNX Runtime computes the nodes that have no layer here, in as few subgraphs as there can be.

    Nodes without weights of their own stay with the nodes around them.
    """

    def __init__(
        self,
        model: Any,
        tensors: Tensors,
        constants: Mapping[str, Value],
        signals: dict[str, Signal],
        row_by_row: bool,
    ) -> None:
        self._signals, self._row_by_row = signals, row_by_row
        self._sparse_below = next(iter(signals.values())).sparse_below
        self._model = without_dead_nodes(tensors.with_all(model))
        try:
            found = probed(self._model, signals, row_by_row)
        except RunError as error:
            raise _RowsError(str(error)) from error
        if found is None:
            raise _RowsError
        self._tensors_of: Mapping[str, Probed] = found
        self._subgraphs = Subgraphs(self._model)
        self._walk = Walk(self._model, tensors, constants)
        self._takes_images = True
        self._refused: int | None = None  # the node at which the last attempt ended
        self._of_classes = set[int]()  # its nodes that gave numbers of classes

    def run(self) -> Imported:
        """Return the network, which takes images where layers that read its input do."""
        own = self._own()
        try:
            return self._run(own)
        except (InputError, ShapeError):
            self._takes_images = False
        while True:
            try:
                return self._run(own)
            except (InputError, ShapeError):
                refused = self._of_classes & own if self._refused is None else {self._refused}
                if not own:
                    raise
                # such nodes take other numbers than those they were chosen with, or are outputs themselves; where there
                # are none, ONNX Runtime computes all of the graph
                own -= refused or own

    def _run(self, own: set[int]) -> Imported:
        values: dict[str, Value] = {}
        walk = self._walk.again()
        values.update(walk.constants)
        values.update(self._signals)
        subgraphs = Subgraphs(self._model, {place: walk.reads(place) for place in own})
        for is_own, places in subgraphs.stages(own):
            if not is_own:
                self._add_foreign(subgraphs, places, values)
                continue
            for place in places:
                self._refused = place
                walk.add_outputs(place, values)
            self._refused = None
        classes = {name for name, value in values.items() if isinstance(value, Classes)}
        self._of_classes = {place for place in own if classes.intersection(self._model.graph.node[place].output)}
        missing = [each.name for each in self._model.graph.output if each.name not in values]
        if missing:
            raise _RowsError
        return walk.imported(self._signals, values)

    def _crosses(self, name: str) -> bool:
        """Whether a value can pass between subgraphs, and between them and layers."""
        tensor = self._tensors_of.get(name)
        return name in self._signals or (tensor is not None and tensor.crosses)

    # ---- Whose each node is ------------------------------------------------------------------------------------------

    def _own(self) -> set[int]:
        """Return the places of the nodes that become layers."""
        walk, own = self._walk.again(), set()
        values: dict[str, Value] = {**walk.constants, **self._signals}
        anchors = set()
        for place in self._subgraphs.needed:
            node = self._model.graph.node[place]
            try:
                if any(name and name not in values for name in walk.reads(place)):
                    raise InputError("it reads what only other foreign nodes read")
                read = [values[name] for name in walk.reads(place) if name in values]
                signals = [value for value in read if isinstance(value, Signal)]
                is_anchor = bool(signals) and node.op_type in _WITH_WEIGHTS and self._is_sparse(read)
                is_product = node.op_type == "MatMul"
                if (is_product or walk.normalises(place)) and any(len(signal.shape) > 1 for signal in signals):
                    if is_product and not (is_anchor and isinstance(read[0], Signal)):
                        raise InputError("it multiplies along one of several axes, by weights that are not sparse")
                    (source, *_) = walk.reads(place)
                    if not _is_shared(values[source]):  # what moves or scales its numbers stays with foreign nodes
                        values[source] = self._stand_in(RowTensor(values[source].shape, values[source].axis))
                walk.add_outputs(place, values)
                own.add(place)
                if is_anchor:
                    anchors.add(place)
            except SparseNNError:
                for name in node.output:
                    values.pop(name, None)
                    tensor = self._tensors_of.get(name)
                    if tensor is not None and tensor.rows is not None and tensor.is_float:
                        values[name] = self._stand_in(tensor.rows)
        constant = self._constant(own)

        def constants_of(place: int) -> Iterator[str]:
            return (name for name in walk.reads(place) if not isinstance(values.get(name), Signal))

        makers = {place: self._makers(walk.reads(place)) for place in own}
        with_constants = {place for place in own if self._makers(constants_of(place)) <= constant}
        shared = self._per_position(with_constants, values, walk.reads)
        others = own - shared - constant
        apart = (self._subgraphs.connected(some, anchors & some, walk.reads) for some in (shared, others))
        chosen, waiting = set[int](), [*set().union(*apart)]
        while waiting:  # constants connect nothing: each is computed where it is read
            place = waiting.pop()
            chosen.add(place)
            waiting += (makers[place] & constant) - chosen
        return chosen

    def _constant(self, own: set[int]) -> set[int]:
        """Return the places of the nodes of `own` whose outputs are the same for all inputs of the network."""
        found = set[int]()
        for place in self._subgraphs.needed:
            reads = [name for name in self._model.graph.node[place].input if name]
            if place in own and self._makers(reads) <= found and not any(name in self._signals for name in reads):
                found.add(place)
        return found

    def _makers(self, names: Iterable[str]) -> set[int]:
        return {self._subgraphs.maker[name] for name in names if name in self._subgraphs.maker}

    def _per_position(
        self, own: set[int], values: Mapping[str, Value], reads: Callable[[int], Collection[str]]
    ) -> set[int]:
        """Return the places of the nodes that become layers of rows of positions, or part of such.

        Sums stay with foreign nodes where these alone give, or read, one of their terms: it would have to leave these.
        """
        node = self._model.graph.node
        shared = {place for place in own if all(map(_is_shared, map(values.get, node[place].output)))}
        sums = {place for place in shared if _is_sum(values[node[place].output[0]])}

        def signals_of(place: int) -> set[str]:
            return {name for name in reads(place) if isinstance(values.get(name), Signal)}

        while True:
            scaled = {name for place in shared for name in node[place].output if not _is_whole(values[name])}
            others = {name for place in self._subgraphs.needed if place not in shared for name in node[place].input}
            others |= {output.name for output in self._model.graph.output}
            wrong = {place for place in shared if scaled & others & set(node[place].output)}
            known = {*self._signals, *(name for place in shared for name in node[place].output)}
            known.update(name for place in shared - sums for name in reads(place))
            wrong |= {place for place in shared & sums if not known.issuperset(signals_of(place))}
            if not wrong:
                return shared
            shared -= wrong

    def _is_sparse(self, values: Collection[Value]) -> bool:
        """Whether a layer's weights, its first constant, are mostly zero."""
        weights = next((value for value in values if not isinstance(value, Signal)), None)
        if issparse(weights):
            return True
        return isinstance(weights, np.ndarray) and bool(np.count_nonzero(weights) < self._sparse_below * weights.size)

    def _stand_in(self, rows: RowTensor) -> Signal:
        """Return a signal of a shape, while nobody knows the subgraph that gives it."""
        first = next(iter(self._signals.values()))
        layer = ForeignLayer(b"", (RowTensor((first.width,)),), (rows,))
        return self._given(layer, (first,))[0]

    # ---- Foreign subgraphs -------------------------------------------------------------------------------------------

    def _add_foreign(self, subgraphs: Subgraphs, places: Collection[int], values: dict[str, Value]) -> None:
        """Add the outputs of a foreign subgraph to values."""

        def is_known(name: str) -> bool:
            return isinstance(values.get(name), Signal) and self._crosses(name)

        subgraph = subgraphs.extracted(places, is_known, self._tensors_of)
        sources = [values[name] for name in subgraph.inputs]
        gives = tuple(self._rows_of(name) for name in subgraph.outputs)
        takes = tuple(RowTensor(each.shape, each.axis) for each in sources)
        layer = ForeignLayer(subgraph.model, takes, gives, self._row_by_row, subgraph.operators)
        values.update(zip(subgraph.outputs, self._given(layer, sources), strict=True))

    def _rows_of(self, name: str) -> RowTensor:
        rows = self._tensors_of[name].rows
        assert rows is not None, "only what can pass is an output"
        return rows

    def _as_read(self, signal: Signal) -> Signal:
        """Return a signal with nothing pending, whose layers hold its rows in its own order."""
        signal = signal.in_order().flushed()
        if signal.lies is None:
            return signal.images() if signal.is_image and self._takes_images else signal.flat()
        return signal

    def _given(self, layer: ForeignLayer, sources: Collection[Signal]) -> list[Signal]:
        settled = [self._as_read(each) for each in sources]
        node = Node(layer, tuple(each.node for each in settled))
        base = replace(settled[0], order=None, integers=False)
        if len(layer.gives) == 1:
            (only,) = layer.gives
            lies = layer.combined_shape([(each.width,) for each in layer.takes])
            return [replace(base, shape=only.shape, axis=only.axis, node=node, lies=lies)]
        return list(_slices(base, node, layer))


def _is_shared(value: Value) -> bool:
    """Whether a value is what a layer of rows of positions gives, but for a scaling that waits."""
    if not isinstance(value, Signal) or value.order is not None:
        return False
    if not isinstance(value.pending, Scaling) or value.node is None:
        return isinstance(value.pending, PositionProduct)
    layer = value.node.layer
    is_norm = isinstance(layer, LayerNorm) and len(value.shape) > 1 and value.shape[-1] == layer.width
    return isinstance(layer, PerPosition) or is_norm or _is_sum(value)


def _is_sum(value: Signal) -> bool:
    """Whether a value is a sum of rows of positions, which are no images."""
    is_sum = value.node is not None and isinstance(value.node.layer, Add) and isinstance(value.pending, Scaling)
    return is_sum and len(value.shape) > 1 and value.lies == (value.width,)


def _is_whole(signal: Signal) -> bool:
    return signal.idle or isinstance(signal.pending, PositionProduct)


def _slices(base: Signal, node: Node, layer: ForeignLayer) -> Iterator[Signal]:
    first = 0
    for each in layer.gives:
        image = each.image
        taken = Node(Slice(first, first + each.width, image), (node,))
        yield replace(base, shape=each.shape, axis=each.axis, node=taken, lies=image or (each.width,))
        first += each.width
