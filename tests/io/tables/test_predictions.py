"""Predictions of a model, in every form of file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pyarrow import csv, parquet
from result_files import result_in

from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import Column, TableEncoding
from sparsenn.io.tables.predictions import PREDICTION_SUFFIXES, prediction_table, table_writer, write_predictions
from sparsenn.layers import Linear
from sparsenn.model import Model
from sparsenn.network import Network

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32)
OUTPUTS = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=NUMBERS)


def read(path: Path) -> dict[str, np.ndarray]:
    """The contents of a file, by the names that archives have for it."""
    suffix = path.suffix
    if suffix in (".tsv", ".csv", ".parquet"):
        options = csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ",")
        table = parquet.read_table(path) if suffix == ".parquet" else csv.read_csv(path, parse_options=options)
        outputs = [table[name].to_numpy() for name in table.column_names if name != "class"]
        classes = {"classes": table["class"].to_numpy()} if "class" in table.column_names else {}
        return {"outputs": np.column_stack(outputs).astype(np.float32), **classes}
    if suffix == ".npy":
        return {"either": np.load(path)}
    if suffix == ".npz":
        with np.load(path) as found:
            return dict(found)
    with h5py.File(path) as file:
        classes = {"classes": file["classes"][()]} if "classes" in file else {}
    return {"outputs": result_in(path)[0].to_scipy().toarray(), **classes}


def model_of(outputs: int, classes: bool = True, **known: Any) -> Model:
    return Model(Network((Linear(np.ones((2, outputs), np.float32)),)), classes=classes, **known)


@pytest.mark.parametrize("suffix", PREDICTION_SUFFIXES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(outputs=OUTPUTS, known=st.booleans())
def test_any_outputs_come_back(tmp_path: Path, suffix: str, outputs: np.ndarray, known: bool) -> None:
    path, predicted = tmp_path / f"out{suffix}", outputs.argmax(axis=1).astype(np.int64)
    has_classes = known and outputs.shape[1] > 1
    write_predictions(path, model_of(outputs.shape[1], known), outputs, scores=True, notes={"model": "m"})
    found = read(path)
    if "either" in found:
        np.testing.assert_array_equal(found["either"], predicted if has_classes else outputs)
    else:
        np.testing.assert_array_equal(found["outputs"], outputs)
        assert ("classes" in found) == has_classes
        assert not has_classes or np.array_equal(found["classes"], predicted)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    path.unlink()


def test_what_is_not_written(tmp_path: Path) -> None:
    model, outputs = model_of(1), np.ones((1, 1), np.float32)
    with pytest.raises(UsageError, match=r"out\.txt: the name must end in \.csv"):
        write_predictions(tmp_path / "out.txt", model, outputs)
    with pytest.raises(UsageError, match=r"out\.npy: the name must end in \.csv"), table_writer(tmp_path / "out.npy"):
        pass
    with pytest.raises(ResourceError, match="its folder does not exist"):
        write_predictions(tmp_path / "none" / "out.csv", model, outputs)
    assert not list(tmp_path.iterdir())


def test_classes_go_by_their_names(tmp_path: Path) -> None:
    outputs, names = np.eye(3, dtype=np.float32)[[2, 0]], ("a,b", "c", 'say "d"')
    model = model_of(3, class_names=names)
    for suffix in (".csv", ".tsv", ".npy", ".npz", ".h5", ".parquet", ".csv.gz"):
        write_predictions(tmp_path / f"out{suffix}", model, outputs)
    assert (tmp_path / "out.csv").read_text() == 'class\n"say ""d"""\n"a,b"\n'
    assert gzip.decompress((tmp_path / "out.csv.gz").read_bytes()) == (tmp_path / "out.csv").read_bytes()
    assert (tmp_path / "out.tsv").read_text() == 'class\n"say ""d"""\na,b\n'
    assert np.load(tmp_path / "out.npy").tolist() == [2, 0]
    with np.load(tmp_path / "out.npz") as found:
        assert (found["classes"].tolist(), found["class_names"].tolist()) == ([2, 0], list(names))
    assert result_in(tmp_path / "out.h5")[2]["class_names"] == json.dumps(names)
    assert parquet.read_table(tmp_path / "out.parquet")["class"].to_pylist() == ['say "d"', "a,b"]


def test_names_of_columns() -> None:
    rows = np.zeros((1, 2), np.float32)
    encoding = TableEncoding((Column("a"), Column("b")), ("x", "y"), True)
    named = Network(model_of(2).network.nodes, named_outputs={"p": (), "q": (1,)})
    for model, scores, expected in (
        (model_of(2), False, ["id", "class"]),
        (model_of(2), True, ["id", "class", "score_0", "score_1"]),
        (model_of(2, class_names=("u", "v")), True, ["id", "class", "score_u", "score_v"]),
        (model_of(2, False), False, ["id", "output_0", "output_1"]),
        (model_of(2, False, encoding=encoding), False, ["id", "x", "y"]),
        (Model(named), False, ["id", "p[0]", "q[0]"]),
    ):
        assert prediction_table(model, rows, scores=scores, copied=("id", ["i"])).column_names == expected
    assert prediction_table(model_of(2), rows, copied=("class", ["i"])).column_names == ["class", "class_"]


def test_many_rows_of_text_are_rendered_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"id": [None, "b\nc", "", "d"], "n": np.arange(4), "x": np.float32([0.1, 1e-30, 16777216, -1])})
    expected = '"i,d"'.join(["", ',n,x\n,0,0.1\n"b\nc",1,1e-30\n,2,16777216\nd,3,-1\n'])
    for rows in (1, 3, 100):
        monkeypatch.setattr("sparsenn.io.tables.predictions._ROWS", rows)
        with table_writer(tmp_path / "a.csv") as write:
            write(table.rename_columns(["i,d", "n", "x"]))
        assert (tmp_path / "a.csv").read_bytes().decode() == expected
