"""The `.safetensors` format: what its own library writes is read, and nothing else is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_networks import DEVICES, RIGHT, images_and_labels, real_weights

from sparsenn.engine import Session
from sparsenn.errors import FileFormatError
from sparsenn.io import from_weights
from sparsenn.io.arrays.safetensors import read_safetensors


def written(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


SOUND = {
    "__metadata__": {"format": "pt"},
    "b": entry(),
    "a": entry("BF16", [1, 2], [8, 12]),
    "none": entry("I64", [0], [12, 12]),
}
DATA = (
    np.array([1, 2.5], "<f4").tobytes() + np.array([1, -3], "<f4").tobytes()[2:4] + np.array([-3], "<f4").tobytes()[2:]
)


def test_arrays_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    arrays = read_safetensors(written(tmp_path / "a.safetensors", SOUND, DATA))
    assert list(arrays) == ["b", "a", "none"]
    np.testing.assert_array_equal(arrays["b"], np.array([1, 2.5], np.float32))
    np.testing.assert_array_equal(arrays["a"], np.array([[1, -3]], np.float32))
    assert arrays["none"].shape == (0,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "hold no header"),
        (({}, b"", 90), "hold no header of 90"),
        ((b"{",), "its header is not"),
        ((b'{"a": {}, "a": {}}',), "a name occurs twice"),
        (({"a": entry(shape=[-1])}, bytes(8)), "a: has no valid dtype"),
        (({"a": entry("F8_E4M3")}, bytes(8)), "a: holds F8_E4M3; known: F64"),
        (({"a": entry(shape=[3])}, bytes(8)), "a: bytes 0 to 8 are no F32"),
        (({"a": entry()}, bytes(7)), "or not there"),
        (({"a": entry(offsets=[8, 16])}, bytes(16)), "a: bytes 8 to 16"),
        (({"a": entry()}, bytes(9)), "1 bytes follow the arrays"),
    ],
)
def test_what_is_damaged_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        written(path, *content)
    with pytest.raises(FileFormatError, match=message):
        read_safetensors(path)


@DEVICES
@pytest.mark.parametrize("name", ["lenet300-dns", "lenet300-lobs"])
def test_real_pruned_networks(shared_data: Path, tmp_path: Path, name: str, device: str) -> None:
    images, labels = images_and_labels(shared_data, name)
    header, data = {}, b""
    for key, array in sorted(real_weights(shared_data, name).items()):
        kind = {4: "F32", 8: "F64"}[array.itemsize]
        header[key] = entry(kind, list(array.shape), [len(data), len(data) + array.nbytes])
        data += array.tobytes()
    network = from_weights(written(tmp_path / "bag.safetensors", header, data))
    assert (Session(network, device=device)(images).argmax(axis=1) == labels).sum() == RIGHT[name]


def test_the_formats_own_library_writes_what_is_read(tmp_path: Path, rng: np.random.Generator) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="needs the safetensors library")
    arrays = {
        kind: (rng.normal(size=(3, 4)) * 50).astype(kind)
        for kind in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?")
    }
    library.save_file(arrays, tmp_path / "a.safetensors")
    found = read_safetensors(tmp_path / "a.safetensors")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_layers_are_lined_up_where_names_or_shapes_say_how(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="needs the safetensors library")
    path = tmp_path / "a.safetensors"
    library.save_file({f"fc{number}.weight": np.ones((number + 1, number), np.float32) for number in (8, 9, 10)}, path)
    assert from_weights(path).sizes == (8, 9, 10, 11)
    library.save_file({"a.weight": np.ones((3, 2), np.float32), "b.weight": np.ones((4, 3), np.float32)}, path)
    assert from_weights(path).sizes == (2, 3, 4)
    library.save_file({"a.weight": np.ones((3, 3), np.float32), "b.weight": np.ones((3, 3), np.float32)}, path)
    with pytest.raises(FileFormatError, match=r"such files keep no order, .*layers=\['a', 'b'\]"):
        from_weights(path)
    assert from_weights(path, ["b", "a"]).sizes == (3, 3, 3)
