"""`predict_table`: columns by name or place, missing values, ids, scores, blocks, and what is refused."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx_graphs import chain
from onnx_graphs import model as graph_of
from pyarrow import csv, parquet

from sparsenn.distributed.devices import Sessions
from sparsenn.engine import Session
from sparsenn.errors import FileFormatError, InputError, NumericError, ShapeError, SparseNNError, UsageError
from sparsenn.formats import Column, InputLayout, Scaling, TableEncoding
from sparsenn.io import write_model
from sparsenn.io.importers.onnx.files import from_onnx
from sparsenn.layers import Linear
from sparsenn.layers.activation import ReLU
from sparsenn.model import Model
from sparsenn.network import Network
from sparsenn.predictions import PredictedTable, predict_table
from sparsenn.training import TrainingData, read_rows

WEIGHTS = np.array([[1, -2, 0.5], [0.25, 1, -1], [-1, 0.5, 2]], np.float32)
NAMES = ("x", "y", "z")
ROWS = np.random.default_rng(4).standard_normal((50, 3)).astype(np.float32)


@pytest.fixture
def model() -> Model:
    """A classifier of three inputs that knows no names of columns."""
    return Model(Network((Linear(WEIGHTS, 0.5, ReLU()), Linear(WEIGHTS.T))), classes=True, class_names=("a", "b", "c"))


@pytest.fixture
def expected(model: Model) -> np.ndarray:
    outputs: np.ndarray = Session(model.network, device="cpu")(ROWS)
    return outputs


Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write columns by name as the table that a file's name says."""

    def write(name: str = "rows.csv", header: bool = True, **columns: Any) -> Path:
        path, table = tmp_path / name, pa.table(columns)
        if path.suffix == ".parquet":
            parquet.write_table(table, path, row_group_size=7)
            return path
        options = csv.WriteOptions(include_header=header, delimiter="\t" if ".tsv" in name else ",")
        csv.write_csv(table, path, options)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
        return path

    return write


def columns(rows: np.ndarray = ROWS) -> dict[str, np.ndarray]:
    return dict(zip(NAMES, rows.T, strict=True))


def predict(model: Any, path: Path, *output: Path, **how: Any) -> PredictedTable:
    return predict_table(model, path, *output, device="cpu", **how)


def classes_of(outputs: np.ndarray) -> list[str]:
    return ["abc"[number] for number in outputs.argmax(axis=1)]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.csv.gz", "rows.parquet"])
@pytest.mark.parametrize("output", ["out.csv", "out.tsv.gz", "out.parquet"])
def test_every_kind_of_table(
    model: Model, expected: np.ndarray, written: Written, tmp_path: Path, name: str, output: str
) -> None:
    ids = [f"{number:03}" for number in range(len(ROWS))]
    path, out = written(name, key=ids, **columns()), tmp_path / output
    done = predict(model, path, out, id="key", scores=True)
    if output.endswith("gz"):
        table = csv.read_csv(
            pa.BufferReader(gzip.decompress(out.read_bytes())),
            parse_options=csv.ParseOptions(delimiter="\t"),
            convert_options=csv.ConvertOptions(column_types={"key": pa.string()}),
        )
    elif output.endswith("csv"):
        table = csv.read_csv(out, convert_options=csv.ConvertOptions(column_types={"key": pa.string()}))
    else:
        table = parquet.read_table(out)
    assert (done.rows, done.path, done.table, done.notes) == (len(ROWS), out, None, ())
    assert list(done.columns) == table.column_names == ["key", "class", "score_a", "score_b", "score_c"]
    assert table["key"].to_pylist() == ids
    assert table["class"].to_pylist() == classes_of(expected)
    found = np.column_stack([table[f"score_{each}"].to_numpy() for each in "abc"]).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([name, output])


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_any_number_of_blocks_gives_the_same(
    model: Model, expected: np.ndarray, written: Written, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("sparsenn.predictions._LEAST_BLOCK_BYTES", 100)
    monkeypatch.setattr("sparsenn.io.tables.parquet._ROWS", 4)
    path, sizes, reports = written(name, key=np.arange(50), **columns()), [], []
    run = Session.__call__
    monkeypatch.setattr(
        Session, "__call__", lambda self, rows, **how: (sizes.append(len(rows)), run(self, rows, **how))[1]
    )
    done = predict(model, path, id="key", scores=True, memory_limit=1000, progress=lambda *state: reports.append(state))
    assert done.table["key"].to_pylist() in (list(range(50)), [str(number) for number in range(50)])
    found = np.column_stack([done.table[f"score_{each}"].to_numpy() for each in "abc"])
    np.testing.assert_array_equal(found, expected)
    assert len(sizes) > 5
    assert len(set(sizes[:-1])) == 1
    shares = [done / total for _, done, total in reports]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert {task for task, _, _ in reports} == {f"predict {name}"}


@pytest.mark.parametrize(
    "names", [{"input_layout": InputLayout(names=NAMES)}, {"named_inputs": dict.fromkeys(NAMES, (1,))}]
)
def test_columns_by_name(model: Model, expected: np.ndarray, written: Written, names: dict[str, Any]) -> None:
    named = replace(model, network=replace(model.network, **names))
    mixed = {"more": ["u"] * 50, **dict(reversed(columns().items()))}
    done = predict(named, written(**mixed))
    assert done.table["class"].to_pylist() == classes_of(expected)
    assert done.notes == ("not used: the column 'more'",)
    assert predict(named, written(**mixed), ignore=["more"]).notes == ()
    again = predict(named, written(**mixed), columns=["y", "z", "x"])
    assert again.table == done.table
    plain = predict(named, written(header=False, **columns()))
    assert plain.table == done.table
    with pytest.raises(ShapeError, match="no column 'x', 'y'"):
        predict(named, written(u=ROWS[:, 0], v=ROWS[:, 1], z=ROWS[:, 2]))
    assert np.array_equal(read_rows(written(**mixed), 3, 3, network=named.network).inputs, ROWS)
    labelled = {**dict(reversed(columns().items())), "label": expected.argmax(axis=1)}
    read = read_rows(written(**labelled), 3, 3, targets=1, classes=True, network=named.network)
    assert isinstance(read, TrainingData)
    assert np.array_equal(read.inputs, ROWS)
    with pytest.raises(ShapeError, match="'z' is one that the model takes"):
        read_rows(written(**dict(reversed(labelled.items()))), 3, 3, targets=1, network=named.network)


def test_columns_by_place(model: Model, expected: np.ndarray, written: Written) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (columns(), {}),
        ({"kind": ["u"] * 50, **columns()}, {"ignore": ["kind"]}),
        ({"p": ROWS[:, 2], "q": ROWS[:, 0], "r": ROWS[:, 1]}, {"columns": ["q", "r", "p"]}),
        ({"": np.arange(50), **columns()}, {}),
        ({"x": ROWS[:, 0], "": ROWS[:, 1], "z": ROWS[:, 2]}, {}),
    ]
    for table, how in cases:
        done = predict(model, written(**table), **how)
        assert done.table["class"].to_pylist() == classes_of(expected)
        assert len(done.notes) == (len(table) == 4 and "" in table)
        assert (done.path, done.columns) == (None, ("class",))
    done = predict(model, written(header=False, id=ROWS[:, 2], **columns()), columns=["2", "3", "4"])
    assert done.table["class"].to_pylist() == classes_of(expected)


@pytest.mark.parametrize(
    ("text", "how", "error", "message"),
    [
        ("x,y\n1,2\n", {}, ShapeError, "2 columns ('x', 'y'); the model takes 3: add those that are missing"),
        ("n,x,y,z\nu,1,2,3\n", {}, ShapeError, "4 columns ('n', 'x', 'y', 'z'); the model takes 3: .*--ignore n)"),
        ("x,y,z\n1,u,3\n", {}, FileFormatError, "column 'y' holds texts, and the model takes numbers: .*--ignore y"),
        ("x,y,z\n1,2,3\n1,u,3\n", {}, FileFormatError, ":3: column 'y' holds 'u' where a number is needed"),
        ("x,y,z\n1,2,3\n1,,3\n", {}, FileFormatError, ":3: column 'y' holds nothing here: .*--impute"),
        ("x,y,z\n1,2,\n1,,3\nu,2,3\n", {}, FileFormatError, ":2: column 'z' holds nothing here"),
        ("x,y,z\n1,2,3\n1,2\n", {}, FileFormatError, ":3: 2 columns instead of 3"),
        ("x,y,z\n", {}, FileFormatError, ":2: holds no rows"),
        ("x,y,z\n1,2,1e300\n", {}, FileFormatError, ":2: column 'z' holds a number that is not finite"),
        ("x,y,z\n1,,3\n1,NA,3\n", {"impute": True}, FileFormatError, "column 'y' holds no number, so that it has no"),
        ("x,y,z\n1,2,3\n", {"ignore": ["yy"]}, InputError, "no column 'yy'; there are 'x', 'y', 'z'; did you mean 'y'"),
        ("x,y,z\n1,2,3\n", {"id": "n"}, InputError, "no column 'n'"),
        ("x,y,z\n1,2,3\n", {"columns": ["x", "y", "x"]}, UsageError, "column 'x' is named twice"),
        ("x,y,z\n1,2,3\n", {"columns": ["x", "y", "z"], "id": "z"}, UsageError, "column 'z' is named twice"),
        ("x,y,z\n3e38,3e38,3e38\n", {}, NumericError, "the outputs of row 1 are not finite"),
        ("x,y,z\n1,2,3\n", {"memory_limit": "much"}, UsageError, "the memory limit is 'much'"),
        ("x,y,z\n1,2,3\n", {"kernel": "none"}, UsageError, "kernel .* 'none'"),
    ],
)
def test_tables_that_do_not_fit(
    model: Model, tmp_path: Path, text: str, how: dict[str, Any], error: type[SparseNNError], message: str
) -> None:
    path, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    path.write_text(text)
    out.write_text("old")
    escaped = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(error, match=escaped):
        predict(model, path, out, **how)
    assert out.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.csv", "rows.csv"]


@pytest.mark.parametrize(
    ("text", "how", "message"),
    [
        (b"x,x,y,z\n1,2,3,4\n", {"columns": ["x", "y", "z"]}, "has 2 columns 'x'"),
        (b"k,k,x,y,z\n1,2,3,4,5\n", {"id": "k"}, "has 2 columns 'k'"),
        (b"x;y;z\n0,5;2;3\n", {}, "with a decimal point"),
        ("x,y,z\n1,2,3\n".encode("utf-16"), {}, "is UTF-16"),
    ],
)
def test_tables_as_other_programs_write_them(
    model: Model, tmp_path: Path, text: bytes, how: dict[str, Any], message: str
) -> None:
    (tmp_path / "rows.csv").write_bytes(text)
    with pytest.raises(FileFormatError, match=message):
        predict(model, tmp_path / "rows.csv", **how)


def test_missing_numbers_become_the_means_of_the_table(model: Model, written: Written) -> None:
    gaps = ROWS.copy()
    gaps[[3, 7], 1] = np.nan
    holes = {name: pa.array(values, mask=np.isnan(values)) for name, values in columns(gaps).items()}
    filled = np.where(np.isnan(gaps), np.float32(np.nanmean(np.float64(gaps), axis=0)), gaps)
    for name in ("rows.csv", "rows.parquet"):
        done = predict(model, written(name, **holes), impute=True)
        assert done.table["class"].to_pylist() == classes_of(Session(model.network, device="cpu")(filled))
        assert done.notes == (f"2 missing numbers were replaced by means of {name}: the model stores none",)
        assert predict(model, written(name, **columns()), impute=True).notes == ()


def test_a_model_of_a_table_encodes_scales_and_fills_as_in_training(tmp_path: Path) -> None:
    network = Network((Linear(WEIGHTS[:, :1]),))
    encoding = TableEncoding((Column("size"), Column("kind", ("red", "blue"), "blue")), ("price",), True)
    scaling = Scaling(np.ones(1), np.array([10.0, 0.5, 0.5]), np.array([2.0, 1, 1]))
    model = Model(network, encoding=encoding, scaling=scaling)
    path = tmp_path / "rows.csv"
    path.write_text('kind,price,size,note\nred,1,12,"a, b"\n,2,NA,\nblue,,"8",c\n')
    with pytest.raises(FileFormatError, match=r":3: column 'size' holds nothing here"):
        predict(model, path)
    done = predict(model, path, impute=True, id="note")
    assert done.notes == ("missing numbers were replaced by the means of the training data, which the model stores",)
    assert done.columns == ("note", "price")
    assert done.table["note"].to_pylist() == ["a, b", "", "c"]
    inputs = np.float32([[1, 0.5, -0.5], [0, -0.5, 0.5], [-1, -0.5, 0.5]])
    np.testing.assert_array_equal(done.table["price"].to_numpy(), Session(network, device="cpu")(inputs).ravel())
    path.write_text("kind,size\ngreen,1\n")
    with pytest.raises(FileFormatError, match=r":2: column 'kind' holds 'green' here; known: 'red', 'blue'"):
        predict(model, path)


def test_models_in_any_form(model: Model, expected: np.ndarray, written: Written, tmp_path: Path) -> None:
    path, numbers = written(**columns()), expected.argmax(axis=1).tolist()
    write_model(tmp_path / "model.h5", model)
    for form in (str(tmp_path / "model.h5"), model):
        assert predict(form, path).table["class"].to_pylist() == classes_of(expected)
    assert predict(model.network, path).table["class"].to_pylist() == numbers
    with Session(model.network, device="cpu") as session:
        assert predict_table(session, path).table["class"].to_pylist() == numbers
        assert predict_table(Sessions.of([session]), path).table["class"].to_pylist() == numbers
        with pytest.raises(UsageError, match="the session has its options; leave out device"):
            predict(session, path)


def test_an_interrupt_leaves_nothing(model: Model, written: Written, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = written(**columns())
    with pytest.raises(KeyboardInterrupt):
        predict(model, path, tmp_path / "out.csv", progress=interrupt)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("impute", [False, True])
def test_missing_numbers_are_left_to_a_model_that_replaces_them(written: Written, impute: bool) -> None:
    pytest.importorskip("onnxruntime", reason="replaces missing numbers")
    values = {"imputed_value_floats": [5.0, -1.0, 0.25], "replaced_value_float": float("nan")}
    imputer = onnx.helper.make_node("Imputer", ["x"], ["filled"], domain="ai.onnx.ml", **values)
    graph = graph_of([imputer, *chain("MatMul w", "Tanh", x="filled")], ["n", 3], ml=True, w=WEIGHTS)
    gaps = ROWS.copy()
    gaps[::2, 0], gaps[1, 1:] = np.nan, np.nan
    filled = np.where(np.isnan(gaps), np.float32([5, -1, 0.25]), gaps)
    network = from_onnx(graph)
    expected = np.tanh(filled @ WEIGHTS)
    np.testing.assert_allclose(Session(network, device="cpu")(gaps), expected, rtol=1e-5, atol=1e-6)
    table = written(**{name: [None if np.isnan(x) else x for x in column] for name, column in columns(gaps).items()})
    done = predict(Model(network, classes=False), table, impute=impute)
    found = np.column_stack([column.to_numpy() for column in done.table.columns])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert done.notes == (("missing numbers are left to the model, which replaces them itself",) if impute else ())
