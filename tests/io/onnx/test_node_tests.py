"""ONNX's own tests of its operators: each one passes, or is refused in a line; none gives another result.

All inputs of a test but one are made constants, whichever of them a network may then be made of.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="has the tests")
from onnx import numpy_helper
from onnx.backend.test import loader

from sparsenn import Session, from_onnx
from sparsenn.errors import SparseNNError

PASSED = {
    "Add": 2,
    "ArgMax": 3,
    "AveragePool": 8,
    "BatchNormalization": 2,
    "Clip": 6,
    "Conv": 6,
    "Div": 3,
    "Dropout": 4,
    "Flatten": 9,
    "Gemm": 8,
    "GlobalAveragePool": 2,
    "HardSigmoid": 3,
    "Identity": 1,
    "MatMul": 1,
    "MaxPool": 7,
    "Mul": 3,
    "Neg": 2,
    "Relu": 1,
    "Reshape": 9,
    "Sigmoid": 2,
    "Softmax": 2,
    "Squeeze": 2,
    "Sub": 3,
    "Tanh": 2,
    "Transpose": 7,
    "Unsqueeze": 7,
}
"""How many pass at least; the versions of onnx differ by a few."""

REFUSED = ("Concat", "ConstantOfShape", "DequantizeLinear", "LeakyRelu", "Max", "Min", "ReduceMean")
"""Whose tests are all of what no layer does: constants beside the input, quantised inputs, bounds for each number."""


@cache
def cases() -> dict[str, list[Any]]:
    """The tests whose only node is of an operator, by its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, list[Any]] = {}
        for case in loader.load_model_tests(kind="node"):
            if len(case.model.graph.node) == 1 and case.data_sets:
                found.setdefault(case.model.graph.node[0].op_type, []).append(case)
    return found


def outcome(case: Any) -> str:
    """Whether a test passed with one of its inputs, or else was refused."""
    inputs, outputs = (
        [np.asarray(value) if isinstance(value, np.generic) else value for value in values]
        for values in case.data_sets[0]
    )
    if not all(isinstance(array, np.ndarray) for array in (*inputs, *outputs)):
        return "of other values"
    found = {_outcome_for(case, inputs, outputs[0], number) for number in range(len(inputs))}
    return next(name for name in ("wrong", "passed", "refused") if name in found)


def _outcome_for(case: Any, inputs: list[Any], want: Any, number: int) -> str:
    proto = copy.deepcopy(case.model)
    names = [value.name for value in proto.graph.input]
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in zip(names, inputs, strict=True) if name != names[number]
    )
    try:
        network = from_onnx(proto)
    except SparseNNError as error:
        return "wrong" if "\n" in str(error) else "refused"
    rows = np.asarray(inputs[number]).astype(np.float32).reshape(-1, network.inputs)
    found = Session(network, device="cpu")(rows)
    if case.model.graph.node[0].op_type == "ArgMax":
        found = found.argmax(axis=1)
    orders = [want, *(np.moveaxis(want, axis, 0) for axis in range(1, want.ndim))]
    return "passed" if any(_equal(found, order) for order in orders) else "wrong"


def _equal(found: Any, want: Any) -> bool:
    return found.size == want.size and np.allclose(found.reshape(want.shape), want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("operator", [*PASSED, *REFUSED])
def test_each_passes_or_is_refused(operator: str) -> None:
    counts = Counter(map(outcome, cases()[operator]))
    assert not counts["wrong"]
    if operator in PASSED:
        assert counts["passed"] >= PASSED[operator], counts
    else:
        assert counts["refused"]
