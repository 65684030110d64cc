"""Estimators of scikit-learn as ONNX graphs, in which ONNX Runtime computes what has no layer."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import onnx

from sparsenn.errors import InputError, UsageError
from sparsenn.formats import InputLayout
from sparsenn.io.importers.onnx.files import from_onnx
from sparsenn.model import with_onnx_graph
from sparsenn.network import Network
from sparsenn.printable import reason_of


def network_through_onnx(estimator: Any, sparse_below: float) -> Network:
    """Return the network of the ONNX graph of an estimator: probabilities of all classes, or predicted numbers."""
    try:
        skl2onnx = import_module("skl2onnx")
        types = import_module("skl2onnx.common.data_types")
    except ImportError as error:
        raise UsageError('through="onnx" needs the package skl2onnx, which is not installed here') from error
    names, width = getattr(estimator, "feature_names_in_", None), getattr(estimator, "n_features_in_", None)
    if width is None:
        raise InputError(f"{type(estimator).__name__}: is not fitted yet")
    columns = {} if names is None else dict.fromkeys(map(str, names), 1)

    def converted(inputs: dict[str, int]) -> Any:
        described = [(name, types.FloatTensorType([None, size])) for name, size in inputs.items()]
        return skl2onnx.to_onnx(estimator, initial_types=described)

    try:
        try:
            model = converted(columns or {"rows": width})
        except RuntimeError:  # a single estimator takes its columns side by side
            model = converted({"rows": width})
    except Exception as error:  # of any kind: converters of other packages run
        raise InputError(f"skl2onnx cannot convert {type(estimator).__name__}: {reason_of(error)}") from error
    del model.graph.output[:-1]  # the labels
    if names is None:
        return from_onnx(model, sparse_below=sparse_below)
    network = from_onnx(_with_one_input(model), sparse_below=sparse_below)
    named = replace(network, input_layout=InputLayout(names=tuple(columns)))
    return with_onnx_graph(named, network.onnx_graph)


def _with_one_input(model: Any) -> Any:
    """Return a model that takes the columns of its inputs side by side."""
    graph, helper = model.graph, onnx.helper
    names = [value.name for value in graph.input]
    if len(names) == 1:
        return model
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("sparsenn/rows", onnx.TensorProto.FLOAT, [None, len(names)]))
    for place, name in enumerate(names):  # a Split is another one from opset 13 on
        number = f"sparsenn/{place}"
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([place]), number))
        graph.node.insert(0, helper.make_node("Gather", ["sparsenn/rows", number], [name], axis=1))
    return model
