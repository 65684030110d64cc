"""Rows that a model is run on, with and without targets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from idx_files import write_idx

from sparsenn import Conv2d, Network
from sparsenn.errors import FileFormatError, InputError, ShapeError, UsageError
from sparsenn.training import InputRows, TrainingData, read_rows

HOW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)


@HOW
@given(
    columns=st.integers(1, 9),
    inputs=st.integers(1, 8),
    outputs=st.integers(1, 4),
    targets=st.none() | st.integers(1, 4),
    classes=st.booleans(),
    suffix=st.sampled_from([".csv", ".tsv"]),
)
def test_no_column_is_a_target_unless_it_is_asked_for(
    tmp_path: Path, columns: int, inputs: int, outputs: int, targets: int | None, classes: bool, suffix: str
) -> None:
    path = tmp_path / f"table{suffix}"
    table = np.arange(3 * columns).reshape(3, columns) % 2 * 1.0
    table[:, -1] = 0
    path.write_text("".join(("," if suffix == ".csv" else "\t").join(map(str, row)) + "\n" for row in table.tolist()))
    last = targets or 0
    one_hot = not classes or last < 2 or bool((table[:, -last:].sum(axis=1) == 1).all())
    if columns != inputs + last:
        with pytest.raises(ShapeError, match=f"{columns} columns?; the model takes {inputs}"):
            read_rows(path, inputs, outputs, targets=targets, classes=classes)
    elif not one_hot:
        with pytest.raises(FileFormatError, match="one-hot"):
            read_rows(path, inputs, outputs, targets=targets, classes=classes)
    else:
        found = read_rows(path, inputs, outputs, targets=targets, classes=classes)
        assert isinstance(found, TrainingData if last else InputRows)
        np.testing.assert_array_equal(found.inputs, table[:, :inputs])
        if isinstance(found, TrainingData):
            assert found.targets.shape[1] == (outputs if classes and last == 1 else last)


def test_images_without_labels(tmp_path: Path) -> None:
    images = np.random.default_rng(3).integers(0, 256, (5, 4, 3)).astype(np.uint8)
    write_idx(tmp_path / "some.idx", images)
    np.save(tmp_path / "some.npy", images)
    np.save(tmp_path / "colours.npy", np.zeros((5, 2, 4, 3)))
    pixels = read_rows(tmp_path / "some.idx", 12, 2)
    assert isinstance(pixels, InputRows)
    assert pixels.image == (1, 4, 3)
    np.testing.assert_array_equal(pixels.inputs, images.reshape(5, 12) / np.float32(255))
    numbers = read_rows(tmp_path / "some.npy", 12, 2)
    assert (numbers.image, numbers.inputs.max()) == ((1, 4, 3), images.max())
    assert read_rows(tmp_path / "colours.npy", 24, 2).image == (2, 4, 3)


@pytest.mark.parametrize(
    ("shape", "rows"), [((3, 6, 5), 1), ((1, 3, 6, 5), 1), ((3, 3, 6, 5), 3), ((90,), 1), ((2, 90), 2)]
)
def test_an_image_without_the_axis_of_rows_is_one_row(tmp_path: Path, shape: tuple[int, ...], rows: int) -> None:
    network = Network([Conv2d(np.ones((2, 3, 3, 3), np.float32))], (3, 6, 5))
    np.save(tmp_path / "images.npy", np.zeros(shape))
    assert read_rows(tmp_path / "images.npy", 90, 24, network=network).rows == rows


def test_labels_lie_beside_images(tmp_path: Path) -> None:
    write_idx(tmp_path / "a-images-idx3-ubyte", np.zeros((4, 2, 2), np.uint8))
    assert isinstance(read_rows(tmp_path / "a-images-idx3-ubyte", 4, 3, classes=True), InputRows)
    write_idx(tmp_path / "a-labels-idx1-ubyte", np.array([0, 2, 1, 1], np.uint8))
    found = read_rows(tmp_path / "a-images-idx3-ubyte", 4, 3, classes=True)
    assert isinstance(found, TrainingData)
    assert found.targets.argmax(axis=1).tolist() == [0, 2, 1, 1]
    with pytest.raises(UsageError, match="only IDX images have labels"):
        read_rows(tmp_path / "a.npy", 4, 3, labels=tmp_path / "a-labels-idx1-ubyte")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_numbers_that_are_not_finite(value: float) -> None:
    dense = np.zeros((5, 3))
    dense[0, 1], dense[3, 2] = 1, value
    with pytest.raises(InputError, match="row 4 of the inputs"):
        InputRows(dense)


def test_rows_that_hold_no_such_image() -> None:
    with pytest.raises(ShapeError, match="hold no images"):
        InputRows(np.zeros((2, 5)), (1, 2, 2))
