"""`sparsenn predict` on rows without targets, in every form of file, and the files that it writes."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from command_line import Refused, Run
from idx_files import write_idx
from pyarrow import parquet
from scipy.io import mmwrite
from scipy.sparse import coo_array, csc_array, csr_array, save_npz

from sparsenn.formats import from_dense
from sparsenn.io import write_matrix_market, write_model
from sparsenn.layers import Identity, Linear, ReLU, SparseLinear
from sparsenn.model import Model
from sparsenn.network import Network

ROWS, INPUTS, OUTPUTS = 40, 6, 3


@pytest.fixture
def rows() -> np.ndarray:
    """Of numbers that text of few digits holds exactly; half of them zeros."""
    rng = np.random.default_rng(5)
    return (rng.integers(-8, 9, (ROWS, INPUTS)) * rng.integers(0, 2, (ROWS, INPUTS)) / 4).astype(np.float32)


@pytest.fixture
def weights() -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    return [rng.normal(size=(INPUTS, 5)), rng.normal(size=(5, OUTPUTS))]


@pytest.fixture
def expected(rows: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    """The outputs in float64."""
    return np.maximum(rows @ weights[0] + 0.25, 0) @ weights[1]


@pytest.fixture
def folder(tmp_path: Path, weights: list[np.ndarray]) -> Path:
    """A classifier, the same with sparse layers, and the same for regression."""
    dense = Network((Linear(weights[0], 0.25, ReLU()), Linear(weights[1], None, Identity())))
    sparse = [SparseLinear.from_scipy(csc_array(weights[0]), 0.25, ReLU())]
    sparse.append(SparseLinear.from_scipy(csc_array(weights[1]), None, Identity()))
    write_model(tmp_path / "classes.h5", Model(dense, "cross_entropy", True))
    write_model(tmp_path / "sparse.h5", Model(Network(tuple(sparse)), "cross_entropy", True))
    write_model(tmp_path / "numbers.h5", Model(dense, "mse", False))
    return tmp_path


def write_rows(path: Path, rows: np.ndarray) -> None:
    """Write rows in the form that the name says."""
    suffix = path.name.partition(".")[2]
    if suffix in ("csv", "tsv", "csv.gz"):
        between = "\t" if suffix == "tsv" else ","
        text = "".join(between.join(map(repr, row)) + "\n" for row in rows.tolist())
        path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    elif suffix == "npy":
        np.save(path, rows)
    elif suffix == "f64.npy":
        np.save(path, np.asfortranarray(rows.astype(">f8")))
    elif suffix == "npz":
        np.savez(path, rows)
    elif suffix == "named.npz":
        np.savez_compressed(path, inputs=rows)
    elif suffix in ("csr.npz", "csc.npz", "coo.npz"):
        kind = {"csr.npz": csr_array, "csc.npz": csc_array, "coo.npz": coo_array}[suffix]
        save_npz(path, kind(rows))
    elif suffix == "h5":
        with h5py.File(path, "w") as file:
            file["inputs"] = rows
    elif suffix == "parquet":
        parquet.write_table(pa.table({f"c{number}": column for number, column in enumerate(rows.T)}), path)
    elif suffix == "array.mtx":
        mmwrite(path, rows)
    elif suffix in ("mtx", "mtx.gz"):
        write_matrix_market(path, from_dense(rows))
    else:
        write_idx(path, rows)


KINDS = (
    *("csv", "tsv", "csv.gz", "parquet", "npy", "f64.npy", "npz", "named.npz", "csr.npz", "csc.npz", "coo.npz"),
    *("mtx", "mtx.gz", "array.mtx", "h5", "idx"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["classes.h5", "sparse.h5"])
def test_every_kind_of_rows(
    run: Run, folder: Path, rows: np.ndarray, expected: np.ndarray, kind: str, model: str
) -> None:
    path = folder / f"rows.{kind}"
    write_rows(path, rows)
    out = folder / "out.npz"
    done = run("predict", folder / model, path, "--device", "cpu", "--json", "-", "--output", out)
    found = json.loads(done.stdout)
    assert (found["rows"], found["loss"], found["value"], found["accuracy"]) == (ROWS, None, None, None)
    assert found["predicted"] == expected.argmax(axis=1).tolist()
    assert "no targets to compare with" in done.stderr
    with np.load(out) as arrays:
        assert sorted(arrays) == ["classes", "outputs"]
        np.testing.assert_allclose(arrays["outputs"], expected, rtol=1e-4, atol=1e-5)
        assert arrays["classes"].tolist() == found["predicted"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_wider_table_ends_in_targets_if_they_are_asked_for(
    run: Run, folder: Path, rows: np.ndarray, expected: np.ndarray, kind: str
) -> None:
    labels = expected.argmax(axis=1)
    labels[::4] = (labels[::4] + 1) % OUTPUTS
    path = folder / f"rows.{kind}"
    write_rows(path, np.c_[rows, labels].astype(np.float32))
    how = ("--device", "cpu", "--json", "-", "--targets")
    found = json.loads(run("predict", folder / "classes.h5", path, *how, 1).stdout)
    assert found["accuracy"] == 0.75
    write_rows(path, np.c_[rows, expected].astype(np.float32))
    found = json.loads(run("predict", folder / "numbers.h5", path, *how, OUTPUTS).stdout)
    assert 0 <= found["value"] < 1e-8
    write_rows(path, np.c_[rows, np.eye(OUTPUTS)[labels]].astype(np.float32))
    assert json.loads(run("predict", folder / "classes.h5", path, *how, OUTPUTS).stdout)["accuracy"] == 0.75


def test_labels_and_targets_in_npz(run: Run, folder: Path, rows: np.ndarray, expected: np.ndarray) -> None:
    labels = expected.argmax(axis=1)
    path = folder / "rows.npz"
    np.savez(path, inputs=rows, labels=labels)
    found = json.loads(run("predict", folder / "classes.h5", path, "--device", "cpu", "--json", "-").stdout)
    assert found["accuracy"] == 1
    np.savez(path, inputs=rows, targets=expected)
    found = json.loads(run("predict", folder / "numbers.h5", path, "--device", "cpu", "--json", "-").stdout)
    assert 0 <= found["value"] < 1e-8


@pytest.mark.parametrize("suffix", [".csv", ".h5"])
def test_a_full_disk_leaves_the_old_file(
    run: Run, folder: Path, rows: np.ndarray, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write_rows(folder / "rows.npy", rows)
    path = folder / f"out{suffix}"
    path.write_text("old")
    before = sorted(folder.iterdir())
    monkeypatch.setattr("os.fsync", full)
    done = run("predict", folder / "classes.h5", folder / "rows.npy", "--device", "cpu", "--output", path, code=2)
    assert "the disk is full" in done.stderr
    assert path.read_text() == "old"
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("more.npz", "holds 'index', which the model does not name; known: 'inputs', 'labels', 'targets'"),
        ("both.npz", "holds targets and labels; it must hold only one of them"),
        ("absent.npy", "no such file"),
        ("good.txt", "the name does not say what kind of data this is"),
        (".", "is a folder, not a file; known: .csv"),
    ],
)
def test_what_is_refused(refused: Refused, folder: Path, rows: np.ndarray, name: str, message: str) -> None:
    (folder / "good.txt").write_text("1 2 3")
    np.savez(folder / "more.npz", inputs=rows, index=rows)
    np.savez(folder / "both.npz", inputs=rows, labels=np.zeros(ROWS, int), targets=np.zeros((ROWS, 3)))
    refused(("predict", "classes.h5", name, "--device", "cpu", "--output", "out.npy"), message)


def test_a_damaged_model_is_not_said_to_be_something_else(refused: Refused, folder: Path, rows: np.ndarray) -> None:
    np.save(folder / "rows.npy", rows)
    whole = (folder / "classes.h5").read_bytes()
    (folder / "cut.h5").write_bytes(whole[: len(whole) // 2])
    refused(("predict", "cut.h5", "rows.npy", "--device", "cpu"), "cut.h5: not HDF5, or damaged")


def test_help_is_a_screen_without_the_challenges_words(run: Run) -> None:
    text = run("predict", "--help").stdout
    assert len(text.splitlines()) < 60
    assert not {"neuron", "neurons", "bias", "category", "categories", "layers"} & set(text.lower().split())


def test_a_table_as_people_have_it(
    run: Run, refused: Refused, folder: Path, rows: np.ndarray, expected: np.ndarray
) -> None:
    names = "abcdef"
    lines = [[f'"{number:04}"', *map(repr, row), "Rome"] for number, row in enumerate(rows.astype(float).tolist())]
    gap = 2 + names.index("c")
    table, out = folder / "people.csv", folder / "found.csv"
    table.write_text("\n".join(",".join(line) for line in [["key", *names, "city"], *lines]) + "\n")
    how = ("predict", folder / "classes.h5", table, "--device", "cpu", "--output", out)
    refused(how, "the model takes 6")
    done = run(*how, "--id", "key", "--ignore", "city", "--scores", "--memory-limit", "500M")
    assert f"wrote {out} ({ROWS} rows)" in done.stdout
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["key", "class", "score_0", "score_1", "score_2"]
    assert [row["key"] for row in found] == [f"{number:04}" for number in range(ROWS)]
    assert [int(row["class"]) for row in found] == expected.argmax(axis=1).tolist()
    lines[3][gap - 1] = ""
    table.write_text("\n".join(",".join(line) for line in [["key", *names, "city"], *lines]) + "\n")
    chosen = (*how[:-2], "--columns", "a,b,c,d,e,f", "--id", "key")
    refused(chosen, "people.csv:5", "'c'")
    done = run(*chosen, "--impute")
    assert "the first 10 of 40 rows; --output FILE writes all" in done.stdout
    assert "0009" in done.stdout
    assert "0010" not in done.stdout
    refused((*chosen, "--json", "-"), "--columns, --ignore, --id and --impute go with")


def test_classes_and_values_by_option(run: Run, folder: Path, rows: np.ndarray, expected: np.ndarray) -> None:
    write_rows(folder / "rows.npy", rows)
    for model, option, numbers in (
        ("classes.h5", "--no-classes", expected),
        ("numbers.h5", "--classes", expected.argmax(axis=1)),
    ):
        out = folder / "out.csv"
        done = run("predict", folder / model, folder / "rows.npy", "--device", "cpu", "--output", out, option)
        assert f"wrote {out} ({ROWS} rows)" in done.stdout
        np.testing.assert_allclose(np.loadtxt(out, delimiter=",", skiprows=1), numbers, rtol=1e-4, atol=1e-5)


def run_scaled(run: Run, folder: Path, name: str, *options: object) -> np.ndarray:
    """The outputs of the model for regression."""
    out = folder / "scaled.npy"
    done = run("predict", folder / "numbers.h5", folder / name, "--device", "cpu", "--output", out, *options)
    assert "scaling" in done.stdout
    return np.load(out)


@pytest.mark.parametrize("kind", ["npy", "csv", "csr.npz", "mtx"])
@pytest.mark.parametrize("mean", ["0", "0.5", "1,2,3,4,5,6"])
def test_inputs_are_scaled(
    run: Run, folder: Path, rows: np.ndarray, weights: list[np.ndarray], kind: str, mean: str
) -> None:
    write_rows(folder / f"rows.{kind}", rows)
    found = run_scaled(run, folder, f"rows.{kind}", "--factor", "1/3", "--mean", mean, "--deviation", "2,1,1,1,1,0.5")
    scaled = (rows / 3 - np.array(mean.split(","), float)) / np.array([2, 1, 1, 1, 1, 0.5])
    np.testing.assert_allclose(found, np.maximum(scaled @ weights[0] + 0.25, 0) @ weights[1], rtol=1e-4, atol=1e-5)


def test_bytes_of_images_are_scaled_once(run: Run, folder: Path, rows: np.ndarray) -> None:
    pixels = (np.abs(rows) * 8).astype(np.uint8)
    write_idx(folder / "pixels.idx", pixels)
    np.save(folder / "pixels.npy", pixels)
    plain = folder / "plain.npy"
    how = (folder / "pixels.idx", "--device", "cpu", "--output", plain)
    run("predict", folder / "numbers.h5", *how)
    for name in ("pixels.idx", "pixels.npy"):
        np.testing.assert_array_equal(run_scaled(run, folder, name, "--factor", "1/255"), np.load(plain))
    done = run("predict", folder / "numbers.h5", folder / "pixels.npy", "--device", "cpu")
    assert "bytes were taken as they are, 0 to 255" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--factor", "a"), "--factor a: take a number or a fraction, such as 1/255"),
        (("--mean", "1,2"), "the scaling has 2 numbers as mean; take one, or 6, one per column"),
    ],
)
def test_scalings_that_are_refused(
    refused: Refused, folder: Path, rows: np.ndarray, options: tuple[str, str], message: str
) -> None:
    write_rows(folder / "rows.npy", rows)
    refused(("predict", "classes.h5", "rows.npy", "--device", "cpu", *options), message)


def test_a_column_too_many_is_no_label(refused: Refused, folder: Path, rows: np.ndarray) -> None:
    text = "".join(f"{number},{','.join(map(str, row))}\n" for number, row in enumerate(rows.tolist()))
    for name, header in (("named.csv", "id,a,b,c,d,e,f\n"), ("nameless.csv", "")):
        (folder / name).write_text(header + text)
        for model in ("classes.h5", "numbers.h5"):
            names = " ('id', 'a', 'b', 'c', 'd', 'e', 'f')" if header else ""
            found = f"{name} does not fit {model}: the table has 7 columns{names}; the model takes 6"
            line = "predict", model, name, "--output", "predictions.csv", "--device", "cpu"
            refused(line, found, "name those that it takes (--columns A,B,...)")
