"""What a model gives, in every form of file."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pyarrow import parquet
from result_files import result_in

from sparsenn.errors import ResourceError, UsageError
from sparsenn.io import read_idx, read_matrix_market
from sparsenn.io.tables.predictions import MODEL_OUTPUT_SUFFIXES, write_model_output

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)
OUTPUTS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=NUMBERS)


def read(path: Path) -> dict[str, np.ndarray]:
    """What a file holds, by the names that archives have for it."""
    suffix = path.suffix
    if suffix in (".tsv", ".csv"):
        lines = path.read_text().splitlines()
        return {"told": np.array([line.split("\t" if suffix == ".tsv" else ",") for line in lines], np.float32)}
    if suffix == ".npy":
        return {"told": np.load(path)}
    if suffix == ".npz":
        with np.load(path) as found:
            return dict(found)
    if suffix == ".parquet":
        table = parquet.read_table(path)
        outputs = [table[name].to_numpy() for name in table.column_names if name != "class"]
        classes = {"classes": table["class"].to_numpy()} if "class" in table.column_names else {}
        return {"outputs": np.column_stack(outputs), **classes}
    if suffix == ".mtx":
        return {"outputs": read_matrix_market(path).to_scipy().toarray()}
    if suffix == ".idx":
        return {"outputs": read_idx(path)}
    with h5py.File(path) as file:
        classes = {"classes": file["classes"][()]} if "classes" in file else {}
    return {"outputs": result_in(path)[0].to_scipy().toarray(), **classes}


@pytest.mark.parametrize("suffix", MODEL_OUTPUT_SUFFIXES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(outputs=OUTPUTS, known=st.booleans())
def test_any_outputs_come_back(tmp_path: Path, suffix: str, outputs: np.ndarray, known: bool) -> None:
    path, predicted = tmp_path / f"out{suffix}", outputs.argmax(axis=1).astype(np.int64)
    write_model_output(path, outputs, predicted if known else None, {"model": "m"})
    found = read(path)
    told = found.get("told")
    if told is not None:
        np.testing.assert_array_equal(told.reshape(predicted.shape) if known else told, predicted if known else outputs)
    else:
        np.testing.assert_array_equal(found["outputs"], outputs)
        has_classes = known and suffix not in (".mtx", ".idx")
        assert ("classes" in found) == has_classes
        assert not has_classes or np.array_equal(found["classes"], predicted)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    path.unlink()


def test_the_suffix_counts_in_any_case(tmp_path: Path) -> None:
    write_model_output(tmp_path / "OUT.NPY", np.ones((2, 3), np.float32), None, {})
    assert np.load(tmp_path / "OUT.NPY").shape == (2, 3)


def test_what_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"out\.txt: the name must end in \.tsv"):
        write_model_output(tmp_path / "out.txt", np.ones((1, 1), np.float32), None, {})
    with pytest.raises(ResourceError, match="its folder does not exist"):
        write_model_output(tmp_path / "none" / "out.csv", np.ones((1, 1), np.float32), None, {})
    assert not list(tmp_path.iterdir())


def test_classes_are_told_by_their_names(tmp_path: Path) -> None:
    outputs, predicted, names = np.eye(3, dtype=np.float32)[[2, 0]], np.array([2, 0]), ("a,b", "c", 'say "d"')
    for suffix in (".csv", ".tsv", ".npy", ".npz", ".h5", ".parquet"):
        write_model_output(tmp_path / f"out{suffix}", outputs, predicted, {}, names)
    assert (tmp_path / "out.csv").read_text() == '"say ""d"""\n"a,b"\n'
    assert (tmp_path / "out.tsv").read_text() == '"say ""d"""\na,b\n'
    assert np.load(tmp_path / "out.npy").tolist() == [2, 0]
    with np.load(tmp_path / "out.npz") as found:
        assert (found["classes"].tolist(), found["class_names"].tolist()) == ([2, 0], list(names))
    assert result_in(tmp_path / "out.h5")[2]["class_names"] == json.dumps(names)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["class"].to_pylist() == ['say "d"', "a,b"]
    assert table.column_names == ["class", "output 0: a,b", "output 1: c", 'output 2: say "d"']
