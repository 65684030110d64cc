"""Tables as training data and as rows to predict: names, texts, what is missing, targets and classes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sparsenn import Session
from sparsenn.errors import FileFormatError, InputError, ShapeError, SparseNNError, UsageError
from sparsenn.io import read_model, write_model
from sparsenn.layers import Identity
from sparsenn.training import InputRows, TrainingData, read_data, read_rows, train, trained_model

TABLE = "age,town,height,kind\n30,Ulm,1.5,b\n40,Bonn,1.75,a\n50,Ulm,2,b\n"
INPUTS = [[30, 0, 1, 1.5], [40, 1, 0, 1.75], [50, 0, 1, 2]]
COLUMNS = {"age": [30, 40, 50], "town": ["Ulm", "Bonn", "Ulm"], "height": [1.5, 1.75, 2], "kind": ["b", "a", "b"]}


@pytest.fixture(params=["csv", "tsv", "csv.gz", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The table in each form."""
    path = tmp_path / f"table.{request.param}"
    if request.param == "parquet":
        parquet.write_table(pa.table(COLUMNS), path)
    elif request.param == "csv.gz":
        path.write_bytes(pa.compress(TABLE.encode(), "gzip", asbytes=True))
    else:
        path.write_text(TABLE if request.param == "csv" else TABLE.replace(",", "\t"))
    return path


def write(folder: Path, text: str) -> Path:
    path = folder / "some.csv"
    path.write_text(text)
    return path


def test_texts_become_inputs_and_classes(path: Path) -> None:
    data = read_data(path)
    np.testing.assert_array_equal(data.inputs, np.float32(INPUTS))
    assert (data.classes, data.class_names) == (True, ("a", "b"))
    np.testing.assert_array_equal(data.targets, [[0, 1], [1, 0], [0, 1]])
    columns = {column.name: column.categories for column in data.encoding.columns}
    assert columns == {"age": None, "town": ("Bonn", "Ulm"), "height": None}


def test_targets_by_name(path: Path) -> None:
    data = read_data(path, target=["height"], ignore=["town"])
    assert (data.classes, data.class_names) == (False, None)
    np.testing.assert_array_equal(data.targets, np.float32([[1.5], [1.75], [2]]))
    np.testing.assert_array_equal(data.inputs, [[30, 0, 1], [40, 1, 0], [50, 0, 1]])
    data = read_data(path, target=["height", "age"])
    np.testing.assert_array_equal(data.targets, np.float32([[1.5, 30], [1.75, 40], [2, 50]]))
    data = read_data(path, target=["age"], text=["age", "height"])
    assert data.class_names == ("30", "40", "50")
    assert data.inputs.shape == (3, 2 + 3 + 2)
    with pytest.raises(InputError, match=r"'size'.* age, town, height, kind"):
        read_data(path, target=["size"])


def test_validation_and_rows_take_the_same_columns(path: Path, tmp_path: Path) -> None:
    data = read_data(path)
    more = write(tmp_path, 'kind,height,"town",id,age\na,1,Bonn,7,20\n')
    held_out = read_data(more, like=data)
    np.testing.assert_array_equal(held_out.inputs, [[20, 1, 0, 1]])
    np.testing.assert_array_equal(held_out.targets, [[1, 0]])
    how = {"classes": True, "class_names": data.class_names, "encoding": data.encoding}
    found = read_rows(more, 4, 2, **how)
    assert isinstance(found, TrainingData)
    np.testing.assert_array_equal(found.inputs, held_out.inputs)
    assert found.note == "not used: the column 'id'"
    unlabelled = read_rows(write(tmp_path, "age,town,height\n20,Bonn,1\n"), 4, 2, **how)
    assert isinstance(unlabelled, InputRows)
    np.testing.assert_array_equal(unlabelled.inputs, held_out.inputs)
    nameless = read_rows(write(tmp_path, "20,Bonn,1\n"), 4, 2, **how)
    np.testing.assert_array_equal(nameless.inputs, held_out.inputs)
    wider = write(tmp_path, "20,Bonn,1,a\n")
    with pytest.raises(ShapeError, match=r"has 4 columns; the model takes 3; .* --targets 1"):
        read_rows(wider, 4, 2, **how)
    labelled = read_rows(wider, 4, 2, targets=1, **how)
    assert isinstance(labelled, TrainingData)
    np.testing.assert_array_equal(labelled.targets, [[1, 0]])


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("age,height\n1,2\n", ShapeError, "the table has no column 'town', which the model takes"),
        ("id,age,height\n7,1,2\n", ShapeError, "no column 'town', which the model takes; it does not take 'id'"),
        ("1,Ulm\n", ShapeError, "the table has 2 columns; the model takes 3"),
        ("age,town,height\n1,Ulm,1\n2,Rom,1\n", FileFormatError, ":3: column 'town' holds 'Rom' here; known: 'Bonn'"),
        ("age,town,height\n1,Ulm,\n", FileFormatError, ":2: column 'height' holds nothing here: fill it in"),
        ("age,town,height\n1,,1\n", FileFormatError, ":2: column 'town' holds nothing here; known:"),
        ("age,town,height\n1,Ulm,tall\n", FileFormatError, ":2: column 'height' holds 'tall' where a number is needed"),
        ("age,town,height,kind\n1,Ulm,1,c\n", FileFormatError, ":2: column 'kind' holds 'c' here; known: 'a', 'b'"),
        ("age,town,height,kind\n1,Ulm,1,\n", FileFormatError, ":2: column 'kind' holds nothing here"),
    ],
)
def test_rows_that_do_not_fit(path: Path, tmp_path: Path, text: str, error: type[SparseNNError], told: str) -> None:
    data = read_data(path)
    with pytest.raises(error) as caught:
        read_rows(write(tmp_path, text), 4, 2, classes=True, class_names=data.class_names, encoding=data.encoding)
    assert told in str(caught.value)


def test_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,y\n1,u,1\n?,v,2\n4, NA ,3\n1,v,4\n")
    with pytest.raises(FileFormatError, match=r":3: column 'a' .*--impute"):
        read_data(path)
    data = read_data(path, impute=True)
    np.testing.assert_array_equal(data.inputs, [[1, 1, 0], [2, 0, 1], [4, 0, 1], [1, 0, 1]])
    new = write(tmp_path, "a,b\n,\n")
    np.testing.assert_array_equal(read_rows(new, 3, 1, encoding=data.encoding).inputs, [[2, 0, 1]])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,y\n1,2\nx,3\n", ":3: column 'a' holds 'x' here and numbers elsewhere: correct it, or declare .*--text"),
        ("a,y\n,2\n,3\n", "column 'a' holds nothing; leave it out"),
        ("a,y\n1,\n2,3\n", ":2: column 'y' holds no target here"),
        ("a,y\n" + "".join(f"t{n % 1001},1\n" for n in range(3000)), "1,001 different texts, more than 1,000"),
        ("a,y\n1,2\n\n3,4\n", ":3: is empty"),
        ('a,y\n"1\n",2\n', "line end within a row|columns instead of"),
        ("y\n1\n", "cannot take 1 target columns of 1"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SparseNNError, match=told):
        read_data(write(tmp_path, text))


def test_numbers_as_classes_count_from_0(tmp_path: Path) -> None:
    data = read_data(write(tmp_path, "a,y\n1,2\n2,0\n"), target=["y"], classes=True)
    assert (data.targets.shape, data.class_names) == ((2, 3), None)
    assert data.note == "no row is of class 1 of 3: classes are counted from 0 (--text makes them names)"
    data = read_data(write(tmp_path, "a,y\n1,2\n2,1\n"), target=["y"], text=["y"])
    assert (data.targets.shape, data.class_names) == ((2, 2), ("1", "2"))


def test_columns_without_a_name_are_left_out(tmp_path: Path) -> None:
    for text, note in (
        (",a,y\n0,5,2\n1,6,3\n", "column 1 has no name, and is left out, as row numbers are"),
        ("Unnamed: 0,a,,y\n0,5,,2\n1,6,,3\n", "columns 1, 3 have no names, and are left out, as row numbers are"),
    ):
        data = read_data(write(tmp_path, text))
        np.testing.assert_array_equal(data.inputs, [[5], [6]])
        assert data.note == note


def test_semicolons(tmp_path: Path) -> None:
    data = read_data(write(tmp_path, '"a b";c\n1;2\n3;4\n'))
    np.testing.assert_array_equal(data.inputs, [[1], [3]])
    found = read_rows(write(tmp_path, "1;2\n"), 2, 1)
    np.testing.assert_array_equal(found.inputs, [[1, 2]])


@pytest.mark.parametrize("target", ["y", "name"])
def test_texts_that_tell_rows_apart(tmp_path: Path, target: str) -> None:
    path = write(tmp_path, "name,y\n" + "".join(f"n{number // 2},{number}\n" for number in range(22)))
    assert read_data(path, target=[target]).targets.shape[0] == 22
    path = write(tmp_path, "name,y\n" + "".join(f"n{number},{number}\n" for number in range(11)))
    with pytest.raises(FileFormatError, match=r"column 'name' .* 11 rows.*--text"):
        read_data(path, target=[target])
    data = read_data(path, target=[target], text=["name"])
    assert 11 in (data.inputs.shape[1], data.targets.shape[1])


def test_columns_by_number(tmp_path: Path) -> None:
    data = read_data(write(tmp_path, "7,1,x\n8,2,y\n"), target=["1"], ignore=["3"])
    np.testing.assert_array_equal(data.inputs, [[1], [2]])
    np.testing.assert_array_equal(data.targets, [[7], [8]])
    assert isinstance(read_rows(write(tmp_path, "1\n"), 1, 1, encoding=data.encoding), InputRows)
    found = read_rows(write(tmp_path, "7,1\n"), 1, 1, targets=1, encoding=data.encoding)
    assert isinstance(found, TrainingData)
    np.testing.assert_array_equal(found.inputs, [[1]])
    np.testing.assert_array_equal(found.targets, [[7]])
    more = write(tmp_path, "9,3,z\n")
    for targets in (None, 1):
        with pytest.raises(ShapeError, match="has 3 columns; the model takes 1"):
            read_rows(more, 1, 1, targets=targets, encoding=data.encoding)
    np.testing.assert_array_equal(read_data(more, ignore=["3"], like=data).inputs, [[3]])


def test_scaling_is_kept_and_undone(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    inputs = rng.uniform(size=(200, 2)) * [1000, 1e-3] + [5e4, 0]
    targets = inputs @ [[30, 1], [0, 2e6]] - [[1.515e6, 5.15e4]]
    data = TrainingData(inputs, targets)
    result = train(data, epochs=60, learning_rate=0.1, device="cpu", scale="standard", validation=data)
    assert result.losses[-1] < 1e-4  # of targets of deviation 1
    assert result.evaluation.value == result.validation[-1][1].value < 1e-4 * result.baseline.value
    assert result.baseline.value == pytest.approx(targets.var(axis=0).mean(), rel=1e-5)
    model = trained_model(result, data, {"by": "hand"})
    write_model(tmp_path / "model.h5", model)
    again = read_model(tmp_path / "model.h5")
    assert again.network[0].activation == Identity()
    outputs = Session(again, device="reference")(data.inputs)
    np.testing.assert_allclose(outputs, targets, atol=0.01 * np.abs(targets).max())
    assert (targets < 0).any(axis=0).all()


def test_the_example_of_the_docs(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (repository / "docs" / "inputs-and-training-data.md").read_text(encoding="utf-8")
    *_, example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    kinds, sizes = rng.integers(0, 2, 80), rng.normal(size=(80, 2))
    sizes[:, 0] += 10 * kinds
    rows = [f"{a},{b},{('thorny', 'smooth')[kind]}" for (a, b), kind in zip(sizes.tolist(), kinds, strict=True)]
    Path("iris.csv").write_text("\n".join(["length,width,species", *rows]))
    Path("new_flowers.csv").write_text("width,length\n0,0\n0,10\n")
    told: list[list[str]] = []
    exec(example, {"print": told.append})
    assert told == [["thorny", "smooth"]]


def test_as_many_targets_as_were_trained_for(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y,z\n1,2,3\n")
    encoding = read_data(path, targets=2).encoding
    assert isinstance(read_rows(path, 1, 2, targets=2, encoding=encoding), TrainingData)
    with pytest.raises(UsageError, match="trained for 2 target columns, not 1"):
        read_rows(path, 1, 2, targets=1, encoding=encoding)


def test_a_target_is_nothing_else(path: Path) -> None:
    for how in ({"target": ["kind"], "ignore": ["kind"]}, {"target": ["kind", "kind"]}):
        with pytest.raises(UsageError, match=r"column .* twice"):
            read_data(path, **how)
