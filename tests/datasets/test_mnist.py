from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from idx_files import write_idx

from sparsenn.datasets import OFFICIAL_NONZEROS, find_training_images, mnist, mnist_inputs, training_images
from sparsenn.errors import FileFormatError, UsageError

NAME = "train-images-idx3-ubyte"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No MNIST but what the test puts into `tmp_path`."""
    monkeypatch.delenv("SPARSENN_MNIST", raising=False)
    monkeypatch.setenv("SPARSENN_CACHE", str(tmp_path / "cache"))


def file_in(folder: Path, name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_idx(folder / name, np.zeros((3, 28, 28), np.uint8))
    return folder / name


def test_the_folder_named_comes_before_the_environment_before_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_training_images() is None
    cached = file_in(tmp_path / "cache" / "mnist")
    assert find_training_images() == cached
    environment = file_in(tmp_path / "environment", NAME + ".gz")
    monkeypatch.setenv("SPARSENN_MNIST", str(environment.parent))
    assert find_training_images() == environment
    named = file_in(tmp_path / "named")
    assert find_training_images(named.parent) == named
    monkeypatch.setenv("SPARSENN_MNIST", "")
    assert find_training_images() == cached


def test_no_mnist_at_all_says_where_to_put_it(tmp_path: Path) -> None:
    message = r"MNIST is not available: put .* into .*cache/mnist, or name its folder in SPARSENN"
    with pytest.raises(UsageError, match=message):
        training_images()


def test_another_set_of_images_is_refused(tmp_path: Path) -> None:
    file_in(tmp_path)
    with pytest.raises(FileFormatError, match=r"uint8 of shape \(3, 28, 28\); .* \(60000, 28, 28\)"):
        training_images(tmp_path)


@pytest.mark.parametrize("limit", [0, -1, 60_001])
def test_a_limit_beyond_the_images_is_refused_before_any_work(tmp_path: Path, limit: int) -> None:
    with pytest.raises(UsageError, match=r"not in 1\.\.60,000"):
        mnist_inputs(1024, tmp_path, limit=limit)


def test_a_limit_takes_the_first_of_all_images_enlarged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28)).astype(np.uint8)
    monkeypatch.setattr(mnist, "TRAINING_SHAPE", images.shape)
    write_idx(tmp_path / NAME, images)
    some, whole = mnist_inputs(900, tmp_path, limit=2), mnist_inputs(900, tmp_path)
    assert (some.shape, whole.shape) == ((2, 900), (5, 900))
    np.testing.assert_array_equal(some.validate().indices, whole.indices[: whole.indptr[2]])


def test_1024_neurons_are_the_official_inputs_pixel_for_pixel(mnist_folder: Path, official_folder: Path) -> None:
    inputs = mnist_inputs(1024, mnist_folder).validate()
    assert inputs.shape == (60_000, 1024)
    assert inputs.nnz == OFFICIAL_NONZEROS[1024] == 6_374_505
    assert inputs.values.tolist() == [1.0]
    with gzip.open(official_folder / "sparse-images-1024.tsv.gz", "rt") as file:
        official = np.loadtxt(file, dtype=np.int64)
    first = inputs.slice_groups(0, 1200)
    assert first.nnz == len(official)
    made = np.column_stack((np.repeat(np.arange(1200), np.diff(first.indptr)) + 1, first.indices.astype(np.int64) + 1))
    np.testing.assert_array_equal(made, official[np.lexsort((official[:, 1], official[:, 0])), :2])


def test_4096_neurons_have_the_official_non_zeros(mnist_folder: Path) -> None:
    inputs = mnist_inputs(4096, mnist_folder)
    assert inputs.shape == (60_000, 4096)
    assert inputs.nnz == OFFICIAL_NONZEROS[4096] == 25_019_051
