from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from file_comparisons import same_dataset, same_matrix
from hdf5_changes import Change, attribute, described, element, put, record, refused_after
from hypothesis import given
from hypothesis import strategies as st
from result_files import result_in
from strategies import csr_matrices, networks_with_inputs

from sparsenn.errors import FileFormatError, UsageError
from sparsenn.formats import CSR, from_dense
from sparsenn.io import Dataset
from sparsenn.io.hdf5.dataset import read_categories, read_dataset, write_dataset, write_result


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
def test_round_trip(tmp_path_factory, drawn: Any, known: bool, notes: Any, name: str) -> None:
    network, inputs = drawn
    truth = np.arange(0, inputs.shape[0], 3) if known else None
    dataset = Dataset(name, network, inputs, truth, notes)
    path = tmp_path_factory.mktemp("h5") / "d.h5"
    write_dataset(dataset, path)
    same_dataset(read_dataset(path), dataset)


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("inputs", [1, 3, 5, 6])
def test_every_kind_of_layer(path: Path, mixed: Dataset, layers: int, inputs: int) -> None:
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
def test_result_round_trip(tmp_path_factory, outputs: CSR, notes: dict[str, str]) -> None:
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


def external_link(file: h5py.File) -> None:
    put("network/indices16", h5py.ExternalLink("other.h5", "/secret"))(file)


def soft_link(file: h5py.File) -> None:
    file["copy"] = np.zeros(82, np.uint16)
    put("network/indices16", h5py.SoftLink("/copy"))(file)


def external_storage(file: h5py.File) -> None:
    put("network/indices16")(file)
    file.create_dataset("network/indices16", (82,), np.uint16, external=[("other.h5", 0, 164)])


def declared(**how: Any) -> Change:
    """Declare more indices than there is memory for; none of them is written."""

    def change(file: h5py.File) -> None:
        put("network/indices16")(file)
        file.create_dataset("network/indices16", (1 << 40,), np.uint16, **how)

    return change


FAULTS: list[tuple[Change, str]] = [
    (attribute("format"), "not a sparsenn dataset: it is some other HDF5 file"),
    (attribute("format", np.bytes_(b"sparsenn result")), "not a sparsenn dataset: it says 'sparsenn result'"),
    (attribute("version", 2), "has version 2; this program reads version 1"),
    (put("description"), "description is missing"),
    (put("description", np.bytes_(b"{")), "damaged"),
    (put("description", np.bytes_(b"[]")), "description is not an object"),
    (described(provenance={"a": 5}), "description has no valid 'provenance'"),
    (put("network/layers"), "network/layers is missing"),
    (record("network/layers", 1, "inputs", -8), "layer 1: its widths is invalid"),
    (record("network/layers", 3, "outputs", 1 << 31), "layer 3: its widths is invalid"),
    (record("network/layers", 2, "entries", 1 << 60), "layer 2: its number of entries is invalid"),
    (record("network/layers", 1, "degree", 3), "layer 1: its entries per column is invalid"),
    (record("network/layers", 2, "bias_kind", b"maybe"), "layer 2: its kind of bias is invalid"),
    (record("network/layers", 4, "activation", b"eval"), "layer 4: unknown activation 'eval'"),
    (record("network/layers", 1, "clip", -1.0), "layer 1: a ReLU clip of -1"),
    (put("network/indices16"), "network/indices16 is missing"),
    (put("network/biases"), "network/biases is missing"),
    (put("network/indices16", np.zeros(82, np.int16)), "network/indices16 holds int16; it must hold uint16"),
    (put("network/indices16", np.zeros(81, np.uint16)), "network/indices16 has 81 elements; 82 are needed"),
    (element("network/indices16", 3, 8), "layer 1: column 1, entry 3: index 8 is outside"),
    (element("network/values32", 0, np.nan), "layer 1: entry 0: the value nan is not finite"),
    (element("network/offsets", 5, 60), "layer 3: indptr must rise"),
    (element("network/biases", 0, np.inf), "layer 4: the bias holds NaN, infinity"),
    (put("inputs/indptr"), "inputs/indptr is missing"),
    (put("inputs/values", np.ones(4, np.float32)), "inputs have 4 values for 5 entries in 5 rows"),
    (element("inputs/indptr", 5, 4), "inputs/indptr ends with 4; there are 5 entries"),
    (element("inputs/indptr", 0, 1), "all rows: indptr must rise from 0"),
    (element("inputs/indices", 4, 8), "all rows: row 2, entry 4: index 8 is outside 0..7"),
    (element("categories", 0, 0), "categories must count from 1 and increase"),
    (element("categories", 1, 6), "the truth names category 6, but there are 5 inputs"),
    (external_link, "network/indices16: indices16 is an ExternalLink; links are not followed"),
    (soft_link, "network/indices16: indices16 is a SoftLink; links are not followed"),
    (external_storage, "stored outside the file; only contiguous data is read"),
    (declared(compression="gzip"), "network/indices16 is chunked, compressed, .*: h5repack -f NONE -l CONTI OLD NEW"),
    (declared(), "declares 2,199,023,255,552 bytes, which are not in the file"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_faulty_parts(path: Path, change: Change, message: str) -> None:
    with h5py.File(path.with_name("other.h5"), "w") as other:
        other["secret"] = np.zeros(82, np.uint16)
    refused_after(change, path, read_dataset, message)


@pytest.mark.parametrize("data", [b"", b"1\t1\t1\n", b"\x89HDF\r\n\x1a\n", b"PK\x03\x04" * 1000])
def test_foreign_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(FileFormatError, match=r"a\.h5: not HDF5, or damaged"):
        read_dataset(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (described(columns="3"), "no valid 'columns'"),
        (described(attributes={"a": None}), "no valid 'attributes'"),
        (element("categories", 0, 0), "categories must count from 1 and increase"),
        (put("categories"), "holds no categories"),
        (attribute("format", np.bytes_(b"sparsenn model")), "not a sparsenn dataset or sparsenn result"),
    ],
)
def test_faulty_results(tmp_path: Path, change: Change, message: str) -> None:
    path = tmp_path / "r.h5"
    write_result(path, from_dense(np.eye(3)), np.arange(3), {})
    refused_after(change, path, read_categories, message)


def test_what_is_no_dataset_is_not_written(tmp_path: Path, mixed: Dataset) -> None:
    new = tmp_path / "new.h5"
    for arguments, found in (
        ((new, mixed), "Path and a Dataset"),
        ((mixed.network, new), "Network and a [A-Za-z]*Path"),
    ):
        with pytest.raises(UsageError, match=rf"Dataset .* not a [A-Za-z]*{found}"):
            write_dataset(*arguments)
        assert not new.exists()
