"""Networks with several named inputs and outputs: the same numbers as those of one row that holds them side by side."""

from __future__ import annotations

import pickle
from collections import namedtuple
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from sparsenn import (
    CSR,
    Concatenate,
    Conv2d,
    Flatten,
    Linear,
    Network,
    Node,
    ReLU,
    Session,
    Slice,
    SparseLinear,
    infer,
    plan,
    read_model,
    write_model,
)
from sparsenn.engine.inputs import packed_inputs
from sparsenn.errors import FileFormatError, InputError, MatrixError, ShapeError, UsageError
from sparsenn.formats import from_dense
from sparsenn.formats.named_shapes import named_columns
from sparsenn.model import Model

DEVICES = pytest.mark.parametrize("device", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])
INPUTS, OUTPUTS = {"obs": (17,), "image": (3, 8, 8)}, {"action": (4,), "value": (2, 3)}


@pytest.fixture
def network(rng: np.random.Generator) -> Network:
    """A policy that sees numbers and an image; its weights are small integers, so that sums are exact."""

    def weights(*shape: int) -> Any:
        return rng.integers(-1, 2, shape).astype(np.float32)

    return Network(
        (
            Slice(0, 17),
            Linear(weights(17, 5), None, ReLU()),
            Node(Slice(17, 209, (3, 8, 8)), (0,)),
            Conv2d(weights(4, 3, 3, 3), None, ReLU(9.0), 1, 1),
            Slice(1, 3),
            Flatten(),
            Node(Concatenate(), (2, 6)),
            SparseLinear.from_scipy(sp.csc_array(weights(133, 4)), None, ReLU()),
            Node(Linear(weights(133, 6)), (7,)),
            Node(Concatenate(), (8, 9)),
        ),
        named_inputs=INPUTS,
        named_outputs=OUTPUTS,
    )


@pytest.fixture
def inputs(rng: np.random.Generator) -> dict[str, Any]:
    return {name: rng.integers(-3, 4, (30, *shape)).astype(np.float32) for name, shape in INPUTS.items()}


def packed(inputs: dict[str, Any]) -> Any:
    return np.concatenate([array.reshape(len(array), -1) for array in inputs.values()], axis=1)


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(found[name]), array, name)


@pytest.fixture
def expected(network: Network, inputs: dict[str, Any]) -> dict[str, Any]:
    outputs = Session(network, device="reference")(packed(inputs), form="dense")
    return {"action": outputs[:, :4], "value": outputs[:, 4:].reshape(30, 2, 3)}


@DEVICES
def test_names_in_a_call(device: str, network: Network, inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    session = Session(network, device=device)
    for _ in range(3):
        assert_equal(session(**inputs), expected)
        assert_equal(session(dict(reversed(inputs.items()))), expected)
        assert_equal(session(packed(inputs)), expected)
        assert_equal(session(list(inputs.values())), expected)
    assert isinstance(session(**inputs, form="csr"), CSR)
    np.testing.assert_array_equal(session(**inputs, form="dense")[:, :4], expected["action"])
    result = session.run(inputs)
    assert_equal(result.by_name, expected)
    assert result.outputs.shape == (30, 10)
    assert_equal(infer(network, inputs, device=device).by_name, expected)
    assert session.plan(inputs).inputs == plan(network, inputs, device=device).inputs == 30


def test_inputs_of_any_form(network: Network, inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    session = Session(network, device="cpu")
    obs, image = inputs["obs"], inputs["image"]
    flat = image.reshape(30, -1)
    pairs: list[tuple[Any, Any]] = [
        (obs.tolist(), image),
        (obs.astype(np.int16), image.astype(np.float64)),
        (sp.csr_array(obs), sp.coo_array(flat)),
        (obs, sp.csc_matrix(flat)),
        (from_dense(obs), flat),
    ]
    for one, other in pairs:
        assert_equal(session(obs=one, image=other), expected)
    single = session(obs=obs[0], image=image[:1])
    assert_equal(single, {name: array[:1] for name, array in expected.items()})
    assert {name: array.shape for name, array in session(obs=obs[:0], image=image[:0]).items()} == {
        "action": (0, 4),
        "value": (0, 2, 3),
    }


def test_arrays_in_order_are_not_rows(network: Network, inputs: dict[str, Any]) -> None:
    session = Session(network, device="cpu")
    rows = packed(inputs)[:2]  # as many rows as there are inputs
    np.testing.assert_array_equal(session(list(rows), form="dense"), session(rows, form="dense"))
    with pytest.raises(ShapeError, match="takes 'obs', 'image' by name"):
        session(inputs["obs"])


def test_tensors(network: Network, inputs: dict[str, Any], expected: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="gives PyTorch's tensors")
    session = Session(network, device="cpu")
    found = session({name: torch.from_numpy(array) for name, array in inputs.items()})
    assert all(isinstance(array, torch.Tensor) for array in found.values())
    assert_equal(found, expected)
    assert_equal(session(obs=inputs["obs"], image=torch.from_numpy(inputs["image"])), expected)


def test_fields_of_a_named_tuple_are_taken_by_name() -> None:
    network = Network((Linear(np.diag([1, 2, 3])),), named_inputs={"a": (1,), "b": (2,)})
    batch = namedtuple("batch", "b a")(np.float32([[1, 2]]), np.float32([[5]]))
    np.testing.assert_array_equal(Session(network, device="cpu")(batch), [[5, 2, 6]])


@pytest.mark.gpu
def test_arrays_on_a_gpu(network: Network, inputs: dict[str, Any], expected: dict[str, Any], cupy: Any) -> None:
    from cupyx.scipy import sparse as gpu_sparse

    session = Session(network, device="cuda")
    for _ in range(3):
        found = session({name: cupy.asarray(array) for name, array in inputs.items()})
        assert all(isinstance(array, cupy.ndarray) for array in found.values())
        assert_equal({name: cupy.asnumpy(array) for name, array in found.items()}, expected)
    sparse = {name: cupy.asarray(array.reshape(30, -1)) for name, array in inputs.items()}
    sparse["obs"] = gpu_sparse.csr_matrix(sparse["obs"])
    assert_equal({name: cupy.asnumpy(array) for name, array in session(sparse).items()}, expected)
    with pytest.raises(InputError, match="of one library"):
        session(obs=inputs["obs"], image=cupy.asarray(inputs["image"]))


def damaged(array: str, number: int) -> Any:
    matrix = sp.csr_array(np.eye(30, 17, dtype=np.float32))
    getattr(matrix, array)[-1] = number
    return matrix


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"image": None}, UsageError, "missing are 'image'"),
        ({"extra": np.zeros((30, 1))}, UsageError, "unknown are 'extra'"),
        ({"obs": np.zeros((29, 17))}, ShapeError, "'obs' has 29, 'image' has 30"),
        ({"obs": np.zeros((30, 18))}, MatrixError, r"'obs' has the shape \(30, 18\); it takes \(rows, 17\)"),
        ({"image": sp.csr_array(np.zeros((30, 191)))}, MatrixError, "'image' has the shape"),
        ({"obs": "numbers"}, InputError, "'obs'"),
        ({"obs": np.ma.masked_equal(np.eye(30, 17), 1)}, MatrixError, "'obs' holds masked numbers"),
        ({"obs": damaged("indptr", 10**8)}, MatrixError, "indptr must hold"),
        ({"obs": damaged("indices", 17)}, MatrixError, "indices run from"),
        ({"inputs": np.zeros((30, 1))}, UsageError, "dictionary"),
    ],
)
def test_what_does_not_fit(
    network: Network, inputs: dict[str, Any], change: Any, error: type[Exception], words: str
) -> None:
    given = {name: array for name, array in (inputs | change).items() if array is not None}
    with pytest.raises(error, match=words):
        Session(network, device="cpu")(**given)


def test_networks_without_names(network: Network, inputs: dict[str, Any]) -> None:
    plain = Network(network.nodes, named_outputs=OUTPUTS, named_inputs={"all": (209,)})
    assert_equal(Session(plain)(packed(inputs)), Session(network)(inputs))
    session = Session(Network((Linear(np.eye(3)),)))
    for found in (
        session({"obs": np.eye(3)}),
        session(obs=np.eye(3)),
        session.run({"obs": np.eye(3)}).outputs.to_scipy(),
    ):
        np.testing.assert_array_equal(found.toarray() if hasattr(found, "toarray") else found, np.eye(3))
    for named in ({"obs": np.eye(3), "mask": np.eye(3)}, {}):
        with pytest.raises(UsageError, match="has one input"):
            session(named)


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ({"a": (16,), "b": (192,)}, ShapeError),
        ({"a": (17, 0), "b": (192,)}, ShapeError),
        ({"a": 209}, ShapeError),
        ({}, UsageError),
        ({1: (209,)}, UsageError),
        ({"\ud800": (209,)}, UsageError),
        ([("a", (209,))], UsageError),
    ],
)
def test_names_that_do_not_fit(network: Network, names: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Network(network.nodes, named_inputs=names)


def test_copies_and_files(network: Network, inputs: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    write_model(tmp_path / "model.h5", Model(network, "mse", False))
    copies = [pickle.loads(pickle.dumps(network)), read_model(tmp_path / "model.h5").network]
    for copy in copies:
        assert list(copy.named_inputs.items()) == list(INPUTS.items())
        assert copy.layers[2] == network.layers[2]
        assert_equal(Session(copy, device="cpu")(inputs), expected)
    assert network.prefix(7).named_outputs is None
    write_model(tmp_path / "other.h5", Model(copies[0], "mse", False))
    assert (tmp_path / "other.h5").read_bytes() == (tmp_path / "model.h5").read_bytes()


@pytest.mark.parametrize("names", [[], {"obs": [17]}, {"obs": "ab"}, {"obs": [17.5]}, 3])
def test_damaged_names_in_files(network: Network, names: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    object.__setattr__(network, "named_inputs", names)
    write_model(tmp_path / "model.h5", Model(network, "mse", False))
    with pytest.raises(FileFormatError):
        read_model(tmp_path / "model.h5")


def test_equal_outputs_merge_below_names() -> None:
    last = SparseLinear.from_scipy(sp.csc_array(np.ones((3, 4), np.float32)))
    network = Network((last,), named_outputs={"a": (1,), "b": (3,)})
    found = Session(network, device="cpu", merging=True)(np.ones((2, 3)))
    np.testing.assert_array_equal(found["b"], np.full((2, 3), 3.0))


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=5),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_any_names(shapes: list[list[int]], rows: int, random: Any) -> None:
    named = {f"input {number}": tuple(shape) for number, shape in enumerate(shapes)}
    order = random.sample(list(named_columns(named)), len(named))
    slices = [Node(Slice(first, last), (0,)) for _, _, first, last in order]
    nodes = [*slices, Node(Concatenate(), tuple(range(1, len(order) + 1)))] if len(order) > 1 else slices
    network = Network(nodes, named_inputs=named, named_outputs={name: shape for name, shape, *_ in order})
    arrays = {
        name: np.random.default_rng(prod(shape)).integers(-9, 9, (rows, *shape)).astype(np.float32)
        for name, shape in named.items()
    }
    found = Session(network, device="cpu")(arrays)
    assert list(found) == [name for name, *_ in order]
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(("largest", "kind"), [(1 << 24, np.float32), ((1 << 24) + 1, np.float64)])
def test_integers_beside_float32_are_float32_where_that_is_exact(network: Network, largest: int, kind: type) -> None:
    image, obs = np.full((2, 3, 8, 8), 0.5, np.float32), np.full((2, 17), -largest)
    packed = packed_inputs(network, {"obs": obs, "image": image})
    assert packed.dtype == kind
    assert (packed[:, :17] == -largest).all()
    assert (packed[:, 17:] == 0.5).all()
