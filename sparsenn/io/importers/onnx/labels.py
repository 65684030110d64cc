"""Labels of classes: those that nodes hold, and outputs that are none but labels, or maps from labels to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from sparsenn.io.importers.onnx.call import Value
from sparsenn.io.importers.signal import Signal

_LABELS = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")  # attributes


def labels_of(node: Any, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the labels of classes that a node holds, or picks from."""
    if node.op_type == "ArrayFeatureExtractor":
        if isinstance(values.get(node.input[0]), Signal | None):
            return ()
        return tuple(map(_text, np.asarray(values[node.input[0]]).reshape(-1)))
    attributes = (attribute for attribute in node.attribute if attribute.name in _LABELS)
    lists = (onnx.helper.get_attribute_value(attribute) for attribute in attributes)
    return tuple(_text(label) for labels in lists if isinstance(labels, list) for label in labels)


def with_numeric_outputs(model: Any) -> Any:
    """Return a model whose outputs are numbers, as far as it has such.

    Outputs of a ZipMap, a dictionary for each row, become the numbers that it takes; a sequence of tensors becomes
    these; labels that are texts are left out beside other outputs.
    """
    maps = {node.output[0] for node in model.graph.node if node.op_type == "ZipMap"}
    made = {node.output[0]: node.input for node in model.graph.node if node.op_type == "SequenceConstruct"}
    sequences = [value for value in model.graph.output if value.name in made]
    texts = [value for value in model.graph.output if value.type.tensor_type.elem_type == onnx.TensorProto.STRING]
    if not maps and not texts and not sequences:
        return model
    numeric = onnx.ModelProto()
    numeric.CopyFrom(model)
    for node in numeric.graph.node:
        if node.op_type == "ZipMap":
            node.CopyFrom(onnx.helper.make_node("Identity", node.input, node.output, node.name))
    for value in numeric.graph.output:
        if value.name in maps:
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, None))
    for value in sequences:
        kind = value.type.sequence_type.elem_type.tensor_type.elem_type
        numeric.graph.output.remove(value)
        numeric.graph.output.extend(
            onnx.helper.make_tensor_value_info(name, kind, None) for name in dict.fromkeys(made[value.name])
        )
    if len(texts) < len(model.graph.output):
        for value in texts:
            numeric.graph.output.remove(value)
    return numeric


def _text(label: Any) -> str:
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
