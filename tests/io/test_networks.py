"""Models of all kinds as what a session takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_graphs import chain, normal
from onnx_graphs import model as graph_of
from scipy.sparse import csc_array

import sparsenn
from sparsenn import Conv2d, Flatten, Linear, Model, Network, Session, SparseLinear
from sparsenn.errors import InputError, ShapeError, UsageError
from sparsenn.formats import Array, Column, Scaling, TableEncoding
from sparsenn.io.importers.rounding import RoundingWarning
from sparsenn.io.networks import network_of

WEIGHTS = np.array([[1.0, 0.0], [0.0, -2.0], [3.0, 0.0]], np.float32)
ROWS = np.array([[1.0, 2.0, 3.0], [4.0, -5.0, 6.0]], np.float32)


def network() -> Network:
    sparse = SparseLinear.from_scipy(csc_array(WEIGHTS), 0.5, sparsenn.Tanh())
    return Network((sparse, Linear(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), None, sparsenn.Identity())))


def run(model: Any, rows: Array = ROWS) -> Any:
    return Session(model, device="cpu")(rows)


@pytest.mark.parametrize("suffix", ["h5", "onnx"])
@pytest.mark.parametrize("kind", [str, Path])
def test_a_session_takes_the_path_of_a_model(tmp_path: Path, suffix: str, kind: type) -> None:
    path = tmp_path / f"model.{suffix}"
    sparsenn.write_model(path, Model(network()))
    np.testing.assert_allclose(run(kind(path)), run(network()), rtol=1e-6)


def test_a_session_takes_an_onnx_model(tmp_path: Path) -> None:
    sparsenn.to_onnx(network(), tmp_path / "model.onnx")
    np.testing.assert_allclose(run(onnx.load(tmp_path / "model.onnx")), run(network()), rtol=1e-6)


def test_a_session_takes_the_bytes_of_an_onnx_model() -> None:
    proto = graph_of(chain("MatMul w"), ["n", 4], w=normal(4, 2))
    rows = normal(3, 4)
    np.testing.assert_array_equal(Session(proto.SerializeToString())(rows), Session(proto)(rows))
    with pytest.raises(InputError, match="3 bytes are not an ONNX model"):
        Session(b"abc")


def test_a_session_takes_modules_and_exported_ones_of_pytorch() -> None:
    torch = pytest.importorskip("torch")

    class Own(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.nn.Linear(3, 2)

        def forward(self, rows: Any) -> Any:
            return torch.nn.functional.relu_(self.part(rows)) - 1

    module, rows = Own().eval(), torch.from_numpy(ROWS)
    with pytest.raises(InputError, match=r"from_torch\(module, example\)"):
        Session(module)
    np.testing.assert_allclose(run(module.part, rows), module.part(rows).detach(), rtol=1e-5)
    shapes = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(module, (rows,), dynamic_shapes=shapes)
    np.testing.assert_allclose(run(program, rows), module(rows).detach(), rtol=1e-5)
    with pytest.raises(InputError, match="dynamic_shapes"):
        Session(torch.export.export(module, (rows,)))
    open_sizes = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("length")},)
    with pytest.raises(InputError, match="open sizes besides the number of rows"):
        Session(torch.export.export(torch.nn.ReLU(), (rows,), dynamic_shapes=open_sizes))


def test_a_session_takes_estimators_of_scikit_learn_and_of_classes_derived_from_them() -> None:
    neural = pytest.importorskip("sklearn.neural_network")

    class Own(neural.MLPRegressor):  # type: ignore[misc, name-defined]
        pass

    Own.__name__ = "MLPRegressor"
    rows = np.random.default_rng(0).random((30, 3))
    estimator = Own(hidden_layer_sizes=(4,), tol=10.0).fit(rows, rows @ [1, 2, 3])
    np.testing.assert_allclose(run(estimator, rows)[:, 0], estimator.predict(rows), rtol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_session_takes_models_of_keras() -> None:
    pytest.importorskip("torch")
    keras = pytest.importorskip("keras", minversion="3")
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2, "silu")(inputs))
    expected = np.asarray(model.predict_on_batch(ROWS))
    np.testing.assert_allclose(run(model), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(keras.Sequential([inputs, *model.layers[1:]])), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="is no model of Keras"):
        Session(keras.layers.Dense(2))
    unknown = keras.Sequential([inputs, keras.layers.Lambda(lambda rows: rows)])
    with pytest.raises(InputError, match=r"Sequential.*\(Lambda\): has no counterpart"):
        Session(unknown)


@pytest.mark.parametrize("model", [{}, 3, None, WEIGHTS, sparsenn.CSR, Network])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match=r"sparsenn.Network or Model, the path .* torch.nn.Module.* onnx.ModelProto"):
        Session(model)


def test_infer_and_plan_take_what_a_session_does(tmp_path: Path) -> None:
    sparsenn.write_model(tmp_path / "model.h5", Model(network()))
    found = sparsenn.infer(tmp_path / "model.h5", ROWS, device="cpu")
    np.testing.assert_array_equal(np.asarray(found.outputs.to_scipy().toarray()), run(network()))
    assert sparsenn.plan(tmp_path / "model.h5", ROWS, device="cpu").steps


# ---- Models: their scaling and the names of their columns ------------------------------------------------------------

BY_COLUMN = Scaling(np.array([1.0, 2.0, 4.0]), np.array([1.0, 0.0, -3.0]), np.array([2.0, 1.0, 0.5]))


def images(flat: bool = False) -> Network:
    layers = (Conv2d(np.arange(1.0, 17.0).reshape(2, 2, 2, 2) / 20, padding=1),)
    last = (Flatten(), Linear(np.full((40, 2), 0.1)))
    return Network((*((Flatten(), Linear(np.full((24, 2), 0.1))) if flat else (*layers, *last)),), image=(2, 3, 4))


def branches() -> Network:
    first = Linear(WEIGHTS, 1.0)
    return Network((first, sparsenn.Node(first, (0,)), sparsenn.Node(sparsenn.Add(), (1, 2))))


@pytest.mark.parametrize(
    ("network", "scaling", "layers"),
    [
        (network(), BY_COLUMN, 2),
        (network(), Scaling(1 / 255, 0.5, 2.0), 2),
        (branches(), BY_COLUMN, 4),
        (images(), Scaling(1 / 255, np.array([0.1, 0.2]), np.array([2.0, 3.0])), 4),
        (images(), Scaling(1.0, np.arange(24.0), np.arange(1.0, 25.0)), 6),
        (images(flat=True), Scaling(1 / 255, np.array([0.1, 0.2]), np.array([2.0, 3.0])), 3),
    ],
)
def test_scalings_become_layers(network: Network, scaling: Scaling, layers: int) -> None:
    rows = np.random.default_rng(0).random((5, network.inputs), np.float32)
    expected = Session(network, device="reference")(scaling.apply(rows, network.image))
    scaled = network_of(Model(network, scaling=scaling))
    assert len(scaled) == layers
    np.testing.assert_allclose(Session(scaled, device="reference")(rows), expected, rtol=1e-5)
    np.testing.assert_allclose(run(Model(network, scaling=scaling), rows), expected, rtol=1e-4)
    if network.image is not None:
        shaped = rows.reshape(5, *network.image)
        np.testing.assert_allclose(run(Model(network, scaling=scaling), shaped), expected, rtol=1e-4)


def test_a_scaling_of_numbers_far_from_zero_is_not_rounded_away() -> None:
    far = Scaling(1.0, 1.7e9, 1e3)
    rows = (1.7e9 + 1024.0 * np.arange(9)).astype(np.float32).reshape(3, 3)
    with pytest.warns(RoundingWarning):  # of rows that float32 does not hold
        session = Session(Model(network(), scaling=far), device="cpu", precision="float32")
    np.testing.assert_allclose(session(rows), run(network(), far.apply(rows)), atol=1e-5)


TABLES: dict[str, Any] = {
    "pandas": lambda library, columns: library.DataFrame(columns),
    "polars": lambda library, columns: library.DataFrame(columns),
    "pyarrow": lambda library, columns: library.table(columns),
}


@pytest.mark.parametrize("library", TABLES)
def test_columns_of_tables_go_by_name_where_a_model_knows_names(library: str) -> None:
    columns = dict(zip("abc", ROWS.T, strict=True))
    moved = TABLES[library](pytest.importorskip(library), {name: columns[name] for name in "cab"})
    encoding = TableEncoding(tuple(Column(name) for name in "abc"), ("y",), named=True)
    nodes = network().nodes

    def taken(*names: str) -> Any:
        return moved[list(names)] if library == "pandas" else moved.select(list(names))

    for model in (Model(network(), encoding=encoding), Network(nodes, named_inputs=dict.fromkeys("abc", (1,)))):
        np.testing.assert_array_equal(run(model, moved), run(network()))
        with pytest.raises(InputError, match="missing are 'c'"):
            run(model, taken("b", "a"))
    np.testing.assert_array_equal(run(network(), moved), run(network(), ROWS[:, [2, 0, 1]]))
    wider = Network(nodes, named_inputs={"a": (1,), "bc": (2,)})
    np.testing.assert_array_equal(run(wider, {"a": taken("a"), "bc": taken("b", "c")}), run(network()))


# ---- Models without a loss -------------------------------------------------------------------------------------------


def test_a_model_needs_no_loss(tmp_path: Path) -> None:
    model = Model(network())
    assert (model.loss, model.classes, model.evaluation_loss) == (None, False, "mse")
    assert Model(network(), classes=True).evaluation_loss == "cross_entropy"
    assert Model(network(), "mse", classes=True).evaluation_loss == "mse"
    for name in ("model.h5", "model.onnx"):
        sparsenn.write_model(tmp_path / name, model)
        assert sparsenn.read_model(tmp_path / name).loss is None
    with pytest.raises(ShapeError):
        Model(network(), class_names=("a",))
