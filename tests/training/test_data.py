"""Training data: from arrays, and from every kind of file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from idx_files import write_idx

from sparsenn.errors import FileFormatError, InputError, ResourceError, ShapeError, SparseNNError, UsageError
from sparsenn.runtime import memory
from sparsenn.training import TrainingData, read_data, read_rows

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
    assert (
        TrainingData(np.ones((2, 3)), np.ones((2, 2))).digest()
        != TrainingData(np.ones((2, 2)), np.ones((2, 3))).digest()
    )


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
        ({"targets": TARGETS}, "inputs is missing"),
        ({"inputs": INPUTS, "targets": TARGETS, "labels": [1, 0, 2]}, "holds targets and labels"),
        ({"inputs": INPUTS[0], "targets": TARGETS}, "must have 2 dimensions"),
        ({"inputs": INPUTS, "targets": [b"a", b"b", b"c"]}, "targets"),
        ({"inputs": INPUTS, "labels": [0.5, 1.0, 2.0]}, "labels holds float64"),
        ({"inputs": INPUTS, "labels": [1, -1, 0]}, "row 2 has the label -1"),
        ({"inputs": INPUTS, "labels": [1, 0]}, "3 rows"),
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


def test_names_that_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"known: \.csv"):
        read_data(tmp_path / "a.txt")
    with pytest.raises(UsageError, match="only IDX images"):
        read_data(tmp_path / "a.csv", labels=tmp_path / "b")
    with pytest.raises(InputError, match="no such file"):
        read_data(tmp_path / "a.csv")


def test_images_keep_their_shape(tmp_path: Path) -> None:
    write_idx(tmp_path / "labels.idx", np.array([1, 0, 2], np.uint8))
    for shape, image in (((3, 2, 4), (1, 2, 4)), ((3, 2, 2, 2), (2, 2, 2)), ((3, 8), None), ((3, 2, 2, 2, 1), None)):
        write_idx(tmp_path / "images.idx", np.arange(24, dtype=np.uint8).reshape(shape))
        found = read_data(tmp_path / "images.idx", labels=tmp_path / "labels.idx")
        assert (found.image, found.inputs.shape) == (image, (3, 8))
    with pytest.raises(ShapeError, match=r"8 inputs .* \(1, 3, 3\)"):
        TrainingData(np.ones((3, 8)), TARGETS, image=(1, 3, 3))


def test_no_images_at_all(tmp_path: Path) -> None:
    write_idx(tmp_path / "images.idx", np.zeros((0, 28, 28), np.uint8))
    write_idx(tmp_path / "labels.idx", np.zeros(0, np.uint8))
    with pytest.raises(FileFormatError, match="at least one row"):
        read_data(tmp_path / "images.idx", labels=tmp_path / "labels.idx")


SIGNALLING = np.frombuffer(b"\x01\0\0\0\0\0\xf0\x7f", np.float64)[0]
"""A NaN of which processors tell."""


@pytest.mark.parametrize("number", [1e300, SIGNALLING], ids=["beyond float32", "signalling NaN"])
@pytest.mark.parametrize("name", ["a.idx", "a.npy", "a.h5"])
def test_what_is_not_finite_in_float32_is_one_error(tmp_path: Path, name: str, number: float) -> None:
    array = np.array([[1.0, 2.0], [3.0, number]])
    path = tmp_path / name
    if name == "a.idx":
        write_idx(path, array)
    elif name == "a.npy":
        np.save(path, array)
    else:
        with h5py.File(path, "w") as file:
            file["inputs"] = array
    with (
        np.errstate(all="raise"),
        pytest.raises(FileFormatError, match=r"row 2 of the inputs .* not finite in float32"),
    ):
        read_rows(path, 2, 1)


def test_classes_that_no_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    path.write_text("0.5,1048575\n" * 1000)
    monkeypatch.setattr(memory, "free_memory", lambda: 10**9)
    with pytest.raises(ResourceError, match=r"1,048,576 classes and 1,000 rows needs 4\.2 GB of memory"):
        read_data(path, classes=True)
