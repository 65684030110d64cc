"""Every activation of the table, as other frameworks have it: read from each, and written to ONNX and model files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from formulas import EXAMPLES, value_of
from keras_files import dense, layer, write_archive
from onnx_graphs import chain, model, node

import sparsenn
from sparsenn.errors import InputError, UsageError
from sparsenn.layers import Linear, LogSoftmax, Multiply, ReLU
from sparsenn.layers.activation import (
    ACTIVATIONS,
    ELU,
    GELU,
    SELU,
    GELUTanh,
    HardSigmoid,
    LeakyReLU,
    Mish,
    SiLU,
    Softplus,
)
from sparsenn.layers.activation_names import elsewhere_of, names_elsewhere
from sparsenn.layers.elementwise import Elementwise
from sparsenn.model import Model
from sparsenn.network import Network

WEIGHTS = np.random.default_rng(5).normal(size=(5, 7)).astype(np.float32)
BIAS = np.linspace(-1, 1, 7).astype(np.float32)
ROWS = np.random.default_rng(6).normal(size=(9, 5)).astype(np.float32) * 2
SUMS = ROWS.astype(np.float64) @ WEIGHTS.astype(np.float64) + BIAS
CURVED = [each for each in EXAMPLES if each.is_curved]


def is_known(activation: Elementwise, framework: str) -> bool:
    """Whether a framework has an activation, as an operator and as a module."""
    return all(elsewhere_of(activation, each) is not None for each in ("torch", framework))


def expected_of(activation: Elementwise) -> Any:
    return np.vectorize(lambda z: value_of(activation, z))(SUMS)


def check(network: Network, activation: Elementwise) -> None:
    """Hold a network of one layer against the formula."""
    assert [layer.activation for layer in network] == [activation]
    np.testing.assert_allclose(sparsenn.Session(network)(ROWS), expected_of(activation), rtol=1e-5, atol=1e-5)


def network_of(activation: Any) -> Network:
    return Network((Linear(WEIGHTS, BIAS, activation),))


@pytest.mark.parametrize(
    ("activation", "through_export"),
    [(each, exported == "aten") for exported in ("torch", "aten") for each in CURVED if is_known(each, exported)],
)
def test_modules_of_pytorch(activation: Elementwise, through_export: bool) -> None:
    torch = pytest.importorskip("torch")
    foreign, attributes = elsewhere_of(activation, "torch")
    linear = torch.nn.Linear(5, 7)
    linear.load_state_dict({"weight": torch.from_numpy(WEIGHTS.T.copy()), "bias": torch.from_numpy(BIAS)})
    made = getattr(torch.nn, foreign.name)(**attributes)

    class Own(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.made = linear, made

        def forward(self, rows: Any) -> Any:
            return self.made(self.linear(rows))

    module = (Own() if through_export else torch.nn.Sequential(linear, made)).eval()
    network = sparsenn.from_torch(module, torch.from_numpy(ROWS))
    check(network, activation)
    with torch.no_grad():
        expected = module(torch.from_numpy(ROWS)).numpy()
    np.testing.assert_allclose(sparsenn.Session(network)(ROWS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", [each for each in CURVED if elsewhere_of(each, "onnx")], ids=str)
def test_written_to_onnx_and_read_again(activation: Elementwise, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    sparsenn.to_onnx(network_of(activation), path)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: ROWS})
    np.testing.assert_allclose(found, expected_of(activation), rtol=1e-4, atol=1e-5)
    (read,) = sparsenn.from_onnx(path)
    assert type(read.activation) is type(activation)
    if activation.argument is not None:
        assert read.activation.argument == np.float32(activation.argument)


def test_files_of_onnx_are_no_newer_than_they_need_be(tmp_path: Path) -> None:
    for activation, version in ((ReLU(), 17), (SiLU(), 17), (Mish(), 18), (GELU(), 20)):
        sparsenn.to_onnx(network_of(activation), tmp_path / "model.onnx")
        assert onnx.load(tmp_path / "model.onnx").opset_import[0].version == version
    with pytest.raises(UsageError, match="ONNX files cannot hold"):
        sparsenn.to_onnx(network_of(Softplus(2.0)), tmp_path / "model.onnx")


NUMBERS = {"one": 1.0, "half": 0.5, "root": 2**-0.5, "cubic": 0.044715, "scale": (2 / np.pi) ** 0.5, "three": 3.0}
HALVED_FIRST = [*chain("Mul root", "Erf", "Add one", x="z", to="erf"), *chain("Mul half", "Mul erf", x="z")]
BY_TANH = ("Pow three", "Mul cubic", "Add z _", "Mul scale", "Tanh", "Add one", "Mul z _", "Mul half")
GATES: dict[str, tuple[list[Any], type[Elementwise]]] = {
    "silu": (chain("Sigmoid", "Mul z", x="z"), SiLU),
    "silu by exp": (chain("Neg", "Exp", "Add one", "Div z _", x="z"), SiLU),
    "mish": (chain("Softplus", "Tanh", "Mul z _", x="z"), Mish),
    "gelu, halved last": (chain("Mul root", "Erf", "Add one", "Mul z _", "Mul half", x="z"), GELU),
    "gelu, halved first": (HALVED_FIRST, GELU),
    "gelu by tanh": (chain(*BY_TANH, x="z"), GELUTanh),
}


def gated(nodes: list[Any], **more: float) -> Any:
    used = {name for each in nodes for name in each.input}
    numbers = {name: np.array(value, np.float32) for name, value in (NUMBERS | more).items() if name in used}
    return of_sums(*nodes, **numbers)


def of_sums(*nodes: Any, **constants: Any) -> Any:
    """A graph of nodes that take z, the sums of one layer, and give y."""
    return model([node("Gemm", "x", "W", "bias", to="z"), *nodes], ["n", 5], W=WEIGHTS, bias=BIAS, **constants)


@pytest.mark.parametrize("name", GATES)
def test_activations_in_several_nodes(name: str) -> None:
    nodes, kind = GATES[name]
    check(sparsenn.from_onnx(gated(nodes)), kind())


def test_gates_that_are_no_activation_are_products() -> None:
    network = sparsenn.from_onnx(gated(chain("Mul faster", "Sigmoid", "Mul z _", x="z"), faster=1.702))
    assert network[-1] == Multiply()
    expected = SUMS / (1 + np.exp(-1.702 * SUMS))
    np.testing.assert_allclose(sparsenn.Session(network)(ROWS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", names_elsewhere("keras_function"))
def test_names_of_keras(name: str, tmp_path: Path) -> None:
    network = sparsenn.from_keras(write_archive(tmp_path / "model.keras", [5], [dense(WEIGHTS, BIAS, name)]))
    kinds = [kind for kind in ACTIVATIONS for foreign in kind.elsewhere if foreign[:2] == ("keras_function", name)]
    assert type(network[0].activation) in kinds
    check(network, network[0].activation)


def test_layers_of_keras(tmp_path: Path) -> None:
    for made, activation in (
        (layer("ELU", alpha=0.7), ELU(0.7)),
        (layer("LeakyReLU", negative_slope=0.2), LeakyReLU(0.2)),
    ):
        (read,) = sparsenn.from_keras(write_archive(tmp_path / "some.keras", [5], [dense(WEIGHTS, BIAS), made]))
        assert read.activation == activation


@pytest.mark.parametrize("beta", [0.5, 0.25])
def test_hard_sigmoids_of_onnx(beta: float) -> None:
    proto = of_sums(node("HardSigmoid", "z", alpha=0.3, beta=beta))
    network = sparsenn.from_onnx(proto)
    assert network[0].activation == HardSigmoid(float(np.float32(0.3)))
    np.testing.assert_allclose(sparsenn.Session(network)(ROWS), np.clip(0.3 * SUMS + beta, 0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("slopes", [[0.3], np.linspace(-0.2, 0.4, 7)], ids=["one", "several"])
def test_parametric_relus_of_onnx(slopes: Any) -> None:
    numbers = np.array(slopes, np.float32)
    proto = of_sums(node("PRelu", "z", "slopes"), slopes=numbers)
    found = sparsenn.Session(sparsenn.from_onnx(proto))(ROWS)
    np.testing.assert_allclose(found, np.where(SUMS > 0, SUMS, numbers * SUMS), rtol=1e-5, atol=1e-5)


def test_selu_of_other_numbers_is_refused() -> None:
    proto = of_sums(node("Selu", "z", alpha=1.0))
    with pytest.raises(InputError, match="Selu"):
        sparsenn.from_onnx(proto, foreign=False)
    proto = of_sums(node("Selu", "z"))
    check(sparsenn.from_onnx(proto), SELU())


@pytest.mark.parametrize("activation", EXAMPLES, ids=str)
def test_model_files_hold_them(activation: Elementwise, tmp_path: Path) -> None:
    network = Network((Linear(WEIGHTS, BIAS, activation), LogSoftmax()))
    sparsenn.write_model(tmp_path / "model.h5", Model(network, "mse", False, {}))
    read = sparsenn.read_model(tmp_path / "model.h5").network
    assert (read[0].activation, read[1]) == (activation, LogSoftmax())
