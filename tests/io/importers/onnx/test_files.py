"""ONNX files: written is read, by this package and by ONNX Runtime; what is damaged or hostile is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import scipy.sparse as sp
from onnx_graphs import model, node, normal

import sparsenn
from sparsenn import Network, Node, Session, from_onnx, read_model, to_onnx
from sparsenn.errors import FileFormatError, InputError, OpenSizesError, SparseNNError, UsageError
from sparsenn.layers import (
    AvgPool2d,
    Conv2d,
    Flatten,
    ImageLayer,
    Linear,
    MaxPool2d,
    Multiply,
    Slice,
    Softmax,
    SparseLinear,
)
from sparsenn.layers.activation import Identity, ReLU, Sigmoid, SiLU, Tanh


def sparse(rows: int, columns: int, seed: int) -> Any:
    return sp.random_array((rows, columns), density=0.2, format="csc", dtype=np.float32, rng=seed)


def of_rows() -> Network:
    return Network(
        (
            SparseLinear.from_scipy(sparse(12, 20, 1), normal(20), ReLU(32.0)),
            SparseLinear.from_scipy(sparse(20, 20, 2), None, ReLU()),
            SparseLinear.from_scipy(sp.csc_array((sparse(20, 20, 3) != 0) * np.float32(0.0625)), -0.1, Tanh()),
            Linear(normal(20, 7), 0.5, Sigmoid()),
            Linear(normal(7, 4), None, Identity()),
            Softmax(),
        )
    )


def of_images() -> Network:
    return Network(
        (
            Conv2d(normal(4, 2, 3, 3), normal(4), ReLU(6.0), padding=1),
            MaxPool2d(2, 2, 0, (1, 0)),
            Conv2d(normal(6, 2, 3, 2), None, Identity(), (2, 1), (1, 1), (1, 2), 2),
            AvgPool2d((2, 2), (1, 1), (1, 0), (0, 1), counts_padding=False),
            Softmax(),
            Flatten(),
            Linear(normal(72, 5), normal(5), ReLU()),
        ),
        image=(2, 10, 9),
    )


def of_gates() -> Network:
    """Squeeze-and-excitation, and a product whose activation is written as a product, too."""
    return Network(
        (
            Conv2d(normal(4, 2, 3, 3), normal(4), ReLU(), padding=1),
            AvgPool2d((10, 9)),
            Conv2d(normal(4, 4, 1, 1), normal(4), Sigmoid()),
            Node(Multiply(), (1, 3)),
            Node(Multiply(SiLU()), (4, 1)),
            Node(Slice(2, 7, axis=2), (5,)),
            Node(Slice(1, 9, (4, 5, 8), 1), (6,)),
        ),
        image=(2, 10, 9),
    )


@pytest.mark.parametrize("make", [of_rows, of_images, of_gates])
@pytest.mark.parametrize("kept_sparse", [False, True])
@pytest.mark.parametrize("name", ["network.onnx", "network.onnx.gz"])
def test_written_is_read(make: Any, kept_sparse: bool, name: str, tmp_path: Path) -> None:
    network, path = make(), tmp_path / name
    to_onnx(network, path, sparse=kept_sparse)
    again = from_onnx(path)
    rows = normal(5, network.inputs)
    assert [type(layer) for layer in again if type(layer) is not Flatten] == [
        type(layer) for layer in network if type(layer) is not Flatten
    ]
    assert again.image == network.image
    found, want = (Session(one, device="cpu")(rows) for one in (again, network))
    np.testing.assert_array_equal(found, want)
    assert [path] == [*tmp_path.iterdir()]


@pytest.mark.parametrize("make", [of_rows, of_images, of_gates])
@pytest.mark.parametrize("kept_sparse", [False, True])
def test_other_programs_read_it(make: Any, kept_sparse: bool, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="reads what is written")
    network, path = make(), tmp_path / "network.onnx"
    to_onnx(network, path, sparse=kept_sparse)
    onnx.checker.check_model(str(path), full_check=not kept_sparse)
    rows = normal(5, network.inputs)
    (found,) = runtime.InferenceSession(path).run(None, {"input": rows.reshape(5, *network.shapes[0])})
    np.testing.assert_allclose(
        found.reshape(5, -1), Session(network, device="cpu")(rows), rtol=1e-5, atol=1e-5 * np.abs(found).max()
    )


def test_an_own_activation_has_no_name(tmp_path: Path) -> None:
    class Own:
        name = "own"

        def __call__(self, z: Any) -> Any:
            return z

    with pytest.raises(UsageError, match="layer 1 has the activation"):
        to_onnx(Network((Linear(normal(2, 2), None, Own()),)), tmp_path / "own.onnx")
    with pytest.raises(UsageError, match="takes a network or a model, not an int"):
        to_onnx(5, tmp_path / "own.onnx")  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]


def test_a_model_says_where_it_is_from(tmp_path: Path) -> None:
    to_onnx(of_rows(), tmp_path / "network.onnx")
    found = read_model(tmp_path / "network.onnx")
    assert (found.classes, found.loss) == (True, None)
    assert found.provenance == {
        "format": "ONNX, opset 17",
        "producer": f"sparsenn {sparsenn.runtime.storage.package_version()}",
    }


@pytest.mark.parametrize(("layers", "classes"), [((), False), ((Flatten(),), True), ((AvgPool2d((3, 3)),), True)])
def test_only_outputs_along_one_axis_are_scores_of_classes(
    layers: tuple[ImageLayer, ...], classes: bool, tmp_path: Path
) -> None:
    to_onnx(Network((Conv2d(normal(4, 2, 3, 3)), *layers), image=(2, 5, 5)), tmp_path / "network.onnx")
    assert read_model(tmp_path / "network.onnx").classes == classes


@pytest.mark.parametrize(("sparse_below", "kinds"), [(0.0, [Linear, Linear]), (2.0, [SparseLinear, SparseLinear])])
def test_layers_are_sparse_below_the_share_that_is_asked_for(
    sparse_below: float, kinds: list[type], tmp_path: Path
) -> None:
    proto = model(
        [node("MatMul", "x", "W", to="h"), node("MatMul", "h", "V")], ["n", 5], W=np.eye(5, 8), V=normal(8, 3)
    )
    (tmp_path / "network.onnx").write_bytes(proto.SerializeToString())
    for given in (proto, tmp_path / "network.onnx"):
        assert [type(layer) for layer in from_onnx(given, sparse_below=sparse_below)] == kinds
        assert [type(layer) for layer in from_onnx(given)] == [SparseLinear, Linear]


def test_what_is_no_model() -> None:
    with pytest.raises(UsageError, match=r"an int; .*onnx\.ModelProto"):
        from_onnx(5)
    with pytest.raises(InputError, match="has no nodes"):
        from_onnx(onnx.ModelProto())


# ---- External data --------------------------------------------------------------------------------------------------


def with_external(folder: Path, **entries: object) -> Path:
    """Write a model whose weights are in another file, which is there, and as told."""
    proto = model([node("MatMul", "x", "W")], ["n", 5], W=normal(5, 3))
    tensor = proto.graph.initializer[0]
    (folder / "weights.bin").write_bytes(b"\0" * 8 + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in ({"location": "weights.bin", "offset": 8, "length": 60} | entries).items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "network.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_lie_beside_the_model(tmp_path: Path) -> None:
    path = with_external(tmp_path)
    wanted = np.frombuffer((tmp_path / "weights.bin").read_bytes()[8:], np.float32).reshape(5, 3)
    np.testing.assert_array_equal(from_onnx(path)[0].weights, wanted)
    with pytest.raises(InputError, match="give the path of the model"):
        from_onnx(onnx.load(path, load_external_data=False))


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "../weights.bin"},
        {"location": "/etc/passwd"},
        {"location": "deeper/../weights.bin"},
        {"location": "link.bin"},
        {"location": "folder/weights.bin"},
        {"location": "nothing.bin"},
        {"location": "."},
        {"location": ""},
        {"offset": -8},
        {"offset": 9},
        {"offset": "x"},
        {"length": 1 << 50},
        {"length": 56},
        {"length": -1},
    ],
    ids=str,
)
def test_external_data_elsewhere_are_refused(entries: dict[str, object], tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    path = with_external(inner, **entries)
    (tmp_path / "weights.bin").write_bytes(bytes(100))
    (inner / "link.bin").symlink_to(tmp_path / "weights.bin")
    (inner / "folder").symlink_to(tmp_path)
    with pytest.raises(SparseNNError) as caught:
        from_onnx(path)
    assert "\n" not in str(caught.value)


# ---- Damaged files --------------------------------------------------------------------------------------------------


def hostile(case: str) -> Any:
    """A model that lies about its tensors."""
    proto = model([node("MatMul", "x", "W")], ["n", 5], W=normal(5, 3))
    tensor = proto.graph.initializer[0]
    if case == "dims":
        tensor.dims[0] = 1 << 40
    elif case == "negative":
        tensor.dims[0] = -5
    elif case == "type":
        tensor.data_type = 99
    elif case == "short":
        tensor.raw_data = tensor.raw_data[:-1]
    elif case == "double":
        proto.graph.initializer.append(tensor)
    elif case == "opset":
        proto.opset_import[0].version = 1_000
    elif case == "old":
        proto.opset_import[0].version = 6
    elif case == "inputs":
        del proto.graph.input[:]
    elif case == "sizes":
        proto.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", 1, ["n", "m"]))
    elif case == "texts":
        proto.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", 8, ["n", 5]))
    elif case.startswith("sparse"):
        last, sizes = (99, [5, 3]) if case == "sparse" else (4, [1 << 40, 1 << 40])
        values = onnx.numpy_helper.from_array(normal(2), "V")
        places = onnx.numpy_helper.from_array(np.array([3, last]), "p")
        proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, sizes))
    return proto


HOSTILE = {
    "dims": "does not hold what its shape",
    "negative": "has the shape",
    "type": "unknown type 99",
    "short": "does not hold what its shape",
    "double": "two initialisers are called 'W'",
    "opset": "of version 1000",
    "old": "has version 6",
    "inputs": "no input that is not a constant",
    "sizes": "only that of rows may be open",
    "texts": "not a tensor of numbers",
    "sparse": "a position outside",
    "sparse size": "has the shape",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_lies_is_refused_in_a_line(case: str, tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    path.write_bytes(hostile(case).SerializeToString())
    kind = OpenSizesError if case == "sizes" else FileFormatError
    with pytest.raises(kind, match=HOSTILE[case]) as caught:
        from_onnx(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_what_is_no_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    content = model([node("MatMul", "x", "W")], ["n", 5], W=normal(5, 3)).SerializeToString()
    for damaged in (b"", b"nonsense", content[:-7], content[:40], gzip.compress(content)):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"ONNX model|nodes|shape"):
            from_onnx(path)
    zipped = tmp_path / "network.onnx.gz"
    zipped.write_bytes(gzip.compress(content))
    assert from_onnx(zipped).outputs == 3
    zipped.write_bytes(gzip.compress(bytes(100_000_000)))
    with pytest.raises(FileFormatError, match="inflates"):
        from_onnx(zipped)
