from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_files import result_in
from strategies import csr_matrices, networks_with_inputs

from sparsenn.errors import FileFormatError, UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.io import Dataset
from sparsenn.io.hdf5.dataset import read_categories, read_dataset, write_dataset, write_result

Same = Callable[[Any, Any], None]


@pytest.fixture
def path(tmp_path: Path, mixed: Dataset) -> Path:
    write_dataset(mixed, tmp_path / "mixed.h5")
    return tmp_path / "mixed.h5"


def prefix(dataset: Dataset, layers: int, inputs: int) -> Dataset:
    """What reading the first layers and inputs must give."""
    whole = layers == len(dataset.network)
    truth = dataset.truth[dataset.truth < inputs] if dataset.truth is not None and whole else None
    rows = dataset.inputs.slice_groups(0, min(inputs, dataset.inputs.shape[0]))
    return replace(dataset, network=dataset.network.prefix(layers), inputs=rows, truth=truth)


@given(networks_with_inputs(), st.booleans(), st.dictionaries(st.text(), st.text()), st.text())
def test_round_trip(tmp_path_factory, same_dataset: Same, drawn: Any, known: bool, notes: Any, name: str) -> None:
    network, inputs = drawn
    truth = np.arange(0, inputs.shape[0], 3) if known else None
    dataset = Dataset(name, network, inputs, truth, notes)
    path = tmp_path_factory.mktemp("h5") / "d.h5"
    write_dataset(dataset, path)
    same_dataset(read_dataset(path), dataset)


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("inputs", [1, 3, 5, 6])
def test_every_kind_of_layer(path: Path, mixed: Dataset, same_dataset: Same, layers: int, inputs: int) -> None:
    same_dataset(read_dataset(path, layers, inputs), prefix(mixed, layers, inputs))


def test_only_the_part_asked_for_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    whole = h5py.Dataset.read_direct

    def count(self: h5py.Dataset, destination: np.ndarray, *rest: Any, **more: Any) -> None:
        nonlocal read
        read += destination.nbytes if self.name != "/network/layers" else 0
        whole(self, destination, *rest, **more)

    monkeypatch.setattr(h5py.Dataset, "read_direct", count)
    read_dataset(path, layers=1, limit_inputs=1)
    assert read == 16 * 2 + 4 + 16 + 2 * 2 + 2 * 4  # indices and weight; offsets, indices and values of one input


@given(csr_matrices(), st.dictionaries(st.text(), st.text()))
def test_result_round_trip(tmp_path_factory, same_matrix: Same, outputs: CSR, notes: dict[str, str]) -> None:
    path = tmp_path_factory.mktemp("h5") / "r.h5"
    categories = np.flatnonzero(np.diff(outputs.indptr))
    write_result(path, outputs, categories[::-1], notes)
    found, named, attributes = result_in(path)
    same_matrix(found, outputs)
    np.testing.assert_array_equal(named, categories)
    np.testing.assert_array_equal(read_categories(path), categories)
    assert attributes == notes


def test_categories_of_a_dataset_are_its_truth(path: Path, tmp_path: Path, mixed: Dataset) -> None:
    assert read_categories(path).tolist() == [2, 4]
    write_dataset(replace(mixed, truth=None), tmp_path / "unknown.h5")
    with pytest.raises(FileFormatError, match=r"truth .* not known"):
        read_categories(tmp_path / "unknown.h5")


def test_categories_count_from_one_in_the_file(path: Path) -> None:
    with h5py.File(path) as file:
        assert file["categories"][:].tolist() == [3, 5]


def test_everything_is_contiguous(path: Path) -> None:
    with h5py.File(path) as file:
        stored = []
        file.visititems(lambda _, item: stored.append(item) if isinstance(item, h5py.Dataset) else None)
        assert len(stored) == 12
        assert {item.id.get_create_plist().get_layout() for item in stored} == {h5py.h5d.CONTIGUOUS}


def test_equal_datasets_give_equal_files(path: Path, tmp_path: Path, mixed: Dataset) -> None:
    write_dataset(mixed, tmp_path / "again.h5")
    assert (tmp_path / "again.h5").read_bytes() == path.read_bytes()


def test_more_than_there_is(path: Path) -> None:
    with pytest.raises(UsageError, match=r"6 layers .* has 5"):
        read_dataset(path, layers=6)
    with pytest.raises(UsageError, match=r"inputs .* 0"):
        read_dataset(path, limit_inputs=0)
    assert read_dataset(path, limit_inputs=1000).inputs.shape[0] == 5


# What is below is refused: each case damages one thing in a sound file.


def overwrite(name: str, data: Any) -> Callable[[h5py.File], None]:
    """Put something else in the place of a dataset."""

    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = data

    return change


def element(name: str, at: Any, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[name][at] = value

    return change


def field(name: str, layer: int, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        table = file["network/layers"][:]
        table[name][layer] = value
        file["network/layers"][:] = table

    return change


def without(name: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]

    return change


def described(**parts: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        content = json.loads(file["description"][()]) | parts
        overwrite("description", np.bytes_(json.dumps(content)))(file)

    return change


def attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value

    return change


FAULTS: list[tuple[Callable[[h5py.File], None], str]] = [
    (attribute("format", None), "not a sparsenn dataset: it is some other HDF5 file"),
    (attribute("format", np.bytes_(b"sparsenn result")), "not a sparsenn dataset: it says 'sparsenn result'"),
    (attribute("version", 2), "has version 2; this program reads version 1"),
    (without("description"), "description is missing"),
    (overwrite("description", np.bytes_(b"{")), "damaged"),
    (overwrite("description", np.bytes_(b"[]")), "description is not an object"),
    (described(provenance={"a": 5}), "description has no valid 'provenance'"),
    (without("network/layers"), "network/layers is missing"),
    (field("inputs", 0, -8), "layer 1: its widths is invalid"),
    (field("outputs", 2, 1 << 31), "layer 3: its widths is invalid"),
    (field("entries", 1, 1 << 60), "layer 2: its number of entries is invalid"),
    (field("degree", 0, 3), "layer 1: its entries per column is invalid"),
    (field("bias_kind", 1, b"maybe"), "layer 2: its kind of bias is invalid"),
    (field("activation", 3, b"eval"), "layer 4: unknown activation 'eval'"),
    (field("clip", 0, -1.0), "layer 1: a ReLU clip of -1"),
    (without("network/indices16"), "network/indices16 is missing"),
    (without("network/biases"), "network/biases is missing"),
    (overwrite("network/indices16", np.zeros(82, np.int16)), "network/indices16 holds int16; it must hold uint16"),
    (overwrite("network/indices16", np.zeros(81, np.uint16)), "network/indices16 has 81 elements; 82 are needed"),
    (element("network/indices16", 3, 8), "layer 1: column 1, entry 3: index 8 is outside"),
    (element("network/values32", 0, np.nan), "layer 1: entry 0: the value nan is not finite"),
    (element("network/offsets", 5, 60), "layer 3: indptr must rise"),
    (element("network/biases", 0, np.inf), "layer 4: the bias holds NaN, infinity"),
    (without("inputs/indptr"), "inputs/indptr is missing"),
    (overwrite("inputs/values", np.ones(4, np.float32)), "inputs have 4 values for 5 entries in 5 rows"),
    (element("inputs/indptr", 5, 4), "inputs/indptr ends with 4; there are 5 entries"),
    (element("inputs/indptr", 0, 1), "all rows: indptr must rise from 0"),
    (element("inputs/indices", 4, 8), "all rows: row 2, entry 4: index 8 is outside 0..7"),
    (element("categories", 0, 0), "categories must count from 1 and increase"),
    (element("categories", 1, 6), "the truth names category 6, but there are 5 inputs"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_faulty_parts(path: Path, change: Callable[[h5py.File], None], message: str) -> None:
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(FileFormatError, match=message) as caught:
        read_dataset(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (described(columns="3"), "no valid 'columns'"),
        (described(attributes={"a": None}), "no valid 'attributes'"),
        (element("categories", 0, 0), "categories must count from 1 and increase"),
        (without("categories"), "holds no categories"),
        (attribute("format", np.bytes_(b"sparsenn model")), "not a sparsenn dataset or sparsenn result"),
    ],
)
def test_faulty_results(tmp_path: Path, change: Callable[[h5py.File], None], message: str) -> None:
    path = tmp_path / "r.h5"
    write_result(path, from_dense(np.eye(3)), np.arange(3), {})
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(FileFormatError, match=message):
        read_categories(path)


def test_what_is_no_dataset_is_not_written(tmp_path: Path, mixed: Dataset) -> None:
    new = tmp_path / "new.h5"
    for arguments, found in (
        ((new, mixed), "Path and a Dataset"),
        ((mixed.network, new), "Network and a [A-Za-z]*Path"),
    ):
        with pytest.raises(UsageError, match=rf"Dataset .* not a [A-Za-z]*{found}"):
            write_dataset(*arguments)
        assert not new.exists()
