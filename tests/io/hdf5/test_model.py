"""Models and checkpoints in HDF5: written is read, and what is damaged or foreign is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from file_comparisons import same_matrix
from hdf5_changes import Change, attribute, described, put, record, refused_after

from sparsenn.errors import FileFormatError, InputError, ShapeError, UsageError
from sparsenn.formats import Column, InputLayout, Scaling, TableEncoding
from sparsenn.io import (
    Checkpoint,
    Dataset,
    is_model,
    read_checkpoint,
    read_model,
    write_checkpoint,
    write_dataset,
    write_model,
)
from sparsenn.layers import Identity, Linear, ReLU, Sigmoid, SparseLinear, Tanh
from sparsenn.model import Model
from sparsenn.network import Network


def layers() -> tuple[Linear, ...]:
    rng = np.random.default_rng(4)
    return (
        Linear(rng.normal(size=(3, 5)), rng.normal(size=5), ReLU(32.0)),
        Linear(rng.normal(size=(5, 4)), None, Sigmoid()),
        Linear(rng.normal(size=(4, 4)), 0.25, Tanh()),
        Linear(rng.normal(size=(4, 2)), rng.normal(size=2), Identity()),
    )


def model() -> Model:
    return Model(Network(layers()), "cross_entropy", True, {"data": "Zahlen ü", "epochs": "3"})


def checkpoint() -> Checkpoint:
    rng = np.random.default_rng(5)
    velocities = tuple(
        (rng.normal(size=layer.weights.shape).astype(np.float32), rng.normal(size=layer.outputs).astype(np.float32))
        for layer in layers()
    )
    state = dict(np.random.PCG64(3).state)
    return Checkpoint({"seed": 3, "widths": [3, 5]}, layers(), velocities, state, (0.5, 0.1), ((1, 0.25, 0.75),))


def write_version_1(path: Path) -> None:
    """A model as the version of the format that knew dense layers only has it, without this package's writer."""
    record = [("inputs", "<i8"), ("outputs", "<i8"), ("activation", "S16"), ("clip", "<f8")]
    table = [
        (*layer.weights.shape, layer.activation.name.encode(), getattr(layer.activation, "clip", np.nan))
        for layer in layers()
    ]
    notes = {"loss": "cross_entropy", "classes": True, "provenance": {"data": "Zahlen ü", "epochs": "3"}}
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["version"] = np.bytes_("sparsenn model"), 1
        file["description"] = np.bytes_(json.dumps(notes))
        file["layers"] = np.array(table, record)
        for number, layer in enumerate(layers(), start=1):
            file[f"layer{number}/weights"] = layer.weights
            file[f"layer{number}/bias"] = layer.bias_vector()


def same_layers(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.bias, other.bias_vector())
        assert one.activation == other.activation


@pytest.mark.parametrize("write", [lambda path: write_model(path, model()), write_version_1])
def test_written_model_is_read(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "model.h5"
    write(path)
    assert is_model(path)
    found = read_model(path)
    same_layers(found.network.layers_of(Linear), layers())
    assert (found.loss, found.classes, found.provenance) == ("cross_entropy", True, model().provenance)
    assert (found.network.image, found.resize) == (None, None)


def test_the_layout_of_inputs_comes_back(tmp_path: Path) -> None:
    for layout in (InputLayout((3, 1), True), InputLayout(flattens=True), InputLayout(names=("a", "b", "ü"))):
        written = dataclasses.replace(model(), network=Network(layers(), input_layout=layout))
        write_model(tmp_path / "net.h5", written)
        assert read_model(tmp_path / "net.h5").network.input_layout == layout
        with h5py.File(tmp_path / "net.h5") as file:
            assert file.attrs["version"] == 5


def test_written_checkpoint_is_read(tmp_path: Path) -> None:
    path, expected = tmp_path / "state.h5", checkpoint()
    write_checkpoint(path, expected)
    found = read_checkpoint(path)
    same_layers(found.layers, expected.layers)
    for pair, other in zip(found.velocities, expected.velocities, strict=True):
        np.testing.assert_array_equal(pair[0], other[0])
        np.testing.assert_array_equal(pair[1], other[1])
    assert (found.options, found.losses, found.validation) == (expected.options, expected.losses, expected.validation)
    generator = np.random.Generator(np.random.PCG64())
    generator.bit_generator.state = found.generator
    assert generator.integers(1 << 60) == np.random.Generator(np.random.PCG64(3)).integers(1 << 60)


def test_what_is_a_model(tmp_path: Path, mixed: Dataset) -> None:
    write_model(tmp_path / "model.h5", model())
    write_checkpoint(tmp_path / "state.h5", checkpoint())
    write_dataset(mixed, tmp_path / "dataset.h5")
    (tmp_path / "text.h5").write_text("text")
    (tmp_path / "cut.h5").write_bytes((tmp_path / "model.h5").read_bytes()[:200])
    names = ("model", "state", "dataset", "text", "cut", "none")
    assert [name for name in names if is_model(tmp_path / f"{name}.h5")] == ["model"]
    assert not is_model(tmp_path)
    with pytest.raises(FileFormatError, match="'sparsenn dataset'"):
        read_model(tmp_path / "dataset.h5")
    with pytest.raises(FileFormatError, match="'sparsenn model'"):
        read_checkpoint(tmp_path / "model.h5")
    with pytest.raises(InputError, match="no such file"):
        read_model(tmp_path / "none.h5")


def test_layers_of_a_dataset(tmp_path: Path, mixed: Dataset) -> None:
    path = tmp_path / "model.h5"
    write_model(path, Model(mixed.network, "mse", False))
    found = read_model(path).network
    for one, other in zip(found, mixed.network, strict=True):
        assert isinstance(one, SparseLinear)
        same_matrix(one.weights, other.weights)
        assert one.weights.values.dtype == other.weights.values.dtype
        assert one.weights.iso == other.weights.iso
        np.testing.assert_array_equal(one.bias, other.bias_vector())
        assert one.activation == other.activation


SHARED = [
    (attribute("version", 9), "version 9"),
    (put("description", np.bytes_(b"{")), "damaged"),
    (put("description", np.bytes_(b"[]")), "not an object"),
    (put("description", np.bytes_(b"{}")), "description has no valid"),
    (put("layers"), "layers is missing"),
    (put("layer2/weights"), "layer2/weights is missing"),
    (put("layer2/weights", np.ones((5, 4))), "must hold float32"),
    (put("layer2/weights", np.ones((5, 3), np.float32)), "layer 2: weights"),
    (put("layer2/bias", np.ones(3, np.float32)), "layer 2: weights"),
    (put("layer2/bias", np.full(4, np.nan, np.float32)), "layer 2: the bias holds NaN"),
    (put("layer2/weights", h5py.SoftLink("/layer1/weights")), "links are not followed"),
    (put("layer2/weights", h5py.ExternalLink("other.h5", "/x")), "links are not followed"),
    (record("layers", 2, "activation", b"softmax"), "unknown activation 'softmax'"),
    (record("layers", 2, "clip", -1.0), "layer 2"),
    (record("layers", 2, "inputs", 1 << 60), "layer 2: weights"),
]


def with_generator(**changes: Any) -> Change:
    state = dict(np.random.PCG64(3).state) | changes
    return put("description", np.bytes_(json.dumps({"options": {}, "generator": state})))


MODELS = [
    *SHARED,
    (put("description", np.bytes_(b'{"loss": "x", "classes": true, "provenance": {}}')), "no valid loss"),
    (put("description", np.bytes_(b'{"loss": "mse", "classes": 1, "provenance": {}}')), "no valid loss"),
    (put("description", np.bytes_(b'{"loss": "mse", "classes": true, "provenance": {"a": 1}}')), "no valid"),
]
CHECKPOINTS = [
    *SHARED,
    (put("losses"), "losses is missing"),
    (put("losses", np.array([np.nan])), "losses or validation"),
    (put("validation", np.ones((1, 2))), "losses or validation"),
    (put("velocities/layer2/weights", np.ones((4, 5), np.float32)), "velocities of layer 2"),
    (put("velocities/layer2/bias", np.full(4, np.inf, np.float32)), "velocities of layer 2 hold NaN"),
    (with_generator(bit_generator="MT19937"), "no valid options and generator"),
]


@pytest.mark.parametrize(
    ("write", "read", "change", "message"),
    [
        *((write_version_1, read_model, *each) for each in MODELS),
        *((lambda path: write_checkpoint(path, checkpoint()), read_checkpoint, *each) for each in CHECKPOINTS),
    ],
)
def test_damaged_files(tmp_path: Path, write: Any, read: Any, change: Change, message: str) -> None:
    write(tmp_path / "some.h5")
    refused_after(change, tmp_path / "some.h5", read, message)


def test_a_model_that_could_not_be_read_back_is_not_made() -> None:
    with pytest.raises(UsageError, match="unknown loss 'cross-entropy'; did you mean 'cross_entropy'"):
        Model(model().network, "cross-entropy", True)
    with pytest.raises(UsageError, match=r"a Linear; .*sparsenn\.Network"):
        Model(layers()[0], "mse", False)  # type: ignore[arg-type]


def prepared(**changes: Any) -> Model:
    """A model that knows the columns of a table, its classes' names and a scaling."""
    columns = (Column("a", None, 0.5), Column("b ü", ("x", "y"), "y"))
    parts: dict[str, Any] = {
        "class_names": ("no", "yes"),
        "encoding": TableEncoding(columns, ("kind",), True),
        "scaling": Scaling(np.ones(1), np.arange(3.0), np.array([1.0, 2.0, 0.1])),
    }
    return dataclasses.replace(model(), **(parts | changes))


@pytest.mark.parametrize("absent", [(), ("scaling",), ("encoding", "class_names")])
def test_names_table_and_scaling_come_back(tmp_path: Path, absent: tuple[str, ...]) -> None:
    expected, path = prepared(**dict.fromkeys(absent)), tmp_path / "model.h5"
    write_model(path, expected)
    found = read_model(path)
    assert (found.class_names, found.encoding) == (expected.class_names, expected.encoding)
    assert (found.scaling is None) == (expected.scaling is None)
    for part in ("factor", "mean", "deviation") if expected.scaling is not None else ():
        np.testing.assert_array_equal(getattr(found.scaling, part), getattr(expected.scaling, part))
    with h5py.File(path) as file:
        assert file.attrs["version"] == 5


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("class_names", ["a"]),
        ("class_names", ["a", "a"]),
        ("table", {"columns": [{"name": "a"}], "targets": [], "named": True}),
        ("table", {"columns": [{"name": "a", "categories": ["b"], "fill": None}], "targets": [], "named": True}),
    ],
)
def test_names_and_tables_that_are_refused(tmp_path: Path, part: str, value: object) -> None:
    write_model(tmp_path / "model.h5", prepared())
    refused_after(described(**{part: value}), tmp_path / "model.h5", read_model, "class|column|table")


def test_parts_that_do_not_fit_the_network() -> None:
    for changes in (
        {"class_names": ("a",)},
        {"encoding": TableEncoding((Column("a"),), (), True)},
        {"scaling": Scaling(np.ones(1), np.zeros(2), np.ones(1))},
    ):
        with pytest.raises(ShapeError):
            prepared(**changes)
