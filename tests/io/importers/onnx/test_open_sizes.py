"""Sizes that a graph leaves open besides the number of rows."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_graphs import chain, expected, model, node, normal

from sparsenn import Session, from_onnx, read_model, write_model
from sparsenn.engine.open_sizes import MOST_SIZES
from sparsenn.errors import InputError, ShapeError, UsageError

WEIGHTS = {"w": normal(4, 3, 3, 3), "v": normal(4, 2)}


def images(shape: Any = ("n", 3, "height", "width")) -> Any:
    return model(chain(("Conv w", {"pads": [1] * 4}), "GlobalMaxPool", "Flatten", "MatMul v"), shape, **WEIGHTS)


def two() -> Any:
    nodes = chain("GlobalMaxPool", "Flatten", ("Concat _ b", {"axis": 1}), "MatMul w", x="a")
    return model(nodes, {"a": ["n", 2, "h", "w"], "b": ["n", 3]}, w=normal(5, 2))


def assert_same(network: Any, proto: Any, rows: Any) -> None:
    found = Session(network, device="cpu")(rows)
    np.testing.assert_allclose(found, expected(proto, rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 6, 5), {"x": (3, 6, 5)}, [3, 6, 5]])
def test_a_shape_fixes_open_sizes(shape: Any) -> None:
    proto, rows = images(), normal(4, 3, 6, 5)
    before = proto.SerializeToString()
    network = from_onnx(proto, shape=shape)
    assert network.image == (3, 6, 5)
    assert proto.SerializeToString() == before
    assert_same(network, proto, rows)


def test_the_error_says_how_to_fix_open_sizes() -> None:
    with pytest.raises(InputError, match=r"'x' of shape \(n, 3, height, width\).*\{'x': \(3, height, width\)\}"):
        from_onnx(images())


@pytest.mark.parametrize("axes", [None, [1, 3, "h", "w"], ["n", 3, None, None], ["n", 3, 6, "w"]])
def test_shapes_that_are_open_in_other_ways(axes: Any) -> None:
    proto = images(axes)
    assert_same(from_onnx(proto, shape=(3, 6, 5)), proto, normal(1, 3, 6, 5))


def test_lengths_of_sequences() -> None:
    proto = model(chain("Conv w", "Flatten"), ["batch", 2, "length"], w=normal(3, 2, 2))
    assert_same(from_onnx(proto, shape=(2, 7)), proto, normal(5, 2, 7))


def test_shapes_of_several_inputs_go_by_name() -> None:
    network = from_onnx(two(), shape={"a": (2, 3, 3)})
    assert network.named_inputs == {"a": (2, 3, 3), "b": (3,)}
    with pytest.raises(UsageError, match=r"'a', 'b'.*by its name"):
        from_onnx(two(), shape=(2, 3, 3))
    with pytest.raises(UsageError, match="no input 'image'"):
        from_onnx(two(), shape={"image": (2, 3, 3)})


def test_sizes_of_one_name_are_fixed_in_all_inputs() -> None:
    proto = model(chain("Add b", "MatMul w", x="a"), {"a": ["n", "length"], "b": ["n", "length"]}, w=normal(5, 2))
    network = from_onnx(proto, shape={"a": (5,)})
    assert network.named_inputs == {"a": (5,), "b": (5,)}


def test_an_input_without_a_shape() -> None:
    proto = model([node("MatMul", "x", "w")], None, w=normal(5, 2))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'x' is not known.*shape="):
        from_onnx(proto)
    assert from_onnx(proto, shape=(5,)).sizes == (5, 2)


@pytest.mark.parametrize("shape", [(4, 6, 5), (3, 6), (3, 6, 0), {"x": (3, 6, 5, 2)}, {"x": 3}, 3])
def test_shapes_that_do_not_fit(shape: Any) -> None:
    with pytest.raises(ShapeError, match="'x'"):
        from_onnx(images(), shape=shape)


def test_calls_fix_open_sizes(tmp_path: Path) -> None:
    onnx.save(images(), tmp_path / "images.onnx")
    for source in (tmp_path / "images.onnx", images()):
        session = Session(source, device="cpu")
        with pytest.raises(UsageError, match=r"first call, .*'x'"):
            session.network  # noqa: B018 (not known yet)
        for size in (6, 5), (2, 9), (6, 5):
            rows = normal(4, 3, *size)
            for found in (
                session(rows),
                session.run(rows).outputs.to_scipy().toarray(),
                pickle.loads(pickle.dumps(session))(rows),
            ):
                np.testing.assert_allclose(found, expected(images(), rows), rtol=1e-4, atol=1e-5)
            assert session.network.image == session.plan(rows).network.image == (3, *size)
        assert session(rows[0]).shape == (1, 2)
        for shape in ((4, 2, 6, 5), (6, 5)):
            with pytest.raises(ShapeError, match="'x'"):
                session(np.zeros(shape, np.float32))
        session.close()
        with pytest.raises(UsageError, match="closed"):
            session(rows)


def test_calls_fix_the_sizes_of_several_inputs() -> None:
    proto = two()
    session = Session(proto, device="cpu")
    for size in (2, 3), (4, 1):
        rows = {"a": normal(5, 2, *size), "b": normal(5, 3)}
        known = Session(from_onnx(proto, shape={"a": (2, *size)}), device="cpu")(rows)
        for found in (
            session(**rows),
            session(rows),
            session(list(rows.values())),
            session.run(rows).outputs.to_scipy().toarray(),
        ):
            np.testing.assert_array_equal(found, known)
    with pytest.raises(UsageError, match="missing are 'b'"):
        session(a=rows["a"])


def test_sessions_of_the_last_sizes_are_cached() -> None:
    session: Any = Session(images(), device="cpu")
    made = [session.of_sizes(np.zeros((1, 3, 4, width))) for width in range(1, MOST_SIZES + 2)]
    assert session.of_sizes(np.zeros((7, 3, 4, MOST_SIZES + 1))) is made[-1]
    assert session.of_sizes(np.zeros((1, 3, 4, 1))) is not made[0]
    assert made[0](np.zeros((1, 3, 4, 1))).shape == (1, 2)  # as it is for a thread that is calling it


def test_faults_of_options_are_found_at_once_and_those_of_calls_are_of_sizes() -> None:
    with pytest.raises(UsageError, match="unknown device"):
        Session(images(), device="gpu")
    session = Session(images(), device="cpu")
    with pytest.raises(AttributeError, match="get_inputs"):
        session.get_inputs  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ShapeError, match=r"sizes \{'x': \(2, 4, 3, 3\)\}"):
        session(normal(2, 4, 3, 3))


def test_what_else_a_session_of_open_sizes_does() -> None:
    proto, rows = images(), normal(4, 3, 6, 5)
    session = Session(proto, device="cpu")
    assert "open sizes of x" in session._repr_html_()
    proto.graph.initializer[0].raw_data = bytes(len(proto.graph.initializer[0].raw_data))
    outputs = session(rows)
    assert outputs.any()  # of the model as it was
    assert session.warm_up(5).inputs == 5
    assert session.warm_up(rows=normal(2, 3, 8, 8)).network.image == (3, 8, 8)
    moved = session.on("reference")
    np.testing.assert_allclose(moved(rows), outputs, rtol=1e-4, atol=1e-5)
    assert type(Session.of_plan(session.plan(rows))) is type(type(session).of_plan(session.plan(rows))) is Session
    for ragged in ([[1, 2], [3]], (rows, np.arange(4))):
        with pytest.raises(InputError, match="'x' has no shape"):
            session(ragged)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_makes_sessions_of_its_own() -> None:
    session: Any = Session(images(), device="cpu")
    session._guard.acquire()  # as a thread does that makes a session of another size
    child = os.fork()
    if not child:
        os._exit(0 if session._guard.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_files_are_read_with_a_shape(tmp_path: Path) -> None:
    onnx.save(images(), tmp_path / "images.onnx")
    model = read_model(tmp_path / "images.onnx", shape=(3, 6, 5))
    assert_same(model, images(), normal(4, 3, 6, 5))
    write_model(tmp_path / "images.h5", model)
    with pytest.raises(UsageError, match="ONNX"):
        read_model(tmp_path / "images.h5", shape=(3, 6, 5))
