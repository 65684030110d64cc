"""Calls that take arrays straight to ONNX Runtime: the outputs, the refusals and the types of all other calls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="runs whole networks")
pytest.importorskip("onnx", reason="describes them")


from onnx_graphs import with_graph

from sparsenn import Session
from sparsenn.engine import calls, measuring
from sparsenn.errors import InputError, MatrixError, ShapeError, SparseNNError, UsageError
from sparsenn.formats import InputLayout
from sparsenn.layers import Concatenate, Conv2d, Flatten, Linear, Multiply, ReLU, Slice
from sparsenn.model import with_onnx_graph
from sparsenn.network import Network, Node
from sparsenn.runtime.spans import watching

pytestmark = pytest.mark.usefixtures("measuring_kernels", "onnx_runtime_is_faster")


@pytest.fixture
def onnx_runtime_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = cycle((2e-3, 1e-3))  # of kernels, and of ONNX Runtime

    def timed(trial: Any) -> float:
        trial()
        return next(seconds)

    monkeypatch.setattr(measuring, "_timed_block", timed)


@pytest.fixture(params=["copying", "feeding"])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Have calls copy their numbers, or hand them over where they lie."""
    if request.param == "feeding":
        monkeypatch.setattr(calls, "MAX_COPIED", 0)
    return bool(request.param == "copying")


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw small integers, of which sums are exact in any order."""
    return rng.integers(-2, 3, shape).astype(np.float32)


@pytest.fixture
def plain(rng: np.random.Generator) -> Network:
    return with_graph(Network([Linear(weights(rng, 12, 9), None, ReLU()), Linear(weights(rng, 9, 5))]))


@pytest.fixture
def named(rng: np.random.Generator) -> Network:
    """A factor and a score of the same rows, times a mask."""
    nodes = [
        Node(Slice(0, 12), (0,)),
        Node(Slice(12, 16), (0,)),
        Node(Linear(weights(rng, 12, 4)), (1,)),
        Node(Multiply(), (3, 2)),
        Node(Linear(weights(rng, 12, 6), None, ReLU()), (1,)),
        Node(Concatenate(), (4, 5)),
    ]
    inputs, outputs = {"state": (3, 4), "mask": (4,)}, {"score": (4,), "factor": (2, 3)}
    return with_graph(Network(nodes, named_inputs=inputs, named_outputs=outputs))


def arrays(rng: np.random.Generator, count: int, kind: Any = np.float32) -> dict[str, np.ndarray]:
    return {
        "state": rng.integers(-3, 4, (count, 3, 4)).astype(kind),
        "mask": rng.integers(0, 2, (count, 4)).astype(kind),
    }


def settled(session: Session, inputs: Any) -> Callable[[Any], Any]:
    """Return the function of calls with such inputs, after a call that prepared it."""
    session(inputs)
    outputs = session._cache.direct_outputs
    assert outputs(inputs) is not None
    return outputs


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, array in expected.items():
            assert_equal(found[name], array)
        return
    assert type(found) is np.ndarray
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


KINDS = [np.float32, np.float64, np.int64, np.uint8, np.int16, ">f4"]


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_matrix(rng: np.random.Generator, plain: Network, kind: Any) -> None:
    rows = rng.integers(0, 9, (6, 12)).astype(kind)
    expected = Session(plain, device="reference")(rows)
    with Session(plain, device="cpu") as session:
        call = settled(session, rows)
        for same in (rows, np.asfortranarray(rows), np.repeat(rows, 2, axis=1)[:, ::2]):
            assert_equal(call(same), expected)
            assert_equal(session(same), expected)


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("kinds", [(np.float32, np.float32), (np.float32, np.int64), (np.float64, np.bool_)], ids=str)
def test_arrays_by_name(rng: np.random.Generator, named: Network, kinds: tuple[Any, Any]) -> None:
    inputs = arrays(rng, 6)
    inputs = {name: array.astype(kind) for (name, array), kind in zip(inputs.items(), kinds, strict=True)}
    expected = Session(named, device="reference")(inputs)
    with Session(named, device="cpu") as session:
        call = settled(session, inputs)
        for same in (inputs, dict(reversed(inputs.items())), inputs | {"state": inputs["state"].reshape(6, 12)}):
            assert_equal(call(same), expected)
            assert_equal(session(same), expected)
            assert_equal(session(**same), expected)
        packed = np.concatenate([each.reshape(6, -1) for each in inputs.values()], axis=1, dtype=np.float32)
        assert_equal(session(packed), expected)
        assert_equal(session(inputs, form="dense")[:, :4], expected["score"])
        assert_equal(session.run(inputs).by_name, expected)


@pytest.mark.usefixtures("copies")
def test_outputs_belong_to_the_caller(rng: np.random.Generator, named: Network) -> None:
    first, second = arrays(rng, 4), arrays(rng, 4)
    with Session(named, device="cpu") as session:
        settled(session, first)
        before = session(first)
        copies = {name: array.copy() for name, array in before.items()}
        after = session(second)
        assert_equal(before, copies)
        for array in before.values():
            array[...] = -1
        assert_equal(session(second), after)


@pytest.mark.usefixtures("copies")
def test_numbers_of_rows_and_types_take_turns(rng: np.random.Generator, plain: Network) -> None:
    with Session(plain, device="cpu") as session:
        for _ in range(3):
            for count, kind in ((1, np.float32), (6, np.float32), (6, np.float64), (40, np.int32)):
                rows = rng.integers(-3, 4, (count, 12)).astype(kind)
                assert_equal(session(rows), Session(plain, device="reference")(rows))
                assert_equal(session._cache.direct_outputs(rows), session(rows))


def test_single_samples_and_images(rng: np.random.Generator) -> None:
    nodes = [Conv2d(weights(rng, 2, 3, 3, 3), None, ReLU(), 1, 1), Flatten(), Linear(weights(rng, 32, 3))]
    network = with_graph(Network(nodes, image=(3, 4, 4)))
    last = with_onnx_graph(
        replace(network, input_layout=InputLayout((4, 4, 3), channels_last=True)), network.onnx_graph
    )
    images = rng.integers(-3, 4, (2, 3, 4, 4)).astype(np.float32)
    expected = Session(network, device="reference")(images)
    with Session(network, device="cpu") as session, Session(last, device="cpu") as other:
        for _ in range(3):
            assert_equal(session(images), expected)
            assert_equal(session(images.reshape(2, 48)), expected)
            assert_equal(session(images[0]), expected[:1])
            assert_equal(other(np.moveaxis(images, 1, 3).copy()), expected)
        assert session._cache.direct_outputs(images) is not None
        assert other._cache.direct_outputs(np.moveaxis(images, 1, 3).copy()) is None


FAULTS: list[tuple[dict[str, Any], type[SparseNNError], str]] = [
    ({"mask": np.full((6, 4), np.nan, np.float32)}, InputError, "not a finite number"),
    ({"state": np.full((6, 3, 4), -np.inf)}, InputError, "not a finite number"),
    ({"state": np.full((6, 3, 4), 1e300)}, MatrixError, "outside the range of float32"),
    ({"mask": np.ones((1, 4), np.float32)}, ShapeError, "'state' has 6, 'mask' has 1"),
    ({"mask": np.ones((6, 5), np.float32)}, MatrixError, "'mask' has the shape"),
    ({"mask": np.ones((6, 4), np.complex64)}, MatrixError, "real numbers"),
    ({"other": np.ones((6, 4), np.float32)}, UsageError, "unknown are 'other'"),
]


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize(("change", "error", "words"), FAULTS, ids=[words for *_, words in FAULTS])
def test_refusals(
    rng: np.random.Generator, named: Network, change: Any, error: type[SparseNNError], words: str
) -> None:
    inputs = arrays(rng, 6)
    expected = Session(named, device="reference")(inputs)
    with Session(named, device="cpu") as session:
        settled(session, inputs)
        for _ in range(2):
            with pytest.raises(error, match=words):
                session(inputs | change)
            with pytest.raises(UsageError, match="missing are 'state'"):
                session(mask=inputs["mask"])
            with pytest.raises(UsageError, match="give a dictionary"):
                session(inputs["state"], mask=inputs["mask"])
            assert_equal(session(inputs), expected)


@pytest.mark.usefixtures("copies")
def test_numbers_that_are_not_checked(rng: np.random.Generator, plain: Network) -> None:
    rows = rng.integers(-3, 4, (2, 12)).astype(np.float32)
    with Session(plain, device="cpu", check_finite=False) as session:
        call = settled(session, rows)
        rows[0] = np.inf
        assert not np.isfinite(call(rows)[0]).all()
        assert np.isfinite(call(rows)[1]).all()
        with pytest.raises(MatrixError, match="outside the range of float32"):
            session(np.full((2, 12), 1e300))


@pytest.mark.usefixtures("copies")
def test_large_numbers_are_finite(plain: Network) -> None:
    rows = np.full((2, 12), 1e30, np.float32)  # whose squares are not
    with Session(plain, device="cpu") as session:
        expected = session(rows)
        assert session._cache.direct_outputs(rows) is None
        assert_equal(session(rows), expected)


@pytest.mark.usefixtures("copies")
def test_large_integers_beside_others_are_rounded_as_in_other_calls(rng: np.random.Generator, named: Network) -> None:
    inputs = arrays(rng, 6) | {"mask": np.full((6, 4), (1 << 54) + (1 << 30) + 1)}  # float64 rounds down, then float32
    with Session(named, device="cpu") as session:
        settled(session, arrays(rng, 6) | {"mask": np.ones((6, 4), np.int64)})
        assert_equal(session(inputs), session.run(inputs).by_name)
        assert session._cache.direct_outputs(inputs) is None


def test_a_closed_session_refuses_calls(rng: np.random.Generator, plain: Network) -> None:
    rows = rng.random((2, 12), np.float32)
    session = Session(plain, device="cpu")
    settled(session, rows)
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session(rows)


def test_threads_share_a_session(rng: np.random.Generator, plain: Network) -> None:
    batches = [rng.integers(-3, 4, (2, 12)).astype(np.float32) for _ in range(8)]
    expected = [Session(plain, device="reference")(rows) for rows in batches]
    with Session(plain, device="cpu") as session, ThreadPoolExecutor(8) as threads:
        settled(session, batches[0])

        def is_equal(number: int) -> bool:
            return all(np.array_equal(session(batches[number]), expected[number]) for _ in range(200))

        assert all(threads.map(is_equal, range(8)))


def test_watched_calls_have_their_spans(rng: np.random.Generator, plain: Network) -> None:
    rows, names = rng.random((2, 12), np.float32), list[str]()
    with Session(plain, device="cpu") as session:
        settled(session, rows)
        for category, name in (("run", "call"), ("step", "onnxruntime")):
            with watching(lambda begun: names.append(begun.name) or nullcontext(), category):
                session(rows)
            assert any(each.startswith(name) for each in names), names
