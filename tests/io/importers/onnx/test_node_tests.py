"""ONNX's own tests of its operators, at every opset: each passes, or is refused in a line; none gives another result.

All inputs of a test but one are made constants, whichever of them a network may then be made of. Tests are taken to
other opsets by ONNX's own converter, which refuses some.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, version_converter
from onnx.backend.test import loader

from sparsenn import Session, from_onnx
from sparsenn.errors import SparseNNError

COUNTED = {
    1: "HardSwish Identity MatMul Mish Relu Selu Swish",
    2: "Add BatchNormalization Gelu GlobalAveragePool LogSoftmax Neg Sigmoid Softmax Softplus Softsign Squeeze Tanh",
    3: "ArgMax Div Elu HardSigmoid LeakyRelu Mul Sub",
    4: "Dropout",
    6: "Clip Conv",
    7: "Transpose Unsqueeze",
    8: "Gemm",
    9: "Flatten Reshape",
    10: "Concat MaxPool",
    12: "AveragePool",
    14: "Split",
}
"""Operators by how many of their tests pass at least; the versions of onnx differ by a few."""

PASSED = {operator: count for count, operators in COUNTED.items() for operator in operators.split()}

REFUSED = ("ConstantOfShape", "DequantizeLinear", "Max", "Min", "ReduceMean")
"""Whose tests are all of what no layer does: quantised inputs, bounds for each number."""

OPSETS = range(7, onnx.defs.onnx_opset_version() + 1)

EXPORTED = ("pytorch-converted", "pytorch-operator", "simple")
"""Kinds of tests of whole graphs, most of which an old PyTorch exported for opset 6."""

CONVERTED_WRONGLY = tuple(f"test_{kind}_axis_{axis}" for kind in ("softmax", "logsoftmax") for axis in (0, 1))
"""Tests that ONNX's converter makes others of below opset 13, where they take all axes from one on together; ONNX
Runtime, too, then has other results than the tests."""


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


def at_opset(case: Any, opset: int) -> Any:
    """A test as one of an opset; None where ONNX's converter does not make it that."""
    if opset < 13 and case.name in CONVERTED_WRONGLY:
        return None
    try:
        model = version_converter.convert_version(case.model, opset)
    except Exception:  # of several kinds
        return None
    return SimpleNamespace(name=case.name, model=_without_constants(model), data_sets=case.data_sets)


@cache
def exported_cases(kind: str) -> list[Any]:
    """The tests of whole graphs, with what lies in files read."""
    found = []
    for case in loader.load_model_tests(kind=kind):
        folder = Path(case.model_dir)
        data = [_read(folder / "test_data_set_0", name) for name in ("input", "output")]
        found.append(SimpleNamespace(name=case.name, model=onnx.load(folder / "model.onnx"), data_sets=[data]))
    return found


def _read(folder: Path, name: str) -> list[Any]:
    """The arrays of a test; None for other values."""
    files = [folder / f"{name}_{number}.pb" for number in range(len(list(folder.glob(f"{name}_*.pb"))))]
    tensors = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
    return [numpy_helper.to_array(tensor) if tensor.data_type else None for tensor in tensors]


def _without_constants(model: Any) -> Any:
    """A model whose initialisers are no inputs, as the converter wants them of old ones."""
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def outcome(case: Any) -> str:
    """Whether a test passed with all of its inputs or one, the others constant, or else was refused."""
    inputs, outputs = (
        [np.asarray(value) if isinstance(value, np.generic) else value for value in values]
        for values in case.data_sets[0]
    )
    if not inputs or not all(_is_of_numbers(array) for array in (*inputs, *outputs)):
        return "of other values"
    names = [value.name for value in case.model.graph.input]
    arrays = dict(zip(names, inputs, strict=False))
    wants = dict(zip((value.name for value in case.model.graph.output), outputs, strict=False))
    choices = [{name: arrays[name]} for name in names] + [arrays] * (len(arrays) > 1)
    found = {_outcome_for(case, arrays, wants, variable) for variable in choices}
    return next(name for name in ("wrong", "passed", "refused") if name in found)


def _is_of_numbers(array: Any) -> bool:
    """Whether an array holds numbers of float32; some tests hold what was in memory."""
    return isinstance(array, np.ndarray) and (
        array.dtype != np.float64 or bool((np.abs(array) <= np.finfo(np.float32).max).all())
    )


def _outcome_for(case: Any, arrays: dict[str, Any], wants: dict[str, Any], variable: dict[str, Any]) -> str:
    proto = copy.deepcopy(case.model)
    proto.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in variable
    )
    try:
        network = from_onnx(proto)
    except SparseNNError as error:
        return "wrong" if "\n" in str(error) or not str(error) else "refused"
    read = {name: variable[name] for name in network.named_inputs or variable}
    count = sum(array.size for array in read.values()) // network.inputs
    rows = [np.asarray(array).astype(np.float32).reshape(count, -1) for array in read.values()]
    found = Session(network, device="cpu")(np.concatenate(rows, axis=1))
    if case.model.graph.node[0].op_type == "ArgMax":
        found = found.argmax(axis=1)
    named = found if isinstance(found, dict) else dict.fromkeys(list(wants)[:1], found)
    return "passed" if all(_equal(each, wants[name]) for name, each in named.items()) else "wrong"


def _equal(found: Any, want: Any) -> bool:
    """Whether outputs are those of a test, along whichever axis its rows lie."""
    near = max(1e-5, 1e-6 * np.abs(want, where=np.isfinite(want), out=np.zeros(want.shape)).max(initial=0.0))
    orders = [want, *(np.moveaxis(want, axis, 0) for axis in range(1, want.ndim))]
    return found.size == want.size and any(
        np.allclose(found.reshape(order.shape), order, rtol=1e-3, atol=near, equal_nan=True) for order in orders
    )


@pytest.mark.parametrize("operator", [*PASSED, *REFUSED])
def test_each_passes_or_is_refused(operator: str) -> None:
    counts = Counter(map(outcome, cases()[operator]))
    assert not counts["wrong"]
    if operator in PASSED:
        assert counts["passed"] >= PASSED[operator], counts
    else:
        assert counts["refused"]


@pytest.mark.parametrize("opset", OPSETS)
def test_each_passes_or_is_refused_at_every_opset(opset: int) -> None:
    """Those that are of this opset, or that the converter takes there."""
    check_opset([case for operator in (*PASSED, *REFUSED) for case in cases()[operator]], opset)


@pytest.mark.parametrize("kind", EXPORTED)
@pytest.mark.parametrize("opset", [OPSETS[0], 13, OPSETS[-1]])
def test_whole_graphs_pass_or_are_refused(kind: str, opset: int) -> None:
    check_opset(exported_cases(kind), opset)


def check_opset(there: list[Any], opset: int) -> None:
    """Have no test of an opset fail, and some pass."""
    converted = {case.name: at_opset(case, opset) for case in there}
    found = {name: outcome(case) for name, case in converted.items() if case is not None}
    assert [name for name, result in found.items() if result == "wrong"] == []
    assert "passed" in found.values()


@pytest.mark.usefixtures("foreign_layers")
def test_node_tests_run_or_are_refused() -> None:
    """ONNX's tests of one operator with one input of rows: all of them run here, or in ONNX Runtime."""
    found: Counter[str] = Counter()
    for case in (case for each in cases().values() for case in each):
        inputs, outputs = case.data_sets[0]
        floats = all(isinstance(array, np.ndarray) and array.dtype == np.float32 for array in (*inputs, *outputs))
        if len(inputs) != 1 or not floats or not np.ndim(inputs[0]) or not np.isfinite(inputs[0]).all():
            continue
        try:
            network = from_onnx(case.model)
        except SparseNNError:
            found["refused"] += 1
            continue
        rows = inputs[0].reshape(inputs[0].size // network.inputs, -1)
        outcome = Session(network, device="cpu")(rows)
        named = outcome if isinstance(outcome, dict) else {case.model.graph.output[0].name: outcome}
        wants = dict(zip((value.name for value in case.model.graph.output), outputs, strict=False))
        is_equal = all(_equal(np.asarray(each), wants[name]) for name, each in named.items())
        found["equal" if is_equal else case.name] += 1
    assert set(found) <= {"equal", "refused"}, found
    assert found["equal"] > 2 * found["refused"]
