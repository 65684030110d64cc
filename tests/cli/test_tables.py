"""`sparsenn train` on tables as people have them, and `sparsenn predict` of what it wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command_line import Refused, Run
from pyarrow import parquet

from sparsenn.io import read_model

HOW = ("--device", "cpu", "--learning-rate", 0.05, "--epochs", 40)


def write(path: Path, names: list[str], rows: list[tuple[object, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.fixture
def flowers() -> list[tuple[object, ...]]:
    """Rows of three kinds that differ in sizes far from 0 and 1, and in colour."""
    rng = np.random.default_rng(3)
    kinds = rng.integers(0, 3, 200)
    sizes = rng.normal([2000, 0.001], [40, 0.0001], (200, 2)) + np.outer(kinds, [100, 0])
    colours = np.where(kinds == 1, "red", np.where(rng.random(200) < 0.5, "blue", "white"))
    names = ("iris, wild", "rose", "tulip")
    return [(f"{a:.6g}", f"{b:.6g}", c, names[k]) for (a, b), c, k in zip(sizes, colours.tolist(), kinds, strict=True)]


NAMES = ["length", "width", "colour", "kind"]


def test_text_classes_and_columns_end_to_end(
    run: Run, refused: Refused, tmp_path: Path, flowers: list[tuple[object, ...]]
) -> None:
    data = write(tmp_path / "flowers.csv", NAMES, flowers[:150])
    held_out = write(tmp_path / "held_out.csv", NAMES[::-1], [row[::-1] for row in flowers[150:]])
    model, out = tmp_path / "model.h5", tmp_path / "out.csv"
    done = run("train", data, "--targets", "kind", *HOW, "--validation", held_out, "--output", model, "--json", "-")
    record = json.loads(done.stdout)
    share = max(np.unique([row[3] for row in flowers[150:]], return_counts=True)[1]) / 50
    assert record["baseline"]["accuracy"] <= share < 0.7
    assert record["validation"][-1]["accuracy"] > 0.9
    assert record["evaluation"]["accuracy"] > 0.9
    for fragment in ("colour (3 categories)", "3: iris, wild, rose, tulip", "baseline", "training rows"):
        assert fragment in done.stderr
    rows = write(tmp_path / "new.csv", ["id", *NAMES[:3]], [(n, *row[:3]) for n, row in enumerate(flowers[150:])])
    done = run("predict", model, rows, "--device", "cpu", "--output", out, "--json", "-")
    found = json.loads(done.stdout)
    assert found["class_names"] == ["iris, wild", "rose", "tulip"]
    with out.open(newline="") as file:
        told = [line["class"] for line in csv.DictReader(file)]
    assert told == [found["class_names"][number] for number in found["predicted"]]
    right = np.mean([name == row[3] for name, row in zip(told, flowers[150:], strict=True)])
    assert right == record["validation"][-1]["accuracy"]
    assert "not used: the column 'id'" in done.stderr
    done = run("predict", model, held_out, "--device", "cpu", "--json", "-")
    assert json.loads(done.stdout)["accuracy"] == right
    text = " ".join(run("info", model).stdout.split())
    assert "columns length, width, colour (3 categories) target kind" in text
    refused(("predict", model, rows, "--device", "cpu", "--factor", "1/255"), "scales its inputs itself")


def test_the_gap_on_the_first_line_is_reported(refused: Refused, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("size,kind,price\n1,a,1\n2,b,2\n3,,3\n,b,4\n")
    refused(("train", rows, "--targets", "price", "--output", tmp_path / "m.h5"), f"{rows}:4: column 'kind'")


def test_numbers_far_from_1_and_gaps(run: Run, refused: Refused, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    area, new = rng.uniform(40, 200, 300), rng.random(300) < 0.5
    price = 2000 * area + 50_000 * new + 1e5
    columns = {
        "area": pa.array(area, mask=rng.random(300) < 0.05),
        "new": pa.array(new),
        "sold": pa.array(range(300), pa.date32()),
        "price": price,
    }
    path, model = tmp_path / "houses.parquet", tmp_path / "model.h5"
    parquet.write_table(pa.table(columns), path)
    how = ("train", path, *HOW, "--output", model, "--ignore", "sold")
    refused(how, "column 'area' holds nothing here: fill it in")
    done = run(*how, "--impute", "--json", "-")
    record = json.loads(done.stdout)
    assert record["evaluation"]["value"] < 0.2 * record["baseline"]["value"]
    new_rows = pa.table({"new": [True, False], "area": [100.0, 150.0]})
    parquet.write_table(new_rows, tmp_path / "new.parquet")
    out = tmp_path / "out.parquet"
    run("predict", model, tmp_path / "new.parquet", "--device", "cpu", "--output", out)
    table = parquet.read_table(out)
    assert table.column_names == ["price"]
    np.testing.assert_allclose(table[0].to_numpy(), [350_000, 400_000], rtol=0.1)


def test_scaling_is_for_tables_unless_said(run: Run, tmp_path: Path) -> None:
    data, model = write(tmp_path / "a.csv", ["x", "y"], [(n, 2 * n) for n in range(9)]), tmp_path / "model.h5"
    for options, scaled in (((), True), (("--scale", "none"), False), (("--scale", "standard"), True)):
        how = ("--learning-rate", 1e-3, "--epochs", 1, "--device", "cpu", "--output", model)
        run("train", data, *how, *options)
        found = read_model(model)
        assert (found.scaling is not None) == scaled
        assert found.encoding is not None


def test_resume_begins_where_there_is_no_checkpoint(run: Run, refused: Refused, tmp_path: Path) -> None:
    data = write(tmp_path / "a.csv", ["x", "y"], [(n, 2 * n) for n in range(9)])
    how = ("train", data, "--device", "cpu", "--checkpoint", tmp_path / "state.h5", "--resume")
    first = run(*how, "--epochs", 2, "--output", tmp_path / "model.h5")
    assert "there was no checkpoint to resume from; training started anew" in first.stdout
    again = run(*how, "--epochs", 5, "--output", tmp_path / "model.h5")
    assert "2 of them before this run" in again.stdout
    run("train", data, "--device", "cpu", "--epochs", 5, "--output", tmp_path / "whole.h5")
    assert (tmp_path / "whole.h5").read_bytes() == (tmp_path / "model.h5").read_bytes()
    other = (*how, "--scale", "none", "--epochs", 5, "--output", tmp_path / "model.h5")
    refused(other, "belongs to another training", "'scale' 'standard', now None")
