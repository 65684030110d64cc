"""Training data: from arrays, and from every kind of file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from idx_files import write_idx

from sparsenn.errors import FileFormatError, InputError, ShapeError, SparseNNError, UsageError
from sparsenn.training import TrainingData, read_data

INPUTS = np.array([[0.5, 1.0], [0.25, -2.0], [3.0, 0.0]], np.float32)
TARGETS = np.array([[1.0], [0.0], [2.0]], np.float32)
ONE_HOT = np.eye(3, dtype=np.float32)[[1, 0, 2]]


def same(found: TrainingData, inputs: Any, targets: Any, classes: bool = False) -> None:
    np.testing.assert_array_equal(found.inputs, inputs)
    np.testing.assert_array_equal(found.targets, targets)
    assert (found.inputs.dtype, found.targets.dtype, found.classes) == (np.float32, np.float32, classes)


def test_labels_become_one_hot() -> None:
    same(TrainingData.of_labels(INPUTS, np.array([1, 0, 2])), INPUTS, ONE_HOT, True)
    same(TrainingData.of_labels(INPUTS, np.array([0.0, 1.0, 0.0]), 4), INPUTS, np.eye(4)[[0, 1, 0]], True)


@pytest.mark.parametrize(
    ("labels", "classes", "told"),
    [
        ([0, -1, 0], None, "row 2 has the label -1"),
        ([0, 0.5, 0], None, "row 2 has the label 0.5"),
        ([0, 1, 3], 3, "row 3 has the label 3; .* 0 to 2"),
        ([0, 1, 1 << 40], None, "row 3"),
        ([0, 1, float("nan")], None, "row 3"),
        ([0, 1], None, "3 rows of inputs"),
    ],
)
def test_labels_that_are_none(labels: list[Any], classes: int | None, told: str) -> None:
    with pytest.raises(InputError, match=told):
        TrainingData.of_labels(INPUTS, np.array(labels), classes)


def test_digest_sees_every_number_and_shape() -> None:
    one = TrainingData(INPUTS, TARGETS)
    other = INPUTS.copy()
    other[2, 1] = np.nextafter(np.float32(0), np.float32(1))
    digests = {one.digest(), TrainingData(other, TARGETS).digest(), TrainingData(INPUTS, TARGETS * 2).digest()}
    assert len(digests) == 3
    assert one.digest() == TrainingData(INPUTS.copy(), TARGETS.copy()).digest()
    shapes = np.ones((2, 3)), np.ones((2, 2))
    assert TrainingData(*shapes).digest() != TrainingData(*shapes[::-1]).digest()


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv(tmp_path: Path, name: str) -> None:
    text = b"x,y,z\n0.5,1,1\n0.25,-2,0\n3,0,2\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    same(read_data(tmp_path / name), INPUTS, TARGETS)
    same(read_data(tmp_path / name, classes=True), INPUTS, ONE_HOT, True)
    same(read_data(tmp_path / name, targets=2), INPUTS[:, :1], np.c_[INPUTS[:, 1:], TARGETS])
    with pytest.raises(UsageError, match="cannot take 3 target columns of 3"):
        read_data(tmp_path / name, targets=3)


def test_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["inputs"], file["targets"] = INPUTS.astype(np.float64), TARGETS
    same(read_data(path), INPUTS, TARGETS)
    with h5py.File(path, "w") as file:
        file["inputs"], file["labels"] = INPUTS, np.array([1, 0, 2], np.uint8)
    same(read_data(path), INPUTS, ONE_HOT, True)
    same(read_data(path, outputs=5), INPUTS, np.eye(5)[[1, 0, 2]], True)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"inputs": INPUTS}, "targets is missing"),
        ({"inputs": INPUTS, "targets": TARGETS, "labels": [1, 0, 2]}, "holds targets and labels"),
        ({"inputs": INPUTS, "labels": [0.5, 1.0, 2.0]}, "labels holds float64"),
        ({"inputs": INPUTS, "labels": [1, -1, 0]}, "row 2 has the label -1"),
        ({"inputs": INPUTS + np.inf, "targets": TARGETS}, "not finite"),
    ],
)
def test_hdf5_that_is_no_data(tmp_path: Path, content: dict[str, Any], told: str) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            file[name] = values
    with pytest.raises(FileFormatError, match=told) as caught:
        read_data(path)
    assert str(caught.value).startswith(str(path))


def test_idx(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    write_idx(tmp_path / "some-images-idx3-ubyte.gz", images)
    with pytest.raises(UsageError, match="no labels were found beside it"):
        read_data(tmp_path / "some-images-idx3-ubyte.gz")
    write_idx(tmp_path / "some-labels-idx1-ubyte.gz", np.array([1, 0, 2], np.uint8))
    expected = images.reshape(3, 8) / np.float32(255)
    same(read_data(tmp_path / "some-images-idx3-ubyte.gz"), expected, ONE_HOT, True)
    write_idx(tmp_path / "plain.idx", images.astype(np.float32))
    write_idx(tmp_path / "other.idx", np.array([2, 0, 1], np.uint8))
    found = read_data(tmp_path / "plain.idx", labels=tmp_path / "other.idx")
    same(found, images.reshape(3, 8), np.eye(3)[[2, 0, 1]], True)
    for wrong in (np.zeros(2, np.uint8), np.zeros(3, np.float32), np.zeros((3, 1), np.uint8)):
        write_idx(tmp_path / "other.idx", wrong)
        with pytest.raises(FileFormatError, match=r"other\.idx: .* 3 images"):
            read_data(tmp_path / "plain.idx", labels=tmp_path / "other.idx")


def test_images_keep_their_shape(tmp_path: Path) -> None:
    write_idx(tmp_path / "labels.idx", np.array([1, 0, 2], np.uint8))
    for shape, image in (((3, 2, 4), (1, 2, 4)), ((3, 2, 2, 2), (2, 2, 2)), ((3, 8), None), ((3, 2, 2, 2, 1), None)):
        write_idx(tmp_path / "images.idx", np.arange(24, dtype=np.uint8).reshape(shape))
        found = read_data(tmp_path / "images.idx", labels=tmp_path / "labels.idx")
        assert (found.image, found.inputs.shape) == (image, (3, 8))
        assert found.head(2).image == image
    with pytest.raises(ShapeError, match=r"8 inputs .* \(1, 3, 3\)"):
        TrainingData(np.ones((3, 8)), TARGETS, image=(1, 3, 3))


@pytest.mark.parametrize(
    ("inputs", "targets", "classes", "kind", "told"),
    [
        (INPUTS[:2], TARGETS, False, ShapeError, "2 rows of inputs and 3 of targets"),
        (INPUTS[0], TARGETS, False, ShapeError, "inputs have shape"),
        (INPUTS[:0], TARGETS[:0], False, ShapeError, "at least one row"),
        (np.array([[1.0], [np.nan]]), TARGETS[:2], False, InputError, "row 2 of the inputs"),
        (INPUTS, TARGETS.astype(np.float64) * 1e39, False, InputError, "row 1 of the targets"),
        (INPUTS, TARGETS, True, InputError, "one-hot"),
        (INPUTS, np.ones((3, 2)), True, InputError, "one-hot"),
    ],
)
def test_arrays_that_are_no_data(
    inputs: Any, targets: Any, classes: bool, kind: type[SparseNNError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        TrainingData(inputs, targets, classes)
