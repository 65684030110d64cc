"""Layer normalisations of ONNX: the operator, and what exporters wrote before there was one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("onnxruntime", reason="says what is expected")
import onnxruntime
from onnx.helper import make_node as node
from onnx_graphs import chain
from onnx_graphs import model as graph_of

from sparsenn import ForeignLayer, LayerNorm, Network, Session, from_onnx, to_onnx
from sparsenn.errors import InputError

pytestmark = pytest.mark.usefixtures("foreign_layers")

RNG = np.random.default_rng(3)
SCALE, SHIFT = RNG.normal(size=(2, 12)).astype(np.float32)


def graph(nodes: list[Any], constants: dict[str, Any], shape: tuple[int, ...] = (12,), opset: int = 17) -> Any:
    return graph_of(nodes, ["n", *shape], opset, **constants)


def rows_of(model: Any) -> NDArray[np.float32]:
    shape = [size.dim_value or 5 for size in model.graph.input[0].type.tensor_type.shape.dim]
    return (3 + RNG.normal(size=shape)).astype(np.float32)


def assert_same_as_onnx_runtime(model: Any, network: Any) -> None:
    rows = rows_of(model)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": rows})
    found = Session(network, device="cpu")(rows)
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-5, atol=1e-5)


def norm_of(network: Any) -> LayerNorm:
    (norm,) = [layer for layer in network if isinstance(layer, LayerNorm)]
    return norm


@pytest.mark.parametrize(
    ("shape", "axis", "width", "positions"),
    [((12,), -1, 12, 1), ((12,), 1, 12, 1), ((7, 12), -1, 12, 7), ((7, 12), 1, 84, 1), ((3, 4, 12), -2, 48, 3)],
)
@pytest.mark.parametrize("with_shift", [True, False])
def test_the_operator(shape: tuple[int, ...], axis: int, width: int, positions: int, with_shift: bool) -> None:
    sizes = shape[axis - 1 if axis > 0 else axis :]
    constants = {"scale": np.ones(sizes, np.float32) + SCALE, "shift": np.broadcast_to(SHIFT, sizes)}
    names = ["scale", "shift"] if with_shift else ["scale"]
    constants = {name: constants[name] for name in names}
    model = graph([node("LayerNormalization", ["x", *names], ["y"], axis=axis, epsilon=0.01)], constants, shape)
    network = from_onnx(model, foreign=False)
    norm = norm_of(network)
    assert (norm.width, norm.positions, round(norm.epsilon, 6)) == (width, positions, 0.01)
    assert_same_as_onnx_runtime(model, network)


@pytest.mark.parametrize(
    ("options", "outputs", "message"),
    [({"axis": 0}, ["y"], "that of rows|normalises"), ({"axis": -1}, ["y", "mean"], "means and deviations")],
)
def test_other_uses_of_the_operator_are_refused(options: dict[str, Any], outputs: list[str], message: str) -> None:
    model = graph([node("LayerNormalization", ["x", "scale"], outputs, **options)], {"scale": SCALE})
    with pytest.raises(InputError, match=message):
        from_onnx(model, foreign=False)


def written_out(
    opset: int = 13,
    square: str = "Pow",
    quotient: str = "Div",
    scale: Any = SCALE,
    shift: Any = SHIFT,
    swapped: bool = False,
    differences: int = 1,
    axes: int = -1,
    exponent: float = 2.0,
) -> Any:
    """Nodes as PyTorch and others wrote them."""
    listed = {"axes": [axes]} if opset < 18 else {}
    more = [] if opset < 18 else ["axes"]
    centred = "centred" if differences == 1 else "centred again"
    nodes = [node("ReduceMean", ["x", *more], ["mean"], **listed), node("Sub", ["x", "mean"], ["centred"])]
    if differences == 2:
        nodes.append(node("Sub", ["x", "mean"], [centred]))
    nodes += [
        node("Pow", [centred, "two"], ["square"]) if square == "Pow" else node("Mul", [centred] * 2, ["square"]),
        node("ReduceMean", ["square", *more], ["variance"], **listed),
        node("Add", ["epsilon", "variance"] if swapped else ["variance", "epsilon"], ["moved"]),
        node("Sqrt", ["moved"], ["deviation"]),
    ]
    if quotient == "Div":
        nodes.append(node("Div", ["centred", "deviation"], ["q"]))
    else:
        nodes.append(node("Reciprocal", ["deviation"], ["r"]))
        nodes.append(node("Mul", ["r", "centred"] if swapped else ["centred", "r"], ["q"]))
    constants: dict[str, Any] = {"epsilon": np.float32(1e-3), "two": np.float32(exponent)}
    if more:
        constants["axes"] = np.array([axes])
    last = "q"
    for operator, name, numbers in (("Mul", "scale", scale), ("Add", "shift", shift)):
        if numbers is not None:
            constants[name] = numbers
            nodes.append(node(operator, [name, last] if swapped else [last, name], [operator]))
            last = operator
    nodes[-1].output[0] = "y"
    return graph(nodes, constants, (7, 12), opset)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"opset": 18},
        {"square": "Mul"},
        {"quotient": "Reciprocal"},
        {"quotient": "Reciprocal", "swapped": True},
        {"swapped": True},
        {"scale": None},
        {"shift": None},
        {"scale": None, "shift": None},
        {"differences": 2},
        {"axes": 2},
        {"scale": SCALE.reshape(1, 1, 12), "shift": np.float32(0.5)},
    ],
    ids=str,
)
def test_what_is_written_out_is_one_layer(options: dict[str, Any]) -> None:
    model = written_out(**options)
    network = from_onnx(model, foreign=False)
    norm = norm_of(network)
    assert (len(network), norm.width, norm.positions, round(norm.epsilon, 6)) == (1, 12, 7, 1e-3)
    assert_same_as_onnx_runtime(model, network)


@pytest.mark.parametrize("options", [{"axes": 1}, {"exponent": 4.0}, {"scale": RNG.normal(size=(7, 1))}], ids=str)
def test_what_is_something_else_stays_foreign(options: dict[str, Any]) -> None:
    options = {key: value.astype(np.float32) if key == "scale" else value for key, value in options.items()}
    model = written_out(**options)
    network = from_onnx(model)
    assert [type(layer) for layer in network] == [ForeignLayer]
    assert_same_as_onnx_runtime(model, network)


def test_axes_in_another_order_are_normalised() -> None:
    turned = ("Transpose", {"perm": [0, 2, 1]})
    nodes = chain(turned, ("LayerNormalization scale shift", {"axis": -1}), turned)
    model = graph(nodes, {"scale": SCALE[:7], "shift": SHIFT[:7]}, (7, 12))
    network = from_onnx(model, foreign=False)
    assert (norm_of(network).width, norm_of(network).positions) == (7, 12)
    assert_same_as_onnx_runtime(model, network)


def test_a_perceptron_with_normalisations_needs_no_onnx_runtime(tmp_path: Path) -> None:
    nodes = chain("Gemm first", "LayerNormalization scale shift", "Relu", "Gemm last", "Add x")
    first, last = RNG.normal(size=(2, 12, 12)).astype(np.float32)
    model = graph(nodes, {"first": first, "last": last, "scale": SCALE, "shift": SHIFT})
    network = from_onnx(model)
    assert not any(isinstance(layer, ForeignLayer) for layer in network)
    assert_same_as_onnx_runtime(model, network)
    to_onnx(network, tmp_path / "again.onnx")
    assert_same_as_onnx_runtime(model, from_onnx(tmp_path / "again.onnx"))


@pytest.mark.parametrize(("width", "positions"), [(12, 1), (4, 3), (1, 12)])
def test_what_is_written_is_read_again(width: int, positions: int, tmp_path: Path) -> None:
    network = Network((LayerNorm(SCALE[:width], SHIFT[:width], 0.01, positions),))
    to_onnx(network, tmp_path / "norm.onnx")
    again = norm_of(from_onnx(tmp_path / "norm.onnx"))
    assert (again.width, again.positions) == (width, positions)
    rows = RNG.normal(size=(3, 12)).astype(np.float32)
    found = onnxruntime.InferenceSession(str(tmp_path / "norm.onnx")).run(None, {"input": rows})[0]
    np.testing.assert_allclose(found, Session(network, device="cpu")(rows), rtol=1e-5, atol=1e-5)
