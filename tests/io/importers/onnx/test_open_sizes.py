"""Sizes that a graph leaves open besides the number of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_graphs import chain, expected, model, node, normal

from sparsenn import Session, from_onnx, read_model, write_model
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


def test_files_are_read_with_a_shape(tmp_path: Path) -> None:
    onnx.save(images(), tmp_path / "images.onnx")
    model = read_model(tmp_path / "images.onnx", shape=(3, 6, 5))
    assert_same(model, images(), normal(4, 3, 6, 5))
    write_model(tmp_path / "images.h5", model)
    with pytest.raises(UsageError, match="ONNX"):
        read_model(tmp_path / "images.h5", shape=(3, 6, 5))
